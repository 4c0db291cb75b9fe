//! Pods that send the load: an Indexed Job, one pod spread over the nodes for each index, and the
//! Secret with the token by which they know the run.
//!
//! What the pods are told is not known here, only that they are ready for it, and why one has ended.
//! A pod that ended is replaced by the Job's controller, as every pod of a Job is: the new one of
//! that index waits for orders, of which there are none.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, Node, Pod, Secret};
use kube::api::{DynamicObject, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use super::apply::RUN_LABEL;
use super::view::View;
use super::{Caller, CoordinatorError, Ready, Session};
use crate::record::event::PodEvent;
use crate::record::run_info;
use crate::record::wire::AdminToken;

/// The label that says what an object of a run is for.
const COMPONENT_LABEL: &str = "rolldrop.dev/component";
const COMPONENT: &str = "load";
/// Where a worker listens, in its own pod.
pub const LOAD_PORT: u16 = 9901;
/// The variable and the Secret's key with the token.
const TOKEN_VARIABLE: &str = "ROLLDROP_LOAD_TOKEN";
const TOKEN_KEY: &str = "token";
/// Finished workers go after this, should nobody be left to remove them.
const TTL_SECONDS: u64 = 600;
/// Of the ends of a fetched load: what a worker has to close its files after SIGTERM.
const GRACE_SECONDS: u64 = 30;

/// The least rate of a worker, in requests per second: below that its node's window would be vague.
const LEAST_RATE: f64 = 10.0;
/// The rate of one worker, in requests per second, from which on there are more of them than nodes.
const MOST_RATE: f64 = 10_000.0;
/// The most workers that are chosen where no number is given.
const MOST_WORKERS: usize = 100;

/// The Job to make.
#[derive(Clone, Debug)]
pub struct LoadJob<'a> {
    /// How many workers.
    pub workers: usize,
    /// The image that has this program.
    pub image: &'a str,
    /// What a worker is promised, such as `cpu`; memory is the limit as well.
    pub resources: &'a BTreeMap<String, String>,
    /// By which the workers know the run.
    pub token: &'a AdminToken,
    /// Where the workers connect to, if they are not reached through the API server.
    pub collector: Option<&'a str>,
    /// After this the Job ends, whatever goes on.
    pub lifetime: Duration,
}

/// A worker's pod, ready for orders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadPod {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// Where it is.
    pub node: String,
}

/// The pods of a load when the wait for them is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadPods {
    /// Those that are ready, one for an index.
    pub ready: Vec<LoadPod>,
    /// Why others are not, a line each.
    pub missing: Vec<String>,
}

/// The number of workers where none is given: one for each node that takes pods, at most so many that
/// each has a rate that tells something, at least so many that none has too high a one.
pub fn default_workers(nodes: usize, peak_rate: f64) -> usize {
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

impl Caller {
    /// The nodes that take pods of any kind.
    ///
    /// # Errors
    /// When they cannot be listed.
    pub async fn schedulable_nodes(&self) -> Result<usize, CoordinatorError> {
        let what = "list nodes, to have a load worker on each (or say how many: --load-workers)";
        let nodes = Api::<Node>::all(self.client.clone());
        let nodes = self.limited(what, nodes.list(&ListParams::default())).await?;
        let nodes = nodes.map_err(|e| CoordinatorError::api(what, &e))?;
        Ok(nodes.items.iter().filter(|node| takes_pods(node)).count())
    }
}

fn takes_pods(node: &Node) -> bool {
    let spec = node.spec.as_ref();
    let repels = |effect: &str| effect == "NoSchedule" || effect == "NoExecute";
    !spec.and_then(|spec| spec.unschedulable).unwrap_or(false)
        && !spec.iter().flat_map(|spec| spec.taints.iter().flatten()).any(|taint| repels(&taint.effect))
}

impl Ready {
    /// The targets as they are seen from these nodes: what leads to a Service is each node's own.
    pub fn seen_from(&self, nodes: &BTreeSet<String>) -> Vec<run_info::Target> {
        let of_node = |target: &run_info::Target, node: &String| run_info::Target {
            name: at_node(&target.name, node),
            consumer: target.consumer.replace(super::THIS_HOST, &format!("node {node}")),
            ..target.clone()
        };
        let seen = |target: &run_info::Target| match self.by_service_proxy.contains(&target.name) {
            true => nodes.iter().map(|node| of_node(target, node)).collect(),
            false => {
                let consumer = target.consumer.replace(super::THIS_HOST, "the cluster");
                vec![run_info::Target { consumer, ..target.clone() }]
            }
        };
        self.targets.iter().flat_map(seen).collect()
    }
}

/// The name of a target as seen from a node.
pub fn at_node(target: &str, node: &str) -> String {
    format!("{target}@{node}")
}

/// The name of the Job of a run, and of its Secret. Pods and their host names are called after it.
fn job_name(run: &str) -> String {
    let run: String =
        run.to_lowercase().chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    // The end of a run's name is its time.
    let from = run.len().saturating_sub(40);
    format!("rolldrop-load-{}", run[from..].trim_start_matches('-'))
}

/// Whether a pod sends the load of a run.
pub(super) fn is_load_pod(pod: &Pod, run: &str) -> bool {
    let has = |label: &str, value: &str| pod.labels().get(label).is_some_and(|found| found == value);
    has(COMPONENT_LABEL, COMPONENT) && has(RUN_LABEL, run)
}

impl Session {
    /// Makes the Job and its Secret, which goes with it.
    ///
    /// # Errors
    /// When the API server refuses one.
    pub async fn make_load_job(&self, job: &LoadJob<'_>) -> Result<(), CoordinatorError> {
        let run = self.journal().run().to_owned();
        let name = job_name(&run);
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": name, "labels": {COMPONENT_LABEL: COMPONENT}},
            "stringData": {TOKEN_KEY: job.token.as_str()},
        });
        let secret = self.create(&secret).await?;
        let created = self.create(&manifest(&name, &run, job)).await?;
        self.give_to(&secret, &created).await
    }

    /// Has the Secret go when the Job does, whoever removes that.
    async fn give_to(&self, secret: &DynamicObject, job: &DynamicObject) -> Result<(), CoordinatorError> {
        let mut owners = serde_json::to_value(secret.owner_references()).unwrap_or_else(|_| json!([]));
        if let Value::Array(owners) = &mut owners {
            owners.push(json!({
                "apiVersion": "batch/v1", "kind": "Job", "name": job.name_any(), "uid": job.uid(),
            }));
        }
        let patch = Patch::Merge(json!({"metadata": {"ownerReferences": owners}}));
        let secrets = Api::<Secret>::namespaced(self.caller.client.clone(), &self.caller.namespace);
        let (what, name) = ("have the load workers' Secret go with their Job", secret.name_any());
        let patched =
            self.caller.limited(what, secrets.patch(&name, &PatchParams::default(), &patch)).await?;
        patched.map(drop).map_err(|e| CoordinatorError::api(what, &e))
    }

    /// Waits until all workers' pods are ready, or the limit passes.
    ///
    /// # Errors
    /// When none is ready then, or as soon as one says why none will be.
    pub async fn await_load_pods(
        &self,
        workers: usize,
        limit: Duration,
    ) -> Result<LoadPods, CoordinatorError> {
        let prefix = format!("{}-", job_name(self.journal().run()));
        let deadline = Instant::now() + limit;
        let mut stuck_since: Option<Instant> = None;
        loop {
            let is_own = |pod: &PodEvent| pod.name.starts_with(&prefix);
            let (ready, stuck) =
                self.views.read(|view| (ready_pods(view, is_own), view.stuck_container(is_own)));
            if ready.len() >= workers {
                return Ok(LoadPods { ready, missing: Vec::new() });
            }
            let now = Instant::now();
            match (stuck, &ready[..]) {
                (Some(why), []) => {
                    let since = *stuck_since.get_or_insert(now);
                    if now >= since + self.caller.limits.stuck {
                        return Err(CoordinatorError::PodNeverStarts(why));
                    }
                }
                _ => stuck_since = None,
            }
            if now >= deadline {
                let missing = self.why_not_ready(&ready).await?;
                if ready.is_empty() {
                    return Err(CoordinatorError::NoLoadWorker { limit, why: missing.join("; ") });
                }
                return Ok(LoadPods { ready, missing });
            }
            let look_again = (now + Duration::from_millis(500)).min(deadline);
            let _ = self.caller.stoppable(timeout_at(look_again, self.views.changed())).await?;
        }
    }

    /// Answers why, once a pod has ended: as long as one terminates it can still be asked.
    pub fn pod_ended(&self, uid: &str) -> impl Future<Output = String> + Send + use<> {
        let (mut views, uid) = (self.views.subscribe(), uid.to_owned());
        async move {
            let ended = views.wait_for(|view| why_ended(view, &uid).is_some()).await;
            match ended.map(|view| why_ended(&view, &uid)) {
                Ok(Some(why)) => why,
                // The session is over.
                Ok(None) | Err(_) => std::future::pending().await,
            }
        }
    }

    /// Why workers' pods are not ready, as they or the latest warning about them say.
    async fn why_not_ready(&self, ready: &[LoadPod]) -> Result<Vec<String>, CoordinatorError> {
        let Self { caller, .. } = self;
        let what = "list the load workers' pods";
        let labels = format!("{COMPONENT_LABEL}={COMPONENT},{RUN_LABEL}={}", self.journal().run());
        let pods = Api::<Pod>::namespaced(caller.client.clone(), &caller.namespace);
        let pods = caller.limited(what, pods.list(&ListParams::default().labels(&labels))).await?;
        let pods = pods.map_err(|e| CoordinatorError::api(what, &e))?.items;
        let mut reasons = Vec::new();
        for pod in pods {
            let name = pod.name_any();
            if ready.iter().any(|ready| ready.name == name) {
                continue;
            }
            let why = match own_reason(&pod) {
                Some(why) => why,
                None => self.latest_warning(&name).await?.unwrap_or_else(|| "it does not say why".into()),
            };
            reasons.push(format!("load worker {name} is not ready: {why}"));
        }
        if reasons.is_empty() {
            reasons.push("their pods are not there: see the events of the Job".to_owned());
        }
        Ok(reasons)
    }

    async fn latest_warning(&self, pod: &str) -> Result<Option<String>, CoordinatorError> {
        let Self { caller, .. } = self;
        let events = Api::<Event>::namespaced(caller.client.clone(), &caller.namespace);
        let about = ListParams::default().fields(&format!("involvedObject.name={pod},type=Warning"));
        // Without the right to them, less is known.
        let events = caller.limited("list the events of a pod", events.list(&about)).await?;
        let mut events = events.map(|list| list.items).unwrap_or_default();
        events.sort_by_key(|event| event.last_timestamp.as_ref().map(|time| time.0));
        let said = |event: Event| {
            format!("{}: {}", event.reason.unwrap_or_default(), event.message.unwrap_or_default())
        };
        Ok(events.pop().map(said))
    }
}

/// The ready pods among these, one for an index.
fn ready_pods(view: &View, is_own: impl Fn(&PodEvent) -> bool) -> Vec<LoadPod> {
    let pods = view.pods.values().map(|seen| &seen.event);
    let ready = pods.filter(|pod| is_own(pod) && pod.ready && pod.deletion_timestamp.is_none());
    let mut of_index = BTreeMap::new();
    for pod in ready {
        // JOB-INDEX-RANDOM
        let index = pod.name.rsplit('-').nth(1).and_then(|index| index.parse::<usize>().ok());
        let (name, uid) = (pod.name.clone(), pod.uid.clone());
        let node = pod.node.clone().unwrap_or_default();
        of_index.insert(index, LoadPod { name, uid, node });
    }
    of_index.into_values().collect()
}

fn why_ended(view: &View, uid: &str) -> Option<String> {
    if !view.pods_listed {
        return None;
    }
    let Some(seen) = view.pods.get(uid) else { return Some("its pod is gone".to_owned()) };
    let ended = seen.event.containers.iter().find(|c| c.state.as_deref() == Some("terminated"));
    if let Some(container) = ended {
        let code = container.exit_code.map_or_else(|| "none".to_owned(), |code| code.to_string());
        let reason = container.reason.as_deref().map(|reason| format!(" ({reason})")).unwrap_or_default();
        return Some(format!("its container ended with exit code {code}{reason}"));
    }
    (seen.event.phase == "Failed").then(|| "its pod failed".to_owned())
}

/// What a pod itself says about why it is not ready.
fn own_reason(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let conditions = status.conditions.iter().flatten();
    let unscheduled = conditions.into_iter().find(|c| c.type_ == "PodScheduled" && c.status == "False");
    if let Some(condition) = unscheduled {
        let words = [&condition.reason, &condition.message].into_iter().flatten();
        return Some(words.cloned().collect::<Vec<_>>().join(": "));
    }
    let waiting = status.container_statuses.iter().flatten().find_map(|s| s.state.as_ref()?.waiting.as_ref());
    let waiting = waiting.filter(|waiting| waiting.message.is_some())?;
    let words = [&waiting.reason, &waiting.message].into_iter().flatten();
    Some(words.cloned().collect::<Vec<_>>().join(": "))
}

fn manifest(name: &str, run: &str, job: &LoadJob<'_>) -> Value {
    let labels = json!({COMPONENT_LABEL: COMPONENT, RUN_LABEL: run});
    // A limit of the CPU would hold requests back from their times.
    let memory = job.resources.iter().filter(|(resource, _)| *resource == "memory");
    let limits: BTreeMap<_, _> = memory.collect();
    let listen = format!("$(POD_IP):{LOAD_PORT}");
    let mut args = vec!["load-worker", "--listen", &listen, "--out", "/rows"];
    args.extend(job.collector.iter().flat_map(|collector| ["--visit", collector, "--name", "$(POD_NAME)"]));
    let container = json!({
        "name": "load-worker",
        "image": job.image,
        "args": args,
        "env": [
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": TOKEN_VARIABLE, "valueFrom": {"secretKeyRef": {"name": name, "key": TOKEN_KEY}}},
        ],
        "ports": [{"name": "rolldrop-load", "containerPort": LOAD_PORT}],
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": LOAD_PORT}, "periodSeconds": 1},
        "resources": {"requests": job.resources, "limits": limits},
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "rows", "mountPath": "/rows"}],
    });
    json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": name, "labels": {COMPONENT_LABEL: COMPONENT}},
        "spec": {
            "completionMode": "Indexed",
            "completions": job.workers,
            "parallelism": job.workers,
            // One worker that fails must not end the others.
            "backoffLimit": i32::MAX,
            "activeDeadlineSeconds": job.lifetime.as_secs().max(1),
            "ttlSecondsAfterFinished": TTL_SECONDS,
            "template": {
                "metadata": {
                    "labels": labels,
                    "annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"},
                },
                "spec": {
                    "restartPolicy": "Never",
                    "automountServiceAccountToken": false,
                    "enableServiceLinks": false,
                    "terminationGracePeriodSeconds": GRACE_SECONDS,
                    "securityContext": {
                        "runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532,
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                    "topologySpreadConstraints": [{
                        "maxSkew": 1,
                        "topologyKey": "kubernetes.io/hostname",
                        "whenUnsatisfiable": "ScheduleAnyway",
                        "labelSelector": {"matchLabels": labels},
                    }],
                    "containers": [container],
                    "volumes": [{"name": "rows", "emptyDir": {}}],
                },
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_worker_on_each_node_unless_the_rate_is_too_low_or_too_high_for_that() {
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
    fn a_jobs_name_fits_its_pods_host_names_and_ends_in_the_runs_time() {
        let name = job_name("a-scenario-with-quite-a-long-name-of-40-c-20260101T000000.123Z");
        assert!(name.len() + "-100".len() <= 63, "{name}");
        assert!(name.ends_with("-20260101t000000-123z"), "{name}");
        assert_eq!(job_name("web-20260101T000000.123Z"), "rolldrop-load-web-20260101t000000-123z");
    }

    #[test]
    fn a_pod_says_why_it_is_not_ready() {
        let reason = |status: Value| {
            own_reason(&serde_json::from_value(json!({"metadata": {}, "status": status})).unwrap())
        };
        let unschedulable = json!({"conditions": [{"type": "PodScheduled", "status": "False",
            "reason": "Unschedulable", "message": "0/2 nodes are available"}]});
        assert_eq!(reason(unschedulable).unwrap(), "Unschedulable: 0/2 nodes are available");
        let waiting = |waiting: Value| {
            json!({"containerStatuses": [{"name": "x", "image": "x", "imageID": "",
            "ready": false, "restartCount": 0, "state": {"waiting": waiting}}]})
        };
        let pull = waiting(json!({"reason": "ErrImagePull", "message": "no such image"}));
        assert_eq!(reason(pull).unwrap(), "ErrImagePull: no such image");
        assert_eq!(reason(waiting(json!({"reason": "ContainerCreating"}))), None);
    }
}
