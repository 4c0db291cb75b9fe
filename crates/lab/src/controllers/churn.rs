//! Changes an EndpointSlice that no Service uses, as other workloads do on a busy cluster.
//!
//! Every change of a slice makes the Service proxies sync, and a sync uses up the next second; so on a busy cluster
//! even an isolated deletion waits. The changes come at random, at the rate `backgroundChurn`; none by default.

use std::time::Duration;

use serde_json::json;

use crate::registry::Part;
use crate::resource::Resource;
use crate::shared::Shared;
use crate::well_known::SERVICE_NAME;

const NAMESPACE: &str = "kube-system";
const NAME: &str = "background-churn";

pub(super) async fn run(shared: Shared) {
    let per_second = shared.config.background_churn;
    if per_second <= 0.0 {
        return std::future::pending().await;
    }
    let registry = &shared.registry;
    // No Service has this name: the slice belongs to nobody, and no proxy routes by it.
    let slice = json!({
        "metadata": {"name": NAME, "labels": {SERVICE_NAME: NAME}},
        "addressType": "IPv4",
        "endpoints": [],
        "ports": [],
    });
    if let Err(status) = registry.create(Resource::EndpointSlices, NAMESPACE, slice) {
        tracing::warn!(%status, "no background churn");
        return std::future::pending().await;
    }
    for change in 1_u64.. {
        tokio::time::sleep(shared.sampler.interval(per_second)).await;
        let changed = registry.modify(Resource::EndpointSlices, NAMESPACE, NAME, Part::Main, |slice| {
            let ready = change % 2 == 0;
            slice["endpoints"] = json!([{"addresses": ["192.0.2.1"], "conditions": {"ready": ready}}]);
        });
        if let Err(status) = changed {
            tracing::debug!(%status, "background churn failed");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::super::tests::bench::Bench;
    use super::*;
    use crate::Config;

    #[tokio::test(start_paused = true)]
    async fn background_churn_matches_configured_rate() {
        let config = Config { background_churn: 10.0, ..Config::default() };
        let bench = Bench::start_with(config, &[|shared| run(shared).boxed()]);
        tokio::time::sleep(Duration::from_secs(100)).await;
        let slice = bench.registry().get(Resource::EndpointSlices, NAMESPACE, NAME).unwrap();
        // Poisson with mean 1000: ten standard deviations to each side.
        let changes = slice["metadata"]["generation"].as_i64().unwrap();
        assert!((684..1317).contains(&changes), "{changes}");
    }
}
