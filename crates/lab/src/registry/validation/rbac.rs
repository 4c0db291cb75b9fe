//! Bindings of roles (Kubernetes pkg/apis/rbac/validation/validation.go). Rules and subjects are not checked: what makes
//! no sense in them allows nothing.

use serde_json::{Value, json};

use super::errors::Errors;
use crate::resource::Resource;
use crate::value::text;

pub(super) fn validate_binding(
    resource: Resource,
    binding: &Value,
    current: Option<&Value>,
    errors: &mut Errors,
) {
    let role = &binding["roleRef"];
    let kinds: &[&str] = if resource.namespaced() { &["Role", "ClusterRole"] } else { &["ClusterRole"] };
    errors.check_one_of(&json!(text(&role["kind"])), "roleRef.kind", kinds);
    if text(&role["name"]).is_empty() {
        errors.required("roleRef.name", "");
    }
    if current.is_some_and(|current| current["roleRef"] != *role) {
        errors.invalid("roleRef", role, "cannot change roleRef");
    }
}
