//! Request counts by class, taken from the load generator's counters before any analysis.

use std::collections::BTreeMap;

use rolldrop_drive::run::FinishedRequests;
use rolldrop_explain::OutcomeClass;
use rolldrop_load::{ErrorStatuses, OutcomeCounts, Progress};
use rolldrop_record::Outcome;

/// Request counts by [`OutcomeClass`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ByClass {
    /// Answered as expected.
    pub ok: u64,
    /// Lost.
    pub dropped: u64,
    /// Answered by the app with an error.
    pub app_errors: u64,
    /// Scheduled but not sent.
    pub not_sent: u64,
    /// Cut off at the end of the load.
    pub cancelled: u64,
}

impl ByClass {
    /// Adds up the counts by class.
    pub fn of(outcomes: &OutcomeCounts, errors: &ErrorStatuses) -> Self {
        let mut all = Self::default();
        for (class, _, count) in classified(outcomes, errors) {
            *all.counter(class) += count;
        }
        all
    }

    /// Returns the number of dropped requests by outcome; error responses are counted by HTTP or gRPC status.
    pub fn dropped(outcomes: &OutcomeCounts, errors: &ErrorStatuses) -> BTreeMap<String, u64> {
        let dropped = classified(outcomes, errors).filter(|(class, ..)| *class == OutcomeClass::Dropped);
        dropped.map(|(_, name, count)| (name, count)).collect()
    }

    /// Counts a load's finished requests so that the load can be stopped when too many are dropped.
    pub fn ended_of(progress: &Progress) -> FinishedRequests {
        let counted = Self::of(&progress.outcomes, &progress.error_statuses);
        FinishedRequests { all: counted.ended(), dropped: counted.dropped }
    }

    /// Returns the number of requests with a result for the user, excluding unsent and cut-off ones.
    pub fn ended(&self) -> u64 {
        self.ok + self.dropped + self.app_errors
    }

    fn counter(&mut self, class: OutcomeClass) -> &mut u64 {
        match class {
            OutcomeClass::Ok => &mut self.ok,
            OutcomeClass::Dropped => &mut self.dropped,
            OutcomeClass::AppError => &mut self.app_errors,
            OutcomeClass::NotSent => &mut self.not_sent,
            OutcomeClass::Cancelled => &mut self.cancelled,
        }
    }
}

/// Returns the counts with their classes, by outcome. The response status determines the class of an `http_error`.
fn classified(
    outcomes: &OutcomeCounts,
    errors: &ErrorStatuses,
) -> impl Iterator<Item = (OutcomeClass, String, u64)> {
    let with_status: u64 = errors.http.values().chain(errors.grpc.values()).sum();
    let others = outcomes.iter().map(move |(outcome, count)| {
        let has_own = if outcome == Outcome::HttpError { with_status } else { 0 };
        (OutcomeClass::of_answer(outcome, None, None), outcome.to_string(), count.saturating_sub(has_own))
    });
    let of_error = |status, grpc| OutcomeClass::of_answer(Outcome::HttpError, status, grpc);
    let http = errors.http.iter();
    let http = http.map(move |(status, n)| (of_error(Some(*status), None), format!("status {status}"), *n));
    let grpc = errors.grpc.iter();
    let grpc =
        grpc.map(move |(status, n)| (of_error(None, Some(*status)), format!("gRPC status {status}"), *n));
    others.chain(http).chain(grpc)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn app_errors_are_not_drops() {
        let mut progress = Progress::default();
        progress.outcomes.add(Outcome::Ok, 1600);
        progress.outcomes.add(Outcome::ConnectRefused, 64);
        progress.outcomes.add(Outcome::HttpError, 420);
        progress.outcomes.add(Outcome::NotSent, 1000);
        progress.error_statuses.http = BTreeMap::from([(500, 400), (503, 20)]);
        assert_eq!(ByClass::ended_of(&progress), FinishedRequests { all: 2084, dropped: 84 });
    }
}
