//! Judges settings by a run: counts its units and collects the longest windows.
//!
//! A proof is valid for the mode in which it ran, and requires that nothing is lost that a sleep could have saved. It
//! does not require pod names.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{EndedStreams, for_a_sleep};
use rolldrop_explain::math::stats;
use rolldrop_explain::model::{Mode, RunResult, Termination, Verdict, Window, WindowBasis};

/// Unit in which a run's coverage is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CoverageUnit {
    /// Pods that ended in rollouts and certainly left the rules separately.
    Ends,
    /// Rollouts, if it is unknown which of their pods left the rules separately.
    Rollouts,
    /// Deletions of pods, one at a time. They prove nothing about rollouts.
    Deletions,
}

/// Unit in which a run's coverage is counted, and the number of units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Units {
    /// Unit that is counted.
    pub unit: CoverageUnit,
    /// Number of units.
    pub number: usize,
    /// Number of rollouts, regardless of the unit.
    pub rollouts: usize,
}

impl Units {
    /// Counts the units of a run. The unit is [`CoverageUnit::Ends`] if the windows show at least as many separate ends
    /// as there were rollouts.
    pub fn of(result: &RunResult) -> Self {
        let apart = |is_counted: fn(Mode) -> bool| {
            let counted = result.recommendation.iter().filter(|rec| is_counted(rec.mode));
            counted.map(|rec| rec.units).max().unwrap_or(0)
        };
        let in_rollouts = result.terminations.iter().filter(|t| t.mode == Mode::Rollout);
        let rollouts: BTreeSet<_> = in_rollouts.map(|t| (t.disruption, t.repetition)).collect();
        if rollouts.is_empty() {
            let alone = result.terminations.iter().filter(|t| t.mode == Mode::Isolated).count();
            let number = alone.max(apart(|_| true));
            return Self { unit: CoverageUnit::Deletions, number, rollouts: 0 };
        }
        let (ends, rollouts) = (apart(|mode| mode == Mode::Rollout), rollouts.len());
        let unit = if ends >= rollouts { CoverageUnit::Ends } else { CoverageUnit::Rollouts };
        Self { unit, number: ends.max(rollouts), rollouts }
    }

    /// Returns how many further pods must end to yield `missing` further units, at the rate of the `ended` ones. A few
    /// terminations show that rate only roughly, so the result is at most `ended`, unless `missing` is larger.
    pub fn ends_for(self, missing: usize, ended: usize) -> usize {
        let each = ended.div_ceil(self.number.max(1)).max(1);
        (missing * each).min(ended.max(missing))
    }
}

/// Longest windows seen in one or more runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LongestWindows {
    /// Number of windows of single pods.
    pub windows: usize,
    /// Number of windows that have an upper bound.
    pub bounded: usize,
    /// Largest lower bound of a pod's or a group's window, in seconds.
    pub longest_lower_seconds: Option<f64>,
    /// Largest upper bound, in seconds.
    pub longest_upper_seconds: Option<f64>,
}

impl LongestWindows {
    /// Collects a run's windows: those in rollouts or, if there were no rollouts, those in all modes.
    pub fn of(result: &RunResult) -> Self {
        let has_rollouts = result.terminations.iter().any(|t| t.mode == Mode::Rollout);
        let counts = |t: &Termination| !has_rollouts || t.mode == Mode::Rollout;
        // If pods are not known by name, a sleeping pod is known to have left the rules only once it has ended.
        let has_lost = for_a_sleep(result) > 0;
        let tells = |t: &Termination, window: &Window| {
            let by_balance =
                matches!(window.upper_basis, Some(WindowBasis::Balance | WindowBasis::BalanceAssumed));
            let slept_s = t.pre_stop_seconds.unwrap_or(0) as f64;
            has_lost || !by_balance || slept_s == 0.0 || window.upper_s < Some(slept_s)
        };
        let windows = || {
            let counted = result.terminations.iter().filter(|t| counts(t));
            counted.flat_map(|t| t.windows.iter().filter(|window| tells(t, window)))
        };
        let of_groups = result.groups.iter().filter(|group| {
            group.terminations.iter().any(|index| result.terminations.get(*index).is_some_and(counts))
        });
        let of_groups = of_groups.flat_map(|group| &group.windows).filter_map(|window| window.lower_s);
        Self {
            windows: windows().count(),
            bounded: windows().filter(|window| window.upper_s.is_some()).count(),
            longest_lower_seconds: windows()
                .filter_map(|window| window.lower_s)
                .chain(of_groups)
                .reduce(f64::max),
            longest_upper_seconds: windows().filter_map(|window| window.upper_s).reduce(f64::max),
        }
    }

    /// Combines the windows of two runs.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let longer = |a: Option<f64>, b: Option<f64>| [a, b].into_iter().flatten().reduce(f64::max);
        Self {
            windows: self.windows + other.windows,
            bounded: self.bounded + other.bounded,
            longest_lower_seconds: longer(self.longest_lower_seconds, other.longest_lower_seconds),
            longest_upper_seconds: longer(self.longest_upper_seconds, other.longest_upper_seconds),
        }
    }

    /// Returns the shortest sleep, in whole seconds, that covers all bounded windows; `None` if there are none.
    pub fn covers_s(&self) -> Option<u64> {
        self.longest_upper_seconds.map(|upper_s| stats::covering_sleep(upper_s, self.longest_lower_seconds))
    }

    /// Returns the shortest sleep, in whole seconds, that no window is known to have outlasted.
    pub fn least_s(&self) -> u64 {
        stats::ceil_seconds(self.longest_lower_seconds.unwrap_or(0.0))
    }
}

/// Result of a proof.
#[derive(Clone, Debug, PartialEq)]
pub enum Proof {
    /// The settings suffice: nothing was lost that a sleep could have saved.
    Holds,
    /// Requests were lost that a sleep could have saved, or a window outlasted the sleep.
    TooShort {
        /// Number of lost requests.
        lost: u64,
        /// Shortest sleep that covers the lower bounds of the run's windows, in seconds; `None` if they are no longer
        /// than the sleep.
        at_least: Option<u64>,
    },
    /// No request was lost that a sleep could have saved, but more streams were cut than the prediction allows.
    CutsStreams {
        /// Streams of the pods that ended.
        seen: EndedStreams,
        /// Largest number of cut streams that the prediction allows.
        most: u64,
    },
    /// The run shows none of the above.
    Unknown(Unproven),
}

/// Reason why a run proves nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unproven {
    /// The run is invalid or partial, for these reasons.
    Untrusted(Vec<String>),
    /// No pod ended.
    NoEnd,
    /// Too few units were seen.
    FewUnits {
        /// Units that were seen.
        seen: Units,
        /// Required number of units.
        needed: usize,
    },
}

/// Judges a run with a sleep of `sleep_s` seconds. It requires `needed` units, including the units `before` from
/// interrupted parts of the proof. Even an interrupted run can show that a sleep is too short.
pub fn proof(result: &RunResult, sleep_s: u64, needed: usize, before: Option<Units>) -> Proof {
    if let Verdict::Invalid { why } = &result.verdict {
        return Proof::Unknown(Unproven::Untrusted(why.clone()));
    }
    if let Some((lost, at_least)) = refuted(result, sleep_s) {
        return Proof::TooShort { lost, at_least };
    }
    if let Verdict::Partial { why } = &result.verdict {
        return Proof::Unknown(Unproven::Untrusted(why.clone()));
    }
    if result.terminations.is_empty() {
        return Proof::Unknown(Unproven::NoEnd);
    }
    let own = Units::of(result);
    let seen = before.map_or(own, |before| before.and(own));
    if seen.number < needed {
        return Proof::Unknown(Unproven::FewUnits { seen, needed });
    }
    Proof::Holds
}

/// Returns evidence that a sleep of `sleep_s` seconds is too short, regardless of the number of units: the number of
/// lost requests, and the shortest sleep that covers the windows' lower bounds, if it is longer. Returns `None` if
/// there is no such evidence.
pub fn refuted(result: &RunResult, sleep_s: u64) -> Option<(u64, Option<u64>)> {
    let at_least = Some(LongestWindows::of(result).least_s()).filter(|least_s| *least_s > sleep_s);
    let lost = for_a_sleep(result);
    (lost > 0 || at_least.is_some()).then_some((lost, at_least))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn units(number: usize) -> Units {
        Units { unit: CoverageUnit::Ends, number, rollouts: 1 }
    }

    #[test]
    fn simultaneous_terminations_raise_number_of_pods_needed() {
        assert_eq!(units(0).ends_for(29, 0), 29, "nothing is known yet");
        assert_eq!(units(20).ends_for(9, 20), 9);
        assert_eq!(units(16).ends_for(20, 100), 100, "at most as many as have ended");
        assert_eq!(units(34).ends_for(2, 260), 16);
        assert_eq!(units(29).ends_for(0, 30), 0);
    }

    #[test]
    fn simultaneous_terminations_need_few_rounds() {
        let (needed, mut ended) = (59, 10);
        let rounds = std::iter::from_fn(|| {
            let number = ended / 10;
            let more = units(number).ends_for(needed - needed.min(number), ended);
            ended += more.next_multiple_of(10);
            (more > 0).then_some(())
        });
        assert!(rounds.count() < 9);
    }
}
