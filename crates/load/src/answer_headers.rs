//! Facts from response headers: the pod that responded, the gateways on the path, and selected headers of error
//! responses.

use std::collections::BTreeMap;
use std::str;
use std::sync::Arc;

use http::HeaderName;
use serde_json::{Map, Value};

use super::field_list::FieldList;
use rolldrop_record::event::AnswerHeaders;

/// Maximum length of a recorded header value, in bytes.
const MAX_VALUE: usize = 256;
/// Maximum number of headers kept per response.
const MAX_KEPT: usize = 32;
/// Maximum number of different values that are counted separately per header.
const MAX_VALUES: usize = 32;
/// Maximum number of header fields in a head.
pub(super) const MAX_FIELDS: usize = 128;
/// Name under which all further values are counted.
const OTHER_VALUES: &str = "(other)";

/// Response headers to look for.
#[derive(Clone, Debug)]
pub(super) struct WantedHeaders {
    /// Header that names the pod.
    pub(super) pod: HeaderName,
    /// Headers to keep from responses that are not ok; a name may end in `*`, which matches any suffix.
    kept: Vec<String>,
}

/// A name that no response header can have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a valid header name: use one such as x-served-by")]
pub struct NotAHeader(String);

impl WantedHeaders {
    /// Creates a selection of headers with these names.
    ///
    /// # Errors
    /// Returns an error if a name is not a valid header name.
    pub(super) fn new(pod: &str, kept: &[String]) -> Result<Self, NotAHeader> {
        let name =
            |name: &str| HeaderName::from_bytes(name.as_bytes()).map_err(|_| NotAHeader(name.to_owned()));
        for kept in kept.iter().filter(|kept| *kept != "*") {
            name(kept.strip_suffix('*').unwrap_or(kept))?;
        }
        Ok(Self { pod: name(pod)?, kept: kept.to_vec() })
    }

    fn keeps(&self, name: &str) -> bool {
        self.kept.iter().any(|kept| match kept.strip_suffix('*') {
            Some(prefix) => name.get(..prefix.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(prefix)),
            None => name.eq_ignore_ascii_case(kept),
        })
    }

    /// Returns the selected fields as a JSON object; `None` if there are none.
    fn keep<'a>(&self, fields: impl Iterator<Item = (&'a str, &'a [u8])>) -> Option<Arc<str>> {
        let mut kept = Map::new();
        for (name, value) in fields {
            if !self.keeps(name) {
                continue;
            }
            let (name, value) = (name.to_ascii_lowercase(), shown(value));
            if let Some(Value::String(earlier)) = kept.get_mut(&name) {
                earlier.push_str(", ");
                earlier.push_str(&value);
            } else if kept.len() < MAX_KEPT {
                kept.insert(name, Value::String(value));
            }
        }
        (!kept.is_empty()).then(|| Value::Object(kept).to_string().into())
    }

    /// Returns the selected headers of an HTTP/2 response.
    pub(super) fn kept_of(&self, headers: &FieldList) -> Option<Arc<str>> {
        let text = |(name, value)| Some((str::from_utf8(name).ok()?, value));
        self.keep(headers.iter().filter_map(text))
    }

    /// Returns the selected headers of an HTTP/1 response with this head.
    pub(super) fn kept_of_head(&self, head: &[u8]) -> Option<Arc<str>> {
        let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
        let mut response = httparse::Response::new(&mut fields);
        // The head has already been parsed.
        response.parse(head).ok()?;
        self.keep(response.headers.iter().map(|field| (field.name, field.value)))
    }
}

/// Returns the beginning of a value, as text.
fn shown(value: &[u8]) -> String {
    let begin = value.get(..MAX_VALUE).unwrap_or(value);
    String::from_utf8_lossy(begin).into_owned()
}

/// Value of the pod header in one response. Each proxy on the path may append its own field; all fields are recorded,
/// in order.
#[derive(Default)]
pub(super) struct PodName(Option<Arc<str>>);

impl PodName {
    /// Adds another field with this name. An app and its sidecar may both name their pod.
    pub(super) fn add(&mut self, value: &[u8]) {
        let Ok(value) = str::from_utf8(value) else { return };
        if value.is_empty() {
            return;
        }
        self.0 = match self.0.take() {
            None if value.len() <= MAX_VALUE => Some(value.into()),
            Some(earlier) if earlier.split(", ").any(|before| before == value) => Some(earlier),
            Some(earlier) if earlier.len() + value.len() < MAX_VALUE => {
                Some(format!("{earlier}, {value}").into())
            }
            other => other,
        };
    }

    /// Returns the recorded values.
    pub(super) fn take(self) -> Option<Arc<str>> {
        self.0
    }
}

/// Response counts by value of one header. Values that are too long, or beyond the maximum number, are counted
/// together.
#[derive(Clone, Debug, Default)]
struct HeaderValueCounts {
    seen: Vec<(Box<[u8]>, u64)>,
    others: u64,
}

impl HeaderValueCounts {
    fn add(&mut self, value: Option<&[u8]>) {
        let Some(value) = value else { return };
        let known = self.seen.len();
        match self.seen.iter_mut().find(|(seen, _)| **seen == *value) {
            Some((_, count)) => *count += 1,
            None if known < MAX_VALUES && value.len() <= MAX_VALUE => self.seen.push((value.into(), 1)),
            None => self.others += 1,
        }
    }

    fn counts(&self) -> BTreeMap<String, u64> {
        let mut counts = BTreeMap::new();
        for (value, count) in &self.seen {
            *counts.entry(shown(value)).or_default() += count;
        }
        if self.others > 0 {
            *counts.entry(OTHER_VALUES.to_owned()).or_default() += self.others;
        }
        counts
    }
}

/// Header statistics for the responses of one target, from one worker.
#[derive(Clone, Debug, Default)]
pub(super) struct Answers {
    answers: u64,
    server: HeaderValueCounts,
    via: HeaderValueCounts,
    changed: u64,
}

impl Answers {
    /// Counts a response with these headers.
    pub(super) fn count(&mut self, server: Option<&[u8]>, via: Option<&[u8]>) {
        self.answers += 1;
        self.server.add(server);
        self.via.add(via);
    }

    /// Compares the pod named by a response with `before`, the pod named by the previous response on the connection.
    pub(super) fn compare(&mut self, before: &mut Option<Arc<str>>, pod: Option<&Arc<str>>) {
        let Some(pod) = pod else { return };
        match before {
            Some(before) if before == pod => {}
            Some(_) => {
                self.changed += 1;
                *before = Some(Arc::clone(pod));
            }
            None => *before = Some(Arc::clone(pod)),
        }
    }

    /// Returns the statistics in the format of the record.
    pub(super) fn of_target(&self, target: &str) -> AnswerHeaders {
        AnswerHeaders {
            target: target.to_owned(),
            answers: self.answers,
            server: self.server.counts(),
            via: self.via.counts(),
            pods_within_connection_changed: self.changed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(kept: &[&str]) -> WantedHeaders {
        let kept: Vec<String> = kept.iter().map(|name| (*name).to_owned()).collect();
        WantedHeaders::new("rolldrop-pod", &kept).unwrap()
    }

    #[test]
    fn json_keeps_only_wanted_headers() {
        let wanted = wanted(&["Server", "via", "x-envoy-*"]);
        let head =
            b"HTTP/1.1 503 No\r\nServer: envoy\r\nX-Envoy-Response-Flags: UF\r\nVia: 1.1 a\r\nx: y\r\n\
            X-Env: n\r\nvia: 1.1 \"b\"\r\n\r\n";
        let expected = r#"{"server":"envoy","via":"1.1 a, 1.1 \"b\"","x-envoy-response-flags":"UF"}"#;
        let sorted = |text: Arc<str>| serde_json::from_str::<BTreeMap<String, String>>(&text).unwrap();
        assert_eq!(wanted.kept_of_head(head).map(sorted), Some(sorted(expected.into())));
        let mut fields = FieldList::default();
        fields.push(b"server", b"envoy");
        fields.push(b"other", b"x");
        assert_eq!(wanted.kept_of(&fields).as_deref(), Some(r#"{"server":"envoy"}"#));
        assert_eq!(wanted.kept_of_head(b"HTTP/1.1 503 No\r\nx: y\r\n\r\n"), None);
        let long = format!("HTTP/1.1 503 No\r\nserver: {}\r\n\r\n", "x".repeat(9999));
        assert!(wanted.kept_of_head(long.as_bytes()).unwrap().len() < 300);
    }

    #[test]
    fn wanted_headers_reject_invalid_names() {
        assert!(WantedHeaders::new("a b", &[]).is_err());
        assert!(WantedHeaders::new("x", &["a:*".to_owned()]).is_err());
        assert!(wanted(&["*"]).kept_of_head(b"HTTP/1.1 503 No\r\nx: y\r\n\r\n").is_some());
    }

    #[test]
    fn pod_name_joins_values_in_order() {
        let mut name = PodName::default();
        [&b""[..], b"web-1", b"\xff", b"gateway-7", &[b'x'; 300]]
            .into_iter()
            .for_each(|value| name.add(value));
        assert_eq!(name.take().as_deref(), Some("web-1, gateway-7"));
    }

    #[test]
    fn header_statistics_count_values_and_pod_changes() {
        let mut answers = Answers::default();
        let mut before = None;
        for n in 0..100_u64 {
            answers.count(Some(if n < 60 { b"envoy" } else { b"nginx" }), None);
            let pod: Arc<str> = format!("web-{}", n / 25).into();
            answers.compare(&mut before, Some(&pod));
            answers.compare(&mut before, None);
        }
        for n in 0..50 {
            answers.count(None, Some(format!("1.1 {n}").as_bytes()));
        }
        let mut all = answers.of_target("web");
        all.merge(&answers.of_target("web"));
        assert_eq!((all.target.as_str(), all.answers, all.pods_within_connection_changed), ("web", 300, 6));
        assert_eq!(all.server, BTreeMap::from([("envoy".into(), 120), ("nginx".into(), 80)]));
        assert_eq!((all.via.len(), all.via[OTHER_VALUES]), (MAX_VALUES + 1, 36));
    }
}
