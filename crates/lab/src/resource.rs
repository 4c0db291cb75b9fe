//! The kinds of object that the embedded cluster knows.

use serde_json::Value;

/// Names of a kind of object.
struct Names {
    api_version: &'static str,
    kind: &'static str,
    plural: &'static str,
    short: &'static [&'static str],
    /// Words for what it has or is.
    traits: &'static str,
}

/// Defines [`Resource`]: one line for each kind, with its `apiVersion`, its kind, its name in paths, its short names,
/// and words: `cluster` (its objects are in no namespace), `status` and `scale` (it has that subresource), `generation`
/// (its metadata has one), and `all` (`kubectl get all` shows it).
macro_rules! resources {
    ($($resource:ident: $api_version:literal $kind:literal $plural:literal [$($short:literal)?] $traits:literal;)+) => {
        /// A kind of object, by its place in the API.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Resource {
            $($resource,)+
        }

        impl Resource {
            /// All of them.
            pub const ALL: [Self; [$($kind),+].len()] = [$(Self::$resource),+];

            const fn names(self) -> Names {
                match self {
                    $(Self::$resource => Names {
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
    ControllerRevisions: "apps/v1" "ControllerRevision" "controllerrevisions" [] "";
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
    /// Returns the API group; empty for the core group. Every version here is `v1`.
    pub fn group(self) -> &'static str {
        self.api_version().split_once('/').map_or("", |(group, _)| group)
    }

    /// Returns the kind, such as `Pod`.
    pub const fn kind(self) -> &'static str {
        self.names().kind
    }

    /// Returns the name in paths, such as `pods`.
    pub const fn plural(self) -> &'static str {
        self.names().plural
    }

    /// Returns the short names that kubectl accepts.
    pub const fn short_names(self) -> &'static [&'static str] {
        self.names().short
    }

    /// Returns the categories of resources that kubectl shows together, as for `kubectl get all`.
    pub fn categories(self) -> &'static [&'static str] {
        if self.has("all") { &["all"] } else { &[] }
    }

    /// Returns the `apiVersion` of its objects.
    pub const fn api_version(self) -> &'static str {
        self.names().api_version
    }

    /// Returns the plural with its group, as error messages have it: `deployments.apps`.
    pub fn qualified(self) -> String {
        match self.group() {
            "" => self.plural().to_owned(),
            group => format!("{}.{group}", self.plural()),
        }
    }

    fn has(self, word: &str) -> bool {
        self.names().traits.split(' ').any(|own| own == word)
    }

    /// Returns true if its objects live in namespaces.
    pub fn namespaced(self) -> bool {
        !self.has("cluster")
    }

    /// Returns true if it has a `status` subresource, which plain updates leave alone.
    pub fn has_status(self) -> bool {
        self.has("status")
    }

    /// Returns true if it has a `scale` subresource.
    pub fn has_scale(self) -> bool {
        self.has("scale")
    }

    /// Returns true if `metadata.generation` counts the changes of its specification.
    pub fn has_generation(self) -> bool {
        self.has("generation")
    }

    /// Returns the resource at `group` and `plural`.
    pub fn find(group: &str, plural: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|resource| resource.group() == group && resource.plural() == plural)
    }

    /// Returns the resource with the `apiVersion` and `kind` of an object or an owner reference.
    pub fn of_reference(reference: &Value) -> Option<Self> {
        let is_it = |resource: &Self| {
            reference["apiVersion"] == resource.api_version() && reference["kind"] == resource.kind()
        };
        Self::ALL.into_iter().find(is_it)
    }
}
