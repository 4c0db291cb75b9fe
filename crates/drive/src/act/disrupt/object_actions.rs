//! Actions on workloads and other objects: restarting, scaling, changing an image, patching.
//!
//! Changes are reverted at the end of the run, unless the scenario says otherwise. A restart is not reverted, because
//! that would be another rollout.

use std::time::Duration;

use kube::Api;
use kube::api::DynamicObject;
use serde_json::{Value, json};

use super::acting::{Acting, Insisting, Refusal, Twice};
use crate::api::edits::RESTARTED_AT;
use crate::api::{resource_of, why_no_rollout};
use crate::error::{CoordinatorError, Result};
use crate::plan::GitOps;
use crate::plan::gitops::controller_of;
use crate::undo::RUN_LABEL;
use rolldrop_kubernetes::guard::object_names::in_path;
use rolldrop_scenario::{Object, Patch, PatchType, Restore, Workload};

/// Rules for repeating a restart. The timestamp identifies the restart, so repeating the call has no further effect.
const RESTART: Insisting = Insisting { success: 200, pause: Duration::from_secs(1), twice: Twice::Harmless };

impl Acting<'_> {
    /// Reads a workload, if the run may change it.
    pub(super) async fn workload(&self, workload: &Workload) -> Result<(Api<DynamicObject>, Value)> {
        let resource = resource_of(workload.kind);
        let api = self.changer.caller.dynamic_api(&resource);
        let current = self.as_it_is(&api, &resource.kind, &workload.name).await?;
        Ok((api, current))
    }

    /// Reads an object, if the run may change it.
    async fn as_it_is(&self, api: &Api<DynamicObject>, kind: &str, name: &str) -> Result<Value> {
        let found = self.changer.caller.read(api, &format!("read {kind} {name}"), name).await?;
        let found = serde_json::to_value(found).unwrap_or_default();
        // No controller manages an object that this run created, even if it is a copy of a managed one.
        let is_own = found["metadata"]["labels"][RUN_LABEL] == self.changer.ledger.run();
        let refuses = self.disruptor.gitops == GitOps::Refuse && !is_own;
        match controller_of(&found).filter(|_| refuses) {
            None => Ok(found),
            Some(controller) => Err(CoordinatorError::Managed {
                object: format!("{kind} {name}"),
                controller: controller.to_owned(),
            }),
        }
    }

    /// Checks that the workload replaces its pods when it is restarted.
    pub(super) async fn check_restart(&self, workload: &Workload) -> Result<()> {
        let (_, current) = self.workload(workload).await?;
        let workload = workload.to_string();
        why_no_rollout(&current).map_or(Ok(()), |why| Err(CoordinatorError::NoRollout { workload, why }))
    }

    /// Checks that the workload exists, and that some of its pods would remain.
    pub(super) async fn check_scale(&self, workload: &Workload, replicas: u32) -> Result<()> {
        self.workload(workload).await?;
        if replicas > 0 || self.disruption.allow_outage {
            return Ok(());
        }
        Err(self.too_many(&workload.to_string(), "no pod would be left".into()))
    }

    /// Checks that the workload has this container.
    pub(super) async fn check_container(&self, workload: &Workload, container: &str) -> Result<()> {
        let (_, current) = self.workload(workload).await?;
        list_of(&current, workload, container).map(drop)
    }

    /// Checks that the API server accepts the patch, and that some pods would remain.
    pub(super) async fn check_patch(&self, object: &Object, patch: &Patch) -> Result<()> {
        let (api, current) = self.object(object).await?;
        let patched = self.changer.try_patch(&api, &current, patch).await?;
        if patched["spec"]["replicas"] == 0 && !self.disruption.allow_outage {
            return Err(self.too_many(&object.to_string(), "no pod would be left".into()));
        }
        Ok(())
    }

    async fn object(&self, object: &Object) -> Result<(Api<DynamicObject>, Value)> {
        let Object { api_version, kind, name } = object;
        let caller = self.changer.caller;
        let (resource, scope) = caller.kind_of(api_version, kind).await?;
        let api = caller.api_of(&resource, &scope, &caller.namespace);
        let current = self.as_it_is(&api, kind, name).await?;
        if current["metadata"]["namespace"] != caller.namespace.as_str() {
            return Err(CoordinatorError::NotInNamespace { object: object.to_string() });
        }
        Ok((api, current))
    }

    /// Makes a workload replace its pods, as `kubectl rollout restart` does. This is not reverted, because reverting
    /// would be another rollout.
    pub(super) async fn restart(&self, workload: &Workload) -> Result<usize, Refusal> {
        let (api, _) = self.workload(workload).await?;
        let now = jiff::Timestamp::from_nanosecond(self.now().unix_ns().into());
        let now = now.unwrap_or_default().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let patch = json!({"spec": {"template": {"metadata": {"annotations": {RESTARTED_AT: now}}}}});
        let patch = kube::api::Patch::Merge(patch);
        let params = kube::api::PatchParams::default();
        let part = in_path(&workload.name);
        let call = || api.patch(&part, &params, &patch);
        Ok(self.insist(self.mode(), None, RESTART, call).await.is_accepted.into())
    }

    /// Changes a workload's number of pods.
    pub(super) async fn scale(
        &self,
        workload: &Workload,
        replicas: u32,
        restore: Restore,
    ) -> Result<usize, Refusal> {
        let (api, current) = self.workload(workload).await?;
        let scale = |workload: &mut Value| workload["spec"]["replicas"] = replicas.into();
        Ok(self.changed(restore, self.changer.alter(&api, &current, scale)).await)
    }

    /// Changes the image of one container in a workload.
    pub(super) async fn set_image(
        &self,
        workload: &Workload,
        container: &str,
        image: &str,
        restore: Restore,
    ) -> Result<usize, Refusal> {
        let (api, current) = self.workload(workload).await?;
        let patch_of = |current: &Value| {
            let list = list_of(current, workload, container)?;
            let containers = json!({list: [{"name": container, "image": image}]});
            let body = json!({"spec": {"template": {"spec": containers}}});
            Ok(Patch { patch_type: PatchType::Strategic, body })
        };
        patch_of(&current)?;
        Ok(self.changed(restore, self.changer.patch(&api, &current, patch_of)).await)
    }

    /// Patches an object.
    pub(super) async fn patch(
        &self,
        object: &Object,
        patch: &Patch,
        restore: Restore,
    ) -> Result<usize, Refusal> {
        let (api, current) = self.object(object).await?;
        Ok(self.changed(restore, self.changer.patch(&api, &current, |_| Ok(patch.clone()))).await)
    }

    /// Makes a change, records it as an action, and reverts it when that is due.
    async fn changed(&self, restore: Restore, change: impl Future<Output = Result<Option<u32>>>) -> usize {
        let (is_accepted, change) = self.noted(self.mode(), None, change).await;
        if let Some(change) = change.flatten() {
            self.restore(restore, self.mode(), &[change]).await;
        }
        is_accepted.into()
    }
}

/// Returns the field of the pod template that contains this container.
fn list_of(current: &Value, workload: &Workload, container: &str) -> Result<&'static str> {
    let spec = &current["spec"]["template"]["spec"];
    let has = |list: &&str| {
        spec[*list].as_array().is_some_and(|list| list.iter().any(|found| found["name"] == container))
    };
    let list = ["containers", "initContainers"].into_iter().find(has);
    list.ok_or_else(|| CoordinatorError::NoContainer {
        of: workload.to_string(),
        container: container.to_owned(),
    })
}
