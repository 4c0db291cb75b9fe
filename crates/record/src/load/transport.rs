//! Transport of requests: the HTTP version, and gRPC calls.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::defaults;
use crate::names::{as_text, named};

named! {
    /// HTTP version to speak.
    #[derive(Default)]
    pub enum Http else UnknownHttp "HTTP {0:?} is not auto, 1.1 or 2" {
        /// With TLS, the version chosen by the server for each connection; without TLS, HTTP/1.1.
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

/// Error for text that is not a gRPC method.
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

/// Settings for gRPC calls instead of plain requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grpc {
    /// Method to call.
    #[serde(rename = "method")]
    pub rpc: Rpc,
    /// gRPC statuses that count as success.
    #[serde(default = "grpc_success")]
    pub success: Vec<i32>,
}

impl Grpc {
    /// Creates the settings for calls to a method, with OK as the only success status.
    pub fn new(rpc: Rpc) -> Self {
        Self { rpc, success: grpc_success() }
    }
}

fn grpc_success() -> Vec<i32> {
    vec![defaults::GRPC_SUCCESS]
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
