//! Performs the runs of a tuning one after another; each result determines the next run.
//!
//! A resumed tuning repeats the same steps but reads finished runs from their directories.

pub(super) mod stream_aim;

use super::evidence_choice::{EvidenceChoice, Means};
use super::forecast::{self, ForecastPlan, RolloutPace};
use super::state::{TuningRun, TuningState};
use super::step_runner::{EndedRun, Outlook, StepPlan, StepRunner};
use super::tuning_output;
use super::{CONFIDENCE, NO_NAMES};
use rolldrop_drive::run::RunError;
use rolldrop_explain::model::figure_text::counted;
use rolldrop_explain::{RunResult, model::Verdict};
use rolldrop_judge::tuning::{
    ChosenSettings, LongestWindows, MOST_PROOFS, Next, PodNaming, PodSettings, Price, Proof, Purpose,
    SCHEMA_VERSION, SleepSearch, Tuning, TuningOutcome, TuningStep, Units, Unknown, Wish, choose,
    for_a_sleep, lost_at_starts, lost_before, lost_to, names, parts, proof, refuted, stopping, with_starts,
    without_names,
};
use rolldrop_record::Cause;
use rolldrop_record::run_info::Tool;
use rolldrop_report::decision_words;
use stream_aim::StreamAim;

/// Maximum number of repetitions of an invalid run.
const MOST_REPEATS: usize = 3;

/// The runs completed so far, and their findings.
pub(super) struct Tuner<'a> {
    steps: &'a StepRunner<'a>,
    state: TuningState,
    /// Number of runs in the state that have been replayed.
    replayed: usize,
    /// Means of naming the pods if responses do not name them.
    means: Option<Means>,
    done: Vec<TuningStep>,
    seen: LongestWindows,
    /// The first run; the others are compared with it.
    first: Option<RunResult>,
    choice: Option<ChosenSettings>,
    pace: RolloutPace,
    names: PodNaming,
    plan: Option<ForecastPlan>,
    /// Search for the settings that streams need, if the user asked for them.
    streams: Option<StreamAim>,
}

/// Reason why a tuning stops without a result.
enum Halt {
    /// Nothing can be shown, for these reasons.
    NotShown(Vec<String>),
    /// A run failed, or a signal interrupted it.
    Failed(RunError),
}

impl From<RunError> for Halt {
    fn from(error: RunError) -> Self {
        Self::Failed(error)
    }
}

impl<'a> Tuner<'a> {
    pub(super) fn new(steps: &'a StepRunner<'a>, state: TuningState) -> Self {
        Self {
            steps,
            state,
            replayed: 0,
            means: Means::of(steps.request.evidence),
            done: Vec::new(),
            seen: LongestWindows::default(),
            first: None,
            choice: None,
            pace: RolloutPace::assumed(steps.subject, steps.disrupt()),
            names: if steps.has_names() { PodNaming::Known } else { PodNaming::Unknown },
            plan: None,
            streams: steps.request.max_cut.map(StreamAim::new),
        }
    }

    /// Finds a sleep and proves it.
    pub(super) async fn tune(mut self) -> Result<Tuning, RunError> {
        let ended = self.find().await;
        self.concluded(ended)
    }

    /// Proves settings that an earlier tuning has chosen.
    pub(super) async fn verify(mut self, chosen: ChosenSettings) -> Result<Tuning, RunError> {
        let plan = self.steps.proof(chosen.settings, 1.0 - CONFIDENCE);
        self.choice = Some(chosen);
        let ended = self.verified(plan).await;
        self.concluded(ended)
    }

    fn concluded(self, ended: Result<TuningOutcome, Halt>) -> Result<Tuning, RunError> {
        let outcome = match ended {
            Ok(outcome) => outcome,
            Err(Halt::NotShown(why)) => TuningOutcome::NotShown { why },
            Err(Halt::Failed(RunError::Interrupted)) => {
                let resume = format!("continue with rolldrop tune --resume {}", self.steps.out.display());
                TuningOutcome::Partial { why: vec![format!("it was interrupted: {resume}")] }
            }
            Err(Halt::Failed(error)) => {
                // Keep the measurements made so far.
                self.write(TuningOutcome::Partial { why: vec![error.in_words()] })?;
                return Err(error);
            }
        };
        let why = match &outcome {
            TuningOutcome::NotShown { why } => RunError::Refused(why.join("; ")),
            _ => RunError::Interrupted,
        };
        self.so_far(outcome).ok_or(why)
    }

    async fn find(&mut self) -> Result<TuningOutcome, Halt> {
        let StepRunner { subject, request, .. } = self.steps;
        let before = self.step(self.steps.before()).await?;
        // The settings for pod startup are chosen together with the sleep.
        let set = with_starts(&before, subject.settings(), subject.rollout);
        let has_starts = set != subject.settings();
        trusted(&before)?;
        let lost = lost_to(&before);
        if self.streams.is_none()
            && !lost.is_empty()
            && !has_starts
            && lost.iter().all(|lost| !may_help(&before, lost.cause))
        {
            return Ok(TuningOutcome::NotForASleep);
        }
        if let Some(why) = subject.too_few_connections(&before) {
            return Err(Halt::NotShown(vec![why]));
        }
        self.names = match names(&before) {
            PodNaming::Unknown if request.evidence == Some(EvidenceChoice::Any) => {
                self.means = Some(self.steps.means().await?);
                PodNaming::Known
            }
            names => names,
        };
        if self.streams.is_some() && self.names == PodNaming::Unknown {
            let why =
                format!("{NO_NAMES}, but a grace period for streams depends on that: add --evidence auto");
            return Err(Halt::NotShown(vec![why]));
        }
        let (sleep_s, has_lost) = (set.pre_stop_seconds, for_a_sleep(&before) > 0);
        let mut first = without_names(&before, sleep_s);
        let plan = self.steps.plan_after(&self.pace, self.names, first);
        self.say_plan(plan);
        let mut wish = Wish { before: set, may_shorten: request.shorten, least_s: 0 };
        if self.names == PodNaming::Known {
            if let Some(choice) = self.choose_by_windows(&mut wish).await? {
                let mut sleep_s = choice.settings.pre_stop_seconds;
                self.choice = Some(choice);
                if self.streams.is_some() {
                    sleep_s = self.measure_lengths(sleep_s).await?;
                }
                return self.proven(SleepSearch::from_windows(sleep_s, request.tight), wish).await;
            }
            first = first.max(self.seen.covers_s());
            if self.streams.is_some() {
                first = Some(self.measure_lengths(first.unwrap_or(1)).await?);
            }
        } else {
            self.steps.operator.viewer.note(&format!(
                "{NO_NAMES}, so the proofs determine the sleep, starting at {}",
                first.map_or_else(
                    || "1 s".to_owned(),
                    |first| format!("{first} s, as the first run's windows suggest")
                )
            ));
        }
        self.choice = Some(ChosenSettings {
            settings: set,
            consumers: Vec::new(),
            stopping_seconds: stopping(&before),
            streams: None,
        });
        let most = request.max_sleep.as_secs();
        self.proven(SleepSearch::by_losses((sleep_s, has_lost), first, (request.tight, most)), wish).await
    }

    /// Measures the windows, with longer sleeps if a window outlasts the sleep, and chooses settings. Adds the losses
    /// from starting pods in these runs to `wish`. Returns `None` if too few windows have bounds.
    async fn choose_by_windows(&mut self, wish: &mut Wish) -> Result<Option<ChosenSettings>, Halt> {
        let StepRunner { subject, request, operator, .. } = self.steps;
        for sleep_s in subject.sleeps(request.max_sleep) {
            let windows = self.step(self.steps.windows(subject.wide(sleep_s))).await?;
            trusted(&windows)?;
            wish.before = with_starts(&windows, wish.before, subject.rollout);
            wish.least_s = self.seen.least_s();
            match choose(&windows, sleep_s, *wish) {
                Ok(choice) => return Ok(Some(choice)),
                Err(Unknown::EndedEarly(early)) => {
                    return Err(Halt::NotShown(vec![decision_words::ended_early(&early)]));
                }
                Err(Unknown::Unsupported(why)) => {
                    let why = decision_words::unsupported(&why).join("; ");
                    operator.viewer.note(&format!(
                        "the windows alone do not determine a sleep ({why}), so the proofs do"
                    ));
                    return Ok(None);
                }
                Err(Unknown::Outlasted) => {
                    operator.viewer.say(&format!("a window outlasted the sleep of {sleep_s} s"));
                }
            }
        }
        let why = "a window lasted at least as long as the longest sleep: raise --max-sleep";
        Err(Halt::NotShown(vec![why.to_owned()]))
    }

    /// Proves sleeps until the search ends.
    async fn proven(&mut self, mut search: SleepSearch, wish: Wish) -> Result<TuningOutcome, Halt> {
        let subject = self.steps.subject;
        loop {
            let sleep_s = match search.next() {
                Next::Prove(sleep_s) => sleep_s,
                Next::Found(sleep_s) if self.seen.least_s() <= sleep_s => {
                    let settings = self.settings(wish, sleep_s)?;
                    let is_set = settings == subject.settings();
                    return Ok(if is_set { TuningOutcome::AlreadyRight } else { TuningOutcome::Proven });
                }
                // A window in another run lasted longer, so this sleep is too short.
                Next::Found(sleep_s) => {
                    search.learn(sleep_s, &Proof::TooShort { lost: 0, at_least: Some(self.seen.least_s()) });
                    continue;
                }
                Next::TooLong => {
                    let most = self.steps.request.max_sleep.as_secs();
                    let why = format!("a sleep of {most} s still loses requests: raise --max-sleep");
                    return Err(Halt::NotShown(vec![why]));
                }
                Next::TooMany => {
                    let why = format!("{MOST_PROOFS} sleeps were tried, and all of them lost requests");
                    return Err(Halt::NotShown(vec![why]));
                }
            };
            let settings = self.settings(wish, sleep_s)?;
            let plan = self.steps.proof(settings, search.error(1.0 - CONFIDENCE));
            let result = self.step(plan).await?;
            let mut proof = self.judged(&result, plan);
            if let Some(lost) = lost_at_starts(&result, subject.settings(), settings) {
                return Err(Halt::NotShown(vec![decision_words::lost_at_start(lost)]));
            }
            match &proof {
                Proof::Unknown(why) => {
                    return Err(Halt::NotShown(self.with_bound(decision_words::unproven(why))));
                }
                Proof::TooShort { lost, at_least } => {
                    let why = too_short(sleep_s, *lost, *at_least);
                    self.steps.operator.viewer.say(&format!("{why}; trying a longer one"));
                }
                Proof::CutsStreams { seen, most } => {
                    let why = decision_words::cuts_streams(*seen, *most);
                    self.steps.operator.viewer.say(&format!("{why}; allowing half as many cuts"));
                    proof = self.with_fewer_cuts(sleep_s, *seen, *most)?;
                }
                Proof::Holds => {}
            }
            search.learn(sleep_s, &proof);
            if let (Next::Prove(next_s), true) = (search.next(), proof != Proof::Holds) {
                let next = (next_s, search.error(1.0 - CONFIDENCE));
                self.say_plan(ForecastPlan(vec![self.steps.leg_of_proof(&self.pace, self.names, next)]));
            }
        }
    }

    /// Prints the remaining plan, based on the measurements so far.
    fn say_plan(&mut self, plan: ForecastPlan) {
        forecast::say_again(self.steps, &plan, (&self.pace, self.names));
        self.plan = Some(plan);
    }

    async fn verified(&mut self, plan: StepPlan) -> Result<TuningOutcome, Halt> {
        let result = self.step(plan).await?;
        let sleep_s = plan.settings.pre_stop_seconds;
        match self.judged(&result, plan) {
            Proof::Holds if plan.settings == self.steps.subject.settings() => Ok(TuningOutcome::AlreadyRight),
            Proof::Holds => Ok(TuningOutcome::Proven),
            Proof::TooShort { lost, at_least } => {
                Ok(TuningOutcome::NoLonger { why: vec![too_short(sleep_s, lost, at_least)] })
            }
            Proof::CutsStreams { seen, most } => {
                Ok(TuningOutcome::NoLonger { why: vec![decision_words::cuts_streams(seen, most)] })
            }
            Proof::Unknown(why) => Err(Halt::NotShown(self.with_bound(decision_words::unproven(&why)))),
        }
    }

    /// Judges the last run, a proof. A longer sleep might also have saved requests that were lost after the sleep
    /// without a known cause.
    fn judged(&self, result: &RunResult, plan: StepPlan) -> Proof {
        let unclear = self.done.last().map_or(0, TuningStep::unclear);
        let before = self.units_before(plan);
        match proof(result, plan.settings.pre_stop_seconds, plan.needed, before) {
            Proof::Holds if unclear > 0 => Proof::TooShort { lost: unclear, at_least: None },
            Proof::Holds => self.cut_too_many(plan.settings).unwrap_or(Proof::Holds),
            proof => proof,
        }
    }

    /// Returns the units shown by the interrupted parts of this proof.
    fn units_before(&self, plan: StepPlan) -> Option<Units> {
        (plan.purpose == Purpose::Proof).then(|| Units::of_parts(parts(&self.done, plan.settings))).flatten()
    }

    /// Returns the settings with this sleep, and makes them the chosen settings.
    fn settings(&mut self, wish: Wish, sleep_s: u64) -> Result<PodSettings, Halt> {
        let streams = self.streams_with(sleep_s)?;
        // Draining streams decide how long pods take to stop.
        let drains_s = streams.and_then(|streams| streams.drains_s(sleep_s));
        let stopping_s = drains_s.or(self.choice.as_ref().and_then(|choice| choice.stopping_seconds));
        let is_set = sleep_s == wish.before.pre_stop_seconds && !wish.may_shorten && drains_s.is_none();
        let settings = if is_set { wish.before } else { wish.settings(sleep_s, stopping_s) };
        if let Some(choice) = &mut self.choice {
            (choice.settings, choice.streams) = (settings, streams);
        }
        Ok(settings)
    }

    /// Appends the reason if the last run stopped before it had enough units.
    fn with_bound(&self, mut why: Vec<String>) -> Vec<String> {
        why.extend(self.state.runs[..self.replayed].last().and_then(|run| run.gave_up.clone()));
        why
    }

    /// Performs a run, and repeats it if it is invalid.
    async fn step(&mut self, mut plan: StepPlan) -> Result<RunResult, Halt> {
        plan.means = self.means;
        let mut repeats = 0;
        loop {
            let result = match self.replay(plan)? {
                Some(result) => result,
                // A run's future is large.
                None => Box::pin(self.make(plan)).await?,
            };
            if plan.purpose == Purpose::Before || self.first.is_none() {
                let took = self.state.runs[self.replayed - 1].took;
                self.pace = self.pace.clone().measured(&result, took);
                self.first = Some(result.clone());
            }
            match &result.verdict {
                Verdict::Invalid { why } if repeats < MOST_REPEATS => {
                    repeats += 1;
                    self.steps.operator.viewer.note(&format!(
                        "that run is invalid ({}); repeating it ({repeats} of {MOST_REPEATS})",
                        why.join("; ")
                    ));
                }
                _ => return Ok(result),
            }
        }
    }

    /// Reads the run from its directory if it is already complete, or if it was interrupted but had already shown all
    /// it could.
    fn replay(&mut self, plan: StepPlan) -> Result<Option<RunResult>, Halt> {
        while let Some(run) = self.state.runs.get(self.replayed).cloned() {
            if !run.plan.is_like(&plan) {
                let why = "with these arguments, this version would plan different runs. Start a new tuning";
                let out = self.steps.out.display();
                return Err(Halt::Failed(RunError::Refused(format!("failed to continue {out}: {why}"))));
            }
            self.replayed += 1;
            let Some((result, step)) = run.shown(self.steps.out)? else { continue };
            if step.requests > 0 {
                self.state.runs[self.replayed - 1].step = Some(step.clone());
                self.learn(step, &result);
            }
            let is_refuted = || {
                plan.purpose == Purpose::Proof
                    && matches!(result.verdict, Verdict::Partial { .. })
                    && refuted(&result, plan.settings.pre_stop_seconds).is_some()
            };
            if run.is_whole || is_refuted() {
                self.steps.operator.viewer.say(&format!("{}: already done", run.name));
                return Ok(Some(result));
            }
        }
        Ok(None)
    }

    /// Performs the run.
    async fn make(&mut self, plan: StepPlan) -> Result<RunResult, Halt> {
        let most_rollouts = self.rollouts_left(plan)?;
        let name = format!("{}-{}", self.state.runs.len() + 1, plan.purpose.name());
        self.state.runs.push(TuningRun::begin(name.clone(), plan));
        self.replayed = self.state.runs.len();
        self.state.write(self.steps.out)?;
        let later = self.plan.clone().unwrap_or_else(|| self.steps.plan_after(&self.pace, self.names, None));
        let outlook = Outlook {
            pace: self.pace.clone(),
            names: self.names,
            later: self.steps.later(plan.purpose, &later),
            most_rollouts,
            before: self.units_before(plan),
        };
        let ended = self.steps.run(plan, &name, outlook).await?;
        let EndedRun { analysis, is_interrupted, took, gave_up } = ended;
        let step = TuningStep::of(plan.purpose, &name, plan.settings, (&analysis.result, &analysis.lost));
        // A run interrupted before its load shows nothing.
        let step = Some(step).filter(|step| !is_interrupted || step.requests > 0);
        let run = TuningRun { name, plan, step: step.clone(), is_whole: !is_interrupted, took, gave_up };
        if let Some(last) = self.state.runs.last_mut() {
            *last = run;
        }
        self.state.write(self.steps.out)?;
        if let Some(step) = step {
            self.learn(step, &analysis.result);
        }
        self.first.get_or_insert_with(|| analysis.result.clone());
        self.write(TuningOutcome::Partial { why: vec!["it is still in progress".to_owned()] })?;
        if is_interrupted {
            return Err(RunError::Interrupted.into());
        }
        Ok(analysis.result)
    }

    fn learn(&mut self, step: TuningStep, result: &RunResult) {
        if !matches!(result.verdict, Verdict::Invalid { .. }) {
            self.seen = self.seen.and(LongestWindows::of(result));
            if let Some(aim) = &mut self.streams {
                aim.learn(result);
            }
        }
        self.done.push(step);
    }

    /// Returns the number of rollouts that a run may make for its windows; `None` if no flag limits it.
    fn rollouts_left(&self, plan: StepPlan) -> Result<Option<usize>, Halt> {
        let Some(most) = self.steps.request.max_rollouts else { return Ok(None) };
        let of = |run: &TuningRun| {
            self.steps.rollouts_of_changes(&run.plan) + run.step.as_ref().map_or(0, |step| step.rollouts)
        };
        let used: usize = self.state.runs.iter().map(of).sum();
        let changes = self.steps.rollouts_of_changes(&plan);
        match most.saturating_sub(used + changes) {
            0 => {
                let sleep_s = plan.settings.pre_stop_seconds;
                let leg = self.pace.leg(plan.purpose, (sleep_s, plan.needed), self.names);
                Err(Halt::NotShown(vec![format!(
                    "{} made so far, and --max-rollouts allows {most}: continue with rolldrop tune --resume {} \
                     --max-rollouts {}",
                    counted(used as u64, "rollout"),
                    self.steps.out.display(),
                    used + changes + leg.times
                )]))
            }
            left => Ok(Some(left)),
        }
    }

    /// Returns the tuning result so far, with this outcome; `None` before the first run.
    fn so_far(&self, outcome: TuningOutcome) -> Option<Tuning> {
        let StepRunner { subject, request, .. } = self.steps;
        let first = self.first.as_ref()?;
        let set = subject.settings();
        let settings = self.choice.as_ref().map(|choice| choice.settings);
        let price: Option<Price> = settings.map(|settings| subject.rollout.price(set, settings));
        let limits = settings.map(|settings| subject.limits.of(settings)).unwrap_or_default();
        Some(Tuning {
            schema_version: SCHEMA_VERSION,
            tool: Tool::this(),
            workload: subject.workload().to_owned(),
            containers: subject.sleepers.containers.to_vec(),
            cluster: first.cluster.clone(),
            coverage_asked: request.coverage,
            confidence: CONFIDENCE,
            before: set,
            steps: self.done.clone(),
            seen: self.seen,
            lost_before: lost_before(first, &self.done),
            chosen: self.choice.clone(),
            container_fields: settings.map(|settings| subject.container_fields(settings)).unwrap_or_default(),
            price,
            limits,
            outcome,
        })
    }

    /// Writes the tuning result so far.
    fn write(&self, outcome: TuningOutcome) -> Result<(), RunError> {
        self.so_far(outcome).map_or(Ok(()), |tuning| tuning_output::write_report(self.steps.out, &tuning))
    }
}

/// Explains why a sleep is too short.
fn too_short(sleep_s: u64, lost: u64, at_least: Option<u64>) -> String {
    let lost_words = format!("lost {} that a longer one might save", counted(lost, "request"));
    match (lost, at_least) {
        (0, Some(at_least)) => {
            format!("a sleep of {sleep_s} s is shorter than a measured window, which needs {at_least} s")
        }
        (_, Some(at_least)) => format!("a sleep of {sleep_s} s {lost_words}; the windows need {at_least} s"),
        (_, None) => format!("a sleep of {sleep_s} s {lost_words}"),
    }
}

/// Returns true if a sleep may prevent losses of this cause. That includes requests in flight at SIGTERM, because no
/// request arrives after a sleep that outlasts the window.
fn may_help(result: &RunResult, cause: Cause) -> bool {
    let avoidable = result.what_if.iter().map(|what_if| what_if.drops_avoided).max().unwrap_or(0);
    cause.is_helped_by_sleep() || (cause == Cause::KilledInFlight && avoidable > 0)
}

/// Stops the tuning unless a run's verdict is valid.
fn trusted(result: &RunResult) -> Result<(), Halt> {
    match &result.verdict {
        Verdict::Valid => Ok(()),
        Verdict::Invalid { why } | Verdict::Partial { why } => Err(Halt::NotShown(why.clone())),
    }
}
