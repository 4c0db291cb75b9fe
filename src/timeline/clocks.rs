//! Brings the stamps of all sources onto the coordinator's clock.

use std::collections::{BTreeMap, BTreeSet};

pub use crate::record::event::API_SERVER;
use crate::record::run_info::Role;
use crate::record::{Event, EventKind, RunInfo, Stamp};

/// What is known about the offset of one clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offset {
    /// That clock minus the coordinator's, in nanoseconds.
    pub ns: i64,
    /// The true offset is within ± this many nanoseconds.
    pub uncertainty_ns: i64,
}

/// The offsets of all clocks of a run.
#[derive(Clone, Debug, Default)]
pub struct Clocks {
    offsets: BTreeMap<String, Offset>,
    unsampled: BTreeSet<String>,
}

impl Clocks {
    /// Takes the offsets from the clock samples, and where a source has none from run.json.
    pub fn new(info: &RunInfo, events: &[Event]) -> Self {
        let mut samples: BTreeMap<&str, Vec<Offset>> = BTreeMap::new();
        for event in events {
            if let EventKind::ClockSample { of, offset_ns, uncertainty_ns } = &event.kind {
                let sample = Offset { ns: *offset_ns, uncertainty_ns: *uncertainty_ns };
                samples.entry(of).or_default().push(sample);
            }
        }
        let mut clocks = Self::default();
        for source in info.sources.iter().filter(|s| s.role != Role::Coordinator) {
            if source.clock_uncertainty_ns.is_none() && !samples.contains_key(source.name.as_str()) {
                clocks.unsampled.insert(source.name.clone());
            }
            let uncertainty_ns = source.clock_uncertainty_ns.unwrap_or(0);
            clocks.offsets.insert(source.name.clone(), Offset { ns: source.clock_offset_ns, uncertainty_ns });
        }
        for (of, samples) in samples {
            if let Some(offset) = reconcile(&samples) {
                clocks.offsets.insert(of.to_owned(), offset);
            }
        }
        clocks
    }

    /// The offset of a source's clock; the coordinator's own is 0, as is one of which nothing is known.
    pub fn offset(&self, source: &str) -> Offset {
        self.offsets.get(source).copied().unwrap_or_default()
    }

    /// Whether anything is known about this clock.
    pub fn knows(&self, source: &str) -> bool {
        self.offsets.contains_key(source)
    }

    /// Sources that were never compared with the coordinator.
    pub fn unsampled(&self) -> impl Iterator<Item = &str> {
        self.unsampled.iter().map(String::as_str)
    }

    /// A stamp of `source` on the coordinator's clock.
    pub fn place(&self, source: &str, at: Stamp) -> Stamp {
        at.shifted_ns(-self.offset(source).ns)
    }
}

/// The best sample, widened until it touches the interval of every other one:
/// samples that disagree show that the clocks drifted between them.
fn reconcile(samples: &[Offset]) -> Option<Offset> {
    let best = *samples.iter().min_by_key(|s| s.uncertainty_ns)?;
    let uncertainty_ns =
        samples.iter().map(|s| (s.ns - best.ns).abs() - s.uncertainty_ns).fold(best.uncertainty_ns, i64::max);
    Some(Offset { uncertainty_ns, ..best })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tightest_sample_counts_and_disagreement_widens_it() {
        let at = |ns, uncertainty_ns| Offset { ns, uncertainty_ns };
        assert_eq!(reconcile(&[]), None);
        assert_eq!(reconcile(&[at(100, 50), at(90, 5)]), Some(at(90, 5)));
        assert_eq!(reconcile(&[at(150, 10), at(90, 5)]), Some(at(90, 50)));
    }
}
