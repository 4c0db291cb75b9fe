//! Quantiles of rates and counts whose mean is uncertain.
//!
//! A weighted sum of Poisson counts is close to a gamma distribution with the same mean and variance (Fay and Feuer
//! 1997). A Poisson count with a gamma mean is negative binomial, with any real number of failures (Greenwood and Yule
//! 1920).

use statrs::distribution::{ContinuousCDF, DiscreteCDF, Gamma, NegativeBinomial, Poisson};

/// Returns a quantile of the gamma distribution with this mean and variance.
pub fn rate_quantile(mean: f64, variance: f64, p: f64) -> f64 {
    Gamma::new(mean * mean / variance, mean / variance).map_or(mean, |gamma| gamma.inverse_cdf(p))
}

/// Returns the smallest count that is not exceeded with probability `p`, for counts with this mean and variance. If the
/// variance is below the mean, the counts are treated as Poisson.
pub fn count_quantile(mean: f64, variance: f64, p: f64) -> u64 {
    let excess = variance - mean;
    if excess <= 1e-9 * mean {
        return Poisson::new(mean).map_or(0, |poisson| poisson.inverse_cdf(p));
    }
    NegativeBinomial::new(mean * mean / excess, mean / variance).map_or(0, |counts| counts.inverse_cdf(p))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_quantiles_match_chi_square_table() {
        // A gamma variable of shape 5 and scale 2 is chi-square with 10 degrees of freedom.
        for (p, table) in [(0.025, 3.247), (0.5, 9.342), (0.975, 20.483)] {
            let quantile = rate_quantile(10.0, 20.0, p);
            assert!((quantile - table).abs() < 1e-3, "{p}: {quantile}");
        }
        assert_eq!(rate_quantile(2.0, 0.0, 0.9), 2.0, "a rate that is known exactly");
    }

    #[test]
    fn count_quantiles_match_sums() {
        // Poisson with mean 4: P(X <= 0) = 0.018, P(X <= 8) = 0.979, P(X <= 7) = 0.949.
        assert_eq!((count_quantile(4.0, 4.0, 0.025), count_quantile(4.0, 1.0, 0.975)), (1, 8));
        // Negative binomial with one failure and p = 1/5: P(X <= k) = 1 - 0.8^(k + 1).
        assert_eq!((count_quantile(4.0, 20.0, 0.5), count_quantile(4.0, 20.0, 0.975)), (3, 16));
        assert_eq!(count_quantile(0.0, 0.0, 0.975), 0);
    }
}
