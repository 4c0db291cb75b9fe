//! Times until which a gateway may have used each terminating pod, as its failures show. `attribute` decides which pod
//! lost a request, and why.
//!
//! A gateway (an ingress controller, a mesh, a load balancer that speaks HTTP) pools its connections to pods and routes
//! individual requests. Its client is never connected to a pod, so the client sees a dead pod only as a 502, 503 or 504
//! response, as silence, or as a connection closed without a response.
//!
//! Observations from a recorded rollout of six pods behind Traefik (12 terminations, 14,400 requests, with conntrack's
//! record of each connection that Traefik opened):
//!
//! - Each of the 340 lost requests has its own connection attempt to a terminating pod, 0.2 to 2 ms after it was sent:
//!   Traefik opens a connection when the pooled one is closed, and does not try a second pod.
//! - While the pod's address exists and nothing listens, the attempt is refused and the client gets 502 within 1 to 2
//!   ms. Once the address is gone nothing answers, and Traefik waits for up to 30 s, which is longer than a client
//!   waits, so these are timeouts. The change happens 0.05 to 0.4 s *before* the watch shows the containers as
//!   terminated.
//! - Traefik adopts a new set of pods at most every 2 s (`providersThrottleDuration`). The last attempts to terminating
//!   pods were at 3.395, 5.410, 7.379 s in the first rollout and at 33.395, 35.333, 37.289 s in the second. So it drops
//!   all pods that terminated since its last change together, up to 2 s after they died, however long ago the Service
//!   proxy dropped them.
//! - It strictly alternates: each of n pods answers every nth request. A run of answered requests much longer than n
//!   therefore shows that no dead pod is in the rotation.
//!
//! The last point determines the set of pods that a failure can belong to ([`Gateway::candidates`]): pods that may have
//! stopped by the time the request was sent, and that have not been skipped since then for more consecutive answered
//! requests than a random choice would skip them. That bound only excludes explanations. It is never the upper bound of
//! a window, because a gateway that retries, or that marks a pod as failed and tries it again later, skips pods that it
//! still uses.
//!
//! If a gateway dropped a pod that was still answering, the silence of the pod's own requests shows it
//! ([`left_alive`]). A gateway without a server sends requests to no pod (see [`no_server`]).

mod no_server;

use crate::math::values::ValueHistogram;
use crate::route::arrivals::{ArrivalTail, LINK_ALPHA, silence_s, silent_until};
use crate::route::death::Death;
use crate::timeline::drop_policy::OutcomeClass;
use crate::timeline::endpoint_history::Scope;
use crate::timeline::{PodEnd, Request, Timeline};
use no_server::{KnownPod, Refusals};
use rolldrop_record::routing::Routing;
use rolldrop_record::run_info::{Balances, Target};
use rolldrop_record::{Outcome, RequestRow, Stamp};

/// Probability that consecutive answered requests all missed a dead pod by chance. Below it, the gateway counts as no
/// longer choosing the pod.
const PASSED_OVER: f64 = 1e-6;
/// Longest pause between two failures due to the same dead pod: Traefik's dial timeout, and the time that load
/// balancers need by default to mark a target unhealthy (three checks, 10 s apart).
const LONGEST_PAUSE_NS: i64 = 30_000_000_000;
/// Quantile of the response times within which a live pod responds; [`ANSWERED_MARGIN_NS`] is added.
const ANSWERED_SHARE: f64 = 0.999;
/// Margin for the network and a busy machine, added to that quantile.
const ANSWERED_MARGIN_NS: i64 = 100_000_000;
/// Minimum response time of a response that may come from a retry.
const MAY_BE_RETRIED_NS: i64 = 250_000_000;
/// Maximum age of a gateway's endpoint table, which may list endpoints that are gone, or lack existing ones, for this
/// long.
pub(crate) const TABLE_AGE_NS: i64 = 5_000_000_000;
/// Maximum delay before a gateway applies endpoint changes after its last update: Traefik's
/// `providersThrottleDuration`.
const THROTTLE_NS: i64 = 2_000_000_000;

/// Factor by which a pod's share of a gateway's requests may fall while other pods are added.
const SHARE_FALLS: f64 = 3.0;

/// Creates one entry for each target of the run that is a gateway.
pub(crate) fn watch(timeline: &Timeline, others: &[Request], deaths: &[Death]) -> Vec<Option<Watching>> {
    let targets = timeline.info.targets.iter().enumerate();
    let watching = |(target, info): (usize, &Target)| {
        (info.balances == Balances::Requests).then(|| Watching::new(timeline, target, others, deaths))
    };
    targets.map(watching).collect()
}

/// Requests to one target through a gateway, collected while the rows are read.
#[derive(Clone, Debug)]
pub(crate) struct Watching {
    deaths: Vec<Death>,
    /// Failures, and the times from which a pod is certainly dead, in order.
    marks: Vec<GatewayMark>,
    /// Numbers of answered requests between marks: each counts those sent before the mark with the same index and not
    /// before the previous mark. There is one more entry than marks.
    answered: Vec<u64>,
    took: ValueHistogram,
    /// Number of consecutive answered requests within which every pod in the rotation must have been chosen.
    enough: u64,
    refusals: Refusals,
    pods: Vec<KnownPod>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct GatewayMark {
    at: Stamp,
    is_failure: bool,
}

impl Watching {
    /// Starts with a target's failed requests. `target` is the target's index in `run.json`.
    pub(crate) fn new(timeline: &Timeline, target: usize, others: &[Request], deaths: &[Death]) -> Self {
        let Some(info) = timeline.info.targets.get(target) else { return Self::of(Vec::new(), &[], 1) };
        let of_target = others.iter().filter(|r| *r.row.target == *info.name);
        let failed: Vec<&Request> = of_target
            .clone()
            .filter(|r| is_gateways(&r.row) && OutcomeClass::of(&r.row) == OutcomeClass::Dropped)
            .collect();
        let uncertainty_ns = failed.iter().map(|r| r.uncertainty_ns).max().unwrap_or(0);
        let deaths = deaths.iter().map(|death| death.widened(uncertainty_ns)).collect();
        let failed: Vec<Stamp> = failed.into_iter().map(|r| sent(&r.row)).collect();
        if info.routing == Some(Routing::LoggingGateway) && info.service.is_some() {
            // A Service balances connections, and the gateway keeps them open; those to other pods show nothing about a
            // dead pod.
            return Self { enough: u64::MAX, ..Self::of(deaths, &failed, 1) };
        }
        let endpoints = timeline.endpoints.most(info.service.as_deref());
        let endpoints = if endpoints == 0 { timeline.pods.len() } else { endpoints };
        let refusals = Refusals::new(of_target);
        Self { refusals, pods: KnownPod::of_target(timeline, info), ..Self::of(deaths, &failed, endpoints) }
    }

    fn of(deaths: Vec<Death>, failed: &[Stamp], endpoints: usize) -> Self {
        let failures = failed.iter().map(|at| GatewayMark { at: *at, is_failure: true });
        let silences =
            deaths.iter().filter_map(|d| Some(GatewayMark { at: d.silent_from?, is_failure: false }));
        let mut marks: Vec<GatewayMark> = failures.chain(silences).collect();
        marks.sort_unstable();
        let answered = vec![0; marks.len() + 1];
        Self {
            deaths,
            marks,
            answered,
            took: ValueHistogram::default(),
            enough: enough(endpoints),
            refusals: Refusals::default(),
            pods: Vec::new(),
        }
    }

    /// Adds a request to this target that a pod answered.
    pub(crate) fn answered(&mut self, row: &RequestRow) {
        let (sent, took_ns) = (sent(row), row.end.ns_since(sent(row)));
        self.took.add(took_ns);
        self.refusals.interrupt(sent);
        // A gateway that tries a dead pod first and then another one responds late, and has not skipped the dead pod.
        if took_ns < MAY_BE_RETRIED_NS {
            self.answered[self.marks.partition_point(|mark| mark.at <= sent)] += 1;
        }
    }

    /// Adds the answered requests that another part collected for the same failures.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.answered.iter_mut().zip(&other.answered).for_each(|(own, other)| *own += other);
        self.took.merge(&other.took);
        self.refusals.merge(&other.refusals);
    }

    /// Computes the result from all requests added.
    pub(crate) fn done(self) -> Gateway {
        let answers_within_ns = self.took.quantile_ns(ANSWERED_SHARE) + ANSWERED_MARGIN_NS;
        let without_server = self.refusals.stretches(&self.pods);
        let until = self.deaths.iter().map(|death| self.takes_turns_until(death, &without_server)).collect();
        Gateway { deaths: self.deaths, until, answers_within_ns, without_server }
    }

    /// Returns the time until which a pod may have been chosen; `None` if nothing limits it.
    fn takes_turns_until(&self, death: &Death, without_server: &[(Stamp, Stamp)]) -> Option<Stamp> {
        let dead = death.silent_from?;
        // A gateway may know the pod for this long, even if other pods answer in the meantime.
        let at_least = dead.shifted_ns(THROTTLE_NS);
        let first = self.marks.partition_point(|mark| mark.at < dead);
        let (mut last, mut row) = (dead, 0);
        for number in first..self.marks.len() {
            let mark = self.marks[number];
            if number > first {
                row += self.answered[number];
            }
            if row >= self.enough {
                return Some(mark.at.max(at_least));
            }
            if mark.is_failure && !is_within(without_server, mark.at) {
                if mark.at.ns_since(last) > LONGEST_PAUSE_NS {
                    return Some(mark.at.max(at_least));
                }
                (last, row) = (mark.at, 0);
            }
        }
        None
    }
}

/// Returns the number of consecutive answered requests after which a pod that is chosen at random among this many
/// endpoints has been chosen, except with probability [`PASSED_OVER`].
#[expect(clippy::cast_possible_truncation, reason = "a few dozen for each endpoint")]
fn enough(endpoints: usize) -> u64 {
    let others = 1.0 - 1.0 / endpoints.max(2) as f64;
    (PASSED_OVER.ln() / others.ln()).ceil() as u64
}

/// Returns the outcome of the gateway's own connect to a pod, as far as the client's response shows it.
pub(crate) fn connect(row: &RequestRow) -> Outcome {
    match (row.outcome, row.status) {
        (Outcome::ResponseTimeout, _) | (_, Some(504)) => Outcome::ConnectTimeout,
        (_, Some(502)) => Outcome::ConnectRefused,
        _ => row.outcome,
    }
}

/// Returns the time a request was handed to the gateway.
pub(crate) fn sent(row: &RequestRow) -> Stamp {
    row.sent.or(row.connected).or(row.connect_start).unwrap_or(row.scheduled)
}

/// Returns true if a request reached the gateway, which means that the gateway or a pod behind it failed.
pub(crate) fn is_gateways(row: &RequestRow) -> bool {
    row.sent.is_some()
        && (row.outcome.is_cut_off()
            || matches!(
                row.outcome,
                Outcome::HttpError
                    | Outcome::ResponseTimeout
                    | Outcome::BodyTimeout
                    | Outcome::ResetBeforeResponse
                    | Outcome::EofBeforeResponse
                    | Outcome::StreamStalled
                    | Outcome::H2RefusedStream
                    | Outcome::H2Goaway
                    | Outcome::Ok
            ))
}

/// Facts about a gateway's pods.
#[derive(Debug)]
pub(crate) struct Gateway {
    deaths: Vec<Death>,
    /// Time until which each pod may have been chosen; `None` if nothing limits it.
    until: Vec<Option<Stamp>>,
    answers_within_ns: i64,
    /// Periods in which the gateway had no server.
    without_server: Vec<(Stamp, Stamp)>,
}

fn is_within(stretches: &[(Stamp, Stamp)], at: Stamp) -> bool {
    stretches.iter().any(|(from, until)| (*from..=*until).contains(&at))
}

impl Gateway {
    /// Adds, for each pod, the time from which its silence shows that the gateway no longer chose it.
    pub(crate) fn leaves(&mut self, left: impl Iterator<Item = Option<Stamp>>) {
        for (until, left) in self.until.iter_mut().zip(left) {
            *until = [*until, left].into_iter().flatten().min();
        }
    }

    /// Returns true if the gateway had no server for this request. All requests in such a period have the same outcome.
    pub(crate) fn had_no_server(&self, row: &RequestRow) -> bool {
        is_within(&self.without_server, sent(row))
    }

    /// Returns the terminations, as indices of `timeline.ends`, that can explain a failure whose pod is not named.
    pub(crate) fn candidates(&self, row: &RequestRow) -> Vec<usize> {
        let sent = sent(row);
        // If a gateway got no response, it had chosen an unresponsive pod; a live pod would have responded.
        let handed_over = match (row.outcome, row.status) {
            (Outcome::ResponseTimeout | Outcome::BodyTimeout | Outcome::StreamStalled, _)
            | (_, Some(504)) => row.end.min(sent.shifted_ns(self.answers_within_ns)),
            _ => row.end,
        };
        let fits = |e: &usize| {
            self.deaths[*e].answered_until <= handed_over && self.until[*e].is_none_or(|until| sent < until)
        };
        (0..self.deaths.len()).filter(fits).collect()
    }
}

/// Returns the time by which a gateway had dropped a pod that was still answering: the pod's named arrivals had been
/// absent for long enough. A later failure has another origin, such as a stale flow among the gateway's own
/// connections. Returns `None` if the pod may have stopped before that time.
pub(crate) fn left_alive(end: &PodEnd, tail: &ArrivalTail) -> Option<Stamp> {
    let last = tail.last_named.filter(|_| tail.rate > 0.0)?;
    let left = silent_until(last, SHARE_FALLS * silence_s(tail.rate, LINK_ALPHA));
    (left <= end.may_stop_from()).then_some(left)
}

/// Returns true if a gateway may have known of no usable endpoint of the target when the request was sent.
pub(crate) fn none_usable(timeline: &Timeline, of: &Scope, row: &RequestRow) -> bool {
    let sent = sent(row);
    timeline.endpoints.none_usable_within(of, sent.shifted_ns(-TABLE_AGE_NS), sent)
}

#[cfg(test)]
mod tests;
