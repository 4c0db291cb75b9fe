//! Creates the manifests' objects and changes live ones, written down before it is done.

use kube::api::{ApiResource, DynamicObject, GroupVersionKind, PostParams};
use kube::core::TypeMeta;
use kube::discovery::{self, Scope};
use kube::{Api, Client, ResourceExt};
use serde_json::Value;

use super::journal::{Change, ObjectRef};
use super::{CoordinatorError, Session, edits, undo};

/// The label that says which run created an object.
pub(super) const RUN_LABEL: &str = "rolldrop.dev/run";

impl Session {
    /// Creates one object; never touches one that is there already.
    pub(super) async fn create(&self, manifest: &Value) -> Result<DynamicObject, CoordinatorError> {
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
            Ok(created) => {
                self.journal().created(id, created.uid().unwrap_or_default())?;
                Ok(created)
            }
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

    /// Makes one object of another that is in the cluster. Answers whether there was anything to change.
    pub(super) async fn change(
        &self,
        api: &Api<DynamicObject>,
        current: &Value,
        wanted: &Value,
    ) -> Result<bool, CoordinatorError> {
        let edits = edits::between(current, wanted);
        if edits.is_empty() {
            return Ok(false);
        }
        let text = |pointer: &str| current.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        let object = ObjectRef {
            api_version: text("/apiVersion").unwrap_or_default(),
            kind: text("/kind").unwrap_or_default(),
            namespace: text("/metadata/namespace"),
            name: text("/metadata/name").unwrap_or_default(),
            uid: text("/metadata/uid"),
            resource_version: text("/metadata/resourceVersion"),
        };
        let (what, name) = (format!("change {object}"), object.name.clone());
        let id = self.journal().announce(object, Change::Edit { edits })?;
        match self.caller.limited(&what, undo::patch(api, &name, current, wanted)).await? {
            Ok(_) => Ok(true),
            Err(error) => {
                if matches!(error, kube::Error::Api(_)) {
                    self.journal().undone(id, "refused")?;
                }
                Err(CoordinatorError::api(&what, &error))
            }
        }
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
