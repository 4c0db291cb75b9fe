//! Counts the times between successive events of one worker's streams, by second and length.
//!
//! Lengths are rounded to six significant bits, so that counting a gap increments one of 1,920 counters.

use std::sync::Arc;
use std::time::Duration;

use rolldrop_record::{GapRow, Stamp};

/// Number of significant bits of a length after the first one.
const BITS: u32 = 5;
/// Number of distinct lengths after rounding.
const BUCKETS: usize = ((u64::BITS - BITS + 1) << BITS) as usize;
/// Length of the periods over which gaps are counted.
const SECOND: Duration = Duration::from_secs(1);

/// Gaps of the current second, and rows of earlier seconds.
#[derive(Debug)]
pub(super) struct GapCounts {
    /// Beginning of the current second.
    second: Stamp,
    counts: Vec<u64>,
    rows: Vec<GapRow>,
    source: Arc<str>,
}

impl GapCounts {
    /// Creates the counts for a worker.
    pub(super) fn new(source: Arc<str>) -> Self {
        Self { second: Stamp::default(), counts: vec![0; BUCKETS], rows: Vec::new(), source }
    }

    /// Adds gaps of the same length that ended at the same time.
    pub(super) fn add(&mut self, ended: Stamp, ns: i64, gaps: u64) {
        self.end_before(ended);
        self.counts[bucket(u64::try_from(ns).unwrap_or(0))] += gaps;
    }

    /// Begins the second that contains `now` if the current one has ended.
    fn end_before(&mut self, now: Stamp) {
        if now < self.second + SECOND {
            return;
        }
        self.end();
        self.second = now.shifted_ns(-now.unix_ns().rem_euclid(1_000_000_000));
    }

    fn end(&mut self) {
        for (bucket, gaps) in self.counts.iter_mut().enumerate().filter(|(_, gaps)| **gaps > 0) {
            let gaps = std::mem::take(gaps);
            let (source, second) = (Arc::clone(&self.source), self.second);
            self.rows.push(GapRow { source, second, gap_ns: middle(bucket), gaps });
        }
    }

    /// Takes the rows of the seconds that have ended by `now`; `None` takes the rows of all seconds.
    pub(super) fn take(&mut self, now: Option<Stamp>) -> Vec<GapRow> {
        match now {
            Some(now) => self.end_before(now),
            None => self.end(),
        }
        std::mem::take(&mut self.rows)
    }
}

/// Returns the number of a length's bucket. Each length below 64 ns has its own bucket; the width of any other bucket
/// is at most 1/32 of its lengths.
fn bucket(ns: u64) -> usize {
    let rest = (u64::BITS - ns.leading_zeros()).saturating_sub(BITS + 1);
    let within = usize::try_from(ns >> rest).unwrap_or(usize::MAX);
    (rest as usize * (1 << BITS)) + within
}

/// Returns the middle of a bucket.
fn middle(bucket: usize) -> u64 {
    let rest = (bucket >> BITS).saturating_sub(1);
    let from = ((bucket - (rest << BITS)) as u64) << rest;
    from + (1 << rest >> 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn gap_rounding_error_is_bounded(ns in 0..i64::MAX.cast_unsigned(), shift in 0..63_u32) {
            let ns = ns >> shift;
            let rounded = middle(bucket(ns));
            prop_assert!(rounded.abs_diff(ns) <= ns / 64, "{} {}", ns, rounded);
        }
    }

    #[test]
    fn gaps_are_counted_by_second() {
        let at = |ms: i64| Stamp::from_unix_ns(1_800_000_000_000_000_000 + ms * 1_000_000);
        let mut counts = GapCounts::new("load-0".into());
        for (ended, ns, gaps) in [(100, 40, 1), (900, 40, 2), (999, 0, 5), (1000, 40, 1), (5200, 63, 1)] {
            counts.add(at(ended), ns, gaps);
        }
        let row = |second, gap_ns, gaps| GapRow { source: "load-0".into(), second: at(second), gap_ns, gaps };
        assert_eq!(counts.take(Some(at(5900))), [row(0, 0, 5), row(0, 40, 3), row(1000, 40, 1)]);
        assert_eq!(counts.take(Some(at(6000))), [row(5000, 63, 1)]);
        counts.add(at(6001), 7, 1);
        assert_eq!(counts.take(None), [row(6000, 7, 1)]);
        assert_eq!(counts.take(None), []);
    }
}
