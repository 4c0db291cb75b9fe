//! Serves a load worker's rows to the collector: the live stream, and the closed parts.

use std::io;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use futures::{TryStreamExt, stream};
use http::header::{ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, RANGE};
use http::{HeaderMap, Method, Response, StatusCode, Uri};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio_util::io::ReaderStream;

use super::LIVE_PATH;
use super::part_shelf::{Listing, PARTS_PATH, Shelf};
use super::worker_response::{WorkerResponse, failed, json, lines, number, text};
use crate::live_feed::{LIVE_ROWS, LiveJournal, LiveLine};

/// Size of the pieces in which a part is read, in bytes.
const PIECE_BYTES: usize = 64 * 1024;

/// A load worker's rows, for a collector to fetch. Clones share the same state.
#[derive(Clone, Debug)]
pub struct RowHandover {
    journal: Arc<LiveJournal>,
    shelf: Arc<Shelf>,
}

impl RowHandover {
    /// Creates a handover for the rows that the load records in this run directory.
    pub fn new(run_dir: &Path) -> Self {
        Self { journal: Arc::default(), shelf: Arc::new(Shelf::new(run_dir)) }
    }

    /// Returns the journal that the load writes while it runs.
    pub fn journal(&self) -> Arc<LiveJournal> {
        Arc::clone(&self.journal)
    }

    /// Responds to a request; returns `None` if the request is not about rows.
    pub async fn answer(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Option<WorkerResponse> {
        let path = uri.path();
        let part = path.strip_prefix(PARTS_PATH).and_then(|rest| rest.strip_prefix('/'));
        Some(match (method, path, part) {
            (&Method::GET, LIVE_PATH, _) => self.live(uri.query().unwrap_or_default()),
            (&Method::GET, PARTS_PATH, _) => self.parts().await,
            (&Method::GET, _, Some(name)) => self.part(name, headers).await,
            _ => return None,
        })
    }

    fn live(&self, query: &str) -> WorkerResponse {
        let rows = number(query, "rows").and_then(|rows| usize::try_from(rows).ok()).unwrap_or(LIVE_ROWS);
        let from = number(query, "from").unwrap_or(0);
        let journal = Arc::clone(&self.journal);
        lines(stream::unfold(Some(from), move |from| {
            let journal = Arc::clone(&journal);
            async move {
                let line = journal.next(from?, rows).await?;
                let next = if let LiveLine::Batch(batch) = &line { Some(batch.n + 1) } else { None };
                let bytes = serde_json::to_vec(&line).map_err(io::Error::from).map(|mut bytes| {
                    bytes.push(b'\n');
                    Bytes::from(bytes)
                });
                Some((bytes, next))
            }
        }))
    }

    async fn parts(&self) -> WorkerResponse {
        // Must be read first; a part that is closed in the meantime is listed next time.
        let complete = self.journal.has_ended();
        let shelf = Arc::clone(&self.shelf);
        match tokio::task::spawn_blocking(move || shelf.list()).await {
            Ok(Ok(parts)) => json(&Listing { complete, parts }),
            Ok(Err(e)) => failed(e),
            Err(e) => failed(e),
        }
    }

    async fn part(&self, name: &str, headers: &HeaderMap) -> WorkerResponse {
        let Some((path, size)) = self.shelf.find(name) else {
            return text(StatusCode::NOT_FOUND, "no such part\n");
        };
        let from = first_byte(headers);
        if from.is_some_and(|from| from >= size) {
            return text(StatusCode::RANGE_NOT_SATISFIABLE, "the part is shorter than that\n");
        }
        let first = from.unwrap_or(0);
        let opened = async {
            let mut file = tokio::fs::File::open(&path).await?;
            file.seek(io::SeekFrom::Start(first)).await?;
            Ok::<_, io::Error>(file.take(size - first))
        };
        let file = match opened.await {
            Ok(file) => file,
            Err(e) => return failed(e),
        };
        let pieces = ReaderStream::with_capacity(file, PIECE_BYTES).map_ok(Frame::data);
        let mut answer = Response::builder()
            .header(CONTENT_TYPE, "application/vnd.apache.parquet")
            .header(CONTENT_LENGTH, size - first)
            .header(ACCEPT_RANGES, "bytes");
        if from.is_some() {
            answer = answer
                .status(StatusCode::PARTIAL_CONTENT)
                .header(CONTENT_RANGE, format!("bytes {first}-{}/{size}", size.saturating_sub(1)));
        }
        let answer = answer.body(StreamBody::new(pieces).boxed_unsync());
        answer.unwrap_or_else(failed)
    }
}

/// Returns the first requested byte; `None` if there is no range or its form is unknown.
fn first_byte(headers: &HeaderMap) -> Option<u64> {
    headers.get(RANGE)?.to_str().ok()?.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok()
}
