//! Deletes objects whose owners are all gone.
//!
//! Based on pkg/controller/garbagecollector, but limited to background deletion: dependents are deleted once their
//! owner is gone. Foreground deletion is treated as background deletion. An object keeps its references to owners that
//! are gone for as long as it has another owner.

use futures::StreamExt;
use serde_json::Value;

use crate::object_fields::{is_being_deleted, key, uid};
use crate::registry::{DeleteOptions, Registry, WatchEventType, follow};
use crate::resource::Resource;
use crate::shared::ClusterContext;
use crate::status::note_failure;
use crate::value::{list, text};

pub(super) async fn run(shared: ClusterContext) {
    let registry = &shared.registry;
    let mut events = follow(registry, &Resource::ALL);
    while let Some((resource, event)) = events.next().await {
        let object = &event.object;
        match event.event_type {
            WatchEventType::Deleted => {
                for (resource, dependent) in registry.dependents(uid(object)) {
                    collect(registry, resource, &dependent);
                }
            }
            // An object may be created after its owner is gone.
            WatchEventType::Added => collect(registry, resource, object),
            WatchEventType::Modified => {}
        }
    }
}

/// Returns true if the owner named by a reference is gone. Owners of kinds that this cluster does not support count
/// as present.
fn is_gone(registry: &Registry, object: &Value, reference: &Value) -> bool {
    let Some(kind) = Resource::of_reference(reference) else { return false };
    let home = if kind.namespaced() { key(object).0 } else { String::new() };
    let owner = registry.get(kind, &home, text(&reference["name"]));
    !owner.is_ok_and(|owner| owner["metadata"]["uid"] == reference["uid"])
}

/// Deletes a dependent whose owners are all gone.
fn collect(registry: &Registry, resource: Resource, object: &Value) {
    let owners = list(&object["metadata"]["ownerReferences"]);
    let is_orphan = || owners.iter().all(|reference| is_gone(registry, object, reference));
    if !owners.is_empty() && !is_being_deleted(object) && is_orphan() {
        let (namespace, name) = key(object);
        let options = DeleteOptions::of(uid(object));
        note_failure(registry.delete(resource, &namespace, &name, &options), "failed to delete a dependent");
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use serde_json::json;

    use super::super::tests::bench::Bench;
    use super::*;

    const MAPS: Resource = Resource::ConfigMaps;

    /// Creates a ConfigMap owned by `owners`.
    fn map(bench: &Bench, name: &str, owners: &[&str]) {
        let reference = |owner: &&str| {
            let uid = bench.get(MAPS, owner)["metadata"]["uid"].clone();
            json!({"apiVersion": "v1", "kind": "ConfigMap", "name": owner, "uid": uid})
        };
        let owners: Vec<_> = owners.iter().map(reference).collect();
        bench.create(MAPS, json!({"metadata": {"name": name, "ownerReferences": owners}}));
    }

    fn delete(bench: &Bench, name: &str) {
        bench.registry().delete(MAPS, "default", name, &DeleteOptions::default()).unwrap();
    }

    fn names(bench: &Bench) -> Vec<String> {
        bench.list(MAPS).iter().map(|map| key(map).1).filter(|name| name != "kube-root-ca.crt").collect()
    }

    fn start() -> Bench {
        Bench::start(&[|shared| run(shared).boxed()])
    }

    #[tokio::test]
    async fn owner_deletion_removes_all_descendants() {
        let bench = start();
        map(&bench, "top", &[]);
        map(&bench, "middle", &["top"]);
        map(&bench, "bottom", &["middle"]);
        delete(&bench, "top");
        bench.holds("all are gone", |bench| names(bench).is_empty()).await;
    }

    #[tokio::test]
    async fn dependent_with_another_owner_survives() {
        let bench = start();
        map(&bench, "going", &[]);
        map(&bench, "staying", &[]);
        map(&bench, "shared", &["going", "staying"]);
        map(&bench, "lone", &["going"]);
        delete(&bench, "going");
        bench.holds("the lone dependent is gone", |bench| names(bench) == ["shared", "staying"]).await;
        delete(&bench, "staying");
        bench.holds("all are gone", |bench| names(bench).is_empty()).await;
    }
}
