//! The endpoint-propagation window of one pod towards one consumer.

use super::evidence::{Tail, silence_s};
use super::model::{Window, WindowBasis};
use super::suspects::LAG_NS;
use crate::timeline::{PodEnd, Timeline};
use rolldrop_record::Stamp;
use rolldrop_record::routing::Balancing;
use rolldrop_record::run_info::{Balances, Target};

/// Computes the window: lower from t0 latest, upper from t0 earliest.
///
/// An upper bound rests on everything that was seen between t0 and itself, so there is none if the record has a gap
/// there, or if the run went on to the next termination while requests were still lost.
///
/// `alpha` is the chance that the upper bound is too small, already shared between all windows of one statement. If a
/// pod's arrivals are named and also balanced at random, two upper bounds share it, and the smaller one counts.
pub(super) fn window(timeline: &Timeline, end: &PodEnd, target: &Target, tail: &Tail, alpha: f64) -> Window {
    let balancing = target.balancing(&timeline.info.cluster);
    let uncertainty_s = tail.uncertainty_ns as f64 / 1e9;
    let (lower_s, lower_basis) = match lower(end, target, tail) {
        Some((at, basis)) => (Some((at.seconds_since(end.t0.latest) - uncertainty_s).max(0.0)), Some(basis)),
        None => (None, None),
    };
    let unbroken = |(at, basis)| match unseen(timeline, end, at) {
        Some(why) => Err(why),
        None => Ok((at, basis)),
    };
    let by_silence = silence(end, target, tail, tail.alpha_of_silence(alpha)).and_then(unbroken);
    let by_balance = balance(tail, balancing).map_err(str::to_owned).and_then(unbroken);
    let upper = [by_silence.clone().ok(), by_balance.clone().ok()].into_iter().flatten();
    let upper = upper.min_by_key(|(at, _)| *at).map(|(at, basis)| {
        // No bound of what was seen is below it.
        let from_t0_s = at.seconds_since(end.t0.earliest) + uncertainty_s;
        (from_t0_s.max(lower_s.unwrap_or(0.0)), basis)
    });
    let censored = match (&upper, by_silence, by_balance) {
        (Some(_), ..) => None,
        (None, Err(why), _) if tail.rate > 0.0 => Some(why),
        (None, _, Err(why)) => Some(why),
        (None, Err(why), _) => Some(why),
        (None, Ok(_), Ok(_)) => None,
    };
    Window {
        consumer: target.consumer.clone(),
        lower_s,
        upper_s: upper.map(|(s, _)| s),
        lower_basis,
        upper_basis: upper.map(|(_, basis)| basis),
        censored,
        rate_before: if tail.rate > 0.0 { tail.rate } else { tail.rate_expected },
        late_arrivals: tail.late,
    }
}

/// Why the observations of a pod's end until `at` give no bound.
fn unseen(timeline: &Timeline, end: &PodEnd, at: Stamp) -> Option<String> {
    if let Some(hole) = timeline.hole_in(end.t0.earliest, at) {
        return Some(format!(
            "requests are missing in the record from {:.3} s to {:.3} s",
            timeline.seconds(hole.from),
            timeline.seconds(hole.to)
        ));
    }
    let unsettled = timeline.notes.unsettled.iter().find(|over| (end.t0.earliest..at).contains(over))?;
    Some(format!(
        "requests were still lost when the wait after this termination ended, {:.0} s after t0 (--settle-max)",
        unsettled.seconds_since(end.t0.latest)
    ))
}

/// What names the pod's arrivals.
fn named(tail: &Tail) -> WindowBasis {
    if tail.is_tracked { WindowBasis::Conntrack } else { WindowBasis::Named }
}

/// The last connection after t0 that shows that the pod was still routed to, and what it rests on.
fn lower(end: &PodEnd, target: &Target, tail: &Tail) -> Option<(Stamp, WindowBasis)> {
    // Where nothing but time links failures to the pod, they say nothing of it long after its endpoint was removed.
    let removed = end.stages.endpoint_removed.or(end.gone());
    let is_linked = |at: &Stamp| {
        tail.reach.is_some()
            || target.balances == Balances::Requests
            || removed.is_none_or(|removed| at.ns_since(removed) <= LAG_NS)
    };
    let alone = tail.last_alone.filter(is_linked);
    [(tail.last_named, named(tail)), (alone, WindowBasis::Failures), (tail.last_in_order, WindowBasis::Order)]
        .into_iter()
        .filter_map(|(at, basis)| Some((at.filter(|at| *at > end.t0.latest)?, basis)))
        .max_by_key(|(at, _)| *at)
}

/// The upper bound from the silence of the pod's own arrivals, or why there is none.
fn silence(end: &PodEnd, target: &Target, tail: &Tail, alpha: f64) -> Result<(Stamp, WindowBasis), String> {
    let last = tail.last_possible.map_or(end.t0.latest, |at| at.max(end.t0.latest));
    let what = match target.balances {
        Balances::Connections => "new connections",
        Balances::Requests => "requests",
    };
    if tail.rate <= 0.0 {
        return Err(format!(
            "fewer than two {what} of this client are known to have reached the pod before t0, so their absence \
             shows nothing"
        ));
    }
    let silence = silence_s(tail.rate, alpha);
    let observed_s = tail.observed_until.map_or(0.0, |at| at.seconds_since(last));
    if observed_s < silence {
        return Err(format!(
            "the load ended {observed_s:.3} s after the last of the pod's {what}; {silence:.3} s of silence are \
             needed to be sure that no more would have come"
        ));
    }
    let exit = end.stages.app_exited.or(end.stages.containers_terminated);
    let cut = exit.filter(|exit| {
        target.balances == Balances::Requests && exit.seconds_since(last) < silence && *exit >= end.t0.latest
    });
    if let Some(exit) = cut {
        return Err(format!(
            "the pod exited {:.3} s after t0 while {what} still came, and a consumer that retries hides later ones",
            exit.seconds_since(end.t0.latest)
        ));
    }
    Ok((last + std::time::Duration::from_secs_f64(silence.min(1e6)), named(tail)))
}

/// The upper bound from the connections that other pods answered, or why there is none.
fn balance(tail: &Tail, balancing: Balancing) -> Result<(Stamp, WindowBasis), &'static str> {
    let basis = match balancing {
        Balancing::Random { assumed: false } => WindowBasis::Balance,
        Balancing::Random { assumed: true } => WindowBasis::BalanceAssumed,
        Balancing::No(_) => return Err("nothing names the pods, and connections are not balanced at random"),
        Balancing::Unknown => {
            return Err(
                "nothing names the pods, and it is not known how connections are balanced: a pod header, the \
                 sidecar, or --assume-service-proxy would bound it",
            );
        }
    };
    let Some(reach) = &tail.reach else {
        return Err("the pod was never seen as a usable endpoint");
    };
    match reach.upper {
        Some(at) => Ok((at, basis)),
        None => Err("too few connections were answered after the pod's end to show that it got none of them"),
    }
}
