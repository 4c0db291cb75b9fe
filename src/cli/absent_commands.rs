//! Stand-ins for commands that this build lacks: they print an error with the remedy.
//!
//! A build without the feature `embedded` has neither the embedded cluster nor the sample server. A build for a system
//! other than Linux has no embedded cluster.

/// Replaces `cli::cluster_command`.
pub(super) mod cluster_command {
    use std::ffi::OsString;
    use std::process::ExitCode;

    use rolldrop_drive::embedded::NoCluster;

    /// Arguments of `rolldrop cluster`; all are ignored.
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

/// Replaces `cli::workload_command`.
#[cfg(any(test, not(feature = "embedded")))]
pub(super) mod workload_command {
    use std::ffi::OsString;
    use std::process::ExitCode;

    use anyhow::bail;

    /// Arguments of `rolldrop workload`; all are ignored.
    #[derive(Debug, clap::Args)]
    pub(crate) struct WorkloadArgs {
        #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
        ignored: Vec<OsString>,
    }

    impl WorkloadArgs {
        pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
            bail!(
                "this build of rolldrop has no sample server: run the rolldrop image (docs/image.md), or build \
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
        Cluster(cluster_command::ClusterArgs),
        Workload(workload_command::WorkloadArgs),
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
    fn absent_parts_suggest_alternatives() {
        assert_eq!(
            error_of("rolldrop cluster exec --node node-2 -- curl http://web/"),
            "the embedded cluster did not start: this build of rolldrop does not include it: measure a cluster \
             from your kubeconfig (run --target svc/web -n shop -- COMMAND, or --context CTX), or build rolldrop with \
             its default feature `embedded`"
        );
        assert_eq!(
            error_of("rolldrop workload --listen 127.0.0.1:8080 --on-sigterm drain"),
            "this build of rolldrop has no sample server: run the rolldrop image (docs/image.md), or build rolldrop \
             with the feature `embedded`, which cargo builds by default"
        );
    }
}
