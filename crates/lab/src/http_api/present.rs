//! Renders objects in the representation requested by the client.

use std::fmt::Write;
use std::sync::Arc;

use http::{Request, StatusCode};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::super::resource::Resource;
use super::super::shared::ClusterContext;
use super::super::status::Status;
use super::negotiate::{self, ObjectRepresentation};
use super::query::Query;
use super::respond::{self, ApiResponse};
use super::table::{Include, metadata_of, table};

/// Representation of the objects in a response.
#[derive(Clone, Copy, Debug)]
pub(super) struct Presentation {
    view: ObjectRepresentation,
    include: Include,
}

/// Serialises a list for the wire. A list may contain thousands of objects, so this uses their `Display`
/// implementation, which is compiled with optimisations as part of serde_json.
fn list_of<'a>(
    kind: &str,
    version: &str,
    metadata: &Value,
    items: impl Iterator<Item = &'a Value>,
) -> ApiResponse {
    let (kind, version) = (json!(kind), json!(version));
    let mut text = format!(r#"{{"kind":{kind},"apiVersion":{version},"metadata":{metadata},"items":["#);
    for (number, item) in items.enumerate() {
        if number > 0 {
            text.push(',');
        }
        // Writing to a string cannot fail.
        let _ = write!(text, "{item}");
    }
    text.push_str("]}");
    respond::json_text(StatusCode::OK, text)
}

impl Presentation {
    /// Returns the representation that `request` asks for.
    ///
    /// # Errors
    ///
    /// 406 for an unsupported representation, 400 for an unknown `includeObject`.
    pub(super) fn of<B>(request: &Request<B>, query: &Query) -> Result<Self, Status> {
        let include = match query.get("includeObject") {
            "" | "Metadata" => Include::Metadata,
            "None" => Include::Nothing,
            "Object" => Include::Object,
            other => return Err(Status::bad_request(format!("unrecognized includeObject value: {other:?}"))),
        };
        Ok(Self { view: negotiate::view(request)?, include })
    }

    /// Returns true if objects are presented unchanged.
    pub(super) fn is_whole(self) -> bool {
        self.view == ObjectRepresentation::Whole
    }

    /// Presents one object. A table includes column definitions.
    pub(super) fn object(
        self,
        code: StatusCode,
        shared: &ClusterContext,
        resource: Resource,
        object: &Value,
    ) -> ApiResponse {
        match self.view {
            ObjectRepresentation::Whole => respond::json(code, object),
            _ => respond::json(code, &self.event_object(shared, resource, object, true)),
        }
    }

    /// Presents a list with its metadata.
    pub(super) fn list(
        self,
        shared: &ClusterContext,
        resource: Resource,
        metadata: &Value,
        items: &[Arc<Value>],
    ) -> ApiResponse {
        match self.view {
            ObjectRepresentation::Whole => {
                let kind = format!("{}List", resource.kind());
                list_of(&kind, resource.api_version(), metadata, items.iter().map(AsRef::as_ref))
            }
            ObjectRepresentation::Metadata => {
                let items: Vec<_> = items.iter().map(|object| metadata_of(object)).collect();
                let kind = "PartialObjectMetadataList";
                list_of(kind, "meta.k8s.io/v1", metadata, items.iter())
            }
            ObjectRepresentation::Table => {
                let objects = items.iter().map(AsRef::as_ref);
                let mut table = table(resource, objects, self.include, true, now(shared));
                table["metadata"] = metadata.clone();
                respond::json(StatusCode::OK, &table)
            }
        }
    }

    /// Presents an object for a watch event. In a table, only the first event includes column definitions.
    pub(super) fn event_object(
        self,
        shared: &ClusterContext,
        resource: Resource,
        object: &Value,
        is_first: bool,
    ) -> Value {
        match self.view {
            ObjectRepresentation::Whole => object.clone(),
            ObjectRepresentation::Metadata => metadata_of(object),
            ObjectRepresentation::Table => {
                let mut table = table(resource, [object], self.include, is_first, now(shared));
                table["metadata"]["resourceVersion"] = object["metadata"]["resourceVersion"].clone();
                table
            }
        }
    }

    /// Presents a bookmark with this metadata.
    pub(super) fn bookmark(self, resource: Resource, metadata: Value) -> Value {
        let (kind, api_version) = match self.view {
            ObjectRepresentation::Whole => (resource.kind(), resource.api_version()),
            ObjectRepresentation::Metadata => ("PartialObjectMetadata", "meta.k8s.io/v1"),
            ObjectRepresentation::Table => ("Table", "meta.k8s.io/v1"),
        };
        let mut bookmark = json!({"kind": kind, "apiVersion": api_version, "metadata": metadata});
        if self.view == ObjectRepresentation::Table {
            bookmark["columnDefinitions"] = Value::Null;
            bookmark["rows"] = json!([]);
        }
        bookmark
    }
}

/// Returns the current time in whole seconds, the resolution of times in the API.
pub(super) fn now(shared: &ClusterContext) -> Timestamp {
    let seconds = shared.clock.now().unix_ns().div_euclid(1_000_000_000);
    Timestamp::from_second(seconds).unwrap_or_default()
}
