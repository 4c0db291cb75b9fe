//! Tests that hold for small numbers: Fisher, Newcombe, permutation, Holm.
//!
//! Sources: Fisher 1934; Newcombe 1998 (method 10); Casagrande, Pike and Smith 1978 (sample
//! size of Fisher's test); Holm 1979; Phipson and Smyth 2010 (a permutation's p is never 0).

use rand::seq::SliceRandom;
use rand::{SeedableRng, rngs::SmallRng};
use statrs::distribution::{ContinuousCDF, Normal};
use statrs::function::factorial::ln_binomial;

/// `x` of `n`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Of {
    pub(super) hits: u64,
    pub(super) n: u64,
}

impl Of {
    pub(super) fn share(self) -> f64 {
        if self.n == 0 { 0.0 } else { self.hits as f64 / self.n as f64 }
    }
}

/// Fisher's exact test, two-sided: the chance of a table that is no likelier than this one.
pub(super) fn fisher(a: Of, b: Of) -> f64 {
    let hits = a.hits + b.hits;
    let ln_p = |x: u64| ln_binomial(a.n, x) + ln_binomial(b.n, hits - x) - ln_binomial(a.n + b.n, hits);
    let observed = ln_p(a.hits);
    let possible = hits.saturating_sub(b.n)..=hits.min(a.n);
    let p: f64 = possible.map(ln_p).filter(|ln| *ln <= observed + 1e-7).map(f64::exp).sum();
    p.min(1.0)
}

/// Wilson's interval of a share.
fn wilson(of: Of, z: f64) -> (f64, f64) {
    let n = of.n as f64;
    let (p, z2) = (of.share(), z * z);
    let middle = p + z2 / (2.0 * n);
    let half = z * (p * (1.0 - p) / n + z2 / (4.0 * n * n)).sqrt();
    (((middle - half) / (1.0 + z2 / n)).max(0.0), ((middle + half) / (1.0 + z2 / n)).min(1.0))
}

/// The interval of the difference of two shares, `b` minus `a` (Newcombe's method 10).
pub(super) fn newcombe(a: Of, b: Of, confidence: f64) -> (f64, f64) {
    let z = z(f64::midpoint(1.0, confidence));
    let ((a_low, a_high), (b_low, b_high)) = (wilson(a, z), wilson(b, z));
    let (a, b) = (a.share(), b.share());
    let difference = b - a;
    (difference - (b - b_low).hypot(a_high - a), difference + (b_high - b).hypot(a - a_low))
}

/// How many a side are needed until Fisher's test tells shares `a` and `b` apart with this power.
pub(super) fn needed(a: f64, b: f64, alpha: f64, power: f64) -> Option<u64> {
    let delta = (a - b).abs();
    if delta < 1e-9 {
        return None;
    }
    let (z_alpha, z_power) = (z(1.0 - alpha / 2.0), z(power));
    let mean = f64::midpoint(a, b);
    let spread =
        z_alpha * (2.0 * mean * (1.0 - mean)).sqrt() + z_power * (a * (1.0 - a) + b * (1.0 - b)).sqrt();
    let n = (spread / delta).powi(2);
    let corrected = n / 4.0 * (1.0 + (1.0 + 4.0 / (n * delta)).sqrt()).powi(2);
    // Below this no table at all is unlikely enough.
    let least = (2..).find(|n| 2.0 / ln_binomial(2 * n, *n).exp() <= alpha).unwrap_or(u64::MAX);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "positive, and the cast saturates"
    )]
    let corrected = corrected.ceil() as u64;
    Some(corrected.max(least))
}

/// The quantile of the normal distribution.
pub(super) fn z(p: f64) -> f64 {
    Normal::standard().inverse_cdf(p)
}

/// Something observed of a unit: a value, and the weight by which its arm's sum is divided.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weighed {
    pub(super) value: f64,
    pub(super) weight: f64,
}

impl Weighed {
    /// A unit that counts as one.
    pub(super) const fn one(value: f64) -> Self {
        Self { value, weight: 1.0 }
    }
}

/// The sum of the values over the sum of the weights.
pub(super) fn mean<'a>(units: impl IntoIterator<Item = &'a Weighed>) -> f64 {
    let (mut value, mut weight) = (0.0, 0.0);
    for unit in units {
        value += unit.value;
        weight += unit.weight;
    }
    if weight > 0.0 { value / weight } else { 0.0 }
}

/// All rearrangements are tried if there are no more than this.
const MOST_ARRANGEMENTS: f64 = 20_000.0;
/// Otherwise this many are drawn.
const DRAWN: u32 = 4_999;

/// A permutation test of which side each unit belongs to, two-sided: the chance that the sides' means differ at least
/// this much if the sides are the same.
pub(super) fn permutation(a: &[Weighed], b: &[Weighed]) -> f64 {
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
    // The same numbers for the same question.
    let mut rng = SmallRng::seed_from_u64(all.len() as u64);
    let mut far = 0_u32;
    for _ in 0..DRAWN {
        all.shuffle(&mut rng);
        let (first, second) = all.split_at(a.len());
        far += u32::from(is_as_far(mean(first), mean(second)));
    }
    f64::from(far + 1) / f64::from(DRAWN + 1)
}

/// The next combination of `n` things in lexical order; false after the last.
fn next_combination(chosen: &mut [usize], n: usize) -> bool {
    let k = chosen.len();
    let Some(i) = (0..k).rev().find(|&i| chosen[i] < n - k + i) else { return false };
    chosen[i] += 1;
    for j in i + 1..k {
        chosen[j] = chosen[j - 1] + 1;
    }
    true
}

/// Holm's adjustment: compared with alpha, the adjusted p values together have at most that chance of an error.
pub(super) fn holm(p: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|a, b| p[*a].total_cmp(&p[*b]));
    let mut adjusted = vec![1.0; p.len()];
    let mut least = 0.0_f64;
    for (rank, i) in order.into_iter().enumerate() {
        least = least.max((p.len() - rank) as f64 * p[i]).min(1.0);
        adjusted[i] = least;
    }
    adjusted
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn of(hits: u64, n: u64) -> Of {
        Of { hits, n }
    }

    #[test]
    fn published_values() {
        // Fisher's tea: 3 of 4 against 1 of 4.
        assert!((fisher(of(3, 4), of(1, 4)) - 0.485_714).abs() < 1e-6);
        // Three against three cannot go below 0.1, however clear.
        assert!((fisher(of(3, 3), of(0, 3)) - 0.1).abs() < 1e-9);
        // Newcombe 1998, table II: 56/70 against 48/80, method 10.
        let (low, high) = newcombe(of(48, 80), of(56, 70), 0.95);
        assert!((low - 0.0524).abs() < 5e-4 && (high - 0.3339).abs() < 5e-4, "{low} {high}");
        assert_eq!(holm(&[0.01, 0.04, 0.03]), [0.03, 0.06, 0.06]);
        assert_eq!(needed(0.5, 0.5, 0.05, 0.8), None);
        assert_eq!(needed(1.0, 0.0, 0.05, 0.8), Some(4));
    }

    #[test]
    fn few_units_are_all_rearranged() {
        let ones = |values: &[f64]| values.iter().map(|v| Weighed::one(*v)).collect::<Vec<_>>();
        let p = permutation(&ones(&[0.0, 0.0, 0.0]), &ones(&[5.0, 6.0, 7.0]));
        assert!((p - 0.1).abs() < 1e-9, "{p}");
        assert!(permutation(&ones(&[1.0, 2.0]), &ones(&[1.0, 2.0])) > 0.99);
    }

    /// The share of tables, weighed by their chance under one common share, that the test calls different.
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
        fn fisher_raises_no_more_false_alarms_than_alpha(n in 1_u64..25, share in 0.02_f64..0.98) {
            prop_assert!(false_alarms(n, share, 0.05) <= 0.05 + 1e-9);
        }

        #[test]
        fn a_difference_lies_in_its_interval(a in 0_u64..20, b in 0_u64..20, n in 20_u64..40) {
            let (low, high) = newcombe(of(a, n), of(b, n), 0.95);
            let difference = of(b, n).share() - of(a, n).share();
            prop_assert!(low <= difference && difference <= high && low >= -1.0 && high <= 1.0);
        }
    }
}
