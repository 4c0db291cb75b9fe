//! The control plane's loops: each follows a few resources and drives the objects towards
//! what their specifications say.
//!
//! They run in one process with the store, so a controller keeps no cache of its own: an
//! event only says where to look. What takes a real cluster time is taken here by named
//! [latencies](super::latency::Latencies).

mod churn;
mod claim;
mod client_rate;
mod deployment;
mod disruption;
mod endpoint_slice;
mod endpoints;
mod events;
mod garbage;
mod job;
mod namespace;
mod namespace_content;
mod node_lifecycle;
mod queue;
mod replica_set;
mod scheduler;
mod taint_eviction;
mod taints;
mod worker;

use futures::stream::{self, BoxStream, StreamExt};
use serde_json::Value;
use tokio::task::JoinSet;

use super::Shared;
use super::conditions;
use super::conditions::of as condition;
use super::registry::{Registry, Watch, WatchEvent, WatchFrom};
use super::resource::Resource;
use super::selector::Selection;

/// Runs all controllers until the cluster ends.
pub(crate) async fn run(shared: Shared) {
    let stop = shared.stop.clone();
    let mut tasks = JoinSet::new();
    tasks.spawn(deployment::run(shared.clone()));
    tasks.spawn(replica_set::run(shared.clone()));
    tasks.spawn(scheduler::run(shared.clone()));
    tasks.spawn(namespace_content::run(shared.clone()));
    tasks.spawn(churn::run(shared.clone()));
    tasks.spawn(disruption::run(shared.clone()));
    tasks.spawn(job::run(shared.clone()));
    tasks.spawn(node_lifecycle::run(shared.clone()));
    tasks.spawn(taint_eviction::run(shared.clone()));
    tasks.spawn(endpoint_slice::run(shared.clone()));
    tasks.spawn(garbage::run(shared.clone()));
    tasks.spawn(namespace::run(shared.clone()));
    tasks.spawn(events::run(shared));
    tokio::select! {
        () = stop.cancelled() => {}
        // Controllers do not end by themselves: one that does has panicked.
        Some(ended) = tasks.join_next() => {
            if let Err(error) = ended {
                tracing::error!(%error, "a controller failed; the cluster ends");
            }
            stop.cancel();
        }
    }
    tasks.shutdown().await;
}

/// An event, and the resource it is about.
pub(super) type Observed = (Resource, WatchEvent);

/// Follows all objects of several resources for ever, beginning with those that exist. If the
/// history is outrun, all that exist are told again.
pub(super) fn follow(registry: &Registry, resources: &[Resource]) -> BoxStream<'static, Observed> {
    let feeds = resources.iter().map(|&resource| {
        let start = (registry.clone(), None::<Watch>);
        stream::unfold(start, move |(registry, mut watch)| async move {
            loop {
                let following = match watch.take() {
                    Some(watch) => Ok(watch),
                    None => registry.watch(resource, None, Selection::all(), WatchFrom::Existing),
                };
                if let Ok(mut following) = following
                    && let Ok(event) = following.next().await
                {
                    return Some(((resource, event), (registry, Some(following))));
                }
            }
        })
        .boxed()
    });
    stream::select_all(feeds).boxed()
}

/// Namespace and name of an object.
type Key = (String, String);

fn key(object: &Value) -> Key {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    (text("namespace"), text("name"))
}

/// The owner that controls an object, as an owner reference.
fn controller_of(object: &Value) -> Option<&Value> {
    let mut references = object["metadata"]["ownerReferences"].as_array()?.iter();
    references.find(|reference| reference["controller"] == true)
}

/// The key of the controlling owner, if it is of this resource.
fn controller_key(object: &Value, resource: Resource) -> Option<Key> {
    let owner = controller_of(object).filter(|owner| owner["kind"] == resource.kind())?;
    Some((key(object).0, owner["name"].as_str()?.to_owned()))
}

/// Whether `owner` controls `object`.
fn is_controlled_by(object: &Value, owner: &Value) -> bool {
    controller_of(object).is_some_and(|reference| reference["uid"] == owner["metadata"]["uid"])
}

/// The owner reference that makes `owner` the controller.
fn controller_reference(owner: &Value) -> Value {
    serde_json::json!({
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": true,
        "blockOwnerDeletion": true,
    })
}

fn is_being_deleted(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

/// Whether a pod has ended for good.
fn is_terminal(pod: &Value) -> bool {
    matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
}

/// Whether a pod counts: it has not ended, and is not about to.
fn is_active(pod: &Value) -> bool {
    !is_being_deleted(pod) && !is_terminal(pod)
}

fn is_ready(pod: &Value) -> bool {
    condition(pod, "Ready")["status"] == "True"
}

#[cfg(test)]
mod tests;
