//! Tests of collecting from workers in this process, over faulty transports.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, future, stream};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty, StreamBody};
use hyper::body::Frame;
use tokio::sync::Notify;

use super::early::{Arrived, RowMark};
use super::*;
use crate::latency_log::{self, ByOutcome};
use crate::live_feed::{Beside, LiveJournalWriter};
use crate::remote::row_handover::RowHandover;
use crate::remote::worker_transport::{WorkerResponseBody, WorkerTransport, WorkerTransportError};
use rolldrop_record::parts::{PartWriter, read_table};
use rolldrop_record::{Outcome, Phase, RequestRow};

/// Faults of the responses that carry parts, used one after another.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// The response breaks off after this many bytes.
    CutAfter(usize),
    /// The first byte of the response is wrong.
    Garbled,
    /// The response does not arrive, and `lost` is notified.
    Lost,
}

/// A worker in this process.
struct Worker {
    dir: tempfile::TempDir,
    handover: RowHandover,
    writer: Mutex<Option<LiveJournalWriter>>,
    faults: Mutex<VecDeque<Fault>>,
    /// Notified when a response was lost.
    lost: Notify,
    asked: Mutex<Vec<String>>,
}

impl Worker {
    fn new(faults: impl IntoIterator<Item = Fault>) -> Arc<Self> {
        let dir = tempfile::tempdir().unwrap();
        let handover = RowHandover::new(dir.path());
        Arc::new(Self {
            writer: Mutex::new(Some(handover.journal().writer())),
            handover,
            dir,
            faults: Mutex::new(faults.into_iter().collect()),
            lost: Notify::new(),
            asked: Mutex::default(),
        })
    }

    /// Adds a second in which these requests ended.
    fn second(&self, n: u64, rows: &[RequestRow], in_flight: u64) {
        let (mut beside, mut response) = (Beside::default(), ByOutcome::new());
        for row in rows {
            beside.add(row);
            latency_log::add(&mut response, row);
        }
        let mut reached = reached(&rows[0].source, rows.last().unwrap().seq + 1, in_flight);
        // Same share as in `rows`.
        let lost = reached.rows.div_ceil(10);
        reached.main.add(Outcome::ResetBeforeResponse, lost);
        reached.main.add(Outcome::Ok, reached.rows - lost);
        self.writer.lock().unwrap().as_mut().unwrap().push(beside.batch(n, &response, &[reached]));
    }

    fn part(&self, number: u32, rows: &[RequestRow]) {
        let source = &rows[0].source;
        let elsewhere = tempfile::tempdir().unwrap();
        let mut writer = PartWriter::create(elsewhere.path(), source, Clock::start()).unwrap();
        writer.extend(rows).unwrap();
        writer.finish().unwrap();
        fs::create_dir_all(self.dir.path().join("requests")).unwrap();
        let name = |number: u32| format!("requests/{source}-{number:05}.parquet");
        fs::copy(elsewhere.path().join(name(0)), self.dir.path().join(name(number))).unwrap();
    }

    fn end(&self, source: &str, rows: u64) {
        self.writer.lock().unwrap().take().unwrap().end(vec![reached(source, rows, 0)]);
    }

    fn asked(&self, path: &str) -> usize {
        self.asked.lock().unwrap().iter().filter(|asked| asked.starts_with(path)).count()
    }
}

fn reached(source: &str, rows: u64, in_flight: u64) -> SourceProgress {
    let (source, scheduled) = (source.to_owned(), rows + in_flight);
    SourceProgress { source, scheduled, in_flight, rows, ..SourceProgress::default() }
}

impl WorkerTransport for Worker {
    fn ask(
        &self,
        request: Request<Bytes>,
    ) -> BoxFuture<'_, Result<Response<WorkerResponseBody>, WorkerTransportError>> {
        async move {
            let path = request.uri().path().to_owned();
            self.asked.lock().unwrap().push(path.clone());
            let answer = self.handover.answer(request.method(), request.uri(), request.headers()).await;
            let Some(answer) = answer else {
                return Ok(Response::new(Empty::new().map_err(|never| match never {}).boxed_unsync()));
            };
            if !path.starts_with("/parts/") || answer.status() != StatusCode::PARTIAL_CONTENT {
                return Ok(answer);
            }
            let fault = self.faults.lock().unwrap().pop_front();
            let (head, body) = answer.into_parts();
            let mut bytes = body.collect().await.unwrap().to_bytes().to_vec();
            let pieces = match fault {
                None => vec![Ok(Frame::data(Bytes::from(bytes)))],
                Some(Fault::CutAfter(length)) => {
                    bytes.truncate(length);
                    vec![Ok(Frame::data(Bytes::from(bytes))), Err(io::ErrorKind::ConnectionReset.into())]
                }
                Some(Fault::Garbled) => {
                    bytes[0] ^= 1;
                    vec![Ok(Frame::data(Bytes::from(bytes)))]
                }
                Some(Fault::Lost) => {
                    self.lost.notify_one();
                    return Err(WorkerTransportError("the response was lost".to_owned()));
                }
            };
            Ok(Response::from_parts(head, StreamBody::new(stream::iter(pieces).boxed()).boxed_unsync()))
        }
        .boxed()
    }
}

/// Returns rows of a source, in which every tenth request was reset.
fn rows(source: &str, seqs: std::ops::Range<u64>) -> Vec<RequestRow> {
    let at =
        |ms: u64| Stamp::from_unix_ns(1_800_000_000_000_000_000 + i64::try_from(ms).unwrap() * 1_000_000);
    let row = |seq: u64| {
        let outcome = if seq.is_multiple_of(10) { Outcome::ResetBeforeResponse } else { Outcome::Ok };
        RequestRow {
            sent: Some(at(seq)),
            outcome,
            final_outcome: outcome,
            ..RequestRow::not_sent(source.into(), seq, "web".into(), Phase::Main, at(seq), at(seq + 3))
        }
    };
    seqs.map(row).collect()
}

fn collector(dir: &Path, workers: usize) -> RowCollector {
    let run_dir = RunDir::create(dir).unwrap();
    let zero = Stamp::from_unix_ns(1_800_000_000_000_000_000);
    RowCollector::begin(&run_dir, Clock::start(), zero, "max".parse().unwrap(), workers)
}

fn member(
    source: &str,
    worker: &Arc<Worker>,
    gone: impl Future<Output = String> + Send + 'static,
) -> FleetMember {
    FleetMember {
        name: format!("pod-of-{source}"),
        node: "node-1".to_owned(),
        way: Arc::clone(worker) as Arc<dyn WorkerTransport>,
        gone: gone.boxed().shared(),
    }
}

fn collected(dir: &Path) -> Vec<RequestRow> {
    let mut rows = read_table::<RequestRow>(dir).unwrap();
    rows.sort_by(|a, b| (&a.source, a.seq).cmp(&(&b.source, b.seq)));
    rows
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn collector_survives_cut_and_garbled_answers() {
    let dir = tempfile::tempdir().unwrap();
    let mut collector = collector(dir.path(), 2);
    let workers = [
        ("load-0", Worker::new([Fault::CutAfter(1_000), Fault::Lost, Fault::CutAfter(700)])),
        ("load-1", Worker::new([Fault::Garbled])),
    ];
    let mut expected = Vec::new();
    for (source, worker) in &workers {
        let all = rows(source, 0..300);
        for (n, rows) in (0..).zip(all.chunks(100)) {
            worker.second(n, rows, 0);
            worker.part(u32::try_from(n).unwrap(), rows);
        }
        worker.end(source, 300);
        expected.extend(all);
        collector.follow(&member(source, worker, future::pending()), &[(*source).to_owned()]);
    }
    let collected_all = collector.finish(&CancellationToken::new(), |_| {}).await.unwrap();
    assert_eq!((collected_all.lost, collected_all.counted.len()), (vec![], 0));
    let whole = Rows { recorded: Some(300), known: 300, in_flight: 0, received: 300 };
    assert_eq!(collected_all.rows, BTreeMap::from(["load-0", "load-1"].map(|s| (s.to_owned(), whole))));
    assert_eq!(collected(dir.path()), expected);
    assert!(!dir.path().join("live").exists(), "the rows are in the parts");
    let names = fs::read_dir(dir.path().join("requests")).unwrap();
    assert!(names.flatten().all(|name| name.path().extension().is_some_and(|e| e == "parquet")));
    for (_, worker) in &workers {
        assert_eq!(worker.asked(ACKNOWLEDGED_PATH), 1);
    }
    let log = fs::read_to_string(dir.path().join("latency.hlog")).unwrap();
    let tagged = |tag: &str| log.lines().filter(|line| line.starts_with(tag)).count();
    assert_eq!((tagged("Tag=ok,"), tagged("Tag=reset_before_response,")), (3, 3), "{log}");
}

/// Fetches until everything up to the mark has arrived or is known to be lost.
async fn fetched(early: &EarlyRows, mark: &RowMark) -> Arrived {
    let fetching = async {
        loop {
            match early.fetch(mark).await {
                Arrived::NotYet => sleep(Duration::from_millis(5)).await,
                arrived => return arrived,
            }
        }
    };
    timeout(Duration::from_secs(60), fetching).await.unwrap()
}

/// Waits until a source is known to have recorded `rows` requests.
async fn crossed(collector: &RowCollector, source: &str, rows: u64) {
    let context = Arc::clone(&collector.context);
    let crossed = async {
        while context.known().rows()[source].known < rows {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(60), crossed).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn collector_fetches_rows_once_during_load() {
    let dir = tempfile::tempdir().unwrap();
    let mut collector = collector(dir.path(), 2);
    let workers =
        [("load-0", Worker::new([Fault::CutAfter(700)])), ("load-1", Worker::new([Fault::Garbled]))];
    for (source, worker) in &workers {
        worker.second(0, &rows(source, 0..100), 0);
        collector.follow(&member(source, worker, future::pending()), &[(*source).to_owned()]);
        crossed(&collector, source, 100).await;
    }
    let early = collector.early_rows();
    let mark = early.mark();
    workers[0].1.part(0, &rows("load-0", 0..100));
    assert_eq!(early.fetch(&mark).await, Arrived::NotYet, "the other worker has no closed part");
    workers[1].1.part(0, &rows("load-1", 0..100));
    assert_eq!(fetched(&early, &mark).await, Arrived::All);
    let of_both = |seqs: std::ops::Range<u64>| [rows("load-0", seqs.clone()), rows("load-1", seqs)].concat();
    assert_eq!(collected(dir.path()), of_both(0..100));

    for (source, worker) in &workers {
        worker.second(1, &rows(source, 100..200), 0);
        worker.part(1, &rows(source, 100..200));
        worker.end(source, 200);
    }
    assert_eq!(early.fetch(&mark).await, Arrived::All, "an early fetch does not wait for an ended worker");
    let collected_all = collector.finish(&CancellationToken::new(), |_| {}).await.unwrap();
    assert_eq!(collected_all.lost, []);
    let whole = Rows { recorded: Some(200), known: 200, in_flight: 0, received: 200 };
    assert_eq!(collected_all.rows, BTreeMap::from(["load-0", "load-1"].map(|s| (s.to_owned(), whole))));
    assert_eq!(collected(dir.path()), of_both(0..200));
    for (source, worker) in &workers {
        let asked =
            [0, 1].map(|number| worker.asked(&format!("/parts/requests/{source}-0000{number}.parquet")));
        assert_eq!(asked, [2, 1], "only the broken answer is requested again");
    }
}

/// Returns a signal that kills a worker, and a future for the worker's end, with its reason.
fn killed_when_told() -> (Arc<Notify>, impl Future<Output = String> + Send + 'static) {
    let gone = Arc::new(Notify::new());
    let told = Arc::clone(&gone);
    let ends = async move {
        told.notified().await;
        "OOMKilled".to_owned()
    };
    (gone, ends)
}

/// A transport whose first stream of seconds stays open without ever sending anything.
struct BlackHole {
    worker: Arc<Worker>,
    has_swallowed: AtomicBool,
}

impl WorkerTransport for BlackHole {
    fn ask(
        &self,
        request: Request<Bytes>,
    ) -> BoxFuture<'_, Result<Response<WorkerResponseBody>, WorkerTransportError>> {
        if request.uri().path() == LIVE_PATH && !self.has_swallowed.swap(true, Ordering::Relaxed) {
            let silence = StreamBody::new(stream::pending::<io::Result<Frame<Bytes>>>());
            return future::ready(Ok(Response::new(silence.boxed_unsync()))).boxed();
        }
        self.worker.ask(request)
    }
}

#[tokio::test(start_paused = true)]
async fn silent_live_stream_is_requested_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut collector = collector(dir.path(), 1);
    let worker = Worker::new([]);
    worker.second(0, &rows("load-0", 0..100), 0);
    let way = Arc::new(BlackHole { worker: Arc::clone(&worker), has_swallowed: AtomicBool::new(false) });
    let member = FleetMember { way, ..member("load-0", &worker, future::pending()) };
    collector.follow(&member, &["load-0".to_owned()]);
    // The recording task, which blocks a thread, keeps the paused clock from advancing by itself.
    for _ in 0..60 {
        tokio::time::advance(Duration::from_secs(1)).await;
        if collector.context.known().rows()["load-0"].known == 100 {
            return;
        }
    }
    panic!("the rows never arrived");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn early_fetch_reports_lost_worker() {
    let dir = tempfile::tempdir().unwrap();
    let mut collector = collector(dir.path(), 1);
    let worker = Worker::new([]);
    let all = rows("load-0", 0..200);
    worker.second(0, &all, 0);
    worker.part(0, &all[..100]);
    let (gone, ends) = killed_when_told();
    collector.follow(&member("load-0", &worker, ends), &["load-0".to_owned()]);
    crossed(&collector, "load-0", 200).await;
    let early = collector.early_rows();
    let mark = early.mark();
    assert_eq!(early.fetch(&mark).await, Arrived::NotYet);
    gone.notify_one();
    assert_eq!(fetched(&early, &mark).await, Arrived::Lost("pod-of-load-0".to_owned()));
    let collected_all = collector.finish(&CancellationToken::new(), |_| {}).await.unwrap();
    // The first part has arrived, and ten rows of the second had been reported.
    let rows = Rows { recorded: None, known: 200, in_flight: 0, received: 110 };
    assert_eq!(collected_all.rows["load-0"], rows);
    assert_eq!(collected(dir.path()).len(), 110);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn collector_keeps_lost_workers_live_rows() {
    let dir = tempfile::tempdir().unwrap();
    let mut collector = collector(dir.path(), 100);
    let worker = Worker::new([]);
    let all = rows("load-7", 0..400);
    worker.second(0, &all[..200], 3);
    worker.second(1, &all[200..], 5);
    let (gone, ends) = killed_when_told();
    collector.follow(&member("load-7", &worker, ends), &["load-7".to_owned()]);
    crossed(&collector, "load-7", 400).await;
    gone.notify_one();
    let collected_all = collector.finish(&CancellationToken::new(), |_| {}).await.unwrap();
    assert_eq!(collected_all.lost, [("pod-of-load-7".to_owned(), "OOMKilled".to_owned())]);
    // Each of 100 workers may send 20 rows per second; 20 of 200 requests were reset.
    let rows = Rows { recorded: None, known: 400, in_flight: 5, received: 40 };
    assert_eq!(collected_all.rows["load-7"], rows);
    let counted: Vec<_> = collected_all.counted["load-7"].iter().collect();
    assert_eq!(counted, [(Outcome::Ok, 360), (Outcome::ResetBeforeResponse, 40)]);
    let lost: Vec<_> = all.into_iter().filter(|row| row.outcome != Outcome::Ok).collect();
    assert_eq!(collected(dir.path()), lost);
    assert!(!dir.path().join("live").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn collector_deduplicates_live_and_part_rows() {
    let dir = tempfile::tempdir().unwrap();
    let mut collector = collector(dir.path(), 1);
    let worker = Worker::new([]);
    let all = rows("load-0", 0..200);
    worker.second(0, &all, 0);
    worker.part(0, &all[..100]);
    worker.part(1, &all[100..]);
    worker.end("load-0", 200);
    // The first part arrives; of the second, only the beginning arrives before the worker is gone.
    let faults = [Fault::CutAfter(usize::MAX), Fault::CutAfter(10), Fault::Lost];
    worker.faults.lock().unwrap().extend(faults);
    let way = Arc::clone(&worker);
    collector.follow(
        &member("load-0", &worker, async move {
            way.lost.notified().await;
            "evicted".to_owned()
        }),
        &["load-0".to_owned()],
    );
    let collected_all = collector.finish(&CancellationToken::new(), |_| {}).await.unwrap();
    assert_eq!(collected_all.lost, [("pod-of-load-0".to_owned(), "evicted".to_owned())]);
    let rows = Rows { recorded: Some(200), known: 200, in_flight: 0, received: 110 };
    assert_eq!(collected_all.rows["load-0"], rows);
    let expected: Vec<_> =
        all.into_iter().filter(|row| row.seq < 100 || row.outcome != Outcome::Ok).collect();
    assert_eq!(collected(dir.path()), expected);
    let leftover = fs::read_dir(dir.path().join("requests")).unwrap().flatten();
    assert_eq!(leftover.filter(|name| name.path().extension().is_some_and(|e| e == "part")).count(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn collector_rejects_part_from_foreign_source() {
    let dir = tempfile::tempdir().unwrap();
    let mut collector = collector(dir.path(), 1);
    let worker = Worker::new([]);
    worker.second(0, &rows("load-0", 0..10), 0);
    worker.part(0, &rows("load-5", 0..10));
    worker.end("load-0", 10);
    collector.follow(&member("load-0", &worker, future::pending()), &["load-0".to_owned()]);
    let collected_all = collector.finish(&CancellationToken::new(), |_| {}).await.unwrap();
    assert!(collected_all.lost[0].1.contains("requests/load-5-00000.parquet"), "{collected_all:?}");
    assert_eq!(worker.asked(ACKNOWLEDGED_PATH), 0);
    assert_eq!(collected(dir.path()).len(), 1, "only the rows sent during the load");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_collector_keeps_live_rows() {
    let dir = tempfile::tempdir().unwrap();
    let mut collector = collector(dir.path(), 1);
    let worker = Worker::new([]);
    worker.second(0, &rows("load-0", 0..100), 0);
    // The worker's load never ends.
    collector.follow(&member("load-0", &worker, future::pending()), &["load-0".to_owned()]);
    crossed(&collector, "load-0", 100).await;
    let give_up = CancellationToken::new();
    give_up.cancel();
    let collected_all = collector.finish(&give_up, |_| {}).await.unwrap();
    assert_eq!(collected_all.lost, [("pod-of-load-0".to_owned(), "row collection was abandoned".to_owned())]);
    assert_eq!(collected(dir.path()).len(), 10, "only the rows sent during the load");
}
