//! Checks, before anything is touched, that the disruptions can do what the scenario asks for.
//!
//! The manifests' pods do not exist yet, so the checks assume pods as the manifests will create them ([`Made`]).
//! Everything that the cluster decides, such as the nodes of these pods, is checked again when the pods are ready
//! (`Disruptor::check`).

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde_json::Value;

use super::call::RunPlan;
use super::claims::PodChoice;
use super::expected::{self, Made};
use super::node_limits::{self, ended_by, pods_on, takes_pods};
use crate::api::{Caller, resource_of, why_no_rollout};
use crate::error::{CoordinatorError, Result};
use rolldrop_kubernetes::pods::Candidate;
use rolldrop_scenario::{Count, Disruption, DisruptionAction, Place, Pods, Repeat, Scenario, Workload};
use rolldrop_sidecar::inject;

/// Minimum time from one batch to the next, because a Service proxy may lag by this much.
const SHORTEST_SPACING: Duration = Duration::from_secs(1);

/// A disruption of pods and the pods that it will find.
struct Aimed<'a> {
    index: usize,
    disruption: &'a Disruption,
    pods: &'a Pods,
    found: PodChoice,
}

/// Data that all checks of one plan share.
pub(super) struct Checks<'a> {
    pub(super) caller: &'a Caller,
    pub(super) scenario: &'a Scenario,
    pub(super) made: &'a Made,
}

/// Returns the path of a disruption in the scenario.
fn key_of(index: usize) -> String {
    format!("spec.disruptions[{index}]")
}

/// Returns true if the number of pods may be different after an action.
const fn may_change_counts(action: &DisruptionAction) -> bool {
    matches!(
        action,
        DisruptionAction::Scale { .. } | DisruptionAction::Patch { .. } | DisruptionAction::Exec { .. }
    )
}

impl Checks<'_> {
    /// Checks each disruption, and checks that no two of them interfere. Adds findings to the plan.
    pub(super) async fn disruptions(&self, disruptions: &[Disruption], plan: &mut RunPlan) -> Result<()> {
        let behind = self.services_of_targets().await?;
        let mut aimed = Vec::new();
        for (index, disruption) in disruptions.iter().enumerate() {
            match &disruption.action {
                DisruptionAction::Drain { node, .. } | DisruptionAction::NodeShutdown { node, .. } => {
                    self.check_node(index, disruption, node).await?;
                }
                action => {
                    if let Some(workload) = action.workload() {
                        self.check_scale(index, disruption)?;
                        self.check_workload(index, disruption, workload).await?;
                    }
                    let Some(pods) = action.pods() else { continue };
                    let Some(found) = expected::found(self.caller, self.made, &pods.selector).await? else {
                        continue;
                    };
                    let one = Aimed { index, disruption, pods, found };
                    plan.findings.extend(behind.as_deref().and_then(|behind| self.behind_none(&one, behind)));
                    let has_changed =
                        |other: &Disruption| other.at < disruption.at && may_change_counts(&other.action);
                    if !self.made.may_differ && !disruptions.iter().any(has_changed) {
                        self.check_pods(&one).await?;
                        aimed.push(one);
                    }
                }
            }
        }
        self.check_pairs(&aimed)
    }

    fn wrong(&self, key: &str, why: impl Into<String>) -> CoordinatorError {
        self.scenario.invalid(key, why).into()
    }

    /// Checks that enough pods match, and that the disruption may terminate all of its first batch at the same time.
    async fn check_pods(&self, aimed: &Aimed<'_>) -> Result<()> {
        let Aimed { index, disruption, pods, found } = aimed;
        let (key, ready) = (key_of(*index), &found.ready);
        if ready.is_empty() && found.leaving.is_empty() {
            let Pods { selector, .. } = pods;
            let namespace = &self.caller.namespace;
            let why = format!(
                "{selector:?} matches no pod in namespace {namespace}, and none that the manifests create: fix the \
                 selector or the pods' labels"
            );
            return Err(self.wrong(&format!("{key}.selector"), why));
        }
        if let Count::Number(number) = pods.count
            && number > ready.len()
        {
            let why = format!(
                "is {number}, but {} matches only {} ready {}: use a smaller number (or count: all), or add replicas",
                pods.selector,
                ready.len(),
                if ready.len() == 1 { "pod" } else { "pods" }
            );
            return Err(self.wrong(&format!("{key}.count"), why));
        }
        if disruption.allow_outage {
            return Ok(());
        }
        let first = first_batch(aimed);
        let bounds = self.made.bounds(self.caller, &disruption.action, ready).await?;
        match bounds.refuse_action(&disruption.action, &first, ready, &found.leaving) {
            None => Ok(()),
            Some(why) => {
                let (action, of) = (disruption.action.name(), pods.selector.clone());
                Err(CoordinatorError::TooMany { action, of, why }.at(self.scenario, &key))
            }
        }
    }

    /// Returns the targets' Services; `None` if a target's pods are not known, for example because it is a URL.
    async fn services_of_targets(&self) -> Result<Option<Vec<Value>>> {
        let mut services = Vec::new();
        for target in &self.scenario.targets {
            let Place::Service { name, .. } = &target.place else { return Ok(None) };
            let Some((service, _)) = self.service_of_target(name, "spec.target").await? else {
                return Ok(None);
            };
            // Something else manages the endpoints of a Service without a selector.
            if service.spec.as_ref().is_none_or(|spec| spec.selector.is_none()) {
                return Ok(None);
            }
            services.extend(serde_json::to_value(service).ok());
        }
        Ok(Some(services))
    }

    /// Returns a finding if a disruption takes pods that no target routes to.
    fn behind_none(&self, aimed: &Aimed<'_>, behind: &[Value]) -> Option<String> {
        let Aimed { index, disruption, pods, found } = aimed;
        let is_behind = |pod: &&Candidate| {
            let labels = serde_json::to_value(pod.labels()).unwrap_or_default();
            behind.iter().any(|service| inject::selects(service, &labels))
        };
        let all = found.ready.len();
        let none = all - found.ready.iter().filter(is_behind).count();
        if none == 0 {
            return None;
        }
        let which = if none == all {
            "none of its pods is".to_owned()
        } else {
            format!("{none} of its {all} pods {} not", if none == 1 { "is" } else { "are" })
        };
        let why = format!(
            "{which} behind a target ({} of {}), so such pods get no requests and their terminations have no window: \
             add their Service as a target, or fix the selector",
            disruption.action.name(),
            pods.selector
        );
        Some(self.scenario.invalid(&format!("{}.selector", key_of(*index)), why).to_string())
    }

    /// Checks that there are enough pods for each pair of disruptions that may act at the same time.
    fn check_pairs(&self, aimed: &[Aimed<'_>]) -> Result<()> {
        for (number, second) in aimed.iter().enumerate() {
            let first = aimed[..number].iter().find(|first| self.compete(first, second));
            let Some(first) = first else { continue };
            let why = format!(
                "takes {} at the same time as {}, which takes {}, but both select from the same {}: start one \
                 after the other has finished, take fewer pods, or add replicas",
                second.pods.count,
                key_of(first.index),
                first.pods.count,
                pods_in_words(union(first, second).len()),
            );
            return Err(self.wrong(&key_of(second.index), why));
        }
        Ok(())
    }

    fn compete(&self, first: &Aimed<'_>, second: &Aimed<'_>) -> bool {
        let ((from, to), (other_from, other_to)) = (self.span(first), self.span(second));
        if from > other_to || other_from > to {
            return false;
        }
        let all = union(first, second).len();
        let are_apart = all == first.found.ready.len() + second.found.ready.len();
        let wants = |aimed: &Aimed<'_>| aimed.pods.count.of(aimed.found.ready.len());
        !are_apart && wants(first) + wants(second) > all
    }

    /// Returns the times of a disruption's first and last batch, as far as the scenario determines them.
    fn span(&self, aimed: &Aimed<'_>) -> (Duration, Duration) {
        let Aimed { disruption, pods, found, .. } = aimed;
        let wanted = pods.count.of(found.ready.len());
        let batches = pods.batch.map_or(1, |batch| wanted.div_ceil(batch));
        let batches = u32::try_from(batches).unwrap_or(u32::MAX);
        let last = match disruption.repeat {
            Repeat::Times(times) => disruption.at + disruption.every * times.saturating_sub(1),
            Repeat::Until(_) => self.scenario.load.duration(),
        };
        (
            disruption.at,
            last + disruption.jitter + pods.spacing.max(SHORTEST_SPACING) * batches.saturating_sub(1),
        )
    }

    /// Checks that the workload exists and, if the action restarts it, that it would replace its pods.
    async fn check_workload(&self, index: usize, disruption: &Disruption, workload: &Workload) -> Result<()> {
        let key = format!("{}.workload", key_of(index));
        let own = self.scenario.manifests.iter().find(|object| workload.is(object)).cloned();
        let found = match own {
            Some(own) => own,
            None => {
                let namespace = &self.caller.namespace;
                let api = self.caller.dynamic_api(&resource_of(workload.kind));
                match self.caller.find(&api, &format!("read {workload}"), &workload.name).await {
                    Err(CoordinatorError::Api { .. }) => return Ok(()),
                    found => match found? {
                        Some(found) => serde_json::to_value(found).unwrap_or_default(),
                        None => {
                            let why = format!(
                                "there is no {workload} in namespace {namespace}: fix the name, or use another \
                                 namespace (-n)"
                            );
                            return Err(self.wrong(&key, why));
                        }
                    },
                }
            }
        };
        let is_restart = matches!(disruption.action, DisruptionAction::RollingRestart(_));
        match why_no_rollout(&found).filter(|_| is_restart) {
            None => Ok(()),
            Some(why) => {
                let workload = workload.to_string();
                Err(CoordinatorError::NoRollout { workload, why }.at(self.scenario, &key))
            }
        }
    }

    fn check_scale(&self, index: usize, disruption: &Disruption) -> Result<()> {
        match &disruption.action {
            DisruptionAction::Scale { workload, replicas: 0, .. } if !disruption.allow_outage => {
                let (action, of) = (disruption.action.name(), workload.to_string());
                let why = "no pod would be left".to_owned();
                Err(CoordinatorError::TooMany { action, of, why }.at(self.scenario, &key_of(index)))
            }
            _ => Ok(()),
        }
    }

    /// Checks that the node exists, that its pods may terminate, and that it is not the only one that takes pods.
    async fn check_node(&self, index: usize, disruption: &Disruption, node: &str) -> Result<()> {
        let key = format!("{}.node", key_of(index));
        if let Err(kube::Error::Api(status)) = self.caller.ask_node(node).await?
            && status.code == 404
        {
            let why = format!("{}: name an existing node (kubectl get nodes)", status.message);
            return Err(self.wrong(&key, why));
        }
        let is_live = self.made.pods.is_empty() && !self.made.may_differ;
        // Without permission to list the pods, this check is left to the run, if the run begins at all.
        if let Ok(pods) = pods_on(self.caller, node, "").await {
            let checked = match is_live {
                true => node_limits::check_node(self.caller, disruption, node, pods).await,
                false => {
                    let going = ended_by(&disruption.action, pods);
                    node_limits::check_node_bounds(self.caller, disruption, node, &going).await
                }
            };
            checked.map_err(|error| error.at(self.scenario, &key))?;
        }
        if is_live || disruption.allow_outage || self.made.may_differ {
            return Ok(());
        }
        let nodes = Api::<Node>::all(self.caller.client.clone());
        let params = ListParams::default();
        let known = |node: Node| takes_pods(&node).then(|| node.name_any());
        let Ok(others) = self.caller.list_as("list nodes", &nodes, &params, known).await? else {
            return Ok(());
        };
        let others: Vec<String> = others.into_iter().flatten().collect();
        if others == [node] {
            let why = format!(
                "{node} is the only node that takes pods, so all pods would terminate with it: add nodes, or set \
                 allowOutage: true in the disruption if you want this"
            );
            return Err(self.wrong(&key, why));
        }
        Ok(())
    }
}

/// Returns the pods that a disruption takes first.
fn first_batch(aimed: &Aimed<'_>) -> Vec<Candidate> {
    let mut chosen = aimed.disruption.chosen(aimed.pods, 0, &aimed.found.ready);
    chosen.truncate(aimed.pods.batch.unwrap_or(usize::MAX));
    chosen
}

/// Returns the UIDs of all pods that at least one of the two disruptions selects.
fn union(first: &Aimed<'_>, second: &Aimed<'_>) -> BTreeSet<String> {
    first.found.ready.iter().chain(&second.found.ready).filter_map(ResourceExt::uid).collect()
}

fn pods_in_words(pods: usize) -> String {
    if pods == 1 { "pod".to_owned() } else { format!("{pods} pods") }
}
