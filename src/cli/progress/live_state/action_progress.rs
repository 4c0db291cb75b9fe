//! Description of a disruption in progress.

use std::collections::BTreeSet;

use super::super::news::{HELD, News};
use rolldrop_drive::viewer::{DisruptionStage, Wait};
use rolldrop_record::event::ActionName;
use rolldrop_record::{Stamp, event};
use rolldrop_scenario::{self as scenario, Disruption, Repeat};

/// A disruption, or the user's command.
#[derive(Debug)]
pub(in crate::cli::progress) struct ActionProgress {
    what: String,
    /// Repetition, counted from 0, and the number of repetitions, if there are several.
    repetition: (u32, Option<u32>),
    pub(super) standing: DisruptionStage,
    /// True if others act, and the run only watches.
    is_watch: bool,
    /// Description of the disruption when it is over.
    over: &'static str,
    /// Pods that a budget does not allow to be evicted yet.
    held: BTreeSet<String>,
}

impl ActionProgress {
    pub(super) fn of(disruption: &Disruption) -> Self {
        let times = match disruption.repeat {
            Repeat::Times(times) => Some(times),
            Repeat::Until(_) => None,
        };
        // The run does not wait if the disruption makes only one rollout.
        let over = match (times, disruption.action.is_rollout()) {
            (Some(1), true) => "was requested",
            _ => "is done",
        };
        let is_watch = matches!(disruption.action, scenario::DisruptionAction::Observe { .. });
        let (what, standing, held) = (what(&disruption.action), DisruptionStage::Done, BTreeSet::new());
        Self { what, repetition: (0, times), standing, is_watch, over, held }
    }

    pub(super) fn command(words: &[String]) -> Self {
        let (what, standing, held) = (words.join(" "), DisruptionStage::Acts, BTreeSet::new());
        Self { what, repetition: (0, Some(1)), standing, is_watch: false, over: "is done", held }
    }

    /// Updates the state. Returns the news, in words.
    pub(super) fn stands(&mut self, disruption: &Disruption, standing: DisruptionStage) -> Option<String> {
        if let DisruptionStage::Due { repetition, .. } = standing {
            // In another round, a different condition may end the repetitions.
            *self =
                Self { repetition: (repetition, Self::of(disruption).repetition.1), ..Self::of(disruption) };
        }
        let before = std::mem::replace(&mut self.standing, standing);
        let title = self.title();
        match (&before, &self.standing) {
            (DisruptionStage::Due { .. }, DisruptionStage::Acts) if self.is_watch => Some(title),
            (DisruptionStage::Due { .. }, DisruptionStage::Acts) => Some(format!("{title} begins")),
            (before, DisruptionStage::Waits(wait)) if before != &self.standing => match wait {
                Wait::Restore(_) => None,
                wait => Some(format!("{title} {}", waits(wait, None))),
            },
            (before, DisruptionStage::Done) if *before != DisruptionStage::Done => {
                Some(format!("{title} {}", self.over))
            }
            _ => None,
        }
    }

    /// Updates the action with the response to one of its calls. Returns the news: a budget has begun to hold up an
    /// eviction, or the API server refused the call.
    pub(super) fn called(&mut self, call: &event::Action) -> Option<News> {
        let pod = call.pod.clone().unwrap_or_default();
        let evicts = matches!(call.action, ActionName::Evict | ActionName::Drain);
        if evicts && call.status == Some(429) {
            return self.held.insert(pod.clone()).then_some(News::Pod(HELD, pod));
        }
        self.held.remove(&pod);
        let error = call.error.as_ref()?;
        Some(News::Said(format!("{} was refused: {error}", self.title())))
    }

    pub(super) fn is_over(&self) -> bool {
        self.standing == DisruptionStage::Done
    }

    /// Describes the disruption and its state. `unsettled` is the part of a rollout that has not settled.
    pub(super) fn in_words(&self, now: Stamp, unsettled: Option<&str>) -> String {
        let title = self.title();
        let left_s = |at: Stamp| at.seconds_since(now).ceil().max(0.0);
        match &self.standing {
            DisruptionStage::Due { at, .. } => format!("{title} begins in {:.0} s", left_s(*at)),
            DisruptionStage::Acts if !self.held.is_empty() => {
                format!("{title} waits until a disruption budget allows {}", self.held())
            }
            DisruptionStage::Acts if self.is_watch => title,
            DisruptionStage::Acts => format!("{title}, in progress"),
            DisruptionStage::Waits(Wait::Restore(at)) => {
                format!("{title} will be changed back in {:.0} s", left_s(*at))
            }
            DisruptionStage::Waits(wait) => format!("{title} {}", waits(wait, unsettled)),
            DisruptionStage::Done => format!("{title} {}", self.over),
        }
    }

    fn held(&self) -> String {
        let first = self.held.first().map(String::as_str).unwrap_or_default();
        match self.held.len() {
            0 | 1 => format!("the eviction of {first}"),
            number => format!("the eviction of {number} pods"),
        }
    }

    fn title(&self) -> String {
        let Self { what, .. } = self;
        match self.repetition {
            (_, Some(1)) | (0, None) => what.clone(),
            (repetition, Some(times)) => format!("{what} ({} of {times})", repetition + 1),
            (repetition, None) => format!("{what} ({})", repetition + 1),
        }
    }
}

/// Describes an action and its object.
fn what(action: &scenario::DisruptionAction) -> String {
    use scenario::DisruptionAction;
    let object = match action {
        DisruptionAction::DeletePod(pods)
        | DisruptionAction::Evict(pods)
        | DisruptionAction::Crash { pods, .. }
        | DisruptionAction::Relabel { pods, .. } => format!("{} matching {}", pods.count, pods.selector),
        DisruptionAction::RollingRestart(workload)
        | DisruptionAction::SetImage { workload, .. }
        | DisruptionAction::Scale { workload, .. } => workload.to_string(),
        DisruptionAction::Patch { object, .. } => object.to_string(),
        DisruptionAction::Drain { node, .. }
        | DisruptionAction::NodeShutdown { node, .. }
        | DisruptionAction::RestartNodeAgent { node } => node.clone(),
        DisruptionAction::Exec { command } => command.join(" "),
        DisruptionAction::Observe { .. } => return "watching for changes by others".to_owned(),
    };
    format!("{} {object}", action.name())
}

fn waits(wait: &Wait, unsettled: Option<&str>) -> String {
    match wait {
        Wait::Pods => "waits until as many pods are ready as before".to_owned(),
        Wait::Rollout => {
            let what = unsettled.map(|what| format!(" ({what})")).unwrap_or_default();
            format!("waits for the rollout{what}")
        }
        Wait::Silence(silence) => {
            format!("waits until no request has been lost for {:.1} s", silence.as_secs_f64())
        }
        Wait::Restore(_) => "waits until it is changed back".to_owned(),
    }
}
