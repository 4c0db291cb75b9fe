//! Connections that are made to one listener, each served by a task of its own.

use std::fmt::Display;
use std::future::Future;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::sleep;

/// After an accept that failed, so that a lack of descriptors is no busy loop.
const PAUSE: Duration = Duration::from_millis(10);

/// Serves every connection. Never returns; connections end with it.
pub(super) async fn accept<F, E>(listener: TcpListener, serve: impl Fn(TcpStream) -> F)
where
    F: Future<Output = Result<(), E>> + Send + 'static,
    E: Display,
{
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    let served = serve(stream);
                    connections.spawn(async move {
                        if let Err(error) = served.await {
                            tracing::debug!(%peer, %error, "a connection ended");
                        }
                    });
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
