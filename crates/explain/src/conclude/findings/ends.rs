//! Findings about how pods ended: hooks that failed, pods that SIGKILL ended, Events that could not be seen.

use std::collections::BTreeMap;

use super::setup::Setup;
use super::{Finding, Known, Severity, causes, counted, either, len};
use crate::model::finding;
use crate::timeline::{FailedHook, PodEnd};

pub(super) fn findings(known: Known<'_>, setup: &Setup<'_>) -> Vec<Finding> {
    let mut findings = failed_hooks(known, setup);
    findings.extend(ended_early(known, setup));
    findings.extend(cut_off(known, setup));
    findings.extend(accepted_until_killed(known, setup));
    findings.extend(served_until_killed(known, setup));
    findings.extend(killed_early(known));
    findings.extend(killed(known, setup));
    findings.extend(unseen_events(known));
    findings
}

/// Returns a finding for each container of a workload whose hooks failed, by their Events.
fn failed_hooks(known: Known<'_>, setup: &Setup<'_>) -> Vec<Finding> {
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
        let program = program.map(|program| format!("; it runs {program}")).unwrap_or_default();
        let of = container.map(|name| format!(" of container {name}")).unwrap_or_default();
        // Of the only workload it goes without saying.
        let named = of_workload.as_ref().filter(|_| of_it().count() < ends.len());
        let named = named.map(|name| format!(" of {name}")).unwrap_or_default();
        finding(
            Severity::Error,
            format!(
                "the preStop hook{of}{named} failed ({} of {}, event FailedPreStopHook: {}{program})",
                failed.len(),
                counted(len(pods), "pod"),
                failed[0].message
            ),
            "the kubelet sends SIGTERM as soon as a hook has failed: a program that the image lacks delays nothing, and \
             one that ends with an error delays SIGTERM only until then",
            "use lifecycle.preStop.sleep, which needs no program in the image",
        )
    };
    by_container.into_iter().map(each).collect()
}

/// Returns the finding about pods that ended before the sleep of their hook could be over, without an Event that gives
/// the reason.
fn ended_early(known: Known<'_>, setup: &Setup<'_>) -> Option<Finding> {
    let first = known.timeline.ends.get(*setup.early.first()?)?;
    Some(finding(
        Severity::Error,
        format!(
            "{} of {} ended before the {} s for which their preStop hook sleeps could be over",
            setup.early.len(),
            counted(len(known.timeline.ends.len()), "pod"),
            first.hook_sleep_s.unwrap_or(0)
        ),
        "the hook failed, or the app ended by itself; no Event of the cluster says which",
        "use lifecycle.preStop.sleep, which needs no program in the image, and see the container's exit code",
    ))
}

/// Returns the finding about hooks that were still running when the grace period was over.
fn cut_off(known: Known<'_>, setup: &Setup<'_>) -> Option<Finding> {
    let first = known.timeline.ends.get(*setup.cut_off.first()?)?;
    Some(finding(
        Severity::Warning,
        format!(
            "the preStop hook was still running when the grace period of {} s was over ({} of {})",
            first.grace_s,
            setup.cut_off.len(),
            counted(len(known.timeline.ends.len()), "pod")
        ),
        "the grace period includes the hook: the app got SIGTERM at its end, and SIGKILL 2 s later",
        "set terminationGracePeriodSeconds above what the hook and the longest request take together",
    ))
}

/// Returns the finding about pods that lived on kept connections until SIGKILL.
fn served_until_killed(known: Known<'_>, setup: &Setup<'_>) -> Option<Finding> {
    let pods = len(setup.kept_on.len());
    let grace_s = known.timeline.ends.get(*setup.kept_on.first()?)?.grace_s;
    let answered: u64 = setup.kept_on.iter().map(|e| known.sums.kept[*e].n).sum();
    let cost_min = pods as f64 * grace_s as f64 / 60.0;
    Some(finding(
        Severity::Error,
        format!(
            "{} served on kept connections until the grace period of {grace_s} s was over, and then SIGKILL ended {} \
             ({} answered so after SIGTERM)",
            counted(pods, "pod"),
            either(pods, "it", "them"),
            counted(answered, "request")
        ),
        &format!(
            "the app waits until its clients close their connections, and busy ones do not: {} that ended took {} x \
             {grace_s} s = {cost_min:.1} min of pods that a node drain, a StatefulSet or a quota waits for",
            counted(pods, "pod"),
            pods
        ),
        &format!(
            "{} after SIGTERM, so that clients move to other pods; a longer grace period makes it worse",
            causes::announces_close(&known.timeline.info)
        ),
    ))
}

/// Returns the finding about pods that accepted new connections until SIGKILL.
fn accepted_until_killed(known: Known<'_>, setup: &Setup<'_>) -> Option<Finding> {
    let pods = len(setup.accepting.len());
    let grace_s = known.timeline.ends.get(*setup.accepting.first()?)?.grace_s;
    Some(finding(
        Severity::Error,
        format!(
            "{} accepted new connections until the grace period of {grace_s} s was over, and then SIGKILL ended {} (exit \
             code 137; the readiness probe stayed successful)",
            counted(pods, "pod"),
            either(pods, "it", "them")
        ),
        "the first process has no handler for SIGTERM (a shell that does not exec, an app without a handler), or ignores \
         it: a container's first process does not get a signal for which it has none",
        "let the app be the first process (exec APP at the end of the shell script, a command without a shell) and handle \
         SIGTERM; or put an init before it that passes signals on (tini, dumb-init)",
    ))
}

/// Returns the finding about pods that SIGKILL ended before their grace period was over.
fn killed_early(known: Known<'_>) -> Option<Finding> {
    let is_early = |end: &&PodEnd| end.exit_code == Some(137) && !end.was_killed_at_its_grace();
    let early: Vec<&PodEnd> = known.timeline.ends.iter().filter(is_early).collect();
    let is_memory = |end: &&PodEnd| end.exit_reason.as_deref() == Some("OOMKilled");
    let (why, remedy) = match early.iter().any(is_memory) {
        true => (
            "a container used more memory than its limit (OOMKilled)",
            "a higher memory limit, or an app that needs less while it ends",
        ),
        false => (
            "something other than the end of the grace period killed it: a lack of memory, a node that shut down, or \
             a process in the container",
            "see the container's last state and the node's kernel log",
        ),
    };
    (!early.is_empty()).then(|| {
        let of = counted(len(early.len()), "pod");
        let (was, its) = (either(len(early.len()), "was", "were"), either(len(early.len()), "its", "their"));
        let what = format!("{of} {was} ended by SIGKILL (exit code 137) before {its} grace period was over");
        finding(Severity::Warning, what, why, remedy)
    })
}

/// Returns the finding about the other pods that SIGKILL ended.
fn killed(known: Known<'_>, setup: &Setup<'_>) -> Option<Finding> {
    let named = [&setup.accepting, &setup.kept_on, &setup.cut_off];
    let is_other = |e: &usize| !named.iter().any(|named| named.contains(e));
    let killed = known.timeline.ends.iter().enumerate().filter(|(_, end)| end.was_killed_at_its_grace());
    let killed: Vec<usize> = killed.map(|(e, _)| e).filter(is_other).collect();
    let what = match killed[..] {
        [] => return None,
        [e] => format!("pod {} was ended by SIGKILL (exit code 137)", known.terminations[e].pod),
        _ => format!("{} were ended by SIGKILL (exit code 137)", counted(len(killed.len()), "pod")),
    };
    let longest_s = known.latency_ms.service.max / 1e3;
    let grace_s = killed.iter().map(|e| known.timeline.ends[*e].grace_s).min()? as f64;
    let sleep_s = killed.iter().map(|e| known.timeline.ends[*e].hook_sleep_s).collect::<Option<Vec<_>>>();
    let sleep_s = sleep_s.map(|all| all.into_iter().max().unwrap_or(0) as f64);
    let (why, remedy) = match sleep_s {
        Some(sleep_s) if sleep_s + longest_s <= grace_s => (
            format!(
                "the app had not ended when its grace period of {grace_s:.0} s was over, though preStop ({sleep_s:.0} s) \
                 and the longest answer ({longest_s:.1} s) fit into it: it does not end on SIGTERM, or it waits for \
                 connections that stay open"
            ),
            "let the app handle SIGTERM (a first process without a handler ignores it): finish what is in flight, \
             close connections, exit"
                .to_owned(),
        ),
        Some(sleep_s) => (
            format!("the app had not finished when its grace period of {grace_s:.0} s was over"),
            format!(
                "set terminationGracePeriodSeconds above preStop ({sleep_s:.0} s) plus the longest request (the longest \
                 answered here took {longest_s:.1} s)"
            ),
        ),
        None => (
            format!("the app had not finished when its grace period of {grace_s:.0} s was over"),
            format!(
                "set terminationGracePeriodSeconds above what the preStop hook takes plus the longest request (the \
                 longest answered here took {longest_s:.1} s), if that is more than {grace_s:.0} s; otherwise see why \
                 the app does not end on SIGTERM"
            ),
        ),
    };
    Some(finding(Severity::Warning, what, &why, &remedy))
}

/// Returns the finding about the cost of a run that may not watch Events.
fn unseen_events(known: Known<'_>) -> Option<Finding> {
    let why = known.timeline.notes.not_watched.get("events")?;
    let has_hooks = known.timeline.ends.iter().any(|end| end.pre_stop_sleep_s != Some(0));
    has_hooks.then(|| {
        finding(
            Severity::Info,
            "Events could not be watched, so it is not known whether preStop hooks failed".to_owned(),
            why,
            "allow the run to list and watch events in the namespace",
        )
    })
}
