//! One finding per cause of lost requests, with the facts on which its reason and remedy depend.

use std::collections::BTreeMap;

use super::setup::Setup;
use super::{Finding, FindingsInput, JudgedRequest, Recommendation};
use crate::conclude::recommend::{self, TerminationSettings};
use crate::count::sums::came_on_kept_connection;
use crate::math::stats;
use crate::model::account::{
    CloseNotice, DnsTtl, Doubt, EndpointAdvice, FinishAdvice, HookRepair, KeptAnswer, Loss, NotAccepting,
    OnEachNode, PreStopHooks, ShortDrain, SigtermCut, SleepAdvice, TrafficPolicyKind,
};
use crate::model::figure_text::len;
use crate::model::{Unclear, lasted_at_least_s};
use crate::timeline::PodEnd;
use rolldrop_record::load::Http;
use rolldrop_record::routing::Routing;
use rolldrop_record::run_info::RunInfo;
use rolldrop_record::{Cause, Outcome};

/// Returns one finding per cause of lost requests, and another one if several pods share losses.
///
/// Requests lost because a container exited in a pod that was not terminating get a separate finding: remedies for
/// terminations do not help there.
pub(super) fn findings(known: FindingsInput<'_>, setup: &Setup<'_>) -> Vec<Finding> {
    let of_restarts = of_restarts(known.judged);
    let dead = Setup::of_dead(&known);
    let mut findings = Vec::new();
    for (&cause, &n) in &known.requests.by_cause {
        let of_restarts = of_restarts.get(&cause).copied().unwrap_or(0);
        if n > of_restarts {
            findings
                .push(Finding::Lost { requests: n - of_restarts, by: loss(cause, known, (setup, &dead)) });
        }
        if of_restarts > 0 {
            findings.push(Finding::LostToRestart { requests: of_restarts, cause });
        }
    }
    let requests = known.requests.ambiguous;
    findings.extend((requests > 0).then_some(Finding::Ambiguous { requests }));
    findings
}

/// Returns the facts on which the reason and remedy for losses with this cause depend. `dead` is [`Setup::of_dead`].
fn loss(cause: Cause, known: FindingsInput<'_>, (setup, dead): (&Setup<'_>, &Setup<'_>)) -> Loss {
    let sleep = || sleep(known, dead);
    match cause {
        Cause::RoutedToDeadPod => {
            Loss::RoutedToDeadPod { not_accepting: not_accepting(dead), sleep: sleep() }
        }
        Cause::AcceptQueueReset => Loss::AcceptQueueReset { sleep: sleep() },
        Cause::KilledInFlight => Loss::KilledInFlight(finish(known, setup)),
        Cause::DrainedTooShort => Loss::DrainedTooShort(drain(known)),
        Cause::CutAtSigterm => Loss::CutAtSigterm(cut_after(known)),
        Cause::GatewayCut => Loss::GatewayCut,
        Cause::IdleCloseRace => Loss::IdleCloseRace(idle(known)),
        Cause::H2Unprocessed => Loss::H2Unprocessed,
        Cause::StaleFlow => Loss::StaleFlow,
        Cause::NoReadyEndpoint => {
            let is_of_node = local_policy(known).is_some();
            Loss::NoReadyEndpoint { is_of_node, endpoints: endpoints(known, setup) }
        }
        Cause::NotReadyYet => Loss::NotReadyYet(recommend::probe(known.timeline)),
        Cause::GatewayError => Loss::GatewayError,
        Cause::GatewayToDeadPod => Loss::GatewayToDeadPod { sleep: sleep() },
        Cause::GatewayNoServer => Loss::GatewayNoServer { sleep: sleep() },
        Cause::RefusedWhileEnding => Loss::RefusedWhileEnding(close_notice(&known.timeline.info)),
        Cause::RuleSwap => Loss::RuleSwap,
        Cause::Overload => Loss::Overload,
        Cause::Unattributed => Loss::Unattributed(doubts(known.judged)),
    }
}

/// Returns the reason why a terminating pod no longer accepted connections, as far as its hooks show.
fn not_accepting(setup: &Setup<'_>) -> NotAccepting {
    if let Some(workload) = setup.recreated() {
        return NotAccepting::Recreated(workload.name.clone());
    }
    if !setup.accepting.is_empty() {
        return NotAccepting::Killed;
    }
    // A pod that keeps answering on kept connections has not stopped.
    if setup.none_deleted {
        return NotAccepting::NotDeleted;
    }
    let kept = if setup.kept_on.is_empty() { KeptAnswer::Unknown } else { KeptAnswer::Answered };
    match setup.has_failures() {
        true => NotAccepting::Stopped { kept, hook: PreStopHooks::Failed },
        false if !setup.early.is_empty() => NotAccepting::EndedEarly,
        false => NotAccepting::Stopped { kept, hook: setup.hook },
    }
}

/// Returns the sleep that would help, which is the same in all forms of the report: the recommended one, or if there is
/// none, the time that the sleep must exceed. It is never below a bound shown in the report.
fn sleep(known: FindingsInput<'_>, setup: &Setup<'_>) -> SleepAdvice {
    if let Some(workload) = setup.recreated() {
        return SleepAdvice::Recreated(workload.name.clone());
    }
    let lost = || known.judged.iter().filter(|j| j.cause.is_helped_by_sleep());
    let mut pods = lost().flat_map(|j| &j.candidates).map(|c| &known.terminations[c.termination]).peekable();
    let is_known = pods.peek().is_some();
    if pods.all(|t| !t.was_deleted()) && (is_known || setup.none_deleted) {
        return SleepAdvice::NotDeleted;
    }
    let hook = match (setup.has_failures(), setup.early.is_empty()) {
        (false, true) => HookRepair::Unneeded,
        (false, false) => HookRepair::Last,
        (true, _) => HookRepair::Replace,
    };
    let all = known.recommendation;
    if let Some(longest) = Recommendation::longest(all, known.terminations, known.groups) {
        return SleepAdvice::Advised { hook, mode: longest.mode };
    }
    let is_withheld = |rec: &&Recommendation| rec.covers_all_seen_seconds.is_none();
    let competing = |rec: &Recommendation| {
        recommend::starts_compete(known.timeline, known.terminations, known.judged, rec.mode)
    };
    if let Some(requests) = all.iter().filter(is_withheld).find_map(competing) {
        return SleepAdvice::ProbeFirst { probe: recommend::probe(known.timeline), requests };
    }
    // If pods lost nothing, their sleep was long enough.
    let set_s = |j: &JudgedRequest<'_>| {
        j.candidates.iter().filter_map(|c| known.terminations[c.termination].pre_stop_seconds).min()
    };
    let set = lost().filter_map(set_s).max().unwrap_or(setup.longest_sleep_s) as f64;
    let seen = lasted_at_least_s(known.terminations, known.groups, |_| true).unwrap_or(0.0);
    let dns = dns(known);
    let ttl_s = match dns {
        Some(DnsTtl::Known(ttl_s)) => ttl_s,
        Some(DnsTtl::Unknown) | None => 0.0,
    };
    let at_least_s = set.max(seen).max(ttl_s);
    // Round up so that the figure is not below the bound it represents.
    let at_least_s = (at_least_s > 0.0).then(|| (at_least_s * 1e3).ceil() / 1e3);
    let grace_s = at_least_s.and_then(|s| {
        let stopping_s = recommend::stopping_s(known.terminations.iter());
        let set = TerminationSettings::of(known.timeline.ends.iter());
        // A longer sleep has at least one second more.
        set.longer_grace_s(stats::ceil_seconds(s) + 1, stopping_s, known.timeline.info.policy.margin_s)
    });
    SleepAdvice::AtLeast { hook, at_least_s, dns, grace_s }
}

/// Returns how long clients of a headless Service cache a DNS response.
fn dns(known: FindingsInput<'_>) -> Option<DnsTtl> {
    let timeline = known.timeline;
    let by_dns = |routing: &Option<Routing>| *routing == Some(Routing::Dns);
    let mut targets = timeline.info.targets.iter();
    let ttl_s = targets.clone().filter_map(|target| timeline.period_s(target)).fold(0.0, f64::max);
    match ttl_s > 0.0 {
        true => Some(DnsTtl::Known(ttl_s)),
        false => targets.any(|target| by_dns(&target.routing)).then_some(DnsTtl::Unknown),
    }
}

/// Returns the way to let a pod finish the requests it has accepted.
fn finish(known: FindingsInput<'_>, setup: &Setup<'_>) -> FinishAdvice {
    if !setup.kept_on.is_empty() {
        return FinishAdvice::Announced(close_notice(&known.timeline.info));
    }
    let longest_s = known.latency_ms.service.max / 1e3;
    let is_too_short = |end: &PodEnd| {
        end.was_killed_at_its_grace()
            && end.hook_sleep_s.is_none_or(|sleep_s| sleep_s as f64 + longest_s > end.grace_s as f64)
    };
    match known.timeline.ends.iter().any(is_too_short) {
        true => FinishAdvice::WithinGrace { longest_s },
        false => FinishAdvice::OnSignal,
    }
}

/// Returns the grace periods that were too short for streams, and the longest stream whose end was seen.
fn drain(known: FindingsInput<'_>) -> ShortDrain {
    let ended_by = || ended_by(known, Cause::DrainedTooShort).map(|(j, e)| (j, &known.timeline.ends[e]));
    let graces = ended_by().map(|(_, end)| end.shortest_grace_s);
    let is_kept = ended_by().any(|(j, end)| came_on_kept_connection(j.request, end));
    let curve = known.streams.map_or(&[][..], |streams| &streams.survival);
    let seen_to_their_ends = curve.last().filter(|step| step.share <= 0.0);
    ShortDrain {
        grace_s: graces.max().unwrap_or(0),
        longest_s: seen_to_their_ends.map(|step| step.age_s),
        missing_notice: is_kept.then(|| close_notice(&known.timeline.info)),
    }
}

/// Returns the shortest and the longest time from SIGTERM until the app cut its streams, in seconds.
fn cut_after(known: FindingsInput<'_>) -> SigtermCut {
    let after_s = |(j, e): (&JudgedRequest<'_>, usize)| {
        j.request.row.end.seconds_since(known.timeline.ends[e].may_stop_from()).max(0.0)
    };
    let all = ended_by(known, Cause::CutAtSigterm).map(after_s);
    let after_s = all.fold(None, |range: Option<(f64, f64)>, s| {
        Some(range.map_or((s, s), |(least, most)| (least.min(s), most.max(s))))
    });
    let is_told = |(j, _): &(&JudgedRequest<'_>, usize)| j.request.row.outcome == Outcome::StreamAborted;
    SigtermCut { after_s, told: len(ended_by(known, Cause::CutAtSigterm).filter(is_told).count()) }
}

/// Returns the losses with this cause that exactly one termination explains.
fn ended_by<'a>(
    known: FindingsInput<'a>,
    cause: Cause,
) -> impl Iterator<Item = (&'a JudgedRequest<'a>, usize)> {
    let its = known.judged.iter().filter(move |j| j.cause == cause);
    its.filter_map(|j| match &j.candidates[..] {
        [only] => Some((j, only.termination)),
        _ => None,
    })
}

/// Returns the way to keep an endpoint ready while pods are terminated.
fn endpoints(known: FindingsInput<'_>, setup: &Setup<'_>) -> EndpointAdvice {
    if let Some((_, workload)) = known.timeline.deleted_workloads().next() {
        return EndpointAdvice::Deleted(workload.clone());
    }
    if let Some(workload) = setup.recreated() {
        return EndpointAdvice::Recreated(workload.name.clone());
    }
    let name = setup.workload.map(|workload| workload.name.clone());
    if let Some(policy) = local_policy(known) {
        let workload = match name {
            Some(name) if name.starts_with("DaemonSet ") => OnEachNode::DaemonSet(name),
            Some(name) => OnEachNode::Other(name),
            None => OnEachNode::Unknown,
        };
        return EndpointAdvice::OnEachNode { policy, workload };
    }
    let Some(workload) = setup.workload else { return EndpointAdvice::Unknown };
    EndpointAdvice::Rolling {
        workload: workload.name.clone(),
        replicas: workload.replicas,
        max_unavailable: workload.max_unavailable.clone(),
    }
}

/// Returns the traffic policy that is Local, if it alone left requests without a ready endpoint.
fn local_policy(known: FindingsInput<'_>) -> Option<TrafficPolicyKind> {
    let policy = |j: &JudgedRequest<'_>| {
        let target = &known.timeline.info.targets[known.timeline.target_of(&j.request.row)?];
        target.only_node()?;
        match target.routing {
            Some(Routing::NodePort(_)) => Some(TrafficPolicyKind::External),
            _ => Some(TrafficPolicyKind::Internal),
        }
    };
    let mut policies = known.judged.iter().filter(|j| j.cause == Cause::NoReadyEndpoint).map(policy);
    let first = policies.next()??;
    policies.all(|other| other.is_some()).then_some(first)
}

/// Returns the announcement that a terminating server should make before it closes an idle connection; `None` if no pod
/// was terminating.
fn idle(known: FindingsInput<'_>) -> Option<CloseNotice> {
    let mut races = known.judged.iter().filter(|j| j.cause == Cause::IdleCloseRace);
    races.any(|j| !j.candidates.is_empty()).then(|| close_notice(&known.timeline.info))
}

/// Counts, by cause, the requests lost to restarts: requests whose cause implies a dead or exiting pod although no
/// termination explains the loss.
fn of_restarts(judged: &[JudgedRequest<'_>]) -> BTreeMap<Cause, u64> {
    let mut counts = BTreeMap::new();
    let is_its = |j: &&JudgedRequest<'_>| {
        j.candidates.is_empty() && matches!(j.cause, Cause::RoutedToDeadPod | Cause::KilledInFlight)
    };
    for j in judged.iter().filter(is_its) {
        *counts.entry(j.cause).or_default() += 1;
    }
    counts
}

/// Returns the way in which a server announces that it is closing a connection; HTTP/2 has no `Connection` header.
pub(super) fn close_notice(info: &RunInfo) -> CloseNotice {
    let is_tls = info.targets.iter().any(|target| target.url.starts_with("https:"));
    match info.load.http {
        Some(Http::Http2) => CloseNotice::Goaway,
        Some(Http::Auto) if is_tls => CloseNotice::Either,
        _ => CloseNotice::Header,
    }
}

/// Counts the requests without a cause, by the reason why they have none.
fn doubts(judged: &[JudgedRequest<'_>]) -> Vec<(Doubt, u64)> {
    let mut doubts: BTreeMap<Doubt, u64> = BTreeMap::new();
    for unclear in judged.iter().filter_map(|j| j.unclear.as_ref()) {
        let doubt = match unclear {
            Unclear::Competing(causes) => {
                let mut causes: Vec<Cause> = causes.iter().map(|(cause, _)| *cause).collect();
                causes.sort_unstable();
                Doubt::Competing(causes)
            }
            Unclear::PodWasWell => Doubt::PodWasWell,
            Unclear::NoFit => Doubt::NoFit,
            Unclear::NothingNear => Doubt::NothingNear,
        };
        *doubts.entry(doubt).or_default() += 1;
    }
    doubts.into_iter().collect()
}
