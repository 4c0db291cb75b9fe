//! Deletes what has lost all its owners, in the background.

use futures::StreamExt;
use serde_json::Value;

use super::{follow, key};
use crate::cluster::embedded::Shared;
use crate::cluster::embedded::registry::{DeleteOptions, Registry, WatchEventType};
use crate::cluster::embedded::resource::Resource;
use crate::cluster::embedded::selector::Selection;

pub(super) async fn run(shared: Shared) {
    let registry = &shared.registry;
    let mut events = follow(registry, &Resource::ALL);
    while let Some((resource, event)) = events.next().await {
        match event.event_type {
            WatchEventType::Deleted => collect_dependents(registry, &event.object),
            // An object may come after its owner has gone.
            WatchEventType::Added => collect_if_orphaned(registry, resource, &event.object),
            WatchEventType::Modified => {}
        }
    }
}

fn owners(object: &Value) -> &[Value] {
    object["metadata"]["ownerReferences"].as_array().map_or(&[], Vec::as_slice)
}

fn collect_dependents(registry: &Registry, owner: &Value) {
    let uid = &owner["metadata"]["uid"];
    for resource in Resource::ALL {
        for object in registry.list(resource, None, &Selection::all()).items {
            if owners(&object).iter().any(|reference| reference["uid"] == *uid) {
                collect_if_orphaned(registry, resource, &object);
            }
        }
    }
}

fn collect_if_orphaned(registry: &Registry, resource: Resource, object: &Value) {
    let (namespace, name) = key(object);
    let exists = |reference: &Value| {
        let text = |field: &str| reference[field].as_str().unwrap_or_default();
        let Some(kind) = Resource::of_kind(text("apiVersion"), text("kind")) else {
            // Of a kind that this cluster cannot look up: leave it alone.
            return true;
        };
        let home = if kind.namespaced() { &namespace } else { "" };
        registry.get(kind, home, text("name")).is_ok_and(|owner| owner["metadata"]["uid"] == reference["uid"])
    };
    if owners(object).is_empty() || owners(object).iter().any(exists) {
        return;
    }
    let uid = object["metadata"]["uid"].as_str().unwrap_or_default();
    let options = DeleteOptions::of(uid);
    if let Err(status) = registry.delete(resource, &namespace, &name, &options) {
        tracing::debug!(%status, "not collected");
    }
}
