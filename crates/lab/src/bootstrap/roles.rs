//! Default roles of a cluster and their bindings, from `roles.yaml`.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::registry::Registry;
use crate::resource::Resource;
use crate::status::Status;

/// A role as defined in `roles.yaml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct BootstrapRole {
    name: String,
    rules: Vec<Value>,
    /// Earlier role whose rules this role includes.
    includes: Option<String>,
    /// Group to which the role is bound.
    group: Option<String>,
}

/// Creates the roles and their bindings.
pub(super) fn create(registry: &Registry) -> Result<(), Status> {
    let roles: Vec<BootstrapRole> = serde_saphyr::from_str(include_str!("roles.yaml"))
        .map_err(|error| Status::internal(format!("cannot read the default roles: {error}")))?;
    let mut known = BTreeMap::new();
    for BootstrapRole { name, rules, includes, group } in roles {
        let included: Vec<Value> = includes.and_then(|role| known.get(&role).cloned()).unwrap_or_default();
        let rules = [included, rules].concat();
        let metadata = json!({"name": name, "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"}});
        registry.create(Resource::ClusterRoles, "", json!({"metadata": metadata, "rules": rules}))?;
        if let Some(group) = group {
            let binding = json!({
                "metadata": metadata,
                "roleRef": {"kind": "ClusterRole", "name": name},
                "subjects": [{"kind": "Group", "name": group}],
            });
            registry.create(Resource::ClusterRoleBindings, "", binding)?;
        }
        known.insert(name, rules);
    }
    Ok(())
}
