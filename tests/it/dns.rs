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

/// The address of a pod that runs.
async fn address(lab: &Lab, pod: &str) -> String {
    let found = |seen: &[crate::termination::lab::Seen]| {
        let mut own = seen.iter().filter(|seen| seen.kind() == "Pod" && seen.name() == pod);
        own.find_map(|seen| seen.object["status"]["podIP"].as_str().map(str::to_owned))
    };
    lab.until("default", "the address of a pod", found).await
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

#[test]
fn a_headless_service_is_its_ready_endpoints() {
    on("kernel", async |lab| {
        service(&lab, "web", json!({"clusterIP": "None", "ports": [{"port": 8080}]})).await;
        for name in ["web-1", "web-2"] {
            serve(&lab, name, json!({})).await;
        }
        let never = json!({"exec": {"command": ["false"]}, "periodSeconds": 1});
        serve(&lab, "unready", json!({"readinessProbe": never})).await;
        let unready = address(&lab, "unready").await;
        let (first, second) = (address(&lab, "web-1").await, address(&lab, "web-2").await);

        let script = "while :; do echo \"[$(getent ahostsv4 web | cut -d' ' -f1 | sort -u | tr '\\n' ' ')]\"; \
                      sleep 0.1; done";
        let spec = json!({"terminationGracePeriodSeconds": 1, "containers": [shell("app", script)]});
        run(&lab, "asker", spec).await;
        let mut both = [first.as_str(), second.as_str()];
        both.sort_unstable();
        let both = format!("[{} {} ]\n", both[0], both[1]);
        log_with(&lab, "asker", "app", &both);

        // It terminates for longer than the test takes, and leaves the answers meanwhile.
        lab.call("DELETE", &format!("{PODS}/web-1"), None).await;
        let log = log_with(&lab, "asker", "app", &format!("{both}[{second} ]"));
        let pod = lab.call("GET", &format!("{PODS}/web-1"), None).await;
        assert!(pod.body["metadata"]["deletionTimestamp"].is_string(), "{}", pod.body);
        assert_eq!(pod.body["status"]["phase"], "Running");
        assert!(!log.contains(&format!("{unready} ")), "{log}");
    });
}
