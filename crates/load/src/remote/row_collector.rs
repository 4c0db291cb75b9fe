//! Collects rows from load workers in a cluster, within memory and network limits.
//!
//! While the load runs, the collector follows each worker ([`crate::live_feed`]) and receives counts, histograms, and
//! the rows that are not `ok`: at most [`LIVE_ROWS`] of them a second over all workers. These are written to the run
//! directory immediately. All other rows stay with the workers as Parquet and are fetched after the load, or earlier on
//! request ([`early`]), from a few workers at a time and within a shared [`FetchRateLimit`]. A worker exits once it
//! learns that its rows have arrived.
//!
//! Memory use does not grow with the load, because the collector keeps only one batch per worker, the seconds that some
//! workers have not yet reported, and pieces of the parts being fetched.

pub mod early;
mod fetch;
mod limit;
mod recording;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::convert::Infallible;
use std::future::pending;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::AsyncBufReadExt;
use futures::stream::TryStreamExt;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::{JoinHandle, JoinSet, spawn_blocking};
use tokio::time::{Instant, interval_at, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::fleet::FleetMember;
use super::part_shelf::ListedPart;
use super::worker_link::{SILENCE_LIMIT, WorkerLink, WorkerLinkError};
use super::{ACKNOWLEDGED_PATH, LIVE_PATH};
use crate::error::LoadError;
use crate::live_feed::{LIVE_ROWS, LiveBatch, LiveLine, SourceProgress};
use crate::tally::OutcomeCounts;
use early::{EarlyRows, FetchOrder};
use fetch::Fetch;
use limit::Bucket;
pub use limit::{FetchRateLimit, NotAFetchRateLimit};
use rolldrop_record::parts::PartError;
use rolldrop_record::run_info::Rows;
use rolldrop_record::wire::{CLOCK_PATH, ClockAnswer};
use rolldrop_record::{Clock, RunDir, RunDirError, Stamp};

/// Delay between attempts to follow a worker.
const RETRY: Duration = Duration::from_millis(200);
/// Time limit for a worker to report its last second after the load has ended.
const LAST_SECOND_LIMIT: Duration = Duration::from_secs(30);
/// Maximum time between the end of one worker's load and the end of the whole load, unless the worker's was cut short.
const OTHERS_END: Duration = Duration::from_secs(10);
/// Maximum number of workers to fetch parts from at the same time.
const FETCHED_AT_ONCE: usize = 4;
/// Interval between requests to a worker that is waiting for its turn; they keep it from exiting.
const WANTED_INTERVAL: Duration = Duration::from_secs(20);
/// Interval between progress reports while fetching.
const TELL_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum number of batches waiting to be recorded.
const WAITING_BATCHES: usize = 16;

/// Reason why collecting rows failed.
#[derive(Debug, thiserror::Error)]
pub enum CollectError {
    /// The interval log could not be written.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// Rows could not be written.
    #[error(transparent)]
    Part(#[from] PartError),
    /// The run directory could not be used.
    #[error(transparent)]
    RunDir(#[from] RunDirError),
    /// A task panicked.
    #[error("a task that collects rows panicked")]
    Panicked,
}

/// Result of collecting rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Number of recorded and of received rows, by source.
    pub rows: BTreeMap<String, Rows>,
    /// Workers with missing rows, each with the reason.
    pub lost: Vec<(String, String)>,
    /// Outcome counts that the sources reported for the counted part of the load, by source.
    pub counted: BTreeMap<String, OutcomeCounts>,
}

/// Collector of rows from the workers of one load.
#[derive(Debug)]
pub struct RowCollector {
    context: Arc<CollectorState>,
    /// Channel on which followers send batches; dropped once no more will be sent.
    batches: Sender<LiveBatch>,
    recording: JoinHandle<Result<(), CollectError>>,
    members: JoinSet<(String, Result<(), String>)>,
    /// Maximum number of rows per second that one worker may send while the load runs.
    live_rows: usize,
    early: EarlyRows,
}

/// State shared by the tasks.
#[derive(Debug)]
struct CollectorState {
    run_dir: RunDir,
    clock: Clock,
    bucket: Bucket,
    turns: Semaphore,
    load_is_over: CancellationToken,
    /// Token that is cancelled to stop waiting.
    given_up: CancellationToken,
    known: Mutex<KnownSources>,
}

/// Facts known about the sources.
#[derive(Debug, Default)]
struct KnownSources {
    /// Last report of each source, and how it ended.
    reached: BTreeMap<String, (SourceProgress, SourceEnded)>,
    /// Number of requests in each fetched part, by source and part.
    fetched: BTreeMap<String, BTreeMap<String, u64>>,
    /// Total size of the fetched parts, in bytes.
    bytes: u64,
    /// Number of workers that have nothing more to send.
    done: usize,
    /// Workers with missing rows that have nothing more to send.
    lost: BTreeSet<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SourceEnded {
    No,
    Yes,
}

impl RowCollector {
    /// Starts collecting into `run_dir`, for a load of `workers` workers whose schedule begins at `zero` on this
    /// process's clock.
    pub fn begin(run_dir: &RunDir, clock: Clock, zero: Stamp, limit: FetchRateLimit, workers: usize) -> Self {
        let (batches, received) = channel(WAITING_BATCHES);
        let directory = run_dir.clone();
        let recording = spawn_blocking(move || recording::record(&directory, clock, zero, received));
        let context = Arc::new(CollectorState {
            run_dir: run_dir.clone(),
            clock,
            bucket: Bucket::new(limit),
            turns: Semaphore::new(FETCHED_AT_ONCE),
            load_is_over: CancellationToken::new(),
            given_up: CancellationToken::new(),
            known: Mutex::default(),
        });
        let live_rows = (LIVE_ROWS / workers.max(1)).max(1);
        let early = EarlyRows::new(Arc::clone(&context));
        Self { context, batches, recording, members: JoinSet::new(), live_rows, early }
    }

    /// Returns the rows of the followed workers, for readers that need them before the load has ended.
    pub fn early_rows(&self) -> EarlyRows {
        self.early.clone()
    }

    /// Starts collecting from `member`. Its source names must be unique among all workers.
    pub fn follow(&mut self, member: &FleetMember, sources: &[String]) {
        let collecting = WorkerCollection {
            link: WorkerLink::new(Arc::clone(&member.way)),
            context: Arc::clone(&self.context),
            live_rows: self.live_rows,
            sources: sources.to_vec(),
        };
        for source in &collecting.sources {
            let reached = SourceProgress { source: source.clone(), ..SourceProgress::default() };
            self.context.known().reached.insert(source.clone(), (reached, SourceEnded::No));
        }
        let (name, gone) = (member.name.clone(), member.gone.clone());
        let (context, given_up) = (Arc::clone(&self.context), self.context.given_up.clone());
        let (batches, orders) = (self.batches.clone(), self.early.add(&name));
        self.members.spawn(async move {
            let collected = tokio::select! {
                biased;
                collected = collecting.run(batches, orders) => collected,
                why = gone => Err(why),
                () = given_up.cancelled() => Err("row collection was abandoned".to_owned()),
            };
            if collected.is_err() {
                context.known().lost.insert(name.clone());
            }
            (name, collected)
        });
    }

    /// Finishes collecting: fetches the rows that the workers kept, and waits until each row has arrived or is known to
    /// be lost, or until `give_up` is cancelled. For a lost worker, the rows that it reported earlier are kept. If
    /// fetching takes a long time, progress is reported to `tell`. Call this after the load has ended.
    ///
    /// # Errors
    /// Returns an error if recording fails.
    pub async fn finish(
        self,
        give_up: &CancellationToken,
        tell: impl Fn(&str),
    ) -> Result<Collected, CollectError> {
        let Self { context, batches, recording, mut members, .. } = self;
        drop(batches);
        context.load_is_over.cancel();
        let (mut lost, workers) = (Vec::new(), members.len());
        let collecting = async {
            while let Some(member) = members.join_next().await {
                let (name, collected) = member.map_err(|_| CollectError::Panicked)?;
                lost.extend(collected.err().map(|why| (name, why)));
                context.known().done += 1;
            }
            Ok::<_, CollectError>(())
        };
        let telling = async || -> Infallible {
            let mut due = interval_at(Instant::now() + TELL_INTERVAL, TELL_INTERVAL);
            loop {
                due.tick().await;
                let (done, megabytes) = {
                    let known = context.known();
                    (known.done, known.bytes as f64 / 1e6)
                };
                tell(&format!("received {megabytes:.1} MB of rows; {done} of {workers} workers are done"));
            }
        };
        let giving_up = async {
            give_up.cancelled().await;
            context.given_up.cancel();
            pending::<Infallible>().await
        };
        tokio::select! {
            collected = collecting => collected?,
            never = giving_up => match never {},
            never = telling() => match never {},
        }
        recording.await.map_err(|_| CollectError::Panicked)??;
        let mut rows = context.known().rows();
        let missing = rows.iter().filter(|(_, rows)| rows.recorded != Some(rows.received));
        let missing: HashSet<String> = missing.map(|(source, _)| source.clone()).collect();
        let (run_dir, clock) = (context.run_dir.clone(), context.clock);
        let counted = context.known().counted(&missing);
        let kept = spawn_blocking(move || recording::keep(&run_dir, clock, &missing)).await;
        for (source, kept) in kept.map_err(|_| CollectError::Panicked)?? {
            rows.entry(source).or_default().arrive(kept);
        }
        lost.sort();
        Ok(Collected { rows, lost, counted })
    }
}

impl CollectorState {
    fn known(&self) -> MutexGuard<'_, KnownSources> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KnownSources {
    /// Returns the counts reported by `sources`.
    fn counted(&self, sources: &HashSet<String>) -> BTreeMap<String, OutcomeCounts> {
        let reached = self.reached.iter().filter(|(source, _)| sources.contains(*source));
        reached.map(|(source, (reached, _))| (source.clone(), reached.main.clone())).collect()
    }

    /// Returns the number of rows of a source in the parts fetched so far.
    fn rows_here(&self, source: &str) -> u64 {
        self.fetched.get(source).map_or(0, |parts| parts.values().sum())
    }

    /// Counts a part in the run directory; a part is counted only once.
    fn count(&mut self, part: &ListedPart) {
        let Some(source) = part.source() else { return };
        let parts = self.fetched.entry(source.to_owned()).or_default();
        let rows = if part.has_requests() { part.rows } else { 0 };
        if parts.insert(part.name.clone(), rows).is_none() {
            self.bytes += part.bytes;
        }
    }

    fn rows(&self) -> BTreeMap<String, Rows> {
        let rows = |(source, (reached, ended)): (&String, &(SourceProgress, SourceEnded))| {
            let mut rows = Rows::default();
            rows.arrive(self.rows_here(source));
            rows.hear(reached.rows, Some(reached.in_flight));
            (source.clone(), rows.ended((*ended == SourceEnded::Yes).then_some(reached.rows)))
        };
        self.reached.iter().map(rows).collect()
    }
}

/// State for collecting from one worker.
struct WorkerCollection {
    link: WorkerLink,
    sources: Vec<String>,
    context: Arc<CollectorState>,
    live_rows: usize,
}

impl WorkerCollection {
    async fn run(self, batches: Sender<LiveBatch>, orders: Receiver<FetchOrder>) -> Result<(), String> {
        let late = async {
            self.context.load_is_over.cancelled().await;
            sleep(LAST_SECOND_LIMIT).await;
        };
        let over = CancellationToken::new();
        let following = async {
            let followed = tokio::select! {
                biased;
                followed = self.follow(&batches) => followed,
                () = late => Err(format!("it did not report its last second within {LAST_SECOND_LIMIT:?}")),
            };
            over.cancel();
            followed
        };
        // A fetch that has started is allowed to finish, so that no other fetch writes to its file.
        let (followed, ()) = tokio::join!(following, self.fetch_early(orders, &over));
        followed?;
        // The recorder stops when the last sender is dropped.
        drop(batches);
        let Self { link, sources, context, .. } = &self;
        // A worker whose load ends before the whole load does, such as an evicted one, is about to exit.
        let _ = timeout(OTHERS_END, context.load_is_over.cancelled()).await;
        let _turn = turn(&context.turns, link).await;
        let fetched = self.fetch().all(|part| context.known().count(part)).await;
        fetched.map_err(|error| error.to_string())?;
        let incomplete = context
            .known()
            .rows()
            .into_iter()
            .find(|(source, rows)| sources.contains(source) && rows.recorded != Some(rows.received));
        if let Some((source, Rows { known, received, .. })) = incomplete {
            return Err(format!("{source} recorded {known} rows, but its parts contain {received}"));
        }
        if let Err(error) = link.post(ACKNOWLEDGED_PATH, Bytes::new()).await {
            // The worker exits by itself after a while.
            tracing::debug!(%error, "failed to tell a load worker that its rows have arrived");
        }
        Ok(())
    }

    /// Fetches closed parts on request until the load has ended.
    async fn fetch_early(&self, mut orders: Receiver<FetchOrder>, over: &CancellationToken) {
        while let Some(Some(order)) = over.run_until_cancelled(orders.recv()).await {
            let _turn = turn(&self.context.turns, &self.link).await;
            // The next order or the end of the load causes a retry.
            if let Err(why) = self.fetch().closed(|part| self.context.known().count(part)).await {
                tracing::debug!(%why, "failed to fetch a load worker's rows during the load");
            }
            drop(order);
        }
    }

    fn fetch(&self) -> Fetch<'_> {
        let Self { link, sources, context, .. } = self;
        Fetch { link, run_dir: context.run_dir.path(), sources, bucket: &context.bucket }
    }

    /// Follows the worker until its load has ended.
    async fn follow(&self, batches: &Sender<LiveBatch>) -> Result<(), String> {
        let mut next = 0;
        loop {
            match self.stream(&mut next, batches).await {
                Ok(SourceEnded::Yes) => return Ok(()),
                Ok(SourceEnded::No) if batches.is_closed() => {
                    return Err("its rows could not be recorded".to_owned());
                }
                Ok(SourceEnded::No) => {}
                Err(error) => tracing::debug!(%error, "failed to follow a load worker"),
            }
            sleep(RETRY).await;
        }
    }

    /// Receives batches over one connection. `next` is the number of the next batch.
    async fn stream(
        &self,
        next: &mut u64,
        batches: &Sender<LiveBatch>,
    ) -> Result<SourceEnded, WorkerLinkError> {
        let path = format!("{LIVE_PATH}?from={next}&rows={}", self.live_rows);
        let mut lines = self.link.lines(&path).await?.lines();
        let unreadable = WorkerLinkError::Unreadable;
        loop {
            let line = timeout(SILENCE_LIMIT, lines.try_next()).await.map_err(|_| WorkerLinkError::Silent)?;
            let Some(line) = line.map_err(|e| unreadable(e.to_string()))? else { break };
            match serde_json::from_str(&line).map_err(|e| unreadable(e.to_string()))? {
                LiveLine::Batch(mut batch) => {
                    if batch.n < *next {
                        continue;
                    }
                    *next = batch.n + 1;
                    self.hear(&batch.sources, SourceEnded::No);
                    batch.rows.retain(|row| self.sources.iter().any(|own| **own == *row.source));
                    if batches.send(*batch).await.is_err() {
                        break;
                    }
                }
                LiveLine::End { sources } => {
                    self.hear(&sources, SourceEnded::Yes);
                    return Ok(SourceEnded::Yes);
                }
            }
        }
        Ok(SourceEnded::No)
    }

    fn hear(&self, reached: &[SourceProgress], ended: SourceEnded) {
        let mut known = self.context.known();
        for reached in reached.iter().filter(|reached| self.sources.contains(&reached.source)) {
            known.reached.insert(reached.source.clone(), (reached.clone(), ended));
        }
    }
}

/// Waits for a turn, and meanwhile sends requests to the worker to keep it from exiting.
async fn turn<'a>(turns: &'a Semaphore, link: &WorkerLink) -> Option<SemaphorePermit<'a>> {
    loop {
        match timeout(WANTED_INTERVAL, turns.acquire()).await {
            // The semaphore is never closed.
            Ok(turn) => return turn.ok(),
            Err(_) => {
                let _ = link.json::<ClockAnswer>(CLOCK_PATH).await;
            }
        }
    }
}

#[cfg(test)]
mod tests;
