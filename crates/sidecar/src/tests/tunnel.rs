//! Non-HTTP connections, which are passed on as bytes and have one row each.

use futures::{SinkExt, StreamExt};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::{accept_async, client_async};

use super::*;
use rolldrop_wire::http2::{END_HEADERS, END_STREAM, FrameHeader, HEADERS, PREFACE};

#[tokio::test]
async fn tunnel_passes_greeting_and_half_closes() {
    let (app, address) = app().await;
    let proxy = Running::start_mode(address, TrafficMode::Tcp);
    let mut client = proxy.client().await;
    let mut server = accept(&app).await;
    server.write_all(b"220 ready").await.unwrap();
    expect(&mut client, "220 ready").await;
    client.write_all(b"QUIT").await.unwrap();
    client.shutdown().await.unwrap();
    expect(&mut server, "QUIT").await;
    expect_eof(&mut server).await;
    // The client has closed its side, but still reads.
    server.write_all(b"221 bye").await.unwrap();
    expect(&mut client, "221 bye").await;
    drop(server);
    expect_eof(&mut client).await;
    proxy.recorded(1).await;

    let mut client = proxy.client().await;
    let mut server = accept(&app).await;
    server.shutdown().await.unwrap();
    expect_eof(&mut client).await;
    client.write_all(b"still here").await.unwrap();
    expect(&mut server, "still here").await;
    drop(client);
    expect_eof(&mut server).await;
    drop((server, app));
    let rows = served(&proxy.end().await.0);
    assert_eq!(
        said(&rows),
        [(Protocol::Tcp, ServedEnd::Complete, 4, 16), (Protocol::Tcp, ServedEnd::Complete, 10, 0)]
    );
}

/// First bytes that clients of other protocols send.
const OTHERS: [&[u8]; 11] = [
    b"*1\r\n$4\r\nPING\r\n",                     // Redis
    b"PING\r\n",                                 // Redis, by hand
    b"\0\0\0\x08\x04\xd2\x16\x2f",               // Postgres, which asks for TLS
    b"\x29\0\0\0\x01\0\0\0\0\0\0\0\xdd\x07\0\0", // MongoDB
    b"AMQP\0\0\x09\x01",                         // RabbitMQ
    b"\0\0\0\x18\0\x12\0\x03\0\0\0\x01",         // Kafka
    b"\x10\x0c\0\x04MQTT\x04\x02\0\x3c\0\0",     // MQTT
    b"get key\r\n",                              // Memcached
    b"CONNECT\nhost:a\n\n\0",                    // STOMP
    b"SSH-2.0-client\r\n",
    b"EHLO_IS_A_WORD_LONGER_THAN_ANY_METHOD",
];

/// Bytes that apps send before their clients do: mail, MySQL, SSH, NATS.
const GREETINGS: [&[u8]; 4] =
    [b"220 mail ready\r\n", b"\x4a\0\0\0\x0a8.4.2\0", b"SSH-2.0-server\r\n", b"INFO {\"a\":1}\r\n"];

#[tokio::test]
async fn other_protocols_are_relayed_as_bytes() {
    let (app, address) = app().await;
    let proxy = Running::start(address);
    let mut expected = Vec::new();
    for said in OTHERS {
        let (mut client, mut server) = (proxy.client().await, accept(&app).await);
        client.write_all(said).await.unwrap();
        let mut got = vec![0; said.len()];
        within(server.read_exact(&mut got)).await.unwrap();
        assert_eq!(got, said);
        server.write_all(b"yes").await.unwrap();
        expect(&mut client, "yes").await;
        drop((client, server));
        expected.push((Protocol::Tcp, ServedEnd::Complete, said.len() as u64, 3));
        proxy.recorded(expected.len() as u64).await;
    }
    for said in GREETINGS {
        let (mut client, mut server) = (proxy.client().await, accept(&app).await);
        server.write_all(said).await.unwrap();
        let mut got = vec![0; said.len()];
        within(client.read_exact(&mut got)).await.unwrap();
        assert_eq!(got, said);
        client.write_all(b"hi").await.unwrap();
        expect(&mut server, "hi").await;
        drop((client, server));
        expected.push((Protocol::Tcp, ServedEnd::Complete, 2, said.len() as u64));
        proxy.recorded(expected.len() as u64).await;
    }
    drop(app);
    assert_eq!(said(&served(&proxy.end().await.0)), expected);
}

#[tokio::test]
async fn early_app_close_does_not_decide_protocol() {
    let (app, address) = app().await;
    let proxy = Running::start(address);
    let http2 = [
        PREFACE,
        &FrameHeader { length: 3, kind: HEADERS, flags: END_HEADERS | END_STREAM, stream: 1 }.bytes(),
        &[0x82, 0x86, 0x84],
    ]
    .concat();
    let firsts = [
        (&http2[..], Protocol::Http2),
        (b"\x16\x03\x01\0\x05hello", Protocol::Tls),
        (b"*1\r\n$4\r\nPING\r\n", Protocol::Tcp),
        (b"GET / HTTP/1.1\r\n\r\n", Protocol::Http1),
    ];
    for (first, _) in firsts {
        // The app accepts and closes, and the client sees the close before it speaks.
        let mut client = proxy.client().await;
        drop(accept(&app).await);
        expect_eof(&mut client).await;
        client.write_all(first).await.unwrap();
        within(proxy.no_connections()).await;
    }
    // A client that says nothing has no row.
    let mut client = proxy.client().await;
    drop(accept(&app).await);
    expect_eof(&mut client).await;
    within(proxy.no_connections()).await;
    drop((client, app));
    let (lines, report) = proxy.end().await;
    let ends: Vec<_> = served(&lines).iter().map(|row| (row.protocol, row.ended)).collect();
    assert_eq!(ends, firsts.map(|(_, protocol)| (protocol, ServedEnd::UpstreamEof)));
    assert_eq!(report.counts.with_unrecorded(), 4);
}

#[tokio::test]
async fn parser_skips_proxy_protocol_header() {
    let (app, address) = app().await;
    let proxy = Running::start_with(address, PodHeader::Omitted);
    let mut v2 = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c".to_vec();
    v2.extend([10, 0, 0, 1, 10, 0, 0, 2, 0x1f, 0x90, 0, 80]);
    let headers = [b"PROXY TCP4 10.0.0.1 10.0.0.2 8080 80\r\n".to_vec(), b"PROXY UNKNOWN\r\n".to_vec(), v2];
    let mut id = 0;
    for header in &headers {
        for piece in [usize::MAX, 1] {
            let all = [header.as_slice(), get(id).as_bytes()].concat();
            let (mut client, mut server) = (proxy.client().await, accept(&app).await);
            client.set_nodelay(true).unwrap();
            let pieces = async {
                for piece in all.chunks(piece.min(all.len())) {
                    client.write_all(piece).await.unwrap();
                    tokio::task::yield_now().await;
                }
            };
            let mut got = vec![0; all.len()];
            let (read, ()) = tokio::join!(within(server.read_exact(&mut got)), pieces);
            read.unwrap();
            assert_eq!(got, all);
            server.write_all(b"HTTP/1.1 204 None\r\n\r\n").await.unwrap();
            expect(&mut client, "HTTP/1.1 204 None\r\n\r\n").await;
            id += 1;
        }
    }
    drop(app);
    // Same if the app is gone.
    let mut client = proxy.client().await;
    client.write_all(&[headers[0].as_slice(), get(id).as_bytes()].concat()).await.unwrap();
    expect_reset(&mut client).await;
    let rows = served(&proxy.end().await.0);
    let ends: Vec<_> = rows.iter().map(|row| (row.request.as_ref().unwrap().seq, row.ended)).collect();
    let complete = (0..id).map(|id| (id, ServedEnd::Complete));
    assert_eq!(ends, complete.chain([(id, ServedEnd::UpstreamRefused)]).collect::<Vec<_>>());
}

#[tokio::test]
async fn tunnel_passes_resets_and_refused_connections() {
    let (app, address) = app().await;
    let proxy = Running::start_mode(address, TrafficMode::Tcp);
    let mut client = proxy.client().await;
    let server = accept(&app).await;
    server.set_zero_linger().unwrap();
    drop(server);
    expect_reset(&mut client).await;
    proxy.recorded(1).await;
    let client = proxy.client().await;
    let mut server = accept(&app).await;
    client.set_zero_linger().unwrap();
    drop(client);
    expect_reset(&mut server).await;
    proxy.recorded(2).await;
    drop(app);
    expect_reset(&mut proxy.client().await).await;
    let rows = served(&proxy.end().await.0);
    let ends: Vec<_> = rows.iter().map(|row| row.ended).collect();
    assert_eq!(ends, [ServedEnd::UpstreamReset, ServedEnd::ClientGone, ServedEnd::UpstreamRefused]);
}

#[tokio::test]
async fn websocket_is_relayed_from_handshake_to_close() {
    let (app, address) = app().await;
    let proxy = Running::start(address);
    let server = tokio::spawn(async move {
        let mut socket = accept_async(accept(&app).await).await.unwrap();
        socket.send(Message::Ping(b"there?".as_slice().into())).await.unwrap();
        let mut got = Vec::new();
        while let Some(Ok(message)) = socket.next().await {
            if message.is_text() || message.is_binary() {
                socket.send(message.clone()).await.unwrap();
            }
            got.push(message);
        }
        got
    });
    let url = format!("ws://{}/chat", proxy.data);
    let (mut socket, answer) = within(client_async(url, proxy.client().await)).await.unwrap();
    assert_eq!(
        (answer.status().as_u16(), &answer.headers()["rolldrop-pod"]),
        (101, &"web-1".parse().unwrap())
    );
    let messages = [Message::text("hello"), Message::binary(vec![7; 300_000]), Message::text("")];
    for message in &messages {
        socket.send(message.clone()).await.unwrap();
        let echo = within(async {
            loop {
                let got = socket.next().await.unwrap().unwrap();
                if !got.is_ping() {
                    break got;
                }
            }
        });
        assert_eq!(echo.await, *message);
    }
    let goodbye = CloseFrame { code: CloseCode::Away, reason: "bye".into() };
    socket.close(Some(goodbye.clone())).await.unwrap();
    assert_eq!(within(socket.next()).await.unwrap().unwrap(), Message::Close(Some(goodbye.clone())));
    assert!(within(socket.next()).await.is_none());
    drop(socket);
    let got = within(server).await.unwrap();
    let data: Vec<_> = got.iter().filter(|message| message.is_text() || message.is_binary()).collect();
    assert_eq!(data, messages.iter().collect::<Vec<_>>());
    assert!(got.contains(&Message::Pong(b"there?".as_slice().into())), "{}", got.len());
    assert_eq!(got.last(), Some(&Message::Close(Some(goodbye))));
    let rows = served(&proxy.end().await.0);
    let ends: Vec<_> = rows.iter().map(|row| (row.protocol, row.status, row.ended)).collect();
    assert_eq!(ends, [(Protocol::Http1, Some(101), ServedEnd::Complete)]);
}
