//! A request as a gateway logged it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::{Outcome, Stamp};

/// Lowest status that reports a server error.
pub const SERVER_ERROR: u16 = 500;

/// A request as a gateway logged it, without anything that its client chose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedRequest {
    /// Earliest time at which the gateway may have passed the request on, on the gateway's clock: when it received the
    /// request, unless the log shows for how long it then waited. The Unix epoch if the log shows only the end.
    pub earliest: Stamp,
    /// Latest such time. The difference from `earliest` is the resolution of the log.
    pub latest: Stamp,
    /// Time from then to the end of the request; `None` if the log does not show it.
    pub took: Option<Duration>,
    /// Status sent to the client; `None` if none was sent.
    pub status: Option<u16>,
    /// Attempts that the line shows, in order; empty if no upstream was chosen. An attempt before the last one failed,
    /// unless its outcome is [`Outcome::Ok`]: its response then redirected the request to the next upstream.
    pub attempts: Vec<LoggedAttempt>,
    /// Number of attempts made, which may be more than the line shows; `None` if the log does not show it.
    pub attempts_made: Option<u32>,
    /// True if the log says that the client left before it had the whole response. Some gateways do not log that.
    pub client_left: bool,
    /// Bytes of the response body sent to the client.
    pub bytes: Option<u64>,
    /// Route, Service, router or backend as the gateway names it.
    pub route: Option<Arc<str>>,
}

impl LoggedRequest {
    /// Returns true if the client got a status that is not a server error.
    pub fn has_succeeded(&self) -> bool {
        self.status.is_some_and(|status| status < SERVER_ERROR)
    }

    /// Returns the number of attempts that repeated a failed one; `None` if the log does not show it.
    pub fn retries(&self) -> Option<u64> {
        let earlier = self.attempts.split_last().map_or(&[][..], |(_, earlier)| earlier);
        let redirects = earlier.iter().filter(|attempt| attempt.outcome == Some(Outcome::Ok)).count() as u64;
        self.attempts_made.map(|made| u64::from(made).saturating_sub(1 + redirects))
    }
}

/// An attempt to pass a request to an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedAttempt {
    /// The upstream that was chosen.
    pub upstream: LoggedUpstream,
    /// Outcome of the attempt; `None` if the log does not show it. If a log does not distinguish closed from reset
    /// connections, they count as closed. If it does not show why no connection was made, the outcome is
    /// [`Outcome::ConnectError`].
    pub outcome: Option<Outcome>,
    /// Status that the upstream sent. If `outcome` is `None`, it may also be the gateway's own.
    pub status: Option<u16>,
    /// Time that the attempt took.
    pub took: Option<Duration>,
}

/// An upstream as a gateway logged it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LoggedUpstream {
    /// An address with a port, possibly a Service's.
    Address(SocketAddr),
    /// A host name, possibly a Service's.
    Host(Arc<str>),
    /// Something that is neither, such as the path of a socket.
    Unnamed,
}
