//! Creates the manifests' objects and changes live ones, written down before it is done.

use http::{Request, header};
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, PostParams};
use kube::core::TypeMeta;
use kube::discovery::{self, Scope};
use kube::{Api, Client, ResourceExt};
use serde_json::Value;

use super::edits::{self, Edit};
use super::journal::{Change, JournalError, ObjectRef};
use super::undo::{self, Outcome};
use super::{CoordinatorError, Session};
use crate::scenario::Patch;

/// The label that says which run created an object.
pub(super) const RUN_LABEL: &str = "rolldrop.dev/run";

impl Session {
    /// Creates one object; never touches one that is there already.
    pub(super) async fn create(&self, manifest: &Value) -> Result<(), CoordinatorError> {
        let mut object: DynamicObject = serde_json::from_value(manifest.clone())
            .map_err(|e| CoordinatorError::Api { what: "read a manifest".into(), why: e.to_string() })?;
        let types = object.types.clone().unwrap_or_default();
        let (kind, name) = (types.kind.clone(), object.name_any());
        let what = format!("create {kind} {name}");
        let namespace = object.namespace().unwrap_or_else(|| self.caller.namespace.clone());
        let api = self.caller.limited(&what, api_for(&self.caller.client, &namespace, &types)).await??;
        object.labels_mut().insert(RUN_LABEL.into(), self.journal().run().to_owned());
        let reference = ObjectRef {
            api_version: types.api_version,
            kind: kind.clone(),
            namespace: Some(namespace),
            name: name.clone(),
            uid: None,
            resource_version: None,
        };
        let id = self.journal().announce(reference, Change::Create)?;
        match self.caller.limited(&what, api.create(&PostParams::default(), &object)).await? {
            Ok(created) => Ok(self.journal().created(id, created.uid().unwrap_or_default())?),
            Err(kube::Error::Api(status)) => {
                self.journal().undone(id, "refused")?;
                Err(if status.reason == "AlreadyExists" {
                    CoordinatorError::Exists(format!("{kind} {name}"))
                } else {
                    CoordinatorError::api(&what, &kube::Error::Api(status))
                })
            }
            // Whether it was created is not known.
            Err(error) => Err(CoordinatorError::api(&what, &error)),
        }
    }

    /// Makes one object of another that is in the cluster. Answers the change's number in the
    /// journal; none where there was nothing to change.
    pub(super) async fn change(
        &self,
        api: &Api<DynamicObject>,
        current: &Value,
        wanted: &Value,
    ) -> Result<Option<u32>, CoordinatorError> {
        let object = reference(current);
        let name = object.name.clone();
        let edits = edits::between(current, wanted);
        self.edit(object, edits, undo::patch(api, &name, current, wanted)).await
    }

    /// Changes an object as a patch says. Answers as [`Session::change`] does.
    pub(super) async fn patch(
        &self,
        api: &Api<DynamicObject>,
        current: &Value,
        patch: &Patch,
    ) -> Result<Option<u32>, CoordinatorError> {
        let patched = self.try_patch(api, current, patch).await?;
        let edits = edits::between(&as_asked_for(current), &as_asked_for(&patched));
        let object = reference(current);
        let name = object.name.clone();
        self.edit(object, edits, send_patch(&self.caller.client, api, &name, patch, "")).await
    }

    /// What an object would be by a patch; the API server changes nothing.
    pub(super) async fn try_patch(
        &self,
        api: &Api<DynamicObject>,
        current: &Value,
        patch: &Patch,
    ) -> Result<Value, CoordinatorError> {
        let object = reference(current);
        let what = format!("patch {object}");
        let patched = send_patch(&self.caller.client, api, &object.name, patch, "?dryRun=All");
        let patched = self.caller.limited(&what, patched).await?;
        let patched = patched.map_err(|e| CoordinatorError::api(&what, &e))?;
        Ok(serde_json::to_value(patched).unwrap_or_default())
    }

    /// Writes edits down, and makes them.
    async fn edit(
        &self,
        object: ObjectRef,
        edits: Vec<Edit>,
        call: impl Future<Output = kube::Result<DynamicObject>>,
    ) -> Result<Option<u32>, CoordinatorError> {
        if edits.is_empty() {
            return Ok(None);
        }
        let what = format!("change {object}");
        let id = self.journal().announce(object, Change::Edit { edits })?;
        match self.caller.limited(&what, call).await? {
            Ok(_) => Ok(Some(id)),
            Err(error) => {
                if matches!(error, kube::Error::Api(_)) {
                    self.journal().undone(id, "refused")?;
                }
                Err(CoordinatorError::api(&what, &error))
            }
        }
    }

    /// Undoes one change before the end of the run.
    pub(super) async fn take_back(&self, id: u32) -> Result<(), CoordinatorError> {
        let (run, open) = {
            let journal = self.journal();
            (journal.run().to_owned(), journal.open_changes().into_iter().find(|open| open.id == id))
        };
        let Some(open) = open else { return Ok(()) };
        let undone = undo::one(&self.caller.client, &run, open, self.caller.limits.api_call).await;
        match &undone.outcome {
            Outcome::Failed(why) => {
                Err(CoordinatorError::Api { what: "change it back".into(), why: why.clone() })
            }
            _ => Ok(self.journal().undone(id, undone.to_string())?),
        }
    }

    /// Leaves a change as it is, also at the end of the run.
    pub(super) fn keep_change(&self, id: u32) -> Result<(), JournalError> {
        self.journal().undone(id, "kept, as the scenario says")
    }
}

/// Sends a patch as it is, with a query.
async fn send_patch(
    client: &Client,
    api: &Api<DynamicObject>,
    name: &str,
    patch: &Patch,
    query: &str,
) -> kube::Result<DynamicObject> {
    let body = serde_json::to_vec(&patch.body).map_err(kube::Error::SerdeError)?;
    let request = Request::patch(format!("{}/{name}{query}", api.resource_url()))
        .header(header::CONTENT_TYPE, patch.patch_type.media_type())
        .body(body);
    client.request(request.map_err(kube::Error::HttpError)?).await
}

/// An object without what the API server and controllers write into it.
fn as_asked_for(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(map) = object.as_object_mut() {
        map.remove("status");
    }
    if let Some(metadata) = object["metadata"].as_object_mut() {
        for written in ["managedFields", "resourceVersion", "generation"] {
            metadata.remove(written);
        }
    }
    object
}

fn reference(object: &Value) -> ObjectRef {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    ObjectRef {
        api_version: text("/apiVersion").unwrap_or_default(),
        kind: text("/kind").unwrap_or_default(),
        namespace: text("/metadata/namespace"),
        name: text("/metadata/name").unwrap_or_default(),
        uid: text("/metadata/uid"),
        resource_version: text("/metadata/resourceVersion"),
    }
}

/// The API of a kind, in a namespace if it has those.
pub(super) async fn api_for(
    client: &Client,
    namespace: &str,
    types: &TypeMeta,
) -> Result<Api<DynamicObject>, CoordinatorError> {
    let (resource, scope) = kind_of(client, types).await?;
    Ok(match scope {
        Scope::Namespaced => Api::namespaced_with(client.clone(), namespace, &resource),
        Scope::Cluster => Api::all_with(client.clone(), &resource),
    })
}

/// What the cluster knows of a kind.
pub(super) async fn kind_of(
    client: &Client,
    types: &TypeMeta,
) -> Result<(ApiResource, Scope), CoordinatorError> {
    let unknown =
        || CoordinatorError::UnknownKind { kind: types.kind.clone(), api_version: types.api_version.clone() };
    let gvk = GroupVersionKind::try_from(types).map_err(|_| unknown())?;
    match discovery::pinned_kind(client, &gvk).await {
        Ok((resource, capabilities)) => Ok((resource, capabilities.scope)),
        Err(kube::Error::Discovery(_)) => Err(unknown()),
        Err(kube::Error::Api(status)) if status.code == 404 => Err(unknown()),
        Err(error) => Err(CoordinatorError::api("discover the cluster's kinds", &error)),
    }
}
