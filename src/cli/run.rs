//! `rolldrop run`: the main job.
//!
//! Starts or connects to a cluster, deploys the scenario's manifests, sends the
//! load, disrupts, collects, and then makes the report from the run directory,
//! exactly as `rolldrop report` does. [`under_load`] has the part from the first
//! answer to the last row.

mod abort;
mod admin_secret;
mod args;
mod command;
mod consent;
mod dry;
mod evidence;
mod intent;
mod looks;
mod manifests;
mod ports;
mod programs;
mod reach;
mod rounds;
mod sending;
mod settings;
mod target;
mod under_load;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::compare::Percent;
use super::exit::Exit;
use super::measure::MeasureArgs;
use super::private_dir;
use super::progress::Progress;
use super::report;
use super::runtime;
use super::say::say;
use super::signals::Interrupts;
use admin_secret::AdminSecret;
pub(super) use args::RunArgs;
use command::UserCommand;
pub(super) use consent::{Consent, Naming, confirm, flag_of};
pub(super) use evidence::why_no_evidence;
use intent::Intent;
pub(super) use ports::check_here;
use rolldrop_drive::cluster::{Choice, Cluster};
use rolldrop_drive::coordinator::{
    Caller, Closed, CoordinatorError, GitOps, Limits, Ready, Session, SessionStart, Undone,
};
use rolldrop_explain::RunResult;
use rolldrop_kubernetes::guard::names::is_dns_label;
use rolldrop_load as load;
use rolldrop_load::process::Process;
use rolldrop_record::run_info::{RunInfo, Source};
use rolldrop_record::wire::AdminToken;
use rolldrop_record::{Clock, EventKind, Looks, Policy, RoundsEnd, RunDir, Stamp};
use rolldrop_scenario::{Loaded, Scenario};
use rolldrop_sidecar::inject::ending::{Ending, Sleepers};
use sending::Sending;
pub(super) use sending::{Collecting, Resources};
use settings::{expected_targets, load_settings};
pub(super) use target::{TargetArg, as_override};
use under_load::Measuring;

impl RunArgs {
    /// Runs the command.
    pub(super) fn run(mut self) -> anyhow::Result<ExitCode> {
        let command = UserCommand::find(std::mem::take(&mut self.command))?;
        let Loaded { scenario, cluster } = self.scenario()?;
        let consent = Consent::Asked(self.naming(cluster.as_ref()));
        let looks = looks::planned(self.inconclusive, self.max_looks, &scenario, command.is_some())?;
        let extras = Extras { command: command.as_ref(), looks, ..Extras::default() };
        let job = Job::new(scenario, &self.measure, consent, extras)?;
        let clock = Clock::start();
        let runtime = runtime::with_threads(2)?;
        if self.dry_run {
            let progress = Progress::new(self.measure.quiet, clock);
            let planned = runtime.block_on(async {
                let interrupts = Interrupts::listen()?;
                job.dry_run(|logs| self.choice(cluster, logs), &interrupts, &progress).await
            });
            progress.done();
            return planned.map(|()| ExitCode::SUCCESS);
        }
        let out =
            self.out.clone().unwrap_or_else(|| default_out("rolldrop-runs", &job.scenario.name, clock.now()));
        let run_dir = RunDir::create(&out).context("failed to make the run directory")?;
        let choice = self.choice(cluster, &out);
        let measured = runtime.block_on(async {
            let interrupts = Interrupts::listen()?;
            let progress = Progress::new(self.measure.quiet, clock);
            let measured = job.carry_out(choice, &run_dir, clock, &interrupts, &progress).await;
            progress.done();
            measured
        });
        let interrupted = measured.inspect_err(|_| run_dir.discard_if_empty())?;
        let result = report::make(&run_dir, self.format)?;
        let exit = Exit::of(&result, interrupted);
        if let (Exit::Inconclusive, Some(looks)) =
            (exit, result.looks.as_ref().filter(|looks| looks.is_last()))
        {
            say(&format!("the gate is still inconclusive after the last of {} looks", looks.most()));
        }
        Ok(exit.settled(self.inconclusive).into())
    }
}

/// Settings that only some commands add to a run.
#[derive(Default)]
pub(super) struct Extras<'a> {
    /// Ends pods, in place of the scenario's disruptions.
    pub(super) command: Option<&'a UserCommand>,
    /// Looks at its gate, if the run continues while the gate is inconclusive.
    pub(super) looks: Option<Looks>,
    /// Policy on how sure its recommendation must be.
    pub(super) policy: Policy,
    /// Settings of its rounds, if it has several.
    pub(super) covering: Option<Covering<'a>>,
    /// Text about what the run is part of, given the number of terminations so far.
    pub(super) told: Option<&'a dyn Fn(usize) -> String>,
    /// Name of the tuning that the run is part of, under which workloads are marked as in use.
    pub(super) holder: Option<&'a str>,
    /// Settings for how the pods of a workload that is not the run's own end during the run.
    pub(super) ending: Option<(&'a Sleepers, Ending)>,
}

/// Settings of a run in several rounds.
#[derive(Clone, Copy)]
pub(super) struct Covering<'a> {
    pub(super) most_rounds: usize,
    /// Judges what a look after a round shows.
    pub(super) goal: &'a dyn Fn(&RunResult) -> Look,
}

/// Result of a look after a round.
pub(super) struct Look {
    /// The units that count so far.
    pub(super) counted: usize,
    /// Number of these that it takes.
    pub(super) needed: usize,
    /// Progress, in words.
    pub(super) said: String,
    /// Number of pods that the next round ends, or the reason why there is none.
    pub(super) next: Result<usize, (RoundsEnd, String)>,
}

/// A run to be made.
pub(super) struct Job<'a> {
    pub(super) scenario: Scenario,
    measure: &'a MeasureArgs,
    consent: Consent,
    admin_token: Option<AdminToken>,
    admin_secret: Option<AdminSecret>,
    extras: Extras<'a>,
}

impl<'a> Job<'a> {
    /// Checks what can be checked before a cluster is started.
    ///
    /// # Errors
    /// Fails if its settings cannot work.
    pub(super) fn new(
        mut scenario: Scenario,
        measure: &'a MeasureArgs,
        consent: Consent,
        extras: Extras<'a>,
    ) -> anyhow::Result<Self> {
        let mut admin_token = measure.admin_token.token()?;
        let admin_secret = manifests::inject_sidecar(&mut scenario, &mut admin_token)?;
        if let Some(image) = &measure.image {
            scenario.manifests.iter_mut().for_each(|manifest| manifests::replace_image(manifest, image));
        }
        programs::check(&scenario)?;
        load::Plan::new(load_settings(&scenario, &expected_targets(&scenario))?)?;
        Ok(Self { scenario, measure, consent, admin_token, admin_secret, extras })
    }

    fn intent(&self) -> Intent<'_> {
        let MeasureArgs { image, change_gitops, yes, collecting, max_busy, assume, no_beats, .. } =
            self.measure;
        Intent {
            image: image.as_deref().unwrap_or("rolldrop"),
            gitops: if *change_gitops { GitOps::Change } else { GitOps::Refuse },
            admin_secret: self.admin_secret.as_ref(),
            consent: self.consent,
            yes: *yes,
            collecting,
            max_busy: max_busy.map(Percent::share),
            service_proxy: assume.service_proxy(),
            beats: !no_beats,
            extras: &self.extras,
        }
    }

    /// Prints each call of the API server that it would make, and changes nothing.
    ///
    /// # Errors
    /// Fails if the run could not be made.
    pub(super) async fn dry_run(
        &self,
        choice: impl FnOnce(&Path) -> Choice,
        interrupts: &Interrupts,
        progress: &Progress,
    ) -> anyhow::Result<()> {
        // Private, because it holds the kubeconfig of an embedded cluster. It is removed after the dry run.
        let scratch = private_dir("rolldrop-dry-run-").context("failed to make a temporary directory")?;
        let (namespace, shown) = (self.measure.namespace.clone(), (interrupts, progress));
        let planned =
            dry::plan(&self.scenario, choice(scratch.path()), namespace, &self.intent(), shown).await;
        scratch.close().context("failed to remove the temporary directory")?;
        for (number, call) in (1..).zip(&planned?.calls) {
            report::print(&format!("{number:>4}  {call}\n"))?;
        }
        Ok(())
    }

    /// Measures, and returns whether it was interrupted.
    ///
    /// # Errors
    /// Fails if nothing could be measured.
    pub(super) async fn carry_out(
        &self,
        choice: Choice,
        run_dir: &RunDir,
        clock: Clock,
        interrupts: &Interrupts,
        progress: &Progress,
    ) -> anyhow::Result<bool> {
        let admin_token = self.admin_token.clone();
        let run = Run { clock, run_dir, interrupts, progress, admin_token, intent: self.intent() };
        progress.show(run.carry_out(&self.scenario, choice, self.measure.namespace.clone())).await
    }
}

/// Time limit for a run to close its records after its cluster has ended. It usually takes a second.
const AFTER_THE_CLUSTER: Duration = Duration::from_secs(20);

async fn connect(choice: Choice, interrupts: &Interrupts, progress: &Progress) -> anyhow::Result<Cluster> {
    if matches!(choice, Choice::Embedded { .. }) {
        progress.step("starting the cluster");
    }
    let cluster = match interrupts.stop.run_until_cancelled(Cluster::connect(choice)).await {
        Some(cluster) => cluster.context("failed to get a cluster")?,
        None => bail!(Interrupted),
    };
    if let Some(title) = cluster.title() {
        progress.step(&format!("connecting to {title}"));
    }
    Ok(cluster)
}

pub(super) fn caller(
    cluster: &Cluster,
    namespace: Option<String>,
    interrupts: &Interrupts,
) -> anyhow::Result<Caller> {
    let namespace = namespace.unwrap_or_else(|| cluster.default_namespace().to_owned());
    if !is_dns_label(&namespace) {
        bail!(
            "{namespace:?} is not a valid namespace name, which has lowercase letters, digits and dashes: give \
             another with -n (or in the context of the kubeconfig)"
        );
    }
    Ok(Caller {
        client: cluster.client(),
        warnings: cluster.warnings(),
        namespace,
        limits: Limits::default(),
        // A run can also stop without an interruption.
        stop: interrupts.stop.child_token(),
    })
}

/// Context of a run.
struct Run<'a> {
    clock: Clock,
    run_dir: &'a RunDir,
    interrupts: &'a Interrupts,
    progress: &'a Progress,
    /// The token of the proxies' admin ports.
    admin_token: Option<AdminToken>,
    intent: Intent<'a>,
}

impl Run<'_> {
    /// Measures, and returns whether it was interrupted. When nothing could be measured, that is an error.
    async fn carry_out(
        &self,
        scenario: &Scenario,
        choice: Choice,
        namespace: Option<String>,
    ) -> anyhow::Result<bool> {
        let cluster = connect(choice, self.interrupts, self.progress).await?;
        if let Some(notice) = cluster.notice() {
            self.progress.note(notice);
        }
        let measured = match caller(&cluster, namespace, self.interrupts) {
            Ok(caller) => self.measure_on(scenario, &cluster, caller).await,
            Err(error) => Err(error),
        };
        self.progress.step("shutting down");
        cluster.shut_down().await;
        measured
    }

    /// Measures. The end of the cluster ends the run.
    async fn measure_on(
        &self,
        scenario: &Scenario,
        cluster: &Cluster,
        caller: Caller,
    ) -> anyhow::Result<bool> {
        let (halt, give_up) = (caller.stop.clone(), self.interrupts.abort.child_token());
        let mut measuring = std::pin::pin!(self.measure(scenario, cluster, caller, &give_up));
        let died = tokio::select! {
            measured = &mut measuring => return measured,
            died = cluster.died() => died,
        };
        halt.cancel();
        give_up.cancel();
        // Keeps what was recorded, as far as that does not need the cluster.
        let _ = timeout(AFTER_THE_CLUSTER, measuring).await;
        Err(died.into())
    }

    async fn measure(
        &self,
        scenario: &Scenario,
        cluster: &Cluster,
        caller: Caller,
        give_up: &CancellationToken,
    ) -> anyhow::Result<bool> {
        let first = caller.at_first_contact();
        let load_workers = sending::load_workers(scenario, cluster, &first).await?;
        let plan = self.intent.plan(scenario, &first, load_workers).await?;
        plan.warnings.iter().for_each(|warning| self.progress.warn(warning));
        first.check_rights(&plan).await.map_err(interruption)?;
        let open_end = self.intent.open_end(scenario);
        ports::check(scenario, cluster, &first, load_workers, open_end, self.interrupts).await?;
        evidence::check(scenario, cluster, load_workers, self.interrupts).await?;
        let Self { progress, interrupts, intent, .. } = self;
        consent::ask(&plan, cluster, &caller.namespace, intent, progress, interrupts).await?;
        let run = run_name(&scenario.name, self.clock.now());
        let halt = caller.stop.clone();
        let mut session = Session::begin(SessionStart {
            caller: caller.clone(),
            run: &run,
            cluster: cluster.origin(),
            run_dir: self.run_dir,
            clock: self.clock,
            admin_token: self.admin_token.clone(),
            gitops: self.intent.gitops,
            viewer: self.progress.viewer(),
        })
        .await
        .map_err(interruption)?;
        plan.findings.iter().for_each(|finding| self.warn(&session, finding));
        let held = session.hold(&plan.holds, intent.extras.holder.unwrap_or(&run)).await;
        let loaded = match held {
            Ok(()) => self.load_and_disrupt(scenario, cluster, &session, &halt, load_workers).await,
            Err(error) => Err(interruption(error)),
        };
        // Also after an error, so that what the session created is removed.
        let last = if session.has_changes() { "undoing what was changed" } else { "closing the record" };
        self.progress.step(last);
        let finished = session.finish(give_up.clone()).await;
        let closed = closed(finished, loaded.is_err(), |error| self.progress.warn(error))?;
        let Closed { sources, undone, events } = closed;
        let written = loaded.and_then(|info| self.write(RunInfo { events, ..info }, sources, give_up));
        // A cluster that ends with the run takes its objects with it.
        if cluster.origin().is_some() {
            self.leave(&undone, caller, give_up).await;
        }
        written
    }

    /// Writes down what the run was, and returns whether it was interrupted.
    fn write(
        &self,
        mut info: RunInfo,
        sources: Vec<Source>,
        give_up: &CancellationToken,
    ) -> anyhow::Result<bool> {
        info.sources.extend(sources);
        info.ended = Some(self.clock.now());
        info.interrupted = self.interrupts.stop.is_cancelled();
        info.complete = !info.interrupted && info.aborted.is_none() && !give_up.is_cancelled();
        self.run_dir.write_info(&info)?;
        Ok(info.interrupted)
    }

    /// Says what could not be undone, and waits until the rest has taken effect. The record is whole by now: an
    /// interruption ends only the wait.
    async fn leave(&self, undone: &[Undone], caller: Caller, give_up: &CancellationToken) {
        let mut left = undone.iter().filter(|undone| undone.is_left()).peekable();
        let is_left = left.peek().is_some();
        left.for_each(|undone| self.progress.warn(&undone.to_string()));
        if is_left {
            let run = self.run_dir.path().display();
            self.progress.warn(&format!("`rolldrop cleanup {run}` undoes what could not be undone"));
        }
        let stop = match self.interrupts.stop.is_cancelled() {
            true => give_up.clone(),
            false => self.interrupts.stop.clone(),
        };
        let tell =
            |what: &str| self.progress.step(&format!("waiting until all is as before the run: {what}"));
        if let Err(not_yet) = (Caller { stop, ..caller }).await_effect(undone, tell).await {
            self.progress.warn(&not_yet.to_string());
        }
    }

    async fn load_and_disrupt(
        &self,
        scenario: &Scenario,
        cluster: &Cluster,
        session: &Session,
        halt: &CancellationToken,
        load_workers: Option<usize>,
    ) -> anyhow::Result<RunInfo> {
        let ready = self.deploy(scenario, session).await?;
        let mut settings = load_settings(scenario, &ready.seen_from_here())?;
        if let Some(end) = self.intent.open_end(scenario) {
            settings.pace = settings.pace.held_until(end);
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
        // The load comes from a place that can reach the cluster's Services, which may not be here.
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
        let measuring = Measuring { run: self, scenario, cluster, session, halt };
        let measured = measuring.measure(&ready, settings, &mut sending).await;
        sending.end().await;
        measured
    }

    /// Deploys the target, and waits until it is ready.
    async fn deploy(&self, scenario: &Scenario, session: &Session) -> anyhow::Result<Ready> {
        // Secrets first, so that they are removed last: pods may still need them while they end.
        let secrets = self.intent.secrets(scenario, session.namespace());
        let deploys = !scenario.manifests.is_empty();
        if deploys || !secrets.is_empty() {
            self.progress.step("deploying");
        }
        session.deploy(&secrets).await.map_err(interruption)?;
        session.deploy(&scenario.manifests).await.map_err(interruption)?;
        if let Some(changes) = self.intent.live(scenario) {
            self.progress.step("changing the workload, and waiting for the rollout");
            let notes = session.change_workloads(&changes).await.map_err(interruption)?;
            notes.iter().for_each(|note| self.progress.say(note));
        }
        let last = if deploys { "waiting for the pods to be ready" } else { "looking at the target" };
        self.progress.step(last);
        let disruptions = if self.intent.extras.command.is_some() { &[][..] } else { &scenario.disruptions };
        let ready = session.await_ready(scenario, disruptions).await;
        let mut ready = ready.map_err(interruption)?;
        if let Some(stated) = self.intent.service_proxy {
            ready.cluster.assume(stated)?;
        }
        Ok(ready)
    }

    /// Shows and records a warning about the result.
    fn warn(&self, session: &Session, message: &str) {
        self.progress.warn(message);
        session.record(EventKind::Warning { message: message.to_owned() });
    }
}

/// Returns the result of closing a run. If the run had failed before, its own error is the one to report, as it may be
/// the cause of this one; this one is then only a warning.
fn closed<T: Default>(
    finished: Result<T, CoordinatorError>,
    has_failed: bool,
    warn: impl FnOnce(&str),
) -> Result<T, CoordinatorError> {
    finished.or_else(|error| {
        if !has_failed {
            return Err(error);
        }
        warn(&format!("the run could not be closed either: {error}"));
        Ok(T::default())
    })
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

/// Returns a unique name, valid as the value of a label.
pub(super) fn run_name(scenario: &str, now: Stamp) -> String {
    let time = jiff::Timestamp::from_nanosecond(now.unix_ns().into()).unwrap_or_default();
    let scenario: String = scenario.chars().take(40).collect();
    format!("{scenario}-{}", time.strftime("%Y%m%dT%H%M%S.%3fZ"))
}

/// Returns `rolldrop-runs/NAME-TIME`, followed by a number if that exists.
pub(super) fn default_out(folder: &str, name: &str, now: Stamp) -> PathBuf {
    let time = jiff::Timestamp::from_nanosecond(now.unix_ns().into()).unwrap_or_default();
    let base = PathBuf::from(folder).join(format!("{name}-{}", time.strftime("%Y%m%dT%H%M%SZ")));
    if !base.exists() {
        return base;
    }
    (2..).map(|n| base.with_added_extension(n.to_string())).find(|path| !path.exists()).unwrap_or(base)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_close_keeps_original_error() {
        let unclosed =
            || CoordinatorError::Timeout { what: "close".to_owned(), limit: Duration::from_secs(1) };
        let mut warnings = Vec::new();
        let mut warn = |text: &str| warnings.push(text.to_owned());
        let after_a_failure = closed::<Vec<u8>>(Err(unclosed()), true, &mut warn);
        assert!(matches!(after_a_failure, Ok(nothing) if nothing.is_empty()));
        assert!(closed::<Vec<u8>>(Err(unclosed()), false, &mut warn).is_err());
        assert!(matches!(closed(Ok(vec![1]), true, &mut warn), Ok(sources) if sources == [1]));
        assert_eq!(warnings, [format!("the run could not be closed either: {}", unclosed())]);
    }
}
