//! A validator for the parts of JSON Schema that the schemas in `docs` use.
#![expect(clippy::unwrap_used, reason = "an invalid schema fails the test")]

use serde_json::Value;

/// Checks `value` against `schema`. An unknown keyword is an error, so no keyword is ignored.
///
/// # Errors
///
/// Returns the place that violates the schema, and the reason.
///
/// # Panics
///
/// If the schema is invalid.
pub fn meets(value: &Value, schema: &Value) -> Result<(), String> {
    checked(value, schema, schema, "$")
}

/// Checks the value at this place against the part of the schema `root` that describes it.
#[expect(clippy::too_many_lines, reason = "an arm for each keyword")]
fn checked(value: &Value, schema: &Value, root: &Value, at: &str) -> Result<(), String> {
    let fail = |what: &str| Err(format!("{at}: {what}"));
    let Some(keywords) = schema.as_object() else {
        return if schema == &Value::Bool(true) { Ok(()) } else { fail("not allowed") };
    };
    let child = |key: &str| format!("{at}.{key}");
    for (keyword, rule) in keywords {
        match keyword.as_str() {
            "$schema" | "$defs" | "title" | "description" | "minItems" | "prefixItems" => {}
            "$ref" => {
                let target = root.pointer(rule.as_str().unwrap().trim_start_matches('#')).unwrap();
                checked(value, target, root, at)?;
            }
            "const" if rule != value => return fail("not the required constant"),
            "enum" if !rule.as_array().unwrap().contains(value) => return fail("not an allowed value"),
            "const" | "enum" => {}
            "type" => {
                let name = match value {
                    Value::Null => "null",
                    Value::Bool(_) => "boolean",
                    Value::Number(n) if n.is_f64() => "number",
                    Value::Number(_) => "integer",
                    Value::String(_) => "string",
                    Value::Array(_) => "array",
                    Value::Object(_) => "object",
                };
                let allowed = |rule: &Value| rule == name || (rule == "number" && name == "integer");
                if !rule.as_array().map_or_else(|| allowed(rule), |types| types.iter().any(allowed)) {
                    return fail(&format!("{name} instead of {rule}"));
                }
            }
            // Null has no size.
            "minimum" if value.as_f64().is_some_and(|v| Some(v) < rule.as_f64()) => return fail("too small"),
            "minimum" => {}
            "required" => {
                for key in rule.as_array().unwrap() {
                    if value.get(key.as_str().unwrap()).is_none() {
                        return fail(&format!("{key} is missing"));
                    }
                }
            }
            "properties" => {
                for (key, rule) in rule.as_object().unwrap() {
                    value.get(key).map_or(Ok(()), |value| checked(value, rule, root, &child(key)))?;
                }
            }
            "propertyNames" => {
                for key in value.as_object().into_iter().flat_map(|object| object.keys()) {
                    checked(&Value::from(key.as_str()), rule, root, &child(key))?;
                }
            }
            "additionalProperties" => {
                let described = |key: &str| keywords.get("properties").is_some_and(|p| p.get(key).is_some());
                for (key, value) in value.as_object().into_iter().flatten().filter(|(key, _)| !described(key))
                {
                    match rule {
                        Value::Bool(false) => return Err(format!("{}: not described", child(key))),
                        rule => checked(value, rule, root, &child(key))?,
                    }
                }
            }
            "items" => {
                let rules = keywords.get("prefixItems").and_then(Value::as_array);
                for (i, item) in value.as_array().into_iter().flatten().enumerate() {
                    let rule = rules.and_then(|rules| rules.get(i)).unwrap_or(rule);
                    checked(item, rule, root, &format!("{at}[{i}]"))?;
                }
            }
            "oneOf" => {
                let met = rule
                    .as_array()
                    .unwrap()
                    .iter()
                    .filter(|rule| checked(value, rule, root, at).is_ok())
                    .count();
                if met != 1 {
                    return fail(&format!("matches {met} alternatives instead of one"));
                }
            }
            other => return fail(&format!("unknown keyword {other}")),
        }
    }
    Ok(())
}
