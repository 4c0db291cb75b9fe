//! Watches pod terminations outside a run, in one namespace or in all. Only reads, except for beats.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::ListParams;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::beat_occasions::{BeatObject, BeatOccasions, beat_while_pods_end};
use super::list_watch::{WatchListener, await_first_lists, trouble};
use super::namespace_view::Views;
use super::server_clock;
use super::sinks::{WatchScope, Watches};
use crate::api::Caller;
use crate::error::Result;
use crate::tasks::BackgroundTasks;
use rolldrop_record::{Clock, EventKind, Stamp};

/// Time between two comparisons with the API server's clock; in between, the clocks may drift apart by 0.15 s.
const CLOCK_PERIOD: Duration = Duration::from_secs(300);

/// Event from a watch.
#[derive(Clone, Debug)]
pub struct WatchedEvent {
    /// Time at which the event was seen.
    pub at: Stamp,
    /// Namespace of the object that the event is about.
    pub namespace: Option<String>,
    /// The event itself.
    pub kind: EventKind,
}

/// Options of [`TerminationWatches`].
#[derive(Clone, Debug, Default)]
pub struct TerminationWatchOptions {
    /// Object to write beats to while pods end.
    pub beats: Option<BeatObject>,
    /// True to follow Services and EndpointSlices, too, where this is allowed.
    pub with_services: bool,
}

/// Watches of pods, their workloads, nodes, and the Events of failed preStop hooks.
#[derive(Debug)]
pub struct TerminationWatches {
    tasks: BackgroundTasks,
    views: Views,
    events: UnboundedReceiver<WatchedEvent>,
}

/// Forwards the events from the watches.
struct WatchForwarder {
    clock: Clock,
    // The receiver takes each event immediately, so few events wait.
    events: UnboundedSender<WatchedEvent>,
    occasions: watch::Sender<BeatOccasions>,
}

impl WatchListener for WatchForwarder {
    fn clock(&self) -> Clock {
        self.clock
    }

    fn take(&self, at: Stamp, namespace: Option<String>, kind: EventKind) {
        self.occasions.send_if_modified(|occasions| occasions.observe(Instant::now(), &kind));
        // If the watches are being dropped, the receiver is gone.
        let _ = self.events.send(WatchedEvent { at, namespace, kind });
    }
}

impl TerminationWatches {
    /// Starts the watches, and waits for their first lists so that nothing that happens later is missed. Needs a tokio
    /// runtime.
    ///
    /// # Errors
    /// Fails if something cannot be listed. Missing permissions, except for pods, and later interruptions are reported
    /// as events.
    pub async fn begin(
        client: &Client,
        scope: &WatchScope,
        options: TerminationWatchOptions,
        clock: Clock,
    ) -> Result<Self> {
        let (sender, events) = mpsc::unbounded_channel();
        let (occasions, known) = watch::channel(BeatOccasions::begin(Instant::now()));
        let namespace = match scope {
            WatchScope::Namespace(namespace) => namespace.as_str(),
            WatchScope::Cluster => "",
        };
        let caller = Caller::outside_run(client.clone(), namespace);
        let (limits, first) = (caller.limits, ListParams::default().limit(1));
        let pods = scope.api::<Pod>(client);
        caller.at_first_contact().must("list pods", || pods.list_metadata(&first)).await?;
        let listener = Arc::new(WatchForwarder { clock, events: sender, occasions });
        let mut watches = Self { tasks: BackgroundTasks::default(), views: Views::default(), events };
        let (tasks, views) = (&mut watches.tasks, &watches.views);
        let asking = client.clone();
        let [of_clock, of_beats] = [(); 2].map(|()| Arc::clone(&listener));
        let mut following = Watches { client, scope, limits, listener, views, tasks };
        following.follow_terminations();
        if options.with_services {
            following.follow_services();
        }
        watches.tasks.spawn(async move {
            loop {
                let sample = server_clock::sample(&asking, clock, limits).await;
                of_clock.take(clock.now(), None, sample);
                sleep(CLOCK_PERIOD).await;
            }
        });
        await_first_lists(&watches.views).await?;
        if let Some(object) = options.beats {
            let (client, pods) = (client.clone(), scope.api(client));
            watches.tasks.spawn(async move {
                beat_while_pods_end(&client, &object, pods, &*of_beats, known).await;
            });
        }
        Ok(watches)
    }

    /// Returns the next event.
    pub async fn next(&mut self) -> Option<WatchedEvent> {
        self.events.recv().await
    }

    /// Returns an event that has arrived already, if there is one.
    pub fn next_arrived(&mut self) -> Option<WatchedEvent> {
        self.events.try_recv().ok()
    }

    /// Returns the resources that cannot be watched now, each with the reason.
    pub fn trouble(&self) -> Vec<(&'static str, String)> {
        self.views.read(|view| trouble(view).map(|(what, why)| (what, why.clone())).collect())
    }

    /// Returns the resources whose watches have shown a sign of life.
    pub fn resources(&self) -> Vec<&'static str> {
        self.views.read(|view| view.alive.keys().copied().collect())
    }

    /// Returns the time of the pod watch's last sign of life. A watch may be quiet for half a minute.
    pub fn pods_alive(&self) -> Option<Stamp> {
        self.views.read(|view| view.alive.get("pods").copied())
    }

    /// Stops the watches, and returns their last events, such as the gap of an interrupted watch.
    pub async fn stop(mut self) -> Vec<WatchedEvent> {
        self.tasks.stop().await;
        std::iter::from_fn(|| self.events.try_recv().ok()).collect()
    }
}
