//! Parses API paths.

use super::super::resource::Resource;
use super::review::Review;
use super::unsupported::UNSUPPORTED;

/// Target that a path refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ApiRoute {
    /// A static document.
    Document(ApiDocument),
    /// A review of the user's own identity or permissions.
    Review(Review),
    /// All objects of a resource, in one namespace or in all of them.
    Collection { resource: Resource, namespace: Option<String> },
    /// One object, or one of its subresources.
    Object { resource: Resource, namespace: String, name: String, subresource: Subresource },
}

/// Document about the API itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ApiDocument {
    /// `/version`
    Version,
    /// `/healthz` and its successors
    Health,
    /// `/api`
    CoreVersions,
    /// `/apis`
    Groups,
    /// `/apis/GROUP`
    Group(&'static str),
    /// `/api/v1` and `/apis/GROUP/v1`
    Resources(&'static str),
    /// `/openapi/v2`
    Swagger,
    /// `/openapi/v3`
    OpenApi,
    /// `/openapi/v3/api/v1` and `/openapi/v3/apis/GROUP/v1`
    OpenApiOf(&'static str),
}

/// Subresource: a part of an object that has its own path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Subresource {
    /// The object itself.
    None,
    Status,
    Scale,
    /// Eviction of a pod, if its PodDisruptionBudget allows it.
    Eviction,
    /// Output of a pod's container.
    Log,
    /// Name of a pod subresource that this API does not support.
    Unsupported(&'static str),
    /// A pod's port, or a node's agent, and the path to request there (with its leading slash).
    Proxy {
        port: Option<String>,
        path: String,
    },
}

impl Subresource {
    /// Returns the subresource's name in paths, which is empty for the object itself.
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::None => "",
            Self::Status => "status",
            Self::Scale => "scale",
            Self::Eviction => "eviction",
            Self::Log => "log",
            Self::Unsupported(name) => name,
            Self::Proxy { .. } => "proxy",
        }
    }
}

impl ApiRoute {
    /// Parses a path. Returns `None` if nothing exists there.
    pub(super) fn of(path: &str) -> Option<Self> {
        let whole = path.strip_prefix('/')?;
        let document = match whole.trim_end_matches('/') {
            "version" => Some(ApiDocument::Version),
            "healthz" | "livez" | "readyz" => Some(ApiDocument::Health),
            "api" => Some(ApiDocument::CoreVersions),
            "apis" => Some(ApiDocument::Groups),
            "openapi/v2" => Some(ApiDocument::Swagger),
            "openapi/v3" => Some(ApiDocument::OpenApi),
            "openapi/v3/api/v1" => Some(ApiDocument::OpenApiOf("")),
            other => {
                let group = other.strip_prefix("openapi/v3/apis/").and_then(|path| path.strip_suffix("/v1"));
                group.and_then(known_group).map(ApiDocument::OpenApiOf)
            }
        };
        if let Some(document) = document {
            return Some(Self::Document(document));
        }
        let (group, rest) = match whole.split_once('/')? {
            ("api", rest) => ("", rest),
            ("apis", rest) => rest.split_once('/').unwrap_or((rest, "")),
            _ => return None,
        };
        let group = if group.is_empty() { "" } else { known_group(group)? };
        let rest = match rest.split_once('/').unwrap_or((rest, "")) {
            ("", "") if !group.is_empty() => return Some(Self::Document(ApiDocument::Group(group))),
            ("v1", "") => return Some(Self::Document(ApiDocument::Resources(group))),
            ("v1", rest) => rest,
            _ => return None,
        };
        // The longest form is namespaces/NS/RESOURCE/NAME/SUBRESOURCE/anything.
        if let Some(review) = Review::find(group, rest) {
            return Some(Self::Review(review));
        }
        let (namespace, rest) = match rest.strip_prefix("namespaces/").and_then(|rest| rest.split_once('/')) {
            Some((namespace, inner)) if !matches!(inner, "" | "status") => (Some(namespace), inner),
            _ => (None, rest),
        };
        let mut segments = rest.splitn(4, '/');
        let resource = Resource::find(group, segments.next()?)?;
        if namespace.is_some() && !resource.namespaced() {
            return None;
        }
        let Some(name) = segments.next().filter(|name| !name.is_empty()) else {
            return Some(Self::Collection { resource, namespace: namespace.map(str::to_owned) });
        };
        if namespace.is_none() && resource.namespaced() {
            return None;
        }
        let name = name.replace("%3A", ":").replace("%3a", ":");
        // The names of pods and nodes never contain a colon, but those of roles may.
        let has_ports = matches!(resource, Resource::Pods | Resource::Nodes);
        let (name, port) = match name.split_once(':') {
            Some((name, port)) if has_ports => (name.to_owned(), Some(port.to_owned())),
            _ => (name, None),
        };
        let subresource = match (segments.next(), segments.next()) {
            (None | Some(""), None) => Subresource::None,
            (Some("status"), None) if resource.has_status() => Subresource::Status,
            (Some("scale"), None) if resource.has_scale() => Subresource::Scale,
            (Some("eviction"), None) if resource == Resource::Pods => Subresource::Eviction,
            (Some("log"), None) if resource == Resource::Pods => Subresource::Log,
            (Some("proxy"), rest) if has_ports => {
                Subresource::Proxy { port: port.clone(), path: format!("/{}", rest.unwrap_or_default()) }
            }
            (Some(other), None) if resource == Resource::Pods => {
                Subresource::Unsupported(UNSUPPORTED.into_iter().find(|name| *name == other)?)
            }
            _ => return None,
        };
        if port.is_some() && !matches!(subresource, Subresource::Proxy { .. }) {
            return None;
        }
        let namespace = namespace.unwrap_or_default().to_owned();
        Some(Self::Object { resource, namespace, name, subresource })
    }
}

/// Returns all API groups except the core group.
pub(super) fn groups() -> Vec<&'static str> {
    let all =
        Resource::ALL.into_iter().map(Resource::group).chain(Review::ALL.into_iter().map(Review::group));
    let mut groups = Vec::new();
    for group in all.filter(|group| !group.is_empty()) {
        if !groups.contains(&group) {
            groups.push(group);
        }
    }
    groups
}

fn known_group(group: &str) -> Option<&'static str> {
    groups().into_iter().find(|known| *known == group)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(resource: Resource, namespace: &str, name: &str, subresource: Subresource) -> Option<ApiRoute> {
        Some(ApiRoute::Object {
            resource,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            subresource,
        })
    }

    #[test]
    fn path_identifies_collection_or_object() {
        let collection = |resource, namespace: Option<&str>| {
            Some(ApiRoute::Collection { resource, namespace: namespace.map(str::to_owned) })
        };
        assert_eq!(ApiRoute::of("/api/v1/pods"), collection(Resource::Pods, None));
        assert_eq!(ApiRoute::of("/api/v1/namespaces/a/pods"), collection(Resource::Pods, Some("a")));
        assert_eq!(ApiRoute::of("/api/v1/namespaces"), collection(Resource::Namespaces, None));
        assert_eq!(
            ApiRoute::of("/api/v1/namespaces/a"),
            object(Resource::Namespaces, "", "a", Subresource::None)
        );
        assert_eq!(
            ApiRoute::of("/api/v1/namespaces/a/status"),
            object(Resource::Namespaces, "", "a", Subresource::Status)
        );
        assert_eq!(
            ApiRoute::of("/apis/apps/v1/namespaces/a/deployments/web/scale"),
            object(Resource::Deployments, "a", "web", Subresource::Scale)
        );
        assert_eq!(ApiRoute::of("/apis/apps/v1"), Some(ApiRoute::Document(ApiDocument::Resources("apps"))));
        assert_eq!(ApiRoute::of("/apis/apps"), Some(ApiRoute::Document(ApiDocument::Group("apps"))));
        assert_eq!(ApiRoute::of("/api/v1/"), Some(ApiRoute::Document(ApiDocument::Resources(""))));
    }

    #[test]
    fn proxy_route_keeps_port_and_path() {
        let proxy = |port: Option<&str>, path: &str| {
            let subresource = Subresource::Proxy { port: port.map(str::to_owned), path: path.to_owned() };
            object(Resource::Pods, "a", "web-1", subresource)
        };
        assert_eq!(
            ApiRoute::of("/api/v1/namespaces/a/pods/web-1:8080/proxy/rows/x"),
            proxy(Some("8080"), "/rows/x")
        );
        assert_eq!(ApiRoute::of("/api/v1/namespaces/a/pods/web-1%3A81/proxy"), proxy(Some("81"), "/"));
        assert_eq!(ApiRoute::of("/api/v1/namespaces/a/pods/web-1/proxy/"), proxy(None, "/"));
    }

    #[test]
    fn role_name_may_contain_colon() {
        assert_eq!(
            ApiRoute::of("/apis/rbac.authorization.k8s.io/v1/clusterroles/system:discovery"),
            object(Resource::ClusterRoles, "", "system:discovery", Subresource::None)
        );
    }

    #[test]
    fn unknown_paths_have_no_route() {
        for path in [
            "/",
            "/nope",
            "/api/v2/pods",
            "/apis/nosuch/v1/things",
            "/api/v1/things",
            "/api/v1/pods/web",
            "/api/v1/namespaces/a/pods/web/exec/more",
            "/api/v1/namespaces/a/pods/web/nothing",
            "/api/v1/namespaces/a/services/web/exec",
            "/api/v1/namespaces/a/pods/web:80",
            "/api/v1/namespaces/a/configmaps/c/status",
        ] {
            assert_eq!(ApiRoute::of(path), None, "{path}");
        }
    }
}
