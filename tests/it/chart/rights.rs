//! The chart's Role must grant exactly the permissions that the program's plan needs.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{objects, of_kind, template};
use crate::harness::Rolldrop;
use crate::kubectl::{Kubectl, ROLLED_OUT, SharedCluster};

/// Permission for an operation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Right {
    /// Namespace of the permission; `None` means all namespaces, or cluster-scoped objects.
    namespace: Option<String>,
    group: String,
    /// Name of the resource, including the subresource.
    resource: String,
    verb: String,
    /// Name of the only object that it covers; `None` means any object.
    name: Option<String>,
}

impl Right {
    /// Returns true if this permission includes the other one.
    fn covers(&self, other: &Self) -> bool {
        let same = |right: &Self| (right.group.clone(), right.resource.clone(), right.verb.clone());
        same(self) == same(other)
            && (self.namespace.is_none() || self.namespace == other.namespace)
            && (self.name.is_none() || self.name == other.name)
    }
}

/// Returns the permission that a call needs; `None` for calls that anyone may make, such as the version request.
fn of_call(line: &str) -> Option<Right> {
    let mut words = line.split_whitespace().skip(1);
    let (method, path) = (words.next()?, words.next()?);
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let mut parts = path.trim_start_matches('/').split('/');
    let group = match parts.next()? {
        "api" => String::new(),
        "apis" => parts.next()?.to_owned(),
        _ => return None,
    };
    let known = |part: &str| (!part.starts_with('{')).then(|| part.to_owned());
    let mut rest: Vec<&str> = parts.skip(1).collect();
    let mut namespace = None;
    if rest.len() > 2 && rest[0] == "namespaces" {
        namespace = known(rest[1]);
        rest.drain(..2);
    }
    let (resource, name, subresource) = (*rest.first()?, rest.get(1), rest.get(2));
    let verb = match (method, name) {
        ("POST", _) => "create",
        ("PATCH", _) => "patch",
        ("DELETE", _) => "delete",
        _ if query == "watch=true" => "watch",
        (_, Some(_)) => "get",
        (_, None) => "list",
    };
    Some(Right {
        namespace,
        group,
        resource: subresource.map_or_else(|| resource.to_owned(), |sub| format!("{resource}/{sub}")),
        verb: verb.to_owned(),
        name: name.and_then(|name| known(name)),
    })
}

/// Returns the permissions that the Roles and ClusterRoles grant.
fn of_chart(values: &Value) -> BTreeSet<Right> {
    let objects = objects(&values.to_string());
    let texts = |list: &Value| -> Vec<String> {
        list.as_array()
            .into_iter()
            .flatten()
            .map(|text| text.as_str().expect("a string").to_owned())
            .collect()
    };
    let mut rights = BTreeSet::new();
    for role in of_kind(&objects, "Role").chain(of_kind(&objects, "ClusterRole")) {
        let namespace = role["metadata"]["namespace"].as_str().map(str::to_owned);
        for rule in role["rules"].as_array().expect("rules") {
            let names = texts(&rule["resourceNames"]);
            let names: Vec<_> =
                if names.is_empty() { vec![None] } else { names.into_iter().map(Some).collect() };
            for group in texts(&rule["apiGroups"]) {
                for resource in texts(&rule["resources"]) {
                    for verb in texts(&rule["verbs"]) {
                        rights.extend(names.iter().map(|name| Right {
                            namespace: namespace.clone(),
                            group: group.clone(),
                            resource: resource.clone(),
                            verb: verb.clone(),
                            name: name.clone(),
                        }));
                    }
                }
            }
        }
    }
    rights
}

/// Returns the specifications of scenarios, one for each feature that needs permissions of its own.
fn specs() -> Vec<(&'static str, Value)> {
    let disrupt = |disruption: Value| json!({"target": {"service": "web"}, "disruptions": [disruption]});
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "own"},
        "spec": {"selector": {"app": "own"}, "ports": [{"port": 80, "targetPort": 8080}]}});
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "own"},
    "spec": {"selector": {"matchLabels": {"app": "own"}}, "template": {
        "metadata": {"labels": {"app": "own"}},
        "spec": {"containers": [{"name": "app", "image": "x", "ports": [{"containerPort": 8080}]}]}}}});
    let ingress = json!({"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": {"name": "own"},
        "spec": {"defaultBackend": {"service": {"name": "own", "port": {"number": 80}}}}});
    let notes = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "notes"}});
    let own = json!([{"inline": service}, {"inline": deployment}, {"inline": ingress}]);
    let inject = json!({"inject": true});
    vec![
        ("watching", json!({"target": {"service": "web"}})),
        ("watching from a node", json!({"target": {"service": "web", "node": "node-2"}})),
        ("load from the cluster", json!({"target": {"service": "web"}, "load": {"from": "cluster"}})),
        (
            "load from two pods",
            json!({"target": {"service": "web"}, "load": {"from": "cluster", "job": {"workers": 2}}}),
        ),
        ("watching a URL", json!({"target": {"url": "http://shop.example/"}})),
        ("deletePod", disrupt(json!({"at": "1s", "action": "deletePod", "selector": "app=web"}))),
        ("evict", disrupt(json!({"at": "1s", "action": "evict", "selector": "app=web"}))),
        (
            "rollingRestart",
            disrupt(json!({"at": "1s", "action": "rollingRestart", "workload": "deploy/web"})),
        ),
        (
            "scale",
            disrupt(json!({"at": "1s", "action": "scale", "workload": "deployment/web", "replicas": 3})),
        ),
        (
            "setImage",
            disrupt(json!({"at": "1s", "action": "setImage", "workload": "deployment/web",
                "container": "app", "image": "host/sleep:2", "for": "2s"})),
        ),
        (
            "patch",
            disrupt(
                json!({"at": "1s", "action": "patch", "type": "merge", "patch": {"spec": {"paused": true}},
                "object": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}}),
            ),
        ),
        ("relabel", disrupt(json!({"at": "1s", "action": "relabel", "selector": "app=web"}))),
        ("observe", disrupt(json!({"at": "0s", "action": "observe", "until": "rolloutComplete"}))),
        ("drain", disrupt(json!({"at": "1s", "action": "drain", "node": "node-2", "allowOutage": true}))),
        ("the sidecar beside live pods", json!({"target": {"service": "web"}, "sidecar": inject})),
        ("the sidecar behind a URL", json!({"target": {"url": "http://shop.example/"}, "sidecar": inject})),
        (
            "the sidecar of a live workload beside manifests",
            json!({"target": {"url": "http://shop.example/"}, "manifests": own,
                "sidecar": {"inject": true, "workloads": ["deploy/web"]}}),
        ),
        (
            "manifests with the sidecar",
            json!({"target": {"service": "own"}, "sidecar": inject, "manifests": own}),
        ),
        (
            "a manifest beside live pods with the sidecar",
            json!({"target": {"service": "web"}, "manifests": [{"inline": notes}], "sidecar": inject}),
        ),
    ]
}

fn scenario(spec: &Value) -> Value {
    let head = json!({"apiVersion": "rolldrop.dev/v1", "kind": "Scenario", "metadata": {"name": "rights"}});
    let mut scenario = head;
    scenario["spec"] = spec.clone();
    scenario["spec"]["load"]["rate"] = 50.into();
    scenario["spec"]["load"]["duration"] = "10s".into();
    scenario
}

const WEB: &str = "\
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      nodeSelector: {kubernetes.io/hostname: node-2}
      containers: [{name: app, image: host/sleep, command: [sleep, '1000'], ports: [{containerPort: 8080}]}]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: NodePort, selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: web}
spec: {defaultBackend: {service: {name: web, port: {number: 80}}}}
";

#[test]
fn chart_role_grants_exactly_planned_calls() {
    let kubectl = Kubectl::in_namespace("rights");
    kubectl.apply(WEB);
    kubectl.ok(ROLLED_OUT);
    let namespace = kubectl.namespace();
    let kubeconfig = SharedCluster::get().kubeconfig();
    let plan = |spec: &Value| -> BTreeSet<Right> {
        let run = Rolldrop::run(&format!("{}\n", scenario(spec))).args(["--dry-run", "-n", namespace]);
        let planned = run.on_cluster(&kubeconfig).finish().expect_code(0);
        planned.stdout().lines().filter_map(of_call).collect()
    };
    for (what, spec) in specs() {
        let planned = plan(&spec);
        assert!(planned.len() > 6, "{what}: {planned:#?}");
        let mut values = json!({"namespace": namespace, "scenario": scenario(&spec),
            "rbac": {"clusterInfo": true, "proxies": true}});
        if let Some(target) = values["scenario"]["spec"]["target"].as_object_mut() {
            // A null removes the chart's default.
            target.entry("service").or_insert(Value::Null);
        }
        let granted = of_chart(&values);
        for call in &planned {
            assert!(
                granted.iter().any(|right| right.covers(call)),
                "{what}: not granted: {call:?}\n{granted:#?}"
            );
        }
        for right in &granted {
            // The run finds out only later which of these exist.
            let is_used = planned.iter().any(|call| right.covers(call)) || {
                let others = ["statefulsets", "daemonsets"];
                spec["sidecar"]["inject"] == true && others.contains(&right.resource.as_str())
            };
            assert!(is_used, "{what}: granted but not needed: {right:?}\n{planned:#?}");
        }

        // The Role allows reading kube-proxy's mode by default; other optional permissions are left out.
        let in_kube_system = |right: &Right| right.namespace.as_deref() == Some("kube-system");
        values["rbac"] = json!({});
        assert_eq!(of_chart(&values).iter().filter(|right| in_kube_system(right)).count(), 5, "{what}");
        values["rbac"] = json!({"serviceProxy": false});
        let least = of_chart(&values);
        assert!(least.is_subset(&granted), "{what}");
        assert!(!least.iter().any(in_kube_system), "{what}");
    }
}

/// No scenario here has a StatefulSet or a DaemonSet, so no plan names them.
#[test]
fn role_grants_each_workload_by_name() {
    for (kind, resource) in
        [("deploy", "deployments"), ("statefulset", "statefulsets"), ("daemonset", "daemonsets")]
    {
        let scale = json!({"at": "1s", "action": "scale", "workload": format!("{kind}/db"), "replicas": 3});
        let spec = json!({"target": {"service": "web"}, "disruptions": [scale]});
        let rights = of_chart(&json!({"namespace": "shop", "scenario": scenario(&spec)}));
        let granted: BTreeSet<(String, String)> = rights
            .into_iter()
            .filter(|right| right.name.as_deref() == Some("db"))
            .map(|right| (right.resource, right.verb))
            .collect();
        let expected = ["get", "patch"].map(|verb| (resource.to_owned(), verb.to_owned()));
        assert_eq!(granted, BTreeSet::from(expected), "{kind}");
    }
}

/// Reads the chart's rights alone: the pods of all tests on the shared cluster's node decide if such a drain is refused.
#[test]
fn limited_drain_may_list_budgets_everywhere() {
    for (allow_outage, namespaces) in [(true, vec![]), (false, vec![None, Some("shop".to_owned())])] {
        let drain = json!({"at": "1s", "action": "drain", "node": "node-2", "allowOutage": allow_outage});
        let spec = json!({"target": {"service": "web"}, "disruptions": [drain]});
        let rights = of_chart(&json!({"namespace": "shop", "scenario": scenario(&spec)}));
        let budgets = rights.into_iter().filter(|right| right.resource == "poddisruptionbudgets");
        assert_eq!(budgets.map(|right| right.namespace).collect::<Vec<_>>(), namespaces, "{allow_outage}");
    }
}

#[test]
fn role_names_kinds_as_their_paths_do() {
    for (kind, resource) in [
        ("Gateway", "gateways"),
        ("HTTPProxy", "httpproxies"),
        ("Ingress", "ingresses"),
        ("Mesh", "meshes"),
        ("Endpoints", "endpoints"),
    ] {
        let object = json!({"apiVersion": "x.example/v1", "kind": kind, "name": "edge"});
        let patch = json!({"at": "1s", "action": "patch", "patch": {}, "object": object});
        let spec = json!({"target": {"service": "web"}, "disruptions": [patch]});
        let rights = of_chart(&json!({"namespace": "shop", "scenario": scenario(&spec)}));
        let named = rights.iter().find(|right| right.name.as_deref() == Some("edge"));
        assert_eq!(named.map(|right| right.resource.as_str()), Some(resource));
    }
}

#[test]
fn chart_lists_every_action() {
    let bogus = json!({"target": {"service": "web"}, "disruptions": [{"at": "1s", "action": "none"}]});
    let refused = Rolldrop::run(&format!("{}\n", scenario(&bogus))).finish().expect_code(2);
    let text = refused.stderr();
    let known: Vec<&str> = text.split("expected one of").nth(1).expect("the actions").split('`').collect();
    let actions: Vec<&str> = known.into_iter().skip(1).step_by(2).collect();
    assert!(actions.contains(&"deletePod"), "{refused}");
    for action in actions {
        if !specs().iter().any(|(what, _)| *what == action) {
            let disruption = json!({"at": "1s", "action": action, "node": "n", "selector": "a=b"});
            let values = json!({"scenario": {"spec": {"disruptions": [disruption]}}});
            let why = template(&values.to_string()).expect_err("an action without a case above");
            let is_meant =
                why.contains("is for the embedded cluster") || why.contains("exec needs a program");
            assert!(is_meant, "{action}: {why}");
        }
    }
}
