//! `rolldrop cluster exec`: runs a command inside a running embedded cluster.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};
use kube::config::Kubeconfig;

use rolldrop_lab::EXTENSION;
use rolldrop_lab::kernel::join::{Spot, Whereabouts};

/// Variables that name proxies. Those proxies are outside the cluster's network.
const PROXY_VARIABLES: [&str; 6] =
    ["http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"];

/// Arguments of `rolldrop cluster exec`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  rolldrop cluster exec -- curl http://web.default.svc.cluster.local/
  rolldrop cluster exec --node node-2 -- nft list table ip kube-proxy
  rolldrop cluster exec --pod default/web-0 -- ip address

With the userspace dataplane, there is no network to enter, so the command runs on the host.")]
pub(super) struct ExecArgs {
    /// Kubeconfig of the cluster [default: $KUBECONFIG, or ~/.kube/config].
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context of the cluster [default: the kubeconfig's current context].
    #[arg(long, value_name = "CTX")]
    context: Option<String>,
    /// Run in the network of this node [default: the first node].
    #[arg(long, value_name = "NAME", conflicts_with = "pod")]
    node: Option<String>,
    /// Run in a pod's network, with the files and processes that its last container sees.
    #[arg(long, value_name = "NAMESPACE/NAME")]
    pod: Option<String>,
    /// Command and its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl ExecArgs {
    /// Runs the command and returns its exit status. This process must be single-threaded.
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let whereabouts = whereabouts(self.kubeconfig, self.context)?;
        let spot = match self.pod {
            Some(pod) if pod.contains('/') => Spot::Pod(pod),
            Some(pod) => Spot::Pod(format!("default/{pod}")),
            None => Spot::Node(self.node),
        };
        let Some((program, args)) = self.command.split_first() else { bail!("no command is given") };
        let mut command = Command::new(program);
        command.args(args);
        for name in PROXY_VARIABLES {
            command.env_remove(name);
        }
        let status = whereabouts.run(&spot, command)?;
        // The exit status is the one that a shell would report.
        let code = status.code().or(status.signal().map(|signal| 128 + signal));
        Ok(ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
    }
}

/// Finds where the embedded cluster of a kubeconfig's context runs.
fn whereabouts(path: Option<PathBuf>, context: Option<String>) -> anyhow::Result<Whereabouts> {
    let file = match &path {
        Some(path) => Kubeconfig::read_from(path),
        None => Kubeconfig::read(),
    };
    let file = file.context("failed to read the embedded cluster's kubeconfig; name it with --kubeconfig")?;
    let wanted = context.or(file.current_context).unwrap_or_default();
    let context = file.contexts.iter().find(|context| context.name == wanted);
    let name = context.and_then(|context| Some(&context.context.as_ref()?.cluster));
    let cluster = file.clusters.iter().find(|cluster| Some(&cluster.name) == name);
    let mut extensions = cluster
        .and_then(|cluster| cluster.cluster.as_ref()?.extensions.clone())
        .unwrap_or_default()
        .into_iter();
    let Some(extension) = extensions.find(|extension| extension.name == EXTENSION) else {
        bail!("the kubeconfig's context {wanted:?} does not refer to an embedded cluster");
    };
    serde_json::from_value(extension.extension)
        .context("the kubeconfig comes from another version of rolldrop")
}
