//! Plans and performs the runs of a tuning.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::LocalBoxFuture;
use serde::{Deserialize, Serialize};

use super::evidence_choice::Means;
use super::forecast::{ForecastPlan, RolloutPace, RunPosition};
use super::subject::{Subject, ending_of, whose};
use super::{CONFIDENCE, TuningRequest};
use crate::analysis;
use crate::gate_looks;
use rolldrop_drive::Operator;
use rolldrop_drive::act::change_for_good;
use rolldrop_drive::embedded::lab;
use rolldrop_drive::plan::{LiveChanges, RunPlan};
use rolldrop_drive::run::{Consent, Coverage, Covering, Extras, Job, Look, RunError, SoFar};
use rolldrop_explain::model::figure_text::{counted, len};
use rolldrop_explain::model::{Analysis, Verdict};
use rolldrop_explain::{RunResult, windows_needed};
use rolldrop_judge::tuning::{CoverageUnit, PodNaming, PodSettings, Purpose, Units, is_outlasted, refuted};
use rolldrop_record::{Clock, Policy, RoundsEnd, RunDir};
use rolldrop_report::decision_words;
use rolldrop_scenario::{ClusterChoice, Loaded};
use rolldrop_sidecar::inject::ending::set_ending;

/// Maximum number of rounds in a run.
const MOST_ROUNDS: usize = 12;
/// Maximum duration of a run, regardless of its expected duration.
const LONGEST: Duration = Duration::from_secs(3 * 3600);
/// Minimum of the time limit for a run.
const LEAST_BOUND: Duration = Duration::from_secs(15 * 60);
/// Number of terminated pods before the first look at a run.
pub(super) const FIRST_LOOK: usize = 10;
/// Number of pods to delete, one at a time, to see how many requests the current settings lose.
const DELETED_BEFORE: usize = 3;
/// Spare rollouts per run, beyond those needed if each shows one unit. A rollout with no observed termination shows
/// none.
const SPARE: usize = 2;

/// Way of terminating the measured pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Disrupt {
    /// Restart the workload repeatedly, with a rollout each time.
    #[default]
    RollingRestart,
    /// Delete pods one at a time. This shows nothing about rollouts.
    DeletePod,
}

/// Plan of one run.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct StepPlan {
    pub(super) purpose: Purpose,
    pub(super) settings: PodSettings,
    disrupt: Disrupt,
    /// Means of naming the pods if responses do not name them.
    pub(super) means: Option<Means>,
    /// Required number of units.
    pub(super) needed: usize,
    confidence: f64,
    /// Duration of a run without disruptions; `None` if the run has disruptions.
    #[serde(default)]
    pub(super) undisturbed: Option<Duration>,
}

impl StepPlan {
    /// Returns true if both plan the same run.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        let key = |plan: &Self| {
            (plan.purpose, plan.settings, plan.disrupt, plan.means, plan.needed, plan.undisturbed)
        };
        key(self) == key(other)
    }
}

/// Context shared by all runs of a tuning.
pub(super) struct StepRunner<'a> {
    pub(super) request: &'a TuningRequest,
    pub(super) subject: &'a Subject,
    pub(super) out: &'a Path,
    pub(super) operator: &'a Operator,
    pub(super) clock: Clock,
    /// Name under which the tuning has marked the workload as in use; `None` before that.
    pub(super) holder: Option<String>,
}

/// Finished run.
pub(super) struct EndedRun {
    pub(super) analysis: Analysis,
    pub(super) is_interrupted: bool,
    pub(super) took: Duration,
    /// Reason why a bound stopped the run before it had enough units, if a bound did.
    pub(super) gave_up: Option<String>,
}

/// Facts about the rest of the tuning, used during a run.
#[derive(Clone, Debug)]
pub(super) struct Outlook {
    pub(super) pace: RolloutPace,
    pub(super) names: PodNaming,
    /// Duration of the remaining runs if this one succeeds.
    pub(super) later: Duration,
    /// Maximum number of rollouts in the run.
    pub(super) most_rollouts: Option<usize>,
    /// Units shown by interrupted parts of this run.
    pub(super) before: Option<Units>,
}

impl Outlook {
    /// Returns the number of units shown by interrupted parts.
    fn counted(&self) -> usize {
        self.before.map_or(0, |before| before.number)
    }
}

impl StepRunner<'_> {
    pub(super) fn disrupt(&self) -> Disrupt {
        self.request.disrupt.unwrap_or_default()
    }

    /// Returns true if the user chose a means of naming the pods.
    pub(super) fn has_names(&self) -> bool {
        self.request.evidence.is_some()
    }

    /// Plans the run that shows the losses with the current settings.
    pub(super) fn before(&self) -> StepPlan {
        let needed = if self.disrupt() == Disrupt::DeletePod { DELETED_BEFORE } else { 1 };
        let plan = self.plan(Purpose::Before, self.subject.settings(), 1.0 - CONFIDENCE);
        StepPlan { needed, ..plan }
    }

    /// Plans the run that shows complete windows.
    pub(super) fn windows(&self, settings: PodSettings) -> StepPlan {
        self.plan(Purpose::Windows, settings, 1.0 - CONFIDENCE)
    }

    /// Plans a run that shows how long streams last.
    pub(super) fn lengths(&self, lasts: Duration) -> StepPlan {
        let plan = self.plan(Purpose::Lengths, self.subject.settings(), 1.0 - CONFIDENCE);
        StepPlan { needed: 0, undisturbed: Some(lasts), ..plan }
    }

    /// Plans a run that tests, with at most this error probability, whether the settings prevent all losses.
    pub(super) fn proof(&self, settings: PodSettings, error: f64) -> StepPlan {
        self.plan(Purpose::Proof, settings, error)
    }

    fn plan(&self, purpose: Purpose, settings: PodSettings, error: f64) -> StepPlan {
        let confidence = 1.0 - error;
        StepPlan {
            purpose,
            settings,
            disrupt: self.disrupt(),
            means: Means::of(self.request.evidence),
            needed: windows_needed(self.request.coverage, confidence),
            confidence,
            undisturbed: None,
        }
    }

    /// Describes the maximum number of rollouts or deletions in a run, assuming that each shows one unit.
    pub(super) fn most_in_words(&self, plan: &StepPlan) -> String {
        let most = len(plan.needed + SPARE);
        match plan.disrupt {
            Disrupt::RollingRestart => counted(most, "rollout"),
            Disrupt::DeletePod => counted(most, "deletion"),
        }
    }

    /// Counts the rollouts caused by changing the pod template and restoring it.
    pub(super) fn rollouts_of_changes(&self, plan: &StepPlan) -> usize {
        let is_as_set = plan.settings == self.subject.settings() && plan.means != Some(Means::Sidecar);
        if self.subject.is_own || is_as_set { 0 } else { 2 }
    }

    /// Returns the maximum duration of a run.
    fn bound(plan: StepPlan, outlook: &Outlook) -> Duration {
        if let Some(lasts) = plan.undisturbed {
            return lasts;
        }
        let leg =
            outlook.pace.leg(plan.purpose, (plan.settings.pre_stop_seconds, plan.needed), outlook.names);
        (leg.takes * 3).clamp(LEAST_BOUND, LONGEST)
    }

    /// Returns, in scenario syntax, the disruption that terminates pods until this many terminations have happened.
    ///
    /// # Errors
    /// Fails if pods are to be deleted, and the workload has no valid selector.
    fn disruption(&self, plan: StepPlan, ended: usize) -> Result<String, RunError> {
        let until = format!("until: {{terminations: {ended}}}");
        Ok(match plan.disrupt {
            Disrupt::RollingRestart => {
                format!("{{at: 3s, action: rollingRestart, workload: {}, {until}}}", self.subject.workload())
            }
            Disrupt::DeletePod => {
                let selector = self.subject.selector()?;
                format!(
                    "{{at: 3s, action: deletePod, selector: {selector:?}, count: 1, order: random, {until}}}"
                )
            }
        })
    }

    /// Creates a run's job and returns the cluster that the scenario names.
    fn job<'a>(
        &'a self,
        plan: StepPlan,
        (first, length): (usize, Duration),
        observer: Option<RunObserver<'a>>,
    ) -> Result<(Job<'a>, Option<ClusterChoice<lab::ClusterConfig>>), RunError> {
        let Self { request, subject, operator, .. } = self;
        let StepPlan { purpose, settings, .. } = plan;
        let disruption =
            if plan.undisturbed.is_none() { self.disruption(plan, first)? } else { String::new() };
        let disruptions = format!("disruptions=[{disruption}]");
        let length = format!("load.duration={}s", length.as_secs());
        let mut further = vec![disruptions, length, "expect={}".to_owned()];
        further.extend(plan.means.map(Means::as_override));
        let Loaded { mut scenario, cluster } = request.source.load(further)?;
        if subject.is_own {
            set_ending(&mut scenario.manifests, &subject.sleepers, ending_of(settings))?;
        }
        let covering = observer.filter(|_| matches!(purpose, Purpose::Windows | Purpose::Proof));
        let extras = Extras {
            policy: Policy { coverage: request.coverage, confidence: plan.confidence, margin_s: 0 },
            covering: covering.map(|(_, look)| Covering { most_rounds: MOST_ROUNDS, look }),
            told: observer.map(|(told, _)| told),
            holder: self.holder.as_deref(),
            ending: (!subject.is_own).then(|| (&subject.sleepers, ending_of(settings))),
            ..Extras::default()
        };
        // The user already consented to the whole tuning.
        let job = Job::new(scenario, &request.options, Consent::Given, extras, &*operator.viewer)?;
        Ok((job, cluster))
    }

    /// Plans each API call that the run for measuring windows would make. The other runs make the same calls.
    pub(super) async fn dry_run(&self) -> Result<RunPlan, RunError> {
        let Self { request, subject, operator, .. } = self;
        let first = subject.sleeps(request.max_sleep)[0];
        let plan = self.windows(subject.wide(first));
        let (job, cluster) = self.job(plan, (FIRST_LOOK, LEAST_BOUND), None)?;
        job.dry_run(|logs| request.source.choice(cluster, logs), operator).await
    }

    /// Performs a run, in a directory with this name.
    pub(super) async fn run(
        &self,
        plan: StepPlan,
        name: &str,
        outlook: Outlook,
    ) -> Result<EndedRun, RunError> {
        let Self { request, operator, .. } = self;
        if let Some(what) = self.subject.changed_since(request, &operator.interrupts).await? {
            return Err(RunError::Refused(format!(
                "something else, such as an autoscaler or another rollout, has changed {what} of {} since the tuning \
                 began. Stop it, then continue with rolldrop tune --resume {}",
                self.subject.workload(),
                self.out.display()
            )));
        }
        let began = Instant::now();
        let sleep_s = plan.settings.pre_stop_seconds;
        let needed = plan.needed.saturating_sub(outlook.counted()).max(1);
        let leg = outlook.pace.leg(plan.purpose, (sleep_s, needed), outlook.names);
        let seen =
            outlook.before.map(|before| format!(", in addition to {} so far", decision_words::units(before)));
        let what = match plan.undisturbed {
            Some(lasts) => format!("{} s without disruptions", lasts.as_secs()),
            None => format!("about {}", counted(len(leg.ended.max(needed)), "termination")),
        };
        operator
            .viewer
            .say(&format!("{name}: a preStop sleep of {sleep_s} s, {what}{}", seen.unwrap_or_default()));
        let out = self.out.join(name);
        let run_dir = RunDir::create(&out).map_err(RunError::failed("failed to create the run directory"))?;
        let bound = Self::bound(plan, &outlook);
        let watch = RunWatch::new(plan, name, outlook, bound);
        let told = |ended| watch.in_words(ended);
        let first = if plan.purpose == Purpose::Before { plan.needed } else { leg.ended.min(FIRST_LOOK) };
        let first = first.min(watch.most_ended(0, 0)).max(1);
        let (job, cluster) = self.job(plan, (first, bound), Some((&told, &watch)))?;
        let choice = request.source.choice(cluster, &out);
        let measured = job.carry_out(choice, &run_dir, self.clock, operator).await;
        let is_interrupted = measured.inspect_err(|_| run_dir.discard_if_empty())?;
        let analysis = analysis::report(&run_dir)?;
        let (result, took) = (&analysis.result, began.elapsed());
        let ended = match plan.undisturbed {
            Some(_) => String::new(),
            None => format!(
                " in {} ({})",
                counted(len(result.terminations.len()), "termination"),
                decision_words::units(Units::of(result))
            ),
        };
        operator.viewer.say(&format!(
            "{name}: {} of {} requests lost{ended}, {:.0} s",
            result.requests.lost(),
            result.requests.total,
            took.as_secs_f64()
        ));
        Ok(EndedRun { is_interrupted, took, gave_up: watch.gave_up.take(), analysis })
    }

    /// Returns the time needed after a run with this purpose, if the run succeeds.
    pub(super) fn later(&self, purpose: Purpose, plan: &ForecastPlan) -> Duration {
        let follows = |leg: &&super::forecast::Leg| match purpose {
            Purpose::Before => true,
            Purpose::Windows => leg.purpose != Purpose::Windows,
            Purpose::Lengths => leg.purpose == Purpose::Proof,
            Purpose::Proof => false,
        };
        plan.0.iter().filter(follows).map(|leg| leg.takes).sum()
    }

    /// Applies the chosen settings in the cluster permanently.
    pub(super) async fn apply(&self, settings: PodSettings) -> Result<(), RunError> {
        let Self { request, subject, operator, .. } = self;
        let TuningRequest { source, options, .. } = request;
        let loaded = source.load(Vec::new())?;
        let (scenario, cluster, caller) = request.connect(loaded, self.out, &operator.interrupts).await?;
        let ending = Some((&subject.sleepers, ending_of(settings)));
        let changes = LiveChanges { whose: whose(&scenario), sidecar: None, ending, gitops: options.gitops };
        let changed = change_for_good(&caller, &changes).await?;
        changed.iter().for_each(|title| operator.viewer.say(&format!("{title} now has the chosen settings")));
        cluster.shut_down().await;
        Ok(())
    }
}

/// Observer of a run in progress: it describes the progress, given the number of terminated pods, and judges the record
/// so far.
type RunObserver<'a> = (&'a dyn Fn(usize) -> String, &'a dyn Look<Coverage>);

/// Watches one run to report its progress and to decide when to stop it.
struct RunWatch<'a> {
    plan: StepPlan,
    name: &'a str,
    outlook: Outlook,
    /// Maximum duration of the run.
    longest: Duration,
    /// Time the load began.
    began: Cell<Option<Instant>>,
    /// Number of pods that the template change had already terminated before the load began.
    ended_before: Cell<Option<usize>>,
    /// Result of the last look: terminated pods and units.
    seen: RefCell<Option<(usize, Units)>>,
    gave_up: Cell<Option<String>>,
}

impl Look<Coverage> for RunWatch<'_> {
    fn look(&self, so_far: SoFar) -> LocalBoxFuture<'_, Result<Option<Coverage>, RunError>> {
        async { Ok(gate_looks::result_of(so_far).await?.map(|result| self.coverage(&result))) }.boxed_local()
    }
}

impl<'a> RunWatch<'a> {
    fn new(plan: StepPlan, name: &'a str, outlook: Outlook, longest: Duration) -> Self {
        let (began, ended_before) = (Cell::default(), Cell::default());
        let (seen, gave_up) = (RefCell::default(), Cell::default());
        Self { plan, name, outlook, longest, began, ended_before, seen, gave_up }
    }

    /// Returns the time since the load began.
    fn elapsed(&self) -> Duration {
        let began = self.began.get().unwrap_or_else(Instant::now);
        self.began.set(Some(began));
        began.elapsed()
    }

    /// Estimates the units shown by this many terminated pods, from the ratio at the last look.
    fn units_of(&self, ended: usize) -> usize {
        let Outlook { pace, names, .. } = &self.outlook;
        let (seen_ended, seen) = match *self.seen.borrow() {
            Some((seen_ended @ 1.., units)) if units.number > 0 => (seen_ended, units.number),
            _ => {
                let each = pace.units_of_each(self.plan.settings.pre_stop_seconds, *names);
                let ends = if self.plan.disrupt == Disrupt::DeletePod { 1 } else { pace.pods };
                return ended * each / ends;
            }
        };
        seen + ended.saturating_sub(seen_ended) * seen / seen_ended
    }

    /// Describes the run's progress and the expected end of the tuning if the next proof succeeds.
    fn in_words(&self, ended_in_all: usize) -> String {
        let before = self.ended_before.get().unwrap_or(ended_in_all);
        self.ended_before.set(Some(before));
        let ended = ended_in_all.saturating_sub(before);
        let Self { plan, name, outlook, .. } = self;
        let own = self.units_of(ended);
        let units = (own + outlook.counted()).min(plan.needed);
        let position = RunPosition { elapsed: self.elapsed(), units, own };
        let left = match plan.undisturbed {
            Some(lasts) => lasts.saturating_sub(position.elapsed),
            None => outlook.pace.left(*plan, outlook.names, position),
        };
        let left = left + outlook.later;
        let minutes = (left.as_secs_f64() / 60.0).ceil().max(1.0);
        let done = match (plan.purpose, *self.seen.borrow()) {
            (Purpose::Before, _) => counted(len(ended), "termination"),
            (Purpose::Lengths, _) => "recording streams".to_owned(),
            (_, None) => format!("about {units} of {} units", plan.needed),
            (_, Some((_, seen))) => {
                format!(
                    "about {units} of {}",
                    decision_words::counted_units(self.with_before(seen).unit, plan.needed)
                )
            }
        };
        format!("{name}: {done}, about {minutes:.0} min left")
    }

    /// Returns the number of further pods that may be terminated within the rollout limit.
    fn most_ended(&self, rollouts: usize, ended: usize) -> usize {
        let needed = self.plan.needed + SPARE;
        match self.plan.disrupt {
            Disrupt::DeletePod => needed.saturating_sub(ended),
            Disrupt::RollingRestart => {
                let most = self.outlook.most_rollouts.map_or(needed, |most| most.min(needed));
                most.saturating_sub(rollouts).saturating_mul(self.outlook.pace.pods)
            }
        }
    }

    /// Decides from the result so far whether more pods must be terminated.
    fn coverage(&self, result: &RunResult) -> Coverage {
        if let Verdict::Invalid { why } = &result.verdict {
            return Coverage::Invalid(format!("the measurement is invalid: {}", why.join("; ")));
        }
        let plan = self.plan;
        let (own, ended) = (Units::of(result), result.terminations.len());
        *self.seen.borrow_mut() = Some((ended, own));
        let units = self.with_before(own);
        let missing = plan.needed.saturating_sub(units.number);
        let said = format!(
            "{}, {} to go",
            decision_words::units(units),
            decision_words::counted_units(units.unit, missing)
        );
        let next = match self.why_over(result, own) {
            Some((how, why)) => {
                if how == RoundsEnd::MostRounds {
                    self.gave_up.set(Some(why.clone()));
                }
                Err((how, why))
            }
            None => Ok(own.ends_for(missing, ended).min(self.most_ended(own.rollouts, ended))),
        };
        Coverage::Counted { terminations: ended, counted: units.number, needed: plan.needed, said, next }
    }

    /// Adds the units from interrupted parts of the run to these units.
    fn with_before(&self, own: Units) -> Units {
        self.outlook.before.map_or(own, |before| before.and(own))
    }

    /// Returns the reason to stop terminating pods; `None` if more are needed.
    fn why_over(&self, result: &RunResult, own: Units) -> Option<(RoundsEnd, String)> {
        let Self { plan, outlook, .. } = self;
        let units = self.with_before(own);
        let (sleep_s, ended) = (plan.settings.pre_stop_seconds, result.terminations.len());
        if plan.purpose == Purpose::Windows && is_outlasted(result, sleep_s) {
            let why = format!("a window lasted at least as long as the sleep of {sleep_s} s");
            return Some((RoundsEnd::Outlasted, why));
        }
        if plan.purpose == Purpose::Proof && refuted(result, sleep_s).is_some() {
            return Some((RoundsEnd::Refuted, format!("a sleep of {sleep_s} s is too short")));
        }
        if units.number >= plan.needed {
            return Some((RoundsEnd::Covered, decision_words::units(units)));
        }
        if ended == 0 {
            return Some((RoundsEnd::NoneCounted, "no pod terminated under load".to_owned()));
        }
        // More rollouts would not give windows an upper bound; a proof needs none.
        if plan.purpose == Purpose::Windows && own.unit == CoverageUnit::Rollouts && own.rollouts > 1 {
            let why = "too few windows have an upper bound, so the proofs determine the sleep".to_owned();
            return Some((RoundsEnd::NoneCounted, why));
        }
        let after = if self.most_ended(own.rollouts, ended) == 0 {
            decision_words::units(units)
        } else if self.elapsed() >= self.longest {
            format!("{:.0} minutes and {}", self.elapsed().as_secs_f64() / 60.0, decision_words::units(units))
        } else {
            return None;
        };
        let is_by_flag = outlook.most_rollouts.is_some_and(|most| most < plan.needed);
        let remedy =
            if is_by_flag { "raise --max-rollouts" } else { "use a lower --coverage, which needs fewer" };
        Some((RoundsEnd::MostRounds, format!("the run reached its limit after {after}: {remedy}")))
    }
}
