//! `rolldrop tune`: the least preStop sleep that loses nothing, proven.
//!
//! Runs follow each other, each in a directory of its own, and each leaves the cluster as it found it: one as things are,
//! one in which pods sleep so long that every window is seen to its end, and one with the chosen settings. What follows
//! from them is decided in [`rolldrop_analysis::tune`].

mod evidence;
mod forecast;
mod handover;
mod limits;
mod steps;
mod subject;

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
use super::signals::Interrupts;
use crate::scenario;
use evidence::{EvidenceArg, Means};
use rolldrop_analysis::figures::counted;
use rolldrop_analysis::tune::{
    Choice, MOST_PROOFS, Names, Next, Outcome, Price, Proof, SCHEMA_VERSION, Search, Step, Tuning, Unknown,
    Wish, choose, for_a_sleep, lost_at_starts, lost_to, names, proof, stopping, with_starts,
};
use rolldrop_analysis::{RunResult, model::Verdict};
use rolldrop_record::run_info::Tool;
use rolldrop_record::{Cause, Clock};
use steps::{Disrupt, StepPlan, Steps};
use subject::Subject;

/// The confidence of what a tuning says.
const CONFIDENCE: f64 = 0.95;
const OUTLASTED: &str =
    "a window lasted as long as the longest sleep, and may last longer: use a longer --max-sleep";
const NO_NAMES: &str = "nothing names the pods that new connections went to";
const NAMES: &str =
    "use --evidence auto, sidecar or conntrack, or name a header that names the pod (--pod-header)";

/// Arguments of `rolldrop tune`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  rolldrop tune                                 the built-in naive-rollout on the embedded cluster
  rolldrop tune web.yaml --coverage 95%         the manifests of a scenario, on the cluster that it names
  rolldrop tune svc/web -n shop --image IMAGE   your own workload, on your kubeconfig's cluster
  rolldrop tune svc/web -n shop --image IMAGE -f web.yaml
                                                and the lines to change in its manifest

It measures what a rolling restart loses, then, with a long sleep, how long each consumer keeps routing to pods that
are ending, chooses the least whole second that covers this, and proves it with as many terminations. Each of these
runs changes the pods' template and changes it back: that is two rollouts.

Exit status: 0 proven, or what is set is right; 1 requests are lost that no sleep saves; 2 nothing measured;
3 not shown, or a run was invalid; 130 interrupted.")]
pub(super) struct TuneArgs {
    /// A scenario file, or the name of a built-in scenario, whose manifests are tuned, or svc/NAME for --target svc/NAME
    /// [default: naive-rollout, or none if there is a --target].
    #[arg(value_name = "SCENARIO|svc/NAME")]
    scenario: Option<String>,
    #[command(flatten)]
    measure: MeasureArgs,
    /// The share of future terminations that the sleep must cover, at 95 % confidence.
    #[arg(long, value_name = "PERCENT", default_value = "90%")]
    coverage: Percent,
    /// How long pods may sleep while their windows are measured; no longer window can be seen. They sleep 10 s at first
    /// (on the embedded cluster 5 s), and longer if a window outlasts that.
    #[arg(long, value_name = "D", default_value = "60s", value_parser = super::parse_duration)]
    max_sleep: Duration,
    /// How pods are ended while they are measured [default: rollingRestart; where nothing names the pods that answer,
    /// deletePod, one at a time].
    #[arg(long, value_enum, value_name = "ACTION")]
    disrupt: Option<Disrupt>,
    /// What names the pods of new connections where answers do not: the sidecar, which is added to the pods for each run;
    /// conntrack, the kernel's connection tracking, as of `rolldrop run`; or auto: what there is, if the first run shows
    /// no names, which is said, and asked about.
    #[arg(long, value_enum, value_name = "WHAT")]
    evidence: Option<EvidenceArg>,
    /// Show also that one second less would lose requests, with a proof of its own for each sleep that is tried.
    #[arg(long)]
    tight: bool,
    /// How long pods have when their node shuts down [default: as the labels of the nodes show, for spot nodes].
    #[arg(long, value_name = "D", value_parser = super::parse_duration)]
    shutdown_budget: Option<Duration>,
    /// The container that sleeps; may be repeated [default: those with a port that a Service uses, and proxies of
    /// meshes].
    #[arg(long = "container", value_name = "NAME")]
    containers: Vec<String>,
    /// A program that a preStop hook runs already may get a sleep before it, by a shell of its image.
    #[arg(long)]
    prefix_hook: bool,
    /// The grace period may become shorter than it is, if pods need less.
    #[arg(long)]
    shorten: bool,
    /// Leave the chosen settings in the cluster, if they are proven.
    #[arg(long)]
    apply: bool,
    /// A manifest of the workload: prints the lines to change in it.
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    file: Option<PathBuf>,
    /// Say how many rollouts and minutes it takes, print, in order, each call of the API server that one of its runs would
    /// make, and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// The directory to create [default: rolldrop-tune/WORKLOAD-TIME].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

impl TuneArgs {
    /// Runs the command.
    pub(super) fn run(mut self) -> anyhow::Result<ExitCode> {
        if let Some(service) = self.scenario.take_if(|text| text.starts_with("svc/")) {
            self.measure.targets.insert(0, service.parse().map_err(anyhow::Error::msg)?);
        }
        if !(0.5..=0.999).contains(&self.coverage.share()) {
            bail!("--coverage is {:.1} %, must be from 50 % to 99.9 %", 100.0 * self.coverage.share());
        }
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let exit = runtime.block_on(async {
            let interrupts = Interrupts::listen()?;
            let clock = Clock::start();
            let progress = Progress::new(self.measure.quiet, clock);
            let tuned = self.tune(clock, &interrupts, &progress).await;
            progress.done();
            tuned
        })?;
        Ok(exit.into())
    }

    /// The scenario; `None` if only a target is named.
    fn scenario_name(&self) -> Option<&str> {
        let demo = self.measure.targets.is_empty().then_some(scenario::ROLLOUT);
        self.scenario.as_deref().or(demo)
    }

    async fn tune(&self, clock: Clock, interrupts: &Interrupts, progress: &Progress) -> anyhow::Result<Exit> {
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
                "--apply is for a workload that exists, and the scenario's end with each run: see the patch instead"
            );
        }
        let out = self
            .out
            .clone()
            .unwrap_or_else(|| run::default_out("rolldrop-tune", &subject.name(), clock.now()));
        let mut steps =
            Steps { args: self, subject: &subject, out: &out, interrupts, progress, clock, holder: None };
        let takes = forecast::say(&steps);
        if self.dry_run {
            return steps.dry_run().await.map(|()| Exit::Ok);
        }
        forecast::ask(&steps, takes).await?;
        std::fs::create_dir_all(&out).with_context(|| format!("failed to make {}", out.display()))?;
        let tenure = subject.hold(self, interrupts, (&out, clock)).await?;
        steps.holder = tenure.as_ref().map(|tenure| tenure.run().to_owned());
        let tuned = self.carry_out(&steps).await;
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
    async fn carry_out(&self, steps: &Steps<'_>) -> anyhow::Result<Exit> {
        let Steps { subject, out, progress, .. } = steps;
        let tuning = Tuner { steps, means: Means::of(self.evidence), done: Vec::new() }.tune().await?;
        for file in rolldrop_report::tuning(&tuning)? {
            handover::write(out, &file)?;
        }
        let chosen = tuning.chosen.as_ref().filter(|_| tuning.outcome.is_shown());
        for file in chosen.map(|choice| handover::patches(subject, choice)).unwrap_or_default() {
            handover::write(out, &file)?;
        }
        print(&rolldrop_report::tuning_text(&tuning, &super::report::text_options(None)))?;
        if let (Some(path), Some(choice)) = (&self.file, chosen) {
            print(&handover::lines(path, subject, choice)?)?;
        }
        if let (true, Some(choice)) = (self.apply, chosen) {
            steps.apply(choice.settings).await?;
        }
        progress.say(&format!("the runs, tune.md and the patches are in {}", out.display()));
        Ok(exit(&tuning.outcome))
    }
}

const fn exit(outcome: &Outcome) -> Exit {
    match outcome {
        Outcome::Proven | Outcome::AlreadyRight => Exit::Ok,
        Outcome::NotForASleep => Exit::GateFailed,
        Outcome::NotShown { .. } => Exit::Inconclusive,
    }
}

/// The runs that are done so far.
struct Tuner<'a> {
    steps: &'a Steps<'a>,
    /// What names the pods, if answers do not.
    means: Option<Means>,
    done: Vec<Step>,
}

impl Tuner<'_> {
    async fn step(&mut self, mut plan: StepPlan) -> anyhow::Result<RunResult> {
        let name = format!("{}-{}", self.done.len() + 1, plan.purpose.name());
        plan.means = self.means;
        let result = self.steps.run(plan, &name).await?;
        self.done.push(Step::of(plan.purpose, &name, plan.settings, &result, plan.names));
        Ok(result)
    }

    async fn tune(mut self) -> anyhow::Result<Tuning> {
        let Steps { subject, args, progress, .. } = self.steps;
        let before = self.step(self.steps.before()).await?;
        // What pods that start need is chosen with the sleep.
        let set = with_starts(&before, subject.settings(), subject.rollout());
        let has_starts = set != subject.settings();
        if let Some(why) = untrusted(&before) {
            return Ok(self.concluded(&before, None, Outcome::NotShown { why }));
        }
        let lost = lost_to(&before);
        if !lost.is_empty() && !has_starts && lost.iter().all(|lost| !may_help(&before, lost.cause)) {
            return Ok(self.concluded(&before, None, Outcome::NotForASleep));
        }
        if let Some(why) = subject.too_few_connections(&before) {
            return Ok(self.concluded(&before, None, Outcome::NotShown { why: vec![why] }));
        }
        let mut wish = Wish { before: set, may_shorten: args.shorten };
        let names = match names(&before) {
            Names::Unknown if args.evidence == Some(EvidenceArg::Auto) => {
                self.means = Some(self.steps.means().await?);
                Names::Known
            }
            names => names,
        };
        let (search, choice) = match (names, args.disrupt) {
            (Names::Known, disrupt) => match self.choice(disrupt.unwrap_or_default(), &mut wish).await? {
                Ok(choice) => (Search::from_windows(choice.settings.pre_stop_seconds, args.tight), choice),
                Err(why) => return Ok(self.concluded(&before, None, Outcome::NotShown { why })),
            },
            (Names::Unknown, Some(Disrupt::RollingRestart)) => {
                let why = vec![format!(
                    "{NO_NAMES}, and pods that a rollout ends together cannot be told apart: {NAMES}, or \
                     use --disrupt deletePod"
                )];
                return Ok(self.concluded(&before, None, Outcome::NotShown { why }));
            }
            (Names::Unknown, _) => {
                let has_lost = for_a_sleep(&before) > 0;
                let most = args.max_sleep.as_secs();
                progress.note(&format!(
                    "{NO_NAMES}: the sleep is searched by lost requests, with pods that are deleted one at a time, up to \
                     {MOST_PROOFS} times as many as one proof needs. To see the windows themselves, {NAMES}"
                ));
                let choice =
                    Choice { settings: set, consumers: Vec::new(), stopping_seconds: stopping(&before) };
                (Search::by_losses((set.pre_stop_seconds, has_lost), most), choice)
            }
        };
        let (choice, outcome) = self.proven(search, choice, wish, names).await?;
        Ok(self.concluded(&before, Some(choice), outcome))
    }

    /// Proves sleeps until the search ends.
    async fn proven(
        &mut self,
        mut search: Search,
        mut choice: Choice,
        wish: Wish,
        names: Names,
    ) -> anyhow::Result<(Choice, Outcome)> {
        let set = wish.before;
        let settings =
            |sleep_s: u64, choice: &Choice| match sleep_s == set.pre_stop_seconds && !wish.may_shorten {
                true => set,
                false => wish.settings(sleep_s, choice.stopping_seconds),
            };
        loop {
            let sleep_s = match search.next() {
                Next::Prove(sleep_s) => sleep_s,
                Next::Found(sleep_s) => {
                    choice.settings = settings(sleep_s, &choice);
                    let is_set = choice.settings == self.steps.subject.settings();
                    return Ok((choice, if is_set { Outcome::AlreadyRight } else { Outcome::Proven }));
                }
                Next::TooLong => return Ok((choice, Outcome::NotShown { why: vec![OUTLASTED.to_owned()] })),
                Next::TooMany => {
                    let why = vec![format!("{MOST_PROOFS} sleeps were tried, and requests were still lost")];
                    return Ok((choice, Outcome::NotShown { why }));
                }
            };
            choice.settings = settings(sleep_s, &choice);
            let plan = self.steps.proof(choice.settings, search.error(1.0 - CONFIDENCE), names);
            let result = self.step(plan).await?;
            let proof = proof(&result, names, sleep_s, plan.needed);
            let subject = self.steps.subject;
            if let Some(why) = lost_at_starts(&result, subject.settings(), choice.settings) {
                return Ok((choice, Outcome::NotShown { why: vec![why] }));
            }
            match &proof {
                Proof::Unknown { why } => return Ok((choice, Outcome::NotShown { why: why.clone() })),
                Proof::TooShort { lost, .. } => {
                    let lost = counted(*lost, "request");
                    self.steps.progress.say(&format!("a sleep of {sleep_s} s is too short: it lost {lost}"));
                }
                Proof::Holds => {}
            }
            search.learn(sleep_s, &proof);
        }
    }

    /// Measures the windows, with longer sleeps if one outlasts them, and chooses; what starts lose meanwhile is added to
    /// the wish. Returns why nothing can be chosen.
    async fn choice(
        &mut self,
        disrupt: Disrupt,
        wish: &mut Wish,
    ) -> anyhow::Result<Result<Choice, Vec<String>>> {
        let Steps { subject, args, .. } = self.steps;
        for sleep_s in subject.sleeps(args.max_sleep) {
            let windows = self.step(self.steps.windows(subject.wide(sleep_s), disrupt)).await?;
            if let Some(why) = untrusted(&windows) {
                return Ok(Err(why));
            }
            wish.before = with_starts(&windows, wish.before, subject.rollout());
            match choose(&windows, sleep_s, *wish) {
                Ok(choice) => return Ok(Ok(choice)),
                Err(Unknown::Because(why)) => return Ok(Err(why)),
                Err(Unknown::Outlasted) => {
                    self.steps.progress.say(&format!("a window outlasted the sleep of {sleep_s} s"));
                }
            }
        }
        Ok(Err(vec![OUTLASTED.to_owned()]))
    }

    fn concluded(self, before: &RunResult, chosen: Option<Choice>, outcome: Outcome) -> Tuning {
        let Steps { subject, args, .. } = self.steps;
        let set = subject.settings();
        let settings = chosen.as_ref().map(|choice| choice.settings);
        let price: Option<Price> = settings.map(|settings| subject.rollout().price(set, settings));
        let limits = settings.map(|settings| subject.limits().of(settings)).unwrap_or_default();
        Tuning {
            schema_version: SCHEMA_VERSION,
            tool: Tool::this(),
            workload: subject.workload().to_owned(),
            containers: subject.containers().to_vec(),
            cluster: before.cluster.clone(),
            coverage_asked: args.coverage.share(),
            confidence: CONFIDENCE,
            before: set,
            steps: self.done,
            lost_before: lost_to(before),
            chosen,
            price,
            limits,
            outcome,
        }
    }
}

/// Whether a sleep may save what is lost by this cause: requests in flight at SIGTERM too, as none arrive after a sleep
/// that outlasts the window.
fn may_help(result: &RunResult, cause: Cause) -> bool {
    let avoidable = result.what_if.iter().map(|what_if| what_if.drops_avoided).max().unwrap_or(0);
    cause.is_helped_by_sleep() || (cause == Cause::KilledInFlight && avoidable > 0)
}

/// Why a run shows nothing; `None` if it can be believed.
fn untrusted(result: &RunResult) -> Option<Vec<String>> {
    match &result.verdict {
        Verdict::Valid => None,
        Verdict::Invalid { why } | Verdict::Partial { why } => Some(why.clone()),
    }
}
