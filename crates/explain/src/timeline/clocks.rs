//! Converts the stamps of all sources to the coordinator's clock.

use std::collections::{BTreeMap, BTreeSet};

pub use rolldrop_record::event::API_SERVER;
use rolldrop_record::run_info::Role;
use rolldrop_record::{ClockOffset, Event, EventKind, Offsets, RunInfo, Stamp};

/// Offsets of all clocks in a run.
#[derive(Clone, Debug, Default)]
pub struct Clocks {
    sampled: BTreeMap<String, Offsets>,
    /// Offsets from run.json, for clocks without samples.
    told: BTreeMap<String, ClockOffset>,
    unsampled: BTreeSet<String>,
}

impl Clocks {
    /// Takes the offsets from the clock samples, or from run.json for a source without samples.
    pub fn new(info: &RunInfo, events: &[Event]) -> Self {
        let mut samples: BTreeMap<&str, Vec<(Stamp, ClockOffset)>> = BTreeMap::new();
        for event in events {
            if let EventKind::ClockSample { of, offset_ns, uncertainty_ns } = &event.kind {
                let sample = ClockOffset { offset_ns: *offset_ns, uncertainty_ns: *uncertainty_ns };
                samples.entry(of).or_default().push((event.at, sample));
            }
        }
        let mut clocks = Self::default();
        for source in info.sources.iter().filter(|s| s.role != Role::Coordinator) {
            if source.clock_uncertainty_ns.is_none() && !samples.contains_key(source.name.as_str()) {
                clocks.unsampled.insert(source.name.clone());
            }
            let uncertainty_ns = source.clock_uncertainty_ns.unwrap_or(0);
            let told = ClockOffset { offset_ns: source.clock_offset_ns, uncertainty_ns };
            clocks.told.insert(source.name.clone(), told);
        }
        let curves =
            samples.into_iter().filter_map(|(of, samples)| Some((of.to_owned(), Offsets::of(samples)?)));
        clocks.sampled = curves.collect();
        clocks
    }

    /// Takes the API server's offset from samples, for a record without a run; `None` without samples.
    pub(super) fn of_api_server(samples: &[(Stamp, ClockOffset)]) -> Option<Self> {
        let offsets = Offsets::of(samples.iter().copied())?;
        Some(Self { sampled: BTreeMap::from([(API_SERVER.to_owned(), offsets)]), ..Self::default() })
    }

    /// Returns the offset of a source's clock when it showed `at`; 0 for the coordinator's own clock, and for an
    /// unknown one.
    pub fn offset(&self, source: &str, at: Stamp) -> ClockOffset {
        let sampled = self.sampled.get(source).map(|offsets| offsets.at(at));
        sampled.or_else(|| self.told.get(source).copied()).unwrap_or_default()
    }

    /// Returns true if anything is known about this clock.
    pub fn knows(&self, source: &str) -> bool {
        self.sampled.contains_key(source) || self.told.contains_key(source)
    }

    /// Returns the sources whose clock samples contradict each other. The API server's clock may be set while it runs.
    pub fn contradictory(&self) -> impl Iterator<Item = &str> {
        let sampled = self.sampled.iter().filter(|(of, offsets)| offsets.contradict() && *of != API_SERVER);
        sampled.map(|(of, _)| of.as_str())
    }

    /// Returns the uncertainty of a source's clock when it showed `at`, in nanoseconds; `None` if it was never compared
    /// with the coordinator's.
    pub fn uncertainty_ns(&self, source: &str, at: Stamp) -> Option<i64> {
        let is_compared = self.knows(source) && !self.unsampled.contains(source);
        is_compared.then(|| self.offset(source, at).uncertainty_ns)
    }

    /// Returns the sources that were never compared with the coordinator.
    pub fn unsampled(&self) -> impl Iterator<Item = &str> {
        self.unsampled.iter().map(String::as_str)
    }

    /// Converts a stamp of `source` to the coordinator's clock.
    pub fn place(&self, source: &str, at: Stamp) -> Stamp {
        at.shifted_ns(-self.offset(source, at).offset_ns)
    }
}
