//! What ends pods, and the timeline of terminations that it is expected to show.

use rolldrop::analysis::model::Mode;
use rolldrop::record::EventKind;
use rolldrop::record::event::Action;

use crate::harness::Rolldrop;
use crate::runs::{self, Dataplane, MeasuredRun};

const MANIFESTS: &str = "\
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
        - name: app
          image: rolldrop
          args: [workload, --listen, \"$(POD_IP):8080\"]
          env:
            - {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
          readinessProbe: {httpGet: {path: /readyz, port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web}
spec: {maxUnavailable: 1, selector: {matchLabels: {app: web}}}
";

/// A scenario with these disruptions.
fn scenario(name: &str, duration: &str, disruptions: &str) -> String {
    let manifests: String = MANIFESTS
        .split("---\n")
        .map(|object| format!("    - inline:\n        {}\n", object.trim_end().replace('\n', "\n        ")))
        .collect();
    format!(
        "apiVersion: rolldrop.dev/v1\nkind: Scenario\nmetadata: {{name: {name}}}\nspec:\n  \
         cluster: {{embedded: {{nodes: 2}}}}\n  manifests:\n{manifests}  target: {{service: web}}\n  \
         load: {{rate: 50, duration: {duration}}}\n  disruptions: [{disruptions}]\n"
    )
}

fn modes(run: &MeasuredRun) -> Vec<Mode> {
    run.result.terminations.iter().map(|termination| termination.mode).collect()
}

fn actions(run: &MeasuredRun) -> Vec<&Action> {
    let of = run.records.events.iter().filter_map(|event| match &event.kind {
        EventKind::Action(action) => Some(action),
        _ => None,
    });
    of.collect()
}

#[test]
fn a_rolling_restart_replaces_all_pods_and_a_scale_takes_some_and_gives_them_back() {
    let disruptions = "{at: 1s, action: rollingRestart, workload: deployment/web}, \
                       {at: 10s, action: scale, workload: deploy/web, replicas: 1, jitter: 200ms}";
    let text = scenario("restart-and-scale", "13s", disruptions);
    let run = runs::measure(&text, Dataplane::Userspace, &[]);
    let modes = modes(&run);
    assert!(
        modes.starts_with(&[Mode::Rollout]) && modes.ends_with(&[Mode::ScaleDown]),
        "{modes:?}\n{}",
        run.finished
    );
    // On a slow machine the restart may not be over when the scale begins.
    assert!(modes.len() >= 4 && modes.is_sorted_by_key(|mode| *mode == Mode::ScaleDown), "{modes:?}");
    let statuses: Vec<_> = actions(&run).iter().map(|a| (a.action.as_str(), a.status)).collect();
    assert_eq!(statuses, [("rollingRestart", Some(200)), ("scale", Some(200))], "{}", run.finished);
    let changes = std::fs::read_to_string(run.path.join("changes.jsonl")).expect("changes.jsonl");
    assert!(changes.contains("Deployment web in default: restored"), "{changes}");
}

#[test]
fn an_eviction_waits_for_its_budget_and_a_drained_node_is_uncordoned() {
    let disruptions = "{at: 1s, action: evict, selector: app=web, count: 2, allowOutage: true}, \
                       {at: 9s, action: drain, node: node-1}";
    let text = scenario("evict-and-drain", "18s", disruptions);
    let run = runs::measure(&text, Dataplane::Userspace, &[]);
    let of = |name: &str| -> Vec<_> {
        let all = actions(&run).into_iter().filter(|action| action.action == name);
        all.map(|action| (action.status, action.pod.clone())).collect()
    };
    let evicted = of("evict");
    let statuses: Vec<_> = evicted.iter().filter_map(|(status, _)| *status).collect();
    assert_eq!(statuses.iter().filter(|status| **status == 201).count(), 2, "{}", run.finished);
    let waiting = evicted.iter().find(|(status, _)| *status == Some(429));
    let (_, waiting) = waiting.unwrap_or_else(|| panic!("both went at once\n{}", run.finished));
    assert!(evicted.contains(&(Some(201), waiting.clone())), "it went in the end\n{}", run.finished);
    let drained = of("drain").iter().filter(|(status, _)| *status == Some(201)).count();
    assert!(drained > 0, "{}", run.finished);
    let by_drain = modes(&run).into_iter().filter(|mode| *mode == Mode::Drain).count();
    assert_eq!(by_drain, drained, "{}", run.finished);
    let changes = std::fs::read_to_string(run.path.join("changes.jsonl")).expect("changes.jsonl");
    assert!(changes.contains("Node node-1: restored"), "{changes}");
}

#[test]
fn what_an_action_does_not_take_or_would_take_too_much_is_an_error() {
    let said = |disruption: &str| {
        let text = scenario("wrong", "9s", disruption);
        let run = Rolldrop::new(["run", "scenario.yaml", "--out", "run", "--dataplane", "userspace"]);
        run.file("scenario.yaml", &text).finish().expect_code(2).stderr()
    };
    for (disruption, wanted) in [
        (
            "{at: 1s, action: evict, node: node-1}",
            "disruptions[0].node: evict takes no node, but selector and count",
        ),
        ("{at: 1s, action: scale, workload: deploy/web}", "scale needs a number of replicas"),
        ("{at: 1s, action: rollingRestart, workload: web}", "\"web\" is no workload: say deployment/NAME"),
        (
            "{at: 1s, action: rollingRestart, workload: deploy/wbe}",
            "there is no Deployment wbe among the manifests",
        ),
        (
            "{at: 1s, action: drain, node: node-1, every: 1s, repeat: 2}",
            "stays cordoned to the end of the run",
        ),
        (
            "{at: 1s, action: scale, workload: deploy/web, replicas: 0}",
            "no pod would be left; say allowOutage: true",
        ),
        ("{at: 1s, action: drain, node: node-9}", "nodes \"node-9\" not found"),
    ] {
        let said = said(disruption);
        assert!(said.contains(wanted), "{disruption}: {said}");
    }
}
