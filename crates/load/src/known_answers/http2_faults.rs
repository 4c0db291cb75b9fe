//! Known-answer tests over HTTP/2: each row must agree with the server's log.

mod faulty_frames;
mod grpc_faults;
mod http2_differential;
mod http2_script;
mod http2_server;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::test_transport::acceptor;
use super::*;
use faulty_frames::NO_ERROR;
pub(super) use http2_differential::fault_inside_tls;
use http2_script::{ALERTS, CONNECTIONS, HANGING, Http2Script, streams};
use http2_server::{Habits, Http2Log, Http2Server, Http2Truth};
use rolldrop_wire::http2::{INITIAL_WINDOW_SIZE, MAX_CONCURRENT_STREAMS};

/// Returns a load over HTTP/2 with kept connections and timeouts that are never reached.
fn settings(server: &Http2Server) -> Load {
    Load {
        http: Http::Http2,
        connections: Connections::KEEPALIVE,
        timeout: PATIENT,
        workers: 2,
        ..Load::new(format!("http://{}/", server.address))
    }
}

fn assert_row_agrees(row: &RequestRow, truth: &Http2Truth) {
    let is_broken = truth.script.is_some_and(Http2Script::is_broken);
    let grpc_status = truth.script.and_then(Http2Script::grpc_status);
    assert_eq!(row.grpc_status, grpc_status, "{row:?} {truth:?}");
    assert_eq!((row.outcome, row.status), (truth.outcome, truth.status), "{row:?} {truth:?}");
    assert_eq!(row.local_port, Some(truth.peer.port()), "{row:?} {truth:?}");
    assert_eq!((row.conn_reused, row.stream), (truth.reused, Some(truth.stream)), "{row:?} {truth:?}");
    assert_eq!(row.connected.is_some(), !truth.reused, "{row:?} {truth:?}");
    assert_eq!(row.bytes_sent, truth.request_bytes, "{row:?} {truth:?}");
    assert_eq!(row.bytes_received, truth.answer_bytes, "{row:?} {truth:?}");
    assert_eq!(row.pod.as_deref(), row.status.map(|_| "web-1"), "{row:?}");
    assert_eq!(row.errno, is_broken.then_some(Errno::ECONNRESET as i32), "{row:?} {truth:?}");
    // For a protocol violation, the client chooses the wording.
    if row.outcome != Outcome::ProtocolError || truth.detail.is_some() {
        assert_eq!(row.detail.as_deref(), truth.detail, "{row:?} {truth:?}");
    }
}

fn assert_agree(rows: &[RequestRow], log: &Http2Log) {
    let log = log.lock().unwrap();
    let sent: Vec<_> = rows.iter().filter(|row| row.sent.is_some()).collect();
    for row in &sent {
        let truth = log.get(&(row.source.to_string(), row.seq));
        assert_row_agrees(row, truth.unwrap_or_else(|| panic!("the server did not see {row:?}")));
    }
    assert_eq!(sent.len(), log.len(), "the server saw requests that were never sent");
}

fn assert_all_were_played(log: &Http2Log, scripts: &[Http2Script]) {
    let log = log.lock().unwrap();
    for script in scripts {
        assert!(log.values().any(|truth| truth.script == Some(*script)), "{script:?} was never played");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shared_stream_outcomes_match_server_log() {
    let (requests, rate) = mixed::size();
    let server = Http2Server::start(Habits { scripts: streams(), ..Habits::default() }).await;
    let (summary, rows) = run(Load {
        pace: Pace::constant(rate, Duration::from_secs_f64(requests / rate)),
        connections: Connections { max: Some(4), ..Connections::KEEPALIVE },
        ..settings(&server)
    })
    .await;
    assert_agree(&rows, &server.log);
    assert_all_were_played(&server.log, &streams());
    assert_eq!(summary.tally.go_hidden, hidden_by_go(&server.log));
    tell("streams", &summary, &rows);
}

/// Returns the number of requests that Go's client would have resent, by the server's own count.
fn hidden_by_go(log: &Http2Log) -> u64 {
    log.lock().unwrap().values().filter(|truth| truth.is_hidden_by_go).count() as u64
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_fault_outcomes_match_server_log() {
    let (requests, rate) = mixed::size();
    let scripts: Vec<_> = streams().into_iter().chain(CONNECTIONS).collect();
    let server = Http2Server::start(Habits { scripts: scripts.clone(), ..Habits::default() }).await;
    let (summary, rows) = run(Load {
        pace: Pace::constant(rate, Duration::from_secs_f64(requests / rate)),
        ..mixed_settings(&server)
    })
    .await;
    assert_connections_agree(&server, &scripts, &summary, &rows);
    tell("connections", &summary, &rows);
}

/// Returns a load with fresh and kept connections, in which the end of a connection ends only one request.
fn mixed_settings(server: &Http2Server) -> Load {
    Load {
        connections: Connections { max_concurrent_streams: Some(1), ..Connections::mixed(0.3) },
        ..settings(server)
    }
}

fn assert_connections_agree(
    server: &Http2Server,
    scripts: &[Http2Script],
    summary: &LoadSummary,
    rows: &[RequestRow],
) {
    assert_agree(rows, &server.log);
    assert_all_were_played(&server.log, scripts);
    assert_eq!(summary.tally.go_hidden, hidden_by_go(&server.log));
    let log = server.log.lock().unwrap();
    assert!(log.values().any(|truth| truth.script.is_none()), "no reused connection was closed");
}

/// Prints a line for the proof's table.
fn tell(what: &str, summary: &LoadSummary, rows: &[RequestRow]) {
    let reused = rows.iter().filter(|row| row.conn_reused && row.sent.is_some()).count();
    mixed::tell(&format!("HTTP/2 {what}"), summary, reused);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h2_tls_outcomes_match_server_log() {
    let (requests, rate) = tls_faults::size();
    let (tls, certificate) = acceptor(&[b"h2"]);
    let scripts: Vec<_> = streams().into_iter().chain(CONNECTIONS).chain(ALERTS).collect();
    let server =
        Http2Server::start(Habits { scripts: scripts.clone(), tls: Some(tls), ..Habits::default() }).await;
    let (summary, rows) = run(Load {
        http: Http::Auto,
        targets: vec![LoadTarget::new("tls", format!("https://{}/", server.address))],
        pace: Pace::constant(rate, Duration::from_secs_f64(requests / rate)),
        timeout: PATIENT,
        tls: TlsSettings { ca_pem: Some(certificate.into()), ..TlsSettings::default() },
        ..mixed_settings(&server)
    })
    .await;
    assert_connections_agree(&server, &scripts, &summary, &rows);
    tls_faults::assert_handshakes(&rows);
    tell("inside TLS", &summary, &rows);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grpc_call_outcomes_match_server_log() {
    let (requests, rate) = mixed::size();
    let also = [Http2Script::Refused, Http2Script::GoAwayThenBreak, Http2Script::CloseInBody];
    let scripts: Vec<_> = grpc_faults::ANSWERS.into_iter().chain(also).collect();
    let server = Http2Server::start(Habits { scripts: scripts.clone(), ..Habits::default() }).await;
    let (summary, rows) = run(Load {
        grpc: Some(Grpc::new("echo.Echo/Say".parse().unwrap())),
        body: b"hello".to_vec(),
        pace: Pace::constant(rate, Duration::from_secs_f64(requests / rate)),
        ..mixed_settings(&server)
    })
    .await;
    assert_agree(&rows, &server.log);
    assert_all_were_played(&server.log, &scripts);
    tell("calls", &summary, &rows);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_timeout_keeps_connection_open() {
    let scripts: Vec<_> = HANGING.into_iter().chain([Http2Script::Ok]).collect();
    let server = Http2Server::start(Habits { scripts: scripts.clone(), ..Habits::default() }).await;
    let (_, rows) = run(Load {
        pace: Pace::constant(60.0, Duration::from_millis(500)),
        timeout: Timeouts { response: Some(Duration::from_secs(3)), ..PATIENT },
        workers: 1,
        ..settings(&server)
    })
    .await;
    let log = server.log.lock().unwrap();
    for row in rows.iter().filter(|row| row.sent.is_some()) {
        let truth = &log[&(row.source.to_string(), row.seq)];
        assert_eq!((row.outcome, row.status), (truth.outcome, truth.status), "{row:?} {truth:?}");
        assert_eq!(row.conn, Some(0), "no timeout ended the connection");
    }
    drop(log);
    assert_all_were_played(&server.log, &scripts);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn goaway_distinguishes_unprocessed_requests() {
    let server = Http2Server::start(Habits {
        scripts: vec![Http2Script::Ok],
        goaway_after: Some((40, 50)),
        answer_after: Duration::from_millis(30),
        ..Habits::default()
    })
    .await;
    let (_, rows) =
        run(Load { pace: Pace::constant(1000.0, Duration::from_secs(1)), workers: 1, ..settings(&server) })
            .await;
    let log = server.log.lock().unwrap();
    let mut left_out = 0;
    for row in rows.iter().filter(|row| row.sent.is_some()) {
        match log.get(&(row.source.to_string(), row.seq)) {
            Some(truth) => assert_row_agrees(row, truth),
            // The request was in transit when the connection ended, and was never read.
            None => assert_eq!(row.outcome, Outcome::H2Goaway, "{row:?}"),
        }
        left_out += u64::from(row.outcome == Outcome::H2Goaway);
    }
    let carried =
        |conn| rows.iter().filter(|row| row.conn == Some(conn) && row.outcome == Outcome::Ok).count();
    assert!(
        (0..5).all(|conn| carried(conn) == 40),
        "each connection answered all requests that it had not excluded"
    );
    assert!(left_out >= 50, "each connection excluded ten requests");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn empty_frames_keep_connection_open() {
    let server =
        Http2Server::start(Habits { scripts: vec![Http2Script::InPieces], ..Habits::default() }).await;
    let (_, rows) = run(Load {
        pace: Pace::Closed(Length::Requests(400)),
        connections: Connections { max: Some(1), max_concurrent_streams: Some(4), ..Connections::KEEPALIVE },
        workers: 1,
        ..settings(&server)
    })
    .await;
    assert_agree(&rows, &server.log);
    assert!(rows.iter().all(|row| row.conn == Some(0)), "one connection carried all requests");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_respects_server_stream_limit() {
    let server = Http2Server::start(Habits {
        scripts: vec![Http2Script::Ok],
        settings: vec![(MAX_CONCURRENT_STREAMS, 8)],
        later: Some((20, vec![(MAX_CONCURRENT_STREAMS, 1)])),
        answer_after: Duration::from_millis(10),
        ..Habits::default()
    })
    .await;
    let (_, rows) = run(Load {
        pace: Pace::constant(1000.0, Duration::from_millis(500)),
        workers: 1,
        ..settings(&server)
    })
    .await;
    assert_agree(&rows, &server.log);
    assert!(rows.iter().all(|row| row.outcome == Outcome::Ok), "{rows:?}");
    let log = server.log.lock().unwrap();
    for truth in log.values() {
        let limit = [usize::MAX, 8, 1][truth.settings_known];
        assert!(truth.open <= limit, "{truth:?}");
    }
    assert!(log.values().any(|truth| truth.settings_known == 2), "{log:?}");
    let connections: BTreeSet<_> = rows.iter().map(|row| row.conn).collect();
    assert!(connections.len() > 8, "other connections were opened instead: {connections:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_beyond_stream_limit_are_not_sent() {
    let server = Http2Server::start(Habits {
        scripts: vec![Http2Script::HangSilently],
        settings: vec![(MAX_CONCURRENT_STREAMS, 3)],
        ..Habits::default()
    })
    .await;
    let settings = Load {
        pace: Pace::constant(100.0, Duration::from_secs(3600)),
        connections: Connections { max: Some(2), ..Connections::KEEPALIVE },
        timeout: Timeouts { response: Some(Duration::from_secs(600)), ..PATIENT },
        workers: 1,
        ..settings(&server)
    };
    let full = |progress: &Progress| progress.outcomes.of(Outcome::NotSent) >= 20;
    let (_, rows) = run_until(settings, full, Control::abort).await;
    assert!(rows.iter().filter(|row| row.stream.is_some()).count() >= 6);
    let log = server.log.lock().unwrap().clone();
    assert!(log.values().all(|truth| truth.open <= 3 || truth.settings_known == 0), "{log:?}");
    let reasons: BTreeSet<_> = rows.iter().filter_map(|row| row.not_sent_reason.as_deref()).collect();
    assert_eq!(reasons, ["max_concurrent_streams"].into());
}

/// Returns a load that assigns eight requests to a new connection, most of which wait there.
fn queued_settings(server: &Http2Server, requests: u64) -> Load {
    Load {
        pace: Pace::Closed(Length::Requests(requests)),
        connections: Connections { max: Some(2), max_concurrent_streams: Some(8), ..Connections::KEEPALIVE },
        workers: 1,
        ..settings(server)
    }
}

/// Checks that each connection carried one request at a time, according to the rows.
fn assert_one_at_a_time(rows: &[RequestRow]) {
    let mut by_connection = BTreeMap::<_, Vec<_>>::new();
    for row in rows.iter().filter(|row| row.sent.is_some()) {
        by_connection.entry(row.conn).or_default().push((row.stream, row.sent, row.end));
    }
    for mut carried in by_connection.into_values() {
        carried.sort_unstable();
        assert!(carried.is_sorted_by(|(.., end), (_, sent, _)| Some(*end) <= *sent), "{carried:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_requests_outlive_goaway() {
    let server = Http2Server::start(Habits {
        scripts: vec![Http2Script::Ok],
        settings: vec![(MAX_CONCURRENT_STREAMS, 1)],
        goaway_after: Some((3, 3)),
        ..Habits::default()
    })
    .await;
    let (summary, rows) = run(queued_settings(&server, 400)).await;
    assert_eq!(summary.tally.outcomes.of(Outcome::Ok), 400, "{rows:?}");
    assert_agree(&rows, &server.log);
    assert_one_at_a_time(&rows);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closed_loop_ends_if_server_allows_no_streams() {
    let server = Http2Server::start(Habits {
        scripts: vec![Http2Script::Ok],
        settings: vec![(MAX_CONCURRENT_STREAMS, 0)],
        ..Habits::default()
    })
    .await;
    let settings = queued_settings(&server, 40);
    let timeout = Timeouts { response: Some(Duration::from_millis(20)), ..settings.timeout };
    let (_, rows) = run(Load { timeout, ..settings }).await;
    assert_eq!(rows.len(), 40);
    // A request may be sent before the server's settings arrive.
    let waiting: Vec<_> = rows.iter().filter(|row| row.sent.is_none()).collect();
    assert!(
        !waiting.is_empty() && waiting.iter().all(|row| row.outcome == Outcome::ResponseTimeout),
        "{waiting:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_fault_spares_waiting_requests() {
    let scripts: Vec<_> = [Http2Script::Ok].into_iter().chain(CONNECTIONS).collect();
    let server = Http2Server::start(Habits {
        scripts: scripts.clone(),
        settings: vec![(MAX_CONCURRENT_STREAMS, 1)],
        ..Habits::default()
    })
    .await;
    let (_, rows) = run(queued_settings(&server, 1600)).await;
    assert_agree(&rows, &server.log);
    assert_all_were_played(&server.log, &scripts);
    let unsent: Vec<_> = rows.iter().filter(|row| row.sent.is_none()).collect();
    assert!(unsent.is_empty(), "{unsent:?}");
    assert_one_at_a_time(&rows);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_that_waits_too_long_is_never_sent() {
    let server = Http2Server::start(Habits {
        scripts: vec![Http2Script::HangSilently],
        withholds_settings: true,
        ..Habits::default()
    })
    .await;
    let (_, rows) = run(Load {
        timeout: Timeouts { response: Some(Duration::from_millis(500)), ..PATIENT },
        ..queued_settings(&server, 16)
    })
    .await;
    let log = server.log.lock().unwrap();
    for row in &rows {
        let was_seen = log.contains_key(&(row.source.to_string(), row.seq));
        assert_eq!((row.outcome, row.sent.is_some()), (Outcome::ResponseTimeout, was_seen), "{row:?}");
        assert_eq!((row.stream.is_some(), row.bytes_sent > 0), (was_seen, was_seen), "{row:?}");
        assert!(row.conn.is_some() && row.local_port.is_some(), "{row:?}");
    }
    assert!(log.len() < rows.len(), "some requests waited");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_requests_share_failure_of_next_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        drop(listener);
        let mut request = Vec::new();
        while !request.windows(b"rolldrop".len()).any(|part| part == b"rolldrop") {
            stream.read_buf(&mut request).await.unwrap();
        }
        let told = [faulty_frames::goaway(1, NO_ERROR), Http2Script::Ok.answer(1).0].concat();
        stream.write_all(&told).await.unwrap();
        // The client closes the connection.
        while stream.read_buf(&mut request).await.is_ok_and(|count| count > 0) {}
    });
    let (_, rows) = run(Load {
        http: Http::Http2,
        pace: Pace::Closed(Length::Requests(8)),
        connections: Connections { max: Some(1), max_concurrent_streams: Some(8), ..Connections::KEEPALIVE },
        timeout: PATIENT,
        workers: 1,
        ..Load::new(format!("http://{address}/"))
    })
    .await;
    let (answered, refused): (Vec<_>, Vec<_>) =
        rows.iter().partition(|row| (row.outcome, row.stream) == (Outcome::Ok, Some(1)));
    assert_eq!((answered.len(), refused.len()), (1, 7), "{rows:?}");
    for row in refused {
        assert_eq!((row.outcome, row.errno), (Outcome::ConnectRefused, Some(Errno::ECONNREFUSED as i32)));
        assert!(row.sent.is_none() && row.connected.is_none() && row.conn > Some(0), "{row:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocked_request_body_times_out() {
    let server = Http2Server::start(Habits {
        scripts: vec![Http2Script::Ok],
        settings: vec![(INITIAL_WINDOW_SIZE, 0)],
        ..Habits::default()
    })
    .await;
    let (_, rows) = run(Load {
        pace: Pace::constant(10.0, Duration::from_millis(500)),
        method: "POST".into(),
        body: b"hello".to_vec(),
        timeout: Timeouts { response: Some(Duration::from_secs(2)), ..PATIENT },
        workers: 1,
        ..settings(&server)
    })
    .await;
    // The first request on a connection is sent before the server has sent anything.
    let (first, others): (Vec<_>, Vec<_>) = rows.iter().partition(|row| !row.conn_reused);
    assert!(others.iter().all(|row| row.outcome == Outcome::ResponseTimeout), "{others:?}");
    assert!(server.log.lock().unwrap().len() <= first.len(), "no other request ever arrived in full");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_retries_unprocessed_post() {
    let scripts = vec![Http2Script::Refused, Http2Script::GoAwayBefore(NO_ERROR)];
    let server = Http2Server::start(Habits { scripts, ..Habits::default() }).await;
    let (summary, rows) = run(Load {
        pace: Pace::constant(100.0, Duration::from_millis(200)),
        method: "POST".into(),
        connections: Connections { max_concurrent_streams: Some(1), ..Connections::KEEPALIVE },
        retry: Retry { times: 1, delay: Duration::ZERO },
        ..settings(&server)
    })
    .await;
    assert_agree(&rows, &server.log);
    assert_eq!((summary.tally.retried, summary.tally.go_hidden), (20, 20));
    assert!(rows.iter().all(|row| (row.attempts, row.final_outcome) == (2, Outcome::Ok)), "{rows:?}");
}

#[tokio::test]
async fn refused_connection_fails_waiting_requests() {
    let (_bound, closed) = closed_address();
    let (_, rows) = run(Load {
        http: Http::Http2,
        pace: Pace::constant(100.0, Duration::from_millis(200)),
        connections: Connections::KEEPALIVE,
        timeout: PATIENT,
        ..Load::new(format!("http://{closed}/"))
    })
    .await;
    for row in rows {
        assert_eq!((row.outcome, row.errno), (Outcome::ConnectRefused, Some(Errno::ECONNREFUSED as i32)));
        assert!(row.local_port.is_some() && row.conn.is_some() && row.stream.is_none(), "{row:?}");
    }
}
