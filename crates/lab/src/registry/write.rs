//! Writes objects: turns a request from a client or controller into the object to store.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{
    ObjectPart, ObjectPatch, PatchKind, Registry, copy_or_remove, field_defaults, in_name_characters,
    random_uid, remove, service, validation,
};
use crate::object_fields::key;
use crate::resource::Resource;
use crate::schema;
use crate::status::{FieldError, Status};
use crate::store::StoreAction;
use crate::well_known::{DEFAULT_ACCOUNT, ROOT_CA};

/// Effect of a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum WriteEffect {
    /// The result is stored.
    #[default]
    Stored,
    /// The result is only returned.
    DryRun,
}

impl Registry {
    /// Stores a new object with defaults filled in. The name comes from `name` or `generateName`.
    ///
    /// # Errors
    ///
    /// 400 and 422 for an invalid object, 403 if its namespace is being deleted, 404 if the namespace does not exist,
    /// 409 if the name is already taken.
    pub(crate) fn create(
        &self,
        resource: Resource,
        namespace: &str,
        object: Value,
    ) -> Result<Arc<Value>, Status> {
        self.create_with(resource, namespace, object, WriteEffect::Stored)
    }

    /// Stores a new object for a client.
    ///
    /// # Errors
    ///
    /// Same as for [`Registry::create`].
    pub(crate) fn create_with(
        &self,
        resource: Resource,
        namespace: &str,
        mut object: Value,
        effect: WriteEffect,
    ) -> Result<Arc<Value>, Status> {
        validation::check_shape(resource, &object)?;
        self.check_namespace(resource, namespace, &object)?;
        let metadata = &mut object["metadata"];
        if metadata.get("resourceVersion").and_then(Value::as_str).is_some_and(|version| !version.is_empty())
        {
            return Err(Status::bad_request("resourceVersion should not be set on objects to be created"));
        }
        let generated =
            metadata["generateName"].as_str().filter(|prefix| !prefix.is_empty()).map(str::to_owned);
        let given = metadata["name"].as_str().filter(|name| !name.is_empty()).map(str::to_owned);
        let name = given.or_else(|| generated.map(|prefix| prefix + &in_name_characters(rand::random(), 5)));
        let name = name.ok_or_else(|| {
            let causes = [FieldError::required("metadata.name", "name or generateName is required")];
            Status::invalid(resource, "", &causes)
        })?;
        metadata["name"] = json!(name);
        metadata["uid"] = json!(random_uid());
        metadata["creationTimestamp"] = json!(self.now());
        if resource.namespaced() {
            metadata["namespace"] = json!(namespace);
        }
        if resource.has_generation() {
            metadata["generation"] = json!(1);
        }
        for field in ["deletionTimestamp", "deletionGracePeriodSeconds", "managedFields", "selfLink"] {
            remove(metadata, field);
        }
        if resource.has_status() && resource != Resource::Nodes {
            remove(&mut object, "status");
        }
        schema::prune(schema::of(resource), &mut object);
        field_defaults::fill_defaults(resource, &mut object);
        if resource == Resource::Pods {
            self.admit_pod(namespace, &mut object)?;
        }
        field_defaults::prepare(resource, &mut object);
        validation::validate(resource, &name, None, &object)?;
        let allocation = self.begin_allocation(resource, namespace, &name);
        if let Some(allocation) = &allocation {
            self.allocate_for_service(&name, &mut object, &allocation.others)?;
        }
        let taken = || Status::already_exists(resource, &name);
        if effect == WriteEffect::DryRun {
            return match self.inner.store.get(resource, namespace, &name) {
                Some(_) => Err(taken()),
                None => Ok(Arc::new(object)),
            };
        }
        let created = self.inner.store.create(resource, namespace, &name, object).ok_or_else(taken)?;
        if resource == Resource::Namespaces {
            self.fill_namespace(&name)?;
        }
        Ok(created)
    }

    /// Creates the objects that every namespace has: the `default` service account, and the certificate that pods use
    /// to verify the API server. Unlike a real cluster's, they are not restored after a deletion.
    fn fill_namespace(&self, namespace: &str) -> Result<(), Status> {
        self.create(Resource::ServiceAccounts, namespace, json!({"metadata": {"name": DEFAULT_ACCOUNT}}))?;
        let map = json!({"metadata": {"name": ROOT_CA}, "data": {"ca.crt": self.authority()}});
        self.create(Resource::ConfigMaps, namespace, map).map(drop)
    }

    fn check_namespace(&self, resource: Resource, namespace: &str, object: &Value) -> Result<(), Status> {
        if !resource.namespaced() {
            return Ok(());
        }
        let own = object["metadata"]["namespace"].as_str().unwrap_or_default();
        if !own.is_empty() && own != namespace {
            let message =
                "the namespace of the provided object does not match the namespace sent on the request";
            return Err(Status::bad_request(message));
        }
        let home = self.get(Resource::Namespaces, "", namespace)?;
        if home["metadata"]["deletionTimestamp"].is_string() {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            return Err(Status::namespace_terminating(resource, name, namespace));
        }
        Ok(())
    }

    /// Replaces the named object with `object`, except for the status.
    #[cfg(test)]
    pub(crate) fn update(
        &self,
        resource: Resource,
        namespace: &str,
        name: &str,
        object: Value,
    ) -> Result<Arc<Value>, Status> {
        self.write(resource, namespace, name, ObjectPart::Main, WriteEffect::Stored, |_| Ok(object))
    }

    /// Atomically changes one part of an object. `change` runs under the store's lock and must not call the registry.
    ///
    /// # Errors
    ///
    /// 404 if there is no such object, 422 if the result is invalid.
    pub(crate) fn modify(
        &self,
        resource: Resource,
        namespace: &str,
        name: &str,
        part: ObjectPart,
        change: impl FnOnce(&mut Value),
    ) -> Result<Arc<Value>, Status> {
        let make = |object: &mut Value| {
            change(object);
            Ok(())
        };
        self.modify_with(resource, namespace, name, part, WriteEffect::Stored, make)
    }

    /// Atomically changes one part of `object`, like [`Registry::modify`].
    pub(crate) fn change(
        &self,
        resource: Resource,
        object: &Value,
        part: ObjectPart,
        change: impl FnOnce(&mut Value),
    ) -> Result<Arc<Value>, Status> {
        let (namespace, name) = key(object);
        self.modify(resource, &namespace, &name, part, change)
    }

    /// Writes the status of an object, unless it is unchanged. Returns the resulting object.
    pub(crate) fn set_status(
        &self,
        resource: Resource,
        object: &Arc<Value>,
        status: Value,
    ) -> Result<Arc<Value>, Status> {
        if object["status"] == status {
            return Ok(Arc::clone(object));
        }
        self.change(resource, object, ObjectPart::Status, |object| object["status"] = status)
    }

    /// Atomically changes one part of an object, unless `change` rejects its current state. `change` runs under the
    /// store's lock, so it must not call the registry.
    ///
    /// # Errors
    ///
    /// 404 if there is no such object, 409 if the result has an outdated resourceVersion or a different uid, 400 and
    /// 422 if the result is invalid, and any error from `change`.
    pub(crate) fn modify_with(
        &self,
        resource: Resource,
        namespace: &str,
        name: &str,
        part: ObjectPart,
        effect: WriteEffect,
        change: impl FnOnce(&mut Value) -> Result<(), Status>,
    ) -> Result<Arc<Value>, Status> {
        self.write(resource, namespace, name, part, effect, |current| {
            let mut object = current.clone();
            change(&mut object)?;
            Ok(object)
        })
    }

    /// Applies a patch to one part of an object, unless `judge` rejects the result. `judge` sees the result before
    /// unknown fields are dropped. A server-side apply creates a missing object, and is merged like a strategic merge
    /// patch, because the lab does not track field ownership.
    ///
    /// # Errors
    ///
    /// 404, 409 and 422 as for [`Registry::modify_with`], 400 for a malformed patch, and any error from `judge`.
    #[expect(clippy::too_many_arguments, reason = "an object's path takes three, and a patch has options")]
    pub(crate) fn patch(
        &self,
        resource: Resource,
        namespace: &str,
        name: &str,
        part: ObjectPart,
        patch: &ObjectPatch,
        effect: WriteEffect,
        mut judge: impl FnMut(&Value) -> Result<(), Status>,
    ) -> Result<Arc<Value>, Status> {
        let result = self.write(resource, namespace, name, part, effect, |current| {
            let patched = patch.apply(schema::of(resource), current)?;
            judge(&patched)?;
            Ok(patched)
        });
        match result {
            Err(status)
                if status.code() == 404 && part == ObjectPart::Main && patch.kind == PatchKind::Apply =>
            {
                let mut object = patch.body.clone();
                object["metadata"]["name"] = json!(name);
                judge(&object)?;
                self.create_with(resource, namespace, object, effect)
            }
            result => result,
        }
    }

    /// Changes an object. Every change goes through this function, which builds the new state from the current one,
    /// restores fields that the caller may not change, fills in defaults, validates the result, and updates the
    /// generation.
    fn write(
        &self,
        resource: Resource,
        namespace: &str,
        name: &str,
        part: ObjectPart,
        effect: WriteEffect,
        make: impl FnOnce(&Value) -> Result<Value, Status>,
    ) -> Result<Arc<Value>, Status> {
        let allocation = match part {
            ObjectPart::Main => self.begin_allocation(resource, namespace, name),
            ObjectPart::Status => None,
        };
        let mut would_be = None;
        let written = self.inner.store.modify(resource, namespace, name, |current| {
            let made = make(current)?;
            validation::check_shape(resource, &made)?;
            check_identity(resource, name, current, &made)?;
            let mut new = match part {
                ObjectPart::Status => {
                    let mut new = current.clone();
                    new["status"] = made.get("status").cloned().unwrap_or_else(|| json!({}));
                    new
                }
                ObjectPart::Main => {
                    let mut new = made;
                    keep_system_fields(resource, current, &mut new);
                    new
                }
            };
            schema::prune(schema::of(resource), &mut new);
            if part == ObjectPart::Main {
                field_defaults::fill_defaults(resource, &mut new);
                field_defaults::prepare(resource, &mut new);
                validation::validate(resource, name, Some(current), &new)?;
                if let Some(allocation) = &allocation {
                    self.allocate_for_service(name, &mut new, &allocation.others)?;
                }
                if resource.has_generation() && differs_in_substance(current, &new) {
                    let generation = current["metadata"]["generation"].as_i64().unwrap_or(0);
                    new["metadata"]["generation"] = json!(generation + 1);
                }
            }
            if effect == WriteEffect::DryRun {
                would_be = Some(Arc::new(new));
                return Ok(StoreAction::Keep);
            }
            Ok(if new == *current { StoreAction::Keep } else { StoreAction::Replace(new) })
        })?;
        let written = written.ok_or_else(|| Status::not_found(resource, name))?;
        Ok(would_be.unwrap_or(written))
    }
}

/// Rejects a write meant for a different object or for an older state.
fn check_identity(resource: Resource, name: &str, current: &Value, made: &Value) -> Result<(), Status> {
    let metadata = &made["metadata"];
    let own_name = metadata["name"].as_str().unwrap_or(name);
    if own_name != name {
        let message =
            format!("the name of the object ({own_name}) does not match the name on the URL ({name})");
        return Err(Status::bad_request(message));
    }
    let own_namespace = metadata["namespace"].as_str().filter(|namespace| !namespace.is_empty());
    if own_namespace.is_some_and(|namespace| current["metadata"]["namespace"] != namespace) {
        let message = "the namespace of the provided object does not match the namespace sent on the request";
        return Err(Status::bad_request(message));
    }
    let meant = |field: &str| metadata[field].as_str().filter(|text| !text.is_empty());
    if let Some(uid) = meant("uid")
        && current["metadata"]["uid"] != uid
    {
        let why = format!(
            "Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
            current["metadata"]["uid"].as_str().unwrap_or_default()
        );
        return Err(Status::conflict(resource, name, &why));
    }
    if let Some(version) = meant("resourceVersion")
        && current["metadata"]["resourceVersion"] != version
    {
        let why =
            "the object has been modified; please apply your changes to the latest version and try again";
        return Err(Status::conflict(resource, name, why));
    }
    Ok(())
}

/// Restores the fields that no client may write.
fn keep_system_fields(resource: Resource, current: &Value, new: &mut Value) {
    const KEPT: [&str; 9] = [
        "name",
        "generateName",
        "namespace",
        "uid",
        "resourceVersion",
        "generation",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    ];
    for field in KEPT {
        copy_or_remove(&current["metadata"], &mut new["metadata"], field);
    }
    remove(&mut new["metadata"], "managedFields");
    if resource.has_status() {
        copy_or_remove(current, new, "status");
    }
    if resource == Resource::Services {
        service::keep_allocated(&current["spec"], &mut new["spec"]);
    }
    if resource == Resource::Namespaces {
        copy_or_remove(current, new, "spec");
    }
}

/// Returns true if anything except metadata and status differs.
fn differs_in_substance(a: &Value, b: &Value) -> bool {
    let substance = |value: &Value, other: &Value| {
        let fields = value.as_object().into_iter().flatten();
        fields
            .filter(|(key, _)| *key != "metadata" && *key != "status")
            .any(|(key, value)| other.get(key) != Some(value))
    };
    substance(a, b) || substance(b, a)
}
