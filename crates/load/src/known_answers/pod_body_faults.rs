//! Response bodies that name the pod: in each HTTP/1.1 framing and in HTTP/2, whole and cut off.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt, stream};
use http_body_util::StreamBody;
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::pod_body::MAX_SEARCHED;

/// The server's response for a path, with the expected outcome and pod.
struct PodBodyCase {
    path: &'static str,
    answer: String,
    outcome: Outcome,
    pod: Option<&'static str>,
}

fn case(
    path: &'static str,
    answer: impl Into<String>,
    outcome: Outcome,
    pod: Option<&'static str>,
) -> PodBodyCase {
    PodBodyCase { path, answer: answer.into(), outcome, pod }
}

fn with_length(length: usize, body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{body}")
}

/// Returns the cases that end without a timeout; the server closes each connection after its response.
fn cases() -> Vec<PodBodyCase> {
    let late = format!("{}pod=web-0\n", "x".repeat(MAX_SEARCHED - 4));
    let chunks = "3\r\nxpo\r\n5\r\nd=web\r\n4;pod=no\r\n-2\n.\r\n0\r\npod=no: 1\r\n\r\n";
    let named = "content-length: 9\r\nrolldrop-pod: web-5";
    vec![
        case("/length", with_length(9, "pod=web-1"), Outcome::Ok, Some("web-1")),
        case(
            "/chunked",
            format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{chunks}"),
            Outcome::Ok,
            Some("web-2"),
        ),
        case("/until-close", "HTTP/1.1 200 OK\r\n\r\nx\npod=web-3", Outcome::Ok, Some("web-3")),
        case(
            "/error",
            "HTTP/1.1 503 No\r\ncontent-length: 9\r\n\r\npod=web-4",
            Outcome::HttpError,
            Some("web-4"),
        ),
        case("/header", format!("HTTP/1.1 200 OK\r\n{named}\r\n\r\npod=web-0"), Outcome::Ok, Some("web-5")),
        case("/cut-after", with_length(99, "pod=web-6\nx"), Outcome::TruncatedBody, Some("web-6")),
        case("/cut-within", with_length(99, "pod=web-6"), Outcome::TruncatedBody, None),
        case("/late", with_length(late.len(), &late), Outcome::Ok, None),
        case("/other", with_length(5, "hello"), Outcome::Ok, None),
        case("/empty", "HTTP/1.1 204 No Content\r\n\r\n", Outcome::Ok, None),
    ]
}

/// Serves a response on `stream`, and closes the connection. If `is_held` is true, waits for the client to close it
/// instead.
async fn answer(mut stream: TcpStream, cases: Arc<Vec<PodBodyCase>>, is_held: bool) {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        if stream.read_buf(&mut request).await.unwrap_or(0) == 0 {
            return;
        }
    }
    let text = String::from_utf8(request).unwrap();
    let path = text.split(' ').nth(1).unwrap();
    let case = cases.iter().find(|case| case.path == path).unwrap();
    // The client may already be gone.
    let _ = stream.write_all(case.answer.as_bytes()).await;
    if is_held {
        let _ = stream.read(&mut [0]).await;
    }
}

/// Returns the rows of requests to these paths, several for each path.
async fn rows(paths: &[&'static str], change: Load, address: SocketAddr) -> Vec<RequestRow> {
    let targets =
        paths.iter().map(|path| LoadTarget::new(*path, format!("http://{address}{path}"))).collect();
    let (_, rows) = run(Load { targets, ..change }).await;
    let rows: Vec<_> = rows.into_iter().filter(|row| row.sent.is_some()).collect();
    for path in paths {
        assert!(rows.iter().any(|row| *row.target == **path), "nothing was sent to {path}");
    }
    rows
}

fn settings(pattern: Option<&str>) -> Load {
    Load {
        pod_body: pattern.map(|pattern| pattern.parse().unwrap()),
        pace: Pace::constant(200.0, Duration::from_millis(400)),
        timeout: PATIENT,
        ..Load::new("")
    }
}

/// Returns settings for a few requests with a timeout that the bodies exceed.
fn hanging_settings() -> Load {
    Load {
        pace: Pace::constant(20.0, Duration::from_millis(200)),
        timeout: Timeouts { response: Some(Duration::from_secs(3)), ..PATIENT },
        ..settings(Some("pod=(\\S+)"))
    }
}

async fn agree(cases: Vec<PodBodyCase>, settings: Load, is_held: bool) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let cases = Arc::new(cases);
    let known = Arc::clone(&cases);
    let has_pattern = settings.pod_body.is_some();
    let server = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(answer(stream, Arc::clone(&known), is_held));
        }
    });
    let paths: Vec<_> = cases.iter().map(|case| case.path).collect();
    for row in rows(&paths, settings, address).await {
        let case = cases.iter().find(|case| *case.path == *row.target).unwrap();
        let pod = case.pod.filter(|pod| has_pattern || *pod == "web-5");
        assert_eq!((row.outcome, row.pod.as_deref()), (case.outcome, pod), "{row:?}");
    }
    server.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn body_names_pod_in_each_framing() {
    agree(cases(), settings(Some("pod=([a-z0-9-]+)")), false).await;
    agree(cases(), settings(None), false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn timed_out_body_still_names_pod() {
    let hanging = vec![
        case("/after", with_length(99, "pod=web-7\n"), Outcome::BodyTimeout, Some("web-7")),
        case("/within", with_length(99, "pod=web-7"), Outcome::BodyTimeout, None),
    ];
    agree(hanging, hanging_settings(), true).await;
}

/// Responds in frames of three bytes; a response to a path that begins with `/hang` never ends.
async fn frames(
    request: http::Request<Incoming>,
) -> Result<http::Response<impl hyper::body::Body<Data = Bytes, Error = Infallible>>, Infallible> {
    let path = request.uri().path();
    let (status, header, text) = match path {
        "/whole" => (200, "", "some pod=web-1".to_owned()),
        "/error" => (503, "", "pod=web-2".to_owned()),
        "/header" => (200, "web-3", "pod=web-0".to_owned()),
        "/hang-after" => (200, "", "pod=web-4 x".to_owned()),
        "/hang-within" => (200, "", "pod=web-4".to_owned()),
        _ => (200, "", format!("{}pod=web-0", "x".repeat(MAX_SEARCHED))),
    };
    let pieces = text.as_bytes().chunks(3).map(|piece| Ok(Frame::data(Bytes::copy_from_slice(piece))));
    let pieces = stream::iter(pieces.collect::<Vec<_>>());
    let pieces = match path.starts_with("/hang") {
        true => pieces.chain(stream::pending()).left_stream(),
        false => pieces.right_stream(),
    };
    let answer = http::Response::builder().status(status).header("rolldrop-pod", header);
    Ok(answer.body(StreamBody::new(pieces)).unwrap())
}

/// Checks that the rows of requests over HTTP/2 match `expected`.
async fn agree_over_http2(expected: &[(&'static str, Outcome, Option<&str>)], settings: Load) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let server = http2::Builder::new(TokioExecutor::new());
            tokio::spawn(server.serve_connection(TokioIo::new(stream), service_fn(frames)));
        }
    });
    let settings = Load { http: Http::Http2, connections: Connections::KEEPALIVE, ..settings };
    let paths: Vec<_> = expected.iter().map(|(path, ..)| *path).collect();
    for row in rows(&paths, settings, address).await {
        let (_, outcome, pod) = expected.iter().find(|(path, ..)| **path == *row.target).unwrap();
        assert_eq!((row.outcome, row.pod.as_deref()), (*outcome, *pod), "{row:?}");
    }
    server.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http2_body_names_pod() {
    let ended = [
        ("/whole", Outcome::Ok, Some("web-1")),
        ("/error", Outcome::HttpError, Some("web-2")),
        ("/header", Outcome::Ok, Some("web-3")),
        ("/late", Outcome::Ok, None),
    ];
    agree_over_http2(&ended, settings(Some("pod=([a-z0-9-]+)"))).await;
    let hanging =
        [("/hang-after", Outcome::BodyTimeout, Some("web-4")), ("/hang-within", Outcome::BodyTimeout, None)];
    agree_over_http2(&hanging, hanging_settings()).await;
}
