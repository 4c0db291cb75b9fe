//! A container's first process: process 1 of a PID namespace of its own, as a container runtime starts it. The kernel
//! does not deliver it a signal for which it has no handler, and ends all other processes in there when it ends.
//!
//! The new namespace lies below the PID namespace of all containers, so only a process in there can make it. A child
//! of this process joins that, makes the new one, starts the first process as its own sibling, and ends. The kernel
//! tells the sibling's id, as this process numbers it: it names the sender of data on a socket.

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

/// A first process that was started. If this is dropped before the process ends, the process is reaped when it does.
#[derive(Debug)]
pub struct First {
    pid: Pid,
    /// Becomes readable once it has ended.
    end: AsyncFd<OwnedFd>,
    is_reaped: bool,
}

impl First {
    /// Returns its id, as this process sees it.
    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Waits for its end.
    ///
    /// # Errors
    ///
    /// The system cannot tell.
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
        other => Err(io::Error::other(format!("{other:?} is no end"))),
    }
}

/// Socket through which a first process announces itself.
pub(super) struct Birth {
    heard: OwnedFd,
    said: OwnedFd,
}

impl Birth {
    /// Makes the process that `command` starts next a first process, if it is started in the PID namespace of all
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

    /// Returns the process, once the command has started, or failed to; `None` if there was none.
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

/// Watches a first process.
#[expect(unsafe_code, reason = "a registered descriptor must stay open, which the library cannot see")]
pub(super) fn watched(pid: Pid) -> io::Result<First> {
    let raw = rustix::process::Pid::from_raw(pid.as_raw()).ok_or(Errno::ESRCH)?;
    let descriptor = pidfd_open(raw, PidfdFlags::NONBLOCK)?;
    // It owns the descriptor, whose number stays the same, and which nothing else closes.
    let end = unsafe { AsyncFd::register(descriptor) }?;
    Ok(First { pid, end, is_reaped: false })
}

/// Ends this process, a child between fork and exec, and continues as the first process of a new PID namespace, a
/// sibling.
#[expect(unsafe_code, reason = "no library knows fork with CLONE_PARENT")]
fn become_first(socket: RawFd) -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWPID)?;
    let flags = libc::c_long::from(libc::CLONE_PARENT | libc::SIGCHLD);
    // SAFETY: without a stack and without shared memory this is a fork; what follows makes system calls only.
    match unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) } {
        -1 => return Err(io::Error::last_os_error()),
        0 => {}
        // SAFETY: nothing may run in this copy of the process any more.
        _ => unsafe { libc::_exit(0) },
    }
    setpgid(Pid::from_raw(0), Pid::from_raw(0))?;
    // If refused, the container sees the processes of all containers.
    let _ = mounts::show_own_processes();
    // SAFETY: the descriptor is open: the parent waits for the exec.
    let socket = unsafe { std::os::fd::BorrowedFd::borrow_raw(socket) };
    write(socket, b"1")?;
    Ok(())
}
