//! `rolldrop watch`, with only the permissions in docs/watch.md, beside pods that end in each way that it
//! distinguishes.

use std::path::Path;
use std::process::Child;

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{LIMIT, Rolldrop, signal, tracked, wait_for};
use crate::pods::{PODS, log_with, on_with, run, shell};
use crate::termination::lab::{Answer, Lab};
use crate::watch_metrics::{OPEN_METRICS, PROMETHEUS, ScrapedMetrics};

pub(crate) const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// App that exits as soon as it gets SIGTERM.
pub(crate) const PROMPT: &str = "trap 'exit 0' TERM; while :; do sleep 0.05; done";
/// App that ignores SIGTERM.
const STUBBORN: &str = "trap '' TERM; while :; do sleep 0.05; done";

pub(crate) fn deployment(name: &str, replicas: u32, grace_s: u32, app: &Value) -> Value {
    let labels = json!({"app": name});
    let pod = json!({"terminationGracePeriodSeconds": grace_s, "containers": [app]});
    let template = json!({"metadata": {"labels": labels}, "spec": pod});
    json!({"metadata": {"name": name},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}})
}

/// Returns this block of the page's manifests, counted from 1.
pub(crate) fn manifests_of_page(block: usize) -> String {
    let page = tracked("docs/watch.md");
    let blocks = page.split("```yaml\n").filter_map(|rest| rest.split("```").next());
    blocks.filter(|block| block.starts_with("apiVersion: ")).nth(block - 1).expect("manifests").to_owned()
}

/// Creates the objects in this block of the page's manifests. All are in the lab's namespace.
pub(crate) async fn create_block_of_page(lab: &Lab, block: usize) {
    let yaml = manifests_of_page(block).replace("namespace: edge", "namespace: default");
    let yaml = yaml.replace("namespace: shop", "namespace: default");
    for document in yaml.split("---\n") {
        let object: Value = serde_saphyr::from_str(document).expect("an object");
        let path = match object["kind"].as_str() {
            Some("ServiceAccount") => "/api/v1/namespaces/default/serviceaccounts",
            Some("ConfigMap") => CONFIG_MAPS,
            Some("ClusterRole") => "/apis/rbac.authorization.k8s.io/v1/clusterroles",
            Some("ClusterRoleBinding") => "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
            Some("Role") => "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles",
            Some("RoleBinding") => "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings",
            other => panic!("{other:?}"),
        };
        lab.create(path, &object).await;
    }
}

/// Creates the objects in the page's first block of YAML, and returns a kubeconfig for their service account.
pub(crate) async fn kubeconfig_of_page(lab: &Lab) -> String {
    create_block_of_page(lab, 1).await;
    let account = "${ROLLDROP_SERVICE_ACCOUNT:-/var/run/secrets/kubernetes.io/serviceaccount}";
    let script = format!("cat {account}/token; echo; sleep 1000");
    let bearer = json!({"serviceAccountName": "rolldrop-watch", "terminationGracePeriodSeconds": 1,
        "containers": [shell("app", &script)]});
    run(lab, "bearer", bearer).await;
    with_token(lab, log_with(lab, "bearer", "app", "\n").trim())
}

fn with_token(lab: &Lab, token: &str) -> String {
    let text = std::fs::read_to_string(lab.dir().join("kubeconfig")).expect("a kubeconfig");
    let mut config: Value = serde_saphyr::from_str(&text).expect("YAML");
    config["users"][0]["user"] = json!({"token": token});
    config.to_string()
}

/// A running `rolldrop watch`.
pub(crate) struct Watching {
    pub(crate) process: Child,
    dir: TempDir,
}

impl Watching {
    pub(crate) fn begin(args: &[&str], kubeconfig: &str) -> Self {
        let watch = Rolldrop::new(["watch", "--kubeconfig", "kubeconfig", "--for", "600s"]).args(args);
        let (process, dir) = watch.file("kubeconfig", kubeconfig).start();
        let mut begun = Self { process, dir };
        wait_for("the first list", LIMIT, || {
            let said = begun.read("stderr.log");
            assert_eq!(begun.process.try_wait().expect("its state"), None, "{said}");
            said.contains("watching pod terminations in").then_some(())
        });
        begun
    }

    pub(crate) fn read(&self, file: &str) -> String {
        std::fs::read_to_string(Path::new(self.dir.path()).join(file)).unwrap_or_default()
    }

    /// Returns the finished lines of this kind, as JSON.
    pub(crate) fn lines(&self, kind: &str) -> Vec<Value> {
        let text = self.read("stdout.log");
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let all = whole.lines().map(|line| serde_json::from_str::<Value>(line).expect("a JSON object"));
        all.filter(|line| line["kind"] == *kind).collect()
    }

    /// Waits for terminations of a workload's pods, and returns them.
    pub(crate) fn terminations(&self, workload: &str, wanted: usize) -> Vec<Value> {
        wait_for(workload, LIMIT, || {
            let mut all = self.lines("termination");
            all.retain(|line| line["workload"] == *workload);
            (all.len() >= wanted).then_some(all)
        })
    }

    /// Ends the watch as a user does, and returns the output.
    pub(crate) fn end(&mut self) -> String {
        signal(&self.process, Signal::SIGTERM);
        let status = wait_for("the watch to exit", LIMIT, || self.process.try_wait().expect("its state"));
        assert_eq!(status.code(), Some(0), "{}", self.read("stderr.log"));
        self.read("stdout.log")
    }
}

/// Returns the names and nodes of a Deployment's pods, once all are ready.
pub(crate) async fn ready_pods(lab: &Lab, app: &str, wanted: usize) -> Vec<(String, String)> {
    loop {
        let answer = lab.call("GET", &format!("{PODS}?labelSelector=app%3D{app}"), None).await;
        let pods = answer.body["items"].as_array().cloned().unwrap_or_default();
        let is_ready = |pod: &&Value| {
            let conditions = pod["status"]["conditions"].as_array();
            conditions.into_iter().flatten().any(|c| c["type"] == "Ready" && c["status"] == "True")
                && pod["metadata"]["deletionTimestamp"].is_null()
        };
        let text = |value: &Value| value.as_str().expect("a string").to_owned();
        let named = |pod: &Value| (text(&pod["metadata"]["name"]), text(&pod["spec"]["nodeName"]));
        let ready: Vec<_> = pods.iter().filter(is_ready).map(named).collect();
        if ready.len() == wanted {
            return ready;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}

async fn evict(lab: &Lab, pod: &str) -> Answer {
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": "default"}});
    let answer = lab.call("POST", &format!("{PODS}/{pod}/eviction"), Some(&eviction)).await;
    assert_eq!(answer.status, 201, "{}", answer.body);
    answer
}

/// Checks that a termination's t0 fits the call that began it. All calls come within a minute of the watch's start, so
/// beats date them.
#[track_caller]
fn begun_by(termination: &Value, call: &Answer) {
    let at = |name: &str| termination[name].as_i64().expect("a time");
    assert_eq!(termination["t0_basis"], "beats", "{termination}");
    let is_meant = at("t0_earliest_ns") <= call.answered_ns && call.sent_ns <= at("t0_latest_ns");
    assert!(is_meant, "{} to {}: {termination}", call.sent_ns, call.answered_ns);
}

/// Creates the Deployments, and waits until their pods are ready.
async fn deploy(lab: &Lab) {
    let mut hooked = shell("app", PROMPT);
    hooked["lifecycle"] = json!({"preStop": {"exec": {"command": ["sh", "-c", "exit 3"]}}});
    let prompt = shell("app", PROMPT);
    let all = [("prompt", 2, 20, &prompt), ("moved", 2, 20, &prompt), ("hooked", 1, 20, &hooked)];
    for (name, replicas, grace_s, app) in all.into_iter().chain([("stubborn", 1, 3, &shell("app", STUBBORN))])
    {
        lab.create(DEPLOYMENTS, &deployment(name, replicas, grace_s, app)).await;
    }
    for (name, replicas) in [("prompt", 2), ("moved", 2), ("hooked", 1), ("stubborn", 1)] {
        ready_pods(lab, name, replicas).await;
    }
}

/// Deletes a pod whose preStop hook fails.
async fn delete_hooked(lab: &Lab, watch: &Watching) {
    let (hooked, _) = ready_pods(lab, "hooked", 1).await.remove(0);
    let deleted = lab.call("DELETE", &format!("{PODS}/{hooked}"), None).await;
    let found = watch.terminations("Deployment hooked", 1).remove(0);
    begun_by(&found, &deleted);
    assert_eq!((&found["mode"], &found["cause"]), (&json!("other"), &Value::Null), "{found}");
    assert_eq!((&found["pod"], &found["failed_hooks"]), (&json!(hooked), &json!(["app"])), "{found}");
    assert_eq!(found["pre_stop_sleep_s"], Value::Null, "the hook's program may sleep as well: {found}");
}

/// Evicts a pod, and another one after its node was cordoned.
async fn evict_moved(lab: &Lab, watch: &Watching) {
    let pods = ready_pods(lab, "moved", 2).await;
    for (index, mode) in ["eviction", "drain"].into_iter().enumerate() {
        let (pod, node) = &pods[index];
        if mode == "drain" {
            let cordon = json!({"spec": {"unschedulable": true}});
            lab.call("PATCH", &format!("/api/v1/nodes/{node}"), Some(&cordon)).await;
        }
        let evicted = evict(lab, pod).await;
        let found = watch.terminations("Deployment moved", index + 1).remove(index);
        begun_by(&found, &evicted);
        assert_eq!((&found["mode"], &found["pod"]), (&json!(mode), &json!(pod)), "{found}");
    }
}

async fn scale_prompt(lab: &Lab, watch: &Watching) {
    lab.call("PATCH", &format!("{DEPLOYMENTS}/prompt"), Some(&json!({"spec": {"replicas": 1}}))).await;
    let found = watch.terminations("Deployment prompt", 1).remove(0);
    assert_eq!((&found["mode"], &found["killed_at_grace_end"]), (&json!("scale_down"), &json!(false)));
    assert_eq!(found["cause"], "Deployment prompt was scaled from 2 to 1");
    assert_eq!((&found["grace_s"], &found["failed_hooks"]), (&json!(20), &json!([])), "{found}");
    assert_eq!((&found["containers"][0]["exit_code"], &found["pre_stop_sleep_s"]), (&json!(0), &json!(0)));
    let used = &found["grace_use"];
    assert!(used["least_s"].as_f64() <= used["most_s"].as_f64(), "{found}");
}

/// Rolls out a new template; the old pod has to be killed.
async fn roll_stubborn(lab: &Lab, watch: &Watching) {
    let metadata = json!({"annotations": {"restarted": "now"}});
    let restart = json!({"spec": {"template": {"metadata": metadata}}});
    lab.call("PATCH", &format!("{DEPLOYMENTS}/stubborn"), Some(&restart)).await;
    let found = watch.terminations("Deployment stubborn", 1).remove(0);
    assert_eq!((&found["mode"], &found["killed_at_grace_end"]), (&json!("rollout"), &json!(true)), "{found}");
    assert_eq!(found["containers"][0]["exit_code"], 137, "{found}");
    // The kubelet waits for the whole grace period.
    assert!(found["grace_use"]["most_s"].as_f64() >= Some(3.0), "{found}");
}

/// Checks the metrics of these terminations.
fn counted_in_metrics(watch: &Watching, format: &str) {
    let metrics = ScrapedMetrics::scrape(watch, format);
    let of = "namespace=default,workload=Deployment ";
    for (labels, terminations) in [
        ("stubborn,mode=rollout,result=unobserved", 1.0),
        ("hooked,mode=other", 1.0),
        ("moved,mode=eviction", 1.0),
        ("moved,mode=drain", 1.0),
        ("prompt,mode=scale_down", 1.0),
        ("moved", 2.0),
    ] {
        let counted = metrics.sum("rolldrop_terminations_total", &format!("{of}{labels}"));
        assert_eq!(counted, terminations, "{labels}\n{}", metrics.text);
    }
    for (name, labels, value) in [
        ("rolldrop_terminations_total", "", 5.0),
        ("rolldrop_terminations_total", "result=unobserved", 5.0),
        ("rolldrop_grace_exceeded_total", "workload=Deployment stubborn", 1.0),
        ("rolldrop_grace_exceeded_total", "", 1.0),
        ("rolldrop_prestop_failed_total", "workload=Deployment hooked", 1.0),
        ("rolldrop_prestop_failed_total", "", 1.0),
        ("rolldrop_termination_seconds_count", "", 5.0),
        ("rolldrop_termination_seconds_bucket", "workload=Deployment stubborn,le=+Inf", 1.0),
        ("rolldrop_terminating", "", 0.0),
        ("rolldrop_evidence_up", "source=pods", 1.0),
        ("rolldrop_evidence_up", "", 7.0),
        ("rolldrop_watch_gap_seconds_total", "", 0.0),
    ] {
        assert_eq!(metrics.sum(name, labels), value, "{name} {labels}\n{}", metrics.text);
    }
    for termination in watch.lines("termination") {
        metrics.is_no_label(termination["pod"].as_str().expect("a name"));
    }
}

/// Waits until the watch has had time to check its beats.
async fn await_checks(lab: &Lab) {
    let mut first = None;
    loop {
        let object = lab.call("GET", &format!("{CONFIG_MAPS}/rolldrop-watch-beats"), None).await.body;
        let beat = object["data"]["beat"].as_str().map(|beat| beat.parse::<i64>().expect("a time"));
        first = first.or(beat);
        if beat.zip(first).is_some_and(|(beat, first)| beat - first >= 3_000_000_000) {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}

/// Checks the last JSON lines: workloads by severity, then the summary.
fn ranks_worst_first(watch: &Watching) {
    let missing = watch.lines("not_watched");
    assert!(missing.is_empty(), "the page's permissions suffice: {missing:?}");
    let ranked = watch.lines("workload");
    assert_eq!(ranked[0]["workload"], "Deployment stubborn", "{ranked:#?}");
    assert_eq!((&ranked[0]["killed_at_grace_end"], &ranked[0]["terminations"]), (&json!(1), &json!(1)));
    let of = |name: &str| ranked.iter().find(|of| of["workload"] == *name).expect(name);
    assert_eq!(of("Deployment hooked")["failed_hooks"], 1);
    assert_eq!(of("Deployment moved")["terminations"], 2);
    let summary = watch.lines("summary").remove(0);
    assert_eq!((&summary["terminations"], &summary["workloads"]), (&json!(5), &json!(4)), "{summary}");
}

/// Checks the Events: only workloads with something to report have one.
async fn wrote_events(lab: &Lab) {
    let events = lab.call("GET", "/api/v1/namespaces/default/events", None).await.body["items"].clone();
    let own = |event: &&Value| event["source"]["component"] == "rolldrop-watch";
    let own: Vec<&Value> = events.as_array().expect("Events").iter().filter(own).collect();
    let about = |name: &str| own.iter().find(|event| event["involvedObject"]["name"] == *name).expect(name);
    let stubborn = about("stubborn");
    assert_eq!(
        (&stubborn["reason"], &stubborn["type"]),
        (&json!("KilledAtGraceEnd"), &json!("Warning")),
        "{stubborn}"
    );
    assert!(stubborn["message"].as_str().expect("a message").starts_with("1 of 1 pod killed"), "{stubborn}");
    let workload = lab.call("GET", &format!("{DEPLOYMENTS}/stubborn"), None).await.body;
    assert_eq!(stubborn["involvedObject"]["uid"], workload["metadata"]["uid"], "{stubborn}");
    assert_eq!(about("hooked")["reason"], "PreStopHookFailed");
    assert_eq!(own.len(), 2, "{own:#?}");
}

#[test]
fn watch_reports_how_pods_end() {
    on_with("userspace", json!({"nodes": 2}), async |lab| {
        deploy(&lab).await;
        let kubeconfig = kubeconfig_of_page(&lab).await;
        create_block_of_page(&lab, 2).await;
        create_block_of_page(&lab, 3).await;
        let options = ["-A", "--format", "json", "--events", "--metrics", "127.0.0.1:0", "--beats"];
        let mut watch = Watching::begin(&options, &kubeconfig);
        let mut text = Watching::begin(&["-n", "default"], &kubeconfig);
        await_checks(&lab).await;
        delete_hooked(&lab, &watch).await;
        evict_moved(&lab, &watch).await;
        scale_prompt(&lab, &watch).await;
        roll_stubborn(&lab, &watch).await;
        for format in [PROMETHEUS, OPEN_METRICS] {
            counted_in_metrics(&watch, format);
        }
        watch.end();
        ranks_worst_first(&watch);
        wrote_events(&lab).await;

        let text = text.end();
        for part in [
            "(Deployment stubborn): rollout of Deployment stubborn; KILLED at the end of its grace period of 3 s; \
             app exited with 137 (SIGKILL)",
            "preStop hook failed in app",
            "5 terminations of 4 workloads",
            "default Deployment stubborn: 1 of 1 pod killed at the end of the grace period (3 s).",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        // The docs show this output as an example.
        println!("{text}");

        let stranger = with_token(&lab, "nobody");
        let refused = Rolldrop::new(["watch", "--kubeconfig", "kubeconfig"]).file("kubeconfig", &stranger);
        let refused = refused.finish().expect_code(2);
        let said = refused.stderr();
        assert!(said.contains("failed to list ") && said.contains(": Unauthorized"), "{refused}");
    });
}
