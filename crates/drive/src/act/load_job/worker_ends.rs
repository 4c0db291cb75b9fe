//! Reasons that the load's pods report for not taking orders, or for having ended.

use crate::observe::View;
use crate::observe::unready::last_line;
use rolldrop_record::event::{ContainerState, PodEvent};

/// Returns the reason that none of these pods will take orders; `None` unless each of them reports one.
pub(super) fn why_hopeless(view: &View, is_own: impl Fn(&PodEvent) -> bool) -> Option<String> {
    let own = view.pods.values().map(|seen| &seen.event).filter(|pod| is_own(pod));
    let why = |pod: &PodEvent| match view.stuck_container(|other| other.uid == pod.uid) {
        Some(stuck) if stuck.lacks_image => {
            Some(format!("{stuck}; use --image to name an image that the cluster can pull"))
        }
        Some(stuck) => Some(stuck.to_string()),
        None => ended_container(pod).map(|ended| format!("pod {}: {}", pod.name, ended_words(ended))),
    };
    let all: Option<Vec<String>> = own.map(why).collect();
    all?.into_iter().next()
}

/// Returns the reason that a pod has ended; `None` if it has not. A terminating pod still responds.
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
    format!("its container exited with code {code}{told}{message}{remedy}")
}
