//! HTTP/2's faults met by clients that are not ours: curl, which is nghttp2, and hey, which is Go's
//! `net/http`; all over TLS, where the protocol is negotiated.
//!
//! What each of the three says of each fault is the second table of `docs/outcomes.md`; where it is
//! not what they say here, this fails and shows the table as it should be. Which requests a client
//! sent again by itself is the server's own count, and for Go it is to be ours as well.

use std::process::Stdio;

use futures::StreamExt;
use tokio::process::Command;

use super::server::{ENHANCE_YOUR_CALM, INTERNAL_ERROR, PROTOCOL_ERROR};
use super::*;

/// How long each client waits.
const LIMIT: Duration = Duration::from_secs(6);
/// How many faults are met at a time.
const AT_A_TIME: usize = 6;

/// Each fault, in the words of the table.
const FAULTS: [(Script, &str); 31] = [
    (Script::Ok, "a complete answer"),
    (Script::InPieces, "a body in pieces"),
    (Script::Padded, "padding"),
    (Script::Continued, "a head in two frames"),
    (Script::Interim, "103 before it"),
    (Script::NoContent, "204"),
    (Script::Trailers, "trailer fields"),
    (Script::NotFound, "404"),
    (Script::Unavailable, "503"),
    (Script::OkThenReset, "NO_ERROR after the answer"),
    (Script::Refused, "REFUSED_STREAM"),
    (Script::RefusedInBody, "REFUSED_STREAM in the body"),
    (Script::ResetSilently(PROTOCOL_ERROR), "PROTOCOL_ERROR"),
    (Script::ResetSilently(INTERNAL_ERROR), "INTERNAL_ERROR"),
    (Script::ResetInBody, "CANCEL in the body"),
    (Script::ShortBody, "less than announced"),
    (Script::LongBody, "more than announced"),
    (Script::CloseSilently, "closed before the answer"),
    (Script::CloseInBody, "closed in the body"),
    (Script::BreakSilently, "reset before the answer"),
    (Script::BreakInBody, "reset in the body"),
    (Script::GoAwayBefore(NO_ERROR), "left out by GOAWAY"),
    (Script::GoAwayThenAnswer(NO_ERROR), "GOAWAY, and the answer"),
    (Script::GoAwayTwice, "GOAWAY twice, and the answer"),
    (Script::GoAwayThenClose(NO_ERROR), "GOAWAY, and closed"),
    (Script::GoAwayThenBreak, "GOAWAY, and reset"),
    (Script::GoAwayThenClose(ENHANCE_YOUR_CALM), "GOAWAY ENHANCE_YOUR_CALM, and closed"),
    (Script::BadFrame, "DATA on no stream"),
    (Script::BadHeaders, "a head that cannot be decoded"),
    (Script::HangSilently, "no answer"),
    (Script::HangInBody, "a body that does not end"),
];

/// Those that end at a client's timeout.
const LIMIT_IS_MET: [Script; 2] = [Script::HangSilently, Script::HangInBody];

async fn line(script: Script, words: &str) -> String {
    let (tls, certificate) = acceptor(&[b"h2", b"http/1.1"]);
    let habits = Habits { scripts: vec![script], tls: Some(tls), may_come_again: true, ..Habits::default() };
    let server = Server::start(habits).await;
    let url = format!("https://{}/", server.address);
    let ours = ours(&url, certificate).await;
    assert_eq!(ours.stream, Some(1), "HTTP/2 was agreed on");
    let (curl, hey) = tokio::join!(curl(&url), hey(script, &url));
    let again = server.again.lock().unwrap().clone();
    let told = |source: &str, said: String| match again.contains_key(source) {
        true => format!("{said}, sent again"),
        false => said,
    };
    // Go sends this again since 2021, and Debian's hey is of an older one.
    if script != Script::ResetSilently(PROTOCOL_ERROR) {
        let hides = crate::record::retry::go_hides(&ours, true);
        assert_eq!(hides, again.contains_key("hey"), "{words}: Go sends it again, or not: {hey} {ours:?}");
    }
    let truth = server.log.lock().unwrap()[&("load-0".to_owned(), 0)].outcome;
    assert_eq!(ours.outcome, truth, "{words}");
    format!("| {words} | {} | {} | {} |", ours.outcome, told("curl", curl), told("hey", hey))
}

async fn ours(url: &str, certificate: String) -> RequestRow {
    let (_, mut rows) = run(Settings {
        pace: Pace::constant(100.0, Duration::from_millis(10)),
        connect_timeout: LIMIT,
        tls_timeout: LIMIT,
        response_timeout: LIMIT,
        tls: TlsSettings { ca_pem: Some(certificate), ..TlsSettings::default() },
        ..Settings::new(url)
    })
    .await;
    rows.remove(0)
}

/// curl's exit code.
async fn curl(url: &str) -> String {
    let limit = LIMIT.as_secs().to_string();
    let status = Command::new("curl")
        .args(["-q", "--silent", "--insecure", "--fail", "--noproxy", "*", "--max-time", &limit])
        .args(["-H", "rolldrop-id: curl-0", url])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .await
        .expect("scripts/test installs curl");
    status.code().expect("an exit code").to_string()
}

/// What hey says: the status, or that there was an error.
async fn hey(script: Script, url: &str) -> String {
    let limit = LIMIT.as_secs().to_string();
    let output = Command::new("hey")
        .args(["-h2", "-n", "1", "-c", "1", "-t", &limit, "-H", "rolldrop-id: hey-0", url])
        .stdin(Stdio::null())
        .output()
        .await
        .expect("scripts/test installs hey");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let status = text.lines().find_map(|line| line.trim().strip_suffix("\t1 responses"));
    match status {
        Some(status) => status.trim_matches(['[', ']']).to_owned(),
        None if text.contains("Error distribution") => {
            let why = text.lines().rfind(|line| !line.is_empty()).unwrap_or_default();
            assert!(!why.contains("Client.Timeout") || LIMIT_IS_MET.contains(&script), "{script:?}: {why}");
            "error".to_owned()
        }
        None => panic!("{text}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn curl_and_go_say_the_same_of_every_fault_of_http2() {
    let lines = futures::stream::iter(FAULTS).map(async |(script, words)| line(script, words).await);
    let table = lines.buffered(AT_A_TIME).collect::<Vec<_>>().await.join("\n");
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/outcomes.md");
    let docs = std::fs::read_to_string(docs).unwrap();
    assert!(docs.contains(&table), "docs/outcomes.md should have\n{table}");
}
