//! `rolldrop watch`: shows pod terminations as they happen, and ranks the workloads, worst first.

mod watch_report_command;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};

use super::admin_token::TokenArgs;
use super::exit::Exit;
use super::formats::LoadFormat;
use super::headings::CLUSTER;
use super::parse_duration;
use super::say::{print, say, write_out};
use super::signals::SignalListener;
use rolldrop_drive::cluster::{ChosenCluster, Cluster};
use rolldrop_drive::collect::SidecarSource;
use rolldrop_drive::observe::{BeatObject, WatchScope};
use rolldrop_report::{WatchOutput, watch_ranking};
use rolldrop_watch::{LogArg, MetricsPort, RankedWatch, WatchSettings, WatchViewer};

/// Arguments of `rolldrop watch`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  rolldrop watch -n shop                        the pods of a namespace, until Ctrl-C
  rolldrop watch -A --for 24h --format json     all pods, for a day, one JSON object per line
  rolldrop watch -n shop --context staging      another cluster of the kubeconfig
  rolldrop watch -n shop --logs edge/deployment/envoy=envoy-json
                                                also tell which requests a gateway lost
  rolldrop watch -n shop --sidecars shop/deployment/web --admin-token-file token
                                                also tell what the pods' own sidecars saw (rolldrop inject)
  rolldrop watch -n shop --beats                date deletions to about 0.1 s, by writing to a ConfigMap
  rolldrop watch -A --out history               keep 30 days of terminations, at most 1 GiB
  rolldrop watch report history --since 7d      rank the workloads of a week

It sends no load, and changes nothing; --events adds Events, --beats a ConfigMap. It prints a line for each pod that was \
terminated: who ended it, how much of its grace period it used, and whether SIGKILL ended it. At the end, it ranks the \
workloads, worst first.

Exit status: 0 watched until Ctrl-C, SIGTERM or --for; 2 the watch could not start, a log is not in its format, or \
--out could not be written.")]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct WatchArgs {
    #[command(subcommand)]
    command: Option<WatchCommand>,
    /// Namespace to watch [default: the context's].
    #[arg(short, long, value_name = "NS")]
    namespace: Option<String>,
    /// Watch all namespaces.
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,
    /// Time to watch, such as 30m or 24h [default: until Ctrl-C or SIGTERM].
    #[arg(long = "for", value_name = "D", value_parser = parse_duration)]
    duration: Option<Duration>,
    /// Format of the output on stdout.
    #[arg(long, value_enum, default_value_t = LoadFormat::Text)]
    format: LoadFormat,
    /// Gateway access log: NS/KIND/NAME=FORMAT (with NAME:CONTAINER if it is not the first container) or
    /// FILE=FORMAT; repeatable.
    #[arg(long, value_name = "LOG")]
    logs: Vec<LogArg>,
    /// Workload whose pods have rolldrop's sidecar: NS/KIND/NAME; repeatable. The sidecars' records of requests count
    /// where no log names the pod.
    #[arg(long, value_name = "WORKLOAD")]
    sidecars: Vec<SidecarSource>,
    #[command(flatten)]
    admin_token: TokenArgs,
    /// Lines per second above which a gateway pod's log is no longer read.
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..))]
    max_log_rate: u32,
    /// Write Events about workloads that lose requests, whose pods are killed, or whose preStop hooks fail.
    #[arg(long)]
    events: bool,
    /// Date deletions to about 0.1 s, by writing to a ConfigMap ten times a second while pods end.
    #[arg(long, value_name = "NAME", num_args = 0..=1, require_equals = true, default_missing_value = "rolldrop-watch-beats")]
    beats: Option<String>,
    /// Directory to record the terminations in, for `rolldrop watch report`. One directory per cluster.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Address and port to serve Prometheus metrics on, at /metrics: `:9464` for all addresses; a port alone means
    /// localhost.
    #[arg(long, value_name = "ADDR", value_parser = port_or_address)]
    metrics: Option<SocketAddr>,
    /// Context in the kubeconfig [default: the current one].
    #[arg(long, value_name = "CTX", help_heading = CLUSTER)]
    context: Option<String>,
    /// Kubeconfig of the cluster [default: KUBECONFIG, or ~/.kube/config].
    #[arg(long, value_name = "FILE", help_heading = CLUSTER)]
    kubeconfig: Option<PathBuf>,
    /// Use the cluster that this pod runs in, with the pod's service account.
    #[arg(long, conflicts_with_all = ["context", "kubeconfig"], help_heading = CLUSTER)]
    in_cluster: bool,
}

#[derive(Debug, clap::Subcommand)]
enum WatchCommand {
    /// Report on the terminations that `rolldrop watch --out` has recorded, worst workloads first.
    Report(watch_report_command::WatchReportArgs),
}

impl WatchArgs {
    /// Runs the command.
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        if let Some(WatchCommand::Report(args)) = self.command {
            return args.run();
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(self.watch())?;
        Ok(Exit::Ok.into())
    }

    async fn watch(self) -> anyhow::Result<()> {
        let choice = match self.in_cluster {
            true => ChosenCluster::InCluster,
            false => ChosenCluster::Kubeconfig { path: self.kubeconfig, context: self.context },
        };
        let admin_token = self.admin_token.token()?;
        let signals = SignalListener::begin().context("failed to listen for signals")?;
        let metrics = match self.metrics {
            Some(address) => Some(MetricsPort::open(address).await?),
            None => None,
        };
        let cluster = Cluster::connect(choice).await?;
        let namespace = self.namespace.unwrap_or_else(|| cluster.default_namespace().to_owned());
        let own = if self.in_cluster { cluster.default_namespace() } else { &namespace };
        let beats = self.beats.map(|name| BeatObject { namespace: own.to_owned(), name });
        let scope = match self.all_namespaces {
            true => WatchScope::Cluster,
            false => WatchScope::Namespace(namespace),
        };
        if let WatchScope::Namespace(watched) = &scope
            && let Some(other) = self.sidecars.iter().find(|of| of.namespace() != watched)
        {
            bail!("--sidecars {other} is not in the watched namespace, {watched}: use -A or -n");
        }
        let settings = WatchSettings {
            scope,
            duration: self.duration,
            logs: self.logs,
            max_log_rate: self.max_log_rate,
            sidecars: self.sidecars,
            admin_token,
            beats,
            writes_events: self.events,
            history_dir: self.out,
            metrics,
        };
        let viewer = StdoutViewer { format: self.format };
        let ranked =
            rolldrop_watch::watch(&cluster, settings, &signals.interrupts.stop, Arc::new(viewer)).await?;
        ranked.map_or(Ok(()), |ranked| viewer.show_ranking(ranked))
    }
}

/// Output of a watch, in one format.
#[derive(Clone, Copy, Debug)]
struct StdoutViewer {
    format: LoadFormat,
}

impl StdoutViewer {
    /// Shows the ranking at the end of the watch.
    fn show_ranking(self, RankedWatch { summary, workloads }: RankedWatch) -> anyhow::Result<()> {
        match self.format {
            LoadFormat::Text => print(&watch_ranking(&summary, &workloads)),
            LoadFormat::Json => {
                for workload in workloads {
                    print(&WatchOutput::Workload(Box::new(workload)).json())?;
                }
                print(&WatchOutput::Summary(summary).json())
            }
        }
    }
}

impl WatchViewer for StdoutViewer {
    fn say(&self, message: &str) {
        say(message);
    }

    fn show(&self, line: &WatchOutput) -> io::Result<()> {
        match self.format {
            LoadFormat::Json => write_out(&line.json()),
            LoadFormat::Text => line.text().map_or(Ok(()), |text| write_out(&text)),
        }
    }
}

/// Parses an address with a port, a port of all addresses after a colon, or a port on localhost.
fn port_or_address(text: &str) -> Result<SocketAddr, String> {
    let (port, ip) = match text.strip_prefix(':') {
        Some(port) => (port, Ipv6Addr::UNSPECIFIED.into()),
        None => (text, IpAddr::from(Ipv4Addr::LOCALHOST)),
    };
    let of_port = port.parse().map(|port: u16| SocketAddr::from((ip, port)));
    of_port.or_else(|_| super::proxy_command::address(text)).map_err(|error| {
        format!("{error}: use a port, such as 9464 or :9464, or an address with a port, such as 0.0.0.0:9464")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_port_may_be_at_all_addresses() {
        for (text, address) in [
            ("9464", Some("127.0.0.1:9464")),
            (":9464", Some("[::]:9464")),
            ("0.0.0.0:9464", Some("0.0.0.0:9464")),
            ("[::1]:9464", Some("[::1]:9464")),
            ("::1:9464", Some("[::1]:9464")),
            (":", None),
            (":all", None),
        ] {
            assert_eq!(port_or_address(text).ok(), address.map(|address| address.parse().unwrap()), "{text}");
        }
    }
}
