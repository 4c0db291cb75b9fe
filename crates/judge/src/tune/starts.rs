//! Settings that starting pods need so that they lose nothing.
//!
//! A readiness delay keeps traffic from a pod whose probe passes before it serves. minReadySeconds keeps the old pods
//! until every consumer has learned of the new ones.

use super::{Rollout, Settings};
use rolldrop_explain::math::stats;
use rolldrop_explain::model::{RunResult, Start, StartStage};
use rolldrop_record::Cause;

/// Returns the current settings, with delays at the start of pods that would have saved the requests that a run lost
/// then. They stay as they are if nothing was lost, the pods have no readiness probe, or their first answer was not
/// seen. minReadySeconds helps only if a rollout leaves old pods until new ones are there.
pub fn with_starts(result: &RunResult, set: Settings, rollout: Rollout) -> Settings {
    let slowest = |from: StartStage, counts: fn(&Start) -> bool| {
        let took = result.starts.iter().filter(|start| counts(start)).filter_map(|start| {
            Some(start.timeline.get(&StartStage::FirstRequest)? - start.timeline.get(&from)?)
        });
        stats::ceil_seconds(took.fold(0.0, f64::max))
    };
    // A pod that no request was waiting for may have listened long before its first one.
    let has_awaited = result.starts.iter().any(|start| start.was_awaited);
    let shows_listening = if has_awaited { |start: &Start| start.was_awaited } else { |_: &Start| true };
    let mut wanted = set;
    if lost_to(result, Cause::NotReadyYet) > 0 {
        let took = slowest(StartStage::IpReported, shows_listening);
        wanted.readiness_delay_seconds = set.readiness_delay_seconds.map(|delay| delay.max(took));
    }
    if lost_to(result, Cause::NoReadyEndpoint) > 0 && !rollout.may_leave_none() {
        wanted.min_ready_seconds = set.min_ready_seconds.max(slowest(StartStage::Ready, |_| true));
    }
    wanted
}

/// Requests that were lost at starts although the settings were to save them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostAtStart {
    /// Cause of their loss.
    pub cause: Cause,
    /// Their number.
    pub requests: u64,
    /// Setting that was to save them.
    pub setting: StartSetting,
}

/// A setting for the start of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartSetting {
    /// `initialDelaySeconds` of the readiness probe.
    ReadinessDelay,
    /// `minReadySeconds`.
    MinReadySeconds,
}

/// Returns the losses at starts of a run with these settings, which its settings were to save; `None` if there were
/// none.
pub fn lost_at_starts(result: &RunResult, set: Settings, with: Settings) -> Option<LostAtStart> {
    let is_delayed = set.readiness_delay_seconds != with.readiness_delay_seconds;
    let is_kept = set.min_ready_seconds != with.min_ready_seconds;
    let changed = [
        (Cause::NotReadyYet, is_delayed, StartSetting::ReadinessDelay),
        (Cause::NoReadyEndpoint, is_kept, StartSetting::MinReadySeconds),
    ];
    changed.into_iter().filter(|(_, is_changed, _)| *is_changed).find_map(|(cause, _, setting)| {
        let requests = lost_to(result, cause);
        (requests > 0).then_some(LostAtStart { cause, requests, setting })
    })
}

fn lost_to(result: &RunResult, cause: Cause) -> u64 {
    result.requests.by_cause.get(&cause).copied().unwrap_or(0)
}
