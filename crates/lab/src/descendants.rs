//! Kills descendant processes so that none is left behind.
//!
//! A child subreaper inherits its orphaned descendants, so every process that it or its descendants ever started can be
//! found below it in `/proc` and killed.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::{Duration, Instant};

use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

/// Time limit for killing. A process in an uninterruptible wait is not worth waiting for any longer.
const PATIENCE: Duration = Duration::from_secs(2);
const PERIOD: Duration = Duration::from_millis(2);
const MARK: &str = "ROLLDROP_CLUSTER_PID";

/// Guard that kills all descendants of this process when dropped, even in a panic.
#[derive(Debug)]
pub struct KillDescendants(());

impl KillDescendants {
    /// Makes this process adopt the orphans among its descendants.
    ///
    /// # Errors
    ///
    /// Fails if the operating system refuses.
    pub fn on_drop() -> io::Result<Self> {
        adopt_orphans()?;
        Ok(Self(()))
    }
}

impl Drop for KillDescendants {
    fn drop(&mut self) {
        kill_all(|_, _| true);
    }
}

/// Makes this process adopt the orphans among its descendants.
///
/// # Errors
///
/// Fails if the operating system refuses.
pub fn adopt_orphans() -> io::Result<()> {
    set_child_subreaper(true).map_err(io::Error::from)
}

/// Returns an environment variable that every pod process gets, and its value: the PID of the cluster's process. It
/// identifies pod processes even after the cluster's process is killed or they leave its session.
pub fn mark() -> (&'static str, String) {
    (MARK, std::process::id().to_string())
}

/// Kills the descendants of this process that were started by the cluster whose process was `cluster` (the leader of
/// its session), and everything below them. They are recognised by their session or by the [`mark`], so a process that
/// has left the session, cleared its environment and lost its parent is not found.
pub fn kill_cluster(cluster: i32) {
    let marked = format!("{MARK}={cluster}");
    kill_all(|processes, pid| {
        let mut at = pid;
        while let Some(process) = processes.get(&at) {
            if process.session == cluster || has_in_environment(at, &marked) {
                return true;
            }
            at = process.parent;
        }
        false
    });
}

/// Process that cannot be confused with a later one that has the same PID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProcessIdentity {
    pid: i32,
    /// Start time, in clock ticks since boot.
    start_ticks: u64,
}

/// Returns the processes currently below a process, at any depth.
pub fn below(pid: i32) -> BTreeSet<ProcessIdentity> {
    let processes = processes();
    let member = |pid: i32| processes.get(&pid).map(|p| ProcessIdentity { pid, start_ticks: p.start_ticks });
    descendants(&processes, pid).into_iter().filter_map(member).collect()
}

/// Kills every process that was started with this `NAME=value` in its environment or is one of `members`. Blocks until
/// none is left, or for at most `PATIENCE`.
pub fn kill_marked(variable: &str, members: &BTreeSet<ProcessIdentity>) {
    let own = Pid::this().as_raw();
    until_none(|processes| {
        let mut found = false;
        for (&pid, process) in processes {
            let member = ProcessIdentity { pid, start_ticks: process.start_ticks };
            let is_doomed = || members.contains(&member) || has_in_environment(pid, variable);
            if process.dead || pid == own || !is_doomed() {
                continue;
            }
            found = true;
            // It may already be gone, which is fine.
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            // No other process reaps an adopted orphan. A process that this one started itself leads its own group, and
            // another task waits for it.
            if process.parent == own && process.group != pid {
                let _ = waitpid(Pid::from_raw(pid), Some(WaitPidFlag::WNOHANG));
            }
        }
        found
    });
}

/// Repeats a sweep over all processes until it finds none, because a process may start another between two reads of
/// `/proc`.
fn until_none(sweep: impl Fn(&BTreeMap<i32, ProcessStat>) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while sweep(&processes()) {
        if Instant::now() >= deadline {
            tracing::error!("cannot kill some processes");
            return;
        }
        std::thread::sleep(PERIOD);
    }
}

/// Returns a process's start time, in clock ticks since boot.
pub(crate) fn start_ticks(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(parse_stat(&stat)?.start_ticks)
}

/// Returns true if the process was started with this `NAME=value`, and false if it is gone.
fn has_in_environment(pid: i32, variable: &str) -> bool {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment.split(|byte| *byte == 0).any(|entry| entry == variable.as_bytes())
}

#[derive(Clone, Copy, Debug)]
struct ProcessStat {
    parent: i32,
    group: i32,
    session: i32,
    start_ticks: u64,
    /// True if it has exited and is waiting to be reaped.
    dead: bool,
}

/// Kills the descendants for which `is_doomed` returns true, until none is left.
fn kill_all(is_doomed: impl Fn(&BTreeMap<i32, ProcessStat>, i32) -> bool) {
    until_none(|processes| {
        let mut doomed = descendants(processes, Pid::this().as_raw());
        doomed.retain(|pid| is_doomed(processes, *pid));
        for pid in doomed.iter().copied().map(Pid::from_raw) {
            // It may already be gone, which is fine.
            let _ = kill(pid, Signal::SIGKILL);
            // Only a child, direct or adopted, can be reaped; a grandchild becomes one when its parent exits.
            let _ = waitpid(pid, Some(WaitPidFlag::WNOHANG));
        }
        !doomed.is_empty()
    });
}

fn descendants(processes: &BTreeMap<i32, ProcessStat>, ancestor: i32) -> Vec<i32> {
    let mut found = vec![ancestor];
    let mut next = 0;
    while let Some(&parent) = found.get(next) {
        found.extend(processes.iter().filter(|(_, process)| process.parent == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    found.split_off(1)
}

fn processes() -> BTreeMap<i32, ProcessStat> {
    let mut processes = BTreeMap::new();
    let Ok(entries) = std::fs::read_dir("/proc") else { return processes };
    for entry in entries.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        if let Some(process) = parse_stat(&stat) {
            processes.insert(pid, process);
        }
    }
    processes
}

/// Parses `/proc/PID/stat`: pid, (name), state, parent, process group, session, ..., and the start time as field 22.
/// The name may contain anything, so parsing starts after the last parenthesis.
fn parse_stat(stat: &str) -> Option<ProcessStat> {
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse().ok();
    Some(ProcessStat {
        parent: number(1)?,
        group: number(2)?,
        session: number(3)?,
        start_ticks: fields.get(19)?.parse().ok()?,
        dead: matches!(*fields.first()?, "Z" | "X"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_parser_accepts_any_process_name() {
        let stat = "17 (a) b (c)) S 5 6 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4711 0";
        let process = parse_stat(stat).unwrap();
        assert_eq!((process.parent, process.group, process.session), (5, 6, 7));
        assert_eq!((process.start_ticks, process.dead), (4711, false));
        assert!(parse_stat("17 (x").is_none());
    }

    #[test]
    fn descendants_include_every_depth() {
        let process = |parent| ProcessStat { parent, group: 1, session: 1, start_ticks: 0, dead: false };
        let processes = BTreeMap::from([
            (1, process(0)),
            (2, process(1)),
            (3, process(2)),
            (4, process(3)),
            (5, process(1)),
            (9, process(0)),
        ]);
        assert_eq!(descendants(&processes, 2), [3, 4]);
        assert_eq!(descendants(&processes, 9), Vec::<i32>::new());
    }

    #[test]
    fn killed_cluster_leaves_no_process() {
        use std::process::Command;

        let mut other = Command::new("sleep").arg("1000").spawn().unwrap();
        // The cluster: a session with a member that ignores SIGTERM, and a marked process that has started its own
        // session and whose parent exits.
        let script = "trap '' TERM; sleep 1000 & \
                      ROLLDROP_CLUSTER_PID=$$ sh -c 'setsid sleep 1000 & exec sleep 0' & wait";
        adopt_orphans().unwrap();
        let mut child = Command::new("setsid").args(["sh", "-c", script]).spawn().unwrap();
        let cluster = i32::try_from(child.id()).unwrap();
        let marked = format!("{MARK}={cluster}");
        let of_cluster = || {
            let members = processes().into_iter().filter_map(|(pid, process)| {
                let ours = process.session == cluster || has_in_environment(pid, &marked);
                let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
                (ours && !stat.contains(") Z ")).then_some((pid, process))
            });
            members.collect::<Vec<_>>()
        };
        let deadline = Instant::now() + Duration::from_secs(30);
        // Wait until the marked process has left the session and its parent, and the other one exists.
        let own = Pid::this().as_raw();
        let escaped = |(_, process): &(i32, ProcessStat)| process.session != cluster && process.parent == own;
        while !of_cluster().iter().any(escaped) || of_cluster().len() < 3 {
            assert!(Instant::now() < deadline, "not all processes started: {:?}", of_cluster());
            std::thread::sleep(PERIOD);
        }
        kill_cluster(cluster);
        while !of_cluster().is_empty() {
            assert!(Instant::now() < deadline, "processes left: {:?}", of_cluster());
            std::thread::sleep(PERIOD);
        }
        let _reaped_before = child.wait();
        assert!(other.try_wait().unwrap().is_none(), "a process outside the cluster was killed");
        other.kill().unwrap();
        other.wait().unwrap();
    }
}
