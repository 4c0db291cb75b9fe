//! A running load: its own thread, the worker threads, and its end.

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::Receiver;
use std::thread;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::conntrack_listener::ConntrackListener;
use super::control::Control;
use super::error::{LoadError, Result};
use super::latency_log::LatencyLogFile;
use super::resolve::FollowedNames;
use super::row_recorder::{RecorderOutputs, RowRecorder};
use super::second_series::LoadSecond;
use super::source_port_pool::{PortWalk, PortsBefore};
use super::tally::Tally;
use super::worker::{RowBatch, Task, WorkerResult};
use rolldrop_record::event::AnswerHeaders;
use rolldrop_record::{Clock, Event, EventKind, Stamp};

/// Result of a load.
#[derive(Clone, Debug)]
pub struct LoadSummary {
    /// Names of the load's sources, one per worker.
    pub sources: Vec<String>,
    /// Zero of the schedule.
    pub started: Stamp,
    /// Time the last request ended.
    pub ended: Stamp,
    /// Number of scheduled requests, including the warm-up; each has a row.
    pub scheduled: u64,
    /// True if the load was stopped before the end of its schedule.
    pub stopped_early: bool,
    /// Counts and histograms of the load's requests.
    pub tally: Tally,
    /// Seconds of the counted part.
    pub seconds: Vec<LoadSecond>,
    /// Position in the source ports at which the load stopped; `None` if the kernel chose the ports.
    pub ports: Option<PortsBefore>,
}

/// A load running in this process. Dropping it aborts the load.
#[derive(Debug)]
pub struct RunningLoad {
    started: Stamp,
    control: Control,
    events: UnboundedReceiver<Event>,
    summary: oneshot::Receiver<Result<LoadSummary>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl RunningLoad {
    /// Returns the schedule's zero, at which the warm-up begins.
    pub fn started(&self) -> Stamp {
        self.started
    }

    /// Returns the state and control of the load while it runs.
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// Returns the channel for events other than requests, to be stored in the run directory; these are the addresses
    /// of the target names. The channel closes when the load ends, and can be taken only once.
    pub fn take_events(&mut self) -> UnboundedReceiver<Event> {
        std::mem::replace(&mut self.events, unbounded_channel().1)
    }

    /// Waits until every scheduled request has a row, on disk if there is a run directory. This method is cancel safe.
    ///
    /// # Errors
    /// Returns an error if the load could not be recorded or a thread failed.
    ///
    /// # Panics
    /// Panics if it is called again after it has returned.
    pub async fn join(&mut self) -> Result<LoadSummary> {
        (&mut self.summary).await.unwrap_or(Err(LoadError::Panicked))
    }
}

impl Drop for RunningLoad {
    fn drop(&mut self) {
        self.control.abort();
        if let Some(thread) = self.thread.take() {
            // `join` reports panics.
            let _ = thread.join();
        }
    }
}

/// All parts of a load, to be moved to the thread that runs it.
pub(super) struct LoadRun {
    pub(super) clock: Clock,
    pub(super) started: Stamp,
    pub(super) planned: Option<u64>,
    pub(super) walk: Option<PortWalk>,
    pub(super) names: FollowedNames,
    pub(super) sources: Vec<String>,
    pub(super) tasks: Vec<Task>,
    pub(super) received: Receiver<RowBatch>,
    pub(super) files: RecorderOutputs,
    pub(super) log: Option<LatencyLogFile>,
}

impl LoadRun {
    /// Starts the load on a new thread.
    pub(super) fn begin(self, control: Control) -> Result<RunningLoad> {
        let started = self.started;
        let (happened, events) = unbounded_channel();
        let (done, summary) = oneshot::channel();
        let shared = control.clone();
        let thread = thread::Builder::new().name("load-recorder".to_owned());
        let thread = thread
            .spawn(move || {
                // The load may have been dropped.
                let _ = done.send(self.complete(&shared, &happened));
            })
            .map_err(LoadError::Worker)?;
        Ok(RunningLoad { started, control, events, summary, thread: Some(thread) })
    }

    /// Runs the workers and records their rows until all workers have finished. Reports other events.
    fn complete(mut self, control: &Control, happened: &UnboundedSender<Event>) -> Result<LoadSummary> {
        let (listener, progress) = (self.files.listener.clone(), &control.progress);
        let recorder =
            RowRecorder::new(self.clock, self.started, self.files, &mut self.log, progress, &self.sources)?;
        // If a worker or the record fails, this is no longer the load that the user wants.
        let end_all = || control.abort();
        let ended = CancellationToken::new();
        let first = self.sources.first().cloned().unwrap_or_default();
        let tell_of = |source: &str, at, kind| {
            // The receiver may have been dropped.
            let _ = happened.send(Event::new(at, source, kind));
        };
        let tell = |at, kind| tell_of(&first, at, kind);
        let (recorded, done, followed) = thread::scope(|scope| {
            let names = self.names;
            let follow = || follow(names, self.clock, ended.clone(), tell);
            let names = thread::Builder::new().name("load-names".to_owned()).spawn_scoped(scope, follow);
            let listening = listener.as_ref().map(|listener| {
                let listen = || listener.listen(&ended);
                thread::Builder::new().name("load-conntrack".to_owned()).spawn_scoped(scope, listen)
            });
            let threads: Vec<_> = self
                .tasks
                .into_iter()
                .map(|task| {
                    let name = task.context.source.to_string();
                    let spawned = thread::Builder::new().name(name).spawn_scoped(scope, || {
                        let done = task.run();
                        if done.is_err() {
                            end_all();
                        }
                        done
                    });
                    if spawned.is_err() {
                        end_all();
                    }
                    spawned
                })
                .collect();
            let recorded = recorder.run(self.received, end_all);
            let done: Vec<Result<WorkerResult>> = threads
                .into_iter()
                .map(|thread| match thread.map_err(LoadError::Worker)?.join() {
                    Ok(done) => done.map_err(LoadError::Worker),
                    Err(_) => Err(LoadError::Panicked),
                })
                .collect();
            ended.cancel();
            // Without this thread, the recorder empties the queue when rows arrive.
            if let Some(Err(error)) = listening {
                tracing::warn!(%error, "failed to start the thread that reads connection tracking");
            }
            (recorded, done, names.map(thread::ScopedJoinHandle::join))
        });
        let seconds = recorded?;
        listener.iter().flat_map(ConntrackListener::events).for_each(|(at, kind)| tell(at, kind));
        followed.map_err(LoadError::Worker)?.map_err(|_| LoadError::Panicked)?.map_err(LoadError::Worker)?;
        let is_stopped = control.stop.is_cancelled();
        let (mut scheduled, mut tally, mut answers) = (0, Tally::default(), Vec::new());
        let mut ports_taken = 0;
        let at = self.clock.now();
        for (of, done) in self.sources.iter().cloned().zip(done) {
            let done = done?;
            scheduled += done.scheduled;
            ports_taken += done.ports_taken;
            let (warmup, main) = (done.tally.warmup, done.tally.outcomes.total());
            tell_of(&of.clone(), at, EventKind::LoadScheduled { of, warmup, main });
            tally.merge(&done.tally);
            answers.extend(done.answers);
        }
        let ports = self.walk.map(|walk| walk.end(ports_taken));
        for answers in by_target(&answers).into_values().filter(|answers| answers.answers > 0) {
            tell(self.clock.now(), EventKind::AnswerHeaders(answers));
        }
        Ok(LoadSummary {
            sources: self.sources,
            started: self.started,
            ended: self.clock.now(),
            scheduled,
            stopped_early: self.planned.map_or(is_stopped, |planned| scheduled < planned),
            tally,
            seconds,
            ports,
        })
    }
}

/// Adds up the header statistics of all workers by target.
fn by_target(all: &[AnswerHeaders]) -> BTreeMap<&str, AnswerHeaders> {
    let mut targets = BTreeMap::new();
    for own in all {
        let of_target = || AnswerHeaders { target: own.target.clone(), ..AnswerHeaders::default() };
        targets.entry(own.target.as_str()).or_insert_with(of_target).merge(own);
    }
    targets
}

/// Follows the names' addresses on the current thread, until `stop`.
fn follow(
    names: FollowedNames,
    clock: Clock,
    stop: CancellationToken,
    changed: impl Fn(Stamp, EventKind),
) -> io::Result<()> {
    if names.is_empty() {
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(names.follow(clock, stop, changed));
    // Does not wait for a system lookup that is still running.
    runtime.shutdown_background();
    Ok(())
}
