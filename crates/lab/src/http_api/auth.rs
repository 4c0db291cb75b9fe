//! Authenticates requests by token, and authorizes them through RBAC.

use http::{Method, Request, header};
use hyper::body::Incoming;

use super::super::api_tokens::User;
use super::super::rbac::{self, AccessTarget, Attributes, ResourceTarget};
use super::super::registry::{PatchKind, Registry};
use super::super::resource::Resource;
use super::super::selector::required_name;
use super::super::status::Status;
use super::ApiServerState;
use super::api_route::{ApiRoute, Subresource};
use super::body::content_type;
use super::query::Query;

/// Returns the user identified by the request's bearer token, or `None` if the token is missing or invalid. Tokens of
/// deleted service accounts are invalid.
pub(super) fn authenticate(request: &Request<Incoming>, server: &ApiServerState) -> Option<User> {
    let authorization = request.headers().get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = authorization.split_once(' ')?;
    let user = scheme.eq_ignore_ascii_case("bearer").then(|| server.tokens.user(token.trim()))??;
    match &user {
        User::Admin => {}
        User::ServiceAccount { namespace, name } => {
            server.shared.registry.get(Resource::ServiceAccounts, namespace, name).ok()?;
        }
    }
    Some(user)
}

/// Checks that `user` may make a request.
///
/// # Errors
///
/// 403 if no rule allows the request.
pub(super) fn authorize<B>(
    request: &Request<B>,
    registry: &Registry,
    query: &Query,
    route: &ApiRoute,
    user: &User,
) -> Result<(), Status> {
    let mut attributes = attributes_of(request.method(), request.uri().path(), query, route);
    require(registry, user, &attributes)?;
    if let ApiRoute::Object { resource, namespace, name, subresource: Subresource::None } = route
        && request.method() == Method::PATCH
        && PatchKind::from_content_type(&content_type(request)) == Some(PatchKind::Apply)
        && registry.get(*resource, namespace, name).is_err()
    {
        // A server-side apply to a missing object creates it.
        attributes.verb = "create".to_owned();
        require(registry, user, &attributes)?;
    }
    Ok(())
}

fn require(registry: &Registry, user: &User, attributes: &Attributes) -> Result<(), Status> {
    rbac::decide(registry, user, attributes).map_err(|reason| attributes.refuse(user, &reason))
}

/// Returns the RBAC attributes of a request (Kubernetes
/// staging/src/k8s.io/apiserver/pkg/endpoints/request/requestinfo.go).
fn attributes_of(method: &Method, path: &str, query: &Query, route: &ApiRoute) -> Attributes {
    let verb = match *method {
        Method::POST => "create",
        Method::GET | Method::HEAD => "get",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "",
    };
    let (verb, target) = match route {
        ApiRoute::Document(_) => {
            let verb = method.as_str().to_ascii_lowercase();
            return Attributes { verb, target: AccessTarget::Path(path.to_owned()) };
        }
        ApiRoute::Review(review) => {
            let (group, resource) = (review.group().to_owned(), review.plural());
            (verb, ResourceTarget { group, resource, ..ResourceTarget::default() })
        }
        ApiRoute::Collection { resource, namespace } => {
            let name = || required_name(query.get("fieldSelector")).unwrap_or_default();
            let (verb, name) = match verb {
                "get" if query.is_set("watch") => ("watch", name()),
                "get" => ("list", name()),
                "delete" => ("deletecollection", ""),
                verb => (verb, ""),
            };
            (verb, target(*resource, namespace.as_deref().unwrap_or_default(), name))
        }
        ApiRoute::Object { resource, namespace, name, subresource } => {
            // A namespace object counts as being in the namespace that it defines.
            let namespace = if *resource == Resource::Namespaces { name } else { namespace };
            let mut target = target(*resource, namespace, name);
            target.subresource = subresource.name().to_owned();
            if let Subresource::Proxy { port: Some(port), .. } = subresource {
                target.name = format!("{name}:{port}");
            }
            (verb, target)
        }
    };
    Attributes { verb: verb.to_owned(), target: AccessTarget::Resource(target) }
}

fn target(resource: Resource, namespace: &str, name: &str) -> ResourceTarget {
    ResourceTarget {
        group: resource.group().to_owned(),
        resource: resource.plural().to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        ..ResourceTarget::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Formats a request's attributes as one line: the verb, followed by either the path or
    /// `GROUP/RESOURCE[/SUBRESOURCE]`, the namespace and the name.
    fn asked(method: Method, uri: &str) -> String {
        let uri: http::Uri = uri.parse().unwrap();
        let route = ApiRoute::of(uri.path()).unwrap();
        let Attributes { verb, target } = attributes_of(&method, uri.path(), &Query::of(&uri), &route);
        match target {
            AccessTarget::Path(path) => format!("{verb} {path}"),
            AccessTarget::Resource(ResourceTarget { group, resource, subresource, namespace, name }) => {
                let part = if subresource.is_empty() { String::new() } else { format!("/{subresource}") };
                format!("{verb} {group}/{resource}{part} {namespace:?} {name:?}")
            }
        }
    }

    #[test]
    fn request_maps_to_verb_and_resource() {
        let pods = "/api/v1/namespaces/shop/pods";
        for (method, uri, expected) in [
            (Method::GET, pods.to_owned(), r#"list /pods "shop" """#),
            (Method::GET, format!("{pods}?watch=true"), r#"watch /pods "shop" """#),
            (Method::GET, format!("{pods}?watch=0"), r#"list /pods "shop" """#),
            (Method::GET, format!("{pods}?fieldSelector=metadata.name%3Da"), r#"list /pods "shop" "a""#),
            (
                Method::GET,
                format!("{pods}?watch=1&fieldSelector=metadata.name=a"),
                r#"watch /pods "shop" "a""#,
            ),
            (Method::GET, format!("{pods}?fieldSelector=metadata.name!=a"), r#"list /pods "shop" """#),
            (Method::POST, format!("{pods}?fieldSelector=metadata.name=a"), r#"create /pods "shop" """#),
            (Method::DELETE, pods.to_owned(), r#"deletecollection /pods "shop" """#),
            (Method::GET, "/api/v1/pods".to_owned(), r#"list /pods "" """#),
            (Method::GET, format!("{pods}/a"), r#"get /pods "shop" "a""#),
            (Method::PUT, format!("{pods}/a/status"), r#"update /pods/status "shop" "a""#),
            (Method::DELETE, format!("{pods}/a"), r#"delete /pods "shop" "a""#),
            (Method::POST, format!("{pods}/a/eviction"), r#"create /pods/eviction "shop" "a""#),
            (Method::GET, format!("{pods}/a/log"), r#"get /pods/log "shop" "a""#),
            (Method::GET, format!("{pods}/a/exec"), r#"get /pods/exec "shop" "a""#),
            (Method::GET, format!("{pods}/a:80/proxy/rows"), r#"get /pods/proxy "shop" "a:80""#),
            (Method::POST, "/api/v1/nodes/n/proxy/stop".to_owned(), r#"create /nodes/proxy "" "n""#),
            (Method::GET, "/api/v1/namespaces/shop".to_owned(), r#"get /namespaces "shop" "shop""#),
            (Method::GET, "/api/v1/namespaces".to_owned(), r#"list /namespaces "" """#),
            (
                Method::PATCH,
                "/apis/apps/v1/namespaces/shop/deployments/web/scale".to_owned(),
                r#"patch apps/deployments/scale "shop" "web""#,
            ),
            (
                Method::POST,
                "/apis/authentication.k8s.io/v1/selfsubjectreviews".to_owned(),
                r#"create authentication.k8s.io/selfsubjectreviews "" """#,
            ),
            (Method::GET, "/apis/apps/v1".to_owned(), "get /apis/apps/v1"),
            (Method::POST, "/version".to_owned(), "post /version"),
        ] {
            assert_eq!(asked(method.clone(), &uri), expected, "{method} {uri}");
        }
    }
}
