//! Puts windows without an upper bound into words: each reason has its own consequence and remedy.

use super::super::format::{count, counted, either, len};
use super::{Words, words};
use rolldrop_explain::model::{NoBound, Unbounded};
use rolldrop_record::run_info::Balances;

/// Explains why a window has no upper bound.
pub(super) fn reason(reason: &Unbounded) -> String {
    match reason {
        Unbounded::NeverRouted => {
            "the pod was never a usable endpoint, so nothing was routed to it".to_owned()
        }
        Unbounded::RequestsMissing { from_s, to_s } => {
            format!("the record lacks requests from {from_s:.3} s to {to_s:.3} s")
        }
        Unbounded::EndpointUnknown => {
            "the EndpointSlices did not show when the pod was a usable endpoint".to_owned()
        }
        Unbounded::Unsettled { after_s } => format!(
            "requests were still being lost when the wait after this termination ended, {after_s:.0} s after t0 \
             (--settle-max)"
        ),
        Unbounded::TooFewArrivals(balances) => format!(
            "fewer than two {} from this client are known to have reached the pod before t0, so their later absence \
             proves nothing",
            arrivals(*balances)
        ),
        Unbounded::TooFewAnswers => {
            "too few connections were answered after the pod's end to show that it got none of them"
                .to_owned()
        }
        Unbounded::LoadEnded { arrivals: balances, observed_s, needed_s } => format!(
            "the load ended {observed_s:.3} s after the last of the pod's {}; {needed_s:.3} s of silence are needed to \
             rule out more",
            arrivals(*balances)
        ),
        Unbounded::PodExited { arrivals: balances, after_s } => format!(
            "the pod exited {after_s:.3} s after t0 while {} still arrived, and a consumer that retries hides later \
             arrivals",
            arrivals(*balances)
        ),
        Unbounded::NoNewConnections { last_after_s } => {
            let why = match last_after_s {
                Some(after_s) if *after_s > 0.0 => {
                    format!("the client opened its last new connection {after_s:.3} s after t0")
                }
                Some(after_s) => {
                    format!("the client opened its last new connection {:.3} s before t0", -after_s)
                }
                None => "the client opened no new connection".to_owned(),
            };
            format!("{why}: requests on kept connections do not show where the Service routes")
        }
        Unbounded::NotRandom(why) => format!("no request names its pod, and {why}"),
        Unbounded::ProxyUnknown => {
            "no request names its pod, and the mode of kube-proxy is unknown".to_owned()
        }
        Unbounded::UrlUnknown => {
            "no request names its pod, and it is unknown what balances requests behind the URL".to_owned()
        }
    }
}

/// Names the unit that a consumer distributes among pods.
const fn arrivals(balances: Balances) -> &'static str {
    match balances {
        Balances::Connections => "new connections",
        Balances::Requests => "requests",
    }
}

/// States that no consumer ever routed to these pods; they do not affect the other windows.
pub(super) fn never_routed(consumer: &str, pods: &[String]) -> Words {
    let what = match pods {
        [pod] => format!("pod {pod} has no window for {consumer}"),
        _ => format!("{} have no window for {consumer}", counted(len(pods.len()), "pod")),
    };
    words(what, reason(&Unbounded::NeverRouted), "")
}

/// States that windows have no upper bound. `denied` lists the permissions that the run lacked to identify the Service
/// proxy.
pub(super) fn unbounded(consumer: &str, pods: &[(String, Unbounded)], denied: &[String]) -> Words {
    let what = match pods {
        [(pod, _)] => format!("the window of pod {pod} for {consumer} has no upper bound"),
        _ => {
            let pods = counted(len(pods.len()), "pod");
            format!("the windows of {pods} for {consumer} have no upper bound")
        }
    };
    let Some((_, first)) = pods.first() else { return words(what, "", "") };
    let first_why = reason(first);
    let why = match pods.iter().all(|(_, why)| reason(why) == first_why) {
        true => first_why,
        false => format!("for example: {first_why}"),
    };
    words(what, why, remedy(first.kind(), denied))
}

/// Returns the remedy that would give such windows an upper bound.
fn remedy(kind: NoBound, denied: &[String]) -> String {
    let names = "have responses name their pod (podHeader, podBody, or the sidecar)";
    match kind {
        NoBound::NeverRouted => String::new(),
        NoBound::NoNewConnections => {
            "send some of the requests on new connections (connections.mode: fresh or mixed)".to_owned()
        }
        NoBound::LoadEnded => "keep the load running longer after the last termination, or raise its rate".to_owned(),
        NoBound::TooFewConnections => {
            "raise the rate of new connections, or keep the load running longer after the termination".to_owned()
        }
        NoBound::PodExited => {
            "set a preStop sleep longer than the window, so that the pod still answers until the gateway stops routing \
             to it (rolldrop tune does that)"
                .to_owned()
        }
        NoBound::NotRandom => format!("{names}; through a Service, --evidence conntrack works too"),
        NoBound::ProxyUnknown => proxy_unknown(denied),
        NoBound::UrlUnknown => format!("{names}, or send the load to the Service (--target svc/NAME)"),
        NoBound::Hole => "repeat the run: the record must be complete between t0 and the bound".to_owned(),
        NoBound::Unsettled => "raise --settle-max to wait longer after each termination".to_owned(),
    }
}

/// Returns the remedy that would let a run identify its Service proxy.
fn proxy_unknown(denied: &[String]) -> String {
    let stated = "state it (--assume-service-proxy iptables or nftables), or have responses name their pod (podHeader, \
                  podBody, or the sidecar)";
    match denied {
        [] => stated.to_owned(),
        denied => format!("allow the run to {}; or {stated}", denied.join(", ")),
    }
}

/// Returns how many of the windows have no upper bound.
pub(crate) fn unbounded_of(unbounded: u64, windows: u64) -> String {
    let have = either(windows, "has", "have");
    format!("{} of {} {have} no upper bound", count(unbounded), counted(windows, "window"))
}

/// States that a missing permission hides the kind of Service proxy, and the consequence.
pub(super) fn right_missing(denied: &[String], unbounded: usize, windows: u64) -> Words {
    let cost = match unbounded {
        0 => "no window of this run depends on it".to_owned(),
        _ => format!(
            "where no request names its pod, only the mode shows that connections are balanced at random; without it, \
             {}, and no sleep is suggested",
            unbounded_of(len(unbounded), windows)
        ),
    };
    words(
        "the mode of kube-proxy could not be read: a permission is missing",
        format!("the API server refused to let this run {}; {cost}", denied.join(", ")),
        "allow this with a Role in kube-system (the chart's rbac.serviceProxy does), or state the mode: \
         --assume-service-proxy iptables or nftables",
    )
}
