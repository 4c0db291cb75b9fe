//! One container's process: started, signalled, and waited for, in its own process group.

use std::fs::File;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, watch};

use crate::cluster::embedded::descendants;
use crate::cluster::embedded::network::Placement;

/// What to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Launch {
    pub(super) program: PathBuf,
    pub(super) args: Vec<String>,
    /// The whole environment but for the cluster's mark: nothing is inherited.
    pub(super) env: Vec<(String, String)>,
    /// `None` is the agent's own directory.
    pub(super) working_dir: Option<PathBuf>,
    /// Where it starts.
    pub(super) placement: Placement,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Exit {
    /// As a container runtime counts: 128 + the signal when one ended it.
    pub(super) code: i32,
}

impl Exit {
    fn of(status: ExitStatus) -> Self {
        let by_signal = status.signal().map(|signal| 128 + signal);
        Self { code: status.code().or(by_signal).unwrap_or(255) }
    }
}

/// A started process. Clones mean the same one.
#[derive(Clone, Debug)]
pub(super) struct Process {
    signals: mpsc::UnboundedSender<Signal>,
    exit: watch::Receiver<Option<Exit>>,
}

/// Owns a started process; see [`Keeper::run`].
pub(super) struct Keeper {
    child: Child,
    group: ProcessGroup,
    signals: mpsc::UnboundedReceiver<Signal>,
    exit: watch::Sender<Option<Exit>>,
}

impl Launch {
    /// Starts the program with its output appended to the log.
    ///
    /// # Errors
    ///
    /// The log cannot be opened, or the program not be started.
    pub(super) fn start(&self, log: &Path) -> io::Result<(Process, Keeper)> {
        let output = File::options().create(true).append(true).open(log)?;
        let errors = output.try_clone()?;
        let mut command = self.command();
        let child = self.placement.spawn(command.stdout(output).stderr(errors))?;
        let group = ProcessGroup::of(&child)?;
        let (signals, signals_of_keeper) = mpsc::unbounded_channel();
        let (exit_of_keeper, exit) = watch::channel(None);
        let keeper = Keeper { child, group, signals: signals_of_keeper, exit: exit_of_keeper };
        Ok((Process { signals, exit }, keeper))
    }

    /// Runs the program to its end, its output discarded. Dropped before, it is killed.
    ///
    /// # Errors
    ///
    /// The program cannot be started.
    pub(super) async fn run(&self) -> io::Result<Exit> {
        let mut child = self.placement.spawn(self.command().stdout(Stdio::null()).stderr(Stdio::null()))?;
        let _group = ProcessGroup::of(&child)?;
        child.wait().await.map(Exit::of)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.args).env_clear().envs(self.env.iter().map(|(name, value)| (name, value)));
        let (mark, cluster) = descendants::mark();
        command.env(mark, cluster);
        command.stdin(Stdio::null()).process_group(0).kill_on_drop(true);
        if let Some(dir) = &self.working_dir {
            command.current_dir(dir);
        }
        command
    }
}

impl Process {
    /// Sends a signal to the process group, if the process still lives.
    pub(super) fn signal(&self, signal: Signal) {
        let _ = self.signals.send(signal);
    }

    /// Waits for the end.
    pub(super) async fn exited(&self) -> Exit {
        let mut exit = self.exit.clone();
        // The keeper was aborted with the cluster: nobody is left to hear of it.
        match exit.wait_for(Option::is_some).await {
            Ok(exit) => (*exit).unwrap_or(Exit { code: 137 }),
            Err(_) => Exit { code: 137 },
        }
    }
}

impl Keeper {
    /// Delivers signals until the process has ended, and takes the rest of its group down
    /// with it, as the end of a container's first process does. Dropped before, it kills
    /// the group.
    pub(super) async fn run(mut self) {
        let status = loop {
            tokio::select! {
                status = self.child.wait() => break status,
                Some(signal) = self.signals.recv() => self.group.signal(signal),
            }
        };
        drop(self.group);
        let exit = status.map_or(Exit { code: 255 }, Exit::of);
        self.exit.send_replace(Some(exit));
    }
}

/// A process group that is killed when this is dropped.
struct ProcessGroup(Pid);

impl ProcessGroup {
    fn of(child: &Child) -> io::Result<Self> {
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
        pid.map(|pid| Self(Pid::from_raw(pid))).ok_or_else(|| io::Error::other("the process has no id"))
    }

    fn signal(&self, signal: Signal) {
        // ESRCH: the group has ended by itself.
        let _ = killpg(self.0, signal);
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        self.signal(Signal::SIGKILL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Launch {
        Launch {
            program: "/bin/sh".into(),
            args: vec!["-c".into(), script.into()],
            env: vec![("PATH".into(), std::env::var("PATH").unwrap())],
            working_dir: None,
            placement: Placement::default(),
        }
    }

    async fn wait_for_text(log: &Path, text: &str) {
        while !std::fs::read_to_string(log).unwrap().contains(text) {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }

    #[tokio::test]
    async fn exit_codes_are_those_of_a_container_runtime() {
        assert_eq!(shell("exit 7").run().await.unwrap(), Exit { code: 7 });
        assert_eq!(shell("kill -TERM $$").run().await.unwrap(), Exit { code: 143 });
        assert_eq!(shell("kill -KILL $$").run().await.unwrap(), Exit { code: 137 });
    }

    #[tokio::test]
    async fn a_signal_reaches_the_process_and_its_end_takes_the_group_down() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        // The child of the shell would outlive it by far.
        let (process, keeper) =
            shell("trap 'exit 3' TERM; sleep 1000 & echo child $!; wait").start(&log).unwrap();
        let keeper = tokio::spawn(keeper.run());
        wait_for_text(&log, "child").await;
        process.signal(Signal::SIGTERM);
        // The signal goes to the group: the child dies of it, or of the kill after.
        assert_eq!(process.exited().await, Exit { code: 3 });
        keeper.await.unwrap();
        let text = std::fs::read_to_string(&log).unwrap();
        let child: i32 = text.trim().rsplit(' ').next().unwrap().parse().unwrap();
        while is_alive(child) {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }

    /// Whether a process runs; one that has ended but was not reaped does not.
    fn is_alive(pid: i32) -> bool {
        std::fs::read_to_string(format!("/proc/{pid}/stat"))
            .is_ok_and(|stat| !stat.rsplit(')').next().unwrap().trim_start().starts_with('Z'))
    }

    #[tokio::test]
    async fn a_keeper_that_is_dropped_kills() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let (process, keeper) =
            shell("trap '' TERM; echo pid $$; while :; do sleep 1; done").start(&log).unwrap();
        wait_for_text(&log, "pid").await;
        let text = std::fs::read_to_string(&log).unwrap();
        let pid: i32 = text.trim().rsplit(' ').next().unwrap().parse().unwrap();
        drop(keeper);
        while is_alive(pid) {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        assert_eq!(process.exited().await, Exit { code: 137 });
    }
}
