//! Workload changes under load that the run did not make, for example by an autoscaler, a pipeline or a colleague.

use super::actions::ActionCall;
use super::termination_cause::{Histories, WATCH_LAG_NS};
use crate::model::account::WorkloadChange;
use rolldrop_record::Stamp;
use rolldrop_record::event::{ActionName, Change, WorkloadEvent};

/// Workload change made by others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeByOthers {
    /// Time a watch showed the change.
    pub at: Stamp,
    /// Kind and name of the workload, such as `Deployment web`.
    pub workload: String,
    /// Changed properties.
    pub what: Vec<WorkloadChange>,
}

/// Returns the changes between two times that none of the run's calls explain. Each call explains one change. Returns
/// nothing for a run whose calls may change anything, or which waits for others to act.
pub(super) fn by_others(
    histories: &Histories,
    calls: &[ActionCall],
    (from, until): (Stamp, Stamp),
) -> Vec<ChangeByOthers> {
    let may_be_anything =
        |call: &ActionCall| matches!(call.action, ActionName::Patch | ActionName::Exec | ActionName::Observe);
    if calls.is_empty() || calls.iter().any(may_be_anything) {
        return Vec::new();
    }
    let mut unused: Vec<&ActionCall> = calls.iter().collect();
    let mut take = |meant: &[ActionName], at: Stamp, is_late: bool| {
        let made_it = |call: &&ActionCall| {
            let is_after = at >= call.at && (is_late || at.ns_since(call.answered) <= WATCH_LAG_NS);
            is_after && meant.contains(&call.action)
        };
        unused.iter().position(made_it).map(|found| unused.remove(found)).is_some()
    };
    let mut found = Vec::new();
    for (at, before, after) in histories.changes_of_workloads() {
        // A list after a watch gap may show a change long after it was made.
        let is_late = after.change == Change::Listed;
        let mut what = Vec::new();
        let rollouts = [ActionName::RollingRestart, ActionName::SetImage];
        if before.template != after.template && !take(&rollouts, at, is_late) {
            what.push(WorkloadChange::Template);
        }
        if before.replicas != after.replicas && !take(&[ActionName::Scale], at, is_late) {
            what.extend(replicas(before, after));
        }
        if !what.is_empty() && (from..=until).contains(&at) {
            found.push(ChangeByOthers { at, workload: after.workload.replace('/', " "), what });
        }
    }
    found
}

fn replicas(before: &WorkloadEvent, after: &WorkloadEvent) -> Option<WorkloadChange> {
    let (from, to) = before.replicas.zip(after.replicas)?;
    Some(WorkloadChange::Replicas { from, to })
}
