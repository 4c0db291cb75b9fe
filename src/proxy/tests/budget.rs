//! What peers can make the proxy hold, and what becomes of the rest.

use super::*;

const HELD: &str = "rolldrop_proxy_held_bytes";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

fn with(upstream: SocketAddr, budget: Budget) -> Running {
    Running::start_as(Config { budget, pod_header: PodHeader::Omitted, ..Config::bare(upstream) })
}

/// Takes connections and reads what comes, without an answer.
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
            tokio::time::sleep(DRAIN_INTERVAL).await;
        }
    })
    .await;
}

#[tokio::test]
async fn heads_without_end_take_their_part_leave_room_for_others_and_give_it_back() {
    let (app, address) = app().await;
    let _app = silent(app);
    let limit = 1 << 20;
    let proxy = with(address, Budget { held_bytes: limit, ..Budget::DEFAULT });
    let mut clients = Vec::new();
    let mut refused = 0;
    for _ in 0..40 {
        let mut client = proxy.client().await;
        client.write_all(b"GET / HTTP/1.1\r\nx: ").await.unwrap();
        // One whose head is refused may be reset while it still sends.
        let _ = timeout(DEADLINE, client.write_all(&[b'x'; 150_000])).await.expect("it is read");
        let mut byte = [0; 12];
        match timeout(Duration::from_millis(50), client.read_exact(&mut byte)).await {
            Ok(_) => refused += 1,
            Err(_) => clients.push(client),
        }
    }
    let held = proxy.metric(HELD).await;
    assert!(held <= limit && held > 100_000 && !clients.is_empty(), "{held}");
    assert!(refused > 20, "{refused} of 40 heads are refused");
    // A usual head is smaller than what belongs to each connection.
    let mut normal = proxy.client().await;
    normal.write_all(format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "x".repeat(2000)).as_bytes()).await.unwrap();
    within(async {
        while proxy.metric("rolldrop_proxy_in_flight").await != 1 {
            tokio::time::sleep(DRAIN_INTERVAL).await;
        }
    })
    .await;
    // A client that has closed its side says no more, though the app keeps the connection.
    for client in &mut clients {
        client.shutdown().await.unwrap();
    }
    until_held(&proxy, |held| held == 0).await;
    drop((clients, normal));
}

#[tokio::test]
async fn requests_that_wait_for_their_turn_wait_with_the_client() {
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
    assert!(more.is_err(), "an eleventh comes before an answer");
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
async fn requests_pass_to_an_app_that_has_closed_its_side_though_none_is_answered() {
    const ALL: usize = 1000;
    let (app, address) = app().await;
    let proxy = with(address, Budget { requests_per_connection: 10, ..Budget::DEFAULT });
    let mut client = proxy.client().await;
    let mut server = accept(&app).await;
    server.shutdown().await.unwrap();
    expect_eof(&mut client).await;
    // Neither is there anything to wait for behind the question for another protocol.
    let upgrade = "GET / HTTP/1.1\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
    let ask = upgrade.to_owned() + &"GET / HTTP/1.1\r\n\r\n".repeat(ALL);
    client.write_all(ask.as_bytes()).await.unwrap();
    expect(&mut server, &ask).await;
    drop((client, server, app));
    let rows = served(&proxy.end().await.0);
    assert!(rows.iter().all(|row| row.ended == ServedEnd::UpstreamEof), "{rows:?}");
}

#[tokio::test]
async fn connections_beyond_the_limit_wait_for_others_to_end() {
    let (app, address) = app().await;
    let proxy = with(address, Budget { connections: 2, ..Budget::DEFAULT });
    let (first, second) = (proxy.asked(&app, "GET /1 HTTP/1.1\r\n\r\n").await, proxy.client().await);
    let _second = (second, accept(&app).await);
    let _third = proxy.client().await;
    let early = timeout(Duration::from_millis(100), app.accept()).await;
    assert!(early.is_err(), "a third is passed on");
    drop(first);
    accept(&app).await;
}

#[tokio::test]
async fn a_frame_for_which_there_is_no_room_passes_unread() {
    let (app, address) = app().await;
    let proxy = with(address, Budget { held_bytes: 0, ..Budget::DEFAULT });
    let mut client = proxy.client().await;
    let mut server = accept(&app).await;
    // HEADERS of 16,000 bytes, of which the last ones do not come for now.
    let frame = [&b"\x00\x3e\x80\x01\x04\0\0\0\x01"[..], &[0x82; 16_000]].concat();
    let ask = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &frame].concat();
    client.write_all(&ask[..16_000]).await.unwrap();
    let mut got = vec![0; 16_000];
    within(server.read_exact(&mut got)).await.unwrap();
    assert!(got == ask[..16_000]);
    let metrics = proxy.get("/metrics").await;
    assert!(metrics.contains("unrecorded_total{reason=\"head\"} 1\n"), "{metrics}");
}
