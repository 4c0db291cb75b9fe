//! Tests of adding the sidecar to live pods while others change their workload, and of a rollout that never completes.

use super::*;
use crate::cluster::Origin;
use crate::undo::{ClusterChange, LeftOvers, ObjectRef};
use rolldrop_sidecar::inject::{self, KubernetesVersion, SecretKey};

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/shop/deployments";

/// Returns a Deployment in the state that others have set.
fn deployment(image: &str, version: u32) -> Value {
    let ports = json!([{"name": "http", "containerPort": 8080}]);
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "shop", "uid": "u1", "generation": 1,
            "resourceVersion": version.to_string()},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "web"}}, "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "app", "image": image, "ports": ports}]},
        }},
        "status": {"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "availableReplicas": 1},
    })
}

fn service() -> Value {
    json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "web", "namespace": "shop", "resourceVersion": "1"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": "http"}]}})
}

/// Returns the response to a read from a cluster with this one Deployment.
fn read(path: &str, deployment: &Value) -> (u16, String) {
    let list = |items: &[Value]| {
        json!({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": items}).to_string()
    };
    match path {
        "/version" => (200, json!({"gitVersion": "v1.36.2"}).to_string()),
        "/apis/apps/v1" => {
            let resource = json!({"name": "deployments", "singularName": "deployment", "namespaced": true,
                "kind": "Deployment", "verbs": ["get", "patch"]});
            let resources = json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "apps/v1",
                "resources": [resource]});
            (200, resources.to_string())
        }
        DEPLOYMENTS => (200, list(std::slice::from_ref(deployment))),
        _ if path.ends_with("/services") => (200, list(&[service()])),
        _ if path.ends_with("/deployments/web") => (200, deployment.to_string()),
        _ => (200, list(&[])),
    }
}

fn token() -> SecretKey {
    "rolldrop".parse().unwrap()
}

async fn inject(session: &Session) -> Result<Vec<String>, CoordinatorError> {
    let token = token();
    let whose = WorkloadSelection { services: vec!["web"], ..WorkloadSelection::default() };
    let sidecar = Some(Sidecar { image: "rolldrop", admin_token: &token });
    session.change_workloads(&LiveChanges { whose, sidecar, ending: None, gitops: GitOps::Refuse }).await
}

/// Returns the patches that the run sent.
fn patches(calls: &Calls) -> Vec<Value> {
    let calls = calls.lock().unwrap();
    let patches = calls.iter().filter(|(method, ..)| *method == Method::PATCH);
    patches.map(|(_, _, body)| body.clone()).collect()
}

#[tokio::test(start_paused = true)]
async fn conflicting_change_is_retried_on_fresh_workload() {
    let refused = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&refused);
    let (client, calls) = api(move |method, path| match *method {
        Method::PATCH if count.fetch_add(1, Ordering::SeqCst) == 0 => {
            status(409, "Conflict", "the object has been modified")
        }
        Method::PATCH => (200, deployment("app:2", 9).to_string()),
        _ if count.load(Ordering::SeqCst) == 0 => read(path, &deployment("app:1", 7)),
        _ => read(path, &deployment("app:2", 8)),
    });
    let (session, run_dir, _dir) = session(client, TimeLimits::default());
    inject(&session).await.unwrap();
    let patches = patches(&calls);
    let of = |patch: &Value| {
        let image = patch["spec"]["template"]["spec"]["containers"][0]["image"].clone();
        (patch["metadata"]["resourceVersion"].clone(), image)
    };
    let sent: Vec<_> = patches.iter().map(of).collect();
    assert_eq!(sent, [("7", "app:1"), ("8", "app:2")].map(|(version, image)| (json!(version), json!(image))));
    assert!(patches.iter().all(|patch| patch.to_string().contains(inject::SIDECAR_NAME)));
    // Only one of the two changes was made.
    drop(session);
    let open = Journal::resume(run_dir.path(), Clock::start()).unwrap().0.open_changes();
    assert_eq!(open.len(), 1, "{open:?}");
}

#[tokio::test(start_paused = true)]
async fn constant_conflicts_leave_workload_unchanged() {
    let (client, calls) = api(|method, path| match *method {
        Method::PATCH => status(409, "Conflict", "the object has been modified"),
        _ => read(path, &deployment("app:1", 7)),
    });
    let (session, run_dir, _dir) = session(client, TimeLimits::default());
    let error = inject(&session).await.unwrap_err().to_string();
    assert_eq!(error, "failed to change Deployment web in shop: others keep changing it");
    assert_eq!(patches(&calls).len(), 5);
    finish(session).await;
    let open = Journal::resume(run_dir.path(), Clock::start()).unwrap().0.open_changes();
    assert!(open.is_empty(), "{open:?}");
}

#[tokio::test(start_paused = true)]
async fn rollout_is_awaited_after_lost_patch_response() {
    // Objects after the change.
    let mut objects = [deployment("app:1", 7), service()];
    let kubernetes = "v1.36.2".parse::<KubernetesVersion>().unwrap();
    let options = inject::InjectOptions::of_a_run("rolldrop".into(), kubernetes, token());
    inject::inject_into(&mut objects, &options).unwrap();
    let [mut changed, _] = objects;
    changed["metadata"]["resourceVersion"] = "8".into();
    changed["metadata"]["generation"] = 2.into();
    let (tried, looked) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (try_count, look_count) = (Arc::clone(&tried), Arc::clone(&looked));
    let (client, _) = api(move |method, path| match *method {
        Method::PATCH => match try_count.fetch_add(1, Ordering::SeqCst) {
            0 => status(504, "Timeout", "it took too long"),
            _ => status(409, "Conflict", "the object has been modified"),
        },
        _ if try_count.load(Ordering::SeqCst) == 0 => read(path, &deployment("app:1", 7)),
        _ => {
            let mut now = changed.clone();
            if path == DEPLOYMENTS && look_count.fetch_add(1, Ordering::SeqCst) >= 8 {
                now["status"]["observedGeneration"] = 2.into();
            }
            read(path, &now)
        }
    });
    let (session, run_dir, _dir) = session(client, TimeLimits::default());
    inject(&session).await.unwrap();
    assert_eq!(tried.load(Ordering::SeqCst), 2);
    assert!(looked.load(Ordering::SeqCst) > 8, "its rollout was not awaited");
    drop(session);
    let open = Journal::resume(run_dir.path(), Clock::start()).unwrap().0.open_changes();
    assert_eq!(open.len(), 1, "the undo will find out: {open:?}");
}

/// Changes the image, takes that back during the run, and returns the report of the finished session. `images` are those
/// that the API server shows before, between and after the patches.
async fn rolled_back(images: [&'static str; 3]) -> (usize, Vec<String>) {
    let patched = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&patched);
    let (client, _) = api(move |method, path| {
        let n = count.fetch_add(usize::from(*method == Method::PATCH), Ordering::SeqCst);
        read(path, &deployment(images[n + usize::from(*method == Method::PATCH)], 7))
    });
    let (session, _, _dir) = session(client, TimeLimits::default());
    let (resource, scope) = session.caller.kind_of("apps/v1", "Deployment").await.unwrap();
    let api = session.caller.api_of(&resource, &scope, "shop");
    let change =
        session.changer().change(&api, &deployment("app:1", 7), &deployment("app:2", 7)).await.unwrap();
    session.ledger.take_back(&session.caller, change.unwrap()).await.unwrap();
    let patches = patched.load(Ordering::SeqCst);
    let Closed { undone, .. } = finish(session).await;
    (patches, undone.iter().map(ToString::to_string).collect())
}

#[tokio::test(start_paused = true)]
async fn finish_reports_earlier_rollback() {
    let restored = vec!["Deployment web in shop: restored".to_owned()];
    assert_eq!(rolled_back(["app:1", "app:2", "app:1"]).await, (2, restored));
    // Somebody has deployed meanwhile.
    let (patches, left) = rolled_back(["app:1", "app:3", "app:3"]).await;
    assert_eq!((patches, left.len()), (1, 1));
    assert!(left[0].starts_with("Deployment web in shop: left alone: others have changed"), "{left:?}");
}

#[tokio::test]
async fn undo_in_other_cluster_keeps_journal() {
    let dir = tempfile::tempdir().unwrap();
    let origin = |server: Option<&str>| Origin { server: server.map(str::to_owned), ..Origin::default() };
    let web = ObjectRef { uid: Some("u1".into()), ..ObjectRef::new("v1", "Pod", Some("shop".into()), "web") };
    let mut journal =
        Journal::begin(dir.path(), Clock::start(), "my-run", Some(origin(Some("https://staging")))).unwrap();
    journal.announce(web, ClusterChange::Create).unwrap();
    drop(journal);
    // Answers with a pod of this UID, or none.
    let undo = async |uid: Option<&'static str>, server: &str| {
        let (client, _) = api(move |method, path| match (uid, path) {
            (_, "/api/v1") => {
                let pods = json!({"name": "pods", "singularName": "pod", "namespaced": true, "kind": "Pod",
                    "verbs": ["get", "delete"]});
                (
                    200,
                    json!({"kind": "APIResourceList", "groupVersion": "v1", "resources": [pods]}).to_string(),
                )
            }
            (Some(uid), _) if *method == Method::GET => {
                let metadata = json!({"name": "web", "namespace": "shop", "uid": uid});
                (200, json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata}).to_string())
            }
            _ => status(404, "NotFound", "gone"),
        });
        let caller = Caller::in_shop(client, TimeLimits::default(), CancellationToken::new());
        LeftOvers::in_dir(dir.path()).unwrap().undo(&caller, server).await.map_err(|error| error.to_string())
    };
    for uid in [None, Some("u2")] {
        let refused = undo(uid, "https://prod").await.unwrap_err();
        assert!(refused.contains("at https://prod. The run's cluster was at https://staging"), "{refused}");
        assert!(LeftOvers::in_dir(dir.path()).unwrap().cluster().is_some(), "nothing is left to undo");
    }
    // Another URL of the same cluster.
    assert_eq!(undo(Some("u1"), "https://10.96.0.1").await.unwrap().len(), 1);
    assert!(LeftOvers::in_dir(dir.path()).unwrap().cluster().is_none());
}

#[tokio::test(start_paused = true)]
async fn stuck_rollout_is_recorded_with_missing_pods() {
    let restarts = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&restarts);
    let (client, _) = api(move |_, path| {
        let mut now = deployment("app:1", 7);
        if seen.load(Ordering::SeqCst) > 0 {
            now["metadata"]["generation"] = 2.into();
            now["status"]["observedGeneration"] = 2.into();
            now["status"]["updatedReplicas"] = 0.into();
        }
        read(path, &now)
    });
    let unsettled = unsettled_after(client, &restarts).await;
    assert_eq!(unsettled.as_deref(), Some("Deployment web: 0 of 1 pods updated, after 300s"));
}
