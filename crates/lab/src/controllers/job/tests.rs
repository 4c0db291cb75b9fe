use futures::FutureExt;

use super::super::garbage;
use super::super::tests::bench::Bench;
use super::indexes::COMPLETION_INDEX;
use super::*;
use crate::ClusterConfig;

fn start() -> Bench {
    let mut config = ClusterConfig::default();
    config.controllers.job_pod_failure_back_off = Duration::from_millis(1);
    Bench::start_with(config, &[|shared| run(shared).boxed(), |shared| garbage::run(shared).boxed()])
}

fn job(spec: Value) -> Value {
    let mut job = json!({
        "metadata": {"name": "load"},
        "spec": {"template": {"spec": {
            "restartPolicy": "Never",
            "containers": [{"name": "app", "image": "host", "command": ["true"]}],
        }}},
    });
    for (field, value) in spec.as_object().unwrap() {
        job["spec"][field] = value.clone();
    }
    job
}

fn load(bench: &Bench) -> Arc<Value> {
    bench.get(Resource::Jobs, "load")
}

fn reasons(bench: &Bench) -> Vec<(String, String)> {
    let job = load(bench);
    let text = |condition: &Value, field: &str| condition[field].as_str().unwrap().to_owned();
    let conditions = job["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.iter().map(|condition| (text(condition, "type"), text(condition, "reason"))).collect()
}

async fn pods(bench: &Bench, count: usize) -> Vec<String> {
    let names = |bench: &Bench| -> Vec<String> { bench.live_pods().iter().map(|pod| key(pod).1).collect() };
    bench.until(&format!("{count} pods"), |bench| (names(bench).len() == count).then(|| names(bench))).await
}

fn finish_all(bench: &Bench, phase: &str) {
    for pod in bench.live_pods() {
        bench.finish(&key(&pod).1, phase);
    }
}

#[tokio::test]
async fn indexed_job_completes_each_index() {
    let bench = start();
    bench.create(
        Resource::Jobs,
        job(json!({"completions": 3, "parallelism": 2, "completionMode": "Indexed"})),
    );
    let names = pods(&bench, 2).await;
    assert!(names[0].starts_with("load-0-") && names[1].starts_with("load-1-"), "{names:?}");
    let first = bench.get(Resource::Pods, &names[0]);
    assert_eq!(first["metadata"]["annotations"][COMPLETION_INDEX], "0");
    assert_eq!(first["metadata"]["labels"][COMPLETION_INDEX], "0");
    assert_eq!(first["metadata"]["labels"]["job-name"], "load");
    assert_eq!(first["spec"]["hostname"], "load-0");
    assert_eq!(first["spec"]["containers"][0]["env"][0]["name"], "JOB_COMPLETION_INDEX");
    bench.finish(&names[0], "Failed");
    bench
        .holds("index 0 is retried", |bench| {
            bench.live_pods().iter().any(|pod| key(pod).1 != names[0] && indexes::of(pod) == Some(0))
        })
        .await;
    finish_all(&bench, "Succeeded");
    let last = pods(&bench, 1).await;
    assert!(last[0].starts_with("load-2-"), "{last:?}");
    finish_all(&bench, "Succeeded");
    bench.holds("complete", |bench| finished_at(&load(bench)).is_some()).await;
    let expected = [("SuccessCriteriaMet", "CompletionsReached"), ("Complete", "CompletionsReached")];
    assert_eq!(reasons(&bench), expected.map(|(kind, reason)| (kind.to_owned(), reason.to_owned())));
    let status = load(&bench)["status"].clone();
    let counts =
        ["succeeded", "failed", "ready", "terminating", "active"].map(|field| status[field].as_i64());
    assert_eq!(counts, [Some(3), Some(1), Some(0), Some(0), None]);
    assert_eq!(status["completedIndexes"], "0-2");
    assert!(status["completionTime"].is_string() && status["startTime"].is_string());
    bench.holds("the event is recorded", |bench| bench.events("Completed") == ["Job completed"]).await;
}

#[tokio::test]
async fn job_failure_waits_for_last_pod() {
    let bench = start();
    bench.create(Resource::Jobs, job(json!({"completions": 2, "parallelism": 2, "backoffLimit": 0})));
    let names = pods(&bench, 2).await;
    bench.set_ready(&names[1], true);
    bench.registry().bind("default", &names[1], "node-1").unwrap();
    bench.finish(&names[0], "Failed");
    bench
        .holds("the failure is certain", |bench| {
            reasons(bench).iter().any(|(kind, _)| kind == "FailureTarget")
        })
        .await;
    bench
        .holds("the other pod is deleted", |bench| is_being_deleted(&bench.get(Resource::Pods, &names[1])))
        .await;
    assert_eq!(finished_at(&load(&bench)), None);
    bench.end_pod(&names[1]);
    bench
        .holds("failed", |bench| condition(&load(bench), "Failed")["reason"] == "BackoffLimitExceeded")
        .await;
    assert_eq!(load(&bench)["status"]["failed"], 2);
    bench.holds("the event is recorded", |bench| !bench.events("BackoffLimitExceeded").is_empty()).await;
}

#[tokio::test]
async fn deadline_fails_job_and_ttl_deletes_it() {
    let bench = start();
    bench.create(Resource::Jobs, job(json!({"activeDeadlineSeconds": 1, "ttlSecondsAfterFinished": 1})));
    let names = pods(&bench, 1).await;
    bench
        .holds("the deadline expires", |bench| {
            condition(&load(bench), "Failed")["reason"] == "DeadlineExceeded"
        })
        .await;
    assert!(bench.registry().get(Resource::Pods, "default", &names[0]).is_err());
    bench.holds("the Job is removed", |bench| bench.list(Resource::Jobs).is_empty()).await;
}

#[tokio::test]
async fn job_replaces_and_counts_deleted_pod() {
    let bench = start();
    bench.create(Resource::Jobs, job(json!({"completions": 1})));
    let names = pods(&bench, 1).await;
    bench.end_pod(&names[0]);
    bench
        .holds("the pod is replaced", |bench| {
            load(bench)["status"]["failed"] == 1 && bench.live_pods().len() == 1
        })
        .await;
    finish_all(&bench, "Succeeded");
    bench.holds("complete", |bench| condition(&load(bench), "Complete")["status"] == "True").await;
}
