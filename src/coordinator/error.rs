//! Why a run could not go on.

use std::time::Duration;

use super::caller::is_too_many;
use super::journal::JournalError;
use crate::inject::KubernetesVersion;
use crate::inject::ending::EndingError;
use crate::scenario::{Scenario, ScenarioError};
use rolldrop_record::RunDirError;
use rolldrop_record::event::ActionName;

/// Why a run could not go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CoordinatorError {
    /// The API server refused a call, or did not answer.
    #[error("failed to {what}: {why}")]
    Api {
        /// What was asked.
        what: String,
        /// Its answer.
        why: String,
    },
    /// A call was not answered in time.
    #[error("failed to {what}: no answer within {limit:?}")]
    Timeout {
        /// What was asked.
        what: String,
        /// The limit.
        limit: Duration,
    },
    /// An object of the manifests exists already.
    #[error(
        "{0} exists already: the run would take it over; remove it, name another namespace, or remove it from the \
         manifests"
    )]
    Exists(String),
    /// A manifest is of a kind that the cluster does not know.
    #[error(
        "the cluster has no {kind} of {api_version}: take it out of the manifests, or name a cluster that has it (--context)"
    )]
    UnknownKind {
        /// The kind.
        kind: String,
        /// Its group and version.
        api_version: String,
    },
    /// A pod says that it cannot start.
    #[error("a pod never starts: {0}")]
    PodNeverStarts(String),
    /// Where connections go cannot be found out.
    #[error("--evidence conntrack: {0}")]
    NoEvidence(String),
    /// No pod of the load's Job was ready in time.
    #[error("no load worker is ready after {limit:?}: {why}")]
    NoLoadWorker {
        /// The limit.
        limit: Duration,
        /// What the pods say.
        why: String,
    },
    /// The pods were not ready in time.
    #[error("service {service} has {ready} of {wanted} endpoints ready after {limit:?}{why}")]
    NotReady {
        /// The Service.
        service: String,
        /// Endpoints that are ready.
        ready: usize,
        /// Endpoints that were waited for.
        wanted: usize,
        /// The limit.
        limit: Duration,
        /// The reason with a colon before it, or nothing.
        why: String,
    },
    /// Workloads of the run did not get their pods in time.
    #[error("{missing} after {limit:?}{why}")]
    WorkloadNotReady {
        /// Which, and what it lacks.
        missing: String,
        /// The limit.
        limit: Duration,
        /// The reason with a colon before it, or nothing.
        why: String,
    },
    /// The target Service cannot be used.
    #[error("service {service}: {why}")]
    Service {
        /// The Service.
        service: String,
        /// Why.
        why: String,
    },
    /// Another run changes a workload.
    #[error(
        "{workload} is in use by {holder}: wait until that has ended, or use `rolldrop cleanup` with its directory if it \
         was killed; if neither is possible, {remedy} forgets it"
    )]
    InUse {
        /// The workload.
        workload: String,
        /// The run, its owner, and when it expires.
        holder: String,
        /// The command that removes the annotation.
        remedy: String,
    },
    /// Somebody else changed an object between reading it and changing it.
    #[error("failed to change {0}: others keep changing it")]
    Conflict(String),
    /// A selector matches nothing.
    #[error("selector {selector:?} matches no pod in namespace {namespace}: correct it, or the pods' labels")]
    NoPods {
        /// The selector.
        selector: String,
        /// The namespace.
        namespace: String,
    },
    /// The run lacks rights that it needs.
    #[error(
        "rights are missing: {}; ask for them (kubectl auth can-i --list -n {namespace} shows what you have)",
        .rights.join(", ")
    )]
    MissingRights {
        /// What is missing: verb, resource and where.
        rights: Vec<String>,
        /// The namespace of the run.
        namespace: String,
    },
    /// An action would end too many pods.
    #[error(
        "{action} of {of} is refused: {why}; set allowOutage: true in the disruption if this is intended"
    )]
    TooMany {
        /// The action.
        action: ActionName,
        /// Whose pods.
        of: String,
        /// What it would do.
        why: String,
    },
    /// The cluster is too old for something that the manifests use.
    #[error("the cluster runs Kubernetes {version}, which lacks what the scenario uses: {}", .lacking.join("; "))]
    TooOld {
        /// Its version.
        version: KubernetesVersion,
        /// What, where, and what to write in its place.
        lacking: Vec<String>,
    },
    /// A workload or a pod has no such container.
    #[error("{of} has no container {container:?}: name one of its containers")]
    NoContainer {
        /// Whose.
        of: String,
        /// The container.
        container: String,
    },
    /// A workload would not replace its pods.
    #[error("{workload} would not replace its pods: {why}")]
    NoRollout {
        /// Which.
        workload: String,
        /// Why not, and what to do.
        why: &'static str,
    },
    /// An object to be patched is in no namespace.
    #[error("{object} is not in the run's namespace: the run changes only objects there")]
    NotInNamespace {
        /// The object.
        object: String,
    },
    /// A pod cannot be taken out of a Service.
    #[error("pod {pod} cannot leave its Service: {why}; name a label of the Service's selector (label: app)")]
    Relabel {
        /// The pod.
        pod: String,
        /// Why.
        why: String,
    },
    /// A node has no pods that would end with it.
    #[error(
        "node {node} has no pod of namespace {namespace} that would end: name another (kubectl get pods -n \
         {namespace} -o wide)"
    )]
    NoPodsOnNode {
        /// The node.
        node: String,
        /// The namespace of the run.
        namespace: String,
    },
    /// A node has only pods that a drain leaves where they are.
    #[error(
        "the pods of namespace {namespace} on node {node} are of DaemonSets, which a drain leaves where they are: end \
         them by nodeShutdown or deletePod"
    )]
    OnlyDaemonSets {
        /// The node.
        node: String,
        /// The namespace of the run.
        namespace: String,
    },
    /// The cluster offers no way to do this.
    #[error(
        "this cluster offers no {action}: Kubernetes has no call for it, and {path} answers {answer:?}; {instead}"
    )]
    NotOffered {
        /// The action.
        action: ActionName,
        /// What was asked for.
        path: String,
        /// What the API server says of it.
        answer: String,
        /// What to do instead.
        instead: &'static str,
    },
    /// The scenario does not fit the cluster.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// It is not known which workloads are behind a target.
    #[error("the workload behind the target is not known: {0}")]
    Behind(String),
    /// The sidecar cannot be added to the pods.
    #[error("the sidecar cannot be added: {0}")]
    Sidecar(String),
    /// How pods end cannot be set.
    #[error(transparent)]
    Ending(#[from] EndingError),
    /// The rollout of a change did not end.
    #[error("the rollout of the changed workloads had not settled after {limit:?}: {missing}")]
    Unsettled {
        /// What was missing.
        missing: String,
        /// The limit.
        limit: Duration,
    },
    /// A GitOps controller manages an object.
    #[error(
        "{object} is managed by {controller}, which would undo a change in mid-run: pause it and use \
         --change-gitops, or make the change in its repository"
    )]
    Managed {
        /// The object.
        object: String,
        /// The controller.
        controller: String,
    },
    /// The run's changes could not be recorded.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The records could not be written.
    #[error(transparent)]
    Record(#[from] RunDirError),
    /// The recorder ended too early.
    #[error("the recorder ended too early")]
    RecorderGone,
    /// The run was stopped on purpose.
    #[error("interrupted")]
    Interrupted,
}

impl CoordinatorError {
    /// The same with the place in the scenario that it is about, if the scenario can be corrected.
    #[must_use]
    pub(super) fn at(self, scenario: &Scenario, key: &str) -> Self {
        match self {
            Self::NoPods { .. }
            | Self::TooMany { .. }
            | Self::NoContainer { .. }
            | Self::NotInNamespace { .. }
            | Self::Relabel { .. }
            | Self::NoPodsOnNode { .. }
            | Self::OnlyDaemonSets { .. }
            | Self::NoRollout { .. }
            | Self::UnknownKind { .. }
            | Self::Service { .. } => scenario.invalid(key, self.to_string()).into(),
            other => other,
        }
    }

    /// An error of the Kubernetes client.
    pub(super) fn api(what: &str, error: &kube::Error) -> Self {
        Self::Api { what: what.to_owned(), why: Self::why(error) }
    }

    /// What an error of the Kubernetes client says.
    pub(super) fn why(error: &kube::Error) -> String {
        match error {
            // Its own words need not say that it was busy.
            error @ kube::Error::Api(status) if is_too_many(error) => {
                format!("{} (429 Too Many Requests)", status.message)
            }
            kube::Error::Api(status) => status.message.clone(),
            other => innermost(other),
        }
    }
}

/// The last cause, which is the one that says something.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut last = error;
    while let Some(source) = last.source() {
        last = source;
    }
    last.to_string()
}
