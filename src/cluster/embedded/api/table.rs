//! Objects as rows of a `Table`: what `kubectl get` shows. Columns and cells are those of
//! Kubernetes' own printers.

mod age;
mod cells;
#[cfg(test)]
mod golden;
mod pod;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::super::resource::Resource;

/// One column: name, type, and from which width of output on it is shown (0 always, 1 wide).
pub(super) type Column = (&'static str, &'static str, u8);

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
    let rows = objects.into_iter().map(|object| {
        let Row { cells, completed } = row(resource, object, now);
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
    let columns = if with_columns { definitions(resource) } else { Value::Null };
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

fn definitions(resource: Resource) -> Value {
    let columns = columns(resource).iter().map(|(name, column_type, priority)| {
        let format = if *name == "Name" { "name" } else { "" };
        json!({
            "name": name,
            "type": column_type,
            "format": format,
            "description": "",
            "priority": priority,
        })
    });
    columns.collect()
}

fn columns(resource: Resource) -> &'static [Column] {
    match resource {
        Resource::Namespaces => &[("Name", "string", 0), ("Status", "string", 0), ("Age", "string", 0)],
        Resource::Nodes => &[
            ("Name", "string", 0),
            ("Status", "string", 0),
            ("Roles", "string", 0),
            ("Age", "string", 0),
            ("Version", "string", 0),
            ("Internal-IP", "string", 1),
            ("External-IP", "string", 1),
            ("OS-Image", "string", 1),
            ("Kernel-Version", "string", 1),
            ("Container-Runtime", "string", 1),
        ],
        Resource::Pods => &[
            ("Name", "string", 0),
            ("Ready", "string", 0),
            ("Status", "string", 0),
            ("Restarts", "string", 0),
            ("Age", "string", 0),
            ("IP", "string", 1),
            ("Node", "string", 1),
            ("Nominated Node", "string", 1),
            ("Readiness Gates", "string", 1),
        ],
        Resource::Services => &[
            ("Name", "string", 0),
            ("Type", "string", 0),
            ("Cluster-IP", "string", 0),
            ("External-IP", "string", 0),
            ("Port(s)", "string", 0),
            ("Age", "string", 0),
            ("Selector", "string", 1),
        ],
        Resource::Endpoints => &[("Name", "string", 0), ("Endpoints", "string", 0), ("Age", "string", 0)],
        Resource::EndpointSlices => &[
            ("Name", "string", 0),
            ("AddressType", "string", 0),
            ("Ports", "string", 0),
            ("Endpoints", "string", 0),
            ("Age", "string", 0),
        ],
        Resource::Ingresses => &[
            ("Name", "string", 0),
            ("Class", "string", 0),
            ("Hosts", "string", 0),
            ("Address", "string", 0),
            ("Ports", "string", 0),
            ("Age", "string", 0),
        ],
        Resource::IngressClasses => &[
            ("Name", "string", 0),
            ("Controller", "string", 0),
            ("Parameters", "string", 0),
            ("Age", "string", 0),
        ],
        Resource::Events => &[
            ("Last Seen", "string", 0),
            ("Type", "string", 0),
            ("Reason", "string", 0),
            ("Object", "string", 0),
            ("Subobject", "string", 1),
            ("Source", "string", 1),
            ("Message", "string", 0),
            ("First Seen", "string", 1),
            ("Count", "string", 1),
            ("Name", "string", 1),
        ],
        Resource::ConfigMaps => &[("Name", "string", 0), ("Data", "string", 0), ("Age", "string", 0)],
        Resource::Secrets => {
            &[("Name", "string", 0), ("Type", "string", 0), ("Data", "string", 0), ("Age", "string", 0)]
        }
        Resource::Deployments => &[
            ("Name", "string", 0),
            ("Ready", "string", 0),
            ("Up-to-date", "string", 0),
            ("Available", "string", 0),
            ("Age", "string", 0),
            ("Containers", "string", 1),
            ("Images", "string", 1),
            ("Selector", "string", 1),
        ],
        Resource::ReplicaSets => &[
            ("Name", "string", 0),
            ("Desired", "integer", 0),
            ("Current", "integer", 0),
            ("Ready", "integer", 0),
            ("Age", "string", 0),
            ("Containers", "string", 1),
            ("Images", "string", 1),
            ("Selector", "string", 1),
        ],
        Resource::Jobs => &[
            ("Name", "string", 0),
            ("Status", "string", 0),
            ("Completions", "string", 0),
            ("Duration", "string", 0),
            ("Age", "string", 0),
            ("Containers", "string", 1),
            ("Images", "string", 1),
            ("Selector", "string", 1),
        ],
        Resource::PodDisruptionBudgets => &[
            ("Name", "string", 0),
            ("Min Available", "string", 0),
            ("Max Unavailable", "string", 0),
            ("Allowed Disruptions", "integer", 0),
            ("Age", "string", 0),
        ],
        Resource::Leases => &[("Name", "string", 0), ("Holder", "string", 0), ("Age", "string", 0)],
        Resource::ServiceAccounts => &[("Name", "string", 0), ("Age", "string", 0)],
    }
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
