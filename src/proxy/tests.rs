//! The proxy between raw clients and scripted apps, byte by byte.

mod http2;
mod smuggling;
mod tls;
mod transparency;
mod tunnel;

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::*;
use crate::record::wire::{ClockAnswer, ProxyLine};
use crate::record::{Protocol, ServedEnd, ServedRow};

/// Long enough for any step on a busy machine; only a failing test waits so long.
const DEADLINE: Duration = Duration::from_secs(20);

async fn within<T>(what: impl Future<Output = T>) -> T {
    timeout(DEADLINE, what).await.expect("the deadline passed")
}

const LOCAL: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

async fn app() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind(LOCAL).await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// A proxy that runs, and the means to end it.
struct Running {
    data: SocketAddr,
    admin: SocketAddr,
    stop: oneshot::Sender<()>,
    hurry: oneshot::Sender<()>,
    report: JoinHandle<Report>,
}

impl Running {
    fn start(upstream: SocketAddr) -> Self {
        Self::start_with(upstream, PodHeader::Added)
    }

    fn start_with(upstream: SocketAddr, pod_header: PodHeader) -> Self {
        Self::run(upstream, Mode::Http, pod_header)
    }

    fn start_mode(upstream: SocketAddr, mode: Mode) -> Self {
        Self::run(upstream, mode, PodHeader::Added)
    }

    fn run(upstream: SocketAddr, mode: Mode, pod_header: PodHeader) -> Self {
        let config = Config { mode, pod_header, ..Config::bare(upstream) };
        let proxy = Proxy::bind(config, Clock::start()).unwrap();
        let (data, admin) = (proxy.local_addr(), proxy.admin_addr());
        let (stop, stopped) = oneshot::channel::<()>();
        let (hurry, hurried) = oneshot::channel::<()>();
        let report = tokio::spawn(proxy.run(
            async {
                stopped.await.unwrap();
            },
            async {
                hurried.await.unwrap();
            },
        ));
        Self { data, admin, stop, hurry, report }
    }

    async fn client(&self) -> TcpStream {
        TcpStream::connect(self.data).await.unwrap()
    }

    /// A new client's connection, and the app's for it: this much was asked, and has come there.
    async fn asked(&self, app: &TcpListener, request: &str) -> (TcpStream, TcpStream) {
        let mut client = self.client().await;
        client.write_all(request.as_bytes()).await.unwrap();
        let mut server = accept(app).await;
        expect(&mut server, request).await;
        (client, server)
    }

    async fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(self.admin).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        read_all(&mut stream).await
    }

    async fn rows(&self) -> RowStream {
        self.rows_from(0).await
    }

    /// The first line that a reader gets.
    async fn hello(&self, query: &str) -> ProxyLine {
        self.rows_of(query).await.lines.remove(0)
    }

    async fn rows_from(&self, first: usize) -> RowStream {
        self.rows_of(&format!("from={first}")).await
    }

    async fn rows_of(&self, query: &str) -> RowStream {
        let mut stream = BufReader::new(TcpStream::connect(self.admin).await.unwrap());
        let request = format!("GET /rows?{query} HTTP/1.1\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let rows = RowStream { stream, lines: Vec::new() };
        within(rows.opened()).await
    }

    /// Waits until as many requests are recorded.
    async fn recorded(&self, count: u64) {
        within(async {
            loop {
                let metrics = self.get("/metrics").await;
                let sum: u64 = metrics
                    .lines()
                    .filter(|line| line.starts_with("rolldrop_proxy_requests_total"))
                    .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
                    .sum();
                if sum >= count {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }

    /// Ends the proxy and gives everything that it handed over. The app must be gone.
    async fn end(self) -> (Vec<ProxyLine>, Report) {
        let mut rows = self.rows().await;
        self.stop.send(()).unwrap();
        within(rows.read_to_end()).await;
        let lines = rows.lines;
        (lines, within(self.report).await.unwrap())
    }
}

/// A reader of the row stream.
struct RowStream {
    stream: BufReader<TcpStream>,
    lines: Vec<ProxyLine>,
}

impl RowStream {
    async fn opened(mut self) -> Self {
        let mut line = String::new();
        self.stream.read_line(&mut line).await.unwrap();
        assert_eq!(line, "HTTP/1.1 200 OK\r\n");
        self.next_line().await;
        self
    }

    /// Reads one line of the stream; what is no JSON is the framing around it.
    async fn next_line(&mut self) -> bool {
        loop {
            let mut line = String::new();
            if self.stream.read_line(&mut line).await.unwrap() == 0 {
                return false;
            }
            if line.starts_with('{') {
                self.lines.push(serde_json::from_str(&line).unwrap());
                return true;
            }
        }
    }

    async fn read_to_end(&mut self) {
        while self.next_line().await {}
    }
}

fn served(lines: &[ProxyLine]) -> Vec<ServedRow> {
    lines
        .iter()
        .filter_map(|line| match line {
            ProxyLine::Row(row) => Some(row.clone()),
            _ => None,
        })
        .collect()
}

fn phases(lines: &[ProxyLine]) -> Vec<ProxyPhase> {
    let mut phases: Vec<_> = lines
        .iter()
        .filter_map(|line| match line {
            ProxyLine::Phase { phase, .. } => Some(*phase),
            _ => None,
        })
        .collect();
    phases.sort();
    phases
}

async fn read_all(stream: &mut TcpStream) -> String {
    let mut text = String::new();
    within(stream.read_to_string(&mut text)).await.unwrap();
    text
}

/// Reads exactly what is expected, and shows what came instead.
async fn expect(stream: &mut TcpStream, expected: &str) {
    let mut bytes = vec![0; expected.len()];
    within(stream.read_exact(&mut bytes)).await.unwrap();
    assert_eq!(String::from_utf8(bytes).unwrap(), expected);
}

async fn expect_reset(stream: &mut TcpStream) {
    let mut bytes = [0; 64];
    let error = within(stream.read(&mut bytes)).await.expect_err("the connection was not reset");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

async fn expect_eof(stream: &mut TcpStream) {
    assert_eq!(within(stream.read(&mut [0; 64])).await.unwrap(), 0);
}

async fn accept(app: &TcpListener) -> TcpStream {
    within(app.accept()).await.unwrap().0
}

fn get(id: u64) -> String {
    format!("GET / HTTP/1.1\r\nHost: Web\r\nrolldrop-id: load-{id}\r\n\r\n")
}

/// Protocol, end, and the bytes of client and app.
fn said(rows: &[ServedRow]) -> Vec<(Protocol, ServedEnd, u64, u64)> {
    let bytes = |row: &ServedRow| row.bytes_from_client.zip(row.bytes_from_app).unwrap();
    rows.iter().map(|row| (row.protocol, row.ended, bytes(row).0, bytes(row).1)).collect()
}

/// Id, status, end, connection and whether it was the connection's first request.
fn facts(row: &ServedRow) -> (u64, Option<u16>, ServedEnd, u64, bool) {
    (row.request.as_ref().unwrap().seq, row.status, row.ended, row.conn, row.conn_first_request)
}

#[tokio::test]
async fn bytes_pass_as_they_are_and_connections_are_kept() {
    let (app, address) = app().await;
    let proxy = Running::start(address);
    let (mut client, mut server) = proxy.asked(&app, &get(0)).await;
    server.write_all(b"HTTP/1.1 200 Fine\r\nX-Odd:  Case \r\nContent-Length: 5\r\n\r\nhello").await.unwrap();
    expect(
        &mut client,
        "HTTP/1.1 200 Fine\r\nX-Odd:  Case \r\nContent-Length: 5\r\nrolldrop-pod: web-1\r\n\r\nhello",
    )
    .await;

    let chunked = "POST /a HTTP/1.1\r\nrolldrop-id: load-1\r\nTransfer-Encoding: chunked\r\n\r\n\
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

    // The app closes the idle connection, so the client's closes.
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
async fn interim_answers_head_and_pipelining_pass() {
    let (app, address) = app().await;
    let proxy = Running::start_with(address, PodHeader::Omitted);
    let put = "PUT / HTTP/1.1\r\nrolldrop-id: load-0\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n";
    let (mut client, mut server) = proxy.asked(&app, put).await;
    server.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await.unwrap();
    expect(&mut client, "HTTP/1.1 100 Continue\r\n\r\n").await;
    let head = "HEAD / HTTP/1.1\r\nrolldrop-id: load-1\r\n\r\n";
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
async fn an_upgraded_connection_is_a_tunnel() {
    let (app, address) = app().await;
    let proxy = Running::start(address);
    let ask = "GET /ws HTTP/1.1\r\nrolldrop-id: load-0\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n";
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
async fn an_upgrade_that_the_app_answers_by_closing_does_not_hide_that_the_client_closes() {
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
async fn a_gone_app_shows_as_a_reset_before_the_first_byte() {
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
async fn a_request_that_comes_after_the_apps_reset_has_its_row() {
    let (app, address) = app().await;
    let proxy = Running::start(address);
    let mut client = proxy.client().await;
    // As a connection in the accept queue of a listener that closes.
    accept(&app).await.set_zero_linger().unwrap();
    client.write_all(get(0).as_bytes()).await.unwrap();
    expect_reset(&mut client).await;
    drop(app);
    let rows = served(&proxy.end().await.0);
    assert_eq!(facts(&rows[0]), (0, None, ServedEnd::UpstreamReset, 0, true));
}

#[tokio::test]
async fn a_response_that_is_cut_is_cut_at_the_same_byte() {
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
async fn a_response_framed_by_close_is_complete() {
    let (app, address) = app().await;
    let proxy = Running::start_with(address, PodHeader::Omitted);
    let (mut client, mut server) = proxy.asked(&app, &get(0)).await;
    server.write_all(b"HTTP/1.0 200 OK\r\n\r\nall of it").await.unwrap();
    drop(server);
    assert_eq!(read_all(&mut client).await, "HTTP/1.0 200 OK\r\n\r\nall of it");
    drop(app);
    assert_eq!(facts(&served(&proxy.end().await.0)[0]), (0, Some(200), ServedEnd::Complete, 0, true));
}

#[tokio::test]
async fn a_reset_is_passed_on_in_both_directions() {
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
async fn a_client_that_closes_early_is_gone_whatever_the_app_answers() {
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
async fn a_request_on_a_connection_that_the_app_just_closed_is_reset() {
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
async fn an_ambiguous_request_is_refused_and_reaches_no_app() {
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
async fn a_large_body_passes_in_both_directions_at_once() {
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
            // Kept open: a client that closes before the answer is complete has gone.
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

#[tokio::test]
async fn the_phases_of_a_termination_are_seen() {
    let (app, address) = app().await;
    let proxy = Running::start(address);
    let (client, mut server) = proxy.asked(&app, &get(0)).await;
    for _ in 0..2 {
        assert!(proxy.get("/prestop").await.starts_with("HTTP/1.1 200 "));
    }
    let mut rows = proxy.rows().await;
    drop(app);
    within(async {
        while !phases(&rows.lines).contains(&ProxyPhase::ListenerClosed) && rows.next_line().await {}
    })
    .await;
    // A request in flight is waited for, though the listener has closed.
    proxy.stop.send(()).unwrap();
    within(async { while !phases(&rows.lines).contains(&ProxyPhase::Sigterm) && rows.next_line().await {} })
        .await;
    server.write_all(b"HTTP/1.1 204 None\r\n\r\n").await.unwrap();
    drop(server);
    within(rows.read_to_end()).await;
    use ProxyPhase::*;
    assert_eq!(
        phases(&rows.lines),
        [PreStop, ListenerClosed, Sigterm, LastConnection, LastRequest, Drained, Exit]
    );
    assert_eq!(facts(&served(&rows.lines)[0]), (0, Some(204), ServedEnd::Complete, 0, true));
    assert_eq!(rows.lines.last(), Some(&ProxyLine::End { recorded: 1 }));
    assert_eq!(within(proxy.report).await.unwrap().counts.handed_over, 1);
}

#[tokio::test]
async fn a_drain_in_a_hurry_cancels_what_is_in_flight() {
    let (app, address) = app().await;
    let proxy = Running::start(address);
    let (mut client, server) = proxy.asked(&app, &get(0)).await;
    let mut rows = proxy.rows().await;
    proxy.stop.send(()).unwrap();
    proxy.hurry.send(()).unwrap();
    expect_reset(&mut client).await;
    within(rows.read_to_end()).await;
    assert_eq!(facts(&served(&rows.lines)[0]), (0, None, ServedEnd::Cancelled, 0, true));
}

#[tokio::test]
async fn a_reader_that_breaks_off_and_comes_back_gets_every_row_once() {
    const ROWS: u64 = 300;
    let (app, address) = app().await;
    drop(app);
    let proxy = Running::start(address);
    for seq in 0..ROWS {
        let mut client = proxy.client().await;
        client.write_all(get(seq).as_bytes()).await.unwrap();
        expect_reset(&mut client).await;
    }
    proxy.recorded(ROWS).await;
    let mut taken = Vec::new();
    // All have been sent to the first reader; it goes away with the others unread.
    for wanted in [1, 120] {
        let mut reader = proxy.rows_from(taken.len()).await;
        while served(&reader.lines).len() < wanted {
            assert!(within(reader.next_line()).await);
        }
        taken.extend(served(&reader.lines));
    }
    let mut last = proxy.rows_from(taken.len()).await;
    let [ProxyLine::Hello { next: 121, started_ns, .. }] = last.lines[..] else { panic!("{:?}", last.lines) };
    // A number of another one's row says nothing: all that are kept are given.
    let other = proxy.hello(&format!("from=121&of={}", started_ns.unix_ns() + 1)).await;
    assert!(matches!(other, ProxyLine::Hello { next: 0, .. }), "{other:?}");
    let same = proxy.hello(&format!("from=121&of={}", started_ns.unix_ns())).await;
    assert!(matches!(same, ProxyLine::Hello { next: 121, .. }), "{same:?}");
    proxy.stop.send(()).unwrap();
    within(last.read_to_end()).await;
    taken.extend(served(&last.lines));
    let conns: Vec<_> = taken.iter().map(|row| row.conn).collect();
    assert_eq!(conns, (0..ROWS).collect::<Vec<_>>());
    let counts = within(proxy.report).await.unwrap().counts;
    assert_eq!((counts.handed_over, counts.dropped), (ROWS, 0));
}

#[tokio::test]
async fn the_admin_port_tells_clock_and_readiness() {
    let (app, address) = app().await;
    let proxy = Running::start(address);
    assert!(proxy.get("/healthz").await.starts_with("HTTP/1.1 200 "));
    assert!(proxy.get("/readyz").await.starts_with("HTTP/1.1 200 "));
    drop(app);
    assert!(proxy.get("/readyz").await.starts_with("HTTP/1.1 503 "));
    assert!(proxy.get("/nothing").await.starts_with("HTTP/1.1 404 "));
    assert!(proxy.get("/rows?from=x").await.starts_with("HTTP/1.1 400 "));
    let clock = proxy.get("/clock").await;
    let body = clock.split_once("\r\n\r\n").unwrap().1;
    assert!(serde_json::from_str::<ClockAnswer>(body).unwrap().now_ns > Stamp::from_unix_ns(0));
}

#[tokio::test]
async fn a_busy_port_and_a_bad_pod_name_are_clear_errors() {
    let (_app, address) = app().await;
    let config = Config { listen: address, ..Config::bare(address) };
    let error = Proxy::bind(config.clone(), Clock::start()).unwrap_err();
    assert_eq!(error.to_string(), format!("failed to listen on {address} (data port)"));
    let error = Proxy::bind(Config { pod: "a\r\nb".into(), ..config }, Clock::start()).unwrap_err();
    assert!(matches!(error, ProxyError::PodName(_)));
}
