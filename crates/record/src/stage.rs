//! The stages of a pod's end and of its start, as results and expectations name them. `docs/expect.md` says what each is.

use super::names::named;

named! {
    /// A stage in the end of a pod. Times count from t0.
    pub enum Stage {
        /// t0 earliest: the delete call was sent.
        DeleteSent = "delete_sent",
        /// A watcher saw the deletionTimestamp.
        DeletionSeen = "deletion_seen",
        /// A watcher saw the endpoint as terminating.
        EndpointTerminating = "endpoint_terminating",
        /// The kubelet called the sidecar's preStop hook: the pod started to terminate.
        KillBegan = "kill_began",
        /// The app got SIGTERM no earlier: t0 earliest plus min(preStop sleep, grace period). Computed, not observed; absent without a sleep.
        AppSigterm = "app_sigterm",
        /// The app's listener started to refuse connections.
        ListenerClosed = "listener_closed",
        /// The sidecar received SIGTERM: all main containers have ended.
        AppExited = "app_exited",
        /// The last new connection to the pod was begun.
        LastConnection = "last_connection",
        /// A watcher saw the containers terminated.
        ContainersTerminated = "containers_terminated",
        /// A watcher saw the endpoint gone from its slice.
        EndpointRemoved = "endpoint_removed",
        /// A watcher saw the pod deleted.
        PodDeleted = "pod_deleted",
    }
}

impl Stage {
    /// Why nothing can be expected of it, if so.
    pub(super) const fn refusal(self) -> Option<&'static str> {
        match self {
            Self::DeleteSent => Some("is where times begin to count"),
            Self::AppSigterm => Some(
                "is computed from the settings, not observed: use app_exited (with the sidecar) or \
                 containers_terminated, of an app that exits at once on SIGTERM",
            ),
            _ => None,
        }
    }
}

named! {
    /// A stage in the start of a pod. Times count from its creation.
    pub enum StartStage {
        /// A watcher first saw the pod.
        Created = "created",
        /// Its address was reported.
        IpReported = "ip_reported",
        /// It was ready.
        Ready = "ready",
        /// Its endpoint was ready.
        EndpointReady = "endpoint_ready",
        /// The first request that it answered was begun.
        FirstRequest = "first_request",
    }
}

impl StartStage {
    /// Why nothing can be expected of it, if so.
    pub(super) const fn refusal(self) -> Option<&'static str> {
        match self {
            Self::Created => Some("is where times begin to count"),
            _ => None,
        }
    }
}
