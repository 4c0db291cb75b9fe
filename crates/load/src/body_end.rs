//! Steps in reading the body of an HTTP/1.1 response, common to all readers.

use std::io;

use super::answer_stream::TransportEnd;
use super::failure::{ExchangeFailure, PROTOCOL_ERROR, ResponseProgress, ended_early, lost, overdue};
use rolldrop_record::{Outcome, RequestRow};
use rolldrop_wire::answer_events::TooLong;
use rolldrop_wire::http1::Body;

/// End of a body's transport. If the transport ended badly, this includes the resulting failure of a plain response.
pub(super) type BodyEnd = Result<TransportEnd, (TransportEnd, ExchangeFailure)>;

/// Reason to stop reading a body.
#[derive(Debug)]
pub(super) enum ReadEnd {
    /// The body is complete.
    Complete,
    /// The peer closed the connection.
    Closed,
    /// The connection was reset or lost.
    Lost(io::Error),
    /// The framing is invalid.
    Malformed,
    /// An event is too long.
    EventTooLong,
    /// Nothing arrived within the stall timeout.
    Stalled,
}

/// Passes the body's content at the beginning of `bytes` to `content`. Returns the number of bytes that belong to
/// the body.
///
/// # Errors
/// Returns the reason if the body cannot be read any further.
pub(super) fn take_body(
    body: &mut Body,
    bytes: &[u8],
    mut content: impl FnMut(&[u8]) -> Result<(), TooLong>,
) -> Result<usize, ReadEnd> {
    let mut passed = Ok(());
    let taken = body.take_with(bytes, |piece| passed = passed.and_then(|()| content(piece)));
    let taken = taken.map_err(|_| ReadEnd::Malformed)?;
    passed.map_err(|TooLong| ReadEnd::EventTooLong)?;
    Ok(taken)
}

impl ReadEnd {
    /// Returns how the transport of a response ended, given the state of its body.
    pub(super) fn of_response(
        self,
        body: &Body,
        row: &RequestRow,
        write_error: Option<&io::Error>,
    ) -> BodyEnd {
        match self {
            Self::Complete => Ok(match body {
                Body::Length(_) => TransportEnd::ContentLength,
                Body::Chunked(_) | Body::UntilClose => TransportEnd::LastChunk,
            }),
            Self::Closed if *body == Body::UntilClose && write_error.is_none() => Ok(TransportEnd::Close),
            Self::Closed => Err((TransportEnd::Truncated, ended_early(ResponseProgress::Body, write_error))),
            Self::Lost(e) => {
                // Many servers close a TLS connection without close_notify.
                let is_closed = e.kind() == io::ErrorKind::UnexpectedEof && write_error.is_none();
                let end = if is_closed { TransportEnd::Truncated } else { TransportEnd::Reset };
                Err((end, lost(ResponseProgress::Body, &e, write_error)))
            }
            Self::Malformed => Err((TransportEnd::Malformed, PROTOCOL_ERROR)),
            Self::EventTooLong => {
                let failure = ExchangeFailure::with_detail(Outcome::ProtocolError, "event_too_long");
                Err((TransportEnd::EventTooLong, failure))
            }
            Self::Stalled => Err((TransportEnd::Stalled, overdue(row))),
        }
    }
}
