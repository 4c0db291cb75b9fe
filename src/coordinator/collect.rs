//! Collects what the proxies beside the pods record, through the API server's pod proxy.
//!
//! One task per proxy follows its row stream from the moment its container
//! runs until it says `end` or its pod is gone, and compares clocks meanwhile.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::{AsyncBufReadExt, StreamExt};
use http::Request;
use kube::Client;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::recorder::RecorderHandle;
use super::view::View;
use crate::record::run_info::{Role, Source};
use crate::record::wire::{CLOCK_PATH, ClockAnswer, ProxyLine, ROWS_PATH};
use crate::record::{Clock, ClockOffset, EventKind, ServedRow, Stamp};

/// From one attempt to reach a proxy to the next.
const RETRY: Duration = Duration::from_millis(100);
/// Exchanges when a proxy is met: the one with the shortest round trip counts.
const FIRST_CLOCK_SAMPLES: usize = 8;
/// From one clock exchange to the next, later on.
const CLOCK_INTERVAL: Duration = Duration::from_secs(2);
/// Lines taken at once.
const BATCH: usize = 1024;

/// What following a proxy takes.
#[derive(Clone)]
pub(super) struct Context {
    pub(super) client: Client,
    pub(super) namespace: String,
    pub(super) clock: Clock,
    pub(super) recorder: RecorderHandle,
}

/// What is known of every proxy that was met, by pod name.
#[derive(Clone, Default)]
pub(super) struct Collector {
    proxies: Arc<Mutex<BTreeMap<String, Proxy>>>,
    progress: Arc<Notify>,
}

struct Proxy {
    endpoint: Endpoint,
    ended: bool,
    /// One for each time that its container was started. Never empty.
    recorders: Vec<Recorder>,
}

/// A proxy from its start to its end: a source of its own.
#[derive(Default)]
struct Recorder {
    /// As it says itself; `None` until it has.
    started: Option<Stamp>,
    received: u64,
    /// The best clock sample.
    clock: Option<ClockOffset>,
}

impl Proxy {
    fn recorder(&mut self) -> Option<&mut Recorder> {
        self.recorders.last_mut()
    }

    /// The name of the latest source.
    fn source(&self) -> String {
        source_name(&self.endpoint.pod, self.recorders.len().saturating_sub(1))
    }
}

/// The pod's name, and how often its proxy had been restarted.
fn source_name(pod: &str, restarts: usize) -> String {
    if restarts == 0 { pod.to_owned() } else { format!("{pod}~{restarts}") }
}

/// A proxy's admin port, behind the API server.
#[derive(Clone)]
struct Endpoint {
    context: Context,
    pod: String,
    uid: String,
    port: u16,
}

impl Collector {
    /// Waits until every live proxy has handed over what it has recorded, and notes how that ended.
    pub(super) async fn catch_up(&self, limit: Duration) {
        let live: Vec<Endpoint> =
            self.lock().values().filter(|p| !p.ended).map(|p| p.endpoint.clone()).collect();
        for endpoint in live {
            let recorded =
                timeout(limit, endpoint.clock()).await.ok().flatten().map(|answer| answer.recorded);
            let caught_up = async {
                loop {
                    let progress = self.progress.notified();
                    if self.received(&endpoint.pod) >= recorded.unwrap_or(0) {
                        return;
                    }
                    progress.await;
                }
            };
            // Whether it came in time shows in the counts.
            let _ = timeout(limit, caught_up).await;
            self.end(&endpoint, recorded);
        }
    }

    /// The proxies as sources of the run.
    pub(super) fn sources(&self) -> Vec<Source> {
        let sources = |(pod, proxy): (&String, &Proxy)| {
            let source = |(restarts, recorder): (usize, &Recorder)| Source {
                name: source_name(pod, restarts),
                role: Role::Proxy,
                clock_offset_ns: recorder.clock.map_or(0, |sample| sample.offset_ns),
                clock_uncertainty_ns: recorder.clock.map(|sample| sample.uncertainty_ns),
            };
            proxy.recorders.iter().enumerate().map(source).collect::<Vec<_>>()
        };
        self.lock().iter().flat_map(sources).collect()
    }

    /// Rows that came from the proxy beside a pod, since it was last started.
    pub(super) fn received(&self, pod: &str) -> u64 {
        self.lock().get_mut(pod).and_then(|p| p.recorder().map(|r| r.received)).unwrap_or(0)
    }

    fn change(&self, pod: &str, change: impl FnOnce(&mut Proxy)) {
        if let Some(proxy) = self.lock().get_mut(pod) {
            change(proxy);
        }
        self.progress.notify_waiters();
    }

    /// A proxy has said when it started; answers its source's name. If it is not the one that
    /// spoke before, that one has ended, and nobody knows what it had recorded.
    fn speaks(&self, endpoint: &Endpoint, started: Stamp) -> String {
        let (mut source, mut lost) = (endpoint.pod.clone(), None);
        self.change(&endpoint.pod, |proxy| {
            if let Some(recorder) = proxy.recorder() {
                if recorder.started.is_some_and(|known| known != started) {
                    lost = Some(recorder.received);
                    proxy.recorders.push(Recorder { started: Some(started), ..Recorder::default() });
                } else {
                    recorder.started = Some(started);
                }
            }
            source = proxy.source();
        });
        if let Some(received) = lost {
            let context = &endpoint.context;
            let kind = EventKind::ProxyEnded { pod: endpoint.pod.clone(), recorded: None, received };
            context.recorder.event(context.clock.now(), kind);
        }
        source
    }

    /// Notes, once, that a proxy's rows are over.
    fn end(&self, endpoint: &Endpoint, recorded: Option<u64>) {
        let mut ended = None;
        self.change(&endpoint.pod, |proxy| {
            let received = proxy.recorder().map_or(0, |recorder| recorder.received);
            ended = (!proxy.ended).then_some(received);
            proxy.ended = true;
        });
        if let Some(received) = ended {
            let context = &endpoint.context;
            let kind = EventKind::ProxyEnded { pod: endpoint.pod.clone(), recorded, received };
            context.recorder.event(context.clock.now(), kind);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Proxy>> {
        self.proxies.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Follows every proxy that the view shows, until stopped.
pub(super) async fn run(
    collector: Collector,
    context: Context,
    mut views: watch::Receiver<View>,
    stop: CancellationToken,
) {
    let mut tasks = JoinSet::new();
    let mut met = HashSet::new();
    loop {
        let running: Vec<Endpoint> = {
            let view = views.borrow_and_update();
            let pods = view.pods.values().filter_map(|seen| Some((&seen.event, seen.admin_port?)));
            pods.filter(|(pod, _)| !met.contains(&pod.uid))
                .map(|(pod, port)| Endpoint {
                    context: context.clone(),
                    pod: pod.name.clone(),
                    uid: pod.uid.clone(),
                    port,
                })
                .collect()
        };
        for endpoint in running {
            met.insert(endpoint.uid.clone());
            let proxy =
                Proxy { endpoint: endpoint.clone(), ended: false, recorders: vec![Recorder::default()] };
            collector.lock().insert(endpoint.pod.clone(), proxy);
            let (collector, views, stop) = (collector.clone(), views.clone(), stop.clone());
            tasks.spawn(async move {
                stop.run_until_cancelled(follow(&collector, &endpoint, &views)).await;
            });
        }
        tokio::select! {
            changed = views.changed() => if changed.is_err() { break },
            Some(_) = tasks.join_next() => {}
            () = stop.cancelled() => break,
        }
    }
    while tasks.join_next().await.is_some() {}
}

async fn follow(collector: &Collector, endpoint: &Endpoint, views: &watch::Receiver<View>) {
    tokio::select! {
        recorded = follow_rows(collector, endpoint, views) => collector.end(endpoint, recorded),
        () = follow_clock(collector, endpoint) => {}
    }
}

/// Reads rows until the end line (answers its count), or until the pod is gone without one.
async fn follow_rows(
    collector: &Collector,
    endpoint: &Endpoint,
    views: &watch::Receiver<View>,
) -> Option<u64> {
    let mut place = Place { source: endpoint.pod.clone(), started: None, next: 0 };
    loop {
        let of = place.started.map_or_else(String::new, |started| format!("&of={}", started.unix_ns()));
        let request = endpoint.get(&format!("{ROWS_PATH}?from={}{of}", place.next))?;
        if let Ok(reader) = endpoint.context.client.request_stream(request).await {
            let mut batches = reader.lines().ready_chunks(BATCH);
            while let Some(batch) = batches.next().await {
                if let Some(recorded) = take(collector, endpoint, batch, &mut place) {
                    return Some(recorded);
                }
            }
        }
        if !views.borrow().pods.contains_key(&endpoint.uid) {
            return None;
        }
        sleep(RETRY).await;
    }
}

/// Where a reader is, so that a stream that broke off is taken up where it ended.
struct Place {
    source: String,
    started: Option<Stamp>,
    /// The number of the next row.
    next: u64,
}

/// Records a batch of lines; answers the count of the end line if it was among them.
fn take(
    collector: &Collector,
    endpoint: &Endpoint,
    batch: Vec<std::io::Result<String>>,
    place: &mut Place,
) -> Option<u64> {
    let Endpoint { context, pod, .. } = endpoint;
    let mut rows: Vec<ServedRow> = Vec::new();
    let mut end = None;
    let keep = |place: &Place, rows: Vec<ServedRow>| {
        if !rows.is_empty() {
            let count = rows.len() as u64;
            context.recorder.served(&place.source, rows);
            collector.change(pod, |proxy| {
                if let Some(recorder) = proxy.recorder() {
                    recorder.received += count;
                }
            });
        }
    };
    for line in batch.into_iter().flatten() {
        match serde_json::from_str(&line) {
            Ok(ProxyLine::Row(row)) => {
                rows.push(ServedRow { source: place.source.as_str().into(), ..row });
                place.next += 1;
            }
            Ok(ProxyLine::Phase { phase, t_ns }) => {
                let kind = EventKind::ProxyPhase { pod: pod.clone(), phase };
                context.recorder.event_of(&place.source, t_ns, kind);
            }
            Ok(ProxyLine::End { recorded }) => end = Some(recorded),
            // What is missing before it shows in the counts when the proxy ends.
            Ok(ProxyLine::Hello { next, started_ns, .. }) => {
                keep(place, std::mem::take(&mut rows));
                let source = collector.speaks(endpoint, started_ns);
                *place = Place { source, started: Some(started_ns), next };
            }
            Err(error) => tracing::warn!(%pod, %error, "a proxy's line could not be read"),
        }
    }
    keep(place, rows);
    end
}

/// Compares clocks, again and again. The uncertainty is half the round trip.
async fn follow_clock(collector: &Collector, endpoint: &Endpoint) {
    let mut taken = 0;
    loop {
        let clock = endpoint.context.clock;
        let sent = clock.now();
        if let Some(answer) = endpoint.clock().await {
            let sample = ClockOffset::of_exchange(sent, answer.now_ns, clock.now());
            let source = collector.speaks(endpoint, answer.started_ns);
            endpoint.context.recorder.event(sent, EventKind::clock_sample(&source, sample));
            collector.change(&endpoint.pod, |proxy| {
                if let Some(recorder) = proxy.recorder() {
                    recorder.clock = Some(sample.or_better(recorder.clock));
                }
            });
            taken += 1;
        }
        sleep(if taken < FIRST_CLOCK_SAMPLES { RETRY } else { CLOCK_INTERVAL }).await;
    }
}

impl Endpoint {
    async fn clock(&self) -> Option<ClockAnswer> {
        self.context.client.request(self.get(CLOCK_PATH)?).await.ok()
    }

    fn get(&self, path: &str) -> Option<Request<Vec<u8>>> {
        let Self { context, pod, port, .. } = self;
        let uri = format!("/api/v1/namespaces/{}/pods/{pod}:{port}/proxy{path}", context.namespace);
        Request::get(uri).body(Vec::new()).ok()
    }
}
