//! Deletes objects, with a grace period for pods.
//!
//! Grace periods are computed as in kube-apiserver (`BeforeDelete` in
//! staging/src/k8s.io/apiserver/pkg/registry/rest/delete.go, `CheckGracefulDelete` in
//! pkg/registry/core/pod/strategy.go).

use std::convert::Infallible;
use std::sync::Arc;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Registry, Resource, Status, StoreAction, rfc3339};
use crate::object_fields::{is_being_deleted, is_terminal, key, uid};

/// Namespaces that cannot be deleted.
const IMMORTAL_NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];

/// Options for a deletion.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct DeleteOptions {
    /// Overrides the pod's own grace period.
    pub grace_period_seconds: Option<i64>,
    /// Conditions that must be met for the deletion.
    pub preconditions: Option<Preconditions>,
    /// Treatment of dependents, which are always deleted after their owner.
    pub propagation_policy: Option<Propagation>,
    /// `All` for a dry run, which is supported for evictions only.
    pub dry_run: Vec<String>,
}

impl DeleteOptions {
    /// Returns options with a grace period, which apply only to the object with this uid.
    pub(crate) fn new(grace_period_seconds: i64, uid: &str) -> Self {
        Self { grace_period_seconds: Some(grace_period_seconds), ..Self::of(uid) }
    }

    /// Returns options that apply only to the object with this uid.
    pub(crate) fn of(uid: &str) -> Self {
        let preconditions = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
        Self { preconditions: Some(preconditions), ..Self::default() }
    }
}

/// Conditions that must be met for a deletion.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Preconditions {
    /// Required uid of the object.
    pub uid: Option<String>,
    /// Required resourceVersion of the object.
    pub resource_version: Option<String>,
}

/// Treatment of the dependents of a deleted object. Foreground deletion is treated as background deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(crate) enum Propagation {
    /// Not supported.
    Orphan,
    Background,
    Foreground,
}

/// Outcome of a deletion request.
#[derive(Debug)]
pub(crate) enum Deleted {
    /// The object still exists, because it has a grace period or contents.
    Terminating(Arc<Value>),
    /// The pod is marked for deletion, and its grace period has expired. Call [`PendingRemoval::finish`] next.
    Due(PendingRemoval),
    /// The object was removed. This is its last state.
    Removed(Arc<Value>),
}

impl Deleted {
    /// Returns the object's latest state.
    pub(crate) fn object(&self) -> &Arc<Value> {
        match self {
            Self::Terminating(object) | Self::Removed(object) => object,
            Self::Due(due) => &due.object,
        }
    }
}

/// A pod that is marked for deletion and due for removal. [`PendingRemoval::finish`] removes it, as does dropping this
/// value.
#[derive(Debug)]
#[must_use]
pub(crate) struct PendingRemoval {
    registry: Registry,
    object: Arc<Value>,
}

impl PendingRemoval {
    /// Removes the pod and returns its last state. Does nothing if another caller has already removed the pod.
    pub(crate) fn finish(self) -> Arc<Value> {
        self.remove().unwrap_or_else(|| Arc::clone(&self.object))
    }

    fn remove(&self) -> Option<Arc<Value>> {
        let (namespace, name) = key(&self.object);
        let is_this = |object: &Value| uid(object) == uid(&self.object);
        let removed = self.registry.inner.store.modify(Resource::Pods, &namespace, &name, |current| {
            Ok::<_, Infallible>(if is_this(current) { StoreAction::Remove } else { StoreAction::Keep })
        });
        let Ok(object) = removed;
        object.filter(|object| is_this(object))
    }
}

impl Drop for PendingRemoval {
    fn drop(&mut self) {
        self.remove();
    }
}

impl Registry {
    /// Deletes an object immediately, or marks it as terminating if it has a grace period or contents.
    ///
    /// # Errors
    ///
    /// 404 if the object does not exist, 409 if a precondition fails, 403 for namespaces that cannot be deleted.
    pub(crate) fn delete(
        &self,
        resource: Resource,
        namespace: &str,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<Deleted, Status> {
        Ok(match self.begin_delete(resource, namespace, name, options)? {
            Deleted::Due(due) => Deleted::Removed(due.finish()),
            deleted => deleted,
        })
    }

    /// Deletes an object with default options, like [`Registry::delete`]. Succeeds if the object is already gone.
    pub(crate) fn remove(&self, resource: Resource, object: &Value) -> Result<(), Status> {
        let (namespace, name) = key(object);
        match self.delete(resource, &namespace, &name, &DeleteOptions::default()) {
            Err(status) if status.code() != 404 => Err(status),
            _ => Ok(()),
        }
    }

    /// Performs the first half of [`Registry::delete`], for callers that add a delay before the second half, as a real
    /// API server does: a pod whose grace period has expired is marked for deletion, but not yet removed.
    ///
    /// # Errors
    ///
    /// Same as for [`Registry::delete`].
    pub(crate) fn begin_delete(
        &self,
        resource: Resource,
        namespace: &str,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<Deleted, Status> {
        if resource == Resource::Namespaces && IMMORTAL_NAMESPACES.contains(&name) {
            return Err(Status::forbidden(resource, name, "this namespace may not be deleted"));
        }
        if !options.dry_run.is_empty() {
            let why = "the embedded cluster does not support dry runs of deletions: omit dryRun";
            return Err(Status::bad_request(why));
        }
        if options.propagation_policy == Some(Propagation::Orphan) {
            let why =
                "the embedded cluster does not support orphaning: it deletes dependents with their owner";
            return Err(Status::bad_request(why));
        }
        let now = self.now_seconds();
        let mut removes = false;
        let deleted = self.inner.store.modify(resource, namespace, name, |current| {
            check_preconditions(resource, name, current, options)?;
            let step = match resource {
                Resource::Pods => delete_pod(current, options.grace_period_seconds, now),
                Resource::Namespaces => delete_namespace(current, now),
                _ => StoreAction::Remove,
            };
            removes = matches!(step, StoreAction::Remove);
            if resource == Resource::Pods && !is_being_deleted(current) {
                // Log inside the change so that no other change can come in between.
                let t_ns = self.inner.clock.now().unix_ns();
                tracing::debug!(
                    uid = current["metadata"]["uid"].as_str(),
                    t_ns,
                    "a pod's deletion takes effect"
                );
            }
            Ok(step)
        })?;
        let object = deleted.ok_or_else(|| Status::not_found(resource, name))?;
        Ok(if removes {
            Deleted::Removed(object)
        } else if resource == Resource::Pods && is_due(&object) {
            Deleted::Due(PendingRemoval { registry: self.clone(), object })
        } else {
            Deleted::Terminating(object)
        })
    }

    /// Removes a terminating namespace, which the caller must already have emptied.
    ///
    /// # Errors
    ///
    /// 404 if the namespace is gone, 409 if it is not being deleted.
    pub(crate) fn remove_namespace(&self, name: &str) -> Result<(), Status> {
        let removed = self.inner.store.modify(Resource::Namespaces, "", name, |current| {
            if !is_being_deleted(current) {
                return Err(Status::conflict(Resource::Namespaces, name, "it is not being deleted"));
            }
            Ok(StoreAction::Remove)
        })?;
        removed.map(|_| ()).ok_or_else(|| Status::not_found(Resource::Namespaces, name))
    }
}

/// Returns true if a pod is marked for deletion and its grace period has expired.
fn is_due(pod: &Value) -> bool {
    is_being_deleted(pod) && pod["metadata"]["deletionGracePeriodSeconds"] == 0
}

/// Rejects a deletion meant for a different object or a different state.
pub(super) fn check_preconditions(
    resource: Resource,
    name: &str,
    current: &Value,
    options: &DeleteOptions,
) -> Result<(), Status> {
    let Some(wanted) = &options.preconditions else { return Ok(()) };
    let recreated = "The object might have been deleted and then recreated";
    let fields = [
        ("UID", "uid", &wanted.uid, recreated),
        (
            "ResourceVersion",
            "resourceVersion",
            &wanted.resource_version,
            "The object might have been modified",
        ),
    ];
    for (label, field, wanted, perhaps) in fields {
        let found = current["metadata"][field].as_str().unwrap_or_default();
        if let Some(wanted) = wanted
            && wanted != found
        {
            let why = format!(
                "the {label} in the precondition ({wanted}) does not match the {label} in record ({found}). {perhaps}"
            );
            return Err(Status::precondition_failed(resource, name, &why));
        }
    }
    Ok(())
}

/// Returns the action that a DELETE request at `now` (Unix seconds) causes for a pod.
fn delete_pod(pod: &Value, requested_grace: Option<i64>, now: i64) -> StoreAction {
    // A negative grace period means one second, the minimum.
    let at_least_one = |grace: i64| if grace < 0 { 1 } else { grace };
    let requested = requested_grace.map(at_least_one);
    let metadata = &pod["metadata"];
    let pending = metadata["deletionTimestamp"].as_str().zip(metadata["deletionGracePeriodSeconds"].as_i64());

    let (grace, ends_at) = if let Some((deletion_timestamp, grace)) = pending {
        let Some(shorter) = requested.filter(|requested| *requested < grace) else {
            return StoreAction::Keep;
        };
        let ended_at = deletion_timestamp.parse().map_or(now, |time: Timestamp| time.as_second());
        match ended_at - grace + shorter {
            // The deadline has already passed, so apply the minimum grace period, unless the deletion is forced.
            over if over <= now => (shorter.min(1), now),
            ends_at => (shorter, ends_at),
        }
    } else {
        let unscheduled = pod["spec"]["nodeName"].as_str().unwrap_or_default().is_empty();
        let own = pod["spec"]["terminationGracePeriodSeconds"].as_i64().map(at_least_one);
        let grace = if unscheduled || is_terminal(pod) { 0 } else { requested.or(own).unwrap_or(0) };
        (grace, now.saturating_add(grace))
    };

    let mut pod = pod.clone();
    let metadata = &mut pod["metadata"];
    metadata["deletionTimestamp"] = json!(rfc3339(ends_at));
    metadata["deletionGracePeriodSeconds"] = json!(grace);
    if pending.is_none() {
        let generation = metadata["generation"].as_i64().unwrap_or(0);
        metadata["generation"] = json!(generation + 1);
    }
    StoreAction::Replace(pod)
}

/// Returns the action that a DELETE request causes for a namespace, which is only marked, because its contents are
/// deleted first.
fn delete_namespace(namespace: &Value, now: i64) -> StoreAction {
    if is_being_deleted(namespace) {
        return StoreAction::Keep;
    }
    let mut namespace = namespace.clone();
    namespace["metadata"]["deletionTimestamp"] = json!(rfc3339(now));
    namespace["status"]["phase"] = json!("Terminating");
    StoreAction::Replace(namespace)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn running_pod() -> Value {
        json!({
            "metadata": {"generation": 1},
            "spec": {"nodeName": "node-1", "terminationGracePeriodSeconds": 30},
            "status": {"phase": "Running"},
        })
    }

    /// Returns the grace period, and the deadline in Unix seconds.
    fn marks(pod: &Value) -> (i64, i64) {
        let end: Timestamp = pod["metadata"]["deletionTimestamp"].as_str().unwrap().parse().unwrap();
        (pod["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap(), end.as_second())
    }

    #[test]
    fn shortened_grace_period_counts_from_first_delete() {
        let StoreAction::Replace(pod) = delete_pod(&running_pod(), None, 1_000) else { panic!("not marked") };
        assert_eq!(marks(&pod), (30, 1_030));
        let StoreAction::Replace(in_time) = delete_pod(&pod, Some(10), 1_003) else {
            panic!("not shortened")
        };
        assert_eq!(marks(&in_time), (10, 1_010));
        let StoreAction::Replace(too_late) = delete_pod(&pod, Some(10), 1_020) else {
            panic!("not shortened")
        };
        assert_eq!(marks(&too_late), (1, 1_020));
        let StoreAction::Replace(at_once) = delete_pod(&pod, Some(0), 1_005) else { panic!("not marked") };
        assert_eq!(marks(&at_once), (0, 1_005));
        assert!(is_due(&at_once) && !is_due(&pod));
    }

    proptest! {
        #[test]
        fn later_deletes_never_lengthen_grace_period(
            first in 1_i64..200,
            later in prop::collection::vec((0_i64..60, prop::option::of(-5_i64..300)), 0..6),
        ) {
            let mut now = 1_000;
            let StoreAction::Replace(mut pod) = delete_pod(&running_pod(), Some(first), now) else {
                panic!("not marked")
            };
            let (mut grace, mut end) = marks(&pod);
            prop_assert_eq!((grace, end), (first, now + first));
            for (pause, requested) in later {
                now += pause;
                match delete_pod(&pod, requested, now) {
                    StoreAction::Keep => {
                        prop_assert!(requested.is_none_or(|requested| requested.abs() >= grace || requested < 0))
                    }
                    StoreAction::Replace(shorter) => {
                        let (new_grace, new_end) = marks(&shorter);
                        prop_assert!(new_grace < grace);
                        prop_assert!(new_end <= end.max(now) && new_end >= now.min(1_000 + new_grace));
                        prop_assert_eq!(&shorter["metadata"]["generation"], 2);
                        (grace, end, pod) = (new_grace, new_end, shorter);
                        if grace == 0 {
                            break;
                        }
                    }
                    StoreAction::Remove => prop_assert!(false, "a pod is marked before it is removed"),
                }
            }
        }
    }
}
