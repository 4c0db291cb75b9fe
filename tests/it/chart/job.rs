//! The chart's Job: the run is itself a pod in the cluster that it measures.

use serde_json::{Value, json};

use super::{NOT_SERVED, objects};
use crate::harness::{LIMIT, again_while_invalid, wait_for};
use crate::kubectl::ROLLED_OUT;
use crate::lab::{Cluster, Setup};
use crate::machine::{Meanwhile, figure, measured};
use crate::runs::{Dataplane, turn};
use crate::web::Web;

/// Runs the chart's Job with these values until the Job finishes. Returns the Job's condition, its pod's exit code and
/// its log.
#[track_caller]
fn run(cluster: &Cluster, values: &Value) -> (String, i64, String) {
    let meanwhile = Meanwhile::begins();
    let is_invalid = |ran: &(String, i64, String)| ran.2.contains("INVALID");
    let ran = again_while_invalid(|| run_once(cluster, values), is_invalid);
    figure(meanwhile.taken(), !is_invalid(&ran), || ran.2.clone());
    ran
}

#[track_caller]
fn run_once(cluster: &Cluster, values: &Value) -> (String, i64, String) {
    let objects = objects(&values.to_string());
    // The pod deleted by the previous run must be replaced first, because no run may delete the last pod.
    cluster.kubectl(ROLLED_OUT);
    let served = |object: &&Value| !NOT_SERVED.iter().any(|kind| object["kind"] == *kind);
    let manifest: Vec<String> = objects.iter().filter(served).map(Value::to_string).collect();
    cluster.apply(&manifest.join("\n---\n"));
    let ended = wait_for("the Job to finish", LIMIT, || {
        let job = cluster.kubectl("get job rolldrop-1 -o json");
        let job: Value = serde_json::from_str(&job).expect("JSON");
        let conditions = job["status"]["conditions"].as_array()?;
        let ended = |kind: &str| conditions.iter().any(|c| c["type"] == kind && c["status"] == "True");
        ["Complete", "Failed"].into_iter().find(|kind| ended(kind)).map(str::to_owned)
    });
    let log = cluster.kubectl("logs job/rolldrop-1");
    let code = "get pods -l job-name=rolldrop-1 -o jsonpath={.items[0].status.containerStatuses[0].state.terminated.exitCode}";
    let code = cluster.kubectl(code).parse().expect("a number");
    cluster.kubectl("delete job rolldrop-1 --cascade=foreground --wait");
    (ended, code, log)
}

/// Returns the number of requests dropped at the run's only termination, according to the log.
#[track_caller]
fn dropped(log: &str) -> u64 {
    let headline = log.lines().find(|line| line.contains(" of 400 requests "));
    let headline = headline.filter(|line| line.contains(" dropped as 1 pod ended")).expect(log);
    let (number, _) = headline.trim().split_once(' ').expect(log);
    number.parse().expect(log)
}

#[test]
fn chart_job_gates_its_own_cluster() {
    measured(|| {
        let _turn = turn();
        let cluster = Setup::on(Dataplane::Kernel).nodes(2).start();
        cluster.apply(&Web::new(2).pod(json!({"terminationGracePeriodSeconds": 1})).manifests());
        let values = |max: u32| {
            // Other tests use the CPUs at the same time.
            json!({"extraArgs": ["--max-busy=100%"], "scenario": {"spec": {
                "load": {"rate": 100, "duration": "4s"},
                "disruptions": [{"at": "1s", "action": "deletePod", "selector": "app=web"}],
                "expect": {"dropped": {"max": max}, "terminations": {"min": 1}},
            }}})
        };
        let (ended, code, log) = run(&cluster, &values(400));
        assert_eq!((ended.as_str(), code), ("Complete", 0), "{log}");
        for said in [
            "on this pod's cluster at http",
            "in namespace default:",
            "this run deletes 1 pod matching app=web",
        ] {
            assert!(log.contains(said), "{said}: {log}");
        }
        dropped(&log);
        assert!(log.contains("/results/rolldrop-1-"), "{log}");

        // A pod that exits immediately usually loses requests at this rate. If none are lost, the gate rightly passes.
        let (ended, code, log) = run(&cluster, &values(0));
        let expected = if dropped(&log) == 0 { ("Complete", 0) } else { ("Failed", 1) };
        assert_eq!((ended.as_str(), code), expected, "{log}");
        // The run used the service account's own permissions, and left nothing behind.
        assert_eq!(cluster.kubectl("get pods -l app=web -o name").lines().count(), 2);
    });
}
