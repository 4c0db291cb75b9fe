//! Remembers the position in the source ports between loads.
//!
//! A load that started with the ports of the previous load would hit its stale flows, so each load starts after the
//! ports of the previous one. The position is kept in a small file, one per user, in the temporary directory. A load
//! that cannot read the file starts at a random position. The pods of a cluster have no such file, so the run that
//! starts them reads its user's file and tells them the position.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};

use super::{ENTRY_LIFE, SourcePorts};
use rolldrop_record::load::PortRange;

/// Ports from which Linux chooses by default.
const COMMON: RangeInclusive<u16> = PortRange::OF_LINUX.first..=PortRange::OF_LINUX.last;
/// Maximum length of a file in bytes; it contains three numbers.
const LONGEST: u64 = 32;

/// Position in the source ports at which earlier loads stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortsBefore {
    /// Port after the last port taken.
    pub next: u16,
    /// Number of ports taken recently, which may still have stale flows.
    pub taken: usize,
    /// Time since the first of the recently taken ports was taken, in seconds.
    pub since_s: u64,
}

/// File in which the loads of one kind store their last port, per user.
#[derive(Clone, Debug)]
pub struct PortMemory(PathBuf);

impl PortMemory {
    /// Returns the port memory for loads sent by pods.
    pub fn of_pods() -> Self {
        Self::called("pods")
    }

    /// Returns the port memory for loads that this machine sends from these ports.
    pub(in super::super) fn of_here(ports: &[u16]) -> Self {
        Self::called(&ports.first().copied().unwrap_or_default().to_string())
    }

    fn called(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("rolldrop-{}-{name}.port", geteuid())))
    }

    /// Returns the position at which earlier loads stopped; `None` if unknown.
    pub fn read(&self) -> Option<PortsBefore> {
        read(&self.0).unwrap_or_else(|error| {
            tracing::debug!(%error, "failed to read which source ports earlier loads used");
            None
        })
    }

    /// Returns the position for pods, which all start with the same port. Until their load has ended, another load
    /// starts far from that port.
    pub fn begin(&self) -> PortsBefore {
        let before = self.read();
        let anywhere = || PortsBefore { next: rand::random_range(COMMON), taken: 0, since_s: 0 };
        let before = before.unwrap_or_else(anywhere);
        let (first, ports) = (*COMMON.start(), COMMON.count());
        let far = usize::from(before.next.saturating_sub(first)) + ports / 2;
        let far = first + u16::try_from(far % ports).unwrap_or_default();
        self.leave(PortsBefore { next: far, taken: ports / 2, since_s: 0 });
        before
    }

    /// Stores the position for the next load.
    pub fn leave(&self, before: PortsBefore) {
        if let Err(error) = write(&self.0, before) {
            tracing::debug!(%error, "failed to store the last source port for the next load");
        }
    }
}

/// Path of a user's loads through a set of ports.
#[derive(Debug)]
pub(in super::super) struct PortWalk {
    /// Ports in order; never empty.
    ports: Vec<u16>,
    /// Source addresses, each of which can use all ports; empty if the kernel chooses.
    addresses: Vec<IpAddr>,
    /// Index of the port with which this load starts.
    place: usize,
    /// File for the last port; `None` if the run that started this load keeps the position.
    memory: Option<PortMemory>,
    began: Instant,
}

impl PortWalk {
    /// Starts where the previous load stopped, according to `told` or else to this user's file.
    pub(in super::super) fn begin(ports: Vec<u16>, addresses: &[IpAddr], told: Option<PortsBefore>) -> Self {
        let memory = told.is_none().then(|| PortMemory::of_here(&ports));
        let before = told.or_else(|| memory.as_ref().and_then(PortMemory::read));
        Self::begin_behind(before, memory, ports, addresses)
    }

    fn begin_behind(
        before: Option<PortsBefore>,
        memory: Option<PortMemory>,
        ports: Vec<u16>,
        addresses: &[IpAddr],
    ) -> Self {
        let place = match before {
            Some(before) => ports.partition_point(|port| *port < before.next) % ports.len(),
            None => rand::random_range(0..ports.len()),
        };
        let walk = Self { ports, addresses: addresses.to_vec(), place, memory, began: Instant::now() };
        // This position remains in the file if the load is killed.
        walk.leave(walk.ports.len() / 2, Duration::ZERO);
        walk
    }

    /// Returns the share for worker number `worker`.
    pub(in super::super) fn share(&self, worker: usize, workers: usize) -> SourcePorts {
        SourcePorts::share((&self.ports, self.place), &self.addresses, (worker, workers))
    }

    /// Stores the position for the next load, which starts after this one. `taken` is the total number of times that
    /// the workers took a port.
    pub(in super::super) fn end(self, taken: usize) -> PortsBefore {
        let gone = taken.div_ceil(self.addresses.len().max(1));
        self.leave(gone, self.began.elapsed())
    }

    fn leave(&self, gone: usize, length: Duration) -> PortsBefore {
        let next = self.ports[(self.place + gone) % self.ports.len()];
        let left =
            PortsBefore { next, taken: lately(gone, length), since_s: length.min(ENTRY_LIFE).as_secs() };
        if let Some(memory) = &self.memory {
            memory.leave(left);
        }
        left
    }
}

/// Returns the number of ports that a load took recently enough for their entries to still exist at its end, given the
/// number of ports `taken` and the load's length.
fn lately(taken: usize, length: Duration) -> usize {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "positive, and at most `taken`"
    )]
    let of_last = |share: f64| (taken as f64 * share).ceil() as usize;
    of_last((ENTRY_LIFE.as_secs_f64() / length.as_secs_f64().max(1.0)).min(1.0))
}

fn read(path: &Path) -> io::Result<Option<PortsBefore>> {
    let (mut file, mut text) = (own(path, false)?, String::new());
    (&mut file).take(LONGEST).read_to_string(&mut text)?;
    let age = file.metadata()?.modified()?.elapsed().unwrap_or_default();
    let mut words = text.split_ascii_whitespace();
    let Some(next) = words.next().and_then(|port| port.parse().ok()) else { return Ok(None) };
    let mut number = || words.next().and_then(|number| number.parse::<u32>().ok()).unwrap_or(0);
    let (taken, since_s) = (number() as usize, u64::from(number()) + age.as_secs());
    Ok(Some(PortsBefore { next, taken: if age < ENTRY_LIFE { taken } else { 0 }, since_s }))
}

fn write(path: &Path, left: PortsBefore) -> io::Result<()> {
    let mut file = own(path, true)?;
    file.set_len(0)?;
    let PortsBefore { next, taken, since_s } = left;
    file.write_all(format!("{next} {taken} {since_s}").as_bytes())
}

/// Opens a file that belongs to this user. Other users may put something else in its place, such as a link to another
/// file.
fn own(path: &Path, is_written: bool) -> io::Result<File> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let mut options = OpenOptions::new();
    options.read(!is_written).write(is_written).create(is_written).truncate(false).mode(0o600);
    let file = options.custom_flags(flags.bits()).open(path)?;
    let is = file.metadata()?;
    if is.is_file() && is.uid() == geteuid().as_raw() && is.nlink() == 1 {
        return Ok(file);
    }
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        "it is not a regular file that this user owns and that has only one hard link",
    ))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn next_load_continues_with_next_port() {
        let dir = tempfile::tempdir().unwrap();
        let memory = PortMemory(dir.path().join("port"));
        let addresses = [1, 2].map(|n| IpAddr::from([127, 0, 0, n]));
        let begin = |ports: &[u16]| {
            PortWalk::begin_behind(memory.read(), Some(memory.clone()), ports.to_vec(), &addresses)
        };
        let ports: Vec<u16> = (100..107).filter(|port| *port != 104).collect();
        let first = begin(&ports);
        let place = first.place;
        assert_eq!(first.end(8).taken, 4);
        let second = begin(&ports);
        assert_eq!(second.place, (place + 4) % 6);
        second.end(25);
        let third = begin(&ports);
        assert_eq!(third.place, (place + 5) % 6);
        let next = ports[third.place];
        assert_eq!([0, 1].map(|worker| third.share(worker, 2).next()), [next, next]);
        // The load is killed.
        assert_eq!(begin(&ports).place, (place + 5 + 3) % 6);
        // If the stored port is not among the ports, the load starts with the next one.
        for (next, place) in [(103, 3), (104, 4), (107, 0), (9, 0), (9000, 0)] {
            memory.leave(PortsBefore { next, taken: 0, since_s: 0 });
            assert_eq!(begin(&ports).place, place, "{next}");
        }
    }

    #[test]
    fn next_pods_continue_with_next_port() {
        let dir = tempfile::tempdir().unwrap();
        let memory = PortMemory(dir.path().join("port"));
        let begin = |before| PortWalk::begin_behind(Some(before), None, COMMON.collect(), &[]);
        let before = memory.begin();
        let walk = begin(before);
        assert_eq!(walk.share(0, 1).next(), before.next);
        let ended = walk.end(1000);
        assert_eq!(usize::from(ended.next), 32768 + (usize::from(before.next) - 32768 + 1000) % 28232);
        // While the load runs, or after it is killed, other loads start far from its first port.
        let far = memory.begin().next.abs_diff(before.next);
        assert_eq!(far, 14116);
        memory.leave(ended);
        assert_eq!(memory.begin().next, ended.next);
    }

    #[test]
    fn port_memory_forgets_expired_flows() {
        assert_eq!(lately(3000, Duration::from_secs(20)), 3000);
        assert_eq!(lately(3000, Duration::from_secs(360)), 1000);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("port");
        write(&path, PortsBefore { next: 40000, taken: 3000, since_s: 60 }).unwrap();
        let before = read(&path).unwrap().unwrap();
        assert_eq!((before.next, before.taken), (40000, 3000));
        assert!(before.since_s >= 60);
        let long_ago = std::time::SystemTime::now() - 2 * ENTRY_LIFE;
        File::options().write(true).open(&path).unwrap().set_modified(long_ago).unwrap();
        assert_eq!(read(&path).unwrap().map(|before| before.taken), Some(0));
        fs::write(&path, "40000").unwrap();
        assert_eq!(read(&path).unwrap().map(|before| before.next), Some(40000), "cut short");
    }

    #[test]
    fn port_memory_refuses_links_and_folders() {
        let dir = tempfile::tempdir().unwrap();
        let [other, link, hard, folder] =
            ["other", "link", "hard", "folder"].map(|name| dir.path().join(name));
        fs::write(&other, "60000").unwrap();
        symlink(&other, &link).unwrap();
        fs::create_dir(&folder).unwrap();
        let refused = |path: &Path| {
            read(path).is_err() && write(path, PortsBefore { next: 1, taken: 1, since_s: 1 }).is_err()
        };
        assert!(refused(&link) && refused(&folder));
        fs::hard_link(&other, &hard).unwrap();
        assert!(refused(&hard) && refused(&other));
        assert_eq!(fs::read_to_string(&other).unwrap(), "60000");
        fs::remove_file(&hard).unwrap();
        fs::write(&other, "no port").unwrap();
        assert_eq!(read(&other).unwrap(), None);
    }
}
