//! The patches of the Kubernetes API.

use serde_json::{Map, Value};

use super::{Resource, Status};

/// The kinds of patch, by their content type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchKind {
    /// RFC 6902.
    Json,
    /// RFC 7386.
    Merge,
    /// Kubernetes' own: lists of named things merge by key.
    Strategic,
    /// Server-side apply, without the bookkeeping of who owns which field: what is applied is
    /// merged like a strategic patch, and creates what does not exist.
    Apply,
}

impl PatchKind {
    /// The kind for a `Content-Type`, without its parameters.
    pub fn from_content_type(content_type: &str) -> Option<Self> {
        match content_type {
            "application/json-patch+json" => Some(Self::Json),
            "application/merge-patch+json" => Some(Self::Merge),
            "application/strategic-merge-patch+json" => Some(Self::Strategic),
            "application/apply-patch+yaml" => Some(Self::Apply),
            _ => None,
        }
    }
}

/// A patch to be applied.
#[derive(Clone, Debug)]
pub struct Patch {
    /// How to read `body`.
    pub kind: PatchKind,
    /// The patch.
    pub body: Value,
}

impl Patch {
    /// The object that this patch makes of `current`.
    ///
    /// # Errors
    ///
    /// 400 for a patch that is wrong in itself, 422 for one that does not fit `current`.
    pub fn apply(&self, resource: Resource, current: &Value) -> Result<Value, Status> {
        let mut object = current.clone();
        match self.kind {
            PatchKind::Json => {
                let patch: json_patch::Patch = serde_json::from_value(self.body.clone())
                    .map_err(|error| Status::bad_request(format!("invalid JSON patch: {error}")))?;
                json_patch::patch(&mut object, &patch).map_err(|error| {
                    Status::unprocessable(resource, format!("the patch does not apply: {error}"))
                })?;
            }
            PatchKind::Merge => json_patch::merge(&mut object, &self.body),
            PatchKind::Strategic | PatchKind::Apply => merge_map(&mut object, &self.body, "")?,
        }
        Ok(object)
    }

    /// What the patch creates where there is nothing: a server-side apply alone does.
    pub(super) fn as_new_object(&self, name: &str) -> Option<Value> {
        if self.kind != PatchKind::Apply || !self.body.is_object() {
            return None;
        }
        let mut object = self.body.clone();
        object["metadata"]["name"] = Value::from(name);
        Some(object)
    }
}

/// By which keys the elements of a list are matched, for the lists that merge: `patchMergeKey`
/// in Kubernetes' types. All other lists are replaced.
fn merge_keys(list: &str) -> &'static [&'static str] {
    match list {
        "containers" | "initContainers" | "ephemeralContainers" | "volumes" | "env" | "imagePullSecrets" => {
            &["name"]
        }
        // A container's ports have a containerPort, a Service's a port.
        "ports" => &["containerPort", "port"],
        "volumeMounts" => &["mountPath"],
        "conditions" => &["type"],
        "ownerReferences" => &["uid"],
        "podIPs" | "hostIPs" => &["ip"],
        "hostAliases" => &["ip"],
        "topologySpreadConstraints" => &["topologyKey"],
        _ => &[],
    }
}

/// Lists of plain values that are united rather than replaced.
fn is_set(list: &str) -> bool {
    list == "finalizers"
}

fn merge_map(current: &mut Value, patch: &Value, path: &str) -> Result<(), Status> {
    let Value::Object(patch) = patch else {
        return Err(Status::bad_request(format!("the patch must be an object at {path:?}")));
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
    for (key, value) in patch {
        if let Some(list) = key.strip_prefix("$deleteFromPrimitiveList/") {
            delete_from_list(&mut current[list], value);
            continue;
        }
        // $setElementOrder and $retainKeys say how to arrange what the patch holds; the merge
        // keeps the present order, and for maps with retained keys removes the others.
        if key == "$retainKeys" {
            retain_keys(current, value);
            continue;
        }
        if key.starts_with('$') {
            continue;
        }
        let here = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        match value {
            Value::Null => super::remove(current, key),
            Value::Object(_) => merge_map(&mut current[key], value, &here)?,
            Value::Array(elements) => merge_list(&mut current[key], key, elements, &here)?,
            _ => current[key] = value.clone(),
        }
    }
    Ok(())
}

fn merge_list(current: &mut Value, name: &str, patch: &[Value], path: &str) -> Result<(), Status> {
    let replaces = patch.iter().any(|element| {
        element["$patch"] == "replace" && element.as_object().is_some_and(|map| map.len() == 1)
    });
    let keys = merge_keys(name);
    let key = keys.iter().find(|key| patch.iter().all(|element| replaces || element.get(**key).is_some()));
    let plain = patch.iter().filter(|element| element.get("$patch").is_none()).cloned();
    if is_set(name) && !replaces {
        let mut all = current.as_array().cloned().unwrap_or_default();
        all.extend(patch.iter().filter(|element| !all.contains(element)).cloned().collect::<Vec<_>>());
        *current = Value::Array(all);
        return Ok(());
    }
    let (Some(key), false) = (key, replaces) else {
        if !keys.is_empty() && !replaces {
            let message = format!("{path}: every element needs its merge key {:?}", keys[0]);
            return Err(Status::bad_request(message));
        }
        *current = Value::Array(plain.collect());
        return Ok(());
    };
    let mut elements = current.as_array().cloned().unwrap_or_default();
    for change in patch {
        let position = elements.iter().position(|element| element.get(*key) == change.get(*key));
        match (position, change["$patch"] == "delete") {
            (Some(at), true) => {
                elements.remove(at);
            }
            (None, true) => {}
            (Some(at), false) => merge_map(&mut elements[at], change, path)?,
            (None, false) => {
                let mut new = Value::Object(Map::new());
                merge_map(&mut new, change, path)?;
                elements.push(new);
            }
        }
    }
    *current = Value::Array(elements);
    Ok(())
}

fn without_directives(patch: &Map<String, Value>) -> Map<String, Value> {
    patch
        .iter()
        .filter(|(key, _)| !key.starts_with('$'))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

fn delete_from_list(list: &mut Value, gone: &Value) {
    if let (Some(list), Some(gone)) = (list.as_array_mut(), gone.as_array()) {
        list.retain(|element| !gone.contains(element));
    }
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

    fn patched(kind: PatchKind, current: Value, body: Value) -> Value {
        Patch { kind, body }.apply(Resource::Deployments, &current).unwrap()
    }

    #[test]
    fn strategic_patches_merge_lists_by_key() {
        let current = json!({"spec": {"containers": [
            {"name": "app", "image": "a:1", "env": [{"name": "A", "value": "1"}], "args": ["x", "y"]},
            {"name": "side", "image": "s:1"},
        ]}});
        let body = json!({"spec": {"containers": [
            {"name": "app", "image": "a:2", "env": [{"name": "B", "value": "2"}], "args": ["z"]},
            {"name": "side", "$patch": "delete"},
            {"name": "new", "image": "n:1"},
        ]}});
        let expected = json!({"spec": {"containers": [
            {
                "name": "app", "image": "a:2",
                "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
                "args": ["z"],
            },
            {"name": "new", "image": "n:1"},
        ]}});
        assert_eq!(patched(PatchKind::Strategic, current, body), expected);
    }

    #[test]
    fn strategic_patches_obey_directives() {
        let current = json!({"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}, "a": {"b": 1}});
        let body = json!({"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}, "a": {"$patch": "replace", "c": 2}});
        let expected = json!({"spec": {"strategy": {"type": "Recreate"}}, "a": {"c": 2}});
        assert_eq!(patched(PatchKind::Strategic, current, body), expected);
    }

    #[test]
    fn a_list_element_without_its_key_is_refused() {
        let patch = Patch { kind: PatchKind::Strategic, body: json!({"containers": [{"image": "x"}]}) };
        assert_eq!(patch.apply(Resource::Pods, &json!({})).unwrap_err().code(), 400);
    }

    #[test]
    fn json_patches_apply_in_order_or_not_at_all() {
        let body =
            json!([{"op": "test", "path": "/a", "value": 1}, {"op": "replace", "path": "/a", "value": 2}]);
        assert_eq!(patched(PatchKind::Json, json!({"a": 1}), body.clone()), json!({"a": 2}));
        let patch = Patch { kind: PatchKind::Json, body };
        assert_eq!(patch.apply(Resource::Pods, &json!({"a": 5})).unwrap_err().code(), 422);
    }

    fn json_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![any::<i32>().prop_map(Value::from), "[a-c]{1,2}".prop_map(Value::from)];
        leaf.prop_recursive(3, 16, 4, |inner| {
            prop::collection::btree_map("[a-d]", inner, 0..4).prop_map(|map| json!(map))
        })
    }

    proptest! {
        #[test]
        fn without_lists_a_strategic_patch_is_a_merge_patch(
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
        fn patching_twice_is_patching_once(
            current in prop::collection::btree_map("[a-d]", json_value(), 0..4),
            body in prop::collection::btree_map("[a-d]", json_value(), 0..4),
        ) {
            let (current, body) = (json!(current), json!(body));
            let once = patched(PatchKind::Strategic, current, body.clone());
            prop_assert_eq!(patched(PatchKind::Strategic, once.clone(), body), once);
        }
    }
}
