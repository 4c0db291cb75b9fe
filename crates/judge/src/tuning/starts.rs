//! Settings that prevent losses while pods start.
//!
//! A readiness delay keeps traffic away from a pod whose probe passes before the app serves. minReadySeconds keeps the
//! old pods until every consumer has learned about the new ones.

use super::{PodSettings, RolloutShape};
use rolldrop_explain::math::stats;
use rolldrop_explain::model::{RunResult, Start, StartStage};
use rolldrop_record::Cause;

/// Returns the current settings, extended by start delays that would have saved the requests lost while pods started.
/// The settings stay unchanged if nothing was lost, if the pods have no readiness probe, or if their first response was
/// not seen. minReadySeconds helps only if a rollout keeps old pods until new ones exist.
pub fn with_starts(result: &RunResult, set: PodSettings, rollout: RolloutShape) -> PodSettings {
    let slowest = |from: StartStage, counts: fn(&Start) -> bool| {
        let took = result.starts.iter().filter(|start| counts(start)).filter_map(|start| {
            Some(start.timeline.get(&StartStage::FirstRequest)? - start.timeline.get(&from)?)
        });
        stats::ceil_seconds(took.fold(0.0, f64::max))
    };
    // If no request was waiting for a pod, the pod may have been listening long before its first request.
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

/// Requests lost while pods started, despite a setting that should have saved them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostAtStart {
    /// Cause of the losses.
    pub cause: Cause,
    /// Number of lost requests.
    pub requests: u64,
    /// Setting that should have saved them.
    pub setting: StartSetting,
}

/// A setting for starting pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartSetting {
    /// `initialDelaySeconds` of the readiness probe.
    ReadinessDelay,
    /// `minReadySeconds`.
    MinReadySeconds,
}

/// Returns the requests that a run with the settings `with` lost while pods started, although a setting changed from
/// `set` should have saved them. Returns only the first cause with such losses; `None` if there were none.
pub fn lost_at_starts(result: &RunResult, set: PodSettings, with: PodSettings) -> Option<LostAtStart> {
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
