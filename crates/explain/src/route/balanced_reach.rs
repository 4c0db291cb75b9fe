//! Computes how long random balancing may have routed connections to each pod, given the deaths of all pods.

use crate::route::LAG_NS;
use crate::route::arrivals::ArrivalTail;
use crate::route::balance_bound::{self, Reach, SliceHistory};
use crate::route::death::Death;
use crate::route::facts::Facts;
use crate::timeline::endpoint_history::Scope;
use rolldrop_record::Stamp;
use rolldrop_record::routing::Balancing;

/// Returns, by termination and target, how long random balancing may have routed connections to the pod; `None` for
/// targets whose consumer does not balance at random. The rates come from `tails`.
pub(crate) fn reaches(
    facts: &Facts<'_>,
    deaths: &[Death],
    tails: &[Vec<ArrivalTail>],
) -> Vec<Vec<Option<Reach>>> {
    let timeline = facts.timeline;
    // A StatefulSet's next pod with the same name is a different pod.
    let dead = |pod: &str, at: Stamp| {
        timeline.end_of(pod, at).map(|end| &deaths[end]).filter(|death| death.is_sure(at))
    };
    let mut reaches: Vec<Vec<Option<Reach>>> = vec![vec![None; timeline.info.targets.len()]; deaths.len()];
    for (number, target) in timeline.info.targets.iter().enumerate() {
        let Balancing::Random { .. } = target.balancing(&timeline.info.cluster) else { continue };
        let states = timeline.endpoints.usable(&Scope::of(target));
        for (e, end) in timeline.ends.iter().enumerate() {
            let Some(route) = SliceHistory::of(end, states) else { continue };
            let tail = &tails[e][number];
            let from = tail.last_named.map_or(end.t0.latest, |at| at.max(end.t0.latest));
            let may_be_another = |at: Stamp| {
                timeline.ends.iter().enumerate().any(|(o, other)| {
                    let until = match &reaches[o][number] {
                        Some(reach) => reach.until,
                        None => other.gone().map(|gone| gone.shifted_ns(LAG_NS)),
                    };
                    o != e && other.t0.earliest <= at && until.is_none_or(|until| at <= until)
                })
            };
            let alpha = tail.alpha_of_balance(facts.alpha[e]);
            let tries = &facts.tries[number];
            let reach =
                balance_bound::reach((end, &deaths[e]), &route, tries, from, alpha, &dead, may_be_another);
            reaches[e][number] = Some(reach);
        }
    }
    reaches
}
