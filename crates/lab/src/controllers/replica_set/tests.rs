use futures::FutureExt;

use super::super::tests::bench::{Bench, Controller};
use super::*;
use crate::registry::DeleteOptions;
use crate::registry::ObjectPart;

const ALONE: [Controller; 1] = [|shared| run(shared).boxed()];

fn replica_set(replicas: i64, min_ready_seconds: i64) -> Value {
    json!({
        "metadata": {"name": "web"},
        "spec": {
            "replicas": replicas,
            "minReadySeconds": min_ready_seconds,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web", "tier": "front"}},
                "spec": {"containers": [{"name": "app", "image": "host", "command": ["v1"]}]},
            },
        },
    })
}

fn status(bench: &Bench) -> Value {
    bench.get(Resource::ReplicaSets, "web")["status"].clone()
}

#[tokio::test]
async fn terminating_pod_is_replaced_immediately() {
    let bench = Bench::start(&ALONE);
    bench.create(Resource::ReplicaSets, replica_set(3, 0));
    bench
        .holds("three pods are ready", |bench| !bench.run_nodes() && status(bench)["readyReplicas"] == 3)
        .await;
    let expected = json!({
        "replicas": 3, "fullyLabeledReplicas": 3, "readyReplicas": 3, "availableReplicas": 3,
        "terminatingReplicas": 0, "observedGeneration": 1,
    });
    assert_eq!(status(&bench), expected);
    assert_eq!(bench.events("SuccessfulCreate").len(), 3);
    let victim = key(&bench.live_pods()[0]).1;
    bench.registry().delete(Resource::Pods, "default", &victim, &DeleteOptions::default()).unwrap();
    bench
        .holds("a fourth pod starts beside the terminating one", |bench| {
            bench.list(Resource::Pods).len() == 4
        })
        .await;
    bench.holds("the terminating pod is counted", |bench| status(bench)["terminatingReplicas"] == 1).await;
    bench.modify(Resource::ReplicaSets, "web", ObjectPart::Main, |set| set["spec"]["replicas"] = json!(1));
    bench.holds("two more pods are deleted", |bench| bench.live_pods().len() == 1).await;
    bench
        .holds("the deletions are recorded as events", |bench| bench.events("SuccessfulDelete").len() == 2)
        .await;
}

#[tokio::test]
async fn label_change_adopts_and_releases_pod() {
    let bench = Bench::start(&ALONE);
    bench.create(
        Resource::Pods,
        json!({
            "metadata": {"name": "stray", "labels": {"app": "web"}},
            "spec": {"containers": [{"name": "app", "image": "host", "command": ["v1"]}]},
        }),
    );
    bench.create(Resource::ReplicaSets, replica_set(1, 0));
    let owned = |bench: &Bench| {
        is_controlled_by(&bench.get(Resource::Pods, "stray"), &bench.get(Resource::ReplicaSets, "web"))
    };
    bench.holds("the pod is adopted", owned).await;
    assert_eq!(bench.list(Resource::Pods).len(), 1);
    bench.modify(Resource::Pods, "stray", ObjectPart::Main, |pod| {
        pod["metadata"]["labels"]["app"] = json!("debug")
    });
    bench
        .holds("the pod is released and replaced", |bench| {
            !owned(bench) && bench.list(Resource::Pods).len() == 2
        })
        .await;
    bench.modify(Resource::Pods, "stray", ObjectPart::Main, |pod| {
        pod["metadata"]["labels"]["app"] = json!("web")
    });
    bench.holds("the surplus pod is deleted", |bench| bench.live_pods().len() == 1).await;
}

#[tokio::test]
async fn min_ready_seconds_delays_availability() {
    let bench = Bench::start(&ALONE);
    bench.create(Resource::ReplicaSets, replica_set(1, 2));
    bench.holds("the pod is ready", |bench| !bench.run_nodes() && status(bench)["readyReplicas"] == 1).await;
    assert_eq!(status(&bench)["availableReplicas"], Value::Null);
    bench.holds("the pod is available", |bench| status(bench)["availableReplicas"] == 1).await;
}

#[tokio::test]
async fn rejected_pod_sets_replica_failure() {
    let bench = Bench::start(&ALONE);
    // This name is valid for a ReplicaSet, but the generated pod names would be too long.
    let mut long = replica_set(2, 0);
    long["metadata"]["name"] = json!("w".repeat(250));
    bench.create(Resource::ReplicaSets, long);
    let failure = bench
        .until("a condition", |bench| {
            let set = bench.list(Resource::ReplicaSets).pop()?;
            let failure = condition(&set, "ReplicaFailure").clone();
            failure.is_object().then_some(failure)
        })
        .await;
    assert_eq!((&failure["status"], &failure["reason"]), (&json!("True"), &json!("FailedCreate")));
    let told = bench.events("FailedCreate");
    assert!(told.iter().all(|message| message.starts_with("Error creating: ")), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn pod_creation_follows_client_rate() {
    let bench = Bench::start(&[]);
    let control = PodControl::new(&bench.shared, COMPONENT);
    let set = bench.create(Resource::ReplicaSets, replica_set(40, 0));
    let start = tokio::time::Instant::now();
    manage(&control, &set, Vec::new()).await.unwrap();
    assert_eq!(bench.list(Resource::Pods).len(), 40);
    // The first 30 are created immediately, and the other ten at a rate of twenty per second.
    assert_eq!(start.elapsed().as_millis(), 500);
}
