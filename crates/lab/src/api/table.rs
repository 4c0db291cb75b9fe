//! Objects as rows of a `Table`, as `kubectl get` shows them. Columns and cells are those of Kubernetes' own
//! printers.

mod age;
mod cells;
mod columns;
mod pod;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::super::resource::Resource;
pub(super) use cells::selector;

/// Object that each row includes besides its cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Include {
    /// None.
    Nothing,
    /// Its metadata.
    Metadata,
    /// The complete object.
    Object,
}

/// Builds a table of `objects`, with or without the definitions of its columns.
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
    let columns = if with_columns { columns::definitions(resource.kind()) } else { Value::Null };
    json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {},
        "columnDefinitions": columns,
        "rows": rows,
    })
}

/// Returns the metadata of an object as an object of its own.
pub(super) fn metadata_of(object: &Value) -> Value {
    json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": object["metadata"],
    })
}

fn row(resource: Resource, object: &Value, now: Timestamp) -> Vec<Value> {
    if resource == Resource::Pods {
        return pod::row(object, now);
    }
    let columns = columns::names(resource.kind());
    let cell = |column| cells::cell(resource, column, object, now).unwrap_or_default();
    columns.map(cell).collect()
}

#[cfg(test)]
mod tests;
