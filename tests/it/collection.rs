//! Collection of rows from many load workers: 100 synthetic workers at 1/20 of 10,000 requests/s each, with an outage
//! in the middle, and one worker that dies. The collector is a separate process so that its memory can be measured
//! alone. `scripts/proofs/collection` is the long form (docs/proofs.md).

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::{FutureExt, StreamExt, stream};
use hdrhistogram::Histogram;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use ring::digest::{SHA256, digest};
use rolldrop_load::OutcomeCounts;
use rolldrop_load::live_feed::{LiveBatch, LiveLine, Packed, SourceProgress};
use rolldrop_load::remote::fleet::FleetMember;
use rolldrop_load::remote::part_shelf::{ListedPart, Listing};
use rolldrop_load::remote::reverse::{Reception, visit};
use rolldrop_load::remote::row_collector::{FetchRateLimit, RowCollector};
use rolldrop_load::remote::worker_transport::WorkerResponseBody;
use rolldrop_record::parts::{PartWriter, parts_of, rows_in};
use rolldrop_record::run_info::{Role, Source};
use rolldrop_record::{Clock, Event, EventKind, Outcome, Phase, RequestRow, RunDir, RunInfo, Stamp};
use tokio::net::TcpListener;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::hostile::memory_kib;
use crate::runs;

const WORKERS: usize = 100;
/// Size of the short form: duration in seconds, and total requests per second (1/20 of 100 × 10,000).
const SHORT: (u64, u64) = (6, 50_000);
/// Maximum number of failed rows that each worker may send per second during the load.
const LIVE_ROWS: usize = 20;
/// Index of the worker that dies halfway.
const DEAD: usize = 99;
/// Maximum memory growth of the collector during the load: two seconds of rows would need more.
const MOST_GROWTH_KIB: u64 = 32 * 1024;
/// Default of `--collect-limit`.
const LIMIT_BYTES: f64 = 5e6;
/// Environment variable with the collector's run directory.
const ROLE: &str = "ROLLDROP_TEST_COLLECTOR";
const TOKEN: &str = "synthetic";

#[test]
fn collector_memory_stays_flat_under_load() {
    if let Some(dir) = std::env::var_os(ROLE) {
        return be_the_collector(Path::new(&dir));
    }
    let (seconds, per_second) = size();
    let kept = std::env::var_os("COLLECTION_RUN").map(std::path::PathBuf::from);
    let temporary = tempfile::tempdir().expect("a directory");
    let run = kept.clone().unwrap_or_else(|| temporary.path().join("run"));
    let mut collector = CollectorProcess::start(&run);
    let zero = collector.zero;
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let workers: Vec<_> = (0..WORKERS).map(|number| Arc::new(Worker::new(number, per_second))).collect();
    let visits = JoinSet::new();
    let mut visits = runtime.block_on(async {
        let mut visits = visits;
        for worker in &workers {
            visits.spawn(Arc::clone(worker).serve(collector.address.clone()));
        }
        visits
    });

    // During the load, each worker sends its rows and its batch every second.
    let mut resident = Vec::new();
    let began = Instant::now();
    for second in 0..seconds {
        let outage = (seconds / 3..2 * seconds / 3).contains(&second);
        let due = began + Duration::from_secs(second + 1);
        for worker in &workers {
            let dies = worker.number == DEAD && second >= seconds / 2;
            if !dies {
                worker.second(second, zero, outage);
            }
        }
        if second == seconds / 2 {
            // The dead worker's earlier messages have arrived by the end of the next second.
            collector.say(&format!("gone {}", name_of(DEAD)));
        }
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        resident.push(memory_kib(collector.child.id(), "VmRSS"));
    }
    let lasted = began.elapsed();
    for worker in &workers {
        worker.end();
    }

    // After the load, the collector fetches the parts.
    let (fetching, before) = (Instant::now(), resident.last().copied().expect("a sample"));
    collector.say("over");
    let said = collector.finish();
    let took = fetching.elapsed();
    runtime.block_on(visits.shutdown());
    let peak = memory_kib_of_line(&said, "VmHWM");
    let first_third = resident[resident.len() / 3];
    let highest = resident.iter().copied().max().expect("a sample");

    let rows: u64 = parts_of::<RequestRow>(&run).unwrap().iter().map(|part| rows_in(part).unwrap()).sum();
    let sum = |of: fn(&Sent) -> u64| workers.iter().map(|worker| of(&worker.sent())).sum::<u64>();
    let (live_bytes, part_bytes) = (sum(|sent| sent.live_bytes), sum(|sent| sent.part_bytes));
    println!(
        "{seconds} s, {} rows in {WORKERS} workers ({:.0} rows/s); memory after a third {} MiB, at most {} MiB under \
         load, {} MiB until the end; live {:.0} kB/s; {:.1} MB of parts in {:.1} s; {} rows in the run",
        sum(|sent| sent.rows),
        sum(|sent| sent.rows) as f64 / lasted.as_secs_f64(),
        first_third / 1024,
        highest / 1024,
        peak / 1024,
        live_bytes as f64 / 1e3 / lasted.as_secs_f64(),
        part_bytes as f64 / 1e6,
        took.as_secs_f64(),
        rows,
    );
    assert!(highest < first_third + MOST_GROWTH_KIB, "under load, in KiB: {resident:?}");
    assert!(peak < before + MOST_GROWTH_KIB, "{peak} KiB at the end, {before} before the parts were fetched");
    assert!(took.as_secs_f64() > part_bytes as f64 / LIMIT_BYTES - 1.0, "{part_bytes} bytes in {took:?}");
    assert!(live_bytes < seconds * 2_000_000, "{live_bytes} bytes were sent during the load");

    // Expects all rows of the live workers, and those that the dead worker had sent.
    let per_worker = seconds * per_second;
    let live = (WORKERS as u64 - 1) * per_worker;
    let info = RunDir::open(&run).expect("a run").info().expect("run.json");
    let of = |number: usize| {
        let source = info.sources.iter().find(|source| source.name == source_of(number));
        source.and_then(|source| source.rows).expect("rows")
    };
    assert_eq!((of(0).recorded, of(0).received), (Some(per_worker), per_worker));
    let dead = of(DEAD);
    assert!(dead.recorded.is_none() && dead.received > 0 && dead.known >= dead.received, "{dead:?}");
    assert_eq!(rows, live + dead.received);
    assert!(!run.join("live").exists());
}

/// Returns the duration in seconds and each worker's requests per second, as set by `COLLECTION=SECONDS@RATE`.
fn size() -> (u64, u64) {
    let (seconds, rate) = std::env::var("COLLECTION").map_or(SHORT, |text| {
        let (seconds, rate) = text.split_once('@').expect("COLLECTION=SECONDS@RATE");
        (seconds.parse().expect("seconds"), rate.parse().expect("requests per second"))
    });
    (seconds, rate / WORKERS as u64)
}

fn name_of(number: usize) -> String {
    format!("worker-{number}")
}

fn source_of(number: usize) -> String {
    format!("load-{number}")
}

fn memory_kib_of_line(said: &[String], key: &str) -> u64 {
    let line = said.iter().find_map(|line| line.strip_prefix(&format!("{key} ")));
    line.and_then(|kib| kib.parse().ok()).unwrap_or_else(|| panic!("no {key}: {said:?}"))
}

/// The collector as an operating-system process.
struct CollectorProcess {
    child: Child,
    orders: ChildStdin,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
    address: String,
    zero: Stamp,
}

impl CollectorProcess {
    /// Starts this same test in a separate process.
    fn start(run: &Path) -> Self {
        let test = "collection::collector_memory_stays_flat_under_load";
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", test, "--nocapture"])
            .env(ROLE, run)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the collector starts");
        let orders = child.stdin.take().expect("its input");
        let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        let ready = lines.find_map(|line| Some(line.ok()?.split_once("ready ")?.1.to_owned()));
        let ready = ready.expect("it is ready");
        let (address, zero) = ready.split_once(' ').expect("an address and a stamp");
        let (address, zero) = (address.to_owned(), Stamp::from_unix_ns(zero.parse().expect("a stamp")));
        Self { child, orders, lines, address, zero }
    }

    fn say(&mut self, order: &str) {
        writeln!(self.orders, "{order}").expect("it listens");
    }

    /// Waits until the collector exits, and returns its last lines.
    fn finish(&mut self) -> Vec<String> {
        let said: Vec<String> = self.lines.by_ref().map_while(Result::ok).collect();
        assert!(self.child.wait().expect("it exits").success(), "{said:?}");
        said
    }
}

impl Drop for CollectorProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Collects rows from all workers that connect, until the test reports that the load is over.
fn be_the_collector(dir: &Path) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let (clock, run_dir) = (Clock::start(), RunDir::create(dir).expect("a run directory"));
        let zero = clock.now();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let reception = Reception::open(listener, TOKEN.parse().expect("a token")).expect("a reception");
        let mut collector = RowCollector::begin(&run_dir, clock, zero, FetchRateLimit::default(), WORKERS);
        let (gone, _) = watch::channel(String::new());
        for number in 0..WORKERS {
            let (name, mut who) = (name_of(number), gone.subscribe());
            let way = reception.way(&name);
            let is_gone = {
                let name = name.clone();
                async move {
                    // If the channel is closed, the worker is never reported gone.
                    if who.wait_for(|gone| *gone == name).await.is_err() {
                        std::future::pending::<()>().await;
                    }
                    "it died".to_owned()
                }
            };
            let gone = is_gone.boxed().shared();
            let member = FleetMember { name, node: "node-1".into(), way, gone };
            collector.follow(&member, &[source_of(number)]);
        }
        println!("ready {} {}", reception.address(), zero.unix_ns());
        let orders = tokio::task::spawn_blocking(move || {
            for line in std::io::stdin().lines().map_while(Result::ok) {
                match line.strip_prefix("gone ") {
                    Some(name) => drop(gone.send_replace(name.to_owned())),
                    None => break,
                }
            }
            gone
        });
        let gone = orders.await.expect("orders");
        let ended = clock.now();
        let collected = collector.finish(&CancellationToken::new(), |_| {}).await.expect("collected");
        drop(gone);
        assert_eq!(collected.lost, [(name_of(DEAD), "it died".to_owned())]);
        let source = |(name, rows)| Source {
            name,
            role: Role::Load,
            clock_offset_ns: 0,
            clock_uncertainty_ns: Some(0),
            rows: Some(rows),
        };
        write_down(&run_dir, zero, ended, collected.rows.into_iter().map(source).collect());
        println!("VmHWM {}", memory_kib(std::process::id(), "VmHWM"));
    });
}

/// Writes the run directory as `rolldrop run` would have written it.
fn write_down(run_dir: &RunDir, zero: Stamp, ended: Stamp, sources: Vec<Source>) {
    let (rate, duration_s) = ((size().1 * WORKERS as u64) as f64, ended.seconds_since(zero));
    let info = RunInfo { sources, ..runs::synthetic(rate, duration_s, (zero, ended)) };
    run_dir.write_info(&info).expect("run.json");
    let mut log = run_dir.event_log().expect("a log");
    let started = EventKind::LoadStarted { rate, duration_s, warmup_s: 0.0 };
    log.append(&Event::new(zero, "coordinator", started)).expect("an event");
}

/// A load worker that sends no real load.
struct Worker {
    number: usize,
    per_second: u64,
    dir: tempfile::TempDir,
    state: Mutex<State>,
    sent: Mutex<Sent>,
    more: Notify,
    /// Response-time histograms, the same every second.
    response: BTreeMap<bool, (Packed, Packed)>,
}

struct State {
    writer: Option<PartWriter<RequestRow>>,
    batches: Vec<Arc<Vec<u8>>>,
    rows: u64,
    is_over: bool,
}

#[derive(Default)]
struct Sent {
    rows: u64,
    live_bytes: u64,
    part_bytes: u64,
}

impl Worker {
    fn new(number: usize, per_second: u64) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let writer = PartWriter::create(dir.path(), &source_of(number), Clock::start()).expect("a writer");
        let packed = |center_us: u64| {
            let mut times = Histogram::<u64>::new(3).expect("a histogram");
            (0..per_second).for_each(|n| times.record((center_us + n * 37 % 4_000) * 1_000).expect("a time"));
            Packed::pack(&times)
        };
        let response = [(false, (packed(1_500), packed(1_200))), (true, (packed(300), packed(200)))];
        Self {
            number,
            per_second,
            dir,
            state: Mutex::new(State { writer: Some(writer), batches: Vec::new(), rows: 0, is_over: false }),
            sent: Mutex::default(),
            more: Notify::new(),
            response: response.into(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panicked")
    }

    fn sent(&self) -> MutexGuard<'_, Sent> {
        self.sent.lock().expect("no thread panicked")
    }

    /// Records one second of requests: one in a hundred is lost, or all of them in an outage.
    fn second(&self, n: u64, zero: Stamp, outage: bool) {
        let mut state = self.state();
        let source: Arc<str> = source_of(self.number).into();
        let (target, pod): (Arc<str>, Arc<str>) = ("web".into(), "web-0".into());
        let mut main = OutcomeCounts::default();
        let rows: Vec<RequestRow> = (0..self.per_second)
            .map(|k| {
                let seq = state.rows + k;
                let at =
                    zero + Duration::from_secs(n) + Duration::from_micros(k * 1_000_000 / self.per_second);
                let is_ok = !outage && !seq.is_multiple_of(100);
                let outcome = if is_ok { Outcome::Ok } else { Outcome::ConnectRefused };
                main.add(outcome, 1);
                RequestRow {
                    connect_start: Some(at),
                    sent: is_ok.then_some(at + Duration::from_micros(200)),
                    head: is_ok.then_some(at + Duration::from_micros(900)),
                    end: at + Duration::from_millis(1),
                    outcome,
                    errno: (!is_ok).then_some(111),
                    status: is_ok.then_some(200),
                    conn: Some(seq),
                    local_port: u16::try_from(20_000 + seq % 40_000).ok(),
                    remote_addr: Some("10.96.0.10:80".into()),
                    pod: is_ok.then(|| pod.clone()),
                    final_outcome: outcome,
                    ..RequestRow::not_sent(source.clone(), seq, target.clone(), Phase::Main, at, at)
                }
            })
            .collect();
        let lost: Vec<_> = rows.iter().filter(|row| row.outcome != Outcome::Ok).cloned().collect();
        state.writer.as_mut().expect("a writer").extend(&rows).expect("rows");
        state.rows += self.per_second;
        let (response, service) = self.response[&outage].clone();
        let outcome = if outage { Outcome::ConnectRefused } else { Outcome::Ok };
        let batch = LiveBatch {
            n,
            sources: vec![self.reached(state.rows)],
            main,
            response: BTreeMap::from([(outcome, response)]),
            service: Some(service),
            left: lost.len().saturating_sub(LIVE_ROWS) as u64,
            rows: lost.into_iter().take(LIVE_ROWS).collect(),
            ..LiveBatch::default()
        };
        let mut line = serde_json::to_vec(&LiveLine::Batch(Box::new(batch))).expect("a line");
        line.push(b'\n');
        state.batches.push(Arc::new(line));
        self.sent().rows += self.per_second;
        drop(state);
        self.more.notify_waiters();
    }

    fn reached(&self, rows: u64) -> SourceProgress {
        SourceProgress { source: source_of(self.number), scheduled: rows, rows, ..SourceProgress::default() }
    }

    fn end(&self) {
        let writer = self.state().writer.take();
        writer.expect("a writer").finish().expect("a part");
        self.state().is_over = true;
        self.more.notify_waiters();
    }

    async fn serve(self: Arc<Self>, address: String) {
        let token = TOKEN.parse().expect("a token");
        let name = name_of(self.number);
        let answer = |request: Request<Incoming>| {
            let worker = Arc::clone(&self);
            async move { worker.answer(&request) }
        };
        visit(&address, &name, &token, answer).await;
    }

    fn answer(self: &Arc<Self>, request: &Request<Incoming>) -> Response<WorkerResponseBody> {
        let path = request.uri().path();
        match path.strip_prefix("/parts/") {
            Some(name) => self.part(name, request),
            None if path == "/parts" => whole(serde_json::to_vec(&self.parts()).expect("JSON")),
            None if path == "/live" => {
                let from = request.uri().query().and_then(|query| query.strip_prefix("from="));
                let from = from.and_then(|rest| rest.split('&').next()?.parse().ok()).expect("a number");
                self.live(from)
            }
            None => whole(Vec::new()),
        }
    }

    fn live(self: &Arc<Self>, from: usize) -> Response<WorkerResponseBody> {
        let lines = stream::unfold(Some((Arc::clone(self), from)), |next| async move {
            let (worker, n) = next?;
            let (line, is_last) = loop {
                let more = worker.more.notified();
                {
                    let state = worker.state();
                    if let Some(line) = state.batches.get(n) {
                        break (line.to_vec(), false);
                    }
                    if state.is_over {
                        let end = LiveLine::End { sources: vec![worker.reached(state.rows)] };
                        let mut line = serde_json::to_vec(&end).expect("a line");
                        line.push(b'\n');
                        break (line, true);
                    }
                }
                more.await;
            };
            worker.sent().live_bytes += line.len() as u64;
            let next = (!is_last).then(|| (Arc::clone(&worker), n + 1));
            Some((Ok(Frame::data(Bytes::from(line))), next))
        });
        Response::new(StreamBody::new(lines.boxed()).boxed_unsync())
    }

    fn parts(&self) -> Listing {
        let part = |path: &std::path::PathBuf| {
            let bytes = std::fs::read(path).expect("a part");
            ListedPart {
                name: path
                    .strip_prefix(self.dir.path())
                    .expect("a path")
                    .to_str()
                    .expect("a name")
                    .to_owned(),
                bytes: bytes.len() as u64,
                rows: rows_in(path).expect("rows"),
                sha256: digest(&SHA256, &bytes).as_ref().iter().map(|byte| format!("{byte:02x}")).collect(),
            }
        };
        let paths = parts_of::<RequestRow>(self.dir.path()).expect("parts");
        Listing { complete: self.state().is_over, parts: paths.iter().map(part).collect() }
    }

    fn part(&self, name: &str, request: &Request<Incoming>) -> Response<WorkerResponseBody> {
        let bytes = std::fs::read(self.dir.path().join(name)).expect("a part");
        let from = request.headers()["range"].to_str().expect("a range");
        let from = from.strip_prefix("bytes=").and_then(|from| from.strip_suffix('-')).expect("a range");
        let bytes = bytes[from.parse::<usize>().expect("a number")..].to_vec();
        self.sent().part_bytes += bytes.len() as u64;
        let mut answer = whole(bytes);
        *answer.status_mut() = StatusCode::PARTIAL_CONTENT;
        answer
    }
}

fn whole(body: Vec<u8>) -> Response<WorkerResponseBody> {
    let body = Full::new(Bytes::from(body)).map_err(|never: Infallible| match never {});
    Response::new(body.boxed_unsync())
}
