//! `kubectl describe` for every kind that people describe.

use super::{Kubectl, pod};

/// Returns the value after `Key:` in a description.
fn value<'a>(description: &'a str, key: &str) -> &'a str {
    let line = description.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {key} in\n{description}")).trim()
}

#[test]
fn describe_shows_pod_state_and_events() {
    let kubectl = Kubectl::in_namespace("describe");
    kubectl.apply(&pod("idle", "exec sleep 1000"));
    kubectl.ok("wait pod/idle --for=condition=Ready --timeout=300s");
    let pod = kubectl.until("describe pod idle", |text| {
        ["Started", "Successfully assigned"].iter().all(|event| text.contains(event))
    });
    assert_eq!(value(&pod, "Status"), "Running");
    assert_eq!(value(&pod, "Labels"), "app=idle");
    assert_eq!(value(&pod, "QoS Class"), "BestEffort");
    assert!(pod.contains("    State:          Running\n      Started:"), "{pod}");
    assert!(pod.contains("  ContainersReady "), "{pod}");
    assert!(pod.contains("Successfully assigned"), "{pod}");
}

#[test]
fn describe_shows_workload_state() {
    let kubectl = Kubectl::in_namespace("describe");
    kubectl.run_web(2);
    let deployment = kubectl.ok("describe deployment web");
    assert_eq!(
        value(&deployment, "Replicas"),
        "2 desired | 2 updated | 2 total | 2 available | 0 unavailable"
    );
    assert_eq!(value(&deployment, "RollingUpdateStrategy"), "25% max unavailable, 25% max surge");
    assert!(value(&deployment, "NewReplicaSet").ends_with("(2/2 replicas created)"));
    assert!(deployment.contains("Progressing    True    NewReplicaSetAvailable"), "{deployment}");
    assert!(deployment.contains("Scaled up replica set"), "{deployment}");
    let set = kubectl.ok("describe replicaset");
    assert_eq!(value(&set, "Controlled By"), "Deployment/web");
    assert_eq!(value(&set, "Pods Status"), "2 Running / 0 Waiting / 0 Succeeded / 0 Failed");
    assert!(set.contains("SuccessfulCreate"), "{set}");
}

#[test]
fn describe_shows_service_endpoints() {
    let kubectl = Kubectl::in_namespace("describe");
    kubectl.run_web(1);
    kubectl.ok("expose deployment web --port 80 --target-port 8080");
    let ip = kubectl.field("pods", ".items[0].status.podIP");
    let service =
        kubectl.until("describe service web", |text| value(text, "Endpoints") == format!("{ip}:8080"));
    assert_eq!(value(&service, "Selector"), "app=web");
    assert_eq!(value(&service, "TargetPort"), "8080/TCP");
    assert_eq!(value(&service, "Type"), "ClusterIP");
}

#[test]
fn describe_shows_node_pods() {
    let kubectl = Kubectl::in_namespace("describe");
    kubectl.apply(&pod("idle", "exec sleep 1000"));
    kubectl.ok("wait pod/idle --for=condition=Ready --timeout=300s");
    let node = kubectl.field("pod/idle", ".spec.nodeName");
    let node = kubectl.ok(&format!("describe node {node}"));
    assert!(node.contains("  Kubelet Version:            v1.36"), "{node}");
    assert!(node.contains("KubeletReady"), "{node}");
    let line = format!("  {} ", kubectl.namespace());
    assert!(node.lines().any(|text| text.starts_with(&line) && text.contains("idle")), "{node}");
}

#[test]
fn describe_counts_jobs_and_budgets() {
    let kubectl = Kubectl::in_namespace("describe");
    kubectl.run_web(2);
    kubectl.apply(
        "
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web}
spec: {minAvailable: 1, selector: {matchLabels: {app: web}}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: twice}
spec:
  completions: 2
  template: {spec: {restartPolicy: Never, containers: [{name: app, image: host/true:1, command: ['true']}]}}
",
    );
    kubectl.ok("wait job/twice --for=condition=Complete --timeout=300s");
    let job = kubectl.ok("describe job twice");
    assert_eq!(value(&job, "Completions"), "2");
    assert_eq!(value(&job, "Pods Statuses"), "0 Active (0 Ready) / 2 Succeeded / 0 Failed");
    let jobs = kubectl.ok("get job twice --no-headers");
    assert_eq!(super::rows(&jobs)[0][..3], ["twice", "Complete", "2/2"]);
    let budget = kubectl.until("describe pdb web", |text| text.contains("Allowed disruptions:  1\n"));
    assert_eq!(value(&budget, "Min available"), "1");
    let budgets = kubectl.ok("get pdb web --no-headers");
    assert_eq!(super::rows(&budgets)[0][..4], ["web", "1", "N/A", "1"]);
}
