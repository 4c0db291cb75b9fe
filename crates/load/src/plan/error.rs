//! Reasons why settings make no plan. Each message tells what to change.

use std::net::IpAddr;
use std::time::Duration;

use super::MAX_CYCLE;
use crate::answer_headers::NotAHeader;
use crate::pod_body::NotAPodBody;
use crate::template::UnknownPlaceholder;
use crate::tls::TlsError;
use rolldrop_record::load::{Family, NotALoad, in_units};

/// Reason why settings make no plan.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum PlanError {
    /// The settings themselves cannot be carried out.
    #[error(transparent)]
    Load(#[from] NotALoad),
    /// A target's URL cannot be used.
    #[error("{url:?} is not a usable URL: {why}")]
    Url {
        /// URL as it was given.
        url: String,
        /// Fault of the URL.
        why: String,
    },
    /// Rate and duration result in no request.
    #[error("{rate} requests/s for {} make no request at all: raise the rate or the duration", in_units(*duration))]
    NoRequest {
        /// Mean number of requests per second.
        rate: f64,
        /// Length of the counted part.
        duration: Duration,
    },
    /// There are fewer connections than workers.
    #[error("{max} connections are too few for {workers} workers: each needs one")]
    TooFewConnections {
        /// Limit on connections.
        max: usize,
        /// Number of workers.
        workers: usize,
    },
    /// A worker has no source port.
    #[error("{ports} source ports are too few for {workers} workers: each needs one")]
    TooFewPorts {
        /// Number of ports.
        ports: usize,
        /// Number of workers.
        workers: usize,
    },
    /// Fresh connections need more source ports than there are.
    #[error(
        "{per_s:.0} fresh connections/s to {remote} need {needed:.0} source ports, as one stays taken for up to \
         {held_s} s after its connection (TIME_WAIT); there are {ports} ({addresses} source address(es)), enough \
         for {enough:.0}/s. Send fewer, keep connections (--connections keepalive, connections.mode), or give more \
         ports (--source-ports, sourcePorts, net.ipv4.ip_local_port_range) or source addresses (--source-address, \
         sourceAddresses). If the server closes connections first, --reuse-ports (reusePorts) sends anyway"
    )]
    PortsRunOut {
        /// Remote address.
        remote: String,
        /// Fresh connections a second to this address.
        per_s: f64,
        /// Number of source ports that these need.
        needed: f64,
        /// Time for which each port is taken, in seconds.
        held_s: u64,
        /// Number of available ports, of all source addresses.
        ports: usize,
        /// Number of source addresses.
        addresses: usize,
        /// Number of fresh connections a second for which the ports are enough.
        enough: f64,
    },
    /// Connections cannot come from an address.
    #[error("connections to {remote} cannot come from {address}: {why}")]
    SourceAddress {
        /// Source address.
        address: IpAddr,
        /// Address that the connections would go to.
        remote: String,
        /// Reason why they cannot.
        why: String,
    },
    /// The method cannot be sent.
    #[error("method {0:?} cannot be sent")]
    Method(String),
    /// A header cannot be sent.
    #[error("header {name:?} cannot be sent: {why}")]
    Header {
        /// Name of the header.
        name: String,
        /// Reason why it cannot be sent.
        why: &'static str,
    },
    /// The name of a header to look for is not valid.
    #[error(transparent)]
    AnswerHeader(#[from] NotAHeader),
    /// The pattern for bodies cannot name pods.
    #[error(transparent)]
    Pattern(#[from] NotAPodBody),
    /// A template cannot be filled in.
    #[error("{what}: {why}")]
    Template {
        /// Text that holds the template.
        what: String,
        /// Fault of the template.
        why: UnknownPlaceholder,
    },
    /// A target gets no requests.
    #[error("target {0:?} has weight 0: set a weight above 0, or remove it")]
    NoWeight(String),
    /// The sum of the weights, divided by what they have in common, is too large to take turns.
    #[error("the targets' weights, in lowest terms, add up to {0}, more than {MAX_CYCLE}: use smaller ones")]
    Weights(u64),
    /// An address is not of the family that is used.
    #[error("{host} is not an {} address: remove --{}, or name another \
             host", family.label(), family)]
    Family {
        /// Host that was given.
        host: String,
        /// Family that is used.
        family: Family,
    },
    /// A call by another method of HTTP.
    #[error("{method} {url}: a gRPC call is a POST: write POST {url}")]
    GrpcMethod {
        /// Method that was given.
        method: String,
        /// URL of the target.
        url: String,
    },
    /// The TLS settings cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// There are TLS settings, but no target with TLS.
    #[error("options of TLS are given, but no URL begins with https:// or wss://")]
    NoTls,
}
