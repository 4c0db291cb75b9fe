//! A namespace held by a descriptor, and threads that work in it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, openat};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::stat::Mode;

/// Namespace that lives until this is dropped and no process is left in it.
#[derive(Debug)]
pub(super) struct Namespace {
    file: File,
    kind: CloneFlags,
}

impl Namespace {
    /// Opens the namespace behind a link in `/proc/PID/ns`.
    pub(super) fn open(path: &Path, kind: CloneFlags) -> io::Result<Self> {
        Ok(Self { file: File::open(path)?, kind })
    }

    /// Creates a namespace, called `name` in `/proc/PID/ns`.
    pub(super) fn new(kind: CloneFlags, name: &str) -> io::Result<Self> {
        on_thread(|| {
            unshare(kind)?;
            Self::of_this_thread(&own_namespaces()?, kind, name)
        })
    }

    /// Opens the namespace that this thread is in; `own` is [`own_namespaces`].
    pub(super) fn of_this_thread(own: &File, kind: CloneFlags, name: &str) -> io::Result<Self> {
        let file = openat(own, name, OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?;
        Ok(Self { file: file.into(), kind })
    }

    /// Returns a path to the namespace that is valid while this process holds it.
    pub(super) fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd()))
    }

    /// Takes this thread into the namespace (for a PID namespace, the processes that the thread starts).
    pub(super) fn join(&self) -> io::Result<()> {
        if self.kind == CloneFlags::CLONE_NEWNS {
            // The thread needs a root directory and a working directory that no other thread shares.
            unshare(CloneFlags::CLONE_FS)?;
        }
        Ok(setns(self.file.as_fd(), self.kind)?)
    }

    /// Runs `work` on a thread in the namespace.
    pub(super) fn run<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        on_thread(|| {
            self.join()?;
            work()
        })
    }
}

/// Opens this thread's namespaces as a directory that can be reached from any mount namespace.
pub(super) fn own_namespaces() -> io::Result<File> {
    File::open("/proc/thread-self/ns")
}

/// Runs `work` on its own thread so that the namespaces it joins apply to that thread alone.
pub(super) fn on_thread<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("namespace".to_owned()).spawn_scoped(scope, work)?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread in the namespace panicked")))
    })
}
