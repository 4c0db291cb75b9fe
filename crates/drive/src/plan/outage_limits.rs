//! Limits on the number of pods that may be terminated at the same time: never the last ready one, and no more than
//! their PodDisruptionBudgets allow.
//!
//! Deletions must also stay within the Deployment's `maxUnavailable`. One pod at a time is always allowed, because a
//! node failure can take that many. Evictions, drains and node shutdowns ignore `maxUnavailable`, which is a rollout
//! setting. Budgets delay evictions one by one, so evicted pods that a budget protects do not all terminate at the same
//! time.

use std::collections::BTreeMap;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::api::{ApiResource, ListParams};
use kube::core::{Selector, SelectorExt};
use kube::{Resource, ResourceExt};

use super::call::{About, Right};
use crate::api::Caller;
use crate::error::{CoordinatorError, Result};
use rolldrop_kubernetes::Listed;
use rolldrop_kubernetes::pods::Candidate;
use rolldrop_scenario::DisruptionAction;

/// Budgets and Deployments that limit how many pods may terminate at the same time.
#[derive(Clone, Debug, Default)]
pub(crate) struct OutageLimits {
    pub(crate) budgets: Vec<PodDisruptionBudget>,
    pub(crate) deployments: Vec<Deployment>,
}

/// Reads the budgets and Deployments that limit an action.
///
/// # Errors
/// Fails if the API server does not respond, or does not let the run read a limit that only the run itself enforces.
pub(crate) async fn bounds(caller: &Caller, action: &DisruptionAction) -> Result<OutageLimits> {
    let budgets = list_limits(caller, action, |budget| budget).await?;
    let deployments = match OutageLimits::has_deployments(action) {
        true => list_limits(caller, action, without_template).await?,
        false => Vec::new(),
    };
    Ok(OutageLimits { budgets, deployments })
}

/// Lists the objects of a kind that limits an action.
async fn list_limits<K, T>(
    caller: &Caller,
    action: &DisruptionAction,
    known: impl Fn(K) -> T,
) -> Result<Vec<T>>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Listed,
{
    if is_by_eviction(action) {
        return caller.list_kind_as(known).await;
    }
    let what = format!("list {}", K::plural(&()));
    match caller.list_as(&what, &caller.api::<K>(), &ListParams::default(), known).await? {
        Err(kube::Error::Api(status)) if status.code == 403 => {
            let about = About::all(ApiResource::erase::<K>(&()), Some(&caller.namespace));
            let rights = vec![Right { verb: "list", about }.to_string()];
            Err(CoordinatorError::MissingRights { rights, namespace: caller.namespace.clone() })
        }
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
        listed => listed.map_err(|error| CoordinatorError::api(&what, &error)),
    }
}

/// Removes the template and the annotations, which make up most of a Deployment's size.
fn without_template(mut deployment: Deployment) -> Deployment {
    deployment.metadata.annotations = None;
    if let Some(spec) = &mut deployment.spec {
        spec.template = PodTemplateSpec::default();
    }
    deployment
}

/// Returns true if the API server holds the action back until the budgets allow it.
pub(super) fn is_by_eviction(action: &DisruptionAction) -> bool {
    matches!(action, DisruptionAction::Evict(_) | DisruptionAction::Drain { .. })
}

impl OutageLimits {
    /// Returns true if the `maxUnavailable` setting of Deployments limits the action.
    pub(super) const fn has_deployments(action: &DisruptionAction) -> bool {
        !matches!(
            action,
            DisruptionAction::Evict(_)
                | DisruptionAction::Drain { .. }
                | DisruptionAction::NodeShutdown { .. }
        )
    }

    /// Returns the reason that an action may not terminate these ready pods in addition to those that are already
    /// terminating; `None` if it may.
    pub(crate) fn refuse_action(
        &self,
        action: &DisruptionAction,
        asked: &[Candidate],
        ready: &[Candidate],
        leaving: &[Candidate],
    ) -> Option<String> {
        let going = self.at_once(action, asked);
        if going.is_empty() {
            None
        } else if is_by_eviction(action) {
            Self::default().refuse(&going, ready, leaving)
        } else {
            self.refuse(&going, ready, leaving)
        }
    }

    /// Returns the pods that would terminate simultaneously if the action took these. Of evicted pods that a budget
    /// protects, it returns only as many as the budget currently allows.
    pub(super) fn at_once(&self, action: &DisruptionAction, asked: &[Candidate]) -> Vec<Candidate> {
        if !is_by_eviction(action) {
            return asked.to_vec();
        }
        let allowed = |budget: &PodDisruptionBudget| {
            number(budget.status.as_ref().and_then(|status| status.disruptions_allowed))
        };
        let mut left: Vec<usize> = self.budgets.iter().map(allowed).collect();
        let mut ends = |pod: &&Candidate| {
            let protects = |(_, budget): &(usize, &PodDisruptionBudget)| {
                let selector = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
                selector.is_some_and(|selector| selects(selector, pod.labels()))
            };
            let of: Vec<usize> = self.budgets.iter().enumerate().filter(protects).map(|(n, _)| n).collect();
            let is_allowed = of.iter().all(|budget| left[*budget] > 0);
            if is_allowed {
                of.iter().for_each(|budget| left[*budget] -= 1);
            }
            is_allowed
        };
        asked.iter().filter(|pod| ends(pod)).cloned().collect()
    }

    /// Returns the reason that these pods may not all terminate at the same time; `None` if they may.
    fn refuse(&self, going: &[Candidate], ready: &[Candidate], leaving: &[Candidate]) -> Option<String> {
        let besides = match leaving.len() {
            0 => "",
            _ => ", not counting pods that are already terminating",
        };
        if going.len() >= ready.len() {
            return Some(match ready.len() {
                1 => format!("it is the last ready pod{besides}"),
                all => format!("all {all} ready pods would terminate at the same time{besides}"),
            });
        }
        let of = |pods: &[Candidate], selector: &LabelSelector| {
            pods.iter().filter(|pod| selects(selector, pod.labels())).count()
        };
        // The status lags, so it may still count terminating pods. It may also count pods that are not considered here.
        let now = |counted: usize, selector: &LabelSelector| {
            counted.saturating_sub(of(leaving, selector)).max(of(ready, selector))
        };
        for budget in &self.budgets {
            let Some(selector) = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref()) else {
                continue;
            };
            let meant = of(going, selector);
            let status = budget.status.clone().unwrap_or_default();
            let healthy = number(status.current_healthy);
            let missing = healthy.saturating_sub(now(healthy, selector));
            let allowed = number(status.disruptions_allowed).saturating_sub(missing);
            if meant > allowed {
                return Some(format!(
                    "PodDisruptionBudget {} allows {allowed} of {} to terminate",
                    budget.name_any(),
                    in_words(meant)
                ));
            }
        }
        for deployment in &self.deployments {
            let Some(spec) = &deployment.spec else { continue };
            let meant = of(going, &spec.selector);
            let rolling = spec.strategy.as_ref().and_then(|strategy| strategy.rolling_update.as_ref());
            let Some(max) = rolling.and_then(|rolling| rolling.max_unavailable.as_ref()) else { continue };
            let replicas = number(spec.replicas.or(Some(1)));
            let allowed = number_of(max, replicas, Rounding::Down).max(1);
            // Pods that are already unavailable count, too, because a rollout or another action may be in progress.
            let counted = number(deployment.status.as_ref().and_then(|status| status.ready_replicas));
            let away = replicas.saturating_sub(now(counted, &spec.selector));
            if meant > 0 && meant + away > allowed {
                let away = match away {
                    0 => String::new(),
                    1 => "1 is already unavailable, and ".to_owned(),
                    away => format!("{away} are already unavailable, and "),
                };
                return Some(format!(
                    "maxUnavailable of Deployment {} is {}, so {allowed} of {} may be unavailable at once; \
                     {away}{} would terminate",
                    deployment.name_any(),
                    match max {
                        IntOrString::Int(number) => number.to_string(),
                        IntOrString::String(share) => share.clone(),
                    },
                    in_words(replicas),
                    in_words(meant)
                ));
            }
        }
        None
    }
}

/// Converts a number from a status. Numbers in a status are never negative.
fn number(number: Option<i32>) -> usize {
    usize::try_from(number.unwrap_or(0)).unwrap_or(0)
}

fn in_words(pods: usize) -> String {
    if pods == 1 { "1 pod".to_owned() } else { format!("{pods} pods") }
}

/// Direction in which a share of pods is rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// Up to the next whole pod.
    Up,
    /// Down to the previous whole pod.
    Down,
}

/// Converts a number or share of all pods to a number of pods.
pub fn number_of(value: &IntOrString, pods: usize, round: Rounding) -> usize {
    match value {
        IntOrString::Int(value) => number(Some(*value)),
        IntOrString::String(share) => {
            let share = share.strip_suffix('%').and_then(|share| share.parse::<usize>().ok());
            let hundredths = share.unwrap_or(0).saturating_mul(pods);
            if round == Rounding::Up { hundredths.div_ceil(100) } else { hundredths / 100 }
        }
    }
}

pub(crate) fn selects(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    // A selector with an unknown operator selects nothing.
    Selector::try_from(selector.clone()).is_ok_and(|selector| selector.matches(labels))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::*;
    use rolldrop_scenario::{Count, Order, Pods, Restore};

    fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    fn pods(count: usize) -> Vec<Candidate> {
        vec![read(json!({"metadata": {"name": "web", "labels": {"app": "web"}}})); count]
    }

    #[test]
    fn excess_terminations_are_refused() {
        let budget = |allowed: i32| -> PodDisruptionBudget {
            let terms = json!([{"key": "app", "operator": "In", "values": ["web", "api"]}]);
            read(json!({"metadata": {"name": "pdb"}, "spec": {"selector": {"matchExpressions": terms}},
                "status": {"disruptionsAllowed": allowed, "currentHealthy": 3, "desiredHealthy": 2, "expectedPods": 3}}))
        };
        let ready = |max: Value, ready: i32| -> Deployment {
            read(json!({"metadata": {"name": "web"}, "status": {"readyReplicas": ready},
                "spec": {"replicas": 10, "template": {}, "selector": {"matchLabels": {"app": "web"}},
                    "strategy": {"rollingUpdate": {"maxUnavailable": max}}}}))
        };
        let deployment = |max: Value| ready(max, 10);
        let none = OutageLimits::default();
        assert_eq!(none.refuse(&pods(1), &pods(1), &[]).unwrap(), "it is the last ready pod");
        let why = none.refuse(&pods(1), &pods(1), &pods(1)).unwrap();
        assert_eq!(why, "it is the last ready pod, not counting pods that are already terminating");
        let why = none.refuse(&pods(3), &pods(3), &[]).unwrap();
        assert_eq!(why, "all 3 ready pods would terminate at the same time");
        assert_eq!(none.refuse(&pods(2), &pods(3), &[]), None);
        let budgets = |allowed| OutageLimits { budgets: vec![budget(allowed)], ..OutageLimits::default() };
        assert_eq!(budgets(1).refuse(&pods(1), &pods(3), &[]), None);
        let why = budgets(0).refuse(&pods(1), &pods(3), &[]).unwrap();
        assert_eq!(why, "PodDisruptionBudget pdb allows 0 of 1 pod to terminate");
        let deployments =
            |max| OutageLimits { deployments: vec![deployment(max)], ..OutageLimits::default() };
        assert_eq!(deployments(json!("25%")).refuse(&pods(2), &pods(10), &[]), None);
        let why = deployments(json!("25%")).refuse(&pods(3), &pods(10), &[]).unwrap();
        assert_eq!(
            why,
            "maxUnavailable of Deployment web is 25%, so 2 of 10 pods may be unavailable at once; 3 pods would \
             terminate"
        );
        assert_eq!(deployments(json!(0)).refuse(&pods(1), &pods(10), &[]), None);
        // In the middle of a rollout, or of another action.
        let rolling = OutageLimits { deployments: vec![ready(json!("25%"), 9)], ..OutageLimits::default() };
        assert_eq!(rolling.refuse(&pods(1), &pods(9), &[]), None);
        let why = rolling.refuse(&pods(2), &pods(9), &[]).unwrap();
        assert!(
            why.ends_with(
                "2 of 10 pods may be unavailable at once; 1 is already unavailable, and 2 pods would terminate"
            ),
            "{why}"
        );
        // Just after another action has begun, no status shows it yet.
        let why = deployments(json!(1)).refuse(&pods(1), &pods(9), &pods(1)).unwrap();
        assert!(
            why.ends_with(
                "1 of 10 pods may be unavailable at once; 1 is already unavailable, and 1 pod would terminate"
            ),
            "{why}"
        );
        let why = budgets(1).refuse(&pods(1), &pods(2), &pods(1)).unwrap();
        assert_eq!(why, "PodDisruptionBudget pdb allows 0 of 1 pod to terminate");
        // A terminating pod that has been replaced is not missing.
        assert_eq!(deployments(json!(1)).refuse(&pods(1), &pods(10), &pods(1)), None);
        assert_eq!(budgets(1).refuse(&pods(1), &pods(3), &pods(1)), None);
    }

    /// Only budgets hold evictions back (`pkg/registry/core/pod/storage/eviction.go`).
    #[test]
    fn evictions_obey_budgets_only() {
        let deployment: Deployment =
            read(json!({"metadata": {"name": "web"}, "status": {"readyReplicas": 4},
            "spec": {"replicas": 4, "template": {}, "selector": {"matchLabels": {"app": "web"}},
                "strategy": {"rollingUpdate": {"maxUnavailable": 0}}}}));
        let budget = |allowed: i32| -> PodDisruptionBudget {
            read(json!({"metadata": {"name": "pdb"}, "spec": {"selector": {"matchLabels": {"app": "web"}}},
                "status": {"disruptionsAllowed": allowed, "currentHealthy": 4}}))
        };
        let pods_of = |action: fn(Pods) -> DisruptionAction| {
            let (count, order) = (Count::All, Order::Oldest);
            let selector = "app=web".to_owned();
            action(Pods { selector, count, order, batch: None, spacing: Duration::ZERO, grace_seconds: None })
        };
        let (restore, node) = (Restore::AtTheEnd, "node-1".to_owned());
        let drain = DisruptionAction::Drain { node: node.clone(), restore };
        let shutdown = DisruptionAction::NodeShutdown { node, grace_seconds: 30, restore };
        let (evict, delete) = (pods_of(DisruptionAction::Evict), pods_of(DisruptionAction::DeletePod));
        assert_eq!(
            [&delete, &evict, &drain, &shutdown].map(OutageLimits::has_deployments),
            [true, false, false, false]
        );
        let bounds = |budgets: Vec<PodDisruptionBudget>, action: &DisruptionAction| {
            let deployments = OutageLimits::has_deployments(action).then(|| deployment.clone());
            OutageLimits { budgets, deployments: deployments.into_iter().collect() }
        };
        let refused = |budgets: Vec<PodDisruptionBudget>, action: &DisruptionAction, going: usize| {
            bounds(budgets, action).refuse_action(action, &pods(going), &pods(4), &[])
        };
        assert!(refused(vec![], &delete, 3).unwrap().starts_with("maxUnavailable of Deployment web is 0"));
        for action in [&evict, &drain, &shutdown] {
            assert_eq!(refused(vec![], action, 3), None, "{action:?}");
            assert_eq!(
                refused(vec![], action, 4).unwrap(),
                "all 4 ready pods would terminate at the same time",
                "{action:?}"
            );
        }
        // The API server evicts as many pods as the budget allows, and the rest once those are replaced.
        for action in [&evict, &drain] {
            assert_eq!(refused(vec![budget(1)], action, 4), None, "{action:?}");
            assert!(refused(vec![budget(4)], action, 4).is_some(), "{action:?}");
        }
        // A node shutdown does not respect budgets once it takes effect.
        let why = refused(vec![budget(1)], &shutdown, 3).unwrap();
        assert_eq!(why, "PodDisruptionBudget pdb allows 1 of 3 pods to terminate");
    }
}
