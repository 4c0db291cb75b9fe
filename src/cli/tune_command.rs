//! `rolldrop tune`: finds the shortest preStop sleep that loses no requests, and proves it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, FromArgMatches};

use super::compare_args::Percent;
use super::exit::Exit;
use super::measure::MeasureArgs;
use super::progress::ProgressDisplay;
use super::run_command::print_calls;
use super::runtime;
use super::say::{text_options, write_out};
use super::signals::SignalListener;
use rolldrop_campaign::tune::{
    self, Disrupt, EvidenceChoice, Means, TuningEnd, TuningRequest, TuningState, Verified,
};
use rolldrop_drive::run::RunSource;
use rolldrop_judge::tuning::TuningOutcome;
use rolldrop_record::Clock;
use rolldrop_scenario::{self as scenario, Workload};

/// `--disrupt`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "camelCase")]
enum DisruptArg {
    /// The workload replaces its pods, again and again.
    RollingRestart,
    /// Pods are deleted, one at a time. That shows nothing for rollouts.
    DeletePod,
}

impl From<DisruptArg> for Disrupt {
    fn from(arg: DisruptArg) -> Self {
        match arg {
            DisruptArg::RollingRestart => Self::RollingRestart,
            DisruptArg::DeletePod => Self::DeletePod,
        }
    }
}

/// `--evidence`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum EvidenceArg {
    /// Any that there is, once the first run has shown no names.
    Auto,
    Sidecar,
    Conntrack,
}

impl From<EvidenceArg> for EvidenceChoice {
    fn from(arg: EvidenceArg) -> Self {
        match arg {
            EvidenceArg::Auto => Self::Any,
            EvidenceArg::Sidecar => Self::Means(Means::Sidecar),
            EvidenceArg::Conntrack => Self::Means(Means::Conntrack),
        }
    }
}

/// Arguments of `rolldrop tune`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  rolldrop tune                                 the built-in naive-rollout on the embedded cluster
  rolldrop tune web.yaml --coverage 95%         the manifests of a scenario, on the cluster that it names
  rolldrop tune svc/web -n shop --image IMAGE   your own workload, on your kubeconfig's cluster
  rolldrop tune svc/web -n shop --image IMAGE -f web.yaml
                                                and the lines to change in its manifest
  rolldrop tune --resume rolldrop-tune/web-20260102T150405Z
                                                continue after Ctrl-C, a kill, or --max-rollouts
  rolldrop tune --verify rolldrop-tune/web-20260102T150405Z
                                                prove the chosen settings again, as a nightly job would

It measures what a rolling restart loses, chooses the least whole second of sleep that the windows ask for, and proves it
with rolling restarts in which nothing may be lost that a sleep saves. Where answers name their pods, it first measures,
with a long sleep, how long each consumer keeps routing to pods that are ending. Each run changes the pods' template and
changes it back: that is two rollouts.

Exit status: 0 proven, or what is set is right; 1 requests are lost that no sleep saves, or --verify shows losses that a
sleep saves; 2 nothing measured; 3 not shown, or a run was invalid; 130 interrupted, with what was measured kept.")]
pub(super) struct TuneArgs {
    /// A scenario file, or the name of a built-in scenario, whose manifests are tuned, or svc/NAME for --target svc/NAME
    /// [default: naive-rollout, or none if there is a --target].
    #[arg(value_name = "SCENARIO|svc/NAME")]
    scenario: Option<String>,
    /// The share of future rollouts (or ends of pods) that the sleep must cover, at 95 % confidence.
    #[arg(long, value_name = "PERCENT", default_value = "90%", help_heading = "Search and proof")]
    coverage: Percent,
    /// The longest sleep to try.
    ///
    /// Where answers name their pods, windows are measured with 10 s first (5 s on the embedded cluster), and with a
    /// longer sleep if a window outlasts that.
    #[arg(long, value_name = "D", default_value = "60s", value_parser = super::parse_duration,
        help_heading = "Search and proof")]
    max_sleep: Duration,
    /// Action that ends pods while they are measured [default: rollingRestart].
    ///
    /// Deletions one at a time show nothing for rollouts.
    #[arg(long, value_enum, value_name = "ACTION", help_heading = "Search and proof")]
    disrupt: Option<DisruptArg>,
    /// Source of the pod behind a connection when answers do not name it [default: none; the proof needs no names].
    ///
    /// It is a sidecar that each run adds to the pods, the kernel's connection tracking, or auto: one of these if the
    /// first run shows no names, after asking.
    #[arg(long, value_enum, value_name = "SOURCE", help_heading = "Search and proof")]
    evidence: Option<EvidenceArg>,
    /// Also prove that one second less would lose requests, with a run for each sleep that is tried.
    #[arg(long, help_heading = "Search and proof")]
    tight: bool,
    /// The most rollouts to make, over all resumes; the next run does not begin, or ends early, if it would need more.
    #[arg(long, value_name = "N", help_heading = "Search and proof")]
    max_rollouts: Option<usize>,
    /// Time that pods get when their node shuts down [default: from the labels of spot nodes].
    #[arg(long, value_name = "D", value_parser = super::parse_duration, help_heading = "Settings to change")]
    shutdown_budget: Option<Duration>,
    /// A container that gets the sleep; may be repeated [default: those with a port that a Service uses, and proxies of
    /// meshes].
    #[arg(long = "container", value_name = "NAME", help_heading = "Settings to change")]
    containers: Vec<String>,
    /// The workload to tune, such as deployment/web [default: the only one behind the target's Service, Ingress or
    /// HTTPRoute].
    #[arg(long, value_name = "KIND/NAME", help_heading = "Settings to change")]
    workload: Option<Workload>,
    /// Prepend the sleep to an existing exec preStop hook (uses the image's shell).
    #[arg(long, help_heading = "Settings to change")]
    prefix_hook: bool,
    /// Allow reducing terminationGracePeriodSeconds.
    #[arg(long, help_heading = "Settings to change")]
    shorten: bool,
    /// Leave the chosen settings in the cluster, if they are proven.
    #[arg(long, help_heading = "Settings to change")]
    apply: bool,
    /// A manifest of the workload: print the lines to change in it.
    #[arg(short = 'f', long = "file", value_name = "FILE", help_heading = "Settings to change")]
    file: Option<PathBuf>,
    #[command(flatten)]
    measure: MeasureArgs,
    /// Print the number of rollouts and minutes it takes and, in order, each call of the API server that one of its runs
    /// would make, and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// The directory to create [default: rolldrop-tune/WORKLOAD-TIME].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Continue the tuning in this directory, which was interrupted, killed, or used up its --max-rollouts.
    ///
    /// It first puts back what a killed run had changed. Its arguments are used again; --yes, --quiet and
    /// --max-rollouts may be given anew.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["scenario", "targets", "out", "verify"])]
    resume: Option<PathBuf>,
    /// Prove the settings that the tuning in this directory has chosen again, with one run of rolling restarts and its
    /// arguments.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["scenario", "targets"])]
    verify: Option<PathBuf>,
}

impl TuneArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let (mut args, resumed) = self.resumed()?;
        let verified = args.verify.as_deref().map(tune::verified).transpose()?;
        if let Some(verified) = &verified {
            args = args.verifying(verified)?;
        }
        if let Some(service) = args.scenario.take_if(|text| text.starts_with("svc/")) {
            args.measure.targets.insert(0, service.parse().map_err(anyhow::Error::msg)?);
        }
        if !(0.5..=0.999).contains(&args.coverage.share()) {
            bail!("--coverage is {:.1} %, must be from 50 % to 99.9 %", 100.0 * args.coverage.share());
        }
        let runtime = runtime::with_threads(2)?;
        let (clock, chosen) = (Clock::start(), verified.map(|verified| verified.chosen));
        let request = args.request()?;
        let end = runtime.block_on(async {
            let signals = SignalListener::begin()?;
            let progress = ProgressDisplay::new(args.measure.quiet, clock);
            let operator = signals.operator(&progress);
            anyhow::Ok(progress.show(request.tune(clock, &operator, resumed, chosen)).await?)
        })?;
        Ok(exit(&end)?.into())
    }

    /// Returns the scenario and the cluster that the user named.
    fn source(&self) -> RunSource {
        let demo = || self.measure.targets.is_empty().then(|| scenario::ROLLOUT.to_owned());
        let source = self.measure.source(self.scenario.clone().or_else(demo));
        RunSource { workload: self.workload.clone(), ..source }
    }

    fn request(&self) -> anyhow::Result<TuningRequest> {
        Ok(TuningRequest {
            source: self.source(),
            options: self.measure.options()?,
            coverage: self.coverage.share(),
            max_sleep: self.max_sleep,
            disrupt: self.disrupt.map(Disrupt::from),
            evidence: self.evidence.map(EvidenceChoice::from),
            tight: self.tight,
            max_rollouts: self.max_rollouts,
            shutdown_budget: self.shutdown_budget,
            containers: self.containers.clone(),
            prefix_hook: self.prefix_hook,
            shorten: self.shorten,
            apply: self.apply,
            file: self.file.clone(),
            dry_run: self.dry_run,
            out: self.out.clone(),
            arguments: std::env::args_os().skip(2).collect(),
            print: write_out,
            text: text_options(None),
        })
    }

    /// Returns the arguments and state of the tuning to resume; without `--resume`, returns these arguments.
    fn resumed(self) -> anyhow::Result<(Self, Option<TuningState>)> {
        let Some(dir) = &self.resume else { return Ok((self, None)) };
        let dir = absolute(dir)?;
        let state = TuningState::read(&dir)?;
        std::env::set_current_dir(&state.directory).with_context(|| {
            format!("failed to go to {}, where the tuning began", state.directory.display())
        })?;
        let mut args = parse(&state.arguments)?;
        args.measure.yes |= self.measure.yes;
        args.measure.quiet |= self.measure.quiet;
        args.max_rollouts = self.max_rollouts.or(args.max_rollouts);
        args.out = Some(dir);
        Ok((args, Some(state)))
    }

    /// Returns the arguments of an earlier tuning, to verify its choice again.
    fn verifying(self, earlier: &Verified) -> anyhow::Result<Self> {
        let mut args = parse(&earlier.arguments)?;
        args.measure.yes |= self.measure.yes;
        args.measure.quiet |= self.measure.quiet;
        args.max_rollouts = self.max_rollouts;
        // The default action matches what users run.
        args.disrupt = None;
        args.out = self.out.map(std::path::absolute).transpose().context("failed to find --out")?;
        (args.apply, args.dry_run, args.verify) = (self.apply, self.dry_run, self.verify);
        // Paths in the earlier arguments are relative to the directory where that tuning began, if it still exists.
        if earlier.directory.is_dir() {
            std::env::set_current_dir(&earlier.directory)
                .context("failed to go to where the tuning began")?;
        }
        Ok(args)
    }
}

fn absolute(dir: &Path) -> anyhow::Result<PathBuf> {
    std::fs::canonicalize(dir).with_context(|| format!("failed to find {}", dir.display()))
}

fn parse(arguments: &[String]) -> anyhow::Result<TuneArgs> {
    let command = TuneArgs::augment_args(clap::Command::new("tune").no_binary_name(true));
    let matches = command.try_get_matches_from(arguments).context("failed to read the tuning's arguments")?;
    TuneArgs::from_arg_matches(&matches).context("failed to read the tuning's arguments")
}

fn exit(end: &TuningEnd) -> anyhow::Result<Exit> {
    Ok(match end {
        TuningEnd::Planned(plan) => {
            print_calls(plan)?;
            Exit::Ok
        }
        TuningEnd::Tuned(TuningOutcome::Proven | TuningOutcome::AlreadyRight) => Exit::Ok,
        TuningEnd::Futile
        | TuningEnd::Tuned(TuningOutcome::NotForASleep | TuningOutcome::NoLonger { .. }) => Exit::GateFailed,
        TuningEnd::Tuned(TuningOutcome::NotShown { .. }) => Exit::Inconclusive,
        TuningEnd::Tuned(TuningOutcome::Partial { .. }) => Exit::Interrupted,
    })
}
