//! The environment of pods on both dataplanes: files, access to the API server, and termination of all processes that
//! they started.

use std::time::Duration;

use http::Request;
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};

use crate::harness::{wait_for, written};
use crate::lab::{Setup, may_get_pods};
use crate::termination::lab::{LIMIT, Lab, Seen};

pub(crate) const PODS: &str = "/api/v1/namespaces/default/pods";

/// Runs a test on its own cluster.
pub(crate) fn on(dataplane: &'static str, test: impl AsyncFnOnce(Lab)) {
    on_with(dataplane, json!({}), test);
}

/// Does the same as `on`, with additional cluster configuration.
pub(crate) fn on_with(dataplane: &'static str, config: Value, test: impl AsyncFnOnce(Lab)) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async { test(Setup::on(dataplane).with(config).watched().await).await });
}

pub(crate) fn shell(name: &str, script: &str) -> Value {
    json!({"name": name, "image": "host", "command": ["sh", "-c", script]})
}

pub(crate) async fn run(lab: &Lab, name: &str, spec: Value) {
    lab.create(PODS, &json!({"metadata": {"name": name}, "spec": spec})).await;
}

/// Waits until the API server no longer has the pod.
pub(crate) async fn until_gone(lab: &Lab, pod: &str) {
    while lab.call("GET", &format!("{PODS}/{pod}"), None).await.status != 404 {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Waits until a container's log contains `text`, and returns the log.
pub(crate) fn log_with(lab: &Lab, pod: &str, container: &str, text: &str) -> String {
    wait_for(text, LIMIT, || log_of(lab, pod, container).filter(|log| log.contains(text)))
}

/// Returns the log of a pod's container.
pub(crate) fn log_of(lab: &Lab, pod: &str, container: &str) -> Option<String> {
    let own = format!("default_{pod}_");
    let mut dirs = std::fs::read_dir(lab.dir().join("pods")).into_iter().flatten().flatten();
    let dir = dirs.find(|dir| dir.file_name().to_string_lossy().starts_with(&own))?;
    Some(written(&std::fs::read_to_string(dir.path().join(format!("{container}.log"))).ok()?))
}

async fn until_event(lab: &Lab, reason: &str) -> String {
    let event = |seen: &[Seen]| {
        let found = seen.iter().find(|seen| seen.kind() == "Event" && seen.object["reason"] == *reason)?;
        Some(found.object["message"].as_str().unwrap_or_default().to_owned())
    };
    lab.until("default", reason, event).await
}

async fn until_deleted(lab: &Lab, pod: &str) {
    let deleted = |seen: &[Seen]| {
        seen.iter()
            .any(|seen| seen.event == "DELETED" && seen.kind() == "Pod" && seen.name() == pod)
            .then_some(())
    };
    lab.until("default", "the end of the pod", deleted).await;
}

/// Returns the API's status for a request to this path with this token.
async fn status_with_token(lab: &Lab, token: &str, path: &str) -> u16 {
    let mut file = Kubeconfig::read_from(lab.dir().join("kubeconfig")).expect("a kubeconfig");
    for user in &mut file.auth_infos {
        let user = user.auth_info.get_or_insert_default();
        user.token = Some(token.to_owned().into());
    }
    let options = KubeConfigOptions::default();
    let mut config = kube::Config::from_custom_kubeconfig(file, &options).await.expect("a config");
    config.proxy_url = None;
    let client = Client::try_from(config).expect("a client");
    let request = Request::get(path).body(Vec::new().into()).expect("a request");
    client.send(request).await.expect("a response").status().as_u16()
}

#[test]
fn volumes_appear_where_manifest_says() {
    on("kernel", async |lab| {
        let settings = json!({
            "metadata": {"name": "settings"},
            "data": {"mode": "fast", "run.sh": "#!/bin/sh\necho mode $(cat /etc/settings/mode)\nsleep 1000\n"},
        });
        lab.create("/api/v1/namespaces/default/configmaps", &settings).await;
        let secret = json!({"metadata": {"name": "key"}, "stringData": {"key": "s3cret"}});
        lab.create("/api/v1/namespaces/default/secrets", &secret).await;
        let mount = |name: &str, path: &str| json!({"name": name, "mountPath": path});
        let mut mounts = vec![
            mount("settings", "/etc/settings"),
            mount("key", "/etc/key"),
            mount("shared", "/common"),
            mount("me", "/me"),
        ];
        // A volume may hide the directory from which the cluster was started.
        let started_in = std::env::current_dir().expect("a working directory");
        let above = started_in.ancestors().nth(1).filter(|above| above.parent().is_some());
        mounts.extend(above.map(|above| mount("cover", &above.to_string_lossy())));
        let mut app = json!({"name": "app", "image": "host", "command": ["/etc/settings/run.sh"]});
        let mut other = shell(
            "other",
            "cat /etc/key/key; echo; cat /me/name; echo; touch /common/of-other; ls /common; \
             echo x 2>/dev/null > /etc/settings/mode || echo read-only; sleep 1000",
        );
        app["volumeMounts"] = mounts.clone().into();
        other["volumeMounts"] = mounts.into();
        let spec = json!({
            "terminationGracePeriodSeconds": 1,
            "volumes": [
                {"name": "settings", "configMap": {"name": "settings", "defaultMode": 0o755}},
                {"name": "key", "secret": {"secretName": "key"}},
                {"name": "shared", "emptyDir": {}},
                {"name": "cover", "emptyDir": {}},
                {"name": "me", "downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
            ],
            "containers": [app, other],
        });
        run(&lab, "files", spec).await;
        log_with(&lab, "files", "app", "mode fast");
        let log = log_with(&lab, "files", "other", "read-only");
        assert_eq!(log, "s3cret\nfiles\nof-other\nread-only\n");
    });
}

#[test]
fn missing_config_map_delays_pod() {
    on("kernel", async |lab| {
        let mut app = shell("app", "cat /etc/settings/mode; echo; sleep 1000");
        app["volumeMounts"] = json!([{"name": "settings", "mountPath": "/etc/settings"}]);
        let volume = json!({"name": "settings", "configMap": {"name": "settings"}});
        run(&lab, "early", json!({"volumes": [volume], "containers": [app]})).await;
        let why = "MountVolume.SetUp failed for volume \"settings\" : configmap \"settings\" not found";
        assert_eq!(until_event(&lab, "FailedMount").await, why);
        let settings = json!({"metadata": {"name": "settings"}, "data": {"mode": "fast"}});
        lab.create("/api/v1/namespaces/default/configmaps", &settings).await;
        log_with(&lab, "early", "app", "fast");
    });
}

#[test]
fn userspace_mount_failure_names_kernel_dataplane() {
    on("userspace", async |lab| {
        let mut app = shell("app", "sleep 1000");
        app["volumeMounts"] = json!([{"name": "tmp", "mountPath": "/work"}]);
        let spec = json!({"volumes": [{"name": "tmp", "emptyDir": {}}], "containers": [app]});
        run(&lab, "mounter", spec).await;
        let why = until_event(&lab, "FailedMount").await;
        assert!(why.contains("use the kernel dataplane"), "{why}");
    });
}

/// Lets pods that name no service account get pods.
async fn let_get_pods(lab: &Lab) {
    for (path, object) in may_get_pods() {
        let path = format!("/apis/rbac.authorization.k8s.io/v1/namespaces/default/{path}");
        lab.create(&path, &object).await;
    }
}

#[test]
fn pod_token_expires_with_pod() {
    on("kernel", async |lab| {
        let script = "cat /var/run/secrets/kubernetes.io/serviceaccount/token; echo; sleep 1000";
        let spec = json!({"terminationGracePeriodSeconds": 1, "containers": [shell("app", script)]});
        run(&lab, "bearer", spec).await;
        let token = log_with(&lab, "bearer", "app", "\n").trim().to_owned();
        let path = format!("{PODS}/bearer");
        assert_eq!(status_with_token(&lab, &token, &path).await, 403);
        let_get_pods(&lab).await;
        assert_eq!(status_with_token(&lab, &token, &path).await, 200);
        lab.call("DELETE", &path, None).await;
        until_deleted(&lab, "bearer").await;
        wait_for_async(async || status_with_token(&lab, &token, &path).await == 401).await;

        let refusing = json!({"automountServiceAccountToken": false, "containers": [shell(
            "app", "ls /var/run/secrets/kubernetes.io 2>/dev/null || echo none; sleep 1000",
        )]});
        run(&lab, "anonymous", refusing).await;
        log_with(&lab, "anonymous", "app", "none");
    });
}

#[test]
fn token_volume_matches_recorded_pod() {
    on("userspace", async |lab| {
        let recorded = include_str!("../reference/api/pod-list.json");
        let recorded: Value = serde_json::from_str(recorded).expect("JSON");
        let recorded = &recorded["response"]["items"][0]["spec"];
        let init = json!({"name": "first", "image": "host", "command": ["true"]});
        let spec = json!({"initContainers": [init], "containers": [shell("app", "sleep 1000")]});
        let pod = lab.create(PODS, &json!({"metadata": {"name": "web"}, "spec": spec})).await.body;
        let name = pod["spec"]["volumes"][0]["name"].as_str().expect("a volume");
        let recorded_name = recorded["volumes"][0]["name"].as_str().expect("a volume");
        assert_eq!((name.len(), name.split_at(16).0), (recorded_name.len(), recorded_name.split_at(16).0));
        let named_as_ours = |value: &Value| {
            let text = value.to_string().replace(recorded_name, name);
            serde_json::from_str::<Value>(&text).expect("JSON")
        };
        assert_eq!(pod["spec"]["volumes"], named_as_ours(&recorded["volumes"]));
        let mounts = named_as_ours(&recorded["containers"][0]["volumeMounts"]);
        for list in ["initContainers", "containers"] {
            assert_eq!(pod["spec"][list][0]["volumeMounts"], mounts, "{list}");
        }
        let mut stranger = spec.clone();
        stranger["serviceAccountName"] = "nobody".into();
        let stranger = json!({"metadata": {"name": "stranger"}, "spec": stranger});
        let refused = lab.call("POST", PODS, Some(&stranger)).await;
        assert_eq!(refused.status, 403, "{}", refused.body);
        let why = refused.body["message"].as_str().unwrap_or_default();
        assert!(
            why.ends_with(
                "error looking up service account default/nobody: serviceaccount \"nobody\" not found"
            ),
            "{why}"
        );
    });
}

#[test]
fn pod_cannot_see_volumes_of_others() {
    on("kernel", async |lab| {
        run(
            &lab,
            "other",
            json!({"terminationGracePeriodSeconds": 1, "containers": [shell("app", "echo up; sleep 1000")]}),
        )
        .await;
        log_with(&lab, "other", "app", "up");
        let script = "cat /var/run/secrets/kubernetes.io/serviceaccount/namespace; echo; ls -A /.volumes; echo listed; sleep 1000";
        run(&lab, "web", json!({"terminationGracePeriodSeconds": 1, "containers": [shell("app", script)]}))
            .await;
        assert_eq!(log_with(&lab, "web", "app", "listed"), "default\nlisted\n");
    });
}

pub(crate) async fn wait_for_async(condition: impl AsyncFn() -> bool) {
    let met = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(LIMIT, met).await.expect("the condition holds in time");
}

/// Claim C9.
#[test]
fn api_server_answers_terminating_pod() {
    for dataplane in ["userspace", "kernel"] {
        on(dataplane, async |lab| {
            let spec = json!({
                "terminationGracePeriodSeconds": 6,
                "containers": [{
                    "name": "app",
                    "image": "rolldrop",
                    "args": ["workload", "--listen", "$(POD_IP):8080", "--on-sigterm", "ignore",
                             "--ask-api-every", "500ms", "--log", "-"],
                    "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
                    "lifecycle": {"preStop": {"sleep": {"seconds": 3}}},
                }],
            });
            let_get_pods(&lab).await;
            run(&lab, "asker", spec).await;
            log_with(&lab, "asker", "app", "api_answered");
            lab.call("DELETE", &format!("{PODS}/asker"), None).await;
            until_deleted(&lab, "asker").await;
            let log = log_with(&lab, "asker", "app", "SIGTERM");
            let (before, after) = log.split_once("SIGTERM").expect("a signal");
            let answers = |part: &str| part.matches("\"api_answered\"").count();
            // On an idle machine, there are six responses while the hook sleeps and six after the signal.
            assert!(answers(before) >= 3 && answers(after) >= 3, "{dataplane}: {log}");
            assert!(!log.contains("api_failed") && !log.contains("api_refused"), "{dataplane}: {log}");
        });
    }
}

/// The process does everything it can to escape.
#[test]
fn hidden_process_dies_with_pod() {
    for dataplane in ["userspace", "kernel"] {
        on(dataplane, async |lab| {
            let hidden = "env -i setsid sh -c 'trap \"\" TERM HUP; while :; do echo alive; sleep 0.1; done'";
            let script = format!("trap 'exit 0' TERM; ({hidden} &); while :; do sleep 0.05; done");
            run(&lab, "hider", json!({"containers": [shell("app", &script)]})).await;
            log_with(&lab, "hider", "app", "alive");
            lab.call("DELETE", &format!("{PODS}/hider"), None).await;
            until_deleted(&lab, "hider").await;
            let lines = || log_with(&lab, "hider", "app", "alive").lines().count();
            let before = lines();
            tokio::time::sleep(Duration::from_millis(500)).await;
            assert_eq!(lines(), before, "{dataplane}: it still writes");
        });
    }
}

#[test]
fn service_name_resolves_in_pod() {
    on("kernel", async |lab| {
        let service = json!({"metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}]}});
        let service = lab.create("/api/v1/namespaces/default/services", &service).await.body;
        let ip = service["spec"]["clusterIP"].as_str().expect("an address").to_owned();
        let script = "until getent hosts web.default.svc.cluster.local; do sleep 0.1; done; getent hosts web; \
                      cat /etc/resolv.conf; echo done; sleep 1000";
        let spec = json!({"terminationGracePeriodSeconds": 1, "containers": [shell("app", script)]});
        run(&lab, "asker", spec).await;
        let log = log_with(&lab, "asker", "app", "done");
        assert_eq!(log.matches(&ip).count(), 2, "{log}");
        assert!(log.contains("search default.svc.cluster.local"), "{log}");
    });
}

#[test]
fn node_proxy_stops_and_boots_node() {
    on("userspace", async |lab| {
        run(
            &lab,
            "web",
            json!({"containers": [shell("app", "trap 'exit 0' TERM; while :; do sleep 0.05; done")]}),
        )
        .await;
        let ready = |seen: &[Seen]| pod_condition(seen, "web", "Ready", "True");
        lab.until("default", "the pod ready", ready).await;
        let node = "/api/v1/nodes/node-1/proxy";
        assert_eq!(lab.call("POST", &format!("{node}/shutdown?grace=5"), None).await.status, 200);
        let failed = |seen: &[Seen]| {
            let mut pods = seen.iter().filter(|seen| seen.kind() == "Pod" && seen.name() == "web");
            pods.any(|pod| pod.object["status"]["reason"] == "Terminated").then_some(())
        };
        lab.until("default", "its end", failed).await;
        let pod = lab.call("GET", &format!("{PODS}/web"), None).await.body;
        assert!(pod["metadata"]["deletionTimestamp"].is_null());
        assert_eq!(lab.call("POST", &format!("{node}/restart"), None).await.status, 200);
        let path = "/api/v1/nodes/node-1";
        wait_for_async(async || {
            let node = lab.call("GET", path, None).await.body;
            let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
            conditions.iter().any(|c| c["type"] == "Ready" && c["status"] == "True")
        })
        .await;
        assert_eq!(lab.call("POST", "/api/v1/nodes/nowhere/proxy/restart", None).await.status, 404);
    });
}

fn pod_condition(seen: &[Seen], pod: &str, kind: &str, status: &str) -> Option<()> {
    let mut pods = seen.iter().filter(|seen| seen.kind() == "Pod" && seen.name() == pod);
    pods.any(|pod| {
        let conditions = pod.object["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|c| c["type"] == kind && c["status"] == status)
    })
    .then_some(())
}

#[test]
fn overlong_sleep_hook_is_rejected() {
    on("userspace", async |lab| {
        let pod = |name: &str, hook: Value| {
            let mut app = shell("app", "sleep 1000");
            app["lifecycle"] = json!({"preStop": hook});
            let spec = json!({"terminationGracePeriodSeconds": 5, "containers": [app]});
            json!({"metadata": {"name": name}, "spec": spec})
        };
        let sleep = pod("sleeper", json!({"sleep": {"seconds": 6}}));
        let refused = lab.call("POST", PODS, Some(&sleep)).await;
        assert_eq!((refused.status, &refused.body["reason"]), (422, &json!("Invalid")), "{}", refused.body);
        let cause = &refused.body["details"]["causes"][0];
        assert_eq!(cause["field"], "spec.containers[0].lifecycle.preStop.sleep", "{}", refused.body);
        // rolldrop does not judge what a command does.
        lab.create(PODS, &pod("commander", json!({"exec": {"command": ["sleep", "6"]}}))).await;
    });
}
