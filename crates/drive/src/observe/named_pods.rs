//! Watches the pods of a workload, or one pod, outside a run.

use std::sync::Arc;

use kube::api::ListParams;
use kube::{Api, Client};

use super::gateway_logs::LogPods;
use super::list_watch::{Following, Need, Sink, WatchListener, WatchState, await_first_lists};
use super::namespace_view::Views;
use crate::api::{Caller, TimeLimits, pod_selector, resource_of};
use crate::error::{CoordinatorError, Result};
use crate::tasks::BackgroundTasks;
use rolldrop_kubernetes::pods::ListedPod;
use rolldrop_scenario::Workload;

const PODS: &str = "pods";

/// Pods selected by their workload's name or by their own.
pub(super) struct NamedPods<'a> {
    pub(super) client: &'a Client,
    pub(super) namespace: &'a str,
    pub(super) pods: &'a LogPods,
}

impl NamedPods<'_> {
    /// Starts to watch the pods, and waits for the first list.
    ///
    /// # Errors
    /// Fails if the workload or its pods cannot be found.
    pub(super) async fn follow<S: Sink<ListedPod> + 'static>(
        &self,
        views: &Views,
        listener: impl WatchListener + 'static,
        sink: S,
        tasks: &mut BackgroundTasks,
    ) -> Result<()> {
        let (labels, fields) = match self.pods {
            LogPods::Of(workload) => (Some(self.selector_of(workload).await?), None),
            LogPods::Named(name) => (None, Some(format!("metadata.name={name}"))),
        };
        views.update(|view| _ = view.unlisted.insert(PODS));
        let state = WatchState::at(listener.clock().now());
        let following = Following {
            resource: PODS,
            need: Need::Must,
            labels,
            fields,
            api: Api::<ListedPod>::namespaced(self.client.clone(), self.namespace),
            limits: TimeLimits::default(),
            listener: Arc::new(listener),
            views: views.clone(),
            state,
            sink,
        };
        tasks.spawn_stoppable(|stop| following.until(stop));
        await_first_lists(views).await
    }

    /// Returns the label selector of a workload's pods.
    async fn selector_of(&self, workload: &Workload) -> Result<String> {
        let caller = Caller::outside_run(self.client.clone(), self.namespace);
        let what = format!("find {workload}");
        // Listing needs no permission beyond those of a watch.
        let named = ListParams::default().fields(&format!("metadata.name={}", workload.name));
        let mut found = caller.list(&what, &caller.dynamic_api(&resource_of(workload.kind)), &named).await?;
        let failed = |why: String| CoordinatorError::refused(&what, why);
        let Some(found) = found.pop() else {
            return Err(failed(format!("there is none in namespace {}", self.namespace)));
        };
        pod_selector(&found.data).map_err(failed)
    }
}
