//! Adds the recording proxy to manifests as a native sidecar, and takes it out again.
//!
//! App and sidecar share the pod's network, so they cannot share a port: the app keeps its own, the
//! sidecar listens on another, and what leads to the app is made to lead there.
//!
//! - A Service that names its target port: the name moves to the sidecar's port. The app's port is
//!   called [`APP_PORT_NAME`] from then on, also by the app's own probes and hooks.
//! - A Service that numbers it: the number is changed, and an annotation keeps the old one.
//!
//! Manifests in, manifests out: nothing here talks to a cluster. What is not touched stays as it was
//! written, comments included; a document of which that cannot be had is written anew, which is said.

mod flow;
mod manifests;
mod port;
mod sidecar;

use std::fmt;
use std::str::FromStr;

use serde_json::{Map, Value, json};
use thiserror::Error;

use manifests::{Change, Edit, Manifests};
pub(crate) use port::selects;
use port::{Frontage, Service, Unfit};
pub(crate) use sidecar::NAME as SIDECAR_NAME;

/// What the app's port is called while the sidecar has its name.
pub(crate) const APP_PORT_NAME: &str = "rolldrop-app";
/// The annotation of pods that have the sidecar: the image that it was added with.
pub(crate) const SIDECAR: &str = "rolldrop.dev/sidecar";
/// The annotation of a Service with the target ports that it had, as JSON, by the number of its port.
pub(crate) const TARGET_PORTS: &str = "rolldrop.dev/target-ports";

/// What to add.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// The image of the sidecar.
    pub image: String,
    /// The app's port, where several could be meant.
    pub port: Option<u16>,
    /// The oldest Kubernetes that the result is for.
    pub kubernetes: KubernetesVersion,
    /// Where the admin port's token is, if it is to ask for one.
    pub admin_token: Option<SecretKey>,
}

/// A value of a Secret in the workload's namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SecretKey {
    /// The Secret.
    pub name: String,
    /// The key in it.
    pub key: String,
    /// What becomes of a pod that is made when it is not there.
    pub absent: Absent,
}

/// What becomes of a pod to which a Secret is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Absent {
    /// It waits until there is one.
    Waits,
    /// It starts, and its admin port tells nobody what it knows.
    TellsNobody,
}

/// A text that names no value of a Secret.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("not the name of a Secret, or NAME/KEY")]
pub(crate) struct BadSecretKey;

impl FromStr for SecretKey {
    type Err = BadSecretKey;

    /// `NAME`, or `NAME/KEY`; the key is `token` where none is said.
    fn from_str(text: &str) -> Result<Self, BadSecretKey> {
        let (name, key) = text.split_once('/').unwrap_or((text, "token"));
        let good = |part: &str| {
            !part.is_empty()
                && part.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_'))
        };
        if !good(name) || !good(key) {
            return Err(BadSecretKey);
        }
        Ok(Self { name: name.to_owned(), key: key.to_owned(), absent: Absent::Waits })
    }
}

/// A minor version of Kubernetes 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct KubernetesVersion(u32);

impl KubernetesVersion {
    /// 1.`minor`.
    pub(crate) const fn minor(minor: u32) -> Self {
        Self(minor)
    }

    /// The first with native sidecars switched on (KEP-753, beta).
    pub(crate) const NATIVE_SIDECARS: Self = Self(29);
    /// The first whose EndpointSlices know named ports of native sidecars (kubernetes/kubernetes#128850,
    /// not brought back to earlier ones).
    pub(crate) const NAMED_SIDECAR_PORTS: Self = Self(33);
}

/// A text that is no version of Kubernetes.
#[derive(Debug, Error)]
#[error("not a version of Kubernetes, such as 1.33")]
pub(crate) struct BadVersion;

impl FromStr for KubernetesVersion {
    type Err = BadVersion;

    /// Of a version as servers say it, such as `v1.33.4-gke.1`, the first two numbers.
    fn from_str(text: &str) -> Result<Self, BadVersion> {
        let mut parts = text.strip_prefix('v').unwrap_or(text).split('.');
        let (Some("1"), Some(minor)) = (parts.next(), parts.next()) else { return Err(BadVersion) };
        minor.parse().map(Self).map_err(|_| BadVersion)
    }
}

impl fmt::Display for KubernetesVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "1.{}", self.0)
    }
}

/// Changed manifests.
#[derive(Debug)]
pub(crate) struct Output {
    /// The manifests, in the form in which they came: YAML or JSON.
    pub text: String,
    /// What was done and what to look after, a line each.
    pub notes: Vec<String>,
}

/// Why manifests cannot be changed.
#[derive(Debug, Error)]
pub(crate) enum InjectError {
    /// The text is neither YAML nor JSON.
    #[error("not YAML: {0}")]
    Unreadable(String),
    /// The result is for a version that cannot run it.
    #[error("native sidecars need Kubernetes {since} or later, not {0}", since = KubernetesVersion::NATIVE_SIDECARS)]
    TooOld(KubernetesVersion),
    /// Every port is somebody's.
    #[error("no two ports are left for the sidecar")]
    NoPort,
    /// There is nothing to add a sidecar to.
    #[error("no Pod, Deployment, StatefulSet, DaemonSet or ReplicaSet among the manifests")]
    NoWorkload,
    /// A Service has an annotation of ours that is none.
    #[error("{0} has an annotation {TARGET_PORTS} that was not written here: remove it")]
    Annotated(String),
    /// The port that was asked for is none of theirs.
    #[error("no workload declares port {0}, and no Service uses it")]
    NoSuchPort(u16),
    /// A workload cannot have the sidecar.
    #[error("{workload}: {why}")]
    Workload {
        /// Its kind and name.
        workload: String,
        /// Why not, and what to do.
        why: String,
    },
}

/// Adds the sidecar to every workload of the text, and leads its Services there.
///
/// What has the sidecar already is left as it is.
///
/// # Errors
///
/// The text cannot be read, has no workload, or has one of which it is not clear which port is meant.
pub(crate) fn inject(text: &str, options: &Options) -> Result<Output, InjectError> {
    let mut manifests = Manifests::parse(text)?;
    let (edits, mut notes) = additions(&manifests.objects(), options)?;
    notes.extend(manifests.apply(&edits)?);
    Ok(Output { text: manifests.text(), notes })
}

/// Takes the sidecar out of every workload of the text, and leads its Services back.
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

/// Where the metadata and the spec of the pods are that an object makes or is; `None` where those get no sidecar.
fn pod(object: &Value) -> Option<&'static str> {
    match (object["apiVersion"].as_str()?, object["kind"].as_str()?) {
        ("v1", "Pod") => Some(""),
        ("apps/v1", "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet") => Some("/spec/template"),
        _ => None,
    }
}

/// The labels of these pods.
pub(crate) fn pod_labels(object: &Value) -> Option<&Value> {
    Some(&object.pointer(pod(object)?)?["metadata"]["labels"])
}

/// A Kubernetes object among manifests.
#[derive(Clone, Debug)]
struct Object {
    /// The number of the document that it is in.
    document: usize,
    /// Where it is in there: a JSON pointer, empty but for an item of a List.
    at: String,
    value: Value,
}

impl Object {
    fn whole(document: usize, value: Value) -> Self {
        Self { document, at: String::new(), value }
    }

    /// Such as `deployment/web`.
    fn title(&self) -> String {
        let kind = self.value["kind"].as_str().unwrap_or("object").to_lowercase();
        let meta = &self.value["metadata"];
        let name = meta["name"].as_str().or(meta["generateName"].as_str()).unwrap_or("without a name");
        format!("{kind}/{name}")
    }

    fn namespace(&self) -> Option<&str> {
        self.value["metadata"]["namespace"].as_str()
    }

    /// Where its pods' metadata and spec are.
    fn pod(&self) -> Option<&'static str> {
        pod(&self.value)
    }

    fn get(&self, pointer: &str) -> &Value {
        self.value.pointer(pointer).unwrap_or(&Value::Null)
    }

    fn edit(&self, pointer: impl fmt::Display, change: Change) -> Edit {
        Edit { document: self.document, pointer: format!("{}{pointer}", self.at), change }
    }

    fn set(&self, pointer: impl fmt::Display, value: impl Into<Value>) -> Edit {
        self.edit(pointer, Change::Set(value.into()))
    }

    fn remove(&self, pointer: impl fmt::Display) -> Edit {
        self.edit(pointer, Change::Remove)
    }
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
        let front = match Frontage::of(object, pod, &services, ports, options) {
            Ok(front) => front,
            Err(Unfit::Refused(why)) => return Err(InjectError::Workload { workload: title, why }),
            Err(Unfit::NoPort) => {
                notes.push(format!("{title}: no Service uses it and it declares no port: left unchanged"));
                without_port = Some(title);
                continue;
            }
        };
        with_sidecar += 1;
        wanted_port.take_if(|port| *port == front.app_port);
        add(object, pod, &front, options, &mut edits);
        notes.push(format!(
            "{title}: port {} is reached through the sidecar on {}, whose admin port is {}",
            front.app_port, ports.listen, ports.admin,
        ));
        for lead in &front.leads {
            if !lead.by_name {
                let service = &services[lead.service];
                edits
                    .push(service.object.set(format!("/spec/ports/{}/targetPort", lead.index), ports.listen));
                retargeted[lead.service].insert(lead.port.to_string(), lead.target.clone());
            }
        }
        notes.extend(front.notes);
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

/// Adds an annotation to an object, or to its pods.
fn annotate(object: &Object, of: &str, key: &str, text: &str) -> Edit {
    let at = format!("{of}/metadata/annotations");
    match (object.get(&at), object.get(&format!("{of}/metadata"))) {
        (Value::Object(_), _) => object.set(format!("{at}/{}", escaped(key)), text),
        (_, Value::Object(_)) => object.set(at, json!({key: text})),
        _ => object.set(format!("{of}/metadata"), json!({"annotations": {key: text}})),
    }
}

/// Takes an annotation away, and what was only there for it.
fn withdraw(object: &Object, of: &str, key: &str) -> Edit {
    let at = format!("{of}/metadata/annotations");
    let is_alone = |pointer: &str| object.get(pointer).as_object().is_some_and(|map| map.len() == 1);
    let is_all = is_alone(&at) && is_alone(&format!("{of}/metadata"));
    object.edit(if is_all { at } else { format!("{at}/{}", escaped(key)) }, Change::Withdraw)
}

/// Adds the sidecar, and moves the port's name to it.
fn add(object: &Object, pod: &str, front: &Frontage, options: &Options, edits: &mut Vec<Edit>) {
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

/// A key as a part of a JSON pointer (RFC 6901, section 3).
fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

#[cfg(test)]
mod tests;
