//! Kubernetes `Status` objects: the API's response to a failed request.

use serde_json::{Value, json};

use super::resource::Resource;

/// Failure in the API's own terms.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Status {
    code: u16,
    reason: &'static str,
    message: String,
    details: Value,
}

impl Status {
    fn new(code: u16, reason: &'static str, message: String) -> Self {
        Self { code, reason, message, details: json!({}) }
    }

    /// Adds the object's group, kind and name to the details, as far as they are known.
    fn about(mut self, group: &str, kind: &str, name: &str) -> Self {
        for (field, text) in [("name", name), ("group", group), ("kind", kind)] {
            if !text.is_empty() {
                self.details[field] = json!(text);
            }
        }
        self
    }

    fn about_object(self, resource: Resource, name: &str) -> Self {
        self.about(resource.group(), resource.plural(), name)
    }

    /// Returns a failure with this HTTP code and the standard reason for it.
    pub fn plain(code: u16, message: impl Into<String>) -> Self {
        let reason = match code {
            400 => "BadRequest",
            401 => "Unauthorized",
            404 => "NotFound",
            405 => "MethodNotAllowed",
            406 => "NotAcceptable",
            410 => "Expired",
            413 => "RequestEntityTooLarge",
            415 => "UnsupportedMediaType",
            501 => "NotImplemented",
            503 => "ServiceUnavailable",
            504 => "Timeout",
            _ => "InternalError",
        };
        Self::new(code, reason, message.into())
    }

    /// 400: the request is malformed.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::plain(400, message)
    }

    /// 403: the operation is forbidden.
    pub fn forbidden(resource: Resource, name: &str, why: &str) -> Self {
        let message = format!("{} {name:?} is forbidden: {why}", resource.qualified());
        Self::new(403, "Forbidden", message).about_object(resource, name)
    }

    /// 403: the user lacks permission. Without a resource, `why` names a path.
    pub fn not_authorized(group: &str, resource: &str, name: &str, why: &str) -> Self {
        let subject = match (qualified_kind(group, resource), name) {
            (_, _) if resource.is_empty() => String::new(),
            (qualified, "") => format!("{qualified} is "),
            (qualified, name) => format!("{qualified} {name:?} is "),
        };
        Self::new(403, "Forbidden", format!("{subject}forbidden: {why}")).about(group, resource, name)
    }

    /// 403: the namespace is being deleted.
    pub fn namespace_terminating(resource: Resource, name: &str, namespace: &str) -> Self {
        let why =
            format!("unable to create new content in namespace {namespace} because it is being terminated");
        let mut status = Self::forbidden(resource, name, &why);
        status.details["causes"] = json!([{
            "reason": "NamespaceTerminating",
            "message": format!("namespace {namespace} is being terminated"),
            "field": "metadata.namespace",
        }]);
        status
    }

    /// Returns true if this is a [`Status::namespace_terminating`] failure.
    pub fn is_about_a_terminating_namespace(&self) -> bool {
        self.details["causes"][0]["reason"] == "NamespaceTerminating"
    }

    /// 404: the object does not exist.
    pub fn not_found(resource: Resource, name: &str) -> Self {
        let message = format!("{} {name:?} not found", resource.qualified());
        Self::new(404, "NotFound", message).about_object(resource, name)
    }

    /// 404: the path does not exist.
    pub fn unknown_path() -> Self {
        Self::plain(404, "the server could not find the requested resource")
    }

    /// 405: the path does not support this verb.
    pub fn method_not_allowed() -> Self {
        Self::plain(405, "the server does not allow this method on the requested resource")
    }

    /// 409: the name is already taken.
    pub fn already_exists(resource: Resource, name: &str) -> Self {
        let message = format!("{} {name:?} already exists", resource.qualified());
        Self::new(409, "AlreadyExists", message).about_object(resource, name)
    }

    /// 409: the object is not in the state that the caller expected.
    pub fn conflict(resource: Resource, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {} {name:?}: {why}", resource.qualified());
        Self::new(409, "Conflict", message).about_object(resource, name)
    }

    /// 409: the deletion was meant for another object or another state of this object. Kubernetes names the kind here,
    /// not the resource.
    pub fn precondition_failed(resource: Resource, name: &str, why: &str) -> Self {
        let kind = qualified_kind(resource.group(), resource.kind());
        let message = format!("Operation cannot be fulfilled on {kind} {name:?}: {why}");
        Self::new(409, "Conflict", message).about(resource.group(), resource.kind(), name)
    }

    /// 415: the body is not JSON, or the kind of patch is unknown.
    pub fn unsupported_media_type(accepted: &str) -> Self {
        let what = "the body of the request was in an unknown format";
        Self::plain(415, format!("{what} - accepted media types include: {accepted}"))
    }

    /// 422: fields of an object are invalid.
    pub fn invalid(resource: Resource, name: &str, causes: &[FieldError]) -> Self {
        Self::invalid_kind(resource.group(), resource.kind(), name, causes)
    }

    /// 422: options of a request are invalid.
    pub fn invalid_options(kind: &str, causes: &[FieldError]) -> Self {
        Self::invalid_kind("meta.k8s.io", kind, "", causes)
    }

    /// 422: fields are invalid in an object whose kind has no resource.
    pub fn invalid_kind(group: &str, kind: &str, name: &str, causes: &[FieldError]) -> Self {
        let list = causes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let list = if causes.len() > 1 { format!("[{list}]") } else { list };
        let qualified = qualified_kind(group, kind);
        let mut status = Self::new(422, "Invalid", format!("{qualified} {name:?} is invalid: {list}"));
        status.details["causes"] = causes.iter().map(FieldError::to_json).collect();
        status.about(group, kind, name)
    }

    /// 422: a patch, shown as `value`, or the object that it would produce has invalid fields.
    pub fn invalid_patch(value: &str, why: &str) -> Self {
        let error = FieldError::invalid("patch", &json!(value), why);
        let mut status = Self::new(422, "Invalid", format!(" \"\" is invalid: {error}"));
        status.details = json!({"causes": [error.to_json()]});
        status
    }

    /// 422: a patch is well formed but does not fit the object.
    pub fn unprocessable(why: &str) -> Self {
        let message = "the server rejected our request due to an error in our request";
        Self::new(422, "Invalid", format!("{message}: {why}"))
    }

    /// 429: the request is refused for now, with this cause; the client may retry after this many seconds, if known.
    pub fn too_many_requests(
        message: &str,
        cause: &str,
        why: &str,
        retry_after_seconds: Option<u32>,
    ) -> Self {
        let mut status = Self::new(429, "TooManyRequests", message.to_owned());
        status.details = json!({"causes": [{"reason": cause, "message": why}]});
        if let Some(seconds) = retry_after_seconds {
            status.details["retryAfterSeconds"] = json!(seconds);
        }
        status
    }

    /// Returns the number of seconds to wait before a retry, if known.
    pub fn retry_after_seconds(&self) -> Option<u64> {
        self.details["retryAfterSeconds"].as_u64()
    }

    /// 500: internal error in this program.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::plain(500, message)
    }

    /// 504: the operation took too long.
    pub fn timeout(message: &str) -> Self {
        Self::plain(504, format!("Timeout: {message}"))
    }

    /// 503: a pod behind the API server did not respond.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::plain(503, message)
    }

    /// Returns the HTTP status code.
    pub fn code(&self) -> u16 {
        self.code
    }

    /// Returns the machine-readable reason, such as `NotFound`.
    pub fn reason(&self) -> &'static str {
        self.reason
    }

    /// Returns the object to send over the wire.
    pub fn to_json(&self) -> Value {
        json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "details": self.details,
            "code": self.code,
        })
    }
}

/// Logs a failure that is reported nowhere else; `what` describes it, such as "failed to delete a pod".
pub(crate) fn note_failure<T>(result: Result<T, Status>, what: &str) {
    if let Err(status) = result {
        tracing::debug!(%status, "{what}");
    }
}

/// Formats a kind with its group.
fn qualified_kind(group: &str, kind: &str) -> String {
    if group.is_empty() { kind.to_owned() } else { format!("{kind}.{group}") }
}

/// Error in one field of an object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {}", self.body())]
pub struct FieldError {
    reason: &'static str,
    field: String,
    message: String,
}

impl FieldError {
    fn new(reason: &'static str, field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { reason, field: field.into(), message: message.into() }
    }

    /// The field is missing. `why` may be empty.
    pub fn required(field: impl Into<String>, why: &str) -> Self {
        Self::new("FieldValueRequired", field, why)
    }

    /// The field has a value that is not allowed.
    pub fn invalid(field: impl Into<String>, value: &Value, why: &str) -> Self {
        Self::new("FieldValueInvalid", field, format!("{value}: {why}"))
    }

    /// The field has an unsupported value.
    pub fn unsupported(field: impl Into<String>, value: &Value, supported: &[&str]) -> Self {
        let list: Vec<_> = supported.iter().map(|value| format!("{value:?}")).collect();
        let message = format!("{value}: supported values: {}", list.join(", "));
        Self::new("FieldValueNotSupported", field, message)
    }

    /// The field must be the only one with this value.
    pub fn duplicate(field: impl Into<String>, value: &Value) -> Self {
        Self::new("FieldValueDuplicate", field, value.to_string())
    }

    /// The field names something that does not exist.
    pub fn not_found(field: impl Into<String>, value: &Value) -> Self {
        Self::new("FieldValueNotFound", field, value.to_string())
    }

    /// The field may not be set or changed.
    pub fn forbidden(field: impl Into<String>, why: &str) -> Self {
        Self::new("FieldValueForbidden", field, why)
    }

    /// Describes the error in words.
    fn body(&self) -> String {
        let problem = match self.reason {
            "FieldValueRequired" => "Required value",
            "FieldValueForbidden" => "Forbidden",
            "FieldValueNotSupported" => "Unsupported value",
            "FieldValueDuplicate" => "Duplicate value",
            "FieldValueNotFound" => "Not found",
            _ => "Invalid value",
        };
        if self.message.is_empty() { problem.to_owned() } else { format!("{problem}: {}", self.message) }
    }

    fn to_json(&self) -> Value {
        json!({"reason": self.reason, "message": self.body(), "field": self.field})
    }
}
