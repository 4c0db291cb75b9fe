//! What happened to a request, as the wire showed it.
//!
//! Facts first, judgement later: whether an outcome counts as *dropped* is
//! policy, applied by the analysis and never here.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Whether a gateway says by this status that it got no answer from a pod: 502, 503 or 504.
pub const fn is_gateway_status(status: u16) -> bool {
    matches!(status, 502..=504)
}

macro_rules! outcomes {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// How the first attempt of a scheduled request ended.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Outcome {
            $($(#[$doc])* $variant,)*
        }

        impl Outcome {
            /// Every outcome, in the order in which a request can meet them.
            pub const ALL: &'static [Outcome] = &[$(Outcome::$variant,)*];

            /// The name used in files, charts and on the command line.
            pub const fn as_str(self) -> &'static str {
                match self { $(Outcome::$variant => $name,)* }
            }
        }

        impl FromStr for Outcome {
            type Err = UnknownOutcome;

            fn from_str(s: &str) -> Result<Self, Self::Err> {
                match s {
                    $($name => Ok(Outcome::$variant),)*
                    other => Err(UnknownOutcome(other.to_owned())),
                }
            }
        }
    };
}

outcomes! {
    /// A complete response with a status of the success set.
    Ok = "ok",
    /// A complete response with a status outside the success set.
    HttpError = "http_error",
    /// The connection was refused (ECONNREFUSED).
    ConnectRefused = "connect_refused",
    /// No connection within the connect timeout: SYNs went unanswered.
    ConnectTimeout = "connect_timeout",
    /// The network said that the address cannot be reached (EHOSTUNREACH, ENETUNREACH).
    ConnectUnreachable = "connect_unreachable",
    /// Connecting failed in another way; `errno` says how.
    ConnectError = "connect_error",
    /// The host name did not resolve.
    DnsError = "dns_error",
    /// The TLS handshake failed.
    TlsError = "tls_error",
    /// The connection was reset before the first byte of the response.
    ResetBeforeResponse = "reset_before_response",
    /// The connection was reset after part of the response had arrived.
    ResetMidResponse = "reset_mid_response",
    /// The connection was closed before the first byte of the response.
    EofBeforeResponse = "eof_before_response",
    /// The connection was closed before the announced end of the response.
    TruncatedBody = "truncated_body",
    /// No complete response head within the response timeout.
    ResponseTimeout = "response_timeout",
    /// The body did not end within the response timeout.
    BodyTimeout = "body_timeout",
    /// The HTTP/2 stream was refused (REFUSED_STREAM).
    H2RefusedStream = "h2_refused_stream",
    /// The HTTP/2 connection went away before it processed the stream (GOAWAY).
    H2Goaway = "h2_goaway",
    /// The peer broke the protocol: the answer could not be parsed.
    ProtocolError = "protocol_error",
    /// Not sent, by our own fault; never charged to the cluster.
    NotSent = "not_sent",
    /// The run ended first.
    Cancelled = "cancelled",
}

/// A name that is no outcome.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("unknown outcome {0:?}")]
pub struct UnknownOutcome(String);

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_reads_back() {
        for &outcome in Outcome::ALL {
            assert_eq!(outcome.as_str().parse(), Ok(outcome));
            let json = serde_json::to_string(&outcome).unwrap();
            assert_eq!(json, format!("\"{outcome}\""));
        }
        assert!("okay".parse::<Outcome>().is_err());
    }
}
