//! Pod availability: a pod is available once it has been ready for as long as its workload requires
//! (`IsPodAvailable` in pkg/api/v1/pod/util.go).

use std::time::Duration;

use serde_json::{Value, json};

use crate::conditions::of as condition;
use crate::conditions::unix_seconds;
use crate::object_fields::is_ready;
use crate::value::number;

/// Availability check for one workload's pods at a given time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Judge {
    min_ready_seconds: i64,
    now: i64,
}

impl Judge {
    /// Creates the check for a workload's pods. `now` is an RFC 3339 string.
    pub(super) fn new(workload: &Value, now: &str) -> Self {
        Self {
            min_ready_seconds: number(&workload["spec"]["minReadySeconds"]),
            now: unix_seconds(&json!(now)).unwrap_or(0),
        }
    }

    /// Returns the number of seconds until a pod is available, or `None` if it is not ready.
    fn seconds_left(self, pod: &Value) -> Option<u64> {
        let since = || unix_seconds(&condition(pod, "Ready")["lastTransitionTime"]).unwrap_or(self.now);
        let left =
            || if self.min_ready_seconds > 0 { since() + self.min_ready_seconds - self.now } else { 0 };
        is_ready(pod).then(|| u64::try_from(left()).unwrap_or(0))
    }

    pub(super) fn is_available(self, pod: &Value) -> bool {
        self.seconds_left(pod) == Some(0)
    }

    /// Returns the time until another of these pods becomes available.
    pub(super) fn next<'a>(self, pods: impl IntoIterator<Item = &'a Value>) -> Option<Duration> {
        let left = pods.into_iter().filter_map(|pod| self.seconds_left(pod).filter(|left| *left > 0));
        left.min().map(Duration::from_secs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn availability_waits_for_min_ready_seconds() {
        let pod = |status: &str, since: &str| json!({"status": {"conditions": [{"type": "Ready", "status": status, "lastTransitionTime": since}]}});
        let judge = Judge::new(&json!({"spec": {"minReadySeconds": 10}}), "2026-01-01T00:00:10Z");
        assert_eq!(judge.seconds_left(&pod("True", "2026-01-01T00:00:00Z")), Some(0));
        assert_eq!(judge.seconds_left(&pod("True", "2026-01-01T00:00:01Z")), Some(1));
        assert_eq!(judge.seconds_left(&pod("False", "2026-01-01T00:00:00Z")), None);
        let pods = [pod("True", "2026-01-01T00:00:09Z"), pod("True", "2026-01-01T00:00:03Z")];
        assert_eq!(judge.next(&pods), Some(Duration::from_secs(3)));
        let at_once = Judge::new(&json!({}), "2026-01-01T00:00:10Z");
        assert!(at_once.is_available(&pods[0]));
    }
}
