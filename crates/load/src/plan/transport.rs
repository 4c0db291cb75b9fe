//! How requests travel: which HTTP, over which connections.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::PlanError;
use crate::grpc::Rpc;
use crate::http2;

/// Which HTTP is spoken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Http {
    /// Over TLS whichever of the two the server chooses, connection by connection; else HTTP/1.1.
    #[default]
    #[serde(rename = "auto")]
    Auto,
    /// HTTP/1.1.
    #[serde(rename = "1.1")]
    Http1,
    /// HTTP/2: by prior knowledge, or, with TLS, where the server agrees to it.
    #[serde(rename = "2")]
    Http2,
}

impl Http {
    /// Its version, or that it is chosen later.
    pub const fn as_str(self) -> &'static str {
        match self {
            Http::Auto => "auto",
            Http::Http1 => "1.1",
            Http::Http2 => "2",
        }
    }
}

impl Http {
    /// What is offered in a TLS handshake.
    pub(super) const fn alpn(self) -> &'static [&'static [u8]] {
        const HTTP1: &[u8] = b"http/1.1";

        match self {
            Http::Auto => &[http2::ALPN, HTTP1],
            Http::Http1 => &[HTTP1],
            Http::Http2 => &[http2::ALPN],
        }
    }
}

impl FromStr for Http {
    type Err = PlanError;

    fn from_str(s: &str) -> Result<Self, PlanError> {
        match s {
            "auto" => Ok(Http::Auto),
            "1.1" => Ok(Http::Http1),
            "2" => Ok(Http::Http2),
            other => Err(PlanError::Http(other.to_owned())),
        }
    }
}

/// Calls of a gRPC method in place of plain requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grpc {
    /// The method.
    pub rpc: Rpc,
    /// gRPC statuses that count as success.
    pub success: Vec<i32>,
}

impl Grpc {
    /// Calls of a method, of which OK is the success.
    pub fn new(rpc: Rpc) -> Self {
        Self { rpc, success: vec![0] }
    }
}

/// Which connections carry the requests.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Connections {
    /// A new connection for every request.
    Fresh,
    /// An idle connection where there is one, else a new one.
    Keepalive,
    /// Fresh connections for this share of the requests (0 to 1), keep-alive for the others.
    Mixed(f64),
}

impl Connections {
    /// The mode's name, without a share.
    pub const fn as_str(self) -> &'static str {
        match self {
            Connections::Fresh => "fresh",
            Connections::Keepalive => "keepalive",
            Connections::Mixed(_) => "mixed",
        }
    }

    /// Whether the request numbered `seq` goes on a fresh connection. A share is
    /// spread evenly: of the first n requests, `floor(n × share)` are fresh.
    pub(crate) fn is_fresh(self, seq: u64) -> bool {
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
            other => f.write_str(other.as_str()),
        }
    }
}

impl FromStr for Connections {
    type Err = PlanError;

    fn from_str(s: &str) -> Result<Self, PlanError> {
        let bad = || PlanError::Connections(s.to_owned());
        match s {
            "fresh" => Ok(Connections::Fresh),
            "keepalive" => Ok(Connections::Keepalive),
            other => {
                let share = other.strip_prefix("mixed:").ok_or_else(bad)?;
                let share = share.parse::<f64>().map_err(|_| bad())?;
                if (0.0..=1.0).contains(&share) { Ok(Connections::Mixed(share)) } else { Err(bad()) }
            }
        }
    }
}
