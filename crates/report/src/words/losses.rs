//! What was lost, and by whom: counts, intervals and groups in words.

use std::collections::BTreeMap;

use super::{by_count, short_pod};
use crate::format::{self, count, counted, either, len, list, seconds_unit};
use rolldrop_analysis::Class;
use rolldrop_analysis::model::{Bounded, RequestCounts, RunResult, Termination};
use rolldrop_record::{Cause, Outcome};

/// Where the dropped requests fell, if any were. What is attributed by time falls into a window by construction,
/// so that is not said of it.
pub(in super::super) fn whereabouts(result: &RunResult) -> Option<String> {
    let RequestCounts { in_window, outside_window, in_flight, by_time, ambiguous, stale_flow_own, .. } =
        result.requests;
    let named = in_window.saturating_sub(in_flight + by_time);
    let outside = outside_window.saturating_sub(stale_flow_own);
    let several = match ambiguous {
        0 => String::new(),
        n => format!(" ({} fit several of them)", count(n)),
    };
    let parts: Vec<(u64, String)> = [
        (named, format!("fell into {}", whose_windows(result, named))),
        (
            by_time,
            format!("{} pods that were ending{several}, by time and outcome", either(by_time, "fits", "fit")),
        ),
        (in_flight, format!("{} in flight when the deletion took effect", either(in_flight, "was", "were"))),
        (outside, "fell outside every endpoint-propagation window".to_owned()),
    ]
    .into_iter()
    .filter(|(n, _)| *n > 0)
    .collect();
    match &parts[..] {
        [] => None,
        [(1, what)] => Some(format!("It {what}.")),
        [(n, what)] => Some(format!("All {} {what}.", count(*n))),
        _ => {
            let parts: Vec<String> = parts.iter().map(|(n, what)| format!("{} {what}", count(*n))).collect();
            Some(format!("{}.", list(&parts)))
        }
    }
}

/// Whose windows those requests fell into of which the pod is known.
fn whose_windows(result: &RunResult, named: u64) -> String {
    let hit = result.terminations.iter().filter(|t| t.requests.dropped.at_least > 0).count();
    match (hit, result.terminations.len()) {
        _ if named < result.requests.lost() => "the endpoint-propagation windows of their pods".to_owned(),
        (1, _) => "the endpoint-propagation window of one terminating pod".to_owned(),
        (n, of) if n == of => format!("the endpoint-propagation windows of the {n} pods"),
        (n, of) => format!("the endpoint-propagation windows of {n} of the {of} pods"),
    }
}

/// What each group of terminations that share lost requests lost together: a sentence each.
pub(in super::super) fn groups(result: &RunResult) -> Vec<String> {
    let shared = result.groups.iter().filter(|group| group.terminations.len() > 1);
    shared
        .map(|group| {
            let names: Vec<&str> = group
                .terminations
                .iter()
                .filter_map(|&e| Some(short_pod(&result.terminations.get(e)?.pod)))
                .collect();
            let whom = match &names[..] {
                [.., _, _, _, _] => {
                    format!(
                        "{} ({}, … {})",
                        counted(len(names.len()), "pod"),
                        names[0],
                        names[names.len() - 1]
                    )
                }
                few => list(few),
            };
            let lasted = group.windows.iter().filter_map(|w| w.lower_s).reduce(f64::max);
            let lasted = lasted.map_or_else(String::new, |s| {
                format!("; at least one of their windows lasted {}", seconds_unit(s))
            });
            format!("{whom} together dropped {}{lasted}", counted(group.dropped, "request"))
        })
        .collect()
}

/// The entries of a map of counts between limits, most first, by their best estimates.
pub(in super::super) fn by_estimate<K: Copy + Ord>(counts: &BTreeMap<K, Bounded>) -> Vec<(K, Bounded)> {
    let mut entries: Vec<(K, Bounded)> = counts.iter().map(|(&k, &n)| (k, n)).collect();
    entries.sort_by(|a, b| b.1.estimate.total_cmp(&a.1.estimate).then(a.0.cmp(&b.0)));
    entries
}

/// What a termination dropped, of the requests that are known to have reached its pod.
pub(in super::super) fn dropped_of(termination: &Termination) -> String {
    let requests = &termination.requests;
    match requests.seen {
        Some(seen) if requests.dropped.is_exact() => {
            format!("{} of {}", count(requests.dropped.at_most), count(seen))
        }
        _ => format::bounded(&requests.dropped),
    }
}

/// The terminations that may have lost most come first, and stay in the order of time among equals.
pub(in super::super) fn most_lost_first(a: &Termination, b: &Termination) -> std::cmp::Ordering {
    b.requests.dropped.estimate.total_cmp(&a.requests.dropped.estimate)
}

/// The dropped requests of all terminations and of none, by outcome.
///
/// `by_outcome` of the counts holds every row. The app's own errors are among those of `http_error`, and the rest of
/// these was dropped. The generator's own stale flows do not count.
pub(in super::super) fn dropped_by_outcome(requests: &RequestCounts) -> Vec<(Outcome, u64)> {
    let mut counts = requests.by_outcome.clone();
    counts.retain(|outcome, _| Class::may_be_dropped(*outcome));
    if let Some(n) = counts.get_mut(&Outcome::HttpError) {
        *n = n.saturating_sub(requests.app_errors);
    }
    for (outcome, own) in &requests.stale_flow_own_by_outcome {
        if let Some(n) = counts.get_mut(outcome) {
            *n = n.saturating_sub(*own);
        }
    }
    by_count(&counts)
}

/// The dropped requests by cause, most first, without the generator's own stale flows.
pub(in super::super) fn dropped_by_cause(requests: &RequestCounts) -> Vec<(Cause, u64)> {
    let mut counts = requests.by_cause.clone();
    if let Some(n) = counts.get_mut(&Cause::StaleFlow) {
        *n = n.saturating_sub(requests.stale_flow_own);
    }
    by_count(&counts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::headline;
    use rolldrop_analysis::model::{GroupWindow, LossGroup};

    #[test]
    fn what_several_windows_explain_is_said_to_be_so() {
        let mut result = crate::samples::naive_exit().result;
        (result.requests.by_time, result.requests.in_flight, result.requests.ambiguous) = (9, 3, 7);
        assert_eq!(
            whereabouts(&result).unwrap(),
            "12 fell into the endpoint-propagation windows of their pods, 9 fit pods that were ending (7 fit several of \
             them), by time and outcome and 3 were in flight when the deletion took effect."
        );
        (result.requests.by_time, result.requests.in_flight, result.requests.ambiguous) = (24, 0, 0);
        assert_eq!(
            whereabouts(&result).unwrap(),
            "All 24 fit pods that were ending, by time and outcome.",
            "that they fell into windows is so by construction"
        );
        let lower_s = Some(0.118);
        let windows = vec![GroupWindow { consumer: "web".into(), lower_s }];
        result.groups = vec![LossGroup {
            terminations: vec![0, 2],
            dropped: 15,
            by_outcome: BTreeMap::new(),
            by_cause: BTreeMap::new(),
            windows,
        }];
        let said = groups(&result);
        assert_eq!(
            said,
            ["2xkqp and vc4hd together dropped 15 requests; at least one of their windows lasted 0.118 s"]
        );
    }

    #[test]
    fn the_generators_own_stale_flows_are_in_no_headline() {
        let mut result = crate::samples::naive_exit().result;
        let requests = &mut result.requests;
        requests.stale_flow_own = 4;
        requests.stale_flow_own_by_outcome.insert(Outcome::ConnectRefused, 4);
        requests.by_cause.insert(Cause::StaleFlow, 4);
        assert_eq!(headline(&result), "20 of 9,000 requests were dropped as 3 pods ended.");
        assert_eq!(dropped_by_outcome(&result.requests), [(Outcome::ConnectRefused, 20)]);
        assert_eq!(dropped_by_cause(&result.requests), [(Cause::RoutedToDeadPod, 24)]);
    }
}
