//! What a recommendation must cover.

use serde::{Deserialize, Serialize};

/// How sure a recommendation must be.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Policy {
    /// The share of future terminations that a recommendation must cover.
    pub coverage: f64,
    /// At this confidence.
    pub confidence: f64,
    /// Seconds added to a recommended sleep and grace period.
    pub margin_s: u64,
}

impl Default for Policy {
    fn default() -> Self {
        Self { coverage: 0.90, confidence: 0.95, margin_s: 1 }
    }
}

impl Policy {
    /// Whether it is the one of a run that asks for no other.
    pub(crate) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}
