//! Puts limits and effects of the measurement itself into words.

use std::sync::Arc;

use super::super::format::{count, counted, either, len};
use super::{Words, was, words};
use rolldrop_explain::model::account::Measurement;

/// Maximum number of pods that a finding lists by name.
const MAX_NAMED: usize = 3;

/// Describes a limit or an effect as a finding.
pub(super) fn measurement(measurement: &Measurement) -> Words {
    match measurement {
        Measurement::ClockUncompared(clock) => words(
            format!("the clock of {clock} was never compared with the coordinator's"),
            "its timestamps are used as they are, so bounds based on them do not include its clock's uncertainty",
            "check that the clocks are synchronised",
        ),
        Measurement::PortsReused(connections) => words(
            format!(
                "{} came from a source port that had been used less than 120 s earlier",
                counted(*connections, "connection")
            ),
            "with connection tracking, the entry of an unanswered connection can send the next one from its port to \
             the same dead pod (stale_flow)",
            "use more source ports (net.ipv4.ip_local_port_range, load.sourcePorts) or a lower rate",
        ),
        Measurement::OtherRuns(n) => words(
            format!(
                "ignored {} that the proxies recorded with an id from another run",
                counted(*n, "request")
            ),
            "anyone can send the header rolldrop-id; this run's ids have a random part",
            "nothing to do if another run measures the same pods; otherwise find out who sends them (served/*.parquet)",
        ),
        Measurement::UnknownRequests(n) => words(
            format!(
                "ignored {} that the proxies recorded with an id from this run and a number that the load did not record",
                counted(*n, "request")
            ),
            "rows of the load are missing, or someone who saw the run's requests sent other requests with these ids",
            "find out who else sends them (served/*.parquet)",
        ),
        Measurement::EarlyRows(n) => words(
            format!(
                "ignored {} that the proxies recorded with a time before the request was sent",
                counted(*n, "row")
            ),
            "someone who saw the run's requests repeats their ids, or a clock was off by more than was measured",
            "find out who sends them (served/*.parquet)",
        ),
        Measurement::LateRows(n) => words(
            format!(
                "{} read by a proxy after ending for the client; the proxy's row is not counted",
                was(*n)
            ),
            "a gateway or mirror between client and pod may end a request for the client and still forward it",
            "nothing to do: they count as their clients saw them",
        ),
        Measurement::Retried(by_pod) => retried(by_pod),
        Measurement::UnmatchedNames { answers, header, body, examples, .. } => {
            unmatched_names(*answers, header, body.as_deref(), examples)
        }
        Measurement::NoEntries { connections } => words(
            format!("the kernel has no entry for any of {} connections", count(*connections)),
            "a kube-proxy replacement that balances at the socket leaves no entries, and neither do rules that skip \
             connection tracking",
            "do not use --evidence conntrack here; use --pod-header, --pod-body or a sidecar to name pods",
        ),
        Measurement::NoPodAddresses => words(
            "the kernel sent no connection to the address of any pod in this run",
            "the address is translated elsewhere (another node's port, a load balancer), or a gateway answers",
            "send the load from nodes of the cluster to the Service: --load-from cluster --target svc/NAME",
        ),
        Measurement::TrackingGaps { gaps, first_s } => tracking_gaps(*gaps, *first_s),
        Measurement::EntriesUnconfirmed { agreed } => words(
            format!(
                "the kernel's entries are not used: only {} {} them",
                counted(*agreed, "answer"),
                either(*agreed, "confirms", "confirm")
            ),
            "under IPVS they count only if at least 20 answers name the same pods and none names another",
            "have responses name their pods: --pod-header, --pod-body, or a sidecar",
        ),
        Measurement::EntriesContradicted { disagreed } => words(
            format!(
                "{} came from a different pod than the one that the kernel sent the connection to",
                counted(*disagreed, "answer")
            ),
            "something between the kernel and the app forwards connections, or an address was reassigned; rolldrop \
             goes by the pod that the answer names",
            "do not rely on routed_to of lost requests here",
        ),
        Measurement::Tracked { routed, connections } => words(
            format!(
                "the kernel shows where {} of {} connections were sent",
                count(*routed),
                count(*connections)
            ),
            "the others were refused by a rule, or used the entry of an earlier connection from the same port",
            "",
        ),
        Measurement::Recorded { message, times } => {
            let times = if *times > 1 { format!(" ({} times)", count(*times)) } else { String::new() };
            words(message.clone() + &times, "recorded during the run", "")
        }
        Measurement::NotModelled { container, message, pods } => words(
            format!("container {container} of {}: {message}", counted(*pods, "pod")),
            "recorded during the run",
            "",
        ),
        Measurement::ResetForRefused(requests) => words(
            format!("{} reset where the app would have refused the connection", was(*requests)),
            "the recording proxy in the pod had already accepted the connection; nothing else changes with the proxy",
            "treat reset_before_response and connect_refused as the same when you compare with a run without the proxy",
        ),
    }
}

fn retried(by_pod: &[(Arc<str>, u64)]) -> Words {
    let failures: u64 = by_pod.iter().map(|(_, n)| n).sum();
    let named: Vec<String> =
        by_pod.iter().take(MAX_NAMED).map(|(pod, n)| format!("{pod} {}", count(*n))).collect();
    let more = by_pod.len().saturating_sub(MAX_NAMED);
    let more = if more > 0 { format!(" and {}", counted(len(more), "more pod")) } else { String::new() };
    words(
        format!(
            "a gateway's retries hid {} ({}{more}): another pod answered",
            counted(failures, "failure"),
            named.join(", "),
        ),
        "the same request id reached more than one pod; such requests count as ok, because their clients saw a success",
        "a client that reaches the pods without that gateway would have lost them",
    )
}

fn unmatched_names(answers: u64, header: &str, body: Option<&str>, examples: &[Arc<str>]) -> Words {
    let (place, remedy) = match body {
        None => (
            header.to_owned(),
            "choose another header (--pod-header), or ignore this if these are other pods",
        ),
        Some(pattern) => (
            format!("{header}, or by {pattern:?} in the body"),
            "choose another pattern (--pod-body) or header (--pod-header), or ignore this if these are other pods",
        ),
    };
    let some: Vec<String> = examples.iter().take(MAX_NAMED).map(|value| format!("{value:?}")).collect();
    let (n, name) = (counted(answers, "answer"), either(answers, "names", "name"));
    words(
        format!("in {place}, {n} {name} a pod that the run did not watch, such as {}", some.join(", ")),
        "they count as answers from an unknown pod; an answer may name a pod by name, host name, NAME.NAMESPACE or \
         address",
        remedy,
    )
}

fn tracking_gaps(gaps: u64, first_s: f64) -> Words {
    words(
        format!(
            "the record of the kernel's connection tracking has {}, the first after {first_s:.1} s",
            counted(gaps, "gap")
        ),
        "the node opened connections faster than the run could follow them, so the pods of \
             some are unknown for that time (routed_to is null)",
        "use a lower rate, a quieter node, or a larger net.core.rmem_max",
    )
}
