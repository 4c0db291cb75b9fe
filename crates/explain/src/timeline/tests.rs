//! Pod terminations derived from events.

use serde_json::{Value, json};

use super::*;
use crate::model::T0Basis;
use rolldrop_record::event::PodEvent;

const SECOND_NS: i64 = 1_000_000_000;
const BEGUN_MS: i64 = 1_800_000_000_000;

fn at(ms: i64) -> Stamp {
    Stamp::from_unix_ns((BEGUN_MS + ms) * 1_000_000)
}

fn ns(ms: i64) -> i64 {
    (BEGUN_MS + ms) * 1_000_000
}

/// Returns a coordinator event, as in `events.jsonl`.
fn event(ms: i64, kind: Value) -> Event {
    event_of("coordinator", ms, kind)
}

fn event_of(source: &str, ms: i64, mut kind: Value) -> Event {
    kind["v"] = 1.into();
    kind["t_ns"] = ns(ms).into();
    kind["source"] = source.into();
    serde_json::from_value(kind).unwrap()
}

/// Returns a watch event for a pod; `more` overrides fields.
fn pod(ms: i64, name: &str, uid: &str, more: Value) -> Event {
    let container = |state: &str| {
        json!([{"name": "app", "sidecar": false, "pre_stop_sleep_s": null, "pre_stop_other": false, "state": state,
            "reason": null, "exit_code": null, "restarts": 0}])
    };
    let mut pod = json!({
        "kind": "pod", "change": "applied", "namespace": "shop", "name": name, "uid": uid, "resource_version": "1",
        "node": "n1", "ip": "10.0.0.1", "phase": "Running", "ready": true, "deletion_timestamp": null,
        "deletion_grace_s": null, "grace_s": 30, "disruption_target": null, "containers": container("running"),
    });
    for (key, value) in more.as_object().unwrap() {
        match (key.as_str(), value.as_str()) {
            ("state", Some(state)) => pod["containers"] = container(state),
            _ => pod[key] = value.clone(),
        }
    }
    event(ms, pod)
}

/// Returns an event for a pod whose deletion took effect in the second starting at `second_ms`.
fn deleted(ms: i64, name: &str, uid: &str, second_ms: i64, version: &str) -> Event {
    let more = json!({"deletion_timestamp": ns(second_ms) + 30 * SECOND_NS, "deletion_grace_s": 30,
        "resource_version": version});
    pod(ms, name, uid, more)
}

/// Returns beats and their checks: one beat every 100 ms, with every tenth version from 1000 on, answered after 10 ms.
fn beats(from_ms: i64, n: i64) -> Vec<Event> {
    let beats = (0..n).flat_map(|i| {
        let (ms, version) = (from_ms + 100 * i, 1000 + 10 * i);
        let beat = json!({"kind": "beat", "answered": ns(ms + 10), "version": version.to_string()});
        let check =
            json!({"kind": "beat_check", "answered": ns(ms + 60), "version": (version + 1).to_string()});
        [event(ms, beat), event(ms + 50, check)]
    });
    beats.collect()
}

fn timeline(mut events: Vec<Event>) -> Timeline {
    let load = json!({"kind": "load_started", "rate": 10.0, "duration_s": 60.0, "warmup_s": 0.0});
    events.push(event(0, load));
    events.push(event(60_000, json!({"kind": "load_ended", "scheduled": 0})));
    events.sort_by_key(|event| event.at);
    let info = json!({
        "format": 2, "tool": {"name": "rolldrop", "version": "0"}, "run": "r", "name": "made-up", "scenario": null,
        "expect": {}, "cluster": {"version": "", "dataplane": "", "nodes": 1, "endpoints": 1, "namespace": "shop"},
        "targets": [], "sources": [], "started": ns(0), "ended": ns(60_000), "complete": true, "interrupted": false,
        "load": {"pacing": "constant", "rate": 10.0, "duration_s": 60.0, "warmup_s": 0.0, "connections": "fresh",
            "connect_timeout_s": 1.0, "response_timeout_s": 5.0, "success": [[200, 299]]},
    });
    let info: RunInfo = serde_json::from_value(info).unwrap();
    let records = rolldrop_record::Records {
        info,
        events,
        requests: vec![],
        streams: vec![],
        gaps: vec![],
        served: vec![],
        torn: vec![],
        corrupt: vec![],
        altered: vec![],
    };
    Timeline::build(records.log(), records).unwrap().0
}

fn only_end(events: Vec<Event>) -> PodEnd {
    let timeline = timeline(events);
    let [end] = &timeline.ends[..] else { panic!("{:#?}", timeline.ends) };
    end.clone()
}

/// Returns these beats and a pod whose deletion at 10 s is shown by a watch at `shown_ms`.
fn deleted_among(beats: Vec<Event>, shown_ms: i64, version: &str) -> Vec<Event> {
    let pod = [pod(-1000, "web", "u", json!({})), deleted(shown_ms, "web", "u", 10_000, version)];
    beats.into_iter().chain(pod).collect()
}

#[test]
fn beats_narrow_foreign_deletion_time() {
    let events = |beats| deleted_among(beats, 10_600, "1055");
    let end = only_end(events(beats(10_000, 30)));
    assert_eq!(end.t0, T0 { earliest: at(10_500), latest: at(10_600), basis: T0Basis::Beats });
    let end = only_end(events(Vec::new()));
    assert_eq!(end.t0, T0 { earliest: at(10_000), latest: at(10_600), basis: T0Basis::Timestamp });
    let few = timeline(events(beats(10_000, 19)));
    assert_eq!(few.ends[0].t0.basis, T0Basis::Timestamp);
    assert!(matches!(few.beats.state, BeatsState::Dropped(_)));
}

#[test]
fn timestamp_second_tightens_beat_bracket() {
    let events = |beats| deleted_among(beats, 10_045, "1005");
    let end = only_end(events(beats(9_950, 30)));
    assert_eq!(end.t0, T0 { earliest: at(10_000), latest: at(10_045), basis: T0Basis::Beats });
    // Delayed beats are less precise than a whole second.
    let mut late = beats(9_950, 30);
    late[0].at = at(8_500);
    assert_eq!(only_end(events(late)).t0.basis, T0Basis::Timestamp);
}

#[test]
fn listed_deletion_gets_only_upper_bound() {
    let mut events = beats(10_000, 30);
    events.push(pod(-1000, "web", "u", json!({})));
    events.push(event(11_500, json!({"kind": "watch_gap", "resource": "pods", "from": ns(9_000)})));
    let mut listed = deleted(11_500, "web", "u", 10_000, "1055");
    let EventKind::Pod(PodEvent { change, .. }) = &mut listed.kind else { unreachable!() };
    *change = rolldrop_record::event::Change::Listed;
    events.push(listed);
    let end = only_end(events);
    assert_eq!(end.t0, T0 { earliest: at(10_000), latest: at(10_610), basis: T0Basis::Beats });
}

#[test]
fn stages_exclude_same_named_successor() {
    let slice = |ms: i64, address: &str, ready: bool, terminating: bool| {
        let endpoint = json!({"pod": "web-0", "address": address, "ready": ready, "serving": true,
            "terminating": terminating});
        event(
            ms,
            json!({"kind": "endpoint_slice", "change": "applied", "namespace": "shop", "name": "web-x",
            "service": "web", "endpoints": [endpoint]}),
        )
    };
    let phase = |ms: i64, source: &str, phase: &str| {
        event_of(source, ms, json!({"kind": "proxy_phase", "pod": "web-0", "phase": phase}))
    };
    let events = vec![
        pod(-1000, "web-0", "u1", json!({})),
        slice(-900, "10.0.0.1", true, false),
        deleted(10_050, "web-0", "u1", 10_000, "2"),
        pod(11_000, "web-0", "u1", json!({"change": "deleted"})),
        pod(12_000, "web-0", "u2", json!({"ip": "10.0.0.2"})),
        slice(12_100, "10.0.0.2", true, false),
        pod(
            40_050,
            "web-0",
            "u2",
            json!({"ip": "10.0.0.2", "deletion_timestamp": ns(40_000) + 30 * SECOND_NS, "deletion_grace_s": 30}),
        ),
        slice(40_100, "10.0.0.2", false, true),
        phase(40_200, "web-0~1", "sigterm"),
        pod(41_000, "web-0", "u2", json!({"change": "deleted", "ip": "10.0.0.2"})),
    ];
    let timeline = timeline(events);
    let [first, second] = &timeline.ends[..] else { panic!("{:#?}", timeline.ends) };
    assert_eq!((first.stages.app_exited, second.stages.app_exited), (None, Some(at(40_200))));
    assert_eq!(first.stages.endpoint_terminating, None);
    assert_eq!(first.stages.endpoint_removed, Some(at(12_100)), "its address is gone from then on");
    assert_eq!(second.stages.endpoint_terminating, Some(at(40_100)));
}

#[test]
fn stopping_time_includes_proxy_exit() {
    let phase = |ms: i64, phase: &str| {
        event_of("web", ms, json!({"kind": "proxy_phase", "pod": "web", "phase": phase}))
    };
    let stopping_s = |phases: Vec<Event>| {
        let mut events = vec![pod(-1000, "web", "u", json!({})), deleted(10_050, "web", "u", 10_000, "2")];
        events.extend(phases);
        events.push(pod(16_000, "web", "u", json!({"change": "deleted"})));
        only_end(events).stopping_s()
    };
    assert_eq!(stopping_s(Vec::new()), None);
    assert_eq!(stopping_s(vec![phase(12_000, "sigterm")]), Some(2.0));
    assert_eq!(stopping_s(vec![phase(12_000, "sigterm"), phase(15_000, "exit")]), Some(5.0));
}

#[test]
fn stray_pre_stop_marks_are_ignored() {
    let phase = |ms: i64, phase: &str| {
        event_of("web", ms, json!({"kind": "proxy_phase", "pod": "web", "phase": phase}))
    };
    let end = |marks: &[i64]| {
        let mut events = vec![
            pod(-1000, "web", "u", json!({})),
            deleted(10_050, "web", "u", 10_000, "2"),
            phase(12_000, "sigterm"),
            pod(13_000, "web", "u", json!({"change": "deleted"})),
        ];
        events.extend(marks.iter().map(|ms| phase(*ms, "pre_stop")));
        only_end(events).stages.kill_began
    };
    // Someone else requested the path long before; later the kubelet called its hook.
    assert_eq!(end(&[2_000, 5_000, 10_040, 10_500]), Some(at(10_040)));
    assert_eq!(end(&[2_000]), None);
    assert_eq!(end(&[2_000, 20_000]), None);

    // A pod that disappears immediately did not necessarily begin to terminate earlier.
    let events = |marks: &[i64]| {
        let mut events = beats(10_000, 30);
        events.push(pod(-1000, "web", "u", json!({})));
        events.push(phase(11_400, "sigterm"));
        events.push(pod(12_000, "web", "u", json!({"change": "deleted", "resource_version": "1055"})));
        events.extend(marks.iter().map(|ms| phase(*ms, "pre_stop")));
        events
    };
    assert_eq!(only_end(events(&[2_000])).t0.latest, at(11_400));
    assert_eq!(only_end(events(&[2_000, 11_000])).t0.latest, at(11_000));
}

#[test]
fn proxies_stopped_before_load_need_no_rows() {
    let ended = |ms: i64, pod: &str, uid: &str| {
        let kind = json!({"kind": "proxy_ended", "pod": pod, "uid": uid, "of": pod, "recorded": null, "known": 5,
            "in_flight": 0, "received": 0});
        event(ms, kind)
    };
    let timeline = timeline(vec![
        deleted(-2000, "old", "u1", -5000, "1"),
        pod(-2000, "web", "u2", json!({})),
        // The name is reused, as in a StatefulSet.
        deleted(-2000, "db-0", "u3", -5000, "2"),
        pod(-1000, "db-0", "u4", json!({})),
        ended(1000, "old", "u1"),
        ended(1500, "db-0", "u3"),
        ended(2000, "web", "u2"),
        ended(2500, "db-0", "u4"),
    ]);
    let owing: Vec<_> = timeline.notes.hand_overs.iter().map(|proxy| proxy.uid.as_str()).collect();
    assert_eq!(owing, ["u2", "u4"]);
}

#[test]
fn withdrawal_ends_when_pod_returns() {
    let slice = |ms: i64, pods: &[&str]| {
        let endpoint = |pod: &&str| {
            json!({"pod": pod, "address": format!("10.0.0.{}", pod.len()), "ready": true, "serving": true,
                "terminating": false})
        };
        event(
            ms,
            json!({"kind": "endpoint_slice", "change": "applied", "namespace": "shop", "name": "web-x",
            "service": "web", "endpoints": pods.iter().map(endpoint).collect::<Vec<_>>()}),
        )
    };
    let relabel = json!({"kind": "action", "disruption": 0, "action": "relabel", "mode": "none", "pod": "web",
        "uid": "u", "answered": ns(10_010), "status": 200, "error": null});
    let events = vec![
        pod(-1000, "web", "u", json!({})),
        slice(-900, &["web", "other"]),
        event(10_000, relabel),
        slice(10_100, &["other"]),
        slice(23_000, &["web", "other"]),
    ];
    let timeline = timeline(events);
    let [withdrawal] = &timeline.withdrawals[..] else { panic!("{:?}", timeline.withdrawals) };
    assert_eq!((withdrawal.endpoint_removed, withdrawal.returned), (Some(at(10_100)), Some(at(23_000))));
}

#[test]
fn node_shutdown_action_determines_t0() {
    let shutdown = json!({"kind": "action", "disruption": 0, "action": "nodeShutdown", "mode": "node_shutdown",
        "pod": null, "uid": null, "answered": ns(10_010), "status": 200, "error": null});
    let failed = json!({"phase": "Failed", "state": "terminated", "ready": false,
        "disruption_target": "TerminationByKubelet"});
    let mut events = vec![
        pod(-1000, "web", "u", json!({})),
        event(10_000, shutdown),
        pod(12_500, "web", "u", failed.clone()),
    ];
    let end = only_end(events.clone());
    assert_eq!(end.t0, T0 { earliest: at(10_000), latest: at(12_500), basis: T0Basis::EndOfContainers });
    assert_eq!((end.mode, end.disruption), (rolldrop_record::Mode::NodeShutdown, Some(0)));
    // For a shutdown by someone else, only the grace period is known.
    events.remove(1);
    let end = only_end(events);
    assert_eq!(end.t0.latest, at(12_500));
    assert!(end.t0.earliest <= at(12_500 - 2000) && end.t0.earliest >= at(-1000), "{:?}", end.t0);
}

#[test]
fn rollout_pods_belong_to_latest_repetition() {
    let restart = |ms: i64, error: Option<&str>| {
        let kind = json!({"kind": "action", "disruption": 1, "action": "rollingRestart", "mode": "rollout", "pod": null,
            "uid": null, "answered": ns(ms + 10), "status": 200, "error": error});
        event(ms, kind)
    };
    let events = vec![
        pod(-1000, "a", "u-a", json!({})),
        pod(-1000, "b", "u-b", json!({})),
        restart(10_000, Some("503")),
        restart(10_500, None),
        deleted(11_500, "a", "u-a", 11_000, "2"),
        restart(30_000, None),
        deleted(31_500, "b", "u-b", 31_000, "3"),
    ];
    let ends = timeline(events).ends;
    let of: Vec<_> = ends.iter().map(|end| (end.pod.as_str(), end.disruption, end.repetition)).collect();
    assert_eq!(of, [("a", Some(1), Some(0)), ("b", Some(1), Some(1))]);
}
