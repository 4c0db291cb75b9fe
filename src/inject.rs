//! Adds the recording proxy to manifests as a native sidecar, and takes it out again.
//!
//! App and sidecar share the pod's network, so they cannot share a port: the app keeps its own, the
//! sidecar listens on another, and the Services are pointed to the sidecar.
//!
//! - A Service that names its target port: the name moves to the sidecar's port. The app's port is
//!   called [`APP_PORT_NAME`] from then on, also by the app's own probes and hooks.
//! - A Service that numbers it: the number is changed, and an annotation keeps the old one.
//!
//! Manifests in, manifests out: nothing here talks to a cluster. The text is edited in place, comments
//! included. Where that is not possible, the document is rewritten, and a note says so.

pub(crate) mod ending;
mod flow;
mod manifests;
mod object;
mod options;
mod port;
mod sidecar;
#[cfg(test)]
mod tests;

use serde_json::{Map, Value, json};

use manifests::Manifests;
use object::{APP_PORT_NAME, Change, Edit, Object, TARGET_PORTS, annotate, withdraw};
pub(crate) use object::{SIDECAR, pod_labels};
pub(crate) use options::{Absent, InjectError, KubernetesVersion, Options, SecretKey};
pub(crate) use port::selects;
use port::{Frontage, Service, Unfit};
use sidecar::Front;
pub(crate) use sidecar::{ADMIN_PORT_NAME, NAME as SIDECAR_NAME};

/// Changed manifests.
#[derive(Debug)]
pub(crate) struct Output {
    /// The manifests, in the format of the input: YAML or JSON.
    pub text: String,
    /// What was done, and what the user should check, a line each.
    pub notes: Vec<String>,
}

/// Adds the sidecar to every workload of the text, and points its Services to it.
///
/// A workload that has the sidecar already is left unchanged.
///
/// # Errors
///
/// The text cannot be read, has no workload, or it is not clear which port of a workload is meant.
pub(crate) fn inject(text: &str, options: &Options) -> Result<Output, InjectError> {
    let mut manifests = Manifests::parse(text)?;
    let (edits, mut notes) = additions(&manifests.objects(), options)?;
    notes.extend(manifests.apply(&edits)?);
    Ok(Output { text: manifests.text(), notes })
}

/// Removes the sidecar from every workload of the text, and points its Services back to the app.
///
/// # Errors
///
/// The text cannot be read.
pub(crate) fn uninject(text: &str) -> Result<Output, InjectError> {
    let mut manifests = Manifests::parse(text)?;
    let (edits, mut notes) = removals(&manifests.objects());
    notes.extend(manifests.apply(&edits)?);
    Ok(Output { text: manifests.text(), notes })
}

/// Does to objects what [`inject`] does to a text, and returns its notes.
///
/// # Errors
///
/// As [`inject`].
pub(crate) fn inject_into(objects: &mut [Value], options: &Options) -> Result<Vec<String>, InjectError> {
    let found: Vec<_> =
        objects.iter().cloned().enumerate().map(|(n, object)| Object::whole(n, object)).collect();
    let (edits, notes) = additions(&found, options)?;
    for edit in &edits {
        edit.apply(&mut objects[edit.document]);
    }
    Ok(notes)
}

fn additions(objects: &[Object], options: &Options) -> Result<(Vec<Edit>, Vec<String>), InjectError> {
    if options.kubernetes < KubernetesVersion::NATIVE_SIDECARS {
        return Err(InjectError::TooOld(options.kubernetes));
    }
    let (mut edits, mut notes) = (Vec::new(), Vec::new());
    let services: Vec<_> = objects.iter().filter_map(Service::of).collect();
    let workloads: Vec<_> = objects.iter().filter_map(|object| Some((object, object.pod()?))).collect();
    if workloads.is_empty() {
        return Err(InjectError::NoWorkload);
    }
    let ports = port::free(&workloads)?;
    let mut retargeted = vec![Map::new(); services.len()];
    let (mut with_sidecar, mut without_port) = (0, None);
    let mut wanted_port = options.port;
    for (object, pod) in workloads {
        let title = object.title();
        if sidecar::place(object, pod).is_some() {
            with_sidecar += 1;
            notes.push(format!("{title} has the sidecar already"));
            continue;
        }
        let frontage = match Frontage::of(object, pod, &services, ports, options) {
            Ok(frontage) => frontage,
            Err(Unfit::Refused(why)) => return Err(InjectError::Workload { workload: title, why }),
            Err(Unfit::NoPort) => {
                notes.push(format!("{title}: no Service uses it and it declares no port: left unchanged"));
                without_port = Some(title);
                continue;
            }
        };
        let Frontage { front, leads, notes: more } = frontage;
        with_sidecar += 1;
        wanted_port.take_if(|port| *port == front.app_port);
        add(object, pod, &front, options, &mut edits);
        notes.push(format!(
            "{title}: port {} is reached through the sidecar on {}, whose admin port is {}",
            front.app_port, ports.listen, ports.admin,
        ));
        for lead in &leads {
            if !lead.by_name {
                let service = &services[lead.service];
                edits
                    .push(service.object.set(format!("/spec/ports/{}/targetPort", lead.index), ports.listen));
                retargeted[lead.service].insert(lead.port.to_string(), lead.target.clone());
            }
        }
        notes.extend(more);
    }
    if let Some(workload) = without_port.filter(|_| with_sidecar == 0) {
        let why = "no Service uses it and it declares no port: choose one with --port";
        return Err(InjectError::Workload { workload, why: why.to_owned() });
    }
    if let Some(port) = wanted_port.filter(|_| !edits.is_empty()) {
        return Err(InjectError::NoSuchPort(port));
    }
    for (service, kept) in services.iter().zip(retargeted) {
        if !kept.is_empty() {
            let mut all = service.kept.clone();
            all.extend(kept);
            if service.is_annotated && service.kept.is_empty() {
                return Err(InjectError::Annotated(service.object.title()));
            }
            edits.push(annotate(service.object, "", TARGET_PORTS, &Value::Object(all).to_string()));
        }
    }
    Ok((edits, notes))
}

/// Adds the sidecar, and moves the port's name to it.
fn add(object: &Object, pod: &str, front: &Front, options: &Options, edits: &mut Vec<Edit>) {
    let container = sidecar::container(front, options);
    let list = format!("{pod}/spec/initContainers");
    edits.push(match object.get(&list) {
        Value::Array(_) => object.edit(list, Change::Push(container)),
        _ => object.set(list, json!([container])),
    });
    if let Some(name) = &front.moved_name {
        edits.extend(rename(object, pod, name, APP_PORT_NAME));
    }
    edits.push(annotate(object, pod, SIDECAR, &options.image));
}

fn removals(objects: &[Object]) -> (Vec<Edit>, Vec<String>) {
    let (mut edits, mut notes) = (Vec::new(), Vec::new());
    for object in objects {
        let title = object.title();
        if let Some((pod, at)) = object.pod().and_then(|pod| Some((pod, sidecar::place(object, pod)?))) {
            let list = format!("{pod}/spec/initContainers");
            let name = sidecar::moved_name(object.get(&format!("{list}/{at}")));
            // First, while every container is where it was found.
            edits.extend(name.into_iter().flat_map(|name| rename(object, pod, APP_PORT_NAME, name)));
            edits.push(object.edit(format!("{list}/{at}"), Change::Withdraw));
            edits.push(withdraw(object, pod, SIDECAR));
            notes.push(format!("{title}: the sidecar is removed"));
        }
        if let Some(service) = Service::of(object).filter(|service| !service.kept.is_empty()) {
            for (index, port) in service.tcp_ports() {
                let at = format!("/spec/ports/{index}/targetPort");
                match service.kept.get(&port["port"].to_string()) {
                    Some(Value::Null) => edits.push(object.remove(at)),
                    Some(target) => edits.push(object.set(at, target.clone())),
                    None => {}
                }
            }
            edits.push(withdraw(object, "", TARGET_PORTS));
            notes.push(format!("{title}: its target ports are those of the app again"));
        }
    }
    if notes.is_empty() {
        notes.push("there is no sidecar to remove".to_owned());
    }
    (edits, notes)
}

/// Gives a port of the app's container, which may be a native sidecar itself, another name, also where
/// its probes and hooks name it.
fn rename(object: &Object, pod: &str, from: &str, to: &str) -> Vec<Edit> {
    const USERS: [&str; 5] =
        ["livenessProbe", "readinessProbe", "startupProbe", "lifecycle/preStop", "lifecycle/postStart"];
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
        for user in USERS {
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
