//! Creates the manifests' objects and changes live ones, written down before it is done.
//!
//! What is created in the run's namespace is owned by one ConfigMap, which is created first and
//! removed last: whoever deletes it deletes all that the run has created there. An object of another
//! namespace, or of none, cannot be owned by it; it has the run's label only.

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, PostParams};
use kube::core::TypeMeta;
use kube::discovery::{self, Scope};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::caller::may_have_been_done;
use super::journal::{Change, ObjectRef};
use super::{Caller, CoordinatorError, Session, edits, undo};

/// The label that says which run created an object.
pub(super) const RUN_LABEL: &str = "rolldrop.dev/run";

/// The name of the ConfigMap that owns what a run creates.
pub(super) fn owner_name(run: &str) -> String {
    format!("rolldrop-run-{}", run.to_lowercase())
}

/// Whether a run's owner may own an object: only within its namespace.
pub(super) fn is_ownable(scope: &Scope, namespace: Option<&str>, of_run: &str) -> bool {
    *scope == Scope::Namespaced && namespace.is_none_or(|namespace| namespace == of_run)
}

impl Session {
    /// Creates one object; never touches one that is there already.
    pub(super) async fn create(&self, manifest: &Value) -> Result<(), CoordinatorError> {
        let mut object: DynamicObject = serde_json::from_value(manifest.clone())
            .map_err(|e| CoordinatorError::Api { what: "read a manifest".into(), why: e.to_string() })?;
        let types = object.types.clone().unwrap_or_default();
        let (resource, scope) = self.caller.kind_of(&types).await?;
        let own_namespace = &self.caller.namespace;
        if is_ownable(&scope, object.namespace().as_deref(), own_namespace) {
            let owner = self.owner.get_or_try_init(|| self.create_owner()).await?;
            object.owner_references_mut().push(owner.clone());
        }
        self.create_as(&resource, &scope, object).await.map(drop)
    }

    /// Creates what owns the rest.
    async fn create_owner(&self) -> Result<OwnerReference, CoordinatorError> {
        let (resource, run) = (ApiResource::erase::<ConfigMap>(&()), self.journal().run().to_owned());
        let name = owner_name(&run);
        let mut object = DynamicObject::new(&name, &resource);
        object.data = json!({"data": {"run": run, "about": "owns what this run of rolldrop has created"}});
        let uid = self.create_as(&resource, &Scope::Namespaced, object).await?;
        let (api_version, kind) = (resource.api_version, resource.kind);
        Ok(OwnerReference { api_version, kind, name, uid, ..OwnerReference::default() })
    }

    /// Creates an object and answers its UID.
    async fn create_as(
        &self,
        resource: &ApiResource,
        scope: &Scope,
        mut object: DynamicObject,
    ) -> Result<String, CoordinatorError> {
        let (kind, name) = (resource.kind.clone(), object.name_any());
        let what = format!("create {kind} {name}");
        let namespace = object.namespace().unwrap_or_else(|| self.caller.namespace.clone());
        let api = self.caller.api_of(resource, scope, &namespace);
        object.labels_mut().insert(RUN_LABEL.into(), self.journal().run().to_owned());
        let reference = ObjectRef {
            api_version: resource.api_version.clone(),
            kind: kind.clone(),
            namespace: Some(namespace),
            name: name.clone(),
            uid: None,
            resource_version: None,
        };
        let id = self.journal().announce(reference, Change::Create)?;
        let asked = self.caller.insist(&what, || api.create(&PostParams::default(), &object)).await?;
        let error = match asked.answer {
            Ok(created) => return self.created(id, &created),
            Err(error) => error,
        };
        let exists = matches!(&error, kube::Error::Api(status) if status.reason == "AlreadyExists");
        if exists && asked.is_doubtful {
            // It may be this run's own, of an attempt whose answer was lost.
            let found = self.caller.ask(&what, || api.get_opt(&name)).await?;
            let found = found.map_err(|e| CoordinatorError::api(&what, &e))?;
            let of_run = |object: &DynamicObject| {
                object.labels().get(RUN_LABEL).is_some_and(|run| run == self.journal().run())
            };
            if let Some(own) = found.filter(of_run) {
                return self.created(id, &own);
            }
        } else if asked.is_doubtful || may_have_been_done(&error) {
            return Err(CoordinatorError::api(&what, &error));
        }
        self.journal().undone(id, "refused")?;
        Err(if exists {
            CoordinatorError::Exists(format!("{kind} {name}"))
        } else {
            CoordinatorError::api(&what, &error)
        })
    }

    fn created(&self, id: u32, object: &DynamicObject) -> Result<String, CoordinatorError> {
        let uid = object.uid().unwrap_or_default();
        self.journal().created(id, uid.clone())?;
        Ok(uid)
    }

    /// Makes one object of another that is in the cluster. Answers whether there was anything to change.
    ///
    /// # Errors
    /// [`CoordinatorError::Conflict`] where the object is not `current` any more.
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
        let (title, name) = (object.to_string(), object.name.clone());
        let what = format!("change {title}");
        let id = self.journal().announce(object, Change::Edit { edits })?;
        let asked = self.caller.insist(&what, || undo::patch(api, &name, current, wanted)).await?;
        let Err(error) = asked.answer else { return Ok(true) };
        // Where it may have been done all the same, undoing it finds out.
        if !asked.is_doubtful && !may_have_been_done(&error) {
            self.journal().undone(id, "refused")?;
        }
        Err(match &error {
            kube::Error::Api(status) if status.code == 409 => CoordinatorError::Conflict(title),
            error => CoordinatorError::api(&what, error),
        })
    }
}

impl Caller {
    /// The API of a kind, in a namespace if it has those.
    pub(super) fn api_of(
        &self,
        resource: &ApiResource,
        scope: &Scope,
        namespace: &str,
    ) -> Api<DynamicObject> {
        match scope {
            Scope::Namespaced => Api::namespaced_with(self.client.clone(), namespace, resource),
            Scope::Cluster => Api::all_with(self.client.clone(), resource),
        }
    }

    /// What the cluster knows of a kind.
    pub(super) async fn kind_of(&self, types: &TypeMeta) -> Result<(ApiResource, Scope), CoordinatorError> {
        let what = "discover the cluster's kinds";
        let unknown = || CoordinatorError::UnknownKind {
            kind: types.kind.clone(),
            api_version: types.api_version.clone(),
        };
        let gvk = GroupVersionKind::try_from(types).map_err(|_| unknown())?;
        match self.ask(what, || discovery::pinned_kind(&self.client, &gvk)).await? {
            Ok((resource, capabilities)) => Ok((resource, capabilities.scope)),
            Err(kube::Error::Discovery(_)) => Err(unknown()),
            Err(kube::Error::Api(status)) if status.code == 404 => Err(unknown()),
            Err(error) => Err(CoordinatorError::api(what, &error)),
        }
    }
}
