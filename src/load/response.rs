//! Reading an HTTP/1.1 response: its head (by httparse), and where its body ends.
//!
//! Bytes in, facts out (RFC 9112); this module reads no socket. The body's
//! content is passed over, its framing is checked.

use std::sync::Arc;

use http::Method;

use crate::record::row::POD_HEADER;

/// The most bytes that a head may have.
pub(super) const MAX_HEAD: usize = 64 * 1024;
/// The most header fields that a head may have.
const MAX_FIELDS: usize = 128;
/// The most bytes that a chunk's size line or a trailer line may have.
const MAX_LINE: usize = 16 * 1024;

/// The peer broke the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// A response's head.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// The status.
    pub(super) status: u16,
    /// The head's length in bytes.
    pub(super) len: usize,
    /// Where the body ends.
    pub(super) body: Body,
    /// Whether the server keeps the connection open after the body.
    pub(super) keep_alive: bool,
    /// The pod that answered, by its own account.
    pub(super) pod: Option<Arc<str>>,
}

/// Parses the head of a response to a request of `method` at the beginning of
/// `bytes`; `None` when it is not complete yet.
///
/// # Errors
/// When it never can be.
pub(super) fn parse_head(bytes: &[u8], method: &Method) -> Result<Option<Head>, Malformed> {
    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut response = httparse::Response::new(&mut fields);
    let len = match response.parse(bytes) {
        Ok(httparse::Status::Complete(len)) => len,
        Ok(httparse::Status::Partial) if bytes.len() < MAX_HEAD => return Ok(None),
        Ok(httparse::Status::Partial) | Err(_) => return Err(Malformed),
    };
    let status = response.code.filter(|code| *code >= 100).ok_or(Malformed)?;
    let mut framing = Framing::default();
    let mut close = false;
    let mut keep_alive = false;
    let mut pod = None;
    for field in response.headers.iter() {
        let name = field.name;
        if name.eq_ignore_ascii_case("content-length") {
            framing.add_length(field.value)?;
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            framing.chunked = Some(last_token(field.value).eq_ignore_ascii_case(b"chunked"));
        } else if name.eq_ignore_ascii_case("connection") {
            close |= has_token(field.value, b"close");
            keep_alive |= has_token(field.value, b"keep-alive");
        } else if name.eq_ignore_ascii_case(POD_HEADER) {
            pod = std::str::from_utf8(field.value).ok().filter(|pod| !pod.is_empty()).map(Arc::from);
        }
    }
    let body = framing.body(status, method);
    let persistent = match response.version {
        Some(1) => !close,
        _ => keep_alive && !close,
    };
    Ok(Some(Head { status, len, keep_alive: persistent && body != Body::UntilEof, body, pod }))
}

/// What the header fields say about the body's length.
#[derive(Default)]
struct Framing {
    length: Option<u64>,
    /// Whether `chunked` is the last transfer coding, where there is one.
    chunked: Option<bool>,
}

impl Framing {
    /// Several equal lengths are as good as one (RFC 9112, 6.3).
    fn add_length(&mut self, value: &[u8]) -> Result<(), Malformed> {
        for part in value.split(|b| *b == b',') {
            let part = part.trim_ascii();
            if part.is_empty() || !part.iter().all(u8::is_ascii_digit) {
                return Err(Malformed);
            }
            let text = std::str::from_utf8(part).map_err(|_| Malformed)?;
            let length = text.parse::<u64>().map_err(|_| Malformed)?;
            if self.length.is_some_and(|earlier| earlier != length) {
                return Err(Malformed);
            }
            self.length = Some(length);
        }
        Ok(())
    }

    fn body(&self, status: u16, method: &Method) -> Body {
        if *method == Method::HEAD || (100..200).contains(&status) || status == 204 || status == 304 {
            return Body::Length { left: 0 };
        }
        match (self.chunked, self.length) {
            (Some(true), _) => Body::Chunked(Chunk::SizeLine(SizeLine::default())),
            (Some(false), _) | (None, None) => Body::UntilEof,
            (None, Some(left)) => Body::Length { left },
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

/// How much of a body is still to come.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Body {
    /// So many bytes.
    Length {
        /// Bytes to come.
        left: u64,
    },
    /// Chunks.
    Chunked(Chunk),
    /// Everything until the server closes the connection.
    UntilEof,
}

/// Where in a chunked body the next byte belongs.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Chunk {
    /// In the line with a chunk's size.
    SizeLine(SizeLine),
    /// In a chunk's data, with the line end that follows still to come.
    Data {
        /// Bytes of data to come.
        left: u64,
    },
    /// In the line end after a chunk's data.
    DataEnd {
        /// Whether the carriage return was there.
        cr: bool,
    },
    /// In the trailer section, in a line of `line` bytes so far.
    Trailer {
        /// Bytes of the line so far, line end left out.
        line: usize,
        /// Whether a carriage return was last.
        cr: bool,
    },
    /// Past the end.
    Done,
}

/// A chunk's size line, as far as it has been read.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct SizeLine {
    size: u64,
    digits: usize,
    len: usize,
    /// Past the digits: in white space or an extension.
    extension: bool,
    cr: bool,
}

impl Body {
    /// Whether the body is complete as it stands.
    pub(super) fn is_complete(&self) -> bool {
        matches!(self, Body::Length { left: 0 } | Body::Chunked(Chunk::Done))
    }

    /// Takes the next bytes, and answers how many of them belong to the body.
    ///
    /// # Errors
    /// When the framing is broken.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Result<usize, Malformed> {
        match self {
            Body::Length { left } => Ok(take_up_to(left, bytes)),
            Body::UntilEof => Ok(bytes.len()),
            Body::Chunked(chunk) => {
                let mut taken = 0;
                while taken < bytes.len() && *chunk != Chunk::Done {
                    taken += chunk.step(&bytes[taken..])?;
                }
                Ok(taken)
            }
        }
    }
}

/// Takes at most `left` of the bytes off `left`.
fn take_up_to(left: &mut u64, bytes: &[u8]) -> usize {
    let taken = usize::try_from(*left).map_or(bytes.len(), |left| left.min(bytes.len()));
    *left -= taken as u64;
    taken
}

impl Chunk {
    /// Takes at least one of `bytes`, which are not empty.
    fn step(&mut self, bytes: &[u8]) -> Result<usize, Malformed> {
        let byte = *bytes.first().ok_or(Malformed)?;
        match self {
            Chunk::SizeLine(line) => {
                if let Some(size) = line.push(byte)? {
                    *self = if size == 0 {
                        Chunk::Trailer { line: 0, cr: false }
                    } else {
                        Chunk::Data { left: size }
                    };
                }
                Ok(1)
            }
            Chunk::Data { left } => {
                let taken = take_up_to(left, bytes);
                if *left == 0 {
                    *self = Chunk::DataEnd { cr: false };
                }
                Ok(taken)
            }
            Chunk::DataEnd { cr } => {
                match (byte, *cr) {
                    (b'\r', false) => *cr = true,
                    (b'\n', true) => *self = Chunk::SizeLine(SizeLine::default()),
                    _ => return Err(Malformed),
                }
                Ok(1)
            }
            Chunk::Trailer { line, cr } => {
                match (byte, *cr) {
                    (b'\n', true) if *line == 0 => *self = Chunk::Done,
                    (b'\n', true) => *self = Chunk::Trailer { line: 0, cr: false },
                    (b'\r', false) => *cr = true,
                    (b'\n', false) | (_, true) => return Err(Malformed),
                    _ if *line >= MAX_LINE => return Err(Malformed),
                    _ => *line += 1,
                }
                Ok(1)
            }
            Chunk::Done => Ok(0),
        }
    }
}

impl SizeLine {
    /// Takes one byte, and answers the size when the line is complete.
    fn push(&mut self, byte: u8) -> Result<Option<u64>, Malformed> {
        self.len += 1;
        if self.len > MAX_LINE {
            return Err(Malformed);
        }
        if self.cr {
            return if byte == b'\n' { Ok(Some(self.size)) } else { Err(Malformed) };
        }
        if byte == b'\r' && self.digits > 0 {
            self.cr = true;
            return Ok(None);
        }
        if self.extension {
            return if byte == b'\n' { Err(Malformed) } else { Ok(None) };
        }
        if let Some(digit) = char::from(byte).to_digit(16) {
            self.digits += 1;
            self.size = self.size.checked_mul(16).ok_or(Malformed)? + u64::from(digit);
            return Ok(None);
        }
        if self.digits > 0 && matches!(byte, b';' | b' ' | b'\t') {
            self.extension = true;
            return Ok(None);
        }
        Err(Malformed)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn head(text: &str) -> Head {
        parse_head(text.as_bytes(), &Method::GET).unwrap().unwrap()
    }

    /// Feeds `text` in pieces of `piece` bytes; answers whether the body is complete and what it left over.
    fn feed(mut body: Body, text: &str, piece: usize) -> Result<(bool, String), Malformed> {
        let mut left_over = String::new();
        for piece in text.as_bytes().chunks(piece) {
            let taken = body.take(piece)?;
            left_over.push_str(std::str::from_utf8(&piece[taken..]).unwrap());
        }
        Ok((body.is_complete(), left_over))
    }

    fn chunked() -> Body {
        head("HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, Chunked\r\n\r\n").body
    }

    #[test]
    fn a_head_says_status_framing_persistence_and_pod() {
        let text = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nRolldrop-Pod: web-1\r\n\r\nhello";
        let expected = Head {
            status: 200,
            len: text.len() - 5,
            body: Body::Length { left: 5 },
            keep_alive: true,
            pod: Some("web-1".into()),
        };
        assert_eq!(head(text), expected);
        for end in 0..expected.len {
            assert_eq!(parse_head(&text.as_bytes()[..end], &Method::GET), Ok(None));
        }
    }

    #[test]
    fn a_connection_is_kept_only_where_both_sides_can_go_on() {
        let kept = |text: &str| head(text).keep_alive;
        assert!(!kept("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: x, Close\r\n\r\n"));
        assert!(!kept("HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n"));
        assert!(kept("HTTP/1.0 200 OK\r\nContent-Length: 0\r\nConnection: keep-alive\r\n\r\n"));
        assert!(!kept("HTTP/1.1 200 OK\r\n\r\n"), "its body ends with the connection");
    }

    #[test]
    fn some_responses_have_no_body_whatever_they_announce() {
        let announced = "content-length: 9\r\n\r\n";
        for status in ["100 Continue", "204 No Content", "304 Not Modified"] {
            let text = format!("HTTP/1.1 {status}\r\n{announced}");
            assert!(head(&text).body.is_complete(), "{status}");
        }
        let text = format!("HTTP/1.1 200 OK\r\n{announced}");
        assert!(parse_head(text.as_bytes(), &Method::HEAD).unwrap().unwrap().body.is_complete());
        assert!(!head(&text).body.is_complete());
    }

    #[test]
    fn what_is_no_head_is_malformed() {
        let malformed = |text: &str| parse_head(text.as_bytes(), &Method::GET) == Err(Malformed);
        assert!(malformed("hello"));
        assert!(malformed("HTTP/1.1 2x0 OK\r\n\r\n"));
        assert!(malformed("HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n"));
        assert!(malformed("HTTP/1.1 200 OK\r\ncontent-length: +1\r\n\r\n"));
        assert!(malformed("HTTP/1.1 200 OK\r\ncontent-length:\r\n\r\n"));
        assert!(malformed("HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n"));
        assert!(!malformed("HTTP/1.1 200 OK\r\ncontent-length: 1, 1\r\n\r\n"));
        assert!(malformed(&format!("HTTP/1.1 200 OK\r\nx: {}", "y".repeat(MAX_HEAD))));
    }

    #[test]
    fn a_length_is_counted_down() {
        let body = || Body::Length { left: 5 };
        assert_eq!(feed(body(), "hello", 2), Ok((true, String::new())));
        assert_eq!(feed(body(), "hell", 3), Ok((false, String::new())));
        assert_eq!(feed(body(), "hello!", 9), Ok((true, "!".into())));
    }

    #[test]
    fn chunks_are_followed_to_their_end_in_any_pieces() {
        let text = "5\r\nhello\r\n0a ;x=y\r\n0123456789\r\n0\r\nTrailer: t\r\n\r\nHTTP";
        for piece in 1..=text.len() {
            assert_eq!(feed(chunked(), text, piece), Ok((true, "HTTP".into())), "{piece}");
        }
        for end in 0..text.len() - 4 {
            let (complete, _) = feed(chunked(), &text[..end], 3).unwrap();
            assert!(!complete, "{:?}", &text[..end]);
        }
    }

    #[test]
    fn broken_chunks_are_malformed() {
        for text in [
            "x\r\n",
            "\r\n",
            "5\nhello",
            "5;x\nhello",
            "5\rhello",
            "5\r\nhello!\r\n",
            "5\r\nhello\n",
            "0\r\n\n",
            "0\r\n\rx",
            "11111111111111111\r\n",
            "-1\r\n",
        ] {
            assert_eq!(feed(chunked(), text, 2), Err(Malformed), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_break_the_parser(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse_head(&bytes, &Method::GET);
            let mut body = chunked();
            if let Ok(taken) = body.take(&bytes) {
                prop_assert!(taken <= bytes.len());
                prop_assert!(taken == bytes.len() || body.is_complete());
            }
        }
    }
}
