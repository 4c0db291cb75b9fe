//! `rolldrop inject`: what it writes runs, on a cluster and in a scenario.

use std::collections::BTreeSet;
use std::process::Command;

use rolldrop_record::EventKind;
use rolldrop_record::event::ProxyPhase;
use serde_json::{Value, json};

use crate::harness::{Rolldrop, fed};
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

/// What `rolldrop inject ARGS...` writes when it reads this.
fn inject(args: &[&str], input: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rolldrop"));
    let output = fed(command.arg("inject").args(args), input);
    assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

#[test]
fn what_kubectl_applies_runs_behind_the_sidecar_until_it_is_taken_out() {
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
    assert_eq!(answer(18081, "/readyz"), "ok\n", "the admin port asks the app's readiness path");

    let live = kubectl.ok("get deployment/web service/web -o yaml");
    kubectl.apply(&inject(&["--uninject"], &live));
    kubectl.ok(ROLLED_OUT);
    kubectl.until(ports, |said| said == "8080 8080/true");
    assert_eq!(inject(&["--uninject"], &with_sidecar), SHOP);
}

#[test]
fn the_pods_of_every_kind_run_with_the_sidecar() {
    let kubectl = Kubectl::in_namespace("inject-kinds");
    for kind in ["ReplicaSet", "StatefulSet", "DaemonSet", "Pod"] {
        let name = kind.to_lowercase();
        let (workload, service) = SHOP.split_once("---\n").expect("two documents");
        let mut object: Value = serde_saphyr::from_str(workload).expect("YAML");
        object["kind"] = kind.into();
        object["metadata"]["name"] = name.as_str().into();
        object["spec"]["template"]["metadata"]["labels"]["kind"] = name.as_str().into();
        object["spec"]["selector"]["matchLabels"]["kind"] = name.as_str().into();
        // What controllers that this cluster has not would make of it.
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
fn a_scenario_can_ask_for_the_sidecar() {
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

/// The hook is a command in the sidecar's container, on either dataplane.
#[test]
fn the_sidecars_hook_marks_the_end_of_each_pod_and_of_no_other() {
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

#[test]
fn what_cannot_have_the_sidecar_is_refused() {
    let finished = Rolldrop::new(["inject", "-f", "none.yaml"]).finish().expect_code(2);
    assert!(finished.stderr().contains("failed to read none.yaml"), "{finished}");
    let service = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\n";
    let finished =
        Rolldrop::new(["inject", "-f", "web.yaml"]).file("web.yaml", service).finish().expect_code(2);
    assert!(finished.stderr().contains("no Pod, Deployment"), "{finished}");
    assert_eq!(finished.stdout(), "");
    let old = Rolldrop::new(["inject", "--kubernetes-version", "1.28"]).finish().expect_code(2);
    assert!(old.stderr().contains("native sidecars need Kubernetes 1.29 or later"), "{old}");
}
