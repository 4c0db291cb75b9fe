//! A finding for each cause of lost requests, with its remedy.

use std::collections::BTreeMap;

use super::{
    Finding, Judged, Known, RESTART_REMEDY, Recommendation, Severity, Termination, count, counted, finding,
    unclear,
};
use rolldrop_record::Cause;
use rolldrop_record::load::Http;
use rolldrop_record::run_info::RunInfo;

/// Each cause of lost requests, and whether several pods share some of them.
///
/// Requests lost to a container that ended in a pod that stays get a separate finding: the remedies for a termination
/// do not help them.
pub(super) fn findings(known: Known<'_>) -> Vec<Finding> {
    let sleep = sleep_in_words(known.terminations, known.recommendation);
    let of_restarts = of_restarts(known.judged);
    let mut findings = Vec::new();
    let unclear = unclear::why(known.judged);
    for (&cause, &n) in &known.requests.by_cause {
        let of_restarts = of_restarts.get(&cause).copied().unwrap_or(0);
        let (why, remedy) = explain(cause, (&sleep, &unclear), &known.timeline.info);
        // The generator's own fault is not an error of the measured system.
        let severity = if cause == Cause::StaleFlow { Severity::Warning } else { Severity::Error };
        let lost = |n| format!("{cause}: {}", counted(n, "request"));
        if n > of_restarts {
            let others = finding(severity, lost(n - of_restarts), why, &remedy);
            findings.push(Finding { cause: Some(cause), ..others });
        }
        if of_restarts > 0 {
            let what = format!("{}, to a container that ended in a pod that stays", lost(of_restarts));
            let why = "no preStop hook runs before such an end, and the pod's endpoint stays until the kubelet \
                       notices";
            findings.push(Finding { cause: Some(cause), ..finding(severity, what, why, RESTART_REMEDY) });
        }
    }
    if known.requests.ambiguous > 0 {
        findings.push(finding(
            Severity::Warning,
            format!(
                "{} dropped requests fit several terminations: the loss of each is an interval",
                count(known.requests.ambiguous)
            ),
            "the pods ended so close together that neither time nor outcome shows which of them lost a request",
            "let responses name their pod, or delete pods further apart; totals of the groups are exact",
        ));
    }
    findings
}

/// By cause, the requests that a dead pod or its end lost and no termination explains: those of restarts.
fn of_restarts(judged: &[Judged<'_>]) -> BTreeMap<Cause, u64> {
    let mut counts = BTreeMap::new();
    let is_its = |j: &&Judged<'_>| {
        j.candidates.is_empty() && matches!(j.cause, Cause::RoutedToDeadPod | Cause::KilledInFlight)
    };
    for j in judged.iter().filter(is_its) {
        *counts.entry(j.cause).or_default() += 1;
    }
    counts
}

/// The sleep that helps, as all forms of the report name it: the recommended one, or, if there is none, what it must
/// exceed.
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

/// How a server says that it closes a connection: HTTP/2 has no `Connection` header.
fn announces_close(info: &RunInfo) -> &'static str {
    let is_tls = info.targets.iter().any(|target| target.url.starts_with("https:"));
    match info.load.http {
        Some(Http::Http2) => "send GOAWAY one round trip before the connection is closed",
        Some(Http::Auto) if is_tls => "answer with Connection: close (HTTP/2: send GOAWAY) while draining",
        _ => "answer with Connection: close while draining",
    }
}

/// The reason for such drops, and the remedy; `sleep` is the sleep that helps, `unclear` why some have no cause.
fn explain<'a>(cause: Cause, (sleep, unclear): (&str, &'a str), info: &RunInfo) -> (&'a str, String) {
    match cause {
        Cause::RoutedToDeadPod => (
            "the app stops as soon as it gets SIGTERM, and nothing waits until the Service routes elsewhere",
            sleep.to_owned(),
        ),
        Cause::AcceptQueueReset => (
            "the app closed its listener while connections waited in the accept queue",
            sleep.to_owned(),
        ),
        Cause::KilledInFlight => (
            "the app ended before it had answered the requests that it had accepted",
            "finish requests in flight on SIGTERM; with exit code 137 a longer terminationGracePeriodSeconds"
                .into(),
        ),
        Cause::IdleCloseRace => (
            "a server may close an idle connection at any time, also while a request is on its way",
            format!("{}; set a client idle timeout below the server's", announces_close(info)),
        ),
        Cause::H2Unprocessed => (
            "the server closed an HTTP/2 connection while requests were on their way, and said that it had not \
             processed them",
            "clients that send them again, as HTTP/2 allows for any request; a server that announces the end of the \
             connection one round trip before it"
                .into(),
        ),
        Cause::StaleFlow => (
            "the generator used a source port again: its earlier connection from there, of this run or of one before, \
             got no answer, and for up to 120 s its connection-tracking entry sends the next one to the same pod, though the rules have changed; \
             headline and limits do not count these requests",
            "more source ports (net.ipv4.ip_local_port_range, load.sourcePorts) or a lower rate, so that 120 s \
             use none twice"
                .into(),
        ),
        Cause::NoReadyEndpoint => (
            "all pods of the Service were gone or not ready at the same time",
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
        Cause::GatewayNoServer => no_server(sleep),
        Cause::RefusedWhileEnding => refused(info),
        Cause::RuleSwap => (
            "a Service proxy replaced its rules, and the connection met one that was just going",
            "no setting of the pod helps; clients that try again after a refused connection".into(),
        ),
        Cause::Overload => (
            "the app or the machine could not keep up, or packets were lost",
            "lower the rate or add capacity; then measure again".into(),
        ),
        Cause::Unattributed => (
            unclear,
            "let responses name their pod (--pod-header, a sidecar) or use --evidence conntrack; lost.csv has each \
             request with the causes that compete"
                .into(),
        ),
    }
}

/// The same where a gateway had no server left.
fn no_server(sleep: &str) -> (&'static str, String) {
    (
        "the gateway's health checks met pods that were ending and took out its last server: until one passed again it \
         answered at once, though pods were ready; these requests are in no pod's window",
        format!(
            "let its checks fail more often before a server is down (fall) and pass fewer times before it is up (rise); \
             more nodes or pods as its servers; externalTrafficPolicy: Local with a check of healthCheckNodePort, which \
             knows the pods of each node; {sleep}, so that checks do not fail"
        ),
    )
}

/// The same where the app refused requests itself.
fn refused(info: &RunInfo) -> (&'static str, String) {
    (
        "the app itself answered that it serves no more, after its pod's t0: on connections that it kept, or that it \
         still accepted",
        format!(
            "serve what still arrives until the connections are closed, and {} (Fastify: return503OnClosing: false; \
             Jetty, Undertow: no handler that refuses at shutdown)",
            announces_close(info)
        ),
    )
}
