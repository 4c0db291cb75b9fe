//! nginx's `log_format`, and the values of its variables in lines.

use std::fmt;
use std::str::FromStr;
use std::sync::LazyLock;

use crate::LineError;
use crate::line_parts::is_set;

/// The default format of ingress-nginx.
pub(crate) static INGRESS_NGINX: LazyLock<NginxTemplate> = LazyLock::new(|| {
    let text = r#"$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent" $request_length $request_time [$proxy_upstream_name] [$proxy_alternative_upstream_name] $upstream_addr $upstream_response_length $upstream_response_time $upstream_status $req_id"#;
    text.parse().expect("the default can be used")
});

/// Variables that the parser uses and that have a single value.
const VALUES: &[&str] = &[
    "body_bytes_sent",
    "msec",
    "proxy_upstream_name",
    "request_time",
    "status",
    "time_iso8601",
    "time_local",
    "upstream_http_content_length",
];

/// Variables that the parser uses and that have one value per attempt, separated by `, ` or ` : `.
const LISTS: &[&str] = &[
    "upstream_addr",
    "upstream_bytes_received",
    "upstream_connect_time",
    "upstream_header_time",
    "upstream_response_length",
    "upstream_response_time",
    "upstream_status",
];

/// An nginx `log_format` that includes all required variables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NginxTemplate {
    text: String,
    before: String,
    /// Variables (`None` for those that the parser ignores), each with the text that follows it.
    parts: Vec<(Option<&'static str>, String)>,
}

/// Reason why a `log_format` cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// It is longer than any real format.
    #[error("longer than {} characters", NginxTemplate::LONGEST)]
    TooLong,
    /// A required variable is missing.
    #[error("needs {0}")]
    Missing(&'static str),
    /// The end of the named variable's value cannot be found.
    #[error("cannot tell where ${0} ends: put it in quotes or brackets")]
    Unclear(String),
}

impl NginxTemplate {
    const LONGEST: usize = 4096;

    /// Extracts from a line the values of the variables that the parser uses.
    pub(crate) fn values<'a>(&self, line: &'a str) -> Result<NginxValues<'a>, LineError> {
        let mut values = NginxValues(Vec::with_capacity(self.parts.len()));
        let mut rest = line.strip_prefix(self.before.as_str()).ok_or(LineError::Field("(start of line)"))?;
        for (variable, behind) in &self.parts {
            let end = match variable {
                _ if behind.is_empty() => Some(rest.len()),
                Some(variable) if LISTS.contains(variable) => end_of_list(rest, behind),
                Some(_) => rest.find(behind.as_str()),
                None => end_of_escaped(rest, behind),
            };
            let end = end.ok_or(LineError::Field(variable.unwrap_or("(unused variable)")))?;
            if let Some(variable) = variable {
                values.0.push((variable, &rest[..end]));
            }
            rest = &rest[end + behind.len()..];
        }
        Ok(values)
    }
}

/// Values of the variables in a line.
pub(crate) struct NginxValues<'a>(Vec<(&'static str, &'a str)>);

impl<'a> NginxValues<'a> {
    /// Returns a variable's value; `None` if the format does not include the variable.
    pub(crate) fn logged(&self, variable: &str) -> Option<&'a str> {
        self.0.iter().find(|(name, _)| *name == variable).map(|(_, value)| *value)
    }

    /// Returns a variable's value; `None` if nginx had nothing to log there.
    pub(crate) fn text(&self, variable: &str) -> Option<&'a str> {
        self.logged(variable).filter(|text| is_set(text))
    }
}

/// Returns the position where a list ends: the first place where `behind` follows and no separator does.
fn end_of_list(text: &str, behind: &str) -> Option<usize> {
    let mut at = 0;
    loop {
        let rest = text.get(at..)?;
        at += match rest {
            _ if rest.starts_with(", ") => 2,
            _ if rest.starts_with(" : ") => 3,
            _ if rest.starts_with(behind) => return Some(at),
            _ => rest.chars().next()?.len_utf8(),
        };
    }
}

/// Returns the position where a value ends that a client may have chosen. nginx escapes quotes with a backslash.
fn end_of_escaped(text: &str, behind: &str) -> Option<usize> {
    let is_escaped = |at: usize| text[..at].bytes().rev().take_while(|b| *b == b'\\').count() % 2 == 1;
    text.match_indices(behind).map(|(at, _)| at).find(|at| !behind.starts_with('"') || !is_escaped(*at))
}

impl FromStr for NginxTemplate {
    type Err = TemplateError;

    fn from_str(text: &str) -> Result<Self, TemplateError> {
        if text.len() > Self::LONGEST {
            return Err(TemplateError::TooLong);
        }
        let mut pieces = text.split('$');
        let before = pieces.next().unwrap_or_default().to_owned();
        let parts: Vec<_> = pieces.map(variable_and_text).collect();
        let last = parts.len().saturating_sub(1);
        for (at, (name, behind)) in parts.iter().enumerate() {
            let is_list = LISTS.contains(&name.as_str());
            let is_separator = is_list
                && [", ", " : "]
                    .iter()
                    .any(|s| behind.starts_with(s) || (s.starts_with(behind) && behind != " "));
            if at < last && (behind.is_empty() || is_separator) {
                return Err(TemplateError::Unclear(name.clone()));
            }
        }
        for (any, what) in [
            (&["msec", "time_iso8601", "time_local"][..], "$msec, $time_iso8601 or $time_local"),
            (&["request_time"], "$request_time"),
            (&["status"], "$status"),
            (&["upstream_addr"], "$upstream_addr"),
        ] {
            if !parts.iter().any(|(name, _)| any.contains(&name.as_str())) {
                return Err(TemplateError::Missing(what));
            }
        }
        let used = |name: &str| VALUES.iter().chain(LISTS).find(|used| **used == name).copied();
        let parts = parts.into_iter().map(|(name, behind)| (used(&name), behind)).collect();
        Ok(Self { text: text.to_owned(), before, parts })
    }
}

/// Splits `name text after it` or `{name}text after it`.
fn variable_and_text(piece: &str) -> (String, String) {
    let (name, behind) = match piece.strip_prefix('{').and_then(|rest| rest.split_once('}')) {
        Some(parts) => parts,
        None => {
            let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
            piece.split_at(piece.find(|c| !is_part(c)).unwrap_or(piece.len()))
        }
    };
    (name.to_owned(), behind.to_owned())
}

impl fmt::Display for NginxTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
