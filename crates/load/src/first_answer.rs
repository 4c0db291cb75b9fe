//! Waits for each target's first response to a request sent from the same place as the load.
//!
//! The request resembles those of the load, because a server may not respond to another method, or to a call without
//! its content type. But it has no id, so that no recorder counts it as part of the load, and its request number is one
//! that the load never reaches. An attempt before the Service's rules exist leaves a connection-tracking entry, like
//! any other unanswered SYN, so the load does not use any port that an attempt used.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use http::{Request, Version, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use tokio::time::{Instant, sleep_until, timeout};

use super::client_tls::TlsClient;
use super::connection::{self, CannotDial, Dialing};
use super::error::{LoadError, Result, in_words};
use super::http2_client::LoneRequest;
use super::planned_target::{PlannedTarget, RequestBody};
use super::remote_address::{Address, Remote};
use super::request::{SenderIdentity, http2_template};
use super::resolve::AddressCursor;
use super::socket_transport::SocketTransport;
use rolldrop_record::Clock;
use rolldrop_record::id::ID_HEADER;

/// Delay between attempts to get a response.
const RETRY: Duration = Duration::from_millis(100);
/// Time limit for establishing a connection, which may hang forever before a Service has rules.
const CONNECT: Duration = Duration::from_secs(2);
/// Minimum time to wait for a response on an established connection.
const ANSWER: Duration = Duration::from_secs(2);
/// Time limit for reading the response body, which may be endless.
const BODY: Duration = Duration::from_secs(1);
/// Request number that no load reaches.
const NUMBER: u64 = u32::MAX as u64;
/// Maximum number of failure kinds that an error lists.
const MOST_KINDS: usize = 4;

/// Source address and ports for the attempts.
pub(super) struct From<'a> {
    /// Source address; `None` if the kernel chooses.
    pub(super) address: Option<IpAddr>,
    /// The load's source ports, one of which is used up by each attempt; `None` if the kernel chooses.
    pub(super) ports: Option<&'a mut Vec<u16>>,
    /// Number of ports that must be left for the load.
    pub(super) left: usize,
    /// Response timeout of the load.
    pub(super) response_timeout: Duration,
}

impl From<'_> {
    /// Returns true if a connection can be established within the limit. Sends nothing on it.
    pub(super) async fn reach(&mut self, address: &Address, limit: Duration, clock: Clock) -> bool {
        let Ok(dialing) = self.dial(&address.remote) else { return false };
        matches!(timeout(limit, dialing.connected(0, address.text.clone(), clock)).await, Ok(Ok(_)))
    }

    /// Starts connecting from a port that the load will not use.
    fn dial(&mut self, remote: &Remote) -> Result<Dialing, CannotDial> {
        let Remote::Tcp(to) = remote else { return connection::dial(remote, None) };
        let address = self.address.unwrap_or_else(|| connection::unspecified(*to));
        loop {
            let port =
                self.ports.as_mut().filter(|ports| ports.len() > self.left).and_then(|ports| ports.pop());
            match connection::dial_from(*to, Some(SocketAddr::new(address, port.unwrap_or(0)))) {
                Err(CannotDial::LocalPort(e)) if e.kind() == io::ErrorKind::AddrInUse && port.is_some() => {}
                dialed => return dialed,
            }
        }
    }
}

/// Waits for any HTTP response from the target, trying its addresses in turn.
///
/// # Errors
/// Returns an error if there is no response within the limit.
pub(super) async fn first_answer(
    target: &PlannedTarget,
    walk: &AddressCursor,
    tls: Option<&TlsClient>,
    mut from: From<'_>,
    limit: Duration,
    clock: Clock,
) -> Result<()> {
    let (deadline, url) = (Instant::now() + limit, target.url.clone());
    let (request, body) = match request(target) {
        Ok(request) => request,
        Err(why) => return Err(LoadError::NoAnswer { url, limit, why }),
    };
    let asked = format!("{} {}", request.method(), request.uri().path());
    let mut seen = FailedAttempts::default();
    loop {
        let patience = CONNECT + from.response_timeout.max(ANSWER);
        let asking = ask(target, (request.clone(), body.clone()), walk, tls, &mut from, clock);
        let why = match timeout(patience, asking).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(why)) => why,
            Err(_) => "it accepted the connection but did not answer within the response timeout".into(),
        };
        seen.add(why);
        let next = Instant::now() + RETRY;
        if next >= deadline {
            return Err(LoadError::NoAnswer { url, limit, why: seen.in_words(&asked) });
        }
        sleep_until(next).await;
    }
}

/// Failed attempts, counted by kind.
#[derive(Debug, Default)]
struct FailedAttempts(BTreeMap<String, usize>);

impl FailedAttempts {
    fn add(&mut self, why: String) {
        *self.0.entry(why).or_default() += 1;
    }

    /// Describes the failures, most frequent first.
    fn in_words(&self, asked: &str) -> String {
        let mut kinds: Vec<_> = self.0.iter().collect();
        kinds.sort_by_key(|(_, times)| std::cmp::Reverse(**times));
        let each = kinds.iter().take(MOST_KINDS).map(|(why, times)| format!("{times}x {why}"));
        let attempts: usize = self.0.values().sum();
        match kinds.as_slice() {
            [(why, _)] => format!("all {attempts} attempts ({asked}) failed: {why}"),
            _ => format!("all {attempts} attempts ({asked}) failed: {}", each.collect::<Vec<_>>().join("; ")),
        }
    }
}

/// Builds a request like those of the load, but without an id.
fn request(target: &PlannedTarget) -> Result<(Request<()>, Bytes), String> {
    let sender = SenderIdentity { ids: String::new(), worker: 0, workers: 1, seed: 0 };
    let made = match target.is_websocket {
        // The body is a gRPC message. The server responds to a plain request too, if only to say what it wants instead.
        true => http2_template::Http2Template::new(
            &PlannedTarget { body: RequestBody::Fixed(Bytes::new()), ..target.clone() },
            &sender,
        ),
        false => http2_template::Http2Template::new(target, &sender),
    };
    let made = made.make(NUMBER, 1);
    let (mut request, body) =
        made.map_err(|_| "its URL and headers do not form a valid request".to_owned())?;
    request.headers_mut().remove(ID_HEADER);
    Ok((request, body))
}

async fn ask(
    target: &PlannedTarget,
    (request, body): (Request<()>, Bytes),
    walk: &AddressCursor,
    tls: Option<&TlsClient>,
    from: &mut From<'_>,
    clock: Clock,
) -> Result<(), String> {
    let address = walk.next().map_err(|why| why.to_string())?;
    let dialing = from
        .dial(&address.remote)
        .map_err(|(CannotDial::Socket(e) | CannotDial::LocalPort(e))| e.to_string())?;
    let mut connection = match timeout(CONNECT, dialing.connected(0, address.text, clock)).await {
        Ok(connected) => connected.map_err(|e| e.to_string())?,
        Err(_) => return Err("connecting timed out: check that this address is reachable from here".into()),
    };
    if let Some(tls) = tls {
        connection = connection.secured(tls).await.map_err(|e| format!("TLS: {e}"))?;
    }
    if connection.speaks_http2(target.http) {
        let mut request = LoneRequest::new(&request, body, connection.into_transport(), clock);
        request.answered().await?;
        // The head alone counts as the response.
        let _ = timeout(BODY, request.ended()).await;
        Ok(())
    } else {
        http1_answer(request, body, connection.into_transport()).await.map_err(|e| in_words(&e))
    }
}

async fn http1_answer(
    request: Request<()>,
    body: Bytes,
    transport: SocketTransport,
) -> Result<(), hyper::Error> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(transport)).await?;
    let mut request = request.map(|()| Full::new(body));
    *request.version_mut() = Version::HTTP_11;
    let url = std::mem::take(request.uri_mut());
    let (host, path) = (url.authority(), url.path_and_query().cloned());
    let headers = request.headers_mut();
    if let Some(Ok(host)) = host.map(|host| host.as_str().parse()) {
        headers.insert(header::HOST, host);
    }
    headers.insert(header::CONNECTION, header::HeaderValue::from_static("close"));
    *request.uri_mut() = path.map(Into::into).unwrap_or_default();
    let exchange = async {
        let response = sender.send_request(request).await?;
        // The head alone counts as the response.
        let _ = timeout(BODY, response.into_body().collect()).await;
        Ok(())
    };
    over(connection, exchange).await
}

/// Drives a connection until the exchange on it has ended; the exchange reports how the connection ended.
async fn over<T>(connection: impl Future, exchange: impl Future<Output = T>) -> T {
    let driving = async {
        let _ = connection.await;
        pending::<Infallible>().await
    };
    tokio::select! {
        exchanged = exchange => exchanged,
        never = driving => match never {},
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::resolve::TargetRoute;
    use crate::{Load, Plan};
    use rolldrop_record::load::{Grpc, Http};

    fn planned(address: SocketAddr, change: impl FnOnce(&mut Load)) -> Plan {
        let mut settings = Load::new(format!("http://{address}/"));
        change(&mut settings);
        Plan::new(settings).unwrap()
    }

    /// Waits for the first response of the plan's only target.
    async fn asked(plan: &Plan, address: SocketAddr, limit: Duration) -> Result<()> {
        let (walk, response_timeout) =
            (AddressCursor::new(TargetRoute::Fixed(address.into()), 0), Duration::from_secs(5));
        let from = From { address: None, ports: None, left: 1, response_timeout };
        first_answer(&plan.targets[0], &walk, None, from, limit, Clock::start()).await
    }

    /// Serves like gRPC core: responds to calls, and resets all other streams.
    async fn serve_calls(listener: TcpListener, answers_calls: bool) {
        while let Ok((stream, _)) = listener.accept().await {
            let mut connection = h2::server::handshake(stream).await.unwrap();
            while let Some(Ok((request, mut respond))) = connection.accept().await {
                let is_call = request.method() == http::Method::POST
                    && request.headers().get(header::CONTENT_TYPE).is_some_and(|is| is == "application/grpc")
                    && request.uri().path() == "/lab.Echo/Say"
                    && !request.headers().contains_key(ID_HEADER);
                match is_call && answers_calls {
                    true => drop(respond.send_response(http::Response::new(()), true)),
                    false => respond.send_reset(h2::Reason::INTERNAL_ERROR),
                }
            }
        }
    }

    #[tokio::test]
    async fn grpc_reset_counts_as_first_answer() {
        for answers_calls in [true, false] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let plan = planned(address, |settings| {
                settings.http = Http::Http2;
                settings.grpc = Some(Grpc::new("lab.Echo/Say".parse().unwrap()));
            });
            tokio::select! {
                () = serve_calls(listener, answers_calls) => unreachable!("it serves forever"),
                answered = asked(&plan, address, Duration::from_mins(1)) => answered.unwrap(),
            }
        }
    }

    #[tokio::test]
    async fn first_request_resembles_load_requests() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let plan = planned(address, |settings| {
            settings.method = "POST".into();
            settings.body = b"<{{seq}}>".to_vec();
            settings.template = true;
            settings.headers = vec![("Content-Type".into(), "text/xml".into())];
        });
        let serving = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b">") {
                stream.read_buf(&mut request).await.unwrap();
            }
            // The body is endless.
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nand so on").await.unwrap();
            (String::from_utf8(request).unwrap().to_ascii_lowercase(), stream)
        };
        let asking = asked(&plan, address, Duration::from_mins(1));
        let ((request, _stream), answered) = tokio::join!(serving, asking);
        answered.unwrap();
        assert!(request.starts_with("post / http/1.1\r\n"), "{request}");
        for header in ["content-type: text/xml", "content-length: 12", &format!("host: {address}")] {
            assert!(request.contains(&format!("{header}\r\n")), "{header}\n{request}");
        }
        assert!(request.ends_with("<4294967295>") && !request.contains(ID_HEADER), "{request}");
    }

    #[tokio::test]
    async fn first_answer_error_lists_all_attempts() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let plan = planned(address, |settings| settings.method = "POST".into());
        let serving = async {
            // The first connection gets no response; after that, nothing listens.
            drop(listener.accept().await);
            drop(listener);
        };
        let (answered, ()) = tokio::join!(asked(&plan, address, Duration::from_secs(1)), serving);
        let said = answered.unwrap_err().to_string();
        assert!(
            said.contains("did not answer within 1s: ") && said.contains(" attempts (POST /) failed: "),
            "{said}"
        );
        assert!(said.contains("Connection refused") && said.contains("; 1x "), "{said}");
    }

    #[tokio::test]
    async fn load_avoids_ports_of_earlier_attempts() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let held: Vec<_> = (0..8).map(|_| std::net::TcpListener::bind("0.0.0.0:0").unwrap()).collect();
        let all: Vec<u16> = held.iter().map(|l| l.local_addr().unwrap().port()).collect();
        // One of them remains in use, so the load does not get it either.
        let _busy = held.into_iter().nth(6).unwrap();
        let mut ports = all.clone();
        let serving = async {
            let mut met = Vec::new();
            for answer in [&b""[..], b"", b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n"] {
                let (mut stream, peer) = listener.accept().await.unwrap();
                stream.write_all(answer).await.unwrap();
                met.push(peer.port());
            }
            met
        };
        let from = From {
            address: None,
            ports: Some(&mut ports),
            left: 1,
            response_timeout: Duration::from_secs(5),
        };
        let plan = Plan::new(Load::new(format!("http://{address}/"))).unwrap();
        let (target, walk, limit) = (
            &plan.targets[0],
            AddressCursor::new(TargetRoute::Fixed(address.into()), 0),
            Duration::from_mins(1),
        );
        let asking = first_answer(target, &walk, None, from, limit, Clock::start());
        let (met, answered) = tokio::join!(serving, asking);
        answered.unwrap();
        assert!(met.iter().all(|port| all.contains(port) && !ports.contains(port)), "{met:?} of {all:?}");
        assert!(ports.len() <= all.len() - 4, "the load does not use the busy port either");
    }
}
