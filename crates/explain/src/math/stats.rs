//! Order statistics and exact bounds on shares.
//!
//! One observation is one termination. Sources: Wilks 1941, Somerville 1958 (tolerance bounds from order statistics),
//! Clopper and Pearson 1934.

use statrs::distribution::{Beta, Binomial, ContinuousCDF, DiscreteCDF, StudentsT};

/// Returns the confidence that the largest of `n` values is at least the quantile `coverage`.
pub fn wilks_confidence(n: usize, coverage: f64) -> f64 {
    1.0 - coverage.powf(n as f64)
}

/// Returns the coverage that the largest of `n` values guarantees at `confidence`; 0 for none.
pub fn wilks_coverage(n: usize, confidence: f64) -> f64 {
    if n == 0 { 0.0 } else { (1.0 - confidence).powf(1.0 / n as f64) }
}

/// Returns how many values are needed for the largest to cover `coverage` at `confidence`, both in (0, 1).
pub fn wilks_needed(coverage: f64, confidence: f64) -> usize {
    (1..).find(|n| wilks_confidence(*n, coverage) >= confidence).unwrap_or(usize::MAX)
}

/// Returns the upper bound at `confidence` on a share, given `x` occurrences in `n` (Clopper–Pearson). With `x` = 0 it
/// is 1 − α^(1/n), because seeing nothing does not prove that there is nothing.
pub fn share_upper(x: u64, n: u64, confidence: f64) -> f64 {
    if x >= n {
        return 1.0;
    }
    Beta::new(x as f64 + 1.0, (n - x) as f64).map_or(1.0, |beta| beta.inverse_cdf(confidence))
}

/// Returns the lower bound at `confidence` on a share, given `x` occurrences in `n`.
pub fn share_lower(x: u64, n: u64, confidence: f64) -> f64 {
    1.0 - share_upper(n.saturating_sub(x), n, confidence)
}

/// Returns the ranks, counted from 1, of the lower and upper bounds for the quantile `p` at `confidence` among `n`
/// sorted values. A bound is `None` if `n` values are too few for it.
pub fn quantile_ranks(n: usize, p: f64, confidence: f64) -> (Option<usize>, Option<usize>) {
    let Ok(below) = Binomial::new(p, n as u64) else { return (None, None) };
    // If at most k - 1 of n values lie at or below the quantile, the k-th lies at or above it.
    let at_most = |k: u64| if k == 0 { 0.0 } else { below.cdf(k - 1) };
    // `at_most` grows with k.
    let reaching = |chance: f64| first(0, n as u64 + 1, |k| at_most(k) >= chance);
    let rank = |k: u64| usize::try_from(k).ok().filter(|k| (1..=n).contains(k));
    (rank(reaching((1.0 - confidence).next_up()) - 1), rank(reaching(confidence)))
}

/// Returns the lower and upper bound on the mean, each at `confidence`, by Student's t; `None` for fewer than two
/// values.
pub fn mean_bounds(values: &[f64], confidence: f64) -> Option<(f64, f64)> {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0);
    let t = StudentsT::new(0.0, 1.0, n - 1.0).ok()?.inverse_cdf(confidence);
    let half = t * (variance / n).sqrt();
    Some((mean - half, mean + half))
}

/// Returns the similarity of values within groups (the intraclass correlation from a one-way analysis of variance,
/// Fisher 1925): 0 if groups make no difference, 1 if values differ only between groups. Returns `None` for fewer than
/// two groups, without a group of two values, or if all values are equal.
pub fn intraclass_correlation(groups: &[Vec<f64>]) -> Option<f64> {
    let (k, n) = (groups.len() as f64, groups.iter().map(Vec::len).sum::<usize>() as f64);
    if k < 2.0 || n <= k {
        return None;
    }
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let overall = groups.iter().flatten().sum::<f64>() / n;
    let between: f64 = groups.iter().map(|group| group.len() as f64 * (mean(group) - overall).powi(2)).sum();
    let within: f64 = groups.iter().flat_map(|g| g.iter().map(|value| (value - mean(g)).powi(2))).sum();
    let (between, within) = (between / (k - 1.0), within / (n - k));
    // Effective group size, if groups differ in size.
    let size = (n - groups.iter().map(|group| (group.len() as f64).powi(2)).sum::<f64>() / n) / (k - 1.0);
    let variance = between + (size - 1.0) * within;
    (variance > 0.0).then(|| (between - within) / variance)
}

/// Returns the smallest number, from `n` to a thousand times `n`, for which `settles` returns true. Assumes that
/// `settles` stays true for larger numbers.
pub fn needed(n: u64, settles: impl Fn(u64) -> bool) -> Option<u64> {
    let (mut no, mut yes) = (n, n.max(1));
    while !settles(yes) {
        no = yes;
        yes *= 2;
        if yes > 1000 * n.max(1) {
            return None;
        }
    }
    Some(first(no, yes, settles))
}

/// Returns the first number after `no`, up to `yes`, for which `holds` returns true. Assumes that it also returns true
/// for `yes` and for all numbers after the first.
pub fn first(mut no: u64, mut yes: u64, holds: impl Fn(u64) -> bool) -> u64 {
    while yes - no > 1 {
        let middle = no + (yes - no) / 2;
        if holds(middle) { yes = middle } else { no = middle }
    }
    yes
}

/// Returns the smallest value such that at least the share `p` of `sorted` is at or below it (nearest rank).
pub fn nearest_rank(sorted: &[f64], p: f64) -> Option<f64> {
    let rank = (1..=sorted.len()).find(|rank| *rank as f64 >= p * sorted.len() as f64)?;
    sorted.get(rank - 1).copied()
}

/// Converts a position to an index; negative and undefined positions become 0.
pub fn index(position: f64) -> usize {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
    let index = position as usize;
    index
}

/// Rounds up to whole seconds; negative and undefined values become 0.
pub fn ceil_seconds(seconds: f64) -> u64 {
    #[expect(clippy::cast_possible_truncation, reason = "whole and saturating by construction")]
    let whole = seconds.max(0.0).ceil() as u64;
    whole
}

/// Returns the shortest sleep, in whole seconds, that covers the largest of the windows' upper and lower bounds.
pub fn covering_sleep(upper_s: f64, lower_s: Option<f64>) -> u64 {
    ceil_seconds(upper_s.max(lower_s.unwrap_or(0.0)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn wilks_bounds_match_known_values() {
        assert_eq!([0.90, 0.95, 0.99].map(|p| wilks_needed(p, 0.95)), [29, 59, 299]);
        for (n, percent) in [(10, 74.0), (20, 86.0), (50, 94.0), (100, 97.0)] {
            assert_eq!((wilks_coverage(n, 0.95) * 100.0).round(), percent);
        }
        assert_eq!(wilks_coverage(0, 0.95), 0.0);
    }

    #[test]
    fn zero_events_still_bound_share() {
        let bound = share_upper(0, 30, 0.95);
        assert!((bound - (1.0 - 0.05f64.powf(1.0 / 30.0))).abs() < 1e-6, "{bound}");
        assert!((share_upper(1, 10, 0.95) - 0.3942).abs() < 1e-3);
        assert_eq!(share_upper(3, 3, 0.95), 1.0);
    }

    #[test]
    fn quantile_bounds_match_published_ranks() {
        // Wilks: the largest of 59 values bounds the 95th percentile; the largest of 58 does not.
        assert_eq!(quantile_ranks(59, 0.95, 0.95).1, Some(59));
        assert_eq!(quantile_ranks(58, 0.95, 0.95).1, None);
        // Somerville: the second largest of 93.
        assert_eq!(quantile_ranks(93, 0.95, 0.95).1, Some(92));
        assert_eq!(quantile_ranks(92, 0.95, 0.95).1, Some(92));
        // The median of 5 values: its lower bound is the smallest of them, and its upper bound the largest.
        assert_eq!(quantile_ranks(5, 0.5, 0.95), (Some(1), Some(5)));
        assert_eq!(quantile_ranks(4, 0.5, 0.95), (None, None));
    }

    #[test]
    fn needed_finds_smallest_sufficient_number() {
        assert_eq!(needed(3, |n| n >= 59), Some(59));
        assert_eq!(needed(3, |_| false), None);
        assert!((share_lower(10, 10, 0.95) - 0.05_f64.powf(0.1)).abs() < 1e-6);
        let (low, high) = mean_bounds(&[1.0, 2.0, 3.0, 4.0, 5.0], 0.95).unwrap();
        assert!((low - 1.492).abs() < 1e-2 && (high - 4.507).abs() < 1e-2, "{low} {high}");
        assert_eq!(mean_bounds(&[1.0], 0.95), None);
    }

    #[test]
    fn intraclass_correlation_matches_shrout_fleiss() {
        // Shrout and Fleiss 1979, table 2: ICC(1,1) of six targets with four judges each is 0.17.
        let rated = [
            [9., 2., 5., 8.],
            [6., 1., 3., 2.],
            [8., 4., 6., 8.],
            [7., 1., 2., 6.],
            [10., 5., 6., 9.],
            [6., 2., 4., 7.],
        ];
        let icc = intraclass_correlation(&rated.map(Vec::from)).unwrap();
        assert!((icc - 0.166).abs() < 1e-3, "{icc}");
        assert_eq!(intraclass_correlation(&[vec![1.0, 1.0], vec![3.0, 3.0, 3.0]]), Some(1.0));
        assert_eq!(intraclass_correlation(&[vec![1.0, 2.0, 3.0]]), None, "one group");
        assert_eq!(intraclass_correlation(&[vec![1.0], vec![2.0]]), None, "no group has two values");
        assert_eq!(intraclass_correlation(&[vec![1.0, 1.0], vec![1.0]]), None, "nothing differs");
    }

    #[test]
    fn ranks_and_seconds_round_up() {
        let values = [1.0, 2.0, 3.0, 4.0];
        assert_eq!(nearest_rank(&values, 0.5), Some(2.0));
        assert_eq!(nearest_rank(&values, 0.99), Some(4.0));
        assert_eq!(nearest_rank(&[], 0.5), None);
        assert_eq!([0.0, 0.1, 1.0, 1.01, -3.0].map(ceil_seconds), [0, 1, 1, 2, 0]);
    }

    proptest! {
        #[test]
        fn wilks_needed_returns_smallest_number(coverage in 0.5f64..0.99, confidence in 0.5f64..0.99) {
            let n = wilks_needed(coverage, confidence);
            prop_assert!(wilks_confidence(n, coverage) >= confidence);
            prop_assert!(n == 1 || wilks_confidence(n - 1, coverage) < confidence);
        }
    }
}
