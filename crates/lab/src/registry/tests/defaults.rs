//! Compares created objects with objects recorded from a real API server.

use super::*;

/// Reads a response recorded from a real API server.
pub(in crate::registry) fn recorded(file: &str) -> Value {
    let path = format!("{}/../../tests/reference/api/{file}.json", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Returns the object that was applied to the recorded cluster.
fn applied(object: &Value) -> Value {
    let annotation = &object["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"];
    serde_json::from_str(annotation.as_str().unwrap()).unwrap()
}

fn created(resource: Resource, object: Value) -> Value {
    (*registry().create(resource, "default", object).unwrap()).clone()
}

#[test]
fn deployment_defaults_match_recorded_server() {
    let golden = recorded("deployment-get")["response"].take();
    assert_eq!(created(Resource::Deployments, applied(&golden))["spec"], golden["spec"]);
}

#[test]
fn service_defaults_match_recorded_server() {
    let golden = recorded("service-get")["response"].take();
    let mut service = created(Resource::Services, applied(&golden));
    for field in ["clusterIP", "clusterIPs"] {
        service["spec"][field] = golden["spec"][field].clone();
    }
    assert_eq!(service["spec"], golden["spec"]);
    assert_eq!(service["status"], golden["status"]);
}

#[test]
fn client_affinity_gets_default_timeout() {
    let registry = registry();
    let service = |affinity: &str, config: Value| {
        let spec =
            json!({"ports": [{"port": 80}], "sessionAffinity": affinity, "sessionAffinityConfig": config});
        json!({"metadata": {"name": "web"}, "spec": spec})
    };
    let created = registry.create(Resource::Services, "default", service("ClientIP", json!({}))).unwrap();
    assert_eq!(created["spec"]["sessionAffinityConfig"], json!({"clientIP": {"timeoutSeconds": 10_800}}));
    let config = created["spec"]["sessionAffinityConfig"].clone();
    let updated = registry.update(Resource::Services, "default", "web", service("None", config)).unwrap();
    assert_eq!(updated["spec"].get("sessionAffinityConfig"), None);
}

#[test]
fn budget_defaults_match_recorded_server() {
    let golden = recorded("pdb-get")["response"].take();
    let budget = created(Resource::PodDisruptionBudgets, applied(&golden));
    assert_eq!(budget["spec"], golden["spec"]);
    assert_eq!(budget["metadata"]["generation"], 1);
}

#[test]
fn pod_defaults_match_recorded_server() {
    let mut golden = recorded("pod-list")["response"]["items"][0].take();
    let mut template = recorded("deployment-get")["response"]["spec"]["template"].take();
    template["metadata"]["name"] = json!("web-1");
    let pod = created(Resource::Pods, template);
    // The scheduler set this.
    remove(&mut golden["spec"], "nodeName");
    // The volume's name has a random suffix.
    let name = pod["spec"]["volumes"][0]["name"].clone();
    golden["spec"]["containers"][0]["volumeMounts"][0]["name"] = name.clone();
    golden["spec"]["volumes"][0]["name"] = name;
    assert_eq!(pod["spec"], golden["spec"]);
}

#[test]
fn replica_set_defaults_match_recorded_server() {
    let golden = recorded("replicaset-list")["response"]["items"][0].take();
    let template = json!({
        "metadata": {"labels": {"app": "web", "pod-template-hash": "75496984bd"}},
        "spec": applied(&recorded("deployment-get")["response"])["spec"]["template"]["spec"],
    });
    let spec = json!({"replicas": 2, "selector": golden["spec"]["selector"], "template": template});
    let created = created(Resource::ReplicaSets, json!({"metadata": {"name": "web"}, "spec": spec}));
    assert_eq!(created["spec"], golden["spec"]);
    assert_eq!(created["metadata"]["labels"], golden["metadata"]["labels"]);
}

#[test]
fn job_selector_matches_own_uid() {
    let template =
        json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "app", "image": "rolldrop"}]}});
    let job = created(Resource::Jobs, json!({"metadata": {"name": "pi"}, "spec": {"template": template}}));
    let uid = &job["metadata"]["uid"];
    let labels = json!({
        "job-name": "pi",
        "batch.kubernetes.io/job-name": "pi",
        "controller-uid": uid,
        "batch.kubernetes.io/controller-uid": uid,
    });
    assert_eq!(job["spec"]["template"]["metadata"]["labels"], labels);
    assert_eq!(job["spec"]["selector"], json!({"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}));
    for (field, value) in [
        ("completions", json!(1)),
        ("parallelism", json!(1)),
        ("backoffLimit", json!(6)),
        ("completionMode", json!("NonIndexed")),
        ("suspend", json!(false)),
        ("podReplacementPolicy", json!("TerminatingOrFailed")),
        ("manualSelector", json!(false)),
    ] {
        assert_eq!(job["spec"][field], value, "{field}");
    }
}

#[test]
fn node_ports_are_unique_and_reusable() {
    let registry = registry();
    let service = |name: &str, kind: &str, node_port: u64| {
        json!({
            "metadata": {"name": name},
            "spec": {"type": kind, "ports": [{"port": 80, "nodePort": node_port}], "selector": {"app": "web"}},
        })
    };
    let create = |object| registry.create(Resource::Services, "default", object);
    let a = create(service("a", "NodePort", 0)).unwrap();
    let number = a["spec"]["ports"][0]["nodePort"].as_u64().unwrap();
    assert!((30_000..=32_767).contains(&number), "{number}");
    assert_eq!(a["spec"]["externalTrafficPolicy"], "Cluster");
    let b = create(service("b", "LoadBalancer", 0)).unwrap();
    assert_ne!(b["spec"]["ports"][0]["nodePort"], number);
    for (wanted, why) in [(number, "provided port is already allocated"), (80, "not in the valid range")] {
        let refused = create(service("c", "NodePort", wanted)).unwrap_err();
        assert_eq!(refused.code(), 422);
        assert!(
            refused.to_string().contains("spec.ports[0].nodePort") && refused.to_string().contains(why),
            "{refused}"
        );
    }
    // The port survives an update from a client that is unaware of it.
    let applied = registry.update(Resource::Services, "default", "a", service("a", "NodePort", 0)).unwrap();
    assert_eq!(applied["spec"]["ports"][0]["nodePort"], number);
    let inner = registry.update(Resource::Services, "default", "a", service("a", "ClusterIP", 0)).unwrap();
    assert_eq!(inner["spec"]["ports"][0].get("nodePort"), None);
    assert_eq!(inner["spec"]["clusterIP"], a["spec"]["clusterIP"]);
    create(service("c", "NodePort", number)).unwrap();
}
