//! Request outcomes, as seen on the wire.
//!
//! An outcome is a fact. Counting an outcome as *dropped* is policy, which only the analysis applies.

use super::names::named;

/// Returns true for a status that gateways use to report no response from a pod: 502, 503 or 504.
pub const fn is_gateway_status(status: u16) -> bool {
    matches!(status, 502..=504)
}

named! {
    /// Outcome of the first attempt of a scheduled request, in the order in which they can occur.
    pub enum Outcome else UnknownOutcome "unknown outcome {0:?}" {
        /// A complete response with a status in the success set.
        Ok = "ok",
        /// A complete response with a status outside the success set.
        HttpError = "http_error",
        /// The connection was refused (ECONNREFUSED).
        ConnectRefused = "connect_refused",
        /// No connection within the connect timeout: SYNs went unanswered.
        ConnectTimeout = "connect_timeout",
        /// The network reported the address as unreachable (EHOSTUNREACH, ENETUNREACH).
        ConnectUnreachable = "connect_unreachable",
        /// Connecting failed with another error, given by `errno`.
        ConnectError = "connect_error",
        /// The host name did not resolve.
        DnsError = "dns_error",
        /// The TLS handshake failed.
        TlsError = "tls_error",
        /// The connection was reset before the first byte of the response.
        ResetBeforeResponse = "reset_before_response",
        /// The connection was reset after part of the response had arrived.
        ResetMidResponse = "reset_mid_response",
        /// The connection was closed before the first byte of the response.
        EofBeforeResponse = "eof_before_response",
        /// The connection was closed before the announced end of the response.
        TruncatedBody = "truncated_body",
        /// No complete response head within the response timeout.
        ResponseTimeout = "response_timeout",
        /// The body was not complete within the response timeout.
        BodyTimeout = "body_timeout",
        /// The HTTP/2 stream was refused (REFUSED_STREAM).
        H2RefusedStream = "h2_refused_stream",
        /// The HTTP/2 connection was closed before the server processed the stream (GOAWAY).
        H2Goaway = "h2_goaway",
        /// The peer violated the protocol: the response could not be parsed.
        ProtocolError = "protocol_error",
        /// The transport of a stream broke after the first event.
        StreamCut = "stream_cut",
        /// A stream ended cleanly without the event, or the announced end, that completes it.
        StreamUnfinished = "stream_unfinished",
        /// The app announced that it would not complete the stream.
        StreamAborted = "stream_aborted",
        /// No byte of a stream within the stall timeout, after the first event.
        StreamStalled = "stream_stalled",
        /// The load generator did not send the request; never attributed to the cluster.
        NotSent = "not_sent",
        /// The run ended first.
        Cancelled = "cancelled",
    }
}

impl Outcome {
    /// Returns true if part of the response arrived before something other than a timeout ended it.
    pub const fn is_cut_off(self) -> bool {
        matches!(self, Self::ResetMidResponse | Self::TruncatedBody) || self.is_broken_stream()
    }

    /// Returns true if part of the response arrived, but the rest arrived too late or not at all.
    pub const fn is_incomplete(self) -> bool {
        matches!(self, Self::BodyTimeout | Self::StreamStalled) || self.is_cut_off()
    }

    /// Returns true if a stream had begun, and ended incomplete for a reason other than a timeout.
    pub const fn is_broken_stream(self) -> bool {
        matches!(self, Self::StreamCut | Self::StreamUnfinished | Self::StreamAborted)
    }
}
