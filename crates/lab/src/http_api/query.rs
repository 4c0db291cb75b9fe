//! Parses query parameters.

use http::Uri;

use super::super::registry::WriteEffect;
use super::super::status::Status;

/// The query parameters of a request.
#[derive(Clone, Debug)]
pub(super) struct Query(Vec<(String, String)>);

impl Query {
    pub(super) fn of(uri: &Uri) -> Self {
        Self(url::form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()).into_owned().collect())
    }

    /// Returns the value of a parameter, or an empty string if it is missing.
    pub(super) fn get(&self, name: &str) -> &str {
        self.0.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value)
    }

    /// Returns true if a parameter is present and is empty, `1` or `true`.
    pub(super) fn is_set(&self, name: &str) -> bool {
        self.0.iter().any(|(key, value)| key == name && matches!(value.as_str(), "" | "1" | "true"))
    }

    /// Returns the effect of a write, which depends on `dryRun`.
    pub(super) fn effect(&self) -> Result<WriteEffect, Status> {
        match self.get("dryRun") {
            "" => Ok(WriteEffect::Stored),
            "All" => Ok(WriteEffect::DryRun),
            other => Err(Status::bad_request(format!(
                "dryRun: Unsupported value: {other:?}: supported values: \"All\""
            ))),
        }
    }
}
