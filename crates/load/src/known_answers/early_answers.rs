//! Servers that answer before they have read the whole request, whose body does not fit into the sockets' buffers.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::test_transport::{self, TestTransport};
use super::*;
use rolldrop_record::load::{StreamKind, StreamSettings};

/// Size of a request body, in bytes; more than the sockets of a connection buffer.
const BODY: usize = 16 << 20;

/// The server's action once it has read the head of a request.
#[derive(Clone, Copy, Debug, PartialEq)]
enum EarlyAnswer {
    /// Answers, and neither reads on nor closes the connection.
    Wait(&'static str),
    /// Answers, and closes the connection, which resets it because of the unread bytes.
    Reset(&'static str),
    /// Answers, and closes only the direction of the answer.
    Shut(&'static str),
    /// Sends the first text, reads the body, and then sends the other one.
    Read(&'static str, &'static str),
    /// Sends the body back while reading it.
    Echo,
}

const LARGE: &str = "HTTP/1.1 413 Content Too Large\r\nconnection: close\r\ncontent-length: 5\r\n\r\nlarge";
const LARGE_UNTIL_CLOSE: &str = "HTTP/1.1 413 Content Too Large\r\nconnection: close\r\n\r\nlarge";
const BUSY: &str = "HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: 4\r\n\r\nbusy";
const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
const INTERIM: &str = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n";

impl EarlyAnswer {
    async fn serve(self, mut stream: Box<dyn TestTransport>) -> io::Result<()> {
        while let Some(read) = read_head(&mut *stream).await? {
            let mut left = BODY - read;
            match self {
                Self::Wait(answer) => {
                    stream.write_all(answer.as_bytes()).await?;
                    stream.flush().await?;
                    return std::future::pending().await;
                }
                Self::Reset(answer) => {
                    stream.write_all(answer.as_bytes()).await?;
                    return stream.flush().await;
                }
                Self::Shut(answer) => {
                    stream.write_all(answer.as_bytes()).await?;
                    stream.shutdown().await?;
                    return std::future::pending().await;
                }
                Self::Read(before, after) => {
                    stream.write_all(before.as_bytes()).await?;
                    stream.flush().await?;
                    let mut bytes = vec![0; 64 << 10];
                    while left > 0 {
                        left -= stream.read(&mut bytes).await?;
                    }
                    stream.write_all(after.as_bytes()).await?;
                }
                Self::Echo => {
                    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {left}\r\n\r\n");
                    stream.write_all(head.as_bytes()).await?;
                    let mut bytes = vec![0; 64 << 10];
                    while left > 0 {
                        let count = stream.read(&mut bytes).await?;
                        left -= count;
                        stream.write_all(&bytes[..count]).await?;
                    }
                }
            }
            stream.flush().await?;
        }
        Ok(())
    }

    /// Returns the outcome and status that a client should record.
    fn outcome(self) -> (Outcome, Option<u16>) {
        match self {
            Self::Read(..) | Self::Echo | Self::Wait(OK) => (Outcome::Ok, Some(200)),
            Self::Wait(BUSY) | Self::Reset(BUSY) => (Outcome::HttpError, Some(503)),
            Self::Reset("") => (Outcome::ResetBeforeResponse, None),
            Self::Wait(_) | Self::Reset(_) | Self::Shut(_) => (Outcome::HttpError, Some(413)),
        }
    }
}

/// Reads the head of a request, and returns the number of bytes read of its body; `None` if there is no other request.
async fn read_head(stream: &mut dyn TestTransport) -> io::Result<Option<usize>> {
    let mut request = Vec::new();
    loop {
        if stream.read_buf(&mut request).await? == 0 {
            return Ok(None);
        }
        if let Some(end) = request.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            return Ok(Some(request.len() - end - 4));
        }
    }
}

async fn serve(listener: TcpListener, answer: EarlyAnswer, tls: Option<TlsAcceptor>) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        // A reset discards an answer that waits for the acknowledgement of TLS's session tickets.
        stream.set_nodelay(true).unwrap();
        let tls = tls.clone();
        connections.spawn(async move {
            let stream: Box<dyn TestTransport> = match tls {
                None => Box::new(stream),
                Some(tls) => Box::new(tls.accept(stream).await?),
            };
            answer.serve(stream).await
        });
    }
}

/// Returns the rows of two requests that get this answer.
async fn rows(answer: EarlyAnswer, scheme: &str, settings: Load) -> Vec<RequestRow> {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(64 << 10).unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(64).unwrap();
    let address = listener.local_addr().unwrap();
    let is_tls = scheme == "https";
    let mut tasks = JoinSet::new();
    tasks.spawn(serve(listener, answer, is_tls.then(|| test_transport::acceptor(&[]).0)));
    let (_, rows) = run(Load {
        targets: vec![LoadTarget::new("web", format!("{scheme}://{address}/"))],
        method: "POST".into(),
        body: vec![b'x'; BODY],
        pace: Pace::Closed(Length::Requests(2)),
        connections: Connections { max: Some(1), ..Connections::KEEPALIVE },
        tls: TlsSettings { insecure: is_tls, ..TlsSettings::default() },
        ..settings
    })
    .await;
    rows
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn early_answer_determines_outcome() {
    let reads_all = [EarlyAnswer::Read(INTERIM, OK), EarlyAnswer::Read("", OK), EarlyAnswer::Echo];
    let reads_head = [
        EarlyAnswer::Wait(LARGE),
        EarlyAnswer::Wait(BUSY),
        EarlyAnswer::Wait(OK),
        EarlyAnswer::Reset(LARGE),
        EarlyAnswer::Reset(BUSY),
        EarlyAnswer::Reset(""),
        EarlyAnswer::Shut(LARGE),
        EarlyAnswer::Shut(LARGE_UNTIL_CLOSE),
    ];
    for scheme in ["http", "https"] {
        for answer in reads_all.into_iter().chain(reads_head) {
            let settings = Load { timeout: PATIENT, ..Load::new("") };
            let rows = rows(answer, scheme, settings).await;
            assert_eq!(rows.len(), 2);
            for row in rows {
                let context = format!("{scheme} {answer:?} {row:?}");
                assert_eq!((row.outcome, row.status), answer.outcome(), "{context}");
                let is_read = reads_all.contains(&answer);
                assert_eq!(row.bytes_sent > BODY as u64, is_read, "{context}");
                assert_eq!(row.conn_reused, is_read && row.seq == 1, "{context}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_is_read_while_request_is_sent() {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 18\r\n\r\ndata: a\n\n";
    let answer = EarlyAnswer::Read(head, "data: b\n\n");
    for scheme in ["http", "https"] {
        let stream = Some(StreamSettings::new(StreamKind::Sse));
        let settings = Load { stream, timeout: PATIENT, ..Load::new("") };
        for row in rows(answer, scheme, settings).await {
            assert_eq!((row.outcome, row.status), answer.outcome(), "{scheme} {row:?}");
            assert!(row.bytes_sent > BODY as u64, "{scheme} {row:?}");
        }
    }
}
