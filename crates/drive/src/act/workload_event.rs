//! Writes Events about workloads, which `kubectl describe` shows. Apart from beats, they are all that `rolldrop watch`
//! ever writes to a cluster, and it writes either only if asked to.

use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, PostParams};
use kube::{Api, Client};
use tokio::time::timeout;

use crate::api::TimeLimits;
use crate::error::{CoordinatorError, Result};
use rolldrop_record::Stamp;

/// Maximum length of an Event's message in bytes, as API servers allow.
const LONGEST_MESSAGE: usize = 1024;

/// Content of an Event about a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkloadEventText<'a> {
    /// Namespace of the workload.
    pub namespace: &'a str,
    /// Kind and name, such as `Deployment web`.
    pub workload: &'a str,
    /// Reason in one word.
    pub reason: &'a str,
    /// Message. Its end is cut off if it is too long.
    pub message: &'a str,
    /// Time at which the first termination began.
    pub first: Stamp,
    /// Time at which the last termination began.
    pub last: Stamp,
}

/// Creates an Event of the type Warning.
///
/// # Errors
/// Fails if the API server refuses the Event, or does not respond.
pub async fn write_workload_event(client: &Client, text: &WorkloadEventText<'_>) -> Result<()> {
    let limit = TimeLimits::default().api_call;
    let what = format!("create an Event about {} in namespace {}", text.workload, text.namespace);
    let created = timeout(limit, create(client, text)).await;
    match created {
        Ok(created) => created.map_err(|error| CoordinatorError::api(&what, &error)),
        Err(_) => Err(CoordinatorError::Timeout { what, limit }),
    }
}

async fn create(client: &Client, text: &WorkloadEventText<'_>) -> kube::Result<()> {
    let (kind, name) = text.workload.split_once(' ').unwrap_or((text.workload, ""));
    let resource = resource(kind);
    let uid = match &resource {
        Some(resource) => uid(client, text.namespace, name, resource).await?,
        None => None,
    };
    let time = |at: Stamp| Timestamp::from_nanosecond(i128::from(at.unix_ns())).ok().map(Time);
    let event = Event {
        metadata: ObjectMeta { generate_name: Some(format!("{name}.")), ..ObjectMeta::default() },
        involved_object: ObjectReference {
            api_version: resource.map(|resource| resource.api_version),
            kind: Some(kind.to_owned()),
            name: Some(name.to_owned()),
            namespace: Some(text.namespace.to_owned()),
            uid,
            ..ObjectReference::default()
        },
        type_: Some("Warning".to_owned()),
        reason: Some(text.reason.to_owned()),
        message: Some(shortened(text.message).to_owned()),
        source: Some(EventSource { component: Some("rolldrop-watch".to_owned()), host: None }),
        first_timestamp: time(text.first),
        last_timestamp: time(text.last),
        count: Some(1),
        ..Event::default()
    };
    Api::<Event>::namespaced(client.clone(), text.namespace).create(&PostParams::default(), &event).await?;
    Ok(())
}

/// Returns the API resource for a kind of workload that a watch may list; `None` for other kinds.
fn resource(kind: &str) -> Option<ApiResource> {
    matches!(kind, "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet")
        .then(|| ApiResource::from_gvk(&GroupVersionKind::gvk("apps", "v1", kind)))
}

/// Returns the workload's UID, by which `kubectl describe` finds its Events. Lists the workload, because a watch may
/// list workloads but not get them.
async fn uid(
    client: &Client,
    namespace: &str,
    name: &str,
    resource: &ApiResource,
) -> kube::Result<Option<String>> {
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, resource);
    let named = ListParams::default().fields(&format!("metadata.name={name}"));
    Ok(api.list(&named).await?.items.into_iter().find_map(|object| object.metadata.uid))
}

/// Returns as much of a message as an Event may contain.
fn shortened(message: &str) -> &str {
    &message[..message.floor_char_boundary(LONGEST_MESSAGE)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_message_is_cut_between_characters() {
        let long = "é".repeat(LONGEST_MESSAGE);
        assert_eq!(shortened(&long).len(), LONGEST_MESSAGE);
        let odd = format!("a{long}");
        assert_eq!(shortened(&odd).len(), LONGEST_MESSAGE - 1);
        assert_eq!(shortened("short"), "short");
    }
}
