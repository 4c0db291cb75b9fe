//! Ends of streams.

use super::names::named;

named! {
    /// End of a stream: the event that decided its outcome or, without such an event, the end of its transport.
    pub enum StreamEnd else UnknownStreamEnd "unknown stream end {0:?}" {
        /// The data `[DONE]`.
        Done = "done",
        /// Anthropic's `message_stop`.
        MessageStop = "message_stop",
        /// OpenAI's `response.completed`.
        ResponseCompleted = "response_completed",
        /// OpenAI's `response.incomplete`: the model reached a limit.
        ResponseIncomplete = "response_incomplete",
        /// An event that matches the user's pattern.
        Pattern = "pattern",
        /// OpenAI's `response.failed`.
        ResponseFailed = "response_failed",
        /// An unsuccessful finish reason.
        FinishReason = "finish_reason",
        /// An `error` event, or an object that contains an error.
        ErrorEvent = "error_event",
        /// The last chunk, or END_STREAM.
        LastChunk = "last_chunk",
        /// The announced number of bytes.
        ContentLength = "content_length",
        /// The connection was closed: the normal end of a body without an announced end.
        Close = "close",
        /// The connection was closed before the announced end.
        Truncated = "truncated",
        /// The connection, or its HTTP/2 stream, was reset.
        Reset = "reset",
        /// No byte within the stall timeout.
        Stalled = "stalled",
        /// An event that was too long to be read.
        EventTooLong = "event_too_long",
        /// The framing of the body violated the protocol.
        Malformed = "malformed",
        /// The run ended first.
        Cancelled = "cancelled",
    }
}
