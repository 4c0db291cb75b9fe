//! Current state of a run, derived from the events that the run records.
//!
//! Nothing here reads a clock or waits. [`super::screen`] shows the state on a terminal; [`super::news`] reports
//! changes elsewhere. Explaining lost requests is left to the analysis; this module knows only which pods were
//! terminating or starting when the loss became known.

mod action_progress;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::news::{GONE, News, PodNews};
pub(super) use action_progress::ActionProgress;
use rolldrop_drive::viewer::{DisruptionStage, Wait};
use rolldrop_record::event::{self, Change, PodEvent, ProxyPhase};
use rolldrop_record::{Event, EventKind, Stamp};
use rolldrop_scenario::Disruption;

/// Time in seconds for which a loss still names a pod that is gone.
const JUST_GONE_S: f64 = 2.0;
/// Time in seconds without another lost request after which a loss is reported.
const TOLD_AFTER_S: f64 = 1.0;
/// Number of losses kept for display.
const LOSSES: usize = 16;
/// Maximum number of pods that a sentence names; the others are only counted.
const NAMED: usize = 2;

/// Current state of a run.
#[derive(Debug, Default)]
pub(super) struct LiveState {
    /// Pods by UID.
    pods: BTreeMap<String, Pod>,
    /// Times at which pods disappeared, with the pods' names, the latest last.
    gone: VecDeque<(Stamp, String)>,
    /// Actions by disruption number; the user's command has none.
    actions: BTreeMap<Option<u32>, ActionProgress>,
    /// Description of the unsettled part of a rollout.
    unsettled: Option<String>,
    /// Time without losses that the run is waiting for, if any.
    silence: Option<Duration>,
    /// Start of the counted part of the load.
    zero: Option<Stamp>,
    /// Dropped requests by outcome, as last reported.
    dropped: BTreeMap<String, u64>,
    losses: VecDeque<LiveLoss>,
    news: Vec<News>,
}

/// A pod as last seen.
#[derive(Debug)]
pub(super) struct Pod {
    pub(super) name: String,
    pub(super) phase: LivePhase,
    /// Time the pod entered that phase; `None` if the change was not seen.
    pub(super) since: Option<Stamp>,
    /// Progress of the termination, as reported by the pod's proxy.
    pub(super) stage: Option<&'static str>,
}

/// Phase of a pod, in display order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LivePhase {
    Terminating,
    NotReady,
    Starting,
    Ready,
    /// Failed or succeeded, but not yet gone.
    Ended,
}

impl LivePhase {
    pub(super) const ALL: [Self; 5] =
        [Self::Ready, Self::Starting, Self::NotReady, Self::Terminating, Self::Ended];

    fn of(pod: &PodEvent, before: Option<Self>) -> Self {
        match (pod.phase.as_str(), before) {
            _ if pod.deletion_timestamp.is_some() => Self::Terminating,
            ("Failed" | "Succeeded", _) => Self::Ended,
            _ if pod.ready => Self::Ready,
            (_, None | Some(Self::Starting)) => Self::Starting,
            _ => Self::NotReady,
        }
    }

    /// Returns the news that a pod is in this phase.
    const fn news(self) -> Option<PodNews> {
        match self {
            Self::Terminating => Some(["begins to terminate", "begin to terminate"]),
            Self::NotReady => Some(["is no longer ready", "are no longer ready"]),
            Self::Starting => None,
            Self::Ready => Some(["is ready", "are ready"]),
            Self::Ended => Some(["has ended", "have ended"]),
        }
    }

    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Terminating => "terminating",
            Self::NotReady => "not ready",
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Ended => "ended",
        }
    }
}

/// Requests that were dropped while the same pods were terminating or starting.
#[derive(Debug)]
struct LiveLoss {
    first: Stamp,
    last: Stamp,
    /// Number of dropped requests by outcome.
    dropped: BTreeMap<String, u64>,
    /// Description of the pods that were terminating, gone or starting at the same time.
    meanwhile: String,
    /// True if the loss has been reported; nothing is added to it after that.
    is_told: bool,
}

impl LiveState {
    /// Applies a recorded event.
    pub(super) fn apply(&mut self, event: &Event) {
        let at = event.at;
        match &event.kind {
            EventKind::LoadStarted { warmup_s, .. } => {
                self.zero = Some(at + Duration::try_from_secs_f64(*warmup_s).unwrap_or_default());
            }
            EventKind::Pod(pod) => self.pod(at, pod),
            EventKind::ProxyPhase { pod, phase } => {
                let named = self.pods.values_mut().find(|seen| seen.name == *pod);
                if let (Some(pod), Some(stage)) = (named, in_words(*phase)) {
                    pod.stage = Some(stage);
                }
            }
            EventKind::Action(action) => self.call(action),
            EventKind::CommandStarted { command, disruption: None } => {
                self.actions.insert(None, ActionProgress::command(command));
            }
            EventKind::CommandEnded { disruption: None, .. } => {
                self.command(DisruptionStage::Waits(Wait::Rollout))
            }
            EventKind::CommandSettled { disruption: None, .. } => self.command(DisruptionStage::Done),
            // Events in the gap are unknown. A fresh list follows.
            EventKind::WatchGap { resource, .. } if resource == "pods" => self.pods.clear(),
            _ => {}
        }
    }

    /// Updates the state of a disruption.
    pub(super) fn stands(&mut self, index: u32, disruption: &Disruption, standing: DisruptionStage) {
        let action = self.actions.entry(Some(index)).or_insert_with(|| ActionProgress::of(disruption));
        self.news.extend(action.stands(disruption, standing).map(News::Said));
    }

    /// Sets the unsettled part of a rollout that the run is waiting for.
    pub(super) fn unsettled(&mut self, what: Option<&str>) {
        self.unsettled = what.map(str::to_owned);
    }

    /// Sets the reason why the pods that the run is waiting for are not ready.
    pub(super) fn unready(&mut self, why: &str) {
        if self.unsettled.as_deref() != Some(why) {
            self.unsettled = Some(why.to_owned());
            self.news.push(News::Said(why.to_owned()));
        }
    }

    /// Sets the time without losses that the run is waiting for; `None` if it no longer waits.
    pub(super) fn awaits_silence(&mut self, silence: Option<Duration>) {
        self.silence = silence;
        self.news.extend(self.last_wait().map(News::Said));
    }

    /// Updates the numbers of requests dropped so far, by outcome. Drops during the warm-up, or in a load outside a
    /// run, are not news.
    pub(super) fn dropped(&mut self, at: Stamp, dropped: BTreeMap<String, u64>, is_warmup: bool) {
        let before = std::mem::replace(&mut self.dropped, dropped);
        if is_warmup || self.zero.is_none() {
            return;
        }
        let more = self.dropped.iter().filter_map(|(outcome, count)| {
            let more = count.saturating_sub(before.get(outcome).copied().unwrap_or(0));
            (more > 0).then(|| (outcome.clone(), more))
        });
        let more: BTreeMap<_, _> = more.collect();
        if more.is_empty() {
            if self.losses.back().is_some_and(|loss| at.seconds_since(loss.last) > TOLD_AFTER_S) {
                self.tell_loss();
            }
            return;
        }
        let meanwhile = self.meanwhile(at);
        if self.losses.back().is_none_or(|loss| loss.is_told || loss.meanwhile != meanwhile) {
            self.tell_loss();
            let dropped = BTreeMap::new();
            self.losses.push_back(LiveLoss { first: at, last: at, dropped, meanwhile, is_told: false });
            if self.losses.len() > LOSSES {
                self.losses.pop_front();
            }
        }
        let Some(loss) = self.losses.back_mut() else { return };
        loss.last = at;
        for (outcome, count) in more {
            if !before.contains_key(&outcome) {
                self.news.push(News::Said(format!("first {outcome}{}", loss.meanwhile)));
            }
            *loss.dropped.entry(outcome).or_default() += count;
        }
    }

    /// Reports the last loss, unless it has already been reported.
    pub(super) fn tell_loss(&mut self) {
        let Some(loss) = self.losses.back().filter(|loss| !loss.is_told) else { return };
        let told = News::Said(self.loss_in_words(loss));
        self.news.push(told);
        if let Some(loss) = self.losses.back_mut() {
            loss.is_told = true;
        }
    }

    /// Returns the pods, changing ones first.
    pub(super) fn pods(&self) -> Vec<&Pod> {
        let mut pods: Vec<&Pod> = self.pods.values().collect();
        pods.sort_by_key(|pod| (pod.phase, pod.since, &pod.name));
        pods
    }

    /// Describes the actions, completed ones last.
    pub(super) fn actions(&self, now: Stamp) -> Vec<String> {
        let mut actions: Vec<&ActionProgress> = self.actions.values().collect();
        actions.sort_by_key(|action| action.is_over());
        let in_words = |action: &ActionProgress| action.in_words(now, self.unsettled.as_deref());
        self.last_wait().into_iter().chain(actions.into_iter().map(in_words)).collect()
    }

    /// Describes the losses, the latest first.
    pub(super) fn losses(&self) -> impl Iterator<Item = String> {
        self.losses.iter().rev().map(|loss| self.loss_in_words(loss))
    }

    fn loss_in_words(&self, loss: &LiveLoss) -> String {
        let zero = self.zero.unwrap_or(loss.first);
        let [first, last] = [loss.first, loss.last].map(|at| at.seconds_since(zero).floor());
        let when = if first == last { format!("{first:.0}") } else { format!("{first:.0} to {last:.0}") };
        let dropped = loss.dropped.iter().map(|(outcome, count)| format!("{count} {outcome}"));
        let dropped = dropped.collect::<Vec<_>>().join(", ");
        format!("lost at {when} s: {dropped}{}", loss.meanwhile)
    }

    /// Counts the pods in each phase: `10 ready, 1 terminating`.
    pub(super) fn pod_counts(&self) -> Option<String> {
        let count = |phase| self.pods.values().filter(|pod| pod.phase == phase).count();
        let counts = LivePhase::ALL.map(|phase| (count(phase), phase));
        let counts = counts.iter().filter(|(count, _)| *count > 0);
        let counts: Vec<_> = counts.map(|(count, phase)| format!("{count} {}", phase.as_str())).collect();
        (!counts.is_empty()).then(|| counts.join(", "))
    }

    /// Takes the news since the last call.
    pub(super) fn take_news(&mut self) -> Vec<News> {
        std::mem::take(&mut self.news)
    }

    fn pod(&mut self, at: Stamp, event: &PodEvent) {
        // Pods of Jobs serve no requests.
        if event.owner.as_deref().is_some_and(|owner| owner.starts_with("Job/")) {
            return;
        }
        let mut news = |news| self.news.push(News::Pod(news, event.name.clone()));
        if event.change == Change::Deleted {
            if self.pods.remove(&event.uid).is_some() {
                news(GONE);
                self.gone.push_back((at, event.name.clone()));
            }
            return;
        }
        let before = self.pods.get(&event.uid).map(|pod| pod.phase);
        let phase = LivePhase::of(event, before);
        if before == Some(phase) {
            return;
        }
        let is_seen = event.change == Change::Applied;
        let since = is_seen.then_some(at);
        self.pods.insert(event.uid.clone(), Pod { name: event.name.clone(), phase, since, stage: None });
        if let Some(told) = phase.news().filter(|_| is_seen) {
            news(told);
        }
    }

    /// Applies a disruption's API call, whether it was accepted or refused.
    fn call(&mut self, call: &event::Action) {
        let action = self.actions.get_mut(&Some(call.disruption));
        self.news.extend(action.and_then(|action| action.called(call)));
    }

    fn command(&mut self, standing: DisruptionStage) {
        if let Some(command) = self.actions.get_mut(&None) {
            command.standing = standing;
        }
    }

    /// Describes the wait after the last disruption; `None` if the run does not wait.
    fn last_wait(&self) -> Option<String> {
        let silence_s = self.silence?.as_secs_f64();
        Some(format!("waiting until no request has been lost for {silence_s:.1} s"))
    }

    /// Names the pods that were terminating, gone or starting when a loss became known.
    fn meanwhile(&mut self, at: Stamp) -> String {
        self.gone.retain(|(gone, _)| at.seconds_since(*gone) <= JUST_GONE_S);
        let of = |phase| {
            let pods = self.pods.values().filter(move |pod| pod.phase == phase);
            let mut names: Vec<&str> = pods.map(|pod| pod.name.as_str()).collect();
            names.sort_unstable();
            names
        };
        let was = |names: Vec<&str>, what: &str, when: &str| match names.len() {
            0 => None,
            1 => Some(format!("{when} {} was {what}", names[0])),
            NAMED => Some(format!("{when} {} were {what}", names.join(" and "))),
            number => Some(format!("{when} {number} pods were {what}")),
        };
        let gone = self.gone.iter().map(|(_, name)| name.as_str()).collect();
        let mut seen: Vec<String> =
            [was(of(LivePhase::Terminating), "terminating", "while"), was(gone, "gone", "just after")]
                .into_iter()
                .flatten()
                .collect();
        if seen.is_empty() {
            let others = [(LivePhase::NotReady, "not ready"), (LivePhase::Starting, "starting")];
            seen.extend(others.into_iter().filter_map(|(phase, what)| was(of(phase), what, "while")));
        }
        match (seen.is_empty(), self.pods.is_empty()) {
            (false, _) => format!(" {}", seen.join(", ")),
            (true, false) => " while no pod was terminating or starting".to_owned(),
            // The target's pods are unknown.
            (true, true) => String::new(),
        }
    }
}

/// Describes a termination stage; `None` for stages that do not indicate progress.
const fn in_words(stage: ProxyPhase) -> Option<&'static str> {
    match stage {
        ProxyPhase::PreStop => Some("in preStop"),
        ProxyPhase::ListenerClosed => Some("refuses connections"),
        ProxyPhase::Sigterm => Some("after SIGTERM"),
        ProxyPhase::Drained => Some("nothing in flight"),
        ProxyPhase::Exit => Some("exits"),
        ProxyPhase::DeletionSeen
        | ProxyPhase::LastListening
        | ProxyPhase::LastConnection
        | ProxyPhase::LastRequest => None,
    }
}

#[cfg(test)]
pub(super) mod tests;
