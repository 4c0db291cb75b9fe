//! Stand-ins for the lab and its process in builds without the embedded cluster.
//!
//! The embedded cluster creates namespaces, mounts and packet filter rules in the Linux kernel, so only Linux builds
//! can have it, and only with the feature `embedded`. In other builds, the code that refers to the cluster uses these
//! stand-ins. Everything else works with a cluster from the kubeconfig.

/// Stand-in for `rolldrop_lab`. A scenario's settings for the embedded cluster are read but ignored.
pub mod lab {
    /// Kubeconfig extension with the location of an embedded cluster on this machine.
    pub const EXTENSION: &str = "rolldrop.dev/cluster";

    /// Parameters of the embedded cluster, which are checked only where it can run.
    #[derive(Clone, Debug, Default, PartialEq, serde::Deserialize)]
    #[serde(from = "serde::de::IgnoredAny")]
    pub struct ClusterConfig {
        /// Number of nodes.
        pub nodes: u32,
        /// Way in which connections reach the cluster's pods.
        pub dataplane: config::DataplaneChoice,
    }

    impl From<serde::de::IgnoredAny> for ClusterConfig {
        fn from(_: serde::de::IgnoredAny) -> Self {
            Self::default()
        }
    }

    /// Stand-in for `rolldrop_lab::config`.
    pub mod config {
        /// Way in which connections reach pods.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub enum DataplaneChoice {
            /// `kernel` if it works, otherwise `userspace`.
            #[default]
            Auto,
            /// Network namespaces and nftables rules.
            Kernel,
            /// Loopback addresses and TCP proxies.
            Userspace,
        }
    }
}

/// Stand-in for `embedded::child`: a process that cannot exist.
pub mod child {
    use std::path::Path;

    use super::lab;
    use crate::embedded::NoCluster;

    /// Reason that there is no process.
    pub type ChildError = NoCluster;

    /// Uninhabited, because no cluster process can exist.
    #[derive(Debug)]
    pub(crate) enum ClusterProcess {}

    /// Uninhabited, because no cluster process can die.
    #[derive(Debug, thiserror::Error)]
    pub enum Died {}

    impl ClusterProcess {
        pub(crate) async fn start(_: &lab::ClusterConfig, _: &Path) -> Result<Self, NoCluster> {
            Err(NoCluster)
        }

        pub(crate) fn kubeconfig(&self) -> &Path {
            match *self {}
        }

        pub(crate) fn notice(&self) -> Option<&str> {
            match *self {}
        }

        pub(crate) async fn died(&self) -> Died {
            match *self {}
        }

        pub(crate) async fn stop(self) {
            match self {}
        }
    }
}
