//! Findings about how pods terminated: failed hooks, pods terminated by SIGKILL, and Events that could not be seen.

use std::collections::BTreeMap;

use super::setup::Setup;
use super::{Finding, FindingsInput, cause_findings, len};
use crate::model::account::{EndingFinding, HookFailure};
use crate::timeline::{FailedHook, PodEnd};

pub(super) fn findings(known: FindingsInput<'_>, setup: &Setup<'_>) -> Vec<Finding> {
    let mut findings = failed_hooks(known, setup);
    findings.extend(ended_early(known, setup));
    findings.extend(cut_off(known, setup));
    findings.extend(accepted_until_killed(known, setup));
    findings.extend(served_until_killed(known, setup));
    findings.extend(killed_early(known));
    findings.extend(killed(known, setup));
    findings.extend(unseen_events(known));
    findings.into_iter().map(Finding::Ending).collect()
}

/// Returns one finding for each container of a workload with failed hooks, from their Events.
fn failed_hooks(known: FindingsInput<'_>, setup: &Setup<'_>) -> Vec<EndingFinding> {
    let ends = &known.timeline.ends;
    let workload = |end: &PodEnd| end.workload.as_ref().map(|workload| workload.name.clone());
    let mut by_container: BTreeMap<(Option<String>, Option<&str>), Vec<&FailedHook>> = BTreeMap::new();
    for (end, failed) in ends.iter().zip(&setup.failed) {
        let Some(failed) = failed else { continue };
        by_container.entry((workload(end), failed.container.as_deref())).or_default().push(failed);
    }
    let each = |((of_workload, container), failed): ((Option<String>, Option<&str>), Vec<&FailedHook>)| {
        let of_it = || ends.iter().filter(|end| workload(end) == of_workload);
        let pods = of_it().filter(|end| end.pre_stop_sleep_s != Some(0)).count();
        let program = of_it().find_map(|end| end.hook_program.as_deref());
        // Do not name the workload if there is only one.
        let workload = of_workload.clone().filter(|_| of_it().count() < ends.len());
        EndingFinding::HookFailed(HookFailure {
            container: container.map(str::to_owned),
            failed: failed.len(),
            pods: len(pods),
            message: failed[0].message.clone(),
            program: program.map(str::to_owned),
            workload,
        })
    };
    by_container.into_iter().map(each).collect()
}

/// Returns the finding about pods that exited before their hook's sleep could have finished, without an Event that
/// gives the reason.
fn ended_early(known: FindingsInput<'_>, setup: &Setup<'_>) -> Option<EndingFinding> {
    let ends = &known.timeline.ends;
    let sleep_s = ends.get(*setup.early.first()?)?.hook_sleep_s.unwrap_or(0);
    Some(EndingFinding::Early { ended: setup.early.len(), pods: len(ends.len()), sleep_s })
}

/// Returns the finding about hooks that were still running when the grace period expired.
fn cut_off(known: FindingsInput<'_>, setup: &Setup<'_>) -> Option<EndingFinding> {
    let ends = &known.timeline.ends;
    let grace_s = ends.get(*setup.cut_off.first()?)?.grace_s;
    Some(EndingFinding::HookCutOff { cut_off: setup.cut_off.len(), pods: len(ends.len()), grace_s })
}

/// Returns the finding about pods that kept serving on kept connections until SIGKILL.
fn served_until_killed(known: FindingsInput<'_>, setup: &Setup<'_>) -> Option<EndingFinding> {
    let grace_s = known.timeline.ends.get(*setup.kept_on.first()?)?.grace_s;
    Some(EndingFinding::ServedUntilKilled {
        pods: len(setup.kept_on.len()),
        grace_s,
        answered: setup.kept_on.iter().map(|e| known.sums.kept[*e].n).sum(),
        closing: cause_findings::close_notice(&known.timeline.info),
    })
}

/// Returns the finding about pods that accepted new connections until SIGKILL.
fn accepted_until_killed(known: FindingsInput<'_>, setup: &Setup<'_>) -> Option<EndingFinding> {
    let grace_s = known.timeline.ends.get(*setup.accepting.first()?)?.grace_s;
    Some(EndingFinding::AcceptedUntilKilled { pods: len(setup.accepting.len()), grace_s })
}

/// Returns the finding about pods terminated by SIGKILL before their grace period expired.
fn killed_early(known: FindingsInput<'_>) -> Option<EndingFinding> {
    let early: Vec<&PodEnd> = known.timeline.ends.iter().filter(|end| end.was_killed_early()).collect();
    let is_memory = |end: &&PodEnd| end.exit_reason.as_deref() == Some("OOMKilled");
    let is_out_of_memory = early.iter().any(is_memory);
    (!early.is_empty()).then(|| EndingFinding::KilledEarly { pods: len(early.len()), is_out_of_memory })
}

/// Returns the finding about the other pods terminated by SIGKILL.
fn killed(known: FindingsInput<'_>, setup: &Setup<'_>) -> Option<EndingFinding> {
    let named = [&setup.accepting, &setup.kept_on, &setup.cut_off];
    let is_other = |e: &usize| !named.iter().any(|named| named.contains(e));
    let killed = known.timeline.ends.iter().enumerate().filter(|(_, end)| end.was_killed_at_its_grace());
    let killed: Vec<usize> = killed.map(|(e, _)| e).filter(is_other).collect();
    let grace_s = killed.iter().map(|e| known.timeline.ends[*e].grace_s).min()? as f64;
    let sleep_s = killed.iter().map(|e| known.timeline.ends[*e].hook_sleep_s).collect::<Option<Vec<_>>>();
    let sleep_s = sleep_s.map(|all| all.into_iter().max().unwrap_or(0) as f64);
    let pods = killed.iter().map(|e| known.terminations[*e].pod.clone()).collect();
    let longest_answer_s = known.latency_ms.service.max / 1e3;
    Some(EndingFinding::Killed { pods, grace_s, sleep_s, longest_answer_s })
}

/// Returns the finding about the consequences of not being permitted to watch Events.
fn unseen_events(known: FindingsInput<'_>) -> Option<EndingFinding> {
    let why = known.timeline.notes.not_watched.get("events")?;
    let has_hooks = known.timeline.ends.iter().any(|end| end.pre_stop_sleep_s != Some(0));
    has_hooks.then(|| EndingFinding::EventsUnseen { why: why.clone() })
}
