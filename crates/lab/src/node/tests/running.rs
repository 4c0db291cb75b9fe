//! Tests of pods that are not being terminated: hooks, probes, restarts, configuration.

use super::*;

#[tokio::test]
async fn post_start_hook_delays_running() {
    let node = Node::start();
    let go = node.dir.path().join("go");
    let mut app = shell("app", SLEEP);
    let script = format!("while test ! -e {}; do sleep 0.01; done", go.display());
    app["lifecycle"] = json!({"postStart": {"exec": {"command": ["sh", "-c", script]}}});
    let mut pods = node.pod(json!({"containers": [app, shell("second", SLEEP)]}));
    // The main container runs, the next one does not yet, and the status shows neither.
    node.log_with(&pods, "app", "up").await;
    let now = node.shared.registry.get(Resource::Pods, "default", "a").unwrap();
    let reasons = |pod: &Value| {
        let statuses = pod["status"]["containerStatuses"].as_array().unwrap().clone();
        statuses.iter().map(|status| status["state"]["waiting"]["reason"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(reasons(&now), ["ContainerCreating", "ContainerCreating"]);
    assert_eq!(now["status"]["phase"], "Pending");
    std::fs::write(&go, "").unwrap();
    let ready = pods.until_ready().await;
    assert!(reasons(&ready).iter().all(Value::is_null));
    node.stop().await;
}

#[tokio::test]
async fn failing_post_start_hook_kills_container() {
    let node = Node::start();
    let mut app = shell("app", &format!("trap 'exit 3' TERM; {SLEEP}"));
    app["lifecycle"] = json!({"postStart": {"exec": {"command": ["sh", "-c", "sleep 0.2; exit 1"]}}});
    let mut pods = node.pod(json!({"restartPolicy": "Never", "containers": [app]}));
    let over = pods.until("the end", |pod| pod["status"]["phase"] == "Failed").await;
    assert_eq!(terminated(&over, 0).0, 3);
    assert_eq!(node.event("FailedPostStartHook")["message"], "PostStartHook failed");
    assert_eq!(node.event("Killing")["message"], "FailedPostStartHook");
    node.stop().await;
}

#[tokio::test]
async fn sidecar_startup_probe_delays_main() {
    let node = Node::start();
    let go = node.dir.path().join("go");
    let mut sidecar = shell("proxy", SLEEP);
    sidecar["restartPolicy"] = json!("Always");
    sidecar["startupProbe"] = json!({"exec": {"command": ["test", "-e", go]}, "periodSeconds": 1});
    let mut pods = node.pod(json!({"initContainers": [sidecar], "containers": [shell("app", SLEEP)]}));
    let held = pods
        .until("the sidecar", |pod| pod["status"]["initContainerStatuses"][0]["state"]["running"].is_object())
        .await;
    assert_eq!(held["status"]["initContainerStatuses"][0]["started"], false);
    assert_eq!(held["status"]["containerStatuses"][0]["state"]["waiting"]["reason"], "PodInitializing");
    assert_eq!(condition(&held, "Initialized"), "False");
    std::fs::write(&go, "").unwrap();
    let ready = pods.until_ready().await;
    assert_eq!(ready["status"]["initContainerStatuses"][0]["started"], true);
    node.stop().await;
}

#[tokio::test]
async fn sidecar_restarts_despite_never_policy() {
    let node = Node::start();
    let mut sidecar = shell("proxy", "echo run; sleep 0.3; exit 0");
    sidecar["restartPolicy"] = json!("Always");
    let mut pods = node.pod(
        json!({"restartPolicy": "Never", "initContainers": [sidecar], "containers": [shell("app", SLEEP)]}),
    );
    let again =
        pods.until("the restart", |pod| pod["status"]["initContainerStatuses"][0]["restartCount"] == 1).await;
    assert_eq!(again["status"]["initContainerStatuses"][0]["lastState"]["terminated"]["exitCode"], 0);
    assert_eq!(again["status"]["phase"], "Running");
    node.stop().await;
}

#[tokio::test]
async fn first_crash_causes_immediate_restart() {
    let node = Node::start();
    let crashed = node.dir.path().join("crashed");
    let script = format!(
        "echo up; if test -e {0}; then sleep 1000; fi; touch {0}; kill -KILL $$$$",
        crashed.display()
    );
    let mut pods = node.pod(json!({"containers": [shell("app", &script)]}));
    let ended = pods
        .until("the crash", |pod| pod["status"]["containerStatuses"][0]["state"]["terminated"].is_object())
        .await;
    assert_eq!(terminated(&ended, 0), (137, "Error".to_owned()));
    assert_eq!(ended["status"]["phase"], "Running");
    let again =
        pods.until("the restart", |pod| pod["status"]["containerStatuses"][0]["restartCount"] == 1).await;
    let status = &again["status"]["containerStatuses"][0];
    assert!(status["state"]["running"].is_object(), "{status}");
    let id = |of: &Value| of["containerID"].as_str().unwrap().to_owned();
    assert_ne!(id(status), id(&status["lastState"]["terminated"]));
    assert!(!node.events().contains(&"BackOff".to_owned()));
    node.stop().await;
}

#[tokio::test]
async fn failed_probe_event_states_reason() {
    let node = Node::start();
    let mut app = shell("app", SLEEP);
    app["readinessProbe"] = json!({"exec": {"command": ["sh", "-c", "echo not yet; exit 1"]}});
    app["livenessProbe"] = json!({"exec": {"command": ["/no/such/check"]}, "failureThreshold": 1});
    let mut pods = node.pod(json!({"containers": [app]}));
    let events = node.events_until("Unhealthy", 2).await;
    let messages: Vec<_> = events.iter().map(|event| event["message"].as_str().unwrap()).collect();
    assert!(messages.contains(&"Readiness probe failed: not yet"), "{messages:?}");
    // A check that cannot be performed is not a failure, so the container keeps running.
    let errored = messages.iter().any(|message| message.starts_with("Liveness probe errored"));
    assert!(errored, "{messages:?}");
    assert!(!node.events().contains(&"Killing".to_owned()));
    node.delete(0);
    assert_eq!(pods.states_until_gone().await.last().unwrap(), "deleted");
    node.stop().await;
}

#[tokio::test]
async fn container_waits_for_missing_config_map() {
    let node = Node::start();
    let mut app = shell("app", &format!("echo mode $MODE; {SLEEP}"));
    app["envFrom"] = json!([{"configMapRef": {"name": "settings"}}]);
    let mut pods = node.pod(json!({"containers": [app]}));
    let held = pods
        .until("the reason", |pod| {
            pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"]
                == "CreateContainerConfigError"
        })
        .await;
    let waiting = &held["status"]["containerStatuses"][0]["state"]["waiting"];
    assert_eq!(waiting["message"], "configmap \"settings\" not found");
    let settings = json!({"metadata": {"name": "settings"}, "data": {"MODE": "fast"}});
    node.shared.registry.create(Resource::ConfigMaps, "default", settings).unwrap();
    pods.until_ready().await;
    node.log_with(&pods, "app", "mode fast").await;
    node.stop().await;
}
