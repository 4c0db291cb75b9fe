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
use super::super::node::pod_log_dir;
use super::super::resource::Resource;
use super::super::status::Status;
use super::respond::{self, Answer, BodyError};
use super::route::Query;

/// How often a follower looks for more. Only followers cost anything.
const FOLLOW_PERIOD: Duration = Duration::from_millis(200);
const CHUNK_BYTES: usize = 64 * 1024;

/// Answers with the log of one container of a pod: `container`, `tailLines` and `follow` are
/// honoured.
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
    let uid = pod["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
    let path = pod_log_dir(&shared.log_dir, namespace, name, &uid).join(format!("{container}.log"));
    let start = match query.get("tailLines") {
        "" => 0,
        lines => {
            let lines =
                lines.parse().map_err(|_| Status::bad_request(format!("invalid tailLines: {lines:?}")))?;
            tail_start(&path, lines).await
        }
    };
    let reader = Reader {
        file: None,
        path,
        start,
        follow: query.is_set("follow"),
        shared: shared.clone(),
        pod: (namespace.to_owned(), name.to_owned(), uid),
    };
    let chunks = stream::unfold(reader, |mut reader| async {
        let chunk = reader.next_chunk().await?;
        Some((Ok::<_, BodyError>(Frame::data(chunk)), reader))
    });
    let body = StreamBody::new(chunks).boxed_unsync();
    Ok(respond::streaming(StatusCode::OK, "text/plain", body))
}

fn choose_container(pod: &Value, wanted: &str) -> Result<String, Status> {
    let list = |list: &str| pod["spec"][list].as_array().into_iter().flatten();
    let names: Vec<_> = list("containers")
        .chain(list("initContainers"))
        .filter_map(|container| container["name"].as_str())
        .collect();
    let name = if wanted.is_empty() { names.first() } else { names.iter().find(|name| **name == wanted) };
    name.map(|name| (*name).to_owned()).ok_or_else(|| {
        Status::bad_request(format!("container {wanted:?} is not valid for the pod; it has {names:?}"))
    })
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

struct Reader {
    file: Option<File>,
    path: PathBuf,
    start: u64,
    follow: bool,
    shared: Shared,
    /// Namespace, name and uid.
    pod: (String, String, String),
}

impl Reader {
    /// The next piece of the log; a follower waits for it until the pod has ended.
    async fn next_chunk(&mut self) -> Option<Bytes> {
        loop {
            // Asked before reading, so that nothing is missed that was written until the end.
            let ended = !self.follow || self.pod_ended();
            if let Some(chunk) = self.read().await {
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
        if self.file.is_none() {
            let mut file = File::open(&self.path).await.ok()?;
            file.seek(SeekFrom::Start(self.start)).await.ok()?;
            self.file = Some(file);
        }
        let mut chunk = BytesMut::with_capacity(CHUNK_BYTES);
        let read = self.file.as_mut()?.read_buf(&mut chunk).await.ok()?;
        (read > 0).then(|| chunk.freeze())
    }

    fn pod_ended(&self) -> bool {
        let (namespace, name, uid) = &self.pod;
        let pod = self.shared.registry.get(Resource::Pods, namespace, name);
        !pod.is_ok_and(|pod| {
            pod["metadata"]["uid"] == **uid
                && !matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
        })
    }
}
