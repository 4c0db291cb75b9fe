//! Deletes what has lost all its owners, and in foreground deletions what is about to.
//!
//! After pkg/controller/garbagecollector: in the background dependents go once their owner has
//! gone. In the foreground the owner, marked by a finalizer, waits until those dependents are gone
//! that block its deletion; these wait for their own dependents in turn.

use std::sync::Arc;

use futures::StreamExt;
use serde_json::{Value, json};

use super::{follow, is_being_deleted, key};
use crate::cluster::embedded::Shared;
use crate::cluster::embedded::registry::{
    DeleteOptions, FOREGROUND, Part, Propagation, Registry, WatchEventType,
};
use crate::cluster::embedded::resource::Resource;

pub(super) async fn run(shared: Shared) {
    let registry = &shared.registry;
    let mut events = follow(registry, &Resource::ALL);
    while let Some((resource, event)) = events.next().await {
        let object = &event.object;
        match event.event_type {
            WatchEventType::Deleted => {
                for (resource, dependent) in dependents(registry, object) {
                    collect(registry, resource, &dependent);
                }
            }
            // An object may come after its owner has gone.
            WatchEventType::Added => collect(registry, resource, object),
            WatchEventType::Modified => {}
        }
        if event.event_type != WatchEventType::Deleted && waits_for_dependents(object) {
            go_in_foreground(registry, resource, object);
        }
        // Gone, or no longer in the way of its owners.
        for (resource, owner) in living_owners(registry, object) {
            if waits_for_dependents(&owner) {
                go_in_foreground(registry, resource, &owner);
            }
        }
    }
}

fn references(object: &Value) -> &[Value] {
    object["metadata"]["ownerReferences"].as_array().map_or(&[], Vec::as_slice)
}

fn waits_for_dependents(object: &Value) -> bool {
    let finalizers = object["metadata"]["finalizers"].as_array();
    is_being_deleted(object) && finalizers.is_some_and(|list| list.iter().any(|name| name == FOREGROUND))
}

fn dependents(registry: &Registry, owner: &Value) -> Vec<(Resource, Arc<Value>)> {
    registry.dependents(owner["metadata"]["uid"].as_str().unwrap_or_default())
}

/// The kind and the object that a reference names, if it is there.
fn owner(registry: &Registry, object: &Value, reference: &Value) -> Owner {
    let text = |field: &str| reference[field].as_str().unwrap_or_default();
    let Some(kind) = Resource::of_kind(text("apiVersion"), text("kind")) else { return Owner::Unknown };
    let home = if kind.namespaced() { key(object).0 } else { String::new() };
    match registry.get(kind, &home, text("name")) {
        Ok(owner) if owner["metadata"]["uid"] == reference["uid"] => Owner::There(kind, owner),
        _ => Owner::Gone,
    }
}

enum Owner {
    There(Resource, Arc<Value>),
    Gone,
    /// Of a kind that this cluster cannot look up.
    Unknown,
}

fn living_owners(registry: &Registry, object: &Value) -> Vec<(Resource, Arc<Value>)> {
    let owners = references(object).iter().map(|reference| owner(registry, object, reference));
    let there = |owner| match owner {
        Owner::There(resource, owner) => Some((resource, owner)),
        Owner::Gone | Owner::Unknown => None,
    };
    owners.filter_map(there).collect()
}

/// Deletes the dependents of an owner in the foreground, and lets it go when none is in its way.
fn go_in_foreground(registry: &Registry, resource: Resource, owner: &Value) {
    for (resource, dependent) in dependents(registry, owner) {
        collect(registry, resource, &dependent);
    }
    let uid = &owner["metadata"]["uid"];
    let is_blocked = dependents(registry, owner).iter().any(|(_, dependent)| {
        let mut references = references(dependent).iter();
        references.any(|reference| reference["uid"] == *uid && reference["blockOwnerDeletion"] == true)
    });
    if is_blocked {
        return;
    }
    let (namespace, name) = key(owner);
    let released = registry.modify(resource, &namespace, &name, Part::Main, |object| {
        if object["metadata"]["uid"] == *uid
            && let Some(finalizers) = object["metadata"]["finalizers"].as_array_mut()
        {
            finalizers.retain(|finalizer| finalizer != FOREGROUND);
        }
    });
    if let Err(status) = released {
        tracing::debug!(%status, "not released");
    }
}

/// Deletes a dependent unless an owner is there to stay; of owners that are not, it loses the mark.
fn collect(registry: &Registry, resource: Resource, object: &Value) {
    if references(object).is_empty() || is_being_deleted(object) {
        return;
    }
    let (namespace, name) = key(object);
    let uid = &object["metadata"]["uid"];
    let (mut stays, mut leaving, mut is_blocking) = (false, Vec::new(), false);
    for reference in references(object) {
        match owner(registry, object, reference) {
            Owner::There(_, owner) if waits_for_dependents(&owner) => {
                leaving.push(reference["uid"].clone());
                is_blocking |= reference["blockOwnerDeletion"] == true;
            }
            Owner::There(..) | Owner::Unknown => stays = true,
            Owner::Gone => leaving.push(reference["uid"].clone()),
        }
    }
    let collected = if !stays {
        // Whoever blocks an owner in the foreground waits for its own dependents.
        let has_dependents = is_blocking && !dependents(registry, object).is_empty();
        let options = DeleteOptions {
            propagation_policy: has_dependents.then_some(Propagation::Foreground),
            ..DeleteOptions::of(uid.as_str().unwrap_or_default())
        };
        registry.delete(resource, &namespace, &name, &options).map(|_| ())
    } else if !leaving.is_empty() {
        let changed = registry.modify(resource, &namespace, &name, Part::Main, |object| {
            let mut kept = references(object).to_vec();
            kept.retain(|reference| !leaving.contains(&reference["uid"]));
            object["metadata"]["ownerReferences"] = json!(kept);
        });
        changed.map(|_| ())
    } else {
        Ok(())
    };
    if let Err(status) = collected {
        tracing::debug!(%status, "not collected");
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::super::bench::Bench;
    use super::*;

    const MAPS: Resource = Resource::ConfigMaps;

    /// A config map that belongs to others, blocking their deletion or not.
    fn map(bench: &Bench, name: &str, owners: &[&str], blocks: bool, finalizers: &[&str]) {
        let reference = |owner: &&str| {
            let uid = bench.get(MAPS, owner)["metadata"]["uid"].clone();
            json!({"apiVersion": "v1", "kind": "ConfigMap", "name": owner, "uid": uid, "blockOwnerDeletion": blocks})
        };
        let owners: Vec<_> = owners.iter().map(reference).collect();
        bench.create(
            MAPS,
            json!({"metadata": {"name": name, "ownerReferences": owners, "finalizers": finalizers}}),
        );
    }

    fn delete(bench: &Bench, name: &str, policy: Propagation) {
        let options = DeleteOptions { propagation_policy: Some(policy), ..DeleteOptions::default() };
        bench.registry().delete(MAPS, "default", name, &options).unwrap();
    }

    fn names(bench: &Bench) -> Vec<String> {
        bench.list(MAPS).iter().map(|map| key(map).1).collect()
    }

    fn release(bench: &Bench, name: &str) {
        bench.modify(MAPS, name, Part::Main, |map| {
            let finalizers = map["metadata"]["finalizers"].as_array_mut().unwrap();
            finalizers.retain(|finalizer| finalizer != "example.org/held");
        });
    }

    fn start() -> Bench {
        Bench::start(&[|shared| run(shared).boxed()])
    }

    #[tokio::test]
    async fn in_the_foreground_an_owner_waits_for_those_that_block_it() {
        let bench = start();
        map(&bench, "top", &[], false, &[]);
        map(&bench, "middle", &["top"], true, &[]);
        map(&bench, "bottom", &["middle"], true, &["example.org/held"]);
        delete(&bench, "top", Propagation::Foreground);
        bench.holds("it has reached the bottom", |bench| is_being_deleted(&bench.get(MAPS, "bottom"))).await;
        for name in ["top", "middle"] {
            let waiting = bench.get(MAPS, name);
            assert!(is_being_deleted(&waiting), "{name}");
            assert_eq!(waiting["metadata"]["finalizers"], json!([FOREGROUND]), "{name}");
        }
        release(&bench, "bottom");
        bench.holds("all are gone", |bench| names(bench).is_empty()).await;
    }

    #[tokio::test]
    async fn who_does_not_block_is_not_waited_for() {
        let bench = start();
        map(&bench, "owner", &[], false, &[]);
        map(&bench, "loose", &["owner"], false, &["example.org/held"]);
        delete(&bench, "owner", Propagation::Foreground);
        bench.holds("the owner is gone", |bench| names(bench) == ["loose"]).await;
        assert!(is_being_deleted(&bench.get(MAPS, "loose")));
    }

    #[tokio::test]
    async fn who_has_another_owner_stays_with_it() {
        let bench = start();
        map(&bench, "going", &[], false, &[]);
        map(&bench, "staying", &[], false, &[]);
        map(&bench, "shared", &["going", "staying"], true, &[]);
        delete(&bench, "going", Propagation::Foreground);
        bench.holds("its owner is gone", |bench| names(bench) == ["shared", "staying"]).await;
        let shared = bench.get(MAPS, "shared");
        assert_eq!(references(&shared).len(), 1);
        assert_eq!(references(&shared)[0]["name"], "staying");
    }

    #[tokio::test]
    async fn a_later_delete_may_change_what_becomes_of_dependents() {
        let bench = start();
        map(&bench, "owner", &[], false, &[]);
        map(&bench, "held", &["owner"], true, &["example.org/held"]);
        delete(&bench, "owner", Propagation::Foreground);
        bench.holds("it waits", |bench| is_being_deleted(&bench.get(MAPS, "held"))).await;
        delete(&bench, "owner", Propagation::Background);
        bench.holds("it waits no longer", |bench| names(bench) == ["held"]).await;
    }
}
