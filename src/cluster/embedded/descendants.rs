//! The certainty that no process is left behind.
//!
//! A process that is a child subreaper inherits its orphaned descendants, so all that it has
//! ever started, and all that those have started, can be found below it in `/proc` and killed.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

/// How long killing may take: a process in an uninterruptible wait is not worth more.
const PATIENCE: Duration = Duration::from_secs(2);
const PERIOD: Duration = Duration::from_millis(2);

/// Kills all descendants of this process when dropped, also in a panic.
#[derive(Debug)]
pub struct KillDescendants(());

impl KillDescendants {
    /// Makes this process the one that inherits orphans among its descendants.
    ///
    /// # Errors
    ///
    /// The operating system's, if it does not allow that.
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

/// Makes this process inherit the orphans among its descendants.
///
/// # Errors
///
/// The operating system's, if it does not allow that.
pub fn adopt_orphans() -> io::Result<()> {
    set_child_subreaper(true).map_err(io::Error::from)
}

/// Kills the descendants of this process that belong to a session, and everything below them.
pub fn kill_session(session: i32) {
    kill_all(|processes, pid| {
        let mut at = pid;
        while let Some(process) = processes.get(&at) {
            if process.session == session {
                return true;
            }
            at = process.parent;
        }
        false
    });
}

#[derive(Clone, Copy, Debug)]
struct Process {
    parent: i32,
    session: i32,
}

/// Kills the descendants that `doomed` names, again and again until none is left: between two
/// looks at `/proc` a process may start another.
fn kill_all(doomed: impl Fn(&BTreeMap<i32, Process>, i32) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let processes = processes();
        let mut found = false;
        for pid in descendants(&processes, Pid::this().as_raw()) {
            if !doomed(&processes, pid) {
                continue;
            }
            found = true;
            let pid = Pid::from_raw(pid);
            // It may be gone by now, which is as good.
            let _ = kill(pid, Signal::SIGKILL);
            // Ours if it is a child, direct or adopted; a grandchild becomes one.
            let _ = waitpid(pid, Some(WaitPidFlag::WNOHANG));
        }
        if !found {
            return;
        }
        if Instant::now() >= deadline {
            tracing::error!("some processes could not be killed");
            return;
        }
        std::thread::sleep(PERIOD);
    }
}

fn descendants(processes: &BTreeMap<i32, Process>, ancestor: i32) -> Vec<i32> {
    let mut found = vec![ancestor];
    let mut next = 0;
    while let Some(&parent) = found.get(next) {
        found.extend(processes.iter().filter(|(_, process)| process.parent == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    found.split_off(1)
}

fn processes() -> BTreeMap<i32, Process> {
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

/// Reads `/proc/PID/stat`: pid, (name), state, parent, process group, session, ... The name may
/// hold anything, so what matters begins after the last parenthesis.
fn parse_stat(stat: &str) -> Option<Process> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace().skip(1);
    let parent = fields.next()?.parse().ok()?;
    let session = fields.nth(1)?.parse().ok()?;
    Some(Process { parent, session })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_lines_survive_any_name() {
        let process = parse_stat("17 (a) b (c)) S 5 6 7 0 -1").unwrap();
        assert_eq!((process.parent, process.session), (5, 7));
        assert!(parse_stat("17 (x").is_none());
    }

    #[test]
    fn descendants_are_found_at_any_depth() {
        let process = |parent| Process { parent, session: 1 };
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
    fn a_session_is_killed_with_all_that_runs_in_it() {
        use std::process::Command;

        let members = |session: i32| {
            let members = processes().into_iter().filter(|(_, process)| process.session == session);
            members.map(|(pid, _)| pid).collect::<Vec<_>>()
        };
        let mut other = Command::new("sleep").arg("1000").spawn().unwrap();
        let mut child =
            Command::new("setsid").args(["sh", "-c", "trap '' TERM; sleep 1000 & wait"]).spawn().unwrap();
        let session = i32::try_from(child.id()).unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        while members(session).len() < 2 {
            assert!(Instant::now() < deadline, "the session never had two members");
            std::thread::sleep(PERIOD);
        }
        kill_session(session);
        let running = |pid: &i32| {
            std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
        };
        while members(session).iter().any(running) {
            assert!(Instant::now() < deadline, "still there: {:?}", members(session));
            std::thread::sleep(PERIOD);
        }
        let _reaped_before = child.wait();
        assert!(other.try_wait().unwrap().is_none(), "not in the session");
        other.kill().unwrap();
        other.wait().unwrap();
    }
}
