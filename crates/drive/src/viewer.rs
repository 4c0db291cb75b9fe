//! Live view of a run: the recorded events, and also what is not recorded, such as what each disruption is waiting for,
//! the progress of the load, and messages to the user.

use std::time::Duration;
use std::{fmt, io};

use rolldrop_load as load;
use rolldrop_record::{Event, Stamp};
use rolldrop_scenario::Disruption;

/// Views a run while it lasts. All tasks of the run call it, so it must not block.
pub trait Viewer: fmt::Debug + Send + Sync {
    /// Called for each recorded event.
    fn recorded(&self, event: &Event);

    /// Called when a disruption of the scenario, counted from 0, reaches another stage.
    fn stands(&self, index: u32, disruption: &Disruption, standing: Standing);

    /// Called with the changes that have not settled yet; `None` once all have.
    fn unsettled(&self, what: Option<&str>);

    /// Called with the reason that the awaited pods are not ready, before anything is measured.
    fn unready(&self, why: &str);

    /// Called with the time without losses that the run waits for; `None` if it no longer waits.
    fn awaits_silence(&self, silence: Option<Duration>);

    /// Called again and again while a load is sent; `None` when it has ended.
    fn loads(&self, load: Option<&Loading<'_>>);

    /// Called when a run begins, which may be one of several.
    fn begins(&self);

    /// Called when it has ended.
    fn ends(&self);

    /// Called with the step of the run that begins.
    fn step(&self, what: &str);

    /// Called with a message.
    fn say(&self, message: &str);

    /// Called with a message that is shown in any case.
    fn note(&self, message: &str);

    /// Called with a warning, which is shown in any case, and may come again.
    fn warn(&self, message: &str);

    /// Shows a question on the terminal, which the user answers there.
    ///
    /// # Errors
    /// Fails if it cannot be shown.
    fn ask(&self, question: &str) -> io::Result<()>;
}

/// A load that is being sent, at one moment.
#[derive(Debug)]
pub struct Loading<'a> {
    /// Facts that were known before it started.
    pub planned: &'a Planned,
    /// Description of what the load is part of, shown in place of these facts.
    pub part_of: Option<String>,
    /// Requests so far.
    pub progress: load::Progress,
    /// Time since it started.
    pub elapsed: Duration,
    /// True if it was stopped, and waits for what is in flight.
    pub is_stopped: bool,
}

/// Facts about a load that are known before it starts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Planned {
    /// Number of requests that will be counted.
    pub requests: Option<u64>,
    /// Number of requests that the warm-up sends before them.
    pub warmup_requests: Option<u64>,
    /// Length of the warm-up.
    pub warmup: Duration,
    /// Time it takes to send all requests.
    pub length: Option<Duration>,
    /// True if something else may end the load earlier.
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
pub enum Standing {
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
    fn stands(&self, _index: u32, _disruption: &Disruption, _standing: Standing) {}
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
