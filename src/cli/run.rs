//! `rolldrop run`: the main job.
//!
//! Starts or connects to a cluster, deploys the scenario's manifests, sends the
//! load, disrupts, collects, and then makes the report from the run directory,
//! exactly as `rolldrop report` does.

mod abort;
mod admin_secret;
mod command;
mod consent;
mod programs;
mod reach;
mod sending;
mod settings;
mod target;

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::admin_token::{self, TokenArgs};
use super::exit::Exit;
use super::progress::{Planned, Progress};
use super::rate::Rate;
use super::report::{self, Format};
use super::signals::Interrupts;
use super::stages;
use crate::cluster::embedded::{self, config::DataplaneChoice};
use crate::cluster::{Choice, Cluster};
use crate::coordinator::{
    self, Caller, CoordinatorError, GitOps, Limits, Plan, Ready, Session, Settings, Sidecars, UnderLoad, Work,
};
use crate::inject::{self, InjectError};
use crate::load;
use crate::load::process::{Note, Process};
use crate::load::remote::collect::Collected;
use crate::record::run_info::{FORMAT_VERSION, LoadPlan, RunInfo, Source, Tool};
use crate::record::wire::AdminToken;
use crate::record::{Clock, EventKind, RunDir, Stamp};
use crate::scenario::{self, ClusterChoice, Loaded, Place, Scenario, ScenarioError};
use admin_secret::AdminSecret;
use command::UserCommand;
use consent::Naming;
use programs::UserPrograms;
use sending::{Collecting, Resources, Sending};
use settings::{expected_targets, load_settings, redacted};
use target::TargetArg;

/// How long the target may take to answer for the first time, once its pods are ready.
const FIRST_ANSWER_LIMIT: Duration = Duration::from_secs(15);

/// The load before a command is run, where no disruption of the scenario says when.
const STEADY_PART: Duration = Duration::from_secs(3);
/// The load goes on for so long after what a command began has settled: a Service proxy may
/// lag by a second or so.
const AFTERMATH: Duration = Duration::from_secs(3);
/// The plan of a load that ends when a command has: the longest that it can be.
const OPEN_END: Duration = Duration::from_secs(24 * 3600);

/// Arguments of `rolldrop run`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  rolldrop run                                  the built-in naive-exit on the embedded cluster
  rolldrop run prestop-sleep -r 500             another built-in scenario, with another rate
  rolldrop run web.yaml --set load.duration=60s a scenario file, with one value replaced
  rolldrop run naive-exit -- kubectl rollout restart deploy/web
                                                its manifests and load, and pods ended by a command
  rolldrop run --target svc/web -n shop -- kubectl rollout restart deploy/web
                                                a rollout of your own, on your kubeconfig's cluster
  rolldrop run --target https://shop.example/ -n shop -d 10m
                                                what others do to the pods, for ten minutes

Exit status: 0 completed, gate passed or none asked; 1 gate failed; 2 nothing measured;
3 invalid or inconclusive; 130 interrupted, what was recorded is kept.")]
pub(super) struct RunArgs {
    /// A scenario file, or the name of a built-in scenario (see `rolldrop scenarios`) [default:
    /// naive-exit, or none if there is a --target].
    scenario: Option<String>,
    /// Where the load goes: a port of a Service, or a URL. Without a scenario that is all there is,
    /// on the cluster of your kubeconfig: a COMMAND ends pods, or the run watches what others do.
    /// Several are loaded side by side, with a share of the rate each: svc/NAME@NODE is the NodePort
    /// of a node, and l7: before a URL says that a proxy there balances requests.
    #[arg(short, long = "target", value_name = "svc/NAME[:PORT][@NODE]|[l7:]URL")]
    targets: Vec<TargetArg>,
    /// Namespace of everything that the scenario deploys and measures.
    #[arg(short, long, value_name = "NS")]
    namespace: Option<String>,
    /// Use this context of the kubeconfig instead of the embedded cluster.
    #[arg(long, value_name = "CTX", conflicts_with = "embedded")]
    context: Option<String>,
    /// Use this kubeconfig instead of the embedded cluster.
    #[arg(long, value_name = "FILE", conflicts_with = "embedded")]
    kubeconfig: Option<PathBuf>,
    /// Use the embedded cluster, whatever the scenario names.
    #[arg(long)]
    embedded: bool,
    /// Use the cluster that this is a pod of, by its service account.
    #[arg(long, conflicts_with_all = ["context", "kubeconfig", "embedded"])]
    in_cluster: bool,
    /// How connections reach the embedded cluster's pods (see `rolldrop cluster --help`) [default:
    /// as in the scenario, or auto].
    #[arg(long, value_enum, conflicts_with_all = ["context", "kubeconfig", "in_cluster"])]
    dataplane: Option<DataplaneChoice>,
    /// The image to use where the manifests say `rolldrop`, for sidecars that the run adds and for pods
    /// that send the load, on a cluster that has to pull it.
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,
    /// Where the load comes from: this machine, or pods of the cluster, a Job whose rows come back
    /// through the API server [default: cluster for Services of a cluster whose addresses are not
    /// known here, else local].
    #[arg(long, value_name = "local|cluster", value_parser = ["local", "cluster"])]
    load_from: Option<String>,
    /// How many pods send the load, where it comes from the cluster [default: one on each node, with
    /// 10 requests per second at least and 10,000 at most].
    #[arg(long, value_name = "N")]
    load_workers: Option<usize>,
    /// What each of these pods asks for; memory is its limit as well [default: cpu=500m,memory=256Mi].
    #[arg(long, value_name = "NAME=AMOUNT,...")]
    load_resources: Option<Resources>,
    #[command(flatten)]
    collecting: Collecting,
    /// Add the sidecar also to objects that Argo CD or Flux manages. They change it back in mid-run,
    /// unless they are paused.
    #[arg(long)]
    change_gitops: bool,
    /// Requests per second, over all workers, or max: a closed loop.
    #[arg(short, long, value_name = "RATE|max", conflicts_with = "stages", allow_negative_numbers = true)]
    rate: Option<Rate>,
    /// Length of the counted part of the load, such as 30s or 2m.
    #[arg(short, long, value_name = "D", value_parser = super::parse_duration, conflicts_with = "stages")]
    duration: Option<Duration>,
    /// A rate over some time, such as 100:10s, or a linear ramp, such as 100-500:30s, in place of
    /// the scenario's; given several times, one after the other.
    #[arg(long = "stage", value_name = "RATE:D|FROM-TO:D")]
    stages: Vec<load::Stage>,
    /// Replace a value of the scenario, such as load.rate=50; may be repeated.
    #[arg(long = "set", value_name = "PATH=VALUE")]
    set: Vec<String>,
    /// Print, in order, each call of the API server that the run would make, and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Go on without asking, on a cluster that is not the run's own.
    #[arg(short, long)]
    yes: bool,
    /// The run directory to make [default: rolldrop-runs/SCENARIO-TIME].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    admin_token: TokenArgs,
    /// What goes to stdout.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// No progress on stderr.
    #[arg(short, long)]
    quiet: bool,
    /// What ends the pods, in place of the scenario's disruptions. It runs here, with KUBECONFIG
    /// set to the cluster's where that is not your own; the load goes on until what it began has
    /// settled.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl RunArgs {
    /// Runs the command.
    pub(super) fn run(mut self) -> anyhow::Result<ExitCode> {
        let command = UserCommand::find(std::mem::take(&mut self.command))?;
        let mut overrides: Vec<String> = target::as_override(&self.targets).into_iter().collect();
        overrides.extend(self.set.iter().cloned());
        overrides.extend(self.rate.map(|rate| format!("load.rate={rate}")));
        overrides.extend(self.duration.map(|d| format!("load.duration={}ms", d.as_millis())));
        overrides.extend(stage_overrides(&self.stages));
        overrides.extend(self.load_from.as_ref().map(|from| format!("load.from={from}")));
        overrides.extend(self.load_workers.map(|workers| format!("load.job.workers={workers}")));
        overrides.extend(self.load_resources.as_ref().map(Resources::as_override));
        let Loaded { mut scenario, cluster } = self.scenario(&overrides)?;
        let mut admin_token = self.admin_token.token()?;
        let mut admin_secret = None;
        if scenario.inject_sidecar {
            let token = admin_token.get_or_insert_with(admin_token::random).clone();
            let secret = admin_secret.insert(AdminSecret::new(token));
            // By number, as every version that has native sidecars takes it.
            let options = inject::Options {
                image: "rolldrop".into(),
                port: None,
                kubernetes: inject::KubernetesVersion::NATIVE_SIDECARS,
                admin_token: Some(secret.key.clone()),
            };
            match inject::inject_into(&mut scenario.manifests, &options) {
                // Then it goes beside the pods that are there.
                Err(InjectError::NoWorkload) => {}
                injected => drop(injected.context("spec.sidecar.inject")?),
            }
        }
        if let Some(image) = &self.image {
            scenario.manifests.iter_mut().for_each(|manifest| replace_image(manifest, image));
        }
        // What cannot be sent or run is refused before a cluster is started.
        programs::check(&scenario)?;
        load::Plan::new(load_settings(&scenario, &expected_targets(&scenario))?)?;
        let clock = Clock::start();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let intent = Intent {
            command: command.as_ref(),
            image: self.image.as_deref().unwrap_or("rolldrop"),
            gitops: if self.change_gitops { GitOps::Change } else { GitOps::Refuse },
            admin_secret,
            naming: self.naming(cluster.as_ref()),
            yes: self.yes,
            collecting: &self.collecting,
        };
        if self.dry_run {
            let scratch = std::env::temp_dir().join(format!("rolldrop-dry-run-{}", std::process::id()));
            let choice = self.choice(cluster, &scratch);
            let planned = runtime.block_on(async {
                let interrupts = Interrupts::listen()?;
                dry_run(&scenario, choice, self.namespace, &intent, &interrupts).await
            });
            // There is one only if the cluster is embedded.
            let _ = std::fs::remove_dir_all(&scratch);
            for (number, call) in (1..).zip(&planned?.calls) {
                report::print(&format!("{number:>4}  {call}\n"))?;
            }
            return Ok(ExitCode::SUCCESS);
        }
        let out = self.out.clone().unwrap_or_else(|| default_out(&scenario.name, clock.now()));
        let run_dir = RunDir::create(&out).context("failed to make the run directory")?;
        let choice = self.choice(cluster, &out);
        let interrupted = runtime.block_on(async {
            let interrupts = Interrupts::listen()?;
            let progress = Progress::new(self.quiet);
            let run = Run {
                clock,
                run_dir: &run_dir,
                interrupts: &interrupts,
                progress: &progress,
                admin_token,
                intent,
            };
            run.carry_out(&scenario, choice, self.namespace).await
        })?;
        let result = report::make(&run_dir, self.format)?;
        Ok(Exit::of(&result, interrupted).into())
    }

    /// The scenario, or one that has nothing but the target.
    fn scenario(&self, overrides: &[String]) -> anyhow::Result<Loaded<embedded::Config>> {
        let loaded = match (&self.scenario, self.targets.first()) {
            (Some(name), _) => scenario::load(name, overrides)?,
            (None, None) => scenario::load(scenario::DEFAULT, overrides)?,
            (None, Some(first)) => {
                scenario::parse(&first.as_scenario(), "--target", Path::new("."), overrides)?
            }
        };
        Ok(loaded)
    }

    fn naming(&self, asked: Option<&ClusterChoice<embedded::Config>>) -> Naming {
        let on_command_line =
            self.context.is_some() || self.kubeconfig.is_some() || self.embedded || self.in_cluster;
        let is_current = self.scenario.is_none() && !self.targets.is_empty() && asked.is_none();
        if is_current && !on_command_line { Naming::Current } else { Naming::Named }
    }

    fn choice(&self, asked: Option<ClusterChoice<embedded::Config>>, out: &Path) -> Choice {
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
            _ => embedded::Config::default(),
        };
        config.dataplane = self.dataplane.unwrap_or(config.dataplane);
        Choice::Embedded { config: Box::new(config), log_dir: out.join("cluster") }
    }
}

/// What is to be done beside what the scenario says.
struct Intent<'a> {
    /// What ends pods, in place of the scenario's disruptions.
    command: Option<&'a UserCommand>,
    /// The image of a sidecar that goes beside live pods.
    image: &'a str,
    gitops: GitOps,
    /// Where the sidecars that are added have their token from; there is one if any are.
    admin_secret: Option<AdminSecret>,
    naming: Naming,
    /// Whether it is agreed to beforehand.
    yes: bool,
    collecting: &'a Collecting,
}

impl Intent<'_> {
    /// What the run is going to do, in a namespace that is not the system's.
    async fn plan(
        &self,
        scenario: &Scenario,
        caller: &Caller,
        load_workers: Option<usize>,
    ) -> anyhow::Result<Plan> {
        consent::check_namespaces(&caller.namespace, scenario)?;
        let has_command = self.command.is_some();
        let secrets = self.secrets(scenario, &caller.namespace)?;
        let sidecars = self.sidecars(scenario)?;
        let work = Work { scenario, secrets: &secrets, sidecars, has_command, load_workers };
        caller.plan(&work).await.map_err(interruption)
    }

    /// The Secrets with the sidecars' token.
    fn secrets(&self, scenario: &Scenario, namespace: &str) -> Result<Vec<Value>, ScenarioError> {
        let has_live = self.sidecars(scenario)?.is_some();
        let secrets = |secret: &AdminSecret| secret.manifests(namespace, &scenario.manifests, has_live);
        Ok(self.admin_secret.as_ref().map(secrets).unwrap_or_default())
    }

    /// Whose pods get the sidecar, of those that are not the scenario's.
    fn sidecars<'s>(&'s self, scenario: &'s Scenario) -> Result<Option<Sidecars<'s>>, ScenarioError> {
        let is_own = |name: &str| {
            let named = |object: &Value| object["kind"] == "Service" && object["metadata"]["name"] == *name;
            scenario.manifests.iter().any(named)
        };
        let services = scenario.targets.iter().filter_map(|target| match &target.place {
            Place::Service { name, .. } if !is_own(name) => Some(name.as_str()),
            _ => None,
        });
        // Several ways may lead to one.
        let services: Vec<&str> = services.collect::<BTreeSet<_>>().into_iter().collect();
        let has_own = scenario.manifests.iter().any(|object| !object["spec"]["template"].is_null());
        let Some(secret) = &self.admin_secret else { return Ok(None) };
        if services.is_empty() && has_own {
            return Ok(None);
        }
        if services.is_empty() {
            let why =
                "there is no workload among the manifests, and no target is a Service: which pods are meant?";
            return Err(scenario.invalid("spec.sidecar.inject", why));
        }
        Ok(Some(Sidecars { services, image: self.image, admin_token: &secret.key, gitops: self.gitops }))
    }
}

/// What a run would do.
async fn dry_run(
    scenario: &Scenario,
    choice: Choice,
    namespace: Option<String>,
    intent: &Intent<'_>,
    interrupts: &Interrupts,
) -> anyhow::Result<Plan> {
    let cluster = connect(choice, interrupts).await?;
    let caller = caller(&cluster, namespace, interrupts).at_first_contact();
    let plan = async {
        let load_workers = sending::load_workers(scenario, &cluster, &caller).await?;
        intent.plan(scenario, &caller, load_workers).await
    };
    let plan = plan.await;
    drop(caller);
    cluster.shut_down().await;
    plan
}

async fn connect(choice: Choice, interrupts: &Interrupts) -> anyhow::Result<Cluster> {
    match interrupts.stop.run_until_cancelled(Cluster::connect(choice)).await {
        Some(cluster) => cluster.context("failed to get a cluster"),
        None => bail!(Interrupted),
    }
}

fn caller(cluster: &Cluster, namespace: Option<String>, interrupts: &Interrupts) -> Caller {
    Caller {
        client: cluster.client(),
        namespace: namespace.unwrap_or_else(|| cluster.default_namespace().to_owned()),
        limits: Limits::default(),
        // The run can be given up without having been interrupted.
        stop: interrupts.stop.child_token(),
    }
}

/// What carrying a run out takes.
struct Run<'a> {
    clock: Clock,
    run_dir: &'a RunDir,
    interrupts: &'a Interrupts,
    progress: &'a Progress,
    /// What the proxies' admin ports ask for.
    admin_token: Option<AdminToken>,
    intent: Intent<'a>,
}

impl Run<'_> {
    /// Measures, and answers whether it was interrupted. When nothing could be measured, that is an error.
    async fn carry_out(
        &self,
        scenario: &Scenario,
        choice: Choice,
        namespace: Option<String>,
    ) -> anyhow::Result<bool> {
        self.progress.step("starting the cluster");
        let cluster = connect(choice, self.interrupts).await?;
        if let Some(notice) = cluster.notice() {
            self.progress.note(notice);
        }
        let caller = caller(&cluster, namespace, self.interrupts);
        let measured = self.measure(scenario, &cluster, caller).await;
        self.progress.step("shutting down");
        cluster.shut_down().await;
        self.progress.done();
        measured
    }

    async fn measure(&self, scenario: &Scenario, cluster: &Cluster, caller: Caller) -> anyhow::Result<bool> {
        let first = caller.at_first_contact();
        let load_workers = sending::load_workers(scenario, cluster, &first).await?;
        let plan = self.intent.plan(scenario, &first, load_workers).await?;
        plan.warnings.iter().for_each(|warning| self.progress.warn(warning));
        first.check_rights(&plan).await.map_err(interruption)?;
        let Self { progress, interrupts, intent, .. } = self;
        consent::ask(&plan, cluster, &caller.namespace, intent, progress, interrupts).await?;
        let run = run_name(&scenario.name, self.clock.now());
        let halt = caller.stop.clone();
        let mut session = Session::begin(Settings {
            caller,
            run: &run,
            cluster: cluster.origin(),
            run_dir: self.run_dir,
            clock: self.clock,
            admin_token: self.admin_token.clone(),
            gitops: self.intent.gitops,
        })
        .await
        .map_err(interruption)?;
        let loaded = self.load_and_disrupt(scenario, cluster, &mut session, &halt, load_workers).await;
        // Also after an error: what the session created is removed.
        self.progress.step("undoing what was changed");
        let (sources, left) = session.finish(self.interrupts.abort.clone()).await?;
        left.iter().for_each(|undone| self.progress.warn(&undone.to_string()));
        if !left.is_empty() {
            let run = self.run_dir.path().display();
            self.progress.warn(&format!("`rolldrop cleanup {run}` undoes what could not be undone"));
        }
        let mut info = loaded?;
        info.sources.extend(sources);
        info.ended = Some(self.clock.now());
        info.interrupted = self.interrupts.stop.is_cancelled();
        info.complete = !info.interrupted && info.aborted.is_none();
        self.run_dir.write_info(&info)?;
        Ok(info.interrupted)
    }

    async fn load_and_disrupt(
        &self,
        scenario: &Scenario,
        cluster: &Cluster,
        session: &mut Session,
        halt: &CancellationToken,
        load_workers: Option<usize>,
    ) -> anyhow::Result<RunInfo> {
        self.progress.step("deploying");
        // First, so that it goes last: pods of before take what they refer to also while they end.
        let secrets = self.intent.secrets(scenario, session.namespace())?;
        session.deploy(&secrets).await.map_err(interruption)?;
        session.deploy(&scenario.manifests).await.map_err(interruption)?;
        if let Some(sidecars) = self.intent.sidecars(scenario)? {
            self.progress.step("adding the sidecar, and waiting until that is rolled out");
            let notes = session.inject_sidecars(&sidecars).await.map_err(interruption)?;
            notes.iter().for_each(|note| self.progress.say(note));
        }
        self.progress.step("waiting for the pods to be ready");
        let disruptions = if self.intent.command.is_some() { &[][..] } else { &scenario.disruptions };
        let ready = session
            .await_ready(&scenario.targets, &scenario.manifests, disruptions)
            .await
            .map_err(interruption)?;
        let mut settings = load_settings(scenario, &ready.seen_from_here())?;
        if self.intent.command.is_some() {
            settings.pace = settings.pace.held_until(OPEN_END);
        }

        let note = |source: Option<&str>, at, kind| match source {
            Some(source) => session.record_of(source, at, kind),
            None => {
                if let EventKind::Warning { message } = &kind {
                    self.progress.warn(message);
                }
                session.record_at(at, kind);
            }
        };
        // The load comes from where the cluster's Services can be reached, which need not be here.
        let mut sending = match load_workers {
            None => {
                let program = std::env::current_exe().context("failed to find this program")?;
                let mut command = cluster.command(&program).context("failed to find this program")?;
                command.args(["load-worker", "--out"]).arg(self.run_dir.path());
                Sending::Here(Box::new(Process::spawn(command, self.clock, note)?))
            }
            Some(workers) => {
                self.progress.step("waiting for the load workers to be ready");
                let length = load::Plan::new(settings.clone())?.length().unwrap_or_default();
                let (job, here) = ((workers, self.intent.image, length), (self.run_dir, self.clock));
                let (collecting, tell) = (self.intent.collecting, |what: &str| self.progress.say(what));
                let (sending, missing) =
                    sending::in_cluster(scenario, session, job, collecting, here, (note, tell)).await?;
                missing.iter().for_each(|why| self.warn(session, why));
                sending
            }
        };
        let measured =
            self.measure_under_load(scenario, cluster, (session, halt), ready, settings, &mut sending).await;
        sending.end().await;
        measured
    }

    /// Says and records what bears on the result.
    fn warn(&self, session: &Session, message: &str) {
        self.progress.warn(message);
        session.record(EventKind::Warning { message: message.to_owned() });
    }

    async fn measure_under_load<N: Note>(
        &self,
        scenario: &Scenario,
        cluster: &Cluster,
        (session, halt): (&Session, &CancellationToken),
        ready: Ready,
        settings: load::Settings,
        sending: &mut Sending<N>,
    ) -> anyhow::Result<RunInfo> {
        let plan = load::Plan::new(settings.clone())?;
        self.progress.step("waiting for the first answer");
        let prepared = sending.prepare(settings, FIRST_ANSWER_LIMIT, &ready);
        match self.interrupts.stop.run_until_cancelled(prepared).await {
            Some(Ok(warnings)) => warnings.iter().for_each(|warning| self.progress.warn(warning)),
            Some(Err(error)) if cluster.is_entered() || sending.nodes().is_some() => return Err(error.into()),
            Some(Err(error)) => {
                let ways = reach::other_ways(&cluster.client(), &ready.cluster.namespace, scenario).await;
                return Err(anyhow::Error::from(error).context(ways));
            }
            None => bail!(Interrupted),
        }
        let nodes = sending.nodes();
        let mut info = self.info(scenario, &ready, &plan, sending.recorders());
        if let Some(nodes) = &nodes {
            info.targets = ready.seen_from(nodes);
            sending::describe(&mut info.load, info.sources.len(), nodes, &ready);
        }
        // From here on a killed run can be told from its directory.
        self.run_dir.write_info(&info)?;

        if cluster.origin().is_some()
            && self.intent.command.is_none()
            && let Some(too_early) = abort::disrupts_a_ramp(scenario)
        {
            self.warn(session, &too_early);
        }
        let load = info.load.clone();
        let started = sending.start().await?;
        let zero = started + scenario.load.warmup;
        let LoadPlan { rate, duration_s, warmup_s, .. } = load;
        session.record_at(started, EventKind::LoadStarted { rate, duration_s, warmup_s });
        let control = sending.control().clone();
        let disrupting = async {
            if let Some(command) = self.intent.command {
                self.disrupt_by(command, scenario, cluster, (session, halt), zero).await?;
                control.stop();
                return Ok(());
            }
            let load = UnderLoad { zero, end: zero + scenario.load.duration, rate };
            let programs = UserPrograms::new(&scenario.disruptions, self, cluster, (session, halt))?;
            let disrupted = session.disrupt(&scenario.disruptions, load, &programs).await;
            tracing::debug!(?disrupted, "disruptions carried out");
            if scenario.ends_with_its_disruptions() {
                let aftermath = self.clock.now() + AFTERMATH;
                if aftermath < load.end {
                    let _interrupted = self.wait_until(aftermath, halt).await;
                    control.stop();
                }
            }
            Ok(())
        };
        let planned = if self.intent.command.is_none() { Planned::of(&plan) } else { Planned::default() };
        let loading = self.progress.follow(sending.join(), &control, planned, self.interrupts);
        let stages = plan.stages();
        let stages = stages::announce(self.clock, zero, &stages, |at, kind| session.record_at(at, kind));
        let mut aborted = None;
        let giving_up = async {
            if let Some(limit) = &scenario.load.abort {
                let why = abort::too_much_dropped(limit, &control).await;
                self.progress.warn(&format!("aborting: {why}"));
                session.record(EventKind::Warning { message: format!("aborted: {why}") });
                aborted = Some(why);
                // The load first; what is in flight is waited for, as after an interruption.
                control.stop();
                halt.cancel();
            }
            std::future::pending::<Infallible>().await
        };
        let ((), ended) = tokio::try_join!(disrupting, async {
            tokio::select! {
                ended = loading => anyhow::Ok(ended?),
                never = stages => match never {},
                never = giving_up => match never {},
            }
        })?;
        info.aborted = aborted;
        info.sources = sending.recorders();
        if self.intent.command.is_some() || scenario.ends_with_its_disruptions() {
            info.load.duration_s = match rate {
                // A closed loop, or one of which a part was lost: only its end tells.
                rate if rate == 0.0 || !ended.lost.is_empty() => ended.at.ns_since(zero) as f64 / 1e9,
                rate => ended.scheduled as f64 / rate - warmup_s,
            };
        }
        let is_interrupted = self.interrupts.stop.is_cancelled();
        let settling = async {
            if !is_interrupted {
                session.settle().await;
            }
        };
        let step = match (sending.nodes(), is_interrupted) {
            (None, false) => Some("waiting for the last pods to end"),
            (None, true) => None,
            (Some(_), false) => Some("fetching the load workers' rows, and waiting for the last pods to end"),
            (Some(_), true) => Some("fetching the load workers' rows"),
        };
        step.into_iter().for_each(|step| self.progress.step(step));
        let tell = |what: &str| self.progress.say(what);
        let ((), collected) = tokio::join!(settling, sending.collect(&self.interrupts.abort, tell));
        let Collected { rows, lost, counted } = collected?;
        for source in &mut info.sources {
            source.rows = rows.get(&source.name).copied();
        }
        for (of, outcomes) in counted {
            session.record(EventKind::LoadCounted { of, outcomes: outcomes.into() });
        }
        for (worker, why) in lost {
            self.warn(session, &format!("not all rows of load worker {worker} have arrived: {why}"));
        }
        Ok(info)
    }

    /// Has the user's command end pods, after a steady part, and waits until that has settled.
    async fn disrupt_by(
        &self,
        command: &UserCommand,
        scenario: &Scenario,
        cluster: &Cluster,
        (session, halt): (&Session, &CancellationToken),
        zero: Stamp,
    ) -> anyhow::Result<()> {
        let first = scenario.disruptions.iter().map(|disruption| disruption.at).min();
        // Nothing is disrupted while the load rises, nor before a limit to it has something to go by.
        let looks_back = scenario.load.abort.map_or(Duration::ZERO, |abort| abort.over);
        let first = first.unwrap_or(STEADY_PART.max(scenario.load.steady_from() + looks_back));
        if self.wait_until(zero + first, halt).await.is_err() {
            return Ok(());
        }
        let before = session.workloads().await.map_err(interruption)?;
        self.progress.say(&format!("running {}", command.words().join(" ")));
        session.record(EventKind::CommandStarted { command: command.words(), disruption: None });
        let kubeconfig = self.command_kubeconfig(cluster, session)?;
        let status = command.run(kubeconfig.as_deref(), halt, &self.interrupts.abort).await;
        let status = status.context("failed to run the command")?;
        let (code, signal) = coordinator::codes(status);
        session.record(EventKind::CommandEnded { code, signal, disruption: None });
        self.progress.say(&format!("the command ended ({status}); waiting until what it began has settled"));
        match session.await_rollout(&before, None).await {
            // An interruption ends the load by itself.
            Err(CoordinatorError::Interrupted) => return Ok(()),
            settled => settled?,
        }
        let _interrupted = self.wait_until(self.clock.now() + AFTERMATH, halt).await;
        Ok(())
    }

    /// What KUBECONFIG says to programs that the run starts, where that is not the user's own.
    fn command_kubeconfig(&self, cluster: &Cluster, session: &Session) -> anyhow::Result<Option<OsString>> {
        let overlay = self.run_dir.path().join("command-kubeconfig");
        let kubeconfig = cluster.kubeconfig_for(session.namespace(), &overlay);
        kubeconfig.context("failed to say to the command which cluster is meant")
    }

    /// Waits for a point in time.
    async fn wait_until(&self, at: Stamp, halt: &CancellationToken) -> Result<(), Interrupted> {
        let at = self.clock.instant(at).unwrap_or_else(std::time::Instant::now);
        let waited = halt.run_until_cancelled(tokio::time::sleep_until(at.into())).await;
        waited.ok_or(Interrupted)
    }

    fn info(&self, scenario: &Scenario, ready: &Ready, plan: &load::Plan, sources: Vec<Source>) -> RunInfo {
        RunInfo {
            format: FORMAT_VERSION,
            tool: Tool::this(),
            name: scenario.name.clone(),
            scenario: redacted(scenario),
            expect: scenario.expect.clone(),
            cluster: ready.cluster.clone(),
            targets: ready.seen_from_here(),
            load: plan.load_plan(),
            sources,
            started: self.clock.now(),
            ended: None,
            complete: false,
            interrupted: false,
            aborted: None,
        }
    }
}

/// A name that no other run has, as a label's value may be.
fn run_name(scenario: &str, now: Stamp) -> String {
    let time = jiff::Timestamp::from_nanosecond(now.unix_ns().into()).unwrap_or_default();
    let scenario: String = scenario.chars().take(40).collect();
    format!("{scenario}-{}", time.strftime("%Y%m%dT%H%M%S.%3fZ"))
}

/// `--stage` as values of a scenario.
fn stage_overrides(stages: &[load::Stage]) -> Vec<String> {
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

/// The run was interrupted before anything was measured.
#[derive(Debug, thiserror::Error)]
#[error("interrupted before anything was measured")]
pub(super) struct Interrupted;

fn interruption(error: CoordinatorError) -> anyhow::Error {
    match error {
        CoordinatorError::Interrupted => Interrupted.into(),
        other => other.into(),
    }
}

/// Puts `image` where a container's image is `rolldrop`, in any object with a pod template.
fn replace_image(object: &mut Value, image: &str) {
    match object {
        Value::Object(map) => {
            for (key, value) in map {
                if key == "image" && value == "rolldrop" {
                    *value = image.into();
                } else {
                    replace_image(value, image);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| replace_image(item, image)),
        _ => {}
    }
}

/// `rolldrop-runs/NAME-TIME`, with a number behind it if that is taken.
fn default_out(name: &str, now: Stamp) -> PathBuf {
    let time = jiff::Timestamp::from_nanosecond(now.unix_ns().into()).unwrap_or_default();
    let base = PathBuf::from("rolldrop-runs").join(format!("{name}-{}", time.strftime("%Y%m%dT%H%M%SZ")));
    if !base.exists() {
        return base;
    }
    (2..).map(|n| base.with_added_extension(n.to_string())).find(|path| !path.exists()).unwrap_or(base)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_the_tools_own_image_is_replaced() {
        let mut pod =
            json!({"spec": {"containers": [{"image": "rolldrop"}, {"image": "nginx"}], "image": 1}});
        replace_image(&mut pod, "example.org/rolldrop:1");
        let expected = json!({"spec": {
            "containers": [{"image": "example.org/rolldrop:1"}, {"image": "nginx"}], "image": 1
        }});
        assert_eq!(pod, expected);
    }
}
