use futures::FutureExt;

use super::super::replica_set;
use super::super::tests::bench::{Bench, Controller};
use super::*;
use crate::conditions::of as condition;

const BOTH: [Controller; 2] = [|shared| run(shared).boxed(), |shared| replica_set::run(shared).boxed()];

fn deployment(replicas: i64, spec: Value) -> Value {
    let mut deployment = json!({
        "metadata": {"name": "web", "labels": {"app": "web"}},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "app", "image": "host", "command": ["v1"]}]},
            },
        },
    });
    for (field, value) in spec.as_object().into_iter().flatten() {
        deployment["spec"][field] = value.clone();
    }
    deployment
}

fn web(bench: &Bench) -> Arc<Value> {
    bench.get(Resource::Deployments, "web")
}

fn change(bench: &Bench, change: impl FnOnce(&mut Value)) {
    bench
        .modify(Resource::Deployments, "web", ObjectPart::Main, |deployment| change(&mut deployment["spec"]));
}

fn set_version(bench: &Bench, version: &str) {
    change(bench, |spec| spec["template"]["spec"]["containers"][0]["command"] = json!([version]));
}

fn progress(bench: &Bench) -> Value {
    condition(&web(bench), "Progressing")["reason"].clone()
}

fn is_settled(bench: &Bench) -> bool {
    let web = web(bench);
    web["status"]["observedGeneration"] == web["metadata"]["generation"]
        && condition(&web, "Progressing")["reason"] == "NewReplicaSetAvailable"
        && web["status"]["updatedReplicas"] == web["spec"]["replicas"]
        && web["status"]["replicas"] == web["spec"]["replicas"]
        && web["status"]["availableReplicas"] == web["spec"]["replicas"]
}

async fn settle(bench: &Bench) {
    bench.holds("the rollout has settled", |bench| !bench.run_nodes() && is_settled(bench)).await;
}

/// Returns the ReplicaSets, each with its revision, the command in its template, and its size.
fn history(bench: &Bench) -> Vec<(i64, String, i64)> {
    let sets = bench.list(Resource::ReplicaSets);
    let entry = |set: &Arc<Value>| {
        let command = set["spec"]["template"]["spec"]["containers"][0]["command"][0].as_str().unwrap();
        (revision(set), command.to_owned(), replicas(set))
    };
    let mut history: Vec<_> = sets.iter().map(entry).collect();
    history.sort();
    history
}

fn entry(revision: i64, command: &str, replicas: i64) -> (i64, String, i64) {
    (revision, command.to_owned(), replicas)
}

#[tokio::test]
async fn undone_rollout_reuses_old_replica_set() {
    let bench = Bench::start(&BOTH);
    bench.create(Resource::Deployments, deployment(4, json!({})));
    settle(&bench).await;
    assert_eq!(history(&bench), [entry(1, "v1", 4)]);
    set_version(&bench, "v2");
    settle(&bench).await;
    assert_eq!(history(&bench), [entry(1, "v1", 0), entry(2, "v2", 4)]);
    // Like `kubectl rollout undo`, this restores the old template, and with it the old ReplicaSet.
    set_version(&bench, "v1");
    settle(&bench).await;
    assert_eq!(history(&bench), [entry(2, "v2", 0), entry(3, "v1", 4)]);
    assert_eq!(revision(&web(&bench)), 3);
    let scaled = bench.events("ScalingReplicaSet");
    assert!(scaled.iter().any(|message| message.ends_with("from 0 to 4")), "{scaled:?}");
}

#[tokio::test]
async fn rollout_respects_max_surge_and_max_unavailable() {
    let bench = Bench::start(&BOTH);
    let strategy = json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}});
    bench.create(Resource::Deployments, deployment(3, json!({"strategy": strategy})));
    settle(&bench).await;
    set_version(&bench, "v2");
    bench
        .holds("the rollout completes", |bench| {
            let live = bench.live_pods();
            let ready = live.iter().filter(|pod| crate::object_fields::is_ready(pod)).count();
            // The limit applies to the requested sizes, because the new ReplicaSet may create a pod before the old
            // one deletes one (Kubernetes' own test counts the same way).
            let asked_for: i64 = history(bench).iter().map(|(_, _, replicas)| replicas).sum();
            assert!(asked_for <= 4, "too many pods requested: {asked_for}");
            assert!(ready >= 3, "too few ready pods: {ready}");
            // Proceed one pod at a time so that every intermediate state is checked.
            match live.iter().find(|pod| pod["status"]["phase"] == "Pending") {
                Some(pod) => {
                    let name = key(pod).1;
                    bench.registry().bind("default", &name, "node-1").unwrap();
                    bench.set_ready(&name, true);
                    false
                }
                None => is_settled(bench),
            }
        })
        .await;
}

#[tokio::test]
async fn scaling_continues_while_rollout_is_paused() {
    let bench = Bench::start(&BOTH);
    let strategy = json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 3, "maxUnavailable": 2}});
    bench.create(Resource::Deployments, deployment(10, json!({"strategy": strategy})));
    settle(&bench).await;
    set_version(&bench, "v2");
    // None of the new pods becomes ready, so the rollout stops at 8 old and 5 new pods.
    bench.holds("the rollout stalls", |bench| history(bench) == [entry(1, "v1", 8), entry(2, "v2", 5)]).await;
    change(&bench, |spec| spec["replicas"] = json!(15));
    bench
        .holds("the new ReplicaSet grows", |bench| history(bench) == [entry(1, "v1", 8), entry(2, "v2", 10)])
        .await;
    change(&bench, |spec| spec["paused"] = json!(true));
    bench.holds("the rollout is paused", |bench| progress(bench) == "DeploymentPaused").await;
    set_version(&bench, "v3");
    bench
        .holds("the controller observes v3", |bench| {
            let web = web(bench);
            web["status"]["observedGeneration"] == web["metadata"]["generation"]
        })
        .await;
    assert_eq!(history(&bench).len(), 2);
    change(&bench, |spec| spec["replicas"] = json!(20));
    let larger = [entry(1, "v1", 8), entry(2, "v2", 12)];
    bench.holds("the new ReplicaSet grows while paused", |bench| history(bench) == larger).await;
    change(&bench, |spec| spec["paused"] = json!(false));
    settle(&bench).await;
    assert_eq!(history(&bench).last().unwrap(), &entry(3, "v3", 20));
}

#[tokio::test]
async fn stalled_rollout_exceeds_progress_deadline() {
    let bench = Bench::start(&BOTH);
    bench.create(Resource::Deployments, deployment(1, json!({"progressDeadlineSeconds": 1})));
    bench.holds("the rollout times out", |bench| progress(bench) == "ProgressDeadlineExceeded").await;
    let web = web(&bench);
    let progressing = condition(&web, "Progressing");
    assert_eq!(progressing["status"], "False");
    let message = progressing["message"].as_str().unwrap();
    assert!(
        message.starts_with("ReplicaSet \"web-") && message.ends_with("\" has timed out progressing."),
        "{message}"
    );
    assert_eq!(web["status"]["unavailableReplicas"], 1);
}

#[tokio::test]
async fn history_limit_deletes_old_revisions() {
    let bench = Bench::start(&BOTH);
    bench.create(Resource::Deployments, deployment(1, json!({"revisionHistoryLimit": 1})));
    settle(&bench).await;
    for version in ["v2", "v3", "v4"] {
        set_version(&bench, version);
        settle(&bench).await;
    }
    bench
        .holds("old ReplicaSets are deleted", |bench| {
            history(bench) == [entry(3, "v3", 0), entry(4, "v4", 1)]
        })
        .await;
}

#[tokio::test]
async fn recreate_strategy_waits_for_old_pods() {
    let bench = Bench::start(&BOTH);
    bench.create(Resource::Deployments, deployment(2, json!({"strategy": {"type": "Recreate"}})));
    settle(&bench).await;
    set_version(&bench, "v2");
    bench.holds("the old pods terminate", |bench| bench.live_pods().is_empty()).await;
    assert_eq!(bench.list(Resource::Pods).len(), 2);
    assert_eq!(history(&bench), [entry(1, "v1", 0)]);
    settle(&bench).await;
    assert_eq!(history(&bench), [entry(1, "v1", 0), entry(2, "v2", 2)]);
}

#[tokio::test]
async fn deployment_adopts_matching_replica_set() {
    let bench = Bench::start(&BOTH);
    let template = json!({
        "metadata": {"labels": {"app": "web"}},
        "spec": {"containers": [{"name": "app", "image": "host", "command": ["v1"]}]},
    });
    let orphan = json!({
        "metadata": {"name": "orphan", "labels": {"app": "web"}},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": template},
    });
    bench.create(Resource::ReplicaSets, orphan);
    bench.create(Resource::Deployments, deployment(2, json!({})));
    settle(&bench).await;
    let sets = bench.list(Resource::ReplicaSets);
    assert_eq!(sets.len(), 1);
    assert!(is_controlled_by(&sets[0], &web(&bench)));
}
