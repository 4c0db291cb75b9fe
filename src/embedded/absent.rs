//! Stand-ins for what a build without the embedded cluster lacks: sentences that say so, and what to do.
//!
//! The embedded cluster makes namespaces, mounts and rules of the Linux kernel, so no build for another system has it;
//! one for Linux lacks it without the feature `embedded`. The parts of the program that use it find the names here.
//! Everything else works with a cluster of the kubeconfig.

/// Explanation of why there is no embedded cluster, and of the alternatives.
#[derive(Debug, thiserror::Error)]
#[error("{}", WHY)]
pub(crate) struct NoCluster;

const WHY: &str = if cfg!(target_os = "linux") {
    "this build of rolldrop has none: measure a cluster of your kubeconfig (run --target svc/web -n shop -- COMMAND, or \
     --context CTX), or build rolldrop with the feature `embedded`, which cargo builds by default"
} else {
    "it needs Linux: measure a cluster of your kubeconfig (run --target svc/web -n shop -- COMMAND, or --context CTX), \
     or run the image of rolldrop in a container (docs/image.md)"
};

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

/// In place of `cli::cluster`.
pub(crate) mod cluster {
    use std::ffi::OsString;
    use std::process::ExitCode;

    use super::NoCluster;

    /// Arguments of `rolldrop cluster`: any.
    #[derive(Debug, clap::Args)]
    pub(crate) struct ClusterArgs {
        #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
        ignored: Vec<OsString>,
    }

    impl ClusterArgs {
        pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
            Err(anyhow::Error::from(NoCluster).context("the embedded cluster did not start"))
        }
    }
}

/// In place of `cli::workload`.
#[cfg(any(test, not(feature = "embedded")))]
pub(crate) mod workload {
    use std::ffi::OsString;
    use std::process::ExitCode;

    use anyhow::bail;

    /// Arguments of `rolldrop workload`: any.
    #[derive(Debug, clap::Args)]
    pub(crate) struct WorkloadArgs {
        #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
        ignored: Vec<OsString>,
    }

    impl WorkloadArgs {
        pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
            bail!(
                "this build of rolldrop has no sample server: run the image of rolldrop (docs/image.md), or build \
                 rolldrop with the feature `embedded`, which cargo builds by default"
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    enum Commands {
        Cluster(cluster::ClusterArgs),
        Workload(workload::WorkloadArgs),
    }

    fn error_of(command: &str) -> String {
        let ran = match Commands::parse_from(command.split(' ')) {
            Commands::Cluster(args) => args.run(),
            Commands::Workload(args) => args.run(),
        };
        format!("{:#}", ran.unwrap_err())
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn absent_parts_name_alternatives() {
        assert_eq!(
            error_of("rolldrop cluster exec --node node-2 -- curl http://web/"),
            "the embedded cluster did not start: this build of rolldrop has none: measure a cluster of your \
             kubeconfig (run --target svc/web -n shop -- COMMAND, or --context CTX), or build rolldrop with the \
             feature `embedded`, which cargo builds by default"
        );
        assert_eq!(
            error_of("rolldrop workload --listen 127.0.0.1:8080 --on-sigterm drain"),
            "this build of rolldrop has no sample server: run the image of rolldrop (docs/image.md), or build rolldrop \
             with the feature `embedded`, which cargo builds by default"
        );
    }
}
