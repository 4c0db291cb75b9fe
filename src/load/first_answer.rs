//! Does the target answer at all, from where the load will be sent?
//!
//! Asked with a plain GET that carries no request id, so that no recorder takes it for a part
//! of the load.

use std::time::Duration;

use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use tokio::time::{Instant, sleep_until, timeout};
use url::{Position, Url};

use super::LoadError;
use super::address::Address;
use super::connection::{self, CannotDial};
use super::plan::PlannedTarget;
use super::tls::Client;
use crate::record::Clock;

/// From one attempt to get an answer to the next.
const RETRY: Duration = Duration::from_millis(100);
/// For one attempt.
const ATTEMPT: Duration = Duration::from_secs(2);

/// Waits for any HTTP answer.
///
/// # Errors
/// When none comes within the limit.
pub(super) async fn first_answer(
    target: &PlannedTarget,
    address: &Address,
    tls: Option<&Client>,
    limit: Duration,
    clock: Clock,
) -> Result<(), LoadError> {
    let deadline = Instant::now() + limit;
    loop {
        let why = match timeout(ATTEMPT, answer(target, address, tls, clock)).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(why)) => why,
            Err(_) => "the attempt timed out: is this address reachable from here?".into(),
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
    address: &Address,
    tls: Option<&Client>,
    clock: Clock,
) -> Result<(), String> {
    let url = Url::parse(&target.url).map_err(|e| e.to_string())?;
    let dialing = connection::dial(&address.remote, None)
        .map_err(|(CannotDial::Socket(e) | CannotDial::LocalPort(e))| e.to_string())?;
    let connected = dialing.connected(0, address.text.clone(), clock).await;
    let mut connection = connected.map_err(|e| e.to_string())?;
    if let Some(tls) = tls {
        connection = connection.secured(tls).await.map_err(|e| format!("TLS: {e}"))?;
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
