//! The open-loop load generator.
//!
//! Requests leave at intended send times that are fixed before the first one ([`plan::Plan`], `schedule`), regardless
//! of the outcome of earlier requests. Every scheduled request produces exactly one row with one outcome; none is
//! retried. Each worker thread owns its connections, its share of the schedule and its counts (`worker`); a single
//! recorder thread writes the rows (`recorder`). The analysis, not this crate, judges the outcomes.
//!
//! [`Prepared`] sends from this process and returns the [`Running`] load. [`process`] delegates sending to a child
//! process, as `rolldrop run` does, and [`remote`] to many workers in a cluster. The supported protocols are HTTP/1.1
//! (`exchange`), HTTP/2 (`http2`), unary gRPC (`grpc`) and WebSocket (`websocket`), in clear text or over TLS. New
//! connections follow DNS changes (`resolve`).

mod address;
mod answer_headers;
mod carry;
mod connection;
mod conntrack;
mod context;
mod control;
mod deadlines;
mod due_timer;
mod error;
mod exchange;
mod failure;
mod feed;
mod first_answer;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod grpc;
mod http1;
mod http1_pool;
mod http2;
mod latency_log;
pub mod live;
pub mod machine;
mod not_sent;
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
mod series;
mod stream;
mod tally;
mod target;
pub mod targets;
mod template;
mod tls;
mod websocket;
mod worker;

#[cfg(test)]
mod known_answers;

pub use answer_headers::NotAHeader;
pub use conntrack::{ConntrackError, check as check_conntrack};
pub use control::{Control, Progress, Recent};
pub use error::{LoadError, in_words};
pub use grpc::status_name;
pub use plan::{Plan, PlanError, Share};
pub use pod_body::{NotAPodBody, PodBody};
pub use ports::{PortMemory, PortsBefore};
pub use prepared::Prepared;
pub use records::{NotARecord, Record, RecordFormat};
pub use rolldrop_record::load::{
    Arrivals, ConnectTo, Connections, DnsSettings, Family, Grpc, Http, Length, Load, LoadTarget, Pace,
    PortRange, Retry, Rpc, Stage, Timeouts, TlsSettings, TlsVersions,
};
pub use running::{Running, Summary};
pub use series::Second;
pub use tally::{Counts, ErrorStatuses, OfTarget, Parts, Tally, Times, errno_name};
pub use template::UnknownPlaceholder;
pub use tls::TlsError;
pub use worker::LATE_LIMIT;
