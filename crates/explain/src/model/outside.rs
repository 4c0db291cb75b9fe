//! Counts of requests while no pod ended.

use serde::{Deserialize, Serialize};

/// Requests outside terminations, without those that were not sent or were cut off by the run's end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutsideCounts {
    /// Answered with success.
    pub ok: u64,
    /// Answered with an app error.
    pub app_errors: u64,
    /// Of the app errors, those with 5xx.
    pub server_errors: u64,
    /// Lost, and no termination explains it.
    pub dropped: u64,
}

impl OutsideCounts {
    /// Smallest share of the requests outside terminations that must succeed.
    pub const WORKING_SHARE: f64 = 0.90;

    /// Returns the number of all of them.
    pub fn all(self) -> u64 {
        self.ok + self.app_errors + self.dropped
    }

    /// Returns true if the target works while no pod ends: enough requests succeeded, or there are none.
    pub fn is_working(self) -> bool {
        self.ok as f64 >= Self::WORKING_SHARE * self.all() as f64
    }
}
