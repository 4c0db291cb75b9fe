//! Origin of the load: a process on this machine, or pods in the cluster. The run treats both alike.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::admin_secret::random_token;
use super::error::RunError;
use crate::act::{LOAD_PORT, LoadJob, LoadPod};
use crate::api::Caller;
use crate::cluster::Cluster;
use crate::observe::{ReadyTargets, at_node};
use crate::plan::schedulable_nodes;
use crate::session::Session;
use rolldrop_load as load;
use rolldrop_load::PortMemory;
use rolldrop_load::load_process::worker_protocol::Prepare;
use rolldrop_load::load_process::{LoadProcess, Note};
use rolldrop_load::remote::fleet::{Fleet, FleetError, FleetLoad, FleetMember, Joined};
use rolldrop_load::remote::reverse::Reception;
use rolldrop_load::remote::row_collector::early::EarlyRows;
use rolldrop_load::remote::row_collector::{Collected, FetchRateLimit, RowCollector};
use rolldrop_load::remote::worker_link::PodProxy;
use rolldrop_record::load::LoadFrom;
use rolldrop_record::run_info::{LoadPlan, Source};
use rolldrop_record::wire::AdminToken;
use rolldrop_record::{Clock, RunDir, RunId, Stamp};
use rolldrop_scenario::{Place, Scenario, ScenarioError};

/// Time limit for dismissing the workers.
const DISMISSAL: Duration = Duration::from_secs(10);
/// Time from the end of the load until the Job is terminated, whatever its state.
const LIFETIME: Duration = Duration::from_secs(3600);

/// Returns the number of pods that send the load; `None` if this machine sends it.
pub(super) async fn load_workers(
    scenario: &Scenario,
    cluster: &Cluster,
    caller: &Caller,
) -> Result<Option<usize>, RunError> {
    let load = &scenario.load;
    let from = load.from.unwrap_or_else(|| default_from(scenario, cluster.reaches_services()));
    if from == LoadFrom::Local {
        return Ok(None);
    }
    check(scenario)?;
    match load.job.workers {
        Some(workers) => Ok(Some(workers)),
        None => {
            let nodes = schedulable_nodes(caller).await?;
            // Pods on the host network all use the same port, so each needs its own node.
            let most = if load.settings.evidence.is_some() { nodes.max(1) } else { usize::MAX };
            Ok(Some(crate::act::default_workers(nodes, load.settings.pace.peak_rate()).min(most)))
        }
    }
}

/// Returns the default origin of the load, which is the cluster if a target is a Service whose address cannot be
/// reached from this machine.
fn default_from(scenario: &Scenario, reaches_services: bool) -> LoadFrom {
    let has_service = scenario.targets.iter().any(|target| matches!(target.place, Place::Service { .. }));
    if has_service && !reaches_services { LoadFrom::Cluster } else { LoadFrom::Local }
}

/// Refuses settings that apply only to this machine, for a load that pods send.
fn check(scenario: &Scenario) -> Result<(), ScenarioError> {
    let load = &scenario.load.settings;
    let of_here =
        [("unixSocket", load.unix_socket.is_some()), ("sourceAddresses", !load.source_addresses.is_empty())];
    match of_here.into_iter().find(|(_, is_given)| *is_given) {
        Some((key, _)) => {
            let why = "applies to this machine, but the load comes from the cluster: remove it, or use --load-from \
                       local";
            Err(scenario.invalid(&format!("spec.load.{key}"), why))
        }
        None => Ok(()),
    }
}

/// Settings for collecting rows from the cluster.
#[derive(Clone, Debug)]
pub struct Collecting {
    /// Limit for fetching rows, across all pods.
    pub limit: FetchRateLimit,
    /// Address of this machine that the pods connect to, if the API server cannot reach pods.
    pub listen: Option<String>,
}

impl Collecting {
    /// Opens a listener for workers, if `--collect-listen` asks for one.
    async fn reception(&self, token: &AdminToken) -> Result<Option<Reception>, RunError> {
        let Some(address) = &self.listen else { return Ok(None) };
        let failed = || format!("failed to listen on {address} (--collect-listen)");
        let listener = TcpListener::bind(address).await.map_err(RunError::failed(failed()))?;
        let reception = Reception::open(listener, token.clone());
        Ok(Some(reception.map_err(RunError::failed(failed()))?))
    }
}

/// Creates the pods that will send the load, and waits until they accept orders. Reports progress to `tell`; returns
/// warnings about the result.
pub(super) async fn in_cluster<N: Note>(
    scenario: &Scenario,
    session: &Session,
    (workers, image, length): (usize, &str, Duration),
    collecting: &Collecting,
    (run_dir, clock): (&RunDir, Clock),
    (note, tell): (N, impl Fn(&str)),
) -> Result<(Sending<N>, Vec<String>), RunError> {
    let token = random_token();
    let reception = collecting.reception(&token).await?;
    let collector = reception.as_ref().map(|reception| reception.address().to_string());
    let job = LoadJob {
        workers,
        image,
        resources: &scenario.load.job.resources,
        token: &token,
        collector: collector.as_deref(),
        lifetime: scenario.load.job.start_limit + length + LIFETIME,
        evidence: scenario.load.settings.evidence,
    };
    session.make_load_job(&job).await?;
    let limit = scenario.load.job.start_limit;
    let pods = session.await_load_pods(workers, limit, &tell).await?;
    tell(&places(&pods.ready));
    let mut warnings = pods.missing;
    warnings.iter_mut().for_each(|why| why.push_str("; the other workers send its share"));
    let members = pods.ready.into_iter().map(|pod| FleetMember {
        way: match &reception {
            Some(reception) => reception.way(&pod.name),
            None => {
                let Caller { client, namespace, .. } = session.caller();
                Arc::new(PodProxy::new(client.clone(), namespace, &pod.name, LOAD_PORT, token.clone()))
            }
        },
        gone: session.pod_ended(&pod.uid).boxed().shared(),
        name: pod.name,
        node: pod.node,
    });
    let fleet = Fleet::new(members.collect(), clock, note);
    let workers = InCluster {
        fleet,
        collector: None,
        limit: collecting.limit,
        run_dir: run_dir.clone(),
        clock,
        reception,
    };
    Ok((Sending::Cluster(Box::new(workers)), warnings))
}

/// Describes the nodes that the pods run on.
fn places(pods: &[LoadPod]) -> String {
    let mut on = BTreeMap::<&str, usize>::new();
    for pod in pods {
        *on.entry(&pod.node).or_default() += 1;
    }
    let one = |(node, count): (&str, usize)| match count {
        1 => node.to_owned(),
        _ => format!("{node} ({count})"),
    };
    let nodes: Vec<String> = on.into_iter().map(one).collect();
    let (pods, s) = (pods.len(), if pods.len() == 1 { "" } else { "s" });
    format!("the load comes from {pods} pod{s}, on {}", nodes.join(", "))
}

/// Sender of the load.
pub(super) enum Sending<N> {
    /// A process on this machine.
    Here(Box<LoadProcess<N>>),
    /// Pods in the cluster.
    Cluster(Box<InCluster<N>>),
}

/// Pods that send the load, and the collection of their rows.
pub(super) struct InCluster<N> {
    fleet: Fleet<N>,
    /// Collector of the rows; present from the start of the load until all rows have arrived.
    collector: Option<RowCollector>,
    limit: FetchRateLimit,
    run_dir: RunDir,
    clock: Clock,
    /// Listener that workers connect to; dropping it closes their connections.
    reception: Option<Reception>,
}

impl<N: Note> Sending<N> {
    /// Prepares the load, as soon as the targets respond from where it is sent. Returns warnings.
    pub(super) async fn prepare(
        &mut self,
        settings: load::Load,
        run: RunId,
        first_answer_limit: Duration,
        ready: &ReadyTargets,
    ) -> Result<Vec<String>, RunError> {
        match self {
            Self::Here(process) => Ok(process
                .prepare(Prepare { settings, run, first_answer_limit, share: None, before: None })
                .await?),
            Self::Cluster(workers) => {
                let before = PortMemory::of_pods().begin();
                let wanted = FleetLoad { settings, run, first_answer_limit, before };
                let on_node = |settings: &load::Load, node: &str| seen_from(settings, node, ready);
                let prepared = workers.fleet.prepare(&wanted, on_node).await;
                Ok(prepared.map_err(|error| match error {
                    FleetError::NoneLeft(why) if workers.reception.is_none() => {
                        let remedy =
                            "if the API server cannot reach pods, let them connect to this machine with \
                             --collect-listen";
                        FleetError::NoneLeft(format!("{why}; {remedy}"))
                    }
                    other => other,
                })?)
            }
        }
    }

    /// Returns the nodes that send the load, if it is sent from the cluster.
    pub(super) fn nodes(&self) -> Option<BTreeSet<String>> {
        match self {
            Self::Here(_) => None,
            Self::Cluster(workers) => {
                Some(workers.fleet.members().map(|(member, _)| member.node.clone()).collect())
            }
        }
    }

    pub(super) async fn start(&mut self) -> Result<Stamp, RunError> {
        match self {
            Self::Here(process) => Ok(process.start().await?),
            Self::Cluster(workers) => {
                let InCluster { fleet, limit, run_dir, clock, .. } = &mut **workers;
                let zero = fleet.start().await;
                let members = fleet.members().count();
                let mut collector = RowCollector::begin(run_dir, *clock, zero, *limit, members);
                for (member, sources) in fleet.members() {
                    collector.follow(member, sources);
                }
                workers.collector = Some(collector);
                Ok(zero)
            }
        }
    }

    pub(super) fn control(&self) -> &load::Control {
        match self {
            Self::Here(process) => process.control(),
            Self::Cluster(workers) => workers.fleet.control(),
        }
    }

    /// Returns access to the rows that pods still hold, once their load has started; `None` if this machine sends it.
    pub(super) fn early_rows(&self) -> Option<EarlyRows> {
        match self {
            Self::Here(_) => None,
            Self::Cluster(workers) => workers.collector.as_ref().map(RowCollector::early_rows),
        }
    }

    pub(super) async fn join(&mut self) -> Result<Joined, RunError> {
        match self {
            Self::Here(process) => {
                let ended = process.join().await?;
                let load::load_process::LoadEnd { at, scheduled, ports } = ended;
                Ok(Joined { at, scheduled, lost: Vec::new(), ports })
            }
            Self::Cluster(workers) => {
                let joined = workers.fleet.join().await;
                joined.ports.into_iter().for_each(|ports| PortMemory::of_pods().leave(ports));
                Ok(joined)
            }
        }
    }

    /// Fetches the pods' rows after the load, unless `give_up` is cancelled. Reports progress to `tell`.
    pub(super) async fn collect(
        &mut self,
        give_up: &CancellationToken,
        tell: impl Fn(&str),
    ) -> Result<Collected, RunError> {
        match self {
            Self::Cluster(workers) => match workers.collector.take() {
                Some(collector) => Ok(collector.finish(give_up, tell).await?),
                None => Ok(Collected::default()),
            },
            Self::Here(_) => Ok(Collected::default()),
        }
    }

    pub(super) fn recorders(&self) -> Vec<Source> {
        match self {
            Self::Here(process) => process.recorders(),
            Self::Cluster(workers) => workers.fleet.recorders(),
        }
    }

    pub(super) async fn end(self) {
        match self {
            Self::Here(process) => process.end().await,
            Self::Cluster(workers) => workers.fleet.dismiss(DISMISSAL).await,
        }
    }
}

/// Returns the load as seen from a node. Each Service, reached through that node's Service proxy, is a separate target.
fn seen_from(settings: &load::Load, node: &str, ready: &ReadyTargets) -> load::Load {
    let mut settings = settings.clone();
    let is_nodes_own =
        |target: &&mut load::LoadTarget| ready.by_service_proxy().any(|name| name == target.name);
    for target in settings.targets.iter_mut().filter(is_nodes_own) {
        target.name = at_node(&target.name, node);
    }
    settings
}

/// Repeats run.json's description of a target for that target as seen from each node.
pub(super) fn describe(plan: &mut LoadPlan, workers: usize, nodes: &BTreeSet<String>, ready: &ReadyTargets) {
    plan.load_workers = Some(workers);
    let Some(methods) = &mut plan.methods else { return };
    for name in ready.by_service_proxy() {
        if let Some(method) = methods.remove(name) {
            methods.extend(nodes.iter().map(|node| (at_node(name, node), method.clone())));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use rolldrop_scenario as scenario;

    #[test]
    fn unreachable_service_is_loaded_from_cluster() {
        let from = |target: &str, reaches_services| {
            let text = format!(
                "{{apiVersion: rolldrop.dev/v1, kind: Scenario, metadata: {{name: x}}, spec: {{target: {target}}}}}"
            );
            let loaded = scenario::parse::<serde_json::Value>(&text, "x.yaml", Path::new("."), &[]).unwrap();
            default_from(&loaded.scenario, reaches_services)
        };
        let (service, url) = ("{service: web}", "{url: 'http://web.example/'}");
        assert_eq!(from(service, false), LoadFrom::Cluster, "in a real cluster");
        assert_eq!(from(service, true), LoadFrom::Local, "in an embedded one, or from inside a pod");
        assert_eq!(from(url, false), LoadFrom::Local);
        assert_eq!(from(&format!("[{url}, {service}]"), false), LoadFrom::Cluster);
    }

    #[test]
    fn load_pods_are_counted_per_node() {
        let pod = |node: &str| LoadPod { name: "x".into(), uid: "x".into(), node: node.into() };
        assert_eq!(places(&[pod("b"), pod("a"), pod("b")]), "the load comes from 3 pods, on a, b (2)");
        assert_eq!(places(&[pod("a")]), "the load comes from 1 pod, on a");
    }
}
