//! The kinds of object that the embedded cluster knows.

/// A kind of object, by its place in the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Resource {
    Namespaces,
    Nodes,
    Pods,
    Services,
    Endpoints,
    Events,
    ConfigMaps,
    Secrets,
    ServiceAccounts,
    Deployments,
    ReplicaSets,
    EndpointSlices,
    Ingresses,
    IngressClasses,
    PodDisruptionBudgets,
    Jobs,
    Leases,
}

use Resource::*;

impl Resource {
    /// All of them.
    pub const ALL: [Resource; 17] = [
        Namespaces,
        Nodes,
        Pods,
        Services,
        Endpoints,
        Events,
        ConfigMaps,
        Secrets,
        ServiceAccounts,
        Deployments,
        ReplicaSets,
        EndpointSlices,
        Ingresses,
        IngressClasses,
        PodDisruptionBudgets,
        Jobs,
        Leases,
    ];

    /// (API group, kind, plural, singular, short names)
    const fn names(
        self,
    ) -> (&'static str, &'static str, &'static str, &'static str, &'static [&'static str]) {
        match self {
            Namespaces => ("", "Namespace", "namespaces", "namespace", &["ns"]),
            Nodes => ("", "Node", "nodes", "node", &["no"]),
            Pods => ("", "Pod", "pods", "pod", &["po"]),
            Services => ("", "Service", "services", "service", &["svc"]),
            Endpoints => ("", "Endpoints", "endpoints", "endpoints", &["ep"]),
            Events => ("", "Event", "events", "event", &["ev"]),
            ConfigMaps => ("", "ConfigMap", "configmaps", "configmap", &["cm"]),
            Secrets => ("", "Secret", "secrets", "secret", &[]),
            ServiceAccounts => ("", "ServiceAccount", "serviceaccounts", "serviceaccount", &["sa"]),
            Deployments => ("apps", "Deployment", "deployments", "deployment", &["deploy"]),
            ReplicaSets => ("apps", "ReplicaSet", "replicasets", "replicaset", &["rs"]),
            EndpointSlices => ("discovery.k8s.io", "EndpointSlice", "endpointslices", "endpointslice", &[]),
            Ingresses => ("networking.k8s.io", "Ingress", "ingresses", "ingress", &["ing"]),
            IngressClasses => ("networking.k8s.io", "IngressClass", "ingressclasses", "ingressclass", &[]),
            PodDisruptionBudgets => {
                ("policy", "PodDisruptionBudget", "poddisruptionbudgets", "poddisruptionbudget", &["pdb"])
            }
            Jobs => ("batch", "Job", "jobs", "job", &[]),
            Leases => ("coordination.k8s.io", "Lease", "leases", "lease", &[]),
        }
    }

    /// The API group; empty for the core group. Every version here is `v1`.
    pub const fn group(self) -> &'static str {
        self.names().0
    }

    /// The kind, such as `Pod`.
    pub const fn kind(self) -> &'static str {
        self.names().1
    }

    /// The name in paths, such as `pods`.
    pub const fn plural(self) -> &'static str {
        self.names().2
    }

    /// The singular name, such as `pod`.
    pub const fn singular(self) -> &'static str {
        self.names().3
    }

    /// Short names that kubectl accepts.
    pub const fn short_names(self) -> &'static [&'static str] {
        self.names().4
    }

    /// The groups of resources that kubectl shows together: `kubectl get all`.
    pub const fn categories(self) -> &'static [&'static str] {
        match self {
            Pods | Services | Deployments | ReplicaSets | Jobs => &["all"],
            _ => &[],
        }
    }

    /// The `apiVersion` of its objects.
    pub const fn api_version(self) -> &'static str {
        match self {
            Deployments | ReplicaSets => "apps/v1",
            EndpointSlices => "discovery.k8s.io/v1",
            Ingresses | IngressClasses => "networking.k8s.io/v1",
            PodDisruptionBudgets => "policy/v1",
            Jobs => "batch/v1",
            Leases => "coordination.k8s.io/v1",
            _ => "v1",
        }
    }

    /// The plural with its group, as error messages name it: `deployments.apps`.
    pub fn qualified(self) -> String {
        match self.group() {
            "" => self.plural().to_owned(),
            group => format!("{}.{group}", self.plural()),
        }
    }

    /// Whether its objects live in namespaces.
    pub const fn namespaced(self) -> bool {
        !matches!(self, Namespaces | Nodes | IngressClasses)
    }

    /// Whether it has a `status` subresource, which plain updates leave alone.
    pub const fn has_status(self) -> bool {
        matches!(
            self,
            Namespaces
                | Nodes
                | Pods
                | Services
                | Deployments
                | ReplicaSets
                | Ingresses
                | PodDisruptionBudgets
                | Jobs
        )
    }

    /// Whether it has a `scale` subresource.
    pub const fn has_scale(self) -> bool {
        matches!(self, Deployments | ReplicaSets)
    }

    /// Whether `metadata.generation` counts the changes of its specification.
    pub const fn has_generation(self) -> bool {
        matches!(
            self,
            Pods | Deployments
                | ReplicaSets
                | EndpointSlices
                | Ingresses
                | IngressClasses
                | PodDisruptionBudgets
                | Jobs
        )
    }

    /// The resource at `group` and `plural`.
    pub fn find(group: &str, plural: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|resource| resource.group() == group && resource.plural() == plural)
    }

    /// The resource whose objects carry this `apiVersion` and `kind`.
    pub fn of_kind(api_version: &str, kind: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|resource| resource.api_version() == api_version && resource.kind() == kind)
    }
}
