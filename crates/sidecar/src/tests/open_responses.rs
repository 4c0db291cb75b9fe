//! Unfinished responses: their bytes are passed on immediately, and readers get a row before the response ends.

use std::io::ErrorKind::WouldBlock;

use super::*;
use rolldrop_wire::http2::{DATA, END_HEADERS, END_STREAM, FrameHeader, HEADERS, PREFACE, SETTINGS};

/// Maximum number of runtime turns before bytes written at one end must have arrived at the other.
const TURNS: usize = 100_000;

/// Repeats an attempt until it does not block. The runtime never becomes idle, so its paused clock stands still.
async fn at_once(mut attempt: impl FnMut() -> std::io::Result<usize>) -> usize {
    for _ in 0..TURNS {
        match attempt() {
            Err(error) if error.kind() == WouldBlock => tokio::task::yield_now().await,
            done => return done.unwrap(),
        }
    }
    panic!("nothing passed");
}

/// Passes bytes through the proxy, and returns once they have arrived.
async fn pass_at_once(from: &TcpStream, to: &TcpStream, bytes: &[u8]) {
    assert_eq!(at_once(|| from.try_write(bytes)).await, bytes.len());
    let mut got = Vec::new();
    while got.len() < bytes.len() {
        let mut piece = [0; 4096];
        let read = at_once(|| to.try_read(&mut piece)).await;
        got.extend_from_slice(&piece[..read]);
    }
    assert_eq!(got.escape_ascii().to_string(), bytes.escape_ascii().to_string());
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    [&FrameHeader { length: payload.len(), kind, flags, stream }.bytes()[..], payload].concat()
}

#[tokio::test(start_paused = true)]
async fn event_reaches_client_before_next_read_or_timer() {
    let http1 = |framing: &str| format!("HTTP/1.1 200 OK\r\n{framing}\r\n\r\n").into_bytes();
    // GET, http and /; then the status 200.
    let http2_head = [frame(SETTINGS, 0, 0, &[]), frame(HEADERS, END_HEADERS, 1, &[0x88])].concat();
    let http2_ask = frame(HEADERS, END_HEADERS | END_STREAM, 1, &[0x82, 0x86, 0x84]);
    let http2_ask = [PREFACE, &frame(SETTINGS, 0, 0, &[]), &http2_ask].concat();
    let upgrade = b"GET /ws HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
    let switch = b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
    let (head, event) = (get(1).into_bytes(), b"data: 1\n\n".to_vec());
    let chunk = [b"9\r\n", &event[..], b"\r\n"].concat();
    for (mode, ask, head, event) in [
        (TrafficMode::Http, head.clone(), http1("transfer-encoding: chunked"), chunk),
        (TrafficMode::Http, head.clone(), http1("content-length: 1000000"), event.clone()),
        (TrafficMode::Http, head, http1("connection: close"), event.clone()),
        (TrafficMode::Http, upgrade.to_vec(), switch.to_vec(), b"\x81\x02hi".to_vec()),
        (TrafficMode::Http, http2_ask, http2_head, frame(DATA, 0, 1, &event)),
        (TrafficMode::Tcp, b"ask".to_vec(), b"answer".to_vec(), event),
    ] {
        let (app, address) = app().await;
        let proxy = Running::run(address, mode, PodHeader::Omitted);
        let client = proxy.client().await;
        let server = app.accept().await.unwrap().0;
        let start = Instant::now();
        pass_at_once(&client, &server, &ask).await;
        pass_at_once(&server, &client, &head).await;
        for _ in 0..3 {
            pass_at_once(&server, &client, &event).await;
            // Parts of an event pass, too.
            let (first, last) = event.split_at(event.len() - 2);
            pass_at_once(&server, &client, first).await;
            pass_at_once(&server, &client, last).await;
        }
        assert_eq!(Instant::now(), start);
    }
}

/// Returns the rows of open responses among these lines.
fn open(lines: &[ProxyLine]) -> Vec<ServedRow> {
    let open = |line: &ProxyLine| match line {
        ProxyLine::Open(row) => Some(row.clone()),
        _ => None,
    };
    lines.iter().filter_map(open).collect()
}

#[tokio::test]
async fn response_is_listed_until_it_ends() {
    let (app, address) = app().await;
    let proxy = Running::start_with(address, PodHeader::Omitted);
    let (mut client, mut server) = proxy.asked(&app, &get(7)).await;
    // A request without a response is not listed, and neither is a response that has ended.
    let _waiting = proxy.asked(&app, &get(8)).await;
    let head = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n";
    let (mut other, mut other_server) = proxy.asked(&app, &get(9)).await;
    for (server, client, answer) in
        [(&mut server, &mut client, format!("{head}a")), (&mut other_server, &mut other, format!("{head}ab"))]
    {
        server.write_all(answer.as_bytes()).await.unwrap();
        expect(client, &answer).await;
    }
    let mut rows = proxy.rows().await;
    within(async { while served(&rows.lines).is_empty() && rows.next_line().await {} }).await;
    let listed = open(&rows.lines);
    let all: Vec<_> = listed.iter().map(facts).collect();
    assert_eq!(all, [(7, Some(200), ServedEnd::Open, 0, true)]);
    assert_eq!(&*listed[0].peer_addr, "", "the admin port is open to everyone");
    server.write_all(b"b").await.unwrap();
    within(async { while served(&rows.lines).len() < 2 && rows.next_line().await {} }).await;
    let ended = served(&rows.lines).remove(1);
    assert_eq!((facts(&ended), ended.key()), ((7, Some(200), ServedEnd::Complete, 0, true), listed[0].key()));
    let mut rows = proxy.rows().await;
    within(async { while served(&rows.lines).len() < 2 && rows.next_line().await {} }).await;
    assert_eq!(open(&rows.lines), []);
    let counts = proxy.get("/metrics").await;
    assert!(!counts.contains("outcome=\"open\""), "{counts}");
}

#[tokio::test]
async fn terminating_proxy_lists_responses_again() {
    let (app, address) = app().await;
    let proxy = Running::start(address);
    let mut rows = proxy.rows().await;
    let (mut client, mut server) = proxy.asked(&app, &get(7)).await;
    server.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n").await.unwrap();
    within(client.read_u8()).await.unwrap();
    proxy.call_pre_stop().await;
    within(async { while open(&rows.lines).len() < 2 && rows.next_line().await {} }).await;
    assert_eq!(served(&rows.lines), []);
}
