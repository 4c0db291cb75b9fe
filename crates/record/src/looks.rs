//! Interim looks at a run that continues while its gate is inconclusive.

use serde::{Deserialize, Serialize};

use super::names::named;

/// Error probability of a gate over all its looks and, for a run without looks, of its bounds: the chance that a bound
/// is wrong.
pub const ALPHA: f64 = 0.05;

named! {
    /// Rule for dividing one error among the looks.
    pub enum Spending {
        /// The spending function of Lan and DeMets (1983) that resembles Pocock's bounds (1977).
        LanDeMetsPocock = "lan_demets_pocock",
    }
}

/// Plan of the looks at a gate, with the error allotted to each look. Everything except `at` is fixed before the run
/// starts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "UncheckedLooks")]
pub struct Looks {
    /// Rule that set the errors.
    pub spending: Spending,
    /// Error allotted to each look, in order; the sum is the error of the gate.
    pub alphas: Vec<f64>,
    /// Number of the look that judges the run, counted from 1.
    pub at: usize,
}

impl Looks {
    /// Returns the error allotted to the look that judges the run.
    pub fn alpha(&self) -> f64 {
        // `at` is always a valid look number, because a single function creates the looks, and deserialization checks
        // them.
        self.at.checked_sub(1).and_then(|index| self.alphas.get(index)).copied().unwrap_or(f64::MIN_POSITIVE)
    }

    /// Returns the maximum number of looks.
    pub fn most(&self) -> usize {
        self.alphas.len()
    }

    /// Returns true if this is the last look.
    pub fn is_last(&self) -> bool {
        self.at >= self.most()
    }
}

/// Looks as stored in run.json, before they are checked.
#[derive(Deserialize)]
struct UncheckedLooks {
    spending: Spending,
    alphas: Vec<f64>,
    at: usize,
}

/// Error for looks that cannot have been planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`looks` needs `alphas` above 0 that add up to less than 1, and `at` from 1 to the number of `alphas`"
)]
struct NoLooks;

impl TryFrom<UncheckedLooks> for Looks {
    type Error = NoLooks;

    fn try_from(UncheckedLooks { spending, alphas, at }: UncheckedLooks) -> Result<Self, NoLooks> {
        let is_error = alphas.iter().all(|alpha| *alpha > 0.0) && alphas.iter().sum::<f64>() < 1.0;
        let is_one = (1..=alphas.len()).contains(&at);
        (is_error && is_one).then_some(Self { spending, alphas, at }).ok_or(NoLooks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_reject_invalid_values_on_read() {
        let looks = Looks { spending: Spending::LanDeMetsPocock, alphas: vec![0.03, 0.02], at: 2 };
        let text = serde_json::to_string(&looks).unwrap();
        assert_eq!(text, r#"{"spending":"lan_demets_pocock","alphas":[0.03,0.02],"at":2}"#);
        assert_eq!(serde_json::from_str::<Looks>(&text).unwrap(), looks);
        assert_eq!((looks.alpha(), looks.most(), looks.is_last()), (0.02, 2, true));
        for (wrong, by) in
            [("\"at\":2", "\"at\":3"), ("\"at\":2", "\"at\":0"), ("0.03", "0"), ("0.03", "0.98")]
        {
            let error = serde_json::from_str::<Looks>(&text.replace(wrong, by)).unwrap_err().to_string();
            assert!(error.starts_with("`looks` needs `alphas` above 0"), "{by}: {error}");
        }
    }
}
