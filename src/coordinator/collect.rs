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
use crate::record::{Clock, ClockOffset, EventKind, ServedRow};

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
    received: u64,
    ended: bool,
    /// The best clock sample.
    clock: Option<ClockOffset>,
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
        let source = |(pod, proxy): (&String, &Proxy)| Source {
            name: pod.clone(),
            role: Role::Proxy,
            clock_offset_ns: proxy.clock.map_or(0, |sample| sample.offset_ns),
            clock_uncertainty_ns: proxy.clock.map(|sample| sample.uncertainty_ns),
        };
        self.lock().iter().map(source).collect()
    }

    pub(super) fn received(&self, pod: &str) -> u64 {
        self.lock().get(pod).map_or(0, |p| p.received)
    }

    fn change(&self, pod: &str, change: impl FnOnce(&mut Proxy)) {
        if let Some(proxy) = self.lock().get_mut(pod) {
            change(proxy);
        }
        self.progress.notify_waiters();
    }

    /// Notes, once, that a proxy's rows are over.
    fn end(&self, endpoint: &Endpoint, recorded: Option<u64>) {
        let mut ended = None;
        self.change(&endpoint.pod, |proxy| {
            ended = (!proxy.ended).then_some(proxy.received);
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
            let proxy = Proxy { endpoint: endpoint.clone(), received: 0, ended: false, clock: None };
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
    // The number of the next row, so that a stream that broke off is taken up where it ended.
    let mut next = 0;
    loop {
        let request = endpoint.get(&format!("{ROWS_PATH}?from={next}"))?;
        if let Ok(reader) = endpoint.context.client.request_stream(request).await {
            let mut batches = reader.lines().ready_chunks(BATCH);
            while let Some(batch) = batches.next().await {
                if let Some(recorded) = take(collector, endpoint, batch, &mut next) {
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

/// Records a batch of lines; answers the count of the end line if it was among them.
fn take(
    collector: &Collector,
    endpoint: &Endpoint,
    batch: Vec<std::io::Result<String>>,
    next: &mut u64,
) -> Option<u64> {
    let Endpoint { context, pod, .. } = endpoint;
    let mut rows: Vec<ServedRow> = Vec::new();
    let mut end = None;
    for line in batch.into_iter().flatten() {
        match serde_json::from_str(&line) {
            Ok(ProxyLine::Row(row)) => {
                rows.push(row);
                *next += 1;
            }
            Ok(ProxyLine::Phase { phase, t_ns }) => {
                context.recorder.event_of(pod, t_ns, EventKind::ProxyPhase { pod: pod.clone(), phase });
            }
            Ok(ProxyLine::End { recorded }) => end = Some(recorded),
            // What is missing before it shows in the counts when the proxy ends.
            Ok(ProxyLine::Hello { next: first, .. }) => *next = first,
            Err(error) => tracing::warn!(%pod, %error, "a proxy's line could not be read"),
        }
    }
    if !rows.is_empty() {
        let count = rows.len() as u64;
        context.recorder.served(pod, rows);
        collector.change(pod, |proxy| proxy.received += count);
    }
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
            endpoint.context.recorder.event(sent, EventKind::clock_sample(&endpoint.pod, sample));
            collector.change(&endpoint.pod, |proxy| proxy.clock = Some(sample.or_better(proxy.clock)));
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
