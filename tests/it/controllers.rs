//! The controllers' own limits, as seen from outside.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::pods::{PODS, on, shell, wait_for_async};
use crate::termination::lab::{LIMIT, Seen};

/// Number of Services that select the same pod.
const SERVICES: usize = 100;

/// Returns the arrival time of each Service's first slice that meets the condition, in order.
fn arrivals(seen: &[Seen], is: impl Fn(&Value) -> bool) -> Option<Vec<i64>> {
    let mut services = BTreeSet::new();
    let mut arrivals = Vec::new();
    for seen in seen.iter().filter(|seen| seen.kind() == "EndpointSlice") {
        let service = seen.object["metadata"]["labels"]["kubernetes.io/service-name"].as_str();
        if is(&seen.object["endpoints"][0]["conditions"]) && services.insert(service) {
            arrivals.push(seen.at_ns);
        }
    }
    (arrivals.len() == SERVICES).then_some(arrivals)
}

#[test]
fn client_rate_limit_delays_slice_updates() {
    on("userspace", async |lab| {
        for n in 0..SERVICES {
            let service = json!({
                "metadata": {"name": format!("web-{n}")},
                "spec": {"selector": {"app": "web"}, "clusterIP": "None", "ports": [{"port": 8080}]},
            });
            lab.create("/api/v1/namespaces/default/services", &service).await;
        }
        let mut app = shell("app", "sleep 1000");
        app["lifecycle"] = json!({"preStop": {"sleep": {"seconds": 60}}});
        let spec = json!({"terminationGracePeriodSeconds": 120, "containers": [app]});
        lab.create(PODS, &json!({"metadata": {"name": "web", "labels": {"app": "web"}}, "spec": spec})).await;
        let ready = |seen: &[Seen]| arrivals(seen, |conditions| conditions["ready"] == true);
        lab.until("default", "an endpoint of each Service", ready).await;

        let deletion = lab.call("DELETE", &format!("{PODS}/web"), None).await;
        assert_eq!(deletion.status, 200, "{}", deletion.body);
        let terminating = |seen: &[Seen]| arrivals(seen, |conditions| conditions["terminating"] == true);
        let arrivals = lab.until("default", "a terminating endpoint of each", terminating).await;
        // The limit is a burst of 30 calls and then 20 per second. No call may arrive sooner, however slow the machine
        // is.
        for (n, at_ns) in (0..).zip(arrivals) {
            let soonest_ns = (n - 30) * 50_000_000;
            let after_ns = at_ns - deletion.sent_ns;
            assert!(after_ns >= soonest_ns, "slice {n} arrived {after_ns} ns after the deletion");
        }
    });
}

#[test]
fn unprocessed_budget_postpones_eviction() {
    on("userspace", async |lab| {
        let labels = json!({"app": "web"});
        let spec = json!({"terminationGracePeriodSeconds": 1, "containers": [shell("app", "sleep 1000")]});
        lab.create(PODS, &json!({"metadata": {"name": "web", "labels": labels}, "spec": spec})).await;
        let budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
        let budget = json!({
            "metadata": {"name": "web"}, "spec": {"minAvailable": 0, "selector": {"matchLabels": labels}},
        });
        lab.create(budgets, &budget).await;
        let allowed = async || {
            lab.call("GET", &format!("{budgets}/web"), None).await.body["status"]["disruptionsAllowed"]
                .clone()
        };
        wait_for_async(async || allowed().await == 1).await;
        // The controller needs a moment for each change. An eviction in that moment is refused with this message; at
        // any other time, it would be granted.
        let eviction = json!({
            "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "web"},
            "deleteOptions": {"dryRun": ["All"]},
        });
        let (budget, pod) = (format!("{budgets}/web"), format!("{PODS}/web/eviction"));
        let deadline = tokio::time::Instant::now() + LIMIT;
        let (mut refused, mut n) = (None, 0);
        while refused.is_none() {
            assert!(tokio::time::Instant::now() < deadline, "after {n} attempts");
            n += 1;
            let policy = ["IfHealthyBudget", "AlwaysAllow"][n % 2];
            let change = json!({"spec": {"unhealthyPodEvictionPolicy": policy}});
            // Several attempts run at the same time so that one may hit that moment.
            let tries = (0..8).map(|_| lab.call("POST", &pod, Some(&eviction)));
            let (changed, tried) =
                futures::join!(lab.call("PATCH", &budget, Some(&change)), futures::future::join_all(tries),);
            assert_eq!(changed.status, 200, "{}", changed.body);
            refused = tried.into_iter().find(|answer| answer.status == 429);
        }
        let refused = refused.expect("a refused eviction");
        assert_eq!(refused.headers["retry-after"], "10", "{}", refused.body);
        let cause = &refused.body["details"]["causes"][0];
        assert_eq!(cause["reason"], "DisruptionBudget", "{}", refused.body);
        assert_eq!(cause["message"], "The disruption budget web is still being processed by the server.");
    });
}
