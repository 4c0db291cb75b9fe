//! The open-loop load generator.
//!
//! Requests leave at intended send times that are fixed before the first one is sent ([`load_plan::Plan`], `schedule`),
//! regardless of the outcome of earlier requests. Every scheduled request produces exactly one row with one outcome;
//! none is retried. Each worker thread owns its connections, its share of the schedule and its counts (`worker`); a
//! single recorder thread writes the rows (`row_recorder`). The analysis, not this crate, judges the outcomes.
//!
//! [`Prepared`] sends from this process and returns the [`RunningLoad`]. [`load_process`] delegates sending to a child
//! process, as `rolldrop run` does, and [`remote`] to many workers in a cluster. The supported protocols are HTTP/1.1
//! (`exchange`), HTTP/2 (`http2_client`), unary gRPC (`grpc`) and WebSocket (`websocket_client`), in clear text or over
//! TLS. New connections follow DNS changes (`resolve`). [`answer_stream`] reads responses that are streams of events.

mod answer_headers;
pub mod answer_stream;
mod body_end;
mod carry;
mod client_tls;
mod connection;
mod conntrack_listener;
mod control;
mod deadlines;
mod due_timer;
mod error;
mod exchange;
mod exchange_context;
mod expected_open;
mod failure;
mod feed;
mod field_list;
mod first_answer;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod gap_counts;
mod grpc;
mod http1_client;
mod http1_pool;
mod http2_client;
mod late_requests;
mod latency_log;
pub mod live_feed;
mod load_plan;
pub mod load_process;
pub mod machine;
mod not_sent_reason;
mod open_streams;
mod placeholders;
mod planned_target;
mod pod_body;
mod polled_stream;
mod prepared;
mod random;
mod record_file;
pub mod remote;
mod remote_address;
mod request;
mod request_write;
mod resolve;
mod response;
mod row_recorder;
mod running;
mod schedule;
mod second_series;
mod socket_transport;
mod source_port_pool;
mod stream_poller;
mod tally;
pub mod targets_file;
mod websocket_client;
mod worker;

#[cfg(test)]
mod known_answers;

pub use answer_headers::NotAHeader;
pub use client_tls::TlsError;
pub use conntrack_listener::{ConntrackError, check as check_conntrack};
pub use control::{Control, Progress, Recent};
pub use error::{LoadError, in_words};
pub use grpc::status_name;
pub use late_requests::LATE_LIMIT;
pub use load_plan::{Plan, PlanError, ThreadShare};
pub use placeholders::UnknownPlaceholder;
pub use pod_body::{NotAPodBody, PodBody};
pub use prepared::Prepared;
pub use record_file::{NotARecord, Record, RecordFormat};
pub use rolldrop_record::load::{
    Arrivals, ConnectTo, Connections, DnsSettings, Family, Grpc, Http, Length, Load, LoadTarget, Pace,
    PortRange, RateStage, Retry, Rpc, Timeouts, TlsSettings, TlsVersions,
};
pub use running::{LoadSummary, RunningLoad};
pub use second_series::LoadSecond;
pub use source_port_pool::{PortMemory, PortsBefore};
pub use tally::{ErrorStatuses, OutcomeCounts, ServiceTimeParts, Tally, TargetTally, Times, errno_name};
