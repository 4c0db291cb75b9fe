//! A finding for each cause of lost requests, with its remedy.

use std::collections::BTreeMap;

use super::setup::{Hook, Setup};
use super::{Finding, Judged, Known, RESTART_REMEDY, Recommendation, Severity, counted, either, unclear};
use crate::conclude::recommend;
use crate::model::finding;
use crate::model::lasted_at_least_s;
use rolldrop_record::Cause;
use rolldrop_record::load::Http;
use rolldrop_record::routing::Routing;
use rolldrop_record::run_info::RunInfo;

/// Returns a finding for each cause of lost requests, and one if several pods share some of them.
///
/// Requests lost to a container that ended in a pod that stays get a separate finding: the remedies for a termination
/// do not help them.
pub(super) fn findings(known: Known<'_>, setup: &Setup<'_>) -> Vec<Finding> {
    let words = Words::of(known, setup);
    let of_restarts = of_restarts(known.judged);
    let mut findings = Vec::new();
    let unclear = unclear::why(known.judged);
    for (&cause, &n) in &known.requests.by_cause {
        let of_restarts = of_restarts.get(&cause).copied().unwrap_or(0);
        let (why, remedy) = explain(cause, (&words, &unclear), &known.timeline.info);
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
                "{} {} several terminations: the loss of each is an interval",
                counted(known.requests.ambiguous, "dropped request"),
                either(known.requests.ambiguous, "fits", "fit")
            ),
            "the pods ended so close together that neither time nor outcome shows which of them lost a request",
            "let responses name their pod, or delete pods further apart; totals of the groups are exact",
        ));
    }
    findings
}

/// Words that depend on how these pods are set up.
struct Words {
    /// Reason why a pod that was ending no longer accepted connections.
    not_accepting: String,
    /// Setting that would have kept it accepting, or makes that unnecessary.
    sleep: String,
    /// Setting that lets it finish what it had accepted.
    finish: String,
    /// Reason why no endpoint was ready.
    none_ready: &'static str,
    /// Setting that keeps an endpoint ready.
    endpoints: String,
    /// Setting that keeps traffic from a pod that does not serve yet.
    starts: &'static str,
    /// Setting that keeps a server from closing connections that are about to be used.
    idle: String,
}

impl Words {
    fn of(known: Known<'_>, setup: &Setup<'_>) -> Self {
        let dead = Setup::of_dead(&known);
        Self {
            not_accepting: not_accepting(&dead),
            sleep: sleep(known, &dead),
            finish: finish(known, setup),
            none_ready: match local_policy(known) {
                Some(_) => {
                    "the node had no ready pod of its own then, and a node drops what comes if the Service's traffic policy \
                     is Local, whatever other nodes have"
                }
                None => "all pods of the Service were gone or not ready at the same time",
            },
            endpoints: endpoints(known, setup),
            starts: recommend::starts(known.timeline),
            idle: idle(known),
        }
    }
}

/// Returns the reason why a pod that was ending no longer accepted connections, as far as its hooks show.
fn not_accepting(setup: &Setup<'_>) -> String {
    if let Some(workload) = setup.recreated() {
        return format!(
            "{} has strategy Recreate: its pods end at once, and no other takes their place until they are gone",
            workload.name
        );
    }
    if !setup.accepting.is_empty() {
        return "SIGKILL ended pods that still accepted connections, while the Service still routed to them"
            .to_owned();
    }
    // A pod that keeps answering on kept connections has not stopped.
    let stops = match setup.kept_on.is_empty() {
        true => "the app stops accepting connections on SIGTERM",
        false => "the app closes its listener on SIGTERM, while it answers on kept connections",
    };
    match (setup.failures(), setup.hook) {
        (1.., _) => format!("{stops}, and the preStop hook that was to delay it failed"),
        (0, _) if !setup.early.is_empty() => {
            "the app ended before its preStop sleep could be over, while the Service still routed to it"
                .to_owned()
        }
        (0, Hook::Unset) => format!("{stops}, and nothing waits until the Service routes elsewhere"),
        (0, Hook::Sleep(s)) => {
            format!("{stops}, and its preStop sleep of {s} s did not last until the Service routed elsewhere")
        }
        (0, Hook::Other) => {
            format!("{stops}, and its preStop hook did not last until the Service routed elsewhere")
        }
    }
}

/// Returns the sleep that helps, as all forms of the report name it: the recommended one, or, if there is none, the
/// time that it must exceed. No number is below a bound that the report shows.
fn sleep(known: Known<'_>, setup: &Setup<'_>) -> String {
    if let Some(workload) = setup.recreated() {
        return format!(
            "strategy RollingUpdate with maxSurge for {}: under Recreate no sleep and no budget helps",
            workload.name
        );
    }
    let in_place = match (setup.failures(), setup.early.is_empty()) {
        (0, true) => "",
        (0, false) => "first a hook that lasts (lifecycle.preStop.sleep); it has to be ",
        _ => "lifecycle.preStop.sleep in place of the hook that failed: ",
    };
    let serves_on = "or an app that keeps serving for that time after SIGTERM";
    let advised = Recommendation::longest(known.recommendation, known.terminations, known.groups);
    if let Some(sleep) = advised.and_then(Recommendation::sleep_in_words) {
        return format!("{in_place}{sleep}, {serves_on}");
    }
    let is_withheld = |rec: &&Recommendation| rec.covers_all_seen_seconds.is_none();
    let competing = |rec: &Recommendation| {
        recommend::starts_compete(known.timeline, known.terminations, known.judged, rec.mode)
    };
    if let Some(starts) = known.recommendation.iter().filter(is_withheld).find_map(competing) {
        return recommend::probe_first(known.timeline, starts);
    }
    // A sleep of pods that lost nothing was enough.
    let set = setup.longest_sleep_s as f64;
    let seen = lasted_at_least_s(known.terminations, known.groups).unwrap_or(0.0);
    let (ttl_s, dns) = dns(known);
    match set.max(seen).max(ttl_s) {
        at_least if at_least > 0.0 => {
            // Rounded up: the figure may not be below the bound that it represents.
            let at_least = (at_least * 1e3).ceil() / 1e3;
            format!(
                "{in_place}a preStop sleep that outlasts the windows, longer than {at_least:.3} s{dns}, {serves_on}"
            )
        }
        _ => format!("{in_place}a preStop sleep that outlasts the windows{dns}, {serves_on}"),
    }
}

/// Returns how long clients of a headless Service keep an answer of the DNS, in seconds, and the consequence in words.
fn dns(known: Known<'_>) -> (f64, String) {
    let timeline = known.timeline;
    let by_dns = |routing: &Option<Routing>| *routing == Some(Routing::Dns);
    let targets = timeline.info.targets.iter();
    let ttl_s = targets.clone().filter_map(|target| timeline.period_s(target)).fold(0.0, f64::max);
    match (ttl_s > 0.0, targets.clone().any(|target| by_dns(&target.routing))) {
        (true, _) => (ttl_s, format!(" (clients keep an answer of the DNS for its TTL of {ttl_s:.0} s)")),
        (false, true) => (0.0, " and the TTL for which clients keep an answer of the DNS".to_owned()),
        (false, false) => (0.0, String::new()),
    }
}

/// Returns the remedy that lets a pod finish what it had accepted.
fn finish(known: Known<'_>, setup: &Setup<'_>) -> String {
    let on_signal = "finish requests in flight on SIGTERM";
    if !setup.kept_on.is_empty() {
        return format!("{on_signal}, and {} from then on", announces_close(&known.timeline.info));
    }
    let longest_s = known.latency_ms.service.max / 1e3;
    let is_too_short = |(t, end): (&crate::model::Termination, &crate::timeline::PodEnd)| {
        t.exit_code == Some(137)
            && end.hook_sleep_s.is_none_or(|sleep_s| sleep_s as f64 + longest_s > end.grace_s as f64)
    };
    match known.terminations.iter().zip(&known.timeline.ends).any(is_too_short) {
        true => format!(
            "{on_signal}, within a terminationGracePeriodSeconds above preStop plus the longest request ({longest_s:.1} s)"
        ),
        false => on_signal.to_owned(),
    }
}

/// Returns the remedy that keeps an endpoint ready while pods end.
fn endpoints(known: Known<'_>, setup: &Setup<'_>) -> String {
    if let Some((_, workload)) = known.timeline.deleted_workloads().next() {
        return format!(
            "{workload} has to be there: it was deleted under load, and nothing that it sets keeps an endpoint then"
        );
    }
    if let Some(workload) = setup.recreated() {
        return format!(
            "strategy RollingUpdate with maxSurge for {}: Recreate ends all pods before the first new one starts",
            workload.name
        );
    }
    if let Some(policy) = local_policy(known) {
        return on_each_node(policy, setup);
    }
    let Some(workload) = setup.workload else {
        return "more replicas, and maxUnavailable: 0 for rollouts; a PodDisruptionBudget limits evictions"
            .to_owned();
    };
    let rolling = match &workload.max_unavailable {
        Some(set) if set != "0" => format!("maxUnavailable: 0 in its strategy ({set} is set)"),
        _ => "maxUnavailable: 0 in its strategy".to_owned(),
    };
    match workload.replicas {
        Some(1) => format!(
            "more than one replica of {}, with {rolling}; a PodDisruptionBudget limits evictions, not rollouts",
            workload.name
        ),
        _ => format!(
            "{rolling} for rollouts of {}; a PodDisruptionBudget limits evictions, not rollouts or deletions",
            workload.name
        ),
    }
}

/// Returns the traffic policy that is Local, if it alone made requests find no ready endpoint.
fn local_policy(known: Known<'_>) -> Option<&'static str> {
    let policy = |j: &Judged<'_>| {
        let target = &known.timeline.info.targets[known.timeline.target_of(&j.request.row)?];
        target.only_node()?;
        match target.routing {
            Some(Routing::NodePort(_)) => Some("externalTrafficPolicy"),
            _ => Some("internalTrafficPolicy"),
        }
    };
    let mut policies = known.judged.iter().filter(|j| j.cause == Cause::NoReadyEndpoint).map(policy);
    let first = policies.next()??;
    policies.all(|other| other.is_some()).then_some(first)
}

/// Returns the remedy that keeps a ready pod on each node while pods end.
fn on_each_node(policy: &str, setup: &Setup<'_>) -> String {
    let in_place = match setup.workload {
        Some(workload) if workload.name.starts_with("DaemonSet ") => format!(
            "maxSurge: 1 with maxUnavailable: 0 in the updateStrategy of {}, which starts a node's new pod before the old one \
             ends (no pod may need a port of its node), and a preStop sleep until the rules have the new one",
            workload.name
        ),
        Some(workload) => format!("two or more pods of {} on each node that gets connections", workload.name),
        None => "two or more pods on each node that gets connections".to_owned(),
    };
    format!(
        "{in_place}; or {policy}: Cluster. A preStop sleep alone only moves the gap; a load balancer that checks \
         healthCheckNodePort leaves out nodes without a ready pod"
    )
}

/// Returns the remedy against a server that closes idle connections: as it ends, at any other time, or both.
fn idle(known: Known<'_>) -> String {
    let races = || known.judged.iter().filter(|j| j.cause == Cause::IdleCloseRace);
    let longer = "keep idle connections longer in the server than in what connects to it: a keep-alive timeout of the \
                  server above its clients' idle timeout (load balancers often keep them for 60 s)";
    if races().next().is_some() && races().all(|j| j.candidates.is_empty()) {
        return longer.to_owned();
    }
    format!("{}; {longer}", announces_close(&known.timeline.info))
}

/// Counts, by cause, the requests that a dead pod or its end lost and no termination explains: those of restarts.
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

/// Names the way in which a server announces that it closes a connection: HTTP/2 has no `Connection` header.
pub(super) fn announces_close(info: &RunInfo) -> &'static str {
    let is_tls = info.targets.iter().any(|target| target.url.starts_with("https:"));
    match info.load.http {
        Some(Http::Http2) => "send GOAWAY one round trip before the connection is closed",
        Some(Http::Auto) if is_tls => "answer with Connection: close (HTTP/2: send GOAWAY) while draining",
        _ => "answer with Connection: close while draining",
    }
}

/// Returns the reason for such losses, and the remedy; `unclear` is the reason why some have no cause.
fn explain<'a>(cause: Cause, (words, unclear): (&'a Words, &'a str), info: &RunInfo) -> (&'a str, String) {
    let sleep = words.sleep.as_str();
    match cause {
        Cause::RoutedToDeadPod => (
            words.not_accepting.as_str(),
            sleep.to_owned(),
        ),
        Cause::AcceptQueueReset => (
            "the app closed its listener while connections waited in the accept queue",
            sleep.to_owned(),
        ),
        Cause::KilledInFlight => (
            "the app ended before it had answered the requests that it had accepted",
            words.finish.clone(),
        ),
        Cause::IdleCloseRace => (
            "a server may close an idle connection at any time, also while a request is on its way",
            words.idle.clone(),
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
            words.none_ready,
            words.endpoints.clone(),
        ),
        Cause::NotReadyYet => ("its endpoint was ready before its app served", words.starts.to_owned()),
        Cause::GatewayError => (
            "a gateway status came back, and no pod was ending that explains it: a gateway, or the app itself, \
             gave up on the request",
            "see the gateway's own log; let it retry requests that may be sent twice. If it used idle connections again \
             that the server was closing (HAProxy: SH, Envoy: UC, nginx: prematurely closed), set a keep-alive timeout of \
             the server above the time for which the gateway keeps them"
                .into(),
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

/// Returns reason and remedy for a gateway that had no server left.
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

/// Returns reason and remedy for an app that refused requests itself.
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
