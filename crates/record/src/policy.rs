//! Requirements for recommendations.

use serde::{Deserialize, Serialize};

/// Requirements that a recommendation must meet.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Policy {
    /// Share of future terminations that a recommendation must cover.
    pub coverage: f64,
    /// Confidence at which it must cover them.
    pub confidence: f64,
    /// Margin added to a recommended sleep and grace period, in seconds.
    pub margin_s: u64,
}

impl Default for Policy {
    fn default() -> Self {
        Self { coverage: 0.90, confidence: 0.95, margin_s: 1 }
    }
}
