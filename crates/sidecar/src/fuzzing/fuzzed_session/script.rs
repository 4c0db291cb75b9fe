//! The steps of a session, derived from an input.
//!
//! When the input is exhausted, derived bytes follow so that every session has enough steps.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use rolldrop_wire::http2::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, FrameHeader, GOAWAY, HEADERS, PADDED, PREFACE, PRIORITY,
    PUSH_PROMISE, RST_STREAM, SETTINGS, WINDOW_UPDATE,
};

/// Minimum and maximum number of steps in a session.
pub(super) const FEWEST_STEPS: usize = 24;
pub(super) const MOST_STEPS: usize = 96;
/// Maximum number of clients in a session.
pub(super) const MOST_PAIRS: usize = 6;

/// One side of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConversationSide {
    Client,
    App,
}

/// A step of a session.
#[derive(Debug)]
pub(super) enum SessionStep {
    /// A client connects.
    Connect,
    /// One end of a conversation sends these bytes, split in two at the given position.
    Say(ConversationSide, usize, Vec<u8>, usize),
    /// The end stops sending but keeps reading.
    Close(ConversationSide, usize),
    Reset(ConversationSide, usize),
    /// The end stops reading, or resumes.
    Stall(ConversationSide, usize),
    /// A valid request and response, if nothing else has been sent: over HTTP/2 if a stream is given.
    Exchange(usize, Option<u32>),
    Wait(Duration),
    /// The app's listener closes, and its connections are reset.
    AppDies,
    /// The pod terminates: the proxy gets SIGTERM.
    Drain,
    /// The proxy gets the second signal.
    Hurry,
    /// A user requests this from the admin port.
    Ask(&'static str),
    /// The last user of the admin port reads, or disconnects.
    Collect,
    BreakOff,
}

impl Display for SessionStep {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            SessionStep::Say(side, pair, bytes, cut) => {
                let shown = bytes[..bytes.len().min(120)].escape_ascii();
                write!(f, "Say({side:?}, {pair}, {} bytes cut at {cut}: {shown})", bytes.len())
            }
            step => write!(f, "{step:?}"),
        }
    }
}

/// Bytes that an HTTP/1 client sends.
const REQUESTS: &[&str] = &[
    "GET / HTTP/1.1\r\nhost: a\r\n\r\n",
    "GET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n",
    "POST / HTTP/1.1\r\ncontent-length: 5\r\n\r\nhello",
    "POST / HTTP/1.1\r\nexpect: 100-continue\r\ntransfer-encoding: chunked\r\n\r\n",
    "5\r\nhello\r\n",
    "0\r\n\r\n",
    "HEAD / HTTP/1.1\r\n\r\n",
    "GET /up HTTP/1.1\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
    "GET / HTTP/1.0\r\nconnection: keep-alive\r\n\r\n",
    "GET / HTTP/1.1\r\nrolldrop-id: run-load-1\r\n",
    "GET / HT",
    "x: y\r\n",
    "\r\n",
    "\r",
    "hello",
    "POST / HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n",
    "CONNECT a:1 HTTP/1.1\r\n\r\n",
    "GET / HTTP/3.0\r\n\r\n",
    "PRI * HTTP/2.0\r\n",
    "\u{16}\u{3}\u{1}",
];
/// Bytes that an HTTP/1 app sends.
const ANSWERS: &[&str] = &[
    "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
    "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
    "HTTP/1.1 100 Continue\r\n\r\n",
    "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
    "5\r\nhello\r\n",
    "0\r\n\r\n",
    "HTTP/1.1 200 OK\r\n\r\n",
    "HTTP/1.1 204 No Content\r\n\r\n",
    "HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n",
    "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n",
    "\r\n",
    "hello",
    "x: y\r\n",
    "220 mail.example ESMTP\r\n",
];
/// Field blocks: a request, a response, a table entry, and some invalid ones.
const BLOCKS: &[&[u8]] = &[
    b"\x82\x86\x84",
    b"\x88",
    b"\x88\x00\x0bgrpc-status\x010",
    b"\x40\x0brolldrop-id\x0arun-load-1",
    b"\xbe",
    b"\x3f\xe1\x1f",
    b"\xff\xff\xff",
    b"\x08\x03100",
    b"\x40\x01a\x01b\xbe",
    b"",
];

/// Returns a valid request and its response, in HTTP/2 if a stream is given.
pub(super) fn good_exchange(stream: Option<u32>, is_first: bool) -> (Vec<u8>, Vec<u8>) {
    let Some(stream) = stream else {
        let ask = b"GET / HTTP/1.1\r\nhost: web\r\n\r\n";
        return (ask.to_vec(), b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello".to_vec());
    };
    let frame = |kind, flags, stream, payload: &[u8]| {
        [&FrameHeader { length: payload.len(), kind, flags, stream }.bytes()[..], payload].concat()
    };
    let settings = if is_first { frame(SETTINGS, 0, 0, b"") } else { Vec::new() };
    let preface = if is_first { PREFACE } else { b"" };
    let head = frame(HEADERS, END_HEADERS | END_STREAM, stream, b"\x82\x86\x84");
    let answer = [frame(HEADERS, END_HEADERS, stream, b"\x88"), frame(DATA, END_STREAM, stream, b"hello")];
    ([preface, &settings, &head].concat(), [settings, answer.concat()].concat())
}

/// Reader of an input, step by step.
pub(super) struct InputScript<'a> {
    input: &'a [u8],
    state: u64,
    steps: usize,
    /// Latest stream of each conversation.
    streams: [u32; MOST_PAIRS],
}

impl<'a> InputScript<'a> {
    pub(super) fn new(input: &'a [u8]) -> Self {
        // FNV-1a.
        let hash = |state: u64, byte: &u8| (state ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        let state = input.iter().fold(0xcbf2_9ce4_8422_2325, hash);
        Self { input, state, steps: 0, streams: [0; MOST_PAIRS] }
    }

    /// Returns the number of steps so far.
    pub(super) fn steps(&self) -> usize {
        self.steps
    }

    /// Returns the next byte.
    pub(super) fn byte(&mut self) -> u8 {
        if let Some((byte, rest)) = self.input.split_first() {
            self.input = rest;
            return *byte;
        }
        self.state =
            self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.state.to_be_bytes()[0]
    }

    fn below(&mut self, most: usize) -> usize {
        usize::from(self.byte()) % most
    }

    fn one_of<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    fn side(&mut self) -> ConversationSide {
        self.one_of(&[ConversationSide::Client, ConversationSide::App])
    }

    /// Returns the next step; `None` once there have been enough. `pairs` is the number of conversations.
    pub(super) fn step(&mut self, pairs: usize) -> Option<SessionStep> {
        let is_over = self.steps >= FEWEST_STEPS && self.input.is_empty() || self.steps >= MOST_STEPS;
        if is_over {
            return None;
        }
        self.steps += 1;
        // A session begins with one client; further clients connect at random.
        if pairs == 0 {
            return Some(SessionStep::Connect);
        }
        let kind = self.byte();
        let pair = self.below(pairs.min(MOST_PAIRS));
        // Every other conversation is mostly HTTP/2.
        let is_http2 = pair % 2 == 1;
        Some(match kind % 64 {
            0..=5 => SessionStep::Connect,
            6..=45 => {
                let side =
                    if kind.is_multiple_of(2) { ConversationSide::Client } else { ConversationSide::App };
                let bytes = match kind % 64 {
                    6..=39 if is_http2 ^ (kind >= 240) => self.http2(side, pair),
                    6..=39 => self.http1(side),
                    40..=41 => self.raw(),
                    _ => self.flood(side, pair),
                };
                let cut = self.below(64).min(bytes.len());
                SessionStep::Say(side, pair, bytes, cut)
            }
            46..=48 => SessionStep::Close(self.side(), pair),
            49 => SessionStep::Reset(self.side(), pair),
            50..=52 => SessionStep::Stall(self.side(), pair),
            53..=56 => SessionStep::Exchange(pair, is_http2.then(|| self.next_stream(pair))),
            57 => {
                let ms = self.one_of(&[20, 150, 1100, 6000, 31_000]);
                SessionStep::Wait(Duration::from_millis(ms))
            }
            58 if self.byte().is_multiple_of(2) => SessionStep::AppDies,
            59 if self.byte().is_multiple_of(4) => SessionStep::Drain,
            60 if self.byte().is_multiple_of(4) => SessionStep::Hurry,
            61 => SessionStep::Ask(self.one_of(&[
                "/rows?from=0",
                "/rows?from=9",
                "/metrics",
                "/prestop",
                "/clock",
            ])),
            62 => SessionStep::Collect,
            63 => SessionStep::BreakOff,
            _ => SessionStep::Wait(Duration::from_millis(1)),
        })
    }

    fn http1(&mut self, side: ConversationSide) -> Vec<u8> {
        let table = if side == ConversationSide::Client { REQUESTS } else { ANSWERS };
        let mut bytes = self.one_of(table).as_bytes().to_vec();
        if self.byte().is_multiple_of(4) {
            bytes.extend_from_slice(self.one_of(table).as_bytes());
        }
        bytes
    }

    fn raw(&mut self) -> Vec<u8> {
        let length = 1 + self.below(12);
        (0..length).map(|_| self.byte()).collect()
    }

    /// Returns a few frames.
    fn http2(&mut self, side: ConversationSide, pair: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        if side == ConversationSide::Client && self.streams[pair] == 0 {
            bytes.extend_from_slice(PREFACE);
            // Two below the client's first stream number, modulo 2^32.
            self.streams[pair] = u32::MAX;
        }
        for _ in 0..=self.below(3) {
            self.frame(side, pair, &mut bytes);
        }
        bytes
    }

    fn next_stream(&mut self, pair: usize) -> u32 {
        let latest = &mut self.streams[pair];
        *latest = if *latest == 0 { 1 } else { latest.wrapping_add(2) };
        *latest
    }

    fn stream(&mut self, pair: usize) -> u32 {
        let next = self.streams[pair].wrapping_add(2);
        match self.below(8) {
            0..=3 => self.next_stream(pair),
            4 => next.wrapping_sub(2),
            5 => next.wrapping_add(1),
            6 => self.below(8).try_into().unwrap_or(0),
            _ => 0x7fff_ffff - u32::from(self.byte()),
        }
    }

    fn frame(&mut self, side: ConversationSide, pair: usize, to: &mut Vec<u8>) {
        let mut put = |kind: u8, flags: u8, stream: u32, payload: &[u8]| {
            to.extend_from_slice(&FrameHeader { length: payload.len(), kind, flags, stream }.bytes());
            to.extend_from_slice(payload);
        };
        let stream = match side {
            ConversationSide::Client => self.stream(pair),
            // More often than not, the app responds on an existing stream.
            ConversationSide::App => self.streams[pair].wrapping_sub(2 * u32::from(self.byte() % 4)),
        };
        match self.below(16) {
            0..=3 => {
                let block = if side == ConversationSide::Client { BLOCKS[0] } else { BLOCKS[1] };
                put(HEADERS, END_HEADERS | END_STREAM, stream, block);
            }
            4..=6 => {
                let flags = self.byte() & (END_HEADERS | END_STREAM | PADDED | PRIORITY);
                let block = self.one_of(BLOCKS);
                put(HEADERS, flags, stream, block);
            }
            7 => put(CONTINUATION, self.byte() & END_HEADERS, stream, self.one_of(BLOCKS)),
            8 => put(DATA, self.byte() & END_STREAM, stream, b"hello"),
            9 => put(RST_STREAM, 0, stream, &[0, 0, 0, 8]),
            10 => {
                let streams = self.below(6).try_into().unwrap_or(0);
                put(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, streams]);
            }
            11 => put(SETTINGS, END_STREAM, 0, b""),
            12 => {
                let (name, value) = (self.one_of(&[1, 5]), self.byte());
                put(SETTINGS, 0, 0, &[0, name, 0, value % 2, value, 0]);
            }
            13 => put(GOAWAY, 0, 0, &[0, 0, 0, self.byte() % 8, 0, 0, 0, 0]),
            14 => put(PUSH_PROMISE, END_HEADERS, stream, b"\0\0\0\x02\x82\x86\x84"),
            _ => put(self.one_of(&[6, WINDOW_UPDATE, 0xfa]), 0, 0, &[0; 8]),
        }
    }

    /// Returns many repetitions of the same bytes.
    fn flood(&mut self, side: ConversationSide, pair: usize) -> Vec<u8> {
        let times = 1 + usize::from(self.byte());
        match (self.below(6), side) {
            (0, ConversationSide::Client) => {
                [&b"GET / HTTP/1.1\r\nx: "[..], &vec![b'x'; times * 700]].concat()
            }
            (0, ConversationSide::App) => [&b"HTTP/1.1 200 OK\r\nx: "[..], &vec![b'x'; times * 700]].concat(),
            (1, ConversationSide::Client) => b"GET / HTTP/1.1\r\n\r\n".repeat(times * 4),
            (1, ConversationSide::App) => b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".repeat(times),
            (2, _) => b"x: y\r\n".repeat(times * 30),
            (3, _) => self.many_streams(side, pair, times * 4),
            (4, _) => {
                // An endless block of entries for the field table.
                let entry = [&b"\x40\x01a\x7f\x80\x01"[..], &[b'v'; 255]].concat();
                let block = entry.repeat(60);
                let stream = if side == ConversationSide::Client { self.stream(pair) } else { 1 };
                let kind = self.one_of(&[HEADERS, CONTINUATION]);
                let flags = self.byte() & END_HEADERS;
                let mut bytes = Vec::new();
                for at in 0..times / 16 + 1 {
                    let kind = if at == 0 { kind } else { CONTINUATION };
                    bytes
                        .extend_from_slice(&FrameHeader { length: block.len(), kind, flags, stream }.bytes());
                    bytes.extend_from_slice(&block);
                }
                bytes
            }
            _ => vec![self.byte(); times * 600],
        }
    }

    /// Returns request heads on increasing stream numbers, or response heads.
    fn many_streams(&mut self, side: ConversationSide, pair: usize, times: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        let (step, block) = match side {
            ConversationSide::Client => (self.one_of(&[2, 2, 1, 0]), BLOCKS[0]),
            ConversationSide::App => (2, BLOCKS[1]),
        };
        let first = match (side, self.below(3)) {
            (ConversationSide::Client, 0) => self.streams[pair].wrapping_add(3),
            (ConversationSide::Client, _) => self.streams[pair].wrapping_add(2),
            (ConversationSide::App, _) => 1,
        };
        let flags = END_HEADERS | self.byte() & END_STREAM;
        let mut stream = first;
        for _ in 0..times {
            let header = FrameHeader { length: block.len(), kind: HEADERS, flags, stream };
            bytes.extend_from_slice(&header.bytes());
            bytes.extend_from_slice(block);
            stream = stream.wrapping_add(step);
        }
        if side == ConversationSide::Client {
            self.streams[pair] = stream | 1;
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fuzz_script_has_bounded_steps() {
        for input in [&b""[..], b"\x00", &[0xff; 100], &[7; 4096]] {
            let mut script = InputScript::new(input);
            let steps = std::iter::from_fn(|| script.step(2)).count();
            assert!((FEWEST_STEPS..=MOST_STEPS).contains(&steps), "{steps}");
        }
    }
}
