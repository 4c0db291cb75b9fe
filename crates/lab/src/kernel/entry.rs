//! Takes the process into private namespaces.
//!
//! The process itself gets a network namespace, and a user namespace if it lacks the privilege. It stays in its PID and
//! mount namespaces, because it has to see the whole machine, and because a process whose children are to live in
//! another PID namespace may not start threads. The containers' PID and mount namespaces belong to the first process of
//! the new PID namespace. That process exits, and all containers are killed with it, as soon as the pipe from this
//! process closes.

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::sys::wait::waitpid;
use nix::unistd::{Gid, Uid};

use super::init;
use super::namespace::{Namespace, on_thread};

/// Error that rules out the kernel dataplane on this machine.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// A program is missing.
    #[error("`{name}` is not installed")]
    NoTool {
        /// Name of the program.
        name: &'static str,
    },
    /// The system refuses to create namespaces.
    #[error("this system does not allow {what}")]
    Refused {
        /// Request that was refused.
        what: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// The first process of the PID namespace did not start.
    #[error("cannot start the containers' first process: {why}")]
    Init {
        /// Message from that process.
        why: String,
    },
    /// Links and routes cannot be created.
    #[error("cannot set up the network")]
    Network {
        /// The cause.
        source: io::Error,
    },
    /// Rules for Services cannot be created.
    #[error("cannot install the rules for Services")]
    Rules {
        /// The cause.
        source: io::Error,
    },
    /// The dataplane check failed.
    #[error("{0}")]
    Tried(String),
}

/// Private namespaces that this process is in. Dropping this kills all containers.
#[derive(Debug)]
pub struct Entered {
    pids: Namespace,
    mounts: Namespace,
    init: Child,
    /// The first process exits when this closes.
    lifeline: Option<ChildStdin>,
    /// Closes when the first process exits.
    sign_of_life: OwnedFd,
}

/// Takes this process, which must have only one thread, into its own namespaces. If the process is killed, the
/// containers' first process removes the files `leftovers` in its place.
///
/// # Errors
///
/// Fails if the system refuses to create a namespace. The process may already be in some of the others.
pub fn enter(leftovers: &[PathBuf]) -> Result<Entered, KernelError> {
    let (uid, gid) = (Uid::effective(), Gid::effective());
    match unshare(CloneFlags::CLONE_NEWNET) {
        Ok(()) => {}
        Err(Errno::EPERM) => {
            unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNET)
                .map_err(|errno| KernelError::Refused { what: "user namespaces", source: errno.into() })?;
            // This process is root inside, but has no privileges outside.
            let maps = fs::write("/proc/self/setgroups", "deny")
                .and_then(|()| fs::write("/proc/self/uid_map", format!("0 {uid} 1")))
                .and_then(|()| fs::write("/proc/self/gid_map", format!("0 {gid} 1")));
            maps.map_err(|source| KernelError::Refused { what: "user ID mappings", source })?;
        }
        Err(errno) => {
            return Err(KernelError::Refused { what: "network namespaces", source: errno.into() });
        }
    }
    Entered::start(leftovers)
}

impl Entered {
    fn start(leftovers: &[PathBuf]) -> Result<Self, KernelError> {
        let refused = |source| KernelError::Refused { what: "PID namespaces", source };
        let program = std::env::current_exe().map_err(refused)?;
        let mut command = Command::new(program);
        command.args(["cluster", init::COMMAND]).args(leftovers);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let started = on_thread(|| {
            unshare(CloneFlags::CLONE_NEWPID)?;
            command.spawn()
        });
        let mut init = started.map_err(refused)?;
        let lifeline = init.stdin.take();
        let silent = || KernelError::Init { why: "it has no standard output".to_owned() };
        let mut stdout = BufReader::new(init.stdout.take().ok_or_else(silent)?);
        let mut said = String::new();
        // If it fails to report anything, the text is empty.
        let _ = stdout.read_line(&mut said);
        let said = said.trim();
        if said != init::READY {
            drop(lifeline);
            let status = init.wait().map_err(refused)?;
            let why = if said.is_empty() { status.to_string() } else { said.to_owned() };
            return Err(KernelError::Init { why });
        }
        let namespaces = PathBuf::from(format!("/proc/{}/ns", init.id()));
        let open =
            |name: &str, kind| Namespace::open(&namespaces.join(Path::new(name)), kind).map_err(refused);
        Ok(Self {
            pids: open("pid", CloneFlags::CLONE_NEWPID)?,
            mounts: open("mnt", CloneFlags::CLONE_NEWNS)?,
            init,
            lifeline,
            sign_of_life: stdout.into_inner().into(),
        })
    }

    /// Returns a pipe that closes when all containers are gone, no matter what killed them.
    pub(super) fn sign_of_life(&self) -> io::Result<OwnedFd> {
        self.sign_of_life.try_clone()
    }

    /// Returns the containers' common PID namespace.
    pub(super) fn pids(&self) -> &Namespace {
        &self.pids
    }

    /// Returns the root directory of the containers' mount namespace, as this process sees it.
    pub(super) fn root(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root", self.init.id()))
    }

    /// Returns the mount namespace from which the containers' mount namespaces are copied.
    pub(super) fn mounts(&self) -> &Namespace {
        &self.mounts
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        drop(self.lifeline.take());
        // The first process exits once every process in its namespace has been reaped. This process must reap those
        // that it started itself, because no other process will.
        loop {
            match waitpid(None, None) {
                Ok(status)
                    if status.pid().is_some_and(|pid| pid.as_raw().unsigned_abs() == self.init.id()) =>
                {
                    return;
                }
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => {
                    tracing::debug!(%error, "cannot wait for the containers' first process");
                    return;
                }
            }
        }
    }
}
