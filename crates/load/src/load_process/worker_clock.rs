//! Compares the clock of a load-sending process with the local clock, throughout the load.

use std::time::Duration;

use super::Note;
use rolldrop_record::run_info::{Role, Source};
use rolldrop_record::{ClockOffset, EventKind, Offsets, Stamp};

/// Number of exchanges before the load starts; the one with the shortest round trip counts.
pub(crate) const FIRST_EXCHANGES: usize = 8;
/// Interval between later exchanges.
pub(crate) const INTERVAL: Duration = Duration::from_secs(2);

/// Results of clock exchanges with a process.
#[derive(Debug, Default)]
pub(crate) struct WorkerClock {
    /// Start time and result of each exchange.
    samples: Vec<(Stamp, ClockOffset)>,
}

impl WorkerClock {
    /// Returns the number of exchanges.
    pub(crate) fn exchanges(&self) -> usize {
        self.samples.len()
    }

    /// Adds the result of an exchange that began at `sent`, and reports it for `sources`, which share the process's
    /// clock.
    pub(crate) fn add(&mut self, sent: Stamp, sample: ClockOffset, sources: &[String], note: &impl Note) {
        self.samples.push((sent, sample));
        for source in sources {
            note(None, sent, EventKind::clock_sample(source, sample));
        }
    }

    fn offset(&self) -> Option<ClockOffset> {
        Offsets::of(self.samples.iter().copied()).map(|offsets| offsets.overall())
    }

    /// Returns how far the process's clock is ahead of the local clock, in nanoseconds; 0 before the first exchange.
    pub(crate) fn offset_ns(&self) -> i64 {
        self.offset().map_or(0, |offset| offset.offset_ns)
    }

    /// Returns these sources, which share the process's clock, in the format of run.json.
    pub(crate) fn recorders(&self, sources: &[String]) -> Vec<Source> {
        let offset = self.offset();
        let source = |name: &String| Source {
            name: name.clone(),
            role: Role::Load,
            clock_offset_ns: offset.map_or(0, |offset| offset.offset_ns),
            clock_uncertainty_ns: offset.map(|offset| offset.uncertainty_ns),
            rows: None,
        };
        sources.iter().map(source).collect()
    }
}
