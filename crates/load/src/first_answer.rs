//! Whether the target answers at all, from where the load will be sent.
//!
//! It is asked with a plain GET without a request id, so that no recorder counts it as part of the load. An attempt
//! before the Service's rules exist leaves a connection-tracking entry, like any other unanswered SYN, so no port of
//! an attempt is used for the load.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use tokio::time::{Instant, sleep_until, timeout};
use url::{Position, Url};

use super::address::{Address, Remote};
use super::connection::{self, CannotDial, Dialing};
use super::error::LoadError;
use super::resolve::Walk;
use super::stream::Stream;
use super::target::PlannedTarget;
use super::tls::Client;
use rolldrop_record::Clock;

/// From one attempt to get an answer to the next.
const RETRY: Duration = Duration::from_millis(100);
/// For a connection to be established: one to a Service without rules yet may never be.
const CONNECT: Duration = Duration::from_secs(2);
/// The least time for an answer on it.
const ANSWER: Duration = Duration::from_secs(2);

/// Where attempts come from.
pub(super) struct From<'a> {
    /// The address; if none is set, the kernel chooses.
    pub(super) address: Option<IpAddr>,
    /// The load's source ports, of which each attempt takes one; if there are none, the kernel chooses.
    pub(super) ports: Option<&'a mut Vec<u16>>,
    /// At least this many stay for the load.
    pub(super) left: usize,
    /// How long the load itself will wait for an answer.
    pub(super) response_timeout: Duration,
}

impl From<'_> {
    /// Whether a connection can be made within the limit. Nothing is sent on it.
    pub(super) async fn reach(&mut self, address: &Address, limit: Duration, clock: Clock) -> bool {
        let Ok(dialing) = self.dial(&address.remote) else { return false };
        matches!(timeout(limit, dialing.connected(0, address.text.clone(), clock)).await, Ok(Ok(_)))
    }

    /// Starts to connect, from a port that the load does not use.
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

/// Waits for any HTTP answer from the target, at its addresses in turn.
///
/// # Errors
/// When none comes within the limit.
pub(super) async fn first_answer(
    target: &PlannedTarget,
    walk: &Walk,
    tls: Option<&Client>,
    mut from: From<'_>,
    limit: Duration,
    clock: Clock,
) -> Result<(), LoadError> {
    let deadline = Instant::now() + limit;
    loop {
        let patience = CONNECT + from.response_timeout.max(ANSWER);
        let why = match timeout(patience, answer(target, walk, tls, &mut from, clock)).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(why)) => why,
            Err(_) => "it accepted a connection, but did not answer within the response timeout".into(),
        };
        let next = Instant::now() + RETRY;
        if next >= deadline {
            return Err(LoadError::NoAnswer { url: target.url.clone(), limit, why });
        }
        sleep_until(next).await;
    }
}

async fn answer(
    target: &PlannedTarget,
    walk: &Walk,
    tls: Option<&Client>,
    from: &mut From<'_>,
    clock: Clock,
) -> Result<(), String> {
    let url = Url::parse(&target.url).map_err(|e| e.to_string())?;
    let address = walk.next().map_err(|why| why.to_string())?;
    let dialing = from
        .dial(&address.remote)
        .map_err(|(CannotDial::Socket(e) | CannotDial::LocalPort(e))| e.to_string())?;
    let mut connection = match timeout(CONNECT, dialing.connected(0, address.text, clock)).await {
        Ok(connected) => connected.map_err(|e| e.to_string())?,
        Err(_) => return Err("the attempt timed out: is this address reachable from here?".into()),
    };
    if let Some(tls) = tls {
        connection = connection.secured(tls).await.map_err(|e| format!("TLS: {e}"))?;
    }
    if connection.speaks_http2(target.http) {
        return http2_answer(url, connection.into_stream()).await.map_err(|e| e.to_string());
    }
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake::<_, Empty<Bytes>>(TokioIo::new(connection.into_stream()))
            .await
            .map_err(|e| e.to_string())?;
    let request = hyper::Request::get(&url[Position::BeforePath..Position::AfterQuery])
        .header(hyper::header::HOST, &target.authority)
        .header(hyper::header::CONNECTION, "close")
        .body(Empty::new())
        .map_err(|e| e.to_string())?;
    let exchange = async {
        let response = sender.send_request(request).await?;
        response.into_body().collect().await
    };
    // The connection future drives the exchange and ends with it.
    let (exchanged, _) = tokio::join!(exchange, connection);
    exchanged.map(|_| ()).map_err(|e| e.to_string())
}

async fn http2_answer(url: Url, stream: Stream) -> Result<(), h2::Error> {
    let (mut requests, connection) = h2::client::handshake(stream).await?;
    let mut request = hyper::Request::new(());
    *request.uri_mut() = url[..Position::AfterQuery].parse().unwrap_or_default();
    let exchange = async move {
        let (response, _) = requests.send_request(request, true)?;
        let mut body = response.await?.into_body();
        while let Some(data) = body.data().await {
            body.flow_control().release_capacity(data?.len())?;
        }
        Ok(())
    };
    let (exchanged, _) = tokio::join!(exchange, connection);
    exchanged
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    use super::*;
    use crate::resolve::Route;
    use crate::{Plan, Settings};

    #[tokio::test]
    async fn the_ports_of_its_attempts_are_not_the_loads() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let held: Vec<_> = (0..8).map(|_| std::net::TcpListener::bind("0.0.0.0:0").unwrap()).collect();
        let all: Vec<u16> = held.iter().map(|l| l.local_addr().unwrap().port()).collect();
        // One of them stays in use, which is none of the load's either.
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
        let plan = Plan::new(Settings::new(format!("http://{address}/"))).unwrap();
        let (target, walk, limit) =
            (&plan.targets[0], Walk::new(Route::Fixed(address.into()), 0), Duration::from_mins(1));
        let asking = first_answer(target, &walk, None, from, limit, Clock::start());
        let (met, answered) = tokio::join!(serving, asking);
        answered.unwrap();
        assert!(met.iter().all(|port| all.contains(port) && !ports.contains(port)), "{met:?} of {all:?}");
        assert!(ports.len() <= all.len() - 4, "the busy one is gone as well");
    }
}
