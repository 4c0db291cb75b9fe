//! The finding about answers of 5xx by pods that were ending.

use super::{Finding, Known, Severity, count, either};
use crate::model::finding;

/// Returns the finding; `None` if there was no such answer, or no more than in the steady part of the run.
pub(super) fn of(known: Known<'_>) -> Option<Finding> {
    let requests = known.requests;
    let reached = known.terminations.iter().map(|t| t.requests.seen).sum();
    let n = requests.errors_of_ends(reached);
    let named: u64 = known.terminations.iter().filter_map(|t| t.app_errors_after_t0).sum();
    let who = if named == n { "by pods that were ending" } else { "while pods were ending" };
    let what = format!(
        "{} of {} requests {} answered with 5xx {who}: the app closed what it needs before its listener",
        count(n),
        count(requests.total),
        either(n, "was", "were")
    );
    let why = "such an answer is the app's own, so it does not count as dropped; while no pod ended the app answered with \
               fewer or none";
    let remedy = "on SIGTERM stop accepting first, answer what is still on its way (Connection: close), and only then close \
                  databases, caches and queues";
    (n > 0).then(|| finding(Severity::Error, what, why, remedy))
}
