//! App errors caused by the end of pods: answers of 5xx by pods after their t0. No policy calls them dropped, as an app
//! may also answer so while it is well; so they are counted apart, and compared with the steady part of the run.

use crate::attribute::suspects::Explanations;
use crate::math::stats;
use crate::model::RequestCounts;
use crate::timeline::drop_policy::Class;
use crate::timeline::{Request, Timeline};
use rolldrop_record::{Phase, RequestRow};

/// gRPC's codes for faults of the server: UNKNOWN and INTERNAL.
const GRPC_FAULTS: [i32; 2] = [2, 13];
/// The steady part of a run explains a number of errors if it would give at least that many with this probability.
const STEADY_ALPHA: f64 = 0.01;

/// Returns true if the app answered with its own error, and blamed nobody else.
pub(crate) fn is_server_error(row: &RequestRow) -> bool {
    let is_fault = match row.grpc_status {
        Some(code) => GRPC_FAULTS.contains(&code),
        None => row.status.is_some_and(|status| status >= 500),
    };
    is_fault && Class::of(row) == Class::AppError
}

/// An error while a pod was ending.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EndingError {
    /// Number of its target.
    pub target: Option<usize>,
    /// Its termination, if something names the pod.
    pub termination: Option<usize>,
}

/// Collects the errors of the counted part. `explanations` are those of `others`.
pub(crate) fn errors(
    timeline: &Timeline,
    others: &[Request],
    explanations: &[Explanations],
) -> Vec<EndingError> {
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
        Some(EndingError { target: timeline.target_of(&r.row), termination })
    };
    counted.filter_map(error).collect()
}

impl RequestCounts {
    /// Returns the number of errors of pods that were ending; 0 if the app answers as many while it is well. `reached`
    /// is the number of requests that ending pods answered; `None` if that is not known.
    pub fn errors_of_ends(&self, reached: Option<u64>) -> u64 {
        let (errors, outside) = (self.app_errors_while_ending, self.outside_terminations);
        let near = self.total.saturating_sub(outside.all());
        let among = reached.unwrap_or(near).max(errors);
        let steady = stats::share_upper(outside.server_errors, outside.all(), 1.0 - STEADY_ALPHA);
        // A lower bound beyond what the steady part may have.
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
    fn steady_errors_excuse_ending_errors() {
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
        assert_eq!(counts(1, 0).errors_of_ends(Some(1000)), 1, "there was none");
        assert_eq!(counts(12, 20).errors_of_ends(Some(1000)), 0, "1 % are the app's own");
        assert_eq!(counts(60, 20).errors_of_ends(Some(1000)), 60);
        assert_eq!(counts(60, 20).errors_of_ends(Some(60)), 60);
        assert_eq!(counts(12, 20).errors_of_ends(None), 0);
    }
}
