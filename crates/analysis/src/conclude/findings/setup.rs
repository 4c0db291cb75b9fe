//! Facts about the pods that ended, as far as a remedy depends on them.

use super::{Known, len};
use crate::timeline::{EARLY_S, FailedHook, PodEnd, Timeline, Workload};
use rolldrop_record::Mode;
use rolldrop_record::event::Replacement;

/// A kubelet that cuts a hook off at the end of the grace period says so this much earlier or later, in seconds.
const CUT_OFF_S: f64 = 1.0;
/// An Event may be shown so long after its pod has gone.
const LATE_NS: i64 = 5_000_000_000;
/// An answer this short before the end of the grace period shows that the pod served until then, in seconds.
const UNTIL_KILLED_S: f64 = 3.0;

/// The preStop hooks of the pods that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hook {
    /// None.
    Unset,
    /// Each sleeps so long, in seconds.
    Sleep(i64),
    /// Some have one of another kind, or not all the same.
    Other,
}

/// Facts about the pods that ended.
#[derive(Debug)]
pub(super) struct Setup<'a> {
    pub(super) hook: Hook,
    /// By termination, the Event that says that its hook failed.
    pub(super) failed: Vec<Option<&'a FailedHook>>,
    /// Terminations whose containers ended before their hook's sleep could be over, though no Event says why.
    pub(super) early: Vec<usize>,
    /// Terminations whose hook was still running when the grace period was over.
    pub(super) cut_off: Vec<usize>,
    /// Terminations whose pod accepted new connections until its grace period was over.
    pub(super) accepting: Vec<usize>,
    /// Others whose pod answered on kept connections until its grace period was over.
    pub(super) kept_on: Vec<usize>,
    /// The workload of all of them, if it is one and was seen.
    pub(super) workload: Option<&'a Workload>,
    /// True if any of them ended in a rollout.
    pub(super) rolls_out: bool,
}

impl<'a> Setup<'a> {
    pub(super) fn of(known: &Known<'a>) -> Self {
        let timeline = known.timeline;
        let ends = &timeline.ends;
        let events: Vec<Option<&FailedHook>> = ends.iter().map(|end| failure(timeline, end)).collect();
        let is_cut_off = |(end, event): (&PodEnd, &Option<&FailedHook>)| {
            event.is_some_and(|event| event.at.seconds_since(end.t0.latest) >= end.grace_s as f64 - CUT_OFF_S)
        };
        let cut_off: Vec<usize> = numbers(ends.iter().zip(&events).map(is_cut_off));
        let mut failed = events;
        cut_off.iter().for_each(|e| failed[*e] = None);
        let is_early = |(e, end): (usize, &PodEnd)| failed[e].is_none() && ended_early(end);
        let accepting = numbers(ends.iter().map(PodEnd::accepted_until_killed));
        let kept_on =
            |(e, end): (usize, &PodEnd)| !accepting.contains(&e) && served_until_killed(known, e, end);
        let workloads = || ends.iter().map(|end| end.workload.as_ref());
        Self {
            hook: hook(ends),
            early: numbers(ends.iter().enumerate().map(is_early)),
            kept_on: numbers(ends.iter().enumerate().map(kept_on)),
            accepting,
            cut_off,
            failed,
            workload: workloads()
                .next()
                .flatten()
                .filter(|first| workloads().all(|other| other.is_some_and(|other| other.name == first.name))),
            rolls_out: known.terminations.iter().any(|t| t.mode == Mode::Rollout),
        }
    }

    /// Returns the number of hooks that are known to have failed.
    pub(super) fn failures(&self) -> u64 {
        len(self.failed.iter().flatten().count())
    }

    /// The workload if a rollout takes all its pods away before the first new one starts.
    pub(super) fn recreated(&self) -> Option<&'a Workload> {
        self.workload.filter(|workload| self.rolls_out && workload.strategy == Some(Replacement::Recreate))
    }
}

fn numbers(is_one: impl Iterator<Item = bool>) -> Vec<usize> {
    is_one.enumerate().filter(|(_, is_one)| *is_one).map(|(e, _)| e).collect()
}

fn hook(ends: &[PodEnd]) -> Hook {
    let sleeps: Option<Vec<i64>> = ends.iter().map(|end| end.hook_sleep_s).collect();
    match sleeps.as_deref() {
        None => Hook::Other,
        Some(all) if all.iter().all(|s| *s == 0) => Hook::Unset,
        Some([first, others @ ..]) if others.iter().all(|s| s == first) => Hook::Sleep(*first),
        Some(_) => Hook::Other,
    }
}

/// The Event of this end that says that its hook failed.
fn failure<'a>(timeline: &'a Timeline, end: &PodEnd) -> Option<&'a FailedHook> {
    // The next pod of a StatefulSet has the same name.
    let until = end.gone().map(|gone| gone.shifted_ns(LATE_NS));
    let is_its = |failed: &&FailedHook| {
        failed.pod == end.pod && failed.at >= end.t0.earliest && until.is_none_or(|until| failed.at <= until)
    };
    timeline.notes.failed_hooks.iter().find(is_its)
}

/// Returns true if the containers ended before the sleep of their hook could be over.
fn ended_early(end: &PodEnd) -> bool {
    let sleep_s = end.hook_sleep_s.unwrap_or(0).min(end.grace_s) as f64;
    let ended = end.stages.app_exited.or(end.stages.containers_terminated);
    sleep_s > 0.0 && ended.is_some_and(|at| at.seconds_since(end.t0.latest) < sleep_s - EARLY_S)
}

/// Returns true if a pod that SIGKILL ended answered on kept connections until then.
fn served_until_killed(known: &Known<'_>, e: usize, end: &PodEnd) -> bool {
    let killed_s = end.grace_s as f64 - UNTIL_KILLED_S;
    let last = known.sums.kept.get(e).and_then(|kept| kept.last);
    end.exit_code == Some(137)
        // While a hook of another kind runs, the app has no signal yet.
        && end.hook_sleep_s.is_some()
        && last.is_some_and(|at| at.seconds_since(end.t0.latest) >= killed_s)
}
