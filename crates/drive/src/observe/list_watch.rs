//! Follows the objects of one kind with a list, and then a watch that is resumed where it broke off.
//!
//! A watch that breaks is resumed from the last resourceVersion. Nothing is lost, but the changes in between arrive
//! late, and the delay is recorded. The watch restarts with a list only if the API server has forgotten that version
//! (410). Then the changes between the last good line and the list are unknown; a gap is recorded, and no transition is
//! invented. [`super::sinks`] processes the objects.

use std::fmt::Debug;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use kube::api::{ListParams, WatchParams};
use kube::core::WatchEvent;
use kube::{Api, Resource, ResourceExt};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::namespace_view::{View, Views};
use crate::api::{Pages, Pauses, TimeLimits, page, retry_after};
use crate::error::CoordinatorError;
use rolldrop_kubernetes::Listed;
use rolldrop_kubernetes::guard::distrust;
use rolldrop_record::event::Change;
use rolldrop_record::{Clock, EventKind, Stamp};

/// Time for which the API server may keep a watch open, in seconds. A quiet watch shows that it is alive only when it
/// is opened, and when it is closed on time.
const WATCH_S: u32 = 30;
/// Time without a sign of life after which a watch counts as dead.
pub(super) const LONGEST_SILENCE: Duration = Duration::from_secs(2 * WATCH_S as u64);
/// Shortest interruption to record. A shorter one delays events by less than the precision of a termination's
/// times.
const SHORTEST_DELAY: Duration = Duration::from_secs(1);

/// Time limit for the first lists, which may be long.
const FIRST_LISTS: Duration = Duration::from_secs(300);

/// Processes the objects of one watch, and returns the events to record.
pub(super) trait Sink<K>: Send {
    /// Part of an object to keep. A list is processed as a whole, and may contain thousands of objects.
    type Seen: Send;

    fn see(&self, change: Change, object: K) -> Self::Seen;
    fn take(&mut self, change: Change, seen: Self::Seen) -> Option<EventKind>;
    /// Forgets all objects, because a list follows.
    fn begin_list(&mut self) {}
    fn end_list(&mut self) {}
}

/// Receives the events of watches.
pub(super) trait WatchListener: Send + Sync {
    /// Returns the clock of this process.
    fn clock(&self) -> Clock;
    /// Takes an event. `namespace` is the namespace of the object that the event is about, if the object is in one.
    fn take(&self, at: Stamp, namespace: Option<String>, kind: EventKind);
}

/// Importance of a watch or a call for a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Nothing can be measured without the watch or call.
    Must,
    /// The watch or call helps to explain results; it is skipped if it is not allowed, or if the cluster does not have
    /// the kind.
    Helps,
}

/// Objects of one kind that the run follows.
pub(super) struct Following<K, S> {
    pub(crate) resource: &'static str,
    pub(crate) need: Need,
    pub(crate) labels: Option<String>,
    pub(crate) fields: Option<String>,
    pub(crate) api: Api<K>,
    pub(super) sink: S,
    pub(crate) limits: TimeLimits,
    pub(super) listener: Arc<dyn WatchListener>,
    pub(crate) views: Views,
    pub(crate) state: WatchState,
}

/// Waits for the first lists of watches outside a run so that nothing that happens later is missed.
///
/// # Errors
/// Fails if something cannot be listed. Waits for an API server that is temporarily down, overloaded or faulty.
pub(super) async fn await_first_lists(views: &Views) -> Result<(), CoordinatorError> {
    let listed = views.wait_until(|view| view.unlisted.is_empty() || hopeless(view).next().is_some());
    if timeout(FIRST_LISTS, listed).await.is_err() {
        let unlisted = views.read(|view| view.unlisted.iter().copied().collect::<Vec<_>>());
        let what = format!("list {}", unlisted.join(", "));
        return Err(CoordinatorError::Timeout { what, limit: FIRST_LISTS });
    }
    let in_the_way =
        |view: &View| hopeless(view).next().map(|(what, why)| (format!("list {what}"), why.clone()));
    match views.read(in_the_way) {
        Some((what, why)) => Err(CoordinatorError::refused(what, why)),
        None => Ok(()),
    }
}

/// Returns the resources whose first list is no longer waited for, each with the reason.
fn hopeless(view: &View) -> impl Iterator<Item = (&'static str, &String)> {
    view.unbelieved.iter().chain(&view.unlistable).map(|(what, why)| (*what, why))
}

/// Returns the resources that cannot be watched now, each with the reason.
pub(super) fn trouble(view: &View) -> impl Iterator<Item = (&'static str, &String)> {
    view.unbelieved.iter().chain(&view.trouble).map(|(what, why)| (*what, why))
}

/// Reason that a watch is not open.
enum Broken {
    /// The API server ended the watch.
    Ended,
    /// The watch was interrupted, or could not be opened.
    Cut { why: String, pause: Option<Duration> },
    /// The watch was silent for longer than it may stay open.
    Silent,
    /// The API server has forgotten the version to resume from.
    Forgotten,
    /// The watch is not allowed, or the cluster does not have the kind.
    NotToBeHad(String),
    /// The watch shows something other than what was asked for.
    Unbelieved(String),
}

impl Broken {
    fn of(error: &kube::Error) -> Self {
        if let Some(why) = distrust(error) {
            return Self::Unbelieved(why.to_string());
        }
        match error {
            kube::Error::Api(status) if status.code == 410 => Self::Forgotten,
            kube::Error::Api(status) if [403, 404].contains(&status.code) => {
                Self::NotToBeHad(status.message.clone())
            }
            error => Self::Cut { why: CoordinatorError::why(error), pause: retry_after(error) },
        }
    }
}

/// State of a watch.
pub(crate) struct WatchState {
    /// Version to resume from; `None` before a list.
    version: Option<String>,
    /// Time of the watch's last sign of life.
    last_good: Stamp,
    /// Time at which the watch broke; `None` if it is open.
    broken: Option<Stamp>,
    /// True if the last response opened the watch, but its data could not be used.
    is_unusable: bool,
    has_listed: bool,
}

impl WatchState {
    /// Returns the state, at this time, of a watch that has not listed anything yet.
    pub(crate) const fn at(now: Stamp) -> Self {
        Self { version: None, last_good: now, broken: None, is_unusable: false, has_listed: false }
    }
}

impl<K, S> Following<K, S>
where
    K: Resource + Listed + Debug + Send + 'static,
    S: Sink<K>,
{
    /// Follows the objects until stopped.
    pub(crate) async fn until(mut self, stop: CancellationToken) {
        stop.run_until_cancelled(self.for_ever()).await;
        // Events since the break are unknown, and there is no time left to ask for them.
        let WatchState { broken, has_listed, .. } = self.state;
        if let Some(from) = broken.filter(|from| has_listed && self.is_long_since(*from)) {
            self.note(from, |resource, from| EventKind::WatchGap { resource, from });
        }
    }

    async fn for_ever(&mut self) {
        let mut pauses = Pauses::default();
        loop {
            let begun = Instant::now();
            let broken = match self.state.version.clone() {
                None => self.list().await.err(),
                Some(version) => Some(self.watch(&version).await),
            };
            let Some(broken) = broken else { continue };
            let now = self.listener.clock().now();
            let is_late = matches!(broken, Broken::Silent | Broken::Forgotten);
            let since = if is_late { self.state.last_good } else { now };
            self.state.broken.get_or_insert(since);
            let resource = self.resource;
            let mut told = None;
            match broken {
                Broken::Ended => self.note_life(now),
                Broken::Cut { why, pause } => {
                    tracing::debug!(resource, %why, "watch interrupted");
                    let is_over = self.state.broken.is_some_and(|from| now >= from + self.limits.outage);
                    self.note_trouble(why, is_over);
                    told = pause;
                }
                Broken::Silent => tracing::debug!(resource, "watch silent for too long"),
                Broken::Forgotten => self.state.version = None,
                // An API server that has just started may refuse for a while what it will allow, so that only a watch
                // that has never shown anything is skipped.
                Broken::NotToBeHad(why) if self.need == Need::Helps && !self.state.has_listed => {
                    tracing::debug!(resource, %why, "watch skipped");
                    self.note(now, |resource, _| EventKind::NotWatched { resource, why });
                    self.views.update(|view| {
                        view.unlisted.remove(resource);
                        view.trouble.remove(resource);
                    });
                    // The run misses nothing that it could have seen.
                    self.state.broken = None;
                    return;
                }
                Broken::NotToBeHad(why) => self.note_trouble(why, true),
                Broken::Unbelieved(why) => self.disbelieve(why),
            }
            // A watch that was open for a while is resumed immediately.
            if begun.elapsed() > SHORTEST_DELAY && told.is_none() {
                pauses = Pauses::default();
            } else {
                sleep(told.unwrap_or_else(|| pauses.next())).await;
            }
        }
    }

    /// Lists all objects. This also ends a gap.
    async fn list(&mut self) -> Result<(), Broken> {
        let mut pages = Pages::of(&ListParams {
            label_selector: self.labels.clone(),
            field_selector: self.fields.clone(),
            ..ListParams::default()
        });
        let mut objects = Vec::new();
        let version = loop {
            let listing = timeout(self.limits.api_call, page(&self.api, &pages.next())).await;
            let page = listing.map_err(|_| Broken::Silent)?.and_then(|page| pages.take(page));
            let page = page.map_err(|error| Broken::of(&error))?;
            objects.extend(page.into_iter().map(|object| self.see(Change::Listed, object)));
            if let Some(version) = pages.version() {
                break version.to_owned();
            }
        };
        if self.state.has_listed {
            self.note(self.state.last_good, |resource, from| EventKind::WatchGap { resource, from });
        }
        let now = self.listener.clock().now();
        self.sink.begin_list();
        for object in objects {
            self.keep(Change::Listed, object, now);
        }
        self.sink.end_list();
        self.views.update_if(|view| view.unlisted.remove(self.resource));
        self.note_life(now);
        self.state = WatchState { version: Some(version), has_listed: true, ..WatchState::at(now) };
        Ok(())
    }

    /// Watches until the watch breaks, and returns the reason.
    async fn watch(&mut self, version: &str) -> Broken {
        let params = WatchParams {
            label_selector: self.labels.clone(),
            field_selector: self.fields.clone(),
            timeout: Some(WATCH_S),
            ..WatchParams::default()
        };
        let limit = self.limits.api_call;
        let end = Instant::now() + Duration::from_secs(WATCH_S.into()) + limit;
        let stream = match timeout(limit, self.api.watch(&params, version)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Broken::of(&error),
            Err(_) => return Broken::Silent,
        };
        let mut stream = pin!(stream);
        // After unusable data, the watch is late until there is something usable.
        if !self.state.is_unusable {
            self.opened();
        }
        loop {
            let event = match timeout_at(end, stream.next()).await {
                Ok(Some(Ok(event))) => event,
                Ok(Some(Err(error))) => return self.failed(&error),
                Ok(None) => {
                    self.opened();
                    return Broken::Ended;
                }
                Err(_) => return Broken::Silent,
            };
            let now = self.listener.clock().now();
            if self.state.broken.is_some() && !matches!(event, WatchEvent::Error(_)) {
                self.opened();
            }
            let (change, object) = match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => (Change::Applied, object),
                WatchEvent::Deleted(object) => (Change::Deleted, object),
                WatchEvent::Bookmark(bookmark) => {
                    self.note_life(now);
                    self.state.last_good = now;
                    self.state.version = Some(bookmark.metadata.resource_version);
                    continue;
                }
                WatchEvent::Error(status) => return self.failed(&kube::Error::Api(status)),
            };
            let version = object.resource_version();
            let seen = self.see(change, object);
            self.keep(change, seen, now);
            self.note_life(now);
            self.state.last_good = now;
            self.state.version = version.or(self.state.version.take());
        }
    }

    /// Returns the reason for which an open watch broke. If that is its data, not its connection, the next response does
    /// not show yet that the watch is open again.
    fn failed(&mut self, error: &kube::Error) -> Broken {
        let is_data = matches!(
            error,
            kube::Error::Api(_) | kube::Error::SerdeError(_) | kube::Error::LinesCodecMaxLineLengthExceeded
        );
        self.state.is_unusable |= is_data || distrust(error).is_some();
        Broken::of(error)
    }

    /// Warns once that the watch is ignored until the API server shows what was asked for.
    fn disbelieve(&self, why: String) {
        let resource = self.resource;
        if self.views.read(|view| view.unbelieved.contains_key(resource)) {
            return;
        }
        let message = format!("the watch of {resource} returns unusable data: {why}");
        self.listener.take(self.listener.clock().now(), None, EventKind::Warning { message });
        self.views.update(|view| {
            view.unbelieved.insert(resource, why);
        });
    }

    /// Notes that the watch is not open. If `is_hopeless`, nobody should wait for its first list any longer.
    fn note_trouble(&self, why: String, is_hopeless: bool) {
        self.views.update(|view| {
            if is_hopeless && !self.state.has_listed {
                view.unlistable.insert(self.resource, why.clone());
            }
            view.trouble.insert(self.resource, why);
        });
    }

    /// Notes that a watch is open again, and records the delay if it was long.
    fn opened(&mut self) {
        self.state.is_unusable = false;
        if let Some(from) = self.state.broken.take().filter(|from| self.is_long_since(*from)) {
            self.note(from, |resource, from| EventKind::WatchLate { resource, from });
        }
        self.views.update_if(|view| view.trouble.remove(self.resource).is_some());
    }

    /// Notes that the watch has shown everything that happened until shortly before `at`, so it is trusted again.
    fn note_life(&self, at: Stamp) {
        // No task waits for the time, so none is woken for it.
        self.views.update_if(|view| {
            view.alive.insert(self.resource, at);
            view.unbelieved.remove(self.resource).is_some()
        });
    }

    fn is_long_since(&self, from: Stamp) -> bool {
        self.listener.clock().now() > from + SHORTEST_DELAY
    }

    fn see(&self, change: Change, object: K) -> (Option<String>, S::Seen) {
        (object.namespace(), self.sink.see(change, object))
    }

    fn keep(&mut self, change: Change, (namespace, seen): (Option<String>, S::Seen), now: Stamp) {
        if let Some(kind) = self.sink.take(change, seen) {
            self.listener.take(now, namespace, kind);
        }
    }

    fn note(&self, from: Stamp, kind: impl FnOnce(String, Stamp) -> EventKind) {
        self.listener.take(self.listener.clock().now(), None, kind(self.resource.to_owned(), from));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use k8s_openapi::api::apps::v1::ReplicaSet;
    use kube::Client;
    use rolldrop_kubernetes::guard::GuardLayer;
    use serde_json::json;
    use tokio::task::JoinSet;
    use tower::Layer;

    use super::*;
    use crate::session::tests::{api, status};

    const SETS: &str = "replicasets";

    struct Unseen;

    impl Sink<ReplicaSet> for Unseen {
        type Seen = ();

        fn see(&self, _: Change, _: ReplicaSet) {}

        fn take(&mut self, _: Change, (): ()) -> Option<EventKind> {
            None
        }
    }

    struct Heard(Clock, Mutex<Vec<EventKind>>);

    impl WatchListener for Heard {
        fn clock(&self) -> Clock {
            self.0
        }

        fn take(&self, _: Stamp, _: Option<String>, kind: EventKind) {
            self.1.lock().unwrap().push(kind);
        }
    }

    /// Stands for a response that is no Kubernetes object.
    const UNTRUSTED: u16 = 0;
    /// Stands for a response that is no ReplicaSet.
    const UNDECODABLE: u16 = 1;
    /// Stands for a response that has only an error.
    const FAILING: u16 = 2;

    /// Returns a watch of ReplicaSets that has not begun, with an API server that answers the first calls with these
    /// statuses. Its first list is empty, and it ends each watch at once.
    fn following(
        need: Need,
        outage: Duration,
        statuses: &'static [u16],
    ) -> (Following<ReplicaSet, Unseen>, Arc<Heard>) {
        let (asked, has_listed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let (client, _) = api(move |_, _| match statuses.get(asked.fetch_add(1, Ordering::SeqCst)) {
            Some(&UNTRUSTED) => (200, "no object\n".to_owned()),
            Some(&UNDECODABLE) => {
                let set = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "a"}, "spec": 5});
                (200, format!("{}\n", json!({"type": "ADDED", "object": set})))
            }
            Some(&FAILING) => {
                let failed = json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": 500});
                (200, format!("{}\n", json!({"type": "ERROR", "object": failed})))
            }
            None | Some(200) if has_listed.swap(true, Ordering::SeqCst) => (200, String::new()),
            None | Some(200) => {
                let metadata = json!({"resourceVersion": "1"});
                (
                    200,
                    json!({"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": []})
                        .to_string(),
                )
            }
            Some(code) => status(*code, "", "refused"),
        });
        let unguarded = tower::service_fn(move |request| {
            let client = client.clone();
            async move { client.send(request).await }
        });
        let client = Client::new(GuardLayer.layer(unguarded), "shop");
        let (views, clock) = (Views::default(), Clock::start());
        let heard = Arc::new(Heard(clock, Mutex::default()));
        views.update(|view| _ = view.unlisted.insert(SETS));
        let following = Following {
            resource: SETS,
            need,
            labels: None,
            fields: None,
            api: Api::<ReplicaSet>::namespaced(client, "shop"),
            sink: Unseen,
            limits: TimeLimits { outage, ..TimeLimits::default() },
            listener: Arc::<Heard>::clone(&heard),
            views,
            state: WatchState::at(clock.now()),
        };
        (following, heard)
    }

    /// Follows ReplicaSets.
    fn follow(need: Need, outage: Duration, statuses: &'static [u16]) -> (Views, Arc<Heard>, JoinSet<()>) {
        let (following, heard) = following(need, outage, statuses);
        let (views, mut tasks) = (following.views.clone(), JoinSet::new());
        tasks.spawn(following.until(CancellationToken::new()));
        (views, heard, tasks)
    }

    const OUTAGE: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn optional_watch_survives_passing_refusal() {
        let (views, heard, _tasks) = follow(Need::Helps, OUTAGE, &[200, 403]);
        views.wait_until(|view| view.trouble.contains_key(SETS)).await;
        views.wait_until(|view| view.trouble.is_empty()).await;
        assert_eq!(*heard.1.lock().unwrap(), []);
    }

    #[tokio::test(start_paused = true)]
    async fn watch_is_trusted_again_after_good_data() {
        let (views, heard, _tasks) = follow(Need::Helps, OUTAGE, &[200, UNTRUSTED, UNTRUSTED]);
        views.wait_until(|view| trouble(view).next().is_some()).await;
        views.wait_until(|view| trouble(view).next().is_none()).await;
        let warnings = heard.1.lock().unwrap();
        assert!(matches!(&warnings[..], [EventKind::Warning { .. }]), "{warnings:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn watch_is_late_until_its_data_is_usable() {
        const CASES: [&[u16]; 3] =
            [&[200, UNTRUSTED, UNTRUSTED], &[200, UNDECODABLE, UNDECODABLE], &[200, FAILING, FAILING]];
        for statuses in CASES {
            let (mut following, heard) = following(Need::Must, OUTAGE, statuses);
            assert!(following.list().await.is_ok());
            let broken = following.watch("1").await;
            assert!(matches!(broken, Broken::Cut { .. } | Broken::Unbelieved(_)), "{statuses:?}");
            // Some time later.
            following.state.broken = Some(following.state.last_good.shifted_ns(-10_000_000_000));
            following.watch("1").await;
            assert_eq!(*heard.1.lock().unwrap(), [], "{statuses:?}");
            assert!(matches!(following.watch("1").await, Broken::Ended), "{statuses:?}");
            let late = std::mem::take(&mut *heard.1.lock().unwrap());
            assert!(matches!(&late[..], [EventKind::WatchLate { .. }]), "{late:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn refused_optional_watch_leaves_no_trouble() {
        let (views, heard, mut tasks) = follow(Need::Helps, OUTAGE, &[503, 403]);
        tasks.join_next().await;
        let (resource, why) = (SETS.to_owned(), "refused".to_owned());
        assert_eq!(*heard.1.lock().unwrap(), [EventKind::NotWatched { resource, why }]);
        views.read(|view| {
            assert!(view.trouble.is_empty() && view.alive.is_empty() && view.unlisted.is_empty(), "{view:?}");
        });
    }

    #[tokio::test(start_paused = true)]
    async fn first_list_awaits_busy_server() {
        let (views, _, _tasks) = follow(Need::Must, OUTAGE, &[429, 503, 200]);
        await_first_lists(&views).await.unwrap();
        let cases: [(Duration, &[u16]); 2] = [(OUTAGE, &[403; 9]), (Duration::ZERO, &[503; 9])];
        for (outage, statuses) in cases {
            let (views, _, _tasks) = follow(Need::Must, outage, statuses);
            let begun = Instant::now();
            let error = await_first_lists(&views).await.unwrap_err().to_string();
            assert_eq!(error, "failed to list replicasets: refused");
            assert!(begun.elapsed() < SHORTEST_DELAY, "there is nothing to wait for");
        }
    }
}
