//! The recording proxy between clients and apps that misbehave at random, over HTTP/1.1 and HTTP/2, with hostile
//! clients beside them: the proxy loses no row and leaks nothing. `scripts/proofs/soak` is the long form
//! (docs/proofs.md).
//!
//! Both ends keep count by request id. A client that read to the end of a response knows whether the response was
//! complete. A client that was reset cannot know how many bytes were still buffered in its own system.

mod hostile;
mod http1;
mod http2;

use std::collections::BTreeMap;
use std::fmt;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::harness::{LIMIT, OWN_PORT, cpu_s, own_host};
use crate::runs;
use crate::strangers::attacks::HOSTILE_ID;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rolldrop_record::wire::{COLLECTOR_HEADER, ClockAnswer, ProxyLine};
use rolldrop_record::{ServedEnd, ServedRow};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Maximum duration of a conversation when many share a busy machine.
const PATIENCE: Duration = Duration::from_secs(600);

/// Size of the test.
#[derive(Clone, Debug)]
struct Size {
    duration: Duration,
    clients: u64,
    /// Number of clients that attack at the same time, and are not counted.
    hostile: u64,
    /// Maximum pause of a client between two conversations.
    rest: Duration,
    seed: u64,
    binary: PathBuf,
}

impl Size {
    /// Returns the small size or, if `SOAK` is set, full load for that many seconds.
    fn chosen() -> Self {
        let full = std::env::var("SOAK").ok().map(|seconds| seconds.parse().expect("SOAK=SECONDS"));
        let binary =
            std::env::var_os("SOAK_ROLLDROP").unwrap_or_else(|| env!("CARGO_BIN_EXE_rolldrop").into());
        Self {
            duration: Duration::from_secs(full.unwrap_or(120)),
            clients: if full.is_some() { 256 } else { 24 },
            hostile: if full.is_some() { 64 } else { 6 },
            // Other tests run beside the short form, and some of them measure times.
            rest: if full.is_some() { Duration::ZERO } else { Duration::from_secs(1) },
            seed: 1,
            binary: binary.into(),
        }
    }
}

/// Facts known about a request, as bits.
#[derive(Clone, Copy, Default)]
struct Known(u8);

impl Known {
    const SENT: u8 = 1;
    const READ_BY_APP: u8 = 2;
    const RECORDED: u8 = 4;
    const RECORDED_COMPLETE: u8 = 8;
    /// The client stayed until the response ended.
    const ENDED: u8 = 16;
    const ENDED_COMPLETE: u8 = 32;
    const TWICE: u8 = 64;
    /// The client has seen part of a response.
    const BEGUN: u8 = 128;

    fn is(self, fact: u8) -> bool {
        self.0 & fact != 0
    }

    /// Returns true if the request should have a row but has none.
    fn lacks_row(self) -> bool {
        self.is(Self::READ_BY_APP | Self::ENDED) && !self.is(Self::RECORDED)
    }

    /// Returns true if the request should have a row even after hostile clients have used up the rows for unanswered
    /// requests.
    fn is_answered(self) -> bool {
        self.is(Self::BEGUN | Self::ENDED_COMPLETE)
    }

    /// Returns the request's fault, if any.
    fn fault(self) -> Option<&'static str> {
        if self.is(Self::TWICE) {
            Some("read or recorded twice")
        } else if self.is(Self::RECORDED) && !self.is(Self::SENT) {
            Some("recorded but never sent")
        } else if self.lacks_row() && self.is_answered() {
            Some("not recorded")
        } else if self.is(Self::ENDED) && self.is(Self::RECORDED_COMPLETE) != self.is(Self::ENDED_COMPLETE) {
            Some("complete for only one of client and proxy")
        } else {
            None
        }
    }
}

/// Row of an incomplete request; a full run has some hundred thousand of them.
#[derive(Debug)]
#[expect(dead_code, reason = "shown when something is wrong with the request")]
struct Cut {
    ended: ServedEnd,
    detail: Option<Arc<str>>,
    status: Option<u16>,
    stream: Option<u32>,
    conn: u64,
}

/// Facts from all sides about all requests, by the number in the request id.
#[derive(Default)]
struct Ledger {
    requests: Mutex<Vec<Known>>,
    /// Faults that belong to no single request.
    faults: Mutex<Vec<String>>,
    /// Rows of incomplete requests.
    cut: Mutex<BTreeMap<u64, Cut>>,
}

impl Ledger {
    /// Allocates the number for a request that is about to be sent.
    fn new_id(&self) -> u64 {
        let mut requests = self.requests();
        requests.push(Known(Known::SENT));
        requests.len() as u64 - 1
    }

    fn note(&self, id: u64, facts: u8) {
        match self.requests().get_mut(usize::try_from(id).expect("a number")) {
            Some(known) => known.0 |= facts,
            None => self.fault(format!("soak-{id} was never sent")),
        }
    }

    /// Notes a fact that may occur only once.
    fn note_once(&self, id: u64, fact: u8) {
        let known = self.requests().get(usize::try_from(id).expect("a number")).copied().unwrap_or_default();
        self.note(id, fact | if known.is(fact) { Known::TWICE } else { 0 });
    }

    /// Notes that a client saw the beginning of a response.
    fn begun(&self, id: u64) {
        self.note(id, Known::BEGUN);
    }

    /// Notes that a client that stayed saw the end of a response.
    fn ended(&self, id: u64, complete: bool) {
        self.note(id, Known::ENDED | if complete { Known::ENDED_COMPLETE } else { 0 });
    }

    /// Notes that the app read the request with this id.
    fn read_by_app(&self, id: &str) {
        if id == HOSTILE_ID {
            return;
        }
        match id.strip_prefix("run-soak-").and_then(|number| number.parse().ok()) {
            Some(number) => self.note_once(number, Known::READ_BY_APP),
            None => self.fault(format!("the app read the id {id:?}")),
        }
    }

    fn fault(&self, what: String) {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }

    fn requests(&self) -> MutexGuard<'_, Vec<Known>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The proxy as an operating-system process.
struct Proxy(Child);

impl Proxy {
    fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.0.id())).expect("its descriptors").count()
    }

    fn resident_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id())).expect("its status");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
        line.trim().trim_end_matches(" kB").parse().expect("a number")
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Resident memory over time, as seconds and KiB.
struct Memory(Vec<(f64, f64)>);

impl Memory {
    fn mean_mib(samples: &[(f64, f64)]) -> f64 {
        samples.iter().map(|(_, kib)| kib).sum::<f64>() / samples.len().max(1) as f64 / 1024.0
    }

    /// Returns the means of the first and the last quarter.
    fn quarters_mib(&self) -> (f64, f64) {
        let quarter = self.0.len().div_ceil(4);
        (Self::mean_mib(&self.0[..quarter]), Self::mean_mib(&self.0[self.0.len() - quarter..]))
    }

    /// Returns the least-squares slope from the second quarter on.
    fn mib_per_hour(&self) -> f64 {
        let samples = &self.0[self.0.len() / 4..];
        let n = samples.len() as f64;
        let (t, m) = samples.iter().fold((0.0, 0.0), |(t, m), (at, kib)| (t + at / n, m + kib / n));
        let (mut above, mut below) = (0.0, 0.0);
        for (at, kib) in samples {
            above += (at - t) * (kib - m);
            below += (at - t) * (at - t);
        }
        above / below * 3600.0 / 1024.0
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, last) = self.quarters_mib();
        let most = self.0.iter().map(|(_, kib)| kib / 1024.0).fold(0.0, f64::max);
        write!(
            f,
            "{first:.1} MiB in the first quarter, {last:.1} in the last, {most:.1} at most, {:+.1} MiB an hour",
            self.mib_per_hour()
        )
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn soaked_proxy_loses_and_leaks_nothing() {
    let size = Size::chosen();
    let _apart = runs::APART.lock().await;
    let ledger = Arc::new(Ledger::default());
    // No other process takes the port while the app does not listen.
    let upstream = SocketAddr::from((own_host(), OWN_PORT));
    let mut apps = JoinSet::new();
    apps.spawn(app(upstream, StdRng::seed_from_u64(size.seed), ledger.clone()));

    let mut proxy = Command::new(&size.binary);
    proxy.args([
        "proxy",
        "--open-admin",
        "--pod",
        "soak",
        "--listen",
        "127.0.0.1:0",
        "--admin",
        "127.0.0.1:0",
        "--upstream",
    ]);
    let mut proxy = Proxy(proxy.arg(upstream.to_string()).stderr(Stdio::piped()).spawn().expect("the proxy"));
    let (data, admin) = addresses(&mut proxy).await;
    let ends: Arc<Mutex<BTreeMap<&'static str, u64>>> = Arc::default();
    let received = Arc::new(AtomicU64::new(0));
    apps.spawn(read_rows(admin, ledger.clone(), ends.clone(), received.clone()));
    timeout(LIMIT, until_read(&received)).await.expect("the stream of rows");
    let descriptors = proxy.descriptors();

    let started = Instant::now();
    let processes = [proxy.0.id(), std::process::id()];
    let before_s = processes.map(cpu_s);
    let mut clients = JoinSet::new();
    for number in 0..size.clients {
        let rng = StdRng::seed_from_u64(size.seed << 32 | number);
        let (size, ledger) = (size.clone(), ledger.clone());
        clients.spawn(async move { client(data, started + size.duration, size.rest, rng, &ledger).await });
    }
    for number in 0..size.hostile {
        let rng = StdRng::seed_from_u64(size.seed << 32 | 1 << 31 | number);
        clients.spawn(hostile::client(data, started + size.duration, rng));
    }
    let mut memory = Memory(Vec::new());
    while !clients.is_empty() {
        memory.0.push((started.elapsed().as_secs_f64(), proxy.resident_kib() as f64));
        let second = sleep(Duration::from_secs(1));
        tokio::select! {
            () = second => {}
            ended = clients.join_next() => ended.map_or((), |ended| ended.expect("a client that did not panic")),
        }
    }
    let took_s = started.elapsed().as_secs_f64();
    let [of_proxy, of_others] = [0, 1].map(|n| (cpu_s(processes[n]) - before_s[n]) / took_s * 100.0);

    let idle = async {
        while proxy.descriptors() > descriptors
            || recorded(admin).await > received.load(Ordering::Relaxed) - 1
        {
            sleep(Duration::from_millis(100)).await;
        }
    };
    let let_go = timeout(LIMIT, idle).await;
    let told = format!(
        "{} s, seed {}, {}: {:?}; memory {memory}; {} descriptors before, {} after; \
         {of_proxy:.0} % of a processor for the proxy, {of_others:.0} % for clients and apps",
        size.duration.as_secs(),
        size.seed,
        ledger_in_words(&ledger),
        ends.lock().expect("no panic"),
        descriptors,
        proxy.descriptors(),
    );
    println!("{told}");
    assert!(let_go.is_ok(), "the proxy leaked descriptors, or did not send all rows: {told}");
    let faults = faults(&ledger, &get(admin, "/metrics").await);
    assert!(
        faults.is_empty(),
        "{} faults, such as {:#?}\n{told}",
        faults.len(),
        &faults[..faults.len().min(10)]
    );
    let (first, last) = memory.quarters_mib();
    assert!(last <= first * 1.1 + 8.0, "memory grew: {told}");
}

fn ledger_in_words(ledger: &Ledger) -> String {
    let requests = ledger.requests();
    let count = |fact| requests.iter().filter(|known| known.is(fact)).count();
    format!(
        "{} requests sent, {} read by the app, {} seen to the end, {} rows, {} have none",
        requests.len(),
        count(Known::READ_BY_APP),
        count(Known::ENDED),
        count(Known::RECORDED),
        requests.iter().filter(|known| known.lacks_row()).count()
    )
}

/// Returns all faults. Missing rows of unanswered requests are not faults if the proxy reports that it had no room
/// for that many; most of those requests are hostile.
fn faults(ledger: &Ledger, metrics: &str) -> Vec<String> {
    let unrecorded = unrecorded(metrics, "rows") + unrecorded(metrics, "answers");
    let requests = ledger.requests();
    let is_left_out = |known: &&Known| known.lacks_row() && !known.is_answered();
    let lacking = requests.iter().filter(is_left_out).count() as u64;
    let lacking =
        (lacking > unrecorded).then(|| format!("{lacking} have no row, {unrecorded} are counted as such"));
    let cut = ledger.cut.lock().expect("no panic");
    let of_requests = (0..).zip(requests.iter()).filter_map(|(id, known)| {
        known.fault().map(|fault| format!("soak-{id}: {fault} ({:#08b}) {:?}", known.0, cut.get(&id)))
    });
    let others = ledger.faults.lock().expect("no panic").clone();
    // Request faults come first, because the other faults are all alike.
    of_requests.chain(lacking).chain(others).collect()
}

/// Returns the addresses of the proxy's data and admin ports.
async fn addresses(proxy: &mut Proxy) -> (SocketAddr, SocketAddr) {
    let stderr = tokio::process::ChildStderr::from_std(proxy.0.stderr.take().expect("its stderr"));
    let mut lines = BufReader::new(stderr.expect("a pipe")).lines();
    let line = timeout(LIMIT, lines.next_line()).await.expect("in time").expect("a line").expect("a line");
    let (_, said) = line.split_once("proxy on ").expect("its addresses");
    let (data, admin) = said.split_once(", admin on ").expect("two addresses");
    (data.parse().expect("an address"), admin.parse().expect("an address"))
}

/// Reads the row stream until it breaks off. The first line also counts as received.
async fn read_rows(
    admin: SocketAddr,
    ledger: Arc<Ledger>,
    ends: Arc<Mutex<BTreeMap<&'static str, u64>>>,
    received: Arc<AtomicU64>,
) {
    let mut stream = TcpStream::connect(admin).await.expect("the admin port");
    let request = format!("GET /rows HTTP/1.1\r\n{COLLECTOR_HEADER}: true\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut stream = BufReader::with_capacity(1 << 16, stream);
    let mut line = Vec::new();
    while stream.read_until(b'\n', &mut line).await.is_ok_and(|length| length > 0) {
        match serde_json::from_slice(&line) {
            Ok(ProxyLine::Row(row)) => {
                *ends.lock().expect("no panic").entry(row.ended.as_str()).or_default() += 1;
                if let Some(id) = &row.request {
                    ledger.note_once(id.seq, Known::RECORDED);
                    if row.ended == ServedEnd::Complete {
                        ledger.note(id.seq, Known::RECORDED_COMPLETE);
                    } else {
                        let ServedRow { ended, status, stream, conn, .. } = row;
                        let cut = Cut { ended, detail: row.detail, status, stream, conn };
                        ledger.cut.lock().expect("no panic").insert(id.seq, cut);
                    }
                }
                received.fetch_add(1, Ordering::Relaxed);
            }
            Ok(ProxyLine::Hello { .. }) => {
                let before = received.fetch_add(1, Ordering::Relaxed);
                if before > 0 {
                    ledger.fault("rows were dropped before they were read".to_owned());
                }
            }
            _ => {}
        }
        line.clear();
    }
}

async fn until_read(received: &AtomicU64) {
    while received.load(Ordering::Relaxed) == 0 {
        sleep(Duration::from_millis(5)).await;
    }
}

/// Returns the number of rows that the proxy kept: those that it reports as recorded, minus those that it had no room
/// for.
async fn recorded(admin: SocketAddr) -> u64 {
    let clock = serde_json::from_str::<ClockAnswer>(&get(admin, "/clock").await).expect("its clock");
    clock.recorded.saturating_sub(unrecorded(&get(admin, "/metrics").await, ""))
}

/// Returns the number of requests forwarded without being recorded, according to the metrics, for reasons that begin
/// with this text.
fn unrecorded(metrics: &str, reason: &str) -> u64 {
    let name = format!("rolldrop_proxy_unrecorded_total{{reason=\"{reason}");
    let counts = metrics.lines().filter(|line| line.starts_with(&name));
    counts.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

/// Returns the admin port's response for this path.
async fn get(admin: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(admin).await.expect("the admin port");
    let ask = format!("GET {path} HTTP/1.1\r\nconnection: close\r\n\r\n");
    stream.write_all(ask.as_bytes()).await.expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("a response");
    answer.split_once("\r\n\r\n").expect("a body").1.to_owned()
}

/// Runs an app that sometimes does not listen.
async fn app(address: SocketAddr, mut rng: StdRng, ledger: Arc<Ledger>) {
    let mut connections = JoinSet::new();
    loop {
        let listener = TcpListener::bind(address).await.expect("its port again");
        let until = tokio::time::Instant::now() + Duration::from_millis(rng.random_range(500..4000));
        loop {
            tokio::select! {
                accepted = listener.accept() => {
                    let Ok((stream, _)) = accepted else { continue };
                    let rng = StdRng::seed_from_u64(rng.random());
                    connections.spawn(serve(stream, rng, ledger.clone()));
                }
                Some(_) = connections.join_next() => {}
                () = tokio::time::sleep_until(until) => break,
            }
        }
        drop(listener);
        sleep(Duration::from_millis(rng.random_range(1..60))).await;
    }
}

/// Serves a connection to the app; the client chose the protocol.
async fn serve(stream: TcpStream, mut rng: StdRng, ledger: Arc<Ledger>) {
    if rng.random_bool(0.02) {
        // The connection is accepted, and closed immediately.
        if rng.random() {
            reset(&stream);
        }
        return;
    }
    let mut first = [0; 3];
    // A client that has closed its side sends no more bytes.
    for _ in 0..1000 {
        match stream.peek(&mut first).await {
            Ok(1 | 2) => sleep(Duration::from_millis(1)).await,
            Ok(3) => break,
            _ => return,
        }
    }
    // The result does not matter, because both ends have kept count.
    let _ = match &first {
        b"PRI" => http2::serve(stream, rng, ledger).await.is_ok(),
        _ => http1::serve(stream, rng, &ledger).await.is_ok(),
    };
}

/// Runs a client, which makes one connection after another.
async fn client(proxy: SocketAddr, end: Instant, rest: Duration, mut rng: StdRng, ledger: &Arc<Ledger>) {
    while Instant::now() < end {
        let stream = match TcpStream::connect(proxy).await {
            Ok(stream) => stream,
            // If the app was not listening or reset the connection, the proxy may reset this client before the client
            // reads.
            Err(error) if error.kind() == ErrorKind::ConnectionReset => continue,
            Err(error) => return ledger.fault(format!("a client was refused: {error}")),
        };
        let _ = stream.set_nodelay(true);
        let talk = async {
            if rng.random_bool(0.4) {
                http2::converse(stream, &mut rng, ledger).await.is_ok()
            } else {
                http1::converse(stream, &mut rng, ledger).await.is_ok()
            }
        };
        if timeout(PATIENCE, talk).await.is_err() {
            ledger.fault("a conversation did not end".to_owned());
        }
        sleep(rest.mul_f64(rng.random())).await;
    }
}

/// Makes a connection close with a reset when it is dropped.
fn reset(stream: &TcpStream) {
    let _ = stream.set_zero_linger();
}

/// Returns unpredictable bytes from a block generated once, so that this takes no time.
fn bytes(rng: &mut StdRng, length: usize) -> &'static [u8] {
    static BLOCK: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let mut block = vec![0; 1 << 20];
        StdRng::seed_from_u64(0).fill(&mut block[..]);
        block
    });
    let from = rng.random_range(0..=BLOCK.len() - length);
    &BLOCK[from..from + length]
}

/// Returns one of several values at random.
fn one_of<T: Copy>(rng: &mut StdRng, of: &[T]) -> T {
    of[rng.random_range(0..of.len())]
}
