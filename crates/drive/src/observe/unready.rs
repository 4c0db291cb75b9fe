//! Reasons that pods do not become ready, taken from their status, or from the latest warning about them.
//!
//! If the run lacks permission to read events or logs, the reasons are less detailed.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Event, Pod};
use kube::ResourceExt;
use kube::api::{ListParams, LogParams};

use crate::api::Caller;
use crate::error::Result;
use rolldrop_sidecar::observed::{controller_ref, statuses};

/// Label of a StatefulSet's pod with the revision of the template from which it was made.
const REVISION: &str = "controller-revision-hash";

/// Returns the reasons that pods are not ready, each reason once, or that no pods are created. Considers the namespace's
/// pods that `is_own` accepts and, if labels are given, that have them, and the objects that create pods whose names
/// `creates` accepts. Returns `None` if nothing is known.
pub(super) async fn why_unready(
    caller: &Caller,
    selector: Option<&str>,
    is_own: impl Fn(&Pod) -> bool,
    creates: impl Fn(&str) -> bool,
) -> Option<String> {
    let params = selector.map_or_else(ListParams::default, |labels| ListParams::default().labels(labels));
    let pods: Vec<Pod> = caller.list("list pods that are not ready", &caller.api(), &params).await.ok()?;
    let mut pods_of: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let own: Vec<&Pod> = pods.iter().filter(|pod| is_own(pod)).collect();
    for pod in own.iter().filter(|pod| is_awaited(pod)) {
        let why = why_pod_unready(caller, pod).await.ok()?;
        pods_of.entry(why).or_default().push(pod.name_any());
    }
    if pods_of.is_empty() {
        // The missing pods are not created at all, because of an admission policy or a quota.
        let why = latest_event(caller, "type=Warning,reason=FailedCreate", creates).await.ok()??;
        let further = if own.is_empty() { "" } else { "further " };
        return Some(format!("no {further}pod was created: {why}"));
    }
    let each = pods_of.iter().filter_map(|(why, pods)| match pods.as_slice() {
        [] => None,
        [pod] => Some(format!("pod {pod}: {why}")),
        [pod, others @ ..] => Some(format!("pod {pod} and {} more: {why}", others.len())),
    });
    Some(each.collect::<Vec<_>>().join("; ")).filter(|why| !why.is_empty())
}

/// Returns the reason that a pod is not ready.
pub(crate) async fn why_pod_unready(caller: &Caller, pod: &Pod) -> Result<String> {
    if let Some(why) = own_reason(pod) {
        let said = last_words(caller, pod).await;
        return Ok(said.map_or_else(|| why.clone(), |said| format!("{why}; its last output: {said:?}")));
    }
    let about = format!("involvedObject.name={},type=Warning", pod.name_any());
    Ok(latest_event(caller, &about, |_| true).await?.unwrap_or_else(|| state(pod)))
}

/// Returns the reason that a StatefulSet does not replace one of its pods, and what helps: it waits until the pod is
/// ready, although the pod has the wrong revision ("Forced rollback" in the documentation of StatefulSets, and
/// `updateStatefulSet` in pkg/controller/statefulset/stateful_set_control.go).
pub(super) async fn why_not_replaced(caller: &Caller, set: &str) -> Option<String> {
    let sets: Vec<StatefulSet> = caller.list_kind().await.ok()?;
    let found = sets.into_iter().find(|found| found.name_any() == set)?;
    let (spec, revision) = (found.spec?, found.status?.update_revision?);
    let strategy = spec.update_strategy.unwrap_or_default();
    if spec.pod_management_policy.as_deref() == Some("Parallel")
        || strategy.type_.as_deref() == Some("OnDelete")
    {
        return None;
    }
    let held_back = strategy.rolling_update.and_then(|rolling| rolling.partition).unwrap_or(0);
    let first = spec.ordinals.and_then(|ordinals| ordinals.start).unwrap_or(0) + held_back;
    let ordinal = |pod: &Pod| pod.name_any().strip_prefix(set)?.strip_prefix('-')?.parse::<i32>().ok();
    let is_blocked = |pod: &Pod| {
        controller_ref(pod).is_some_and(|owner| owner.kind == "StatefulSet" && owner.name == set)
            && ordinal(pod).is_some_and(|ordinal| ordinal >= first)
            && pod.labels().get(REVISION).is_some_and(|of| *of != revision)
            && is_awaited(pod)
    };
    let pods: Vec<Pod> = caller.list_kind().await.ok()?;
    let pod = pods.into_iter().find(is_blocked)?;
    let (name, why) = (pod.name_any(), why_pod_unready(caller, &pod).await.ok()?);
    Some(format!(
        "pod {name} is not ready ({why}), and its StatefulSet does not replace it until it is, although its revision \
         is wrong: kubectl delete pod {name} -n {}",
        caller.namespace
    ))
}

/// Returns the last line of output of a container that has exited and is waiting to be restarted.
async fn last_words(caller: &Caller, pod: &Pod) -> Option<String> {
    let crashed = statuses(pod).find(|status| last_end(status).is_some())?;
    let params = LogParams {
        container: Some(crashed.name.clone()),
        previous: true,
        tail_lines: Some(1),
        ..LogParams::default()
    };
    let (pods, name) = (caller.api::<Pod>(), pod.name_any());
    let log = caller.limited("read a pod's log", pods.logs(&name, &params)).await.ok()?.ok()?;
    last_line(&log).map(str::to_owned)
}

/// Returns the latest event that matches this field selector and is about an object whose name `is_about` accepts;
/// `None` if there is none, or the run may not read events.
pub(crate) async fn latest_event(
    caller: &Caller,
    fields: &str,
    is_about: impl Fn(&str) -> bool,
) -> Result<Option<String>> {
    let about = ListParams::default().fields(fields);
    let said = |event: Event| {
        let (reason, message) = (event.reason.unwrap_or_default(), event.message.unwrap_or_default());
        let message = last_line(&message).unwrap_or_default().to_owned();
        let is_meant = is_about(event.involved_object.name.as_deref().unwrap_or_default());
        is_meant.then(|| (event.last_timestamp.map(|time| time.0), format!("{reason}: {message}")))
    };
    let events = caller.api();
    let events = caller.list_as("list events about pods", &events, &about, said).await?;
    Ok(events.unwrap_or_default().into_iter().flatten().max_by_key(|(at, _)| *at).map(|(_, said)| said))
}

/// Returns true if a pod is not ready but should become ready.
fn is_awaited(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    let is_ready = status.iter().flat_map(|status| status.conditions.iter().flatten());
    let is_ready = is_ready.filter(|c| c.type_ == "Ready").any(|c| c.status == "True");
    let is_over = status.and_then(|status| status.phase.as_deref()) == Some("Succeeded");
    !is_ready && !is_over && pod.metadata.deletion_timestamp.is_none()
}

/// Returns the last termination of a container that is waiting to be restarted.
fn last_end(status: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    status.state.as_ref()?.waiting.as_ref()?;
    status.last_state.as_ref()?.terminated.as_ref()
}

/// Returns the reason that a pod's own status gives for not being ready.
pub(super) fn own_reason(pod: &Pod) -> Option<String> {
    let mut conditions = pod.status.as_ref()?.conditions.iter().flatten();
    if let Some(unscheduled) = conditions.find(|c| c.type_ == "PodScheduled" && c.status == "False") {
        return Some(said(unscheduled.reason.as_ref(), unscheduled.message.as_ref()));
    }
    let ended = |end: &ContainerStateTerminated| {
        let why = said(end.reason.as_ref(), end.message.as_ref());
        format!("it exited with code {} ({why})", end.exit_code)
    };
    let status = pod.status.as_ref()?;
    let end = |status: &'_ ContainerStatus| status.state.as_ref()?.terminated.clone();
    // An init container that has succeeded is not a reason.
    let of_init =
        status.init_container_statuses.iter().flatten().filter_map(end).filter(|end| end.exit_code != 0);
    if let Some(end) = of_init.chain(status.container_statuses.iter().flatten().filter_map(end)).next() {
        return Some(ended(&end));
    }
    let waiting = statuses(pod).find(|status| {
        let waiting = status.state.as_ref().and_then(|state| state.waiting.as_ref());
        waiting.is_some_and(|waiting| waiting.message.is_some())
    })?;
    let why = waiting.state.as_ref().and_then(|state| state.waiting.as_ref());
    let why = why.map(|why| said(why.reason.as_ref(), why.message.as_ref())).unwrap_or_default();
    Some(match last_end(waiting) {
        Some(end) => format!("{why}; {}", ended(end)),
        None => why,
    })
}

/// Describes the state of a pod that reports no reason.
pub(crate) fn state(pod: &Pod) -> String {
    let status = pod.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref()).unwrap_or("Pending");
    let spec = pod.spec.as_ref();
    let has_probe = spec.is_some_and(|spec| spec.containers.iter().any(|c| c.readiness_probe.is_some()));
    match spec.and_then(|spec| spec.node_name.as_deref()) {
        Some(_) if phase == "Running" && has_probe => "its readiness probe has not succeeded yet".to_owned(),
        Some(node) => format!("{phase} on node {node}, and its status gives no reason"),
        None => format!("{phase}, not yet scheduled to a node"),
    }
}

fn said(reason: Option<&String>, message: Option<&String>) -> String {
    let message = message.and_then(|message| last_line(message));
    reason.map(String::as_str).into_iter().chain(message).collect::<Vec<_>>().join(": ")
}

/// Returns the last non-empty line of the text.
pub(crate) fn last_line(text: &str) -> Option<&str> {
    text.lines().map(str::trim).rfind(|line| !line.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(status: &Value) -> Pod {
        serde_json::from_value(json!({"metadata": {}, "spec": {"containers": [], "nodeName": "node-2"},
            "status": status}))
        .unwrap()
    }

    fn with_container(state: &Value, last: &Value) -> Value {
        json!({"phase": "Pending", "containerStatuses": [{"name": "x", "image": "x", "imageID": "",
            "ready": false, "restartCount": 0, "state": state, "lastState": last}]})
    }

    #[test]
    fn unready_pod_reports_its_reason() {
        let reason = |status: Value| own_reason(&pod(&status));
        let unschedulable = json!({"conditions": [{"type": "PodScheduled", "status": "False",
            "reason": "Unschedulable", "message": "0/2 nodes are available"}]});
        assert_eq!(reason(unschedulable).unwrap(), "Unschedulable: 0/2 nodes are available");
        let is = |state: Value| with_container(&state, &Value::Null);
        let pull = is(json!({"waiting": {"reason": "ErrImagePull", "message": "no such image"}}));
        assert_eq!(reason(pull).unwrap(), "ErrImagePull: no such image");
        let ended =
            is(json!({"terminated": {"exitCode": 2, "reason": "Error", "message": "no such option\n"}}));
        assert_eq!(reason(ended).unwrap(), "it exited with code 2 (Error: no such option)");
        let crashes = with_container(
            &json!({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting"}}),
            &json!({"terminated": {"exitCode": 1, "reason": "Error"}}),
        );
        let why = "CrashLoopBackOff: back-off 10s restarting; it exited with code 1 (Error)";
        assert_eq!(reason(crashes).unwrap(), why);
        let creating = is(json!({"waiting": {"reason": "ContainerCreating"}}));
        assert_eq!(state(&pod(&creating)), "Pending on node node-2, and its status gives no reason");
        assert_eq!(reason(creating), None);
    }

    #[test]
    fn running_pod_waits_for_probe() {
        let mut running = pod(&json!({"phase": "Running"}));
        assert!(state(&running).starts_with("Running on node"));
        let app = json!({"name": "app", "readinessProbe": {"tcpSocket": {"port": 80}}});
        running.spec.as_mut().unwrap().containers = serde_json::from_value(json!([app])).unwrap();
        assert_eq!(state(&running), "its readiness probe has not succeeded yet");
    }

    #[test]
    fn only_unready_pods_are_awaited() {
        let ready = |status: &str| json!({"conditions": [{"type": "Ready", "status": status}]});
        assert!(is_awaited(&pod(&ready("False"))) && is_awaited(&pod(&json!({}))));
        assert!(!is_awaited(&pod(&ready("True"))) && !is_awaited(&pod(&json!({"phase": "Succeeded"}))));
    }
}
