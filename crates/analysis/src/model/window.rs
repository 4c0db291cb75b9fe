//! The endpoint-propagation window of a termination, and what its bounds rest on.

use serde::{Deserialize, Serialize};

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

/// What a bound of a window rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WindowBasis {
    /// Arrivals that a header or the proxy beside the pod names.
    Named,
    /// The kernel's connection tracking.
    Conntrack,
    /// Failures that only this window explains.
    Failures,
    /// Failures of a group, ordered by the EndpointSlice's own order.
    Order,
    /// Answers of other pods, under random balancing.
    Balance,
    /// The same, where the Service proxy's mode is assumed.
    BalanceAssumed,
    /// A gateway's failures.
    Gateway,
}

impl WindowBasis {
    /// Every basis.
    pub const ALL: &'static [WindowBasis] = &[
        WindowBasis::Named,
        WindowBasis::Conntrack,
        WindowBasis::Failures,
        WindowBasis::Order,
        WindowBasis::Balance,
        WindowBasis::BalanceAssumed,
        WindowBasis::Gateway,
    ];

    /// The name used in files.
    pub const fn as_str(self) -> &'static str {
        match self {
            WindowBasis::Named => "named",
            WindowBasis::Conntrack => "conntrack",
            WindowBasis::Failures => "failures",
            WindowBasis::Order => "order",
            WindowBasis::Balance => "balance",
            WindowBasis::BalanceAssumed => "balance_assumed",
            WindowBasis::Gateway => "gateway",
        }
    }
}
