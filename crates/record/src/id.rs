//! The request id, used to join the records from both ends.

use std::fmt;
use std::str::FromStr;

use serde::ser::SerializeStruct;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::names::as_text;

/// Name of the request header that carries a [`RequestId`].
pub const ID_HEADER: &str = "rolldrop-id";

/// Maximum length of an id in bytes, not counting the sequence number. Ids come from the network, so they need a limit.
const MAX_NAME_BYTES: usize = 128;
/// Number of characters in a random run id: 60 bits.
const RUN_CHARACTERS: usize = 12;
/// Characters of a random run id, five bits each (Crockford's base 32).
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// Random part shared by all ids of one run. It cannot be guessed, so requests from strangers are not attributed to the
/// run.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RunId(Box<str>);

/// Error for text that is not a [`RunId`].
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is not a run id: use at most 64 letters a to z and digits")]
pub struct BadRunId(String);

impl RunId {
    /// Generates a random run id.
    pub fn random() -> Self {
        let mut bits: u64 = rand::random();
        let mut next = || {
            let character = ALPHABET[usize::try_from(bits % 32).unwrap_or(0)];
            bits /= 32;
            char::from(character)
        };
        let text: String = (0..RUN_CHARACTERS).map(|_| next()).collect();
        Self(text.into())
    }

    /// Returns the id's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for RunId {
    type Err = BadRunId;

    fn from_str(text: &str) -> Result<Self, BadRunId> {
        let is_good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        match (1..=64).contains(&text.len()) && text.bytes().all(is_good) {
            true => Ok(Self(text.into())),
            false => Err(BadRunId(text.to_owned())),
        }
    }
}

as_text!(RunId);

/// Identifier of a request at both ends: `<run>-<source>-<seq>`, split at the first and the last dash.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RequestId {
    /// The `<run>-<source>` part.
    name: Box<str>,
    /// Length of the run part in bytes.
    run_bytes: u8,
    /// Number of the request within its source, from 0.
    pub seq: u64,
}

impl RequestId {
    /// Creates the id of a request in a run. `source` may contain dashes.
    pub fn new(run: &RunId, source: &str, seq: u64) -> Self {
        Self::joined(run.as_str(), source, seq)
    }

    fn joined(run: &str, source: &str, seq: u64) -> Self {
        // The run part is shorter than the maximum id length.
        let run_bytes = u8::try_from(run.len()).unwrap_or(u8::MAX);
        Self { name: format!("{run}-{source}").into(), run_bytes, seq }
    }

    /// Creates an id from its three recorded parts.
    ///
    /// # Errors
    /// Fails if the parts do not form an id.
    pub fn of_parts(run: &str, source: &str, seq: u64) -> Result<Self, BadRequestId> {
        let id = Self::joined(run, source, seq);
        let is_run = !run.is_empty() && !run.contains('-');
        let is_good = is_run && !source.is_empty() && id.name.len() <= MAX_NAME_BYTES;
        if is_good { Ok(id) } else { Err(BadRequestId(id.to_string())) }
    }

    /// Returns the run part of the id.
    pub fn run(&self) -> &str {
        &self.name[..usize::from(self.run_bytes)]
    }

    /// Returns the name of the load source that sent the request.
    pub fn source(&self) -> &str {
        &self.name[usize::from(self.run_bytes) + 1..]
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.name, self.seq)
    }
}

/// Error for a `rolldrop-id` that is not a [`RequestId`].
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is not a request id of the form RUN-SOURCE-SEQ")]
pub struct BadRequestId(String);

impl FromStr for RequestId {
    type Err = BadRequestId;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let bad = || BadRequestId(s.chars().take(MAX_NAME_BYTES).collect());
        let (name, seq) = s.rsplit_once('-').ok_or_else(bad)?;
        let run_bytes = name.find('-').filter(|bytes| *bytes > 0).ok_or_else(bad)?;
        let is_number = seq.bytes().all(|byte| byte.is_ascii_digit());
        if !is_number || name.ends_with('-') || name.len() > MAX_NAME_BYTES {
            return Err(bad());
        }
        let run_bytes = u8::try_from(run_bytes).map_err(|_| bad())?;
        Ok(Self { name: name.into(), run_bytes, seq: seq.parse().map_err(|_| bad())? })
    }
}

/// Serializes as an object with the id's parts, as in a proxy's row stream.
impl Serialize for RequestId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut parts = serializer.serialize_struct("RequestId", 3)?;
        parts.serialize_field("run", self.run())?;
        parts.serialize_field("source", self.source())?;
        parts.serialize_field("seq", &self.seq)?;
        parts.end()
    }
}

impl<'de> Deserialize<'de> for RequestId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Parts {
            run: String,
            source: String,
            seq: u64,
        }

        let Parts { run, source, seq } = Parts::deserialize(deserializer)?;
        Self::of_parts(&run, &source, seq).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parts(id: &str) -> Option<(String, String, u64)> {
        let id: RequestId = id.parse().ok()?;
        Some((id.run().to_owned(), id.source().to_owned(), id.seq))
    }

    #[test]
    fn request_id_splits_at_outer_dashes() {
        let some = |run: &str, source: &str, seq| Some((run.to_owned(), source.to_owned(), seq));
        assert_eq!(parts("k3v9x2ab-load-node-2-17"), some("k3v9x2ab", "load-node-2", 17));
        assert_eq!(parts("load-0-17"), some("load", "0", 17));
        for bad in [
            "",
            "17",
            "-17",
            "load-0-",
            "load-0-x",
            "load-0-+1",
            "-a-1",
            "a--1",
            "a-1",
            "a- 1",
            "load-0-99999999999999999999",
        ] {
            assert!(bad.parse::<RequestId>().is_err(), "{bad}");
        }
        let long = format!("run-{}", "x".repeat(MAX_NAME_BYTES - 4));
        assert!(format!("{long}-1").parse::<RequestId>().is_ok());
        assert!(format!("{long}x-1").parse::<RequestId>().is_err());
    }

    #[test]
    fn run_id_is_random_and_has_no_dash() {
        let run = RunId::random();
        assert_eq!(run.as_str().len(), RUN_CHARACTERS);
        assert_eq!(run.as_str().parse(), Ok(run.clone()));
        assert_ne!(run, RunId::random());
        for bad in ["", "a-b", "A", "a b", "\u{e4}"] {
            assert!(bad.parse::<RunId>().is_err(), "{bad}");
        }
        let id = RequestId::new(&run, "load-3", 41);
        assert_eq!((id.run(), id.source(), id.seq), (run.as_str(), "load-3", 41));
        assert_eq!(id.to_string(), format!("{run}-load-3-41"));
    }

    #[test]
    fn request_id_in_json_needs_run() {
        assert!(serde_json::from_str::<RequestId>(r#"{"source":"load-0","seq":7}"#).is_err());
        assert!(serde_json::from_str::<RequestId>(r#"{"run":"a-b","source":"x","seq":7}"#).is_err());
    }

    proptest! {
        #[test]
        fn parsed_request_id_round_trips(text in "[a-z0-9-]{0,20}", any in ".{0,40}") {
            for text in [text, any] {
                if let Ok(id) = text.parse::<RequestId>() {
                    let again = RequestId::of_parts(id.run(), id.source(), id.seq);
                    prop_assert_eq!(again.as_ref(), Ok(&id));
                    let json = serde_json::to_string(&id).unwrap();
                    prop_assert_eq!(serde_json::from_str::<RequestId>(&json).unwrap(), id);
                }
            }
        }
    }
}
