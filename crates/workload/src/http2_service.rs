//! Serves the same responses over HTTP/2 to clients with prior knowledge, and answers any unary gRPC call with status
//! OK and either an empty message or the server's health (`grpc.health.v1.Health/Check`).
//!
//! A connection that sends a request while the server drains, or that is open when the server stops accepting, gets a
//! GOAWAY; its earlier requests are answered.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use h2::server::{Connection, SendResponse};
use h2::{RecvStream, SendStream};
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{HeaderMap, Request, Response, StatusCode};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::path_responses::{BodyPace, ServerReadiness, UnsentResponse};
use super::response_flush::{LoggedTransport, Unflushed};
use super::server_state::{POD, REQUEST_ID, ServerState};
use super::workload_log::LoggedExchange;

/// First bytes of HTTP/2. No HTTP/1.1 request begins with them.
const PREFACE: &[u8; 4] = b"PRI ";
/// Interval between checks while only part of the first bytes has arrived.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_OK: HeaderValue = HeaderValue::from_static("0");
const GRPC_INTERNAL: HeaderValue = HeaderValue::from_static("13");
/// Frame of a zero-length message.
const EMPTY_MESSAGE: Bytes = Bytes::from_static(&[0; 5]);
/// Health-check method, and the message of each response: a status in field 1.
const HEALTH_CHECK: &str = "/grpc.health.v1.Health/Check";
const SERVING: Bytes = Bytes::from_static(&[0, 0, 0, 0, 2, 8, 1]);
const NOT_SERVING: Bytes = Bytes::from_static(&[0, 0, 0, 0, 2, 8, 2]);

/// Waits for a connection's first bytes and returns true if they are HTTP/2.
///
/// # Errors
/// Fails if the connection breaks first.
pub(super) async fn is_spoken(stream: &TcpStream) -> io::Result<bool> {
    let mut begun = [0; PREFACE.len()];
    loop {
        match stream.peek(&mut begun).await? {
            0 => return Ok(false),
            length if begun[..length] != PREFACE[..length] => return Ok(false),
            length if length == PREFACE.len() => return Ok(true),
            _ => sleep(LOOK_AGAIN).await,
        }
    }
}

/// Serves a connection until the client closes it or the server shuts down.
pub(super) async fn serve(stream: TcpStream, shared: Rc<ServerState>, finish: CancellationToken) {
    let unflushed = Unflushed::default();
    let transport = LoggedTransport::new(stream, unflushed.clone());
    let Ok(mut connection) = h2::server::handshake(transport).await else { return };
    let mut answers = JoinSet::new();
    let mut is_leaving = false;
    loop {
        tokio::select! {
            accepted = connection.accept() => match accepted {
                Some(Ok((request, respond))) => {
                    answers.spawn_local(respond_to(request, respond, shared.clone(), unflushed.clone()));
                }
                // All remaining frames have been sent.
                Some(Err(_)) | None => return,
            },
            Some(_) = answers.join_next() => {}
            () = finish.cancelled(), if !is_leaving => leave(&mut connection, &mut is_leaving),
        }
        if shared.draining.get() && !is_leaving {
            leave(&mut connection, &mut is_leaving);
        }
    }
}

fn leave(connection: &mut Connection<LoggedTransport, Bytes>, is_leaving: &mut bool) {
    connection.graceful_shutdown();
    *is_leaving = true;
}

async fn respond_to(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    shared: Rc<ServerState>,
    unflushed: Unflushed,
) {
    let header = |name: &HeaderName| request.headers().get(name).and_then(|value| value.to_str().ok());
    let exchange = LoggedExchange::received(&shared.log, header(&REQUEST_ID).map(str::to_owned));
    let is_grpc = header(&CONTENT_TYPE).is_some_and(|kind| kind.starts_with("application/grpc"));
    let path = request.uri().path();
    let (UnsentResponse { status, body, delay, pace }, grpc_status) = match is_grpc {
        false => (shared.answer(path, request.uri().query()), GRPC_OK),
        true => called(path, &shared),
    };
    let mut received = request.into_body();
    while let Some(Ok(data)) = received.data().await {
        // Fails only if the stream has already ended.
        let _ = received.flow_control().release_capacity(data.len());
    }
    shared.delay(delay).await;
    let exchange = exchange.with_status(status.as_u16());
    let mut response = Response::new(());
    *response.status_mut() = status;
    if let Some(pod) = &shared.pod {
        response.headers_mut().insert(POD, pod.clone());
    }
    let sent = if is_grpc {
        response.headers_mut().insert(CONTENT_TYPE, GRPC);
        call(response, &mut respond, body, grpc_status)
    } else {
        response.headers_mut().insert(CONTENT_LENGTH, body.len().into());
        plain(response, &mut respond, body, pace).await
    };
    // A client that has disconnected needs no response; the exchange is dropped and logged as aborted.
    if sent.is_ok() {
        unflushed.then(|| exchange.answered());
    }
}

async fn plain(
    response: Response<()>,
    respond: &mut SendResponse<Bytes>,
    mut body: Bytes,
    pace: BodyPace,
) -> Result<(), h2::Error> {
    let mut stream = respond.send_response(response, body.is_empty())?;
    let (piece_bytes, pause) = match pace {
        BodyPace::AtOnce => (body.len(), Duration::ZERO),
        BodyPace::Pieces { piece_bytes, pause } => (piece_bytes, pause),
    };
    while !body.is_empty() {
        let piece = body.split_to(piece_bytes.clamp(1, body.len()));
        stream.send_data(piece, body.is_empty())?;
        if !body.is_empty() {
            sleep(pause).await;
        }
    }
    Ok(())
}

/// Returns the response to a call and its gRPC status.
fn called(path: &str, shared: &ServerState) -> (UnsentResponse, HeaderValue) {
    let is_to_fail = path != HEALTH_CHECK && shared.is_to_fail(path);
    let answer = UnsentResponse {
        status: StatusCode::OK,
        body: message(path, shared.readiness()),
        delay: Duration::ZERO,
        pace: BodyPace::AtOnce,
    };
    (answer, if is_to_fail { GRPC_INTERNAL } else { GRPC_OK })
}

/// Returns the response message for a call. A server that is not ready still serves calls, just as it serves paths;
/// only the health check shows that it is not ready.
fn message(path: &str, readiness: ServerReadiness) -> Bytes {
    match readiness {
        _ if path != HEALTH_CHECK => EMPTY_MESSAGE,
        ServerReadiness::Ready => SERVING,
        ServerReadiness::NotReady => NOT_SERVING,
    }
}

fn call(
    response: Response<()>,
    respond: &mut SendResponse<Bytes>,
    message: Bytes,
    status: HeaderValue,
) -> Result<(), h2::Error> {
    let mut stream: SendStream<Bytes> = respond.send_response(response, false)?;
    stream.send_data(message, false)?;
    stream.send_trailers(HeaderMap::from_iter([(GRPC_STATUS, status)]))
}
