//! Plans the API calls that disruptions make.

use std::fmt::Display;
use std::time::Duration;

use http::Request;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{ApiResource, ListParams};
use kube::discovery::Scope;
use kube::{Api, ResourceExt};
use serde_json::Value;

use super::Planner;
use super::call::{About, RunPlan};
use super::outage_limits::{OutageLimits, is_by_eviction};
use crate::api::{agent_path, resource_of};
use crate::error::{CoordinatorError, Result};
use rolldrop_scenario::{Count, Disruption, DisruptionAction, Object, Pods, Repeat, Restore, Workload};

/// Describes the effect of a disruption; `None` if it changes nothing.
fn effect(disruption: &Disruption) -> Option<String> {
    let pods = |pods: &Pods| {
        let mut text = format!("{} matching {}", pods.count, pods.selector);
        if let Some(batch) = pods.batch {
            text.push_str(&format!(", {batch} at a time"));
        }
        match pods.grace_seconds {
            None => {}
            Some(0) => text.push_str(", by force"),
            Some(seconds) => text.push_str(&format!(", with a grace period of {seconds} s")),
        }
        text
    };
    let mut effect = match &disruption.action {
        DisruptionAction::DeletePod(all) => format!("deletes {}", pods(all)),
        DisruptionAction::Evict(all) => format!("evicts {}", pods(all)),
        DisruptionAction::Crash { pods: all, container } => {
            let container = container.as_deref().map_or_else(String::new, |name| format!(" {name}"));
            format!("kills the container{container} in {}", pods(all))
        }
        DisruptionAction::Relabel { pods: all, .. } => {
            format!("takes {} out of their Services by changing a label", pods(all))
        }
        DisruptionAction::RollingRestart(workload) => format!("restarts {workload}"),
        DisruptionAction::SetImage { workload, container, image, .. } => {
            format!("sets the image of container {container} in {workload} to {image}")
        }
        DisruptionAction::Patch { object, .. } => format!("patches {object}"),
        DisruptionAction::Scale { workload, replicas, .. } => format!("scales {workload} to {replicas}"),
        DisruptionAction::Drain { node, .. } => {
            format!("drains node {node}, evicting pods in all namespaces")
        }
        DisruptionAction::NodeShutdown { node, grace_seconds, .. } => {
            format!("shuts node {node} down with all its pods, with a grace period of {grace_seconds} s")
        }
        DisruptionAction::RestartNodeAgent { node } => format!("restarts the agent on node {node}"),
        DisruptionAction::Exec { command } => format!("runs {}", command.join(" ")),
        DisruptionAction::Observe { .. } => return None,
    };
    let after = match (&disruption.action, disruption.action.restore()) {
        (_, None) => String::new(),
        (DisruptionAction::Drain { .. }, Some(restore)) => node_back("uncordons", restore),
        (DisruptionAction::NodeShutdown { .. }, Some(restore)) => node_back("boots", restore),
        (_, Some(restore)) => format!(", {restore}"),
    };
    effect.push_str(&format!(", {:.1} s into the load", disruption.at.as_secs_f64()));
    let every = disruption.every.as_secs_f64();
    match disruption.repeat {
        Repeat::Times(1) => {}
        Repeat::Times(times) => {
            effect.push_str(&format!(" and again every {every:.1} s, {times} times in all"));
        }
        Repeat::Until(until) if every == 0.0 => effect.push_str(&format!(" and again until {until}")),
        Repeat::Until(until) => effect.push_str(&format!(" and again every {every:.1} s until {until}")),
    }
    Some(effect + &after)
}

/// Describes when an action on a node is reverted.
fn node_back(does: &str, restore: Restore) -> String {
    match restore {
        Restore::After(after) => format!(", and {does} it {:.1} s later", after.as_secs_f64()),
        Restore::AtTheEnd | Restore::Never => format!(", and {does} it at the end"),
    }
}

pub(super) fn node_of(name: &str) -> About {
    About::all(ApiResource::erase::<Node>(&()), None).named(name)
}

fn agent_of(name: &str) -> About {
    About { subresource: "proxy", ..node_of(name) }
}

fn pods_of_nodes() -> About {
    About::all(ApiResource::erase::<Pod>(&()), None)
}

impl RunPlan {
    /// Adds a call to a node's agent.
    fn agent(&mut self, verb: &'static str, agent: &About, command: &str, why: impl Into<String>) {
        self.must(verb, agent, why);
        if let Some(call) = self.calls.last_mut() {
            call.path = format!("{}/{command}", call.path);
        }
    }

    /// Adds a patch as a dry run, which changes nothing.
    fn dry_run(&mut self, about: &About, why: impl Into<String>) {
        self.must("patch", about, why);
        if let Some(call) = self.calls.last_mut() {
            call.path.push_str("?dryRun=All");
        }
    }

    /// Adds the calls that undo a change, unless the scenario keeps it.
    fn undo(&mut self, restore: Restore, about: &About, undo: &mut RunPlan) {
        match restore {
            Restore::Never => {}
            Restore::AtTheEnd => undo.restores(about),
            Restore::After(after) => {
                self.discovers(about);
                self.must(
                    "get",
                    about,
                    format!("{:.1} s later: its state at that time", after.as_secs_f64()),
                );
                self.must("patch", about, "restores it, with a merge patch");
            }
        }
    }
}

impl Planner<'_> {
    /// Checks that the cluster offers an action for which Kubernetes has no call.
    pub(super) async fn plan_means(&mut self, disruption: &Disruption) -> Result<()> {
        let (node, command, instead) = match &disruption.action {
            DisruptionAction::NodeShutdown { node, .. } => (
                Some(node),
                "shutdown",
                "use drain, which works on any cluster, or exec with a command of your own, such as command: [ssh, \
                 NODE, systemctl, poweroff]",
            ),
            DisruptionAction::RestartNodeAgent { node } => (
                Some(node),
                "restart",
                "use exec with a command of your own, such as command: [ssh, NODE, systemctl, restart, kubelet]",
            ),
            // The pods, and hence their nodes, are known only later.
            DisruptionAction::Crash { .. } => (
                None,
                "kill/NAMESPACE/POD/CONTAINER",
                "use exec with a command of your own, such as command: [kubectl, exec, deploy/web, --, kill, '1']",
            ),
            _ => return Ok(()),
        };
        let node = match node {
            Some(node) => node.clone(),
            None => {
                let nodes = About::all(ApiResource::erase::<Node>(&()), None);
                self.plan.must("list", &nodes, "finds a node whose agent can be asked");
                self.any_node().await?
            }
        };
        self.plan.agent(
            "get",
            &agent_of(&node),
            command,
            "checks that the cluster supports it (it then answers 405)",
        );
        let what = format!("check whether the cluster supports {}", disruption.action.name());
        let path = agent_path(&node, command);
        // The path accepts only POST; if it does not exist at all, the response is 404.
        let call = || async {
            let request = Request::get(&path).body(Vec::new()).map_err(kube::Error::HttpError)?;
            self.caller.client.request::<Value>(request).await
        };
        let answer = match self.caller.ask(&what, call).await? {
            Err(kube::Error::Api(status)) if status.code == 405 => return Ok(()),
            Err(kube::Error::Api(status)) if status.code < 500 => status.message.trim().to_owned(),
            Err(error) => return Err(CoordinatorError::api(&what, &error)),
            Ok(_) => "something else".to_owned(),
        };
        let action = disruption.action.name();
        Err(CoordinatorError::NotOffered { action, path, answer, instead })
    }

    async fn any_node(&self) -> Result<String> {
        let what = "list nodes";
        let nodes = Api::<Node>::all(self.caller.client.clone());
        let first = ListParams::default().limit(1);
        let found = self.caller.must(what, || nodes.list(&first)).await?;
        Ok(found.items.first().map(ResourceExt::name_any).unwrap_or_default())
    }

    /// Adds the calls that check whether an action is possible and within its limits.
    pub(super) async fn plan_check(&mut self, disruption: &Disruption, why: &str) -> Result<()> {
        let action = &disruption.action;
        if let Some(pods) = action.pods() {
            self.plan_pods(disruption, pods, why);
        }
        if let Some(workload) = action.workload() {
            self.plan.must("get", &self.workload(workload), why);
        }
        match action {
            DisruptionAction::Relabel { .. } => self.plan_labels(),
            DisruptionAction::Patch { object, .. } => {
                let about = self.object(object).await?;
                self.plan.must("get", &about, why);
                self.plan.dry_run(&about, "checks that it can be patched");
            }
            DisruptionAction::Drain { node, .. } | DisruptionAction::NodeShutdown { node, .. } => {
                self.plan.must("get", &node_of(node), why);
                self.plan_node(disruption, node, why);
            }
            DisruptionAction::RestartNodeAgent { node } => self.plan.must("get", &node_of(node), why),
            _ => {}
        }
        Ok(())
    }

    fn plan_pods(&mut self, disruption: &Disruption, pods: &Pods, why: &str) {
        self.plan.must("list", &self.own::<Pod>(), format!("{why} ({})", pods.selector));
        self.plan_limits(disruption);
    }

    /// Adds the calls that read the limits of an action, unless the scenario lifts the limits.
    fn plan_limits(&mut self, disruption: &Disruption) {
        if disruption.allow_outage {
            return;
        }
        let why = "how many pods may terminate at once";
        let budgets = self.own::<PodDisruptionBudget>();
        // The API server itself holds evictions back.
        match is_by_eviction(&disruption.action) {
            true => self.plan.helps("list", &budgets, why),
            false => self.plan.must("list", &budgets, why),
        }
        if OutageLimits::has_deployments(&disruption.action) {
            self.plan.must("list", &self.own::<Deployment>(), why);
        }
    }

    fn plan_labels(&mut self) {
        self.plan.must("list", &self.own::<Service>(), "labels that Services select by");
        for owners in [self.own::<ReplicaSet>(), self.own::<StatefulSet>(), self.own::<DaemonSet>()] {
            self.plan.helps("list", &owners, "labels that its owner selects by");
        }
    }

    fn plan_node(&mut self, disruption: &Disruption, node: &str, why: &str) {
        self.plan.must("list", &pods_of_nodes(), format!("{why} (spec.nodeName={node})"));
        if !disruption.allow_outage {
            self.plan.must("list", &self.own::<Pod>(), "checks that no owner loses all its pods");
            let others = [ApiResource::erase::<Pod>(&()), ApiResource::erase::<PodDisruptionBudget>(&())];
            for resource in others {
                let about = About::all(resource, Some("{namespace}"));
                self.plan.helps("list", &about, "the same, in each namespace that has pods on the node");
            }
        }
        self.plan_limits(disruption);
    }

    pub(super) fn workload(&self, workload: &Workload) -> About {
        About::all(resource_of(workload.kind), Some(&self.caller.namespace)).named(&workload.name)
    }

    async fn object(&mut self, object: &Object) -> Result<About> {
        let Object { api_version, kind, name } = object;
        let (resource, scope) = self.caller.kind_of(api_version, kind).await?;
        if scope != Scope::Namespaced {
            return Err(CoordinatorError::NotInNamespace { object: object.to_string() });
        }
        let about = About::all(resource, Some(&self.caller.namespace)).named(name);
        self.plan.discovers(&about);
        Ok(about)
    }

    pub(super) async fn plan_disruptions(&mut self, disruptions: &[Disruption]) -> Result<()> {
        let mut due: Vec<(Duration, &Disruption)> = Vec::new();
        for disruption in disruptions {
            let times = match disruption.repeat {
                Repeat::Times(times) => times,
                // Listed once here, because the number of calls is known only later.
                Repeat::Until(_) => 1,
            };
            due.extend((0..times).map(|n| (disruption.due(n, Duration::ZERO), disruption)));
        }
        due.sort_by_key(|(at, _)| *at);
        for (at, disruption) in due {
            let mut at = format!("{:.1} s into the load", at.as_secs_f64());
            if let Repeat::Until(until) = disruption.repeat {
                at.push_str(&format!(", and again until {until}"));
            }
            self.plan_disruption(disruption, &at).await?;
            if disruption.looks_at_workloads() {
                for kind in self.workload_kinds() {
                    self.plan.helps("list", &kind, "before it, and then until its changes have settled");
                }
            }
        }
        self.plan.effects.extend(disruptions.iter().filter_map(effect));
        Ok(())
    }

    async fn plan_disruption(&mut self, disruption: &Disruption, at: &dyn Display) -> Result<()> {
        let action = &disruption.action;
        match action {
            DisruptionAction::DeletePod(pods)
            | DisruptionAction::Evict(pods)
            | DisruptionAction::Crash { pods, .. }
            | DisruptionAction::Relabel { pods, .. } => self.plan_each_pod(disruption, pods, at),
            DisruptionAction::RollingRestart(workload) => {
                self.plan_edit(action, &self.workload(workload), at, "sets the annotation restartedAt");
            }
            DisruptionAction::SetImage { workload, container, image, .. } => {
                let change = format!("sets image {image} in container {container}");
                self.plan_edit(action, &self.workload(workload), at, &change);
            }
            DisruptionAction::Patch { object, patch, .. } => {
                let about = self.object(object).await?;
                self.plan_edit(action, &about, at, &patch.body.to_string());
            }
            DisruptionAction::Scale { workload, replicas, .. } => {
                self.plan_edit(action, &self.workload(workload), at, &format!("scales to {replicas}"));
            }
            DisruptionAction::Drain { node, restore } => {
                self.plan_drain(disruption, node, at);
                self.plan.undo(*restore, &node_of(node), &mut self.undo);
            }
            DisruptionAction::NodeShutdown { node, grace_seconds, restore } => {
                let (agent, command) = (agent_of(node), format!("shutdown?grace={grace_seconds}"));
                self.plan.agent("create", &agent, &command, format!("{at}: shuts it down"));
                let plan = match restore {
                    Restore::After(_) => &mut self.plan,
                    Restore::AtTheEnd | Restore::Never => &mut self.undo,
                };
                plan.agent("create", &agent, "restart", "boots it");
            }
            DisruptionAction::RestartNodeAgent { node } => {
                self.plan.agent("create", &agent_of(node), "restart", format!("{at}: restarts the agent"));
            }
            DisruptionAction::Exec { command } => self.plan.runs(
                command,
                format!("{at}: runs on this machine; the API calls that it makes are not listed"),
            ),
            DisruptionAction::Observe { .. } => {}
        }
        Ok(())
    }

    /// Adds the calls for each of the pods that an action takes.
    fn plan_each_pod(&mut self, disruption: &Disruption, pods: &Pods, at: &dyn Display) {
        self.plan_pods(disruption, pods, &format!("{at}: ready pods"));
        let pod = self.own::<Pod>().later("pod");
        let agent = About { subresource: "proxy", ..node_later() };
        if matches!(disruption.action, DisruptionAction::Relabel { .. }) {
            self.plan_labels();
        }
        for which in each(pods, at) {
            match &disruption.action {
                DisruptionAction::Crash { .. } => {
                    self.plan.agent("create", &agent, "kill/{namespace}/{pod}/{container}", which);
                }
                DisruptionAction::Relabel { restore, .. } => {
                    self.plan.must("patch", &pod, format!("{which}: changes the label"));
                    self.plan.undo(*restore, &pod, &mut self.undo);
                }
                action => self.plan_end(action, pod.clone(), &which),
            }
        }
    }

    /// Adds the calls that change an object and, unless the change is for good, undo it.
    fn plan_edit(&mut self, action: &DisruptionAction, about: &About, at: &dyn Display, change: &str) {
        self.plan.must("get", about, format!("{at}: its current state"));
        if matches!(action, DisruptionAction::SetImage { .. } | DisruptionAction::Patch { .. }) {
            self.plan.dry_run(about, format!("{at}: finds out what would change"));
        }
        self.plan.must("patch", about, format!("{at}: {change}"));
        if let Some(restore) = action.restore() {
            self.plan.undo(restore, about, &mut self.undo);
        }
    }

    fn plan_drain(&mut self, disruption: &Disruption, node: &str, at: &dyn Display) {
        let about = node_of(node);
        self.plan.must("get", &about, format!("{at}: its current state"));
        self.plan_node(disruption, node, &at.to_string());
        self.plan.must("patch", &about, format!("{at}: cordons it"));
        self.plan.must("list", &pods_of_nodes(), format!("{at}: spec.nodeName={node}"));
        let why = format!("{at}: each pod on the node, except DaemonSet pods and system pods");
        self.plan_end(&disruption.action, pods_of_nodes().later("pod"), &why);
        // The permission has to cover all namespaces.
        if let Some(call) = self.plan.calls.last_mut() {
            call.path = "/api/v1/namespaces/{namespace}/pods/{pod}/eviction".into();
        }
    }

    /// Adds the call that terminates a pod.
    fn plan_end(&mut self, action: &DisruptionAction, pod: About, why: &str) {
        if matches!(action, DisruptionAction::DeletePod(_)) {
            self.plan.must("delete", &pod, why);
        } else {
            self.plan.must("create", &About { subresource: "eviction", ..pod }, why);
        }
    }
}

/// Describes the pods that an action takes, with one line per pod if their number is known in advance, otherwise with
/// one line for all.
fn each(pods: &Pods, at: &dyn Display) -> Vec<String> {
    let Pods { selector, count, order, .. } = pods;
    match count {
        Count::Number(number) => {
            vec![format!("{at}: one ready pod matching {selector}, {order}"); *number]
        }
        _ => vec![format!("{at}: each of {count} matching {selector}, {order}")],
    }
}

fn node_later() -> About {
    About::all(ApiResource::erase::<Node>(&()), None).later("node")
}
