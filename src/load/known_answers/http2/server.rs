//! An HTTP/2 server that plays a script per request and writes down what it did. It writes its
//! frames itself, so that it can write wrong ones.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use httlib_hpack::Decoder;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf, split};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::grpc::Answer;
use crate::load::known_answers::transport::{self, ALERT, Transport};
use crate::record::{Outcome, RequestId};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;

pub(super) const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;

/// Error codes (RFC 9113, 7), and one that nobody has defined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Code(u32);

pub(super) const NO_ERROR: Code = Code(0);
pub(super) const PROTOCOL_ERROR: Code = Code(1);
pub(super) const INTERNAL_ERROR: Code = Code(2);
const REFUSED_STREAM: Code = Code(7);
const CANCEL: Code = Code(8);
pub(super) const ENHANCE_YOUR_CALM: Code = Code(11);

/// What is said of a code, alone and in a GOAWAY.
const NAMES: [(u32, &str, &str); 15] = [
    (0, "NO_ERROR", "GOAWAY NO_ERROR"),
    (1, "PROTOCOL_ERROR", "GOAWAY PROTOCOL_ERROR"),
    (2, "INTERNAL_ERROR", "GOAWAY INTERNAL_ERROR"),
    (3, "FLOW_CONTROL_ERROR", "GOAWAY FLOW_CONTROL_ERROR"),
    (4, "SETTINGS_TIMEOUT", "GOAWAY SETTINGS_TIMEOUT"),
    (5, "STREAM_CLOSED", "GOAWAY STREAM_CLOSED"),
    (6, "FRAME_SIZE_ERROR", "GOAWAY FRAME_SIZE_ERROR"),
    (7, "REFUSED_STREAM", "GOAWAY REFUSED_STREAM"),
    (8, "CANCEL", "GOAWAY CANCEL"),
    (9, "COMPRESSION_ERROR", "GOAWAY COMPRESSION_ERROR"),
    (10, "CONNECT_ERROR", "GOAWAY CONNECT_ERROR"),
    (11, "ENHANCE_YOUR_CALM", "GOAWAY ENHANCE_YOUR_CALM"),
    (12, "INADEQUATE_SECURITY", "GOAWAY INADEQUATE_SECURITY"),
    (13, "HTTP_1_1_REQUIRED", "GOAWAY HTTP_1_1_REQUIRED"),
    (0xbad, "error code 0xbad", "GOAWAY error code 0xbad"),
];

impl Code {
    /// All but REFUSED_STREAM, which has a script of its own.
    fn others() -> impl Iterator<Item = Self> {
        NAMES.iter().map(|(code, ..)| Self(*code)).filter(|code| *code != REFUSED_STREAM)
    }

    fn names(self) -> (&'static str, &'static str) {
        let found = NAMES.iter().find(|(code, ..)| *code == self.0);
        found.map(|(_, alone, goaway)| (*alone, *goaway)).unwrap()
    }
}

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
    /// REFUSED_STREAM, when part of an answer has gone out.
    RefusedInBody,
    ResetSilently(Code),
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
    GoAwayBefore(Code),
    /// GOAWAY that does not, and the answer.
    GoAwayThenAnswer(Code),
    /// The same, after a GOAWAY that leaves nothing out, as RFC 9113 (6.8) has it.
    GoAwayTwice,
    /// GOAWAY that does not leave it out, and no answer.
    GoAwayThenClose(Code),
    GoAwayThenBreak,
    /// Ends TLS by an alert.
    AlertSilently,
    AlertInBody,
    BadFrame,
    BadHeaders,
    Http1,
    HangSilently,
    HangInBody,
    /// A byte now and then, without end.
    Drip,
    /// An answer to a gRPC call.
    Grpc(Answer),
}

/// What ends a stream and leaves its connection alone.
pub(super) fn streams() -> Vec<Script> {
    STREAMS.into_iter().chain(Code::others().map(Script::ResetSilently)).collect()
}

const STREAMS: [Script; 15] = [
    Script::Ok,
    Script::InPieces,
    Script::Refused,
    Script::Padded,
    Script::Continued,
    Script::RefusedInBody,
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
pub(super) const CONNECTIONS: [Script; 15] = [
    Script::CloseSilently,
    Script::CloseInBody,
    Script::BreakSilently,
    Script::BreakInBody,
    Script::CloseNext,
    Script::GoAwayBefore(NO_ERROR),
    Script::GoAwayBefore(ENHANCE_YOUR_CALM),
    Script::GoAwayThenAnswer(NO_ERROR),
    Script::GoAwayTwice,
    Script::GoAwayThenClose(NO_ERROR),
    Script::GoAwayThenClose(INTERNAL_ERROR),
    Script::GoAwayThenBreak,
    Script::BadFrame,
    Script::BadHeaders,
    Script::Http1,
];

/// What ends the connection where TLS is spoken.
pub(super) const ALERTS: [Script; 2] = [Script::AlertSilently, Script::AlertInBody];

pub(super) const HANGING: [Script; 3] = [Script::HangSilently, Script::HangInBody, Script::Drip];

enum Then {
    Go,
    Close,
    Break,
    Alert,
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
            | S::GoAwayThenAnswer(_)
            | S::GoAwayTwice => (Outcome::Ok, Some(200), None),
            S::NoContent => (Outcome::Ok, Some(204), None),
            S::NotFound => (Outcome::HttpError, Some(404), None),
            S::Unavailable => (Outcome::HttpError, Some(503), None),
            S::Refused => (Outcome::H2RefusedStream, None, Some("REFUSED_STREAM")),
            S::RefusedInBody => (Outcome::ResetMidResponse, Some(200), Some("REFUSED_STREAM")),
            S::ResetSilently(code) => (Outcome::ResetBeforeResponse, None, Some(code.names().0)),
            S::ResetInBody => (Outcome::ResetMidResponse, Some(200), Some("CANCEL")),
            S::ShortBody | S::CloseInBody => (Outcome::TruncatedBody, Some(200), None),
            S::LongBody => (Outcome::ProtocolError, Some(200), None),
            S::CloseSilently => (Outcome::EofBeforeResponse, None, None),
            S::BreakSilently => (Outcome::ResetBeforeResponse, None, None),
            S::BreakInBody => (Outcome::ResetMidResponse, Some(200), None),
            // The settings have come before it.
            S::AlertSilently => (Outcome::ResetBeforeResponse, None, Some(ALERT)),
            S::AlertInBody => (Outcome::ResetMidResponse, Some(200), Some(ALERT)),
            S::GoAwayBefore(code) => (Outcome::H2Goaway, None, Some(code.names().1)),
            S::GoAwayThenClose(code) => (Outcome::EofBeforeResponse, None, Some(code.names().1)),
            S::GoAwayThenBreak => (Outcome::ResetBeforeResponse, None, Some("GOAWAY NO_ERROR")),
            S::BadFrame | S::BadHeaders | S::Http1 => (Outcome::ProtocolError, None, None),
            S::HangSilently => (Outcome::ResponseTimeout, None, None),
            S::HangInBody | S::Drip => (Outcome::BodyTimeout, Some(200), None),
            S::Grpc(answer) => answer.truth(),
        }
    }

    /// The gRPC status that the row should have.
    pub(super) fn grpc_status(self) -> Option<i32> {
        if let Script::Grpc(answer) = self { answer.grpc_status() } else { None }
    }

    /// Whether Go's client sends a request again that met this on a stream, without a word.
    fn is_hidden_by_go(self, stream: u32) -> bool {
        match self {
            Script::Refused => true,
            Script::GoAwayBefore(code) => code == NO_ERROR || stream > 1,
            _ => false,
        }
    }

    /// Whether the connection is reset.
    pub(super) fn is_broken(self) -> bool {
        matches!(self, Script::BreakSilently | Script::BreakInBody | Script::GoAwayThenBreak)
    }

    /// The frames of the answer on a stream, and what comes after them.
    fn answer(self, stream: u32) -> (Vec<u8>, Then) {
        use Script as S;
        let ok = |length: &str| [status("200"), field("content-length", length)].concat();
        let headers = |flags, block: &[u8]| headers(flags, stream, block);
        let data = |flags, bytes: &[u8]| data(flags, stream, bytes);
        let reset = |code: Code| reset(stream, code);
        let whole = || [headers(0, &ok("5")), data(END_STREAM, b"hello")].concat();
        let part = || [headers(0, &ok("9")), data(0, b"hello")].concat();
        match self {
            S::Ok => (whole(), Then::Go),
            S::InPieces => {
                let (empty, padding) = (data(0, b""), data(PADDED, b"\x02\0\0"));
                let body = [data(0, b"he"), empty, padding, data(0, b"llo"), data(END_STREAM, b"")];
                ([headers(0, &status("200")), body.concat()].concat(), Then::Go)
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
            S::RefusedInBody => ([part(), reset(REFUSED_STREAM)].concat(), Then::Go),
            S::ResetSilently(code) => (reset(code), Then::Go),
            S::ResetInBody => ([part(), reset(CANCEL)].concat(), Then::Go),
            S::ShortBody => ([headers(0, &ok("9")), data(END_STREAM, b"hello")].concat(), Then::Go),
            S::LongBody => ([headers(0, &ok("2")), data(END_STREAM, b"hello")].concat(), Then::Go),
            S::CloseSilently => (Vec::new(), Then::Close),
            S::CloseInBody => (part(), Then::Close),
            S::BreakSilently => (Vec::new(), Then::Break),
            S::BreakInBody => (part(), Then::Break),
            S::AlertSilently => (Vec::new(), Then::Alert),
            S::AlertInBody => (part(), Then::Alert),
            S::CloseNext => (whole(), Then::CloseNext),
            S::GoAwayBefore(code) => (goaway(stream.saturating_sub(2), code), Then::Close),
            S::GoAwayThenAnswer(code) => ([goaway(stream, code), whole()].concat(), Then::Close),
            S::GoAwayTwice => {
                let both = [goaway(LAST_STREAM, NO_ERROR), goaway(stream, NO_ERROR)].concat();
                ([both, whole()].concat(), Then::Close)
            }
            S::GoAwayThenClose(code) => (goaway(stream, code), Then::Close),
            S::GoAwayThenBreak => (goaway(stream, NO_ERROR), Then::Break),
            S::BadFrame => (frame(DATA, 0, 0, b"on no stream"), Then::Close),
            // The index 0 means nothing.
            S::BadHeaders => (headers(END_STREAM, &[0x80]), Then::Close),
            S::Http1 => (b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n".to_vec(), Then::Close),
            S::HangSilently => (Vec::new(), Then::Go),
            S::HangInBody => (part(), Then::Go),
            S::Drip => (headers(0, &status("200")), Then::Drip),
            S::Grpc(answer) => (answer.frames(stream), Then::Go),
        }
    }
}

/// A frame.
pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// HEADERS whose block is whole.
pub(super) fn headers(flags: u8, stream: u32, block: &[u8]) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | flags, stream, block)
}

pub(super) fn data(flags: u8, stream: u32, bytes: &[u8]) -> Vec<u8> {
    frame(DATA, flags, stream, bytes)
}

pub(super) fn reset(stream: u32, code: Code) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &code.0.to_be_bytes())
}

/// The fields that every answer begins with.
pub(super) fn status(status: &str) -> Vec<u8> {
    [field(":status", status), field("rolldrop-pod", "web-1")].concat()
}

/// The highest number of a stream.
const LAST_STREAM: u32 = (1 << 31) - 1;

fn goaway(last_stream: u32, code: Code) -> Vec<u8> {
    frame(GOAWAY, 0, 0, &[last_stream.to_be_bytes(), code.0.to_be_bytes()].concat())
}

fn settings(settings: &[(u16, u32)]) -> Vec<u8> {
    let entry = |(name, value): &(u16, u32)| [&name.to_be_bytes()[..], &value.to_be_bytes()].concat();
    frame(SETTINGS, 0, 0, &settings.iter().flat_map(entry).collect::<Vec<u8>>())
}

/// A header field as it stands: a literal without an index (RFC 7541, 6.2.2).
pub(super) fn field(name: &str, value: &str) -> Vec<u8> {
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
    /// Whether Go's client would have sent it again without a word.
    pub(super) is_hidden_by_go: bool,
    /// Requests of the connection that were not answered when this one came, with it.
    pub(super) open: usize,
    /// How many times it has come.
    pub(super) times: usize,
}

pub(super) type Log = Arc<Mutex<BTreeMap<(String, u64), Truth>>>;

/// How a server goes about it.
#[derive(Clone, Default)]
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
    /// TLS, where it is spoken.
    pub(super) tls: Option<TlsAcceptor>,
    /// Clients may send a request again as it was, and meet the same.
    pub(super) may_come_again: bool,
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
                let (habits, log) = (habits.clone(), accepted.clone());
                connections.spawn(async move {
                    let stream: Box<dyn Transport> = match &habits.tls {
                        None => Box::new(stream),
                        // A client may give up in the handshake.
                        Some(tls) => match tls.accept(stream).await {
                            Ok(stream) => Box::new(stream),
                            Err(_) => return,
                        },
                    };
                    let (read, write) = split(stream);
                    let connection = Connection {
                        read,
                        write: Arc::new(tokio::sync::Mutex::new(write)),
                        peer,
                        decoder: Decoder::default(),
                        requests: 0,
                        open: Arc::default(),
                        tasks: JoinSet::new(),
                        habits,
                        log,
                    };
                    connection.serve().await;
                });
            }
        });
        Self { address, log, _tasks: tasks }
    }
}

/// When a client is told at the latest that requests were left out.
const GOAWAY_AT_LAST: Duration = Duration::from_secs(2);

struct Connection {
    read: ReadHalf<Box<dyn Transport>>,
    write: Arc<tokio::sync::Mutex<WriteHalf<Box<dyn Transport>>>>,
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
        let mut write = self.write.lock().await;
        // A client that has gone is told nothing.
        if write.write_all(bytes).await.is_ok() {
            let _ = write.flush().await;
        }
    }

    /// The stream as a whole, to which no answer is written any more.
    async fn whole(mut self) -> Box<dyn Transport> {
        self.tasks.shutdown().await;
        self.read.unsplit(Arc::into_inner(self.write).unwrap().into_inner())
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
                    Then::Close | Then::Drip => return transport::close(&mut *self.whole().await).await,
                    Then::Break => return transport::reset(&*self.whole().await),
                    Then::Alert => return transport::alert(&mut *self.whole().await).await,
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
            is_hidden_by_go: script.is_hidden_by_go(stream),
            open,
            times: 1,
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
                is_hidden_by_go: false,
                ..truth
            },
            (_, true) => Truth {
                script: None,
                outcome: Outcome::H2Goaway,
                status: None,
                detail: Some("GOAWAY NO_ERROR"),
                answer_bytes: 0,
                is_hidden_by_go: true,
                ..truth
            },
        };
        {
            let mut log = self.log.lock().unwrap();
            let key = (id.source, id.seq);
            let times = log.get(&key).map_or(1, |earlier| earlier.times + 1);
            assert!(times == 1 || self.habits.may_come_again, "the request came twice");
            log.insert(key, Truth { times, ..truth });
        }
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
            // Where so many never come, it says so all the same.
            if let Some((after, _)) = self.habits.goaway_after
                && self.requests == after + 1
            {
                let write = self.write.clone();
                self.tasks.spawn(async move {
                    tokio::time::sleep(GOAWAY_AT_LAST).await;
                    let last_stream = u32::try_from(2 * after - 1).unwrap();
                    let _ = write.lock().await.write_all(&goaway(last_stream, NO_ERROR)).await;
                });
            }
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
            loop {
                let mut writing = write.lock().await;
                let is_taken = writing.write_all(&part).await.is_ok() && writing.flush().await.is_ok();
                drop(writing);
                if !is_taken || !drips {
                    return;
                }
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
