//! `rolldrop gate` on watch histories that these tests write.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::harness::{Finished, Rolldrop};
use crate::termination::lab::now_ns;

const HOUR_NS: i64 = 3_600_000_000_000;

/// Returns a termination of a pod that lost some of 420 requests, this many hours ago.
fn end(workload: &str, hours: i64, lost: [u64; 2], killed: bool) -> Value {
    let at = now_ns() - hours * HOUR_NS;
    let lost = json!({"at_least": lost[0], "at_most": lost[1], "estimate": lost[0] as f64});
    let name = workload.split(' ').next_back().expect("a name");
    let code = if killed { 137 } else { 0 };
    json!({"schema_version": 1, "recorded_ns": at, "kind": "termination", "namespace": "shop", "workload": workload,
        "pod": format!("{name}-x"), "uid": format!("{name}-{hours}"), "node": "node-1", "mode": "rollout", "cause": null,
        "t0_earliest_ns": at - 40_000_000_000_i64, "t0_latest_ns": at - 39_000_000_000_i64, "t0_basis": "timestamp",
        "grace_s": 30, "pre_stop_sleep_s": 0, "ended_ns": at, "grace_use": null, "killed_at_grace_end": killed,
        "containers": [{"name": "app", "sidecar": false, "exit_code": code, "reason": null}], "restarts": 0,
        "failed_hooks": [], "ready_while_terminating_s": null,
        "traffic": {"requests": 420, "lost": lost, "by_cause": {"gateway_to_dead_pod": lost}, "windows": [], "gaps": [],
            "saved_by_retries": {"at_least": 0, "at_most": 0, "estimate": 0.0}, "not_observable": 0,
            "background": {"at_least": 0, "at_most": 0, "estimate": 0.0}}})
}

fn watched(from_hours: i64, to_hours: i64) -> Value {
    let (from, to) = (now_ns() - from_hours * HOUR_NS, now_ns() - to_hours * HOUR_NS);
    json!({"schema_version": 1, "recorded_ns": to, "kind": "watched", "from_ns": from, "to_ns": to, "namespace": null,
        "cluster": "context prod at https://10.0.0.1"})
}

fn write(history: &Path, records: &[Value]) {
    let lines: String = records.iter().map(|record| format!("{record}\n")).collect();
    fs::write(history.join("terminations-000001.jsonl"), lines).expect("a history");
}

fn gate(history: &Path, args: &[&str]) -> Finished {
    Rolldrop::new(["gate"]).args([history]).args(args).finish()
}

#[test]
fn gate_judges_watch_history() {
    let dir = tempfile::tempdir().expect("a directory");
    let history = dir.path();
    let web = || end("Deployment web", 2, [7, 9], false);
    write(
        history,
        &[
            end("Deployment api", 3, [0, 0], true),
            web(),
            end("StatefulSet db", 2, [0, 0], false),
            watched(26, 0),
        ],
    );

    let all = gate(history, &["--since", "24h"]).expect_code(1).stdout();
    // The docs show this output as an example.
    println!("{all}");
    for part in [
        "3 terminations from ",
        "FAIL         dropped.max: 7 to 9 (limit at most 0): 2 may belong to other terminations",
        "FAIL         killed.max: 1 (limit at most 0)",
        "pass         failedHooks.max: 0 (limit at most 0)",
    ] {
        assert!(all.contains(part), "{part}\n{all}");
    }
    let one = |workload: &str, args: &[&str]| gate(history, &[&["--workload", workload], args].concat());
    let said = one("shop/db", &[]).expect_code(0).stdout();
    assert!(said.starts_with("1 termination of shop/db from "), "{said}");
    one("shop/statefulset/db", &[]).expect_code(0);
    one("shop/web", &["--max-dropped", "8"]).expect_code(3);
    one("shop/web", &["--max-dropped", "8", "--inconclusive", "fail"]).expect_code(1);
    one("shop/web", &["--max-dropped", "9"]).expect_code(0);
    one("shop/web", &["--set", "expect.dropped.max=1%"]).expect_code(1);
    one("shop/api", &["--set", "expect.exits.137.max=0"]).expect_code(1);
    let said = one("shop/wbe", &[]).expect_code(2).stderr();
    assert!(said.contains("the history has no termination of shop/wbe; it has shop/web"), "{said}");
    // Its termination was before the period to be judged.
    let said = one("shop/web", &["--since", "1h", "--max-dropped", "0"]).expect_code(3).stdout();
    assert!(
        said.contains("inconclusive terminations.min: 0 (limit at least 1): no pod ended in this period"),
        "{said}"
    );

    let json: Value =
        serde_json::from_str(&one("shop/web", &["--format", "json"]).expect_code(1).stdout()).expect("JSON");
    assert_eq!(
        (&json["verdict"], &json["terminations"], &json["workloads"]),
        (&json!("fail"), &json!(1), &json!(["shop/web"]))
    );
    assert_eq!((&json["checks"][0]["name"], &json["unwatched_s"]), (&json!("dropped.max"), &json!(0.0)));
    assert_eq!(json["checks"][0]["figure"], json!({"unit": "count", "low": 7.0, "value": null, "high": 9.0}));
    let junit = one("shop/web", &["--format", "junit"]).expect_code(1).stdout();
    assert!(junit.contains(r#"<testcase name="dropped.max" classname="rolldrop.watch">"#), "{junit}");
    assert!(junit.contains("7 to 9 (limit at most 0)"), "{junit}");
    let github = one("shop/web", &["--format", "github"]).expect_code(1).stdout();
    assert!(github.contains("::error title=rolldrop%3A dropped.max failed::7 to 9"), "{github}");
    let comment = one("shop/web", &["--format", "comment"]).expect_code(1).stdout();
    assert!(
        comment.starts_with("<!-- rolldrop: watch -->\n### rolldrop: `watch` failed: dropped.max"),
        "{comment}"
    );
    assert!(comment.contains("| **fail** | `dropped.max` | 7 to 9 | at most 0 |"), "{comment}");
    let file = dir.path().join("junit.xml");
    one("shop/db", &["--junit", file.to_str().expect("a path")]).expect_code(0);
    assert!(fs::read_to_string(&file).expect("a file").contains("tests=\"3\""));
}

#[test]
fn gate_never_passes_unwatched_history() {
    let dir = tempfile::tempdir().expect("a directory");
    let history = dir.path();
    write(history, &[end("Deployment web", 2, [0, 0], false), watched(20, 1)]);
    let said = gate(history, &["--since", "24h"]).expect_code(3).stdout();
    for part in [
        "inconclusive dropped.max: at least 0 (limit at most 0): for 5.0 h, no watch is known to have run",
        "keep the watch running",
    ] {
        assert!(said.contains(part), "{part}\n{said}");
    }
    gate(history, &["--since", "24h", "--set", "expect.terminations.min=1"]).expect_code(0);

    let no_log = {
        let mut end = end("Deployment web", 2, [0, 0], false);
        end["traffic"] = Value::Null;
        end
    };
    write(history, &[no_log, watched(20, 0)]);
    let said = gate(history, &["--max-dropped", "5"]).expect_code(3).stdout();
    assert!(said.contains("at least 0 (limit at most 5): no log names 1 pod; follow the logs"), "{said}");
    gate(history, &["--set", "expect.killed.max=0"]).expect_code(0);

    for (args, why) in [
        (&["--set", "expect.latency.p99.max=1s"][..], "expect.latency needs a run"),
        (&["--set", "expect.dropped.worse=10%"], "expect.dropped.worse needs a run"),
        (&["--save-baseline", "b.json"], "only runs can be compared with a baseline"),
        (&["--workload", "web"], "expected NAMESPACE/NAME or NAMESPACE/KIND/NAME"),
        (&["--format", "prometheus"], "has no --format prometheus"),
    ] {
        let said = gate(history, args).expect_code(2).stderr();
        assert!(said.contains(why), "{why}\n{said}");
    }
    let run = crate::harness::root().join("tests/reference/runs/plain-rollout/run");
    let said = gate(&run, &["--since", "1h"]).expect_code(2).stderr();
    assert!(said.contains("--since and --workload select terminations in a watch history"), "{said}");
}
