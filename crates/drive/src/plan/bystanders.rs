//! Pods that share a Service with pods that get the sidecar, but get none themselves: a canary's, those of an owner
//! whose kind the run does not change, or those that the user left out.
//!
//! Nothing in them listens on the sidecar's port, so a Service that routes to that port would lose their share of the
//! requests.

use std::collections::BTreeSet;

use kube::ResourceExt;
use serde_json::{Value, json};

use super::live_changes::Live;
use crate::api::Caller;
use crate::error::Result;
use crate::undo::effect::workload_of;
use rolldrop_kubernetes::pods::ListedPod;
use rolldrop_sidecar::inject;

/// Pod, or workload, that gets no sidecar.
pub(crate) struct Bystander {
    title: String,
    namespace: Value,
    labels: Value,
}

impl Bystander {
    /// Reads a workload; `None` if its pods have the sidecar already, or if it has no pods.
    pub(crate) fn of(workload: &Value) -> Option<Self> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let metadata = &workload["metadata"];
        let title = format!("{} {}", text(&workload["kind"]), text(&metadata["name"]));
        let labels = inject::pod_labels(workload)?.clone();
        let spec = workload.pointer("/spec/template/spec").unwrap_or(&workload["spec"]);
        (!has_sidecar(spec)).then(|| Self { title, namespace: metadata["namespace"].clone(), labels })
    }

    fn of_pod(ListedPod(pod): &ListedPod, workloads: &BTreeSet<String>) -> Option<Self> {
        let workload = workload_of(pod);
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        let is_ending =
            pod.metadata.deletion_timestamp.is_some() || matches!(phase, Some("Succeeded" | "Failed"));
        let is_known = workload.as_ref().is_some_and(|workload| workloads.contains(workload));
        if is_ending || is_known || has_sidecar(&json!(pod.spec)) {
            return None;
        }
        let of = workload.map(|workload| format!(" of {workload}")).unwrap_or_default();
        let title = format!("Pod {}{of}", pod.name_any());
        Some(Self { title, namespace: json!(pod.namespace()), labels: json!(pod.labels()) })
    }
}

fn has_sidecar(pod_spec: &Value) -> bool {
    let containers = pod_spec["initContainers"].as_array();
    containers.into_iter().flatten().any(|container| container["name"] == inject::SIDECAR_NAME)
}

/// Returns the pods and workloads of the namespace that these changes leave as they are. `workloads` are those that the
/// changes are for, `others` the remaining ones.
pub(super) async fn find_bystanders(
    caller: &Caller,
    workloads: &[Live],
    others: &[Live],
) -> Result<Vec<Bystander>> {
    let known: BTreeSet<String> = workloads.iter().chain(others).map(Live::title).collect();
    let pods = caller.list_kind_as(|pod: ListedPod| Bystander::of_pod(&pod, &known)).await?;
    let others = others.iter().filter_map(|other| Bystander::of(&other.current));
    Ok(others.chain(pods.into_iter().flatten()).collect())
}

/// Refuses Services that would lead to the sidecar's port, but also select pods without the sidecar.
///
/// # Errors
/// Returns the reason, with a remedy.
pub(crate) fn refuse_shared<'a>(
    rerouted: impl IntoIterator<Item = &'a Value>,
    bystanders: &[Bystander],
) -> Result<(), String> {
    for service in rerouted {
        let is_behind = |other: &&Bystander| {
            other.namespace == service["metadata"]["namespace"] && inject::selects(service, &other.labels)
        };
        if let Some(Bystander { title, .. }) = bystanders.iter().find(is_behind) {
            let name = service["metadata"]["name"].as_str().unwrap_or_default();
            return Err(format!(
                "Service {name} also routes to {title}, which gets no sidecar, so nothing there would listen on the \
                 sidecar's port: choose all workloads behind the Service (sidecar.workloads), add the sidecar to the \
                 others with rolldrop inject, or measure without it"
            ));
        }
    }
    Ok(())
}
