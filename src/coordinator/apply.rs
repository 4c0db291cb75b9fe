//! Creates the manifests' objects, and removes them again.

use std::fmt;

use kube::api::{DeleteParams, DynamicObject, GroupVersionKind, PostParams};
use kube::core::TypeMeta;
use kube::discovery::{self, Scope};
use kube::{Api, Client, ResourceExt};
use serde_json::Value;

use super::CoordinatorError;

/// The label that says which run created an object.
const RUN_LABEL: &str = "rolldrop.dev/run";

/// An object that the run created.
#[derive(Debug)]
pub(super) struct Created {
    api: Api<DynamicObject>,
    kind: String,
    name: String,
    uid: Option<String>,
}

impl fmt::Display for Created {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.name)
    }
}

/// Creates one object; never touches one that is there already.
pub(super) async fn create(
    client: &Client,
    namespace: &str,
    run: &str,
    manifest: &Value,
) -> Result<Created, CoordinatorError> {
    let mut object: DynamicObject = serde_json::from_value(manifest.clone())
        .map_err(|e| CoordinatorError::Api { what: "read a manifest".into(), why: e.to_string() })?;
    let types = object.types.clone().unwrap_or_default();
    let (kind, name) = (types.kind.clone(), object.name_any());
    let what = format!("create {kind} {name}");
    let api = api_for(client, object.namespace().as_deref().unwrap_or(namespace), &types).await?;
    object.labels_mut().insert(RUN_LABEL.into(), run.to_owned());
    match api.create(&PostParams::default(), &object).await {
        Ok(created) => Ok(Created { api, kind, name, uid: created.uid() }),
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {
            Err(CoordinatorError::Exists(format!("{kind} {name}")))
        }
        Err(error) => Err(CoordinatorError::api(&what, &error)),
    }
}

/// Removes an object and what it owns; one that is gone already is removed.
pub(super) async fn remove(created: Created) -> Result<(), CoordinatorError> {
    let params = DeleteParams {
        preconditions: created
            .uid
            .clone()
            .map(|uid| kube::api::Preconditions { uid: Some(uid), resource_version: None }),
        ..DeleteParams::background()
    };
    match created.api.delete(&created.name, &params).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(CoordinatorError::api(&format!("remove {created}"), &error)),
    }
}

async fn api_for(
    client: &Client,
    namespace: &str,
    types: &TypeMeta,
) -> Result<Api<DynamicObject>, CoordinatorError> {
    let unknown =
        || CoordinatorError::UnknownKind { kind: types.kind.clone(), api_version: types.api_version.clone() };
    let gvk = GroupVersionKind::try_from(types).map_err(|_| unknown())?;
    let (resource, capabilities) = match discovery::pinned_kind(client, &gvk).await {
        Ok(found) => found,
        Err(kube::Error::Discovery(_)) => return Err(unknown()),
        Err(kube::Error::Api(status)) if status.code == 404 => return Err(unknown()),
        Err(error) => return Err(CoordinatorError::api("discover the cluster's kinds", &error)),
    };
    Ok(match capabilities.scope {
        Scope::Namespaced => Api::namespaced_with(client.clone(), namespace, &resource),
        Scope::Cluster => Api::all_with(client.clone(), &resource),
    })
}
