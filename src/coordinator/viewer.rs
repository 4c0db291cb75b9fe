//! Whoever views a run while it goes on: sees what is recorded, and what is not: what each disruption waits for.

use std::fmt;
use std::time::Duration;

use crate::scenario::Disruption;
use rolldrop_record::{Event, Stamp};

/// Views a run while it goes on. It is called from all tasks of the run, and must not make them wait.
pub(crate) trait Viewer: fmt::Debug + Send + Sync {
    /// This is recorded.
    fn recorded(&self, event: &Event);

    /// A disruption of the scenario, counted from 0, has come so far.
    fn stands(&self, index: u32, disruption: &Disruption, standing: Standing);

    /// What has not settled of the changes that are waited for; `None` if all has.
    fn unsettled(&self, what: Option<&str>);

    /// Pods that are waited for are not ready for this reason, while nothing is measured yet.
    fn unready(&self, why: &str);
}

/// How far a disruption has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// A repetition, counted from 0, is due then.
    Due {
        /// Which.
        repetition: u32,
        /// When.
        at: Stamp,
    },
    /// It acts.
    Acts,
    /// It waits.
    Waits(Wait),
    /// It is over.
    Done,
}

/// What a disruption waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// As many pods and endpoints are ready as before.
    Pods,
    /// The workloads have settled.
    Rollout,
    /// No request is lost for this long.
    Silence(Duration),
    /// It is time to change back what was changed.
    Restore(Stamp),
}

/// Views nothing.
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
