//! Which port of a workload the sidecar stands in front of, and which Services route to it.

use serde_json::{Map, Value};

use super::object::{APP_PORT_NAME, Object, SIDECAR, TARGET_PORTS};
use super::options::{InjectError, KubernetesVersion, Options};
use super::sidecar::{self, ADMIN_PORT_NAME, Front, NAME as SIDECAR_NAME, Ports};

/// Where the sidecar's ports begin, if the pod has none of these itself.
const FIRST_PORT: u16 = 18080;

/// The ports of an existing sidecar, else the first two that no workload declares.
///
/// # Errors
///
/// No two ports are free.
pub(super) fn free(workloads: &[(&Object, &str)]) -> Result<Ports, InjectError> {
    let taken: Vec<_> = workloads.iter().flat_map(|(object, pod)| declared(object, pod)).collect();
    let is_free = |port: &u16| taken.iter().all(|taken| taken.number != *port);
    let mut there = workloads.iter().filter_map(|(object, pod)| sidecar::ports(object, pod));
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
    pub(super) object: &'a Object,
    /// The target ports that it had before, by the number of its port.
    pub(super) kept: Map<String, Value>,
    /// Whether it has the annotation, readable or not.
    pub(super) is_annotated: bool,
}

impl<'a> Service<'a> {
    pub(super) fn of(object: &'a Object) -> Option<Self> {
        if object.value["apiVersion"] != "v1" || object.value["kind"] != "Service" {
            return None;
        }
        let annotation = object.get("/metadata/annotations")[TARGET_PORTS].as_str();
        let kept = annotation.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        Some(Self { object, kept, is_annotated: annotation.is_some() })
    }

    /// Its TCP ports, with their places.
    pub(super) fn tcp_ports(&self) -> impl Iterator<Item = (usize, &Value)> {
        let ports = self.object.value["spec"]["ports"].as_array().into_iter().flatten();
        ports.enumerate().filter(|(_, port)| is_tcp(port))
    }

    fn selects(&self, workload: &Object, labels: &Value) -> bool {
        self.object.namespace() == workload.namespace() && selects(&self.object.value, labels)
    }

    fn is_headless(&self) -> bool {
        self.object.value["spec"]["clusterIP"] == "None"
    }
}

/// Whether a Service selects pods with these labels.
pub(crate) fn selects(service: &Value, labels: &Value) -> bool {
    let selector = service["spec"]["selector"].as_object();
    selector.is_some_and(|selector| {
        !selector.is_empty() && selector.iter().all(|(key, value)| labels.get(key) == Some(value))
    })
}

/// A port of a Service that routes to the app.
#[derive(Debug)]
pub(super) struct Lead {
    /// Which of the Services.
    pub(super) service: usize,
    /// Which of its ports.
    pub(super) index: usize,
    /// That port's own number.
    pub(super) port: u64,
    /// The target port as it is written; null where it is not.
    pub(super) target: Value,
    /// Whether it follows the name to the sidecar.
    pub(super) by_name: bool,
}

/// What the sidecar stands in front of, and which Service ports route there.
#[derive(Debug)]
pub(super) struct Frontage {
    pub(super) front: Front,
    pub(super) leads: Vec<Lead>,
    pub(super) notes: Vec<String>,
}

/// A TCP port that a container declares.
#[derive(Debug)]
struct Declared {
    number: u16,
    name: Option<String>,
    host_port: Option<u64>,
}

/// Why a workload gets no sidecar.
#[derive(Debug)]
pub(super) enum Unfit {
    /// It has no port: perhaps nothing connects to it.
    NoPort,
    /// It cannot have one, or it is ambiguous; why, and what to do.
    Refused(String),
}

impl Unfit {
    fn because(why: &str) -> Self {
        Self::Refused(why.to_owned())
    }
}

impl Frontage {
    /// Chooses the port of a workload, and the Service ports that route to it.
    ///
    /// # Errors
    ///
    /// Why none can be chosen, and what to do.
    pub(super) fn of(
        workload: &Object,
        pod: &str,
        services: &[Service<'_>],
        ports: Ports,
        options: &Options,
    ) -> Result<Self, Unfit> {
        let spec = workload.get(&format!("{pod}/spec"));
        if spec["hostNetwork"] == true {
            return Err(Unfit::because(
                "its pods use the node's network, where the sidecar's ports would be the node's",
            ));
        }
        if spec["os"]["name"] == "windows" {
            return Err(Unfit::because("its pods run on Windows, for which there is no sidecar"));
        }
        for list in ["containers", "initContainers", "ephemeralContainers"] {
            if containers(spec, list).any(|container| container["name"] == *SIDECAR_NAME) {
                return Err(Unfit::Refused(format!(
                    "one of its {list} is named {SIDECAR_NAME}, as the sidecar would be, and was not added here \
                     (its pods lack the annotation {SIDECAR}, or its image is another): rename it"
                )));
            }
        }
        if !workload.get(&format!("{pod}/metadata/annotations"))[SIDECAR].is_null() {
            let why = format!("its pods have the annotation {SIDECAR} but no sidecar: remove it");
            return Err(Unfit::Refused(why));
        }
        let declared = declared(workload, pod);
        let reserved = [ADMIN_PORT_NAME, APP_PORT_NAME];
        if let Some(name) =
            declared.iter().filter_map(|port| port.name.as_deref()).find(|n| reserved.contains(n))
        {
            let why = format!("one of its ports is named {name}, a name that the sidecar needs: rename it");
            return Err(Unfit::Refused(why));
        }
        let labels = workload.get(&format!("{pod}/metadata/labels"));
        let title = workload.title();
        let mut notes = Vec::new();
        let mut leads = Vec::new();
        for (number, service) in services.iter().enumerate().filter(|(_, s)| s.selects(workload, labels)) {
            if service.is_headless() {
                let service = service.object.title();
                notes.push(format!(
                    "{service} is headless: its clients choose the port, and bypass the sidecar of {title}"
                ));
                continue;
            }
            leads.extend(leads_of(number, service, &declared));
        }
        let app_port = app_port(&leads, &declared, options)?;
        for host_port in
            declared.iter().filter(|port| port.number == app_port).filter_map(|port| port.host_port)
        {
            notes.push(format!("port {host_port} of the nodes bypasses the sidecar of {title}"));
        }
        leads.retain(|(_, to)| *to == Some(app_port));
        let mut leads: Vec<Lead> = leads.into_iter().map(|(lead, _)| lead).collect();

        let name = declared.iter().find(|port| port.number == app_port).and_then(|port| port.name.clone());
        let names_move = options.kubernetes >= KubernetesVersion::NAMED_SIDECAR_PORTS;
        let moved_name = name.filter(|_| names_move);
        for lead in &mut leads {
            lead.by_name = lead.target.is_string() && names_move;
        }
        if leads.is_empty() {
            notes.push(format!(
                "no Service among the manifests uses {title}: a Service with a numeric target port must use {} \
                 instead of {app_port}",
                ports.listen
            ));
        }
        let ready_path = ready_path(spec, app_port, moved_name.as_deref());
        Ok(Self { front: Front { app_port, ready_path, moved_name, ports }, leads, notes })
    }
}

fn containers<'a>(spec: &'a Value, list: &str) -> impl Iterator<Item = &'a Value> {
    spec[list].as_array().into_iter().flatten()
}

fn is_tcp(port: &Value) -> bool {
    port["protocol"].as_str().is_none_or(|protocol| protocol == "TCP")
}

/// The ports of all containers but the sidecar.
fn declared(workload: &Object, pod: &str) -> Vec<Declared> {
    let spec = workload.get(&format!("{pod}/spec"));
    let own = sidecar::place(workload, pod);
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

/// The TCP ports of a Service, each with the pod's port that it routes to, if that is known.
fn leads_of<'a>(
    number: usize,
    service: &'a Service<'_>,
    declared: &'a [Declared],
) -> impl Iterator<Item = (Lead, Option<u16>)> + 'a {
    service.tcp_ports().filter_map(move |(index, port)| {
        let own = port["port"].as_u64()?;
        let target = service.kept.get(&own.to_string()).unwrap_or(&port["targetPort"]);
        let to = match target {
            Value::String(name) => {
                declared.iter().find(|port| port.name.as_ref() == Some(name)).map(|port| port.number)
            }
            Value::Null => u16::try_from(own).ok(),
            other => other.as_u64().and_then(|port| u16::try_from(port).ok()),
        };
        Some((Lead { service: number, index, port: own, target: target.clone(), by_name: false }, to))
    })
}

/// The ports of a workload's pods that Services among these objects route to.
pub(super) fn targets(workload: &Object, pod: &str, objects: &[Object]) -> Vec<u16> {
    let (declared, labels) = (declared(workload, pod), workload.get(&format!("{pod}/metadata/labels")));
    let services = objects.iter().filter_map(Service::of).filter(|service| service.selects(workload, labels));
    services
        .flat_map(|service| leads_of(0, &service, &declared).filter_map(|(_, to)| to).collect::<Vec<_>>())
        .collect()
}

fn app_port(leads: &[(Lead, Option<u16>)], declared: &[Declared], options: &Options) -> Result<u16, Unfit> {
    let mut meant: Vec<u16> = leads.iter().filter_map(|(_, to)| *to).collect();
    let by_services = !meant.is_empty();
    if !by_services {
        meant.extend(declared.iter().map(|port| port.number));
    }
    meant.sort_unstable();
    meant.dedup();
    if let Some(port) = options.port
        && (meant.is_empty() || meant.contains(&port) || declared.iter().any(|d| d.number == port))
    {
        return Ok(port);
    }
    match meant.as_slice() {
        [one] => Ok(*one),
        [] => Err(Unfit::NoPort),
        several => {
            let several: Vec<_> = several.iter().map(u16::to_string).collect();
            let several = several.join(" and ");
            let why = if by_services { "Services use its ports" } else { "it declares the ports" };
            Err(Unfit::Refused(format!("{why} {several}: choose one with --port")))
        }
    }
}

/// The path of the app's readiness probe, if it uses that port.
fn ready_path(spec: &Value, app_port: u16, name: Option<&str>) -> Option<String> {
    let containers = spec["containers"].as_array()?;
    let mut asked = containers.iter().map(|container| &container["readinessProbe"]["httpGet"]);
    let is_meant =
        |port: &Value| port.as_u64() == Some(app_port.into()) || (name.is_some() && port.as_str() == name);
    let found = asked.find(|get| is_meant(&get["port"]) && get["scheme"].as_str() != Some("HTTPS"))?;
    found["path"].as_str().map(str::to_owned)
}
