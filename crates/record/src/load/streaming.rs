//! Requests whose response is a stream: a sequence of events that the protocol itself ends. `load::answer_stream`
//! defines these final events.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use regex::bytes::Regex;
use serde::{Deserialize, Serialize};

use super::defaults;
use crate::LengthLaw;
use crate::names::{as_text, named};
use crate::units::{at_least_1, span_above_0};

named! {
    /// Protocol of a stream.
    pub enum StreamKind else UnknownStreamKind "{0:?} is not openai, anthropic, sse, ndjson or bytes" {
        /// OpenAI's API as server-sent events: chat completions, completions, or responses.
        OpenAi = "openai",
        /// Anthropic's messages as server-sent events.
        Anthropic = "anthropic",
        /// Any server-sent events.
        Sse = "sse",
        /// JSON, one value per line.
        Ndjson = "ndjson",
        /// Any bytes, such as a download: each read is an event.
        Bytes = "bytes",
    }
}

impl StreamKind {
    /// Returns the default finish reasons that count as success; empty if events of this kind name no reason.
    pub const fn finish_reasons(self) -> &'static [&'static str] {
        match self {
            Self::OpenAi => &defaults::FINISH_REASONS,
            Self::Anthropic => &defaults::STOP_REASONS,
            Self::Sse | Self::Ndjson | Self::Bytes => &[],
        }
    }
}

/// Settings for requests whose response is a stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StreamSettings {
    /// Protocol of the stream.
    pub kind: StreamKind,
    /// Pattern of the event that ends a stream, in place of the kind's own terminal events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<EndPattern>,
    /// Finish reasons that count as success; `None` for the kind's default ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish_reasons: Option<BTreeSet<String>>,
    /// Maximum time without any byte after the head of the response.
    #[serde(default = "stall_timeout", with = "span_above_0")]
    pub stall_timeout: Duration,
    /// Law of the lengths to request from the sample server; `None` if the server decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length: Option<LengthLaw>,
    /// Maximum number of open streams; `None` for the default, or fewer if the machine lacks descriptors or ports.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "at_least_1")]
    pub max_open: Option<usize>,
}

fn stall_timeout() -> Duration {
    defaults::STALL_TIMEOUT
}

impl StreamSettings {
    /// Creates the default settings for a kind.
    pub fn new(kind: StreamKind) -> Self {
        Self {
            kind,
            end: None,
            finish_reasons: None,
            stall_timeout: stall_timeout(),
            length: None,
            max_open: None,
        }
    }

    /// Returns true if this finish reason counts as success.
    pub fn is_success(&self, finish_reason: &str) -> bool {
        match &self.finish_reasons {
            Some(reasons) => reasons.contains(finish_reason),
            None => self.kind.finish_reasons().contains(&finish_reason),
        }
    }

    /// Returns the reason why the settings contradict each other; `None` if they do not.
    pub fn fault(&self) -> Option<&'static str> {
        match self.kind {
            StreamKind::Bytes if self.end.is_some() => {
                Some("a stream of bytes has no events to match: remove the end or choose another kind")
            }
            kind if self.finish_reasons.is_some() && kind.finish_reasons().is_empty() => {
                Some("only openai and anthropic have finish reasons: remove them or choose another kind")
            }
            _ => None,
        }
    }
}

/// Regular expression that matches the data of the last event of a stream.
#[derive(Clone, Debug)]
pub struct EndPattern(Regex);

/// Error for text that is not a valid pattern for a last event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot find the end of a stream with {pattern:?}: {why}")]
pub struct NotAnEndPattern {
    pattern: String,
    why: String,
}

impl EndPattern {
    /// Returns true if the data belongs to a stream's last event.
    pub fn matches(&self, data: &[u8]) -> bool {
        self.0.is_match(data)
    }
}

impl FromStr for EndPattern {
    type Err = NotAnEndPattern;

    fn from_str(pattern: &str) -> Result<Self, NotAnEndPattern> {
        let bad = |why: &str| NotAnEndPattern { pattern: pattern.to_owned(), why: why.to_owned() };
        let regex = Regex::new(pattern).map_err(|error| bad(&reason(&error)))?;
        if regex.is_match(b"") {
            return Err(bad("it matches every event: require some text, as in \"done\": *true"));
        }
        Ok(Self(regex))
    }
}

/// Returns the reason why a pattern cannot be compiled, on one line.
fn reason(error: &regex::Error) -> String {
    let text = error.to_string();
    let last = text.lines().last().unwrap_or_default();
    last.strip_prefix("error: ").unwrap_or(last).to_owned()
}

impl fmt::Display for EndPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_str())
    }
}

impl PartialEq for EndPattern {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

impl Eq for EndPattern {}

as_text!(EndPattern);

#[cfg(test)]
mod tests {
    use std::iter;

    use serde_json::json;

    use super::*;

    #[test]
    fn settings_parse_as_in_scenarios() {
        let read = |json: serde_json::Value| serde_json::from_value::<StreamSettings>(json);
        let short = read(json!({"kind": "openai"})).unwrap();
        assert_eq!(short, StreamSettings::new(StreamKind::OpenAi));
        assert_eq!(serde_json::to_value(&short).unwrap(), json!({"kind": "openai", "stallTimeout": "60s"}));
        let full = json!({
            "kind": "ndjson", "end": "\"done\": *true", "stallTimeout": "5s", "maxOpen": 20_000,
            "finishReasons": ["stop"],
        });
        let settings = read(full.clone()).unwrap();
        assert_eq!(serde_json::to_value(&settings).unwrap(), full);
        assert!(settings.end.unwrap().matches(b"{\"done\": true}"));
        for wrong in [
            json!({}),
            json!({"kind": "udp"}),
            json!({"kind": "sse", "maxOpen": 0}),
            json!({"kind": "sse", "stallTimeout": "0s"}),
            json!({"kind": "sse", "end": "("}),
            json!({"kind": "sse", "reconnect": true}),
        ] {
            assert!(read(wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn end_pattern_must_not_match_everything() {
        let refused = |pattern: &str| pattern.parse::<EndPattern>().unwrap_err().to_string();
        assert!(refused(".*").ends_with("it matches every event: require some text, as in \"done\": *true"));
        assert!(refused("").contains("matches every event"));
        assert_eq!(refused("done("), "cannot find the end of a stream with \"done(\": unclosed group");
    }

    #[test]
    fn finish_reasons_have_defaults_per_kind() {
        let settings = StreamSettings::new(StreamKind::OpenAi);
        assert!(settings.is_success("tool_calls") && !settings.is_success("abort"));
        assert!(StreamSettings::new(StreamKind::Anthropic).is_success("end_turn"));
        let own = StreamSettings { finish_reasons: Some(iter::once("abort".into()).collect()), ..settings };
        assert!(own.is_success("abort") && !own.is_success("stop"));
    }

    #[test]
    fn settings_report_contradictions() {
        let reasons =
            |kind| StreamSettings { finish_reasons: Some(BTreeSet::new()), ..StreamSettings::new(kind) };
        let end = |kind| StreamSettings { end: Some("x".parse().unwrap()), ..StreamSettings::new(kind) };
        assert_eq!(reasons(StreamKind::Anthropic).fault(), None);
        assert!(reasons(StreamKind::Sse).fault().unwrap().starts_with("only openai and anthropic"));
        assert_eq!(end(StreamKind::OpenAi).fault(), None);
        assert!(end(StreamKind::Bytes).fault().unwrap().starts_with("a stream of bytes has no events"));
    }
}
