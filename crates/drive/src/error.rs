//! Errors that end a run.

use std::path::PathBuf;
use std::time::Duration;

use rolldrop_kubernetes::guard::distrust;
use rolldrop_record::RunDirError;
use rolldrop_record::event::ActionName;
use rolldrop_scenario::{Scenario, ScenarioError};
use rolldrop_sidecar::inject::KubernetesVersion;
use rolldrop_sidecar::inject::ending::EndingError;

/// Result of a step that can end a run.
pub(crate) type Result<T, E = CoordinatorError> = std::result::Result<T, E>;

/// Error that ends a run.
#[derive(Debug, thiserror::Error)]
pub enum CoordinatorError {
    /// The API server refused a call, or did not respond. The same call may succeed later if the server was down,
    /// overloaded or faulty for as long as the limit for an outage allows.
    #[error("failed to {what}: {why}")]
    Api { what: String, why: String, may_pass: bool },
    /// A call got no response in time.
    #[error("failed to {what}: no answer within {limit:?}")]
    Timeout { what: String, limit: Duration },
    /// An object from the manifests already exists in the cluster.
    #[error(
        "{0} already exists, and the run must not take it over: delete it, use another namespace (-n), or remove \
         it from the manifests"
    )]
    Exists(String),
    /// A manifest is of a kind that does not exist in the cluster.
    #[error(
        "the cluster does not know {kind} ({api_version}): remove it from the manifests, or use a cluster that has \
         it (--context)"
    )]
    UnknownKind { kind: String, api_version: String },
    /// A pod reports that it cannot start.
    #[error("a pod cannot start: {0}")]
    PodNeverStarts(String),
    /// The run cannot find out which pods its connections are routed to.
    #[error("--evidence conntrack: {0}")]
    NoEvidence(String),
    /// No pod of the load's Job was ready in time.
    #[error("no load worker became ready within {limit:?}: {why}")]
    NoLoadWorker { limit: Duration, why: String },
    /// The pods were not ready in time. The reason follows a colon; it is empty if none is known.
    #[error("service {service} has {ready} of {wanted} endpoints ready after {limit:?}{why}")]
    NotReady { service: String, ready: usize, wanted: usize, limit: Duration, why: String },
    /// The run's workloads did not get their pods in time. `why` is formatted as in `NotReady`.
    #[error("{missing} after {limit:?}{why}")]
    WorkloadNotReady { missing: String, limit: Duration, why: String },
    /// The target Service cannot be used.
    #[error("service {service}: {why}")]
    Service { service: String, why: String },
    /// Another run is changing this workload.
    #[error(
        "{workload} is in use by {holder}: wait until that run ends, or, if it was killed, run `rolldrop cleanup` \
         on its directory; if you can do neither, {remedy} removes the mark"
    )]
    InUse { workload: String, holder: String, remedy: String },
    /// Others repeatedly changed an object between the run's read and its write.
    #[error("failed to change {0}: others keep changing it")]
    Conflict(String),
    /// A selector matches nothing.
    #[error(
        "selector {selector:?} matches no pod in namespace {namespace}: fix the selector or the pods' labels"
    )]
    NoPods { selector: String, namespace: String },
    /// The run lacks permissions that it needs.
    #[error(
        "missing permissions: {}; ask your cluster admin for them (kubectl auth can-i --list -n {namespace} shows what \
         you have)",
        .rights.join(", ")
    )]
    MissingRights { rights: Vec<String>, namespace: String },
    /// An action would terminate too many pods.
    #[error("refused {action} of {of}: {why}; set allowOutage: true in the disruption if you want this")]
    TooMany { action: ActionName, of: String, why: String },
    /// The cluster is too old for something that the manifests use.
    #[error("the cluster runs Kubernetes {version}, which is too old for this scenario: {}", .lacking.join("; "))]
    TooOld { version: KubernetesVersion, lacking: Vec<String> },
    /// A workload or a pod has no such container.
    #[error("{of} has no container {container:?}: name one of its containers")]
    NoContainer { of: String, container: String },
    /// A workload would not replace its pods.
    #[error("{workload} would not replace its pods: {why}")]
    NoRollout { workload: String, why: &'static str },
    /// An object to be patched is not in the run's namespace.
    #[error("{object} is not in the run's namespace: a run changes only objects in its own namespace")]
    NotInNamespace { object: String },
    /// A pod cannot be taken out of a Service.
    #[error("pod {pod} cannot leave its Service: {why}; name a label in the Service's selector (label: app)")]
    Relabel { pod: String, why: String },
    /// A node has no pods that the action would terminate.
    #[error(
        "the action would not terminate any pod in namespace {namespace} on node {node}: name another node (kubectl \
         get pods -n {namespace} -o wide)"
    )]
    NoPodsOnNode { node: String, namespace: String },
    /// A node has only pods that a drain does not evict.
    #[error(
        "all pods in namespace {namespace} on node {node} are DaemonSet pods, which a drain does not evict: use \
         nodeShutdown or deletePod"
    )]
    OnlyDaemonSets { node: String, namespace: String },
    /// The cluster offers no way to carry out an action.
    #[error(
        "this cluster does not support {action}: Kubernetes has no API call for it, and {path} answered \
         {answer:?}; {instead}"
    )]
    NotOffered { action: ActionName, path: String, answer: String, instead: &'static str },
    /// The scenario does not fit the cluster.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// The run cannot tell which workloads are behind a target.
    #[error("failed to find the workload behind the target: {0}")]
    Behind(String),
    /// The sidecar cannot be added to the pods.
    #[error("failed to add the sidecar: {0}")]
    Sidecar(String),
    /// The pods' termination settings cannot be changed.
    #[error(transparent)]
    Ending(#[from] EndingError),
    /// The rollout of a change did not settle in time.
    #[error("the rollout of the changed workloads did not settle within {limit:?}: {missing}")]
    Unsettled { missing: String, limit: Duration },
    /// A GitOps controller manages an object.
    #[error(
        "{object} is managed by {controller}, which would revert the change during the run: pause it and add \
         --change-gitops, or make the change in its repository"
    )]
    Managed { object: String, controller: String },
    /// The run's changes could not be recorded.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// This is not the cluster that a run changed.
    #[error(
        "none of the objects that the run changed is in the cluster at {here}. {}: select it with --kubeconfig or \
         --context. Nothing was changed",
        of_run.as_ref().map_or_else(
            || "The run's was probably another one".to_owned(),
            |server| format!("The run's cluster was at {server}"),
        )
    )]
    OtherCluster { here: String, of_run: Option<String> },
    /// The records could not be written.
    #[error(transparent)]
    Record(#[from] RunDirError),
    /// A file with a gateway's log cannot be read.
    #[error("failed to open {}", .path.display())]
    LogFile { path: PathBuf, source: std::io::Error },
    /// The recorder stopped too early.
    #[error("the recorder stopped too early")]
    RecorderGone,
    /// The run was stopped on purpose.
    #[error("interrupted")]
    Interrupted,
}

/// Reason that a journal cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// A file could not be read or written.
    #[error("failed to read or write {path}")]
    Io { path: PathBuf, source: std::io::Error },
    /// The directory contains no journal.
    #[error("{} has no changes.jsonl: name a directory that `rolldrop run` or `rolldrop tune` created", .0.display())]
    NotARun(PathBuf),
    /// The run has not ended.
    #[error("the run in {} has not ended and will undo its own changes: wait for it, or stop it with Ctrl-C", .0.display())]
    InUse(PathBuf),
    /// A line cannot be read.
    #[error("{path}:{line}: {why}; restore the file")]
    Malformed { path: PathBuf, line: usize, why: String },
}

impl CoordinatorError {
    /// Adds the place in the scenario that the error is about, if the user can fix the error there.
    #[must_use]
    pub(crate) fn at(self, scenario: &Scenario, key: &str) -> Self {
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

    /// Converts a Kubernetes client error into a [`CoordinatorError::Api`].
    pub(crate) fn api(what: &str, error: &kube::Error) -> Self {
        Self::Api { what: what.to_owned(), why: Self::why(error), may_pass: is_passing(error) }
    }

    /// Returns a [`CoordinatorError::Api`] for a call that would fail again.
    pub(crate) fn refused(what: impl Into<String>, why: String) -> Self {
        Self::Api { what: what.into(), why, may_pass: false }
    }

    /// Returns true if the same call may succeed later.
    pub(crate) fn may_pass(&self) -> bool {
        matches!(self, Self::Api { may_pass: true, .. } | Self::Timeout { .. })
    }

    /// Returns the message of a Kubernetes client error.
    pub(crate) fn why(error: &kube::Error) -> String {
        match error {
            // The server's message may not mention that the server was busy.
            kube::Error::Api(status) if status.code == 429 => {
                format!("{} (429 Too Many Requests)", status.message)
            }
            kube::Error::Api(status) => status.message.clone(),
            other => innermost(other),
        }
    }
}

/// Returns true if the call may succeed a little later because the API server is down, overloaded or faulty, or a token
/// has expired and will be renewed.
pub(crate) fn is_passing(error: &kube::Error) -> bool {
    match error {
        // A response that is not trusted now will not be trusted later.
        error if distrust(error).is_some() => false,
        kube::Error::Api(status) => matches!(status.code, 401 | 408 | 429 | 500 | 502..=504),
        kube::Error::Service(_)
        | kube::Error::HyperError(_)
        | kube::Error::ReadEvents(_)
        | kube::Error::Auth(_) => true,
        _ => false,
    }
}

impl JournalError {
    /// Returns the message, followed by that of its cause.
    pub(crate) fn in_words(&self) -> String {
        match self {
            Self::Io { source, .. } => format!("{self}: {source}"),
            other => other.to_string(),
        }
    }
}

/// Returns the message of the innermost cause, which is the most informative one.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut last = error;
    while let Some(source) = last.source() {
        last = source;
    }
    last.to_string()
}
