//! The roles that a cluster has from the start, and their bindings.
//!
//! They are those of v1.36 that users meet (plugin/pkg/auth/authorizer/rbac/bootstrappolicy/policy.go), as far as
//! this cluster has the resources. `admin`, `edit` and `view` contain their rules themselves: this cluster aggregates
//! no roles.

use serde_json::{Value, json};

use crate::registry::Registry;
use crate::resource::Resource;
use crate::status::Status;

const READ: [&str; 3] = ["get", "list", "watch"];
const WRITE: [&str; 5] = ["create", "delete", "deletecollection", "patch", "update"];
/// Subresources that reach into a pod; reading them takes the right to write them.
const INTO_PODS: [&str; 4] = ["pods/attach", "pods/exec", "pods/portforward", "pods/proxy"];

/// Creates the roles and their bindings.
pub(super) fn create(registry: &Registry) -> Result<(), Status> {
    let everyone = "system:authenticated";
    let bound = [
        ("cluster-admin", cluster_admin(), "system:masters"),
        ("system:discovery", discovery(), everyone),
        ("system:basic-user", basic_user(), everyone),
    ];
    let (view, edit) = (view(), [view(), edit()].concat());
    let admin = [edit.clone(), admin()].concat();
    for (name, rules) in [("view", view), ("edit", edit), ("admin", admin)] {
        create_role(registry, name, &rules)?;
    }
    for (name, rules, group) in bound {
        create_role(registry, name, &rules)?;
        let binding = json!({
            "metadata": metadata(name),
            "roleRef": {"kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "Group", "name": group}],
        });
        registry.create(Resource::ClusterRoleBindings, "", binding)?;
    }
    Ok(())
}

fn create_role(registry: &Registry, name: &str, rules: &[Value]) -> Result<(), Status> {
    let role = json!({"metadata": metadata(name), "rules": rules});
    registry.create(Resource::ClusterRoles, "", role).map(drop)
}

fn metadata(name: &str) -> Value {
    json!({"name": name, "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"}})
}

fn rule(verbs: &[&str], group: &str, resources: &[&str]) -> Value {
    json!({"verbs": verbs, "apiGroups": [group], "resources": resources})
}

fn cluster_admin() -> Vec<Value> {
    vec![rule(&["*"], "*", &["*"]), json!({"verbs": ["*"], "nonResourceURLs": ["*"]})]
}

/// Returns the rules for documents that clients read first, such as discovery.
fn discovery() -> Vec<Value> {
    let paths = [
        "/api",
        "/api/*",
        "/apis",
        "/apis/*",
        "/healthz",
        "/livez",
        "/openapi",
        "/openapi/*",
        "/readyz",
        "/version",
        "/version/",
    ];
    vec![json!({"verbs": ["get"], "nonResourceURLs": paths})]
}

/// Returns the rules for questions of users about themselves.
fn basic_user() -> Vec<Value> {
    vec![
        rule(&["create"], "authorization.k8s.io", &["selfsubjectaccessreviews", "selfsubjectrulesreviews"]),
        rule(&["create"], "authentication.k8s.io", &["selfsubjectreviews"]),
    ]
}

fn view() -> Vec<Value> {
    let core = [
        "configmaps",
        "endpoints",
        "events",
        "namespaces",
        "namespaces/status",
        "persistentvolumeclaims",
        "persistentvolumeclaims/status",
        "pods",
        "pods/log",
        "pods/status",
        "serviceaccounts",
        "services",
        "services/status",
    ];
    let apps = [
        "controllerrevisions",
        "daemonsets",
        "daemonsets/status",
        "deployments",
        "deployments/scale",
        "deployments/status",
        "replicasets",
        "replicasets/scale",
        "replicasets/status",
        "statefulsets",
        "statefulsets/scale",
        "statefulsets/status",
    ];
    vec![
        rule(&READ, "", &core),
        rule(&READ, "apps", &apps),
        rule(&READ, "batch", &["jobs", "jobs/status"]),
        rule(&READ, "discovery.k8s.io", &["endpointslices"]),
        rule(&READ, "networking.k8s.io", &["ingresses", "ingresses/status"]),
        rule(&READ, "policy", &["poddisruptionbudgets", "poddisruptionbudgets/status"]),
    ]
}

/// Returns the rules of `edit` beyond those of `view`.
fn edit() -> Vec<Value> {
    let core =
        ["configmaps", "events", "persistentvolumeclaims", "pods", "secrets", "serviceaccounts", "services"];
    let apps = [
        "daemonsets",
        "deployments",
        "deployments/scale",
        "replicasets",
        "replicasets/scale",
        "statefulsets",
        "statefulsets/scale",
    ];
    vec![
        rule(&READ, "", &INTO_PODS),
        rule(&READ, "", &["secrets"]),
        rule(&WRITE, "", &INTO_PODS),
        rule(&WRITE, "", &core),
        rule(&["create"], "", &["pods/eviction"]),
        rule(&WRITE, "apps", &apps),
        rule(&WRITE, "batch", &["jobs"]),
        rule(&[&READ[..], &WRITE].concat(), "coordination.k8s.io", &["leases"]),
        rule(&WRITE, "networking.k8s.io", &["ingresses"]),
        rule(&WRITE, "policy", &["poddisruptionbudgets"]),
    ]
}

/// Returns the rules of `admin` beyond those of `edit`.
fn admin() -> Vec<Value> {
    let all = [&READ[..], &WRITE].concat();
    vec![rule(&all, Resource::Roles.group(), &["rolebindings", "roles"])]
}
