//! The log files of containers: where they are, and how they stay small.
//!
//! A container writes into its file itself, so nothing stands between it and the disk. A file
//! that has grown too large is copied aside and emptied in place, which may lose what is written
//! in between; a kubelet, which renames it and has the runtime open a new one, loses nothing.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// A log larger than this is put aside (the kubelet's `containerLogMaxSize`).
const MAX_BYTES: u64 = 10 * 1024 * 1024;
/// Files of one container's run, the current one included (the kubelet's `containerLogMaxFiles`).
const MAX_FILES: u32 = 5;

/// Where the log files of a pod's containers are: see [`container_log`].
pub fn pod_log_dir(log_dir: &Path, namespace: &str, name: &str, uid: &str) -> PathBuf {
    log_dir.join("pods").join(format!("{namespace}_{name}_{uid}"))
}

/// What a container's current run has written, stdout and stderr together.
pub fn container_log(pod_log_dir: &Path, container: &str) -> PathBuf {
    pod_log_dir.join(format!("{container}.log"))
}

/// What the run before wrote.
pub fn previous_container_log(pod_log_dir: &Path, container: &str) -> PathBuf {
    pod_log_dir.join(format!("{container}.previous.log"))
}

/// The log of one run of a container.
pub(super) struct LogFile {
    path: PathBuf,
    file: File,
}

impl LogFile {
    /// Begins a run: the log of the one before becomes the previous one, older ones go. Answers
    /// the file to write to, as well.
    ///
    /// # Errors
    ///
    /// The operating system's.
    pub(super) fn begin(path: &Path) -> io::Result<(Self, File)> {
        if path.exists() {
            std::fs::rename(path, path.with_extension("previous.log"))?;
        }
        for number in 1..MAX_FILES {
            // Most were never there.
            let _ = std::fs::remove_file(aside(path, number));
        }
        let file = File::options().create(true).append(true).open(path)?;
        let output = file.try_clone()?;
        Ok((Self { path: path.to_owned(), file }, output))
    }

    /// Puts the log aside if it has grown too large.
    pub(super) async fn keep_small(&self) {
        if self.file.metadata().is_ok_and(|log| log.len() <= MAX_BYTES) {
            return;
        }
        let path = self.path.clone();
        let moved = tokio::task::spawn_blocking(move || put_aside(&path)).await;
        if let Ok(Err(error)) = moved {
            tracing::warn!(%error, log = %self.path.display(), "a log cannot be put aside");
        }
    }
}

fn put_aside(path: &Path) -> io::Result<()> {
    for number in (1..MAX_FILES - 1).rev() {
        let older = aside(path, number);
        if older.exists() {
            std::fs::rename(older, aside(path, number + 1))?;
        }
    }
    std::fs::copy(path, aside(path, 1))?;
    // Its writers append: they go on at its new end.
    File::options().write(true).open(path)?.set_len(0)
}

/// `app.log` put aside for the `number`th time: `app.log.NUMBER`.
fn aside(path: &Path, number: u32) -> PathBuf {
    path.with_extension(format!("log.{number}"))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[tokio::test]
    async fn a_log_stays_below_the_sum_of_its_files() {
        let dir = tempfile::tempdir().unwrap();
        let path = container_log(dir.path(), "app");
        let (log, mut output) = LogFile::begin(&path).unwrap();
        let mebibyte = vec![b'x'; 1024 * 1024];
        for round in 0..8 {
            for _ in 0..11 {
                output.write_all(&mebibyte).unwrap();
            }
            log.keep_small().await;
            assert_eq!(std::fs::metadata(&path).unwrap().len(), 0, "round {round}");
        }
        let files = std::fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(files, 5);
        output.write_all(b"after").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"after");
    }

    #[test]
    fn the_run_before_keeps_its_log() {
        let dir = tempfile::tempdir().unwrap();
        let path = container_log(dir.path(), "app");
        for run in ["one", "two", "three"] {
            let (_log, mut output) = LogFile::begin(&path).unwrap();
            output.write_all(run.as_bytes()).unwrap();
        }
        assert_eq!(std::fs::read(&path).unwrap(), b"three");
        assert_eq!(std::fs::read(previous_container_log(dir.path(), "app")).unwrap(), b"two");
    }
}
