//! Share of the error that each look at a gate may spend if the run continues while the gate is inconclusive.
//!
//! A run that stops as soon as it passes would pass too often, because each look is another chance to be wrong. The
//! looks therefore share one error through a spending function α(t) (Lan and DeMets 1983, Biometrika 70, 659–663),
//! where t is the share of the planned rounds completed so far: look k of K spends α(k/K) − α((k − 1)/K). We use the
//! function that approximates Pocock's bounds (1977, Biometrika 64, 191–199): α(t) = α ln(1 + (e − 1) t). It spends
//! much of the error early, so an early look can be decisive.
//!
//! Group-sequential methods usually turn these amounts into critical values, which requires the joint distribution of
//! the test statistics across looks. The gate's bounds are exact for discrete figures and have no such distribution, so
//! each look uses its amount as its own error. By Bonferroni's inequality the error over all looks is at most α,
//! however they depend on each other and whatever decides whether the run continues.

use std::f64::consts::E;

use rolldrop_record::{ALPHA, Looks, Spending};

/// Returns the schedule for a run with up to `most` looks, positioned at the first look.
pub fn looks(most: usize) -> Looks {
    let spent = |look: usize| ALPHA * ((E - 1.0) * look as f64 / most.max(1) as f64).ln_1p();
    let alphas = (1..=most).map(|look| spent(look) - spent(look - 1)).collect();
    Looks { spending: Spending::LanDeMetsPocock, alphas, at: 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_share_error_budget() {
        for most in 1..=100 {
            let alphas = looks(most).alphas;
            assert_eq!(alphas.len(), most);
            let (sum, last) = (alphas.iter().sum::<f64>(), alphas[most - 1]);
            assert!((sum - ALPHA).abs() < 1e-12, "{most} looks spend {sum}, the last of them {last}");
            assert!(
                alphas.iter().all(|alpha| *alpha > 0.0) && alphas.is_sorted_by(|a, b| a > b),
                "{alphas:?}"
            );
        }
    }

    #[test]
    fn alpha_spending_matches_lan_demets() {
        // Lan and DeMets 1983: half of the information spends ln(1.859) = 62 % of the error.
        let [first, second] = looks(2).alphas[..] else { panic!("two looks") };
        assert!((first / ALPHA - 0.6201).abs() < 1e-4 && (second / ALPHA - 0.3799).abs() < 1e-4);
    }
}
