//! Watches a workload's pods outside a run, and shows only those that are being deleted.

use kube::Client;

use super::gateway_logs::LogPods;
use super::list_watch::{Sink, WatchListener};
use super::named_pods::NamedPods;
use super::namespace_view::{SeenPod, Views};
use super::sinks::{proxy_container, seen_pod};
use crate::error::Result;
use crate::tasks::BackgroundTasks;
use rolldrop_kubernetes::pods::ListedPod;
use rolldrop_record::event::{Change, PodEvent};
use rolldrop_record::{Clock, EventKind, Stamp};

/// Starts to watch these pods, and waits for the first list. The views show the pods that are being deleted.
/// `tell_bare` is called with the first of these pods that has no recording proxy.
///
/// # Errors
/// Fails if the workload or its pods cannot be found.
pub(crate) async fn follow_ending_pods(
    client: &Client,
    namespace: &str,
    pods: &LogPods,
    clock: Clock,
    tasks: &mut BackgroundTasks,
    tell_bare: impl FnOnce(&PodEvent) + Send + 'static,
) -> Result<Views> {
    let views = Views::default();
    let sink = EndingPodSink { views: views.clone(), tell_bare: Some(tell_bare) };
    NamedPods { client, namespace, pods }.follow(&views, SilentListener(clock), sink, tasks).await?;
    Ok(views)
}

/// Ignores the events of a watch, because the watch of all pods shows the same ones.
struct SilentListener(Clock);

impl WatchListener for SilentListener {
    fn clock(&self) -> Clock {
        self.0
    }

    fn take(&self, _: Stamp, _: Option<String>, _: EventKind) {}
}

struct EndingPodSink<F> {
    views: Views,
    /// `None` once it has been called.
    tell_bare: Option<F>,
}

impl<F: FnOnce(&PodEvent) + Send> Sink<ListedPod> for EndingPodSink<F> {
    /// The pod, and true if it has no recording proxy, not even one that is not running.
    type Seen = (SeenPod, bool);

    fn see(&self, change: Change, ListedPod(pod): ListedPod) -> Self::Seen {
        (seen_pod(change, &pod), proxy_container(&pod).is_none())
    }

    fn take(&mut self, change: Change, (seen, is_bare): Self::Seen) -> Option<EventKind> {
        let is_ending = seen.event.deletion_timestamp.is_some() && change != Change::Deleted;
        if let Some(tell_bare) = self.tell_bare.take_if(|_| is_ending && is_bare) {
            tell_bare(&seen.event);
        }
        self.views.update_if(|view| match is_ending {
            true => {
                view.pods.insert(seen.event.uid.clone(), seen);
                true
            }
            false => view.pods.remove(&seen.event.uid).is_some(),
        });
        None
    }

    fn begin_list(&mut self) {
        self.views.update(|view| {
            view.pods.clear();
            view.pods_listed = false;
        });
    }

    fn end_list(&mut self) {
        self.views.update(|view| view.pods_listed = true);
    }
}
