//! Where the load comes from: a process here, or pods of the cluster; to the run it is the same.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use futures::FutureExt;
use ring::rand::{SecureRandom, SystemRandom};

use super::interruption;
use crate::cluster::Cluster;
use crate::coordinator::{self, Caller, LOAD_PORT, LoadJob, Ready, Session, at_node};
use crate::load;
use crate::load::process::protocol::Prepare;
use crate::load::process::{Note, Process, ProcessError};
use crate::load::remote::fleet::{Fleet, FleetError, Joined, Member, Wanted};
use crate::load::remote::link::PodProxy;
use crate::record::run_info::{LoadPlan, Source};
use crate::record::wire::AdminToken;
use crate::record::{Clock, Stamp};
use crate::scenario::{LoadFrom, Place, Scenario, ScenarioError};

/// How long the workers may take to hear that nothing more is wanted of them.
const DISMISSAL: Duration = Duration::from_secs(10);
/// The Job ends, whatever goes on, when it has lasted for this long beyond the load.
const LIFETIME: Duration = Duration::from_secs(3600);

/// `--load-resources`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Resources(BTreeMap<String, String>);

impl FromStr for Resources {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let one = |pair: &str| {
            let (name, amount) =
                pair.split_once('=').filter(|(name, amount)| !name.is_empty() && !amount.is_empty())?;
            Some((name.to_owned(), amount.to_owned()))
        };
        let all: Option<_> = text.split(',').map(one).collect();
        all.map(Self).ok_or_else(|| "needs amounts such as cpu=1,memory=256Mi".to_owned())
    }
}

impl Resources {
    /// As the value of a scenario's key.
    pub(super) fn as_override(&self) -> String {
        format!("load.job.resources={}", serde_json::json!(self.0))
    }
}

/// How many pods send the load; `None` if it comes from here.
pub(super) async fn load_workers(
    scenario: &Scenario,
    cluster: &Cluster,
    caller: &Caller,
) -> anyhow::Result<Option<usize>> {
    let load = &scenario.load;
    let has_service = scenario.targets.iter().any(|target| matches!(target.place, Place::Service { .. }));
    let from = load.from.unwrap_or(match has_service && !cluster.reaches_services() {
        true => LoadFrom::Cluster,
        false => LoadFrom::Local,
    });
    if from == LoadFrom::Local {
        return Ok(None);
    }
    check(scenario)?;
    match load.job.workers {
        Some(workers) => Ok(Some(workers)),
        None => {
            let peak = match &load.pace {
                crate::scenario::Pace::Open(stages) => {
                    stages.iter().map(|stage| stage.from.max(stage.to)).fold(0.0, f64::max)
                }
                crate::scenario::Pace::Closed => 0.0,
            };
            let nodes = caller.schedulable_nodes().await.map_err(interruption)?;
            Ok(Some(coordinator::default_workers(nodes, peak)))
        }
    }
}

/// What is of this machine cannot be had in a pod.
fn check(scenario: &Scenario) -> Result<(), ScenarioError> {
    let load = &scenario.load;
    let of_here =
        [("unixSocket", load.unix_socket.is_some()), ("sourceAddresses", !load.source_addresses.is_empty())];
    match of_here.into_iter().find(|(_, is_given)| *is_given) {
        Some((key, _)) => {
            let why = "is of this machine, but the load comes from the cluster: leave it out, or say --load-from local";
            Err(scenario.invalid(&format!("spec.load.{key}"), why))
        }
        None => Ok(()),
    }
}

/// Has pods made that will send the load, and waits until they take orders.
pub(super) async fn in_cluster<N: Note>(
    scenario: &Scenario,
    session: &Session,
    (workers, image, length): (usize, &str, Duration),
    clock: Clock,
    note: N,
) -> anyhow::Result<(Fleet<N>, Vec<String>)> {
    let token = token()?;
    let job = LoadJob {
        workers,
        image,
        resources: &scenario.load.job.resources,
        token: &token,
        lifetime: scenario.load.job.start_limit + length + LIFETIME,
    };
    session.make_load_job(&job).await.map_err(interruption)?;
    let pods = session.await_load_pods(workers, scenario.load.job.start_limit).await.map_err(interruption)?;
    let mut warnings = pods.missing;
    warnings.iter_mut().for_each(|why| why.push_str("; the others send its part"));
    let members = pods.ready.into_iter().map(|pod| Member {
        way: Arc::new(PodProxy::new(
            session.client(),
            session.namespace(),
            &pod.name,
            LOAD_PORT,
            token.clone(),
        )),
        gone: session.pod_ended(&pod.uid).boxed().shared(),
        name: pod.name,
        node: pod.node,
    });
    Ok((Fleet::new(members.collect(), clock, note), warnings))
}

/// One that nobody can guess.
fn token() -> anyhow::Result<AdminToken> {
    let mut bytes = [0; 32];
    SystemRandom::new().fill(&mut bytes).map_err(|_| anyhow!("failed to get random numbers"))?;
    let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(text.parse()?)
}

/// What sends the load.
pub(super) enum Sending<N> {
    /// A process on this machine.
    Here(Box<Process<N>>),
    /// Pods of the cluster.
    Cluster(Fleet<N>),
}

/// The load could not be made ready.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotReady {
    #[error(transparent)]
    Here(#[from] ProcessError),
    #[error(transparent)]
    Cluster(#[from] FleetError),
}

impl<N: Note> Sending<N> {
    /// Makes it ready, as soon as the targets answer from there. Answers what is to be known before
    /// the load starts.
    pub(super) async fn prepare(
        &mut self,
        settings: load::Settings,
        first_answer_limit: Duration,
        ready: &Ready,
    ) -> Result<Vec<String>, NotReady> {
        match self {
            Self::Here(process) => {
                Ok(process.prepare(Prepare { settings, first_answer_limit, share: None }).await?)
            }
            Self::Cluster(fleet) => {
                let wanted = Wanted { settings, first_answer_limit };
                Ok(fleet
                    .prepare(&wanted, |settings, node| seen_from(settings, node, &ready.by_service_proxy))
                    .await?)
            }
        }
    }

    /// The nodes that the load comes from, where it comes from the cluster.
    pub(super) fn nodes(&self) -> Option<BTreeSet<String>> {
        match self {
            Self::Here(_) => None,
            Self::Cluster(fleet) => Some(fleet.members().map(|(member, _)| member.node.clone()).collect()),
        }
    }

    pub(super) async fn start(&mut self) -> anyhow::Result<Stamp> {
        match self {
            Self::Here(process) => Ok(process.start().await?),
            Self::Cluster(fleet) => Ok(fleet.start().await),
        }
    }

    pub(super) fn control(&self) -> &load::Control {
        match self {
            Self::Here(process) => process.control(),
            Self::Cluster(fleet) => fleet.control(),
        }
    }

    pub(super) async fn join(&mut self) -> anyhow::Result<Joined> {
        match self {
            Self::Here(process) => {
                let ended = process.join().await?;
                Ok(Joined { at: ended.at, scheduled: ended.scheduled, lost: Vec::new() })
            }
            Self::Cluster(fleet) => Ok(fleet.join().await),
        }
    }

    pub(super) fn recorders(&self) -> Vec<Source> {
        match self {
            Self::Here(process) => process.recorders(),
            Self::Cluster(fleet) => fleet.recorders(),
        }
    }

    pub(super) async fn end(self) {
        match self {
            Self::Here(process) => process.end().await,
            Self::Cluster(fleet) => fleet.dismiss(DISMISSAL).await,
        }
    }
}

/// A load as it is sent from a node: what its Service proxy leads to is a target of its own.
fn seen_from(settings: &load::Settings, node: &str, by_service_proxy: &BTreeSet<String>) -> load::Settings {
    let mut settings = settings.clone();
    for target in settings.targets.iter_mut().filter(|target| by_service_proxy.contains(&target.name)) {
        target.name = at_node(&target.name, node);
    }
    settings
}

/// What run.json says of targets goes for each as it is seen from a node.
pub(super) fn describe(plan: &mut LoadPlan, workers: usize, nodes: &BTreeSet<String>, ready: &Ready) {
    plan.other.insert("load_workers".to_owned(), workers.into());
    let Some(methods) = plan.other.get_mut("methods").and_then(|methods| methods.as_object_mut()) else {
        return;
    };
    for name in &ready.by_service_proxy {
        if let Some(method) = methods.remove(name) {
            methods.extend(nodes.iter().map(|node| (at_node(name, node), method.clone())));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_are_amounts_by_name() {
        let resources: Resources = "cpu=1,memory=256Mi".parse().unwrap();
        assert_eq!(resources.as_override(), r#"load.job.resources={"cpu":"1","memory":"256Mi"}"#);
        for wrong in ["", "cpu", "cpu=", "=1", "cpu=1,"] {
            assert!(wrong.parse::<Resources>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_token_is_of_its_own() {
        let (a, b) = (token().unwrap(), token().unwrap());
        assert!(a != b && a.as_str().len() == 64);
    }
}
