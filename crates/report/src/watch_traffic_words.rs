//! Sentences about requests at terminating pods, as gateways' logs and sidecars' journals show them.

use std::collections::BTreeMap;

use rolldrop_explain::count::workload_ranking::{LongestWindow, UnresolvedWindow, WorkloadTraffic};
use rolldrop_explain::model::{
    Bounded, Cause, NoBound, SIDECAR_ENDED, TerminationTraffic, TrafficWitness, WatchedMode,
    WatchedTermination, Window,
};

use super::format::{bounded, count, counted, either, list, seconds};

/// Minimum share of a window's upper bound that makes the width of t0 worth mentioning.
const WIDE: f64 = 0.1;

/// Returns the parts of a termination's line that concern requests.
pub(super) fn termination_traffic(end: &WatchedTermination, traffic: &TerminationTraffic) -> Vec<String> {
    let is_by_sidecar = traffic.seen_by == TrafficWitness::Sidecar;
    let of_requests = if is_by_sidecar {
        format!("{} that reached its sidecar", counted(traffic.requests, "request"))
    } else {
        requests(traffic.requests, &traffic.by_services)
    };
    let mut parts = vec![lost_requests(&traffic.lost, &of_requests, traffic.by_cause.keys())];
    parts.extend(named_services(&traffic.by_services).map(|named| format!("{named}: matched by time alone")));
    let if_known = |what, number: Option<Bounded>| match number {
        Some(number) => (number.at_most > 0).then(|| format!("{what}: {}", bounded(&number))),
        None => Some(format!("{what}: not observable")),
    };
    parts.extend(if_known("streams cut", traffic.streams_cut));
    parts.extend(background(traffic.background.as_ref(), &traffic.lost));
    parts.extend(if_known("saved by retries", traffic.saved_by_retries));
    if traffic.not_observable > 0 {
        parts.push(match traffic.seen_by {
            TrafficWitness::Gateways => format!(
                "{} may be incomplete: the log does not say",
                counted(traffic.not_observable, "response")
            ),
            TrafficWitness::Sidecar => {
                format!("it is not known what became of {}", counted(traffic.not_observable, "request"))
            }
        });
    }
    let is_needed = end.mode != WatchedMode::NodeShutdown
        && traffic.by_cause.keys().any(|cause| cause.is_helped_by_sleep());
    parts.extend(traffic.windows.iter().filter_map(|of| match of.is_unresolved() {
        true => is_needed.then(|| {
            let why = unresolved_because(&UnresolvedWindow::of(end, traffic));
            format!("the time for which {} used it is not resolved, as {why}", of.consumer)
        }),
        false => window(end, of),
    }));
    let other = traffic.gaps.iter().filter(|gap| gap.why.as_deref() != Some(SIDECAR_ENDED));
    let mut gaps: Vec<&str> = other.map(|gap| gap.source.as_str()).collect();
    gaps.dedup();
    if !gaps.is_empty() {
        parts.push(format!("lines from {} may be missing", list(&gaps)));
    }
    parts.extend(is_by_sidecar.then(|| "requests after its sidecar had ended are not known".to_owned()));
    parts
}

/// Returns the number of requests to the pods. If a log names only their Service, the number is an upper bound.
fn requests(at_pods: u64, by_services: &BTreeMap<String, u64>) -> String {
    let up_to = if by_services.is_empty() { "" } else { "up to " };
    format!("{up_to}{}", counted(at_pods + by_services.values().sum::<u64>(), "request"))
}

/// States which Services the logs name instead of pods, if they name any.
fn named_services(by_services: &BTreeMap<String, u64>) -> Option<String> {
    let names: Vec<String> = by_services.keys().map(|name| format!("Service {name}")).collect();
    (!names.is_empty()).then(|| format!("the log names {}, not its pods", list(&names)))
}

fn lost_requests<'c>(lost: &Bounded, requests: &str, causes: impl Iterator<Item = &'c Cause>) -> String {
    let causes: Vec<String> = causes.map(ToString::to_string).collect();
    let causes = if causes.is_empty() { String::new() } else { format!(" ({})", list(&causes)) };
    match lost.at_most {
        0 => format!("lost none of {requests}"),
        _ => format!("LOST {} of {requests}{causes}", bounded(lost)),
    }
}

/// Returns how many of the lost requests would be expected without the termination, unless none would be.
fn background(background: Option<&Bounded>, lost: &Bounded) -> Option<String> {
    match background {
        _ if lost.at_most == 0 => None,
        None => Some("it is not known how many would be lost without the termination".to_owned()),
        Some(background) if background.at_most == 0 => None,
        Some(background) => {
            Some(format!("without the termination, {} would be expected", bounded(background)))
        }
    }
}

/// Returns how precisely the time of a deletion is known, with advice if beats would date it.
fn known_within(t0_width_s: f64, has_beats: bool) -> String {
    format!("to within {} s{}", seconds(t0_width_s), if has_beats { "" } else { " (add --beats)" })
}

/// Returns the larger of the two uncertainties that hide a window.
fn unresolved_because(window: &UnresolvedWindow) -> String {
    let UnresolvedWindow { t0_width_s, clock_width_s, has_beats } = *window;
    match t0_width_s > clock_width_s {
        true => format!("the deletion is known only {}", known_within(t0_width_s, has_beats)),
        false => format!("the log's clock is known only to within {} s", seconds(clock_width_s)),
    }
}

/// Returns for how long a gateway used the pod after its deletion, if it did.
fn window(end: &WatchedTermination, window: &Window) -> Option<String> {
    let lower_s = window.lower_s.filter(|lower_s| *lower_s > 0.0)?;
    let width_s = end.t0_width_s();
    let until = match (window.upper_s, window.censored_reason) {
        (Some(upper_s), _) if width_s >= WIDE * upper_s => {
            format!(
                "at most {} s, with its deletion known to within {} s",
                seconds(upper_s),
                seconds(width_s)
            )
        }
        (Some(upper_s), _) => format!("at most {} s", seconds(upper_s)),
        (None, Some(NoBound::PodExited)) => "until the pod was gone".to_owned(),
        (None, _) => "but it is not known for how much longer".to_owned(),
    };
    Some(format!("{} used it for at least {} s, {until}", window.consumer, seconds(lower_s)))
}

/// Returns the sentences that follow from a workload's lost requests.
pub(super) fn workload_traffic(name: &str, traffic: &WorkloadTraffic, terminations: u64) -> Option<String> {
    if traffic.lost.at_most == 0 {
        return None;
    }
    let mut sentences = vec![format!(
        "{name}: {} of {} {} lost at {}.",
        bounded(&traffic.lost),
        requests(traffic.requests, &traffic.by_services),
        either(traffic.lost.at_most, "was", "were"),
        counted(traffic.terminations, "terminating pod")
    )];
    if traffic.streams_cut.at_most > 0 {
        sentences.push(format!("Streams cut among them: {}.", bounded(&traffic.streams_cut)));
    }
    if traffic.streams_cut_unknown > 0 {
        let unknown = count(traffic.streams_cut_unknown);
        sentences.push(format!("For {unknown} of the terminations, it is not known which streams were cut."));
    }
    if traffic.saved_by_retries.at_most > 0 {
        sentences.push(format!("Retries saved {} more.", bounded(&traffic.saved_by_retries)));
    }
    if traffic.saved_by_retries_unknown > 0 {
        let unknown = count(traffic.saved_by_retries_unknown);
        sentences.push(format!(
            "For {unknown} of the terminations, it is not known which requests retries saved."
        ));
    }
    let background = traffic.background.limits();
    if background.at_most > 0 {
        let expected = bounded(&background);
        sentences.push(format!("Without terminations, {expected} would be expected."));
    }
    if traffic.lost_without_background > 0 {
        let unknown = count(traffic.background_unknown);
        sentences.push(format!(
            "For {unknown} of the terminations, it is not known how many would be lost without them."
        ));
    }
    if traffic.with_gaps > 0 {
        let gaps = count(traffic.with_gaps);
        sentences.push(format!(
            "For {gaps} of the terminations, not all requests are known: losses may be missing."
        ));
    }
    if traffic.not_observable > 0 {
        let unknown = counted(traffic.not_observable, "request");
        sentences.push(format!("It is not known what became of {unknown}."));
    }
    if traffic.terminations < terminations {
        let unseen = counted(terminations - traffic.terminations, "more pod");
        sentences.push(format!("The logs do not name {unseen} that terminated: losses may be missing."));
    }
    if let Some(named) = named_services(&traffic.by_services) {
        let named = named.replacen("the log", "The log", 1);
        sentences.push(format!(
            "{named}: losses are matched by time alone, and it is not known for how long a pod was used. \
             docs/access-logs.md has the settings with which gateways log pods' addresses."
        ));
    }
    sentences.extend(remedies(traffic));
    Some(sentences.join(" "))
}

/// Returns the settings that would save lost requests, by the causes of the losses.
fn remedies(traffic: &WorkloadTraffic) -> Vec<String> {
    // Failures that pods have without any termination call for no other setting.
    if traffic.surely_lost() == 0 && traffic.lost_without_background == 0 {
        return Vec::new();
    }
    let of_causes = traffic.by_cause.iter();
    let helped_by_sleep =
        of_causes.filter(|(cause, _)| cause.is_helped_by_sleep()).map(|(_, lost)| lost.at_most);
    let mut remedies = Vec::new();
    if traffic.lost_by_shutdowns.at_most > 0 {
        remedies.push(
            "A node's shutdown ends pods without deleting them, so gateways use them until they have ended, however long \
             they sleep: drain the node first."
                .to_owned(),
        );
    }
    if helped_by_sleep.sum::<u64>() > traffic.lost_by_shutdowns.at_most {
        remedies.push(match (&traffic.longest_window, &traffic.unresolved_window) {
            (Some(longest), _) => sleep(longest),
            (None, Some(window)) => format!(
                "A preStop sleep keeps a pod alive until gateways no longer use it; the required length is not \
                 resolved, as {}.",
                unresolved_because(window)
            ),
            (None, None) => {
                "A preStop sleep keeps a pod alive until gateways no longer use it; these logs do not \
                     show how long it must be."
                    .to_owned()
            }
        });
    }
    let in_flight = [Cause::KilledInFlight, Cause::CutAtSigterm].map(|cause| traffic.by_cause.get(&cause));
    let in_flight: u64 = in_flight.into_iter().flatten().map(|lost| lost.at_most).sum();
    if traffic.streams_cut.at_most > 0 {
        remedies.push(
            "A preStop sleep saves only streams that end before it does: the app should end its streams on SIGTERM. \
             If that takes longer than the rest of the grace period, raise terminationGracePeriodSeconds; `rolldrop tune \
             --grace` finds how long streams need."
                .to_owned(),
        );
    }
    if in_flight > traffic.streams_cut.at_least {
        remedies.push(
            "Some pods exited with requests in flight: the app should stop accepting connections at SIGTERM, and \
             finish what it has accepted."
                .to_owned(),
        );
    }
    if traffic.by_cause.contains_key(&Cause::RefusedWhileEnding) {
        remedies.push(
            "Some pods refused requests while terminating: the app should serve normally until gateways no longer \
             use it."
                .to_owned(),
        );
    }
    remedies
}

fn sleep(longest: &LongestWindow) -> String {
    let LongestWindow { lower_s, upper_s, consumer, mode, pre_stop_sleep_s, t0_width_s, has_beats } = longest;
    let least = lower_s.ceil();
    let mode = match mode {
        WatchedMode::Rollout => "a rollout",
        WatchedMode::ScaleDown => "a scale-down",
        WatchedMode::Eviction => "an eviction",
        WatchedMode::Drain => "a drain",
        WatchedMode::NodeShutdown => "a node shutdown",
        WatchedMode::Other => "a deletion",
    };
    let used =
        format!("In {mode}, {consumer} used a pod for at least {} s after its deletion", seconds(*lower_s));
    let slept = pre_stop_sleep_s.filter(|slept| *slept > 0 && *slept as f64 >= least);
    match (slept, upper_s) {
        (Some(slept), Some(upper_s)) if slept as f64 >= *upper_s => format!(
            "{used} and at most {} s, and pods sleep for {slept} s. The sleep does not explain the losses: `rolldrop tune` \
             measures what does.",
            seconds(*upper_s)
        ),
        (Some(slept), Some(upper_s)) => format!(
            "{used} and at most {} s, and pods sleep for {slept} s, which may be too short: {} s are enough for that \
             use.",
            seconds(*upper_s),
            upper_s.ceil()
        ),
        (Some(slept), None) => format!(
            "{used}, and pods sleep for {slept} s, which may be too short. How long a sleep must be is not known until \
             one outlasts that use."
        ),
        (None, Some(upper_s)) => {
            let most = upper_s.ceil().max(least);
            let range = if most > least { format!("{least} to {most} s") } else { format!("{least} s") };
            // With an exact time of the deletion, the range might be narrower.
            let is_widened = (upper_s - t0_width_s).ceil().max(least) < most;
            let within = if is_widened {
                format!("; its deletion is known only {}", known_within(*t0_width_s, *has_beats))
            } else {
                String::new()
            };
            format!(
                "{used} and at most {} s: that pod would have needed a preStop sleep of {range}{within}.",
                seconds(*upper_s)
            )
        }
        (None, None) => format!(
            "{used}: a preStop sleep of {least} s or more is needed. How much more is not known until a sleep outlasts \
             that use."
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rolldrop_explain::model::LogGap;
    use rolldrop_record::Stamp;

    /// Returns a termination that began within the first 0.8 s.
    fn dated(has_beats: bool) -> WatchedTermination {
        let t0 = Stamp::default();
        WatchedTermination {
            t0_earliest_ns: t0,
            t0_latest_ns: t0.shifted_ns(800_000_000),
            has_beats,
            ..crate::watch_lines::tests::end()
        }
    }

    fn at_gateway(lower_s: Option<f64>, upper_s: Option<f64>) -> Window {
        Window {
            consumer: "edge/envoy".to_owned(),
            lower_s,
            upper_s,
            lower_basis: None,
            upper_basis: None,
            censored: None,
            censored_reason: None,
            rate_before: 1.0,
            late_arrivals: 0,
        }
    }

    #[test]
    fn termination_parts_state_bounds() {
        let lost = Bounded::exactly(3);
        let traffic = TerminationTraffic {
            requests: 1234,
            lost,
            streams_cut: Some(Bounded::exactly(1)),
            by_cause: BTreeMap::from([(Cause::GatewayToDeadPod, lost)]),
            saved_by_retries: Some(Bounded { at_least: 1, at_most: 2, estimate: 1.5 }),
            not_observable: 1,
            background: Some(Bounded { at_least: 0, at_most: 1, estimate: 0.2 }),
            windows: vec![
                at_gateway(Some(0.4), Some(1.25)),
                at_gateway(Some(0.5), Some(8.5)),
                at_gateway(Some(0.0), Some(0.1)),
            ],
            clock_width_s: 0.0,
            gaps: vec![LogGap {
                source: "edge/envoy".to_owned(),
                from_ns: Stamp::default(),
                to_ns: None,
                why: None,
            }],
            ..TerminationTraffic::default()
        };
        assert_eq!(
            termination_traffic(&dated(false), &traffic).join("; "),
            "LOST 3 of 1,234 requests (gateway_to_dead_pod); streams cut: 1; without the termination, up to 1 (best estimate 0.2) would be \
             expected; saved by retries: 1 to 2 (best estimate 1.5); 1 response may be incomplete: the log does not say; edge/envoy used it \
             for at least 0.400 s, at most 1.250 s, with its deletion known to within 0.800 s; edge/envoy used it for at \
             least 0.500 s, at most 8.500 s; lines from edge/envoy may be missing"
        );
        let unseen = TerminationTraffic { requests: 1, ..TerminationTraffic::default() };
        let [cut, saved] = ["streams cut: not observable", "saved by retries: not observable"];
        assert_eq!(termination_traffic(&dated(false), &unseen), ["lost none of 1 request", cut, saved]);
        let known = Some(Bounded::default());
        let none = TerminationTraffic { streams_cut: known, saved_by_retries: known, ..unseen };
        assert_eq!(termination_traffic(&dated(false), &none), ["lost none of 1 request"]);
    }

    #[test]
    fn services_in_logs_are_named() {
        let lost = Bounded { at_least: 0, at_most: 4, estimate: 3.5 };
        let by_services = BTreeMap::from([("shop/web".to_owned(), 120)]);
        let traffic =
            TerminationTraffic { lost, by_services: by_services.clone(), ..TerminationTraffic::default() };
        assert_eq!(
            termination_traffic(&dated(false), &traffic)[..2],
            [
                "LOST up to 4 (best estimate 3.5) of up to 120 requests",
                "the log names Service shop/web, not its pods: matched by time alone"
            ]
        );
        let none = TerminationTraffic { lost: Bounded::default(), ..traffic };
        assert_eq!(termination_traffic(&dated(false), &none)[0], "lost none of up to 120 requests");
        let workload = WorkloadTraffic { terminations: 2, lost, by_services, ..WorkloadTraffic::default() };
        assert_eq!(
            workload_traffic("web", &workload, workload.terminations).unwrap(),
            "web: up to 4 (best estimate 3.5) of up to 120 requests were lost at 2 terminating pods. The log names Service shop/web, \
             not its pods: losses are matched by time alone, and it is not known for how long a pod was used. \
             docs/access-logs.md has the settings with which gateways log pods' addresses."
        );
    }

    #[test]
    fn sidecar_parts_state_unknown_requests() {
        let gap = |why: &str| LogGap {
            source: "shop/web-1/rolldrop".to_owned(),
            from_ns: Stamp::default(),
            to_ns: Some(Stamp::default()),
            why: Some(why.to_owned()),
        };
        let mut traffic = TerminationTraffic {
            seen_by: TrafficWitness::Sidecar,
            requests: 44,
            lost: Bounded::exactly(4),
            streams_cut: Some(Bounded::default()),
            by_cause: BTreeMap::from([(Cause::RoutedToDeadPod, Bounded::exactly(4))]),
            windows: vec![Window {
                consumer: "clients of shop/deployment/web".to_owned(),
                ..at_gateway(Some(1.5), None)
            }],
            gaps: vec![gap(SIDECAR_ENDED)],
            ..TerminationTraffic::default()
        };
        let text = |traffic: &TerminationTraffic| termination_traffic(&dated(false), traffic).join("; ");
        assert_eq!(
            text(&traffic),
            "LOST 4 of 44 requests that reached its sidecar (routed_to_dead_pod); it is not known how many would be \
             lost without the termination; saved by retries: not observable; clients of shop/deployment/web used it \
             for at least 1.500 s, but it is not known for how much longer; \
             requests after its sidecar had ended are not known"
        );
        traffic.gaps.push(gap("log interrupted"));
        traffic.not_observable = 2;
        for part in [
            "; it is not known what became of 2 requests;",
            "; lines from shop/web-1/rolldrop may be missing;",
        ] {
            assert!(text(&traffic).contains(part), "{part}\n{}", text(&traffic));
        }
    }

    #[test]
    fn window_within_t0_width_is_not_resolved() {
        let lost = |cause| TerminationTraffic {
            lost: Bounded::exactly(2),
            by_cause: BTreeMap::from([(cause, Bounded::exactly(2))]),
            windows: vec![at_gateway(None, Some(1.25))],
            ..TerminationTraffic::default()
        };
        let text = |has_beats, cause| termination_traffic(&dated(has_beats), &lost(cause)).join("; ");
        let (dead, part) = (
            Cause::GatewayToDeadPod,
            "the time for which edge/envoy used it is not resolved, as the deletion is known only to within 0.800 s",
        );
        assert!(text(false, dead).ends_with(&format!("{part} (add --beats)")), "{}", text(false, dead));
        assert!(text(true, dead).ends_with(part), "{}", text(true, dead));
        assert!(!text(false, dead).contains("1.250"), "a window that may not exist has no figure");
        // Beats would not help.
        let vague = TerminationTraffic { clock_width_s: 0.9, ..lost(dead) };
        let text_of_vague = termination_traffic(&dated(false), &vague).join("; ");
        assert!(
            text_of_vague.ends_with("as the log's clock is known only to within 0.900 s"),
            "{text_of_vague}"
        );
        // No sleep avoids these losses.
        assert!(!text(false, Cause::KilledInFlight).contains("not resolved"));
    }

    fn longest(upper_s: Option<f64>, pre_stop_sleep_s: Option<i64>) -> LongestWindow {
        LongestWindow {
            lower_s: 1.4,
            upper_s,
            consumer: "edge/envoy".to_owned(),
            mode: WatchedMode::Rollout,
            pre_stop_sleep_s,
            t0_width_s: 0.9,
            has_beats: false,
        }
    }

    fn lost(cause: Cause, longest_window: Option<LongestWindow>) -> WorkloadTraffic {
        WorkloadTraffic {
            terminations: 10,
            requests: 4102,
            lost: Bounded::exactly(31),
            by_cause: BTreeMap::from([(cause, Bounded::exactly(31))]),
            longest_window,
            ..WorkloadTraffic::default()
        }
    }

    #[test]
    fn sleep_is_blamed_only_if_it_outlasts_use() {
        for (upper_s, part) in [
            (Some(3.2), "and at most 3.200 s, and pods sleep for 5 s. The sleep does not explain the losses"),
            (Some(5.2), "pods sleep for 5 s, which may be too short: 6 s are enough"),
            (None, "pods sleep for 5 s, which may be too short. How long a sleep must be is not known"),
        ] {
            let traffic = lost(Cause::GatewayToDeadPod, Some(longest(upper_s, Some(5))));
            let text = workload_traffic("web", &traffic, traffic.terminations).unwrap();
            assert!(text.contains(part), "{part}\n{text}");
        }
    }

    #[test]
    fn advice_follows_from_causes_and_windows() {
        let dead = Cause::GatewayToDeadPod;
        let unresolved = |has_beats| WorkloadTraffic {
            unresolved_window: Some(UnresolvedWindow { t0_width_s: 0.8, clock_width_s: 0.5, has_beats }),
            ..lost(dead, None)
        };
        for (traffic, part) in [
            (
                lost(dead, Some(longest(None, Some(0)))),
                "a preStop sleep of 2 s or more is needed. How much more is not",
            ),
            (
                lost(dead, Some(longest(Some(3.2), None))),
                "of 2 to 4 s; its deletion is known only to within 0.900 s (add --beats).",
            ),
            (lost(dead, Some(longest(Some(4.0), None))), "would have needed a preStop sleep of 2 to 4 s."),
            (
                lost(dead, Some(LongestWindow { has_beats: true, ..longest(Some(3.2), None) })),
                "of 2 to 4 s; its deletion is known only to within 0.900 s.",
            ),
            (
                unresolved(false),
                "is not resolved, as the deletion is known only to within 0.800 s (add --beats).",
            ),
            (unresolved(true), "is not resolved, as the deletion is known only to within 0.800 s."),
            (lost(dead, None), "these logs do not show how long it must be."),
            (lost(Cause::KilledInFlight, None), "stop accepting connections at SIGTERM"),
            (lost(Cause::RefusedWhileEnding, None), "serve normally until gateways"),
        ] {
            let text = workload_traffic("shop Deployment web", &traffic, traffic.terminations).unwrap();
            assert!(
                text.starts_with(
                    "shop Deployment web: 31 of 4,102 requests were lost at 10 terminating pods."
                )
            );
            assert!(text.contains(part), "{part}\n{text}");
        }
        let usual = WorkloadTraffic {
            background: Bounded { at_least: 20, at_most: 40, estimate: 30.0 }.into(),
            ..lost(dead, Some(longest(None, None)))
        };
        let text = workload_traffic("web", &usual, usual.terminations).unwrap();
        assert!(
            text.contains("20 to 40 (best estimate 30.0) would be expected") && !text.contains("sleep"),
            "{text}"
        );
        let unknown = WorkloadTraffic {
            background_unknown: 2,
            lost_without_background: 60,
            ..lost(dead, Some(longest(None, None)))
        };
        let text = workload_traffic("web", &unknown, unknown.terminations).unwrap();
        let part = "For 2 of the terminations, it is not known how many would be lost without them.";
        assert!(text.contains(part) && text.contains("sleep"), "{text}");
        assert_eq!(workload_traffic("web", &WorkloadTraffic::default(), 0), None);
    }

    #[test]
    fn node_shutdown_asks_for_drain() {
        let seen = |mode, lost| WatchedTermination {
            mode,
            traffic: Some(TerminationTraffic {
                lost: Bounded::exactly(lost),
                background: Some(Bounded::default()),
                by_cause: BTreeMap::from([(Cause::GatewayToDeadPod, Bounded::exactly(lost))]),
                windows: vec![at_gateway(Some(lost as f64), None)],
                ..TerminationTraffic::default()
            }),
            ..dated(false)
        };
        let said = |ends: &[WatchedTermination]| {
            let mut traffic = WorkloadTraffic::default();
            ends.iter().for_each(|end| traffic.add(end));
            let text = workload_traffic("web", &traffic, traffic.terminations).unwrap();
            [text.contains("drain the node first"), text.contains("a preStop sleep of 3 s")]
        };
        let (shutdown, rollout) = (seen(WatchedMode::NodeShutdown, 9), seen(WatchedMode::Rollout, 3));
        assert_eq!(said(std::slice::from_ref(&shutdown)), [true, false]);
        assert_eq!(said(&[shutdown, rollout.clone()]), [true, true], "the shutdown has the longer window");
        assert_eq!(said(&[rollout]), [false, true]);
    }

    #[test]
    fn workload_sentence_states_unseen_losses() {
        let one = WorkloadTraffic {
            terminations: 2,
            requests: 40,
            lost: Bounded::exactly(1),
            not_observable: 3,
            ..WorkloadTraffic::default()
        };
        assert_eq!(
            workload_traffic("web", &one, 3).unwrap(),
            "web: 1 of 40 requests was lost at 2 terminating pods. It is not known what became of 3 requests. The logs \
             do not name 1 more pod that terminated: losses may be missing."
        );
    }

    #[test]
    fn cut_streams_have_their_own_remedy() {
        let lost = Bounded::exactly(31);
        let (streams, in_flight) = ("A preStop sleep saves only streams", "stop accepting connections");
        for (cut, parts) in [
            (lost, [true, false]),
            (Bounded::exactly(30), [true, true]),
            (Bounded { at_least: 0, at_most: 31, estimate: 9.0 }, [true, true]),
            (Bounded::default(), [false, true]),
        ] {
            let traffic = WorkloadTraffic {
                streams_cut: cut,
                streams_cut_unknown: 2,
                lost,
                by_cause: BTreeMap::from([(Cause::KilledInFlight, lost)]),
                ..WorkloadTraffic::default()
            };
            let text = workload_traffic("web", &traffic, traffic.terminations).unwrap();
            assert_eq!([streams, in_flight].map(|part| text.contains(part)), parts, "{text}");
            let said = format!(" Streams cut among them: {}.", bounded(&cut));
            assert_eq!(text.contains(&said), parts[0], "{text}");
            assert!(
                text.contains("For 2 of the terminations, it is not known which streams were cut."),
                "{text}"
            );
        }
    }
}
