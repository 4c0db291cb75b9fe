//! Workload ports that the sidecar takes over, and the Services that route to them.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::PORT_USERS;
use super::annotated_object::{APP_PORT_NAME, SIDECAR, TARGET_PORTS};
use super::container::{self, ADMIN_PORT_NAME, Front, NAME as SIDECAR_NAME, Ports};
use super::options::{AppProtocol, InjectError, InjectOptions, KubernetesVersion};
use super::protocol::{Foreign, foreign};
use rolldrop_manifest::{ManifestObject, escaped};

/// First candidate port for a sidecar; ports that a workload uses are skipped.
const FIRST_PORT: u16 = 18080;

/// Returns the ports of an existing sidecar, or the first two ports that no workload uses. `chosen` is the app's port, if
/// the user chose one.
///
/// # Errors
///
/// Fails if no two ports are free.
pub(super) fn free<'a>(
    workloads: impl Iterator<Item = (&'a ManifestObject, &'a str)> + Clone,
    services: &Services<'_>,
    chosen: Option<u16>,
) -> Result<Ports, InjectError> {
    let used = |(object, pod)| used(object, pod, services);
    let taken: HashSet<u16> = workloads.clone().flat_map(used).chain(chosen).collect();
    let is_free = |port: &u16| !taken.contains(port);
    let mut there = workloads.filter_map(|(object, pod)| container::ports(object, pod));
    if let Some(ports) = there.find(|ports| is_free(&ports.listen) && is_free(&ports.admin)) {
        return Ok(ports);
    }
    let mut free = (FIRST_PORT..=u16::MAX).filter(is_free);
    match (free.next(), free.next()) {
        (Some(listen), Some(admin)) => Ok(Ports { listen, admin }),
        _ => Err(InjectError::NoPort),
    }
}

/// A Service among the manifests.
#[derive(Debug)]
pub(super) struct Service<'a> {
    /// Index of the Service among the objects.
    pub(super) number: usize,
    pub(super) object: &'a ManifestObject,
    /// Original target ports, by Service port number.
    pub(super) kept: Map<String, Value>,
    /// True if the Service has the annotation, readable or not.
    pub(super) is_annotated: bool,
}

impl<'a> Service<'a> {
    pub(super) fn of(number: usize, object: &'a ManifestObject) -> Option<Self> {
        if object.value["apiVersion"] != "v1" || object.value["kind"] != "Service" {
            return None;
        }
        let annotation = object.get("/metadata/annotations")[TARGET_PORTS].as_str();
        let kept = annotation.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        Some(Self { number, object, kept, is_annotated: annotation.is_some() })
    }

    /// Returns the Service's TCP ports, with their indices.
    pub(super) fn tcp_ports(&self) -> impl Iterator<Item = (usize, &Value)> {
        let ports = self.object.value["spec"]["ports"].as_array().into_iter().flatten();
        ports.enumerate().filter(|(_, port)| is_tcp(port))
    }

    /// Returns the app's target port behind a port of this Service; null if none is specified.
    pub(super) fn target<'b>(&'b self, port: &'b Value) -> &'b Value {
        self.kept.get(&port["port"].to_string()).unwrap_or(&port["targetPort"])
    }

    pub(super) fn is_headless(&self) -> bool {
        self.object.value["spec"]["clusterIP"] == "None"
    }
}

/// Services among the manifests, indexed by the labels that they select.
#[derive(Debug)]
pub(super) struct Services<'a> {
    pub(super) all: Vec<Service<'a>>,
    /// Indices by namespace and first selected label.
    by_label: HashMap<(Option<&'a str>, &'a str, &'a Value), Vec<usize>>,
}

impl<'a> Services<'a> {
    pub(super) fn among(objects: &'a [ManifestObject]) -> Self {
        let all: Vec<Service<'a>> =
            objects.iter().enumerate().filter_map(|(number, object)| Service::of(number, object)).collect();
        let mut by_label: HashMap<_, Vec<usize>> = HashMap::new();
        for (number, service) in all.iter().enumerate() {
            let object = service.object;
            let selector = object.value["spec"]["selector"].as_object();
            if let Some((key, value)) = selector.and_then(|selector| selector.iter().next()) {
                by_label.entry((object.namespace(), key.as_str(), value)).or_default().push(number);
            }
        }
        Self { all, by_label }
    }

    /// Returns the indices of the Services that select the pods of a workload, in order.
    pub(super) fn of(&self, workload: &ManifestObject, pod: &str) -> Vec<usize> {
        let labels = workload.get(&format!("{pod}/metadata/labels"));
        let namespace = workload.namespace();
        let mut found: Vec<usize> = labels
            .as_object()
            .into_iter()
            .flatten()
            .filter_map(|(key, value)| self.by_label.get(&(namespace, key.as_str(), value)))
            .flatten()
            .copied()
            .filter(|number| selects(&self.all[*number].object.value, labels))
            .collect();
        found.sort_unstable();
        found
    }
}

/// Returns true if a Service selects pods with these labels.
pub fn selects(service: &Value, labels: &Value) -> bool {
    let selector = service["spec"]["selector"].as_object();
    selector.is_some_and(|selector| {
        !selector.is_empty() && selector.iter().all(|(key, value)| labels.get(key) == Some(value))
    })
}

/// A Service port that routes to the app.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lead {
    /// Index of the Service.
    pub(super) service: usize,
    /// Index of the port in the Service.
    pub(super) index: usize,
    /// True if the Service port follows the port name to the sidecar.
    pub(super) by_name: bool,
}

/// The app port that the sidecar takes over, and the Service ports that route to it.
#[derive(Debug)]
pub(super) struct Frontage {
    pub(super) front: Front,
    pub(super) leads: Vec<Lead>,
    /// Headless Services, whose clients bypass the sidecar.
    pub(super) headless: Vec<usize>,
    pub(super) notes: Vec<String>,
}

/// A TCP port declared by a container.
#[derive(Debug)]
pub(super) struct Declared {
    pub(super) number: u16,
    pub(super) name: Option<String>,
    host_port: Option<u64>,
}

/// Reason why a workload gets no sidecar.
#[derive(Debug)]
pub(super) enum NoSidecarReason {
    /// The workload has no port, so perhaps nothing connects to it.
    NoPort,
    /// The port carries a protocol that the HTTP proxy would break.
    NoHttp { port: u16, foreign: Foreign },
    /// The workload cannot have the sidecar, or its port is ambiguous.
    Refused {
        /// JSON pointer to the offending part.
        at: String,
        /// Reason and remedy.
        why: String,
    },
}

impl NoSidecarReason {
    fn because(at: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Refused { at: at.into(), why: why.into() }
    }
}

impl Frontage {
    /// Chooses a workload's port, and the Service ports that route to it. `is_named` is true if the user named the
    /// workload.
    ///
    /// # Errors
    ///
    /// Fails, with a remedy, if no port can be chosen.
    pub(super) fn of(
        workload: &ManifestObject,
        pod: &str,
        services: &Services<'_>,
        ports: Ports,
        options: &InjectOptions,
        is_named: bool,
    ) -> Result<Self, NoSidecarReason> {
        let spec = workload.get(&format!("{pod}/spec"));
        let declared = declared(workload, pod);
        refuse_unfit(workload, pod, &declared)?;
        let (mut headless, mut leads) = (Vec::new(), Vec::new());
        for number in services.of(workload, pod) {
            let service = &services.all[number];
            if service.is_headless() {
                headless.push(number);
            } else {
                leads.extend(leads_of(number, service, &declared));
            }
        }
        let app_port = app_port(pod, &leads, &declared, options, is_named)?;
        leads.retain(|(_, to)| *to == Some(app_port));
        let mut leads: Vec<Lead> = leads.into_iter().map(|(lead, _)| lead).collect();
        let own = || declared.iter().filter(|port| port.number == app_port);
        if options.mode.is_none() {
            // Headless Services reveal as much about the app's protocol as other Services.
            let of_headless = headless.iter().flat_map(|number| {
                let leads = leads_of(*number, &services.all[*number], &declared);
                leads.filter(|(_, to)| *to == Some(app_port)).map(|(lead, _)| lead)
            });
            let all: Vec<Lead> = leads.iter().copied().chain(of_headless).collect();
            let port = |lead: &Lead| &services.all[lead.service].object.value["spec"]["ports"][lead.index];
            let names = own()
                .filter_map(|port| port.name.as_deref())
                .chain(all.iter().filter_map(|lead| port(lead)["name"].as_str()));
            let app_protocols = all.iter().map(|lead| &port(lead)["appProtocol"]);
            if let Some(foreign) = foreign(app_port, app_protocols, names) {
                return Err(NoSidecarReason::NoHttp { port: app_port, foreign });
            }
        }
        let title = workload.title();
        let mut notes: Vec<String> = own()
            .filter_map(|port| port.host_port)
            .map(|port| format!("hostPort {port} bypasses the sidecar in {title}"))
            .collect();
        let names_move = options.kubernetes >= KubernetesVersion::NAMED_SIDECAR_PORTS;
        let moved_name = own().next().and_then(|port| port.name.clone()).filter(|_| names_move);
        for lead in &mut leads {
            lead.by_name &= names_move;
        }
        if leads.is_empty() {
            notes.push(format!(
                "no Service among the manifests routes to {title}: a Service with a numeric target port must use {} \
                 instead of {app_port}",
                ports.listen
            ));
        }
        let ready_path = ready_path(spec, app_port, moved_name.as_deref());
        let is_http = options.mode != Some(AppProtocol::Tcp);
        let front = Front { app_port, ready_path: ready_path.filter(|_| is_http), moved_name, ports };
        Ok(Self { front, leads, headless, notes })
    }
}

/// Refuses pods that cannot have the sidecar, regardless of the port.
fn refuse_unfit(workload: &ManifestObject, pod: &str, declared: &[Declared]) -> Result<(), NoSidecarReason> {
    let spec = workload.get(&format!("{pod}/spec"));
    if spec["hostNetwork"] == true {
        return Err(NoSidecarReason::because(
            format!("{pod}/spec/hostNetwork"),
            "its pods use the node's network, so the sidecar would take ports on the node: remove hostNetwork, or measure \
             without the sidecar",
        ));
    }
    if spec["os"]["name"] == "windows" {
        return Err(NoSidecarReason::because(
            format!("{pod}/spec/os"),
            "its pods run on Windows, where the sidecar does not run: measure without it",
        ));
    }
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        if let Some(at) = containers(spec, list).position(|container| container["name"] == *SIDECAR_NAME) {
            return Err(NoSidecarReason::because(
                format!("{pod}/spec/{list}/{at}/name"),
                format!(
                    "one of its {list} has the sidecar's name {SIDECAR_NAME} but is not the sidecar (its pods lack the \
                     annotation {SIDECAR}, or it has another image): rename it"
                ),
            ));
        }
    }
    let annotations = format!("{pod}/metadata/annotations");
    if !workload.get(&annotations)[SIDECAR].is_null() {
        return Err(NoSidecarReason::because(
            format!("{annotations}/{}", escaped(SIDECAR)),
            format!("its pods have the annotation {SIDECAR} but no sidecar: remove the annotation"),
        ));
    }
    let reserved = [ADMIN_PORT_NAME, APP_PORT_NAME];
    let mut names = declared.iter().filter_map(|port| port.name.as_deref());
    match names.find(|name| reserved.contains(name)) {
        Some(name) => Err(NoSidecarReason::because(
            format!("{pod}/spec/containers"),
            format!("one of its ports is named {name}, which the sidecar needs: rename the port"),
        )),
        None => Ok(()),
    }
}

fn containers<'a>(spec: &'a Value, list: &str) -> impl Iterator<Item = &'a Value> {
    spec[list].as_array().into_iter().flatten()
}

pub(super) fn is_tcp(port: &Value) -> bool {
    port["protocol"].as_str().is_none_or(|protocol| protocol == "TCP")
}

/// Returns the ports of all containers except the sidecar.
pub(super) fn declared(workload: &ManifestObject, pod: &str) -> Vec<Declared> {
    let spec = workload.get(&format!("{pod}/spec"));
    let own = container::place(workload, pod);
    let init = containers(spec, "initContainers").enumerate().filter(|(at, _)| Some(*at) != own);
    let apps = containers(spec, "containers").chain(init.map(|(_, container)| container));
    let ports = apps.filter_map(|container| container["ports"].as_array()).flatten();
    ports
        .filter(|port| is_tcp(port))
        .filter_map(|port| {
            let number = u16::try_from(port["containerPort"].as_u64()?).ok()?;
            let name = port["name"].as_str().map(str::to_owned);
            Some(Declared { number, name, host_port: port["hostPort"].as_u64() })
        })
        .collect()
}

/// Returns the ports that a workload's containers declare, Services route to, or probes and hooks connect to. A container
/// may listen on a port without declaring it.
fn used(workload: &ManifestObject, pod: &str, services: &Services<'_>) -> Vec<u16> {
    let declared = declared(workload, pod);
    let targets = targets(workload, pod, services);
    let own = container::ports(workload, pod).map(|ports| [ports.listen, ports.admin]).unwrap_or_default();
    let spec = workload.get(&format!("{pod}/spec"));
    let all = containers(spec, "containers").chain(containers(spec, "initContainers"));
    let actions = all.flat_map(|container| {
        let users = PORT_USERS.iter().filter_map(|user| container.pointer(&format!("/{user}")));
        users.flat_map(|user| ["httpGet", "tcpSocket", "grpc"].map(|action| &user[action]["port"]))
    });
    let asked = actions.filter_map(|port| u16::try_from(port.as_u64()?).ok());
    // A Service that the user pointed to the sidecar by hand leads to no port of the app.
    let found = targets.into_iter().chain(asked).filter(|port| !own.contains(port));
    declared.iter().map(|port| port.number).chain(found).collect()
}

/// Returns a Service's TCP ports, each with the pod port that it routes to, if known.
fn leads_of<'a>(
    number: usize,
    service: &'a Service<'_>,
    declared: &'a [Declared],
) -> impl Iterator<Item = (Lead, Option<u16>)> + 'a {
    service.tcp_ports().filter_map(move |(index, port)| {
        let own = port["port"].as_u64()?;
        let target = service.target(port);
        let to = match target {
            Value::String(name) => {
                declared.iter().find(|port| port.name.as_ref() == Some(name)).map(|port| port.number)
            }
            Value::Null => u16::try_from(own).ok(),
            other => other.as_u64().and_then(|port| u16::try_from(port).ok()),
        };
        Some((Lead { service: number, index, by_name: target.is_string() }, to))
    })
}

/// Returns the pod ports of a workload that these Services route to.
pub(super) fn targets(workload: &ManifestObject, pod: &str, services: &Services<'_>) -> Vec<u16> {
    let declared = declared(workload, pod);
    let of_it = services.of(workload, pod);
    of_it
        .into_iter()
        .flat_map(|number| leads_of(number, &services.all[number], &declared).collect::<Vec<_>>())
        .filter_map(|(_, to)| to)
        .collect()
}

fn app_port(
    pod: &str,
    leads: &[(Lead, Option<u16>)],
    declared: &[Declared],
    options: &InjectOptions,
    is_named: bool,
) -> Result<u16, NoSidecarReason> {
    let mut meant: Vec<u16> = leads.iter().filter_map(|(_, to)| *to).collect();
    let by_services = !meant.is_empty();
    if !by_services {
        meant.extend(declared.iter().map(|port| port.number));
    }
    meant.sort_unstable();
    meant.dedup();
    // A port that nothing mentions is accepted only if the user also named the workload.
    if let Some(port) = options.port
        && ((meant.is_empty() && is_named)
            || meant.contains(&port)
            || declared.iter().any(|declared| declared.number == port))
    {
        return Ok(port);
    }
    match meant.as_slice() {
        [one] => Ok(*one),
        [] => Err(NoSidecarReason::NoPort),
        several => {
            let several: Vec<_> = several.iter().map(u16::to_string).collect();
            let several = several.join(" and ");
            let why = if by_services { "Services use its ports" } else { "it declares ports" };
            Err(NoSidecarReason::because(
                format!("{pod}/spec/containers"),
                format!("{why} {several}: choose one with --port"),
            ))
        }
    }
}

/// Returns the path of the app's readiness probe, if the probe uses this port.
fn ready_path(spec: &Value, app_port: u16, name: Option<&str>) -> Option<String> {
    let containers = spec["containers"].as_array()?;
    let mut asked = containers.iter().map(|container| &container["readinessProbe"]["httpGet"]);
    let is_meant =
        |port: &Value| port.as_u64() == Some(app_port.into()) || (name.is_some() && port.as_str() == name);
    let found = asked.find(|get| is_meant(&get["port"]) && get["scheme"].as_str() != Some("HTTPS"))?;
    found["path"].as_str().map(str::to_owned)
}
