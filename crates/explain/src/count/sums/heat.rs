//! Answered requests by latency and time, for the heat map.

use super::by_time::{ByTime, Sum};
use crate::model::{HeatMap, LatencyBucket};

/// Number of buckets per factor of two.
const PER_OCTAVE: usize = 4;
/// Octave of the first bucket, which also holds everything faster than 2^10 ns, about a microsecond.
const FIRST_OCTAVE: usize = 10;
/// Number of octaves; the last bucket also holds everything slower than 2^38 ns, about 275 s.
const OCTAVES: usize = 28;

/// Answered requests in a step, by latency bucket.
#[derive(Debug)]
pub(crate) struct Buckets([u64; OCTAVES * PER_OCTAVE]);

impl Default for Buckets {
    fn default() -> Self {
        Self([0; OCTAVES * PER_OCTAVE])
    }
}

impl Sum for Buckets {
    fn merge(&mut self, other: Self) {
        self.0.iter_mut().zip(other.0).for_each(|(count, its)| *count += its);
    }
}

/// Answered requests in the counted part, by intended send time and latency.
#[derive(Debug, Default)]
pub(crate) struct Heat(ByTime<Buckets>);

impl Heat {
    /// Adds a request whose intended send time is `since_ns` after the counted part began, and that took `ns`.
    pub(crate) fn add(&mut self, since_ns: i64, ns: i64) {
        self.0.at(since_ns).0[bucket(ns)] += 1;
    }

    pub(crate) fn finish(self) -> HeatMap {
        let (step_s, steps) = self.0.finish();
        let of = |step: Buckets| {
            let filled = step.0.into_iter().enumerate().filter(|(_, count)| *count > 0);
            let of = |(i, count)| LatencyBucket { from_ms: edge_ms(i), to_ms: edge_ms(i + 1), count };
            filled.map(of).collect()
        };
        HeatMap { step_s, columns: steps.into_iter().map(of).collect() }
    }
}

impl Sum for Heat {
    fn merge(&mut self, other: Self) {
        self.0.merge(other.0);
    }
}

/// Returns the bucket for a latency, from the highest set bit of its nanoseconds and the two bits after it.
fn bucket(ns: i64) -> usize {
    let ns = u64::try_from(ns).unwrap_or(0).max(1 << FIRST_OCTAVE);
    let octave = ns.ilog2() as usize;
    let quarter = usize::try_from(ns >> (octave - 2) & 3).unwrap_or(0);
    ((octave - FIRST_OCTAVE) * PER_OCTAVE + quarter).min(OCTAVES * PER_OCTAVE - 1)
}

/// Returns the lower edge of a bucket, in milliseconds.
fn edge_ms(bucket: usize) -> f64 {
    let quarters = (PER_OCTAVE + bucket % PER_OCTAVE) as u64;
    (quarters << (FIRST_OCTAVE - 2 + bucket / PER_OCTAVE)) as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heat_bucket_edges_enclose_latency() {
        for shift in 10..37 {
            for quarter in [0, 1, 2, 3] {
                let edge = (4_i64 + quarter) << (shift - 2);
                for ns in [edge, edge + (1 << (shift - 2)) - 1] {
                    let ms = ns as f64 / 1e6;
                    let i = bucket(ns);
                    assert!(edge_ms(i) <= ms && ms < edge_ms(i + 1), "{ns}: {i}");
                }
            }
        }
        assert_eq!([bucket(-5), bucket(0), bucket(1025)], [0, 0, 0]);
        assert_eq!(bucket(i64::MAX), OCTAVES * PER_OCTAVE - 1);
    }

    #[test]
    fn heat_column_matches_request_time() {
        let mut heat = Heat::default();
        [(0, 2_000_000), (100_000_000, 2_000_001), (130_000_000, 900_000_000)]
            .iter()
            .for_each(|(at, ns)| heat.add(*at, *ns));
        let map = heat.finish();
        let counts: Vec<Vec<u64>> =
            map.columns.iter().map(|column| column.iter().map(|bucket| bucket.count).collect()).collect();
        assert_eq!((map.step_s, counts), (0.125, vec![vec![2], vec![1]]));
    }
}
