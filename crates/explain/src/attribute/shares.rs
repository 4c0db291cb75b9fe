//! Losses attributed to terminations: intervals by pod, exact totals by group.
//!
//! Several terminations often explain the same dropped request. The loss due to one of them is then an interval: at
//! least the requests that nothing else explains, at most all requests that it may explain. Terminations that share
//! dropped requests, directly or through others, form a group, and a group's loss is exact.

use std::collections::BTreeMap;

use crate::attribute::judged::JudgedRequest;
use crate::math::sets::Sets;
use crate::model::{GroupWindow, LossGroup, Termination, TerminationRequests};
use crate::route::arrivals::ArrivalTail;
use crate::timeline::Timeline;
use rolldrop_record::run_info::{Balances, Target};

/// Counts the requests lost to each termination; the caller fills in `seen`.
pub(crate) fn requests(terminations: usize, judged: &[&JudgedRequest<'_>]) -> Vec<TerminationRequests> {
    let mut all = vec![TerminationRequests::default(); terminations];
    for j in judged {
        for candidate in &j.candidates {
            let of = &mut all[candidate.termination];
            of.dropped.add(candidate.share);
            of.by_outcome.entry(j.request.row.outcome).or_default().add(candidate.share);
            of.by_cause.entry(j.cause).or_default().add(candidate.share);
        }
    }
    all
}

/// Groups the terminations that share lost requests, ordered by their first termination.
pub(crate) fn groups(
    timeline: &Timeline,
    terminations: &[Termination],
    judged: &[&JudgedRequest<'_>],
) -> Vec<LossGroup> {
    let mut sets = Sets::new(terminations.len());
    for j in judged {
        for pair in j.candidates.windows(2) {
            sets.join(pair[0].termination, pair[1].termination);
        }
    }
    let mut groups: BTreeMap<usize, LossGroup> = BTreeMap::new();
    for j in judged {
        let Some(first) = j.candidates.first() else { continue };
        let group = groups.entry(sets.first(first.termination)).or_insert_with(|| LossGroup {
            terminations: Vec::new(),
            dropped: 0,
            by_outcome: BTreeMap::new(),
            by_cause: BTreeMap::new(),
            windows: windows(timeline),
        });
        group.dropped += 1;
        *group.by_outcome.entry(j.request.row.outcome).or_default() += 1;
        *group.by_cause.entry(j.cause).or_default() += 1;
        if let Some(target) = timeline.target_of(&j.request.row) {
            let window = &mut group.windows[target];
            let lasted =
                is_routed(&timeline.info.targets[target], j).then(|| lasted_s(timeline, j)).flatten();
            window.lower_s = window.lower_s.into_iter().chain(lasted).reduce(f64::max);
        }
    }
    for (e, termination) in terminations.iter().enumerate() {
        let Some(group) = groups.get_mut(&sets.first(e)) else { continue };
        group.terminations.push(e);
        for (of_group, own) in group.windows.iter_mut().zip(&termination.windows) {
            of_group.lower_s = of_group.lower_s.into_iter().chain(own.lower_s).reduce(f64::max);
        }
    }
    groups.into_values().collect()
}

fn windows(timeline: &Timeline) -> Vec<GroupWindow> {
    let of = |target: &Target| GroupWindow { consumer: target.consumer.clone(), lower_s: None };
    timeline.info.targets.iter().map(of).collect()
}

/// Returns true if the consumer routed this request to a pod that no longer accepted it. A Service proxy routes
/// connections, and a gateway routes requests.
fn is_routed(target: &Target, j: &JudgedRequest<'_>) -> bool {
    let is_arrival = match target.balances {
        Balances::Connections => j.request.is_new_connection(),
        Balances::Requests => true,
    };
    is_arrival && j.cause.is_helped_by_sleep()
}

/// Returns the minimum duration of one candidate's window that this request implies. The request was routed to one of
/// the candidates, but not necessarily to the one that yields the longest window.
fn lasted_s(timeline: &Timeline, j: &JudgedRequest<'_>) -> Option<f64> {
    let begun = j.request.begun().shifted_ns(-j.request.uncertainty_ns);
    let since = |termination: usize| begun.seconds_since(timeline.ends[termination].t0.latest);
    let least = j.candidates.iter().map(|c| since(c.termination)).reduce(f64::min)?;
    (least > 0.0).then_some(least)
}

/// Returns, by termination, the best estimate of the time during which its pod lost new connections.
///
/// This is an estimate, not a bound. It is the pod's loss after t0, by share, divided by the best estimate of the pod's
/// rate of new connections at t0, and never exceeds the window's upper bound.
pub(crate) fn dead_seconds(
    timeline: &Timeline,
    terminations: &[Termination],
    judged: &[JudgedRequest<'_>],
    tails: &[Vec<ArrivalTail>],
) -> Vec<Option<f64>> {
    let targets = &timeline.info.targets;
    let mut lost = vec![vec![0.0; targets.len()]; terminations.len()];
    for j in judged {
        let Some(target) = timeline.target_of(&j.request.row) else { continue };
        if !is_routed(&targets[target], j) {
            continue;
        }
        for candidate in &j.candidates {
            if j.request.begun() >= timeline.ends[candidate.termination].t0.earliest {
                lost[candidate.termination][target] += candidate.share;
            }
        }
    }
    let of = |((termination, tails), lost): ((&Termination, &Vec<ArrivalTail>), Vec<f64>)| {
        let windows = termination.windows.iter().zip(tails).zip(lost);
        let dead_s = windows.filter_map(|((window, tail), lost)| {
            let rate = if tail.rate_at_t0 > 0.0 { tail.rate_at_t0 } else { tail.rate_expected };
            (rate > 0.0).then(|| (lost / rate).min(window.upper_s.unwrap_or(f64::INFINITY)))
        });
        dead_s.max_by(f64::total_cmp)
    };
    terminations.iter().zip(tails).zip(lost).map(of).collect()
}
