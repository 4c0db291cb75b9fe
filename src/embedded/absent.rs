//! Stand-ins on other systems for the parts that need Linux: a sentence that says so.
//!
//! The embedded cluster makes namespaces, mounts and rules of the Linux kernel. Elsewhere its crate is no dependency;
//! the three parts of the program that name it find the names here. Everything else works with a cluster of the
//! kubeconfig.

/// Explanation of why there is no embedded cluster, and of the alternatives.
#[derive(Debug, thiserror::Error)]
#[error(
    "it needs Linux: measure a cluster of your kubeconfig (run --target svc/web -n shop -- COMMAND, or --context CTX), \
     or run the image of rolldrop in a container (docs/image.md)"
)]
pub(crate) struct NeedsLinux;

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

/// In place of `cluster::child`: a process that cannot be.
pub(crate) mod child {
    use std::path::Path;

    use super::{NeedsLinux, lab};

    pub(crate) use super::NeedsLinux as ChildError;

    /// There is none.
    #[derive(Debug)]
    pub(crate) enum ClusterProcess {}

    /// It never was.
    #[derive(Debug, thiserror::Error)]
    pub(crate) enum Died {}

    impl ClusterProcess {
        pub(crate) async fn start(_: &lab::Config, _: &Path) -> Result<Self, NeedsLinux> {
            Err(NeedsLinux)
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
pub(crate) mod command {
    use std::ffi::OsString;
    use std::process::ExitCode;

    use super::NeedsLinux;

    /// Arguments of `rolldrop cluster`: any.
    #[derive(Debug, clap::Args)]
    pub(crate) struct ClusterArgs {
        #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
        ignored: Vec<OsString>,
    }

    impl ClusterArgs {
        pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
            Err(anyhow::Error::from(NeedsLinux).context("the embedded cluster did not start"))
        }
    }
}
