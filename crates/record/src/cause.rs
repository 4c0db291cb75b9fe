//! Causes of dropped requests, as concluded by the analysis from the events on the wire.
//!
//! `docs/outcomes.md` explains each cause and its remedy.

use super::names::named;

named! {
    /// Cause of a dropped request.
    pub enum Cause else UnknownCause "unknown cause {0:?}" {
        /// A new connection was routed to a pod that no longer accepted any.
        RoutedToDeadPod = "routed_to_dead_pod",
        /// The pod terminated while processing the request.
        KilledInFlight = "killed_in_flight",
        /// A stream was still open when the grace period of its pod ran out.
        DrainedTooShort = "drained_too_short",
        /// The app cut a stream after SIGTERM, before its grace period ran out.
        CutAtSigterm = "cut_at_sigterm",
        /// A gateway ended a stream that the pod was still serving.
        GatewayCut = "gateway_cut",
        /// The server closed an idle connection just as the client used it.
        IdleCloseRace = "idle_close_race",
        /// An HTTP/2 server that was closing the connection reported that it had not processed the request.
        H2Unprocessed = "h2_unprocessed",
        /// The connection was waiting in the accept queue of a listener that closed.
        AcceptQueueReset = "accept_queue_reset",
        /// After the window, a connection-tracking entry sent the connection to a pod that no longer existed.
        StaleFlow = "stale_flow",
        /// No endpoint was ready.
        NoReadyEndpoint = "no_ready_endpoint",
        /// A starting pod received traffic before it was able to serve.
        NotReadyYet = "not_ready_yet",
        /// A gateway responded with its own status while no pod was terminating.
        GatewayError = "gateway_error",
        /// A gateway responded with 502, 503 or 504, or not at all, to a request for a terminating pod.
        GatewayToDeadPod = "gateway_to_dead_pod",
        /// A gateway responded with 502, 503 or 504 because it had no server, although ready pods existed.
        GatewayNoServer = "gateway_no_server",
        /// A terminating pod itself responded with a gateway status.
        RefusedWhileEnding = "refused_while_ending",
        /// The connection was refused at the moment the Service proxy replaced its rules.
        RuleSwap = "rule_swap",
        /// Requests timed out with no termination nearby.
        Overload = "overload",
        /// No cause fits.
        Unattributed = "unattributed",
    }
}

impl Cause {
    /// Returns true if the app shuts down before its clients have learned of it. A preStop sleep prevents such losses.
    pub const fn is_helped_by_sleep(self) -> bool {
        matches!(self, Cause::RoutedToDeadPod | Cause::AcceptQueueReset | Cause::GatewayToDeadPod)
    }

    /// Returns true if the pod ended before its streams. Only settings that match the streams' lengths prevent such
    /// losses.
    pub const fn is_cut_stream(self) -> bool {
        matches!(self, Cause::DrainedTooShort | Cause::CutAtSigterm)
    }
}
