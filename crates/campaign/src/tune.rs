//! Finds and proves the shortest preStop sleep with which no request is lost.
//!
//! A tuning consists of several runs, each in its own directory: one with the current settings; one in which pods sleep
//! long enough to show complete windows, if something names the pods; and one with the chosen settings (`tuner`).
//! Each run leaves the cluster as it found it. [`rolldrop_judge::tuning`] draws the conclusions.

mod evidence_choice;
mod forecast;
mod platform_limits;
mod resume;
mod state;
mod step_runner;
mod subject;
mod tuner;
mod tuning_output;

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use evidence_choice::{EvidenceChoice, Means};
pub use resume::verified;
use rolldrop_drive::api::Caller;
use rolldrop_drive::cluster::Cluster;
use rolldrop_drive::embedded::lab::ClusterConfig;
use rolldrop_drive::plan::{GitOps, RunPlan};
use rolldrop_drive::run::{self, RunError, RunOptions, RunSource};
use rolldrop_drive::{Interrupts, Operator};
use rolldrop_judge::tuning::{ChosenSettings, Tuning, TuningOutcome};
use rolldrop_record::Clock;
use rolldrop_report::TextOptions;
use rolldrop_scenario::{Loaded, Scenario};
pub use state::TuningState;
pub use step_runner::Disrupt;
use step_runner::StepRunner;
use subject::{Elsewhere, Subject};
use tuner::Tuner;

/// Confidence level of a tuning's conclusions.
const CONFIDENCE: f64 = 0.95;
const NO_NAMES: &str = "responses do not show which pods new connections reached";

/// Tuning requested by the user.
pub struct TuningRequest {
    /// The scenario and the cluster.
    pub source: RunSource,
    /// Settings of the runs.
    pub options: RunOptions,
    /// Share of future rollouts, or pod terminations, that the sleep must cover.
    pub coverage: f64,
    /// Longest sleep to try.
    pub max_sleep: Duration,
    /// Action that terminates pods, if the user chose one.
    pub disrupt: Option<Disrupt>,
    /// Means of naming the pods if responses do not name them.
    pub evidence: Option<EvidenceChoice>,
    /// Mean number of streams that a termination may cut, to choose a grace period for streams.
    pub max_cut: Option<f64>,
    /// True to also prove that one second less would lose requests.
    pub tight: bool,
    /// Maximum number of rollouts to make.
    pub max_rollouts: Option<usize>,
    /// Time that pods get when their node shuts down.
    pub shutdown_budget: Option<Duration>,
    /// Containers that get the sleep; empty for the serving ones.
    pub containers: Vec<String>,
    /// True if the sleep may be prepended to an existing hook.
    pub prefix_hook: bool,
    /// True if the grace period may be reduced.
    pub shorten: bool,
    /// True to leave the chosen settings applied in the cluster.
    pub apply: bool,
    /// Manifest of the workload; the lines to change in it are printed.
    pub file: Option<PathBuf>,
    /// True to only plan, without changing anything.
    pub dry_run: bool,
    /// Directory for the tuning, if the user chose one.
    pub out: Option<PathBuf>,
    /// Command arguments; a resumed tuning uses them again.
    pub arguments: Vec<OsString>,
    /// Prints text for the user.
    pub print: fn(&str) -> io::Result<()>,
    /// Formatting options for printed results.
    pub text: TextOptions,
}

/// Result of the tune command.
pub enum TuningEnd {
    /// No sleep helps the workload.
    Futile,
    /// API calls of one run, as planned by a dry run.
    Planned(RunPlan),
    /// Outcome of a tuning that was carried out.
    Tuned(TuningOutcome),
}

impl TuningRequest {
    /// Connects to the cluster of a loaded scenario. The logs of an embedded cluster go to `logs`. The caller shuts the
    /// cluster down.
    async fn connect(
        &self,
        loaded: Loaded<ClusterConfig>,
        logs: &Path,
        interrupts: &Interrupts,
    ) -> Result<(Scenario, Cluster, Caller), RunError> {
        let cluster = Cluster::connect(self.source.choice(loaded.cluster, logs)).await;
        let cluster = cluster.map_err(RunError::failed("failed to connect to the cluster"))?;
        let caller = run::caller(&cluster, self.options.namespace.as_deref(), interrupts)?;
        Ok((loaded.scenario, cluster, caller))
    }

    fn print(&self, text: &str) -> Result<(), RunError> {
        (self.print)(text).map_err(RunError::failed("failed to write to stdout"))
    }

    /// Starts a tuning from scratch, resumes an earlier one, or only proves an earlier choice again.
    ///
    /// # Errors
    /// Fails if nothing could be measured.
    pub async fn tune(
        &self,
        clock: Clock,
        operator: &Operator,
        resumed: Option<TuningState>,
        verified: Option<ChosenSettings>,
    ) -> Result<TuningEnd, RunError> {
        if let (Some(state), Some(dir)) = (&resumed, &self.out) {
            resume::put_back(self, state, dir, operator).await?;
        }
        let subject = Subject::find(self, &operator.interrupts).await?;
        if let Some(controller) = subject.managed_by().filter(|_| self.options.gitops == GitOps::Refuse) {
            return Err(RunError::Refused(tuning_output::to_a_repository(
                &subject,
                controller,
                self.max_sleep,
            )));
        }
        if let Some(why) = subject.why_no_sleep_helps() {
            self.print(&format!("{why}\n"))?;
            return Ok(TuningEnd::Futile);
        }
        if self.apply && subject.is_own {
            let why =
                "--apply needs an existing workload; this scenario deletes its own. Use the printed patch.";
            return Err(RunError::Refused(why.to_owned()));
        }
        if let Some(state) = &resumed {
            resume::check(state, &subject)?;
        }
        let out = self
            .out
            .clone()
            .unwrap_or_else(|| run::default_out("rolldrop-tune", &subject.name(), clock.now()));
        let mut steps =
            StepRunner { request: self, subject: &subject, out: &out, operator, clock, holder: None };
        let takes = forecast::say(&steps, verified.is_some());
        if self.dry_run {
            return steps.dry_run().await.map(TuningEnd::Planned);
        }
        forecast::ask(&steps, takes).await?;
        let failed = || format!("failed to create {}", out.display());
        std::fs::create_dir_all(&out).map_err(RunError::failed(failed()))?;
        let cluster = subject.elsewhere.as_ref().map(|Elsewhere { title, .. }| title.clone());
        let state = match resumed {
            Some(state) => state,
            None => TuningState::begin(&self.arguments, cluster, subject.object.clone())?,
        };
        let tenure = subject.hold(self, &operator.interrupts, (&out, clock)).await?;
        steps.holder = tenure.as_ref().map(|tenure| tenure.run().to_owned());
        let tuned = self.carry_out(&steps, state, verified).await;
        if let Some(tenure) = tenure {
            let released = tenure.end(operator.interrupts.abort.clone()).await;
            released
                .iter()
                .filter(|undone| undone.is_left())
                .for_each(|undone| operator.viewer.warn(&undone.to_string()));
        }
        tuned.map(TuningEnd::Tuned)
    }

    /// Performs the runs and reports the conclusions.
    async fn carry_out(
        &self,
        steps: &StepRunner<'_>,
        state: TuningState,
        verified: Option<ChosenSettings>,
    ) -> Result<TuningOutcome, RunError> {
        let tuner = Tuner::new(steps, state);
        let tuning = match verified {
            Some(chosen) => tuner.verify(chosen).await?,
            None => tuner.tune().await?,
        };
        self.hand_over(steps, &tuning).await?;
        Ok(tuning.outcome)
    }

    /// Writes and prints the result, and applies it if requested.
    async fn hand_over(&self, steps: &StepRunner<'_>, tuning: &Tuning) -> Result<(), RunError> {
        let StepRunner { subject, out, operator, .. } = steps;
        tuning_output::write_report(out, tuning)?;
        let chosen = tuning.chosen.as_ref().filter(|_| tuning.outcome.is_shown());
        let basis = rolldrop_report::tuning_headline(tuning);
        for file in chosen.map(|choice| tuning_output::patches(subject, choice, &basis)).unwrap_or_default() {
            tuning_output::write(out, &file)?;
        }
        self.print(&rolldrop_report::tuning_text(tuning, &self.text))?;
        if let (Some(path), Some(choice)) = (&self.file, chosen) {
            self.print(&tuning_output::lines(path, subject, choice)?)?;
        }
        if let (true, Some(choice)) = (self.apply, chosen) {
            steps.apply(choice.settings).await?;
        }
        let patches = if chosen.is_some() { ", tune.md and the patches" } else { " and tune.md" };
        operator.viewer.say(&format!("the runs{patches} are in {}", out.display()));
        Ok(())
    }
}
