//! The Jobs in `charts/gate` and in the chart's `helm test`, each run on the embedded cluster as its controller would
//! start it.

use std::fmt::Debug;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

use super::root;
use crate::chart;
use crate::harness::{LIMIT, again_while_invalid, wait_for};
use crate::kubectl::{KUBECTL, ROLLED_OUT};
use crate::lab::{Cluster, Setup};
use crate::machine::{Meanwhile, figure, measured};
use crate::runs::{Dataplane, turn};
use crate::web::Web;

/// Pod template hash on pods of Argo Rollouts.
const HASH: &str = "5d4c8b";

/// A cluster with an app `web` that loses no requests, because its pods keep serving for some seconds after deletion.
struct Shop(Cluster);

impl Shop {
    fn open() -> Self {
        let cluster = Setup::on(Dataplane::Kernel).nodes(2).start();
        let app = Web::new(2).label("rollouts-pod-template-hash", HASH);
        cluster.deploy(&app.app(json!({"lifecycle": {"preStop": {"sleep": {"seconds": 3}}}})));
        Self(cluster)
    }

    /// Applies the objects whose kinds this cluster serves.
    #[track_caller]
    fn apply(&self, objects: &[Value]) {
        let kinds =
            ["ConfigMap", "ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"];
        let served = |object: &&Value| kinds.iter().any(|kind| object["kind"] == *kind);
        let manifest: Vec<String> = objects.iter().filter(served).map(Value::to_string).collect();
        self.0.apply(&manifest.join("\n---\n"));
    }

    /// Runs a bash script with the tests' own `kubectl`, configured for this cluster.
    fn bash(&self, script: &str, job: &Value) -> Output {
        self.0.kubectl(ROLLED_OUT);
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("job.json");
        fs::write(&file, job.to_string()).expect("a file");
        // The cluster does not serve CronJobs. The file contains the object that kubectl would create from one.
        let text = format!(
            "#!/bin/sh\nif [ \"$1 $2 $4\" = 'create job --from=cronjob/rolldrop-gate' ]; then\n  set -- create -f {}\nfi\n\
             exec {KUBECTL} \"$@\"\n",
            file.display()
        );
        let program = dir.path().join("kubectl");
        fs::write(&program, text).expect("a program");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("a program");
        let path = std::env::var("PATH").expect("a PATH");
        let mut command = Command::new("bash");
        command
            .args(["-c", script])
            .env("PATH", format!("{}:{path}", dir.path().display()))
            .env("KUBECONFIG", self.0.kubeconfig())
            .env("HOME", dir.path())
            .current_dir(dir.path());
        command.output().expect("bash starts")
    }

    /// Runs a Job until it finishes. Returns its condition and its log.
    fn run(&self, job: &Value) -> (&'static str, String) {
        let name = job["metadata"]["name"].as_str().expect("a name");
        self.0.kubectl(ROLLED_OUT);
        self.0.apply(&job.to_string());
        let ended = wait_for("the Job to finish", LIMIT, || {
            let job: Value =
                serde_json::from_str(&self.0.kubectl(&format!("get job {name} -o json"))).expect("JSON");
            let conditions = job["status"]["conditions"].as_array()?;
            let ended = |kind: &str| conditions.iter().any(|c| c["type"] == kind && c["status"] == "True");
            ["Complete", "Failed"].into_iter().find(|kind| ended(kind))
        });
        let log = self.0.kubectl(&format!("logs job/{name}"));
        self.0.kubectl(&format!("delete job {name} --cascade=foreground --wait"));
        (ended, log)
    }
}

/// Runs a measurement, and fails unless the result is the expected value. Returns the last output.
#[track_caller]
fn ends<T: Copy + Debug + PartialEq>(run: impl Fn() -> (T, String), expected: T) -> String {
    let meanwhile = Meanwhile::begins();
    let is_invalid = |ran: &(T, String)| ran.1.contains("INVALID");
    let ran = again_while_invalid(run, is_invalid);
    figure(meanwhile.taken(), !is_invalid(&ran), || ran.1.clone());
    assert_eq!(ran.0, expected, "{}", ran.1);
    ran.1
}

/// Returns the objects that `kubectl kustomize` builds from a folder, with a shorter scenario that evicts one pod.
fn gate(folder: &str) -> Vec<Value> {
    let mut objects = chart::kustomized(&root().join("charts/gate").join(folder));
    let of_gate = |object: &&mut Value| object["kind"] == "ConfigMap";
    let config = objects.iter_mut().find(of_gate).expect("a ConfigMap");
    let mut text = config["data"]["scenario.yaml"].as_str().expect("a scenario").to_owned();
    for (long, short) in [
        ("service: web-canary", "service: web"),
        ("duration: 120s", "duration: 8s"),
        ("at: 5s", "at: 1s"),
        ("repeat: 3", "repeat: 1"),
        ("min: 3", "min: 1"),
    ] {
        assert!(text.contains(long) || long.contains("canary"), "{long}: {text}");
        text = text.replace(long, short);
    }
    config["data"]["scenario.yaml"] = text.into();
    objects
}

fn of_kind<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    objects.iter().find(|object| object["kind"] == kind).unwrap_or_else(|| panic!("no {kind}"))
}

/// Returns a Job named `name` with this spec, adapted because other tests use the CPUs at the same time.
fn job(name: &str, mut spec: Value) -> Value {
    let args = spec.pointer_mut("/template/spec/containers/0/args").and_then(Value::as_array_mut);
    args.expect("arguments").push("--max-busy=100%".into());
    json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec})
}

fn text(path: &str) -> Value {
    let text = fs::read_to_string(root().join("charts/gate").join(path)).expect(path);
    serde_saphyr::from_str(&text).expect("YAML")
}

/// Returns the Job that `kubectl create job --from=cronjob/rolldrop-gate` creates.
fn from_cron_job(objects: &[Value]) -> Value {
    job("rolldrop-gate", of_kind(objects, "CronJob")["spec"]["jobTemplate"]["spec"].clone())
}

#[test]
fn flagger_and_script_start_gate_job() {
    measured(|| {
        let _turn = turn();
        let shop = Shop::open();
        let said = |output: Output| {
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            (output.status.code(), said + &String::from_utf8_lossy(&output.stderr))
        };

        // Started by Flagger's load tester, which runs the webhook's command with bash.
        let objects = gate("flagger");
        shop.apply(&objects);
        let webhook = &text("flagger/canary.yaml")["spec"]["analysis"]["webhooks"][0]["metadata"];
        assert_eq!(webhook["type"], "bash");
        let command = webhook["cmd"].as_str().expect("a command");
        let log = ends(|| said(shop.bash(command, &from_cron_job(&objects))), Some(0));
        assert!(log.contains("were dropped as 1 pod ended"), "{log}");

        // Started by hand, with a limit that the app cannot meet.
        let mut objects = gate("base");
        shop.apply(&objects);
        let cron_job = objects.iter_mut().find(|object| object["kind"] == "CronJob").expect("a CronJob");
        let args = "/spec/jobTemplate/spec/template/spec/containers/0/args";
        let args = cron_job.pointer_mut(args).and_then(Value::as_array_mut).expect("arguments");
        args.push("--set=expect.terminations.min=9".into());
        let script = root().join("charts/gate/base/gate.sh");
        let script = format!("{} --namespace default", script.display());
        ends(|| said(shop.bash(&script, &from_cron_job(&objects))), Some(1));
    });
}

#[test]
fn argo_gate_evicts_only_new_pods() {
    measured(|| {
        let _turn = turn();
        let shop = Shop::open();
        let objects = gate("argo-rollouts");
        shop.apply(&objects);
        let template = of_kind(&objects, "AnalysisTemplate");
        let rollout = text("argo-rollouts/rollout.yaml");
        let analysis = &rollout["spec"]["strategy"]["blueGreen"]["prePromotionAnalysis"];
        assert_eq!(analysis["templates"][0]["templateName"], template["metadata"]["name"]);

        // Arguments are resolved as in Argo Rollouts: the Rollout's arguments, or else the template's own.
        let metric = &template["spec"]["metrics"][0];
        let mut spec = metric["provider"]["job"]["spec"].to_string();
        for arg in template["spec"]["args"].as_array().expect("arguments") {
            let name = arg["name"].as_str().expect("a name");
            let given =
                analysis["args"].as_array().expect("arguments").iter().find(|given| given["name"] == name);
            let value = match given.unwrap_or(arg) {
                given if given["valueFrom"]["podTemplateHashValue"] == "Latest" => HASH,
                // This cluster has only one Service.
                given if given["value"] == "web-preview" => "web",
                given => given["value"].as_str().expect("a value"),
            };
            spec = spec.replace(&format!("{{{{args.{name}}}}}"), value);
        }
        assert!(!spec.contains("{{"), "{spec}");
        let job = job("analysis-run", serde_json::from_str(&spec).expect("JSON"));
        let log = ends(|| shop.run(&job), "Complete");
        assert!(log.contains(&format!("app=web,rollouts-pod-template-hash={HASH}")), "{log}");
    });
}

#[test]
fn helm_test_job_counts_drops() {
    measured(|| {
        let _turn = turn();
        let shop = Shop::open();
        let values = root().join("charts/rolldrop/ci/helm-test-values.yaml");
        let values = fs::read_to_string(values).expect("values").replace("duration: 120s", "duration: 20s");
        let objects = chart::objects(&(values + "extraArgs: [--max-busy=100%]\n"));
        let test = of_kind(&objects, "Job");
        assert_eq!(test["metadata"]["annotations"]["helm.sh/hook"], "test");
        shop.apply(&objects);
        let log = ends(|| shop.run(test), "Complete");
        assert!(log.contains("were dropped as 2 pods ended"), "{log}");
    });
}

#[test]
fn ci_scripts_parse_and_are_executable() {
    for script in
        ["charts/gate/base/gate.sh", ".github/actions/rolldrop/install", ".github/actions/rolldrop/measure"]
    {
        let path: &Path = &root().join(script);
        let mode = fs::metadata(path).expect(script).permissions().mode();
        assert_eq!(mode & 0o111, 0o111, "{script}");
        let checked = Command::new("bash").arg("-n").arg(path).status().expect("bash starts");
        assert!(checked.success(), "{script}");
    }
}
