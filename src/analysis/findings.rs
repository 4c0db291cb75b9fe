//! The findings: what a reader should know, in sentences with figures.

use std::collections::BTreeMap;

use super::figures::count;
use super::model::{
    Finding, FindingKind, Latencies, Recommendation, RequestCounts, Severity, Termination, Verdict,
};
use super::phase::Phases;
use super::sums::Sums;
use super::tracked;
use crate::record::run_info::{BalancesBecause, Target};
use crate::record::{Cause, Stamp};
use crate::timeline::{BeatsState, Refused, Restart, T0Basis, Timeline, Withdrawal};

/// What there is to say something of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known<'a> {
    pub timeline: &'a Timeline,
    pub sums: &'a Sums<'a>,
    pub verdict: &'a Verdict,
    /// Why the record is not whole.
    pub partial: &'a [String],
    pub requests: &'a RequestCounts,
    pub latency_ms: &'a Latencies,
    pub terminations: &'a [Termination],
    pub recommendation: &'a [Recommendation],
}

/// Everything worth saying, most severe first.
pub(super) fn findings(known: Known<'_>) -> Vec<Finding> {
    let Known { timeline, sums, terminations, .. } = known;
    let mut findings = not_valid(known);
    findings.extend(causes(known));
    findings.extend(not_whole(known));
    findings.extend(unbounded(terminations));
    findings.extend(timeline.info.targets.iter().filter_map(|target| in_step(timeline, target)));
    findings.extend(killed(known));
    findings.extend(deletions_of_others(timeline));
    findings.extend(refusals(timeline));
    findings.extend(timeline.restarts.iter().filter(|r| r.from >= timeline.origin).map(restarted));
    findings.extend(agents_restarted(timeline.agent_restarts));
    findings.extend(unsettled(timeline.unsettled.len() as u64));
    let left_alive = timeline.withdrawals.iter().zip(&sums.last_reached);
    findings.extend(left_alive.map(|(withdrawal, last)| lived_on(withdrawal, *last)));
    findings.extend(timeline.info.targets.iter().filter_map(taken_for_a_gateway));
    findings.extend(of_the_measurement(known));
    findings.extend(nothing_lost(known));
    findings.sort_by_key(|f| f.severity);
    findings
}

/// Why the measurement cannot be believed.
fn not_valid(known: Known<'_>) -> Vec<Finding> {
    let Verdict::Invalid { why } = known.verdict else { return Vec::new() };
    let invalid = |what: &String| {
        let is_of_record = known.timeline.integrity.contradictions.contains(what);
        let (kind, why, remedy) = match is_of_record {
            true => (
                FindingKind::Corrupt,
                "what was recorded contradicts itself, so that no figure can be relied on",
                "look for parts that were copied, changed or mixed with another run's, or repeat the run",
            ),
            false => (
                FindingKind::Invalid,
                "the figures of this run would describe the measurement, not the cluster",
                "repeat it with a lower rate or on a less busy machine",
            ),
        };
        Finding { kind: Some(kind), ..finding(Severity::Error, what.clone(), why, remedy) }
    };
    why.iter().map(invalid).collect()
}

/// Each cause of lost requests, and that several pods share some of them.
fn causes(known: Known<'_>) -> Vec<Finding> {
    let sleep = sleep_in_words(known.terminations, known.recommendation);
    let cause = |(&cause, &n): (&Cause, &u64)| {
        let (why, remedy) = explain(cause, &sleep);
        // The generator's own fault is no error of what was measured.
        let severity = if cause == Cause::StaleFlow { Severity::Warning } else { Severity::Error };
        let what =
            format!("{}: {} {}", cause.as_str(), count(n), if n == 1 { "request" } else { "requests" });
        Finding { cause: Some(cause), ..finding(severity, what, why, &remedy) }
    };
    let mut findings: Vec<Finding> = known.requests.by_cause.iter().map(cause).collect();
    if known.requests.ambiguous > 0 {
        findings.push(finding(
            Severity::Warning,
            format!(
                "{} dropped requests fit several terminations: what each of these lost is an interval",
                count(known.requests.ambiguous)
            ),
            "the pods ended so close together that neither time nor outcome says which of them lost a request",
            "let responses name their pod, or delete pods further apart; totals of the groups are exact",
        ));
    }
    findings
}

/// What is missing in the record.
fn not_whole(known: Known<'_>) -> impl Iterator<Item = Finding> {
    known.partial.iter().map(move |what| {
        let is_corrupt = known.timeline.corrupt.contains(what);
        let (kind, severity, why) = match is_corrupt {
            true => (
                FindingKind::Corrupt,
                Severity::Error,
                "it is no longer as it was written, and is in no figure",
            ),
            false => (FindingKind::Missing, Severity::Warning, "what was not recorded is in no figure"),
        };
        let remedy = "read the counts as lower bounds, or repeat the run";
        Finding { kind: Some(kind), ..finding(severity, what.clone(), why, remedy) }
    })
}

/// The pods whose grace period was too short.
fn killed(known: Known<'_>) -> Option<Finding> {
    let killed = known.terminations.iter().filter(|t| t.exit_code == Some(137));
    let pods: Vec<&str> = killed.map(|t| t.pod.as_str()).collect();
    let what = match pods[..] {
        [] => return None,
        [pod] => format!("pod {pod} was ended by SIGKILL (exit code 137)"),
        _ => format!("{} pods were ended by SIGKILL (exit code 137)", pods.len()),
    };
    let longest_s = known.latency_ms.service.max / 1e3;
    Some(finding(
        Severity::Warning,
        what,
        "the app had not finished when the grace period was over",
        &format!(
            "terminationGracePeriodSeconds above preStop plus the longest request ({longest_s:.1} s was the longest answered here)"
        ),
    ))
}

/// What the measurement itself leaves open or changes.
fn of_the_measurement(known: Known<'_>) -> Vec<Finding> {
    let Known { timeline, sums, .. } = known;
    let mut findings = Vec::new();
    for clock in &timeline.unsampled_clocks {
        findings.push(finding(
            Severity::Warning,
            format!("the clock of {clock} was never compared with the coordinator's"),
            "its stamps are taken as they are, so bounds that rest on them have no uncertainty in them",
            "check that the clocks are synchronised",
        ));
    }
    let reuses = sums.reuses.count();
    if reuses > 0 {
        findings.push(finding(
            Severity::Warning,
            format!("{} connections came from a source port that had been used less than 120 s before", count(reuses)),
            "where connections are tracked, one that nobody answered can lead the next from its port to the same dead pod (stale_flow)",
            "more source ports (net.ipv4.ip_local_port_range, load.sourcePorts) or a lower rate",
        ));
    }
    findings.extend(sums.reached.findings(timeline));
    findings.extend(timeline.tracked.iter().flat_map(|said| tracked::findings(said, timeline)));
    for message in &timeline.warnings {
        findings.push(finding(Severity::Warning, message.clone(), "recorded during the run", ""));
    }
    if sums.reset_for_refused > 0 {
        findings.push(finding(
            Severity::Info,
            match sums.reset_for_refused {
                1 => "1 request was reset that the app would have refused".to_owned(),
                n => format!("{} requests were reset that the app would have refused", count(n)),
            },
            "the recording proxy beside it had accepted the connection already: the one thing that it changes",
            "take reset_before_response and connect_refused for one when you compare with a run without it",
        ));
    }
    findings
}

/// What it means that no request was lost, or no pod ended.
fn nothing_lost(known: Known<'_>) -> Option<Finding> {
    let n = known.terminations.len() as u64;
    if n == 0 {
        let (why, remedy) = match known.timeline.restarts.is_empty() && known.timeline.withdrawals.is_empty()
        {
            true => (
                "the run shows the steady state only",
                "add a disruption to the scenario to measure a termination",
            ),
            false => ("the disruptions of this run end no pod, so there is no window", ""),
        };
        return Some(finding(Severity::Info, "no pod ended under load".to_owned(), why, remedy));
    }
    (known.requests.lost() == 0).then(|| {
        let bound = super::stats::share_upper(0, n, 0.95) * 100.0;
        finding(
            Severity::Info,
            format!("no request was dropped in {n} terminations"),
            &format!("at 95 % confidence at most {bound:.0} % of such terminations drop any"),
            "measure more terminations to say more",
        )
    })
}

pub(super) fn finding(severity: Severity, what: String, why: &str, remedy: &str) -> Finding {
    Finding { severity, kind: None, cause: None, what, why: why.to_owned(), remedy: remedy.to_owned() }
}

/// Terminations that all met a consumer's own clock at about the same phase.
fn in_step(timeline: &Timeline, target: &Target) -> Option<Finding> {
    let period_s = timeline.period_s(target)?;
    let phases = Phases::of(period_s, timeline.ends.iter().map(|end| end.t0.latest));
    let what = phases.in_step(&target.consumer)?;
    let why = "windows towards it are one draw of up to that period, however many there are";
    let remedy = "end pods at random phases: a jitter of at least the period";
    Some(Finding { kind: Some(FindingKind::InPhase), ..finding(Severity::Warning, what, why, remedy) })
}

/// The windows that have no upper bound: one finding for each consumer and reason.
pub(super) fn unbounded(terminations: &[Termination]) -> impl Iterator<Item = Finding> {
    let mut by_reason: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for termination in terminations {
        for window in &termination.windows {
            if let Some(why) = &window.censored {
                by_reason.entry((window.consumer.as_str(), why.as_str())).or_default().push(&termination.pod);
            }
        }
    }
    by_reason.into_iter().map(|((consumer, why), pods)| {
        let what = match pods[..] {
            [pod] => format!("the window of pod {pod} towards {consumer} has no upper bound"),
            _ => {
                format!(
                    "the windows of {} pods towards {consumer} have no upper bound",
                    count(pods.len() as u64)
                )
            }
        };
        let remedy =
            "raise the rate of new connections, or keep the load on for longer after the termination";
        finding(Severity::Warning, what, why, remedy)
    })
}

/// Waits after terminations that ended while requests were still lost.
fn unsettled(waits: u64) -> Option<Finding> {
    let what = match waits {
        0 => return None,
        1 => "requests were still lost when the wait after a termination reached its limit".to_owned(),
        _ => format!(
            "requests were still lost when {} waits after terminations reached their limit",
            count(waits)
        ),
    };
    let why =
        "what routes to the pods takes longer to notice their end: windows may be longer than what was seen";
    Some(finding(Severity::Warning, what, why, "wait longer: --settle-max"))
}

/// A URL of which the answers showed that requests are balanced there.
fn taken_for_a_gateway(target: &Target) -> Option<Finding> {
    let because = target.balances_because.as_ref()?;
    let is_seen = match because {
        BalancesBecause::GatewayStatus { .. }
        | BalancesBecause::GatewayHeader { .. }
        | BalancesBecause::PodsOfOneConnection { .. } => true,
        BalancesBecause::Stated | BalancesBecause::Service | BalancesBecause::Assumed => false,
    };
    is_seen.then(|| {
        finding(
            Severity::Info,
            format!("{} is taken for a gateway that balances requests: {because}", target.consumer),
            "a gateway keeps connections to pods, so that requests show its windows and not connections",
            "say `balances: connections` or `balances: requests` of the target if you know it",
        )
    })
}

/// What it costs that beats do not say when others deleted pods.
fn deletions_of_others(timeline: &Timeline) -> Option<Finding> {
    let ends = timeline.ends.iter().filter(|end| end.t0.basis == T0Basis::Timestamp);
    let widths: Vec<f64> = ends.map(|end| end.t0.latest.seconds_since(end.t0.earliest)).collect();
    let widest = widths.iter().copied().reduce(f64::max)?;
    let (why, remedy) = match &timeline.beats.state {
        BeatsState::Absent => (
            "a deletionTimestamp has whole seconds, and this run had no beats (writes of its own, by whose \
             versions the deletions of others are placed in time)"
                .to_owned(),
            "allow the run to create and patch a ConfigMap of its own, and leave --no-beats out",
        ),
        BeatsState::Dropped { why } => (
            format!("a deletionTimestamp has whole seconds, and the run's beats were dropped: {why}"),
            "let the run delete the pods itself (deletePod, evict)",
        ),
        BeatsState::Usable => (
            "a deletionTimestamp has whole seconds, and no beat came between".to_owned(),
            "see the warnings for what held the beats up",
        ),
    };
    let pods = match widths.len() {
        1 => "the deletion of 1 pod by somebody else is".to_owned(),
        n => format!("the deletions of {} pods by others are", count(n as u64)),
    };
    let what = format!("{pods} known to {widest:.2} s only; upper bounds of windows are wider by that");
    Some(finding(Severity::Info, what, &why, remedy))
}

/// What was asked for and not done, each reason once.
fn refusals(timeline: &Timeline) -> Vec<Finding> {
    let mut by_reason: BTreeMap<(&str, Option<u16>, &str), Vec<&str>> = BTreeMap::new();
    for Refused { action, pod, status, why } in &timeline.refused {
        by_reason
            .entry((action.as_str(), *status, why))
            .or_default()
            .push(pod.as_deref().unwrap_or_default());
    }
    let refusal = |((action, status, why), pods): ((&str, Option<u16>, &str), Vec<&str>)| {
        let of = match pods[..] {
            [""] => String::new(),
            [pod] => format!(" of pod {pod}"),
            _ => format!(", {} times", count(pods.len() as u64)),
        };
        let remedy = match status {
            Some(429) => {
                "a PodDisruptionBudget that allows more, or more replicas; or a longer load, which waits"
            }
            Some(401 | 403) => "have the right granted (kubectl auth can-i --list)",
            Some(404 | 409) => "nothing: it was gone, or changed, before",
            Some(422 | 400) => "correct the scenario",
            Some(_) => "see what the API server says",
            None => "see the reason; allowOutage: true lifts the limits of a run",
        };
        let code = status.map(|status| format!(" ({status})")).unwrap_or_default();
        finding(Severity::Warning, format!("{action}{of} was refused{code}"), why, remedy)
    };
    by_reason.into_iter().map(refusal).collect()
}

/// A container that ended in a pod that stays.
fn restarted(restart: &Restart) -> Finding {
    let Restart { pod, container, exit_code, is_crash, from, to } = restart;
    let code = exit_code.map(|code| format!(" (exit code {code})")).unwrap_or_default();
    let back = match to {
        Some(to) => format!("was ready again {:.1} s later", to.seconds_since(*from)),
        None => "was not ready again while it was watched".to_owned(),
    };
    let how = if *is_crash { "was killed by this run" } else { "ended" };
    let what = format!("container {container} of pod {pod} {how}{code} and {back}");
    let why = "the pod stays, so this is no termination: requests that it costs are in no window, no preStop hook \
               runs, and its endpoint stays until the kubelet has noticed";
    let remedy = match is_crash {
        true => "more replicas and clients that retry; a readinessProbe shortens what it costs",
        false => "see why it ended; a readinessProbe shortens what it costs",
    };
    finding(Severity::Warning, what, why, remedy)
}

/// Restarts of nodes' agents by the run.
fn agents_restarted(restarts: usize) -> Option<Finding> {
    let what = match restarts {
        0 => return None,
        1 => "the agent of a node was restarted by this run".to_owned(),
        n => format!("agents of nodes were restarted {n} times by this run"),
    };
    let why = "containers go on without the agent, so this is no termination: probes and statuses pause, and a pod \
               that was ending gets its whole grace period again";
    Some(finding(Severity::Info, what, why, ""))
}

/// A pod that left its Services while it lived on, and when it was last sent a new connection.
fn lived_on(withdrawal: &Withdrawal, last: Option<Stamp>) -> Finding {
    let Withdrawal { pod, answered, endpoint_removed, .. } = withdrawal;
    let after = |at: Option<Stamp>| match at {
        Some(at) => format!("{:.2} s after that was asked for", at.seconds_since(*answered).max(0.0)),
        None => "not at all, as far as it was seen".to_owned(),
    };
    let what = format!(
        "pod {pod} left its Services and lived on: its endpoint went {}, its last new connection came {}",
        after(*endpoint_removed),
        after(last)
    );
    let why = "what reaches such a pod is answered, so this is no termination and in no window";
    finding(Severity::Info, what, why, "")
}

/// The sleep that helps, as all forms of the report name it: what is advised, or, where nothing can be, what it has to exceed.
fn sleep_in_words(terminations: &[Termination], recommendation: &[Recommendation]) -> String {
    let serves_on = "or an app that keeps serving for that time after SIGTERM";
    let advised = Recommendation::longest(recommendation, terminations);
    if let Some(seconds) = advised.and_then(Recommendation::advised_seconds) {
        return format!("a preStop sleep of {seconds} s, {serves_on}");
    }
    let set = terminations.iter().filter_map(|t| t.pre_stop_seconds).max().unwrap_or(0) as f64;
    let seen = terminations.iter().flat_map(|t| &t.windows).filter_map(|w| w.lower_s).fold(0.0, f64::max);
    match set.max(seen) {
        at_least if at_least > 0.0 => {
            format!("a preStop sleep that outlasts the windows, longer than {at_least:.3} s, {serves_on}")
        }
        _ => format!("a preStop sleep that outlasts the windows, {serves_on}"),
    }
}

/// Why such drops happen, and what helps; `sleep` is the sleep that does.
fn explain(cause: Cause, sleep: &str) -> (&'static str, String) {
    match cause {
        Cause::RoutedToDeadPod => (
            "the app stops as soon as it gets SIGTERM, and nothing waits until the Service routes elsewhere",
            sleep.to_owned(),
        ),
        Cause::AcceptQueueReset => (
            "the app closed its listener while connections that it had not accepted stood in the queue",
            sleep.to_owned(),
        ),
        Cause::KilledInFlight => (
            "the app ended before it had answered what it had accepted",
            "finish requests in flight on SIGTERM; with exit code 137 a longer terminationGracePeriodSeconds"
                .into(),
        ),
        Cause::IdleCloseRace => (
            "an idle connection may be closed at any time, and a request can cross that on its way",
            "answer with Connection: close while draining; a client idle timeout below the server's".into(),
        ),
        Cause::StaleFlow => (
            "the generator used a source port again: its earlier connection from there got no answer, and for up to \
             120 s its connection-tracking entry sends the next one to the same pod, though the rules have changed; \
             headline and limits do not count these requests",
            "more source ports (net.ipv4.ip_local_port_range, load.sourcePorts) or a lower rate, so that 120 s \
             use none twice"
                .into(),
        ),
        Cause::NoReadyEndpoint => (
            "all pods of the Service were away or not ready at once",
            "more replicas, maxUnavailable: 0, and a PodDisruptionBudget".into(),
        ),
        Cause::NotReadyYet => (
            "its endpoint was ready before its listener was",
            "a readinessProbe that fails until the app listens".into(),
        ),
        Cause::GatewayError => (
            "a gateway status came back, and no pod was ending that explains it: a gateway, or the app itself, \
             gave up on the request",
            "see the gateway's own log; let it retry requests that may be sent twice".into(),
        ),
        Cause::GatewayToDeadPod => (
            "a gateway sent requests to a pod that was ending, and answered with 502, 503, 504 or nothing",
            format!("{sleep}; and let the gateway retry requests that may be sent twice"),
        ),
        Cause::RuleSwap => (
            "a Service proxy replaced its rules, and in that instant the Service was not in them",
            "no setting of the pod helps; clients that try again after a refused connection".into(),
        ),
        Cause::Overload => (
            "the app or the machine could not keep up, or packets were lost",
            "lower the rate or add capacity; then measure again".into(),
        ),
        Cause::Unattributed => (
            "no termination explains them, or those that may explain them differ in the cause",
            "see lost.csv: each request with its outcome and the pods that may explain it".into(),
        ),
    }
}
