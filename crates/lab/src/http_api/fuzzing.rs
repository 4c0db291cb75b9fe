//! Entry points for fuzz targets (`crate::fuzzing`) that parse input from API clients.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::super::registry::{ObjectPatch, PatchKind};
use super::super::resource::Resource;
use super::super::schema;
use super::api_route::ApiRoute;
use super::body::BodyFormat;
use super::query::Query;

/// Parses bodies in each format, and applies patches. The first byte of `input` selects the kind.
pub(crate) fn body(input: &[u8]) {
    let Some((kind, body)) = input.split_first() else { return };
    let format = match kind % 4 {
        0 => BodyFormat::Json,
        1 => BodyFormat::Yaml,
        2 => BodyFormat::Protobuf,
        _ => return patch(kind / 4, body),
    };
    if let Ok(value) = format.parse::<Value>(body) {
        let top = schema::of(Resource::Deployments);
        let _ = (schema::check(top, &value), schema::unknown_fields(top, &value));
    }
}

fn patch(kind: u8, body: &[u8]) {
    let (kind, format) = match kind % 4 {
        0 => (PatchKind::Json, BodyFormat::Json),
        1 => (PatchKind::Merge, BodyFormat::Json),
        2 => (PatchKind::Strategic, BodyFormat::Json),
        _ => (PatchKind::Apply, BodyFormat::Yaml),
    };
    static CURRENT: LazyLock<Value> = LazyLock::new(|| {
        json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "web", "labels": {"app": "web"}, "finalizers": ["a/b"]},
            "spec": {
                "replicas": 2,
                "template": {"spec": {"containers": [
                    {"name": "app", "image": "a", "ports": [{"containerPort": 80}, {"containerPort": 81}]},
                    {"name": "other", "image": "b", "env": [{"name": "A", "value": "1"}]},
                ]}},
            },
        })
    });
    if let Ok(body) = format.parse(body) {
        let _ = ObjectPatch { kind, body }.apply(schema::of(Resource::Deployments), &CURRENT);
    }
}

/// Parses paths and query parameters, if HTTP accepts them.
pub(crate) fn path(bytes: &[u8]) {
    if let Ok(uri) = http::Uri::try_from(bytes) {
        let _ = (ApiRoute::of(uri.path()), Query::of(&uri));
    }
}
