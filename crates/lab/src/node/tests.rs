//! Tests that run complete pods, with real processes, against a real registry and without model delays.

mod running;
mod termination;

use std::net::Ipv4Addr;
use std::time::Duration;

use serde_json::json;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::ClusterConfig;
use crate::address_block::AddressBlock;
use crate::agents::Agents;
use crate::api_tokens::ApiTokens;
use crate::hop_latency::{HopLatencies, Sampler};
use crate::logs::{LogEntry, pod_log_dir};
use crate::network::Network;
use crate::registry::{DeleteOptions, ObjectWatch, Registry};
use rolldrop_record::Clock;

/// Time limit for every wait in a test.
const DEADLINE: Duration = Duration::from_secs(60);

struct Node {
    shared: ClusterContext,
    agents: Agents,
    agent: tokio::task::JoinHandle<()>,
    dir: tempfile::TempDir,
}

impl Node {
    fn start() -> Self {
        let clock = Clock::start();
        let registry =
            Registry::new(clock, AddressBlock::claim(rand::random_range(0..128)).unwrap(), "".into());
        registry.create(Resource::Namespaces, "", json!({"metadata": {"name": "default"}})).unwrap();
        let ready = json!({"conditions": [{"type": "Ready", "status": "True"}]});
        let object = json!({"metadata": {"name": "node-1"}, "status": ready});
        registry.create(Resource::Nodes, "", object).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let shared = ClusterContext {
            registry,
            config: Arc::new(ClusterConfig {
                latencies: HopLatencies::ZERO,
                first_probe_missed: 0.0,
                ..ClusterConfig::default()
            }),
            sampler: Sampler::seeded(1),
            clock,
            network: Network::Userspace,
            log_dir: Arc::new(dir.path().to_owned()),
            stop: CancellationToken::new(),
        };
        let agents = Agents::default();
        let info = NodeInfo {
            name: "node-1".to_owned(),
            index: 0,
            address: Ipv4Addr::LOCALHOST,
            own_binary: "/nonexistent/rolldrop".into(),
            agents: agents.clone(),
            tokens: ApiTokens::default(),
        };
        let agent = tokio::spawn(run(shared.clone(), info));
        Self { shared, agents, agent, dir }
    }

    /// Runs the pod `a` with this spec and watches it.
    fn pod(&self, mut spec: Value) -> Pods {
        spec["nodeName"] = json!("node-1");
        let pod = json!({"metadata": {"name": "a"}, "spec": spec});
        let pod = self.shared.registry.create(Resource::Pods, "default", pod).unwrap();
        assert_eq!(pod["metadata"]["name"], "a");
        self.follow("a")
    }

    /// Watches an existing pod.
    fn follow(&self, name: &str) -> Pods {
        let pod = self.shared.registry.get(Resource::Pods, "default", name).unwrap();
        let selection = ObjectSelection::field("metadata.name", name);
        let watch = self.shared.registry.watch(Resource::Pods, None, selection, WatchFrom::Existing).unwrap();
        Pods { watch, uid: pod["metadata"]["uid"].as_str().unwrap().to_owned() }
    }

    fn delete(&self, grace: i64) {
        let options = DeleteOptions { grace_period_seconds: Some(grace), ..DeleteOptions::default() };
        self.shared.registry.delete(Resource::Pods, "default", "a", &options).unwrap();
    }

    /// Returns a container's output once it contains `text`.
    async fn log_with(&self, pods: &Pods, container: &str, text: &str) -> String {
        let path = pod_log_dir(self.dir.path(), "default", "a", &pods.uid).join(format!("{container}.log"));
        timeout(DEADLINE, async {
            loop {
                let log = std::fs::read_to_string(&path).unwrap_or_default();
                let entries = log.lines().map(|entry| LogEntry::parse(entry.as_bytes()).unwrap().text);
                let lines: Vec<_> =
                    entries.map(|line| format!("{}\n", String::from_utf8_lossy(line))).collect();
                if lines.concat().contains(text) {
                    return lines.concat();
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await
        .unwrap()
    }

    fn events(&self) -> Vec<String> {
        let list = self.shared.registry.list(Resource::Events, None, &ObjectSelection::all());
        list.items.iter().map(|event| event["reason"].as_str().unwrap().to_owned()).collect()
    }

    fn event(&self, reason: &str) -> Arc<Value> {
        let list = self.shared.registry.list(Resource::Events, None, &ObjectSelection::all());
        list.items.into_iter().find(|event| event["reason"] == reason).unwrap()
    }

    /// Returns the first `n` different events with this reason.
    async fn events_until(&self, reason: &str, n: usize) -> Vec<Arc<Value>> {
        let all = ObjectSelection::all();
        let found = async {
            loop {
                let mut list = self.shared.registry.list(Resource::Events, None, &all).items;
                list.retain(|event| event["reason"] == reason);
                if list.len() >= n {
                    return list;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(DEADLINE, found).await.unwrap()
    }

    async fn stop(self) {
        self.shared.stop.cancel();
        timeout(DEADLINE, self.agent).await.unwrap().unwrap();
    }
}

struct Pods {
    watch: ObjectWatch,
    uid: String,
}

impl Pods {
    /// Returns the next state of the pod that meets the condition.
    async fn until(&mut self, what: &str, condition: impl Fn(&Value) -> bool) -> Arc<Value> {
        let found = timeout(DEADLINE, async {
            loop {
                let event = self.watch.next().await.unwrap();
                if condition(&event.object) {
                    return event.object;
                }
            }
        });
        found.await.unwrap_or_else(|_| panic!("timed out waiting for {what}"))
    }

    async fn until_ready(&mut self) -> Arc<Value> {
        self.until("Ready", |pod| condition(pod, "Ready") == "True").await
    }

    /// Returns every state, abbreviated, until the pod is gone.
    async fn states_until_gone(&mut self) -> Vec<String> {
        let mut states = Vec::new();
        timeout(DEADLINE, async {
            loop {
                let event = self.watch.next().await.unwrap();
                let pod = &event.object;
                if event.event_type == WatchEventType::Deleted {
                    states.push("deleted".to_owned());
                    return;
                }
                states.push(format!(
                    "{} generation {}/{} grace {} ready {}",
                    pod["status"]["phase"].as_str().unwrap(),
                    pod["status"]["observedGeneration"],
                    pod["metadata"]["generation"],
                    pod["metadata"]["deletionGracePeriodSeconds"],
                    condition(pod, "Ready"),
                ));
            }
        })
        .await
        .unwrap();
        states
    }
}

fn condition<'a>(pod: &'a Value, kind: &str) -> &'a str {
    let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    conditions.find(|c| c["type"] == kind).and_then(|c| c["status"].as_str()).unwrap_or("")
}

/// Returns a container that runs a shell script; `wait` keeps the script interruptible by traps.
fn shell(name: &str, script: &str) -> Value {
    json!({"name": name, "image": "host", "command": ["sh", "-c", script]})
}

const SLEEP: &str = "echo up; while :; do sleep 0.05; done";

fn terminated(pod: &Value, n: usize) -> (i64, String) {
    let ended = &pod["status"]["containerStatuses"][n]["state"]["terminated"];
    (ended["exitCode"].as_i64().unwrap(), ended["reason"].as_str().unwrap().to_owned())
}

#[tokio::test]
async fn graceful_termination_writes_match_kubelet() {
    let node = Node::start();
    let mut pods = node.pod(json!({"containers": [shell("app", &format!("trap 'exit 0' TERM; {SLEEP}"))]}));
    let ready = pods.until_ready().await;
    assert_eq!(ready["status"]["phase"], "Running");
    assert!(ready["status"]["podIP"].as_str().unwrap().starts_with("127."));
    node.log_with(&pods, "app", "up").await;
    node.delete(30);
    let states = pods.states_until_gone().await;
    assert_eq!(
        states,
        [
            "Running generation 1/2 grace 30 ready True",
            "Running generation 2/2 grace 30 ready True",
            "Succeeded generation 2/2 grace 30 ready False",
            "Succeeded generation 2/2 grace 0 ready False",
            "deleted",
        ]
    );
    assert!(node.events().contains(&"Killing".to_owned()));
    node.stop().await;
}

#[tokio::test]
async fn unhandled_sigterm_fails_pod() {
    let node = Node::start();
    // As process 1, the shell would need a handler.
    let mut pods = node.pod(json!({"shareProcessNamespace": true, "containers": [shell("app", SLEEP)]}));
    pods.until_ready().await;
    node.delete(30);
    let over = pods.until("the terminal status", |pod| pod["status"]["phase"] == "Failed").await;
    assert_eq!(terminated(&over, 0), (143, "Error".to_owned()));
    assert_eq!(condition(&over, "PodReadyToStartContainers"), "False");
    node.stop().await;
}

#[tokio::test]
async fn sigkill_follows_minimum_grace_period() {
    let node = Node::start();
    let mut pods = node.pod(json!({"containers": [shell("app", &format!("trap '' TERM; {SLEEP}"))]}));
    pods.until_ready().await;
    node.log_with(&pods, "app", "up").await;
    let begin = tokio::time::Instant::now();
    node.delete(1);
    let over = pods.until("the terminal status", |pod| pod["status"]["phase"] == "Failed").await;
    assert_eq!(terminated(&over, 0).0, 137);
    // Never earlier than 2 s; any delay beyond that depends on the machine.
    assert!(begin.elapsed() >= Duration::from_secs(2));
    node.stop().await;
}

#[tokio::test]
async fn pre_stop_hook_precedes_sigterm() {
    let node = Node::start();
    let mut app = shell("app", &format!("trap 'echo got-term; exit 0' TERM; {SLEEP}"));
    app["lifecycle"] =
        json!({"preStop": {"exec": {"command": ["sh", "-c", "echo hooked >> hook; sleep 0.2; exit 0"]}}});
    app["workingDir"] = json!(node.dir.path());
    app["readinessProbe"] = json!({"exec": {"command": ["sh", "-c", "test ! -e hook"]}, "periodSeconds": 1, "failureThreshold": 1});
    let mut pods = node.pod(json!({"containers": [app]}));
    pods.until_ready().await;
    node.log_with(&pods, "app", "up").await;
    node.delete(30);
    let over = pods.until("the terminal status", |pod| pod["status"]["phase"] == "Succeeded").await;
    assert_eq!(terminated(&over, 0).0, 0);
    assert!(node.log_with(&pods, "app", "got-term").await.contains("up"));
    assert_eq!(std::fs::read_to_string(node.dir.path().join("hook")).unwrap(), "hooked\n");
    assert!(!node.events().contains(&"FailedPreStopHook".to_owned()), "{:?}", node.events());
    node.stop().await;
}

#[tokio::test]
async fn overlong_pre_stop_hook_triggers_event() {
    let node = Node::start();
    let mut app = shell("app", &format!("trap 'exit 0' TERM; {SLEEP}"));
    app["lifecycle"] = json!({"preStop": {"exec": {"command": ["sh", "-c", "sleep 1000"]}}});
    let mut pods = node.pod(json!({"containers": [app]}));
    pods.until_ready().await;
    node.log_with(&pods, "app", "up").await;
    node.delete(1);
    let over = pods.until("the terminal status", |pod| pod["status"]["phase"] == "Succeeded").await;
    assert_eq!(terminated(&over, 0).0, 0);
    assert!(node.events().contains(&"FailedPreStopHook".to_owned()));
    node.stop().await;
}

#[tokio::test]
async fn sidecars_stop_last_in_reverse_order() {
    let node = Node::start();
    let order = node.dir.path().join("order");
    let say = |word: &str| format!("echo {word} >> {}", order.display());
    let main = shell(
        "app",
        &format!("trap '{}; sleep 0.3; {}; exit 0' TERM; {SLEEP}", say("main-term"), say("main-end")),
    );
    let sidecar = |name: &str| {
        let mut sidecar = shell(name, &format!("trap '{}; exit 0' TERM; {SLEEP}", say(name)));
        sidecar["restartPolicy"] = json!("Always");
        sidecar
    };
    let mut pods =
        node.pod(json!({"initContainers": [sidecar("first"), sidecar("second")], "containers": [main]}));
    pods.until_ready().await;
    for container in ["first", "second", "app"] {
        node.log_with(&pods, container, "up").await;
    }
    node.delete(30);
    pods.until("the terminal status", |pod| pod["status"]["phase"] == "Succeeded").await;
    assert_eq!(std::fs::read_to_string(&order).unwrap(), "main-term\nmain-end\nsecond\nfirst\n");
    node.stop().await;
}

#[tokio::test]
async fn later_delete_keeps_container_grace_period() {
    let node = Node::start();
    let mut pods = node.pod(
        json!({"containers": [shell("app", &format!("trap 'sleep 3; echo drained; exit 0' TERM; {SLEEP}"))]}),
    );
    pods.until_ready().await;
    node.log_with(&pods, "app", "up").await;
    node.delete(30);
    pods.until("the kill", |pod| pod["status"]["observedGeneration"] == 2).await;
    node.delete(0);
    assert_eq!(pods.states_until_gone().await.last().unwrap(), "deleted");
    // The container keeps running with its original grace period and exits on its own.
    node.log_with(&pods, "app", "drained").await;
    node.stop().await;
}

#[tokio::test]
async fn forced_deletion_still_stops_container() {
    let node = Node::start();
    let mut app = shell("app", &format!("trap 'echo got-term; exit 0' TERM; {SLEEP}"));
    app["lifecycle"] = json!({"preStop": {"sleep": {"seconds": 900}}});
    let mut pods = node.pod(json!({"terminationGracePeriodSeconds": 1000, "containers": [app]}));
    pods.until_ready().await;
    node.log_with(&pods, "app", "up").await;
    node.delete(0);
    assert_eq!(pods.states_until_gone().await.last().unwrap(), "deleted");
    // The hook is cut off after a second; waiting until it completes would miss the deadline.
    node.log_with(&pods, "app", "got-term").await;
    node.stop().await;
}

#[tokio::test]
async fn init_containers_run_in_order_before_main() {
    let node = Node::start();
    let order = node.dir.path().join("order");
    let say = |word: &str| format!("echo {word} >> {}", order.display());
    let mut pods = node.pod(json!({
        "restartPolicy": "Never",
        "initContainers": [shell("i1", &format!("sleep 0.2; {}", say("one"))), shell("i2", &say("two"))],
        "containers": [shell("app", &say("main"))],
    }));
    let over = pods.until("the end", |pod| pod["status"]["phase"] == "Succeeded").await;
    assert_eq!(std::fs::read_to_string(&order).unwrap(), "one\ntwo\nmain\n");
    assert_eq!(over["status"]["initContainerStatuses"][1]["state"]["terminated"]["exitCode"], 0);
    assert_eq!(terminated(&over, 0), (0, "Completed".to_owned()));
    node.stop().await;
}

#[tokio::test]
async fn init_failure_fails_pod_under_never_policy() {
    let node = Node::start();
    let mut pods = node.pod(json!({
        "restartPolicy": "Never",
        "initContainers": [shell("i1", "exit 7")],
        "containers": [shell("app", SLEEP)],
    }));
    let over = pods.until("the end", |pod| pod["status"]["phase"] == "Failed").await;
    assert_eq!(over["status"]["initContainerStatuses"][0]["state"]["terminated"]["exitCode"], 7);
    node.stop().await;
}

#[tokio::test]
async fn missing_binary_keeps_pod_pending() {
    let node = Node::start();
    let container = json!({"name": "app", "image": "host", "command": ["/no/such/server"]});
    let mut pods = node.pod(json!({"containers": [container]}));
    let stuck = pods
        .until("the reason", |pod| {
            pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == "RunContainerError"
        })
        .await;
    let message = stuck["status"]["containerStatuses"][0]["state"]["waiting"]["message"].as_str().unwrap();
    assert!(message.contains("/no/such/server"), "{message}");
    assert_eq!(stuck["status"]["phase"], "Pending");
    assert!(node.events().contains(&"Failed".to_owned()));
    // The pod can still be deleted.
    node.delete(30);
    assert_eq!(pods.states_until_gone().await.last().unwrap(), "deleted");
    node.stop().await;
}

#[tokio::test]
async fn crashing_container_backs_off() {
    let node = Node::start();
    let mut pods = node.pod(json!({"containers": [shell("app", "echo run; exit 3")]}));
    let crashing = pods
        .until("the back-off", |pod| {
            let status = &pod["status"]["containerStatuses"][0];
            status["restartCount"] == 1 && status["state"]["waiting"]["reason"] == "CrashLoopBackOff"
        })
        .await;
    let status = &crashing["status"]["containerStatuses"][0];
    assert_eq!(status["lastState"]["terminated"]["exitCode"], 3);
    // Each run has its own log.
    assert_eq!(node.log_with(&pods, "app", "run").await, "run\n");
    assert_eq!(node.log_with(&pods, "app.previous", "run").await, "run\n");
    assert!(node.events().contains(&"BackOff".to_owned()));
    node.stop().await;
}

#[tokio::test]
async fn failing_liveness_probe_restarts_container() {
    let node = Node::start();
    let mut app = shell("app", SLEEP);
    app["livenessProbe"] = json!({"exec": {"command": ["false"]}, "periodSeconds": 1, "failureThreshold": 1});
    // As process 1, the shell would need a handler.
    let mut pods = node.pod(json!({"shareProcessNamespace": true, "containers": [app]}));
    let restarted =
        pods.until("the restart", |pod| pod["status"]["containerStatuses"][0]["restartCount"] == 1).await;
    assert_eq!(restarted["status"]["containerStatuses"][0]["lastState"]["terminated"]["exitCode"], 143);
    node.stop().await;
}

#[tokio::test]
async fn stopped_node_leaves_no_process() {
    let node = Node::start();
    let mut pods =
        node.pod(json!({"containers": [shell("app", &format!("trap '' TERM; echo pid $$$$; {SLEEP}"))]}));
    pods.until_ready().await;
    let log = node.log_with(&pods, "app", "up").await;
    let pid: i32 = log.lines().next().unwrap().trim_start_matches("pid ").parse().unwrap();
    node.stop().await;
    let stat = format!("/proc/{pid}/stat");
    timeout(DEADLINE, async {
        while std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .unwrap();
}
