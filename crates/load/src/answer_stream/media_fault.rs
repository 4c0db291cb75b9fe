//! Contradictions between the headers of a response and the kind of stream that was asked for.

use std::sync::Arc;

use rolldrop_record::load::StreamKind;

/// Maximum length of a header value in a detail, in bytes.
const MAX_VALUE: usize = 60;

/// Reason why the body of a successful response is not the stream that was asked for, used as the row's detail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MediaFault {
    /// The body is compressed, so events cannot be found in it.
    Encoded(Arc<str>),
    /// The body has another type. Some frameworks send event streams under their default content type, so this counts
    /// only if there are no events.
    OtherType(Arc<str>),
}

impl MediaFault {
    /// Compares the values of a response's headers with a kind of stream.
    pub fn of(
        kind: StreamKind,
        content_type: Option<&[u8]>,
        content_encoding: Option<&[u8]>,
    ) -> Option<Self> {
        if kind == StreamKind::Bytes {
            return None;
        }
        if let Some(coding) = content_encoding.filter(|coding| !coding.eq_ignore_ascii_case(b"identity")) {
            return Some(Self::Encoded(detail("content-encoding", coding)));
        }
        let media = content_type?.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
        let is_other = kind != StreamKind::Ndjson && !media.eq_ignore_ascii_case(b"text/event-stream");
        is_other.then(|| Self::OtherType(detail("content-type", media)))
    }
}

fn detail(name: &str, value: &[u8]) -> Arc<str> {
    let value = String::from_utf8_lossy(value);
    format!("{name} {}", &value[..value.floor_char_boundary(MAX_VALUE)]).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn response_headers_must_match_stream_kind() {
        let fault = |kind, content_type: Option<&str>, coding: Option<&str>| {
            MediaFault::of(kind, content_type.map(str::as_bytes), coding.map(str::as_bytes))
        };
        for kind in [StreamKind::OpenAi, StreamKind::Anthropic, StreamKind::Sse] {
            for fits in [None, Some("text/event-stream"), Some("Text/Event-Stream ; charset=utf-8")] {
                assert_eq!(fault(kind, fits, None), None, "{fits:?}");
            }
            let page = Some(MediaFault::OtherType("content-type text/html".into()));
            assert_eq!(fault(kind, Some("text/html; charset=utf-8"), Some("identity")), page);
        }
        let encoded = Some(MediaFault::Encoded("content-encoding gzip".into()));
        assert_eq!(fault(StreamKind::Ndjson, Some("application/json"), Some("gzip")), encoded);
        assert_eq!(fault(StreamKind::Ndjson, Some("application/json"), None), None);
        assert_eq!(fault(StreamKind::Bytes, Some("text/html"), Some("gzip")), None);
        let long = MediaFault::of(StreamKind::Sse, Some(&[b'x'; 999]), None);
        assert!(matches!(long, Some(MediaFault::OtherType(detail)) if detail.len() < 99));
    }
}
