//! Runs the same faults against other clients: curl, and hyper's plain HTTP/1.1 client.
//!
//! The table in `docs/outcomes.md` lists the results of all three clients for each fault. If it differs from the
//! results here, the test fails and prints the correct table. `http2_differential` covers HTTP/2.

use std::error::Error;
use std::process::Stdio;

use bytes::Bytes;
use futures::StreamExt;
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::rustls::pki_types::ServerName;

use super::mixed::{reset_after_accept, reset_before_accept};
use super::test_transport::connector;
use super::*;

/// Time limit for each client.
const LIMIT: Duration = Duration::from_secs(5);
/// Number of faults to run concurrently.
pub(super) const AT_A_TIME: usize = 6;

const DOCS: &str = include_str!("../../../../docs/outcomes.md");

/// Faults that a server can cause on a single request, in the wording of the table.
const SCRIPTED: [(Http1Script, &str); 32] = [
    (Http1Script::Ok, "a complete answer"),
    (Http1Script::Chunked, "chunks"),
    (Http1Script::Trailers, "chunks with extensions and trailer fields"),
    (Http1Script::UntilEof, "a body that ends with the connection"),
    (Http1Script::Interim, "100 and 103 before the answer"),
    (Http1Script::NoContent, "204"),
    (Http1Script::NotModified, "304 with a length, but no body"),
    (Http1Script::OldVersion, "HTTP/1.0"),
    (Http1Script::Surplus, "more bytes than announced"),
    (Http1Script::Drip, "byte by byte"),
    (Http1Script::NotFound, "404"),
    (Http1Script::Unavailable, "503, then closed"),
    (Http1Script::ExpectationFailed, "417"),
    (Http1Script::CloseSilently, "closed before the answer"),
    (Http1Script::ResetSilently, "reset before the answer"),
    (Http1Script::CloseInHead, "closed in the head"),
    (Http1Script::ResetInHead, "reset in the head"),
    (Http1Script::CloseInBody, "closed in the body"),
    (Http1Script::ResetInBody, "reset in the body"),
    (Http1Script::ResetUntilEof, "reset in a body that ends with the connection"),
    (Http1Script::CloseInChunks, "closed between chunks"),
    (Http1Script::CloseInTrailers, "closed in the trailer"),
    (Http1Script::BadChunk, "a missing chunk size"),
    (Http1Script::HugeChunk, "a chunk size of 17 digits"),
    (Http1Script::BadHead, "not HTTP"),
    (Http1Script::EndlessHead, "a head of 450 KiB"),
    (Http1Script::TwoLengths, "two lengths"),
    (Http1Script::Switch, "unrequested 101"),
    (Http1Script::HangSilently, "no answer"),
    (Http1Script::HangInHead, "half a head"),
    (Http1Script::HangInBody, "no body"),
    (Http1Script::DripOn, "a body that does not end in time"),
];

/// Returns a table row: a fault, and the result of each client.
async fn row(words: &str, address: SocketAddr) -> String {
    let url = format!("http://{address}/");
    let ours = ours(Http::Http1, &url).await;
    let (curl, hyper) = tokio::join!(curl("--http1.1", &url), hyper(address, 0));
    line(words, ours, &curl, &hyper)
}

fn line(words: &str, ours: Outcome, curl: &str, hyper: &str) -> String {
    format!("| {words} | {ours} | {curl} | {hyper} |")
}

/// Returns the table row for a fault that may occur before or after the request, so that connecting, writing or reading
/// fails.
async fn row_of_early_reset(words: &str, address: SocketAddr) -> String {
    let url = format!("http://{address}/");
    let ours = ours(Http::Http1, &url).await;
    let (curl, hyper) = tokio::join!(curl("--http1.1", &url), hyper(address, 0));
    assert!(["7", "55", "56"].contains(&&*curl), "{words}: {curl}");
    assert!(["ConnectionReset", "BrokenPipe", "Canceled"].contains(&&*hyper), "{words}: {hyper}");
    line(words, ours, "7, 55 or 56", "ConnectionReset, BrokenPipe or Canceled")
}

/// Returns the outcome of a single-request load, which accepts any certificate.
pub(super) async fn ours(http: Http, url: &str) -> Outcome {
    let (_, rows) = run(Load {
        http,
        pace: Pace::constant(100.0, Duration::from_millis(10)),
        timeout: Timeouts { connect: LIMIT, tls: LIMIT, response: Some(LIMIT), ..Timeouts::default() },
        tls: TlsSettings { insecure: url.starts_with("https:"), ..TlsSettings::default() },
        ..Load::new(url)
    })
    .await;
    rows[0].outcome
}

/// Returns curl's exit code for the HTTP version that the option `version` selects; curl accepts any certificate.
pub(super) async fn curl(version: &str, url: &str) -> String {
    let limit = LIMIT.as_secs().to_string();
    let status = Command::new("curl")
        .args(["-q", "--silent", "--insecure", version, "--fail", "--noproxy", "*", "--max-time", &limit])
        .args(["-H", "rolldrop-id: run-curl-0", url])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .await
        .expect("scripts/test installs curl");
    status.code().expect("an exit code").to_string()
}

/// Returns hyper's result for request number `seq`.
pub(super) async fn hyper(address: SocketAddr, seq: u64) -> String {
    let said = async { said_by_hyper(TcpStream::connect(address).await.map_err(|e| kind(&e))?, seq).await };
    within_limit(said).await
}

/// Returns hyper's result over TLS, for a server with this certificate.
pub(super) async fn hyper_inside(address: SocketAddr, certificate: &str) -> String {
    let said = async {
        let stream = TcpStream::connect(address).await.map_err(|e| kind(&e))?;
        let name = ServerName::from(address.ip());
        let stream = connector(certificate).connect(name, stream).await.map_err(|e| kind(&e))?;
        said_by_hyper(stream, 0).await
    };
    within_limit(said).await
}

async fn within_limit(said: impl Future<Output = Result<String, String>>) -> String {
    match timeout(LIMIT, said).await {
        Ok(Ok(said)) | Ok(Err(said)) => said,
        Err(_) => "(waits)".to_owned(),
    }
}

async fn said_by_hyper(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    seq: u64,
) -> Result<String, String> {
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| kind(&e))?;
    let mut driver = JoinSet::new();
    driver.spawn(connection.with_upgrades());
    let request =
        hyper::Request::get("/").header("host", "x").header("rolldrop-id", format!("run-hyper-{seq}"));
    let response = sender.send_request(request.body(Empty::<Bytes>::new()).unwrap()).await;
    let response = response.map_err(|e| kind(&e))?;
    let status = response.status().as_u16();
    response.into_body().collect().await.map_err(|e| kind(&e))?;
    Ok(status.to_string())
}

/// Returns the kind of an error: hyper's own, or the kind of the underlying I/O error.
fn kind(error: &(dyn Error + 'static)) -> String {
    let own = error.downcast_ref::<hyper::Error>().and_then(|e| match e {
        e if e.is_incomplete_message() => Some("IncompleteMessage"),
        e if e.is_parse_too_large() => Some("TooLarge"),
        e if e.is_parse() => Some("Parse"),
        e if e.is_canceled() => Some("Canceled"),
        _ => None,
    });
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(e) = cause {
        if let Some(io) = e.downcast_ref::<io::Error>() {
            return format!("{:?}", io.kind());
        }
        cause = e.source();
    }
    own.map_or_else(|| error.to_string(), str::to_owned)
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http1_faults_match_curl_and_hyper() {
    let mut others = JoinSet::new();
    let (_refusing, refused) = closed_address();
    let (_sockets, unanswered) = black_hole();
    let mut table = vec![
        row("refused", refused).await,
        row("unanswered SYNs", unanswered).await,
        row_of_early_reset("reset in the accept queue", reset_before_accept(&mut others).await).await,
        row_of_early_reset("reset after the accept", reset_after_accept(&mut others).await.0).await,
    ];
    let scripted = futures::stream::iter(SCRIPTED).map(async |(script, words)| {
        let server = Http1Server::start(&[script]).await;
        let line = row(words, server.address).await;
        let log = server.log.lock().unwrap();
        let truth = log.get(&("load-0".to_owned(), 0)).expect("our request");
        assert!(line.contains(&format!("| {} |", truth.outcome)), "{line} {truth:?}");
        line
    });
    table.extend(scripted.buffered(AT_A_TIME).collect::<Vec<_>>().await);
    assert_documented(&table);
}

/// Checks that a table in `docs/outcomes.md` has exactly these rows.
pub(super) fn assert_documented(rows: &[String]) {
    let rows = rows.join("\n");
    assert!(DOCS.contains(&format!("---|\n{rows}\n\n")), "docs/outcomes.md should have\n{rows}");
}
