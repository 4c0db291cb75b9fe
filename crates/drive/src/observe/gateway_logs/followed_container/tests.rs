//! Logs from a scripted API server, which breaks and repeats them as kubelets and load balancers do.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use futures::{StreamExt, stream};
use http::{Request, Response};
use http_body_util::{BodyStream, Full, StreamBody};
use kube::Client;
use kube::client::Body;
use rolldrop_record::Clock;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::super::LogDeliveryKind;
use super::*;

/// End of a scripted response.
#[derive(Clone, Copy)]
enum End {
    Clean,
    Failed,
    /// The response stays open without further bytes.
    Never,
}
use End::{Clean, Failed, Never};

/// Responses to requests for the log, in this order: status, text, end.
type Script = &'static [(u16, &'static str, End)];

/// A followed container whose API server follows a script.
struct Scripted {
    /// Queries of the requests for the current log.
    asked: Arc<Mutex<Vec<String>>>,
    seen: watch::Sender<SeenContainer>,
    /// UID of the pod that currently has the name of the container's pod.
    uid: Arc<Mutex<&'static str>>,
    deliveries: mpsc::Receiver<super::super::LogDelivery>,
    _tasks: JoinSet<()>,
}

impl Scripted {
    fn follow(script: Script) -> Self {
        Self::follow_through(Duration::ZERO, script)
    }

    /// Same, but the API server is away for this long after its first response.
    fn follow_through(outage: Duration, script: Script) -> Self {
        let (asked, uid) = (Arc::<Mutex<Vec<String>>>::default(), Arc::new(Mutex::new("old")));
        let (queries, own) = (Arc::clone(&asked), Arc::clone(&uid));
        let mut script: VecDeque<_> = script.iter().copied().collect();
        let (responses, mut away_until) = (script.len(), None);
        let mut respond = move |request: &Request<Body>| {
            let query = request.uri().query().unwrap_or_default();
            let (is_log, is_previous) =
                (request.uri().path().ends_with("/log"), query.contains("previous=true"));
            if is_log && !is_previous && script.len() < responses {
                away_until.get_or_insert(Instant::now() + outage);
            }
            if away_until.is_some_and(|until| Instant::now() < until) {
                queries.lock().unwrap().push("away".to_owned());
                return (503, String::new(), Clean);
            }
            if !is_log {
                return (200, list_of(*own.lock().unwrap()).to_string(), Clean);
            }
            if is_previous {
                return (400, String::new(), Clean);
            }
            queries.lock().unwrap().push(query.to_owned());
            let (status, text, end) = script.pop_front().unwrap_or((200, "", Never));
            (status, text.to_owned(), end)
        };
        let service = tower::service_fn(move |request: Request<Body>| {
            let (status, text, end) = respond(&request);
            let text = BodyStream::new(Full::from(text)).map(|frame| frame.map_err(|never| match never {}));
            let rest = match end {
                Clean => stream::empty().boxed(),
                Failed => stream::iter([Err(std::io::Error::other("cut"))]).boxed(),
                Never => stream::pending().boxed(),
            };
            std::future::ready(Response::builder().status(status).body(StreamBody::new(text.chain(rest))))
        });
        let client = Client::new(service, "edge");
        let (sender, deliveries) = mpsc::channel(1);
        let clock = Clock::start();
        let running =
            SeenContainer { started: Some(clock.now()), is_running: true, ..SeenContainer::default() };
        let (seen, receiver) = watch::channel(running);
        let followed = FollowedContainer {
            logs: Api::namespaced(client.clone(), "edge"),
            pods: Api::namespaced(client, "edge"),
            pod: "web".to_owned(),
            uid: "old".to_owned(),
            container: "proxy".to_owned(),
            seen: receiver,
            restarts: 0,
            continuity: Continuity::begin(None, clock.now()),
            rate: LineRate::new(100),
            is_interrupted: false,
            outlet: LogOutlet::of(0, "log".to_owned(), clock, &sender),
            hasher: RandomState::new(),
        };
        drop(sender);
        let mut tasks = JoinSet::new();
        tasks.spawn(followed.follow());
        Self { asked, seen, uid, deliveries, _tasks: tasks }
    }

    /// Returns the next delivery as text: the line, or a text that identifies the fact.
    async fn next(&mut self) -> Option<String> {
        Some(Self::text(self.deliveries.recv().await?.kind))
    }

    fn text(kind: LogDeliveryKind) -> String {
        match kind {
            LogDeliveryKind::Line { bytes, .. } => String::from_utf8(bytes.into()).unwrap(),
            LogDeliveryKind::LongLine { length, .. } => format!("{length} bytes"),
            LogDeliveryKind::Gap { why, .. } => why.to_owned(),
            LogDeliveryKind::Interrupted { .. } => INTERRUPTED.to_owned(),
            LogDeliveryKind::Resumed => RESUMED.to_owned(),
            LogDeliveryKind::Stopped { why } => why,
        }
    }

    /// Waits for this many requests for the log.
    async fn until_asked(&self, times: usize) {
        while self.asked.lock().unwrap().len() < times {
            sleep(Duration::from_millis(10)).await;
        }
    }

    fn delete(&self) {
        self.seen.send_modify(|seen| seen.is_gone = true);
    }
}

fn list_of(uid: &str) -> Value {
    let status = json!({"containerStatuses": [{"name": "proxy", "image": "", "imageID": "", "ready": true,
        "restartCount": 0, "state": {"running": {}}}]});
    let pod = json!({"metadata": {"name": "web", "namespace": "edge", "uid": uid},
        "spec": {"containers": [{"name": "proxy"}]}, "status": status});
    json!({"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": [pod]})
}

const GAP: &str = "the last line that was read is no longer kept: the log was rotated, or the container restarted repeatedly";
const INTERRUPTED: &str = "interrupted";
const RESUMED: &str = "resumed";
const CUT_SHORT: &str = "the pod was deleted before its log was read to the end";

#[tokio::test(start_paused = true)]
async fn partial_line_is_read_again() {
    let mut log = Scripted::follow(&[
        (200, "2026-01-01T00:00:01Z a\n2026-01-01T00:00:02.5Z b", Failed),
        (503, "", Clean),
        (200, "2026-01-01T00:00:01Z a\n2026-01-01T00:00:02.5Z bc\n", Clean),
        (200, ":02Z the end of a line\n2026-01-01T00:00:02.5Z bc\n2026-01-01T00:00:03Z d\n", Never),
    ]);
    for line in ["a", INTERRUPTED, "bc", RESUMED, "d"] {
        assert_eq!(log.next().await.unwrap(), line);
    }
    let asked = log.asked.lock().unwrap().clone();
    let common = "&container=proxy&follow=true";
    let since = |second: u8| format!("{common}&sinceTime=2026-01-01T00%3A00%3A0{second}Z&timestamps=true");
    assert_eq!(asked, [format!("{common}&timestamps=true"), since(0), since(0), since(1)]);
}

#[tokio::test(start_paused = true)]
async fn silent_log_is_opened_again() {
    // A kubelet may wait for bytes in a file that was rotated.
    let mut log = Scripted::follow(&[
        (200, "2026-01-01T00:00:01Z a\n", Never),
        (200, "2026-01-01T00:00:01Z a\n", Never),
        (200, "2026-01-01T00:00:01Z a\n2026-01-01T00:00:02Z b\n", Never),
        (200, "2026-01-01T00:00:20Z c\n", Never),
    ]);
    for line in ["a", "b", GAP, "c"] {
        assert_eq!(log.next().await.unwrap(), line);
    }
}

/// The API server is away for 20 minutes. Afterwards, the log still has the last line, or was rotated in the meantime.
#[tokio::test(start_paused = true)]
async fn long_outage_loses_no_line_silently() {
    const OUTAGE: Duration = Duration::from_secs(1200);
    const BEFORE: &str = "2026-01-01T00:00:01Z a\n";
    const WHOLE: Script = &[
        (200, BEFORE, Failed),
        (200, "2026-01-01T00:00:01Z a\n2026-01-01T00:10:00Z b\n2026-01-01T00:20:30Z c\n", Never),
    ];
    const ROTATED: Script = &[
        (200, BEFORE, Failed),
        (200, "2026-01-01T00:15:00Z b\n2026-01-01T00:20:30Z c\n", Failed),
        (200, "2026-01-01T00:20:30Z c\n2026-01-01T00:21:00Z d\n", Never),
    ];
    let resumed = [INTERRUPTED, "b", "c", RESUMED];
    let with_gap = [INTERRUPTED, GAP, "b", "c", RESUMED, INTERRUPTED, "d", RESUMED];
    for (script, expected) in [(WHOLE, &resumed[..]), (ROTATED, &with_gap)] {
        let begun = Instant::now();
        let mut log = Scripted::follow_through(OUTAGE, script);
        assert_eq!(log.next().await.unwrap(), "a");
        for expected in expected {
            let kind = log.deliveries.recv().await.unwrap().kind;
            if let LogDeliveryKind::Gap { from, to, .. } = kind {
                assert_eq!(to.ns_since(from), 899_000_000_000, "from the last line to the next one");
            }
            assert_eq!(Scripted::text(kind), **expected);
        }
        assert!(begun.elapsed() >= OUTAGE);
        let asked = log.asked.lock().unwrap().iter().filter(|query| **query == "away").count();
        assert!((20..1300).contains(&asked), "about once a second: {asked} times");
    }
}

#[tokio::test(start_paused = true)]
async fn log_of_replacement_pod_is_not_delivered() {
    let mut log = Scripted::follow(&[
        (200, "2026-01-01T00:00:01Z a\n", Clean),
        (200, "2026-01-01T00:00:09Z of the new pod\n", Never),
    ]);
    assert_eq!(log.next().await.unwrap(), "a");
    *log.uid.lock().unwrap() = "new";
    log.until_asked(2).await;
    log.delete();
    assert_eq!(log.next().await, None, "the log was read to its end");
}

#[tokio::test(start_paused = true)]
async fn interrupted_log_of_deleted_pod_has_gap() {
    let mut log = Scripted::follow(&[(200, "2026-01-01T00:00:01Z a\n", Failed), (404, "", Clean)]);
    assert_eq!(log.next().await.unwrap(), "a");
    assert_eq!(log.next().await.unwrap(), INTERRUPTED);
    log.until_asked(2).await;
    log.delete();
    assert_eq!(log.next().await.unwrap(), CUT_SHORT);
    assert_eq!(log.next().await.unwrap(), RESUMED);
    assert_eq!(log.next().await, None);
}

#[tokio::test(start_paused = true)]
async fn kubelet_messages_are_not_lines() {
    const MESSAGE: &str = "unable to retrieve container logs for containerd://1\n";
    let mut log = Scripted::follow(&[
        (200, "2026-01-01T00:00:01Z a\nfailed to watch the file\n", Clean),
        (200, MESSAGE, Clean),
        (200, "2026-01-01T00:00:01Z a\n2026-01-01T00:00:02Z b\n", Clean),
        (200, MESSAGE, Clean),
    ]);
    assert_eq!(log.next().await.unwrap(), "a");
    assert_eq!(log.next().await.unwrap(), "b");
    log.until_asked(4).await;
    log.delete();
    assert_eq!(log.next().await, None, "the log was read to its end before");
}

/// An API server that has just started may not know the permissions yet.
#[tokio::test(start_paused = true)]
async fn log_that_was_readable_survives_refusal() {
    const REFUSAL: &str =
        r#"{"kind": "Status", "status": "Failure", "code": 403, "message": "pods is forbidden"}"#;
    let mut log = Scripted::follow(&[
        (200, "2026-01-01T00:00:01Z a\n", Failed),
        (403, REFUSAL, Clean),
        (200, "2026-01-01T00:00:01Z a\n2026-01-01T00:00:02Z b\n", Never),
    ]);
    for line in ["a", INTERRUPTED, "b", RESUMED] {
        assert_eq!(log.next().await.unwrap(), line);
    }
    let mut refused = Scripted::follow(&[(403, REFUSAL, Clean)]);
    assert_eq!(refused.next().await.unwrap(), "pods is forbidden");
    assert_eq!(refused.next().await, None);
}
