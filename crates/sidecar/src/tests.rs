//! The proxy between raw clients and scripted apps, byte by byte.

mod budget;
mod handover;
mod http1;
mod http2;
mod open_responses;
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
use rolldrop_record::wire::{COLLECTOR_HEADER, ProxyLine};
use rolldrop_record::{Protocol, ServedEnd, ServedRow};

/// Long enough for any step on a busy machine; only a failing test waits this long.
const DEADLINE: Duration = Duration::from_secs(120);

async fn within<T>(what: impl Future<Output = T>) -> T {
    timeout(DEADLINE, what).await.expect("the deadline passed")
}

const LOCAL: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

async fn app() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind(LOCAL).await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// A running proxy, with the means to stop it.
struct Running {
    data: SocketAddr,
    admin: SocketAddr,
    stop: oneshot::Sender<()>,
    hurry: oneshot::Sender<()>,
    report: JoinHandle<ProxyReport>,
}

impl Running {
    fn start(upstream: SocketAddr) -> Self {
        Self::start_with(upstream, PodHeader::Added)
    }

    fn start_with(upstream: SocketAddr, pod_header: PodHeader) -> Self {
        Self::run(upstream, TrafficMode::Http, pod_header)
    }

    fn start_mode(upstream: SocketAddr, mode: TrafficMode) -> Self {
        Self::run(upstream, mode, PodHeader::Added)
    }

    fn run(upstream: SocketAddr, mode: TrafficMode, pod_header: PodHeader) -> Self {
        Self::start_as(ProxyConfig { mode, pod_header, ..ProxyConfig::bare(upstream) })
    }

    fn start_as(config: ProxyConfig) -> Self {
        Self::of(Proxy::bind(config, Clock::start()).unwrap())
    }

    fn of(proxy: Proxy) -> Self {
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

    /// Returns a new client connection and the corresponding app connection, after the client has sent this text and
    /// the app has received it.
    async fn asked(&self, app: &TcpListener, request: &str) -> (TcpStream, TcpStream) {
        let mut client = self.client().await;
        client.write_all(request.as_bytes()).await.unwrap();
        let mut server = accept(app).await;
        expect(&mut server, request).await;
        (client, server)
    }

    /// Runs the preStop hook, in this process.
    async fn call_pre_stop(&self) {
        let admin = self.admin;
        within(tokio::task::spawn_blocking(move || mark_pre_stop(admin))).await.unwrap().unwrap();
    }

    async fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(self.admin).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        read_all(&mut stream).await
    }

    /// Returns the value of a metric without labels.
    async fn metric(&self, name: &str) -> usize {
        let metrics = self.get("/metrics").await;
        let value = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.expect("a metric").parse().unwrap()
    }

    async fn rows(&self) -> RowStream {
        self.rows_from(0).await
    }

    /// Returns the first line that a reader gets.
    async fn hello(&self, query: &str) -> ProxyLine {
        self.rows_of(query).await.lines.remove(0)
    }

    async fn rows_from(&self, first: usize) -> RowStream {
        self.rows_of(&format!("from={first}")).await
    }

    async fn rows_of(&self, query: &str) -> RowStream {
        let mut stream = BufReader::new(TcpStream::connect(self.admin).await.unwrap());
        let request = format!("GET /rows?{query} HTTP/1.1\r\n{COLLECTOR_HEADER}: true\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let rows = RowStream { stream, lines: Vec::new() };
        within(rows.opened()).await
    }

    /// Waits until this many requests have been recorded.
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

    /// Waits until no client connection is left.
    async fn no_connections(&self) {
        while self.metric("rolldrop_proxy_connections").await > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Stops the proxy and returns everything that it handed over. The app must be gone.
    async fn end(self) -> (Vec<ProxyLine>, ProxyReport) {
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

    /// Reads one line of the stream; non-JSON lines are HTTP framing.
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

/// Reads the expected bytes, and shows the actual ones if they differ.
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
    format!("GET / HTTP/1.1\r\nHost: Web\r\nrolldrop-id: run-load-{id}\r\n\r\n")
}

/// Returns each row's protocol, end, and bytes from client and app.
fn said(rows: &[ServedRow]) -> Vec<(Protocol, ServedEnd, u64, u64)> {
    let bytes = |row: &ServedRow| row.bytes_from_client.zip(row.bytes_from_app).unwrap();
    rows.iter().map(|row| (row.protocol, row.ended, bytes(row).0, bytes(row).1)).collect()
}

/// Returns the id, status, end, connection, and a flag for the connection's first request.
fn facts(row: &ServedRow) -> (u64, Option<u16>, ServedEnd, u64, bool) {
    (row.request.as_ref().unwrap().seq, row.status, row.ended, row.conn, row.conn_first_request)
}

/// A process that a test starts holds the listeners of all other tests until it runs its program.
#[test]
fn snapshot_tests_start_no_process() {
    assert!(std::env::var_os("INSTA_WORKSPACE_ROOT").is_some(), ".cargo/config.toml sets it");
}

#[tokio::test]
async fn dual_stack_proxy_serves_all_addresses() {
    let (app, address) = app().await;
    let also_listen = ["[::1]:0", "127.0.0.1:0"].map(|address| address.parse().unwrap()).into();
    let proxy =
        Proxy::bind(ProxyConfig { also_listen, ..ProxyConfig::bare(address) }, Clock::start()).unwrap();
    let addresses: Vec<SocketAddr> = proxy.data.iter().map(|data| data.local_addr().unwrap()).collect();
    assert_eq!((addresses.len(), addresses[0]), (3, proxy.local_addr()));
    let mut proxy = Running::of(proxy);
    for address in addresses.into_iter().rev() {
        proxy.data = address;
        proxy.asked(&app, &get(0)).await;
    }
}

#[tokio::test]
async fn bind_rejects_busy_port_and_bad_pod_name() {
    let (_app, address) = app().await;
    let config = ProxyConfig { listen: address, ..ProxyConfig::bare(address) };
    let error = Proxy::bind(config.clone(), Clock::start()).unwrap_err();
    assert_eq!(error.to_string(), format!("failed to listen on {address} (data port)"));
    let error = Proxy::bind(ProxyConfig { pod: "a\r\nb".into(), ..config }, Clock::start()).unwrap_err();
    assert!(matches!(error, ProxyError::PodName(_)));
}
