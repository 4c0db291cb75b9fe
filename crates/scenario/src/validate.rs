//! Validation: turns the raw file into a scenario without contradictions.

mod disruption_validation;
mod load_validation;

use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use super::document::Document;
use super::{ClusterChoice, Disruption, LoadSpec, Loaded, Place, Result, Scenario, ScenarioTarget, Workload};
use super::{expectations, files, raw};
use rolldrop_manifest::Manifests;
use rolldrop_record::run_info::{Balances, BalancesBecause};
use rolldrop_record::shown;

/// Default maximum wait after a termination while requests are still being lost.
const SETTLE_MAX: Duration = Duration::from_secs(300);
const API_VERSION: &str = "rolldrop.dev/v1";

pub(super) fn validate<C>(raw: raw::ScenarioFile<C>, document: &Document, dir: &Path) -> Result<Loaded<C>> {
    if raw.api_version != API_VERSION {
        return Err(document.error("apiVersion", format!("is {:?}, must be {API_VERSION}", raw.api_version)));
    }
    if raw.kind != "Scenario" {
        return Err(document.error("kind", format!("is {:?}, must be Scenario", raw.kind)));
    }
    if !is_name(&raw.metadata.name) {
        return Err(document.error("metadata.name", "may contain only lowercase letters, digits and dashes"));
    }
    let spec = raw.spec;
    let cluster = cluster(spec.cluster, document)?;
    let (manifest_keys, manifests): (Vec<String>, Vec<Value>) =
        manifests(spec.manifests, document, dir)?.into_iter().unzip();
    let targets = targets(spec.target, &manifests, document)?;
    let load = load_validation::load(spec.load, document, dir)?;
    let disruptions = spec
        .disruptions
        .into_iter()
        .enumerate()
        .map(|(index, d)| disruption_validation::disruption(d, index, &load, &manifests, document))
        .collect::<Result<Vec<_>, _>>()?;
    is_steady_first(&load, &disruptions, document)?;
    let sidecar_workloads = sidecar_workloads(&spec.sidecar, document)?;
    let settle = spec.settle.map(|span| span.0);
    let settle_max = spec.settle_max.map_or(SETTLE_MAX.max(settle.unwrap_or_default()), |span| span.0);
    if settle.is_some_and(|settle| settle > settle_max) {
        return Err(document.error("spec.settleMax", "is shorter than settle: make it longer, or remove it"));
    }
    expectations::check(&spec.expect, document)?;
    expectations::check_targets(&spec.expect, &targets, document)?;
    let scenario = Scenario {
        name: raw.metadata.name,
        description: raw.metadata.description,
        annotations: raw.metadata.annotations,
        manifests,
        manifest_keys,
        targets,
        load,
        inject_sidecar: spec.sidecar.inject,
        sidecar_workloads,
        disruptions,
        settle,
        settle_max,
        expect: spec.expect,
        document: document.clone(),
    };
    Ok(Loaded { scenario, cluster })
}

fn cluster<C>(raw: Option<raw::ClusterKeys<C>>, document: &Document) -> Result<Option<ClusterChoice<C>>> {
    match raw.map(|c| (c.embedded, c.context)) {
        None | Some((None, None)) => Ok(None),
        Some((Some(config), None)) => Ok(Some(ClusterChoice::Embedded(config))),
        Some((None, Some(context))) => Ok(Some(ClusterChoice::Context(context))),
        Some((Some(_), Some(_))) => {
            Err(document.error("spec.cluster", "names both embedded and context: remove one"))
        }
    }
}

/// Reads the manifests. Returns each object with its path in the file.
fn manifests(raw: Vec<raw::Manifest>, document: &Document, dir: &Path) -> Result<Vec<(String, Value)>> {
    let mut objects = Vec::new();
    for (index, manifest) in raw.into_iter().enumerate() {
        let key = format!("spec.manifests[{index}]");
        match (manifest.file, manifest.inline) {
            (Some(file), None) => {
                let path = dir.join(&file);
                let key = format!("{key}.file");
                let text = files::read_text(&path)
                    .map_err(|e| document.error(&key, format!("{}: {e}", path.display())))?;
                let found = Manifests::parse(&path.display().to_string(), &text)
                    .map_err(|error| document.error(&key, error.to_string()))?;
                for object in found.objects() {
                    objects.push((key.clone(), checked_object(object.value, &key, document)?));
                }
            }
            (None, Some(object)) => {
                let key = format!("{key}.inline");
                let object = checked_object(object, &key, document)?;
                objects.push((key, object));
            }
            _ => return Err(document.error(&key, "needs exactly one of file and inline")),
        }
    }
    Ok(objects)
}

fn checked_object(object: Value, key: &str, document: &Document) -> Result<Value> {
    for pointer in ["/apiVersion", "/kind", "/metadata/name"] {
        if object.pointer(pointer).and_then(Value::as_str).is_none() {
            let field = pointer[1..].replace('/', ".");
            return Err(document.error(key, format!("is not a Kubernetes object: it has no {field}")));
        }
    }
    Ok(object)
}

fn targets(
    raw: raw::OneOrMore<raw::TargetKeys>,
    manifests: &[Value],
    document: &Document,
) -> Result<Vec<ScenarioTarget>> {
    if raw.all.is_empty() {
        return Err(document.error("spec.target", "is empty: name a service or a url"));
    }
    let mut targets: Vec<ScenarioTarget> = Vec::with_capacity(raw.all.len());
    for (index, one) in raw.all.into_iter().enumerate() {
        let key = if raw.is_list { format!("spec.target[{index}]") } else { "spec.target".to_owned() };
        let weight = weight(one.weight, &key, document)?;
        let stated = one.balances;
        let own_name = one.name.clone();
        let place = place(one, &key, manifests, document)?;
        let name = own_name.unwrap_or_else(|| match &place {
            Place::Service { name, node: Some(node), .. } => format!("{name}@{node}"),
            Place::Service { name, .. } => name.clone(),
            Place::Url(url) => url.host_str().unwrap_or("url").to_owned(),
        });
        if targets.iter().any(|target| target.name == name) {
            let why = format!("{name:?} is the name of another target: give each target its own name");
            return Err(document.error(&format!("{key}.name"), why));
        }
        let balances_because = match (stated, &place) {
            (Some(_), _) => BalancesBecause::Stated,
            (None, Place::Service { .. }) => BalancesBecause::Service,
            (None, Place::Url(_)) => BalancesBecause::Assumed,
        };
        let balances = stated.unwrap_or(Balances::Connections);
        targets.push(ScenarioTarget { name, weight, balances, balances_because, place });
    }
    Ok(targets)
}

fn sidecar_workloads(raw: &raw::SidecarKeys, document: &Document) -> Result<Vec<Workload>> {
    if !raw.inject && !raw.workloads.is_empty() {
        return Err(document.error("spec.sidecar.workloads", "also needs inject: true"));
    }
    let workload = |(index, text): (usize, &String)| {
        text.parse::<Workload>()
            .map_err(|why| document.error(&format!("spec.sidecar.workloads[{index}]"), why))
    };
    raw.workloads.iter().enumerate().map(workload).collect()
}

fn weight(raw: Option<u32>, key: &str, document: &Document) -> Result<u32> {
    match raw {
        Some(0) => Err(document.error(&format!("{key}.weight"), "must be at least 1")),
        weight => Ok(weight.unwrap_or(1)),
    }
}

fn is_path(path: Option<&String>, key: &str, document: &Document) -> Result<()> {
    match path.filter(|path| !path.starts_with('/')) {
        Some(path) => Err(document.error(&format!("{key}.path"), format!("is {path:?}, must begin with /"))),
        None => Ok(()),
    }
}

fn place(raw: raw::TargetKeys, key: &str, manifests: &[Value], document: &Document) -> Result<Place> {
    let path = raw.path;
    is_path(path.as_ref(), key, document)?;
    match (raw.service, raw.url) {
        (Some(name), None) => {
            let services = || manifests.iter().filter(|m| m["kind"] == "Service");
            if services().next().is_some() && !services().any(|m| m["metadata"]["name"] == name.as_str()) {
                let why = format!(
                    "there is no Service {name:?} among the manifests: fix the name, or add the Service"
                );
                return Err(document.error(&format!("{key}.service"), why));
            }
            let port = raw.port.map(|port| match port {
                raw::PortKey::Number(number) => number.to_string(),
                raw::PortKey::Name(name) => name,
            });
            let (node, path) = (raw.node, path.unwrap_or_else(|| "/".into()));
            Ok(Place::Service { name, port, path, node })
        }
        (None, Some(text)) => {
            if raw.port.is_some() || path.is_some() {
                return Err(document.error(key, "port and path belong in the url"));
            }
            if raw.node.is_some() {
                let why = "only a Service has a port on each node: name a service";
                return Err(document.error(&format!("{key}.node"), why));
            }
            let url = url::Url::parse(&text).map_err(|e| {
                document.error(&format!("{key}.url"), format!("{:?}: {e}", shown::url(&text)))
            })?;
            Ok(Place::Url(url))
        }
        _ => Err(document.error(key, "needs exactly one of service and url")),
    }
}

/// Checks that the load is steady for the whole period of `load.abort`, if that is set, before the first disruption.
/// Otherwise, requests dropped earlier would be attributed to the disruption.
fn is_steady_first(load: &LoadSpec, disruptions: &[Disruption], document: &Document) -> Result<()> {
    let Some(abort) = &load.abort else { return Ok(()) };
    let earliest = load.steady_from() + abort.over;
    let Some(index) = disruptions.iter().position(|disruption| disruption.at < earliest) else {
        return Ok(());
    };
    let why = format!(
        "is before the load has been steady for {:.1} s, the period of spec.load.abort: start at {:.1} s or later",
        abort.over.as_secs_f64(),
        earliest.as_secs_f64()
    );
    Err(document.error(&format!("spec.disruptions[{index}].at"), why))
}

fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 63
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !name.starts_with('-')
        && !name.ends_with('-')
}
