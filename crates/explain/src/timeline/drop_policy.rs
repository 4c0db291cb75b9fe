//! Policy for counting requests as dropped.

use rolldrop_record::outcome::is_gateway_status;
use rolldrop_record::retry::GRPC_UNAVAILABLE;
use rolldrop_record::{Outcome, RequestRow};

/// Class of a request's outcome, as seen by its user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutcomeClass {
    /// Answered with success.
    Ok,
    /// Lost because of infrastructure.
    Dropped,
    /// Answered by the app with its own error.
    AppError,
    /// Not sent because of the load generator.
    NotSent,
    /// Cut off when the run ended.
    Cancelled,
}

impl OutcomeClass {
    /// Returns the class of one row.
    pub fn of(row: &RequestRow) -> Self {
        Self::of_answer(row.outcome, row.status, row.grpc_status)
    }

    /// Returns true if all or some requests with this outcome count as dropped.
    pub fn may_be_dropped(outcome: Outcome) -> bool {
        matches!(Self::of_answer(outcome, None, None), Self::Dropped | Self::AppError)
    }

    /// Returns the class from the relevant parts of a row.
    pub fn of_answer(outcome: Outcome, status: Option<u16>, grpc_status: Option<i32>) -> Self {
        let unavailable = grpc_status == Some(GRPC_UNAVAILABLE);
        match outcome {
            Outcome::Ok if unavailable => Self::Dropped,
            Outcome::Ok => Self::Ok,
            Outcome::HttpError if unavailable || status.is_some_and(is_gateway_status) => Self::Dropped,
            Outcome::HttpError => Self::AppError,
            Outcome::NotSent => Self::NotSent,
            Outcome::Cancelled => Self::Cancelled,
            _ => Self::Dropped,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rolldrop_record::retry::is_retried;
    use rolldrop_record::{Phase, Stamp};

    #[test]
    fn drop_policy_matches_client_retries() {
        let answers = [
            (None, None),
            (Some(404), None),
            (Some(500), None),
            (Some(502), None),
            (Some(503), None),
            (Some(504), None),
            (Some(200), Some(5)),
            (Some(200), Some(GRPC_UNAVAILABLE)),
        ];
        let at = Stamp::from_unix_ns(0);
        for outcome in Outcome::ALL {
            for (status, grpc_status) in answers {
                let row = RequestRow {
                    outcome: *outcome,
                    status,
                    grpc_status,
                    ..RequestRow::not_sent("load-0".into(), 0, "web".into(), Phase::Main, at, at)
                };
                // Clients do not retry a request if only the response trailer reports that the server is unavailable.
                let is_dropped = OutcomeClass::of(&row) == OutcomeClass::Dropped && *outcome != Outcome::Ok;
                assert_eq!(is_dropped, is_retried("GET", &row), "{outcome} {status:?} {grpc_status:?}");
            }
        }
    }
}
