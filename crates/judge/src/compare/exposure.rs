//! Units over which a figure counts events. Values of different runs are comparable only per unit.

use super::Sample;

/// Units over which a figure counts events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exposure {
    Terminations,
    Requests,
    /// The figure is no count of events: each run counts once.
    Runs,
}

impl Exposure {
    /// Returns the units of lost requests: terminations if pods ended in every run, otherwise requests. All runs that
    /// are compared share one unit.
    pub(super) fn of_losses<'a>(runs: impl IntoIterator<Item = &'a Sample>) -> Self {
        let ended = runs.into_iter().all(|run| !run.terminations.is_empty());
        if ended { Self::Terminations } else { Self::Requests }
    }

    /// Returns the number of units in a run, at least 1.
    pub(super) fn units(self, run: &Sample) -> f64 {
        let n = match self {
            Self::Terminations => run.terminations.len() as f64,
            Self::Requests => run.total as f64,
            Self::Runs => 1.0,
        };
        n.max(1.0)
    }

    /// Returns the number of units in a side's runs.
    pub(super) fn units_of_all(self, runs: &[Sample]) -> f64 {
        runs.iter().map(|run| self.units(run)).sum()
    }
}
