//! Requests of the schedule that the load itself did not send.

/// Reason why a scheduled request was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum NotSent {
    /// All allowed connections were in use.
    MaxConnections,
    /// The worker reached it too late.
    Late,
    /// No socket could be opened.
    NoSocket,
    /// No local port was free.
    NoLocalPort,
    /// All streams of the allowed connections were in use.
    MaxStreams,
    /// The values filled into its template make no valid URL or header.
    NoRequest,
}

impl NotSent {
    /// Returns the text in the `not_sent_reason` column.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            NotSent::MaxConnections => "max_connections",
            NotSent::Late => "late",
            NotSent::NoSocket => "no_socket",
            NotSent::NoLocalPort => "no_local_port",
            NotSent::MaxStreams => "max_streams",
            NotSent::NoRequest => "no_request",
        }
    }
}
