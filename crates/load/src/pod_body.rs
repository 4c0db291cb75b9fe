//! Finds the pod's name in a response body by a pattern, if no header names the pod.
//!
//! Only the beginning of a body is searched, and only once, after the body has ended, because until then the next bytes
//! may belong to the name. For the same reason, a match at the very end of the searched bytes does not count if the
//! body is longer or was cut off there. Without a pattern, no part of a body is kept.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use regex::bytes::Regex;
use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Hir, HirKind};

use super::answer_headers::PodName;

/// Maximum number of bytes of a body that are searched.
pub(super) const MAX_SEARCHED: usize = 16 * 1024;

/// Regular expression for bodies. Its first group, or the whole match if it has no group, is the pod's name.
#[derive(Clone, Debug)]
pub struct PodBody {
    regex: Regex,
}

/// Error for a pattern that cannot name pods.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot find pod names with {pattern:?}: {why}")]
pub struct NotAPodBody {
    pattern: String,
    why: String,
}

impl PodBody {
    /// Returns the pattern as it was given.
    pub fn as_str(&self) -> &str {
        self.regex.as_str()
    }

    /// Returns the name found in the beginning of a body; `is_whole` is false if the body was cut off.
    pub(super) fn name_in(&self, beginning: &Beginning, is_whole: bool) -> Option<Arc<str>> {
        let found = self.regex.captures(&beginning.bytes)?;
        let may_go_on = !is_whole || beginning.is_cut;
        if may_go_on && found.get(0)?.end() == beginning.bytes.len() {
            return None;
        }
        let name = found.get(usize::from(found.len() > 1))?.as_bytes().trim_ascii();
        let mut pod = PodName::default();
        // Same rule as for a header value.
        if !name.iter().any(u8::is_ascii_control) {
            pod.add(name);
        }
        pod.take()
    }
}

impl FromStr for PodBody {
    type Err = NotAPodBody;

    fn from_str(pattern: &str) -> Result<Self, NotAPodBody> {
        let bad = |why: String| NotAPodBody { pattern: pattern.to_owned(), why };
        let hir = ParserBuilder::new().utf8(false).build().parse(pattern);
        let hir = hir.map_err(|error| bad(reason(&error)))?;
        let has_group = hir.properties().explicit_captures_len() > 0;
        let (what, name) = match has_group {
            true => ("its first group", first_group(&hir)),
            false => ("it", Some(&hir)),
        };
        if name.is_none_or(|name| name.properties().minimum_len() == Some(0)) {
            return Err(bad(format!(
                "{what} can match an empty string: require a character, as in pod=(\\S+)"
            )));
        }
        let regex = Regex::new(pattern).map_err(|_| bad("its compiled form is too large".to_owned()))?;
        Ok(Self { regex })
    }
}

/// Returns the reason why a pattern cannot be parsed, on one line.
fn reason(error: &regex_syntax::Error) -> String {
    let (kind, span) = match error {
        regex_syntax::Error::Parse(error) => (error.kind().to_string(), error.span()),
        regex_syntax::Error::Translate(error) => (error.kind().to_string(), error.span()),
        other => return other.to_string(),
    };
    format!("{kind}, at character {}", span.start.column)
}

/// Returns the contents of the first group.
fn first_group(hir: &Hir) -> Option<&Hir> {
    match hir.kind() {
        HirKind::Capture(group) if group.index == 1 => Some(&group.sub),
        HirKind::Capture(group) => first_group(&group.sub),
        HirKind::Repetition(repetition) => first_group(&repetition.sub),
        HirKind::Concat(parts) | HirKind::Alternation(parts) => parts.iter().find_map(first_group),
        HirKind::Empty | HirKind::Literal(_) | HirKind::Class(_) | HirKind::Look(_) => None,
    }
}

impl PartialEq for PodBody {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl fmt::Display for PodBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Beginning of a body that will be searched for the pod's name.
#[derive(Debug, Default)]
pub(super) struct Beginning {
    bytes: Vec<u8>,
    /// True if the body is longer than the part kept.
    is_cut: bool,
}

impl Beginning {
    /// Adds the next bytes of the body.
    pub(super) fn add(&mut self, bytes: &[u8]) {
        let room = MAX_SEARCHED - self.bytes.len();
        self.is_cut |= bytes.len() > room;
        self.bytes.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Finds the name in a whole body that arrives in pieces of this many bytes.
    fn name(pattern: &str, body: &[u8], piece: usize) -> Option<String> {
        let mut beginning = Beginning::default();
        body.chunks(piece).for_each(|piece| beginning.add(piece));
        let pattern: PodBody = pattern.parse().unwrap();
        pattern.name_in(&beginning, true).map(|name| name.to_string())
    }

    #[test]
    fn first_matching_group_names_pod() {
        let body = br#"{"os":"linux","hostname":"web-7d9f","before":{"hostname":"web-0"}}"#;
        for piece in 1..=body.len() {
            assert_eq!(name(r#""hostname":"([^"]+)"#, body, piece).as_deref(), Some("web-7d9f"), "{piece}");
            assert_eq!(name("web-[0-9a-f]+", body, piece).as_deref(), Some("web-7d9f"), "no group");
        }
        assert_eq!(
            name(r"(?m)^Hostname: (.+)$", b"IP: ::1\nHostname:   web-1 \r\n", 7).as_deref(),
            Some("web-1")
        );
        assert_eq!(name("pod=(\\S+)", b"pod=web-1", 3).as_deref(), Some("web-1"), "up to the body's end");
    }

    #[test]
    fn unusable_match_names_no_pod() {
        let long = [b"pod=", &[b'x'; 257][..]].concat();
        for body in [&b""[..], b"pod=", b"pod= \n", b"pod=\xff\xfe", b"pod=a\x1b[2Jb", b"other", &long] {
            assert_eq!(name("(?s-u)pod=(.+)", body, 1), None, "{body:?}");
        }
        assert_eq!(name("a|pod=(b)", b"a", 1), None, "its group is not part of the match");
    }

    #[test]
    fn search_stops_at_maximum_body_length() {
        let named = |before: usize, after: &str| {
            let body = format!("{}pod=web-1{after}", "x".repeat(before));
            [1000, MAX_SEARCHED, body.len()].map(|piece| name("pod=([a-z0-9-]+)", body.as_bytes(), piece))
        };
        let last = MAX_SEARCHED - "pod=web-1".len();
        let found = || Some("web-1".to_owned());
        assert_eq!(named(last - 1, "!!!"), [(); 3].map(|()| found()));
        assert_eq!(named(last, ""), [(); 3].map(|()| found()), "the body ends after the name");
        assert_eq!(named(last, "2"), [const { None }; 3], "this is web-12, but its end was not searched");
        assert_eq!(named(last + 1, ""), [const { None }; 3]);
        assert_eq!(named(MAX_SEARCHED, ""), [const { None }; 3]);
    }

    #[test]
    fn truncated_body_needs_complete_match() {
        let named = |body: &[u8]| {
            let mut beginning = Beginning::default();
            beginning.add(body);
            "pod=(\\S+)".parse::<PodBody>().unwrap().name_in(&beginning, false)
        };
        assert_eq!(named(b"pod=web-1\nand").as_deref(), Some("web-1"));
        assert_eq!(named(b"pod=web-1"), None);
        assert_eq!(named(b""), None);
    }

    #[test]
    fn pattern_must_compile_and_match_text() {
        let error = |pattern: &str| pattern.parse::<PodBody>().unwrap_err().to_string();
        assert_eq!(
            error("pod=(\\S+"),
            "cannot find pod names with \"pod=(\\\\S+\": unclosed group, at character 5"
        );
        assert!(error("a{2,1}").contains("invalid repetition count range"), "{}", error("a{2,1}"));
        assert!(error("\\p{Nobody}").contains("Unicode property not found"), "{}", error("\\p{Nobody}"));
        assert!(error("(\\w{1000}){1000}").ends_with("its compiled form is too large"));
        let empty = "can match an empty string: require a character, as in pod=(\\S+)";
        for pattern in ["", "a*", "^|a", "\\b"] {
            assert!(error(pattern).ends_with(&format!(": it {empty}")), "{}", error(pattern));
        }
        for pattern in ["pod=(\\S*)", "pod=(?P<name>a?)", "((a|b)*)c(d)", "(a){0}(b)", "(?:(a|)b)+"] {
            assert!(error(pattern).ends_with(&format!(": its first group {empty}")), "{}", error(pattern));
        }
        for pattern in ["pod=(\\S+)", "a*(b)", "(?:x(a+))?", "\\w+", "(?-u)\\xff(\\w+)"] {
            let parsed: PodBody = pattern.parse().unwrap();
            assert_eq!(parsed.to_string(), pattern);
        }
    }
}
