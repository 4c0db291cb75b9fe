//! Current state of the namespace according to the watches.

use std::collections::{BTreeMap, BTreeSet};

use tokio::sync::watch;

use rolldrop_record::Stamp;
use rolldrop_record::event::{Change, ContainerState, EndpointSliceEvent, PodEvent};

/// Reasons that a waiting container will not start on its own, except those about its image.
const STUCK: [&str; 4] =
    ["CreateContainerError", "CreateContainerConfigError", "RunContainerError", "CrashLoopBackOff"];
/// Reasons that a container's image cannot be pulled (`pkg/kubelet/images/types.go`).
const NO_IMAGE: [&str; 4] = ["ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"];

/// A container that will not start on its own.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("pod {pod}, container {container}: {why}")]
pub(crate) struct Stuck {
    pod: String,
    container: String,
    /// Kubernetes' reason, followed by its message if there is one.
    why: String,
    /// True if the container's image cannot be pulled.
    pub(crate) lacks_image: bool,
}

/// The namespace's pods and EndpointSlices, as last seen.
#[derive(Clone, Debug, Default)]
pub(crate) struct View {
    pub(crate) pods: BTreeMap<String, SeenPod>,
    pub(crate) slices: BTreeMap<String, EndpointSliceEvent>,
    /// False while a list is arriving. Until the list is complete, a pod that is missing here may still exist.
    pub(crate) pods_listed: bool,
    pub(crate) slices_listed: bool,
    /// Watched resources whose first list has not arrived yet.
    pub(crate) unlisted: BTreeSet<&'static str>,
    /// Reasons not to wait any longer for the first list of a resource, by watched resource.
    pub(crate) unlistable: BTreeMap<&'static str, String>,
    /// Reasons that watches are not open, by watched resource.
    pub(crate) trouble: BTreeMap<&'static str, String>,
    /// Time of each watch's last sign of life, by watched resource.
    pub(crate) alive: BTreeMap<&'static str, Stamp>,
    /// Reasons that the API server's responses are not trusted, by resource.
    pub(crate) unbelieved: BTreeMap<&'static str, String>,
    /// UIDs of all pods whose termination was seen.
    pub(crate) ended: BTreeSet<String>,
    /// UIDs of the pods that were already terminating when the run began. No wait is for them, because they may never
    /// end, for example on a lost node.
    pub(crate) ending_before: BTreeSet<String>,
}

/// A pod's event, and other data that the collector needs.
#[derive(Clone, Debug)]
pub(crate) struct SeenPod {
    pub(crate) event: PodEvent,
    /// Port named `rolldrop-admin` of the recording proxy beside the app; `None` until its container runs.
    pub(crate) admin_port: Option<u16>,
}

impl View {
    pub(crate) fn listed(&self) -> bool {
        self.pods_listed && self.slices_listed
    }

    /// Applies a change that the watch reports for a pod.
    pub(crate) fn see(&mut self, change: Change, seen: SeenPod) {
        let SeenPod { event, .. } = &seen;
        let is_over = matches!(event.phase.as_str(), "Failed" | "Succeeded");
        if is_over || event.deletion_timestamp.is_some() || change == Change::Deleted {
            self.ended.insert(event.uid.clone());
        }
        match change {
            Change::Deleted => {
                self.pods.remove(&event.uid);
            }
            Change::Listed | Change::Applied => {
                self.pods.insert(event.uid.clone(), seen);
            }
        }
    }

    /// Returns the pods that are being deleted, without those that already were when the run began.
    pub(crate) fn terminating(&self) -> impl Iterator<Item = &PodEvent> {
        let pods = self.pods.values().map(|seen| &seen.event);
        pods.filter(|pod| pod.deletion_timestamp.is_some() && !self.ending_before.contains(&pod.uid))
    }

    /// Begins the run with the pods as they are now.
    pub(super) fn begin_run(&mut self) {
        self.ending_before = self.terminating().map(|pod| pod.uid.clone()).collect();
    }

    /// Returns the number of a Service's ready pods. In a dual-stack Service each pod has an endpoint in a slice of each
    /// address family. An endpoint without a pod counts by its address.
    pub(crate) fn ready_endpoints(&self, service: &str) -> usize {
        let slices = self.slices.values().filter(|slice| slice.service.as_deref() == Some(service));
        let ready = slices.flat_map(|slice| &slice.endpoints).filter(|endpoint| endpoint.ready);
        let pods: BTreeSet<&str> =
            ready.map(|endpoint| endpoint.pod.as_deref().unwrap_or(&endpoint.address)).collect();
        pods.len()
    }

    /// Returns the first container in these pods that reports that it cannot start, with the reason. A pod that is being
    /// deleted is not meant to start.
    pub(crate) fn stuck_container(&self, of: impl Fn(&PodEvent) -> bool) -> Option<Stuck> {
        let pods = self.pods.values().map(|seen| &seen.event);
        let pods = pods.filter(|pod| pod.deletion_timestamp.is_none() && of(pod));
        pods.flat_map(|pod| pod.containers.iter().map(move |container| (pod, container))).find_map(stuck)
    }
}

fn stuck((pod, container): (&PodEvent, &ContainerState)) -> Option<Stuck> {
    let reason = container.reason.as_deref().filter(|_| container.state.as_deref() == Some("waiting"))?;
    let lacks_image = NO_IMAGE.contains(&reason);
    (lacks_image || STUCK.contains(&reason)).then(|| Stuck {
        pod: pod.name.clone(),
        container: container.name.clone(),
        why: container.message.as_ref().map_or_else(|| reason.to_owned(), |said| format!("{reason}: {said}")),
        lacks_image,
    })
}

/// Shares the view between the watches, which update it, and the tasks that wait for changes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Views(watch::Sender<View>);

impl Views {
    pub(crate) fn update(&self, change: impl FnOnce(&mut View)) {
        self.0.send_modify(change);
    }

    /// Updates the view, and wakes waiting tasks only if `change` returns true.
    pub(super) fn update_if(&self, change: impl FnOnce(&mut View) -> bool) {
        self.0.send_if_modified(change);
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<View> {
        self.0.subscribe()
    }

    pub(crate) fn read<T>(&self, read: impl FnOnce(&View) -> T) -> T {
        read(&self.0.borrow())
    }

    /// Waits for the next change after this call.
    pub(crate) fn changed(&self) -> impl Future<Output = ()> + use<> {
        let mut view = self.0.subscribe();
        async move {
            // The sender lives as long as the session.
            let _ = view.changed().await;
        }
    }

    /// Waits until the view satisfies a condition.
    pub(crate) async fn wait_until(&self, is_so: impl FnMut(&View) -> bool) {
        let _ = self.0.subscribe().wait_for(is_so).await;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn dual_stack_pods_count_once() {
        let endpoint = |pod: Option<&str>, address: &str, ready: bool| json!({"pod": pod, "address": address, "ready": ready, "serving": ready, "terminating": false});
        let slice = |name: &str, endpoints: serde_json::Value| -> EndpointSliceEvent {
            let slice = json!({"change": "listed", "namespace": "shop", "name": name, "service": "web",
                "endpoints": endpoints});
            serde_json::from_value(slice).unwrap()
        };
        let (first, second) = (Some("web-1"), Some("web-2"));
        let v4 = json!([endpoint(first, "10.0.0.1", true), endpoint(second, "10.0.0.2", false)]);
        let v6 = json!([endpoint(first, "fd00::1", true), endpoint(None, "fd00::9", true)]);
        let mut view = View::default();
        for slice in [slice("web-v4", v4), slice("web-v6", v6)] {
            view.slices.insert(slice.name.clone(), slice);
        }
        assert_eq!(view.ready_endpoints("web"), 2, "a pod, and an address without one");
    }
}
