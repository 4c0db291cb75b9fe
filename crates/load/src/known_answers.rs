//! Known-answer tests: a server plays a script for each request and logs its actions by request id; the load's rows
//! must agree with this log, request by request.

mod early_answers;
mod hidden_retries;
mod http1_differential;
mod http1_server;
mod http2_faults;
mod mixed;
mod oracle;
mod pod_body_faults;
mod stream_faults;
mod test_transport;
mod tls_faults;
mod websocket_faults;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::errno::Errno;
use socket2::{Domain, Socket, Type};

use super::connection::Buffers;
use super::deadlines::Deadlines;
use super::exchange_context::ExchangeContext;
use super::feed::RequestFeed;
use super::open_streams::OpenStreams;
use super::prepared::{WAITING_BATCHES, endpoints};
use super::resolve::TargetRoute;
use super::worker::Task;
use super::*;
use http1_server::{HANGING, Http1Log, Http1Script, Http1Server, PROMPT};
use rolldrop_record::parts::read_table;
use rolldrop_record::{Clock, Outcome, RequestRow, RunDir};

/// Timeouts that are not reached even on a busy machine.
const PATIENT: Timeouts = Timeouts {
    connect: Duration::from_secs(60),
    tls: Duration::from_secs(60),
    first_byte: None,
    response: Some(Duration::from_secs(60)),
};

/// Runs the load with a run directory, and returns its summary and its rows.
async fn run(settings: Load) -> (LoadSummary, Vec<RequestRow>) {
    let dir = tempfile::tempdir().unwrap();
    let run_dir = RunDir::create(dir.path()).unwrap();
    let plan = Plan::new(settings).unwrap();
    let planned = plan.requests().unwrap();
    let prepared = Prepared::new(plan).await.unwrap();
    let mut running = prepared.start(Clock::start(), Some(&run_dir)).unwrap();
    let summary = running.join().await.unwrap();
    let rows = read_table::<RequestRow>(dir.path()).unwrap();
    assert_eq!(summary.scheduled, planned);
    assert_accounted(&summary, &rows);
    (summary, rows)
}

/// Checks that every scheduled request has exactly one row, and that the counts match the rows.
fn assert_accounted(summary: &LoadSummary, rows: &[RequestRow]) {
    assert_eq!(rows.len() as u64, summary.scheduled);
    let tally = &summary.tally;
    assert_eq!(tally.outcomes.total() + tally.warmup, summary.scheduled);
    for source in &summary.sources {
        let mut seqs: Vec<_> = rows.iter().filter(|r| *r.source == **source).map(|r| r.seq).collect();
        seqs.sort_unstable();
        assert!(seqs.iter().zip(0..).all(|(seq, expected)| *seq == expected), "{source}");
    }
    for row in rows {
        assert!(row.attempts > 1 || row.outcome == row.final_outcome, "{row:?}");
        assert_eq!(row.outcome == Outcome::NotSent, row.not_sent_reason.is_some());
    }
}

fn assert_agree(rows: &[RequestRow], log: &Http1Log) {
    let log = log.lock().unwrap();
    let mut sent = 0;
    for row in rows.iter().filter(|row| row.sent.is_some()) {
        let truth = log
            .get(&(row.source.to_string(), row.seq))
            .unwrap_or_else(|| panic!("the server did not see {row:?}"));
        sent += 1;
        assert_eq!((row.outcome, row.status), (truth.outcome, truth.status), "{row:?} {truth:?}");
        assert_eq!(row.local_port, Some(truth.peer.port()), "{row:?} {truth:?}");
        assert_eq!(row.conn_reused, truth.reused, "{row:?} {truth:?}");
        assert_eq!(row.connected.is_some(), !truth.reused, "{row:?} {truth:?}");
        assert_eq!(row.bytes_sent, truth.request_bytes, "{row:?} {truth:?}");
        assert!(truth.answer_bytes.contains(&row.bytes_received), "{row:?} {truth:?}");
        assert_eq!(row.pod.as_deref(), row.status.map(|_| "web-1"), "{row:?}");
        let reset = matches!(row.outcome, Outcome::ResetBeforeResponse | Outcome::ResetMidResponse);
        let errno = (reset && truth.detail.is_none()).then_some(Errno::ECONNRESET as i32);
        assert_eq!((row.errno, row.detail.as_deref()), (errno, truth.detail), "{row:?} {truth:?}");
    }
    assert_eq!(sent, log.len(), "the server saw requests that were never sent");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outcomes_match_server_log() {
    let server = Http1Server::start(&PROMPT).await;
    let (summary, rows) = run(Load {
        pace: Pace::constant(1000.0, Duration::from_millis(2000)),
        warmup: Duration::from_millis(50),
        connections: Connections::mixed(0.3),
        timeout: PATIENT,
        workers: 2,
        ..Load::new(format!("http://{}/", server.address))
    })
    .await;
    assert_agree(&rows, &server.log);
    assert_eq!(summary.tally.warmup, 50);
    let log = server.log.lock().unwrap();
    for script in PROMPT {
        assert!(log.values().any(|truth| truth.script == Some(script)), "{script:?} was never played");
    }
    assert!(log.values().any(|truth| truth.script.is_none()), "no reused connection was reset");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hanging_response_times_out() {
    let server = Http1Server::start(&HANGING).await;
    let (summary, rows) = run(Load {
        pace: Pace::constant(60.0, Duration::from_millis(500)),
        timeout: Timeouts { response: Some(Duration::from_secs(3)), ..PATIENT },
        ..Load::new(format!("http://{}/", server.address))
    })
    .await;
    assert_agree(&rows, &server.log);
    assert_eq!(summary.tally.response_ns.len(), 0, "no latency without an answer");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn head_response_ends_without_body() {
    let kept = &[Http1Script::Ok, Http1Script::Chunked, Http1Script::NotFound, Http1Script::Unavailable][..];
    // The heads of these responses do not announce that the server will close the connection.
    let closed = &[Http1Script::UntilEof][..];
    for (scripts, connections) in [(kept, Connections::KEEPALIVE), (closed, Connections::FRESH)] {
        let server = Http1Server::start(scripts).await;
        let (_, rows) = run(Load {
            method: "HEAD".into(),
            pace: Pace::Closed(Length::Requests(200)),
            connections,
            timeout: PATIENT,
            ..Load::new(format!("http://{}/", server.address))
        })
        .await;
        assert_agree(&rows, &server.log);
        assert_eq!(rows.iter().any(|row| row.conn_reused), connections == Connections::KEEPALIVE);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expect_continue_accepts_100_and_417() {
    let server =
        Http1Server::start(&[Http1Script::Interim, Http1Script::ExpectationFailed, Http1Script::Ok]).await;
    let (_, rows) = run(Load {
        method: "POST".into(),
        headers: vec![("Expect".into(), "100-continue".into())],
        body: b"hello".to_vec(),
        pace: Pace::Closed(Length::Requests(200)),
        connections: Connections::KEEPALIVE,
        timeout: PATIENT,
        ..Load::new(format!("http://{}/", server.address))
    })
    .await;
    assert_agree(&rows, &server.log);
    let refused = rows.iter().filter(|row| row.status == Some(417)).count();
    assert!((1..200).contains(&refused), "{refused}");
}

/// Returns an address that was free a moment ago and on which nothing listens.
fn closed_address() -> (Socket, SocketAddr) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    (socket, address)
}

#[tokio::test]
async fn closed_port_affects_only_its_target() {
    let server = Http1Server::start(&[Http1Script::Ok]).await;
    let (_bound, closed) = closed_address();
    let target = |name: &str, address| LoadTarget::new(name, format!("http://{address}/"));
    let (_, rows) = run(Load {
        targets: vec![target("open", server.address), target("closed", closed)],
        pace: Pace::constant(200.0, Duration::from_millis(500)),
        timeout: PATIENT,
        ..Load::new("")
    })
    .await;
    for row in rows.iter().filter(|row| row.outcome != Outcome::NotSent) {
        let expected =
            if row.seq % 2 == 0 { ("open", Outcome::Ok) } else { ("closed", Outcome::ConnectRefused) };
        assert_eq!((&*row.target, row.outcome), expected, "{row:?}");
        assert!(row.local_port.is_some_and(|port| port != 0), "{row:?}");
        if row.outcome == Outcome::ConnectRefused {
            assert_eq!(row.errno, Some(Errno::ECONNREFUSED as i32));
            assert_eq!(row.remote_addr.as_deref(), Some(&*closed.to_string()));
            assert!(row.connect_start.is_some() && row.connected.is_none() && row.sent.is_none());
        }
    }
}

/// Returns a listener that answers no SYN, because its accept queue is full while the returned sockets exist.
#[cfg(target_os = "linux")]
fn black_hole() -> (Vec<Socket>, SocketAddr) {
    let (listener, address) = closed_address();
    listener.listen(0).unwrap();
    let mut sockets = vec![listener];
    loop {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let full = socket.connect_timeout(&address.into(), Duration::from_millis(200)).is_err();
        sockets.push(socket);
        if full {
            return (sockets, address);
        }
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn unanswered_syn_times_out() {
    let (_sockets, address) = black_hole();
    let (_, rows) = run(Load {
        pace: Pace::constant(20.0, Duration::from_millis(500)),
        timeout: Timeouts { connect: Duration::from_millis(100), ..Timeouts::default() },
        ..Load::new(format!("http://{address}/"))
    })
    .await;
    for row in rows.iter().filter(|row| row.outcome != Outcome::NotSent) {
        assert_eq!((row.outcome, row.errno), (Outcome::ConnectTimeout, None), "{row:?}");
        assert!(row.local_port.is_some() && row.connected.is_none());
    }
}

/// Waits until the load's progress satisfies `wanted`.
async fn until(control: &Control, wanted: impl Fn(&Progress) -> bool) {
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    while !wanted(&control.progress()) {
        assert!(std::time::Instant::now() < deadline, "{:?}", control.progress());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_protocol_reports_tls_alert() {
    let mut tasks = tokio::task::JoinSet::new();
    for (scheme, http) in [("https", Http::Http2), ("https", Http::Http1), ("wss", Http::Auto)] {
        let (address, certificate) = test_transport::strict(&[b"h2", b"http/1.1"], &mut tasks).await;
        for connections in [Connections::FRESH, Connections::KEEPALIVE] {
            let (_, rows) = run(Load {
                http,
                connections,
                pace: Pace::constant(100.0, Duration::from_millis(200)),
                timeout: PATIENT,
                tls: TlsSettings { ca_pem: Some(certificate.clone().into()), ..TlsSettings::default() },
                ..Load::new(format!("{scheme}://{address}/"))
            })
            .await;
            for row in rows.iter().filter(|row| row.outcome != Outcome::NotSent) {
                let told = Some("alert certificate_required (116)");
                assert_eq!((row.outcome, row.detail.as_deref()), (Outcome::TlsError, told), "{row:?}");
            }
        }
    }
}

fn endless(server: &Http1Server) -> Load {
    Load {
        pace: Pace::constant(100.0, Duration::from_secs(3600)),
        ..Load::new(format!("http://{}/", server.address))
    }
}

/// Runs the load until its progress satisfies `wanted`, and then ends it with `end`.
async fn run_until(
    settings: Load,
    wanted: impl Fn(&Progress) -> bool,
    end: impl FnOnce(&Control),
) -> (LoadSummary, Vec<RequestRow>) {
    let dir = tempfile::tempdir().unwrap();
    let run_dir = RunDir::create(dir.path()).unwrap();
    let prepared = Prepared::new(Plan::new(settings).unwrap()).await.unwrap();
    let mut running = prepared.start(Clock::start(), Some(&run_dir)).unwrap();
    until(running.control(), wanted).await;
    end(running.control());
    let summary = running.join().await.unwrap();
    let rows = read_table::<RequestRow>(dir.path()).unwrap();
    assert!(summary.stopped_early);
    assert_accounted(&summary, &rows);
    (summary, rows)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stop_drains_requests_in_flight() {
    let server = Http1Server::start(&[Http1Script::HangSilently]).await;
    let settings = Load {
        timeout: Timeouts { response: Some(Duration::from_secs(2)), ..Timeouts::default() },
        ..endless(&server)
    };
    let (summary, rows) = run_until(settings, |progress| progress.in_flight >= 5, Control::stop).await;
    assert!(summary.tally.outcomes.of(Outcome::ResponseTimeout) >= 5);
    assert!(rows.iter().all(|row| row.outcome != Outcome::Cancelled));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn abort_cancels_requests_in_flight() {
    let server = Http1Server::start(&[Http1Script::HangSilently]).await;
    let settings = Load {
        timeout: Timeouts { response: Some(Duration::from_secs(600)), ..Timeouts::default() },
        ..endless(&server)
    };
    let (summary, _) = run_until(settings, |progress| progress.in_flight >= 5, Control::abort).await;
    assert!(summary.tally.outcomes.of(Outcome::Cancelled) >= 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_beyond_connection_limit_are_not_sent() {
    let server = Http1Server::start(&[Http1Script::HangSilently]).await;
    let settings = Load {
        connections: Connections { max: Some(4), ..Connections::KEEPALIVE },
        timeout: Timeouts { response: Some(Duration::from_secs(600)), ..Timeouts::default() },
        ..endless(&server)
    };
    let full = |progress: &Progress| progress.outcomes.of(Outcome::NotSent) >= 20;
    let (_, rows) = run_until(settings, full, Control::abort).await;
    assert_eq!(rows.iter().filter(|row| row.conn.is_some()).count(), 4);
    let reason = |reason| rows.iter().any(|row| row.not_sent_reason.as_deref() == Some(reason));
    assert!(reason("max_connections"));
}

#[test]
fn late_requests_are_not_sent() {
    let plan = Plan::new(Load {
        pace: Pace::constant(10.0, Duration::from_secs(30)),
        ..Load::new("http://127.0.0.1:1/")
    })
    .unwrap();
    let clock = Clock::start();
    let (batches, received) = sync_channel(WAITING_BATCHES);
    let route = TargetRoute::Fixed("127.0.0.1:1".parse::<SocketAddr>().unwrap().into());
    let done = Task {
        worker: 0,
        context: ExchangeContext {
            endpoints: endpoints(&plan, 0, &[route]),
            plan: plan.clone(),
            clock,
            source: "load-0".into(),
            ports: None,
            deadlines: Deadlines::new(clock),
            buffers: Buffers::default(),
            streams: OpenStreams::new("load-0".into(), None),
            poller: None,
            is_aborted: Cell::new(false),
        },
        feed: RequestFeed::new(&plan, 0, 1, clock.now() - Duration::from_secs(60)),
        max_connections: 1,
        control: Control::default(),
        batches,
    }
    .run()
    .unwrap();
    assert_eq!((done.scheduled, done.tally.outcomes.of(Outcome::NotSent)), (300, 300));
    let rows: Vec<_> = received.into_iter().flat_map(|batch| batch.rows).collect();
    assert!(rows.iter().all(|row| row.not_sent_reason.as_deref() == Some("late")));
}

#[tokio::test]
async fn latency_log_counts_answers_by_outcome() {
    use hdrhistogram::serialization::Deserializer;
    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

    let server =
        Http1Server::start(&[Http1Script::Ok, Http1Script::NotFound, Http1Script::CloseSilently]).await;
    let dir = tempfile::tempdir().unwrap();
    let run_dir = RunDir::create(dir.path()).unwrap();
    let plan = Plan::new(Load {
        pace: Pace::constant(100.0, Duration::from_millis(1500)),
        timeout: PATIENT,
        ..Load::new(format!("http://{}/", server.address))
    })
    .unwrap();
    let prepared = Prepared::new(plan).await.unwrap();
    let mut running = prepared.start(Clock::start(), Some(&run_dir)).unwrap();
    let summary = running.join().await.unwrap();
    let log = std::fs::read(dir.path().join("latency.hlog")).unwrap();
    let mut counts = BTreeMap::<String, u64>::new();
    for entry in IntervalLogIterator::new(&log) {
        let LogEntry::Interval(interval) = entry.unwrap() else { continue };
        let bytes =
            base64::Engine::decode(&base64::engine::general_purpose::STANDARD, interval.encoded_histogram());
        let histogram: hdrhistogram::Histogram<u64> =
            Deserializer::new().deserialize(&mut bytes.unwrap().as_slice()).unwrap();
        *counts.entry(interval.tag().unwrap().as_str().to_owned()).or_default() += histogram.len();
    }
    let expected: BTreeMap<_, _> = summary
        .tally
        .outcomes
        .iter()
        .filter(|(outcome, _)| *outcome != Outcome::NotSent)
        .map(|(outcome, count)| (outcome.as_str().to_owned(), count))
        .collect();
    assert_eq!(counts, expected);
    assert_eq!(counts.len(), 3);
}

#[tokio::test]
async fn unresolvable_host_fails_preparation() {
    let plan = Plan::new(Load::new("http://no-such-host.invalid/")).unwrap();
    let error = Prepared::new(plan).await.unwrap_err().to_string();
    assert!(error.starts_with("failed to resolve no-such-host.invalid"), "{error}");
}

#[tokio::test]
async fn missing_requests_directory_fails_load() {
    let server = Http1Server::start(&[Http1Script::Ok]).await;
    let dir = tempfile::tempdir().unwrap();
    let run_dir = RunDir::create(dir.path()).unwrap();
    let settings = Load { pace: Pace::constant(100.0, Duration::from_millis(100)), ..endless(&server) };
    let prepared = Prepared::new(Plan::new(settings).unwrap()).await.unwrap();
    let mut running = prepared.start(Clock::start(), Some(&run_dir)).unwrap();
    std::fs::remove_dir(dir.path().join("requests")).unwrap();
    assert!(matches!(running.join().await, Err(LoadError::Part(_))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_use_each_source_port_once() {
    let server = Http1Server::start(&[Http1Script::Ok]).await;
    let range = PortRange { first: 20_000, last: 20_499 };
    let (_, rows) = run(Load {
        pace: Pace::constant(400.0, Duration::from_secs(1)),
        timeout: PATIENT,
        workers: 2,
        source_ports: Some(range),
        source_addresses: vec![Ipv4Addr::new(127, 0, 0, 7).into()],
        ..Load::new(format!("http://{}/", server.address))
    })
    .await;
    assert_agree(&rows, &server.log);
    let mut ports: Vec<u16> = rows.iter().filter_map(|row| row.local_port).collect();
    assert!(ports.iter().all(|port| (range.first..=range.last).contains(port)));
    ports.sort_unstable();
    assert!(ports.windows(2).all(|pair| pair[0] != pair[1]), "a port was taken twice: {ports:?}");
    let log = server.log.lock().unwrap();
    assert!(log.values().all(|truth| truth.peer.ip() == Ipv4Addr::new(127, 0, 0, 7)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closed_loop_sends_exact_request_count() {
    let server = Http1Server::start(&[Http1Script::Ok]).await;
    let (_, rows) = run(Load {
        pace: Pace::Closed(Length::Requests(500)),
        connections: Connections { max: Some(4), ..Connections::KEEPALIVE },
        timeout: PATIENT,
        workers: 2,
        ..Load::new(format!("http://{}/", server.address))
    })
    .await;
    assert_agree(&rows, &server.log);
    let connections: BTreeSet<_> = rows.iter().map(|row| (row.source.clone(), row.conn)).collect();
    assert_eq!(connections.len(), 4);
    for connection in connections {
        let mut own: Vec<_> =
            rows.iter().filter(|row| (row.source.clone(), row.conn) == connection).collect();
        own.sort_by_key(|row| row.seq);
        assert!(own.windows(2).all(|pair| pair[0].end <= pair[1].scheduled), "one at a time");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn poisson_stages_send_every_request() {
    let server = Http1Server::start(&[Http1Script::Ok]).await;
    let stages = ["0-400:500ms", "400:250ms", "0:100ms", "400-0:500ms"].map(|text| text.parse().unwrap());
    let (_, rows) = run(Load {
        pace: Pace::Open(stages.to_vec()),
        arrivals: Arrivals::Poisson,
        seed: 7,
        timeout: PATIENT,
        ..Load::new(format!("http://{}/", server.address))
    })
    .await;
    assert_eq!(rows.len(), 300);
    assert_agree(&rows, &server.log);
}
