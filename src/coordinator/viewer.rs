//! Live view of a run: the recorded events, and also what is not recorded, such as what each disruption is waiting for.

use std::fmt;
use std::time::Duration;

use rolldrop_record::{Event, Stamp};
use rolldrop_scenario::Disruption;

/// Views a run while it lasts. All tasks of the run call it, so it must not block.
pub(crate) trait Viewer: fmt::Debug + Send + Sync {
    /// Called for each recorded event.
    fn recorded(&self, event: &Event);

    /// Called when a disruption of the scenario, counted from 0, reaches another stage.
    fn stands(&self, index: u32, disruption: &Disruption, standing: Standing);

    /// Called with the changes that have not settled yet; `None` once all have.
    fn unsettled(&self, what: Option<&str>);

    /// Called with the reason that the awaited pods are not ready, before anything is measured.
    fn unready(&self, why: &str);
}

/// Stage that a disruption has reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// A repetition is waiting for its due time.
    Due {
        /// Number of the repetition, counted from 0.
        repetition: u32,
        /// Time at which it is due.
        at: Stamp,
    },
    /// The action is being carried out.
    Acts,
    /// The disruption is waiting for a condition.
    Waits(Wait),
    /// The disruption has ended.
    Done,
}

/// Condition that a disruption waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// As many pods and endpoints are ready as before the disruption.
    Pods,
    /// The workloads have settled.
    Rollout,
    /// No request has been lost for this long.
    Silence(Duration),
    /// The time has come to revert the change.
    Restore(Stamp),
}

/// Ignores everything.
#[cfg(test)]
#[derive(Debug)]
pub(crate) struct Nobody;

#[cfg(test)]
impl Viewer for Nobody {
    fn recorded(&self, _event: &Event) {}
    fn stands(&self, _index: u32, _disruption: &Disruption, _standing: Standing) {}
    fn unsettled(&self, _what: Option<&str>) {}
    fn unready(&self, _why: &str) {}
}
