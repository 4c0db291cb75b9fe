//! The node agent's actions in cases without a recording: hooks, sidecars, probes, signals, and pods without processes.

use std::sync::Arc;

use serde_json::{Value, json};

use super::case::{Act, Case, EXIT, IGNORE, SERVE_2, SERVE_3, Server};
use super::golden::order_of;
use super::lab::{Lab, Seen};
use super::recordings;

pub(crate) fn cases(lab: &Arc<Lab>) -> Vec<(&'static str, Case)> {
    let server = |name, habit| Case::new(lab, name, habit);
    let delete = Act::Delete(None);
    let get = |path: &str, port: u16| json!({"httpGet": {"path": path, "port": port}});
    let probe = |path: &str| json!({"httpGet": {"path": path, "port": 8080}, "periodSeconds": 1});
    let exit_1 = json!({"exec": {"command": ["sh", "-c", "exit 1"]}});
    let starting = Case::script(
        lab,
        "startup-probe",
        "trap 'say SIGTERM; sleep 5; say ends; exit 0' TERM; while :; do sleep 0.1; done",
    );
    let probed = starting.shell("app", "say probed; exit 1");
    let cases = [
        server("hook-fails", EXIT).hook(exit_1).act(0.0, delete.clone()),
        server("hook-status-500", EXIT).hook(get("/status/500", 8080)).act(0.0, delete.clone()),
        server("hook-refused", EXIT).hook(get("/", 1)).act(0.0, delete.clone()),
        server("hook-and-slow-end", SERVE_3).grace(4).exec_hook(3).act(0.0, delete.clone()),
        server("hooks-of-all", EXIT)
            .grace(10)
            .exec_hook(3)
            .sidecar(&Server::sidecar(EXIT))
            .sidecar_hook(1)
            .act(0.0, delete.clone()),
        server("two-sidecars", EXIT)
            .grace(10)
            .sidecar(&Server { name: "first", habit: EXIT, port: 8081 })
            .sidecar(&Server { name: "second", habit: SERVE_2, port: 8082 })
            .act(0.0, delete.clone()),
        server("two-mains", SERVE_2)
            .beside(&Server { name: "other", habit: EXIT, port: 8081 })
            .act(0.0, delete.clone()),
        // Readiness and liveness probes fail once the app has received the signal.
        server("probes", &["--on-sigterm", "drain", "--drain-for", "6s"])
            .app(|app| {
                app["readinessProbe"] = probe("/readyz");
                app["livenessProbe"] = probe("/readyz");
                app["livenessProbe"]["failureThreshold"] = json!(1);
            })
            .act(0.0, delete.clone()),
        starting
            .app(|app| {
                app["startupProbe"] =
                    json!({"exec": {"command": probed}, "periodSeconds": 1, "failureThreshold": 1000});
            })
            .begins_without_processes(|seen| {
                // Begins after the third failure at the earliest.
                let failed = |seen: &&Seen| seen.object["reason"] == "Unhealthy";
                seen.iter().rfind(failed).is_some_and(|seen| seen.object["count"].as_u64() >= Some(3))
            })
            .act(0.0, delete.clone()),
        server("stop-signal", EXIT)
            .spec("os", json!({"name": "linux"}))
            .app(|app| app["lifecycle"]["stopSignal"] = json!("SIGINT"))
            .act(0.0, delete.clone()),
        // The first process has no handler: SIGTERM does not end it, because it is process 1.
        Case::script(lab, "default-action", "say began; sleep 1000; :").grace(4).act(0.0, delete.clone()),
        Case::script(lab, "shared-pids", "say began; sleep 1000; :")
            .spec("shareProcessNamespace", json!(true))
            .grace(4)
            .act(0.0, delete.clone()),
        Case::script(lab, "finished", "say began; exit 0")
            .spec("restartPolicy", json!("Never"))
            .begins_without_processes(|seen| newest_pod(seen)["status"]["phase"] == "Succeeded")
            .act(0.0, delete.clone()),
        server("unscheduled", EXIT)
            .spec("nodeSelector", json!({"no-node": "has-it"}))
            .begins_without_processes(|seen| newest_pod(seen).is_object())
            .act(0.0, delete.clone()),
        server("second-grace-over", EXIT)
            .hook(json!({"sleep": {"seconds": 6}}))
            .act(0.0, delete.clone())
            .act(4.0, Act::Delete(Some(2))),
        server("negative-grace", IGNORE).act(0.0, Act::Delete(Some(-1))),
        Case::script(lab, "post-start-fails", "say began; sleep 1000; :")
            .app(|app| app["lifecycle"]["postStart"] = json!({"exec": {"command": ["sh", "-c", "exit 1"]}}))
            .grace(2)
            .begins_without_processes(|seen| {
                newest_pod(seen)["status"]["containerStatuses"][0]["restartCount"].as_u64() >= Some(1)
            })
            .act(0.0, delete.clone()),
        server("post-start", EXIT)
            .app(|app| app["lifecycle"]["postStart"] = json!({"sleep": {"seconds": 3}})),
    ];
    cases.into_iter().map(|case| (case.name(), case)).collect()
}

fn newest_pod(seen: &[Seen]) -> &Value {
    seen.iter().rfind(|seen| seen.kind() == "Pod").map_or(&Value::Null, |seen| &seen.object)
}

#[test]
fn failed_hook_only_raises_event() {
    for case in ["hook-fails", "hook-refused"] {
        for ours in recordings(case) {
            assert_eq!(ours.events_by_reason().get("FailedPreStopHook"), Some(&1), "{ours}");
            assert!(ours.fits(ours.first("app SIGTERM"), 0.0..2.0), "{ours}");
        }
    }
}

#[test]
fn hook_http_status_is_ignored() {
    for ours in recordings("hook-status-500") {
        assert_eq!(ours.events_by_reason().get("FailedPreStopHook"), None, "{ours}");
        assert!(ours.fits(ours.first("app SIGTERM"), 0.0..2.0), "{ours}");
    }
}

#[test]
fn hook_time_counts_against_grace_period() {
    for ours in recordings("hook-and-slow-end") {
        let (term, gone) = (ours.first("app SIGTERM"), ours.first("app gone"));
        // The app needs 3 s to stop. The hook has used 3 s of the 4 s grace period, so the app gets the minimum of 2 s.
        assert!(ours.fits(term, 2.9..4.5), "{ours}");
        assert!(ours.fits(gone - term, 1.9..2.8), "{ours}");
        assert_eq!(ours.exit_code("app"), 137, "{ours}");
    }
}

#[test]
fn hooks_of_all_containers_start_together() {
    for ours in recordings("hooks-of-all") {
        let begins = ours.first("app hook begins") - ours.first("proxy hook begins");
        assert!(ours.fits(begins, -1.0..1.0), "{ours}");
        // The sidecar's hook has finished, but its signal waits until the main container has exited.
        assert!(ours.first("proxy hook ends") < ours.first("app SIGTERM"), "{ours}");
        assert!(ours.first("app gone") < ours.first("proxy SIGTERM"), "{ours}");
    }
}

#[test]
fn sidecars_end_in_reverse_start_order() {
    for ours in recordings("two-sidecars") {
        let times =
            ["app gone", "second SIGTERM", "second gone", "first SIGTERM"].map(|what| ours.first(what));
        assert!(times.is_sorted(), "{ours}");
        assert!(times[2] - times[1] > 1.9 - ours.lag_s, "{ours}");
    }
}

#[test]
fn main_containers_get_sigterm_together() {
    for ours in recordings("two-mains") {
        assert!(ours.first("other gone") < ours.first("app gone") - 1.0, "{ours}");
        assert!(ours.fits(ours.first("other SIGTERM") - ours.first("app SIGTERM"), -1.0..1.0), "{ours}");
    }
}

#[test]
fn only_readiness_is_probed_during_termination() {
    for ours in recordings("probes") {
        let order = order_of("EndpointSlice", ours);
        let last_two = [
            "EndpointSlice endpoint ready=false serving=false terminating=true",
            "EndpointSlice no endpoint",
        ];
        assert_eq!(order[1..], last_two, "{ours}");
        assert!(ours.messages("Unhealthy").iter().all(|m| m.starts_with("Readiness")), "{ours}");
        // The node agent does not kill it before its 6 s are over.
        assert_eq!(ours.exit_code("app"), 0, "{ours}");
        assert!(ours.first("app gone") - ours.last("app SIGTERM") > 5.5 - ours.lag_s, "{ours}");
        assert_eq!(ours.count("app SIGTERM"), 1, "{ours}");
    }
}

#[test]
fn startup_probe_stops_at_termination() {
    for ours in recordings("startup-probe") {
        let (term, ends) = (ours.first("app SIGTERM"), ours.first("app ends"));
        // The probe runs each second until the pod is told to terminate; one more may be in flight then.
        assert!(ours.first("app probed") < 0.0, "{ours}");
        assert!(ours.last("app probed") < term + 1.0 + ours.lag_s, "{ours}");
        assert!(ends - term > 4.9, "{ours}");
    }
}

#[test]
fn pid_1_without_handler_needs_sigkill() {
    for ours in recordings("default-action") {
        assert_eq!(ours.exit_code("app"), 137, "{ours}");
        assert!(ours.fits(ours.first("app gone"), 3.9..6.0), "{ours}");
    }
    for ours in recordings("shared-pids") {
        assert_eq!(ours.exit_code("app"), 143, "{ours}");
        assert!(ours.fits(ours.first("app gone"), 0.0..3.0), "{ours}");
    }
    for ours in recordings("E2-ignore-grace5") {
        assert_eq!(ours.exit_code("app"), 137, "{ours}");
    }
}

#[test]
fn pods_without_processes_vanish_immediately() {
    for case in ["finished", "unscheduled"] {
        for ours in recordings(case) {
            assert_eq!(ours.answers[0].status, 200, "{ours}");
            assert!(ours.fits(ours.deleted(), 0.0..1.5), "{ours}");
            let grace = |seen: &Seen| seen.object["metadata"]["deletionGracePeriodSeconds"].as_i64();
            assert!(ours.pods().all(|(_, seen)| grace(seen).unwrap_or(0) == 0), "{ours}");
        }
    }
}

#[test]
fn expired_second_grace_period_becomes_1_s() {
    for ours in recordings("second-grace-over") {
        let (sent_ns, second) = (ours.answers[1].sent_ns, &ours.answers[1].body["metadata"]);
        assert_eq!(second["deletionGracePeriodSeconds"], 1, "{ours}");
        let ends: jiff::Timestamp =
            second["deletionTimestamp"].as_str().expect("a timestamp").parse().expect("a timestamp");
        assert!(ends.as_second() >= sent_ns.div_euclid(1_000_000_000), "not in the past: {ends}\n{ours}");
        // Only the object changes; the kill in progress continues with its hook of 6 s.
        assert!(ours.first("app SIGTERM") > 5.9, "{ours}");
    }
}

#[test]
fn negative_grace_period_becomes_1_s() {
    for ours in recordings("negative-grace") {
        assert_eq!(ours.answers[0].body["metadata"]["deletionGracePeriodSeconds"], 1, "{ours}");
        assert!(ours.fits(ours.first("app gone"), 1.9..4.0), "{ours}");
    }
}

#[test]
fn container_is_unready_during_post_start() {
    for ours in recordings("post-start") {
        let ready = |seen: &Seen| seen.object["status"]["containerStatuses"][0]["ready"] == true;
        let (ready, _) = ours.pod_seen("a ready container", ready);
        assert!(ready - ours.first("app listening") > 2.5, "{ours}");
    }
}

#[test]
fn failed_post_start_hook_kills_container() {
    for ours in recordings("post-start-fails") {
        let failed = |seen: &&Seen| seen.object["reason"] == "FailedPostStartHook";
        assert!(ours.seen.iter().find(failed).is_some_and(|seen| ours.at(seen.at_ns) < 0.0), "{ours}");
        let ready = |seen: &Seen| seen.object["status"]["containerStatuses"][0]["ready"] == true;
        assert!(!ours.seen.iter().any(ready), "it was never ready: {ours}");
    }
}
