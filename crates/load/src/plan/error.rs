//! Reasons why settings make no plan. Each message tells what to change.

use std::net::IpAddr;
use std::time::Duration;

use super::MAX_CYCLE;
use crate::answer_headers::NotAHeader;
use crate::pod_body::NotAPodBody;
use crate::template::UnknownPlaceholder;
use crate::tls::TlsError;
use rolldrop_record::load::limits::{MAX_RATE, MAX_RETRIES, MAX_STREAMS, MAX_WORKERS};
use rolldrop_record::load::{Family, in_units};

/// Reason why settings make no plan.
#[derive(Debug, thiserror::Error, PartialEq)]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum PlanError {
    /// There is no target.
    #[error("no target: name a URL such as http://127.0.0.1:8080/")]
    NoTarget,
    /// A target's URL cannot be used.
    #[error("{url:?} is not a usable URL: {why}")]
    Url { url: String, why: String },
    /// The rate is not a number that can be sent.
    #[error("rate {0} is not above 0 and at most {MAX_RATE} requests/s")]
    Rate(f64),
    /// A duration is out of range.
    #[error("{what} of {} is not {allowed}", in_units(*given))]
    Duration { what: &'static str, given: Duration, allowed: &'static str },
    /// Rate and duration result in no request.
    #[error("{rate} requests/s for {} make no request at all: raise the rate or the duration", in_units(*duration))]
    NoRequest { rate: f64, duration: Duration },
    /// A closed loop has no times to keep.
    #[error("a closed loop has no schedule: remove either {0} or the closed loop")]
    Closed(&'static str),
    /// There are fewer connections than workers.
    #[error("{max} connections are too few for {workers} workers: each needs one")]
    TooFewConnections { max: usize, workers: usize },
    /// The number of workers is out of range.
    #[error("{0} workers are not from 1 to {MAX_WORKERS}")]
    Workers(usize),
    /// There are more source addresses than workers to use them.
    #[error(
        "{addresses} source addresses need as many workers, not {workers}: each address needs its own worker"
    )]
    TooFewWorkers { addresses: usize, workers: usize },
    /// A worker has no source port.
    #[error("{ports} source ports are too few for {workers} workers: each needs one")]
    TooFewPorts { ports: usize, workers: usize },
    /// Fresh connections need more source ports than there are.
    #[error(
        "{per_s:.0} fresh connections/s to {remote} need {needed:.0} source ports, as one stays taken for up to \
         {held_s} s after its connection (TIME_WAIT); there are {ports} ({addresses} source address(es)), enough \
         for {enough:.0}/s. Send fewer, keep connections (--connections keepalive, connections.mode), or give more \
         ports (--source-ports, sourcePorts, net.ipv4.ip_local_port_range) or source addresses (--source-address, \
         sourceAddresses). If the server closes connections first, --reuse-ports (reusePorts) sends anyway"
    )]
    PortsRunOut {
        remote: String,
        per_s: f64,
        needed: f64,
        held_s: u64,
        ports: usize,
        addresses: usize,
        enough: f64,
    },
    /// Connections cannot come from an address.
    #[error("connections to {remote} cannot come from {address}: {why}")]
    SourceAddress { address: IpAddr, remote: String, why: String },
    /// The method cannot be sent.
    #[error("method {0:?} cannot be sent")]
    Method(String),
    /// A header cannot be sent.
    #[error("header {name:?} cannot be sent: {why}")]
    Header { name: String, why: &'static str },
    /// The name of a header to look for is not valid.
    #[error(transparent)]
    AnswerHeader(#[from] NotAHeader),
    /// The pattern for bodies cannot name pods.
    #[error(transparent)]
    Pattern(#[from] NotAPodBody),
    /// Answers without a body that can be searched.
    #[error(
        "{0} has no body that can be searched for the pod's name: remove the pattern for bodies (--pod-body, \
         load.podBody); a header can name the pod"
    )]
    PodBody(&'static str),
    /// A template cannot be filled in.
    #[error("{what}: {why}")]
    Template { what: String, why: UnknownPlaceholder },
    /// A target gets no requests.
    #[error("target {0:?} has weight 0: set a weight above 0, or remove it")]
    NoWeight(String),
    /// The sum of the weights, divided by what they have in common, is too large to take turns.
    #[error("the targets' weights, in lowest terms, add up to {0}, more than {MAX_CYCLE}: use smaller ones")]
    Weights(u64),
    /// Too many retries.
    #[error("{0} retries are more than {MAX_RETRIES}")]
    Retries(u32),
    /// A limit that no fresh connection reaches.
    #[error("a fresh connection carries one request: remove {0}, or keep connections")]
    FreshLimit(&'static str),
    /// A connection that carries no request.
    #[error("0 requests to a connection are too few: at least 1")]
    MaxRequests,
    /// An address is not of the family that is used.
    #[error("{host} is not an {} address: remove --{}, or name another \
             host", family.label(), family)]
    Family { host: String, family: Family },
    /// A connection without streams.
    #[error("{0} streams to a connection are not from 1 to {MAX_STREAMS}")]
    Streams(usize),
    /// Streams without HTTP/2.
    #[error("HTTP/1.1 has no streams: use HTTP/2, or remove the number of streams")]
    StreamsNeedHttp2,
    /// A call by another method of HTTP.
    #[error("{method} {url}: a gRPC call is a POST: write POST {url}")]
    GrpcMethod { method: String, url: String },
    /// gRPC over HTTP/1.1.
    #[error("gRPC needs HTTP/2")]
    GrpcNeedsHttp2,
    /// The TLS settings cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// There are TLS settings, but no target with TLS.
    #[error("options of TLS are given, but no URL begins with https:// or wss://")]
    NoTls,
    /// A range of statuses is empty or out of range.
    #[error("success statuses {0}-{1} are not a range within 100-599")]
    Success(u16, u16),
}
