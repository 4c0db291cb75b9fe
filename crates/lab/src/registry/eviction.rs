//! Evictions: deletions of pods that need approval from a PodDisruptionBudget.
//!
//! Rules and messages follow pkg/registry/core/pod/storage/eviction.go. An eviction takes three steps: charging the
//! budget, marking the pod, and deleting it. Callers add delays between them.

use serde_json::{Value, json};

use super::deletion::check_preconditions;
use super::{DeleteOptions, ObjectPart, Registry, Resource, Status, StoreAction, WriteEffect};
use crate::conditions;
use crate::object_fields::{is_being_deleted, is_ready};
use crate::selector::LabelSelector;
use crate::value::text;

/// Maximum number of pending evictions per budget (`MaxDisruptedPodSize`).
const MAX_DISRUPTED_PODS: usize = 2000;

const WOULD_VIOLATE: &str = "Cannot evict pod as it would violate the pod's disruption budget.";

impl Registry {
    /// Approves the eviction of `pod`, and charges its budget if necessary.
    ///
    /// # Errors
    ///
    /// 429 if the budget does not allow the eviction or is out of date, 500 if several budgets cover the pod.
    pub(crate) fn approve_eviction(&self, pod: &Value, effect: WriteEffect) -> Result<(), Status> {
        // Pods that are not running do not count against the budget.
        if is_being_deleted(pod)
            || ["Succeeded", "Failed", "Pending"].contains(&text(&pod["status"]["phase"]))
        {
            return Ok(());
        }
        let namespace = pod["metadata"]["namespace"].as_str().unwrap_or_default();
        let mut budgets = self.all(Resource::PodDisruptionBudgets, Some(namespace));
        budgets.retain(|budget| covers(budget, pod));
        let budget = match &budgets[..] {
            [] => return Ok(()),
            [budget] => budget,
            _ => {
                let message = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
                return Err(Status::internal(message));
            }
        };
        let count = |field: &str| budget["status"][field].as_i64().unwrap_or(0);
        // A pod that is not ready does not count as healthy, so evicting it costs no budget.
        let always = budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow";
        let desired = count("desiredHealthy");
        if !is_ready(pod) && (always || (count("currentHealthy") >= desired && desired > 0)) {
            return Ok(());
        }
        let budget_name = budget["metadata"]["name"].as_str().unwrap_or_default();
        let pod_name = pod["metadata"]["name"].as_str().unwrap_or_default();
        let now = self.now();
        let resource = Resource::PodDisruptionBudgets;
        self.modify_with(resource, namespace, budget_name, ObjectPart::Status, effect, |budget| {
            charge(budget, pod_name, &now)
        })?;
        Ok(())
    }

    /// Marks a pod for eviction, if the preconditions are met.
    ///
    /// # Errors
    ///
    /// 404 if the pod is gone, 409 if a precondition fails.
    pub(crate) fn mark_for_eviction(
        &self,
        namespace: &str,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<(), Status> {
        let now = self.now();
        let marked = self.inner.store.modify(Resource::Pods, namespace, name, |current| {
            check_preconditions(Resource::Pods, name, current, options)?;
            let mut pod = current.clone();
            let (reason, message) = ("EvictionByEvictionAPI", "Eviction API: evicting");
            conditions::disruption_target(&mut pod, reason, message, None, &now);
            Ok(if pod == *current { StoreAction::Keep } else { StoreAction::Replace(pod) })
        })?;
        marked.map(drop).ok_or_else(|| Status::not_found(Resource::Pods, name))
    }
}

/// Returns true if a PodDisruptionBudget covers a pod. An empty selector covers all pods, and a missing one none.
pub(crate) fn covers(budget: &Value, pod: &Value) -> bool {
    budget["spec"]["selector"].is_object()
        && LabelSelector::from_object(&budget["spec"]["selector"]).matches(&pod["metadata"]["labels"])
}

/// Charges a budget for one disruption (`checkAndDecrement`).
fn charge(budget: &mut Value, pod: &str, now: &str) -> Result<(), Status> {
    let name = budget["metadata"]["name"].as_str().unwrap_or_default();
    let status = &budget["status"];
    let count = |field: &str| status[field].as_i64().unwrap_or(0);
    if count("observedGeneration") < budget["metadata"]["generation"].as_i64().unwrap_or(0) {
        return Err(still_processed(name));
    }
    if status["disruptedPods"].as_object().is_some_and(|pods| pods.len() > MAX_DISRUPTED_PODS) {
        let why = "DisruptedPods map too big - too many evictions not confirmed by PDB controller";
        return Err(Status::forbidden(Resource::PodDisruptionBudgets, name, why));
    }
    let allowed = count("disruptionsAllowed");
    if allowed == 0 {
        let condition = conditions::of(budget, "DisruptionAllowed");
        let (healthy, desired) = (count("currentHealthy"), count("desiredHealthy"));
        let why = if condition["reason"] == "SyncFailed" {
            let message = text(&condition["message"]);
            format!(
                "The disruption budget {name} does not allow evicting pods currently because it failed sync: {message}"
            )
        } else if healthy <= desired {
            format!("The disruption budget {name} needs {desired} healthy pods and has {healthy} currently")
        } else {
            format!("The disruption budget {name} does not allow evicting pods currently")
        };
        return Err(Status::too_many_requests(WOULD_VIOLATE, "DisruptionBudget", &why, None));
    }
    budget["status"]["disruptionsAllowed"] = json!(allowed - 1);
    budget["status"]["disruptedPods"][pod] = json!(now);
    if allowed == 1 {
        set_allowed_condition(budget, now);
    }
    Ok(())
}

/// Returns a 429 status that asks the client to retry soon, because the budget is out of date.
fn still_processed(budget: &str) -> Status {
    let why = format!("The disruption budget {budget} is still being processed by the server.");
    Status::too_many_requests(WOULD_VIOLATE, "DisruptionBudget", &why, Some(10))
}

/// Sets the condition that shows whether a budget allows a disruption (`UpdateDisruptionAllowedCondition`).
pub(crate) fn set_allowed_condition(budget: &mut Value, now: &str) {
    let allowed = budget["status"]["disruptionsAllowed"].as_i64().unwrap_or(0) > 0;
    let condition = json!({
        "type": "DisruptionAllowed",
        "status": if allowed { "True" } else { "False" },
        "observedGeneration": budget["status"]["observedGeneration"],
        "reason": if allowed { "SufficientPods" } else { "InsufficientPods" },
        "message": "",
    });
    conditions::put(budget, condition, now);
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: &str = "2026-01-01T00:00:00Z";

    fn budget(allowed: i64, healthy: i64, desired: i64) -> Value {
        json!({
            "metadata": {"name": "web", "generation": 1},
            "status": {
                "observedGeneration": 1, "disruptionsAllowed": allowed,
                "currentHealthy": healthy, "desiredHealthy": desired,
            },
        })
    }

    #[test]
    fn eviction_decrements_allowed_disruptions() {
        let mut charged = budget(2, 4, 2);
        charge(&mut charged, "a", NOW).unwrap();
        assert_eq!(charged["status"]["disruptionsAllowed"], 1);
        assert_eq!(charged["status"]["disruptedPods"], json!({"a": NOW}));
        charge(&mut charged, "b", NOW).unwrap();
        assert_eq!(charged["status"]["disruptionsAllowed"], 0);
        assert_eq!(charged["status"]["conditions"][0]["reason"], "InsufficientPods");
        let refused = charge(&mut charged, "c", NOW).unwrap_err().to_json();
        assert_eq!(
            (&refused["code"], &refused["reason"], &refused["message"]),
            (&json!(429), &json!("TooManyRequests"), &json!(WOULD_VIOLATE))
        );
    }

    #[test]
    fn exhausted_budget_error_matches_recording() {
        let refused = charge(&mut budget(0, 1, 1), "a", NOW).unwrap_err().to_json();
        let cause = "The disruption budget web needs 1 healthy pods and has 1 currently";
        assert_eq!(refused["details"], json!({"causes": [{"reason": "DisruptionBudget", "message": cause}]}));
    }

    #[test]
    fn stale_budget_returns_retry_after() {
        let mut stale = budget(1, 2, 1);
        stale["metadata"]["generation"] = json!(2);
        let refused = charge(&mut stale, "a", NOW).unwrap_err().to_json();
        assert_eq!(refused["details"]["retryAfterSeconds"], 10);
    }
}
