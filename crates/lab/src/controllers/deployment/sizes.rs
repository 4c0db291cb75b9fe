//! The arithmetic of rollouts. Pure: numbers in, numbers out.
//!
//! It follows pkg/controller/deployment (rolling.go, util/deployment_util.go).

use serde_json::Value;

/// Returns the number of pods that a workload asks for.
pub(super) fn replicas(object: &Value) -> i64 {
    object["spec"]["replicas"].as_i64().unwrap_or(0)
}

/// Number of pods that a ReplicaSet asks for, and of those available.
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

/// Limits within which a rollout may deviate from the wanted number of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// Maximum number of pods above the wanted number.
    pub(super) max_surge: i64,
    /// Maximum number of pods below the wanted number.
    pub(super) max_unavailable: i64,
}

impl Limits {
    /// Returns `maxSurge` and `maxUnavailable` in pods (`ResolveFenceposts`): the first is rounded up, the second
    /// down, and they are not both 0. A Deployment that does not roll has neither.
    pub(super) fn of(deployment: &Value) -> Self {
        let strategy = &deployment["spec"]["strategy"];
        if strategy["type"] != "RollingUpdate" {
            return Self { max_surge: 0, max_unavailable: 0 };
        }
        let wanted = replicas(deployment);
        let max_surge = amount(&strategy["rollingUpdate"]["maxSurge"], wanted, Round::Up);
        let max_unavailable = amount(&strategy["rollingUpdate"]["maxUnavailable"], wanted, Round::Down);
        let max_unavailable = if max_surge == 0 && max_unavailable == 0 { 1 } else { max_unavailable };
        Self { max_surge, max_unavailable: max_unavailable.min(wanted) }
    }
}

/// Rounding of a percentage of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Round {
    /// A fraction counts as a whole pod.
    Up,
    /// A fraction does not count.
    Down,
}

/// Returns a number of pods, given as such or as a percentage of `whole` (`GetScaledValueFromIntOrPercent`).
pub(in super::super) fn amount(value: &Value, whole: i64, round: Round) -> i64 {
    let Some(percentage) = value.as_str() else { return value.as_i64().unwrap_or(0) };
    let hundredths = whole * percentage.trim_end_matches('%').parse::<i64>().unwrap_or(0);
    match round {
        Round::Up => (hundredths + 99) / 100,
        Round::Down => hundredths / 100,
    }
}

/// Returns the size that the new ReplicaSet may have now (`NewRSNewReplicas`), where `total` is the number of
/// replicas of all ReplicaSets, including the new one.
pub(super) fn new_replicas(wanted: i64, max_surge: i64, total: i64, new: i64) -> i64 {
    if new >= wanted {
        return wanted;
    }
    let room = (wanted + max_surge - total).max(0);
    new + room.min(wanted - new)
}

/// Returns the sizes that the old ReplicaSets may be scaled down to now (`reconcileOldReplicaSets`), oldest first:
/// unavailable pods go before available ones.
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
    // A status may lag behind the last requested size, so both set a limit.
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
        let limits = Limits::of(&json!({"spec": {"replicas": replicas, "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": max_surge, "maxUnavailable": max_unavailable},
        }}}));
        (limits.max_surge, limits.max_unavailable)
    }

    #[test]
    fn surge_rounds_up_and_unavailable_down() {
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
        // The new pod is not available yet: nothing may go.
        assert_eq!(old_replicas(3, 0, size(1, 0), &[size(3, 3)]), [3]);
        assert_eq!(old_replicas(3, 0, size(1, 1), &[size(3, 3)]), [2]);
        // The status does not show yet that one pod is terminating.
        assert_eq!(old_replicas(3, 0, size(1, 1), &[size(2, 3)]), [2]);
        // Terminating pods are not counted, so the next one starts at once.
        assert_eq!(new_replicas(3, 1, 3, 1), 2);
    }

    #[test]
    fn unavailable_old_pods_go_first() {
        assert_eq!(old_replicas(4, 1, size(1, 0), &[size(4, 2)]), [3]);
        assert_eq!(old_replicas(4, 1, size(2, 2), &[size(2, 0), size(2, 2)]), [0, 1]);
    }

    #[test]
    fn rollback_removes_unavailable_pods_first() {
        // 13 pods, 8 must stay: the example in rolling.go.
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
        fn no_step_breaks_the_limits(
            wanted in 1_i64..20,
            max_surge in 0_i64..6,
            max_unavailable in 0_i64..6,
            new in 0_i64..20,
            // A status that lags may show more available pods than are asked for.
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

        /// Step by step, with pods that become available in any order, every rollout ends, and never exceeds its
        /// limits.
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
                let Some(more) = becomes_available.pop() else { return Err(TestCaseError::fail("does not end")) };
                // At least one, every other time, so that the rollout ends by the arithmetic alone.
                let more = more.max(i64::from(becomes_available.len() % 2 == 0));
                new.available = (new.available + more).min(new.replicas);
            }
        }
    }
}
