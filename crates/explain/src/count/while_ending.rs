//! App errors caused by pod termination: 5xx responses from pods after their t0. The drop policy does not count them as
//! dropped, as an app may also return them while it is healthy; so they are counted separately and compared with the
//! steady part of the run.

use crate::attribute::suspects::Explanations;
use crate::math::stats;
use crate::model::RequestCounts;
use crate::timeline::drop_policy::OutcomeClass;
use crate::timeline::{Request, Timeline};
use rolldrop_record::{Phase, RequestRow};

/// gRPC codes for server faults: UNKNOWN and INTERNAL.
const GRPC_FAULTS: [i32; 2] = [2, 13];
/// The steady part of a run explains a number of errors if it would produce at least that many with this probability.
const STEADY_ALPHA: f64 = 0.01;

/// Returns true if the app responded with an error of its own, rather than one it attributes to something else.
pub(crate) fn is_server_error(row: &RequestRow) -> bool {
    let is_fault = match row.grpc_status {
        Some(code) => GRPC_FAULTS.contains(&code),
        None => row.status.is_some_and(|status| status >= 500),
    };
    is_fault && OutcomeClass::of(row) == OutcomeClass::AppError
}

/// App error while a pod was terminating.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ErrorWhileEnding {
    /// Index of the request's target.
    pub target: Option<usize>,
    /// Index of the termination, if something identifies the pod.
    pub termination: Option<usize>,
}

/// Collects the errors in the counted part. `explanations` belong to `others`.
pub(crate) fn errors(
    timeline: &Timeline,
    others: &[Request],
    explanations: &[Explanations],
) -> Vec<ErrorWhileEnding> {
    let counted = others
        .iter()
        .zip(explanations)
        .filter(|(r, _)| r.row.phase == Phase::Main && is_server_error(&r.row));
    let error = |(r, explained): (&Request, &Explanations)| {
        let answered = r.row.end.shifted_ns(-r.uncertainty_ns);
        let is_after_t0 = |e: &usize| timeline.ends[*e].t0.latest <= answered;
        let termination = match &explained.pod {
            Some(_) => Some(explained.candidates.first().map(|c| c.termination).filter(is_after_t0)?),
            None => {
                let is_there = |e: &usize| timeline.ends[*e].gone().is_none_or(|gone| r.begun() <= gone);
                (0..timeline.ends.len()).find(|e| is_after_t0(e) && is_there(e))?;
                None
            }
        };
        Some(ErrorWhileEnding { target: timeline.target_of(&r.row), termination })
    };
    counted.filter_map(error).collect()
}

impl RequestCounts {
    /// Returns the number of errors from terminating pods, or 0 if the app returns as many while it is healthy.
    /// `reached` is the number of requests that reached terminating pods; `None` if unknown.
    pub fn errors_of_ends(&self, reached: Option<u64>) -> u64 {
        let (errors, outside) = (self.app_errors_while_ending, self.outside_terminations);
        let near = self.total.saturating_sub(outside.all());
        let among = reached.unwrap_or(near).max(errors);
        let steady = stats::share_upper(outside.server_errors, outside.all(), 1.0 - STEADY_ALPHA);
        // The lower bound must exceed the share in the steady part.
        let is_beyond =
            outside.server_errors == 0 || stats::share_lower(errors, among, 1.0 - STEADY_ALPHA) > steady;
        if is_beyond { errors } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::OutsideCounts;

    #[test]
    fn errors_while_terminating_must_exceed_steady_rate() {
        let counts = |errors, server_errors| RequestCounts {
            total: 3000,
            app_errors_while_ending: errors,
            outside_terminations: OutsideCounts {
                ok: 2000,
                app_errors: server_errors,
                server_errors,
                dropped: 0,
            },
            ..RequestCounts::default()
        };
        assert_eq!(counts(625, 0).errors_of_ends(Some(1000)), 625);
        assert_eq!(counts(1, 0).errors_of_ends(Some(1000)), 1, "none outside");
        assert_eq!(counts(12, 20).errors_of_ends(Some(1000)), 0, "1 % is the app's own");
        assert_eq!(counts(60, 20).errors_of_ends(Some(1000)), 60);
        assert_eq!(counts(60, 20).errors_of_ends(Some(60)), 60);
        assert_eq!(counts(12, 20).errors_of_ends(None), 0);
    }
}
