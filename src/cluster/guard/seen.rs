//! Whether what the API server shows is what it was asked for. Of an object no more is read than that takes.

use std::collections::BTreeMap;

use kube::core::SelectorExt;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::asked::{Asked, Field, Of};
use super::names::{is_dns_label, is_name, is_path_segment};

/// An object, a list of objects, or a list of kinds.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Object {
    kind: Option<String>,
    metadata: Option<Metadata>,
    spec: Option<Spec>,
    involved_object: Option<Metadata>,
    r#type: Option<String>,
    /// Of a list.
    items: Option<Vec<Object>>,
    /// Of a list of kinds.
    resources: Option<Vec<Kind>>,
}

#[derive(Debug, Deserialize)]
struct Kind {
    name: String,
}

/// Also of a reference to an object.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Metadata {
    kind: Option<String>,
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    labels: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    node_name: Option<String>,
}

#[derive(Debug, Deserialize)]
struct WatchLine {
    #[serde(rename = "type")]
    kind: String,
    object: Object,
}

/// Whether this is a whole value.
pub(super) fn is_json(text: &[u8]) -> bool {
    serde_json::from_slice::<IgnoredAny>(text).is_ok()
}

/// Whether a good answer is one to what was asked; if not, why.
pub(super) fn check_answer(asked: &Asked, answer: &[u8]) -> Result<(), String> {
    let parsed: Result<Object, _> = serde_json::from_slice(answer);
    let object = match (parsed, &asked.of) {
        (Ok(object), _) => object,
        // It may be a word.
        (Err(_), Of::Server) => return Ok(()),
        (Err(error), _) => return Err(format!("it is not a Kubernetes object: {error}")),
    };
    match &asked.of {
        Of::Server => check_kinds(&object),
        Of::All => {
            let items = object.items.iter().flatten();
            items.into_iter().try_for_each(|item| check_member(asked, item))
        }
        Of::New | Of::One(_) | Of::About(_) => check_one(asked, &object),
    }
}

/// Whether a line of a watch shows what was asked for; if not, why.
pub(super) fn check_event(asked: &Asked, line: &[u8]) -> Result<(), String> {
    let parsed = serde_json::from_slice(line);
    let line: WatchLine = parsed.map_err(|error| format!("a line of the watch is not an event: {error}"))?;
    match line.kind.as_str() {
        "ADDED" | "MODIFIED" => check_member(asked, &line.object),
        // It was a member before, and need not be one any more.
        "DELETED" => check_place(asked, line.object.metadata.as_ref()),
        _ => Ok(()),
    }
}

/// What kinds are called becomes part of paths.
fn check_kinds(object: &Object) -> Result<(), String> {
    let is_kind = |kind: &&Kind| kind.name.split('/').all(is_path_segment) && !kind.name.contains(['?', '#']);
    match object.resources.iter().flatten().find(|kind| !is_kind(kind)) {
        Some(kind) => Err(format!("no kind can be called {:?}", kind.name)),
        None => Ok(()),
    }
}

/// An object among those that were asked for.
fn check_member(asked: &Asked, object: &Object) -> Result<(), String> {
    let metadata = object.metadata.as_ref();
    check_place(asked, metadata)?;
    let shown =
        || format!("{} {:?}", asked.resource, metadata.and_then(|m| m.name.as_deref()).unwrap_or_default());
    let none = BTreeMap::new();
    let labels = metadata.and_then(|metadata| metadata.labels.as_ref()).unwrap_or(&none);
    if let Some(term) = asked.labels.iter().find(|term| !term.matches(labels)) {
        return Err(format!("the labels of {} do not match {term}, which was asked for", shown()));
    }
    for term in &asked.fields {
        let involved = object.involved_object.as_ref();
        let found = match term.field {
            Field::Name => metadata.and_then(|metadata| metadata.name.as_deref()),
            Field::Namespace => metadata.and_then(|metadata| metadata.namespace.as_deref()),
            Field::NodeName => object.spec.as_ref().and_then(|spec| spec.node_name.as_deref()),
            Field::InvolvedKind => involved.and_then(|involved| involved.kind.as_deref()),
            Field::InvolvedName => involved.and_then(|involved| involved.name.as_deref()),
            Field::InvolvedUid => involved.and_then(|involved| involved.uid.as_deref()),
            Field::Type => object.r#type.as_deref(),
        };
        if (found.unwrap_or_default() == term.value) != term.is_equal {
            return Err(format!("{} does not have the field {:?} that was asked for", shown(), term.value));
        }
    }
    Ok(())
}

/// Its name is one, and it is where it was asked for.
fn check_place(asked: &Asked, metadata: Option<&Metadata>) -> Result<(), String> {
    let name = metadata.and_then(|metadata| metadata.name.as_deref()).unwrap_or_default();
    if !is_name(&asked.group, &asked.resource, name) {
        return Err(format!("no object of {} can be called {name:?}", asked.resource));
    }
    check_namespace(asked, metadata)
}

fn check_namespace(asked: &Asked, metadata: Option<&Metadata>) -> Result<(), String> {
    let resource = &asked.resource;
    let name = metadata.and_then(|metadata| metadata.name.as_deref()).unwrap_or_default();
    match (metadata.and_then(|metadata| metadata.namespace.as_deref()), &asked.namespace) {
        (Some(found), None) if !found.is_empty() && !is_dns_label(found) => {
            Err(format!("{resource} {name:?} is in {found:?}, which can be no namespace"))
        }
        (found, Some(wanted)) if found != Some(wanted) => {
            let found = found.unwrap_or_default();
            Err(format!("{resource} {name:?} is in namespace {found:?}, and {wanted:?} was asked for"))
        }
        _ => Ok(()),
    }
}

/// The object that was asked for, or what became of it.
fn check_one(asked: &Asked, object: &Object) -> Result<(), String> {
    if object.kind.as_deref() == Some("Status") {
        return Ok(());
    }
    let metadata = object.metadata.as_ref();
    let found = metadata.and_then(|metadata| metadata.name.as_deref());
    let resource = &asked.resource;
    match (&asked.of, found) {
        (Of::One(wanted), found) | (Of::About(wanted), found @ Some(_)) if found != Some(wanted) => {
            return Err(format!(
                "it is {resource} {:?}, and {wanted:?} was asked for",
                found.unwrap_or_default()
            ));
        }
        (Of::New, Some(found)) if !is_name(&asked.group, resource, found) => {
            return Err(format!("no object of {resource} can be called {found:?}"));
        }
        // What is only asked, such as a review of rights, has no name, and is nowhere.
        (_, None) => return Ok(()),
        _ => {}
    }
    check_namespace(asked, metadata)
}
