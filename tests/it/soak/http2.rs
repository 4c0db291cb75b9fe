//! HTTP/2 with prior knowledge: streams share a connection, and some are cancelled, reset, left unprocessed, or cut off
//! with the connection.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, client, server};
use http::{HeaderMap, HeaderName, Request, Response};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::{Ledger, bytes, one_of, reset};

const WINDOW: u32 = 1 << 20;

/// Runs an app's side of a connection.
pub(super) async fn serve(stream: TcpStream, mut rng: StdRng, ledger: Arc<Ledger>) -> Result<(), h2::Error> {
    if rng.random_bool(0.05) {
        // The connection is always closed with a reset.
        reset(&stream);
    }
    // After this many requests, the app sends GOAWAY or closes the connection.
    let last = rng.random_bool(0.3).then(|| rng.random_range(1..20));
    let is_graceful = rng.random_bool(0.5);
    let mut builder = server::Builder::new();
    builder.initial_window_size(WINDOW).initial_connection_window_size(4 * WINDOW);
    let mut connection = builder.handshake::<_, Bytes>(stream).await?;
    let mut calls = JoinSet::new();
    let mut count = 0;
    loop {
        tokio::select! {
            accepted = connection.accept() => {
                let Some(accepted) = accepted else { break };
                let (request, respond) = accepted?;
                let id = request.headers().get("rolldrop-id").and_then(|id| id.to_str().ok());
                ledger.read_by_app(id.unwrap_or_default());
                calls.spawn(answer(request.into_body(), respond, StdRng::seed_from_u64(rng.random())));
                count += 1;
                if last == Some(count) {
                    if !is_graceful {
                        return Ok(());
                    }
                    connection.graceful_shutdown();
                }
            }
            Some(_) = calls.join_next() => {}
        }
    }
    Ok(())
}

/// Responds to a request, or fails to.
async fn answer(
    mut body: RecvStream,
    mut respond: SendResponse<Bytes>,
    mut rng: StdRng,
) -> Result<(), h2::Error> {
    if rng.random_bool(0.04) {
        respond.send_reset(one_of(&mut rng, &[Reason::REFUSED_STREAM, Reason::INTERNAL_ERROR]));
        return Ok(());
    }
    while let Some(data) = body.data().await {
        let length = data?.len();
        body.flow_control().release_capacity(length)?;
    }
    if rng.random_bool(0.1) {
        sleep(Duration::from_millis(rng.random_range(0..50))).await;
    }
    let status = |code: &str| -> HeaderMap {
        std::iter::once((HeaderName::from_static("grpc-status"), code.parse().expect("a value"))).collect()
    };
    let mut head = Response::new(());
    if rng.random_bool(0.1) {
        *head.headers_mut() = status("14");
        respond.send_response(head, true)?;
        return Ok(());
    }
    let mut to = respond.send_response(head, false)?;
    let length = one_of(&mut rng, &[0, 3, 500, 40_000, 200_000]);
    let text = Bytes::from_static(bytes(&mut rng, length));
    if rng.random_bool(0.05) {
        to.send_data(text.slice(..length / 2), false)?;
        to.send_reset(Reason::CANCEL);
        return Ok(());
    }
    to.send_data(text, false)?;
    to.send_trailers(status("0"))
}

/// Runs a client's side of a connection.
pub(super) async fn converse(
    stream: TcpStream,
    rng: &mut StdRng,
    ledger: &Arc<Ledger>,
) -> Result<(), h2::Error> {
    let breaks_off = rng.random_bool(0.1);
    if breaks_off && rng.random() {
        reset(&stream);
    }
    let mut builder = client::Builder::new();
    builder.initial_window_size(one_of(rng, &[1_000, 65_535, WINDOW])).initial_connection_window_size(WINDOW);
    let (mut sender, connection) = builder.handshake::<_, Bytes>(stream).await?;
    let mut connection_task = JoinSet::new();
    connection_task.spawn(async move {
        let _ = connection.await;
    });
    for _ in 0..rng.random_range(1..8) {
        sender = sender.ready().await?;
        let mut calls = JoinSet::new();
        for _ in 0..one_of(rng, &[1, 1, 3, 10]) {
            let id = ledger.new_id();
            let length = one_of(rng, &[0, 10, 2_000, 100_000]);
            let request = Request::post("http://soak/").header("rolldrop-id", format!("run-soak-{id}"));
            let request = request.body(()).expect("a request");
            let (response, mut to) = sender.send_request(request, length == 0)?;
            if length > 0 {
                to.send_data(Bytes::from_static(bytes(rng, length)), true)?;
            }
            let (rng, ledger) = (StdRng::seed_from_u64(rng.random()), ledger.clone());
            calls.spawn(async move { read_answer(id, response, rng, &ledger).await });
        }
        if breaks_off && rng.random_bool(0.3) {
            sleep(Duration::from_millis(one_of(rng, &[0, 5, 20]))).await;
            connection_task.shutdown().await;
            // As far as the reader knows, requests in flight have failed.
        }
        while calls.join_next().await.is_some() {}
    }
    drop(sender);
    while connection_task.join_next().await.is_some() {}
    Ok(())
}

async fn read_answer(id: u64, response: client::ResponseFuture, mut rng: StdRng, ledger: &Ledger) {
    if rng.random_bool(0.03) {
        // The client gives up before or during the response.
        let _ = tokio::time::timeout(Duration::from_millis(one_of(&mut rng, &[0, 5])), response).await;
        return;
    }
    let is_slow = rng.random_bool(0.05);
    let mut has_begun = false;
    let read = async {
        let mut body = response.await?.into_body();
        has_begun = true;
        ledger.begun(id);
        while let Some(data) = body.data().await {
            let length = data?.len();
            if is_slow {
                sleep(Duration::from_millis(2)).await;
            }
            body.flow_control().release_capacity(length)?;
        }
        body.trailers().await.map(|_| ())
    };
    match read.await {
        Ok(()) => ledger.ended(id, true),
        // A client that was reset does not know how many bytes had arrived.
        Err(error) if error.is_reset() && error.is_remote() => ledger.ended(id, false),
        Err(error) if has_begun && error.is_io() && error.get_io().is_some_and(is_eof) => {
            ledger.ended(id, false)
        }
        Err(_) => {}
    }
}

fn is_eof(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::UnexpectedEof
}
