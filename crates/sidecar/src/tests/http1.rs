//! HTTP/1.1 between client and app: bytes passed on, and ends recorded.

use super::*;

#[tokio::test]
async fn bytes_pass_unchanged_on_keepalive_connections() {
    let (app, address) = app().await;
    let proxy = Running::start(address);
    let (mut client, mut server) = proxy.asked(&app, &get(0)).await;
    server.write_all(b"HTTP/1.1 200 Fine\r\nX-Odd:  Case \r\nContent-Length: 5\r\n\r\nhello").await.unwrap();
    expect(
        &mut client,
        "HTTP/1.1 200 Fine\r\nX-Odd:  Case \r\nContent-Length: 5\r\nrolldrop-pod: web-1\r\n\r\nhello",
    )
    .await;

    let chunked = "POST /a HTTP/1.1\r\nrolldrop-id: run-load-1\r\nTransfer-Encoding: chunked\r\n\r\n\
                   05;x=y\r\nhello\r\n0\r\nTrailer: t\r\n\r\n";
    client.write_all(chunked.as_bytes()).await.unwrap();
    expect(&mut server, chunked).await;
    let body = "3\r\nabc\r\n00\r\nSum: 1\r\n\r\n";
    server
        .write_all(format!("HTTP/1.1 404 No\r\nTransfer-Encoding: chunked\r\n\r\n{body}").as_bytes())
        .await
        .unwrap();
    let head = "HTTP/1.1 404 No\r\nTransfer-Encoding: chunked\r\nrolldrop-pod: web-1\r\n\r\n";
    expect(&mut client, &format!("{head}{body}")).await;

    // The app closes the idle connection, so the client's connection is closed.
    drop(server);
    expect_eof(&mut client).await;
    drop((client, app));
    let (lines, report) = proxy.end().await;
    let rows = served(&lines);
    assert_eq!(
        rows.iter().map(facts).collect::<Vec<_>>(),
        [(0, Some(200), ServedEnd::Complete, 0, true), (1, Some(404), ServedEnd::Complete, 0, false)]
    );
    for row in &rows {
        assert!(row.accepted <= row.head.unwrap() && row.head.unwrap() <= row.end);
    }
    assert_eq!(lines.last(), Some(&ProxyLine::End { recorded: 2 }));
    assert_eq!((report.connections, report.counts.handed_over), (1, 2));
}

#[tokio::test]
async fn interim_head_and_pipelined_answers_are_relayed() {
    let (app, address) = app().await;
    let proxy = Running::start_with(address, PodHeader::Omitted);
    let put =
        "PUT / HTTP/1.1\r\nrolldrop-id: run-load-0\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n";
    let (mut client, mut server) = proxy.asked(&app, put).await;
    server.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await.unwrap();
    expect(&mut client, "HTTP/1.1 100 Continue\r\n\r\n").await;
    let head = "HEAD / HTTP/1.1\r\nrolldrop-id: run-load-1\r\n\r\n";
    client.write_all(format!("hi{head}{}", get(2)).as_bytes()).await.unwrap();
    expect(&mut server, &format!("hi{head}{}", get(2))).await;
    let answers = "HTTP/1.1 204 None\r\n\r\n\
                   HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n\
                   HTTP/1.1 201 Made\r\nContent-Length: 0\r\n\r\n";
    server.write_all(answers.as_bytes()).await.unwrap();
    expect(&mut client, answers).await;
    drop(client);
    expect_eof(&mut server).await;
    drop((server, app));
    let rows = served(&proxy.end().await.0);
    assert_eq!(
        rows.iter().map(facts).collect::<Vec<_>>(),
        [
            (0, Some(204), ServedEnd::Complete, 0, true),
            (1, Some(200), ServedEnd::Complete, 0, false),
            (2, Some(201), ServedEnd::Complete, 0, false),
        ]
    );
}

#[tokio::test]
async fn upgraded_connection_becomes_tunnel() {
    let (app, address) = app().await;
    let proxy = Running::start(address);
    let ask = "GET /ws HTTP/1.1\r\nrolldrop-id: run-load-0\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n";
    let (mut client, mut server) = proxy.asked(&app, ask).await;
    server.write_all(b"HTTP/1.1 101 Go\r\nUpgrade: x\r\n\r\nfrom app").await.unwrap();
    expect(&mut client, "HTTP/1.1 101 Go\r\nUpgrade: x\r\nrolldrop-pod: web-1\r\n\r\nfrom app").await;
    client.write_all(b"no HTTP at all\r\n\r\n").await.unwrap();
    expect(&mut server, "no HTTP at all\r\n\r\n").await;
    drop(client);
    expect_eof(&mut server).await;
    drop((server, app));
    let rows = served(&proxy.end().await.0);
    assert_eq!(facts(&rows[0]), (0, Some(101), ServedEnd::Complete, 0, true));
}

#[tokio::test]
async fn h2c_upgrade_request_delays_no_bytes() {
    let (app, address) = app().await;
    let proxy = Running::start(address);
    let asks = [
        // The JDK's HttpClient, and curl --http2.
        "GET / HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n\r\n",
        // A request to switch without `Connection: Upgrade`, which must be ignored.
        "GET / HTTP/1.1\r\nUpgrade: websocket\r\n\r\n",
    ];
    for ask in asks {
        let (mut client, mut server) = proxy.asked(&app, ask).await;
        client.write_all(get(1).as_bytes()).await.unwrap();
        expect(&mut server, &get(1)).await;
        client.shutdown().await.unwrap();
        expect_eof(&mut server).await;
    }
    // An app may agree.
    let (mut client, mut server) = proxy.asked(&app, asks[0]).await;
    let agreed = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n";
    server.write_all(format!("{agreed}\r\n").as_bytes()).await.unwrap();
    expect(&mut client, &format!("{agreed}rolldrop-pod: web-1\r\n\r\n")).await;
    let preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    client.write_all(preface.as_bytes()).await.unwrap();
    expect(&mut server, preface).await;
}

#[tokio::test]
async fn client_close_reaches_app_during_pending_upgrade() {
    let (app, address) = app().await;
    let proxy = Running::start(address);
    let ask = "GET / HTTP/1.1\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\r\n";
    let (client, mut server) = proxy.asked(&app, ask).await;
    drop(client);
    expect_eof(&mut server).await;
    // Bytes sent before the response are held until it arrives, even if the client closes after sending them.
    let (mut client, mut server) = proxy.asked(&app, ask).await;
    client.write_all(b"frames").await.unwrap();
    client.shutdown().await.unwrap();
    server.write_all(b"HTTP/1.1 101 Yes\r\n\r\n").await.unwrap();
    expect(&mut server, "frames").await;
    expect_eof(&mut server).await;
}

#[tokio::test]
async fn client_close_reaches_app_after_unanswered_upgrade() {
    let (app, address) = app().await;
    let proxy = Running::start(address);
    let ask = "GET /ws HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n";
    let (mut client, mut server) = proxy.asked(&app, ask).await;
    server.shutdown().await.unwrap();
    expect_eof(&mut client).await;
    drop(client);
    expect_eof(&mut server).await;
}

#[tokio::test]
async fn refused_app_connection_resets_client() {
    let (app, address) = app().await;
    drop(app);
    let proxy = Running::start(address);
    let mut client = proxy.client().await;
    client.write_all(get(0).as_bytes()).await.unwrap();
    expect_reset(&mut client).await;
    let rows = served(&proxy.end().await.0);
    assert_eq!(facts(&rows[0]), (0, None, ServedEnd::UpstreamRefused, 0, true));
}

#[tokio::test]
async fn request_after_app_reset_gets_row() {
    let (app, address) = app().await;
    let proxy = Running::start(address);
    let mut client = proxy.client().await;
    // Like a connection in the accept queue of a closing listener.
    accept(&app).await.set_zero_linger().unwrap();
    client.write_all(get(0).as_bytes()).await.unwrap();
    expect_reset(&mut client).await;
    drop(app);
    let rows = served(&proxy.end().await.0);
    assert_eq!(facts(&rows[0]), (0, None, ServedEnd::UpstreamReset, 0, true));
}

#[tokio::test]
async fn truncated_response_ends_at_same_byte() {
    let (app, address) = app().await;
    let proxy = Running::start_with(address, PodHeader::Omitted);
    let cuts = [
        "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhell",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        "HTTP/1.1 200 OK\r\nConte",
        "",
    ];
    for (id, cut) in cuts.iter().enumerate() {
        let (mut client, mut server) = proxy.asked(&app, &get(id as u64)).await;
        server.write_all(cut.as_bytes()).await.unwrap();
        drop(server);
        assert_eq!(read_all(&mut client).await, *cut);
    }
    drop(app);
    let rows = served(&proxy.end().await.0);
    let expected = [Some(200), Some(200), None, None];
    for (id, (row, status)) in rows.iter().zip(expected).enumerate() {
        assert_eq!(facts(row), (id as u64, status, ServedEnd::UpstreamEof, id as u64, true));
    }
    assert_eq!(rows.len(), cuts.len());
}

#[tokio::test]
async fn close_delimited_response_is_complete() {
    let (app, address) = app().await;
    let proxy = Running::start_with(address, PodHeader::Omitted);
    let (mut client, mut server) = proxy.asked(&app, &get(0)).await;
    server.write_all(b"HTTP/1.0 200 OK\r\n\r\nall of it").await.unwrap();
    drop(server);
    assert_eq!(read_all(&mut client).await, "HTTP/1.0 200 OK\r\n\r\nall of it");
    // The close also ends chunks that do not follow the grammar.
    let (mut client, mut server) = proxy.asked(&app, &get(1)).await;
    let odd = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\nhi\n0\n\n";
    server.write_all(odd.as_bytes()).await.unwrap();
    drop(server);
    assert_eq!(read_all(&mut client).await, odd);
    drop(app);
    let rows = served(&proxy.end().await.0);
    let expected = [0, 1].map(|id| (id, Some(200), ServedEnd::Complete, id, true));
    assert_eq!(rows.iter().map(facts).collect::<Vec<_>>(), expected);
}

#[tokio::test]
async fn reset_is_relayed_in_both_directions() {
    let (app, address) = app().await;
    let proxy = Running::start_with(address, PodHeader::Omitted);

    let (mut client, mut server) = proxy.asked(&app, &get(0)).await;
    server.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhell").await.unwrap();
    expect(&mut client, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhell").await;
    server.set_zero_linger().unwrap();
    drop(server);
    expect_reset(&mut client).await;

    let (client, mut server) = proxy.asked(&app, &get(1)).await;
    client.set_zero_linger().unwrap();
    drop(client);
    expect_reset(&mut server).await;
    drop((server, app));
    let rows = served(&proxy.end().await.0);
    assert_eq!(facts(&rows[0]), (0, Some(200), ServedEnd::UpstreamReset, 0, true));
    assert_eq!(facts(&rows[1]), (1, None, ServedEnd::ClientGone, 1, true));
}

#[tokio::test]
async fn early_client_close_records_client_gone() {
    let (app, address) = app().await;
    let proxy = Running::start(address);
    let (client, mut server) = proxy.asked(&app, &get(0)).await;
    drop(client);
    expect_eof(&mut server).await;
    server.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await.unwrap();
    proxy.recorded(1).await;
    drop((server, app));
    let rows = served(&proxy.end().await.0);
    assert_eq!(rows[0].ended, ServedEnd::ClientGone);
}

#[tokio::test]
async fn request_after_app_close_is_reset() {
    let (app, address) = app().await;
    let proxy = Running::start_with(address, PodHeader::Omitted);
    let (mut client, mut server) = proxy.asked(&app, &get(0)).await;
    server.write_all(b"HTTP/1.1 204 None\r\n\r\n").await.unwrap();
    drop(server);
    assert_eq!(read_all(&mut client).await, "HTTP/1.1 204 None\r\n\r\n");
    client.write_all(get(1).as_bytes()).await.unwrap();
    proxy.recorded(2).await;
    within(client.ready(tokio::io::Interest::ERROR)).await.unwrap();
    drop(app);
    let rows = served(&proxy.end().await.0);
    assert_eq!(facts(&rows[1]), (1, None, ServedEnd::UpstreamEof, 0, false));
}

#[tokio::test]
async fn ambiguous_request_never_reaches_app() {
    let (app, address) = app().await;
    let proxy = Running::start(address);
    let mut client = proxy.client().await;
    let smuggled = "POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET ";
    client.write_all(smuggled.as_bytes()).await.unwrap();
    client.shutdown().await.unwrap();
    assert!(read_all(&mut client).await.starts_with("HTTP/1.1 400 "));
    assert_eq!(read_all(&mut accept(&app).await).await, "");
    drop(app);
    let (lines, report) = proxy.end().await;
    assert_eq!((served(&lines).len(), report.counts.rejected), (0, 1));
}

#[tokio::test]
async fn large_bodies_pass_full_duplex() {
    let (app, address) = app().await;
    let proxy = Running::start_with(address, PodHeader::Omitted);
    let client = proxy.client().await;
    let body: Vec<u8> = (0..4_000_000u32).map(|n| n.to_le_bytes()[0]).collect();
    let head = format!("POST / HTTP/1.1\r\nContent-Length: {}\r\n\r\n", body.len());
    let echo = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
    let server = tokio::spawn({
        let (head, echo) = (head.clone(), echo.clone());
        async move {
            let mut server = accept(&app).await;
            expect(&mut server, &head).await;
            server.write_all(echo.as_bytes()).await.unwrap();
            let (mut from, mut to) = server.split();
            tokio::io::copy(&mut from, &mut to).await.unwrap();
        }
    });
    let (mut from, mut to) = client.into_split();
    let sender = tokio::spawn({
        let body = body.clone();
        async move {
            to.write_all(head.as_bytes()).await.unwrap();
            to.write_all(&body).await.unwrap();
            // Kept open, because a client that closes before the response is complete counts as gone.
            to
        }
    });
    let mut received = vec![0; echo.len() + body.len()];
    within(from.read_exact(&mut received)).await.unwrap();
    assert!(received.starts_with(echo.as_bytes()) && received.ends_with(&body));
    drop((from, within(sender).await.unwrap()));
    within(server).await.unwrap();
    let rows = served(&proxy.end().await.0);
    assert_eq!((rows.len(), rows[0].ended, rows[0].request.clone()), (1, ServedEnd::Complete, None));
}

/// Returns true if the kernel sends keepalive probes on all local connections with this port; `None` if there are no
/// such connections.
fn are_kept_alive(port: u16) -> Option<bool> {
    let port_of = |address: &str| u16::from_str_radix(address.split_once(':')?.1, 16).ok();
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let timers = table.lines().skip(1).filter_map(|line| {
        let [_, local, _, state, _, timer, ..] = line.split_whitespace().collect::<Vec<_>>()[..] else {
            return None;
        };
        // Established, and the keepalive timer.
        (port_of(local) == Some(port) && state == "01").then(|| timer.starts_with("02:"))
    });
    timers.reduce(|all, one| all && one)
}

#[tokio::test]
async fn proxy_enables_keepalive_on_both_sides() {
    let (app, address) = app().await;
    let proxy = Running::start(address);
    let client = proxy.client().await;
    let server = accept(&app).await;
    // Check both connections of the proxy.
    for port in [proxy.data.port(), server.peer_addr().unwrap().port()] {
        within(async {
            while are_kept_alive(port) != Some(true) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }
    assert_eq!(
        are_kept_alive(client.local_addr().unwrap().port()),
        Some(false),
        "the client's own socket has no keepalive"
    );
}
