//! Log line for a stream: the ground truth for stream measurements.

use serde::Serialize;

/// Final state of a stream.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct StreamEntry<'a> {
    /// Request id from the client.
    pub(crate) id: Option<&'a str>,
    pub(crate) path: &'a str,
    /// Time at which the head of the request was read.
    pub(crate) accepted_ns: i64,
    /// Time at which the kernel had accepted the first event; `None` if it accepted none.
    pub(crate) started_ns: Option<i64>,
    pub(crate) ended_ns: i64,
    /// Length drawn for the stream.
    pub(crate) length_ns: u64,
    /// Number of events handed to the kernel in full, including terminal and error events; for a download, its pieces.
    pub(crate) events: u64,
    /// Total size of these events, without HTTP framing.
    pub(crate) bytes: u64,
    /// Number of the last numbered event among them; 0 if there was none.
    pub(crate) last_event: u64,
    pub(crate) end: ServedStreamEnd,
    /// True if a stop signal had arrived before the end.
    pub(crate) after_stop_signal: bool,
}

/// End of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ServedStreamEnd {
    /// The stream ended cleanly with its terminal event.
    Complete,
    /// The client closed the connection first.
    ClientGone,
    /// The server closed the connection mid-stream.
    CutFin,
    /// The server reset the connection mid-stream.
    CutRst,
    /// The stream ended cleanly without its terminal event.
    Unfinished,
    /// The stream ended cleanly with finish reason `abort` and its terminal event.
    Aborted,
    /// The stream ended cleanly with an error event.
    ErrorEvent,
    /// The server stopped sending, and the client closed the connection.
    Stalled,
    /// The server closed the connection because of a stop signal.
    CutAtSigterm,
    /// The stream ended cleanly with an error event because of a stop signal.
    Goodbye,
}

impl ServedStreamEnd {
    /// Returns true if the kernel accepted the whole response.
    pub(crate) fn is_clean(self) -> bool {
        match self {
            Self::Complete | Self::Unfinished | Self::Aborted | Self::ErrorEvent | Self::Goodbye => true,
            Self::ClientGone | Self::CutFin | Self::CutRst | Self::Stalled | Self::CutAtSigterm => false,
        }
    }
}
