//! Adds the recording proxy to manifests as a native sidecar, and removes it again.
//!
//! App and sidecar share the pod's network, so they cannot share a port. The app keeps its own port, the sidecar
//! listens on another, and the Services are pointed at the sidecar.
//!
//! - If a Service specifies its target port by name, the name moves to the sidecar's port. The app's port is then
//!   called `rolldrop-app`, also in the app's own probes and hooks.
//! - If a Service specifies its target port by number, the number is changed, and an annotation keeps the old one.
//!
//! Manifests in, manifests out; this module does not talk to a cluster. The text is edited in place, and comments are
//! kept. If that is not possible, the document is rewritten, and a note says so.

mod additions;
mod annotated_object;
mod container;
pub mod ending;
mod network_policy;
mod options;
mod port;
mod protocol;
#[cfg(test)]
mod tests;

use serde_json::Value;

use additions::{Additions, InjectRefusal};
use annotated_object::{APP_PORT_NAME, TARGET_PORTS, template, withdraw};
pub use annotated_object::{SIDECAR, WorkloadName, pod_labels};
pub use container::{ADMIN_PORT_NAME, NAME as SIDECAR_NAME};
pub use network_policy::refuse_network_policies;
pub use options::{Absent, AppProtocol, InjectError, InjectOptions, KubernetesVersion, SecretKey, Selection};
use port::Service;
pub use port::selects;
use rolldrop_manifest::{EditKind, Edited, ManifestEdit, ManifestObject, Manifests};

/// Parts of a container that connect to its ports.
const PORT_USERS: [&str; 5] =
    ["livenessProbe", "readinessProbe", "startupProbe", "lifecycle/preStop", "lifecycle/postStart"];

/// Changed manifests.
#[derive(Debug)]
pub struct Output {
    /// The manifests, in the format of the input: YAML or JSON.
    pub text: String,
    /// Notes on what was done and what the user should check, one line each.
    pub notes: Vec<String>,
}

/// Adds the sidecar to the workloads in manifest text, and points their Services at it. `file` is the text's name in
/// messages.
///
/// A workload that already has the sidecar is left unchanged.
///
/// # Errors
///
/// Fails if the text cannot be parsed, none of its workloads can have the sidecar, or a named workload cannot.
pub fn inject(file: &str, text: &str, options: &InjectOptions) -> Result<Output, InjectError> {
    let manifests = Manifests::parse(file, text)?;
    let objects = manifests.objects();
    let place =
        |refusal: &InjectRefusal| format!("{}: ", manifests.place(&objects[refusal.object], &refusal.at));
    let Additions { edits, mut notes, left } =
        additions::of(&objects, options, &place).map_err(|error| error.of(file))?;
    notes.extend(left);
    let has_more_ports = text.contains("net.ipv4.ip_local_port_range");
    notes.extend((!edits.is_empty() && !has_more_ports).then(|| {
        "a pod with the sidecar accepts at most 470 new connections a second if clients close them first, because \
         source ports run out; a sysctl more than doubles this (docs/inject.md, Source ports)"
            .to_owned()
    }));
    let Edited { text, notes: more } = manifests.edited(&edits);
    notes.extend(more);
    Ok(Output { text, notes })
}

/// Removes the sidecar from every workload in manifest text, and points the Services back at the app.
///
/// # Errors
///
/// Fails if the text cannot be parsed.
pub fn uninject(file: &str, text: &str) -> Result<Output, InjectError> {
    let manifests = Manifests::parse(file, text)?;
    let (edits, mut notes) = removals(&manifests.objects());
    let Edited { text, notes: more } = manifests.edited(&edits);
    notes.extend(more);
    Ok(Output { text, notes })
}

/// Result of an injection into objects.
#[derive(Debug)]
pub struct Injected {
    /// Notes on what was done and what the user should check, one line each.
    pub notes: Vec<String>,
    /// Workloads left without the sidecar, with the reason, one line each.
    pub left: Vec<String>,
}

/// Like [`inject`], but edits objects instead of text.
///
/// # Errors
///
/// Fails as [`inject`] does.
pub fn inject_into(objects: &mut [Value], options: &InjectOptions) -> Result<Injected, InjectError> {
    let found = annotated_object::all(objects);
    let Additions { edits, notes, left } = additions::of(&found, options, &|_| String::new())?;
    for edit in &edits {
        edit.apply(&mut objects[edit.document]);
    }
    Ok(Injected { notes, left })
}

fn removals(objects: &[ManifestObject]) -> (Vec<ManifestEdit>, Vec<String>) {
    let (mut edits, mut notes) = (Vec::new(), Vec::new());
    for (number, object) in objects.iter().enumerate() {
        let title = object.title();
        if let Some((pod, at)) =
            template(&object.value).and_then(|pod| Some((pod, container::place(object, pod)?)))
        {
            let list = format!("{pod}/spec/initContainers");
            let name = container::moved_name(object.get(&format!("{list}/{at}")));
            // Rename first, while every container is still at its original index.
            edits.extend(name.into_iter().flat_map(|name| rename(object, pod, APP_PORT_NAME, name)));
            edits.push(object.edit(format!("{list}/{at}"), EditKind::Withdraw));
            edits.push(withdraw(object, pod, SIDECAR));
            notes.push(format!("{title}: sidecar removed"));
        }
        if let Some(service) = Service::of(number, object).filter(|service| !service.kept.is_empty()) {
            for (index, port) in service.tcp_ports() {
                let at = format!("/spec/ports/{index}/targetPort");
                match service.kept.get(&port["port"].to_string()) {
                    Some(Value::Null) => edits.push(object.remove(at)),
                    Some(target) => edits.push(object.set(at, target.clone())),
                    None => {}
                }
            }
            edits.push(withdraw(object, "", TARGET_PORTS));
            notes.push(format!("{title}: target ports point to the app again"));
        }
    }
    if notes.is_empty() {
        notes.push("no sidecar to remove".to_owned());
    }
    (edits, notes)
}

/// Renames a port of the app's container, which may itself be a native sidecar, including references in the container's
/// probes and hooks.
fn rename(object: &ManifestObject, pod: &str, from: &str, to: &str) -> Vec<ManifestEdit> {
    let containers = ["containers", "initContainers"].into_iter().flat_map(|list| {
        let list = format!("{pod}/spec/{list}");
        let count = object.get(&list).as_array().map_or(0, Vec::len);
        (0..count).map(move |number| format!("{list}/{number}"))
    });
    let mut edits = Vec::new();
    for at in containers {
        let container = object.get(&at);
        let ports = container["ports"].as_array().into_iter().flatten();
        let Some(port) = ports.enumerate().find(|(_, port)| port["name"] == *from).map(|(index, _)| index)
        else {
            continue;
        };
        edits.push(object.set(format!("{at}/ports/{port}/name"), to));
        for user in PORT_USERS {
            for action in ["httpGet", "tcpSocket"] {
                let pointer = format!("{at}/{user}/{action}/port");
                if *object.get(&pointer) == *from {
                    edits.push(object.set(pointer, to));
                }
            }
        }
    }
    edits
}
