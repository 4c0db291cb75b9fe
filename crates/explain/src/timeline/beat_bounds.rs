//! Beats: bounds for the time a write by others took effect, from the versions of writes with known times.
//!
//! While pods may be terminated, a run or a watch patches its own object about ten times a second. A write with version
//! r took effect between the send time of the last beat with a lower version and the response time of the first beat
//! with a higher one. Kubernetes guarantees this order only within one resource (KEP-5504), so it is used only if the
//! beats themselves confirm it: see [`BeatCollector::judged`].

use std::collections::BTreeSet;

pub use crate::model::account::BeatsState;
use crate::model::account::Objection;
use rolldrop_record::event::{Change, PodEvent};
use rolldrop_record::{EventKind, Stamp};

/// Minimum number of comparisons between the beats and the pods' own versions.
const CHECKS_NEEDED: usize = 20;
/// Time between two removals of old beats.
const FORGET_EVERY_NS: i64 = 60_000_000_000;

/// Call with known times and version.
#[derive(Clone, Copy, Debug)]
struct BeatCall {
    sent: Stamp,
    answered: Stamp,
    version: u64,
}

/// Bounds for the time a write took effect, from the beats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bracket {
    /// Earliest possible time.
    pub(super) earliest: Option<Stamp>,
    /// Latest possible time.
    pub(super) latest: Option<Stamp>,
}

impl Bracket {
    /// Returns the time between the bounds, if both exist.
    pub(super) fn width_ns(&self) -> Option<i64> {
        Some(self.latest?.ns_since(self.earliest?))
    }
}

/// Beats of a run or a watch.
#[derive(Clone, Debug, Default)]
pub struct Beats {
    /// Usability of the beats.
    pub state: BeatsState,
    calls: Vec<BeatCall>,
}

impl Beats {
    /// Returns bounds for the time the write with this version took effect, or no bounds if the beats cannot be used.
    pub(super) fn bracket(&self, version: &str) -> Bracket {
        match version.parse() {
            Ok(version) if self.state == BeatsState::Usable => bracket(&self.calls, version),
            _ => Bracket::default(),
        }
    }
}

fn bracket(calls: &[BeatCall], version: u64) -> Bracket {
    let (last, first) = around(calls, version);
    Bracket { earliest: last.map(|last| calls[last].sent), latest: first.map(|first| calls[first].answered) }
}

/// Returns the indices of the last beat with a smaller version and of the first one with a larger version.
fn around(calls: &[BeatCall], version: u64) -> (Option<usize>, Option<usize>) {
    let smaller = calls.partition_point(|call| call.version < version);
    let larger = calls.partition_point(|call| call.version <= version);
    (smaller.checked_sub(1), Some(larger).filter(|first| *first < calls.len()))
}

/// Collects the beats, the checks to compare them with, and the pod versions shown by a watch.
#[derive(Debug, Default)]
pub(crate) struct BeatCollector {
    calls: Vec<BeatCall>,
    checks: Vec<BeatCall>,
    /// For each pod event in a watch: time, version, and true if the watch shows such versions in order.
    pods: Vec<(Stamp, u64, bool)>,
    not_a_number: Option<String>,
    forgotten: Forgotten,
}

/// Facts kept about the data that a collector has forgotten.
#[derive(Debug, Default)]
struct Forgotten {
    at: Stamp,
    checks: usize,
    objection: Option<Objection>,
}

impl BeatCollector {
    pub(crate) fn observe(&mut self, at: Stamp, kind: &EventKind) {
        match kind {
            EventKind::Beat { answered, version } => {
                let call = self.call(at, *answered, version);
                self.calls.extend(call);
            }
            EventKind::BeatCheck { answered, version } => {
                let call = self.call(at, *answered, version);
                self.checks.extend(call);
            }
            EventKind::Pod(PodEvent { change, resource_version, .. }) => {
                let version = self.number(resource_version);
                self.pods.extend(version.map(|version| (at, version, *change == Change::Applied)));
            }
            _ => {}
        }
    }

    fn call(&mut self, sent: Stamp, answered: Stamp, version: &str) -> Option<BeatCall> {
        Some(BeatCall { sent, answered, version: self.number(version)? })
    }

    fn number(&mut self, version: &str) -> Option<u64> {
        let number = version.parse().ok();
        if number.is_none() {
            self.not_a_number.get_or_insert_with(|| version.to_owned());
        }
        number
    }

    /// Returns the beats with a judgement. They are usable if all of the following are true: versions are integers; the
    /// beats' versions increase; at least [`CHECKS_NEEDED`] versions from pod lists, each between two beats in time,
    /// are also between them in number; and no pod was shown before a beat with a lower version was sent, or out of
    /// order.
    pub(crate) fn judged(&self) -> Beats {
        Beats { state: self.state(), calls: self.calls.clone() }
    }

    fn state(&self) -> BeatsState {
        if self.calls.is_empty() && self.checks.is_empty() && self.forgotten.checks == 0 {
            return BeatsState::Absent;
        }
        self.objection().map_or(BeatsState::Usable, BeatsState::Dropped)
    }

    /// Forgets what happened before `at`, except for the beats around these versions and any objection. Has an effect
    /// only once a minute.
    pub(crate) fn forget_before<'v>(&mut self, at: Stamp, versions: impl Iterator<Item = &'v str>) {
        if at.ns_since(self.forgotten.at) < FORGET_EVERY_NS {
            return;
        }
        self.forgotten.at = at;
        if self.forgotten.objection.is_none()
            && let BeatsState::Dropped(why) = self.state()
            && !matches!(why, Objection::TooFewChecks { .. })
        {
            self.forgotten.objection = Some(why);
        }
        let needed: BTreeSet<usize> = versions
            .filter_map(|version| version.parse().ok())
            .flat_map(|version| <[_; 2]>::from(around(&self.calls, version)))
            .flatten()
            .collect();
        let old = self.calls.partition_point(|call| call.answered < at);
        let kept: Vec<BeatCall> = needed.range(..old).map(|index| self.calls[*index]).collect();
        self.calls.splice(..old, kept);
        let checks = self.checks.len();
        self.checks.retain(|check| check.answered >= at);
        self.forgotten.checks += checks - self.checks.len();
        self.pods.retain(|(seen, ..)| *seen >= at);
    }

    fn objection(&self) -> Option<Objection> {
        if let Some(why) = &self.forgotten.objection {
            return Some(why.clone());
        }
        if let Some(version) = &self.not_a_number {
            return Some(Objection::NotANumber(version.clone()));
        }
        if self.calls.windows(2).any(|two| two[0].version >= two[1].version) {
            return Some(Objection::NotRising);
        }
        let made = self.forgotten.checks + self.checks.len();
        if made < CHECKS_NEEDED {
            return Some(Objection::TooFewChecks { made, needed: CHECKS_NEEDED });
        }
        if self.checks.iter().any(|check| !self.is_between(check)) {
            return Some(Objection::NotBetween);
        }
        let mut last = 0;
        for (at, version, is_in_order) in &self.pods {
            let is_early = bracket(&self.calls, *version).earliest.is_some_and(|earliest| earliest > *at);
            if is_early || (*is_in_order && *version < last) {
                return Some(Objection::Disordered);
            }
            if *is_in_order {
                last = *version;
            }
        }
        None
    }

    /// Returns true if a list's version is between those of the beats before and after it.
    fn is_between(&self, check: &BeatCall) -> bool {
        // One beat follows another.
        let before = self.calls.partition_point(|call| call.answered <= check.sent).checked_sub(1);
        let before = before.map(|last| self.calls[last]);
        let after = self.calls.get(self.calls.partition_point(|call| call.sent < check.answered));
        before.is_none_or(|call| call.version <= check.version)
            && after.is_none_or(|call| call.version > check.version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Stamp {
        Stamp::from_unix_ns(ms * 1_000_000)
    }

    /// Returns a beat every 100 ms with every tenth version from 1000 on, answered after 10 ms, and a list between
    /// every two beats. `listed` maps the version of the beat before a list to the list's version.
    fn beats(n: i64, listed: impl Fn(i64) -> i64) -> BeatCollector {
        let mut collector = BeatCollector::default();
        for i in 0..n {
            let version = 1000 + 10 * i;
            let beat = EventKind::Beat { answered: at(100 * i + 10), version: version.to_string() };
            collector.observe(at(100 * i), &beat);
            let check =
                EventKind::BeatCheck { answered: at(100 * i + 60), version: listed(version).to_string() };
            collector.observe(at(100 * i + 50), &check);
        }
        collector
    }

    fn pod(version: &str) -> EventKind {
        let pod = serde_json::json!({
            "change": "applied", "namespace": "shop", "name": "web", "uid": "u", "resource_version": version,
            "node": "n1", "ip": null, "phase": "Running", "ready": true, "deletion_timestamp": null,
            "deletion_grace_s": null, "grace_s": 30, "disruption_target": null, "containers": [],
        });
        EventKind::Pod(serde_json::from_value(pod).unwrap())
    }

    fn dropped(collector: BeatCollector) -> Objection {
        match collector.judged().state {
            BeatsState::Dropped(why) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn beats_bracket_write_by_version() {
        let mut collector = beats(30, |version| version + 3);
        collector.observe(at(560), &pod("1045"));
        let beats = collector.judged();
        assert_eq!((beats.state.clone(), beats.calls.len()), (BeatsState::Usable, 30));
        let bracket = beats.bracket("1045");
        assert_eq!(bracket, Bracket { earliest: Some(at(400)), latest: Some(at(510)) });
        assert_eq!(beats.bracket("999"), Bracket { earliest: None, latest: Some(at(10)) });
        assert_eq!(beats.bracket("5000"), Bracket { earliest: Some(at(2900)), latest: None });
        assert_eq!(beats.bracket("a5"), Bracket::default());
    }

    #[test]
    fn unreliable_beats_are_dropped() {
        assert_eq!(BeatCollector::default().judged().state, BeatsState::Absent);
        let too_few = Objection::TooFewChecks { made: 19, needed: 20 };
        assert_eq!(dropped(beats(19, |version| version + 1)), too_few);
        // The pods are in a different store, ahead of or behind this one.
        assert_eq!(dropped(beats(30, |version| version + 900)), Objection::NotBetween);
        assert_eq!(dropped(beats(30, |version| version - 900)), Objection::NotBetween);
        let mut early = beats(30, |version| version + 3);
        early.observe(at(560), &pod("1065"));
        assert_eq!(dropped(early), Objection::Disordered, "shown before the beat was sent");
        let mut disordered = beats(30, |version| version + 3);
        disordered.observe(at(560), &pod("1045"));
        disordered.observe(at(570), &pod("1044"));
        assert_eq!(dropped(disordered), Objection::Disordered);
        let mut named = beats(30, |version| version + 3);
        named.observe(at(560), &pod("x1"));
        assert_eq!(dropped(named), Objection::NotANumber("x1".to_owned()));
    }

    #[test]
    fn forgetting_keeps_needed_beats_and_objections() {
        let mut collector = beats(1200, |version| version + 3);
        collector.observe(at(560), &pod("1045"));
        collector.forget_before(at(90_000), ["1045", "1105", "12345", "x"].into_iter());
        let beats = collector.judged();
        assert_eq!((beats.state.clone(), beats.calls.len()), (BeatsState::Usable, 4 + 300));
        let needed = Bracket { earliest: Some(at(400)), latest: Some(at(510)) };
        assert_eq!((beats.bracket("1045"), collector.pods.len()), (needed, 0));
        assert_eq!(
            beats.bracket("12345"),
            Bracket { earliest: Some(at(113_400)), latest: Some(at(113_510)) }
        );
        collector.forget_before(at(149_000), std::iter::empty());
        assert_eq!(collector.calls.len(), 304, "once a minute");
        collector.forget_before(at(150_000), std::iter::empty());
        assert_eq!(
            (collector.calls.len(), collector.judged().state),
            (0, BeatsState::Usable),
            "checked before"
        );

        let mut violated = self::beats(30, |version| version - 900);
        violated.forget_before(at(90_000), std::iter::empty());
        assert_eq!(dropped(violated), Objection::NotBetween);
    }
}
