//! Kubernetes `Status` objects: the API's answer to a request that fails.

use serde_json::{Value, json};

use super::resource::Resource;

/// A failure in the API's own terms.
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

    fn about(mut self, resource: Resource, name: &str) -> Self {
        self.details = json!({"name": name, "kind": resource.plural()});
        if !resource.group().is_empty() {
            self.details["group"] = json!(resource.group());
        }
        self
    }

    /// 400: the request makes no sense.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message.into())
    }

    /// 401: no token, or a wrong one.
    pub fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized".to_owned())
    }

    /// 403: it is not allowed.
    pub fn forbidden(resource: Resource, name: &str, why: &str) -> Self {
        let message = format!("{} {name:?} is forbidden: {why}", resource.qualified());
        Self::new(403, "Forbidden", message).about(resource, name)
    }

    /// 403: the user has no right to it. Without a resource, `why` names a path.
    pub fn not_authorized(group: &str, resource: &str, name: &str, why: &str) -> Self {
        let subject = match (qualified_kind(group, resource), name) {
            (_, _) if resource.is_empty() => String::new(),
            (qualified, "") => format!("{qualified} is "),
            (qualified, name) => format!("{qualified} {name:?} is "),
        };
        let mut status = Self::new(403, "Forbidden", format!("{subject}forbidden: {why}"));
        for (field, text) in [("name", name), ("group", group), ("kind", resource)] {
            if !text.is_empty() {
                status.details[field] = json!(text);
            }
        }
        status
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

    /// Returns true if it is [`Status::namespace_terminating`].
    pub fn is_about_a_terminating_namespace(&self) -> bool {
        self.details["causes"][0]["reason"] == "NamespaceTerminating"
    }

    /// 404: no such object.
    pub fn not_found(resource: Resource, name: &str) -> Self {
        let message = format!("{} {name:?} not found", resource.qualified());
        Self::new(404, "NotFound", message).about(resource, name)
    }

    /// 404: no such path.
    pub fn unknown_path() -> Self {
        Self::new(404, "NotFound", "the server could not find the requested resource".to_owned())
    }

    /// 405: not with this verb.
    pub fn method_not_allowed() -> Self {
        Self::new(
            405,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource".to_owned(),
        )
    }

    /// 406: the API offers only JSON.
    pub fn not_acceptable() -> Self {
        let message = "only the following media types are accepted: application/json";
        Self::new(406, "NotAcceptable", message.to_owned())
    }

    /// 409: the name is taken.
    pub fn already_exists(resource: Resource, name: &str) -> Self {
        let message = format!("{} {name:?} already exists", resource.qualified());
        Self::new(409, "AlreadyExists", message).about(resource, name)
    }

    /// 409: the object is not as the caller believed.
    pub fn conflict(resource: Resource, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {} {name:?}: {why}", resource.qualified());
        Self::new(409, "Conflict", message).about(resource, name)
    }

    /// 409: a deletion was meant for another object, or for another state of it. Kubernetes names the kind here, not
    /// the resource.
    pub fn precondition_failed(resource: Resource, name: &str, why: &str) -> Self {
        let kind = qualified_kind(resource.group(), resource.kind());
        let message = format!("Operation cannot be fulfilled on {kind} {name:?}: {why}");
        let mut status = Self::new(409, "Conflict", message).about(resource, name);
        status.details["kind"] = json!(resource.kind());
        status
    }

    /// 410: the watch's starting point is no longer remembered.
    pub fn expired(version: u64, oldest: u64) -> Self {
        Self::new(410, "Expired", format!("too old resource version: {version} ({oldest})"))
    }

    /// 413: the body is larger than accepted.
    pub fn too_large(limit_bytes: usize) -> Self {
        let message = format!("Request entity too large: limit is {limit_bytes}");
        Self::new(413, "RequestEntityTooLarge", message)
    }

    /// 413: the request asks for more than is granted.
    pub fn too_large_because(why: String) -> Self {
        Self::new(413, "RequestEntityTooLarge", why)
    }

    /// 415: a body that is not JSON, or an unknown kind of patch.
    pub fn unsupported_media_type(accepted: &str) -> Self {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {accepted}"
        );
        Self::new(415, "UnsupportedMediaType", message)
    }

    /// 422: fields of an object are wrong.
    pub fn invalid(resource: Resource, name: &str, causes: &[FieldError]) -> Self {
        Self::invalid_kind(resource.group(), resource.kind(), name, causes)
    }

    /// 422: options of a request are wrong.
    pub fn invalid_options(kind: &str, causes: &[FieldError]) -> Self {
        Self::invalid_kind("meta.k8s.io", kind, "", causes)
    }

    /// 422: fields are wrong in an object of a kind without a resource.
    pub fn invalid_kind(group: &str, kind: &str, name: &str, causes: &[FieldError]) -> Self {
        let list = causes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let list = if causes.len() > 1 { format!("[{list}]") } else { list };
        let qualified = qualified_kind(group, kind);
        let mut status = Self::new(422, "Invalid", format!("{qualified} {name:?} is invalid: {list}"));
        let causes: Vec<_> = causes.iter().map(FieldError::to_json).collect();
        status.details = json!({"kind": kind, "causes": causes});
        for (field, text) in [("name", name), ("group", group)] {
            if !text.is_empty() {
                status.details[field] = json!(text);
            }
        }
        status
    }

    /// 422: a patch, shown as `value`, or what it would make of the object has wrong fields.
    pub fn invalid_patch(value: &str, why: &str) -> Self {
        let error = FieldError::invalid("patch", &json!(value), why);
        let mut status = Self::new(422, "Invalid", format!(" \"\" is invalid: {error}"));
        status.details = json!({"causes": [error.to_json()]});
        status
    }

    /// 422: a patch that is well formed, but does not fit the object.
    pub fn unprocessable(why: &str) -> Self {
        let message = "the server rejected our request due to an error in our request";
        Self::new(422, "Invalid", format!("{message}: {why}"))
    }

    /// 429: not now, for this cause; the client may try again after this many seconds, if known.
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

    /// Returns the seconds after which to try again, if known.
    pub fn retry_after_seconds(&self) -> Option<u64> {
        self.details["retryAfterSeconds"].as_u64()
    }

    /// 500: this program's own fault.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(500, "InternalError", message.into())
    }

    /// 501: a real cluster has it, this one does not.
    pub fn not_implemented(message: String) -> Self {
        Self::new(501, "NotImplemented", message)
    }

    /// 504: it took too long.
    pub fn timeout(message: &str) -> Self {
        Self::new(504, "Timeout", format!("Timeout: {message}"))
    }

    /// 504: the requested state has not come yet. A real API server waits a little before this answer.
    pub fn too_large_version(wanted: u64, current: u64) -> Self {
        let mut status = Self::timeout(&format!("Too large resource version: {wanted}, current: {current}"));
        let cause = json!({"reason": "ResourceVersionTooLarge", "message": "Too large resource version"});
        status.details = json!({"causes": [cause], "retryAfterSeconds": 1});
        status
    }

    /// 503: a pod behind the API server did not answer.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(503, "ServiceUnavailable", message.into())
    }

    /// Returns the HTTP status code.
    pub fn code(&self) -> u16 {
        self.code
    }

    /// Returns the machine-readable reason, such as `NotFound`.
    pub fn reason(&self) -> &'static str {
        self.reason
    }

    /// Returns the object that goes over the wire.
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

/// Formats a kind with its group.
fn qualified_kind(group: &str, kind: &str) -> String {
    if group.is_empty() { kind.to_owned() } else { format!("{kind}.{group}") }
}

/// One wrong field of an object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {}", self.body())]
pub struct FieldError {
    reason: &'static str,
    field: String,
    message: String,
}

impl FieldError {
    /// The field is missing. `why` may be empty.
    pub fn required_because(field: impl Into<String>, why: &str) -> Self {
        Self { reason: "FieldValueRequired", field: field.into(), message: why.to_owned() }
    }

    /// The field has a value that it may not have.
    pub fn invalid(field: impl Into<String>, value: &Value, why: &str) -> Self {
        Self { reason: "FieldValueInvalid", field: field.into(), message: format!("{value}: {why}") }
    }

    /// The field has a value that is not among the supported ones.
    pub fn unsupported(field: impl Into<String>, value: &Value, why: &str) -> Self {
        Self { reason: "FieldValueNotSupported", field: field.into(), message: format!("{value}: {why}") }
    }

    /// The field must be the only one with this value.
    pub fn duplicate(field: impl Into<String>, value: &Value) -> Self {
        Self { reason: "FieldValueDuplicate", field: field.into(), message: value.to_string() }
    }

    /// The field names something that does not exist.
    pub fn not_found(field: impl Into<String>, value: &Value) -> Self {
        Self { reason: "FieldValueNotFound", field: field.into(), message: value.to_string() }
    }

    /// The field is larger than it may be.
    pub fn too_long(field: impl Into<String>, why: &str) -> Self {
        Self { reason: "FieldValueTooLong", field: field.into(), message: why.to_owned() }
    }

    /// The field may not be set, or not be changed.
    pub fn forbidden(field: impl Into<String>, why: &str) -> Self {
        Self { reason: "FieldValueForbidden", field: field.into(), message: why.to_owned() }
    }

    /// Describes the mistake in words.
    fn body(&self) -> String {
        let problem = match self.reason {
            "FieldValueRequired" => "Required value",
            "FieldValueForbidden" => "Forbidden",
            "FieldValueNotSupported" => "Unsupported value",
            "FieldValueDuplicate" => "Duplicate value",
            "FieldValueNotFound" => "Not found",
            "FieldValueTooLong" => "Too long",
            _ => "Invalid value",
        };
        if self.message.is_empty() { problem.to_owned() } else { format!("{problem}: {}", self.message) }
    }

    fn to_json(&self) -> Value {
        json!({"reason": self.reason, "message": self.body(), "field": self.field})
    }
}
