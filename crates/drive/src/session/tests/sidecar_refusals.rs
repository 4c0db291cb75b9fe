//! Tests of the sidecars that a plan refuses, because clients would not reach the app with them.

use super::planning::{cluster, read, service};
use super::*;

/// Returns a workload of three pods with these labels.
fn workload(name: &str, labels: &Value) -> Value {
    let ports = json!([{"name": "http", "containerPort": 8080}]);
    let pod =
        json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "app", "ports": ports}]}});
    json!({"metadata": {"name": name, "namespace": "shop"}, "spec": {"replicas": 3, "template": pod}})
}

/// Returns a pod of the target's Service, with this owner and label.
fn pod(name: &str, owner: Option<(&str, &str)>, (key, hash): (&str, &str)) -> Value {
    let owner = owner.map(|(kind, name)| {
        json!([{"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": "r", "controller": true}])
    });
    json!({"metadata": {"name": name, "namespace": "shop", "ownerReferences": owner,
        "labels": {"app": "web", key: hash}}, "spec": {"containers": [{"name": "app"}]}})
}

/// Plans a run that adds the sidecar to Deployment `web` behind Service `web`, and returns its error.
async fn refusal(target_port: &Value, more: &[(&'static str, Value)]) -> Option<String> {
    let routing = service(&json!({"ports": [{"port": 80, "targetPort": target_port}]}));
    let mut deployments = json!([workload("web", &json!({"app": "web"}))]);
    let mut objects = vec![("/services", json!([routing])), ("/services/web", routing)];
    for (path, items) in more {
        match *path {
            "/deployments" => deployments.as_array_mut().unwrap().extend(items.as_array().unwrap().clone()),
            path => objects.push((path, items.clone())),
        }
    }
    objects.push(("/deployments", deployments));
    let caller = Caller::in_shop(cluster(&objects), TimeLimits::default(), CancellationToken::new());
    let scenario = read("  target: {service: web}\n  load: {duration: 60s}\n");
    let named = "deployment/web".parse().unwrap();
    let whose = WorkloadSelection { workloads: vec![&named], ..WorkloadSelection::default() };
    let token = "rolldrop".parse().unwrap();
    let sidecar = Some(Sidecar { image: "rolldrop", admin_token: &token });
    let changes = LiveChanges { whose, sidecar, ending: None, gitops: GitOps::Refuse };
    let planned = plan_run(&caller, &Work { live: Some(changes), ..work(&scenario) }).await;
    planned.err().map(|error| error.to_string())
}

#[tokio::test]
async fn sidecar_is_refused_beside_pods_without_it() {
    let canary = ("/deployments", json!([workload("canary", &json!({"app": "web", "track": "canary"}))]));
    let rollout = pod("web-7f-1", Some(("ReplicaSet", "web-7f")), ("rollouts-pod-template-hash", "7f"));
    let bare = pod("spare", None, ("by", "hand"));
    let mut with_sidecar = bare.clone();
    with_sidecar["spec"]["initContainers"] = json!([{"name": "rolldrop"}]);
    let mut done = bare.clone();
    done["status"] = json!({"phase": "Succeeded"});
    let own = pod("web-7f-1", Some(("ReplicaSet", "web-7f")), ("pod-template-hash", "7f"));
    let number = json!(8080);
    for (other, named) in [
        (canary.clone(), "Deployment canary"),
        (("/pods", json!([own, rollout])), "Pod web-7f-1 of ReplicaSet web-7f"),
        (("/pods", json!([bare])), "Pod spare"),
    ] {
        let why = refusal(&number, std::slice::from_ref(&other)).await.expect("a refusal");
        assert!(why.contains(&format!("Service web also routes to {named}, which gets no sidecar")), "{why}");
        // The name moves to the sidecar only where there is one.
        assert_eq!(refusal(&json!("http"), &[other]).await, None, "{named}");
    }
    let elsewhere = workload("db", &json!({"app": "db"}));
    let fine = [("/pods", json!([own, with_sidecar, done])), ("/deployments", json!([elsewhere]))];
    assert_eq!(refusal(&number, &fine).await, None);
}

#[tokio::test]
async fn sidecar_is_refused_behind_policy_for_app_port() {
    let policy = |port: u16| {
        json!([{"metadata": {"name": "front", "namespace": "shop"}, "spec": {
            "podSelector": {"matchLabels": {"app": "web"}}, "ingress": [{"ports": [{"port": port}]}]}}])
    };
    let why = refusal(&json!(8080), &[("/networkpolicies", policy(8080))]).await.expect("a refusal");
    let expected =
        "deployment/web: networkpolicy/front admits clients to port 8080 but not to the sidecar's port 18080";
    assert!(why.contains(expected), "{why}");
    assert_eq!(refusal(&json!(8080), &[("/networkpolicies", policy(18080))]).await, None);
}
