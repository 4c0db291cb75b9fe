//! Gaps in the watches, and the times they began with a list.

use rolldrop_record::event::Change;
use rolldrop_record::{EventKind, Stamp};

/// Names of the watches in events.
pub(crate) const PODS: &str = "pods";
pub(super) const ENDPOINT_SLICES: &str = "endpointslices";

/// Longest time between a container's exit and a watch event that shows it; a kubelet checks its containers once a
/// second.
pub(super) const SHOWN_WITHIN_NS: i64 = 2_000_000_000;

/// Interval in which a watch saw nothing.
#[derive(Clone, Debug)]
pub struct UnwatchedPeriod {
    /// Watched resource.
    pub resource: String,
    /// True if the events in the gap were lost. Otherwise they were shown late.
    pub is_lost: bool,
    /// Time of the watch's last sign of life before the gap.
    pub from: Stamp,
    /// Time of the watch's first sign of life after the gap.
    pub to: Stamp,
}

impl UnwatchedPeriod {
    /// Returns true if this is a gap in the pod watch.
    pub fn is_of_pods(&self) -> bool {
        self.resource == PODS
    }

    /// Returns true if the gap may have delayed an event that the watch showed at `at`.
    pub(crate) fn may_delay(&self, at: Stamp) -> bool {
        self.from <= at && at <= self.to.shifted_ns(SHOWN_WITHIN_NS)
    }

    /// Returns the earliest time at which an event shown at `shown` may have happened if this gap delayed it.
    pub(super) fn may_have_ended_from(&self, shown: Stamp) -> Stamp {
        self.from.min(shown).shifted_ns(-SHOWN_WITHIN_NS)
    }

    /// Returns true if the gap may hide stages of a pod's termination.
    pub(super) fn hides_ends(&self) -> bool {
        self.is_of_pods() || self.resource == ENDPOINT_SLICES
    }
}

/// Collects gaps and lists.
#[derive(Debug, Default)]
pub(super) struct WatchCollector {
    pub(super) gaps: Vec<UnwatchedPeriod>,
    /// Time the pod watch last began with a list.
    pub(super) pods_listed: Option<Stamp>,
    /// Time the pod watch last showed anything.
    pub(super) pods_shown: Option<Stamp>,
}

impl WatchCollector {
    pub(super) fn observe(&mut self, at: Stamp, kind: &EventKind) {
        match kind {
            EventKind::WatchGap { resource, from } | EventKind::WatchLate { resource, from } => {
                let is_lost = matches!(kind, EventKind::WatchGap { .. });
                self.gaps.push(UnwatchedPeriod { resource: resource.clone(), is_lost, from: *from, to: at });
            }
            EventKind::Pod(pod) => {
                self.pods_shown = self.pods_shown.max(Some(at));
                if pod.change == Change::Listed {
                    self.pods_listed = Some(at);
                }
            }
            _ => {}
        }
    }

    /// Forgets gaps that ended before this time, unless no pod has been shown since.
    pub(super) fn forget_before(&mut self, before: Stamp) {
        let is_open = |gap: &UnwatchedPeriod| self.pods_shown.is_none_or(|at| at < gap.to);
        self.gaps.retain(|gap| gap.to >= before || (gap.is_of_pods() && is_open(gap)));
    }

    /// Returns the gaps in the pod watch after which a pod was shown; only then is it known which pods are gone.
    pub(super) fn pods_missed(&self) -> Vec<(Stamp, Stamp)> {
        let of_pods = self.gaps.iter().filter(|gap| gap.is_lost && gap.is_of_pods());
        let known = of_pods.filter(|gap| self.pods_shown.is_some_and(|at| at >= gap.to));
        known.map(|gap| (gap.from, gap.to)).collect()
    }
}
