//! Accepts connections on one listener and serves each in a separate task.
//!
//! Anybody who can reach the port can connect. Connections that have not shown that they belong here share a few
//! places, so that a crowd of them takes neither files nor memory from the load. The address that has the most of these
//! places gives one up, so that a crowd takes no place from a connection that is about to show that it belongs.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::fmt::Display;
use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet, yield_now};
use tokio::time::sleep;

/// Pause after an accept that failed, so that a lack of descriptors does not cause a busy loop.
const PAUSE: Duration = Duration::from_millis(10);
/// Maximum number of strangers' connections. One more closes the oldest connection of the address that has the most.
const STRANGERS: usize = 64;

/// A connection's proof that it belongs here, once it has given one.
#[derive(Clone, Debug, Default)]
pub(super) struct Trust(Arc<AtomicBool>);

impl Trust {
    /// Notes that the connection has shown that it knows the token.
    pub(super) fn earn(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_earned(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A connection that may not belong here.
struct Stranger {
    address: IpAddr,
    task: AbortHandle,
    trust: Trust,
}

impl Stranger {
    fn is_one_still(&self) -> bool {
        !self.trust.is_earned() && !self.task.is_finished()
    }
}

/// Returns the place of the oldest stranger of the address that has the most.
fn oldest_of_the_most(strangers: &VecDeque<Stranger>) -> Option<usize> {
    let mut addresses = HashMap::<IpAddr, (usize, Reverse<usize>)>::new();
    for (place, stranger) in strangers.iter().enumerate() {
        addresses.entry(stranger.address).or_insert((0, Reverse(place))).0 += 1;
    }
    addresses.into_values().max().map(|(_, Reverse(oldest))| oldest)
}

/// Serves every connection. Never returns; dropping the future ends the connections.
pub(super) async fn accept<F, E>(listener: TcpListener, serve: impl Fn(TcpStream, Trust) -> F)
where
    F: Future<Output = Result<(), E>> + Send + 'static,
    E: Display,
{
    let mut connections = JoinSet::new();
    let mut strangers = VecDeque::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    let trust = Trust::default();
                    let served = serve(stream, trust.clone());
                    let task = connections.spawn(async move {
                        if let Err(error) = served.await {
                            tracing::debug!(%peer, %error, "a connection ended");
                        }
                    });
                    strangers.push_back(Stranger { address: peer.ip().to_canonical(), task, trust });
                    if strangers.len() > STRANGERS {
                        strangers.retain(Stranger::is_one_still);
                    }
                    if strangers.len() > STRANGERS {
                        let one = oldest_of_the_most(&strangers).and_then(|place| strangers.remove(place));
                        one.iter().for_each(|one| one.task.abort());
                    }
                    // The new connection may already have shown that it belongs here, before another one comes.
                    yield_now().await;
                }
                Err(error) => {
                    tracing::warn!(%error, "accepting failed");
                    sleep(PAUSE).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpSocket;
    use tokio::time::timeout;

    use super::*;

    const DEADLINE: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn crowded_address_displaces_only_itself() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let echo = |mut stream: TcpStream, _: Trust| async move {
            let byte = stream.read_u8().await?;
            stream.write_u8(byte).await
        };
        let says = async {
            let mut slow = TcpStream::connect(address).await.unwrap();
            let mut crowd = Vec::new();
            for _ in 0..3 * STRANGERS {
                let socket = TcpSocket::new_v4().unwrap();
                socket.bind((Ipv4Addr::new(127, 0, 0, 2), 0).into()).unwrap();
                crowd.push(socket.connect(address).await.unwrap());
            }
            let first = timeout(DEADLINE, crowd[0].read(&mut [0])).await.unwrap();
            assert!(matches!(first, Ok(0) | Err(_)), "the oldest of the crowd is closed");
            slow.write_u8(7).await.unwrap();
            assert_eq!(timeout(DEADLINE, slow.read_u8()).await.unwrap().unwrap(), 7);
        };
        tokio::select! {
            () = accept(listener, echo) => {}
            () = says => {}
        }
    }

    #[tokio::test]
    async fn strangers_never_displace_trusted_connection() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        // Anybody who sends a byte belongs here.
        let echo = |mut stream: TcpStream, trust: Trust| async move {
            while let Ok(byte) = stream.read_u8().await {
                trust.earn();
                stream.write_u8(byte).await?;
            }
            Ok::<_, std::io::Error>(())
        };
        let says = async {
            let mut friend = TcpStream::connect(address).await.unwrap();
            let mut is_answered = async || {
                friend.write_u8(7).await.unwrap();
                timeout(DEADLINE, friend.read_u8()).await.unwrap().unwrap() == 7
            };
            assert!(is_answered().await);
            let mut crowd = Vec::new();
            for _ in 0..3 * STRANGERS {
                crowd.push(TcpStream::connect(address).await.unwrap());
            }
            let first = timeout(DEADLINE, crowd[0].read(&mut [0])).await.unwrap();
            assert!(matches!(first, Ok(0) | Err(_)), "the oldest is closed");
            assert!(is_answered().await);
            let last = crowd.last_mut().unwrap();
            last.write_u8(8).await.unwrap();
            assert_eq!(timeout(DEADLINE, last.read_u8()).await.unwrap().unwrap(), 8);
        };
        tokio::select! {
            () = accept(listener, echo) => {}
            () = says => {}
        }
    }
}
