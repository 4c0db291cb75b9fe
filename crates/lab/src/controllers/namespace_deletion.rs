//! Deletes the contents of terminating namespaces, and then the namespaces themselves.

use std::time::Duration;

use futures::StreamExt;

use super::queue::WorkQueue;
use crate::object_fields::{is_being_deleted, key};
use crate::registry::{WatchEventType, follow};
use crate::resource::Resource;
use crate::shared::ClusterContext;
use crate::status::note_failure;

/// Resources that own pods. They are deleted before pods so that no new pods are created.
const MAKERS: [Resource; 5] = [
    Resource::Deployments,
    Resource::ReplicaSets,
    Resource::StatefulSets,
    Resource::DaemonSets,
    Resource::Jobs,
];

/// Returns all namespaced resources, in deletion order.
fn contents() -> impl Iterator<Item = Resource> {
    let others =
        Resource::ALL.into_iter().filter(|resource| resource.namespaced() && !MAKERS.contains(resource));
    MAKERS.into_iter().chain(others)
}

pub(super) async fn run(shared: ClusterContext) {
    // Only pods take time to terminate. Everything else is removed immediately.
    let mut events = follow(&shared.registry, &[Resource::Namespaces, Resource::Pods]);
    let mut queue = WorkQueue::new();
    loop {
        tokio::select! {
            Some((resource, event)) = events.next() => match (resource, event.event_type) {
                (Resource::Namespaces, WatchEventType::Added | WatchEventType::Modified) => {
                    queue.add(key(&event.object).1, Duration::ZERO);
                }
                (Resource::Pods, WatchEventType::Deleted) => queue.add(key(&event.object).0, Duration::ZERO),
                _ => {}
            },
            namespace = queue.next() => empty(&shared, &namespace),
        }
    }
}

fn empty(shared: &ClusterContext, namespace: &str) {
    let registry = &shared.registry;
    if !registry.get(Resource::Namespaces, "", namespace).is_ok_and(|object| is_being_deleted(&object)) {
        return;
    }
    for resource in contents() {
        for object in registry.all(resource, Some(namespace)) {
            note_failure(
                registry.remove(resource, &object),
                "failed to delete an object in a terminating namespace",
            );
        }
    }
    let is_empty = |resource| registry.all(resource, Some(namespace)).is_empty();
    if contents().all(is_empty) {
        note_failure(registry.remove_namespace(namespace), "failed to remove the namespace");
    }
}
