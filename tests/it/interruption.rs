//! Killed and interrupted runs: nothing is left behind, and all recorded rows are kept.

use std::collections::HashSet;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use nix::sys::signal::Signal;

use crate::harness::{LIMIT, Process, Rolldrop, process_tree, signal, wait_for};
use crate::runs::{result, turn};

/// Starts a run, and waits until its first rows are on disk during the load. Returns all of its processes.
fn run_under_load() -> (Child, tempfile::TempDir, Vec<Process>) {
    let (child, dir) = Rolldrop::new(["run", "--out", "run"]).start();
    let (child, processes) = until_under_load(child, dir.path());
    (child, dir, processes)
}

fn until_under_load(child: Child, dir: &Path) -> (Child, Vec<Process>) {
    let requests = dir.join("run/requests");
    let has_rows = |dir: &Path| {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        entries.map(|e| e.path()).any(|path| path.extension().is_some_and(|e| e == "parquet")).then_some(())
    };
    wait_for("rows on disk", LIMIT, || has_rows(&requests));
    // There are two more processes if no pod is being replaced at the moment.
    let processes = wait_for("run, cluster, load worker, and pods of two containers", LIMIT, || {
        Some(process_tree(child.id())).filter(|processes| processes.len() >= 7)
    });
    (child, processes)
}

fn none_alive(processes: &[Process]) -> Option<()> {
    (!processes.iter().any(Process::is_alive)).then_some(())
}

/// Checks that an interrupted run says so, leaves no process behind, and reports what it has recorded.
fn ends_as_interrupted(mut child: Child, dir: &Path, processes: &[Process]) {
    let status = child.wait().expect("an exit status");
    assert_eq!(status.code(), Some(130));
    assert_eq!(none_alive(processes), Some(()));
    let summary = std::fs::read_to_string(dir.join("run/summary.md")).expect("summary.md");
    assert!(summary.to_lowercase().contains("partial"), "{summary}");
}

#[test]
fn killed_run_leaves_partial_report() {
    let _turn = turn();
    let (mut child, dir, processes) = run_under_load();
    signal(&child, Signal::SIGKILL);
    child.wait().expect("an exit status");
    wait_for("all processes to exit", LIMIT, || none_alive(&processes));

    let run = dir.path().join("run");
    let report = Rolldrop::new(["report".as_ref(), run.as_os_str()]).finish().expect_code(3);
    // On a busy machine, the run is invalid as well.
    assert!(report.stdout().to_lowercase().contains("partial") && !result(&run).complete, "{report}");
    assert!(run.join("report.html").is_file() && run.join("charts/timeline.png").is_file(), "{report}");
}

#[test]
fn interrupted_run_keeps_partial_records() {
    let _turn = turn();
    let (child, dir, processes) = run_under_load();
    signal(&child, Signal::SIGINT);
    ends_as_interrupted(child, dir.path(), &processes);
}

#[test]
fn lost_terminal_ends_run_cleanly() {
    let _turn = turn();
    let (plain, dir) = Rolldrop::new(["run", "--out", "run"]).command();
    // The tests themselves may run under `nohup`.
    let mut command = Command::new("env");
    command.arg("--default-signal=HUP").arg(plain.get_program()).args(plain.get_args());
    command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?)))).current_dir(dir.path());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("env starts the binary");
    // Nobody reads its messages any more, as if `2>&1 | tee` had ended with Ctrl-C.
    drop(child.stderr.take());
    let (child, processes) = until_under_load(child, dir.path());
    // From the kernel and from the shell.
    signal(&child, Signal::SIGHUP);
    signal(&child, Signal::SIGHUP);
    ends_as_interrupted(child, dir.path(), &processes);
}

#[test]
fn killed_cluster_ends_run_with_reason() {
    let _turn = turn();
    for dataplane in ["userspace", "auto"] {
        let (child, dir) = Rolldrop::new(["run", "--out", "run", "--dataplane", dataplane]).start();
        let (mut child, processes) = until_under_load(child, dir.path());
        let cluster = cluster_of(&child, &processes);
        cluster.kill();
        let status = wait_for("the end of the run", LIMIT, || child.try_wait().expect("its state"));
        let said = std::fs::read_to_string(dir.path().join("stderr.log")).expect("stderr");
        assert_eq!(status.code(), Some(2), "{said}");
        assert!(
            said.contains("the embedded cluster died (killed by SIGKILL), which ended the run"),
            "{said}"
        );
        assert!(!said.contains("rolldrop cleanup"), "{said}");
        // The load has finished as well, and the records are complete.
        let info = std::fs::read_to_string(dir.path().join("run/run.json")).expect("run.json");
        let info: serde_json::Value = serde_json::from_str(&info).expect("JSON");
        assert!(info["ended"].is_i64() && info["complete"] == false, "{info}");
        wait_for("all processes to exit", LIMIT, || none_alive(&processes));
        let report = Rolldrop::new(["report".into(), dir.path().join("run")]).finish().expect_code(3);
        assert!(report.stdout().to_lowercase().contains("partial"), "{report}");
    }
}

/// Returns all groups of supervisors that can be killed together.
fn subsets(supervisors: &[&'static str]) -> Vec<Vec<&'static str>> {
    let chosen = |mask: usize| {
        let all = supervisors.iter().enumerate();
        all.filter(|(at, _)| mask & (1 << at) != 0).map(|(_, name)| *name).collect()
    };
    (1..1 << supervisors.len()).map(chosen).collect()
}

/// Kills these processes together so that none sees that another is gone. Checks that nothing is left.
fn killed_together(dataplane: &str, names: &[&str]) {
    let (child, dir) = Rolldrop::new(["run", "--out", "run", "--dataplane", dataplane]).start();
    let (mut child, processes) = until_under_load(child, dir.path());
    let cluster = cluster_of(&child, &processes);
    let is_named = |process: &&Process, name: &str| match name {
        "run" => process.is(child.id()),
        "cluster" => *process == &cluster,
        "init" => process.runs("cluster") && process.is_child_of_process(&cluster),
        _ => process.runs(name),
    };
    let doomed = names.iter().map(|name| {
        let found = processes.iter().find(|process| is_named(process, name));
        found.unwrap_or_else(|| panic!("no {name}: {processes:?}")).clone()
    });
    let doomed: Vec<Process> = doomed.collect();
    doomed.iter().for_each(|process| process.signal(Signal::SIGSTOP));
    // Pods may have been replaced since.
    let all = process_tree(child.id());
    // All containers are in the PID namespace of the first process, and are descendants of the cluster's process.
    let of_init = names.contains(&"init").then_some(&cluster);
    let orphans: HashSet<Process> = doomed.iter().chain(of_init).flat_map(Process::tree).collect();
    let orphans: Vec<Process> = orphans.into_iter().filter(|process| !doomed.contains(process)).collect();
    let killed = Instant::now();
    doomed.iter().for_each(Process::kill);
    let after = format!("{names:?} on {dataplane}");
    wait_for(&format!("the orphans to exit after {after}"), LIMIT, || none_alive(&orphans));
    let gone = killed.elapsed();
    // A surviving run finishes by itself, with its report, after everything else has shut down cleanly.
    wait_for(&format!("the run to exit after {after}"), LIMIT, || child.try_wait().expect("its state"));
    wait_for(&format!("all processes to exit after {after}"), LIMIT, || none_alive(&all));
    println!(
        "{after}: {} orphans gone after {:.2} s, the run after {:.2} s",
        orphans.len(),
        gone.as_secs_f64(),
        killed.elapsed().as_secs_f64(),
    );
}

fn every_subset(dataplane: &str, supervisors: &[&'static str]) {
    let _turn = turn();
    let subsets = subsets(supervisors);
    // Each run takes seconds until its load starts.
    for some in subsets.chunks(3) {
        std::thread::scope(|scope| {
            some.iter().for_each(|names| {
                scope.spawn(move || killed_together(dataplane, names));
            });
        });
    }
}

#[test]
fn killing_supervisors_on_kernel_leaves_no_process() {
    every_subset("kernel", &["run", "cluster", "init", "load-worker"]);
}

#[test]
fn killing_supervisors_on_userspace_leaves_no_process() {
    every_subset("userspace", &["run", "cluster", "load-worker"]);
}

fn cluster_of(child: &Child, processes: &[Process]) -> Process {
    let is_cluster = |process: &&Process| process.is_child_of(child.id()) && process.runs("cluster");
    processes.iter().find(is_cluster).expect("the cluster").clone()
}

#[test]
fn run_removes_pods_of_killed_cluster() {
    let _turn = turn();
    let (mut child, _dir, processes) = run_under_load();
    let is_cluster = |process: &&Process| process.is_child_of(child.id()) && process.runs("cluster");
    let cluster = processes.iter().find(is_cluster).expect("the cluster");
    cluster.kill();
    wait_for("the cluster to exit", LIMIT, || (!cluster.is_alive()).then_some(()));
    signal(&child, Signal::SIGINT);
    child.wait().expect("an exit status");
    assert_eq!(none_alive(&processes), Some(()));
}
