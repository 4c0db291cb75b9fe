//! A load that workers in pods of a cluster send.
//!
//! Each worker is a separate process ([`server`]), with the same protocol as a worker in a child process
//! ([`super::process::protocol`]), over HTTP. [`link`] reaches it: by the API server's pod proxy, or by a connection
//! that the worker made ([`reverse`]). [`fleet`] makes one load of all workers, and [`collect`] one record. The caller
//! creates the pods.
//!
//! | request | answer |
//! |---|---|
//! | `POST /orders?n=N` | takes order N, from 0; repeating it is harmless; 409 if out of turn or no more are taken |
//! | `GET /reports?from=N` | the reports from number N on, a [`Numbered`] a line, until the load is over |
//! | `GET /clock` | a [`ClockAnswer`] |
//! | `GET /version` | the program that it is, a [`Tool`] |
//! | `GET /live?from=N&rows=K` | requests that ended in each second from N on, a [`Line`] each, with at most K rows |
//! | `GET /parts` | the closed parts of its rows, a [`parts::Listing`] |
//! | `GET /parts/NAME` | one of them, with `Range: bytes=N-` from byte N on |
//! | `POST /acknowledged` | everything was fetched; the worker ends |
//! | `GET /healthz`, `GET /readyz` | whether it serves; the only ones that need no token |
//!
//! A worker that hears nothing for [`ABANDONED`] ends its load automatically and keeps the rows for [`KEPT`]. A
//! worker that is never contacted waits for [`UNCLAIMED`]: it may be the second one of its index, which gets no
//! orders.
//!
//! [`Line`]: crate::live::Line
//! [`ClockAnswer`]: rolldrop_record::wire::ClockAnswer
//! [`Tool`]: rolldrop_record::run_info::Tool

mod accept;
mod answer;
pub mod ask;
mod backlog;
pub mod collect;
pub mod fleet;
pub mod handover;
pub mod link;
pub mod parts;
pub mod reverse;
pub mod server;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::process::protocol::Report;

/// Time without a request after which a worker takes the run for gone.
pub const ABANDONED: Duration = Duration::from_secs(60);
/// Time for which the rows of an ended load can be fetched.
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
/// Path that tells whether a worker takes orders.
pub const READY_PATH: &str = "/readyz";

/// A line of the reports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Numbered {
    /// Number of the report. Progress reports may be missing.
    pub n: u64,
    /// Report of the worker.
    pub report: Report,
}

#[cfg(test)]
mod tests;
