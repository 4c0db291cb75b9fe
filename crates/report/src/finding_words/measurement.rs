//! Puts limits and effects of the measurement itself into words.

use std::sync::Arc;

use super::super::format::{count, counted, either};
use super::{Words, was, words};
use rolldrop_explain::model::account::Measurement;

/// Maximum number of pods that a finding lists by name.
const MAX_NAMED: usize = 3;

/// Describes a limit or an effect as a finding.
pub(super) fn measurement(measurement: &Measurement) -> Words {
    match measurement {
        Measurement::ClockUncompared(clock) => words(
            format!("the clock of {clock} was never compared with the coordinator's"),
            "its stamps are used unchanged, so bounds that rest on them do not include its clock's uncertainty",
            "check that the clocks are synchronised",
        ),
        Measurement::PortsReused(connections) => words(
            format!(
                "{} connections came from a source port that had been used less than 120 s before",
                count(*connections)
            ),
            "where connections are tracked, the entry of an unanswered connection can send the next one from its port to \
             the same dead pod (stale_flow)",
            "more source ports (net.ipv4.ip_local_port_range, load.sourcePorts) or a lower rate",
        ),
        Measurement::OtherRuns(n) => other_runs(*n),
        Measurement::UnknownRequests(n) => unknown_requests(*n),
        Measurement::EarlyRows(n) => early_rows(*n),
        Measurement::LateRows(n) => late_rows(*n),
        Measurement::Retried(by_pod) => retried(by_pod),
        Measurement::UnmatchedNames { answers, header, body, examples, .. } => {
            unmatched_names(*answers, header, body.as_deref(), examples)
        }
        Measurement::NoEntries { connections } => words(
            format!("the kernel has no entry for any of {} connections", count(*connections)),
            "a kube-proxy replacement that balances at the socket leaves no entries, and so do rules that skip \
             connection tracking",
            "do not use --evidence conntrack here; --pod-header, --pod-body or a sidecar names pods",
        ),
        Measurement::NoPodAddresses => words(
            "the kernel sent no connection to an address of a pod of this run",
            "the address is translated elsewhere (the port of another node, a load balancer), or a gateway answers",
            "send the load from nodes of the cluster to the Service: --load-from cluster --target svc/NAME",
        ),
        Measurement::TrackingGaps { gaps, first_s } => tracking_gaps(*gaps, *first_s),
        Measurement::EntriesUnconfirmed { agreed } => words(
            format!("the kernel's entries are not relied on: {} answers confirm them", count(*agreed)),
            "under IPVS they count only if at least 20 answers name the same pods, and none another one",
            "let answers name their pods: --pod-header, --pod-body, or a sidecar",
        ),
        Measurement::EntriesContradicted { disagreed } => words(
            format!(
                "{} answers come from another pod than the kernel sent their connection to",
                count(*disagreed)
            ),
            "something between the kernel and the app passes connections on, or an address has changed hands; the answer \
             counts",
            "do not rely on routed_to of lost requests here",
        ),
        Measurement::Tracked { routed, connections } => words(
            format!(
                "the kernel says where {} of {} connections were sent",
                count(*routed),
                count(*connections)
            ),
            "without an entry: refused by a rule, or on an entry of an earlier connection from its port",
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
            format!("{} reset that the app would have refused", was(*requests)),
            "the recording proxy in the pod had already accepted the connection: the one thing that it changes",
            "treat reset_before_response and connect_refused as the same when you compare with a run without the proxy",
        ),
    }
}

fn other_runs(n: u64) -> Words {
    let (requests, carry) = (counted(n, "request"), either(n, "carries", "carry"));
    words(
        format!("{requests} that the proxies recorded {carry} an id of another run: not counted"),
        "anybody can send the header rolldrop-id; this run's ids have a random part",
        "none if another run measures the same pods; otherwise see who sends them (served/*.parquet)",
    )
}

fn unknown_requests(n: u64) -> Words {
    let (requests, carry) = (counted(n, "request"), either(n, "carries", "carry"));
    words(
        format!(
            "{requests} that the proxies recorded {carry} an id of this run and the number of no request that it recorded: \
             not counted"
        ),
        "rows of the load are missing, or somebody who saw the run's requests sent others with such ids",
        "see who else sends them (served/*.parquet)",
    )
}

fn early_rows(n: u64) -> Words {
    let (rows, have) = (counted(n, "row"), either(n, "has", "have"));
    words(
        format!("{rows} of the proxies {have} a request's id and a time before it was sent: not counted"),
        "somebody who saw the run's requests repeats their ids, or a clock went wrong by more than was measured",
        "see who sends them (served/*.parquet)",
    )
}

fn late_rows(n: u64) -> Words {
    words(
        format!("{} read by a proxy after the client had seen the end: not counted there", was(n)),
        "what lies between client and pod may end a request towards the client and still pass it on, as a gateway or a \
         mirror does",
        "none: they count as their clients saw them",
    )
}

fn retried(by_pod: &[(Arc<str>, u64)]) -> Words {
    let failures: u64 = by_pod.iter().map(|(_, n)| n).sum();
    let named: Vec<String> =
        by_pod.iter().take(MAX_NAMED).map(|(pod, n)| format!("{pod} {}", count(*n))).collect();
    let more = by_pod.len().saturating_sub(MAX_NAMED);
    let more = if more > 0 { format!(" and {more} more pods") } else { String::new() };
    words(
        format!(
            "a gateway's retries hid {} ({}{more}): another pod gave the answer",
            counted(failures, "failure"),
            named.join(", "),
        ),
        "the same request id reached more than one pod; such requests count as ok, because their clients saw a success",
        "a client that reaches the pods without that gateway would have lost them",
    )
}

fn unmatched_names(answers: u64, header: &str, body: Option<&str>, examples: &[Arc<str>]) -> Words {
    let (place, remedy) = match body {
        None => {
            (header.to_owned(), "name another header (--pod-header); nothing to do if these are other pods")
        }
        Some(pattern) => (
            format!("{header}, or by {pattern:?} in the body,"),
            "give another pattern (--pod-body) or header (--pod-header); nothing to do if these are other pods",
        ),
    };
    let some: Vec<String> = examples.iter().take(MAX_NAMED).map(|value| format!("{value:?}")).collect();
    let (n, name) = (counted(answers, "answer"), either(answers, "names", "name"));
    words(
        format!("{n} {name} a pod in {place} that the run did not watch, such as {}", some.join(", ")),
        "they count as answers whose pod is not known: a pod is named by its name, its host name, NAME.NAMESPACE or its \
         address",
        remedy,
    )
}

fn tracking_gaps(gaps: u64, first_s: f64) -> Words {
    words(
        format!(
            "the kernel's connection tracking has {}, the first after {first_s:.1} s",
            counted(gaps, "gap")
        ),
        "more connections were opened on the node than could be listened to: of some in that time it is not known where \
         they were sent (routed_to is null)",
        "a lower rate, a quieter node, or a larger net.core.rmem_max",
    )
}
