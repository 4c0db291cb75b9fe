//! The output of `rolldrop gate --format` for a recorded run.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use super::{python, root};
use crate::harness::{Finished, Rolldrop, fed};

/// Returns the recorded run with three rollouts, which lost 488 requests.
fn recorded() -> PathBuf {
    root().join("tests/reference/runs/plain-rollout/run")
}

fn gate(format: &str) -> Rolldrop {
    let limits = ["--max-dropped", "3", "--format", format];
    Rolldrop::new(["gate"]).args([recorded()]).args(limits)
}

fn file(finished: &Finished, name: &str) -> String {
    fs::read_to_string(finished.dir().join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

#[test]
fn github_format_annotates_and_sets_outputs() {
    let files = [("GITHUB_STEP_SUMMARY", "summary"), ("GITHUB_OUTPUT", "output")];
    let mut gate = gate("github").file("summary", "before\n").file("output", "");
    for (variable, name) in files {
        // The path is relative to the working directory.
        gate = gate.env(variable, name);
    }
    let finished = gate.finish().expect_code(1);
    let failed = "::error title=rolldrop%3A dropped.max failed::488 (limit at most 3)\n";
    assert!(finished.stdout().contains(failed), "{}", finished.stdout());
    assert!(finished.stdout().contains("\n::notice title=rolldrop%3A "), "{}", finished.stdout());
    let summary = file(&finished, "summary");
    assert!(summary.starts_with("before\n# rolldrop: "), "{summary}");
    assert!(summary.contains("| **fail** | `dropped.max` | 488 | at most 3 |"), "{summary}");
    let output = file(&finished, "output");
    for line in ["verdict=failed", "dropped=488", "failed-checks=dropped.max"] {
        assert!(output.lines().any(|l| l == line), "{line}: {output}");
    }

    // Outside GitHub Actions, nothing is written.
    let finished = self::gate("github").env("GITHUB_STEP_SUMMARY", "").finish().expect_code(1);
    assert_eq!(fs::read_dir(finished.dir()).expect("a directory").count(), 0);
    let finished = self::gate("github").env("GITHUB_OUTPUT", "no/such/folder").finish().expect_code(2);
    let why = "failed to append to no/such/folder (from the variable GITHUB_OUTPUT)";
    assert!(finished.stderr().contains(why), "{}", finished.stderr());
}

#[test]
fn every_format_keeps_gate_exit_code() {
    let json: Value = serde_json::from_str(&gate("json").finish().expect_code(1).stdout()).expect("JSON");
    assert_eq!(json["checks"][0]["verdict"], "fail");
    let junit = gate("junit").finish().expect_code(1).stdout();
    assert!(junit.contains("488 (limit at most 3)</failure>"), "{junit}");
    let comment = gate("comment").finish().expect_code(1).stdout();
    assert!(comment.starts_with("<!-- rolldrop: "), "{comment}");
    let text = gate("text").finish().expect_code(1).stdout();
    assert!(text.starts_with("FAIL         dropped.max: 488 (limit at most 3)\n"), "{text}");
}

/// Reads metrics with Prometheus' own library, in both formats, and prints their names and some values.
const READ: &str = r#"
import sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as prometheus
text = sys.stdin.read()
for parse in (prometheus, openmetrics):
    for family in parse(text):
        assert family.type == "gauge" and family.documentation, family
        for sample in family.samples:
            assert sample.timestamp is None, sample
            labels = " ".join(sorted(f"{k}={v}" for k, v in sample.labels.items() if k != "scenario"))
            print(f"{sample.name} {labels} {sample.value:g}")
"#;

#[test]
fn metrics_parse_as_prometheus_and_openmetrics() {
    let metrics = gate("prometheus").finish().expect_code(1).stdout();
    let mut reader = std::process::Command::new(python("python"));
    let read = fed(reader.args(["-c", READ]), &metrics);
    let told = String::from_utf8_lossy(&read.stdout);
    assert!(read.status.success(), "{}\n{metrics}", String::from_utf8_lossy(&read.stderr));
    for line in [
        "rolldrop_gate_verdict verdict=failed 1",
        "rolldrop_gate_verdict verdict=passed 0",
        "rolldrop_check_verdict check=dropped.max verdict=fail 1",
        "rolldrop_dropped_requests  488",
        "rolldrop_terminations  18",
    ] {
        assert_eq!(told.lines().filter(|told| *told == line).count(), 2, "{line}: {told}");
    }
}

#[test]
fn report_comparison_refuses_ci_format() {
    let finished = Rolldrop::new(["report", "--format", "github", "--baseline"])
        .args([recorded(), recorded()])
        .finish()
        .expect_code(2);
    assert!(
        finished.stderr().contains("a comparison has only --format text or json"),
        "{}",
        finished.stderr()
    );
}
