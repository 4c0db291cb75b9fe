//! What is not HTTP: connections that pass as bytes, and have one row each.

use super::*;
use crate::record::Protocol;

/// Protocol, end, and the bytes of client and app.
fn said(rows: &[ServedRow]) -> Vec<(Protocol, ServedEnd, u64, u64)> {
    let bytes = |row: &ServedRow| row.bytes_from_client.zip(row.bytes_from_app).unwrap();
    rows.iter().map(|row| (row.protocol, row.ended, bytes(row).0, bytes(row).1)).collect()
}

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
async fn tls_is_left_to_the_app() {
    let (app, address) = app().await;
    let proxy = Running::start(address);
    let mut client = proxy.client().await;
    let hello = "\u{16}\u{3}\u{1}\0\u{5}hello";
    client.write_all(hello.as_bytes()).await.unwrap();
    let mut server = accept(&app).await;
    expect(&mut server, hello).await;
    server.write_all(b"\x15\x03\x01\0\x02\x02\x28").await.unwrap();
    drop(server);
    expect(&mut client, "\u{15}\u{3}\u{1}\0\u{2}\u{2}(").await;
    expect_eof(&mut client).await;
    drop((client, app));
    let rows = served(&proxy.end().await.0);
    assert_eq!(said(&rows), [(Protocol::Tls, ServedEnd::Complete, 10, 7)]);
}
