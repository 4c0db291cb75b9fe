//! Creates the manifests' objects and changes live ones; each change is recorded before it is made.
//!
//! One ConfigMap owns everything that the run creates in its namespace. It is created first and removed last, because
//! deleting it deletes everything that the run has created there. It cannot own objects that are cluster-scoped or in
//! another namespace; these have only the run's label.

use http::{Request, header};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{ApiResource, DynamicObject, PostParams};
use kube::discovery::Scope;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::OnceCell;
use tokio::time::{Instant, sleep};

use crate::api::edits::{self, Edit};
use crate::api::{Caller, may_have_been_done};
use crate::error::{CoordinatorError, Result};
use crate::observe::RecorderHandle;
use crate::plan::is_ownable;
use crate::undo;
use crate::undo::change_ledger::refusal;
use crate::undo::{ChangeLedger, ClusterChange, ObjectRef, RUN_LABEL};
use rolldrop_kubernetes::guard::object_names::in_path;
use rolldrop_scenario::Patch;
use rolldrop_sidecar::inject;

/// Creates a run's objects.
#[derive(Debug, Default)]
pub(crate) struct Applier {
    /// Owner of everything that the run creates; set when the run creates its first object.
    owner: OnceCell<OwnerReference>,
}

impl Applier {
    /// Creates the manifests' objects, labelled with the run's name.
    ///
    /// # Errors
    /// Fails if an object exists already, or if the API server refuses one. Undoing removes the objects that were
    /// created before the failure.
    pub(crate) async fn deploy(
        &self,
        changer: Changer<'_>,
        recorder: &RecorderHandle,
        manifests: &[Value],
    ) -> Result<()> {
        let warnings = &changer.caller.warnings;
        for manifest in manifests {
            // Discards warnings from earlier calls, which are not about this object.
            drop(warnings.take());
            let object = self.create(changer, manifest).await?;
            let kind = object.types.as_ref().map_or("object", |types| &types.kind);
            let own = sidecar_path(manifest);
            for warning in warnings.take() {
                if own.as_ref().is_none_or(|path| !warning.contains(path)) {
                    recorder.warn(format!("{kind} {}: {warning}", object.name_any()));
                }
            }
        }
        Ok(())
    }

    /// Creates one object; never changes an existing one.
    pub(crate) async fn create(&self, changer: Changer<'_>, manifest: &Value) -> Result<DynamicObject> {
        let mut object: DynamicObject = serde_json::from_value(manifest.clone())
            .map_err(|e| CoordinatorError::refused("read a manifest", e.to_string()))?;
        let types = object.types.clone().unwrap_or_default();
        let (resource, scope) = changer.caller.kind_of(&types.api_version, &types.kind).await?;
        if is_ownable(&scope, object.namespace().as_deref(), &changer.caller.namespace) {
            let owner = self.owner(changer).await?;
            object.owner_references_mut().push(owner.clone());
        }
        changer.create(&resource, &scope, object).await
    }

    /// Returns the owner of everything else, which is created first.
    pub(crate) async fn owner(&self, changer: Changer<'_>) -> Result<&OwnerReference> {
        let create = || async {
            let (resource, run) = (ApiResource::erase::<ConfigMap>(&()), changer.ledger.run());
            let name = format!("rolldrop-run-{}", run.to_lowercase());
            let mut object = DynamicObject::new(&name, &resource);
            object.data =
                json!({"data": {"run": run, "about": "owns everything that this run of rolldrop created"}});
            let created = changer.create(&resource, &Scope::Namespaced, object).await?;
            let uid = created.uid().unwrap_or_default();
            let (api_version, kind) = (resource.api_version, resource.kind);
            Ok(OwnerReference { api_version, kind, name, uid, ..OwnerReference::default() })
        };
        self.owner.get_or_try_init(create).await
    }
}

/// Makes changes for a run, each recorded before it is made.
#[derive(Clone, Copy)]
pub(crate) struct Changer<'a> {
    pub(crate) caller: &'a Caller,
    pub(crate) ledger: &'a ChangeLedger,
}

impl Changer<'_> {
    /// Creates an object, and returns it as the API server returned it.
    async fn create(
        &self,
        resource: &ApiResource,
        scope: &Scope,
        mut object: DynamicObject,
    ) -> Result<DynamicObject> {
        let (kind, name) = (resource.kind.clone(), object.name_any());
        let what = format!("create {kind} {name}");
        let namespace = object.namespace().unwrap_or_else(|| self.caller.namespace.clone());
        let api = self.caller.api_of(resource, scope, &namespace);
        object.labels_mut().insert(RUN_LABEL.into(), self.ledger.run().to_owned());
        let reference = ObjectRef::new(&resource.api_version, &kind, Some(namespace), &name);
        let id = self.ledger.journal().announce(reference, ClusterChange::Create)?;
        let params = PostParams::default();
        let asked = self.caller.insist(&what, || api.create(&params, &object)).await?;
        let error = match asked.answer {
            Ok(created) => return self.created(id, created),
            Err(error) => error,
        };
        let exists = matches!(&error, kube::Error::Api(status) if status.reason == "AlreadyExists");
        if exists && asked.is_doubtful {
            // It may be this run's own, from an attempt whose response was lost.
            let found = self.caller.find(&api, &what, &name).await?;
            let of_run = |object: &DynamicObject| {
                object.labels().get(RUN_LABEL).is_some_and(|run| run == self.ledger.run())
            };
            if let Some(own) = found.filter(of_run) {
                return self.created(id, own);
            }
        } else if asked.is_doubtful || may_have_been_done(&error) {
            return Err(CoordinatorError::api(&what, &error));
        }
        self.ledger.journal().undone(id, "refused")?;
        Err(if exists {
            CoordinatorError::Exists(format!("{kind} {name}"))
        } else {
            CoordinatorError::api(&what, &error)
        })
    }

    fn created(&self, id: u32, object: DynamicObject) -> Result<DynamicObject> {
        self.ledger.journal().created(id, object.uid().unwrap_or_default())?;
        Ok(object)
    }

    /// Changes an object in the cluster. Returns the change's ID in the journal; `None` if there was nothing to change.
    ///
    /// # Errors
    /// [`CoordinatorError::Conflict`] if others keep changing the object.
    pub(crate) async fn alter(
        &self,
        api: &Api<DynamicObject>,
        current: &Value,
        alter: impl Fn(&mut Value),
    ) -> Result<Option<u32>> {
        let change = async |current: &Value| {
            let mut wanted = current.clone();
            alter(&mut wanted);
            self.change(api, current, &wanted).await
        };
        self.until_unopposed(api, current, change).await
    }

    /// Changes an object in the cluster with the patch that `patch_of` creates from the object's current state. Returns
    /// and fails as [`Changer::alter`] does.
    pub(crate) async fn patch(
        &self,
        api: &Api<DynamicObject>,
        current: &Value,
        patch_of: impl Fn(&Value) -> Result<Patch>,
    ) -> Result<Option<u32>> {
        let change = async |current: &Value| {
            let (object, patch) = (reference(current), patch_of(current)?);
            // If the version differed, the edits could be someone else's.
            let patch = patch.of_version(object.resource_version.as_deref());
            let patched = self.try_patch(api, current, &patch).await?;
            let edits = edits::between(&as_asked_for(current), &as_asked_for(&patched));
            let name = object.name.clone();
            self.edit(object, edits, || send_patch(&self.caller.client, api, &name, &patch, "")).await
        };
        self.until_unopposed(api, current, change).await
    }

    /// Changes an object. If others have changed it in the meantime, tries again from its new state.
    async fn until_unopposed(
        &self,
        api: &Api<DynamicObject>,
        current: &Value,
        change: impl AsyncFn(&Value) -> Result<Option<u32>>,
    ) -> Result<Option<u32>> {
        let (object, mut current) = (reference(current), current.clone());
        let (mut is_again, mut changes_left) = (false, undo::ATTEMPTS);
        let deadline = Instant::now() + self.caller.limits.api_call;
        loop {
            let error = match change(&current).await {
                Err(error @ CoordinatorError::Conflict(_)) => error,
                // If the response to an earlier attempt was lost, the conflict is with our own change.
                Ok(None) if is_again => return Ok(self.ledger.journal().last_of(&object)),
                changed => return changed,
            };
            let found = self.caller.read(api, &format!("read {object}"), &object.name).await?;
            let found = serde_json::to_value(found).unwrap_or_default();
            // During a rollout, a workload's status changes all the time.
            changes_left -= u32::from(as_asked_for(&found) != as_asked_for(&current));
            if changes_left == 0 || Instant::now() >= deadline {
                return Err(error);
            }
            (current, is_again) = (found, true);
            self.caller.stoppable(sleep(undo::AFTER_A_CONFLICT)).await?;
        }
    }

    /// Changes an object in the cluster from `current` to `wanted`. Returns the change's ID in the journal; `None` if
    /// there was nothing to change.
    ///
    /// # Errors
    /// [`CoordinatorError::Conflict`] if the object is no longer `current`.
    pub(crate) async fn change(
        &self,
        api: &Api<DynamicObject>,
        current: &Value,
        wanted: &Value,
    ) -> Result<Option<u32>> {
        self.make(api, current, wanted, edits::between(current, wanted)).await
    }

    /// Like [`Changer::change`], for a workload that the run restarts, possibly without any other change. Undoing the
    /// change leaves the pod template as if there had been no restart.
    pub(super) async fn change_and_restart(
        &self,
        api: &Api<DynamicObject>,
        current: &Value,
        wanted: &Value,
    ) -> Result<Option<u32>> {
        let mut edits = edits::between(current, wanted);
        edits.push(Edit::of_restarts(current));
        if current == wanted {
            self.ledger.journal().announce(reference(current), ClusterChange::Edit { edits })?;
            return Ok(None);
        }
        self.make(api, current, wanted, edits).await
    }

    async fn make(
        &self,
        api: &Api<DynamicObject>,
        current: &Value,
        wanted: &Value,
        edits: Vec<Edit>,
    ) -> Result<Option<u32>> {
        let object = reference(current);
        let name = object.name.clone();
        self.edit(object, edits, || undo::patch(api, &name, current, wanted)).await
    }

    /// Returns the result that a patch would have. This is a dry run; the API server changes nothing.
    pub(super) async fn try_patch(
        &self,
        api: &Api<DynamicObject>,
        current: &Value,
        patch: &Patch,
    ) -> Result<Value> {
        let object = reference(current);
        let what = format!("patch {object}");
        let call = || send_patch(&self.caller.client, api, &object.name, patch, "?dryRun=All");
        let patched = self.caller.ask(&what, call).await?.map_err(|error| refusal(&error, &what, &object))?;
        Ok(serde_json::to_value(patched).unwrap_or_default())
    }

    /// Records edits, and then applies them.
    async fn edit<F: Future<Output = kube::Result<DynamicObject>>>(
        &self,
        object: ObjectRef,
        edits: Vec<Edit>,
        call: impl FnMut() -> F,
    ) -> Result<Option<u32>> {
        if edits.is_empty() {
            return Ok(None);
        }
        self.ledger.make(self.caller, object, ClusterChange::Edit { edits }, call).await.map(Some)
    }
}

/// Sends a patch unchanged, with this query in the URL.
async fn send_patch(
    client: &Client,
    api: &Api<DynamicObject>,
    name: &str,
    patch: &Patch,
    query: &str,
) -> kube::Result<DynamicObject> {
    let body = serde_json::to_vec(&patch.body).map_err(kube::Error::SerdeError)?;
    let request = Request::patch(format!("{}/{}{query}", api.resource_url(), in_path(name)))
        .header(header::CONTENT_TYPE, patch.patch_type.media_type())
        .body(body);
    client.request(request.map_err(kube::Error::HttpError)?).await
}

/// Returns an object without the fields that the API server and controllers write.
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

pub(crate) fn reference(object: &Value) -> ObjectRef {
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

/// Returns the path of the recording proxy's container in a manifest. The run added this container, not the user.
fn sidecar_path(manifest: &Value) -> Option<String> {
    ["spec.template.spec", "spec"].into_iter().find_map(|pod| {
        let list = manifest.pointer(&format!("/{}/initContainers", pod.replace('.', "/")))?.as_array()?;
        let place = list.iter().position(|container| container["name"] == inject::SIDECAR_NAME)?;
        Some(format!("{pod}.initContainers[{place}]."))
    })
}
