//! A load that another process sends, as seen from the process that orders it.
//!
//! The other process may run where it can reach the target and this process cannot: in a private network namespace, or
//! on another machine. [`LoadProcess`] talks to it over [`worker_protocol`], and [`order_executor`] is the other end.
//! The other process has its own clock, which is compared with the local one throughout the load, like the clock of
//! every recorder.

pub mod order_executor;
pub(crate) mod worker_clock;
pub mod worker_protocol;

use std::collections::VecDeque;
use std::io;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::{Instant, interval_at};
use tokio_util::sync::CancellationToken;

use super::control::Control;
use rolldrop_record::run_info::Source;
use rolldrop_record::{Clock, ClockOffset, EventKind, Stamp};
use worker_clock::WorkerClock;
pub use worker_protocol::LoadEnd;
use worker_protocol::{Prepare, WorkerOrder, WorkerReport};

/// Time between the order to start and the schedule's zero, so that the process is ready for its first request.
const LEAD: Duration = Duration::from_millis(250);
/// Time limit for the process to exit after its input was closed.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// Reason why another process could not send a load.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum ProcessError {
    /// The process could not be spawned.
    #[error("failed to start the load worker")]
    Spawn(#[source] io::Error),
    /// Communication with the process failed.
    #[error("failed to communicate with the load worker")]
    Pipe(#[source] io::Error),
    /// The process exited before the load had ended.
    #[error("the load worker exited before the load ended ({0})")]
    Ended(ExitStatus),
    /// The process's output could not be parsed.
    #[error("failed to parse the load worker's output {line:?}")]
    Unreadable { line: String, source: serde_json::Error },
    /// The process could not send the load.
    #[error("{0}")]
    Failed(String),
}

/// Receiver of the process's events. Its arguments are the source whose clock the stamp refers to (`None` for this
/// process's clock), the stamp, and the event.
pub trait Note: Fn(Option<&str>, Stamp, EventKind) {}

impl<F: Fn(Option<&str>, Stamp, EventKind)> Note for F {}

/// A process that sends a load. Dropping this ends the process; [`LoadProcess::end`] also waits for its exit.
#[derive(Debug)]
pub struct LoadProcess<N> {
    child: Child,
    /// Standard input of the process; closing it ends the process.
    orders: Option<ChildStdin>,
    reports: Lines<BufReader<ChildStdout>>,
    clock: Clock,
    note: N,
    control: Control,
    sources: Vec<String>,
    warnings: Vec<String>,
    its_clock: WorkerClock,
    /// Pending clock exchanges: the number and the request time of each.
    asked: VecDeque<(u64, Stamp)>,
}

impl<N: Note> LoadProcess<N> {
    /// Starts the process. `command` must run [`order_executor::serve`] on its standard input and output. Reports other
    /// than progress are passed to `note`.
    ///
    /// # Errors
    /// Returns an error if the process cannot be started.
    pub fn spawn(mut command: Command, clock: Clock, note: N) -> Result<Self, ProcessError> {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(ProcessError::Spawn)?;
        let (Some(orders), Some(reports)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(ProcessError::Spawn(io::Error::other("it has no input or output pipe")));
        };
        Ok(Self {
            child,
            orders: Some(orders),
            reports: BufReader::new(reports).lines(),
            clock,
            note,
            control: Control::default(),
            sources: Vec::new(),
            warnings: Vec::new(),
            its_clock: WorkerClock::default(),
            asked: VecDeque::new(),
        })
    }

    /// Prepares the process, which waits until every target has responded to it. Then compares clocks. Returns warnings
    /// to show before the load starts.
    ///
    /// # Errors
    /// Returns an error if a target does not respond to the process, or if the process fails.
    pub async fn prepare(&mut self, prepare: Prepare) -> Result<Vec<String>, ProcessError> {
        self.order(&WorkerOrder::Prepare(Box::new(prepare))).await?;
        while self.sources.is_empty() {
            self.next_report().await?;
        }
        for exchange in 1..=worker_clock::FIRST_EXCHANGES {
            self.compare_clocks().await?;
            while self.its_clock.exchanges() < exchange {
                self.next_report().await?;
            }
        }
        Ok(std::mem::take(&mut self.warnings))
    }

    /// Starts the load. Returns the schedule's zero on this process's clock.
    ///
    /// # Errors
    /// Returns an error if the process cannot be reached.
    pub async fn start(&mut self) -> Result<Stamp, ProcessError> {
        let zero = self.clock.now() + LEAD;
        self.order(&WorkerOrder::Start { zero_ns: zero.shifted_ns(self.its_clock.offset_ns()) }).await?;
        Ok(zero)
    }

    /// Returns the state and control of the load while it runs.
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// Follows the load until it has ended, and forwards the orders from its [`Control`].
    ///
    /// # Errors
    /// Returns an error if the process fails, or exits before the load has ended.
    pub async fn join(&mut self) -> Result<LoadEnd, ProcessError> {
        let mut clock_due = interval_at(Instant::now() + worker_clock::INTERVAL, worker_clock::INTERVAL);
        let control = self.control.clone();
        let never = CancellationToken::new();
        let (mut stop, mut abort) = (&control.stop, &control.abort);
        loop {
            tokio::select! {
                report = self.next_report() => if let Some(ended) = report? {
                    return Ok(ended);
                },
                _ = clock_due.tick() => self.compare_clocks().await?,
                () = stop.cancelled() => {
                    stop = &never;
                    self.order(&WorkerOrder::Stop).await?;
                }
                () = abort.cancelled() => {
                    abort = &never;
                    self.order(&WorkerOrder::Abort).await?;
                }
            }
        }
    }

    /// Returns the load's sources in the format of run.json, with the best available clock offset.
    pub fn recorders(&self) -> Vec<Source> {
        self.its_clock.recorders(&self.sources)
    }

    /// Ends the process, which keeps the rows recorded so far, and waits for it to exit.
    pub async fn end(mut self) {
        drop(self.orders.take());
        if tokio::time::timeout(END_TIMEOUT, self.child.wait()).await.is_err()
            && let Err(error) = self.child.kill().await
        {
            tracing::warn!(%error, "failed to kill the load worker");
        }
    }

    async fn order(&mut self, order: &WorkerOrder) -> Result<(), ProcessError> {
        let mut line = serde_json::to_vec(order).map_err(|e| ProcessError::Pipe(e.into()))?;
        line.push(b'\n');
        let written = match &mut self.orders {
            Some(orders) => orders.write_all(&line).await,
            None => Err(io::ErrorKind::BrokenPipe.into()),
        };
        match written {
            // The process has exited, and its last output contains the reason.
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            written => written.map_err(ProcessError::Pipe),
        }
    }

    /// Waits for the next report and processes it. This method is cancel safe.
    async fn next_report(&mut self) -> Result<Option<LoadEnd>, ProcessError> {
        let line = self.reports.next_line().await.map_err(ProcessError::Pipe)?;
        let received = self.clock.now();
        let Some(line) = line else {
            return Err(ProcessError::Ended(self.child.wait().await.map_err(ProcessError::Pipe)?));
        };
        let report =
            serde_json::from_str(&line).map_err(|source| ProcessError::Unreadable { line, source })?;
        match report {
            WorkerReport::Ready { sources, warnings } => (self.sources, self.warnings) = (sources, warnings),
            WorkerReport::Clock { n, now_ns } => self.take_clock(n, now_ns, received),
            WorkerReport::Progress(progress) => self.control.report(progress),
            WorkerReport::Machine { t_ns, sample } => {
                (self.note)(self.sources.first().map(String::as_str), t_ns, EventKind::Machine(sample));
            }
            WorkerReport::Event(event) => (self.note)(Some(&event.source), event.at, event.kind),
            WorkerReport::Ended(end) => {
                if let Some(source) = self.sources.first() {
                    (self.note)(Some(source), end.at, EventKind::LoadEnded { scheduled: end.scheduled });
                }
                return Ok(Some(end));
            }
            WorkerReport::Failed { why } => return Err(ProcessError::Failed(why)),
        }
        Ok(None)
    }

    async fn compare_clocks(&mut self) -> Result<(), ProcessError> {
        let n = (self.its_clock.exchanges() + self.asked.len()) as u64;
        self.asked.push_back((n, self.clock.now()));
        self.order(&WorkerOrder::Clock { n }).await
    }

    fn take_clock(&mut self, n: u64, reading: Stamp, received: Stamp) {
        let Some((_, sent)) = self.asked.pop_front().filter(|(asked, _)| *asked == n) else { return };
        let sample = ClockOffset::of_exchange(sent, reading, received);
        self.its_clock.add(sent, sample, &self.sources, &self.note);
    }
}
