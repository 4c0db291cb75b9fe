//! An HTTP/2 server that plays a script for each request and logs its actions. It writes its own frames, so that it can
//! write invalid ones.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use httlib_hpack::Decoder;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf, split};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::faulty_frames::{
    self, DATA, END_HEADERS, END_STREAM, HEADERS, NO_ERROR, PING, SETTINGS, frame, goaway, message_bytes,
    settings,
};
use super::http2_script::{Http2Script, Http2Then};
use crate::known_answers::test_transport::{self, TestTransport};
use rolldrop_record::{Outcome, RequestId};

/// The server's action for a request, with the result that the client should record.
#[derive(Clone, Debug)]
pub(super) struct Http2Truth {
    /// Script played; `None` if the server closed the connection instead.
    pub(super) script: Option<Http2Script>,
    pub(super) outcome: Outcome,
    pub(super) status: Option<u16>,
    pub(super) detail: Option<&'static str>,
    pub(super) peer: SocketAddr,
    pub(super) stream: u32,
    /// True if the connection had carried a request before.
    pub(super) reused: bool,
    pub(super) request_bytes: u64,
    pub(super) answer_bytes: u64,
    /// True if Go's client would have silently resent the request.
    pub(super) is_hidden_by_go: bool,
    /// Number of pending requests on the connection when this one arrived, including itself.
    pub(super) open: usize,
    /// Number of the server's SETTINGS frames that the client had acknowledged before. It may not yet know of any
    /// others.
    pub(super) settings_known: usize,
    /// Number of times the request has arrived.
    pub(super) times: usize,
}

pub(super) type Http2Log = Arc<Mutex<BTreeMap<(String, u64), Http2Truth>>>;

/// Behaviour of a server.
#[derive(Clone, Default)]
pub(super) struct Habits {
    /// Scripts to play in turn, by request number.
    pub(super) scripts: Vec<Http2Script>,
    /// Settings that each client gets initially.
    pub(super) settings: Vec<(u16, u32)>,
    /// True if clients get no settings at all.
    pub(super) withholds_settings: bool,
    /// Settings that each client gets after this many requests on a connection.
    pub(super) later: Option<(usize, Vec<(u16, u32)>)>,
    /// Two request counts per connection: after the first, the server stops responding; after the second, it sends a
    /// GOAWAY that excludes the unanswered requests.
    pub(super) goaway_after: Option<(usize, usize)>,
    /// Delay of responses.
    pub(super) answer_after: Duration,
    /// TLS acceptor, if the server speaks TLS.
    pub(super) tls: Option<TlsAcceptor>,
    /// True if clients may resend a request, to which the server then plays the same script.
    pub(super) may_come_again: bool,
}

pub(super) struct Http2Server {
    pub(super) address: SocketAddr,
    pub(super) log: Http2Log,
    /// Set that owns the accepting task, which owns the connections.
    _tasks: JoinSet<()>,
}

impl Http2Server {
    pub(super) async fn start(habits: Habits) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (log, mut tasks) = (Http2Log::default(), JoinSet::new());
        let (accepted, habits) = (log.clone(), Arc::new(habits));
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, peer) = listener.accept().await.unwrap();
                stream.set_nodelay(true).unwrap();
                let (habits, log) = (habits.clone(), accepted.clone());
                connections.spawn(async move {
                    let stream: Box<dyn TestTransport> = match &habits.tls {
                        None => Box::new(stream),
                        // A client may give up during the handshake.
                        Some(tls) => match tls.accept(stream).await {
                            Ok(stream) => Box::new(stream),
                            Err(_) => return,
                        },
                    };
                    let (read, write) = split(stream);
                    let connection = FaultyConnection {
                        read,
                        write: Arc::new(tokio::sync::Mutex::new(write)),
                        peer,
                        decoder: Decoder::default(),
                        requests: 0,
                        settings_known: 0,
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

/// Maximum time before a client is told that requests were excluded.
const GOAWAY_AT_LAST: Duration = Duration::from_secs(2);

struct FaultyConnection {
    read: ReadHalf<Box<dyn TestTransport>>,
    write: Arc<tokio::sync::Mutex<WriteHalf<Box<dyn TestTransport>>>>,
    peer: SocketAddr,
    decoder: Decoder<'static>,
    requests: usize,
    settings_known: usize,
    /// Number of pending requests.
    open: Arc<Mutex<usize>>,
    /// Delayed responses.
    tasks: JoinSet<()>,
    habits: Arc<Habits>,
    log: Http2Log,
}

struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

impl FaultyConnection {
    async fn write(&self, bytes: &[u8]) {
        let mut write = self.write.lock().await;
        // Nothing can reach a client that is gone.
        if write.write_all(bytes).await.is_ok() {
            let _ = write.flush().await;
        }
    }

    /// Returns the whole stream; no more responses are written to it.
    async fn whole(mut self) -> Box<dyn TestTransport> {
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
        if !self.habits.withholds_settings {
            self.write(&settings(&self.habits.settings)).await;
        }
        let mut close_next = false;
        while let Some(frame) = self.next().await {
            match (frame.kind, frame.flags) {
                (SETTINGS, 1) => self.settings_known += 1,
                (SETTINGS, 0) => self.write(&faulty_frames::frame(SETTINGS, 1, 0, &[])).await,
                (PING, 0) => self.write(&faulty_frames::frame(PING, 1, 0, &frame.payload)).await,
                (HEADERS, _) => match self.request(frame, close_next).await {
                    Http2Then::Go => {}
                    Http2Then::CloseNext => close_next = true,
                    Http2Then::Close | Http2Then::Drip => {
                        return test_transport::close(&mut *self.whole().await).await;
                    }
                    Http2Then::Break => return test_transport::reset(&*self.whole().await),
                    Http2Then::Alert => return test_transport::alert(&mut *self.whole().await).await,
                },
                _ => {}
            }
        }
    }

    /// Reads the rest of a request, logs its script, and plays the script.
    #[expect(clippy::too_many_lines, reason = "one branch per fault")]
    async fn request(&mut self, head: Frame, close_next: bool) -> Http2Then {
        let stream = head.stream;
        assert_eq!(head.flags & END_HEADERS, END_HEADERS, "the head must fit in one frame");
        let mut request_bytes = 9 + head.payload.len() as u64;
        let Some(id) = self.id(head.payload) else {
            // The client has resent the request.
            self.write(&Http2Script::Ok.answer(stream).0).await;
            return Http2Then::Go;
        };
        let mut is_whole = head.flags & END_STREAM != 0;
        while !is_whole {
            let Some(frame) = self.next().await else { return Http2Then::Close };
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
        let truth = Http2Truth {
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
            settings_known: self.settings_known,
            times: 1,
        };
        let is_left_out = self.habits.goaway_after.is_some_and(|(after, _)| self.requests > after);
        let truth = match (close_next, is_left_out) {
            (false, false) => truth,
            (true, _) => Http2Truth {
                script: None,
                outcome: Outcome::EofBeforeResponse,
                status: None,
                detail: None,
                answer_bytes: 0,
                is_hidden_by_go: false,
                ..truth
            },
            (_, true) => Http2Truth {
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
            let key = (id.source().to_owned(), id.seq);
            let times = log.get(&key).map_or(1, |earlier| earlier.times + 1);
            assert!(times == 1 || self.habits.may_come_again, "the request arrived twice");
            log.insert(key, Http2Truth { times, ..truth });
        }
        if close_next {
            return Http2Then::Close;
        }
        if let Some((after, told)) = self.habits.goaway_after
            && told == self.requests
        {
            let last_stream = u32::try_from(2 * after - 1).unwrap();
            self.write(&goaway(last_stream, NO_ERROR)).await;
        }
        if is_left_out {
            // If that many requests never arrive, the GOAWAY is sent anyway.
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
            return Http2Then::Go;
        }
        if let Some((after, later)) = &self.habits.later
            && *after == self.requests
        {
            self.write(&settings(later)).await;
        }
        let (write, open, wait) = (self.write.clone(), self.open.clone(), self.habits.answer_after);
        let drips = matches!(then, Http2Then::Drip);
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
                part = frame(DATA, 0, stream, b"x");
            }
        };
        match then {
            Http2Then::Go if wait.is_zero() => answering.await,
            Http2Then::Go | Http2Then::Drip => {
                self.tasks.spawn(answering);
                return Http2Then::Go;
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
