//! Claims in articles about pod termination, numbered as in `docs/sources.md`.

use std::sync::Arc;

use serde_json::json;

use super::case::{Act, Case, SERVE_2};
use super::lab::{Lab, Seen};
use super::recordings;
use crate::lab::may_get_pods;

/// Returns cases that no other module has.
pub(crate) fn cases(lab: &Arc<Lab>) -> Vec<(&'static str, Case)> {
    let c6 = Case::new(lab, "c06", SERVE_2).grace(10).exec_hook(5);
    let post_start = c6.shell("app", "say 'post start begins'; sleep 5; say 'post start ends'");
    let nginx = |name| {
        let told = "trap 'say SIGQUIT; exit 0' QUIT; trap 'say SIGUSR1; exit 0' USR1; trap 'say SIGTERM; exit 0' TERM";
        let script = format!("{told}; while :; do sleep 0.1; done");
        Case::script(lab, name, &script).app(|app| app["image"] = json!("docker.io/library/nginx:1.27"))
    };
    let [role, binding] = may_get_pods();
    let cases = [
        nginx("image-stop-signal").act(0.0, Act::Delete(None)),
        nginx("image-and-own-stop-signal")
            .spec("os", json!({"name": "linux"}))
            .app(|app| app["lifecycle"]["stopSignal"] = json!("SIGUSR1"))
            .act(0.0, Act::Delete(None)),
        c6.app(|app| app["lifecycle"]["postStart"] = json!({"exec": {"command": post_start}}))
            .act(0.0, Act::Delete(None)),
        Case::new(lab, "c08", &["--on-sigterm", "drain", "--drain-for", "10s"])
            .grace(8)
            .hook(json!({"sleep": {"seconds": 5}}))
            .act(0.0, Act::Delete(None)),
        Case::new(lab, "c09", &["--on-sigterm", "drain", "--drain-for", "10s", "--ask-api-every", "1s"])
            .grace(8)
            .object(role.0, role.1)
            .object(binding.0, binding.1)
            .hook(json!({"sleep": {"seconds": 5}}))
            .act(0.0, Act::Delete(None)),
    ];
    cases.into_iter().map(|case| (case.name(), case)).collect()
}

/// Returns the seconds between two dates of the API.
fn seconds_between(from: &serde_json::Value, to: &serde_json::Value) -> i64 {
    let date = |value: &serde_json::Value| -> jiff::Timestamp {
        value.as_str().expect("a timestamp").parse().expect("a timestamp")
    };
    date(to).as_second() - date(from).as_second()
}

#[test]
fn c01_deletion_sets_timestamp_and_grace() {
    for ours in recordings("A") {
        let (_, pod) =
            ours.pod_seen("a deletion", |seen| seen.object["metadata"]["deletionTimestamp"].is_string());
        assert_eq!(pod["metadata"]["deletionGracePeriodSeconds"], 30, "{ours}");
        // The time of the request plus the grace period, truncated to whole seconds.
        let answer = &ours.answers[0];
        let written: jiff::Timestamp =
            pod["metadata"]["deletionTimestamp"].as_str().expect("a timestamp").parse().expect("a timestamp");
        let cut = |ns: i64| ns.div_euclid(1_000_000_000) + 30;
        let fits = (cut(answer.sent_ns)..=cut(answer.answered_ns)).contains(&written.as_second());
        assert!(fits, "{written}\n{ours}");
        assert_eq!(answer.body["metadata"]["deletionTimestamp"], pod["metadata"]["deletionTimestamp"]);
        assert_eq!(pod["status"]["phase"], "Running", "Terminating is not a phase: {ours}");
    }
}

#[test]
fn c03_hook_precedes_sigterm_and_sigkill() {
    for ours in recordings("A") {
        assert!(ours.fits(ours.first("app SIGTERM"), 0.0..1.0), "immediately without a hook: {ours}");
    }
    for ours in recordings("E5-hook20-grace30-then5-after3-exit") {
        assert!(ours.first("app hook ends") < ours.first("app SIGTERM"), "{ours}");
    }
    for ours in recordings("E5-grace30-then0-after3-ignore") {
        let (term, gone) = (ours.first("app SIGTERM"), ours.first("app gone"));
        assert!(ours.fits(gone - term, 29.9..31.5), "{ours}");
    }
}

#[test]
fn c05_longer_grace_period_widens_termination_gap() {
    for (case, expected) in [("E2-ignore-grace5", 3.9..6.5), ("E4-grace40-over-spec10-ignore", 38.9..41.5)] {
        for ours in recordings(case) {
            let order = super::golden::order(ours);
            let (terminating, _) = order
                .iter()
                .find(|(_, text)| text.contains("terminating=true"))
                .expect("a terminating endpoint");
            assert!(ours.fits(ours.first("app gone") - terminating, expected.clone()), "{ours}");
        }
    }
}

#[test]
fn c06_lifecycle_steps_keep_order() {
    for ours in recordings("c06") {
        // The container and its postStart hook run in parallel, so the server listens long before the hook has ended.
        assert!(ours.first("app listening") < ours.first("app post start ends") - 3.0, "{ours}");
        let (hook_ends, term) = (ours.first("app hook ends"), ours.first("app SIGTERM"));
        assert!(ours.fits(hook_ends, 4.9..6.5) && ours.fits(term - hook_ends, 0.0..1.0), "{ours}");
        let gone = ours.first("app gone");
        assert!(ours.fits(gone - term, 1.9..3.0) && ours.fits(gone, 0.0..9.5), "{ours}");
        assert_eq!(ours.exit_code("app"), 0, "{ours}");
    }
}

#[test]
fn c07_overlong_hook_continues_past_sigterm() {
    for ours in recordings("E1-prestop15-grace10-ignore") {
        let (term, gone) = (ours.first("app SIGTERM"), ours.first("app gone"));
        assert!(ours.fits(term, 9.9..11.5), "{ours}");
        assert!(ours.fits(gone - term, 1.9..3.0), "an extension of 2 s: {ours}");
        assert!(ours.last("app hook ticks") > term, "{ours}");
    }
}

#[test]
fn c08_hook_and_shutdown_share_grace_period() {
    for ours in recordings("c08") {
        let (term, gone) = (ours.first("app SIGTERM"), ours.first("app gone"));
        assert!(ours.fits(term, 4.9..6.5), "{ours}");
        // The app does not get the full 8 s after SIGTERM, only what the hook left, and is killed midway.
        assert!(ours.fits(gone, 7.9..9.5), "{ours}");
        assert_eq!((ours.exit_code("app"), ours.count("app exiting")), (137, 0), "{ours}");
    }
}

#[test]
fn c09_api_answers_terminating_pod() {
    for ours in recordings("c09") {
        let gone = ours.first("app gone");
        assert!(ours.fits(gone, 7.9..9.5), "{ours}");
        let answered =
            ours.process.iter().filter(|(at, what)| *at > 0.0 && what == "app api answered").count();
        assert!(
            answered >= 4 && ours.last("app api answered") > gone - 2.0 - ours.lag_s,
            "{answered}: {ours}"
        );
        let not_answered = ["app api failed", "app api refused"];
        let is_not_answered = |(at, what): &(f64, String)| *at > 0.0 && not_answered.contains(&what.as_str());
        assert!(!ours.process.iter().any(is_not_answered), "{ours}");
    }
}

#[test]
fn c10_stop_signal_replaces_sigterm() {
    for ours in recordings("stop-signal") {
        assert!(ours.fits(ours.first("app SIGINT"), 0.0..1.5), "{ours}");
        assert_eq!(ours.count("app SIGTERM"), 0, "{ours}");
    }
}

#[test]
fn c10_container_stop_signal_overrides_image() {
    for (case, signal) in [("image-stop-signal", "SIGQUIT"), ("image-and-own-stop-signal", "SIGUSR1")] {
        for ours in recordings(case) {
            assert!(ours.fits(ours.first(&format!("app {signal}")), 0.0..1.5), "{ours}");
            let signals = ["SIGQUIT", "SIGUSR1", "SIGTERM"].map(|name| ours.count(&format!("app {name}")));
            assert_eq!(signals.iter().sum::<usize>(), 1, "{ours}");
        }
    }
}

#[test]
fn c12_deleted_pod_leaves_endpoints() {
    for ours in recordings("Bsleep") {
        // The legacy object drops the address at the deletion; the slice keeps it, as terminating.
        let emptied = ours.seen.iter().find(|seen| {
            seen.kind() == "Endpoints"
                && ours.at(seen.at_ns) >= 0.0
                && seen.object["subsets"].as_array().is_none_or(Vec::is_empty)
        });
        let emptied = ours.at(emptied.unwrap_or_else(|| panic!("Endpoints keep it\n{ours}")).at_ns);
        assert!(ours.fits(emptied, 0.0..1.5), "{ours}");
        let order = super::golden::order(ours);
        let slice = |text: &str| order.iter().find(|(_, t)| t == text).expect("it was seen").0;
        let terminating = slice("EndpointSlice endpoint ready=false serving=true terminating=true");
        assert!(ours.fits(terminating, 0.0..1.5), "{ours}");
        assert!(slice("EndpointSlice no endpoint") > 3.0, "{ours}");
    }
}

#[test]
fn c13_final_grace_period_is_zero() {
    for ours in recordings("A") {
        let zero = |seen: &Seen| seen.object["metadata"]["deletionGracePeriodSeconds"] == 0;
        let (at, pod) = ours.pod_seen("grace 0", zero);
        assert!(at > ours.first("app gone") && at <= ours.deleted(), "{ours}");
        let (_, first) =
            ours.pod_seen("a deletion", |seen| seen.object["metadata"]["deletionTimestamp"].is_string());
        let sooner =
            seconds_between(&pod["metadata"]["deletionTimestamp"], &first["metadata"]["deletionTimestamp"]);
        // Both are in whole seconds, and the object was written before it was seen.
        let fits = f64::from(i32::try_from(sooner).expect("at most a minute"));
        assert!(fits > 30.0 - at - 1.0 && fits <= 30.0, "it ends now instead of in 30 s: {sooner}\n{ours}");
    }
    for ours in recordings("E3-force-ignore-grace30") {
        assert!(ours.fits(ours.deleted(), 0.0..1.5), "{ours}");
    }
}

#[test]
fn c14_endpoint_follows_reported_address() {
    for ours in recordings("F") {
        let scheduled = ours.pod_seen("a node", |seen| seen.object["spec"]["nodeName"].is_string()).0;
        let address = ours.pod_seen("an address", |seen| seen.object["status"]["podIP"].is_string()).0;
        let order = super::golden::order(ours);
        let (endpoint, _) = order.iter().find(|(_, text)| text.starts_with("Endpoint")).expect("an endpoint");
        // The slice arrives on a different watch.
        assert!(scheduled < address && address < endpoint + 0.05 + ours.lag_s, "{ours}");
    }
}

#[test]
fn c17_continued_serving_outlasts_removal() {
    for ours in recordings("Bserve") {
        let order = super::golden::order(ours);
        let (terminating, _) =
            order.iter().find(|(_, t)| t.contains("terminating=true")).expect("it was seen");
        assert!(ours.first("app stopped accepting") - terminating > 2.0 - ours.lag_s, "{ours}");
    }
}
