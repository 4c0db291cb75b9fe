//! The parts of a message head that a relay needs: the length, the body's framing, and the request id.
//!
//! Heads are parsed, never rewritten. A request is refused if two parsers could disagree about its end, so nothing can
//! be smuggled past the record. That includes all requests whose lines do not end in CRLF. Grammar violations that
//! leave the end clear are passed on.

use std::mem::MaybeUninit;
use std::str;

use bytes::BytesMut;
use httparse::{Header, ParserConfig, Status};
use memchr::{memchr, memchr_iter, memrchr};

use super::super::budget::Budget;
use super::super::refusal::ProxyRefusal;
use rolldrop_record::RequestId;
use rolldrop_record::id::ID_HEADER;
use rolldrop_wire::http1::{Body, MAX_LENGTH};

/// Maximum size of a head that is passed on, in bytes.
const MAX_HEAD_BYTES: usize = Budget::DEFAULT.head_bytes;
/// Maximum number of header lines in a head that is passed on.
const MAX_HEADERS: usize = 16_384;
/// Number of header lines that can be parsed without allocating memory.
const USUAL_HEADERS: usize = 128;
/// Registered names of the transfer codings that may precede `chunked` (RFC 9112, 7.2).
const COMPRESSIONS: [&[u8]; 5] = [b"gzip", b"x-gzip", b"deflate", b"compress", b"x-compress"];

/// A request head at the beginning of a buffer.
#[derive(Debug)]
pub(super) struct RequestHead {
    /// Length of the head, in bytes.
    pub(super) len: usize,
    /// Body that follows the head.
    pub(super) body: Body,
    /// Id of the request, if the client sent a valid one.
    pub(super) id: Option<RequestId>,
    /// True if the method is HEAD, whose response has no body.
    pub(super) is_head: bool,
    /// True if the client asks to switch to a protocol that it may speak before it has the response.
    pub(super) asks_switch: bool,
}

/// A response head at the beginning of a buffer.
#[derive(Debug)]
pub(super) struct ResponseHead {
    /// Length of the head, in bytes.
    pub(super) len: usize,
    /// Body that follows the head.
    pub(super) body: Body,
    /// Status; `None` if the bytes are not HTTP/1 and are passed on unread.
    pub(super) status: Option<u16>,
    /// True if all parsers agree on the end of the body.
    pub(super) has_clear_end: bool,
}

impl ResponseHead {
    /// Placeholder for bytes from an app that does not speak HTTP/1.
    pub(super) const UNREADABLE: ResponseHead =
        ResponseHead { len: 0, body: Body::UntilClose, status: None, has_clear_end: false };

    /// Returns true if another head follows for the same request (1xx, except 101).
    pub(super) fn is_interim(&self) -> bool {
        self.status.is_some_and(|status| (100..200).contains(&status)) && !self.is_switch()
    }

    /// Returns true if the connection switches to another protocol after this head (101).
    pub(super) fn is_switch(&self) -> bool {
        self.status == Some(101)
    }

    /// Returns true if the end of this response is signalled by closing the connection.
    pub(super) fn ends_by_close(&self) -> bool {
        self.status.is_some() && self.body == Body::UntilClose
    }

    /// Inserts a header line after the existing ones, in the buffer that begins with this head.
    pub(super) fn insert(&mut self, buf: &mut BytesMut, line: &[u8]) {
        if self.status.is_none() {
            return;
        }
        let blank_line = if buf[..self.len].ends_with(b"\r\n") { 2 } else { 1 };
        buf.extend_from_slice(line);
        buf[self.len - blank_line..].rotate_right(line.len());
        self.len += line.len();
    }
}

/// Result of examining the bytes at the front of a buffer.
#[derive(Debug)]
pub(super) enum HeadScan<H> {
    /// A complete head.
    Complete(H),
    /// Part of a head; the first `safe` bytes may be passed on before the rest has arrived.
    Partial {
        /// Number of bytes that may be passed on.
        safe: usize,
    },
}

/// Incremental parser of a request head that arrives in pieces.
#[derive(Default)]
pub(super) struct IncomingRequest {
    /// Number of bytes that need no further examination.
    seen: usize,
    /// Offset of the first incomplete line.
    line: usize,
    /// True once the request line is complete. Empty lines may precede it (RFC 9112, 2.2).
    begun: bool,
}

impl IncomingRequest {
    /// Examines the bytes of a head received so far, starting with the first byte.
    pub(super) fn look(&mut self, bytes: &[u8]) -> Result<HeadScan<RequestHead>, ProxyRefusal> {
        let from = self.seen;
        let had_begun = self.begun;
        for at in memchr_iter(b'\n', &bytes[from..]) {
            let line = &bytes[self.line..from + at];
            self.line = from + at + 1;
            match line {
                [b'\r'] if self.begun => {
                    let head = parse_request(&bytes[..self.line])?;
                    return head.map(HeadScan::Complete).ok_or(ProxyRefusal::Malformed);
                }
                [b'\r'] => {}
                [.., b'\r'] => self.begun = true,
                _ => return Err(ProxyRefusal::Malformed),
            }
        }
        if bytes.len() > MAX_HEAD_BYTES {
            return Err(ProxyRefusal::HeadTooLarge);
        }
        if self.begun && !had_begun {
            // Only a valid request line may be passed on.
            parse_request(&bytes[..self.line])?;
        }
        // The final CR may turn out not to be part of a line end.
        self.seen = bytes.len() - usize::from(bytes.ends_with(b"\r"));
        has_only_line_ends(&bytes[from..self.seen])?;
        Ok(HeadScan::Partial { safe: if self.begun { self.seen } else { 0 } })
    }
}

/// Refuses a CR that is not part of a line end.
fn has_only_line_ends(mut bytes: &[u8]) -> Result<(), ProxyRefusal> {
    while let Some(at) = memchr(b'\r', bytes) {
        bytes = bytes[at + 1..].strip_prefix(b"\n").ok_or(ProxyRefusal::Malformed)?;
    }
    Ok(())
}

/// Incremental parser of a response head that arrives in pieces.
#[derive(Default)]
pub(super) struct IncomingResponse {
    /// Number of bytes already examined.
    seen: usize,
}

impl IncomingResponse {
    /// Examines the bytes of a head received so far, starting with the first byte. `to_head` is true for the response
    /// to a HEAD request.
    pub(super) fn look(&mut self, bytes: &[u8], to_head: bool) -> HeadScan<ResponseHead> {
        let is_news = self.seen == 0 || bytes.len() > MAX_HEAD_BYTES || bytes[self.seen..].contains(&b'\n');
        self.seen = bytes.len();
        match is_news.then(|| parse_response(bytes, to_head)).flatten() {
            Some(head) => HeadScan::Complete(head),
            // The header line must still be inserted before the empty line.
            None => {
                let is_line_end = |byte: &u8| matches!(byte, b'\r' | b'\n');
                HeadScan::Partial {
                    safe: bytes.iter().rposition(|byte| !is_line_end(byte)).map_or(0, |at| at + 1),
                }
            }
        }
    }
}

/// Parses a request head; returns `None` if the head is incomplete.
fn parse_request(bytes: &[u8]) -> Result<Option<RequestHead>, ProxyRefusal> {
    match read_request(bytes, &mut [const { MaybeUninit::uninit() }; USUAL_HEADERS]) {
        Err(ProxyRefusal::HeadTooLarge) if bytes.len() <= MAX_HEAD_BYTES => {
            read_request(bytes, &mut vec![MaybeUninit::uninit(); MAX_HEADERS])
        }
        Err(ProxyRefusal::Malformed) => read_lines(bytes),
        // If the request target contains a space, the version is in a different place.
        Err(ProxyRefusal::Version) => match read_lines(bytes) {
            Err(ProxyRefusal::Malformed) => Err(ProxyRefusal::Version),
            read => read,
        },
        read => read,
    }
}

fn read_request<'b>(
    bytes: &'b [u8],
    headers: &mut [MaybeUninit<Header<'b>>],
) -> Result<Option<RequestHead>, ProxyRefusal> {
    let mut request = httparse::Request::new(&mut []);
    let len = match request.parse_with_uninit_headers(bytes, headers) {
        Ok(Status::Complete(len)) => len,
        Ok(Status::Partial) if bytes.len() < MAX_HEAD_BYTES => return Ok(None),
        Ok(Status::Partial) | Err(httparse::Error::TooManyHeaders) => return Err(ProxyRefusal::HeadTooLarge),
        Err(httparse::Error::Version) => return Err(ProxyRefusal::Version),
        Err(_) => return Err(ProxyRefusal::Malformed),
    };
    let method = request.method.unwrap_or_default();
    let framing = HeaderFraming::of(request.headers);
    framing.of_request(len, method.as_bytes(), request.version == Some(1)).map(Some)
}

/// Parses a request head that violates the grammar, but whose end is the same for all parsers: lines with a colon,
/// whose contents are left to the app. Returns `None` if the head is incomplete.
fn read_lines(bytes: &[u8]) -> Result<Option<RequestHead>, ProxyRefusal> {
    let mut at = 0;
    // Each complete line without its LF, and the offset after it.
    let mut lines = memchr_iter(b'\n', bytes).map(|end| {
        let line = &bytes[at..end];
        at = end + 1;
        (line, at)
    });
    let Some((first, _)) = lines.by_ref().find(|(line, _)| *line != b"\r") else { return Ok(None) };
    let (method, version) = read_request_line(first)?;
    let mut framing = HeaderFraming::default();
    let mut headers = 0;
    for (line, end) in lines {
        let line = line.strip_suffix(b"\r").ok_or(ProxyRefusal::Malformed)?;
        if line.is_empty() {
            return framing.of_request(end, method, version == b"HTTP/1.1").map(Some);
        }
        headers += 1;
        if headers > MAX_HEADERS {
            return Err(ProxyRefusal::HeadTooLarge);
        }
        let colon = memchr(b':', line).ok_or(ProxyRefusal::Malformed)?;
        let (name, value) = (&line[..colon], &line[colon + 1..]);
        if name.is_empty() || name.iter().any(|byte| *byte <= b' ' || *byte == 0x7f) {
            return Err(ProxyRefusal::Malformed);
        }
        let acts = |byte: &u8| *byte < b' ' && *byte != b'\t' || *byte == 0x7f;
        let breaks = |byte: &u8| matches!(byte, 0 | b'\r');
        let frames = frames(name);
        if value.iter().any(breaks) || frames && value.iter().any(acts) {
            return Err(ProxyRefusal::Malformed);
        }
        if frames && !FRAMING.iter().any(|framing| name.eq_ignore_ascii_case(framing)) {
            return Err(ProxyRefusal::AmbiguousLength);
        }
        framing.add(name, value.trim_ascii());
    }
    Ok(None)
}

/// Headers that determine the end of a body.
const FRAMING: [&[u8]; 2] = [b"content-length", b"transfer-encoding"];

/// Returns true if a parser could mistake the header's name for a framing header, as with `content_length`.
fn frames(name: &[u8]) -> bool {
    FRAMING.iter().any(|framing| letters(name).eq(letters(framing)))
}

fn letters(name: &[u8]) -> impl Iterator<Item = u8> {
    name.iter().filter(|byte| byte.is_ascii_alphabetic()).map(u8::to_ascii_lowercase)
}

/// Returns the method and version of a request line: the parts before the first and after the last space.
fn read_request_line(line: &[u8]) -> Result<(&[u8], &[u8]), ProxyRefusal> {
    let line = line.strip_suffix(b"\r").ok_or(ProxyRefusal::Malformed)?;
    let space = memchr(b' ', line).ok_or(ProxyRefusal::Malformed)?;
    let last = memrchr(b' ', line).ok_or(ProxyRefusal::Malformed)?;
    let (method, version) = (&line[..space], &line[last + 1..]);
    let is_token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    let has_target = line[space..last].iter().any(|byte| *byte != b' ');
    let acts = |byte: &u8| byte.is_ascii_control();
    if method.is_empty() || !method.iter().all(is_token) || !has_target || line.iter().any(acts) {
        return Err(ProxyRefusal::Malformed);
    }
    match version {
        b"HTTP/1.0" | b"HTTP/1.1" => Ok((method, version)),
        _ if version.starts_with(b"HTTP/") => Err(ProxyRefusal::Version),
        _ => Err(ProxyRefusal::Malformed),
    }
}

/// Parses a response head; returns `None` if the head is incomplete. `to_head` is true for the response to a HEAD
/// request. A response that is not HTTP/1 is passed on unread.
fn parse_response(bytes: &[u8], to_head: bool) -> Option<ResponseHead> {
    match read_response(bytes, to_head, &mut [const { MaybeUninit::uninit() }; USUAL_HEADERS]) {
        Err(httparse::Error::TooManyHeaders) => {
            read_response(bytes, to_head, &mut vec![MaybeUninit::uninit(); MAX_HEADERS])
        }
        read => read,
    }
    .unwrap_or(Some(ResponseHead::UNREADABLE))
}

fn read_response<'b>(
    bytes: &'b [u8],
    to_head: bool,
    headers: &mut [MaybeUninit<Header<'b>>],
) -> Result<Option<ResponseHead>, httparse::Error> {
    let mut response = httparse::Response::new(&mut []);
    // Apps may violate the grammar. The proxy leaves it to the client whether to accept the response.
    let mut config = ParserConfig::default();
    config
        .allow_spaces_after_header_name_in_responses(true)
        .allow_obsolete_multiline_headers_in_responses(true)
        .allow_multiple_spaces_in_response_status_delimiters(true)
        .ignore_invalid_headers_in_responses(true);
    let len = match config.parse_response_with_uninit_headers(&mut response, bytes, headers)? {
        Status::Complete(len) => len,
        Status::Partial if bytes.len() < MAX_HEAD_BYTES => return Ok(None),
        // The app and the client decide how long a response head may be, so a longer one is passed on unread.
        Status::Partial => return Err(httparse::Error::Status),
    };
    let status = response.code.ok_or(httparse::Error::Status)?;
    let framing = HeaderFraming::of(response.headers);
    let has_clear_end = !framing.bad && framing.coding != Coding::Other;
    let body = match (status, framing) {
        (101, _) => Body::UntilClose,
        (100..200 | 204 | 304, _) => Body::NONE,
        _ if to_head => Body::NONE,
        (_, HeaderFraming { coding: Coding::Chunked, .. }) => Body::CHUNKED,
        (_, HeaderFraming { coding: Coding::None, bad: false, length: Some(length), .. }) => {
            Body::Length(length)
        }
        _ => Body::UntilClose,
    };
    Ok(Some(ResponseHead { len, body, status: Some(status), has_clear_end }))
}

/// Body framing from the headers, and the other headers found in the same pass.
#[derive(Default)]
struct HeaderFraming<'a> {
    coding: Coding,
    length: Option<u64>,
    /// True if two parsers could interpret the framing differently: a length that is not a number, several different
    /// lengths, codings in several lines, or unregistered codings.
    bad: bool,
    id: Option<&'a [u8]>,
    /// True if the client wants to change the protocol (`connection: upgrade`).
    upgrades: bool,
    /// True if the client wants a protocol that it may speak immediately. HTTP/2 is not such a protocol: the client
    /// waits for the response (RFC 7540, 3.2).
    to_another: bool,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Coding {
    #[default]
    None,
    /// `chunked` comes last, and only once.
    Chunked,
    Other,
}

impl<'a> HeaderFraming<'a> {
    fn of(headers: &[Header<'a>]) -> Self {
        let mut framing = HeaderFraming::default();
        headers.iter().for_each(|header| framing.add(header.name.as_bytes(), header.value));
        framing
    }

    fn add(&mut self, name: &[u8], value: &'a [u8]) {
        if name.eq_ignore_ascii_case(b"content-length") {
            let length = parse_length(value);
            self.bad |= length.is_none() || self.length.is_some_and(|other| Some(other) != length);
            self.length = length;
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            self.add_codings(value);
        } else if name.eq_ignore_ascii_case(ID_HEADER.as_bytes()) {
            self.id = Some(value);
        } else if name.eq_ignore_ascii_case(b"connection") {
            self.upgrades |= tokens(value).any(|token| token.eq_ignore_ascii_case(b"upgrade"));
        } else if name.eq_ignore_ascii_case(b"upgrade") {
            self.to_another |= tokens(value).any(|token| !token.eq_ignore_ascii_case(b"h2c"));
        }
    }

    /// Returns the request head with this length and method.
    fn of_request(self, len: usize, method: &[u8], is_http11: bool) -> Result<RequestHead, ProxyRefusal> {
        if method == b"CONNECT" {
            return Err(ProxyRefusal::Connect);
        }
        let body = match self {
            HeaderFraming { bad: true, .. } => return Err(ProxyRefusal::AmbiguousLength),
            HeaderFraming { coding: Coding::None, length, .. } => Body::Length(length.unwrap_or(0)),
            HeaderFraming { coding: Coding::Chunked, length: None, .. } if is_http11 => Body::CHUNKED,
            HeaderFraming { .. } => return Err(ProxyRefusal::AmbiguousLength),
        };
        Ok(RequestHead {
            len,
            body,
            id: self.id.and_then(|id| str::from_utf8(id).ok()?.parse().ok()),
            is_head: method == b"HEAD",
            asks_switch: self.upgrades && self.to_another,
        })
    }

    /// Adds another `transfer-encoding` value.
    fn add_codings(&mut self, value: &[u8]) {
        self.bad |= self.coding != Coding::None;
        for name in tokens(value) {
            let is_chunked = name.eq_ignore_ascii_case(b"chunked");
            let is_first = self.coding != Coding::Chunked;
            self.coding = if is_chunked && is_first { Coding::Chunked } else { Coding::Other };
            self.bad |= !is_chunked && !COMPRESSIONS.iter().any(|known| name.eq_ignore_ascii_case(known));
        }
    }
}

/// Returns the elements of a comma-separated list.
fn tokens(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&b| b == b',').map(<[u8]>::trim_ascii)
}

/// Parses a `content-length` value. Only digits are allowed; `u64` parsing would also accept a sign.
fn parse_length(value: &[u8]) -> Option<u64> {
    let value = value.trim_ascii();
    if !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    str::from_utf8(value).ok()?.parse().ok().filter(|length| *length <= MAX_LENGTH)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(head: &str) -> Result<Option<RequestHead>, ProxyRefusal> {
        parse_request(head.as_bytes())
    }

    fn response_body(head: &str, to_head: bool) -> Body {
        parse_response(head.as_bytes(), to_head).unwrap().body
    }

    #[test]
    fn request_head_yields_length_and_id() {
        let text = "POST /a HTTP/1.1\r\nHost: a\r\nRollDrop-ID: load-1-7\r\nContent-Length: 3\r\n\r\nabc";
        let head = request(text).unwrap().unwrap();
        assert_eq!(head.len, text.len() - 3);
        assert_eq!(head.body, Body::Length(3));
        assert_eq!(head.id.unwrap().to_string(), "load-1-7");
        assert!(request(&text[..40]).unwrap().is_none());
        assert!(request("GET / HTTP/1.1\r\nrolldrop-id: x\r\n\r\n").unwrap().unwrap().id.is_none());
    }

    #[test]
    fn ambiguous_request_is_refused() {
        for headers in [
            "content-length: 5\r\ntransfer-encoding: chunked",
            "content-length: 5\r\ncontent-length: 6",
            "content-length: 5, 5",
            "content-length: +5",
            "content-length: -1",
            "content-length: 0x5",
            "content-length:",
            "content-length: 99999999999999999999",
            "content-length: 9223372036854775808",
            "transfer-encoding: gzip",
            "transfer-encoding: chunked, gzip",
            "transfer-encoding: chunked, chunked",
            "transfer-encoding: chunked\r\ntransfer-encoding: identity",
            "transfer-encoding: gzip\r\ntransfer-encoding: chunked",
            "transfer-encoding: x, chunked",
            "transfer-encoding: identity, chunked",
            "transfer-encoding: , chunked",
            "transfer-encoding: xchunked",
            "transfer-encoding: \x0bchunked",
        ] {
            let refused = request(&format!("POST / HTTP/1.1\r\n{headers}\r\n\r\n"));
            assert!(
                matches!(refused, Err(ProxyRefusal::AmbiguousLength | ProxyRefusal::Malformed)),
                "{headers:?}"
            );
        }
        let old = request("POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n");
        assert_eq!(old.unwrap_err(), ProxyRefusal::AmbiguousLength);
        for head in [
            "GET / HTTP/1.1\r\ncontent-length : 5\r\n\r\n",
            "GET / HTTP/1.1\r\na: b\r\n c\r\n\r\n",
            "GET / HTTP/1.1\r\na: b\rc\r\n\r\n",
        ] {
            assert_eq!(request(head).unwrap_err(), ProxyRefusal::Malformed, "{head:?}");
        }
        assert_eq!(request("CONNECT a:1 HTTP/1.1\r\n\r\n").unwrap_err(), ProxyRefusal::Connect);
        assert_eq!(request("GET / HTTP/2.0\r\n\r\n").unwrap_err(), ProxyRefusal::Version);
        let large = format!("GET / HTTP/1.1\r\na: {}", "b".repeat(MAX_HEAD_BYTES));
        assert_eq!(request(&large).unwrap_err(), ProxyRefusal::HeadTooLarge);
    }

    #[test]
    fn parser_accepts_odd_but_unambiguous_heads() {
        let long = "x".repeat(100);
        let heads: Vec<Vec<u8>> = [
            b"GET /\xff\xfe HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
            b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
            b"GET /a b HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
            b"GET /\"<>{} HTTP/1.0\r\nHost: a\r\n\r\n".to_vec(),
            b"GET / HTTP/1.1\r\nX(y)[0]: z\r\n\r\n".to_vec(),
            b"GET / HTTP/1.1\r\nGr\xc3\xb6\xc3\x9fe: z\r\n\r\n".to_vec(),
            b"GET / HTTP/1.1\r\nX: a\x01\x1b[31m\x7f\r\n\r\n".to_vec(),
            format!("\r\nGET  / HTTP/1.1\r\n{}\r\n", format!("x: {long}\r\n").repeat(300)).into_bytes(),
        ]
        .into();
        for head in heads {
            let read = parse_request(&head).unwrap().unwrap();
            assert_eq!(
                (read.len, read.body),
                (head.len(), Body::NONE),
                "{:?}",
                head.escape_ascii().to_string()
            );
            let first = head.windows(2).skip(3).position(|two| two == b"\r\n").unwrap() + 5;
            assert!(parse_request(&head[..first]).unwrap().is_none());
        }
        let framed = |lines: &str| request(&format!("POST  / HTTP/1.1\r\n{lines}\r\n\r\n"));
        let head = framed("X(y): z\r\nContent-Length: 5\r\nrolldrop-id: load-1-7").unwrap().unwrap();
        assert_eq!((head.body, head.id.unwrap().seq), (Body::Length(5), 7));
        assert_eq!(framed("transfer-encoding: chunked").unwrap().unwrap().body, Body::CHUNKED);
        for lines in [
            "content-length: 5\r\ntransfer-encoding: chunked",
            "content_length: 5",
            "transfer.encoding: chunked",
            "\u{e9}content-length: 5",
            "content-length: \x015",
            "transfer-encoding: chunked\x0c",
            "transfer-encoding : chunked",
            "x: a\0",
            "x y: z",
            " x: z",
            ": z",
            "no colon",
        ] {
            assert!(framed(lines).is_err(), "{lines:?}");
        }
        assert_eq!(request("CONNECT  a:1 HTTP/1.1\r\n\r\n").unwrap_err(), ProxyRefusal::Connect);
        for line in
            ["GET / HTTP/1.1 ", "GET / /1", "GET\t/ HTTP/1.1", "G@T / HTTP/1.1", "GET / HTTP/1.1\u{1}"]
        {
            assert!(request(&format!("{line}\r\nX(y): z\r\n\r\n")).is_err(), "{line:?}");
        }
    }

    #[test]
    fn upgrade_switches_protocol_except_for_h2c() {
        let asks = |lines: &str| {
            request(&format!("GET / HTTP/1.1\r\n{lines}\r\n\r\n")).unwrap().unwrap().asks_switch
        };
        assert!(asks("connection: keep-alive, Upgrade\r\nupgrade: websocket"));
        assert!(asks("upgrade: h2c, foo\r\nconnection: upgrade"));
        assert!(!asks("connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AA"));
        assert!(!asks("upgrade: websocket"));
        assert!(!asks("connection: upgrade"));
    }

    #[test]
    fn equal_lengths_and_gzip_are_unambiguous() {
        let twice = request("POST / HTTP/1.1\r\ncontent-length: 5\r\ncontent-length: 5\r\n\r\n");
        assert_eq!(twice.unwrap().unwrap().body, Body::Length(5));
        let compressed = request("POST / HTTP/1.1\r\ntransfer-encoding: GZip , Chunked\r\n\r\n");
        assert_eq!(compressed.unwrap().unwrap().body, Body::CHUNKED);
    }

    #[test]
    fn status_and_method_decide_response_framing() {
        let five = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n";
        assert_eq!(response_body(five, false), Body::Length(5));
        assert_eq!(response_body(five, true), Body::NONE);
        assert_eq!(
            response_body("HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n", false),
            Body::NONE
        );
        assert_eq!(response_body("HTTP/1.1 100 Continue\r\n\r\n", false), Body::NONE);
        assert_eq!(response_body("HTTP/1.1 101 Switching Protocols\r\n\r\n", false), Body::UntilClose);
        assert_eq!(response_body("HTTP/1.0 200 OK\r\n\r\n", false), Body::UntilClose);
        let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n";
        assert_eq!(response_body(chunked, false), Body::CHUNKED);
        let sloppy = "HTTP/1.1 200 OK\r\ntransfer-encoding: x\r\ntransfer-encoding: chunked\r\n\r\n";
        assert_eq!(response_body(sloppy, false), Body::CHUNKED);
        assert_eq!(parse_response(b"SSH-2.0\r\n", false).unwrap().status, None);
    }

    #[test]
    fn refusal_length_matches_its_body() {
        for refusal in [
            ProxyRefusal::Malformed,
            ProxyRefusal::AmbiguousLength,
            ProxyRefusal::HeadTooLarge,
            ProxyRefusal::Connect,
            ProxyRefusal::Version,
        ] {
            let answer = refusal.answer();
            let head = parse_response(answer, false).unwrap();
            assert_eq!(head.body, Body::Length((answer.len() - head.len) as u64), "{refusal:?}");
        }
    }
}
