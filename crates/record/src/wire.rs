//! Transfer of a proxy's records: the lines of its row stream.
//!
//! The admin port responds to `GET /rows?from=N` with newline-delimited JSON that continues until the proxy exits. Rows
//! are numbered from 0 as they are recorded, and N (default 0) is the number of the first row to send. The proxy keeps
//! unsent rows and the most recently sent ones, so a reader that counts its rows and reconnects with that number gets
//! every row once. A restarted proxy is a different recorder: it counts from 0, with its own clock. `&of=T` identifies
//! the recorder that N refers to, by its `started_ns`; any other recorder sends everything it has.
//!
//! Only a reader that sends [`COLLECTOR_HEADER`] collects the rows. Anyone else who reads them changes nothing.

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
/// Path of the clock on the admin port; the response is a [`ClockAnswer`].
pub const CLOCK_PATH: &str = "/clock";
/// Text of the admin port's response to a request without a token.
pub const TOKEN_WANTED: &str = "the admin port needs a token";
/// Header with the admin port's token. An alternative to `Authorization: Bearer`, which the API server does not forward
/// to pods.
pub const TOKEN_HEADER: &str = "rolldrop-token";

/// Header of a request for the row stream whose reader collects the rows. The proxy keeps rows for such a reader, and
/// waits for it before it exits.
pub const COLLECTOR_HEADER: &str = "rolldrop-collector";

/// The secret of the admin port. No output contains it.
#[derive(Clone, PartialEq, Eq)]
pub struct AdminToken(String);

/// Error for text that is not a token, because a header cannot contain it.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("a token is one word of printable ASCII characters")]
pub struct BadToken;

impl FromStr for AdminToken {
    type Err = BadToken;

    /// Ignores surrounding white space, such as the newline at the end of a file.
    fn from_str(text: &str) -> Result<Self, BadToken> {
        let text = text.trim();
        let good = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        good.then(|| Self(text.to_owned())).ok_or(BadToken)
    }
}

impl AdminToken {
    /// Creates a token from bytes, as hexadecimal digits.
    pub fn of_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Returns the token itself.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns true if `given` is the token. Compares HMAC tags in constant time so that the timing does not reveal
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
#[expect(missing_docs, reason = "each line describes its fields")]
pub enum ProxyLine {
    /// The first line: the proxy's source name, its pod, its start time on its own clock (which distinguishes the
    /// proxies of one pod), and the number of the next row. That number is higher than the requested one if the proxy
    /// no longer has the rows in between. The line is repeated wherever rows are missing.
    Hello { source: String, pod: String, started_ns: Stamp, next: u64 },
    /// A request ended.
    Row(ServedRow),
    /// A response is still being passed on: the row so far, with the end `open`. These rows have no numbers. Every
    /// stream lists them when it begins and again at intervals, always before the row of the request's end.
    Open(ServedRow),
    /// The numbers of rows recorded so far and of requests in flight, sent when they change. From the last of these
    /// lines, a disconnected reader knows which rows are missing.
    State { recorded: u64, in_flight: u64 },
    /// The pod's termination reached a phase at this time on the proxy's clock. Every stream contains all phases.
    Phase { phase: ProxyPhase, t_ns: Stamp },
    /// Pod state from the proxy's watch of its own pod, with the time on the proxy's clock. Every stream contains all
    /// of these lines.
    Pod { t_ns: Stamp, seen: PodEvent },
    /// The last line, after a complete transfer, with the total number of rows recorded by the proxy.
    End { recorded: u64 },
}

impl ProxyLine {
    /// Parses a line. The function is not generic, so it is compiled with this crate's optimisations; readers parse
    /// thousands of rows per second.
    ///
    /// # Errors
    /// Fails if the text is not a line of the row stream.
    pub fn read(line: &str) -> serde_json::Result<Self> {
        serde_json::from_str(line)
    }

    /// Returns true if a line contains a row, even one that cannot be parsed.
    pub fn is_row(line: &str) -> bool {
        serde_json::from_str::<BTreeMap<&str, IgnoredAny>>(line).is_ok_and(|line| line.contains_key("row"))
    }
}

/// Response to a request for [`CLOCK_PATH`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockAnswer {
    /// Time of the response, on the proxy's clock.
    pub now_ns: Stamp,
    /// Time the proxy started, on its own clock.
    pub started_ns: Stamp,
    /// Number of rows recorded so far.
    pub recorded: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_is_single_word_and_redacted() {
        let token: AdminToken = "s3cret\n".parse().unwrap();
        assert_eq!((token.as_str(), format!("{token:?}").as_str()), ("s3cret", "AdminToken(..)"));
        for text in ["", "\n", "two words", "caf\u{e9}"] {
            assert_eq!(text.parse::<AdminToken>(), Err(BadToken), "{text:?}");
        }
    }

    #[test]
    fn token_comparison_requires_exact_match() {
        let token: AdminToken = "s3cret".parse().unwrap();
        assert!(token.is(b"s3cret"));
        for other in ["", "s3cre", "s3cret ", "s3crets", "S3cret"] {
            assert!(!token.is(other.as_bytes()), "{other:?}");
        }
    }
}
