//! One request on an HTTP/2 connection of its own, outside the load.

use std::convert::Infallible;
use std::future::poll_fn;
use std::task::Poll;

use bytes::Bytes;
use http::Request;

use super::goaway_name;
use super::http2_session::{ConnectionEnd, Http2Session};
use super::session_io::SessionIo;
use super::stream_slot::{BodySink, StreamEnd, StreamSlot};
use crate::request::http2_template;
use crate::socket_transport::SocketTransport;
use rolldrop_record::Clock;

/// A request, and the connection that carries it.
pub(crate) struct LoneRequest {
    session: Http2Session,
    io: SessionIo<SocketTransport>,
    slot: usize,
}

impl LoneRequest {
    /// Creates a request to be sent on `transport`, which must be new.
    pub(crate) fn new(request: &Request<()>, body: Bytes, transport: SocketTransport, clock: Clock) -> Self {
        let mut session = Http2Session::new(usize::MAX);
        let opened = session.open(clock.now(), false, BodySink::default(), |block| {
            block.extend_from_slice(&http2_template::encode(request));
            Ok::<_, Infallible>(body)
        });
        let slot = opened.unwrap_or_else(|never| match never {});
        Self { session, io: SessionIo::new(transport, clock), slot }
    }

    /// Waits for the head of a response. A stream reset by the server counts as one, because only an HTTP/2 server
    /// resets streams.
    ///
    /// # Errors
    /// Returns the reason if there is no response.
    pub(crate) async fn answered(&mut self) -> Result<(), String> {
        self.until(|stream| stream.head.is_some() || stream.end.is_some()).await;
        let stream = self.session.stream(self.slot);
        if stream.head.is_some() {
            return Ok(());
        }
        Err(match (stream.end.as_ref().map(|(end, _)| end), &self.session.end, &self.session.write_error) {
            (Some(StreamEnd::Complete | StreamEnd::Reset(_)), ..) => return Ok(()),
            (Some(StreamEnd::GoAway(code)), ..) => goaway_name(*code),
            (Some(StreamEnd::Fault(fault)), ..) | (_, Some(ConnectionEnd::Fault(fault)), _) => {
                fault.to_string()
            }
            (_, Some(ConnectionEnd::Lost(error)), _) | (.., Some(error)) => error.to_string(),
            _ => "the server closed the connection without an answer".to_owned(),
        })
    }

    /// Reads until the response has ended.
    pub(crate) async fn ended(&mut self) {
        self.until(|stream| stream.end.is_some()).await;
    }

    async fn until(&mut self, is_reached: fn(&StreamSlot) -> bool) {
        poll_fn(|context| {
            let is_over = self.io.poll(context, &mut self.session).is_ready();
            if is_over || is_reached(self.session.stream(self.slot)) {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }
}
