//! Gives a pod's containers the location of the API server and their identity, through the files in the volume that
//! admission has added to the pod. If nothing can be mounted, environment variables give the location of these files,
//! and a kubeconfig next to them serves clients that look nowhere else.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use crate::kubeconfig;
use crate::well_known::TOKEN_VOLUME;

/// Name of the kubeconfig file.
const KUBECONFIG: &str = "kubeconfig";

/// Returns the name of the volume that holds the pod's token, unless the pod should have none.
pub(super) fn volume(pod: &Pod) -> Option<&str> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let mut names = volumes.filter(|volume| volume.projected.is_some()).map(|volume| volume.name.as_str());
    names.find(|name| name.starts_with(TOKEN_VOLUME))
}

/// Returns the variables that give the location of the files in `dir`.
pub(super) fn variables(dir: &Path) -> [(String, String); 2] {
    [("ROLLDROP_SERVICE_ACCOUNT", dir.to_owned()), ("KUBECONFIG", dir.join(KUBECONFIG))]
        .map(|(name, path)| (name.to_owned(), path.display().to_string()))
}

/// Writes the kubeconfig next to the files in `dir`. `services` are the variables for Services.
///
/// # Errors
///
/// Fails if the file cannot be written.
pub(super) fn write_kubeconfig(
    dir: &Path,
    services: &BTreeMap<String, String>,
    namespace: &str,
) -> io::Result<()> {
    let variable = |name: &str| services.get(name).map(String::as_str).unwrap_or_default();
    let (host, port) = (variable("KUBERNETES_SERVICE_HOST"), variable("KUBERNETES_SERVICE_PORT"));
    let cluster = json!({
        "server": format!("https://{host}:{port}"),
        "certificate-authority": dir.join("ca.crt"),
    });
    let config = kubeconfig::text("own", &cluster, &json!({"tokenFile": dir.join("token")}), namespace);
    fs::set_permissions(dir, Permissions::from_mode(0o700))?;
    fs::write(dir.join(KUBECONFIG), config)
}
