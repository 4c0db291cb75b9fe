//! Helpers for reading objects: names, owners, pod lifecycle stages, and containers.

use serde_json::{Value, json};

use super::conditions;
use super::resource::Resource;
use super::value::{list, text};

/// Namespace (empty for cluster-scoped resources) and name.
pub(crate) type ObjectKey = (String, String);

pub(crate) fn key(object: &Value) -> ObjectKey {
    (text(&object["metadata"]["namespace"]).to_owned(), text(&object["metadata"]["name"]).to_owned())
}

pub(crate) fn uid(object: &Value) -> &str {
    text(&object["metadata"]["uid"])
}

/// Returns the owner reference to an object's controller.
pub(crate) fn controller_of(object: &Value) -> Option<&Value> {
    list(&object["metadata"]["ownerReferences"]).iter().find(|reference| reference["controller"] == true)
}

/// Returns the key of an object's controller, if the controller belongs to `resource`.
pub(crate) fn controller_key(object: &Value, resource: Resource) -> Option<ObjectKey> {
    let owner = controller_of(object).filter(|owner| owner["kind"] == resource.kind())?;
    Some((key(object).0, owner["name"].as_str()?.to_owned()))
}

/// Returns true if `owner` controls `object`.
pub(crate) fn is_controlled_by(object: &Value, owner: &Value) -> bool {
    controller_of(object).is_some_and(|reference| reference["uid"] == owner["metadata"]["uid"])
}

/// Returns an owner reference that makes `owner` the controller of an object.
pub(crate) fn controller_reference(owner: &Value) -> Value {
    json!({
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": true,
        "blockOwnerDeletion": true,
    })
}

pub(crate) fn is_being_deleted(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

/// Returns true if a pod has reached a terminal phase.
pub(crate) fn is_terminal(pod: &Value) -> bool {
    matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
}

/// Returns true if a pod is neither terminal nor being deleted.
pub(crate) fn is_active(pod: &Value) -> bool {
    !is_being_deleted(pod) && !is_terminal(pod)
}

pub(crate) fn is_ready(pod: &Value) -> bool {
    conditions::of(pod, "Ready")["status"] == "True"
}

/// Writes counts to a status, omitting zeros.
pub(crate) fn write_counts<N: Into<Value> + Default + PartialEq>(
    status: &mut Value,
    counts: impl IntoIterator<Item = (&'static str, N)>,
) {
    for (field, count) in counts.into_iter().filter(|(_, count)| *count != N::default()) {
        status[field] = count.into();
    }
}

const CONTAINER_LISTS: [&str; 2] = ["initContainers", "containers"];

/// Returns the containers in a pod spec, including init containers.
pub(crate) fn containers(spec: &Value) -> impl Iterator<Item = &Value> {
    CONTAINER_LISTS.into_iter().flat_map(move |name| list(&spec[name]))
}

/// Returns mutable references to the containers in a pod spec, including init containers.
pub(crate) fn containers_mut(spec: &mut Value) -> impl Iterator<Item = &mut Value> {
    let fields = spec.as_object_mut().into_iter().flatten();
    let lists = fields.filter(|(name, _)| CONTAINER_LISTS.contains(&name.as_str()));
    lists.filter_map(|(_, list)| list.as_array_mut()).flatten()
}
