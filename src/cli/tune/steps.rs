//! The runs of a tuning.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use super::evidence::Means;
use super::subject::{Subject, whose};
use super::{CONFIDENCE, TuneArgs, forecast};
use crate::cli::progress::Progress;
use crate::cli::report;
use crate::cli::run::{self, Consent, Covering, Extras, Job};
use crate::cli::signals::Interrupts;
use crate::cluster::Cluster;
use crate::coordinator::{GitOps, LiveChanges};
use crate::inject::ending::set_ending;
use crate::lab;
use crate::scenario::{ClusterChoice, Loaded};
use rolldrop_analysis::figures::{counted, len};
use rolldrop_analysis::tune::{Names, Purpose, Settings};
use rolldrop_analysis::{RunResult, windows_needed};
use rolldrop_record::{Clock, Policy, RunDir};

/// The most rounds of a run whose windows cover too little after the first.
const MOST_ROUNDS: usize = 12;
/// The longest that the load of one round may last.
const LONGEST: Duration = Duration::from_secs(3600);
/// How many pods end before the first look at whether the sleep outlasts their windows.
const FIRST_LOOK: usize = 10;
/// How many pods are deleted, one at a time, to see what is lost as things are.
const DELETED_BEFORE: usize = 3;

/// How pods are ended while they are measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "camelCase")]
pub(super) enum Disrupt {
    /// The workload replaces its pods, again and again.
    #[default]
    RollingRestart,
    /// Pods are deleted, one at a time.
    DeletePod,
}

/// One run.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepPlan {
    pub(super) purpose: Purpose,
    pub(super) settings: Settings,
    disrupt: Disrupt,
    pub(super) names: Names,
    /// What names the pods, if answers do not.
    pub(super) means: Option<Means>,
    /// How many ends of pods must tell something.
    pub(super) needed: usize,
    policy: Policy,
}

/// What all runs have in common.
pub(super) struct Steps<'a> {
    pub(super) args: &'a TuneArgs,
    pub(super) subject: &'a Subject,
    pub(super) out: &'a Path,
    pub(super) interrupts: &'a Interrupts,
    pub(super) progress: &'a Progress,
    pub(super) clock: Clock,
    /// The name under which the tuning uses the workload, once it does.
    pub(super) holder: Option<String>,
}

impl Steps<'_> {
    /// The run that shows what is lost as things are.
    pub(super) fn before(&self) -> StepPlan {
        let disrupt = self.args.disrupt.unwrap_or_default();
        let needed = if disrupt == Disrupt::DeletePod { DELETED_BEFORE } else { 1 };
        let settings = self.subject.settings();
        let plan = self.plan(Purpose::Before, settings, 1.0 - CONFIDENCE);
        StepPlan { needed, disrupt, ..plan }
    }

    /// The run that shows the whole windows.
    pub(super) fn windows(&self, settings: Settings, disrupt: Disrupt) -> StepPlan {
        StepPlan { disrupt, ..self.plan(Purpose::Windows, settings, 1.0 - CONFIDENCE) }
    }

    /// A run that shows, with at most this error, whether settings hold.
    pub(super) fn proof(&self, settings: Settings, error: f64, names: Names) -> StepPlan {
        let disrupt = match names {
            Names::Known => self.args.disrupt.unwrap_or_default(),
            Names::Unknown => Disrupt::DeletePod,
        };
        StepPlan { disrupt, names, ..self.plan(Purpose::Proof, settings, error) }
    }

    fn plan(&self, purpose: Purpose, settings: Settings, error: f64) -> StepPlan {
        let (coverage, confidence) = (self.args.coverage.share(), 1.0 - error);
        StepPlan {
            purpose,
            settings,
            disrupt: Disrupt::default(),
            names: Names::Known,
            means: Means::of(self.args.evidence),
            needed: windows_needed(coverage, confidence),
            policy: Policy { coverage, confidence, margin_s: 0 },
        }
    }

    /// What ends the pods, as the scenario has it.
    fn disruption(&self, plan: StepPlan) -> String {
        // Some pods leave the rules together, and a further round takes longer than a few pods more.
        let spare = if plan.disrupt == Disrupt::RollingRestart { plan.needed / 5 } else { 0 };
        let first = if plan.purpose == Purpose::Windows { FIRST_LOOK } else { usize::MAX };
        let until = format!("until: {{terminations: {}}}", (plan.needed + spare).min(first));
        match plan.disrupt {
            Disrupt::RollingRestart => {
                format!("{{at: 3s, action: rollingRestart, workload: {}, {until}}}", self.subject.workload())
            }
            Disrupt::DeletePod => {
                let selector = self.subject.selector();
                format!(
                    "{{at: 3s, action: deletePod, selector: {selector:?}, count: 1, order: random, {until}}}"
                )
            }
        }
    }

    /// The run to be made, and the cluster that the scenario names. `told` is said while its load is sent.
    fn job<'a>(
        &'a self,
        plan: StepPlan,
        told: Option<&'a dyn Fn(usize) -> String>,
    ) -> anyhow::Result<(Job<'a>, Option<ClusterChoice<lab::Config>>)> {
        let Self { args, subject, .. } = self;
        let StepPlan { purpose, settings, .. } = plan;
        let disruptions = format!("disruptions=[{}]", self.disruption(plan));
        let length = format!("load.duration={}s", LONGEST.as_secs());
        let mut further = vec![disruptions, length, "expect={}".to_owned()];
        further.extend(plan.means.map(Means::as_override));
        let Loaded { mut scenario, cluster } = args.measure.scenario(args.scenario_name(), further)?;
        if subject.is_own() {
            set_ending(&mut scenario.manifests, subject.sleepers(), settings.into())?;
        }
        let extras = Extras {
            policy: plan.policy,
            covering: (purpose != Purpose::Before && plan.names == Names::Known).then_some(Covering {
                most_rounds: MOST_ROUNDS,
                seen_s: (purpose == Purpose::Windows).then_some(settings.pre_stop_seconds),
            }),
            told,
            holder: self.holder.as_deref(),
            ending: (!subject.is_own()).then(|| (subject.sleepers(), settings.into())),
            ..Extras::default()
        };
        // Consent was asked for all of it.
        Ok((Job::new(scenario, &args.measure, Consent::Given, extras)?, cluster))
    }

    /// Prints each call of the API server that the run that shows the windows would make. The others make the same.
    pub(super) async fn dry_run(&self) -> anyhow::Result<()> {
        let Self { args, subject, interrupts, progress, .. } = self;
        let first = subject.sleeps(args.max_sleep)[0];
        let plan = self.windows(subject.wide(first), args.disrupt.unwrap_or_default());
        let (job, cluster) = self.job(plan, None)?;
        let choice = |logs: &Path| args.measure.choice(args.scenario_name(), cluster, logs);
        job.dry_run(choice, interrupts, progress).await
    }

    /// Makes a run in a directory of this name, and returns its result.
    pub(super) async fn run(&self, plan: StepPlan, name: &str) -> anyhow::Result<RunResult> {
        let Self { args, progress, .. } = self;
        let StepPlan { settings, needed, .. } = plan;
        if let Some(what) = self.subject.changed_since(args, self.interrupts).await? {
            bail!(
                "others changed {what} of {} since the tuning began (an autoscaler, or another rollout): keep them away, \
                 and begin anew",
                self.subject.workload()
            );
        }
        let began = Instant::now();
        progress.say(&format!(
            "{name}: a preStop sleep of {} s, {} or more",
            settings.pre_stop_seconds,
            counted(len(needed), "termination")
        ));
        let out = self.out.join(name);
        let run_dir = RunDir::create(&out).context("failed to make the run directory")?;
        let told = |ended: usize| format!("{name}: {}", self.left(plan, began, ended));
        let (job, cluster) = self.job(plan, Some(&told))?;
        let choice = args.measure.choice(args.scenario_name(), cluster, &out);
        let measured = job.carry_out(choice, &run_dir, self.clock, self.interrupts, progress).await;
        let interrupted = measured.inspect_err(|_| run_dir.discard_if_empty())?;
        let result = report::make_quietly(&run_dir)?;
        progress.say(&format!(
            "{name}: {} of {} requests lost in {}, {:.0} s",
            result.requests.lost(),
            result.requests.total,
            counted(len(result.terminations.len()), "termination"),
            began.elapsed().as_secs_f64()
        ));
        if interrupted {
            return Err(run::Interrupted.into());
        }
        Ok(result)
    }

    /// How far a run has come, and when the tuning ends if its next proof holds.
    fn left(&self, plan: StepPlan, began: Instant, ended: usize) -> String {
        let StepPlan { purpose, needed, disrupt, settings, .. } = plan;
        let takes = |disrupt, needed, sleep_s| forecast::takes(self.subject, disrupt, needed, sleep_s);
        let left = needed.saturating_sub(ended);
        let this = match (u32::try_from(ended), u32::try_from(left)) {
            (Ok(ended @ 1..), Ok(left)) => began.elapsed() / ended * left,
            _ => takes(disrupt, left, settings.pre_stop_seconds),
        };
        let first = self.subject.sleeps(self.args.max_sleep)[0];
        let [windows, proof] = [
            self.windows(self.subject.wide(first), disrupt),
            self.proof(settings, (1.0 - CONFIDENCE) / 2.0, Names::Known),
        ];
        let of = |plan: StepPlan| takes(plan.disrupt, plan.needed, plan.settings.pre_stop_seconds);
        let later = match purpose {
            Purpose::Before => of(windows) + of(proof),
            Purpose::Windows => of(proof),
            Purpose::Proof => Duration::ZERO,
        };
        let minutes = ((this + later).as_secs_f64() / 60.0).ceil().max(1.0);
        let of_needed = if ended < needed { format!(" of {needed}") } else { String::new() };
        format!("{ended}{of_needed} terminations, about {minutes:.0} min left")
    }

    /// Sets the chosen settings in the cluster, and leaves them there.
    pub(super) async fn apply(&self, settings: Settings) -> anyhow::Result<()> {
        let Self { args, subject, progress, .. } = self;
        let name = args.scenario_name();
        let Loaded { scenario, cluster } = args.measure.scenario(name, Vec::new())?;
        let cluster = Cluster::connect(args.measure.choice(name, cluster, self.out)).await?;
        let caller = run::caller(&cluster, args.measure.namespace.clone(), self.interrupts)?;
        let gitops = if args.measure.change_gitops { GitOps::Change } else { GitOps::Refuse };
        let ending = Some((subject.sleepers(), settings.into()));
        let changes = LiveChanges { whose: whose(&scenario), sidecar: None, ending, gitops };
        let changed = caller.leave(&changes).await?;
        changed.iter().for_each(|title| progress.say(&format!("{title} has the chosen settings now")));
        cluster.shut_down().await;
        Ok(())
    }
}
