//! A load that another process sends, from the side of the process that orders it.
//!
//! The other process may run where the target can be reached and this one cannot: in a private network namespace, or on
//! another machine. [`Process`] talks to it by [`protocol`]; [`worker`] is the other end. The other process has its own
//! clock, which is compared with this one's throughout the load, like every recorder's.

pub(crate) mod clock;
pub mod protocol;
pub mod worker;

use std::collections::VecDeque;
use std::io;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::{Instant, interval_at};
use tokio_util::sync::CancellationToken;

use super::control::Control;
use super::ports::PortsBefore;
use clock::WorkerClock;
use protocol::{Order, Prepare, Report};
use rolldrop_record::run_info::Source;
use rolldrop_record::{Clock, ClockOffset, EventKind, Stamp};

/// Time from the order to start to the schedule's zero, so that the process is ready for its first request.
const LEAD: Duration = Duration::from_millis(250);
/// Time that the process may take to end after its input was closed.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// Reason why another process could not send a load.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum ProcessError {
    /// The process could not be started.
    #[error("failed to start the load worker")]
    Spawn(#[source] io::Error),
    /// Communication with it failed.
    #[error("failed to communicate with the load worker")]
    Pipe(#[source] io::Error),
    /// The process ended before the load did.
    #[error("the load worker ended before the load did ({0})")]
    Ended(ExitStatus),
    /// Output of the process could not be read.
    #[error("the load worker said {line:?}")]
    Unreadable { line: String, source: serde_json::Error },
    /// The process could not send the load.
    #[error("{0}")]
    Failed(String),
}

/// End of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Time when the last request had ended, on the process's clock.
    pub at: Stamp,
    /// Requests that were scheduled, warm-up included; each has its row.
    pub scheduled: u64,
    /// Place in the source ports at which it ended; `None` if that is not known.
    pub ports: Option<PortsBefore>,
}

/// Receives the process's events: whose clock the stamp is on (`None` for this process's), the stamp, and the event.
pub trait Note: Fn(Option<&str>, Stamp, EventKind) {}

impl<F: Fn(Option<&str>, Stamp, EventKind)> Note for F {}

/// A process that sends a load. It ends when this is dropped; [`Process::end`] waits for that.
#[derive(Debug)]
pub struct Process<N> {
    child: Child,
    /// Input of the process; closing it ends the process.
    orders: Option<ChildStdin>,
    reports: Lines<BufReader<ChildStdout>>,
    clock: Clock,
    note: N,
    control: Control,
    sources: Vec<String>,
    warnings: Vec<String>,
    its_clock: WorkerClock,
    /// Clock exchanges in progress: their numbers, and when each was requested.
    asked: VecDeque<(u64, Stamp)>,
}

impl<N: Note> Process<N> {
    /// Starts the process: `command` runs [`worker::serve`] on its standard input and output. Its reports, other than
    /// progress, go to `note`.
    ///
    /// # Errors
    /// Returns an error if it cannot be started.
    pub fn spawn(mut command: Command, clock: Clock, note: N) -> Result<Self, ProcessError> {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(ProcessError::Spawn)?;
        let (Some(orders), Some(reports)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(ProcessError::Spawn(io::Error::other("it has no pipes")));
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

    /// Makes the process get ready: it waits until the target answers it. Then its clock is compared. Returns warnings
    /// before the load starts.
    ///
    /// # Errors
    /// Returns an error if the target does not answer from there, or the process fails.
    pub async fn prepare(&mut self, prepare: Prepare) -> Result<Vec<String>, ProcessError> {
        self.order(&Order::Prepare(Box::new(prepare))).await?;
        while self.sources.is_empty() {
            self.next_report().await?;
        }
        for exchange in 1..=clock::FIRST_EXCHANGES {
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
        self.order(&Order::Start { zero_ns: zero.shifted_ns(self.its_clock.offset_ns()) }).await?;
        Ok(zero)
    }

    /// Returns the state and control of the load while it runs.
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// Follows the load to its end, and passes on what its [`Control`] orders.
    ///
    /// # Errors
    /// Returns an error if the process fails, or ends before the load does.
    pub async fn join(&mut self) -> Result<Ended, ProcessError> {
        let mut clock_due = interval_at(Instant::now() + clock::INTERVAL, clock::INTERVAL);
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
                    self.order(&Order::Stop).await?;
                }
                () = abort.cancelled() => {
                    abort = &never;
                    self.order(&Order::Abort).await?;
                }
            }
        }
    }

    /// Returns the load's sources as run.json lists them, with the best knowledge of their clock.
    pub fn recorders(&self) -> Vec<Source> {
        self.its_clock.recorders(&self.sources)
    }

    /// Ends the process, which keeps what it has recorded, and waits until it is gone.
    pub async fn end(mut self) {
        drop(self.orders.take());
        if tokio::time::timeout(END_TIMEOUT, self.child.wait()).await.is_err()
            && let Err(error) = self.child.kill().await
        {
            tracing::warn!(%error, "the load worker could not be killed");
        }
    }

    async fn order(&mut self, order: &Order) -> Result<(), ProcessError> {
        let mut line = serde_json::to_vec(order).map_err(|e| ProcessError::Pipe(e.into()))?;
        line.push(b'\n');
        let written = match &mut self.orders {
            Some(orders) => orders.write_all(&line).await,
            None => Err(io::ErrorKind::BrokenPipe.into()),
        };
        match written {
            // The process has ended, and its last output tells why.
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            written => written.map_err(ProcessError::Pipe),
        }
    }

    /// Waits for the next report and takes it in. The future may be dropped and made again.
    async fn next_report(&mut self) -> Result<Option<Ended>, ProcessError> {
        let line = self.reports.next_line().await.map_err(ProcessError::Pipe)?;
        let received = self.clock.now();
        let Some(line) = line else {
            return Err(ProcessError::Ended(self.child.wait().await.map_err(ProcessError::Pipe)?));
        };
        let report =
            serde_json::from_str(&line).map_err(|source| ProcessError::Unreadable { line, source })?;
        match report {
            Report::Ready { sources, warnings } => (self.sources, self.warnings) = (sources, warnings),
            Report::Clock { n, now_ns } => self.take_clock(n, now_ns, received),
            Report::Progress(progress) => self.control.report(progress),
            Report::Machine { t_ns, sample } => {
                (self.note)(self.sources.first().map(String::as_str), t_ns, EventKind::Machine(sample));
            }
            Report::Event(event) => (self.note)(Some(&event.source), event.at, event.kind),
            Report::Ended { t_ns, scheduled, ports } => {
                if let Some(source) = self.sources.first() {
                    (self.note)(Some(source), t_ns, EventKind::LoadEnded { scheduled });
                }
                return Ok(Some(Ended { at: t_ns, scheduled, ports }));
            }
            Report::Failed { why } => return Err(ProcessError::Failed(why)),
        }
        Ok(None)
    }

    async fn compare_clocks(&mut self) -> Result<(), ProcessError> {
        let n = (self.its_clock.exchanges() + self.asked.len()) as u64;
        self.asked.push_back((n, self.clock.now()));
        self.order(&Order::Clock { n }).await
    }

    fn take_clock(&mut self, n: u64, reading: Stamp, received: Stamp) {
        let Some((_, sent)) = self.asked.pop_front().filter(|(asked, _)| *asked == n) else { return };
        let sample = ClockOffset::of_exchange(sent, reading, received);
        self.its_clock.add(sent, sample, &self.sources, &self.note);
    }
}
