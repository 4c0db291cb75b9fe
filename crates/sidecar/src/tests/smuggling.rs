//! Requests that two parsers could read differently. They are refused, or the proxy reads them the same way as another
//! parser.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;

use super::*;

/// Number of requests with a malformed body in `smuggled`.
const BAD_BODIES: usize = 22;

/// Requests whose end or meaning is ambiguous to parsers: the known classes of smuggling.
#[expect(clippy::too_many_lines, reason = "a table")]
fn smuggled() -> Vec<(String, &'static str)> {
    let chunked = |lines: &str| {
        format!("POST / HTTP/1.1\r\nHost: a\r\n{lines}\r\n\r\n0\r\n\r\nGET /x HTTP/1.1\r\n\r\n")
    };
    let body = |chunks: &str| format!("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}");
    let mut refused = Vec::new();
    for lines in [
        // CL.TE and TE.CL.
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 5",
        "Transfer-Encoding: chunked\r\nContent-Length: 0",
        // TE.TE: one of two parsers does not recognise the coding.
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding: chunkedx",
        "Transfer-Encoding : chunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: x",
        "Transfer-Encoding: x\r\nTransfer-encoding: chunked, identity",
        "Transfer-Encoding: chunked, chunked",
        "Transfer-Encoding: x, chunked",
        "Transfer-Encoding: identity, chunked",
        "Transfer-Encoding: ,chunked",
        "Transfer-Encoding: chunked,",
        "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nX: \0",
        "Transfer-Encoding: \"chunked\"",
        "Transfer-Encoding: \x0bchunked",
        "Transfer-Encoding: chunked\x0c",
        "Transfer-Encoding: chunked;q=1",
        "Transfer-Encoding:\r\n chunked",
        " Transfer-Encoding: chunked",
        "X: x\nTransfer-Encoding: chunked",
        "X: x\rTransfer-Encoding: chunked",
        "X: x\r\n\rTransfer-Encoding: chunked",
        "Transfer-Encoding\r\n: chunked",
        "Transfer-Encoding\0: chunked",
        "Transfer-Encoding: chunked\0",
        "Transfer-Encoding",
        "Transfer-Encoding: ",
        "Transfer-Encoding: identity",
        "Transfer-Encoding: gzip",
        // CL.CL, and lengths that parsers read differently.
        "Content-Length: 5\r\nContent-Length: 6",
        "Content-Length: 5\r\ncontent-length: 05x",
        "Content-Length: 5, 5",
        "Content-Length: 5 5",
        "Content-Length: +5",
        "Content-Length: -5",
        "Content-Length: 0x5",
        "Content-Length: 5.0",
        "Content-Length: \"5\"",
        "Content-Length:",
        "Content-Length : 5",
        "Content-Length: 5\r\n 6",
        "Content-Length: 18446744073709551621",
        "Content-Length: 9223372036854775808",
        "Content-Length: 1e1",
        "Content-Length: 5\r\nContent-Length: 5, 5",
        "Content-Length: 5\0",
        ": x",
        "X y: z",
    ] {
        refused.push((chunked(lines), "400"));
    }
    for chunks in [
        "5\nhello\r\n0\r\n\r\n",
        "5\r\nhello\n0\r\n\r\n",
        "5\r\nhello0\r\n\r\n",
        "5;x\nGET / HTTP/1.1\r\n0\r\n\r\n",
        "5;x\rhello\r\n0\r\n\r\n",
        " 5\r\nhello\r\n0\r\n\r\n",
        "0x5\r\nhello\r\n0\r\n\r\n",
        "+5\r\nhello\r\n0\r\n\r\n",
        "-1\r\n\r\n",
        "5_0\r\nhello\r\n0\r\n\r\n",
        "10000000000000005\r\nhello\r\n0\r\n\r\n",
        "8000000000000005\r\nhello\r\n0\r\n\r\n",
        "00000000000000005\r\nhello\r\n0\r\n\r\n",
        "5;x=\0\r\nhello\r\n0\r\n\r\n",
        "5;x\x0b\r\nhello\r\n0\r\n\r\n",
        "5\0\r\nhello\r\n0\r\n\r\n",
        "0;x\n\r\n",
        "0\r\nX: \x01\r\n\r\n",
        "0\r\nX: 1\rY: 2\r\n\r\n",
        "\r\n5\r\nhello\r\n0\r\n\r\n",
        "0\r\n\nGET / HTTP/1.1\r\n\r\n",
        "0\r\nX: 1\n\r\n",
    ] {
        refused.push((body(chunks), "400"));
    }
    for (whole, status) in [
        ("GET / HTTP/1.1\n\n", "400"),
        ("\nGET / HTTP/1.1\r\n\r\n", "400"),
        ("GET / HTTP/1.1\r\nHost: a\n\r\n", "400"),
        ("GET / HTTP/1.1\r\n\nHost: a\r\n\r\n", "400"),
        ("GET /\r\n\r\n", "400"),
        ("GET\t/ HTTP/1.1\r\n\r\n", "400"),
        ("GET /\0 HTTP/1.1\r\n\r\n", "400"),
        ("GET / HTTP/1.1 \r\n\r\n", "400"),
        ("GET / http/1.1\r\n\r\n", "505"),
        ("GET / HTTP/1.1\r\nno colon\r\n\r\n", "400"),
        ("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400"),
        ("GET / HTTP/2.0\r\n\r\n", "505"),
        ("GET / HTTP/1.2\r\n\r\n", "505"),
        ("CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n", "501"),
    ] {
        refused.push((whole.to_owned(), status));
    }
    refused
}

#[tokio::test]
async fn smuggled_requests_never_reach_app() {
    let (app, address) = app().await;
    let proxy = Running::start(address);
    let refused = smuggled();
    for (request, status) in &refused {
        let mut client = proxy.client().await;
        client.write_all(request.as_bytes()).await.unwrap();
        let answer = read_all(&mut client).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request:?}: {answer:?}");
        assert!(answer.contains("\r\nconnection: close\r\n"), "{answer}");
        assert_eq!(read_all(&mut accept(&app).await).await, "", "{request:?}");
    }
    let too_large = format!("GET / HTTP/1.1\r\nX: {}", "x".repeat(1 << 20));
    let (mut client, mut server) = (proxy.client().await, accept(&app).await);
    // An app that does not read would slow its client down, just as it would without the proxy.
    let (_, got) = tokio::join!(client.write_all(too_large.as_bytes()), read_all(&mut server));
    assert!(too_large.starts_with(&got) && got.len() < too_large.len());
    assert!(read_all(&mut client).await.starts_with("HTTP/1.1 431 "));
    drop((server, app));
    let (lines, report) = proxy.end().await;
    assert_eq!(report.counts.rejected, refused.len() as u64 + 1);
    // The head before a malformed body was a valid request.
    let ends: Vec<_> = served(&lines).iter().map(|row| row.ended).collect();
    assert_eq!(ends, [ServedEnd::Cancelled; BAD_BODIES]);
}

#[tokio::test]
async fn bytewise_smuggled_requests_never_complete_at_app() {
    let (app, address) = app().await;
    let proxy = Running::start(address);
    for (request, status) in smuggled().into_iter().filter(|(request, _)| !request.contains("\r\n\r\n0")) {
        let mut client = proxy.client().await;
        client.set_nodelay(true).unwrap();
        for byte in request.as_bytes() {
            // The proxy may have responded before the last byte.
            if client.write_all(&[*byte]).await.is_err() {
                break;
            }
            tokio::task::yield_now().await;
        }
        let answer = read_all(&mut client).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request:?}: {answer:?}");
        let mut got = Vec::new();
        let _ = within(accept(&app).await.read_to_end(&mut got)).await;
        let got = String::from_utf8(got).unwrap();
        let is_body = request.contains("Transfer-Encoding: chunked\r\n\r\n") && !request.contains("HTTP/1.0");
        assert!(is_body || !got.contains("\r\n\r\n") && !got.contains("\n\n"), "{request:?}: {got:?}");
        assert!(request.starts_with(&got) && got != request, "{request:?}: {got:?}");
    }
}

#[tokio::test]
async fn refusal_waits_for_earlier_answers() {
    let (app, address) = app().await;
    let proxy = Running::start_with(address, PodHeader::Omitted);
    let mut client = proxy.client().await;
    client.write_all(format!("{}BAD\r\n\r\n", get(0)).as_bytes()).await.unwrap();
    let mut server = accept(&app).await;
    expect(&mut server, &get(0)).await;
    server.write_all(b"HTTP/1.1 204 None\r\n\r\n").await.unwrap();
    assert!(read_all(&mut client).await.starts_with("HTTP/1.1 204 None\r\n\r\nHTTP/1.1 400 "));
    expect_eof(&mut server).await;
    drop((server, app));
    let rows = served(&proxy.end().await.0);
    assert_eq!(facts(&rows[0]), (0, Some(204), ServedEnd::Complete, 0, true));
}

/// Method, target and body.
type Read = (&'static str, &'static str, &'static str);

/// Requests that only look ambiguous: another parser reads exactly the requests that are passed on.
#[rustfmt::skip]
fn unambiguous() -> Vec<(&'static str, Vec<Read>)> {
    vec![
        ("POST /1 HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhelloGET /2 HTTP/1.1\r\nHost: a\r\n\r\n", vec![("POST", "/1", "hello"), ("GET", "/2", "")]),
        ("POST /1 HTTP/1.1\r\nHost: a\r\nContent-Length: 0005\r\n\r\nhelloGET /2 HTTP/1.1\r\nHost: a\r\n\r\n", vec![("POST", "/1", "hello"), ("GET", "/2", "")]),
        ("POST /1 HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\n", vec![("POST", "/1", ""), ("GET", "/2", "")]),
        ("GET /1 HTTP/1.1\r\nHost: a\r\nContent-Length: 41\r\n\r\nGET /x HTTP/1.1\r\nHost: a\r\nX: smuggled\r\n\r\n", vec![("GET", "/1", "GET /x HTTP/1.1\r\nHost: a\r\nX: smuggled\r\n\r\n")]),
        ("HEAD /1 HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabcGET /2 HTTP/1.1\r\nHost: a\r\n\r\n", vec![("HEAD", "/1", "abc"), ("GET", "/2", "")]),
        ("POST /1 HTTP/1.1\r\nHost: a\r\nContent_Length: 9\r\nX-Content-Length: 7\r\nTransfer_Encoding: chunked\r\nContent-Length: 2\r\n\r\nhiGET /2 HTTP/1.1\r\nHost: a\r\n\r\n", vec![("POST", "/1", "hi"), ("GET", "/2", "")]),
        ("POST /1 HTTP/1.1\r\nHost: a\r\nConnection: Content-Length, Transfer-Encoding\r\nContent-Length: 2\r\n\r\nhiGET /2 HTTP/1.1\r\nHost: a\r\n\r\n", vec![("POST", "/1", "hi"), ("GET", "/2", "")]),
        ("POST /1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\tchunked\r\n\r\n5;a=\"b;é\"\r\nhello\r\n0\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\n", vec![("POST", "/1", "hello"), ("GET", "/2", "")]),
        ("POST /1 HTTP/1.1\r\nHost: a\r\ntransfer-encoding: CHUNKED\r\n\r\n0005 ;x\r\nhello\r\n000\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\n", vec![("POST", "/1", "hello"), ("GET", "/2", "")]),
        ("POST /1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\n", vec![("POST", "/1", "hi"), ("GET", "/2", "")]),
        ("POST /1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n\r\n\r\n0\r\nContent-Length: 9\r\nTransfer-Encoding: x\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\n", vec![("POST", "/1", "\r\n"), ("GET", "/2", "")]),
        ("GET http://b:1/1 HTTP/1.1\r\nHost: a\r\n\r\nGET /2 HTTP/1.1\r\nHost: b\r\nHost: c\r\n\r\n", vec![("GET", "http://b:1/1", ""), ("GET", "/2", "")]),
        ("GET /1 HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\n", vec![("GET", "/1", ""), ("GET", "/2", "")]),
        ("\r\nPOST /1 HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\n", vec![("POST", "/1", "\r\n"), ("GET", "/2", "")]),
        ("GET /1 HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nhiGET /2 HTTP/1.0\r\n\r\n", vec![("GET", "/1", "hi"), ("GET", "/2", "")]),
    ]
}

type Requests = Arc<Mutex<Vec<(String, String, String)>>>;

/// Serves a connection with another HTTP/1 parser, and notes the requests that it reads.
async fn serve(connection: TcpStream, read: Requests) {
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let read = read.clone();
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            let body = String::from_utf8(body.to_vec()).unwrap();
            read.lock().unwrap().push((head.method.to_string(), head.uri.to_string(), body));
            Ok::<_, Infallible>(hyper::Response::new(Empty::<bytes::Bytes>::new()))
        }
    });
    let mut http = hyper::server::conn::http1::Builder::new();
    // The app still responds after the client has closed its side.
    let _ = http.half_close(true).serve_connection(TokioIo::new(connection), service).await;
}

#[tokio::test]
async fn hyper_parses_accepted_requests_like_proxy() {
    let (app, address) = app().await;
    let proxy = Running::start_with(address, PodHeader::Omitted);
    let mut requests = 0;
    for (bytes, expected) in unambiguous() {
        for to in [address, proxy.data] {
            let mut client = TcpStream::connect(to).await.unwrap();
            client.write_all(bytes.as_bytes()).await.unwrap();
            client.shutdown().await.unwrap();
            let read = Requests::default();
            let answers = async {
                let mut answers = String::new();
                client.read_to_string(&mut answers).await.unwrap();
                answers
            };
            let served = serve(accept(&app).await, read.clone());
            let (answers, ()) = within(async { tokio::join!(answers, served) }).await;
            let read = read.lock().unwrap();
            let read: Vec<_> = read.iter().map(|(m, t, b)| (m.as_str(), t.as_str(), b.as_str())).collect();
            assert_eq!(read, expected, "{bytes:?}");
            assert_eq!(answers.matches("HTTP/1.").count(), expected.len(), "{bytes:?}: {answers:?}");
        }
        requests += expected.len();
        proxy.recorded(requests as u64).await;
    }
    drop(app);
    let (lines, report) = proxy.end().await;
    assert_eq!((served(&lines).len(), report.counts.rejected), (requests, 0));
}
