//! Checks that API server responses match their requests. Only the fields needed for this are read.

use std::collections::BTreeMap;

use kube::core::SelectorExt;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::asked::{Field, FieldTerm, GuardedRequest, RequestedObjects};
use super::object_names::{is_dns_label, is_name, is_path_segment};

/// An object, a list of objects, or a list of kinds.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ResponseObject {
    kind: Option<String>,
    metadata: Option<ResponseMetadata>,
    spec: Option<ResponseSpec>,
    involved_object: Option<ResponseMetadata>,
    reason: Option<String>,
    r#type: Option<String>,
    /// Objects in a list.
    items: Option<Vec<ResponseObject>>,
    /// Kinds in a list of kinds.
    resources: Option<Vec<ListedKind>>,
}

#[derive(Debug, Deserialize)]
struct ListedKind {
    name: String,
}

/// Metadata of an object, or of a reference to one.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ResponseMetadata {
    kind: Option<String>,
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    labels: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ResponseSpec {
    node_name: Option<String>,
}

#[derive(Debug, Deserialize)]
struct WatchLine {
    #[serde(rename = "type")]
    kind: String,
    object: ResponseObject,
}

/// Returns true if the text is a complete JSON value.
pub(super) fn is_json(text: &[u8]) -> bool {
    serde_json::from_slice::<IgnoredAny>(text).is_ok()
}

/// Checks that a successful response matches the request; the error says why it does not.
pub(super) fn check_answer(asked: &GuardedRequest, answer: &[u8]) -> Result<(), String> {
    let parsed: Result<ResponseObject, _> = serde_json::from_slice(answer);
    let object = match (parsed, &asked.of) {
        (Ok(object), _) => object,
        // The response may be a single word.
        (Err(_), RequestedObjects::Server) => return Ok(()),
        (Err(error), _) => return Err(format!("it is not a Kubernetes object: {error}")),
    };
    match &asked.of {
        RequestedObjects::Server => check_kinds(&object),
        RequestedObjects::All => {
            let items = object.items.iter().flatten();
            items.into_iter().try_for_each(|item| check_member(asked, item))
        }
        RequestedObjects::New | RequestedObjects::One(_) | RequestedObjects::About(_) => {
            check_one(asked, &object)
        }
    }
}

/// Checks that a line of a watch matches the request; the error says why it does not.
pub(super) fn check_event(asked: &GuardedRequest, line: &[u8]) -> Result<(), String> {
    let parsed = serde_json::from_slice(line);
    let line: WatchLine = parsed.map_err(|error| format!("a watch line is not an event: {error}"))?;
    match line.kind.as_str() {
        "ADDED" | "MODIFIED" => check_member(asked, &line.object),
        // The object was a member before, but need no longer be one.
        "DELETED" => check_place(asked, &line.object),
        _ => Ok(()),
    }
}

/// Checks the names of kinds, because they become part of paths.
fn check_kinds(object: &ResponseObject) -> Result<(), String> {
    let is_kind =
        |kind: &&ListedKind| kind.name.split('/').all(is_path_segment) && !kind.name.contains(['?', '#']);
    match object.resources.iter().flatten().find(|kind| !is_kind(kind)) {
        Some(kind) => Err(format!("{:?} is not a valid name for a kind", kind.name)),
        None => Ok(()),
    }
}

impl ResponseObject {
    fn name(&self) -> Option<&str> {
        self.metadata.as_ref()?.name.as_deref()
    }

    fn namespace(&self) -> Option<&str> {
        self.metadata.as_ref()?.namespace.as_deref()
    }

    fn field(&self, field: Field) -> Option<&str> {
        match field {
            Field::Name => self.name(),
            Field::Namespace => self.namespace(),
            Field::NodeName => self.spec.as_ref()?.node_name.as_deref(),
            Field::InvolvedKind => self.involved_object.as_ref()?.kind.as_deref(),
            Field::InvolvedName => self.involved_object.as_ref()?.name.as_deref(),
            Field::InvolvedUid => self.involved_object.as_ref()?.uid.as_deref(),
            Field::Reason => self.reason.as_deref(),
            Field::Type => self.r#type.as_deref(),
        }
    }
}

/// Checks that an object in a list is one of those requested.
fn check_member(asked: &GuardedRequest, object: &ResponseObject) -> Result<(), String> {
    check_place(asked, object)?;
    let shown = || format!("{} {:?}", asked.resource, object.name().unwrap_or_default());
    let none = BTreeMap::new();
    let labels = object.metadata.as_ref().and_then(|metadata| metadata.labels.as_ref()).unwrap_or(&none);
    if let Some(term) = asked.labels.iter().find(|term| !term.matches(labels)) {
        return Err(format!("the labels of {} do not match the requested selector {term}", shown()));
    }
    let is_met =
        |term: &&FieldTerm| (object.field(term.field).unwrap_or_default() == term.value) == term.is_equal;
    match asked.fields.iter().find(|term| !is_met(term)) {
        Some(term) => Err(format!("{} does not have the requested field {:?}", shown(), term.value)),
        None => Ok(()),
    }
}

/// Checks that an object's name is valid and that the object is in the requested place.
fn check_place(asked: &GuardedRequest, object: &ResponseObject) -> Result<(), String> {
    let name = object.name().unwrap_or_default();
    if !is_name(&asked.group, &asked.resource, name) {
        return Err(format!("{name:?} is not a valid name for {}", asked.resource));
    }
    check_namespace(asked, object)
}

fn check_namespace(asked: &GuardedRequest, object: &ResponseObject) -> Result<(), String> {
    let (resource, name) = (&asked.resource, object.name().unwrap_or_default());
    match (object.namespace(), &asked.namespace) {
        (Some(found), None) if !found.is_empty() && !is_dns_label(found) => {
            Err(format!("{resource} {name:?} is in {found:?}, which is not a valid namespace"))
        }
        (found, Some(wanted)) if found != Some(wanted) => {
            let found = found.unwrap_or_default();
            Err(format!("{resource} {name:?} is in namespace {found:?}, not in {wanted:?}"))
        }
        _ => Ok(()),
    }
}

/// Checks that a response is the requested object or a status.
fn check_one(asked: &GuardedRequest, object: &ResponseObject) -> Result<(), String> {
    if object.kind.as_deref() == Some("Status") {
        return Ok(());
    }
    let resource = &asked.resource;
    match (&asked.of, object.name()) {
        (RequestedObjects::One(wanted), found) | (RequestedObjects::About(wanted), found @ Some(_))
            if found != Some(wanted) =>
        {
            let found = found.unwrap_or_default();
            return Err(format!("it is {resource} {found:?}, not {wanted:?}"));
        }
        (RequestedObjects::New, Some(found)) if !is_name(&asked.group, resource, found) => {
            return Err(format!("{found:?} is not a valid name for {resource}"));
        }
        // An object that only represents a question, such as an access review, has no name and no namespace.
        (_, None) => return Ok(()),
        _ => {}
    }
    check_namespace(asked, object)
}
