//! Enters a node or a pod of a running cluster from outside the cluster.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use nix::errno::Errno;
use nix::libc::SI_KERNEL;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use super::{RESOLV_CONF, names_dir};
use crate::descendants::start_ticks;

/// Location of an embedded cluster, recorded in its kubeconfig for programs on the same machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Whereabouts {
    /// PID of the cluster's process.
    pub pid: u32,
    /// Start time of that process, in clock ticks since boot, because another process may get the same PID.
    pub started: u64,
    /// Directory of links to the namespaces; `None` on the userspace dataplane.
    pub namespaces: Option<PathBuf>,
}

/// Place in a cluster where a command runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Spot {
    /// A node, by name; the first node if `None`.
    Node(Option<String>),
    /// A pod, by `namespace/name`.
    Pod(String),
}

/// Error that keeps a command from running in the cluster.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The cluster's process has exited.
    #[error("the cluster is gone: its process {0} has exited")]
    Gone(u32),
    /// The node or pod does not exist.
    #[error("there is no {what}; the cluster has: {}", known.join(", "))]
    NoSuch {
        /// Place that was asked for.
        what: String,
        /// Names of the existing nodes or pods.
        known: Vec<String>,
    },
    /// The system refuses entry.
    #[error("cannot enter {what}: does the cluster belong to another user?")]
    Refused {
        /// Place to enter.
        what: String,
        /// The cause.
        source: io::Error,
    },
    /// The command cannot be started.
    #[error("cannot run {}", program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

impl Whereabouts {
    /// Returns the location of a cluster in this process; `log_dir` is set if the cluster uses the kernel dataplane.
    pub fn of_this_process(log_dir: Option<&Path>) -> Self {
        let pid = std::process::id();
        let namespaces =
            log_dir.map(|dir| names_dir(&std::path::absolute(dir).unwrap_or_else(|_| dir.into())));
        Self { pid, started: start_ticks(pid).unwrap_or(0), namespaces }
    }

    /// Runs a command in the cluster. On a node the command replaces this process; in a pod it runs as a child, whose
    /// exit status is returned. This process must have only one thread.
    ///
    /// # Errors
    ///
    /// Fails if the cluster, the node or the pod does not exist, or the command cannot be started.
    pub fn run(&self, spot: &Spot, mut command: Command) -> Result<ExitStatus, JoinError> {
        if start_ticks(self.pid) != Some(self.started) {
            return Err(JoinError::Gone(self.pid));
        }
        let program = PathBuf::from(command.get_program());
        let start = |source| JoinError::Start { program, source };
        let Some(names) = &self.namespaces else { return Err(start(command.exec())) };
        match spot {
            Spot::Node(name) => {
                let name = name.as_deref().unwrap_or("node-1");
                let link = names.join("nodes").join(name);
                self.enter(
                    &format!("node {name}"),
                    &names.join("nodes"),
                    &[(link, CloneFlags::CLONE_NEWNET)],
                )?;
                if let Err(errno) = look_names_up_as(&names.join(RESOLV_CONF)) {
                    tracing::debug!(%errno, "the command cannot resolve the cluster's names");
                }
                Err(start(command.exec()))
            }
            Spot::Pod(name) => {
                let pod = names.join("pods").join(name);
                let links = [
                    (pod.join("net"), CloneFlags::CLONE_NEWNET),
                    (pod.join("uts"), CloneFlags::CLONE_NEWUTS),
                    (pod.join("pid"), CloneFlags::CLONE_NEWPID),
                    (pod.join("mnt"), CloneFlags::CLONE_NEWNS),
                ];
                self.enter(&format!("running pod {name}"), &names.join("pods"), &links)?;
                run_and_pass_signals_on(&mut command).map_err(start)
            }
        }
    }

    /// Takes this process into namespaces, after entering the user namespace that owns them.
    fn enter(&self, what: &str, all: &Path, links: &[(PathBuf, CloneFlags)]) -> Result<(), JoinError> {
        let refused = |source| JoinError::Refused { what: what.to_owned(), source };
        let mut namespaces = Vec::new();
        for (link, kind) in links {
            match File::open(link) {
                Ok(file) => namespaces.push((file, *kind)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Err(JoinError::NoSuch { what: what.to_owned(), known: names_below(all) });
                }
                Err(error) => return Err(refused(error)),
            }
        }
        let users = File::open(format!("/proc/{}/ns/user", self.pid)).map_err(refused)?;
        let own = fs::metadata("/proc/self/ns/user").map_err(refused)?;
        if users.metadata().map_err(refused)?.ino() != own.ino() {
            setns(&users, CloneFlags::CLONE_NEWUSER).map_err(|errno| refused(errno.into()))?;
        }
        for (file, kind) in namespaces {
            setns(&file, kind).map_err(|errno| refused(errno.into()))?;
        }
        Ok(())
    }
}

/// Gives this process its own `/etc/resolv.conf`.
fn look_names_up_as(file: &Path) -> nix::Result<()> {
    const NOTHING: Option<&str> = None;
    unshare(CloneFlags::CLONE_NEWNS)?;
    mount(NOTHING, "/", NOTHING, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NOTHING)?;
    mount(Some(file), "/etc/resolv.conf", NOTHING, MsFlags::MS_BIND, NOTHING)
}

/// Runs a command until it exits, and forwards signals for this process to it.
fn run_and_pass_signals_on(command: &mut Command) -> io::Result<ExitStatus> {
    let mut signals = SigSet::empty();
    for signal in [
        Signal::SIGCHLD,
        Signal::SIGHUP,
        Signal::SIGINT,
        Signal::SIGQUIT,
        Signal::SIGTERM,
        Signal::SIGUSR1,
        Signal::SIGUSR2,
    ] {
        signals.add(signal);
    }
    // The command itself starts without blocked signals.
    signals.thread_block()?;
    let arrivals = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC)?;
    end_with_this_process(command);
    let mut child = command.spawn()?;
    let pid = Pid::from_raw(i32::try_from(child.id()).map_err(io::Error::other)?);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        let arrived = match arrivals.read_signal() {
            Ok(Some(arrived)) => arrived,
            Ok(None) | Err(Errno::EINTR) => continue,
            Err(errno) => return Err(errno.into()),
        };
        let signal = i32::try_from(arrived.ssi_signo).ok().and_then(|number| Signal::try_from(number).ok());
        match signal {
            // The kernel sends keyboard signals to the whole process group, so the command gets them anyway.
            Some(signal) if signal != Signal::SIGCHLD && arrived.ssi_code != SI_KERNEL => {
                kill(pid, signal)?;
            }
            _ => {}
        }
    }
}

/// Makes the kernel kill a command when this process exits for any reason.
#[expect(unsafe_code, reason = "there is no safe way to run a system call between fork and exec")]
fn end_with_this_process(command: &mut Command) {
    let end = || set_pdeathsig(Signal::SIGKILL).map_err(io::Error::from);
    // SAFETY: the closure makes one system call, and neither allocates nor takes a lock.
    unsafe {
        command.pre_exec(end);
    }
}

/// Returns the names of links below a directory: `NODE`, or `NAMESPACE/POD`.
fn names_below(dir: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.path().is_symlink() {
            names.push(name);
        } else {
            let below = fs::read_dir(entry.path()).into_iter().flatten().flatten();
            names.extend(below.map(|pod| format!("{name}/{}", pod.file_name().to_string_lossy())));
        }
    }
    names.sort_unstable();
    if names.is_empty() {
        names.push("none".to_owned());
    }
    names
}
