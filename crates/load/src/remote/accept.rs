//! Accepts connections on one listener and serves each in a separate task.
//!
//! Anybody who can reach the port can connect. Connections that have not shown that they belong here share a few
//! [`places`](rolldrop_wire::places), so that a crowd of them takes neither files nor memory from the load, and no place
//! from a connection of another address that is about to show that it belongs.

use std::fmt::Display;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinSet, yield_now};
use tokio::time::sleep;

use rolldrop_wire::places::{Patience, Place, Places};

/// Pause after an accept that failed, so that a lack of descriptors does not cause a busy loop.
const PAUSE: Duration = Duration::from_millis(10);
/// Maximum number of strangers' connections.
const STRANGERS: usize = 64;
/// Time for which a connection may remain a stranger's.
const PATIENCE: Duration = Duration::from_secs(60);

/// Serves every connection; one that belongs here keeps its place. Never returns; dropping the future ends the
/// connections.
pub(super) async fn accept<F, E>(listener: TcpListener, serve: impl Fn(TcpStream, Arc<Place>) -> F)
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
                                tracing::debug!(%peer, %error, "a connection ended");
                            }
                        }
                    });
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
        let echo = |mut stream: TcpStream, _: Arc<Place>| async move {
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
        let echo = |mut stream: TcpStream, place: Arc<Place>| async move {
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
