//! Watches a source's pods, and follows a container of each.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::RandomState;
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::api::core::v1::{Container, Pod};
use kube::{Api, Client, ResourceExt};
use tokio::sync::mpsc::Sender;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::super::list_watch::{Sink, WatchListener};
use super::super::named_pods::NamedPods;
use super::super::namespace_view::Views;
use super::continuity::Continuity;
use super::followed_container::{FollowedContainer, SeenContainer};
use super::log_lines::{LineRate, stamp_of};
use super::{LogDelivery, LogOutlet, LogPods, LogStop};
use crate::error::Result;
use crate::tasks::BackgroundTasks;
use rolldrop_kubernetes::pods::ListedPod;
use rolldrop_record::event::Change;
use rolldrop_record::{Clock, EventKind, Stamp};

/// Facts about a source's logs that are the same for all its pods.
pub(super) struct LogOrder {
    /// Index of the source.
    pub(super) number: usize,
    pub(super) client: Client,
    pub(super) namespace: String,
    /// Name of the container; `None` for the first one of a pod.
    pub(super) container: Option<String>,
    pub(super) since: Stamp,
    pub(super) max_rate: u32,
    pub(super) clock: Clock,
    pub(super) sender: Sender<LogDelivery>,
}

/// Starts to watch pods and to follow their logs, and waits for the first list.
pub(super) async fn follow(order: LogOrder, pods: &LogPods, tasks: &mut BackgroundTasks) -> Result<()> {
    let source = format!("{}/{pods}", order.namespace);
    let outlet = LogOutlet::of(order.number, source, order.clock, &order.sender);
    let gap = Arc::<Mutex<Option<Stamp>>>::default();
    let (client, namespace) = (order.client.clone(), order.namespace.clone());
    let listener = GapListener { clock: order.clock, gap: Arc::clone(&gap) };
    let sink = GatewayPods {
        order,
        outlet,
        gap,
        hasher: RandomState::new(),
        followed: BTreeMap::new(),
        unlisted: BTreeSet::new(),
        has_listed: false,
        tasks: JoinSet::new(),
    };
    let named = NamedPods { client: &client, namespace: &namespace, pods };
    named.follow(&Views::default(), listener, sink, tasks).await
}

/// Keeps the start of a gap in the watch of pods, which the next list ends.
struct GapListener {
    clock: Clock,
    gap: Arc<Mutex<Option<Stamp>>>,
}

impl WatchListener for GapListener {
    fn clock(&self) -> Clock {
        self.clock
    }

    fn take(&self, _: Stamp, _: Option<String>, kind: EventKind) {
        if let EventKind::WatchGap { from, .. } = kind {
            *self.gap.lock().unwrap_or_else(PoisonError::into_inner) = Some(from);
        }
    }
}

/// Pods of a source.
struct GatewayPods {
    order: LogOrder,
    /// For facts about all pods.
    outlet: LogOutlet,
    gap: Arc<Mutex<Option<Stamp>>>,
    hasher: RandomState,
    /// Followed containers, by the UIDs of their pods.
    followed: BTreeMap<String, watch::Sender<SeenContainer>>,
    /// Pods that a list in progress has not shown yet.
    unlisted: BTreeSet<String>,
    has_listed: bool,
    tasks: JoinSet<()>,
}

impl GatewayPods {
    /// Starts to follow a container of a pod that was not seen before.
    fn begin(&mut self, pod: &Pod) -> watch::Sender<SeenContainer> {
        let order = &self.order;
        let container = self.chosen(pod);
        let source = format!("{}/{}/{container}", order.namespace, pod.name_any());
        let outlet = LogOutlet::of(order.number, source, order.clock, &order.sender);
        let seen = SeenContainer::of(pod, container);
        let (sender, receiver) = watch::channel(seen);
        let names: Vec<_> = containers(pod).map(|found| found.name.as_str()).collect();
        if !names.contains(&container) {
            let why = format!("the pod has no such container; it has {}", names.join(", "));
            self.tasks.spawn(async move { outlet.end(LogStop::Because(why)).await });
            return sender;
        }
        // A new pod's log is read from its start, including earlier runs of its container.
        let now = order.clock.now();
        let created = pod.metadata.creation_timestamp.as_ref().and_then(|at| stamp_of(at.0));
        let (continuity, restarts) = if self.has_listed {
            (Continuity::begin(None, created.unwrap_or(now)), 0)
        } else {
            (Continuity::begin(Some(order.since), now), seen.restarts)
        };
        let followed = FollowedContainer {
            logs: Api::namespaced(order.client.clone(), &order.namespace),
            pods: Api::namespaced(order.client.clone(), &order.namespace),
            container: container.to_owned(),
            pod: pod.name_any(),
            uid: pod.uid().unwrap_or_default(),
            seen: receiver,
            restarts,
            continuity,
            rate: LineRate::new(order.max_rate),
            is_interrupted: false,
            outlet,
            hasher: self.hasher.clone(),
        };
        self.tasks.spawn(followed.follow());
        sender
    }

    /// Returns the name of the container to follow.
    fn chosen<'a>(&'a self, pod: &'a Pod) -> &'a str {
        let first = || containers(pod).next().map_or("", |first| &first.name);
        self.order.container.as_deref().unwrap_or_else(first)
    }

    fn end(&mut self, uid: &str) {
        if let Some(seen) = self.followed.remove(uid) {
            seen.send_modify(|seen| seen.is_gone = true);
        }
    }
}

/// Returns a pod's containers, with init containers last.
fn containers(pod: &Pod) -> impl Iterator<Item = &Container> {
    let spec = pod.spec.iter();
    spec.flat_map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten()))
}

impl Sink<ListedPod> for GatewayPods {
    type Seen = Pod;

    fn see(&self, _: Change, ListedPod(pod): ListedPod) -> Pod {
        pod
    }

    fn take(&mut self, change: Change, pod: Pod) -> Option<EventKind> {
        while self.tasks.try_join_next().is_some() {}
        let uid = pod.uid().unwrap_or_default();
        self.unlisted.remove(&uid);
        if change == Change::Deleted {
            self.end(&uid);
        } else if let Some(seen) = self.followed.get(&uid) {
            let now = SeenContainer::of(&pod, self.chosen(&pod));
            seen.send_if_modified(|seen| std::mem::replace(seen, now) != now);
        } else {
            let seen = self.begin(&pod);
            self.followed.insert(uid, seen);
        }
        None
    }

    fn begin_list(&mut self) {
        self.unlisted = self.followed.keys().cloned().collect();
    }

    fn end_list(&mut self) {
        self.has_listed = true;
        for uid in std::mem::take(&mut self.unlisted) {
            self.end(&uid);
        }
        if let Some(from) = self.gap.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let outlet = self.outlet.clone();
            let gap = (from, outlet.now());
            self.tasks.spawn(async move {
                // If the receiver is gone, the gap no longer matters.
                let _ = outlet.gap(gap, "pods may have come and gone unseen").await;
            });
        }
    }
}
