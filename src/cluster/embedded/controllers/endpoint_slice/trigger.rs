//! When the change happened that a slice shows: the annotation
//! `endpoints.kubernetes.io/last-change-trigger-time`.
//!
//! After staging/src/k8s.io/endpointslice/trigger_time_tracker.go: for a new Service it is the
//! Service's creation, later the earliest of the changes of its pods' Ready conditions that no look
//! has shown before. A look that finds no such change takes the annotation away. Times are those
//! of the objects, RFC 3339 in whole seconds, and sort as text.

use std::collections::BTreeMap;

use serde_json::Value;

use super::super::{Key, condition, key};

/// The annotation on EndpointSlices and Endpoints.
const ANNOTATION: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// The times that earlier looks have shown, by Service.
#[derive(Debug, Default)]
pub(super) struct Triggers(BTreeMap<Key, Times>);

#[derive(Debug)]
struct Times {
    service: String,
    pods: BTreeMap<String, String>,
}

impl Triggers {
    /// The time for what is written after this look at a Service and its pods.
    pub(super) fn look<'a>(
        &mut self,
        service: &Value,
        pods: impl Iterator<Item = &'a Value>,
    ) -> Option<String> {
        let created = service["metadata"]["creationTimestamp"].as_str()?.to_owned();
        let readiness = |pod: &Value| {
            let changed = condition(pod, "Ready")["lastTransitionTime"].as_str()?.to_owned();
            Some((key(pod).1, changed))
        };
        let times = Times { service: created, pods: pods.filter_map(readiness).collect() };
        let Some(before) = self.0.get(&key(service)) else {
            let created = times.service.clone();
            self.0.insert(key(service), times);
            return Some(created);
        };
        let is_fresh = |(pod, time): &(&String, &String)| before.pods.get(*pod).is_none_or(|old| old < *time);
        let fresh = times.pods.iter().filter(is_fresh);
        let renewed = (before.service < times.service).then_some(&times.service);
        let earliest = fresh.map(|(_, time)| time).chain(renewed).min().cloned();
        self.0.insert(key(service), times);
        earliest
    }

    /// Forgets a Service that is gone.
    pub(super) fn forget(&mut self, service: &Key) {
        self.0.remove(service);
    }
}

/// Writes the time on an object, or takes an older one away.
pub(in super::super) fn annotate(object: &mut Value, time: Option<&str>) {
    match time {
        Some(time) => object["metadata"]["annotations"][ANNOTATION] = time.into(),
        None => {
            if let Some(annotations) = object["metadata"]["annotations"].as_object_mut() {
                annotations.remove(ANNOTATION);
                if annotations.is_empty() {
                    object["metadata"].as_object_mut().map(|metadata| metadata.remove("annotations"));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_earliest_change_that_is_new_counts() {
        let service = json!({"metadata": {"namespace": "a", "name": "web", "creationTimestamp": "2026-01-01T00:00:00Z"}});
        let pod = |name: &str, second: u32| {
            let time = format!("2026-01-01T00:00:{second:02}Z");
            json!({
                "metadata": {"namespace": "a", "name": name},
                "status": {"conditions": [{"type": "Ready", "lastTransitionTime": time}]},
            })
        };
        let mut triggers = Triggers::default();
        let mut look = |pods: &[Value]| triggers.look(&service, pods.iter());
        assert_eq!(look(&[pod("a", 5)]).as_deref(), Some("2026-01-01T00:00:00Z"));
        assert_eq!(look(&[pod("a", 5)]), None);
        let changed = [pod("a", 9), pod("b", 7)];
        assert_eq!(look(&changed).as_deref(), Some("2026-01-01T00:00:07Z"));
        assert_eq!(look(&changed[..1]), None);
        triggers.forget(&("a".to_owned(), "web".to_owned()));
        assert_eq!(triggers.look(&service, changed.iter()).as_deref(), Some("2026-01-01T00:00:00Z"));
    }

    #[test]
    fn an_older_time_is_taken_away() {
        let mut slice = json!({"metadata": {"name": "a"}});
        annotate(&mut slice, Some("t"));
        assert_eq!(slice["metadata"]["annotations"], json!({ANNOTATION: "t"}));
        annotate(&mut slice, None);
        assert_eq!(slice, json!({"metadata": {"name": "a"}}));
    }
}
