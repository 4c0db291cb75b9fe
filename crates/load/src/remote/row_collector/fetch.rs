//! Fetches a worker's closed parts into the run directory.
//!
//! An incomplete part is stored under the name of an open part. If the connection breaks, the fetch resumes where it
//! stopped. The part gets its final name once it has the size, the digest and the number of rows that the worker
//! listed.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use futures::TryStreamExt;
use http::header::RANGE;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use ring::digest::{Context, SHA256};
use tokio::fs::{self, File};
use tokio::io::AsyncWriteExt;
use tokio::time::{Instant, sleep, timeout};

use super::limit::Bucket;
use crate::remote::part_shelf::{ListedPart, Listing, PARTS_PATH, hexadecimal};
use crate::remote::worker_link::{SILENCE_LIMIT, WorkerLink, WorkerLinkError};
use rolldrop_record::parts::{self, PartError};

/// Delay between attempts.
const RETRY: Duration = Duration::from_millis(500);
/// Time without any progress, over all attempts, after which the fetch is abandoned.
pub(super) const STALL_LIMIT: Duration = Duration::from_secs(60);
/// Maximum number of times that a part may differ from its listing.
const MOST_MISMATCHES: u32 = 3;

/// Reason why a worker's parts could not be fetched.
#[derive(Debug, thiserror::Error)]
pub(super) enum FetchError {
    #[error("no data arrived for {STALL_LIMIT:?}: {0}")]
    Stalled(String),
    #[error("it lists part {0:?}, which belongs to another worker")]
    Foreign(String),
    #[error("failed to fetch its part {name}: {why}")]
    Mismatch { name: String, why: String },
    #[error("failed to write {path}: {source}")]
    Write { path: PathBuf, source: io::Error },
}

/// Reason why one attempt failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failed {
    /// A retry may succeed.
    #[error("{0}")]
    ForNow(String),
    #[error(transparent)]
    ForGood(#[from] FetchError),
}

impl From<WorkerLinkError> for Failed {
    fn from(error: WorkerLinkError) -> Self {
        Self::ForNow(error.to_string())
    }
}

/// Everything needed to fetch one worker's parts.
pub(super) struct Fetch<'a> {
    pub(super) link: &'a WorkerLink,
    pub(super) run_dir: &'a Path,
    /// Sources whose parts the worker may have.
    pub(super) sources: &'a [String],
    pub(super) bucket: &'a Bucket,
}

impl Fetch<'_> {
    /// Fetches the closed parts that are still missing here, with one attempt each, and calls `is_there` for each part
    /// that is present.
    ///
    /// # Errors
    /// Returns an error when an attempt fails, without trying the remaining parts.
    pub(super) async fn closed(&self, mut is_there: impl FnMut(&ListedPart)) -> Result<(), Failed> {
        for part in &self.list().await?.parts {
            if !self.is_here(part) {
                let mut under_way = PartialDownload::begin(self.run_dir, part).await?;
                self.go_on(part, &mut under_way).await?;
            }
            is_there(part);
        }
        Ok(())
    }

    /// Fetches all missing parts after the load has ended, and calls `is_there` for each part that is present.
    ///
    /// # Errors
    /// Returns an error if the worker sends nothing more, or sends something other than what it listed.
    pub(super) async fn all(&self, mut is_there: impl FnMut(&ListedPart)) -> Result<(), FetchError> {
        let mut last = Instant::now();
        let listed = loop {
            match self.list().await {
                Ok(Listing { complete: true, parts }) => break parts,
                Ok(_) => pause(Failed::ForNow("its parts are not closed yet".to_owned()), last).await?,
                Err(why) => pause(why, last).await?,
            }
        };
        for part in &listed {
            if self.is_here(part) {
                is_there(part);
                continue;
            }
            let mut under_way = PartialDownload::begin(self.run_dir, part).await?;
            last = Instant::now();
            loop {
                let before = under_way.length;
                let fetched = self.go_on(part, &mut under_way).await;
                if under_way.length > before {
                    last = Instant::now();
                }
                match fetched {
                    Ok(()) => break,
                    Err(why) => pause(why, last).await?,
                }
            }
            is_there(part);
        }
        Ok(())
    }

    /// Returns true if a part was fetched before. Only then does a file with its name exist.
    fn is_here(&self, part: &ListedPart) -> bool {
        self.run_dir.join(&part.name).is_file()
    }

    async fn list(&self) -> Result<Listing, Failed> {
        let listing: Listing = self.link.json(PARTS_PATH).await?;
        let foreign = |part: &&ListedPart| {
            let is_own = |source: &str| self.sources.iter().any(|own| own == source);
            !part.source().is_some_and(is_own)
        };
        match listing.parts.iter().find(foreign) {
            Some(part) => Err(FetchError::Foreign(part.name.clone()).into()),
            None => Ok(listing),
        }
    }

    /// Fetches the missing bytes of a part.
    async fn go_on(&self, part: &ListedPart, under_way: &mut PartialDownload) -> Result<(), Failed> {
        if under_way.length < part.bytes {
            let request = Request::get(format!("{PARTS_PATH}/{}", part.name))
                .header(RANGE, format!("bytes={}-", under_way.length))
                .body(Bytes::new())
                .map_err(|e| Failed::ForNow(e.to_string()))?;
            let answer = self.link.open(request).await?;
            if answer.status() != StatusCode::PARTIAL_CONTENT {
                return Err(Failed::ForNow(format!("unexpected status {}", answer.status())));
            }
            let mut pieces = answer.into_body().into_data_stream();
            while under_way.length < part.bytes {
                let piece = timeout(SILENCE_LIMIT, pieces.try_next()).await;
                let piece = piece.map_err(|_| WorkerLinkError::Silent)?;
                let piece = piece.map_err(|e| Failed::ForNow(e.to_string()))?;
                let Some(piece) = piece else {
                    return Err(Failed::ForNow("the transfer broke off".to_owned()));
                };
                under_way.add(&piece).await?;
                self.bucket.take(piece.len()).await;
            }
        }
        under_way.end(part).await
    }
}

/// Waits before the next attempt. Returns an error if there should be none.
async fn pause(why: Failed, last: Instant) -> Result<(), FetchError> {
    match why {
        Failed::ForNow(why) if last.elapsed() >= STALL_LIMIT => Err(FetchError::Stalled(why)),
        Failed::ForNow(why) => {
            tracing::debug!(%why, "failed to fetch a load worker's rows");
            sleep(RETRY).await;
            Ok(())
        }
        Failed::ForGood(why) => Err(why),
    }
}

/// An incomplete part.
struct PartialDownload {
    path: PathBuf,
    file: File,
    digest: Context,
    length: u64,
    mismatches: u32,
}

impl PartialDownload {
    async fn begin(run_dir: &Path, part: &ListedPart) -> Result<Self, FetchError> {
        let path = run_dir.join(format!("{}.part", part.name));
        let created = async {
            if let Some(table) = path.parent() {
                fs::create_dir_all(table).await?;
            }
            File::create(&path).await
        };
        let file = created.await.map_err(|source| FetchError::Write { path: path.clone(), source })?;
        Ok(Self { path, file, digest: Context::new(&SHA256), length: 0, mismatches: 0 })
    }

    async fn add(&mut self, piece: &[u8]) -> Result<(), FetchError> {
        self.file.write_all(piece).await.map_err(|source| self.unwritten(source))?;
        self.digest.update(piece);
        self.length += piece.len() as u64;
        Ok(())
    }

    /// Gives the part its final name if it matches the worker's listing. Otherwise, the whole part must be fetched
    /// again.
    async fn end(&mut self, part: &ListedPart) -> Result<(), Failed> {
        self.file.flush().await.map_err(|source| self.unwritten(source))?;
        let sha256 = hexadecimal(self.digest.clone());
        let path = self.path.clone();
        let rows = tokio::task::spawn_blocking(move || parts::rows_in(&path)).await;
        let rows = rows.map_err(|e| Failed::ForNow(e.to_string()))?;
        let why = match rows {
            _ if (self.length, &sha256) != (part.bytes, &part.sha256) => {
                format!("received {} of {} bytes, or their SHA-256 differs", self.length, part.bytes)
            }
            Ok(rows) if rows == part.rows => {
                // Not done in a separate task, because a fetch that is dropped in the meantime must not rename the file
                // later.
                let renamed = std::fs::rename(&self.path, self.path.with_extension(""));
                return renamed.map_err(|source| self.unwritten(source).into());
            }
            Ok(rows) => format!("{rows} rows instead of {}", part.rows),
            Err(PartError::Parquet { source, .. }) => source.to_string(),
            Err(PartError::Io { source, .. }) => return Err(self.unwritten(source).into()),
        };
        self.mismatches += 1;
        if self.mismatches >= MOST_MISMATCHES {
            return Err(FetchError::Mismatch { name: part.name.clone(), why }.into());
        }
        self.file = File::create(&self.path).await.map_err(|source| self.unwritten(source))?;
        (self.digest, self.length) = (Context::new(&SHA256), 0);
        Err(Failed::ForNow(why))
    }

    fn unwritten(&self, source: io::Error) -> FetchError {
        FetchError::Write { path: self.path.clone(), source }
    }
}
