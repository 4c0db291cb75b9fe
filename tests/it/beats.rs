//! Beats date deletions that others made; these dates are compared with the embedded API server's own log.

use std::collections::BTreeMap;

use rolldrop_explain::Analysed;
use rolldrop_explain::model::T0Basis;
use rolldrop_explain::timeline::BeatsState;
use rolldrop_record::{RunDir, Stamp};

use crate::harness::Rolldrop;
use crate::machine::measured;
use crate::runs::turn;

/// Largest difference between the clocks of two processes on this machine, each anchored once.
const CLOCKS_APART_NS: i64 = 5_000_000;

/// Returns the time at which the API server carried out each deletion, by pod UID.
fn truth(log: &str) -> BTreeMap<String, Stamp> {
    let deletions = log.lines().filter(|line| line.contains("a pod's deletion takes effect"));
    let field = |line: &str, name: &str| {
        let value = line.split_once(&format!("{name}="))?.1;
        Some(value.split_whitespace().next()?.trim_matches('"').to_owned())
    };
    let deletion = |line: &str| {
        let at = Stamp::from_unix_ns(field(line, "t_ns")?.parse().ok()?);
        Some((field(line, "uid")?, at))
    };
    deletions.filter_map(deletion).collect()
}

#[test]
fn beats_enclose_rollout_deletions() {
    measured(|| {
        let _turn = turn();
        // The run only requests the restart; a controller deletes the pods.
        let restart = "disruptions=[{at: 3s, action: rollingRestart, workload: deployment/web}]";
        let relaxed = ["expect.dropped.min=0", "expect.terminations.min=0"];
        let run = Rolldrop::run("naive-exit").args(["--quiet"]).set(&[restart]).set(&relaxed);
        let run = run.env("ROLLDROP_LOG", "warn,rolldrop_lab::registry=debug");
        let finished = run.measured().expect_code(0);
        let run = finished.dir().join("run");
        let log = std::fs::read_to_string(run.join("cluster/cluster.log")).expect("the cluster's log");
        let truth = truth(&log);
        let records = RunDir::open(&run).and_then(|run| run.read()).expect("the run reads");
        let Analysed { timeline, .. } = Analysed::of(records.log(), records).expect("a timeline");
        assert_eq!(timeline.beats.state, BeatsState::Usable, "{finished}");
        assert_eq!(timeline.ends.len(), 3, "{finished}");
        for end in &timeline.ends {
            let deleted = truth.get(&end.uid).unwrap_or_else(|| panic!("no log mentions {}\n{log}", end.pod));
            let (earliest, latest) = (end.t0.earliest, end.t0.latest);
            println!("{}: t0 within {:.3} s", end.pod, latest.seconds_since(earliest));
            assert_eq!(end.t0.basis, T0Basis::Beats, "{finished}");
            assert!(deleted.ns_since(earliest) >= -CLOCKS_APART_NS, "{}: {deleted:?} {:?}", end.pod, end.t0);
            assert!(latest.ns_since(*deleted) >= -CLOCKS_APART_NS, "{}: {deleted:?} {:?}", end.pod, end.t0);
        }
        let changes = std::fs::read_to_string(run.join("changes.jsonl")).expect("changes.jsonl");
        assert!(changes.contains("rolldrop-run-") && changes.contains("\"undone\""), "{changes}");
    });
}
