//! Decides when an action is complete and the next one may start.
//!
//! A workload has recovered when as many of its pods are ready as before, none of them is terminating, and each of
//! their Services has as many ready endpoints as before. To be distinguishable, the next termination also waits until
//! silence has shown that no more connections are routed to the old pods; [`Acting::quiet`] computes how long that
//! takes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::timeout;

use super::acting::{Acting, UnderLoad};
use super::silence::{Silence, until_silent};
use crate::observe::rollout_wait::until_settled;
use crate::observe::{View, Workloads};
use crate::viewer::Wait;
use rolldrop_kubernetes::pods::Candidate;
use rolldrop_record::EventKind;
use rolldrop_record::event::EndpointState;
use rolldrop_scenario::{DisruptionAction, Pods, Repeat};

/// Maximum lag of a Service proxy behind the EndpointSlices: kube-proxy's own `minSyncPeriod`.
const PROXY_LAG: Duration = Duration::from_secs(1);
/// Minimum time for which the load has to continue after the recovery, in nanoseconds.
const AFTERMATH_NS: i64 = 1_000_000_000;
/// Assumed number of terminations if the number is not known.
const MANY: usize = 100;
/// Limit for the computed wait. The windows of a pod that gets new connections less often than this are too coarse.
const LONGEST_QUIET: Duration = Duration::from_secs(10);

/// Pod and endpoint counts before the first action. They have to be reached again before the next action.
#[derive(Clone, Debug, Default)]
pub(super) struct Whole {
    /// Workloads in the namespace.
    pub(super) workloads: Workloads,
    ready: usize,
    /// Number of ready endpoints of each Service.
    endpoints: BTreeMap<String, usize>,
}

impl Whole {
    /// Raises the counts to the current ones, considering only pods that an action may take.
    pub(super) fn see(&mut self, ready: &[Candidate], view: &View) {
        self.ready = self.ready.max(ready.len());
        let names: BTreeSet<&str> = ready.iter().filter_map(|pod| pod.metadata.name.as_deref()).collect();
        let is_one =
            |endpoint: &EndpointState| endpoint.pod.as_deref().is_some_and(|pod| names.contains(pod));
        for slice in view.slices.values().filter(|slice| slice.endpoints.iter().any(is_one)) {
            let Some(service) = &slice.service else { continue };
            let now = view.ready_endpoints(service);
            let before = self.endpoints.entry(service.clone()).or_default();
            *before = now.max(*before);
        }
    }

    fn has_endpoints_again(&self, view: &View) -> bool {
        // False while a list is arriving. Until the list is complete, an endpoint that is missing here may still exist.
        let is_known = view.slices_listed || self.endpoints.is_empty();
        is_known && self.endpoints.iter().all(|(service, before)| view.ready_endpoints(service) >= *before)
    }
}

impl Acting<'_> {
    /// Waits, while the load lasts, until the action or its batch is complete and the next one can be distinguished
    /// from it. If that does not happen, returns the reason as text.
    pub(super) async fn recovered(&self, whole: &Whole) -> Result<(), String> {
        let action = &self.disruption.action;
        let recovered = async {
            if let Some(pods) = action.pods() {
                self.waits(Wait::Pods, self.pods_recovered(pods, whole)).await;
            } else if action.is_rollout() {
                let settled = until_settled(self.changer.caller, self.observer, &whole.workloads);
                return matches!(self.waits(Wait::Rollout, settled).await, Ok((_, None)));
            }
            // Other actions do their own waiting.
            true
        };
        let limit = self.changer.caller.limits.recovery;
        let mut over = self.while_loaded(timeout(limit, recovered)).await;
        let is_relabel = matches!(action, DisruptionAction::Relabel { .. });
        if let (Some(Ok(true)), Some(pods), false) = (&over, action.pods(), is_relabel) {
            over = self.while_loaded(self.quiet(pods, whole)).await.map(|()| Ok(true));
        }
        match over {
            Some(Ok(true)) if self.load_left_ns() >= AFTERMATH_NS => Ok(()),
            None | Some(Ok(true)) => {
                Err("the previous pods had not recovered when the load ended".to_owned())
            }
            Some(_) => Err(format!("the previous pods had not recovered within {limit:?}")),
        }
    }

    /// Waits until none of the selected pods is terminating, except those that already were when the run began, and as
    /// many pods and endpoints are ready as before.
    async fn pods_recovered(&self, pods: &Pods, whole: &Whole) {
        loop {
            // Subscribes before listing so that no change after the list is missed.
            let changed = self.observer.views().changed();
            let is_whole = self.observer.views().read(|view| whole.has_endpoints_again(view));
            if is_whole && let Ok(found) = self.listed(&pods.selector).await {
                let is_awaited = |pod: &Candidate| {
                    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
                    pod.metadata.deletion_timestamp.is_some()
                        && !self.observer.views().read(|view| view.ending_before.contains(uid))
                };
                if !found.iter().any(is_awaited)
                    && found.iter().filter(|pod| pod.is_ready).count() >= whole.ready
                {
                    return;
                }
            }
            changed.await;
        }
    }

    /// Waits until another connection to a pod that is gone is implausible. This takes ln(n/α)/λ from the last time at
    /// which a Service proxy may have routed a connection there, where λ is the rate of new connections per pod and n
    /// the number of terminations. Other consumers take longer, so the wait restarts with each lost request
    /// ([`until_silent`]).
    async fn quiet(&self, pods: &Pods, whole: &Whole) {
        let per_pod = self.load.rate / whole.ready.max(1) as f64;
        let many = match self.disruption.repeat {
            Repeat::Times(times) => usize::try_from(times).unwrap_or(MANY) * pods.count.of(whole.ready),
            Repeat::Until(until) => until.terminations().unwrap_or(MANY),
        };
        let silence_s = (many.max(1) as f64 / self.load.alpha).ln() / per_pod;
        let silence = Duration::try_from_secs_f64(silence_s).unwrap_or(LONGEST_QUIET).min(LONGEST_QUIET);
        let silence = PROXY_LAG + if self.load.rate > 0.0 { silence } else { Duration::ZERO };
        let UnderLoad { settle, known_after, losses, .. } = self.load;
        let silence = settle.silence.unwrap_or(silence + known_after);
        let silent = until_silent(losses, silence, settle.most);
        if self.waits(Wait::Silence(silence), silent).await == Silence::NeverCame {
            self.observer.recorder().record(EventKind::Unsettled { limit_s: settle.most.as_secs_f64() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rolldrop_record::event::{Change, EndpointSliceEvent};
    use serde_json::json;

    #[test]
    fn recovery_requires_prior_endpoint_counts() {
        let endpoint = |pod: &str, ready| EndpointState {
            pod: Some(pod.into()),
            address: "10.0.0.1".into(),
            ready,
            serving: ready,
            terminating: !ready,
            node: None,
        };
        let slice = |service: &str, endpoints: Vec<EndpointState>| EndpointSliceEvent {
            change: Change::Applied,
            namespace: "shop".into(),
            name: format!("{service}-x"),
            service: Some(service.into()),
            endpoints,
        };
        let view = |slices: Vec<EndpointSliceEvent>| {
            let slices = slices.into_iter().map(|slice| (slice.name.clone(), slice)).collect();
            View { slices, slices_listed: true, ..View::default() }
        };
        let web: Candidate = serde_json::from_value(json!({"metadata": {"name": "a"}})).unwrap();
        let mut whole = Whole::default();
        let both = slice("web", vec![endpoint("a", true), endpoint("b", true)]);
        let other = slice("db", vec![endpoint("c", true)]);
        whole.see(&[web], &view(vec![both.clone(), other]));
        assert_eq!(whole.endpoints, BTreeMap::from([("web".to_owned(), 2)]));
        assert!(whole.has_endpoints_again(&view(vec![both])));
        let one = slice("web", vec![endpoint("a", true), endpoint("b", false)]);
        assert!(!whole.has_endpoints_again(&view(vec![one])));
        assert!(!whole.has_endpoints_again(&view(Vec::new())));
    }
}
