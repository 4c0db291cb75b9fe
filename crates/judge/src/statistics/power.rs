//! Number of terminations per side that Fisher's exact test requires. The power is exact, summed over all tables.

use statrs::function::factorial::ln_binomial;

use super::exact::z;
use rolldrop_explain::math::stats;

/// Largest number that is computed exactly. Beyond it, the formula of Casagrande, Pike and Smith (1978) is accurate
/// enough.
const MOST_EXACT: u64 = 150;

/// Returns the smallest number per side with which Fisher's test distinguishes the shares `a` and `b` at this power;
/// `None` if the shares are equal.
pub(crate) fn needed(a: f64, b: f64, alpha: f64, power: f64) -> Option<u64> {
    if (a - b).abs() < 1e-9 {
        return None;
    }
    let formula = formula(a, b, alpha, power);
    if formula > MOST_EXACT {
        return Some(formula);
    }
    // The formula overestimates, but by less than a factor of two.
    ((formula / 2).max(2)..=formula).find(|n| of_fisher(*n, a, b, alpha) >= power).or(Some(formula))
}

fn formula(a: f64, b: f64, alpha: f64, power: f64) -> u64 {
    let delta = (a - b).abs();
    let (z_alpha, z_power) = (z(1.0 - alpha / 2.0), z(power));
    let mean = f64::midpoint(a, b);
    let spread =
        z_alpha * (2.0 * mean * (1.0 - mean)).sqrt() + z_power * (a * (1.0 - a) + b * (1.0 - b)).sqrt();
    let n = (spread / delta).powi(2);
    stats::index((n / 4.0 * (1.0 + (1.0 + 4.0 / (n * delta)).sqrt()).powi(2)).ceil()) as u64
}

/// Returns the probability that Fisher's test rejects with `n` per side, if the true shares are `a` and `b`.
fn of_fisher(n: u64, a: f64, b: f64, alpha: f64) -> f64 {
    let chances = |share: f64| (0..=n).map(|x| binomial(n, x, share)).collect::<Vec<_>>();
    let (of_a, of_b) = (chances(a), chances(b));
    let mut power = 0.0;
    for hits in 0..=2 * n {
        let ln_p = |x: u64| ln_binomial(n, x) + ln_binomial(n, hits - x) - ln_binomial(2 * n, hits);
        let mut tables: Vec<(f64, u64)> =
            (hits.saturating_sub(n)..=hits.min(n)).map(|x| (ln_p(x), x)).collect();
        tables.sort_by(|one, other| one.0.total_cmp(&other.0));
        let mut p = 0.0;
        // Equally likely tables are rejected together.
        for equal in tables.chunk_by(|one, other| other.0 - one.0 <= 1e-7) {
            p += equal.iter().map(|(ln, _)| ln.exp()).sum::<f64>();
            if p > alpha {
                break;
            }
            let chance = |x: u64| of_a[stats::index(x as f64)] * of_b[stats::index((hits - x) as f64)];
            power += equal.iter().map(|(_, x)| chance(*x)).sum::<f64>();
        }
    }
    power
}

fn binomial(n: u64, x: u64, share: f64) -> f64 {
    let term = |times: u64, chance: f64| if times == 0 { 0.0 } else { times as f64 * chance.ln() };
    (ln_binomial(n, x) + term(x, share) + term(n - x, 1.0 - share)).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn needed_terminations_reach_exact_power() {
        // The formula yields 54, 25 and 2.
        let needed = |a: f64, b: f64| needed(a, b, 0.05, 0.8);
        assert_eq!((needed(0.0, 1.0 / 6.0), needed(0.0, 1.0 / 3.0)), (Some(46), Some(19)));
        assert_eq!((needed(0.0, 1.0), needed(0.5, 0.5)), (Some(4), None));
        for (a, b, n) in [(0.0, 1.0 / 6.0, 46), (0.0, 1.0 / 3.0, 19), (1.0, 0.0, 4)] {
            assert!(of_fisher(n, a, b, 0.05) >= 0.8 && of_fisher(n - 1, a, b, 0.05) < 0.8, "{n}");
        }
    }
}
