//! Attributes the lost requests: finds the terminations and other causes that may explain each one.
//!
//! The problem is circular. A pod can explain a loss only as long as connections may have been routed to it, and the
//! losses themselves show how long that was; so they are processed in chronological order. Failures that only one pod
//! explains show when that pod was dead, which sharpens everything that depends on the times of death; so the losses
//! are then processed a second time. There is no third pass, because times of death derived from losses that were
//! attributed using such times would confirm themselves.
//!
//! A failure is evidence for a pod's lower bound only if all its explanations are terminations. If several terminations
//! explain it, it shows that the rules still listed one of their pods, and therefore also every pod that the
//! EndpointSlices dropped after the last of these.

use crate::attribute::suspects::{Clues, Explanations, Suspects, is_no_connection};
use crate::route::arrivals::{ArrivalTail, PodArrivals, arrives};
use crate::route::balanced_reach;
use crate::route::death::Death;
use crate::route::facts::Facts;
use crate::timeline::{PodEnd, Request};
use rolldrop_record::routing::Routing;
use rolldrop_record::run_info::Balances;
use rolldrop_record::{Outcome, Stamp};

/// Attribution of the losses.
#[derive(Debug)]
pub(crate) struct Attribution {
    /// One entry per request that did not plainly succeed; entries for requests that were not lost only name the pod.
    pub explanations: Vec<Explanations>,
    /// Arrivals at the pod, by termination, then by target. Includes those inferred from losses.
    pub tails: Vec<Vec<ArrivalTail>>,
}

/// Finds the possible explanations of each lost request, and the arrivals from which the windows are computed.
pub(crate) fn solve(facts: &Facts<'_>) -> Attribution {
    let suspects = Suspects::new(facts);
    let Attribution { explanations, mut tails } =
        Pass::begin(facts, &suspects, &facts.deaths, &facts.tails).run();
    let mut deaths = facts.deaths.clone();
    if !found_dead(&suspects, &explanations, &mut deaths) {
        return Attribution { explanations, tails };
    }
    // The explanations from both passes together may not fit into memory.
    drop(explanations);
    tails.iter_mut().flatten().for_each(|tail| tail.reach = None);
    Pass::begin(facts, &suspects, &deaths, &tails).run()
}

/// One pass over the losses.
struct Pass<'s> {
    facts: &'s Facts<'s>,
    suspects: &'s Suspects<'s>,
    deaths: &'s [Death],
    tails: Vec<Vec<ArrivalTail>>,
    /// Arrivals before t0, including those inferred from losses.
    before: Vec<Vec<PodArrivals>>,
}

impl<'s> Pass<'s> {
    /// Begins with no losses processed. `known` holds the tails from the previous pass, for their rates.
    fn begin(
        facts: &'s Facts<'s>,
        suspects: &'s Suspects<'s>,
        deaths: &'s [Death],
        known: &[Vec<ArrivalTail>],
    ) -> Self {
        let mut tails = facts.tails.clone();
        let reaches = balanced_reach::reaches(facts, deaths, known);
        for (tail, reach) in tails.iter_mut().flatten().zip(reaches.into_iter().flatten()) {
            tail.reach = reach;
        }
        Self { facts, suspects, deaths, tails, before: facts.before.clone() }
    }

    fn run(mut self) -> Attribution {
        let facts = self.facts;
        let named = |r: &Request| self.suspects.named(r);
        let mut explanations: Vec<Explanations> = facts.others.iter().map(named).collect();
        for &number in self.suspects.lost() {
            let r = &facts.others[number];
            if explanations[number].pod.is_some() {
                continue;
            }
            let Some(target) = facts.timeline.target_of(&r.row) else { continue };
            let known = Clues { deaths: self.deaths, tails: &self.tails };
            let mut found = self.suspects.weigh(known, target, number);
            found.candidates.shrink_to_fit();
            self.learn(target, r, &found);
            explanations[number] = found;
        }
        Attribution { explanations, tails: self.tails }
    }

    /// Adds a lost request's evidence about the windows of the pods that may explain it.
    fn learn(&mut self, target: usize, r: &Request, found: &Explanations) {
        let timeline = self.facts.timeline;
        let balances = timeline.info.targets[target].balances;
        if !arrives(r, balances) || !tells_of_a_dead_pod(r, balances) {
            return;
        }
        let begun = r.begun();
        let is_after = |termination: usize| begun >= timeline.ends[termination].t0.earliest;
        for candidate in found.candidates.iter().filter(|candidate| is_after(candidate.termination)) {
            let tail = &mut self.tails[candidate.termination][target];
            tail.last_possible = tail.last_possible.max(Some(begun));
        }
        // An address that changed hands does not identify a pod: the next pod that had it may have failed.
        let is_logged = timeline.info.targets[target].routing.as_ref().is_some_and(Routing::is_to_pod);
        if is_logged && r.row.routed_to.is_some() && r.pod().is_none() {
            return;
        }
        if let Some(only) = found.only() {
            let end = &timeline.ends[only];
            let tail = &mut self.tails[only][target];
            if is_after(only) {
                tail.last_alone = tail.last_alone.max(Some(begun));
                tail.late += u64::from(begun > end.t0.latest);
            } else if was_cut_off_with(r, end) {
                // Losses are processed in order, so arrivals after t0 are linked using the complete rate.
                let before = &mut self.before[only][target];
                before.add(begun);
                tail.measure(before, end.t0.earliest);
            }
        } else if found.are_terminations() {
            for last in self.last_dropped(target, found).into_iter().filter(|last| is_after(*last)) {
                let tail = &mut self.tails[last][target];
                tail.last_in_order = tail.last_in_order.max(Some(begun));
            }
        }
    }

    /// Returns the candidates that the slices dropped last, if the order of all candidates is known.
    fn last_dropped(&self, target: usize, found: &Explanations) -> Vec<usize> {
        let never = Stamp::from_unix_ns(i64::MAX);
        let dropped = |termination: usize| {
            let reach = self.tails[termination][target].reach.as_ref().filter(|reach| reach.is_in_order)?;
            Some((reach.dropped.unwrap_or(never), termination))
        };
        let all: Option<Vec<_>> = found.candidates.iter().map(|c| dropped(c.termination)).collect();
        let all = all.unwrap_or_default();
        let last = all.iter().map(|(at, _)| *at).max();
        all.into_iter().filter(|(at, _)| Some(*at) == last).map(|(_, termination)| termination).collect()
    }
}

/// Records the time from which each pod is seen to be dead: the second failed connect that only its termination
/// explains, because a single one may have failed for another reason. Returns true if anything new was found.
fn found_dead(suspects: &Suspects<'_>, explanations: &[Explanations], deaths: &mut [Death]) -> bool {
    let Facts { timeline, others, .. } = suspects.facts;
    let mut failed: Vec<Vec<Stamp>> = vec![Vec::new(); deaths.len()];
    for &number in suspects.lost() {
        let r = &others[number];
        if let Some(only) = explanations[number].only()
            && explanations[number].pod.is_none()
            && r.is_new_connection()
            && is_no_connection(&r.row)
            && r.begun() >= timeline.ends[only].t0.latest
        {
            failed[only].push(r.begun());
        }
    }
    let mut has_changed = false;
    for (failed, death) in failed.iter().zip(deaths) {
        if let Some(second) = failed.get(1)
            && !death.is_sure(*second)
        {
            death.seen_dead(*second);
            has_changed = true;
        }
    }
    has_changed
}

/// Returns true if a new connection was established and cut off before the pod was gone.
fn was_cut_off_with(r: &Request, end: &PodEnd) -> bool {
    r.row.connected.is_some()
        && matches!(r.row.outcome, Outcome::ResetBeforeResponse | Outcome::EofBeforeResponse)
        && end.gone().is_none_or(|gone| r.row.end.shifted_ns(-r.uncertainty_ns) <= gone)
}

/// Returns true if a failure looks like one caused by a dead pod, which shows that the consumer still routed to it.
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
