//! Workloads and other objects that are changed: restarted, scaled, given another image, patched.
//!
//! A change is changed back, at the end of the run unless the scenario says otherwise. A restart is not, as that
//! would be another rollout.

use std::time::Duration;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, StatefulSet};
use kube::Api;
use kube::api::{ApiResource, DynamicObject};
use kube::core::TypeMeta;
use serde_json::{Value, json};

use super::super::CoordinatorError;
use super::super::apply::RUN_LABEL;
use super::super::sidecar::{GitOps, controller_of};
use super::{Acting, Disrupted, Insisting, Twice, counted};
use crate::cluster::guard::names::in_path;
use crate::scenario::{Object, Patch, PatchType, Restore, Workload, WorkloadKind};
use rolldrop_record::Mode;

/// How a restart is requested: it is identified by its time, so that a repetition has no effect.
const RESTART: Insisting = Insisting { success: 200, pause: Duration::from_secs(1), twice: Twice::Harmless };
/// What `kubectl rollout restart` sets.
const RESTARTED_AT: &str = "kubectl.kubernetes.io/restartedAt";

impl Acting<'_> {
    /// The workload as it is, if it may be changed.
    pub(super) async fn workload(
        &self,
        workload: &Workload,
    ) -> Result<(Api<DynamicObject>, Value), CoordinatorError> {
        let resource = match workload.kind {
            WorkloadKind::Deployment => ApiResource::erase::<Deployment>(&()),
            WorkloadKind::StatefulSet => ApiResource::erase::<StatefulSet>(&()),
            WorkloadKind::DaemonSet => ApiResource::erase::<DaemonSet>(&()),
        };
        let caller = &self.session.caller;
        let api = Api::<DynamicObject>::namespaced_with(caller.client.clone(), &caller.namespace, &resource);
        let current = self.as_it_is(&api, &resource.kind, &workload.name).await?;
        Ok((api, current))
    }

    /// An object as it is, if it may be changed.
    async fn as_it_is(
        &self,
        api: &Api<DynamicObject>,
        kind: &str,
        name: &str,
    ) -> Result<Value, CoordinatorError> {
        let what = format!("read {kind} {name}");
        let part = in_path(name);
        let found = self.session.caller.ask(&what, || api.get(&part)).await?;
        let found = found.map_err(|e| CoordinatorError::api(&what, &e))?;
        let found = serde_json::to_value(found).unwrap_or_default();
        // Nobody else manages what this run has created, whatever it was copied from.
        let is_own = found["metadata"]["labels"][RUN_LABEL] == self.session.journal().run();
        let refuses = self.session.gitops == GitOps::Refuse && !is_own;
        match controller_of(&found).filter(|_| refuses) {
            None => Ok(found),
            Some(controller) => Err(CoordinatorError::Managed {
                object: format!("{kind} {name}"),
                controller: controller.to_owned(),
            }),
        }
    }

    /// Not all pods may end.
    pub(super) async fn check_scale(
        &self,
        workload: &Workload,
        replicas: u32,
    ) -> Result<(), CoordinatorError> {
        self.workload(workload).await?;
        if replicas > 0 || self.disruption.allow_outage {
            return Ok(());
        }
        Err(self.too_many(&workload.to_string(), "no pod would be left".into()))
    }

    /// The workload has that container.
    pub(super) async fn check_container(
        &self,
        workload: &Workload,
        container: &str,
    ) -> Result<(), CoordinatorError> {
        let (_, current) = self.workload(workload).await?;
        list_of(&current, container).map(drop).ok_or_else(|| no_container(workload, container))
    }

    /// The API server accepts the patch, and pods remain after it.
    pub(super) async fn check_patch(&self, object: &Object, patch: &Patch) -> Result<(), CoordinatorError> {
        let (api, current) = self.object(object).await?;
        let patched = self.session.try_patch(&api, &current, patch).await?;
        if patched["spec"]["replicas"] == 0 && !self.disruption.allow_outage {
            return Err(self.too_many(&object.to_string(), "no pod would be left".into()));
        }
        Ok(())
    }

    async fn object(&self, object: &Object) -> Result<(Api<DynamicObject>, Value), CoordinatorError> {
        let Object { api_version, kind, name } = object;
        let types = TypeMeta { api_version: api_version.clone(), kind: kind.clone() };
        let caller = &self.session.caller;
        let (resource, scope) = caller.kind_of(&types).await?;
        let api = caller.api_of(&resource, &scope, &caller.namespace);
        let current = self.as_it_is(&api, kind, name).await?;
        if current["metadata"]["namespace"] != caller.namespace.as_str() {
            return Err(CoordinatorError::NotInNamespace { object: object.to_string() });
        }
        Ok((api, current))
    }

    /// Makes a workload replace its pods, as `kubectl rollout restart` does. That is not changed back: it would be
    /// another rollout.
    pub(super) async fn restart(&self, workload: &Workload) -> Disrupted {
        let (api, _) = match self.workload(workload).await {
            Ok(found) => found,
            Err(error) => return self.refused(Some(Mode::Rollout), error.to_string()),
        };
        let now = jiff::Timestamp::from_nanosecond(self.session.clock.now().unix_ns().into());
        let now = now.unwrap_or_default().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let patch = json!({"spec": {"template": {"metadata": {"annotations": {RESTARTED_AT: now}}}}});
        let patch = kube::api::Patch::Merge(patch);
        let params = kube::api::PatchParams::default();
        let part = in_path(&workload.name);
        let call = || api.patch(&part, &params, &patch);
        counted(self.insist(Some(Mode::Rollout), None, RESTART, call).await.is_accepted)
    }

    /// Gives a workload another number of pods.
    pub(super) async fn scale(&self, workload: &Workload, replicas: u32, restore: Restore) -> Disrupted {
        let mode = Some(Mode::ScaleDown);
        let (api, current) = match self.workload(workload).await {
            Ok(found) => found,
            Err(error) => return self.refused(mode, error.to_string()),
        };
        let mut wanted = current.clone();
        wanted["spec"]["replicas"] = replicas.into();
        self.changed(mode, restore, self.session.change(&api, &current, &wanted)).await
    }

    /// Gives a container of a workload another image.
    pub(super) async fn set_image(
        &self,
        workload: &Workload,
        container: &str,
        image: &str,
        restore: Restore,
    ) -> Disrupted {
        let mode = Some(Mode::Rollout);
        let (api, current) = match self.workload(workload).await {
            Ok(found) => found,
            Err(error) => return self.refused(mode, error.to_string()),
        };
        let Some(list) = list_of(&current, container) else {
            return self.refused(mode, no_container(workload, container).to_string());
        };
        let containers = json!({list: [{"name": container, "image": image}]});
        let body = json!({"spec": {"template": {"spec": containers}}});
        let patch = Patch { patch_type: PatchType::Strategic, body };
        self.changed(mode, restore, self.session.patch(&api, &current, &patch)).await
    }

    /// Changes an object.
    pub(super) async fn patch(&self, object: &Object, patch: &Patch, restore: Restore) -> Disrupted {
        let mode = Some(Mode::Rollout);
        match self.object(object).await {
            Ok((api, current)) => {
                self.changed(mode, restore, self.session.patch(&api, &current, patch)).await
            }
            Err(error) => self.refused(mode, error.to_string()),
        }
    }

    /// Makes a change, records it as an action, and changes it back when it is time.
    pub(super) async fn changed(
        &self,
        mode: Option<Mode>,
        restore: Restore,
        change: impl Future<Output = Result<Option<u32>, CoordinatorError>>,
    ) -> Disrupted {
        let (call, change) = self.stamped_change(change).await;
        let done = counted(self.note(mode, None, call));
        if let Some(change) = change.flatten() {
            self.restore(restore, mode, &[change]).await;
        }
        done
    }
}

/// In which list of its pods' containers a workload has this one.
fn list_of(workload: &Value, container: &str) -> Option<&'static str> {
    let spec = &workload["spec"]["template"]["spec"];
    let has = |list: &&str| {
        spec[*list].as_array().is_some_and(|list| list.iter().any(|found| found["name"] == container))
    };
    ["containers", "initContainers"].into_iter().find(has)
}

fn no_container(workload: &Workload, container: &str) -> CoordinatorError {
    CoordinatorError::NoContainer { of: workload.to_string(), container: container.to_owned() }
}
