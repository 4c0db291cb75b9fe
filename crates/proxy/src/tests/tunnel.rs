//! What is not HTTP: connections that pass as bytes, and have one row each.

use futures::{SinkExt, StreamExt};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::{accept_async, client_async};

use super::*;

#[tokio::test]
async fn an_app_that_speaks_first_is_heard_and_sides_close_one_by_one() {
    let (app, address) = app().await;
    let proxy = Running::start_mode(address, Mode::Tcp);
    let mut client = proxy.client().await;
    let mut server = accept(&app).await;
    server.write_all(b"220 ready").await.unwrap();
    expect(&mut client, "220 ready").await;
    client.write_all(b"QUIT").await.unwrap();
    client.shutdown().await.unwrap();
    expect(&mut server, "QUIT").await;
    expect_eof(&mut server).await;
    // The client has closed its side, and still hears.
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

#[tokio::test]
async fn resets_pass_in_both_directions_and_a_gone_app_is_one() {
    let (app, address) = app().await;
    let proxy = Running::start_mode(address, Mode::Tcp);
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
async fn a_websocket_passes_from_handshake_to_close_code() {
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
