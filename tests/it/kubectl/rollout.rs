//! `kubectl rollout`, `scale` and `set`.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

use super::{Kubectl, ROLLED_OUT, SharedCluster, rows, web};

#[test]
fn scale_changes_pod_count() {
    let kubectl = Kubectl::in_namespace("rollout");
    kubectl.run_web(1);
    assert_eq!(kubectl.ok("scale deployment web --replicas=3"), "deployment.apps/web scaled\n");
    let status = kubectl.ok("rollout status deployment web --timeout=300s");
    assert!(status.ends_with("deployment \"web\" successfully rolled out\n"), "{status}");
    assert_eq!(kubectl.ok("get pods -o name").lines().count(), 3);
    let refused = kubectl.fails("scale deployment web --current-replicas=9 --replicas=1");
    assert!(refused.contains("Expected replicas to be 9, was 3"), "{refused}");
    kubectl.ok("scale rs,deployment -l app=web --replicas=0");
    kubectl.until("get deployment web --no-headers", |row| rows(row)[0][1] == "0/0");
}

#[test]
fn rollout_restart_replaces_every_pod() {
    let kubectl = Kubectl::in_namespace("rollout");
    // Pods are ready only while a file exists so that nothing finishes before the test has looked at it.
    let gate = SharedCluster::get().file(kubectl.namespace());
    let open = || fs::write(&gate, "").expect("a file");
    let probe = format!(
        "readinessProbe: {{exec: {{command: [test, -e, {}]}}, periodSeconds: 1}}, ports:",
        gate.display()
    );
    open();
    kubectl.apply(&web(2).replace("ports:", &probe));
    kubectl.ok(ROLLED_OUT);
    let before = kubectl.ok("get pods -o name");
    fs::remove_file(&gate).expect("it exists");
    assert_eq!(kubectl.ok("rollout restart deployment web"), "deployment.apps/web restarted\n");
    let mut status = kubectl.command(ROLLED_OUT).stdout(Stdio::piped()).spawn().expect("kubectl starts");
    let mut lines = BufReader::new(status.stdout.take().expect("its stdout")).lines().map_while(Result::ok);
    let waits = |line: &String| line.contains("Waiting for deployment \"web\" rollout to finish");
    assert!(lines.any(|line| waits(&line)), "it does not wait");
    open();
    assert_eq!(lines.last().as_deref(), Some("deployment \"web\" successfully rolled out"));
    assert!(status.wait().expect("an exit status").success());
    let after = kubectl.until("get pods -o name --field-selector status.phase=Running", |after| {
        after.lines().all(|pod| !before.contains(pod))
    });
    assert_eq!(after.lines().count(), 2);
}

#[test]
fn rollout_undo_restores_previous_image() {
    let kubectl = Kubectl::in_namespace("rollout");
    kubectl.run_web(1);
    let image = || kubectl.field("deployment/web", ".spec.template.spec.containers[0].image");
    assert_eq!(
        kubectl.ok("set image deployment/web app=host/sleep:2"),
        "deployment.apps/web image updated\n"
    );
    kubectl.ok("annotate deployment web kubernetes.io/change-cause=two");
    kubectl.ok("rollout status deployment web --timeout=300s");
    assert_eq!(image(), "host/sleep:2");
    let history = kubectl.until("rollout history deployment web", |text| text.contains("two"));
    let history = rows(&history);
    assert_eq!(history[1..4], [vec!["REVISION", "CHANGE-CAUSE"], vec!["1", "<none>"], vec!["2", "two"]]);
    let revision = kubectl.ok("rollout history deployment web --revision=1");
    assert!(revision.contains("host/sleep:1"), "{revision}");
    assert_eq!(kubectl.ok("rollout undo deployment web"), "deployment.apps/web rolled back\n");
    kubectl.ok("rollout status deployment web --timeout=300s");
    assert_eq!(image(), "host/sleep:1");
    kubectl.ok("rollout undo deployment web --to-revision=2");
    kubectl.ok("rollout status deployment web --timeout=300s");
    assert_eq!(image(), "host/sleep:2");
}

#[test]
fn paused_rollout_waits_for_resume() {
    let kubectl = Kubectl::in_namespace("rollout");
    kubectl.run_web(1);
    assert_eq!(kubectl.ok("rollout pause deployment web"), "deployment.apps/web paused\n");
    assert_eq!(kubectl.ok("set env deployment/web GREETING=hello"), "deployment.apps/web env updated\n");
    let observed = || kubectl.field("deployment/web", ".status.observedGeneration");
    let generation = kubectl.field("deployment/web", ".metadata.generation");
    super::wait_for("the change is seen", super::LIMIT, || (observed() == generation).then_some(()));
    assert_eq!(kubectl.ok("get rs -o name").lines().count(), 1);
    assert_eq!(kubectl.ok("rollout resume deployment web"), "deployment.apps/web resumed\n");
    kubectl.ok("rollout status deployment web --timeout=300s");
    assert_eq!(kubectl.ok("get rs -o name").lines().count(), 2);
    assert_eq!(
        kubectl.ok("set env deployment/web --list"),
        "# Deployment web, container app\nGREETING=hello\n"
    );
}

#[test]
fn stuck_rollout_exceeds_progress_deadline() {
    let kubectl = Kubectl::in_namespace("rollout");
    let stuck = web(1)
        .replace("replicas: 1", "replicas: 1\n  progressDeadlineSeconds: 1")
        .replace("ports:", "readinessProbe: {exec: {command: ['false']}}, ports:");
    kubectl.apply(&stuck);
    let error = kubectl.fails("rollout status deployment web --timeout=300s");
    assert_eq!(error, "error: deployment \"web\" exceeded its progress deadline\n");
}
