//! Manifest objects with pods, and the annotations that record the changes.

use std::fmt;
use std::str::FromStr;

use serde_json::{Value, json};

use rolldrop_manifest::{EditKind, ManifestEdit, ManifestObject, escaped};

/// Name of the app's port while the sidecar uses the original port name.
pub(crate) const APP_PORT_NAME: &str = "rolldrop-app";
/// Annotation of pods with the sidecar; its value is the sidecar's original image.
pub const SIDECAR: &str = "rolldrop.dev/sidecar";
/// Annotation of a Service with its original target ports, as JSON, by Service port number.
pub(crate) const TARGET_PORTS: &str = "rolldrop.dev/target-ports";

/// Kinds of workloads that get the sidecar without being named, with their short names.
const KINDS: [(&str, &str, &[&str]); 7] = [
    ("v1", "Pod", &["po"]),
    ("apps/v1", "Deployment", &["deploy"]),
    ("apps/v1", "StatefulSet", &["sts"]),
    ("apps/v1", "DaemonSet", &["ds"]),
    ("apps/v1", "ReplicaSet", &["rs"]),
    ("v1", "ReplicationController", &["rc"]),
    ("argoproj.io/v1alpha1", "Rollout", &["ro"]),
];

/// Returns the objects, each as a whole document.
pub(super) fn all(objects: &[Value]) -> Vec<ManifestObject> {
    objects.iter().cloned().enumerate().map(|(n, object)| ManifestObject::whole(n, object)).collect()
}

/// Returns the JSON pointer to an object's pod metadata and spec; `None` if its kind is not one of [`KINDS`], or if it
/// is a Rollout without a template.
pub(super) fn pod(object: &Value) -> Option<&'static str> {
    let (version, kind) = (object["apiVersion"].as_str()?, object["kind"].as_str()?);
    KINDS.iter().find(|(v, k, _)| (*v, *k) == (version, kind))?;
    template(object).or((kind != "Rollout").then_some(if kind == "Pod" { "" } else { "/spec/template" }))
}

/// Returns the JSON pointer to the pod metadata and spec of any object that has them.
pub(super) fn template(object: &Value) -> Option<&'static str> {
    if object["apiVersion"] == "v1" && object["kind"] == "Pod" {
        return Some("");
    }
    object["spec"]["template"]["spec"]["containers"].is_array().then_some("/spec/template")
}

/// Returns the labels of an object's pods.
pub fn pod_labels(object: &Value) -> Option<&Value> {
    Some(&object.pointer(pod(object)?)?["metadata"]["labels"])
}

/// A workload named by the user, such as `deployment/web`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkloadName {
    kind: String,
    name: String,
}

/// Error for text that does not name a workload.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("expected KIND/NAME, such as deployment/web")]
pub struct BadWorkloadName;

impl FromStr for WorkloadName {
    type Err = BadWorkloadName;

    /// Parses `KIND/NAME`, with the kind in any form that kubectl accepts: in any case, plural, short, or with its
    /// group.
    fn from_str(text: &str) -> Result<Self, BadWorkloadName> {
        let (kind, name) = text.split_once('/').ok_or(BadWorkloadName)?;
        let kind = kind.split('.').next().unwrap_or_default().to_lowercase();
        if kind.is_empty() || name.is_empty() || name.contains('/') {
            return Err(BadWorkloadName);
        }
        let known = KINDS.iter().find(|(_, long, short)| {
            let long = long.to_lowercase();
            kind == long || kind.strip_suffix('s') == Some(long.as_str()) || short.contains(&kind.as_str())
        });
        let kind = known.map_or(kind, |(_, long, _)| long.to_lowercase());
        Ok(Self { kind, name: name.to_owned() })
    }
}

impl fmt::Display for WorkloadName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind, self.name)
    }
}

impl WorkloadName {
    /// Returns true if an object is this workload.
    pub(super) fn is(&self, object: &ManifestObject) -> bool {
        let kind = object.value["kind"].as_str().unwrap_or_default().to_lowercase();
        let is_kind = kind == self.kind || self.kind.strip_suffix('s') == Some(kind.as_str());
        is_kind && object.title().split_once('/').is_some_and(|(_, name)| name == self.name)
    }
}

/// Adds an annotation to an object, or to its pods.
pub(super) fn annotate(object: &ManifestObject, of: &str, key: &str, text: &str) -> ManifestEdit {
    let at = format!("{of}/metadata/annotations");
    match (object.get(&at), object.get(&format!("{of}/metadata"))) {
        (Value::Object(_), _) => object.set(format!("{at}/{}", escaped(key)), text),
        (_, Value::Object(_)) => object.set(at, json!({key: text})),
        _ => object.set(format!("{of}/metadata"), json!({"annotations": {key: text}})),
    }
}

/// Removes an annotation, and any mappings that were added only to hold it.
pub(super) fn withdraw(object: &ManifestObject, of: &str, key: &str) -> ManifestEdit {
    let at = format!("{of}/metadata/annotations");
    let is_alone = |pointer: &str| object.get(pointer).as_object().is_some_and(|map| map.len() == 1);
    let is_all = is_alone(&at) && is_alone(&format!("{of}/metadata"));
    object.edit(if is_all { at } else { format!("{at}/{}", escaped(key)) }, EditKind::Withdraw)
}
