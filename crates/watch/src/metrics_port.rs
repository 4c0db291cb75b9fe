//! The port of `rolldrop watch --metrics`: an HTTP server beside the watch.
//!
//! The watch renders the metrics when it has time, at most once a tick for each format. A scraper waits for that; the
//! watch never waits for a scraper.

use std::convert::Infallible;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, ALLOW, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::error::{Result, WatchError};
use rolldrop_record::metrics_text::MetricsFormat;

/// Maximum number of connections; further ones wait.
const CONNECTIONS: usize = 16;
/// Maximum duration of a connection, which serves one request.
const CONNECTION_TIME: Duration = Duration::from_secs(10);
/// Pause after a failed accept, to avoid a busy loop when descriptors run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Path of the metrics.
const PATH: &str = "/metrics";

/// A scraper that waits for the metrics.
struct Scrape {
    format: MetricsFormat,
    respond: oneshot::Sender<Bytes>,
}

/// An open port.
pub struct MetricsPort {
    pub(crate) address: SocketAddr,
    scrapes: mpsc::Receiver<Scrape>,
    /// The server, which stops when this is dropped.
    _server: JoinSet<()>,
}

impl MetricsPort {
    /// Opens the port. `[::]` stands for all addresses, also on a machine that has no IPv6.
    ///
    /// # Errors
    /// Fails if the address cannot be bound.
    pub async fn open(address: SocketAddr) -> Result<Self> {
        let failed = |source| WatchError::MetricsPort { address, source };
        let bound = TcpListener::bind(address).await;
        let listener = match everywhere_in_v4(address, &bound) {
            Some(in_v4) => TcpListener::bind(in_v4).await,
            None => bound,
        }
        .map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let (sender, scrapes) = mpsc::channel(CONNECTIONS);
        let mut server = JoinSet::new();
        server.spawn(serve(listener, sender));
        Ok(Self { address, scrapes, _server: server })
    }

    /// Responds to the scrapers that are waiting, with one rendering for each format.
    pub(crate) fn respond(&mut self, mut render: impl FnMut(MetricsFormat) -> String) {
        let (mut prometheus, mut open_metrics) = (None, None);
        while let Ok(Scrape { format, respond }) = self.scrapes.try_recv() {
            let rendered = match format {
                MetricsFormat::Prometheus => &mut prometheus,
                MetricsFormat::OpenMetrics => &mut open_metrics,
            };
            let rendered = rendered.get_or_insert_with(|| Bytes::from(render(format)));
            // The scraper may have left.
            let _ = respond.send(rendered.clone());
        }
    }
}

/// Returns all IPv4 addresses in place of all addresses, if those could not be bound for lack of IPv6.
fn everywhere_in_v4<T>(address: SocketAddr, bound: &io::Result<T>) -> Option<SocketAddr> {
    let has_failed = bound.as_ref().is_err_and(|error| error.kind() != ErrorKind::AddrInUse);
    let is_everywhere = address.ip() == Ipv6Addr::UNSPECIFIED;
    (has_failed && is_everywhere).then(|| (Ipv4Addr::UNSPECIFIED, address.port()).into())
}

/// Accepts connections; open ones are closed when this future is dropped.
async fn serve(listener: TcpListener, scrapes: mpsc::Sender<Scrape>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < CONNECTIONS => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(timeout(CONNECTION_TIME, serve_connection(stream, scrapes.clone())));
                }
                Err(error) => {
                    tracing::warn!(%error, "failed to accept a connection for metrics");
                    sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve_connection(stream: TcpStream, scrapes: mpsc::Sender<Scrape>) {
    let service = service_fn(|request: Request<Incoming>| async {
        let (head, _) = request.into_parts();
        Ok::<_, Infallible>(response(&head.method, head.uri.path(), &head.headers, &scrapes).await)
    });
    let mut server = http1::Builder::new();
    // The whole connection has a time limit.
    server.header_read_timeout(None).keep_alive(false);
    if let Err(error) = server.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(%error, "a connection for metrics ended");
    }
}

async fn response(
    method: &Method,
    path: &str,
    headers: &HeaderMap,
    scrapes: &mpsc::Sender<Scrape>,
) -> Response<Full<Bytes>> {
    if path != PATH {
        return text(StatusCode::NOT_FOUND, "use /metrics\n");
    }
    if !matches!(*method, Method::GET | Method::HEAD) {
        let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are supported\n");
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    let accept: Vec<&str> =
        headers.get_all(ACCEPT).iter().filter_map(|accept| accept.to_str().ok()).collect();
    let format = MetricsFormat::accepted(&accept.join(","));
    let (respond, rendered) = oneshot::channel();
    // Fails only if the watch is ending.
    let _ = scrapes.send(Scrape { format, respond }).await;
    match rendered.await {
        Ok(body) => whole(StatusCode::OK, format.content_type(), body),
        Err(_) => text(StatusCode::SERVICE_UNAVAILABLE, "the watch is ending\n"),
    }
}

fn text(status: StatusCode, body: &'static str) -> Response<Full<Bytes>> {
    whole(status, "text/plain; charset=utf-8", Bytes::from_static(body.as_bytes()))
}

fn whole(status: StatusCode, content_type: &'static str, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::interval;

    use super::*;

    /// Returns the response to these bytes.
    async fn asked(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).await.expect("a connection");
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut response = String::new();
        stream.read_to_string(&mut response).await.expect("a response");
        response
    }

    /// Opens a port, and responds like a watch while `ask` runs.
    async fn with_port<T>(ask: impl AsyncFnOnce(SocketAddr) -> T) -> T {
        let mut port = MetricsPort::open((Ipv4Addr::LOCALHOST, 0).into()).await.expect("a port");
        let asking = ask(port.address);
        let mut ticks = interval(Duration::from_millis(10));
        tokio::select! {
            said = asking => said,
            () = async {
                loop {
                    ticks.tick().await;
                    port.respond(|format| format!("{format:?}\n"));
                }
            } => unreachable!("it never ends"),
        }
    }

    #[tokio::test]
    async fn port_serves_only_metrics() {
        with_port(async |address| {
            let get = |head: &'static str| asked(address, head);
            let plain = get("GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n").await;
            assert!(plain.starts_with("HTTP/1.1 200 ") && plain.ends_with("\r\n\r\nPrometheus\n"), "{plain}");
            assert!(plain.contains("content-type: text/plain; version=0.0.4"), "{plain}");
            let accept =
                "GET /metrics?x=y HTTP/1.1\r\nhost: x\r\naccept: application/openmetrics-text\r\n\r\n";
            let open = get(accept).await;
            assert!(open.ends_with("\r\n\r\nOpenMetrics\n"), "{open}");
            assert!(open.contains("content-type: application/openmetrics-text; version=1.0.0"), "{open}");
            let head = get("HEAD /metrics HTTP/1.1\r\nhost: x\r\n\r\n").await;
            assert!(head.starts_with("HTTP/1.1 200 ") && head.ends_with("\r\n\r\n"), "{head}");
            let other = get("GET /rows HTTP/1.1\r\nhost: x\r\n\r\n").await;
            assert!(other.starts_with("HTTP/1.1 404 "), "{other}");
            let post = get("POST /metrics HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n").await;
            assert!(post.starts_with("HTTP/1.1 405 ") && post.contains("allow: GET, HEAD"), "{post}");
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn silent_connections_give_way() {
        with_port(async |address| {
            let mut silent = Vec::new();
            for _ in 0..CONNECTIONS {
                silent.push(TcpStream::connect(address).await.expect("a connection"));
            }
            let response = asked(address, "GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n").await;
            assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
        })
        .await;
    }

    #[tokio::test]
    async fn port_at_all_addresses_includes_ipv4() {
        let port = MetricsPort::open((Ipv6Addr::UNSPECIFIED, 0).into()).await.expect("a port");
        TcpStream::connect((Ipv4Addr::LOCALHOST, port.address.port())).await.expect("a connection");
    }

    #[test]
    fn ipv4_stands_in_for_missing_ipv6() {
        let bound = |error: Option<ErrorKind>| error.map_or(Ok(()), |kind| Err(kind.into()));
        let in_v4 = |address: &str, error| everywhere_in_v4(address.parse().unwrap(), &bound(error));
        // Linux without IPv6 returns EAFNOSUPPORT, which has no kind of its own.
        for error in [ErrorKind::Other, ErrorKind::AddrNotAvailable] {
            assert_eq!(in_v4("[::]:9464", Some(error)), Some("0.0.0.0:9464".parse().unwrap()));
            assert_eq!(in_v4("[::1]:9464", Some(error)), None);
        }
        assert_eq!([in_v4("[::]:9464", None), in_v4("[::]:9464", Some(ErrorKind::AddrInUse))], [None; 2]);
    }

    #[tokio::test]
    async fn taken_address_is_error() {
        let taken = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let opened = MetricsPort::open(taken.local_addr().expect("an address")).await;
        let error = opened.err().expect("an error");
        let WatchError::MetricsPort { source, .. } = &error else { panic!("{error}") };
        assert!(source.to_string().contains("Address already in use"), "{source}");
    }
}
