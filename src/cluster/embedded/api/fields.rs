//! What becomes of fields that are unknown or given twice: `fieldValidation`.

use http::{HeaderValue, header};
use serde_json::{Value, json};

use super::super::registry::{Patch, PatchKind};
use super::super::schema::{self, Structure};
use super::super::status::{FieldError, Status};
use super::respond::Answer;
use super::route::Query;

/// What a client wants to become of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FieldValidation {
    /// Nothing is said of them.
    Ignore,
    /// A warning each.
    Warn,
    /// The request is refused.
    Strict,
}

impl FieldValidation {
    /// What the query asks for; `options` is the kind of options that it stands for.
    pub(super) fn of(query: &Query, options: &str) -> Result<Self, Status> {
        match query.get("fieldValidation") {
            "" | "Warn" => Ok(Self::Warn),
            "Ignore" => Ok(Self::Ignore),
            "Strict" => Ok(Self::Strict),
            other => {
                let why = "supported values: \"\", \"Ignore\", \"Strict\", \"Warn\"";
                let error = FieldError::unsupported("fieldValidation", &json!(other), why);
                Err(Status::invalid_options(options, &[error]))
            }
        }
    }

    /// Judges an object of the kind `top` as it was sent; `duplicates` says in words what is given twice.
    pub(super) fn judge_object(
        self,
        top: &Structure,
        object: &Value,
        duplicates: &[String],
    ) -> Result<Warnings, Status> {
        let kind = top.name;
        let wrong = duplicates.iter().cloned().chain(unknown(top, object)).collect();
        self.judge(wrong, |list| {
            let why = format!("strict decoding error: {list}");
            Status::bad_request(format!("{kind} in version \"v1\" cannot be handled as a {kind}: {why}"))
        })
    }

    /// Judges what a patch has made of an object, before what is unknown is dropped.
    pub(super) fn judge_patched(
        self,
        top: &Structure,
        patch: &Patch,
        patched: &Value,
        duplicates: &[String],
    ) -> Result<Warnings, Status> {
        let wrong = duplicates.iter().cloned().chain(unknown(top, patched)).collect();
        self.judge(wrong, |list| {
            let shown =
                if patch.kind == PatchKind::Strategic { in_go(&patch.body) } else { patched.to_string() };
            Status::invalid_patch(&shown, &format!("strict decoding error: {list}"))
        })
    }

    /// Judges the configuration of a server-side apply. What is unknown in it is refused in any case.
    pub(super) fn judge_applied(self, duplicates: Vec<String>) -> Result<Warnings, Status> {
        self.judge(duplicates, |list| Status::bad_request(format!("error strict decoding YAML: {list}")))
    }

    fn judge(self, wrong: Vec<String>, refused: impl FnOnce(&str) -> Status) -> Result<Warnings, Status> {
        match self {
            Self::Ignore => Ok(Warnings::default()),
            Self::Strict if !wrong.is_empty() => Err(refused(&wrong.join(", "))),
            Self::Warn | Self::Strict => Ok(Warnings(wrong)),
        }
    }
}

/// What a client is warned of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Warnings(Vec<String>);

impl Warnings {
    /// Adds them to an answer.
    pub(super) fn add_to(self, mut answer: Answer) -> Answer {
        for text in self.0 {
            let printable = text.replace(|c: char| c.is_control(), " ");
            let quoted = printable.replace('\\', "\\\\").replace('"', "\\\"");
            if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{quoted}\"")) {
                answer.headers_mut().append(header::WARNING, value);
            }
        }
        answer
    }
}

fn unknown(top: &Structure, object: &Value) -> impl Iterator<Item = String> {
    let fields = schema::unknown_fields(top, object).into_iter();
    fields.map(|field| format!("unknown field \"{field}\""))
}

/// A value as Go prints it, which is how a strategic patch is shown.
fn in_go(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(list) => format!("[{}]", list.iter().map(in_go).collect::<Vec<_>>().join(" ")),
        Value::Object(map) => {
            let entries: Vec<_> = map.iter().map(|(key, value)| format!("{key}:{}", in_go(value))).collect();
            format!("map[{}]", entries.join(" "))
        }
        Value::Bool(_) | Value::Number(_) => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_strategic_patch_is_shown_as_go_prints_it() {
        let patch = json!({"spec": {"replicaz": 3, "on": true, "none": null, "list": ["a", {"b": 1.5}]}});
        assert_eq!(in_go(&patch), "map[spec:map[list:[a map[b:1.5]] none:<nil> on:true replicaz:3]]");
    }
}
