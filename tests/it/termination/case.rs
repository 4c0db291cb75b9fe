//! A termination case: a pod, the acts on it with their times, and how the pod is watched.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};

use super::lab::{Answer, Held, Lab, Seen};
use super::recording::Recording;

/// Time from when the pod is ready to the first act.
const SETTLED: Duration = Duration::from_millis(500);

/// Name of the pod in every case.
pub(crate) const POD: &str = "pod-1";

/// An act on a case's pod.
#[derive(Clone)]
pub(crate) enum Act {
    /// DELETE, with this grace period.
    Delete(Option<i64>),
    /// POST of an Eviction.
    Evict,
    /// A merge patch of an object in the case's namespace: `services/web`.
    Patch(&'static str, Value),
    /// A command to the agent on the first node.
    Node(&'static str),
}

/// A container that runs `rolldrop workload`.
pub(crate) struct Server {
    pub(crate) name: &'static str,
    /// Arguments that set its reaction to SIGTERM.
    pub(crate) habit: &'static [&'static str],
    pub(crate) port: u16,
}

impl Server {
    pub(crate) const fn new(habit: &'static [&'static str]) -> Self {
        Self { name: "app", habit, port: 8080 }
    }

    pub(crate) const fn sidecar(habit: &'static [&'static str]) -> Self {
        Self { name: "proxy", habit, port: 8081 }
    }

    fn container(&self, log: &Path) -> Value {
        let listen = format!("$(POD_IP):{}", self.port);
        let mut args = vec![json!("workload"), json!("--listen"), json!(listen), json!("--log"), json!(log)];
        args.extend(self.habit.iter().map(|arg| json!(arg)));
        json!({
            "name": self.name,
            "image": "rolldrop",
            "args": args,
            "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
            "ports": [{"containerPort": self.port}],
        })
    }
}

/// Reactions of the sample server to SIGTERM.
pub(crate) const EXIT: &[&str] = &["--on-sigterm", "exit"];
pub(crate) const IGNORE: &[&str] = &["--on-sigterm", "ignore"];
pub(crate) const SERVE_2: &[&str] = &["--on-sigterm", "drain", "--drain-for", "2s"];
pub(crate) const SERVE_3: &[&str] = &["--on-sigterm", "drain", "--drain-for", "3s"];

/// A test case about one pod.
pub(crate) struct Case {
    name: &'static str,
    /// Containers of the pod by name, main containers first; each has its own log.
    containers: Vec<(&'static str, Value)>,
    sidecars: Vec<(&'static str, Value)>,
    /// Additions to the pod's and to the Service's spec.
    spec: Value,
    service: Value,
    /// Objects to create before the pod: `(path below the namespace, object)`.
    objects: Vec<(&'static str, Value)>,
    /// Condition that starts the acts, and whether the containers' processes exist by then.
    begins: fn(&[Seen]) -> bool,
    has_processes: bool,
    acts: Vec<(f64, Act)>,
    lab: Arc<Lab>,
}

impl Case {
    /// Returns a case with one server, whose readiness is probed every second.
    pub(crate) fn new(lab: &Arc<Lab>, name: &'static str, habit: &'static [&'static str]) -> Self {
        let mut case = Self::bare(lab, name);
        let mut app = Server::new(habit).container(&case.log("app"));
        app["readinessProbe"] = json!({"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1});
        case.containers.push(("app", app));
        case
    }

    /// Returns a case whose only container runs a shell script. In the script, `say WORDS` writes to the log.
    pub(crate) fn script(lab: &Arc<Lab>, name: &'static str, script: &str) -> Self {
        let mut case = Self::bare(lab, name);
        let command = case.shell("app", script);
        let app = json!({
            "name": "app", "image": "host", "command": command,
            "readinessProbe": {"exec": {"command": ["true"]}, "periodSeconds": 1},
        });
        case.containers.push(("app", app));
        case
    }

    fn bare(lab: &Arc<Lab>, name: &'static str) -> Self {
        Self {
            name,
            containers: Vec::new(),
            sidecars: Vec::new(),
            spec: json!({}),
            service: json!({"selector": {"app": "web"}, "ports": [{"port": 8080}]}),
            objects: Vec::new(),
            begins: is_ready,
            has_processes: true,
            acts: Vec::new(),
            lab: Arc::clone(lab),
        }
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the file to which a container's program writes its events.
    fn log(&self, container: &str) -> std::path::PathBuf {
        self.lab.dir().join(format!("{}.{container}.jsonl", self.namespace()))
    }

    /// Returns a command that runs a script which can `say WORDS`.
    pub(crate) fn shell(&self, container: &str, script: &str) -> Value {
        let say = format!(
            r#"say() {{ echo "{{\"t_ns\":$(date +%s%N),\"event\":\"$1\"}}" >> '{}'; }}; {script}"#,
            self.log(container).display()
        );
        json!(["sh", "-c", say])
    }

    fn namespace(&self) -> String {
        self.name.to_lowercase()
    }

    /// Changes the first container.
    pub(crate) fn app(mut self, change: impl FnOnce(&mut Value)) -> Self {
        change(&mut self.containers[0].1);
        self
    }

    /// Adds a native sidecar.
    pub(crate) fn sidecar(mut self, server: &Server) -> Self {
        let mut container = server.container(&self.log(server.name));
        container["restartPolicy"] = json!("Always");
        self.sidecars.push((server.name, container));
        self
    }

    /// Adds a plain second container.
    pub(crate) fn beside(mut self, server: &Server) -> Self {
        let container = server.container(&self.log(server.name));
        self.containers.push((server.name, container));
        self
    }

    /// Adds to the pod's spec.
    pub(crate) fn spec(mut self, field: &str, value: Value) -> Self {
        self.spec[field] = value;
        self
    }

    /// Adds an object that is created before the pod.
    pub(crate) fn object(mut self, path: &'static str, object: Value) -> Self {
        self.objects.push((path, object));
        self
    }

    /// Adds to the Service's spec.
    pub(crate) fn service(mut self, field: &str, value: Value) -> Self {
        self.service[field] = value;
        self
    }

    /// Starts the acts in a state without processes, instead of when the pod is ready.
    pub(crate) fn begins_without_processes(mut self, when: fn(&[Seen]) -> bool) -> Self {
        (self.begins, self.has_processes) = (when, false);
        self
    }

    /// Sets the pod's own grace period.
    pub(crate) fn grace(mut self, seconds: i64) -> Self {
        self.spec["terminationGracePeriodSeconds"] = json!(seconds);
        self
    }

    /// Adds a preStop command that logs its start, each second, and its end.
    pub(crate) fn exec_hook(self, seconds: u32) -> Self {
        let hook = self.ticking("app", seconds);
        self.hook(hook)
    }

    fn ticking(&self, container: &str, seconds: u32) -> Value {
        let script = format!(
            "say 'hook begins'; n=0; while [ $n -lt {seconds} ]; do n=$((n+1)); sleep 1; say 'hook ticks'; done; \
             say 'hook ends'"
        );
        json!({"exec": {"command": self.shell(container, &script)}})
    }

    /// Adds a preStop hook to the first container.
    pub(crate) fn hook(self, action: Value) -> Self {
        self.app(|app| app["lifecycle"]["preStop"] = action)
    }

    /// Adds a preStop command to a sidecar, like [`Self::exec_hook`].
    pub(crate) fn sidecar_hook(mut self, seconds: u32) -> Self {
        let (name, _) = self.sidecars[0];
        self.sidecars[0].1["lifecycle"]["preStop"] = self.ticking(name, seconds);
        self
    }

    /// Adds an act, this many seconds after the first one.
    pub(crate) fn act(mut self, at_s: f64, act: Act) -> Self {
        self.acts.push((at_s, act));
        self
    }

    /// Returns the API path of an object in the case's namespace.
    fn path(&self, below: &str) -> String {
        let group = match below.split('/').next() {
            Some("poddisruptionbudgets") => "apis/policy/v1",
            Some("roles" | "rolebindings") => "apis/rbac.authorization.k8s.io/v1",
            _ => "api/v1",
        };
        format!("/{group}/namespaces/{}/{below}", self.namespace())
    }

    /// Creates the pod and the objects that it needs.
    async fn create(&self) -> Answer {
        let namespace = json!({"metadata": {"name": self.namespace()}});
        self.lab.create("/api/v1/namespaces", &namespace).await;
        let service = json!({"metadata": {"name": "web"}, "spec": self.service});
        self.lab.create(&self.path("services"), &service).await;
        for (path, object) in &self.objects {
            self.lab.create(&self.path(path), object).await;
        }
        let mut pod = json!({"metadata": {"name": POD, "labels": {"app": "web"}}, "spec": self.spec});
        let of = |list: &[(&str, Value)]| list.iter().map(|(_, container)| container.clone()).collect();
        let (containers, sidecars): (Vec<Value>, Vec<Value>) = (of(&self.containers), of(&self.sidecars));
        pod["spec"]["containers"] = json!(containers);
        if !sidecars.is_empty() {
            pod["spec"]["initContainers"] = json!(sidecars);
        }
        self.lab.create(&self.path("pods"), &pod).await
    }

    async fn perform(&self, act: &Act) -> Answer {
        let pod = self.path(&format!("pods/{POD}"));
        match act {
            Act::Delete(grace) => {
                let options =
                    json!({"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": grace});
                self.lab.call("DELETE", &pod, grace.map(|_| &options)).await
            }
            Act::Evict => {
                let eviction = json!({
                    "apiVersion": "policy/v1", "kind": "Eviction",
                    "metadata": {"name": POD, "namespace": self.namespace()},
                });
                self.lab.call("POST", &format!("{pod}/eviction"), Some(&eviction)).await
            }
            Act::Node(command) => {
                self.lab.call("POST", &format!("/api/v1/nodes/node-1/proxy/{command}"), None).await
            }
            Act::Patch(what, patch) => self.lab.call("PATCH", &self.path(what), Some(patch)).await,
        }
    }

    /// Runs the case until the pod and all its processes are gone. The first act happens when the pod is ready. A case
    /// without acts is timed from the pod's creation until the pod is ready.
    pub(crate) async fn run(self) -> Recording {
        let namespace = self.namespace();
        let created = self.create().await;
        self.lab.until(&namespace, "its beginning", |seen| (self.begins)(seen).then_some(())).await;
        let mut ends = tokio::task::JoinSet::new();
        if self.has_processes && !self.acts.is_empty() {
            for (name, _) in self.containers.iter().chain(&self.sidecars) {
                let log = self.log(name);
                let (process, what) = (Held::find(&log.display().to_string()).await, format!("{name} gone"));
                ends.spawn(async move { (process.ended_ns().await, what) });
            }
        }
        tokio::time::sleep(SETTLED).await;

        let (mut answers, begin) = (Vec::new(), Instant::now());
        for (at_s, act) in &self.acts {
            sleep_until(begin + Duration::from_secs_f64(*at_s)).await;
            answers.push(self.perform(act).await);
        }
        if answers.is_empty() {
            answers.push(created);
        } else {
            self.lab.until(&namespace, "the pod gone", |seen| is_gone(seen).then_some(())).await;
        }
        let mut recording = Recording {
            case: self.name.to_owned(),
            dataplane: self.lab.dataplane,
            pod: POD.to_owned(),
            zero_ns: answers[0].sent_ns,
            seen: Vec::new(),
            lag_s: 0.0,
            process: Vec::new(),
            answers,
            rows: Vec::new(),
        };
        while let Some(ended) = ends.join_next().await {
            let (at_ns, what) = ended.expect("its exit status");
            recording.process.push((recording.at(at_ns), what));
        }
        recording.seen = self.lab.seen(&namespace);
        recording.lag_s = self.lab.lag_s(recording.zero_ns);
        for (name, _) in self.containers.iter().chain(&self.sidecars) {
            recording.add_log(name, &self.log(name));
        }
        recording
    }
}

/// Returns a condition of a pod.
pub(crate) fn condition<'a>(pod: &'a Value, kind: &str) -> Option<&'a Value> {
    pod["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == kind)
}

/// Returns true if the newest objects are a ready pod and a ready endpoint.
fn is_ready(seen: &[Seen]) -> bool {
    let newest = |kind: &str| seen.iter().rfind(|seen| seen.kind() == kind).map(|seen| &seen.object);
    let pod_ready =
        newest("Pod").and_then(|pod| condition(pod, "Ready")).is_some_and(|c| c["status"] == "True");
    let endpoint_ready = newest("EndpointSlice")
        .and_then(|slice| slice["endpoints"].as_array())
        .is_some_and(|endpoints| endpoints.iter().any(|endpoint| endpoint["conditions"]["ready"] == true));
    pod_ready && endpoint_ready
}

/// Returns true if the pod and its endpoint are gone.
fn is_gone(seen: &[Seen]) -> bool {
    let deleted = seen.iter().any(|seen| seen.kind() == "Pod" && seen.event == "DELETED");
    let slice = seen.iter().rfind(|seen| seen.kind() == "EndpointSlice");
    let endpoints = slice.and_then(|slice| slice.object["endpoints"].as_array()).map_or(0, Vec::len);
    deleted && endpoints == 0
}
