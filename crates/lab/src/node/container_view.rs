//! Communication between a pod and its containers: orders in one direction, views in the other.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Container;
use tokio::sync::watch;

use super::container_action::ActionTarget;
use super::container_process::ContainerProcess;

/// Role of a container in its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContainerRole {
    /// Runs to completion before the next one starts.
    Init,
    /// An init container with `restartPolicy: Always`, which runs as long as the pod.
    Sidecar,
    Main,
}

/// Condition for restarting a container that has exited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RestartPolicy {
    Always,
    OnFailure,
    Never,
}

impl RestartPolicy {
    /// Returns the policy for a container in a pod with this `restartPolicy`.
    pub(super) fn of(pod_policy: Option<&str>, kind: ContainerRole) -> Self {
        match (kind, pod_policy) {
            (ContainerRole::Sidecar, _) => Self::Always,
            (_, Some("Never")) => Self::Never,
            (ContainerRole::Init, _) | (_, Some("OnFailure")) => Self::OnFailure,
            (ContainerRole::Main, _) => Self::Always,
        }
    }

    pub(super) fn applies(self, code: i32) -> bool {
        match self {
            Self::Always => true,
            Self::OnFailure => code != 0,
            Self::Never => false,
        }
    }
}

/// Order from the pod to its containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContainerOrder {
    /// Do not start yet.
    Hold,
    Run,
    /// Do not start anything more.
    Stop,
}

/// State of a container, as shown in its status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RunState {
    Waiting { reason: String, message: String },
    Running { started_at: String, container_id: String },
    Terminated(TerminatedState),
}

/// Result of one run of a container that has exited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TerminatedState {
    pub(super) code: i32,
    /// `None` for a container that never ran, whose status a kubelet reports as unknown.
    pub(super) container_id: Option<String>,
    pub(super) started_at: String,
    pub(super) finished_at: String,
}

impl TerminatedState {
    /// Returns the result for a container that never ran, as of this time.
    pub(super) fn unknown(at: String) -> Self {
        Self { code: 137, container_id: None, started_at: at.clone(), finished_at: at }
    }
}

/// State of a container, as seen by the rest of the pod.
#[derive(Clone, Debug)]
pub(super) struct ContainerView {
    pub(super) state: RunState,
    pub(super) last: Option<TerminatedState>,
    pub(super) restarts: u32,
    pub(super) started: bool,
    pub(super) ready: bool,
    /// True once the first start is over, including the postStart hook, even if it failed.
    pub(super) settled: bool,
    /// True if the container has exited for good.
    pub(super) done: bool,
    /// Process, and the data needed to stop it, during a run.
    pub(super) running: Option<ContainerRun>,
    /// Result of the process in `running`, once it has exited.
    pub(super) ended: Option<TerminatedState>,
    /// True if the container will not start anything more; `running` is final.
    pub(super) accepted_stop: bool,
}

/// Run of a container whose exit is not shown yet.
#[derive(Clone, Debug)]
pub(super) struct ContainerRun {
    pub(super) process: ContainerProcess,
    pub(super) target: ActionTarget,
}

impl ContainerView {
    pub(super) fn new(reason: &str) -> Self {
        Self {
            state: RunState::Waiting { reason: reason.to_owned(), message: String::new() },
            last: None,
            restarts: 0,
            started: false,
            ready: false,
            settled: false,
            done: false,
            running: None,
            ended: None,
            accepted_stop: false,
        }
    }
}

/// The pod's handle to a container.
pub(super) struct Handle {
    pub(super) spec: Arc<Container>,
    pub(super) kind: ContainerRole,
    pub(super) order: watch::Sender<ContainerOrder>,
    pub(super) view: watch::Receiver<ContainerView>,
}
