//! Tests of workers served in this process, and of the run that orders their load.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper_util::rt::TokioIo;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::fleet::{Fleet, FleetLoad, FleetMember};
use super::worker_link::{WorkerLink, WorkerLinkError};
use super::worker_transport::{WorkerResponseBody, WorkerTransport, WorkerTransportError};
use super::*;
use crate::load_process::worker_protocol::WorkerOrder;
use crate::source_port_pool::PortsBefore;
use crate::{Load, Pace};
use rolldrop_record::parts::read_table;
use rolldrop_record::wire::{CLOCK_PATH, ClockAnswer, TOKEN_HEADER};
use rolldrop_record::{Clock, EventKind, RequestRow, RunDir, RunId, Stamp};

/// Transport to a worker on this machine. With `cut`, each response body breaks off after this many pieces.
struct Direct {
    address: SocketAddr,
    token: &'static str,
    cut: Option<usize>,
    asked: AtomicUsize,
}

impl WorkerTransport for Direct {
    fn ask(
        &self,
        request: Request<Bytes>,
    ) -> BoxFuture<'_, Result<Response<WorkerResponseBody>, WorkerTransportError>> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        async move {
            let failed = |error: &dyn std::fmt::Display| WorkerTransportError(error.to_string());
            let stream = TcpStream::connect(self.address).await.map_err(|e| failed(&e))?;
            let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
            let (mut sender, connection) = handshake.map_err(|e| failed(&e))?;
            let connection = AbortOnDropHandle::new(tokio::spawn(connection));
            let mut request = request.map(Full::new);
            request.headers_mut().insert(TOKEN_HEADER, self.token.parse().unwrap());
            request.headers_mut().insert(http::header::HOST, "worker".parse().unwrap());
            let answer = sender.send_request(request).await.map_err(|e| failed(&e))?;
            let pieces = self.cut.unwrap_or(usize::MAX);
            Ok(answer.map(|body| {
                let body = body.into_data_stream().take(pieces);
                let frames = body.map(move |data| {
                    let _ = &connection;
                    data.map(hyper::body::Frame::data).map_err(io::Error::other)
                });
                StreamBody::new(frames).boxed_unsync()
            }))
        }
        .boxed()
    }
}

/// A worker like the one in a pod.
struct Pod {
    address: SocketAddr,
    dir: TempDir,
    stop: CancellationToken,
    ended: oneshot::Receiver<()>,
    _serving: AbortOnDropHandle<()>,
}

impl Pod {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let settings = worker_server::WorkerServerSettings {
            run_dir: RunDir::create(dir.path()).unwrap(),
            token: "secret".parse().unwrap(),
            visit: None,
        };
        let stop = CancellationToken::new();
        let (done, ended) = oneshot::channel();
        let serving = {
            let stop = stop.clone();
            tokio::spawn(async move {
                worker_server::serve(listener, settings, stop).await;
                let _ = done.send(());
            })
        };
        Self { address, dir, stop, ended, _serving: AbortOnDropHandle::new(serving) }
    }

    fn way(&self, token: &'static str, cut: Option<usize>) -> Arc<Direct> {
        Arc::new(Direct { address: self.address, token, cut, asked: AtomicUsize::new(0) })
    }

    fn member(&self, name: &str, cut: Option<usize>) -> FleetMember {
        let gone = std::future::pending().boxed().shared();
        FleetMember { name: name.into(), node: format!("node-of-{name}"), way: self.way("secret", cut), gone }
    }

    fn rows(&self) -> Vec<RequestRow> {
        read_table(self.dir.path()).unwrap()
    }
}

/// Starts a target that responds to every request immediately.
async fn target() -> (String, AbortOnDropHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let serving = async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut request = [0; 1024];
                let _ = stream.read(&mut request).await;
                let _ = stream.write_all(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n").await;
            });
        }
    };
    (url, AbortOnDropHandle::new(tokio::spawn(serving)))
}

type Noted = Arc<Mutex<Vec<(Option<String>, EventKind)>>>;

fn fleet(members: Vec<FleetMember>) -> (Fleet<impl crate::load_process::Note>, Noted) {
    let noted = Noted::default();
    let log = Arc::clone(&noted);
    let note = move |source: Option<&str>, _: Stamp, kind: EventKind| {
        log.lock().unwrap().push((source.map(str::to_owned), kind));
    };
    (Fleet::new(members, Clock::start(), note), noted)
}

fn wanted(url: &str, rate: f64, seconds: u64) -> FleetLoad {
    let pace = Pace::constant(rate, Duration::from_secs(seconds));
    let settings = Load { pace, ..Load::new(url) };
    let before = PortsBefore { next: 40000, taken: 0, since_s: 0 };
    FleetLoad { settings, run: RunId::random(), first_answer_limit: Duration::from_secs(30), before }
}

/// Returns the settings as seen from a node, whose name becomes part of the target names.
fn seen_from(settings: &Load, node: &str) -> Load {
    let mut settings = settings.clone();
    settings.targets.iter_mut().for_each(|target| target.name = format!("web@{node}"));
    settings
}

fn lines_of(run_dir: &Path) -> usize {
    read_table::<RequestRow>(run_dir).unwrap().len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fleet_keeps_schedule_despite_broken_connections() {
    let (url, _target) = target().await;
    let pods = [Pod::start().await, Pod::start().await];
    let members = vec![pods[0].member("a", Some(1)), pods[1].member("b", None)];
    let (mut fleet, noted) = fleet(members);
    let warnings = fleet.prepare(&wanted(&url, 101.0, 1), seen_from).await.unwrap();
    assert!(warnings.is_empty(), "{warnings:?}");
    let names: Vec<String> = fleet.recorders().into_iter().map(|source| source.name).collect();
    assert_eq!(names, ["load-0", "load-1"]);
    assert!(fleet.recorders().iter().all(|source| source.clock_uncertainty_ns.is_some()));
    let zero = fleet.start().await;
    let joined = fleet.join().await;
    assert_eq!((joined.scheduled, joined.lost), (101, vec![]));
    assert!(joined.at > zero);
    assert_eq!(fleet.control().progress().scheduled, 101);
    // Each worker starts at the port that it was given, and the next load starts after the ports of this one.
    let first = pods.iter().map(|pod| pod.rows().iter().filter_map(|row| row.local_port).min());
    assert!(first.clone().all(|port| port >= Some(40000)), "{:?}", first.collect::<Vec<_>>());
    let left = joined.ports.expect("ports");
    // Ports of one worker, and ports in use by something else on this machine, which are skipped.
    assert!((51..101).contains(&left.taken) && left.next >= 40051, "{left:?}");

    let rows: Vec<RequestRow> = pods.iter().flat_map(Pod::rows).collect();
    assert_eq!((pods[0].rows().len(), pods[1].rows().len()), (51, 50));
    let mut numbers: Vec<u64> =
        rows.iter().map(|row| row.seq * 2 + u64::from(&*row.source == "load-1")).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..101).collect::<Vec<u64>>());
    for row in &rows {
        let node = if &*row.source == "load-0" { "web@node-of-a" } else { "web@node-of-b" };
        assert_eq!(&*row.target, node);
    }
    let is_end = |(_, kind): &&(Option<String>, EventKind)| matches!(kind, EventKind::LoadEnded { .. });
    assert_eq!(noted.lock().unwrap().iter().filter(is_end).count(), 2);

    fleet.dismiss(Duration::from_secs(10)).await;
    for pod in pods {
        pod.ended.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fleet_continues_and_names_lost_worker() {
    let (url, _target) = target().await;
    let pods = [Pod::start().await, Pod::start().await];
    let (kill, killed) = oneshot::channel::<()>();
    let gone =
        async { killed.await.map_or_else(|_| std::future::pending().boxed(), |()| async {}.boxed()).await };
    let gone = gone.map(|()| "its container ended with code 137".to_owned()).boxed().shared();
    let members = vec![pods[0].member("a", None), FleetMember { gone, ..pods[1].member("b", None) }];
    let (mut fleet, noted) = fleet(members);
    fleet.prepare(&wanted(&url, 100.0, 3), seen_from).await.unwrap();
    fleet.start().await;
    let control = fleet.control().clone();
    let killing = async {
        while control.progress().scheduled < 50 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        kill.send(()).unwrap();
    };
    let (joined, ()) = futures::join!(fleet.join(), killing);
    let lost: Vec<String> = joined.lost.iter().map(ToString::to_string).collect();
    assert_eq!(lost, ["lost load worker b on node node-of-b (load-1): its container ended with code 137"]);
    assert_eq!(lines_of(pods[0].dir.path()), 150);
    assert!((150..300).contains(&joined.scheduled), "{joined:?}");
    let warned = |(_, kind): &(Option<String>, EventKind)| matches!(kind, EventKind::Warning { message } if message.contains("load worker b on node node-of-b"));
    assert!(noted.lock().unwrap().iter().any(warned));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fleet_reassigns_share_lost_before_start() {
    let (url, _target) = target().await;
    let pods = [Pod::start().await, Pod::start().await];
    let gone = std::future::ready("it was evicted".to_owned()).boxed().shared();
    let members = vec![FleetMember { gone, ..pods[0].member("a", None) }, pods[1].member("b", None)];
    let (mut fleet, noted) = fleet(members);
    let warnings = fleet.prepare(&wanted(&url, 100.0, 1), seen_from).await.unwrap();
    assert!(warnings.is_empty(), "{warnings:?}");
    let warning = "lost load worker a on node node-of-a: it was evicted; the others take over its part";
    let recorded = (None, EventKind::Warning { message: warning.to_owned() });
    assert!(noted.lock().unwrap().contains(&recorded));
    fleet.start().await;
    assert_eq!(fleet.join().await.scheduled, 100);
    assert_eq!(lines_of(pods[1].dir.path()), 100);
}

/// A transport on which the order to start is lost until it is opened.
struct Clogged {
    way: Arc<Direct>,
    is_open: Arc<AtomicBool>,
}

impl WorkerTransport for Clogged {
    fn ask(
        &self,
        request: Request<Bytes>,
    ) -> BoxFuture<'_, Result<Response<WorkerResponseBody>, WorkerTransportError>> {
        if request.uri().path() == ORDERS_PATH
            && request.uri().query() == Some("n=1")
            && !self.is_open.load(Ordering::Relaxed)
        {
            return std::future::ready(Err(WorkerTransportError("no route".to_owned()))).boxed();
        }
        self.way.ask(request)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreachable_worker_holds_up_no_others() {
    let (url, _target) = target().await;
    let pods = [Pod::start().await, Pod::start().await];
    let is_open = Arc::new(AtomicBool::new(false));
    let way = Arc::new(Clogged { way: pods[1].way("secret", None), is_open: Arc::clone(&is_open) });
    let (mut fleet, _) =
        fleet(vec![pods[0].member("a", None), FleetMember { way, ..pods[1].member("b", None) }]);
    fleet.prepare(&wanted(&url, 100.0, 1), seen_from).await.unwrap();
    fleet.start().await;
    // The load of the other worker is followed meanwhile.
    is_open.store(true, Ordering::Relaxed);
    let joined = fleet.join().await;
    assert_eq!((joined.scheduled, joined.lost), (100, vec![]));
}

/// A worker of a different version.
struct Other;

impl WorkerTransport for Other {
    fn ask(
        &self,
        request: Request<Bytes>,
    ) -> BoxFuture<'_, Result<Response<WorkerResponseBody>, WorkerTransportError>> {
        assert_eq!(request.uri().path(), VERSION_PATH, "the worker gets no other request");
        let body = Full::new(Bytes::from(r#"{"name": "rolldrop", "version": "0.0.1"}"#));
        let answer = Response::new(body.map_err(|never| match never {}).boxed_unsync());
        std::future::ready(Ok(answer)).boxed()
    }
}

#[tokio::test]
async fn fleet_rejects_version_mismatch() {
    let gone = std::future::pending().boxed().shared();
    let (name, node) = ("a".to_owned(), "node-1".to_owned());
    let (mut fleet, _) = fleet(vec![FleetMember { name, node, way: Arc::new(Other), gone }]);
    let refused = fleet.prepare(&wanted("http://127.0.0.1:1/", 1.0, 1), seen_from).await;
    let why = format!(
        "load worker a on node node-1: it runs rolldrop 0.0.1, but this is {}: set the matching image with --image",
        env!("CARGO_PKG_VERSION")
    );
    assert_eq!(refused.unwrap_err().to_string(), why);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn evicted_worker_still_serves_its_rows() {
    let (url, _target) = target().await;
    let pod = Pod::start().await;
    let (mut fleet, _) = fleet(vec![pod.member("a", None)]);
    fleet.prepare(&wanted(&url, 100.0, 3600), seen_from).await.unwrap();
    fleet.start().await;
    let control = fleet.control().clone();
    let evicting = async {
        while control.progress().scheduled < 20 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        pod.stop.cancel();
    };
    let (joined, ()) = futures::join!(fleet.join(), evicting);
    assert!((20..10_000).contains(&joined.scheduled) && joined.lost.is_empty(), "{joined:?}");
    assert_eq!(pod.rows().len() as u64, joined.scheduled);
    assert!(WorkerLink::new(pod.way("secret", None)).json::<ClockAnswer>(CLOCK_PATH).await.is_ok());
    fleet.dismiss(Duration::from_secs(10)).await;
    pod.ended.await.unwrap();
}

#[tokio::test]
async fn worker_accepts_authorised_orders_in_sequence() {
    let pod = Pod::start().await;
    let stranger = WorkerLink::new(pod.way("other", None));
    let refused = |result: Result<(), WorkerLinkError>| match result {
        Err(WorkerLinkError::Refused { status, why }) => (status, why),
        other => panic!("{other:?}"),
    };
    let stop = Bytes::from(serde_json::to_vec(&WorkerOrder::Clock { n: 1 }).unwrap());
    let path = |n: u64| format!("{ORDERS_PATH}?n={n}");
    for path in [&path(0), ACKNOWLEDGED_PATH] {
        assert_eq!(refused(stranger.post(path, stop.clone()).await).0, StatusCode::UNAUTHORIZED);
    }
    assert!(matches!(stranger.json::<ClockAnswer>(CLOCK_PATH).await, Err(WorkerLinkError::Refused { .. })));
    assert!(stranger.lines(READY_PATH).await.is_ok(), "the kubelet has no token");

    let link = WorkerLink::new(pod.way("secret", None));
    // A restarted worker gets orders whose predecessors the previous worker had accepted.
    let (status, why) = refused(link.post(&path(1), stop.clone()).await);
    assert_eq!((status, why.as_str()), (StatusCode::CONFLICT, "the next order is number 0"));
    assert_eq!(refused(link.post(&path(0), Bytes::from("nonsense")).await).0, StatusCode::BAD_REQUEST);
    for _ in 0..2 {
        link.post(&path(0), stop.clone()).await.unwrap();
    }
    assert!(refused(link.post(&path(2), stop).await).1.contains("number 1"));
}

/// Creates a socket with an address other than the run's. It leaves no port in use.
fn stranger() -> tokio::net::TcpSocket {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
    let _ = socket.set_zero_linger();
    socket
}

/// Sends the strangers' text on one connection after another.
async fn attack(to: SocketAddr, says: Vec<u8>) {
    let mut open = std::collections::VecDeque::new();
    loop {
        if let Ok(mut stream) = stranger().connect(to).await {
            let _ = stream.write_all(&says).await;
            open.push_back(stream);
        }
        if open.len() > 50 {
            open.pop_front();
        }
    }
}

#[tokio::test]
async fn worker_responds_to_run_during_port_attacks() {
    const QUESTIONS: usize = 200;
    const CROWD: usize = 200;
    let pod = Pod::start().await;
    let mut early = TcpStream::connect(pod.address).await.unwrap();
    let mut crowd = Vec::new();
    for _ in 0..CROWD {
        crowd.push(stranger().connect(pod.address).await.unwrap());
    }
    // The crowd loses its own connections, not the run's, which is older and has not sent anything yet.
    assert!(matches!(crowd[0].read(&mut [0]).await, Ok(0) | Err(_)));
    let clock = format!("GET {CLOCK_PATH} HTTP/1.1\r\nhost: x\r\n{TOKEN_HEADER}: secret\r\n\r\n");
    early.write_all(clock.as_bytes()).await.unwrap();
    let mut status = [0; b"HTTP/1.1 200".len()];
    early.read_exact(&mut status).await.expect("an answer");
    assert_eq!(&status, b"HTTP/1.1 200");

    let order = b"POST /orders?n=0 HTTP/1.1\r\nhost: x\r\ncontent-length: 8000000\r\n\r\n";
    let wrong = format!(
        "POST /acknowledged HTTP/1.1\r\nhost: x\r\n{TOKEN_HEADER}: Secret\r\ncontent-length: 0\r\n\r\n"
    );
    let attacks: [Vec<u8>; 7] = [
        Vec::new(),
        b"GET /clock HT".to_vec(),
        (0..=255).cycle().take(1000).collect(),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(),
        [b"GET /clock HTTP/1.1\r\nx: ".as_slice(), &[b'y'; 500_000]].concat(),
        [order.as_slice(), &[b'{'; 100_000]].concat(),
        wrong.repeat(20).into_bytes(),
    ];
    let mut strangers = tokio::task::JoinSet::new();
    for says in attacks {
        strangers.spawn(attack(pod.address, says));
    }
    let way = pod.way("secret", None);
    for question in 0..QUESTIONS {
        let request = Request::get(CLOCK_PATH).body(Bytes::new()).unwrap();
        let answer = way.ask(request).await.unwrap_or_else(|error| panic!("question {question}: {error}"));
        assert_eq!(answer.status(), StatusCode::OK);
        serde_json::from_slice::<ClockAnswer>(&answer.into_body().collect().await.unwrap().to_bytes())
            .unwrap();
    }
    strangers.shutdown().await;
    assert!(pod.rows().is_empty(), "no stranger has started a load");
}
