//! Scheduled requests that the load itself did not send.

rolldrop_record::named! {
    /// Reason why a scheduled request was not sent.
    pub(super) enum NotSentReason {
        /// All allowed connections were in use.
        MaxConnections = "max_connections",
        /// The worker got to the request too late.
        Late = "late",
        /// No socket could be opened.
        NoSocket = "no_socket",
        /// No local port was free.
        NoLocalPort = "no_local_port",
        /// All streams of the allowed connections were in use.
        MaxConcurrentStreams = "max_concurrent_streams",
        /// The allowed number of streams was open.
        MaxOpen = "max_open",
        /// The values filled into the template result in an invalid URL or header.
        NoRequest = "no_request",
    }
}
