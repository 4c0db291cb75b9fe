//! Tests of the reasons that pods do not become ready.

use super::*;

const LOG: &str = "starting\nno such table: users\n";

/// Returns the response of a cluster with these pods, and this warning about any of them.
fn cluster(path: &str, pods: &[Value], warning: Option<&Value>) -> (u16, String) {
    match path.rsplit('/').next() {
        Some("pods") => list(&pods.iter().collect::<Vec<_>>()),
        Some("events") => list(&warning.into_iter().collect::<Vec<_>>()),
        Some("log") => (200, LOG.to_owned()),
        _ => super::status(404, "NotFound", path),
    }
}

fn list(items: &[&Value]) -> (u16, String) {
    (200, json!({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": items}).to_string())
}

/// Returns the owner references for objects that this one controls; its UID is its name.
fn owner(kind: &str, name: &str) -> Value {
    json!([{"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": name, "controller": true}])
}

fn event(reason: &str, message: &str) -> Value {
    json!({"metadata": {"name": "e"}, "involvedObject": {}, "reason": reason, "message": message,
        "lastTimestamp": "2026-01-01T00:00:00Z"})
}

fn listed(name: &str, status: Value) -> Value {
    json!({"metadata": {"name": name}, "spec": {"containers": [], "nodeName": "node-1"}, "status": status})
}

fn running(name: &str, ready: &str) -> Value {
    listed(name, json!({"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]}))
}

/// Returns the error from waiting for these pods.
async fn said(pods: Vec<Value>, warning: Option<Value>) -> String {
    let (client, _) = api(move |_, path| cluster(path, &pods, warning.as_ref()));
    let limits = TimeLimits { ready: Duration::from_secs(60), ..TimeLimits::default() };
    let (session, _, _dir) = session(client, limits);
    await_endpoints(&session.caller, &session.observer, "web", Some("app=web"), 3)
        .await
        .unwrap_err()
        .to_string()
}

#[tokio::test(start_paused = true)]
async fn failing_probe_is_reported_once() {
    let unhealthy = event("Unhealthy", "Readiness probe failed: HTTP probe failed with statuscode: 500");
    let pods = vec![running("web-1", "False"), running("web-2", "True"), running("web-3", "False")];
    assert_eq!(
        said(pods, Some(unhealthy)).await,
        "service web has 0 of 3 endpoints ready after 60s: pod web-1 and 1 more: Unhealthy: Readiness probe failed: \
         HTTP probe failed with statuscode: 500"
    );
}

#[tokio::test(start_paused = true)]
async fn crash_report_includes_last_line() {
    let container = json!({"name": "app", "image": "x", "imageID": "", "ready": false, "restartCount": 3,
        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}},
        "lastState": {"terminated": {"exitCode": 1, "reason": "Error"}}});
    let crashing = listed("web-1", json!({"phase": "Running", "containerStatuses": [container]}));
    let said = said(vec![crashing], None).await;
    assert!(
        said.ends_with(
            ": pod web-1: CrashLoopBackOff: back-off 10s; it exited with code 1 (Error); its last output: \"no such table: \
             users\""
        ),
        "{said}"
    );
}

#[tokio::test(start_paused = true)]
async fn failed_pod_creation_is_reported() {
    let refused = event("FailedCreate", "pods \"web-\" is forbidden: exceeded quota: small");
    let said = said(Vec::new(), Some(refused)).await;
    assert!(
        said.ends_with(
            ": no pod was created: FailedCreate: pods \"web-\" is forbidden: exceeded quota: small"
        )
    );
}

#[tokio::test(start_paused = true)]
async fn hanging_rollout_is_recorded_with_reason() {
    let restarted = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&restarted);
    let (client, _) = api(move |_, path| {
        let is_new = seen.load(Ordering::SeqCst);
        let deployment = json!({"metadata": {"name": "web", "generation": 1 + is_new},
            "spec": {"replicas": 1, "selector": {}, "template": {}},
            "status": {"observedGeneration": 1 + is_new, "updatedReplicas": 1 - is_new, "replicas": 1,
                "availableReplicas": 1}});
        match path.rsplit('/').next() {
            Some("deployments") => list(&[&deployment]),
            Some("replicasets") => {
                let set = |name: &str, of: &str| json!({"metadata": {"name": name, "uid": name, "ownerReferences": owner("Deployment", of)}});
                list(&[&set("web-5d4c", "web"), &set("web-admin-7f6d", "web-admin")])
            }
            _ => {
                // The name has the same prefix as the names of the other workload's pods.
                let mut other = running("web-admin-7f6d-1", "False");
                other["metadata"]["ownerReferences"] = owner("ReplicaSet", "web-admin-7f6d");
                let pulling = json!({"name": "app", "image": "x", "imageID": "", "ready": false, "restartCount": 0,
                    "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}});
                let mut pulling =
                    listed("web-5d4c-2", json!({"phase": "Pending", "containerStatuses": [pulling]}));
                pulling["metadata"]["ownerReferences"] = owner("ReplicaSet", "web-5d4c");
                cluster(path, &[other, pulling], None)
            }
        }
    });
    let unsettled = unsettled_after(client, &restarted).await;
    let why =
        "Deployment web: 0 of 1 pods updated (pod web-5d4c-2: ImagePullBackOff: no such image), after 300s";
    assert_eq!(unsettled.as_deref(), Some(why));
}

/// Returns the end of the record of a rollout that never settles, on a cluster that responds with `answer(path)` after
/// the rollout has begun, and with a workload that has settled before.
async fn unsettled_on(
    before: (&'static str, Value),
    answer: impl Fn(&str) -> (u16, String) + Clone + Send + Sync + 'static,
) -> String {
    let begun = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&begun);
    let (client, _) = api(move |_, path| match path.ends_with(before.0) {
        true if seen.load(Ordering::SeqCst) == 0 => list(&[&before.1]),
        _ => answer(path),
    });
    unsettled_after(client, &begun).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn quota_that_blocks_rollout_is_named() {
    let deployment = |generation: i64, updated: i32| {
        json!({"metadata": {"name": "web", "generation": generation},
            "spec": {"replicas": 1, "selector": {}, "template": {}},
            "status": {"observedGeneration": generation, "updatedReplicas": updated, "replicas": 1,
                "availableReplicas": 1}})
    };
    let refused = |name: &str, quota: &str, at: &str| {
        let message = format!("pods \"web-5d4c-x\" is forbidden: exceeded quota: {quota}");
        let mut event = event("FailedCreate", &message);
        (event["involvedObject"], event["lastTimestamp"]) = (json!({"name": name}), at.into());
        event
    };
    let rolling = deployment(2, 0);
    let said = unsettled_on(("/deployments", deployment(1, 1)), move |path| match path.rsplit('/').next() {
        Some("deployments") => list(&[&rolling]),
        Some("replicasets") => {
            let set = json!({"metadata": {"name": "web-5d4c", "uid": "web-5d4c", "ownerReferences": owner("Deployment", "web")}});
            list(&[&set])
        }
        Some("events") => list(&[
            &refused("web-5d4c", "small", "2026-01-01T00:00:00Z"),
            &refused("other", "tiny", "2026-01-01T00:00:09Z"),
        ]),
        _ => {
            let mut pod = running("web-5d4c-1", "True");
            pod["metadata"]["ownerReferences"] = owner("ReplicaSet", "web-5d4c");
            cluster(path, &[pod], None)
        }
    });
    assert_eq!(
        said.await,
        "Deployment web: 0 of 1 pods updated (no further pod was created: FailedCreate: pods \"web-5d4c-x\" is \
         forbidden: exceeded quota: small), after 300s"
    );
    let refused = event("FailedCreate", "pods \"web-\" is forbidden: exceeded quota: small");
    let said = self::said(vec![running("web-1", "True")], Some(refused)).await;
    assert!(
        said.ends_with(
            ": no further pod was created: FailedCreate: pods \"web-\" is forbidden: exceeded quota: small"
        ),
        "{said}"
    );
}

#[tokio::test(start_paused = true)]
async fn pod_that_blocks_its_rollback_is_named() {
    let set = |generation: i64, updated: i32, spec: &Value| {
        let mut set = json!({"metadata": {"name": "db", "generation": generation},
            "spec": {"replicas": 3, "serviceName": "db", "selector": {}, "template": {}},
            "status": {"observedGeneration": generation, "replicas": 3, "readyReplicas": updated,
                "updatedReplicas": updated, "updateRevision": "db-old"}});
        for (key, value) in spec.as_object().into_iter().flatten() {
            set["spec"][key] = value.clone();
        }
        set
    };
    let pod = |name: &str, ready: &str, revision: &str| {
        let mut pod = running(name, ready);
        pod["metadata"]["labels"] = json!({"controller-revision-hash": revision});
        pod["metadata"]["ownerReferences"] = owner("StatefulSet", "db");
        pod
    };
    let said = async |spec: Value, pods: Vec<Value>| {
        let now = set(2, 2, &spec);
        let settled = set(1, 3, &spec);
        unsettled_on(("/statefulsets", settled), move |path| match path.ends_with("/statefulsets") {
            true => list(&[&now]),
            false => cluster(path, &pods, None),
        })
        .await
    };
    let broken = || vec![pod("db-1", "True", "db-old"), pod("db-2", "False", "db-new")];
    let ordered = json!({});
    assert_eq!(
        said(ordered.clone(), broken()).await,
        "StatefulSet db: 2 of 3 pods ready (pod db-2 is not ready (Running on node node-1, and its status gives no \
         reason), and its StatefulSet does not replace it until it is, although its revision is wrong: kubectl delete \
         pod db-2 -n shop), after 300s"
    );
    let partition = json!({"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 2}}});
    assert!(said(partition, broken()).await.contains("kubectl delete pod db-2 -n shop"));
    let mut ending = pod("db-2", "False", "db-new");
    ending["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    for (spec, pod) in [
        (json!({"podManagementPolicy": "Parallel"}), pod("db-2", "False", "db-new")),
        (json!({"updateStrategy": {"type": "OnDelete"}}), pod("db-2", "False", "db-new")),
        (ordered.clone(), pod("db-2", "False", "db-old")),
        (ordered.clone(), pod("db-2", "True", "db-new")),
        (ordered, ending),
        (
            json!({"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 3}}}),
            pod("db-2", "False", "db-new"),
        ),
    ] {
        let said = said(spec, vec![pod]).await;
        assert!(!said.contains("kubectl delete"), "{said}");
    }
}
