//! Tests of the services with an API server whose responses each test defines.

mod beats;
mod collecting;
mod conflicts;
mod disrupting;
mod evidence;
mod holding;
mod load_job;
mod phases;
mod planning;
mod reading_sidecars;
mod service_proxy;
mod sidecar_refusals;
mod undoing;
mod unready;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Method, Request, Response, Uri};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::act::disrupt::NoPrograms;
use crate::act::{LoadJob, UnderLoad};
use crate::api::TimeLimits;
use crate::error::CoordinatorError;
use crate::observe::namespace_view;
use crate::observe::ready::await_endpoints;
use crate::plan::{
    LiveChanges, RunPlan, Sidecar, Work, WorkloadSelection, check_holds, check_rights, plan_run,
};
use crate::viewer::Nobody;
use rolldrop_record::event::{Change, ContainerState, EndpointSliceEvent, EndpointState, PodEvent};
use rolldrop_record::{Clock, EventKind, Protocol, RequestId, RunDir, ServedEnd, ServedRow, Stamp};
use rolldrop_scenario as scenario;

/// Calls that an API server received: method, path, body.
pub(crate) type Calls = Arc<Mutex<Vec<(Method, String, Value)>>>;

/// Returns a client whose API server responds with `answer(method, path)`: a status and the text of the body.
pub(crate) fn api(
    answer: impl Fn(&Method, &str) -> (u16, String) + Clone + Send + Sync + 'static,
) -> (Client, Calls) {
    api_of_bodies(move |method, uri, _| answer(method, uri.path()))
}

/// Like [`api`], for an API server whose responses depend on the request bodies.
fn api_of_bodies(
    answer: impl Fn(&Method, &Uri, &Value) -> (u16, String) + Clone + Send + Sync + 'static,
) -> (Client, Calls) {
    let calls = Calls::default();
    let seen = Arc::clone(&calls);
    let service = tower::service_fn(move |request: Request<Body>| {
        let (seen, answer) = (Arc::clone(&seen), answer.clone());
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await?.to_bytes();
            let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
            let (status, text) = answer(&parts.method, &parts.uri, &body);
            let path = parts.uri.path().to_owned();
            seen.lock().unwrap().push((parts.method, path, body));
            let response = Response::builder().status(status).body(Body::from(text.into_bytes()));
            response.map_err(kube::Error::HttpError)
        }
    });
    (Client::new(service, "default"), calls)
}

pub(crate) fn status(code: u16, reason: &str, message: &str) -> (u16, String) {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
        "code": code, "reason": reason, "message": message});
    (code, status.to_string())
}

/// Returns the response of an API server that supports Services, and responds to everything else with `other`.
fn with_discovery(method: &Method, path: &str, other: (u16, String)) -> (u16, String) {
    let resource = |name: &str, kind: &str| {
        json!({"name": name, "singularName": kind.to_lowercase(), "namespaced": true, "kind": kind,
            "verbs": ["create", "delete"]})
    };
    match (method, path) {
        (&Method::GET, "/version") => (200, json!({"gitVersion": "v1.36.2"}).to_string()),
        (&Method::GET, "/api/v1") => {
            let resources = [resource("services", "Service"), resource("configmaps", "ConfigMap")];
            let list = json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "v1",
                "resources": resources});
            (200, list.to_string())
        }
        (&Method::POST, path) if path.ends_with("/configmaps") => (201, owner().to_string()),
        (&Method::GET, _) => status(404, "NotFound", "no such group"),
        _ => other,
    }
}

/// Returns the owner of everything else that the run creates.
fn owner() -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "rolldrop-run-my-run", "uid": "u0"}})
}

fn service() -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "uid": "u1"}})
}

/// Creates a session without watches; the test itself updates the view.
fn session(client: Client, limits: TimeLimits) -> (Session, RunDir, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let run_dir = RunDir::create(&dir.path().join("run")).unwrap();
    let clock = Clock::start();
    let session = Session {
        caller: Caller::in_shop(client, limits, CancellationToken::new()),
        observer: Observer::begin(&run_dir, clock, Arc::new(Nobody)).unwrap(),
        collector: Collector::default(),
        ledger: ChangeLedger::of(Journal::begin(run_dir.path(), clock, "my-run", None).unwrap()),
        applier: Applier::default(),
        disruptor: Disruptor::new(GitOps::Refuse),
        tasks: BackgroundTasks::default(),
    };
    (session, run_dir, dir)
}

/// Finishes a session whose records can be written.
async fn finish(session: Session) -> Closed {
    let closed = session.finish(CancellationToken::new()).await;
    assert!(closed.events.is_ok(), "{:?}", closed.events);
    closed
}

/// Awaits a rollout, which begins as `begun` becomes 1. Returns the end of its record if it does not settle.
async fn unsettled_after(client: Client, begun: &AtomicUsize) -> Option<String> {
    let (session, run_dir, _dir) = session(client, TimeLimits::default());
    let before = rollout_wait::workloads(session.caller()).await.unwrap();
    begun.store(1, Ordering::SeqCst);
    session.await_rollout(&before, None).await.unwrap();
    finish(session).await;
    events_of(&run_dir).into_iter().find_map(|event| match event.kind {
        EventKind::CommandSettled { unsettled, .. } => unsettled,
        _ => None,
    })
}

/// Creates the work for a run that does only what its scenario says.
fn work(scenario: &scenario::Scenario) -> Work<'_> {
    Work {
        scenario,
        secrets: &[],
        live: None,
        has_command: false,
        has_rounds: false,
        beats: false,
        load_workers: None,
        holder: None,
    }
}

impl Session {
    fn now(&self) -> Stamp {
        self.observer.recorder().clock().now()
    }
}

fn beside(zero: Stamp) -> UnderLoad<'static> {
    UnderLoad::of(zero, zero + Duration::from_secs(60), 0.0)
}

fn pod(name: &str, container: ContainerState) -> namespace_view::SeenPod {
    let event = PodEvent {
        change: Change::Applied,
        namespace: "shop".into(),
        name: name.into(),
        uid: format!("uid-{name}"),
        resource_version: "1".into(),
        node: None,
        ip: None,
        phase: "Pending".into(),
        ready: false,
        deletion_timestamp: None,
        deletion_grace_s: None,
        grace_s: 30,
        disruption_target: None,
        disruption_message: None,
        reason: None,
        owner: None,
        containers: vec![container],
    };
    namespace_view::SeenPod { event, admin_port: None }
}

fn container(state: &str, reason: &str, message: &str) -> ContainerState {
    ContainerState {
        name: "app".into(),
        sidecar: false,
        pre_stop_sleep_s: None,
        pre_stop_other: false,
        pre_stop_exec_sleep_s: None,
        pre_stop_program: None,
        state: Some(state.into()),
        reason: Some(reason.into()),
        message: Some(message.into()),
        exit_code: None,
        restarts: 0,
        readiness_probe: None,
        readiness_notices_s: None,
    }
}

pub(crate) fn served(seq: u64) -> ServedRow {
    let at = Stamp::from_unix_ns(1);
    ServedRow {
        source: "web-1".into(),
        request: Some(RequestId::of_parts("k3v9x2ab", "load-0", seq).unwrap()),
        pod: "web-1".into(),
        peer_addr: "127.0.0.1:1".into(),
        protocol: Protocol::Http1,
        accepted: at,
        head: Some(at),
        end: at,
        status: Some(200),
        grpc_status: None,
        ended: ServedEnd::Complete,
        detail: None,
        conn: seq,
        conn_first_request: true,
        stream: None,
        bytes_from_client: None,
        bytes_from_app: None,
    }
}

#[tokio::test]
async fn created_objects_are_owned_and_removed() {
    let (client, calls) = api(|method, path| with_discovery(method, path, (200, service().to_string())));
    let (session, _, _dir) = session(client, TimeLimits::default());
    session.deploy(&[service()]).await.unwrap();
    finish(session).await;
    let calls = calls.lock().unwrap();
    let of = |wanted: Method| {
        let calls = calls.iter().filter(move |(method, ..)| *method == wanted);
        calls.map(|(_, path, body)| (path.clone(), body.clone())).collect::<Vec<_>>()
    };
    let root = "/api/v1/namespaces/shop";
    let [(first, owner), (second, created)] = &of(Method::POST)[..] else { panic!("{calls:?}") };
    assert_eq!([first, second], [&format!("{root}/configmaps"), &format!("{root}/services")]);
    for object in [owner, created] {
        assert_eq!(object["metadata"]["labels"]["rolldrop.dev/run"], "my-run");
    }
    let reference =
        json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "rolldrop-run-my-run", "uid": "u0"}]);
    assert_eq!(created["metadata"]["ownerReferences"], reference);
    let [(first, options), (second, _)] = &of(Method::DELETE)[..] else { panic!("{calls:?}") };
    let owner = format!("{root}/configmaps/rolldrop-run-my-run");
    assert_eq!([first, second], [&format!("{root}/services/web"), &owner]);
    assert_eq!(options["preconditions"]["uid"], "u1", "only what this run created is removed");
}

#[tokio::test(start_paused = true)]
async fn creations_stay_open_after_outage_during_undo() {
    let posts = Arc::new(AtomicUsize::new(0));
    let away = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let (asked, is_away) = (Arc::clone(&posts), Arc::clone(&away));
    let (client, _) = api(move |method, path| {
        if is_away.load(Ordering::SeqCst) {
            return status(503, "ServiceUnavailable", "away");
        }
        match *method {
            Method::POST if path.ends_with("/services") => match asked.fetch_add(1, Ordering::SeqCst) {
                0 => status(504, "Timeout", "it took too long"),
                _ => status(409, "AlreadyExists", "services \"web\" already exists"),
            },
            Method::GET if path.ends_with("/services/web") => {
                let mut own = service();
                own["metadata"]["labels"] = json!({"rolldrop.dev/run": "my-run"});
                (200, own.to_string())
            }
            _ => with_discovery(method, path, (200, service().to_string())),
        }
    });
    let limits = TimeLimits { undo: Duration::from_secs(40), ..TimeLimits::default() };
    let (session, run_dir, _dir) = session(client, limits);
    session.deploy(&[service()]).await.unwrap();
    assert_eq!(posts.load(Ordering::SeqCst), 2);
    away.store(true, Ordering::SeqCst);
    let begun = Instant::now();
    let Closed { undone: left, .. } = finish(session).await;
    assert!(begun.elapsed() <= limits.undo, "{:?}", begun.elapsed());
    assert_eq!(left.len(), 2, "{left:?}");
    let left = Journal::resume(run_dir.path(), Clock::start()).unwrap().0.open_changes();
    assert_eq!(
        left.iter().map(|open| open.object.uid.as_deref()).collect::<Vec<_>>(),
        [Some("u1"), Some("u0")]
    );
}

/// Scenario with its own Service, and pods that it deletes one after another.
const PLANNED: &str = "
apiVersion: rolldrop.dev/v1
kind: Scenario
metadata: {name: x}
spec:
  manifests: [{inline: {apiVersion: v1, kind: Service, metadata: {name: web}}}]
  target: {service: web}
  load: {duration: 10s}
  disruptions: [{at: 0s, action: deletePod, selector: app=web, every: 1ms, repeat: 2, allowOutage: true}]
";

/// Returns the calls that change objects.
fn changing(calls: &Calls) -> Vec<(String, String)> {
    let calls = calls.lock().unwrap();
    let changing = calls.iter().filter(|(method, ..)| *method != Method::GET);
    changing
        .map(|(method, path, _)| (method.to_string(), path.replace("/pods/web-1", "/pods/{pod}")))
        .collect()
}

#[tokio::test]
async fn mutating_calls_follow_plan() {
    let pod = json!({"metadata": {"name": "web-1", "uid": "u"},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    let list = json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": [pod]}).to_string();
    let (client, calls) = api(move |method, path| {
        if path.ends_with("/pods") {
            (200, list.clone())
        } else {
            with_discovery(method, path, (200, service().to_string()))
        }
    });
    let scenario =
        scenario::parse::<Value>(PLANNED, "x.yaml", std::path::Path::new("."), &[]).unwrap().scenario;
    let (session, _, _dir) = session(client, TimeLimits::default());
    let plan = plan_run(&session.caller, &work(&scenario)).await.unwrap();
    assert_eq!(changing(&calls), [], "making a plan only reads");
    insta::assert_snapshot!(plan.effects.join("\n"), @r"
    creates Service web, and removes it at the end
    deletes 1 pod matching app=web, 0.0 s into the load and again every 0.0 s, 2 times in all
    ");
    session.deploy(&scenario.manifests).await.unwrap();
    let zero = session.now();
    session.disrupt(&scenario.disruptions, beside(zero), &NoPrograms).await;
    finish(session).await;
    let planned = plan.calls.iter().filter(|call| call.method() != "GET");
    let planned = planned.map(|call| (call.method().to_owned(), call.path.clone()));
    let owned = |(method, path): (String, String)| {
        (method, path.replace("{rolldrop-run-...}", "rolldrop-run-my-run"))
    };
    let planned: Vec<_> = planned.map(owned).collect();
    assert_eq!(changing(&calls), planned);
    assert_eq!(planned.len(), 6);
}

#[tokio::test]
async fn missing_permissions_are_reported_before_changes() {
    let (client, calls) = api(|method, path| {
        if path.ends_with("/selfsubjectaccessreviews") {
            // The request's content is not available here, so all permissions are denied.
            let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
                "spec": {}, "status": {"allowed": false}});
            (201, review.to_string())
        } else {
            with_discovery(method, path, status(500, "InternalError", "unexpected"))
        }
    });
    let scenario =
        scenario::parse::<Value>(PLANNED, "x.yaml", std::path::Path::new("."), &[]).unwrap().scenario;
    let caller = Caller::in_shop(client, TimeLimits::default(), CancellationToken::new());
    let work = Work { load_workers: Some(3), ..work(&scenario) };
    let plan = plan_run(&caller, &work).await.unwrap();
    let error = check_rights(&caller, &plan).await.unwrap_err().to_string();
    for right in [
        "list endpointslices.discovery.k8s.io in namespace shop",
        "create services in namespace shop",
        "get services web in namespace shop",
        "delete pods in namespace shop",
        "create secrets in namespace shop",
        "patch secrets in namespace shop",
        "create jobs.batch in namespace shop",
        "get pods/proxy in namespace shop",
        "create pods/proxy in namespace shop",
        "delete jobs.batch in namespace shop",
        "delete secrets in namespace shop",
    ] {
        assert!(error.contains(right), "{error}");
    }
    assert!(error.starts_with("missing permissions: ") && !error.contains("nodes"), "{error}");
    assert!(changing(&calls).iter().all(|(_, path)| path.ends_with("/selfsubjectaccessreviews")));
    let asked = calls.lock().unwrap();
    let attributes = asked.iter().map(|(_, _, body)| &body["spec"]["resourceAttributes"]);
    let delete = json!({"verb": "delete", "resource": "pods", "namespace": "shop"});
    assert_eq!(attributes.filter(|attributes| **attributes == delete).count(), 1);
}

#[tokio::test]
async fn deploy_refuses_existing_and_unknown_objects() {
    let (client, _) = api(|method, path| {
        with_discovery(method, path, status(409, "AlreadyExists", "services \"web\" already exists"))
    });
    let (session, _, _dir) = session(client, TimeLimits::default());
    let error = session.deploy(&[service()]).await.unwrap_err().to_string();
    assert!(error.starts_with("Service web already exists"), "{error}");
    let other = json!({"apiVersion": "x.example/v1", "kind": "Widget", "metadata": {"name": "w"}});
    let error = session.deploy(&[other]).await.unwrap_err().to_string();
    assert!(error.starts_with("the cluster does not know Widget (x.example/v1): "), "{error}");
}

#[tokio::test]
async fn unstartable_pod_ends_endpoint_wait() {
    let (client, _) = api(|_, _| status(404, "NotFound", ""));
    let limits = TimeLimits { stuck: Duration::ZERO, ..TimeLimits::default() };
    let (session, _, _dir) = session(client, limits);
    let stuck = pod("web-1", container("waiting", "RunContainerError", "exec: \"nope\": not found"));
    session.observer.views().update(|view| {
        view.pods.insert(stuck.event.uid.clone(), stuck);
    });
    let error =
        await_endpoints(&session.caller, &session.observer, "web", None, 1).await.unwrap_err().to_string();
    assert_eq!(
        error,
        "a pod cannot start: pod web-1, container app: RunContainerError: exec: \"nope\": not found"
    );
}

#[tokio::test]
async fn endpoint_wait_needs_enough_ready_endpoints() {
    let (client, _) = api(|_, _| status(404, "NotFound", ""));
    let limits = TimeLimits { ready: Duration::ZERO, ..TimeLimits::default() };
    let (session, _, _dir) = session(client, limits);
    let endpoint = |pod: &str, ready| EndpointState {
        pod: Some(pod.into()),
        address: "10.0.0.1".into(),
        ready,
        serving: ready,
        terminating: false,
        node: None,
    };
    let slice = EndpointSliceEvent {
        change: Change::Applied,
        namespace: "shop".into(),
        name: "web-abc".into(),
        service: Some("web".into()),
        endpoints: vec![endpoint("a", true), endpoint("b", false)],
    };
    session.observer.views().update(|view| {
        view.slices.insert(slice.name.clone(), slice);
    });
    assert_eq!(await_endpoints(&session.caller, &session.observer, "web", None, 1).await.unwrap(), 1);
    let error =
        await_endpoints(&session.caller, &session.observer, "web", None, 2).await.unwrap_err().to_string();
    assert!(error.starts_with("service web has 1 of 2 endpoints ready after"), "{error}");
}

fn events_of(run_dir: &RunDir) -> Vec<rolldrop_record::Event> {
    let text = std::fs::read_to_string(run_dir.path().join("events.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}
