//! A request as a gateway's access log shows it. Anything that the log does not show is `None`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::{Outcome, Stamp};

/// A request as a gateway logged it. It holds no path, query, header or client address.
#[derive(Clone, Debug, PartialEq)]
pub struct LoggedRequest {
    /// Earliest time at which the gateway may have received the request, on the gateway's clock.
    pub earliest: Stamp,
    /// Latest such time. It differs from `earliest` by the resolution of the log.
    pub latest: Stamp,
    /// Time until the end of the request.
    pub took: Option<Duration>,
    /// Status sent to the client; `None` if none was sent.
    pub status: Option<u16>,
    /// Attempts that the log shows, in order; empty if no upstream was chosen.
    pub attempts: Vec<LoggedAttempt>,
    /// Number of attempts made, which may exceed the number shown.
    pub attempts_made: Option<u32>,
    /// True if the client left before the end.
    pub client_left: bool,
    /// Bytes of the response body sent to the client.
    pub bytes: Option<u64>,
    /// Route, Service, router or backend, as the gateway's configuration names it.
    pub route: Option<Arc<str>>,
}

/// Attempt of a gateway to have an upstream respond to a request.
#[derive(Clone, Debug, PartialEq)]
pub struct LoggedAttempt {
    /// The upstream.
    pub upstream: LoggedUpstream,
    /// What happened at the upstream; `None` if the log does not tell.
    pub outcome: Option<Outcome>,
    /// Status of the upstream's response.
    pub status: Option<u16>,
    /// Duration of the attempt.
    pub took: Option<Duration>,
}

/// Upstream of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoggedUpstream {
    /// An address, usually a pod's.
    Address(SocketAddr),
    /// A Service, a host name or a socket path, which identifies no pod.
    Unnamed,
}
