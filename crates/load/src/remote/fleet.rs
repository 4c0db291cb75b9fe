//! All workers of a load as one: prepares them, starts them at the same instant, and follows them to the end.
//!
//! If a worker is lost before the start, the others take over its part. If a worker is lost later, its part is not
//! sent, and the run gets a warning.

mod member;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::{BoxFuture, Shared, join_all};
use tokio::sync::Barrier;
use tokio::time::{Instant, timeout_at};

use super::worker_transport::WorkerTransport;
use crate::control::{Control, Progress, Recent};
use crate::load_plan::ThreadShare;
use crate::load_process::worker_protocol::{Prepare, WorkerOrder};
use crate::load_process::{LoadEnd, Note};
use crate::source_port_pool::PortsBefore;
pub use member::LostWorker;
use member::{FleetWorker, WorkerFailure};
use rolldrop_record::load::Load;
use rolldrop_record::run_info::Source;
use rolldrop_record::{Clock, EventKind, RunId, Stamp};

/// Time between the order to start and the schedule's zero; the order must reach every worker within this time.
const LEAD: Duration = Duration::from_secs(2);

/// Future that returns the reason once a worker's pod has terminated.
pub type PodGone = Shared<BoxFuture<'static, String>>;

/// A worker that accepts orders.
#[derive(Clone)]
pub struct FleetMember {
    /// Name of the pod.
    pub name: String,
    /// Name of the pod's node.
    pub node: String,
    /// Transport to the worker.
    pub way: Arc<dyn WorkerTransport>,
    /// Future that returns the reason once the pod has terminated.
    pub gone: PodGone,
}

/// Reason why no load can be sent.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum FleetError {
    /// A worker cannot send its part of the load.
    #[error("load worker {name} on node {node}: {why}")]
    Failed { name: String, node: String, why: String },
    /// No worker is left.
    #[error("no load workers are left: {0}")]
    NoneLeft(String),
}

/// Load that the fleet should send.
#[derive(Clone, Debug)]
pub struct FleetLoad {
    /// Settings of the whole load, over all workers.
    pub settings: Load,
    /// Random part of the request ids.
    pub run: RunId,
    /// Time limit for the first response of each target.
    pub first_answer_limit: Duration,
    /// Position in the source ports at which earlier loads from pods stopped.
    pub before: PortsBefore,
}

/// End of a load.
#[derive(Clone, Debug)]
pub struct Joined {
    /// Time the last request ended, on this process's clock.
    pub at: Stamp,
    /// Number of requests known to have been scheduled.
    pub scheduled: u64,
    /// Workers lost since the start.
    pub lost: Vec<LostWorker>,
    /// Position reached in the source ports by the worker that took the most ports.
    pub ports: Option<PortsBefore>,
}

/// All workers of a load, which send it together.
pub struct Fleet<N> {
    workers: Vec<FleetWorker>,
    clock: Clock,
    note: N,
    control: Control,
}

impl<N: Note> Fleet<N> {
    /// Creates a fleet from these workers. Their reports other than progress are passed to `note`, and so is the loss
    /// of a worker.
    pub fn new(members: Vec<FleetMember>, clock: Clock, note: N) -> Self {
        let workers = members.into_iter().map(FleetWorker::new).collect();
        Self { workers, clock, note, control: Control::default() }
    }

    /// Prepares every worker for its part; `on_node` returns the load as seen from a node. Returns warnings to show
    /// before the load starts.
    ///
    /// # Errors
    /// Returns an error if a worker cannot send its part, or if no worker is left.
    pub async fn prepare(
        &mut self,
        wanted: &FleetLoad,
        on_node: impl Fn(&Load, &str) -> Load,
    ) -> Result<Vec<String>, FleetError> {
        let mut all_lost: Vec<LostWorker> = Vec::new();
        loop {
            let threads = wanted.settings.workers;
            let of = self.workers.len() * threads;
            let (clock, note) = (self.clock, &self.note);
            let preparing = self.workers.iter_mut().enumerate().map(|(number, worker)| {
                let order = Prepare {
                    settings: on_node(&wanted.settings, &worker.member.node),
                    run: wanted.run.clone(),
                    first_answer_limit: wanted.first_answer_limit,
                    share: Some(ThreadShare { first: number * threads, of }),
                    before: Some(wanted.before),
                };
                worker.prepare(order, clock, note)
            });
            let prepared = join_all(preparing).await;
            let mut lost = Vec::new();
            for (worker, prepared) in self.workers.iter().zip(&prepared) {
                match prepared {
                    Ok(_) => {}
                    // Its source names are reassigned to other workers.
                    Err(WorkerFailure::Lost(why)) => {
                        lost.push(LostWorker { sources: Vec::new(), ..worker.lost(why) })
                    }
                    Err(WorkerFailure::Failed(why)) => {
                        let FleetMember { name, node, .. } = worker.member.clone();
                        return Err(FleetError::Failed { name, node, why: why.clone() });
                    }
                }
            }
            if lost.is_empty() {
                let mut warnings: Vec<String> = prepared.into_iter().flatten().flatten().collect();
                warnings.dedup();
                for lost in all_lost {
                    let message = format!("{lost}; the others take over its part");
                    (self.note)(None, self.clock.now(), EventKind::Warning { message });
                }
                return Ok(warnings);
            }
            self.workers.retain(|worker| !lost.iter().any(|lost| lost.name == worker.member.name));
            all_lost.append(&mut lost);
            if self.workers.is_empty() {
                let all: Vec<String> = all_lost.iter().map(LostWorker::to_string).collect();
                return Err(FleetError::NoneLeft(all.join("; ")));
            }
        }
    }

    /// Starts the load. Returns the schedule's zero, on this process's clock.
    pub async fn start(&mut self) -> Stamp {
        let zero = self.clock.now() + LEAD;
        let starting = self.workers.iter_mut().map(|worker| {
            let order = WorkerOrder::Start { zero_ns: zero.shifted_ns(worker.its_clock.offset_ns()) };
            worker.start(order, LEAD)
        });
        join_all(starting).await;
        zero
    }

    /// Returns the state and control of the load while it runs.
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// Returns the workers that take part in the load, each with its sources.
    pub fn members(&self) -> impl Iterator<Item = (&FleetMember, &[String])> {
        self.workers.iter().map(|worker| (&worker.member, &worker.sources[..]))
    }

    /// Follows every worker until its load has ended, and forwards the orders from the load's [`Control`].
    pub async fn join(&mut self) -> Joined {
        let shared = FollowerState {
            clock: self.clock,
            control: self.control.clone(),
            progress: Mutex::new(vec![Progress::default(); self.workers.len()]),
            all_ended: Barrier::new(self.workers.len()),
        };
        let following = self.workers.iter_mut().enumerate();
        join_all(following.map(|(number, worker)| worker.follow(number, &shared, &self.note))).await;

        let mut joined = Joined { at: Stamp::default(), scheduled: 0, lost: Vec::new(), ports: None };
        for worker in &self.workers {
            let LoadEnd { at, scheduled, ports } = worker.ended(self.clock);
            joined.ports = joined.ports.into_iter().chain(ports).max_by_key(|ports| ports.taken);
            joined.at = joined.at.max(at.shifted_ns(-worker.its_clock.offset_ns()));
            joined.scheduled += scheduled;
            if let Some(source) = worker.sources.first() {
                (self.note)(Some(source), at, EventKind::LoadEnded { scheduled });
            }
            if let Some(Err(why)) = &worker.end {
                joined.lost.push(worker.lost(why));
            }
        }
        joined
    }

    /// Returns the load's sources in the format of run.json, with the best available clock offsets.
    pub fn recorders(&self) -> Vec<Source> {
        self.workers.iter().flat_map(|worker| worker.its_clock.recorders(&worker.sources)).collect()
    }

    /// Dismisses the workers, which then exit.
    pub async fn dismiss(&self, limit: Duration) {
        let deadline = Instant::now() + limit;
        let live = self.workers.iter().filter(|worker| !matches!(worker.end, Some(Err(_))));
        let dismissing = live.map(|worker| timeout_at(deadline, worker.dismiss()));
        // Workers that were not reached exit by themselves, or with the Job.
        join_all(dismissing).await;
    }
}

/// State shared by the followers of all workers.
struct FollowerState {
    clock: Clock,
    control: Control,
    /// Progress by worker.
    progress: Mutex<Vec<Progress>>,
    /// Barrier at which each follower waits for the others once its worker's load has ended.
    all_ended: Barrier,
}

impl FollowerState {
    /// Stores the progress of one worker's load, and reports the total.
    fn report(&self, worker: usize, progress: Progress) {
        let mut all = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        all[worker] = progress;
        self.control.report(sum(&all));
    }
}

/// Adds up the progress of all workers. The recent response times are those of the slowest worker, because quantiles
/// cannot be added.
fn sum(all: &[Progress]) -> Progress {
    let mut sum = Progress::default();
    for progress in all {
        sum.scheduled += progress.scheduled;
        sum.in_flight += progress.in_flight;
        sum.outcomes.merge(&progress.outcomes);
        sum.warmup.merge(&progress.warmup);
        sum.error_statuses.merge(&progress.error_statuses);
        sum.recent = match (sum.recent, progress.recent) {
            (Some(a), Some(b)) => Some(Recent { p50: a.p50.max(b.p50), p99: a.p99.max(b.p99) }),
            (a, b) => a.or(b),
        };
    }
    sum
}
