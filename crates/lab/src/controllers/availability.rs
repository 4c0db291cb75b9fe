//! Availability of pods: a pod is available once it has been ready for as long as its workload requires
//! (`IsPodAvailable` in pkg/api/v1/pod/util.go).

use std::time::Duration;

use serde_json::{Value, json};

use crate::conditions::of as condition;
use crate::conditions::unix_seconds;
use crate::object::is_ready;
use crate::value::number;

/// Availability of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Availability {
    /// Not ready.
    NotReady,
    /// Ready, and available after this many seconds.
    In(i64),
    /// Available.
    Available,
}

impl Availability {
    /// Returns the availability of a pod at a time in Unix seconds.
    pub(super) fn of(pod: &Value, min_ready_seconds: i64, now: i64) -> Self {
        if !is_ready(pod) {
            return Self::NotReady;
        }
        let since = unix_seconds(&condition(pod, "Ready")["lastTransitionTime"]).unwrap_or(now);
        match since + min_ready_seconds - now {
            left @ 1.. if min_ready_seconds > 0 => Self::In(left),
            _ => Self::Available,
        }
    }

    pub(super) fn is_available(self) -> bool {
        self == Self::Available
    }
}

/// Judges the pods of one workload at one time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Judge {
    min_ready_seconds: i64,
    now: i64,
}

impl Judge {
    /// Makes a judge for the pods of a workload, at a time in text.
    pub(super) fn new(workload: &Value, now: &str) -> Self {
        Self {
            min_ready_seconds: number(&workload["spec"]["minReadySeconds"]),
            now: unix_seconds(&json!(now)).unwrap_or(0),
        }
    }

    pub(super) fn availability(self, pod: &Value) -> Availability {
        Availability::of(pod, self.min_ready_seconds, self.now)
    }

    pub(super) fn is_available(self, pod: &Value) -> bool {
        self.availability(pod).is_available()
    }

    /// Returns the time until one more of these pods will be available.
    pub(super) fn next<'a>(self, pods: impl IntoIterator<Item = &'a Value>) -> Option<Duration> {
        let left = pods.into_iter().filter_map(|pod| match self.availability(pod) {
            Availability::In(seconds) => u64::try_from(seconds).ok(),
            Availability::NotReady | Availability::Available => None,
        });
        left.min().map(Duration::from_secs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn min_ready_seconds_delay_availability() {
        let pod = |status: &str, since: &str| json!({"status": {"conditions": [{"type": "Ready", "status": status, "lastTransitionTime": since}]}});
        let judge = Judge::new(&json!({"spec": {"minReadySeconds": 10}}), "2026-01-01T00:00:10Z");
        assert_eq!(judge.availability(&pod("True", "2026-01-01T00:00:00Z")), Availability::Available);
        assert_eq!(judge.availability(&pod("True", "2026-01-01T00:00:01Z")), Availability::In(1));
        assert_eq!(judge.availability(&pod("False", "2026-01-01T00:00:00Z")), Availability::NotReady);
        let pods = [pod("True", "2026-01-01T00:00:09Z"), pod("True", "2026-01-01T00:00:03Z")];
        assert_eq!(judge.next(&pods), Some(Duration::from_secs(3)));
        let at_once = Judge::new(&json!({}), "2026-01-01T00:00:10Z");
        assert!(at_once.is_available(&pods[0]));
    }
}
