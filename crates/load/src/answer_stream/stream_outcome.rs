//! Decides whether a stream was complete, cut, unfinished, stalled or aborted, from the event that ended it and the end
//! of its transport.

use rolldrop_record::load::{StreamKind, StreamSettings};
use rolldrop_record::{Outcome, StreamEnd};

use super::StreamReader;
use super::terminal_events::Decision;

/// End of a stream's transport, or of our interest in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportEnd {
    /// The last chunk, or END_STREAM.
    LastChunk,
    /// The last of the announced bytes.
    ContentLength,
    /// A FIN, the normal end of a body without an announced end.
    Close,
    /// A FIN before the announced end.
    Truncated,
    /// A reset of the connection or of the HTTP/2 stream, or another error of the transport.
    Reset,
    /// No byte within the stall timeout.
    Stalled,
    /// [`StreamReader::push`] failed.
    EventTooLong,
    /// The framing of the body violates the protocol, so that its end is unknown.
    Malformed,
    /// The run ended first.
    Cancelled,
}

impl StreamReader {
    /// Returns the outcome of a stream after a successful response head, given the end of its transport. Returns `None`
    /// if the transport failed before the stream began; the request then has the outcome of a plain request.
    ///
    /// - If the app reported that it gave up, the outcome reflects this, whatever follows.
    /// - After the event that completes a stream, a FIN is a clean end, with or without the last chunk. A reset is not,
    ///   because it may have destroyed data. The caller reports the end of the body as soon as it has arrived, so a
    ///   later reset does not count.
    /// - Without such an event, only an announced end shows that a stream is complete.
    pub fn outcome(&self, end: TransportEnd) -> Option<Outcome> {
        let is_complete = match &self.progress.decision {
            Some(Decision::Aborted { .. }) => return Some(Outcome::StreamAborted),
            Some(Decision::Complete(_)) => true,
            None => false,
        };
        let has_begun = self.progress.events > 0;
        match end {
            TransportEnd::Cancelled => Some(Outcome::Cancelled),
            TransportEnd::EventTooLong | TransportEnd::Malformed => Some(Outcome::ProtocolError),
            TransportEnd::Stalled => has_begun.then_some(Outcome::StreamStalled),
            TransportEnd::Reset => has_begun.then_some(Outcome::StreamCut),
            TransportEnd::Truncated if !is_complete => has_begun.then_some(Outcome::StreamCut),
            TransportEnd::LastChunk
            | TransportEnd::ContentLength
            | TransportEnd::Close
            | TransportEnd::Truncated => {
                let is_whole = || is_announced_end(&self.settings, end) && !self.is_mid_event();
                Some(if is_complete || is_whole() { Outcome::Ok } else { Outcome::StreamUnfinished })
            }
        }
    }
}

/// Returns true if this end of the transport alone shows that the stream is complete, because streams of its kind have
/// no last event and the end was announced. A FIN proves nothing, because it also ends the response of a killed server.
fn is_announced_end(settings: &StreamSettings, end: TransportEnd) -> bool {
    let has_no_last_event = settings.end.is_none()
        && matches!(settings.kind, StreamKind::Sse | StreamKind::Ndjson | StreamKind::Bytes);
    has_no_last_event && matches!(end, TransportEnd::LastChunk | TransportEnd::ContentLength)
}

impl From<TransportEnd> for StreamEnd {
    fn from(end: TransportEnd) -> Self {
        match end {
            TransportEnd::LastChunk => Self::LastChunk,
            TransportEnd::ContentLength => Self::ContentLength,
            TransportEnd::Close => Self::Close,
            TransportEnd::Truncated => Self::Truncated,
            TransportEnd::Reset => Self::Reset,
            TransportEnd::Stalled => Self::Stalled,
            TransportEnd::EventTooLong => Self::EventTooLong,
            TransportEnd::Malformed => Self::Malformed,
            TransportEnd::Cancelled => Self::Cancelled,
        }
    }
}
