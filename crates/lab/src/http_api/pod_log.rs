//! The `log` subresource for pods: the output of a container.

use std::io::SeekFrom;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::stream;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use jiff::Timestamp;
use serde_json::Value;
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt};

use super::super::logs::{LogEntry, container_log, next_log, pod_log_dir, previous_container_log};
use super::super::object_fields::{is_terminal, uid};
use super::super::resource::Resource;
use super::super::shared::ClusterContext;
use super::super::status::{FieldError, Status};
use super::super::value::{self, list, number};
use super::query::Query;
use super::respond::{self, ApiResponse, BodyError};

/// Interval at which a follow request polls for more output. Other requests do not poll.
const FOLLOW_PERIOD: Duration = Duration::from_millis(200);
const CHUNK_BYTES: usize = 64 * 1024;

/// Serves the log of one container in a pod.
pub(super) async fn answer(
    request: &Request<Incoming>,
    shared: &ClusterContext,
    query: &Query,
    namespace: &str,
    name: &str,
) -> Result<ApiResponse, Status> {
    if request.method() != Method::GET {
        return Err(Status::method_not_allowed());
    }
    let pod = shared.registry.get(Resource::Pods, namespace, name)?;
    let container = choose_container(&pod, query.get("container"))?;
    let options = PodLogOptions::parse(query, shared.clock.now().unix_ns())?;
    let uid = uid(&pod).to_owned();
    let dir = pod_log_dir(&shared.log_dir, namespace, name, &uid);
    let previous = query.is_set("previous");
    let status = status_of(&pod, &container);
    // While a container waits to be restarted, the run that has just ended counts as the previous one, although its log
    // is still the current log (`validateContainerLogStatus` in pkg/kubelet/kubelet_pods.go).
    let is_between_runs =
        status["state"]["waiting"].is_object() && status["lastState"]["terminated"].is_object();
    let path = if previous && !is_between_runs {
        previous_container_log(&dir, &container)
    } else {
        container_log(&dir, &container)
    };
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
            // The container has not written anything yet.
            _ => {}
        }
    }
    let position = match options.tail_lines {
        Some(lines) => tail_start(&path, lines).await,
        None => 0,
    };
    let reader = LogReader {
        file: None,
        path,
        position,
        entries: BytesMut::new(),
        within_line: false,
        options,
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

/// Log options: selection and format (`PodLogOptions`).
struct PodLogOptions {
    tail_lines: Option<usize>,
    /// Remaining number of bytes to send.
    limit_bytes: usize,
    /// Start time. Earlier entries are omitted.
    since: Option<Timestamp>,
    timestamps: bool,
}

impl PodLogOptions {
    fn parse(query: &Query, now_unix_ns: i64) -> Result<Self, Status> {
        let number = |field: &str| match query.get(field) {
            "" => Ok(None),
            text => match text.parse::<u32>() {
                Ok(number) => Ok(Some(number)),
                Err(_) => {
                    Err(Status::bad_request(format!("invalid {field}: {text:?}; use a non-negative number")))
                }
            },
        };
        let since_time = match query.get("sinceTime") {
            "" => None,
            text => Some(text.parse::<Timestamp>().map_err(|_| {
                Status::bad_request(format!("invalid sinceTime: {text:?}; use an RFC 3339 time"))
            })?),
        };
        let since_seconds = number("sinceSeconds")?;
        if since_seconds.is_some() && since_time.is_some() {
            let why = "at most one of `sinceTime` or `sinceSeconds` may be specified";
            let error = FieldError::forbidden("", why);
            return Err(Status::invalid_options("PodLogOptions", &[error]));
        }
        let before = |seconds: u32| {
            Timestamp::from_nanosecond(i128::from(now_unix_ns) - i128::from(seconds) * 1_000_000_000).ok()
        };
        Ok(Self {
            tail_lines: number("tailLines")?.map(|lines| lines as usize),
            limit_bytes: number("limitBytes")?.map_or(usize::MAX, |bytes| bytes as usize),
            since: since_time.or_else(|| since_seconds.and_then(before)),
            timestamps: query.is_set("timestamps"),
        })
    }
}

fn choose_container(pod: &Value, wanted: &str) -> Result<String, Status> {
    let names = |list: &str| {
        let containers = value::list(&pod["spec"][list]).iter();
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

/// Returns a container's entry in the pod status, or null if there is none.
fn status_of<'a>(pod: &'a Value, container: &str) -> &'a Value {
    let lists = ["containerStatuses", "initContainerStatuses"];
    let mut all = lists.iter().flat_map(|name| list(&pod["status"][name]));
    all.find(|status| status["name"] == container).unwrap_or(&Value::Null)
}

fn state_of<'a>(pod: &'a Value, container: &str) -> &'a Value {
    &status_of(pod, container)["state"]
}

/// Returns the offset where the last `lines` lines begin. A line may consist of several entries.
async fn tail_start(path: &PathBuf, lines: usize) -> u64 {
    let log = tokio::fs::read(path).await.unwrap_or_default();
    let (mut starts, mut position, mut is_start) = (Vec::new(), 0, true);
    for entry in log.split_inclusive(|byte| *byte == b'\n') {
        if is_start {
            starts.push(position);
        }
        position += entry.len() as u64;
        is_start = LogEntry::parse(entry).is_none_or(|entry| entry.ends_line);
    }
    match starts.len().checked_sub(lines) {
        Some(first) => starts.get(first).copied().unwrap_or(position),
        None => 0,
    }
}

fn restarts_of(pod: &Value, container: &str) -> i64 {
    number(&status_of(pod, container)["restartCount"])
}

struct LogReader {
    file: Option<File>,
    path: PathBuf,
    /// Start offset in the first file.
    position: u64,
    /// Bytes read so far that are not yet part of a complete entry.
    entries: BytesMut,
    /// True if the last entry did not complete its line.
    within_line: bool,
    options: PodLogOptions,
    follow: bool,
    shared: ClusterContext,
    container: String,
    /// Restart count of the container when the request arrived.
    restarts: i64,
    /// Namespace, name and uid.
    pod: (String, String, String),
}

impl LogReader {
    /// Returns the next chunk of the log. When following, waits for more output until the container has terminated.
    async fn next_chunk(&mut self) -> Option<Bytes> {
        loop {
            // Check this before reading, or the last output before termination could be missed.
            let ended = !self.follow || self.run_has_ended();
            let next_file = self.file_after_this().await;
            if self.options.limit_bytes == 0 {
                return None;
            }
            if self.read().await {
                let mut chunk = self.shown();
                if !chunk.is_empty() {
                    chunk.truncate(self.options.limit_bytes);
                    self.options.limit_bytes -= chunk.len();
                    return Some(chunk);
                }
                continue;
            }
            if let Some(file) = next_file {
                self.file = Some(file);
                continue;
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

    /// Returns the file to continue with when following, if the current file was rotated.
    async fn file_after_this(&self) -> Option<File> {
        let inode = self.file.as_ref().filter(|_| self.follow)?.metadata().await.ok()?.ino();
        File::open(next_log(&self.path, inode)?).await.ok()
    }

    /// Reads more bytes, and returns true if there were any.
    async fn read(&mut self) -> bool {
        let file = match &mut self.file {
            Some(file) => file,
            None => {
                let Ok(mut file) = File::open(&self.path).await else { return false };
                if file.seek(SeekFrom::Start(self.position)).await.is_err() {
                    return false;
                }
                self.file.insert(file)
            }
        };
        self.entries.reserve(CHUNK_BYTES);
        matches!(file.read_buf(&mut self.entries).await, Ok(1..))
    }

    /// Removes the complete entries from the buffer, and returns them in the requested format.
    fn shown(&mut self) -> Bytes {
        let mut shown = Vec::new();
        while let Some(end) = self.entries.iter().position(|byte| *byte == b'\n') {
            let entry = self.entries.split_to(end + 1);
            let Some(entry) = LogEntry::parse(&entry[..end]) else { continue };
            let begins_line = !std::mem::replace(&mut self.within_line, !entry.ends_line);
            if self
                .options
                .since
                .is_some_and(|since| entry.time.parse().is_ok_and(|time: Timestamp| time < since))
            {
                continue;
            }
            if self.options.timestamps && begins_line {
                shown.extend_from_slice(entry.time.as_bytes());
                shown.push(b' ');
            }
            shown.extend_from_slice(entry.text);
            if entry.ends_line {
                shown.push(b'\n');
            }
        }
        shown.into()
    }

    fn run_has_ended(&self) -> bool {
        let (namespace, name, uid) = &self.pod;
        let Ok(pod) = self.shared.registry.get(Resource::Pods, namespace, name) else { return true };
        pod["metadata"]["uid"] != **uid
            || is_terminal(&pod)
            || state_of(&pod, &self.container)["terminated"].is_object()
            || restarts_of(&pod, &self.container) != self.restarts
    }
}
