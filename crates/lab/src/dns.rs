//! The cluster's DNS server, which resolves Services, and the endpoints of headless Services, by name.
//!
//! It answers queries for `cluster.local` only, over UDP and TCP, at the control plane's address, and is the endpoint
//! of the `kube-system/kube-dns` Service. Like CoreDNS, it watches the API and answers from what it has seen, after a
//! delay (`dnsPropagation`). [`dns_records`] resolves names; [`dns_message`] encodes and decodes messages.

mod dns_message;
mod dns_records;

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use futures::StreamExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::object_fields::key;
use super::registry::{WatchEvent, WatchEventType, follow};
use super::resource::Resource;
use super::shared::ClusterContext;
use dns_message::{DnsTransport, answer};
use dns_records::DnsRecords;

/// Standard port for DNS.
const PORT: u16 = 53;
/// Number of attempts to find a port that is free for both UDP and TCP.
const ATTEMPTS: usize = 16;
/// Time for which a TCP connection may stay idle (CoreDNS's default).
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of TCP connections served at a time.
const MAX_CONNECTIONS: usize = 64;

/// Returns the text of a `resolv.conf` that resolves names through `server`, as in a pod in `namespace`.
pub(super) fn resolv_conf(namespace: &str, server: impl fmt::Display) -> String {
    format!(
        "search {namespace}.svc.cluster.local svc.cluster.local cluster.local\n\
         nameserver {server}\noptions ndots:5\n"
    )
}

/// Open sockets that are not served yet.
#[derive(Debug)]
pub(super) struct ClusterDns {
    udp: UdpSocket,
    tcp: TcpListener,
    address: SocketAddr,
}

impl ClusterDns {
    /// Opens port 53 on `ip` or, if that is taken or not permitted, any port that is free for both UDP and TCP.
    pub(super) async fn bind(ip: Ipv4Addr) -> io::Result<Self> {
        let mut last = Self::bind_port(ip, PORT).await;
        for _ in 0..ATTEMPTS {
            if last.is_ok() {
                break;
            }
            last = Self::bind_port(ip, 0).await;
        }
        last
    }

    async fn bind_port(ip: Ipv4Addr, port: u16) -> io::Result<Self> {
        let udp = UdpSocket::bind((ip, port)).await?;
        let address = udp.local_addr()?;
        let tcp = TcpListener::bind(address).await?;
        Ok(Self { udp, tcp, address })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves queries until the cluster stops.
    pub(super) async fn serve(self, shared: ClusterContext) {
        let zone = Arc::new(RwLock::new(DnsRecords::default()));
        let stop = shared.stop.clone();
        let settings = ZoneSettings { ttl_seconds: shared.config.dns.ttl_seconds(), zone: Arc::clone(&zone) };
        let mut tasks = JoinSet::new();
        tasks.spawn(keep_up(shared, zone));
        tasks.spawn(serve_udp(self.udp, settings.clone()));
        tasks.spawn(serve_tcp(self.tcp, settings));
        tokio::select! {
            () = stop.cancelled() => {}
            Some(ended) = tasks.join_next() => {
                if let Err(error) = ended {
                    tracing::error!(%error, "the DNS server failed");
                }
            }
        }
        tasks.shutdown().await;
    }
}

#[derive(Clone)]
struct ZoneSettings {
    ttl_seconds: u32,
    zone: Arc<RwLock<DnsRecords>>,
}

impl ZoneSettings {
    fn answer(&self, question: &[u8], transport: DnsTransport) -> Option<Vec<u8>> {
        let zone = self.zone.read().unwrap_or_else(PoisonError::into_inner);
        answer(question, &zone, self.ttl_seconds, transport)
    }
}

/// Answers arbitrary input for a zone with one Service.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(question: &[u8]) {
    use serde_json::json;

    static ZONE: std::sync::LazyLock<DnsRecords> = std::sync::LazyLock::new(|| {
        let namespace = json!({"metadata": {"name": "a", "namespace": ""}});
        let service = json!({
            "metadata": {"name": "web", "namespace": "a"},
            "spec": {"clusterIP": "10.96.0.1", "ports": [{"name": "http", "port": 80, "protocol": "TCP"}]},
        });
        let mut zone = DnsRecords::default();
        for (resource, object) in [(Resource::Namespaces, namespace), (Resource::Services, service)] {
            zone.apply(resource, WatchEvent { event_type: WatchEventType::Added, object: Arc::new(object) });
        }
        zone
    });
    for transport in [DnsTransport::Udp, DnsTransport::Tcp] {
        let answer = answer(question, &ZONE, 5, transport);
        assert!(transport == DnsTransport::Tcp || answer.is_none_or(|answer| answer.len() <= 1232));
    }
}

/// Applies API changes to the zone, with a small delay.
async fn keep_up(shared: ClusterContext, zone: Arc<RwLock<DnsRecords>>) {
    let followed = [Resource::Namespaces, Resource::Services, Resource::EndpointSlices];
    let mut events = follow(&shared.registry, &followed);
    // Changes that are not visible yet. A change never overtakes an earlier one.
    let mut coming: VecDeque<(Instant, (Resource, WatchEvent))> = VecDeque::new();
    loop {
        let next = coming.front().map(|(at, _)| *at);
        tokio::select! {
            Some(event) = events.next() => {
                let due = Instant::now() + shared.sampler.sample(&shared.config.latencies.dns_propagation);
                let at = coming.back().map_or(due, |(last, _)| due.max(*last));
                coming.push_back((at, event));
            }
            () = async { sleep_until(next.unwrap_or_else(Instant::now)).await }, if next.is_some() => {
                if let Some((_, (resource, event))) = coming.pop_front() {
                    zone.write().unwrap_or_else(PoisonError::into_inner).apply(resource, event);
                }
            }
        }
    }
}

impl DnsRecords {
    fn apply(&mut self, resource: Resource, WatchEvent { event_type, object }: WatchEvent) {
        let key = key(&object);
        let table = match resource {
            Resource::Namespaces => &mut self.namespaces,
            Resource::Services => &mut self.services,
            _ => &mut self.slices,
        };
        match event_type {
            WatchEventType::Deleted => drop(table.remove(&key)),
            _ => drop(table.insert(key, object)),
        }
    }
}

async fn serve_udp(socket: UdpSocket, settings: ZoneSettings) {
    let mut question = [0; 4096];
    loop {
        // An error here belongs to an earlier response whose client has disconnected.
        let Ok((length, client)) = socket.recv_from(&mut question).await else { continue };
        if let Some(answer) = settings.answer(&question[..length], DnsTransport::Udp)
            && let Err(error) = socket.send_to(&answer, client).await
        {
            tracing::debug!(%error, %client, "failed to send a DNS answer");
        }
    }
}

async fn serve_tcp(listener: TcpListener, settings: ZoneSettings) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let accept = async {
            let place = Arc::clone(&places).acquire_owned().await;
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            accepted = accept => accepted,
            Some(_) = connections.join_next() => continue,
        };
        match accepted {
            Ok((stream, _)) => {
                let settings = settings.clone();
                connections.spawn(async move {
                    if let Err(error) = serve_connection(stream, &settings).await {
                        tracing::debug!(%error, "a DNS connection failed");
                    }
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "the DNS server cannot accept connections");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// Serves queries on a TCP connection; a two-byte length precedes each message.
async fn serve_connection(mut stream: TcpStream, settings: &ZoneSettings) -> io::Result<()> {
    loop {
        let length = timeout(IDLE_TIMEOUT, stream.read_u16()).await??;
        let mut question = vec![0; usize::from(length)];
        timeout(IDLE_TIMEOUT, stream.read_exact(&mut question)).await??;
        let Some(answer) = settings.answer(&question, DnsTransport::Tcp) else { return Ok(()) };
        let Ok(length) = u16::try_from(answer.len()) else { return Ok(()) };
        let framed = [&length.to_be_bytes()[..], &answer].concat();
        timeout(IDLE_TIMEOUT, stream.write_all(&framed)).await??;
    }
}
