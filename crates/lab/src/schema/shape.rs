//! Checks objects against the schema: wrong types, unknown fields, and values that a typed client would drop.

use base64::Engine as _;
use jiff::Timestamp;
use serde_json::{Map, Value};

use super::{FieldType, SchemaField, Structure, structure};
use crate::resource_quantity;
use crate::value::is_empty;

/// Rejects objects with a field of the wrong type.
///
/// # Errors
///
/// The message that a Go program prints when it decodes such an object.
pub(crate) fn check(top: &Structure, object: &Value) -> Result<(), String> {
    match object {
        Value::Object(map) => check_fields(top, map, ""),
        other => Err(format!("json: cannot unmarshal {} into Go value of type v1.{}", word(other), top.name)),
    }
}

fn check_fields(of: &Structure, map: &Map<String, Value>, path: &str) -> Result<(), String> {
    for (name, value) in map {
        if let Some(field) = of.fields.get(name.as_str()) {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            check_kind(&field.kind, value, of.name, &path)?;
        }
    }
    Ok(())
}

fn check_kind(kind: &FieldType, value: &Value, holder: &str, path: &str) -> Result<(), String> {
    let wrong = || {
        let found = match (kind, value) {
            (FieldType::Integer { .. }, Value::Number(number)) => format!("number {number}"),
            _ => word(value).to_owned(),
        };
        Err(format!(
            "json: cannot unmarshal {found} into Go struct field {holder}.{path} of type {}",
            go_type(kind)
        ))
    };
    match (kind, value) {
        (FieldType::Any, _) | (_, Value::Null) => Ok(()),
        (FieldType::String, Value::String(_)) | (FieldType::Bool, Value::Bool(_)) => Ok(()),
        (FieldType::Integer { bits }, Value::Number(number)) => match number.as_i64() {
            Some(number) if *bits == 64 || i32::try_from(number).is_ok() => Ok(()),
            _ => wrong(),
        },
        (FieldType::IntOrString, Value::String(_)) => Ok(()),
        (FieldType::IntOrString, Value::Number(number))
            if number.as_i64().is_some_and(|n| i32::try_from(n).is_ok()) =>
        {
            Ok(())
        }
        (FieldType::Quantity, Value::Number(_)) => Ok(()),
        (FieldType::Quantity, Value::String(text)) if resource_quantity::parse(text).is_some() => Ok(()),
        (FieldType::Quantity, Value::String(_)) => {
            Err("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
                .to_owned())
        }
        (FieldType::Time | FieldType::MicroTime, Value::String(text))
            if text.parse::<Timestamp>().is_ok() =>
        {
            Ok(())
        }
        (FieldType::Time | FieldType::MicroTime, Value::String(text)) => {
            let fraction = if *kind == FieldType::MicroTime { ".000000" } else { "" };
            Err(format!(
                "parsing time {text:?} as \"2006-01-02T15:04:05{fraction}Z07:00\": cannot parse {text:?} as \"2006\""
            ))
        }
        (FieldType::Bytes, Value::String(text)) => {
            let decoded = base64::engine::general_purpose::STANDARD.decode(text);
            decoded.map(|_| ()).map_err(|error| format!("illegal base64 data in {path}: {error}"))
        }
        (FieldType::Structure(index), Value::Object(map)) => check_fields(structure(*index), map, path),
        (FieldType::List(element), Value::Array(list)) => {
            list.iter().try_for_each(|value| check_kind(element, value, holder, path))
        }
        (FieldType::Map(element), Value::Object(map)) => map
            .iter()
            .try_for_each(|(key, value)| check_kind(element, value, holder, &format!("{path}.{key}"))),
        _ => wrong(),
    }
}

fn word(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn go_type(kind: &FieldType) -> String {
    match kind {
        FieldType::String => "string".to_owned(),
        FieldType::Bool => "bool".to_owned(),
        FieldType::Integer { bits } => format!("int{bits}"),
        FieldType::Quantity => "resource.Quantity".to_owned(),
        FieldType::IntOrString => "intstr.IntOrString".to_owned(),
        FieldType::Time => "v1.Time".to_owned(),
        FieldType::MicroTime => "v1.MicroTime".to_owned(),
        FieldType::Bytes => "[]uint8".to_owned(),
        FieldType::Any => "interface {}".to_owned(),
        FieldType::Structure(index) => format!("v1.{}", structure(*index).name),
        FieldType::List(element) => format!("[]{}", go_type(element)),
        FieldType::Map(element) => format!("map[string]{}", go_type(element)),
    }
}

/// Returns the paths of all fields in an object that Kubernetes does not know.
pub(crate) fn unknown_fields(top: &Structure, object: &Value) -> Vec<String> {
    let mut found = Vec::new();
    find_unknown(top, object, "", &mut found);
    found
}

fn find_unknown(of: &Structure, object: &Value, path: &str, found: &mut Vec<String>) {
    for (name, value) in object.as_object().into_iter().flatten() {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        match of.fields.get(name.as_str()) {
            Some(field) => each_structure(&field.kind, value, &path, &mut |of, object, path| {
                find_unknown(of, object, path, found);
            }),
            None => found.push(path),
        }
    }
}

/// Calls `visit` for each object in a field's value that has a structure: the value itself, or the elements of a list or
/// map. The path of a list element ends in its index, and the path of a map element in its key.
pub(crate) fn each_structure(
    kind: &FieldType,
    value: &Value,
    path: &str,
    visit: &mut dyn FnMut(&'static Structure, &Value, &str),
) {
    match (kind, value) {
        (FieldType::Structure(index), Value::Object(_)) => visit(structure(*index), value, path),
        (FieldType::List(element), Value::Array(list)) => {
            for (number, value) in list.iter().enumerate() {
                each_structure(element, value, &format!("{path}[{number}]"), visit);
            }
        }
        (FieldType::Map(element), Value::Object(map)) => {
            for (key, value) in map {
                each_structure(element, value, &format!("{path}.{key}"), visit);
            }
        }
        _ => {}
    }
}

/// Removes everything from an object that a typed program would drop in a read-write cycle: unknown fields, nulls, and
/// insignificant empty or zero values.
pub(crate) fn prune(top: &Structure, object: &mut Value) {
    if let Some(map) = object.as_object_mut() {
        prune_fields(top, map);
    }
}

fn prune_fields(of: &Structure, map: &mut Map<String, Value>) {
    map.retain(|name, value| {
        let Some(field) = of.fields.get(name.as_str()) else { return false };
        prune_kind(&field.kind, value);
        stays(field, value)
    });
    for (name, field) in of.fields.iter().filter(|(_, field)| field.shows_null) {
        if !map.contains_key(*name) {
            map.insert((*name).to_owned(), Value::Null);
        }
        debug_assert!(matches!(field.kind, FieldType::Time | FieldType::MicroTime));
    }
}

fn prune_kind(kind: &FieldType, value: &mut Value) {
    match (kind, value) {
        (FieldType::Structure(index), Value::Object(map)) => prune_fields(structure(*index), map),
        (FieldType::List(element), Value::Array(list)) => {
            list.iter_mut().for_each(|value| prune_kind(element, value));
        }
        (FieldType::Map(element), Value::Object(map)) => {
            map.values_mut().for_each(|value| prune_kind(element, value));
        }
        _ => {}
    }
}

/// Returns true if a typed program would write the field when it has this value.
pub(crate) fn stays(field: &SchemaField, value: &Value) -> bool {
    match value {
        Value::Null => field.shows_null,
        value => !field.omits_zero || !is_empty(value),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::of;
    use super::*;
    use crate::resource::Resource;

    fn complaint(spec: Value) -> String {
        check(of(Resource::Deployments), &json!({"spec": spec})).unwrap_err()
    }

    #[test]
    fn type_errors_match_real_server() {
        assert_eq!(
            complaint(json!({"replicas": "two"})),
            "json: cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32"
        );
        assert_eq!(
            complaint(json!({"replicas": 1.5})),
            "json: cannot unmarshal number 1.5 into Go struct field DeploymentSpec.spec.replicas of type int32"
        );
        assert_eq!(
            complaint(json!({"template": {"spec": {"containers": {"name": "a"}}}})),
            "json: cannot unmarshal object into Go struct field PodSpec.spec.template.spec.containers of type []v1.Container"
        );
        let limits =
            json!({"template": {"spec": {"containers": [{"resources": {"limits": {"cpu": "much"}}}]}}});
        assert!(complaint(limits).starts_with("quantities must match"));
        assert!(complaint(json!({"replicas": 3_000_000_000_u32})).contains("int32"));
    }

    #[test]
    fn unknown_fields_include_nested_ones() {
        let object = json!({
            "spec": {
                "replicaz": 1,
                "selector": {"matchLabels": {"anything": "goes"}},
                "template": {"spec": {"containers": [{"name": "a"}, {"imago": null}]}},
            },
        });
        assert_eq!(
            unknown_fields(of(Resource::Deployments), &object),
            ["spec.replicaz", "spec.template.spec.containers[1].imago"]
        );
    }

    #[test]
    fn prune_removes_empty_optional_fields() {
        let mut pod = json!({
            "metadata": {"name": "a", "creationTimestamp": null, "labels": {}, "nonsense": 1},
            "spec": {
                "hostNetwork": false,
                "automountServiceAccountToken": false,
                "nodeName": "",
                "containers": [{"name": "a", "args": [], "resources": {}, "env": [{"name": "A", "value": ""}]}],
                "volumes": [{"name": "v", "emptyDir": {}}],
            },
            "status": {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": null}]},
        });
        prune(of(Resource::Pods), &mut pod);
        let expected = json!({
            "metadata": {"name": "a"},
            "spec": {
                "automountServiceAccountToken": false,
                "containers": [{"name": "a", "resources": {}, "env": [{"name": "A"}]}],
                "volumes": [{"name": "v", "emptyDir": {}}],
            },
            "status": {
                "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": null, "lastProbeTime": null}],
            },
        });
        assert_eq!(pod, expected);
    }

    #[test]
    fn recorded_objects_pass_schema_unchanged() {
        for (resource, file) in [
            (Resource::Deployments, "deployment-get"),
            (Resource::Services, "service-get"),
            (Resource::PodDisruptionBudgets, "pdb-get"),
            (Resource::Endpoints, "endpoints-get"),
            (Resource::Pods, "pod-list"),
            (Resource::ReplicaSets, "replicaset-list"),
            (Resource::EndpointSlices, "endpointslice-list"),
            (Resource::Nodes, "node-list"),
            (Resource::Events, "event-list"),
        ] {
            let path = format!("{}/../../tests/reference/api/{file}.json", env!("CARGO_MANIFEST_DIR"));
            let golden: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
            let answer = &golden["response"];
            let objects = answer["items"].as_array().cloned().unwrap_or_else(|| vec![answer.clone()]);
            assert!(!objects.is_empty());
            for object in objects {
                assert_eq!(check(of(resource), &object), Ok(()), "{file}");
                assert_eq!(unknown_fields(of(resource), &object), Vec::<String>::new(), "{file}");
                let mut pruned = object.clone();
                prune(of(resource), &mut pruned);
                assert_eq!(pruned, object, "{file}");
            }
        }
    }
}
