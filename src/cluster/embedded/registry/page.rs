//! Lists in pages, and lists of the past.
//!
//! All pages of a list show the state at which the first was made; the token for the next page
//! says where it begins. When the history no longer reaches back there, the list begins again.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use super::{List, Registry, Resource, Selection, Status, expired};

/// Which part of which list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageRequest {
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
pub struct Page {
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
    pub fn list_page(
        &self,
        resource: Resource,
        namespace: Option<&str>,
        selection: &Selection,
        page: &PageRequest,
    ) -> Result<Page, Status> {
        let (version, start) = match page.token.as_str() {
            "" => (page.exact_version, String::new()),
            token => parse(token).map(|(version, start)| (Some(version), start))?,
        };
        let (wanted, current) = (version.unwrap_or(page.least_version), self.inner.store.version());
        if wanted > current {
            return Err(Status::too_large_version(wanted, current));
        }
        let mut list = match version {
            None => self.list(resource, namespace, selection),
            Some(version) => {
                let mut items = self.inner.store.list_at(resource, namespace, version).map_err(expired)?;
                items.retain(|object| selection.matches(object));
                List { items, version }
            }
        };
        list.items.retain(|object| start.is_empty() || key(object) > start);
        let mut next = None;
        let mut remaining = None;
        if page.limit > 0 && list.items.len() > page.limit {
            remaining = (*selection == Selection::all()).then(|| list.items.len() - page.limit);
            list.items.truncate(page.limit);
            next = list.items.last().map(|last| token(list.version, &key(last)));
        }
        Ok(Page { list, next, remaining })
    }
}

/// Where an object stands in a list. Its parts are compared one after the other, hence the
/// character that is lower than all others in between.
fn key(object: &Arc<Value>) -> String {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
    format!("{}\0{}", text("namespace"), text("name"))
}

fn token(version: u64, start: &str) -> String {
    URL_SAFE_NO_PAD.encode(json!({"v": "meta.k8s.io/v1", "rv": version, "start": start}).to_string())
}

fn parse(token: &str) -> Result<(u64, String), Status> {
    let bytes = URL_SAFE_NO_PAD.decode(token.trim_end_matches('=')).ok();
    let read: Option<Value> = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let parts = read.and_then(|read| Some((read["rv"].as_u64()?, read["start"].as_str()?.to_owned())));
    parts.ok_or_else(|| Status::bad_request("continue key is not valid"))
}
