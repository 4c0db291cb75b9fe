//! A load sent by workers in the pods of a cluster.
//!
//! Each worker is a separate process ([`worker_server`]) that speaks the same protocol as a worker in a child process
//! ([`super::load_process::worker_protocol`]), but over HTTP. [`worker_link`] connects to it through the API server's
//! pod proxy, or over a connection that the worker opened ([`reverse`]). [`fleet`] combines all workers into one load,
//! and [`row_collector`] combines their rows into one record. The caller creates the pods.
//!
//! | request | response |
//! |---|---|
//! | `POST /orders?n=N` | accepts order N, from 0; repeats are harmless; 409 if out of turn, or no longer accepted |
//! | `GET /reports?from=N` | the reports starting with number N, one [`Numbered`] per line, until the load has ended |
//! | `GET /clock` | a [`ClockAnswer`] |
//! | `GET /version` | the worker's program, a [`Tool`] |
//! | `GET /live?from=N&rows=K` | the seconds starting with number N, one [`LiveLine`] each; at most K rows |
//! | `GET /parts` | the closed parts of its rows, a [`part_shelf::Listing`] |
//! | `GET /parts/TABLE/NAME` | one of them; with `Range: bytes=N-`, starting at byte N |
//! | `POST /acknowledged` | confirms that everything was fetched; the worker exits |
//! | `GET /healthz`, `GET /readyz` | health and readiness; the only requests that need no token |
//!
//! A worker that gets no requests for [`ABANDONED`] stops its load by itself, and keeps the rows for [`KEPT`]. A worker
//! that is never contacted waits for [`UNCLAIMED`], because it may be a second pod with the same index, which gets no
//! orders.
//!
//! [`LiveLine`]: crate::live_feed::LiveLine
//! [`ClockAnswer`]: rolldrop_record::wire::ClockAnswer
//! [`Tool`]: rolldrop_record::run_info::Tool

mod accept;
mod backlog;
pub mod fleet;
pub mod part_shelf;
pub mod reverse;
pub mod row_collector;
pub mod row_handover;
pub mod worker_link;
mod worker_response;
pub mod worker_server;
pub mod worker_transport;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::load_process::worker_protocol::WorkerReport;

/// Time without a request after which a worker assumes that the run is gone.
pub const ABANDONED: Duration = Duration::from_secs(60);
/// Time for which the rows of an ended load remain available.
pub const KEPT: Duration = Duration::from_secs(600);
/// Time that a worker waits for its first request.
pub const UNCLAIMED: Duration = Duration::from_secs(900);

/// Path of the live stream.
pub const LIVE_PATH: &str = "/live";
pub(super) const ORDERS_PATH: &str = "/orders";
pub(super) const REPORTS_PATH: &str = "/reports";
pub(super) const ACKNOWLEDGED_PATH: &str = "/acknowledged";
pub(super) const VERSION_PATH: &str = "/version";
pub(super) const HEALTH_PATH: &str = "/healthz";
/// Path that reports whether a worker accepts orders.
pub const READY_PATH: &str = "/readyz";

/// A line in the stream of reports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Numbered {
    /// Number of the report. The numbers of progress reports may be missing.
    pub n: u64,
    /// The report itself.
    pub report: WorkerReport,
}

#[cfg(test)]
mod tests;
