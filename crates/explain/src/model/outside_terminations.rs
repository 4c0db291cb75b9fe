//! Request counts while no pod was terminating.

use serde::{Deserialize, Serialize};

/// Requests outside terminations, excluding those that were not sent, or were cut off when the run ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutsideCounts {
    /// Answered with success.
    pub ok: u64,
    /// Answered with an app error.
    pub app_errors: u64,
    /// App errors with 5xx.
    pub server_errors: u64,
    /// Lost, without a termination that explains the loss.
    pub dropped: u64,
}

impl OutsideCounts {
    /// Smallest share of the requests outside terminations that must succeed.
    pub const WORKING_SHARE: f64 = 0.90;

    /// Returns the total number of these requests.
    pub fn all(self) -> u64 {
        self.ok + self.app_errors + self.dropped
    }

    /// Returns true if the target works while no pod is terminating: enough requests succeeded, or there are none.
    pub fn is_working(self) -> bool {
        self.ok as f64 >= Self::WORKING_SHARE * self.all() as f64
    }
}
