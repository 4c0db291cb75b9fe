//! Discovery: versions, groups and resources, plus the parts of OpenAPI that clients need before they write.

use http::StatusCode;
use serde_json::{Value, json};

use super::super::resource::Resource;
use super::super::version::{GIT_VERSION, architecture};
use super::api_route::{ApiDocument, groups};
use super::respond::{self, ApiResponse};
use super::review::Review;

const VERBS: [&str; 8] = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
const PROXY_VERBS: [&str; 5] = ["create", "delete", "get", "patch", "update"];

/// Responds to a GET request for `document`.
pub(super) fn answer(document: ApiDocument) -> ApiResponse {
    let value = match document {
        ApiDocument::Version => version(),
        ApiDocument::Health => return respond::text("ok"),
        ApiDocument::CoreVersions => json!({
            "kind": "APIVersions",
            "versions": ["v1"],
            "serverAddressByClientCIDRs": [],
        }),
        ApiDocument::Groups => {
            let groups: Vec<_> = groups().into_iter().map(group).collect();
            json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
        }
        ApiDocument::Group(name) => {
            let mut group = group(name);
            group["kind"] = json!("APIGroup");
            group["apiVersion"] = json!("v1");
            group
        }
        ApiDocument::Resources(group) => classic(group),
        ApiDocument::Swagger => return swagger(),
        ApiDocument::OpenApi => openapi_index(),
        ApiDocument::OpenApiOf(group) => openapi(group),
    };
    respond::json(StatusCode::OK, &value)
}

fn version() -> Value {
    json!({
        "major": "1",
        "minor": "36",
        "emulationMajor": "1",
        "emulationMinor": "36",
        "minCompatibilityMajor": "1",
        "minCompatibilityMinor": "35",
        "gitVersion": GIT_VERSION,
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "",
        "goVersion": "",
        "compiler": "",
        "platform": format!("{}/{}", std::env::consts::OS, architecture()),
    })
}

fn group_version(group: &str) -> String {
    if group.is_empty() { "v1".to_owned() } else { format!("{group}/v1") }
}

fn group(name: &str) -> Value {
    let version = json!({"groupVersion": group_version(name), "version": "v1"});
    json!({"name": name, "versions": [version], "preferredVersion": version})
}

/// Returns the resources in a group, with their subresources.
fn classic(group: &str) -> Value {
    let mut resources = Vec::new();
    for resource in Resource::ALL.into_iter().filter(|resource| resource.group() == group) {
        let (plural, kind, namespaced) = (resource.plural(), resource.kind(), resource.namespaced());
        let mut shown = json!({
            "name": plural,
            "singularName": kind.to_lowercase(),
            "namespaced": namespaced,
            "kind": kind,
            "verbs": VERBS,
        });
        for (field, names) in [("shortNames", resource.short_names()), ("categories", resource.categories())]
        {
            if !names.is_empty() {
                shown[field] = json!(names);
            }
        }
        resources.push(shown);
        let mut subresource = |name: &str, kind: &str, verbs: &[&str]| {
            let mut shown = json!({
                "name": format!("{plural}/{name}"),
                "singularName": "",
                "namespaced": namespaced,
                "kind": kind,
                "verbs": verbs,
            });
            // These kinds are in a different group from the resource.
            if let Some((_, group)) =
                [("Eviction", "policy"), ("Scale", "autoscaling")].iter().find(|of| of.0 == kind)
            {
                shown["group"] = json!(group);
                shown["version"] = json!("v1");
            }
            resources.push(shown);
        };
        if resource == Resource::Pods {
            subresource("eviction", "Eviction", &["create"]);
            subresource("log", "Pod", &["get"]);
            subresource("proxy", "PodProxyOptions", &PROXY_VERBS);
        }
        if resource == Resource::Nodes {
            subresource("proxy", "NodeProxyOptions", &["create"]);
        }
        if resource.has_scale() {
            subresource("scale", "Scale", &["get", "patch", "update"]);
        }
        if resource.has_status() {
            subresource("status", kind, &["get", "patch", "update"]);
        }
    }
    for review in Review::ALL.into_iter().filter(|review| review.group() == group) {
        resources.push(json!({
            "name": review.plural(),
            "singularName": review.kind().to_lowercase(),
            "namespaced": false,
            "kind": review.kind(),
            "verbs": ["create"],
        }));
    }
    json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": group_version(group),
        "resources": resources,
    })
}

fn api_path(group: &str) -> String {
    if group.is_empty() { "api/v1".to_owned() } else { format!("apis/{group}/v1") }
}

/// Returns an OpenAPI v2 document without definitions, in protobuf, the only format that client-go requests. kubectl
/// reads the document before it applies a List, and leaves it to the server to validate kinds without a definition.
///
/// The message is an `openapi.v2.Document` (google/gnostic, OpenAPIv2.proto): `swagger` is field 1, `info` is field 2
/// (with `title` 1 and `version` 2), `paths` is field 8, and `definitions` is field 9.
fn swagger() -> ApiResponse {
    let field = |number: u8, content: &[u8]| {
        let length = u8::try_from(content.len()).unwrap_or(u8::MAX);
        [&[number << 3 | 2, length], content].concat()
    };
    let info = [field(1, b"Kubernetes"), field(2, GIT_VERSION.as_bytes())].concat();
    let document = [field(1, b"2.0"), field(2, &info), field(8, b""), field(9, b"")].concat();
    // Not the requested content type, because Go does not accept `@` in a response's content type.
    respond::bytes_of(StatusCode::OK, "application/com.github.proto-openapi.spec.v2.v1.0+protobuf", document)
}

fn openapi_index() -> Value {
    let mut paths = json!({});
    for group in [""].into_iter().chain(groups()) {
        let path = api_path(group);
        paths[&path] = json!({"serverRelativeURL": format!("/openapi/v3/{path}")});
    }
    json!({"paths": paths})
}

/// Returns an OpenAPI v3 document with the facts that kubectl needs before it writes: which kinds can be patched, and
/// that the server honours `fieldValidation` and `dryRun`. It has no schemas, so kubectl merges with its built-in
/// types.
fn openapi(group: &str) -> Value {
    let parameter = |name: &str| json!({"name": name, "in": "query", "schema": {"type": "string"}});
    let parameters = ["dryRun", "fieldManager", "fieldValidation", "force"].map(parameter);
    let mut paths = json!({});
    for resource in Resource::ALL.into_iter().filter(|resource| resource.group() == group) {
        let namespace = if resource.namespaced() { "namespaces/{namespace}/" } else { "" };
        let path = format!("/{}/{namespace}{}/{{name}}", api_path(group), resource.plural());
        paths[path] = json!({
            "patch": {
                "parameters": parameters,
                "responses": {"200": {"description": "OK"}},
                "x-kubernetes-action": "patch",
                "x-kubernetes-group-version-kind": {
                    "group": group,
                    "version": "v1",
                    "kind": resource.kind(),
                },
            },
        });
    }
    json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": GIT_VERSION},
        "paths": paths,
        "components": {"schemas": {}},
    })
}
