//! The same conversations, directly with the app and through the proxy: both ends get the same bytes and the same kind
//! of end.

use proptest::prelude::*;

use super::*;

/// Bytes that one end sends; the other end reads them all before the next step.
#[derive(Clone, Debug)]
enum Step {
    Client(Vec<u8>),
    App(Vec<u8>),
    ClientHalfCloses,
}

/// The end of a conversation.
#[derive(Clone, Copy, Debug)]
enum Last {
    AppCloses,
    AppResets,
    ClientCloses,
    ClientResets,
}

/// Bytes seen by the two ends.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    client: String,
    app: String,
    /// End of the conversation, as seen by the side that did not cause it.
    end: Result<String, ErrorKind>,
}

fn client(bytes: impl AsRef<[u8]>) -> Step {
    Step::Client(bytes.as_ref().to_vec())
}

fn app_says(bytes: impl AsRef<[u8]>) -> Step {
    Step::App(bytes.as_ref().to_vec())
}

/// Plays a conversation between a client that connects to `to` and the app, in pieces of the given sizes.
async fn play(steps: &[Step], last: Last, to: SocketAddr, app: &TcpListener, sizes: &[usize]) -> Seen {
    let mut client = TcpStream::connect(to).await.unwrap();
    let mut server = accept(app).await;
    let (mut by_client, mut by_app) = (Vec::new(), Vec::new());
    for step in steps {
        match step {
            Step::Client(bytes) => by_app.extend(pass(&mut client, &mut server, bytes, sizes).await),
            Step::App(bytes) => by_client.extend(pass(&mut server, &mut client, bytes, sizes).await),
            Step::ClientHalfCloses => {
                client.shutdown().await.unwrap();
                expect_eof(&mut server).await;
            }
        }
    }
    let (ending, mut other, resets) = match last {
        Last::AppCloses => (server, client, false),
        Last::AppResets => (server, client, true),
        Last::ClientCloses => (client, server, false),
        Last::ClientResets => (client, server, true),
    };
    if resets {
        ending.set_zero_linger().unwrap();
    }
    drop(ending);
    let mut rest = Vec::new();
    let end = within(other.read_to_end(&mut rest)).await;
    let show = |bytes: Vec<u8>| bytes.escape_ascii().to_string();
    Seen {
        client: show(by_client),
        app: show(by_app),
        end: end.map(|_| show(rest)).map_err(|error| error.kind()),
    }
}

/// Sends bytes in pieces; returns the same number of bytes read at the other end.
async fn pass(from: &mut TcpStream, to: &mut TcpStream, bytes: &[u8], sizes: &[usize]) -> Vec<u8> {
    let send = async {
        let (mut rest, mut sizes) = (bytes, sizes.iter().copied().cycle());
        while !rest.is_empty() {
            let (piece, more) = rest.split_at(sizes.next().unwrap_or(rest.len()).min(rest.len()));
            from.write_all(piece).await.unwrap();
            tokio::task::yield_now().await;
            rest = more;
        }
    };
    let mut got = vec![0; bytes.len()];
    let (got_all, ()) = within(async { tokio::join!(to.read_exact(&mut got), send) }).await;
    got_all.unwrap();
    got
}

/// Returns every kind of HTTP/1 conversation.
#[expect(clippy::too_many_lines, reason = "a table")]
fn conversations() -> Vec<(&'static str, Vec<Step>, Last)> {
    use Last::*;
    const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let lines: String = (0..2_000).map(|n| format!("X-{n}: {n}\r\n")).collect();
    let long = "v".repeat(300_000);
    let chunks = "5;ext=\"a;b\"\r\nhello\r\n00a ;q\r\n0123456789\r\n0\r\nX-Sum: 1\r\nX-End: 2\r\n\r\n";
    vec![
        ("keep-alive", vec![client(GET), app_says(OK), client(GET), app_says(OK)], ClientCloses),
        ("idle, closed by the app", vec![client(GET), app_says(OK)], AppCloses),
        ("idle, reset by the app", vec![client(GET), app_says(OK)], AppResets),
        ("closed before any request", vec![], AppCloses),
        ("reset before any request", vec![], AppResets),
        ("the client sends nothing and closes", vec![], ClientCloses),
        ("the client sends nothing and resets", vec![], ClientResets),
        ("a parting response without a request", vec![app_says("HTTP/1.1 408 Late\r\nConnection: close\r\n\r\n")], AppCloses),
        (
            "a parting response in the middle of a head",
            vec![client("GET / HTTP/1.1\r\nHost: "), app_says("HTTP/1.1 408 Late\r\nContent-Length: 0\r\n\r\n")],
            AppCloses,
        ),
        ("closed in the middle of a request's head", vec![client("GET / HTTP/1.1\r\nHost: ")], AppCloses),
        ("reset in the middle of a request's head", vec![client("GET / HTTP/1.1\r\nHost: ")], AppResets),
        ("given up in the middle of a request's head", vec![client("GET / HTTP/1.1\r\nHost: ")], ClientResets),
        ("closed before the answer", vec![client(GET)], AppCloses),
        ("reset before the answer", vec![client(GET)], AppResets),
        ("given up before the answer", vec![client(GET)], ClientResets),
        (
            "Expect: 100-continue",
            vec![
                client("PUT / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"),
                app_says("HTTP/1.1 100 Continue\r\n\r\n"),
                client("hi"),
                app_says(OK),
            ],
            ClientCloses,
        ),
        (
            "Expect: 100-continue, refused",
            vec![
                client("PUT / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"),
                app_says("HTTP/1.1 417 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"),
            ],
            AppCloses,
        ),
        (
            "interim answers",
            vec![
                client(GET),
                app_says("HTTP/1.1 102 Wait\r\n\r\nHTTP/1.1 103 Hints\r\nLink: </a>\r\n\r\n"),
                app_says(OK),
            ],
            ClientCloses,
        ),
        (
            "HEAD, 204 and 304 have no body",
            vec![
                client("HEAD / HTTP/1.1\r\n\r\n"),
                app_says("HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n"),
                client("HEAD / HTTP/1.1\r\n\r\n"),
                app_says("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
                client(GET),
                app_says("HTTP/1.1 204 None\r\n\r\n"),
                client(GET),
                app_says("HTTP/1.1 304 Same\r\nContent-Length: 500\r\n\r\n"),
                client(GET),
                app_says(OK),
            ],
            ClientCloses,
        ),
        (
            "chunks with extensions and trailers in both directions",
            vec![
                client(format!("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n{chunks}")),
                app_says(format!("HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n{chunks}")),
                client(GET),
                app_says(OK),
            ],
            ClientCloses,
        ),
        (
            "an upgrade, followed by bytes that are not HTTP",
            vec![
                client("GET /chat HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n\r\n"),
                app_says("HTTP/1.1 101 Go\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n\x01\x02first"),
                client(b"\x81\x85\0\0\0\0hello\r\n\r\n\n\n"),
                app_says(b"\x81\x05hello\xff"),
            ],
            AppCloses,
        ),
        (
            "an upgrade given up before the answer",
            vec![client("GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")],
            ClientResets,
        ),
        (
            "an upgrade that the app ignores",
            vec![
                client("GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"),
                app_says(OK),
                client(GET),
                app_says(OK),
            ],
            ClientCloses,
        ),
        (
            "fields that concern only this connection",
            vec![
                client("GET / HTTP/1.1\r\nConnection: keep-alive, X-Hop, TE\r\nKeep-Alive: timeout=5\r\nX-Hop: 1\r\nTE: trailers\r\nProxy-Connection: keep-alive\r\n\r\n"),
                app_says("HTTP/1.1 200 OK\r\nConnection: keep-alive, X-Hop\r\nKeep-Alive: timeout=5, max=2\r\nX-Hop: 2\r\nContent-Length: 0\r\n\r\n"),
                client("GET / HTTP/1.1\r\nConnection: close, Content-Length\r\nContent-Length: 2\r\n\r\nhi"),
                app_says("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"),
            ],
            AppCloses,
        ),
        (
            "a compressed body in chunks",
            vec![
                client("POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n3\r\n\x1f\x0b\0\r\n0\r\n\r\n"),
                app_says("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n\0\r\n0\r\n\r\n"),
                client(GET),
                app_says(OK),
            ],
            ClientCloses,
        ),
        ("pipelining", vec![client(GET.repeat(3)), app_says(OK.repeat(3))], ClientCloses),
        (
            "pipelining behind a body",
            vec![client(format!("POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc{GET}")), app_says(OK.repeat(2))],
            ClientCloses,
        ),
        (
            "Connection: close",
            vec![client("GET / HTTP/1.1\r\nConnection: close\r\n\r\n"), app_says(OK)],
            AppCloses,
        ),
        (
            "HTTP/1.0, ended by close",
            vec![client("GET / HTTP/1.0\r\n\r\n"), app_says("HTTP/1.0 200 OK\r\n\r\nall of it")],
            AppCloses,
        ),
        (
            "HTTP/1.0, kept alive",
            vec![
                client("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"),
                app_says("HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok"),
                client("GET / HTTP/1.0\r\n\r\n"),
                app_says("HTTP/1.0 200 OK\r\n\r\n"),
            ],
            AppCloses,
        ),
        (
            "a client that closes its side after its request",
            vec![client(GET), Step::ClientHalfCloses, app_says(OK)],
            AppCloses,
        ),
        (
            "absolute form, asterisk form, odd methods and odd targets",
            vec![
                client("GET http://a:1/x?y HTTP/1.1\r\nHost: b\r\n\r\n"),
                app_says(OK),
                client("OPTIONS * HTTP/1.1\r\n\r\n"),
                app_says(OK),
                client("M-SEARCH //..//%2e%00?#[] HTTP/1.1\r\n\r\n"),
                app_says(OK),
            ],
            ClientCloses,
        ),
        (
            "fields in unusual forms",
            vec![
                client("GET / HTTP/1.1\r\nX:\r\ny: \t a  b \t\r\nHOST:a\r\nX: \x7f?\r\nTE: trailers, deflate\r\nVia: 1.1 x\r\n\r\n".replace('\x7f', "~")),
                app_says("HTTP/1.1 299\r\nX:\r\nServer : a\r\nX: a\r\n b\r\nContent-Length: 0\r\n\r\n"),
            ],
            ClientCloses,
        ),
        ("an empty line before a request", vec![client(format!("\r\n{GET}\r\n{GET}")), app_says(OK.repeat(2))], ClientCloses),
        (
            "large heads",
            vec![
                client(format!("GET /{long} HTTP/1.1\r\n{lines}Cookie: {long}\r\n\r\n")),
                app_says(format!("HTTP/1.1 200 OK\r\n{lines}Set-Cookie: {long}\r\nContent-Length: 0\r\n\r\n")),
                client(GET),
                app_says(OK),
            ],
            ClientCloses,
        ),
        (
            "an answer before the request is complete",
            vec![
                client("POST / HTTP/1.1\r\nContent-Length: 1000000\r\n\r\nsome"),
                app_says("HTTP/1.1 413 Much\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"),
            ],
            AppCloses,
        ),
        (
            "sloppy answers, and bytes that are not HTTP",
            vec![client(GET), app_says("HTTP/1.1 200 OK\nContent-Length: 2\n\nok"), client(GET), app_says("SSH-2.0-x\r\n\0")],
            AppCloses,
        ),
        (
            "a chunked answer that breaks its grammar",
            vec![client(GET), app_says("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nworld")],
            AppCloses,
        ),
        (
            "an answer with two lengths",
            vec![client(GET), app_says("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab")],
            AppCloses,
        ),
    ]
}

#[tokio::test]
async fn proxied_conversations_match_direct_ones() {
    let (app, address) = app().await;
    let proxy = Running::start_with(address, PodHeader::Omitted);
    for (name, steps, last) in conversations() {
        let direct = play(&steps, last, address, &app, &[]).await;
        let through = play(&steps, last, proxy.data, &app, &[]).await;
        assert!(direct == through, "{name}: {direct:?} directly, {through:?} through the proxy");
    }
}

#[test]
fn segmentation_does_not_change_conversations() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (app, address) = runtime.block_on(app());
    let proxy = runtime.block_on(async { Running::start_with(address, PodHeader::Omitted) });
    let conversations: Vec<_> =
        conversations().into_iter().filter(|(name, ..)| *name != "large heads").collect();
    proptest!(ProptestConfig::with_cases(10), |(sizes in prop::collection::vec(1..40usize, 1..6))| {
        runtime.block_on(async {
            for (name, steps, last) in &conversations {
                let direct = play(steps, *last, address, &app, &sizes).await;
                let through = play(steps, *last, proxy.data, &app, &sizes).await;
                assert!(direct == through, "{name}: {direct:?} directly, {through:?} through the proxy");
            }
        });
    });
}

#[tokio::test]
async fn truncated_answer_matches_direct_connection() {
    let (app, address) = app().await;
    let proxy = Running::start_with(address, PodHeader::Omitted);
    let answers = [
        "HTTP/1.1 103 Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX: 1\r\n\r\n",
    ];
    for answer in answers {
        for at in 0..=answer.len() {
            for last in [Last::AppCloses, Last::AppResets] {
                let steps = [client("GET / HTTP/1.1\r\n\r\n"), app_says(&answer[..at])];
                // Bytes of a head that the proxy holds back arrive only at the end.
                let direct = whole(&steps, last, address, &app).await;
                let through = whole(&steps, last, proxy.data, &app).await;
                assert_eq!(direct, through, "{last:?} after {at} bytes of {answer:?}");
            }
        }
    }
}

/// Returns everything that a client receives for its request, and how the connection ends.
async fn whole(
    steps: &[Step; 2],
    last: Last,
    to: SocketAddr,
    app: &TcpListener,
) -> (String, Result<usize, ErrorKind>) {
    let [Step::Client(ask), Step::App(answer)] = steps else { panic!("{steps:?}") };
    let mut client = TcpStream::connect(to).await.unwrap();
    let mut server = accept(app).await;
    pass(&mut client, &mut server, ask, &[]).await;
    server.write_all(answer).await.unwrap();
    if matches!(last, Last::AppResets) {
        server.set_zero_linger().unwrap();
    }
    drop(server);
    let mut got = Vec::new();
    let end = loop {
        match within(client.read_buf(&mut got)).await {
            Ok(0) => break Ok(0),
            Ok(_) => {}
            Err(error) => break Err(error.kind()),
        }
    };
    (got.escape_ascii().to_string(), end)
}

#[tokio::test]
async fn stalled_app_does_not_hide_client_reset() {
    let (app, address) = app().await;
    let proxy = Running::start(address);
    let mut client = proxy.client().await;
    let mut server = accept(&app).await;
    client
        .write_all(b"POST / HTTP/1.1\r\nrolldrop-id: run-load-0\r\nContent-Length: 1000000000\r\n\r\n")
        .await
        .unwrap();
    // Write until nothing more fits between the two.
    let piece = vec![0; 1 << 20];
    while timeout(Duration::from_millis(200), client.write_all(&piece)).await.is_ok() {}
    client.set_zero_linger().unwrap();
    drop(client);
    proxy.recorded(1).await;
    let mut got = vec![0; 1 << 20];
    let error = within(async {
        loop {
            if let Err(error) = server.read(&mut got).await {
                break error;
            }
        }
    });
    assert_eq!(error.await.kind(), ErrorKind::ConnectionReset);
    drop((server, app));
    assert_eq!(served(&proxy.end().await.0)[0].ended, ServedEnd::ClientGone);
}

#[tokio::test]
async fn app_close_frees_silent_client_connections() {
    let (app, address) = app().await;
    let proxy = Running::start(address);
    let mut clients = Vec::new();
    for _ in 0..20 {
        let (mut client, mut server) = proxy.asked(&app, "GET / HTTP/1.1\r\n\r\n").await;
        server.write_all(b"HTTP/1.1 204 None\r\n\r\n").await.unwrap();
        let mut head = [0; 12];
        within(client.read_exact(&mut head)).await.unwrap();
        clients.push(client);
    }
    // An HTTP/2 connection, and one that has sent nothing.
    clients.push(proxy.asked(&app, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.0);
    clients.push(proxy.client().await);
    drop(accept(&app).await);
    assert_eq!(proxy.metric("rolldrop_proxy_connections").await, clients.len());
    within(proxy.no_connections()).await;
    // Anything that the clients send now is refused, as by the app's kernel.
    for mut client in clients {
        within(client.read_to_end(&mut Vec::new())).await.unwrap();
        let gone = async { while client.write_all(b"GET / HTTP/1.1\r\n\r\n").await.is_ok() {} };
        within(gone).await;
    }
}
