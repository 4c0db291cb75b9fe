//! `kubectl delete` and `wait`.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use super::{Kubectl, LIMIT, pod, wait_for};

/// Creates a pod that ignores SIGTERM.
fn stubborn(kubectl: &Kubectl) {
    kubectl.apply(&pod("stubborn", "trap '' TERM; while :; do sleep 1; done"));
    kubectl.ok("wait pod/stubborn --for=condition=Ready --timeout=300s");
}

#[test]
fn delete_waits_for_pod_removal() {
    let kubectl = Kubectl::in_namespace("delete");
    kubectl.apply(&pod("idle", "exec sleep 1000"));
    kubectl.ok("wait pod/idle --for=condition=Ready --timeout=300s");
    assert_eq!(
        kubectl.ok("delete pod idle"),
        format!("pod \"idle\" deleted from {} namespace\n", kubectl.namespace())
    );
    assert!(kubectl.fails("get pod idle").contains("NotFound"));
}

#[test]
fn delete_uses_requested_grace_period() {
    let kubectl = Kubectl::in_namespace("delete");
    stubborn(&kubectl);
    let start = |args: &str| {
        let mut command = kubectl.command(args);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("kubectl starts")
    };
    // Both watches start before the deletion, however slow this test is. Once a watch has shown the pod, it misses
    // nothing.
    let mut watch =
        start("get pods -w --no-headers -o custom-columns=GRACE:.metadata.deletionGracePeriodSeconds");
    let mut graces = BufReader::new(watch.stdout.take().expect("its stdout")).lines().map_while(Result::ok);
    assert_eq!(graces.next().as_deref(), Some("<none>"));
    let mut waiting = start("wait pod/stubborn --for=delete --timeout=300s -v=6");
    let mut said = BufReader::new(waiting.stderr.take().expect("its stderr")).lines().map_while(Result::ok);
    assert!(said.any(|line| line.contains("watch=true")), "it does not watch");
    kubectl.ok("delete pod stubborn --grace-period=5 --wait=false");
    assert_eq!(graces.find(|grace| grace != "<none>").as_deref(), Some("5"));
    watch.kill().expect("it still runs");
    watch.wait().expect("an exit status");
    let said: Vec<String> = said.collect();
    let gone = waiting.wait_with_output().expect("an exit status");
    assert_eq!(String::from_utf8_lossy(&gone.stdout), "pod/stubborn condition met\n", "{said:?}");
}

#[test]
fn forced_delete_removes_pod_immediately() {
    let kubectl = Kubectl::in_namespace("delete");
    stubborn(&kubectl);
    let ran = kubectl.run("delete pod stubborn --force --grace-period=0");
    assert!(ran.stderr().contains("Immediate deletion does not wait for confirmation"), "{ran}");
    assert!(ran.stdout().contains("pod \"stubborn\" force deleted"), "{ran}");
    assert!(kubectl.fails("get pod stubborn").contains("NotFound"));
}

#[test]
fn delete_cascades_to_owned_objects() {
    let kubectl = Kubectl::in_namespace("delete");
    kubectl.run_web(2);
    kubectl.ok("delete deployment web");
    wait_for("nothing is left", LIMIT, || kubectl.ok("get rs,pods -o name").is_empty().then_some(()));
}

#[test]
fn orphan_cascade_is_refused() {
    let kubectl = Kubectl::in_namespace("delete");
    kubectl.run_web(1);
    let refused = kubectl.fails("delete deployment web --cascade=orphan");
    assert!(refused.contains("does not support orphaning"), "{refused}");
    assert_eq!(kubectl.ok("get deployments -o name"), "deployment.apps/web\n");
}

#[test]
fn delete_selects_by_label_or_all() {
    let kubectl = Kubectl::in_namespace("delete");
    for name in ["a", "b", "c"] {
        kubectl.ok(&format!("create configmap {name}"));
    }
    kubectl.ok("label configmap a b group=x");
    assert_eq!(kubectl.ok("delete configmap -l group=x").lines().count(), 2);
    kubectl.ok("delete configmap --all");
    let left = kubectl.ok("get configmap -o name");
    assert!(left.lines().all(|name| name == "configmap/kube-root-ca.crt"), "{left}");
    let missing = kubectl.fails("delete configmap a");
    assert_eq!(missing, "Error from server (NotFound): configmaps \"a\" not found\n");
    assert_eq!(kubectl.ok("delete configmap a --ignore-not-found"), "");
}

#[test]
fn namespace_deletion_removes_its_objects() {
    let kubectl = Kubectl::in_namespace("delete");
    kubectl.run_web(1);
    let namespace = kubectl.namespace();
    assert_eq!(
        kubectl.ok(&format!("delete namespace {namespace}")),
        format!("namespace \"{namespace}\" deleted\n")
    );
    assert_eq!(kubectl.ok("get pods,deployments -o name"), "");
}

#[test]
fn wait_times_out_on_unmet_condition() {
    let kubectl = Kubectl::in_namespace("delete");
    kubectl.run_web(1);
    assert_eq!(
        kubectl.ok("wait deployment/web --for=condition=Available --timeout=300s"),
        "deployment.apps/web condition met\n"
    );
    assert_eq!(
        kubectl.ok("wait deployment/web --for=jsonpath={.status.readyReplicas}=1 --timeout=300s"),
        "deployment.apps/web condition met\n"
    );
    let error = kubectl.fails("wait deployment/web --for=jsonpath={.status.readyReplicas}=9 --timeout=1s");
    assert!(error.ends_with("error: timed out waiting for the condition on deployments/web\n"), "{error}");
    let error = kubectl.fails("wait deployment/web --for=delete --timeout=1s");
    // Earlier lines on stderr may also report a short watch.
    assert!(error.ends_with("error: timed out waiting for the condition on deployments/web\n"), "{error}");
}
