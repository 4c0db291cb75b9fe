//! Claims the objects that match a controller's selector.
//!
//! Like `ControllerRefManager` (pkg/controller/controller_ref_manager.go), it adopts matching objects that have no
//! controller, and releases controlled objects that no longer match.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::object_fields::{
    ObjectKey, controller_key, controller_of, controller_reference, is_being_deleted, key,
};
use crate::registry::{ObjectPart, ObservedEvent, Registry, WatchEventType};
use crate::resource::Resource;
use crate::selector::LabelSelector;
use crate::status::Status;
use crate::value::list;

/// Adopts and releases objects of `resource` for `owner`, and returns those that now belong to it. Objects for which
/// `considered` is false are left unchanged.
pub(super) fn claim(
    registry: &Registry,
    owner: &Value,
    resource: Resource,
    selector: &LabelSelector,
    considered: impl Fn(&Value) -> bool,
) -> Result<Vec<Arc<Value>>, Status> {
    let namespace = key(owner).0;
    let uid = &owner["metadata"]["uid"];
    let mut claimed = Vec::new();
    for object in registry.all(resource, Some(&namespace)) {
        if !considered(&object) {
            continue;
        }
        let matches = selector.matches(&object["metadata"]["labels"]);
        let owned = controller_of(&object).map(|reference| reference["uid"] == *uid);
        match owned {
            Some(true) if matches => claimed.push(object),
            Some(true) if !is_being_deleted(owner) => {
                change_owners(registry, resource, &object, |owners| {
                    owners.retain(|owner| owner["uid"] != *uid)
                })?;
            }
            None if matches && !is_being_deleted(&object) && may_adopt(registry, owner) => {
                let reference = controller_reference(owner);
                claimed.extend(change_owners(registry, resource, &object, |owners| owners.push(reference))?);
            }
            _ => {}
        }
    }
    Ok(claimed)
}

/// Returns the owners of type `resource` that may adopt an object without a controller.
pub(super) fn adopters(registry: &Registry, resource: Resource, object: &Value) -> Vec<ObjectKey> {
    let namespace = key(object).0;
    let owners = registry.all(resource, Some(&namespace));
    let selects = |owner: &&Arc<Value>| {
        LabelSelector::from_object(&owner["spec"]["selector"]).matches(&object["metadata"]["labels"])
    };
    owners.iter().filter(selects).map(|owner| key(owner)).collect()
}

/// Returns the owners of type `resource` that are affected by a change to one of them or to a pod.
pub(super) fn owners_concerned(
    registry: &Registry,
    owners: Resource,
    (resource, event): &ObservedEvent,
) -> Vec<ObjectKey> {
    let gone = event.event_type == WatchEventType::Deleted;
    match *resource {
        of_owner if of_owner == owners && gone => Vec::new(),
        of_owner if of_owner == owners => vec![key(&event.object)],
        _ if controller_of(&event.object).is_some() || gone => {
            controller_key(&event.object, owners).into_iter().collect()
        }
        _ => adopters(registry, owners, &event.object),
    }
}

/// Returns true if the owner may still adopt objects, according to its stored state.
fn may_adopt(registry: &Registry, owner: &Value) -> bool {
    let Some(resource) = Resource::of_reference(owner) else { return false };
    let (namespace, name) = key(owner);
    let current = registry.get(resource, &namespace, &name);
    current.is_ok_and(|current| {
        current["metadata"]["uid"] == owner["metadata"]["uid"] && !is_being_deleted(&current)
    })
}

/// Changes the owner references of an object. Returns `None` if the object is gone.
fn change_owners(
    registry: &Registry,
    resource: Resource,
    object: &Value,
    change: impl FnOnce(&mut Vec<Value>),
) -> Result<Option<Arc<Value>>, Status> {
    let mut owners = list(&object["metadata"]["ownerReferences"]).to_vec();
    change(&mut owners);
    let changed = registry.change(resource, object, ObjectPart::Main, |object| {
        object["metadata"]["ownerReferences"] = json!(owners);
    });
    match changed {
        Ok(changed) => Ok(Some(changed)),
        Err(status) if status.code() == 404 => Ok(None),
        Err(status) => Err(status),
    }
}
