//! The server that plays a script per request and writes down what it did.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::record::{Outcome, RequestId};

/// What the server does with a request that it has read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Script {
    Ok,
    Chunked,
    UntilEof,
    Interim,
    NoContent,
    NotFound,
    Unavailable,
    CloseSilently,
    ResetSilently,
    CloseInHead,
    ResetInHead,
    CloseInBody,
    ResetInBody,
    CloseInChunks,
    BadChunk,
    BadHead,
    /// Answers, and resets the connection when the next request comes.
    ResetNext,
    HangSilently,
    HangInHead,
    HangInBody,
}

/// Everything that ends without anybody's timeout.
pub(super) const PROMPT: [Script; 17] = [
    Script::Ok,
    Script::Chunked,
    Script::ResetNext,
    Script::UntilEof,
    Script::Interim,
    Script::CloseSilently,
    Script::NoContent,
    Script::NotFound,
    Script::ResetSilently,
    Script::Unavailable,
    Script::CloseInHead,
    Script::ResetInHead,
    Script::CloseInBody,
    Script::ResetInBody,
    Script::CloseInChunks,
    Script::BadChunk,
    Script::BadHead,
];

pub(super) const HANGING: [Script; 3] = [Script::HangSilently, Script::HangInHead, Script::HangInBody];

enum Then {
    KeepOpen,
    Close,
    Reset,
    Hang,
}

impl Script {
    /// The outcome that a client should see, and the status where there is a complete head.
    fn outcome(self) -> (Outcome, Option<u16>) {
        match self {
            Script::Ok | Script::Chunked | Script::UntilEof | Script::Interim | Script::ResetNext => {
                (Outcome::Ok, Some(200))
            }
            Script::NoContent => (Outcome::Ok, Some(204)),
            Script::NotFound => (Outcome::HttpError, Some(404)),
            Script::Unavailable => (Outcome::HttpError, Some(503)),
            Script::CloseSilently => (Outcome::EofBeforeResponse, None),
            Script::ResetSilently => (Outcome::ResetBeforeResponse, None),
            Script::CloseInHead => (Outcome::TruncatedBody, None),
            Script::ResetInHead => (Outcome::ResetMidResponse, None),
            Script::CloseInBody | Script::CloseInChunks => (Outcome::TruncatedBody, Some(200)),
            Script::ResetInBody => (Outcome::ResetMidResponse, Some(200)),
            Script::BadChunk => (Outcome::ProtocolError, Some(200)),
            Script::BadHead => (Outcome::ProtocolError, None),
            Script::HangSilently | Script::HangInHead => (Outcome::ResponseTimeout, None),
            Script::HangInBody => (Outcome::BodyTimeout, Some(200)),
        }
    }

    fn answer(self) -> (&'static str, Then) {
        const CHUNKED: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nrolldrop-pod: web-1\r\n\r\n";
        match self {
            Script::Ok | Script::ResetNext => {
                ("HTTP/1.1 200 OK\r\ncontent-length: 5\r\nrolldrop-pod: web-1\r\n\r\nhello", Then::KeepOpen)
            }
            Script::Chunked => (
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nrolldrop-pod: web-1\r\n\r\n\
                 3\r\nhel\r\n2;x\r\nlo\r\n0\r\n\r\n",
                Then::KeepOpen,
            ),
            Script::UntilEof => ("HTTP/1.1 200 OK\r\nrolldrop-pod: web-1\r\n\r\nhello", Then::Close),
            Script::Interim => (
                "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n\
                 HTTP/1.1 200 OK\r\ncontent-length: 2\r\nrolldrop-pod: web-1\r\n\r\nok",
                Then::KeepOpen,
            ),
            Script::NoContent => ("HTTP/1.1 204 No Content\r\nrolldrop-pod: web-1\r\n\r\n", Then::KeepOpen),
            Script::NotFound => {
                ("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nrolldrop-pod: web-1\r\n\r\n", Then::KeepOpen)
            }
            Script::Unavailable => (
                "HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nrolldrop-pod: web-1\r\n\
                 content-length: 4\r\n\r\nbusy",
                Then::Close,
            ),
            Script::CloseSilently => ("", Then::Close),
            Script::ResetSilently => ("", Then::Reset),
            Script::CloseInHead => ("HTTP/1.1 200 OK\r\ncontent-le", Then::Close),
            Script::ResetInHead => ("HTTP/1.1 200 OK\r\ncontent-le", Then::Reset),
            Script::CloseInBody => {
                ("HTTP/1.1 200 OK\r\ncontent-length: 9\r\nrolldrop-pod: web-1\r\n\r\nhello", Then::Close)
            }
            Script::ResetInBody => {
                ("HTTP/1.1 200 OK\r\ncontent-length: 9\r\nrolldrop-pod: web-1\r\n\r\nhello", Then::Reset)
            }
            Script::CloseInChunks => (
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nrolldrop-pod: web-1\r\n\r\n5\r\nhello\r\n",
                Then::Close,
            ),
            Script::BadChunk => (
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nrolldrop-pod: web-1\r\n\r\nhello\r\n",
                Then::Close,
            ),
            Script::BadHead => ("SSH-2.0-OpenSSH_9.9\r\n\r\n", Then::Close),
            Script::HangSilently => ("", Then::Hang),
            Script::HangInHead => ("HTTP/1.1 200 OK\r\ncontent-le", Then::Hang),
            Script::HangInBody => (CHUNKED, Then::Hang),
        }
    }
}

/// What the server did to a request.
#[derive(Clone, Debug)]
pub(super) struct Truth {
    /// The script that it played; `None` where it reset the connection instead.
    pub(super) script: Option<Script>,
    /// What a client should see.
    pub(super) outcome: Outcome,
    pub(super) status: Option<u16>,
    pub(super) peer: SocketAddr,
    /// Whether the connection had carried a request before.
    pub(super) reused: bool,
    pub(super) request_bytes: u64,
    pub(super) answer_bytes: u64,
}

pub(super) type Log = Arc<Mutex<BTreeMap<(String, u64), Truth>>>;

pub(super) struct Server {
    pub(super) address: SocketAddr,
    pub(super) log: Log,
    /// Owns the accepting task, which owns the connections.
    _tasks: JoinSet<()>,
}

impl Server {
    pub(super) async fn start(scripts: &'static [Script]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let log = Log::default();
        let mut tasks = JoinSet::new();
        let accepted = log.clone();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, peer) = listener.accept().await.unwrap();
                connections.spawn(serve(stream, peer, scripts, accepted.clone()));
            }
        });
        Self { address, log, _tasks: tasks }
    }
}

async fn serve(mut stream: TcpStream, peer: SocketAddr, scripts: &'static [Script], log: Log) {
    let mut reset_next = false;
    for number in 0.. {
        let mut seen = vec![0; 4096];
        // A request is looked at before it is read, so that it can be left unread.
        let request = loop {
            match stream.peek(&mut seen).await {
                Ok(0) | Err(_) => return,
                Ok(count) if seen[..count].ends_with(b"\r\n\r\n") => {
                    break String::from_utf8(seen[..count].to_vec()).unwrap();
                }
                Ok(_) => tokio::task::yield_now().await,
            }
        };
        let header = |name: &str| {
            request.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).map(str::to_owned)
        };
        let id = header("rolldrop-id").unwrap().parse::<RequestId>().unwrap();
        let script = scripts[usize::try_from(id.seq).unwrap() % scripts.len()];
        let (answer, then) = script.answer();
        let (outcome, status) = script.outcome();
        let truth = Truth {
            script: Some(script),
            outcome,
            status,
            peer,
            reused: number > 0,
            request_bytes: request.len() as u64,
            answer_bytes: answer.len() as u64,
        };
        let truth = if reset_next {
            Truth {
                script: None,
                outcome: Outcome::ResetBeforeResponse,
                status: None,
                answer_bytes: 0,
                ..truth
            }
        } else {
            truth
        };
        let earlier = log.lock().unwrap().insert((id.source, id.seq), truth);
        assert!(earlier.is_none(), "the request came twice");
        if reset_next {
            // Closed with unread data: the kernel answers with a reset.
            return;
        }
        stream.read_exact(&mut seen[..request.len()]).await.unwrap();
        stream.write_all(answer.as_bytes()).await.unwrap();
        reset_next = script == Script::ResetNext;
        let closing = header("connection").is_some_and(|value| value == "close");
        match then {
            Then::KeepOpen if !closing => {}
            Then::KeepOpen | Then::Close => return,
            Then::Reset => {
                SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
                return;
            }
            Then::Hang => {
                // Until the client gives up.
                let _ = stream.read(&mut seen).await;
                return;
            }
        }
    }
}
