//! Handling of unknown fields, according to `fieldValidation`.

use http::{HeaderValue, header};
use serde_json::{Value, json};

use super::super::registry::PatchKind;
use super::super::schema::{self, Structure};
use super::super::status::{FieldError, Status};
use super::query::Query;
use super::respond::ApiResponse;

/// Treatment of unknown fields requested by a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FieldValidation {
    /// Silently ignore unknown fields.
    Ignore,
    /// Return a warning for each unknown field.
    Warn,
    /// Reject the request.
    Strict,
}

impl FieldValidation {
    /// Reads the query parameter. `options` is the kind named in error messages.
    pub(super) fn of(query: &Query, options: &str) -> Result<Self, Status> {
        match query.get("fieldValidation") {
            "" | "Warn" => Ok(Self::Warn),
            "Ignore" => Ok(Self::Ignore),
            "Strict" => Ok(Self::Strict),
            other => {
                let known = ["", "Ignore", "Strict", "Warn"];
                let error = FieldError::unsupported("fieldValidation", &json!(other), &known);
                Err(Status::invalid_options(options, &[error]))
            }
        }
    }

    /// Checks an object of kind `top`, as sent by the client, for unknown fields.
    pub(super) fn judge_object(self, top: &Structure, object: &Value) -> Result<FieldWarnings, Status> {
        let kind = top.name;
        self.judge(top, object, |why| {
            Status::bad_request(format!("{kind} in version \"v1\" cannot be handled as a {kind}: {why}"))
        })
    }

    /// Checks a changed object for unknown fields before they are dropped.
    pub(super) fn judge_changed(
        self,
        kind: PatchKind,
        top: &Structure,
        changed: &Value,
    ) -> Result<FieldWarnings, Status> {
        match kind {
            PatchKind::Replacement => self.judge_object(top, changed),
            _ => self.judge(top, changed, |why| Status::invalid_patch(&changed.to_string(), why)),
        }
    }

    fn judge(
        self,
        top: &Structure,
        object: &Value,
        refused: impl FnOnce(&str) -> Status,
    ) -> Result<FieldWarnings, Status> {
        let wrong = schema::unknown_fields(top, object).into_iter();
        let wrong: Vec<_> = wrong.map(|field| format!("unknown field \"{field}\"")).collect();
        match self {
            Self::Ignore => Ok(FieldWarnings::default()),
            Self::Strict if !wrong.is_empty() => {
                Err(refused(&format!("strict decoding error: {}", wrong.join(", "))))
            }
            Self::Warn | Self::Strict => Ok(FieldWarnings(wrong)),
        }
    }
}

/// Warnings for a client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FieldWarnings(Vec<String>);

impl FieldWarnings {
    pub(super) fn extend(&mut self, more: Vec<String>) {
        self.0.extend(more);
    }

    /// Adds the warnings to a response, as headers.
    pub(super) fn add_to(self, mut answer: ApiResponse) -> ApiResponse {
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
