//! WebSocket faults: a server that plays one for each message and logs its actions.

use futures::{SinkExt, StreamExt};
use http::StatusCode;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request, Response};
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{CloseCode, Data, OpCode};
use tokio_tungstenite::{WebSocketStream, accept_hdr_async};

use super::test_transport::{self, TestTransport, acceptor};
use super::*;
use rolldrop_record::RequestId;

const ID_LINE: &str = "rolldrop-id: ";

/// The server's action for a message, or for the handshake before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    Echo,
    /// A ping, which must get a pong, and a stray pong before the echo.
    PingFirst,
    /// The echo in three frames, with a ping in between.
    Fragments,
    /// The echo, and a close frame between two messages.
    GoAwayAfter,
    GoAway,
    CloseWithoutCode,
    NoCloseFrame,
    Reset,
    EndInEcho,
    ResetInEcho,
    GoAwayInEcho,
    WrongEcho,
    /// A message that continues until the client is gone.
    EndlessEcho,
    /// A masked frame, which only clients may send.
    Masked,
    Unavailable,
    WrongAccept,
    EndInHandshake,
    Silent,
    HalfAnEcho,
    /// Closes the connection without closing WebSocket or TLS first.
    CutOff,
}

const PROMPT_FAULTS: [Fault; 17] = [
    Fault::Echo,
    Fault::PingFirst,
    Fault::Fragments,
    Fault::GoAwayAfter,
    Fault::GoAway,
    Fault::CloseWithoutCode,
    Fault::NoCloseFrame,
    Fault::Reset,
    Fault::EndInEcho,
    Fault::ResetInEcho,
    Fault::GoAwayInEcho,
    Fault::WrongEcho,
    Fault::EndlessEcho,
    Fault::Masked,
    Fault::Unavailable,
    Fault::WrongAccept,
    Fault::EndInHandshake,
];

/// Faults that can occur over TLS, and those that need TLS.
const TLS_FAULTS: [Fault; 16] = [
    Fault::Echo,
    Fault::PingFirst,
    Fault::Fragments,
    Fault::GoAwayAfter,
    Fault::GoAway,
    Fault::CloseWithoutCode,
    Fault::NoCloseFrame,
    Fault::Reset,
    Fault::EndInEcho,
    Fault::ResetInEcho,
    Fault::GoAwayInEcho,
    Fault::WrongEcho,
    Fault::Masked,
    Fault::Unavailable,
    Fault::WrongAccept,
    Fault::CutOff,
];

impl Fault {
    /// Returns the outcome, status and detail that the client should record.
    fn truth(self) -> (Outcome, Option<u16>, Option<&'static str>) {
        use Outcome::*;
        match self {
            Fault::Echo | Fault::PingFirst | Fault::Fragments | Fault::GoAwayAfter => (Ok, Some(101), None),
            Fault::GoAway => (EofBeforeResponse, Some(101), Some("close 1001 draining")),
            Fault::CloseWithoutCode => (EofBeforeResponse, Some(101), Some("close without a code")),
            Fault::NoCloseFrame => (EofBeforeResponse, Some(101), Some("no close frame")),
            Fault::Reset => (ResetBeforeResponse, Some(101), None),
            Fault::EndInEcho => (TruncatedBody, Some(101), Some("no close frame")),
            Fault::ResetInEcho => (ResetMidResponse, Some(101), None),
            Fault::GoAwayInEcho => (TruncatedBody, Some(101), Some("close 1001 draining")),
            Fault::WrongEcho | Fault::EndlessEcho => {
                (ProtocolError, Some(101), Some("not the message that was sent"))
            }
            Fault::Masked => (ProtocolError, Some(101), None),
            Fault::Unavailable => (HttpError, Some(503), None),
            Fault::WrongAccept => (ProtocolError, Some(101), Some("no valid sec-websocket-accept")),
            Fault::EndInHandshake => (EofBeforeResponse, None, None),
            Fault::Silent => (ResponseTimeout, Some(101), None),
            Fault::HalfAnEcho => (BodyTimeout, Some(101), None),
            Fault::CutOff => (EofBeforeResponse, Some(101), Some("no_close_notify")),
        }
    }
}

/// The fault of each message, and whether its connection had carried a message before.
type Done = Arc<Mutex<BTreeMap<u64, (Fault, bool)>>>;

struct Faulty {
    faults: &'static [Fault],
    done: Done,
    /// Codes of the client's close frames that arrived between two messages.
    goodbyes: Arc<Mutex<Vec<u16>>>,
}

impl Faulty {
    fn fault(&self, id: &str) -> (u64, Fault) {
        let seq = id.parse::<RequestId>().unwrap().seq;
        // Irregular order, so that every fault occurs on both new and old connections.
        let at = usize::try_from(seq.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32).unwrap() % self.faults.len();
        (seq, self.faults[at])
    }

    fn log(&self, seq: u64, fault: Fault, reused: bool) {
        assert!(
            self.done.lock().unwrap().insert(seq, (fault, reused)).is_none(),
            "the message arrived twice"
        );
    }

    /// Serves a connection until it is closed. A client that closes the connection causes no error.
    async fn serve(&self, mut stream: TcpStream) -> Option<()> {
        if self.ends_in_handshake(&mut stream).await {
            return None;
        }
        self.talk(stream).await
    }

    async fn talk<S: TestTransport>(&self, stream: S) -> Option<()> {
        let mut refused = None;
        #[expect(clippy::result_large_err, reason = "tungstenite's own error type")]
        let answer = |request: &Request, mut response: Response| {
            let (seq, fault) = self.fault(request.headers()["rolldrop-id"].to_str().unwrap());
            if matches!(fault, Fault::Unavailable | Fault::WrongAccept | Fault::EndInHandshake) {
                self.log(seq, fault, false);
                refused = Some(fault);
            }
            match fault {
                Fault::Unavailable => {
                    let mut refusal = ErrorResponse::new(Some("busy".to_owned()));
                    *refusal.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
                    refusal.headers_mut().insert("content-length", 4.into());
                    return Err(refusal);
                }
                Fault::WrongAccept => {
                    let wrong = "AAAAAAAAAAAAAAAAAAAAAAAAAAA=".parse().unwrap();
                    response.headers_mut().insert("sec-websocket-accept", wrong);
                }
                _ => {}
            }
            Ok(response)
        };
        let mut socket = accept_hdr_async(stream, answer).await.ok()?;
        if refused.is_some() {
            socket.next().await;
            return None;
        }
        for nth in 0.. {
            let message = socket.next().await?.ok()?;
            if let Message::Close(why) = message {
                self.goodbyes.lock().unwrap().push(why?.code.into());
                // Waits until the response has been sent.
                return socket.next().await?.ok().and(None);
            }
            let text = String::from_utf8_lossy(&message.clone().into_data()).into_owned();
            let (seq, fault) = self.fault(text.lines().next()?.strip_prefix(ID_LINE).unwrap());
            self.log(seq, fault, nth > 0);
            self.play(fault, message, &mut socket).await?;
        }
        None
    }

    /// Peeks at the request, and reads it if the connection should end during the handshake.
    async fn ends_in_handshake(&self, stream: &mut TcpStream) -> bool {
        let mut seen = vec![0; 4096];
        loop {
            let Ok(count @ 1..) = stream.peek(&mut seen).await else { return true };
            let text = String::from_utf8_lossy(&seen[..count]);
            if !text.ends_with("\r\n\r\n") {
                tokio::task::yield_now().await;
                continue;
            }
            let id = text.lines().find_map(|line| line.strip_prefix(ID_LINE)).unwrap();
            let (seq, fault) = self.fault(id);
            if fault != Fault::EndInHandshake {
                return false;
            }
            self.log(seq, fault, false);
            tokio::io::AsyncReadExt::read_exact(stream, &mut seen[..count]).await.unwrap();
            return true;
        }
    }

    /// Plays a fault; returns `None` if the connection has ended.
    async fn play<S: TestTransport>(
        &self,
        fault: Fault,
        message: Message,
        socket: &mut WebSocketStream<S>,
    ) -> Option<()> {
        let payload = message.clone().into_data();
        let whole = |payload: &[u8]| bytes(Frame::message(payload.to_vec(), OpCode::Data(Data::Text), true));
        let half = || whole(&payload)[..payload.len() / 2].to_vec();
        let first_part = || bytes(Frame::message(payload.slice(..4), OpCode::Data(Data::Text), false));
        let away = || Some(CloseFrame { code: CloseCode::Away, reason: "draining".into() });
        match fault {
            // Handshake faults cannot occur on an established connection, so echo instead.
            Fault::Echo | Fault::Unavailable | Fault::WrongAccept | Fault::EndInHandshake => {
                socket.send(message).await.ok()?;
            }
            Fault::PingFirst => {
                socket.send(Message::Pong("stray".into())).await.ok()?;
                socket.send(Message::Ping("there?".into())).await.ok()?;
                assert_eq!(socket.next().await?.ok()?, Message::Pong("there?".into()));
                socket.send(message).await.ok()?;
            }
            Fault::Fragments => {
                let continued = |part, last| bytes(Frame::message(part, OpCode::Data(Data::Continue), last));
                let parts = [
                    first_part(),
                    bytes(Frame::ping("in between")),
                    continued(payload.slice(4..9), false),
                    continued(payload.slice(9..), true),
                ];
                for part in parts {
                    socket.get_mut().write_all(&part).await.ok()?;
                }
                socket.get_mut().flush().await.ok()?;
                assert_eq!(socket.next().await?.ok()?, Message::Pong("in between".into()));
            }
            Fault::GoAwayAfter => {
                socket.send(message).await.ok()?;
                self.leave(socket, away()).await?;
            }
            Fault::GoAway => self.leave(socket, away()).await?,
            Fault::CloseWithoutCode => self.leave(socket, None).await?,
            Fault::NoCloseFrame => return socket.get_mut().shutdown().await.ok().and(None),
            Fault::CutOff => return None,
            Fault::Reset => {
                test_transport::reset(socket.get_ref());
                return None;
            }
            Fault::EndInEcho => {
                socket.get_mut().write_all(&half()).await.ok()?;
                return socket.get_mut().shutdown().await.ok().and(None);
            }
            Fault::ResetInEcho => {
                socket.get_mut().write_all(&half()).await.ok()?;
                socket.get_mut().flush().await.ok()?;
                test_transport::reset(socket.get_ref());
                return None;
            }
            Fault::GoAwayInEcho => {
                socket.get_mut().write_all(&first_part()).await.ok()?;
                self.leave(socket, away()).await?;
            }
            Fault::WrongEcho => {
                socket.get_mut().write_all(&whole(b"another")).await.ok()?;
                socket.get_mut().flush().await.ok()?;
            }
            Fault::EndlessEcho => {
                socket.get_mut().write_all(&first_part()).await.ok()?;
                let more = bytes(Frame::message(vec![b'x'; 1000], OpCode::Data(Data::Continue), false));
                while socket.get_mut().write_all(&more).await.is_ok() {}
                return None;
            }
            Fault::Masked => {
                let mut frame = Frame::message(payload, OpCode::Data(Data::Text), true);
                frame.header_mut().mask = Some([1, 2, 3, 4]);
                socket.get_mut().write_all(&bytes(frame)).await.ok()?;
                socket.get_mut().flush().await.ok()?;
            }
            Fault::Silent => {}
            Fault::HalfAnEcho => socket.get_mut().write_all(&half()).await.ok()?,
        }
        Some(())
    }

    /// Closes the connection in an orderly way, and waits for the client's close frame.
    async fn leave<S: TestTransport>(
        &self,
        socket: &mut WebSocketStream<S>,
        why: Option<CloseFrame>,
    ) -> Option<()> {
        socket.close(why).await.ok()?;
        while let Some(Ok(message)) = socket.next().await {
            // A message that crossed the close frame gets no echo.
            if let Some(id) =
                message.to_text().ok().and_then(|text| text.lines().next()?.strip_prefix(ID_LINE))
            {
                self.log(id.parse::<RequestId>().unwrap().seq, Fault::GoAway, true);
            }
        }
        None
    }
}

fn bytes(frame: Frame) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame.format(&mut bytes).unwrap();
    bytes
}

/// Result of a message load: the server's log, and the rows.
struct Played {
    done: BTreeMap<u64, (Fault, bool)>,
    rows: Vec<RequestRow>,
    server: Arc<Faulty>,
    _tasks: JoinSet<()>,
}

impl Played {
    /// Waits for `expected` close frames, which may still be in transit, and returns their codes.
    async fn goodbyes(&self, expected: usize) -> Vec<u16> {
        let deadline = std::time::Instant::now() + Duration::from_secs(30);
        loop {
            let goodbyes = self.server.goodbyes.lock().unwrap().clone();
            if goodbyes.len() >= expected || std::time::Instant::now() > deadline {
                return goodbyes;
            }
            tokio::task::yield_now().await;
        }
    }
}

/// Runs a message load against the faults.
async fn messages(faults: &'static [Fault], is_secure: bool, change: impl FnOnce(&mut Load)) -> Played {
    let (acceptor, certificate) = acceptor(&[b"http/1.1"]);
    let scheme = if is_secure { "wss" } else { "ws" };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut settings = Load {
        connections: Connections::KEEPALIVE,
        timeout: PATIENT,
        body: b"hello".to_vec(),
        ..Load::new(format!("{scheme}://{}/ws", listener.local_addr().unwrap()))
    };
    if is_secure {
        settings.tls.ca_pem = Some(certificate.into());
    }
    change(&mut settings);
    let faulty = Arc::new(Faulty { faults, done: Done::default(), goodbyes: Arc::default() });
    let mut tasks = JoinSet::new();
    let served = faulty.clone();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = listener.accept() => {
                    let (faulty, acceptor, (stream, _)) = (served.clone(), acceptor.clone(), accepted.unwrap());
                    connections.spawn(async move {
                        match is_secure {
                            true => faulty.talk(acceptor.accept(stream).await.ok()?).await,
                            false => faulty.serve(stream).await,
                        }
                    });
                }
                Some(ended) = connections.join_next() => drop(ended.unwrap()),
            }
        }
    });
    let (_, rows) = run(settings).await;
    let done = faulty.done.lock().unwrap().clone();
    Played { done, rows, server: faulty, _tasks: tasks }
}

fn assert_as_done(Played { done, rows, .. }: &Played) {
    let mut sent = 0;
    for row in rows.iter().filter(|row| row.sent.is_some()) {
        let (fault, reused) = done[&row.seq];
        let of_handshake = matches!(fault, Fault::Unavailable | Fault::WrongAccept | Fault::EndInHandshake);
        let truth = if reused && of_handshake { Fault::Echo.truth() } else { fault.truth() };
        assert_eq!((row.outcome, row.status, row.detail.as_deref()), truth, "{fault:?} {row:?}");
        assert_eq!(row.conn_reused, reused, "{fault:?} {row:?}");
        let reset = matches!(row.outcome, Outcome::ResetBeforeResponse | Outcome::ResetMidResponse);
        assert_eq!(row.errno, reset.then_some(Errno::ECONNRESET as i32), "{fault:?} {row:?}");
        sent += 1;
    }
    assert_eq!(sent, done.len(), "the server saw messages that were never sent");
}

fn assert_all_were_played(played: &Played, faults: &[Fault]) {
    for fault in faults {
        assert!(played.done.values().any(|(played, _)| played == fault), "{fault:?} was never played");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn message_outcomes_match_server_log() {
    let played = messages(&PROMPT_FAULTS, false, |settings| {
        settings.pace = Pace::constant(400.0, Duration::from_secs(2));
    })
    .await;
    assert_as_done(&played);
    assert_all_were_played(&played, &PROMPT_FAULTS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_message_outcomes_match_server_log() {
    let played = messages(&TLS_FAULTS, true, |settings| {
        settings.pace = Pace::constant(400.0, Duration::from_secs(2));
    })
    .await;
    assert_as_done(&played);
    assert_all_were_played(&played, &TLS_FAULTS);
    for row in played.rows.iter().filter(|row| row.sent.is_some()) {
        assert_ne!(row.tls.is_some(), row.conn_reused, "{row:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn message_without_echo_times_out() {
    let played = messages(&[Fault::Silent, Fault::HalfAnEcho], false, |settings| {
        settings.pace = Pace::constant(40.0, Duration::from_millis(500));
        settings.timeout.response = Some(Duration::from_secs(3));
    })
    .await;
    assert_as_done(&played);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_reuse_all_allowed_connections() {
    let played = messages(&[Fault::Echo], false, |settings| {
        settings.pace = Pace::Closed(Length::Requests(400));
        settings.connections.max = Some(5);
        settings.body = vec![0xff; 70_000];
    })
    .await;
    assert_as_done(&played);
    let connections: BTreeSet<_> = played.rows.iter().map(|row| row.conn).collect();
    assert_eq!((played.rows.len(), connections.len()), (400, 5));
    assert_eq!(played.rows.iter().filter(|row| !row.conn_reused).count(), 5);
    assert_eq!(played.goodbyes(5).await, [1000; 5]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_sends_close_frame_before_closing() {
    for is_secure in [false, true] {
        let played = messages(&[Fault::Echo], is_secure, |settings| {
            settings.pace = Pace::constant(200.0, Duration::from_secs(1));
            settings.connections.max_requests = Some(40);
            settings.connections.max_age = Some(Duration::from_millis(100));
        })
        .await;
        assert_as_done(&played);
        let connections = played.rows.iter().filter(|row| row.connected.is_some()).count();
        assert_eq!(played.goodbyes(connections).await, vec![1000; connections]);
    }
}
