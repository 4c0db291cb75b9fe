//! Windows that have no upper bound: each reason has its own consequence and its own remedy.

use std::collections::BTreeMap;

use super::{Finding, Severity, counted, len};
use crate::model::finding;
use crate::model::{NoBound, Termination, Window};
use crate::timeline::Timeline;

/// Pods by consumer and reason, each with the reason in words.
type ByReason<'a> = BTreeMap<(&'a str, Option<NoBound>), Vec<(&'a str, &'a str)>>;

/// Returns one finding for each consumer and reason.
pub(crate) fn findings<'a>(
    timeline: &'a Timeline,
    terminations: &'a [Termination],
) -> impl Iterator<Item = Finding> + use<'a> {
    let mut by_reason = ByReason::new();
    for termination in terminations {
        // A pod of one Service is none of the others of the run.
        let has_one = termination.windows.iter().any(Window::is_one);
        for window in termination.windows.iter().filter(|window| window.is_one() || !has_one) {
            if let Some(why) = &window.censored {
                let key = (window.consumer.as_str(), window.censored_reason);
                by_reason.entry(key).or_default().push((&termination.pod, why));
            }
        }
    }
    by_reason.into_iter().map(|((consumer, reason), pods)| {
        if reason == Some(NoBound::NeverRouted) {
            return never_routed(consumer, &pods);
        }
        let what = match pods[..] {
            [(pod, _)] => format!("the window of pod {pod} towards {consumer} has no upper bound"),
            _ => {
                let pods = counted(len(pods.len()), "pod");
                format!("the windows of {pods} towards {consumer} have no upper bound")
            }
        };
        let (_, first) = pods[0];
        let why = match pods.iter().all(|(_, why)| *why == first) {
            true => first.to_owned(),
            false => format!("for example: {first}"),
        };
        let remedy = reason.map_or_else(String::new, |reason| remedy(timeline, reason));
        finding(Severity::Warning, what, &why, &remedy)
    })
}

/// Returns the finding about pods that were never routed to: a pod without a window takes nothing from the others.
fn never_routed(consumer: &str, pods: &[(&str, &str)]) -> Finding {
    let what = match pods {
        [(pod, _)] => format!("pod {pod} has no window towards {consumer}"),
        _ => format!("{} have no window towards {consumer}", counted(len(pods.len()), "pod")),
    };
    finding(Severity::Info, what, pods[0].1, "")
}

/// Returns the remedy that gives such a window an upper bound.
fn remedy(timeline: &Timeline, reason: NoBound) -> String {
    let names = "let answers name their pod (podHeader, podBody, or the sidecar)";
    match reason {
        NoBound::NeverRouted => String::new(),
        NoBound::NoNewConnections => {
            "send a part of the requests on new connections (connections.mode: fresh or mixed)".to_owned()
        }
        NoBound::LoadEnded => "let the load go on for longer after the last termination, or raise its rate".to_owned(),
        NoBound::TooFewConnections => {
            "raise the rate of new connections, or let the load go on for longer after the termination".to_owned()
        }
        NoBound::PodExited => {
            "set a preStop sleep longer than the window, so that the pod still answers when the gateway turns away \
             (rolldrop tune does that)"
                .to_owned()
        }
        NoBound::NotRandom => format!("{names}; through a Service, --evidence conntrack does it, too"),
        NoBound::ProxyUnknown => proxy_unknown(timeline),
        NoBound::UrlUnknown => format!("{names}, or send the load to the Service (--target svc/NAME)"),
        NoBound::Hole => "repeat the run: the record has to be whole between t0 and the bound".to_owned(),
        NoBound::Unsettled => "wait longer after each termination: --settle-max".to_owned(),
    }
}

/// Returns the remedy that lets a run learn what its Service proxy is.
fn proxy_unknown(timeline: &Timeline) -> String {
    let stated = "state it (--assume-service-proxy iptables or nftables), or let answers name their pod (podHeader, \
                  podBody, or the sidecar)";
    match timeline.info.cluster.dataplane_denied.as_slice() {
        [] => stated.to_owned(),
        denied => format!("allow the run to {}; or {stated}", denied.join(", ")),
    }
}

/// Returns the finding about a missing right that hides the kind of Service proxy, with the consequence.
pub(super) fn rights(timeline: &Timeline, terminations: &[Termination]) -> Option<Finding> {
    let cluster = &timeline.info.cluster;
    if cluster.dataplane.is_known() || cluster.dataplane_denied.is_empty() {
        return None;
    }
    let windows = || terminations.iter().flat_map(|t| &t.windows);
    let open = windows().filter(|w| w.censored_reason == Some(NoBound::ProxyUnknown)).count();
    let severity = if open > 0 { Severity::Warning } else { Severity::Info };
    let cost = match open {
        0 => "no window of this run depends on it".to_owned(),
        _ => format!(
            "where no request names its pod, that shows whether connections are balanced at random: without it {} of \
             {} have no upper bound, and no sleep is suggested",
            open,
            counted(len(windows().count()), "window")
        ),
    };
    Some(finding(
        severity,
        "the mode of kube-proxy could not be read: a right is missing".to_owned(),
        &format!("the API server refused to let this run {}; {cost}", cluster.dataplane_denied.join(", ")),
        "allow these in a Role of kube-system (rbac.serviceProxy of the chart does), or state the mode: \
         --assume-service-proxy iptables or nftables",
    ))
}
