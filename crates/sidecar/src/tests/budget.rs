//! Limits on what peers can make the proxy hold, and the handling of everything beyond them.

use super::*;

use super::super::data_port::DRAIN_INTERVAL as INTERVAL;

const HELD: &str = "rolldrop_proxy_held_bytes";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

fn with(upstream: SocketAddr, budget: Budget) -> Running {
    Running::start_as(ProxyConfig { budget, pod_header: PodHeader::Omitted, ..ProxyConfig::bare(upstream) })
}

/// Accepts connections and reads without ever responding.
fn silent(app: TcpListener) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut readers = JoinSet::new();
        while let Ok((mut stream, _)) = app.accept().await {
            readers.spawn(async move {
                let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
                std::future::pending::<()>().await;
            });
        }
    });
    tasks
}

async fn until_held(proxy: &Running, is_it: impl Fn(usize) -> bool) {
    within(async {
        while !is_it(proxy.metric(HELD).await) {
            tokio::time::sleep(INTERVAL).await;
        }
    })
    .await;
}

#[tokio::test]
async fn endless_heads_stay_within_budget() {
    let (app, address) = app().await;
    let _app = silent(app);
    let limit = 1 << 20;
    let proxy = with(address, Budget { held_bytes: limit, ..Budget::DEFAULT });
    let mut clients = Vec::new();
    for _ in 0..40 {
        let mut client = proxy.client().await;
        client.write_all(b"GET / HTTP/1.1\r\nx: ").await.unwrap();
        // A client whose head is refused may be reset while it is still sending.
        let _ =
            timeout(DEADLINE, client.write_all(&[b'x'; 150_000])).await.expect("the proxy stopped reading");
        clients.push(client);
    }
    // More than half of the heads are refused.
    within(async {
        while clients.len() >= 20 {
            for mut client in std::mem::take(&mut clients) {
                if timeout(INTERVAL, client.read_exact(&mut [0; 12])).await.is_err() {
                    clients.push(client);
                }
            }
        }
    })
    .await;
    let held = proxy.metric(HELD).await;
    assert!(held <= limit && held > 100_000 && !clients.is_empty(), "{held}");
    // A typical head fits into each connection's own memory.
    let mut normal = proxy.client().await;
    normal.write_all(format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "x".repeat(2000)).as_bytes()).await.unwrap();
    within(async {
        while proxy.metric("rolldrop_proxy_in_flight").await != 1 {
            tokio::time::sleep(INTERVAL).await;
        }
    })
    .await;
    // A client that has closed its side sends no more, although the app keeps the connection open.
    for client in &mut clients {
        // A client that is refused only now may have been reset.
        let _ = client.shutdown().await;
    }
    until_held(&proxy, |held| held == 0).await;
    drop((clients, normal));
}

#[tokio::test]
async fn pipelined_requests_beyond_budget_wait() {
    const ALL: usize = 1000;
    let (app, address) = app().await;
    let proxy = with(address, Budget { requests_per_connection: 10, ..Budget::DEFAULT });
    let mut client = proxy.client().await;
    let mut server = accept(&app).await;
    let ask = "GET / HTTP/1.1\r\n\r\n";
    client.write_all(ask.repeat(ALL).as_bytes()).await.unwrap();
    expect(&mut server, &ask.repeat(10)).await;
    let mut byte = [0; 1];
    let more = timeout(Duration::from_millis(100), server.read(&mut byte)).await;
    assert!(more.is_err(), "an eleventh request arrived before a response");
    assert_eq!(proxy.metric("rolldrop_proxy_in_flight").await, 10);
    for _ in 10..ALL {
        server.write_all(OK.as_bytes()).await.unwrap();
        expect(&mut server, ask).await;
    }
    server.write_all(OK.repeat(10).as_bytes()).await.unwrap();
    expect(&mut client, &OK.repeat(ALL)).await;
    drop((client, server, app));
    let rows = served(&proxy.end().await.0);
    assert!(rows.len() == ALL && rows.iter().all(|row| row.ended == ServedEnd::Complete));
}

#[tokio::test]
async fn ambiguous_answers_consume_no_budget() {
    const ALL: u64 = 100;
    let (app, address) = app().await;
    let proxy = with(address, Budget { requests_per_connection: 10, ..Budget::DEFAULT });
    let ask = "GET / HTTP/1.1\r\n\r\n";
    let odd = [
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\nContent-Length: 2\r\n\r\nhi",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\nhi\n0\n\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nhi",
        "HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\nhi",
        "HTTP/1.1 2x0 OK\r\nContent-Length: 2\r\n\r\nhi",
    ];
    let mut unrecorded = 0;
    // The last response can be parsed, although it violates the grammar.
    for answer in odd.into_iter().chain(["HTTP/1.1 200 OK\r\nX Y: z\r\nContent-Length : 2\r\n\r\nhi"]) {
        let (mut client, mut server) = (proxy.client().await, accept(&app).await);
        for _ in 0..ALL {
            client.write_all(ask.as_bytes()).await.unwrap();
            expect(&mut server, ask).await;
            server.write_all(answer.as_bytes()).await.unwrap();
            expect(&mut client, answer).await;
        }
        assert_eq!(proxy.metric("rolldrop_proxy_in_flight").await, 0, "{answer:?}");
        unrecorded += if odd.contains(&answer) { ALL } else { 0 };
        let metrics = proxy.get("/metrics").await;
        let counted = format!("unrecorded_total{{reason=\"answers\"}} {unrecorded}\n");
        assert!(metrics.contains(&counted), "{answer:?}: {metrics}");
    }
    // Many requests at once, before the first response.
    let (mut client, mut server) = (proxy.client().await, accept(&app).await);
    client.write_all(ask.repeat(50).as_bytes()).await.unwrap();
    expect(&mut server, &ask.repeat(10)).await;
    server.write_all(odd[0].as_bytes()).await.unwrap();
    expect(&mut server, &ask.repeat(40)).await;
    drop((client, server, app));
    let (lines, _) = proxy.end().await;
    assert_eq!(served(&lines).len() as u64, ALL);
    let all = ALL + unrecorded + 50;
    assert_eq!(lines.last(), Some(&ProxyLine::End { recorded: all }));
}

#[tokio::test]
async fn dripping_client_makes_room() {
    let (app, address) = app().await;
    let proxy = with(address, Budget { connections: 1, ..Budget::DEFAULT });
    let post = format!("POST / HTTP/1.1\r\nrolldrop-id: run-load-1\r\nContent-Length: {}\r\n\r\n", 1 << 20);
    let (mut slow, mut server) = proxy.asked(&app, &post).await;
    let reads = tokio::spawn(async move { tokio::io::copy(&mut server, &mut tokio::io::sink()).await });
    let drips = async {
        while slow.write_all(b"x").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let next = get(2);
    let ((), (client, server)) = tokio::join!(within(drips), proxy.asked(&app, &next));
    drop((client, server, app));
    let _ = within(reads).await;
    let rows = served(&proxy.end().await.0);
    let row = rows.iter().find(|row| row.request.as_ref().is_some_and(|id| id.seq == 1)).expect("a row");
    assert_eq!(row.ended, ServedEnd::ProxyExhausted);
}

#[tokio::test]
async fn half_closed_app_receives_all_requests() {
    const ALL: usize = 1000;
    let (app, address) = app().await;
    let proxy = with(address, Budget { requests_per_connection: 10, ..Budget::DEFAULT });
    let mut client = proxy.client().await;
    let mut server = accept(&app).await;
    server.shutdown().await.unwrap();
    expect_eof(&mut client).await;
    // After a request to switch protocols, there is nothing to wait for, either.
    let upgrade = "GET / HTTP/1.1\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
    let ask = upgrade.to_owned() + &"GET / HTTP/1.1\r\n\r\n".repeat(ALL);
    client.write_all(ask.as_bytes()).await.unwrap();
    expect(&mut server, &ask).await;
    drop((client, server, app));
    let rows = served(&proxy.end().await.0);
    assert!(rows.iter().all(|row| row.ended == ServedEnd::UpstreamEof), "{rows:?}");
}

#[tokio::test]
async fn connections_beyond_limit_wait() {
    let (app, address) = app().await;
    let proxy = with(address, Budget { connections: 2, ..Budget::DEFAULT });
    let first = proxy.asked(&app, "GET /1 HTTP/1.1\r\n\r\n").await;
    let _second = proxy.asked(&app, "GET /2 HTTP/1.1\r\n\r\n").await;
    let _third = proxy.client().await;
    let early = timeout(Duration::from_millis(100), app.accept()).await;
    assert!(early.is_err(), "a third connection was passed on");
    drop(first);
    accept(&app).await;
}

#[tokio::test]
async fn idle_connection_makes_room() {
    let (app, address) = app().await;
    let proxy = with(address, Budget { connections: 2, ..Budget::DEFAULT });
    let (mut idle, _idle) = (proxy.client().await, accept(&app).await);
    let (mut busy, mut server) = proxy.asked(&app, &get(1)).await;
    let _third = proxy.asked(&app, &get(2)).await;
    expect_eof(&mut idle).await;
    server.write_all(OK.as_bytes()).await.unwrap();
    expect(&mut busy, OK).await;
    let metrics = proxy.get("/metrics").await;
    assert!(metrics.contains("unrecorded_total{reason=\"connections\"} 1\n"), "{metrics}");
}

#[tokio::test]
async fn hurried_drain_resets_connections_beyond_limit() {
    let (app, address) = app().await;
    let proxy = with(address, Budget { connections: 1, ..Budget::DEFAULT });
    let _first = proxy.asked(&app, &get(1)).await;
    let mut waiting = [proxy.client().await, proxy.client().await, proxy.client().await];
    let mut rows = proxy.rows().await;
    proxy.stop.send(()).unwrap();
    proxy.hurry.send(()).unwrap();
    within(rows.read_to_end()).await;
    for client in &mut waiting {
        let error = within(client.read(&mut [0])).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
    assert_eq!(served(&rows.lines).len(), 1);
    assert!(matches!(rows.lines.last(), Some(ProxyLine::End { recorded: 4 })), "{:?}", rows.lines.last());
}

#[tokio::test]
async fn stalled_client_row_shows_proxy_exhausted() {
    let (app, address) = app().await;
    let proxy = with(address, Budget { connections: 1, socket_bytes: 0, ..Budget::DEFAULT });
    let (mut stalled, mut server) = proxy.asked(&app, &get(1)).await;
    let answer = async {
        server.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n").await.unwrap();
        while server.write_all(&[b'x'; 10_000]).await.is_ok() {}
    };
    let next = get(2);
    let ((), (client, mut server)) = tokio::join!(within(answer), proxy.asked(&app, &next));
    server.write_all(OK.as_bytes()).await.unwrap();
    drop((client, server, app));
    // The bytes that the client had not accepted are gone.
    let error = within(stalled.read_to_end(&mut Vec::new())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    let rows = served(&proxy.end().await.0);
    let row = rows.iter().find(|row| row.request.as_ref().is_some_and(|id| id.seq == 1)).expect("a row");
    assert_eq!((row.ended, row.status), (ServedEnd::ProxyExhausted, Some(200)));
}

#[tokio::test]
async fn connection_stays_counted_until_answer_is_read() {
    const LENGTH: usize = 50_000;
    let (app, address) = app().await;
    let proxy = with(address, Budget::DEFAULT);
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut client = socket.connect(proxy.data).await.unwrap();
    let mut server = accept(&app).await;
    client.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    expect(&mut server, "GET / HTTP/1.1\r\n\r\n").await;
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {LENGTH}\r\n\r\n");
    server.write_all(&[head.as_bytes(), &[b'x'; LENGTH]].concat()).await.unwrap();
    drop(server);
    proxy.recorded(1).await;
    client.shutdown().await.unwrap();
    // The proxy has seen both sides close and has passed on all bytes, but the kernel still has them.
    assert!(timeout(Duration::from_millis(500), proxy.no_connections()).await.is_err());
    let mut got = Vec::new();
    within(client.read_to_end(&mut got)).await.unwrap();
    assert_eq!(got.len(), head.len() + LENGTH);
    within(proxy.no_connections()).await;
}

#[tokio::test]
async fn frame_without_room_passes_unread() {
    let (app, address) = app().await;
    let proxy = with(address, Budget { held_bytes: 0, ..Budget::DEFAULT });
    let mut client = proxy.client().await;
    let mut server = accept(&app).await;
    // A HEADERS frame of 16,000 bytes, the last of which are not sent.
    let frame = [&b"\x00\x3e\x80\x01\x04\0\0\0\x01"[..], &[0x82; 16_000]].concat();
    let ask = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &frame].concat();
    client.write_all(&ask[..16_000]).await.unwrap();
    let mut got = vec![0; 16_000];
    within(server.read_exact(&mut got)).await.unwrap();
    assert!(got == ask[..16_000]);
    let metrics = proxy.get("/metrics").await;
    assert!(metrics.contains("unrecorded_total{reason=\"head\"} 1\n"), "{metrics}");
}

/// Returns a client connection from this loopback address.
async fn from(last: u8, to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = tokio::net::TcpSocket::new_v4()?;
    socket.bind((Ipv4Addr::new(127, 0, 0, last), 0).into())?;
    socket.connect(to).await
}

/// Responds to each GET, and reads all other bytes.
fn answering(app: TcpListener) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut servers = JoinSet::new();
        while let Ok((mut stream, _)) = app.accept().await {
            servers.spawn(async move {
                let mut asked = Vec::new();
                while let Ok(1..) = stream.read_buf(&mut asked).await {
                    if asked.starts_with(b"GET") && asked.ends_with(b"\r\n\r\n") {
                        asked.clear();
                        let _ = stream.write_all(OK.as_bytes()).await;
                    }
                }
            });
        }
    });
    tasks
}

/// Occupies a place, and takes another one as soon as it is lost.
async fn hold_places(to: SocketAddr, opening: &'static str, drip: &'static str) {
    loop {
        let Ok(mut stream) = from(2, to).await else { continue };
        let mut sent = stream.write_all(opening.as_bytes()).await;
        while sent.is_ok() {
            tokio::time::sleep(Duration::from_millis(100)).await;
            sent = stream.write_all(drip.as_bytes()).await;
        }
    }
}

/// The hostile address has as many open connections as the proxy accepts, and more that are waiting.
#[tokio::test]
async fn hostile_address_does_not_displace_others() {
    const PLACES: usize = 8;
    for (opening, drip) in
        [("GET / HTTP/1.1\r\nx: ", "x"), ("POST / HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n", "x")]
    {
        let (app, address) = app().await;
        let _app = answering(app);
        let proxy = with(address, Budget { connections: PLACES, ..Budget::DEFAULT });
        let mut hostile = JoinSet::new();
        (0..2 * PLACES).for_each(|_| _ = hostile.spawn(hold_places(proxy.data, opening, drip)));
        within(async {
            while proxy.metric("rolldrop_proxy_connections").await < PLACES {
                tokio::time::sleep(INTERVAL).await;
            }
        })
        .await;
        let mut ordinary = within(from(3, proxy.data)).await.unwrap();
        ordinary.write_all(get(1).as_bytes()).await.unwrap();
        expect(&mut ordinary, OK).await;
        // The connection stays idle for as long as it takes each of the others to lose its place twice.
        let made_room = || proxy.metric("rolldrop_proxy_made_room_total");
        let before = made_room().await;
        within(async {
            while made_room().await < before + 2 * PLACES {
                tokio::time::sleep(INTERVAL).await;
            }
        })
        .await;
        ordinary.write_all(get(2).as_bytes()).await.unwrap();
        expect(&mut ordinary, OK).await;
        hostile.shutdown().await;
    }
}
