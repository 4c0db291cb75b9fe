//! Checks on how pods ended: with SIGKILL when their grace period expired, or with a failed preStop hook.

use crate::judgements::basis::{Basis, FigureDoubt, Measured};
use rolldrop_explain::model::{Termination, Unit};

/// Number of pods to which something happened, and number of pods for which this is unknown.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PodTally {
    pub(super) happened: u64,
    pub(super) unknown: u64,
}

impl PodTally {
    pub(super) fn add(&mut self, happened: Option<bool>) {
        self.happened += u64::from(happened == Some(true));
        self.unknown += u64::from(happened.is_none());
    }

    /// Returns the number of pods. `doubt` describes what is unknown about some of them; `unwatched` is set if pods may
    /// be missing.
    pub(super) fn measured(self, doubt: fn(u64) -> FigureDoubt, unwatched: Option<FigureDoubt>) -> Measured {
        let doubts: Vec<FigureDoubt> =
            (self.unknown > 0).then(|| doubt(self.unknown)).into_iter().chain(unwatched.clone()).collect();
        let least = self.happened as f64;
        let most = unwatched.is_none().then(|| (self.happened + self.unknown) as f64);
        let measured = Measured::between(Unit::Count, Some(least), Some(least), most);
        if doubts.is_empty() { measured } else { measured.because(Basis::Open(doubts)) }
    }
}

/// Counts the pods killed by SIGKILL when their grace period expired.
pub(super) fn killed(terminations: &[Termination]) -> Measured {
    tally(terminations, |end| end.killed_at_grace_end).measured(FigureDoubt::KilledUnknown, None)
}

/// Counts the pods with a failed preStop hook.
pub(super) fn failed_hooks(terminations: &[Termination]) -> Measured {
    let has_failed = |end: &Termination| end.failed_hooks.as_ref().map(|failed| !failed.is_empty());
    tally(terminations, has_failed).measured(FigureDoubt::HooksUnknown, None)
}

fn tally(terminations: &[Termination], happened: impl Fn(&Termination) -> Option<bool>) -> PodTally {
    let mut tally = PodTally::default();
    terminations.iter().for_each(|end| tally.add(happened(end)));
    tally
}
