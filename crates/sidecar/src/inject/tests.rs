mod port_clashes;
mod round_trip;

use serde_json::json;

use super::annotated_object::BadWorkloadName;
use super::options::BadSecretKey;
use super::*;

const SHOP: &str = "\
# The shop's front.
apiVersion: apps/v1
kind: Deployment
metadata:
  name: web # its name
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata:
      labels: {app: web}
    spec:
      containers:
        # The app itself.
        - name: app
          image: shop/web:1.2
          ports:
            - name: http # as the Service says
              containerPort: 8080
          readinessProbe:
            httpGet: {path: /readyz, port: http}
          lifecycle:
            preStop: {sleep: {seconds: 5}}
      # Nothing after this.
---
# What leads there.
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  selector: {app: web}
  ports: [{name: http, port: 80, targetPort: http}]
";

fn options() -> InjectOptions {
    InjectOptions {
        image: "rolldrop:1".into(),
        port: None,
        kubernetes: KubernetesVersion::NAMED_SIDECAR_PORTS,
        admin_token: None,
        mode: None,
        max_connections: None,
        selection: Selection::Fit,
    }
}

fn inject(text: &str, options: &InjectOptions) -> Result<Output, InjectError> {
    super::inject("shop.yaml", text, options)
}

fn uninject(text: &str) -> Result<Output, InjectError> {
    super::uninject("shop.yaml", text)
}

fn injected(text: &str) -> Output {
    inject(text, &options()).expect("manifests")
}

fn error(text: &str) -> String {
    inject(text, &options()).expect_err("no manifests").to_string()
}

/// Injects with these options; returns the notes, and the names of the objects with the sidecar.
fn chosen(text: &str, options: &InjectOptions) -> (Vec<String>, Vec<String>) {
    let output = inject(text, options).expect("manifests");
    let objects = Manifests::parse("out.yaml", &output.text).expect("manifests").objects();
    let has_it = |object: &&ManifestObject| {
        template(&object.value).is_some_and(|pod| super::container::place(object, pod).is_some())
    };
    (output.notes, objects.iter().filter(has_it).map(ManifestObject::title).collect())
}

fn named(names: &[&str]) -> InjectOptions {
    let names = names.iter().map(|name| name.parse().expect("a name")).collect();
    InjectOptions { selection: Selection::Named(names), ..options() }
}

#[test]
#[expect(clippy::too_many_lines, reason = "a manifest before and after")]
fn named_port_moves_and_comments_stay() {
    let output = injected(SHOP);
    insta::assert_snapshot!(output.text, @"
    # The shop's front.
    apiVersion: apps/v1
    kind: Deployment
    metadata:
      name: web # its name
    spec:
      replicas: 3
      selector: {matchLabels: {app: web}}
      template:
        metadata:
          labels: {app: web}
          annotations:
            rolldrop.dev/sidecar: rolldrop:1
        spec:
          containers:
            # The app itself.
            - name: app
              image: shop/web:1.2
              ports:
                - name: rolldrop-app # as the Service says
                  containerPort: 8080
              readinessProbe:
                httpGet: {path: /readyz, port: rolldrop-app}
              lifecycle:
                preStop: {sleep: {seconds: 5}}
          initContainers:
            - args:
              - proxy
              - --listen=$(POD_IPS):18080
              - --upstream=$(POD_IP):8080
              - --app-ready-path=/readyz
              env:
              - name: POD_NAME
                valueFrom:
                  fieldRef:
                    fieldPath: metadata.name
              - name: POD_IP
                valueFrom:
                  fieldRef:
                    fieldPath: status.podIP
              - name: POD_IPS
                valueFrom:
                  fieldRef:
                    fieldPath: status.podIPs
              - name: ROLLDROP_ADMIN
                value: $(POD_IP):18081
              image: rolldrop:1
              lifecycle:
                preStop:
                  exec:
                    command:
                    - /rolldrop
                    - proxy-pre-stop
              name: rolldrop
              ports:
              - containerPort: 18080
                name: http
              - containerPort: 18081
                name: rolldrop-admin
              resources:
                limits:
                  memory: 256Mi
                requests:
                  cpu: 50m
                  memory: 32Mi
              restartPolicy: Always
              securityContext:
                allowPrivilegeEscalation: false
                capabilities:
                  drop:
                  - ALL
                readOnlyRootFilesystem: true
                runAsNonRoot: true
                runAsUser: 65532
                seccompProfile:
                  type: RuntimeDefault
          # Nothing after this.
    ---
    # What leads there.
    apiVersion: v1
    kind: Service
    metadata: {name: web}
    spec:
      selector: {app: web}
      ports: [{name: http, port: 80, targetPort: http}]
    ");
    insta::assert_snapshot!(
        output.notes.join("\n"),
        @"
    deployment/web: traffic for port 8080 goes through the sidecar on port 18080; its admin port is 18081
    a pod with the sidecar accepts at most 470 new connections a second if clients close them first, because source ports run out; a sysctl more than doubles this (docs/inject.md, Source ports)
    "
    );
}

#[test]
fn uninject_restores_original_text() {
    let numbered = SHOP.replace("targetPort: http", "targetPort: 8080");
    let without = SHOP.replace("port: 80, targetPort: http", "port: 8080");
    let before_names = InjectOptions { kubernetes: KubernetesVersion::NATIVE_SIDECARS, ..options() };
    let annotated = without.replace("metadata: {name: web}", "metadata: {name: web, annotations: {a: b}}");
    let crlf = SHOP.replace('\n', "\r\n");
    for text in [SHOP, &numbered, &without, &annotated, &crlf] {
        for options in [&options(), &before_names] {
            let there = inject(text, options).expect("manifests").text;
            assert_ne!(there, text);
            assert_eq!(uninject(&there).expect("manifests").text, text);
            assert_eq!(inject(&there, options).expect("manifests").text, there, "not idempotent");
        }
    }
    let untouched = uninject(SHOP).expect("manifests");
    assert_eq!((untouched.text.as_str(), untouched.notes.len()), (SHOP, 1));
}

#[test]
fn annotation_keeps_numeric_target_port() {
    let text = SHOP.replace("port: 80, targetPort: http", "port: 8080");
    let text = injected(&text).text;
    let service = text.split("---").nth(1).expect("a second document");
    insta::assert_snapshot!(service, @r#"

    # What leads there.
    apiVersion: v1
    kind: Service
    metadata: {name: web, annotations: {"rolldrop.dev/target-ports": "{\"8080\":null}"}}
    spec:
      selector: {app: web}
      ports: [{name: http, port: 8080, targetPort: 18080}]
    "#);
}

#[test]
fn old_kubernetes_gets_numeric_port() {
    let options = InjectOptions { kubernetes: "v1.32.4".parse().expect("a version"), ..options() };
    let text = inject(SHOP, &options).expect("manifests").text;
    assert!(text.contains("targetPort: 18080"), "{text}");
    assert!(text.contains("- name: http # as the Service says"), "{text}");
    let options = InjectOptions { kubernetes: "1.28".parse().expect("a version"), ..options };
    let too_old = inject(SHOP, &options).expect_err("no native sidecars").to_string();
    assert_eq!(too_old, "native sidecars need Kubernetes 1.29 or later, but the result must support 1.28");
    for text in ["2.1", "1", "1.x", ""] {
        let error = text.parse::<KubernetesVersion>().expect_err("no version").to_string();
        assert_eq!(error, "expected a Kubernetes version, such as 1.33");
    }
}

#[test]
fn aliased_document_is_rewritten_with_note() {
    let list = "\
---
# Two of a kind.
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Pod
  metadata: {name: one, labels: {app: one}}
  spec:
    containers: &containers
    - {name: app, ports: [{name: http, containerPort: 80}]}
- apiVersion: v1
  kind: Pod
  metadata: {name: two, labels: {app: two}}
  spec: {containers: *containers}
";
    let output = injected(&format!("{SHOP}{list}"));
    assert!(
        output.text.contains("# The app itself.") && output.text.contains("# Two of a kind."),
        "{}",
        output.text
    );
    assert!(output.notes.contains(&"document 3: rewritten, without its comments".to_owned()));
    let said: Vec<Value> = serde_saphyr::from_multiple(&output.text).expect("YAML");
    for item in said[2]["items"].as_array().expect("a list") {
        assert_eq!(item["spec"]["initContainers"][0]["ports"][0]["name"], "http");
        assert_eq!(item["spec"]["containers"][0]["ports"][0]["name"], "rolldrop-app");
    }
}

#[test]
fn kubectl_json_list_round_trips() {
    let list = r#"{"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one", "labels": {"app": "one"}},
         "spec": {"containers": [{"name": "app", "ports": [{"containerPort": 80}]}]}},
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "one"},
         "spec": {"selector": {"app": "one"}, "ports": [{"port": 80, "targetPort": 80}]}}]}"#;
    let before: Value = serde_json::from_str(list).expect("JSON");
    let there: Value = serde_json::from_str(&injected(list).text).expect("JSON");
    assert_eq!(there["items"][0]["spec"]["initContainers"][0]["name"], "rolldrop");
    assert_eq!(there["items"][1]["spec"]["ports"][0]["targetPort"], 18080);
    let back: Value =
        serde_json::from_str(&uninject(&there.to_string()).expect("manifests").text).expect("JSON");
    assert_eq!(back, before);
}

#[test]
fn ambiguous_manifests_require_choice() {
    let two =
        SHOP.replace("targetPort: http}", "targetPort: http}, {name: more, port: 81, targetPort: 9090}");
    let no_service = SHOP.split("---").next().expect("a first document");
    let hidden = no_service.replace(
        "            - name: http # as the Service says\n              containerPort: 8080\n",
        "            []\n",
    );
    insta::assert_snapshot!(
        [
            error(&two),
            error(&hidden),
            error(&SHOP.replace("      containers:", "      hostNetwork: true\n      containers:")),
            error("apiVersion: v1\nkind: Service\nmetadata: {name: web}\n"),
            error("a: [1\n"),
            injected(no_service).notes.join("\n"),
            injected(&SHOP.replace("spec:\n  selector: {app: web}\n", "spec:\n  clusterIP: None\n  selector: {app: web}\n"))
                .notes
                .join("\n"),
        ]
        .join("\n"),
        @"
    shop.yaml:13: deployment/web: Services use its ports 8080 and 9090: choose one with --port
    shop.yaml:2: deployment/web: it declares no port, and no Service uses it: choose a port with --workload deployment/web --port N
    shop.yaml:13: deployment/web: its pods use the node's network, so the sidecar would take ports on the node: remove hostNetwork, or measure without the sidecar
    shop.yaml: no Pod, Deployment, StatefulSet, DaemonSet, ReplicaSet, ReplicationController or Rollout among the manifests: pass the file that contains them
    shop.yaml:1: '[' is not closed: close it, or put a value that begins with '[' in quotes
    deployment/web: traffic for port 8080 goes through the sidecar on port 18080; its admin port is 18081
    no Service among the manifests routes to deployment/web: a Service with a numeric target port must use 18080 instead of 8080
    a pod with the sidecar accepts at most 470 new connections a second if clients close them first, because source ports run out; a sysctl more than doubles this (docs/inject.md, Source ports)
    deployment/web: traffic for port 8080 goes through the sidecar on port 18080; its admin port is 18081
    no Service among the manifests routes to deployment/web: a Service with a numeric target port must use 18080 instead of 8080
    service/web is headless: its clients choose the port and bypass the sidecar in deployment/web
    a pod with the sidecar accepts at most 470 new connections a second if clients close them first, because source ports run out; a sysctl more than doubles this (docs/inject.md, Source ports)
    "
    );
    let chosen = InjectOptions { port: Some(9090), ..options() };
    let text = inject(&two, &chosen).expect("manifests").text;
    assert!(text.contains("targetPort: http}") && text.contains("targetPort: 18080"), "{text}");
}

#[test]
fn object_injection_matches_text_injection() {
    let mut objects: Vec<Value> = serde_saphyr::from_multiple(SHOP).expect("YAML");
    inject_into(&mut objects, &options()).expect("manifests");
    let said: Vec<Value> = serde_saphyr::from_multiple(&injected(SHOP).text).expect("YAML");
    assert_eq!(objects, said);
}

#[test]
fn later_workload_reuses_existing_sidecar_ports() {
    let numbered = SHOP.replace("targetPort: http", "targetPort: 8080");
    let first = injected(&numbered).text;
    let (deployment, service) = numbered.split_once("---").expect("two documents");
    let second = deployment.replace("name: web # its name", "name: canary");
    let text = format!("{first}---\n{second}");
    let there = injected(&text).text;
    let said: Vec<Value> = serde_saphyr::from_multiple(&there).expect("YAML");
    for workload in [&said[0], &said[2]] {
        let args = &workload["spec"]["template"]["spec"]["initContainers"][0]["args"];
        assert_eq!(
            (&args[1], &args[2]),
            (&"--listen=$(POD_IPS):18080".into(), &"--upstream=$(POD_IP):8080".into())
        );
    }
    assert_eq!(said[1]["spec"]["ports"][0]["targetPort"], 18080);
    assert_eq!(uninject(&there).expect("manifests").text, format!("{deployment}---{service}---\n{second}"));
}

#[test]
fn port_option_applies_where_port_is_declared() {
    let two =
        SHOP.replace("targetPort: http}", "targetPort: http}, {name: more, port: 81, targetPort: 9090}");
    let (web, _) = SHOP.split_once("---").expect("two documents");
    let other = web.replace("web", "db").replace("8080", "7070");
    let both = format!("{two}---\n{other}");
    let at = |port| inject(&both, &InjectOptions { port: Some(port), ..options() });
    let text = at(9090).expect("manifests").text;
    assert!(
        text.contains("--upstream=$(POD_IP):9090") && text.contains("--upstream=$(POD_IP):7070"),
        "{text}"
    );
    let nobody = "shop.yaml: no workload declares port 7, and no Service uses it: name the workload with --workload KIND/NAME";
    assert_eq!(at(7).expect_err("no such port").to_string(), nobody);
    let wrong = inject(SHOP, &InjectOptions { port: Some(7), ..options() }).expect_err("no such port");
    assert_eq!(wrong.to_string(), nobody);
}

#[test]
fn sidecar_name_clash_is_refused() {
    let container = SHOP.replace("- name: app", "- name: rolldrop");
    let taken = |line: usize, list: &str| {
        format!(
            "shop.yaml:{line}: deployment/web: one of its {list} has the sidecar's name rolldrop but is not the sidecar (its pods \
             lack the annotation rolldrop.dev/sidecar, or it has another image): rename it"
        )
    };
    assert_eq!(error(&container), taken(15, "containers"));
    let migration =
        "      initContainers: [{name: rolldrop, image: shop/migrate:3, args: [up]}]\n      containers:\n";
    let migration = SHOP.replace("      containers:\n", migration);
    assert_eq!(error(&migration), taken(13, "initContainers"));
    // Other containers with that name are not removed, either.
    for text in [&container, &migration] {
        let output = uninject(text).expect("manifests");
        assert_eq!(
            (output.text.as_str(), &output.notes[..]),
            (text.as_str(), &["no sidecar to remove".into()][..])
        );
    }
    // The annotation alone does not make a container the sidecar.
    let annotated = |image: &str| {
        let labels = "      labels: {app: web}\n";
        migration
            .replace(labels, &format!("{labels}      annotations: {{rolldrop.dev/sidecar: '{image}'}}\n"))
    };
    assert_eq!(error(&annotated("rolldrop:1")), taken(14, "initContainers"));
    assert_eq!(uninject(&annotated("rolldrop:1")).expect("manifests").text, annotated("rolldrop:1"));
    let alone = annotated("x").replace(
        &migration
            [migration.find("      initC").expect("it")..migration.find("      containers:").expect("it")],
        "",
    );
    assert_eq!(
        error(&alone),
        "shop.yaml:12: deployment/web: its pods have the annotation rolldrop.dev/sidecar but no sidecar: remove the annotation"
    );
    let by_hand = SHOP.replace("targetPort: http", "targetPort: 8080").replace(
        "metadata: {name: web}\n",
        "metadata: {name: web, annotations: {rolldrop.dev/target-ports: mine}}\n",
    );
    let why = "shop.yaml:29: service/web: its annotation rolldrop.dev/target-ports was not written by rolldrop: remove it";
    assert_eq!(error(&by_hand), why);
    assert_eq!(uninject(&by_hand).expect("manifests").text, by_hand);
    let port = SHOP.replace("name: http # as", "name: rolldrop-admin # as");
    assert_eq!(
        error(&port),
        "shop.yaml:13: deployment/web: one of its ports is named rolldrop-admin, which the sidecar needs: rename the port"
    );
}

#[test]
fn annotation_and_image_identify_sidecar() {
    let own = SHOP.replace(
        "      labels: {app: web}\n",
        "      labels: {app: web}\n      annotations:\n        a: b # mine\n",
    );
    for (text, image) in
        [(SHOP, "example.org/recorder:3"), (&own, "rolldrop@sha256:ab"), (&own, "example.org/recorder")]
    {
        let options = InjectOptions { image: image.into(), ..options() };
        let there = inject(text, &options).expect("manifests").text;
        assert!(there.contains("rolldrop.dev/sidecar"), "{there}");
        assert_eq!(there.contains("a: b # mine"), text == own);
        assert_eq!(inject(&there, &options).expect("manifests").text, there, "not idempotent");
        assert_eq!(uninject(&there).expect("manifests").text, text);
        // Image names are rewritten on their way into a cluster.
        let mirrored = there.replace(&format!("image: {image}"), "image: mirror:5000/x/rolldrop:9");
        assert_eq!(uninject(&mirrored).expect("manifests").text, text);
        let other = there.replace(&format!("image: {image}"), "image: shop/migrate");
        assert_eq!(uninject(&other).expect("manifests").notes.len(), 1, "{other}");
    }
}

#[test]
fn native_sidecar_is_proxied_like_app() {
    let mesh = SHOP
        .replace("      containers:\n", "      initContainers:\n        - name: envoy\n          image: envoy\n          restartPolicy: Always\n          ports: [{name: mesh, containerPort: 15006}]\n          startupProbe: {tcpSocket: {port: mesh}}\n      containers:\n")
        .replace("targetPort: http", "targetPort: mesh");
    let there = injected(&mesh).text;
    assert!(there.contains("ports: [{name: rolldrop-app, containerPort: 15006}]"), "{there}");
    assert!(there.contains("startupProbe: {tcpSocket: {port: rolldrop-app}}"), "{there}");
    assert!(there.contains("--upstream=$(POD_IP):15006"), "{there}");
    assert_eq!(uninject(&there).expect("manifests").text, mesh);
}

#[test]
fn secret_supplies_admin_token() {
    let secret = |text: &str| text.parse::<SecretKey>();
    assert_eq!(secret("admin"), secret("admin/token"));
    assert_eq!(
        (secret(""), secret("a b"), secret("a/b/c")),
        (Err(BadSecretKey), Err(BadSecretKey), Err(BadSecretKey))
    );
    let sidecar = |admin_token: SecretKey| {
        let options = InjectOptions { admin_token: Some(admin_token), ..options() };
        let mut objects = [json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
            "spec": {"containers": [{"name": "app", "ports": [{"containerPort": 80}]}]}})];
        inject_into(&mut objects, &options).expect("a pod");
        objects[0]["spec"]["initContainers"][0].clone()
    };
    let takes = |sidecar: &Value, from: Value| {
        let env = sidecar["env"].as_array().expect("variables");
        let variable = json!({"name": "ROLLDROP_ADMIN_TOKEN", "valueFrom": {"secretKeyRef": from}});
        assert!(env.contains(&variable), "{env:?}");
    };
    let key = secret("admin/word").expect("a key");
    takes(&sidecar(key.clone()), json!({"name": "admin", "key": "word"}));
    let starts = sidecar(SecretKey { absent: Absent::TellsNobody, ..key });
    takes(&starts, json!({"name": "admin", "key": "word", "optional": true}));
}

/// A realistic file: a shop, its cache, an agent on the node's network, a queue with two ports, and a worker.
const MANY: &str = "\
apiVersion: apps/v1
kind: Deployment
metadata: {name: shop}
spec: {template: {metadata: {labels: {app: shop}}, spec: {containers: [{name: shop, ports: [{containerPort: 8080}]}]}}}
---
apiVersion: v1
kind: Service
metadata: {name: shop}
spec: {selector: {app: shop}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: cache}
spec: {template: {metadata: {labels: {app: cache}}, spec: {containers: [{name: redis, ports: [{name: db, containerPort: 6379}]}]}}}
---
apiVersion: v1
kind: Service
metadata: {name: cache}
spec: {selector: {app: cache}, ports: [{port: 6379}]}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent}
spec:
  template:
    metadata: {labels: {app: agent}}
    spec:
      hostNetwork: true
      containers: [{name: agent, ports: [{containerPort: 9100}]}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: queue}
spec: {template: {metadata: {labels: {app: queue}}, spec: {containers: [{name: queue, ports: [{containerPort: 9000}, {containerPort: 9001}]}]}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: worker}
spec: {template: {metadata: {labels: {app: worker}}, spec: {containers: [{name: worker}]}}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: migrate}
spec: {template: {spec: {containers: [{name: migrate, ports: [{containerPort: 8080}]}]}}}
";

#[test]
fn unsuitable_workloads_are_noted_but_unchanged() {
    let (notes, with) = chosen(MANY, &options());
    assert_eq!(with, ["deployment/shop"]);
    insta::assert_snapshot!(notes.join("\n"), @"
    deployment/shop: traffic for port 8080 goes through the sidecar on port 18080; its admin port is 18081
    shop.yaml:14: deployment/cache is left unchanged: port 6379 carries Redis (judging by its number), which the HTTP proxy would break: use --workload deployment/cache --mode tcp to pass all bytes and record connections; if it is HTTP after all, use --workload deployment/cache --mode http
    shop.yaml:28: daemonset/agent is left unchanged: its pods use the node's network, so the sidecar would take ports on the node: remove hostNetwork, or measure without the sidecar
    shop.yaml:34: deployment/queue is left unchanged: it declares ports 9000 and 9001: choose one with --port
    shop.yaml:36: deployment/worker is left unchanged: it declares no port, and no Service uses it: choose a port with --workload deployment/worker --port N
    a pod with the sidecar accepts at most 470 new connections a second if clients close them first, because source ports run out; a sysctl more than doubles this (docs/inject.md, Source ports)
    ");
    let output = injected(MANY);
    let (_, rest) =
        MANY.split_once("---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: cache}").unwrap();
    assert!(output.text.ends_with(rest), "{}", output.text);
}

#[test]
fn named_workloads_are_injected_or_refused() {
    let (_, with) = chosen(MANY, &named(&["deploy/shop"]));
    assert_eq!(with, ["deployment/shop"]);
    let (_, with) = chosen(MANY, &named(&["Jobs.batch/migrate", "deployments/shop"]));
    assert_eq!(with, ["deployment/shop", "job/migrate"]);
    let error = |names: &[&str]| inject(MANY, &named(names)).expect_err("no such").to_string();
    insta::assert_snapshot!(
        [
            error(&["deployment/shop", "daemonset/agent", "deployment/cache", "deployment/queue", "deployment/worker"]),
            error(&["deployment/web"]),
        ]
        .join("\n"),
        @"
    shop.yaml:14: deployment/cache: port 6379 carries Redis (judging by its number), which the HTTP proxy would break: use --mode tcp to pass all bytes and record connections; if it is HTTP after all, use --mode http
    shop.yaml:28: daemonset/agent: its pods use the node's network, so the sidecar would take ports on the node: remove hostNetwork, or measure without the sidecar
    shop.yaml:34: deployment/queue: it declares ports 9000 and 9001: choose one with --port
    shop.yaml:36: deployment/worker: it declares no port, and no Service uses it: choose a port with --port N
    shop.yaml: deployment/web is not among the manifests, or has no pod template; these have one: deployment/shop, deployment/cache, daemonset/agent, deployment/queue, deployment/worker and 1 more
    "
    );
    let bad = ["web", "/web", "deployment/", "a/b/c"];
    assert!(bad.iter().all(|name| name.parse::<WorkloadName>() == Err(BadWorkloadName)));
}

#[test]
fn port_option_resolves_ambiguous_workloads() {
    let at = |port, options: InjectOptions| InjectOptions { port: Some(port), ..options };
    let (_, with) = chosen(MANY, &at(9000, options()));
    assert_eq!(with, ["deployment/shop", "deployment/queue"]);
    let (_, with) = chosen(MANY, &at(7000, named(&["deployment/worker"])));
    assert_eq!(with, ["deployment/worker"]);
}

#[test]
fn mode_option_overrides_protocol_detection() {
    let tcp = InjectOptions { mode: Some(AppProtocol::Tcp), ..named(&["deployment/cache"]) };
    let text = inject(MANY, &tcp).expect("manifests").text;
    assert!(text.contains("--mode=tcp") && text.contains("--upstream=$(POD_IP):6379"), "{text}");
    assert_eq!(uninject(&text).expect("manifests").text, MANY);
    let http = InjectOptions { mode: Some(AppProtocol::Http), ..named(&["deployment/cache"]) };
    let text = inject(MANY, &http).expect("manifests").text;
    assert!(!text.contains("--mode"), "{text}");
    let (cache, service) = ("metadata: {name: cache}", "ports: [{port: 6379}]");
    let said = MANY.replace(service, "ports: [{port: 6379, appProtocol: http}]");
    assert_eq!(chosen(&said, &named(&["deployment/cache"])).1, ["deployment/cache"]);
    let headless = MANY
        .replace("6379", "7000")
        .replace("ports: [{port: 7000}]", "clusterIP: None, ports: [{port: 7000, appProtocol: redis}]");
    assert!(headless.contains(cache));
    let error = inject(&headless, &named(&["deployment/cache"])).expect_err("no HTTP").to_string();
    assert!(error.contains("port 7000 carries Redis (judging by its appProtocol redis)"), "{error}");
}

#[test]
fn run_injection_refuses_unsuitable_workloads() {
    let objects = |text: &str| -> Vec<Value> {
        Manifests::parse("shop.yaml", text)
            .unwrap()
            .objects()
            .into_iter()
            .map(|object| object.value)
            .collect()
    };
    let token = "admin".parse().expect("a key");
    let of_a_run = InjectOptions::of_a_run("rolldrop".into(), KubernetesVersion::NATIVE_SIDECARS, token);
    let error = inject_into(&mut objects(MANY), &of_a_run).expect_err("the agent").to_string();
    assert!(error.starts_with("daemonset/agent: its pods use the node's network"), "{error}");
    let fit = MANY.replace("hostNetwork: true", "hostNetwork: false").replace("{containerPort: 9001}", "");
    let injected = inject_into(&mut objects(&fit), &of_a_run).expect("manifests");
    insta::assert_snapshot!(injected.left.join("\n"), @"
    deployment/cache is left unchanged: port 6379 carries Redis (judging by its number), which the HTTP proxy would break: a run's sidecar supports only HTTP
    deployment/worker is left unchanged: it declares no port, and no Service uses it: declare the port in its container
    ");
}

#[test]
fn shared_service_needs_named_port() {
    let shared = MANY
        .replace("labels: {app: worker}", "labels: {app: shop}")
        .replace("containers: [{name: worker}]", "hostNetwork: true, containers: [{name: worker}]");
    let why = "service/shop also routes to deployment/worker, which gets no sidecar, so its numeric target port \
               cannot be the sidecar's: choose both workloads or neither, or give service/shop a named targetPort";
    let error = inject(&shared, &named(&["deployment/shop"])).expect_err("shared").to_string();
    assert_eq!(error, format!("shop.yaml:1: deployment/shop: {why}"));
    let error = inject(&shared, &options()).expect_err("shared").to_string();
    assert!(error.contains(why), "{error}");
    let by_name = shared
        .replace(
            "ports: [{containerPort: 8080}]}]}}}\n---\napiVersion: v1",
            "ports: [{name: http, containerPort: 8080}]}]}}}\n---\napiVersion: v1",
        )
        .replace("targetPort: 8080", "targetPort: http");
    assert_eq!(chosen(&by_name, &named(&["deployment/shop"])).1, ["deployment/shop"]);
}

#[test]
fn argo_rollout_counts_as_workload() {
    let rollout = SHOP.replace("apps/v1\nkind: Deployment", "argoproj.io/v1alpha1\nkind: Rollout");
    let there = injected(&rollout);
    assert!(there.text.contains("--upstream=$(POD_IP):8080"), "{}", there.text);
    assert_eq!(uninject(&there.text).expect("manifests").text, rollout);
    let reference = "apiVersion: argoproj.io/v1alpha1\nkind: Rollout\nmetadata: {name: web}\nspec: {workloadRef: {apiVersion: apps/v1, kind: Deployment, name: web}}\n";
    let (notes, with) = chosen(&format!("{SHOP}---\n{reference}"), &options());
    assert_eq!(with, ["deployment/web"], "{notes:?}");
    let job = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: up}\nspec: {template: {spec: {containers: [{name: up}]}}}\n";
    insta::assert_snapshot!([error(reference), error(job), error("a: 1\n")].join("\n"), @"
    shop.yaml: no Pod, Deployment, StatefulSet, DaemonSet, ReplicaSet, ReplicationController or Rollout among the manifests, but rollout/web uses the pod template of deployment/web: pass the file that contains it
    shop.yaml: no Pod, Deployment, StatefulSet, DaemonSet, ReplicaSet, ReplicationController or Rollout among the manifests, but these have a pod template: job/up. Choose one, such as --workload job/up
    shop.yaml: no Pod, Deployment, StatefulSet, DaemonSet, ReplicaSet, ReplicationController or Rollout among the manifests: pass the file that contains them
    ");
}

#[test]
fn memory_limit_grows_with_connection_limit() {
    let with = |most: usize| {
        let options = InjectOptions { max_connections: std::num::NonZeroUsize::new(most), ..options() };
        inject(SHOP, &options).expect("manifests").text
    };
    assert!(with(20_000).contains("- --max-connections=20000\n") && with(20_000).contains("memory: 878Mi"));
    assert!(with(100).contains("- --max-connections=100\n") && with(100).contains("memory: 256Mi"));
}

/// With identical labels, each Service selects each workload.
#[test]
fn each_object_is_edited_once() {
    let (mut objects, many) = (Vec::new(), 400);
    for number in 0..many {
        objects.push(
            json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": format!("d{number}")},
            "spec": {"template": {"metadata": {"labels": {"app": "a"}},
                "spec": {"containers": [{"name": "app", "ports": [{"containerPort": 8080}]}]}}}}),
        );
        objects
            .push(json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": format!("s{number}")},
            "spec": {"selector": {"app": "a"}, "ports": [{"port": 80, "targetPort": 8080}]}}));
    }
    let text = json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string();
    let manifests = Manifests::parse("many.json", &text).expect("manifests");
    let additions = additions::of(&manifests.objects(), &options(), &|_| String::new()).expect("manifests");
    // A container and an annotation for each workload, a target port and an annotation for each Service.
    assert_eq!(additions.edits.len(), 4 * many);
}
