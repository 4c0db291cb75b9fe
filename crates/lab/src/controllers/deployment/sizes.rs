//! Arithmetic for rollouts. Pure: numbers in, numbers out.
//!
//! Based on pkg/controller/deployment (rolling.go, util/deployment_util.go).

use serde_json::Value;

/// Returns the number of pods that a workload asks for.
pub(super) fn replicas(object: &Value) -> i64 {
    object["spec"]["replicas"].as_i64().unwrap_or(0)
}

/// Numbers of requested and available pods in a ReplicaSet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    /// `spec.replicas`.
    pub(super) replicas: i64,
    /// `status.availableReplicas`, which may lag behind.
    pub(super) available: i64,
}

impl Size {
    pub(super) fn of(replica_set: &Value) -> Self {
        let available = replica_set["status"]["availableReplicas"].as_i64().unwrap_or(0);
        Self { replicas: replicas(replica_set), available }
    }
}

/// Limits on how far a rollout may deviate from the desired number of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RolloutLimits {
    /// Maximum number of pods above the desired number.
    pub(super) max_surge: i64,
    /// Maximum number of pods below the desired number.
    pub(super) max_unavailable: i64,
}

impl RolloutLimits {
    /// Returns `maxSurge` and `maxUnavailable` as numbers of pods (`ResolveFenceposts`). The former is rounded up and
    /// the latter down, but they are never both 0, except for Deployments without rolling updates.
    pub(super) fn of(deployment: &Value) -> Self {
        let strategy = &deployment["spec"]["strategy"];
        if strategy["type"] != "RollingUpdate" {
            return Self { max_surge: 0, max_unavailable: 0 };
        }
        let wanted = replicas(deployment);
        let max_surge = amount(&strategy["rollingUpdate"]["maxSurge"], wanted, PercentRounding::Up);
        let max_unavailable =
            amount(&strategy["rollingUpdate"]["maxUnavailable"], wanted, PercentRounding::Down);
        let max_unavailable = if max_surge == 0 && max_unavailable == 0 { 1 } else { max_unavailable };
        Self { max_surge, max_unavailable: max_unavailable.min(wanted) }
    }
}

/// Rounding mode for a percentage of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum PercentRounding {
    /// Round fractions up to a whole pod.
    Up,
    /// Drop fractions.
    Down,
}

/// Returns a number of pods, given as an integer or as a percentage of `whole` (`GetScaledValueFromIntOrPercent`).
pub(in super::super) fn amount(value: &Value, whole: i64, round: PercentRounding) -> i64 {
    let Some(percentage) = value.as_str() else { return value.as_i64().unwrap_or(0) };
    let hundredths = whole * percentage.trim_end_matches('%').parse::<i64>().unwrap_or(0);
    match round {
        PercentRounding::Up => (hundredths + 99) / 100,
        PercentRounding::Down => hundredths / 100,
    }
}

/// Returns the size to which the new ReplicaSet may now be scaled (`NewRSNewReplicas`). `total` is the number of
/// replicas in all ReplicaSets, including the new one.
pub(super) fn new_replicas(wanted: i64, max_surge: i64, total: i64, new: i64) -> i64 {
    if new >= wanted {
        return wanted;
    }
    let room = (wanted + max_surge - total).max(0);
    new + room.min(wanted - new)
}

/// Returns the sizes to which the old ReplicaSets may now be scaled down (`reconcileOldReplicaSets`), oldest first.
/// Unavailable pods are removed before available ones.
pub(super) fn old_replicas(wanted: i64, max_unavailable: i64, new: Size, old: &[Size]) -> Vec<i64> {
    let mut targets: Vec<_> = old.iter().map(|size| size.replicas).collect();
    let min_available = wanted - max_unavailable;
    let total = targets.iter().sum::<i64>() + new.replicas;
    let mut may_go = total - min_available - (new.replicas - new.available);
    if may_go <= 0 {
        return targets;
    }
    for (target, size) in targets.iter_mut().zip(old) {
        let unhealthy = (size.replicas - size.available).clamp(0, may_go);
        *target -= unhealthy;
        may_go -= unhealthy;
    }
    let available = old.iter().map(|size| size.available).sum::<i64>() + new.available;
    // A status may lag behind the last requested size, so both of them set limits.
    let mut may_go = may_go.min(available - min_available).max(0);
    for target in &mut targets {
        let gone = (*target).min(may_go);
        *target -= gone;
        may_go -= gone;
    }
    targets
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn limits(replicas: i64, max_surge: Value, max_unavailable: Value) -> (i64, i64) {
        let limits = RolloutLimits::of(&json!({"spec": {"replicas": replicas, "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": max_surge, "maxUnavailable": max_unavailable},
        }}}));
        (limits.max_surge, limits.max_unavailable)
    }

    #[test]
    fn max_surge_rounds_up_and_max_unavailable_down() {
        assert_eq!(limits(3, json!("25%"), json!("25%")), (1, 0));
        assert_eq!(limits(4, json!("25%"), json!("25%")), (1, 1));
        assert_eq!(limits(10, json!("25%"), json!("25%")), (3, 2));
        assert_eq!(limits(3, json!(2), json!(0)), (2, 0));
        assert_eq!(limits(2, json!(0), json!("25%")), (0, 1));
        assert_eq!(limits(2, json!(1), json!(5)), (1, 2));
    }

    const fn size(replicas: i64, available: i64) -> Size {
        Size { replicas, available }
    }

    #[test]
    fn rollout_replaces_pods_one_by_one() {
        assert_eq!(new_replicas(3, 1, 3, 0), 1);
        // The new pod is not available yet, so no old pod may be removed.
        assert_eq!(old_replicas(3, 0, size(1, 0), &[size(3, 3)]), [3]);
        assert_eq!(old_replicas(3, 0, size(1, 1), &[size(3, 3)]), [2]);
        // The status does not yet reflect that one pod is terminating.
        assert_eq!(old_replicas(3, 0, size(1, 1), &[size(2, 3)]), [2]);
        // Terminating pods do not count, so the next pod starts immediately.
        assert_eq!(new_replicas(3, 1, 3, 1), 2);
    }

    #[test]
    fn unavailable_old_pods_are_removed_first() {
        assert_eq!(old_replicas(4, 1, size(1, 0), &[size(4, 2)]), [3]);
        assert_eq!(old_replicas(4, 1, size(2, 2), &[size(2, 0), size(2, 2)]), [0, 1]);
    }

    #[test]
    fn rollback_removes_unavailable_pods_first() {
        // The example from rolling.go: there are 13 pods, of which 8 must remain.
        assert_eq!(old_replicas(10, 2, size(8, 7), &[size(5, 0)]), [1]);
    }

    #[test]
    fn new_replicas_follow_deployment_size() {
        assert_eq!(new_replicas(2, 1, 5, 5), 2);
        assert_eq!(new_replicas(5, 2, 2, 2), 5);
        assert_eq!(new_replicas(0, 1, 0, 0), 0);
    }

    proptest! {
        #[test]
        fn steps_stay_within_limits(
            wanted in 1_i64..20,
            max_surge in 0_i64..6,
            max_unavailable in 0_i64..6,
            new in 0_i64..20,
            // An outdated status may show more available pods than requested.
            olds in prop::collection::vec((0_i64..10, 0_i64..10), 0..4),
        ) {
            prop_assume!(max_surge + max_unavailable > 0);
            let olds: Vec<_> = olds.into_iter().map(|(replicas, available)| size(replicas, available)).collect();
            let total = new + olds.iter().map(|size| size.replicas).sum::<i64>();
            let target = new_replicas(wanted, max_surge, total, new);
            prop_assert!(target <= wanted);
            prop_assert!(target <= new || total - new + target <= wanted + max_surge);

            let new = size(new.min(wanted), new.min(wanted));
            let truly_available = |size: &Size| size.available.min(size.replicas);
            let available_before = new.available + olds.iter().map(truly_available).sum::<i64>();
            let targets = old_replicas(wanted, max_unavailable, new, &olds);
            let mut available_after = new.available;
            for (target, size) in targets.iter().zip(&olds) {
                prop_assert!((0..=size.replicas).contains(target));
                available_after += size.available.min(*target);
            }
            prop_assert!(available_after >= available_before.min(wanted - max_unavailable));
        }

        /// Checks that every rollout completes and never exceeds its limits, in whatever order pods become available.
        #[test]
        fn every_rollout_completes_within_limits(
            wanted in 1_i64..30,
            max_surge in 0_i64..8,
            max_unavailable in 0_i64..8,
            mut becomes_available in prop::collection::vec(0_i64..4, 400),
        ) {
            prop_assume!(max_surge + max_unavailable > 0);
            let max_unavailable = max_unavailable.min(wanted);
            let (mut new, mut old) = (size(0, 0), size(wanted, wanted));
            while new.available < wanted || old.replicas > 0 {
                new.replicas = new_replicas(wanted, max_surge, new.replicas + old.replicas, new.replicas);
                let target = old_replicas(wanted, max_unavailable, new, &[old])[0];
                old = size(target, old.available.min(target));
                prop_assert!(new.replicas + old.replicas <= wanted + max_surge);
                prop_assert!(new.available + old.available >= wanted - max_unavailable);
                let Some(more) = becomes_available.pop() else { return Err(TestCaseError::fail("rollout stalls")) };
                // In every other step, at least one pod becomes available so that the rollout can complete.
                let more = more.max(i64::from(becomes_available.len() % 2 == 0));
                new.available = (new.available + more).min(new.replicas);
            }
        }
    }
}
