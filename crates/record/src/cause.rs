//! Why a request was dropped: the judgement of the analysis about a fact of the wire.
//!
//! What each cause means, and what helps against it, is in `docs/outcomes.md`.

use super::names::named;

named! {
    /// Why a request was dropped.
    pub enum Cause else UnknownCause "unknown cause {0:?}" {
        /// A new connection was routed to a pod that no longer accepted any.
        RoutedToDeadPod = "routed_to_dead_pod",
        /// The pod ended while it worked on the request.
        KilledInFlight = "killed_in_flight",
        /// The server closed an idle connection as the client used it.
        IdleCloseRace = "idle_close_race",
        /// An HTTP/2 server that was closing the connection said that it had not processed the request.
        H2Unprocessed = "h2_unprocessed",
        /// The connection stood in the accept queue of a listener that closed.
        AcceptQueueReset = "accept_queue_reset",
        /// A connection-tracking entry sent the connection to a pod that was gone, after the window.
        StaleFlow = "stale_flow",
        /// No endpoint was ready.
        NoReadyEndpoint = "no_ready_endpoint",
        /// A starting pod got traffic before it could serve.
        NotReadyYet = "not_ready_yet",
        /// A gateway answered with its own status, for no pod that was ending.
        GatewayError = "gateway_error",
        /// A gateway answered 502, 503, 504 or nothing for a pod that was ending.
        GatewayToDeadPod = "gateway_to_dead_pod",
        /// A gateway answered 502, 503 or 504 for want of a server, while ready pods existed.
        GatewayNoServer = "gateway_no_server",
        /// A pod that was ending answered with a gateway's status itself.
        RefusedWhileEnding = "refused_while_ending",
        /// The connection was refused in the instant of a Service proxy's own rule change.
        RuleSwap = "rule_swap",
        /// Timeouts with no termination near.
        Overload = "overload",
        /// No cause fits.
        Unattributed = "unattributed",
    }
}

impl Cause {
    /// Whether requests are lost by it because the app stopped before its clients knew: a preStop
    /// sleep saves them.
    pub const fn is_helped_by_sleep(self) -> bool {
        matches!(self, Cause::RoutedToDeadPod | Cause::AcceptQueueReset | Cause::GatewayToDeadPod)
    }
}
