//! One run of each built-in scenario on each dataplane, shared by the tests that examine it.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};

use rolldrop_explain::model::{CheckText, CheckVerdict, RunResult, Verdict};
use rolldrop_record::event::Action;
use rolldrop_record::run_info::Tool;
use rolldrop_record::{Cause, EventKind, Records, RunDir, RunInfo, Stamp};
use serde_json::Value;

use crate::harness::{Finished, Rolldrop, again_while_invalid};
use crate::machine::{MEASUREMENTS, measurement};

/// Implementation of Services in the embedded cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dataplane {
    /// Kernel: network namespaces and nftables.
    Kernel,
    /// Userspace: loopback addresses and TCP proxies.
    Userspace,
}

impl From<Dataplane> for &'static str {
    fn from(dataplane: Dataplane) -> Self {
        match dataplane {
            Dataplane::Kernel => "kernel",
            Dataplane::Userspace => "userspace",
        }
    }
}

/// Returns the run.json of a complete simulated run with fresh connections to one Service.
pub(crate) fn synthetic(rate: f64, duration_s: f64, (started, ended): (Stamp, Stamp)) -> RunInfo {
    let made_up = rolldrop_simulation::info(rate, duration_s, (started, ended));
    RunInfo { tool: Tool::this(), name: "synthetic".into(), ..made_up }
}

/// A finished run.
pub(crate) struct MeasuredRun {
    /// Dataplane of the embedded cluster.
    pub(crate) dataplane: Dataplane,
    /// Output of the command.
    pub(crate) finished: Finished,
    /// The run directory.
    pub(crate) path: PathBuf,
    /// All records of the run directory.
    pub(crate) records: Records,
    /// Contents of result.json.
    pub(crate) result: RunResult,
}

impl MeasuredRun {
    /// Fails unless the run is valid and passed its gate. Both are figures, because a busy machine makes a run invalid
    /// and its pods slow to terminate.
    #[track_caller]
    pub(crate) fn expect_valid(&self) {
        self.finished.figure(!self.finished.is_invalid() && !is_slow(&self.finished));
        assert_eq!(self.result.verdict, Verdict::Valid, "{}", self.finished);
    }
}

/// Returns the calls intended to terminate or change pods.
pub(crate) fn actions(records: &Records) -> Vec<&Action> {
    let of = records.events.iter().filter_map(|event| match &event.kind {
        EventKind::Action(action) => Some(action),
        _ => None,
    });
    of.collect()
}

/// Measured runs take turns. Up to five run at a time, because they mostly wait.
static TURNS: (Mutex<usize>, Condvar) = (Mutex::new(5), Condvar::new());

/// A run shared by tests, and its repetitions for tests whose figures were wrong.
type Shared<T> = [OnceLock<T>; MEASUREMENTS];

const fn shared<T>() -> Shared<T> {
    [const { OnceLock::new() }; MEASUREMENTS]
}

/// A scenario's run on each dataplane.
type Both = [MeasuredRun; 2];

fn on_both(scenario: &'static str) -> Both {
    let run = |dataplane| std::thread::spawn(move || measure(scenario, dataplane, &[]));
    [Dataplane::Kernel, Dataplane::Userspace]
        .map(run)
        .map(|run| run.join().unwrap_or_else(|panic| resume_unwind(panic)))
}

pub(crate) fn naive_exit() -> &'static Both {
    static RUNS: Shared<Both> = shared();
    RUNS[measurement()].get_or_init(|| on_both("naive-exit"))
}

pub(crate) fn prestop_sleep() -> &'static Both {
    static RUNS: Shared<Both> = shared();
    RUNS[measurement()].get_or_init(|| on_both("prestop-sleep"))
}

pub(crate) fn drain_in_app() -> &'static Both {
    static RUNS: Shared<Both> = shared();
    RUNS[measurement()].get_or_init(|| on_both("drain-in-app"))
}

/// Returns the run on the kernel dataplane, where it differs.
pub(crate) fn no_sidecar() -> &'static MeasuredRun {
    static RUN: Shared<MeasuredRun> = shared();
    RUN[measurement()].get_or_init(|| measure("no-sidecar", Dataplane::Kernel, &[]))
}

pub(crate) fn killed_in_flight() -> &'static MeasuredRun {
    static RUN: Shared<MeasuredRun> = shared();
    RUN[measurement()].get_or_init(|| measure("killed-in-flight", Dataplane::Kernel, &[]))
}

pub(crate) fn idle_close() -> &'static MeasuredRun {
    static RUN: Shared<MeasuredRun> = shared();
    RUN[measurement()].get_or_init(|| measure("idle-close", Dataplane::Kernel, &[]))
}

/// Returns the shared runs of all scenarios.
pub(crate) fn all() -> impl Iterator<Item = &'static MeasuredRun> {
    with_sidecar().chain([no_sidecar()])
}

/// Returns the runs in which a sidecar recorded as well.
pub(crate) fn with_sidecar() -> impl Iterator<Item = &'static MeasuredRun> {
    let on_both = [naive_exit(), prestop_sleep(), drain_in_app()].into_iter().flatten();
    on_both.chain([killed_in_flight(), idle_close()])
}

/// A turn to use the machine, which is over when dropped.
pub(crate) struct Turn(());

impl Drop for Turn {
    fn drop(&mut self) {
        let (free, freed) = &TURNS;
        *free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        freed.notify_one();
    }
}

/// Waits for a turn, which lasts until the returned value is dropped.
pub(crate) fn turn() -> Turn {
    let (free, freed) = &TURNS;
    let free = free.lock().unwrap_or_else(PoisonError::into_inner);
    *freed.wait_while(free, |free| *free == 0).unwrap_or_else(PoisonError::into_inner) -= 1;
    Turn(())
}

/// Lock held by long tests that load the machine heavily, and by tests that measure seconds.
pub(crate) static APART: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Returns the result.json in a run directory.
pub(crate) fn result(run: &Path) -> RunResult {
    let json = fs::read(run.join("result.json")).expect("result.json");
    serde_json::from_slice(&json).expect("result.json reads")
}

/// Returns true if the only limits that the run exceeds are those on stage durations.
fn is_slow(run: &Finished) -> bool {
    let is_no_loss =
        |check: &CheckText| check.verdict != CheckVerdict::Fail || check.name.starts_with("stages.");
    run.code() == Some(1) && result(&run.dir().join("run")).checks.iter().all(is_no_loss)
}

/// Returns true if the run reports that the machine did not keep up with its load.
fn is_overloaded(run: &Finished) -> bool {
    run.code() == Some(1) && result(&run.dir().join("run")).requests.by_cause.contains_key(&Cause::Overload)
}

/// Runs a scenario, given by name or as the contents of a file, with additional arguments.
pub(crate) fn measure(scenario: &str, dataplane: Dataplane, more: &[&str]) -> MeasuredRun {
    let _turn = turn();
    let run = Rolldrop::run(scenario).args(["--quiet"]).on(dataplane).args(more);
    // If pods start too slowly, there is no time for an action before the load ends.
    let is_cut_short = |run: &Finished| run.is_invalid() || run.stdout().contains("was not done");
    let is_starved = |run: &Finished| is_cut_short(run) || is_slow(run) || is_overloaded(run);
    let finished = again_while_invalid(|| run.finish(), is_starved);
    // A busy machine makes a run invalid or slow, but its accounting, order and classes are still right. A run that is
    // cut short lacks terminations, and lost requests of one that is overloaded are not the pods'.
    let has_all = finished.is_invalid() || !(is_cut_short(&finished) || is_overloaded(&finished));
    finished.figure(has_all);
    assert!(finished.code() == Some(0) || finished.is_invalid() || is_slow(&finished), "{finished}");
    let path = finished.dir().join("run");
    let records = RunDir::open(&path).and_then(|run| run.read()).expect("the run directory reads");
    let result = result(&path);
    MeasuredRun { dataplane, finished, path, records, result }
}

/// Returns when the Service proxy's table without a pod took effect, in Unix seconds: just before and just after the
/// swap. The result contains each pod that the Service `web` once routed to and no longer does.
pub(crate) fn stopped_routing(run: &MeasuredRun) -> BTreeMap<String, (f64, f64)> {
    let mut routed = HashSet::new();
    let mut stopped = BTreeMap::new();
    for line in json_lines(&run.path.join("cluster/service-proxy.jsonl")) {
        if line["kind"] != "sync" || line["service"] != "default/web" {
            continue;
        }
        let pods = line["endpoints"].as_array().into_iter().flatten();
        let now: HashSet<String> = pods.map(|e| e["pod"].as_str().unwrap_or_default().to_owned()).collect();
        for pod in routed.difference(&now) {
            stopped.insert(String::clone(pod), (seconds(&line["swap_begin_ns"]), seconds(&line["t_ns"])));
        }
        routed = now;
    }
    stopped
}

/// Converts a log's timestamp to Unix seconds.
pub(crate) fn seconds(stamp: &Value) -> f64 {
    stamp.as_i64().expect("nanoseconds") as f64 / 1e9
}

/// Checks that there are requests answered through a proxy, and that each has a row from that proxy.
#[track_caller]
pub(crate) fn every_answer_has_its_row(run: &Path) {
    let records = RunDir::open(run).and_then(|run| run.read()).expect("the run reads");
    let answered = records.requests.iter().filter(|row| row.pod.is_some()).count();
    assert!(answered > 0, "none of {} requests was answered by a proxy", records.requests.len());
    assert!(records.served.len() >= answered, "{} rows, {answered} answers", records.served.len());
}

/// Checks that no file in a directory contains a secret.
pub(crate) fn no_file_holds(dir: &Path, secret: &str) {
    for entry in fs::read_dir(dir).expect("a directory").flatten() {
        let path = entry.path();
        if path.is_dir() {
            no_file_holds(&path, secret);
        } else {
            let bytes = fs::read(&path).expect("a file");
            let holds = bytes.windows(secret.len()).any(|window| window == secret.as_bytes());
            assert!(!holds, "{} contains the token", path.display());
        }
    }
}

/// Returns the values in a JSON Lines file.
pub(crate) fn json_lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    // The last line of a log that is still being written may be incomplete.
    text.split_inclusive('\n')
        .filter(|line| line.starts_with('{') && line.ends_with('\n'))
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{}: {e}: {line}", path.display())))
        .collect()
}
