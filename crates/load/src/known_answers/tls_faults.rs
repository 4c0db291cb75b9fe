//! All faults over TLS, after the handshake: the cleartext faults, an alert in the middle, and a connection closed
//! without close_notify.

use futures::StreamExt;

use super::http1_differential::{AT_A_TIME, assert_documented, curl, hyper_inside, ours};
use super::http1_server::TLS;
use super::http2_faults::fault_inside_tls;
use super::test_transport::acceptor;
use super::*;

/// Returns a quarter of the other suites' requests, at a quarter of their rate, because handshakes take time.
pub(super) fn size() -> (f64, f64) {
    let (requests, rate) = mixed::size();
    (requests / 4.0, rate / 4.0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_outcomes_match_server_log() {
    let (requests, rate) = size();
    let (tls, certificate) = acceptor(&[b"http/1.1"]);
    let scripts: Vec<_> = PROMPT.into_iter().chain(TLS).collect();
    let server = Http1Server::start_tls(&scripts, tls).await;
    let (summary, rows) = run(Load {
        http: Http::Http1,
        pace: Pace::constant(rate, Duration::from_secs_f64(requests / rate)),
        connections: Connections::mixed(0.3),
        timeout: PATIENT,
        workers: 2,
        tls: TlsSettings { ca_pem: Some(certificate.into()), ..TlsSettings::default() },
        ..Load::new(format!("https://{}/", server.address))
    })
    .await;
    assert_agree(&rows, &server.log);
    assert_handshakes(&rows);
    mixed::tell_played("HTTP/1.1 inside TLS", &summary, &server.log, scripts.len());
}

/// Checks that every request on a new connection performed a handshake, and that no other request did.
pub(super) fn assert_handshakes(rows: &[RequestRow]) {
    for row in rows.iter().filter(|row| row.outcome != Outcome::NotSent) {
        assert_ne!(row.tls.is_some(), row.conn_reused, "{row:?}");
    }
}

/// Faults that need TLS, in the wording of the table.
const FAULTS: [(Http1Script, &str); 6] = [
    (Http1Script::AlertSilently, "an alert before the answer"),
    (Http1Script::AlertInHead, "an alert in the head"),
    (Http1Script::AlertInBody, "an alert in the body"),
    (Http1Script::CutSilently, "closed without close_notify before the answer"),
    (Http1Script::CutInBody, "closed without close_notify in the body"),
    (Http1Script::CutUntilEof, "a body that ends with the connection, without close_notify"),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_faults_match_curl_and_hyper() {
    let http1 = futures::stream::iter(FAULTS).map(async |(script, words)| {
        let (tls, certificate) = acceptor(&[b"http/1.1"]);
        let server = Http1Server::start_tls(&[script], tls).await;
        let url = format!("https://{}/", server.address);
        let ours = ours(Http::Http1, &url).await;
        let (curl, hyper) = tokio::join!(curl("--http1.1", &url), hyper_inside(server.address, &certificate));
        let log = server.log.lock().unwrap();
        let truth = log.get(&("load-0".to_owned(), 0)).expect("our request");
        assert_eq!(ours, truth.outcome, "{words} {truth:?}");
        format!("| {words} | {ours} | {curl} | {hyper} |")
    });
    let mut rows = http1.buffered(AT_A_TIME).collect::<Vec<_>>().await;
    rows.extend(fault_inside_tls().await);
    assert_documented(&rows);
}
