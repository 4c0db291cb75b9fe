//! Which pod each request went to, and until when each ended pod was routed to.
//!
//! What either end says about the pod counts first: the proxy's row, the
//! response header, and for a reused connection the pod it had led to. Failed
//! requests that no one saw arrive are linked by time: they belong to a
//! termination when they begin before the pod's arrivals have been silent for
//! so long that another one is implausible. Each such request carries the
//! evidence on. One that several terminations could explain is charged to
//! none, yet moves the upper bound of each.
//!
//! A connection that stood before t0 and was cut off with its pod says nothing of what was routed
//! there after t0, but of what was before: it is one of the arrivals whose rate says how long a
//! silence means something. Requests that take long are lost so, and without a proxy in the pod
//! nobody names theirs.

use std::collections::HashMap;
use std::sync::Arc;

use super::policy::{Class, Policy};
use crate::record::run_info::Balances;
use crate::record::{Outcome, Stamp};
use crate::timeline::{PodEnd, Request, Timeline};

/// A pod's silence is taken as its end when arrivals at its rate would be silent
/// for so long with this probability only. Stricter than the bounds themselves:
/// a wrongly cut chain would strand real losses.
const LINK_ALPHA: f64 = 1e-6;
/// How many of a pod's last arrivals before t0 show its share at t0.
const RECENT: usize = 50;
/// How long a connection-tracking entry outlives a SYN that nobody answered: Linux'
/// `nf_conntrack_tcp_timeout_syn_sent`.
const STALE_FOR_NS: i64 = 120_000_000_000;
/// The same for a connection that the other side reset: `nf_conntrack_tcp_timeout_close`.
const RESET_FOR_NS: i64 = 10_000_000_000;
/// Without any rate: how long after the endpoint's removal a consumer may lag.
/// The Service proxy's minSyncPeriod of 1 s, and some.
const LAG_NS: i64 = 1_500_000_000;

/// Where a request went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// To this pod, as one of the ends says; with the index of its termination if it was under way.
    Pod { name: Arc<str>, ending: Option<usize> },
    /// By time, to one of the pods of these terminations.
    OneOf(Vec<usize>),
    /// Not known.
    Unknown,
}

/// The arrivals of one pod from one target.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tail {
    /// New arrivals a second before t0, see [`rate_at`]; 0 when fewer than two were seen.
    pub rate: f64,
    /// The last arrival that surely was this pod's.
    pub last_certain: Option<Stamp>,
    /// The last that may have been.
    pub last_possible: Option<Stamp>,
    /// Certain arrivals after t0 latest.
    pub late: u64,
    /// Uncertainty of the client's clock, in nanoseconds.
    pub uncertainty_ns: i64,
    /// The last moment at which this target was tried at all.
    pub observed_until: Option<Stamp>,
}

/// All that was found out.
#[derive(Debug)]
pub(super) struct Evidence {
    /// One per request of the timeline.
    pub places: Vec<Place>,
    /// By termination, then by target.
    pub tails: Vec<Vec<Tail>>,
    /// One per request: whether a connection-tracking entry led it, and not the consumer.
    pub stale: Vec<bool>,
}

/// The seconds after which an arrival at `rate` would have come but for a chance of `alpha`.
pub(super) fn silence_s(rate: f64, alpha: f64) -> f64 {
    (1.0 / alpha).ln() / rate
}

/// The rate of arrivals at `t0`, from those before it, in order; 0 for fewer than two.
///
/// A pod's share grows while another is replaced, and shrinks again: the rate
/// of its whole life can be too high just before t0, which would make the bound
/// too short. So the smaller counts of that rate and of the rate of the last
/// [`RECENT`] arrivals.
fn rate_at(t0: Stamp, before: &[Stamp]) -> f64 {
    // The first arrival opens the interval, so it is not counted in it.
    let rate = |arrivals: &[Stamp]| match arrivals {
        [first, rest @ ..] if !rest.is_empty() && t0 > *first => rest.len() as f64 / t0.seconds_since(*first),
        _ => 0.0,
    };
    rate(before).min(rate(&before[before.len().saturating_sub(RECENT)..]))
}

/// Which connects a connection-tracking entry led astray: those that failed from the source
/// port of an earlier one to the same address that nobody had answered, or that was reset,
/// while its entry stands.
fn stale_flows(requests: &[Request]) -> Vec<bool> {
    let mut left: HashMap<(&str, u16, &str), Stamp> = HashMap::new();
    let mut stale = vec![false; requests.len()];
    let mut order: Vec<usize> = (0..requests.len()).filter(|&i| requests[i].is_new_connection()).collect();
    order.sort_by_key(|&i| requests[i].begun());
    for i in order {
        let row = &requests[i].row;
        let (Some(port), Some(to)) = (row.local_port, row.remote_addr.as_deref()) else { continue };
        let flow = (&*row.source, port, to);
        let entry_stands = left.remove(&flow).is_some_and(|until| requests[i].begun() <= until);
        match row.outcome {
            // The SYN, or its repetition, renews the entry. An unreachable host answers no SYN either.
            Outcome::ConnectTimeout | Outcome::ConnectUnreachable => {
                stale[i] = entry_stands;
                left.insert(flow, row.end.shifted_ns(STALE_FOR_NS));
            }
            // A refusal ends the entry.
            Outcome::ConnectRefused => stale[i] = entry_stands,
            // The other side's reset leaves the entry of a connection that came about.
            Outcome::ResetBeforeResponse | Outcome::ResetMidResponse => {
                left.insert(flow, row.end.shifted_ns(RESET_FOR_NS));
            }
            // A connection that came about and was closed: the next one begins an entry of its own.
            _ => {}
        }
    }
    stale
}

/// How many connects used a source port towards an address again so soon that an entry of the
/// one before could have stood.
pub(super) fn early_reuses(requests: &[Request]) -> u64 {
    let mut used: HashMap<(&str, u16, &str), Stamp> = HashMap::new();
    let mut reuses = 0;
    for r in requests.iter().filter(|r| r.is_new_connection()) {
        let (Some(port), Some(to)) = (r.row.local_port, r.row.remote_addr.as_deref()) else { continue };
        let before = used.insert((&r.row.source, port, to), r.begun());
        reuses += u64::from(before.is_some_and(|before| r.begun().ns_since(before) <= STALE_FOR_NS));
    }
    reuses
}

/// Locates every request.
pub(super) fn gather(timeline: &Timeline, policy: &Policy) -> Evidence {
    let targets: HashMap<&str, usize> =
        timeline.info.targets.iter().enumerate().map(|(i, t)| (t.name.as_str(), i)).collect();
    let target_of = |r: &Request| targets.get(&*r.row.target).copied();
    let balances =
        |r: &Request| target_of(r).map_or(Balances::Connections, |t| timeline.info.targets[t].balances);
    // An arrival is what the consumer routes: a connection, or behind an L7 consumer a request.
    let arrives = |r: &Request| match balances(r) {
        Balances::Connections => r.is_new_connection(),
        Balances::Requests => r.row.sent.is_some() || r.row.connect_start.is_some(),
    };

    let mut by_connection: HashMap<(&str, u64), &str> = HashMap::new();
    for r in timeline.requests.iter().filter(|r| balances(r) == Balances::Connections) {
        if let (Some(conn), Some(pod)) = (r.row.conn, r.pod()) {
            by_connection.insert((&r.row.source, conn), pod);
        }
    }
    let mut places: Vec<Place> = timeline
        .requests
        .iter()
        .map(|r| {
            let known = || r.row.conn.and_then(|c| by_connection.get(&(&*r.row.source, c)).copied());
            match r.pod().or_else(|| if r.row.conn_reused { known() } else { None }) {
                Some(pod) => {
                    let end = timeline.end_of(pod, r.begun());
                    let ending = end
                        .filter(|&e| r.row.end.shifted_ns(r.uncertainty_ns) >= timeline.ends[e].t0.earliest);
                    Place::Pod { name: pod.into(), ending }
                }
                None => Place::Unknown,
            }
        })
        .collect();

    let mut tails = vec![vec![Tail::default(); timeline.info.targets.len()]; timeline.ends.len()];
    let mut before: HashMap<(usize, usize), Vec<Stamp>> = HashMap::new();
    for (r, place) in timeline.requests.iter().zip(&places) {
        let Some(target) = target_of(r) else { continue };
        if r.row.outcome != Outcome::NotSent && arrives(r) {
            for tail in tails.iter_mut().map(|t| &mut t[target]) {
                tail.observed_until = tail.observed_until.max(Some(r.begun()));
                tail.uncertainty_ns = tail.uncertainty_ns.max(r.uncertainty_ns);
            }
            let Place::Pod { name, .. } = place else { continue };
            let Some(end) = timeline.end_of(name, r.begun()) else { continue };
            let t0 = timeline.ends[end].t0;
            if r.begun() < t0.earliest {
                before.entry((end, target)).or_default().push(r.begun());
            }
            tails[end][target].arrival(r.begun(), t0.latest);
        }
    }
    for ((end, target), before) in &mut before {
        before.sort_unstable();
        tails[*end][*target].rate = rate_at(timeline.ends[*end].t0.earliest, before);
    }

    let stale = stale_flows(&timeline.requests);
    let mut unseen: Vec<usize> = (0..places.len())
        .filter(|&i| {
            !stale[i]
                && places[i] == Place::Unknown
                && policy.class(&timeline.requests[i].row) == Class::Dropped
        })
        .collect();
    unseen.sort_by_key(|&i| timeline.requests[i].begun());
    for i in unseen {
        let r = &timeline.requests[i];
        let Some(target) = target_of(r) else { continue };
        let service = timeline.info.targets[target].service.as_deref();
        if timeline.endpoints.none_usable(service, r.begun()) {
            continue;
        }
        let fits = |e: &usize| {
            let end = &timeline.ends[*e];
            let reach = if r.row.conn_reused && balances(r) == Balances::Connections {
                end.gone().map(|at| at.shifted_ns(LAG_NS))
            } else {
                Some(reach(timeline, *e, &tails[*e][target]))
            };
            r.row.end.shifted_ns(r.uncertainty_ns) >= end.may_stop_from()
                && reach.is_none_or(|until| r.begun().shifted_ns(-r.uncertainty_ns) <= until)
        };
        let candidates: Vec<usize> = (0..timeline.ends.len()).filter(fits).collect();
        if arrives(r) && tells_of_a_dead_pod(r, balances(r)) {
            for &e in &candidates {
                let t0 = timeline.ends[e].t0;
                let tail = &mut tails[e][target];
                if r.begun() < t0.earliest {
                    if candidates.len() == 1 && was_cut_off_with(r, &timeline.ends[e]) {
                        // They come in order: what came after t0 is linked at the whole rate.
                        let before = before.entry((e, target)).or_default();
                        before.insert(before.partition_point(|at| *at <= r.begun()), r.begun());
                        tail.rate = rate_at(t0.earliest, before);
                    }
                } else if candidates.len() == 1 {
                    tail.arrival(r.begun(), t0.latest);
                } else {
                    tail.last_possible = tail.last_possible.max(Some(r.begun()));
                }
            }
        }
        if !candidates.is_empty() {
            places[i] = Place::OneOf(candidates);
        }
    }
    Evidence { places, tails, stale }
}

impl Tail {
    fn arrival(&mut self, at: Stamp, t0_latest: Stamp) {
        self.last_certain = self.last_certain.max(Some(at));
        self.last_possible = self.last_possible.max(Some(at));
        self.late += u64::from(at > t0_latest);
    }
}

/// Until when a request that nobody saw arrive may have been this pod's.
fn reach(timeline: &Timeline, end: usize, tail: &Tail) -> Stamp {
    let end = &timeline.ends[end];
    let last = tail.last_possible.map_or(end.t0.latest, |at| at.max(end.t0.latest));
    if tail.rate > 0.0 {
        return last + std::time::Duration::from_secs_f64(silence_s(tail.rate, LINK_ALPHA).min(1e6));
    }
    let removed = end.stages.endpoint_removed.or(end.gone()).unwrap_or(end.t0.latest);
    last.max(removed).shifted_ns(LAG_NS)
}

/// Whether a new connection had come about and was cut off before the pod had gone.
fn was_cut_off_with(r: &Request, end: &PodEnd) -> bool {
    r.row.connected.is_some()
        && matches!(r.row.outcome, Outcome::ResetBeforeResponse | Outcome::EofBeforeResponse)
        && end.gone().is_none_or(|gone| r.row.end.shifted_ns(-r.uncertainty_ns) <= gone)
}

/// Whether a failure is what a connection to a pod that is gone looks like, so
/// that it shows where the consumer still routed to.
fn tells_of_a_dead_pod(r: &Request, balances: Balances) -> bool {
    match r.row.outcome {
        Outcome::ConnectRefused
        | Outcome::ConnectTimeout
        | Outcome::ConnectUnreachable
        | Outcome::ConnectError
        | Outcome::ResetBeforeResponse
        | Outcome::EofBeforeResponse => true,
        Outcome::HttpError => balances == Balances::Requests,
        _ => false,
    }
}
