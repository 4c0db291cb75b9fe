//! HTTP/2 through the proxy: each end sees what the other sent, and each stream has its own row.

use ::h2::{Reason, client, server};
use bytes::Bytes;
use http::{HeaderMap, Request, Response};

use super::*;
use rolldrop_wire::http2::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, FrameHeader, GOAWAY, HEADERS, PADDED, PREFACE, PRIORITY,
    RST_STREAM, SETTINGS,
};

const WINDOW_UPDATE: u8 = 8;
const PING: u8 = 6;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    [&FrameHeader { length: payload.len(), kind, flags, stream }.bytes()[..], payload].concat()
}

/// Returns the field block of a request head with an id.
fn fields(seq: u64) -> Vec<u8> {
    // GET, http, /, and a host that enters the table.
    let mut block = vec![0x82, 0x86, 0x84, 0x41, 1, b'a'];
    block.extend(hpack::literal("rolldrop-id", &format!("run-load-{seq}")));
    block
}

async fn send(stream: &mut TcpStream, bytes: &[u8]) {
    within(stream.write_all(bytes)).await.unwrap();
}

async fn expect_bytes(stream: &mut TcpStream, expected: &[u8]) {
    let mut got = vec![0; expected.len()];
    within(stream.read_exact(&mut got)).await.unwrap();
    assert_eq!(got.escape_ascii().to_string(), expected.escape_ascii().to_string());
}

#[tokio::test]
async fn calls_are_relayed_with_trailers_and_recorded() {
    let (app, address) = app().await;
    let proxy = Running::start(address);
    let app = tokio::spawn(async move {
        let mut connection = server::handshake(accept(&app).await).await.unwrap();
        while let Some(request) = connection.accept().await {
            let (request, mut respond) = request.unwrap();
            let status = |code: &str| {
                let mut trailers = HeaderMap::new();
                trailers.insert("grpc-status", code.parse().unwrap());
                trailers
            };
            let head = Response::new(());
            match request.uri().path() {
                "/echo" => {
                    let mut body = request.into_body();
                    let mut to = respond.send_response(head, false).unwrap();
                    while let Some(data) = body.data().await {
                        let data = data.unwrap();
                        body.flow_control().release_capacity(data.len()).unwrap();
                        to.send_data(data, false).unwrap();
                    }
                    to.send_trailers(status("0")).unwrap();
                }
                "/trailers-only" => {
                    let mut head = head;
                    *head.headers_mut() = status("14");
                    respond.send_response(head, true).unwrap();
                }
                "/refused" => respond.send_reset(Reason::REFUSED_STREAM),
                path => panic!("{path}"),
            }
        }
    });
    let (sender, connection) = client::handshake(proxy.client().await).await.unwrap();
    let client = tokio::spawn(connection);
    let mut sender = sender.ready().await.unwrap();
    let mut ask = |path: &str, seq: u64, ends: bool| {
        let request =
            Request::post(format!("http://a{path}")).header("rolldrop-id", format!("run-load-{seq}"));
        sender.send_request(request.body(()).unwrap(), ends).unwrap()
    };
    let (echo, mut upload) = ask("/echo", 0, false);
    let (trailers_only, _) = ask("/trailers-only", 1, true);
    let (refused, _) = ask("/refused", 2, true);
    upload.send_data(Bytes::from_static(b"hello"), true).unwrap();
    let echo = within(echo).await.unwrap();
    assert_eq!(echo.headers()["rolldrop-pod"], "web-1");
    let mut body = echo.into_body();
    assert_eq!(within(body.data()).await.unwrap().unwrap(), "hello");
    let trailers = within(body.trailers()).await.unwrap().unwrap();
    assert_eq!((trailers.len(), trailers["grpc-status"].as_bytes()), (1, &b"0"[..]));
    let trailers_only = within(trailers_only).await.unwrap();
    assert_eq!(trailers_only.headers()["grpc-status"], "14");
    assert_eq!(trailers_only.headers()["rolldrop-pod"], "web-1");
    assert_eq!(within(refused).await.unwrap_err().reason(), Some(Reason::REFUSED_STREAM));
    drop((sender, upload, body, trailers_only));
    within(client).await.unwrap().unwrap();
    within(app).await.unwrap();
    let mut rows = served(&proxy.end().await.0);
    rows.sort_by_key(|row| row.stream);
    let said: Vec<_> = rows
        .iter()
        .map(|row| (row.stream, row.request.as_ref().unwrap().seq, row.status, row.grpc_status, row.ended))
        .collect();
    assert_eq!(
        said,
        [
            (Some(1), 0, Some(200), Some(0), ServedEnd::Complete),
            (Some(3), 1, Some(200), Some(14), ServedEnd::Complete),
            (Some(5), 2, None, None, ServedEnd::UpstreamReset),
        ]
    );
    assert_eq!(rows[2].detail.as_deref(), Some("REFUSED_STREAM"));
    let first: Vec<_> = rows.iter().map(|row| row.conn_first_request).collect();
    assert_eq!(first, [true, false, false]);
    assert!(rows.iter().all(|row| row.protocol == Protocol::Http2));
}

#[tokio::test]
async fn frames_pass_unchanged_however_split() {
    let (app, address) = app().await;
    let proxy = Running::start_with(address, PodHeader::Omitted);
    let block = fields(0);
    let (begin, rest) = block.split_at(4);
    // A head with padding and priority, in three frames, and a frame of an unknown type.
    let padded = [&[3, 0, 0, 0, 0, 7], begin, &[0, 0, 0]].concat();
    let from_client = [
        PREFACE.to_vec(),
        frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 9]),
        frame(HEADERS, PADDED | PRIORITY, 1, &padded),
        frame(CONTINUATION, 0, 1, &[]),
        frame(CONTINUATION, END_HEADERS, 1, rest),
        frame(DATA, PADDED | END_STREAM, 1, b"\x02hi\0\0"),
        frame(0x42, 0xff, 1, b"grease"),
        frame(PING, 0, 0, b"12345678"),
        frame(WINDOW_UPDATE, 0, 0, &[0, 0, 1, 0]),
    ]
    .concat();
    let from_app = [
        frame(SETTINGS, 0, 0, &[]),
        frame(SETTINGS, END_STREAM, 0, &[]),
        frame(HEADERS, END_HEADERS, 1, &hpack::literal(":status", "103")),
        frame(HEADERS, END_HEADERS, 1, &[0x89]),
        frame(DATA, 0, 1, &[b'x'; 20_000]),
        frame(HEADERS, END_HEADERS | END_STREAM, 1, &hpack::literal("grpc-status", "5")),
        frame(RST_STREAM, 0, 1, &[0; 4]),
        frame(PING, 1, 0, b"12345678"),
    ]
    .concat();
    for size in [1, 7, 8192] {
        let mut client = proxy.client().await;
        let mut server = accept(&app).await;
        pass(&mut client, &mut server, &from_client, size).await;
        pass(&mut server, &mut client, &from_app, size).await;
        client.shutdown().await.unwrap();
        expect_eof(&mut server).await;
        drop(server);
        expect_eof(&mut client).await;
    }
    drop(app);
    let rows = served(&proxy.end().await.0);
    let said: Vec<_> = rows
        .iter()
        .map(|row| (row.request.as_ref().unwrap().seq, row.status, row.grpc_status, row.ended))
        .collect();
    assert_eq!(said, [(0, Some(204), Some(5), ServedEnd::Complete); 3]);
}

/// Sends bytes in pieces, and checks that the other end reads the same bytes.
async fn pass(from: &mut TcpStream, to: &mut TcpStream, bytes: &[u8], size: usize) {
    let send = async {
        for piece in bytes.chunks(size) {
            send(from, piece).await;
        }
    };
    tokio::join!(send, expect_bytes(to, bytes));
}

#[tokio::test]
async fn pod_header_respects_default_frame_size() {
    let (app, address) = app().await;
    let proxy = Running::start(address);
    let mut client = proxy.client().await;
    let mut server = accept(&app).await;
    let ask =
        [PREFACE, &frame(SETTINGS, 0, 0, &[]), &frame(HEADERS, END_HEADERS | END_STREAM, 1, &fields(0))]
            .concat();
    pass(&mut client, &mut server, &ask, 8192).await;
    let pod = hpack::literal("rolldrop-pod", "web-1");
    let long = [&[0x88][..], &hpack::literal("x", &"v".repeat(16_370))].concat();
    send(&mut server, &frame(HEADERS, END_HEADERS | END_STREAM, 1, &long)).await;
    let expected = [frame(HEADERS, END_STREAM, 1, &long), frame(CONTINUATION, END_HEADERS, 1, &pod)].concat();
    expect_bytes(&mut client, &expected).await;

    send(&mut client, &frame(HEADERS, END_HEADERS | END_STREAM, 3, &fields(1))).await;
    // Interim heads are left unchanged, and padding stays after the fields.
    send(&mut server, &frame(HEADERS, END_HEADERS, 3, &hpack::literal(":status", "103"))).await;
    send(&mut server, &frame(HEADERS, PADDED | END_HEADERS, 3, &[2, 0x88, 0, 0])).await;
    send(&mut server, &frame(DATA, END_STREAM, 3, b"x")).await;
    let expected = [
        frame(HEADERS, END_HEADERS, 3, &hpack::literal(":status", "103")),
        frame(HEADERS, PADDED | END_HEADERS, 3, &[&[2, 0x88], &pod[..], &[0, 0]].concat()),
        frame(DATA, END_STREAM, 3, b"x"),
    ]
    .concat();
    expect_bytes(&mut client, &expected).await;
    drop((client, server, app));
    assert_eq!(served(&proxy.end().await.0).len(), 2);
}

#[tokio::test]
async fn rows_distinguish_stream_and_connection_ends() {
    let (app, address) = app().await;
    let proxy = Running::start(address);
    let mut client = proxy.client().await;
    let mut server = accept(&app).await;
    let mut ask = [PREFACE.to_vec(), frame(SETTINGS, 0, 0, &[])].concat();
    for stream in [1, 3, 5, 7] {
        ask.extend(frame(HEADERS, END_HEADERS | END_STREAM, stream, &fields(stream.into())));
    }
    pass(&mut client, &mut server, &ask, 8192).await;
    // The client gives up one stream, the app skips one, and cuts off two.
    let gives_up = frame(RST_STREAM, 0, 1, &8u32.to_be_bytes());
    pass(&mut client, &mut server, &gives_up, 8192).await;
    let goaway = frame(GOAWAY, 0, 0, &[&5u32.to_be_bytes()[..], &11u32.to_be_bytes()].concat());
    let answer = [goaway, frame(HEADERS, END_HEADERS, 3, &[0x88])].concat();
    send(&mut server, &answer).await;
    drop(server);
    let mut got = Vec::new();
    within(client.read_to_end(&mut got)).await.unwrap();
    drop((client, app));
    let mut rows = served(&proxy.end().await.0);
    rows.sort_by_key(|row| row.stream);
    let said: Vec<_> = rows
        .iter()
        .map(|row| (row.stream.unwrap(), row.status, row.ended, row.detail.as_deref().unwrap()))
        .collect();
    let goaway = "GOAWAY ENHANCE_YOUR_CALM";
    assert_eq!(
        said,
        [
            (1, None, ServedEnd::ClientGone, "CANCEL"),
            (3, Some(200), ServedEnd::UpstreamEof, goaway),
            (5, None, ServedEnd::UpstreamEof, goaway),
            (7, None, ServedEnd::UpstreamEof, goaway),
        ]
    );
}

#[tokio::test]
async fn refused_app_connection_resets_client() {
    let (app, address) = app().await;
    drop(app);
    let proxy = Running::start(address);
    let mut client = proxy.client().await;
    let ask =
        [PREFACE, &frame(SETTINGS, 0, 0, &[]), &frame(HEADERS, END_HEADERS | END_STREAM, 1, &fields(9))]
            .concat();
    send(&mut client, &ask).await;
    expect_reset(&mut client).await;
    let rows = served(&proxy.end().await.0);
    assert_eq!(facts(&rows[0]), (9, None, ServedEnd::UpstreamRefused, 0, true));
}

#[tokio::test]
async fn unreadable_header_block_passes_without_id() {
    let (app, address) = app().await;
    let proxy = Running::start(address);
    let mut client = proxy.client().await;
    let mut server = accept(&app).await;
    // An index that is not in any table. Nothing after it can be read, but each stream still begins and ends.
    let ask = [
        PREFACE,
        &frame(HEADERS, END_HEADERS | END_STREAM, 1, &[0xff, 0xff, 0x7f]),
        &frame(HEADERS, END_HEADERS | END_STREAM, 3, &fields(0)),
        &frame(HEADERS, END_HEADERS | END_STREAM, 5, &fields(1)),
    ]
    .concat();
    pass(&mut client, &mut server, &ask, 8192).await;
    let answer = [
        frame(HEADERS, END_HEADERS, 1, &[0xbf]),
        frame(DATA, END_STREAM, 1, b"x"),
        frame(HEADERS, END_HEADERS, 3, &[0x88]),
        frame(DATA, 0, 3, b"x"),
        frame(HEADERS, END_HEADERS | END_STREAM, 3, &hpack::literal("grpc-status", "0")),
        frame(HEADERS, END_HEADERS | END_STREAM, 5, &[0x89]),
    ]
    .concat();
    pass(&mut server, &mut client, &answer, 8192).await;
    drop((client, server, app));
    let rows = served(&proxy.end().await.0);
    let said: Vec<_> =
        rows.iter().map(|row| (row.stream, row.request.is_some(), row.status, row.ended)).collect();
    let expected = [1, 3, 5].map(|stream| (Some(stream), false, None, ServedEnd::Complete));
    assert_eq!(said, expected);
}
