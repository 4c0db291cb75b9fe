//! Defaults and checks for single fields, as listed in `field_rules.txt`, and code that applies the defaults.
//!
//! The values come from pkg/apis/*/v1/defaults.go and pkg/apis/*/validation. They cover the fields that this cluster
//! honours and that people often get wrong.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_json::{Map, Value};

use crate::schema::{FieldType, Structure, structure};
use crate::value::text;

/// Field name in a [`Rule`] that stands for the structure itself.
pub(super) const WHOLE: &str = "*";

/// Rule for one field of a structure.
#[derive(Debug)]
pub(super) struct Rule {
    pub(super) field: &'static str,
    default: Option<Value>,
    /// Another field, and the values of that field for which this rule applies.
    when: Option<(&'static str, Vec<&'static str>)>,
    /// Names of checks, each with arguments.
    pub(super) checks: Vec<(&'static str, &'static str)>,
}

static RULES: LazyLock<BTreeMap<&'static str, Vec<Rule>>> =
    LazyLock::new(|| parse(include_str!("field_rules.txt")));

/// Returns the rules for a structure's fields.
pub(super) fn of(structure: &Structure) -> &'static [Rule] {
    RULES.get(structure.name).map_or(&[], Vec::as_slice)
}

impl Rule {
    fn parse(line: &'static str) -> Self {
        let mut parts = line.split(" | ");
        let head = parts.next().unwrap_or_default();
        let checks = parts.map(|check| check.split_once(' ').unwrap_or((check, ""))).collect();
        let (head, when) = match head.split_once(" when ") {
            Some((head, when)) => (head, when.split_once(' ')),
            None => (head, None),
        };
        let when = when.map(|(field, values)| (field, values.split(' ').collect()));
        let (field, default) = match head.split_once(" = ") {
            Some((field, default)) => (field, serde_json::from_str(default).ok()),
            None => (head, None),
        };
        Self { field, default, when, checks }
    }

    /// Returns true if the rule applies to this value of the structure.
    pub(super) fn holds(&self, within: &Value) -> bool {
        self.when.as_ref().is_none_or(|(field, values)| values.contains(&text(&within[field])))
    }
}

fn parse(lines: &'static str) -> BTreeMap<&'static str, Vec<Rule>> {
    let mut rules: BTreeMap<_, Vec<Rule>> = BTreeMap::new();
    let mut of_structure = &mut Vec::new();
    for line in lines.lines().filter(|line| !line.starts_with('#')) {
        match line.strip_prefix(' ') {
            Some(rule) => of_structure.push(Rule::parse(rule)),
            None => of_structure = rules.entry(line).or_default(),
        }
    }
    rules
}

/// Sets fields that are missing or null to their defaults, at any depth.
pub(super) fn fill(top: &Structure, object: &mut Value) {
    let mut unused = Vec::new();
    for rule in of(top) {
        if !rule.holds(object) {
            unused.push(rule.field);
        } else if let Some(default) = &rule.default
            && object[rule.field].is_null()
        {
            object[rule.field] = default.clone();
        }
    }
    let fields = object.as_object_mut().into_iter().flat_map(Map::iter_mut);
    for (name, value) in fields.filter(|(name, _)| !unused.contains(&name.as_str())) {
        if let Some(field) = top.fields.get(name.as_str()) {
            fill_kind(&field.kind, value);
        }
    }
}

fn fill_kind(kind: &FieldType, value: &mut Value) {
    match (kind, value) {
        (FieldType::Structure(index), value @ Value::Object(_)) => fill(structure(*index), value),
        (FieldType::List(element), Value::Array(list)) => {
            list.iter_mut().for_each(|value| fill_kind(element, value));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema;

    #[test]
    fn rules_refer_only_to_schema_fields() {
        for (name, rules) in &*RULES {
            let structure = schema::named(name).unwrap_or_else(|| panic!("no {name}"));
            for rule in rules {
                let others = rule.when.iter().map(|(field, _)| *field);
                for field in others.chain([rule.field]).filter(|field| *field != WHOLE) {
                    assert!(structure.fields.contains_key(field), "no {name}.{field}");
                }
            }
        }
        let read = RULES.values().flatten().filter(|rule| rule.default.is_some()).count();
        assert_eq!(read, include_str!("field_rules.txt").matches(" = ").count());
    }
}
