//! Why a request was dropped: the judgement of the analysis about a fact of the wire.
//!
//! What each cause means, and what helps against it, is in `docs/outcomes.md`.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! causes {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// Why a request was dropped.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Cause {
            $($(#[$doc])* $variant,)*
        }

        impl Cause {
            /// Every cause.
            pub const ALL: &'static [Cause] = &[$(Cause::$variant,)*];

            /// The name used in files and on the command line.
            pub const fn as_str(self) -> &'static str {
                match self { $(Cause::$variant => $name,)* }
            }
        }
    };
}

causes! {
    /// A new connection was routed to a pod that no longer accepted any.
    RoutedToDeadPod = "routed_to_dead_pod",
    /// The pod ended while it worked on the request.
    KilledInFlight = "killed_in_flight",
    /// The server closed an idle connection as the client used it.
    IdleCloseRace = "idle_close_race",
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
    /// The connection was refused in the instant of a Service proxy's own rule change.
    RuleSwap = "rule_swap",
    /// Timeouts with no termination near.
    Overload = "overload",
    /// No cause fits.
    Unattributed = "unattributed",
}

impl Cause {
    /// Whether requests are lost by it because the app stopped before its clients knew: a preStop
    /// sleep saves them.
    pub const fn is_helped_by_sleep(self) -> bool {
        matches!(self, Cause::RoutedToDeadPod | Cause::AcceptQueueReset | Cause::GatewayToDeadPod)
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_is_the_one_in_files() {
        for cause in Cause::ALL {
            assert_eq!(serde_json::to_string(cause).unwrap(), format!("\"{cause}\""));
        }
    }
}
