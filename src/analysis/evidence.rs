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

use super::flows::Flows;
use super::gateway::{self, Gateway, Watching, is_gateways};
use super::policy::{Class, Policy};
use crate::record::run_info::Balances;
use crate::record::{Outcome, RowSource, Stamp};
use crate::timeline::requests::Connection;
use crate::timeline::{PodEnd, Request, Requests, Timeline};

/// A pod's silence is taken as its end when arrivals at its rate would be silent
/// for so long with this probability only. Stricter than the bounds themselves:
/// a wrongly cut chain would strand real losses.
const LINK_ALPHA: f64 = 1e-6;
/// How many of a pod's last arrivals before t0 show its share at t0.
const RECENT: usize = 50;
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
    /// New arrivals a second before t0, see [`Arrivals::rate_at`]; 0 when fewer than two were seen.
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
    /// One per request that was not plainly answered.
    pub places: Vec<Place>,
    /// By termination, then by target.
    pub tails: Vec<Vec<Tail>>,
    /// One per request that was not plainly answered: whether a connection-tracking entry led it, and not
    /// the consumer.
    pub stale: Vec<bool>,
    /// Where connections led of which some request does not name the pod.
    connections: HashMap<Connection, Led>,
}

/// The pod that the last request of a connection names that names any.
#[derive(Debug)]
struct Led {
    /// Of that request: its intended send time and number.
    order: (Stamp, u64),
    pod: Arc<str>,
}

impl Evidence {
    /// The pod that a request reached: as one of the ends says, or its connection.
    pub(super) fn pod<'a>(&'a self, r: &'a Request) -> Option<&'a Arc<str>> {
        pod(&self.connections, r)
    }
}

fn pod<'a>(connections: &'a HashMap<Connection, Led>, r: &'a Request) -> Option<&'a Arc<str>> {
    let led = || match r.row.conn_reused && !connections.is_empty() {
        true => connections.get(&r.connection()?).map(|led| &led.pod),
        false => None,
    };
    r.pod().or_else(led)
}

/// The termination of the pod that a request reached, if it was under way.
pub(super) fn ending(timeline: &Timeline, pod: &str, r: &Request) -> Option<usize> {
    let end = timeline.end_of(pod, r.begun());
    end.filter(|&e| r.row.end.shifted_ns(r.uncertainty_ns) >= timeline.ends[e].t0.earliest)
}

/// The seconds after which an arrival at `rate` would have come but for a chance of `alpha`.
pub(super) fn silence_s(rate: f64, alpha: f64) -> f64 {
    (1.0 / alpha).ln() / rate
}

/// Arrivals at a pod before its t0.
#[derive(Clone, Debug, Default)]
struct Arrivals {
    n: usize,
    first: Option<Stamp>,
    /// The last [`RECENT`], in order.
    recent: Vec<Stamp>,
}

impl Arrivals {
    fn add(&mut self, at: Stamp) {
        self.n += 1;
        self.first = Some(self.first.map_or(at, |first| first.min(at)));
        self.recent.insert(self.recent.partition_point(|other| *other <= at), at);
        if self.recent.len() > RECENT {
            self.recent.remove(0);
        }
    }

    /// Their rate at `t0`; 0 for fewer than two.
    ///
    /// A pod's share grows while another is replaced, and shrinks again: the rate
    /// of its whole life can be too high just before t0, which would make the bound
    /// too short. So the smaller counts of that rate and of the rate of the last
    /// [`RECENT`] arrivals.
    fn rate_at(&self, t0: Stamp) -> f64 {
        // The first arrival opens the interval, so it is not counted in it.
        let rate = |n: usize, first: Option<Stamp>| match first {
            Some(first) if n > 1 && t0 > first => (n - 1) as f64 / t0.seconds_since(first),
            _ => 0.0,
        };
        rate(self.n, self.first).min(rate(self.recent.len(), self.recent.first().copied()))
    }
}

/// Finds out where requests went.
pub(super) fn gather<R: RowSource>(
    timeline: &Timeline,
    requests: &Requests<R>,
    policy: &Policy,
) -> Result<Evidence, R::Error> {
    let targets: HashMap<&str, usize> =
        timeline.info.targets.iter().enumerate().map(|(i, t)| (t.name.as_str(), i)).collect();
    let target_of = |r: &Request| targets.get(&*r.row.target).copied();
    let balances =
        |target: Option<usize>| target.map_or(Balances::Connections, |t| timeline.info.targets[t].balances);
    // An arrival is what the consumer routes: a connection, or behind an L7 consumer a request.
    let arrives = |r: &Request, balances: Balances| match balances {
        Balances::Connections => r.is_new_connection(),
        Balances::Requests => r.row.sent.is_some() || r.row.connect_start.is_some(),
    };

    let mut connections: HashMap<Connection, Led> = HashMap::new();
    let mut tails = vec![vec![Tail::default(); timeline.info.targets.len()]; timeline.ends.len()];
    let mut before = vec![vec![Arrivals::default(); timeline.info.targets.len()]; timeline.ends.len()];
    // The last moment at which a target was tried at all, and the uncertainty of its clients' clocks.
    let mut observed = vec![(None::<Stamp>, 0); timeline.info.targets.len()];
    let mut gateways = gateway::watch(timeline, &requests.others, policy);
    let mut add = |r: &Request| {
        let target = target_of(r);
        let balances = balances(target);
        if balances == Balances::Connections
            && !requests.unnamed.is_empty()
            && let Some((connection, pod)) = r.connection().zip(r.pod())
            && requests.unnamed.contains(&connection)
        {
            let order = (r.row.scheduled, r.row.seq);
            let led = connections.entry(connection).or_insert_with(|| Led { order, pod: Arc::clone(pod) });
            if led.order < order {
                *led = Led { order, pod: Arc::clone(pod) };
            }
        }
        let Some(target) = target else { return };
        if r.row.outcome == Outcome::NotSent || !arrives(r, balances) {
            return;
        }
        let (until, uncertainty_ns) = &mut observed[target];
        *until = (*until).max(Some(r.begun()));
        *uncertainty_ns = r.uncertainty_ns.max(*uncertainty_ns);
        let Some(end) = r.pod().and_then(|pod| timeline.end_of(pod, r.begun())) else { return };
        let t0 = timeline.ends[end].t0;
        if r.begun() < t0.earliest {
            before[end][target].add(r.begun());
        }
        tails[end][target].arrival(r.begun(), t0.latest);
    };
    let mut flows = Flows::of(&requests.others);
    requests.others.iter().for_each(&mut add);
    requests.plain(|r| {
        add(r);
        flows.answered(r);
        if let Some(gateway) = target_of(r).and_then(|target| gateways[target].as_mut()) {
            gateway.answered(&r.row);
        }
    })?;
    let gateways: Vec<Option<Gateway>> =
        gateways.into_iter().map(|watching| watching.map(Watching::done)).collect();
    let stale = flows.stale(&requests.others);
    for ((tails, before), end) in tails.iter_mut().zip(&before).zip(&timeline.ends) {
        for ((tail, before), (until, uncertainty_ns)) in tails.iter_mut().zip(before).zip(&observed) {
            (tail.observed_until, tail.uncertainty_ns) = (*until, *uncertainty_ns);
            tail.rate = before.rate_at(end.t0.earliest);
        }
    }
    let place = |r: &Request| match pod(&connections, r) {
        Some(pod) => Place::Pod { name: Arc::clone(pod), ending: ending(timeline, pod, r) },
        None => Place::Unknown,
    };
    let mut places: Vec<Place> = requests.others.iter().map(place).collect();

    let mut unseen: Vec<usize> = (0..places.len())
        .filter(|&i| {
            !stale[i]
                && places[i] == Place::Unknown
                && policy.class(&requests.others[i].row) == Class::Dropped
        })
        .collect();
    unseen.sort_by_key(|&i| requests.others[i].begun());
    for i in unseen {
        let r = &requests.others[i];
        let Some(target) = target_of(r) else { continue };
        let balances = balances(Some(target));
        let service = timeline.info.targets[target].service.as_deref();
        let gateway = gateways[target].as_ref().filter(|_| is_gateways(&r.row));
        // A gateway sends requests to pods that are no endpoints any more, and says 503 where it has none.
        let has_none = match gateway {
            Some(_) => r.row.status == Some(503) && gateway::none_usable(timeline, service, &r.row),
            None => timeline.endpoints.none_usable(service, r.begun()),
        };
        if has_none {
            continue;
        }
        let fits = |e: &usize| {
            let end = &timeline.ends[*e];
            let reach = if r.row.conn_reused && balances == Balances::Connections {
                end.gone().map(|at| at.shifted_ns(LAG_NS))
            } else {
                Some(reach(timeline, *e, &tails[*e][target]))
            };
            r.row.end.shifted_ns(r.uncertainty_ns) >= end.may_stop_from()
                && reach.is_none_or(|until| r.begun().shifted_ns(-r.uncertainty_ns) <= until)
        };
        let candidates: Vec<usize> = match gateway {
            Some(gateway) => gateway.candidates(&r.row),
            None => (0..timeline.ends.len()).filter(fits).collect(),
        };
        if arrives(r, balances) && tells_of_a_dead_pod(r, balances) {
            for &e in &candidates {
                let t0 = timeline.ends[e].t0;
                let tail = &mut tails[e][target];
                if r.begun() < t0.earliest {
                    if candidates.len() == 1 && was_cut_off_with(r, &timeline.ends[e]) {
                        // They come in order: what came after t0 is linked at the whole rate.
                        before[e][target].add(r.begun());
                        tail.rate = before[e][target].rate_at(t0.earliest);
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
    Ok(Evidence { places, tails, stale, connections })
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
        Outcome::HttpError | Outcome::ResponseTimeout => balances == Balances::Requests,
        _ => false,
    }
}
