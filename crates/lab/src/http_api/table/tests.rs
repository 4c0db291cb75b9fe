//! Compares tables with those that a real API server built from the same objects.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::Value;

use super::row;
use super::table_cells::cell;
use super::table_columns::{definitions, names};
use crate::resource::Resource;

/// Recorded tables, each with the recording of the complete objects and their resource.
const RECORDED: [(&str, &str, Resource); 8] = [
    ("table-pods", "pod-list", Resource::Pods),
    ("table-nodes", "node-list", Resource::Nodes),
    ("table-deployments", "deployment-get", Resource::Deployments),
    ("table-replicasets", "replicaset-list", Resource::ReplicaSets),
    ("table-services", "service-get", Resource::Services),
    ("table-endpointslices", "endpointslice-list", Resource::EndpointSlices),
    ("table-events", "event-list", Resource::Events),
    ("table-pdbs", "pdb-get", Resource::PodDisruptionBudgets),
];

/// Time passed as the current time. Columns that depend on it are not compared.
const LOOKED_AT: Timestamp = Timestamp::UNIX_EPOCH;
/// Columns that depend on the current time.
const OF_THE_MOMENT: [&str; 3] = ["Age", "Last Seen", "First Seen"];

fn recorded(file: &str) -> Value {
    let path = format!("{}/../../tests/reference/api/{file}.json", env!("CARGO_MANIFEST_DIR"));
    let recording: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    recording["response"].clone()
}

#[test]
fn columns_match_recorded_server() {
    let namespaces = ("table-namespaces", "", Resource::Namespaces);
    for (table, _, resource) in RECORDED.into_iter().chain([namespaces]) {
        let mut ours = definitions(resource.kind());
        for column in ours.as_array_mut().unwrap() {
            // The recordings omit descriptions.
            column.as_object_mut().unwrap().remove("description");
        }
        assert_eq!(ours, recorded(table)["columnDefinitions"], "{table}");
    }
}

#[test]
fn columns_have_cells_and_descriptions() {
    for resource in Resource::ALL {
        let columns = definitions(resource.kind());
        let columns = columns.as_array().expect("columns");
        assert_eq!(row(resource, &Value::Null, LOOKED_AT).len(), columns.len(), "{resource:?}");
        let has_cell = |column| cell(resource, column, &Value::Null, LOOKED_AT).is_some();
        assert!(resource == Resource::Pods || names(resource.kind()).all(has_cell), "{resource:?}");
        assert!(columns.iter().all(|column| column["description"] != ""), "{resource:?}");
    }
}

#[test]
fn cells_match_recorded_server() {
    for (table, objects, resource) in RECORDED {
        let table = recorded(table);
        let columns = table["columnDefinitions"].as_array().unwrap();
        let rows: BTreeMap<&str, &Value> = table["rows"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| (row["object"]["metadata"]["name"].as_str().unwrap(), &row["cells"]))
            .collect();
        let objects = recorded(objects);
        let objects = objects["items"].as_array().cloned().unwrap_or_else(|| vec![objects]);
        let mut compared = 0;
        for object in &objects {
            let Some(cells) = rows.get(object["metadata"]["name"].as_str().unwrap()) else { continue };
            let ours = row(resource, object, LOOKED_AT);
            assert_eq!(ours.len(), columns.len(), "{resource:?}");
            for ((column, ours), theirs) in columns.iter().zip(&ours).zip(cells.as_array().unwrap()) {
                let column = column["name"].as_str().unwrap();
                if !OF_THE_MOMENT.contains(&column) {
                    assert_eq!(ours, theirs, "{resource:?}: {column}");
                }
            }
            compared += 1;
        }
        assert!(compared > 0, "{resource:?}: no object has a row");
    }
}
