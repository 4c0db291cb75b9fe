//! What a scenario expects of its result: the limits that the gate checks.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The expectations of a scenario, as recorded in run.json. An empty one expects nothing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Expect {
    /// Bounds on the number of dropped requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropped: Option<Bounds>,
    /// Bounds on the endpoint-propagation windows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub windows: Option<WindowBounds>,
    /// Bounds on the number of terminations measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminations: Option<Bounds>,
    /// Bounds on the number of dropped requests of single causes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub causes: BTreeMap<String, Bounds>,
}

impl Expect {
    /// Whether nothing is expected.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Inclusive bounds on a count. A `min` makes a positive control: the run must
/// show the fault that it is meant to show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Bounds {
    /// The smallest count that passes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<u64>,
    /// The largest count that passes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<u64>,
}

/// Bounds on windows, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WindowBounds {
    /// No window may be longer than this, in seconds.
    pub max_s: f64,
}
