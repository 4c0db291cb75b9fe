//! Arrivals at a pod: their times, their rate before t0, and the times until which they certainly or possibly
//! continued.

use std::collections::VecDeque;
use std::time::Duration;

use crate::route::LAG_NS;
use crate::route::balance_bound::Reach;
use crate::timeline::{PodEnd, Request, Timeline};
use rolldrop_record::Stamp;
use rolldrop_record::run_info::Balances;

/// Share of the error probability that the bound from balancing gets. If a pod's arrivals are named and also balanced
/// at random, two upper bounds share the chance of being too small. The bound from balancing gets nearly all of it,
/// because it uses every connection routed elsewhere, while the bound from silence depends on a rate measured earlier.
const BALANCE_SHARE: f64 = 0.9;
/// Probability of a silence, at the rate of a pod's arrivals, below which the silence counts as the end of arrivals.
/// This is stricter than the bounds themselves, because wrongly cutting a chain of losses would leave real losses
/// unexplained.
pub(crate) const LINK_ALPHA: f64 = 1e-6;
/// Number of a pod's last arrivals before t0 that determine its share at t0.
const RECENT: usize = 50;

/// Arrivals at one pod from one target.
#[derive(Clone, Debug, Default)]
pub(crate) struct ArrivalTail {
    /// Rate of new arrivals before t0, per second, as used for bounds (see [`PodArrivals::rate_at`]); 0 if fewer than
    /// two were seen.
    pub rate: f64,
    /// Best estimate of that rate at t0 (see [`PodArrivals::recent_rate_at`]); 0 if fewer than two were seen.
    pub rate_at_t0: f64,
    /// The pod's expected rate of new connections if every endpoint gets the same share.
    pub rate_expected: f64,
    /// Time of the last arrival that names this pod.
    pub last_named: Option<Stamp>,
    /// True if only the kernel's connection tracking names that arrival.
    pub is_tracked: bool,
    /// Number of arrivals after t0 latest: named ones, and requests that only this pod's termination explains.
    pub late: u64,
    /// Time of the last arrival that only this pod's termination explains.
    pub last_alone: Option<Stamp>,
    /// Time of the last connection proving that the rules still listed this pod, even if another pod took it.
    pub last_in_order: Option<Stamp>,
    /// Time of the last arrival that may have been this pod's.
    pub last_possible: Option<Stamp>,
    /// Time of the last connection that this pod accepted and answered; its listener was open then.
    pub last_accepted: Option<Stamp>,
    /// Uncertainty of the client's clock, in nanoseconds.
    pub uncertainty_ns: i64,
    /// Time of the last attempted request to this target.
    pub observed_until: Option<Stamp>,
    /// Bounds from random balancing; `None` if the consumer does not balance at random, or this is unknown.
    pub reach: Option<Reach>,
}

impl ArrivalTail {
    /// Adds a named arrival.
    pub(crate) fn arrival(&mut self, at: Stamp, t0_latest: Stamp, is_tracked: bool) {
        if self.last_named.is_none_or(|last| last <= at) {
            (self.last_named, self.is_tracked) = (Some(at), is_tracked);
        }
        self.last_possible = self.last_possible.max(Some(at));
        self.late += u64::from(at > t0_latest);
    }

    /// Adds the evidence from later requests.
    pub(crate) fn merge(&mut self, later: &Self) {
        if later.last_named.is_some() && self.last_named <= later.last_named {
            (self.last_named, self.is_tracked) = (later.last_named, later.is_tracked);
        }
        self.last_possible = self.last_possible.max(later.last_possible);
        self.late += later.late;
        self.last_accepted = self.last_accepted.max(later.last_accepted);
    }

    /// Sets the rates from the arrivals before `t0`.
    pub(crate) fn measure(&mut self, before: &PodArrivals, t0: Stamp) {
        (self.rate, self.rate_at_t0) = (before.rate_at(t0), before.recent_rate_at(t0));
    }

    /// Returns the part of the error probability `alpha` assigned to the bound from balancing.
    pub(crate) fn alpha_of_balance(&self, alpha: f64) -> f64 {
        if self.rate > 0.0 { BALANCE_SHARE * alpha } else { alpha }
    }

    /// Returns the part of the error probability `alpha` assigned to the bound from silence.
    pub(crate) fn alpha_of_silence(&self, alpha: f64) -> f64 {
        if self.reach.is_some() { (1.0 - BALANCE_SHARE) * alpha } else { alpha }
    }

    /// Returns the time until which a connection may have been routed to this pod; `None` if connections may still be
    /// routed to it.
    pub(crate) fn routed_until(&self, end: &PodEnd) -> Option<Stamp> {
        match &self.reach {
            Some(reach) => reach.until,
            None => Some(self.silent_since(end)),
        }
    }

    /// Returns the time by which the silence of the pod's own arrivals, including lost ones, shows that arrivals have
    /// ended.
    fn silent_since(&self, end: &PodEnd) -> Stamp {
        let last = self.last_possible.map_or(end.t0.latest, |at| at.max(end.t0.latest));
        if self.rate > 0.0 {
            return silent_until(last, silence_s(self.rate, LINK_ALPHA));
        }
        let removed = end.stages.endpoint_removed.or(end.gone()).unwrap_or(end.t0.latest);
        last.max(removed).shifted_ns(LAG_NS)
    }

    /// Returns the time of the last arrival that was certainly this pod's.
    pub(crate) fn last_certain(&self) -> Option<Stamp> {
        self.last_named.max(self.last_alone)
    }
}

/// Arrivals at a pod before its t0.
#[derive(Clone, Debug, Default)]
pub(crate) struct PodArrivals {
    n: usize,
    first: Option<Stamp>,
    /// Times of the last [`RECENT`] arrivals, in order.
    recent: VecDeque<Stamp>,
}

impl PodArrivals {
    pub(crate) fn add(&mut self, at: Stamp) {
        self.n += 1;
        self.first = Some(self.first.map_or(at, |first| first.min(at)));
        // Arrivals at one load source come in order, but its rows may follow those of another one.
        if self.recent.len() == RECENT && self.recent.front().is_some_and(|first| at <= *first) {
            return;
        }
        if self.recent.back().is_none_or(|last| *last <= at) {
            self.recent.push_back(at);
        } else {
            self.recent.insert(self.recent.partition_point(|other| *other <= at), at);
        }
        if self.recent.len() > RECENT {
            self.recent.pop_front();
        }
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        self.n += other.n;
        self.first = self.first.into_iter().chain(other.first).min();
        self.recent.extend(&other.recent);
        self.recent.make_contiguous().sort_unstable();
        self.recent.drain(..self.recent.len().saturating_sub(RECENT));
    }

    /// Returns the arrival rate at `t0` for use in a bound; 0 for fewer than two arrivals.
    ///
    /// A pod's share grows while another pod is replaced, and then shrinks again, so the rate over its whole life can
    /// be too high just before t0, which would make the bound too small. So the smaller of that rate and the rate of
    /// the last [`RECENT`] arrivals is used.
    pub(crate) fn rate_at(&self, t0: Stamp) -> f64 {
        rate(self.n, self.first, t0).min(self.recent_rate_at(t0))
    }

    /// Returns the best estimate of the arrival rate at `t0`, from the last [`RECENT`] arrivals; 0 for fewer than two.
    pub(crate) fn recent_rate_at(&self, t0: Stamp) -> f64 {
        rate(self.recent.len(), self.recent.front().copied(), t0)
    }
}

/// Returns the rate of `n` arrivals up to `t0`. The first arrival opens the interval and is not counted.
fn rate(n: usize, first: Option<Stamp>, t0: Stamp) -> f64 {
    match first {
        Some(first) if n > 1 && t0 > first => (n - 1) as f64 / t0.seconds_since(first),
        _ => 0.0,
    }
}

/// Returns the time in seconds within which, at `rate`, an arrival occurs with probability 1 − `alpha`.
pub(crate) fn silence_s(rate: f64, alpha: f64) -> f64 {
    (1.0 / alpha).ln() / rate
}

/// Returns the end of a silence of this many seconds after `last`. If nothing arrives during it, arrivals have ended.
pub(crate) fn silent_until(last: Stamp, seconds: f64) -> Stamp {
    last + Duration::from_secs_f64(seconds.min(1e6))
}

/// Returns true if the consumer made a routing decision for the request: for its connection or, with an L7 consumer,
/// for the request itself.
pub(crate) fn arrives(r: &Request, balances: Balances) -> bool {
    match balances {
        Balances::Connections => r.is_new_connection(),
        Balances::Requests => r.row.sent.is_some() || r.row.connect_start.is_some(),
    }
}

/// Returns the termination of the pod that a request reached, if the termination had started by then.
pub(crate) fn ending(timeline: &Timeline, pod: &str, r: &Request) -> Option<usize> {
    timeline.end_of(pod, r.begun()).filter(|e| has_met(timeline, *e, r))
}

/// Returns true if a request ended after this termination had started.
pub(crate) fn has_met(timeline: &Timeline, termination: usize, r: &Request) -> bool {
    r.row.end.shifted_ns(r.uncertainty_ns) >= timeline.ends[termination].t0.earliest
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn arrivals_count_in_any_order(
            times in prop::collection::vec(0_i64..5_000, 0..4 * RECENT), cut in 0..4 * RECENT
        ) {
            let of = |times: &[i64]| {
                let mut arrivals = PodArrivals::default();
                times.iter().for_each(|ns| arrivals.add(Stamp::from_unix_ns(*ns)));
                arrivals
            };
            let (first, second) = times.split_at(cut.min(times.len()));
            let mut merged = of(second);
            merged.merge(&of(first));
            let mut in_order = times.clone();
            in_order.sort_unstable();
            let expected = of(&in_order);
            for found in [of(&times), merged] {
                prop_assert_eq!((found.n, found.first), (expected.n, expected.first));
                prop_assert_eq!(found.recent, expected.recent.clone());
            }
        }
    }
}
