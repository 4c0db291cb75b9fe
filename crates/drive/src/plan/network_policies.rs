//! The cluster's NetworkPolicies that would keep clients out of the sidecars that a run adds.

use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::{ApiResource, DynamicObject};
use serde_json::{Value, json};

use super::live_changes::WantedChanges;
use crate::api::Caller;
use crate::error::{CoordinatorError, Result};
use rolldrop_scenario::Scenario;
use rolldrop_sidecar::inject;

/// Refuses sidecars whose clients a policy of the namespace would shut out. Does nothing if the run may not list policies.
///
/// # Errors
/// Fails with the workloads, the policies and a remedy.
pub(super) async fn refuse_shut_out(
    caller: &Caller,
    scenario: &Scenario,
    live: Option<&WantedChanges<'_>>,
) -> Result<()> {
    let resource = ApiResource::erase::<NetworkPolicy>(&());
    let in_namespace = |mut object: Value| {
        object["metadata"]["namespace"] = caller.namespace.as_str().into();
        object
    };
    let with_kind = |policy: DynamicObject| {
        let mut object = in_namespace(json!(policy));
        // Items of a list may lack their own `kind`.
        (object["apiVersion"], object["kind"]) = (json!(resource.api_version), json!(resource.kind));
        object
    };
    let api = caller.dynamic_api(&resource);
    let policies = caller.list_shown("list networkpolicies", &api, with_kind).await?;
    let own = scenario.manifests.iter().filter(|object| {
        object["metadata"]["namespace"].as_str().is_none_or(|namespace| namespace == caller.namespace)
    });
    let changed = live.into_iter().flat_map(|wanted| &wanted.live).map(|object| &object.wanted);
    let workloads: Vec<Value> = own.chain(changed).cloned().map(in_namespace).collect();
    inject::refuse_network_policies(&workloads, &policies)
        .map_err(|error| CoordinatorError::Sidecar(error.to_string()))
}
