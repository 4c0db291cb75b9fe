//! WebSocket's faults: a server that plays one with each message, and writes down what it did.

use futures::{SinkExt, StreamExt};
use http::StatusCode;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::{self, ServerConfig};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request, Response};
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{CloseCode, Data, OpCode};
use tokio_tungstenite::{WebSocketStream, accept_async, accept_hdr_async};

use super::*;
use crate::record::RequestId;

const ID_LINE: &str = "rolldrop-id: ";

/// What the server does with a message, or with the handshake before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    Echo,
    /// A ping, whose pong must come, and a stray pong before the echo.
    PingFirst,
    /// The echo in three frames, with a ping in their midst.
    Fragments,
    /// Echoes, and goes away between two messages.
    GoAwayAfter,
    GoAway,
    CloseWithoutCode,
    NoCloseFrame,
    Reset,
    EndInEcho,
    ResetInEcho,
    GoAwayInEcho,
    WrongEcho,
    /// A frame with a mask, which only clients may send.
    Masked,
    Unavailable,
    WrongAccept,
    EndInHandshake,
    Silent,
    HalfAnEcho,
}

const PROMPT_FAULTS: [Fault; 16] = [
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
    Fault::EndInHandshake,
];

impl Fault {
    /// Outcome, status and detail that the client should record.
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
            Fault::WrongEcho => (ProtocolError, Some(101), Some("not the message that was sent")),
            Fault::Masked => (ProtocolError, Some(101), None),
            Fault::Unavailable => (HttpError, Some(503), None),
            Fault::WrongAccept => (ProtocolError, Some(101), Some("no valid sec-websocket-accept")),
            Fault::EndInHandshake => (EofBeforeResponse, None, None),
            Fault::Silent => (ResponseTimeout, Some(101), None),
            Fault::HalfAnEcho => (BodyTimeout, Some(101), None),
        }
    }
}

/// What was done with each message, and whether its connection had carried one before.
type Done = Arc<Mutex<BTreeMap<u64, (Fault, bool)>>>;

struct Faulty {
    faults: &'static [Fault],
    done: Done,
}

impl Faulty {
    fn fault(&self, id: &str) -> (u64, Fault) {
        let seq = id.parse::<RequestId>().unwrap().seq;
        // In no regular order, so that every fault meets new connections and old ones.
        let at = usize::try_from(seq.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32).unwrap() % self.faults.len();
        (seq, self.faults[at])
    }

    fn log(&self, seq: u64, fault: Fault, reused: bool) {
        assert!(self.done.lock().unwrap().insert(seq, (fault, reused)).is_none(), "it came twice");
    }

    /// Serves a connection until it ends. Whatever the client ends is no error here.
    async fn serve(&self, stream: TcpStream) -> Option<()> {
        let mut refused = None;
        #[expect(clippy::result_large_err, reason = "tungstenite's own type of a refusal")]
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
        let mut stream = stream;
        if self.ends_in_handshake(&mut stream).await {
            return None;
        }
        let mut socket = accept_hdr_async(stream, answer).await.ok()?;
        if refused.is_some() {
            socket.next().await;
            return None;
        }
        for nth in 0.. {
            let message = socket.next().await?.ok()?;
            let text = String::from_utf8_lossy(&message.clone().into_data()).into_owned();
            let (seq, fault) = self.fault(text.lines().next()?.strip_prefix(ID_LINE).unwrap());
            self.log(seq, fault, nth > 0);
            self.play(fault, message, &mut socket).await?;
        }
        None
    }

    /// Looks at the request before it is read, and takes it where the connection is to end.
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

    /// `None` where the connection is at its end.
    async fn play(
        &self,
        fault: Fault,
        message: Message,
        socket: &mut WebSocketStream<TcpStream>,
    ) -> Option<()> {
        let payload = message.clone().into_data();
        let whole = |payload: &[u8]| bytes(Frame::message(payload.to_vec(), OpCode::Data(Data::Text), true));
        let half = || whole(&payload)[..payload.len() / 2].to_vec();
        let first_part = || bytes(Frame::message(payload.slice(..4), OpCode::Data(Data::Text), false));
        let away = || Some(CloseFrame { code: CloseCode::Away, reason: "draining".into() });
        match fault {
            // Those of the handshake meet a connection that stands.
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
                assert_eq!(socket.next().await?.ok()?, Message::Pong("in between".into()));
            }
            Fault::GoAwayAfter => {
                socket.send(message).await.ok()?;
                self.leave(socket, away()).await?;
            }
            Fault::GoAway => self.leave(socket, away()).await?,
            Fault::CloseWithoutCode => self.leave(socket, None).await?,
            Fault::NoCloseFrame => return None,
            Fault::Reset => return socket.get_mut().set_zero_linger().ok().and(None),
            Fault::EndInEcho => {
                socket.get_mut().write_all(&half()).await.ok()?;
                return None;
            }
            Fault::ResetInEcho => {
                socket.get_mut().write_all(&half()).await.ok()?;
                return socket.get_mut().set_zero_linger().ok().and(None);
            }
            Fault::GoAwayInEcho => {
                socket.get_mut().write_all(&first_part()).await.ok()?;
                self.leave(socket, away()).await?;
            }
            Fault::WrongEcho => {
                socket.get_mut().write_all(&whole(b"another")).await.ok()?;
            }
            Fault::Masked => {
                let mut frame = Frame::message(payload, OpCode::Data(Data::Text), true);
                frame.header_mut().mask = Some([1, 2, 3, 4]);
                socket.get_mut().write_all(&bytes(frame)).await.ok()?;
            }
            Fault::Silent => {}
            Fault::HalfAnEcho => socket.get_mut().write_all(&half()).await.ok()?,
        }
        Some(())
    }

    /// Closes as it should be done, and waits for the client's answer.
    async fn leave(&self, socket: &mut WebSocketStream<TcpStream>, why: Option<CloseFrame>) -> Option<()> {
        socket.close(why).await.ok()?;
        while let Some(Ok(message)) = socket.next().await {
            // One that crossed the close frame on its way is not answered.
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

/// Runs a load of messages against the faults.
async fn messages(
    faults: &'static [Fault],
    change: impl FnOnce(&mut Settings),
) -> (BTreeMap<u64, (Fault, bool)>, Vec<RequestRow>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut settings = Settings {
        connections: Connections::Keepalive,
        connect_timeout: Duration::from_secs(60),
        response_timeout: Duration::from_secs(60),
        body: b"hello".to_vec(),
        ..Settings::new(format!("ws://{}/ws", listener.local_addr().unwrap()))
    };
    change(&mut settings);
    let done = Done::default();
    let log = done.clone();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let faulty = Arc::new(Faulty { faults, done: log });
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = listener.accept() => {
                    let faulty = faulty.clone();
                    connections.spawn(async move { faulty.serve(accepted.unwrap().0).await });
                }
                Some(ended) = connections.join_next() => drop(ended.unwrap()),
            }
        }
    });
    let (_, rows) = run(settings).await;
    let done = done.lock().unwrap().clone();
    (done, rows)
}

fn assert_as_done(done: &BTreeMap<u64, (Fault, bool)>, rows: &[RequestRow]) {
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
    assert_eq!(sent, done.len(), "the server saw what was never sent");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_message_ends_as_the_server_made_it_end() {
    let (done, rows) = messages(&PROMPT_FAULTS, |settings| {
        settings.pace = Pace::constant(400.0, Duration::from_secs(2));
    })
    .await;
    assert_as_done(&done, &rows);
    for fault in PROMPT_FAULTS {
        assert!(done.values().any(|(played, _)| *played == fault), "{fault:?} was never played");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_without_an_echo_ends_at_the_response_timeout() {
    let (done, rows) = messages(&[Fault::Silent, Fault::HalfAnEcho], |settings| {
        settings.pace = Pace::constant(40.0, Duration::from_millis(500));
        settings.response_timeout = Duration::from_secs(3);
    })
    .await;
    assert_as_done(&done, &rows);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_share_the_connections_that_there_may_be() {
    let (done, rows) = messages(&[Fault::Echo], |settings| {
        settings.pace = Pace::Closed(Length::Requests(400));
        settings.max_connections = Some(5);
        settings.body = vec![0xff; 70_000];
    })
    .await;
    assert_as_done(&done, &rows);
    let connections: BTreeSet<_> = rows.iter().map(|row| row.conn).collect();
    assert_eq!((rows.len(), connections.len()), (400, 5));
    assert_eq!(rows.iter().filter(|row| !row.conn_reused).count(), 5);
}

/// Echoes inside TLS, and goes away after so many messages of a connection. Answers the address
/// and the server's certificate.
async fn echo_inside_tls(messages: usize, tasks: &mut JoinSet<()>) -> (SocketAddr, String) {
    let issued = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(issued.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![issued.cert.der().clone()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let acceptor = acceptor.clone();
            connections.spawn(async move {
                let mut socket = accept_async(acceptor.accept(stream).await.ok()?).await.ok()?;
                for _ in 0..messages {
                    let message = socket.next().await?.ok()?;
                    socket.send(message).await.ok()?;
                }
                socket.next().await?.ok()?;
                socket.close(Some(CloseFrame { code: CloseCode::Away, reason: "".into() })).await.ok()
            });
        }
    });
    (address, issued.cert.pem())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_inside_tls_end_as_those_in_clear() {
    let mut tasks = JoinSet::new();
    let (address, certificate) = echo_inside_tls(9, &mut tasks).await;
    let (_, rows) = run(Settings {
        pace: Pace::Closed(Length::Requests(100)),
        connections: Connections::Keepalive,
        max_connections: Some(1),
        connect_timeout: Duration::from_secs(60),
        tls_timeout: Duration::from_secs(60),
        response_timeout: Duration::from_secs(60),
        tls: TlsSettings { ca_pem: Some(certificate), ..TlsSettings::default() },
        ..Settings::new(format!("wss://{address}/"))
    })
    .await;
    for row in &rows {
        // The tenth message of each connection meets the server's goodbye.
        let expected = match row.seq % 10 {
            9 => (Outcome::EofBeforeResponse, Some("close 1001")),
            _ => (Outcome::Ok, None),
        };
        assert_eq!((row.outcome, row.detail.as_deref()), expected, "{row:?}");
        assert_eq!((row.conn_reused, row.tls.is_some()), (row.seq % 10 > 0, row.seq % 10 == 0), "{row:?}");
    }
}
