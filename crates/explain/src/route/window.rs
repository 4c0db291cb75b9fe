//! Endpoint-propagation window of one pod for one consumer.

use crate::model::{Mode, Unbounded, Window, WindowBasis};
use crate::route::LAG_NS;
use crate::route::arrivals::{ArrivalTail, silence_s, silent_until};
use crate::timeline::endpoint_history::Scope;
use crate::timeline::periods::Periods;
use crate::timeline::{PodEnd, Timeline, UnwatchedPeriod};
use rolldrop_record::Stamp;
use rolldrop_record::routing::{Balancing, Routing};
use rolldrop_record::run_info::{Balances, Target};

/// A client that opens no new connection for this long before the end of the load counts as having stopped opening any.
const NO_LONGER_NS: i64 = 1_000_000_000;

/// Computes the window, and the reason if it has no upper bound. The lower bound counts from t0 latest, the upper bound
/// from t0 earliest.
///
/// An upper bound depends on all observations between t0 and the bound, so there is none if the record has a gap there,
/// or if the run continued with the next termination while requests were still being lost.
///
/// `alpha` is the chance that the upper bound is too small, already divided among all windows in one statement. If a
/// pod's arrivals are named and also balanced at random, two upper bounds share that chance, and the smaller bound
/// counts.
pub(crate) fn window(
    timeline: &Timeline,
    end: &PodEnd,
    target: &Target,
    tail: &ArrivalTail,
    alpha: f64,
) -> (Window, Option<Unbounded>) {
    let uncertainty_s = tail.uncertainty_ns as f64 / 1e9;
    let (lower_s, lower_basis) = match lower(end, target, tail) {
        Some((at, basis)) => (Some((at.seconds_since(end.t0.latest) - uncertainty_s).max(0.0)), Some(basis)),
        None => (None, None),
    };
    let unbroken = |(at, basis)| match unseen(timeline, end, at) {
        Some(why) => Err(why),
        None => Ok((at, basis)),
    };
    let by_silence = silence(timeline, end, target, tail, tail.alpha_of_silence(alpha)).and_then(unbroken);
    let by_balance = balance(timeline, end, target, tail).and_then(unbroken);
    let upper = [by_silence.clone().ok(), by_balance.clone().ok()].into_iter().flatten();
    let upper = upper.min_by_key(|(at, _)| *at).map(|(at, basis)| {
        // The upper bound is never below the lower bound.
        let from_t0_s = at.seconds_since(end.t0.earliest) + uncertainty_s;
        (from_t0_s.max(lower_s.unwrap_or(0.0)), basis)
    });
    let unbounded = match (&upper, by_silence, by_balance) {
        (Some(_), ..) => None,
        _ if is_never_routed(timeline, end, target, tail) => Some(Unbounded::NeverRouted),
        (None, Err(why), _) if tail.rate > 0.0 => Some(why),
        (None, _, Err(why)) => Some(why),
        (None, Err(why), _) => Some(why),
        (None, Ok(_), Ok(_)) => None,
    };
    let window = Window {
        consumer: target.consumer.clone(),
        lower_s,
        upper_s: upper.map(|(s, _)| s),
        lower_basis,
        upper_basis: upper.map(|(_, basis)| basis),
        censored: None,
        censored_reason: unbounded.as_ref().map(Unbounded::kind),
        rate_before: if tail.rate > 0.0 { tail.rate } else { tail.rate_expected },
        late_arrivals: tail.late,
    };
    (window, unbounded)
}

/// Returns true if, according to the slices, the pod was never a usable endpoint, and no request contradicts this.
fn is_never_routed(timeline: &Timeline, end: &PodEnd, target: &Target, tail: &ArrivalTail) -> bool {
    let scope = Scope::of(target);
    let created = timeline.pods.iter().find(|life| life.uid == end.uid).map(|life| life.created);
    let (Some(created), false) = (created, timeline.endpoints.usable(&scope).is_empty()) else {
        return false;
    };
    let gone = end.gone().unwrap_or(timeline.load_ended);
    let is_hidden = |gap: &UnwatchedPeriod| !gap.is_of_pods() && gap.from <= gone && gap.to >= created;
    tail.last_certain().is_none()
        && !timeline.endpoints.was_usable(&scope, &end.pod, created, gone)
        && !timeline.gaps.iter().any(is_hidden)
}

/// Returns the reason why the observations of a pod's termination until `at` do not yield a bound; `None` if they do.
fn unseen(timeline: &Timeline, end: &PodEnd, at: Stamp) -> Option<Unbounded> {
    if let Some(hole) = timeline.hole_in(end.t0.earliest, at) {
        let [from_s, to_s] = [hole.from, hole.to].map(|at| timeline.seconds(at));
        return Some(Unbounded::RequestsMissing { from_s, to_s });
    }
    let unsettled = timeline.notes.unsettled.iter().find(|over| (end.t0.earliest..at).contains(over))?;
    Some(Unbounded::Unsettled { after_s: unsettled.seconds_since(end.t0.latest) })
}

/// Returns the source that names the pod's arrivals.
fn named(tail: &ArrivalTail) -> WindowBasis {
    if tail.is_tracked { WindowBasis::Conntrack } else { WindowBasis::Named }
}

/// Returns the time and basis of the last connection after t0 that shows that the consumer still routed to the pod.
fn lower(end: &PodEnd, target: &Target, tail: &ArrivalTail) -> Option<(Stamp, WindowBasis)> {
    // If only time links failures to the pod, they show nothing about it long after its endpoint was removed.
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

/// Returns the upper bound from the silence of the pod's own arrivals, or the reason why there is none.
fn silence(
    timeline: &Timeline,
    end: &PodEnd,
    target: &Target,
    tail: &ArrivalTail,
    alpha: f64,
) -> Result<(Stamp, WindowBasis), Unbounded> {
    let last = tail.last_possible.map_or(end.t0.latest, |at| at.max(end.t0.latest));
    let arrivals = target.balances;
    if tail.rate <= 0.0 {
        return Err(Unbounded::TooFewArrivals(arrivals));
    }
    let needed_s = silence_s(tail.rate, alpha);
    let observed_s = tail.observed_until.map_or(0.0, |at| at.seconds_since(last)).max(0.0);
    if observed_s < needed_s {
        let ended = ended_early(timeline, end, target, tail);
        return Err(ended.unwrap_or(Unbounded::LoadEnded { arrivals, observed_s, needed_s }));
    }
    let exit = end.stages.app_exited.or(end.stages.containers_terminated);
    let cut = exit.filter(|exit| {
        target.balances == Balances::Requests && exit.seconds_since(last) < needed_s && *exit >= end.t0.latest
    });
    if let Some(exit) = cut {
        return Err(Unbounded::PodExited { arrivals, after_s: exit.seconds_since(end.t0.latest) });
    }
    Ok((silent_until(last, needed_s), named(tail)))
}

/// Returns a reason if the client stopped opening new connections while the load was still running.
fn ended_early(timeline: &Timeline, end: &PodEnd, target: &Target, tail: &ArrivalTail) -> Option<Unbounded> {
    let ran_on = |at: &Stamp| timeline.load_ended.ns_since(*at) > NO_LONGER_NS;
    let last = tail.observed_until;
    if target.balances != Balances::Connections || !last.as_ref().is_none_or(ran_on) {
        return None;
    }
    Some(Unbounded::NoNewConnections { last_after_s: last.map(|at| at.seconds_since(end.t0.latest)) })
}

/// Returns the upper bound from the connections that other pods answered, or the reason why there is none.
fn balance(
    timeline: &Timeline,
    end: &PodEnd,
    target: &Target,
    tail: &ArrivalTail,
) -> Result<(Stamp, WindowBasis), Unbounded> {
    let basis = match target.balancing(&timeline.info.cluster) {
        Balancing::Random { assumed: false } => WindowBasis::Balance,
        Balancing::Random { assumed: true } => WindowBasis::BalanceAssumed,
        Balancing::No(why) => return Err(Unbounded::NotRandom(why)),
        Balancing::Unknown if is_by_service_proxy(target) => return Err(Unbounded::ProxyUnknown),
        Balancing::Unknown => return Err(Unbounded::UrlUnknown),
    };
    let Some(reach) = &tail.reach else { return Err(Unbounded::EndpointUnknown) };
    reach
        .upper
        .map(|at| (at, basis))
        .ok_or_else(|| ended_early(timeline, end, target, tail).unwrap_or(Unbounded::TooFewAnswers))
}

/// Returns true if a Service proxy routes the target's connections.
fn is_by_service_proxy(target: &Target) -> bool {
    match target.routing {
        Some(Routing::ClusterIp(_) | Routing::NodePort(_)) => true,
        Some(Routing::Url | Routing::Dns | Routing::LoggingGateway | Routing::SeenAtPod) => false,
        None => target.service.is_some(),
    }
}

/// Returns the mode of each termination, as given by its action. A termination that overlaps another one was not
/// isolated.
pub(crate) fn modes(ends: &[PodEnd]) -> Vec<Mode> {
    let is_alone = |end: &PodEnd| ends.iter().all(|other| other.uid == end.uid || !end.overlaps(other));
    let mode = |end: &PodEnd| match end.mode {
        Mode::Isolated if !is_alone(end) => Mode::Other,
        mode => mode,
    };
    ends.iter().map(mode).collect()
}

/// Returns the chance that a window's upper bound is too small. It is divided among all windows covered by one
/// statement: those of this many terminations, for all consumers.
pub(crate) fn alpha(timeline: &Timeline, terminations: usize) -> f64 {
    let targets = timeline.info.targets.len().max(1);
    timeline.alpha() / (targets * terminations.max(1)) as f64
}

/// Returns the chance that a window's upper bound is too small, by termination, for statements about a run, which cover
/// all terminations of one mode.
pub(crate) fn alphas(timeline: &Timeline, modes: &[Mode]) -> Vec<f64> {
    let together = |mode| modes.iter().filter(|other| *other == mode).count();
    modes.iter().map(|mode| alpha(timeline, together(mode))).collect()
}

/// Returns the windows by termination and target, and the reasons for those without an upper bound.
pub(crate) fn windows(
    timeline: &Timeline,
    tails: &[Vec<ArrivalTail>],
    alpha: &[f64],
) -> (Vec<Vec<Window>>, Vec<Vec<Option<Unbounded>>>) {
    let bound = |((end, tails), alpha): ((&PodEnd, &Vec<ArrivalTail>), &f64)| {
        let targets = timeline.info.targets.iter().zip(tails);
        targets.map(|(target, tail)| window(timeline, end, target, tail, *alpha)).unzip()
    };
    timeline.ends.iter().zip(tails).zip(alpha).map(bound).unzip()
}

/// Returns the latest end of a window: its upper bound, or the last observed arrival if it has none.
pub(crate) fn window_end(end: &PodEnd, window: &Window, tail_last: Option<Stamp>) -> Stamp {
    match window.upper_s {
        Some(upper_s) => end.t0.earliest + std::time::Duration::from_secs_f64(upper_s.max(0.0)),
        None => tail_last.map_or(end.t0.latest, |at| at.max(end.t0.latest)),
    }
}

/// Returns the periods from each t0 until that pod is gone or its window has ended, whichever is later.
pub(crate) fn disrupted(timeline: &Timeline, windows: &[Vec<Window>]) -> Periods {
    let until = |(end, windows): (&PodEnd, &Vec<Window>)| {
        let window = windows.iter().map(|w| window_end(end, w, None)).max();
        (end.t0.earliest, window.max(end.gone()).unwrap_or(end.t0.latest))
    };
    Periods::of(timeline.ends.iter().zip(windows).map(until))
}
