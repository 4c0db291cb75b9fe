//! Does the target answer at all, from where the load will be sent?
//!
//! Asked with a plain GET that carries no request id, so that no recorder takes it for a part
//! of the load. An attempt that comes before the Service's rules leaves a connection-tracking
//! entry, as any other SYN that nobody answers, so no port of an attempt is one of the load's.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, sleep_until, timeout};
use url::Url;

use super::LoadError;

/// From one attempt to get an answer to the next.
const RETRY: Duration = Duration::from_millis(100);
/// For one attempt.
const ATTEMPT: Duration = Duration::from_secs(2);

/// Where attempts come from.
pub(super) struct From<'a> {
    /// The address; the kernel chooses where there is none.
    pub(super) address: Option<IpAddr>,
    /// The load's source ports, of which each attempt takes one away; the kernel chooses where
    /// there are none.
    pub(super) ports: Option<&'a mut Vec<u16>>,
    /// So many are left to the load in any case.
    pub(super) left: usize,
}

/// Waits for any HTTP answer from the target with this URL, at this address.
///
/// # Errors
/// When none comes within the limit.
pub(super) async fn first_answer(
    url: &str,
    address: SocketAddr,
    mut from: From<'_>,
    limit: Duration,
) -> Result<(), LoadError> {
    let deadline = Instant::now() + limit;
    loop {
        let why = match timeout(ATTEMPT, answer(url, address, &mut from)).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(why)) => why,
            Err(_) => "the attempt timed out: is this address reachable from here?".into(),
        };
        let next = Instant::now() + RETRY;
        if next >= deadline {
            return Err(LoadError::NoAnswer { url: url.to_owned(), limit, why });
        }
        sleep_until(next).await;
    }
}

impl From<'_> {
    async fn connect(&mut self, to: SocketAddr) -> io::Result<TcpStream> {
        let (any, new): (IpAddr, fn() -> io::Result<TcpSocket>) = match to {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED.into(), TcpSocket::new_v4),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED.into(), TcpSocket::new_v6),
        };
        let address = self.address.unwrap_or(any);
        loop {
            let socket = new()?;
            let port =
                self.ports.as_mut().filter(|ports| ports.len() > self.left).and_then(|ports| ports.pop());
            socket.set_reuseaddr(port.is_some())?;
            match socket.bind(SocketAddr::new(address, port.unwrap_or(0))) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && port.is_some() => {}
                Err(error) => return Err(error),
                Ok(()) => return socket.connect(to).await,
            }
        }
    }
}

async fn answer(url: &str, address: SocketAddr, from: &mut From<'_>) -> Result<(), String> {
    let url = Url::parse(url).map_err(|e| e.to_string())?;
    let stream = from.connect(address).await.map_err(|e| e.to_string())?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake::<_, Empty<Bytes>>(TokioIo::new(stream))
            .await
            .map_err(|e| e.to_string())?;
    let request = hyper::Request::get(&url[url::Position::BeforePath..url::Position::AfterQuery])
        .header(hyper::header::HOST, url.authority())
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

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    use super::*;

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
        let from = From { address: None, ports: Some(&mut ports), left: 1 };
        let url = format!("http://{address}/");
        let asking = first_answer(&url, address, from, Duration::from_mins(1));
        let (met, answered) = tokio::join!(serving, asking);
        answered.unwrap();
        assert!(met.iter().all(|port| all.contains(port) && !ports.contains(port)), "{met:?} of {all:?}");
        assert!(ports.len() <= all.len() - 4, "the busy one is gone as well");
    }
}
