//! The kernel dataplane as seen by clients inside and outside its network, and behaviour common to both dataplanes.

mod traffic;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{LIMIT, Process, process_tree, wait_for};
use crate::lab::{self, Setup};
use crate::runs::json_lines;

/// A lost SYN is retransmitted after a second. A lower limit distinguishes a stall from a slow machine.
const CURL_LIMITS: [&str; 4] = ["--connect-timeout", "0.9", "--max-time", "30"];

/// A cluster as `rolldrop run` starts it.
struct Cluster {
    process: lab::Cluster,
    // Dropped after the process that uses it.
    dir: TempDir,
    client: Client,
    program: Program,
}

/// The binary and the command to run it.
pub(crate) struct Program {
    /// Prefix of the command, for example to run as another user.
    through: Vec<&'static str>,
    binary: PathBuf,
}

impl Program {
    pub(crate) fn command(&self) -> Command {
        let mut words = self.through.iter().map(OsStr::new).chain([self.binary.as_os_str()]);
        let mut command = Command::new(words.next().expect("a program"));
        command.args(words);
        command
    }
}

/// Returns a binary and a directory for an unprivileged user: the user who runs the tests, unless that is root.
pub(crate) fn unprivileged() -> (Program, TempDir) {
    const NOBODY: u32 = 65534;
    let dir = tempfile::tempdir().expect("a temporary directory");
    if !nix::unistd::geteuid().is_root() {
        return (Program { through: vec![], binary: env!("CARGO_BIN_EXE_rolldrop").into() }, dir);
    }
    std::os::unix::fs::chown(dir.path(), Some(NOBODY), Some(NOBODY)).expect("root may change owners");
    // Root's build may be in a folder that other users cannot enter.
    let binary = dir.path().join("rolldrop");
    fs::copy(env!("CARGO_BIN_EXE_rolldrop"), &binary).expect("a copy");
    let through = vec!["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    (Program { through, binary }, dir)
}

impl Cluster {
    async fn start(config: Value) -> Self {
        Self::start_on("kernel", config).await
    }

    async fn start_on(dataplane: &'static str, config: Value) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let program = Program { through: vec![], binary: env!("CARGO_BIN_EXE_rolldrop").into() };
        Self::start_as(program, dir, dataplane, config).await
    }

    async fn start_as(program: Program, dir: TempDir, dataplane: &'static str, config: Value) -> Self {
        let process = Setup::on(dataplane).with(config).by(program.command()).within(dir.path()).start();
        let client = process.client().await;
        Self { process, dir, client, program }
    }

    fn pods(&self) -> Api<Pod> {
        Api::default_namespaced(self.client.clone())
    }

    /// Creates a pod with the label `app: web`, whose container runs a shell script.
    async fn pod(&self, name: &str, script: &str) {
        self.pod_on(name, script, None).await;
    }

    /// Creates such a pod on the given node.
    async fn pod_on(&self, name: &str, script: &str, node: Option<&str>) {
        let binary = &self.program.binary;
        let pod = json!({
            "metadata": {"name": name, "labels": {"app": "web"}},
            "spec": {"nodeName": node, "containers": [{
                "name": "app", "image": "host",
                "command": ["sh", "-c", script, binary, self.dir.path()],
                "env": [
                    {"name": "ROLLDROP_POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                    {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                ],
            }]},
        });
        let pod = serde_json::from_value(pod).expect("a pod");
        self.pods().create(&PostParams::default(), &pod).await.expect("it is created");
    }

    /// Creates the Service `web` with port 80 for those pods. Returns its address and node port.
    async fn service(&self, kind: &str) -> (String, Option<i32>) {
        let services = Api::<Service>::default_namespaced(self.client.clone());
        let service = json!({
            "metadata": {"name": "web"},
            "spec": {"type": kind, "selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]},
        });
        let service = serde_json::from_value(service).expect("a Service");
        let service = services.create(&PostParams::default(), &service).await.expect("it is created");
        let spec = service.spec.expect("a spec");
        let port = spec.ports.and_then(|ports| ports[0].node_port);
        (spec.cluster_ip.expect("an address"), port)
    }

    fn exec_command(&self, args: &[&str]) -> Command {
        let mut command = self.program.command();
        command.args(["cluster", "exec", "--kubeconfig"]).arg(self.dir.path().join("kubeconfig")).args(args);
        command
    }

    fn exec(&self, args: &[&str]) -> Output {
        self.exec_command(args).output().expect("the binary starts")
    }

    /// Returns curl's result for a request inside the network: the HTTP status, or `exit CODE`.
    fn curl(&self, url: &str, more: &[&str]) -> String {
        self.curl_at("node-1", url, more)
    }

    /// Returns curl's result for a request from the given node.
    fn curl_at(&self, node: &str, url: &str, more: &[&str]) -> String {
        let head = ["--node", node, "--", "curl", "--silent", "--output", "/dev/null"];
        let output =
            self.exec(&[&head[..], &CURL_LIMITS, &["--write-out", "%{http_code}"], more, &[url]].concat());
        match output.status.code() {
            Some(0) => String::from_utf8_lossy(&output.stdout).into_owned(),
            code => format!("exit {}", code.unwrap_or(-1)),
        }
    }

    /// Returns the outcomes of several requests on fresh connections.
    fn outcomes(&self, spot: &[&str], url: &str) -> BTreeMap<String, u64> {
        let load = ["--", env!("CARGO_BIN_EXE_rolldrop"), "load", url, "-r", "20", "-d", "500ms"];
        let more = ["--warmup", "0s", "--connect-timeout", "900ms", "--format", "json", "--quiet"];
        outcomes_of(&self.exec(&[spot, &load[..], &more[..]].concat()))
    }

    /// Waits until all requests have this outcome.
    fn wait_for_outcome(&self, url: &str, outcome: &str) {
        let mut seen = BTreeMap::new();
        let deadline = std::time::Instant::now() + LIMIT;
        while !(seen.len() == 1 && seen.contains_key(outcome)) {
            assert!(std::time::Instant::now() < deadline, "{url}: no {outcome}, but {seen:?}");
            seen = self.outcomes(&[], url);
        }
    }

    /// Deletes a pod, and waits until its object, and therefore its address, is gone. Returns the address.
    async fn delete(&self, name: &str) -> String {
        let pod = self.pods().get(name).await.expect("the pod");
        let parameters = DeleteParams::default().grace_period(1);
        self.pods().delete(name, &parameters).await.expect("it is deleted");
        let deadline = tokio::time::Instant::now() + LIMIT;
        while self.pods().get_opt(name).await.expect("a response").is_some() {
            assert!(tokio::time::Instant::now() < deadline, "{name} stays");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        pod.status.and_then(|status| status.pod_ip).expect("an address")
    }
}

fn outcomes_of(output: &Output) -> BTreeMap<String, u64> {
    let said = String::from_utf8_lossy(&output.stdout);
    let result: Value = serde_json::from_str(&said)
        .unwrap_or_else(|e| panic!("{e}: {said}{}", String::from_utf8_lossy(&output.stderr)));
    let mut outcomes: BTreeMap<_, _> =
        serde_json::from_value(result["requests"]["by_outcome"].clone()).expect("outcomes");
    // Unsent requests are the client's own fault on a slow machine.
    outcomes.remove("not_sent");
    outcomes
}

/// Returns a configuration with no delays other than these, to keep the tests short.
fn config(latencies: &Value) -> Value {
    let mut all = json!({
        "scheduledToSandbox": "0ms", "sandboxToProcessStart": "0ms", "terminatedToFinalDelete": "0ms",
        "processGoneToAddressGone": "0ms", "processGoneToStatus": "0ms",
    });
    let more = latencies.as_object().expect("an object").clone();
    all.as_object_mut().expect("an object").extend(more);
    json!({"latencies": all, "serviceProxy": {"minSyncPeriod": "50ms"}})
}

/// Returns a configuration in which endpoints stay in their slices after their pods are gone.
fn endpoints_stay() -> Value {
    json!({"deletionToSlice": "1h", "terminatedToSlice": "1h"})
}

const SERVE: &str = r#"exec "$0" workload --listen 0.0.0.0:8080"#;
const SERVE_AT_POD_IP: &str = r#"exec "$0" workload --listen "$POD_IP:8080""#;

#[tokio::test]
async fn same_port_replicas_all_get_requests() {
    let cluster = Cluster::start(config(&json!({}))).await;
    let (ip, _) = cluster.service("ClusterIP").await;
    let deployment: Deployment = serde_json::from_value(json!({
        "metadata": {"name": "web"},
        "spec": {"replicas": 3, "selector": {"matchLabels": {"app": "web"}}, "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{
                "name": "app", "image": "rolldrop", "args": ["workload", "--listen", "0.0.0.0:8080"],
                "readinessProbe": {"httpGet": {"path": "/readyz", "port": 8080}, "periodSeconds": 1},
            }]},
        }},
    }))
    .expect("a Deployment");
    let deployments = Api::<Deployment>::default_namespaced(cluster.client.clone());
    deployments.create(&PostParams::default(), &deployment).await.expect("it is created");
    let pods = cluster.pods();
    let deadline = tokio::time::Instant::now() + LIMIT;
    let ips = loop {
        let list = pods.list(&ListParams::default()).await.expect("pods");
        let ready = |pod: &Pod| {
            let status = pod.status.clone()?;
            let ready = status.conditions?.iter().any(|c| c.type_ == "Ready" && c.status == "True");
            ready.then_some(status.pod_ip?)
        };
        let ips: Vec<String> = list.iter().filter_map(ready).collect();
        if ips.len() == 3 {
            break ips;
        }
        assert!(tokio::time::Instant::now() < deadline, "three ready pods");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    cluster.wait_for_outcome(&format!("http://{ip}/"), "ok");
    for ip in &ips {
        assert_eq!(cluster.curl(&format!("http://{ip}:8080/"), &[]), "200", "{ip}");
    }
    assert_eq!(cluster.curl(&format!("http://{ip}/"), &[]), "200");
    for name in ["web", "web.default.svc.cluster.local"] {
        assert_eq!(cluster.curl(&format!("http://{name}/"), &[]), "200", "{name}");
    }
    // Each pod has its own localhost, and a pod can reach itself through its own Service.
    let pod = pods.list(&ListParams::default()).await.expect("pods").items[0].metadata.name.clone();
    let pod = format!("default/{}", pod.expect("a name"));
    for url in ["http://127.0.0.1:8080/".to_owned(), format!("http://{ip}/")] {
        let outcomes = cluster.outcomes(&["--pod", &pod], &url);
        assert_eq!(outcomes.keys().collect::<Vec<_>>(), ["ok"], "{url}: {outcomes:?}");
    }
    let inside = cluster.exec(&["--pod", &pod, "--", "curl", "-sk", "https://10.96.0.1/version"]);
    let answer = String::from_utf8_lossy(&inside.stdout).into_owned();
    assert!(answer.contains("kind"), "the API as a pod reaches it: {answer}");
    let missing = cluster.exec(&["--pod", "default/none", "--", "true"]);
    let said = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(missing.status.code() == Some(2) && said.contains(&pod), "{said}");
}

#[tokio::test]
async fn service_without_listener_refuses_connections() {
    let cluster = Cluster::start(config(&json!({}))).await;
    let (ip, _) = cluster.service("ClusterIP").await;
    let url = format!("http://{ip}/");
    cluster.wait_for_outcome(&url, "connect_refused");

    cluster.pod("web", r#""$0" workload --listen 0.0.0.0:8080 & echo $! > "$1/pid"; sleep 1000"#).await;
    cluster.wait_for_outcome(&url, "ok");
    // The server exits, but its pod, and therefore its endpoint, remains.
    let pid = cluster.dir.path().join("pid");
    let kill = format!("kill -9 $(cat {})", pid.display());
    assert!(cluster.exec(&["--pod", "default/web", "--", "sh", "-c", &kill]).status.success());
    cluster.wait_for_outcome(&url, "connect_refused");
}

#[tokio::test]
async fn empty_service_refuses_every_pod_connection() {
    let cluster = Cluster::start(config(&json!({}))).await;
    let (ip, _) = cluster.service("ClusterIP").await;
    let url = format!("http://{ip}/");
    let container = json!({"name": "app", "image": "host", "command": ["sleep", "1000"]});
    let client = json!({"metadata": {"name": "client"}, "spec": {"containers": [container]}});
    let client = serde_json::from_value(client).expect("a pod");
    cluster.pods().create(&PostParams::default(), &client).await.expect("it is created");
    let spot = ["--pod", "default/client"];
    let is_up = || cluster.exec(&[&spot[..], &["--", "true"]].concat()).status.success();
    wait_for("the pod", LIMIT, || is_up().then_some(()));
    cluster.wait_for_outcome(&url, "connect_refused");
    // A Linux node refuses six requests immediately. It refuses more once the machine sends enough of them in time.
    wait_for("more than six refusals", LIMIT, || {
        let outcomes = cluster.outcomes(&spot, &url);
        assert!(outcomes.keys().all(|outcome| outcome == "connect_refused"), "{outcomes:?}");
        outcomes.get("connect_refused").filter(|refused| **refused > 6).map(drop)
    });
}

#[tokio::test]
async fn connection_to_gone_address_stalls_or_fails() {
    for (gone, outcome) in [("drop", "connect_timeout"), ("unreachable", "connect_unreachable")] {
        let mut config = config(&endpoints_stay());
        config["goneAddress"] = gone.into();
        let cluster = Cluster::start(config).await;
        let (ip, _) = cluster.service("ClusterIP").await;
        cluster.pod("web", SERVE).await;
        cluster.wait_for_outcome(&format!("http://{ip}/"), "ok");
        let pod = cluster.delete("web").await;
        cluster.wait_for_outcome(&format!("http://{ip}/"), outcome);
        cluster.wait_for_outcome(&format!("http://{pod}:8080/"), outcome);
    }
}

#[tokio::test]
async fn established_connection_outlives_endpoint() {
    let cluster = Cluster::start(config(&json!({}))).await;
    let (ip, _) = cluster.service("ClusterIP").await;
    let url = format!("http://{ip}/");
    cluster.pod("web", SERVE).await;
    cluster.wait_for_outcome(&url, "ok");
    let load = Command::new(env!("CARGO_BIN_EXE_rolldrop"))
        .args(["cluster", "exec", "--kubeconfig"])
        .arg(cluster.dir.path().join("kubeconfig"))
        .args(["--", env!("CARGO_BIN_EXE_rolldrop"), "load", &url, "-r", "20", "-d", "6s", "--warmup", "0s"])
        .args(["--connections", "keepalive", "-c", "1", "--workers", "1", "--format", "json", "--quiet"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let flow = || {
        let table = cluster.exec(&["--", "conntrack", "-L", "-p", "tcp", "--state", "ESTABLISHED"]);
        String::from_utf8_lossy(&table.stdout).contains(&format!("dst={ip} ")).then_some(())
    };
    wait_for("the connection", LIMIT, flow);
    let label = Patch::Merge(json!({"metadata": {"labels": {"app": "other"}}}));
    cluster.pods().patch("web", &PatchParams::default(), &label).await.expect("it is patched");
    cluster.wait_for_outcome(&url, "connect_refused");
    let outcomes = outcomes_of(&load.wait_with_output().expect("its exit status"));
    assert_eq!(outcomes.keys().collect::<Vec<_>>(), ["ok"], "{outcomes:?}");
}

#[tokio::test]
async fn stale_flow_stalls_only_its_port() {
    let cluster = Cluster::start(config(&json!({"deletionToSlice": "4s", "terminatedToSlice": "4s"}))).await;
    let (ip, _) = cluster.service("ClusterIP").await;
    let url = format!("http://{ip}/");
    cluster.pod("first", SERVE).await;
    cluster.wait_for_outcome(&url, "ok");
    let dead = cluster.delete("first").await;
    let same_port = ["--local-port", "40001"];
    assert_eq!(cluster.curl(&url, &same_port), "exit 28", "stalls: the rule still leads to {dead}");
    cluster.pod("second", SERVE).await;
    cluster.wait_for_outcome(&url, "ok");

    assert_eq!(cluster.curl(&url, &same_port), "exit 28", "stalls, although the rules are right");
    let table = cluster.exec(&["--", "conntrack", "-L", "-p", "tcp", "--state", "SYN_SENT"]);
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    let entry = table.lines().find(|line| line.contains(&format!("dst={ip} sport=40001 ")));
    assert!(entry.is_some_and(|entry| entry.contains(&format!("src={dead} "))), "{table}");
    assert_eq!(cluster.curl(&url, &["--local-port", "40002"]), "200", "another port works immediately");
}

/// Creates a pod that ignores SIGTERM. Returns the cluster's processes and network namespaces.
async fn with_a_stubborn_pod(cluster: &Cluster) -> (Vec<Process>, Vec<PathBuf>) {
    cluster.pod("web", "trap '' TERM; (setsid env -i sleep 1000 &); sleep 1000; :").await;
    let sleeping = |tree: &[Process]| tree.iter().filter(|process| process.runs("1000")).count();
    let tree = wait_for("the pod's processes", LIMIT, || {
        Some(process_tree(cluster.process.pid())).filter(|tree| sleeping(tree) == 2)
    });
    let names = cluster.dir.path().join("namespaces");
    let links = [names.join("nodes/node-1"), names.join("pods/default/web/net")];
    let namespaces =
        links.iter().map(|link| fs::read_link(fs::read_link(link).expect("a link")).expect("a namespace"));
    (tree, namespaces.collect())
}

/// Returns true if a process is in one of these namespaces.
fn is_inhabited(namespaces: &[PathBuf]) -> bool {
    let processes = fs::read_dir("/proc").expect("/proc").flatten();
    let of = |entry: fs::DirEntry| fs::read_link(entry.path().join("ns/net")).ok();
    processes.filter_map(of).any(|namespace| namespaces.contains(&namespace))
}

#[tokio::test]
async fn killed_cluster_leaves_nothing_behind() {
    for killed in ["the parent's pipe", "the cluster", "the first process", "both"] {
        let mut cluster = Cluster::start(config(&json!({}))).await;
        let (tree, namespaces) = with_a_stubborn_pod(&cluster).await;
        let own = &tree[0];
        let init = tree.iter().skip(1).find(|process| process.runs("cluster"));
        let init = init.unwrap_or_else(|| panic!("no first process: {tree:?}"));
        match killed {
            "the parent's pipe" => cluster.process.let_go(),
            "the cluster" => own.kill(),
            "the first process" => init.kill(),
            _ => {
                own.kill();
                init.kill();
            }
        }
        let gone = || (!tree.iter().any(Process::is_alive) && !is_inhabited(&namespaces)).then_some(());
        wait_for(&format!("nothing to be left of a cluster after losing {killed}"), LIMIT, gone);
        if killed != "both" {
            let left = ["kubeconfig", "namespaces"].map(|name| cluster.dir.path().join(name));
            wait_for(&format!("no files left: {killed}"), LIMIT, || {
                (!left.iter().any(|file| file.exists())).then_some(())
            });
        }
        let gone = cluster.exec(&["--", "true"]);
        assert_eq!(gone.status.code(), Some(2), "{}", String::from_utf8_lossy(&gone.stderr));
    }
}

#[tokio::test]
async fn each_node_uses_own_proxy_table() {
    for (dataplane, without_endpoints) in [("kernel", "exit 7"), ("userspace", "exit 56")] {
        let mut config = config(
            &json!({"sliceToRule": {"min": "0ms", "median": "300ms", "p95": "600ms", "max": "700ms"}}),
        );
        config["nodes"] = 2.into();
        let cluster = Cluster::start_on(dataplane, config).await;
        let nodes = Api::<Node>::all(cluster.client.clone());
        let nodes = nodes.list(&ListParams::default()).await.expect("nodes");
        let nodes: Vec<(String, String)> = nodes
            .into_iter()
            .map(|node| {
                let addresses = node.status.and_then(|status| status.addresses).expect("addresses");
                let internal = addresses.into_iter().find(|address| address.type_ == "InternalIP");
                (node.metadata.name.expect("a name"), internal.expect("an internal address").address)
            })
            .collect();
        assert_eq!(nodes.len(), 2);
        let (_, port) = cluster.service("NodePort").await;
        let port = port.expect("a node port");
        // There is a pod on each node, so connections cross between nodes.
        for (pod, _) in &nodes {
            cluster.pod_on(pod, SERVE_AT_POD_IP, Some(pod)).await;
        }
        // Returns the names of the Service's pods in each of a node's sync lines.
        let tables = |node: &str| -> Vec<Vec<String>> {
            let log = json_lines(&cluster.dir.path().join("service-proxy.jsonl"));
            let of_node = |line: &&Value| line["node"] == node && line["service"] == "default/web";
            let pods = |line: &Value| {
                let endpoints = line["endpoints"].as_array().expect("endpoints");
                endpoints.iter().map(|e| e["pod"].as_str().expect("a pod").to_owned()).collect()
            };
            log.iter().filter(of_node).map(pods).collect()
        };
        for (node, _) in &nodes {
            wait_for(&format!("both pods in the table of {node}"), LIMIT, || {
                tables(node).last().is_some_and(|pods| pods.len() == 2).then_some(())
            });
        }
        // From every node, through every node's rules, to pods on every node, no request stalls.
        for (from, _) in &nodes {
            for (_, address) in &nodes {
                let outcomes = cluster.outcomes(&["--node", from], &format!("http://{address}:{port}/"));
                assert_eq!(
                    outcomes.keys().collect::<Vec<_>>(),
                    ["ok"],
                    "{dataplane}: {from} to {address}: {outcomes:?}"
                );
            }
        }
        let gone = DeleteParams::default().grace_period(1);
        for (pod, _) in &nodes {
            cluster.pods().delete(pod, &gone).await.expect("it is deleted");
        }
        for (node, address) in &nodes {
            let url = format!("http://{address}:{port}/");
            wait_for(&format!("{dataplane}: {url} without endpoints"), LIMIT, || {
                (cluster.curl_at(node, &url, &[]) == without_endpoints).then_some(())
            });
            wait_for(&format!("an empty table of {node}"), LIMIT, || {
                tables(node).last().is_some_and(Vec::is_empty).then_some(())
            });
        }
        let log = json_lines(&cluster.dir.path().join("service-proxy.jsonl"));
        let last =
            |node: &str| log.iter().rfind(|line| line["node"] == node).map(|line| line["t_ns"].as_i64());
        assert_ne!(last(&nodes[0].0), last(&nodes[1].0), "each has its own lag");
    }
}

#[tokio::test]
async fn unprivileged_user_gets_kernel_dataplane() {
    let (program, dir) = unprivileged();
    let mut cluster = Cluster::start_as(program, dir, "kernel", config(&json!({}))).await;
    let (ip, _) = cluster.service("ClusterIP").await;
    cluster.pod("web", SERVE).await;
    let url = format!("http://{ip}/");
    wait_for(&url, LIMIT, || (cluster.curl(&url, &[]) == "200").then_some(()));
    // The process is root in the cluster's namespaces, but not outside.
    let id = cluster.exec(&["--pod", "default/web", "--", "sh", "-c", "id -u"]);
    assert!(String::from_utf8_lossy(&id.stdout).starts_with("0\n"), "{id:?}");
    let status = fs::read_to_string(format!("/proc/{}/status", cluster.process.pid())).expect("it runs");
    let uids = status.lines().find(|line| line.starts_with("Uid:")).expect("its user ids");
    assert!(!uids.split_whitespace().any(|uid| uid == "0"), "{uids}");
    cluster.delete("web").await;
    wait_for("a refusal", LIMIT, || (cluster.curl(&url, &[]) == "exit 7").then_some(()));
    let tree = process_tree(cluster.process.pid());
    cluster.process.let_go();
    let gone = || (!tree.iter().any(Process::is_alive)).then_some(());
    wait_for("nothing left", LIMIT, gone);
}

#[test]
fn auto_dataplane_explains_userspace_fallback() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let nft = dir.path().join("nft");
    fs::write(&nft, "#!/bin/sh\necho no such family >&2\nexit 1\n").expect("a file");
    fs::set_permissions(&nft, fs::Permissions::from_mode(0o755)).expect("permissions");
    let path = std::env::join_paths(
        [dir.path().to_owned()]
            .into_iter()
            .chain(std::env::split_paths(&std::env::var_os("PATH").expect("a PATH"))),
    )
    .expect("a path");
    let start = |dataplane: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rolldrop"));
        command
            .args(["cluster", "--lifeline", "--dataplane", dataplane, "--log-dir"])
            .arg(dir.path().join("log"));
        command.env("PATH", &path).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("the binary starts")
    };
    let mut auto = start("auto");
    let mut ready = String::new();
    BufReader::new(auto.stdout.take().expect("its stdout")).read_line(&mut ready).expect("a line");
    let output = auto.wait_with_output().expect("its exit status");
    let said = String::from_utf8_lossy(&output.stderr);
    let notice = "using the userspace dataplane: cannot install the rules for Services";
    assert!(output.status.success() && ready.contains(notice), "{ready}{said}");
    assert!(said.lines().count() == 1 && said.contains(notice) && said.contains("no such family"), "{said}");

    let output = start("kernel").wait_with_output().expect("its exit status");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.contains("the kernel dataplane is not possible here: cannot install the rules for Services"),
        "{said}"
    );
    assert!(said.contains("no such family"), "{said}");
}

#[tokio::test]
async fn exec_forwards_signals_and_exit_status() {
    let cluster = Cluster::start(config(&json!({}))).await;
    cluster.pod("web", SERVE).await;
    let in_pod = |script: &'static str| ["--pod", "default/web", "--", "sh", "-c", script];
    wait_for("the pod", LIMIT, || cluster.exec(&in_pod("true")).status.success().then_some(()));
    assert_eq!(cluster.exec(&in_pod("exit 7")).status.code(), Some(7));
    assert_eq!(cluster.exec(&in_pod("kill -9 $$")).status.code(), Some(137));
    for (signal, code) in [(Signal::SIGTERM, 42), (Signal::SIGUSR1, 43)] {
        let script = "trap 'exit 42' TERM; trap 'exit 43' USR1; echo ready; while :; do sleep 0.1; done";
        let mut child =
            cluster.exec_command(&in_pod(script)).stdout(Stdio::piped()).spawn().expect("the binary starts");
        let mut ready = String::new();
        BufReader::new(child.stdout.take().expect("its stdout")).read_line(&mut ready).expect("a line");
        assert_eq!(ready, "ready\n");
        let pid = i32::try_from(child.id()).expect("a pid");
        kill(Pid::from_raw(pid), signal).expect("it exists");
        assert_eq!(child.wait().expect("its exit status").code(), Some(code));
    }
}

#[tokio::test]
async fn killed_exec_client_ends_pod_command() {
    let cluster = Cluster::start(config(&json!({}))).await;
    cluster.pod("web", SERVE).await;
    let spot = ["--pod", "default/web", "--"];
    let exec = |command: &[&str]| cluster.exec_command(&[&spot[..], command].concat());
    wait_for("the pod", LIMIT, || exec(&["true"]).status().expect("it starts").success().then_some(()));
    let mut client = exec(&["sleep", "1000"]).spawn().expect("the binary starts");
    let command = wait_for("the command", LIMIT, || {
        process_tree(client.id()).into_iter().find(|process| process.runs("1000"))
    });
    client.kill().expect("it runs");
    client.wait().expect("its exit status");
    wait_for("the command to exit", LIMIT, || (!command.is_alive()).then_some(()));
}

/// Starts a cluster without its own directory. Returns the process and its temporary directory.
fn start_in_temporary_directory(parent: &Path) -> (Child, PathBuf) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rolldrop"));
    command.args(["cluster", "--lifeline", "--dataplane", "kernel"]).env("TMPDIR", parent);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("the binary starts");
    let mut ready = String::new();
    BufReader::new(child.stdout.take().expect("its stdout")).read_line(&mut ready).expect("a line");
    let prefix = format!("rolldrop-cluster-{}-", child.id());
    let mut found =
        std::fs::read_dir(parent).expect("a directory").map(|entry| entry.expect("an entry").path());
    let is_its =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&prefix));
    let dir = found.find(is_its).expect("its directory");
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&dir).expect("metadata").permissions());
    assert_eq!(mode & 0o777, 0o700, "no one else can enter it");
    assert!(dir.join("kubeconfig").exists(), "{ready}");
    (child, dir)
}

#[test]
fn next_start_removes_stale_directory() {
    let parent = tempfile::tempdir().expect("a temporary directory");
    let (mut killed, stale) = start_in_temporary_directory(parent.path());
    let (mut alive, in_use) = start_in_temporary_directory(parent.path());
    assert!(stale.exists(), "it is in use");
    // No process may notice that another is gone.
    let tree = process_tree(killed.id());
    tree.iter().for_each(|process| process.signal(Signal::SIGSTOP));
    tree.iter().for_each(Process::kill);
    killed.wait().expect("its exit status");
    assert!(stale.exists(), "no process was left to remove it");
    let (mut next, own) = start_in_temporary_directory(parent.path());
    assert!(!stale.exists() && in_use.exists());
    for child in [&mut alive, &mut next] {
        drop(child.stdin.take());
        child.wait().expect("its exit status");
    }
    assert!(!in_use.exists() && !own.exists());
}
