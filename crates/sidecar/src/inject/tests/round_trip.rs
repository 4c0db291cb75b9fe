//! Round trips: adding and removing the sidecar preserves handwritten files byte for byte, and the objects of any file.

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{Pod, Service};
use proptest::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::*;

const KUBECTL_GET: &str = include_str!("samples/kubectl-get.yaml");
const KUBECTL_GET_JSON: &str = include_str!("samples/kubectl-get.json");

/// Returns every object in YAML or JSON text.
fn said(text: &str) -> Vec<Value> {
    let manifests = Manifests::parse("shop.yaml", text).expect("manifests");
    manifests.objects().into_iter().map(|object| object.value).collect()
}

/// Adds and removes the sidecar, for every version, and returns the output with the sidecar.
fn comes_back(text: &str) -> Output {
    let before_names = InjectOptions { kubernetes: KubernetesVersion::NATIVE_SIDECARS, ..options() };
    for options in [&before_names, &options()] {
        let there = inject(text, options).expect("manifests");
        assert!(there.notes.iter().all(|note| !note.contains("rewritten")), "{:?}", there.notes);
        assert_ne!(there.text, text);
        assert_eq!(inject(&there.text, options).expect("manifests").text, there.text, "not idempotent");
        assert_eq!(uninject(&there.text).expect("manifests").text, text);
        let mut objects = said(text);
        inject_into(&mut objects, options).expect("manifests");
        assert_eq!(said(&there.text), objects);
    }
    injected(text)
}

#[test]
fn tool_output_round_trips_exactly() {
    let samples = [
        KUBECTL_GET,
        KUBECTL_GET_JSON,
        include_str!("samples/helm-template.yaml"),
        include_str!("samples/kustomize.yaml"),
        include_str!("samples/anchors.yaml"),
        include_str!("samples/block-scalars.yaml"),
        include_str!("samples/brackets.yaml"),
    ];
    for sample in samples {
        let of_windows = sample.replace('\n', "\r\n");
        for text in [
            sample,
            sample.trim_end(),
            &of_windows,
            &format!("\u{feff}{sample}"),
            &format!("\u{feff}{of_windows}"),
        ] {
            comes_back(text);
        }
    }
}

#[test]
fn names_keep_their_quotes() {
    for quote in ["\"", "'"] {
        comes_back(&SHOP.replace("name: http # as", &format!("name: {quote}http{quote} # as")));
    }
}

#[test]
fn json_keeps_its_layout() {
    let there = comes_back(KUBECTL_GET_JSON).text;
    // The sidecar's lines are indented like all others.
    let sidecar = "                        \"initContainers\": [\n                            {\n                                \"args\": [\n";
    assert!(there.contains(sidecar), "{there}");
    let compact = serde_json::from_str::<Value>(KUBECTL_GET_JSON).expect("JSON").to_string();
    comes_back(&compact);
    let several = format!("{KUBECTL_GET_JSON}{}\n", compact.replace("\"web\"", "\"db\""));
    comes_back(&several);
    // Braces alone do not make it JSON.
    comes_back(
        "{apiVersion: v1, kind: Pod, metadata: {name: web}, spec: {containers: [{name: app, ports: [{containerPort: 80}]}]}}\n",
    );
    let error = error("{\"kind\": \"Pod\",\n \"oops}");
    assert_eq!(error, "shop.yaml:2: this JSON ends too early: close its quotes and brackets");
}

#[test]
fn empty_fields_survive_round_trip() {
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: web, labels: {app: web}}\nspec:\n  initContainers: []\n  containers: [{name: app, ports: [{containerPort: 80}]}]\n---\n";
    let service = "apiVersion: v1\nkind: Service\nmetadata:\n  name: web\n  annotations: {}\nspec: {selector: {app: web}, ports: [{port: 80}]}\n";
    for (from, to) in [
        ("", ""),
        ("[]", "[ ]"),
        ("{}", "\n    {}"),
        ("  initContainers: []\n", ""),
        ("\n  annotations: {}", ""),
    ] {
        comes_back(&format!("{pod}{service}").replacen(from, to, 1));
    }
    let braces = "{\"apiVersion\": \"v1\", \"kind\": \"Pod\", \"metadata\": {\"name\": \"web\"}, \"spec\": {\"initContainers\": [], \"containers\": [{\"name\": \"app\", \"ports\": [{\"containerPort\": 80}]}]}}";
    comes_back(braces);
    comes_back(&braces.replace("\"initContainers\": [], ", ""));
}

/// A file in many handwritten styles: several documents with a directive and end markers, comments everywhere, flow and
/// block style, lists at the depth of their key and deeper, existing init containers, hooks and hostPort.
const AWKWARD: &str = "\
%YAML 1.2
---
# All in one line.
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, namespace: shop, labels: {app: db}}
spec: {serviceName: db, selector: {matchLabels: {app: db}}, template: {metadata: {labels: {app: db}}, spec: {containers: [{name: db, image: 'db:1', ports: [{name: sql, containerPort: 5433}], livenessProbe: {tcpSocket: {port: sql}}}]}}}
---
apiVersion: v1
kind: Service
metadata: {name: db, namespace: shop}
spec: {clusterIP: None, selector: {app: db}, ports: [{port: 5433, targetPort: sql}]}
---
apiVersion: v1
kind: Service
metadata: {name: db-lb, namespace: shop}
spec: {selector: {app: db}, ports: [{port: 5433, targetPort: sql}]}
...
---

# first comment

apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: agent
spec:
  selector:
    matchLabels:
      app: agent
  template:
    metadata:
      labels:
        app: agent
    spec:
      # before init
      initContainers:
      - name: prepare # trailing
        image: busybox
        command: [\"sh\", \"-c\", \"echo 'hi'\"]

      # between
      - image: envoy
        name: envoy
        restartPolicy: Always
      containers:
      - name: agent
        image: \"agent:1\"
        ports:
        - containerPort: 8080
          hostPort: 80
          name: web
        - containerPort: 9090
          name: metrics
        startupProbe:
          httpGet:
            path: /started
            port: web
        readinessProbe:
          httpGet:
            path: /ready
            port: web
        livenessProbe:
          httpGet: {path: /live, port: metrics}
        lifecycle:
          preStop:
            exec:
              command: [sh, -c, \"sleep 5\"]
          postStart:
            httpGet: {port: web, path: /hello}
      - name: log
        image: log
        args:
        - |
          several
            lines

        ports:
        - {name: web2, containerPort: 8081}
---
apiVersion: v1
kind: Service
metadata:
  name: one
  annotations:
    note: |
      several
      lines
spec:
  ports:
  - port: 80
    name: web
    targetPort: web
    protocol: TCP
  - name: dns
    port: 81
    protocol: UDP
    targetPort: 5353
  - name: dns-tcp
    port: 81
    protocol: TCP
    targetPort: 8080
  selector:
    app: agent
---
apiVersion: v1
kind: Service
metadata:
    name: two
spec:
    ports:
      - port: 8080
    selector:
        app: agent
---
apiVersion: v1
kind: List
items:
  - apiVersion: apps/v1
    kind: ReplicaSet
    metadata: {name: worker}
    spec: {selector: {matchLabels: {app: w}}, template: {metadata: {labels: {app: w}}, spec: {containers: [{name: w, image: w}]}}}
  # the end, and no line end";

#[test]
fn awkward_manifests_round_trip_exactly() {
    for text in [AWKWARD.to_owned(), format!("{AWKWARD}\n"), AWKWARD.replace('\n', "\r\n")] {
        comes_back(&text);
    }
    let output = injected(AWKWARD);
    let said: Vec<Value> = serde_saphyr::from_multiple(&output.text).expect("YAML");
    let agent = &said[3]["spec"]["template"]["spec"];
    let names =
        |list: &Value| list.as_array().map(|all| all.iter().map(|c| c["name"].clone()).collect::<Vec<_>>());
    assert_eq!(
        names(&agent["initContainers"]),
        Some(vec!["prepare".into(), "envoy".into(), "rolldrop".into()])
    );
    let app = &agent["containers"][0];
    assert_eq!(names(&app["ports"]), Some(vec!["rolldrop-app".into(), "metrics".into()]));
    assert_eq!(app["livenessProbe"]["httpGet"]["port"], "metrics");
    for probe in [&app["startupProbe"], &app["readinessProbe"], &app["lifecycle"]["postStart"]] {
        assert_eq!(probe["httpGet"]["port"], "rolldrop-app");
    }
    assert_eq!(app["lifecycle"]["preStop"]["exec"]["command"][2], "sleep 5");
    let targets: Vec<_> =
        said[4]["spec"]["ports"].as_array().unwrap().iter().map(|p| &p["targetPort"]).collect();
    assert_eq!(
        targets,
        ["web", "5353", "18080"].map(|t| t.parse::<u64>().map_or(Value::from(t), Value::from)).each_ref()
    );
    insta::assert_snapshot!(output.notes.join("\n"), @"
    statefulset/db: traffic for port 5433 goes through the sidecar on port 18080; its admin port is 18081
    daemonset/agent: traffic for port 8080 goes through the sidecar on port 18080; its admin port is 18081
    hostPort 80 bypasses the sidecar in daemonset/agent
    service/db is headless: its clients choose the port and bypass the sidecar in statefulset/db
    shop.yaml:119: replicaset/worker is left unchanged: it declares no port, and no Service uses it: choose a port with --workload replicaset/worker --port N
    a pod with the sidecar accepts at most 470 new connections a second if clients close them first, because source ports run out; a sysctl more than doubles this (docs/inject.md, Source ports)
    ");
}

/// Generates a workload and its Service, with any of their parts present or missing.
fn shops() -> impl Strategy<Value = [Value; 2]> {
    let kinds = prop::sample::select(vec!["Pod", "Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"]);
    let extras = prop::collection::vec(any::<bool>(), 8);
    let target = prop::sample::select(vec![Value::Null, json!(8080), json!("http")]);
    (kinds, extras, target, 1..3u64, 0..3usize).prop_map(|(kind, extras, target, ports, containers)| {
        let mut app = json!({"name": "app", "image": "shop/web:1", "ports": [{"containerPort": 8080}]});
        let mut names = extras.iter().copied();
        let mut has = || names.next().unwrap_or_default();
        let is_named = has() || target == "http";
        let port = if is_named { json!("http") } else { json!(8080) };
        if is_named {
            app["ports"][0]["name"] = "http".into();
        }
        if has() {
            app["ports"]
                .as_array_mut()
                .unwrap()
                .insert(0, json!({"name": "metrics", "containerPort": 18080}));
        }
        if has() {
            app["readinessProbe"] = json!({"httpGet": {"path": "/ready", "port": port}, "periodSeconds": 1});
        }
        if has() {
            app["lifecycle"] =
                json!({"preStop": {"exec": {"command": ["sh", "-c", "sleep 3 # a\n\tb: [c"]}}});
        }
        let mut spec = json!({"containers": [app]});
        for number in 0..containers {
            spec["containers"]
                .as_array_mut()
                .unwrap()
                .push(json!({"name": format!("more-{number}"), "image": "x"}));
        }
        if has() {
            spec["initContainers"] = json!([{"name": "first", "image": "x", "restartPolicy": "Always"}]);
        }
        let mut metadata = json!({"labels": {"app": "web", "on": "yes", "n": "1"}});
        if has() {
            metadata["annotations"] = json!({"note": "several\nlines: \u{e9} \"'\n", "a": "b"});
        }
        let mut service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
            "spec": {"selector": {"app": "web"}, "ports": []}});
        if has() {
            service["metadata"]["annotations"] = json!({"note": "#"});
        }
        for number in 0..ports {
            let number = if target.is_null() { 8080 } else { 80 + number };
            let mut port = json!({"name": format!("p{number}"), "port": number, "targetPort": target});
            port.as_object_mut().unwrap().retain(|_, value| !value.is_null());
            service["spec"]["ports"].as_array_mut().unwrap().push(port);
            if target.is_null() {
                break;
            }
        }
        let workload = if kind == "Pod" {
            metadata["name"] = "web".into();
            json!({"apiVersion": "v1", "kind": kind, "metadata": metadata, "spec": spec})
        } else {
            json!({"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "web"}, "spec": {
                "selector": {"matchLabels": {"app": "web"}},
                "template": {"metadata": metadata, "spec": spec},
            }})
        };
        [workload, service]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn arbitrary_manifests_round_trip(shop in shops(), comment_at in any::<prop::sample::Index>()) {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": shop});
        let yaml = |value: &Value| serde_saphyr::to_string(value).expect("YAML");
        let documents = shop.iter().map(|object| format!("---\n{}", yaml(object))).collect::<String>();
        // Between two fields of the first object.
        let ends: Vec<_> = documents.match_indices("\nkind: ").map(|(at, _)| at).collect();
        let at = *comment_at.get(&ends);
        let commented = format!("{} # a comment\n# and one more\n{}", &documents[..at], &documents[at..]);
        for text in [
            documents.clone(), commented, documents.replace('\n', "\r\n"), yaml(&list),
            list.to_string(), format!("{list:#}"), format!("{list:#}").replace('\n', "\r\n"),
            shop.iter().map(|object| format!("--- {object}\n")).collect::<String>(),
        ] {
            comes_back(&text);
        }
    }
}

/// Checks that the API types have every field, because an unknown field would be lost.
fn is_known_whole<T: DeserializeOwned + Serialize>(object: &Value) {
    let typed: T = serde_json::from_value(object.clone()).expect("its fields have these types");
    assert_eq!(serde_json::to_value(typed).expect("JSON"), *object);
}

#[test]
fn injected_objects_fit_api_types() {
    let [deployment, service] = said(SHOP).try_into().expect("two objects");
    let secret = InjectOptions { admin_token: "admin".parse().ok(), ..options() };
    for kind in ["Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Pod"] {
        let mut workload = deployment.clone();
        workload["kind"] = kind.into();
        if kind == "DaemonSet" {
            workload["spec"].as_object_mut().unwrap().remove("replicas");
        }
        if kind == "Pod" {
            let template = workload["spec"]["template"].clone();
            workload = json!({"apiVersion": "v1", "kind": kind, "metadata": template["metadata"], "spec": template["spec"]});
        }
        for target in [json!("http"), json!(8080)] {
            let mut objects = [workload.clone(), service.clone()];
            objects[1]["spec"]["ports"][0]["targetPort"] = target;
            inject_into(&mut objects, &secret).expect("manifests");
            assert_ne!(objects[0], workload);
            match kind {
                "Deployment" => is_known_whole::<Deployment>(&objects[0]),
                "StatefulSet" => is_known_whole::<StatefulSet>(&objects[0]),
                "DaemonSet" => is_known_whole::<DaemonSet>(&objects[0]),
                "ReplicaSet" => is_known_whole::<ReplicaSet>(&objects[0]),
                _ => is_known_whole::<Pod>(&objects[0]),
            }
            is_known_whole::<Service>(&objects[1]);
        }
    }
}
