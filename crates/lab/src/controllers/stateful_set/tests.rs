use futures::FutureExt;

use super::super::garbage;
use super::super::tests::bench::{Bench, Controller};
use super::*;
use crate::conditions::of as condition;
use crate::registry::DeleteOptions;
use crate::registry::ObjectPart;

const ALONE: [Controller; 2] = [|shared| run(shared).boxed(), |shared| garbage::run(shared).boxed()];

fn stateful_set(spec: Value) -> Value {
    let mut set = json!({
        "metadata": {"name": "web"},
        "spec": {
            "replicas": 3,
            "serviceName": "web",
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "app", "image": "host", "command": ["v1"]}]},
            },
        },
    });
    json_patch::merge(&mut set["spec"], &spec);
    set
}

async fn bench_with(spec: Value) -> Bench {
    let bench = Bench::start(&ALONE);
    bench.create(Resource::StatefulSets, stateful_set(spec));
    bench
}

fn status(bench: &Bench) -> Value {
    bench.get(Resource::StatefulSets, "web")["status"].clone()
}

fn change(bench: &Bench, change: impl FnOnce(&mut Value)) {
    bench.modify(Resource::StatefulSets, "web", ObjectPart::Main, |set| change(&mut set["spec"]));
}

fn set_version(bench: &Bench, version: &str) {
    change(bench, |spec| spec["template"]["spec"]["containers"][0]["command"] = json!([version]));
}

/// Returns the pods, each with its ordinal, its command, and a mark if it is being deleted.
fn pods(bench: &Bench) -> Vec<String> {
    let pods = bench.list(Resource::Pods);
    let shown = |pod: &Arc<Value>| {
        let going = if is_being_deleted(pod) { " ending" } else { "" };
        let command = &pod["spec"]["containers"][0]["command"][0];
        format!("{} {}{going}", key(pod).1, text(command))
    };
    pods.iter().map(shown).collect()
}

async fn pods_become(bench: &Bench, expected: &[&str]) {
    let mut last = Vec::new();
    let is_so = |bench: &Bench| {
        last = pods(bench);
        last == expected
    };
    let waiting = bench.holds("the pods are as expected", is_so);
    if tokio::time::timeout(std::time::Duration::from_secs(20), waiting).await.is_err() {
        panic!("{last:?} instead of {expected:?}");
    }
}

/// Starts pending pods and removes deleted ones until the set has settled.
async fn settle(bench: &Bench) {
    let is_settled = |bench: &Bench| {
        let set = bench.get(Resource::StatefulSets, "web");
        let (spec, status) = (&set["spec"], &set["status"]);
        status["observedGeneration"] == set["metadata"]["generation"]
            && ["replicas", "readyReplicas", "updatedReplicas", "availableReplicas"]
                .iter()
                .all(|count| number(&status[count]) == number(&spec["replicas"]))
    };
    bench.holds("the StatefulSet is up to date", |bench| !bench.run_nodes() && is_settled(bench)).await;
}

#[tokio::test]
async fn ordered_pods_get_stable_identity() {
    let bench = bench_with(json!({})).await;
    pods_become(&bench, &["web-0 v1"]).await;
    bench.registry().bind("default", "web-0", "node-1").unwrap();
    bench.set_ready("web-0", false);
    assert_eq!(pods(&bench), ["web-0 v1"]);
    bench.set_ready("web-0", true);
    pods_become(&bench, &["web-0 v1", "web-1 v1"]).await;
    settle(&bench).await;
    let pod = bench.get(Resource::Pods, "web-2");
    assert_eq!((&pod["spec"]["hostname"], &pod["spec"]["subdomain"]), (&json!("web-2"), &json!("web")));
    let revision = status(&bench)["updateRevision"].clone();
    let labels = json!({
        "app": "web", "controller-revision-hash": revision, "apps.kubernetes.io/pod-index": "2",
        "statefulset.kubernetes.io/pod-name": "web-2",
    });
    assert_eq!(pod["metadata"]["labels"], labels);
    assert_eq!(
        status(&bench),
        json!({
            "observedGeneration": 1, "replicas": 3, "readyReplicas": 3, "availableReplicas": 3,
            "currentReplicas": 3, "updatedReplicas": 3, "currentRevision": revision,
            "updateRevision": revision, "collisionCount": 0,
        })
    );
    assert_eq!(bench.events("SuccessfulCreate")[0], "Created pod: web-0");
}

#[tokio::test]
async fn replacement_waits_for_pod_deletion() {
    let bench = bench_with(json!({})).await;
    settle(&bench).await;
    let before = bench.get(Resource::Pods, "web-1")["metadata"]["uid"].clone();
    bench.registry().delete(Resource::Pods, "default", "web-1", &DeleteOptions::default()).unwrap();
    let counted = |bench: &Bench| status(bench)["updatedReplicas"] == 2;
    bench.holds("the deletion is counted", counted).await;
    assert_eq!(pods(&bench), ["web-0 v1", "web-1 v1 ending", "web-2 v1"]);
    settle(&bench).await;
    assert_ne!(bench.get(Resource::Pods, "web-1")["metadata"]["uid"], before);
}

#[tokio::test]
async fn rollout_starts_at_highest_ordinal() {
    let bench = bench_with(json!({})).await;
    settle(&bench).await;
    let first = status(&bench)["currentRevision"].clone();
    set_version(&bench, "v2");
    pods_become(&bench, &["web-0 v1", "web-1 v1", "web-2 v1 ending"]).await;
    let second = bench.until("a new revision", |bench| {
        let revision = status(bench)["updateRevision"].clone();
        (revision != first).then_some(revision)
    });
    let second = second.await;
    bench.end_pod("web-2");
    pods_become(&bench, &["web-0 v1", "web-1 v1", "web-2 v2"]).await;
    assert_eq!(status(&bench)["currentRevision"], first);
    bench.registry().bind("default", "web-2", "node-1").unwrap();
    bench.set_ready("web-2", true);
    pods_become(&bench, &["web-0 v1", "web-1 v1 ending", "web-2 v2"]).await;
    settle(&bench).await;
    assert_eq!(pods(&bench), ["web-0 v2", "web-1 v2", "web-2 v2"]);
    assert_eq!(status(&bench)["currentRevision"], second);
    // The former template gets its old revision back.
    set_version(&bench, "v1");
    settle(&bench).await;
    assert_eq!(status(&bench)["currentRevision"], first);
}

#[tokio::test]
async fn partition_leaves_lower_ordinals_unchanged() {
    let strategy = json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 2}});
    let bench = bench_with(json!({"updateStrategy": strategy})).await;
    settle(&bench).await;
    set_version(&bench, "v2");
    let rolled = |bench: &Bench| !bench.run_nodes() && pods(bench) == ["web-0 v1", "web-1 v1", "web-2 v2"];
    bench.holds("the highest pod is updated", rolled).await;
    bench.holds("the old pods are counted", |bench| status(bench)["currentReplicas"] == 2).await;
    assert_ne!(status(&bench)["currentRevision"], status(&bench)["updateRevision"]);
    change(&bench, |spec| spec["updateStrategy"]["rollingUpdate"]["partition"] = json!(0));
    settle(&bench).await;
    assert_eq!(status(&bench)["currentRevision"], status(&bench)["updateRevision"]);
}

#[tokio::test]
async fn on_delete_updates_only_deleted_pods() {
    let bench = bench_with(json!({"updateStrategy": {"type": "OnDelete"}})).await;
    settle(&bench).await;
    set_version(&bench, "v2");
    bench.holds("the change is observed", |bench| status(bench)["observedGeneration"] == 2).await;
    assert_eq!(pods(&bench), ["web-0 v1", "web-1 v1", "web-2 v1"]);
    bench.registry().delete(Resource::Pods, "default", "web-1", &DeleteOptions::default()).unwrap();
    let replaced = |bench: &Bench| !bench.run_nodes() && pods(bench) == ["web-0 v1", "web-1 v2", "web-2 v1"];
    bench.holds("the deleted pod is updated", replaced).await;
}

#[tokio::test]
async fn scale_down_deletes_highest_first() {
    let bench = bench_with(json!({})).await;
    settle(&bench).await;
    change(&bench, |spec| spec["replicas"] = json!(1));
    pods_become(&bench, &["web-0 v1", "web-1 v1", "web-2 v1 ending"]).await;
    bench.end_pod("web-2");
    pods_become(&bench, &["web-0 v1", "web-1 v1 ending"]).await;
    bench.end_pod("web-1");
    pods_become(&bench, &["web-0 v1"]).await;
    assert_eq!(bench.events("SuccessfulDelete")[0], "Deleted pod: web-2");
}

#[tokio::test]
async fn parallel_pods_start_together() {
    let bench = bench_with(json!({"podManagementPolicy": "Parallel"})).await;
    pods_become(&bench, &["web-0 v1", "web-1 v1", "web-2 v1"]).await;
}

#[tokio::test]
async fn min_ready_seconds_delays_next_pod() {
    let bench = bench_with(json!({"minReadySeconds": 2, "replicas": 2})).await;
    pods_become(&bench, &["web-0 v1"]).await;
    bench.run_nodes();
    bench.holds("the pod is ready", |bench| status(bench)["readyReplicas"] == 1).await;
    assert_eq!(pods(&bench), ["web-0 v1"]);
    let ready_since = condition(&bench.get(Resource::Pods, "web-0"), "Ready")["lastTransitionTime"].clone();
    pods_become(&bench, &["web-0 v1", "web-1 v1"]).await;
    let second = bench.get(Resource::Pods, "web-1")["metadata"]["creationTimestamp"].clone();
    let seconds = |time: &Value| crate::conditions::unix_seconds(time).unwrap();
    assert!(seconds(&second) >= seconds(&ready_since) + 2);
}

#[tokio::test]
async fn claim_templates_become_pod_volumes() {
    let claim = json!({
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    });
    let bench = bench_with(json!({"replicas": 2, "volumeClaimTemplates": [claim]})).await;
    settle(&bench).await;
    let volumes = &bench.get(Resource::Pods, "web-1")["spec"]["volumes"];
    assert_eq!(volumes[0], json!({"name": "data", "persistentVolumeClaim": {"claimName": "data-web-1"}}));
}

#[tokio::test]
async fn set_deletion_removes_pods() {
    let bench = bench_with(json!({})).await;
    settle(&bench).await;
    let options = DeleteOptions::default();
    bench.registry().delete(Resource::StatefulSets, "default", "web", &options).unwrap();
    let all_gone = |bench: &Bench| !bench.run_nodes() && bench.list(Resource::Pods).is_empty();
    bench.holds("all pods are gone", all_gone).await;
}
