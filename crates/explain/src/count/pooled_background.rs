//! Number of losses to expect without any of several terminations.
//!
//! The upper limits of many terminations do not add up: few periods have that many losses, and it is most unlikely that
//! all do. Their means and variances do. The sum's limits are those of a negative binomial distribution with that mean
//! and variance ([`count_quantile`]), so they also hold where losses are rare or come in bursts. What terminations at
//! about the same time have in common does not average out: there, standard deviations are added instead of variances.

use serde::{Deserialize, Serialize};

use crate::math::counts::count_quantile;
use crate::model::{BackgroundSpread, Bounded};
use rolldrop_record::Stamp;

/// Time within which terminations have losses in common: their background comes from the ten minutes before them.
const TOGETHER_NS: i64 = 600_000_000_000;
/// Share of such sums below the lower limit, and above the upper one, as for a single termination.
const BEYOND: f64 = 0.025;

/// Sums over terminations of the losses to expect without them. Only their limits are written.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "Bounded", into = "Bounded")]
pub struct PooledBackground {
    terminations: u64,
    /// Sum of the terminations' own limits.
    own_limits: Bounded,
    /// Those of them that have no spread, from records of earlier versions.
    without_spread: Bounded,
    mean: f64,
    /// Variance of the sum, except for what the latest terminations have in common.
    variance: f64,
    /// Time of the first of the latest terminations.
    latest: Stamp,
    /// Sum of the standard deviations that the latest terminations have in common.
    shared_deviation: f64,
}

impl PooledBackground {
    /// Adds the losses to expect without a termination that began at `t0`.
    pub fn add(&mut self, t0: Stamp, background: &Bounded, spread: Option<BackgroundSpread>) {
        self.terminations += 1;
        self.own_limits.merge(background);
        let Some(BackgroundSpread { own, shared }) = spread else {
            return self.without_spread.merge(background);
        };
        if t0.ns_since(self.latest).saturating_abs() >= TOGETHER_NS {
            self.variance += self.shared_deviation.powi(2);
            (self.latest, self.shared_deviation) = (t0, 0.0);
        }
        self.mean += background.estimate;
        self.variance += own;
        self.shared_deviation += shared.sqrt();
    }

    /// Returns the range of the middle 95 % of sums, and the mean. A single termination keeps its own limits.
    pub fn limits(&self) -> Bounded {
        if self.terminations <= 1 {
            return self.own_limits;
        }
        let variance = self.variance + self.shared_deviation.powi(2);
        let quantile = |p: f64| count_quantile(self.mean, variance, p);
        let sum =
            Bounded { at_least: quantile(BEYOND), at_most: quantile(1.0 - BEYOND), estimate: self.mean };
        sum.plus(&self.without_spread)
    }
}

impl From<Bounded> for PooledBackground {
    fn from(own_limits: Bounded) -> Self {
        Self { own_limits, ..Self::default() }
    }
}

impl From<PooledBackground> for Bounded {
    fn from(pooled: PooledBackground) -> Self {
        pooled.limits()
    }
}
