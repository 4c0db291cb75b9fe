//! How a pod's containers are told where the API server is, and who they are: by the volume that
//! admission has added to the pod, or by variables where nothing can be mounted.

use k8s_openapi::api::core::v1::Pod;

/// The ConfigMap that holds the certificate of the API server's authority.
pub(super) const ROOT_CA: &str = "kube-root-ca.crt";
/// What the name of that volume begins with.
const VOLUME: &str = "kube-api-access-";

/// The name of the volume that holds the pod's token, unless it is to have none.
pub(super) fn volume(pod: &Pod) -> Option<&str> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let mut names = volumes.filter(|volume| volume.projected.is_some()).map(|volume| volume.name.as_str());
    names.find(|name| name.starts_with(VOLUME))
}

/// The same as variables.
pub(super) fn variables(token: &str, ca: &str, namespace: &str) -> [(String, String); 3] {
    [("ROLLDROP_API_TOKEN", token), ("ROLLDROP_API_CA", ca), ("ROLLDROP_API_NAMESPACE", namespace)]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
}
