//! Lists in pages, and lists of the past.
//!
//! All pages of a list show the state at which the first was made; the token for the next page
//! says where it begins. When the history no longer reaches back there, the list begins again.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use super::{List, Registry, Resource, Selection, Status, expired};
use crate::object::{self, Key};
use crate::store::Part;

/// Which part of which list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PageRequest {
    /// The most objects of one page; 0 for all.
    pub limit: usize,
    /// The token that came with the page before; empty for the first.
    pub token: String,
    /// List the state at this version, and no other.
    pub exact_version: Option<u64>,
    /// List no older state than this one.
    pub least_version: u64,
}

/// A page of a list.
#[derive(Clone, Debug)]
pub(crate) struct Page {
    /// The objects of this page, and the version of the whole list.
    pub list: List,
    /// The token for the next page, if there is one.
    pub next: Option<String>,
    /// How many objects follow, where that is known without looking at all.
    pub remaining: Option<usize>,
}

impl Registry {
    /// One page of the objects of a resource in one namespace or in all, as far as they are
    /// selected.
    ///
    /// # Errors
    ///
    /// 400 for a token that is none, 410 for a state that is no longer remembered, 504 for one that
    /// has not come yet.
    pub(crate) fn list_page(
        &self,
        resource: Resource,
        namespace: Option<&str>,
        selection: &Selection,
        page: &PageRequest,
    ) -> Result<Page, Status> {
        let (version, start) = match page.token.as_str() {
            "" => (page.exact_version, None),
            token => parse(token).map(|(version, start)| (Some(version), Some(start)))?,
        };
        let (wanted, current) = (version.unwrap_or(page.least_version), self.inner.store.version());
        if wanted > current {
            return Err(Status::too_large_version(wanted, current));
        }
        // Of a page no more objects are looked at than it takes; all are looked at when nobody waits for the store.
        let is_page = page.limit > 0;
        let most = if is_page { page.limit } else { usize::MAX };
        let is_selected = |object: &Value| !is_page || selection.matches(object);
        let part = self.inner.store.page_at(resource, namespace, version, start, most, is_selected);
        let Part { objects: mut items, following, version } = part.map_err(expired)?;
        if !is_page {
            items.retain(|object| selection.matches(object));
        }
        let next = items.last().filter(|_| following > 0).map(|last| token(version, &key(last)));
        let remaining = (following > 0 && *selection == Selection::all()).then_some(following);
        Ok(Page { list: List { items, version }, next, remaining })
    }
}

/// Where an object stands in a list. Its parts are compared one after the other, hence the
/// character that is lower than all others in between.
fn key(object: &Arc<Value>) -> String {
    let (namespace, name) = object::key(object);
    format!("{namespace}\0{name}")
}

fn token(version: u64, start: &str) -> String {
    URL_SAFE_NO_PAD.encode(json!({"v": "meta.k8s.io/v1", "rv": version, "start": start}).to_string())
}

fn parse(token: &str) -> Result<(u64, Key), Status> {
    let bytes = URL_SAFE_NO_PAD.decode(token.trim_end_matches('=')).ok();
    let read: Option<Value> = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let parts = read.and_then(|read| {
        let (namespace, name) = read["start"].as_str()?.split_once('\0')?;
        Some((read["rv"].as_u64()?, (namespace.to_owned(), name.to_owned())))
    });
    parts.ok_or_else(|| Status::bad_request("continue key is not valid"))
}
