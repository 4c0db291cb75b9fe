//! What the records say about the load: when it began and ended, and how much was scheduled.

use std::collections::BTreeMap;
use std::time::Duration;

use rolldrop_record::{EventKind, Outcome, RunInfo, Stamp};

/// Takes the events of the load.
#[derive(Debug, Default)]
pub(super) struct Collector {
    /// When the first source began.
    pub(super) started: Option<Stamp>,
    /// When the first counted part began.
    pub(super) counted: Option<Stamp>,
    /// When the last source ended.
    pub(super) ended: Option<Stamp>,
    /// Number of rows that the sources reported.
    pub(super) announced: Option<u64>,
    pub(super) stages: Vec<(Stamp, f64, f64)>,
    pub(super) tallies: BTreeMap<String, BTreeMap<Outcome, u64>>,
}

impl Collector {
    pub(super) fn observe(&mut self, at: Stamp, kind: &EventKind) {
        match kind {
            EventKind::LoadStarted { warmup_s, .. } => {
                let counted = at + Duration::from_secs_f64(warmup_s.max(0.0));
                self.started = Some(self.started.map_or(at, |t| t.min(at)));
                self.counted = Some(self.counted.map_or(counted, |t| t.min(counted)));
            }
            EventKind::LoadStage { from, to, .. } => self.stages.push((at, *from, *to)),
            EventKind::LoadEnded { scheduled } => {
                self.ended = Some(self.ended.map_or(at, |t| t.max(at)));
                self.announced = Some(self.announced.unwrap_or(0) + scheduled);
            }
            EventKind::LoadCounted { of, outcomes } => {
                self.tallies.insert(of.clone(), outcomes.clone());
            }
            _ => {}
        }
    }

    /// Whether events say when it began and ended.
    pub(super) fn is_timed(&self) -> bool {
        self.started.is_some() && self.ended.is_some()
    }

    /// When it began and ended: if no event says so, by the first and last time of its `rows`, as far as these are known.
    pub(super) fn lasted(&self, info: &RunInfo, rows: (Option<Stamp>, Option<Stamp>)) -> (Stamp, Stamp) {
        let started = self.started.or(rows.0).unwrap_or(info.started);
        (started, self.ended.or(rows.1).unwrap_or(started))
    }
}
