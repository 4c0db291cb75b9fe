//! WebSocket (RFC 6455): messages over long-lived connections, which the server must echo.
//!
//! A connection performs a handshake before its first message and carries one message at a time. The server must send
//! every message back unchanged. tungstenite parses and formats frames; the socket, its error numbers and the byte
//! counts remain under our control. Pings that arrive between two messages are answered during the next exchange. No
//! connection is closed without sending a close frame first.

use std::io::{self, Cursor};
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Control, Data, OpCode};
use tokio_tungstenite::tungstenite::protocol::frame::{Frame, FrameHeader};

use super::connection::Connection;
use super::failure::{ExchangeFailure, PROTOCOL_ERROR, ResponseProgress, Result};
use super::http1_client::{Http1Exchange, Switch};
use super::request::{Persistence, WebSocket};
use super::request_write::RequestWrite;
use rolldrop_record::Outcome;

/// Status of a response that switches protocols, and of every later message.
const SWITCHED: u16 = 101;
/// Maximum size in bytes of a frame that counts as part of an echo.
const MAX_FRAME: u64 = 64 << 20;
/// Maximum number of bytes that a server may send between two messages (pings and a close frame).
const MAX_BETWEEN: usize = 1 << 20;
/// Maximum payload of a control frame in bytes (RFC 6455, 5.5).
const MAX_CONTROL: u64 = 125;
/// Time limit for servers to answer the last close frames of a load.
const FAREWELL: Duration = Duration::from_secs(1);
/// Close code sent when no further message follows.
const NORMAL_CLOSURE: u16 = 1000;

/// Returns true if an idle connection can carry a message: the server has neither closed it nor sent a close frame.
/// Bytes that have arrived are kept for the next exchange.
pub(super) fn is_open(connection: &mut Connection) -> bool {
    loop {
        match connection.read_now() {
            Ok(Some(0)) | Err(_) => return false,
            Ok(Some(_)) if connection.buffer.len() > MAX_BETWEEN => return false,
            Ok(Some(_)) => {}
            Ok(None) => break,
        }
    }
    let mut rest = &connection.buffer[..];
    while let Ok(Some((header, head, payload))) = header(rest) {
        if header.opcode == OpCode::Control(Control::Close) {
            return false;
        }
        match rest.get(head + payload..) {
            Some(after) => rest = after,
            None => break,
        }
    }
    true
}

/// Sends a message and waits for its echo; a new connection performs the handshake first. Returns true if the
/// connection can carry another message.
pub(super) async fn exchange(
    talk: &mut Http1Exchange<'_>,
    templates: &WebSocket,
    persistence: Persistence,
) -> Result<bool> {
    if !talk.row.conn_reused && !shake_hands(talk, templates).await? {
        return Ok(false);
    }
    talk.row.status = Some(SWITCHED);
    let mut message = Vec::new();
    templates.message.fill(talk.row.seq, talk.row.attempts, &mut message);
    let kind = if std::str::from_utf8(&message).is_ok() { Data::Text } else { Data::Binary };
    talk.row.sent = Some(talk.context.clock.now());
    // The server may have sent a close frame with a code before it read this message; that code is recorded.
    let sent = send(talk, Frame::message(message.clone(), OpCode::Data(kind), true)).await;
    talk.write = RequestWrite::ended(sent);
    if echo(talk, message.len()).await? != message {
        return Err(no_echo());
    }
    talk.row.end = talk.context.clock.now();
    talk.row.outcome = Outcome::Ok;
    let is_last = talk.context.plan.settings.connections.max_requests == Some(talk.connection.requests);
    if persistence == Persistence::Close || is_last {
        // The echo has arrived, so it does not matter whether this close frame is delivered.
        let _ = send(talk, close(NORMAL_CLOSURE)).await;
    }
    Ok(true)
}

/// Requests the switch to WebSocket. Returns false if the server refused it with a complete response.
async fn shake_hands(talk: &mut Http1Exchange<'_>, templates: &WebSocket) -> Result<bool> {
    let key = generate_key();
    let mut request = Vec::new();
    templates.handshake.fill(talk.row.seq, talk.row.attempts, &mut request);
    // Removes the empty line, to append more fields.
    request.truncate(request.len() - 2);
    request.extend_from_slice(format!("sec-websocket-key: {key}\r\n\r\n").as_bytes());
    let sent = talk.connection.write_all(&request, &mut talk.row.bytes_sent).await;
    talk.write = RequestWrite::ended(sent);
    let mut head = talk.read_head(Switch::Asked).await?;
    talk.row.status = Some(head.status);
    if head.status == SWITCHED {
        let expected = derive_accept_key(key.as_bytes());
        if head.accept.is_none_or(|accept| *accept != *expected) {
            return Err(ExchangeFailure::with_detail(
                Outcome::ProtocolError,
                "no valid sec-websocket-accept",
            ));
        }
        talk.connection.is_websocket = true;
        return Ok(true);
    }
    talk.row.head = Some(talk.context.clock.now());
    talk.read_body(&mut head, None).await.map_err(|(_, failure)| failure)?;
    talk.row.end = talk.context.clock.now();
    talk.row.outcome = Outcome::HttpError;
    Ok(false)
}

fn no_echo() -> ExchangeFailure {
    ExchangeFailure::with_detail(Outcome::ProtocolError, "not the message that was sent")
}

/// Reads one message of at most `most` bytes, and answers control frames that precede it.
async fn echo(talk: &mut Http1Exchange<'_>, most: usize) -> Result<Vec<u8>> {
    let mut message: Option<Vec<u8>> = None;
    loop {
        while let Some((header, head, payload)) = header(&talk.connection.buffer)? {
            if matches!(header.opcode, OpCode::Data(_)) && talk.row.head.is_none() {
                talk.row.head = Some(talk.context.clock.now());
            }
            // A longer message is not an echo, and need not be read to its end.
            let so_far = message.as_ref().map_or(0, Vec::len);
            if matches!(header.opcode, OpCode::Data(_)) && so_far + payload > most {
                return Err(no_echo());
            }
            let Some(bytes) = talk.connection.buffer.get(head..head + payload) else { break };
            let bytes = bytes.to_vec();
            talk.connection.buffer.drain(..head + payload);
            match header.opcode {
                OpCode::Control(Control::Ping) => {
                    // If the connection accepts no more bytes, the next read reports it.
                    let _ = send(talk, Frame::pong(bytes)).await;
                }
                OpCode::Control(Control::Close) => {
                    let _ = send(talk, answer_to_close(&bytes)).await;
                    return Err(closed(message.is_some(), &bytes));
                }
                OpCode::Control(_) => {}
                OpCode::Data(data) => {
                    let continues = data == Data::Continue;
                    if continues != message.is_some() {
                        return Err(PROTOCOL_ERROR);
                    }
                    message.get_or_insert_default().extend(bytes);
                    if header.is_final {
                        return Ok(message.unwrap_or_default());
                    }
                }
            }
        }
        let has_begun = talk.row.head.is_some() || !talk.connection.buffer.is_empty();
        let reached = if has_begun { ResponseProgress::Body } else { ResponseProgress::Nothing };
        talk.read_more(reached).await.map_err(without_close_frame)?;
    }
}

/// Returns the header of the frame at the beginning of `bytes`, the header's length and the payload's length; `None` if
/// the header is incomplete.
pub(super) fn header(bytes: &[u8]) -> Result<Option<(FrameHeader, usize, usize)>> {
    let mut cursor = Cursor::new(bytes);
    let Some((header, payload)) = FrameHeader::parse(&mut cursor).map_err(|_| PROTOCOL_ERROR)? else {
        return Ok(None);
    };
    let is_control = matches!(header.opcode, OpCode::Control(_));
    let limit = if is_control { MAX_CONTROL } else { MAX_FRAME };
    // No extension was requested; servers do not mask; control frames are not fragmented.
    let is_reserved = header.rsv1 || header.rsv2 || header.rsv3;
    if is_reserved || header.mask.is_some() || payload > limit || is_control && !header.is_final {
        return Err(PROTOCOL_ERROR);
    }
    let (Ok(head), Ok(payload)) = (usize::try_from(cursor.position()), usize::try_from(payload)) else {
        return Err(PROTOCOL_ERROR);
    };
    Ok(Some((header, head, payload)))
}

/// Closes an idle connection without waiting; a WebSocket connection gets a close frame first.
pub(super) fn part(mut connection: Connection) {
    if connection.is_websocket
        && let Ok(goodbye) = masked(close(NORMAL_CLOSURE))
    {
        connection.write_now(&goodbye);
    }
}

/// Closes idle WebSocket connections, and waits briefly for their servers, which should answer and close first (RFC
/// 6455, 7.1.1).
pub(super) async fn take_leave(connections: impl Iterator<Item = Connection>) {
    let leave = async |mut connection: Connection| {
        let goodbye = masked(close(NORMAL_CLOSURE))?;
        connection.write_all(&goodbye, &mut 0).await?;
        while connection.read().await? > 0 {
            connection.buffer.clear();
        }
        io::Result::Ok(())
    };
    // Errors of individual connections no longer matter.
    let _ = timeout(FAREWELL, join_all(connections.map(leave))).await;
}

async fn send(talk: &mut Http1Exchange<'_>, frame: Frame) -> io::Result<()> {
    talk.connection.write_all(&masked(frame)?, &mut talk.row.bytes_sent).await
}

/// Returns a frame's bytes, masked as required of clients.
fn masked(mut frame: Frame) -> io::Result<Vec<u8>> {
    frame.header_mut().mask = Some(rand::random());
    let mut bytes = Vec::with_capacity(frame.len());
    frame.format(&mut bytes).map_err(io::Error::other)?;
    Ok(bytes)
}

fn close(code: u16) -> Frame {
    let header = FrameHeader::default();
    Frame::from_payload(header, code.to_be_bytes().to_vec().into())
}

/// Answers a close frame with the same code.
fn answer_to_close(payload: &[u8]) -> Frame {
    match payload.first_chunk() {
        Some(code) => close(u16::from_be_bytes(*code)),
        None => Frame::close(None),
    }
}

/// Returns the failure if the server announced a close in the middle of an exchange.
fn closed(has_begun: bool, payload: &[u8]) -> ExchangeFailure {
    let outcome = if has_begun { Outcome::TruncatedBody } else { Outcome::EofBeforeResponse };
    let detail: Arc<str> = match payload.split_first_chunk() {
        Some((code, reason)) => {
            let (code, reason) = (u16::from_be_bytes(*code), String::from_utf8_lossy(reason));
            format!("close {code} {reason}").trim_end().into()
        }
        None => "close without a code".into(),
    };
    ExchangeFailure::with_detail(outcome, detail)
}

/// Notes in the failure that the connection ended without a close frame.
fn without_close_frame(failure: ExchangeFailure) -> ExchangeFailure {
    match failure.outcome {
        Outcome::EofBeforeResponse | Outcome::TruncatedBody if failure.detail.is_none() => {
            ExchangeFailure::with_detail(failure.outcome, "no close frame")
        }
        _ => failure,
    }
}
