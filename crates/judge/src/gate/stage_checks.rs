//! Checks on exit codes, and on the times at which terminations and starts reached their stages.

use std::collections::BTreeMap;

use super::figure::{each_within, largest};
use super::times::no_start;
use crate::judgements::basis::{Basis, Measured, PodFact};
use crate::judgements::gate_check::Check;
use rolldrop_explain::model::{Stage, Start, StartStage, Termination, Unit};
use rolldrop_record::expect::{Bounds, Span};

/// Returns the checks on termination stages. Times count from each termination's own t0.
pub(super) fn of_ends(terminations: &[Termination], limits: &BTreeMap<Stage, Bounds<Span>>) -> Vec<Check> {
    let no_end = || Measured::unknown(Unit::Seconds, Basis::NoEnd);
    let of = |(stage, bounds): (&Stage, &Bounds<Span>)| {
        let all = terminations.iter().map(|t| of_end(t, *stage)).collect();
        within(&format!("stages.{stage}"), *bounds, all, no_end)
    };
    limits.iter().flat_map(of).collect()
}

/// Returns the time at which a termination reached a stage. The timeline counts from the latest possible t0, so the
/// true time may be longer by t0's uncertainty. If a watch reported the stage after a gap, the stage may have been
/// reached at any time since the gap began.
pub(super) fn of_end(termination: &Termination, stage: Stage) -> Measured {
    let Termination { pod, timeline, t0_s, t0_uncertainty_s, watch_gaps, windows, .. } = termination;
    let Some(at) = timeline.get(&stage) else {
        // If no new connection arrived after t0, none arrived after the windows.
        let windows = windows.iter().filter(|_| stage == Stage::LastConnection);
        let windows = windows.map(|window| Measured::between(Unit::Seconds, None, None, window.upper_s));
        let latest = largest(&windows.collect::<Vec<_>>());
        let measured = latest.unwrap_or_else(|| Measured::between(Unit::Seconds, None, None, None));
        return measured.because(Basis::Pod(pod.clone(), PodFact::NoStage(stage)));
    };
    let is_watched =
        !matches!(stage, Stage::KillBegan | Stage::ListenerClosed | Stage::AppExited | Stage::LastConnection);
    let gaps = watch_gaps.iter().map(|gap| gap.from_s - t0_s).filter(|from| is_watched && from < at);
    let earliest = gaps.fold(*at, f64::min);
    Measured::between(Unit::Seconds, Some(earliest), Some(*at), Some(at + t0_uncertainty_s))
}

/// Returns the checks on start stages. Times count from when the pod was first seen.
pub(super) fn of_starts(starts: &[Start], limits: &BTreeMap<StartStage, Bounds<Span>>) -> Vec<Check> {
    let of_start = |start: &Start, stage: StartStage| match start.timeline.get(&stage) {
        Some(at) => Measured::exactly(Unit::Seconds, *at),
        None => Measured::unknown(Unit::Seconds, Basis::Pod(start.pod.clone(), PodFact::NoStartStage(stage))),
    };
    let of = |(stage, bounds): (&StartStage, &Bounds<Span>)| {
        let all = starts.iter().map(|start| of_start(start, *stage)).collect();
        within(&format!("starts.stages.{stage}"), *bounds, all, no_start)
    };
    limits.iter().flat_map(of).collect()
}

/// Checks each figure. Unknown figures come first so that an inconclusive check names one of them.
fn within(
    name: &str,
    bounds: Bounds<Span>,
    mut all: Vec<Measured>,
    nothing: impl Fn() -> Measured,
) -> Vec<Check> {
    all.sort_by_key(Measured::is_bounded);
    each_within(name, bounds.map(Span::seconds), &all, nothing)
}

/// Checks the number of terminations with each exit code.
pub(super) fn exits(terminations: &[Termination], limits: &BTreeMap<u8, Bounds<u64>>) -> Vec<Check> {
    let of = |(code, bounds): (&u8, &Bounds<u64>)| {
        let known = terminations.iter().filter(|t| t.exit_code == Some(i32::from(*code))).count() as f64;
        let unseen = terminations.iter().filter(|t| t.exit_code.is_none());
        let pods: Vec<String> = unseen.map(|t| t.pod.clone()).collect();
        let most = known + pods.len() as f64;
        let measured = Measured::between(Unit::Count, Some(known), Some(known), Some(most));
        let measured = match pods.is_empty() {
            true => measured,
            false => measured.because(Basis::UnseenExitCodes(pods)),
        };
        measured.within(&format!("exits.{code}"), bounds.map(|n| n as f64))
    };
    limits.iter().flat_map(of).collect()
}
