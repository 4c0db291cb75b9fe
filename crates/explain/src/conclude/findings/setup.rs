//! Facts about the terminated pods on which a remedy depends.

use std::collections::BTreeSet;

use super::{FindingsInput, JudgedRequest};
use crate::model::account::PreStopHooks;
use crate::timeline::{EARLY_S, FailedHook, OwningWorkload, PodEnd, SIGKILLED};
use rolldrop_record::event::Replacement;
use rolldrop_record::{Cause, Mode};

/// Tolerance, in seconds, for the time at which a kubelet reports cutting off a hook at the end of the grace period.
const CUT_OFF_S: f64 = 1.0;
/// Time in seconds before the end of the grace period within which a response shows that the pod served until the end.
const UNTIL_KILLED_S: f64 = 3.0;

/// Facts about the terminated pods.
#[derive(Debug)]
pub(super) struct Setup<'a> {
    pub(super) hook: PreStopHooks,
    /// Event that reports a failed hook, by termination.
    pub(super) failed: Vec<Option<&'a FailedHook>>,
    /// Terminations whose containers exited before their hook's sleep could have finished, without an Event that gives
    /// the reason.
    pub(super) early: Vec<usize>,
    /// Terminations whose hook was still running when the grace period expired.
    pub(super) cut_off: Vec<usize>,
    /// Terminations whose pod accepted new connections until its grace period expired.
    pub(super) accepting: Vec<usize>,
    /// Other terminations whose pod answered on kept connections until its grace period expired.
    pub(super) kept_on: Vec<usize>,
    /// Common workload of all these pods, if there is one and it was seen.
    pub(super) workload: Option<&'a OwningWorkload>,
    /// True if any of these pods was terminated in a rollout.
    pub(super) rolls_out: bool,
    /// Longest preStop sleep among these pods, in seconds.
    pub(super) longest_sleep_s: u64,
    /// True if none of these pods was deleted, so that none of their endpoints was withdrawn before their end.
    pub(super) none_deleted: bool,
}

impl<'a> Setup<'a> {
    /// Collects facts about all terminated pods.
    pub(super) fn of(known: &FindingsInput<'a>) -> Self {
        Self::of_those(known, |_| true)
    }

    /// Collects facts about the pods of workloads that lost requests because pods no longer accepted connections, or
    /// about all pods if it is unknown which ones lost them.
    pub(super) fn of_dead(known: &FindingsInput<'a>) -> Self {
        let is_so =
            |j: &&JudgedRequest<'_>| matches!(j.cause, Cause::RoutedToDeadPod | Cause::GatewayToDeadPod);
        let workload = |e: usize| known.timeline.ends[e].workload.as_ref().map(|workload| &workload.name);
        let candidates = known.judged.iter().filter(is_so).flat_map(|j| &j.candidates);
        let workloads: BTreeSet<Option<&String>> = candidates.map(|one| workload(one.termination)).collect();
        Self::of_those(known, |e| workloads.is_empty() || workloads.contains(&workload(e)))
    }

    fn of_those(known: &FindingsInput<'a>, is_meant: impl Fn(usize) -> bool) -> Self {
        let timeline = known.timeline;
        let ends = || timeline.ends.iter().enumerate().filter(|(e, _)| is_meant(*e));
        let mut failed: Vec<Option<&FailedHook>> = vec![None; timeline.ends.len()];
        let mut cut_off = Vec::new();
        for (e, end) in ends() {
            failed[e] = timeline.failed_hooks_of(end).next();
            let since_s = |event: &FailedHook| event.at.seconds_since(end.t0.latest);
            if failed[e].is_some_and(|event| since_s(event) >= end.grace_s as f64 - CUT_OFF_S) {
                failed[e] = None;
                cut_off.push(e);
            }
        }
        let numbers = |is_one: &dyn Fn(usize, &PodEnd) -> bool| -> Vec<usize> {
            ends().filter(|(e, end)| is_one(*e, end)).map(|(e, _)| e).collect()
        };
        let accepting = numbers(&|_, end| end.accepted_until_killed());
        let kept_on = numbers(&|e, end| !accepting.contains(&e) && served_until_killed(known, e, end));
        let workloads = || ends().map(|(_, end)| end.workload.as_ref());
        Self {
            hook: hook(ends().map(|(_, end)| end)),
            early: numbers(&|e, end| {
                known.terminations[e].was_deleted() && failed[e].is_none() && ended_early(end)
            }),
            none_deleted: ends().next().is_some()
                && ends().all(|(e, _)| !known.terminations[e].was_deleted()),
            workload: workloads()
                .next()
                .flatten()
                .filter(|first| workloads().all(|other| other.is_some_and(|other| other.name == first.name))),
            rolls_out: ends().any(|(e, _)| known.terminations[e].mode == Mode::Rollout),
            longest_sleep_s: ends()
                .filter_map(|(e, _)| known.terminations[e].pre_stop_seconds)
                .max()
                .unwrap_or(0),
            kept_on,
            accepting,
            cut_off,
            failed,
        }
    }

    /// Returns true if a hook is known to have failed.
    pub(super) fn has_failures(&self) -> bool {
        self.failed.iter().any(Option::is_some)
    }

    /// Returns the workload if a rollout terminates all its pods before the first new one starts.
    pub(super) fn recreated(&self) -> Option<&'a OwningWorkload> {
        self.workload.filter(|workload| self.rolls_out && workload.strategy == Some(Replacement::Recreate))
    }
}

fn hook<'e>(mut ends: impl Iterator<Item = &'e PodEnd>) -> PreStopHooks {
    let Some(first) = ends.next().map_or(Some(0), |end| end.hook_sleep_s) else { return PreStopHooks::Other };
    match ends.all(|end| end.hook_sleep_s == Some(first)) {
        false => PreStopHooks::Other,
        true if first == 0 => PreStopHooks::Unset,
        true => PreStopHooks::Sleep(first),
    }
}

/// Returns true if the containers exited before their hook's sleep could have finished.
fn ended_early(end: &PodEnd) -> bool {
    let sleep_s = end.hook_sleep_s.unwrap_or(0).min(end.grace_s) as f64;
    let ended = end.stages.app_exited.or(end.stages.containers_terminated);
    sleep_s > 0.0 && ended.is_some_and(|at| at.seconds_since(end.t0.latest) < sleep_s - EARLY_S)
}

/// Returns true if a pod terminated by SIGKILL answered on kept connections until then.
fn served_until_killed(known: &FindingsInput<'_>, e: usize, end: &PodEnd) -> bool {
    let killed_s = end.grace_s as f64 - UNTIL_KILLED_S;
    let last = known.sums.kept.get(e).and_then(|kept| kept.last);
    end.exit_code == Some(SIGKILLED)
        // While a hook of another kind runs, the app has not received its signal yet.
        && end.hook_sleep_s.is_some()
        && last.is_some_and(|at| at.seconds_since(end.t0.latest) >= killed_s)
}
