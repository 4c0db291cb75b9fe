//! How sure a recommendation must be.

/// The choices that recording leaves open.
#[derive(Clone, Debug)]
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
