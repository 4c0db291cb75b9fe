//! `rolldrop run ... -- COMMAND`: pods ended by what the user runs.

use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rolldrop_analysis::model::Mode;
use rolldrop_record::{Event, EventKind, Outcome, RunDir};

use crate::harness::{Rolldrop, process_tree, wait_for};
use crate::runs::{every_answer_has_its_row, repeated, result, turn};

/// The real kubectl, from the tests' own environment.
fn kubectl() -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/test-venv/bin/kubectl");
    assert!(path.is_file(), "{}: scripts/test installs it", path.display());
    path
}

#[test]
fn a_rollout_by_kubectl_is_measured_until_it_has_settled() {
    let _turn = turn();
    let words = ["run", "naive-exit", "--out", "run", "--quiet", "--"].map(PathBuf::from);
    let words = words.into_iter().chain([kubectl()]);
    let words = words.chain(["rollout", "restart", "deploy/web"].map(PathBuf::from));
    let finished = repeated(|| Rolldrop::new(words.clone()).finish()).expect_code(0);
    assert!(finished.stderr().contains("deployment.apps/web restarted"), "{finished}");

    let run = finished.dir().join("run");
    let result = result(&run);
    let modes: Vec<Mode> = result.terminations.iter().map(|t| t.mode).collect();
    assert_eq!(modes, [Mode::Rollout; 3], "{finished}");
    assert!(result.requests.dropped > 0, "{finished}");
    let command = result.command.as_ref().expect("the command");
    assert_eq!((command.words.last().map(String::as_str), command.code), (Some("deploy/web"), Some(0)));

    let records = RunDir::open(&run).and_then(|run| run.read()).expect("the run reads");
    let at = |wanted: fn(&EventKind) -> bool| {
        let found = records.events.iter().find(|event: &&Event| wanted(&event.kind));
        found.unwrap_or_else(|| panic!("an event is missing\n{finished}")).at
    };
    let started = at(|kind| matches!(kind, EventKind::CommandStarted { .. }));
    let settled = at(|kind| matches!(kind, EventKind::CommandSettled { mode, .. } if *mode == Mode::Rollout));
    let last = records.requests.iter().map(|row| row.scheduled).max().expect("rows");
    let first = records.requests.iter().map(|row| row.scheduled).min().expect("rows");
    assert!(started.seconds_since(first) >= 4.0, "warm-up and a steady part come first");
    assert!(last.seconds_since(settled) >= 2.0, "the load outlasts the rollout");
}

#[test]
fn a_rolling_restart_of_an_app_that_drains_loses_nothing_through_the_sidecar() {
    let _turn = turn();
    let words = ["run", "drain-in-app", "--out", "run", "--quiet", "--"].map(PathBuf::from);
    let words = words.into_iter().chain([kubectl()]);
    let words: Vec<PathBuf> = words.chain(["rollout", "restart", "deploy/web"].map(PathBuf::from)).collect();
    let finished = repeated(|| Rolldrop::new(&words).finish()).expect_code(0);
    let run = finished.dir().join("run");
    let result = result(&run);
    assert_eq!(result.terminations.len(), 3, "{finished}");
    assert_eq!(result.requests.dropped, 0, "{finished}");
    let records = RunDir::open(&run).and_then(|run| run.read()).expect("the run reads");
    let answered = records.requests.iter().filter(|row| row.outcome == Outcome::Ok).count();
    assert!(answered > 0 && records.served.len() >= answered, "{finished}");
}

#[test]
fn a_command_that_fails_fails_the_gate_and_its_code_is_shown() {
    let _turn = turn();
    let script = "test -s \"$KUBECONFIG\" && echo to stdout; exit 7";
    let relaxed = ["expect.dropped.min=0", "expect.terminations.min=0", "load.warmup=0s"];
    let mut words = vec!["run", "naive-exit", "--out", "run", "--quiet"];
    words.extend(relaxed.iter().flat_map(|set| ["--set", set]));
    words.extend(["--", "sh", "-c", script]);
    let finished = repeated(|| Rolldrop::new(&words).finish()).expect_code(1);
    assert!(finished.stderr().contains("to stdout"), "{finished}");
    assert!(finished.stdout().contains("exit code 7"), "{finished}");
    assert_eq!(result(&finished.dir().join("run")).terminations.len(), 0, "{finished}");
}

#[test]
fn a_command_that_is_not_there_is_an_error_before_anything_is_started() {
    let finished = Rolldrop::new(["run", "--out", "run", "--", "no-such-command"]).finish().expect_code(2);
    assert!(finished.stderr().contains("no-such-command"), "{finished}");
    assert!(!finished.dir().join("run").exists(), "{finished}");
}

#[test]
fn an_interruption_ends_the_command_too_and_keeps_what_was_recorded() {
    let _turn = turn();
    let words = ["run", "--out", "run", "--set", "load.warmup=0s", "--", "sh", "-c", "sleep 1000; true"];
    let (mut child, dir) = Rolldrop::new(words).start();
    let log = dir.path().join("run/events.jsonl");
    let begun = || std::fs::read_to_string(&log).ok()?.contains("command_started").then_some(());
    wait_for("the command", Duration::from_secs(180), begun);
    let processes = process_tree(child.id());
    kill(Pid::from_raw(i32::try_from(child.id()).expect("a pid")), Signal::SIGINT).expect("a signal");
    assert_eq!(child.wait().expect("an end").code(), Some(130));
    let left: Vec<_> = processes.iter().filter(|process| process.is_alive()).collect();
    assert!(left.is_empty(), "{left:?}");
    every_answer_has_its_row(&dir.path().join("run"));
    let summary = std::fs::read_to_string(dir.path().join("run/summary.md")).expect("summary.md");
    assert!(summary.to_lowercase().contains("partial"), "{summary}");
}
