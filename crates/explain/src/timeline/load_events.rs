//! Start and end of the load, and the number of scheduled requests, from the records.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use rolldrop_record::{EventKind, Outcome, RunInfo, Stamp};

/// Maximum duration of a load. It is limited because the seconds of a run are counted one by one.
pub(super) const LONGEST: Duration = Duration::from_secs(12 * 24 * 60 * 60);

/// Tolerance for load events outside the run's times. Both are on the coordinator's clock, to which a load worker's
/// events are converted.
const SLACK: Duration = Duration::from_secs(60);

/// Collects the events about the load.
#[derive(Debug)]
pub(super) struct LoadCollector {
    /// Period in which the load may have been under way.
    possible: RangeInclusive<Stamp>,
    /// Names of events outside that period.
    pub(super) impossible: Vec<&'static str>,
    /// Time the first source began.
    pub(super) started: Option<Stamp>,
    /// Time the first counted part began.
    pub(super) counted: Option<Stamp>,
    /// Time the last source finished.
    pub(super) ended: Option<Stamp>,
    /// Number of rows reported by the sources.
    pub(super) announced: Option<u64>,
    pub(super) stages: Vec<(Stamp, f64, f64)>,
    pub(super) tallies: BTreeMap<String, BTreeMap<Outcome, u64>>,
}

impl LoadCollector {
    /// Creates an empty collector.
    pub(super) fn of(info: &RunInfo) -> Self {
        let longest = info.started + LONGEST;
        let latest = info.ended.map_or(longest, |ended| ended.min(longest));
        Self {
            possible: info.started - SLACK..=latest + SLACK,
            impossible: Vec::new(),
            started: None,
            counted: None,
            ended: None,
            announced: None,
            stages: Vec::new(),
            tallies: BTreeMap::new(),
        }
    }

    pub(super) fn observe(&mut self, at: Stamp, kind: &EventKind) {
        let name = match kind {
            EventKind::LoadStarted { .. } => "load_started",
            EventKind::LoadStage { .. } => "load_stage",
            EventKind::LoadEnded { .. } => "load_ended",
            _ => "",
        };
        if !name.is_empty() && !self.possible.contains(&at) {
            self.impossible.push(name);
            return;
        }
        match kind {
            EventKind::LoadStarted { warmup_s, .. } => {
                let warmup = Duration::try_from_secs_f64(*warmup_s).unwrap_or_default().min(LONGEST);
                let counted = at + warmup;
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

    /// Returns true if events show when the load began and ended.
    pub(super) fn is_timed(&self) -> bool {
        self.started.is_some() && self.ended.is_some()
    }

    /// Returns the start and end of the load. Without an event, they are taken from the first and last times in `rows`,
    /// if known.
    pub(super) fn lasted(&self, info: &RunInfo, rows: (Option<Stamp>, Option<Stamp>)) -> (Stamp, Stamp) {
        let started = self.started.or(rows.0).unwrap_or(info.started);
        (started, self.ended.or(rows.1).unwrap_or(started))
    }
}
