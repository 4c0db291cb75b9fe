//! Event objects, which `kubectl describe` lists under "Events".

use std::hash::{DefaultHasher, Hash, Hasher};

use serde::Serialize;
use serde_json::{Value, json};

use super::{ObjectPart, Registry, Resource};
use crate::sync::lock;

/// Maximum number of events remembered in order to count repetitions (`maxLruCacheEntries` in
/// tools/record/events_cache.go, client-go).
const MAX_COUNTED: usize = 4096;

/// Reason used in events about features of a real cluster that this one does not model.
pub(crate) const NOT_MODELLED: &str = "NotModelled";

/// Severity of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub(crate) enum EventType {
    /// Information.
    Normal,
    /// Possible problem.
    Warning,
}

/// The part of an object that an event is about, and the node that it runs on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ContainerSource<'a> {
    /// Field path, such as `spec.containers{app}`.
    pub path: String,
    /// Name of the node.
    pub node: &'a str,
}

impl Registry {
    /// Records an event about an object. A repeated event only increases the count. Events are purely informational, so
    /// one that cannot be recorded is dropped.
    pub(crate) fn record_event(
        &self,
        about: &Value,
        event_type: EventType,
        reason: &str,
        message: &str,
        component: &str,
    ) {
        self.record_event_of(about, None, event_type, reason, message, component);
    }

    /// Records an event about an object or one of its containers, like [`Registry::record_event`].
    pub(crate) fn record_event_of(
        &self,
        about: &Value,
        container: Option<&ContainerSource<'_>>,
        event_type: EventType,
        reason: &str,
        message: &str,
        component: &str,
    ) {
        let metadata = &about["metadata"];
        let object_name = metadata["name"].as_str().unwrap_or_default();
        // Events about cluster-scoped objects go into the default namespace.
        let namespace = metadata["namespace"].as_str().unwrap_or("default");
        let mut hasher = DefaultHasher::new();
        let source = container.map(|container| (container.path.as_str(), container.node));
        let about_uid = (about["kind"].as_str(), object_name, metadata["uid"].as_str());
        (namespace, about_uid, source, event_type, reason, message, component).hash(&mut hasher);
        let what = hasher.finish();

        let now = self.now();
        // Hold the lock until the event is stored. If two callers record the same event, the second one then increases
        // the count.
        let mut recorded = lock(&self.inner.events);
        if let Some(name) = recorded.get(&what) {
            let counted = self.modify(Resource::Events, namespace, name, ObjectPart::Main, |event| {
                event["count"] = json!(event["count"].as_i64().unwrap_or(1) + 1);
                event["lastTimestamp"] = json!(now);
            });
            if counted.is_ok() {
                return;
            }
        }
        if recorded.len() >= MAX_COUNTED {
            recorded.clear();
        }
        let name = format!("{object_name}.{:x}", self.inner.clock.now().unix_ns());
        let mut event = json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": &name},
            "involvedObject": {
                "apiVersion": about["apiVersion"],
                "kind": about["kind"],
                "namespace": metadata["namespace"],
                "name": object_name,
                "uid": metadata["uid"],
                "resourceVersion": metadata["resourceVersion"],
            },
            "type": event_type,
            "reason": reason,
            "message": message,
            "source": {"component": component},
            "reportingComponent": component,
            "reportingInstance": "",
            "count": 1,
            "firstTimestamp": now,
            "lastTimestamp": now,
        });
        if let Some(container) = container {
            event["involvedObject"]["fieldPath"] = json!(container.path);
            event["source"]["host"] = json!(container.node);
            event["reportingInstance"] = json!(container.node);
        }
        match self.create(Resource::Events, namespace, event) {
            Ok(_) => drop(recorded.insert(what, name)),
            Err(status) => tracing::debug!(%status, reason, object_name, "failed to record an event"),
        }
    }
}
