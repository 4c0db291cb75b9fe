//! Connections for the requests: how many, and how each is used.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::names::named;
use crate::units::{at_least_1, span};

named! {
    /// Use of connections.
    #[derive(Default)]
    pub enum ConnectionMode else UnknownConnectionMode "{0:?} is not fresh, keepalive or mixed" {
        /// A new connection for every request.
        #[default]
        Fresh = "fresh",
        /// Connections are kept open and reused.
        Keepalive = "keepalive",
        /// Both, each for a share of the requests.
        Mixed = "mixed",
    }
}

/// Settings of the connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Connections {
    /// Use of connections: fresh, kept alive, or both.
    pub mode: ConnectionMode,
    /// Share of requests on fresh connections (0 to 1), if fresh and keep-alive are mixed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
    /// Maximum number of simultaneously open connections; `None` for as many as the rate can keep open if every request
    /// runs into its timeouts.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "at_least_1")]
    pub max: Option<usize>,
    /// Maximum number of concurrent requests on an HTTP/2 connection, within the server's limit; `None` for 100, or 1
    /// in a closed loop.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "at_least_1")]
    pub max_concurrent_streams: Option<usize>,
    /// Maximum number of requests per connection; `None` for no limit.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "at_least_1")]
    pub max_requests: Option<u64>,
    /// Age from which a connection is no longer used for new requests; `None` for no limit.
    #[serde(skip_serializing_if = "Option::is_none", with = "span")]
    pub max_age: Option<Duration>,
}

impl Connections {
    /// A new connection for every request.
    pub const FRESH: Self = Self {
        mode: ConnectionMode::Fresh,
        share: None,
        max: None,
        max_concurrent_streams: None,
        max_requests: None,
        max_age: None,
    };

    /// Reuse of idle connections; a new connection only if none is idle.
    pub const KEEPALIVE: Self = Self { mode: ConnectionMode::Keepalive, ..Self::FRESH };

    /// Returns settings with fresh connections for this share of the requests (0 to 1), and kept-alive connections for
    /// the rest.
    pub const fn mixed(share: f64) -> Self {
        Self { mode: ConnectionMode::Mixed, share: Some(share), ..Self::FRESH }
    }

    /// Returns the reason why the share does not fit the mode; `None` if it fits.
    pub fn share_fault(&self) -> Option<&'static str> {
        match (self.mode, self.share) {
            (ConnectionMode::Mixed, Some(share)) if (0.0..=1.0).contains(&share) => None,
            (ConnectionMode::Mixed, _) => Some("mode mixed needs a share of fresh connections from 0 to 1"),
            (_, Some(_)) => Some("only mode mixed takes a share: remove it, or set mode: mixed"),
            (_, None) => None,
        }
    }

    /// Returns the share of requests on fresh connections.
    pub(crate) fn fresh_share(&self) -> f64 {
        match self.mode {
            ConnectionMode::Fresh => 1.0,
            ConnectionMode::Keepalive => 0.0,
            ConnectionMode::Mixed => self.share.unwrap_or_default(),
        }
    }

    /// Returns true if the request numbered `seq` uses a fresh connection. A share is spread evenly: of the first n
    /// requests, `floor(n × share)` are fresh.
    pub fn is_fresh(&self, seq: u64) -> bool {
        let share = self.fresh_share();
        ((seq + 1) as f64 * share).floor() > (seq as f64 * share).floor()
    }
}

/// Formats the connection mode as the command line does.
impl fmt::Display for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.share {
            Some(share) => write!(f, "{}:{share}", self.mode),
            None => self.mode.fmt(f),
        }
    }
}

/// Error for text that does not describe a use of connections.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("connections {0:?} are not fresh, keepalive, or mixed:SHARE with a share from 0 to 1")]
pub struct NotConnections(String);

impl FromStr for Connections {
    type Err = NotConnections;

    fn from_str(text: &str) -> Result<Self, NotConnections> {
        let (mode, share) = text.split_once(':').map_or((text, None), |(mode, share)| (mode, Some(share)));
        let parse = || {
            let share = share.map(str::parse).transpose().ok()?;
            Some(Self { mode: mode.parse().ok()?, share, ..Self::FRESH })
                .filter(|c| c.share_fault().is_none())
        };
        parse().ok_or_else(|| NotConnections(text.to_owned()))
    }
}
