//! The chart's Job, on a cluster: the run is a pod of the cluster that it measures.

use serde_json::{Value, json};

use super::{NOT_SERVED, objects};
use crate::harness::{ClusterProcess, wait_for};
use crate::kubectl::{self, LIMIT};
use crate::runs::turn;
use crate::web::Web;

/// A machine that is starved makes a run invalid, which says nothing about the program.
const TRIES: usize = 3;

struct Cluster(ClusterProcess);

impl Cluster {
    /// What kubectl says, which succeeds.
    #[track_caller]
    fn kubectl(&self, args: &str, input: &str) -> String {
        let ran = kubectl::run(&self.0.kubeconfig(), args, input);
        assert_eq!(ran.code(), Some(0), "{ran}\n{}", self.0.said());
        ran.stdout()
    }

    /// Runs the chart's Job with these values to its end: its condition, its pod's exit code, its log.
    #[track_caller]
    fn run(&self, values: &Value) -> (String, i64, String) {
        for _ in 1..TRIES {
            let ran = self.run_once(values);
            if !ran.2.contains("INVALID") {
                return ran;
            }
        }
        self.run_once(values)
    }

    #[track_caller]
    fn run_once(&self, values: &Value) -> (String, i64, String) {
        let objects = objects(&values.to_string());
        // The pod that a run before has deleted is there again: none may go that is the last one.
        self.kubectl("rollout status deployment/web --timeout=60s", "");
        let served = |object: &&Value| !NOT_SERVED.iter().any(|kind| object["kind"] == *kind);
        let manifest: Vec<String> = objects.iter().filter(served).map(Value::to_string).collect();
        self.kubectl("apply -f -", &manifest.join("\n---\n"));
        let ended = wait_for("the Job's end", 2 * LIMIT, || {
            let job = self.kubectl("get job rolldrop-1 -o json", "");
            let job: Value = serde_json::from_str(&job).expect("JSON");
            let conditions = job["status"]["conditions"].as_array()?;
            let ended = |kind: &str| conditions.iter().any(|c| c["type"] == kind && c["status"] == "True");
            ["Complete", "Failed"].into_iter().find(|kind| ended(kind)).map(str::to_owned)
        });
        let log = self.kubectl("logs job/rolldrop-1", "");
        let code = "get pods -l job-name=rolldrop-1 -o jsonpath={.items[0].status.containerStatuses[0].state.terminated.exitCode}";
        let code = self.kubectl(code, "").parse().expect("a number");
        self.kubectl("delete job rolldrop-1 --cascade=foreground --wait", "");
        (ended, code, log)
    }
}

/// How many requests a run says were dropped as its one pod ended.
#[track_caller]
fn dropped(log: &str) -> u64 {
    let headline = log.lines().find(|line| line.contains(" of 400 requests "));
    let headline = headline.filter(|line| line.contains(" dropped as 1 pod ended")).expect(log);
    let (number, _) = headline.trim().split_once(' ').expect(log);
    number.parse().expect(log)
}

#[test]
fn a_job_of_the_chart_measures_the_cluster_that_it_is_in_and_fails_where_the_gate_does() {
    let _turn = turn();
    let cluster = Cluster(ClusterProcess::start(&json!({"nodes": 2, "dataplane": "kernel"})));
    cluster.kubectl("apply -f -", &Web::new(2).pod(json!({"terminationGracePeriodSeconds": 1})).manifests());
    let values = |max: u32| {
        // Other tests use the processors meanwhile.
        json!({"extraArgs": ["--max-busy=100%"], "scenario": {"spec": {
            "load": {"rate": 100, "duration": "4s"},
            "disruptions": [{"at": "1s", "action": "deletePod", "selector": "app=web"}],
            "expect": {"dropped": {"max": max}, "terminations": {"min": 1}},
        }}})
    };
    let (ended, code, log) = cluster.run(&values(400));
    assert_eq!((ended.as_str(), code), ("Complete", 0), "{log}");
    for said in
        ["on this pod's cluster at http", "in namespace default:", "this run deletes 1 pod of app=web"]
    {
        assert!(log.contains(said), "{said}: {log}");
    }
    dropped(&log);
    assert!(log.contains("/results/rolldrop-1-"), "{log}");

    // A pod that exits at once loses requests at this rate; should none be lost, the gate passes rightly.
    let (ended, code, log) = cluster.run(&values(0));
    let expected = if dropped(&log) == 0 { ("Complete", 0) } else { ("Failed", 1) };
    assert_eq!((ended.as_str(), code), expected, "{log}");
    // The service account's own rights are asked for, and nothing is left of the run.
    assert_eq!(cluster.kubectl("get pods -l app=web -o name", "").lines().count(), 2);
}
