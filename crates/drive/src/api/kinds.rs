//! Kinds of objects in a cluster.

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, StatefulSet};
use kube::Api;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use kube::core::TypeMeta;
use kube::discovery::{self, Scope};
use serde_json::Value;

use super::caller::Caller;
use crate::error::{CoordinatorError, Result};
use rolldrop_scenario::WorkloadKind;

/// Returns the API resource for a kind of workload.
pub(crate) fn resource_of(kind: WorkloadKind) -> ApiResource {
    match kind {
        WorkloadKind::Deployment => ApiResource::erase::<Deployment>(&()),
        WorkloadKind::StatefulSet => ApiResource::erase::<StatefulSet>(&()),
        WorkloadKind::DaemonSet => ApiResource::erase::<DaemonSet>(&()),
    }
}

impl Caller {
    /// Returns the API for a kind, in this namespace if the kind is namespaced.
    pub(crate) fn api_of(
        &self,
        resource: &ApiResource,
        scope: &Scope,
        namespace: &str,
    ) -> Api<DynamicObject> {
        match scope {
            Scope::Namespaced => Api::namespaced_with(self.client.clone(), namespace, resource),
            Scope::Cluster => Api::all_with(self.client.clone(), resource),
        }
    }

    /// Looks up the API resource and the scope of a kind in the cluster.
    pub(crate) async fn kind_of(&self, api_version: &str, kind: &str) -> Result<(ApiResource, Scope)> {
        let what = "discover the cluster's kinds";
        let types = TypeMeta { api_version: api_version.to_owned(), kind: kind.to_owned() };
        let gvk = GroupVersionKind::try_from(&types);
        let unknown = || {
            let TypeMeta { api_version, kind } = types;
            CoordinatorError::UnknownKind { kind, api_version }
        };
        let Ok(gvk) = gvk else { return Err(unknown()) };
        match self.ask(what, || discovery::pinned_kind(&self.client, &gvk)).await? {
            Ok((resource, capabilities)) => Ok((resource, capabilities.scope)),
            Err(kube::Error::Discovery(_)) => Err(unknown()),
            Err(kube::Error::Api(status)) if status.code == 404 => Err(unknown()),
            Err(error) => Err(CoordinatorError::api(what, &error)),
        }
    }
}

/// Returns the reason that a workload would not replace its pods after a template change; `None` if it would.
pub fn why_no_rollout(workload: &Value) -> Option<&'static str> {
    let spec = &workload["spec"];
    let partition = spec["updateStrategy"]["rollingUpdate"]["partition"].as_u64().unwrap_or(0);
    if spec["paused"] == true {
        Some("its rollout is paused: resume it first")
    } else if spec["updateStrategy"]["type"] == "OnDelete" {
        Some("its update strategy is OnDelete: delete its pods, or use RollingUpdate")
    } else if partition > 0 && partition >= spec["replicas"].as_u64().unwrap_or(1) {
        Some("its partition holds back all its pods: set it below the number of replicas, or to 0")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn held_back_workloads_have_no_rollout() {
        let why = |spec: Value| why_no_rollout(&json!({"spec": spec}));
        let partition =
            |partition: u64| json!({"type": "RollingUpdate", "rollingUpdate": {"partition": partition}});
        assert!(why(json!({"paused": true})).unwrap().contains("paused"));
        assert!(why(json!({"updateStrategy": {"type": "OnDelete"}})).unwrap().contains("OnDelete"));
        assert!(why(json!({"replicas": 3, "updateStrategy": partition(3)})).unwrap().contains("partition"));
        assert_eq!(why(json!({"replicas": 3, "updateStrategy": partition(2)})), None);
        assert_eq!(why(json!({"replicas": 0, "updateStrategy": partition(0)})), None);
    }
}
