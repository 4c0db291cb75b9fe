//! Stand-ins for the lab and its process in builds without the embedded cluster.
//!
//! The embedded cluster makes namespaces, mounts and rules of the Linux kernel, so no build for another system has it;
//! one for Linux lacks it without the feature `embedded`. The parts of the program that use it find the names here.
//! Everything else works with a cluster of the kubeconfig.

/// Stand-in for `rolldrop_lab`: the settings of the embedded cluster in a scenario are read and ignored.
pub(crate) mod lab {
    /// The extension of a kubeconfig that says where an embedded cluster is on this machine.
    pub(crate) const EXTENSION: &str = "rolldrop.dev/cluster";

    /// Parameters of the embedded cluster, which are checked only where it can run.
    #[derive(Clone, Debug, Default, PartialEq, serde::Deserialize)]
    #[serde(from = "serde::de::IgnoredAny")]
    pub(crate) struct Config {
        /// Number of nodes.
        pub(crate) nodes: u32,
        /// Way in which its pods are reached.
        pub(crate) dataplane: config::DataplaneChoice,
    }

    impl From<serde::de::IgnoredAny> for Config {
        fn from(_: serde::de::IgnoredAny) -> Self {
            Self::default()
        }
    }

    pub(crate) mod config {
        /// Way in which connections reach pods.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub(crate) enum DataplaneChoice {
            #[default]
            Auto,
            Kernel,
            Userspace,
        }
    }
}

/// In place of `embedded::child`: a process that cannot be.
pub(crate) mod child {
    use std::path::Path;

    use super::{NoCluster, lab};

    pub(crate) type ChildError = NoCluster;

    /// There is none.
    #[derive(Debug)]
    pub(crate) enum ClusterProcess {}

    /// It never was.
    #[derive(Debug, thiserror::Error)]
    pub(crate) enum Died {}

    impl ClusterProcess {
        pub(crate) async fn start(_: &lab::Config, _: &Path) -> Result<Self, NoCluster> {
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
