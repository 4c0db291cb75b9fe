//! Renders objects as rows of a `Table`, for `kubectl get`. The columns and cells match those of Kubernetes' own
//! printers.

mod age;
mod pod_cells;
mod table_cells;
mod table_columns;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::super::resource::Resource;
pub(super) use table_cells::selector;

/// Part of the object that each row includes besides its cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Include {
    /// No part of the object.
    Nothing,
    /// The object's metadata.
    Metadata,
    /// The complete object.
    Object,
}

/// Builds a table of `objects`, with or without column definitions.
pub(super) fn table<'a>(
    resource: Resource,
    objects: impl IntoIterator<Item = &'a Value>,
    include: Include,
    with_columns: bool,
    now: Timestamp,
) -> Value {
    let rows = objects.into_iter().map(|object| {
        let shown = match include {
            Include::Nothing => Value::Null,
            Include::Metadata => metadata_of(object),
            Include::Object => object.clone(),
        };
        json!({"cells": row(resource, object, now), "object": shown})
    });
    let rows: Vec<_> = rows.collect();
    let columns = if with_columns { table_columns::definitions(resource.kind()) } else { Value::Null };
    json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {},
        "columnDefinitions": columns,
        "rows": rows,
    })
}

/// Returns an object's metadata as a separate object.
pub(super) fn metadata_of(object: &Value) -> Value {
    json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": object["metadata"],
    })
}

fn row(resource: Resource, object: &Value, now: Timestamp) -> Vec<Value> {
    if resource == Resource::Pods {
        return pod_cells::row(object, now);
    }
    let columns = table_columns::names(resource.kind());
    let cell = |column| table_cells::cell(resource, column, object, now).unwrap_or_default();
    columns.map(cell).collect()
}

#[cfg(test)]
mod tests;
