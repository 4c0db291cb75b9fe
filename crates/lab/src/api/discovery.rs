//! Discovery: versions, groups and resources, and as much of OpenAPI as clients ask for before they write.

use http::StatusCode;
use serde_json::{Value, json};

use super::super::resource::Resource;
use super::super::version::{GIT_VERSION, architecture};
use super::respond::{self, Answer};
use super::review::Review;
use super::route::{Document, groups};

const VERBS: [&str; 8] = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
const PROXY_VERBS: [&str; 5] = ["create", "delete", "get", "patch", "update"];

/// The only content type for which client-go asks for OpenAPI v2.
const SWAGGER_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";

/// Answers a GET of `document` from a client that accepts `accept`.
pub(super) fn answer(document: Document, accept: &str) -> Answer {
    let value = match document {
        Document::Version => version(),
        Document::Health => return respond::text("ok"),
        Document::CoreVersions => json!({
            "kind": "APIVersions",
            "versions": ["v1"],
            "serverAddressByClientCIDRs": [],
        }),
        Document::Groups => {
            let groups: Vec<_> = groups().into_iter().map(group).collect();
            json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
        }
        Document::Group(name) => {
            let mut group = group(name);
            group["kind"] = json!("APIGroup");
            group["apiVersion"] = json!("v1");
            group
        }
        Document::Resources(group) => classic(group),
        Document::Swagger if accept.contains(SWAGGER_PROTOBUF) => return swagger_in_protobuf(),
        Document::Swagger => swagger(),
        Document::OpenApi => openapi_index(),
        Document::OpenApiOf(group) => openapi(group),
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

/// One entry of discovery: a resource, or one of its subresources.
struct Entry {
    resource: &'static str,
    subresource: &'static str,
    singular: String,
    namespaced: bool,
    /// Group and version of the kind, if they differ from the resource's.
    kind_of: Option<(&'static str, &'static str)>,
    kind: &'static str,
    verbs: &'static [&'static str],
    short_names: &'static [&'static str],
    categories: &'static [&'static str],
}

fn entries(group: &str) -> Vec<Entry> {
    let mut entries = Vec::new();
    for resource in Resource::ALL.into_iter().filter(|resource| resource.group() == group) {
        entries.push(Entry {
            resource: resource.plural(),
            subresource: "",
            singular: resource.kind().to_lowercase(),
            namespaced: resource.namespaced(),
            kind_of: None,
            kind: resource.kind(),
            verbs: &VERBS,
            short_names: resource.short_names(),
            categories: resource.categories(),
        });
        let mut subresource = |subresource, kind, kind_of, verbs| {
            entries.push(Entry {
                resource: resource.plural(),
                subresource,
                singular: String::new(),
                namespaced: resource.namespaced(),
                kind_of,
                kind,
                verbs,
                short_names: &[],
                categories: &[],
            });
        };
        if resource == Resource::Pods {
            subresource("eviction", "Eviction", Some(("policy", "v1")), &["create"]);
            subresource("log", "Pod", None, &["get"]);
            subresource("proxy", "PodProxyOptions", None, &PROXY_VERBS);
        }
        if resource == Resource::Nodes {
            subresource("proxy", "NodeProxyOptions", None, &["create"]);
        }
        if resource.has_scale() {
            subresource("scale", "Scale", Some(("autoscaling", "v1")), &["get", "patch", "update"]);
        }
        if resource.has_status() {
            subresource("status", resource.kind(), None, &["get", "patch", "update"]);
        }
    }
    for review in Review::ALL.into_iter().filter(|review| review.group() == group) {
        entries.push(Entry {
            resource: review.plural(),
            subresource: "",
            singular: review.kind().to_lowercase(),
            namespaced: false,
            kind_of: None,
            kind: review.kind(),
            verbs: &["create"],
            short_names: &[],
            categories: &[],
        });
    }
    entries
}

fn classic(group: &str) -> Value {
    let resources = entries(group).into_iter().map(|entry| {
        let name = match entry.subresource {
            "" => entry.resource.to_owned(),
            subresource => format!("{}/{subresource}", entry.resource),
        };
        let mut shown = json!({
            "name": name,
            "singularName": entry.singular,
            "namespaced": entry.namespaced,
            "kind": entry.kind,
            "verbs": entry.verbs,
        });
        if let Some((group, version)) = entry.kind_of {
            shown["group"] = json!(group);
            shown["version"] = json!(version);
        }
        if !entry.short_names.is_empty() {
            shown["shortNames"] = json!(entry.short_names);
        }
        if !entry.categories.is_empty() {
            shown["categories"] = json!(entry.categories);
        }
        shown
    });
    json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": group_version(group),
        "resources": resources.collect::<Vec<_>>(),
    })
}

fn api_path(group: &str) -> String {
    if group.is_empty() { "api/v1".to_owned() } else { format!("apis/{group}/v1") }
}

/// Returns an OpenAPI v2 document that defines no kind. kubectl reads it before it applies a List; it leaves the
/// checks of kinds without a definition to the server.
fn swagger() -> Value {
    json!({
        "swagger": "2.0",
        "info": {"title": "Kubernetes", "version": GIT_VERSION},
        "paths": {},
        "definitions": {},
    })
}

/// Returns the same as an `openapi.v2.Document` (google/gnostic, OpenAPIv2.proto): `swagger` is field 1, `info` field
/// 2 with `title` 1 and `version` 2, `paths` field 8, `definitions` field 9.
fn swagger_in_protobuf() -> Answer {
    let field = |number: u8, content: &[u8]| {
        let length = u8::try_from(content.len()).unwrap_or(u8::MAX);
        [&[number << 3 | 2, length], content].concat()
    };
    let info = [field(1, b"Kubernetes"), field(2, GIT_VERSION.as_bytes())].concat();
    let document = [field(1, b"2.0"), field(2, &info), field(8, b""), field(9, b"")].concat();
    // Not the requested content type: Go takes no `@` in the type of an answer.
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

/// Returns what kubectl looks up before it writes: the kinds that can be patched, and that the server honours
/// `fieldValidation` and `dryRun`. It has no schemas, so kubectl merges by its own built-in types.
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
