//! `rolldrop tune`: finds the shortest preStop sleep that loses no requests, and proves it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, FromArgMatches};

use super::compare_args::percent;
use super::exit::Exit;
use super::measure::MeasureArgs;
use super::named_values::one_of;
use super::progress::ProgressDisplay;
use super::run_command::print_calls;
use super::runtime;
use super::say::{text_options, write_out};
use super::signals::SignalListener;
use rolldrop_campaign::tune::{self, Disrupt, EvidenceChoice, Means, TuningEnd, TuningRequest, TuningState};
use rolldrop_drive::run::RunSource;
use rolldrop_judge::prediction::MAX_CUT;
use rolldrop_judge::tuning::TuningOutcome;
use rolldrop_record::Clock;
use rolldrop_scenario::{self as scenario, Workload};

/// Values of `--disrupt`.
const DISRUPTIONS: [(&str, &str, Disrupt); 2] = [
    ("rollingRestart", "Repeatedly perform a rolling restart of the workload", Disrupt::RollingRestart),
    ("deletePod", "Delete pods one at a time", Disrupt::DeletePod),
];

/// Values of `--evidence`.
const EVIDENCE: [(&str, &str, EvidenceChoice); 3] = [
    (
        "auto",
        "One of the others, after asking, if responses in the first run do not name pods",
        EvidenceChoice::Any,
    ),
    ("sidecar", "A recording proxy, which each run adds to the pods", EvidenceChoice::Means(Means::Sidecar)),
    ("conntrack", "The kernel's connection tracking", EvidenceChoice::Means(Means::Conntrack)),
];

/// Arguments of `rolldrop tune`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  rolldrop tune                                 the built-in naive-rollout on the embedded cluster
  rolldrop tune web.yaml --coverage 95%         the manifests of a scenario, on its cluster
  rolldrop tune svc/web -n shop --image IMAGE   your own workload, on your kubeconfig's cluster
  rolldrop tune svc/web -n shop --image IMAGE -f web.yaml
                                                also print the lines to change in its manifest
  rolldrop tune llm.yaml --grace                also the grace period that its streams need
  rolldrop tune --resume rolldrop-tune/web-20260102T150405Z
                                                continue after Ctrl-C, a kill, or --max-rollouts
  rolldrop tune --verify rolldrop-tune/web-20260102T150405Z
                                                prove its choice again, for example every night

It measures the losses of a rolling restart with the current settings, chooses a preStop sleep in whole seconds, and \
proves it with further rolling restarts, which must not lose requests that a sleep would have saved. If responses name \
their pods, it first measures, with a long sleep, how long each consumer keeps routing to terminating pods. Each run \
changes the pod template and changes it back, which takes two more rollouts.

Exit status: 0 the chosen or current sleep is proven; 1 requests are lost that no sleep saves, or --verify shows losses \
that a sleep would have saved; 2 nothing measured; 3 nothing proven, or a run was invalid; 130 interrupted, the \
measurements are kept.")]
pub(super) struct TuneArgs {
    /// Scenario file or built-in scenario whose manifests to tune, or svc/NAME, short for --target svc/NAME [default:
    /// naive-rollout, or none with --target].
    #[arg(value_name = "SCENARIO|svc/NAME")]
    scenario: Option<String>,
    /// Share of future rollouts (or deletions) for which the sleep must suffice, with 95 % confidence.
    #[arg(long, value_name = "PERCENT", value_parser = percent, default_value = "90%", help_heading = "Search and proof")]
    coverage: f64,
    /// Longest sleep to try.
    ///
    /// If responses name their pods, windows are first measured with a sleep of 10 s (5 s on the embedded cluster), and
    /// with longer ones if a window outlasts it.
    #[arg(long, value_name = "D", default_value = "60s", value_parser = super::parse_duration,
        help_heading = "Search and proof")]
    max_sleep: Duration,
    /// Disruption to measure [default: rollingRestart].
    ///
    /// Deleting pods one at a time shows nothing about rollouts.
    #[arg(long, value_parser = one_of(&DISRUPTIONS), value_name = "ACTION", help_heading = "Search and proof")]
    disrupt: Option<Disrupt>,
    /// Source of pod names if responses lack them [default: none; the proof does not need names].
    #[arg(long, value_parser = one_of(&EVIDENCE), value_name = "SOURCE", help_heading = "Search and proof")]
    evidence: Option<EvidenceChoice>,
    /// Also choose and prove the grace period that streams need; the load must send streams.
    ///
    /// A run without disruptions shows how long they last. If the app cuts its streams at SIGTERM, no grace period
    /// helps, and a longer sleep is chosen.
    #[arg(long, help_heading = "Search and proof")]
    grace: bool,
    /// Mean number of streams that a termination may cut.
    #[arg(long, value_name = "N", default_value_t = MAX_CUT, requires = "grace", value_parser = super::cut_limit,
        help_heading = "Search and proof")]
    max_cut: f64,
    /// Also prove that one second less would lose requests; takes one run per sleep tried.
    #[arg(long, help_heading = "Search and proof")]
    tight: bool,
    /// Maximum number of rollouts, over all resumes; a run that would need more ends early, or does not start.
    #[arg(long, value_name = "N", help_heading = "Search and proof")]
    max_rollouts: Option<usize>,
    /// Time that pods get when their node shuts down [default: from the labels of spot nodes].
    #[arg(long, value_name = "D", value_parser = super::parse_duration, help_heading = "Settings to change")]
    shutdown_budget: Option<Duration>,
    /// Container to give the sleep; repeatable [default: those with a port that a Service uses, and mesh proxies].
    #[arg(long = "container", value_name = "NAME", help_heading = "Settings to change")]
    containers: Vec<String>,
    /// Workload to tune, such as deployment/web [default: the only one behind the target].
    #[arg(long, value_name = "KIND/NAME", help_heading = "Settings to change")]
    workload: Option<Workload>,
    /// Prepend the sleep to an existing exec preStop hook (uses the image's shell).
    #[arg(long, help_heading = "Settings to change")]
    prefix_hook: bool,
    /// Allow reducing terminationGracePeriodSeconds.
    #[arg(long, help_heading = "Settings to change")]
    shorten: bool,
    /// Leave the chosen settings in the cluster if they are proven.
    #[arg(long, help_heading = "Settings to change")]
    apply: bool,
    /// Manifest of the workload; print the lines to change in it.
    #[arg(short = 'f', long = "file", value_name = "FILE", help_heading = "Settings to change")]
    file: Option<PathBuf>,
    #[command(flatten)]
    measure: MeasureArgs,
    /// Print the expected rollouts and minutes, and the API calls of one run in order, and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Directory to create [default: rolldrop-tune/WORKLOAD-TIME].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Continue the tuning in this directory after an interruption, a kill, or --max-rollouts.
    ///
    /// Changes of a killed run are undone first. The tuning's arguments are used again; you can add --yes and --quiet,
    /// and give a new --max-rollouts.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["scenario", "targets", "out", "verify"])]
    resume: Option<PathBuf>,
    /// Prove the settings chosen by the tuning in this directory again, in one run with the tuning's arguments.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["scenario", "targets"])]
    verify: Option<PathBuf>,
}

impl TuneArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let (mut args, resumed) = self.resumed()?;
        let verified = args.verify.as_deref().map(tune::verified).transpose()?;
        if let Some((earlier, _)) = &verified {
            args = args.verifying(earlier)?;
        }
        if let Some(service) = args.scenario.take_if(|text| text.starts_with("svc/")) {
            args.measure.targets.insert(0, service.parse().map_err(anyhow::Error::msg)?);
        }
        if !(0.5..=0.999).contains(&args.coverage) {
            bail!("--coverage is {:.1} %, but must be between 50 % and 99.9 %", 100.0 * args.coverage);
        }
        let runtime = runtime::with_threads(2)?;
        let (clock, chosen) = (Clock::start(), verified.map(|(_, chosen)| chosen));
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
            coverage: self.coverage,
            max_sleep: self.max_sleep,
            disrupt: self.disrupt,
            evidence: self.evidence,
            max_cut: self.grace.then_some(self.max_cut),
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
            format!("failed to change to {}, where the tuning was started", state.directory.display())
        })?;
        let mut args = parse(&state.arguments)?;
        args.measure.yes |= self.measure.yes;
        args.measure.quiet |= self.measure.quiet;
        args.max_rollouts = self.max_rollouts.or(args.max_rollouts);
        args.out = Some(dir);
        Ok((args, Some(state)))
    }

    /// Returns the arguments of an earlier tuning, to verify its choice again.
    fn verifying(self, earlier: &TuningState) -> anyhow::Result<Self> {
        let mut args = parse(&earlier.arguments)?;
        args.measure.yes |= self.measure.yes;
        args.measure.quiet |= self.measure.quiet;
        args.max_rollouts = self.max_rollouts;
        // The default action matches what users run.
        args.disrupt = None;
        args.out =
            self.out.map(std::path::absolute).transpose().context("failed to find the current directory")?;
        (args.apply, args.dry_run, args.verify) = (self.apply, self.dry_run, self.verify);
        // Paths in the earlier arguments are relative to the directory where that tuning began, if it still exists.
        if earlier.directory.is_dir() {
            std::env::set_current_dir(&earlier.directory)
                .context("failed to change to the directory where the tuning was started")?;
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
