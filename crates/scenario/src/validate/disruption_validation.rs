//! Validation of disruptions: each action has its own keys, and some keys exclude each other.

use std::time::Duration;

use serde_json::Value;

use crate::disruption::{
    Count, Disruption, DisruptionAction, Object, Patch, PatchType, Pods, Repeat, Restore, Until, Workload,
    WorkloadKind,
};
use crate::document::Document;
use crate::raw::disruption_keys as raw;
use crate::{LoadSpec, Result, ScenarioError};
use rolldrop_record::event;

/// Minimum length of the load after the start of the last disruption.
const SHORTEST_AFTERMATH: Duration = Duration::from_secs(1);
/// Default grace period of a node shutdown, in seconds.
const SHUTDOWN_GRACE_S: u32 = 30;

/// Keys that every action takes.
const COMMON: [&str; 7] = ["at", "action", "jitter", "every", "repeat", "until", "allowOutage"];
/// Keys that select pods.
const PODS: [&str; 3] = ["selector", "count", "order"];

/// A disruption to check, with its place in the file.
struct Checked<'a> {
    raw: raw::DisruptionKeys,
    name: event::ActionName,
    /// Path to the disruption's keys.
    key: String,
    manifests: &'a [Value],
    document: &'a Document,
}

pub(super) fn disruption(
    raw: raw::DisruptionKeys,
    index: usize,
    load: &LoadSpec,
    manifests: &[Value],
    document: &Document,
) -> Result<Disruption> {
    let key = format!("spec.disruptions[{index}]");
    let (name, takes) = (raw.action, takes(raw.action));
    let checked = Checked { raw, name, key, manifests, document };
    checked.takes_no_other(&takes)?;
    let action = checked.action()?;
    let repeat = checked.repeat(&action)?;
    let span = |span: Option<super::raw::Span>| span.map_or(Duration::ZERO, |span| span.0);
    let raw = &checked.raw;
    let (at, every, jitter) = (raw.at.0, span(raw.every), span(raw.jitter));
    let (times, lasts) = match repeat {
        Repeat::Times(times) => (times, span(raw.lasts)),
        Repeat::Until(_) => (1, Duration::ZERO),
    };
    let last = at + every * (times - 1) + jitter + lasts;
    if last + SHORTEST_AFTERMATH > load.duration() {
        let why = format!(
            "the last repetition would {} {:.1} s into a load of {:.1} s: lengthen spec.load.duration",
            if lasts.is_zero() { "begin" } else { "end" },
            last.as_secs_f64(),
            load.duration().as_secs_f64()
        );
        return Err(checked.wrong("at", why));
    }
    let seed = load.settings.seed.wrapping_add(index as u64);
    Ok(Disruption { at, every, jitter, seed, repeat, allow_outage: raw.allow_outage, action })
}

/// Returns the keys that an action takes besides the common ones.
fn takes(action: event::ActionName) -> Vec<&'static str> {
    use event::ActionName as Name;
    let pods = |more: &[&'static str]| [&PODS, more].concat();
    match action {
        Name::DeletePod => pods(&["batch", "spacing", "gracePeriodSeconds", "force"]),
        Name::Evict => pods(&["batch", "spacing", "gracePeriodSeconds"]),
        Name::Crash => pods(&["batch", "spacing", "container"]),
        Name::Relabel => pods(&["label", "for"]),
        Name::RollingRestart => vec!["workload"],
        Name::SetImage => vec!["workload", "container", "image", "for", "keep"],
        Name::Patch => vec!["object", "type", "patch", "for", "keep"],
        Name::Scale => vec!["workload", "replicas", "for", "keep"],
        Name::Drain => vec!["node", "for"],
        Name::NodeShutdown => vec!["node", "gracePeriodSeconds", "for"],
        Name::RestartNodeAgent => vec!["node"],
        Name::Exec => vec!["command"],
        Name::Observe => vec!["for"],
    }
}

impl Checked<'_> {
    fn wrong(&self, key: &str, why: impl Into<String>) -> ScenarioError {
        self.document.error(&format!("{}.{key}", self.key), why)
    }

    fn needs(&self, what: &str) -> ScenarioError {
        self.document.error(&self.key, format!("{} needs {what}", self.name))
    }

    /// Checks that the action takes every given key.
    fn takes_no_other(&self, takes: &[&str]) -> Result<()> {
        let pointer = format!("/{}", self.key.replace(['.', '['], "/").replace(']', ""));
        let given = self.document.value().pointer(&pointer).and_then(Value::as_object);
        let given = given.into_iter().flatten().filter(|(_, value)| !value.is_null()).map(|(name, _)| name);
        let mut others =
            given.filter(|name| !COMMON.contains(&name.as_str()) && !takes.contains(&name.as_str()));
        match others.next() {
            None => Ok(()),
            Some(other) => {
                let (last, before) = takes.split_last().unwrap_or((&"", &[]));
                let and = if before.is_empty() { "" } else { " and " };
                let takes = format!("{}{and}{last}", before.join(", "));
                Err(self.wrong(other, format!("{} does not take {other}; it takes {takes}", self.name)))
            }
        }
    }

    fn repeat(&self, action: &DisruptionAction) -> Result<Repeat> {
        let Self { raw, .. } = self;
        if raw.repeat.is_some() && raw.until.is_some() {
            return Err(self.wrong("repeat", "`until` already says how often: remove one of the two"));
        }
        if matches!(action, DisruptionAction::Observe { .. }) {
            if let Some(key) = [("repeat", raw.repeat.is_some()), ("every", raw.every.is_some())]
                .into_iter()
                .find_map(|(key, is_given)| is_given.then_some(key))
            {
                return Err(self.wrong(key, "`observe` cannot be repeated: set `for` or `until` instead"));
            }
            if raw.until.is_some() && raw.lasts.is_some() {
                return Err(self.wrong("for", "`until` already says how long: remove one of the two"));
            }
        }
        let Some(until) = raw.until else {
            let times = raw.repeat.unwrap_or(1);
            if times == 0 {
                return Err(self.wrong("repeat", "must be at least 1"));
            }
            if times > 1 && raw.every.is_none_or(|every| every.0.is_zero()) {
                return Err(self.document.error(&self.key, "repetitions need an interval: add every: 5s"));
            }
            if times > 1 && matches!(action, DisruptionAction::Drain { restore: Restore::AtTheEnd, .. }) {
                let why = "a drained node stays cordoned until the end of the run: set `for`, or drain other nodes \
                           in separate disruptions";
                return Err(self.wrong("repeat", why));
            }
            return Ok(Repeat::Times(times));
        };
        let rolls = matches!(
            action,
            DisruptionAction::RollingRestart(_)
                | DisruptionAction::SetImage { .. }
                | DisruptionAction::Patch { .. }
                | DisruptionAction::Scale { .. }
                | DisruptionAction::Observe { .. }
        );
        let one_by_one = match action {
            DisruptionAction::DeletePod(pods) | DisruptionAction::Evict(pods) => {
                pods.batch == Some(1) || (pods.batch.is_none() && pods.count == Count::Number(1))
            }
            _ => false,
        };
        match until {
            Until::RolloutComplete if !rolls => {
                let why = "is for rollingRestart, setImage, patch, scale and observe: use {terminations: 20}";
                Err(self.wrong("until", format!("rolloutComplete {why}")))
            }
            Until::Terminations(_) if !action.ends_pods() => {
                Err(self.wrong("until", format!("{} terminates no pods: use repeat", self.name)))
            }
            Until::Windows { .. } if !one_by_one => {
                let why = "windows are measured only if pods terminate one by one: use deletePod or evict with \
                           count: 1 or batch: 1";
                Err(self.wrong("until", why))
            }
            until => Ok(Repeat::Until(until)),
        }
    }

    fn action(&self) -> Result<DisruptionAction> {
        use event::ActionName as Name;
        let Self { raw, .. } = self;
        Ok(match raw.action {
            Name::DeletePod => DisruptionAction::DeletePod(self.pods()?),
            Name::Evict => DisruptionAction::Evict(self.pods()?),
            Name::Crash => DisruptionAction::Crash { pods: self.pods()?, container: raw.container.clone() },
            Name::Relabel => DisruptionAction::Relabel {
                pods: self.pods()?,
                label: raw.label.clone(),
                restore: self.restore()?,
            },
            Name::RollingRestart => DisruptionAction::RollingRestart(self.workload()?),
            Name::SetImage => {
                let (workload, manifest) = self.workload_and_manifest()?;
                let container = raw.container.clone();
                let container = container.ok_or_else(|| self.needs("a container, such as container: app"))?;
                self.check_container(&container, manifest)?;
                let image = raw.image.clone().filter(|image| !image.is_empty());
                let image =
                    image.ok_or_else(|| self.needs("an image, such as image: registry.example/web:2"))?;
                DisruptionAction::SetImage { workload, container, image, restore: self.restore()? }
            }
            Name::Patch => {
                let (object, patch) = (self.object()?, self.patch()?);
                DisruptionAction::Patch { object, patch, restore: self.restore()? }
            }
            Name::Scale => {
                let workload = self.workload()?;
                if workload.kind == WorkloadKind::DaemonSet {
                    let why = "a DaemonSet cannot be scaled: it has one pod on each node";
                    return Err(self.wrong("workload", why));
                }
                let replicas = raw.replicas.ok_or_else(|| self.needs("a number of replicas"))?;
                DisruptionAction::Scale { workload, replicas, restore: self.restore()? }
            }
            Name::Drain => DisruptionAction::Drain { node: self.node()?, restore: self.restore()? },
            Name::NodeShutdown => {
                let grace_seconds = raw.grace_period_seconds.unwrap_or(SHUTDOWN_GRACE_S);
                DisruptionAction::NodeShutdown { node: self.node()?, grace_seconds, restore: self.restore()? }
            }
            Name::RestartNodeAgent => DisruptionAction::RestartNodeAgent { node: self.node()? },
            Name::Exec => {
                let command = raw.command.clone().filter(|words| !words.is_empty());
                let form = "a command, such as command: [helm, upgrade, web, ./chart]";
                DisruptionAction::Exec { command: command.ok_or_else(|| self.needs(form))? }
            }
            Name::Observe => DisruptionAction::Observe { lasts: raw.lasts.map(|lasts| lasts.0) },
        })
    }

    fn pods(&self) -> Result<Pods> {
        let Self { raw, .. } = self;
        let selector = raw.selector.clone().filter(|s| !s.trim().is_empty());
        let selector = selector.ok_or_else(|| self.needs("a selector, such as selector: app=web"))?;
        check_selector(&selector, self.manifests).map_err(|why| self.wrong("selector", why))?;
        if raw.batch == Some(0) {
            return Err(self.wrong("batch", "must be at least 1"));
        }
        if raw.spacing.is_some() && raw.batch.is_none() {
            return Err(
                self.wrong("spacing", "is the time between batches: also set batch, such as batch: 1")
            );
        }
        let grace_seconds = match (raw.force, raw.grace_period_seconds) {
            (true, None | Some(0)) => Some(0),
            (true, Some(_)) => {
                let why = "force means no grace period: remove one of the two";
                return Err(self.wrong("gracePeriodSeconds", why));
            }
            (false, Some(0)) => {
                let why = "is 0, which removes a pod before its containers have exited: use force: true";
                return Err(self.wrong("gracePeriodSeconds", why));
            }
            (false, seconds) => seconds,
        };
        Ok(Pods {
            selector,
            count: raw.count.unwrap_or(Count::Number(1)),
            order: raw.order.unwrap_or_default(),
            batch: raw.batch,
            spacing: raw.spacing.map_or(Duration::ZERO, |spacing| spacing.0),
            grace_seconds,
        })
    }

    fn restore(&self) -> Result<Restore> {
        match (self.raw.keep, self.raw.lasts) {
            (true, Some(_)) => {
                Err(self.wrong("keep", "`for` already says when the change is undone: remove one of the two"))
            }
            (true, None) => Ok(Restore::Never),
            (false, Some(lasts)) => Ok(Restore::After(lasts.0)),
            (false, None) => Ok(Restore::AtTheEnd),
        }
    }

    fn node(&self) -> Result<String> {
        let node = self.raw.node.clone().filter(|node| !node.is_empty());
        node.ok_or_else(|| self.needs("a node, such as node: node-1"))
    }

    fn workload(&self) -> Result<Workload> {
        self.workload_and_manifest().map(|(workload, _)| workload)
    }

    /// Returns the workload and, if there are manifests, the one that defines it.
    fn workload_and_manifest(&self) -> Result<(Workload, Option<&Value>)> {
        let text = self.raw.workload.as_deref();
        let text = text.ok_or_else(|| self.needs("a workload, such as workload: deployment/web"))?;
        let workload: Workload = text.parse().map_err(|why: String| self.wrong("workload", why))?;
        let manifest = self.manifest(&format!("{:?}", workload.kind), &workload.name);
        let makes_pods = |object: &Value| !object["spec"]["template"].is_null();
        if self.manifests.iter().any(makes_pods) && manifest.is_none() {
            let why =
                format!("there is no {workload} among the manifests: fix the name, or add the workload");
            return Err(self.wrong("workload", why));
        }
        Ok((workload, manifest))
    }

    fn manifest(&self, kind: &str, name: &str) -> Option<&Value> {
        self.manifests.iter().find(|object| object["kind"] == kind && object["metadata"]["name"] == name)
    }

    fn check_container(&self, container: &str, manifest: Option<&Value>) -> Result<()> {
        let Some(manifest) = manifest else { return Ok(()) };
        let spec = &manifest["spec"]["template"]["spec"];
        let lists = ["containers", "initContainers"].map(|list| spec[list].as_array());
        let names: Vec<&str> = lists
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|container| container["name"].as_str())
            .collect();
        if names.contains(&container) {
            return Ok(());
        }
        Err(self.wrong(
            "container",
            format!("there is no container {container:?}; use one of {}", names.join(", ")),
        ))
    }

    fn object(&self) -> Result<Object> {
        let form = "an object, such as object: {apiVersion: apps/v1, kind: Deployment, name: web}";
        let object = self.raw.object.as_ref().ok_or_else(|| self.needs(form))?;
        let kind = &object.kind;
        for (key, text) in [("apiVersion", &object.api_version), ("kind", kind), ("name", &object.name)] {
            if text.is_empty() {
                return Err(self.wrong(&format!("object.{key}"), "is empty"));
            }
        }
        if kind == "Pod" {
            let why = "the pod may be gone when the change is undone: patch its owner instead";
            return Err(self.wrong("object.kind", why));
        }
        if kind == "Secret" {
            let why = "rolldrop would have to store its old values to restore them: patch the workload that uses \
                       it, or use exec";
            return Err(self.wrong("object.kind", why));
        }
        Ok(object.clone())
    }

    fn patch(&self) -> Result<Patch> {
        let body = self.raw.patch.clone().filter(|patch| !patch.is_null());
        let body = body.ok_or_else(|| self.needs("a patch, such as patch: {spec: {minReadySeconds: 5}}"))?;
        let patch_type = self.raw.patch_type.unwrap_or_default();
        match patch_type {
            PatchType::Json if !body.is_array() => {
                Err(self.wrong("patch", "a JSON patch is a list, such as [{op: remove, path: /spec/x}]"))
            }
            PatchType::Merge | PatchType::Strategic if !body.is_object() => {
                Err(self.wrong("patch", "must be a mapping; for a list of operations set type: json"))
            }
            _ => Ok(Patch { patch_type, body }),
        }
    }
}

/// Checks that a selector of plain `key=value` terms matches a pod template, if the manifests have any.
fn check_selector(selector: &str, manifests: &[Value]) -> Result<(), String> {
    let mut terms = Vec::new();
    for term in selector.split(',') {
        match term.split_once('=') {
            Some((key, value)) if !key.ends_with('!') => {
                terms.push((key.trim(), value.trim_start_matches('=').trim()));
            }
            // Set-based and negated terms are left to the API server.
            _ => return Ok(()),
        }
    }
    let labels: Vec<&Value> =
        manifests.iter().filter_map(|m| m.pointer("/spec/template/metadata/labels")).collect();
    let matches = |labels: &&Value| terms.iter().all(|(key, value)| labels[*key] == *value);
    if labels.is_empty() || labels.iter().any(matches) {
        return Ok(());
    }
    Err(format!("{selector:?} matches no pod template in the manifests: fix the labels or the selector"))
}
