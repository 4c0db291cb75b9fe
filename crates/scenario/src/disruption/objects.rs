//! Objects that disruptions change.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;
use serde_json::{Value, json};

/// An object in the run's namespace.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Object {
    /// API group and version.
    pub api_version: String,
    /// Kind, such as `Service`.
    pub kind: String,
    /// Name within the run's namespace.
    pub name: String,
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.name)
    }
}

/// A change to an object, in a form that the API server accepts.
#[derive(Clone, Debug, PartialEq)]
pub struct Patch {
    /// Kind of the patch.
    pub patch_type: PatchType,
    /// Body of the patch.
    pub body: Value,
}

impl Patch {
    /// Makes the API server refuse the patch if the object no longer has this version.
    pub fn of_version(mut self, version: Option<&str>) -> Self {
        let Some(version) = version else { return self };
        match &mut self.body {
            // This comes last so that operations before it see the object's own version.
            Value::Array(operations) => {
                operations.push(json!({"op": "add", "path": "/metadata/resourceVersion", "value": version}));
            }
            Value::Object(fields) => {
                // The API server refuses metadata that is not a mapping anyway.
                if let Value::Object(metadata) = fields.entry("metadata").or_insert_with(|| json!({})) {
                    metadata.entry("resourceVersion").or_insert_with(|| version.into());
                }
            }
            _ => {}
        }
        self
    }
}

/// A kind of patch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PatchType {
    /// A JSON merge patch (RFC 7386).
    Merge,
    /// A strategic merge patch: lists are merged by the keys that Kubernetes defines.
    #[default]
    Strategic,
    /// A JSON patch (RFC 6902).
    Json,
}

impl PatchType {
    /// Returns the media type.
    pub const fn media_type(self) -> &'static str {
        match self {
            PatchType::Merge => "application/merge-patch+json",
            PatchType::Strategic => "application/strategic-merge-patch+json",
            PatchType::Json => "application/json-patch+json",
        }
    }
}

/// A workload, which creates pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Kind of workload.
    pub kind: WorkloadKind,
    /// Name within the run's namespace.
    pub name: String,
}

/// A kind of workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkloadKind {
    /// A Deployment.
    Deployment,
    /// A StatefulSet.
    StatefulSet,
    /// A DaemonSet.
    DaemonSet,
}

impl Workload {
    /// Returns true if `object` is this workload.
    pub fn is(&self, object: &Value) -> bool {
        object["kind"] == format!("{:?}", self.kind) && object["metadata"]["name"] == self.name.as_str()
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}", self.kind, self.name)
    }
}

impl FromStr for Workload {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form =
            || format!("{text:?} is not a workload: use deployment/NAME, statefulset/NAME or daemonset/NAME");
        let (kind, name) = text.split_once('/').filter(|(_, name)| !name.is_empty()).ok_or_else(form)?;
        let kind = match kind.to_lowercase().as_str() {
            "deploy" | "deployment" => WorkloadKind::Deployment,
            "sts" | "statefulset" => WorkloadKind::StatefulSet,
            "ds" | "daemonset" => WorkloadKind::DaemonSet,
            _ => return Err(form()),
        };
        Ok(Self { kind, name: name.to_owned() })
    }
}
