//! `--load-resources`: resource quantities by name.

use serde_json::{Map, Value};

/// Parses quantities such as `cpu=1,memory=256Mi`, as a value of a scenario.
pub(super) fn load_resources(text: &str) -> Result<Value, &'static str> {
    let one = |pair: &str| {
        let (name, amount) = pair.split_once('=')?;
        (!name.is_empty() && !amount.is_empty()).then(|| (name.to_owned(), amount.into()))
    };
    let all: Option<Map<String, Value>> = text.split(',').map(one).collect();
    all.map(Value::Object).ok_or("expected amounts, such as cpu=1,memory=256Mi")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_are_amounts_by_name() {
        let resources = load_resources("cpu=1,memory=256Mi").unwrap();
        assert_eq!(resources.to_string(), r#"{"cpu":"1","memory":"256Mi"}"#);
        for wrong in ["", "cpu", "cpu=", "=1", "cpu=1,"] {
            assert!(load_resources(wrong).is_err(), "{wrong}");
        }
    }
}
