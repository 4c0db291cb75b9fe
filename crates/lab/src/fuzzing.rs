//! Fuzz targets for input from API clients, DNS clients and probed apps.

use crate::http_api;
use crate::resource::Resource;
use crate::selector::ObjectSelection;

rolldrop_testing::targets! {
    api_body: crate::http_api::fuzzing::body,
    api_query: super::api_query,
    dns: crate::dns::fuzz,
    grpc_probe: crate::node::grpc_check::fuzz,
}

/// Parses API paths with their parameters, and selectors.
fn api_query(bytes: &[u8]) {
    http_api::fuzzing::path(bytes);
    let text = String::from_utf8_lossy(bytes);
    let (labels, fields) = text.split_once('\n').unwrap_or((&text, ""));
    if let Ok(selection) = ObjectSelection::parse(Resource::Pods, labels, fields) {
        let pod = serde_json::json!({"metadata": {"name": "a", "labels": {"app": "web"}}});
        let _ = selection.matches(&pod);
    }
}
