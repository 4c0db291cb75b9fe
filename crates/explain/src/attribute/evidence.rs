//! Finds the pod that each request was routed to, and the time until which each ended pod was routed to.
//!
//! Sources that name the pod come first: the proxy's row, the kernel's connection tracking, the response header, and
//! for a reused connection the pod that it had reached before. Most lost requests have none of these;
//! [`crate::attribute::suspects`] finds their possible explanations. The time until which a pod may have been routed to
//! follows from [`crate::route::balance`] if connections are balanced at random, and otherwise from the silence of the
//! pod's own arrivals.
//!
//! A connection that existed before t0 and was cut off with its pod shows nothing about the routing after t0, only
//! about the routing before: it is one of the arrivals whose rate determines how long a silence must be.

use std::sync::Arc;

use foldhash::HashMap;

use crate::attribute::suspects::{Suspects, Verdict};
use crate::route::LAG_NS;
use crate::route::arrivals::{Arrivals, Tail, arrives};
use crate::route::balance::{self, Route};
use crate::route::death::Death;
use crate::route::flows::{EndedFlows, Flows};
use crate::route::gateway::{self, Gateway, Watching};
use crate::route::tries::{Loss, Tries};
use crate::timeline::by_name::ByName;
use crate::timeline::endpoints::Scope;
use crate::timeline::requests::Connection;
use crate::timeline::{Lives, Request, Requests, Timeline};
use rolldrop_record::parts::{PartError, Wanted};
use rolldrop_record::routing::Balancing;
use rolldrop_record::run_info::Balances;
use rolldrop_record::{Outcome, Stamp};

/// Everything that was found out.
#[derive(Debug)]
pub(crate) struct Evidence {
    /// By termination, then by target.
    pub tails: Vec<Vec<Tail>>,
    /// One entry per request that was not plainly answered: true if a connection-tracking entry routed it, not the
    /// consumer.
    pub stale: Vec<bool>,
    /// Time at which each pod was first sent a request that it answered.
    pub first_served: Vec<Option<Stamp>>,
    connections: Connections,
}

/// Pods of connections on which some requests do not name their pod.
#[derive(Clone, Debug, Default)]
struct Connections(HashMap<Connection, Latest>);

/// Pod that the last request with a name on this connection named.
#[derive(Clone, Debug)]
struct Latest {
    /// The intended send time and number of that request.
    order: (Stamp, u64),
    pod: Arc<str>,
}

impl Connections {
    /// Adds any request.
    fn see(&mut self, timeline: &Timeline, requests: &Requests, r: &Request) {
        let is_of_connections = || {
            let target = timeline.target_of(&r.row);
            target.is_none_or(|target| timeline.info.targets[target].balances == Balances::Connections)
        };
        if !requests.unnamed.is_empty()
            && let Some(pod) = r.pod()
            && let Some(connection) = r.connection()
            && requests.unnamed.contains(&connection)
            && is_of_connections()
        {
            self.add(connection, pod, (r.row.scheduled, r.row.seq));
        }
    }

    /// Adds a request that names its pod.
    fn add(&mut self, connection: Connection, pod: &Arc<str>, order: (Stamp, u64)) {
        if self.0.get(&connection).is_none_or(|latest| latest.order < order) {
            self.0.insert(connection, Latest { order, pod: Arc::clone(pod) });
        }
    }

    fn merge(&mut self, later: Self) {
        for (connection, latest) in later.0 {
            self.add(connection, &latest.pod, latest.order);
        }
    }

    /// Returns the pod that a request reached: named by one of the ends, or by its connection.
    fn pod<'a>(&'a self, r: &'a Request) -> Option<&'a Arc<str>> {
        let by_connection = || match r.row.conn_reused && !self.0.is_empty() {
            true => self.0.get(&r.connection()?).map(|latest| &latest.pod),
            false => None,
        };
        r.pod().or_else(by_connection)
    }
}

impl Gathered<'_> {
    /// Returns the pod that a request reached, as far as it is known.
    pub(crate) fn pod<'a>(&'a self, r: &'a Request) -> Option<&'a Arc<str>> {
        self.connections.pod(r)
    }
}

impl Evidence {
    /// Returns true if it knows the pods of plainly answered requests that do not name them.
    pub(crate) fn knows_more_than(&self, requests: &Requests) -> bool {
        requests.has_unnamed_plain && !self.connections.0.is_empty()
    }

    /// Returns the pod that a request reached, as far as it is known.
    pub(crate) fn pod<'a>(&'a self, r: &'a Request) -> Option<&'a Arc<str>> {
        self.connections.pod(r)
    }
}

/// Evidence collected while the requests are read.
#[derive(Debug)]
pub(crate) struct Gathered<'a> {
    pub tails: Vec<Vec<Tail>>,
    /// Arrivals before t0, by termination and target.
    pub before: Vec<Vec<Arrivals>>,
    pub tries: Vec<Tries>,
    /// Time at which each pod was first sent a request that it answered with success.
    pub first_served: Vec<Option<Stamp>>,
    met: ByName<Lives<'a>>,
    /// By target and pod: time from which a starting pod had surely begun to serve, if nothing names pods.
    pub quiet: Vec<Vec<Option<Stamp>>>,
    connections: Connections,
    /// By target: the last time at which a request was tried, and the uncertainty of its clients' clocks.
    observed: Vec<(Option<Stamp>, i64)>,
}

impl<'a> Gathered<'a> {
    pub(crate) fn new(timeline: &Timeline) -> Self {
        let (ends, targets) = (timeline.ends.len(), timeline.info.targets.len());
        Self {
            tails: vec![vec![Tail::default(); targets]; ends],
            before: vec![vec![Arrivals::default(); targets]; ends],
            tries: vec![Tries::new(timeline); targets],
            first_served: vec![None; timeline.pods.len()],
            met: ByName::default(),
            quiet: vec![vec![None; timeline.pods.len()]; targets],
            connections: Connections::default(),
            observed: vec![(None, 0); targets],
        }
    }

    /// Adds a request that was plainly answered.
    pub(crate) fn answered(&mut self, timeline: &'a Timeline, r: &Request) {
        let target = timeline.target_of(&r.row);
        self.add(timeline, target, r);
        if let Some(target) = target.filter(|_| r.is_new_connection()) {
            self.tries[target].answered(r.begun(), r.pod().is_some());
        }
    }

    /// Adds any request.
    fn add(&mut self, timeline: &'a Timeline, target: Option<usize>, r: &Request) {
        let lives = r.pod().map(|pod| *self.met.get(pod, || timeline.lives_of(pod)));
        if r.row.outcome == Outcome::Ok
            && let Some(life) = lives.and_then(|lives| lives.number_at(r.begun()))
        {
            let first = &mut self.first_served[life];
            *first = Some(first.map_or(r.begun(), |first| first.min(r.begun())));
        }
        let Some(target) = target else { return };
        let balances = timeline.info.targets[target].balances;
        if r.row.outcome == Outcome::NotSent || !arrives(r, balances) {
            return;
        }
        let (until, uncertainty_ns) = &mut self.observed[target];
        *until = (*until).max(Some(r.begun()));
        *uncertainty_ns = r.uncertainty_ns.max(*uncertainty_ns);
        let Some(end) = lives.and_then(|lives| lives.end_at(r.begun())) else { return };
        let t0 = timeline.ends[end].t0;
        if r.begun() < t0.earliest {
            self.before[end][target].add(r.begun());
        }
        let tail = &mut self.tails[end][target];
        tail.arrival(r.begun(), t0.latest, r.named().is_none());
        if balances == Balances::Connections && matches!(r.row.outcome, Outcome::Ok | Outcome::HttpError) {
            tail.last_accepted = tail.last_accepted.max(Some(r.begun().shifted_ns(-r.uncertainty_ns)));
        }
    }

    /// Adds the evidence of later requests.
    pub(crate) fn merge(&mut self, later: Self) {
        for (own, later) in self.tails.iter_mut().flatten().zip(later.tails.iter().flatten()) {
            own.merge(later);
        }
        for (own, later) in self.before.iter_mut().flatten().zip(later.before.iter().flatten()) {
            own.merge(later);
        }
        for (own, later) in self.tries.iter_mut().zip(&later.tries) {
            own.merge(later);
        }
        for (own, later) in self.first_served.iter_mut().zip(later.first_served) {
            *own = own.iter().copied().chain(later).min();
        }
        for ((until, uncertainty_ns), later) in self.observed.iter_mut().zip(later.observed) {
            (*until, *uncertainty_ns) = ((*until).max(later.0), later.1.max(*uncertainty_ns));
        }
    }

    /// Removes all evidence about windows that came from losses.
    pub(crate) fn forget_losses(&mut self, timeline: &Timeline) {
        for ((tails, before), end) in self.tails.iter_mut().zip(&self.before).zip(&timeline.ends) {
            for (tail, before) in tails.iter_mut().zip(before) {
                tail.forget_losses(before, end.t0.earliest);
            }
        }
    }

    fn finish(&mut self, timeline: &Timeline) {
        self.met = ByName::default();
        for tails in &mut self.tails {
            for (tail, (until, uncertainty_ns)) in tails.iter_mut().zip(&self.observed) {
                (tail.observed_until, tail.uncertainty_ns) = (*until, *uncertainty_ns);
            }
        }
        self.forget_losses(timeline);
        self.tries.iter_mut().for_each(Tries::sort);
        let endpoints = timeline.endpoints.most(None).max(1);
        for (number, target) in timeline.info.targets.iter().enumerate() {
            let rate = self.tries[number].rate();
            for (tails, end) in self.tails.iter_mut().zip(&timeline.ends) {
                let usable = timeline.endpoints.usable_at(&Scope::of(target), end.t0.earliest);
                tails[number].rate_expected =
                    usable.map_or(0.0, |usable| rate / usable.pods.len().max(1) as f64);
            }
        }
        for (quiet, tries) in self.quiet.iter_mut().zip(&self.tries) {
            for (quiet, life) in quiet.iter_mut().zip(&timeline.pods) {
                let ready = life.endpoint_ready.filter(|_| !life.listed);
                *quiet = ready.and_then(|at| balance::quiet_since(tries, at.shifted_ns(LAG_NS), endpoints));
            }
        }
    }
}

/// Questions about the answered requests that the other requests raise.
#[derive(Clone)]
struct Asked {
    connections: Connections,
    ended: EndedFlows,
    gateways: Vec<Option<Watching>>,
}

impl Asked {
    /// Columns read for these questions, with those that show the pod.
    const COLUMNS: &'static [&'static str] = &[
        "source",
        "seq",
        "target",
        "scheduled_ns",
        "connect_start_ns",
        "connected_ns",
        "tls_ns",
        "sent_ns",
        "end_ns",
        "outcome",
        "status",
        "grpc_status",
        "conn",
        "conn_reused",
        "local_port",
        "remote_addr",
        "routed_to",
        "pod",
    ];

    /// Reads the rows, if there are any questions.
    fn of(timeline: &Timeline, requests: &Requests, flows: &Flows<'_>) -> Result<Self, PartError> {
        let nothing = Self {
            connections: Connections::default(),
            ended: EndedFlows::default(),
            gateways: gateway::watch(timeline, &requests.others),
        };
        let asks_for_pods = requests.has_named && !requests.unnamed.is_empty();
        let asks_gateways = nothing.gateways.iter().any(Option::is_some);
        if !asks_for_pods && !asks_gateways && !flows.may_be_stale() {
            return Ok(nothing);
        }
        let add = |asked: &mut Self, r: &Request| asked.add(timeline, requests, flows, r);
        requests.plain(Wanted::Only(Self::COLUMNS), || nothing.clone(), add, Self::merge)
    }

    fn add(&mut self, timeline: &Timeline, requests: &Requests, flows: &Flows<'_>, r: &Request) {
        self.connections.see(timeline, requests, r);
        flows.answered(r, &mut self.ended);
        if let Some(gateway) = timeline.target_of(&r.row).and_then(|target| self.gateways[target].as_mut()) {
            gateway.answered(&r.row);
        }
    }

    /// Adds the evidence of later requests.
    fn merge(&mut self, later: Self) {
        self.connections.merge(later.connections);
        self.ended.merge(later.ended);
        for (own, later) in self.gateways.iter_mut().zip(later.gateways) {
            own.iter_mut().zip(later).for_each(|(own, later)| own.merge(&later));
        }
    }
}

/// Finds out where requests were routed, and the possible explanations of each that was not plainly answered. `alpha`
/// is, by termination, the chance that an upper bound may be too small; `gathered` is the evidence of the requests that
/// were plainly answered.
pub(crate) fn gather<'a>(
    timeline: &'a Timeline,
    requests: &Requests,
    alpha: &[f64],
    mut gathered: Gathered<'a>,
) -> Result<(Vec<Verdict>, Evidence), PartError> {
    let target_of = |r: &Request| timeline.target_of(&r.row);
    let flows = Flows::of(&requests.others);
    let Asked { connections, ended, gateways } = Asked::of(timeline, requests, &flows)?;
    gathered.connections = connections;
    for r in &requests.others {
        gathered.add(timeline, target_of(r), r);
        gathered.connections.see(timeline, requests, r);
    }
    let gateways: Vec<Option<Gateway>> =
        gateways.into_iter().map(|watching| watching.map(Watching::done)).collect();
    let mut stale = flows.stale(&ended);
    for (stale, r) in stale.iter_mut().zip(&requests.others) {
        *stale |= met_an_old_entry(timeline, r);
    }
    for (number, (r, stale)) in requests.others.iter().zip(&stale).enumerate() {
        let Some(target) = target_of(r).filter(|_| r.is_new_connection() && !stale) else { continue };
        match r.row.outcome {
            Outcome::NotSent => {}
            // A pod that refuses with a status of its own has accepted the connection, too.
            Outcome::Ok | Outcome::HttpError => gathered.tries[target].answered(r.begun(), r.pod().is_some()),
            // The result of a request that was cut off is unknown.
            outcome => {
                let pod = r.pod().map(Arc::clone);
                gathered.tries[target].lost(Loss { at: r.begun(), request: number, pod, outcome });
            }
        }
    }
    gathered.finish(timeline);

    let mut deaths: Vec<Death> = timeline.ends.iter().map(Death::of).collect();
    reaches(timeline, &mut gathered, &deaths, alpha);
    let suspects = Suspects::new(timeline, &requests.others, &stale, &gateways);
    let mut verdicts = suspects.verdicts(&mut gathered, &deaths);
    // Failures that only one pod explains tell from when on it was dead, which sharpens all that rests on that.
    if suspects.found_dead(&verdicts, &mut deaths) {
        reaches(timeline, &mut gathered, &deaths, alpha);
        // There may not be room for both.
        drop(verdicts);
        verdicts = suspects.verdicts(&mut gathered, &deaths);
    }
    let Gathered { tails, first_served, connections, .. } = gathered;
    Ok((verdicts, Evidence { tails, stale, first_served, connections }))
}

/// Returns true for a connect without an answer for which the kernel made no entry: the entry of an earlier connection
/// from the same port, possibly of an earlier run, routed it.
fn met_an_old_entry(timeline: &Timeline, r: &Request) -> bool {
    matches!(r.row.outcome, Outcome::ConnectTimeout | Outcome::ConnectUnreachable)
        && timeline.tracked.as_ref().is_some_and(|tracked| tracked.had_no_entry(&r.row))
}

/// Adds the bounds that random balancing gives for each pod, if a target's consumer balances that way.
fn reaches(timeline: &Timeline, gathered: &mut Gathered, deaths: &[Death], alpha: &[f64]) {
    // The next pod of a StatefulSet's name is another one.
    let dead = |pod: &str, at: Stamp| {
        timeline.end_of(pod, at).map(|end| &deaths[end]).filter(|death| death.is_sure(at))
    };
    for (number, target) in timeline.info.targets.iter().enumerate() {
        let Balancing::Random { .. } = target.balancing(&timeline.info.cluster) else { continue };
        let states = timeline.endpoints.usable(&Scope::of(target));
        for (e, end) in timeline.ends.iter().enumerate() {
            let Some(route) = Route::of(end, states) else { continue };
            let tail = &gathered.tails[e][number];
            let alpha = tail.alpha_of_balance(alpha[e]);
            let from = tail.last_named.map_or(end.t0.latest, |at| at.max(end.t0.latest));
            let tries = &gathered.tries[number];
            let may_be_another = |at: Stamp| {
                timeline.ends.iter().enumerate().any(|(o, other)| {
                    let until = match &gathered.tails[o][number].reach {
                        Some(reach) if o < e => reach.until,
                        _ => other.gone().map(|gone| gone.shifted_ns(LAG_NS)),
                    };
                    o != e && other.t0.earliest <= at && until.is_none_or(|until| at <= until)
                })
            };
            let end = (end, &deaths[e]);
            let reach = balance::reach(end, &route, tries, from, alpha, &dead, may_be_another);
            gathered.tails[e][number].reach = Some(reach);
        }
    }
}
