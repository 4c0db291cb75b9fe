//! Pods and budgets that will be in the run's namespace when the load begins: existing ones, and those that the
//! manifests create.

use k8s_openapi::api::apps::v1::{Deployment, DeploymentStrategy, RollingUpdateDeployment};
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;
use kube::api::ListParams;
use kube::core::SelectorExt;
use serde_json::Value;

use super::claims::{Claims, PodChoice};
use super::outage_limits::{OutageLimits, Rounding, bounds, number_of, selects};
use crate::api::Caller;
use crate::error::{CoordinatorError, Result};
use rolldrop_kubernetes::guard::label_selector;
use rolldrop_kubernetes::pods::Candidate;
use rolldrop_scenario::DisruptionAction;

/// Kubernetes API groups whose objects, other than workloads, create no pods.
const KNOWN_GROUPS: [&str; 5] = ["", "apps", "batch", "policy", "autoscaling"];

/// Objects that the manifests will have created when the load begins.
#[derive(Debug, Default)]
pub(crate) struct Made {
    /// Pods in the run's namespace, all of them ready.
    pub(super) pods: Vec<Candidate>,
    budgets: Vec<PodDisruptionBudget>,
    deployments: Vec<Deployment>,
    /// True if there may be other pods, or a different number of pods.
    pub(super) may_differ: bool,
}

impl Made {
    /// Returns the objects that these manifests create in a namespace.
    pub(crate) fn by(manifests: &[Value], namespace: &str) -> Self {
        let mut made = Self::default();
        let is_here =
            |object: &&Value| object["metadata"]["namespace"].as_str().is_none_or(|n| n == namespace);
        for object in manifests.iter().filter(is_here) {
            made.add(object);
        }
        made
    }

    fn add(&mut self, object: &Value) {
        let kind = object["kind"].as_str().unwrap_or_default();
        let spec = &object["spec"];
        let group =
            object["apiVersion"].as_str().unwrap_or_default().rsplit_once('/').map_or("", |(group, _)| group);
        match kind {
            "Pod" => self.add_pods(object, &object["metadata"]["labels"], 1),
            "PodDisruptionBudget" => self.budgets.extend(read(object)),
            _ if !spec["template"].is_null() => {
                let replicas = if kind == "Job" { 0 } else { spec["replicas"].as_u64().unwrap_or(1) };
                self.add_pods(object, &spec["template"]["metadata"]["labels"], replicas);
                // A DaemonSet has one pod on each node, and a Job's pods finish by themselves.
                self.may_differ |= ["DaemonSet", "Job"].contains(&kind);
                if kind == "Deployment" {
                    self.deployments
                        .extend(read(object).map(|deployment| as_rolled_out(deployment, replicas)));
                }
            }
            "HorizontalPodAutoscaler" => self.may_differ = true,
            _ => self.may_differ |= !KNOWN_GROUPS.contains(&group) && !group.ends_with(".k8s.io"),
        }
    }

    fn add_pods(&mut self, object: &Value, labels: &Value, count: u64) {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let kind = object["kind"].as_str().unwrap_or_default();
        let owner = OwnerReference {
            kind: kind.to_owned(),
            name: name.to_owned(),
            uid: format!("{kind}/{name}"),
            ..OwnerReference::default()
        };
        self.pods.extend((0..count).map(|number| Candidate {
            metadata: ObjectMeta {
                name: Some(format!("{name}-{number}")),
                uid: Some(format!("{kind}/{name}/{number}")),
                labels: serde_json::from_value(labels.clone()).ok(),
                owner_references: (kind != "Pod").then(|| vec![owner.clone()]),
                ..ObjectMeta::default()
            },
            is_ready: true,
            ..Candidate::default()
        }));
    }

    /// Returns the pods that a selector matches; none if the selector cannot be parsed.
    pub(crate) fn selected(&self, selector: &str) -> Vec<Candidate> {
        let Some(selector) = label_selector(selector) else { return Vec::new() };
        self.pods.iter().filter(|pod| selector.matches(pod.labels())).cloned().collect()
    }

    /// Returns the limits that will apply to an action on these pods.
    pub(super) async fn bounds(
        &self,
        caller: &Caller,
        action: &DisruptionAction,
        ready: &[Candidate],
    ) -> Result<OutageLimits> {
        let mut bounds = bounds(caller, action).await?;
        bounds.budgets.extend(self.budgets.iter().cloned().map(|budget| as_synced(budget, ready)));
        if OutageLimits::has_deployments(action) {
            bounds.deployments.extend(self.deployments.iter().cloned());
        }
        Ok(bounds)
    }
}

/// Returns the pods that a disruption will find: existing ones, and those that the manifests create; `None` if they
/// cannot be known.
pub(super) async fn found(caller: &Caller, made: &Made, selector: &str) -> Result<Option<PodChoice>> {
    let what = format!("list pods {selector:?}");
    let params = ListParams::default().labels(selector);
    let there = match caller.list_as(&what, &caller.api::<Candidate>(), &params, |pod| pod).await? {
        Err(kube::Error::Api(status)) if [403, 404].contains(&status.code) => return Ok(None),
        there => there.map_err(|error| CoordinatorError::api(&what, &error))?,
    };
    let is_starting = |pod: &Candidate| !pod.is_ready && pod.metadata.deletion_timestamp.is_none();
    if there.iter().any(is_starting) {
        // More pods may be ready when the load begins than are ready now.
        return Ok(None);
    }
    let mut choice = Claims::default().sort(there);
    choice.ready.extend(made.selected(selector));
    choice.free.clone_from(&choice.ready);
    Ok(Some(choice))
}

fn read<T: serde::de::DeserializeOwned>(object: &Value) -> Option<T> {
    serde_json::from_value(object.clone()).ok()
}

/// Returns a Deployment with the API server's defaults and with all its pods ready.
fn as_rolled_out(mut deployment: Deployment, replicas: u64) -> Deployment {
    if let Some(spec) = &mut deployment.spec {
        let strategy = spec.strategy.get_or_insert_with(DeploymentStrategy::default);
        if strategy.type_.as_deref() != Some("Recreate") {
            let rolling = strategy.rolling_update.get_or_insert_with(RollingUpdateDeployment::default);
            rolling.max_unavailable.get_or_insert_with(|| IntOrString::String("25%".to_owned()));
        }
    }
    let status = deployment.status.get_or_insert_default();
    status.ready_replicas = i32::try_from(replicas).ok();
    deployment
}

/// Returns a budget with the status that its controller will set when these pods are ready.
fn as_synced(mut budget: PodDisruptionBudget, ready: &[Candidate]) -> PodDisruptionBudget {
    let Some(spec) = &budget.spec else { return budget };
    let is_meant = |pod: &&Candidate| spec.selector.as_ref().is_some_and(|s| selects(s, pod.labels()));
    let healthy = ready.iter().filter(is_meant).count();
    // Shares are rounded up (`pkg/controller/disruption/disruption.go`).
    let of = |value: &IntOrString| number_of(value, healthy, Rounding::Up);
    let desired = match (&spec.min_available, &spec.max_unavailable) {
        (Some(min), _) => of(min),
        (None, Some(max)) => healthy.saturating_sub(of(max)),
        (None, None) => healthy.saturating_sub(1),
    };
    let number = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
    budget.status = Some(PodDisruptionBudgetStatus {
        current_healthy: Some(number(healthy)),
        desired_healthy: Some(number(desired)),
        expected_pods: Some(number(healthy)),
        disruptions_allowed: Some(number(healthy.saturating_sub(desired))),
        ..PodDisruptionBudgetStatus::default()
    });
    budget
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn workload(kind: &str, replicas: Option<u32>) -> Value {
        let template = json!({"metadata": {"labels": {"app": "web"}}});
        json!({"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "web"},
            "spec": {"replicas": replicas, "template": template, "selector": {"matchLabels": {"app": "web"}}}})
    }

    #[test]
    fn manifest_pods_are_predicted_before_creation() {
        let other = json!({"apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "db", "namespace": "data"}, "spec": {"template": {}}});
        let single =
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "job", "labels": {"app": "job"}}});
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": {}});
        let made = Made::by(&[workload("Deployment", Some(3)), other, single, service], "shop");
        let names: Vec<_> = made.pods.iter().map(ResourceExt::name_any).collect();
        assert_eq!(names, ["web-0", "web-1", "web-2", "job-0"]);
        assert_eq!(made.selected("app in (job, web), !tier").len(), 4);
        assert_eq!(made.selected("app=web").len(), 3);
        assert!(made.selected("app=wbe").is_empty() && !made.may_differ);
        assert_eq!(Made::by(&[workload("StatefulSet", None)], "shop").pods.len(), 1);
        let rollout =
            json!({"apiVersion": "argoproj.io/v1alpha1", "kind": "Application", "metadata": {"name": "x"}});
        for unsure in [workload("DaemonSet", None), rollout] {
            assert!(Made::by(std::slice::from_ref(&unsure), "shop").may_differ, "{unsure}");
        }
    }

    #[test]
    fn manifest_budget_gets_predicted_status() {
        let made = Made::by(&[workload("Deployment", Some(3))], "shop");
        for (limit, allowed) in [
            (json!({"maxUnavailable": 1}), 1),
            (json!({"maxUnavailable": "34%"}), 2),
            (json!({"minAvailable": "50%"}), 1),
            (json!({"minAvailable": 3}), 0),
            (json!({}), 1),
        ] {
            let mut object = json!({"metadata": {"name": "web"}, "spec": limit});
            object["spec"]["selector"] = json!({"matchLabels": {"app": "web"}});
            let synced = as_synced(read(&object).unwrap(), &made.pods);
            assert_eq!(synced.status.unwrap().disruptions_allowed, Some(allowed), "{object}");
        }
    }
}
