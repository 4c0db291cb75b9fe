//! Time between two syncs of a Service proxy, according to its own log.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::wait_for;
use crate::lab::Setup;
use crate::termination::lab::{LIMIT, Lab};

const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
const PERIOD: Duration = Duration::from_secs(1);

/// Returns an EndpointSlice for this Service with this endpoint.
fn slice(service: &str, address: &str) -> Value {
    json!({
        "metadata": {"name": format!("{service}-1"), "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4",
        "ports": [{"port": 8080, "protocol": "TCP"}],
        "endpoints": [{
            "addresses": [address],
            "conditions": {"ready": true, "serving": true, "terminating": false},
            "targetRef": {"kind": "Pod", "name": "a"},
        }],
    })
}

/// Returns the times at which the rules of the Service `web` changed, in Unix nanoseconds.
fn syncs(lab: &Lab) -> Vec<i64> {
    let log = std::fs::read_to_string(lab.dir().join("service-proxy.jsonl")).unwrap_or_default();
    let whole = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let own = whole.filter(|line| line["kind"] == "sync" && line["service"] == "default/web");
    own.map(|line| line["t_ns"].as_i64().expect("a time")).collect()
}

#[test]
fn other_slices_delay_isolated_change() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let config = json!({"latencies": {"sliceToRule": "0ms"}, "serviceProxy": {"minSyncPeriod": "1s"}});
        let lab = Setup::new().with(config).watched().await;
        let service = json!({"metadata": {"name": "web"}, "spec": {"ports": [{"port": 8080}]}});
        lab.create("/api/v1/namespaces/default/services", &service).await;
        // No Service is named `other`, so its slices make no rules.
        for service in ["other", "web"] {
            lab.create(SLICES, &slice(service, "192.0.2.1")).await;
        }
        let mut known = wait_for("the first rule", LIMIT, || Some(syncs(&lab)).filter(|at| !at.is_empty()));

        // Both changes may happen to share one sync. Without the other change, none would wait, because each comes
        // long after the previous one.
        let mut has_waited = false;
        for attempt in 0..12 {
            if has_waited {
                break;
            }
            tokio::time::sleep(2 * PERIOD).await;
            let count = known.len();
            let address = format!("192.0.2.{}", 2 + attempt);
            let mut sent_ns = 0;
            for service in ["other", "web"] {
                let change = slice(service, &address);
                let sent = lab.call("PUT", &format!("{SLICES}/{service}-1"), Some(&change)).await;
                assert_eq!(sent.status, 200, "{}", sent.body);
                sent_ns = sent.sent_ns;
            }
            known = wait_for("the next rule", LIMIT, || Some(syncs(&lab)).filter(|at| at.len() > count));
            let in_effect = known.last().expect("a sync");
            has_waited = in_effect - sent_ns > 300_000_000;
        }
        assert!(has_waited, "{known:?}");
        assert!(known.windows(2).all(|pair| pair[1] - pair[0] >= 1_000_000_000), "{known:?}");
    });
}
