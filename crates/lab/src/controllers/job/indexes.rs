//! Completion indexes of Indexed Jobs. Pure.

use std::collections::BTreeSet;

use serde_json::Value;

/// Name of the annotation and the label that contain a pod's index.
pub(super) const COMPLETION_INDEX: &str = "batch.kubernetes.io/job-completion-index";

/// Returns a pod's completion index.
pub(super) fn of(pod: &Value) -> Option<i64> {
    pod["metadata"]["annotations"][COMPLETION_INDEX].as_str()?.parse().ok()
}

/// Parses `status.completedIndexes`, such as `0-3,5`.
pub(super) fn parse(text: &str) -> BTreeSet<i64> {
    let intervals = text.split(',').filter_map(|interval| {
        let (first, last) = interval.split_once('-').unwrap_or((interval, interval));
        Some(first.parse::<i64>().ok()?..=last.parse::<i64>().ok()?)
    });
    intervals.flatten().collect()
}

/// Formats indexes as intervals: three or more consecutive indexes are joined with a dash, two with a comma.
pub(super) fn write(indexes: &BTreeSet<i64>) -> String {
    let mut intervals: Vec<(i64, i64)> = Vec::new();
    for &index in indexes {
        match intervals.last_mut() {
            Some((_, last)) if *last + 1 == index => *last = index,
            _ => intervals.push((index, index)),
        }
    }
    let text = |&(first, last): &(i64, i64)| match last - first {
        0 => first.to_string(),
        1 => format!("{first},{last}"),
        _ => format!("{first}-{last}"),
    };
    intervals.iter().map(text).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn completed_indexes_print_as_intervals() {
        let set = |indexes: &[i64]| indexes.iter().copied().collect();
        assert_eq!(write(&set(&[])), "");
        assert_eq!(write(&set(&[1])), "1");
        assert_eq!(write(&set(&[0, 1, 3, 4, 5, 7])), "0,1,3-5,7");
    }

    proptest! {
        #[test]
        fn index_text_round_trips(indexes in prop::collection::btree_set(0_i64..60, 0..40)) {
            prop_assert_eq!(parse(&write(&indexes)), indexes);
        }
    }
}
