//! The Helm chart, rendered by Helm's own code, and the plain manifests beside it: the objects that they create, the
//! permissions that these objects grant, and a run that uses the permissions.

mod job;
mod rights;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::kubectl::{KUBECTL, Kubectl};
use crate::watch::manifests_of_page;

const CHARTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/charts");

/// Kinds that the embedded cluster does not serve.
const NOT_SERVED: [&str; 2] = ["CronJob", "PersistentVolumeClaim"];

/// Runs `scripts/helm.py VERB CHART` with these values in a YAML file.
fn helm(verb: &str, chart: &str, values: &str) -> Output {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(values.as_bytes()).expect("a file");
    Command::new(root.join("target/test-venv/bin/python"))
        .arg(root.join("scripts/helm.py"))
        .args([verb, chart])
        .arg(file.path())
        .output()
        .expect("python starts: scripts/test installs it")
}

/// Renders the chart `rolldrop` with these values. Returns the objects and notes, or the reason why Helm refuses the
/// values.
fn template(values: &str) -> Result<(Vec<Value>, String), String> {
    rendered("rolldrop", values)
}

/// Renders a chart in the same way.
fn rendered(chart: &str, values: &str) -> Result<(Vec<Value>, String), String> {
    let output = helm("template", chart, values);
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let rendered: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let text = |name: &str| rendered[name].as_str().expect("a string").to_owned();
    Ok((serde_saphyr::from_multiple(&text("objects")).expect("YAML"), text("notes")))
}

pub(crate) fn objects(values: &str) -> Vec<Value> {
    template(values).unwrap_or_else(|why| panic!("{why}")).0
}

fn of_kind<'a>(objects: &'a [Value], kind: &str) -> impl Iterator<Item = &'a Value> {
    objects.iter().filter(move |object| object["kind"] == kind)
}

/// Returns the value sets beside the chart by name, plus the default set, which is empty.
fn value_sets() -> BTreeMap<String, String> {
    let mut sets = BTreeMap::from([("default".to_owned(), String::new())]);
    for entry in fs::read_dir(Path::new(CHARTS).join("rolldrop/ci")).expect("values").flatten() {
        let name = entry.path().file_stem().expect("a name").to_string_lossy().into_owned();
        sets.insert(name, fs::read_to_string(entry.path()).expect("values"));
    }
    assert!(sets.len() > 4, "{sets:?}");
    sets
}

/// Fails unless the type has all of the object's fields.
#[track_caller]
fn is_a<T: DeserializeOwned + Serialize + Debug>(object: &Value) {
    let typed: T = serde_json::from_value(object.clone()).unwrap_or_else(|e| panic!("{e}: {object:#}"));
    assert_eq!(&serde_json::to_value(&typed).expect("JSON"), object, "an unknown field");
}

#[test]
fn chart_lints_and_renders_valid_objects() {
    let kubectl = Kubectl::in_namespace("chart");
    for (name, values) in value_sets() {
        renders_valid_objects("rolldrop", &name, &values, &kubectl);
    }
    let logs = "logs: [edge/deployment/envoy=envoy-json, edge/pod/nginx:app=ingress-nginx]";
    let metrics = "{metrics: {enabled: true}, podAnnotations: {a: b}}";
    let off = "{namespace: shop, events: false, beats: true, history: {persistent: false}}";
    let sidecars =
        "{sidecars: [shop/deployment/web, shop/pod/one], adminTokenSecret: {name: rolldrop-admin}}";
    for values in ["", logs, metrics, off, sidecars] {
        renders_valid_objects("rolldrop-watch", values, values, &kubectl);
    }
}

fn renders_valid_objects(chart: &str, name: &str, values: &str, kubectl: &Kubectl) {
    let linted = helm("lint", chart, values);
    let report: Value = serde_json::from_slice(&linted.stdout).expect("JSON");
    assert!(linted.status.success(), "{name}: {report:#}");
    // Severity 1 means a suggestion, such as a missing icon.
    let messages = report["messages"].as_array().expect("messages");
    assert!(messages.iter().all(|message| message["severity"] == 1), "{name}: {report:#}");

    for mut object in rendered(chart, values).unwrap_or_else(|why| panic!("{why}")).0 {
        match object["kind"].as_str().expect("a kind") {
            "ConfigMap" => is_a::<ConfigMap>(&object),
            "Deployment" => is_a::<Deployment>(&object),
            "Job" => is_a::<Job>(&object),
            "CronJob" => is_a::<CronJob>(&object),
            "ServiceAccount" => is_a::<ServiceAccount>(&object),
            "Role" => is_a::<Role>(&object),
            "RoleBinding" => is_a::<RoleBinding>(&object),
            "ClusterRole" => is_a::<ClusterRole>(&object),
            "ClusterRoleBinding" => is_a::<ClusterRoleBinding>(&object),
            "PersistentVolumeClaim" => is_a::<PersistentVolumeClaim>(&object),
            other => panic!("{name}: unexpected kind {other}"),
        }
        if !NOT_SERVED.iter().any(|kind| object["kind"] == *kind) {
            // The namespace given in the values does not exist here.
            object["metadata"].as_object_mut().expect("metadata").remove("namespace");
            kubectl.with_manifest("apply --dry-run=server --validate=strict", &object.to_string()).ok();
        }
    }
}

#[test]
fn watch_chart_grants_only_documented_permissions() {
    let block =
        |number| -> Vec<Value> { serde_saphyr::from_multiple(&manifests_of_page(number)).expect("YAML") };
    let of_page = block(1);
    let role = |objects: &[Value]| of_kind(objects, "ClusterRole").next().expect("a role")["rules"].clone();
    let charts = |values: &str| rendered("rolldrop-watch", values).unwrap_or_else(|why| panic!("{why}")).0;
    assert_eq!(role(&charts("events: false")), role(&of_page));
    let with_events = role(&charts(""));
    let create = json!({"apiGroups": [""], "resources": ["events"], "verbs": ["create"]});
    assert_eq!(with_events.as_array().expect("rules").last(), Some(&create));
    // One role per gateway namespace, however many logs there are.
    let logs = charts("logs: [edge/deployment/envoy=envoy-json, edge/pod/nginx=ingress-nginx]");
    let roles: Vec<&Value> = of_kind(&logs, "Role").collect();
    let [of_logs] = roles[..] else { panic!("{roles:?}") };
    assert_eq!(of_logs["metadata"]["namespace"], "edge");
    assert!(of_logs["rules"].to_string().contains(r#"["pods/log"],"verbs":["get"]"#), "{of_logs}");
    // Logs may name Services in any watched namespace.
    let of_services: Value = role(&block(2));
    let rules = role(&charts("{logs: [edge/deployment/envoy=envoy-json], events: false}"));
    let rules = rules.as_array().expect("rules");
    assert_eq!(rules[2..], of_services.as_array().expect("rules")[..]);
    // Beats need one more permission, as on the page, in the release's own namespace.
    let of_page = block(3);
    let of_page = of_kind(&of_page, "Role").next().expect("a Role")["rules"].to_string();
    let with_beats = charts("beats: true");
    let roles: Vec<&Value> = of_kind(&with_beats, "Role").collect();
    let [of_beats] = roles[..] else { panic!("{roles:?}") };
    let own = of_kind(&with_beats, "ConfigMap").next().expect("a ConfigMap")["metadata"]["name"].clone();
    let named = of_beats["rules"].to_string().replace(own.as_str().expect("a name"), "rolldrop-watch-beats");
    assert_eq!((named, &of_beats["metadata"]["namespace"]), (of_page, &Value::Null));
    let option = format!("--beats={}", own.as_str().expect("a name"));
    assert!(of_kind(&with_beats, "Deployment").next().expect("one").to_string().contains(&option));
    // Sidecars need one role per namespace, as on the page.
    let of_page = block(4);
    let of_page = of_kind(&of_page, "Role").next().expect("a Role");
    let with_sidecars = charts("sidecars: [shop/deployment/web, shop/pod/one]");
    let roles: Vec<&Value> = of_kind(&with_sidecars, "Role").collect();
    let [of_sidecars] = roles[..] else { panic!("{roles:?}") };
    assert_eq!(of_sidecars["rules"], of_page["rules"]);
    assert_eq!(of_sidecars["metadata"]["namespace"], of_page["metadata"]["namespace"]);
    // A role in one namespace cannot grant anything about nodes.
    let in_one = charts("namespace: shop");
    assert_eq!(of_kind(&in_one, "ClusterRole").count(), 0);
    assert!(!of_kind(&in_one, "Role").next().expect("a role").to_string().contains("nodes"));
    let error = rendered("rolldrop-watch", "logs: [edge/deployment/envoy]").expect_err("no format");
    assert!(error.contains("/logs/0"), "{error}");
}

/// Returns the watch's pod with these values.
fn watch_pod(values: &str) -> Value {
    let objects = rendered("rolldrop-watch", values).unwrap_or_else(|why| panic!("{why}")).0;
    of_kind(&objects, "Deployment").next().expect("a Deployment")["spec"]["template"].clone()
}

#[test]
fn watch_chart_mounts_sidecar_token() {
    let none = watch_pod("").to_string();
    assert!(!none.contains("admin-token") && !none.contains("--sidecars"), "{none}");
    let pod =
        watch_pod("{sidecars: [shop/deployment/web], adminTokenSecret: {name: rolldrop-admin, key: t}}");
    let container = &pod["spec"]["containers"][0];
    let args = container["args"].to_string();
    assert!(
        args.contains(r#""--sidecars=shop/deployment/web","--admin-token-file=/admin-token/token""#),
        "{args}"
    );
    let mount = json!({"name": "admin-token", "mountPath": "/admin-token", "readOnly": true});
    assert_eq!(container["volumeMounts"][1], mount);
    let secret = json!({"secretName": "rolldrop-admin", "items": [{"key": "t", "path": "token"}]});
    assert_eq!(pod["spec"]["volumes"][1], json!({"name": "admin-token", "secret": secret}));
    let error = rendered("rolldrop-watch", "sidecars: [shop/web]").expect_err("no kind");
    assert!(error.contains("/sidecars/0"), "{error}");
}

#[test]
fn watch_chart_opens_metrics_only_on_request() {
    let closed = watch_pod("").to_string();
    assert!(!closed.contains("metrics") && !closed.contains("prometheus"), "{closed}");
    let open = watch_pod("{metrics: {enabled: true}, podAnnotations: {a: b, prometheus.io/scrape: 'false'}}");
    let container = &open["spec"]["containers"][0];
    assert_eq!(container["ports"], json!([{"name": "metrics", "containerPort": 9464}]));
    assert!(container["args"].to_string().contains(r#""--metrics=:9464""#), "{container}");
    let annotations = json!({"a": "b", "prometheus.io/scrape": "false", "prometheus.io/port": "9464"});
    assert_eq!(open["metadata"]["annotations"], annotations);
}

#[test]
fn chart_pod_has_no_privileges_or_retries() {
    for (name, values) in value_sets() {
        let objects = objects(&values);
        let jobs = of_kind(&objects, "Job").map(|job| &job["spec"]);
        let nightly = of_kind(&objects, "CronJob").map(|job| &job["spec"]["jobTemplate"]["spec"]);
        for job in jobs.chain(nightly) {
            assert_eq!(job["backoffLimit"], 0, "{name}");
            assert!(job["activeDeadlineSeconds"].is_u64(), "{name}");
            let pod = &job["template"]["spec"];
            assert_eq!(pod["restartPolicy"], "Never", "{name}");
            let user = json!({"runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532,
                "seccompProfile": {"type": "RuntimeDefault"}});
            assert_eq!(pod["securityContext"], user, "{name}");
            let container = json!({"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
                "capabilities": {"drop": ["ALL"]}});
            assert_eq!(pod["containers"][0]["securityContext"], container, "{name}");
            let limits = &pod["containers"][0]["resources"]["limits"];
            assert!(limits["memory"].is_string() && limits["cpu"].is_null(), "{name}: {limits}");
        }
    }
}

#[test]
fn chart_job_avoids_nodes_that_it_drains() {
    let objects = objects(&value_sets()["drain-values"]);
    let job = of_kind(&objects, "Job").next().expect("a Job");
    let affinity = &job["spec"]["template"]["spec"]["affinity"]["nodeAffinity"];
    let terms = &affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
    let linux = json!([{"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]}]);
    let off = |node: &str| json!({"key": "metadata.name", "operator": "NotIn", "values": [node]});
    assert_eq!(terms, &json!([{"matchExpressions": linux, "matchFields": [off("node-2")]}]));

    // API servers refuse a requirement for a field with several values.
    let drain = |node: &str| json!({"at": "1s", "action": "drain", "node": node});
    let drains = [drain("node-1"), drain("node-2"), drain("node-1")];
    let objects = self::objects(&json!({"scenario": {"spec": {"disruptions": drains}}}).to_string());
    let job = of_kind(&objects, "Job").next().expect("a Job");
    let affinity = &job["spec"]["template"]["spec"]["affinity"]["nodeAffinity"];
    let terms = &affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
    assert_eq!(terms[0]["matchFields"], json!([off("node-1"), off("node-2")]));
}

#[test]
fn chart_rejects_wrong_values_with_reason() {
    let spec = |spec: &str| format!("scenario: {{spec: {spec}}}");
    for (values, why) in [
        ("cronjob: {enabled: true}".to_owned(), "'cronjob' not allowed"),
        ("cronJob: {enabled: true, schedule: nightly}".to_owned(), "/cronJob/schedule"),
        ("format: xml".to_owned(), "'text', 'json'"),
        ("namespace: kube-system".to_owned(), "/namespace"),
        ("activeDeadlineSeconds: 1h".to_owned(), "got string, want integer"),
        ("image: {digest: latest}".to_owned(), "/image/digest"),
        (spec("{cluster: {context: other}}"), "/scenario/spec/cluster"),
        (spec("{disruptions: [{at: 5s}]}"), "missing property 'action'"),
        (spec("{manifests: [{file: web.yaml}]}"), "the chart cannot read manifests from files"),
        (
            spec("{disruptions: [{at: 5s, action: explode}]}"),
            "this chart does not know which permissions the action explode needs",
        ),
        (
            spec("{disruptions: [{at: 5s, action: rollingRestart, workload: pod/web}]}"),
            "is not a workload: use deployment/NAME",
        ),
    ] {
        let error = template(&values).expect_err(&values);
        assert!(error.contains(why), "{values}: {error}");
    }
}

#[test]
fn notes_mention_disruptions_and_logs() {
    let (_, watching) = template("").expect("notes");
    assert!(watching.contains("it terminates no pod itself"), "{watching}");
    assert!(watching.contains("kubectl --namespace default logs --follow job/rolldrop-1"), "{watching}");
    let (_, nightly) = template(&value_sets()["nightly-values"]).expect("notes");
    assert!(nightly.contains("rollingRestart deployment/web 10s into the load"), "{nightly}");
    assert!(nightly.contains("create job --from=cronjob/rolldrop"), "{nightly}");
}

#[test]
fn shipped_gates_require_terminations() {
    let mut gates = 0;
    let sets = value_sets();
    let built =
        ["base", "nightly"].map(|directory| kustomized(&Path::new(CHARTS).join("kustomize").join(directory)));
    for objects in sets.values().map(|values| objects(values)).chain(built) {
        for config in of_kind(&objects, "ConfigMap") {
            let Some(text) = config["data"]["scenario.yaml"].as_str() else { continue };
            let scenario: Value = serde_saphyr::from_str(text).expect("YAML");
            let expect = &scenario["spec"]["expect"];
            if expect.is_object() {
                gates += 1;
                assert!(expect["terminations"]["min"].as_u64().is_some_and(|min| min > 0), "{text}");
            }
        }
    }
    assert!(gates >= 2, "{gates}");
}

#[test]
fn chart_version_matches_program() {
    for chart in ["rolldrop", "rolldrop-watch"] {
        let text = fs::read_to_string(Path::new(CHARTS).join(chart).join("Chart.yaml")).expect("a chart");
        let chart: Value = serde_saphyr::from_str(&text).expect("YAML");
        assert_eq!(chart["appVersion"], env!("CARGO_PKG_VERSION"));
    }
    let dockerfile = Path::new(env!("CARGO_MANIFEST_DIR")).join("Dockerfile");
    let dockerfile = fs::read_to_string(dockerfile).expect("a Dockerfile");
    // Cargo omits the last number of a toolchain version if it is zero.
    let rust = format!("library/rust:{}.0-slim-bookworm AS build", env!("CARGO_PKG_RUST_VERSION"));
    assert!(dockerfile.contains(&rust), "{rust}\n{dockerfile}");
}

/// Returns objects by kind and name, without Helm's own fields, and with the scenario parsed.
fn plain(objects: Vec<Value>) -> BTreeMap<(String, String), Value> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut all = BTreeMap::new();
    for mut object in objects {
        drop_helms(&mut object);
        if let Some(scenario) = object.pointer_mut("/data/scenario.yaml") {
            *scenario = serde_saphyr::from_str(&text(scenario)).expect("YAML");
        }
        all.insert((text(&object["kind"]), text(&object["metadata"]["name"])), object);
    }
    all
}

fn drop_helms(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|name, _| !name.starts_with("helm.sh/") && name != "app.kubernetes.io/managed-by");
            map.values_mut().for_each(drop_helms);
            map.retain(|_, value| value.as_object().is_none_or(|map| !map.is_empty()));
        }
        Value::Array(items) => items.iter_mut().for_each(drop_helms),
        _ => {}
    }
}

#[test]
fn plain_manifests_match_chart_output() {
    let sets = value_sets();
    for (directory, values) in [("base", &sets["default"]), ("nightly", &sets["nightly-values"])] {
        let mut built = kustomized(&PathBuf::from(CHARTS).join("kustomize").join(directory));
        for object in &mut built {
            let metadata = object["metadata"].as_object_mut().expect("metadata");
            assert_eq!(metadata.remove("namespace").expect("a namespace"), "default");
        }
        let (in_kube_system, own): (Vec<Value>, Vec<Value>) =
            objects(values).into_iter().partition(|object| object["metadata"]["namespace"] == "kube-system");
        assert_eq!(plain(built), plain(own), "{directory}");
        if directory == "base" {
            let of_service_proxy = kustomized(&PathBuf::from(CHARTS).join("kustomize/service-proxy"));
            assert_eq!(plain(of_service_proxy), plain(in_kube_system));
        }
    }
}

#[test]
fn overlay_sets_namespace_and_image() {
    let overlay = tempfile::tempdir().expect("a directory");
    let folder = overlay.path().canonicalize().expect("a directory");
    // kustomize accepts only relative paths.
    let to_root = "../".repeat(folder.components().count() - 1);
    let text = format!(
        "namespace: shop\nresources: [{to_root}{}/kustomize/nightly]\n\
         images: [{{name: rolldrop, newName: registry.example.org/rolldrop}}]\n",
        CHARTS.trim_start_matches('/')
    );
    fs::write(folder.join("kustomization.yaml"), text).expect("an overlay");
    let built = kustomized(&folder);
    let of = |kind: &str| built.iter().find(|object| object["kind"] == kind).expect(kind);
    assert!(built.iter().all(|object| object["metadata"]["namespace"] == "shop"), "{built:#?}");
    // The permissions belong to the run's service account.
    assert_eq!(of("RoleBinding")["subjects"][0]["namespace"], "shop");
    let containers = "/spec/jobTemplate/spec/template/spec/containers/0/image";
    assert_eq!(of("CronJob").pointer(containers).expect("an image"), "registry.example.org/rolldrop:0.1.0");
}

/// Returns the objects that `kubectl kustomize` builds from a directory.
pub(crate) fn kustomized(directory: &Path) -> Vec<Value> {
    let output = Command::new(KUBECTL).arg("kustomize").arg(directory).output().expect("kubectl starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_saphyr::from_multiple(&String::from_utf8_lossy(&output.stdout)).expect("YAML")
}
