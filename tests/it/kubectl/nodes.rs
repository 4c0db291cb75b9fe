//! `kubectl cordon`, `drain` and `uncordon`.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use super::{Kubectl, LIMIT, rows, wait_for, web};

/// Drain command that leaves other tests' pods alone.
const DRAIN: &str = "drain node-3 --pod-selector=group=drained --timeout=300s";

#[test]
fn drained_node_rejects_pods_until_uncordon() {
    let kubectl = Kubectl::in_namespace("nodes");
    let pinned =
        web(2).replace("labels: {app: web}}\n    spec:", "labels: {app: web, group: drained}}\n    spec:");
    kubectl.apply(&pinned.replace(
        "      containers",
        "      nodeSelector: {kubernetes.io/hostname: node-3}\n      containers",
    ));
    kubectl.ok("rollout status deployment web --timeout=300s");
    kubectl.apply(
        "{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {name: web}, \
         spec: {minAvailable: 2, selector: {matchLabels: {app: web}}}}",
    );
    kubectl.until("get pdb web -o jsonpath={.status.currentHealthy}", |healthy| healthy == "2");

    assert_eq!(kubectl.ok("cordon node-3"), "node/node-3 cordoned\n");
    let node = kubectl.ok("get node node-3 --no-headers");
    assert_eq!(rows(&node)[0][1], "Ready,SchedulingDisabled");

    // The budget allows no eviction, so the drain retries until the budget is deleted.
    let mut drain = kubectl.command(DRAIN);
    let mut drain = drain.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("kubectl starts");
    let mut said = BufReader::new(drain.stderr.take().expect("its stderr")).lines().map_while(Result::ok);
    let is_refused =
        |line: &str| line.contains("Cannot evict pod as it would violate the pod's disruption budget.");
    assert!(said.any(|line| is_refused(&line)), "no eviction was refused");
    assert!(drain.try_wait().expect("its state").is_none(), "it gave up");

    kubectl.ok("delete pdb web");
    let said: Vec<String> = said.collect();
    let ended = drain.wait_with_output().expect("its exit status");
    assert!(ended.status.success(), "{said:?}");
    let drained = String::from_utf8(ended.stdout).expect("text");
    assert!(drained.contains("node/node-3 already cordoned"), "{drained}");
    assert_eq!(drained.lines().filter(|line| line.ends_with(" evicted")).count(), 2, "{drained}");
    assert!(drained.ends_with("node/node-3 drained\n"), "{drained}");

    // The evicted pods' replacements wait for the node.
    let pending = || kubectl.ok("get pods --field-selector status.phase=Pending -o name").lines().count();
    wait_for("two pending pods", LIMIT, || (pending() == 2).then_some(()));
    assert_eq!(kubectl.ok("uncordon node-3"), "node/node-3 uncordoned\n");
    kubectl.ok("rollout status deployment web --timeout=300s");
}
