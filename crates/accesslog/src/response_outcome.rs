//! Outcomes of responses, as a load with default settings would judge them.

use rolldrop_record::Outcome;
use rolldrop_record::load::defaults;

use crate::LineError;
use crate::decimal::read_number;

/// Returns the outcome of a response that the upstream completed; `None` for statuses below 200, because the log does
/// not show how an upgraded connection ended.
pub(crate) fn outcome_of_complete(status: u16) -> Option<Outcome> {
    let (from, to) = defaults::SUCCESS;
    match status {
        ..200 => None,
        _ if (from..=to).contains(&status) => Some(Outcome::Ok),
        _ => Some(Outcome::HttpError),
    }
}

/// Returns the outcome of a response whose end the log does not show. It is certain only if the status is an error.
pub(crate) fn outcome_of_begun(status: u16) -> Option<Outcome> {
    outcome_of_complete(status).filter(|outcome| *outcome == Outcome::HttpError)
}

/// Returns the status of a response; `None` if the number means that there was no response, such as 0 or nginx's 499.
pub(crate) fn sent_status(status: u16) -> Option<u16> {
    (status >= 100 && !matches!(status, 444 | 499)).then_some(status)
}

/// Parses a status of at most three digits.
pub(crate) fn read_status(text: &str, field: &'static str) -> Result<u16, LineError> {
    read_number(text).filter(|status| *status < 1000).ok_or(LineError::Field(field))
}
