//! Disruptions: actions that terminate pods, their times, and their repetition.

mod objects;

use std::fmt;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use serde::Deserialize;

pub use objects::{Object, Patch, PatchType, Workload, WorkloadKind};
use rolldrop_record::event::ActionName;

/// An action that terminates pods, with its times and repetition.
#[derive(Clone, Debug, PartialEq)]
pub struct Disruption {
    /// Time from the start of the load's counted part to the first repetition.
    pub at: Duration,
    /// Minimum time between repetitions; zero starts the next one as soon as it is allowed.
    pub every: Duration,
    /// Maximum random delay of each repetition, drawn from the load's seed.
    pub jitter: Duration,
    /// Seed for random choices.
    pub seed: u64,
    /// Number of repetitions, or the condition that ends them.
    pub repeat: Repeat,
    /// True if the disruption may terminate the last ready pod, or more pods than a budget or `maxUnavailable` allows.
    pub allow_outage: bool,
    /// Action of each repetition.
    pub action: DisruptionAction,
}

/// Number of repetitions, or the condition that ends them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Repeat {
    /// This many times, at least once.
    Times(u32),
    /// Until this is true, or the load ends.
    Until(Until),
}

/// Condition that ends repetitions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Until {
    /// The rollout is complete.
    RolloutComplete,
    /// At least this many pods have terminated.
    Terminations(usize),
    /// Enough pods have terminated, one at a time, that the largest window covers this share of all windows at this
    /// confidence.
    Windows {
        /// The share, in (0, 1).
        coverage: f64,
        /// The confidence, in (0, 1).
        confidence: f64,
    },
}

impl Until {
    /// Returns the number of pods that must terminate; `None` if the condition is not a number.
    ///
    /// The largest of n windows is at least the p-quantile with confidence 1 − pⁿ (Wilks 1941).
    pub fn terminations(self) -> Option<usize> {
        match self {
            Until::RolloutComplete => None,
            Until::Terminations(number) => Some(number),
            Until::Windows { coverage, confidence } => {
                (1..).find(|n| 1.0 - coverage.powf(f64::from(*n)) >= confidence).map(|n: u32| n as usize)
            }
        }
    }
}

impl fmt::Display for Until {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Until::RolloutComplete => f.write_str("the rollout is complete"),
            Until::Terminations(1) => f.write_str("a pod has terminated"),
            Until::Terminations(number) => write!(f, "{number} pods have terminated"),
            Until::Windows { coverage, confidence } => {
                let (coverage, confidence) = (coverage * 100.0, confidence * 100.0);
                let number = self.terminations().unwrap_or(usize::MAX);
                write!(f, "{number} pods have terminated one by one (p{coverage:.0} at {confidence:.0} %)")
            }
        }
    }
}

impl Disruption {
    /// Returns the time from the start of the load's counted part to a repetition (counted from 0). If a consumer works
    /// in cycles of this `period`, repetitions must hit every phase of the cycle, so each one is delayed by a random
    /// share of the period, or of the jitter if that is longer.
    pub fn due(&self, repetition: u32, period: Duration) -> Duration {
        self.at + self.every * repetition + self.phase(repetition, self.jitter.max(period))
    }

    /// Draws a random share of a period for a repetition, from the load's seed.
    pub fn phase(&self, repetition: u32, period: Duration) -> Duration {
        period.mul_f64(self.random(repetition).random_range(0.0..=1.0))
    }

    /// Shuffles `things` for a repetition, counted from 0.
    fn shuffle<T>(&self, repetition: u32, things: &mut [T]) {
        // Uses a different random stream from the jitter.
        things.shuffle(&mut self.random(repetition | 1 << 31));
    }

    /// Chooses which ready pods a repetition takes, and in what order.
    pub fn chosen<T: Clone>(&self, pods: &Pods, repetition: u32, ready: &[T]) -> Vec<T> {
        let mut chosen = ready.to_vec();
        if pods.order == Order::Random {
            self.shuffle(repetition, &mut chosen);
        }
        chosen.truncate(pods.count.of(ready.len()));
        chosen
    }

    /// Returns true if the workloads' state shows when the effects of the disruption are over.
    pub fn looks_at_workloads(&self) -> bool {
        match self.action {
            DisruptionAction::Exec { .. } => true,
            DisruptionAction::Observe { .. } => self.repeat == Repeat::Until(Until::RolloutComplete),
            _ => self.action.is_rollout(),
        }
    }

    fn random(&self, stream: u32) -> StdRng {
        StdRng::seed_from_u64(self.seed ^ (u64::from(stream) << 32))
    }

    /// Returns the same disruption for another round, counted from 0, with different random choices. `until`, if given,
    /// replaces the condition that ends the repetitions.
    pub fn in_round(&self, round: usize, until: Option<Until>) -> Self {
        // The seeds of a scenario's disruptions differ by small numbers, and a disruption's random streams differ in
        // the upper half.
        let seed = self.seed.wrapping_add((round as u64) << 16);
        Self { seed, repeat: until.map_or(self.repeat, Repeat::Until), ..self.clone() }
    }

    /// Returns the reason why the disruption cannot be repeated in another round, and the remedy; `None` if it can.
    pub fn why_once(&self) -> Option<String> {
        let name = self.action.name();
        match (&self.action, self.action.restore()) {
            (_, Some(Restore::AtTheEnd | Restore::Never)) => Some(format!(
                "a second {name} would start from the state that the first one left: add for: 10s, so that the \
                 change is undone"
            )),
            (DisruptionAction::Exec { .. }, _) => Some(
                "a program may do something else the second time: use an action such as rollingRestart"
                    .into(),
            ),
            (DisruptionAction::Observe { .. }, _) => Some(
                "others decide when and how often pods terminate: use an action that terminates them".into(),
            ),
            _ => None,
        }
    }

    /// Returns true if the load may stop once this disruption is done.
    pub(crate) fn ends_the_load(&self) -> bool {
        matches!(self.repeat, Repeat::Until(_))
            || matches!(self.action, DisruptionAction::Observe { lasts: Some(_) })
    }
}

/// Action of a disruption. `restore` is the time at which the action is undone.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the actions say what their fields are")]
pub enum DisruptionAction {
    /// Deletes pods.
    DeletePod(Pods),
    /// Evicts pods, within their budgets.
    Evict(Pods),
    /// Kills the first process in one container of each pod: the named container, or else the pod's only or first one.
    Crash { pods: Pods, container: Option<String> },
    /// Takes running pods out of their Services by changing this label or, if none is given, one by which a Service
    /// selects, until the label is restored.
    Relabel { pods: Pods, label: Option<String>, restore: Restore },
    /// Makes a workload replace all of its pods.
    RollingRestart(Workload),
    /// Changes the image of a workload's container, until the old image is restored.
    SetImage { workload: Workload, container: String, image: String, restore: Restore },
    /// Patches an object, until the change is undone.
    Patch { object: Object, patch: Patch, restore: Restore },
    /// Scales a workload, until its own number of replicas is restored.
    Scale { workload: Workload, replicas: u32, restore: Restore },
    /// Cordons a node and evicts its pods, until the node is uncordoned.
    Drain { node: String, restore: Restore },
    /// Shuts a node down, with `grace_seconds` for its pods to terminate, until the node is booted again.
    NodeShutdown { node: String, grace_seconds: u32, restore: Restore },
    /// Restarts a node's agent, while the node's containers keep running.
    RestartNodeAgent { node: String },
    /// Runs a program on this machine. `command` is the program and its arguments.
    Exec { command: Vec<String> },
    /// Watches what others do, for this long, or else until the load ends.
    Observe { lasts: Option<Duration> },
}

impl DisruptionAction {
    /// Returns true if the action makes workload controllers create new pods.
    pub const fn is_rollout(&self) -> bool {
        matches!(
            self,
            DisruptionAction::RollingRestart(_)
                | DisruptionAction::SetImage { .. }
                | DisruptionAction::Patch { .. }
                | DisruptionAction::Scale { .. }
                | DisruptionAction::NodeShutdown { .. }
                | DisruptionAction::Drain { .. }
        )
    }

    /// Returns the pods that the action selects; `None` if it does not act on selected pods.
    pub const fn pods(&self) -> Option<&Pods> {
        match self {
            DisruptionAction::DeletePod(pods)
            | DisruptionAction::Evict(pods)
            | DisruptionAction::Crash { pods, .. }
            | DisruptionAction::Relabel { pods, .. } => Some(pods),
            _ => None,
        }
    }

    /// Returns the time at which the action is undone; `None` if it need not be.
    pub const fn restore(&self) -> Option<Restore> {
        match self {
            DisruptionAction::Relabel { restore, .. }
            | DisruptionAction::SetImage { restore, .. }
            | DisruptionAction::Patch { restore, .. }
            | DisruptionAction::Scale { restore, .. }
            | DisruptionAction::Drain { restore, .. }
            | DisruptionAction::NodeShutdown { restore, .. } => Some(*restore),
            _ => None,
        }
    }

    /// Returns the workload that the action names.
    pub const fn workload(&self) -> Option<&Workload> {
        match self {
            DisruptionAction::RollingRestart(workload)
            | DisruptionAction::SetImage { workload, .. }
            | DisruptionAction::Scale { workload, .. } => Some(workload),
            _ => None,
        }
    }

    /// Returns true if the action terminates pods or may do so.
    pub const fn ends_pods(&self) -> bool {
        !matches!(
            self,
            DisruptionAction::Crash { .. }
                | DisruptionAction::Relabel { .. }
                | DisruptionAction::RestartNodeAgent { .. }
        )
    }

    /// Returns the action's name in scenario files and events.
    pub const fn name(&self) -> ActionName {
        match self {
            DisruptionAction::DeletePod(_) => ActionName::DeletePod,
            DisruptionAction::Evict(_) => ActionName::Evict,
            DisruptionAction::Crash { .. } => ActionName::Crash,
            DisruptionAction::Relabel { .. } => ActionName::Relabel,
            DisruptionAction::RollingRestart(_) => ActionName::RollingRestart,
            DisruptionAction::SetImage { .. } => ActionName::SetImage,
            DisruptionAction::Patch { .. } => ActionName::Patch,
            DisruptionAction::Scale { .. } => ActionName::Scale,
            DisruptionAction::Drain { .. } => ActionName::Drain,
            DisruptionAction::NodeShutdown { .. } => ActionName::NodeShutdown,
            DisruptionAction::RestartNodeAgent { .. } => ActionName::RestartNodeAgent,
            DisruptionAction::Exec { .. } => ActionName::Exec,
            DisruptionAction::Observe { .. } => ActionName::Observe,
        }
    }
}

/// Time at which a change is undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restore {
    /// At the end of the run.
    AtTheEnd,
    /// This long after the change was made, or when the run ends.
    After(Duration),
    /// Never.
    Never,
}

impl fmt::Display for Restore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Restore::AtTheEnd => f.write_str("and restores it at the end"),
            Restore::After(after) => write!(f, "and restores it {:.1} s later", after.as_secs_f64()),
            Restore::Never => f.write_str("and keeps the change"),
        }
    }
}

/// A choice of ready pods.
#[derive(Clone, Debug, PartialEq)]
pub struct Pods {
    /// Label selector.
    pub selector: String,
    /// Number of pods to take.
    pub count: Count,
    /// Order in which pods are taken.
    pub order: Order,
    /// Number of pods taken at the same time; `None` for all.
    pub batch: Option<usize>,
    /// Minimum time between batches.
    pub spacing: Duration,
    /// Grace period in seconds, instead of the pods' own; 0 deletes them forcibly.
    pub grace_seconds: Option<u32>,
}

/// An amount to take: a number, a share, or all.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Count {
    /// This many.
    Number(usize),
    /// This share, in (0, 1], rounded down, but at least one.
    Share(f64),
    /// All.
    All,
}

impl Count {
    /// Returns the number to take from `all`.
    pub fn of(self, all: usize) -> usize {
        match self {
            Count::Number(number) => number.min(all),
            Count::Share(share) => {
                // The largest number within the share. The tolerance keeps floating-point rounding from deciding.
                let whole = (1..=all).take_while(|n| *n as f64 <= share * all as f64 + 1e-9).last();
                whole.unwrap_or(1).min(all)
            }
            Count::All => all,
        }
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Count::Number(1) => f.write_str("1 pod"),
            Count::Number(number) => write!(f, "{number} pods"),
            Count::Share(share) => write!(f, "{} % of the pods", share * 100.0),
            Count::All => f.write_str("all pods"),
        }
    }
}

/// Order in which pods are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Order {
    /// Oldest first.
    #[default]
    Oldest,
    /// Random, drawn from the load's seed.
    Random,
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Order::Oldest => "oldest first",
            Order::Random => "in random order",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_rounds_down_to_at_least_one() {
        let quarter = Count::Share(0.25);
        let of = [0, 1, 3, 4, 8, 11].map(|all| quarter.of(all));
        assert_eq!(of, [0, 1, 1, 1, 2, 2]);
        assert_eq!((Count::Share(1.0).of(7), Count::Share(0.07).of(100)), (7, 7));
        assert_eq!((Count::Number(3).of(2), Count::All.of(5)), (2, 5));
    }

    #[test]
    fn confidence_sets_termination_count() {
        let needed = |coverage, confidence| Until::Windows { coverage, confidence }.terminations();
        let p = [0.90, 0.95, 0.99].map(|coverage| needed(coverage, 0.95));
        assert_eq!(p, [Some(29), Some(59), Some(299)]);
        assert_eq!(Until::Terminations(3).terminations(), Some(3));
    }

    #[test]
    fn random_order_follows_seed() {
        let disruption = |seed| Disruption {
            at: Duration::ZERO,
            every: Duration::ZERO,
            jitter: Duration::ZERO,
            seed,
            repeat: Repeat::Times(1),
            allow_outage: false,
            action: DisruptionAction::Observe { lasts: None },
        };
        let order = |seed, repetition| {
            let mut things: Vec<u32> = (0..20).collect();
            disruption(seed).shuffle(repetition, &mut things);
            things
        };
        assert_eq!(order(7, 0), order(7, 0));
        assert_ne!(order(7, 0), order(7, 1));
        assert_ne!(order(7, 0), order(8, 0));
    }

    #[test]
    fn each_round_draws_new_values() {
        let first = Disruption {
            at: Duration::ZERO,
            every: Duration::ZERO,
            jitter: Duration::from_secs(5),
            seed: 7,
            repeat: Repeat::Times(3),
            allow_outage: false,
            action: DisruptionAction::Observe { lasts: None },
        };
        let due =
            |round| [0, 1, 2].map(|repetition| first.in_round(round, None).due(repetition, Duration::ZERO));
        assert_eq!(first.in_round(0, None), first);
        assert_eq!(due(1), due(1), "the delay is drawn from the seed");
        assert!(due(0) != due(1) && due(1) != due(2));
    }

    #[test]
    fn jittered_repetitions_cover_consumer_period() {
        let disruption = |seed, jitter_s| Disruption {
            at: Duration::from_secs(1),
            every: Duration::from_secs(5),
            jitter: Duration::from_secs(jitter_s),
            seed,
            repeat: Repeat::Times(60),
            allow_outage: false,
            action: DisruptionAction::Observe { lasts: None },
        };
        let phases = |seed, jitter_s, period_s: u64| -> Vec<f64> {
            let disruption = disruption(seed, jitter_s);
            let due = (0..60).map(|n| disruption.due(n, Duration::from_secs(period_s)).as_secs_f64());
            due.map(|s| (s - 1.0) % 5.0).collect()
        };
        assert!(phases(3, 0, 0).iter().all(|phase| *phase == 0.0), "no delay without a period");
        let met = phases(3, 0, 5);
        for fifth in 0..5 {
            let second = f64::from(fifth)..f64::from(fifth + 1);
            let within = met.iter().filter(|phase| second.contains(phase)).count();
            assert!(within >= 4, "{within} of 60 in second {fifth}: {met:?}");
        }
        assert_eq!(met, phases(3, 0, 5), "the delay is drawn from the seed");
        assert_ne!(met, phases(4, 0, 5));
        let longer = disruption(3, 20);
        let no_clock = Duration::ZERO;
        assert_eq!(
            longer.due(7, Duration::from_secs(5)),
            longer.due(7, no_clock),
            "a jitter longer than the period is enough"
        );
    }
}
