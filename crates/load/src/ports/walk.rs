//! Where the walk over the source ports goes on, from one load to the next.
//!
//! A load that began with ports of the one before would meet its stale flows, so it begins behind them. Where that is
//! stands in a small file of this user's in the directory for temporary files. A load that cannot read it begins
//! anywhere.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::unistd::geteuid;

use super::SourcePorts;

/// The walk of a user's loads over some ports.
#[derive(Debug)]
pub(in super::super) struct PortWalk {
    /// In order, and not empty.
    ports: Vec<u16>,
    /// Where connections come from; none if the kernel chooses. Each has all ports.
    addresses: Vec<IpAddr>,
    /// The place among them with which this load begins.
    place: usize,
    file: PathBuf,
}

impl PortWalk {
    /// Begins where the load before ended.
    pub(in super::super) fn begin(ports: Vec<u16>, addresses: &[IpAddr]) -> Self {
        let file = format!("rolldrop-{}-{}.port", geteuid(), ports[0]);
        Self::begin_with(std::env::temp_dir().join(file), ports, addresses)
    }

    fn begin_with(file: PathBuf, ports: Vec<u16>, addresses: &[IpAddr]) -> Self {
        let next = read(&file).unwrap_or_else(|error| {
            tracing::debug!(%error, "it is not known where the load before ended");
            None
        });
        let place = match next {
            Some(next) => ports.partition_point(|port| *port < next) % ports.len(),
            None => rand::random_range(0..ports.len()),
        };
        Self { ports, addresses: addresses.to_vec(), place, file }
    }

    /// The share of worker `worker`.
    pub(in super::super) fn share(&self, worker: usize, workers: usize) -> SourcePorts {
        SourcePorts::share((&self.ports, self.place), &self.addresses, (worker, workers))
    }

    /// The load has ended, and all workers together took a port so often. The next one begins behind them.
    pub(in super::super) fn end(self, taken: usize) {
        let gone = taken.div_ceil(self.addresses.len().max(1));
        let next = self.ports[(self.place + gone) % self.ports.len()];
        if let Err(error) = write(&self.file, next) {
            tracing::debug!(%error, "the next load will not know where this one ended");
        }
    }
}

fn read(path: &Path) -> io::Result<Option<u16>> {
    let mut text = String::new();
    own(path, false)?.take(8).read_to_string(&mut text)?;
    Ok(text.trim().parse().ok())
}

fn write(path: &Path, port: u16) -> io::Result<()> {
    let mut file = own(path, true)?;
    file.set_len(0)?;
    file.write_all(port.to_string().as_bytes())
}

/// Opens a file that is this user's own. Anybody may put something else in its place, such as a link to another file.
fn own(path: &Path, is_written: bool) -> io::Result<File> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let mut options = OpenOptions::new();
    options.read(!is_written).write(is_written).create(is_written).truncate(false).mode(0o600);
    let file = options.custom_flags(flags.bits()).open(path)?;
    let is = file.metadata()?;
    if is.is_file() && is.uid() == geteuid().as_raw() && is.nlink() == 1 {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::PermissionDenied, "it is not a file of this user's alone"))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_load_begins_behind_the_ports_of_the_one_before() {
        let dir = tempfile::tempdir().unwrap();
        let addresses = [1, 2].map(|n| IpAddr::from([127, 0, 0, n]));
        let begin = |ports: &[u16]| PortWalk::begin_with(dir.path().join("port"), ports.to_vec(), &addresses);
        let ports: Vec<u16> = (100..107).filter(|port| *port != 104).collect();
        let first = begin(&ports);
        let place = first.place;
        first.end(8);
        let second = begin(&ports);
        assert_eq!(second.place, (place + 4) % 6);
        second.end(25);
        let third = begin(&ports);
        assert_eq!(third.place, (place + 5) % 6);
        let next = ports[third.place];
        assert_eq!([0, 1].map(|worker| third.share(worker, 2).next()), [next, next]);
        // Where its port is not there, it begins with the next one.
        for (next, place) in [(103, 3), (104, 4), (107, 0), (9, 0), (9000, 0)] {
            write(&dir.path().join("port"), next).unwrap();
            assert_eq!(begin(&ports).place, place, "{next}");
        }
    }

    #[test]
    fn what_is_not_the_users_own_file_is_neither_followed_nor_changed() {
        let dir = tempfile::tempdir().unwrap();
        let [other, link, hard, folder] =
            ["other", "link", "hard", "folder"].map(|name| dir.path().join(name));
        fs::write(&other, "60000").unwrap();
        symlink(&other, &link).unwrap();
        fs::create_dir(&folder).unwrap();
        let refused = |path: &Path| read(path).is_err() && write(path, 1).is_err();
        assert!(refused(&link) && refused(&folder));
        fs::hard_link(&other, &hard).unwrap();
        assert!(refused(&hard) && refused(&other));
        assert_eq!(fs::read_to_string(&other).unwrap(), "60000");
        fs::remove_file(&hard).unwrap();
        fs::write(&other, "no port").unwrap();
        assert_eq!(read(&other).unwrap(), None);
    }
}
