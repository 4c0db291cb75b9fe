//! Undoes a run's changes in a cluster, latest first.
//!
//! Undoing can be repeated safely. Values that others have changed since stay as they are, and are reported. An object
//! that was replaced in the meantime is left alone entirely. A sidecar stays while a Service may still route to it.

mod change_journal;
pub(crate) mod change_ledger;
pub(crate) mod effect;
pub(crate) mod holder;
mod left_over;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, Preconditions};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout_at};

use crate::api::edits::{self, Edit};
use crate::api::{Caller, ask_agent};
use crate::error::{CoordinatorError, Result};
use change_journal::Open;
pub(crate) use change_journal::{ClusterChange, Journal, ObjectRef, RUN_LABEL};
pub(crate) use change_ledger::ChangeLedger;
pub use effect::await_effect;
pub(crate) use holder::Holder;
pub use left_over::{LeftOvers, Since};
use rolldrop_kubernetes::guard::object_names::in_path;
use rolldrop_sidecar::inject;

/// Number of attempts at a change that conflicts with others' changes.
pub(crate) const ATTEMPTS: u32 = 5;
/// Pause between two attempts at making or undoing a change that conflicts with others' changes.
pub(crate) const AFTER_A_CONFLICT: Duration = Duration::from_millis(50);
/// Time that Service proxies get to follow a change to a Service; they take about a second. After this time, all
/// traffic is routed according to the new Service, and the former endpoints may be removed.
pub(crate) const FOLLOW: Duration = Duration::from_secs(2);
/// Pause before changes that could not be undone are tried again.
const BETWEEN_PASSES: Duration = Duration::from_secs(1);

/// Result of undoing a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UndoOutcome {
    /// The change was undone.
    Undone {
        /// Fields that others have changed since, which stay as they are.
        others: Vec<String>,
    },
    /// There was nothing left to undo.
    Nothing(String),
    /// The object belongs to someone else now.
    LeftAlone(String),
    /// The change could not be undone; another attempt is possible.
    Failed {
        /// Reason.
        why: String,
        /// True if an attempt soon after may succeed, because the API server was down, overloaded or faulty.
        may_pass: bool,
    },
}

/// A change and the result of undoing it.
#[derive(Clone, Debug)]
pub struct Undone {
    object: ObjectRef,
    change: ClusterChange,
    /// Result of undoing the change.
    pub outcome: UndoOutcome,
    /// Reason that the journal still lists the change, although nothing of it is left to undo.
    unrecorded: Option<String>,
}

impl Undone {
    /// Returns true if the user should look at the object.
    pub fn is_left(&self) -> bool {
        self.is_open()
            || match &self.outcome {
                UndoOutcome::Undone { others } => !others.is_empty(),
                UndoOutcome::Nothing(_) => false,
                UndoOutcome::LeftAlone(_) | UndoOutcome::Failed { .. } => true,
            }
    }

    /// Returns true if the journal still lists the change as not undone.
    pub(crate) fn is_open(&self) -> bool {
        self.unrecorded.is_some() || matches!(self.outcome, UndoOutcome::Failed { .. })
    }

    /// Records in the journal that nothing is left to undo, if that is so.
    fn record(&mut self, journal: &mut Journal, id: u32) {
        if !matches!(self.outcome, UndoOutcome::Failed { .. }) {
            self.unrecorded = journal.undone(id, self.to_string()).err().map(|error| error.in_words());
        }
    }
}

impl fmt::Display for Undone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { object, change, outcome, unrecorded } = self;
        write!(f, "{object}: ")?;
        let (done, not_done) = match change {
            ClusterChange::Create => ("removed", "left in the cluster"),
            ClusterChange::ShutDown => ("booted", "not booted"),
            ClusterChange::Hold { .. } => ("released", "not released"),
            ClusterChange::Edit { .. } => ("restored", "not restored"),
        };
        match outcome {
            UndoOutcome::Undone { others } if others.is_empty() => f.write_str(done)?,
            UndoOutcome::Undone { others } => {
                write!(f, "{done}, except what others have changed since: {}", others.join(", "))?;
            }
            UndoOutcome::Nothing(why) => f.write_str(why)?,
            UndoOutcome::LeftAlone(why) => write!(f, "left alone: {why}")?,
            UndoOutcome::Failed { why, .. } => write!(f, "{not_done}: {why}")?,
        }
        unrecorded.iter().try_for_each(|why| write!(f, "; not recorded: {why}"))
    }
}

impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.name)?;
        self.namespace.iter().try_for_each(|namespace| write!(f, " in {namespace}"))
    }
}

/// Undoes the open changes of journals, in this order, within the limit for undoing. Tries again what failed for a
/// reason that may pass.
pub(crate) async fn all(caller: &Caller, journals: &mut [Journal]) -> Vec<Undone> {
    let deadline = Instant::now() + caller.limits.undo;
    let mut results = BTreeMap::new();
    loop {
        for (key, undone) in pass(caller, journals, deadline).await {
            results.insert(key, undone);
        }
        let may_pass = |undone: &Undone| matches!(undone.outcome, UndoOutcome::Failed { may_pass: true, .. });
        let is_over = Instant::now() + BETWEEN_PASSES >= deadline || !results.values().any(may_pass);
        if is_over || caller.stoppable(sleep(BETWEEN_PASSES)).await.is_err() {
            return results.into_values().collect();
        }
    }
}

/// Tries once to undo each open change. Returns the results by journal and ID, latest first.
async fn pass(
    caller: &Caller,
    journals: &mut [Journal],
    deadline: Instant,
) -> BTreeMap<(usize, Reverse<u32>), Undone> {
    let mut results = BTreeMap::new();
    let mut is_rerouted = false;
    // Services that may still route to a sidecar, by namespace.
    let mut routing = BTreeMap::new();
    for (number, journal) in journals.iter_mut().enumerate() {
        let run = journal.run().to_owned();
        for open in journal.open_changes() {
            if is_rerouted && open.object.kind != "Service" {
                sleep(FOLLOW).await;
                is_rerouted = false;
            }
            let id = open.id;
            let service = routing.get(&open.object.namespace).filter(|_| adds_sidecar(&open.change));
            let mut undone = match service {
                Some(service) => keep_sidecar_for(service, open),
                None => one(caller, &run, open, deadline).await,
            };
            undone.record(journal, id);
            let Undone { object, change, outcome, .. } = &undone;
            if object.kind == "Service" && matches!(change, ClusterChange::Edit { .. }) {
                match outcome {
                    // An earlier attempt may have taken effect just now, although it seemed to fail.
                    UndoOutcome::Undone { .. } | UndoOutcome::Nothing(_) => is_rerouted = true,
                    UndoOutcome::Failed { .. } => {
                        routing.insert(object.namespace.clone(), object.clone());
                    }
                    UndoOutcome::LeftAlone(_) => {}
                }
            }
            results.insert((number, Reverse(id)), undone);
        }
    }
    results
}

/// Returns true if undoing this change removes the sidecar from pods.
fn adds_sidecar(change: &ClusterChange) -> bool {
    let ClusterChange::Edit { edits } = change else { return false };
    edits.iter().any(|edit| edit.is_to_item(inject::SIDECAR_NAME))
}

/// Leaves a sidecar in place, because without it the Service would have no endpoint that listens.
fn keep_sidecar_for(service: &ObjectRef, Open { object, change, .. }: Open) -> Undone {
    let why = format!("{service} was not restored and may still route to the sidecar");
    let outcome = UndoOutcome::Failed { why, may_pass: false };
    Undone { object, change, outcome, unrecorded: None }
}

/// Undoes one change before a deadline.
async fn one(caller: &Caller, run: &str, open: Open, deadline: Instant) -> Undone {
    let Open { object, change, .. } = open;
    let undoing = async {
        match &change {
            ClusterChange::Create => remove(caller, run, &object).await,
            ClusterChange::Edit { edits } => restore(caller, &object, edits).await,
            ClusterChange::ShutDown => boot(caller, &object).await,
            ClusterChange::Hold { run } => holder::release(caller, &object, run).await,
        }
    };
    let outcome = match timeout_at(deadline, undoing).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(error)) => UndoOutcome::Failed { why: error.to_string(), may_pass: error.may_pass() },
        Err(_) => {
            let why = format!("undoing took longer than {:?}", caller.limits.undo);
            UndoOutcome::Failed { why, may_pass: true }
        }
    };
    Undone { object, change, outcome, unrecorded: None }
}

pub(crate) fn gone() -> UndoOutcome {
    UndoOutcome::Nothing("already gone".into())
}

/// Boots a node that was shut down. If the node is running, only its agent restarts, which terminates no pods.
async fn boot(caller: &Caller, node: &ObjectRef) -> Result<UndoOutcome> {
    let what = format!("boot {node}");
    match caller.ask(&what, || ask_agent(&caller.client, &node.name, "restart")).await? {
        Ok(()) => Ok(UndoOutcome::Undone { others: Vec::new() }),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(gone()),
        Err(error) => Err(CoordinatorError::api(&what, &error)),
    }
}

async fn api_of(caller: &Caller, object: &ObjectRef) -> Result<Api<DynamicObject>> {
    let (resource, scope) = caller.kind_of(&object.api_version, &object.kind).await?;
    Ok(caller.api_of(&resource, &scope, object.namespace.as_deref().unwrap_or_default()))
}

/// Returns true if an object that a run created or changed is in the cluster.
async fn exists(caller: &Caller, run: &str, object: &ObjectRef) -> Result<bool> {
    let api = api_of(caller, object).await?;
    let found = caller.find(&api, &format!("find {object}"), &object.name).await?;
    Ok(found.is_some_and(|found| match &object.uid {
        Some(uid) => found.uid().as_ref() == Some(uid),
        None => found.labels().get(RUN_LABEL).is_some_and(|of| of == run),
    }))
}

/// Removes an object that the run created, together with everything that the object owns.
async fn remove(caller: &Caller, run: &str, object: &ObjectRef) -> Result<UndoOutcome> {
    let api = api_of(caller, object).await?;
    let what = format!("remove {object}");
    let uid = match &object.uid {
        Some(uid) => uid.clone(),
        // The run ended before it knew the UID. The label shows whether this is the run's object.
        None => match caller.find(&api, &what, &object.name).await? {
            None => return Ok(gone()),
            Some(found) if found.labels().get(RUN_LABEL).is_some_and(|of| of == run) => {
                found.uid().unwrap_or_default()
            }
            Some(_) => return Ok(UndoOutcome::LeftAlone("it does not belong to this run".into())),
        },
    };
    let preconditions = Some(Preconditions { uid: Some(uid), resource_version: None });
    let params = DeleteParams { preconditions, ..DeleteParams::background() };
    let part = in_path(&object.name);
    match caller.ask(&what, || api.delete(&part, &params)).await? {
        Ok(_) => Ok(UndoOutcome::Undone { others: Vec::new() }),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(gone()),
        Err(kube::Error::Api(status)) if status.code == 409 => {
            Ok(UndoOutcome::LeftAlone("it has been replaced since".into()))
        }
        Err(error) => Err(CoordinatorError::api(&what, &error)),
    }
}

/// Restores the old values of the fields that the run changed.
async fn restore(caller: &Caller, object: &ObjectRef, edits: &[Edit]) -> Result<UndoOutcome> {
    let api = api_of(caller, object).await?;
    let what = format!("restore {object}");
    let mut is_asked = false;
    loop {
        let Some(current) = caller.find(&api, &what, &object.name).await? else { return Ok(gone()) };
        if object.uid.is_some() && current.uid() != object.uid {
            return Ok(UndoOutcome::LeftAlone("it has been replaced since".into()));
        }
        let current = serde_json::to_value(current).unwrap_or_default();
        let edits::Reverted { object: wanted, restored, others } = edits::revert(edits, &current);
        if restored == 0 {
            return Ok(match (others.is_empty(), is_asked) {
                // An earlier patch took effect, although its response was lost.
                (true, true) => UndoOutcome::Undone { others },
                (true, false) => UndoOutcome::Nothing("already restored".into()),
                (false, _) => UndoOutcome::LeftAlone(format!("others have changed {}", others.join(", "))),
            });
        }
        is_asked = true;
        match caller.ask(&what, || patch(&api, &object.name, &current, &wanted)).await? {
            Ok(_) => return Ok(UndoOutcome::Undone { others }),
            // During a rollout, a workload's status changes all the time. The deadline ends this loop.
            Err(kube::Error::Api(status)) if status.code == 409 => sleep(AFTER_A_CONFLICT).await,
            Err(error) => return Err(CoordinatorError::api(&what, &error)),
        }
    }
}

/// Patches an object into its wanted state, unless it has changed since it was read.
pub(crate) async fn patch(
    api: &Api<DynamicObject>,
    name: &str,
    current: &Value,
    wanted: &Value,
) -> kube::Result<DynamicObject> {
    let mut patch = edits::merge_patch(current, wanted).unwrap_or_else(|| json!({}));
    // The API server refuses a patch that names an outdated version, so others' changes are not overwritten.
    patch["metadata"]["resourceVersion"] = current["metadata"]["resourceVersion"].clone();
    api.patch(&in_path(name), &PatchParams::default(), &Patch::Merge(patch)).await
}
