//! The coordinator against an API server that answers as told.

mod beats;
mod conflicts;
mod disrupting;
mod evidence;
mod load_job;
mod phases;
mod rows;
mod service_proxy;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::{Method, Request, Response};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use serde_json::json;
use tempfile::TempDir;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::Value;
use std::sync::Mutex;
use std::time::Duration;
use tokio::sync::OnceCell;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::disrupt::NoPrograms;
use super::journal::Journal;
use super::recorder::Recorder;
use super::view::Views;
use super::*;
use crate::scenario;
use crate::scenario::{Disruption, Place, Target};
use rolldrop_record::event::{
    Change, ContainerState, EndpointSliceEvent, EndpointState, PodEvent, ProxyPhase,
};
use rolldrop_record::run_info::Rows;
use rolldrop_record::run_info::{ClusterInfo, Source};
use rolldrop_record::wire::ProxyLine;
use rolldrop_record::{Clock, EventKind, RunDir, Stamp};
use rolldrop_record::{Protocol, ServedEnd, ServedRow};

/// The calls that an API server got: method, path, body.
type Calls = Arc<Mutex<Vec<(Method, String, Value)>>>;

/// A client whose API server answers with `answer(method, path)`: a status and the body's text.
fn api(answer: impl Fn(&Method, &str) -> (u16, String) + Clone + Send + Sync + 'static) -> (Client, Calls) {
    let calls = Calls::default();
    let seen = Arc::clone(&calls);
    let service = tower::service_fn(move |request: Request<Body>| {
        let (seen, answer) = (Arc::clone(&seen), answer.clone());
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await?.to_bytes();
            let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
            let path = parts.uri.path().to_owned();
            let (status, text) = answer(&parts.method, &path);
            seen.lock().unwrap().push((parts.method, path, body));
            let response = Response::builder().status(status).body(Body::from(text.into_bytes()));
            response.map_err(kube::Error::HttpError)
        }
    });
    (Client::new(service, "default"), calls)
}

fn status(code: u16, reason: &str, message: &str) -> (u16, String) {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
        "code": code, "reason": reason, "message": message});
    (code, status.to_string())
}

/// An API server that knows Services, and answers everything else with `other`.
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

/// What owns the rest.
fn owner() -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "rolldrop-run-my-run", "uid": "u0"}})
}

fn service() -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "uid": "u1"}})
}

/// A session without watches: the test says what they show.
fn session(client: Client, limits: Limits) -> (Session, RunDir, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let run_dir = RunDir::create(&dir.path().join("run")).unwrap();
    let clock = Clock::start();
    let session = Session {
        caller: Caller { client, namespace: "shop".into(), limits, stop: CancellationToken::new() },
        clock,
        recorder: Recorder::start(&run_dir, clock).unwrap(),
        views: Views::new(),
        collector: collect::Collector::default(),
        tasks: JoinSet::new(),
        tasks_stop: CancellationToken::new(),
        journal: Mutex::new(Journal::begin(run_dir.path(), clock, "my-run", None).unwrap()),
        owner: OnceCell::new(),
        taken: tokio::sync::Mutex::default(),
        gitops: GitOps::Refuse,
        period: Mutex::default(),
    };
    (session, run_dir, dir)
}

/// A load of a minute.
fn beside(zero: Stamp) -> UnderLoad<'static> {
    UnderLoad::of(zero, zero + Duration::from_secs(60), 0.0)
}

fn pod(name: &str, container: ContainerState) -> view::SeenPod {
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
    view::SeenPod { event, admin_port: None }
}

fn container(state: &str, reason: &str, message: &str) -> ContainerState {
    ContainerState {
        name: "app".into(),
        sidecar: false,
        pre_stop_sleep_s: None,
        pre_stop_other: false,
        state: Some(state.into()),
        reason: Some(reason.into()),
        message: Some(message.into()),
        exit_code: None,
        restarts: 0,
        readiness_probe: None,
    }
}

pub(super) fn served(seq: u64) -> ServedRow {
    let at = Stamp::from_unix_ns(1);
    ServedRow {
        source: "web-1".into(),
        request: Some(rolldrop_record::RequestId::new(None, "load-0", seq)),
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
async fn what_is_created_is_labelled_with_the_run_owned_by_it_and_removed_at_the_end() {
    let (client, calls) = api(|method, path| with_discovery(method, path, (200, service().to_string())));
    let (session, _, _dir) = session(client, Limits::default());
    session.deploy(&[service()]).await.unwrap();
    session.finish(CancellationToken::new()).await.unwrap();
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
async fn a_creation_whose_answer_is_lost_is_known_again_and_what_cannot_be_undone_stays_written_down() {
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
    let limits = Limits { undo: Duration::from_secs(40), ..Limits::default() };
    let (session, run_dir, _dir) = session(client, limits);
    session.deploy(&[service()]).await.unwrap();
    assert_eq!(posts.load(Ordering::SeqCst), 2);
    away.store(true, Ordering::SeqCst);
    let begun = Instant::now();
    let (_, left) = session.finish(CancellationToken::new()).await.unwrap();
    assert!(begun.elapsed() <= limits.undo, "{:?}", begun.elapsed());
    assert_eq!(left.len(), 2, "{left:?}");
    let left = Journal::resume(run_dir.path(), Clock::start()).unwrap().0.open_changes();
    assert_eq!(
        left.iter().map(|open| open.object.uid.as_deref()).collect::<Vec<_>>(),
        [Some("u1"), Some("u0")]
    );
}

/// A Service of the run's own, and pods that it deletes one after the other.
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

/// The calls that change something.
fn changing(calls: &Calls) -> Vec<(String, String)> {
    let calls = calls.lock().unwrap();
    let changing = calls.iter().filter(|(method, ..)| *method != Method::GET);
    changing
        .map(|(method, path, _)| (method.to_string(), path.replace("/pods/web-1", "/pods/{pod}")))
        .collect()
}

#[tokio::test]
async fn the_calls_that_change_something_are_those_of_the_plan_in_their_order() {
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
    let (session, _, _dir) = session(client, Limits::default());
    let work = Work {
        scenario: &scenario,
        secrets: &[],
        sidecars: None,
        has_command: false,
        beats: false,
        load_workers: None,
    };
    let plan = session.caller.plan(&work).await.unwrap();
    assert_eq!(changing(&calls), [], "making a plan only reads");
    insta::assert_snapshot!(plan.effects.join("\n"), @r"
    creates Service web, and removes it at the end
    deletes 1 pod of app=web, 0.0 s into the load and again every 0.0 s, 2 times in all
    ");
    session.deploy(&scenario.manifests).await.unwrap();
    let zero = session.clock.now();
    session.disrupt(&scenario.disruptions, beside(zero), &NoPrograms).await;
    session.finish(CancellationToken::new()).await.unwrap();
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
async fn a_missing_right_is_named_before_anything_is_touched() {
    let (client, calls) = api(|method, path| {
        if path.ends_with("/selfsubjectaccessreviews") {
            // What is asked is not known here: the answer to all is no.
            let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
                "spec": {}, "status": {"allowed": false}});
            (201, review.to_string())
        } else {
            with_discovery(method, path, status(500, "InternalError", "unexpected"))
        }
    });
    let scenario =
        scenario::parse::<Value>(PLANNED, "x.yaml", std::path::Path::new("."), &[]).unwrap().scenario;
    let caller = Caller {
        client,
        namespace: "shop".into(),
        limits: Limits::default(),
        stop: CancellationToken::new(),
    };
    let work = Work {
        scenario: &scenario,
        secrets: &[],
        sidecars: None,
        has_command: false,
        beats: false,
        load_workers: Some(3),
    };
    let plan = caller.plan(&work).await.unwrap();
    let error = caller.check_rights(&plan).await.unwrap_err().to_string();
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
    assert!(error.starts_with("rights are missing: ") && !error.contains("nodes"), "{error}");
    assert!(changing(&calls).iter().all(|(_, path)| path.ends_with("/selfsubjectaccessreviews")));
    let asked = calls.lock().unwrap();
    let attributes = asked.iter().map(|(_, _, body)| &body["spec"]["resourceAttributes"]);
    let delete = json!({"verb": "delete", "resource": "pods", "namespace": "shop"});
    assert_eq!(attributes.filter(|attributes| **attributes == delete).count(), 1);
}

#[tokio::test]
async fn an_object_that_exists_is_never_taken_over_and_an_unknown_kind_is_named() {
    let (client, _) = api(|method, path| {
        with_discovery(method, path, status(409, "AlreadyExists", "services \"web\" already exists"))
    });
    let (session, _, _dir) = session(client, Limits::default());
    let error = session.deploy(&[service()]).await.unwrap_err().to_string();
    assert!(error.starts_with("Service web exists already"), "{error}");
    let other = json!({"apiVersion": "x.example/v1", "kind": "Widget", "metadata": {"name": "w"}});
    let error = session.deploy(&[other]).await.unwrap_err().to_string();
    assert_eq!(error, "the cluster has no Widget of x.example/v1");
}

#[tokio::test]
async fn a_pod_that_says_why_it_cannot_start_ends_the_wait() {
    let (client, _) = api(|_, _| status(404, "NotFound", ""));
    let limits = Limits { stuck: Duration::ZERO, ..Limits::default() };
    let (session, _, _dir) = session(client, limits);
    let stuck = pod("web-1", container("waiting", "RunContainerError", "exec: \"nope\": not found"));
    session.views.update(|view| {
        view.pods.insert(stuck.event.uid.clone(), stuck);
    });
    let error = session.await_endpoints("web", 1).await.unwrap_err().to_string();
    assert_eq!(
        error,
        "a pod never starts: pod web-1, container app: RunContainerError: exec: \"nope\": not found"
    );
}

#[tokio::test]
async fn the_wait_for_endpoints_counts_ready_ones_and_has_a_limit() {
    let (client, _) = api(|_, _| status(404, "NotFound", ""));
    let limits = Limits { ready: Duration::ZERO, ..Limits::default() };
    let (session, _, _dir) = session(client, limits);
    let endpoint = |pod: &str, ready| EndpointState {
        pod: Some(pod.into()),
        address: "10.0.0.1".into(),
        ready,
        serving: ready,
        terminating: false,
    };
    let slice = EndpointSliceEvent {
        change: Change::Applied,
        namespace: "shop".into(),
        name: "web-abc".into(),
        service: Some("web".into()),
        endpoints: vec![endpoint("a", true), endpoint("b", false)],
    };
    session.views.update(|view| {
        view.slices.insert(slice.name.clone(), slice);
    });
    assert_eq!(session.await_endpoints("web", 1).await.unwrap(), 1);
    let error = session.await_endpoints("web", 2).await.unwrap_err().to_string();
    assert!(error.starts_with("service web has 1 of 2 endpoints ready after"), "{error}");
}

/// The first line of a proxy that started at `started`, before the row `next`.
fn hello(started: i64, next: u64) -> ProxyLine {
    let started_ns = Stamp::from_unix_ns(started);
    ProxyLine::Hello { source: "web-1".into(), pod: "web-1".into(), started_ns, next }
}

fn end(recorded: u64) -> ProxyLine {
    ProxyLine::End { recorded }
}

fn pre_stop(t_ns: i64) -> ProxyLine {
    ProxyLine::Phase { phase: ProxyPhase::PreStop, t_ns: Stamp::from_unix_ns(t_ns) }
}

#[tokio::test]
async fn a_proxys_rows_are_recorded_once_and_its_end_is_counted() {
    let rows = |seqs: [u64; 2]| seqs.map(|seq| ProxyLine::Row(served(seq)));
    let first = [vec![hello(7, 0), pre_stop(1)], rows([0, 1]).to_vec()].concat();
    // It broke off, and goes on where it was; every stream tells the phases.
    let second = [vec![hello(7, 2), pre_stop(1)], rows([2, 3]).to_vec(), vec![end(4)]].concat();
    let collected = collected(vec![first, second]).await;
    let rows = Rows { recorded: Some(4), known: 4, in_flight: 0, received: 4 };
    assert_eq!(collected.ends, [("web-1".to_owned(), rows)]);
    assert_eq!(collected.rows, [0, 1, 2, 3].map(served));
    assert_eq!(collected.phases, ["web-1"]);
}

#[tokio::test]
async fn a_proxy_that_was_killed_is_another_source_and_what_it_had_is_known_to_be_missing() {
    let state = ProxyLine::State { recorded: 5, in_flight: 3 };
    let killed = vec![hello(7, 0), pre_stop(1), ProxyLine::Row(served(0)), state];
    let restarted = vec![hello(8, 0), pre_stop(2), ProxyLine::Row(served(0)), end(1)];
    let collected = collected(vec![killed, restarted]).await;
    let lost = Rows { recorded: None, known: 5, in_flight: 3, received: 1 };
    let whole = Rows { recorded: Some(1), known: 1, in_flight: 0, received: 1 };
    assert_eq!(collected.ends, [("web-1".to_owned(), lost), ("web-1~1".to_owned(), whole)]);
    assert_eq!(collected.rows, [served(0), ServedRow { source: "web-1~1".into(), ..served(0) }]);
    assert_eq!(collected.phases, ["web-1", "web-1~1"]);
}

#[tokio::test]
async fn a_proxy_that_is_restarted_after_a_clean_end_is_followed_on() {
    let lives = [7, 8].map(|started| vec![hello(started, 0), ProxyLine::Row(served(0)), end(1)]);
    let collected = collected(lives.to_vec()).await;
    let whole = Rows { recorded: Some(1), known: 1, in_flight: 0, received: 1 };
    assert_eq!(collected.ends, [("web-1".to_owned(), whole), ("web-1~1".to_owned(), whole)]);
    assert_eq!(collected.rows.len(), 2);
}

#[tokio::test]
async fn a_proxy_that_asks_for_a_token_is_named_once() {
    // As the API server passes on what the admin port answers.
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let (client, _) = api(move |_, path| {
        if path.ends_with("/rows") {
            count.fetch_add(1, Ordering::SeqCst);
        }
        (401, "the admin port asks for a token\n".to_owned())
    });
    let events = events_until_asked_thrice(client, &asked).await;
    assert_eq!(warnings(&events), ["the proxy of pod web-1 requires a token (--admin-token-file)"]);
}

#[tokio::test]
async fn a_proxy_whose_line_has_no_end_is_named_once_and_not_read_on() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let (client, _) = api(move |_, path| {
        if !path.ends_with("/rows") {
            // The clock's answer does not end either.
            return (200, " ".repeat(1 << 20));
        }
        count.fetch_add(1, Ordering::SeqCst);
        let good: String = [hello(7, 0), ProxyLine::Row(served(0))]
            .iter()
            .map(|line| serde_json::to_string(line).unwrap() + "\n")
            .collect();
        (200, good + &"x".repeat(lines::LINE_BYTES + 1) + "\n" + "{}\n")
    });
    let events = events_until_asked_thrice(client, &asked).await;
    assert_eq!(
        warnings(&events),
        ["the proxy of pod web-1 sends data that cannot be read: a line is longer than 65536 bytes"]
    );
    assert!(!events.iter().any(|event| matches!(event.kind, EventKind::ClockSample { .. })));
}

#[tokio::test(start_paused = true)]
async fn an_interrupted_run_has_what_the_proxies_have_and_waits_for_none_that_cannot_be_asked() {
    let limits = Limits { outage: Duration::from_secs(3600), ..Limits::default() };
    for is_away in [false, true] {
        let asked = AtomicUsize::new(0);
        let streams = Arc::new((asked, [0, 1].map(|row| [hello(7, row), ProxyLine::Row(served(row))])));
        let (client, _) = api(move |_, path| {
            let (asked, streams) = &*streams;
            let clock = json!({"now_ns": 8, "started_ns": 7, "recorded": 2});
            match path.rsplit('/').next() {
                _ if is_away => status(500, "InternalError", "out of order"),
                Some("clock") => (200, clock.to_string()),
                // A row at a time.
                _ => match streams.get(asked.fetch_add(1, Ordering::SeqCst)) {
                    Some(lines) => {
                        (200, lines.iter().map(|line| serde_json::to_string(line).unwrap() + "\n").collect())
                    }
                    None => status(503, "ServiceUnavailable", "away"),
                },
            }
        });
        let (session, _run_dir, _dir) = session(client, limits);
        let (stop, running) = follow_proxies(&session);
        while session.collector.sources().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let begun = Instant::now();
        session.hand_over().await;
        assert!(begun.elapsed() <= 2 * limits.hand_over, "{:?}", begun.elapsed());
        let rows = session.collector.sources().pop().unwrap().rows.unwrap();
        let received = if is_away { 0 } else { 2 };
        assert_eq!((rows.received, rows.recorded), (received, (!is_away).then_some(2)));
        stop.cancel();
        running.await.unwrap();
        session.finish(CancellationToken::new()).await.unwrap();
    }
}

/// What is recorded of a proxy whose rows are asked for three times.
async fn events_until_asked_thrice(client: Client, asked: &AtomicUsize) -> Vec<rolldrop_record::Event> {
    let (session, run_dir, _dir) = session(client, Limits::default());
    let (stop, running) = follow_proxies(&session);
    let again = async {
        while asked.load(Ordering::SeqCst) < 3 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), again).await.unwrap();
    stop.cancel();
    running.await.unwrap();
    session.finish(CancellationToken::new()).await.unwrap();
    events_of(&run_dir)
}

fn warnings(events: &[rolldrop_record::Event]) -> Vec<&str> {
    let warnings = events.iter().filter_map(|event| match &event.kind {
        EventKind::Warning { message } => Some(message.as_str()),
        _ => None,
    });
    warnings.collect()
}

/// Collects what the proxy of the pod `web-1` records.
fn follow_proxies(session: &Session) -> (CancellationToken, tokio::task::JoinHandle<()>) {
    let mut running = pod("web-1", container("running", "", ""));
    running.admin_port = Some(8082);
    session.views.update(|view| {
        view.pods_listed = true;
        view.pods.insert(running.event.uid.clone(), running);
    });
    let context = collect::Context {
        client: session.caller.client.clone(),
        namespace: "shop".into(),
        clock: session.clock,
        recorder: session.recorder.handle(),
        admin_token: None,
    };
    let stop = CancellationToken::new();
    let running = collect::run(session.collector.clone(), context, session.views.subscribe(), stop.clone());
    (stop, tokio::spawn(running))
}

/// What is recorded of a proxy.
struct Collected {
    ends: Vec<(String, Rows)>,
    rows: Vec<ServedRow>,
    /// The sources that spoke of a phase.
    phases: Vec<String>,
}

/// What is recorded of a proxy whose row streams say this, one after the other. The last one ends.
async fn collected(streams: Vec<Vec<ProxyLine>>) -> Collected {
    let text = |lines: &Vec<ProxyLine>| {
        let lines = lines.iter().map(|line| serde_json::to_string(line).unwrap() + "\n");
        lines.collect::<String>()
    };
    let texts: Vec<String> = streams.iter().map(text).collect();
    let asked = Arc::new(AtomicUsize::new(0));
    let (client, _) = api(move |_, path| match path.rsplit('/').next() {
        Some("rows") => {
            let text = texts.get(asked.fetch_add(1, Ordering::SeqCst));
            (200, text.cloned().unwrap_or_default())
        }
        _ => (503, String::new()),
    });
    let (session, run_dir, _dir) = session(client, Limits::default());
    let collector = session.collector.clone();
    let (stop, running) = follow_proxies(&session);
    let whole = |source: &Source| source.rows.is_some_and(|rows| rows.recorded.is_some());
    let has_ended = async {
        while !collector.sources().last().is_some_and(whole) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    // Of two lives, the first one's end is no end.
    let lives = async {
        let started = |line: &ProxyLine| match line {
            ProxyLine::Hello { started_ns, .. } => Some(*started_ns),
            _ => None,
        };
        let lives: BTreeSet<Stamp> = streams.iter().flatten().filter_map(started).collect();
        while collector.sources().len() < lives.len() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        has_ended.await;
    };
    tokio::time::timeout(Duration::from_secs(20), lives).await.unwrap();
    collector.catch_up(&Limits { hand_over: Duration::from_secs(5), ..Limits::default() }).await;
    stop.cancel();
    running.await.unwrap();
    session.finish(CancellationToken::new()).await.unwrap();
    let (mut ends, mut phases) = (Vec::new(), Vec::new());
    for event in events_of(&run_dir) {
        match event.kind {
            EventKind::ProxyEnded { of, rows, .. } => ends.push((of, rows)),
            EventKind::ProxyPhase { .. } => phases.push(event.source),
            _ => {}
        }
    }
    let rows = rolldrop_record::parts::read_table::<ServedRow>(run_dir.path()).unwrap();
    Collected { ends, rows, phases }
}

fn events_of(run_dir: &RunDir) -> Vec<rolldrop_record::Event> {
    let text = std::fs::read_to_string(run_dir.path().join("events.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}
