//! Combines the parts of a proof that was interrupted and continued in another run.

use super::{CoverageUnit, PodSettings, Purpose, TuningStep, Units};
use rolldrop_explain::math::stats;
use rolldrop_explain::model::Verdict;

/// Returns the interrupted runs that tried to prove these settings and lost nothing that a sleep might have saved.
pub fn parts(steps: &[TuningStep], settings: PodSettings) -> impl Iterator<Item = &TuningStep> {
    steps.iter().filter(move |step| {
        step.purpose == Purpose::Proof
            && step.settings == settings
            && matches!(step.verdict, Verdict::Partial { .. })
            && step.lost_for_a_sleep + step.unclear() == 0
    })
}

impl Units {
    /// Returns the units of a step.
    pub const fn of_step(step: &TuningStep) -> Self {
        Self { unit: step.unit, number: step.units, rollouts: step.rollouts }
    }

    /// Adds up the units of interrupted parts; `None` if there are no parts.
    pub fn of_parts<'a>(parts: impl Iterator<Item = &'a TuningStep>) -> Option<Self> {
        parts.map(|part| Self::of_step(part).ended()).reduce(Self::and)
    }

    /// Returns the units that were certainly complete before an interruption, leaving out the last rollout or deletion,
    /// which the interruption may have cut short.
    fn ended(self) -> Self {
        match self.unit {
            CoverageUnit::Deletions => Self { number: self.number.saturating_sub(1), ..self },
            CoverageUnit::Ends | CoverageUnit::Rollouts => {
                let rollouts = self.rollouts.saturating_sub(1);
                Self { rollouts, number: self.number * rollouts / self.rollouts.max(1), ..self }
            }
        }
    }

    /// Adds two numbers of units. If the units differ, the sum counts rollouts.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let rollouts = self.rollouts + other.rollouts;
        match self.unit == other.unit {
            true => Self { unit: self.unit, number: self.number + other.number, rollouts },
            false => Self { unit: CoverageUnit::Rollouts, number: rollouts, rollouts },
        }
    }
}

impl TuningStep {
    /// Returns this proof with its earlier, interrupted parts added.
    #[must_use]
    pub fn with_parts(&self, parts: &[&Self]) -> Self {
        let mut all = self.clone();
        let own = Units::of_step(self);
        let units = Units::of_parts(parts.iter().copied()).map_or(own, |earlier| earlier.and(own));
        (all.unit, all.units, all.rollouts) = (units.unit, units.number, units.rollouts);
        all.coverage = stats::wilks_coverage(units.number, self.confidence);
        for part in parts {
            all.terminations += part.terminations;
            all.requests += part.requests;
            all.lost += part.lost;
            if let (Some(streams), Some(more)) = (&mut all.streams, part.streams) {
                *streams += more;
            }
        }
        all
    }
}
