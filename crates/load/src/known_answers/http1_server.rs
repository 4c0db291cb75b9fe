//! A server that plays a script for each request and logs its actions.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::test_transport::{self, ALERT, TestTransport};
use rolldrop_record::{Outcome, RequestId};

/// The server's action for a request that it has read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Http1Script {
    Ok,
    Chunked,
    /// Chunks with an extension, followed by trailer fields.
    Trailers,
    UntilEof,
    /// Two interim responses before the final one.
    Interim,
    NoContent,
    /// A 304 that announces the length of a body that it does not send.
    NotModified,
    /// An HTTP/1.0 response; the server then closes the connection unannounced.
    OldVersion,
    /// More bytes than the announced length.
    Surplus,
    /// A response sent byte by byte.
    Drip,
    NotFound,
    /// A 503 that announces that the connection will be closed.
    Unavailable,
    /// A 417 if the client sends any Expect header.
    ExpectationFailed,
    CloseSilently,
    ResetSilently,
    CloseInHead,
    ResetInHead,
    CloseInBody,
    ResetInBody,
    ResetUntilEof,
    CloseInChunks,
    CloseInTrailers,
    BadChunk,
    /// A chunk size of 17 digits.
    HugeChunk,
    BadHead,
    /// A head longer than any client's limit.
    EndlessHead,
    TwoLengths,
    /// A protocol switch that the client did not request.
    Switch,
    /// Responds, and closes the connection without a response when the next request arrives.
    CloseNext,
    /// Responds, and resets the connection when the next request arrives.
    ResetNext,
    HangSilently,
    HangInHead,
    HangInBody,
    /// A byte now and then, so that the body outlasts every timeout.
    DripOn,
    /// Terminates TLS with an alert.
    AlertSilently,
    AlertInHead,
    AlertInBody,
    /// Closes the connection without a TLS close_notify.
    CutSilently,
    CutInBody,
    CutUntilEof,
}

/// Scripts that end without reaching a timeout.
pub(super) const PROMPT: [Http1Script; 30] = [
    Http1Script::Ok,
    Http1Script::Chunked,
    Http1Script::Trailers,
    Http1Script::UntilEof,
    Http1Script::Interim,
    Http1Script::NoContent,
    Http1Script::NotModified,
    Http1Script::OldVersion,
    Http1Script::Surplus,
    Http1Script::Drip,
    Http1Script::NotFound,
    Http1Script::Unavailable,
    Http1Script::ExpectationFailed,
    Http1Script::CloseSilently,
    Http1Script::ResetSilently,
    Http1Script::CloseInHead,
    Http1Script::ResetInHead,
    Http1Script::CloseInBody,
    Http1Script::ResetInBody,
    Http1Script::ResetUntilEof,
    Http1Script::CloseInChunks,
    Http1Script::CloseInTrailers,
    Http1Script::BadChunk,
    Http1Script::HugeChunk,
    Http1Script::BadHead,
    Http1Script::EndlessHead,
    Http1Script::TwoLengths,
    Http1Script::Switch,
    Http1Script::CloseNext,
    Http1Script::ResetNext,
];

pub(super) const HANGING: [Http1Script; 4] =
    [Http1Script::HangSilently, Http1Script::HangInHead, Http1Script::HangInBody, Http1Script::DripOn];

/// Scripts that need TLS.
pub(super) const TLS: [Http1Script; 6] = [
    Http1Script::AlertSilently,
    Http1Script::AlertInHead,
    Http1Script::AlertInBody,
    Http1Script::CutSilently,
    Http1Script::CutInBody,
    Http1Script::CutUntilEof,
];

/// Pause between the bytes of a slow response.
const DRIP: Duration = Duration::from_millis(1);
/// Pause between the bytes of a response that outlasts every timeout.
const DRIP_ON: Duration = Duration::from_millis(100);
/// Length in bytes of a head that exceeds the limits of our client, curl and hyper.
const ENDLESS: usize = 450 * 1024;

enum Http1Then {
    KeepOpen,
    Close,
    Reset,
    Hang,
    Alert,
    Cut,
}

impl Http1Script {
    /// Returns the outcome that a client should see, and the status if the head is complete.
    pub(super) fn outcome(self) -> (Outcome, Option<u16>) {
        match self {
            Http1Script::Ok
            | Http1Script::Chunked
            | Http1Script::Trailers
            | Http1Script::UntilEof
            | Http1Script::Interim
            | Http1Script::OldVersion
            | Http1Script::Surplus
            | Http1Script::Drip
            | Http1Script::CloseNext
            | Http1Script::ResetNext => (Outcome::Ok, Some(200)),
            Http1Script::NoContent => (Outcome::Ok, Some(204)),
            Http1Script::NotModified => (Outcome::Ok, Some(304)),
            Http1Script::NotFound => (Outcome::HttpError, Some(404)),
            Http1Script::Unavailable => (Outcome::HttpError, Some(503)),
            Http1Script::ExpectationFailed => (Outcome::HttpError, Some(417)),
            Http1Script::CloseSilently | Http1Script::CutSilently => (Outcome::EofBeforeResponse, None),
            // On a connection that has carried a request before, this counts as a reset.
            Http1Script::AlertSilently => (Outcome::TlsError, None),
            Http1Script::ResetSilently => (Outcome::ResetBeforeResponse, None),
            Http1Script::CloseInHead => (Outcome::TruncatedBody, None),
            Http1Script::ResetInHead | Http1Script::AlertInHead => (Outcome::ResetMidResponse, None),
            Http1Script::CloseInBody
            | Http1Script::CloseInChunks
            | Http1Script::CloseInTrailers
            | Http1Script::CutInBody
            | Http1Script::CutUntilEof => (Outcome::TruncatedBody, Some(200)),
            Http1Script::ResetInBody | Http1Script::ResetUntilEof | Http1Script::AlertInBody => {
                (Outcome::ResetMidResponse, Some(200))
            }
            Http1Script::BadChunk | Http1Script::HugeChunk => (Outcome::ProtocolError, Some(200)),
            Http1Script::BadHead
            | Http1Script::EndlessHead
            | Http1Script::TwoLengths
            | Http1Script::Switch => (Outcome::ProtocolError, None),
            Http1Script::HangSilently | Http1Script::HangInHead => (Outcome::ResponseTimeout, None),
            Http1Script::HangInBody | Http1Script::DripOn => (Outcome::BodyTimeout, Some(200)),
        }
    }

    /// Returns the detail that TLS reports.
    fn detail(self) -> Option<&'static str> {
        match self {
            Http1Script::AlertSilently | Http1Script::AlertInHead | Http1Script::AlertInBody => Some(ALERT),
            Http1Script::CutSilently | Http1Script::CutInBody | Http1Script::CutUntilEof => {
                Some("no_close_notify")
            }
            _ => None,
        }
    }

    /// Returns the bytes to send, and what to do with the connection afterwards.
    fn answer(self) -> (String, Http1Then) {
        const CHUNKED: &str = "transfer-encoding: chunked\r\n";
        let answer = |status: &str, fields: &str, body: &str| {
            format!("HTTP/1.1 {status}\r\nrolldrop-pod: web-1\r\n{fields}\r\n{body}")
        };
        let ok = |fields: &str, body: &str| answer("200 OK", fields, body);
        let hello = || ok("content-length: 5\r\n", "hello");
        let part_of_a_head = || "HTTP/1.1 200 OK\r\ncontent-le".to_owned();
        let part_of_a_body = || ok("content-length: 9\r\n", "hello");
        match self {
            Http1Script::Ok | Http1Script::CloseNext | Http1Script::ResetNext | Http1Script::Drip => {
                (hello(), Http1Then::KeepOpen)
            }
            Http1Script::Chunked => (ok(CHUNKED, "3\r\nhel\r\n2;x\r\nlo\r\n0\r\n\r\n"), Http1Then::KeepOpen),
            Http1Script::Trailers => (
                ok(CHUNKED, "5;a=\"b\"\r\nhello\r\n000\r\nx-sum: 1\r\nx-more: 2\r\n\r\n"),
                Http1Then::KeepOpen,
            ),
            Http1Script::UntilEof => (ok("", "hello"), Http1Then::Close),
            Http1Script::Interim => (
                "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n".to_owned()
                    + &hello(),
                Http1Then::KeepOpen,
            ),
            Http1Script::NoContent => (answer("204 No Content", "", ""), Http1Then::KeepOpen),
            Http1Script::NotModified => {
                (answer("304 Not Modified", "content-length: 5\r\n", ""), Http1Then::KeepOpen)
            }
            Http1Script::OldVersion => (hello().replacen("1.1", "1.0", 1), Http1Then::Close),
            Http1Script::Surplus => (ok("content-length: 2\r\n", "hello"), Http1Then::Close),
            Http1Script::NotFound => {
                (answer("404 Not Found", "content-length: 0\r\n", ""), Http1Then::KeepOpen)
            }
            Http1Script::Unavailable => (
                answer("503 Service Unavailable", "connection: close\r\ncontent-length: 4\r\n", "busy"),
                Http1Then::Close,
            ),
            Http1Script::ExpectationFailed => {
                (answer("417 Expectation Failed", "content-length: 0\r\n", ""), Http1Then::KeepOpen)
            }
            Http1Script::CloseSilently => (String::new(), Http1Then::Close),
            Http1Script::ResetSilently => (String::new(), Http1Then::Reset),
            Http1Script::AlertSilently => (String::new(), Http1Then::Alert),
            Http1Script::CutSilently => (String::new(), Http1Then::Cut),
            Http1Script::CloseInHead => (part_of_a_head(), Http1Then::Close),
            Http1Script::ResetInHead => (part_of_a_head(), Http1Then::Reset),
            Http1Script::AlertInHead => (part_of_a_head(), Http1Then::Alert),
            Http1Script::CloseInBody => (part_of_a_body(), Http1Then::Close),
            Http1Script::ResetInBody => (part_of_a_body(), Http1Then::Reset),
            Http1Script::AlertInBody => (part_of_a_body(), Http1Then::Alert),
            Http1Script::CutInBody => (part_of_a_body(), Http1Then::Cut),
            Http1Script::CutUntilEof => (ok("", "hello"), Http1Then::Cut),
            Http1Script::ResetUntilEof => (ok("", "hello"), Http1Then::Reset),
            Http1Script::CloseInChunks => (ok(CHUNKED, "5\r\nhello\r\n"), Http1Then::Close),
            Http1Script::CloseInTrailers => {
                (ok(CHUNKED, "5\r\nhello\r\n0\r\nx-sum: 1\r\n"), Http1Then::Close)
            }
            Http1Script::BadChunk => (ok(CHUNKED, "hello\r\n"), Http1Then::Close),
            Http1Script::HugeChunk => {
                (ok(CHUNKED, "10000000000000005\r\nhello\r\n0\r\n\r\n"), Http1Then::Close)
            }
            Http1Script::BadHead => ("SSH-2.0-OpenSSH_9.9\r\n\r\n".to_owned(), Http1Then::Close),
            Http1Script::EndlessHead => (ok(&format!("x: {}", "y".repeat(ENDLESS)), ""), Http1Then::Close),
            Http1Script::TwoLengths => {
                (ok("content-length: 5\r\ncontent-length: 4\r\n", "hello"), Http1Then::Close)
            }
            Http1Script::Switch => (
                answer("101 Switching Protocols", "connection: upgrade\r\nupgrade: x\r\n", ""),
                Http1Then::Close,
            ),
            Http1Script::HangSilently => (String::new(), Http1Then::Hang),
            Http1Script::HangInHead => (part_of_a_head(), Http1Then::Hang),
            Http1Script::HangInBody => (ok(CHUNKED, ""), Http1Then::Hang),
            Http1Script::DripOn => (ok("content-length: 99999\r\n", &"x".repeat(99_999)), Http1Then::Hang),
        }
    }

    /// Returns true if the client may give up before it has read the whole response.
    fn may_be_left_unread(self) -> bool {
        matches!(self.outcome().0, Outcome::ProtocolError) || self == Http1Script::DripOn
    }
}

/// The server's action for a request, with the result that the client should record.
#[derive(Clone, Debug)]
pub(super) struct Http1Truth {
    /// Script played; `None` if the server reset the connection instead.
    pub(super) script: Option<Http1Script>,
    /// Outcome that a client should record.
    pub(super) outcome: Outcome,
    pub(super) status: Option<u16>,
    pub(super) detail: Option<&'static str>,
    pub(super) peer: SocketAddr,
    /// True if the connection had carried a request before.
    pub(super) reused: bool,
    pub(super) request_bytes: u64,
    /// Number of bytes that the client should have counted.
    pub(super) answer_bytes: RangeInclusive<u64>,
}

pub(super) type Http1Log = Arc<Mutex<BTreeMap<(String, u64), Http1Truth>>>;

/// Rule by which the server chooses its action for a request.
#[derive(Clone)]
enum Play {
    /// A script chosen by the request's number, in irregular order.
    ByNumber(Arc<[Http1Script]>),
    /// The n-th request on a connection is read, and then the connection is closed; all others get a response.
    CloseOnNth(u64),
}

impl Play {
    /// Returns the script for request `seq`, which is the `nth` on its connection, counted from 1.
    fn script(&self, seq: u64, nth: u64) -> Http1Script {
        match self {
            Play::ByNumber(scripts) => scripts[usize::try_from(mixed(seq)).unwrap() % scripts.len()],
            Play::CloseOnNth(n) if *n == nth => Http1Script::CloseSilently,
            Play::CloseOnNth(_) => Http1Script::Ok,
        }
    }
}

/// Returns a number with the bits of `number` mixed (the finalizer of SplitMix64).
fn mixed(number: u64) -> u64 {
    let x = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

pub(super) struct Http1Server {
    pub(super) address: SocketAddr,
    pub(super) log: Http1Log,
    /// Set that owns the accepting task, which owns the connections.
    _tasks: JoinSet<()>,
}

impl Http1Server {
    /// Starts a server that plays one of the scripts for each request, using all of them equally often.
    pub(super) async fn start(scripts: &[Http1Script]) -> Self {
        Self::play(Play::ByNumber(scripts.into()), None).await
    }

    /// Starts the same server over TLS.
    pub(super) async fn start_tls(scripts: &[Http1Script], tls: TlsAcceptor) -> Self {
        Self::play(Play::ByNumber(scripts.into()), Some(tls)).await
    }

    /// Starts a server that reads the `nth` request of each connection and closes the connection without a response.
    pub(super) async fn closing_on(nth: u64) -> Self {
        Self::play(Play::CloseOnNth(nth), None).await
    }

    async fn play(play: Play, tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let log = Http1Log::default();
        let mut tasks = JoinSet::new();
        let accepted = log.clone();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                tokio::select! {
                    accepting = listener.accept() => {
                        let (stream, peer) = accepting.unwrap();
                        // Sends small responses immediately, even in several pieces.
                        stream.set_nodelay(true).unwrap();
                        let (tls, play, log) = (tls.clone(), play.clone(), accepted.clone());
                        connections.spawn(async move {
                            let stream: Box<dyn TestTransport> = match tls {
                                None => Box::new(stream),
                                Some(tls) => Box::new(tls.accept(stream).await?),
                            };
                            serve(stream, peer, play, log).await
                        });
                    }
                    // A client that gives up ends its connection, but not the server.
                    Some(ended) = connections.join_next() => drop(ended.unwrap()),
                }
            }
        });
        Self { address, log, _tasks: tasks }
    }
}

async fn serve(
    mut stream: Box<dyn TestTransport>,
    peer: SocketAddr,
    play: Play,
    log: Http1Log,
) -> io::Result<()> {
    let mut before = None;
    for nth in 1.. {
        let Some(request) = next_request(&mut *stream).await? else { return Ok(()) };
        let header = |name: &str| {
            request.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).map(str::to_owned)
        };
        let id = header("rolldrop-id").unwrap().parse::<RequestId>().unwrap();
        let script = play.script(id.seq, nth);
        let (mut answer, then) = script.answer();
        if request.starts_with("HEAD ") {
            answer.truncate(answer.find("\r\n\r\n").map_or(0, |end| end + 4));
        }
        let (outcome, status) = script.outcome();
        let sent = answer.len() as u64;
        let truth = Http1Truth {
            script: Some(script),
            outcome,
            status,
            detail: script.detail(),
            peer,
            reused: nth > 1,
            request_bytes: request.len() as u64,
            answer_bytes: if script.may_be_left_unread() { 0..=sent } else { sent..=sent },
        };
        let lost = |outcome| Http1Truth {
            script: None,
            outcome,
            status: None,
            detail: None,
            answer_bytes: 0..=0,
            ..truth.clone()
        };
        let truth = match before {
            Some(Http1Script::CloseNext) => lost(Outcome::EofBeforeResponse),
            Some(Http1Script::ResetNext) => lost(Outcome::ResetBeforeResponse),
            _ if nth > 1 && script == Http1Script::AlertSilently => {
                Http1Truth { outcome: Outcome::ResetBeforeResponse, ..truth }
            }
            _ => truth,
        };
        let lost = truth.script.is_none();
        let earlier = log.lock().unwrap().insert((id.source().to_owned(), id.seq), truth);
        assert!(earlier.is_none(), "the request arrived twice");
        if lost && before == Some(Http1Script::ResetNext) {
            return reset_unread(&mut *stream);
        }
        take(&mut *stream, request.len()).await?;
        if lost {
            return close(&mut *stream).await;
        }
        match script {
            Http1Script::Drip => drip(&mut *stream, &answer, DRIP).await?,
            Http1Script::DripOn => drip(&mut *stream, &answer, DRIP_ON).await?,
            _ => stream.write_all(answer.as_bytes()).await?,
        }
        stream.flush().await?;
        before = Some(script);
        let closing = header("connection").is_some_and(|value| value == "close");
        match then {
            Http1Then::KeepOpen if !closing => {}
            Http1Then::KeepOpen | Http1Then::Close => return close(&mut *stream).await,
            Http1Then::Reset => return stream.tcp().set_zero_linger(),
            Http1Then::Alert => {
                test_transport::alert(&mut *stream).await;
                return Ok(());
            }
            Http1Then::Cut => return Ok(()),
            Http1Then::Hang => {
                // Waits until the client gives up.
                let _ = stream.read(&mut [0]).await;
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Returns the next request on a connection, if there is one. In clear text, the request is only peeked at, so that it
/// can be left unread.
async fn next_request(stream: &mut dyn TestTransport) -> io::Result<Option<String>> {
    let is_clear = stream.tls().is_none();
    let (mut seen, mut length) = (vec![0; 4096], 0);
    loop {
        let count = match is_clear {
            true => stream.tcp().peek(&mut seen).await?,
            false => stream.read(&mut seen[length..]).await?,
        };
        if count == 0 {
            return Ok(None);
        }
        length = if is_clear { count } else { length + count };
        if let Some(request) = whole_request(&seen[..length]) {
            return Ok(Some(request));
        }
        tokio::task::yield_now().await;
    }
}

/// Reads a request of `bytes` bytes that was only peeked at.
async fn take(stream: &mut dyn TestTransport, bytes: usize) -> io::Result<()> {
    if stream.tls().is_none() {
        stream.read_exact(&mut vec![0; bytes]).await?;
    }
    Ok(())
}

/// Closes the connection so that the client sees a reset.
fn reset_unread(stream: &mut dyn TestTransport) -> io::Result<()> {
    match stream.tls() {
        // The connection is closed with unread data, so the kernel sends a reset.
        None => Ok(()),
        Some(_) => stream.tcp().set_zero_linger(),
    }
}

/// Closes the connection, after closing TLS.
async fn close(stream: &mut dyn TestTransport) -> io::Result<()> {
    if stream.tls().is_some() {
        test_transport::close(stream).await;
    }
    Ok(())
}

/// Returns the request if it is complete; no other request may follow it.
fn whole_request(seen: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(seen).unwrap();
    let (head, body) = text.split_once("\r\n\r\n")?;
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    (body.len() == length.map_or(0, |length| length.parse().unwrap())).then(|| text.to_owned())
}

/// Sends the whole head, and then the body byte by byte.
async fn drip(stream: &mut dyn TestTransport, answer: &str, pause: Duration) -> io::Result<()> {
    let (head, body) = answer.split_at(answer.find("\r\n\r\n").unwrap() + 4);
    stream.write_all(head.as_bytes()).await?;
    for byte in body.as_bytes() {
        tokio::time::sleep(pause).await;
        stream.write_all(&[*byte]).await?;
        stream.flush().await?;
    }
    Ok(())
}
