//! The findings: what a reader should know, in sentences with figures.

pub(crate) mod bounds;
mod causes;
mod conntrack;
mod ending_errors;
mod ends;
mod setup;
mod unclear;

use std::collections::{BTreeMap, BTreeSet};

use crate::attribute::judged::Judged;
use crate::conclude::phase;
use crate::conclude::validity::Reason;
use crate::count::not_sent::reasons_in_words;
use crate::count::sums::Sums;
use crate::model::figures::{count, counted, either, len, percent};
use crate::model::{
    Finding, FindingKind, Latencies, LossGroup, Recommendation, RequestCounts, Severity, T0Basis,
    Termination, finding,
};
use crate::timeline::{BeatsState, ChangeByOthers, Command, Refused, Restart, Timeline, Withdrawal};
use rolldrop_record::run_info::{BalancesBecause, Target};
use rolldrop_record::{Looks, Stamp};
use setup::Setup;

/// The remedy if a container ends in a pod that stays. Nothing waits for its end, so no setting of the pod helps.
const RESTART_REMEDY: &str = "more replicas and clients that retry; a readinessProbe shortens the outage";

/// Input from which the findings are made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known<'a> {
    pub timeline: &'a Timeline,
    pub sums: &'a Sums<'a>,
    /// Reasons why the run is invalid.
    pub invalid: &'a [Reason],
    /// Reasons why its record is incomplete.
    pub partial: &'a [Reason],
    pub requests: &'a RequestCounts,
    pub judged: &'a [Judged<'a>],
    pub latency_ms: &'a Latencies,
    pub terminations: &'a [Termination],
    pub groups: &'a [LossGroup],
    pub recommendation: &'a [Recommendation],
}

/// Returns all findings, most severe first.
pub(crate) fn findings(known: Known<'_>) -> Vec<Finding> {
    let Known { timeline, sums, terminations, .. } = known;
    let setup = Setup::of(&known);
    let mut findings = not_valid(known);
    findings.extend(causes::findings(known, &setup));
    findings.extend(ending_errors::of(known));
    findings.extend(ends::findings(known, &setup));
    findings.extend(not_whole(known));
    findings.extend(bounds::findings(timeline, terminations));
    findings.extend(bounds::rights(timeline, terminations));
    findings.extend(in_step(timeline));
    findings.extend(not_sent(known));
    findings.extend(deletions_of_others(timeline));
    findings.extend(refusals(timeline));
    findings.extend(timeline.commands.iter().filter_map(unfinished));
    findings.extend(timeline.restarts.iter().filter(|r| r.from >= timeline.origin).map(restarted));
    findings.extend(changed(timeline));
    findings
        .extend(timeline.deleted_workloads().map(|(at, workload)| deleted(timeline.seconds(*at), workload)));
    findings.extend(agents_restarted(timeline.agent_restarts));
    findings.extend(unsettled(timeline.notes.unsettled.len() as u64));
    let left_alive = timeline.withdrawals.iter().zip(&sums.last_reached);
    findings.extend(left_alive.map(|(withdrawal, last)| lived_on(withdrawal, *last)));
    findings.extend(timeline.info.targets.iter().filter_map(taken_for_a_gateway));
    findings.extend(of_the_measurement(known));
    findings.extend(timeline.info.looks.as_ref().map(looked_at));
    findings.extend(nothing_lost(known));
    findings.sort_by_key(|f| f.severity);
    findings
}

/// Returns the findings about an invalid measurement.
fn not_valid(known: Known<'_>) -> Vec<Finding> {
    let invalid = |Reason { kind, what, remedy: own }: &Reason| {
        let (why, remedy) = match kind {
            FindingKind::Corrupt => (
                "the record contradicts itself, so no figure can be relied on",
                "look for parts that were copied, changed or mixed with another run's, or repeat the run",
            ),
            _ => (
                "the figures of this run would describe the measurement, not the cluster",
                "repeat it with a lower rate or on a less busy machine",
            ),
        };
        let remedy = own.as_deref().unwrap_or(remedy);
        Finding { kind: Some(*kind), ..finding(Severity::Error, what.clone(), why, remedy) }
    };
    known.invalid.iter().map(invalid).collect()
}

/// Names the look, of several, by which the run is judged.
fn looked_at(looks: &Looks) -> Finding {
    finding(
        Severity::Info,
        format!(
            "the gate is judged at look {} of {}, with bounds at {} confidence",
            looks.at,
            looks.most(),
            percent(1.0 - looks.alpha())
        ),
        "the run went on while its gate was inconclusive: the looks share one error, as was fixed before the start",
        if looks.is_last() { "if it is inconclusive still: a new run with more terminations" } else { "" },
    )
}

/// Returns the findings about missing parts of the record.
fn not_whole(known: Known<'_>) -> impl Iterator<Item = Finding> {
    known.partial.iter().map(|Reason { kind, what, .. }| {
        let (severity, why) = match kind {
            FindingKind::Corrupt => {
                (Severity::Error, "it has changed since it was written, and is in no figure")
            }
            _ => (Severity::Warning, "the missing part is in no figure"),
        };
        let remedy = "read the counts as lower bounds, or repeat the run";
        Finding { kind: Some(*kind), ..finding(severity, what.clone(), why, remedy) }
    })
}

/// Returns the finding about requests that the load did not send, too few to make the run invalid.
fn not_sent(known: Known<'_>) -> Option<Finding> {
    let by_reason = &known.requests.not_sent_by_reason;
    let remedy = crate::count::not_sent::remedy(by_reason);
    let is_said = known.invalid.iter().any(|reason| reason.remedy.as_ref() == Some(&remedy));
    (!by_reason.is_empty() && !is_said).then(|| {
        finding(
            Severity::Warning,
            format!("{} not sent", was(by_reason.values().sum())),
            &reasons_in_words(by_reason),
            &remedy,
        )
    })
}

/// Returns `1 request was`, `2 requests were`, and so on.
fn was(requests: u64) -> String {
    format!("{} {}", counted(requests, "request"), either(requests, "was", "were"))
}

/// Returns the findings about gaps and effects of the measurement itself.
fn of_the_measurement(known: Known<'_>) -> Vec<Finding> {
    let Known { timeline, sums, .. } = known;
    let mut findings = Vec::new();
    for clock in &timeline.unsampled_clocks {
        findings.push(finding(
            Severity::Warning,
            format!("the clock of {clock} was never compared with the coordinator's"),
            "its stamps are used unchanged, so bounds that rest on them do not include its clock's uncertainty",
            "check that the clocks are synchronised",
        ));
    }
    let reuses = sums.reuses.count();
    if reuses > 0 {
        findings.push(finding(
            Severity::Warning,
            format!("{} connections came from a source port that had been used less than 120 s before", count(reuses)),
            "where connections are tracked, the entry of an unanswered connection can send the next one from its \
             port to the same dead pod (stale_flow)",
            "more source ports (net.ipv4.ip_local_port_range, load.sourcePorts) or a lower rate",
        ));
    }
    findings.extend(sums.reached.findings(timeline));
    findings.extend(timeline.tracked.iter().flat_map(|said| conntrack::findings(said, timeline)));
    for (message, times) in folded(&timeline.notes.warnings) {
        let times = if times > 1 { format!(" ({} times)", count(times)) } else { String::new() };
        findings.push(finding(Severity::Warning, message.to_owned() + &times, "recorded during the run", ""));
    }
    for ((container, message), pods) in &timeline.notes.not_modelled {
        let what = format!("container {container} of {}: {message}", counted(len(pods.len()), "pod"));
        findings.push(finding(Severity::Warning, what, "recorded during the run", ""));
    }
    if sums.reset_for_refused > 0 {
        findings.push(finding(
            Severity::Info,
            format!("{} reset that the app would have refused", was(sums.reset_for_refused)),
            "the recording proxy in the pod had already accepted the connection: the one thing that it changes",
            "treat reset_before_response and connect_refused as the same when you compare with a run without the \
             proxy",
        ));
    }
    findings
}

/// Returns the finding if no request was lost, or no pod ended.
fn nothing_lost(known: Known<'_>) -> Option<Finding> {
    let n = known.terminations.len() as u64;
    if n == 0 {
        let (why, remedy) = match known.timeline.restarts.is_empty() && known.timeline.withdrawals.is_empty()
        {
            true => (
                "the run shows only the steady state",
                "add a disruption to the scenario to measure a termination",
            ),
            false => ("the disruptions of this run end no pod, so there is no window", ""),
        };
        return Some(finding(Severity::Info, "no pod ended under load".to_owned(), why, remedy));
    }
    (known.requests.lost() + known.requests.app_errors_while_ending == 0).then(|| {
        let bound = crate::math::stats::share_upper(0, n, 0.95) * 100.0;
        finding(
            Severity::Info,
            format!("no request was dropped in {}", counted(n, "termination")),
            &format!("at 95 % confidence at most {bound:.0} % of such terminations drop any"),
            "measure more terminations for a tighter bound",
        )
    })
}

/// Returns each text once, in order of first appearance, with its number of occurrences.
fn folded(texts: &[String]) -> Vec<(&str, u64)> {
    let mut folded: Vec<(&str, u64)> = Vec::new();
    for text in texts {
        match folded.iter_mut().find(|(known, _)| known == text) {
            Some((_, times)) => *times += 1,
            None => folded.push((text, 1)),
        }
    }
    folded
}

/// Returns the findings about terminations that all met a consumer's own clock at about the same phase.
fn in_step(timeline: &Timeline) -> impl Iterator<Item = Finding> {
    let clocks = phase::clocks(timeline, timeline.ends.iter()).into_iter();
    clocks.filter_map(|clock| clock.in_step()).map(|what| {
        let why = "all windows of this consumer are one sample of up to that period, however many there are";
        let remedy = "end pods at random phases: set a jitter of at least the period";
        Finding { kind: Some(FindingKind::InPhase), ..finding(Severity::Warning, what, why, remedy) }
    })
}

/// Returns the finding about waits after terminations that ended while requests were still lost.
fn unsettled(waits: u64) -> Option<Finding> {
    let what = match waits {
        0 => return None,
        1 => "requests were still lost when the wait after a termination reached its limit".to_owned(),
        _ => format!(
            "requests were still lost when {} waits after terminations reached their limit",
            count(waits)
        ),
    };
    let why = "a consumer takes longer to notice the end of a pod: windows may be longer than measured";
    Some(finding(Severity::Warning, what, why, "wait longer: --settle-max"))
}

/// Returns the finding about a URL whose answers showed that requests are balanced there.
fn taken_for_a_gateway(target: &Target) -> Option<Finding> {
    let because = &target.balances_because;
    let is_seen = match because {
        BalancesBecause::GatewayStatus { .. }
        | BalancesBecause::GatewayHeader { .. }
        | BalancesBecause::PodsOfOneConnection { .. } => true,
        BalancesBecause::Stated | BalancesBecause::Service | BalancesBecause::Assumed => false,
    };
    is_seen.then(|| {
        finding(
            Severity::Info,
            format!("{} is treated as a gateway that balances requests: {because}", target.consumer),
            "a gateway keeps connections to pods, so its windows show in requests, not in connections",
            "set `balances: connections` or `balances: requests` for the target if you know it",
        )
    })
}

/// Returns the finding about imprecise times of deletions by others, if the run has no beats.
fn deletions_of_others(timeline: &Timeline) -> Option<Finding> {
    let ends = timeline.ends.iter().filter(|end| end.t0.basis == T0Basis::Timestamp);
    let widths: Vec<f64> = ends.map(|end| end.t0.latest.seconds_since(end.t0.earliest)).collect();
    let widest = widths.iter().copied().reduce(f64::max)?;
    let (why, remedy) = match &timeline.beats.state {
        BeatsState::Absent => (
            "a deletionTimestamp has whole seconds, and this run had no beats (its own writes, whose versions date \
             deletions by others)"
                .to_owned(),
            "allow the run to create and patch its own ConfigMap, and do not set --no-beats",
        ),
        BeatsState::Dropped { why } => (
            format!("a deletionTimestamp has whole seconds, and the run's beats were dropped: {why}"),
            "let the run delete the pods itself (deletePod, evict)",
        ),
        BeatsState::Usable => (
            "a deletionTimestamp has whole seconds, and no beat lies in between".to_owned(),
            "see the warnings for what delayed the beats",
        ),
    };
    let pods = match widths.len() {
        1 => "the deletion of 1 pod by somebody else is".to_owned(),
        n => format!("the deletions of {} by others are", counted(len(n), "pod")),
    };
    let what =
        format!("{pods} known only to within {widest:.2} s; upper bounds of windows are wider by that much");
    Some(finding(Severity::Info, what, &why, remedy))
}

/// Returns the findings about actions that were asked for and refused, one for each reason.
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
            _ => format!(", {} times", count(len(pods.len()))),
        };
        let remedy = match status {
            Some(429) => {
                "allow more in the PodDisruptionBudget, add replicas, or lengthen the load so that it can wait"
            }
            Some(401 | 403) => "ask for the right (kubectl auth can-i --list shows what you have)",
            Some(404 | 409) => "none: the object was gone or had changed already",
            Some(422 | 400) => "correct the scenario",
            Some(_) => "see what the API server says",
            None => {
                "see the reason: add replicas, lengthen the load, or let actions begin further apart; allowOutage: true \
                 lifts the limits on what may end at once"
            }
        };
        let how = match status {
            Some(status) => format!("refused ({status})"),
            None => "not done".to_owned(),
        };
        let what = format!("{action}{of} was {how}");
        Finding { kind: Some(FindingKind::NotDone), ..finding(Severity::Warning, what, why, remedy) }
    };
    by_reason.into_iter().map(refusal).collect()
}

/// Returns the finding about a program whose changes had not settled when the run stopped waiting, such as a stuck
/// rollout.
fn unfinished(command: &Command) -> Option<Finding> {
    let missing = command.unsettled.as_ref()?;
    let what = format!("the changes of {} had not settled: {missing}", command.words.join(" "));
    let why = "the rollout was measured in part: what is lost later is not in this run";
    let remedy = "see why new pods do not become ready (kubectl describe pod)";
    Some(Finding { kind: Some(FindingKind::NotDone), ..finding(Severity::Warning, what, why, remedy) })
}

/// Returns the finding about a container that ended in a pod that stays.
fn restarted(restart: &Restart) -> Finding {
    let Restart { pod, container, exit_code, is_crash, from, to } = restart;
    let code = exit_code.map(|code| format!(" (exit code {code})")).unwrap_or_default();
    let back = match to {
        Some(to) => format!("was ready again {:.1} s later", to.seconds_since(*from)),
        None => "was not ready again while it was watched".to_owned(),
    };
    let how = if *is_crash { "was killed by this run" } else { "ended" };
    let what = format!("container {container} of pod {pod} {how}{code} and {back}");
    let why = "the pod stays, so this is not a termination: its lost requests are in no window, no preStop hook \
               runs, and its endpoint stays until the kubelet notices";
    let remedy =
        if *is_crash { RESTART_REMEDY } else { "see why it ended; a readinessProbe shortens the outage" };
    let kind = (!is_crash).then_some(FindingKind::Restarted);
    Finding { kind, ..finding(Severity::Warning, what, why, remedy) }
}

/// Returns the findings about workloads of measured pods that others changed, with their first change.
fn changed(timeline: &Timeline) -> Vec<Finding> {
    let mut of = BTreeMap::<&str, Vec<&ChangeByOthers>>::new();
    for change in &timeline.changes_by_others {
        of.entry(&change.workload).or_default().push(change);
    }
    let measured = timeline.ends.iter().filter_map(|end| end.workload.as_ref());
    let measured: BTreeSet<&str> = measured.map(|workload| &*workload.name).collect();
    of.retain(|workload, _| measured.contains(workload));
    let finding_of = |(workload, changes): (&str, Vec<&ChangeByOthers>)| {
        let more = match changes.len() {
            1 => String::new(),
            n => format!(", and {} later", counted(len(n - 1), "more time")),
        };
        let (first_s, what) = (timeline.seconds(changes[0].at), &changes[0].what);
        finding(
            Severity::Warning,
            format!("others changed {workload} {first_s:.1} s into the load ({what}){more}"),
            "no action of this run did that: pods ended and started for it, too, so the losses and windows since are \
             not those of the scenario alone",
            "see who did (an autoscaler, a pipeline, GitOps, a colleague: kubectl get --show-managed-fields -o yaml), \
             keep them away, and measure again",
        )
    };
    of.into_iter().map(finding_of).collect()
}

/// Returns the finding about a workload that others deleted.
fn deleted(at_s: f64, workload: &str) -> Finding {
    finding(
        Severity::Error,
        format!("{workload} was deleted {at_s:.1} s into the load"),
        "its pods ended with it, which is no rollout, and nothing replaces them: what was lost since shows no window",
        "see who deleted it, or its namespace, and measure again",
    )
}

/// Returns the finding about restarts of nodes' agents by the run.
fn agents_restarted(restarts: usize) -> Option<Finding> {
    let what = match restarts {
        0 => return None,
        1 => "the agent of a node was restarted by this run".to_owned(),
        n => format!("agents of nodes were restarted {n} times by this run"),
    };
    let why = "containers keep running without the agent, so this is not a termination: probes and statuses pause, \
               and a terminating pod gets its whole grace period again";
    Some(finding(Severity::Info, what, why, ""))
}

/// Returns the finding about a pod that left its Services while it kept running, and when it was last sent a new
/// connection.
fn lived_on(withdrawal: &Withdrawal, last: Option<Stamp>) -> Finding {
    let Withdrawal { pod, answered, endpoint_removed, .. } = withdrawal;
    let after = |at: Option<Stamp>| match at {
        Some(at) => format!("{:.2} s after the request", at.seconds_since(*answered).max(0.0)),
        None => "at no time that was seen".to_owned(),
    };
    let what = format!(
        "pod {pod} left its Services and kept running: its endpoint was removed {}, its last new connection came {}",
        after(*endpoint_removed),
        after(last)
    );
    let why = "such a pod still answers, so this is not a termination and has no window";
    finding(Severity::Info, what, why, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_warnings_share_counted_finding() {
        let said = ["no rows", "late", "no rows", "no rows"].map(str::to_owned);
        assert_eq!(folded(&said), [("no rows", 3), ("late", 1)]);
    }
}
