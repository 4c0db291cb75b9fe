//! Reasons why settings cannot be turned into a plan. Each message tells the user what to change.

use std::net::IpAddr;
use std::time::Duration;

use super::MAX_CYCLE;
use crate::answer_headers::NotAHeader;
use crate::client_tls::TlsError;
use crate::placeholders::UnknownPlaceholder;
use crate::pod_body::NotAPodBody;
use rolldrop_record::load::{Family, NotALoad, in_units};

/// Reason why settings cannot be turned into a plan.
#[derive(Debug, thiserror::Error, PartialEq)]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum PlanError {
    /// The settings cannot be carried out.
    #[error(transparent)]
    Load(#[from] NotALoad),
    /// A target's URL cannot be used.
    #[error("cannot use URL {url:?}: {why}")]
    Url { url: String, why: String },
    /// The rate and duration result in no request.
    #[error("{rate} requests/s for {} is less than one request: raise the rate or the duration", in_units(*duration))]
    NoRequest { rate: f64, duration: Duration },
    /// There are fewer connections than workers.
    #[error("{max} connections are too few for {workers} workers: each worker needs one")]
    TooFewConnections { max: usize, workers: usize },
    /// A worker would have no source port.
    #[error("{ports} source ports are too few for {workers} workers: each worker needs one")]
    TooFewPorts { ports: usize, workers: usize },
    /// The machine does not allow as many open streams as were asked for.
    #[error(
        "{asked} open streams exceed {limit}, which is {most}: raise that limit or ask for fewer streams \
         (--max-open, stream.maxOpen)"
    )]
    TooManyOpen { asked: usize, limit: &'static str, most: usize },
    /// More streams are expected to be open than the machine, or the default, allows.
    #[error(
        "the rate and the lengths keep about {expected} streams open, but {limit} is {most}: raise that \
         limit, lower the rate or the lengths, or set --max-open (stream.maxOpen) to leave requests unsent"
    )]
    TooManyExpected { expected: usize, limit: &'static str, most: usize },
    /// Fresh connections need more source ports than there are.
    #[error(
        "{per_s:.0} fresh connections/s to {remote} need {needed:.0} source ports, but there are only {ports} \
         ({addresses} source address(es)), enough for {enough:.0}/s: a port stays in TIME_WAIT for up to {held_s} s. \
         Lower the rate, keep connections open (--connections keepalive, connections.mode), or add ports \
         (--source-ports, sourcePorts, net.ipv4.ip_local_port_range) or source addresses (--source-address, \
         sourceAddresses). If the server closes connections first, use --reuse-ports (reusePorts)"
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
    /// Connections cannot use an address as their source.
    #[error("cannot connect to {remote} from {address}: {why}")]
    SourceAddress { address: IpAddr, remote: String, why: String },
    /// The HTTP method cannot be sent.
    #[error("method {0:?} is not supported")]
    Method(String),
    /// A header cannot be sent.
    #[error("cannot send header {name:?}: {why}")]
    Header { name: String, why: &'static str },
    /// The name of a response header to look for is invalid.
    #[error(transparent)]
    AnswerHeader(#[from] NotAHeader),
    /// The pattern for bodies cannot name pods.
    #[error(transparent)]
    Pattern(#[from] NotAPodBody),
    /// A template cannot be filled in.
    #[error("{what}: {why}")]
    Template { what: String, why: UnknownPlaceholder },
    /// A target gets no requests.
    #[error("target {0:?} has weight 0: set a weight above 0, or remove it")]
    NoWeight(String),
    /// The sum of the weights, divided by their common factor, is too large for a cycle.
    #[error(
        "the targets' weights add up to {0} in lowest terms, but at most {MAX_CYCLE} are allowed: use smaller weights"
    )]
    Weights(u64),
    /// An address is not in the address family used.
    #[error("{host} is not an {} address: remove --{} or use another host", family.label(), family)]
    Family { host: String, family: Family },
    /// A gRPC call uses an HTTP method other than POST.
    #[error("{method} {url}: gRPC calls use POST: write POST {url}")]
    GrpcMethod { method: String, url: String },
    /// The TLS settings cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// There are TLS settings, but no target uses TLS.
    #[error("TLS options are set, but no URL starts with https:// or wss://")]
    NoTls,
}
