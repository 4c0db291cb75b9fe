//! Price of a longer termination.

use serde::{Deserialize, Serialize};

use super::PodSettings;

/// Number of a workload's pods, and the way the workload replaces them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RolloutShape {
    /// Number of pods.
    pub pods: u64,
    /// Order of replacement.
    pub strategy: Strategy,
}

/// Order in which a workload replaces its pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// A Deployment that does not wait for terminating pods, so all old pods may exist alongside the new ones.
    Rolling {
        /// Number of pods that it replaces before it waits for new ones, as set by maxSurge and maxUnavailable.
        at_once: u64,
    },
    /// A Deployment that deletes all old pods first.
    Recreate,
    /// A StatefulSet or a DaemonSet: a pod starts once its predecessor is gone.
    InPlace {
        /// Number of pods that it replaces at the same time.
        at_once: u64,
    },
}

/// Price of the chosen settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Price {
    /// Seconds by which each pod's termination becomes longer; negative if it becomes shorter.
    pub seconds_each_pod: i64,
    /// Seconds by which a rollout becomes longer.
    pub seconds_each_rollout: i64,
    /// Number of pods that may be terminating at the same time, in addition to the serving pods.
    pub terminating_at_once: u64,
}

impl RolloutShape {
    /// Returns true if the workload may delete all its pods before new ones exist.
    pub(super) const fn may_leave_none(self) -> bool {
        match self.strategy {
            Strategy::Recreate => true,
            Strategy::Rolling { at_once } | Strategy::InPlace { at_once } => at_once >= self.pods,
        }
    }

    /// Returns the price of changing the settings.
    pub fn price(self, from: PodSettings, to: PodSettings) -> Price {
        let seconds = |settings: PodSettings| i64::try_from(settings.pre_stop_seconds).unwrap_or(i64::MAX);
        let each = seconds(to) - seconds(from);
        let rounds = |at_once: u64| i64::try_from(self.pods.div_ceil(at_once.max(1))).unwrap_or(i64::MAX);
        let start = |settings: PodSettings| {
            let delay = settings.readiness_delay_seconds.unwrap_or(0);
            i64::try_from(settings.min_ready_seconds + delay).unwrap_or(i64::MAX)
        };
        let each_start = start(to) - start(from);
        let (rollout, terminating) = match self.strategy {
            // A rollout does not wait for terminations, so only the last pods' longer termination makes it longer.
            Strategy::Rolling { at_once } => (each + each_start.saturating_mul(rounds(at_once)), self.pods),
            Strategy::Recreate => (each + each_start, self.pods),
            Strategy::InPlace { at_once } => {
                ((each + each_start).saturating_mul(rounds(at_once)), at_once.min(self.pods))
            }
        };
        Price { seconds_each_pod: each, seconds_each_rollout: rollout, terminating_at_once: terminating }
    }
}
