//! Store of all objects, with one increasing resource version and the change history that watchers read.
//!
//! The store knows nothing of Kubernetes' rules, which [`super::registry`] applies. Each watcher is a cursor into a
//! history shared by all watchers of a resource, so a watcher that never reads costs nothing. A watcher gets an error
//! once it falls behind the oldest remembered change.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard};

use serde_json::{Value, json};
use tokio::sync::watch;

use super::object_fields::ObjectKey;
use super::resource::Resource;
use super::sync::lock;
use super::value::list;

/// Maximum number of changes remembered per resource.
const HISTORY: usize = 8192;
/// Maximum total weight of the remembered changes, across all resources (see [`weight`]). In memory, the values take
/// up a few times as much.
const HISTORY_BYTES: usize = 16 * 1024 * 1024;

/// All objects in a cluster. Clones share the same objects.
#[derive(Clone, Debug, Default)]
pub(crate) struct Store {
    inner: Arc<SharedStore>,
}

#[derive(Debug, Default)]
struct SharedStore {
    state: Mutex<StoreState>,
    /// Notifies watchers when the version increases.
    version: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct StoreState {
    version: u64,
    tables: BTreeMap<Resource, ResourceTable>,
    /// Dependents by owner uid: the objects whose `ownerReferences` contain that uid.
    dependents: HashMap<String, BTreeSet<(Resource, ObjectKey)>>,
    /// Total weight of all remembered changes, in bytes.
    history_bytes: usize,
}

#[derive(Debug, Default)]
struct ResourceTable {
    objects: BTreeMap<ObjectKey, Arc<Value>>,
    history: VecDeque<ObjectChange>,
    /// Version of the newest change dropped from the history.
    forgotten: u64,
}

/// A single change to a single object.
#[derive(Clone, Debug)]
pub(crate) struct ObjectChange {
    /// Version assigned to the change.
    pub version: u64,
    /// Object before the change, or `None` if the change created it.
    pub before: Option<Arc<Value>>,
    /// Object after the change. For a removal, the object's last state, with the version of the removal.
    pub object: Arc<Value>,
    /// True if the change removed the object.
    pub removed: bool,
    bytes: usize,
}

/// Action that [`Store::modify`] takes on an object.
#[derive(Debug)]
pub(crate) enum StoreAction {
    /// Leave the object unchanged.
    Keep,
    /// Replace the object with this value.
    Replace(Value),
    /// Remove the object.
    Remove,
}

/// Part of a list.
#[derive(Debug)]
pub(super) struct ListChunk {
    pub(super) objects: Vec<Arc<Value>>,
    /// True if no objects follow this part, selected or not.
    pub(super) is_last: bool,
    /// Store version that the list reflects.
    pub(super) version: u64,
}

/// Error for a watch that starts before the oldest remembered change, or has fallen behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too old resource version: {version} ({oldest})")]
pub(crate) struct VersionExpired {
    /// Version that the watch had reached.
    pub version: u64,
    /// Oldest version from which a watch can continue.
    pub oldest: u64,
}

impl Store {
    fn lock(&self) -> MutexGuard<'_, StoreState> {
        lock(&self.inner.state)
    }

    /// Returns the version of the newest change.
    pub(crate) fn version(&self) -> u64 {
        self.lock().version
    }

    pub(crate) fn get(&self, resource: Resource, namespace: &str, name: &str) -> Option<Arc<Value>> {
        self.lock().tables.get(&resource)?.objects.get(&(namespace.to_owned(), name.to_owned())).cloned()
    }

    /// Returns all objects of a resource, or only those in one namespace, sorted by namespace and name, together with
    /// the store version that the list reflects.
    pub(crate) fn list(&self, resource: Resource, namespace: Option<&str>) -> (Vec<Arc<Value>>, u64) {
        let ListChunk { objects, version, .. } = self.page(resource, namespace, None, usize::MAX, |_| true);
        (objects, version)
    }

    /// Returns the objects of any kind whose `ownerReferences` contain the uid `owner`.
    pub(crate) fn dependents(&self, owner: &str) -> Vec<(Resource, Arc<Value>)> {
        let state = self.lock();
        let keys = state.dependents.get(owner).into_iter().flatten();
        let object = |(resource, key): &(Resource, ObjectKey)| {
            Some((*resource, Arc::clone(state.tables.get(resource)?.objects.get(key)?)))
        };
        keys.filter_map(object).collect()
    }

    /// Returns one page of a list: the first `most` selected objects after `start`. It examines no more objects than
    /// necessary. `is_selected` must not call the store.
    pub(super) fn page(
        &self,
        resource: Resource,
        namespace: Option<&str>,
        start: Option<ObjectKey>,
        most: usize,
        is_selected: impl Fn(&Value) -> bool,
    ) -> ListChunk {
        let state = self.lock();
        let first = match (start, namespace) {
            (Some(start), _) => Bound::Excluded(start),
            (None, Some(namespace)) => Bound::Included((namespace.to_owned(), String::new())),
            (None, None) => Bound::Unbounded,
        };
        let objects = state.tables.get(&resource).map(|table| table.objects.range((first, Bound::Unbounded)));
        let objects = objects.into_iter().flatten();
        let mut all = objects.take_while(|(key, _)| namespace.is_none_or(|namespace| key.0 == namespace));
        let selected = all.by_ref().filter(|(_, object)| is_selected(object));
        let objects = selected.take(most).map(|(_, object)| Arc::clone(object)).collect();
        ListChunk { objects, is_last: all.next().is_none(), version: state.version }
    }

    /// Stores a new object. Returns `None` if the name is already taken.
    pub(crate) fn create(
        &self,
        resource: Resource,
        namespace: &str,
        name: &str,
        object: Value,
    ) -> Option<Arc<Value>> {
        let mut state = self.lock();
        let key = (namespace.to_owned(), name.to_owned());
        if state.tables.entry(resource).or_default().objects.contains_key(&key) {
            return None;
        }
        let object = state.put(resource, key, object);
        self.announce(state);
        Some(object)
    }

    /// Atomically applies the action that `change` returns to one object. Returns the resulting object (or its last
    /// state, if it was removed), or `None` if there is no such object.
    ///
    /// `change` runs under the store's lock, so it must not call the store.
    ///
    /// # Errors
    ///
    /// Any error from `change`, in which case the object stays unchanged.
    pub(crate) fn modify<E>(
        &self,
        resource: Resource,
        namespace: &str,
        name: &str,
        change: impl FnOnce(&Value) -> Result<StoreAction, E>,
    ) -> Result<Option<Arc<Value>>, E> {
        let mut state = self.lock();
        let key = (namespace.to_owned(), name.to_owned());
        let Some(before) = state.tables.get(&resource).and_then(|table| table.objects.get(&key)).cloned()
        else {
            return Ok(None);
        };
        let after = match change(&before)? {
            StoreAction::Keep => return Ok(Some(before)),
            StoreAction::Replace(object) => state.put(resource, key, object),
            StoreAction::Remove => state.remove(resource, &key),
        };
        self.announce(state);
        Ok(Some(after))
    }

    /// Watches a resource for changes after `version`.
    ///
    /// # Errors
    ///
    /// [`VersionExpired`] if the history no longer reaches back that far.
    pub(crate) fn watch(&self, resource: Resource, version: u64) -> Result<StoreWatch, VersionExpired> {
        let watch =
            StoreWatch { store: self.clone(), resource, version, announced: self.inner.version.subscribe() };
        watch.next_change().map(|_| watch)
    }

    fn announce(&self, state: MutexGuard<'_, StoreState>) {
        let version = state.version;
        drop(state);
        // Two writers may get here in either order, but the announced version must never decrease.
        self.inner.version.send_if_modified(|announced| {
            let rises = version > *announced;
            *announced = version.max(*announced);
            rises
        });
    }
}

impl StoreState {
    fn put(&mut self, resource: Resource, key: ObjectKey, mut object: Value) -> Arc<Value> {
        self.version += 1;
        set_version(&mut object, self.version);
        let object = Arc::new(object);
        let table = self.tables.entry(resource).or_default();
        let before = table.objects.insert(key.clone(), Arc::clone(&object));
        self.index(resource, &key, before.as_deref(), Some(&object));
        let bytes = weight(&object);
        let change = ObjectChange {
            version: self.version,
            before,
            object: Arc::clone(&object),
            removed: false,
            bytes,
        };
        self.remember(resource, change);
        object
    }

    /// Removes an object, which must exist.
    fn remove(&mut self, resource: Resource, key: &ObjectKey) -> Arc<Value> {
        self.version += 1;
        let table = self.tables.entry(resource).or_default();
        let before = table.objects.remove(key);
        self.index(resource, key, before.as_deref(), None);
        let mut last = before.as_deref().cloned().unwrap_or_default();
        set_version(&mut last, self.version);
        let object = Arc::new(last);
        let bytes = weight(&object);
        let change =
            ObjectChange { version: self.version, before, object: Arc::clone(&object), removed: true, bytes };
        self.remember(resource, change);
        object
    }

    /// Updates the index of dependents after a change to an object's owners.
    fn index(&mut self, resource: Resource, key: &ObjectKey, before: Option<&Value>, after: Option<&Value>) {
        for owner in before.into_iter().flat_map(owner_uids) {
            if let Some(dependents) = self.dependents.get_mut(owner) {
                dependents.remove(&(resource, key.clone()));
                if dependents.is_empty() {
                    self.dependents.remove(owner);
                }
            }
        }
        for owner in after.into_iter().flat_map(owner_uids) {
            self.dependents.entry(owner.to_owned()).or_default().insert((resource, key.clone()));
        }
    }

    fn remember(&mut self, resource: Resource, change: ObjectChange) {
        self.history_bytes += change.bytes;
        let table = self.tables.entry(resource).or_default();
        table.history.push_back(change);
        if table.history.len() > HISTORY {
            self.history_bytes -= table.forget_oldest();
        }
        // Drop the oldest changes across all resources, but always keep the newest change.
        while self.history_bytes > HISTORY_BYTES {
            let age =
                |table: &&mut ResourceTable| table.history.front().map_or(u64::MAX, |change| change.version);
            match self.tables.values_mut().min_by_key(age) {
                Some(table) if age(&table) < self.version => self.history_bytes -= table.forget_oldest(),
                _ => break,
            }
        }
    }
}

impl ResourceTable {
    /// Drops the oldest change and returns its weight.
    fn forget_oldest(&mut self) -> usize {
        let Some(oldest) = self.history.pop_front() else { return 0 };
        self.forgotten = oldest.version;
        oldest.bytes
    }
}

/// Returns the approximate size of a value as JSON, in bytes.
pub(super) fn weight(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 5,
        Value::String(text) => text.len() + 3,
        Value::Array(list) => list.iter().map(weight).sum::<usize>() + 2,
        Value::Object(map) => map.iter().map(|(key, value)| key.len() + 4 + weight(value)).sum::<usize>() + 2,
    }
}

fn owner_uids(object: &Value) -> impl Iterator<Item = &str> {
    list(&object["metadata"]["ownerReferences"]).iter().filter_map(|reference| reference["uid"].as_str())
}

fn set_version(object: &mut Value, version: u64) {
    object["metadata"]["resourceVersion"] = json!(version.to_string());
}

/// Cursor into the history of one resource.
#[derive(Debug)]
pub(crate) struct StoreWatch {
    store: Store,
    resource: Resource,
    /// Newest version delivered so far.
    version: u64,
    announced: watch::Receiver<u64>,
}

impl StoreWatch {
    /// Returns the next change, waiting if necessary. Cancel-safe.
    ///
    /// # Errors
    ///
    /// [`VersionExpired`] if this watch has fallen behind the history.
    pub(crate) async fn next(&mut self) -> Result<ObjectChange, VersionExpired> {
        loop {
            self.announced.mark_unchanged();
            if let Some(change) = self.next_change()? {
                self.version = change.version;
                return Ok(change);
            }
            // Fails only once the store is dropped, which `self.store` prevents.
            let _ = self.announced.changed().await;
        }
    }

    /// Returns the version up to which this watch has delivered every change, or `None` if changes are still pending.
    /// Advances the watch to that version so that changes to other objects do not push it out of the history.
    pub(crate) fn caught_up(&mut self) -> Option<u64> {
        let version = self.store.version();
        match self.next_change() {
            Ok(None) => {
                self.version = version;
                Some(version)
            }
            Ok(Some(_)) | Err(_) => None,
        }
    }

    fn next_change(&self) -> Result<Option<ObjectChange>, VersionExpired> {
        let state = self.store.lock();
        let Some(table) = state.tables.get(&self.resource) else { return Ok(None) };
        if self.version < table.forgotten {
            return Err(VersionExpired { version: self.version, oldest: table.forgotten });
        }
        let next = table.history.partition_point(|change| change.version <= self.version);
        Ok(table.history.get(next).cloned())
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    fn object(n: u64) -> Value {
        json!({"metadata": {"name": "a"}, "n": n})
    }

    fn replace(store: &Store, n: u64) {
        store
            .modify(Resource::Pods, "default", "a", |_| Ok::<_, Infallible>(StoreAction::Replace(object(n))))
            .unwrap()
            .unwrap();
    }

    #[tokio::test]
    async fn watch_delivers_every_change_once() {
        let store = Store::default();
        let mut watch = store.watch(Resource::Pods, 0).unwrap();
        store.create(Resource::Pods, "default", "a", object(0)).unwrap();
        assert!(store.create(Resource::Pods, "default", "a", object(9)).is_none());
        store.create(Resource::Services, "default", "a", object(0)).unwrap();
        replace(&store, 1);
        replace(&store, 2);
        store.modify(Resource::Pods, "default", "a", |_| Ok::<_, Infallible>(StoreAction::Remove)).unwrap();
        let mut seen = Vec::new();
        for _ in 0..4 {
            let change = watch.next().await.unwrap();
            assert_eq!(change.object["metadata"]["resourceVersion"], change.version.to_string());
            seen.push((change.version, change.object["n"].as_u64(), change.before.is_some(), change.removed));
        }
        let expected = [
            (1, Some(0), false, false),
            (3, Some(1), true, false),
            (4, Some(2), true, false),
            (5, Some(2), true, true),
        ];
        assert_eq!(seen, expected);
        assert!(store.get(Resource::Pods, "default", "a").is_none());
    }

    #[test]
    fn owner_index_tracks_dependents() {
        let store = Store::default();
        let owned = |owners: &[&str]| {
            let references: Vec<_> = owners.iter().map(|uid| json!({"uid": uid})).collect();
            json!({"metadata": {"name": "a", "ownerReferences": references}})
        };
        let is_dependent = |owner: &str| !store.dependents(owner).is_empty();
        store.create(Resource::Pods, "default", "a", owned(&["x", "y"])).unwrap();
        assert!(is_dependent("x") && is_dependent("y"));
        let replaced = store.modify(Resource::Pods, "default", "a", |_| {
            Ok::<_, Infallible>(StoreAction::Replace(owned(&["y", "z"])))
        });
        assert_eq!(store.dependents("z"), [(Resource::Pods, replaced.unwrap().unwrap())]);
        assert!(!is_dependent("x") && is_dependent("y"));
        store.modify(Resource::Pods, "default", "a", |_| Ok::<_, Infallible>(StoreAction::Remove)).unwrap();
        assert!(store.lock().dependents.is_empty());
    }

    #[tokio::test]
    async fn waiting_watch_wakes_on_change() {
        let store = Store::default();
        let mut watch = store.watch(Resource::Pods, 0).unwrap();
        let waiting = tokio::spawn(async move { watch.next().await.unwrap().version });
        tokio::task::yield_now().await;
        store.create(Resource::Pods, "default", "a", object(0)).unwrap();
        assert_eq!(waiting.await.unwrap(), 1);
    }

    #[tokio::test]
    async fn lagging_watch_reports_expired_version() {
        let store = Store::default();
        store.create(Resource::Pods, "default", "a", object(0)).unwrap();
        let mut slow = store.watch(Resource::Pods, 0).unwrap();
        for n in 0..HISTORY as u64 + 10 {
            replace(&store, n);
        }
        let gone = slow.next().await.unwrap_err();
        assert_eq!(gone, VersionExpired { version: 0, oldest: 11 });
        assert!(store.watch(Resource::Pods, 10).is_err());
        assert_eq!(store.watch(Resource::Pods, 11).unwrap().next().await.unwrap().version, 12);
        assert_eq!(store.lock().tables[&Resource::Pods].history.len(), HISTORY);
    }

    #[test]
    fn history_bytes_are_bounded() {
        let store = Store::default();
        store.create(Resource::Pods, "default", "a", object(0)).unwrap();
        let big = json!({"metadata": {"name": "b"}, "data": "x".repeat(HISTORY_BYTES / 4)});
        store.create(Resource::ConfigMaps, "default", "b", big.clone()).unwrap();
        for _ in 0..10 {
            let replace = |_: &Value| Ok::<_, Infallible>(StoreAction::Replace(big.clone()));
            store.modify(Resource::ConfigMaps, "default", "b", replace).unwrap();
        }
        let state = store.lock();
        assert!(state.history_bytes <= HISTORY_BYTES);
        assert_eq!(state.tables[&Resource::ConfigMaps].history.len(), 3);
        assert_eq!(state.tables[&Resource::Pods].forgotten, 1, "the oldest goes first");
    }

    #[test]
    fn page_begins_after_start_key() {
        let store = Store::default();
        let named = |name: &str| json!({"metadata": {"namespace": "default", "name": name}});
        for name in ["a", "b"] {
            store.create(Resource::Pods, "default", name, named(name)).unwrap();
        }
        let (all, version) = store.list(Resource::Pods, None);
        let page = |namespace: &str, start: Option<&str>, most: usize, is_selected: fn(&Value) -> bool| {
            let start = start.map(|name| (namespace.to_owned(), name.to_owned()));
            let part = store.page(Resource::Pods, Some(namespace), start, most, is_selected);
            assert_eq!(part.version, version);
            (part.objects, part.is_last)
        };
        assert_eq!(page("default", None, 9, |_| true), (all.clone(), true));
        assert_eq!(page("default", None, 1, |_| true), (all[..1].to_vec(), false));
        assert_eq!(page("default", Some("a"), 1, |_| true), (all[1..].to_vec(), true));
        assert_eq!(page("default", None, 1, |pod| pod["metadata"]["name"] == "b"), (all[1..].to_vec(), true));
        assert_eq!(page("other", None, 9, |_| true), (Vec::new(), true));
    }

    #[test]
    fn list_returns_only_objects_in_namespace() {
        let store = Store::default();
        for (namespace, name) in [("a", "x"), ("ab", "y"), ("a", "z")] {
            store.create(Resource::Pods, namespace, name, object(0)).unwrap();
        }
        assert_eq!(store.list(Resource::Pods, Some("a")).0.len(), 2);
        assert_eq!(store.list(Resource::Pods, None), (store.list(Resource::Pods, None).0, 3));
        assert_eq!(store.list(Resource::Nodes, None).0.len(), 0);
    }
}
