//! Pagination of lists.
//!
//! The token for the next page contains the version of the first page and the last object of the current page. Each
//! page shows the current state but reports the first page's version, so a client that watches from that version sees
//! all later changes.

use serde_json::Value;

use super::{ObjectSelection, Registry, Resource, Status, VersionedList};
use crate::object_fields::{ObjectKey, key};
use crate::store::ListChunk;

/// Part of a list requested by a client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PageRequest {
    /// Maximum number of objects per page, or 0 for no limit.
    pub limit: usize,
    /// Token from the previous page, or empty for the first page.
    pub token: String,
}

/// One page of a list.
#[derive(Clone, Debug)]
pub(crate) struct ListPage {
    /// Objects on this page, and the version of the complete list.
    pub list: VersionedList,
    /// Token for the next page, if any.
    pub next: Option<String>,
}

impl Registry {
    /// Returns one page of the selected objects of a resource, in one namespace or in all of them.
    ///
    /// # Errors
    ///
    /// 400 for an invalid token.
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
        // A page examines no more objects than necessary. An unlimited list applies the selection after releasing the
        // store's lock.
        let is_page = page.limit > 0;
        let most = if is_page { page.limit } else { usize::MAX };
        let is_selected = |object: &Value| !is_page || selection.matches(object);
        let part = self.inner.store.page(resource, namespace, start, most, is_selected);
        let ListChunk { objects: mut items, is_last, version: current } = part;
        let version = version.unwrap_or(current);
        if !is_page {
            items.retain(|object| selection.matches(object));
        }
        let next = items.last().filter(|_| !is_last).map(|last| token(version, last));
        Ok(ListPage { list: VersionedList { items, version }, next })
    }
}

/// Builds a token. Neither namespaces nor names contain a slash.
fn token(version: u64, last: &Value) -> String {
    let (namespace, name) = key(last);
    format!("{version}/{namespace}/{name}")
}

fn parse(token: &str) -> Result<(u64, ObjectKey), Status> {
    let mut parts = token.splitn(3, '/');
    let mut next = || parts.next().map(str::to_owned);
    let version = next().and_then(|version| version.parse().ok());
    let parsed = version.and_then(|version| Some((version, (next()?, next()?))));
    parsed.ok_or_else(|| Status::bad_request("continue key is not valid"))
}
