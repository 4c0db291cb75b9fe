//! Checks on the duration of rollouts.

use std::collections::BTreeMap;

use super::figure::each_within;
use super::stage_checks;
use crate::judgements::basis::{Basis, Measured, PodFact};
use crate::judgements::gate_check::Check;
use rolldrop_explain::model::{Mode, RunResult, Stage, Start, StartStage, Termination, Unit};
use rolldrop_record::expect::{Bounds, Span};

/// Checks the duration of each rollout, from the first deletion of an old pod until the last old pod was gone.
pub(super) fn rollout(result: &RunResult, bounds: Bounds<Span>) -> Vec<Check> {
    each_within("rollout", bounds.map(Span::seconds), &each_rollout(result), no_rollout)
}

/// Returns the duration of each rollout.
pub(super) fn each_rollout(result: &RunResult) -> Vec<Measured> {
    let mut rollouts: BTreeMap<_, Vec<&Termination>> = BTreeMap::new();
    for t in result.terminations.iter().filter(|t| t.mode == Mode::Rollout) {
        rollouts.entry((t.disruption, t.repetition)).or_default().push(t);
    }
    // In a StatefulSet, the previous pod had the same name.
    let is_it = |t: &Termination, start: &Start| match start.uid.as_str() {
        "" => t.pod == start.pod,
        uid => t.uid == uid,
    };
    let has_ended = |start: &&Start| result.terminations.iter().any(|t| is_it(t, start));
    let serves = |start: &&Start| {
        [StartStage::Ready, StartStage::FirstRequest].iter().any(|stage| start.timeline.contains_key(stage))
    };
    let starting = result.starts.iter().find(|start| !serves(start) && !has_ended(start));
    rollouts.values().map(|pods| length(pods, starting)).collect()
}

pub(super) fn no_rollout() -> Measured {
    Measured::unknown(Unit::Seconds, Basis::NoRollout)
}

/// Returns the duration of one rollout. It began between the earliest and the latest t0 of its first termination.
/// `starting` is a pod that was not yet ready when the run ended; old pods may then have ended later.
fn length(pods: &[&Termination], starting: Option<&Start>) -> Measured {
    let first = |at: &dyn Fn(&Termination) -> f64| pods.iter().map(|t| at(t)).fold(f64::INFINITY, f64::min);
    let (began_from, began_to) = (first(&|t| t.t0_s - t.t0_uncertainty_s), first(&|t| t.t0_s));
    let gone = |t: &&Termination| {
        let figure = stage_checks::of_end(t, Stage::PodDeleted).figure;
        Some((t.t0_s + figure.low?, t.t0_s + figure.value?))
    };
    let later = |a: (f64, f64), b: (f64, f64)| (a.0.max(b.0), a.1.max(b.1));
    let last = pods.iter().filter_map(gone).reduce(later);
    let low = last.map(|(from, _)| (from - began_to).max(0.0));
    let left = pods.iter().find(|t| gone(t).is_none());
    let open = match (left, starting) {
        (Some(left), _) => Basis::Pod(left.pod.clone(), PodFact::NotGone),
        (None, Some(starting)) => Basis::Pod(starting.pod.clone(), PodFact::NotReady),
        (None, None) => {
            let (value, high) = (last.map(|(_, to)| to - began_to), last.map(|(_, to)| to - began_from));
            return Measured::between(Unit::Seconds, low, value, high);
        }
    };
    Measured::between(Unit::Seconds, low, None, None).because(open)
}
