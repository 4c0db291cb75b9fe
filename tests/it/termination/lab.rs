//! A separate cluster for the termination cases, watched from outside while they run.
//!
//! The binary runs as a separate process. There are three kinds of evidence for its actions: raw watches of its API,
//! stamped on arrival; the logs that the pods' programs write themselves; and the kernel's report that a process has
//! exited.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::TryStreamExt;
use http::Request;
use kube::Client;
use kube::api::WatchEvent;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;

pub(crate) use crate::harness::LIMIT;
use crate::lab::Cluster;

/// Interval at which timer lateness on this machine is measured.
const TICK: Duration = Duration::from_millis(20);

/// Interval at which the API's response time is measured.
const ASK: Duration = Duration::from_millis(250);

/// Number of times that processes wait for a CPU during one API response.
const WAITS_OF_AN_ANSWER: f64 = 5.0;

/// Maximum number of times that processes wait for a CPU in a timed sequence.
const WAITS: f64 = 20.0;

/// Returns the time in Unix nanoseconds, as the sample server and `date +%s%N` write it.
pub(crate) fn now_ns() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("a date after 1970");
    i64::try_from(since.as_nanos()).expect("a date before 2262")
}

/// One line of a watch.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    /// Arrival time, in Unix nanoseconds.
    pub(crate) at_ns: i64,
    /// `ADDED`, `MODIFIED`, `DELETED`.
    pub(crate) event: &'static str,
    /// The object, with its kind.
    pub(crate) object: Value,
}

impl Seen {
    pub(crate) fn kind(&self) -> &str {
        self.object["kind"].as_str().unwrap_or_default()
    }

    pub(crate) fn name(&self) -> &str {
        self.object["metadata"]["name"].as_str().unwrap_or_default()
    }

    pub(crate) fn namespace(&self) -> &str {
        self.object["metadata"]["namespace"].as_str().unwrap_or_default()
    }
}

/// An API response.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    /// Time at which the request was sent.
    pub(crate) sent_ns: i64,
    /// Time at which the whole response had arrived.
    pub(crate) answered_ns: i64,
    pub(crate) status: u16,
    pub(crate) headers: http::HeaderMap,
    pub(crate) body: Value,
}

/// Events of the watches so far, by namespace.
#[derive(Default)]
struct Journal {
    seen: Mutex<HashMap<String, Vec<Seen>>>,
    news: watch::Sender<()>,
}

impl Journal {
    fn add(&self, seen: Seen) {
        let mut all = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(seen.namespace().to_owned()).or_default().push(seen);
        drop(all);
        self.news.send_replace(());
    }

    /// Calls `look` with the events of a namespace.
    fn look<T>(&self, namespace: &str, look: impl FnOnce(&[Seen]) -> T) -> T {
        let all = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        look(all.get(namespace).map(Vec::as_slice).unwrap_or_default())
    }
}

/// Periods spent waiting for a CPU: the end of each, and its duration in seconds.
type Late = std::sync::Arc<Mutex<Vec<(i64, f64)>>>;

/// A cluster under observation.
pub(crate) struct Lab {
    /// Dataplane that carries its connections.
    pub(crate) dataplane: &'static str,
    client: Client,
    journal: std::sync::Arc<Journal>,
    /// Periods that processes spent waiting for a CPU.
    late: Late,
    _watches: JoinSet<()>,
    // Dropped after the watches, which would otherwise report errors.
    cluster: Cluster,
}

impl Lab {
    /// Watches a cluster.
    pub(crate) async fn watch(cluster: Cluster, dataplane: &'static str) -> Self {
        let mut config = cluster.client_config().await;
        config.read_timeout = None;
        // The API's refusals must be seen, not retried.
        config.default_retry = false;
        let client = Client::try_from(config).expect("a client");
        let journal = std::sync::Arc::new(Journal::default());
        let mut watches = JoinSet::new();
        for path in [
            "api/v1/pods",
            "api/v1/events",
            "api/v1/endpoints",
            "apis/apps/v1/deployments",
            "apis/apps/v1/replicasets",
            "apis/discovery.k8s.io/v1/endpointslices",
        ] {
            watches.spawn(keep_watch(client.clone(), path, std::sync::Arc::clone(&journal)));
        }
        let late = Late::default();
        watches.spawn(keep_time(std::sync::Arc::clone(&late)));
        watches.spawn(keep_asking(client.clone(), std::sync::Arc::clone(&late)));
        Self { dataplane, client, journal, late, _watches: watches, cluster }
    }

    /// Returns a directory for the logs of the pods' programs.
    pub(crate) fn dir(&self) -> &Path {
        self.cluster.dir()
    }

    /// Returns the cluster's process.
    pub(crate) fn pid(&self) -> u32 {
        self.cluster.pid()
    }

    /// Returns the maximum delay that the machine may have caused since this time.
    pub(crate) fn lag_s(&self, since_ns: i64) -> f64 {
        let late = self.late.lock().unwrap_or_else(PoisonError::into_inner);
        let worst = late.iter().filter(|(at_ns, _)| *at_ns >= since_ns).map(|(_, late_s)| *late_s);
        worst.fold(0.0, f64::max) * WAITS
    }

    /// Sends a request to the API.
    pub(crate) async fn call(&self, method: &str, path: &str, body: Option<&Value>) -> Answer {
        let json = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let request = Request::builder().method(method).uri(path).header("content-type", json);
        let body = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
        let sent_ns = now_ns();
        let answer =
            self.client.send(request.body(body.into()).expect("a request")).await.expect("a response");
        let (head, body) = answer.into_parts();
        let bytes = http_body_util::BodyExt::collect(body).await.expect("a complete response").to_bytes();
        let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        let (status, headers) = (head.status.as_u16(), head.headers);
        Answer { sent_ns, answered_ns: now_ns(), status, headers, body }
    }

    /// Creates an object; fails if the API refuses.
    pub(crate) async fn create(&self, path: &str, object: &Value) -> Answer {
        let answer = self.call("POST", path, Some(object)).await;
        assert_eq!(answer.status, 201, "{path}: {}", answer.body);
        answer
    }

    /// Returns all watch events in a namespace.
    pub(crate) fn seen(&self, namespace: &str) -> Vec<Seen> {
        self.journal.look(namespace, <[Seen]>::to_vec)
    }

    /// Waits until the watch events in a namespace meet a condition.
    pub(crate) async fn until<T>(
        &self,
        namespace: &str,
        what: &str,
        mut found: impl FnMut(&[Seen]) -> Option<T>,
    ) -> T {
        let mut news = self.journal.news.subscribe();
        let mut looked_at = None;
        let wait = async {
            loop {
                news.borrow_and_update();
                let found = self.journal.look(namespace, |seen| {
                    // Events in other namespaces do not matter here.
                    let is_news = looked_at.replace(seen.len()) != Some(seen.len());
                    if is_news { found(seen) } else { None }
                });
                if let Some(found) = found {
                    return found;
                }
                news.changed().await.expect("the watches continue");
            }
        };
        match tokio::time::timeout(LIMIT, wait).await {
            Ok(found) => found,
            Err(_) => panic!("{namespace}: {what}: not within {LIMIT:?}: {:#?}", self.seen(namespace)),
        }
    }
}

/// Stamps every line of a watch.
async fn keep_watch(client: Client, path: &str, journal: std::sync::Arc<Journal>) {
    let request = Request::get(format!("/{path}?watch=1")).body(Vec::new()).expect("a request");
    let events = client.request_events::<Value>(request).await.expect("a watch");
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.try_next().await.expect("a line of a watch") {
        let at_ns = now_ns();
        let (event, object) = match event {
            WatchEvent::Added(object) => ("ADDED", object),
            WatchEvent::Modified(object) => ("MODIFIED", object),
            WatchEvent::Deleted(object) => ("DELETED", object),
            WatchEvent::Bookmark(_) => continue,
            WatchEvent::Error(status) => panic!("/{path}: {status:?}"),
        };
        journal.add(Seen { at_ns, event, object });
    }
}

/// Measures how late timers fire.
async fn keep_time(late: Late) {
    loop {
        let due = tokio::time::Instant::now() + TICK;
        tokio::time::sleep_until(due).await;
        let late_s = due.elapsed().as_secs_f64();
        late.lock().unwrap_or_else(PoisonError::into_inner).push((now_ns(), late_s));
    }
}

/// Measures the API's response time for requests that the model does not delay. Never returns.
async fn keep_asking(client: Client, late: Late) {
    loop {
        tokio::time::sleep(ASK).await;
        let asked = tokio::time::Instant::now();
        let request = Request::get("/version").body(Vec::new()).expect("a request");
        if client.request_text(request).await.is_ok() {
            let waited_s = asked.elapsed().as_secs_f64() / WAITS_OF_AN_ANSWER;
            late.lock().unwrap_or_else(PoisonError::into_inner).push((now_ns(), waited_s));
        }
    }
}

/// A process, identified by a kernel handle (pidfd).
pub(crate) struct Held(OwnedFd);

impl Held {
    /// Waits for a process whose command line contains `word`.
    pub(crate) async fn find(word: &str) -> Self {
        let deadline = tokio::time::Instant::now() + LIMIT;
        loop {
            if let Some(pid) = pid_of(word) {
                return Self(pidfd_open(pid, PidfdFlags::empty()).expect("a handle of the process"));
            }
            assert!(tokio::time::Instant::now() < deadline, "no process names {word}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until the process exits, and returns the time.
    pub(crate) async fn ended_ns(self) -> i64 {
        let wait = move || {
            let mut handle = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
            let limit = PollTimeout::try_from(LIMIT).expect("a limit");
            assert_eq!(poll(&mut handle, limit), Ok(1), "it ends in time");
            now_ns()
        };
        tokio::task::spawn_blocking(wait).await.expect("its exit status")
    }
}

/// Returns the process with this word among its arguments; if there are several, the one started first.
fn pid_of(word: &str) -> Option<Pid> {
    let mut found: BTreeMap<i32, PathBuf> = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").expect("/proc").flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if String::from_utf8_lossy(&line).contains(word) {
            found.insert(pid, entry.path());
        }
    }
    Pid::from_raw(*found.first_key_value()?.0)
}
