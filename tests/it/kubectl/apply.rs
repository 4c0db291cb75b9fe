//! `kubectl apply`, both client-side and server-side, `diff` and dry runs.

use serde_json::Value;

use super::{Kubectl, web};

#[test]
fn apply_reports_created_configured_and_unchanged() {
    let kubectl = Kubectl::in_namespace("apply");
    assert_eq!(kubectl.apply(&web(1)), "deployment.apps/web created\n");
    assert_eq!(kubectl.apply(&web(1)), "deployment.apps/web unchanged\n");
    assert_eq!(kubectl.apply(&web(2)), "deployment.apps/web configured\n");
    assert_eq!(kubectl.field("deployment/web", ".spec.replicas"), "2");
    let deleted = kubectl.with_manifest("delete", &web(2)).ok();
    assert_eq!(deleted, format!("deployment.apps \"web\" deleted from {} namespace\n", kubectl.namespace()));
}

#[test]
fn apply_merges_three_ways() {
    let kubectl = Kubectl::in_namespace("apply");
    let map = |labels: &str, data: &str| {
        format!(
            "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: map, labels: {labels}}}, data: {data}}}"
        )
    };
    kubectl.apply(&map("{a: '1', b: '2'}", "{x: one, y: two}"));
    // Changes made by others stay; fields removed from the manifest are removed.
    kubectl.ok("label configmap map c=3");
    kubectl.ok(r#"patch configmap map --type merge -p {"data":{"z":"three"}}"#);
    assert_eq!(kubectl.apply(&map("{a: '1'}", "{x: four}")), "configmap/map configured\n");
    let map: serde_json::Value = serde_json::from_str(&kubectl.ok("get configmap map -o json")).unwrap();
    assert_eq!(map["metadata"]["labels"], serde_json::json!({"a": "1", "c": "3"}));
    assert_eq!(map["data"], serde_json::json!({"x": "four", "z": "three"}));
}

#[test]
fn apply_prunes_objects_missing_from_manifests() {
    let kubectl = Kubectl::in_namespace("apply");
    let map = |name: &str| {
        format!("{{apiVersion: v1, kind: ConfigMap, metadata: {{name: {name}, labels: {{set: mine}}}}}}")
    };
    kubectl.apply(&format!("{}\n---\n{}", map("stays"), map("goes")));
    let pruned =
        kubectl.with_manifest("apply --prune -l set=mine --prune-allowlist=core/v1/ConfigMap", &map("stays"));
    assert_eq!(pruned.ok(), "configmap/stays unchanged\nconfigmap/goes pruned\n");
    // By default, kubectl asks for kinds that this cluster lacks.
    let all = kubectl.with_manifest("apply --prune -l set=mine", &map("stays"));
    assert!(all.stderr().contains("no matches for kind \"ReplicationController\""), "{all}");
}

#[test]
fn apply_accepts_list_from_get() {
    let kubectl = Kubectl::in_namespace("apply");
    kubectl.apply(&web(0));
    kubectl.ok("create configmap map --from-literal=a=b");
    let list = kubectl.ok("get deployment/web configmap/map -o yaml");
    assert!(list.contains("kind: List"), "{list}");
    let applied = kubectl.apply(&list.replace("a: b", "a: c"));
    assert_eq!(applied, "deployment.apps/web configured\nconfigmap/map configured\n");
    let refused = kubectl.with_manifest("apply", &list.replace("replicas: 0", "replicaz: 0"));
    assert!(refused.stderr().contains("unknown field \"spec.replicaz\""), "{refused}");
}

#[test]
fn apply_merges_containers_by_name() {
    let kubectl = Kubectl::in_namespace("apply");
    kubectl.apply(&web(0));
    kubectl.ok(
        r#"patch deployment web -p {"spec":{"template":{"spec":{"containers":[{"name":"other","image":"i","command":["sleep","9"]}]}}}}"#,
    );
    kubectl.apply(&web(0).replace("sleep:1", "sleep:2"));
    let images = kubectl.field("deployment/web", ".spec.template.spec.containers[*].image");
    let mut images: Vec<_> = images.split(' ').collect();
    images.sort_unstable();
    assert_eq!(images, ["host/sleep:2", "i"]);
}

#[test]
fn server_side_apply_replaces_values_set_by_others() {
    let kubectl = Kubectl::in_namespace("apply");
    let applied = |replicas| kubectl.with_manifest("apply --server-side", &web(replicas)).ok();
    assert_eq!(applied(1), "deployment.apps/web serverside-applied\n");
    assert_eq!(applied(2), "deployment.apps/web serverside-applied\n");
    assert_eq!(kubectl.field("deployment/web", ".spec.replicas"), "2");

    // This cluster does not track field owners, so a field set by another user is replaced.
    kubectl.ok("scale deployment web --replicas=0");
    assert_eq!(applied(1), "deployment.apps/web serverside-applied\n");
    assert_eq!(kubectl.field("deployment/web", ".spec.replicas"), "1");
    assert_eq!(kubectl.field("deployment/web", ".metadata.managedFields"), "");
}

#[test]
fn unmodelled_field_warns_only_once() {
    let kubectl = Kubectl::in_namespace("apply");
    let constraints = "      topologySpreadConstraints:\n      - {maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule}\n";
    let spread =
        |replicas| web(replicas).replace("      containers:", &format!("{constraints}      containers:"));
    let warned = kubectl.with_manifest("apply", &spread(1));
    let warning =
        "Warning: the embedded cluster does not model spec.template.spec.topologySpreadConstraints: ";
    assert!(warned.stderr().contains(warning), "{warned}");
    let again = kubectl.with_manifest("apply", &spread(2));
    assert!(again.code() == Some(0) && !again.stderr().contains("Warning"), "{again}");
    let field = ".spec.template.spec.topologySpreadConstraints[0].topologyKey";
    assert_eq!(kubectl.field("deployment/web", field), "zone");
    let events = kubectl.ok("get events --field-selector reason=NotModelled -o json");
    let events: Value = serde_json::from_str(&events).expect("JSON");
    let events = events["items"].as_array().expect("a list");
    let said: Vec<_> = events.iter().map(|event| (&event["count"], &event["message"])).collect();
    let message = "the embedded cluster does not model spec.template.spec.topologySpreadConstraints: the \
                   scheduler only spreads pods with the same owner across nodes";
    assert_eq!(said, [(&Value::from(1), &Value::from(message))]);
    kubectl.ok("rollout status deployment web --timeout=300s");
}

#[test]
fn apply_refuses_unknown_field_by_name() {
    let kubectl = Kubectl::in_namespace("apply");
    let ran = kubectl.with_manifest("apply", &web(1).replace("replicas:", "replicaz:"));
    assert_eq!(ran.code(), Some(1), "{ran}");
    assert!(ran.stderr().contains("strict decoding error: unknown field \"spec.replicaz\""), "{ran}");
    let ran = kubectl.with_manifest("apply --server-side", &web(1).replace("replicas:", "replicaz:"));
    assert!(ran.stderr().contains("strict decoding error: unknown field \"spec.replicaz\""), "{ran}");
}

#[test]
fn diff_shows_pending_apply_changes() {
    let kubectl = Kubectl::in_namespace("apply");
    kubectl.apply(&web(0));
    let same = kubectl.with_manifest("diff", &web(0));
    assert_eq!((same.code(), same.stdout()), (Some(0), String::new()), "{same}");
    let differs = kubectl.with_manifest("diff", &web(0).replace("sleep:1", "sleep:2"));
    assert_eq!(differs.code(), Some(1), "{differs}");
    assert!(differs.stdout().contains("-        image: host/sleep:1"), "{differs}");
    assert!(differs.stdout().contains("+        image: host/sleep:2"), "{differs}");
    assert_eq!(kubectl.field("deployment/web", ".spec.template.spec.containers[0].image"), "host/sleep:1");
}

#[test]
fn dry_run_changes_no_object() {
    let kubectl = Kubectl::in_namespace("apply");
    let created = kubectl.with_manifest("apply --dry-run=server", &web(1)).ok();
    assert_eq!(created, "deployment.apps/web created (server dry run)\n");
    assert!(kubectl.fails("get deployment web").contains("NotFound"));
    kubectl.apply(&web(0));
    let configured = kubectl.with_manifest("apply --dry-run=server", &web(3)).ok();
    assert_eq!(configured, "deployment.apps/web configured (server dry run)\n");
    assert_eq!(kubectl.field("deployment/web", ".spec.replicas"), "0");
    let refused = kubectl.fails("delete deployment web --dry-run=server");
    assert!(refused.contains("does not support dry runs of deletions"), "{refused}");
    assert_eq!(kubectl.ok("get deployment web -o name"), "deployment.apps/web\n");
}
