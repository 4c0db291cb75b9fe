//! Converts pods from a watch into record events. The coordinator uses it for all pods, a proxy for its own pod.

use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, Probe};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;

use crate::inject::ending;
use rolldrop_record::Stamp;
use rolldrop_record::event::{Change, ContainerState, PodEvent};

/// Returns the statuses of all containers, init containers first.
pub fn statuses(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let status = pod.status.as_ref();
    let init = status.and_then(|s| s.init_container_statuses.as_ref());
    let main = status.and_then(|s| s.container_statuses.as_ref());
    init.into_iter().flatten().chain(main.into_iter().flatten())
}

/// Returns the reference to an object's controller, the one of its owners that manages it.
pub fn controller_ref(object: &impl ResourceExt) -> Option<&OwnerReference> {
    object.owner_references().iter().find(|owner| owner.controller == Some(true))
}

/// Returns the kind and name of an object's controller, such as `ReplicaSet/web-7d4b9`.
pub fn controller(object: &impl ResourceExt) -> Option<String> {
    controller_ref(object).map(|owner| format!("{}/{}", owner.kind, owner.name))
}

/// Converts a pod change reported by a watch.
pub fn pod_event(change: Change, pod: &Pod) -> PodEvent {
    let spec = pod.spec.as_ref();
    let status = pod.status.as_ref();
    let condition = |kind: &str| {
        let conditions = status.and_then(|s| s.conditions.as_ref());
        conditions.into_iter().flatten().find(|c| c.type_ == kind && c.status == "True")
    };
    let sidecars = spec.and_then(|s| s.init_containers.as_ref()).into_iter().flatten();
    let sidecars = sidecars.filter(|c| c.restart_policy.as_deref() == Some("Always")).map(|c| (c, true));
    let main = spec.into_iter().flat_map(|s| &s.containers).map(|c| (c, false));
    PodEvent {
        change,
        namespace: pod.namespace().unwrap_or_default(),
        name: pod.name_any(),
        uid: pod.uid().unwrap_or_default(),
        resource_version: pod.resource_version().unwrap_or_default(),
        node: spec.and_then(|s| s.node_name.clone()),
        ip: status.and_then(|s| s.pod_ip.clone()),
        phase: status.and_then(|s| s.phase.clone()).unwrap_or_default(),
        ready: condition("Ready").is_some(),
        deletion_timestamp: pod
            .metadata
            .deletion_timestamp
            .as_ref()
            .map(|t| Stamp::from_unix_ns(i64::try_from(t.0.as_nanosecond()).unwrap_or(i64::MAX))),
        deletion_grace_s: pod.metadata.deletion_grace_period_seconds,
        grace_s: spec.and_then(|s| s.termination_grace_period_seconds).unwrap_or(30),
        disruption_target: condition("DisruptionTarget").map(|c| c.reason.clone().unwrap_or_default()),
        disruption_message: condition("DisruptionTarget").and_then(|c| c.message.clone()),
        reason: status.and_then(|s| s.reason.clone()),
        owner: controller(pod),
        containers: sidecars.chain(main).map(|(c, sidecar)| container_state(pod, c, sidecar)).collect(),
    }
}

fn container_state(pod: &Pod, container: &Container, sidecar: bool) -> ContainerState {
    let pre_stop = container.lifecycle.as_ref().and_then(|l| l.pre_stop.as_ref());
    let sleep = pre_stop.and_then(|hook| hook.sleep.as_ref()).map(|s| s.seconds);
    let program = pre_stop.and_then(|hook| hook.exec.as_ref()?.command.as_ref());
    let status = statuses(pod).find(|s| s.name == container.name);
    let (mut state, mut reason, mut message, mut exit_code) = (None, None, None, None);
    if let Some(current) = status.and_then(|s| s.state.as_ref()) {
        if let Some(waiting) = &current.waiting {
            state = Some("waiting");
            (reason, message) = (waiting.reason.clone(), waiting.message.clone());
        } else if current.running.is_some() {
            state = Some("running");
        } else if let Some(ended) = &current.terminated {
            state = Some("terminated");
            (reason, message, exit_code) =
                (ended.reason.clone(), ended.message.clone(), Some(ended.exit_code));
        }
    }
    let connecting = container.readiness_probe.as_ref().filter(|probe| probe.exec.is_none());
    ContainerState {
        name: container.name.clone(),
        sidecar,
        pre_stop_sleep_s: sleep,
        pre_stop_other: pre_stop.is_some() && sleep.is_none(),
        pre_stop_exec_sleep_s: program.and_then(|command| ending::command_sleep_s(command)),
        pre_stop_program: program.and_then(|command| command.first()).cloned(),
        state: state.map(str::to_owned),
        reason,
        message,
        exit_code,
        restarts: status.map_or(0, |s| s.restart_count),
        readiness_probe: Some(connecting.is_some()),
        readiness_notices_s: connecting.filter(|probe| asks_its_only_port(probe, container)).map(notices_s),
    }
}

/// Returns false if the container has a port other than the probed one. The app may listen on one of the ports and not
/// on the other, as with a management port.
fn asks_its_only_port(probe: &Probe, container: &Container) -> bool {
    let http = probe.http_get.as_ref().map(|action| &action.port);
    let tcp = probe.tcp_socket.as_ref().map(|action| &action.port);
    let grpc = probe.grpc.as_ref().map(|action| IntOrString::Int(action.port));
    let asked = http.or(tcp).or(grpc.as_ref());
    container.ports.iter().flatten().all(|port| match asked {
        Some(IntOrString::Int(number)) => port.container_port == *number,
        Some(IntOrString::String(name)) => port.name.as_ref() == Some(name),
        None => false,
    })
}

/// Returns the maximum number of seconds for a probe to reach its failure threshold.
fn notices_s(probe: &Probe) -> u32 {
    let set = |field: Option<i32>, default| {
        field.and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0).unwrap_or(default)
    };
    set(probe.period_seconds, 10) * set(probe.failure_threshold, 3) + set(probe.timeout_seconds, 1)
}
