//! Implements Kubernetes' semantics on top of the [`Store`], for the HTTP handlers, controllers and node agents.
//!
//! The registry implements names, defaults, generations, optimistic concurrency, selectors, graceful deletion and
//! Service addresses. It knows nothing of HTTP and adds no delays; both are up to the caller.

mod admission;
mod deletion;
mod event_object;
mod eviction;
mod field_defaults;
mod field_rules;
mod follow;
mod page;
mod patch;
mod service;
mod validation;
mod write;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use serde_json::{Value, json};

use super::address_block::AddressBlock;
use super::conditions;
use super::resource::Resource;
use super::selector::ObjectSelection;
use super::status::{FieldError, Status};
use super::store::{self, ObjectChange, Store, StoreAction};
use rolldrop_record::Clock;

pub(crate) use deletion::{DeleteOptions, Deleted};
pub(crate) use event_object::{ContainerSource, EventType, NOT_MODELLED};
pub(crate) use eviction::{covers, set_allowed_condition};
pub(crate) use follow::{ObservedEvent, follow};
pub(crate) use page::PageRequest;
pub(crate) use patch::{ObjectPatch, PatchKind};
pub(crate) use validation::check_shape_of;
pub(crate) use write::WriteEffect;

/// A cluster's objects, with Kubernetes' rules enforced. Clones share the same objects.
#[derive(Clone, Debug)]
pub(crate) struct Registry {
    inner: Arc<RegistryState>,
}

#[derive(Debug)]
struct RegistryState {
    store: Store,
    clock: Clock,
    addresses: AddressBlock,
    /// Certificate of the API server's CA, in PEM.
    authority: Arc<str>,
    /// Lock held from choosing a Service's address until the Service is stored.
    service_addresses: Mutex<()>,
    /// Event names, by hash of the event's content.
    events: Mutex<HashMap<u64, String>>,
}

/// The part of an object that a write may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ObjectPart {
    /// Everything except the status.
    Main,
    /// The status alone.
    Status,
}

/// Result of a list request.
#[derive(Clone, Debug)]
pub(crate) struct VersionedList {
    /// The objects, sorted by namespace and name.
    pub items: Vec<Arc<Value>>,
    /// Store version that the list reflects. A watch can continue from there.
    pub version: u64,
}

/// Starting point for a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WatchFrom {
    /// Now, with an `Added` event for every existing object first.
    Existing,
    /// After this version.
    Version(u64),
}

/// Type of a change, as seen through a watch's selectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WatchEventType {
    /// The object was created, or the selectors now match it.
    Added,
    /// The object changed.
    Modified,
    /// The object was removed, or the selectors no longer match it.
    Deleted,
}

/// A single watch event.
#[derive(Clone, Debug)]
pub(crate) struct WatchEvent {
    /// Type of the change.
    pub event_type: WatchEventType,
    /// Object after the change, or its last state if it was deleted.
    pub object: Arc<Value>,
}

impl Registry {
    /// Creates an empty cluster.
    pub(crate) fn new(clock: Clock, addresses: AddressBlock, authority: Arc<str>) -> Self {
        let inner = RegistryState {
            store: Store::default(),
            clock,
            addresses,
            authority,
            service_addresses: Mutex::new(()),
            events: Mutex::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Returns the current time in the format used in objects: RFC 3339, in whole seconds.
    pub(crate) fn now(&self) -> String {
        rfc3339(self.now_seconds())
    }

    /// Returns the current time in Unix seconds.
    pub(crate) fn now_seconds(&self) -> i64 {
        self.inner.clock.now().unix_ns().div_euclid(1_000_000_000)
    }

    /// Returns the address block for nodes, pods and Services.
    pub(crate) fn addresses(&self) -> &AddressBlock {
        &self.inner.addresses
    }

    /// Returns the certificate of the API server's CA, in PEM.
    pub(crate) fn authority(&self) -> &str {
        &self.inner.authority
    }

    /// Returns one object. For cluster-scoped resources, `namespace` is empty.
    ///
    /// # Errors
    ///
    /// 404 if the object does not exist.
    pub(crate) fn get(&self, resource: Resource, namespace: &str, name: &str) -> Result<Arc<Value>, Status> {
        self.inner.store.get(resource, namespace, name).ok_or_else(|| Status::not_found(resource, name))
    }

    /// Returns the selected objects of a resource, in one namespace or in all of them.
    pub(crate) fn list(
        &self,
        resource: Resource,
        namespace: Option<&str>,
        selection: &ObjectSelection,
    ) -> VersionedList {
        let (mut items, version) = self.inner.store.list(resource, namespace);
        items.retain(|object| selection.matches(object));
        VersionedList { items, version }
    }

    /// Returns all objects of a resource, in one namespace or in all of them.
    pub(crate) fn all(&self, resource: Resource, namespace: Option<&str>) -> Vec<Arc<Value>> {
        self.inner.store.list(resource, namespace).0
    }

    /// Returns the objects of any kind whose `ownerReferences` contain the uid `owner`.
    pub(crate) fn dependents(&self, owner: &str) -> Vec<(Resource, Arc<Value>)> {
        self.inner.store.dependents(owner)
    }

    /// Watches the selected objects of a resource, in one namespace or in all of them.
    ///
    /// # Errors
    ///
    /// 410 if the history does not reach back to the given version.
    pub(crate) fn watch(
        &self,
        resource: Resource,
        namespace: Option<&str>,
        selection: ObjectSelection,
        from: WatchFrom,
    ) -> Result<ObjectWatch, Status> {
        let (existing, version) = match from {
            WatchFrom::Existing => {
                let list = self.list(resource, namespace, &selection);
                (list.items.into(), list.version)
            }
            WatchFrom::Version(version) => (VecDeque::new(), version),
        };
        let changes = self.inner.store.watch(resource, version).map_err(expired)?;
        Ok(ObjectWatch { existing, changes, namespace: namespace.map(str::to_owned), selection })
    }

    /// Binds a pod to a node, as the scheduler does. Leaves pods that are already bound or being deleted unchanged.
    ///
    /// # Errors
    ///
    /// 404 if the pod is gone.
    pub(crate) fn bind(&self, namespace: &str, name: &str, node: &str) -> Result<Arc<Value>, Status> {
        let now = self.now();
        let bound = self.inner.store.modify(Resource::Pods, namespace, name, |current| {
            if current["spec"]["nodeName"].is_string() || current["metadata"]["deletionTimestamp"].is_string()
            {
                return Ok(StoreAction::Keep);
            }
            let mut pod = current.clone();
            pod["spec"]["nodeName"] = json!(node);
            let scheduled = json!({"type": "PodScheduled", "status": "True", "lastProbeTime": null});
            conditions::put(&mut pod, scheduled, &now);
            Ok(StoreAction::Replace(pod))
        })?;
        bound.ok_or_else(|| Status::not_found(Resource::Pods, name))
    }
}

fn copy_or_remove(from: &Value, to: &mut Value, field: &str) {
    match from.get(field) {
        Some(value) => to[field] = value.clone(),
        None => remove(to, field),
    }
}

/// Removes a field from an object, if present.
fn remove(object: &mut Value, field: &str) {
    if let Some(map) = object.as_object_mut() {
        map.remove(field);
    }
}

fn rfc3339(unix_seconds: i64) -> String {
    Timestamp::from_second(unix_seconds).map(|time| time.to_string()).unwrap_or_default()
}

/// Formats a number with the characters allowed in generated names, which were chosen so that they cannot form words.
pub(super) fn in_name_characters(mut number: u64, length: usize) -> String {
    const CHARACTERS: [char; 27] = [
        'b', 'c', 'd', 'f', 'g', 'h', 'j', 'k', 'l', 'm', 'n', 'p', 'q', 'r', 's', 't', 'v', 'w', 'x', 'z',
        '2', '4', '5', '6', '7', '8', '9',
    ];
    let mut text = String::new();
    for _ in 0..length {
        text.push(CHARACTERS[usize::try_from(number % 27).unwrap_or(0)]);
        number /= 27;
    }
    text
}

fn random_uid() -> String {
    let random: u128 = rand::random();
    // Set the version (4) and variant bits for a random UUID.
    let bits = random & !(0xF << 76) & !(0x3 << 62) | (0x4 << 76) | (0x2 << 62);
    let hex = format!("{bits:032x}");
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

fn expired(gone: store::VersionExpired) -> Status {
    Status::plain(410, gone.to_string())
}

/// Watch on a selection of objects. Cancel-safe at every await.
#[derive(Debug)]
pub(crate) struct ObjectWatch {
    existing: VecDeque<Arc<Value>>,
    changes: store::StoreWatch,
    namespace: Option<String>,
    selection: ObjectSelection,
}

impl ObjectWatch {
    /// Returns the next event, waiting if necessary.
    ///
    /// # Errors
    ///
    /// 410 if the watch has fallen behind the history. The caller must list again.
    pub(crate) async fn next(&mut self) -> Result<WatchEvent, Status> {
        if let Some(object) = self.existing.pop_front() {
            return Ok(WatchEvent { event_type: WatchEventType::Added, object });
        }
        loop {
            let change = self.changes.next().await.map_err(expired)?;
            if let Some(event) = self.select(change) {
                return Ok(event);
            }
        }
    }

    /// Returns the version up to which this watch has delivered every event. A later watch can start there.
    /// Returns `None` while events are pending.
    pub(crate) fn caught_up(&mut self) -> Option<u64> {
        if self.existing.is_empty() { self.changes.caught_up() } else { None }
    }

    fn select(&self, change: ObjectChange) -> Option<WatchEvent> {
        let ObjectChange { before, object, removed, version, .. } = change;
        if self.namespace.as_ref().is_some_and(|namespace| object["metadata"]["namespace"] != **namespace) {
            return None;
        }
        let was_selected = before.as_ref().is_some_and(|before| self.selection.matches(before));
        let is_selected = !removed && self.selection.matches(&object);
        let (event_type, object) = match (was_selected, is_selected) {
            (false, false) => return None,
            (false, true) => (WatchEventType::Added, object),
            (true, true) => (WatchEventType::Modified, object),
            (true, false) if removed => (WatchEventType::Deleted, object),
            // No longer selected: report the last selected state, with the version of the change.
            (true, false) => {
                let mut last = before.as_deref().cloned().unwrap_or_default();
                last["metadata"]["resourceVersion"] = json!(version.to_string());
                (WatchEventType::Deleted, Arc::new(last))
            }
        };
        Some(WatchEvent { event_type, object })
    }
}

#[cfg(test)]
mod tests;
