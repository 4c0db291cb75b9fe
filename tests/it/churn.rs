//! `backgroundChurn`, by the Service proxies' own account.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::wait_for;
use crate::lab::Setup;
use crate::termination::lab::{LIMIT, Lab};

const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
const PERIOD: Duration = Duration::from_secs(1);

/// Returns a slice of the Service `web` with this endpoint.
fn slice(address: &str) -> Value {
    json!({
        "metadata": {"name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
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
fn churn_delays_isolated_slice_change() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let config = json!({
            "backgroundChurn": 200, "latencies": {"sliceToRule": "0ms"},
            "serviceProxy": {"minSyncPeriod": "1s"},
        });
        let lab = Setup::new().with(config).watched().await;
        let service = json!({"metadata": {"name": "web"}, "spec": {"ports": [{"port": 8080}]}});
        lab.create("/api/v1/namespaces/default/services", &service).await;
        lab.create(SLICES, &slice("192.0.2.1")).await;
        let mut known = wait_for("the first rule", LIMIT, || Some(syncs(&lab)).filter(|at| !at.is_empty()));

        // The wait is anything up to a period, so the first changes may happen to be just in time.
        // Without churn none would wait, since each comes long after the one before.
        let mut has_waited = false;
        for attempt in 0..12 {
            if has_waited {
                break;
            }
            tokio::time::sleep(2 * PERIOD).await;
            let change = slice(&format!("192.0.2.{}", 2 + attempt));
            let sent = lab.call("PUT", &format!("{SLICES}/web-1"), Some(&change)).await;
            assert_eq!(sent.status, 200, "{}", sent.body);
            let count = known.len();
            known = wait_for("the next rule", LIMIT, || Some(syncs(&lab)).filter(|at| at.len() > count));
            let in_effect = known.last().expect("a sync");
            has_waited = in_effect - sent.sent_ns > 300_000_000;
        }
        assert!(has_waited, "{known:?}");
        assert!(known.windows(2).all(|pair| pair[1] - pair[0] >= 1_000_000_000), "{known:?}");
    });
}
