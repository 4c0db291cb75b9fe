//! HTTP/1.0 and HTTP/1.1 between a client and its app.
//!
//! The relay parses message heads to find the ends of messages, and passes on every byte unchanged. It only adds the
//! pod header after a response's own headers. Requests and responses flow independently, so pipelining, early
//! responses, 1xx, trailers and upgrades need nothing special. A head that arrives in pieces is passed on in pieces,
//! but the app receives the request line, and the line end that completes the head, only after they have been checked.

#[cfg(any(test, fuzzing))]
pub(super) mod fuzzing;
mod head;
mod requests_in_flight;

use std::pin::pin;

use bytes::Buf;

use self::head::{HeadScan, IncomingRequest, IncomingResponse, ResponseHead};
pub(super) use self::requests_in_flight::RequestsInFlight;
use self::requests_in_flight::SpokenProtocol;
use super::budget::{Buffer, Unrecorded};
use super::refusal::ProxyRefusal;
use super::relay::{self, ConnectionFinish, Inlet, Outlet, RelayStop, RelayStreams};
use rolldrop_wire::http1::Body;

impl RequestsInFlight {
    /// Relays until the connection is finished.
    pub(super) async fn relay(&self, streams: RelayStreams<'_>) -> ConnectionFinish {
        let RelayStreams { from_client, to_client, from_app, to_app, from_client_buf, from_app_buf } =
            streams;
        tokio::select! {
            biased;
            finish = relay_responses(from_app, to_client, from_app_buf, self) => finish,
            finish = relay_requests(from_client, to_app, from_client_buf, self) => finish,
        }
    }

    /// Records the request of a client that will get no response from the app; returns true once there is a complete or
    /// malformed head.
    pub(super) fn ask(&self, bytes: &[u8]) -> bool {
        match IncomingRequest::default().look(bytes) {
            Ok(HeadScan::Complete(mut head)) => {
                self.begin(&mut head);
                true
            }
            Ok(HeadScan::Partial { .. }) => false,
            Err(_) => true,
        }
    }
}

/// A message at the front of a buffer.
struct BufferedMessage<H> {
    head: H,
    /// Number of head bytes already passed on.
    sent: usize,
}

/// Passes requests on until the connection is finished.
async fn relay_requests(
    mut from: Inlet<'_>,
    mut to: Outlet<'_>,
    mut buf: Buffer<'_>,
    exchange: &RequestsInFlight,
) -> ConnectionFinish {
    let sides = &exchange.origin().sides;
    let unpassed = loop {
        if let Err(unpassed) = pass_request(&mut from, &mut to, &mut buf, exchange).await {
            break unpassed;
        }
    };
    // The bytes read so far are not needed during the waits below.
    drop(buf);
    match unpassed {
        Unpassed::Refused(refusal) => {
            // The proxy's own response must wait for its turn.
            exchange.settled().await;
            ConnectionFinish::Refuse(refusal)
        }
        Unpassed::Stopped(stop) => relay::end_requests(stop, &mut from, &mut to, sides, exchange).await,
    }
}

/// Reason why a request was not passed on.
enum Unpassed {
    Refused(ProxyRefusal),
    Stopped(RelayStop),
}

impl From<RelayStop> for Unpassed {
    fn from(stop: RelayStop) -> Self {
        Unpassed::Stopped(stop)
    }
}

/// Passes the next request on, and all following bytes if the request switches protocols.
async fn pass_request(
    from: &mut Inlet<'_>,
    to: &mut Outlet<'_>,
    buf: &mut Buffer<'_>,
    exchange: &RequestsInFlight,
) -> Result<(), Unpassed> {
    // Only a limited number of requests is tracked. A client that sends more is slowed down, as it would be by a full
    // buffer.
    tokio::select! {
        biased;
        () = exchange.has_room() => {}
        () = from.has_failed() => return Err(RelayStop::Source.into()),
    }
    let mut incoming = IncomingRequest::default();
    let look = |bytes: &[u8]| match exchange.protocol() {
        SpokenProtocol::Switched => Ok(HeadScan::Complete(None)),
        SpokenProtocol::Http | SpokenProtocol::Unread => match incoming.look(bytes) {
            Ok(HeadScan::Complete(head)) => Ok(HeadScan::Complete(Some(head))),
            Ok(HeadScan::Partial { safe }) => Ok(HeadScan::Partial { safe }),
            Err(refusal) => Err(Unpassed::Refused(refusal)),
        },
    };
    // Refuse a head for which there is no room, as an app would.
    let too_large = || Err(Unpassed::Refused(ProxyRefusal::HeadTooLarge));
    let BufferedMessage { head, mut sent } = next_head(from, to, buf, look, too_large).await?;
    let Some(mut head) = head else {
        return Ok(pass(&mut sent, 0, &mut Body::UntilClose, buf, from, to).await?);
    };
    exchange.begin(&mut head);
    to.owes(true);
    pass(&mut sent, head.len, &mut head.body, buf, from, to).await?;
    to.owes(false);
    match head.asks_switch {
        true => Ok(await_decision(from, to, buf, exchange).await?),
        false => Ok(()),
    }
}

/// After a request to switch protocols, waits until it is clear whether the following bytes belong to the new protocol.
/// Bytes that arrive in the meantime are held, as far as there is room.
async fn await_decision(
    from: &mut Inlet<'_>,
    to: &mut Outlet<'_>,
    buf: &mut Buffer<'_>,
    exchange: &RequestsInFlight,
) -> Result<(), RelayStop> {
    let mut decided = pin!(exchange.decided());
    let mut is_closed = false;
    loop {
        if is_closed || !buf.may_hold_more() {
            tokio::select! {
                biased;
                () = &mut decided => return Ok(()),
                () = from.has_failed() => return Err(RelayStop::Source),
            }
        }
        let read = tokio::select! {
            biased;
            () = &mut decided => return Ok(()),
            read = relay::fill(from, buf, to) => read,
        };
        match read {
            // The app must learn that no one is waiting for its response.
            Ok(0) if buf.is_empty() => return Err(RelayStop::SourceClosed),
            Ok(0) => is_closed = true,
            Ok(_) => {}
            Err(_) => return Err(RelayStop::Source),
        }
    }
}

/// Passes responses on until the connection is finished.
async fn relay_responses(
    mut from: Inlet<'_>,
    mut to: Outlet<'_>,
    mut buf: Buffer<'_>,
    exchange: &RequestsInFlight,
) -> ConnectionFinish {
    let stop = loop {
        if let Err(stop) = pass_response(&mut from, &mut to, &mut buf, exchange).await {
            break stop;
        }
    };
    drop(buf);
    relay::end_responses(stop, &mut from, &mut to, &exchange.origin().sides, exchange).await
}

/// Passes the next response on, including interim responses.
async fn pass_response(
    from: &mut Inlet<'_>,
    to: &mut Outlet<'_>,
    buf: &mut Buffer<'_>,
    exchange: &RequestsInFlight,
) -> Result<(), RelayStop> {
    let mut incoming = IncomingResponse::default();
    let look = |bytes: &[u8]| Ok::<_, RelayStop>(incoming.look(bytes, exchange.is_next_to_head()));
    let too_large = || {
        exchange.origin().shared.journal.unrecorded(Unrecorded::Head);
        Ok(ResponseHead::UNREADABLE)
    };
    let BufferedMessage { mut head, mut sent } = next_head(from, to, buf, look, too_large).await?;
    if !head.is_interim() {
        exchange.answered(&head);
        if let Some(pod) = &exchange.origin().shared.pod_header {
            head.insert(buf, &pod.line);
        }
    }
    // If the end can no longer be determined, the client should still see what the app sends.
    let mut passed = pass(&mut sent, head.len, &mut head.body, buf, from, to).await;
    if matches!(passed, Err(RelayStop::Framing)) {
        exchange.mark_unread();
        head.body = Body::UntilClose;
        passed = pass(&mut sent, 0, &mut head.body, buf, from, to).await;
    }
    match passed {
        Ok(()) if head.is_interim() => {}
        Ok(()) => exchange.complete(),
        Err(RelayStop::SourceClosed) if head.ends_by_close() => exchange.complete(),
        Err(_) => {}
    }
    passed
}

/// Reads the next head at the front of `buf`, and passes on as much of it as allowed. `too_large` decides what to do
/// about a head that does not fit.
async fn next_head<H, E: From<RelayStop>>(
    from: &mut Inlet<'_>,
    to: &mut Outlet<'_>,
    buf: &mut Buffer<'_>,
    mut look: impl FnMut(&[u8]) -> Result<HeadScan<H>, E>,
    too_large: impl FnOnce() -> Result<H, E>,
) -> Result<BufferedMessage<H>, E> {
    let mut sent = 0;
    loop {
        if !buf.is_empty() {
            match look(buf)? {
                HeadScan::Complete(head) => return Ok(BufferedMessage { head, sent }),
                HeadScan::Partial { safe } => {
                    let safe = safe.max(sent);
                    relay::write(from, to, &buf[sent..safe]).await?;
                    sent = safe;
                }
            }
            if !buf.may_hold_more() {
                return Ok(BufferedMessage { head: too_large()?, sent });
            }
        }
        let stop = match relay::fill(from, buf, to).await {
            Ok(1..) => continue,
            Ok(0) => RelayStop::SourceClosed,
            Err(_) => RelayStop::Source,
        };
        // No more bytes will arrive, so held-back bytes are passed on too.
        return Err(relay::flush(from, to, &buf[sent..], stop).await.into());
    }
}

/// Passes on the message at the front of `buf`: `head_len` bytes of head, then its body. The first `sent` bytes of the
/// buffer have already been passed on.
async fn pass(
    sent: &mut usize,
    head_len: usize,
    body: &mut Body,
    buf: &mut Buffer<'_>,
    from: &mut Inlet<'_>,
    to: &mut Outlet<'_>,
) -> Result<(), RelayStop> {
    let mut ready = head_len;
    loop {
        ready += body.take(&buf[ready..]).map_err(|_| RelayStop::Framing)?;
        if ready > 0 {
            relay::write(from, to, &buf[*sent..ready]).await?;
            to.has_passed(ready);
            buf.advance(ready);
            (*sent, ready) = (0, 0);
        }
        if body.is_done() {
            return Ok(());
        }
        match relay::fill(from, buf, to).await {
            Ok(0) => return Err(RelayStop::SourceClosed),
            Ok(_) => {}
            Err(_) => return Err(RelayStop::Source),
        }
    }
}
