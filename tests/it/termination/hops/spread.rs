//! The values of each hop measured on a real v1.36.2 cluster, and a comparison with ours.
//!
//! A hop agrees if our median lies between the 5th and the 95th percentile of the measured values, as 9 of 10 values of
//! the real cluster do, to within 1 ms, the resolution of the timers here. (A percentile is the smallest value that
//! this share of the sample does not exceed.) For information, the table also gives the probability that two samples
//! of one distribution differ as much as these, by the two-sample Kolmogorov-Smirnov test. The test compares whole
//! shapes, which matters for distributions with two peaks, but detects any difference between machines if the samples
//! are large enough.

use std::fmt::{self, Write};

const HOPS: &str = include_str!("../../golden/hops.txt");

/// Resolution of the timers here.
const RESOLUTION_MS: f64 = 1.0;

/// A hop and its measured values.
pub(super) struct Hop {
    /// Kind of termination, or `creation`. Groups are never pooled.
    pub(super) group: &'static str,
    /// Stage at which the hop begins; the initial request itself is not listed as a stage.
    pub(super) from: &'static str,
    pub(super) to: &'static str,
    pub(super) measured: Sample,
}

impl Hop {
    /// Returns all measured hops.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        HOPS.lines().filter(|line| !line.starts_with('#')).map(|line| {
            let words: Vec<&str> = line.split("; ").collect();
            let ms = words[3].split(' ').map(|ms| ms.parse::<f64>().expect("milliseconds"));
            Self { group: words[0], from: words[1], to: words[2], measured: Sample::of(ms.collect()) }
        })
    }
}

/// At least one value in milliseconds, sorted in ascending order.
pub(super) struct Sample(Vec<f64>);

impl Sample {
    pub(super) fn of(mut ms: Vec<f64>) -> Self {
        assert!(!ms.is_empty(), "nothing was measured");
        ms.sort_by(f64::total_cmp);
        Self(ms)
    }

    /// Returns the smallest value that this percentage of the sample does not exceed.
    pub(super) fn percentile(&self, percent: usize) -> f64 {
        let rank = (percent * self.0.len()).div_ceil(100);
        self.0[rank.clamp(1, self.0.len()) - 1]
    }

    pub(super) fn median(&self) -> f64 {
        self.percentile(50)
    }

    /// Returns the probability that the maximum distance between the two empirical distributions is due to chance
    /// (asymptotic, with Stephens' correction).
    fn kolmogorov_smirnov(&self, other: &Self) -> f64 {
        let below = |sample: &Self, x: f64| {
            sample.0.partition_point(|value| *value <= x) as f64 / sample.0.len() as f64
        };
        let distance = self.0.iter().chain(&other.0).map(|x| (below(self, *x) - below(other, *x)).abs());
        let distance = distance.fold(0.0, f64::max);
        let (n, m) = (self.0.len() as f64, other.0.len() as f64);
        let root = (n * m / (n + m)).sqrt();
        let lambda = (root + 0.12 + 0.11 / root) * distance;
        let terms = (1..=100).map(|j| {
            let j = f64::from(j);
            (j % 2.0 * 2.0 - 1.0) * (-2.0 * j * j * lambda * lambda).exp()
        });
        if lambda < 0.2 { 1.0 } else { (2.0 * terms.sum::<f64>()).clamp(0.0, 1.0) }
    }
}

/// Minimum, median, 95th percentile, maximum, and number of values.
impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [min, median, p95, max] = [0, 50, 95, 100].map(|percent| self.percentile(percent));
        write!(f, "{min:.0} / {median:.0} / {p95:.0} / {max:.0} ({})", self.0.len())
    }
}

/// Markdown table of our hops beside the measured values.
pub(super) struct Table {
    text: String,
    hops: usize,
    agree: usize,
    /// Probability for each hop that the difference is due to chance.
    chances: Vec<f64>,
}

impl Table {
    pub(super) fn new() -> Self {
        let text = "| group | from | to | measured (ms) | here (ms) | median within p5 to p95 | KS p |\n\
                    |---|---|---|---|---|---|---|\n";
        Self { text: text.to_owned(), hops: 0, agree: 0, chances: Vec::new() }
    }

    /// Adds a hop. Returns how far our median lies outside the measured p5 to p95, in ms.
    pub(super) fn add(&mut self, hop: &Hop, ours: &Sample) -> f64 {
        let Hop { group, from, to, measured } = hop;
        let (low, high) = (measured.percentile(5), measured.percentile(95));
        let off = (low - ours.median()).max(ours.median() - high) - RESOLUTION_MS;
        let off = off.max(0.0);
        let p = measured.kolmogorov_smirnov(ours);
        self.hops += 1;
        self.agree += usize::from(off == 0.0);
        self.chances.push(p);
        let says = if off == 0.0 { "yes".to_owned() } else { format!("no: {low:.0} to {high:.0}") };
        let _ = writeln!(self.text, "| {group} | {from} | {to} | {measured} | {ours} | {says} | {p:.2} |");
        off
    }

    /// Returns the number of hops that differ from the measured ones at an overall level of 5 % (Holm).
    fn told_apart(&self) -> usize {
        let mut chances = self.chances.clone();
        chances.sort_by(f64::total_cmp);
        let left = (1..=chances.len()).rev().map(|left| 0.05 / left as f64);
        chances.iter().zip(left).take_while(|(p, limit)| *p < limit).count()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { text, hops, agree, .. } = self;
        let told_apart = self.told_apart();
        write!(f, "{text}\n{agree} of {hops} medians lie within the measured p5 to p95. ")?;
        writeln!(
            f,
            "By KS with Holm's correction at 5 %, {told_apart} of {hops} hops differ measurably from the real ones."
        )
    }
}

#[test]
fn ks_test_detects_shifted_distribution() {
    let numbers = |from: u32| Sample::of((from..from + 30).map(f64::from).collect());
    assert!((numbers(0).kolmogorov_smirnov(&numbers(0)) - 1.0).abs() < 1e-9);
    assert!(numbers(0).kolmogorov_smirnov(&numbers(3)) > 0.5);
    // D = 0.5 of 30 and 30: the tables' critical value at 0.1 % is 0.50.
    let p = numbers(0).kolmogorov_smirnov(&numbers(15));
    assert!((0.0003..0.002).contains(&p), "{p}");
    assert!(numbers(0).kolmogorov_smirnov(&numbers(40)) < 1e-6);
    assert_eq!([5, 50, 95].map(|percent| numbers(1).percentile(percent)), [2.0, 15.0, 29.0]);
}
