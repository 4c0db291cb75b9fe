//! Streams with every ending that a server can cause.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};

use rolldrop_record::load::{StreamKind, StreamSettings};
use rolldrop_record::{GapRow, StreamEnd, StreamRow};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::test_transport::acceptor;
use super::*;

/// One way to respond: the pieces of the response as they are written, and what happens to the connection afterwards.
struct StreamScript {
    pieces: &'static [&'static str],
    then: Then,
    outcome: Outcome,
    terminal: Option<StreamEnd>,
    events: u64,
}

#[derive(Clone, Copy)]
enum Then {
    Close,
    Reset,
    Hold,
}

const CHUNKED: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nrolldrop-pod: web-1\r\ntransfer-encoding: chunked\r\n\r\n";
const CLOSED: &str = "HTTP/1.1 200 OK\r\nrolldrop-pod: web-1\r\n\r\n";
const HELLO: &str = "d\r\ndata: hello\n\n\r\n";
const DONE: &str = "e\r\ndata: [DONE]\n\n\r\n";
const END: &str = "0\r\n\r\n";

const SCRIPTS: [StreamScript; 15] = [
    StreamScript::new(&[CHUNKED, HELLO, HELLO, DONE, END], Then::Close, Outcome::Ok, StreamEnd::Done, 3),
    StreamScript::new(
        &[CLOSED, "data: a\n\n", "data: [DONE]\n\n"],
        Then::Close,
        Outcome::Ok,
        StreamEnd::Done,
        2,
    ),
    StreamScript::new(&[CHUNKED, HELLO, DONE], Then::Close, Outcome::Ok, StreamEnd::Done, 2),
    StreamScript::new(&[CHUNKED, HELLO], Then::Close, Outcome::StreamCut, StreamEnd::Truncated, 1),
    StreamScript::new(&[CHUNKED, HELLO, HELLO], Then::Reset, Outcome::StreamCut, StreamEnd::Reset, 2),
    StreamScript::new(&[CHUNKED, HELLO, "xyz"], Then::Close, Outcome::ProtocolError, StreamEnd::Malformed, 1),
    StreamScript::new(
        &[CHUNKED, HELLO, END],
        Then::Close,
        Outcome::StreamUnfinished,
        StreamEnd::LastChunk,
        1,
    ),
    StreamScript::new(&[CLOSED, "data: a\n\n"], Then::Close, Outcome::StreamUnfinished, StreamEnd::Close, 1),
    StreamScript::new(
        &[CHUNKED, "2f\r\ndata: {\"choices\":[{\"finish_reason\":\"abort\"}]}\n\n\r\n", DONE, END],
        Then::Close,
        Outcome::StreamAborted,
        StreamEnd::FinishReason,
        2,
    ),
    StreamScript::new(&[CHUNKED, HELLO], Then::Hold, Outcome::StreamStalled, StreamEnd::Stalled, 1),
    StreamScript::new(
        &[
            "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nrolldrop-pod: web-1\r\ncontent-length: 6\r\n\r\nLog in",
        ],
        Then::Close,
        Outcome::ProtocolError,
        StreamEnd::ContentLength,
        0,
    ),
    StreamScript::unbegun(
        &[
            "HTTP/1.1 200 OK\r\ncontent-encoding: br\r\nrolldrop-pod: web-1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        ],
        Outcome::ProtocolError,
    ),
    StreamScript::unbegun(
        &["HTTP/1.1 503 Service Unavailable\r\nrolldrop-pod: web-1\r\ncontent-length: 4\r\n\r\nlate"],
        Outcome::HttpError,
    ),
    StreamScript::unbegun(&["HTTP/1.1 204 No Content\r\nrolldrop-pod: web-1\r\n\r\n"], Outcome::HttpError),
    StreamScript::unbegun(
        &["HTTP/1.1 302 Found\r\nlocation: /login\r\nrolldrop-pod: web-1\r\ncontent-length: 0\r\n\r\n"],
        Outcome::HttpError,
    ),
];

impl StreamScript {
    const fn new(
        pieces: &'static [&'static str],
        then: Then,
        outcome: Outcome,
        terminal: StreamEnd,
        events: u64,
    ) -> Self {
        Self { pieces, then, outcome, terminal: Some(terminal), events }
    }

    /// Returns the script for a response that begins no stream.
    const fn unbegun(response: &'static [&'static str], outcome: Outcome) -> Self {
        Self { pieces: response, then: Then::Close, outcome, terminal: None, events: 0 }
    }

    async fn play(&self, mut connection: TcpStream) {
        let mut request = [0; 1024];
        let read = connection.read(&mut request).await.unwrap();
        assert!(request[..read].ends_with(b"\r\n\r\n"));
        for piece in self.pieces {
            connection.write_all(piece.as_bytes()).await.unwrap();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        match self.then {
            Then::Close => {}
            // The peer has read everything by now, so the reset destroys nothing.
            Then::Reset => {
                tokio::time::sleep(Duration::from_millis(100)).await;
                socket2::SockRef::from(&connection).set_linger(Some(Duration::ZERO)).unwrap();
            }
            // Waits until the client gives up.
            Then::Hold => {
                let _ = connection.read(&mut request).await;
            }
        }
    }
}

/// Starts a server that plays the scripts in turn, and returns its address and the script of each client port.
async fn serve() -> (SocketAddr, Arc<Mutex<BTreeMap<u16, usize>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (played, next) = (Arc::new(Mutex::new(BTreeMap::new())), AtomicUsize::new(0));
    let log = Arc::clone(&played);
    tokio::spawn(async move {
        while let Ok((connection, peer)) = listener.accept().await {
            let script = next.fetch_add(1, Ordering::Relaxed) % SCRIPTS.len();
            log.lock().unwrap().insert(peer.port(), script);
            tokio::spawn(SCRIPTS[script].play(connection));
        }
    });
    (address, played)
}

/// Runs a load of streams, and returns the rows of its requests and of its streams.
async fn run_streams(settings: Load) -> (Vec<RequestRow>, BTreeMap<u64, StreamRow>) {
    let dir = tempfile::tempdir().unwrap();
    let run_dir = RunDir::create(dir.path()).unwrap();
    let prepared = Prepared::new(Plan::new(settings).unwrap()).await.unwrap();
    let mut running = prepared.start(Clock::start(), Some(&run_dir)).unwrap();
    let summary = running.join().await.unwrap();
    let rows = read_table::<RequestRow>(dir.path()).unwrap();
    assert_accounted(&summary, &rows);
    let streams = read_table::<StreamRow>(dir.path()).unwrap();
    let gaps: u64 = read_table::<GapRow>(dir.path()).unwrap().iter().map(|row| row.gaps).sum();
    let between: u64 = streams.iter().map(|row| row.events.saturating_sub(1)).sum();
    assert_eq!(gaps, between, "one gap per pair of successive events");
    let count = streams.len();
    let by_seq: BTreeMap<u64, StreamRow> = streams.into_iter().map(|row| (row.seq, row)).collect();
    assert_eq!(by_seq.len(), count, "a stream has two rows");
    (rows, by_seq)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_outcomes_match_server_log() {
    let (address, played) = serve().await;
    let stream =
        StreamSettings { stall_timeout: Duration::from_secs(2), ..StreamSettings::new(StreamKind::OpenAi) };
    let (rows, streams) = run_streams(Load {
        pace: Pace::constant(100.0, Duration::from_secs(1)),
        stream: Some(stream),
        timeout: PATIENT,
        ..Load::new(format!("http://{address}/"))
    })
    .await;
    let played = played.lock().unwrap();
    for row in rows.iter().filter(|row| row.sent.is_some()) {
        let script = &SCRIPTS[played[&row.local_port.unwrap()]];
        let stream = streams.get(&row.seq);
        assert_eq!(row.outcome, script.outcome, "{row:?} {stream:?}");
        let seen = stream.map(|stream| (stream.terminal, stream.events));
        assert_eq!(seen, script.terminal.map(|terminal| (terminal, script.events)), "{row:?}");
        assert_eq!(row.pod.as_deref(), Some("web-1"));
        assert_eq!(row.errno.is_some(), matches!(script.then, Then::Reset), "{row:?}");
    }
    assert!(played.len() >= SCRIPTS.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_beyond_limit_are_not_sent() {
    let (address, _) = serve().await;
    let (rows, _) = run_streams(Load {
        pace: Pace::constant(200.0, Duration::from_millis(500)),
        stream: Some(StreamSettings {
            max_open: Some(1),
            stall_timeout: Duration::from_secs(2),
            ..StreamSettings::new(StreamKind::Sse)
        }),
        timeout: PATIENT,
        ..Load::new(format!("http://{address}/"))
    })
    .await;
    let refused = rows.iter().filter(|row| row.not_sent_reason.as_deref() == Some("max_open")).count();
    assert!(refused > 0 && refused < rows.len(), "{refused} of {}", rows.len());
}

#[tokio::test]
async fn load_with_too_many_streams_fails_before_start() {
    let refused = async |ports: Option<&str>, max_open: Option<usize>, length: Option<&str>| {
        let length = length.map(|law| law.parse().unwrap());
        let stream = StreamSettings { max_open, length, ..StreamSettings::new(StreamKind::Sse) };
        let settings = Load {
            pace: Pace::constant(5.0, Duration::from_secs(20)),
            stream: Some(stream),
            source_ports: ports.map(|range| range.parse().unwrap()),
            ..Load::new("http://127.0.0.1:8080/")
        };
        Prepared::new(Plan::new(settings).unwrap()).await.err().map(|error| error.to_string())
    };
    let ports = Some("20000-20049");
    for (ports, max_open, length, named) in [
        (
            ports,
            Some(51),
            None,
            "51 open streams exceed the number of source ports (net.ipv4.ip_local_port_range), which is 50:",
        ),
        (ports, None, Some("11s"), "about 55 streams open, but the number of source ports"),
        (None, Some(1 << 40), None, "(ulimit -Hn)"),
    ] {
        let error = refused(ports, max_open, length).await.unwrap();
        assert!(error.contains(named), "{error}");
    }
    for (max_open, length) in [(Some(50), None), (None, Some("9s")), (Some(20), Some("11s")), (None, None)] {
        assert_eq!(refused(ports, max_open, length).await, None, "{max_open:?} {length:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_streams_leave_rows_if_recorder_is_killed() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((mut connection, _)) = listener.accept().await {
            let mut request = [0; 1024];
            assert!(connection.read(&mut request).await.unwrap() > 0);
            // In two pieces, so that the event is not read with the head.
            connection.write_all(CHUNKED.as_bytes()).await.unwrap();
            tokio::time::sleep(Duration::from_millis(50)).await;
            connection.write_all(HELLO.as_bytes()).await.unwrap();
            held.push(connection);
        }
    });
    let dir = tempfile::tempdir().unwrap();
    let run_dir = RunDir::create(dir.path()).unwrap();
    let settings = Load {
        pace: Pace::constant(10.0, Duration::from_secs(600)),
        stream: Some(StreamSettings::new(StreamKind::OpenAi)),
        timeout: PATIENT,
        ..Load::new(format!("http://{address}/"))
    };
    let prepared = Prepared::new(Plan::new(settings).unwrap()).await.unwrap();
    let mut running = prepared.start(Clock::start(), Some(&run_dir)).unwrap();
    let open = dir.path().join("streams/open-load-0.parquet");
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while !open.exists() {
        assert!(std::time::Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // A recorder killed now would leave only these rows.
    let left = read_table::<StreamRow>(dir.path()).unwrap();
    let requests = read_table::<RequestRow>(dir.path()).unwrap();
    assert!(!left.is_empty() && left.len() == requests.len());
    assert!(left.iter().all(|row| row.terminal == StreamEnd::Cancelled && row.events <= 1));
    let lost = |row: &RequestRow| {
        (row.outcome, row.detail.as_deref()) == (Outcome::Cancelled, Some("recorder_lost"))
    };
    assert!(requests.iter().all(lost));

    running.control().abort();
    running.join().await.unwrap();
    assert!(!open.exists());
    let streams = read_table::<StreamRow>(dir.path()).unwrap();
    assert!(streams.len() >= left.len());
    let whole: BTreeSet<u64> = streams.iter().filter(|row| row.events == 1).map(|row| row.seq).collect();
    let cancelled = read_table::<RequestRow>(dir.path()).unwrap();
    let cancelled: Vec<_> = cancelled.iter().filter(|row| whole.contains(&row.seq)).collect();
    assert!(!cancelled.is_empty());
    assert!(cancelled.iter().all(|row| row.bytes_received == (CHUNKED.len() + HELLO.len()) as u64));
    server.abort();
}

/// Serves streams with these pieces, one after another on each connection, with a gap before each piece.
async fn serve_streams(pieces: &'static [&'static str], gap: Duration) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut request = [0; 1024];
                while connection.read(&mut request).await.is_ok_and(|read| read > 0) {
                    for piece in pieces {
                        tokio::time::sleep(gap).await;
                        connection.write_all(piece.as_bytes()).await.unwrap();
                    }
                }
            });
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_carry_streams_in_turn() {
    let address = serve_streams(&[CHUNKED, HELLO, DONE, END], Duration::from_millis(5)).await;
    let (rows, streams) = run_streams(Load {
        pace: Pace::constant(20.0, Duration::from_secs(2)),
        stream: Some(StreamSettings::new(StreamKind::OpenAi)),
        connections: Connections::KEEPALIVE,
        timeout: PATIENT,
        ..Load::new(format!("http://{address}/"))
    })
    .await;
    assert!(rows.iter().all(|row| row.outcome == Outcome::Ok && streams[&row.seq].events == 2), "{rows:?}");
    let size = [CHUNKED, HELLO, DONE, END].concat().len() as u64;
    assert!(rows.iter().all(|row| row.bytes_received == size), "{rows:?}");
    assert!(rows.iter().any(|row| row.conn_reused));
}

/// No bytes from another stream wake the reader.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lone_stream_stalls_without_any_event() {
    let address = serve_streams(&[CHUNKED], Duration::from_millis(5)).await;
    let stall_timeout = Duration::from_secs(1);
    let run = run_streams(Load {
        pace: Pace::constant(1.0, Duration::from_secs(1)),
        stream: Some(StreamSettings { stall_timeout, ..StreamSettings::new(StreamKind::OpenAi) }),
        timeout: PATIENT,
        ..Load::new(format!("http://{address}/"))
    });
    let (rows, streams) =
        tokio::time::timeout(Duration::from_secs(60), run).await.expect("the stall ends the run");
    assert!(rows.iter().all(|row| row.outcome == Outcome::BodyTimeout), "{rows:?}");
    assert!(streams[&rows[0].seq].terminal == StreamEnd::Stalled);
}

/// Many servers close TLS connections without close_notify; no data is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_close_notify_cuts_only_unfinished_streams() {
    let (tls, certificate) = acceptor(&[b"http/1.1"]);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            let mut connection = tls.accept(connection).await.unwrap();
            let mut request = [0; 1024];
            let read = connection.read(&mut request).await.unwrap();
            let is_whole = request[..read].starts_with(b"GET /whole ");
            connection.write_all(CLOSED.as_bytes()).await.unwrap();
            connection.write_all(if is_whole { b"data: [DONE]\n\n" } else { b"data: a\n\n" }).await.unwrap();
            connection.flush().await.unwrap();
        }
    });
    for (path, outcome, terminal) in
        [("whole", Outcome::Ok, StreamEnd::Done), ("half", Outcome::StreamCut, StreamEnd::Truncated)]
    {
        let (rows, streams) = run_streams(Load {
            http: Http::Http1,
            pace: Pace::constant(5.0, Duration::from_secs(1)),
            stream: Some(StreamSettings::new(StreamKind::OpenAi)),
            timeout: PATIENT,
            tls: TlsSettings { ca_pem: Some(certificate.clone().into()), ..TlsSettings::default() },
            ..Load::new(format!("https://{address}/{path}"))
        })
        .await;
        assert!(rows.iter().all(|row| row.outcome == outcome), "{rows:?}");
        assert!(streams.values().all(|stream| stream.terminal == terminal), "{streams:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_may_outlast_stall_timeout() {
    let pieces = &[CHUNKED, HELLO, HELLO, HELLO, DONE, END];
    let address = serve_streams(pieces, Duration::from_secs(1)).await;
    let stall_timeout = Duration::from_secs(3);
    let (rows, streams) = run_streams(Load {
        pace: Pace::constant(10.0, Duration::from_millis(200)),
        stream: Some(StreamSettings { stall_timeout, ..StreamSettings::new(StreamKind::OpenAi) }),
        timeout: PATIENT,
        ..Load::new(format!("http://{address}/"))
    })
    .await;
    assert!(rows.iter().all(|row| row.outcome == Outcome::Ok && streams[&row.seq].events == 4), "{rows:?}");
}
