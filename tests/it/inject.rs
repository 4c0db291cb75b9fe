//! `rolldrop inject`: its output works on a cluster and in a scenario.

use std::collections::BTreeSet;
use std::process::Command;

use rolldrop_record::EventKind;
use rolldrop_record::event::ProxyPhase;
use serde_json::{Value, json};

use crate::harness::{Rolldrop, fed, root};
use crate::kubectl::{Kubectl, ROLLED_OUT};
use crate::machine::measured;
use crate::runs::{self, Dataplane};

const SHOP: &str = "\
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
        - name: app # answers
          image: rolldrop
          args: [workload, --listen, \"$(POD_IP):8080\"]
          env:
            - {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
          ports: [{name: http, containerPort: 8080}]
          readinessProbe: {httpGet: {path: /readyz, port: http}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  selector: {app: web}
  ports: [{name: named, port: 80, targetPort: http}, {name: numbered, port: 81, targetPort: 8080}]
";

/// Returns the output of `rolldrop inject ARGS...` for this input.
pub(crate) fn inject(args: &[&str], input: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rolldrop"));
    let output = fed(command.arg("inject").args(args), input);
    assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

#[test]
fn injected_app_uses_sidecar_until_uninjected() {
    let kubectl = Kubectl::in_namespace("inject");
    let with_sidecar = inject(&[], SHOP);
    let ports = "get endpointslices -l kubernetes.io/service-name=web \
                 -o jsonpath={.items[*].ports[*].port}/{.items[*].endpoints[*].conditions.ready}";
    kubectl.apply(&with_sidecar);
    kubectl.ok(ROLLED_OUT);
    kubectl.until(ports, |said| said == "18080 18080/true");
    let pod = kubectl.field("pods -l app=web", ".items[0].metadata.name");
    let answer = |port: u16, path: &str| {
        let namespace = kubectl.namespace();
        kubectl.ok(&format!("get --raw /api/v1/namespaces/{namespace}/pods/{pod}:{port}/proxy{path}"))
    };
    assert_eq!(answer(18080, "/"), answer(8080, "/"));
    assert_eq!(answer(18081, "/readyz"), "ok\n", "the admin port queries the app's readiness path");

    let live = kubectl.ok("get deployment/web service/web -o yaml");
    kubectl.apply(&inject(&["--uninject"], &live));
    kubectl.ok(ROLLED_OUT);
    kubectl.until(ports, |said| said == "8080 8080/true");
    assert_eq!(inject(&["--uninject"], &with_sidecar), SHOP);
}

#[test]
fn every_workload_kind_runs_with_sidecar() {
    let kubectl = Kubectl::in_namespace("inject-kinds");
    for kind in ["ReplicaSet", "StatefulSet", "DaemonSet", "Pod"] {
        let name = kind.to_lowercase();
        let (workload, service) = SHOP.split_once("---\n").expect("two documents");
        let mut object: Value = serde_saphyr::from_str(workload).expect("YAML");
        object["kind"] = kind.into();
        object["metadata"]["name"] = name.as_str().into();
        object["spec"]["template"]["metadata"]["labels"]["kind"] = name.as_str().into();
        object["spec"]["selector"]["matchLabels"]["kind"] = name.as_str().into();
        // This cluster lacks the controller, so the test creates the pod that the controller would create.
        let pod_of = |object: &Value| {
            let template = &object["spec"]["template"];
            let mut metadata = template["metadata"].clone();
            metadata["name"] = format!("{name}-0").into();
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})
        };
        if kind == "Pod" {
            object = pod_of(&object);
        }
        let there = inject(&[], &format!("{object}\n---\n{service}"));
        let object = there.split("---").next().expect("a first document");
        match kind {
            "ReplicaSet" | "Pod" => kubectl.apply(object),
            _ => kubectl.apply(&pod_of(&serde_saphyr::from_str(object).expect("YAML")).to_string()),
        };
        let ready = format!(
            "get pods -l kind={name} -o jsonpath={{.items[*].status.containerStatuses[0].ready}}/{{.items[*].status.initContainerStatuses[0].ready}}"
        );
        kubectl.until(&ready, |said| said == "true/true");
        let pod = kubectl.field(&format!("pods -l kind={name}"), ".items[0].metadata.name");
        let namespace = kubectl.namespace();
        let answer = |port: u16| {
            kubectl.ok(&format!("get --raw /api/v1/namespaces/{namespace}/pods/{pod}:{port}/proxy/"))
        };
        assert_eq!(answer(18080), answer(8080), "{kind}");
    }
}

#[test]
fn scenario_setting_injects_sidecar() {
    measured(|| {
        let disruptions = "disruptions=[{at: 2s, action: deletePod, selector: app=web, count: 1}]";
        let more = ["--set", "sidecar.inject=true", "--set", disruptions, "-d", "6s", "--set", "expect={}"];
        let run = runs::measure("no-sidecar", Dataplane::Kernel, &more);
        assert_eq!(run.result.terminations.len(), 1, "{}", run.finished);
        let answered = run.records.requests.iter().filter(|row| row.pod.is_some()).count();
        assert!(answered > 0 && run.records.served.len() >= answered, "{}", run.finished);
        run.expect_valid();
    });
}

/// On both dataplanes, the hook is a command in the sidecar's container.
#[test]
fn sidecar_hook_marks_each_terminated_pod() {
    for run in runs::naive_exit() {
        let marked: BTreeSet<&str> = run
            .records
            .events
            .iter()
            .filter_map(|event| match &event.kind {
                EventKind::ProxyPhase { pod, phase: ProxyPhase::PreStop } => Some(pod.as_str()),
                _ => None,
            })
            .collect();
        let ended = run.result.terminations.iter().map(|termination| termination.pod.as_str());
        let missing: Vec<&str> = ended.filter(|pod| !marked.contains(pod)).collect();
        assert!(
            missing.is_empty() && !marked.is_empty(),
            "{missing:?} not among {marked:?}\n{}",
            run.finished
        );
    }
}

/// Tests one small file for each kind of file that people use (`tests/it/kinds`), with its expected result.
#[test]
fn inject_handles_each_file_kind() {
    let folder = root().join("tests/it/kinds");
    let rolldrop = || Command::new(env!("CARGO_BIN_EXE_rolldrop"));
    let expected = std::fs::read_to_string(folder.join("expected.tsv")).expect("the list");
    let mut listed = BTreeSet::from(["expected.tsv".to_owned()]);
    for line in expected.lines().skip(1) {
        let [file, arguments, outcome, said] = line.split('\t').collect::<Vec<_>>().try_into().expect(line);
        listed.insert(file.to_owned());
        let arguments = ["-f", file].into_iter().chain(arguments.split_whitespace());
        let output =
            rolldrop().arg("inject").args(arguments.clone()).current_dir(&folder).output().expect("output");
        let stderr = String::from_utf8(output.stderr).expect("UTF-8");
        let about = format!("{file}: {}\n{stderr}", output.status);
        assert!(stderr.contains(&said.replace("FILE", file)), "{about}");
        let (outcome, workloads) = outcome.split_once(' ').unwrap_or((outcome, ""));
        if outcome == "refused" {
            assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(2), &[][..]), "{about}");
            assert!(stderr.starts_with(&format!("rolldrop: {file}:")), "{about}");
            continue;
        }
        let there = String::from_utf8(output.stdout).expect(&about);
        let lines = stderr
            .lines()
            .filter_map(|line| line.strip_prefix("rolldrop: ")?.split_once(": traffic for port "));
        let reached = lines.filter(|(_, what)| what.contains("goes through the sidecar"));
        let reached: Vec<&str> = reached.map(|(workload, _)| workload).collect();
        assert_eq!(reached, workloads.split(' ').collect::<Vec<_>>(), "{about}{there}");
        assert_eq!(stderr.contains("rewritten"), outcome == "rewritten", "{about}");
        if outcome == "edited" {
            let before = std::fs::read_to_string(folder.join(file)).expect(file);
            assert_eq!(inject(&["--uninject"], &there), before, "{file}");
            let again = [&["-f", "-"], &arguments.skip(2).collect::<Vec<_>>()[..]].concat();
            assert_eq!(inject(&again, &there), there, "{file}: a second injection changes nothing");
        } else {
            assert!(there.contains("defaultMode: 420"), "an octal number keeps its value: {there}");
        }
    }
    let files = std::fs::read_dir(&folder).expect("files").map(|file| file.expect("a file").file_name());
    let files: BTreeSet<String> = files.map(|name| name.into_string().expect("UTF-8")).collect();
    assert_eq!(files, listed);
    assert!(listed.len() > 40);
}

#[test]
fn inject_refuses_files_without_workload() {
    let finished = Rolldrop::new(["inject", "-f", "none.yaml"]).finish().expect_code(2);
    assert!(finished.stderr().contains("failed to read none.yaml"), "{finished}");
    let service = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\n";
    let finished =
        Rolldrop::new(["inject", "-f", "web.yaml"]).file("web.yaml", service).finish().expect_code(2);
    assert!(finished.stderr().contains("web.yaml: no Pod, Deployment"), "{finished}");
    assert_eq!(finished.stdout(), "");
    let endless = Rolldrop::new(["inject", "-f", "/dev/zero"]).finish().expect_code(2);
    assert!(endless.stderr().contains("larger than 64 MiB: split it"), "{endless}");
    let old = Rolldrop::new(["inject", "--kubernetes-version", "1.28"]).finish().expect_code(2);
    assert!(old.stderr().contains("native sidecars need Kubernetes 1.29 or later"), "{old}");
}
