//! Statistical tests that are valid for small numbers: Fisher, Newcombe, totals, permutation, Holm.
//!
//! Sources: Fisher 1934; Newcombe 1998 (method 10); Holm 1979; Tarone 1990 (tests of discrete data that cannot reject);
//! Phipson and Smyth 2010 (the p value of a permutation test is never 0).

use rand::seq::SliceRandom;
use rand::{SeedableRng, rngs::SmallRng};
use statrs::distribution::{ContinuousCDF, Normal};
use statrs::function::factorial::ln_binomial;
use statrs::function::gamma::ln_gamma;

/// A proportion: a number of hits out of `n`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proportion {
    /// Number of hits.
    pub hits: u64,
    /// Number of all items.
    pub n: u64,
}

impl Proportion {
    pub(crate) fn share(self) -> f64 {
        if self.n == 0 { 0.0 } else { self.hits as f64 / self.n as f64 }
    }
}

/// Returns the probability of all tables that are at most as likely as this one: Fisher's exact test, two-sided.
pub(crate) fn fisher(a: Proportion, b: Proportion) -> f64 {
    let hits = a.hits + b.hits;
    let ln_p = |x: u64| ln_binomial(a.n, x) + ln_binomial(b.n, hits - x) - ln_binomial(a.n + b.n, hits);
    let observed = ln_p(a.hits);
    let possible = hits.saturating_sub(b.n)..=hits.min(a.n);
    let p: f64 = possible.map(ln_p).filter(|ln| *ln <= observed + 1e-7).map(f64::exp).sum();
    p.min(1.0)
}

/// Returns the smallest p value that Fisher's test can yield with these margins. If it exceeds alpha, the test cannot
/// reject, and uses up none of the error (Tarone 1990).
pub(crate) fn least_fisher(a: Proportion, b: Proportion) -> f64 {
    let hits = a.hits + b.hits;
    let p = |x: u64| fisher(Proportion { hits: x, ..a }, Proportion { hits: hits - x, ..b });
    p(hits.saturating_sub(b.n)).min(p(hits.min(a.n)))
}

/// Compares two totals with a two-sided test, for runs whose events occur together. Returns the probability of a split
/// of the sum that is at least as uneven, if the runs' totals are geometric with one mean; `None` if no split of this
/// sum would be unlikely enough. `runs` is the weight of each side; it need not be whole.
///
/// Given the sum, one side's part has a negative hypergeometric (beta-binomial) distribution. With one run per side,
/// all splits of the sum are equally likely (Johnson, Kemp and Kotz 2005, section 6.2).
pub(crate) fn totals([a, b]: [u64; 2], [runs_a, runs_b]: [f64; 2], alpha: f64) -> Option<f64> {
    let sum = a + b;
    let two_sided = |b: u64| {
        let above = at_least(b, sum, runs_a, runs_b);
        let below = at_least(sum - b, sum, runs_b, runs_a);
        (2.0 * above.min(below)).min(1.0)
    };
    (sum > 0 && two_sided(0).min(two_sided(sum)) <= alpha).then(|| two_sided(b))
}

/// Returns the probability that the second side contributes at least `part` to the sum of both totals, if the totals
/// are geometric with one mean.
pub(crate) fn at_least(part: u64, sum: u64, first_runs: f64, second_runs: f64) -> f64 {
    let chance = |x: u64| {
        let rest = (sum - x) as f64;
        let ways = |n: f64, runs: f64| ln_gamma(n + runs) - ln_gamma(n + 1.0) - ln_gamma(runs);
        let all = ways(sum as f64, first_runs + second_runs);
        (ways(x as f64, second_runs) + ways(rest, first_runs) - all).exp()
    };
    (part..=sum).map(chance).sum::<f64>().min(1.0)
}

/// Returns Wilson's interval for a share.
fn wilson(of: Proportion, z: f64) -> (f64, f64) {
    let n = of.n as f64;
    let (p, z2) = (of.share(), z * z);
    let middle = p + z2 / (2.0 * n);
    let half = z * (p * (1.0 - p) / n + z2 / (4.0 * n * n)).sqrt();
    (((middle - half) / (1.0 + z2 / n)).max(0.0), ((middle + half) / (1.0 + z2 / n)).min(1.0))
}

/// Returns the interval for the difference between two shares, `b` minus `a` (Newcombe's method 10).
pub(crate) fn newcombe(a: Proportion, b: Proportion, confidence: f64) -> (f64, f64) {
    let z = z(f64::midpoint(1.0, confidence));
    let ((a_low, a_high), (b_low, b_high)) = (wilson(a, z), wilson(b, z));
    let (a, b) = (a.share(), b.share());
    let difference = b - a;
    (difference - (b - b_low).hypot(a_high - a), difference + (b_high - b).hypot(a - a_low))
}

/// Returns a quantile of the standard normal distribution.
pub(crate) fn z(p: f64) -> f64 {
    Normal::standard().inverse_cdf(p)
}

/// Returns the probability that a standard normal variable is below `z`.
pub(crate) fn below(z: f64) -> f64 {
    Normal::standard().cdf(z)
}

/// Observation of a unit: a value, and its weight in the denominator of the side's mean.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weighed {
    pub(crate) value: f64,
    pub(crate) weight: f64,
}

impl Weighed {
    /// Creates a unit of weight 1.
    pub(crate) const fn one(value: f64) -> Self {
        Self { value, weight: 1.0 }
    }
}

/// Returns the sum of the values divided by the sum of the weights.
pub(crate) fn mean<'a>(units: impl IntoIterator<Item = &'a Weighed>) -> f64 {
    let (mut value, mut weight) = (0.0, 0.0);
    for unit in units {
        value += unit.value;
        weight += unit.weight;
    }
    if weight > 0.0 { value / weight } else { 0.0 }
}

/// Maximum number of rearrangements to try exhaustively.
const MOST_ARRANGEMENTS: f64 = 20_000.0;
/// Number of random rearrangements to try if there are more.
const DRAWN: u32 = 4_999;

/// Returns the probability that the sides' means differ by at least this much if the sides are equal: a two-sided
/// permutation test of the assignment of units to sides.
pub(crate) fn permutation(a: &[Weighed], b: &[Weighed]) -> f64 {
    let observed = (mean(b) - mean(a)).abs();
    let mut all: Vec<Weighed> = a.iter().chain(b).copied().collect();
    let is_as_far = |first: f64, second: f64| (second - first).abs() >= observed - 1e-12;
    if ln_binomial(all.len() as u64, a.len() as u64) <= MOST_ARRANGEMENTS.ln() {
        let (mut far, mut tried) = (0_u64, 0_u64);
        let mut chosen: Vec<usize> = (0..a.len()).collect();
        loop {
            let mut is_first = vec![false; all.len()];
            chosen.iter().for_each(|&i| is_first[i] = true);
            let of = |wanted| {
                mean(all.iter().zip(&is_first).filter(|(_, first)| **first == wanted).map(|(unit, _)| unit))
            };
            tried += 1;
            far += u64::from(is_as_far(of(true), of(false)));
            if !next_combination(&mut chosen, all.len()) {
                return far as f64 / tried as f64;
            }
        }
    }
    // A fixed seed makes the same input yield the same numbers.
    let mut rng = SmallRng::seed_from_u64(all.len() as u64);
    let mut far = 0_u32;
    for _ in 0..DRAWN {
        all.shuffle(&mut rng);
        let (first, second) = all.split_at(a.len());
        far += u32::from(is_as_far(mean(first), mean(second)));
    }
    f64::from(far + 1) / f64::from(DRAWN + 1)
}

/// Returns the p value of [`permutation`], or `None` if even the most uneven arrangement of these values would not be
/// unlikely enough (Tarone 1990).
pub(crate) fn informative(a: &[Weighed], b: &[Weighed], alpha: f64) -> Option<f64> {
    let mut all: Vec<Weighed> = a.iter().chain(b).copied().collect();
    all.sort_by(|x, y| (x.value / x.weight).total_cmp(&(y.value / y.weight)));
    let (low, high) = (all.split_at(a.len()), all.split_at(b.len()));
    let least = permutation(low.0, low.1).min(permutation(high.0, high.1));
    (least <= alpha).then(|| permutation(a, b))
}

/// Advances to the next combination of `n` items in lexical order; returns false after the last one.
fn next_combination(chosen: &mut [usize], n: usize) -> bool {
    let k = chosen.len();
    let Some(i) = (0..k).rev().find(|&i| chosen[i] < n - k + i) else { return false };
    chosen[i] += 1;
    for j in i + 1..k {
        chosen[j] = chosen[j - 1] + 1;
    }
    true
}

/// Applies Holm's adjustment to p values, each with its weight in the joint error. If the adjusted values are compared
/// with alpha, their joint error is at most alpha.
pub(crate) fn holm(tests: &[(f64, f64)]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..tests.len()).collect();
    let weighed = |i: usize| tests[i].0 / tests[i].1;
    order.sort_by(|a, b| weighed(*a).total_cmp(&weighed(*b)));
    let mut adjusted = vec![1.0; tests.len()];
    let mut remaining: f64 = tests.iter().map(|(_, weight)| weight).sum();
    let mut least = 0.0_f64;
    for i in order {
        least = least.max(remaining * weighed(i)).min(1.0);
        adjusted[i] = least;
        remaining -= tests[i].1;
    }
    adjusted
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn of(hits: u64, n: u64) -> Proportion {
        Proportion { hits, n }
    }

    #[test]
    fn exact_tests_match_published_values() {
        // Fisher's tea-tasting experiment: 3 of 4 against 1 of 4.
        assert!((fisher(of(3, 4), of(1, 4)) - 0.485_714).abs() < 1e-6);
        // With three against three, p cannot fall below 0.1, however clear the difference.
        assert!((fisher(of(3, 3), of(0, 3)) - 0.1).abs() < 1e-9);
        // Newcombe 1998, table II: 56/70 against 48/80, method 10.
        let (low, high) = newcombe(of(48, 80), of(56, 70), 0.95);
        assert!((low - 0.0524).abs() < 5e-4 && (high - 0.3339).abs() < 5e-4, "{low} {high}");
        assert_eq!(holm(&[0.01, 0.04, 0.03].map(|p| (p, 1.0))), [0.03, 0.06, 0.06]);
        // One value gets half of the error, however many others there are.
        assert_eq!(holm(&[(0.02, 2.0), (0.5, 1.0), (0.9, 1.0)]), [0.04, 1.0, 1.0]);
    }

    #[test]
    fn single_runs_split_total_uniformly() {
        let p = |a, b| totals([a, b], [1.0, 1.0], 0.05);
        assert!((p(0, 96).unwrap() - 2.0 / 97.0).abs() < 1e-9);
        assert!((p(96, 0).unwrap() - 2.0 / 97.0).abs() < 1e-9);
        assert!(p(50, 46).unwrap() > 0.9);
        assert_eq!((p(0, 0), p(0, 38), p(30, 8)), (None, None, None));
        // After five runs without a loss, the probability is 5! y! / (y + 5)!.
        assert!((at_least(3, 3, 5.0, 1.0) - 120.0 * 6.0 / 40_320.0).abs() < 1e-9);
    }

    #[test]
    fn small_samples_are_permuted_exhaustively() {
        let ones = |values: &[f64]| values.iter().map(|v| Weighed::one(*v)).collect::<Vec<_>>();
        let p = permutation(&ones(&[0.0, 0.0, 0.0]), &ones(&[5.0, 6.0, 7.0]));
        assert!((p - 0.1).abs() < 1e-9, "{p}");
        assert!(permutation(&ones(&[1.0, 2.0]), &ones(&[1.0, 2.0])) > 0.99);
    }

    /// Returns the probability, under one common share, of the tables that the test calls different.
    fn false_alarms(n: u64, share: f64, alpha: f64) -> f64 {
        let chance =
            |x: u64| (ln_binomial(n, x) + x as f64 * share.ln() + (n - x) as f64 * (1.0 - share).ln()).exp();
        let tables = (0..=n).flat_map(|a| (0..=n).map(move |b| (a, b)));
        tables
            .filter(|(a, b)| fisher(of(*a, n), of(*b, n)) <= alpha)
            .map(|(a, b)| chance(a) * chance(b))
            .sum()
    }

    proptest! {
        #[test]
        fn fisher_test_respects_alpha(n in 1_u64..25, share in 0.02_f64..0.98) {
            prop_assert!(false_alarms(n, share, 0.05) <= 0.05 + 1e-9);
        }

        #[test]
        fn newcombe_interval_contains_difference(a in 0_u64..20, b in 0_u64..20, n in 20_u64..40) {
            let (low, high) = newcombe(of(a, n), of(b, n), 0.95);
            let difference = of(b, n).share() - of(a, n).share();
            prop_assert!(low <= difference && difference <= high && low >= -1.0 && high <= 1.0);
        }
    }
}
