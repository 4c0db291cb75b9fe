//! The pods that send the load: an Indexed Job, whose pods are spread over the nodes, and the Secret with the token
//! that the pods check.
//!
//! This module does not handle the pods' orders; it determines only whether the pods are ready for orders, and why a
//! pod has ended. As in any Job, the controller replaces a pod that has ended; the new pod with that index waits for
//! orders that never arrive.

mod manifest;
mod worker_ends;

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::ResourceExt;
use kube::api::{DynamicObject, ListParams, Patch, PatchParams};
use serde_json::json;
use tokio::time::Instant;

use super::apply::{Applier, Changer};
use crate::api::Caller;
use crate::error::{CoordinatorError, Result};
use crate::observe::unready::{latest_event, why_pod_unready};
use crate::observe::{Observer, View, Views, Waiting};
use crate::plan::{COMPONENT, COMPONENT_LABEL};
use crate::undo::RUN_LABEL;
use manifest::TOKEN_KEY;
pub(crate) use manifest::{LOAD_PORT, LoadJob};
use rolldrop_record::event::PodEvent;

/// Time after which the wait reports, once, which pods are not ready.
const PATIENCE: Duration = Duration::from_secs(10);

/// Lowest rate per worker, in requests per second. At a lower rate, the window of the worker's node would be too
/// coarse.
const LEAST_RATE: f64 = 10.0;
/// Highest rate per worker, in requests per second. At higher rates, there are more workers than nodes.
const MOST_RATE: f64 = 10_000.0;
/// Maximum default number of workers.
const MOST_WORKERS: usize = 100;

/// A worker's pod that is ready to take orders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LoadPod {
    /// Name of the pod.
    pub name: String,
    /// UID of the pod.
    pub uid: String,
    /// Node that the pod runs on.
    pub node: String,
}

/// The load's pods at the end of the wait for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LoadPods {
    /// Ready pods, one for each index.
    pub ready: Vec<LoadPod>,
    /// Reasons that the other pods are not ready, one line each.
    pub missing: Vec<String>,
}

/// Returns the default number of workers: one for each node that takes pods, but fewer if each would have too low a
/// rate, and more if each would have too high a rate.
pub(crate) fn default_workers(nodes: usize, peak_rate: f64) -> usize {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "positive, and the cast saturates"
    )]
    let of_rate = |rate: f64| rate as usize;
    let most = if peak_rate > 0.0 { of_rate((peak_rate / LEAST_RATE).floor()) } else { nodes };
    let least = of_rate((peak_rate / MOST_RATE).ceil());
    nodes.min(most).max(least).clamp(1, MOST_WORKERS)
}

/// Returns the name of a run's Job and Secret. The names and host names of the pods begin with it.
fn job_name(run: &str) -> String {
    let run: String =
        run.to_lowercase().chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    // Keeps the end of the run's name, which is a timestamp. The Job's controller would truncate a longer name before
    // it appends a pod's index.
    let from = run.len().saturating_sub(38);
    format!("rolldrop-load-{}", run[from..].trim_start_matches('-'))
}

/// Creates the Job and its Secret, which is removed with the Job.
///
/// # Errors
/// Fails if the API server refuses to create one of them.
pub(crate) async fn make(changer: Changer<'_>, applier: &Applier, job: &LoadJob<'_>) -> Result<()> {
    let run = changer.ledger.run();
    let name = job_name(run);
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": name, "labels": {COMPONENT_LABEL: COMPONENT}},
        "stringData": {TOKEN_KEY: job.token.as_str()},
    });
    let secret = applier.create(changer, &secret).await?;
    let created = applier.create(changer, &manifest::job(&name, run, job)).await?;
    give_to(changer.caller, &secret, &created).await
}

/// Makes the Job the owner of the Secret so that the Secret is removed with the Job. The Job is the only owner, because
/// with several owners, the Secret would remain until all of them are gone.
async fn give_to(caller: &Caller, secret: &DynamicObject, job: &DynamicObject) -> Result<()> {
    let owner = json!({"apiVersion": "batch/v1", "kind": "Job", "name": job.name_any(), "uid": job.uid()});
    let patch = Patch::Merge(json!({"metadata": {"ownerReferences": [owner]}}));
    let secrets = caller.api::<Secret>();
    let (what, name) = ("make the load workers' Job the owner of their Secret", secret.name_any());
    let params = PatchParams::default();
    caller.must(what, || secrets.patch(&name, &params, &patch)).await.map(drop)
}

/// Waits until the pods of all workers are ready, or the limit passes. Passes reasons for a long wait to `tell`.
///
/// # Errors
/// Fails if no pod is ready by then, or as soon as every pod reports why it will never become ready.
pub(crate) async fn await_pods(
    caller: &Caller,
    observer: &Observer,
    (run, workers): (&str, usize),
    limit: Duration,
    tell: impl Fn(&str),
) -> Result<LoadPods> {
    let prefix = format!("{}-", job_name(run));
    let is_own = |pod: &PodEvent| pod.name.starts_with(&prefix);
    let mut waiting = Waiting::begin(caller, limit);
    let mut told_at = (PATIENCE < limit).then(|| Instant::now() + PATIENCE);
    loop {
        let (ready, hopeless) =
            observer.views().read(|view| (ready_pods(view, is_own), worker_ends::why_hopeless(view, is_own)));
        if ready.len() >= workers {
            return Ok(LoadPods { ready, missing: Vec::new() });
        }
        if waiting.is_over(hopeless.as_ref())? {
            let missing = why_not_ready(caller, (run, workers), &ready).await?;
            if ready.is_empty() {
                return Err(CoordinatorError::NoLoadWorker { limit, why: missing.join("; ") });
            }
            return Ok(LoadPods { ready, missing });
        }
        if told_at.take_if(|at| Instant::now() >= *at).is_some() {
            why_not_ready(caller, (run, workers), &ready).await?.iter().for_each(|why| tell(why));
        }
        waiting.look_again(caller, observer.views()).await?;
    }
}

/// Waits until a pod has ended, and returns the reason. A terminating pod has not ended; it still responds.
pub(crate) fn pod_ended(views: &Views, uid: &str) -> impl Future<Output = String> + Send + use<> {
    let (mut views, uid) = (views.subscribe(), uid.to_owned());
    async move {
        let ended = views.wait_for(|view| worker_ends::why_ended(view, &uid).is_some()).await;
        match ended.map(|view| worker_ends::why_ended(&view, &uid)) {
            Ok(Some(why)) => why,
            // The session is over.
            Ok(None) | Err(_) => std::future::pending().await,
        }
    }
}

/// Returns the reasons that workers are not ready: what their pods report, or the latest warning about the pods or
/// the Job.
async fn why_not_ready(
    caller: &Caller,
    (run, workers): (&str, usize),
    ready: &[LoadPod],
) -> Result<Vec<String>> {
    let what = "list the load workers' pods";
    let labels = format!("{COMPONENT_LABEL}={COMPONENT},{RUN_LABEL}={run}");
    let params = ListParams::default().labels(&labels);
    let mut pods = caller.list(what, &caller.api::<Pod>(), &params).await?;
    pods.sort_by_key(|pod| pod.metadata.creation_timestamp.as_ref().map(|time| time.0));
    // Earlier pods with the same index were replaced.
    let latest: BTreeMap<_, _> = pods.into_iter().map(|pod| (index_of(&pod.name_any()), pod)).collect();
    let is_ready = |pod: &Pod| ready.iter().any(|ready| index_of(&ready.name) == index_of(&pod.name_any()));
    let mut reasons = Vec::new();
    for pod in latest.values().filter(|pod| !is_ready(pod)) {
        let why = why_pod_unready(caller, pod).await?;
        reasons.push(format!("load worker {} is not ready: {why}", pod.name_any()));
    }
    let without = workers.saturating_sub(latest.len());
    if without > 0 {
        let job = job_name(run);
        let why = latest_event(caller, &format!("involvedObject.name={job},type=Warning"), |_| true).await?;
        let why = why.unwrap_or_else(|| format!("see the events of Job {job}"));
        reasons.push(format!("no pod for {without} of {workers} load workers: {why}"));
    }
    Ok(reasons)
}

/// Returns the ready pods, one for each index.
fn ready_pods(view: &View, is_own: impl Fn(&PodEvent) -> bool) -> Vec<LoadPod> {
    let pods = view.pods.values().map(|seen| &seen.event);
    let ready = pods.filter(|pod| is_own(pod) && pod.ready && pod.deletion_timestamp.is_none());
    let mut of_index = BTreeMap::new();
    for pod in ready {
        let (name, uid) = (pod.name.clone(), pod.uid.clone());
        let node = pod.node.clone().unwrap_or_default();
        of_index.insert(index_of(&pod.name), LoadPod { name, uid, node });
    }
    of_index.into_values().collect()
}

/// Returns the index of one of the Job's pods, whose names are JOB-INDEX-RANDOM.
fn index_of(pod: &str) -> Option<usize> {
    pod.rsplit('-').nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worker_count_follows_nodes_and_rate() {
        for (nodes, rate, workers) in [
            (3, 200.0, 3),
            (50, 200.0, 20),
            (3, 5.0, 1),
            (0, 200.0, 1),
            (2, 100_000.0, 10),
            (500, 1e6, 100),
            // A closed loop has no rate.
            (4, 0.0, 4),
        ] {
            assert_eq!(default_workers(nodes, rate), workers, "{nodes} nodes, {rate}/s");
        }
    }

    #[test]
    fn job_name_fits_hostname_limit() {
        let name = job_name("a-scenario-with-quite-a-long-name-of-40-c-20260101T000000.123Z");
        assert!(name.len() + "-9999-".len() <= 63 - "abcde".len(), "{name}");
        assert!(name.ends_with("-20260101t000000-123z"), "{name}");
        assert_eq!(job_name("web-20260101T000000.123Z"), "rolldrop-load-web-20260101t000000-123z");
    }
}
