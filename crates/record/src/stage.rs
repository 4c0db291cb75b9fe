//! The stages of a pod's termination and start, as named in results and expectations. `docs/expect.md` defines each.

use super::names::named;

named! {
    /// A stage of a pod's termination. Times are counted from t0.
    pub enum Stage {
        /// t0 earliest: the delete call was sent.
        DeleteSent = "delete_sent",
        /// A watcher saw the deletionTimestamp.
        DeletionSeen = "deletion_seen",
        /// A watcher saw the endpoint as terminating.
        EndpointTerminating = "endpoint_terminating",
        /// The kubelet called the sidecar's preStop hook: the pod started to terminate.
        KillBegan = "kill_began",
        /// The earliest time at which the app could have received SIGTERM: t0 earliest plus min(preStop sleep, grace
        /// period). Computed, not observed; absent without a sleep.
        AppSigterm = "app_sigterm",
        /// The app's listener started to refuse connections.
        ListenerClosed = "listener_closed",
        /// The sidecar received SIGTERM: all main containers have exited.
        AppExited = "app_exited",
        /// The last new connection to the pod began.
        LastConnection = "last_connection",
        /// A watcher saw the containers terminated.
        ContainersTerminated = "containers_terminated",
        /// A watcher saw the endpoint removed from its slice.
        EndpointRemoved = "endpoint_removed",
        /// A watcher saw the pod deleted.
        PodDeleted = "pod_deleted",
    }
}

impl Stage {
    /// Returns the reason why expectations for this stage are not supported; `None` if they are.
    pub(super) const fn refusal(self) -> Option<&'static str> {
        match self {
            Self::DeleteSent => Some("is time zero, so it needs no limit"),
            Self::AppSigterm => Some(
                "is computed from the settings, not observed: use app_exited (with the sidecar) or \
                 containers_terminated, with an app that exits at once on SIGTERM",
            ),
            _ => None,
        }
    }
}

named! {
    /// A stage of a pod's start. Times are counted from the pod's creation.
    pub enum StartStage {
        /// A watcher first saw the pod.
        Created = "created",
        /// The pod's address was reported.
        IpReported = "ip_reported",
        /// The pod was ready.
        Ready = "ready",
        /// The pod's endpoint was ready.
        EndpointReady = "endpoint_ready",
        /// Start of the first request that the pod responded to.
        FirstRequest = "first_request",
    }
}

impl StartStage {
    /// Returns the reason why expectations for this stage are not supported; `None` if they are.
    pub(super) const fn refusal(self) -> Option<&'static str> {
        match self {
            Self::Created => Some("is time zero, so it needs no limit"),
            _ => None,
        }
    }
}
