//! How a proxy hands over what it recorded: the lines of its row stream.
//!
//! The admin port answers `GET /rows` with newline-delimited JSON that goes on
//! until the proxy exits. Rows recorded before the reader came are kept and
//! sent first, so one reader that stays to the end gets every row once.

use serde::{Deserialize, Serialize};

use super::event::ProxyPhase;
use super::{ServedRow, Stamp};

/// Path of the row stream on the admin port.
pub const ROWS_PATH: &str = "/rows";
/// Path of the clock on the admin port; the answer is a [`ClockAnswer`].
pub const CLOCK_PATH: &str = "/clock";
/// Path that a preStop httpGet hook calls on the admin port.
pub const PRE_STOP_PATH: &str = "/prestop";

/// One line of the row stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProxyLine {
    /// The first line: who speaks.
    Hello {
        /// The proxy's source name.
        source: String,
        /// The pod beside which it runs.
        pod: String,
    },
    /// A request ended.
    Row(ServedRow),
    /// A phase of the pod's termination was passed.
    Phase {
        /// The phase.
        phase: ProxyPhase,
        /// When, on the proxy's clock.
        t_ns: Stamp,
    },
    /// The last line: the hand-over is complete.
    End {
        /// Rows recorded in the proxy's whole life.
        recorded: u64,
    },
}

/// The answer of [`CLOCK_PATH`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockAnswer {
    /// The proxy's clock when it answered.
    pub now_ns: Stamp,
    /// Rows recorded so far.
    pub recorded: u64,
}
