//! Collects records from the recording proxies in pods, through the API server's pod proxy.
//!
//! One task per pod follows its proxy's row stream from the start of its container until the pod is gone, and compares
//! clocks during that time. A restarted container is another recorder, with its own clock.

mod endpoint;
pub(crate) mod lines;

use std::collections::{BTreeMap, HashSet};
use std::io::ErrorKind;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::api::{Caller, Pauses, TimeLimits};
use crate::observe::{Observer, View};
use crate::tasks::BackgroundTasks;
use endpoint::{Context, Endpoint, SILENCE, wants_token};
use lines::lines;
use rolldrop_record::run_info::{Role, Rows, Source};
use rolldrop_record::wire::{AdminToken, ProxyLine, ROWS_PATH};
use rolldrop_record::{ClockOffset, EventKind, Offsets, ServedRow, Stamp};

/// Pause between attempts at the first clock exchanges with a proxy.
const RETRY: Duration = Duration::from_millis(100);
/// Number of exchanges at the first contact with a proxy: enough for one of them to have a short round trip.
const FIRST_CLOCK_SAMPLES: usize = 8;
/// Pause between later clock exchanges.
const CLOCK_INTERVAL: Duration = Duration::from_secs(2);
/// Maximum number of lines processed at once. With the length of the longest line, it bounds the memory for one proxy.
const BATCH: usize = 128;

/// Everything that is known about the proxies, by pod name.
#[derive(Clone, Default)]
pub(crate) struct Collector {
    /// Recorders for each pod name, in the order of their start; each is a separate source. Pods that reuse a name, as
    /// in a StatefulSet, share one entry.
    proxies: Arc<Mutex<BTreeMap<String, Vec<Recorder>>>>,
    progress: Arc<Notify>,
}

/// A recording proxy from its start to its end.
struct Recorder {
    endpoint: Endpoint,
    /// Start time that the proxy reported; `None` until it has reported one.
    started: Option<Stamp>,
    rows: Rows,
    /// Final counts; set once the rows are complete, or no more are expected.
    ended: Option<Rows>,
    /// Results of the clock exchanges, each with the time of its request.
    samples: Vec<(Stamp, ClockOffset)>,
}

impl Recorder {
    fn new(endpoint: Endpoint) -> Self {
        Self { endpoint, started: None, rows: Rows::default(), ended: None, samples: Vec::new() }
    }

    fn is_of(&self, endpoint: &Endpoint) -> bool {
        self.endpoint.uid == endpoint.uid
    }
}

/// Identifies one of the recorders for a pod name.
#[derive(Clone, Debug)]
struct Id {
    pod: String,
    /// Number of earlier recorders for this pod name.
    number: usize,
}

impl Id {
    /// Returns the name of the source: the pod's name, unless an earlier recorder has it.
    fn source(&self) -> String {
        if self.number == 0 { self.pod.clone() } else { format!("{}~{}", self.pod, self.number) }
    }
}

impl Collector {
    /// Begins to follow every proxy that the observer sees.
    pub(crate) fn begin(
        caller: &Caller,
        observer: &Observer,
        admin_token: Option<AdminToken>,
        tasks: &mut BackgroundTasks,
    ) -> Self {
        let collector = Self::default();
        let (client, namespace) = (caller.client.clone(), caller.namespace.clone());
        let context = Context { client, namespace, recorder: observer.recorder().clone(), admin_token };
        let views = observer.views().subscribe();
        tasks.spawn_stoppable(|stop| run(collector.clone(), context, views, stop));
        collector
    }

    /// Waits until every live proxy has handed over its rows, or the limit passes, and records the counts.
    pub(crate) async fn catch_up(&self, limits: &TimeLimits) {
        let limit = limits.hand_over;
        let live: Vec<Endpoint> = {
            let proxies = self.lock();
            let live = proxies.values().filter_map(|recorders| recorders.last());
            live.filter(|recorder| recorder.ended.is_none()).map(|r| r.endpoint.clone()).collect()
        };
        let each = live.iter().map(|endpoint| async {
            let Some(answer) = endpoint.last_clock(limits).await else {
                return self.end_all_but(endpoint, None);
            };
            let id = self.speaks(endpoint, answer.started_ns);
            let caught_up = async {
                loop {
                    let progress = self.progress.notified();
                    if self.received(&id) >= answer.recorded {
                        return;
                    }
                    progress.await;
                }
            };
            // The counts show if the rows arrived in time.
            let _ = timeout(limit, caught_up).await;
            self.end(&id, Some(answer.recorded));
        });
        futures::future::join_all(each).await;
    }

    /// Returns the proxies as sources of the run.
    pub(crate) fn sources(&self) -> Vec<Source> {
        let source = |pod: &str, number: usize, recorder: &Recorder| {
            let offset = Offsets::of(recorder.samples.iter().copied()).map(|offsets| offsets.overall());
            Source {
                name: Id { pod: pod.to_owned(), number }.source(),
                role: Role::Proxy,
                clock_offset_ns: offset.map_or(0, |offset| offset.offset_ns),
                clock_uncertainty_ns: offset.map(|offset| offset.uncertainty_ns),
                rows: Some(recorder.ended.unwrap_or(recorder.rows)),
            }
        };
        let proxies = self.lock();
        let of_pod = |(pod, recorders): (&String, &Vec<Recorder>)| {
            let sources =
                recorders.iter().enumerate().map(|(number, recorder)| source(pod, number, recorder));
            sources.collect::<Vec<_>>()
        };
        proxies.iter().flat_map(of_pod).collect()
    }

    /// Adds a proxy about which nothing else is known yet.
    fn meet(&self, endpoint: &Endpoint) {
        let recorder = Recorder::new(endpoint.clone());
        self.lock().entry(endpoint.pod.clone()).or_default().push(recorder);
    }

    fn received(&self, id: &Id) -> u64 {
        let proxies = self.lock();
        proxies.get(&id.pod).and_then(|recorders| recorders.get(id.number)).map_or(0, |r| r.rows.received)
    }

    /// Returns true if this pod's proxy is known to have recorded more than has arrived.
    fn is_behind(&self, endpoint: &Endpoint) -> bool {
        let proxies = self.lock();
        let mut recorders = proxies.get(&endpoint.pod).into_iter().flatten();
        recorders.any(|r| r.is_of(endpoint) && r.ended.is_none() && r.rows.known > r.rows.received)
    }

    fn change(&self, id: &Id, change: impl FnOnce(&mut Recorder)) {
        if let Some(recorder) = self.lock().get_mut(&id.pod).and_then(|all| all.get_mut(id.number)) {
            change(recorder);
        }
        self.progress.notify_waiters();
    }

    /// Returns the recorder with this start time, which its proxy reported. If the recorder is new, earlier recorders
    /// of this pod have ended, and their number of rows is unknown.
    fn speaks(&self, endpoint: &Endpoint, started: Stamp) -> Id {
        let mut proxies = self.lock();
        let recorders = proxies.entry(endpoint.pod.clone()).or_default();
        let is_it = |r: &Recorder| r.is_of(endpoint) && r.started.is_none_or(|known| known == started);
        let known = recorders.iter().position(is_it);
        let number = known.unwrap_or(recorders.len());
        if known.is_none() {
            recorders.push(Recorder::new(endpoint.clone()));
        }
        recorders[number].started = Some(started);
        drop(proxies);
        if known.is_none() {
            self.end_all_but(endpoint, Some(number));
        }
        Id { pod: endpoint.pod.clone(), number }
    }

    /// Marks all recorders of this pod except one as ended: no more rows will come from them.
    fn end_all_but(&self, endpoint: &Endpoint, but: Option<usize>) {
        let numbers: Vec<usize> = {
            let proxies = self.lock();
            let recorders = proxies.get(&endpoint.pod).into_iter().flatten().enumerate();
            let own = recorders.filter(|(number, r)| r.is_of(endpoint) && Some(*number) != but);
            own.map(|(number, _)| number).collect()
        };
        for number in numbers {
            self.end(&Id { pod: endpoint.pod.clone(), number }, None);
        }
    }

    /// Records, once, that no more rows will come from a proxy.
    fn end(&self, id: &Id, recorded: Option<u64>) {
        let mut ended = None;
        self.change(id, |recorder| {
            if recorder.ended.is_none() {
                let rows = recorder.rows.ended(recorded);
                recorder.ended = Some(rows);
                ended = Some((recorder.endpoint.clone(), rows));
            }
        });
        if let Some((Endpoint { context, uid, .. }, rows)) = ended {
            let (pod, uid, of) = (id.pod.clone(), uid, id.source());
            let kind = EventKind::ProxyEnded { pod, uid, of, rows };
            context.recorder.record(kind);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Vec<Recorder>>> {
        self.proxies.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Follows every proxy that the view shows, until stopped.
async fn run(
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
            collector.meet(&endpoint);
            let (collector, views, stop) = (collector.clone(), views.clone(), stop.clone());
            tasks.spawn(async move {
                stop.run_until_cancelled(follow(&collector, &endpoint, views)).await;
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

/// Follows a pod's proxy through restarts of its container, until the pod is gone.
async fn follow(collector: &Collector, endpoint: &Endpoint, views: watch::Receiver<View>) {
    let (of_rows, of_clock) = (views.clone(), views);
    tokio::select! {
        () = follow_rows(collector, endpoint, of_rows) => collector.end_all_but(endpoint, None),
        () = follow_clock(collector, endpoint, of_clock) => {}
    }
}

/// Waits until the proxy's container is running; returns false once its pod is gone.
async fn runs(endpoint: &Endpoint, views: &mut watch::Receiver<View>) -> bool {
    let settled = |view: &View| {
        let seen = view.pods.get(&endpoint.uid);
        view.pods_listed && seen.is_none_or(|seen| seen.admin_port.is_some())
    };
    match views.wait_for(settled).await {
        Ok(view) => view.pods.contains_key(&endpoint.uid),
        Err(_) => false,
    }
}

async fn follow_rows(collector: &Collector, endpoint: &Endpoint, mut views: watch::Receiver<View>) {
    let (mut place, mut was_refused, mut pauses) = (None, false, Pauses::default());
    let mut is_unreadable = false;
    while runs(endpoint, &mut views).await {
        let from = place.as_ref().map_or_else(String::new, |place: &StreamPlace| {
            format!("?from={}&of={}", place.next, place.started.unix_ns())
        });
        let Ok(request) = endpoint.get(&format!("{ROWS_PATH}{from}")) else { return };
        match timeout(SILENCE, endpoint.context.client.request_stream(request)).await {
            Ok(Ok(reader)) => {
                let mut batches = pin!(lines(reader).ready_chunks(BATCH));
                let mut notes = 0;
                loop {
                    match timeout(SILENCE, batches.next()).await {
                        Ok(Some(batch)) => {
                            let mut unreadable = batch.iter().filter_map(|line| line.as_ref().err());
                            let why = unreadable.find(|error| error.kind() == ErrorKind::InvalidData);
                            if let Some(why) = why.filter(|_| !std::mem::replace(&mut is_unreadable, true)) {
                                endpoint.warn(&format!("sends unreadable data: {why}"));
                            }
                            if !is_unreadable {
                                pauses = Pauses::default();
                            }
                            take(collector, endpoint, batch, &mut place, &mut notes);
                        }
                        Ok(None) => break,
                        // The proxy may have nothing to send, or the stream may have broken silently.
                        Err(_) if collector.is_behind(endpoint) => break,
                        Err(_) => {}
                    }
                }
            }
            Ok(Err(error)) if wants_token(&error) && !was_refused => {
                was_refused = true;
                endpoint.warn("requires a token (--admin-token-file)");
            }
            // The proxy is starting or has exited, which its pod will show, or the API server is down.
            Ok(Err(_)) | Err(_) => {}
        }
        sleep(pauses.next()).await;
    }
}

/// Position from which a reader resumes a broken stream.
struct StreamPlace {
    id: Id,
    started: Stamp,
    /// Number of the next row.
    next: u64,
    /// Number of notes read so far. Every stream repeats all notes from the beginning.
    notes: usize,
}

/// Records a batch of lines. `told` counts the notes that this stream has repeated so far.
fn take(
    collector: &Collector,
    endpoint: &Endpoint,
    batch: Vec<std::io::Result<String>>,
    place: &mut Option<StreamPlace>,
    told: &mut usize,
) {
    let Endpoint { context, pod, .. } = endpoint;
    let mut rows: Vec<ServedRow> = Vec::new();
    let keep = |place: &StreamPlace, rows: Vec<ServedRow>| {
        if !rows.is_empty() {
            let count = rows.len() as u64;
            let mut is_over = false;
            collector.change(&place.id, |recorder| {
                is_over = recorder.ended.is_some();
                if !is_over {
                    recorder.rows.arrive(count);
                }
            });
            // The proxy also records requests after the run, which are not part of the run.
            if !is_over {
                context.recorder.served(&place.id.source(), rows);
            }
        }
    };
    for line in batch.into_iter().flatten() {
        let line = match ProxyLine::read(&line) {
            Ok(line) => line,
            Err(error) => {
                tracing::warn!(%pod, %error, "a proxy's line could not be read");
                // An unreadable row is counted, because otherwise the next stream would repeat it.
                if let Some(place) = place.as_mut().filter(|_| ProxyLine::is_row(&line)) {
                    place.next += 1;
                }
                continue;
            }
        };
        // Rows missing before this point show up in the counts when the proxy ends.
        if let ProxyLine::Hello { next, started_ns, .. } = line {
            if let Some(place) = place.as_ref() {
                keep(place, std::mem::take(&mut rows));
            }
            let id = collector.speaks(endpoint, started_ns);
            let notes =
                place.as_ref().filter(|place| place.started == started_ns).map_or(0, |place| place.notes);
            *place = Some(StreamPlace { id, started: started_ns, next, notes });
            continue;
        }
        let Some(place) = place.as_mut() else { continue };
        match line {
            ProxyLine::Row(row) => {
                rows.push(ServedRow { source: place.id.source().into(), ..row });
                place.next += 1;
            }
            ProxyLine::Phase { phase, t_ns } => {
                if place.is_news(told) {
                    let kind = EventKind::ProxyPhase { pod: pod.clone(), phase };
                    context.recorder.event_of(&place.id.source(), t_ns, kind);
                }
            }
            ProxyLine::Pod { t_ns, seen } => {
                if place.is_news(told) {
                    context.recorder.event_of(&place.id.source(), t_ns, EventKind::OwnPod(seen));
                }
            }
            ProxyLine::State { recorded, in_flight } => {
                collector.change(&place.id, |recorder| recorder.rows.hear(recorded, Some(in_flight)));
            }
            ProxyLine::End { recorded } => {
                keep(place, std::mem::take(&mut rows));
                collector.end(&place.id, Some(recorded));
            }
            ProxyLine::Hello { .. } => {}
        }
    }
    if let Some(place) = place {
        keep(place, rows);
    }
}

impl StreamPlace {
    /// Returns true if no earlier stream has delivered this stream's next note.
    fn is_news(&mut self, told: &mut usize) -> bool {
        *told += 1;
        let is_news = *told > self.notes;
        self.notes = self.notes.max(*told);
        is_news
    }
}

/// Compares clocks repeatedly. The uncertainty is half the round trip.
async fn follow_clock(collector: &Collector, endpoint: &Endpoint, mut views: watch::Receiver<View>) {
    let mut taken = 0;
    while runs(endpoint, &mut views).await {
        let clock = endpoint.context.recorder.clock();
        let sent = clock.now();
        if let Some(answer) = endpoint.clock().await {
            let sample = ClockOffset::of_exchange(sent, answer.now_ns, clock.now());
            let id = collector.speaks(endpoint, answer.started_ns);
            endpoint.context.recorder.event(sent, EventKind::clock_sample(&id.source(), sample));
            collector.change(&id, |recorder| {
                recorder.samples.push((sent, sample));
                recorder.rows.hear(answer.recorded, None);
            });
            taken += 1;
        }
        sleep(if taken < FIRST_CLOCK_SAMPLES { RETRY } else { CLOCK_INTERVAL }).await;
    }
    // Rows that have not arrived by now may still be in flight.
    std::future::pending().await
}
