//! The endpoint-propagation window of a termination, and what its bounds rest on.

use serde::{Deserialize, Serialize};

use rolldrop_record::named;

/// The endpoint-propagation window of one pod towards one consumer, in seconds since t0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Window {
    /// The consumer, as in `run.json`.
    pub consumer: String,
    /// The last new connection that surely went to the pod, from t0 latest; `None` when none is known to have come after t0.
    pub lower_s: Option<f64>,
    /// What the end is not later than, from t0 earliest; `None` when it cannot be bounded.
    pub upper_s: Option<f64>,
    /// What the lower bound rests on.
    pub lower_basis: Option<WindowBasis>,
    /// What the upper bound rests on.
    pub upper_basis: Option<WindowBasis>,
    /// Whether the end lies beyond what was observed, or cannot be bounded, and why.
    pub censored: Option<String>,
    /// New connections a second that the pod got before t0.
    pub rate_before: f64,
    /// New connections that came after t0.
    pub late_arrivals: u64,
}

named! {
    /// What a bound of a window rests on.
    pub enum WindowBasis {
        /// Arrivals that a header or the proxy beside the pod names.
        Named = "named",
        /// The kernel's connection tracking.
        Conntrack = "conntrack",
        /// Failures that only this window explains.
        Failures = "failures",
        /// Failures of a group, ordered by the EndpointSlice's own order.
        Order = "order",
        /// Answers of other pods, under random balancing.
        Balance = "balance",
        /// The same, where the Service proxy's mode is assumed.
        BalanceAssumed = "balance_assumed",
        /// A gateway's failures.
        Gateway = "gateway",
    }
}
