//! Tests whether a figure grows from run to run, with the one-sided Mann-Kendall test (Mann 1945, Kendall 1975).

use super::exact::below;

/// Maximum number of values for the exact test. With more values, or with ties, the normal approximation is close
/// enough.
const MOST_EXACT: usize = 30;

/// Returns the probability that values in random order grow at least as steadily as these.
pub(crate) fn grows(values: &[f64]) -> f64 {
    let pairs = || (0..values.len()).flat_map(|i| (i + 1..values.len()).map(move |j| (i, j)));
    let rising = pairs().filter(|(i, j)| values[*j] > values[*i]).count();
    let falling = pairs().filter(|(i, j)| values[*j] < values[*i]).count();
    let is_tied = rising + falling < pairs().count();
    if values.len() < 2 {
        1.0
    } else if values.len() <= MOST_EXACT && !is_tied {
        exact(values.len(), falling)
    } else {
        normal(values, rising as f64 - falling as f64)
    }
}

/// Returns the share of permutations of `n` distinct values that have at most this many inversions (Mahonian numbers).
fn exact(n: usize, falling: usize) -> f64 {
    let mut shares = vec![1.0];
    for i in 2..=n {
        let mut next = vec![0.0; shares.len() + i - 1];
        for (falls, share) in shares.iter().enumerate() {
            next[falls..falls + i].iter_mut().for_each(|of| *of += share / i as f64);
        }
        shares = next;
    }
    shares.iter().take(falling + 1).sum::<f64>().min(1.0)
}

/// Returns the probability by the normal approximation, corrected for ties and for continuity.
fn normal(values: &[f64], score: f64) -> f64 {
    let term = |n: usize| (n * n.saturating_sub(1) * (2 * n + 5)) as f64;
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let ties: f64 = sorted.chunk_by(|a, b| a == b).map(|equal| term(equal.len())).sum();
    let variance = (term(values.len()) - ties) / 18.0;
    if variance <= 0.0 { 1.0 } else { 1.0 - below((score - 1.0) / variance.sqrt()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steady_growth_has_small_p_value() {
        assert!((grows(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) - 1.0 / 720.0).abs() < 1e-12);
        assert!((grows(&[3.0, 2.0, 1.0]) - 1.0).abs() < 1e-12);
        // Two of the six permutations of three values have at most one inversion, and one has none.
        assert!((grows(&[2.0, 1.0, 3.0]) - 0.5).abs() < 1e-12);
        assert_eq!((grows(&[]), grows(&[1.0; 9])), (1.0, 1.0));
        let tied = grows(&[1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0, 5.0, 5.0]);
        assert!((1e-5..1e-3).contains(&tied), "{tied}");
    }
}
