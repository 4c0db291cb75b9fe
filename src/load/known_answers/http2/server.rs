//! An HTTP/2 server that plays a script per request and writes down what it did. It writes its
//! frames itself, so that it can write wrong ones.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use httlib_hpack::Decoder;
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::task::JoinSet;

use crate::record::{Outcome, RequestId};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;

const NO_ERROR: u32 = 0;
const INTERNAL_ERROR: u32 = 2;
const REFUSED_STREAM: u32 = 7;
const CANCEL: u32 = 8;

/// What the server does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Script {
    Ok,
    InPieces,
    Padded,
    Continued,
    Interim,
    NoContent,
    Trailers,
    NotFound,
    Unavailable,
    /// The whole answer, and RST_STREAM(NO_ERROR) after it.
    OkThenReset,
    Refused,
    ResetSilently,
    ResetInBody,
    ShortBody,
    LongBody,
    CloseSilently,
    CloseInBody,
    /// Resets the connection.
    BreakSilently,
    BreakInBody,
    /// Answers, and closes when the next request comes.
    CloseNext,
    /// GOAWAY that leaves this request out.
    GoAwayBefore,
    /// GOAWAY that does not, and the answer.
    GoAwayThenAnswer,
    /// GOAWAY that does not, and no answer.
    GoAwayThenClose,
    BadFrame,
    BadHeaders,
    Http1,
    HangSilently,
    HangInBody,
    /// A byte now and then, without end.
    Drip,
}

/// What ends a stream and leaves its connection alone.
pub(super) const STREAMS: [Script; 15] = [
    Script::Ok,
    Script::InPieces,
    Script::Refused,
    Script::Padded,
    Script::Continued,
    Script::ResetSilently,
    Script::Interim,
    Script::NoContent,
    Script::ResetInBody,
    Script::Trailers,
    Script::NotFound,
    Script::ShortBody,
    Script::Unavailable,
    Script::OkThenReset,
    Script::LongBody,
];

/// What ends the connection.
pub(super) const CONNECTIONS: [Script; 11] = [
    Script::CloseSilently,
    Script::CloseInBody,
    Script::BreakSilently,
    Script::BreakInBody,
    Script::CloseNext,
    Script::GoAwayBefore,
    Script::GoAwayThenAnswer,
    Script::GoAwayThenClose,
    Script::BadFrame,
    Script::BadHeaders,
    Script::Http1,
];

pub(super) const HANGING: [Script; 3] = [Script::HangSilently, Script::HangInBody, Script::Drip];

enum Then {
    Go,
    Close,
    Break,
    /// Close when the next request comes.
    CloseNext,
    Drip,
}

impl Script {
    /// What a client should see: outcome, status, and what HTTP/2 said of it.
    fn truth(self) -> (Outcome, Option<u16>, Option<&'static str>) {
        use Script as S;
        match self {
            S::Ok
            | S::InPieces
            | S::Padded
            | S::Continued
            | S::Interim
            | S::Trailers
            | S::OkThenReset
            | S::CloseNext
            | S::GoAwayThenAnswer => (Outcome::Ok, Some(200), None),
            S::NoContent => (Outcome::Ok, Some(204), None),
            S::NotFound => (Outcome::HttpError, Some(404), None),
            S::Unavailable => (Outcome::HttpError, Some(503), None),
            S::Refused => (Outcome::H2RefusedStream, None, Some("REFUSED_STREAM")),
            S::ResetSilently => (Outcome::ResetBeforeResponse, None, Some("INTERNAL_ERROR")),
            S::ResetInBody => (Outcome::ResetMidResponse, Some(200), Some("CANCEL")),
            S::ShortBody | S::CloseInBody => (Outcome::TruncatedBody, Some(200), None),
            S::LongBody => (Outcome::ProtocolError, Some(200), None),
            S::CloseSilently => (Outcome::EofBeforeResponse, None, None),
            S::BreakSilently => (Outcome::ResetBeforeResponse, None, None),
            S::BreakInBody => (Outcome::ResetMidResponse, Some(200), None),
            S::GoAwayBefore => (Outcome::H2Goaway, None, Some("GOAWAY NO_ERROR")),
            S::GoAwayThenClose => (Outcome::EofBeforeResponse, None, Some("GOAWAY NO_ERROR")),
            S::BadFrame | S::BadHeaders | S::Http1 => (Outcome::ProtocolError, None, None),
            S::HangSilently => (Outcome::ResponseTimeout, None, None),
            S::HangInBody | S::Drip => (Outcome::BodyTimeout, Some(200), None),
        }
    }

    /// The frames of the answer on a stream, and what comes after them.
    fn answer(self, stream: u32) -> (Vec<u8>, Then) {
        use Script as S;
        let status = |status: &str| [field(":status", status), field("rolldrop-pod", "web-1")].concat();
        let ok = |length: &str| [status("200"), field("content-length", length)].concat();
        let headers = |flags, block: &[u8]| frame(HEADERS, END_HEADERS | flags, stream, block);
        let data = |flags, bytes: &[u8]| frame(DATA, flags, stream, bytes);
        let reset = |code: u32| frame(RST_STREAM, 0, stream, &code.to_be_bytes());
        let whole = || [headers(0, &ok("5")), data(END_STREAM, b"hello")].concat();
        let part = || [headers(0, &ok("9")), data(0, b"hello")].concat();
        match self {
            S::Ok => (whole(), Then::Go),
            S::InPieces => {
                let pieces = [data(0, b"he"), data(0, b""), data(0, b"llo"), data(END_STREAM, b"")].concat();
                ([headers(0, &status("200")), pieces].concat(), Then::Go)
            }
            S::Padded => {
                let padded = data(END_STREAM | PADDED, b"\x03hello\0\0\0");
                ([headers(0, &ok("5")), padded].concat(), Then::Go)
            }
            S::Continued => {
                let block = ok("5");
                let (first, rest) = block.split_at(7);
                let head = [
                    frame(HEADERS, 0, stream, first),
                    frame(CONTINUATION, END_HEADERS, stream, rest),
                    data(END_STREAM, b"hello"),
                ];
                (head.concat(), Then::Go)
            }
            S::Interim => ([headers(0, &field(":status", "103")), whole()].concat(), Then::Go),
            S::NoContent => (headers(END_STREAM, &status("204")), Then::Go),
            S::Trailers => {
                let trailers = headers(END_STREAM, &field("checksum", "x"));
                ([headers(0, &ok("5")), data(0, b"hello"), trailers].concat(), Then::Go)
            }
            S::NotFound => (headers(END_STREAM, &status("404")), Then::Go),
            S::Unavailable => ([headers(0, &status("503")), data(END_STREAM, b"busy")].concat(), Then::Go),
            S::OkThenReset => ([whole(), reset(NO_ERROR)].concat(), Then::Go),
            S::Refused => (reset(REFUSED_STREAM), Then::Go),
            S::ResetSilently => (reset(INTERNAL_ERROR), Then::Go),
            S::ResetInBody => ([part(), reset(CANCEL)].concat(), Then::Go),
            S::ShortBody => ([headers(0, &ok("9")), data(END_STREAM, b"hello")].concat(), Then::Go),
            S::LongBody => ([headers(0, &ok("2")), data(END_STREAM, b"hello")].concat(), Then::Go),
            S::CloseSilently => (Vec::new(), Then::Close),
            S::CloseInBody => (part(), Then::Close),
            S::BreakSilently => (Vec::new(), Then::Break),
            S::BreakInBody => (part(), Then::Break),
            S::CloseNext => (whole(), Then::CloseNext),
            S::GoAwayBefore => (goaway(stream.saturating_sub(2), NO_ERROR), Then::Close),
            S::GoAwayThenAnswer => ([goaway(stream, NO_ERROR), whole()].concat(), Then::Close),
            S::GoAwayThenClose => (goaway(stream, NO_ERROR), Then::Close),
            S::BadFrame => (frame(DATA, 0, 0, b"on no stream"), Then::Close),
            // The index 0 means nothing.
            S::BadHeaders => (headers(END_STREAM, &[0x80]), Then::Close),
            S::Http1 => (b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n".to_vec(), Then::Close),
            S::HangSilently => (Vec::new(), Then::Go),
            S::HangInBody => (part(), Then::Go),
            S::Drip => (headers(0, &status("200")), Then::Drip),
        }
    }
}

/// A frame.
pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

fn goaway(last_stream: u32, code: u32) -> Vec<u8> {
    frame(GOAWAY, 0, 0, &[last_stream.to_be_bytes(), code.to_be_bytes()].concat())
}

fn settings(settings: &[(u16, u32)]) -> Vec<u8> {
    let entry = |(name, value): &(u16, u32)| [&name.to_be_bytes()[..], &value.to_be_bytes()].concat();
    frame(SETTINGS, 0, 0, &settings.iter().flat_map(entry).collect::<Vec<u8>>())
}

/// A header field as it stands: a literal without an index (RFC 7541, 6.2.2).
fn field(name: &str, value: &str) -> Vec<u8> {
    let text = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    [vec![0], text(name), text(value)].concat()
}

/// Bytes of the frames that make a message of `stream` in `bytes`, if these are frames.
fn message_bytes(mut bytes: &[u8]) -> u64 {
    let mut sum = 0;
    while bytes.len() >= 9 {
        let length = 9 + u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]) as usize;
        if length > bytes.len() {
            break;
        }
        if matches!(bytes[3], DATA | HEADERS | CONTINUATION) && bytes[5..9] != [0; 4] {
            sum += length as u64;
        }
        bytes = &bytes[length..];
    }
    sum
}

/// What the server did to a request.
#[derive(Clone, Debug)]
pub(super) struct Truth {
    /// The script that it played; `None` where it closed the connection instead.
    pub(super) script: Option<Script>,
    pub(super) outcome: Outcome,
    pub(super) status: Option<u16>,
    pub(super) detail: Option<&'static str>,
    pub(super) peer: SocketAddr,
    pub(super) stream: u32,
    /// Whether the connection had carried a request before.
    pub(super) reused: bool,
    pub(super) request_bytes: u64,
    pub(super) answer_bytes: u64,
    /// Requests of the connection that were not answered when this one came, with it.
    pub(super) open: usize,
}

pub(super) type Log = Arc<Mutex<BTreeMap<(String, u64), Truth>>>;

/// How a server goes about it.
#[derive(Clone, Debug, Default)]
pub(super) struct Habits {
    /// Played in turn, by the request's number.
    pub(super) scripts: Vec<Script>,
    /// Told to each client at first,
    pub(super) settings: Vec<(u16, u32)>,
    /// and when so many requests of a connection have come.
    pub(super) later: Option<(usize, Vec<(u16, u32)>)>,
    /// No answer to a connection's requests after so many, and when so many have come, a GOAWAY
    /// that says so.
    pub(super) goaway_after: Option<(usize, usize)>,
    /// Answers wait for so long.
    pub(super) answer_after: Duration,
}

pub(super) struct Server {
    pub(super) address: SocketAddr,
    pub(super) log: Log,
    /// Owns the accepting task, which owns the connections.
    _tasks: JoinSet<()>,
}

impl Server {
    pub(super) async fn start(habits: Habits) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (log, mut tasks) = (Log::default(), JoinSet::new());
        let (accepted, habits) = (log.clone(), Arc::new(habits));
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, peer) = listener.accept().await.unwrap();
                stream.set_nodelay(true).unwrap();
                let (read, write) = stream.into_split();
                let connection = Connection {
                    read,
                    write: Arc::new(tokio::sync::Mutex::new(write)),
                    peer,
                    decoder: Decoder::default(),
                    requests: 0,
                    open: Arc::default(),
                    tasks: JoinSet::new(),
                    habits: habits.clone(),
                    log: accepted.clone(),
                };
                connections.spawn(connection.serve());
            }
        });
        Self { address, log, _tasks: tasks }
    }
}

struct Connection {
    read: OwnedReadHalf,
    write: Arc<tokio::sync::Mutex<OwnedWriteHalf>>,
    peer: SocketAddr,
    decoder: Decoder<'static>,
    requests: usize,
    /// Requests that are not answered.
    open: Arc<Mutex<usize>>,
    /// Answers that take their time.
    tasks: JoinSet<()>,
    habits: Arc<Habits>,
    log: Log,
}

struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

impl Connection {
    async fn write(&self, bytes: &[u8]) {
        // A client that has gone is told nothing.
        let _ = self.write.lock().await.write_all(bytes).await;
    }

    async fn next(&mut self) -> Option<Frame> {
        let mut header = [0; 9];
        self.read.read_exact(&mut header).await.ok()?;
        let [a, b, c, kind, flags, ref stream @ ..] = header;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        self.read.read_exact(&mut payload).await.ok()?;
        Some(Frame { kind, flags, stream: u32::from_be_bytes(*stream), payload })
    }

    async fn serve(mut self) {
        let mut preface = [0; 24];
        if self.read.read_exact(&mut preface).await.is_err() {
            return;
        }
        assert_eq!(&preface, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        self.write(&settings(&self.habits.settings)).await;
        let mut close_next = false;
        while let Some(frame) = self.next().await {
            match (frame.kind, frame.flags) {
                (SETTINGS, 0) => self.write(&self::frame(SETTINGS, 1, 0, &[])).await,
                (PING, 0) => self.write(&self::frame(PING, 1, 0, &frame.payload)).await,
                (HEADERS, _) => match self.request(frame, close_next).await {
                    Then::Go => {}
                    Then::CloseNext => close_next = true,
                    Then::Close | Then::Drip => return,
                    Then::Break => {
                        let write = Arc::into_inner(self.write).unwrap().into_inner();
                        SockRef::from(write.as_ref()).set_linger(Some(Duration::ZERO)).unwrap();
                        // Dropped as it is, it would close its direction first.
                        write.forget();
                        return;
                    }
                },
                _ => {}
            }
        }
    }

    /// Reads the rest of a request, writes down what is to happen to it, and has it happen.
    async fn request(&mut self, head: Frame, close_next: bool) -> Then {
        let stream = head.stream;
        assert_eq!(head.flags & END_HEADERS, END_HEADERS, "a head of one frame");
        let mut request_bytes = 9 + head.payload.len() as u64;
        let Some(id) = self.id(head.payload) else {
            // Sent again.
            self.write(&Script::Ok.answer(stream).0).await;
            return Then::Go;
        };
        let mut is_whole = head.flags & END_STREAM != 0;
        while !is_whole {
            let Some(frame) = self.next().await else { return Then::Close };
            if frame.kind == DATA && frame.stream == stream {
                request_bytes += 9 + frame.payload.len() as u64;
                is_whole = frame.flags & END_STREAM != 0;
            }
        }
        let scripts = &self.habits.scripts;
        let script = scripts[usize::try_from(id.seq).unwrap() % scripts.len()];
        let (answer, then) = script.answer(stream);
        let (outcome, status, detail) = script.truth();
        self.requests += 1;
        let open = {
            let mut open = self.open.lock().unwrap();
            *open += 1;
            *open
        };
        let truth = Truth {
            script: Some(script),
            outcome,
            status,
            detail,
            peer: self.peer,
            stream,
            reused: self.requests > 1,
            request_bytes,
            answer_bytes: message_bytes(&answer),
            open,
        };
        let is_left_out = self.habits.goaway_after.is_some_and(|(after, _)| self.requests > after);
        let truth = match (close_next, is_left_out) {
            (false, false) => truth,
            (true, _) => Truth {
                script: None,
                outcome: Outcome::EofBeforeResponse,
                status: None,
                detail: None,
                answer_bytes: 0,
                ..truth
            },
            (_, true) => Truth {
                script: None,
                outcome: Outcome::H2Goaway,
                status: None,
                detail: Some("GOAWAY NO_ERROR"),
                answer_bytes: 0,
                ..truth
            },
        };
        let earlier = self.log.lock().unwrap().insert((id.source, id.seq), truth);
        assert!(earlier.is_none(), "the request came twice");
        if close_next {
            return Then::Close;
        }
        if let Some((after, told)) = self.habits.goaway_after
            && told == self.requests
        {
            let last_stream = u32::try_from(2 * after - 1).unwrap();
            self.write(&goaway(last_stream, NO_ERROR)).await;
        }
        if is_left_out {
            return Then::Go;
        }
        if let Some((after, later)) = &self.habits.later
            && *after == self.requests
        {
            self.write(&settings(later)).await;
        }
        let (write, open, wait) = (self.write.clone(), self.open.clone(), self.habits.answer_after);
        let drips = matches!(then, Then::Drip);
        let answering = async move {
            tokio::time::sleep(wait).await;
            *open.lock().unwrap() -= 1;
            let mut part = answer;
            while write.lock().await.write_all(&part).await.is_ok() && drips {
                tokio::time::sleep(Duration::from_millis(50)).await;
                part = self::frame(DATA, 0, stream, b"x");
            }
        };
        match then {
            Then::Go if wait.is_zero() => answering.await,
            Then::Go | Then::Drip => {
                self.tasks.spawn(answering);
                return Then::Go;
            }
            _ => answering.await,
        }
        then
    }

    fn id(&mut self, mut block: Vec<u8>) -> Option<RequestId> {
        let mut fields = Vec::new();
        self.decoder.decode(&mut block, &mut fields).unwrap();
        let (_, id, _) = fields.into_iter().find(|(name, _, _)| name == b"rolldrop-id")?;
        Some(String::from_utf8(id).unwrap().parse().unwrap())
    }
}
