//! Services behind a URL, according to the namespace's Ingresses and HTTPRoutes.
//!
//! This is enough to find the pods; a controller's own additions (annotations, filters, weights) are ignored.

use std::collections::BTreeSet;

use k8s_openapi::api::networking::v1::{Ingress, IngressBackend};
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use serde_json::Value;
use url::Url;

use crate::api::Caller;
use crate::error::Result;

/// One route through a gateway.
#[derive(Clone, Debug)]
struct Route {
    /// Host that the route matches.
    host: Host,
    /// Length of the path prefix that the route matches.
    path: usize,
    service: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Host {
    Default,
    Any,
    Wildcard,
    Exact,
}

/// Returns the kind of the Gateway API's HTTP routes.
pub(super) fn http_route() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("gateway.networking.k8s.io", "v1", "HTTPRoute"))
}

/// Returns the Services that these URLs route to. Ignores kinds of routes that the cluster does not have or does
/// not let the run list.
pub(super) async fn find_services_behind(caller: &Caller, urls: &[&Url]) -> Result<BTreeSet<String>> {
    let ingresses: Vec<Ingress> = caller.list_kind().await?;
    let routes = caller.dynamic_api(&http_route());
    let spec = |route: DynamicObject| route.data["spec"].clone();
    let routes = caller.list_shown("list httproutes", &routes, spec).await?;
    Ok(urls.iter().flat_map(|url| services_behind(url, &ingresses, &routes)).collect())
}

/// Returns the Ingresses that route to any of the Services among these objects.
pub async fn ingresses_to(caller: &Caller, objects: &[Value]) -> Result<Vec<Value>> {
    let is_service =
        |name: &str| objects.iter().any(|o| o["kind"] == "Service" && o["metadata"]["name"] == name);
    let all: Vec<Ingress> = caller.list_kind().await?;
    let routing = all.iter().filter(|ingress| backends(ingress).iter().any(|name| is_service(name)));
    // Items of a list may lack their own `kind`.
    let with_kind = |ingress: &Ingress| {
        let mut object = serde_json::to_value(ingress).unwrap_or_default();
        object["kind"] = "Ingress".into();
        object
    };
    Ok(routing.map(with_kind).collect())
}

/// Returns the Services that an Ingress routes to.
fn backends(ingress: &Ingress) -> BTreeSet<String> {
    let Some(spec) = &ingress.spec else { return BTreeSet::new() };
    let rules = spec.rules.iter().flatten().flat_map(|rule| &rule.http);
    let of_paths = rules.flat_map(|http| &http.paths).map(|path| &path.backend);
    of_paths.chain(&spec.default_backend).filter_map(service).collect()
}

fn service(backend: &IngressBackend) -> Option<String> {
    backend.service.as_ref().map(|service| service.name.clone())
}

/// Returns the Services that a URL routes to, according to the Ingresses and HTTPRoutes among these objects.
pub fn services_behind_in(url: &Url, objects: &[Value]) -> BTreeSet<String> {
    let of_kind = |kind: &'static str| objects.iter().filter(move |object| object["kind"] == kind);
    let ingress = |object: &Value| serde_json::from_value(object.clone()).ok();
    let ingresses: Vec<Ingress> = of_kind("Ingress").filter_map(ingress).collect();
    let routes: Vec<Value> = of_kind("HTTPRoute").map(|route| route["spec"].clone()).collect();
    services_behind(url, &ingresses, &routes)
}

/// Returns the Services of the most specific routes that match a URL. `http_routes` are the specs of HTTPRoutes.
fn services_behind(url: &Url, ingresses: &[Ingress], http_routes: &[Value]) -> BTreeSet<String> {
    let fitting: Vec<Route> = ingresses
        .iter()
        .flat_map(|ingress| of_ingress(url, ingress))
        .chain(http_routes.iter().flat_map(|spec| of_http_route(url, spec)))
        .collect();
    let Some(best) = fitting.iter().map(|route| (route.host, route.path)).max() else {
        return BTreeSet::new();
    };
    fitting.into_iter().filter(|route| (route.host, route.path) == best).map(|route| route.service).collect()
}

fn of_ingress(url: &Url, ingress: &Ingress) -> Vec<Route> {
    let Some(spec) = &ingress.spec else { return Vec::new() };
    let default = spec.default_backend.as_ref().and_then(service);
    let mut routes: Vec<Route> =
        default.into_iter().map(|service| Route { host: Host::Default, path: 0, service }).collect();
    for rule in spec.rules.iter().flatten() {
        let Some(host) = host_fits(url, rule.host.as_deref()) else { continue };
        for path in rule.http.iter().flat_map(|http| &http.paths) {
            let prefix = path.path.as_deref().unwrap_or("/");
            let is_exact = path.path_type == "Exact";
            if let (true, Some(service)) = (path_fits(url, prefix, is_exact), service(&path.backend)) {
                routes.push(Route { host, path: prefix.len(), service });
            }
        }
    }
    routes
}

fn of_http_route(url: &Url, spec: &Value) -> Vec<Route> {
    let hostnames: Vec<&str> =
        spec["hostnames"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let host = match hostnames[..] {
        [] => host_fits(url, None),
        _ => hostnames.iter().filter_map(|host| host_fits(url, Some(host))).max(),
    };
    let Some(host) = host else { return Vec::new() };
    let mut routes = Vec::new();
    for rule in spec["rules"].as_array().into_iter().flatten() {
        let matches = rule["matches"].as_array().map(Vec::as_slice).unwrap_or_default();
        let fitting = matches.iter().filter_map(|one| {
            let prefix = one["path"]["value"].as_str().unwrap_or("/");
            path_fits(url, prefix, one["path"]["type"] == "Exact").then_some(prefix.len())
        });
        let path = if matches.is_empty() { Some(1) } else { fitting.max() };
        let Some(path) = path else { continue };
        for backend in rule["backendRefs"].as_array().into_iter().flatten() {
            if matches!(backend["kind"].as_str(), None | Some("Service"))
                && backend["weight"] != 0
                && let Some(name) = backend["name"].as_str()
            {
                routes.push(Route { host, path, service: name.to_owned() });
            }
        }
    }
    routes
}

fn host_fits(url: &Url, rule: Option<&str>) -> Option<Host> {
    let host = url.host_str().unwrap_or_default();
    match rule {
        None | Some("" | "*") => Some(Host::Any),
        Some(rule) => match rule.strip_prefix('*') {
            Some(domain) => host.ends_with(domain).then_some(Host::Wildcard),
            None => (rule == host).then_some(Host::Exact),
        },
    }
}

fn path_fits(url: &Url, prefix: &str, is_exact: bool) -> bool {
    let (path, whole) = (url.path(), prefix.trim_end_matches('/'));
    match path.strip_prefix(whole) {
        _ if is_exact => path == prefix,
        Some(rest) => rest.is_empty() || rest.starts_with('/'),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn most_specific_route_selects_services() {
        let path = |path: &str, service: &str| {
            json!({"pathType": "Prefix", "path": path,
            "backend": {"service": {"name": service, "port": {"number": 80}}}})
        };
        let ingress = |spec: Value| serde_json::from_value(json!({"metadata": {}, "spec": spec})).unwrap();
        let ingresses: [Ingress; 2] = [
            ingress(json!({"rules": [
                {"host": "shop.example", "http": {"paths": [path("/", "web"), path("/api", "api")]}},
                {"host": "*.example", "http": {"paths": [path("/", "other")]}},
            ]})),
            ingress(json!({"defaultBackend": {"service": {"name": "fallback", "port": {"number": 80}}}})),
        ];
        let routes = [json!({"hostnames": ["new.example"], "rules": [
            {"matches": [{"path": {"type": "PathPrefix", "value": "/"}}],
             "backendRefs": [{"name": "blue", "weight": 9}, {"name": "green"}, {"name": "off", "weight": 0}]},
        ]})];
        let behind = |url: &str| {
            let services = services_behind(&url.parse().unwrap(), &ingresses, &routes);
            services.into_iter().collect::<Vec<_>>().join(" ")
        };
        let named = |ingress: &Ingress| backends(ingress).into_iter().collect::<Vec<_>>().join(" ");
        assert_eq!(ingresses.each_ref().map(named), ["api other web", "fallback"]);
        assert_eq!(behind("https://shop.example/"), "web");
        assert_eq!(behind("https://shop.example/api/v1"), "api");
        assert_eq!(behind("https://shop.example/apis"), "web");
        assert_eq!(behind("http://blog.example/"), "other");
        assert_eq!(behind("http://new.example/x"), "blue green");
        assert_eq!(behind("http://10.0.0.1:8000/"), "fallback");
        assert!(services_behind(&"http://x/".parse().unwrap(), &[], &[]).is_empty());
    }
}
