//! Kubeconfigs for the cluster and for a pod's service account.

use serde_json::{Value, json};

/// Returns a kubeconfig with one cluster, one user and one context, all called `name`; the context is in `namespace`.
/// The text is JSON, which is also valid YAML.
pub(crate) fn text(name: &str, cluster: &Value, user: &Value, namespace: &str) -> String {
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": namespace}}],
        "current-context": name,
    });
    format!("{config:#}\n")
}
