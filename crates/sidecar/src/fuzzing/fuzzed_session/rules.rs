//! The requests allowed by the protocols, determined from the bytes that both ends sent. This is a second opinion,
//! independent of the proxy's own parsing.

use rolldrop_wire::http2::{
    CONTINUATION, END_HEADERS, END_STREAM, FrameHeader, GOAWAY, HEADERS, PREFACE, PUSH_PROMISE, SETTINGS,
};

/// The setting SETTINGS_MAX_CONCURRENT_STREAMS (RFC 9113, 6.5.2).
const MAX_CONCURRENT_STREAMS: [u8; 2] = [0, 3];

/// Reader of frames from a growing byte sequence.
#[derive(Default)]
struct FrameReader {
    at: usize,
}

impl FrameReader {
    fn next<'b>(&mut self, bytes: &'b [u8]) -> Option<(FrameHeader, &'b [u8])> {
        let header = FrameHeader::read(bytes.get(self.at..)?)?;
        let payload = self.at + FrameHeader::BYTES;
        let frame = bytes.get(payload..payload + header.length)?;
        self.at = payload + header.length;
        Some((header, frame))
    }
}

/// State of a field block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FieldBlockState {
    None,
    /// The block continues in the next frame of this stream.
    Open(u32),
    /// Another frame interrupted the block, which is a connection error (RFC 9113, 6.10); no request follows it.
    Interrupted,
}

impl FieldBlockState {
    fn after(self, header: FrameHeader) -> Self {
        let begins_or_goes_on = match self {
            Self::None => header.kind != CONTINUATION,
            Self::Open(stream) => header.kind == CONTINUATION && header.stream == stream,
            Self::Interrupted => false,
        };
        match (begins_or_goes_on, header.kind) {
            (false, _) => Self::Interrupted,
            (true, HEADERS | PUSH_PROMISE | CONTINUATION) if !header.has(END_HEADERS) => {
                Self::Open(header.stream)
            }
            (true, _) => Self::None,
        }
    }
}

/// One conversation.
pub(super) struct Rules {
    of_client: FrameReader,
    of_app: FrameReader,
    got: FrameReader,
    block: FieldBlockState,
    /// The app's field block, as far as the client has received it.
    answer: FieldBlockState,
    /// Number of streams that the client has opened according to the rules, and the last of them.
    streams: usize,
    last: u32,
    /// Last stream that will be processed, once the client has the app's GOAWAY.
    goaway: Option<u32>,
    /// Numbers of SETTINGS sent by the app, received by the client, and properly acknowledged by the client.
    announced: usize,
    seen: usize,
    acknowledged: usize,
    in_order: bool,
    most_announced: Option<u32>,
    limit: Option<u32>,
}

impl Rules {
    pub(super) fn new() -> Self {
        Self {
            of_client: FrameReader { at: PREFACE.len() },
            of_app: FrameReader::default(),
            got: FrameReader::default(),
            block: FieldBlockState::None,
            answer: FieldBlockState::None,
            streams: 0,
            last: 0,
            goaway: None,
            announced: 0,
            seen: 0,
            acknowledged: 0,
            in_order: true,
            most_announced: None,
            limit: None,
        }
    }

    /// Reads all bytes that the client has sent so far. The client must already have read everything that it received
    /// before.
    pub(super) fn client_said(&mut self, sent: &[u8]) {
        while let Some((header, _)) = self.of_client.next(sent) {
            self.block = self.block.after(header);
            match header.kind {
                _ if self.block == FieldBlockState::Interrupted => return,
                HEADERS => self.opened(header.stream),
                SETTINGS if header.has(END_STREAM) => self.client_acknowledged(),
                _ => {}
            }
        }
    }

    fn opened(&mut self, stream: u32) {
        let is_answered = self.goaway.is_none_or(|last| stream <= last);
        if stream % 2 == 1 && stream > self.last && is_answered {
            self.streams += 1;
            self.last = stream;
        }
    }

    fn client_acknowledged(&mut self) {
        self.in_order &= self.announced == self.seen && self.seen == self.acknowledged + 1;
        self.acknowledged += 1;
        if self.in_order && self.streams == 0 && self.limit.is_none() {
            self.limit = self.most_announced;
        }
    }

    /// Reads all bytes that the app has sent so far.
    pub(super) fn app_said(&mut self, sent: &[u8]) {
        while let Some((header, payload)) = self.of_app.next(sent) {
            if header.kind != SETTINGS || header.has(END_STREAM) {
                continue;
            }
            self.announced += 1;
            // The proxy may or may not read SETTINGS longer than this.
            self.in_order &= header.length <= 1024;
            for [a, b, value @ ..] in payload.as_chunks::<6>().0 {
                if [*a, *b] == MAX_CONCURRENT_STREAMS {
                    let value = u32::from_be_bytes(*value);
                    self.most_announced = self.most_announced.max(Some(value));
                    self.limit = self.limit.map(|limit| limit.max(value));
                }
            }
        }
    }

    /// Reads all bytes that the client has received so far.
    pub(super) fn client_got(&mut self, got: &[u8]) {
        while let Some((header, payload)) = self.got.next(got) {
            self.answer = self.answer.after(header);
            match (header.kind, payload.first_chunk::<4>()) {
                _ if self.answer == FieldBlockState::Interrupted => return,
                (SETTINGS, _) if !header.has(END_STREAM) => self.seen += 1,
                (GOAWAY, Some(last)) if header.length <= 1024 => {
                    let last = u32::from_be_bytes(*last) & 0x7fff_ffff;
                    self.goaway = Some(self.goaway.map_or(last, |before| before.min(last)));
                }
                _ => {}
            }
        }
    }

    /// Returns the maximum number of concurrent streams; `None` if in doubt.
    pub(super) fn streams_at_once(&self) -> Option<usize> {
        self.limit.map(|limit| limit as usize)
    }

    /// Returns the maximum number of rows for a conversation in which client and app sent these bytes.
    pub(super) fn most_rows(&self, sent: &[u8], from_app: &[u8]) -> usize {
        // An HTTP/1 request head ends with an empty line; an unparsed connection has one row.
        let lines = memchr::memchr_iter(b'\r', sent);
        let heads = lines.filter(|at| sent[*at..].starts_with(b"\r\n\r\n")).count();
        let is_strange = !sent.starts_with(b"GET") && !sent.starts_with(PREFACE);
        // Before the client has sent anything, the app can show that it speaks another protocol.
        let is_unread = is_strange || !from_app.is_empty() && !from_app.starts_with(b"HTTP/");
        let heads = if sent.starts_with(PREFACE) { 0 } else { heads };
        heads.max(self.streams).max(usize::from(is_unread))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        [&FrameHeader { length: payload.len(), kind, flags, stream }.bytes()[..], payload].concat()
    }

    #[test]
    fn rules_skip_invalid_and_late_streams() {
        let mut rules = Rules::new();
        let head = |stream| frame(HEADERS, END_HEADERS, stream, b"\x82");
        let mut sent = [PREFACE, &head(1), &head(2), &head(1), &head(5)].concat();
        rules.client_said(&sent);
        assert_eq!(rules.most_rows(&sent, b""), 2);
        rules.client_got(&frame(GOAWAY, 0, 0, &[0, 0, 0, 7, 0, 0, 0, 0]));
        sent.extend([head(7), head(9), head(11)].concat());
        rules.client_said(&sent);
        assert_eq!(rules.most_rows(&sent, b""), 3);
    }

    #[test]
    fn rules_ignore_goaway_after_connection_error() {
        let head = [PREFACE, &frame(HEADERS, END_HEADERS, 9, b"\x82")].concat();
        let goaway = frame(GOAWAY, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 0]);
        let interrupted = frame(CONTINUATION, END_HEADERS, 1, b"");
        for (got, streams) in [(goaway.clone(), 0), ([interrupted, goaway].concat(), 1)] {
            let mut rules = Rules::new();
            rules.client_got(&got);
            rules.client_said(&head);
            assert_eq!(rules.most_rows(&head, b""), streams);
        }
    }

    #[test]
    fn settings_apply_after_client_ack() {
        let mut rules = Rules::new();
        let settings = frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 4]);
        rules.app_said(&settings);
        rules.client_got(&settings);
        assert_eq!(rules.streams_at_once(), None);
        rules.client_said(&[PREFACE, &frame(SETTINGS, 1, 0, b"")].concat());
        assert_eq!(rules.streams_at_once(), Some(4));
    }
}
