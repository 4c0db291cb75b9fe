//! Timeouts of a request, and retries after a failure.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::defaults;
use crate::units::{span, span_above_0};

/// Time limits for the parts of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Timeouts {
    /// Maximum time to connect.
    #[serde(with = "span_above_0")]
    pub connect: Duration,
    /// Maximum time for the TLS handshake.
    #[serde(with = "span_above_0")]
    pub tls: Duration,
    /// Maximum time from sending the request to the first byte of the response; `None` for the same limit as for the
    /// whole response.
    #[serde(skip_serializing_if = "Option::is_none", with = "span_above_0")]
    pub first_byte: Option<Duration>,
    /// Maximum time from sending the request to the end of the response body, or to the end of the head of a stream's
    /// response; `None` for the default ([`Load::response_timeout`](super::Load::response_timeout)).
    #[serde(skip_serializing_if = "Option::is_none", with = "span_above_0")]
    pub response: Option<Duration>,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: defaults::CONNECT_TIMEOUT,
            tls: defaults::TLS_TIMEOUT,
            first_byte: None,
            response: None,
        }
    }
}

/// Retries of a failed request, as done by a retrying client. The row keeps the first outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Retry {
    /// Maximum number of retries of a request.
    pub times: u32,
    /// Time from a failure to the next attempt.
    #[serde(default, with = "span")]
    pub delay: Duration,
}
