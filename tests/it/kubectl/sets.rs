//! StatefulSets and DaemonSets as kubectl handles them.

use std::collections::BTreeSet;

use super::{Kubectl, rows, web};

/// Returns a manifest of idle pods for another kind of workload. The pods exit within 2 s of deletion.
fn of_kind(kind: &str, replicas: u32) -> String {
    web(replicas)
        .replace("kind: Deployment", &format!("kind: {kind}"))
        .replace("    spec:\n", "    spec:\n      terminationGracePeriodSeconds: 1\n")
}

fn pods(kubectl: &Kubectl) -> Vec<String> {
    let listed = kubectl.ok("get pods --no-headers -o custom-columns=:metadata.name");
    listed.lines().map(str::to_owned).collect()
}

#[test]
fn stateful_set_updates_and_scales() {
    let kubectl = Kubectl::in_namespace("stateful");
    kubectl.apply(&of_kind("StatefulSet", 3));
    let rolled_out = "rollout status statefulset/web --timeout=300s";
    kubectl.ok(rolled_out);
    assert_eq!(pods(&kubectl), ["web-0", "web-1", "web-2"]);
    let shown = kubectl.ok("get statefulsets -o wide");
    assert_eq!(rows(&shown)[0], ["NAME", "READY", "AGE", "CONTAINERS", "IMAGES"]);
    assert_eq!(rows(&shown)[1][..2], ["web", "3/3"]);

    let uid = || kubectl.field("pod/web-1", ".metadata.uid");
    let before = uid();
    assert_eq!(kubectl.ok("rollout restart statefulset/web"), "statefulset.apps/web restarted\n");
    let status = kubectl.ok(rolled_out);
    assert!(status.ends_with("partitioned roll out complete: 3 new pods have been updated...\n"), "{status}");
    assert_eq!(pods(&kubectl), ["web-0", "web-1", "web-2"]);
    assert_ne!(uid(), before);

    kubectl.ok("set image statefulset/web app=host/sleep:2");
    kubectl.ok(rolled_out);
    assert_eq!(kubectl.field("statefulset/web", ".spec.template.spec.containers[0].image"), "host/sleep:2");

    assert_eq!(kubectl.ok("scale statefulset/web --replicas=1"), "statefulset.apps/web scaled\n");
    kubectl.until("get pods --no-headers -o custom-columns=:metadata.name", |pods| pods == "web-0\n");
    let described = kubectl.ok("describe statefulset web");
    assert!(described.contains("Deleted pod: web-2"), "{described}");
    kubectl.ok("delete statefulset web");
    kubectl.until("get pods --no-headers -o name", str::is_empty);
}

#[test]
fn daemon_set_covers_each_node() {
    let kubectl = Kubectl::in_namespace("daemon");
    kubectl.apply(&of_kind("DaemonSet", 0).replace("  replicas: 0\n", ""));
    let rolled_out = "rollout status daemonset/web --timeout=300s";
    kubectl.ok(rolled_out);
    let nodes = || {
        let listed = kubectl.ok("get pods --no-headers -o custom-columns=:spec.nodeName");
        listed.lines().map(str::to_owned).collect::<BTreeSet<_>>()
    };
    assert_eq!((pods(&kubectl).len(), nodes().len()), (3, 3));
    let shown = kubectl.ok("get daemonsets");
    let wide = ["NAME", "DESIRED", "CURRENT", "READY", "UP-TO-DATE", "AVAILABLE", "NODE", "SELECTOR", "AGE"];
    assert_eq!(rows(&shown)[0], wide);
    assert_eq!(rows(&shown)[1][..7], ["web", "3", "3", "3", "3", "3", "<none>"]);
    let before: BTreeSet<String> = pods(&kubectl).into_iter().collect();
    assert_eq!(kubectl.ok("rollout restart daemonset/web"), "daemonset.apps/web restarted\n");
    let status = kubectl.ok(rolled_out);
    assert!(status.ends_with("daemon set \"web\" successfully rolled out\n"), "{status}");
    // A pod that has terminated makes room for its successor before its object is gone.
    let ended =
        kubectl.ok("get pods --no-headers -o custom-columns=:metadata.name,:metadata.deletionTimestamp");
    let stay = rows(&ended).iter().filter(|row| row[1] == "<none>").map(|row| row[0].to_owned()).collect();
    assert!(before.is_disjoint(&stay), "{before:?}\n{ended}");
    kubectl.until("get pods --no-headers -o custom-columns=:metadata.name", |pods| pods.lines().count() == 3);
    assert_eq!((stay.len(), nodes().len()), (3, 3));
    let refused = kubectl.fails("scale daemonset/web --replicas=1");
    assert!(refused.contains("the server could not find the requested resource"), "{refused}");
}
