//! Field-by-field changes that a run makes to objects that are not its own, and their reversal.
//!
//! Only the run's own changes are reverted. Changes by others stay, including those to a field that the run had changed
//! before. Nothing here talks to a cluster.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// Annotation that `kubectl rollout restart` sets.
pub(crate) const RESTARTED_AT: &str = "kubectl.kubernetes.io/restartedAt";
/// Fields that identify items in the lists that rolldrop changes: container ports, Service ports and containers.
const IDENTITIES: [&str; 3] = ["containerPort", "port", "name"];
/// Maximum number of characters shown for a value.
const LONGEST_VALUE: usize = 80;

/// A field's value before and after a change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Edit {
    path: Vec<Step>,
    /// Value before; `None` if the field did not exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    old: Option<Value>,
    /// Value after; `None` if the field is removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    new: Option<Value>,
    /// Number of enclosing fields that did not exist either.
    #[serde(default, skip_serializing_if = "is_zero")]
    made: usize,
    /// True if the run may change the field again. The field is then reverted regardless of its current value.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    again: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde needs")]
const fn is_zero(number: &usize) -> bool {
    *number == 0
}

impl Edit {
    /// Creates the edit to the annotation that restarts a workload's pods. One edit covers all restarts by the run.
    pub(crate) fn of_restarts(workload: &Value) -> Self {
        let fields = ["spec", "template", "metadata", "annotations", RESTARTED_AT];
        let path: Vec<Step> = fields.into_iter().map(|name| Step::Field(name.to_owned())).collect();
        let old = find(workload, &path).cloned();
        let has_annotations = find(workload, &path[..4]).is_some_and(|found| !found.is_null());
        Self { path, old, new: None, made: usize::from(!has_annotations), again: true }
    }

    /// Returns true if the edit is to a list's item with this name, such as a container.
    pub(crate) fn is_to_item(&self, name: &str) -> bool {
        self.path.iter().any(|step| matches!(step, Step::Item { is, .. } if is == name))
    }

    /// Describes the field, its value before and its value after.
    pub(crate) fn in_words(&self) -> String {
        let value = |value: &Option<Value>| {
            let text = value.as_ref().map_or_else(|| "not set".to_owned(), Value::to_string);
            match text.char_indices().nth(LONGEST_VALUE) {
                Some((end, _)) => format!("{}…", &text[..end]),
                None => text,
            }
        };
        format!("{self}: {} → {}", value(&self.old), value(&self.new))
    }
}

/// One step of a path into an object.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
enum Step {
    /// Step to a field of an object.
    Field(String),
    /// Step to the list item in which this field has this value.
    Item { field: String, is: Value },
}

impl fmt::Display for Edit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, step) in self.path.iter().enumerate() {
            match step {
                Step::Field(name) if number == 0 => write!(f, "{name}")?,
                Step::Field(name) => write!(f, ".{name}")?,
                Step::Item { field, is: Value::String(text) } => write!(f, "[{field}={text}]")?,
                Step::Item { field, is } => write!(f, "[{field}={is}]")?,
            }
        }
        Ok(())
    }
}

/// Result of reverting edits.
#[derive(Debug, PartialEq)]
pub(crate) struct Reverted {
    /// Object with the edits reverted.
    pub(crate) object: Value,
    /// Number of fields that have their old value again.
    pub(crate) restored: usize,
    /// Fields that others have changed since, which stay as they are.
    pub(crate) others: Vec<String>,
}

/// Returns the edits that turn one object into the other.
pub(crate) fn between(before: &Value, after: &Value) -> Vec<Edit> {
    let mut edits = Vec::new();
    compare((Some(before), Some(after)), &mut Vec::new(), 0, &mut edits);
    edits
}

/// Adds the edits between two values at a path. `made` is the number of steps in the path that lead into fields that
/// did not exist before.
fn compare(
    (old, new): (Option<&Value>, Option<&Value>),
    path: &mut Vec<Step>,
    made: usize,
    edits: &mut Vec<Edit>,
) {
    if old == new {
        return;
    }
    let inside = if old.is_none() { made + 1 } else { 0 };
    let is_item = matches!(path.last(), Some(Step::Item { .. }));
    let (nothing, none) = (Value::Object(Map::new()), Value::Array(Vec::new()));
    let (from, to) = match (old, new) {
        // Compares field by field so that additions by others stay.
        (None, Some(Value::Object(_))) if !is_item => (Some(&nothing), new),
        (None, Some(Value::Array(_))) => (Some(&none), new),
        both => both,
    };
    match (from, to) {
        (Some(Value::Object(a)), Some(Value::Object(b))) => {
            for name in a.keys().chain(b.keys()).collect::<BTreeSet<_>>() {
                path.push(Step::Field(name.clone()));
                compare((a.get(name), b.get(name)), path, inside, edits);
                path.pop();
            }
        }
        (Some(Value::Array(a)), Some(Value::Array(b))) if identity(a, b).is_some() => {
            let field = identity(a, b).unwrap_or_default();
            for (number, item) in a.iter().chain(b).enumerate() {
                let find = |list: &[Value]| list.iter().position(|other| other[field] == item[field]);
                if number >= a.len() && find(a).is_some() {
                    continue;
                }
                path.push(Step::Item { field: field.to_owned(), is: item[field].clone() });
                compare((find(a).map(|at| &a[at]), find(b).map(|at| &b[at])), path, inside, edits);
                path.pop();
            }
        }
        _ => {
            edits.push(Edit { path: path.clone(), old: old.cloned(), new: new.cloned(), made, again: false })
        }
    }
}

/// Returns a field that every item of both lists has, and whose values are unique within each list.
fn identity(a: &[Value], b: &[Value]) -> Option<&'static str> {
    let tells_apart = |list: &[Value], field: &str| {
        let names: BTreeSet<String> =
            list.iter().filter_map(|item| item.get(field)).map(Value::to_string).collect();
        names.len() == list.len()
    };
    IDENTITIES.into_iter().find(|field| tells_apart(a, field) && tells_apart(b, field))
}

/// Reverts edits in the current state of an object.
pub(crate) fn revert(edits: &[Edit], current: &Value) -> Reverted {
    let mut reverted = Reverted { object: current.clone(), restored: 0, others: Vec::new() };
    for edit in edits.iter().rev() {
        let now = find(&reverted.object, &edit.path);
        let is_old = is_still(now, edit.old.as_ref());
        let is_ours = if edit.again { !is_old } else { is_still(now, edit.new.as_ref()) };
        if is_ours {
            if set(&mut reverted.object, &edit.path, edit.old.clone()) {
                forget_empty(&mut reverted.object, edit);
                reverted.restored += 1;
                continue;
            }
        } else if is_old {
            continue;
        }
        reverted.others.push(edit.to_string());
    }
    reverted
}

/// Removes the fields that the run created around a removed field, if they are empty now.
fn forget_empty(object: &mut Value, edit: &Edit) {
    for around in (edit.path.len().saturating_sub(edit.made)..edit.path.len()).rev() {
        let path = &edit.path[..around];
        let is_empty = match find(object, path) {
            Some(Value::Object(map)) => map.is_empty(),
            Some(Value::Array(list)) => list.is_empty(),
            _ => false,
        };
        if !is_empty {
            break;
        }
        set(object, path, None);
    }
}

/// Returns true if a value is still the one that was written, ignoring defaults that the API server has added.
fn is_still(now: Option<&Value>, written: Option<&Value>) -> bool {
    match (now, written) {
        (None | Some(Value::Null), None | Some(Value::Null)) => true,
        (Some(Value::Object(now)), Some(Value::Object(written))) => {
            written.iter().all(|(name, value)| is_still(now.get(name), Some(value)))
        }
        (Some(Value::Array(now)), Some(Value::Array(written))) => {
            now.len() == written.len() && now.iter().zip(written).all(|(a, b)| is_still(Some(a), Some(b)))
        }
        (now, written) => now == written,
    }
}

fn find<'a>(object: &'a Value, path: &[Step]) -> Option<&'a Value> {
    path.iter().try_fold(object, |at, step| match step {
        Step::Field(name) => at.get(name),
        Step::Item { field, is } => at.as_array()?.iter().find(|item| item.get(field) == Some(is)),
    })
}

/// Sets or removes a field; returns false if an item on the path is gone.
fn set(object: &mut Value, path: &[Step], value: Option<Value>) -> bool {
    let Some((step, rest)) = path.split_first() else {
        *object = value.unwrap_or_default();
        return true;
    };
    match step {
        Step::Field(name) => {
            if object.is_null() {
                *object = json!({});
            }
            let Value::Object(map) = object else { return false };
            if !rest.is_empty() {
                return set(map.entry(name).or_insert(Value::Null), rest, value);
            }
            match value {
                Some(value) => map.insert(name.clone(), value),
                None => map.remove(name),
            };
        }
        Step::Item { field, is } => {
            if object.is_null() {
                *object = json!([]);
            }
            let Value::Array(list) = object else { return false };
            let at = list.iter().position(|item| item.get(field) == Some(is));
            match (at, value) {
                (Some(at), value) if !rest.is_empty() => return set(&mut list[at], rest, value),
                (None, _) if !rest.is_empty() => return false,
                (Some(at), Some(value)) => list[at] = value,
                (Some(at), None) => {
                    list.remove(at);
                }
                (None, Some(value)) => list.push(value),
                (None, None) => {}
            }
        }
    }
    true
}

/// Returns the JSON merge patch (RFC 7386) that turns one object into the other; `None` if they are equal.
pub(crate) fn merge_patch(from: &Value, to: &Value) -> Option<Value> {
    let (Value::Object(a), Value::Object(b)) = (from, to) else {
        return (from != to).then(|| to.clone());
    };
    let mut patch = Map::new();
    for (name, value) in b {
        let changed = merge_patch(a.get(name).unwrap_or(&Value::Null), value);
        patch.extend(changed.map(|changed| (name.clone(), changed)));
    }
    patch.extend(a.keys().filter(|name| !b.contains_key(*name)).map(|name| (name.clone(), Value::Null)));
    (!patch.is_empty()).then_some(Value::Object(patch))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deployment() -> Value {
        json!({"metadata": {"name": "web"}, "spec": {"replicas": 3, "template": {"spec": {"containers": [
            {"name": "app", "image": "app:1", "ports": [{"name": "http", "containerPort": 8080}]}
        ]}}}})
    }

    fn with_sidecar() -> Value {
        let mut object = deployment();
        object["metadata"]["annotations"] = json!({"ours": "yes"});
        let pod = &mut object["spec"]["template"]["spec"];
        pod["containers"][0]["ports"][0]["name"] = "rolldrop-app".into();
        pod["initContainers"] = json!([{"name": "rolldrop", "image": "rolldrop"}]);
        object
    }

    #[test]
    fn edits_name_each_changed_field() {
        let named: Vec<String> =
            between(&deployment(), &with_sidecar()).iter().map(ToString::to_string).collect();
        assert_eq!(
            named,
            [
                "metadata.annotations.ours",
                "spec.template.spec.containers[name=app].ports[containerPort=8080].name",
                "spec.template.spec.initContainers[name=rolldrop]",
            ]
        );
    }

    #[test]
    fn revert_restores_object_and_is_idempotent() {
        let edits = between(&deployment(), &with_sidecar());
        let edits: Vec<Edit> = serde_json::from_str(&serde_json::to_string(&edits).unwrap()).unwrap();
        let mut live = with_sidecar();
        // Simulates the API server's defaults.
        live["spec"]["template"]["spec"]["initContainers"][0]["imagePullPolicy"] = "Always".into();
        let Reverted { object, restored, others } = revert(&edits, &live);
        assert_eq!((restored, others), (3, vec![]));
        assert_eq!(object, deployment());
        assert_eq!(revert(&edits, &object).restored, 0);
        assert_eq!(
            revert(&edits, &deployment()),
            Reverted { object: deployment(), restored: 0, others: vec![] }
        );
    }

    #[test]
    fn revert_removes_added_hook_completely() {
        let container = |lifecycle: Value| {
            let mut object = deployment();
            object["spec"]["template"]["spec"]["containers"][0]["lifecycle"] = lifecycle;
            object
        };
        let added = container(json!({"preStop": {"sleep": {"seconds": 5}}}));
        let edits = between(&deployment(), &added);
        assert_eq!(revert(&edits, &added).object, deployment());
        // The field that was there before stays, as do the fields that others have added beside it.
        let before = container(json!({"postStart": {"sleep": {"seconds": 1}}}));
        let added =
            container(json!({"postStart": {"sleep": {"seconds": 1}}, "preStop": {"sleep": {"seconds": 5}}}));
        assert_eq!(revert(&between(&before, &added), &added).object, before);
        assert_eq!(revert(&edits, &added).object, before);
    }

    #[test]
    fn revert_restores_restart_annotation() {
        let restarted = |at: &str| {
            let mut object = deployment();
            object["spec"]["template"]["metadata"] = json!({"annotations": {RESTARTED_AT: at}});
            object
        };
        let mut bare = deployment();
        bare["spec"]["template"]["metadata"] = json!({});
        let edit = [Edit::of_restarts(&bare)];
        assert_eq!(revert(&edit, &restarted("3")).object, bare);
        assert_eq!(revert(&edit, &bare), Reverted { object: bare.clone(), restored: 0, others: vec![] });
        let edit = [Edit::of_restarts(&restarted("1"))];
        assert_eq!(revert(&edit, &restarted("3")).object, restarted("1"));
        assert_eq!(revert(&edit, &restarted("1")).restored, 0);
    }

    #[test]
    fn revert_keeps_changes_by_others() {
        let edits = between(&deployment(), &with_sidecar());
        let mut live = with_sidecar();
        live["metadata"]["annotations"] = json!({"ours": "no", "theirs": "yes"});
        let pod = &mut live["spec"]["template"]["spec"];
        pod["containers"][0]["image"] = "app:2".into();
        pod["initContainers"].as_array_mut().unwrap().insert(0, json!({"name": "migrate"}));
        let Reverted { object, restored, others } = revert(&edits, &live);
        assert_eq!((restored, others), (2, vec!["metadata.annotations.ours".to_owned()]));
        assert_eq!(object["metadata"]["annotations"], json!({"ours": "no", "theirs": "yes"}));
        assert_eq!(object["spec"]["template"]["spec"]["containers"][0]["image"], "app:2");
        assert_eq!(object["spec"]["template"]["spec"]["initContainers"], json!([{"name": "migrate"}]));
    }

    #[test]
    fn merge_patch_contains_only_differences() {
        let patch = merge_patch(&json!({"a": 1, "b": {"c": [1], "d": 2}}), &json!({"b": {"c": [2], "d": 2}}));
        assert_eq!(patch, Some(json!({"a": null, "b": {"c": [2]}})));
        assert_eq!(merge_patch(&deployment(), &deployment()), None);
    }
}
