//! Finding about 5xx responses from terminating pods.

use super::{Finding, FindingsInput};

/// Returns the finding; `None` if there were no such responses, or no more than in the steady part of the run.
pub(super) fn of(known: FindingsInput<'_>) -> Option<Finding> {
    let reached = known.terminations.iter().map(|t| t.requests.seen).sum();
    let answers = known.requests.errors_of_ends(reached);
    let named: u64 = known.terminations.iter().filter_map(|t| t.app_errors_after_t0).sum();
    let (requests, are_all_named) = (known.requests.total, named == answers);
    (answers > 0).then_some(Finding::EndingErrors { answers, requests, are_all_named })
}
