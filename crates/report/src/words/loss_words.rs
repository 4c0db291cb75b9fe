//! Puts lost requests into words: counts, intervals and groups.

use std::collections::BTreeMap;

use super::{by_count, short_pod};
use crate::format::{self, count, counted, either, len, list, seconds_unit};
use rolldrop_explain::OutcomeClass;
use rolldrop_explain::model::{Bounded, RequestCounts, RunResult, Termination};
use rolldrop_record::{Cause, Outcome};

/// States where the dropped requests fell, with one sentence per kind of evidence; `None` if none were dropped.
/// Requests that were attributed by time fall into a window by construction, so the text does not mention it.
pub(in super::super) fn whereabouts(result: &RunResult) -> Option<String> {
    let RequestCounts { in_window, outside_window, in_flight, by_time, ambiguous, stale_flow_own, .. } =
        result.requests;
    let named = in_window.saturating_sub(in_flight + by_time);
    let outside = outside_window.saturating_sub(stale_flow_own);
    let was = |n| either(n, "was", "were");
    let matches = either(by_time, "matches", "match");
    let parts: Vec<(u64, String)> = [
        (named, format!("{} sent to {}", was(named), whose_windows(result, named))),
        (by_time, format!("{matches} terminating pods by time and outcome")),
        (in_flight, format!("{} in flight when the deletion took effect", was(in_flight))),
        // A request attributed to several pods may lie within the windows of only some of them.
        (outside, "may have been dropped outside every endpoint-propagation window".to_owned()),
    ]
    .into_iter()
    .filter(|(n, _)| *n > 0)
    .collect();
    let sentence = |(n, what): &(u64, String)| match (n, parts.len()) {
        (1, 1) => format!("It {what}."),
        (n, 1) => format!("All {} {what}.", count(*n)),
        (n, _) => format!("{} {what}.", count(*n)),
    };
    // Any of these requests may be ambiguous, not only those matched by time.
    let several = match ambiguous {
        0 => None,
        n => Some(format!(
            "Of these, {} {} several terminating pods.",
            count(n),
            either(n, "matches", "match")
        )),
    };
    let sentences: Vec<String> = parts.iter().map(sentence).chain(several).collect();
    (!parts.is_empty()).then(|| sentences.join(" "))
}

/// Describes the pods that received those requests whose pod is known.
fn whose_windows(result: &RunResult, named: u64) -> String {
    let hit = result.terminations.iter().filter(|t| t.requests.dropped.at_least > 0).count();
    let pods = match (hit, result.terminations.len()) {
        _ if named < result.requests.lost() => "terminating pods".to_owned(),
        (1, _) => return "one terminating pod, within its endpoint-propagation window".to_owned(),
        (n, of) if n == of => format!("the {n} terminating pods"),
        (n, of) => format!("{n} of the {of} terminating pods"),
    };
    format!("{pods}, within their endpoint-propagation windows")
}

/// Describes the losses of each group of terminations that share lost requests, in one sentence per group.
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
                format!("; one of their windows lasted at least {}", seconds_unit(s))
            });
            format!("{whom} together dropped {}{lasted}", counted(group.dropped, "request"))
        })
        .collect()
}

/// Returns the entries of a map of bounded counts, largest best estimate first.
pub(in super::super) fn by_estimate<K: Copy + Ord>(counts: &BTreeMap<K, Bounded>) -> Vec<(K, Bounded)> {
    let mut entries: Vec<(K, Bounded)> = counts.iter().map(|(&k, &n)| (k, n)).collect();
    entries.sort_by(|a, b| b.1.estimate.total_cmp(&a.1.estimate).then(a.0.cmp(&b.0)));
    entries
}

/// Returns the number of requests that a termination dropped, out of those known to have reached the pod.
pub(in super::super) fn dropped_of(termination: &Termination) -> String {
    let requests = &termination.requests;
    match requests.seen {
        Some(seen) if requests.dropped.is_exact() => {
            format!("{} of {}", count(requests.dropped.at_most), count(seen))
        }
        _ => format::bounded(&requests.dropped),
    }
}

/// Returns the number of 5xx responses that the termination's app sent after t0, as a suffix to the number of dropped
/// requests.
pub(in super::super) fn errors_of(termination: &Termination) -> String {
    match termination.app_errors_after_t0 {
        None | Some(0) => String::new(),
        Some(n) => format!(", {} answered 5xx", count(n)),
    }
}

/// Describes the terminations that a list leaves out; they lost no more than `last`, which is the last one in it.
pub(in super::super) fn further(left_out: usize, last: &Termination) -> String {
    let lost = if last.requests.dropped.at_most == 0 { "nothing" } else { "no more" };
    format!("{}, which lost {lost}", counted(len(left_out), "more pod"))
}

/// Orders terminations by estimated loss, largest first. Ties stay in order of time.
pub(in super::super) fn most_lost_first(a: &Termination, b: &Termination) -> std::cmp::Ordering {
    b.requests.dropped.estimate.total_cmp(&a.requests.dropped.estimate)
}

/// Returns the dropped requests by outcome, whether or not a termination explains them.
///
/// The counts in `by_outcome` cover every row. The app's own errors are part of `http_error`; the remaining requests
/// with that outcome were dropped. The generator's own stale flows do not count.
pub(in super::super) fn dropped_by_outcome(requests: &RequestCounts) -> Vec<(Outcome, u64)> {
    let mut counts = requests.by_outcome.clone();
    counts.retain(|outcome, _| OutcomeClass::may_be_dropped(*outcome));
    counts.entry(Outcome::HttpError).and_modify(|n| *n = n.saturating_sub(requests.app_errors));
    for (outcome, own) in &requests.stale_flow_own_by_outcome {
        counts.entry(*outcome).and_modify(|n| *n = n.saturating_sub(*own));
    }
    by_count(&counts)
}

/// Returns the dropped requests by cause, most frequent first, excluding the generator's own stale flows.
pub(in super::super) fn dropped_by_cause(requests: &RequestCounts) -> Vec<(Cause, u64)> {
    let mut counts = requests.by_cause.clone();
    counts.entry(Cause::StaleFlow).and_modify(|n| *n = n.saturating_sub(requests.stale_flow_own));
    by_count(&counts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::headline;
    use rolldrop_explain::model::{GroupWindow, LossGroup};

    #[test]
    fn summary_states_losses_matching_several_windows() {
        let mut result = crate::samples::naive_exit().result;
        (result.requests.by_time, result.requests.in_flight, result.requests.ambiguous) = (9, 3, 7);
        assert_eq!(
            whereabouts(&result).unwrap(),
            "12 were sent to terminating pods, within their endpoint-propagation windows. 9 match terminating pods by \
             time and outcome. 3 were in flight when the deletion took effect. Of these, 7 match several terminating \
             pods."
        );
        (result.requests.by_time, result.requests.in_flight, result.requests.ambiguous) = (24, 0, 0);
        assert_eq!(
            whereabouts(&result).unwrap(),
            "All 24 match terminating pods by time and outcome.",
            "attribution by time puts them into windows"
        );
        (result.requests.in_window, result.requests.outside_window) = (24, 1);
        assert_eq!(
            whereabouts(&result).unwrap(),
            "24 match terminating pods by time and outcome. 1 may have been dropped outside every \
             endpoint-propagation window."
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
            ["2xkqp and vc4hd together dropped 15 requests; one of their windows lasted at least 0.118 s"]
        );
    }

    #[test]
    fn unlisted_pods_lost_no_more_than_listed() {
        let mut last = crate::samples::naive_exit().result.terminations.remove(0);
        assert_eq!(further(8, &last), "8 more pods, which lost no more");
        last.requests.dropped = Bounded::default();
        assert_eq!(further(1, &last), "1 more pod, which lost nothing");
    }

    #[test]
    fn headline_counts_5xx_from_terminating_pods() {
        let mut result = crate::samples::naive_exit().result;
        result.requests.app_errors_while_ending = 625;
        assert_eq!(
            headline(&result),
            "24 of 9,000 requests were dropped and 625 were answered with 5xx while pods were terminating, as 3 pods \
             ended."
        );
        result.terminations[0].app_errors_after_t0 = Some(625);
        (result.requests.dropped, result.requests.total) = (0, 3_015);
        assert_eq!(
            headline(&result),
            "0 of 3,015 requests were dropped and 625 were answered with 5xx by terminating pods, as 3 pods ended."
        );
        // The app returns as many while no pod ends.
        let mut usual = result.clone();
        let outside = &mut usual.requests.outside_terminations;
        (outside.ok, outside.app_errors, outside.server_errors) = (2_000, 900, 900);
        usual.terminations.iter_mut().for_each(|t| t.requests.seen = Some(1_000));
        assert_eq!(headline(&usual), "0 of 3,015 requests were dropped as 3 pods ended.");
        assert_eq!(errors_of(&result.terminations[0]), ", 625 answered 5xx");
        assert_eq!(errors_of(&result.terminations[1]), "");
    }

    #[test]
    fn headline_excludes_own_stale_flows() {
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
