//! Follows a local file as `tail -F` does, through rotation by rename and by truncation.

use std::io::{self, ErrorKind, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio::time::sleep;

use super::log_lines::LineSplitter;
use super::{LogOutlet, LogStop};
use rolldrop_record::Stamp;

/// Interval at which the file is read.
const PERIOD: Duration = Duration::from_millis(250);
/// Time in which a file may be replaced more than once.
const TWO_ROTATIONS: Duration = Duration::from_secs(5);
const CHUNK_BYTES: usize = 64 * 1024;

/// A file, and the position in it.
pub(super) struct FollowedFile {
    path: PathBuf,
    file: File,
    position: u64,
    lines: LineSplitter,
    chunk: Box<[u8]>,
    /// Time at which the file was last read to its end under its name.
    complete: Stamp,
    outlet: LogOutlet,
}

impl FollowedFile {
    /// Opens the file at its end.
    ///
    /// # Errors
    /// Fails with the operating system's error.
    pub(super) async fn open(path: PathBuf, outlet: LogOutlet) -> io::Result<Self> {
        let mut file = File::open(&path).await?;
        if !file.metadata().await?.is_file() {
            return Err(io::Error::new(ErrorKind::InvalidInput, "it is not a regular file"));
        }
        let position = file.seek(SeekFrom::End(0)).await?;
        let (lines, chunk) = (LineSplitter::default(), vec![0; CHUNK_BYTES].into());
        Ok(Self { path, file, position, lines, chunk, complete: outlet.now(), outlet })
    }

    /// Delivers the lines that are written from now on.
    pub(super) async fn follow(mut self) {
        loop {
            if let Err(stop) = self.read().await {
                return self.outlet.end(stop).await;
            }
            sleep(PERIOD).await;
        }
    }

    /// Reads the file to its end, and switches to the file that has replaced it.
    async fn read(&mut self) -> Result<(), LogStop> {
        let failed = |error: io::Error| LogStop::Because(format!("failed to read it: {error}"));
        let now = self.outlet.now();
        let successor = self.successor().await.map_err(failed)?;
        if successor.is_some() {
            // The writer's other processes may still be writing to this one.
            sleep(PERIOD).await;
        }
        if self.file.metadata().await.map_err(failed)?.len() < self.position {
            self.outlet.gap((self.complete, now), "the file was truncated").await?;
            self.begin_at_start().await.map_err(failed)?;
        }
        loop {
            let read = self.file.read(&mut self.chunk).await.map_err(failed)?;
            if read == 0 {
                break;
            }
            self.position += read as u64;
            let (mut rest, arrived) = (&self.chunk[..read], self.outlet.now());
            while let Some(line) = self.lines.next(&mut rest) {
                self.outlet.line(line, None, arrived).await?;
            }
        }
        if let Some(successor) = successor {
            if now > self.complete + TWO_ROTATIONS {
                let why = "the file may have been replaced more than once before it was read";
                self.outlet.gap((self.complete, now), why).await?;
            }
            self.file = successor;
            self.begin_at_start().await.map_err(failed)?;
        }
        self.complete = now;
        Ok(())
    }

    /// Returns the file that now has this one's name, once it has been written to. Until then, lines may be written to
    /// this one.
    async fn successor(&self) -> io::Result<Option<File>> {
        let named = match File::open(&self.path).await {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            named => named?,
        };
        let (new, own) = (named.metadata().await?, self.file.metadata().await?);
        let is_other = (new.dev(), new.ino()) != (own.dev(), own.ino());
        Ok((is_other && new.len() > 0).then_some(named))
    }

    async fn begin_at_start(&mut self) -> io::Result<()> {
        self.position = self.file.seek(SeekFrom::Start(0)).await?;
        self.lines.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::path::Path;

    use rolldrop_record::Clock;
    use tokio::sync::mpsc::{self, Receiver};
    use tokio::task::JoinSet;

    use super::super::{LogDelivery, LogDeliveryKind};
    use super::*;

    fn write(path: &Path, text: &str) {
        fs::File::options().append(true).create(true).open(path).unwrap().write_all(text.as_bytes()).unwrap();
    }

    async fn next(deliveries: &mut Receiver<LogDelivery>) -> String {
        match deliveries.recv().await.unwrap().kind {
            LogDeliveryKind::Line { written: None, bytes, .. } => String::from_utf8(bytes.into()).unwrap(),
            LogDeliveryKind::Gap { why, .. } => why.to_owned(),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn followed_file_survives_rotation() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("access.log");
        write(&path, "old\n");
        // A small channel, so that the file is read no faster than lines are received.
        let (sender, mut deliveries) = mpsc::channel(1);
        let outlet = LogOutlet::of(0, "file".to_owned(), Clock::start(), &sender);
        let file = FollowedFile::open(path.clone(), outlet).await.unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(file.follow());
        write(&path, "one\ntw");
        assert_eq!(next(&mut deliveries).await, "one");
        let rotated = dir.path().join("access.log.1");
        fs::rename(&path, &rotated).unwrap();
        // logrotate's `create`, before the writer switches to the new file.
        write(&path, "");
        write(&rotated, "o\nthree\n");
        assert_eq!(next(&mut deliveries).await, "two");
        write(&path, "four\n");
        write(&rotated, "and more\n");
        let rest = [next(&mut deliveries).await, next(&mut deliveries).await, next(&mut deliveries).await];
        assert_eq!(rest, ["three", "and more", "four"]);
        write(&path, "a longer line\n");
        assert_eq!(next(&mut deliveries).await, "a longer line");
        // logrotate's `copytruncate`.
        fs::File::create(&path).unwrap();
        write(&path, "five\n");
        assert_eq!(next(&mut deliveries).await, "the file was truncated");
        assert_eq!(next(&mut deliveries).await, "five");
    }

    #[tokio::test]
    async fn directory_is_not_a_log() {
        let dir = tempfile::tempdir().unwrap();
        let outlet = LogOutlet::of(0, "dir".to_owned(), Clock::start(), &mpsc::channel(1).0);
        let error = FollowedFile::open(dir.path().to_owned(), outlet).await.err().unwrap();
        assert_eq!(error.to_string(), "it is not a regular file");
    }
}
