//! The arguments of `rolldrop run`, and the scenario and the cluster that they name.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::consent::Naming;
use super::sending::{Collecting, Resources};
use super::target::{self, TargetArg};
use crate::cli::admin_token::TokenArgs;
use crate::cli::compare::Percent;
use crate::cli::dataplane::DataplaneArg;
use crate::cli::exit::Inconclusive;
use crate::cli::formats::ResultFormat;
use crate::cli::service_proxy::AssumeArgs;
use crate::cluster::Choice;
use crate::lab::{self, config::DataplaneChoice};
use crate::scenario::{self, ClusterChoice, ExpectFile, Loaded};
use rolldrop_load as load;
use rolldrop_record::Evidence;
use rolldrop_record::load::{LoadFrom, Rate};

/// Arguments of `rolldrop run`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  rolldrop run                                  the built-in naive-exit on the embedded cluster
  rolldrop run prestop-sleep -r 500             another built-in scenario, with another rate
  rolldrop run web.yaml --set load.rate=50      a scenario file, with one value replaced
  rolldrop run naive-exit -- kubectl rollout restart deploy/web
                                                its manifests and load, and pods ended by a command
  rolldrop run --target svc/web -n shop --image IMAGE -- kubectl rollout restart deploy/web
                                                a rollout of your own, on your kubeconfig's cluster
  rolldrop run --target https://shop.example/ -n shop -d 10m
                                                what others do to the pods, for ten minutes

Exit status: 0 completed, gate passed or none asked; 1 gate failed; 2 nothing measured;
3 invalid or inconclusive; 130 interrupted, what was recorded is kept.")]
pub(in crate::cli) struct RunArgs {
    /// A scenario file, or the name of a built-in scenario (see `rolldrop scenarios`) [default:
    /// naive-exit, or none if there is a --target].
    scenario: Option<String>,
    /// Where the load goes: a port of a Service, or a URL. Without a scenario, the run uses the cluster of your
    /// kubeconfig: a COMMAND ends pods, or the run watches what others do. Several targets are loaded at the same
    /// time, each with a share of the rate. svc/NAME@NODE is the NodePort of a node; l7: in front of a URL means that
    /// a proxy there balances requests.
    #[arg(short, long = "target", value_name = "svc/NAME[:PORT][@NODE]|[l7:]URL")]
    targets: Vec<TargetArg>,
    /// Namespace of everything that the scenario deploys and measures.
    #[arg(short, long, value_name = "NS")]
    pub(super) namespace: Option<String>,
    /// Use this context of the kubeconfig instead of the embedded cluster.
    #[arg(long, value_name = "CTX", conflicts_with = "embedded")]
    context: Option<String>,
    /// Use this kubeconfig instead of the embedded cluster.
    #[arg(long, value_name = "FILE", conflicts_with = "embedded")]
    kubeconfig: Option<PathBuf>,
    /// Use the embedded cluster, whatever the scenario names.
    #[arg(long)]
    embedded: bool,
    /// Use the cluster of this pod, with its service account.
    #[arg(long, conflicts_with_all = ["context", "kubeconfig", "embedded"])]
    in_cluster: bool,
    /// How connections reach the embedded cluster's pods (see `rolldrop cluster --help`) [default:
    /// as in the scenario, or auto].
    #[arg(long, value_enum, conflicts_with_all = ["context", "kubeconfig", "in_cluster"])]
    dataplane: Option<DataplaneArg>,
    /// The image to use for `rolldrop` in manifests, for sidecars that the run adds and for pods that send the load,
    /// on a cluster that must pull it.
    #[arg(long, value_name = "IMAGE")]
    pub(super) image: Option<String>,
    /// Where the load comes from: this machine, or pods of the cluster (a Job whose rows come back through the API
    /// server) [default: cluster for Services whose addresses cannot be reached from here, else local].
    #[arg(long, value_name = "local|cluster", value_parser = LoadFrom::ALL.iter().map(|from| from.as_str()).collect::<Vec<_>>())]
    load_from: Option<String>,
    /// How many pods send the load, if it comes from the cluster [default: one on each node, with at least 10
    /// requests per second and at most 10,000].
    #[arg(long, value_name = "N")]
    load_workers: Option<usize>,
    /// The resource requests of each of these pods; memory is its limit as well [default: cpu=500m,memory=256Mi].
    #[arg(long, value_name = "NAME=AMOUNT,...")]
    load_resources: Option<Resources>,
    #[command(flatten)]
    pub(super) collecting: Collecting,
    /// Ask the kernel's connection tracking to which pod each connection was sent, also for unanswered ones. Pods
    /// that send the load then run in their nodes' network, as root with NET_ADMIN; a load from here needs NET_ADMIN.
    #[arg(long, value_name = "conntrack")]
    evidence: Option<Evidence>,
    /// Add the sidecar also to objects that Argo CD or Flux manages. These remove it in mid-run, unless they are
    /// paused.
    #[arg(long)]
    pub(super) change_gitops: bool,
    /// The share of its processors' time that the machine that sends the load may have in use, on average over
    /// the load, before the run is called invalid; 100% for no limit [default: 95%]
    #[arg(long, value_name = "PERCENT", env = "ROLLDROP_MAX_BUSY", hide_env_values = true)]
    pub(super) max_busy: Option<Percent>,
    #[command(flatten)]
    pub(super) assume: AssumeArgs,
    /// Requests per second, over all workers, or max: a closed loop.
    #[arg(short, long, value_name = "RATE|max", conflicts_with = "stages", allow_negative_numbers = true)]
    rate: Option<Rate>,
    /// Length of the counted part of the load, such as 30s or 2m.
    #[arg(short, long, value_name = "D", value_parser = crate::cli::parse_duration, conflicts_with = "stages")]
    duration: Option<Duration>,
    /// A rate over some time, such as 100:10s, or a linear ramp, such as 100-500:30s, instead of the scenario's.
    /// Repeat it for several stages in a row.
    #[arg(long = "stage", value_name = "RATE:D|FROM-TO:D")]
    stages: Vec<load::Stage>,
    /// The response header that names the pod, such as x-served-by, by its name, host name or address
    /// [default: rolldrop-pod].
    #[arg(long, value_name = "NAME")]
    pod_header: Option<String>,
    /// A regular expression that finds the pod's name in the body of an answer, if that header is missing, such as
    /// hostname:\s*(\S+). The name is the first group of the first match in the first 16 KiB, or the whole match
    /// without a group.
    #[arg(long, value_name = "REGEX")]
    pod_body: Option<load::PodBody>,
    /// A response header to keep for requests that are not ok, in addition to server, via and x-envoy-*; a name may
    /// end in *; may be repeated.
    #[arg(long = "keep-header", value_name = "NAME")]
    keep_headers: Vec<String>,
    /// How long nothing may be lost after a termination before the next one, and before the load of a COMMAND ends
    /// [default: computed from the rate of requests]. It restarts with each lost request.
    #[arg(long, value_name = "D", value_parser = crate::cli::parse_duration)]
    settle: Option<Duration>,
    /// When that wait ends though requests are still lost [default: 5m].
    #[arg(long, value_name = "D", value_parser = crate::cli::parse_duration)]
    settle_max: Option<Duration>,
    /// Replace a value of the scenario, such as load.rate=50; may be repeated.
    #[arg(long = "set", value_name = "PATH=VALUE")]
    set: Vec<String>,
    /// A file of expectations, as a scenario has them below `expect`: these limits replace the scenario's, and
    /// --set expect.KEY=VALUE replaces these.
    #[arg(long, value_name = "FILE")]
    expect: Option<PathBuf>,
    /// What an inconclusive gate counts as [default: exit status 3]. `extend` goes on: while the gate is inconclusive,
    /// the run does the scenario's disruptions once more, under the same load, and looks again. The error that each
    /// look may spend is fixed before the start.
    #[arg(long, value_enum, value_name = "fail|pass|extend")]
    pub(super) inconclusive: Option<Inconclusive>,
    /// With --inconclusive extend: the most rounds of disruptions, each followed by a look at the gate [default: 4].
    #[arg(long, value_name = "N", requires = "inconclusive", value_parser = clap::value_parser!(u16).range(2..=100))]
    pub(super) max_looks: Option<u16>,
    /// Check the plan (targets, selectors, pods that would end at once, source ports), print, in order, each call of the
    /// API server that the run would make, and change nothing.
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Do not ask for confirmation on a cluster that is not the run's own.
    #[arg(short, long)]
    pub(super) yes: bool,
    /// Do not write to the run's own ConfigMap ten times a second while pods may end. The versions of these writes
    /// date deletions by others to a tenth of a second; without them, to a second.
    #[arg(long)]
    pub(super) no_beats: bool,
    /// The run directory to create [default: rolldrop-runs/SCENARIO-TIME].
    #[arg(long, value_name = "DIR")]
    pub(super) out: Option<PathBuf>,
    #[command(flatten)]
    pub(super) admin_token: TokenArgs,
    /// What goes to stdout.
    #[arg(long, value_enum, default_value_t = ResultFormat::Text)]
    pub(super) format: ResultFormat,
    /// No progress on stderr.
    #[arg(short, long)]
    pub(super) quiet: bool,
    /// The command that ends the pods, instead of the scenario's disruptions. It runs here, with KUBECONFIG set to
    /// the run's cluster; the load goes on until its changes have settled.
    #[arg(last = true, value_name = "COMMAND")]
    pub(super) command: Vec<OsString>,
}

impl RunArgs {
    /// The scenario, or one that has nothing but the target.
    pub(super) fn scenario(&self) -> anyhow::Result<Loaded<lab::Config>> {
        let overrides = &self.overrides();
        let mut loaded = match (&self.scenario, self.targets.first()) {
            (Some(name), _) => scenario::load(name, overrides)?,
            (None, None) => scenario::load(scenario::DEFAULT, overrides)?,
            (None, Some(first)) => {
                scenario::parse(&first.as_scenario(), "--target", Path::new("."), overrides)?
            }
        };
        if let Some(path) = &self.expect {
            loaded.scenario.expect_also(&ExpectFile::read(path)?, &self.set)?;
        }
        Ok(loaded)
    }

    /// What the options say, as values of the scenario.
    fn overrides(&self) -> Vec<String> {
        let mut overrides: Vec<String> = target::as_override(&self.targets).into_iter().collect();
        overrides.extend(self.set.iter().cloned());
        overrides.extend(self.rate.map(|rate| format!("load.rate={rate}")));
        overrides.extend(self.duration.map(|d| format!("load.duration={}ms", d.as_millis())));
        overrides.extend(stage_overrides(&self.stages));
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
        overrides.extend(self.load_resources.as_ref().map(Resources::as_override));
        overrides.extend(self.evidence.map(|evidence| format!("load.evidence={evidence}")));
        overrides
    }

    /// Whether the user named the cluster, on the command line or in the scenario (`asked`).
    pub(super) fn naming(&self, asked: Option<&ClusterChoice<lab::Config>>) -> Naming {
        let on_command_line =
            self.context.is_some() || self.kubeconfig.is_some() || self.embedded || self.in_cluster;
        let is_current = self.scenario.is_none() && !self.targets.is_empty() && asked.is_none();
        if is_current && !on_command_line { Naming::Current } else { Naming::Named }
    }

    /// The cluster; an embedded one keeps its logs in the run directory.
    pub(super) fn choice(&self, asked: Option<ClusterChoice<lab::Config>>, out: &Path) -> Choice {
        if self.context.is_some() || self.kubeconfig.is_some() {
            return Choice::Kubeconfig { path: self.kubeconfig.clone(), context: self.context.clone() };
        }
        if self.in_cluster {
            return Choice::InCluster;
        }
        let mut config = match asked {
            Some(ClusterChoice::Context(context)) if !self.embedded => {
                return Choice::Kubeconfig { path: None, context: Some(context) };
            }
            Some(ClusterChoice::Embedded(config)) => config,
            // A target alone is on the cluster that is there already.
            None if self.scenario.is_none() && !self.targets.is_empty() && !self.embedded => {
                return Choice::Kubeconfig { path: None, context: None };
            }
            _ => lab::Config::default(),
        };
        config.dataplane = self.dataplane.map_or(config.dataplane, DataplaneChoice::from);
        Choice::Embedded { config: Box::new(config), log_dir: out.join("cluster") }
    }
}

/// A text as a value of a scenario.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// `--stage` as values of a scenario.
pub(super) fn stage_overrides(stages: &[load::Stage]) -> Vec<String> {
    if stages.is_empty() {
        return Vec::new();
    }
    let stage = |stage: &load::Stage| {
        let load::Stage { from, to, duration } = stage;
        let ramp = if from == to { String::new() } else { format!("from: {from}, ramp: linear, ") };
        format!("{{{ramp}rate: {to}, duration: {}ms}}", duration.as_millis())
    };
    let stages: Vec<String> = stages.iter().map(stage).collect();
    // Stages have rates and durations of their own.
    let set = |name: &str| format!("load.{name}=null");
    vec![set("rate"), set("duration"), format!("load.stages=[{}]", stages.join(", "))]
}
