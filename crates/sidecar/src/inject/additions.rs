//! Changes that add the sidecar to workloads.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::annotated_object::{APP_PORT_NAME, SIDECAR, TARGET_PORTS, annotate, pod, template};
use super::container::{self, Front, Ports};
use super::network_policy::NetworkPolicies;
use super::options::{InjectError, InjectOptions, KubernetesVersion, Selection};
use super::port::{self, Frontage, Lead, NoSidecarReason, Services};
use super::rename;
use rolldrop_manifest::{EditKind, ManifestEdit, ManifestObject, escaped};

/// Maximum number of workloads named in a note.
const NAMED: usize = 5;

/// Changes to make, and notes for the user.
#[derive(Debug)]
pub(super) struct Additions {
    pub(super) edits: Vec<ManifestEdit>,
    /// Notes on what is done and what the user should check, one line each.
    pub(super) notes: Vec<String>,
    /// Workloads left without the sidecar, with the reason, one line each.
    pub(super) left: Vec<String>,
}

/// Reason why a workload gets no sidecar, with a remedy.
#[derive(Debug)]
pub(super) struct InjectRefusal {
    /// Index of the workload among the objects.
    pub(super) object: usize,
    /// JSON pointer to the offending part of the object.
    pub(super) at: String,
    why: String,
    /// True if the workload is skipped without an error, even when all workloads are selected.
    is_passed_over: bool,
}

/// A workload among the objects.
struct ManifestWorkload<'a> {
    /// Index of the workload among the objects.
    number: usize,
    object: &'a ManifestObject,
    /// JSON pointer to the pod metadata and spec.
    pod: &'static str,
    state: SidecarDecision,
}

enum SidecarDecision {
    NotMeant,
    HasIt,
    Gets(Frontage),
    Cannot(InjectRefusal),
}

/// Determines the changes to make. `place` returns the file and position of a refusal's reason, as a line prefix.
///
/// # Errors
///
/// Fails as [`super::inject`] does.
pub(super) fn of(
    objects: &[ManifestObject],
    options: &InjectOptions,
    place: &dyn Fn(&InjectRefusal) -> String,
) -> Result<Additions, InjectError> {
    if options.kubernetes < KubernetesVersion::NATIVE_SIDECARS {
        return Err(InjectError::TooOld(options.kubernetes));
    }
    let services = Services::among(objects);
    let with_pods: Vec<(usize, &ManifestObject, &'static str)> = objects
        .iter()
        .enumerate()
        .filter_map(|(number, object)| {
            Some((number, object, pod(&object.value).or_else(|| template(&object.value))?))
        })
        .collect();
    let ports =
        port::free(with_pods.iter().map(|(_, object, pod)| (*object, *pod)), &services, options.port)?;
    let policies = NetworkPolicies::among(objects);
    let mut workloads: Vec<ManifestWorkload<'_>> = with_pods
        .into_iter()
        .map(|(number, object, pod)| {
            let state = SidecarDecision::of(number, object, pod, (&services, &policies), ports, options);
            ManifestWorkload { number, object, pod, state }
        })
        .collect();
    look_for_meant(objects, &workloads, options)?;
    refuse_with_shared_services(&mut workloads, &services);

    let title = |refusal: &InjectRefusal| objects[refusal.object].title();
    let refused = || workloads.iter().filter_map(ManifestWorkload::refusal);
    let has_any = workloads
        .iter()
        .any(|workload| matches!(workload.state, SidecarDecision::Gets(_) | SidecarDecision::HasIt));
    let is_fatal = |refusal: &InjectRefusal| match options.selection {
        _ if !has_any => true,
        Selection::Fit => false,
        Selection::All => !refusal.is_passed_over,
        Selection::Named(_) => true,
    };
    if refused().any(is_fatal) {
        let said = |refusal: &InjectRefusal| format!("{}{}: {}", place(refusal), title(refusal), refusal.why);
        return Err(InjectError::Refused(refused().filter(|refusal| is_fatal(refusal)).map(said).collect()));
    }
    let left = |refusal: &InjectRefusal| {
        format!("{}{} is left unchanged: {}", place(refusal), title(refusal), refusal.why)
    };
    let left = refused().map(left).collect();
    let app_ports: Vec<u16> = workloads
        .iter()
        .filter_map(ManifestWorkload::frontage)
        .map(|frontage| frontage.front.app_port)
        .collect();
    if let Some(port) = options.port
        && !app_ports.is_empty()
        && !app_ports.contains(&port)
    {
        return Err(InjectError::NoSuchPort(port));
    }
    let mut additions = Additions { edits: Vec::new(), notes: Vec::new(), left };
    for workload in &workloads {
        workload.add(ports, options, &mut additions);
    }
    note_headless(&workloads, &services, &mut additions.notes);
    if let Err(refusal) = retarget(&workloads, &services, ports, &mut additions.edits) {
        let why = format!("{}{}: {}", place(&refusal), title(&refusal), refusal.why);
        return Err(InjectError::Refused(vec![why]));
    }
    Ok(additions)
}

/// Checks that everything named by the user exists, and that at least one workload is selected.
fn look_for_meant(
    objects: &[ManifestObject],
    workloads: &[ManifestWorkload<'_>],
    options: &InjectOptions,
) -> Result<(), InjectError> {
    let titles = || some(workloads.iter().map(|workload| workload.object.title()));
    if let Selection::Named(names) = &options.selection
        && let Some(named) = names.iter().find(|name| !workloads.iter().any(|one| name.is(one.object)))
    {
        return Err(InjectError::NotThere { named: named.clone(), known: titles() });
    }
    if workloads.iter().any(|workload| !matches!(workload.state, SidecarDecision::NotMeant)) {
        return Ok(());
    }
    let refers = |object: &ManifestObject| {
        let name = object.get("/spec/workloadRef/name").as_str()?;
        let kind = object.get("/spec/workloadRef/kind").as_str()?.to_lowercase();
        Some(format!(
            ", but {} uses the pod template of {kind}/{name}: pass the file that contains it",
            object.title()
        ))
    };
    let instead = match (workloads.first(), objects.iter().find_map(refers)) {
        (None, Some(refers)) => refers,
        (None, None) => ": pass the file that contains them".to_owned(),
        (Some(first), _) => format!(
            ", but these have a pod template: {}. Choose one, such as --workload {}",
            titles(),
            first.object.title()
        ),
    };
    Err(InjectError::NoWorkload { instead })
}

/// Lists the first few titles, and counts the rest.
fn some(titles: impl Iterator<Item = String>) -> String {
    let titles: Vec<String> = titles.collect();
    let shown = titles[..titles.len().min(NAMED)].join(", ");
    match titles.len().saturating_sub(NAMED) {
        0 if titles.is_empty() => "none".to_owned(),
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

impl SidecarDecision {
    fn of(
        number: usize,
        object: &ManifestObject,
        at: &'static str,
        (services, policies): (&Services<'_>, &NetworkPolicies<'_>),
        ports: Ports,
        options: &InjectOptions,
    ) -> Self {
        let is_named = match &options.selection {
            Selection::Named(names) => names.iter().any(|name| name.is(object)),
            Selection::Fit | Selection::All => false,
        };
        if container::place(object, at).is_some() {
            return Self::HasIt;
        }
        let is_meant =
            is_named || (!matches!(options.selection, Selection::Named(_)) && pod(&object.value).is_some());
        if !is_meant {
            return Self::NotMeant;
        }
        let unfit = match Frontage::of(object, at, services, ports, options, is_named) {
            Ok(frontage) => match policies.shut_out(object, at, &frontage.front) {
                None => return Self::Gets(frontage),
                Some(why) => NoSidecarReason::Refused { at: String::new(), why },
            },
            Err(unfit) => unfit,
        };
        let (title, is_run) = (object.title(), matches!(options.selection, Selection::All));
        let named = if is_named { String::new() } else { format!("--workload {title} ") };
        let (at, why, is_passed_over) = match unfit {
            NoSidecarReason::Refused { at, why } => (at, why, false),
            NoSidecarReason::NoPort => {
                let why = "it declares no port, and no Service uses it";
                let remedy = match is_run {
                    true => "declare the port in its container".to_owned(),
                    false => format!("choose a port with {named}--port N"),
                };
                (String::new(), format!("{why}: {remedy}"), true)
            }
            NoSidecarReason::NoHttp { port, foreign } => {
                let why = format!("port {port} carries {foreign}, which the HTTP proxy would break");
                let remedy = match is_run {
                    true => "a run's sidecar supports only HTTP".to_owned(),
                    false => format!(
                        "use {named}--mode tcp to pass all bytes and record connections; if it is HTTP after all, use {named}\
                         --mode http"
                    ),
                };
                (format!("{at}/spec/containers"), format!("{why}: {remedy}"), true)
            }
        };
        Self::Cannot(InjectRefusal { object: number, at, why, is_passed_over })
    }
}

impl ManifestWorkload<'_> {
    fn refusal(&self) -> Option<&InjectRefusal> {
        match &self.state {
            SidecarDecision::Cannot(refusal) => Some(refusal),
            _ => None,
        }
    }

    fn frontage(&self) -> Option<&Frontage> {
        match &self.state {
            SidecarDecision::Gets(frontage) => Some(frontage),
            _ => None,
        }
    }

    /// Adds the sidecar, and moves the port name to it.
    fn add(&self, ports: Ports, options: &InjectOptions, additions: &mut Additions) {
        let (object, pod, title) = (self.object, self.pod, self.object.title());
        if matches!(self.state, SidecarDecision::HasIt) {
            additions.notes.push(format!("{title} already has the sidecar"));
        }
        let Some(Frontage { front, notes, .. }) = self.frontage() else { return };
        let Front { app_port, moved_name, .. } = front;
        let container = container::container(front, options);
        let list = format!("{pod}/spec/initContainers");
        additions.edits.push(match object.get(&list) {
            Value::Array(_) => object.edit(list, EditKind::Push(container)),
            _ => object.set(list, json!([container])),
        });
        if let Some(name) = moved_name {
            additions.edits.extend(rename(object, pod, name, APP_PORT_NAME));
        }
        additions.edits.push(annotate(object, pod, SIDECAR, &options.image));
        additions.notes.push(format!(
            "{title}: traffic for port {app_port} goes through the sidecar on port {}; its admin port is {}",
            ports.listen, ports.admin,
        ));
        additions.notes.extend(notes.iter().cloned());
    }
}

/// Refuses workloads behind a Service that would route all its traffic to the sidecar's port number, although the
/// Service also selects pods without the sidecar.
fn refuse_with_shared_services(workloads: &mut [ManifestWorkload<'_>], services: &Services<'_>) {
    // A refused workload may share another Service with a third workload.
    loop {
        let mut without: Vec<Option<String>> = vec![None; services.all.len()];
        for workload in &*workloads {
            if matches!(workload.state, SidecarDecision::NotMeant | SidecarDecision::Cannot(_)) {
                for service in services.of(workload.object, workload.pod) {
                    without[service].get_or_insert_with(|| workload.object.title());
                }
            }
        }
        let mut is_stable = true;
        for workload in &mut *workloads {
            let by_number = |lead: &&Lead| !lead.by_name && without[lead.service].is_some();
            let Some(lead) = workload.frontage().and_then(|frontage| frontage.leads.iter().find(by_number))
            else {
                continue;
            };
            let service = services.all[lead.service].object.title();
            let other = without[lead.service].clone().unwrap_or_default();
            let why = format!(
                "{service} also routes to {other}, which gets no sidecar, so its numeric target port cannot be the \
                 sidecar's: choose both workloads or neither, or give {service} a named targetPort"
            );
            workload.state = SidecarDecision::Cannot(InjectRefusal {
                object: workload.number,
                at: String::new(),
                why,
                is_passed_over: false,
            });
            is_stable = false;
        }
        if is_stable {
            return;
        }
    }
}

/// Adds one note for each headless Service, with the workloads behind it.
fn note_headless(workloads: &[ManifestWorkload<'_>], services: &Services<'_>, notes: &mut Vec<String>) {
    let mut behind: Vec<Vec<&ManifestObject>> = vec![Vec::new(); services.all.len()];
    for workload in workloads {
        for service in workload.frontage().into_iter().flat_map(|frontage| &frontage.headless) {
            behind[*service].push(workload.object);
        }
    }
    for (service, behind) in services.all.iter().zip(behind).filter(|(_, behind)| !behind.is_empty()) {
        let (service, behind) = (service.object.title(), some(behind.iter().map(|object| object.title())));
        notes.push(format!(
            "{service} is headless: its clients choose the port and bypass the sidecar in {behind}"
        ));
    }
}

/// Points Services that do not follow the port name at the sidecar, and saves their original target ports.
fn retarget(
    workloads: &[ManifestWorkload<'_>],
    services: &Services<'_>,
    ports: Ports,
    edits: &mut Vec<ManifestEdit>,
) -> Result<(), InjectRefusal> {
    let mut changed: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); services.all.len()];
    for lead in workloads.iter().filter_map(ManifestWorkload::frontage).flat_map(|frontage| &frontage.leads) {
        if !lead.by_name {
            changed[lead.service].insert(lead.index);
        }
    }
    for (service, changed) in services.all.iter().zip(changed).filter(|(_, changed)| !changed.is_empty()) {
        if service.is_annotated && service.kept.is_empty() {
            return Err(InjectRefusal {
                object: service.number,
                at: format!("/metadata/annotations/{}", escaped(TARGET_PORTS)),
                why: format!("its annotation {TARGET_PORTS} was not written by rolldrop: remove it"),
                is_passed_over: false,
            });
        }
        let mut kept: Map<String, Value> = service.kept.clone();
        for (index, port) in service.tcp_ports().filter(|(index, _)| changed.contains(index)) {
            kept.insert(port["port"].to_string(), service.target(port).clone());
            edits.push(service.object.set(format!("/spec/ports/{index}/targetPort"), ports.listen));
        }
        edits.push(annotate(service.object, "", TARGET_PORTS, &Value::Object(kept).to_string()));
    }
    Ok(())
}
