//! Sets of fields, as `managedFields` write them (FieldsV1).

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// A set of paths into an object, as a tree. The steps are in their wire form: `f:NAME` for a
/// field, `k:{"KEY":VALUE}` for an element of a keyed list, `v:VALUE` for a member of a set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Fields {
    /// Whether the path that leads here is itself in the set.
    pub(super) here: bool,
    pub(super) below: BTreeMap<String, Fields>,
}

impl Fields {
    /// The set of nothing but the path that leads here.
    pub(super) fn leaf() -> Self {
        Self { here: true, below: BTreeMap::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        !self.here && self.below.is_empty()
    }

    /// Puts a subtree under a step, unless it is empty.
    pub(super) fn put(&mut self, step: String, fields: Fields) {
        if !fields.is_empty() {
            self.below.insert(step, fields);
        }
    }

    /// Reads FieldsV1.
    pub(super) fn from_json(fields: &Value) -> Self {
        fn below(map: &Map<String, Value>) -> Fields {
            let mut fields = Fields { here: map.is_empty() || map.contains_key("."), below: BTreeMap::new() };
            for (step, inner) in map.iter().filter(|(step, _)| *step != ".") {
                fields.below.insert(step.clone(), inner.as_object().map_or_else(Fields::leaf, below));
            }
            fields
        }
        let top = fields.as_object().map(below).unwrap_or_default();
        Fields { here: false, ..top }
    }

    /// Writes FieldsV1.
    pub(super) fn to_json(&self) -> Value {
        let mut map = Map::new();
        if self.here && !self.below.is_empty() {
            map.insert(".".to_owned(), json!({}));
        }
        map.extend(self.below.iter().map(|(step, fields)| (step.clone(), fields.to_json())));
        Value::Object(map)
    }

    /// What is in either set.
    pub(super) fn union(&self, other: &Fields) -> Fields {
        let mut all = self.clone();
        all.here |= other.here;
        for (step, fields) in &other.below {
            let entry = all.below.entry(step.clone()).or_default();
            *entry = entry.union(fields);
        }
        all
    }

    /// What is in this set and not in the other.
    pub(super) fn minus(&self, other: &Fields) -> Fields {
        let mut rest = Fields { here: self.here && !other.here, below: BTreeMap::new() };
        for (step, fields) in &self.below {
            let left = other.below.get(step).map_or_else(|| fields.clone(), |gone| fields.minus(gone));
            rest.put(step.clone(), left);
        }
        rest
    }

    /// What is in both sets.
    pub(super) fn intersection(&self, other: &Fields) -> Fields {
        let mut both = Fields { here: self.here && other.here, below: BTreeMap::new() };
        for (step, fields) in &self.below {
            if let Some(theirs) = other.below.get(step) {
                both.put(step.clone(), fields.intersection(theirs));
            }
        }
        both
    }

    /// All paths of the set, as error messages write them: `.spec.containers[name="app"].image`.
    pub(super) fn paths(&self) -> Vec<String> {
        fn walk(fields: &Fields, path: &str, paths: &mut Vec<String>) {
            if fields.here {
                paths.push(path.to_owned());
            }
            for (step, inner) in &fields.below {
                walk(inner, &format!("{path}{}", in_words(step)), paths);
            }
        }
        let mut paths = Vec::new();
        walk(self, "", &mut paths);
        paths
    }
}

/// A step, as error messages write it.
pub(super) fn in_words(step: &str) -> String {
    match step.split_once(':') {
        Some(("f", name)) => format!(".{name}"),
        Some(("k", keys)) => {
            let keys: Map<String, Value> = serde_json::from_str(keys).unwrap_or_default();
            let keys: Vec<_> = keys.iter().map(|(key, value)| format!("{key}={value}")).collect();
            format!("[{}]", keys.join(","))
        }
        Some(("v", value)) => format!("[={value}]"),
        _ => format!("[{step}]"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fields() -> impl Strategy<Value = Fields> {
        let leaf = any::<bool>().prop_map(|here| Fields { here, below: BTreeMap::new() });
        let tree = leaf.prop_recursive(3, 12, 3, |inner| {
            (any::<bool>(), prop::collection::btree_map("f:[a-c]", inner, 0..3)).prop_map(|(here, map)| {
                let mut fields = Fields { here, below: BTreeMap::new() };
                map.into_iter().for_each(|(step, inner)| fields.put(step, inner));
                fields
            })
        });
        tree.prop_map(|fields| Fields { here: false, ..fields })
    }

    proptest! {
        #[test]
        fn sets_behave_as_sets(a in fields(), b in fields()) {
            prop_assert_eq!(Fields::from_json(&a.to_json()), a.clone());
            prop_assert_eq!(a.union(&b), b.union(&a));
            prop_assert_eq!(a.intersection(&b), b.intersection(&a));
            prop_assert_eq!(a.minus(&b).union(&a.intersection(&b)), a.clone());
            prop_assert!(a.minus(&b).intersection(&b).is_empty());
            prop_assert!(a.minus(&a).is_empty());
        }
    }

    #[test]
    fn paths_read_as_a_real_server_writes_them() {
        let fields = json!({"f:spec": {"f:containers": {"k:{\"name\":\"app\"}": {".": {}, "f:image": {}}}, "f:replicas": {}}});
        assert_eq!(
            Fields::from_json(&fields).paths(),
            [".spec.containers[name=\"app\"]", ".spec.containers[name=\"app\"].image", ".spec.replicas"]
        );
    }
}
