//! The fields that objects of the served kinds have, and how their lists and maps merge.
//!
//! Strict decoding, patches and protobuf use one table, which `scripts/api-schema.py` takes from Kubernetes' own types.
//! It does not define which values are valid: the registry checks them.
//!
//! In `schema.txt` a line without indentation begins a type, an indented one names a field, its
//! kind and its flags. `[T]` is a list and `{T}` a map. The flags:
//!
//! | flag | meaning |
//! |---|---|
//! | `#N` | its number in protobuf; `#M.N` inside of message M where JSON has it in the same object |
//! | `?` | left out when empty, zero or false |
//! | `null` | a time that is written as null when it is not set |
//! | `merge=KEY` | strategic merge patches unite the list, by this field of its elements |
//! | `retainKeys` | strategic merge patches may name the fields that stay |

mod shape;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use super::resource::Resource;

pub(crate) use shape::{check, prune, stays, unknown_fields};

/// The kind of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Text.
    String,
    /// True or false.
    Bool,
    /// A whole number of 32 or 64 bits.
    Integer {
        /// Number of bits.
        bits: u32,
    },
    /// A number with a unit.
    Quantity,
    /// A whole number or text.
    IntOrString,
    /// A point in time, in whole seconds.
    Time,
    /// A point in time, in microseconds.
    MicroTime,
    /// Base64.
    Bytes,
    /// Any value.
    Any,
    /// Another structure of the schema.
    Structure(usize),
    /// A list.
    List(Box<Kind>),
    /// A map from strings.
    Map(Box<Kind>),
}

/// A field of a structure.
#[derive(Clone, Debug)]
pub(crate) struct Field {
    /// Kind of its value.
    pub kind: Kind,
    /// For lists that strategic merge patches unite: the field that identifies elements, empty for plain values.
    pub merge_key: Option<&'static str>,
    /// True if it is left out when empty, zero or false.
    pub omits_zero: bool,
    /// True if it is written as null when it is not set.
    pub shows_null: bool,
    /// Path of its numbers in protobuf: one, or two if protobuf has a message in between.
    pub protobuf: Vec<u32>,
}

/// A structure and its fields.
#[derive(Clone, Debug)]
pub(crate) struct Structure {
    /// Its name in Kubernetes' sources.
    pub name: &'static str,
    /// Fields by name.
    pub fields: BTreeMap<&'static str, Field>,
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

/// Returns the structure of a kind of object, even if it is not a resource's.
pub(crate) fn named(kind: &str) -> Option<&'static Structure> {
    SCHEMA.roots.get(kind).map(|index| structure(*index))
}

/// Returns the structure that a [`Kind::Structure`] refers to.
pub(crate) fn structure(index: usize) -> &'static Structure {
    &SCHEMA.structures[index]
}

/// Parses the table, which is part of this program: the first test finds any mistake in it.
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

fn parse_kind(word: &str, roots: &BTreeMap<&'static str, usize>) -> Kind {
    let inner = |open, close| word.strip_prefix(open).and_then(|word| word.strip_suffix(close));
    if let Some(element) = inner('[', ']') {
        return Kind::List(Box::new(parse_kind(element, roots)));
    }
    if let Some(element) = inner('{', '}') {
        return Kind::Map(Box::new(parse_kind(element, roots)));
    }
    match word {
        "string" => Kind::String,
        "bool" => Kind::Bool,
        "int32" => Kind::Integer { bits: 32 },
        "int64" => Kind::Integer { bits: 64 },
        "quantity" => Kind::Quantity,
        "intOrString" => Kind::IntOrString,
        "time" => Kind::Time,
        "microTime" => Kind::MicroTime,
        "bytes" => Kind::Bytes,
        "any" => Kind::Any,
        name => Kind::Structure(roots[name]),
    }
}

fn parse_field(kind: Kind, flags: impl Iterator<Item = &'static str>) -> Field {
    let mut field =
        Field { kind, merge_key: None, omits_zero: false, shows_null: false, protobuf: Vec::new() };
    for flag in flags {
        if let Some(numbers) = flag.strip_prefix('#') {
            field.protobuf = numbers.split('.').filter_map(|number| number.parse().ok()).collect();
        }
        match flag.split_once('=').unwrap_or((flag, "")) {
            ("?", _) => field.omits_zero = true,
            ("null", _) => field.shows_null = true,
            ("merge", key) => field.merge_key = Some(key),
            // Patches say themselves what they retain.
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
        let Kind::Structure(spec) = of(Resource::Pods).fields["spec"].kind else { panic!("no spec") };
        let containers = &structure(spec).fields["containers"];
        assert_eq!(containers.merge_key, Some("name"));
        let Kind::List(container) = &containers.kind else { panic!("not a list") };
        let Kind::Structure(container) = **container else { panic!("not a structure") };
        let ports = &structure(container).fields["ports"];
        assert_eq!(ports.merge_key, Some("containerPort"));
        assert_eq!(containers.protobuf, [2]);
        let Kind::Structure(probe) = structure(container).fields["readinessProbe"].kind else {
            panic!("no probe")
        };
        assert_eq!(structure(probe).fields["httpGet"].protobuf, [1, 2]);
    }
}
