//! Checks that the target works while no pod is terminating; otherwise terminations would have nothing to disrupt.

use crate::attribute::judged::JudgedRequest;
use crate::count::sums::RequestTotals;
use crate::model::account::Finding;
use crate::model::{Cause, OutsideCounts, RequestCounts};
use crate::timeline::Timeline;
use crate::timeline::periods::Periods;
use rolldrop_record::Outcome;

impl OutsideCounts {
    /// Counts the requests outside the `disrupted` periods of the terminations.
    pub(crate) fn of(
        timeline: &Timeline,
        part: &RequestTotals<'_>,
        judged: &[&JudgedRequest<'_>],
        disrupted: &Periods,
    ) -> Self {
        let first_end = timeline.ends.iter().map(|end| end.t0.earliest).min();
        let is_outside = |judged: &&&JudgedRequest<'_>| {
            let row = &judged.request.row;
            let is_near = disrupted.meet(row.scheduled, row.scheduled);
            // Effects of terminating all pods may last longer than their windows.
            let follows = matches!(
                judged.cause,
                Cause::NoReadyEndpoint | Cause::NotReadyYet | Cause::StaleFlow | Cause::GatewayNoServer
            ) && first_end.is_some_and(|at| at <= row.end);
            let restarting = timeline.is_restarting(judged.request.begun(), row.end);
            !is_near && !follows && !restarting && judged.candidates.is_empty()
        };
        let dropped = judged.iter().filter(is_outside).count() as u64;
        Self {
            ok: part.apart.outside_ok,
            app_errors: part.apart.outside_app_errors,
            server_errors: part.apart.outside_server_errors,
            dropped,
        }
    }

    /// Returns a finding if the target does not work.
    pub(crate) fn finding(self, requests: &RequestCounts) -> Option<Finding> {
        let failures = requests.by_outcome.iter().filter(|(outcome, _)| **outcome != Outcome::Ok);
        let most_frequent = failures.max_by_key(|(_, n)| **n).map(|(outcome, n)| (*outcome, *n));
        (!self.is_working()).then(|| Finding::NotWorking { ok: self.ok, all: self.all(), most_frequent })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn working_target_needs_90_percent_success() {
        let finding = |ok, app_errors, dropped| {
            OutsideCounts { ok, app_errors, dropped, ..OutsideCounts::default() }
                .finding(&RequestCounts::default())
        };
        assert_eq!(finding(0, 0, 0), None);
        assert_eq!(finding(90, 5, 5), None);
        let not_working = Finding::NotWorking { ok: 1789, all: 2000, most_frequent: None };
        assert_eq!(finding(1789, 200, 11), Some(not_working));
    }
}
