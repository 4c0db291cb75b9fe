//! Runs the HTTP/2 faults against curl, which uses nghttp2.
//!
//! The tables in `docs/outcomes.md` list the meanings of curl's exit codes according to its manual, and our result and
//! curl's for each fault. If they differ from the results here, the test fails and prints the correct tables.

use futures::StreamExt;

use super::faulty_frames::{ENHANCE_YOUR_CALM, INTERNAL_ERROR, PROTOCOL_ERROR};
use super::*;
use crate::known_answers::http1_differential::{AT_A_TIME, assert_documented, curl, ours};

/// Outcomes of a connection that ended with a failure.
const CUT_OFF: &[Outcome] = &[
    Outcome::EofBeforeResponse,
    Outcome::TruncatedBody,
    Outcome::ResetBeforeResponse,
    Outcome::ResetMidResponse,
];

/// An exit code of curl, its meaning according to curl's manual, and the corresponding outcomes.
type ExitCodeMeaning = (&'static str, &'static str, &'static [Outcome]);

const CLASSES: [ExitCodeMeaning; 9] = [
    ("0", "Success", &[Outcome::Ok]),
    ("16", "A problem was detected in the HTTP2 framing layer", &[Outcome::ProtocolError, Outcome::H2Goaway]),
    ("18", "Only a part of the file was transferred", &[Outcome::TruncatedBody]),
    ("22", "HTTP error code being 400 or above", &[Outcome::HttpError]),
    ("28", "The specified time-out period was reached", &[Outcome::ResponseTimeout, Outcome::BodyTimeout]),
    ("52", "The server did not reply anything", &[Outcome::EofBeforeResponse]),
    ("55", "Failed sending network data", CUT_OFF),
    ("56", "Failure in receiving network data", CUT_OFF),
    (
        "92",
        "Stream error in HTTP/2 framing layer",
        &[
            Outcome::H2RefusedStream,
            Outcome::ResetBeforeResponse,
            Outcome::ResetMidResponse,
            Outcome::TruncatedBody,
            Outcome::ProtocolError,
        ],
    ),
];

/// Faults, in the wording of the table.
const FAULTS: [(Http2Script, &str); 36] = [
    (Http2Script::Ok, "a complete answer"),
    (Http2Script::InPieces, "a body in pieces"),
    (Http2Script::Padded, "padding"),
    (Http2Script::Continued, "a head in two frames"),
    (Http2Script::Interim, "103 before the answer"),
    (Http2Script::NoContent, "204"),
    (Http2Script::Trailers, "trailer fields"),
    (Http2Script::NotFound, "404"),
    (Http2Script::Unavailable, "503"),
    (Http2Script::OkThenReset, "NO_ERROR after the answer"),
    (Http2Script::ResetSilently(NO_ERROR), "NO_ERROR before the answer"),
    (Http2Script::ResetSilently(PROTOCOL_ERROR), "PROTOCOL_ERROR before the answer"),
    (Http2Script::ResetSilently(INTERNAL_ERROR), "INTERNAL_ERROR before the answer"),
    (Http2Script::ResetSilently(ENHANCE_YOUR_CALM), "ENHANCE_YOUR_CALM before the answer"),
    (Http2Script::ResetInBody, "CANCEL in the body"),
    (Http2Script::Refused, "REFUSED_STREAM"),
    (Http2Script::RefusedInBody, "REFUSED_STREAM in the body"),
    (Http2Script::ShortBody, "less than announced"),
    (Http2Script::LongBody, "more than announced"),
    (Http2Script::CloseSilently, "closed before the answer"),
    (Http2Script::CloseInBody, "closed in the body"),
    (Http2Script::BreakSilently, "reset before the answer"),
    (Http2Script::BreakInBody, "reset in the body"),
    (Http2Script::GoAwayBefore(NO_ERROR), "excluded by GOAWAY"),
    (Http2Script::GoAwayBefore(ENHANCE_YOUR_CALM), "excluded by GOAWAY ENHANCE_YOUR_CALM"),
    (Http2Script::GoAwayThenAnswer(NO_ERROR), "GOAWAY, then the answer"),
    (Http2Script::GoAwayTwice, "GOAWAY twice, then the answer"),
    (Http2Script::GoAwayThenClose(NO_ERROR), "GOAWAY, then closed"),
    (Http2Script::GoAwayThenClose(ENHANCE_YOUR_CALM), "GOAWAY ENHANCE_YOUR_CALM, then closed"),
    (Http2Script::GoAwayThenBreak, "GOAWAY, then reset"),
    (Http2Script::BadFrame, "DATA outside any stream"),
    (Http2Script::BadHeaders, "a head that cannot be decoded"),
    (Http2Script::Http1, "HTTP/1.1"),
    (Http2Script::HangSilently, "no answer"),
    (Http2Script::HangInBody, "a body that stalls"),
    (Http2Script::Drip, "a body that does not end in time"),
];

/// Returns a table row, with a note if curl's result differs or if curl resends the request.
async fn row(script: Http2Script, words: &str) -> String {
    let server =
        Http2Server::start(Habits { scripts: vec![script], may_come_again: true, ..Habits::default() }).await;
    let url = format!("http://{}/", server.address);
    let ours = ours(Http::Http2, &url).await;
    let code = curl("--http2-prior-knowledge", &url).await;
    let log = server.log.lock().unwrap();
    let [first, theirs] = ["load-0", "curl"].map(|source| &log[&(source.to_owned(), 0)]);
    assert_eq!((ours, first.times), (first.outcome, 1), "{words}");
    let class = CLASSES.iter().find(|(exit, ..)| *exit == code);
    let (_, _, outcomes) = class.unwrap_or_else(|| panic!("{words}: {code}"));
    // A reset may arrive before or after curl acknowledges the settings.
    let code = if script.is_broken() && ["55", "56"].contains(&&*code) { "55 or 56" } else { &*code };
    let differs = if outcomes.contains(&ours) { "" } else { ", which differs" };
    let again = if theirs.times > 1 { format!(", sent {} times", theirs.times) } else { String::new() };
    format!("| {words} | {ours} | {code}{differs}{again} |")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http2_faults_match_curl() {
    let classes = CLASSES.map(|(exit, manual, outcomes)| {
        let outcomes = outcomes.iter().map(|outcome| outcome.as_str()).collect::<Vec<_>>();
        format!("| {exit} | {manual} | {} |", outcomes.join(", "))
    });
    let rows = futures::stream::iter(FAULTS).map(async |(script, words)| row(script, words).await);
    let rows = rows.buffered(AT_A_TIME).collect::<Vec<_>>().await;
    assert_documented(&rows);
    assert_documented(&classes);
}

/// Returns the rows for faults that end TLS in the middle of HTTP/2, for the TLS table.
pub(in crate::known_answers) async fn fault_inside_tls() -> Vec<String> {
    let mut rows = Vec::new();
    for (script, words) in [
        (Http2Script::AlertSilently, "HTTP/2: an alert before the answer"),
        (Http2Script::AlertInBody, "HTTP/2: an alert in the body"),
    ] {
        let (tls, _) = acceptor(&[b"h2"]);
        let server =
            Http2Server::start(Habits { scripts: vec![script], tls: Some(tls), ..Habits::default() }).await;
        let url = format!("https://{}/", server.address);
        let (ours, curl) = (ours(Http::Http2, &url).await, curl("--http2", &url).await);
        let log = server.log.lock().unwrap();
        assert_eq!(ours, log[&("load-0".to_owned(), 0)].outcome, "{words}");
        rows.push(format!("| {words} | {ours} | {curl} | – |"));
    }
    rows
}
