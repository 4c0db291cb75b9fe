//! `rolldrop tune`: the least preStop sleep that loses nothing, proven.
//!
//! Runs follow each other, each in a directory of its own, and each leaves the cluster as it found it: one with the
//! present settings; one in which pods sleep long enough to see every window to its end, if something names the pods;
//! and one with the chosen settings ([`tuner`]). [`rolldrop_judge::tune`] decides what follows from them.

mod evidence;
mod forecast;
mod handover;
mod limits;
mod resume;
mod state;
mod steps;
mod subject;
mod tuner;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};

use super::compare::Percent;
use super::exit::Exit;
use super::measure::MeasureArgs;
use super::progress::Progress;
use super::report::print;
use super::run;
use super::runtime;
use super::signals::Interrupts;
use crate::embedded::lab;
use evidence::EvidenceArg;
use rolldrop_judge::tune::{Choice, Outcome, Tuning};
use rolldrop_record::Clock;
use rolldrop_scenario::{self as scenario, Loaded, Workload};
use state::State;
use steps::{Disrupt, Steps};
use subject::{Elsewhere, Subject};
use tuner::Tuner;

/// The confidence of what a tuning says.
const CONFIDENCE: f64 = 0.95;
const NO_NAMES: &str = "nothing names the pods that new connections went to";

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
    disrupt: Option<Disrupt>,
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
    /// Runs the command.
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let (mut args, resumed) = self.resumed()?;
        let verified = args.verify.as_deref().map(resume::verified).transpose()?;
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
        let exit = runtime.block_on(async {
            let interrupts = Interrupts::listen()?;
            let clock = Clock::start();
            let progress = Progress::new(args.measure.quiet, clock);
            let chosen = verified.map(|verified| verified.chosen);
            let tuned = args.tune(clock, (&interrupts, &progress), resumed, chosen).await;
            progress.done();
            tuned
        })?;
        Ok(exit.into())
    }

    /// Returns the name of the scenario; `None` if only a target is named.
    fn scenario_name(&self) -> Option<&str> {
        let demo = self.measure.targets.is_empty().then_some(scenario::ROLLOUT);
        self.scenario.as_deref().or(demo)
    }

    /// Loads the scenario with these further values, and the workload that `--workload` names.
    fn loaded(&self, further: Vec<String>) -> anyhow::Result<Loaded<lab::Config>> {
        let mut loaded = self.measure.scenario(self.scenario_name(), further)?;
        if let Some(workload) = &self.workload {
            loaded.scenario.sidecar_workloads = vec![workload.clone()];
        }
        Ok(loaded)
    }

    async fn tune(
        &self,
        clock: Clock,
        (interrupts, progress): (&Interrupts, &Progress),
        resumed: Option<State>,
        verified: Option<Choice>,
    ) -> anyhow::Result<Exit> {
        if let (Some(state), Some(dir)) = (&resumed, &self.out) {
            resume::put_back(self, state, dir, (interrupts, progress)).await?;
        }
        let subject = Subject::find(self, interrupts).await?;
        if let Some(controller) = subject.managed_by().filter(|_| !self.measure.change_gitops) {
            bail!(handover::to_a_repository(&subject, controller, self.max_sleep));
        }
        if let Some(why) = subject.why_no_sleep_helps() {
            print(&format!("{why}\n"))?;
            return Ok(Exit::GateFailed);
        }
        if self.apply && subject.is_own() {
            bail!(
                "--apply needs an existing workload; this scenario deletes its own. Use the printed patch."
            );
        }
        if let Some(state) = &resumed {
            resume::check(state, &subject)?;
        }
        let out = self
            .out
            .clone()
            .unwrap_or_else(|| run::default_out("rolldrop-tune", &subject.name(), clock.now()));
        let mut steps =
            Steps { args: self, subject: &subject, out: &out, interrupts, progress, clock, holder: None };
        let takes = forecast::say(&steps, verified.is_some());
        if self.dry_run {
            return steps.dry_run().await.map(|()| Exit::Ok);
        }
        forecast::ask(&steps, takes).await?;
        std::fs::create_dir_all(&out).with_context(|| format!("failed to make {}", out.display()))?;
        let cluster = subject.elsewhere().map(|Elsewhere { title, .. }| title.clone());
        let state = match resumed {
            Some(state) => state,
            None => State::begin(cluster, subject.object().clone())?,
        };
        let tenure = subject.hold(self, interrupts, (&out, clock)).await?;
        steps.holder = tenure.as_ref().map(|tenure| tenure.run().to_owned());
        let tuned = self.carry_out(&steps, state, verified).await;
        if let Some(tenure) = tenure {
            let released = tenure.end(interrupts.abort.clone()).await?;
            released
                .iter()
                .filter(|undone| undone.is_left())
                .for_each(|undone| progress.warn(&undone.to_string()));
        }
        tuned
    }

    /// Makes the runs, and says what follows from them.
    async fn carry_out(
        &self,
        steps: &Steps<'_>,
        state: State,
        verified: Option<Choice>,
    ) -> anyhow::Result<Exit> {
        let tuner = Tuner::new(steps, state);
        let tuning = match verified {
            Some(chosen) => tuner.verify(chosen).await?,
            None => tuner.tune().await?,
        };
        self.hand_over(steps, &tuning).await?;
        Ok(exit(&tuning.outcome))
    }

    /// Writes and says what is found, and applies it if that is asked for.
    async fn hand_over(&self, steps: &Steps<'_>, tuning: &Tuning) -> anyhow::Result<()> {
        let Steps { subject, out, progress, .. } = steps;
        handover::write_report(out, tuning)?;
        let chosen = tuning.chosen.as_ref().filter(|_| tuning.outcome.is_shown());
        let basis = rolldrop_report::tuning_headline(tuning);
        for file in chosen.map(|choice| handover::patches(subject, choice, &basis)).unwrap_or_default() {
            handover::write(out, &file)?;
        }
        print(&rolldrop_report::tuning_text(tuning, &super::report::text_options(None)))?;
        if let (Some(path), Some(choice)) = (&self.file, chosen) {
            print(&handover::lines(path, subject, choice)?)?;
        }
        if let (true, Some(choice)) = (self.apply, chosen) {
            steps.apply(choice.settings).await?;
        }
        let patches = if chosen.is_some() { ", tune.md and the patches" } else { " and tune.md" };
        progress.say(&format!("the runs{patches} are in {}", out.display()));
        Ok(())
    }
}

const fn exit(outcome: &Outcome) -> Exit {
    match outcome {
        Outcome::Proven | Outcome::AlreadyRight => Exit::Ok,
        Outcome::NotForASleep | Outcome::NoLonger { .. } => Exit::GateFailed,
        Outcome::NotShown { .. } => Exit::Inconclusive,
        Outcome::Partial { .. } => Exit::Interrupted,
    }
}
