//! Endpoint-propagation window of a termination, with the basis for its bounds.

use serde::{Deserialize, Serialize};

use super::Termination;
use rolldrop_record::named;
use rolldrop_record::run_info::Balances;

/// Endpoint-propagation window of one pod for one consumer, in seconds since t0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Window {
    /// Name of the consumer, as in `run.json`.
    pub consumer: String,
    /// Time from t0 latest to the last new connection that was certainly routed to the pod; `None` if no such
    /// connection after t0 is known.
    pub lower_s: Option<f64>,
    /// Time from t0 earliest to the latest possible end of the window; `None` if the end cannot be bounded.
    pub upper_s: Option<f64>,
    /// Basis of the lower bound.
    pub lower_basis: Option<WindowBasis>,
    /// Basis of the upper bound.
    pub upper_basis: Option<WindowBasis>,
    /// Reason why there is no upper bound, in words; filled in by `report`.
    pub censored: Option<String>,
    /// Kind of the reason in `censored`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub censored_reason: Option<NoBound>,
    /// Rate of new connections to the pod before t0, per second.
    pub rate_before: f64,
    /// Number of new connections after t0.
    pub late_arrivals: u64,
}

impl Window {
    /// Returns true if there is a window at all, that is, if the consumer may have routed to the pod.
    pub fn is_one(&self) -> bool {
        self.censored_reason != Some(NoBound::NeverRouted)
    }

    /// Returns true if the consumer is not known to have used the pod after t0 latest, so that the uncertainties of t0
    /// and of the consumer's clock may explain the window.
    pub fn is_unresolved(&self) -> bool {
        self.is_one() && self.lower_s.is_none()
    }
}

named! {
    /// Reason why a window has no upper bound.
    pub enum NoBound {
        /// The pod was never a usable endpoint, so it has no window.
        NeverRouted = "never_routed",
        /// The client opened no new connection after t0.
        NoNewConnections = "no_new_connections",
        /// The load ended too soon after t0.
        LoadEnded = "load_ended",
        /// Too few connections were answered after the pod's termination.
        TooFewConnections = "too_few_connections",
        /// The pod exited while a consumer that retries was still sending it requests.
        PodExited = "pod_exited",
        /// Nothing identifies the pods, and connections are not balanced at random.
        NotRandom = "not_random",
        /// Nothing identifies the pods, and the Service proxy's mode is unknown.
        ProxyUnknown = "proxy_unknown",
        /// Nothing identifies the pods, and it is unknown what is behind the URL.
        UrlUnknown = "url_unknown",
        /// The record has a gap.
        Hole = "hole",
        /// The wait after the termination timed out while requests were still being lost.
        Unsettled = "unsettled",
    }
}

/// Reason why a window has no upper bound, with its figures.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the docs of the variants describe the figures")]
pub enum Unbounded {
    /// The pod was never a usable endpoint.
    NeverRouted,
    /// Requests are missing from the record between these times, in seconds since the counted part of the load began.
    RequestsMissing { from_s: f64, to_s: f64 },
    /// The EndpointSlices did not show when the pod was a usable endpoint.
    EndpointUnknown,
    /// The wait after the termination timed out this many seconds after t0, while requests were still being lost.
    Unsettled { after_s: f64 },
    /// Fewer than two arrivals are known to have reached the pod before t0.
    TooFewArrivals(Balances),
    /// Too few connections were answered after the pod's termination.
    TooFewAnswers,
    /// The load ended this many seconds after the last arrival, and a longer silence is needed.
    LoadEnded { arrivals: Balances, observed_s: f64, needed_s: f64 },
    /// The pod exited this many seconds after t0, while there were still arrivals.
    PodExited { arrivals: Balances, after_s: f64 },
    /// The client opened its last new connection this many seconds after t0; `None` if it opened none.
    NoNewConnections { last_after_s: Option<f64> },
    /// Nothing identifies the requests' pods, and connections are not balanced at random, for this reason.
    NotRandom(&'static str),
    /// Nothing identifies the requests' pods, and the Service proxy's mode is unknown.
    ProxyUnknown,
    /// Nothing identifies the requests' pods, and it is unknown what balances the load behind the URL.
    UrlUnknown,
}

impl Unbounded {
    /// Returns the kind of reason.
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
    /// Basis for a window bound.
    pub enum WindowBasis {
        /// Arrivals named by a header or by the proxy beside the pod.
        Named = "named",
        /// The kernel's connection tracking.
        Conntrack = "conntrack",
        /// Failures that only this window explains.
        Failures = "failures",
        /// Failures in a group, in the order in which the EndpointSlices dropped the pods.
        Order = "order",
        /// Responses from other pods, under random balancing.
        Balance = "balance",
        /// Responses from other pods, under random balancing, with an assumed Service proxy mode.
        BalanceAssumed = "balance_assumed",
        /// A gateway's failures.
        Gateway = "gateway",
    }
}

/// Splits the windows into blocks that certainly ended separately.
pub fn apart<'a>(
    windows: impl Iterator<Item = (&'a Termination, Option<&'a Window>)>,
) -> Vec<Vec<(&'a Termination, Option<&'a Window>)>> {
    let end = |(t, window): (&'a Termination, Option<&'a Window>)| {
        let lower_s = window.and_then(|w| w.lower_s).unwrap_or(0.0);
        let upper_s = window.and_then(|w| w.upper_s).unwrap_or(f64::INFINITY);
        (t.t0_s + lower_s, t.t0_s - t.t0_uncertainty_s + upper_s, (t, window))
    };
    separate_ends(windows.map(end))
}

/// Splits the ends of windows into blocks that certainly ended separately. Each end has its earliest and latest
/// possible time, in seconds.
pub(crate) fn separate_ends<T>(ends: impl Iterator<Item = (f64, f64, T)>) -> Vec<Vec<T>> {
    let mut ends: Vec<_> = ends.collect();
    ends.sort_by(|a, b| a.1.total_cmp(&b.1));
    let mut blocks: Vec<Vec<T>> = Vec::new();
    let mut last = f64::NEG_INFINITY;
    for (from, to, of) in ends {
        match blocks.last_mut() {
            Some(block) if from <= last => block.push(of),
            _ => {
                last = to;
                blocks.push(vec![of]);
            }
        }
    }
    blocks
}
