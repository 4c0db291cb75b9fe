//! The cluster's DNS as a pod uses it, by its own resolver, on the kernel dataplane.

use serde_json::{Value, json};

use crate::pods::{PODS, log_with, on, run, shell};
use crate::termination::lab::Lab;

const SERVICES: &str = "/api/v1/namespaces/default/services";

/// Runs a server with the label `app: web`.
async fn serve(lab: &Lab, name: &str, more: Value) {
    let mut container = json!({
        "name": "app", "image": "rolldrop", "args": ["workload", "--listen", "0.0.0.0:8080"],
        "lifecycle": {"preStop": {"sleep": {"seconds": 300}}},
    });
    for (field, value) in more.as_object().into_iter().flatten() {
        container[field] = value.clone();
    }
    let spec = json!({"terminationGracePeriodSeconds": 300, "containers": [container]});
    lab.create(PODS, &json!({"metadata": {"name": name, "labels": {"app": "web"}}, "spec": spec})).await;
}

/// A Service of those servers.
async fn service(lab: &Lab, name: &str, more: Value) {
    let mut spec = json!({"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]});
    for (field, value) in more.as_object().into_iter().flatten() {
        spec[field] = value.clone();
    }
    lab.create(SERVICES, &json!({"metadata": {"name": name}, "spec": spec})).await;
}

#[test]
fn curl_in_a_pod_reaches_a_service_by_its_name() {
    on("kernel", async |lab| {
        service(&lab, "front", json!({})).await;
        serve(&lab, "web-1", json!({})).await;
        let script = "until curl -sf -o /dev/null -m 2 http://front/; do sleep 0.1; done; \
                      curl -sf -o /dev/null -m 2 http://front.default.svc.cluster.local/ && echo reached; \
                      sleep 1000";
        let spec = json!({"terminationGracePeriodSeconds": 1, "containers": [shell("app", script)]});
        run(&lab, "asker", spec).await;
        log_with(&lab, "asker", "app", "reached");
    });
}
