//! Live view of a run: the recorded events, plus unrecorded details such as the condition that each disruption waits
//! for, the load's progress, and messages to the user.

use std::time::Duration;
use std::{fmt, io};

use rolldrop_load as load;
use rolldrop_record::{Event, Stamp};
use rolldrop_scenario::Disruption;

/// Shows a run in progress. All tasks of the run call it, so it must not block.
pub trait Viewer: fmt::Debug + Send + Sync {
    /// Called for each recorded event.
    fn recorded(&self, event: &Event);

    /// Called when a disruption reaches another stage. `index` is the disruption's position in the scenario, from 0.
    fn stands(&self, index: u32, disruption: &Disruption, standing: DisruptionStage);

    /// Called with a description of the changes that have not settled yet; `None` once all have settled.
    fn unsettled(&self, what: Option<&str>);

    /// Called before anything is measured, with the reason that the awaited pods are not ready.
    fn unready(&self, why: &str);

    /// Called with the loss-free time that the run waits for; `None` once it no longer waits.
    fn awaits_silence(&self, silence: Option<Duration>);

    /// Called repeatedly while a load is sent, and with `None` when it has ended.
    fn loads(&self, load: Option<&Loading<'_>>);

    /// Called when a run begins. There may be several runs.
    fn begins(&self);

    /// Called when a run has ended.
    fn ends(&self);

    /// Called when a step of the run begins.
    fn step(&self, what: &str);

    /// Called with a message.
    fn say(&self, message: &str);

    /// Called with a message that is always shown.
    fn note(&self, message: &str);

    /// Called with a warning, which is always shown. The same warning may be repeated.
    fn warn(&self, message: &str);

    /// Shows a question on the terminal; the user answers it there.
    ///
    /// # Errors
    /// Fails if the question cannot be shown.
    fn ask(&self, question: &str) -> io::Result<()>;
}

/// Snapshot of a load that is being sent.
#[derive(Debug)]
pub struct Loading<'a> {
    /// Facts that were known before the load started.
    pub planned: &'a Planned,
    /// Description of the larger job that the load is part of, shown instead of `planned`.
    pub part_of: Option<String>,
    /// Progress of the requests so far.
    pub progress: load::Progress,
    /// Time since the load started.
    pub elapsed: Duration,
    /// True if the load was stopped and is waiting for requests in flight.
    pub is_stopped: bool,
}

/// Facts about a load that are known before it starts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Planned {
    /// Number of requests that will be counted.
    pub requests: Option<u64>,
    /// Number of requests that the warm-up sends first.
    pub warmup_requests: Option<u64>,
    /// Length of the warm-up.
    pub warmup: Duration,
    /// Time needed to send all requests.
    pub length: Option<Duration>,
    /// True if something else may stop the load earlier.
    pub may_end_before: bool,
}

impl Planned {
    /// Reads the facts from a plan.
    pub fn of(plan: &load::Plan) -> Self {
        let warmup_requests = plan.warmup_requests();
        let requests = plan.requests().zip(warmup_requests).map(|(all, warmup)| all.saturating_sub(warmup));
        let (warmup, length) = (plan.warmup(), plan.length());
        Self { requests, warmup_requests, warmup, length, may_end_before: false }
    }
}

/// Stage that a disruption has reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DisruptionStage {
    /// A repetition is waiting for its due time.
    Due {
        /// Number of the repetition, counted from 0.
        repetition: u32,
        /// Time at which the repetition is due.
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
pub enum Wait {
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
    fn stands(&self, _index: u32, _disruption: &Disruption, _standing: DisruptionStage) {}
    fn unsettled(&self, _what: Option<&str>) {}
    fn unready(&self, _why: &str) {}
    fn awaits_silence(&self, _silence: Option<Duration>) {}
    fn loads(&self, _load: Option<&Loading<'_>>) {}
    fn begins(&self) {}
    fn ends(&self) {}
    fn step(&self, _what: &str) {}
    fn say(&self, _message: &str) {}
    fn note(&self, _message: &str) {}
    fn warn(&self, _message: &str) {}
    fn ask(&self, _question: &str) -> io::Result<()> {
        Ok(())
    }
}
