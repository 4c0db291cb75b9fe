//! Container mount namespaces.
//!
//! A container sees the machine's files unchanged, with two exceptions: `/proc` shows the containers' processes, and
//! the mounts from the container's manifest cover some paths. The root directory belongs to the cluster and contains
//! the machine's directories so that mounts are possible at paths that the machine does not have. If one of the
//! machine's directories lacks a mount's path, a directory of the container's own with the same entries covers it.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd::pivot_root;

use super::namespace::{Namespace, on_thread, own_namespaces};

/// Directory in which a new root directory is assembled.
const STAGE: &str = "/tmp";
/// Path of the machine's root directory while a new one is assembled.
const MACHINE: &str = "/.machine";

/// Directory for the files that containers mount.
pub(super) const STORE: &str = "/.volumes";

/// File or directory on the machine that is mounted at a path in a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bind {
    /// A file or a directory.
    pub source: PathBuf,
    /// Absolute path in the container; its parent directories need not exist.
    pub target: PathBuf,
    /// True if the container may not write to it.
    pub read_only: bool,
}

/// Gives this process, the first in its PID namespace, its own mount namespace and root directory.
pub(super) fn private_root() -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    // Keep mounts made in here from appearing outside.
    mount(NOTHING, "/", NOTHING, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NOTHING)?;
    mount_tmpfs(Path::new(STAGE))?;
    let machine = Path::new(STAGE).join(MACHINE.trim_start_matches('/'));
    fs::create_dir(&machine)?;
    pivot_root(STAGE, &machine)?;
    std::env::set_current_dir("/")?;
    for entry in fs::read_dir(MACHINE)? {
        let entry = entry?;
        if entry.file_name() != "proc" {
            repeat(&entry, Path::new("/"))?;
        }
    }
    fs::create_dir("/proc")?;
    if show_own_processes().is_err() {
        // The machine's own `/proc` also works, but shows the machine's process ids.
        bind(&Path::new(MACHINE).join("proc"), Path::new("/proc"))?;
    }
    umount2(MACHINE, MntFlags::MNT_DETACH)?;
    fs::remove_dir(MACHINE)
}

/// Mounts a `/proc` that shows this process's PID namespace. The kernel refuses this if parts of the machine's own
/// `/proc` are hidden, as in a container.
pub(super) fn show_own_processes() -> nix::Result<()> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("proc"), "/proc", Some("proc"), flags, NOTHING)
}

/// Creates a mount namespace for a container: a copy of `base` with `binds`.
pub(super) fn container(base: &Namespace, binds: &[Bind]) -> io::Result<Namespace> {
    let own = own_namespaces;
    on_thread(|| {
        let own = own()?;
        base.join()?;
        unshare(CloneFlags::CLONE_NEWNS)?;
        let mut tree = MountTree { own_devices: HashSet::from([fs::metadata("/")?.dev()]) };
        for bind in binds {
            tree.place(bind).map_err(|error| {
                let target = bind.target.display();
                io::Error::new(error.kind(), format!("mount {} at {target}: {error}", bind.source.display()))
            })?;
        }
        hide_store()?;
        Namespace::of_this_thread(&own, CloneFlags::CLONE_NEWNS, "mnt")
    })
}

/// Hides the directory with all pods' volumes, because the container has its own volumes mounted elsewhere.
fn hide_store() -> io::Result<()> {
    let store = Path::new(STORE);
    if !store.exists() {
        return Ok(());
    }
    mount(Some("tmpfs"), store, Some("tmpfs"), MsFlags::MS_RDONLY, Some("mode=000"))?;
    Ok(())
}

const NOTHING: Option<&str> = None;

/// File tree of the container that is being created.
struct MountTree {
    /// File systems to which entries can be added.
    own_devices: HashSet<u64>,
}

impl MountTree {
    fn place(&mut self, bind_mount: &Bind) -> io::Result<()> {
        let Bind { source, target, read_only } = bind_mount;
        if !target.is_absolute() || target.components().any(|part| part == Component::ParentDir) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the path must be absolute and must not contain `..`",
            ));
        }
        let is_dir = fs::metadata(source)?.is_dir();
        if !target.exists() {
            let dir = if is_dir { Some(target.as_path()) } else { target.parent() };
            self.make_dir(dir.unwrap_or(Path::new("/")))?;
            if !is_dir {
                self.make_extendable(target.parent().unwrap_or(Path::new("/")))?;
                File::create(target)?;
            }
        }
        bind(source, target)?;
        if *read_only {
            // Flags set on the file system must be kept; the kernel keeps the access time flags if none is named.
            let flags = statvfs(target)?.flags();
            let mut remount = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY;
            for (set, keep) in [
                (FsFlags::ST_NOSUID, MsFlags::MS_NOSUID),
                (FsFlags::ST_NODEV, MsFlags::MS_NODEV),
                (FsFlags::ST_NOEXEC, MsFlags::MS_NOEXEC),
            ] {
                remount.set(keep, flags.contains(set));
            }
            mount(NOTHING, target, NOTHING, remount, NOTHING)?;
        }
        Ok(())
    }

    /// Creates a directory and its parents.
    fn make_dir(&mut self, dir: &Path) -> io::Result<()> {
        if dir.exists() {
            return Ok(());
        }
        let existing = dir.ancestors().find(|dir| dir.exists()).unwrap_or(Path::new("/"));
        self.make_extendable(existing)?;
        fs::create_dir_all(dir)
    }

    /// Covers one of the machine's directories with one of the container's own that has the same entries.
    fn make_extendable(&mut self, dir: &Path) -> io::Result<()> {
        let dir = dir.canonicalize()?;
        if self.own_devices.contains(&fs::metadata(&dir)?.dev()) {
            return Ok(());
        }
        let stage = Path::new(MACHINE);
        fs::create_dir_all(stage)?;
        mount_tmpfs(stage)?;
        for entry in fs::read_dir(&dir)? {
            repeat(&entry?, stage)?;
        }
        mount(Some(stage), &dir, NOTHING, MsFlags::MS_MOVE, NOTHING)?;
        self.own_devices.insert(fs::metadata(&dir)?.dev());
        Ok(())
    }
}

/// Makes a directory entry also appear in the directory `into`.
fn repeat(entry: &fs::DirEntry, into: &Path) -> io::Result<()> {
    let path = into.join(entry.file_name());
    let kind = entry.file_type()?;
    if kind.is_symlink() {
        return std::os::unix::fs::symlink(fs::read_link(entry.path())?, path);
    }
    if kind.is_dir() {
        fs::create_dir(&path)?;
    } else {
        File::create(&path)?;
    }
    bind(&entry.path(), &path)
}

fn bind(source: &Path, target: &Path) -> io::Result<()> {
    Ok(mount(Some(source), target, NOTHING, MsFlags::MS_BIND | MsFlags::MS_REC, NOTHING)?)
}

fn mount_tmpfs(at: &Path) -> io::Result<()> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    Ok(mount(Some("tmpfs"), at, Some("tmpfs"), flags, Some("mode=755"))?)
}
