//! Pod status, as a kubelet writes it. Pure.

use k8s_openapi::api::core::v1::Container;
use serde::Serialize;
use serde_json::{Value, json};

use super::container_view::{ContainerRole, ContainerView, RunState, TerminatedState};
use crate::conditions;

/// All the data that a pod's status shows.
pub(super) struct Snapshot<'a> {
    pub(super) containers: Vec<ContainerSnapshot<'a>>,
    pub(super) sandbox: SandboxState,
    pub(super) pod_ip: &'a str,
    pub(super) host_ip: &'a str,
    pub(super) started_at: &'a str,
    /// Containers that may be restarted after they have exited.
    pub(super) restarts: RestartsOf,
    /// Reason for the pod's failure, regardless of its containers.
    pub(super) verdict: Option<&'a KubeletTermination>,
    /// Generation of the pod that the agent has acted on.
    pub(super) observed_generation: i64,
    pub(super) now: &'a str,
}

/// State of one container.
pub(super) struct ContainerSnapshot<'a> {
    pub(super) spec: &'a Container,
    pub(super) kind: ContainerRole,
    pub(super) view: ContainerView,
}

/// State of the pod's sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SandboxState {
    Preparing,
    Ready,
    /// Taken down because the pod has terminated.
    Gone,
}

/// Containers that may still be restarted in a pod whose containers have all exited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RestartsOf {
    /// None: the pod has terminated, and the exit codes decide its phase.
    Nothing,
    /// Those not marked as done; while there are any, the pod has not terminated.
    Containers,
}

/// Reason why a kubelet terminates a pod on its own. It is shown once all containers have exited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KubeletTermination {
    /// The node is shutting down.
    NodeShutdown,
    /// The pod arrived at a node that was shutting down.
    NotAdmitted,
}

impl KubeletTermination {
    pub(super) fn reason(self) -> &'static str {
        match self {
            Self::NodeShutdown => "Terminated",
            Self::NotAdmitted => "NodeShutdown",
        }
    }

    pub(super) fn message(self) -> &'static str {
        match self {
            Self::NodeShutdown => "Pod was terminated in response to imminent node shutdown.",
            Self::NotAdmitted => "Pod was rejected as the node is shutting down.",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
enum PodPhase {
    Pending,
    Running,
    Succeeded,
    Failed,
}

impl Snapshot<'_> {
    /// Writes the status into the pod. Parts written by others (conditions from the scheduler and from an eviction)
    /// remain.
    pub(super) fn write_into(&self, pod: &mut Value) {
        let phase = self.phase();
        for (kind, holds, reason, message) in self.conditions(phase) {
            let condition = condition(kind, holds, reason, &message, self.observed_generation);
            conditions::put(pod, condition, self.now);
        }
        let status = &mut pod["status"];
        let mut conditions = status["conditions"].as_array_mut().into_iter().flatten();
        if let Some(scheduled) = conditions.find(|condition| condition["type"] == "PodScheduled") {
            scheduled["observedGeneration"] = json!(self.observed_generation);
        }
        if let Some(verdict) = self.verdict.filter(|_| phase == PodPhase::Failed) {
            status["reason"] = json!(verdict.reason());
            status["message"] = json!(verdict.message());
        }
        status["observedGeneration"] = json!(self.observed_generation);
        status["phase"] = json!(phase);
        status["hostIP"] = json!(self.host_ip);
        status["hostIPs"] = json!([{"ip": self.host_ip}]);
        status["startTime"] = json!(self.started_at);
        if !status["qosClass"].is_string() {
            status["qosClass"] = json!("BestEffort");
        }
        // The address appears with the first container, as on a real node.
        if phase != PodPhase::Pending
            || self.containers.iter().any(|c| matches!(c.view.state, RunState::Running { .. }))
        {
            status["podIP"] = json!(self.pod_ip);
            status["podIPs"] = json!([{"ip": self.pod_ip}]);
        }
        let statuses = |init: bool| -> Vec<Value> {
            let of_kind = self.containers.iter().filter(|c| (c.kind != ContainerRole::Main) == init);
            of_kind.map(|c| c.to_json(self.sandbox)).collect()
        };
        let init = statuses(true);
        if !init.is_empty() {
            status["initContainerStatuses"] = json!(init);
        }
        status["containerStatuses"] = json!(statuses(false));
        if let Some(verdict @ KubeletTermination::NodeShutdown) =
            self.verdict.filter(|_| phase == PodPhase::Failed)
        {
            let (reason, generation) = ("TerminationByKubelet", Some(self.observed_generation));
            conditions::disruption_target(pod, reason, verdict.message(), generation, self.now);
        }
    }

    fn of(&self, kind: ContainerRole) -> impl Iterator<Item = &ContainerSnapshot<'_>> {
        self.containers.iter().filter(move |container| container.kind == kind)
    }

    /// Computes the phase. Source: kubernetes/kubernetes, `pkg/kubelet/kubelet_pods.go` (`getPhase`).
    fn phase(&self) -> PodPhase {
        if self.verdict.is_some() && self.restarts == RestartsOf::Nothing {
            return PodPhase::Failed;
        }
        let codes: Option<Vec<i32>> =
            self.of(ContainerRole::Main).map(|c| c.final_code(self.restarts)).collect();
        let init_failed =
            self.of(ContainerRole::Init).any(|c| c.final_code(self.restarts).is_some_and(|code| code != 0));
        match codes {
            _ if init_failed => PodPhase::Failed,
            Some(codes) if codes.iter().all(|code| *code == 0) => PodPhase::Succeeded,
            Some(_) => PodPhase::Failed,
            None if !self.initialized() => PodPhase::Pending,
            None if self.of(ContainerRole::Main).any(ContainerSnapshot::never_ran) => PodPhase::Pending,
            None => PodPhase::Running,
        }
    }

    fn initialized(&self) -> bool {
        let completed = self.of(ContainerRole::Init).all(ContainerSnapshot::has_completed);
        let main_ran = self.of(ContainerRole::Main).any(|c| !c.never_ran());
        completed && (main_ran || self.of(ContainerRole::Sidecar).all(|c| c.view.started))
    }

    /// Computes the conditions. Source: kubernetes/kubernetes, `pkg/kubelet/status/generate.go`.
    fn conditions(&self, phase: PodPhase) -> [(&'static str, bool, &'static str, String); 5] {
        let names = |containers: &mut dyn Iterator<Item = &ContainerSnapshot<'_>>| {
            containers.map(|c| c.spec.name.as_str()).collect::<Vec<_>>().join(" ")
        };
        let unready =
            names(&mut self.containers.iter().filter(|c| c.kind != ContainerRole::Init && !c.view.ready));
        let (ready, reason, message) = match phase {
            PodPhase::Succeeded => (false, "PodCompleted", String::new()),
            PodPhase::Failed => (false, "PodFailed", String::new()),
            _ if unready.is_empty() => (true, "", String::new()),
            _ => (false, "ContainersNotReady", format!("containers with unready status: [{unready}]")),
        };
        let incomplete = names(&mut self.containers.iter().filter(|c| match c.kind {
            ContainerRole::Init => !c.has_completed(),
            ContainerRole::Sidecar => !c.view.started,
            ContainerRole::Main => false,
        }));
        let initialized = self.initialized() || phase == PodPhase::Succeeded;
        let (init_reason, init_message) = match (initialized, phase) {
            (true, PodPhase::Succeeded) => ("PodCompleted", String::new()),
            (true, _) => ("", String::new()),
            (false, _) => {
                ("ContainersNotInitialized", format!("containers with incomplete status: [{incomplete}]"))
            }
        };
        [
            ("PodReadyToStartContainers", self.sandbox == SandboxState::Ready, "", String::new()),
            ("Initialized", initialized, init_reason, init_message),
            ("Ready", ready, reason, message.clone()),
            ("ContainersReady", ready, reason, message),
            ("PodScheduled", true, "", String::new()),
        ]
    }
}

impl ContainerSnapshot<'_> {
    fn final_code(&self, restarts: RestartsOf) -> Option<i32> {
        match &self.view.state {
            RunState::Terminated(ended) if self.view.done || restarts == RestartsOf::Nothing => {
                Some(ended.code)
            }
            _ => None,
        }
    }

    fn never_ran(&self) -> bool {
        matches!(self.view.state, RunState::Waiting { .. }) && self.view.last.is_none()
    }

    /// Returns true if this is an init container that has completed, which counts as ready.
    fn has_completed(&self) -> bool {
        self.kind == ContainerRole::Init
            && matches!(&self.view.state, RunState::Terminated(ended) if ended.code == 0)
    }

    fn to_json(&self, sandbox: SandboxState) -> Value {
        let ContainerView { state, last, restarts, started, ready, .. } = &self.view;
        let over = sandbox == SandboxState::Gone;
        let container_id = match state {
            RunState::Running { container_id, .. } => Some(container_id),
            RunState::Terminated(ended) => ended.container_id.as_ref(),
            RunState::Waiting { .. } => last.as_ref().and_then(|ended| ended.container_id.as_ref()),
        };
        let image = self.spec.image.as_deref().unwrap_or_default();
        let mut status = json!({
            "name": self.spec.name,
            "image": image,
            "imageID": if container_id.is_some() { image } else { "" },
            "ready": (*ready && !over) || self.has_completed(),
            "started": *started && !over,
            "restartCount": restarts,
            "state": state_json(state),
            "lastState": last.as_ref().map_or_else(|| json!({}), |ended| json!({"terminated": ended_json(ended)})),
            "resources": self.spec.resources.as_ref().map_or_else(|| json!({}), |resources| json!(resources)),
        });
        if let Some(id) = container_id {
            status["containerID"] = json!(full_id(id));
        }
        let mounts = self.spec.volume_mounts.iter().flatten().map(|mount| {
            let mut status = json!({"name": mount.name, "mountPath": mount.mount_path});
            if mount.read_only == Some(true) {
                status["readOnly"] = json!(true);
                status["recursiveReadOnly"] = json!("Disabled");
            }
            status
        });
        let mounts: Vec<_> = mounts.collect();
        if !mounts.is_empty() {
            status["volumeMounts"] = json!(mounts);
        }
        status
    }
}

/// Returns a container's id, prefixed with the name of its runtime.
fn full_id(id: &str) -> String {
    format!("processes://{id}")
}

fn state_json(state: &RunState) -> Value {
    match state {
        RunState::Waiting { reason, message } if message.is_empty() => json!({"waiting": {"reason": reason}}),
        RunState::Waiting { reason, message } => json!({"waiting": {"reason": reason, "message": message}}),
        RunState::Running { started_at, .. } => json!({"running": {"startedAt": started_at}}),
        RunState::Terminated(ended) => json!({"terminated": ended_json(ended)}),
    }
}

fn ended_json(ended: &TerminatedState) -> Value {
    let Some(id) = &ended.container_id else {
        return json!({
            "exitCode": ended.code,
            "reason": "ContainerStatusUnknown",
            "message": "The container could not be located when the pod was terminated",
            "startedAt": null,
            "finishedAt": null,
        });
    };
    json!({
        "exitCode": ended.code,
        "reason": if ended.code == 0 { "Completed" } else { "Error" },
        "startedAt": ended.started_at,
        "finishedAt": ended.finished_at,
        "containerID": full_id(id),
    })
}

fn condition(kind: &str, holds: bool, reason: &str, message: &str, observed_generation: i64) -> Value {
    let mut condition = json!({
        "type": kind,
        "status": if holds { "True" } else { "False" },
        "observedGeneration": observed_generation,
        "lastProbeTime": null,
    });
    if !reason.is_empty() {
        condition["reason"] = json!(reason);
    }
    if !message.is_empty() {
        condition["message"] = json!(message);
    }
    condition
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container(
        name: &str,
        kind: ContainerRole,
        change: impl FnOnce(&mut ContainerView),
    ) -> ContainerSnapshot<'static> {
        let mut view = ContainerView::new("ContainerCreating");
        change(&mut view);
        // The test may leak this.
        let spec = Box::leak(Box::new(Container { name: name.to_owned(), ..Container::default() }));
        ContainerSnapshot { spec, kind, view }
    }

    fn running(view: &mut ContainerView) {
        view.state = RunState::Running { started_at: "T0".to_owned(), container_id: "1".to_owned() };
        (view.started, view.ready) = (true, true);
    }

    fn ended(code: i32) -> impl FnOnce(&mut ContainerView) {
        move |view| {
            let (started_at, finished_at) = ("T0".to_owned(), "T1".to_owned());
            let container_id = Some("1".to_owned());
            view.state =
                RunState::Terminated(TerminatedState { code, container_id, started_at, finished_at });
            view.done = true;
        }
    }

    fn snapshot(containers: Vec<ContainerSnapshot<'_>>) -> Snapshot<'_> {
        Snapshot {
            containers,
            sandbox: SandboxState::Ready,
            pod_ip: "127.64.1.1",
            host_ip: "127.64.0.1",
            started_at: "T0",
            restarts: RestartsOf::Containers,
            verdict: None,
            observed_generation: 1,
            now: "T2",
        }
    }

    fn condition<'a>(pod: &'a Value, kind: &str) -> &'a Value {
        pod["status"]["conditions"].as_array().unwrap().iter().find(|c| c["type"] == kind).unwrap()
    }

    #[test]
    fn pod_phase_follows_main_containers() {
        use ContainerRole::{Init, Main, Sidecar};
        let waiting = |_: &mut ContainerView| {};
        let cases = [
            (vec![container("a", Main, waiting)], PodPhase::Pending),
            (vec![container("a", Main, running)], PodPhase::Running),
            (vec![container("a", Main, running), container("b", Main, waiting)], PodPhase::Pending),
            (vec![container("a", Main, ended(0)), container("b", Main, running)], PodPhase::Running),
            (vec![container("a", Main, ended(0)), container("b", Main, ended(0))], PodPhase::Succeeded),
            (vec![container("a", Main, ended(0)), container("b", Main, ended(143))], PodPhase::Failed),
            // A sidecar's exit does not affect the pod's phase.
            (vec![container("s", Sidecar, ended(137)), container("a", Main, ended(0))], PodPhase::Succeeded),
            (vec![container("i", Init, running), container("a", Main, waiting)], PodPhase::Pending),
            (vec![container("i", Init, ended(1)), container("a", Main, waiting)], PodPhase::Failed),
        ];
        for (n, (containers, phase)) in cases.into_iter().enumerate() {
            assert_eq!(snapshot(containers).phase(), phase, "case {n}");
        }
    }

    #[test]
    fn status_write_keeps_conditions_from_others() {
        let mut pod = json!({"status": {"conditions": [
            {"type": "DisruptionTarget", "status": "True"},
            {"type": "Initialized", "status": "True", "lastTransitionTime": "T1"},
            {"type": "Ready", "status": "False", "lastTransitionTime": "T1"},
        ]}});
        snapshot(vec![container("a", ContainerRole::Main, running)]).write_into(&mut pod);
        assert_eq!(condition(&pod, "DisruptionTarget")["status"], "True");
        assert_eq!(condition(&pod, "Initialized")["lastTransitionTime"], "T1");
        let ready = condition(&pod, "Ready");
        assert_eq!((&ready["status"], &ready["lastTransitionTime"]), (&json!("True"), &json!("T2")));
        assert_eq!(pod["status"]["podIP"], "127.64.1.1");
    }
}
