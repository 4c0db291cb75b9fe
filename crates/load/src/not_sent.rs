//! Requests of the schedule that the load itself did not send.

/// Why a scheduled request was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum NotSent {
    /// Every connection that is allowed was in use.
    MaxConnections,
    /// The worker came to it too late.
    Late,
    /// No socket could be opened.
    NoSocket,
    /// No local port was free.
    NoLocalPort,
    /// Every stream that connections have was in use.
    MaxStreams,
    /// What was filled into its template makes no URL or header.
    NoRequest,
}

impl NotSent {
    /// The text in the `not_sent_reason` column.
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
