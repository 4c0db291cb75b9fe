//! Puts the ways in which pods ended into words: failed hooks, pods killed by SIGKILL, and Events that could not be
//! read.

use super::super::format::{count, counted, either, len};
use super::{Words, cause_words, words};
use rolldrop_explain::model::account::{CloseNotice, EndingFinding, HookFailure};

/// Describes 5xx responses from terminating pods.
pub(super) fn errors(answers: u64, requests: u64, are_all_named: bool) -> Words {
    let who = if are_all_named { "by terminating pods" } else { "while pods were terminating" };
    words(
        format!(
            "{} of {} requests {} answered with 5xx {who}: the app closed its dependencies before its listener",
            count(answers),
            count(requests),
            either(answers, "was", "were")
        ),
        "the app itself sent these responses, so they do not count as dropped; while no pod ended, there were fewer or \
         none",
        "on SIGTERM, first stop accepting connections, then answer requests in flight (Connection: close), and only \
         then close databases, caches and queues",
    )
}

/// Describes how pods ended.
pub(super) fn ending(ending: &EndingFinding) -> Words {
    match ending {
        EndingFinding::HookFailed(failure) => hook_failed(failure),
        EndingFinding::Early { ended, pods, sleep_s } => words(
            format!(
                "{ended} of {} exited before the preStop sleep of {sleep_s} s could have finished",
                counted(*pods, "pod")
            ),
            "the hook failed, or the app exited by itself; no Event in the cluster says which",
            "use lifecycle.preStop.sleep, which needs no program in the image, and check the container's exit code",
        ),
        EndingFinding::HookCutOff { cut_off, pods, grace_s } => words(
            format!(
                "the preStop hook was still running when the grace period of {grace_s} s expired ({cut_off} of {})",
                counted(*pods, "pod")
            ),
            "the hook's time counts against the grace period, so the app got SIGTERM only when that expired, and \
             SIGKILL 2 s later",
            "set terminationGracePeriodSeconds above the time that the hook and the longest request take together",
        ),
        EndingFinding::AcceptedUntilKilled { pods, grace_s } => words(
            format!(
                "{} kept accepting new connections until the grace period of {grace_s} s expired and SIGKILL ended {} \
                 (exit code 137; the readiness probe kept passing)",
                counted(*pods, "pod"),
                either(*pods, "it", "them")
            ),
            "the container's first process has no handler for SIGTERM (a shell that does not exec, an app without a \
             handler) or ignores it; the kernel delivers no signal to PID 1 that it does not handle",
            "make the app PID 1 (exec APP at the end of the shell script, or a command without a shell) and handle \
             SIGTERM; or run it under an init that forwards signals (tini, dumb-init)",
        ),
        EndingFinding::ServedUntilKilled { pods, grace_s, answered, closing } => {
            served_until_killed(*pods, *grace_s, *answered, *closing)
        }
        EndingFinding::KilledEarly { pods, is_out_of_memory } => killed_early(*pods, *is_out_of_memory),
        EndingFinding::Killed { pods, grace_s, sleep_s, longest_answer_s } => {
            killed(pods, *grace_s, *sleep_s, *longest_answer_s)
        }
        EndingFinding::EventsUnseen { why } => words(
            "Events could not be watched, so failures of preStop hooks may have gone unnoticed",
            why,
            "allow the run to list and watch events in the namespace",
        ),
    }
}

fn hook_failed(failure: &HookFailure) -> Words {
    let HookFailure { container, workload, failed, pods, message, program } = failure;
    let program = program.as_ref().map(|program| format!("; it runs {program}")).unwrap_or_default();
    let of = container.as_ref().map(|name| format!(" of container {name}")).unwrap_or_default();
    let named = workload.as_ref().map(|name| format!(" of {name}")).unwrap_or_default();
    words(
        format!(
            "the preStop hook{of}{named} failed ({failed} of {}, event FailedPreStopHook: {message}{program})",
            counted(*pods, "pod"),
        ),
        "the kubelet sends SIGTERM as soon as a hook fails: a program that is missing from the image delays nothing, \
         and one that fails later delays SIGTERM only until then",
        "use lifecycle.preStop.sleep, which needs no program in the image",
    )
}

fn served_until_killed(pods: u64, grace_s: i64, answered: u64, closing: CloseNotice) -> Words {
    let cost_min = pods as f64 * grace_s as f64 / 60.0;
    let those = counted(pods, "pod");
    words(
        format!(
            "{those} kept answering on open connections until the grace period of {grace_s} s expired and SIGKILL ended \
             {} ({} answered after SIGTERM)",
            either(pods, "it", "them"),
            counted(answered, "request")
        ),
        format!(
            "the app waits for its clients to close their connections, and busy clients do not: a node drain, a \
             StatefulSet or a quota waits for {pods} x {grace_s} s = {cost_min:.1} min of pod time"
        ),
        format!(
            "{} after SIGTERM, so that clients move to other pods; a longer grace period makes it worse",
            cause_words::announces_close(closing)
        ),
    )
}

fn killed_early(pods: u64, is_out_of_memory: bool) -> Words {
    let (why, remedy) = match is_out_of_memory {
        true => (
            "a container used more memory than its limit (OOMKilled)",
            "raise the memory limit, or let the app use less memory while it shuts down",
        ),
        false => (
            "something other than the end of the grace period killed it: a lack of memory, a node shutdown, or a \
             process in the container",
            "check the container's last state and the node's kernel log",
        ),
    };
    let (of, was, its) = (counted(pods, "pod"), either(pods, "was", "were"), either(pods, "its", "their"));
    let what = format!("{of} {was} killed by SIGKILL (exit code 137) before {its} grace period expired");
    words(what, why, remedy)
}

fn killed(pods: &[String], grace_s: f64, sleep_s: Option<f64>, longest_s: f64) -> Words {
    let what = match pods {
        [pod] => format!("pod {pod} was killed by SIGKILL (exit code 137)"),
        _ => format!("{} were killed by SIGKILL (exit code 137)", counted(len(pods.len()), "pod")),
    };
    match sleep_s {
        Some(sleep_s) if sleep_s + longest_s <= grace_s => words(
            what,
            format!(
                "the app was still running when its grace period of {grace_s:.0} s expired, although preStop \
                 ({sleep_s:.0} s) and the longest answer ({longest_s:.1} s) fit into it: it does not exit on SIGTERM, \
                 or it waits for connections that stay open"
            ),
            "handle SIGTERM in the app (a first process without a handler ignores it): finish requests in flight, \
             close connections, exit",
        ),
        Some(sleep_s) => words(
            what,
            format!("the app had not finished when its grace period of {grace_s:.0} s expired"),
            format!(
                "set terminationGracePeriodSeconds above preStop ({sleep_s:.0} s) plus the longest request (the \
                 longest one here took {longest_s:.1} s)"
            ),
        ),
        None => words(
            what,
            format!("the app had not finished when its grace period of {grace_s:.0} s expired"),
            format!(
                "set terminationGracePeriodSeconds above the time of the preStop hook plus the longest request (the \
                 longest one here took {longest_s:.1} s) if that is more than {grace_s:.0} s; otherwise find out why \
                 the app does not exit on SIGTERM"
            ),
        ),
    }
}
