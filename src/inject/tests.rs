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

fn options() -> Options {
    Options {
        image: "rolldrop:1".into(),
        port: None,
        kubernetes: KubernetesVersion::NAMED_SIDECAR_PORTS,
        admin_token: None,
    }
}

fn injected(text: &str) -> Output {
    inject(text, &options()).expect("manifests")
}

fn error(text: &str) -> String {
    inject(text, &options()).expect_err("no manifests").to_string()
}

#[test]
fn a_named_port_moves_to_the_sidecar_and_comments_stay() {
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
              - --listen=$(POD_IP):18080
              - --upstream=$(POD_IP):8080
              - --admin=$(POD_IP):18081
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
              image: rolldrop:1
              lifecycle:
                preStop:
                  httpGet:
                    path: /prestop
                    port: rolldrop-admin
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
        @"deployment/web: port 8080 is reached through the sidecar on 18080, whose admin port is 18081"
    );
}

#[test]
fn taking_it_out_gives_the_text_back() {
    let numbered = SHOP.replace("targetPort: http", "targetPort: 8080");
    let without = SHOP.replace("port: 80, targetPort: http", "port: 8080");
    let before_names = Options { kubernetes: KubernetesVersion::NATIVE_SIDECARS, ..options() };
    let annotated = without.replace("metadata: {name: web}", "metadata: {name: web, annotations: {a: b}}");
    let crlf = SHOP.replace('\n', "\r\n");
    for text in [SHOP, &numbered, &without, &annotated, &crlf] {
        for options in [&options(), &before_names] {
            let there = inject(text, options).expect("manifests").text;
            assert_ne!(there, text);
            assert_eq!(uninject(&there).expect("manifests").text, text);
            assert_eq!(inject(&there, options).expect("manifests").text, there, "twice is once");
        }
    }
    let untouched = uninject(SHOP).expect("manifests");
    assert_eq!((untouched.text.as_str(), untouched.notes.len()), (SHOP, 1));
}

#[test]
fn a_numbered_target_port_is_changed_and_kept() {
    let text = SHOP.replace("port: 80, targetPort: http", "port: 8080");
    let text = injected(&text).text;
    let service = text.split("---").nth(1).expect("a second document");
    insta::assert_snapshot!(service, @r#"

    # What leads there.
    apiVersion: v1
    kind: Service
    metadata: {name: web, annotations: {rolldrop.dev/target-ports: "{\"8080\":null}"}}
    spec:
      selector: {app: web}
      ports: [{name: http, port: 8080, targetPort: 18080}]
    "#);
}

#[test]
fn before_names_of_sidecars_were_known_the_service_is_led_by_number() {
    let options = Options { kubernetes: "v1.32.4".parse().expect("a version"), ..options() };
    let text = inject(SHOP, &options).expect("manifests").text;
    assert!(text.contains("targetPort: 18080"), "{text}");
    assert!(text.contains("- name: http # as the Service says"), "{text}");
    let options = Options { kubernetes: "1.28".parse().expect("a version"), ..options };
    let too_old = inject(SHOP, &options).expect_err("no native sidecars").to_string();
    assert_eq!(too_old, "native sidecars need Kubernetes 1.29 or later, not 1.28");
    for text in ["2.1", "1", "1.x", ""] {
        let error = text.parse::<KubernetesVersion>().expect_err("no version").to_string();
        assert_eq!(error, "not a version of Kubernetes, such as 1.33");
    }
}

#[test]
fn what_an_alias_hides_is_written_anew_and_said() {
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
    assert!(output.text.contains("# The app itself.") && !output.text.contains("# Two of a kind."));
    assert!(output.notes.contains(&"document 3: written anew, without its comments".to_owned()));
    let said: Vec<Value> = serde_saphyr::from_multiple(&output.text).expect("YAML");
    for item in said[2]["items"].as_array().expect("a list") {
        assert_eq!(item["spec"]["initContainers"][0]["ports"][0]["name"], "http");
        assert_eq!(item["spec"]["containers"][0]["ports"][0]["name"], "rolldrop-app");
    }
}

#[test]
fn lists_and_json_are_taken_as_kubectl_writes_them() {
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
fn what_is_not_clear_is_asked() {
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
    deployment/web: Services lead to its ports 8080 and 9090: say which one to stand before (--port)
    deployment/web: no Service leads to it and it declares no port: say which one to stand before (--port)
    deployment/web: its pods use the node's network, where the sidecar's ports would be the node's
    no Pod, Deployment, StatefulSet, DaemonSet or ReplicaSet among the manifests
    not YAML: Parse error at line 2, column 1: Unclosed flow sequence. Expected: ']' to close sequence. Found: end of input. Context: in flow sequence. Suggestion: Add ']' to close the array, or check for missing commas between elements
    deployment/web: port 8080 is reached through the sidecar on 18080, whose admin port is 18081
    no Service among the manifests leads to deployment/web: one that numbers its target port has to lead to 18080 instead of 8080
    deployment/web: port 8080 is reached through the sidecar on 18080, whose admin port is 18081
    service/web is headless: its clients go to the port of their choice, past the sidecar of deployment/web
    no Service among the manifests leads to deployment/web: one that numbers its target port has to lead to 18080 instead of 8080
    "
    );
    let chosen = Options { port: Some(9090), ..options() };
    let text = inject(&two, &chosen).expect("manifests").text;
    assert!(text.contains("targetPort: http}") && text.contains("targetPort: 18080"), "{text}");
}

#[test]
fn objects_of_a_scenario_are_changed_like_a_text() {
    let mut objects: Vec<Value> = serde_saphyr::from_multiple(SHOP).expect("YAML");
    inject_into(&mut objects, &options()).expect("manifests");
    let said: Vec<Value> = serde_saphyr::from_multiple(&injected(SHOP).text).expect("YAML");
    assert_eq!(objects, said);
}

/// Written in as many ways as people do: several documents with a directive and ends, comments everywhere, flow
/// and block style, lists at the depth of their key and deeper, existing init containers, hooks and hostPort.
const AWKWARD: &str = "\
%YAML 1.2
---
# All in one line.
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, namespace: shop, labels: {app: db}}
spec: {serviceName: db, selector: {matchLabels: {app: db}}, template: {metadata: {labels: {app: db}}, spec: {containers: [{name: db, image: 'db:1', ports: [{name: sql, containerPort: 5432}], livenessProbe: {tcpSocket: {port: sql}}}]}}}
---
apiVersion: v1
kind: Service
metadata: {name: db, namespace: shop}
spec: {clusterIP: None, selector: {app: db}, ports: [{port: 5432, targetPort: sql}]}
---
apiVersion: v1
kind: Service
metadata: {name: db-lb, namespace: shop}
spec: {selector: {app: db}, ports: [{port: 5432, targetPort: sql}]}
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
fn awkward_manifests_come_back_byte_for_byte() {
    let before_names = Options { kubernetes: KubernetesVersion::NATIVE_SIDECARS, ..options() };
    for text in [AWKWARD.to_owned(), format!("{AWKWARD}\n"), AWKWARD.replace('\n', "\r\n")] {
        for options in [&options(), &before_names] {
            let there = inject(&text, options).expect("manifests").text;
            assert_eq!(inject(&there, options).expect("manifests").text, there, "twice is once");
            assert_eq!(uninject(&there).expect("manifests").text, text);
        }
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
    statefulset/db: port 5432 is reached through the sidecar on 18080, whose admin port is 18081
    service/db is headless: its clients go to the port of their choice, past the sidecar of statefulset/db
    daemonset/agent: port 8080 is reached through the sidecar on 18080, whose admin port is 18081
    port 80 of the nodes leads past the sidecar of daemonset/agent
    replicaset/worker: no Service leads to it and it declares no port: left as it is
    ");
}

#[test]
fn json_is_edited_in_place_and_comes_back() {
    let list = r#"{
    "apiVersion": "v1",
    "kind": "List",
    "items": [
        {
            "kind": "Pod", "apiVersion": "v1",
            "metadata": {"name": "one", "labels": {"app": "one"}},
            "spec": {"containers": [{"name": "app", "ports": [{"containerPort": 80, "name": "http"}]}]}
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {
                "name": "one"
            },
            "spec": {
                "selector": {"app": "one"},
                "ports": [
                    {
                        "port": 80
                    }
                ]
            }
        }
    ]
}
"#;
    let one_line = list.replace('\n', "").replace("  ", "");
    for text in [list, &one_line] {
        let there = injected(text);
        let said: Value = serde_json::from_str(&there.text).expect("JSON");
        assert_eq!(said["items"][0]["spec"]["initContainers"][0]["name"], "rolldrop");
        assert_eq!(said["items"][1]["spec"]["ports"][0]["targetPort"], 18080);
        assert_eq!(said["items"][1]["metadata"]["annotations"][TARGET_PORTS], r#"{"80":null}"#);
        // What was added goes with the line end that came to stand behind it.
        let back = uninject(&there.text).expect("manifests").text;
        let gone = |text: &str| text.split_whitespace().collect::<String>();
        assert_eq!(gone(&back), gone(text), "{}", there.text);
    }
    let there = injected(&one_line).text;
    assert_eq!(uninject(&there).expect("manifests").text, one_line);
}

#[test]
fn a_workload_that_comes_later_joins_those_that_have_the_sidecar() {
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
            (&"--listen=$(POD_IP):18080".into(), &"--upstream=$(POD_IP):8080".into())
        );
    }
    assert_eq!(said[1]["spec"]["ports"][0]["targetPort"], 18080);
    assert_eq!(uninject(&there).expect("manifests").text, format!("{deployment}---{service}---\n{second}"));
}

#[test]
fn the_port_that_is_asked_for_is_that_of_the_workloads_that_have_it() {
    let two =
        SHOP.replace("targetPort: http}", "targetPort: http}, {name: more, port: 81, targetPort: 9090}");
    let (web, _) = SHOP.split_once("---").expect("two documents");
    let other = web.replace("web", "db").replace("8080", "5432");
    let both = format!("{two}---\n{other}");
    let at = |port| inject(&both, &Options { port: Some(port), ..options() });
    let text = at(9090).expect("manifests").text;
    assert!(
        text.contains("--upstream=$(POD_IP):9090") && text.contains("--upstream=$(POD_IP):5432"),
        "{text}"
    );
    let error = at(7).expect_err("no such port").to_string();
    assert!(error.starts_with("deployment/web: Services lead to its ports 8080 and 9090"), "{error}");
    let wrong = inject(SHOP, &Options { port: Some(7), ..options() }).expect_err("no such port");
    assert_eq!(wrong.to_string(), "no workload declares port 7, and no Service leads to it");
}

#[test]
fn names_that_the_sidecar_needs_are_asked_for() {
    let container = SHOP.replace("- name: app", "- name: rolldrop");
    assert_eq!(
        error(&container),
        "deployment/web: a container of it is named rolldrop, as the sidecar would be: rename it"
    );
    let port = SHOP.replace("name: http # as", "name: rolldrop-admin # as");
    assert_eq!(
        error(&port),
        "deployment/web: a port of it is named rolldrop-admin, as one is beside the recording proxy: rename it"
    );
}

#[test]
fn a_native_sidecar_that_takes_the_traffic_is_stood_before_like_an_app() {
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
fn the_admin_ports_token_is_taken_from_a_secret() {
    let secret = |text: &str| text.parse::<SecretKey>();
    assert_eq!(secret("admin"), secret("admin/token"));
    assert_eq!(
        (secret(""), secret("a b"), secret("a/b/c")),
        (Err(BadSecretKey), Err(BadSecretKey), Err(BadSecretKey))
    );
    let options = Options { admin_token: secret("admin/word").ok(), ..options() };
    let mut objects = [json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
        "spec": {"containers": [{"name": "app", "ports": [{"containerPort": 80}]}]}})];
    inject_into(&mut objects, &options).expect("a pod");
    let env = objects[0]["spec"]["initContainers"][0]["env"].as_array().expect("variables");
    let from = json!({"secretKeyRef": {"name": "admin", "key": "word"}});
    assert!(env.contains(&json!({"name": "ROLLDROP_ADMIN_TOKEN", "valueFrom": from})), "{env:?}");
}
