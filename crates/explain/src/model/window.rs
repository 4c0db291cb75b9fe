//! The endpoint-propagation window of a termination, with the basis of its bounds.

use serde::{Deserialize, Serialize};

use super::Termination;
use rolldrop_record::named;
use rolldrop_record::run_info::Balances;

/// The endpoint-propagation window of one pod towards one consumer, in seconds since t0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Window {
    /// The consumer, as in `run.json`.
    pub consumer: String,
    /// Time of the last new connection that was surely routed to the pod, from t0 latest; `None` if no such connection
    /// after t0 is known.
    pub lower_s: Option<f64>,
    /// Latest possible end of the window, from t0 earliest; `None` if the end cannot be bounded.
    pub upper_s: Option<f64>,
    /// Basis of the lower bound.
    pub lower_basis: Option<WindowBasis>,
    /// Basis of the upper bound.
    pub upper_basis: Option<WindowBasis>,
    /// Reason why there is no upper bound, in words; filled in by `report`.
    pub censored: Option<String>,
    /// Kind of that reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub censored_reason: Option<NoBound>,
    /// Rate of new connections to the pod before t0, per second.
    pub rate_before: f64,
    /// Number of new connections after t0.
    pub late_arrivals: u64,
}

impl Window {
    /// Returns true if there is a window at all: the consumer may have routed to the pod.
    pub fn is_one(&self) -> bool {
        self.censored_reason != Some(NoBound::NeverRouted)
    }
}

named! {
    /// Reason why a window has no upper bound.
    pub enum NoBound {
        /// The pod was no usable endpoint at any time: it has no window.
        NeverRouted = "never_routed",
        /// The client opened no new connection after t0.
        NoNewConnections = "no_new_connections",
        /// The load ended too soon after t0.
        LoadEnded = "load_ended",
        /// Too few connections were answered after the pod's end.
        TooFewConnections = "too_few_connections",
        /// The pod exited while a consumer that retries still sent it requests.
        PodExited = "pod_exited",
        /// Nothing names pods, and connections are not balanced at random.
        NotRandom = "not_random",
        /// Nothing names pods, and the mode of the Service proxy is not known.
        ProxyUnknown = "proxy_unknown",
        /// Nothing names pods, and it is not known what is behind the URL.
        UrlUnknown = "url_unknown",
        /// The record has a hole.
        Hole = "hole",
        /// The wait after the termination ended while requests were still lost.
        Unsettled = "unsettled",
    }
}

/// Reason why a window has no upper bound, with its figures.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the docs of the variants describe the figures")]
pub enum Unbounded {
    /// The pod was no usable endpoint at any time.
    NeverRouted,
    /// Requests are missing in the record between these times, in seconds since the counted part of the load began.
    RequestsMissing { from_s: f64, to_s: f64 },
    /// The EndpointSlices did not show when the pod was a usable endpoint.
    EndpointUnknown,
    /// The wait after the termination ended this long after t0 while requests were still lost, in seconds.
    Unsettled { after_s: f64 },
    /// Fewer than two arrivals are known to have reached the pod before t0.
    TooFewArrivals(Balances),
    /// Too few connections were answered after the pod's end.
    TooFewAnswers,
    /// The load ended this long after the last arrival, and more silence is needed, in seconds.
    LoadEnded { arrivals: Balances, observed_s: f64, needed_s: f64 },
    /// The pod exited this long after t0 while arrivals still came, in seconds.
    PodExited { arrivals: Balances, after_s: f64 },
    /// The client opened its last new connection this long after t0, in seconds; `None` if it opened none.
    NoNewConnections { last_after_s: Option<f64> },
    /// No request names its pod, and connections are not balanced at random, for this reason.
    NotRandom(&'static str),
    /// No request names its pod, and the mode of the Service proxy is not known.
    ProxyUnknown,
    /// No request names its pod, and it is not known what balances behind the URL.
    UrlUnknown,
}

impl Unbounded {
    /// Returns the kind.
    pub const fn kind(&self) -> NoBound {
        match self {
            Self::NeverRouted => NoBound::NeverRouted,
            Self::RequestsMissing { .. } | Self::EndpointUnknown => NoBound::Hole,
            Self::Unsettled { .. } => NoBound::Unsettled,
            Self::TooFewArrivals(_) | Self::TooFewAnswers => NoBound::TooFewConnections,
            Self::LoadEnded { .. } => NoBound::LoadEnded,
            Self::PodExited { .. } => NoBound::PodExited,
            Self::NoNewConnections { .. } => NoBound::NoNewConnections,
            Self::NotRandom(_) => NoBound::NotRandom,
            Self::ProxyUnknown => NoBound::ProxyUnknown,
            Self::UrlUnknown => NoBound::UrlUnknown,
        }
    }
}

named! {
    /// Basis of a bound of a window.
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
        /// Answers of other pods, under random balancing, if the Service proxy's mode is assumed.
        BalanceAssumed = "balance_assumed",
        /// A gateway's failures.
        Gateway = "gateway",
    }
}

/// Splits the windows into blocks that surely ended apart from each other.
pub fn apart<'a>(
    windows: impl Iterator<Item = (&'a Termination, Option<&'a Window>)>,
) -> Vec<Vec<(&'a Termination, Option<&'a Window>)>> {
    let end = |(t, window): (&'a Termination, Option<&'a Window>)| {
        let lower_s = window.and_then(|w| w.lower_s).unwrap_or(0.0);
        let upper_s = window.and_then(|w| w.upper_s).unwrap_or(f64::INFINITY);
        (t.t0_s + lower_s, t.t0_s - t.t0_uncertainty_s + upper_s, (t, window))
    };
    let mut ends: Vec<_> = windows.map(end).collect();
    ends.sort_by(|a, b| a.1.total_cmp(&b.1));
    let mut blocks: Vec<Vec<_>> = Vec::new();
    let mut last = f64::NEG_INFINITY;
    for (from, to, window) in ends {
        match blocks.last_mut() {
            Some(block) if from <= last => block.push(window),
            _ => {
                last = to;
                blocks.push(vec![window]);
            }
        }
    }
    blocks
}
