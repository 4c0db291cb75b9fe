//! Attributes a gateway's failures: which ending pods it can have sent them to, and why they were lost.
//!
//! A gateway (an ingress controller, a mesh, a load balancer that speaks HTTP) pools its connections to pods and
//! routes single requests. Its client is never connected to a pod, so it sees a dead one only as an answer 502, 503
//! or 504, as silence, or as a connection that is closed without an answer.
//!
//! Observations from a recorded rollout of six pods behind Traefik (12 terminations, 14,400 requests, with conntrack's
//! record of each connection that Traefik opened):
//!
//! - Each of the 340 lost requests has its own connection attempt to an ending pod, 0.2 to 2 ms after it was
//!   sent: Traefik opens a connection when the pooled one is closed, and does not try a second pod.
//! - While the pod's address exists and nothing listens, the attempt is refused and the client gets 502
//!   within 1 to 2 ms. Once the address is gone nothing answers, and Traefik waits for up to 30 s: longer
//!   than a client does, so these are timeouts. The change comes 0.05 to 0.4 s *before* the watch shows the
//!   containers as terminated.
//! - Traefik takes a new set of pods at most every 2 s (`providersThrottleDuration`). The last attempts to
//!   ending pods lie at 3.395, 5.410, 7.379 s of the first rollout and at 33.395, 35.333, 37.289 s of the
//!   second. So it drops all pods at once that ended since its last change, up to 2 s after they died,
//!   however long ago the Service proxy dropped them.
//! - Its turns are even: of n pods, one answers every nth request. A row of answered requests much longer
//!   than n therefore shows that no dead pod takes turns any more.
//!
//! The last point gives the set of pods that a failure can belong to ([`Gateway::candidates`]): those that may have
//! stopped when it was sent, and that have not been skipped since for so many answered requests in a row that a
//! random choice would have hit them. That bound only excludes explanations. It is never the upper bound of a window:
//! a gateway that retries, or that marks a pod as failed and tries it again later, skips pods that it still has.
//!
//! [`cause`] determines the cause of such a loss; the module `cause` covers the Service's path. A gateway that had no
//! server sent the request to no pod: [`no_server`].

mod no_server;

use crate::math::values::Values;
use crate::timeline::drop_policy::Class;
use crate::timeline::endpoints::Scope;
use crate::timeline::{PodEnd, Request, Timeline};
use no_server::{KnownPod, Refusals};
use rolldrop_record::Cause;
use rolldrop_record::run_info::{Balances, Target};
use rolldrop_record::{Outcome, RequestRow, ServedEnd, Stamp};

/// Probability of missing a dead pod in this many answered requests in a row, below which the gateway no longer chooses
/// it.
const PASSED_OVER: f64 = 1e-6;
/// The longest pause between two failures of one dead pod: Traefik's dial timeout, and what load
/// balancers need by default to find a target unhealthy (three checks, 10 s apart).
const LONGEST_PAUSE_NS: i64 = 30_000_000_000;
/// Quantile of the answer times within which a live pod answers; [`ANSWERED_MARGIN_NS`] is added.
const ANSWERED_SHARE: f64 = 0.999;
/// Time that a network and a busy machine may add to that quantile.
const ANSWERED_MARGIN_NS: i64 = 100_000_000;
/// An answer that takes this long may come from a second try.
const MAY_BE_RETRIED_NS: i64 = 250_000_000;
/// Longest time for which a gateway that reports no endpoints may know ones that are gone, or not know existing ones.
const TABLE_AGE_NS: i64 = 5_000_000_000;
/// A gateway applies endpoint changes up to this long after its last update: Traefik's `providersThrottleDuration`.
const THROTTLE_NS: i64 = 2_000_000_000;

/// One termination, with the facts that attributing a gateway's failures needs.
#[derive(Clone, Copy, Debug)]
struct Dying {
    /// Time before which the pod answered its requests.
    stops: Stamp,
    /// Time from which it surely answered nothing; `None` if its death was not seen.
    dead: Option<Stamp>,
}

impl Dying {
    fn of(timeline: &Timeline, end: &PodEnd) -> Self {
        let dead = end.stages.app_exited.or(end.stages.containers_terminated).or(end.stages.pod_deleted);
        // A proxy of which all rows have arrived would have recorded the request.
        let is_complete = || {
            let mut of_pod = timeline.notes.hand_overs.iter().filter(|over| over.uid == end.uid).peekable();
            of_pod.peek().is_some() && of_pod.all(|over| over.rows.recorded == Some(over.rows.received))
        };
        let recorded_until = end.stages.proxy_exited.filter(|_| is_complete());
        Self { stops: recorded_until.unwrap_or(end.may_stop_from()).max(end.may_stop_from()), dead }
    }
}

/// Creates one entry for each target of the run that is a gateway.
pub(crate) fn watch(timeline: &Timeline, others: &[Request]) -> Vec<Option<Watching>> {
    let targets = timeline.info.targets.iter().enumerate();
    let watching = |(target, info): (usize, &Target)| {
        (info.balances == Balances::Requests).then(|| Watching::new(timeline, target, others))
    };
    targets.map(watching).collect()
}

/// The requests of one target through a gateway, while they are read.
#[derive(Clone, Debug)]
pub(crate) struct Watching {
    dying: Vec<Dying>,
    /// Failures, and the moments from which a pod is surely dead, in order.
    marks: Vec<Mark>,
    /// Numbers of answered requests: each counts those sent before the mark of the same number and not before the
    /// previous one; one more than marks.
    answered: Vec<u64>,
    took: Values,
    /// Number of answered requests in a row after which no pod that takes turns can have been skipped.
    enough: u64,
    refusals: Refusals,
    pods: Vec<KnownPod>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Mark {
    at: Stamp,
    is_failure: bool,
}

impl Watching {
    /// Starts with the failed requests of a target. `target` is its number in `run.json`.
    pub(crate) fn new(timeline: &Timeline, target: usize, others: &[Request]) -> Self {
        let Some(info) = timeline.info.targets.get(target) else { return Self::of(Vec::new(), &[], 1) };
        let of_target = others.iter().filter(|r| *r.row.target == *info.name);
        let failed: Vec<&Request> = of_target
            .clone()
            .filter(|r| is_gateways(&r.row) && Class::of(&r.row) == Class::Dropped)
            .collect();
        let uncertainty_ns = failed.iter().map(|r| r.uncertainty_ns).max().unwrap_or(0);
        let mut dying: Vec<Dying> = timeline.ends.iter().map(|end| Dying::of(timeline, end)).collect();
        for dying in &mut dying {
            dying.stops = dying.stops.shifted_ns(-uncertainty_ns);
            dying.dead = dying.dead.map(|at| at.shifted_ns(uncertainty_ns));
        }
        let failed: Vec<Stamp> = failed.into_iter().map(|r| sent(&r.row)).collect();
        let endpoints = timeline.endpoints.most(info.service.as_deref());
        let endpoints = if endpoints == 0 { timeline.pods.len() } else { endpoints };
        let refusals = Refusals::new(of_target);
        Self { refusals, pods: KnownPod::of_target(timeline, info), ..Self::of(dying, &failed, endpoints) }
    }

    fn of(dying: Vec<Dying>, failed: &[Stamp], endpoints: usize) -> Self {
        let failures = failed.iter().map(|at| Mark { at: *at, is_failure: true });
        let deaths = dying.iter().filter_map(|d| Some(Mark { at: d.dead?, is_failure: false }));
        let mut marks: Vec<Mark> = failures.chain(deaths).collect();
        marks.sort_unstable();
        let answered = vec![0; marks.len() + 1];
        Self {
            dying,
            marks,
            answered,
            took: Values::default(),
            enough: enough(endpoints),
            refusals: Refusals::default(),
            pods: Vec::new(),
        }
    }

    /// Adds a request of this target that a pod answered.
    pub(crate) fn answered(&mut self, row: &RequestRow) {
        let (sent, took_ns) = (sent(row), row.end.ns_since(sent(row)));
        self.took.add(took_ns);
        self.refusals.interrupt(sent);
        // A gateway that tries another pod after a dead one answers late, and has not passed over the dead one.
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

    /// Computes the result from everything added.
    pub(crate) fn done(self) -> Gateway {
        let answers_within_ns = self.took.quantile_ns(ANSWERED_SHARE) + ANSWERED_MARGIN_NS;
        let without_server = self.refusals.stretches(&self.pods);
        let until = self.dying.iter().map(|dying| self.takes_turns_until(dying, &without_server)).collect();
        Gateway { dying: self.dying, until, answers_within_ns, without_server }
    }

    /// Returns the time until which a pod may have been chosen; `None` if nothing shows it.
    fn takes_turns_until(&self, dying: &Dying, without_server: &[(Stamp, Stamp)]) -> Option<Stamp> {
        let dead = dying.dead?;
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

/// Returns the number of answered requests in a row after which a pod that takes turns at random among this many has
/// been hit, except with a chance of [`PASSED_OVER`].
#[expect(clippy::cast_possible_truncation, reason = "some dozens for each endpoint")]
fn enough(endpoints: usize) -> u64 {
    let others = 1.0 - 1.0 / endpoints.max(2) as f64;
    (PASSED_OVER.ln() / others.ln()).ceil() as u64
}

/// Returns the outcome of the gateway's own connect to a pod, as far as its client's answer shows.
pub(crate) fn connect(row: &RequestRow) -> Outcome {
    match (row.outcome, row.status) {
        (Outcome::ResponseTimeout, _) | (_, Some(504)) => Outcome::ConnectTimeout,
        (_, Some(502)) => Outcome::ConnectRefused,
        _ => row.outcome,
    }
}

/// Returns the time at which a request was handed to the gateway.
pub(crate) fn sent(row: &RequestRow) -> Stamp {
    row.sent.or(row.connected).or(row.connect_start).unwrap_or(row.scheduled)
}

/// Returns true if a request reached the gateway, so that the gateway or a pod behind it failed.
pub(crate) fn is_gateways(row: &RequestRow) -> bool {
    row.sent.is_some()
        && matches!(
            row.outcome,
            Outcome::HttpError
                | Outcome::ResponseTimeout
                | Outcome::BodyTimeout
                | Outcome::ResetBeforeResponse
                | Outcome::EofBeforeResponse
                | Outcome::ResetMidResponse
                | Outcome::TruncatedBody
                | Outcome::H2RefusedStream
                | Outcome::H2Goaway
                | Outcome::Ok
        )
}

/// Facts about a gateway's pods.
#[derive(Debug)]
pub(crate) struct Gateway {
    dying: Vec<Dying>,
    until: Vec<Option<Stamp>>,
    answers_within_ns: i64,
    /// Periods in which it had no server.
    without_server: Vec<(Stamp, Stamp)>,
}

fn is_within(stretches: &[(Stamp, Stamp)], at: Stamp) -> bool {
    stretches.iter().any(|(from, until)| (*from..=*until).contains(&at))
}

impl Gateway {
    /// Returns true if it had no server to send this request to. All requests in such a period ended alike.
    pub(crate) fn had_no_server(&self, row: &RequestRow) -> bool {
        is_within(&self.without_server, sent(row))
    }

    /// Returns the terminations, as indices of `timeline.ends`, that can explain a failure whose pod is not named.
    pub(crate) fn candidates(&self, row: &RequestRow) -> Vec<usize> {
        let sent = sent(row);
        // A gateway that waited in vain had chosen a pod that did not answer; a live pod would have answered.
        let handed_over = match (row.outcome, row.status) {
            (Outcome::ResponseTimeout | Outcome::BodyTimeout, _) | (_, Some(504)) => {
                row.end.min(sent.shifted_ns(self.answers_within_ns))
            }
            _ => row.end,
        };
        let fits = |e: &usize| {
            self.dying[*e].stops <= handed_over && self.until[*e].is_none_or(|until| sent < until)
        };
        (0..self.dying.len()).filter(fits).collect()
    }
}

/// A request, or one of the gateway's attempts at it, as the recording proxy of a pod saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attempt {
    /// Outcome at the proxy.
    pub(crate) ended: ServedEnd,
    /// The state of that pod.
    pub(crate) pod: PodState,
}

/// The state of a pod when a request reached it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PodState {
    /// The pod had not served yet.
    Starting,
    /// The pod was not ending.
    Staying,
    /// The pod's termination was under way.
    Ending,
}

/// Facts that [`cause`] decides on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failure<'a> {
    pub(crate) outcome: Outcome,
    pub(crate) status: Option<u16>,
    /// Attempts that recording proxies saw, in order; empty if none did.
    pub(crate) attempts: &'a [Attempt],
    /// True if the end of a pod can explain it ([`Gateway::candidates`]).
    pub(crate) is_explained: bool,
    /// True if no endpoint was usable when it was sent, or a short time before ([`none_usable`]).
    pub(crate) no_endpoint: bool,
    /// True if the gateway had no server ([`Gateway::had_no_server`]).
    pub(crate) no_server: bool,
    /// True if a pod that was ending gave the answer.
    pub(crate) is_refused_by_pod: bool,
    /// True if a pod that was not ending closed the gateway's kept connection as the request came, as its proxy saw.
    pub(crate) crossed_a_close: bool,
}

/// Returns the cause of the loss of a request through a gateway. `None` if the failure has nothing to do with a
/// gateway: then the rules of the Service's path hold.
pub(crate) fn cause(failure: &Failure<'_>) -> Option<Cause> {
    let Failure { outcome, status, attempts, is_explained, no_endpoint, .. } = *failure;
    let any = |pod, ends: &[ServedEnd]| attempts.iter().any(|a| a.pod == pod && ends.contains(&a.ended));
    let unserved = [ServedEnd::UpstreamRefused, ServedEnd::UpstreamReset];
    if failure.is_refused_by_pod && matches!(outcome, Outcome::HttpError | Outcome::Ok) {
        return Some(Cause::RefusedWhileEnding);
    }
    if any(PodState::Ending, &unserved) {
        return Some(Cause::GatewayToDeadPod);
    }
    if any(PodState::Ending, &[ServedEnd::UpstreamEof, ServedEnd::Cancelled]) {
        return Some(Cause::KilledInFlight);
    }
    if any(PodState::Starting, &unserved) {
        return Some(Cause::NotReadyYet);
    }
    if failure.crossed_a_close {
        return Some(Cause::IdleCloseRace);
    }
    if failure.no_server {
        return Some(Cause::GatewayNoServer);
    }
    match outcome {
        // Part of an answer was there: some pod was at work on it.
        Outcome::ResetMidResponse | Outcome::TruncatedBody | Outcome::BodyTimeout => {
            is_explained.then_some(Cause::KilledInFlight)
        }
        Outcome::HttpError | Outcome::Ok if no_endpoint && status == Some(503) => {
            Some(Cause::NoReadyEndpoint)
        }
        // A recording proxy has seen it, and no end of a pod explains it.
        Outcome::HttpError | Outcome::Ok if !attempts.is_empty() && !is_explained => {
            Some(Cause::GatewayError)
        }
        Outcome::HttpError
        | Outcome::Ok
        | Outcome::ResetBeforeResponse
        | Outcome::EofBeforeResponse
        | Outcome::H2RefusedStream
        | Outcome::H2Goaway => Some(match (is_explained, no_endpoint) {
            (true, _) => Cause::GatewayToDeadPod,
            (false, true) => Cause::NoReadyEndpoint,
            (false, false) => Cause::GatewayError,
        }),
        Outcome::ResponseTimeout if is_explained => Some(Cause::GatewayToDeadPod),
        _ => None,
    }
}

/// Returns true if a gateway can have had no usable endpoint of the target when the request was sent.
pub(crate) fn none_usable(timeline: &Timeline, of: &Scope, row: &RequestRow) -> bool {
    let sent = sent(row);
    timeline.endpoints.none_usable_within(of, sent.shifted_ns(-TABLE_AGE_NS), sent)
}

#[cfg(test)]
mod tests;
