//! One run of each built-in scenario, shared by the tests that look at it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use rolldrop::analysis::model::RunResult;
use rolldrop::record::{Records, RunDir};
use serde_json::Value;

use crate::harness::{Finished, Rolldrop};

/// A finished run.
pub(crate) struct MeasuredRun {
    /// What the command said.
    pub(crate) finished: Finished,
    /// The run directory.
    pub(crate) path: PathBuf,
    /// All that it holds.
    pub(crate) records: Records,
    /// Its result.json.
    pub(crate) result: RunResult,
}

/// Runs that measure take turns: two at once would disturb each other.
static TURN: Mutex<()> = Mutex::new(());

pub(crate) fn naive_exit() -> &'static MeasuredRun {
    static RUN: OnceLock<MeasuredRun> = OnceLock::new();
    RUN.get_or_init(|| measure(&["run", "--out", "run", "--quiet"]))
}

pub(crate) fn prestop_sleep() -> &'static MeasuredRun {
    static RUN: OnceLock<MeasuredRun> = OnceLock::new();
    RUN.get_or_init(|| measure(&["run", "prestop-sleep", "--out", "run", "--quiet"]))
}

pub(crate) fn drain_in_app() -> &'static MeasuredRun {
    static RUN: OnceLock<MeasuredRun> = OnceLock::new();
    RUN.get_or_init(|| measure(&["run", "drain-in-app", "--out", "run", "--quiet"]))
}

/// Every built-in scenario's run.
pub(crate) fn all() -> [&'static MeasuredRun; 3] {
    [naive_exit(), prestop_sleep(), drain_in_app()]
}

/// Keeps measuring runs apart for as long as the answer lives.
pub(crate) fn turn() -> impl Drop {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A starved machine makes a run invalid, which says nothing about the program: it is repeated so often.
const REPEATS: usize = 3;

fn measure(args: &[&str]) -> MeasuredRun {
    let _turn = turn();
    let invalid = |run: &Finished| run.stdout().contains("INVALID");
    let run = || Rolldrop::new(args).finish();
    let finished = (1..REPEATS).map(|_| run()).find(|run| !invalid(run)).unwrap_or_else(run).expect_code(0);
    let path = finished.dir().join("run");
    let records = RunDir::open(&path).and_then(|run| run.read()).expect("the run directory reads");
    let result = fs::read(path.join("result.json")).expect("result.json");
    let result = serde_json::from_slice(&result).expect("result.json reads");
    MeasuredRun { finished, path, records, result }
}

/// A file of JSON lines.
pub(crate) fn json_lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    text.lines()
        .filter(|line| line.starts_with('{'))
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{}: {e}: {line}", path.display())))
        .collect()
}
