//! The open-loop load generator.
//!
//! Requests leave at intended send times that are fixed before the first one
//! ([`plan::Plan`], `schedule`), whatever became of the requests before them.
//! Every scheduled request ends in exactly one row with one outcome; none is
//! retried. Each worker thread owns its connections, its share of the schedule
//! and its counts (`worker`); one recorder thread writes what they measured
//! (`recorder`). The outcome is not judged here: that is the analysis' job.
//!
//! [`Prepared`] sends from this process, where the load is then [`Running`]. [`process`] lets another process send
//! it, as `rolldrop run` does, and [`remote`] many workers in a cluster. HTTP/1.1 (`exchange`), HTTP/2 (`http2`),
//! unary gRPC (`grpc`) and WebSocket (`websocket`), in clear text or over TLS. Names follow the DNS as it changes
//! (`resolve`).

mod address;
mod answer_headers;
mod connection;
mod conntrack;
mod deadlines;
mod exchange;
mod failure;
mod feed;
mod first_answer;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod grpc;
mod http2;
mod latency_log;
pub mod machine;
mod pacer;
mod plan;
mod pod_body;
mod ports;
mod prepared;
pub mod process;
mod random;
mod recorder;
mod records;
pub mod remote;
mod request;
mod resolve;
mod response;
mod running;
mod schedule;
mod stream;
mod tally;
pub mod targets;
mod template;
mod tls;
mod websocket;
mod worker;

#[cfg(test)]
mod known_answers;

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

pub use conntrack::{ConntrackError, check as check_conntrack};
pub use grpc::status_name;
pub use plan::{Plan, PlanError, Share};
pub use pod_body::{NotAPodBody, PodBody};
pub use prepared::Prepared;
pub use records::{NotARecord, Record, RecordFormat};
pub use rolldrop_record::load::{
    Arrivals, ConnectTo, Connections, DnsSettings, Family, Grpc, Http, Length, Pace, PortRange, Rpc,
    Settings, Stage, Target, TlsSettings, TlsVersions,
};
use rolldrop_record::parts::PartError;
use rolldrop_record::{RunDirError, Stamp};
pub use running::Running;
pub use tally::{Counts, ErrorStatuses, Tally, errno_name};
pub use template::UnknownPlaceholder;
pub use tls::TlsError;
pub use worker::LATE_LIMIT;

/// Why a load could not be started or completed.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A target's name does not resolve.
    #[error("failed to resolve {host}: {why}")]
    Resolve {
        /// The name.
        host: String,
        /// Why.
        why: String,
    },
    /// The Unix socket does not exist.
    #[error("{path} is not a Unix socket: {why}")]
    NoSocket {
        /// The path.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// The target does not answer from here.
    #[error("{url} gave no answer within {limit:?}: {why}")]
    NoAnswer {
        /// The target.
        url: String,
        /// The limit.
        limit: Duration,
        /// The result of the last attempt.
        why: String,
    },
    /// The load does not fit this machine.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The operating system refused a thread, a runtime or a timer.
    #[error("failed to run a load worker")]
    Worker(#[source] io::Error),
    /// A worker or the recorder panicked.
    #[error("a thread of the load generator panicked")]
    Panicked,
    /// The interval log could not be written.
    #[error("failed to write {path}")]
    LatencyLog {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file of rows could not be written.
    #[error("failed to write {path}")]
    Record {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The rows' directory could not be made.
    #[error(transparent)]
    RunDir(#[from] RunDirError),
    /// The requested evidence is not available.
    #[error(transparent)]
    Conntrack(#[from] ConntrackError),
    /// Rows could not be written.
    #[error(transparent)]
    Part(#[from] PartError),
}

/// What a load has done so far, warm-up included. Counts lag by a fraction of a second.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Requests that were due so far.
    pub scheduled: u64,
    /// Requests that are in flight.
    pub in_flight: u64,
    /// Requests that ended, by outcome.
    pub outcomes: Counts,
    /// Statuses of complete answers outside the success set.
    #[serde(flatten)]
    pub error_statuses: ErrorStatuses,
    /// Response times of the answered requests of the last second, if there were any.
    pub recent: Option<Recent>,
}

/// Response times of about the last second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recent {
    /// Median.
    pub p50: Duration,
    /// 99th percentile.
    pub p99: Duration,
}

/// The result of a load.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The load's sources: one per worker.
    pub sources: Vec<String>,
    /// The schedule's zero.
    pub started: Stamp,
    /// When the last request had ended.
    pub ended: Stamp,
    /// Requests that were scheduled, warm-up included; each has its row.
    pub scheduled: u64,
    /// Whether it was stopped before the end of its schedule.
    pub stopped_early: bool,
    /// Counts and histograms of the requests.
    pub tally: Tally,
}

/// State and control of a running load. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Control {
    progress: Arc<Mutex<Progress>>,
    stop: CancellationToken,
    abort: CancellationToken,
}

impl Control {
    /// What it has done so far.
    pub fn progress(&self) -> Progress {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Another process reports its progress.
    fn report(&self, progress: Progress) {
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner) = progress;
    }

    /// Ends the schedule: no further request becomes due, and those in flight end
    /// as they would have, within their timeouts.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// Ends the schedule and cuts off what is in flight: such requests end as `cancelled`.
    pub fn abort(&self) {
        self.stop.cancel();
        self.abort.cancel();
    }
}

impl LoadError {
    /// The interval log could not be written to.
    fn latency_log(source: io::Error) -> Self {
        LoadError::LatencyLog { path: PathBuf::from("latency.hlog"), source }
    }
}

/// The error with its causes.
fn in_words(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        words.push_str(&format!(": {error}"));
        cause = error.source();
    }
    words
}
