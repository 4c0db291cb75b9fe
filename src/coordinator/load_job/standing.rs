//! What the pods of a load say about why they are not ready, or have ended.

use k8s_openapi::api::core::v1::Pod;

use crate::coordinator::view::View;
use rolldrop_record::event::{ContainerState, PodEvent};

/// Why none of these pods will take orders, once each says so.
pub(super) fn why_hopeless(view: &View, is_own: impl Fn(&PodEvent) -> bool) -> Option<String> {
    let own = view.pods.values().map(|seen| &seen.event).filter(|pod| is_own(pod));
    let why = |pod: &PodEvent| match view.stuck_container(|other| other.uid == pod.uid) {
        Some(stuck) if stuck.lacks_image => {
            Some(format!("{stuck}; name an image that the cluster can pull with --image"))
        }
        Some(stuck) => Some(stuck.to_string()),
        None => ended_container(pod).map(|ended| format!("pod {}: {}", pod.name, ended_words(ended))),
    };
    let all: Option<Vec<String>> = own.map(why).collect();
    all?.into_iter().next()
}

/// Why a pod has ended, if it has. A terminating pod can still be asked.
pub(super) fn why_ended(view: &View, uid: &str) -> Option<String> {
    if !view.pods_listed {
        return None;
    }
    let Some(seen) = view.pods.get(uid) else { return Some("its pod is gone".to_owned()) };
    if let Some(container) = ended_container(&seen.event) {
        return Some(ended_words(container));
    }
    (seen.event.phase == "Failed").then(|| match &seen.event.reason {
        Some(reason) => format!("its pod failed ({reason})"),
        None => "its pod failed".to_owned(),
    })
}

fn ended_container(pod: &PodEvent) -> Option<&ContainerState> {
    pod.containers.iter().find(|container| container.state.as_deref() == Some("terminated"))
}

fn ended_words(container: &ContainerState) -> String {
    let code = container.exit_code.map_or_else(|| "none".to_owned(), |code| code.to_string());
    let reason = container.reason.as_deref();
    let told = reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
    let message = container.message.as_deref().and_then(last_line);
    let message = message.map(|message| format!(": {message}")).unwrap_or_default();
    let remedy = match reason {
        Some("OOMKilled") => "; give it more memory with --load-resources",
        _ => "",
    };
    format!("its container ended with exit code {code}{told}{message}{remedy}")
}

/// Of what a program wrote, what it said last.
fn last_line(text: &str) -> Option<&str> {
    text.lines().map(str::trim).rfind(|line| !line.is_empty())
}

/// What a pod itself says about why it is not ready.
pub(super) fn own_reason(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let said = |reason: Option<&String>, message: Option<&String>| {
        let message = message.and_then(|message| last_line(message));
        reason.map(String::as_str).into_iter().chain(message).collect::<Vec<_>>().join(": ")
    };
    let mut conditions = status.conditions.iter().flatten();
    if let Some(unscheduled) = conditions.find(|c| c.type_ == "PodScheduled" && c.status == "False") {
        return Some(said(unscheduled.reason.as_ref(), unscheduled.message.as_ref()));
    }
    let states = || status.container_statuses.iter().flatten().filter_map(|status| status.state.as_ref());
    if let Some(ended) = states().find_map(|state| state.terminated.as_ref()) {
        let code = format!("it ended with exit code {}", ended.exit_code);
        return Some(format!("{code} ({})", said(ended.reason.as_ref(), ended.message.as_ref())));
    }
    let waiting =
        states().find_map(|state| state.waiting.as_ref()).filter(|state| state.message.is_some())?;
    Some(said(waiting.reason.as_ref(), waiting.message.as_ref()))
}

/// The state of a pod that gives no reason.
pub(super) fn state(pod: &Pod) -> String {
    let status = pod.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref()).unwrap_or("Pending");
    match pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) {
        Some(node) => format!("{phase} on node {node}, which does not say why"),
        None => format!("{phase}, and on no node yet"),
    }
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

    #[test]
    fn a_pod_says_why_it_is_not_ready() {
        let reason = |status: Value| own_reason(&pod(&status));
        let unschedulable = json!({"conditions": [{"type": "PodScheduled", "status": "False",
            "reason": "Unschedulable", "message": "0/2 nodes are available"}]});
        assert_eq!(reason(unschedulable).unwrap(), "Unschedulable: 0/2 nodes are available");
        let is = |state: Value| {
            json!({"phase": "Pending", "containerStatuses": [{"name": "x", "image": "x", "imageID": "",
            "ready": false, "restartCount": 0, "state": state}]})
        };
        let pull = is(json!({"waiting": {"reason": "ErrImagePull", "message": "no such image"}}));
        assert_eq!(reason(pull).unwrap(), "ErrImagePull: no such image");
        let ended =
            is(json!({"terminated": {"exitCode": 2, "reason": "Error", "message": "no such option\n"}}));
        assert_eq!(reason(ended).unwrap(), "it ended with exit code 2 (Error: no such option)");
        let creating = is(json!({"waiting": {"reason": "ContainerCreating"}}));
        assert_eq!(state(&pod(&creating)), "Pending on node node-2, which does not say why");
        assert_eq!(reason(creating), None);
    }
}
