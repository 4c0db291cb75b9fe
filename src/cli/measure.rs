//! Arguments shared by all commands that measure on a cluster: where to measure, and with which load.

use std::path::PathBuf;
use std::time::Duration;

use super::admin_token::TokenArgs;
use super::assume_service_proxy::AssumeArgs;
use super::compare_args::percent;
use super::headings::{CLUSTER, ENDS, LOAD, NAMES};
use super::named_values::one_of;
use super::resources::load_resources;
use rolldrop_campaign::ByClass;
use rolldrop_drive::embedded::lab::config::DataplaneChoice;
use rolldrop_drive::plan::GitOps;
use rolldrop_drive::run::{Collecting, RunOptions, RunSource};
use rolldrop_load as load;
use rolldrop_load::remote::row_collector::FetchRateLimit;
use rolldrop_record::load::{LoadFrom, Rate};
use rolldrop_scenario::target_argument::{TargetArg, as_override};

/// Dataplanes of the embedded cluster.
pub(super) const DATAPLANES: [(&str, &str, DataplaneChoice); 3] = [
    ("auto", "`kernel` if it works, else `userspace`", DataplaneChoice::Auto),
    ("kernel", "Network namespaces and nftables rules", DataplaneChoice::Kernel),
    ("userspace", "Loopback addresses and TCP proxies", DataplaneChoice::Userspace),
];

/// Arguments of commands that measure on a cluster.
#[derive(Debug, clap::Args)]
pub(super) struct MeasureArgs {
    /// Target of the load: a port of a Service, or a URL; repeatable.
    ///
    /// Without a scenario, the run uses the cluster in your kubeconfig. A COMMAND ends pods, or the run watches what
    /// others do. Several targets share the rate. svc/NAME@NODE is the Service's NodePort on that node. Put l7: before
    /// a URL if a proxy there balances each request, not each connection.
    #[arg(short, long = "target", value_name = "svc/NAME[:PORT][@NODE]|[l7:]URL")]
    pub(super) targets: Vec<TargetArg>,
    /// Namespace that the run deploys to and measures in.
    #[arg(short, long, value_name = "NS")]
    pub(super) namespace: Option<String>,
    /// Use this context of the kubeconfig instead of the embedded cluster.
    #[arg(long, value_name = "CTX", conflicts_with = "embedded", help_heading = CLUSTER)]
    pub(super) context: Option<String>,
    /// Use this kubeconfig instead of the embedded cluster.
    #[arg(long, value_name = "FILE", conflicts_with = "embedded", help_heading = CLUSTER)]
    pub(super) kubeconfig: Option<PathBuf>,
    /// Use the embedded cluster, even if the scenario names another.
    #[arg(long, help_heading = CLUSTER)]
    pub(super) embedded: bool,
    /// Use the cluster that this pod runs in, with the pod's service account.
    #[arg(long, conflicts_with_all = ["context", "kubeconfig", "embedded"], help_heading = CLUSTER)]
    pub(super) in_cluster: bool,
    /// Network of the embedded cluster (see `rolldrop cluster --help`) [default: from the scenario, or auto].
    #[arg(long, value_parser = one_of(&DATAPLANES), conflicts_with_all = ["context", "kubeconfig", "in_cluster"],
        help_heading = CLUSTER)]
    pub(super) dataplane: Option<DataplaneChoice>,
    /// Image for `rolldrop` in manifests, for added sidecars and for load pods, if the cluster has to pull it.
    #[arg(long, value_name = "IMAGE", help_heading = CLUSTER)]
    pub(super) image: Option<String>,
    /// Send the load from this machine or from pods in the cluster [default: cluster if a target Service cannot be
    /// reached from here, else local].
    ///
    /// The pods belong to a Job. Their rows come back through the API server.
    #[arg(long, value_name = "local|cluster", value_parser = LoadFrom::ALL.iter().map(|from| from.as_str()).collect::<Vec<_>>(), help_heading = LOAD)]
    pub(super) load_from: Option<String>,
    /// Number of load pods in the cluster [default: one per node, if each sends 10 to 10,000 requests per second].
    #[arg(long, value_name = "N", help_heading = LOAD)]
    pub(super) load_workers: Option<usize>,
    /// Resource requests of each load pod; memory is also its limit [default: cpu=500m,memory=256Mi].
    #[arg(long, value_name = "NAME=AMOUNT,...", value_parser = load_resources, help_heading = LOAD)]
    pub(super) load_resources: Option<serde_json::Value>,
    /// Maximum bytes per second, such as 5MB, for fetching rows from all load pods; max or 0 for no limit.
    #[arg(long, value_name = "RATE", default_value_t, help_heading = LOAD)]
    collect_limit: FetchRateLimit,
    /// Address on this machine that load pods connect to if the API server cannot reach them; port 0 picks a free one.
    #[arg(long, value_name = "HOST:PORT", help_heading = LOAD)]
    collect_listen: Option<String>,
    /// Change objects even if Argo CD or Flux manages them.
    ///
    /// Pause them first: otherwise they revert the change during the run.
    #[arg(long, help_heading = CLUSTER)]
    pub(super) change_gitops: bool,
    /// Maximum CPU use of the machine that sends the load [default: 95%].
    ///
    /// If its average over the load is higher, the run is invalid. 100% means no limit.
    #[arg(long, value_name = "PERCENT", value_parser = percent, env = "ROLLDROP_MAX_BUSY", hide_env_values = true,
        help_heading = LOAD)]
    pub(super) max_busy: Option<f64>,
    #[command(flatten)]
    pub(super) assume: AssumeArgs,
    /// Requests per second over all workers, or max for a closed loop.
    #[arg(short, long, value_name = "RATE|max", allow_negative_numbers = true)]
    pub(super) rate: Option<Rate>,
    /// Response header with the pod's name, host name or address, such as x-served-by [default: rolldrop-pod].
    #[arg(long, value_name = "NAME", help_heading = NAMES)]
    pub(super) pod_header: Option<String>,
    /// Regular expression for the pod's name in response bodies without that header, such as hostname:\s*(\S+).
    ///
    /// The name is the first group of the first match in the first 16 KiB, or the whole match if there is no group.
    #[arg(long, value_name = "REGEX", help_heading = NAMES)]
    pub(super) pod_body: Option<load::PodBody>,
    /// Response header to record for failed requests, besides server, via and x-envoy-*; may end in *; repeatable.
    #[arg(long = "keep-header", value_name = "NAME", help_heading = NAMES)]
    pub(super) keep_headers: Vec<String>,
    /// Time without losses to wait for after a termination, before the next one or the end of the load [default: from
    /// the request rate].
    ///
    /// The wait restarts with each lost request.
    #[arg(long, value_name = "D", value_parser = crate::cli::parse_duration, help_heading = ENDS)]
    pub(super) settle: Option<Duration>,
    /// Maximum length of this wait while requests are still lost [default: 5m].
    #[arg(long, value_name = "D", value_parser = crate::cli::parse_duration, help_heading = ENDS)]
    pub(super) settle_max: Option<Duration>,
    /// Replace a value of the scenario, such as load.rate=50; repeatable.
    #[arg(long = "set", value_name = "PATH=VALUE")]
    pub(super) set: Vec<String>,
    /// Do not ask for confirmation on a cluster that the run did not create.
    #[arg(short, long)]
    pub(super) yes: bool,
    /// Do not write to the run's own ConfigMap ten times a second while pods may end.
    ///
    /// These writes date deletions by others to a tenth of a second. Without them, the precision is one second.
    #[arg(long, help_heading = ENDS)]
    pub(super) no_beats: bool,
    #[command(flatten)]
    pub(super) admin_token: TokenArgs,
    /// Show no progress on stderr.
    #[arg(short, long)]
    pub(super) quiet: bool,
}

impl MeasureArgs {
    /// Returns the scenario and the cluster that the user named; without a scenario name, a scenario that has only the
    /// target.
    pub(super) fn source(&self, name: Option<String>) -> RunSource {
        RunSource {
            name,
            target: self.targets.first().map(TargetArg::as_scenario),
            overrides: self.overrides(),
            workload: None,
            kubeconfig: self.kubeconfig.clone(),
            context: self.context.clone(),
            embedded: self.embedded,
            in_cluster: self.in_cluster,
            dataplane: self.dataplane,
        }
    }

    /// Returns the settings of a run that are not in its scenario.
    ///
    /// # Errors
    /// Fails if the admin token cannot be read.
    pub(super) fn options(&self) -> anyhow::Result<RunOptions> {
        Ok(RunOptions {
            namespace: self.namespace.clone(),
            image: self.image.clone(),
            gitops: if self.change_gitops { GitOps::Change } else { GitOps::Refuse },
            yes: self.yes,
            collecting: Collecting { limit: self.collect_limit, listen: self.collect_listen.clone() },
            max_busy: self.max_busy,
            service_proxy: self.assume.service_proxy.clone(),
            beats: !self.no_beats,
            admin_token: self.admin_token.token()?,
            count: ByClass::ended_of,
        })
    }

    /// Converts the options to overrides of the scenario's values.
    fn overrides(&self) -> Vec<String> {
        let mut overrides: Vec<String> = as_override(&self.targets).into_iter().collect();
        overrides.extend(self.set.iter().cloned());
        overrides.extend(self.rate.map(|rate| format!("load.rate={rate}")));
        overrides.extend(self.pod_header.as_ref().map(|name| format!("load.podHeader={}", quoted(name))));
        let pattern = |pattern: &load::PodBody| format!("load.podBody={}", quoted(pattern.as_str()));
        overrides.extend(self.pod_body.as_ref().map(pattern));
        if !self.keep_headers.is_empty() {
            let names: Vec<String> = self.keep_headers.iter().map(|name| quoted(name)).collect();
            overrides.push(format!("load.keepHeaders=[{}]", names.join(", ")));
        }
        overrides.extend(self.settle.map(|d| format!("settle={}ms", d.as_millis())));
        overrides.extend(self.settle_max.map(|d| format!("settleMax={}ms", d.as_millis())));
        overrides.extend(self.load_from.as_ref().map(|from| format!("load.from={from}")));
        overrides.extend(self.load_workers.map(|workers| format!("load.job.workers={workers}")));
        overrides.extend(self.load_resources.as_ref().map(|of| format!("load.job.resources={of}")));
        overrides
    }
}

/// Quotes text as a scenario value.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
