//! YAML documents that remember the line of each value.

use std::collections::HashMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_saphyr::Spanned;

use super::{Result, ScenarioError};
use rolldrop_manifest::{ManifestError, Manifests};

/// A document as JSON, with the file and line of every path.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Document {
    file: String,
    value: Value,
    places: HashMap<String, String>,
}

impl Document {
    /// Parses one YAML document.
    ///
    /// # Errors
    /// Fails if the text is not YAML.
    pub(crate) fn parse(text: &str, file: &str) -> Result<Self> {
        let tree: Spanned<Tree> = serde_saphyr::from_str(text).map_err(|error| {
            let error = error.without_snippet();
            let line = error.location().map(|at| at.line());
            let (place, why) = unreadable(file, text).unwrap_or_else(|| {
                let place = line.map_or_else(|| file.to_owned(), |line| format!("{file}:{line}"));
                (place, plain(&error.to_string()))
            });
            ScenarioError::Invalid { place, key: "YAML".into(), why }
        })?;
        let mut places = HashMap::new();
        let value = tree.value.flatten(file, tree.referenced.line(), "", &mut places);
        Ok(Self { file: file.to_owned(), value, places })
    }

    /// Creates a document with a single value at this path.
    pub(crate) fn holding(path: &str, value: Value, file: &str) -> Self {
        let nest = |value, step: String| Value::Object([(step, value)].into_iter().collect());
        let steps: Vec<String> = steps(path).collect();
        let value = steps.into_iter().rev().fold(value, nest);
        Self { file: file.to_owned(), value, places: HashMap::new() }
    }

    /// Merges another document into this one, below a path. Mappings present in both are merged; anything else is
    /// replaced.
    pub(crate) fn merge(&mut self, path: &str, other: &Document) {
        let mut at = &mut self.value;
        for step in steps(path) {
            // A value that is not a mapping is replaced.
            if !at.is_object() {
                *at = Value::Null;
            }
            let Some(below) = child(at, &step) else { return };
            at = below;
        }
        join(at, &other.value);
        let places = other.places.iter().filter(|(below, _)| !below.is_empty());
        self.places.extend(places.map(|(below, place)| (format!("{path}.{below}"), place.clone())));
    }

    /// Returns the document as JSON.
    pub(crate) fn value(&self) -> &Value {
        &self.value
    }

    /// Replaces the value at a path. The assignment has the form `load.rate=50`, with or without a leading `spec.`.
    ///
    /// # Errors
    /// Fails if the assignment is not `path=value`, or the path leads through something other than a mapping.
    pub(crate) fn set(&mut self, assignment: &str) -> Result<()> {
        let invalid = |key: &str, why: &str| ScenarioError::Invalid {
            place: "--set".into(),
            key: key.to_owned(),
            why: why.to_owned(),
        };
        let Some((path, text)) = assignment.split_once('=') else {
            return Err(invalid(assignment, "not of the form path=value, such as load.rate=50"));
        };
        let path = match path.split('.').next() {
            Some("spec" | "metadata") => path.to_owned(),
            _ => format!("spec.{path}"),
        };
        let new: Value = serde_saphyr::from_str(text).map_err(|e| {
            let why = unreadable("--set", text).map(|(_, why)| why);
            invalid(&path, &why.unwrap_or_else(|| plain(&e.without_snippet().to_string())))
        })?;
        // --target on the command line is also an assignment.
        let source = if path == "spec.target" { "--target" } else { "--set" };
        let mut at = &mut self.value;
        let ends = path.match_indices(['.', '[']).map(|(end, _)| end).chain([path.len()]);
        for (step, end) in steps(&path).zip(ends) {
            let is_new = at.is_null() || at.as_object().is_some_and(|map| !map.contains_key(&step));
            let why = "each step of the path must be a key in a mapping or an existing index in a list";
            at = child(at, &step).ok_or_else(|| invalid(&path, why))?;
            if is_new {
                self.places.insert(path[..end].to_owned(), source.into());
            }
        }
        *at = new;
        self.places.insert(path, source.into());
        Ok(())
    }

    /// Removes keys without a value from the mapping at `pointer`, and from the mappings in it; such keys mean the
    /// default.
    pub(crate) fn drop_nulls(&mut self, pointer: &str) {
        fn drop_in(value: &mut Value) {
            if let Value::Object(map) = value {
                map.retain(|_, value| !value.is_null());
                map.values_mut().for_each(drop_in);
            }
        }
        if let Some(value) = self.value.pointer_mut(pointer) {
            drop_in(value);
        }
    }

    /// Deserializes the document; errors name the key and its line.
    ///
    /// # Errors
    /// Fails if a key is unknown or missing, or a value does not fit.
    pub(crate) fn read<T: DeserializeOwned>(&self) -> Result<T> {
        serde_path_to_error::deserialize(&self.value)
            .map_err(|error| self.error(&error.path().to_string(), error.inner().to_string()))
    }

    /// Creates an error about the value at a path.
    pub(crate) fn error(&self, key: &str, why: impl Into<String>) -> ScenarioError {
        ScenarioError::Invalid { place: self.place(key), key: key.to_owned(), why: why.into() }
    }

    /// Returns the file and line of the value at a path, or of the nearest enclosing value that has a known place.
    fn place(&self, path: &str) -> String {
        let mut path = path;
        loop {
            if let Some(place) = self.places.get(path) {
                return place.clone();
            }
            match path.rfind(['.', '[']) {
                Some(end) => path = &path[..end],
                None => return self.places.get("").cloned().unwrap_or_else(|| self.file.clone()),
            }
        }
    }
}

fn join(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                join(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from.clone(),
    }
}

/// Returns a child of a mapping (created if missing) or of a list.
fn child<'a>(value: &'a mut Value, step: &str) -> Option<&'a mut Value> {
    if value.is_null() {
        *value = Value::Object(serde_json::Map::new());
    }
    match value {
        Value::Object(map) => Some(map.entry(step).or_insert(Value::Null)),
        Value::Array(items) => items.get_mut(step.parse::<usize>().ok()?),
        _ => None,
    }
}

/// Returns the steps of a path such as `disruptions[0].at` or `disruptions.0.at`.
fn steps(path: &str) -> impl Iterator<Item = String> {
    path.split(['.', '[']).map(|step| step.trim_end_matches(']').to_owned())
}

/// Explains to the author where and why the text is not valid YAML; `None` if it is.
fn unreadable(file: &str, text: &str) -> Option<(String, String)> {
    match Manifests::parse(file, text).err()? {
        ManifestError::Invalid { place, why } => Some((place, why)),
        ManifestError::Template { place, text } => {
            Some((place, format!("{text} belongs to a template: write the value itself")))
        }
    }
}

/// Joins a parser's message into one line.
fn plain(message: &str) -> String {
    message.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
}

/// A YAML value with the location of each child.
enum Tree {
    Scalar(Value),
    Sequence(Vec<Spanned<Tree>>),
    Mapping(Vec<(Spanned<String>, Spanned<Tree>)>),
}

impl Tree {
    fn flatten(self, file: &str, line: u64, path: &str, places: &mut HashMap<String, String>) -> Value {
        places.insert(path.to_owned(), format!("{file}:{line}"));
        match self {
            Tree::Scalar(value) => value,
            Tree::Sequence(items) => items
                .into_iter()
                .enumerate()
                .map(|(index, item)| {
                    item.value.flatten(file, item.referenced.line(), &format!("{path}[{index}]"), places)
                })
                .collect(),
            Tree::Mapping(entries) => Value::Object(
                entries
                    .into_iter()
                    .map(|(key, item)| {
                        let child = match path {
                            "" => key.value.clone(),
                            path => format!("{path}.{}", key.value),
                        };
                        let value = item.value.flatten(file, key.referenced.line(), &child, places);
                        (key.value, value)
                    })
                    .collect(),
            ),
        }
    }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TreeVisitor)
    }
}

struct TreeVisitor;

impl<'de> Visitor<'de> for TreeVisitor {
    type Value = Tree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any YAML value")
    }

    fn visit_bool<E>(self, v: bool) -> Result<Tree, E> {
        Ok(Tree::Scalar(v.into()))
    }

    fn visit_i64<E>(self, v: i64) -> Result<Tree, E> {
        Ok(Tree::Scalar(v.into()))
    }

    fn visit_u64<E>(self, v: u64) -> Result<Tree, E> {
        Ok(Tree::Scalar(v.into()))
    }

    fn visit_f64<E>(self, v: f64) -> Result<Tree, E> {
        Ok(Tree::Scalar(v.into()))
    }

    fn visit_str<E>(self, v: &str) -> Result<Tree, E> {
        Ok(Tree::Scalar(v.into()))
    }

    fn visit_unit<E>(self) -> Result<Tree, E> {
        Ok(Tree::Scalar(Value::Null))
    }

    fn visit_none<E>(self) -> Result<Tree, E> {
        Ok(Tree::Scalar(Value::Null))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Tree, D::Error> {
        Tree::deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Tree, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Tree::Sequence(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Tree, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Tree::Mapping(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Sample {
        name: String,
        list: Vec<Item>,
    }

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Item {
        n: u32,
    }

    fn read(text: &str) -> Result<Sample, String> {
        Document::parse(text, "s.yaml").and_then(|d| d.read()).map_err(|e| e.to_string())
    }

    #[test]
    fn document_deserializes_into_type() {
        let sample = read("name: a\nlist:\n- {n: 1}\n- n: 2\n").unwrap();
        assert_eq!(sample, Sample { name: "a".into(), list: vec![Item { n: 1 }, Item { n: 2 }] });
    }

    #[test]
    fn yaml_error_names_line_and_key() {
        let wrong = read("name: a\nlist:\n- {n: 1}\n- n: x\n").unwrap_err();
        assert!(wrong.starts_with("s.yaml:4: list[1].n: invalid type"), "{wrong}");
        let unknown = read("name: a\nlist:\n- {n: 1}\n- n: 2\n  m: 3\n").unwrap_err();
        assert!(unknown.starts_with("s.yaml:5: list[1].m: unknown field `m`, expected `n`"), "{unknown}");
        let top = read("name: a\nlist: []\nother: 1\n").unwrap_err();
        assert!(top.starts_with("s.yaml:3: other: unknown field"), "{top}");
        let syntax = read("name: a\nlist: [\n").unwrap_err();
        assert_eq!(
            syntax,
            "s.yaml:2: YAML: '[' is not closed: close it, or put a value that begins with '[' in quotes"
        );
        let twice = read("name: a\nlist: []\nname: b\n").unwrap_err();
        assert_eq!(twice, "s.yaml:3: YAML: name is given twice, first on line 1: remove one");
    }

    #[test]
    fn override_sets_document_value() {
        let mut document =
            Document::parse("spec:\n  load: {rate: 1}\n  list: [{at: 1s}]\n", "s.yaml").unwrap();
        document.set("load.rate=50").unwrap();
        document.set("spec.list[0].at=2s").unwrap();
        document.set("new.key=true").unwrap();
        let expected = serde_json::json!({"spec": {
            "load": {"rate": 50}, "list": [{"at": "2s"}], "new": {"key": true}
        }});
        assert_eq!(document.value(), &expected);
        assert!(document.set("load").is_err());
        assert!(document.set("load.rate.x=1").is_err());
        assert!(document.error("spec.load.rate", "no").to_string().starts_with("--set: spec.load.rate: no"));
        document.set("target={service: web}").unwrap();
        assert!(
            document
                .error("spec.target.port", "no")
                .to_string()
                .starts_with("--target: spec.target.port: no")
        );
    }
}
