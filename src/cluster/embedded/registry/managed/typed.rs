//! Values as the schema sees them: what differs, what they hold, what they make together.
//!
//! The rules are those of sigs.k8s.io/structured-merge-diff (typed/compare.go, tofieldset.go,
//! merge.go, remove.go).

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::fields::{Fields, in_words};
use crate::cluster::embedded::registry::patch::interleave;
use crate::cluster::embedded::schema::{self, Field, Kind, Relation, Structure};

/// How a value is to be read.
#[derive(Clone, Copy)]
enum View<'a> {
    /// It has no parts that anyone could own.
    Leaf,
    Structure(&'a Structure),
    Map(&'a Kind),
    /// The kind of its elements, and the fields that tell them apart; none for sets.
    List(&'a Kind, &'a [&'static str]),
}

fn view<'a>(kind: &'a Kind, relation: &'a Relation) -> View<'a> {
    match (kind, relation) {
        (_, Relation::Atomic) => View::Leaf,
        (Kind::Structure(index), _) => View::Structure(schema::structure(*index)),
        (Kind::Map(element), _) => View::Map(element),
        (Kind::List(element), Relation::Keyed(keys)) => View::List(element, keys),
        (Kind::List(element), Relation::Set) => View::List(element, &[]),
        _ => View::Leaf,
    }
}

fn field_view(field: &Field) -> View<'_> {
    view(&field.kind, &field.relation)
}

/// Elements of maps and lists merge as their type does.
fn element_view(kind: &Kind) -> View<'_> {
    match kind {
        Kind::Structure(index) => match schema::structure(*index) {
            structure if structure.is_atomic => View::Leaf,
            structure => View::Structure(structure),
        },
        _ => View::Leaf,
    }
}

/// The wire form of the step to an element of a list.
fn step_to(element: &Value, keys: &[&str]) -> String {
    if keys.is_empty() {
        return format!("v:{element}");
    }
    let keys: Map<String, Value> = keys
        .iter()
        .filter_map(|key| match element.get(*key) {
            Some(value) => Some(((*key).to_owned(), value.clone())),
            // Ports are TCP unless they say otherwise.
            None if *key == "protocol" => Some(((*key).to_owned(), json!("TCP"))),
            None => None,
        })
        .collect();
    format!("k:{}", Value::Object(keys))
}

fn is_blank(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(Value::Object(map)) => map.is_empty(),
        Some(Value::Array(list)) => list.is_empty(),
        Some(_) => false,
    }
}

/// What a change has done to an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Difference {
    pub(super) removed: Fields,
    /// What is new or has another value.
    pub(super) changed: Fields,
}

/// What differs between two states of an object.
pub(super) fn compare(top: &Structure, before: &Value, after: &Value) -> Difference {
    compare_view(View::Structure(top), Some(before), Some(after))
}

fn compare_view(view: View<'_>, before: Option<&Value>, after: Option<&Value>) -> Difference {
    let mut difference = Difference::default();
    if before == after {
        return difference;
    }
    if matches!(view, View::Leaf) || (is_blank(before) && is_blank(after)) {
        difference.removed.here = after.is_none();
        difference.changed.here = after.is_some();
        return difference;
    }
    let mut enter = |step: String, view, before, after| {
        let inner = compare_view(view, before, after);
        difference.removed.put(step.clone(), inner.removed);
        difference.changed.put(step, inner.changed);
    };
    match view {
        View::Leaf => {}
        View::Structure(structure) => {
            let empty = json!({});
            for (name, field) in &structure.fields {
                // What is always written is there, if only empty, where its holder is.
                let is_list = matches!(field.kind, Kind::List(_) | Kind::Map(_));
                let [old, new] = [before, after].map(|holder| match holder?.get(name) {
                    None if field.is_value => Some(&empty),
                    None if is_list && !field.omits_zero => Some(&Value::Null),
                    // Unlike other times, those in microseconds are nobody's until they are set.
                    Some(Value::Null) if field.kind == Kind::MicroTime => None,
                    found => found,
                });
                if old.is_some() || new.is_some() {
                    enter(format!("f:{name}"), field_view(field), old, new);
                }
            }
        }
        View::Map(kind) => {
            let [old, new] = [before, after].map(|value| value.and_then(Value::as_object));
            let names: BTreeSet<_> = [old, new].into_iter().flatten().flat_map(Map::keys).collect();
            for name in names {
                let [old, new] = [old, new].map(|map| map?.get(name));
                enter(format!("f:{name}"), element_view(kind), old, new);
            }
        }
        View::List(kind, keys) => {
            let [old, new] = [before, after].map(|list| by_step(list, keys));
            let steps: BTreeSet<_> = old.iter().chain(&new).map(|(step, _)| step).collect();
            for step in steps {
                enter(step.clone(), element_view(kind), find(&old, step), find(&new, step));
            }
        }
    }
    match (before, after) {
        (None, _) => difference.changed.here = true,
        (_, None) => difference.removed.here = true,
        _ => {}
    }
    difference
}

fn by_step<'a>(list: Option<&'a Value>, keys: &[&str]) -> Vec<(String, &'a Value)> {
    let elements = list.and_then(Value::as_array).into_iter().flatten();
    elements.map(|element| (step_to(element, keys), element)).collect()
}

fn find<'a>(list: &[(String, &'a Value)], step: &str) -> Option<&'a Value> {
    list.iter().find(|(own, _)| own == step).map(|(_, value)| *value)
}

/// The fields that an applied configuration claims.
pub(super) fn claims(top: &Structure, configuration: &Value) -> Fields {
    claims_of(View::Structure(top), configuration)
}

fn claims_of(view: View<'_>, value: &Value) -> Fields {
    let mut fields = Fields::default();
    match (view, value) {
        (View::Structure(structure), Value::Object(map)) => {
            for (name, value) in map {
                let Some(field) = structure.fields.get(name.as_str()) else { continue };
                let mut inner = claims_of(field_view(field), value);
                inner.here |= value.is_null() || value.as_object().is_some_and(Map::is_empty);
                fields.put(format!("f:{name}"), inner);
            }
        }
        (View::Map(kind), Value::Object(map)) => {
            for (name, value) in map {
                let mut inner = claims_of(element_view(kind), value);
                inner.here = true;
                fields.put(format!("f:{name}"), inner);
            }
        }
        (View::List(kind, keys), Value::Array(list)) => {
            for element in list {
                let mut inner = claims_of(element_view(kind), element);
                inner.here = true;
                fields.put(step_to(element, keys), inner);
            }
        }
        _ => fields.here = true,
    }
    fields
}

/// The paths of a configuration's fields that the schema does not have.
pub(super) fn unknown(top: &Structure, configuration: &Value) -> Vec<String> {
    schema::unknown_paths(top, configuration, &|relation, number, element| match relation {
        Relation::Keyed(keys) => in_words(&step_to(element, keys)),
        _ => format!("[{number}]"),
    })
}

/// An object with an applied configuration merged into it.
pub(super) fn merge(top: &Structure, live: &Value, configuration: &Value) -> Value {
    merge_view(View::Structure(top), Some(live), configuration)
}

fn merge_view(view: View<'_>, live: Option<&Value>, configuration: &Value) -> Value {
    match (view, live, configuration) {
        (View::Structure(_) | View::Map(_), Some(Value::Object(live)), Value::Object(configuration)) => {
            let mut merged = live.clone();
            for (name, value) in configuration {
                let inner = match view {
                    View::Structure(structure) => {
                        structure.fields.get(name.as_str()).map_or(View::Leaf, field_view)
                    }
                    View::Map(kind) => element_view(kind),
                    _ => View::Leaf,
                };
                merged.insert(name.clone(), merge_view(inner, live.get(name), value));
            }
            Value::Object(merged)
        }
        (View::List(kind, keys), Some(live), Value::Array(_)) => {
            let (old, new) = (by_step(Some(live), keys), by_step(Some(configuration), keys));
            let steps =
                |list: &[(String, &Value)]| list.iter().map(|(step, _)| step.clone()).collect::<Vec<_>>();
            let merged = interleave(&steps(&old), &steps(&new)).into_iter().filter_map(|step| {
                match (find(&old, &step), find(&new, &step)) {
                    (old, Some(new)) => Some(merge_view(element_view(kind), old, new)),
                    (old, None) => old.cloned(),
                }
            });
            Value::Array(merged.collect())
        }
        _ => configuration.clone(),
    }
}

/// Takes out of `value` what is in `dropped`, unless it, or something in it, is in `kept`.
pub(super) fn drop_fields(top: &Structure, value: &mut Value, dropped: &Fields, kept: &Fields) {
    drop_in(View::Structure(top), value, dropped, kept);
}

fn drop_in(view: View<'_>, value: &mut Value, dropped: &Fields, kept: &Fields) {
    let nothing = Fields::default();
    let kept_below = |step: &str| kept.below.get(step).unwrap_or(&nothing);
    match (view, value) {
        (View::Structure(_) | View::Map(_), Value::Object(map)) => {
            map.retain(|name, value| {
                let step = format!("f:{name}");
                let Some(inner) = dropped.below.get(&step) else { return true };
                if kept_below(&step).is_empty() {
                    return false;
                }
                let view = match view {
                    View::Structure(structure) => {
                        structure.fields.get(name.as_str()).map_or(View::Leaf, field_view)
                    }
                    View::Map(kind) => element_view(kind),
                    _ => View::Leaf,
                };
                drop_in(view, value, inner, kept_below(&step));
                true
            });
        }
        (View::List(kind, keys), Value::Array(list)) => {
            list.retain_mut(|element| {
                let step = step_to(element, keys);
                let Some(inner) = dropped.below.get(&step) else { return true };
                if inner.here && kept_below(&step).is_empty() {
                    return false;
                }
                drop_in(element_view(kind), element, inner, kept_below(&step));
                true
            });
        }
        _ => {}
    }
}
