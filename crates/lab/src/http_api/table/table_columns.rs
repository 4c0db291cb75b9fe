//! Table columns for each kind, with Kubernetes' own descriptions.
//!
//! Kinds without an entry have the columns of `*`. `scripts/api-columns.py` generates `columns.txt`. In that file, each
//! unindented line names a kind, and each indented line defines a column: name, type, format, priority (0: always
//! shown, 1: wide output only) and description, separated by `|`. The descriptions were written by the Kubernetes
//! authors and are licensed under the Apache License 2.0.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_json::{Value, json};

use crate::value::{list, text};

static COLUMNS: LazyLock<BTreeMap<&'static str, Value>> =
    LazyLock::new(|| parse(include_str!("columns.txt")));

/// Returns the column definitions for a kind.
pub(super) fn definitions(kind: &str) -> Value {
    of(kind).clone()
}

/// Returns the column names for a kind.
pub(super) fn names(kind: &str) -> impl Iterator<Item = &'static str> {
    list(of(kind)).iter().map(|column| text(&column["name"]))
}

fn of(kind: &str) -> &'static Value {
    COLUMNS.get(kind).unwrap_or(&COLUMNS["*"])
}

/// Parses the embedded table. Any mistake in the table shows up in the first test.
fn parse(text: &'static str) -> BTreeMap<&'static str, Value> {
    let mut kinds = BTreeMap::new();
    let mut kind = "";
    for line in text.lines() {
        let Some(column) = line.strip_prefix("  ") else {
            kind = line;
            continue;
        };
        let [name, column_type, format, priority, description] =
            <[&str; 5]>::try_from(column.splitn(5, '|').collect::<Vec<_>>()).unwrap_or_default();
        let columns = kinds.entry(kind).or_insert_with(|| json!([]));
        if let Some(columns) = columns.as_array_mut() {
            columns.push(json!({
                "name": name,
                "type": column_type,
                "format": format,
                "description": description.replace("\\n", "\n"),
                "priority": priority.parse::<u8>().unwrap_or_default(),
            }));
        }
    }
    kinds
}
