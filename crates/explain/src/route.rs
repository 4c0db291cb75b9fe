//! Determines when traffic to a pod stopped: from arrivals, from the balance of failing connections, and from the pod's
//! death.

pub(crate) mod arrivals;
mod balance_bound;
pub(crate) mod balanced_reach;
pub(crate) mod death;
pub(crate) mod facts;
pub(crate) mod gateway;
pub(crate) mod observations;
pub(crate) mod tries;
pub(crate) mod window;

/// Longest time after an endpoint's removal for which a consumer may still route to the pod, if nothing else limits it:
/// the Service proxy's minSyncPeriod of 1 s, plus a margin.
pub(crate) const LAG_NS: i64 = 1_500_000_000;
