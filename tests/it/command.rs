//! `rolldrop run ... -- COMMAND`: pods terminated by the user's command.

use nix::sys::signal::Signal;
use rolldrop_explain::model::Mode;
use rolldrop_record::{Event, EventKind, Outcome, RunDir};

use crate::harness::{Finished, LIMIT, Rolldrop, process_tree, signal, wait_for};
use crate::kubectl::KUBECTL;
use crate::machine::measured;
use crate::runs::{every_answer_has_its_row, result, turn};

/// Runs a scenario in which the real kubectl performs a rolling restart.
fn with_restart(scenario: &str) -> Finished {
    let restart = ["--quiet", "--", KUBECTL, "rollout", "restart", "deploy/web"];
    Rolldrop::run(scenario).args(restart).measured().expect_code(0)
}

#[test]
fn run_measures_rollout_until_settled() {
    measured(|| {
        let _turn = turn();
        let finished = with_restart("naive-exit");
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
        let settled =
            at(|kind| matches!(kind, EventKind::CommandSettled { mode, .. } if *mode == Mode::Rollout));
        let last = records.requests.iter().map(|row| row.scheduled).max().expect("rows");
        let first = records.requests.iter().map(|row| row.scheduled).min().expect("rows");
        assert!(started.seconds_since(first) >= 4.0, "warm-up and a steady part come first");
        assert!(last.seconds_since(settled) >= 2.0, "the load outlasts the rollout");
    });
}

#[test]
fn draining_app_restart_drops_nothing() {
    measured(|| {
        let _turn = turn();
        let finished = with_restart("drain-in-app");
        let run = finished.dir().join("run");
        let result = result(&run);
        assert_eq!(result.terminations.len(), 3, "{finished}");
        assert_eq!(result.requests.dropped, 0, "{finished}");
        let records = RunDir::open(&run).and_then(|run| run.read()).expect("the run reads");
        let answered = records.requests.iter().filter(|row| row.outcome == Outcome::Ok).count();
        assert!(answered > 0 && records.served.len() >= answered, "{finished}");
    });
}

#[test]
fn failed_command_fails_gate_with_code() {
    measured(|| {
        let _turn = turn();
        let script = "test -s \"$KUBECONFIG\" && echo to stdout; exit 7";
        let relaxed = ["expect.dropped.min=0", "expect.terminations.min=0", "load.warmup=0s"];
        let run = Rolldrop::run("naive-exit").set(&relaxed).args(["--quiet", "--", "sh", "-c", script]);
        let finished = run.measured().expect_code(1);
        assert!(finished.stderr().contains("to stdout"), "{finished}");
        assert!(finished.stdout().contains("exit code 7"), "{finished}");
        assert_eq!(result(&finished.dir().join("run")).terminations.len(), 0, "{finished}");
    });
}

#[test]
fn missing_command_stops_run_early() {
    let finished = Rolldrop::new(["run", "--out", "run", "--", "no-such-command"]).finish().expect_code(2);
    assert!(finished.stderr().contains("no-such-command"), "{finished}");
    assert!(!finished.dir().join("run").exists(), "{finished}");
}

#[test]
fn interrupt_stops_command_and_keeps_records() {
    let _turn = turn();
    let words = ["run", "--out", "run", "--set", "load.warmup=0s", "--", "sh", "-c", "sleep 1000; true"];
    let (mut child, dir) = Rolldrop::new(words).start();
    let log = dir.path().join("run/events.jsonl");
    let begun = || std::fs::read_to_string(&log).ok()?.contains("command_started").then_some(());
    wait_for("the command", LIMIT, begun);
    let processes = process_tree(child.id());
    signal(&child, Signal::SIGINT);
    assert_eq!(child.wait().expect("an exit status").code(), Some(130));
    let left: Vec<_> = processes.iter().filter(|process| process.is_alive()).collect();
    assert!(left.is_empty(), "{left:?}");
    every_answer_has_its_row(&dir.path().join("run"));
    let summary = std::fs::read_to_string(dir.path().join("run/summary.md")).expect("summary.md");
    assert!(summary.to_lowercase().contains("partial"), "{summary}");
}

#[test]
fn original_error_precedes_close_failure() {
    let _turn = turn();
    let words = ["run", "--out", "run", "--set", "load.warmup=0s", "--", "sh", "-c", "sleep 1000; true"];
    let (mut child, dir) = Rolldrop::new(words).start();
    let run = dir.path().join("run");
    let begun =
        || std::fs::read_to_string(run.join("events.jsonl")).ok()?.contains("command_started").then_some(());
    wait_for("the command", LIMIT, begun);
    // The proxies' rows can no longer be written, which aborts the load.
    let moved = || std::fs::rename(run.join("served"), dir.path().join("moved")).ok();
    wait_for("the table of the proxies", LIMIT, moved);
    std::fs::write(run.join("served"), "").expect("a file in its place");
    let worker = process_tree(child.id()).into_iter().find(|process| process.runs("load-worker"));
    worker.expect("a load worker").kill();
    let ended = child.wait().expect("an exit status");
    let said = std::fs::read_to_string(dir.path().join("stderr.log")).expect("stderr.log");
    assert_eq!(ended.code(), Some(2), "{said}");
    let last = said.lines().last().expect("a message");
    assert!(last.contains("load") && !last.contains("served"), "{said}");
    assert!(said.contains("also failed to close the run"), "{said}");
}
