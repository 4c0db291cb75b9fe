//! Disruptions that terminate pods, and the termination timeline that each is expected to show.

use std::collections::BTreeSet;
use std::path::Path;

use rolldrop_explain::model::{Mode, Stage};
use rolldrop_record::event::Change;
use rolldrop_record::{Cause, EventKind, Outcome, RequestRow};
use rolldrop_record::{EndCause, event::ActionName};
use serde_json::json;

use crate::harness::Rolldrop;
use crate::kubectl::{Kubectl, ROLLED_OUT, SharedCluster};
use crate::machine::measured;
use crate::runs::{self, Dataplane, MeasuredRun, actions};
use crate::web::Web;

/// Returns an app of three pods, which may be evicted one at a time, and leave the Service if they lose a label.
fn web() -> Web {
    let web = Web::new(3).named().label("routed", "here").pod(json!({"terminationGracePeriodSeconds": 1}));
    let budget = json!({"maxUnavailable": 1, "selector": {"matchLabels": {"app": "web"}}});
    web.and("policy/v1", "PodDisruptionBudget", "web", budget)
}

/// Returns a scenario with these disruptions.
fn scenario(name: &str, duration: &str, disruptions: &str) -> String {
    scenario_of(&web(), name, duration, disruptions)
}

fn scenario_of(web: &Web, name: &str, duration: &str, disruptions: &str) -> String {
    web.scenario(
        name,
        &format!(
            "
  cluster: {{embedded: {{nodes: 2}}}}
  target: {{service: web}}
  load: {{rate: 50, duration: {duration}}}
  disruptions: [{disruptions}]
"
        ),
    )
}

fn modes(run: &MeasuredRun) -> Vec<Mode> {
    run.result.terminations.iter().map(|termination| termination.mode).collect()
}

/// Checks that each termination's timeline shows when its start was observed, when its endpoint reacted, and when
/// it ended.
fn show_their_timelines(run: &MeasuredRun) {
    for termination in &run.result.terminations {
        let at =
            |stage| termination.timeline.get(&stage).copied().unwrap_or_else(|| panic!("{termination:?}"));
        assert!(at(Stage::DeletionSeen) <= at(Stage::PodDeleted), "{termination:?}");
        assert!(at(Stage::EndpointTerminating) <= at(Stage::PodDeleted), "{termination:?}");
    }
}

#[test]
fn restart_and_scale_down_terminate_expected_pods() {
    let disruptions = "{at: 1s, action: rollingRestart, workload: deployment/web}, \
                       {at: 8s, action: scale, workload: deploy/web, replicas: 1, jitter: 200ms}";
    let text = scenario("restart-and-scale", "11s", disruptions);
    let run = runs::measure(&text, Dataplane::Userspace, &[]);
    let modes = modes(&run);
    assert!(
        modes.starts_with(&[Mode::Rollout]) && modes.ends_with(&[Mode::ScaleDown]),
        "{modes:?}\n{}",
        run.finished
    );
    show_their_timelines(&run);
    // On a slow machine, the restart may still be in progress when the scaling begins.
    assert!(modes.len() >= 4 && modes.is_sorted_by_key(|mode| *mode == Mode::ScaleDown), "{modes:?}");
    let statuses: Vec<_> = actions(&run.records).iter().map(|a| (a.action.as_str(), a.status)).collect();
    assert_eq!(statuses, [("rollingRestart", Some(200)), ("scale", Some(200))], "{}", run.finished);
    let changes = std::fs::read_to_string(run.path.join("changes.jsonl")).expect("changes.jsonl");
    assert!(changes.contains("Deployment web in default: restored"), "{changes}");
}

#[test]
fn eviction_waits_for_budget_and_drain_uncordons_node() {
    let disruptions = "{at: 1s, action: evict, selector: app=web, count: 2, allowOutage: true}, \
                       {at: 9s, action: drain, node: node-1}";
    let text = scenario("evict-and-drain", "18s", disruptions);
    let run = runs::measure(&text, Dataplane::Userspace, &[]);
    let of = |name: &str| -> Vec<_> {
        let all = actions(&run.records).into_iter().filter(|action| action.action.as_str() == name);
        all.map(|action| (action.status, action.pod.clone())).collect()
    };
    let evicted = of("evict");
    let statuses: Vec<_> = evicted.iter().filter_map(|(status, _)| *status).collect();
    assert_eq!(statuses.iter().filter(|status| **status == 201).count(), 2, "{}", run.finished);
    let waiting = evicted.iter().find(|(status, _)| *status == Some(429));
    let (_, waiting) = waiting.unwrap_or_else(|| panic!("both were evicted together\n{}", run.finished));
    assert!(evicted.contains(&(Some(201), waiting.clone())), "it was evicted in the end\n{}", run.finished);
    let drained = of("drain").iter().filter(|(status, _)| *status == Some(201)).count();
    assert!(drained > 0, "{}", run.finished);
    show_their_timelines(&run);
    let by_drain = modes(&run).into_iter().filter(|mode| *mode == Mode::Drain).count();
    assert_eq!(by_drain, drained, "{}", run.finished);
    let changes = std::fs::read_to_string(run.path.join("changes.jsonl")).expect("changes.jsonl");
    assert!(changes.contains("Node node-1: restored"), "{changes}");
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn run_refuses_invalid_disruptions() {
    let shop = Kubectl::in_namespace("wrong");
    shop.apply(&web().manifests());
    let kubeconfig = SharedCluster::get().kubeconfig();
    let on_a_cluster = |disruption: &str| {
        let text = format!(
            "apiVersion: rolldrop.dev/v1\nkind: Scenario\nmetadata: {{name: wrong}}\nspec:\n  \
             target: {{service: web}}\n  load: {{rate: 50, duration: 9s}}\n  disruptions: [{disruption}]\n"
        );
        Rolldrop::run(&text).on_cluster(&kubeconfig).args(["-n", shop.namespace()]).finish()
    };
    // These errors occur before a cluster is started.
    let by_itself = |disruption: &str| {
        Rolldrop::run(&scenario("wrong", "9s", disruption)).on(Dataplane::Userspace).finish()
    };
    shop.ok(ROLLED_OUT);
    let live = [
        (
            "{at: 1s, action: scale, workload: deploy/web, replicas: 0}",
            "no pod would be left; set allowOutage: true",
        ),
        ("{at: 1s, action: drain, node: node-9}", "nodes \"node-9\" not found"),
        (
            "{at: 1s, action: deletePod, selector: app=web, count: all}",
            "refused deletePod of app=web: all 3 ready pods would terminate at the same time",
        ),
        (
            "{at: 1s, action: patch, object: {apiVersion: apps/v1, kind: Deployment, name: web}, \
             patch: {spec: {replicas: 0}}}",
            "refused patch of Deployment web: no pod would be left; set allowOutage: true",
        ),
        (
            "{at: 1s, action: relabel, selector: app=web, label: tier}",
            "cannot leave its Service: no Service selects it by the label \"tier\"",
        ),
        (
            "{at: 1s, action: crash, selector: app=web, container: db}",
            "has no container \"db\": name one of its containers",
        ),
    ];
    let wrong = [
        (
            "{at: 1s, action: evict, node: node-1}",
            "disruptions[0].node: evict does not take node; it takes selector, count, order",
        ),
        ("{at: 1s, action: scale, workload: deploy/web}", "scale needs a number of replicas"),
        ("{at: 1s, action: rollingRestart, workload: web}", "\"web\" is not a workload: use deployment/NAME"),
        (
            "{at: 1s, action: rollingRestart, workload: deploy/wbe}",
            "there is no Deployment wbe among the manifests: fix the name, or add the workload",
        ),
        (
            "{at: 1s, action: drain, node: node-1, every: 1s, repeat: 2}",
            "stays cordoned until the end of the run",
        ),
        (
            "{at: 1s, action: deletePod, selector: app=web, gracePeriodSeconds: 0}",
            "disruptions[0].gracePeriodSeconds: is 0, which removes a pod before its containers have exited: use \
             force: true",
        ),
        (
            "{at: 1s, action: deletePod, selector: app=web, count: some}",
            "disruptions[0].count: must be a whole number of at least 1, a share such as 25%, or all",
        ),
        (
            "{at: 1s, action: deletePod, selector: app=web, count: 2, until: {windows: {p95: 95%}}}",
            "disruptions[0].until: windows are measured only if pods terminate one by one",
        ),
        (
            "{at: 1s, action: evict, selector: app=web, until: {windows: {p95: 120%}}}",
            "disruptions[0].until: must be rolloutComplete, {terminations: 20}, or {windows: {p95: 95%}}",
        ),
        (
            "{at: 1s, action: deletePod, selector: app=web, until: rolloutComplete}",
            "disruptions[0].until: rolloutComplete is for rollingRestart",
        ),
        (
            "{at: 1s, action: setImage, workload: deploy/web, container: nope, image: x}",
            "disruptions[0].container: there is no container \"nope\"; use one of app",
        ),
        (
            "{at: 1s, action: setImage, workload: deploy/web, container: app, image: x, for: 2s, keep: true}",
            "disruptions[0].keep: `for` already says when the change is undone: remove one of the two",
        ),
        (
            "{at: 1s, action: patch, object: {apiVersion: v1, kind: Service, name: web}, type: json, patch: {a: b}}",
            "disruptions[0].patch: a JSON patch is a list",
        ),
        (
            "{at: 1s, action: patch, object: {apiVersion: v1, kind: Secret, name: web}, patch: {a: b}}",
            "disruptions[0].object.kind: rolldrop would have to store its old values",
        ),
        (
            "{at: 1s, action: exec, command: [no-such-program]}",
            "disruptions[0].command: failed to find the command no-such-program",
        ),
        ("{at: 1s, action: observe, repeat: 2}", "disruptions[0].repeat: `observe` cannot be repeated"),
    ];
    let live = live.map(|(disruption, wanted)| (on_a_cluster(disruption), wanted));
    for (run, wanted) in
        wrong.map(|(disruption, wanted)| (by_itself(disruption), wanted)).into_iter().chain(live)
    {
        let run = run.expect_code(2);
        assert!(run.stderr().contains(wanted), "{wanted}: {run}");
    }
}

#[test]
fn batch_deletion_removes_pods_one_by_one() {
    let disruptions = "{at: 1s, action: deletePod, selector: app=web, count: all, batch: 1, order: random, \
                       gracePeriodSeconds: 3, until: {windows: {p50: 80%}}}";
    let run = runs::measure(&scenario("one-by-one", "90s", disruptions), Dataplane::Userspace, &[]);
    assert_eq!(modes(&run), [Mode::Isolated; 3], "{}", run.finished);
    let pods: BTreeSet<_> = run.result.terminations.iter().map(|t| &t.pod).collect();
    assert_eq!(pods.len(), 3, "each initial pod once\n{}", run.finished);
    assert!(run.result.load.duration_s < 85.0, "it ends once enough pods have terminated\n{}", run.finished);
    show_their_timelines(&run);
    // Each termination begins more than a second after the previous one has ended, because a Service proxy may be late.
    for (before, after) in run.result.terminations.iter().zip(&run.result.terminations[1..]) {
        let gone = before.t0_s + before.timeline[&Stage::PodDeleted];
        assert!(after.t0_s > gone + 1.0, "{before:?}, then {after:?}");
    }
    // This excludes the pods that the run deletes at its end.
    let uids: BTreeSet<_> = run.result.terminations.iter().map(|t| &t.uid).collect();
    let graces = run.records.events.iter().filter_map(|event| match &event.kind {
        EventKind::Pod(pod) if uids.contains(&pod.uid) => pod.deletion_grace_s.filter(|grace| *grace > 0),
        _ => None,
    });
    assert_eq!(graces.collect::<BTreeSet<_>>(), BTreeSet::from([3]), "{}", run.finished);
}

#[test]
fn forced_deletion_leaves_no_grace_period() {
    measured(|| {
        let disruptions = "{at: 1s, action: deletePod, selector: app=web, count: 50%, force: true}, \
                       {at: 5s, action: evict, selector: app=web, count: all, allowOutage: true}";
        let run = runs::measure(&scenario("forced", "7s", disruptions), Dataplane::Userspace, &[]);
        let forced: Vec<_> =
            actions(&run.records).into_iter().filter(|a| a.action == ActionName::DeletePod).collect();
        let [only] = forced[..] else { panic!("half of three, rounded down: {forced:?}") };
        assert_eq!(only.status, Some(200), "{}", run.finished);
        let deleted = run.records.events.iter().find(|event| {
        matches!(&event.kind, EventKind::Pod(pod) if Some(&pod.uid) == only.uid.as_ref() && pod.change == Change::Deleted)
    });
        let after_s = deleted.expect("it is gone").at.seconds_since(only.answered);
        println!("removed after {after_s} s");
        run.finished.figure(after_s < 1.0);
        let refused = run.result.findings.iter().find(|finding| finding.what.starts_with("evict"));
        let refused = refused.unwrap_or_else(|| panic!("no finding\n{}", run.finished));
        assert!(refused.what.ends_with("was refused (429)"), "{refused:?}");
        assert!(
            refused.remedy.starts_with("allow more disruptions in the PodDisruptionBudget"),
            "{refused:?}"
        );
    });
}

#[test]
fn stateful_set_scales_and_drains() {
    let disruptions = "{at: 1s, action: scale, workload: statefulset/web, replicas: 2, for: 2s}, \
                       {at: 9s, action: drain, node: node-1, for: 1s, allowOutage: true}";
    let text = scenario_of(&web().kind("StatefulSet"), "stateful", "14s", disruptions);
    let run = runs::measure(&text, Dataplane::Userspace, &[]);
    let ends = &run.result.terminations;
    assert_eq!((ends[0].pod.as_str(), ends[0].mode), ("web-2", Mode::ScaleDown), "{}", run.finished);
    assert!(modes(&run)[1..].iter().all(|mode| *mode == Mode::Drain), "{}", run.finished);
    show_their_timelines(&run);
    let changes = std::fs::read_to_string(run.path.join("changes.jsonl")).expect("changes.jsonl");
    assert!(changes.contains("StatefulSet web in default: restored"), "{changes}");
    assert!(changes.contains("Node node-1: restored"), "{changes}");
}

#[test]
fn daemon_set_pods_terminate_with_node() {
    let set_image = "{at: 1s, action: setImage, workload: daemonset/web, container: app, \
                     image: example.org/rolldrop:2, keep: true}";
    let shutdown =
        "{at: 9s, action: nodeShutdown, node: node-2, gracePeriodSeconds: 3, for: 1s, allowOutage: true}";
    let daemons = |disruptions: &str| scenario_of(&web().kind("DaemonSet"), "daemons", "14s", disruptions);
    let run = runs::measure(&daemons(&format!("{set_image}, {shutdown}")), Dataplane::Userspace, &[]);
    let modes = modes(&run);
    assert_eq!(modes, [Mode::Rollout, Mode::Rollout, Mode::NodeShutdown], "{}", run.finished);
    for (disruption, why) in [
        (
            "{at: 1s, action: scale, workload: ds/web, replicas: 1}",
            "a DaemonSet cannot be scaled: it has one pod on each node",
        ),
        (
            "{at: 1s, action: drain, node: node-2}",
            "on node node-2 are DaemonSet pods, which a drain does not evict",
        ),
    ] {
        let refused = Rolldrop::run(&daemons(disruption)).on(Dataplane::Userspace).finish().expect_code(2);
        assert!(refused.stderr().contains(why), "{refused}");
    }
}

#[test]
fn workload_changes_roll_out_and_revert() {
    let disruptions = "\
        {at: 1s, action: setImage, workload: deployment/web, container: app, image: example.org/rolldrop:2, \
         until: rolloutComplete}, \
        {at: 1s, action: patch, object: {apiVersion: policy/v1, kind: PodDisruptionBudget, name: web}, \
         type: json, patch: [{op: replace, path: /spec/maxUnavailable, value: 2}], for: 1s}, \
        {at: 1s, action: patch, object: {apiVersion: apps/v1, kind: Deployment, name: web}, type: merge, \
         patch: {spec: {template: {metadata: {annotations: {tier: gold}}}}}}, \
        {at: 2s, action: patch, object: {apiVersion: v1, kind: Service, name: web}, \
         patch: {metadata: {annotations: {tier: gold}}}, keep: true}, \
        {at: 0s, action: observe, until: {terminations: 2}}";
    let run = runs::measure(&scenario("changes", "90s", disruptions), Dataplane::Userspace, &[]);
    let modes = modes(&run);
    assert!(
        modes.len() >= 3 && modes.iter().all(|mode| *mode == Mode::Rollout),
        "{modes:?}\n{}",
        run.finished
    );
    show_their_timelines(&run);
    let mut of: Vec<_> = actions(&run.records).iter().map(|a| (a.action.as_str(), a.status)).collect();
    // Three disruptions begin at the same time.
    of.sort_unstable();
    let patched = ("patch", Some(200));
    assert_eq!(of, [patched, patched, patched, patched, ("setImage", Some(200))], "{}", run.finished);
    let changes = std::fs::read_to_string(run.path.join("changes.jsonl")).expect("changes.jsonl");
    assert!(changes.contains(r#""old":"rolldrop","new":"example.org/rolldrop:2""#), "{changes}");
    assert!(changes.contains(r#""annotations","tier"],"new":"gold""#), "{changes}");
    assert_eq!(changes.matches("Deployment web in default: restored").count(), 2, "{changes}");
    assert!(changes.contains("PodDisruptionBudget web in default: restored"), "{changes}");
    assert!(changes.contains("kept, as the scenario says"), "{changes}");
}

#[test]
fn relabelled_and_crashed_pods_survive() {
    measured(|| {
        // One pod returns by itself. The other is released by its ReplicaSet, and adopted again at the end.
        let disruptions = "{at: 1s, action: relabel, selector: app=web, for: 3s, allowOutage: true}, \
                       {at: 1s, action: relabel, selector: app=web, label: app, allowOutage: true}, \
                       {at: 6s, action: crash, selector: app=web, container: app, allowOutage: true}";
        let run = runs::measure(&scenario("alive", "12s", disruptions), Dataplane::Userspace, &[]);
        assert_eq!(modes(&run), [], "no pod ends\n{}", run.finished);
        let of: Vec<_> = actions(&run.records).iter().map(|a| (a.action.as_str(), a.status)).collect();
        let relabelled = ("relabel", Some(200));
        assert_eq!(of, [relabelled, relabelled, relabelled, ("crash", Some(200))], "{}", run.finished);
        let found = |what: &str| run.result.findings.iter().any(|finding| finding.what.contains(what));
        assert!(found("left its Services and kept running: its endpoint was removed "), "{}", run.finished);
        run.finished.figure(found("its endpoint was removed 0."));
        assert!(found("was killed by this run (exit code 137) and was ready again"), "{}", run.finished);
        let left: BTreeSet<_> =
            actions(&run.records).iter().take(2).filter_map(|action| action.pod.clone()).collect();
        assert_eq!(left.len(), 2, "each label is removed from a different pod\n{}", run.finished);
        let changes = std::fs::read_to_string(run.path.join("changes.jsonl")).expect("changes.jsonl");
        for pod in left {
            assert!(changes.contains(&format!("Pod {pod} in default: restored")), "{changes}");
        }
        for label in ["app", "routed"] {
            assert!(changes.contains(&format!(r#""labels","{label}"]"#)), "{changes}");
        }
        let crash_s = run.records.events.iter().find_map(|event| match &event.kind {
            EventKind::Action(action) if action.action == ActionName::Crash => Some(event.at),
            _ => None,
        });
        let crash_at = crash_s.expect("a crash");
        let lost_before = |row: &&RequestRow| row.end < crash_at && row.outcome != Outcome::Ok;
        assert_eq!(run.records.requests.iter().filter(lost_before).count(), 0, "a live pod answers");
        assert!(!run.result.requests.by_cause.contains_key(&Cause::Unattributed), "{}", run.finished);
    });
}

#[test]
fn node_agent_restart_renews_grace_period() {
    let disruptions = "\
        {at: 1s, action: deletePod, selector: app=web, gracePeriodSeconds: 4}, \
        {at: 4s, action: restartNodeAgent, node: node-1}, {at: 4s, action: restartNodeAgent, node: node-2}, \
        {at: 12s, action: nodeShutdown, node: node-1, gracePeriodSeconds: 1, for: 3s, allowOutage: true}";
    let text = scenario_of(&web().args(&["--on-sigterm", "ignore"]), "nodes", "18s", disruptions);
    let run = runs::measure(&text, Dataplane::Userspace, &[]);
    let (first, rest) = run.result.terminations.split_first().expect("terminations");
    assert_eq!(first.mode, Mode::Isolated, "{}", run.finished);
    // Without the restart at 4 s, the pod would be killed at 5 s.
    let killed_s = first.timeline[&Stage::ContainersTerminated];
    assert!(killed_s > 6.0, "the whole grace period again: {killed_s} s\n{}", run.finished);
    assert!(!rest.is_empty() && rest.iter().all(|t| t.mode == Mode::NodeShutdown), "{}", run.finished);
    let shut_down = rest.iter().all(|t| t.node.as_deref() == Some("node-1"));
    assert!(shut_down, "{rest:?}");
    let changes = std::fs::read_to_string(run.path.join("changes.jsonl")).expect("changes.jsonl");
    assert!(changes.contains("Node node-1: booted"), "{changes}");
}

/// Terminates a pod on the second node as the scheduler does for preemption, and those on the first node with a taint.
const OTHERS: &str = r#"
test -s "$KUBECONFIG" || exit 1
pod=$(kubectl get pods --field-selector spec.nodeName=node-2 --output name | head -n 1)
kubectl patch "$pod" --subresource=status --patch '{"status": {"conditions": [{"type": "DisruptionTarget",
  "status": "True", "reason": "PreemptionByScheduler", "lastTransitionTime": "'$(date -u +%Y-%m-%dT%H:%M:%SZ)'",
  "message": "default-scheduler: preempting to accommodate a higher priority pod"}]}}'
kubectl delete "$pod" --wait=false
kubectl taint node node-1 maintenance=now:NoExecute
exit 3
"#;

#[test]
fn exec_disruption_records_terminations_by_others() {
    let disruptions = "{at: 1s, action: observe, for: 2s}, {at: 1s, action: exec, command: [sh, others.sh]}";
    let text = scenario("programs", "60s", disruptions);
    let _turn = runs::turn();
    let run = Rolldrop::run(&text).args(["--quiet"]).on(Dataplane::Userspace).file("others.sh", OTHERS);
    let finished = run.with_tools().finish().expect_code(1);
    let said = finished.stdout();
    assert!(said.contains("exit code 3"), "{finished}");
    let result = runs::result(&finished.dir().join("run"));
    let command = result.command.as_ref().expect("the command");
    assert_eq!((command.words[0].as_str(), command.code), ("sh", Some(3)), "{finished}");
    let preempted = "preempted: default-scheduler: preempting to accommodate a higher priority pod";
    let tainted = "taint on node node-1: Taint manager: deleting due to NoExecute taint";
    let on_node = |node: &str| -> Vec<_> {
        let ended = result.terminations.iter().filter(|t| t.node.as_deref() == Some(node));
        ended.map(|t| (t.mode, t.cause.clone())).collect()
    };
    let other = |what: &str| (Mode::Other, Some(EndCause::Other(what.to_owned())));
    assert_eq!(on_node("node-2"), [other(preempted)], "{finished}");
    let by_taint = on_node("node-1");
    assert!(!by_taint.is_empty(), "{finished}");
    assert!(by_taint.iter().all(|ended| *ended == other(tainted)), "{by_taint:?}\n{finished}");
    let report = |file: &str| std::fs::read_to_string(finished.dir().join("run").join(file)).expect(file);
    for report in [report("summary.md"), report("report.html")] {
        assert!(report.contains(preempted) && report.contains(tainted), "{report}");
    }
    let words = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains(preempted) && words.contains(tainted), "{finished}");
}

#[test]
fn dry_run_lists_calls_and_their_undo() {
    let disruptions = "\
        {at: 1s, action: setImage, workload: deploy/web, container: app, image: example.org/rolldrop:2}, \
        {at: 2s, action: patch, object: {apiVersion: v1, kind: Service, name: web}, patch: {a: b}, keep: true}, \
        {at: 3s, action: relabel, selector: app=web, for: 1s}, \
        {at: 4s, action: crash, selector: app=web, count: 25%}, \
        {at: 5s, action: nodeShutdown, node: node-1}, {at: 5s, action: restartNodeAgent, node: node-2}, \
        {at: 6s, action: exec, command: [helm, upgrade, web]}, {at: 7s, action: observe}";
    let text = scenario("plan", "9s", disruptions).replace("[helm, upgrade, web]", "[echo, upgrade, web]");
    let run = Rolldrop::run(&text).args(["--dry-run"]).on(Dataplane::Userspace);
    let said = run.finish().expect_code(0).stdout();
    let calls: Vec<&str> =
        said.lines().map(|line| line.trim_start().split_once(' ').expect(line).1).collect();
    let changing: Vec<String> = calls
        .iter()
        .filter(|call| !call.trim_start().starts_with("GET"))
        .map(|call| call.split("    #").next().unwrap_or_default().trim().to_owned())
        .collect();
    let deployments = "/apis/apps/v1/namespaces/default/deployments";
    let services = "/api/v1/namespaces/default/services";
    let expected = [
        "POST   /api/v1/namespaces/default/configmaps".to_owned(),
        format!("POST   {deployments}"),
        format!("POST   {services}"),
        "POST   /apis/policy/v1/namespaces/default/poddisruptionbudgets".to_owned(),
        format!("PATCH  {services}/web?dryRun=All"),
        "PATCH  /api/v1/namespaces/default/configmaps/{rolldrop-run-...}".to_owned(),
        format!("PATCH  {deployments}/web?dryRun=All"),
        format!("PATCH  {deployments}/web"),
        format!("PATCH  {services}/web?dryRun=All"),
        format!("PATCH  {services}/web"),
        "PATCH  /api/v1/namespaces/default/pods/{pod}".to_owned(),
        "PATCH  /api/v1/namespaces/default/pods/{pod}".to_owned(),
        "POST   /api/v1/nodes/{node}/proxy/kill/{namespace}/{pod}/{container}".to_owned(),
        "POST   /api/v1/nodes/node-1/proxy/shutdown?grace=30".to_owned(),
        "POST   /api/v1/nodes/node-2/proxy/restart".to_owned(),
        "RUN    echo upgrade web".to_owned(),
        "POST   /api/v1/nodes/node-1/proxy/restart".to_owned(),
        format!("PATCH  {deployments}/web"),
        "DELETE /apis/policy/v1/namespaces/default/poddisruptionbudgets/web".to_owned(),
        format!("DELETE {services}/web"),
        format!("DELETE {deployments}/web"),
        "DELETE /api/v1/namespaces/default/configmaps/{rolldrop-run-...}".to_owned(),
    ];
    assert_eq!(changing, expected, "{said}");
}

/// Checks the directory only after the dry run, which is too short for a check while it runs.
#[test]
fn dry_run_removes_temporary_kubeconfig() {
    let temporary = tempfile::tempdir().expect("a directory");
    let run = |path: &Path| {
        let run = Rolldrop::new(["run", "naive-exit", "--dry-run", "--dataplane", "userspace"]);
        run.env("TMPDIR", &path.display().to_string()).finish()
    };
    run(temporary.path()).expect_code(0);
    let left: Vec<_> = std::fs::read_dir(temporary.path()).expect("a directory").flatten().collect();
    assert!(left.is_empty(), "{left:?}");
    let refused = run(&temporary.path().join("missing")).expect_code(2);
    let said = refused.stderr();
    assert!(said.contains("failed to create a temporary directory"), "{said}");
}
