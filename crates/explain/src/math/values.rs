//! Latencies and send lag, as HDR histograms with three digits.

use foldhash::HashMap;
use hdrhistogram::Histogram;

use crate::model::{LatencyBucket, Percentiles, SendLag};

/// Values in nanoseconds.
#[derive(Clone, Debug)]
pub(crate) struct ValueHistogram {
    histogram: Option<Histogram<u64>>,
}

impl Default for ValueHistogram {
    fn default() -> Self {
        Self { histogram: Histogram::new(3).ok() }
    }
}

impl Percentiles {
    /// Computes percentiles in milliseconds from values in nanoseconds.
    pub fn of_ns(ns: &Histogram<u64>) -> Self {
        let at = |quantile| ns.value_at_quantile(quantile) as f64 / 1e6;
        Self {
            n: ns.len(),
            mean: if ns.is_empty() { 0.0 } else { ns.mean() / 1e6 },
            p50: at(0.5),
            p90: at(0.9),
            p95: at(0.95),
            p99: at(0.99),
            p99_9: at(0.999),
            max: at(1.0),
        }
    }
}

impl SendLag {
    /// Computes the send lag in microseconds from values in nanoseconds.
    pub fn of_ns(ns: &Histogram<u64>) -> Self {
        let at = |quantile| ns.value_at_quantile(quantile) as f64 / 1e3;
        Self { p50: at(0.5), p99: at(0.99), max: at(1.0) }
    }
}

impl ValueHistogram {
    /// Adds a value; a negative one counts as 0.
    pub(crate) fn add(&mut self, ns: i64) {
        self.add_equal(u64::try_from(ns).unwrap_or(0), 1);
    }

    /// Adds `n` equal values.
    pub(crate) fn add_equal(&mut self, ns: u64, n: u64) {
        if let Some(h) = &mut self.histogram {
            // The histogram grows as needed; only a value beyond its range could cause an error.
            let _ = h.record_n(ns, n);
        }
    }

    /// Adds all values of `others`.
    pub(crate) fn merge(&mut self, others: &Self) {
        if let Some((own, others)) = self.histogram.as_mut().zip(others.histogram.as_ref()) {
            // The histogram grows as needed.
            let _ = own.add(others);
        }
    }

    /// Returns the number of values.
    pub(crate) fn count(&self) -> u64 {
        self.histogram.as_ref().map_or(0, Histogram::len)
    }

    /// Returns a quantile in nanoseconds; 0 without values.
    pub(crate) fn quantile_ns(&self, quantile: f64) -> i64 {
        let value = self.histogram.as_ref().map_or(0, |h| h.value_at_quantile(quantile));
        i64::try_from(value).unwrap_or(i64::MAX)
    }

    pub(crate) fn percentiles(&self) -> Percentiles {
        self.histogram.as_ref().map(Percentiles::of_ns).unwrap_or_default()
    }

    pub(crate) fn send_lag(&self) -> SendLag {
        self.histogram.as_ref().map(SendLag::of_ns).unwrap_or_default()
    }

    /// Returns the non-empty buckets of equal width on a logarithmic axis, twenty per decade.
    pub(crate) fn buckets(&self) -> Vec<LatencyBucket> {
        const PER_DECADE: f64 = 20.0;
        let mut buckets: Vec<LatencyBucket> = Vec::new();
        let Some(h) = &self.histogram else { return buckets };
        for value in h.iter_recorded() {
            let ms = (value.value_iterated_to() as f64 / 1e6).max(1e-3);
            let step = (ms.log10() * PER_DECADE).floor();
            let from_ms = 10f64.powf(step / PER_DECADE);
            let to_ms = 10f64.powf((step + 1.0) / PER_DECADE);
            let count = value.count_at_value();
            match buckets.last_mut() {
                Some(last) if last.from_ms == from_ms => last.count += count,
                _ => buckets.push(LatencyBucket { from_ms, to_ms, count }),
            }
        }
        buckets
    }
}

/// Number of buckets in a group.
const GROUP: usize = 4;

/// Values in nanoseconds for one of many seconds. Only groups of buckets with a value use memory. Latencies are similar,
/// so those of a second are in few groups, which the processor's cache holds.
#[derive(Debug, Default)]
pub(crate) struct FewValues(HashMap<usize, [u32; GROUP]>);

impl FewValues {
    /// Adds a value, as [`ValueHistogram::add`] does.
    pub(crate) fn add(&mut self, ns: i64) {
        let bucket = bucket(u64::try_from(ns).unwrap_or(0));
        self.0.entry(bucket / GROUP).or_default()[bucket % GROUP] += 1;
    }

    /// Adds all values of `others`.
    pub(crate) fn merge(&mut self, others: Self) {
        for (number, others) in others.0 {
            let own = self.0.entry(number).or_default();
            own.iter_mut().zip(others).for_each(|(n, others)| *n += others);
        }
    }

    /// Converts the buckets to [`ValueHistogram`].
    pub(crate) fn values(&self) -> ValueHistogram {
        let mut values = ValueHistogram::default();
        for (number, counts) in &self.0 {
            for (place, n) in counts.iter().enumerate().filter(|(_, n)| **n > 0) {
                values.add_equal(lowest_ns(number * GROUP + place), (*n).into());
            }
        }
        values
    }
}

/// Number of significant bits that buckets distinguish: three decimal digits need eleven.
const BITS: u32 = 11;

/// Returns the bucket for a number of nanoseconds. Buckets are numbered in the order of their values.
#[expect(clippy::cast_possible_truncation, reason = "the number has at most 11 bits")]
fn bucket(ns: u64) -> usize {
    let rest = (u64::BITS - ns.leading_zeros()).saturating_sub(BITS);
    // With a rest, the highest of the significant bits is always set.
    ((rest as usize) << (BITS - 1)) + (ns >> rest) as usize
}

/// Returns the smallest number of nanoseconds in a bucket.
fn lowest_ns(bucket: usize) -> u64 {
    let rest = (bucket >> (BITS - 1)).saturating_sub(1);
    ((bucket - (rest << (BITS - 1))) as u64) << rest
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn few_values_match_full_histogram(drawn in prop::collection::vec((-1_i64..4000, 0_u32..40), 0..50)) {
            let (mut few, mut values) = (FewValues::default(), ValueHistogram::default());
            for (ns, shift) in drawn {
                few.add(ns << shift);
                values.add(ns << shift);
            }
            prop_assert_eq!(few.values().percentiles(), values.percentiles());
            prop_assert_eq!(few.values().buckets(), values.buckets());
        }
    }

    #[test]
    fn histogram_keeps_three_digits() {
        let mut values = ValueHistogram::default();
        for ms in 1..=1000 {
            values.add(ms * 1_000_000);
        }
        let p = values.percentiles();
        assert_eq!(p.n, 1000);
        for (found, expected) in [(p.p50, 500.0), (p.p90, 900.0), (p.p99, 990.0), (p.max, 1000.0)] {
            assert!((found / expected - 1.0f64).abs() < 2e-3, "{found} for {expected}");
        }
        assert_eq!(values.buckets().iter().map(|b| b.count).sum::<u64>(), 1000);
    }
}
