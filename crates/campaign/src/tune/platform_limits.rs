//! Platform limits on how long pods may take to terminate.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;

use rolldrop_explain::model::figure_text::counted;
use rolldrop_judge::tuning::PodSettings;

/// Labels of nodes that may be reclaimed, with the seconds that pods then get, and the source of the figure. On GKE,
/// non-system pods get 15 s of the 30 s notice; AWS and Azure give 120 s and 30 s notice.
const SPOT: [(&str, &str, u64, &str); 6] = [
    ("cloud.google.com/gke-spot", "true", 15, "GKE"),
    ("cloud.google.com/gke-preemptible", "true", 15, "GKE"),
    ("eks.amazonaws.com/capacityType", "SPOT", 120, "AWS"),
    ("karpenter.sh/capacity-type", "spot", 120, "AWS"),
    ("node.kubernetes.io/lifecycle", "spot", 120, "AWS"),
    ("kubernetes.azure.com/scalesetpriority", "spot", 30, "Azure"),
];
/// Annotations on a Service or an Ingress that configure how AWS deregisters its targets.
const TARGET_GROUP: [(&str, &str); 2] = [
    ("Service", "service.beta.kubernetes.io/aws-load-balancer-target-group-attributes"),
    ("Ingress", "alb.ingress.kubernetes.io/target-group-attributes"),
];
const DEREGISTRATION: &str = "deregistration_delay.timeout_seconds=";

/// Platform limits on pod termination.
#[derive(Debug, Default)]
pub(super) struct PlatformLimits {
    /// Time in seconds that pods have when their node shuts down, with the source of the figure.
    shutdown: BTreeSet<(u64, String)>,
    /// Time in seconds that a load balancer gives requests to finish, with the name of its Service or Ingress.
    deregistration: Vec<(u64, String)>,
}

impl PlatformLimits {
    /// Finds the limits in node labels, Services and Ingresses. `budget` is the node shutdown time stated by the user.
    pub(super) fn find(
        nodes: &[BTreeMap<String, String>],
        objects: &[Value],
        budget: Option<Duration>,
    ) -> Self {
        let mut shutdown = BTreeSet::new();
        for (label, value, seconds, platform) in SPOT {
            let has = |node: &&BTreeMap<String, String>| node.get(label).is_some_and(|found| found == value);
            let n = nodes.iter().filter(has).count() as u64;
            if n > 0 {
                let of = counted(nodes.len() as u64, "node");
                shutdown.insert((seconds, format!("{n} of {of} with {label}={value}, on {platform}")));
            }
        }
        shutdown.extend(budget.map(|budget| (budget.as_secs(), "--shutdown-budget".to_owned())));
        let deregistration = |object: &Value| {
            let (kind, annotation) = TARGET_GROUP.into_iter().find(|(kind, _)| object["kind"] == *kind)?;
            let attributes = object["metadata"]["annotations"][annotation].as_str()?;
            let seconds = attributes.split(',').find_map(|part| part.trim().strip_prefix(DEREGISTRATION))?;
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            Some((seconds.parse().ok()?, format!("{kind} {name}")))
        };
        Self { shutdown, deregistration: objects.iter().filter_map(deregistration).collect() }
    }

    /// Describes the consequences of the limits for the chosen settings, one sentence each.
    pub(super) fn of(&self, settings: PodSettings) -> Vec<String> {
        let PodSettings { pre_stop_seconds: sleep_s, termination_grace_period_seconds: grace_s, .. } =
            settings;
        let shutdown = self.shutdown.iter().map(|(seconds, who)| match (sleep_s >= *seconds, grace_s > *seconds) {
            (true, _) => format!(
                "a node shutdown gives pods {seconds} s ({who}). The sleep of {sleep_s} s uses up all of it, so the app \
                 would be killed before it can stop"
            ),
            (false, true) => format!(
                "a node shutdown gives pods {seconds} s ({who}), less than the grace period of {grace_s} s: after the \
                 sleep, the app has {} s left",
                seconds - sleep_s
            ),
            (false, false) => format!("a node shutdown gives pods {seconds} s ({who}), which is enough"),
        });
        let deregistration = self.deregistration.iter().filter(|(seconds, _)| *seconds > grace_s).map(|(seconds, name)| {
            format!(
                "the load balancer for {name} gives requests {seconds} s to finish, but a pod is killed after \
                 {grace_s} s: longer requests are cut off"
            )
        });
        shutdown.chain(deregistration).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn settings(sleep_s: u64, grace_s: u64) -> PodSettings {
        PodSettings {
            pre_stop_seconds: sleep_s,
            termination_grace_period_seconds: grace_s,
            min_ready_seconds: 0,
            readiness_delay_seconds: None,
        }
    }

    #[test]
    fn preemptible_nodes_limit_pod_shutdown() {
        let spot = BTreeMap::from([("cloud.google.com/gke-spot".to_owned(), "true".to_owned())]);
        let limits = PlatformLimits::find(&[spot, BTreeMap::new()], &[], None);
        let of = |sleep_s, grace_s| limits.of(settings(sleep_s, grace_s)).concat();
        assert!(of(4, 30).contains("15 s (1 of 2 nodes with cloud.google.com/gke-spot=true, on GKE)"));
        assert!(of(4, 30).contains("the app has 11 s left"));
        assert!(of(20, 50).contains("uses up"));
        assert!(of(4, 10).contains("is enough"));
        assert!(PlatformLimits::find(&[BTreeMap::new()], &[], None).of(settings(4, 30)).is_empty());
        let by_flag = PlatformLimits::find(&[], &[], Some(Duration::from_secs(25)));
        assert!(by_flag.of(settings(4, 30)).concat().contains("25 s (--shutdown-budget)"));
    }

    #[test]
    fn long_deregistration_delay_raises_warning() {
        let attributes = "stickiness.enabled=true,deregistration_delay.timeout_seconds=60";
        for (kind, annotation) in TARGET_GROUP {
            let object =
                json!({"kind": kind, "metadata": {"name": "web", "annotations": {annotation: attributes}}});
            let limits = PlatformLimits::find(&[], &[object], None);
            let told = limits.of(settings(4, 30)).concat();
            assert!(told.contains(&format!("{kind} web gives requests 60 s to finish")), "{told}");
            assert!(limits.of(settings(4, 60)).is_empty());
        }
    }
}
