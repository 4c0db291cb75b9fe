//! The pods' `log` subresource: what a container wrote.

use std::io::SeekFrom;
use std::path::PathBuf;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::stream;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use serde_json::Value;
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt};

use super::super::Shared;
use super::super::node::{container_log, pod_log_dir, previous_container_log};
use super::super::resource::Resource;
use super::super::status::Status;
use super::respond::{self, Answer, BodyError};
use super::route::Query;

/// How often a follower looks for more. Only followers cost anything.
const FOLLOW_PERIOD: Duration = Duration::from_millis(200);
const CHUNK_BYTES: usize = 64 * 1024;

/// Answers with the log of one container of a pod. Honoured are `container`, `follow`, `previous`,
/// `tailLines` and `limitBytes`. Logs hold no times, so what asks for these is refused.
pub(super) async fn answer(
    request: &Request<Incoming>,
    shared: &Shared,
    query: &Query,
    namespace: &str,
    name: &str,
) -> Result<Answer, Status> {
    if request.method() != Method::GET {
        return Err(Status::method_not_allowed());
    }
    let pod = shared.registry.get(Resource::Pods, namespace, name)?;
    let container = choose_container(&pod, query.get("container"))?;
    for field in ["sinceSeconds", "sinceTime"] {
        if !query.get(field).is_empty() {
            return Err(no_times(field));
        }
    }
    if query.is_set("timestamps") {
        return Err(no_times("timestamps"));
    }
    let number = |field: &str| match query.get(field) {
        "" => Ok(None),
        number => number
            .parse::<usize>()
            .map(Some)
            .map_err(|_| Status::bad_request(format!("{field} must be a number of at least 0: {number:?}"))),
    };
    let (tail_lines, limit_bytes) = (number("tailLines")?, number("limitBytes")?);

    let uid = pod["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
    let dir = pod_log_dir(&shared.log_dir, namespace, name, &uid);
    let previous = query.is_set("previous");
    let path =
        if previous { previous_container_log(&dir, &container) } else { container_log(&dir, &container) };
    let follow = query.is_set("follow") && !previous;
    if !tokio::fs::try_exists(&path).await.unwrap_or(false) {
        let waiting = state_of(&pod, &container)["waiting"]["reason"].as_str();
        match waiting {
            _ if previous => {
                let message =
                    format!("previous terminated container {container:?} in pod {name:?} not found");
                return Err(Status::bad_request(message));
            }
            Some(reason) if !follow => {
                let message =
                    format!("container {container:?} in pod {name:?} is waiting to start: {reason}");
                return Err(Status::bad_request(message));
            }
            // It is about to write.
            _ => {}
        }
    }
    let position = match tail_lines {
        Some(lines) => tail_start(&path, lines).await,
        None => 0,
    };
    let reader = Reader {
        file: None,
        path,
        position,
        limit: limit_bytes.unwrap_or(usize::MAX),
        follow,
        shared: shared.clone(),
        restarts: restarts_of(&pod, &container),
        container,
        pod: (namespace.to_owned(), name.to_owned(), uid),
    };
    let chunks = stream::unfold(reader, |mut reader| async {
        let chunk = reader.next_chunk().await?;
        Some((Ok::<_, BodyError>(Frame::data(chunk)), reader))
    });
    let body = StreamBody::new(chunks).boxed_unsync();
    Ok(respond::streaming(StatusCode::OK, "text/plain", body))
}

fn no_times(field: &str) -> Status {
    Status::bad_request(format!("{field} is not supported by this cluster: its logs hold no times"))
}

fn choose_container(pod: &Value, wanted: &str) -> Result<String, Status> {
    let names = |list: &str| {
        let containers = pod["spec"][list].as_array().into_iter().flatten();
        containers.filter_map(|container| container["name"].as_str()).collect::<Vec<_>>()
    };
    let (mains, inits) = (names("containers"), names("initContainers"));
    let pod_name = pod["metadata"]["name"].as_str().unwrap_or_default();
    if let ("", [only]) = (wanted, &mains[..]) {
        return Ok((*only).to_owned());
    }
    if wanted.is_empty() {
        let mut message = format!(
            "a container name must be specified for pod {pod_name}, choose one of: [{}]",
            mains.join(" ")
        );
        if !inits.is_empty() {
            message.push_str(&format!(" or one of the init containers: [{}]", inits.join(" ")));
        }
        return Err(Status::bad_request(message));
    }
    let found = mains.iter().chain(&inits).find(|name| **name == wanted);
    found
        .map(|name| (*name).to_owned())
        .ok_or_else(|| Status::bad_request(format!("container {wanted} is not valid for pod {pod_name}")))
}

/// What the pod's status says of a container.
fn status_of<'a>(pod: &'a Value, container: &str) -> &'a Value {
    let lists = ["containerStatuses", "initContainerStatuses"];
    let mut all = lists.iter().flat_map(|list| pod["status"][list].as_array().into_iter().flatten());
    all.find(|status| status["name"] == container).unwrap_or(&Value::Null)
}

fn state_of<'a>(pod: &'a Value, container: &str) -> &'a Value {
    &status_of(pod, container)["state"]
}

/// Where the last `lines` lines begin.
async fn tail_start(path: &PathBuf, lines: usize) -> u64 {
    let text = tokio::fs::read(path).await.unwrap_or_default();
    let complete = text.strip_suffix(b"\n").unwrap_or(&text);
    let mut ends =
        complete.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
    let start = match lines {
        0 => text.len(),
        lines => ends.nth(lines - 1).unwrap_or(0),
    };
    start as u64
}

fn restarts_of(pod: &Value, container: &str) -> i64 {
    status_of(pod, container)["restartCount"].as_i64().unwrap_or(0)
}

struct Reader {
    file: Option<File>,
    path: PathBuf,
    /// How far the file has been read.
    position: u64,
    /// How many bytes may still be sent.
    limit: usize,
    follow: bool,
    shared: Shared,
    container: String,
    /// The container's number of restarts when its run was chosen.
    restarts: i64,
    /// Namespace, name and uid.
    pod: (String, String, String),
}

impl Reader {
    /// The next piece of the log; a follower waits for it until the container has ended.
    async fn next_chunk(&mut self) -> Option<Bytes> {
        loop {
            // Asked before reading, so that nothing is missed that was written until the end.
            let ended = !self.follow || self.run_has_ended();
            if self.limit == 0 {
                return None;
            }
            if let Some(mut chunk) = self.read().await {
                chunk.truncate(self.limit);
                self.limit -= chunk.len();
                return Some(chunk);
            }
            if ended {
                return None;
            }
            tokio::select! {
                () = tokio::time::sleep(FOLLOW_PERIOD) => {}
                () = self.shared.stop.cancelled() => return None,
            }
        }
    }

    async fn read(&mut self) -> Option<Bytes> {
        let file = match &mut self.file {
            Some(file) => file,
            None => {
                let mut file = File::open(&self.path).await.ok()?;
                file.seek(SeekFrom::Start(self.position)).await.ok()?;
                self.file.insert(file)
            }
        };
        // A log that has become shorter was put aside, and goes on from its new beginning.
        if self.follow && file.metadata().await.is_ok_and(|log| log.len() < self.position) {
            file.seek(SeekFrom::Start(0)).await.ok()?;
            self.position = 0;
        }
        let mut chunk = BytesMut::with_capacity(CHUNK_BYTES);
        let read = file.read_buf(&mut chunk).await.ok()?;
        self.position += read as u64;
        (read > 0).then(|| chunk.freeze())
    }

    fn run_has_ended(&self) -> bool {
        let (namespace, name, uid) = &self.pod;
        let Ok(pod) = self.shared.registry.get(Resource::Pods, namespace, name) else { return true };
        pod["metadata"]["uid"] != **uid
            || matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
            || state_of(&pod, &self.container)["terminated"].is_object()
            || restarts_of(&pod, &self.container) != self.restarts
    }
}
