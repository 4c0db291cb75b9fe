//! Tests of a termination's effects on processes, as shown in their logs, and on the API.

use super::*;

/// Returns a container that logs every stop signal but keeps running.
fn stubborn(name: &str) -> Value {
    shell(name, &format!("trap 'echo got-term' TERM; {SLEEP}"))
}

#[tokio::test]
async fn pre_stop_hook_continues_after_sigterm() {
    let node = Node::start();
    let ticks = node.dir.path().join("ticks");
    let mut app = stubborn("app");
    let script = format!("while :; do echo tick >> {}; sleep 0.05; done", ticks.display());
    app["lifecycle"] = json!({"preStop": {"exec": {"command": ["sh", "-c", script]}}});
    let mut pods = node.pod(json!({"containers": [app]}));
    pods.until_ready().await;
    node.log_with(&pods, "app", "up").await;
    node.delete(1);
    node.log_with(&pods, "app", "got-term").await;
    // There is no event about the hook while it runs, and it keeps running.
    assert!(!node.events().contains(&"FailedPreStopHook".to_owned()));
    let before = std::fs::read_to_string(&ticks).unwrap().len();
    timeout(DEADLINE, async {
        while std::fs::read_to_string(&ticks).unwrap().len() <= before {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .unwrap();
    let over = pods.until("the terminal status", |pod| pod["status"]["phase"] == "Failed").await;
    assert_eq!(terminated(&over, 0).0, 137);
    assert!(node.events().contains(&"FailedPreStopHook".to_owned()));
    node.stop().await;
}

#[tokio::test]
async fn failed_pre_stop_hook_triggers_event() {
    let node = Node::start();
    let mut app = shell("app", &format!("trap 'exit 0' TERM; {SLEEP}"));
    app["lifecycle"] = json!({"preStop": {"httpGet": {"port": 1, "path": "/"}}});
    let mut pods = node.pod(json!({"containers": [app]}));
    pods.until_ready().await;
    node.log_with(&pods, "app", "up").await;
    node.delete(30);
    pods.until("the terminal status", |pod| pod["status"]["phase"] == "Succeeded").await;
    let event = node.event("FailedPreStopHook");
    assert_eq!(event["message"], "PreStopHook failed");
    assert_eq!(event["involvedObject"]["fieldPath"], "spec.containers{app}");
    node.stop().await;
}

/// On this dataplane, process 1 is the machine's own.
#[tokio::test]
async fn userspace_refuses_to_signal_process_1() {
    let node = Node::start();
    let process_1 =
        || std::fs::read_to_string("/proc/1/stat").unwrap().split(' ').nth(21).unwrap().to_owned();
    let before = process_1();
    let refused = "refused: it would signal process 1, which is this machine's own on the userspace dataplane; use the \
                   kernel dataplane";
    let mut app = shell("app", &format!("trap 'exit 0' TERM; {SLEEP}"));
    // Signal 0 does nothing, in case it is sent.
    app["lifecycle"] = json!({"preStop": {"exec": {"command": ["kill", "-0", "1"]}}});
    app["livenessProbe"] = json!({"exec": {"command": ["sh", "-c", "kill -0 1"]}, "periodSeconds": 1});
    let mut pods = node.pod(json!({"containers": [app]}));
    pods.until_ready().await;
    let probed = node.events_until("Unhealthy", 1).await;
    let message = probed[0]["message"].as_str().unwrap();
    assert!(message.starts_with("Liveness probe errored") && message.ends_with(refused), "{message}");
    node.delete(30);
    pods.until("the terminal status", |pod| pod["status"]["phase"] == "Succeeded").await;
    assert_eq!(node.event("FailedPreStopHook")["message"], format!("PreStopHook failed: {refused}"));
    assert_eq!(process_1(), before);
    node.stop().await;

    let node = Node::start();
    let mut pods = node.pod(json!({"containers": [shell("app", "kill -0 1; sleep 1000")]}));
    pods.until("the refusal", |pod| {
        let waiting = &pod["status"]["containerStatuses"][0]["state"]["waiting"];
        waiting["reason"] == "CreateContainerError" && waiting["message"].as_str().unwrap().ends_with(refused)
    })
    .await;
    node.stop().await;
}

#[tokio::test]
async fn pre_stop_hooks_start_together() {
    let node = Node::start();
    let here = node.dir.path().display().to_string();
    // Each hook waits for the other's mark; if they ran one after the other, they would never complete.
    let hook = |own: &str, other: &str| {
        let script = format!("touch {here}/{own}; while test ! -e {here}/{other}; do sleep 0.01; done");
        json!({"preStop": {"exec": {"command": ["sh", "-c", script]}}})
    };
    let exits = format!("trap 'exit 0' TERM; {SLEEP}");
    let (mut app, mut sidecar) = (shell("app", &exits), shell("proxy", &exits));
    app["lifecycle"] = hook("a", "b");
    sidecar["lifecycle"] = hook("b", "a");
    sidecar["restartPolicy"] = json!("Always");
    let mut pods = node.pod(json!({"initContainers": [sidecar], "containers": [app]}));
    pods.until_ready().await;
    node.delete(1000);
    pods.until("the terminal status", |pod| pod["status"]["phase"] == "Succeeded").await;
    assert!(!node.events().contains(&"FailedPreStopHook".to_owned()));
    node.stop().await;
}

#[tokio::test]
async fn late_sidecar_gets_two_seconds() {
    let node = Node::start();
    let mut sidecar = stubborn("proxy");
    sidecar["restartPolicy"] = json!("Always");
    let mut pods = node.pod(json!({"initContainers": [sidecar], "containers": [stubborn("app")]}));
    pods.until_ready().await;
    for container in ["proxy", "app"] {
        node.log_with(&pods, container, "up").await;
    }
    let begin = tokio::time::Instant::now();
    node.delete(2);
    node.log_with(&pods, "proxy", "got-term").await;
    assert!(begin.elapsed() >= Duration::from_secs(2));
    let over = pods.until("the terminal status", |pod| pod["status"]["phase"] == "Failed").await;
    assert!(begin.elapsed() >= Duration::from_secs(4));
    let code = |list: &str| over["status"][list][0]["state"]["terminated"]["exitCode"].clone();
    assert_eq!((code("initContainerStatuses"), code("containerStatuses")), (json!(137), json!(137)));
    node.stop().await;
}

#[tokio::test]
async fn custom_stop_signal_replaces_sigterm() {
    let node = Node::start();
    let script = format!("trap 'echo got-term' TERM; trap 'echo got-usr1; exit 7' USR1; {SLEEP}");
    let mut app = shell("app", &script);
    app["lifecycle"] = json!({"stopSignal": "SIGUSR1"});
    let mut pods = node.pod(json!({"os": {"name": "linux"}, "containers": [app]}));
    pods.until_ready().await;
    node.log_with(&pods, "app", "up").await;
    node.delete(30);
    let over = pods.until("the terminal status", |pod| pod["status"]["phase"] == "Failed").await;
    assert_eq!(terminated(&over, 0).0, 7);
    let log = node.log_with(&pods, "app", "got-usr1").await;
    assert!(!log.contains("got-term"), "{log}");
    node.stop().await;
}

#[tokio::test]
async fn restarted_agent_restarts_grace_period() {
    let node = Node::start();
    let hooks = node.dir.path().join("hooks");
    let mut app = stubborn("app");
    let script = format!("echo hook >> {}", hooks.display());
    app["lifecycle"] = json!({"preStop": {"exec": {"command": ["sh", "-c", script]}}});
    let mut pods = node.pod(json!({"containers": [app]}));
    pods.until_ready().await;
    node.log_with(&pods, "app", "up").await;
    let begin = tokio::time::Instant::now();
    node.delete(4);
    node.log_with(&pods, "app", "got-term").await;
    tokio::time::sleep_until(begin + Duration::from_secs(3)).await;
    assert!(node.agents.command("node-1", AgentCommand::Restart));
    let over = pods.until("the terminal status", |pod| pod["status"]["phase"] == "Failed").await;
    assert_eq!(terminated(&over, 0).0, 137);
    assert!(begin.elapsed() >= Duration::from_secs(7), "{:?}", begin.elapsed());
    assert_eq!(std::fs::read_to_string(&hooks).unwrap(), "hook\nhook\n");
    // A runtime that was not restarted sends the signal once.
    assert_eq!(node.log_with(&pods, "app", "got-term").await.matches("got-term").count(), 1);
    assert_eq!(pods.states_until_gone().await.last().unwrap(), "deleted");
    node.stop().await;
}

/// Returns the status of the node's `Ready` condition.
fn node_ready(node: &Node) -> String {
    let object = node.shared.registry.get(Resource::Nodes, "", "node-1").unwrap();
    condition(&object, "Ready").to_owned()
}

async fn until_node_ready(node: &Node, status: &str) {
    let wait = async {
        while node_ready(node) != status {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(DEADLINE, wait).await.unwrap();
}

#[tokio::test]
async fn node_shutdown_terminates_running_pods() {
    let node = Node::start();
    let slow = shell("app", &format!("trap 'sleep 1; exit 0' TERM; {SLEEP}"));
    let mut pods = node.pod(json!({"containers": [slow]}));
    pods.until_ready().await;
    node.log_with(&pods, "app", "up").await;
    assert!(node.agents.command("node-1", AgentCommand::Shutdown { grace_seconds: 10 }));
    until_node_ready(&node, "False").await;
    // Pods that arrive now are refused.
    let create = |name: &str| {
        let spec = json!({"nodeName": "node-1", "containers": [shell("app", SLEEP)]});
        let pod = json!({"metadata": {"name": name}, "spec": spec});
        node.shared.registry.create(Resource::Pods, "default", pod).unwrap();
        node.follow(name)
    };
    let refused = create("late").until("the refusal", |pod| pod["status"]["phase"] == "Failed").await;
    assert_eq!(refused["status"]["reason"], "NodeShutdown");
    let over = pods.until("the end", |pod| condition(pod, "Ready") == "False").await;
    let status = &over["status"];
    assert_eq!((&status["phase"], &status["reason"]), (&json!("Failed"), &json!("Terminated")));
    assert_eq!(status["message"], "Pod was terminated in response to imminent node shutdown.");
    assert_eq!(condition(&over, "DisruptionTarget"), "True");
    assert_eq!(terminated(&over, 0).0, 0);
    assert!(over["metadata"]["deletionTimestamp"].is_null());

    // The node is off until it is booted; then it runs the pods that arrived in the meantime.
    let mut later = create("later");
    assert!(node.agents.command("node-1", AgentCommand::Restart));
    until_node_ready(&node, "True").await;
    later.until_ready().await;
    assert!(!node.agents.command("node-2", AgentCommand::Restart));
    node.stop().await;
}

#[tokio::test]
async fn stopped_agent_misses_pod_deletion() {
    let node = Node::start();
    let mut pods = node.pod(json!({"containers": [shell("app", &format!("trap 'exit 0' TERM; {SLEEP}"))]}));
    let pod = pods.until_ready().await;
    node.log_with(&pods, "app", "up").await;
    assert!(node.agents.command("node-1", AgentCommand::Stop));
    // The stop comes before this command, and a stopped agent obeys only a restart.
    assert!(node.agents.command("node-1", AgentCommand::Shutdown { grace_seconds: 1 }));
    tokio::time::sleep(Duration::from_millis(300)).await;
    node.delete(30);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let left = node.shared.registry.get(Resource::Pods, "default", "a").unwrap();
    assert_eq!(left["status"], pod["status"]);
    assert_eq!(node_ready(&node), "True", "the status remains unchanged");
    assert!(node.agents.command("node-1", AgentCommand::Restart));
    assert_eq!(pods.states_until_gone().await.last().unwrap(), "deleted");
    node.stop().await;
}

#[tokio::test]
async fn unstarted_container_reports_unknown_status() {
    let node = Node::start();
    let mut pods = node.pod(json!({"containers": [{"name": "app", "image": "nginx"}]}));
    pods.until("the reason", |pod| {
        pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == "CreateContainerError"
    })
    .await;
    node.delete(30);
    let over = pods.until("the end", |pod| pod["status"]["phase"] == "Failed").await;
    assert_eq!(terminated(&over, 0), (137, "ContainerStatusUnknown".to_owned()));
    node.stop().await;
}
