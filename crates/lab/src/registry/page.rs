//! Pagination of lists.
//!
//! The token for the next page encodes the start of that page, and the version of the first page. Each page shows the
//! current state but reports the first page's version, so a client that watches from that version sees all later
//! changes.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use super::{ObjectSelection, Registry, Resource, Status, VersionedList};
use crate::object_fields::{self, ObjectKey};
use crate::store::ListChunk;

/// Part of a list requested by a client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PageRequest {
    /// Maximum number of objects per page, or 0 for no limit.
    pub limit: usize,
    /// Token from the previous page, or empty for the first page.
    pub token: String,
    /// Minimum version of the state to list.
    pub least_version: u64,
}

/// One page of a list.
#[derive(Clone, Debug)]
pub(crate) struct ListPage {
    /// Objects on this page, and the version of the complete list.
    pub list: VersionedList,
    /// Token for the next page, if any.
    pub next: Option<String>,
    /// Number of objects on later pages, if known without examining all objects.
    pub remaining: Option<usize>,
}

impl Registry {
    /// Returns one page of the selected objects of a resource, in one namespace or in all of them.
    ///
    /// # Errors
    ///
    /// 400 for an invalid token, 504 for a version that the store has not reached yet.
    pub(crate) fn list_page(
        &self,
        resource: Resource,
        namespace: Option<&str>,
        selection: &ObjectSelection,
        page: &PageRequest,
    ) -> Result<ListPage, Status> {
        let (version, start) = match page.token.as_str() {
            "" => (None, None),
            token => parse(token).map(|(version, start)| (Some(version), Some(start)))?,
        };
        let (wanted, current) = (version.unwrap_or(page.least_version), self.inner.store.version());
        if wanted > current {
            return Err(Status::too_large_version(wanted, current));
        }
        // A page examines no more objects than necessary. An unlimited list applies the selection after releasing the
        // store's lock.
        let is_page = page.limit > 0;
        let most = if is_page { page.limit } else { usize::MAX };
        let is_selected = |object: &Value| !is_page || selection.matches(object);
        let part = self.inner.store.page(resource, namespace, start, most, is_selected);
        let ListChunk { objects: mut items, following, version: current } = part;
        let version = version.unwrap_or(current);
        if !is_page {
            items.retain(|object| selection.matches(object));
        }
        let next = items.last().filter(|_| following > 0).map(|last| token(version, &key(last)));
        let remaining = (following > 0 && *selection == ObjectSelection::all()).then_some(following);
        Ok(ListPage { list: VersionedList { items, version }, next, remaining })
    }
}

/// Returns a sort key for an object's position in a list. The separator sorts before all other characters, so that the
/// namespace is compared before the name.
fn key(object: &Arc<Value>) -> String {
    let (namespace, name) = object_fields::key(object);
    format!("{namespace}\0{name}")
}

fn token(version: u64, start: &str) -> String {
    URL_SAFE_NO_PAD.encode(json!({"v": "meta.k8s.io/v1", "rv": version, "start": start}).to_string())
}

fn parse(token: &str) -> Result<(u64, ObjectKey), Status> {
    let bytes = URL_SAFE_NO_PAD.decode(token.trim_end_matches('=')).ok();
    let read: Option<Value> = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let parts = read.and_then(|read| {
        let (namespace, name) = read["start"].as_str()?.split_once('\0')?;
        Some((read["rv"].as_u64()?, (namespace.to_owned(), name.to_owned())))
    });
    parts.ok_or_else(|| Status::bad_request("continue key is not valid"))
}
