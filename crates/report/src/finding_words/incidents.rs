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
            format!("the changes made by {command} had not settled: {missing}"),
            "only a part of the rollout was measured; this run does not show later losses",
            "find out why new pods do not become ready (kubectl describe pod)",
        ),
        Incident::Restarted { pod, container, exit_code, is_crash, ready_after_s } => {
            let code = exit_code.map(|code| format!(" (exit code {code})")).unwrap_or_default();
            let back = match ready_after_s {
                Some(s) => format!("was ready again {s:.1} s later"),
                None => "was not seen ready again".to_owned(),
            };
            let (how, remedy) = match is_crash {
                true => ("was killed by this run", RESTART_REMEDY),
                false => ("exited", "find out why it exited; a readinessProbe shortens the outage"),
            };
            words(
                format!("container {container} of pod {pod} {how}{code} and {back}"),
                "the pod itself remained, so this is not a termination: requests lost here do not fall into any \
                 window, no preStop hook ran, and the pod remained an endpoint until the kubelet noticed",
                remedy,
            )
        }
        Incident::Changed { workload, at_s, what, later } => {
            let what = what.iter().map(change).collect::<Vec<_>>().join(", ");
            let more = match later {
                0 => String::new(),
                n => format!(", and {} after that", counted(*n, "more time")),
            };
            words(
                format!("someone else changed {workload} {at_s:.1} s into the load ({what}){more}"),
                "no action of this run did that; the change made pods end and start, so later losses and windows are \
                 not due to the scenario alone",
                "find out who did it (an autoscaler, a pipeline, GitOps, a colleague: kubectl get --show-managed-fields \
                 -o yaml), stop them, and measure again",
            )
        }
        Incident::Deleted { workload, at_s } => words(
            format!("{workload} was deleted {at_s:.1} s into the load"),
            "its pods ended with it and nothing replaces them; this is not a rollout, and later losses show no \
             window",
            "find out who deleted it or its namespace, and measure again",
        ),
        Incident::AgentsRestarted(restarts) => words(
            match restarts {
                1 => "this run restarted a node agent".to_owned(),
                n => format!("this run restarted node agents {n} times"),
            },
            "containers keep running without the agent, so this is not a termination: probes and statuses pause, and a \
             terminating pod gets its whole grace period again",
            "",
        ),
        Incident::LivedOn { pod, endpoint_removed_after_s, last_connection_after_s } => words(
            format!(
                "pod {pod} left its Services and kept running: its endpoint was removed {}, and its last new \
                 connection arrived {}",
                after(*endpoint_removed_after_s),
                after(*last_connection_after_s)
            ),
            "the pod still answers, so this is not a termination and has no window",
            "",
        ),
    }
}

fn after_refusal(status: Option<u16>) -> &'static str {
    match status {
        Some(429) => {
            "allow more disruptions in the PodDisruptionBudget, add replicas, or run the load longer so that the \
             action can wait"
        }
        Some(401 | 403) => "ask for that permission (kubectl auth can-i --list shows yours)",
        Some(404 | 409) => "nothing to do: the object was already gone or changed",
        Some(422 | 400) => "correct the scenario",
        Some(_) => "read the API server's message",
        None => {
            "depending on the reason, add replicas, run the load longer, or space actions further apart; allowOutage: \
             true lifts the limits on how many pods may end at the same time"
        }
    }
}

fn change(change: &WorkloadChange) -> String {
    match change {
        WorkloadChange::Template => "a new pod template".to_owned(),
        WorkloadChange::Replicas { from, to } => format!("{to} replicas instead of {from}"),
    }
}

fn after(after_s: Option<f64>) -> String {
    match after_s {
        Some(s) => format!("{s:.2} s after the request"),
        None => "at an unknown time".to_owned(),
    }
}
