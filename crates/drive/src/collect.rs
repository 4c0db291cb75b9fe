//! Collects records from the recording proxies in pods, through the API server's pod proxy.
//!
//! One task per pod follows its proxy's row stream from the start of its container until the pod is gone, and compares
//! clocks during that time. A restarted container is another recorder, with its own clock. Outside a run,
//! `sidecar_journals` does this for pods that are being deleted.

mod endpoint;
pub(crate) mod lines;
mod proxy_listener;
mod sidecar_journals;

use std::collections::{BTreeMap, HashSet};
use std::io::ErrorKind;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::{AsyncBufRead, StreamExt};
use http::HeaderValue;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::api::{Caller, Pauses, TimeLimits};
use crate::error::CoordinatorError;
use crate::observe::{Observer, View};
use crate::tasks::BackgroundTasks;
use endpoint::{Context, Endpoint, SILENCE, WantedRows, wants_token};
use lines::lines;
use proxy_listener::ProxyNews;
use rolldrop_record::run_info::{Role, Rows, Source};
use rolldrop_record::wire::{AdminToken, COLLECTOR_HEADER, ClockAnswer, ProxyLine, ROWS_PATH};
use rolldrop_record::{ClockOffset, EventKind, Offsets, ServedEnd, ServedRow, Stamp};
pub use sidecar_journals::{JournalDelivery, JournalDeliveryKind, SidecarJournals, SidecarSource};

/// Pause between attempts at the first clock exchanges with a proxy.
const RETRY: Duration = Duration::from_millis(100);
/// Number of exchanges at the first contact with a proxy: enough for one of them to have a short round trip.
const FIRST_CLOCK_SAMPLES: usize = 8;
/// Pause between later clock exchanges.
const CLOCK_INTERVAL: Duration = Duration::from_secs(2);
/// Maximum number of lines processed at once. Together with the length of the longest line, it bounds the memory for
/// one proxy.
const BATCH: usize = 128;

/// Everything that is known about the proxies.
#[derive(Clone, Default)]
pub(crate) struct Collector {
    /// Recorders by ID, in the order of their start; each is a separate source.
    recorders: Arc<Mutex<Recorders>>,
    progress: Arc<Notify>,
}

type Recorders = BTreeMap<usize, Recorder>;

/// A recording proxy from its start until it exits.
struct Recorder {
    endpoint: Endpoint,
    /// Name of the source: the pod's name, with a number appended if earlier recorders have the same name. Pods may
    /// reuse a name, as in a StatefulSet.
    source: String,
    /// Start time that the proxy reported; `None` until it has reported one.
    started: Option<Stamp>,
    rows: Rows,
    /// Final counts; set once the rows are complete, or no more are expected.
    ended: Option<Rows>,
    /// Results of the clock exchanges, each with the time of its request.
    samples: Vec<(Stamp, ClockOffset)>,
}

impl Recorder {
    fn is_of(&self, endpoint: &Endpoint) -> bool {
        self.endpoint.uid == endpoint.uid
    }
}

impl Collector {
    /// Starts following every proxy that the observer sees.
    pub(crate) fn begin(
        caller: &Caller,
        observer: &Observer,
        admin_token: Option<AdminToken>,
        tasks: &mut BackgroundTasks,
    ) -> Self {
        let listener = Arc::new(observer.recorder().clone());
        let context =
            Context { client: caller.client.clone(), listener, admin_token, wanted: WantedRows::All };
        Self::follow(context, observer.views().subscribe(), tasks)
    }

    /// Starts following every proxy that the views show.
    fn follow(context: Context, views: watch::Receiver<View>, tasks: &mut BackgroundTasks) -> Self {
        let collector = Self::default();
        tasks.spawn_stoppable(|stop| run(collector.clone(), context, views, stop));
        collector
    }

    /// Waits until every live proxy has handed over its rows, or the limit passes, and records the counts.
    pub(crate) async fn catch_up(&self, limits: &TimeLimits) {
        let limit = limits.hand_over;
        let live: Vec<Endpoint> = {
            let (recorders, mut seen) = (self.lock(), HashSet::new());
            let is_last = |r: &&Recorder| seen.insert(r.endpoint.pod.clone()) && r.ended.is_none();
            recorders.values().rev().filter(is_last).map(|r| r.endpoint.clone()).collect()
        };
        let each = live.iter().map(|endpoint| async {
            let Some(answer) = endpoint.last_clock(limits).await else {
                return self.end_all_but(endpoint, None);
            };
            let (id, _) = self.speaks(endpoint, answer.started_ns);
            let caught_up = async {
                loop {
                    let progress = self.progress.notified();
                    if self.lock().get(&id).is_none_or(|r| r.rows.received >= answer.recorded) {
                        return;
                    }
                    progress.await;
                }
            };
            // The counts show whether the rows arrived in time.
            let _ = timeout(limit, caught_up).await;
            self.end(id, Some(answer.recorded));
        });
        futures::future::join_all(each).await;
    }

    /// Returns the proxies as sources of the run, by pod name.
    pub(crate) fn sources(&self) -> Vec<Source> {
        let source = |recorder: &&Recorder| {
            let offset = Offsets::of(recorder.samples.iter().copied()).map(|offsets| offsets.overall());
            Source {
                name: recorder.source.clone(),
                role: Role::Proxy,
                clock_offset_ns: offset.map_or(0, |offset| offset.offset_ns),
                clock_uncertainty_ns: offset.map(|offset| offset.uncertainty_ns),
                rows: Some(recorder.ended.unwrap_or(recorder.rows)),
            }
        };
        let recorders = self.lock();
        let mut by_pod: Vec<&Recorder> = recorders.values().collect();
        by_pod.sort_by_key(|recorder| &recorder.endpoint.pod);
        by_pod.iter().map(source).collect()
    }

    /// Adds a proxy that nothing else is known about yet, and returns its ID.
    fn add(recorders: &mut Recorders, endpoint: &Endpoint) -> usize {
        let is_namesake =
            |r: &&Recorder| r.endpoint.namespace == endpoint.namespace && r.endpoint.pod == endpoint.pod;
        let earlier = recorders.values().filter(is_namesake).count();
        let source = match earlier {
            0 => endpoint.pod.clone(),
            _ => format!("{}~{earlier}", endpoint.pod),
        };
        let (rows, samples) = (Rows::default(), Vec::new());
        let recorder =
            Recorder { endpoint: endpoint.clone(), source, started: None, rows, ended: None, samples };
        let id = recorders.last_key_value().map_or(0, |(last, _)| last + 1);
        recorders.insert(id, recorder);
        id
    }

    /// Forgets this pod's recorders.
    fn forget(&self, endpoint: &Endpoint) {
        let forgotten: Vec<Recorder> =
            self.lock().extract_if(.., |_, r| r.is_of(endpoint)).map(|(_, r)| r).collect();
        forgotten.iter().for_each(|r| endpoint.tell(&r.source, ProxyNews::Forgotten));
    }

    /// Passes on news about this pod's latest recorder.
    fn tell_latest(&self, endpoint: &Endpoint, news: ProxyNews) {
        let latest = self.lock().values().rfind(|r| r.is_of(endpoint)).map(|r| r.source.clone());
        if let Some(source) = latest {
            endpoint.tell(&source, news);
        }
    }

    /// Returns true if this pod's proxy is known to have recorded more than has arrived.
    fn is_behind(&self, endpoint: &Endpoint) -> bool {
        let is_behind = |r: &Recorder| r.ended.is_none() && r.rows.known > r.rows.received;
        self.lock().values().any(|r| r.is_of(endpoint) && is_behind(r))
    }

    fn change(&self, id: usize, change: impl FnOnce(&mut Recorder)) {
        if let Some(recorder) = self.lock().get_mut(&id) {
            change(recorder);
        }
        self.progress.notify_waiters();
    }

    /// Returns the ID and the source of the recorder with this start time, which its proxy reported. If the recorder is
    /// new, earlier recorders of this pod have ended, and their number of rows is unknown.
    fn speaks(&self, endpoint: &Endpoint, started: Stamp) -> (usize, String) {
        let is_it = |r: &Recorder| r.is_of(endpoint) && r.started.is_none_or(|known| known == started);
        let mut recorders = self.lock();
        let known = recorders.iter().find(|(_, r)| is_it(r)).map(|(id, _)| *id);
        let id = known.unwrap_or_else(|| Self::add(&mut recorders, endpoint));
        let mut source = String::new();
        if let Some(recorder) = recorders.get_mut(&id) {
            recorder.started = Some(started);
            source.clone_from(&recorder.source);
        }
        drop(recorders);
        if known.is_none() {
            self.end_all_but(endpoint, Some(id));
        }
        (id, source)
    }

    /// Marks all recorders of this pod except one as ended; no more rows will arrive from them.
    fn end_all_but(&self, endpoint: &Endpoint, but: Option<usize>) {
        let own: Vec<usize> = {
            let recorders = self.lock();
            let own = recorders.iter().filter(|(id, r)| r.is_of(endpoint) && Some(**id) != but);
            own.map(|(id, _)| *id).collect()
        };
        own.into_iter().for_each(|id| self.end(id, None));
    }

    /// Records, once, that no more rows will arrive from a proxy.
    fn end(&self, id: usize, recorded: Option<u64>) {
        let mut ended = None;
        self.change(id, |recorder| {
            if recorder.ended.is_none() {
                let rows = recorder.rows.ended(recorded);
                recorder.ended = Some(rows);
                ended = Some((recorder.endpoint.clone(), recorder.source.clone(), rows));
            }
        });
        if let Some((endpoint, source, rows)) = ended {
            endpoint.tell(&source, ProxyNews::Ended(rows));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Recorders> {
        self.recorders.lock().unwrap_or_else(PoisonError::into_inner)
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
            if view.pods_listed {
                met.retain(|uid| view.pods.contains_key(uid));
            }
            let pods = view.pods.values().filter_map(|seen| Some((&seen.event, seen.admin_port?)));
            pods.filter(|(pod, _)| !met.contains(&pod.uid))
                .map(|(pod, port)| Endpoint {
                    context: context.clone(),
                    namespace: pod.namespace.clone(),
                    pod: pod.name.clone(),
                    uid: pod.uid.clone(),
                    port,
                })
                .collect()
        };
        for endpoint in running {
            met.insert(endpoint.uid.clone());
            Collector::add(&mut collector.lock(), &endpoint);
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
    if let WantedRows::Latest(_) = endpoint.context.wanted {
        collector.forget(endpoint);
    }
}

fn is_gone(endpoint: &Endpoint, views: &watch::Receiver<View>) -> bool {
    let view = views.borrow();
    view.pods_listed && !view.pods.contains_key(&endpoint.uid)
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
        match timeout(SILENCE, open_rows(collector, endpoint, &mut place)).await {
            Ok(Ok(reader)) => {
                let mut batches = pin!(lines(reader).ready_chunks(BATCH));
                let mut notes = 0;
                loop {
                    match timeout(SILENCE, batches.next()).await {
                        Ok(Some(batch)) => {
                            let mut unreadable = batch.iter().filter_map(|line| line.as_ref().err());
                            let why = unreadable.find(|error| error.kind() == ErrorKind::InvalidData);
                            if let Some(why) = why.filter(|_| !std::mem::replace(&mut is_unreadable, true)) {
                                let what = format!("sends unreadable data: {why}");
                                collector.tell_latest(endpoint, ProxyNews::Warning(what));
                            }
                            if !is_unreadable {
                                pauses = Pauses::default();
                            }
                            take(collector, endpoint, batch, &mut place, &mut notes);
                        }
                        Ok(None) => break,
                        // The proxy may have nothing to send, or the stream may have broken silently.
                        Err(_) if collector.is_behind(endpoint) || is_gone(endpoint, &views) => break,
                        Err(_) => {}
                    }
                }
            }
            Ok(Err(error)) => {
                let warning = lasting_trouble(&error, endpoint).filter(|_| !was_refused);
                if let Some(what) = warning {
                    was_refused = true;
                    collector.tell_latest(endpoint, ProxyNews::Warning(what));
                }
                collector.tell_latest(endpoint, ProxyNews::Failed(CoordinatorError::why(&error)));
            }
            Err(_) => collector.tell_latest(endpoint, ProxyNews::Failed("it did not respond".to_owned())),
        }
        sleep(pauses.next()).await;
    }
}

/// Describes a lasting problem, phrased as the end of a sentence about the proxy. Returns `None` for other problems:
/// the proxy is starting or has exited, which its pod will show, or the API server is down.
fn lasting_trouble(error: &kube::Error, endpoint: &Endpoint) -> Option<String> {
    match error {
        error if wants_token(error) && endpoint.context.admin_token.is_some() => {
            Some("does not accept the token (--admin-token-file)".to_owned())
        }
        error if wants_token(error) => Some("requires a token (--admin-token-file)".to_owned()),
        kube::Error::Api(status) if status.code == 403 => {
            Some(format!("cannot be read: {}", CoordinatorError::why(error)))
        }
        _ => None,
    }
}

/// Opens the row stream where the last one broke off, or at the first row that is wanted.
async fn open_rows(
    collector: &Collector,
    endpoint: &Endpoint,
    place: &mut Option<StreamPlace>,
) -> kube::Result<impl AsyncBufRead + Unpin + use<>> {
    if let (None, WantedRows::Latest(rows)) = (&place, endpoint.context.wanted) {
        let (id, source, answer) = exchange(collector, endpoint).await?;
        let next = answer.recorded.saturating_sub(rows);
        // Rows that are not wanted count as received.
        collector.change(id, |recorder| recorder.rows.arrive(next));
        let (source, started) = (source.into(), answer.started_ns);
        *place = Some(StreamPlace { id, source, started, next, notes: 0 });
    }
    let from = place
        .as_ref()
        .map_or_else(String::new, |place| format!("?from={}&of={}", place.next, place.started.unix_ns()));
    let mut request = endpoint.get(&format!("{ROWS_PATH}{from}")).map_err(kube::Error::HttpError)?;
    request.headers_mut().insert(COLLECTOR_HEADER, HeaderValue::from_static("true"));
    endpoint.context.client.request_stream(request).await
}

/// Position from which a reader resumes a broken stream.
struct StreamPlace {
    id: usize,
    /// Name of the recorder as a source.
    source: Arc<str>,
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
    let pod = &endpoint.pod;
    let mut rows: Vec<ServedRow> = Vec::new();
    let keep = |place: &StreamPlace, rows: Vec<ServedRow>| {
        if !rows.is_empty() {
            let count = rows.iter().filter(|row| row.ended != ServedEnd::Open).count() as u64;
            let mut is_over = false;
            collector.change(place.id, |recorder| {
                is_over = recorder.ended.is_some();
                if !is_over {
                    recorder.rows.arrive(count);
                }
            });
            // The proxy also records requests after the run, which are not part of the run.
            if !is_over {
                endpoint.tell(&place.source, ProxyNews::Rows(rows));
            }
        }
    };
    for line in batch.into_iter().flatten() {
        let line = match ProxyLine::read(&line) {
            Ok(line) => line,
            Err(error) => {
                tracing::warn!(%pod, %error, "failed to parse a proxy's line");
                // An unreadable row is counted, because otherwise the next stream would repeat it.
                if let Some(place) = place.as_mut().filter(|_| ProxyLine::is_row(&line)) {
                    place.next += 1;
                }
                continue;
            }
        };
        // Rows missing before this point show up in the counts when the proxy exits.
        if let ProxyLine::Hello { next, started_ns, .. } = line {
            if let Some(place) = place.as_ref() {
                keep(place, std::mem::take(&mut rows));
            }
            let (id, source) = collector.speaks(endpoint, started_ns);
            let same = place.as_ref().filter(|place| place.started == started_ns);
            let (wanted, notes) = same.map_or((0, 0), |place| (place.next, place.notes));
            if next > wanted {
                endpoint.tell(&source, ProxyNews::RowsMissing);
            }
            *place = Some(StreamPlace { id, source: source.into(), started: started_ns, next, notes });
            continue;
        }
        let Some(place) = place.as_mut() else { continue };
        match line {
            ProxyLine::Row(row) => {
                rows.push(ServedRow { source: Arc::clone(&place.source), ..row });
                place.next += 1;
            }
            ProxyLine::Open(row) => {
                let source = Arc::clone(&place.source);
                rows.push(ServedRow { source, ended: ServedEnd::Open, ..row });
            }
            ProxyLine::Phase { phase, t_ns } => {
                if place.is_news(told) {
                    let kind = EventKind::ProxyPhase { pod: pod.clone(), phase };
                    endpoint.tell(&place.source, ProxyNews::Event(Box::new((t_ns, kind))));
                }
            }
            ProxyLine::Pod { t_ns, seen } => {
                if place.is_news(told) {
                    let event = Box::new((t_ns, EventKind::OwnPod(seen)));
                    endpoint.tell(&place.source, ProxyNews::Event(event));
                }
            }
            ProxyLine::State { recorded, in_flight } => {
                collector.change(place.id, |recorder| recorder.rows.hear(recorded, Some(in_flight)));
            }
            ProxyLine::End { recorded } => {
                keep(place, std::mem::take(&mut rows));
                collector.end(place.id, Some(recorded));
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
        if let Ok(Ok(_)) = timeout(SILENCE, exchange(collector, endpoint)).await {
            taken += 1;
        }
        sleep(if taken < FIRST_CLOCK_SAMPLES { RETRY } else { CLOCK_INTERVAL }).await;
    }
    // Rows that have not arrived by now may still be in flight.
    std::future::pending().await
}

/// Compares clocks once. Returns the recorder's ID and source, and its answer.
async fn exchange(collector: &Collector, endpoint: &Endpoint) -> kube::Result<(usize, String, ClockAnswer)> {
    let clock = endpoint.context.listener.clock();
    let sent = clock.now();
    let answer = endpoint.ask_clock().await?;
    let sample = ClockOffset::of_exchange(sent, answer.now_ns, clock.now());
    let (id, source) = collector.speaks(endpoint, answer.started_ns);
    endpoint.tell(&source, ProxyNews::Clock(sent, sample));
    collector.change(id, |recorder| {
        recorder.samples.push((sent, sample));
        recorder.rows.hear(answer.recorded, None);
    });
    Ok((id, source, answer))
}
