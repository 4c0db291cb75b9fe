//! Transport of requests: the HTTP version, and the use of connections.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::defaults;
use crate::names::{as_text, named};

named! {
    /// HTTP version to speak.
    #[derive(Default)]
    pub enum Http else UnknownHttp "HTTP {0:?} is not auto, 1.1 or 2" {
        /// With TLS, the version that the server chooses for each connection; without TLS, HTTP/1.1.
        #[default]
        Auto = "auto",
        /// HTTP/1.1.
        Http1 = "1.1",
        /// HTTP/2: with TLS if the server agrees to it, without TLS by prior knowledge.
        Http2 = "2",
    }
}

/// A unary gRPC method.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rpc {
    service: String,
    method: String,
}

/// Error for a text that is not a method.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not SERVICE/METHOD, such as grpc.health.v1.Health/Check")]
pub struct NotAMethod(String);

impl FromStr for Rpc {
    type Err = NotAMethod;

    fn from_str(text: &str) -> Result<Self, NotAMethod> {
        let is_name = |name: &str| {
            !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b))
        };
        let names = text.trim_start_matches('/').split_once('/');
        let names = names.filter(|(service, method)| is_name(service) && is_name(method));
        let (service, method) = names.ok_or_else(|| NotAMethod(text.to_owned()))?;
        Ok(Self { service: service.to_owned(), method: method.to_owned() })
    }
}

as_text!(Rpc);

impl fmt::Display for Rpc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.service, self.method)
    }
}

/// Settings for calling a gRPC method instead of sending plain requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grpc {
    /// Method to call.
    pub rpc: Rpc,
    /// gRPC statuses that count as success.
    pub success: Vec<i32>,
}

impl Grpc {
    /// Makes the settings for calls of a method, with OK as the only success.
    pub fn new(rpc: Rpc) -> Self {
        Self { rpc, success: vec![defaults::GRPC_SUCCESS] }
    }
}

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

/// Connections that carry the requests.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Connections {
    /// A new connection for every request.
    Fresh,
    /// An idle connection if there is one, otherwise a new one.
    Keepalive,
    /// Fresh connections for this share of the requests (0 to 1), keep-alive for the others.
    Mixed(f64),
}

impl Connections {
    /// Returns the mode without the share.
    pub const fn mode(self) -> ConnectionMode {
        match self {
            Connections::Fresh => ConnectionMode::Fresh,
            Connections::Keepalive => ConnectionMode::Keepalive,
            Connections::Mixed(_) => ConnectionMode::Mixed,
        }
    }

    /// Returns the share of requests on fresh connections, if fresh and keep-alive are mixed.
    pub const fn share(self) -> Option<f64> {
        match self {
            Connections::Mixed(share) => Some(share),
            Connections::Fresh | Connections::Keepalive => None,
        }
    }

    /// Returns true if the request numbered `seq` uses a fresh connection. A share is spread evenly: of the first n
    /// requests, `floor(n × share)` are fresh.
    pub fn is_fresh(self, seq: u64) -> bool {
        match self {
            Connections::Fresh => true,
            Connections::Keepalive => false,
            Connections::Mixed(share) => {
                let before = (seq as f64 * share).floor();
                ((seq + 1) as f64 * share).floor() > before
            }
        }
    }
}

impl fmt::Display for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Connections::Mixed(share) => write!(f, "mixed:{share}"),
            other => other.mode().fmt(f),
        }
    }
}

/// Error for a text that is not a use of connections.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("connections {0:?} are not fresh, keepalive, or mixed:SHARE with a share from 0 to 1")]
pub struct NotConnections(String);

impl FromStr for Connections {
    type Err = NotConnections;

    fn from_str(text: &str) -> Result<Self, NotConnections> {
        let (mode, share) = text.split_once(':').map_or((text, None), |(mode, share)| (mode, Some(share)));
        let parse = || match (mode.parse().ok()?, share) {
            (ConnectionMode::Fresh, None) => Some(Connections::Fresh),
            (ConnectionMode::Keepalive, None) => Some(Connections::Keepalive),
            (ConnectionMode::Mixed, Some(share)) => {
                share.parse().ok().filter(|share| (0.0..=1.0).contains(share)).map(Connections::Mixed)
            }
            _ => None,
        };
        parse().ok_or_else(|| NotConnections(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rpc_requires_service_and_method() {
        let rpc: Rpc = "/grpc.health.v1.Health/Check".parse().unwrap();
        assert_eq!(rpc.to_string(), "grpc.health.v1.Health/Check");
        for wrong in ["", "Check", "a/b/c", "a b/c", "/a/"] {
            assert!(wrong.parse::<Rpc>().is_err(), "{wrong}");
        }
    }
}
