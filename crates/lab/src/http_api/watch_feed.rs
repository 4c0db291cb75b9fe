//! Watches: streams of events, one JSON object per line, each sent as soon as it occurs.
//!
//! Events that are already pending are sent together. A watcher that does not read takes up no more than one chunk of
//! events and a cursor into the history.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{FutureExt, stream};
use http::StatusCode;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::super::registry::{ObjectWatch, WatchEvent, WatchEventType, WatchFrom};
use super::super::resource::Resource;
use super::super::selector::ObjectSelection;
use super::super::status::Status;
use super::ApiServerState;
use super::present::Presentation;
use super::query::Query;
use super::respond::{self, ApiResponse, BodyError};

/// Default duration of a watch. Clients reconnect and continue from the last version they received.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(45 * 60);
/// Maximum total size of events sent together.
const CHUNK_BYTES: usize = 32 * 1024;

/// Starts a watch.
pub(super) fn answer(
    server: &Arc<ApiServerState>,
    query: &Query,
    presentation: Presentation,
    resource: Resource,
    namespace: Option<&str>,
    selection: ObjectSelection,
) -> Result<ApiResponse, Status> {
    let bookmarks = query.is_set("allowWatchBookmarks");
    let initial_events = query.is_set("sendInitialEvents");
    let from = match query.get("resourceVersion") {
        "" | "0" => WatchFrom::Existing,
        _ if initial_events => WatchFrom::Existing,
        version => WatchFrom::Version(
            version
                .parse()
                .map_err(|_| Status::bad_request(format!("invalid resource version: {version:?}")))?,
        ),
    };
    let timeout = match query.get("timeoutSeconds") {
        "" | "0" => DEFAULT_TIMEOUT,
        seconds => Duration::from_secs(
            seconds
                .parse::<u32>()
                .map_err(|_| Status::bad_request(format!("invalid timeoutSeconds: {seconds:?}")))?
                .into(),
        ),
    };
    let feed = WatchFeed {
        watch: server.shared.registry.watch(resource, namespace, selection, from)?,
        presentation,
        resource,
        ends_at: Instant::now() + timeout,
        next_bookmark: bookmarks.then(|| Instant::now() + server.shared.config.api_server.bookmark_period),
        initial_events_pending: initial_events && bookmarks,
        is_first: true,
        server: Arc::clone(server),
    };
    let chunks = stream::unfold(Some(feed), |feed| async {
        let (chunk, feed) = feed?.next_chunk().await?;
        Some((Ok::<_, BodyError>(Frame::data(chunk)), feed))
    });
    Ok(respond::streaming(StatusCode::OK, "application/json", StreamBody::new(chunks).boxed_unsync()))
}

struct WatchFeed {
    watch: ObjectWatch,
    presentation: Presentation,
    resource: Resource,
    ends_at: Instant,
    next_bookmark: Option<Instant>,
    /// True if the bookmark that marks the end of the initial events has yet to be sent.
    initial_events_pending: bool,
    /// True if nothing has been sent yet.
    is_first: bool,
    server: Arc<ApiServerState>,
}

impl WatchFeed {
    /// Returns the next lines, and also the feed if more lines may follow.
    async fn next_chunk(mut self) -> Option<(Bytes, Option<Self>)> {
        loop {
            if self.initial_events_pending
                && let Some(version) = self.watch.caught_up()
            {
                self.initial_events_pending = false;
                let bookmark = self.bookmark(version, json!({"k8s.io/initial-events-end": "true"}));
                return Some((bookmark, Some(self)));
            }
            let wakes_at = self.next_bookmark.map_or(self.ends_at, |bookmark| bookmark.min(self.ends_at));
            tokio::select! {
                biased;
                () = self.server.shared.stop.cancelled() => return None,
                event = self.watch.next() => return Some(self.lines(event)),
                () = tokio::time::sleep_until(wakes_at) => {
                    if Instant::now() >= self.ends_at {
                        return None;
                    }
                    self.next_bookmark = Some(Instant::now() + self.server.shared.config.api_server.bookmark_period);
                    if let Some(version) = self.watch.caught_up() {
                        return Some((self.bookmark(version, Value::Null), Some(self)));
                    }
                }
            }
        }
    }

    /// Serialises an event and any further pending events, one per line.
    fn lines(mut self, event: Result<WatchEvent, Status>) -> (Bytes, Option<Self>) {
        let mut chunk = Vec::new();
        let mut next = Some(event);
        while let Some(event) = next {
            match event {
                Ok(event) => self.write(&event, &mut chunk),
                Err(status) => {
                    write_line("ERROR", &status.to_json(), &mut chunk);
                    return (chunk.into(), None);
                }
            }
            let more = chunk.len() < CHUNK_BYTES && Instant::now() < self.ends_at;
            next = if more { self.watch.next().now_or_never() } else { None };
        }
        (chunk.into(), Some(self))
    }

    fn write(&mut self, event: &WatchEvent, chunk: &mut Vec<u8>) {
        let event_type = match event.event_type {
            WatchEventType::Added => "ADDED",
            WatchEventType::Modified => "MODIFIED",
            WatchEventType::Deleted => "DELETED",
        };
        if self.presentation.is_whole() {
            write_line(event_type, &event.object, chunk);
        } else {
            let shown = self.presentation.event_object(
                &self.server.shared,
                self.resource,
                &event.object,
                self.is_first,
            );
            write_line(event_type, &shown, chunk);
        }
        self.is_first = false;
    }

    fn bookmark(&self, version: u64, annotations: Value) -> Bytes {
        let mut metadata = json!({"resourceVersion": version.to_string(), "creationTimestamp": null});
        if !annotations.is_null() {
            metadata["annotations"] = annotations;
        }
        let bookmark = self.presentation.bookmark(self.resource, metadata);
        let mut line = Vec::new();
        write_line("BOOKMARK", &bookmark, &mut line);
        line.into()
    }
}

fn write_line(event_type: &str, object: &Value, chunk: &mut Vec<u8>) {
    chunk.extend_from_slice(b"{\"type\":\"");
    chunk.extend_from_slice(event_type.as_bytes());
    chunk.extend_from_slice(b"\",\"object\":");
    serde_json::to_writer(&mut *chunk, object).expect("a value is JSON");
    chunk.extend_from_slice(b"}\n");
}
