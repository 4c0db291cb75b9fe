//! A container's first process, which is process 1 of its own PID namespace, as a container runtime starts it. The
//! kernel delivers to it only signals for which it has a handler, and kills all other processes in the namespace when
//! it exits.
//!
//! The new namespace is below the PID namespace of all containers, so only a process in that namespace can create it. A
//! child of this process joins it, creates the new namespace, starts the first process as its own sibling, and exits.
//! The sibling then writes to a socket, from which this process learns the sibling's id: the kernel attaches the
//! sender's id, in the receiver's own numbering.

use std::io::{self, IoSliceMut};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use nix::errno::Errno;
use nix::libc;
use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockType, recvmsg, setsockopt, socketpair,
    sockopt,
};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, setpgid, write};
use rustix::process::{PidfdFlags, pidfd_open};
use tokio::io::unix::AsyncFd;
use tokio::process::Command;

use super::mounts;

/// A started first process. If this is dropped before the process exits, the process is reaped once it exits.
#[derive(Debug)]
pub struct First {
    pid: Pid,
    /// Becomes readable once the process has exited.
    end: AsyncFd<OwnedFd>,
    is_reaped: bool,
}

impl First {
    /// Returns the process id, as this process sees it.
    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Waits until the process exits.
    ///
    /// # Errors
    ///
    /// Fails if the exit status cannot be read.
    pub(crate) async fn wait(&mut self) -> io::Result<ExitStatus> {
        let _ended = self.end.readable().await?;
        self.is_reaped = true;
        exit_status(waitpid(self.pid, None)?)
    }
}

impl Drop for First {
    fn drop(&mut self) {
        let pid = self.pid;
        if !self.is_reaped && waitpid(pid, Some(WaitPidFlag::WNOHANG)) == Ok(WaitStatus::StillAlive) {
            std::thread::spawn(move || waitpid(pid, None));
        }
    }
}

fn exit_status(status: WaitStatus) -> io::Result<ExitStatus> {
    match status {
        WaitStatus::Exited(_, code) => Ok(ExitStatus::from_raw(code << 8)),
        WaitStatus::Signaled(_, signal, _) => Ok(ExitStatus::from_raw(signal as i32)),
        other => Err(io::Error::other(format!("{other:?} is not an exit status"))),
    }
}

/// Socket through which a first process announces itself.
pub(super) struct Birth {
    heard: OwnedFd,
    said: OwnedFd,
}

impl Birth {
    /// Turns the process that `command` starts next into a first process, if it is started in the PID namespace of all
    /// containers.
    #[expect(unsafe_code, reason = "there is no safe way to run a system call between fork and exec")]
    pub(super) fn of(command: &mut Command) -> io::Result<Self> {
        let (heard, said) = socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC)?;
        setsockopt(&heard, sockopt::PassCred, &true)?;
        let socket = said.as_raw_fd();
        // SAFETY: the closure makes system calls, and neither allocates nor takes a lock. The socket is open as long as
        // `self`, which the caller keeps until the command has started.
        unsafe {
            command.pre_exec(move || become_first(socket));
        }
        Ok(Self { heard, said })
    }

    /// Returns the process once the command has started or failed to start; `None` if there was no process.
    pub(super) fn process(self) -> io::Result<Option<Pid>> {
        drop(self.said);
        let (mut byte, mut space) = ([0; 1], nix::cmsg_space!(libc::ucred));
        let mut bytes = [IoSliceMut::new(&mut byte)];
        let heard = recvmsg::<()>(self.heard.as_raw_fd(), &mut bytes, Some(&mut space), MsgFlags::empty())?;
        let sender = heard.cmsgs()?.find_map(|message| match message {
            ControlMessageOwned::ScmCredentials(sender) => Some(Pid::from_raw(sender.pid())),
            _ => None,
        });
        Ok(sender.filter(|_| heard.bytes > 0))
    }
}

/// Returns a handle that watches a first process.
#[expect(unsafe_code, reason = "a registered descriptor must stay open, which the library cannot see")]
pub(super) fn watched(pid: Pid) -> io::Result<First> {
    let raw = rustix::process::Pid::from_raw(pid.as_raw()).ok_or(Errno::ESRCH)?;
    let descriptor = pidfd_open(raw, PidfdFlags::NONBLOCK)?;
    // `end` owns the descriptor, whose number stays the same and which nothing else closes.
    let end = unsafe { AsyncFd::register(descriptor) }?;
    Ok(First { pid, end, is_reaped: false })
}

/// Continues as the first process of a new PID namespace, in a sibling of this process. This process, a child between
/// fork and exec, exits.
#[expect(unsafe_code, reason = "no library offers fork with CLONE_PARENT")]
fn become_first(socket: RawFd) -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWPID)?;
    let flags = libc::c_long::from(libc::CLONE_PARENT | libc::SIGCHLD);
    // SAFETY: without a stack or shared memory, this is a fork; the code below makes only system calls.
    match unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) } {
        -1 => return Err(io::Error::last_os_error()),
        0 => {}
        // SAFETY: nothing more may run in this copy of the process.
        _ => unsafe { libc::_exit(0) },
    }
    setpgid(Pid::from_raw(0), Pid::from_raw(0))?;
    // If this is refused, the container sees the processes of all containers.
    let _ = mounts::show_own_processes();
    // SAFETY: the descriptor is open, because the parent waits for the exec.
    let socket = unsafe { std::os::fd::BorrowedFd::borrow_raw(socket) };
    write(socket, b"1")?;
    Ok(())
}
