//! Tests of the embedded cluster through its HTTP API, with the client that the rest of the program uses.

use std::net::Ipv4Addr;
use std::pin::pin;
use std::time::Duration;

use futures::{AsyncBufReadExt, StreamExt, TryStreamExt};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Endpoints, Namespace, Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{
    Api, DeleteParams, ListParams, LogParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams,
};
use kube::{Client, Config as ClientConfig, ResourceExt};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use hop_latency::HopLatencies;

/// Time limit that is long enough for a machine busy with other tests.
const PATIENCE: Duration = Duration::from_secs(30);

/// Script that runs until SIGTERM. As process 1, it needs a handler for that.
const IDLE: &str = "trap 'exit 0' TERM; sleep 1000 & wait";

struct Fixture {
    cluster: Embedded,
    client: Client,
    _dir: tempfile::TempDir,
}

/// Starts a cluster without delays, and a client for it.
async fn start() -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let options = EmbeddedOptions {
        log_dir: dir.path().to_owned(),
        listener: std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap(),
        entered: None,
        own_binary: "/nonexistent".into(),
    };
    let config =
        ClusterConfig { latencies: HopLatencies::ZERO, first_probe_missed: 0.0, ..ClusterConfig::default() };
    let cluster = Embedded::start(config, options).await.unwrap();
    let client = Client::try_from(client_config(&cluster).await).unwrap();
    Fixture { cluster, client, _dir: dir }
}

async fn client_config(cluster: &Embedded) -> ClientConfig {
    let kubeconfig = serde_json::from_str(&cluster.kubeconfig()).unwrap();
    let mut config = ClientConfig::from_custom_kubeconfig(kubeconfig, &Default::default()).await.unwrap();
    // The tests check each response as it arrives, without retries.
    config.default_retry = false;
    config
}

async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    let result = tokio::time::timeout(PATIENCE, future).await;
    result.unwrap_or_else(|_| panic!("timed out after {PATIENCE:?} waiting for {what}"))
}

fn object<T: serde::de::DeserializeOwned>(value: serde_json::Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// Returns a pod that does nothing until it is terminated.
fn idle_pod(name: &str) -> Pod {
    object(json!({
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"containers": [{
            "name": "app", "image": "host",
            "command": ["sh", "-c", format!("echo started; {IDLE}")],
        }]},
    }))
}

fn deployment(replicas: i32) -> Deployment {
    object(json!({
        "metadata": {"name": "web"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{
                    "name": "app", "image": "host", "command": ["sh", "-c", IDLE],
                    "ports": [{"name": "http", "containerPort": 8080}],
                }]},
            },
        },
    }))
}

async fn wait_for<T>(api: &Api<T>, name: &str, what: &str, done: impl Fn(&T) -> bool) -> T
where
    T: kube::Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + 'static,
{
    let events = kube::runtime::watcher(api.clone(), kube::runtime::watcher::Config::default());
    let mut objects = pin!(kube::runtime::WatchStreamExt::applied_objects(events));
    within(what, async {
        loop {
            let object = objects.next().await.unwrap().unwrap();
            if object.name_any() == name && done(&object) {
                return object;
            }
        }
    })
    .await
}

fn is_running(pod: &Pod) -> bool {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running")
}

#[tokio::test]
async fn api_server_rejects_unknown_token() {
    let fixture = start().await;
    let mut config = client_config(&fixture.cluster).await;
    config.auth_info.token = Some("guess".to_owned().into());
    let stranger = Client::try_from(config).unwrap();
    match stranger.apiserver_version().await.unwrap_err() {
        kube::Error::Api(status) => assert_eq!((status.code, status.reason.as_str()), (401, "Unauthorized")),
        other => panic!("{other}"),
    }
    let version = fixture.client.apiserver_version().await.unwrap();
    assert_eq!(version.git_version, version::GIT_VERSION);
    fixture.cluster.stop().await;
}

#[tokio::test]
async fn new_cluster_has_default_objects() {
    let fixture = start().await;
    let namespaces =
        Api::<Namespace>::all(fixture.client.clone()).list(&ListParams::default()).await.unwrap();
    assert!(namespaces.items.iter().any(|namespace| namespace.name_any() == "default"));
    let nodes = Api::<Node>::all(fixture.client.clone()).list(&ListParams::default()).await.unwrap();
    assert_eq!(nodes.items.len(), 1);
    let maps = Api::<ConfigMap>::namespaced(fixture.client.clone(), "kube-system");
    let settings = maps.get("kube-proxy").await.unwrap().data.unwrap()["config.conf"].clone();
    assert!(settings.contains("mode: userspace"), "{settings}");
    fixture.cluster.stop().await;
}

#[tokio::test]
async fn watch_reports_config_map_lifecycle() {
    let fixture = start().await;
    let maps = Api::<ConfigMap>::default_namespaced(fixture.client.clone());
    let version = maps.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    let mut watch = pin!(maps.watch(&WatchParams::default().labels("kind=test"), &version).await.unwrap());

    let map: ConfigMap =
        object(json!({"metadata": {"name": "a", "labels": {"kind": "test"}}, "data": {"k": "1"}}));
    let created = maps.create(&PostParams::default(), &map).await.unwrap();
    assert!(created.uid().is_some());
    let again = maps.create(&PostParams::default(), &map).await.unwrap_err();
    assert!(
        matches!(again, kube::Error::Api(status) if status.code == 409 && status.reason == "AlreadyExists")
    );
    let patch = Patch::Merge(json!({"data": {"k": "2"}}));
    maps.patch("a", &PatchParams::default(), &patch).await.unwrap();
    let stale = maps.replace("a", &PostParams::default(), &created).await.unwrap_err();
    assert!(matches!(stale, kube::Error::Api(status) if status.code == 409 && status.reason == "Conflict"));
    let apply = Patch::Apply(json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"l": "3"}}));
    maps.patch("a", &PatchParams::apply("test"), &apply).await.unwrap();
    assert_eq!(maps.list(&ListParams::default().labels("kind=test")).await.unwrap().items.len(), 1);
    assert_eq!(maps.list(&ListParams::default().labels("kind,kind!=test")).await.unwrap().items.len(), 0);
    maps.delete("a", &DeleteParams::default()).await.unwrap();
    assert!(maps.get_opt("a").await.unwrap().is_none());

    let mut seen = Vec::new();
    while seen.len() < 4 {
        let event = within("a watch event", watch.try_next()).await.unwrap().unwrap();
        let (name, map) = match event {
            WatchEvent::Added(map) => ("added", map),
            WatchEvent::Modified(map) => ("modified", map),
            WatchEvent::Deleted(map) => ("deleted", map),
            other => panic!("{other:?}"),
        };
        seen.push((name, map.data.unwrap().values().cloned().collect::<String>()));
    }
    let expected = [("added", "1"), ("modified", "2"), ("modified", "23"), ("deleted", "23")];
    assert_eq!(seen, expected.map(|(name, data)| (name, data.to_owned())));
    fixture.cluster.stop().await;
}

#[tokio::test]
async fn pod_writes_logs_and_terminates_gracefully() {
    let fixture = start().await;
    let pods = Api::<Pod>::default_namespaced(fixture.client.clone());
    pods.create(&PostParams::default(), &idle_pod("idle")).await.unwrap();
    let pod = wait_for(&pods, "idle", "the pod runs", is_running).await;
    assert_eq!(pod.spec.unwrap().node_name.as_deref(), Some("node-1"));
    let follow = LogParams { follow: true, ..LogParams::default() };
    let log = pods.log_stream("idle", &follow).await.unwrap();
    let line = within("a log line", log.lines().try_next()).await.unwrap();
    assert_eq!(line.as_deref(), Some("started"));

    let deleted = pods.delete("idle", &DeleteParams::default().grace_period(7)).await.unwrap();
    let deleted = deleted.left().expect("the pod, on its way out");
    assert_eq!(deleted.metadata.deletion_grace_period_seconds, Some(7));
    assert_eq!(deleted.metadata.generation, Some(2));
    let uid = deleted.uid().unwrap();
    let gone = kube::runtime::wait::await_condition(
        pods.clone(),
        "idle",
        kube::runtime::wait::conditions::is_deleted(&uid),
    );
    within("the pod is gone", gone).await.unwrap();
    fixture.cluster.stop().await;
}

#[tokio::test]
async fn api_server_streams_pod_response() {
    let fixture = start().await;
    let pods = Api::<Pod>::default_namespaced(fixture.client.clone());
    pods.create(&PostParams::default(), &idle_pod("idle")).await.unwrap();
    let pod = wait_for(&pods, "idle", "the pod runs", is_running).await;
    let ip: Ipv4Addr = pod.status.unwrap().pod_ip.unwrap().parse().unwrap();
    // The test acts as the pod, whose address is on loopback.
    let listener = TcpListener::bind((ip, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let path = format!("/api/v1/namespaces/default/pods/idle:{port}/proxy/rows/a?from=1");
    let request = http::Request::get(path).body(Vec::new()).unwrap();
    let asking = tokio::spawn({
        let client = fixture.client.clone();
        async move { client.request_stream(request).await.unwrap().lines() }
    });
    let (mut pod_side, _) = within("the request", listener.accept()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        assert_ne!(within("the request's head", pod_side.read_buf(&mut head)).await.unwrap(), 0);
    }
    let head = String::from_utf8(head).unwrap();
    assert!(head.starts_with("GET /rows/a?from=1 HTTP/1.1\r\n"), "{head}");
    assert!(!head.to_lowercase().contains("authorization"), "{head}");
    pod_side.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await.unwrap();
    let mut lines = within("the answer's head", asking).await.unwrap();
    // Each line arrives before the next one is sent.
    for word in ["one", "two", "six"] {
        pod_side.write_all(format!("4\r\n{word}\n\r\n").as_bytes()).await.unwrap();
        assert_eq!(within("a line", lines.try_next()).await.unwrap().as_deref(), Some(word));
    }
    fixture.cluster.stop().await;
}

#[tokio::test]
async fn deployment_rolls_out_scales_and_cleans_up() {
    let fixture = start().await;
    let deployments = Api::<Deployment>::default_namespaced(fixture.client.clone());
    let pods = Api::<Pod>::default_namespaced(fixture.client.clone());
    let slices = Api::<EndpointSlice>::default_namespaced(fixture.client.clone());
    let services = Api::<Service>::default_namespaced(fixture.client.clone());
    let service: Service = object(json!({
        "metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 18080, "targetPort": "http"}]},
    }));
    services.create(&PostParams::default(), &service).await.unwrap();
    deployments.create(&PostParams::default(), &deployment(2)).await.unwrap();
    let settled = |replicas: i32| {
        move |deployment: &Deployment| {
            let status = deployment.status.clone().unwrap_or_default();
            status.observed_generation == deployment.metadata.generation
                && status.updated_replicas.unwrap_or(0) == replicas
                && status.available_replicas.unwrap_or(0) == replicas
                && status.replicas.unwrap_or(0) == replicas
        }
    };
    wait_for(&deployments, "web", "two replicas", settled(2)).await;
    let ready = |count: usize| {
        move |slice: &EndpointSlice| {
            let endpoints = slice.endpoints.iter().flatten();
            endpoints
                .filter(|endpoint| endpoint.conditions.as_ref().and_then(|is| is.ready) == Some(true))
                .count()
                == count
        }
    };
    let name = within("a slice", async {
        loop {
            let list =
                slices.list(&ListParams::default().labels("kubernetes.io/service-name=web")).await.unwrap();
            if let Some(slice) = list.items.first() {
                return slice.name_any();
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    let slice = wait_for(&slices, &name, "two ready endpoints", ready(2)).await;
    assert_eq!(slice.ports.unwrap()[0].port, Some(8080));
    let legacy = Api::<Endpoints>::default_namespaced(fixture.client.clone());
    let addresses = |endpoints: &Endpoints| {
        endpoints.subsets.iter().flatten().flat_map(|subset| subset.addresses.iter().flatten()).count()
    };
    wait_for(&legacy, "web", "two legacy addresses", |endpoints| addresses(endpoints) == 2).await;

    let first: Vec<_> =
        pods.list(&ListParams::default()).await.unwrap().into_iter().map(|pod| pod.name_any()).collect();
    deployments.restart("web").await.unwrap();
    wait_for(&deployments, "web", "the rollout", settled(2)).await;
    let live = |pod: &Pod| pod.metadata.deletion_timestamp.is_none();
    let second = pods.list(&ListParams::default()).await.unwrap();
    assert!(second.iter().filter(|pod| live(pod)).all(|pod| !first.contains(&pod.name_any())));

    let scale = Patch::Merge(json!({"spec": {"replicas": 3}}));
    deployments.patch_scale("web", &PatchParams::default(), &scale).await.unwrap();
    wait_for(&deployments, "web", "three replicas", settled(3)).await;

    deployments.delete("web", &DeleteParams::default()).await.unwrap();
    services.delete("web", &DeleteParams::default()).await.unwrap();
    within("everything is collected", async {
        let list = ListParams::default();
        while !pods.list(&list).await.unwrap().items.is_empty()
            || !slices.list(&list).await.unwrap().iter().all(|slice| slice.name_any() == "kubernetes")
            || !legacy.list(&list).await.unwrap().iter().all(|object| object.name_any() == "kubernetes")
        {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    fixture.cluster.stop().await;
}

#[tokio::test]
async fn namespace_deletion_removes_its_pods() {
    let fixture = start().await;
    let namespaces = Api::<Namespace>::all(fixture.client.clone());
    let namespace: Namespace = object(json!({"metadata": {"name": "shop"}}));
    namespaces.create(&PostParams::default(), &namespace).await.unwrap();
    let pods = Api::<Pod>::namespaced(fixture.client.clone(), "shop");
    pods.create(&PostParams::default(), &idle_pod("idle")).await.unwrap();
    wait_for(&pods, "idle", "the pod runs", is_running).await;
    namespaces.delete("shop", &DeleteParams::default()).await.unwrap();
    within("the namespace is gone", async {
        while namespaces.get_opt("shop").await.unwrap().is_some() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    assert!(pods.list(&ListParams::default()).await.unwrap().items.is_empty());
    fixture.cluster.stop().await;
}

/// Asks the cluster's DNS server for the addresses of a name, over UDP.
async fn resolve(server: SocketAddr, name: &str) -> (hickory_proto::op::ResponseCode, Vec<String>) {
    use hickory_proto::op::{Message, Query};
    use hickory_proto::rr::{Name, RecordType};

    let mut question = Message::query();
    question.add_query(Query::query(name.parse::<Name>().unwrap(), RecordType::A));
    let socket = tokio::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    socket.send_to(&question.to_vec().unwrap(), server).await.unwrap();
    let mut answer = [0; 4096];
    let length = within("an answer", socket.recv(&mut answer)).await.unwrap();
    let answer = Message::from_vec(&answer[..length]).unwrap();
    assert_eq!(answer.metadata.id, question.metadata.id);
    (answer.metadata.response_code, answer.answers.iter().map(|record| record.data.to_string()).collect())
}

#[tokio::test]
async fn dns_follows_services_and_ready_pods() {
    use hickory_proto::op::ResponseCode;

    let fixture = start().await;
    let server = fixture.cluster.dns();
    let services = Api::<Service>::default_namespaced(fixture.client.clone());
    let pods = Api::<Pod>::default_namespaced(fixture.client.clone());
    for (name, cluster_ip) in [("web", None), ("db", Some("None"))] {
        let service: Service = object(json!({
            "metadata": {"name": name},
            "spec": {"selector": {"app": "idle"}, "clusterIP": cluster_ip, "ports": [{"port": 18081}]},
        }));
        services.create(&PostParams::default(), &service).await.unwrap();
    }
    let address = services.get("web").await.unwrap().spec.unwrap().cluster_ip.unwrap();
    let becomes = async |name: &str, expected: (ResponseCode, Vec<String>)| {
        within(name, async {
            while resolve(server, name).await != expected {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    };
    becomes("web.default.svc.cluster.local.", (ResponseCode::NoError, vec![address])).await;
    becomes("db.default.svc.cluster.local.", (ResponseCode::NXDomain, Vec::new())).await;
    pods.create(&PostParams::default(), &idle_pod("idle")).await.unwrap();
    let pod = wait_for(&pods, "idle", "the pod runs", is_running).await;
    let ip = pod.status.unwrap().pod_ip.unwrap();
    becomes("db.default.svc.cluster.local.", (ResponseCode::NoError, vec![ip.clone()])).await;
    becomes(
        &format!("{}.db.default.svc.cluster.local.", ip.replace('.', "-")),
        (ResponseCode::NoError, vec![ip]),
    )
    .await;
    pods.delete("idle", &DeleteParams::default().grace_period(1)).await.unwrap();
    becomes("db.default.svc.cluster.local.", (ResponseCode::NXDomain, Vec::new())).await;

    // The Service that pods use for DNS leads to the same server, also over TCP.
    let system = Api::<Service>::namespaced(fixture.client.clone(), "kube-system");
    let ports = system.get("kube-dns").await.unwrap().spec.unwrap().ports.unwrap();
    assert!(ports.iter().all(|port| port.port == i32::from(server.port())));
    let mut stream = tokio::net::TcpStream::connect(server).await.unwrap();
    let mut question = hickory_proto::op::Message::query();
    let name = "web.default.svc.cluster.local.".parse::<hickory_proto::rr::Name>().unwrap();
    question.add_query(hickory_proto::op::Query::query(name, hickory_proto::rr::RecordType::A));
    let question = question.to_vec().unwrap();
    stream.write_u16(u16::try_from(question.len()).unwrap()).await.unwrap();
    stream.write_all(&question).await.unwrap();
    let length = within("an answer over TCP", stream.read_u16()).await.unwrap();
    let mut answer = vec![0; usize::from(length)];
    within("the whole answer", stream.read_exact(&mut answer)).await.unwrap();
    assert_eq!(hickory_proto::op::Message::from_vec(&answer).unwrap().answers.len(), 1);
    fixture.cluster.stop().await;
}

#[tokio::test]
async fn eviction_marks_pod_before_deletion() {
    use k8s_openapi::api::policy::v1::PodDisruptionBudget;
    use kube::api::EvictParams;

    let fixture = start().await;
    let pods = Api::<Pod>::default_namespaced(fixture.client.clone());
    let budgets = Api::<PodDisruptionBudget>::default_namespaced(fixture.client.clone());
    let budget = |min_available: i32| -> PodDisruptionBudget {
        object(json!({
            "metadata": {"name": "idle"},
            "spec": {"minAvailable": min_available, "selector": {"matchLabels": {"app": "idle"}}},
        }))
    };
    pods.create(&PostParams::default(), &idle_pod("idle")).await.unwrap();
    wait_for(&pods, "idle", "the pod runs", is_running).await;
    budgets.create(&PostParams::default(), &budget(1)).await.unwrap();
    wait_for(&budgets, "idle", "one healthy pod", |budget| {
        budget
            .status
            .as_ref()
            .is_some_and(|status| status.current_healthy == Some(1) && status.desired_healthy == Some(1))
    })
    .await;
    match pods.evict("idle", &EvictParams::default()).await.unwrap_err() {
        kube::Error::Api(status) => {
            assert_eq!((status.code, status.reason.as_str()), (429, "TooManyRequests"));
            let details = status.details.unwrap();
            assert_eq!(details.causes[0].reason, "DisruptionBudget");
            assert_eq!(
                details.causes[0].message,
                "The disruption budget idle needs 1 healthy pods and has 1 currently"
            );
            assert_eq!(details.retry_after_seconds, 0);
        }
        other => panic!("{other}"),
    }
    let version = pods.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    let mut watch = pin!(pods.watch(&WatchParams::default(), &version).await.unwrap());
    let relaxed = Patch::Merge(json!({"spec": {"minAvailable": 0}}));
    budgets.patch("idle", &PatchParams::default(), &relaxed).await.unwrap();
    let allowed = |budget: &PodDisruptionBudget| {
        budget.status.as_ref().is_some_and(|it| it.disruptions_allowed == Some(1))
    };
    wait_for(&budgets, "idle", "one disruption is allowed", allowed).await;
    let dry = EvictParams {
        post_options: PostParams { dry_run: true, ..PostParams::default() },
        ..Default::default()
    };
    pods.evict("idle", &dry).await.unwrap();
    pods.evict("idle", &EvictParams::default()).await.unwrap();
    let mut seen = Vec::new();
    while seen.len() < 2 {
        let Some(WatchEvent::Modified(pod)) = within("an event", watch.try_next()).await.unwrap() else {
            panic!("not a change")
        };
        let conditions = pod.status.unwrap().conditions.unwrap();
        let marked = conditions.iter().any(|is| is.type_ == "DisruptionTarget" && is.status == "True");
        seen.push((marked, pod.metadata.deletion_timestamp.is_some()));
    }
    // The mark comes before the deletion, as on a real cluster.
    assert_eq!(seen, [(true, false), (true, true)]);
    fixture.cluster.stop().await;
}
