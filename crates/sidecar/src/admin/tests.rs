//! Tests of the admin port's connection limit and access control.

use std::net::{Ipv4Addr, SocketAddr};

use futures::FutureExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, timeout};
use tower::ServiceExt;

use super::super::origin::RowOrigin;
use super::super::{Budget, ProxyConfig};
use super::*;
use rolldrop_record::{Clock, Protocol, ServedEnd};

/// Long enough for any step on a busy machine; only a failing test waits this long.
const DEADLINE: Duration = Duration::from_secs(120);
const LOCAL: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Returns the admin port of a proxy in front of this app.
fn port(app: SocketAddr) -> AdminPort {
    AdminPort {
        shared: Arc::new(ProxyState::new(&ProxyConfig::bare(app), Clock::start())),
        app_ready_path: Some("/ready".into()),
        addresses: AddressDisclosure::Told,
        told_all: Arc::default(),
    }
}

fn asking(path: &str, token: Option<&str>) -> Request<()> {
    let mut request = Request::get(path);
    if let Some(token) = token {
        request = request.header(TOKEN_HEADER, token);
    }
    request.body(()).unwrap()
}

/// Returns an admin port with these limits, which serves until the set is dropped.
async fn serving(limits: AdminLimits) -> (SocketAddr, JoinSet<()>) {
    let listener = TcpListener::bind(LOCAL).await.unwrap();
    let address = listener.local_addr().unwrap();
    let settings = AdminSettings { app_ready_path: None, access: Access::Everybody, limits };
    let mut tasks = JoinSet::new();
    tasks.spawn(serve(listener, port(address).shared, settings));
    (address, tasks)
}

async fn connected(address: SocketAddr, say: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(say).await.unwrap();
    stream
}

/// Returns everything that the admin port sends before it closes.
async fn answer(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    // A reset also ends the stream.
    let _ = timeout(DEADLINE, stream.read_to_end(&mut text)).await.expect("the deadline passed");
    String::from_utf8(text).unwrap()
}

#[tokio::test]
async fn admin_port_limits_concurrent_requests() {
    // The app accepts connections, but never responds.
    let app = TcpListener::bind(LOCAL).await.unwrap();
    let port = port(app.local_addr().unwrap());
    let layers = layers(&Access::Everybody, 2);
    let ask = |path: &str| Box::pin(port.layered::<()>(&layers).oneshot(asking(path, None)));
    let [mut first, mut second] = [(); 2].map(|()| ask(READY_PATH));
    assert!((&mut first).now_or_never().is_none() && (&mut second).now_or_never().is_none());
    let mut third = ask(HEALTH_PATH);
    assert!((&mut third).now_or_never().is_none(), "a third request was answered");
    drop(first);
    assert_eq!(timeout(DEADLINE, third).await.unwrap().unwrap().status(), StatusCode::OK);
}

#[tokio::test]
async fn admin_port_enforces_access_mode() {
    let port = port(LOCAL);
    let token = || "s3cret".parse().unwrap();
    for (access, anybody, holder) in [
        (Access::Everybody, StatusCode::OK, StatusCode::OK),
        (Access::Holders(token()), StatusCode::UNAUTHORIZED, StatusCode::OK),
        (Access::Nobody, StatusCode::UNAUTHORIZED, StatusCode::UNAUTHORIZED),
    ] {
        let layers = layers(&access, 2);
        let status = async |path, token| {
            port.layered::<()>(&layers).oneshot(asking(path, token)).await.unwrap().status()
        };
        assert_eq!(status(HEALTH_PATH, None).await, StatusCode::OK, "{access:?}");
        for path in [CLOCK_PATH, ROWS_PATH, "/metrics"] {
            assert_eq!(status(path, None).await, anybody, "{access:?} {path}");
            assert_eq!(status(path, Some("s3cret")).await, holder, "{access:?} {path}");
        }
    }
}

#[tokio::test]
async fn idle_connections_do_not_block_others() {
    let (address, _tasks) = serving(AdminLimits { connections: 2, ..AdminLimits::default() }).await;
    let asks = b"GET /healthz HTTP/1.1\r\nconnection: close\r\n\r\n";
    let mut longest = connected(address, b"").await;
    let mut reader = connected(address, b"GET /rows HTTP/1.1\r\n\r\n").await;
    let mut byte = [0; 1];
    timeout(DEADLINE, reader.read_exact(&mut byte)).await.expect("no row arrived in time").unwrap();
    // A connection with an incomplete head is idle too; one that is getting a response is not.
    for _ in 0..3 {
        let said = answer(&mut connected(address, asks).await).await;
        assert!(said.starts_with("HTTP/1.1 200 "), "{said}");
        longest = match answer(&mut longest).await.as_str() {
            "" => connected(address, b"GET /hea").await,
            said => panic!("{said}"),
        };
    }
    assert!(reader.try_read(&mut byte).is_ok_and(|read| read > 0), "the row reader lost its connection");
}

#[tokio::test]
async fn admin_port_limits_request_heads() {
    let limits =
        AdminLimits { head_bytes: 1000, head_time: Duration::from_millis(50), ..AdminLimits::default() };
    let (address, _tasks) = serving(limits).await;
    let head = |bytes: usize| {
        let field = "x".repeat(bytes);
        format!("GET /healthz HTTP/1.1\r\nconnection: close\r\nfield: {field}\r\n\r\n").into_bytes()
    };
    for (bytes, status) in [(900, "HTTP/1.1 200 "), (1000, "HTTP/1.1 431 ")] {
        let said = answer(&mut connected(address, &head(bytes)).await).await;
        assert!(said.starts_with(status), "{bytes}: {said}");
    }
    // The port waits for neither incomplete requests nor silent connections.
    for begun in [&b"GET /healthz HT"[..], b""] {
        let said = answer(&mut connected(address, begun).await).await;
        assert!(!said.starts_with("HTTP/1.1 200 "), "{said}");
    }
}

#[tokio::test]
async fn onlookers_leave_rows_to_collector() {
    let listener = TcpListener::bind(LOCAL).await.unwrap();
    let address = listener.local_addr().unwrap();
    let shared = port(address).shared;
    let limits = AdminLimits::default();
    let settings = AdminSettings { app_ready_path: None, access: Access::Everybody, limits };
    let mut tasks = JoinSet::new();
    tasks.spawn(serve(listener, shared.clone(), settings));
    let onlook = b"GET /rows HTTP/1.1\r\n\r\n";
    let collect = format!("GET /rows HTTP/1.1\r\n{COLLECTOR_HEADER}: true\r\n\r\n");
    let origin = RowOrigin::new(shared.clone(), LOCAL, shared.started, 0);
    let mut onlooker = connected(address, onlook).await;
    for is_collecting in [false, true] {
        shared.journal.row(origin.row(Protocol::Http1, ServedEnd::Complete));
        let mut reader = connected(address, if is_collecting { collect.as_bytes() } else { onlook }).await;
        let mut byte = [0; 1];
        timeout(DEADLINE, reader.read_exact(&mut byte)).await.expect("no row arrived in time").unwrap();
    }
    shared.journal.close();
    let said = answer(&mut onlooker).await;
    assert!(said.contains(r#"{"end":{"recorded":2}}"#), "{said}");
    drop(onlooker);
    assert!(shared.journal.handed_over().now_or_never().is_none(), "the collector may come back");
    let said = answer(&mut connected(address, collect.as_bytes()).await).await;
    assert!(said.contains(r#"{"end":{"recorded":2}}"#), "{said}");
    timeout(DEADLINE, tasks.join_next()).await.expect("the deadline passed");
    assert_eq!(shared.journal.counts().handed_over, 2);
}

#[tokio::test]
async fn onlooker_takes_no_row_and_delays_no_exit() {
    let shared = port(LOCAL).shared;
    let origin = RowOrigin::new(shared.clone(), LOCAL, shared.started, 0);
    shared.journal.row(origin.row(Protocol::Http1, ServedEnd::Complete));
    let mut body = rows(shared.clone(), 0, AddressDisclosure::Told, None).into_body();
    assert!(body.frame().await.is_some_and(|frame| frame.is_ok()));
    shared.journal.close();
    assert!(shared.journal.handed_over().now_or_never().is_some(), "nobody collects");
    while body.frame().await.is_some() {}
    assert_eq!(shared.journal.counts().handed_over, 0);
}

/// Written without pauses, the batches of a busy second delay all requests that arrive at the same time.
#[tokio::test(start_paused = true)]
async fn port_pauses_between_batches_of_short_backlogs() {
    // More rows than this wait only for a reader that is behind.
    for (waiting, pauses, is_ending) in [(500, 9, false), (500, 0, true), (5_000, 20, false)] {
        let config = ProxyConfig { budget: Budget::DEFAULT, ..ProxyConfig::bare(LOCAL) };
        let shared = Arc::new(ProxyState::new(&config, Clock::start()));
        let origin = RowOrigin::new(shared.clone(), LOCAL, shared.started, 0);
        (0..waiting).for_each(|_| shared.journal.row(origin.row(Protocol::Http1, ServedEnd::Complete)));
        if is_ending {
            shared.ending.cancel();
        }
        let mut body = rows(shared, 0, AddressDisclosure::Told, Some(Arc::default())).into_body();
        let began = Instant::now();
        for _ in 0..waiting / BATCH_ROWS {
            assert!(body.frame().await.is_some_and(|frame| frame.is_ok()));
        }
        assert_eq!(began.elapsed(), pauses * BATCH_PAUSE, "{waiting} rows");
    }
}
