//! Carries connections, with a listener per Service port and a TCP proxy per connection.
//!
//! The client sees what it would see if it were connected to the pod: an end of stream is passed on as an end of
//! stream, a reset as a reset, and a connection that cannot be passed on is reset, never answered. The proxy differs
//! from kernel rules in two ways: a refusal appears as a reset after the connection was established, and a vanished
//! address never stalls a client.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::RngExt;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::link_relay::{PodLink, reset};
use super::service_table::{Backend, Routes};
use super::truth::{ProxyLogLine, Routed, TruthLog};
use crate::sync::lock;
use rolldrop_record::clock::{Clock, Stamp};

/// Maximum number of connections waiting in the accept queue.
const BACKLOG: u32 = 4096;
/// Time limit for the kernel to reach a pod whose accept queue is full.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Routing of one Service port that is currently in effect.
#[derive(Debug, Default)]
pub(super) struct InEffect(Mutex<RoutesInEffect>);

#[derive(Debug, Default)]
struct RoutesInEffect {
    routes: Routes,
    affinity: Option<Duration>,
    /// Time of the last connection from a client to an endpoint, with session affinity.
    last: HashMap<(IpAddr, SocketAddr), Instant>,
}

/// Side from which a connection arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ArrivalSide {
    /// At the Service's own address.
    Internal,
    /// At the node port.
    External,
}

impl InEffect {
    /// Puts new routes into effect. If connections now go elsewhere, returns the stamps just before and just after the
    /// change.
    pub(super) fn swap(
        &self,
        clock: Clock,
        routes: Routes,
        affinity: Option<Duration>,
    ) -> Option<[Stamp; 2]> {
        let mut effect = lock(&self.0);
        let is_routed_so = effect.routes == routes;
        if is_routed_so && effect.affinity == affinity {
            return None;
        }
        // Removing an endpoint also removes its clients' affinity.
        let all = || routes.internal.iter().chain(&*routes.external);
        effect.last.retain(|(_, address), at| {
            affinity.is_some_and(|timeout| at.elapsed() < timeout) && all().any(|one| one.address == *address)
        });
        let begin = clock.now();
        effect.routes = routes;
        effect.affinity = affinity;
        let at = [begin, clock.now()];
        (!is_routed_so).then_some(at)
    }

    /// Picks an endpoint. The stamp is taken under the lock that also guards the swap, so the log never shows a
    /// connection routed by a table that was no longer in effect.
    fn pick(&self, clock: Clock, side: ArrivalSide, client: IpAddr) -> (Stamp, Option<Backend>) {
        let mut effect = lock(&self.0);
        let RoutesInEffect { routes, affinity, last } = &mut *effect;
        let backends = match side {
            ArrivalSide::Internal => &routes.internal,
            ArrivalSide::External => &routes.external,
        };
        let kept = affinity.and_then(|timeout| {
            let stays = |at: &Instant| at.elapsed() < timeout;
            backends.iter().find(|backend| last.get(&(client, backend.address)).is_some_and(stays))
        });
        let backend = kept.or_else(|| match backends.len() {
            0 => None,
            n => backends.get(rand::rng().random_range(0..n)),
        });
        if let (Some(backend), Some(_)) = (backend, affinity) {
            last.insert((client, backend.address), Instant::now());
        }
        (clock.now(), backend.cloned())
    }
}

/// Proxy for one Service port at one address.
pub(super) struct PortProxy {
    /// `namespace/name`.
    pub(super) service: Arc<str>,
    pub(super) address: SocketAddr,
    pub(super) side: ArrivalSide,
    pub(super) in_effect: Arc<InEffect>,
    pub(super) link: PodLink,
    pub(super) truth: TruthLog,
    pub(super) clock: Clock,
}

impl PortProxy {
    /// Opens a listener on the address.
    pub(super) fn listen(&self) -> io::Result<TcpListener> {
        let socket = TcpSocket::new_v4()?;
        socket.set_reuseaddr(true)?;
        socket.bind(self.address)?;
        socket.listen(BACKLOG)
    }

    /// Accepts and carries connections until dropped, which closes them all.
    pub(super) async fn serve(self, listener: TcpListener) {
        let shared = Arc::new(self);
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((client, from)) => {
                        connections.spawn(Arc::clone(&shared).carry(client, from));
                    }
                    Err(error) => {
                        // Probably out of descriptors; waiting frees some.
                        tracing::warn!(service = %shared.service, %error, "failed to accept a connection");
                        sleep(Duration::from_millis(10)).await;
                    }
                },
                Some(_) = connections.join_next() => {}
            }
        }
    }

    async fn carry(self: Arc<Self>, client: TcpStream, from: SocketAddr) {
        let (t_ns, backend) = self.in_effect.pick(self.clock, self.side, from.ip());
        let log = |pod, result| {
            self.truth.write(&ProxyLogLine::Connection {
                t_ns,
                service: &self.service,
                client: from,
                pod,
                result,
            });
        };
        let Some(Backend { pod, address }) = backend else {
            log(None, Routed::NoEndpoint);
            return reset(client);
        };
        self.link.cross().await;
        match connect(address).await {
            Ok(server) => {
                log(Some(&pod), Routed::Connected);
                self.link.pass_on(client, server).await;
            }
            Err(error) => {
                let result = match error.kind() {
                    // The connection was established, and reset before this task noticed.
                    io::ErrorKind::ConnectionReset => Routed::Connected,
                    io::ErrorKind::ConnectionRefused => Routed::Refused,
                    _ => Routed::Unreachable,
                };
                log(Some(&pod), result);
                self.link.cross().await;
                reset(client);
            }
        }
    }
}

async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await.map_err(io::Error::from)?
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::advance;

    use super::*;
    use crate::hop_latency::{HopLatency, Sampler};

    struct Fixture {
        address: SocketAddr,
        in_effect: Arc<InEffect>,
        log: std::path::PathBuf,
        tasks: JoinSet<()>,
        writer: tokio::task::JoinHandle<io::Result<()>>,
        _dir: tempfile::TempDir,
    }

    async fn proxy() -> Fixture {
        proxy_over(HopLatency::ZERO).await
    }

    async fn proxy_over(delay: HopLatency) -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("truth.jsonl");
        let (truth, writer) = TruthLog::open(&log).await.unwrap();
        let in_effect = Arc::new(InEffect::default());
        let proxy = PortProxy {
            service: "shop/web".into(),
            address: ([127, 0, 0, 1], 0).into(),
            side: ArrivalSide::Internal,
            in_effect: Arc::clone(&in_effect),
            link: PodLink { delay, sampler: Sampler::seeded(1) },
            truth,
            clock: Clock::start(),
        };
        let listener = proxy.listen().unwrap();
        let address = listener.local_addr().unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(proxy.serve(listener));
        Fixture { address, in_effect, log, tasks, writer: tokio::spawn(writer.run()), _dir: dir }
    }

    impl Fixture {
        fn route_to(&self, address: SocketAddr) {
            route(&self.in_effect, &[("web-1", address)], None);
        }

        /// Stops the proxy and returns the results that it logged.
        async fn results(mut self) -> Vec<String> {
            self.tasks.shutdown().await;
            self.writer.await.unwrap().unwrap();
            let text = std::fs::read_to_string(&self.log).unwrap();
            text.lines()
                .map(|line| {
                    serde_json::from_str::<serde_json::Value>(line).unwrap()["result"]
                        .as_str()
                        .unwrap()
                        .into()
                })
                .collect()
        }
    }

    /// The server closes an idle connection while a request is on its way.
    #[tokio::test]
    async fn request_crossing_a_close_on_delayed_link_is_lost() {
        let proxy = proxy_over(HopLatency::constant(Duration::from_millis(300))).await;
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        proxy.route_to(server.local_addr().unwrap());
        let mut client = TcpStream::connect(proxy.address).await.unwrap();
        client.write_all(b"first").await.unwrap();
        let (mut pod, _) = server.accept().await.unwrap();
        let mut first = [0; 5];
        pod.read_exact(&mut first).await.unwrap();
        client.write_all(b"second").await.unwrap();
        // The pod never learns of the second request.
        drop(pod);
        let read = client.read_u8().await.unwrap_err().kind();
        assert!([io::ErrorKind::UnexpectedEof, io::ErrorKind::ConnectionReset].contains(&read), "{read:?}");
        assert_eq!(&first, b"first");
        assert_eq!(proxy.results().await, ["connected"]);
    }

    #[tokio::test]
    async fn half_closed_connection_delivers_response() {
        for delay in [HopLatency::ZERO, HopLatency::constant(Duration::from_millis(20))] {
            half_closed(delay).await;
        }
    }

    async fn half_closed(delay: HopLatency) {
        let proxy = proxy_over(delay).await;
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        proxy.route_to(server.local_addr().unwrap());
        let mut client = TcpStream::connect(proxy.address).await.unwrap();
        client.write_all(b"ping").await.unwrap();
        client.shutdown().await.unwrap();
        let (mut pod, _) = server.accept().await.unwrap();
        let mut asked = String::new();
        pod.read_to_string(&mut asked).await.unwrap();
        pod.write_all(b"pong").await.unwrap();
        drop(pod);
        let mut answered = String::new();
        client.read_to_string(&mut answered).await.unwrap();
        assert_eq!((asked.as_str(), answered.as_str()), ("ping", "pong"));
        assert_eq!(proxy.results().await, ["connected"]);
    }

    #[tokio::test]
    async fn pod_reset_reaches_client() {
        let proxy = proxy().await;
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        proxy.route_to(server.local_addr().unwrap());
        let mut client = TcpStream::connect(proxy.address).await.unwrap();
        let (pod, _) = server.accept().await.unwrap();
        reset(pod);
        let error = client.read_u8().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        assert_eq!(proxy.results().await, ["connected"]);
    }

    #[tokio::test]
    async fn unroutable_connection_is_reset() {
        let proxy = proxy().await;
        let mut client = TcpStream::connect(proxy.address).await.unwrap();
        assert_eq!(client.read_u8().await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);

        // Nothing ever listens on this address.
        proxy.route_to("127.0.0.1:1".parse().unwrap());
        let mut client = TcpStream::connect(proxy.address).await.unwrap();
        assert_eq!(client.read_u8().await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        assert_eq!(proxy.results().await, ["no_endpoint", "refused"]);
    }

    fn route(in_effect: &InEffect, pods: &[(&str, SocketAddr)], affinity: Option<Duration>) {
        let backends = pods.iter().map(|(pod, address)| Backend { pod: (*pod).into(), address: *address });
        let routes = Routes { internal: backends.collect(), ..Routes::default() };
        in_effect.swap(Clock::start(), routes, affinity);
    }

    #[tokio::test(start_paused = true)]
    async fn affinity_ends_on_timeout_or_endpoint_removal() {
        let names: Vec<_> = (0..50).map(|n| format!("web-{n}")).collect();
        let pods: Vec<_> =
            (8000..).zip(&names).map(|(n, pod)| (&**pod, ([127, 0, 0, 2], n).into())).collect();
        let affinity = Some(Duration::from_secs(10));
        let in_effect = InEffect::default();
        let ask = |low| {
            let (_, backend) = in_effect.pick(Clock::start(), ArrivalSide::Internal, [127, 0, 0, low].into());
            backend.expect("an endpoint").pod.to_string()
        };
        route(&in_effect, &pods, affinity);

        // Each connection restarts the timeout, and each client has its own pod.
        let first = ask(1);
        for _ in 0..20 {
            advance(Duration::from_secs(9)).await;
            assert_eq!(ask(1), first);
        }
        let others: BTreeSet<_> = (2..40).map(ask).collect();
        assert!(others.len() > 1, "{others:?}");

        // The affinity is forgotten when its endpoint is removed, but not when others are.
        let (kept, others): (Vec<_>, Vec<_>) = pods.iter().copied().partition(|(pod, _)| *pod == first);
        route(&in_effect, &[&others[..1], &kept].concat(), affinity);
        assert_eq!(ask(1), first);
        route(&in_effect, &others, affinity);
        let second = ask(1);
        route(&in_effect, &pods, affinity);
        assert_eq!(ask(1), second);

        let mut seen = BTreeSet::new();
        for _ in 0..20 {
            advance(Duration::from_secs(10)).await;
            seen.insert(ask(1));
        }
        assert!(seen.len() > 1, "the timeout passes each time");
        route(&in_effect, &pods, None);
        let seen: BTreeSet<_> = std::iter::repeat_n(1, 20).map(ask).collect();
        assert!(seen.len() > 1, "affinity has ended");
    }

    #[tokio::test]
    async fn established_connection_outlives_endpoint() {
        let proxy = proxy().await;
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        proxy.route_to(server.local_addr().unwrap());
        let mut client = TcpStream::connect(proxy.address).await.unwrap();
        let (mut pod, _) = server.accept().await.unwrap();
        route(&proxy.in_effect, &[], None);
        client.write_all(b"x").await.unwrap();
        assert_eq!(pod.read_u8().await.unwrap(), b'x');
        assert_eq!(proxy.results().await, ["connected"]);
    }
}
