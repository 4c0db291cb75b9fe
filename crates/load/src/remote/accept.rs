//! Accepts connections on one listener, and serves each in its own task.
//!
//! Anyone who can reach the port can connect. Connections that have not authenticated share a small number of
//! [`places`](rolldrop_wire::places), so that a crowd of them cannot take files or memory from the load, or take the
//! place of a connection from another address that is about to authenticate.

use std::fmt::Display;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinSet, yield_now};
use tokio::time::sleep;

use rolldrop_wire::places::{ConnectionPlace, Patience, Places};

/// Pause after a failed accept, so that a lack of file descriptors does not cause a busy loop.
const PAUSE: Duration = Duration::from_millis(10);
/// Maximum number of unauthenticated connections.
const STRANGERS: usize = 64;
/// Maximum time for which a connection may remain unauthenticated.
const PATIENCE: Duration = Duration::from_secs(60);

/// Serves every connection; `serve` must keep the place of each one that authenticates. Never returns; dropping the
/// future closes the connections.
pub(super) async fn accept<F, E>(listener: TcpListener, serve: impl Fn(TcpStream, Arc<ConnectionPlace>) -> F)
where
    F: Future<Output = Result<(), E>> + Send + 'static,
    E: Display,
{
    let places = Places::new(STRANGERS, Patience { idle: PATIENCE, head: PATIENCE });
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    let place = places.take(peer.ip()).await;
                    let served = serve(stream, Arc::clone(&place));
                    connections.spawn(async move {
                        tokio::select! {
                            () = place.closing() => {}
                            ended = served => if let Err(error) = ended {
                                tracing::debug!(%peer, %error, "a connection failed");
                            }
                        }
                    });
                    // Lets the new connection authenticate, if it already can, before the next one is accepted.
                    yield_now().await;
                }
                Err(error) => {
                    tracing::warn!(%error, "failed to accept a connection");
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
    async fn crowd_displaces_only_its_own_connections() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let echo = |mut stream: TcpStream, _: Arc<ConnectionPlace>| async move {
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
            assert!(matches!(first, Ok(0) | Err(_)), "the oldest connection of the crowd is closed");
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
        // In this test, a single byte counts as authentication.
        let echo = |mut stream: TcpStream, place: Arc<ConnectionPlace>| async move {
            while let Ok(byte) = stream.read_u8().await {
                place.keep();
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
            assert!(matches!(first, Ok(0) | Err(_)), "the oldest connection is closed");
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
