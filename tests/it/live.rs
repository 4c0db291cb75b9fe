//! Runs on an existing cluster, which outlives them, so they must undo their changes.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;
use rolldrop_explain::model::Mode;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{LIMIT, Rolldrop, signal, wait_for};
use crate::kubectl::{Kubectl, ROLLED_OUT, SharedCluster};
use crate::lab::Setup;
use crate::machine::measured;
use crate::runs::{every_answer_has_its_row, json_lines, no_file_holds, result, turn};
use crate::web::Web;

/// Returns a Deployment, and a Service with one named and one numeric target port.
fn web() -> String {
    let ports = json!([
        {"name": "named", "port": 80, "targetPort": "http"},
        {"name": "numbered", "port": 81, "targetPort": 8080},
    ]);
    let web = Web::new(2).pod(json!({"terminationGracePeriodSeconds": 1}));
    web.service(json!({"ports": ports})).manifests()
}

/// Scenario that measures existing objects with the sidecar, and deletes a pod.
const SCENARIO: &str = "\
apiVersion: rolldrop.dev/v1
kind: Scenario
metadata: {name: live}
spec:
  manifests:
    - inline: {apiVersion: v1, kind: ConfigMap, metadata: {name: notes}, data: {of: the run}}
  target: {service: web, port: numbered}
  load: {rate: 100, duration: 5s}
  sidecar: {inject: true}
  disruptions: [{at: 1s, action: deletePod, selector: app=web}]
";

/// A Deployment `web` with its Service, in its own namespace.
struct Shop(Kubectl);

impl Shop {
    fn open(what: &str) -> Self {
        let kubectl = Kubectl::in_namespace(what);
        kubectl.apply(&web());
        kubectl.ok(ROLLED_OUT);
        Self(kubectl)
    }

    /// Returns `rolldrop run scenario.yaml` on the cluster, with consent.
    fn run(&self, scenario: &str, more: &[&str]) -> Rolldrop {
        self.unasked(scenario, more).args(["--yes"])
    }

    fn unasked(&self, scenario: &str, more: &[&str]) -> Rolldrop {
        let run = Rolldrop::run(scenario).args(["-n", self.0.namespace(), "--kubeconfig"]);
        run.args([SharedCluster::get().kubeconfig()]).args(more)
    }

    /// Checks that a run announces its changes and asks for consent, and that nothing happens without consent.
    fn says_what_it_will_do_and_asks(&self) {
        let namespace = self.0.namespace();
        let planned = self.unasked(SCENARIO, &["--dry-run"]).finish().expect_code(0);
        let calls = planned.stdout();
        let changing = calls.lines().filter_map(|line| {
            let mut words = line.split_whitespace().skip(1);
            let (method, path) = (words.next()?, words.next()?);
            // The Secret's name differs each time.
            let path = path.split_once("/rolldrop-admin-").map_or(path, |(path, _)| path);
            (method != "GET")
                .then(|| format!("{method} {}", path.rsplit_once(namespace).expect("a namespace").1))
        });
        assert_eq!(
            changing.collect::<Vec<_>>(),
            [
                "PATCH /deployments/web",
                "POST /configmaps",
                "POST /secrets",
                "POST /configmaps",
                "PATCH /deployments/web",
                "PATCH /services/web",
                "PATCH /configmaps/{rolldrop-run-...}",
                "DELETE /pods/{pod}",
                "PATCH /services/web",
                "PATCH /deployments/web",
                "DELETE /configmaps/notes",
                "DELETE /secrets",
                "DELETE /configmaps/{rolldrop-run-...}",
                "PATCH /deployments/web",
            ],
            "{planned}"
        );
        assert!(!planned.dir().join("run").exists(), "{planned}");

        let alone = self.unasked(SCENARIO, &[]).finish().expect_code(2);
        assert!(alone.stderr().contains("this run adds the sidecar to Deployment web"), "{alone}");
        assert!(alone.stderr().contains("confirmation needs a terminal: add --yes"), "{alone}");

        // On a terminal, the run asks for consent.
        let (program, kubeconfig) = (env!("CARGO_BIN_EXE_rolldrop"), SharedCluster::get().kubeconfig());
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("scenario.yaml"), SCENARIO).expect("a file");
        let run = format!("{program} run scenario.yaml -n {namespace} --kubeconfig {}", kubeconfig.display());
        let mut script = Command::new("script");
        script.args(["--quiet", "--return", "--command", &run, "typescript"]).current_dir(dir.path());
        let mut script =
            script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("script from bsdutils");
        let mut terminal = script.stdin.take().expect("its stdin");
        let mut shown = BufReader::new(script.stdout.take().expect("its stdout"));
        let mut text = Vec::new();
        while shown.read_until(b']', &mut text).expect("more output") > 0
            && !text.ends_with(b"continue? [y/N]")
        {}
        terminal.write_all(b"n\n").expect("the terminal reads");
        shown.read_to_end(&mut text).expect("the rest");
        let text = String::from_utf8_lossy(&text);
        assert!(text.contains("not confirmed: nothing was changed"), "{text}");
        assert_eq!(script.wait().expect("an exit status").code(), Some(2), "{text}");
    }

    /// Returns the specs and labels of the Deployment and the Service.
    fn specs(&self) -> Value {
        let list: Value =
            serde_json::from_str(&self.0.ok("get deployment/web service/web -o json")).expect("JSON");
        let items = list["items"].as_array().expect("items");
        items.iter().map(|item| json!([item["spec"], item["metadata"]["labels"]])).collect()
    }

    /// Checks that there are exactly this many pods, all ready, and none with the sidecar.
    fn is_as_before(&self, pods: usize) {
        let list: Value = serde_json::from_str(&self.0.ok("get pods -l app=web -o json")).expect("JSON");
        let items = list["items"].as_array().expect("items");
        let is_ready = |pod: &Value| {
            let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
            conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
        };
        assert_eq!(items.len(), pods, "{list}");
        for pod in items {
            let is_whole = pod["metadata"]["deletionTimestamp"].is_null() && is_ready(pod);
            assert!(is_whole && pod["spec"]["initContainers"].is_null(), "{pod}");
        }
    }

    /// Returns the current run's token from its Secret, which must be the only one with the run's label.
    fn token(&self) -> String {
        let secrets = "secrets -l rolldrop.dev/run";
        assert!(self.0.field(secrets, ".items[*].metadata.name").starts_with("rolldrop-admin-"));
        self.0.ok(&format!(
            "get {secrets} -o go-template={{{{range.items}}}}{{{{.data.token|base64decode}}}}{{{{end}}}}"
        ))
    }

    /// Returns the error of a request to a pod's admin port without a token.
    fn refusal(&self, path: &str) -> String {
        let pod = self.0.field("pods -l app=web", ".items[0].metadata.name");
        let namespace = self.0.namespace();
        self.0.fails(&format!("get --raw /api/v1/namespaces/{namespace}/pods/{pod}:18081/proxy{path}"))
    }

    /// Returns true if the Service routes to the sidecar.
    fn is_injected(&self) -> bool {
        self.0.field("service/web", ".spec.ports[*].targetPort").contains("18080")
    }
}

/// Waits until a run has begun to send its load.
fn wait_for_load(dir: &TempDir) {
    let log = dir.path().join("run/events.jsonl");
    let said = || std::fs::read_to_string(dir.path().join("stderr.log")).unwrap_or_default();
    wait_for("the load", LIMIT, || {
        assert!(!said().contains("failed"), "{}", said());
        std::fs::read_to_string(&log).ok()?.contains("load_started").then_some(())
    });
}

#[test]
fn sidecar_injection_lasts_only_for_run() {
    measured(|| {
        let _turn = turn();
        let shop = Shop::open("live");
        let before = shop.specs();
        shop.says_what_it_will_do_and_asks();
        assert_eq!(shop.specs(), before);
        let finished = shop.run(SCENARIO, &[]).measured().expect_code(0);
        let run = finished.dir().join("run");
        every_answer_has_its_row(&run);
        assert_eq!(shop.specs(), before, "{finished}");
        shop.0.fails("get configmap/notes");
        shop.is_as_before(2);
        let waited = "waiting for the cluster to return to its state before the run: Deployment web: ";
        assert!(finished.stderr().contains(waited), "{finished}");

        // The run does not change objects whose changes a GitOps controller would revert.
        shop.0.ok("annotate deployment/web argocd.argoproj.io/tracking-id=shop:apps/Deployment:shop/web");
        let refused = shop.run(SCENARIO, &[]).finish().expect_code(2);
        assert!(refused.stderr().contains("Deployment web is managed by Argo CD"), "{refused}");
        assert!(refused.stderr().contains("--change-gitops"), "{refused}");
        let image =
            "disruptions=[{at: 1s, action: setImage, workload: deploy/web, container: app, image: x}]";
        let more = ["--set", "sidecar.inject=false", "--set", image];
        let refused = shop.run(SCENARIO, &more).finish().expect_code(2);
        assert!(refused.stderr().contains("Deployment web is managed by Argo CD"), "{refused}");
        assert_eq!(shop.specs(), before);
        shop.0.fails("get configmap/notes");
    });
}

#[test]
fn interrupted_or_killed_run_is_undone() {
    let _turn = turn();
    let shop = Shop::open("killed");
    let before = shop.specs();
    let (mut child, dir) = shop.run(SCENARIO, &["--set", "load.duration=60s"]).start();
    wait_for_load(&dir);
    assert!(shop.is_injected());
    let token = shop.token();
    assert_eq!(token.len(), 64, "{token}");
    // The test sends requests only once the pod that the run deletes is gone.
    wait_for("the deletion", LIMIT, || {
        let events = json_lines(&dir.path().join("run/events.jsonl"));
        events.iter().any(|event| event["kind"] == "action").then_some(())
    });
    let ending = "get pods -l app=web -o jsonpath={.items[*].metadata.deletionTimestamp}";
    shop.0.until(ending, str::is_empty);
    shop.0.ok(ROLLED_OUT);
    let refusal = shop.refusal("/metrics");
    assert!(refusal.contains("Unauthorized") || refusal.contains("credentials"), "{refusal}");
    // The row is written some seconds later; nothing after it is on disk yet.
    wait_for("a row of a proxy", LIMIT, || {
        let parts = std::fs::read_dir(dir.path().join("run/served")).ok()?;
        parts.flatten().any(|part| part.path().extension() == Some("parquet".as_ref())).then_some(())
    });
    signal(&child, Signal::SIGINT);
    assert_eq!(child.wait().expect("an exit status").code(), Some(130));
    no_file_holds(&dir.path().join("run"), &token);
    every_answer_has_its_row(&dir.path().join("run"));
    assert_eq!(shop.specs(), before);
    assert_eq!(shop.0.ok("get secrets -l rolldrop.dev/run -o name"), "");
    shop.is_as_before(2);

    let (mut child, dir) = shop.run(SCENARIO, &["--set", "load.duration=60s"]).start();
    wait_for_load(&dir);
    let cleanup = || Rolldrop::new(["cleanup".as_ref(), dir.path().join("run").as_os_str()]).finish();
    let early = cleanup().expect_code(2);
    assert!(early.stderr().contains("has not ended"), "{early}");
    signal(&child, Signal::SIGKILL);
    child.wait().expect("an exit status");
    assert!(shop.is_injected());
    let labels = shop.0.field("configmap/notes", ".metadata.labels");
    assert!(labels.contains("rolldrop.dev/run") && labels.contains("live-"), "{labels}");
    let owner = shop.0.field("configmap/notes", ".metadata.ownerReferences[0].name");
    assert!(owner.starts_with("rolldrop-run-live-"), "{owner}");
    // Pods created after the token is gone still start, but refuse every reader.
    shop.0.ok("delete secrets -l rolldrop.dev/run");
    shop.0.ok("delete pods -l app=web");
    shop.0.ok(ROLLED_OUT);
    let refusal = shop.refusal("/rows");
    assert!(refusal.contains("Unauthorized") || refusal.contains("credentials"), "{refusal}");
    // Changes made by others are left alone.
    shop.0.ok("scale deployment/web --replicas=3");
    let cleaned = cleanup().expect_code(0);
    let namespace = shop.0.namespace();
    let expected =
        ["Service web", "Deployment web"].map(|object| format!("{object} in {namespace}: restored\n"));
    let removed = |what: &str| format!("{what} in {namespace}: removed\n");
    let said = cleaned.stdout();
    let (before_it, rest) = said.split_once("Secret rolldrop-admin-").expect("the Secret");
    let (of_it, after_it) = rest.split_once('\n').expect("its line");
    assert!(of_it.ends_with(": already gone"), "{cleaned}");
    assert_eq!(before_it, format!("{}{}", expected.concat(), removed("ConfigMap notes")), "{cleaned}");
    let released = format!("Deployment web in {namespace}: released\n");
    assert_eq!(after_it, removed(&format!("ConfigMap {owner}")) + &released, "{cleaned}");
    assert_eq!(shop.0.ok("get secrets -l rolldrop.dev/run -o name"), "");
    let mut expected = before;
    expected[0][0]["replicas"] = 3.into();
    assert_eq!(shop.specs(), expected);
    shop.is_as_before(3);
    assert_eq!(cleanup().expect_code(0).stdout(), "the run left nothing to clean up\n");
}

#[test]
fn run_awaits_pod_deletion_until_interrupted() {
    let kubectl = Kubectl::in_namespace("gone");
    let run = |sleep_s: u64| {
        let hook = json!({"preStop": {"sleep": {"seconds": sleep_s}}});
        let web =
            Web::new(4).pod(json!({"terminationGracePeriodSeconds": 90})).app(json!({"lifecycle": hook}));
        let scenario = web.scenario("gone", "  target: {service: web}\n  load: {rate: 10, duration: 1s}");
        let run = Rolldrop::run(&scenario).args(["--yes", "-n", kubectl.namespace(), "--kubeconfig"]);
        run.args([SharedCluster::get().kubeconfig()])
    };
    let pods = "get pods -o name";
    let finished = run(3).finish();
    assert_eq!(kubectl.ok(pods), "", "{finished}");
    let waited = "waiting for the cluster to return to its state before the run: 4 pods of the run are still there (web-";
    assert!(finished.stderr().contains(waited), "{finished}");
    assert!(finished.stderr().contains(", 1 more)"), "{finished}");

    let (mut child, dir) = run(80).start();
    let said = || std::fs::read_to_string(dir.path().join("stderr.log")).unwrap_or_default();
    wait_for("the wait", LIMIT, || said().contains(waited).then_some(()));
    signal(&child, Signal::SIGINT);
    // The record was already complete, so the run exits like an uninterrupted one if its measurement is valid.
    let code = child.wait().expect("an exit status").code();
    let stdout = std::fs::read_to_string(dir.path().join("stdout.log")).unwrap_or_default();
    assert_eq!(code, Some(if stdout.contains("INVALID") { 3 } else { 0 }), "{stdout}{}", said());
    let word =
        "the cluster is not yet as it was before the run, and the wait was interrupted: 4 pods of the run";
    assert!(said().contains(word), "{}", said());
    assert!(result(&dir.path().join("run")).complete, "{}", said());
    assert_eq!(kubectl.ok(pods).lines().count(), 4);
}

#[test]
fn target_option_measures_existing_rollout() {
    measured(|| {
        let _turn = turn();
        let cluster = Setup::on("auto").start();
        let kubeconfig = cluster.kubeconfig();
        let shop: PathBuf = cluster.dir().join("shop.yaml");
        std::fs::write(&shop, web()).expect("a file");
        cluster.kubectl("create namespace shop");
        cluster.kubectl(&format!("-n shop apply -f {}", shop.display()));
        cluster.kubectl(&format!("-n shop {ROLLED_OUT}"));
        let run = |words: &[&str]| {
            let run = Rolldrop::new(words).env("KUBECONFIG", kubeconfig.to_str().expect("UTF-8"));
            run.with_tools().measured()
        };

        // The command also gets the namespace.
        let words = ["run", "--target", "svc/web:named", "-n", "shop", "--out", "run", "--"];
        let finished =
            run(&[&words[..], &["kubectl", "rollout", "restart", "deploy/web"]].concat()).expect_code(0);
        assert!(finished.stderr().contains("deployment.apps/web restarted"), "{finished}");
        let result = result(&finished.dir().join("run"));
        let modes: Vec<Mode> = result.terminations.iter().map(|t| t.mode).collect();
        assert_eq!(modes, [Mode::Rollout; 2], "{finished}");
        assert!(result.requests.total > 500, "{finished}");

        // Without a command, the run only watches, and changes only the object that the beats are written to.
        let changes = |more: &[&str]| {
            let words = ["run", "-t", "svc/web:named", "-n", "shop", "-d", "2s", "--out", "run"];
            let observed = run(&[&words[..], more].concat());
            // Conntrack entries from the first run's lost connections may still route some requests to a dead pod.
            assert!(matches!(observed.code(), Some(0 | 3)), "{observed}");
            let said = observed.stderr();
            assert!(
                said.contains("rolldrop: watching for changes by others") && !said.contains("deploying"),
                "{observed}"
            );
            std::fs::read_to_string(observed.dir().join("run/changes.jsonl")).expect("changes.jsonl")
        };
        let unchanged = changes(&["--no-beats"]);
        assert_eq!(unchanged.lines().count(), 1, "{unchanged}");
        let beaten = changes(&[]);
        let changed = beaten.lines().filter(|line| line.contains("\"entry\":\"change\""));
        assert_eq!(changed.filter(|line| line.contains("ConfigMap")).count(), 1, "{beaten}");
        assert_eq!(beaten.matches("\"entry\":\"change\"").count(), 1, "{beaten}");
        let unnamed = ["run", "-t", "svc/web:named", "-n", "shop", "--set", "sidecar.inject=true", "--yes"];
        let unnamed = run(&unnamed).expect_code(2);
        assert!(unnamed.stderr().contains("would change a cluster that you did not name"), "{unnamed}");
        let system = run(&["run", "-t", "svc/kube-dns", "-n", "kube-system"]).expect_code(2);
        assert!(system.stderr().contains("namespace kube-system belongs to the cluster itself"), "{system}");
        let all = "disruptions=[{at: 1s, action: deletePod, selector: app=web, count: 2}]";
        let words = ["run", "-t", "svc/web:named", "-n", "shop", "--set", all, "--yes", "--kubeconfig"];
        let all = run(&[&words[..], &[kubeconfig.to_str().expect("UTF-8")]].concat()).expect_code(2);
        assert!(
            all.stderr()
                .contains("refused deletePod of app=web: all 2 ready pods would terminate at the same time"),
            "{all}"
        );
        let ambiguous = run(&["run", "-t", "svc/web", "-n", "shop", "--out", "run"]).expect_code(2);
        assert!(
            ambiguous.stderr().contains(
                "--target: spec.target.port: service web: has several ports (named (80), numbered (81)): choose one, such as --target \
                 svc/web:named"
            ),
            "{ambiguous}"
        );
        let unknown = run(&["run", "-t", "svc/wbe", "-n", "shop", "--out", "run"]).expect_code(2);
        assert!(unknown.stderr().contains("there is no Service wbe in namespace shop"), "{unknown}");
    });
}
