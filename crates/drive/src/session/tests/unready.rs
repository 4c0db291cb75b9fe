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
    let (session, run_dir, _dir) = session(client, TimeLimits::default());
    let before = rollout_wait::workloads(session.caller()).await.unwrap();
    restarted.store(1, Ordering::SeqCst);
    session.await_rollout(&before, None).await.unwrap();
    finish(session).await;
    let unsettled = events_of(&run_dir).into_iter().find_map(|event| match event.kind {
        EventKind::CommandSettled { unsettled, .. } => unsettled,
        _ => None,
    });
    let why =
        "Deployment web: 0 of 1 pods updated (pod web-5d4c-2: ImagePullBackOff: no such image), after 300s";
    assert_eq!(unsettled.as_deref(), Some(why));
}
