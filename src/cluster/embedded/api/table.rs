//! Objects as rows of a `Table`: what `kubectl get` shows. Columns and cells are those of
//! Kubernetes' own printers.

mod age;
mod cells;
mod columns;
#[cfg(test)]
mod golden;
mod pod;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::super::resource::Resource;
pub(super) use cells::selector;

/// What each row says about its object beside the cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Include {
    /// Nothing.
    Nothing,
    /// Its metadata.
    Metadata,
    /// All of it.
    Object,
}

/// One row: its cells, and the conditions that say that no more is to be expected.
struct Row {
    cells: Vec<Value>,
    completed: Option<Value>,
}

/// A table of `objects`, with or without the definitions of its columns.
pub(super) fn table<'a>(
    resource: Resource,
    objects: impl IntoIterator<Item = &'a Value>,
    include: Include,
    with_columns: bool,
    now: Timestamp,
) -> Value {
    let rows = objects.into_iter().map(|object| (object, row(resource, object, now)));
    table_of(resource.kind(), rows, include, with_columns)
}

/// A table of one `Scale`.
pub(super) fn table_of_scale(scale: &Value, include: Include, now: Timestamp) -> Value {
    let row = Row { cells: cells::scale(scale, now), completed: None };
    table_of("Scale", [(scale, row)], include, true)
}

fn table_of<'a>(
    kind: &str,
    rows: impl IntoIterator<Item = (&'a Value, Row)>,
    include: Include,
    with_columns: bool,
) -> Value {
    let rows = rows.into_iter().map(|(object, Row { cells, completed })| {
        let shown = match include {
            Include::Nothing => Value::Null,
            Include::Metadata => metadata_of(object),
            Include::Object => object.clone(),
        };
        let mut row = json!({"cells": cells, "object": shown});
        if let Some(conditions) = completed {
            row["conditions"] = conditions;
        }
        row
    });
    let rows: Vec<_> = rows.collect();
    let columns = if with_columns { columns::definitions(kind) } else { Value::Null };
    json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {},
        "columnDefinitions": columns,
        "rows": rows,
    })
}

/// The metadata of an object as an object of its own.
pub(super) fn metadata_of(object: &Value) -> Value {
    json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": object["metadata"],
    })
}

fn row(resource: Resource, object: &Value, now: Timestamp) -> Row {
    let cells = match resource {
        Resource::Pods => return pod::row(object, now),
        Resource::Namespaces => cells::namespace(object, now),
        Resource::Nodes => cells::node(object, now),
        Resource::Services => cells::service(object, now),
        Resource::Endpoints => cells::endpoints(object, now),
        Resource::EndpointSlices => cells::endpoint_slice(object, now),
        Resource::Ingresses => cells::ingress(object, now),
        Resource::IngressClasses => cells::ingress_class(object, now),
        Resource::Events => cells::event(object, now),
        Resource::ConfigMaps => cells::config_map(object, now),
        Resource::Secrets => cells::secret(object, now),
        Resource::Deployments => cells::deployment(object, now),
        Resource::ReplicaSets => cells::replica_set(object, now),
        Resource::Jobs => cells::job(object, now),
        Resource::PodDisruptionBudgets => cells::disruption_budget(object, now),
        Resource::Leases => cells::lease(object, now),
        Resource::ServiceAccounts => cells::service_account(object, now),
    };
    Row { cells, completed: None }
}
