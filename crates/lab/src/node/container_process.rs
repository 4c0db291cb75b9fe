//! Starts, signals and waits for one container's process and everything that it starts.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::prctl::{set_child_subreaper, set_pdeathsig};
use nix::sys::signal::{SigHandler, Signal, kill, killpg, signal};
use nix::unistd::Pid;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;
use tokio::sync::{mpsc, watch};

use super::volumes::Mount;
use crate::descendants::{self, ProcessIdentity};
use crate::logs::{ContainerLog, OutputRecorder, read_available};
use crate::network::{FirstProcess, Placement, StartedProcess, pid_of};

/// Environment variable of every process in a container. Its value identifies the container.
const MARK: &str = "ROLLDROP_CONTAINER_ID";
/// Maximum number of bytes kept from a command's output, the same as the kubelet's limit for probes.
const MAX_OUTPUT_BYTES: usize = 10 * 1024;

/// Program to run, with its environment.
#[derive(Clone, Debug)]
pub(super) struct Launch {
    pub(super) program: PathBuf,
    pub(super) args: Vec<String>,
    /// Entire environment except for the marks; nothing is inherited.
    pub(super) env: Vec<(String, String)>,
    /// `None` for the agent's own directory.
    pub(super) working_dir: Option<PathBuf>,
    /// Container id, new for each run.
    pub(super) container_id: String,
    /// Place where the program starts.
    pub(super) placement: Placement,
    /// Mounts in that place.
    pub(super) mounts: Vec<Mount>,
    /// Path of this program, if the image is the one that contains it.
    pub(super) own_program: Option<PathBuf>,
}

/// Exit of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProcessExit {
    /// Exit code as a container runtime counts it: 128 + the signal if a signal killed the process.
    pub(super) code: i32,
    /// Signal that killed the process.
    signal: Option<i32>,
}

impl ProcessExit {
    /// Returns an exit with this code.
    pub(super) const fn with(code: i32) -> Self {
        Self { code, signal: None }
    }

    fn of(status: ExitStatus) -> Self {
        let signal = status.signal();
        Self { code: status.code().or(signal.map(|signal| 128 + signal)).unwrap_or(255), signal }
    }

    /// Returns the signal whose default action killed the process. A process that stands in for process 1 gets only
    /// signals for which it has a handler, so its handler must have restored the default action and raised the signal
    /// again.
    pub(super) fn by_default_action(&self) -> Option<Signal> {
        const ASKING: [Signal; 6] = [
            Signal::SIGTERM,
            Signal::SIGINT,
            Signal::SIGQUIT,
            Signal::SIGHUP,
            Signal::SIGUSR1,
            Signal::SIGUSR2,
        ];
        ASKING.into_iter().find(|signal| self.signal == Some(*signal as i32))
    }
}

/// A started process. Clones refer to the same process.
#[derive(Clone, Debug)]
pub(super) struct ContainerProcess {
    signals: mpsc::UnboundedSender<Signal>,
    exit: watch::Receiver<Option<ProcessExit>>,
    stop_signalled: Arc<AtomicBool>,
}

/// Owner of a started process; see [`Keeper::run`].
pub(super) struct Keeper {
    first: FirstProcess,
    group: ProcessGroup,
    stands_for_process_1: bool,
    recorder: OutputRecorder,
    mark: String,
    signals: mpsc::UnboundedReceiver<Signal>,
    exit: watch::Sender<Option<ProcessExit>>,
}

impl Launch {
    /// Starts the program and sends its output to the log.
    ///
    /// # Errors
    ///
    /// Fails if the program cannot be started.
    pub(super) fn start(&self, log: ContainerLog) -> io::Result<(ContainerProcess, Keeper)> {
        let mut command = self.command();
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        begin_as_in_a_container(&mut command, self.placement.is_the_machine());
        let StartedProcess { process: first, stdout, stderr } = self.placement.start(&mut command)?;
        let recorder = OutputRecorder::new(log, stdout, stderr);
        let group = ProcessGroup::of(first.pid())?;
        let stands_for_process_1 = self.placement.stands_for_process_1();
        let (signals, signals_of_keeper) = mpsc::unbounded_channel();
        let (exit_of_keeper, exit) = watch::channel(None);
        let mark = format!("{MARK}={}", self.container_id);
        let keeper = Keeper {
            first,
            group,
            stands_for_process_1,
            recorder,
            mark,
            signals: signals_of_keeper,
            exit: exit_of_keeper,
        };
        Ok((ContainerProcess { signals, exit, stop_signalled: Arc::default() }, keeper))
    }

    /// Runs the program until it exits; returns the exit and the beginning of its output. If this future is dropped
    /// earlier, the program is killed.
    ///
    /// # Errors
    ///
    /// Fails if the program cannot be started.
    pub(super) async fn run(&self) -> io::Result<(ProcessExit, String)> {
        let mut child = self.placement.spawn(self.command().stdout(Stdio::piped()).stderr(Stdio::piped()))?;
        let group = ProcessGroup::of(pid_of(&child))?;
        let (mut stdout, mut stderr) = (child.stdout.take(), child.stderr.take());
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let exit = tokio::select! {
            exit = child.wait() => exit?,
            // The readers never return.
            never = async { tokio::join!(read_some(&mut stdout, &mut out), read_some(&mut stderr, &mut err)).0 } => match never {},
        };
        drop(group);
        // A process that the program left running may keep the other end open indefinitely.
        stdout.iter().for_each(|stdout| read_available(stdout, |chunk| keep_some(&mut out, chunk)));
        stderr.iter().for_each(|stderr| read_available(stderr, |chunk| keep_some(&mut err, chunk)));
        out.extend(err);
        out.truncate(MAX_OUTPUT_BYTES);
        Ok((ProcessExit::of(exit), String::from_utf8_lossy(&out).into_owned()))
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.args).env_clear().envs(self.env.iter().map(|(name, value)| (name, value)));
        let (mark, cluster) = descendants::mark();
        command.env(mark, cluster).env(MARK, &self.container_id);
        command.stdin(Stdio::null()).process_group(0).kill_on_drop(true);
        if let Some(dir) = &self.working_dir {
            command.current_dir(dir);
        }
        command
    }
}

/// Makes the command's process adopt its orphaned descendants, like a container's first process, so that they can be
/// found below it until it exits. It also resets the signals that a shell makes its background jobs ignore, and that
/// nohup makes its command ignore, because programs inherit this.
///
/// On the machine itself, the process dies with this process, or more precisely with the thread that starts it: a
/// runtime worker, which lives just as long. The process's own children do not die with it.
#[expect(unsafe_code, reason = "there is no safe way to run a system call between fork and exec")]
fn begin_as_in_a_container(command: &mut Command, is_on_the_machine: bool) {
    let begin = move || {
        set_child_subreaper(true)?;
        if is_on_the_machine {
            set_pdeathsig(Signal::SIGKILL)?;
        }
        for ignored in [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT] {
            // SAFETY: no handler is set, and a process that is about to be replaced has none yet.
            unsafe { signal(ignored, SigHandler::SigDfl) }?;
        }
        Ok(())
    };
    // SAFETY: the closure makes system calls, and neither allocates nor takes a lock.
    unsafe {
        command.pre_exec(begin);
    }
}

/// Reads everything and keeps the beginning. Never returns.
async fn read_some(source: &mut Option<impl AsyncRead + Unpin>, kept: &mut Vec<u8>) -> Infallible {
    let mut chunk = [0; 4096];
    while let Some(open) = source
        && let Ok(read @ 1..) = open.read(&mut chunk).await
    {
        keep_some(kept, &chunk[..read]);
    }
    std::future::pending().await
}

fn keep_some(kept: &mut Vec<u8>, chunk: &[u8]) {
    let room = MAX_OUTPUT_BYTES.saturating_sub(kept.len());
    kept.extend_from_slice(&chunk[..chunk.len().min(room)]);
}

impl ContainerProcess {
    /// Sends the stop signal, unless it was sent before. A runtime sends it only once, however often it is asked to
    /// stop a container.
    pub(super) fn stop(&self, signal: Signal) {
        if !self.stop_signalled.swap(true, Ordering::Relaxed) {
            let _ = self.signals.send(signal);
        }
    }

    /// Returns the channel for signals to the process.
    pub(super) fn signals(&self) -> mpsc::UnboundedSender<Signal> {
        self.signals.clone()
    }

    /// Kills the process and its group.
    pub(super) fn kill(&self) {
        let _ = self.signals.send(Signal::SIGKILL);
    }

    /// Waits until the process has exited.
    pub(super) async fn exited(&self) -> ProcessExit {
        let mut exit = self.exit.clone();
        // An error means that the keeper was aborted with the cluster, so no one is left to notice.
        match exit.wait_for(Option::is_some).await {
            Ok(exit) => (*exit).unwrap_or(ProcessExit::with(137)),
            Err(_) => ProcessExit::with(137),
        }
    }

    /// Returns true if the process has exited.
    pub(super) fn has_exited(&self) -> bool {
        self.exit.borrow().is_some() || self.exit.has_changed().is_err()
    }
}

impl Keeper {
    /// Delivers signals until the process has exited, and then kills everything that it started, as happens when a
    /// container's first process exits. If dropped earlier, it kills the process and its group.
    pub(super) async fn run(mut self) {
        let mut members = BTreeSet::new();
        let mut recording = true;
        let status = loop {
            tokio::select! {
                status = self.first.wait() => break status,
                Some(signal) = self.signals.recv() => {
                    // Record the processes that exist now so that they are found later, however they detach.
                    members.extend(self.below().await);
                    self.signal(signal);
                }
                more = self.recorder.step(), if recording => recording = more,
            }
        };
        drop(self.group);
        let mark = self.mark;
        let _ = tokio::task::spawn_blocking(move || descendants::kill_marked(&mark, &members)).await;
        // All output must be in the log before the exit is announced.
        self.recorder.finish();
        let exit = status.map_or(ProcessExit::with(255), ProcessExit::of);
        self.exit.send_replace(Some(exit));
    }

    /// Signals the first process. A process that only stands in for process 1 does not get signals for which it has no
    /// handler.
    fn signal(&self, signal: Signal) {
        let is_forced = matches!(signal, Signal::SIGKILL | Signal::SIGSTOP);
        if is_forced || !self.stands_for_process_1 || handles(self.group.0, signal) {
            self.group.signal(signal);
        }
    }

    async fn below(&self) -> BTreeSet<ProcessIdentity> {
        let pid = self.group.0.as_raw();
        tokio::task::spawn_blocking(move || descendants::below(pid)).await.unwrap_or_default()
    }
}

/// Returns true if the process has a handler for the signal.
fn handles(pid: Pid, signal: Signal) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught =
        status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigCgt:")?.trim(), 16).ok());
    caught.is_some_and(|caught| caught >> (signal as i32 - 1) & 1 == 1)
}

/// Process group that is killed when this is dropped.
struct ProcessGroup(Pid);

impl ProcessGroup {
    fn of(leader: Option<Pid>) -> io::Result<Self> {
        leader.map(Self).ok_or_else(|| io::Error::other("the process has no id"))
    }

    /// Sends SIGKILL to the whole group, and any other signal to its leader alone, because a runtime signals only a
    /// container's first process.
    fn signal(&self, signal: Signal) {
        // ESRCH: the process has already exited.
        let _ = match signal {
            Signal::SIGKILL => killpg(self.0, signal),
            _ => kill(self.0, signal),
        };
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        self.signal(Signal::SIGKILL);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use rolldrop_record::Clock;

    fn shell(script: &str) -> Launch {
        Launch {
            program: "/bin/sh".into(),
            args: vec!["-c".into(), script.into()],
            env: vec![("PATH".into(), std::env::var("PATH").unwrap())],
            working_dir: None,
            container_id: format!("{:032x}", rand::random::<u128>()),
            placement: Placement::default(),
            mounts: Vec::new(),
            own_program: None,
        }
    }

    fn log_at(path: &Path) -> ContainerLog {
        ContainerLog::begin(path, Clock::start()).unwrap()
    }

    async fn wait_for_text(log: &Path, text: &str) {
        while !std::fs::read_to_string(log).unwrap().contains(text) {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }

    #[tokio::test]
    async fn exit_codes_match_container_runtime() {
        for (script, code) in [("exit 7", 7), ("kill -TERM $$", 143), ("kill -KILL $$", 137)] {
            assert_eq!(shell(script).run().await.unwrap().0.code, code, "{script}");
        }
    }

    #[tokio::test]
    async fn process_exit_kills_its_group() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        // The shell's child would far outlive it.
        let (process, keeper) =
            shell("trap 'exit 3' TERM; sleep 1000 & echo child $!; wait").start(log_at(&log)).unwrap();
        let keeper = tokio::spawn(keeper.run());
        wait_for_text(&log, "child").await;
        process.stop(Signal::SIGTERM);
        assert_eq!(process.exited().await, ProcessExit::with(3));
        keeper.await.unwrap();
        let text = std::fs::read_to_string(&log).unwrap();
        let child: i32 = text.trim().rsplit(' ').next().unwrap().parse().unwrap();
        while is_alive(child) {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }

    #[tokio::test]
    async fn container_exit_kills_detached_descendants() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        // One process leaves its session, group and parent; the other also clears its environment.
        let hidden = "sh -c 'trap \"\" TERM; echo hidden $$; while :; do sleep 1; done'";
        let script = format!(
            "trap 'exit 3' TERM; (setsid {hidden} &); (env -i setsid {hidden} &); while :; do sleep 0.05; done"
        );
        let (process, keeper) = shell(&script).start(log_at(&log)).unwrap();
        let keeper = tokio::spawn(keeper.run());
        let pids = loop {
            let text = std::fs::read_to_string(&log).unwrap();
            let pids: Vec<i32> =
                text.lines().filter_map(|line| line.split_once("hidden ")?.1.parse().ok()).collect();
            if pids.len() == 2 {
                break pids;
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        };
        process.stop(Signal::SIGTERM);
        assert_eq!(process.exited().await, ProcessExit::with(3));
        keeper.await.unwrap();
        for pid in pids {
            assert!(!is_alive(pid), "{pid} lives");
        }
    }

    #[tokio::test]
    async fn command_output_is_bounded_and_ignores_open_pipe() {
        let (exit, output) = shell("yes | head -c 100000; echo end >&2").run().await.unwrap();
        assert_eq!((exit.code, output.len()), (0, MAX_OUTPUT_BYTES));
        // A process that the shell left behind holds the pipe.
        let (exit, output) = shell("setsid sleep 30 & echo done; exit 4").run().await.unwrap();
        assert_eq!((exit.code, output.as_str()), (4, "done\n"));
    }

    /// Returns true if the process is running; false if it has exited, even if it was not reaped.
    fn is_alive(pid: i32) -> bool {
        std::fs::read_to_string(format!("/proc/{pid}/stat"))
            .is_ok_and(|stat| !stat.rsplit(')').next().unwrap().trim_start().starts_with('Z'))
    }

    #[tokio::test]
    async fn dropped_keeper_kills_process() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let (process, keeper) =
            shell("trap '' TERM; echo pid $$; while :; do sleep 1; done").start(log_at(&log)).unwrap();
        let keeper = tokio::spawn(keeper.run());
        wait_for_text(&log, "pid").await;
        let text = std::fs::read_to_string(&log).unwrap();
        let pid: i32 = text.trim().rsplit(' ').next().unwrap().parse().unwrap();
        keeper.abort();
        while is_alive(pid) {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        assert_eq!(process.exited().await, ProcessExit::with(137));
    }
}
