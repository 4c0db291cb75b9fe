//! Puts each cause of lost requests and its remedy into words.

use super::super::format::counted;
use super::{Words, advice, stream_words, words};
use rolldrop_explain::model::RunResult;
use rolldrop_explain::model::account::{
    CloseNotice, DnsTtl, Doubt, EndpointAdvice, FinishAdvice, HookRepair, KeptAnswer, Loss, NotAccepting,
    OnEachNode, PreStopHooks, Probe, SleepAdvice, TrafficPolicyKind,
};

/// Remedy for pods that end without being deleted.
pub(super) const NOT_DELETED_REMEDY: &str = "no preStop sleep helps pods that end without being deleted, because their endpoints stay ready until they have ended: \
     drain a node before it shuts down (kubectl drain), and run replicas on several nodes";

/// Describes requests lost for one cause, with the reason and the remedy.
pub(super) fn lost(requests: u64, by: &Loss, result: &RunResult) -> Words {
    let what = format!("{}: {}", by.cause(), counted(requests, "request"));
    let sleep = |advice: &SleepAdvice| sleep(advice, result);
    match by {
        Loss::RoutedToDeadPod { not_accepting: why, sleep: advice } => {
            words(what, not_accepting(why), sleep(advice))
        }
        Loss::AcceptQueueReset { sleep: advice } => words(
            what,
            "the app closed its listener while connections waited in the accept queue",
            sleep(advice),
        ),
        Loss::KilledInFlight(way) => {
            words(what, "the app exited before it had answered requests that it had accepted", finish(*way))
        }
        Loss::DrainedTooShort(drain) => stream_words::drained_too_short(what, *drain),
        Loss::CutAtSigterm(cut) => stream_words::cut_at_sigterm(what, *cut),
        Loss::GatewayCut => stream_words::gateway_cut(what),
        Loss::IdleCloseRace(notice) => words(
            what,
            "a server may close an idle connection at any time, even while a request is on its way",
            idle(*notice),
        ),
        Loss::NoReadyEndpoint { is_of_node, endpoints: way } => {
            words(what, none_ready(*is_of_node), endpoints(way))
        }
        Loss::NotReadyYet(missing) => {
            words(what, "the pod's endpoint was ready before its app could serve", probe(*missing))
        }
        Loss::GatewayToDeadPod { sleep: advice } => words(
            what,
            "a gateway sent requests to a terminating pod, and answered with 502, 503, 504 or nothing",
            format!("{}; also let the gateway retry requests that are safe to repeat", sleep(advice)),
        ),
        Loss::GatewayNoServer { sleep: advice } => no_server(what, &sleep(advice)),
        Loss::RefusedWhileEnding(notice) => refused(what, *notice),
        Loss::Unattributed(doubts) => words(
            what,
            in_doubt(doubts),
            "have responses name their pod (--pod-header, a sidecar) or use --evidence conntrack; lost.csv lists the \
             competing causes of each request",
        ),
        Loss::H2Unprocessed => words(
            what,
            "the server closed an HTTP/2 connection while requests were on their way, and said that it had not processed \
             them",
            "let clients resend such requests, which HTTP/2 allows for any request; let the server announce the end of \
             a connection one round trip ahead",
        ),
        Loss::StaleFlow => stale_flow(what),
        Loss::GatewayError => gateway_error(what),
        Loss::RuleSwap => words(
            what,
            "kube-proxy was swapping its rules, and the connection hit one that was being removed",
            "no setting of the pod helps; let clients retry refused connections",
        ),
        Loss::Overload => words(
            what,
            "the app or the machine could not keep up, or packets were lost",
            "lower the rate or add capacity; then measure again",
        ),
    }
}

/// Describes the generator's own stale flows.
fn stale_flow(what: String) -> Words {
    words(
        what,
        "the load generator reused a source port whose previous connection, in this run or an earlier one, got no \
         answer; for up to 120 s the connection-tracking entry sends new connections from that port to the same pod, \
         although the rules have changed; the headline and the limits exclude these requests",
        "use more source ports (net.ipv4.ip_local_port_range, load.sourcePorts) or a lower rate, so that no port \
         is reused within 120 s",
    )
}

/// Describes gateway errors that no pod's termination explains.
fn gateway_error(what: String) -> Words {
    words(
        what,
        "a gateway status came back that no terminating pod explains: a gateway, or the app itself, gave up on the \
         request",
        "check the gateway's own log; let it retry requests that are safe to repeat. If it reused idle connections \
         that the server was closing (HAProxy: SH, Envoy: UC, nginx: prematurely closed), set the server's keep-alive \
         timeout above the gateway's idle timeout",
    )
}

/// Explains why a terminating pod no longer accepted connections.
fn not_accepting(why: &NotAccepting) -> String {
    let (kept, hook) = match why {
        NotAccepting::Recreated(workload) => {
            return format!(
                "{workload} has strategy Recreate: all its pods end together, and no new one starts until they are gone"
            );
        }
        NotAccepting::NotDeleted => {
            return "the pods ended without being deleted (a node that shut down, an eviction by the kubelet, or an exit of \
                    their own), so the Service routed to them until they had ended"
                .to_owned();
        }
        NotAccepting::Killed => {
            return "SIGKILL ended pods that still accepted connections, while the Service still routed to them"
                .to_owned();
        }
        NotAccepting::EndedEarly => {
            return "the app exited before its preStop sleep could have finished, while the Service still routed to it"
                .to_owned();
        }
        NotAccepting::Stopped { kept, hook } => (kept, hook),
    };
    let stops = match kept {
        KeptAnswer::Unknown => "the app stops accepting connections on SIGTERM",
        KeptAnswer::Answered => {
            "the app closes its listener on SIGTERM, but still answers on kept connections"
        }
    };
    match hook {
        PreStopHooks::Failed => format!("{stops}, and the preStop hook that should have delayed this failed"),
        PreStopHooks::Unset => format!("{stops}, and nothing waits until the Service routes elsewhere"),
        PreStopHooks::Sleep(s) => {
            format!("{stops}, and its preStop sleep of {s} s ended before the Service routed elsewhere")
        }
        PreStopHooks::Other => {
            format!("{stops}, and its preStop hook ended before the Service routed elsewhere")
        }
    }
}

/// Names the sleep that helps, in the same words in all formats of the report.
fn sleep(advice: &SleepAdvice, result: &RunResult) -> String {
    let repair = |hook: &HookRepair| match hook {
        HookRepair::Unneeded => "",
        HookRepair::Last => {
            "replace the hook with one that runs for its full duration (lifecycle.preStop.sleep): "
        }
        HookRepair::Replace => "replace the failed hook with lifecycle.preStop.sleep: ",
    };
    let serves_on = "or an app that keeps serving that long after SIGTERM";
    match advice {
        SleepAdvice::Recreated(workload) => format!(
            "use strategy RollingUpdate with maxSurge for {workload}: under Recreate, neither a sleep nor a \
             disruption budget helps"
        ),
        SleepAdvice::NotDeleted => NOT_DELETED_REMEDY.to_owned(),
        SleepAdvice::Advised { hook, mode } => {
            let advised = result.recommendation.iter().find(|recommendation| recommendation.mode == *mode);
            let sleep = advised.and_then(advice::sleep_in_words).unwrap_or_default();
            format!("{}{sleep}, {serves_on}", repair(hook))
        }
        SleepAdvice::ProbeFirst { probe, requests } => probe_first(*probe, *requests),
        SleepAdvice::AtLeast { hook, at_least_s, dns, grace_s } => {
            let longer = at_least_s.map_or_else(String::new, |s| format!(", longer than {s:.3} s"));
            let dns = match dns {
                Some(DnsTtl::Known(ttl_s)) => {
                    format!(" (clients cache DNS answers for their TTL of {ttl_s:.0} s)")
                }
                Some(DnsTtl::Unknown) => " and the TTL for which clients cache DNS answers".to_owned(),
                None => String::new(),
            };
            let grace = grace_s.map(|s| format!(", with terminationGracePeriodSeconds {s} or more"));
            let grace = grace.unwrap_or_default();
            format!(
                "{}a preStop sleep that outlasts the windows{longer}{dns}{grace}, {serves_on}",
                repair(hook)
            )
        }
    }
}

/// Names the probe that keeps traffic away from pods that do not serve yet, or a different probe if all pods already
/// have one.
fn probe(probe: Probe) -> &'static str {
    match probe {
        Probe::Missing => "a readinessProbe that fails until the app serves",
        Probe::TooEarly => {
            "a readinessProbe that fails until the app can serve these requests (the current one succeeds too early)"
        }
    }
}

/// States how many requests reached pods that could not serve yet.
pub(super) fn probe_first(missing: Probe, requests: u64) -> String {
    format!(
        "first add {}, then measure again: {} reached pods that could not serve yet, which also makes the windows look \
         longer",
        probe(missing),
        counted(requests, "request")
    )
}

/// Explains how to let a pod finish the requests that it has accepted.
fn finish(way: FinishAdvice) -> String {
    let on_signal = "finish requests in flight on SIGTERM";
    match way {
        FinishAdvice::OnSignal => on_signal.to_owned(),
        FinishAdvice::WithinGrace { longest_s } => format!(
            "{on_signal}, and set terminationGracePeriodSeconds above preStop plus the longest request ({longest_s:.1} \
             s)"
        ),
        FinishAdvice::Announced(notice) => {
            format!("{on_signal}, and {}", announces_close(notice))
        }
    }
}

/// Explains why no endpoint was ready.
const fn none_ready(is_of_node: bool) -> &'static str {
    match is_of_node {
        true => {
            "the node had no ready pod of its own, so it dropped connections: the Service's traffic policy Local \
             ignores pods on other nodes"
        }
        false => "all pods of the Service were gone or not ready at the same time",
    }
}

/// Explains how to keep an endpoint ready while pods end.
fn endpoints(way: &EndpointAdvice) -> String {
    match way {
        EndpointAdvice::Deleted(workload) => format!(
            "do not delete {workload} under load: none of its settings can keep an endpoint ready then"
        ),
        EndpointAdvice::Recreated(workload) => format!(
            "use strategy RollingUpdate with maxSurge for {workload}: Recreate ends all pods before the first new one \
             starts"
        ),
        EndpointAdvice::OnEachNode { policy, workload } => on_each_node(*policy, workload),
        EndpointAdvice::Unknown => {
            "run more replicas, and set maxUnavailable: 0 for rollouts; a PodDisruptionBudget limits evictions"
                .to_owned()
        }
        EndpointAdvice::Rolling { workload, replicas, max_unavailable } => {
            let rolling = match max_unavailable {
                Some(set) if set != "0" => format!("maxUnavailable: 0 in its strategy (now {set})"),
                _ => "maxUnavailable: 0 in its strategy".to_owned(),
            };
            match replicas {
                Some(1) => format!(
                    "run more than one replica of {workload}, with {rolling}; a PodDisruptionBudget limits evictions, \
                     not rollouts"
                ),
                _ => format!(
                    "set {rolling} for rollouts of {workload}; a PodDisruptionBudget limits evictions, not rollouts or \
                     deletions"
                ),
            }
        }
    }
}

/// Explains how to keep a ready pod on each node while pods end.
fn on_each_node(policy: TrafficPolicyKind, workload: &OnEachNode) -> String {
    let in_place = match workload {
        OnEachNode::DaemonSet(workload) => format!(
            "set maxSurge: 1 and maxUnavailable: 0 in the updateStrategy of {workload}, so that a node's new pod \
             starts before the old one ends (pods must not use host ports), and a preStop sleep that lasts until the \
             rules list the new pod"
        ),
        OnEachNode::Other(workload) => {
            format!("run two or more pods of {workload} on each node that gets connections")
        }
        OnEachNode::Unknown => "run two or more pods on each node that gets connections".to_owned(),
    };
    let policy = match policy {
        TrafficPolicyKind::External => "externalTrafficPolicy",
        TrafficPolicyKind::Internal => "internalTrafficPolicy",
    };
    format!(
        "{in_place}; or set {policy}: Cluster. A preStop sleep alone only moves the gap; a load balancer that checks \
         healthCheckNodePort skips nodes without a ready pod"
    )
}

/// Returns the remedy for a server that closes idle connections: on shutdown, at any other time, or both.
fn idle(notice: Option<CloseNotice>) -> String {
    let longer = "set the server's keep-alive timeout above the idle timeout of its clients (load balancers often keep \
                  idle connections for 60 s)";
    match notice {
        None => longer.to_owned(),
        Some(notice) => format!("{}; {longer}", announces_close(notice)),
    }
}

/// Describes how a server announces that it closes a connection.
pub(super) const fn announces_close(notice: CloseNotice) -> &'static str {
    match notice {
        CloseNotice::Goaway => "send GOAWAY one round trip before the connection is closed",
        CloseNotice::Either => "answer with Connection: close (HTTP/2: send GOAWAY) while draining",
        CloseNotice::Header => "answer with Connection: close while draining",
    }
}

/// Describes a gateway that had no upstream server left.
fn no_server(what: String, sleep: &str) -> Words {
    words(
        what,
        "the gateway's health checks hit terminating pods and took out its last server; until a check passed again, it \
         answered immediately although pods were ready; these requests are in no pod's window",
        format!(
            "require more failed checks before a server is down (fall) and fewer passed checks before it is up (rise); \
             give the gateway more nodes or pods as servers; use externalTrafficPolicy: Local and check \
             healthCheckNodePort, which knows each node's pods; {sleep}, so that checks do not fail"
        ),
    )
}

/// Describes an app that refused requests itself.
fn refused(what: String, notice: CloseNotice) -> Words {
    words(
        what,
        "after its pod's t0 the app itself answered that it was no longer serving, on connections that it had kept or \
         still accepted",
        format!(
            "keep serving until all connections are closed, and {} (Fastify: return503OnClosing: false; Jetty, \
             Undertow: no handler that refuses requests at shutdown)",
            announces_close(notice)
        ),
    )
}

/// Lists the reasons why requests have no cause, most frequent first, with the number of requests for each.
fn in_doubt(doubts: &[(Doubt, u64)]) -> String {
    let mut doubts: Vec<(String, u64)> = doubts.iter().map(|(why, n)| (doubt(why), *n)).collect();
    doubts.sort_by(|(a, of_a), (b, of_b)| of_b.cmp(of_a).then_with(|| a.cmp(b)));
    match &doubts[..] {
        [(only, _)] => only.clone(),
        all => {
            let each = all.iter().map(|(why, n)| format!("{}: {why}", counted(*n, "request")));
            each.collect::<Vec<_>>().join("; ")
        }
    }
}

/// Explains, as a sentence fragment, why no cause is given.
fn doubt(doubt: &Doubt) -> String {
    match doubt {
        Doubt::Competing(causes) => {
            let mut names: Vec<&str> = causes.iter().map(|cause| cause.as_str()).collect();
            names.sort_unstable();
            format!("{} compete, and none outweighs the others", names.join(" and "))
        }
        Doubt::PodWasWell => {
            "the pod that it reached was not terminating, and nothing else explains the loss".to_owned()
        }
        Doubt::NoFit => "a pod was terminating, but that does not explain this outcome".to_owned(),
        Doubt::NothingNear => "no pod that it could have reached was starting or terminating".to_owned(),
    }
}
