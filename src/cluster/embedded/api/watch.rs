//! Watches: one JSON object a line, each sent as soon as it happens.

use std::time::Duration;

use bytes::Bytes;
use futures::stream;
use http::StatusCode;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::super::Shared;
use super::super::registry::{Watch, WatchEventType, WatchFrom};
use super::super::resource::Resource;
use super::super::selector::Selection;
use super::super::status::Status;
use super::respond::{self, Answer, BodyError};
use super::route::Query;

/// How long a watch lasts that does not say; clients come back from where they were.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(45 * 60);
/// How often a watch that allows it is told how far it has seen.
const BOOKMARK_PERIOD: Duration = Duration::from_secs(60);

/// Begins a watch.
pub(super) fn answer(
    shared: &Shared,
    query: &Query,
    resource: Resource,
    namespace: Option<&str>,
    selection: Selection,
) -> Result<Answer, Status> {
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
                .parse()
                .map_err(|_| Status::bad_request(format!("invalid timeoutSeconds: {seconds:?}")))?,
        ),
    };
    let feed = Feed {
        watch: shared.registry.watch(resource, namespace, selection, from)?,
        resource,
        ends_at: Instant::now() + timeout,
        next_bookmark: query.is_set("allowWatchBookmarks").then(|| Instant::now() + BOOKMARK_PERIOD),
        initial_events_pending: initial_events,
        shared: shared.clone(),
    };
    let lines = stream::unfold(Some(feed), |feed| async {
        let (line, feed) = feed?.next_line().await?;
        Some((Ok::<_, BodyError>(Frame::data(line)), feed))
    });
    Ok(respond::streaming(StatusCode::OK, "application/json", StreamBody::new(lines).boxed_unsync()))
}

struct Feed {
    watch: Watch,
    resource: Resource,
    ends_at: Instant,
    next_bookmark: Option<Instant>,
    /// Whether the bookmark that ends the initial events is still to be sent.
    initial_events_pending: bool,
    shared: Shared,
}

impl Feed {
    /// The next line, and the feed unless that line is the last.
    async fn next_line(mut self) -> Option<(Bytes, Option<Self>)> {
        loop {
            if self.initial_events_pending
                && let Some(version) = self.watch.caught_up()
            {
                self.initial_events_pending = false;
                return Some((
                    self.bookmark(version, json!({"k8s.io/initial-events-end": "true"})),
                    Some(self),
                ));
            }
            let wakes_at = self.next_bookmark.map_or(self.ends_at, |bookmark| bookmark.min(self.ends_at));
            tokio::select! {
                biased;
                () = self.shared.stop.cancelled() => return None,
                event = self.watch.next() => {
                    return Some(match event {
                        Ok(event) => {
                            let event_type = match event.event_type {
                                WatchEventType::Added => "ADDED",
                                WatchEventType::Modified => "MODIFIED",
                                WatchEventType::Deleted => "DELETED",
                            };
                            (line(event_type, &event.object), Some(self))
                        }
                        Err(status) => (line("ERROR", &status.to_json()), None),
                    });
                }
                () = tokio::time::sleep_until(wakes_at) => {
                    if Instant::now() >= self.ends_at {
                        return None;
                    }
                    self.next_bookmark = Some(Instant::now() + BOOKMARK_PERIOD);
                    if let Some(version) = self.watch.caught_up() {
                        return Some((self.bookmark(version, Value::Null), Some(self)));
                    }
                }
            }
        }
    }

    fn bookmark(&self, version: u64, annotations: Value) -> Bytes {
        let mut object = json!({
            "kind": self.resource.kind(),
            "apiVersion": self.resource.api_version(),
            "metadata": {"resourceVersion": version.to_string(), "creationTimestamp": null},
        });
        if !annotations.is_null() {
            object["metadata"]["annotations"] = annotations;
        }
        line("BOOKMARK", &object)
    }
}

fn line(event_type: &str, object: &Value) -> Bytes {
    let mut line = format!("{{\"type\":\"{event_type}\",\"object\":{object}}}").into_bytes();
    line.push(b'\n');
    line.into()
}
