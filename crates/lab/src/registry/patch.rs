//! The patch formats supported by the Kubernetes API.
//!
//! A server-side apply is merged into the object like a strategic merge patch, because the embedded cluster does not
//! track field ownership. The `json-patch` crate applies JSON patches and merge patches. Strategic merge is implemented
//! here, because no crate supports the merge keys of Kubernetes' lists.

use serde_json::{Map, Value};

use super::{Status, remove};
use crate::schema::{self, FieldType, SchemaField, Structure};
use crate::store::weight;

/// Maximum number of operations in a JSON patch, as in Kubernetes.
const MAX_OPERATIONS: usize = 10_000;
/// Maximum total number of bytes that the `copy` operations in a JSON patch may copy.
const MAX_COPIED_BYTES: usize = 3 * 1024 * 1024;

/// Kind of patch, which depends on the content type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PatchKind {
    /// RFC 6902.
    Json,
    /// RFC 7386.
    Merge,
    /// Kubernetes' own format, which merges some lists by key.
    Strategic,
    /// Server-side apply.
    Apply,
    /// Not a patch, but the complete new object.
    Replacement,
}

impl PatchKind {
    /// Returns the kind for a `Content-Type` without parameters.
    pub(crate) fn from_content_type(content_type: &str) -> Option<Self> {
        match content_type {
            "application/json-patch+json" => Some(Self::Json),
            "application/merge-patch+json" => Some(Self::Merge),
            "application/strategic-merge-patch+json" => Some(Self::Strategic),
            "application/apply-patch+yaml" => Some(Self::Apply),
            _ => None,
        }
    }
}

/// A patch to apply to an object.
#[derive(Clone, Debug)]
pub(crate) struct ObjectPatch {
    /// Format of `body`.
    pub kind: PatchKind,
    /// The patch.
    pub body: Value,
}

impl ObjectPatch {
    /// Applies the patch to `current`, an object with the structure `top`, and returns the result. A server-side apply
    /// is merged like a strategic merge patch, because the lab does not track field ownership.
    ///
    /// # Errors
    ///
    /// 400 for a malformed patch, 422 for a patch that cannot be applied to `current`.
    pub(crate) fn apply(&self, top: &Structure, current: &Value) -> Result<Value, Status> {
        let mut object = current.clone();
        match self.kind {
            PatchKind::Json => apply_operations(&self.body, &mut object)?,
            PatchKind::Replacement => object = self.body.clone(),
            PatchKind::Merge => json_patch::merge(&mut object, &self.body),
            PatchKind::Strategic | PatchKind::Apply => {
                merge_map(Some(top), &mut object, &self.body, "")?;
            }
        }
        Ok(object)
    }
}

fn apply_operations(body: &Value, object: &mut Value) -> Result<(), Status> {
    let patch: json_patch::Patch = serde_json::from_value(body.clone())
        .map_err(|error| Status::bad_request(format!("error decoding patch: {error}")))?;
    if patch.len() > MAX_OPERATIONS {
        let found = patch.len();
        let message =
            format!("The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {found}");
        return Err(Status::plain(413, message));
    }
    let mut copied = 0;
    for operation in patch.0 {
        if let json_patch::PatchOperation::Copy(copy) = &operation {
            copied += object.pointer(copy.from.as_str()).map_or(0, weight);
            if copied > MAX_COPIED_BYTES {
                let message =
                    format!("the copy operations in a JSON patch may copy at most {MAX_COPIED_BYTES} bytes");
                return Err(Status::plain(413, message));
            }
        }
        json_patch::patch(object, std::slice::from_ref(&operation))
            .map_err(|error| Status::unprocessable(&error.to_string()))?;
    }
    Ok(())
}

/// Returns the field `key` of `structure`. The structure is `None` for maps and for values not covered by the schema.
fn field_of<'a>(structure: Option<&'a Structure>, key: &str) -> Option<&'a SchemaField> {
    structure?.fields.get(key)
}

fn structure_of(kind: &FieldType) -> Option<&'static Structure> {
    match kind {
        FieldType::Structure(index) => Some(schema::structure(*index)),
        _ => None,
    }
}

fn merge_map(
    structure: Option<&Structure>,
    current: &mut Value,
    patch: &Value,
    path: &str,
) -> Result<(), Status> {
    let Value::Object(patch) = patch else {
        let what = if path.is_empty() { "the patch" } else { path };
        return Err(Status::bad_request(format!("{what} must be an object")));
    };
    match patch.get("$patch").and_then(Value::as_str) {
        Some("replace") => {
            *current = Value::Object(without_directives(patch));
            return Ok(());
        }
        Some("delete") => {
            *current = Value::Object(Map::new());
            return Ok(());
        }
        _ => {}
    }
    if !current.is_object() {
        *current = Value::Object(Map::new());
    }
    if let Some(kept) = patch.get("$retainKeys") {
        retain_keys(current, kept);
    }
    for (key, gone) in patch {
        if let Some(list) = key.strip_prefix("$deleteFromPrimitiveList/")
            && let (Some(list), Some(gone)) =
                (current.get_mut(list).and_then(Value::as_array_mut), gone.as_array())
        {
            list.retain(|element| !gone.contains(element));
        }
    }
    for (key, value) in patch.iter().filter(|(key, _)| !key.starts_with('$')) {
        let here = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        let field = field_of(structure, key);
        match value {
            Value::Null => remove(current, key),
            Value::Object(_) => {
                merge_map(
                    field.and_then(|field| structure_of(&field.kind)),
                    &mut current[key],
                    value,
                    &here,
                )?;
            }
            Value::Array(elements) => merge_list(field, &mut current[key], elements, &here)?,
            _ => current[key] = value.clone(),
        }
    }
    for (key, order) in patch {
        if let Some(list) = key.strip_prefix("$setElementOrder/")
            && let (Some(elements), Some(order)) = (current.get_mut(list), order.as_array())
        {
            let merge_key = field_of(structure, list).and_then(|field| field.merge_key).unwrap_or_default();
            set_order(elements, order, merge_key);
        }
    }
    Ok(())
}

fn merge_list(
    field: Option<&SchemaField>,
    current: &mut Value,
    patch: &[Value],
    path: &str,
) -> Result<(), Status> {
    let is_replacement = |element: &Value| {
        element["$patch"] == "replace" && element.as_object().is_some_and(|map| map.len() == 1)
    };
    let replaces = patch.iter().any(is_replacement);
    let united = field.filter(|_| !replaces).and_then(|field| Some((field, field.merge_key?)));
    let Some((field, key)) = united else {
        *current = patch.iter().filter(|element| !is_replacement(element)).cloned().collect();
        return Ok(());
    };
    let mut elements = current.as_array().cloned().unwrap_or_default();
    if key.is_empty() {
        for element in patch {
            if !elements.contains(element) {
                elements.push(element.clone());
            }
        }
        *current = Value::Array(elements);
        return Ok(());
    }
    let structure = match &field.kind {
        FieldType::List(element) => structure_of(element),
        _ => None,
    };
    for change in patch {
        let Some(wanted) = change.get(key) else {
            let message = format!("map: {change} does not contain declared merge key: {key}");
            return Err(Status::bad_request(message));
        };
        let position = elements.iter().position(|element| element.get(key) == Some(wanted));
        match (position, change["$patch"] == "delete") {
            (Some(at), true) => {
                elements.remove(at);
            }
            (None, true) => {}
            (Some(at), false) => merge_map(structure, &mut elements[at], change, path)?,
            (None, false) => {
                let mut new = Value::Object(Map::new());
                merge_map(structure, &mut new, change, path)?;
                elements.push(new);
            }
        }
    }
    *current = Value::Array(elements);
    Ok(())
}

/// Rearranges the elements listed in `order` into that order. Every other element stays ahead of the elements that
/// currently follow it.
fn set_order(elements: &mut Value, order: &[Value], merge_key: &str) {
    let Some(list) = elements.as_array_mut() else { return };
    let key =
        |element: &Value| if merge_key.is_empty() { element.clone() } else { element[merge_key].clone() };
    let present: Vec<_> = list.iter().map(key).collect();
    let wanted: Vec<_> = order.iter().map(key).filter(|key| present.contains(key)).collect();
    let mut left: Vec<_> = list.drain(..).map(Some).collect();
    for place in interleave(&present, &wanted) {
        let at = (0..left.len()).find(|at| left[*at].is_some() && present[*at] == place);
        if let Some(element) = at.and_then(|at| left[at].take()) {
            list.push(element);
        }
    }
    list.extend(left.into_iter().flatten());
}

/// Merges two lists without duplicates. Elements of `wanted` keep their order, and elements that are only in `present`
/// come before the elements that follow them there.
fn interleave<T: PartialEq + Clone>(present: &[T], wanted: &[T]) -> Vec<T> {
    let mut all: Vec<T> = Vec::with_capacity(present.len() + wanted.len());
    let mut rest = present.iter().peekable();
    for next in wanted {
        while let Some(own) = rest.next_if(|own| !wanted.contains(own) || all.contains(own)) {
            if !all.contains(own) {
                all.push(own.clone());
            }
        }
        if !all.contains(next) {
            all.push(next.clone());
        }
    }
    for own in rest {
        if !all.contains(own) {
            all.push(own.clone());
        }
    }
    all
}

fn without_directives(patch: &Map<String, Value>) -> Map<String, Value> {
    patch
        .iter()
        .filter(|(key, _)| !key.starts_with('$'))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

fn retain_keys(object: &mut Value, keys: &Value) {
    if let (Some(map), Some(keys)) = (object.as_object_mut(), keys.as_array()) {
        map.retain(|key, _| keys.iter().any(|kept| kept == key.as_str()));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::resource::Resource;

    fn patched(kind: PatchKind, current: Value, body: Value) -> Value {
        ObjectPatch { kind, body }.apply(schema::of(Resource::Deployments), &current).unwrap()
    }

    #[test]
    fn strategic_patch_merges_lists_by_key() {
        let template =
            |containers: Value| json!({"spec": {"template": {"spec": {"containers": containers}}}});
        let current = template(json!([
            {"name": "app", "image": "a:1", "env": [{"name": "A", "value": "1"}], "args": ["x", "y"]},
            {"name": "side", "image": "s:1"},
        ]));
        let body = template(json!([
            {"name": "app", "image": "a:2", "env": [{"name": "B", "value": "2"}], "args": ["z"]},
            {"name": "side", "$patch": "delete"},
            {"name": "new", "image": "n:1"},
        ]));
        let expected = template(json!([
            {
                "name": "app", "image": "a:2",
                "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
                "args": ["z"],
            },
            {"name": "new", "image": "n:1"},
        ]));
        assert_eq!(patched(PatchKind::Strategic, current, body), expected);
    }

    #[test]
    fn strategic_patch_applies_element_order() {
        let metadata = |finalizers: Value| json!({"metadata": {"finalizers": finalizers}});
        let body = json!({"metadata": {
            "finalizers": ["d"],
            "$deleteFromPrimitiveList/finalizers": ["a"],
            "$setElementOrder/finalizers": ["d", "c"],
        }});
        let patched_list = patched(PatchKind::Strategic, metadata(json!(["a", "b", "c"])), body);
        assert_eq!(patched_list, metadata(json!(["b", "d", "c"])));
        assert_eq!(interleave(&["a", "x", "b"], &["b", "a"]), ["b", "a", "x"]);
        assert_eq!(interleave(&["x", "a", "y", "b", "z"], &["a", "n", "b"]), ["x", "a", "y", "n", "b", "z"]);
    }

    #[test]
    fn strategic_patch_obeys_directives() {
        let current = json!({"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}, "a": {"b": 1}});
        let body = json!({"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}, "a": {"$patch": "replace", "c": 2}});
        let expected = json!({"spec": {"strategy": {"type": "Recreate"}}, "a": {"c": 2}});
        assert_eq!(patched(PatchKind::Strategic, current, body), expected);
    }

    #[test]
    fn strategic_patch_rejects_element_without_merge_key() {
        let patch = ObjectPatch {
            kind: PatchKind::Strategic,
            body: json!({"spec": {"containers": [{"image": "x"}]}}),
        };
        assert_eq!(patch.apply(schema::of(Resource::Pods), &json!({})).unwrap_err().code(), 400);
    }

    #[test]
    fn json_patch_is_atomic() {
        let body =
            json!([{"op": "test", "path": "/a", "value": 1}, {"op": "replace", "path": "/a", "value": 2}]);
        assert_eq!(patched(PatchKind::Json, json!({"a": 1}), body.clone()), json!({"a": 2}));
        let patch = ObjectPatch { kind: PatchKind::Json, body };
        assert_eq!(patch.apply(schema::of(Resource::Pods), &json!({"a": 5})).unwrap_err().code(), 422);
    }

    #[test]
    fn json_patch_size_is_limited() {
        let mut operations = vec![json!({"op": "add", "path": "/a", "value": {"b": "x".repeat(1000)}})];
        for n in 0..40 {
            operations.push(json!({"op": "copy", "from": "/a", "path": format!("/a/{n}")}));
        }
        let patch = ObjectPatch { kind: PatchKind::Json, body: json!(operations) };
        assert_eq!(
            patch.apply(schema::of(Resource::Pods), &json!({})).map_err(|status| status.code()).err(),
            Some(413)
        );
        let many = vec![json!({"op": "add", "path": "/a", "value": 1}); MAX_OPERATIONS + 1];
        let patch = ObjectPatch { kind: PatchKind::Json, body: json!(many) };
        assert_eq!(
            patch.apply(schema::of(Resource::Pods), &json!({})).map_err(|status| status.code()).err(),
            Some(413)
        );
    }

    fn json_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![any::<i32>().prop_map(Value::from), "[a-c]{1,2}".prop_map(Value::from)];
        leaf.prop_recursive(3, 16, 4, |inner| {
            prop::collection::btree_map("[a-d]", inner, 0..4).prop_map(|map| json!(map))
        })
    }

    proptest! {
        #[test]
        fn strategic_patch_without_lists_equals_merge_patch(
            current in prop::collection::btree_map("[a-d]", json_value(), 0..4),
            body in prop::collection::btree_map("[a-d]", json_value(), 0..4),
        ) {
            let (current, body) = (json!(current), json!(body));
            prop_assert_eq!(
                patched(PatchKind::Strategic, current.clone(), body.clone()),
                patched(PatchKind::Merge, current, body)
            );
        }

        #[test]
        fn merge_patch_is_idempotent(
            current in prop::collection::btree_map("[a-d]", json_value(), 0..4),
            body in prop::collection::btree_map("[a-d]", json_value(), 0..4),
        ) {
            let (current, body) = (json!(current), json!(body));
            let once = patched(PatchKind::Strategic, current, body.clone());
            prop_assert_eq!(patched(PatchKind::Strategic, once.clone(), body), once);
        }
    }
}
