//! Connections from workers that the run cannot reach; these workers connect to the run instead.
//!
//! A worker connects to the run, sends its name and the token in one line, and then serves HTTP/2 on that connection,
//! accepting the same requests as on its own port. So there is only one protocol, and code above [`WorkerTransport`]
//! works the same whichever side opened the connection. A worker whose connection breaks reconnects.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self as client, SendRequest};
use hyper::rt::Executor;
use hyper::server::conn::http2 as server;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::accept::accept;
use super::worker_transport::{WorkerResponseBody, WorkerTransport, WorkerTransportError, addressed};
use rolldrop_record::wire::AdminToken;
use rolldrop_wire::places::ConnectionPlace;

/// First word of a worker's greeting line.
const GREETING: &str = "rolldrop-load-worker";
/// Maximum length of the greeting line in bytes.
const MAX_HELLO_BYTES: usize = 4096;
/// Time limit for receiving the greeting line.
const HELLO_LIMIT: Duration = Duration::from_secs(10);
/// Delay between attempts to connect.
const RETRY: Duration = Duration::from_millis(200);
/// Time limit for connecting.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// Time without traffic after which a ping is sent.
const PING_INTERVAL: Duration = Duration::from_secs(10);
/// Time limit for the response to a ping.
const PING_LIMIT: Duration = Duration::from_secs(10);
/// Time that a request waits for a worker that is not connected.
const COMES_LIMIT: Duration = Duration::from_secs(30);

/// A worker's connection; `None` while there is none.
type Slot = watch::Sender<Option<SendRequest<Full<Bytes>>>>;

/// Workers that have connected or are expected, by name.
#[derive(Debug, Default)]
struct Guests(Mutex<HashMap<String, Slot>>);

impl Guests {
    /// Returns the slot for the worker with this name. Only workers that know the token or are expected have one.
    fn slot(&self, name: &str) -> Slot {
        let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        slots.entry(name.to_owned()).or_insert_with(|| watch::Sender::new(None)).clone()
    }
}

/// Listener to which workers connect. Dropping it closes all connections.
#[derive(Debug)]
pub struct Reception {
    address: SocketAddr,
    guests: Arc<Guests>,
    token: AdminToken,
    _accepting: AbortOnDropHandle<()>,
}

impl Reception {
    /// Starts accepting workers that know the token.
    ///
    /// # Errors
    /// Returns an error if the listener has no address.
    pub fn open(listener: TcpListener, token: AdminToken) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let guests = Arc::<Guests>::default();
        let receive = {
            let (token, guests) = (token.clone(), Arc::clone(&guests));
            move |stream, place| receive((stream, place), token.clone(), Arc::clone(&guests))
        };
        let accepting = tokio::spawn(accept(listener, receive));
        Ok(Self { address, guests, token, _accepting: AbortOnDropHandle::new(accepting) })
    }

    /// Returns the address to which workers connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns a way to reach the worker with this name, which may connect later.
    pub fn way(&self, name: &str) -> Arc<dyn WorkerTransport> {
        Arc::new(Guest { slot: self.guests.slot(name), token: self.token.clone() })
    }
}

/// A worker that connects to the run.
struct Guest {
    slot: Slot,
    token: AdminToken,
}

impl WorkerTransport for Guest {
    fn ask(
        &self,
        request: Request<Bytes>,
    ) -> BoxFuture<'_, Result<Response<WorkerResponseBody>, WorkerTransportError>> {
        async move {
            let mut connected = self.slot.subscribe();
            let stands = |sender: &Option<SendRequest<_>>| sender.as_ref().is_some_and(|s| !s.is_closed());
            let comes = async { connected.wait_for(stands).await.ok()?.clone() };
            let Ok(Some(mut way)) = timeout(COMES_LIMIT, comes).await else {
                return Err(WorkerTransportError(format!("it did not connect within {COMES_LIMIT:?}")));
            };
            // An HTTP/2 request must name its server.
            let request = addressed(request, "http://load-worker", &self.token)?;
            let answer = way.send_request(request.map(Full::new)).await;
            let answer = answer.map_err(|error| WorkerTransportError(error.to_string()))?;
            Ok(answer.map(|body| body.map_err(io::Error::other).boxed_unsync()))
        }
        .boxed()
    }
}

/// Serves a worker's connection until it is closed.
async fn receive(
    (mut stream, place): (TcpStream, Arc<ConnectionPlace>),
    token: AdminToken,
    guests: Arc<Guests>,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let hello = timeout(HELLO_LIMIT, read_line(&mut stream)).await??;
    let refused = || io::Error::new(io::ErrorKind::PermissionDenied, "it sent the wrong token");
    let slot = guests.slot(greeting(&hello, &token).ok_or_else(refused)?);
    place.keep();
    let handshake = client::Builder::new(Tasks::default())
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_LIMIT)
        .handshake(TokioIo::new(stream))
        .await;
    let (sender, connection) = handshake.map_err(io::Error::other)?;
    slot.send_replace(Some(sender));
    let ended = connection.await;
    // A newer connection from the same worker may have replaced this one. Waiting requests need not be told that it
    // ended.
    slot.send_if_modified(|slot| {
        let is_gone = slot.as_ref().is_some_and(SendRequest::is_closed);
        if is_gone {
            *slot = None;
        }
        is_gone
    });
    ended.map_err(io::Error::other)
}

/// Reads a line byte by byte, because everything after it belongs to HTTP/2.
async fn read_line(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    loop {
        match stream.read_u8().await? {
            b'\n' => return Ok(line),
            byte if line.len() < MAX_HELLO_BYTES => line.push(byte),
            _ => return Err(io::Error::new(io::ErrorKind::InvalidData, "its first line is too long")),
        }
    }
}

/// Returns the worker's name from its greeting line, if the worker knows the token.
fn greeting<'a>(line: &'a [u8], token: &AdminToken) -> Option<&'a str> {
    let mut words = std::str::from_utf8(line).ok()?.split(' ');
    let (greeting, name, given) = (words.next()?, words.next()?, words.next()?);
    let is_known = token.is(given.as_bytes());
    (greeting == GREETING && is_known && words.next().is_none()).then_some(name)
}

/// Connects to the run as the worker with this name and serves on that connection; reconnects whenever the connection
/// breaks. Never returns.
pub async fn visit<F>(
    address: &str,
    name: &str,
    token: &AdminToken,
    answer: impl Fn(Request<Incoming>) -> F + Clone,
) where
    F: Future<Output = Response<WorkerResponseBody>> + Send + 'static,
{
    loop {
        let visited = visit_once(address, name, token, answer.clone()).await;
        tracing::debug!(address, error = ?visited.err(), "not connected to the run");
        sleep(RETRY).await;
    }
}

async fn visit_once<F>(
    address: &str,
    name: &str,
    token: &AdminToken,
    answer: impl Fn(Request<Incoming>) -> F,
) -> io::Result<()>
where
    F: Future<Output = Response<WorkerResponseBody>> + Send + 'static,
{
    let mut stream = timeout(CONNECT_LIMIT, TcpStream::connect(address)).await??;
    stream.set_nodelay(true)?;
    stream.write_all(format!("{GREETING} {name} {}\n", token.as_str()).as_bytes()).await?;
    let service = service_fn(|request| answer(request).map(Ok::<_, Infallible>));
    server::Builder::new(Tasks::default())
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_LIMIT)
        .serve_connection(TokioIo::new(stream), service)
        .await
        .map_err(io::Error::other)
}

/// Tasks of a connection, which are aborted when it ends.
#[derive(Clone, Default)]
struct Tasks(Arc<Mutex<JoinSet<()>>>);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Tasks {
    fn execute(&self, task: F) {
        let mut tasks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::Empty;

    use super::*;

    #[test]
    fn greeting_requires_exact_token() {
        let token: AdminToken = "s3cret".parse().unwrap();
        let name = |line: &'static str| greeting(line.as_bytes(), &token);
        assert_eq!(name("rolldrop-load-worker pod-7 s3cret"), Some("pod-7"));
        for line in [
            "",
            "rolldrop-load-worker pod-7",
            "rolldrop-load-worker pod-7 secret",
            "rolldrop-load-worker pod-7 s3cret more",
            "another pod-7 s3cret",
        ] {
            assert_eq!(name(line), None, "{line}");
        }
    }

    #[tokio::test]
    async fn reception_reaches_worker_after_reconnect() {
        let token: AdminToken = "s3cret".parse().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let reception = Reception::open(listener, token.clone()).unwrap();
        let address = reception.address().to_string();
        // Each worker responds with its name and the request that it got.
        let come = |name: &'static str, life: u32| {
            let (address, token) = (address.clone(), token.clone());
            AbortOnDropHandle::new(tokio::spawn(async move {
                visit(&address, name, &token, |request: Request<Incoming>| async move {
                    let body = Empty::new().map_err(|never: Infallible| match never {}).boxed_unsync();
                    let said = format!("{name} {life} {}", request.uri().path());
                    Response::builder().header("said", said).body(body).unwrap()
                })
                .await;
            }))
        };
        let ask = async |name: &str| {
            let way = reception.way(name);
            let answer = way.ask(Request::get("/clock?n=1").body(Bytes::new()).unwrap()).await;
            answer.map(|answer| answer.headers()["said"].to_str().unwrap().to_owned())
        };
        let first = come("a", 1);
        let _other = come("b", 1);
        assert_eq!(ask("a").await.unwrap(), "a 1 /clock");
        assert_eq!(ask("b").await.unwrap(), "b 1 /clock");
        drop(first);
        let _again = come("a", 2);
        // The request on the broken connection is lost; the caller must repeat it.
        let second = async {
            loop {
                match ask("a").await {
                    Ok(said) if said == "a 2 /clock" => return,
                    _ => sleep(Duration::from_millis(10)).await,
                }
            }
        };
        timeout(Duration::from_secs(60), second).await.expect("the worker reconnected");
    }
}
