//! First process of the containers' PID namespace.
//!
//! The kernel kills every other process in the namespace as soon as this one exits. It exits as soon as its standard
//! input closes, that is, when the cluster's process exits for any reason. If the cluster's process was killed, this
//! one removes the leftover files before it exits. Until then, it adopts orphans.

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

use super::mounts;

/// Subcommand of `rolldrop cluster` that runs this process.
pub const COMMAND: &str = "init";
/// Text printed when containers can be started.
pub(super) const READY: &str = "ready";

/// Runs as PID 1 until standard input closes, then kills all remaining processes and removes `leftovers`.
///
/// # Errors
///
/// Fails if this is not the first process of a PID namespace, or it cannot set the namespace up.
pub fn run(leftovers: &[PathBuf]) -> io::Result<()> {
    if Pid::this().as_raw() != 1 {
        return Err(io::Error::other(
            "this command is part of the embedded cluster and cannot run on its own",
        ));
    }
    let ready = mounts::private_root();
    let mut stdout = io::stdout();
    match &ready {
        Ok(()) => writeln!(stdout, "{READY}")?,
        Err(error) => writeln!(stdout, "{error}")?,
    }
    stdout.flush()?;
    ready?;

    take_in_orphans()?;
    // After this, no process is left that could write to the files.
    let _ = kill(Pid::from_raw(-1), Signal::SIGKILL);
    leftovers.iter().for_each(|path| remove(path));
    Ok(())
}

/// Reaps orphans that have exited, until standard input closes.
fn take_in_orphans() -> io::Result<()> {
    let mut children = SigSet::empty();
    children.add(Signal::SIGCHLD);
    children.thread_block()?;
    let ended = SignalFd::with_flags(&children, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
    let mut stdin = io::stdin();
    loop {
        let mut sources =
            [PollFd::new(stdin.as_fd(), PollFlags::POLLIN), PollFd::new(ended.as_fd(), PollFlags::POLLIN)];
        match poll(&mut sources, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        if sources[0].any().unwrap_or(true) && !matches!(stdin.read(&mut [0; 64]), Ok(1..)) {
            return Ok(());
        }
        while matches!(ended.read_signal(), Ok(Some(_))) {}
        while waitpid(None, Some(WaitPidFlag::WNOHANG)).is_ok_and(|status| status.pid().is_some()) {}
    }
}

/// Removes a file or a directory. The cluster's process has already done so unless it was killed.
fn remove(path: &Path) {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    if let Err(error) = removed
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(%error, path = %path.display(), "cannot remove a leftover file or directory");
    }
}
