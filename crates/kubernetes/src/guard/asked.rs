//! Objects that a request asks the API server for, derived from the request itself so that no caller can forget to
//! state them.

use http::{Method, Request};
use kube::core::{Expression, Selector};

use super::Untrusted;
use super::object_names::{from_path, is_dns_label, is_name, is_path_segment};

/// Method of reading the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResponseReading {
    /// As a whole.
    Whole,
    /// Line by line, as it arrives.
    Watch,
    /// Not read here, because it comes from a pod or a node, or is a log.
    Passing,
}

/// Requested objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RequestedObjects {
    /// Information about the API server itself, such as its version and its kinds.
    Server,
    /// All objects of a kind.
    All,
    /// A new object of a kind.
    New,
    /// The object with this name.
    One(String),
    /// A subresource of the object with this name.
    About(String),
}

/// Parts of a request that its response can be checked against.
#[derive(Clone, Debug)]
pub(super) struct GuardedRequest {
    pub(super) reading: ResponseReading,
    pub(super) group: String,
    pub(super) resource: String,
    pub(super) namespace: Option<String>,
    pub(super) of: RequestedObjects,
    pub(super) labels: Vec<Expression>,
    pub(super) fields: Vec<FieldTerm>,
}

/// Object field that a selector can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    Name,
    Namespace,
    NodeName,
    InvolvedKind,
    InvolvedName,
    InvolvedUid,
    Reason,
    Type,
}

/// Term of a field selector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FieldTerm {
    pub(super) field: Field,
    pub(super) is_equal: bool,
    pub(super) value: String,
}

/// Query parameters allowed for each kind of request; any other parameter was smuggled in through a name.
const OF_LISTS: &[&str] = &[
    "allowWatchBookmarks",
    "continue",
    "fieldSelector",
    "labelSelector",
    "limit",
    "resourceVersion",
    "resourceVersionMatch",
    "sendInitialEvents",
    "timeoutSeconds",
    "watch",
];
const OF_WRITES: &[&str] = &["dryRun", "fieldManager", "fieldValidation", "force"];
const OF_READS: &[&str] = &["resourceVersion"];
const OF_LOGS: &[&str] = &[
    "container",
    "follow",
    "limitBytes",
    "previous",
    "sinceSeconds",
    "sinceTime",
    "tailLines",
    "timestamps",
];

impl GuardedRequest {
    /// Extracts the facts that the response can be checked against.
    ///
    /// # Errors
    /// Fails if the request must not be sent, because it contains an invalid name, namespace or selector.
    pub(super) fn of<T>(request: &Request<T>) -> Result<Self, Untrusted> {
        let refuse = |why: String| Untrusted::Request(why);
        let path = request.uri().path();
        let mut parts = Vec::new();
        for part in path.split('/').skip(1) {
            let name = from_path(part).filter(|name| is_path_segment(name));
            parts.push(
                name.ok_or_else(|| refuse(format!("{part:?} in the path {path:?} is not a valid name")))?,
            );
        }
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let mut asked = Self {
            reading: ResponseReading::Whole,
            group: String::new(),
            resource: String::new(),
            namespace: None,
            of: RequestedObjects::Server,
            labels: Vec::new(),
            fields: Vec::new(),
        };
        let rest = match parts[..] {
            ["api", _, ref rest @ ..] => rest,
            ["apis", group, _, ref rest @ ..] => {
                group.clone_into(&mut asked.group);
                rest
            }
            _ => return Ok(asked),
        };
        let about = match rest {
            [] => return Ok(asked),
            ["namespaces", namespace, resource, about @ ..] if !["status", "finalize"].contains(resource) => {
                asked.namespace = Some((*namespace).to_owned());
                (*resource).clone_into(&mut asked.resource);
                about
            }
            [resource, about @ ..] => {
                (*resource).clone_into(&mut asked.resource);
                about
            }
        };
        if let Some(namespace) = asked.namespace.as_ref().filter(|namespace| !is_dns_label(namespace)) {
            return Err(refuse(format!("{namespace:?} is not a valid namespace")));
        }
        asked.of = match about {
            [] if request.method() == Method::POST => RequestedObjects::New,
            [] => RequestedObjects::All,
            [name] => RequestedObjects::One((*name).to_owned()),
            [name, ..] => RequestedObjects::About((*name).to_owned()),
        };
        if matches!(about, [_, "proxy" | "log" | "exec" | "attach" | "portforward", ..]) {
            asked.reading = ResponseReading::Passing;
        }
        // The name may include a port.
        let named = about.first().map(|name| match about.get(1) {
            Some(&"proxy") => name.split(':').next().unwrap_or_default(),
            _ => name,
        });
        if let Some(name) = named.filter(|name| !is_name(&asked.group, &asked.resource, name)) {
            return Err(refuse(format!("{name:?} is not a valid name for {}", asked.resource)));
        }
        asked.take_query(request, about.get(1).copied())?;
        Ok(asked)
    }

    fn take_query<T>(&mut self, request: &Request<T>, about: Option<&str>) -> Result<(), Untrusted> {
        let may_be = match (&self.of, request.method(), about) {
            // The pod decides what the query means.
            (_, _, Some("proxy")) => return Ok(()),
            (_, _, Some("log")) => OF_LOGS,
            (RequestedObjects::All, &Method::GET | &Method::DELETE, _) => OF_LISTS,
            (_, &Method::GET, _) => OF_READS,
            // The options for a deletion are in its body.
            (_, &Method::DELETE, _) => &[],
            _ => OF_WRITES,
        };
        let query = request.uri().query().unwrap_or_default();
        for (key, value) in url::form_urlencoded::parse(query.as_bytes()) {
            if !may_be.contains(&key.as_ref()) {
                let path = request.uri().path();
                return Err(Untrusted::Request(format!(
                    "{key:?} is not a parameter of {} {path}",
                    request.method()
                )));
            }
            let unknown = || Untrusted::Request(format!("cannot check responses against {key} {value:?}"));
            match key.as_ref() {
                "watch" if value == "true" || value == "1" => self.reading = ResponseReading::Watch,
                "labelSelector" => self.labels = label_terms(&value).ok_or_else(unknown)?,
                "fieldSelector" => self.fields = field_terms(&value).ok_or_else(unknown)?,
                _ => {}
            }
        }
        Ok(())
    }
}

/// Parses a label selector in the syntax of `kubectl -l`; `None` if it is invalid.
pub fn label_selector(selector: &str) -> Option<Selector> {
    label_terms(selector).map(|terms| terms.into_iter().collect())
}

/// Returns the terms of a label selector in the syntax of `kubectl -l`.
fn label_terms(selector: &str) -> Option<Vec<Expression>> {
    let mut depth = 0_u32;
    let terms = selector.split(|c: char| {
        depth = match c {
            '(' => depth + 1,
            ')' => depth.saturating_sub(1),
            _ => depth,
        };
        c == ',' && depth == 0
    });
    terms.map(str::trim).filter(|term| !term.is_empty()).map(label_term).collect()
}

fn label_term(term: &str) -> Option<Expression> {
    let key = |key: &str| {
        let key = key.trim();
        let is_word = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
        (!key.is_empty() && key.chars().all(is_word)).then(|| key.to_owned())
    };
    let value = |value: &str| value.trim().to_owned();
    if let Some(missing) = term.strip_prefix('!') {
        return Some(Expression::DoesNotExist(key(missing)?));
    }
    if let Some((name, rest)) = term.split_once(char::is_whitespace)
        && let Some((operator, values)) = rest.split_once('(')
        && let Some(values) = values.trim_end().strip_suffix(')')
    {
        let values = values.split(',').map(value).collect();
        return match operator.trim() {
            "in" => Some(Expression::In(key(name)?, values)),
            "notin" => Some(Expression::NotIn(key(name)?, values)),
            _ => None,
        };
    }
    if let Some((name, other)) = term.split_once("!=") {
        return Some(Expression::NotEqual(key(name)?, value(other)));
    }
    match term.split_once("==").or_else(|| term.split_once('=')) {
        Some((name, same)) => Some(Expression::Equal(key(name)?, value(same))),
        None => Some(Expression::Exists(key(term)?)),
    }
}

fn field_terms(selector: &str) -> Option<Vec<FieldTerm>> {
    selector.split(',').map(str::trim).filter(|term| !term.is_empty()).map(field_term).collect()
}

fn field_term(term: &str) -> Option<FieldTerm> {
    let (is_equal, (field, value)) = match term.split_once("!=") {
        Some(unequal) => (false, unequal),
        None => (true, term.split_once("==").or_else(|| term.split_once('='))?),
    };
    let field = match field.trim() {
        "metadata.name" => Field::Name,
        "metadata.namespace" => Field::Namespace,
        "spec.nodeName" => Field::NodeName,
        "involvedObject.kind" => Field::InvolvedKind,
        "involvedObject.name" => Field::InvolvedName,
        "involvedObject.uid" => Field::InvolvedUid,
        "reason" => Field::Reason,
        "type" => Field::Type,
        _ => return None,
    };
    Some(FieldTerm { field, is_equal, value: value.trim().to_owned() })
}
