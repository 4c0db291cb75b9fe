//! One run of each built-in scenario on each dataplane, shared by the tests that look at it.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};

use rolldrop_explain::model::{RunResult, Verdict};
use rolldrop_record::event::Action;
use rolldrop_record::run_info::Tool;
use rolldrop_record::{EventKind, Records, RunDir, RunInfo, Stamp};
use serde_json::Value;

use crate::harness::{Finished, Rolldrop, again_while_invalid};
use crate::machine::{MEASUREMENTS, measurement};

/// The way in which the embedded cluster carries Services.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dataplane {
    /// The kernel's own: namespaces and nftables.
    Kernel,
    /// Loopback addresses and TCP proxies.
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

/// Returns the run.json of a whole run that was never measured: fresh connections to one Service.
pub(crate) fn synthetic(rate: f64, duration_s: f64, (started, ended): (Stamp, Stamp)) -> RunInfo {
    let made_up = rolldrop_simulation::info(rate, duration_s, (started, ended));
    RunInfo { tool: Tool::this(), name: "synthetic".into(), ..made_up }
}

/// A finished run.
pub(crate) struct MeasuredRun {
    /// Dataplane that carried its Services.
    pub(crate) dataplane: Dataplane,
    /// Output of the command.
    pub(crate) finished: Finished,
    /// The run directory.
    pub(crate) path: PathBuf,
    /// All records of the run directory.
    pub(crate) records: Records,
    /// Its result.json.
    pub(crate) result: RunResult,
}

impl MeasuredRun {
    /// Fails unless the run is valid, which is a figure: a machine that others use makes it invalid.
    #[track_caller]
    pub(crate) fn expect_valid(&self) {
        self.finished.figure(!self.finished.is_invalid());
        assert_eq!(self.result.verdict, Verdict::Valid, "{}", self.finished);
    }
}

/// Returns the calls that were meant to end pods, or to change them.
pub(crate) fn actions(records: &Records) -> Vec<&Action> {
    let of = records.events.iter().filter_map(|event| match &event.kind {
        EventKind::Action(action) => Some(action),
        _ => None,
    });
    of.collect()
}

/// Runs that measure take turns: five at once, which wait most of the time, and no more.
static TURNS: (Mutex<usize>, Condvar) = (Mutex::new(5), Condvar::new());

/// A run that tests share, and the runs that repeat it for a test of a wrong figure.
type Shared<T> = [OnceLock<T>; MEASUREMENTS];

const fn shared<T>() -> Shared<T> {
    [const { OnceLock::new() }; MEASUREMENTS]
}

/// A scenario's run on each dataplane.
type Both = [MeasuredRun; 2];

fn on_both(scenario: &'static str) -> Both {
    let run = |dataplane| std::thread::spawn(move || measure(scenario, dataplane, &[]));
    [Dataplane::Kernel, Dataplane::Userspace].map(run).map(|run| run.join().expect("a measured run"))
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

/// Returns every built-in scenario's runs.
pub(crate) fn all() -> impl Iterator<Item = &'static MeasuredRun> {
    with_sidecar().chain([no_sidecar()])
}

/// Returns the runs in which a proxy in the pod recorded, too.
pub(crate) fn with_sidecar() -> impl Iterator<Item = &'static MeasuredRun> {
    let on_both = [naive_exit(), prestop_sleep(), drain_in_app()].into_iter().flatten();
    on_both.chain([killed_in_flight(), idle_close()])
}

/// Turn to use the machine; over when dropped.
pub(crate) struct Turn(());

impl Drop for Turn {
    fn drop(&mut self) {
        let (free, freed) = &TURNS;
        *free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        freed.notify_one();
    }
}

/// Waits for a turn, which lasts as long as the answer lives.
pub(crate) fn turn() -> Turn {
    let (free, freed) = &TURNS;
    let free = free.lock().unwrap_or_else(PoisonError::into_inner);
    *freed.wait_while(free, |free| *free == 0).unwrap_or_else(PoisonError::into_inner) -= 1;
    Turn(())
}

/// Held by tests that use much of the machine for long, and by tests that measure seconds meanwhile.
pub(crate) static APART: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Returns the result.json of a run directory.
pub(crate) fn result(run: &Path) -> RunResult {
    let json = fs::read(run.join("result.json")).expect("result.json");
    serde_json::from_slice(&json).expect("result.json reads")
}

/// Runs a scenario, by its name or as the text of a file, with further arguments.
pub(crate) fn measure(scenario: &str, dataplane: Dataplane, more: &[&str]) -> MeasuredRun {
    let _turn = turn();
    let run = Rolldrop::run(scenario).args(["--quiet"]).on(dataplane).args(more);
    // Where pods come too slowly, an action finds no time before the load ends.
    let is_cut_short = |run: &Finished| run.is_invalid() || run.stdout().contains("was not done");
    let finished = again_while_invalid(|| run.finish(), is_cut_short);
    // A busy machine makes a run invalid, and its accounting, order and classes no less true.
    assert!(finished.code() == Some(0) || finished.is_invalid(), "{finished}");
    let path = finished.dir().join("run");
    let records = RunDir::open(&path).and_then(|run| run.read()).expect("the run directory reads");
    let result = result(&path);
    MeasuredRun { dataplane, finished, path, records, result }
}

/// Returns the times at which the Service proxy's table without a pod took effect, in Unix seconds: just before and
/// just after the swap, for each pod that the Service `web` was once routed to and no longer is.
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

/// Returns a stamp of a log, in Unix seconds.
pub(crate) fn seconds(stamp: &Value) -> f64 {
    stamp.as_i64().expect("nanoseconds") as f64 / 1e9
}

/// Checks that each request that a proxy answered has a row of that proxy, and that there are some.
#[track_caller]
pub(crate) fn every_answer_has_its_row(run: &Path) {
    let records = RunDir::open(run).and_then(|run| run.read()).expect("the run reads");
    let answered = records.requests.iter().filter(|row| row.pod.is_some()).count();
    assert!(answered > 0, "none of {} requests was answered by a proxy", records.requests.len());
    assert!(records.served.len() >= answered, "{} rows, {answered} answers", records.served.len());
}

/// Checks that no file of a directory contains a secret.
pub(crate) fn no_file_holds(dir: &Path, secret: &str) {
    for entry in fs::read_dir(dir).expect("a directory").flatten() {
        let path = entry.path();
        if path.is_dir() {
            no_file_holds(&path, secret);
        } else {
            let bytes = fs::read(&path).expect("a file");
            let holds = bytes.windows(secret.len()).any(|window| window == secret.as_bytes());
            assert!(!holds, "{} holds the token", path.display());
        }
    }
}

/// Returns the values of a file of JSON lines.
pub(crate) fn json_lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    // Of a log that is being written the last line may not be whole yet.
    text.split_inclusive('\n')
        .filter(|line| line.starts_with('{') && line.ends_with('\n'))
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{}: {e}: {line}", path.display())))
        .collect()
}
