//! Possible explanations of each lost request: terminations, each with its share, and other causes.
//!
//! If something names a request's pod, there is one suspect. Otherwise every termination is a suspect if requests may
//! still have been routed to its pod ([`crate::route::balanced_reach`], or the silence of its own arrivals), unless the
//! request ended before the pod could have stopped. Competing explanations are weighed, not ranked: each has a weight
//! (the likelihood that the pod was in the rules, that it had stopped, and that it caused such an outcome), and its
//! share is its weight over the total. [`crate::attribute::solve`] iterates over the losses and supplies what is known
//! when each is weighed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::attribute::cause_decision::{Explanation, ROUND_TRIP_NS};
use crate::model::{CandidateReason, TerminationCandidate};
use crate::route::LAG_NS;
use crate::route::arrivals::{ArrivalTail, ending, silence_s};
use crate::route::death::Death;
use crate::route::facts::Facts;
use crate::route::gateway::{self, Gateway, TABLE_AGE_NS, is_gateways};
use crate::route::tries::Tries;
use crate::timeline::drop_policy::OutcomeClass;
use crate::timeline::endpoint_history::Scope;
use crate::timeline::{PodEnd, PodLife, Request, Timeline, UnwatchedPeriod};
use rolldrop_record::routing::{Balancing, Routing};
use rolldrop_record::run_info::{Balances, ClusterInfo, Target};
use rolldrop_record::{Outcome, RequestRow, Stamp};

/// Probability that a listening pod stays silent for longer than the time within which it should have accepted a
/// connection.
const SILENT_ALPHA: f64 = 0.05;
/// Share below which an explanation does not compete.
const NEGLIGIBLE: f64 = 0.01;
/// Weight of an outcome that fits poorly.
const UNFIT: f64 = 0.02;
/// Weight of an explanation that needs a rare coincidence. On a real v1.36.2 cluster, a rule change refused one of
/// 75,000 new connections, whereas 1,133 were lost to dead pods. In nftables mode a rule that is being replaced
/// translates nothing for an instant (docs/proofs.md), so the connection goes to the Service's own address.
const RARE: f64 = 1e-3;
/// Maximum number of nearly simultaneous refusals that rule changes may explain. A larger number must have a lasting
/// cause.
const SWAPS_AT_MOST: usize = 2;

/// Possible explanations of one request.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Explanations {
    /// Pod that the request reached, if known.
    pub pod: Option<Arc<str>>,
    /// Terminations that may explain the loss. If there are any shares, these shares and the ones below sum to 1.
    pub candidates: Vec<TerminationCandidate>,
    /// Share attributed to starting pods.
    pub starting: f64,
    /// Share attributed to a missing endpoint.
    pub no_endpoint: f64,
    /// Share attributed to a change of the Service proxy's rules.
    pub rule_swap: f64,
    /// True if a gateway had no server for the request; then there are no shares.
    pub no_server: bool,
}

impl Explanations {
    /// Returns the only termination that explains the loss, if there is exactly one and nothing else does.
    pub(crate) fn only(&self) -> Option<usize> {
        if self.are_terminations() && self.candidates.len() == 1 {
            Some(self.candidates[0].termination)
        } else {
            None
        }
    }

    /// Returns true if all explanations are terminations.
    pub(super) fn are_terminations(&self) -> bool {
        !self.candidates.is_empty() && self.starting + self.no_endpoint + self.rule_swap == 0.0
    }

    /// Returns all explanations with their shares.
    pub(super) fn weighted<'t>(&self, timeline: &'t Timeline) -> Vec<(Explanation<'t>, f64)> {
        let terminations = self.candidates.iter().map(|candidate| {
            (Explanation::Termination(&timeline.ends[candidate.termination]), candidate.share)
        });
        let rivals = [
            (Explanation::Starting, self.starting),
            (Explanation::NoEndpoint, self.no_endpoint),
            (Explanation::RuleSwap, self.rule_swap),
        ];
        let mut all: Vec<_> =
            terminations.chain(rivals.into_iter().filter(|(_, share)| *share > 0.0)).collect();
        if all.is_empty() {
            all.push((Explanation::Nothing, 1.0));
        }
        all
    }

    /// Turns weights into shares, and removes explanations that do not compete.
    fn normalise(&mut self) {
        let terminations: f64 = self.candidates.iter().map(|c| c.share).sum();
        let sum = |all: &Self| terminations + all.starting + all.no_endpoint + all.rule_swap;
        let all = sum(self);
        for rival in [&mut self.starting, &mut self.no_endpoint, &mut self.rule_swap] {
            if *rival < NEGLIGIBLE * all {
                *rival = 0.0;
            }
        }
        let all = sum(self).max(f64::MIN_POSITIVE);
        for share in self.candidates.iter_mut().map(|c| &mut c.share).chain([
            &mut self.starting,
            &mut self.no_endpoint,
            &mut self.rule_swap,
        ]) {
            *share /= all;
        }
    }
}

/// Facts for weighing the explanations of a lost request.
#[derive(Clone, Copy)]
pub(crate) struct Clues<'k> {
    /// Death of the pod, by termination.
    pub deaths: &'k [Death],
    /// Arrivals at the pod, by termination and target, including those shown by earlier losses.
    pub tails: &'k [Vec<ArrivalTail>],
}

/// Lost requests without a named pod, with the data for checking each.
pub(crate) struct Suspects<'a> {
    pub(super) facts: &'a Facts<'a>,
    timeline: &'a Timeline,
    /// Indices of the lost requests, ordered by start time.
    lost: Vec<usize>,
    /// Position of each lost connection, by its index, among the [tries](Facts::tries) of its target; by target.
    places: Vec<HashMap<usize, usize>>,
    /// Time until which the target may have routed to the pod ([`routable_until`]), by termination and target.
    routable: Vec<Vec<Option<Stamp>>>,
    /// Endpoints that a target's connections can reach, by target.
    scopes: Vec<Scope>,
    /// True if a Service proxy's rules route to the target's pods, as far as is known; by target.
    has_rules: Vec<bool>,
}

impl<'a> Suspects<'a> {
    pub(crate) fn new(facts: &'a Facts<'a>) -> Self {
        let Facts { timeline, others, stale, tries, .. } = facts;
        let targets = &timeline.info.targets;
        let scopes: Vec<Scope> = targets.iter().map(Scope::of).collect();
        let is_lost = |&n: &usize| !stale[n] && OutcomeClass::of(&others[n].row) == OutcomeClass::Dropped;
        let mut lost: Vec<usize> = (0..others.len()).filter(is_lost).collect();
        lost.sort_by_key(|&n| (others[n].begun(), n));
        let places = |tries: &Tries| {
            tries.losses.iter().enumerate().map(|(place, loss)| (loss.request, place)).collect()
        };
        let routable = |end: &PodEnd| {
            let of = |(target, scope): (&Target, &Scope)| match target.balances {
                // The target's Service may be the gateway's own.
                Balances::Requests => {
                    routable_until(facts, end, &Scope::default(), Some(seconds(TABLE_AGE_NS)))
                }
                Balances::Connections => routable_until(facts, end, scope, lag_s(timeline, target)),
            };
            targets.iter().zip(&scopes).map(of).collect()
        };
        Self {
            facts,
            timeline,
            lost,
            places: tries.iter().map(places).collect(),
            routable: timeline.ends.iter().map(routable).collect(),
            scopes,
            has_rules: targets.iter().map(|target| has_rules(target, &timeline.info.cluster)).collect(),
        }
    }

    /// Returns the indices of the lost requests, ordered by start time.
    pub(super) fn lost(&self) -> &[usize] {
        &self.lost
    }

    fn service(&self, target: usize) -> Option<&str> {
        self.timeline.info.targets[target].service.as_deref()
    }

    /// Explains a request whose pod is known; any other request has no explanation yet.
    pub(super) fn named(&self, r: &Request) -> Explanations {
        let Some(pod) = self.facts.pod(r) else { return Explanations::default() };
        let why = if r.named().is_none() && r.routed.is_some() {
            CandidateReason::Conntrack
        } else {
            CandidateReason::Named
        };
        let candidate = |termination| TerminationCandidate { termination, share: 1.0, why };
        let candidates: Vec<TerminationCandidate> =
            ending(self.timeline, pod, r).map(candidate).into_iter().collect();
        let lives = self.timeline.lives_of(pod);
        let life = lives.number_at(r.row.end).filter(|life| self.timeline.pods[*life].created <= r.row.end);
        let has_served = |life: usize| self.facts.first_served[life].is_some_and(|at| at <= r.begun());
        let is_starting = candidates.is_empty() && life.is_some_and(|life| !has_served(life));
        let starting = if is_starting { 1.0 } else { 0.0 };
        Explanations { pod: Some(Arc::clone(pod)), candidates, starting, ..Explanations::default() }
    }

    /// Weighs the possible explanations of a lost request without a named pod. `number` is its index.
    pub(super) fn weigh(&self, known: Clues<'_>, target: usize, number: usize) -> Explanations {
        let r = &self.facts.others[number];
        let place = self.places[target].get(&number).copied();
        if let Some(gateway) = self.facts.gateways[target].as_ref().filter(|_| is_gateways(&r.row)) {
            return self.behind_a_gateway(gateway, known.deaths, target, r);
        }
        if r.row.outcome == Outcome::ConnectRefused
            && self.timeline.tracked.as_ref().is_some_and(|tracked| tracked.had_no_entry(&r.row))
        {
            return self.refused_by_a_rule(target, r);
        }
        if self.has_node_none(target, r) {
            return Explanations { no_endpoint: 1.0, ..Explanations::default() };
        }
        let mut candidates = Vec::new();
        for (termination, death) in known.deaths.iter().enumerate() {
            let tail = &known.tails[termination][target];
            if self.may_be(termination, target, tail, death, r) {
                let share = weight(r, death, tail, place);
                candidates.push(TerminationCandidate { termination, share, why: why(&r.row) });
            }
        }
        let service = self.service(target);
        let refused = if is_unreachable(&r.row) { UNFIT } else { 1.0 };
        let mut found = Explanations { candidates, ..Explanations::default() };
        // A kept connection leads to a pod that has answered on it.
        if !r.row.conn_reused {
            if !r.was_answered() && self.timeline.endpoints.none_usable(&self.scopes[target], r.begun()) {
                found.no_endpoint = refused;
            }
            let probed = self.of_a_probed_start(found.candidates.is_empty(), target, r);
            found.starting = refused * self.starting(target, r, probed);
        }
        if self.has_rules[target] && is_quick(&r.row) && self.was_changed(service, r) {
            found.rule_swap = RARE;
        }
        found.normalise();
        found
    }

    /// Returns true if there was no connection, and the only node that the target's connections are routed to had no
    /// endpoint except terminating pods, or had none shortly before. That node's rules route to a terminating pod while
    /// there is no other, and then drop new connections; no sleep in that pod would save them.
    fn has_node_none(&self, target: usize, r: &Request) -> bool {
        let (scope, endpoints, begun) = (&self.scopes[target], &self.timeline.endpoints, r.begun());
        if !scope.is_of_a_node() || !is_no_connection(&r.row) || r.row.conn_reused {
            return false;
        }
        // After the pod is gone, another pod may have its name.
        let is_ending =
            |end: &&PodEnd| end.t0.earliest <= begun && end.gone().is_none_or(|gone| begun <= gone);
        let ending: Vec<&str> =
            self.timeline.ends.iter().filter(is_ending).map(|end| end.pod.as_str()).collect();
        endpoints.none_usable_but(scope, &ending, begun)
            || endpoints.none_usable_within(scope, begun.shifted_ns(-LAG_NS), begun)
    }

    /// Explains a refused connection that the kernel routed nowhere, so that no pod is involved.
    fn refused_by_a_rule(&self, target: usize, r: &Request) -> Explanations {
        let scope = &self.scopes[target];
        let share = |is| if is { 1.0 } else { 0.0 };
        // The rules may lag behind the slices by this much.
        let since = r.begun().shifted_ns(-LAG_NS);
        let has_none = self.timeline.endpoints.none_usable_within(scope, since, r.begun());
        Explanations { no_endpoint: share(has_none), rule_swap: share(!has_none), ..Explanations::default() }
    }

    /// Explains a request lost by a gateway. A gateway also sends requests to pods that are no longer endpoints, and
    /// responds with 503 if it has no pod.
    fn behind_a_gateway(
        &self,
        gateway: &Gateway,
        deaths: &[Death],
        target: usize,
        r: &Request,
    ) -> Explanations {
        if r.row.status == Some(503) && gateway::none_usable(self.timeline, &self.scopes[target], &r.row) {
            return Explanations { no_endpoint: 1.0, ..Explanations::default() };
        }
        if gateway.had_no_server(&r.row) {
            return Explanations { no_server: true, ..Explanations::default() };
        }
        let sent = gateway::sent(&r.row);
        let candidate = |termination: usize| {
            let death = &deaths[termination];
            let share = death.chance_by(sent) * death.fits(gateway::connect(&r.row), sent);
            TerminationCandidate { termination, share, why: CandidateReason::Gateway }
        };
        let is_routable = |termination: &usize| {
            let until = self.routable[*termination][target];
            until.is_some_and(|until| sent.shifted_ns(-r.uncertainty_ns) <= until)
        };
        let candidates = gateway.candidates(&r.row).into_iter().filter(is_routable).map(candidate).collect();
        let mut found = Explanations { candidates, ..Explanations::default() };
        found.normalise();
        found
    }

    /// Returns true if the pod may have been routed to when the request began, and may have stopped by the time the
    /// request reached it.
    fn may_be(
        &self,
        termination: usize,
        target: usize,
        tail: &ArrivalTail,
        death: &Death,
        r: &Request,
    ) -> bool {
        let end = &self.timeline.ends[termination];
        let balances = self.timeline.info.targets[target].balances;
        let until = if r.row.conn_reused && balances == Balances::Connections {
            end.gone().map(|at| at.shifted_ns(LAG_NS))
        } else {
            tail.routed_until(end)
        };
        let Some(routable) = self.routable[termination][target] else { return false };
        // A pod that was still running when a connect began would have accepted it.
        let met = match is_no_connection(&r.row) {
            true => r.begun().shifted_ns(r.uncertainty_ns),
            false => r.row.end.shifted_ns(r.uncertainty_ns),
        };
        let has_accepted_since = || tail.last_accepted.is_some_and(|at| at > met);
        let begun = r.begun().shifted_ns(-r.uncertainty_ns);
        met >= death.earliest
            // A pod that is down may still answer on kept connections.
            && (r.row.conn_reused || begun <= routable)
            && !(is_no_connection(&r.row) && has_accepted_since())
            && until.is_none_or(|until| begun <= until)
    }

    /// Returns the weight of a starting pod whose probe has succeeded, which shows that it listens. A rule change
    /// explains a few refusals better, but not many; many may come from a port that is not probed.
    fn of_a_probed_start(&self, is_unexplained: bool, target: usize, r: &Request) -> f64 {
        // Only quick refusals count, because rules cause no other outcome.
        match is_unexplained && is_quick(&r.row) {
            true if self.is_alone(target, r) => RARE * UNFIT,
            true => RARE / UNFIT,
            false => RARE,
        }
    }

    /// Returns the weight of starting pods: pods in the rules, as far as is known, that have not answered yet. A pod
    /// with a probe has the weight `probed`.
    fn starting(&self, target: usize, r: &Request, probed: f64) -> f64 {
        let (begun, scope) = (r.begun(), &self.scopes[target]);
        let weight = |(number, life): (usize, &PodLife)| {
            if !self.timeline.endpoints.was_usable(scope, &life.name, begun.shifted_ns(-LAG_NS), begun) {
                return None;
            }
            let ready =
                life.endpoint_ready.filter(|at| !life.listed && *at <= begun.shifted_ns(r.uncertainty_ns))?;
            let served = self.facts.first_served[number];
            let is_serving = served.or(self.facts.quiet[target][number]).is_some_and(|at| at <= begun);
            if life.is_probed == Some(true) {
                // Silence alone is not evidence against a probe that passed.
                return (!is_serving && !is_unreachable(&r.row)).then_some(probed);
            }
            // The rules may not list the pod yet.
            (!is_serving).then_some((begun.ns_since(ready) as f64 / LAG_NS as f64).clamp(0.0, 1.0))
        };
        let weights = self.timeline.pods.iter().enumerate().filter_map(weight);
        // Each starting pod already in the rules refuses its share of connections, like a dead pod.
        let (sum, most) = weights.fold((0.0, 0.0f64), |(sum, most), weight| match weight < 1.0 {
            true => (sum, most.max(weight)),
            false => (sum + weight, most),
        });
        most.max(sum)
    }

    /// Returns true if few enough connections were refused at about the same time for a rule change to explain them
    /// all.
    fn is_alone(&self, target: usize, r: &Request) -> bool {
        let begun = |number: &usize| self.facts.others[*number].begun();
        let from = self.lost.partition_point(|number| begun(number) < r.begun().shifted_ns(-LAG_NS));
        let near =
            self.lost[from..].iter().take_while(|number| begun(number) <= r.begun().shifted_ns(LAG_NS));
        let is_like = |number: &&usize| {
            let row = &self.facts.others[**number].row;
            is_quick(row) && !row.conn_reused && self.timeline.target_of(row) == Some(target)
        };
        near.filter(is_like).take(SWAPS_AT_MOST + 1).count() <= SWAPS_AT_MOST
    }

    /// Returns true if the Service proxy may have been changing its rules, as it may for a while after any change to
    /// the slices, even one that changes no rule.
    fn was_changed(&self, service: Option<&str>, r: &Request) -> bool {
        let changes = self.timeline.endpoints.changes(service);
        let before = changes.partition_point(|at| *at <= r.begun());
        before.checked_sub(1).is_some_and(|last| r.begun().ns_since(changes[last]) <= LAG_NS)
    }
}

/// Returns the time until which requests may have been routed to a pod that ended, as the slices show: without a limit
/// if they listed it when its termination began, and until `lag_s` after they dropped it if it was down by then; `None`
/// if it was never a usable endpoint.
fn routable_until(facts: &Facts<'_>, end: &PodEnd, scope: &Scope, lag_s: Option<f64>) -> Option<Stamp> {
    let (timeline, always) = (facts.timeline, Stamp::from_unix_ns(i64::MAX));
    let Some(number) = timeline.pods.iter().position(|life| life.uid == end.uid) else { return Some(always) };
    let (life, gone) = (&timeline.pods[number], end.gone().unwrap_or(always));
    let states = timeline.endpoints.usable(scope);
    if states.is_empty() {
        let may_serve = life.ready.is_some() || facts.first_served[number].is_some();
        return may_serve.then_some(always);
    }
    let is_hidden = |gap: &UnwatchedPeriod| !gap.is_of_pods() && gap.from <= gone && gap.to >= life.created;
    if timeline.endpoints.was_usable(scope, &end.pod, end.t0.earliest, gone)
        || timeline.gaps.iter().any(is_hidden)
    {
        return Some(always);
    }
    let before = &states[..states.partition_point(|state| state.from <= end.t0.earliest)];
    let last = before.iter().rposition(|state| state.holds(&end.pod))?;
    // An earlier pod may have had the name.
    let dropped = before.get(last + 1).map(|state| state.from).filter(|at| *at > life.created)?;
    Some(lag_s.map_or(always, |lag_s| dropped + Duration::from_secs_f64(lag_s)))
}

/// Returns the time, in seconds, for which a target's connections may still be routed to an endpoint that the slices
/// dropped; `None` if it is not known.
fn lag_s(timeline: &Timeline, target: &Target) -> Option<f64> {
    let cached_s = timeline.period_s(target);
    let is_known = cached_s.is_some() || target.routing != Some(Routing::Dns);
    is_known.then(|| seconds(LAG_NS) + cached_s.unwrap_or(0.0))
}

fn seconds(ns: i64) -> f64 {
    ns as f64 / 1e9
}

/// Returns the weight of a pod's termination as the explanation of a lost request: how well the two fit.
fn weight(r: &Request, death: &Death, tail: &ArrivalTail, place: Option<usize>) -> f64 {
    let row = &r.row;
    let routed = || {
        let in_rules = place.zip(tail.reach.as_ref()).map_or(1.0, |(place, reach)| reach.weight(place));
        let has_stopped = death.chance_after(tail.last_accepted, silence_ns(tail), r.begun());
        in_rules * has_stopped * death.fits(row.outcome, r.begun())
    };
    let weight = match row.outcome {
        // The pod was alive when it answered.
        _ if r.was_answered() && row.end <= death.likely => 1.0,
        _ if row.conn_reused || r.was_answered() => death.cuts_off(row.end),
        Outcome::ResetBeforeResponse | Outcome::EofBeforeResponse => {
            let is_quick = row.end.ns_since(r.begun()) <= ROUND_TRIP_NS;
            death.cuts_off(row.end).max(if is_quick { routed() } else { 0.0 })
        }
        outcome if outcome.is_cut_off() => death.cuts_off(row.end),
        Outcome::ResponseTimeout | Outcome::BodyTimeout | Outcome::StreamStalled => {
            if r.begun() <= death.likely && death.likely <= row.end { 1.0 } else { UNFIT }
        }
        _ => routed(),
    };
    weight.max(1e-9)
}

/// Returns the time within which a listening pod accepts a connection with 95 % probability, provided that the rules
/// list the pod.
fn silence_ns(tail: &ArrivalTail) -> i64 {
    let rate = if tail.rate > 0.0 { tail.rate } else { tail.rate_expected };
    #[expect(clippy::cast_possible_truncation, reason = "a time of at most an hour, in nanoseconds")]
    let ns = (silence_s(rate, SILENT_ALPHA).min(3600.0) * 1e9) as i64;
    ns
}

/// Returns the reason why a termination may explain a request whose pod is not named.
fn why(row: &RequestRow) -> CandidateReason {
    match row.outcome {
        Outcome::ConnectRefused => CandidateReason::Refused,
        Outcome::ConnectTimeout | Outcome::ConnectUnreachable => CandidateReason::Unreachable,
        Outcome::ResetBeforeResponse | Outcome::EofBeforeResponse => CandidateReason::CutOff,
        outcome if outcome.is_cut_off() => CandidateReason::CutOff,
        Outcome::Ok | Outcome::HttpError => CandidateReason::Answered,
        _ => CandidateReason::Time,
    }
}

/// Returns true if nothing accepted the request's connection.
pub(super) fn is_no_connection(row: &RequestRow) -> bool {
    row.outcome == Outcome::ConnectRefused || is_unreachable(row)
}

/// Returns true if a connection was refused immediately, as by a dead pod or a rule.
fn is_quick(row: &RequestRow) -> bool {
    matches!(row.outcome, Outcome::ConnectRefused | Outcome::ConnectUnreachable)
}

/// Returns true if a Service proxy's rules route to the target's pods, as far as is known.
fn has_rules(target: &Target, cluster: &ClusterInfo) -> bool {
    match target.balancing(cluster) {
        Balancing::Random { .. } => true,
        Balancing::Unknown => target.service.is_some() && target.routing != Some(Routing::Url),
        Balancing::No(_) => false,
    }
}

fn is_unreachable(row: &RequestRow) -> bool {
    matches!(row.outcome, Outcome::ConnectTimeout | Outcome::ConnectUnreachable)
}
