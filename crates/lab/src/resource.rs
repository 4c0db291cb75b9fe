//! The kinds of objects supported by the embedded cluster.

use serde_json::Value;

/// Names and traits of an object kind.
struct ResourceNames {
    api_version: &'static str,
    kind: &'static str,
    plural: &'static str,
    short: &'static [&'static str],
    /// Space-separated traits, as listed at `resources!`.
    traits: &'static str,
}

/// Defines [`Resource`] from one line per kind: `apiVersion`, kind, name in paths, short names and traits. The traits
/// are `cluster` (cluster-scoped), `status` and `scale` (has that subresource), `generation` (counts changes in
/// `metadata.generation`) and `all` (included in `kubectl get all`).
macro_rules! resources {
    ($($resource:ident: $api_version:literal $kind:literal $plural:literal [$($short:literal)?] $traits:literal;)+) => {
        /// An API resource.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Resource {
            $($resource,)+
        }

        impl Resource {
            /// All resources.
            pub const ALL: [Self; [$($kind),+].len()] = [$(Self::$resource),+];

            const fn names(self) -> ResourceNames {
                match self {
                    $(Self::$resource => ResourceNames {
                        api_version: $api_version,
                        kind: $kind,
                        plural: $plural,
                        short: &[$($short)?],
                        traits: $traits,
                    },)+
                }
            }
        }
    };
}

resources! {
    Namespaces: "v1" "Namespace" "namespaces" ["ns"] "cluster status";
    Nodes: "v1" "Node" "nodes" ["no"] "cluster status";
    Pods: "v1" "Pod" "pods" ["po"] "status generation all";
    Services: "v1" "Service" "services" ["svc"] "status all";
    Endpoints: "v1" "Endpoints" "endpoints" ["ep"] "";
    Events: "v1" "Event" "events" ["ev"] "";
    ConfigMaps: "v1" "ConfigMap" "configmaps" ["cm"] "";
    Secrets: "v1" "Secret" "secrets" [] "";
    PersistentVolumeClaims: "v1" "PersistentVolumeClaim" "persistentvolumeclaims" ["pvc"] "status";
    ServiceAccounts: "v1" "ServiceAccount" "serviceaccounts" ["sa"] "";
    Deployments: "apps/v1" "Deployment" "deployments" ["deploy"] "status generation scale all";
    ReplicaSets: "apps/v1" "ReplicaSet" "replicasets" ["rs"] "status generation scale all";
    StatefulSets: "apps/v1" "StatefulSet" "statefulsets" ["sts"] "status generation scale all";
    DaemonSets: "apps/v1" "DaemonSet" "daemonsets" ["ds"] "status generation all";
    EndpointSlices: "discovery.k8s.io/v1" "EndpointSlice" "endpointslices" [] "generation";
    Ingresses: "networking.k8s.io/v1" "Ingress" "ingresses" ["ing"] "status generation";
    IngressClasses: "networking.k8s.io/v1" "IngressClass" "ingressclasses" [] "cluster generation";
    PodDisruptionBudgets: "policy/v1" "PodDisruptionBudget" "poddisruptionbudgets" ["pdb"] "status generation";
    Jobs: "batch/v1" "Job" "jobs" [] "status generation all";
    Leases: "coordination.k8s.io/v1" "Lease" "leases" [] "";
    Roles: "rbac.authorization.k8s.io/v1" "Role" "roles" [] "";
    RoleBindings: "rbac.authorization.k8s.io/v1" "RoleBinding" "rolebindings" [] "";
    ClusterRoles: "rbac.authorization.k8s.io/v1" "ClusterRole" "clusterroles" [] "cluster";
    ClusterRoleBindings: "rbac.authorization.k8s.io/v1" "ClusterRoleBinding" "clusterrolebindings" [] "cluster";
}

impl Resource {
    /// Returns the API group, which is empty for the core group. The version is always `v1`.
    pub fn group(self) -> &'static str {
        self.api_version().split_once('/').map_or("", |(group, _)| group)
    }

    /// Returns the kind, such as `Pod`.
    pub const fn kind(self) -> &'static str {
        self.names().kind
    }

    /// Returns the plural name used in paths, such as `pods`.
    pub const fn plural(self) -> &'static str {
        self.names().plural
    }

    /// Returns the short names that kubectl accepts.
    pub const fn short_names(self) -> &'static [&'static str] {
        self.names().short
    }

    /// Returns the categories, which kubectl accepts in place of resource names, as in `kubectl get all`.
    pub fn categories(self) -> &'static [&'static str] {
        if self.has("all") { &["all"] } else { &[] }
    }

    /// Returns the `apiVersion` of the resource's objects.
    pub const fn api_version(self) -> &'static str {
        self.names().api_version
    }

    /// Returns the plural name with the group, as used in error messages: `deployments.apps`.
    pub fn qualified(self) -> String {
        match self.group() {
            "" => self.plural().to_owned(),
            group => format!("{}.{group}", self.plural()),
        }
    }

    fn has(self, word: &str) -> bool {
        self.names().traits.split(' ').any(|own| own == word)
    }

    /// Returns true if the resource's objects live in namespaces.
    pub fn namespaced(self) -> bool {
        !self.has("cluster")
    }

    /// Returns true if the resource has a `status` subresource, which ordinary updates leave unchanged.
    pub fn has_status(self) -> bool {
        self.has("status")
    }

    /// Returns true if the resource has a `scale` subresource.
    pub fn has_scale(self) -> bool {
        self.has("scale")
    }

    /// Returns true if `metadata.generation` counts changes to the object's spec.
    pub fn has_generation(self) -> bool {
        self.has("generation")
    }

    /// Returns the resource with this group and plural name.
    pub fn find(group: &str, plural: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|resource| resource.group() == group && resource.plural() == plural)
    }

    /// Returns the resource identified by the `apiVersion` and `kind` in an object or an owner reference.
    pub fn of_reference(reference: &Value) -> Option<Self> {
        let is_it = |resource: &Self| {
            reference["apiVersion"] == resource.api_version() && reference["kind"] == resource.kind()
        };
        Self::ALL.into_iter().find(is_it)
    }
}
