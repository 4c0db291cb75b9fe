//! Parses the head of an HTTP/1.1 response with httparse.
//!
//! Works on bytes only (RFC 9112); this module reads no socket.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::Arc;

use http::Method;

use super::answer_headers::{MAX_FIELDS, PodName, WantedHeaders};
use rolldrop_wire::http1::Body;

/// Maximum length of a head, in bytes.
pub(super) const MAX_HEAD: usize = 64 * 1024;

/// Error for a response that violates the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// Head of a response.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// Status code.
    pub(super) status: u16,
    /// Length of the head in bytes.
    pub(super) len: usize,
    /// Framing of the body.
    pub(super) body: Body,
    /// True if the server keeps the connection open after the body.
    pub(super) keep_alive: bool,
    /// Pod that responded, according to the chosen header.
    pub(super) pod: Option<Arc<str>>,
    /// Range of the `server` value within the head.
    pub(super) server: Option<Range<usize>>,
    /// Range of the `via` value within the head.
    pub(super) via: Option<Range<usize>>,
    /// Range of the `content-type` value within the head.
    pub(super) content_type: Option<Range<usize>>,
    /// Range of the `content-encoding` value within the head.
    pub(super) content_encoding: Option<Range<usize>>,
    /// Response to the WebSocket key, in a response that switches protocols.
    pub(super) accept: Option<Arc<str>>,
}

impl Head {
    /// Returns true if `rest`, the bytes after the head, contains the whole body, as far as this can be decided without
    /// parsing it.
    pub(super) fn is_whole_with(&self, rest: &[u8]) -> bool {
        match self.body {
            Body::Length(length) => rest.len() as u64 >= length,
            Body::Chunked(_) => rest.ends_with(b"\r\n0\r\n\r\n"),
            Body::UntilClose => false,
        }
    }
}

/// Parses the head of a response to a `method` request at the beginning of `bytes`; returns `None` if the head is
/// incomplete.
///
/// # Errors
/// Returns an error if the head can never become complete.
pub(super) fn parse_head(
    bytes: &[u8],
    method: &Method,
    wanted: &WantedHeaders,
) -> Result<Option<Head>, Malformed> {
    let mut fields = [const { MaybeUninit::uninit() }; MAX_FIELDS];
    let mut response = httparse::Response::new(&mut []);
    let parser = httparse::ParserConfig::default();
    let len = match parser.parse_response_with_uninit_headers(&mut response, bytes, &mut fields) {
        Ok(httparse::Status::Complete(len)) => len,
        Ok(httparse::Status::Partial) if bytes.len() < MAX_HEAD => return Ok(None),
        Ok(httparse::Status::Partial) | Err(_) => return Err(Malformed),
    };
    let status = response.code.filter(|code| *code >= 100).ok_or(Malformed)?;
    let mut framing = ResponseFraming::default();
    let mut close = false;
    let mut keep_alive = false;
    let mut pod = PodName::default();
    let (mut server, mut via, mut accept) = (None, None, None);
    let (mut content_type, mut content_encoding) = (None, None);
    let place = |value: &[u8]| {
        let from = value.as_ptr().addr() - bytes.as_ptr().addr();
        Some(from..from + value.len())
    };
    for field in response.headers.iter() {
        let name = field.name;
        if name.eq_ignore_ascii_case("content-length") {
            framing.add_length(field.value);
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            framing.chunked = Some(last_token(field.value).eq_ignore_ascii_case(b"chunked"));
        } else if name.eq_ignore_ascii_case("connection") {
            close |= has_token(field.value, b"close");
            keep_alive |= has_token(field.value, b"keep-alive");
        } else if name.eq_ignore_ascii_case("server") {
            server = place(field.value);
        } else if name.eq_ignore_ascii_case("via") {
            via = place(field.value);
        } else if name.eq_ignore_ascii_case("content-type") {
            content_type = place(field.value);
        } else if name.eq_ignore_ascii_case("content-encoding") {
            content_encoding = place(field.value);
        } else if status == 101 && name.eq_ignore_ascii_case("sec-websocket-accept") {
            accept = std::str::from_utf8(field.value).ok().map(Arc::from);
        }
        if name.eq_ignore_ascii_case(wanted.pod.as_str()) {
            pod.add(field.value);
        }
    }
    let is_old = response.version != Some(1);
    let body = framing.body(status, method, is_old)?;
    let persistent = !close && (keep_alive || !is_old);
    let keep_alive = persistent && body != Body::UntilClose;
    let pod = pod.take();
    Ok(Some(Head { status, len, keep_alive, body, pod, server, via, content_type, content_encoding, accept }))
}

/// Header fields that determine the body's length.
#[derive(Default)]
struct ResponseFraming {
    /// Body length, or an error if there is no single valid length; the error matters only if the length is needed.
    length: Option<Result<u64, Malformed>>,
    /// True if `chunked` is the last transfer coding; `None` without a transfer coding.
    chunked: Option<bool>,
}

impl ResponseFraming {
    /// Adds the lengths in a field. Repeated equal lengths count as one (RFC 9112, 6.3).
    fn add_length(&mut self, value: &[u8]) {
        for part in value.split(|b| *b == b',') {
            let part = part.trim_ascii();
            let is_number = !part.is_empty() && part.iter().all(u8::is_ascii_digit);
            let text = std::str::from_utf8(part).ok().filter(|_| is_number);
            let length = text.and_then(|text| text.parse().ok()).ok_or(Malformed);
            self.length = match self.length {
                Some(earlier) if earlier != length => Some(Err(Malformed)),
                _ => Some(length),
            };
        }
    }

    /// Returns the body's framing. HTTP/1.0 has no transfer codings (RFC 9112, 6.1).
    fn body(&self, status: u16, method: &Method, is_old: bool) -> Result<Body, Malformed> {
        if *method == Method::HEAD || (100..200).contains(&status) || status == 204 || status == 304 {
            return Ok(Body::NONE);
        }
        match (self.chunked, self.length) {
            (Some(_), _) if is_old => Err(Malformed),
            (Some(true), _) => Ok(Body::CHUNKED),
            (Some(false), _) | (None, None) => Ok(Body::UntilClose),
            (None, Some(length)) => Ok(Body::Length(length?)),
        }
    }
}

fn tokens(value: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    value.split(|b| *b == b',').map(<[u8]>::trim_ascii).filter(|token| !token.is_empty())
}

fn has_token(value: &[u8], token: &[u8]) -> bool {
    tokens(value).any(|t| t.eq_ignore_ascii_case(token))
}

fn last_token(value: &[u8]) -> &[u8] {
    tokens(value).next_back().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn wanted() -> WantedHeaders {
        WantedHeaders::new("rolldrop-pod", &[]).unwrap()
    }

    fn head(text: &str) -> Head {
        parse_head(text.as_bytes(), &Method::GET, &wanted()).unwrap().unwrap()
    }

    #[test]
    fn parser_reads_head_only_when_complete() {
        let text = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nRolldrop-Pod: web-1\r\n\r\nhello";
        let expected = Head {
            status: 200,
            len: text.len() - 5,
            body: Body::Length(5),
            keep_alive: true,
            pod: Some("web-1".into()),
            server: None,
            via: None,
            content_type: None,
            content_encoding: None,
            accept: None,
        };
        assert_eq!(head(text), expected);
        for end in 0..expected.len {
            assert_eq!(parse_head(&text.as_bytes()[..end], &Method::GET, &wanted()), Ok(None));
        }
    }

    #[test]
    fn parser_reads_pod_and_gateway_headers() {
        let text = "HTTP/1.1 200 OK\r\nServer: nginx\r\nrolldrop-pod: no\r\nX-Served-By: web-1\r\nVia: 1.1 a\r\n\
            x-served-by: edge-7\r\nContent-Length: 0\r\n\r\n";
        let wanted = WantedHeaders::new("X-Served-By", &[]).unwrap();
        let head = parse_head(text.as_bytes(), &Method::GET, &wanted).unwrap().unwrap();
        assert_eq!(head.pod.as_deref(), Some("web-1, edge-7"));
        assert_eq!((&text[head.server.unwrap()], &text[head.via.unwrap()]), ("nginx", "1.1 a"));
    }

    #[test]
    fn connection_header_and_framing_decide_reuse() {
        let kept = |text: &str| head(text).keep_alive;
        assert!(!kept("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: x, Close\r\n\r\n"));
        assert!(!kept("HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n"));
        assert!(kept("HTTP/1.0 200 OK\r\nContent-Length: 0\r\nConnection: keep-alive\r\n\r\n"));
        assert!(!kept("HTTP/1.1 200 OK\r\n\r\n"), "its body ends with the connection");
    }

    #[test]
    fn chunked_must_be_last_coding() {
        let body = |coding: &str| {
            head(&format!("HTTP/1.1 200 OK\r\ntransfer-encoding: {coding}\r\ncontent-length: 5\r\n\r\n")).body
        };
        assert_eq!(body("gzip, Chunked"), Body::CHUNKED);
        assert_eq!(body("chunked, gzip"), Body::UntilClose);
    }

    #[test]
    fn bodiless_response_ignores_content_length() {
        let announced = "content-length: 9\r\n\r\n";
        for status in ["100 Continue", "204 No Content", "304 Not Modified"] {
            let text = format!("HTTP/1.1 {status}\r\n{announced}");
            assert!(head(&text).body.is_done(), "{status}");
        }
        let text = format!("HTTP/1.1 200 OK\r\n{announced}");
        assert!(parse_head(text.as_bytes(), &Method::HEAD, &wanted()).unwrap().unwrap().body.is_done());
        assert!(!head(&text).body.is_done());
    }

    #[test]
    fn parser_rejects_malformed_heads() {
        let malformed = |text: &str| parse_head(text.as_bytes(), &Method::GET, &wanted()) == Err(Malformed);
        assert!(malformed("hello"));
        assert!(malformed("HTTP/1.1 2x0 OK\r\n\r\n"));
        assert!(malformed("HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n"));
        assert!(malformed("HTTP/1.1 200 OK\r\ncontent-length: +1\r\n\r\n"));
        assert!(malformed("HTTP/1.1 200 OK\r\ncontent-length:\r\n\r\n"));
        assert!(malformed("HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n"));
        assert!(!malformed("HTTP/1.1 200 OK\r\ncontent-length: 1, 1\r\n\r\n"));
        assert!(!malformed("HTTP/1.1 304 OK\r\ncontent-length: 1, 2\r\n\r\n"), "nothing follows");
        assert!(malformed("HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"));
        assert!(malformed(&format!("HTTP/1.1 200 OK\r\nx: {}", "y".repeat(MAX_HEAD))));
        let fields = |count| format!("HTTP/1.1 200 OK\r\n{}\r\n", "x: y\r\n".repeat(count));
        assert!(!malformed(&fields(MAX_FIELDS)) && malformed(&fields(MAX_FIELDS + 1)));
    }

    proptest! {
        #[test]
        fn head_parser_survives_arbitrary_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse_head(&bytes, &Method::GET, &wanted());
        }
    }
}
