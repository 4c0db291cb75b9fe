//! Does the target answer at all, from where the load will be sent?
//!
//! Asked with a plain GET that carries no request id, so that no recorder takes it for a part
//! of the load.

use std::time::Duration;

use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until, timeout};
use url::Url;

use super::LoadError;

/// From one attempt to get an answer to the next.
const RETRY: Duration = Duration::from_millis(100);
/// For one attempt.
const ATTEMPT: Duration = Duration::from_secs(2);

/// Waits for any HTTP answer.
///
/// # Errors
/// When none comes within the limit.
pub(super) async fn first_answer(url: &str, limit: Duration) -> Result<(), LoadError> {
    let deadline = Instant::now() + limit;
    loop {
        let why = match timeout(ATTEMPT, answer(url)).await {
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

async fn answer(url: &str) -> Result<(), String> {
    let url = Url::parse(url).map_err(|e| e.to_string())?;
    let host = url.host_str().ok_or("no host")?.trim_matches(['[', ']']).to_owned();
    let port = url.port_or_known_default().ok_or("no port")?;
    let stream = TcpStream::connect((host.as_str(), port)).await.map_err(|e| e.to_string())?;
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
