//! Findings: facts that a reader should know, with their figures. `report` puts them into words.

mod cause_findings;
mod conntrack_findings;
mod ending_errors;
mod ending_findings;
mod setup;
mod unbounded_findings;

use std::collections::{BTreeMap, BTreeSet};

use crate::attribute::judged::JudgedRequest;
use crate::conclude::phase;
use crate::count::sums::Sums;
use crate::model::account::{Finding, Incident, Incomplete, Invalid, Measurement};
use crate::model::figure_text::len;
use crate::model::{
    Latencies, LossGroup, Recommendation, RequestCounts, StreamResult, T0Basis, Termination, Unbounded,
};
use crate::timeline::{ChangeByOthers, ContainerRestart, RefusedAction, RunCommand, Timeline, Withdrawal};
use rolldrop_record::run_info::{BalancesBecause, Target};
use rolldrop_record::{Looks, Stamp};
use setup::Setup;

/// Input for the findings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FindingsInput<'a> {
    pub timeline: &'a Timeline,
    pub sums: &'a Sums<'a>,
    /// Reasons why the run is invalid.
    pub invalid: &'a [Invalid],
    /// Reasons why its record is incomplete.
    pub incomplete: &'a [Incomplete],
    /// Reason why a window has no upper bound, by termination and window.
    pub unbounded: &'a [Vec<Option<Unbounded>>],
    pub requests: &'a RequestCounts,
    pub judged: &'a [JudgedRequest<'a>],
    pub latency_ms: &'a Latencies,
    pub terminations: &'a [Termination],
    pub groups: &'a [LossGroup],
    pub recommendation: &'a [Recommendation],
    pub streams: Option<&'a StreamResult>,
}

/// Returns all findings, most severe first.
pub(crate) fn findings(known: FindingsInput<'_>) -> Vec<Finding> {
    let FindingsInput { timeline, sums, .. } = known;
    let setup = Setup::of(&known);
    let mut findings: Vec<Finding> = known.invalid.iter().cloned().map(Finding::Invalid).collect();
    findings.extend(cause_findings::findings(known, &setup));
    findings.extend(ending_errors::of(known));
    findings.extend(ending_findings::findings(known, &setup));
    findings.extend(known.incomplete.iter().cloned().map(Finding::Incomplete));
    findings.extend(unbounded_findings::findings(known));
    findings.extend(unbounded_findings::rights(known));
    let clocks = phase::clocks(timeline, timeline.ends.iter()).into_iter();
    findings.extend(clocks.filter(|met| !met.is_at_random).map(|met| Finding::InPhase(met.clock)));
    findings.extend(not_sent(known));
    findings.extend(deletions_of_others(timeline));
    findings.extend(incidents(timeline).into_iter().map(Finding::Incident));
    let waits = len(timeline.notes.unsettled.len());
    findings.extend((waits > 0).then_some(Finding::Unsettled { waits }));
    let left_alive = timeline.withdrawals.iter().zip(&sums.last_reached);
    let lived_on = left_alive.map(|(withdrawal, last)| lived_on(withdrawal, *last));
    findings.extend(lived_on.map(Finding::Incident));
    findings.extend(timeline.info.targets.iter().filter_map(taken_for_a_gateway));
    findings.extend(of_the_measurement(known).into_iter().map(Finding::Measurement));
    findings.extend(timeline.info.looks.as_ref().map(looked_at));
    findings.extend(known.streams.and_then(|streams| streams.uneven.clone()).map(Finding::UnevenStreams));
    findings.extend(nothing_lost(known));
    findings.sort_by_key(Finding::severity);
    findings
}

/// Returns the finding that names the look at which the run is judged.
fn looked_at(looks: &Looks) -> Finding {
    Finding::LookedAt {
        look: looks.at,
        most: looks.most(),
        confidence: 1.0 - looks.alpha(),
        is_last: looks.is_last(),
    }
}

/// Returns the finding about unsent requests, if they are too few to make the run invalid.
fn not_sent(known: FindingsInput<'_>) -> Option<Finding> {
    let by_reason = &known.requests.not_sent_by_reason;
    let is_said = known.invalid.iter().any(|reason| matches!(reason, Invalid::NotAllSent { .. }));
    (!by_reason.is_empty() && !is_said).then(|| Finding::NotSent(by_reason.clone()))
}

/// Returns the findings about limitations and side effects of the measurement itself.
fn of_the_measurement(known: FindingsInput<'_>) -> Vec<Measurement> {
    let FindingsInput { timeline, sums, .. } = known;
    let mut findings: Vec<Measurement> =
        timeline.unsampled_clocks.iter().cloned().map(Measurement::ClockUncompared).collect();
    findings.extend(Some(sums.reuses.count()).filter(|n| *n > 0).map(Measurement::PortsReused));
    findings.extend(sums.reached.findings(&timeline.info.load));
    findings.extend(timeline.tracked.iter().flat_map(|said| conntrack_findings::findings(said, timeline)));
    let warnings = folded(&timeline.notes.warnings).into_iter();
    findings.extend(
        warnings.map(|(message, times)| Measurement::Recorded { message: message.to_owned(), times }),
    );
    let not_modelled = timeline.notes.not_modelled.iter();
    findings.extend(not_modelled.map(|((container, message), pods)| Measurement::NotModelled {
        container: container.clone(),
        message: message.clone(),
        pods: len(pods.len()),
    }));
    findings.extend(Some(sums.reset_for_refused).filter(|n| *n > 0).map(Measurement::ResetForRefused));
    findings
}

/// Returns the finding if no request was lost, or no pod was terminated.
fn nothing_lost(known: FindingsInput<'_>) -> Option<Finding> {
    let terminations = len(known.terminations.len());
    if terminations == 0 {
        let Timeline { restarts, withdrawals, .. } = known.timeline;
        let are_others_disrupted = !(restarts.is_empty() && withdrawals.is_empty());
        return Some(Finding::NoTermination { are_others_disrupted });
    }
    (known.requests.lost() + known.requests.app_errors_while_ending == 0).then(|| {
        let independent = len(Recommendation::independent_ends(known.recommendation)).max(1);
        let confidence = 1.0 - known.timeline.alpha();
        let at_most = crate::math::stats::share_upper(0, independent, confidence);
        Finding::NothingLost { terminations, independent, confidence, at_most }
    })
}

/// Counts the occurrences of each text, in order of first appearance.
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

/// Returns the finding about a URL whose responses showed that it balances requests.
fn taken_for_a_gateway(target: &Target) -> Option<Finding> {
    let because = &target.balances_because;
    let is_seen = match because {
        BalancesBecause::GatewayStatus { .. }
        | BalancesBecause::GatewayHeader { .. }
        | BalancesBecause::PodsOfOneConnection { .. } => true,
        BalancesBecause::Stated | BalancesBecause::Service | BalancesBecause::Assumed => false,
    };
    is_seen.then(|| Finding::TakenForGateway { consumer: target.consumer.clone(), because: because.clone() })
}

/// Returns the finding about imprecise times of deletions by others, if the run has no beats.
fn deletions_of_others(timeline: &Timeline) -> Option<Finding> {
    let ends = timeline.ends.iter().filter(|end| end.t0.basis == T0Basis::Timestamp);
    let widths: Vec<f64> = ends.map(|end| end.t0.latest.seconds_since(end.t0.earliest)).collect();
    let widest_s = widths.iter().copied().reduce(f64::max)?;
    let (deletions, beats) = (len(widths.len()), timeline.beats.state.clone());
    Some(Finding::ImpreciseDeletions { deletions, widest_s, beats })
}

/// Returns the incidents other than terminations.
fn incidents(timeline: &Timeline) -> Vec<Incident> {
    let mut incidents = refusals(timeline);
    incidents.extend(timeline.commands.iter().filter_map(unfinished));
    incidents.extend(timeline.restarts.iter().filter(|r| r.from >= timeline.origin).map(restarted));
    incidents.extend(changed(timeline));
    incidents.extend(
        timeline.deleted_workloads().map(|(at, workload)| Incident::Deleted {
            workload: workload.clone(),
            at_s: timeline.seconds(*at),
        }),
    );
    incidents.extend(Some(timeline.agent_restarts).filter(|n| *n > 0).map(Incident::AgentsRestarted));
    incidents
}

/// Returns the findings about refused actions, one per reason.
fn refusals(timeline: &Timeline) -> Vec<Incident> {
    let mut by_reason: BTreeMap<(&str, Option<u16>, &str), Vec<&RefusedAction>> = BTreeMap::new();
    for refused in &timeline.refused {
        let key = (refused.action.as_str(), refused.status, refused.why.as_str());
        by_reason.entry(key).or_default().push(refused);
    }
    let refusal = |refused: Vec<&RefusedAction>| {
        let RefusedAction { action, pod, status, why } = refused[0].clone();
        let (times, pod) = (len(refused.len()), pod.filter(|_| refused.len() == 1));
        Incident::Refused { action, status, why, pod, times }
    };
    by_reason.into_values().map(refusal).collect()
}

/// Returns the finding about a program whose changes, such as a rollout, had not settled when the run stopped waiting.
fn unfinished(command: &RunCommand) -> Option<Incident> {
    let missing = command.unsettled.clone()?;
    Some(Incident::Unfinished { command: command.words.join(" "), missing })
}

/// Returns the finding about a container that exited in a pod that was not terminating.
fn restarted(restart: &ContainerRestart) -> Incident {
    let ContainerRestart { pod, container, exit_code, is_crash, from, to } = restart;
    Incident::Restarted {
        pod: pod.clone(),
        container: container.clone(),
        exit_code: *exit_code,
        is_crash: *is_crash,
        ready_after_s: to.map(|to| to.seconds_since(*from)),
    }
}

/// Returns the findings about changes that others made to the workloads of measured pods, with the first change to
/// each.
fn changed(timeline: &Timeline) -> Vec<Incident> {
    let mut of = BTreeMap::<&str, Vec<&ChangeByOthers>>::new();
    for change in &timeline.changes_by_others {
        of.entry(&change.workload).or_default().push(change);
    }
    let measured = timeline.ends.iter().filter_map(|end| end.workload.as_ref());
    let measured: BTreeSet<&str> = measured.map(|workload| &*workload.name).collect();
    of.retain(|workload, _| measured.contains(workload));
    let finding_of = |(workload, changes): (&str, Vec<&ChangeByOthers>)| Incident::Changed {
        workload: workload.to_owned(),
        at_s: timeline.seconds(changes[0].at),
        what: changes[0].what.clone(),
        later: len(changes.len() - 1),
    };
    of.into_iter().map(finding_of).collect()
}

/// Returns the finding about a pod that left its Services while it kept running, with the time of its last new
/// connection.
fn lived_on(withdrawal: &Withdrawal, last: Option<Stamp>) -> Incident {
    let Withdrawal { pod, answered, endpoint_removed, .. } = withdrawal;
    let after_s = |at: Stamp| at.seconds_since(*answered).max(0.0);
    Incident::LivedOn {
        pod: pod.clone(),
        endpoint_removed_after_s: endpoint_removed.map(after_s),
        last_connection_after_s: last.map(after_s),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_warnings_are_counted() {
        let said = ["no rows", "late", "no rows", "no rows"].map(str::to_owned);
        assert_eq!(folded(&said), [("no rows", 3), ("late", 1)]);
    }
}
