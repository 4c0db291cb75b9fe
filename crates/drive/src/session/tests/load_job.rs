//! Tests of the Job that sends the load, on clusters that cannot run all its pods.

use std::collections::BTreeMap;

use super::*;
use crate::act::LoadPods;
use rolldrop_record::wire::AdminToken;

const SECRET: &str = "/api/v1/namespaces/shop/secrets/rolldrop-load-my-run";
const JOB: &str = "/apis/batch/v1/namespaces/shop/jobs/rolldrop-load-my-run";
const OWNER: &str = "/api/v1/namespaces/shop/configmaps/rolldrop-run-my-run";

/// Returns the response of a cluster with these load pods, and with these warnings for whatever object is requested.
fn cluster(method: &Method, path: &str, pods: &[Value], warnings: &[Value]) -> (u16, String) {
    let kinds = |group: &str, kinds: &[(&str, &str)]| {
        let resource = |(name, kind): &(&str, &str)| {
            json!({"name": name, "singularName": kind.to_lowercase(), "namespaced": true, "kind": kind,
                "verbs": ["create", "delete", "patch"]})
        };
        let resources: Vec<Value> = kinds.iter().map(resource).collect();
        json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group, "resources": resources})
    };
    let list = |items: &[Value]| json!({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": items});
    let object = |uid: &str| json!({"metadata": {"name": "rolldrop-load-my-run", "uid": uid}});
    let (status, answer) = match (method, path) {
        (&Method::GET, "/api/v1") => {
            (200, kinds("v1", &[("secrets", "Secret"), ("configmaps", "ConfigMap")]))
        }
        (&Method::GET, "/apis/batch/v1") => (200, kinds("batch/v1", &[("jobs", "Job")])),
        (&Method::GET, _) if path.ends_with("/pods") => (200, list(pods)),
        (&Method::GET, _) if path.ends_with("/events") => (200, list(warnings)),
        (&Method::POST, _) if path.ends_with("/configmaps") => (201, owner()),
        (&Method::POST, _) if path.ends_with("/secrets") => (201, object("u-secret")),
        (&Method::POST, _) if path.ends_with("/jobs") => (201, object("u-job")),
        (&Method::PATCH | &Method::DELETE, _) => (200, object("u")),
        _ => return super::status(404, "NotFound", path),
    };
    (status, answer.to_string())
}

async fn make(session: &Session) {
    let token: AdminToken = "secret".parse().unwrap();
    let resources = BTreeMap::from([("memory".to_owned(), "256Mi".to_owned())]);
    let lifetime = Duration::from_secs(3600);
    let (workers, image) = (3, "rolldrop");
    let (collector, evidence) = (None, None);
    let job = LoadJob { workers, image, resources: &resources, token: &token, collector, lifetime, evidence };
    session.make_load_job(&job).await.unwrap();
}

/// Puts the pod with this index into the view.
fn shown(session: &Session, index: usize, is_ready: bool, state: ContainerState) {
    let mut seen = pod(&format!("rolldrop-load-my-run-{index}-abcde"), state);
    seen.event.ready = is_ready;
    seen.event.node = Some(format!("node-{index}"));
    session.observer.views().update(|view| view.see(Change::Applied, seen));
}

/// Returns the pod with this index, as it appears in a list.
fn listed(index: usize, status: &Value) -> Value {
    json!({"metadata": {"name": format!("rolldrop-load-my-run-{index}-abcde")}, "status": status})
}

fn unschedulable() -> Value {
    json!({"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
        "message": "0/3 nodes are available: 3 Insufficient cpu."}]})
}

fn pulling() -> Value {
    let state = json!({"waiting": {"reason": "ErrImagePull", "message": "no such image"}});
    json!({"containerStatuses": [{"name": "load-worker", "image": "x", "imageID": "", "ready": false,
        "restartCount": 0, "state": state}]})
}

#[tokio::test(start_paused = true)]
async fn ownership_links_secret_job_and_run() {
    let patched = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&patched);
    let (client, calls) = api(move |method, path| match *method {
        Method::PATCH if count.fetch_add(1, Ordering::SeqCst) == 0 => {
            status(503, "ServiceUnavailable", "away")
        }
        _ => cluster(method, path, &[], &[]),
    });
    let (session, _, _dir) = session(client, TimeLimits::default());
    make(&session).await;
    finish(session).await;
    let calls = calls.lock().unwrap();
    let of = |wanted: Method| calls.iter().filter(move |(method, ..)| *method == wanted);
    let owners = |body: &Value| body["metadata"]["ownerReferences"].clone();
    let patches: Vec<_> = of(Method::PATCH).map(|(_, path, body)| (path.as_str(), owners(body))).collect();
    let the_job =
        json!([{"apiVersion": "batch/v1", "kind": "Job", "name": "rolldrop-load-my-run", "uid": "u-job"}]);
    assert_eq!(patches, [(SECRET, the_job.clone()), (SECRET, the_job)], "retried, as a repeat is harmless");
    let (_, _, job) = of(Method::POST).find(|(_, path, _)| path.ends_with("/jobs")).unwrap();
    let the_run =
        json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "rolldrop-run-my-run", "uid": "u0"}]);
    assert_eq!(owners(job), the_run);
    assert_eq!(job["spec"]["completionMode"], "Indexed");
    assert_eq!((&job["spec"]["completions"], &job["spec"]["parallelism"]), (&json!(3), &json!(3)));
    let annotations = &job["spec"]["template"]["metadata"]["annotations"];
    assert_eq!(annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"], "false");
    let deleted: Vec<_> = of(Method::DELETE).map(|(_, path, _)| path.as_str()).collect();
    assert_eq!(deleted, [JOB, SECRET, OWNER]);
}

#[tokio::test(start_paused = true)]
async fn load_starts_without_late_workers() {
    let pods = [listed(0, &json!({})), listed(1, &unschedulable()), listed(2, &json!({}))];
    let warning = json!({"metadata": {}, "involvedObject": {"kind": "Job"}, "type": "Warning",
        "reason": "FailedCreate", "message": "pods is forbidden: exceeded quota"});
    let (client, _) = api(move |method, path| cluster(method, path, &pods, std::slice::from_ref(&warning)));
    let (session, _, _dir) = session(client, TimeLimits::default());
    for index in [0, 2] {
        shown(&session, index, true, container("running", "", ""));
    }
    let (told, begun, limit) = (Mutex::new(Vec::new()), Instant::now(), Duration::from_secs(120));
    let tell = |why: &str| told.lock().unwrap().push(why.to_owned());
    let LoadPods { ready, missing } = session.await_load_pods(4, limit, tell).await.unwrap();
    assert!((limit..limit + Duration::from_secs(1)).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    assert_eq!(ready.iter().map(|pod| pod.node.as_str()).collect::<Vec<_>>(), ["node-0", "node-2"]);
    let expected = [
        "load worker rolldrop-load-my-run-1-abcde is not ready: Unschedulable: 0/3 nodes are available: 3 \
         Insufficient cpu.",
        "no pod for 1 of 4 load workers: FailedCreate: pods is forbidden: exceeded quota",
    ];
    assert_eq!(missing, expected);
    assert_eq!(*told.lock().unwrap(), expected, "once, during the wait");
}

#[tokio::test(start_paused = true)]
async fn unpullable_image_ends_pod_wait() {
    let pods = [listed(0, &pulling()), listed(1, &unschedulable())];
    let (client, calls) = api(move |method, path| cluster(method, path, &pods, &[]));
    let (session, _, _dir) = session(client, TimeLimits::default());
    make(&session).await;
    let limit = Duration::from_secs(120);
    let wait = || session.await_load_pods(2, limit, |_| {});
    shown(&session, 0, false, container("waiting", "ErrImagePull", "no such image"));
    shown(&session, 1, false, ContainerState { state: None, ..container("", "", "") });
    let error = wait().await.unwrap_err().to_string();
    let of_both = "no load worker became ready within 120s: load worker rolldrop-load-my-run-0-abcde is not ready: \
        ErrImagePull: no such image; load worker rolldrop-load-my-run-1-abcde is not ready: Unschedulable: 0/3 \
        nodes are available: 3 Insufficient cpu.";
    assert_eq!(error, of_both);
    shown(&session, 1, false, container("waiting", "ImagePullBackOff", "no such image"));
    let begun = Instant::now();
    let error = wait().await.unwrap_err().to_string();
    let of_first = "a pod cannot start: pod rolldrop-load-my-run-0-abcde, container app: ErrImagePull: no such \
        image; use --image to name an image that the cluster can pull";
    assert_eq!(error, of_first);
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    // The same applies to a program that exits immediately.
    let ended =
        ContainerState { exit_code: Some(2), ..container("terminated", "Error", "x\nno such option\n") };
    shown(&session, 0, false, ended.clone());
    shown(&session, 1, false, ended);
    let error = wait().await.unwrap_err().to_string();
    let why = "its container exited with code 2 (Error): no such option";
    assert_eq!(error, format!("a pod cannot start: pod rolldrop-load-my-run-0-abcde: {why}"));
    finish(session).await;
    let calls = calls.lock().unwrap();
    let deleted = calls.iter().filter(|(method, ..)| *method == Method::DELETE);
    assert_eq!(deleted.map(|(_, path, _)| path.as_str()).collect::<Vec<_>>(), [JOB, SECRET, OWNER]);
}
