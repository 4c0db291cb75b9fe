//! StatefulSets, whose pods keep their names, and DaemonSets, with one pod on each node.

use std::collections::BTreeSet;

use rolldrop_explain::model::{Mode, StartStage};
use rolldrop_record::EventKind;

use crate::runs::{Dataplane, MeasuredRun, json_lines, measure, seconds};
use crate::truth::{CLOCK_TOLERANCE_S, zero_s};
use crate::web::Web;

/// Returns a scenario with a rolling restart of a StatefulSet of three pods, whose app exits immediately.
fn scenario(more: &str) -> String {
    Web::new(3).named().args(&["--on-sigterm", "exit"]).kind("StatefulSet").scenario(
        "names",
        &format!(
            "
  cluster: {{embedded: {{nodes: 1}}}}
  target: {{service: web}}
  load: {{rate: 200, warmup: 1s, duration: 90s, connections: {{mode: fresh}}}}
  disruptions: [{{at: 2s, action: rollingRestart, workload: statefulset/web, until: rolloutComplete}}]
{more}"
        ),
    )
}

/// Returns the times at which the Service proxy's table without a pod of this name took effect, in Unix seconds.
fn stops(run: &MeasuredRun, pod: &str) -> Vec<f64> {
    let mut stops = Vec::new();
    let mut was_routed = false;
    for line in json_lines(&run.path.join("cluster/service-proxy.jsonl")) {
        if line["kind"] != "sync" || line["service"] != "default/web" {
            continue;
        }
        let is_routed =
            line["endpoints"].as_array().into_iter().flatten().any(|endpoint| endpoint["pod"] == pod);
        if was_routed && !is_routed {
            stops.push(seconds(&line["t_ns"]));
        }
        was_routed = is_routed;
    }
    stops
}

/// Checks that the pods terminated in order, that each successor had its predecessor's name, and that the two were not
/// confused.
fn each_pod_is_told_from_its_successor(run: &MeasuredRun) {
    let result = &run.result;
    let mut ends: Vec<_> = result.terminations.iter().collect();
    ends.sort_by(|a, b| a.t0_s.total_cmp(&b.t0_s));
    let names: Vec<&str> = ends.iter().map(|end| end.pod.as_str()).collect();
    assert_eq!(names, ["web-2", "web-1", "web-0"], "{}", run.finished);
    assert!(ends.iter().all(|end| end.mode == Mode::Rollout), "{}", run.finished);
    let zero = zero_s(run);
    for end in ends {
        // Both starts were seen; the first was before the load.
        let of_name: Vec<_> = result.starts.iter().filter(|start| start.pod == end.pod).collect();
        let [start] = of_name.iter().filter(|start| start.uid != end.uid).collect::<Vec<_>>()[..] else {
            panic!("{of_name:?}")
        };
        let first = start.timeline.get(&StartStage::FirstRequest).copied();
        let ready = start.timeline.get(&StartStage::Ready).copied();
        assert!(first.zip(ready).is_some_and(|(first, ready)| first + 0.1 >= ready), "{start:?}");
        // The window belongs to the first pod of that name, although requests were later routed to the second one.
        let latest = zero + end.t0_s;
        let stop = stops(run, &end.pod).into_iter().find(|stop| *stop >= latest - CLOCK_TOLERANCE_S);
        let after = stop.expect("it left the rules") - latest;
        let window = &end.windows[0];
        assert!(
            window.lower_s.unwrap_or(0.0) <= after + CLOCK_TOLERANCE_S,
            "{window:?}, {after}\n{}",
            run.finished
        );
    }
}

#[test]
fn stateful_set_pods_stay_distinct_from_successors() {
    let run = measure(&scenario(""), Dataplane::Userspace, &[]);
    each_pod_is_told_from_its_successor(&run);
    assert!(run.result.requests.dropped > 0, "{}", run.finished);
}

#[test]
fn same_named_pods_have_separate_sources() {
    let run = measure(&scenario("  sidecar: {inject: true}\n"), Dataplane::Userspace, &[]);
    each_pod_is_told_from_its_successor(&run);
    let ended = run.records.events.iter().filter_map(|event| match &event.kind {
        EventKind::ProxyEnded { pod, uid, of, .. } => Some((pod.as_str(), uid.clone(), of.clone())),
        _ => None,
    });
    let ended: Vec<_> = ended.collect();
    for pod in ["web-0", "web-1", "web-2"] {
        let of_name: Vec<_> = ended.iter().filter(|(name, ..)| *name == pod).collect();
        let uids: BTreeSet<_> = of_name.iter().map(|(_, uid, _)| uid).collect();
        let sources: BTreeSet<_> = of_name.iter().map(|(_, _, source)| source).collect();
        assert!(of_name.len() == 2 && uids.len() == 2 && sources.len() == 2, "{ended:?}");
    }
}
