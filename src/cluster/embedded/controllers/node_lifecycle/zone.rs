//! Zones, and how fast the nodes of one may be emptied. Pure.

use std::collections::VecDeque;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use crate::cluster::embedded::config::Controllers;

/// The zone of a node: its region and its zone by label. Most clusters have but one, without a name.
pub(super) fn of(node: &Value) -> String {
    let label = |name: &str| node["metadata"]["labels"][name].as_str().unwrap_or_default();
    let (region, zone) = (label("topology.kubernetes.io/region"), label("topology.kubernetes.io/zone"));
    format!("{region}:{zone}")
}

/// How well the nodes of a zone are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ZoneState {
    /// Not known yet.
    Initial,
    /// Most are well.
    Normal,
    /// Many have failed.
    PartialDisruption,
    /// All have failed.
    FullDisruption,
}

impl ZoneState {
    /// The state of a zone with these nodes, each ready or not (`ComputeZoneState`).
    pub(super) fn of(ready: &[bool], unhealthy_threshold: f64) -> Self {
        let failed = u32::try_from(ready.iter().filter(|ready| !**ready).count()).unwrap_or(u32::MAX);
        let all = u32::try_from(ready.len()).unwrap_or(u32::MAX);
        if failed > 0 && failed == all {
            Self::FullDisruption
        } else if failed > 2 && f64::from(failed) / f64::from(all) >= unhealthy_threshold {
            Self::PartialDisruption
        } else {
            Self::Normal
        }
    }

    /// How many nodes per second may be emptied in a zone of this size. One zone may fail as a whole
    /// as long as others do not.
    pub(super) fn rate(self, nodes: usize, controllers: &Controllers) -> f64 {
        let is_large = u32::try_from(nodes).is_ok_and(|n| n > controllers.large_cluster_size_threshold);
        match self {
            Self::PartialDisruption if is_large => controllers.secondary_node_eviction_rate,
            Self::PartialDisruption => 0.0,
            Self::Initial | Self::Normal | Self::FullDisruption => controllers.node_eviction_rate,
        }
    }
}

/// A zone, with the nodes that wait to be emptied. One may go at once, and then one per interval
/// (`RateLimitedTimedQueue`, with a burst of 1).
#[derive(Clone, Debug)]
pub(super) struct Zone {
    state: ZoneState,
    waiting: VecDeque<String>,
    rate: f64,
    /// When the next one may go.
    next_at: Instant,
}

impl Zone {
    pub(super) fn new(rate: f64, now: Instant) -> Self {
        Self { state: ZoneState::Initial, waiting: VecDeque::new(), rate, next_at: now }
    }

    pub(super) fn state(&self) -> ZoneState {
        self.state
    }

    /// Enters a state with its rate. Whoever waits for the old rate waits for the new one.
    pub(super) fn enter(&mut self, state: ZoneState, rate: f64, now: Instant) {
        self.state = state;
        if self.rate.to_bits() == rate.to_bits() {
            return;
        }
        let may_go = self.interval().is_some() && self.next_at <= now;
        self.rate = rate;
        self.next_at = if may_go { now } else { now + self.interval().unwrap_or_default() };
    }

    /// From one to the next; `None`: none may go.
    fn interval(&self) -> Option<Duration> {
        (self.rate > 0.0).then(|| Duration::from_secs_f64(1.0 / self.rate))
    }

    /// Lets a node wait for its turn.
    pub(super) fn enqueue(&mut self, node: &str) {
        if !self.waiting.iter().any(|waiting| waiting == node) {
            self.waiting.push_back(node.to_owned());
        }
    }

    /// A node need not wait any more.
    pub(super) fn dequeue(&mut self, node: &str) {
        self.waiting.retain(|waiting| waiting != node);
    }

    /// When the first of those that wait may go.
    pub(super) fn next_taint_at(&self) -> Option<Instant> {
        self.interval().filter(|_| !self.waiting.is_empty()).map(|_| self.next_at)
    }

    /// The node whose turn it is now.
    pub(super) fn take_turn(&mut self, now: Instant) -> Option<String> {
        let interval = self.interval().filter(|_| self.next_at <= now)?;
        let node = self.waiting.pop_front()?;
        self.next_at = now + interval;
        Some(node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zone_is_unwell_when_many_of_three_or_more_have_failed() {
        let state = |failed: usize, well: usize| {
            let ready: Vec<_> =
                std::iter::repeat_n(false, failed).chain(std::iter::repeat_n(true, well)).collect();
            ZoneState::of(&ready, 0.55)
        };
        assert_eq!(state(0, 0), ZoneState::Normal);
        assert_eq!(state(1, 0), ZoneState::FullDisruption);
        assert_eq!(state(2, 1), ZoneState::Normal);
        assert_eq!(state(3, 2), ZoneState::PartialDisruption);
        assert_eq!(state(5, 5), ZoneState::Normal);
        let controllers = Controllers::default();
        let rates = |state: ZoneState| [10, 50, 51].map(|nodes| state.rate(nodes, &controllers));
        assert_eq!(rates(ZoneState::Normal), [0.1, 0.1, 0.1]);
        assert_eq!(rates(ZoneState::PartialDisruption), [0.0, 0.0, 0.01]);
    }

    #[test]
    fn one_goes_at_once_and_then_one_per_interval() {
        let start = Instant::now();
        let second = |n| start + Duration::from_secs(n);
        let mut zone = Zone::new(0.1, start);
        for node in ["a", "b", "b", "c"] {
            zone.enqueue(node);
        }
        assert_eq!(zone.take_turn(second(1)).as_deref(), Some("a"));
        assert_eq!((zone.take_turn(second(10)), zone.next_taint_at()), (None, Some(second(11))));
        zone.enter(ZoneState::FullDisruption, 0.0, second(10));
        assert_eq!((zone.take_turn(second(99)), zone.next_taint_at()), (None, None));
        zone.enter(ZoneState::Normal, 0.1, second(100));
        assert_eq!(zone.take_turn(second(109)), None);
        assert_eq!(zone.take_turn(second(110)).as_deref(), Some("b"));
        zone.dequeue("c");
        assert_eq!((zone.take_turn(second(200)), zone.next_taint_at()), (None, None));
    }
}
