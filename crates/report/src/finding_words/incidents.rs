//! Puts incidents into words: events other than terminations.

use super::super::format::{count, counted};
use super::{RESTART_REMEDY, Words, words};
use rolldrop_explain::model::account::{Incident, WorkloadChange};

/// Describes an incident as a finding.
pub(super) fn incident(incident: &Incident) -> Words {
    match incident {
        Incident::Refused { action, status, why, pod, times } => {
            let of = match pod {
                Some(pod) => format!(" of pod {pod}"),
                None if *times == 1 => String::new(),
                None => format!(", {} times", count(*times)),
            };
            let how = status.map_or_else(|| "not done".to_owned(), |status| format!("refused ({status})"));
            words(format!("{action}{of} was {how}"), why, after_refusal(*status))
        }
        Incident::Unfinished { command, missing } => words(
            format!("the changes of {command} had not settled: {missing}"),
            "the rollout was measured in part: what is lost later is not in this run",
            "see why new pods do not become ready (kubectl describe pod)",
        ),
        Incident::Restarted { pod, container, exit_code, is_crash, ready_after_s } => {
            let code = exit_code.map(|code| format!(" (exit code {code})")).unwrap_or_default();
            let back = match ready_after_s {
                Some(s) => format!("was ready again {s:.1} s later"),
                None => "was not ready again while it was watched".to_owned(),
            };
            let (how, remedy) = match is_crash {
                true => ("was killed by this run", RESTART_REMEDY),
                false => ("ended", "see why it ended; a readinessProbe shortens the outage"),
            };
            words(
                format!("container {container} of pod {pod} {how}{code} and {back}"),
                "the pod stays, so this is not a termination: its lost requests are in no window, no preStop hook runs, \
                 and its endpoint stays until the kubelet notices",
                remedy,
            )
        }
        Incident::Changed { workload, at_s, what, later } => {
            let what = what.iter().map(change).collect::<Vec<_>>().join(", ");
            let more = match later {
                0 => String::new(),
                n => format!(", and {} later", counted(*n, "more time")),
            };
            words(
                format!("others changed {workload} {at_s:.1} s into the load ({what}){more}"),
                "no action of this run did that: pods ended and started for it, too, so the losses and windows since are \
                 not those of the scenario alone",
                "see who did (an autoscaler, a pipeline, GitOps, a colleague: kubectl get --show-managed-fields -o yaml), \
                 keep them away, and measure again",
            )
        }
        Incident::Deleted { workload, at_s } => words(
            format!("{workload} was deleted {at_s:.1} s into the load"),
            "its pods ended with it, which is no rollout, and nothing replaces them: what was lost since shows no window",
            "see who deleted it, or its namespace, and measure again",
        ),
        Incident::AgentsRestarted(restarts) => words(
            match restarts {
                1 => "the agent of a node was restarted by this run".to_owned(),
                n => format!("agents of nodes were restarted {n} times by this run"),
            },
            "containers keep running without the agent, so this is not a termination: probes and statuses pause, and a \
             terminating pod gets its whole grace period again",
            "",
        ),
        Incident::LivedOn { pod, endpoint_removed_after_s, last_connection_after_s } => words(
            format!(
                "pod {pod} left its Services and kept running: its endpoint was removed {}, its last new connection came \
                 {}",
                after(*endpoint_removed_after_s),
                after(*last_connection_after_s)
            ),
            "such a pod still answers, so this is not a termination and has no window",
            "",
        ),
    }
}

fn after_refusal(status: Option<u16>) -> &'static str {
    match status {
        Some(429) => {
            "allow more in the PodDisruptionBudget, add replicas, or lengthen the load so that it can wait"
        }
        Some(401 | 403) => "ask for the right (kubectl auth can-i --list shows what you have)",
        Some(404 | 409) => "none: the object was gone or had changed already",
        Some(422 | 400) => "correct the scenario",
        Some(_) => "see what the API server says",
        None => {
            "see the reason: add replicas, lengthen the load, or let actions begin further apart; allowOutage: true lifts \
             the limits on what may end at once"
        }
    }
}

fn change(change: &WorkloadChange) -> String {
    match change {
        WorkloadChange::Template => "another pod template".to_owned(),
        WorkloadChange::Replicas { from, to } => format!("{to} replicas instead of {from}"),
    }
}

fn after(after_s: Option<f64>) -> String {
    match after_s {
        Some(s) => format!("{s:.2} s after the request"),
        None => "at no time that was seen".to_owned(),
    }
}
