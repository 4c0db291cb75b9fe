//! How a proxy hands over its records: the lines of its row stream.
//!
//! The admin port answers `GET /rows?from=N` with newline-delimited JSON that goes
//! on until the proxy exits. Rows are numbered from 0 as they are recorded, and
//! N (default 0) is the number of the first one wanted. The proxy keeps the
//! rows that were never sent and the last ones that were, so a reader that counts
//! what it has and comes back with that number gets every row once.
//! A proxy that was restarted is another recorder: it counts from 0, with its own clock.
//! `&of=T` names the one that N is a number of, by its `started_ns`; any other gives all it has.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use ring::hmac;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use super::event::{PodEvent, ProxyPhase};
use super::{ServedRow, Stamp};

/// Path of the row stream on the admin port.
pub const ROWS_PATH: &str = "/rows";
/// Path of the clock on the admin port; the answer is a [`ClockAnswer`].
pub const CLOCK_PATH: &str = "/clock";
/// What an admin port answers without a token.
pub const TOKEN_WANTED: &str = "the admin port asks for a token";
/// The header with the admin port's token, beside `Authorization: Bearer`, which the API server
/// keeps to itself when it passes a request on to a pod.
pub const TOKEN_HEADER: &str = "rolldrop-token";

/// The secret of the admin port. No output shows it.
#[derive(Clone, PartialEq, Eq)]
pub struct AdminToken(String);

/// A text that cannot be sent in a header.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("a token is one word of printable ASCII characters")]
pub struct BadToken;

impl FromStr for AdminToken {
    type Err = BadToken;

    /// White space around it, such as the newline of a file, is ignored.
    fn from_str(text: &str) -> Result<Self, BadToken> {
        let text = text.trim();
        let good = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        good.then(|| Self(text.to_owned())).ok_or(BadToken)
    }
}

impl AdminToken {
    /// Bytes as a token, in hexadecimal digits.
    pub fn of_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// The token itself.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this is the token. Compares tags under one key in constant time, so that the time reveals nothing about
    /// where the two differ.
    pub fn is(&self, given: &[u8]) -> bool {
        let key = hmac::Key::new(hmac::HMAC_SHA256, self.0.as_bytes());
        let own = hmac::sign(&key, self.0.as_bytes());
        hmac::verify(&key, given, own.as_ref()).is_ok()
    }
}

impl fmt::Debug for AdminToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AdminToken(..)")
    }
}

/// One line of the row stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProxyLine {
    /// The first line: the proxy, and the number of the next row. Repeated where rows are missing.
    Hello {
        /// The proxy's source name.
        source: String,
        /// Its pod.
        pod: String,
        /// When it started, by its own clock: no other one of this pod has the same.
        started_ns: Stamp,
        /// The number of the next row. It is above the one asked for if the rows
        /// in between are no longer kept.
        next: u64,
    },
    /// A request ended.
    Row(ServedRow),
    /// The counters, sent when they change: a reader that is cut off knows from the last ones what is missing.
    State {
        /// Rows recorded so far.
        recorded: u64,
        /// Requests under way.
        in_flight: u64,
    },
    /// A phase of the pod's termination was passed. Every stream has all of them.
    Phase {
        /// The phase.
        phase: ProxyPhase,
        /// When, on the proxy's clock.
        t_ns: Stamp,
    },
    /// The proxy's watch of its own pod showed it. Every stream has all of them.
    Pod {
        /// When, on the proxy's clock.
        t_ns: Stamp,
        /// What it showed.
        seen: PodEvent,
    },
    /// The last line: the hand-over is complete.
    End {
        /// Rows recorded in the proxy's whole life.
        recorded: u64,
    },
}

impl ProxyLine {
    /// Reads a line. Not generic: a reader of thousands of rows a second has it with this crate's optimisations.
    ///
    /// # Errors
    /// When it is no such line.
    pub fn read(line: &str) -> serde_json::Result<Self> {
        serde_json::from_str(line)
    }

    /// Whether a line holds a row, also one that cannot be read.
    pub fn is_row(line: &str) -> bool {
        serde_json::from_str::<BTreeMap<&str, IgnoredAny>>(line).is_ok_and(|line| line.contains_key("row"))
    }
}

/// The answer of [`CLOCK_PATH`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockAnswer {
    /// The proxy's clock when it answered.
    pub now_ns: Stamp,
    /// When it started.
    pub started_ns: Stamp,
    /// Rows recorded so far.
    pub recorded: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_one_word_and_is_not_shown() {
        let token: AdminToken = "s3cret\n".parse().unwrap();
        assert_eq!((token.as_str(), format!("{token:?}").as_str()), ("s3cret", "AdminToken(..)"));
        for text in ["", "\n", "two words", "caf\u{e9}"] {
            assert_eq!(text.parse::<AdminToken>(), Err(BadToken), "{text:?}");
        }
    }

    #[test]
    fn a_token_is_known_as_a_whole_only() {
        let token: AdminToken = "s3cret".parse().unwrap();
        assert!(token.is(b"s3cret"));
        for other in ["", "s3cre", "s3cret ", "s3crets", "S3cret"] {
            assert!(!token.is(other.as_bytes()), "{other:?}");
        }
    }
}
