//! What the API says about itself.

use http::StatusCode;
use serde_json::{Value, json};

use super::super::resource::Resource;
use super::GIT_VERSION;
use super::respond::{self, Answer};
use super::route::Document;

/// The answer to a GET of `document`.
pub(super) fn answer(document: Document) -> Answer {
    let value = match document {
        Document::Version => version(),
        Document::Health => return respond::text("ok"),
        Document::CoreVersions => json!({
            "kind": "APIVersions",
            "versions": ["v1"],
            "serverAddressByClientCIDRs": [],
        }),
        Document::Groups => {
            let groups = ["apps", "batch", "coordination.k8s.io", "discovery.k8s.io", "policy"].map(group);
            json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
        }
        Document::Group(name) => {
            let mut group = group(name);
            group["kind"] = json!("APIGroup");
            group["apiVersion"] = json!("v1");
            group
        }
        Document::Resources(group) => resources(group),
    };
    respond::json(StatusCode::OK, &value)
}

fn version() -> Value {
    json!({
        "major": "1",
        "minor": "36",
        "gitVersion": GIT_VERSION,
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "",
        "goVersion": "",
        "compiler": "",
        "platform": format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
    })
}

fn group(name: &str) -> Value {
    let version = json!({"groupVersion": format!("{name}/v1"), "version": "v1"});
    json!({"name": name, "versions": [version], "preferredVersion": version})
}

fn resources(group: &str) -> Value {
    let mut list = Vec::new();
    for resource in Resource::ALL.into_iter().filter(|resource| resource.group() == group) {
        list.push(json!({
            "name": resource.plural(),
            "singularName": resource.singular(),
            "namespaced": resource.namespaced(),
            "kind": resource.kind(),
            "verbs": ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
            "shortNames": resource.short_names(),
        }));
        let mut subresource = |name: &str, kind: &str, verbs: &[&str]| {
            list.push(json!({
                "name": format!("{}/{name}", resource.plural()),
                "singularName": "",
                "namespaced": resource.namespaced(),
                "kind": kind,
                "verbs": verbs,
            }));
        };
        if resource.has_status() {
            subresource("status", resource.kind(), &["get", "patch", "update"]);
        }
        if resource.has_scale() {
            subresource("scale", "Scale", &["get", "patch", "update"]);
        }
        if resource == Resource::Pods {
            subresource("log", "Pod", &["get"]);
            subresource("proxy", "PodProxyOptions", &["create", "delete", "get", "patch", "update"]);
        }
    }
    let group_version = if group.is_empty() { "v1".to_owned() } else { format!("{group}/v1") };
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": list})
}
