//! How a pod's containers are told where the API server is, and who they are.
//!
//! Source: kubernetes/kubernetes, `plugin/pkg/admission/serviceaccount/admission.go`.

use k8s_openapi::api::core::v1::{Container, Pod, Volume, VolumeMount};
use serde_json::json;

use super::env;
use crate::cluster::embedded::registry::Registry;
use crate::cluster::embedded::resource::Resource;

/// The ConfigMap that holds the certificate of the API server's authority.
pub(super) const ROOT_CA: &str = "kube-root-ca.crt";
const PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const VOLUME: &str = "kube-api-access";

/// Whether a pod is to get a token: neither it nor its service account says no.
pub(super) fn is_wanted(registry: &Registry, pod: &Pod) -> bool {
    let own = pod.spec.as_ref().and_then(|spec| spec.automount_service_account_token);
    own.unwrap_or_else(|| {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let account = registry.get(Resource::ServiceAccounts, namespace, env::service_account(pod));
        account.is_ok_and(|account| account["automountServiceAccountToken"] != false)
    })
}

/// Mounts token, authority and namespace in every container that has nothing there yet.
pub(super) fn mount(pod: &mut Pod) {
    let Some(spec) = &mut pod.spec else { return };
    let sources = json!({"name": VOLUME, "projected": {"sources": [
        {"serviceAccountToken": {"path": "token"}},
        {"configMap": {"name": ROOT_CA, "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
    ]}});
    let Ok(volume) = serde_json::from_value::<Volume>(sources) else { return };
    let add = |container: &mut Container| {
        let mounts = container.volume_mounts.get_or_insert_default();
        if mounts.iter().any(|mount| mount.mount_path == PATH) {
            return;
        }
        mounts.push(VolumeMount {
            name: VOLUME.to_owned(),
            mount_path: PATH.to_owned(),
            read_only: Some(true),
            ..VolumeMount::default()
        });
    };
    spec.init_containers.iter_mut().flatten().chain(&mut spec.containers).for_each(add);
    spec.volumes.get_or_insert_default().push(volume);
}

/// The same as variables, for a dataplane without mounts.
pub(super) fn variables(token: &str, ca: &str, namespace: &str) -> [(String, String); 3] {
    [("ROLLDROP_API_TOKEN", token), ("ROLLDROP_API_CA", ca), ("ROLLDROP_API_NAMESPACE", namespace)]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
}
