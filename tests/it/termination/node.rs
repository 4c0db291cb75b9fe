//! Pods that terminate while their node's agent restarts or their node shuts down.

use std::sync::Arc;

use serde_json::json;

use super::case::{Act, Case, SERVE_2, condition};
use super::lab::Lab;
use super::recording::Recording;
use super::{DATAPLANES, golden};
use crate::pods::on;

/// Records a case on each dataplane, on its own cluster, because acts on a node affect all pods.
fn alone(case: impl Fn(&Arc<Lab>) -> Case, check: impl Fn(&Recording)) {
    for dataplane in DATAPLANES {
        on(dataplane, async |lab| {
            let case = case(&Arc::new(lab)).spec("nodeName", json!("node-1"));
            check(&case.run().await);
        });
    }
}

#[test]
fn c11_node_agent_restart_renews_grace_period() {
    let case = |lab: &Arc<Lab>| {
        let stubborn = "trap 'say SIGTERM' TERM; while :; do sleep 0.1; done";
        let case = Case::script(lab, "restart", stubborn).grace(6).exec_hook(2);
        case.act(0.0, Act::Delete(None)).act(4.0, Act::Node("restart"))
    };
    alone(case, |ours| {
        assert_eq!(ours.answers[1].status, 200, "{ours}");
        // The hook starts again; the runtime has not restarted, and sends its signal only once.
        assert_eq!((ours.count("app hook begins"), ours.count("app SIGTERM")), (2, 1), "{ours}");
        assert!(ours.fits(ours.first("app SIGTERM"), 1.9..3.5), "{ours}");
        assert!(ours.last("app hook begins") > 3.9, "{ours}");
        // Without the restart it would be killed at 6 s; the agent starts after a second.
        let gone = ours.first("app gone");
        assert!(ours.fits(gone, 9.9..13.5), "{ours}");
        assert_eq!(ours.exit_code("app"), 137, "{ours}");
    });
}

#[test]
fn node_shutdown_ends_pods_without_deletion() {
    let case = |lab: &Arc<Lab>| {
        let case = Case::new(lab, "shutdown", SERVE_2).grace(5);
        // A pod that has ended is deleted immediately.
        case.act(0.0, Act::Node("shutdown?grace=10")).act(8.0, Act::Delete(None))
    };
    alone(case, |ours| {
        assert!(ours.fits(ours.first("app SIGTERM"), 0.0..1.5), "{ours}");
        let (ended_at, ended) = ours.pod_seen("its end", |seen| seen.object["status"]["phase"] == "Failed");
        assert!(ended_at < 8.0 && ended["metadata"]["deletionTimestamp"].is_null(), "{ours}");
        assert_eq!(ended["status"]["reason"], "Terminated", "{ours}");
        let target = condition(&ended, "DisruptionTarget").unwrap_or_else(|| panic!("no condition\n{ours}"));
        assert_eq!((&target["status"], &target["reason"]), (&json!("True"), &json!("TerminationByKubelet")));
        // Nothing in the object shows the termination; the endpoint depends only on the pod's status.
        let order = golden::order(ours);
        assert!(!order.iter().any(|(_, text)| text.contains("terminating=true")), "{ours}");
        let unready = ours.pod_seen("not ready", |seen| {
            condition(&seen.object, "Ready").is_some_and(|ready| ready["status"] == "False")
        });
        let changed = order.iter().find(|(at, text)| *at > 0.0 && text.starts_with("EndpointSlice"));
        let (changed_at, _) = changed.unwrap_or_else(|| panic!("the endpoint stays\n{ours}"));
        assert!(*changed_at > unready.0 - 0.05 - ours.lag_s, "{ours}");
        // Until then it is ready, because the node controller does not overrule what the node reports about itself.
        assert_eq!(unready.1["status"]["phase"], "Failed", "{ours}");
    });
}
