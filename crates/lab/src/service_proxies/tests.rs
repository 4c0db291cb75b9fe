//! Tests of two nodes' proxies against a real registry, with real connections.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::ClusterConfig;
use crate::address_block::AddressBlock;
use crate::config::ServiceProxyConfig;
use crate::hop_latency::{HopLatencies, Sampler};
use crate::network::Network;
use crate::registry::Registry;
use rolldrop_record::Clock;

const DEADLINE: Duration = Duration::from_secs(60);

/// Sends the pod's name to every client.
async fn serve_name(name: &'static str, listener: TcpListener) {
    while let Ok((mut stream, _)) = listener.accept().await {
        // The client may already be gone.
        let _ = stream.write_all(name.as_bytes()).await;
    }
}

struct Fixture {
    shared: ClusterContext,
    proxies: JoinHandle<Result<(), ServiceProxyError>>,
    pods: JoinSet<()>,
    dir: tempfile::TempDir,
    service: SocketAddr,
}

impl Fixture {
    async fn start() -> Self {
        let clock = Clock::start();
        let registry =
            Registry::new(clock, AddressBlock::claim(rand::random_range(0..128)).unwrap(), "".into());
        registry.create(Resource::Namespaces, "", json!({"metadata": {"name": "default"}})).unwrap();
        let service = json!({"metadata": {"name": "web"}, "spec": {"ports": [{"port": 8080}]}});
        let service = registry.create(Resource::Services, "default", service).unwrap();
        let ip = service["spec"]["clusterIP"].as_str().unwrap().parse().unwrap();
        let service_proxy = ServiceProxyConfig { min_sync_period: Duration::from_millis(10) };
        let config =
            ClusterConfig { latencies: HopLatencies::ZERO, service_proxy, ..ClusterConfig::default() };
        let dir = tempfile::tempdir().unwrap();
        let shared = ClusterContext {
            registry,
            config: Arc::new(config),
            sampler: Sampler::seeded(1),
            clock,
            network: Network::Userspace,
            log_dir: Arc::new(dir.path().to_owned()),
            stop: CancellationToken::new(),
        };
        let nodes = vec!["node-1".to_owned(), "node-2".to_owned()];
        let proxies = tokio::spawn(run(shared.clone(), nodes));
        Self { shared, proxies, pods: JoinSet::new(), dir, service: SocketAddr::new(ip, 8080) }
    }

    /// Starts a pod that sends its name, and returns its port.
    async fn pod(&mut self, name: &'static str) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        self.pods.spawn(serve_name(name, listener));
        port
    }

    /// Writes an EndpointSlice with one endpoint.
    fn route(&self, pod: &str, port: u16, ready: bool) {
        let slice = json!({
            "metadata": {"name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
            "addressType": "IPv4",
            "ports": [{"port": port, "protocol": "TCP"}],
            "endpoints": [{
                "addresses": ["127.0.0.1"],
                "conditions": {"ready": ready, "serving": ready, "terminating": false},
                "targetRef": {"kind": "Pod", "name": pod},
            }],
        });
        let registry = &self.shared.registry;
        if registry.create(Resource::EndpointSlices, "default", slice.clone()).is_err() {
            registry.update(Resource::EndpointSlices, "default", "web-1", slice).unwrap();
        }
    }

    /// Connects until a pod with this name answers; a connection that is refused or reset counts as the answer "".
    async fn until_answered_by(&self, name: &str) {
        timeout(DEADLINE, async {
            while self.ask().await != name {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await
        .unwrap();
    }

    async fn ask(&self) -> String {
        let mut answer = String::new();
        if let Ok(mut stream) = TcpStream::connect(self.service).await {
            // A reset leaves the answer empty.
            let _ = stream.read_to_string(&mut answer).await;
        }
        answer
    }

    /// Stops the proxies and returns their log.
    async fn log(self) -> Vec<Value> {
        self.shared.stop.cancel();
        timeout(DEADLINE, self.proxies).await.unwrap().unwrap().unwrap();
        let text = std::fs::read_to_string(self.dir.path().join(LOG_FILE)).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

#[tokio::test]
async fn connections_match_logged_endpoint_syncs() {
    let mut cluster = Fixture::start().await;
    let (a, b) = (cluster.pod("a").await, cluster.pod("b").await);
    cluster.route("a", a, true);
    cluster.until_answered_by("a").await;
    cluster.route("b", b, true);
    cluster.until_answered_by("b").await;
    cluster.route("b", b, false);
    cluster.until_answered_by("").await;

    let log = cluster.log().await;
    let syncs: Vec<_> = log.iter().filter(|line| line["kind"] == "sync").collect();
    let of_first_node: Vec<_> = syncs.iter().filter(|line| line["node"] == "node-1").collect();
    let pods: Vec<_> =
        of_first_node.iter().map(|line| line["endpoints"][0]["pod"].as_str().unwrap_or("")).collect();
    assert_eq!(pods, ["a", "b", ""]);
    assert_eq!((&syncs[0]["service"], &syncs[0]["port"]), (&json!("default/web"), &json!(8080)));
    assert_eq!(of_first_node[0]["endpoints"][0]["address"], format!("127.0.0.1:{a}"));

    // Every connection was routed by the table in effect at the time.
    for connection in log.iter().filter(|line| line["kind"] == "connection") {
        let at = connection["t_ns"].as_i64().unwrap();
        let in_effect = of_first_node.iter().rfind(|sync| sync["t_ns"].as_i64().unwrap() <= at);
        let pod = in_effect.map_or("", |sync| sync["endpoints"][0]["pod"].as_str().unwrap_or(""));
        assert_eq!(connection["pod"].as_str().unwrap_or(""), pod, "{connection}");
    }
}

#[tokio::test]
async fn deleted_service_closes_its_listener() {
    let mut cluster = Fixture::start().await;
    let port = cluster.pod("a").await;
    cluster.route("a", port, true);
    cluster.until_answered_by("a").await;
    let options = crate::registry::DeleteOptions::default();
    cluster.shared.registry.delete(Resource::Services, "default", "web", &options).unwrap();
    timeout(DEADLINE, async {
        while TcpStream::connect(cluster.service).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .unwrap();
    let log = cluster.log().await;
    let last = log.iter().rfind(|line| line["kind"] == "sync" && line["node"] == "node-1").unwrap();
    assert_eq!(last["endpoints"], json!([]));
}
