//! Objects that a GitOps controller keeps in the state that its repository defines.

use serde_json::Value;

/// Prefixes of the labels and annotations with which GitOps controllers mark their objects.
const GITOPS: [(&str, &str); 3] = [
    ("argocd.argoproj.io/", "Argo CD"),
    ("kustomize.toolkit.fluxcd.io/", "Flux"),
    ("helm.toolkit.fluxcd.io/", "Flux"),
];

/// Policy for objects that a GitOps controller keeps in the state that its repository defines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GitOps {
    /// Does not change the objects, because the controller would revert the change during the run.
    Refuse,
    /// Changes the objects, because the controller is known to be paused.
    Change,
}

/// Returns the name of the GitOps controller that manages an object.
pub fn controller_of(object: &Value) -> Option<&'static str> {
    let metadata = &object["metadata"];
    let names = [&metadata["labels"], &metadata["annotations"]];
    let mut names = names.into_iter().filter_map(Value::as_object).flat_map(|map| map.keys());
    names.find_map(|name| {
        GITOPS.iter().find(|(prefix, _)| name.starts_with(prefix)).map(|(_, controller)| *controller)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn metadata_reveals_gitops_controller() {
        let controller = |metadata| controller_of(&json!({"kind": "Deployment", "metadata": metadata}));
        let argo =
            json!({"annotations": {"argocd.argoproj.io/tracking-id": "shop:apps/Deployment:shop/web"}});
        assert_eq!(controller(argo), Some("Argo CD"));
        let flux = json!({"labels": {"kustomize.toolkit.fluxcd.io/name": "shop"}});
        assert_eq!(controller(flux), Some("Flux"));
        let helm = json!({"labels": {"app.kubernetes.io/managed-by": "Helm"}});
        assert_eq!(controller(helm), None);
    }
}
