//! Facts about routing that follow from the requests alone, before losses are attributed. They do not change
//! afterwards.
//!
//! Sources that name a request's pod come first: the proxy's row, the kernel's connection tracking, the response
//! header, and for a reused connection the pod reached before. Most lost requests have none of these;
//! [`crate::attribute::solve`] finds the terminations that may explain them. The time until which connections may have
//! been routed to a pod follows from [`crate::route::balance_bound`] if connections are balanced at random, and otherwise
//! from the silence of the pod's own arrivals.
//!
//! A connection that existed before t0 and was cut off with its pod shows nothing about routing after t0, only about
//! routing before it. It is one of the arrivals whose rate determines how long a silence must be.

use std::sync::Arc;

use crate::route::LAG_NS;
use crate::route::arrivals::{ArrivalTail, PodArrivals};
use crate::route::balance_bound;
use crate::route::death::Death;
use crate::route::gateway::{self, Gateway, Watching};
use crate::route::observations::ObservedTotals;
use crate::route::tries::{Tries, UnansweredConnection};
use crate::timeline::connections::connection_pods::ConnectionPods;
use crate::timeline::connections::port_reuse::{EndedFlows, FlowAttempts};
use crate::timeline::endpoint_history::Scope;
use crate::timeline::{Request, Requests, Timeline};
use rolldrop_record::parts::{PartError, Wanted};
use rolldrop_record::{Outcome, Stamp};

/// All routing facts of a run.
#[derive(Debug)]
pub(crate) struct Facts<'a> {
    pub(crate) timeline: &'a Timeline,
    /// Requests that did not plainly succeed.
    pub(crate) others: &'a [Request],
    /// For each request in `others`: true if a connection-tracking entry routed it, rather than the consumer.
    pub(crate) stale: Vec<bool>,
    /// Probability that an upper bound of a termination's windows is too small, by termination.
    pub(crate) alpha: &'a [f64],
    /// Time at which the watches saw the pod stop, by termination.
    pub(crate) deaths: Vec<Death>,
    /// Arrivals at the pod, by termination, then by target. Excludes those inferred from losses.
    pub(crate) tails: Vec<Vec<ArrivalTail>>,
    /// The arrivals in `tails` that came before t0, by termination, then by target.
    pub(crate) before: Vec<Vec<PodArrivals>>,
    /// New connections, by target.
    pub(crate) tries: Vec<Tries>,
    /// Send time of the first request that each pod answered successfully.
    pub(crate) first_served: Vec<Option<Stamp>>,
    /// By target and pod: time by which a starting pod had certainly begun to serve, if nothing identifies the pods.
    pub(crate) quiet: Vec<Vec<Option<Stamp>>>,
    /// Pods that the target's gateway may have used, if there is a gateway; by target.
    pub(crate) gateways: Vec<Option<Gateway>>,
    connections: ConnectionPods,
}

impl<'a> Facts<'a> {
    /// Combines the observations from the plainly successful requests with the other requests.
    ///
    /// # Errors
    /// Fails if rows cannot be read.
    pub(crate) fn of(
        timeline: &'a Timeline,
        requests: &'a Requests,
        alpha: &'a [f64],
        mut observed: ObservedTotals<'a>,
    ) -> Result<Self, PartError> {
        let flows = FlowAttempts::of(&requests.others);
        let deaths: Vec<Death> = timeline.ends.iter().map(|end| Death::of(timeline, end)).collect();
        let OpenQuestions { mut connections, ended, gateways } =
            OpenQuestions::of(timeline, requests, &flows, &deaths)?;
        for r in &requests.others {
            observed.add(timeline, timeline.target_of(&r.row), r);
            connections.see(timeline, requests, r);
        }
        let mut stale = flows.stale(&ended);
        for (stale, r) in stale.iter_mut().zip(&requests.others) {
            *stale |= met_an_old_entry(timeline, r);
        }
        add_tries(timeline, &requests.others, &stale, &mut observed.tries);
        observed.tries.iter_mut().for_each(Tries::sort);
        let tails = tails(timeline, &observed);
        let ObservedTotals { before, tries, first_served, .. } = observed;
        let mut gateways: Vec<Option<Gateway>> =
            gateways.into_iter().map(|watching| watching.map(Watching::done)).collect();
        for (target, gateway) in gateways.iter_mut().enumerate() {
            let left =
                timeline.ends.iter().zip(&tails).map(|(end, tails)| gateway::left_alive(end, &tails[target]));
            gateway.iter_mut().for_each(|gateway| gateway.leaves(left.clone()));
        }
        Ok(Self {
            timeline,
            others: &requests.others,
            stale,
            alpha,
            deaths,
            tails,
            before,
            quiet: tries.iter().map(|tries| quiet(timeline, tries)).collect(),
            tries,
            first_served,
            gateways,
            connections,
        })
    }

    /// Returns the pod that a request reached, if known.
    pub(crate) fn pod<'r>(&'r self, r: &'r Request) -> Option<&'r Arc<str>> {
        self.connections.pod(r)
    }

    /// Returns true if these facts identify the pods of plainly successful requests that do not name their pods
    /// themselves.
    pub(crate) fn know_more_than(&self, requests: &Requests) -> bool {
        requests.has_unnamed_plain && !self.connections.is_empty()
    }
}

/// Returns true for an unanswered connect for which the kernel created no entry, so that the entry of an earlier
/// connection from the same port, possibly in an earlier run, must have routed it.
fn met_an_old_entry(timeline: &Timeline, r: &Request) -> bool {
    matches!(r.row.outcome, Outcome::ConnectTimeout | Outcome::ConnectUnreachable)
        && timeline.tracked.as_ref().is_some_and(|tracked| tracked.had_no_entry(&r.row))
}

/// Adds the new connections among the requests that did not plainly succeed.
fn add_tries(timeline: &Timeline, others: &[Request], stale: &[bool], tries: &mut [Tries]) {
    for (number, (r, stale)) in others.iter().zip(stale).enumerate() {
        let is_routed = r.is_new_connection() && !stale;
        let Some(target) = timeline.target_of(&r.row).filter(|_| is_routed) else { continue };
        match r.row.outcome {
            Outcome::NotSent => {}
            // A pod that responds with an error status has also accepted the connection.
            Outcome::Ok | Outcome::HttpError => tries[target].answered(r.begun(), r.pod().is_some()),
            // The result of a request that was cut off is unknown.
            outcome => {
                let pod = r.pod().map(Arc::clone);
                tries[target].lost(UnansweredConnection { at: r.begun(), request: number, pod, outcome });
            }
        }
    }
}

/// Returns the arrivals at each pod once all requests are observed.
fn tails(timeline: &Timeline, observed: &ObservedTotals<'_>) -> Vec<Vec<ArrivalTail>> {
    let tail = |end: usize, target: usize| {
        let (t0, (observed_until, uncertainty_ns)) = (timeline.ends[end].t0, observed.until[target]);
        let usable = timeline.endpoints.usable_at(&Scope::of(&timeline.info.targets[target]), t0.earliest);
        let rate = observed.tries[target].rate();
        let mut tail = observed.tails[end][target].clone();
        (tail.observed_until, tail.uncertainty_ns) = (observed_until, uncertainty_ns);
        tail.rate_expected = usable.map_or(0.0, |usable| rate / usable.pods.len().max(1) as f64);
        tail.measure(&observed.before[end][target], t0.earliest);
        tail
    };
    let targets = 0..timeline.info.targets.len();
    (0..timeline.ends.len()).map(|end| targets.clone().map(|target| tail(end, target)).collect()).collect()
}

/// Returns the time by which each starting pod had certainly begun to serve.
fn quiet(timeline: &Timeline, tries: &Tries) -> Vec<Option<Stamp>> {
    let endpoints = timeline.endpoints.most(None).max(1);
    let since = |at: Stamp| balance_bound::quiet_since(tries, at.shifted_ns(LAG_NS), endpoints);
    let lives = timeline.pods.iter();
    lives.map(|life| life.endpoint_ready.filter(|_| !life.listed).and_then(since)).collect()
}

/// Questions about the answered requests, raised by the other requests.
#[derive(Clone)]
struct OpenQuestions {
    connections: ConnectionPods,
    ended: EndedFlows,
    gateways: Vec<Option<Watching>>,
}

impl OpenQuestions {
    /// Columns needed for these questions, including those that name the pod.
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

    /// Reads the rows if there are any questions.
    fn of(
        timeline: &Timeline,
        requests: &Requests,
        flows: &FlowAttempts<'_>,
        deaths: &[Death],
    ) -> Result<Self, PartError> {
        let nothing = Self {
            connections: ConnectionPods::default(),
            ended: EndedFlows::default(),
            gateways: gateway::watch(timeline, &requests.others, deaths),
        };
        let asks_for_pods = requests.has_named && !requests.unnamed.is_empty();
        let asks_gateways = nothing.gateways.iter().any(Option::is_some);
        if !asks_for_pods && !asks_gateways && !flows.may_be_stale() {
            return Ok(nothing);
        }
        let add = |asked: &mut Self, r: &Request| asked.add(timeline, requests, flows, r);
        requests.plain(Wanted::Only(Self::COLUMNS), || nothing.clone(), add, Self::merge)
    }

    fn add(&mut self, timeline: &Timeline, requests: &Requests, flows: &FlowAttempts<'_>, r: &Request) {
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
