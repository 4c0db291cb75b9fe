//! How a proxy hands over what it recorded: the lines of its row stream.
//!
//! The admin port answers `GET /rows?from=N` with newline-delimited JSON that goes
//! on until the proxy exits. Rows are numbered from 0 as they are recorded, and
//! N (0 if left out) is the number of the first one wanted. The proxy keeps the
//! rows that were never sent and the last ones that were, so a reader that counts
//! what it has and comes back with that number gets every row once.
//!
//! A proxy that was restarted is another recorder: it counts anew, on a clock of its own.
//! `&of=T` names the one that N is a number of, by its `started_ns`; any other gives all it has.

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
    /// The first line: who speaks, and from where on. Said again where rows are missing.
    Hello {
        /// The proxy's source name.
        source: String,
        /// The pod beside which it runs.
        pod: String,
        /// When it started, by its own clock: no other one of this pod has the same.
        started_ns: Stamp,
        /// The number of the next row. It is above the one asked for if the rows
        /// in between are no longer kept.
        next: u64,
    },
    /// A request ended.
    Row(ServedRow),
    /// A phase of the pod's termination was passed. Every stream tells all of them.
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
    /// When it started.
    pub started_ns: Stamp,
    /// Rows recorded so far.
    pub recorded: u64,
}
