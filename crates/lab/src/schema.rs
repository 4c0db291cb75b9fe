//! Fields of all served object kinds, and merge rules for their lists and maps.
//!
//! Strict decoding, patches and protobuf share one table, which `scripts/api-schema.py` generates from Kubernetes' own
//! types. The table does not define which values are valid; the registry checks them.
//!
//! In `schema.txt`, each unindented line starts a type, and each indented line gives a field's name, kind and flags.
//! `[T]` is a list and `{T}` a map. The flags are:
//!
//! | flag | meaning |
//! |---|---|
//! | `#N` | field number in protobuf; `#M.N` if protobuf nests the field in message M but JSON does not |
//! | `?` | omitted when empty, zero or false |
//! | `null` | time written as null when unset |
//! | `merge=KEY` | strategic merge patches merge the list, matching elements by this field |
//! | `retainKeys` | strategic merge patches may list the fields to retain |

mod shape;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use super::resource::Resource;

pub(crate) use shape::{check, each_structure, prune, stays, unknown_fields};

/// Type of a field's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FieldType {
    /// Text.
    String,
    /// True or false.
    Bool,
    /// A 32-bit or 64-bit integer.
    Integer {
        /// Number of bits.
        bits: u32,
    },
    /// A number with a unit.
    Quantity,
    /// An integer or a string.
    IntOrString,
    /// A point in time, with a resolution of one second.
    Time,
    /// A point in time, with a resolution of one microsecond.
    MicroTime,
    /// Base64-encoded bytes.
    Bytes,
    /// Any value.
    Any,
    /// Another structure in the schema.
    Structure(usize),
    /// A list.
    List(Box<FieldType>),
    /// A map with string keys.
    Map(Box<FieldType>),
}

/// A field of a structure.
#[derive(Clone, Debug)]
pub(crate) struct SchemaField {
    /// Type of the field's value.
    pub kind: FieldType,
    /// For lists that strategic merge patches merge: the field that identifies elements, or empty if the elements are
    /// plain values.
    pub merge_key: Option<&'static str>,
    /// True if the field is omitted when empty, zero or false.
    pub omits_zero: bool,
    /// True if the field is written as null when unset.
    pub shows_null: bool,
    /// Path of field numbers in protobuf: one number, or two if protobuf nests the field in another message.
    pub protobuf: Vec<u32>,
}

/// A structure and its fields.
#[derive(Clone, Debug)]
pub(crate) struct Structure {
    /// Name of the type in Kubernetes' sources.
    pub name: &'static str,
    /// Fields by name.
    pub fields: BTreeMap<&'static str, SchemaField>,
}

#[derive(Debug)]
struct Schema {
    structures: Vec<Structure>,
    roots: BTreeMap<&'static str, usize>,
}

static SCHEMA: LazyLock<Schema> = LazyLock::new(|| parse(include_str!("schema.txt")));

/// Returns the structure of a resource's objects.
pub(crate) fn of(resource: Resource) -> &'static Structure {
    structure(SCHEMA.roots[resource.kind()])
}

/// Returns the structure of an object kind, including kinds that are not resources.
pub(crate) fn named(kind: &str) -> Option<&'static Structure> {
    SCHEMA.roots.get(kind).map(|index| structure(*index))
}

/// Returns the structure to which a [`FieldType::Structure`] refers.
pub(crate) fn structure(index: usize) -> &'static Structure {
    &SCHEMA.structures[index]
}

/// Parses the embedded table. Any mistake in the table shows up in the first test.
fn parse(text: &'static str) -> Schema {
    let is_head = |line: &&str| !line.starts_with(' ');
    let heads = text.lines().filter(is_head).map(|line| line.split(' ').next().unwrap_or_default());
    let roots: BTreeMap<_, _> = heads.enumerate().map(|(index, name)| (name, index)).collect();
    let mut structures: Vec<Structure> = Vec::new();
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        let name = words.next().unwrap_or_default();
        if is_head(&line) {
            let name = name.rsplit('.').next().unwrap_or(name);
            structures.push(Structure { name, fields: BTreeMap::new() });
        } else if let Some(structure) = structures.last_mut() {
            let kind = parse_kind(words.next().unwrap_or_default(), &roots);
            structure.fields.insert(name, parse_field(kind, words));
        }
    }
    Schema { structures, roots }
}

fn parse_kind(word: &str, roots: &BTreeMap<&'static str, usize>) -> FieldType {
    let inner = |open, close| word.strip_prefix(open).and_then(|word| word.strip_suffix(close));
    if let Some(element) = inner('[', ']') {
        return FieldType::List(Box::new(parse_kind(element, roots)));
    }
    if let Some(element) = inner('{', '}') {
        return FieldType::Map(Box::new(parse_kind(element, roots)));
    }
    match word {
        "string" => FieldType::String,
        "bool" => FieldType::Bool,
        "int32" => FieldType::Integer { bits: 32 },
        "int64" => FieldType::Integer { bits: 64 },
        "quantity" => FieldType::Quantity,
        "intOrString" => FieldType::IntOrString,
        "time" => FieldType::Time,
        "microTime" => FieldType::MicroTime,
        "bytes" => FieldType::Bytes,
        "any" => FieldType::Any,
        name => FieldType::Structure(roots[name]),
    }
}

fn parse_field(kind: FieldType, flags: impl Iterator<Item = &'static str>) -> SchemaField {
    let mut field =
        SchemaField { kind, merge_key: None, omits_zero: false, shows_null: false, protobuf: Vec::new() };
    for flag in flags {
        if let Some(numbers) = flag.strip_prefix('#') {
            field.protobuf = numbers.split('.').filter_map(|number| number.parse().ok()).collect();
        }
        match flag.split_once('=').unwrap_or((flag, "")) {
            ("?", _) => field.omits_zero = true,
            ("null", _) => field.shows_null = true,
            ("merge", key) => field.merge_key = Some(key),
            // Nothing to record for `retainKeys`, because each patch lists the fields to retain.
            _ => {}
        }
    }
    field
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn served_kinds_have_schemas() {
        for resource in Resource::ALL {
            assert_eq!(of(resource).name, resource.kind());
            assert!(of(resource).fields.contains_key("metadata"), "{resource:?}");
        }
    }

    #[test]
    fn schema_has_merge_keys_and_field_numbers() {
        let FieldType::Structure(spec) = of(Resource::Pods).fields["spec"].kind else { panic!("no spec") };
        let containers = &structure(spec).fields["containers"];
        assert_eq!(containers.merge_key, Some("name"));
        let FieldType::List(container) = &containers.kind else { panic!("not a list") };
        let FieldType::Structure(container) = **container else { panic!("not a structure") };
        let ports = &structure(container).fields["ports"];
        assert_eq!(ports.merge_key, Some("containerPort"));
        assert_eq!(containers.protobuf, [2]);
        let FieldType::Structure(probe) = structure(container).fields["readinessProbe"].kind else {
            panic!("no probe")
        };
        assert_eq!(structure(probe).fields["httpGet"].protobuf, [1, 2]);
    }
}
