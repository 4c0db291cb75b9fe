//! Waits until the objects to be measured exist and can be disrupted as the scenario specifies.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::ListParams;
use serde_json::Value;

use super::Observer;
use super::found_targets::{Consumer, FoundTarget};
use super::rollout_wait::workloads;
use super::unready::why_unready;
use super::waiting::Waiting;
use super::ways::Way;
use super::{proxy_detection, target_service};
use crate::api::Caller;
use crate::error::{CoordinatorError, Result};
use rolldrop_kubernetes::pods::Candidate;
use rolldrop_record::routing::ServiceRules;
use rolldrop_record::run_info::ClusterInfo;
use rolldrop_scenario::{Disruption, Place, Scenario, ScenarioTarget};

/// Waits until the Services of a scenario's targets have their endpoints. Returns the targets, and the number of
/// endpoints. The senders of the load check that the targets respond.
///
/// # Errors
/// Fails if a pod cannot start (with the reason that it reports), if a limit passes, or if the Service cannot be
/// used.
pub(crate) async fn await_targets(
    caller: &Caller,
    observer: &Observer,
    scenario: &Scenario,
) -> Result<(Vec<FoundTarget>, usize)> {
    let Scenario { targets, manifests, .. } = scenario;
    let mut found = Vec::with_capacity(targets.len());
    let mut endpoints_of = BTreeMap::new();
    for target in targets {
        let (url, consumer, service, rules) = match &target.place {
            Place::Url(url) => {
                (url.to_string(), Consumer::Url(url.to_string()), None, ServiceRules::default())
            }
            Place::Service { name, port, path, node } => {
                let service = target_service::service(caller, name).await?;
                let wanted = target_service::wanted_endpoints(&service, manifests);
                let pods = target_service::selector(&service);
                endpoints_of
                    .insert(name, await_endpoints(caller, observer, name, pods.as_deref(), wanted).await?);
                let way = Way { service: &service, name, port: port.as_deref(), path };
                let (url, consumer) = way.find(caller, node.as_deref()).await?;
                (url, consumer, Some(name.clone()), proxy_detection::rules(&service))
            }
        };
        let ScenarioTarget { name, balances, balances_because, .. } = target.clone();
        found.push(FoundTarget { name, url, consumer, balances, balances_because, service, rules });
    }
    Ok((found, endpoints_of.into_values().sum()))
}

pub(crate) async fn await_endpoints(
    caller: &Caller,
    observer: &Observer,
    service: &str,
    pods: Option<&str>,
    wanted: usize,
) -> Result<usize> {
    let limit = caller.limits.ready;
    let mut waiting = Waiting::begin(caller, limit);
    loop {
        let ready = observer.views().read(|view| view.ready_endpoints(service));
        if ready >= wanted {
            return Ok(ready);
        }
        if let Some(why) = wait_for_pods(caller, observer, &mut waiting, pods).await? {
            let service = service.to_owned();
            return Err(CoordinatorError::NotReady { service, ready, wanted, limit, why });
        }
    }
}

/// Waits for the next change while pods with these labels are not ready, and occasionally reports the reason. Once
/// the limit has passed, returns the reason, phrased as the end of a sentence.
///
/// # Errors
/// Fails if a pod has reported for some time that it cannot start.
async fn wait_for_pods(
    caller: &Caller,
    observer: &Observer,
    waiting: &mut Waiting,
    selector: Option<&str>,
) -> Result<Option<String>> {
    let stuck = observer.views().read(|view| view.stuck_container(|_| true));
    let why_unready = || why_unready(caller, selector, |_| true, |_| true);
    match waiting.is_over(stuck.as_ref()) {
        Ok(true) => {
            let why = why_unready().await.or(stuck.map(|stuck| stuck.to_string()));
            return Ok(Some(why.map(|why| format!(": {why}")).unwrap_or_default()));
        }
        Err(CoordinatorError::PodNeverStarts(why)) => {
            let said = why_unready().await;
            return Err(CoordinatorError::PodNeverStarts(said.unwrap_or(why)));
        }
        Ok(false) => {}
        Err(other) => return Err(other),
    }
    if waiting.wants_reason()
        && let Some(why) = why_unready().await
    {
        observer.viewer().unready(&why);
    }
    waiting.look_again(caller, observer.views()).await?;
    Ok(None)
}

/// Waits until workloads from the manifests have all their pods: all workloads if a target is a URL, whose
/// endpoints are not known, otherwise those that a disruption names.
pub(crate) async fn await_own_workloads(
    caller: &Caller,
    observer: &Observer,
    scenario: &Scenario,
    disruptions: &[Disruption],
) -> Result<()> {
    let has_url = scenario.targets.iter().any(|target| matches!(target.place, Place::Url(_)));
    let is_named = |object: &Value| {
        let workloads = disruptions.iter().filter_map(|disruption| disruption.action.workload());
        workloads.into_iter().any(|workload| workload.is(object))
    };
    let name = |object: &Value| {
        let title = format!("{} {}", object["kind"].as_str()?, object["metadata"]["name"].as_str()?);
        let is_awaited = has_url || is_named(object);
        (is_awaited && !object["spec"]["template"].is_null()).then_some(title)
    };
    let own: Vec<String> = scenario.manifests.iter().filter_map(name).collect();
    if own.is_empty() {
        return Ok(());
    }
    let limit = caller.limits.ready;
    let mut waiting = Waiting::begin(caller, limit);
    while let Some((workload, missing)) = workloads(caller).await?.missing_of(&own) {
        if let Some(why) = wait_for_pods(caller, observer, &mut waiting, None).await? {
            let missing = format!("{workload}: {missing}");
            return Err(CoordinatorError::WorkloadNotReady { missing, limit, why });
        }
    }
    Ok(())
}

/// Waits until a disruption's selector matches at least as many ready pods as the manifests create. The pods need not
/// be behind a target.
pub(crate) async fn await_own_pods(
    caller: &Caller,
    observer: &Observer,
    selector: &str,
    made: usize,
) -> Result<()> {
    if made == 0 {
        return Ok(());
    }
    let limit = caller.limits.ready;
    let mut waiting = Waiting::begin(caller, limit);
    let (what, params) = (format!("list pods {selector:?}"), ListParams::default().labels(selector));
    loop {
        let found: Vec<Candidate> = caller.list(&what, &caller.api(), &params).await?;
        let ready = found.iter().filter(|pod| pod.is_ready).count();
        if ready >= made {
            return Ok(());
        }
        if let Some(why) = wait_for_pods(caller, observer, &mut waiting, Some(selector)).await? {
            let missing = format!("{ready} of {made} pods matching {selector} are ready");
            return Err(CoordinatorError::WorkloadNotReady { missing, limit, why });
        }
    }
}

/// Describes the cluster, as far as the run may read it.
pub(crate) async fn fingerprint(caller: &Caller, endpoints: usize) -> Result<ClusterInfo> {
    let version = caller.server_version().await?;
    // Reads as much as the run may; missing permissions leave gaps in the fingerprint.
    let nodes = Api::<Node>::all(caller.client.clone());
    let params = ListParams::default();
    let known = |node: Node| Node { spec: None, status: None, ..node };
    let nodes = caller.list_as("list nodes", &nodes, &params, known).await?.unwrap_or_default();
    let proxy_detection::DetectedProxy { known: (dataplane, dataplane_from), denied } =
        proxy_detection::find(caller, &nodes).await?;
    let dataplane_is_known = dataplane.is_known();
    Ok(ClusterInfo {
        version,
        dataplane,
        dataplane_from,
        dataplane_denied: if dataplane_is_known { Vec::new() } else { denied },
        nodes: nodes.len(),
        endpoints,
        namespace: caller.namespace.clone(),
    })
}
