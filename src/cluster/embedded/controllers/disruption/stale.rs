//! Takes the condition `DisruptionTarget` back from pods whose eviction came to nothing.
//!
//! After `syncStalePodDisruption` in pkg/controller/disruption. A condition that the node agent has
//! set stays, and so does that of a pod which is going or has ended.

use std::time::Duration;

use serde_json::{Value, json};

use super::super::worker::{self, BACK_OFF, Outcome};
use super::super::{Key, condition, follow, is_active, key};
use super::time_left;
use crate::cluster::embedded::Shared;
use crate::cluster::embedded::conditions::{self, unix_seconds};
use crate::cluster::embedded::registry::Part;
use crate::cluster::embedded::resource::Resource;

const TYPE: &str = "DisruptionTarget";

pub(super) async fn run(shared: &Shared) {
    let events = follow(&shared.registry, &[Resource::Pods]);
    let named = |(_, event): super::super::Observed| {
        if is_marked(&event.object) { vec![key(&event.object)] } else { Vec::new() }
    };
    worker::run(events, BACK_OFF, named, |pod| async move { reconcile(shared, &pod) }).await;
}

fn is_marked(pod: &Value) -> bool {
    let mark = condition(pod, TYPE);
    mark["status"] == "True" && mark["reason"] != "TerminationByKubelet" && is_active(pod)
}

fn reconcile(shared: &Shared, (namespace, name): &Key) -> Outcome {
    let registry = &shared.registry;
    let Some(pod) = registry.get(Resource::Pods, namespace, name).ok().filter(|pod| is_marked(pod)) else {
        return Ok(None);
    };
    let now = registry.now();
    let now_seconds = unix_seconds(&json!(now)).unwrap_or(0);
    let timeout: Duration = shared.config.controllers.stale_pod_disruption_timeout;
    if let Some(left) = time_left(&condition(&pod, TYPE)["lastTransitionTime"], timeout, now_seconds) {
        return Ok(Some(left));
    }
    registry.modify(Resource::Pods, namespace, name, Part::Status, |pod| {
        if is_marked(pod) {
            let generation = &pod["metadata"]["generation"];
            let taken_back = json!({
                "type": TYPE, "status": "False", "observedGeneration": generation, "lastProbeTime": null,
            });
            conditions::put(pod, taken_back, &now);
        }
    })?;
    Ok(None)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::super::super::bench::Bench;
    use super::*;
    use crate::cluster::embedded::Config;

    #[tokio::test]
    async fn a_condition_is_taken_back_unless_the_node_agent_has_set_it() {
        let mut config = Config::default();
        config.controllers.stale_pod_disruption_timeout = Duration::from_secs(1);
        let bench = Bench::start_with(config, &[|shared| super::super::run(shared).boxed()]);
        for (name, reason) in [("evicted", "EvictionByEvictionAPI"), ("shed", "TerminationByKubelet")] {
            let spec = json!({"containers": [{"name": "app", "image": "host", "command": ["true"]}]});
            bench.create(Resource::Pods, json!({"metadata": {"name": name}, "spec": spec}));
            let now = bench.registry().now();
            bench.modify(Resource::Pods, name, Part::Status, |pod| {
                conditions::put(pod, json!({"type": TYPE, "status": "True", "reason": reason}), &now);
            });
        }
        let status = |bench: &Bench, name: &str| condition(&bench.get(Resource::Pods, name), TYPE).clone();
        bench.holds("taken back", |bench| status(bench, "evicted")["status"] == "False").await;
        assert_eq!(status(&bench, "evicted")["reason"], Value::Null);
        assert_eq!(status(&bench, "shed")["status"], "True");
    }
}
