//! Pods that are deleted or evicted one by one.

use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, EvictParams, ListParams, Preconditions};
use kube::{Api, ResourceExt};

use super::super::limits::Bounds;
use super::super::{CoordinatorError, Session};
use super::{Acting, Disrupted, counted};
use crate::scenario::{Action, Pods};

/// From a refused eviction to the next attempt, where the API server does not say.
const EVICTION_PAUSE: Duration = Duration::from_secs(5);
/// The same for a deletion.
const DELETION_PAUSE: Duration = Duration::from_secs(1);

impl Acting<'_> {
    /// The selector must match something, and not all may go at once.
    pub(super) async fn check_pods(&self, pods: &Pods) -> Result<(), CoordinatorError> {
        let found = list(self.session, &pods.selector).await?;
        if found.is_empty() {
            let (selector, namespace) = (pods.selector.clone(), self.session.caller.namespace.clone());
            return Err(CoordinatorError::NoPods { selector, namespace });
        }
        self.choose(pods, oldest_ready_first(found)).await.map(drop)
    }

    /// The pods that an action takes of those that are ready.
    async fn choose(&self, pods: &Pods, mut ready: Vec<Pod>) -> Result<Vec<Pod>, CoordinatorError> {
        let whole = ready.clone();
        ready.truncate(pods.count);
        if self.disruption.allow_outage || ready.is_empty() {
            return Ok(ready);
        }
        let budgets = match self.disruption.action {
            // The API server holds evictions to them.
            Action::Evict(_) => Vec::new(),
            _ => self.session.list_kind().await?,
        };
        let bounds = Bounds { budgets, deployments: self.session.list_kind().await? };
        match bounds.refuse(&ready, &whole) {
            None => Ok(ready),
            Some(why) => Err(self.too_many(&pods.selector, why)),
        }
    }

    pub(super) fn too_many(&self, of: &str, why: String) -> CoordinatorError {
        let action = self.disruption.action.name().to_owned();
        CoordinatorError::TooMany { action, of: of.to_owned(), why }
    }

    /// Ends so many pods at once.
    pub(super) async fn end_pods(&self, pods: &Pods, whole: &mut usize) -> Disrupted {
        // One at a time, with recovery in between, is what makes a termination isolated.
        let mode = if pods.count == 1 { "isolated" } else { "other" };
        let mut taking = Some(self.session.taking.lock().await);
        let chosen = match list(self.session, &pods.selector).await.map(oldest_ready_first) {
            Ok(ready) if ready.is_empty() => {
                return self.refused(mode, "no pod that it selects is ready".into());
            }
            Ok(ready) => {
                *whole = (*whole).max(ready.len());
                self.choose(pods, ready).await
            }
            Err(error) => Err(error),
        };
        match chosen {
            Ok(chosen) => {
                if matches!(self.disruption.action, Action::Evict(_)) {
                    // The API server itself holds evictions to the budgets, and they may have to wait.
                    taking = None;
                }
                let ends = chosen.iter().map(|pod| async move {
                    match self.disruption.action {
                        Action::Evict(_) => self.evict(mode, pod).await,
                        _ => self.delete(mode, pod).await,
                    }
                });
                let mut done = Disrupted::default();
                join_all(ends).await.into_iter().for_each(|is_accepted| done += counted(is_accepted));
                drop(taking);
                done
            }
            Err(error) => self.refused(mode, error.to_string()),
        }
    }

    /// Waits until none of the selected pods is terminating and `whole` are ready.
    pub(super) async fn pods_recovered(&self, pods: &Pods, whole: usize) -> bool {
        loop {
            // Before the list, so that no change after it is missed.
            let changed = self.session.views.changed();
            let found = list(self.session, &pods.selector).await.unwrap_or_default();
            let terminating = found.iter().any(|pod| pod.metadata.deletion_timestamp.is_some());
            if !terminating && oldest_ready_first(found).len() >= whole {
                return true;
            }
            changed.await;
        }
    }

    async fn delete(&self, mode: &str, pod: &Pod) -> bool {
        let api = self.pod_api(pod);
        let (name, params) = (pod.name_any(), only(pod));
        let of = Some((name.clone(), pod.uid()));
        self.insist(mode, of, (200, DELETION_PAUSE), || api.delete(&name, &params)).await
    }

    /// Evicts a pod. Where a budget does not allow it yet, it waits and asks again while the load lasts.
    pub(super) async fn evict(&self, mode: &str, pod: &Pod) -> bool {
        let api = self.pod_api(pod);
        let params = EvictParams { delete_options: Some(only(pod)), ..EvictParams::default() };
        let name = pod.name_any();
        let of = Some((name.clone(), pod.uid()));
        self.insist(mode, of, (201, EVICTION_PAUSE), || api.evict(&name, &params)).await
    }

    fn pod_api(&self, pod: &Pod) -> Api<Pod> {
        let namespace = pod.namespace().unwrap_or_else(|| self.session.caller.namespace.clone());
        Api::namespaced(self.session.caller.client.clone(), &namespace)
    }
}

/// This pod and no other of its name.
fn only(pod: &Pod) -> DeleteParams {
    DeleteParams {
        preconditions: Some(Preconditions { uid: pod.uid(), resource_version: None }),
        ..DeleteParams::default()
    }
}

async fn list(session: &Session, selector: &str) -> Result<Vec<Pod>, CoordinatorError> {
    let pods = Api::<Pod>::namespaced(session.caller.client.clone(), &session.caller.namespace);
    let (what, params) = (format!("list pods {selector:?}"), ListParams::default().labels(selector));
    let listed = session.caller.ask(&what, || pods.list(&params)).await?;
    Ok(listed.map_err(|e| CoordinatorError::api(&what, &e))?.items)
}

/// Those that are ready and stay, the oldest first.
fn oldest_ready_first(mut pods: Vec<Pod>) -> Vec<Pod> {
    pods.retain(is_ready);
    pods.sort_by_key(|pod| (pod.metadata.creation_timestamp.clone(), pod.name_any()));
    pods
}

/// Whether a pod is ready, and not about to end.
pub(super) fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_ref());
    let ready = conditions.into_iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True");
    ready && pod.metadata.deletion_timestamp.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(name: &str, created: &str, ready: &str, deleted: Option<&str>) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": name, "creationTimestamp": created, "deletionTimestamp": deleted},
            "status": {"conditions": [{"type": "Ready", "status": ready}]},
        }))
        .unwrap()
    }

    #[test]
    fn pods_that_are_ready_and_stay_are_chosen_the_oldest_first() {
        let pods = vec![
            pod("young", "2026-01-01T00:00:09Z", "True", None),
            pod("going", "2026-01-01T00:00:01Z", "True", Some("2026-01-01T00:00:31Z")),
            pod("starting", "2026-01-01T00:00:02Z", "False", None),
            pod("old-b", "2026-01-01T00:00:03Z", "True", None),
            pod("old-a", "2026-01-01T00:00:03Z", "True", None),
        ];
        let names: Vec<_> = oldest_ready_first(pods).iter().map(ResourceExt::name_any).collect();
        assert_eq!(names, ["old-a", "old-b", "young"]);
    }
}
