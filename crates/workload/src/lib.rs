//! Sample server with a choice of shutdown habits, good and bad.
//!
//! It serves HTTP/1.1, and HTTP/2 with prior knowledge, for scenarios and tests. It logs the outcome of each request by
//! request id so that a measurement can be checked against the truth. It runs on one thread, and a response is handed
//! to the kernel and logged in one step that no signal can interrupt.
//!
//! The only other part of the program that it uses is the stream-length law; the caller supplies the clock.

mod ask_api;
mod http2_service;
mod path_responses;
mod response_flush;
mod sample_streams;
mod server_state;
mod stop_signals;
mod stream_service;
mod websocket_echo;
mod workload_log;
mod workload_server;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

pub use sample_streams::{SampleStreamSettings, StreamFault, StreamFraming, StreamStopHabit};
pub use stop_signals::StopSignal;
pub use workload_log::{LogTarget, NowNs};
pub use workload_server::WorkloadServer;

/// The server's reaction to a stop signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Habit {
    /// Exits immediately with code 0; requests in flight are lost.
    Exit,
    /// Reports that it is not ready, keeps serving for a while with `Connection: close`, then stops accepting, serves
    /// the connections in the accept queue, and exits 0.
    Drain,
    /// Does nothing until the kubelet kills the server.
    Ignore,
    /// Stops accepting immediately, finishes the requests in flight, and exits 0.
    Finish,
    /// Like [`Habit::Drain`], but closes idle HTTP/1.1 connections on the signal, even those with an unread request.
    CloseIdle,
}

/// Server settings.
#[derive(Clone, Debug)]
pub struct WorkloadConfig {
    /// Address that the server listens on.
    pub listen: SocketAddr,
    /// Time from the start until the server listens.
    pub listen_after: Duration,
    /// Reaction to SIGTERM, SIGINT and SIGQUIT.
    pub on_stop: Habit,
    /// Per-signal overrides of `on_stop`.
    pub on_signal: BTreeMap<StopSignal, Habit>,
    /// Time for which [`Habit::Drain`] and [`Habit::CloseIdle`] keep serving.
    pub drain_for: Duration,
    /// Time for which the server is busy after a stop signal before acting on it. Meanwhile, it reads and answers
    /// nothing.
    pub stop_work: Duration,
    /// Longest time that an HTTP/1.1 connection may stay idle before the server closes it.
    pub idle_timeout: Duration,
    /// Delay before every response.
    pub response_time: Duration,
    /// Share of requests that fail with status 500, from 0 to 1; `/healthz` and `/readyz` never fail.
    pub fail_share: f64,
    /// Size of the body of `/`; `None` for a short text.
    pub body_bytes: Option<usize>,
    /// Time from the start until the server becomes ready.
    pub ready_after: Duration,
    /// Settings of the event streams.
    pub streams: SampleStreamSettings,
    /// Interval at which the server requests its own pod from the API server; `None` if it does not.
    pub ask_api_every: Option<Duration>,
    /// Log destination; `None` for no log.
    pub log: Option<LogTarget>,
    /// Name of the pod, returned in `rolldrop-pod`.
    pub pod_name: Option<String>,
}

/// Error that kept the server from running.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkloadError {
    /// Another socket is using the address.
    #[error(
        "{0} is in use by another process: choose another port, or listen on the pod's own address \
         ($(POD_IP) from fieldRef status.podIP)"
    )]
    AddressInUse(SocketAddr),
    /// The server could not listen on the address for another reason.
    #[error("listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The cause.
        source: io::Error,
    },
    /// The log could not be opened.
    #[error("open log {}", path.display())]
    OpenLog {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The signal handlers could not be installed.
    #[error("handle signals")]
    Signals(#[source] io::Error),
    /// The API server cannot be queried.
    #[error("ask the API server")]
    Api(#[source] ask_api::ApiError),
}
