//! Marks the workloads that a run changes as in use, and keeps the marks valid while the run lasts.

use std::path::Path;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::apply::{Changer, reference};
use crate::api::Caller;
use crate::cluster::Origin;
use crate::error::{CoordinatorError, Result};
use crate::observe::RecorderHandle;
use crate::tasks::BackgroundTasks;
use crate::undo::holder::{api_of_workload, in_use, read_workload, renew, send};
use crate::undo::{ATTEMPTS, ChangeLedger, ClusterChange, Holder, Journal, Undone};
use rolldrop_record::Clock;
use rolldrop_scenario::Workload;

/// Time from one renewal to the next. Each renewal updates the workload, and a Deployment's controller copies the
/// annotation to its ReplicaSets.
const RENEWED: Duration = Duration::from_secs(3 * 60);
/// Time from a failed renewal to the next attempt.
const AGAIN: Duration = Duration::from_secs(10);

/// Marks a workload as in use by a run, unless it already is.
///
/// # Errors
/// [`CoordinatorError::InUse`] if another run uses it.
async fn take(
    caller: &Caller,
    ledger: &ChangeLedger,
    clock: Clock,
    workload: &Workload,
    run: &str,
) -> Result<()> {
    let api = api_of_workload(caller, workload);
    for _ in 0..ATTEMPTS {
        let current = read_workload(caller, workload).await?;
        match Holder::of(&current) {
            Some(holder) if holder.run == run => return Ok(()),
            Some(holder) if !holder.has_expired(clock) => return Err(in_use(caller, workload, &holder)),
            _ => {}
        }
        let patch = Holder::begin(run, clock).patch_of(&current);
        let change = ClusterChange::Hold { run: run.to_owned() };
        let taking = || send(&api, &workload.name, &patch);
        match ledger.make(caller, reference(&current), change, taking).await {
            Err(CoordinatorError::Conflict(_)) => {}
            taken => return taken.map(drop),
        }
    }
    Err(CoordinatorError::Conflict(workload.to_string()))
}

/// Renews the annotation repeatedly, until the run no longer uses the workload.
async fn keep_renewing(caller: Caller, clock: Clock, workload: Workload, run: String) {
    let mut pause = RENEWED;
    loop {
        sleep(pause).await;
        pause = match renew(&caller, clock, &workload, &run).await {
            Ok(true) => RENEWED,
            Ok(false) => return,
            Err(_) => AGAIN,
        };
    }
}

/// Marks workloads as in use until the tasks stop.
///
/// # Errors
/// [`CoordinatorError::InUse`] if another run uses one.
pub(crate) async fn hold(
    Changer { caller, ledger }: Changer<'_>,
    recorder: &RecorderHandle,
    tasks: &mut BackgroundTasks,
    workloads: &[Workload],
    run: &str,
) -> Result<()> {
    for workload in workloads {
        take(caller, ledger, recorder.clock(), workload, run).await?;
        let (caller, recorder) = (caller.clone(), recorder.clone());
        let (workload, run) = (workload.clone(), run.to_owned());
        tasks.spawn(async move {
            keep_renewing(caller, recorder.clock(), workload.clone(), run).await;
            recorder.warn(format!(
                "{workload} is no longer marked as in use by this run, so other runs may change it"
            ));
        });
    }
    Ok(())
}

/// A workload that stays marked as in use for several runs, such as the runs of a tuning.
pub struct Tenure {
    caller: Caller,
    ledger: ChangeLedger,
    _renewing: JoinSet<()>,
}

impl Tenure {
    /// Marks a workload as in use. Creates a journal in the directory, or continues the existing one.
    ///
    /// # Errors
    /// [`CoordinatorError::InUse`] if another run uses the workload. Also fails if the journal cannot be written.
    pub async fn begin(
        caller: Caller,
        (dir, clock): (&Path, Clock),
        (run, cluster): (&str, Option<Origin>),
        workload: &Workload,
    ) -> Result<Self> {
        let journal = match Journal::is_in(dir) {
            true => Journal::go_on(dir, clock, run, cluster)?,
            false => Journal::begin(dir, clock, run, cluster)?,
        };
        let ledger = ChangeLedger::of(journal);
        take(&caller, &ledger, clock, workload, ledger.run()).await?;
        let mut renewing = JoinSet::new();
        renewing.spawn(keep_renewing(caller.clone(), clock, workload.clone(), ledger.run().to_owned()));
        Ok(Self { caller, ledger, _renewing: renewing })
    }

    /// Returns the name under which the workload is in use.
    pub fn run(&self) -> &str {
        self.ledger.run()
    }

    /// Releases the workload. Cancelling `stop` cuts the release short.
    pub async fn end(self, stop: CancellationToken) -> Vec<Undone> {
        self.ledger.undo(&Caller { stop, ..self.caller }).await
    }
}
