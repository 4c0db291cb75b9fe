//! Role-based access control: finds the roles bound to a user, and decides whether any of their rules allows a request.
//!
//! The logic follows Kubernetes v1.36 (plugin/pkg/auth/authorizer/rbac/rbac.go, pkg/registry/rbac/validation/rule.go
//! and pkg/apis/rbac/v1/evaluation_helpers.go). It neither aggregates ClusterRoles nor prevents privilege escalation:
//! users may write roles that grant permissions they do not have themselves.

use std::sync::Arc;

use serde_json::Value;

use super::api_tokens::User;
use super::registry::Registry;
use super::resource::Resource;
use super::status::Status;
use super::value::{list, text};

/// Action that a user requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Attributes {
    pub(crate) verb: String,
    pub(crate) target: AccessTarget,
}

/// Target of a requested action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AccessTarget {
    /// Objects, or one of their subresources.
    Resource(ResourceTarget),
    /// A non-resource path, such as `/version`.
    Path(String),
}

/// Objects, as addressed in the API. Empty fields are unspecified.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ResourceTarget {
    pub(crate) group: String,
    /// Plural name, such as `pods`.
    pub(crate) resource: String,
    pub(crate) subresource: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl ResourceTarget {
    /// Returns the resource and subresource in the notation of rules: `pods/log`.
    fn combined(&self) -> String {
        match self.subresource.as_str() {
            "" => self.resource.clone(),
            subresource => format!("{}/{subresource}", self.resource),
        }
    }
}

impl Attributes {
    /// Returns a 403 status, worded like a real API server's.
    pub(crate) fn refuse(&self, user: &User, reason: &str) -> Status {
        let (user, verb) = (user.name(), &self.verb);
        let because = if reason.is_empty() { String::new() } else { format!(": {reason}") };
        match &self.target {
            AccessTarget::Path(path) => {
                let why = format!("User {user:?} cannot {verb} path {path:?}{because}");
                Status::not_authorized("", "", "", &why)
            }
            AccessTarget::Resource(target) => {
                let ResourceTarget { group, resource, namespace, name, .. } = target;
                let place = match namespace.as_str() {
                    "" => "at the cluster scope".to_owned(),
                    namespace => format!("in the namespace {namespace:?}"),
                };
                let combined = target.combined();
                let why = format!(
                    "User {user:?} cannot {verb} resource {combined:?} in API group {group:?} {place}{because}"
                );
                Status::not_authorized(group, resource, name, &why)
            }
        }
    }
}

/// Decides whether `user` may perform the action described by `attributes`.
///
/// # Errors
///
/// Fails if no rule allows the action. The error lists bound roles that do not exist, and is empty if all of them
/// exist.
pub(crate) fn decide(registry: &Registry, user: &User, attributes: &Attributes) -> Result<(), String> {
    if *user == User::Admin {
        return Ok(());
    }
    let namespace = match &attributes.target {
        AccessTarget::Resource(target) => target.namespace.as_str(),
        AccessTarget::Path(_) => "",
    };
    let roles = BoundRoles::of(registry, user, namespace);
    if roles.rules().any(|rule| allows(rule, attributes)) {
        return Ok(());
    }
    Err(roles.reason())
}

/// The roles bound to a user, in one namespace or cluster-wide.
#[derive(Debug)]
struct BoundRoles {
    roles: Vec<Arc<Value>>,
    /// Errors about bound roles that do not exist.
    missing: Vec<String>,
}

impl BoundRoles {
    /// Finds the roles bound by ClusterRoleBindings and, unless `namespace` is empty, by its RoleBindings.
    fn of(registry: &Registry, user: &User, namespace: &str) -> Self {
        let everywhere = registry.all(Resource::ClusterRoleBindings, None);
        let here = match namespace {
            "" => Vec::new(),
            namespace => registry.all(Resource::RoleBindings, Some(namespace)),
        };
        let mut bound = Self { roles: Vec::new(), missing: Vec::new() };
        for binding in everywhere.iter().chain(&here) {
            if is_bound(binding, user) {
                bound.add(registry, &binding["roleRef"], namespace);
            }
        }
        bound
    }

    fn add(&mut self, registry: &Registry, reference: &Value, namespace: &str) {
        let name = text(&reference["name"]);
        let (resource, namespace) = match text(&reference["kind"]) {
            "Role" => (Resource::Roles, namespace),
            _ => (Resource::ClusterRoles, ""),
        };
        match registry.get(resource, namespace, name) {
            Ok(role) => self.roles.push(role),
            Err(_) => {
                let kind = resource.kind().to_lowercase();
                let why = format!("{kind}.{} {name:?} not found", resource.group());
                if !self.missing.contains(&why) {
                    self.missing.push(why);
                }
            }
        }
    }

    /// Returns the rules of all bound roles.
    fn rules(&self) -> impl Iterator<Item = &Value> {
        self.roles.iter().flat_map(|role| list(&role["rules"]))
    }

    /// Describes the bound roles that do not exist. Returns an empty string if all exist.
    fn reason(&self) -> String {
        match &self.missing[..] {
            [] => String::new(),
            [one] => format!("RBAC: {one}"),
            several => format!("RBAC: [{}]", several.join(", ")),
        }
    }
}

/// Returns true if the subjects of a binding include the user or one of the user's groups.
fn is_bound(binding: &Value, user: &User) -> bool {
    let groups = user.groups();
    list(&binding["subjects"]).iter().any(|subject| {
        let name = text(&subject["name"]);
        match text(&subject["kind"]) {
            "User" => name == user.name(),
            "Group" => groups.iter().any(|group| group == name),
            "ServiceAccount" => {
                let namespace = match text(&subject["namespace"]) {
                    "" => text(&binding["metadata"]["namespace"]),
                    namespace => namespace,
                };
                matches!(user, User::ServiceAccount { namespace: own_namespace, name: own_name }
                    if own_namespace == namespace && own_name == name)
            }
            _ => false,
        }
    })
}

/// Returns true if `rule` allows the action.
fn allows(rule: &Value, attributes: &Attributes) -> bool {
    let has = |field: &str, wanted: &str| {
        list(&rule[field]).iter().any(|value| *value == *wanted || *value == *"*")
    };
    let is_allowed = match &attributes.target {
        AccessTarget::Path(path) => {
            list(&rule["nonResourceURLs"]).iter().any(|url| matches_url(text(url), path))
        }
        AccessTarget::Resource(target) => {
            let names = list(&rule["resourceNames"]);
            has("apiGroups", &target.group)
                && list(&rule["resources"]).iter().any(|resource| matches_resource(text(resource), target))
                && (names.is_empty() || names.iter().any(|name| *name == *target.name))
        }
    };
    is_allowed && has("verbs", &attributes.verb)
}

/// Matches patterns such as `*`, `pods`, `pods/log` and `*/log`. A plain `pods` does not cover its subresources.
fn matches_resource(pattern: &str, target: &ResourceTarget) -> bool {
    let of_any = || !target.subresource.is_empty() && pattern.strip_prefix("*/") == Some(&target.subresource);
    pattern == "*" || pattern == target.combined() || of_any()
}

/// Matches an exact path, or a path prefix followed by `*`.
fn matches_url(pattern: &str, path: &str) -> bool {
    pattern == path || pattern.ends_with('*') && path.starts_with(pattern.trim_end_matches('*'))
}

#[cfg(test)]
mod tests;
