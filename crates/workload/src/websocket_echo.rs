//! `/ws`: a WebSocket that echoes every message.
//!
//! While the server drains, a connection is closed with code 1001 after its next message; once the server has stopped
//! accepting, it is closed between two messages.

use std::time::Duration;

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, UPGRADE};
use hyper::{HeaderMap, Request};
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role};
use tokio_util::sync::CancellationToken;

use super::response_flush::LoggedTransport;
use super::server_state::ServerState;
use super::workload_log::LoggedExchange;

/// Maximum time that a client may take to respond to a close frame.
const CLOSE_WAIT: Duration = Duration::from_secs(1);
/// Prefix of a message's first line, which contains the message's id, as a header does for a request.
const ID_LINE: &str = "rolldrop-id: ";

/// Returns the header fields that switch a connection to WebSocket; `None` if the request did not ask for it.
pub(super) fn switch(request: &Request<Incoming>) -> Option<HeaderMap> {
    let asked = request.headers().get(UPGRADE)?.as_bytes().eq_ignore_ascii_case(b"websocket");
    let key = request.headers().get(SEC_WEBSOCKET_KEY).filter(|_| asked)?;
    let accept = HeaderValue::from_str(&derive_accept_key(key.as_bytes())).ok()?;
    Some(HeaderMap::from_iter([
        (CONNECTION, HeaderValue::from_static("upgrade")),
        (UPGRADE, HeaderValue::from_static("websocket")),
        (SEC_WEBSOCKET_ACCEPT, accept),
    ]))
}

/// Echoes messages until the client closes the connection or the server shuts down. `early` contains bytes that have
/// already arrived.
pub(super) async fn serve(
    transport: LoggedTransport,
    early: Bytes,
    shared: &ServerState,
    finish: &CancellationToken,
) {
    let mut socket = WebSocketStream::from_partially_read(transport, early.into(), Role::Server, None).await;
    loop {
        let message = tokio::select! {
            // Messages that have already arrived are answered before the server closes the connection.
            biased;
            message = socket.next() => message,
            () = finish.cancelled() => break,
        };
        // The library answers pings and close frames as it reads them.
        let Some(Ok(message)) = message else { return };
        if !message.is_text() && !message.is_binary() {
            continue;
        }
        let exchange = LoggedExchange::received(&shared.log, id(&message)).with_status(101);
        shared.delay(Duration::ZERO).await;
        if socket.send(message).await.is_err() {
            return;
        }
        exchange.answered();
        if shared.draining.get() {
            break;
        }
    }
    let away = CloseFrame { code: CloseCode::Away, reason: "draining".into() };
    if socket.close(Some(away)).await.is_ok() {
        let _ = timeout(CLOSE_WAIT, async { while let Some(Ok(_)) = socket.next().await {} }).await;
    }
}

fn id(message: &Message) -> Option<String> {
    let first = message.to_text().ok()?.lines().next()?;
    first.strip_prefix(ID_LINE).map(str::to_owned)
}
