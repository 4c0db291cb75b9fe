//! The recorded cases again: same pods, same acts, same order of API events, same seconds.

use std::sync::Arc;

use serde_json::json;

use super::case::{Act, Case, EXIT, IGNORE, SERVE_2, SERVE_3, Server};
use super::golden::{Golden, order_of};
use super::lab::Lab;
use super::recording::Recording;
use super::recordings;

/// Returns the cases, by the names of the recordings.
pub(crate) fn cases(lab: &Arc<Lab>) -> Vec<(&'static str, Case)> {
    let server = |name, habit| Case::new(lab, name, habit);
    let delete = Act::Delete(None);
    let slow = |seconds: u32| {
        json!({"httpGet": {
            "path": format!("/slow?ms={}", seconds * 1000), "port": 8080,
            "httpHeaders": [{"name": "rolldrop-id", "value": "hook-1"}],
        }})
    };
    let budget = json!({
        "metadata": {"name": "budget"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}},
    });
    let exit_7 = "trap 'say SIGTERM; exit 7' TERM; while :; do sleep 0.1; done";
    let cases = [
        server("F", EXIT),
        server("Elabel", EXIT)
            .act(0.0, Act::Patch("pods/pod-1", json!({"metadata": {"labels": {"app": "other"}}})))
            .act(2.0, Act::Patch("pods/pod-1", json!({"metadata": {"labels": {"app": "web"}}})))
            .act(4.0, delete.clone()),
        server("A", EXIT).act(0.0, delete.clone()),
        server("Bsleep", EXIT).hook(json!({"sleep": {"seconds": 3}})).act(0.0, delete.clone()),
        server("Bhttp", EXIT).hook(slow(3)).act(0.0, delete.clone()),
        server("Bserve", SERVE_3).act(0.0, delete.clone()),
        server("E1-prestop15-grace10-exit", EXIT).grace(10).exec_hook(15).act(0.0, delete.clone()),
        server("E1-prestop15-grace10-ignore", IGNORE).grace(10).exec_hook(15).act(0.0, delete.clone()),
        server("E1-prestop15http-grace10-ignore", IGNORE).grace(10).hook(slow(15)).act(0.0, delete.clone()),
        server("E1-prestop15sleep-grace20-del10-ignore", IGNORE)
            .grace(20)
            .hook(json!({"sleep": {"seconds": 15}}))
            .act(0.0, Act::Delete(Some(10))),
        server("E2-ignore-grace5", IGNORE).grace(5).act(0.0, delete.clone()),
        server("E3-force-hook3-ignore-grace30", IGNORE).exec_hook(3).act(0.0, Act::Delete(Some(0))),
        server("E3-force-http3-exit-grace30", EXIT).hook(slow(3)).act(0.0, Act::Delete(Some(0))),
        server("E3-force-ignore-grace30", IGNORE).act(0.0, Act::Delete(Some(0))),
        server("E3-grace1-ignore", IGNORE).act(0.0, Act::Delete(Some(1))),
        server("E4-grace40-over-spec10-ignore", IGNORE).grace(10).act(0.0, Act::Delete(Some(40))),
        server("E5-grace30-then0-after3-ignore", IGNORE)
            .act(0.0, delete.clone())
            .act(3.0, Act::Delete(Some(0))),
        server("E5-grace30-then5-after3-ignore", IGNORE)
            .act(0.0, delete.clone())
            .act(3.0, Act::Delete(Some(5))),
        server("E5-grace5-then30-after2-ignore", IGNORE)
            .grace(5)
            .act(0.0, delete.clone())
            .act(2.0, Act::Delete(Some(30))),
        server("E5-hook20-grace30-then5-after3-exit", EXIT)
            .exec_hook(20)
            .act(0.0, delete.clone())
            .act(3.0, Act::Delete(Some(5))),
        server("E6-sidecar-exit-main-ignore-grace6", IGNORE)
            .grace(6)
            .sidecar(&Server::sidecar(EXIT))
            .act(0.0, delete.clone()),
        server("E6-sidecar-exit-main-serve2-grace10", SERVE_2)
            .grace(10)
            .sidecar(&Server::sidecar(EXIT))
            .act(0.0, delete.clone()),
        server("E6-sidecar-ignore-main-ignore-grace6", IGNORE)
            .grace(6)
            .sidecar(&Server::sidecar(IGNORE))
            .act(0.0, delete.clone()),
        server("E6-sidecar-serve3-main-exit-hook2-grace10", EXIT)
            .grace(10)
            .exec_hook(2)
            .sidecar(&Server::sidecar(SERVE_3))
            .act(0.0, delete.clone()),
        server("E7-evict-ok", EXIT).grace(5).act(0.0, Act::Evict),
        server("E7-evict-pdb-exhausted", EXIT)
            .grace(5)
            .object("poddisruptionbudgets", budget)
            .act(0.0, Act::Evict)
            .act(1.0, Act::Evict)
            .act(2.0, Act::Patch("poddisruptionbudgets/budget", json!({"spec": {"minAvailable": 0}})))
            .act(3.0, Act::Evict),
        Case::script(lab, "E9-exitcode7", exit_7).grace(10).act(0.0, delete.clone()),
    ];
    cases.into_iter().map(|case| (case.name(), case)).collect()
}

/// Compares all recordings of a case with the one from a real cluster.
#[track_caller]
fn goes_as_recorded(case: &str) {
    for ours in recordings(case) {
        Golden::of(case).check(ours);
    }
}

#[test]
fn graceful_deletion_matches_recording() {
    goes_as_recorded("A");
}

#[test]
fn pre_stop_sleep_matches_recording() {
    goes_as_recorded("Bsleep");
}

#[test]
fn http_hook_matches_recording() {
    goes_as_recorded("Bhttp");
}

#[test]
fn continued_serving_matches_recording() {
    goes_as_recorded("Bserve");
}

#[test]
fn grace_period_cuts_exec_hook_short() {
    goes_as_recorded("E1-prestop15-grace10-exit");
    for ours in recordings("E1-prestop15-grace10-exit") {
        // The hook ends with the container.
        assert!(ours.last("app hook ticks") < ours.first("app gone") + 0.5 + ours.lag_s, "{ours}");
        assert_eq!(ours.count("app hook ends"), 0, "{ours}");
    }
}

#[test]
fn hook_continues_after_ignored_sigterm() {
    goes_as_recorded("E1-prestop15-grace10-ignore");
    for ours in recordings("E1-prestop15-grace10-ignore") {
        assert!(ours.last("app hook ticks") > ours.first("app SIGTERM") + 0.5, "{ours}");
        assert!(ours.last("app hook ticks") < ours.first("app gone") + 0.5 + ours.lag_s, "{ours}");
    }
}

#[test]
fn grace_period_cuts_http_hook_short() {
    goes_as_recorded("E1-prestop15http-grace10-ignore");
}

#[test]
fn deletion_grace_period_cuts_sleep_hook_short() {
    goes_as_recorded("E1-prestop15sleep-grace20-del10-ignore");
}

#[test]
fn ignored_sigterm_ends_in_sigkill() {
    goes_as_recorded("E2-ignore-grace5");
}

#[test]
fn one_second_grace_period_allows_two_seconds() {
    goes_as_recorded("E3-grace1-ignore");
}

/// Compares a forced deletion, in which pod and slice have no common order. Each follows an order that was recorded in
/// one of the cases, which differ in the container's behaviour.
#[track_caller]
fn goes_as_recorded_when_forced(case: &str, ours: &Recording) {
    const FORCED: [&str; 3] =
        ["E3-force-ignore-grace30", "E3-force-hook3-ignore-grace30", "E3-force-http3-exit-grace30"];
    // The API server marks the pod, then removes it. The node agent may confirm the mark in between: both take 30 ms at
    // times.
    let confirmed = |text: String| text.replace("generation=2/2", "generation=2/1");
    let mut pod: Vec<String> = order_of("Pod", ours).into_iter().map(confirmed).collect();
    pod.dedup();
    assert_eq!(Golden::of(case).orders_of("Pod")[0], pod, "{ours}");
    let slices: Vec<_> = FORCED.into_iter().map(Golden::of).collect();
    let slices: Vec<_> = slices.iter().flat_map(|golden| golden.orders_of("EndpointSlice")).collect();
    let slice = order_of("EndpointSlice", ours);
    assert!(slices.iter().any(|recorded| *recorded == slice), "{ours}");
    Golden::of(case).check_process(ours);
}

#[test]
fn forced_deletion_precedes_container_exit() {
    for case in ["E3-force-ignore-grace30", "E3-force-hook3-ignore-grace30", "E3-force-http3-exit-grace30"] {
        for ours in recordings(case) {
            goes_as_recorded_when_forced(case, ours);
            assert!(ours.deleted() < ours.first("app gone") - 0.5, "{ours}");
        }
    }
}

#[test]
fn deletion_may_lengthen_grace_period() {
    goes_as_recorded("E4-grace40-over-spec10-ignore");
}

#[test]
fn second_deletion_shortens_grace_period_only_in_object() {
    goes_as_recorded("E5-grace30-then5-after3-ignore");
    goes_as_recorded("E5-hook20-grace30-then5-after3-exit");
    let case = "E5-grace30-then0-after3-ignore";
    for ours in recordings(case) {
        for kind in ["Pod", "EndpointSlice"] {
            assert!(Golden::of(case).orders_of(kind).iter().any(|o| *o == order_of(kind, ours)), "{ours}");
        }
        Golden::of(case).check_process(ours);
        assert!(ours.fits(ours.deleted(), 3.0..5.0), "{ours}");
    }
}

#[test]
fn second_deletion_never_lengthens_grace_period() {
    goes_as_recorded("E5-grace5-then30-after2-ignore");
    for ours in recordings("E5-grace5-then30-after2-ignore") {
        let second = &ours.answers[1];
        assert_eq!((second.status, &second.body["metadata"]["deletionGracePeriodSeconds"]), (200, &json!(5)));
    }
}

#[test]
fn sidecars_end_after_main_containers() {
    goes_as_recorded("E6-sidecar-exit-main-serve2-grace10");
    goes_as_recorded("E6-sidecar-serve3-main-exit-hook2-grace10");
    for case in ["E6-sidecar-exit-main-serve2-grace10", "E6-sidecar-serve3-main-exit-hook2-grace10"] {
        for ours in recordings(case) {
            assert!(ours.first("app gone") < ours.first("proxy SIGTERM"), "{ours}");
        }
    }
}

#[test]
fn sidecar_gets_2_s_beyond_grace_period() {
    goes_as_recorded("E6-sidecar-exit-main-ignore-grace6");
    goes_as_recorded("E6-sidecar-ignore-main-ignore-grace6");
}

#[test]
fn eviction_marks_then_deletes_pod() {
    goes_as_recorded("E7-evict-ok");
    for ours in recordings("E7-evict-ok") {
        assert_eq!((ours.answers[0].status, &ours.answers[0].body["status"]), (201, &json!("Success")));
    }
}

#[test]
fn eviction_beyond_budget_changes_nothing() {
    goes_as_recorded("E7-evict-pdb-exhausted");
    for ours in recordings("E7-evict-pdb-exhausted") {
        let statuses: Vec<u16> = ours.answers.iter().map(|answer| answer.status).collect();
        assert_eq!(statuses, [429, 429, 200, 201], "{ours}");
        let refusal = &ours.answers[0];
        assert!(!refusal.headers.contains_key("retry-after"), "{:?}", refusal.headers);
        assert_eq!(refusal.body["reason"], "TooManyRequests");
        assert_eq!(refusal.body["details"]["causes"][0]["reason"], "DisruptionBudget");
        let message = "The disruption budget budget needs 1 healthy pods and has 1 currently";
        assert_eq!(refusal.body["details"]["causes"][0]["message"], message);
    }
}

#[test]
fn exit_code_matches_recording() {
    goes_as_recorded("E9-exitcode7");
}

#[test]
fn creation_matches_recording() {
    goes_as_recorded("F");
}

#[test]
fn label_toggles_service_membership() {
    let [removed, added] = ["removed", "added"].map(|step| Golden::of(&format!("Elabel label {step}")));
    for ours in recordings("Elabel") {
        let order = order_of("EndpointSlice", ours);
        assert_eq!(removed.orders_of("EndpointSlice"), [[order[0].as_str()]], "{ours}");
        assert_eq!(added.orders_of("EndpointSlice"), [[order[1].as_str()]], "{ours}");
        assert!(ours.first("app SIGTERM") > 3.5, "the pod keeps running: {ours}");
    }
}
