//! The measured part of a run: sends the load, terminates pods, and collects the records of both.

use std::convert::Infallible;
use std::ffi::OsString;
use std::future::pending;
use std::time::{Duration, Instant};

use tokio::time::{sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::abort;
use super::command::UserCommand;
use super::disruption_rounds::{Round, Sent};
use super::error::RunError;
use super::local_programs::UserPrograms;
use super::sending::{self, Sending};
use super::settings::redacted;
use super::{FinishedRequests, RunContext};
use super::{load_stages, reach};
use crate::act::{Settle, Silence, UnderLoad, until_silent};
use crate::cluster::Cluster;
use crate::error::CoordinatorError;
use crate::follow;
use crate::observe::ReadyTargets;
use crate::observe::foreign_changes::until_others_change;
use crate::observe::rollout_wait::workloads;
use crate::session::Session;
use crate::viewer::Planned;
use rolldrop_load as load;
use rolldrop_load::load_process::Note;
use rolldrop_load::remote::row_collector::Collected;
use rolldrop_record::run_info::{FORMAT_VERSION, LoadPlan, RunInfo, Tool};
use rolldrop_record::{ALPHA, EventKind, Looks, Rounds, Stamp};
use rolldrop_scenario::{Disruption, Place, Scenario};

/// Time limit for the target's first response, once its pods are ready.
const FIRST_ANSWER_LIMIT: Duration = Duration::from_secs(45);
/// Length of the load before a command is run, if none of the scenario's disruptions determines it.
const STEADY_PART: Duration = Duration::from_secs(3);
/// Time before the first disruption at which the beats begin.
const BEATS_BEFORE: Duration = Duration::from_secs(1);
/// Time for which the load continues after a command's effects have settled, because a Service proxy may lag by about a
/// second.
const AFTERMATH: Duration = Duration::from_secs(3);

/// A run whose pods are ready.
#[derive(Clone, Copy)]
pub(super) struct Measuring<'a> {
    pub(super) run: &'a RunContext<'a>,
    pub(super) scenario: &'a Scenario,
    pub(super) cluster: &'a Cluster,
    pub(super) session: &'a Session,
    /// Cancelled when the run is interrupted or given up.
    pub(super) halt: &'a CancellationToken,
}

impl Measuring<'_> {
    /// Measures from the first response to the last row.
    pub(super) async fn measure<N: Note>(
        self,
        ready: &ReadyTargets,
        settings: load::Load,
        sending: &mut Sending<N>,
    ) -> Result<RunInfo, RunError> {
        let plan = load::Plan::new(settings.clone())?;
        self.await_first_answer(ready, &plan, settings, sending).await?;
        let mut info = self.info(ready, &plan, sending);
        // From now on, the directory shows whether the run was killed.
        self.run.run_dir.write_info(&info)?;
        self.load(&plan, &mut info, sending).await?;
        self.collect(&mut info, sending).await?;
        Ok(info)
    }

    async fn await_first_answer<N: Note>(
        self,
        ready: &ReadyTargets,
        plan: &load::Plan,
        settings: load::Load,
        sending: &mut Sending<N>,
    ) -> Result<(), RunError> {
        let Self { run, scenario, cluster, session, .. } = self;
        run.viewer.step("waiting for the first answer");
        let prepared = sending.prepare(settings, plan.run().clone(), FIRST_ANSWER_LIMIT, ready);
        match run.interrupts.stop.run_until_cancelled(prepared).await {
            Some(Ok(warnings)) => {
                warnings.iter().for_each(|warning| run.viewer.warn(warning));
                Ok(())
            }
            Some(Err(error)) if cluster.is_entered() || sending.nodes().is_some() => Err(error),
            Some(Err(error)) => {
                let ways = reach::other_ways(session.caller(), scenario).await;
                Err(RunError::failed(ways)(error))
            }
            None => Err(RunError::Interrupted),
        }
    }

    /// Describes the run as far as it is known before its load starts.
    fn info<N: Note>(self, ready: &ReadyTargets, plan: &load::Plan, sending: &Sending<N>) -> RunInfo {
        let Self { run, scenario, .. } = self;
        let mut info = RunInfo {
            format: FORMAT_VERSION,
            tool: Tool::this(),
            run: plan.run().clone(),
            name: scenario.name.clone(),
            scenario: redacted(scenario),
            expect: scenario.expect.clone(),
            cluster: ready.cluster.clone(),
            targets: ready.seen_from_here(),
            load: plan.load_plan(),
            sources: sending.recorders(),
            started: run.clock.now(),
            ended: None,
            complete: false,
            interrupted: false,
            max_busy: run.job.options.max_busy,
            aborted: None,
            looks: run.job.extras.looks.as_ref().map(|planned| planned.looks.clone()),
            rounds: None,
            policy: run.job.extras.policy,
            events: None,
        };
        if let Some(nodes) = sending.nodes() {
            info.targets = ready.seen_from(&nodes);
            sending::describe(&mut info.load, info.sources.len(), &nodes, ready);
        }
        info
    }

    /// Sends the whole load while pods are terminated.
    async fn load<N: Note>(
        self,
        plan: &load::Plan,
        info: &mut RunInfo,
        sending: &mut Sending<N>,
    ) -> Result<(), RunError> {
        let Self { run, scenario, cluster, session, .. } = self;
        let has_command = run.job.extras.command.is_some();
        if cluster.origin().is_some()
            && !has_command
            && let Some(too_early) = abort::disrupts_a_ramp(scenario)
        {
            run.warn(session, &too_early);
        }
        let LoadPlan { rate, duration_s, warmup_s, .. } = info.load;
        let started = sending.start().await?;
        let zero = started + scenario.load.settings.warmup;
        session.record_at(started, EventKind::LoadStarted { rate, duration_s, warmup_s });
        let (control, early, begun) = (sending.control().clone(), sending.early_rows(), info.clone());
        let lasts_for_others = run.job.open_end().is_some();
        let has_open_end = lasts_for_others || scenario.ends_with_its_disruptions();
        let told = run.job.extras.told.map(|told| move || told(session.pods_ended()));
        let part_of = told.as_ref().map(|told| told as &dyn Fn() -> String);
        let planned = match Planned::of(plan) {
            planned if lasts_for_others || told.is_some() => {
                Planned { requests: None, length: None, ..planned }
            }
            planned if has_open_end => Planned { requests: None, may_end_before: true, ..planned },
            planned => planned,
        };
        run.viewer.step(match (has_command, scenario.disruptions.as_slice()) {
            (false, []) => "watching for changes by others",
            _ => "sending the load",
        });
        let loading = follow(sending.join(), &control, &planned, part_of, run.operator);
        let stages = plan.stages();
        let stages =
            load_stages::announce_stages(run.clock, zero, &stages, |at, kind| session.record_at(at, kind));
        let giving_up = async {
            info.aborted = Some(self.given_up(&control).await);
            pending::<Infallible>().await
        };
        let beats = self.beat(zero);
        // An interruption, or the death of the cluster, stops the load.
        let halted = async {
            self.halt.cancelled().await;
            control.stop();
            pending::<Infallible>().await
        };
        let sent = Sent { control: &control, info: &begun, early: early.as_ref() };
        let ((looks, rounds), ended) = tokio::try_join!(self.disrupt((zero, rate), sent), async {
            tokio::select! {
                ended = loading => ended,
                never = stages => match never {},
                never = giving_up => match never {},
                never = beats => match never {},
                never = halted => match never {},
            }
        })?;
        (info.sources, info.looks, info.rounds) = (sending.recorders(), looks, rounds);
        if has_open_end {
            info.load.duration_s = match rate {
                // For a closed loop, or after the loss of a worker, only the end time is known.
                rate if rate == 0.0 || !ended.lost.is_empty() => ended.at.ns_since(zero) as f64 / 1e9,
                rate => ended.scheduled as f64 / rate - warmup_s,
            };
        }
        Ok(())
    }

    /// Aborts the run if too many requests are dropped, or if others change the workload whose termination settings the
    /// run has changed. Returns the reason.
    async fn given_up(self, control: &load::Control) -> String {
        let lost = async {
            match &self.scenario.load.abort {
                Some(limit) => abort::too_much_dropped(limit, || self.finished(control)).await,
                None => pending().await,
            }
        };
        let changed = async {
            match self.run.job.extras.ending.and_then(|(whose, _)| whose.workload.parse().ok()) {
                Some(workload) => until_others_change(self.session.caller(), &workload).await,
                None => pending().await,
            }
        };
        let why = tokio::select! {
            lost = lost => lost,
            done = changed => {
                format!("others {done} during the run: stop what did this, such as an autoscaler or another rollout")
            }
        };
        self.run.viewer.warn(&format!("aborting: {why}"));
        self.session.record(EventKind::Warning { message: format!("aborted: {why}") });
        // Stops the load first. Requests in flight may finish, as after an interruption.
        control.stop();
        self.halt.cancel();
        why
    }

    /// Terminates pods with the user's command or the scenario's disruptions. Returns the looks, positioned at the last
    /// one, if the run continues while its gate is inconclusive, and the rounds if it continues until its windows cover
    /// enough.
    async fn disrupt(
        self,
        (zero, rate): (Stamp, f64),
        sent: Sent<'_>,
    ) -> Result<(Option<Looks>, Option<Rounds>), RunError> {
        let (control, extras) = (sent.control, &self.run.job.extras);
        if let Some(command) = extras.command {
            self.disrupt_by(command, zero, control).await?;
            control.stop();
        } else if let Some(planned) = &extras.looks {
            return Ok((Some(self.in_rounds((zero, rate), sent, planned).await?), None));
        } else if let Some(covering) = extras.covering {
            return Ok((None, Some(self.until_covered((zero, rate), sent, covering).await?)));
        } else if self.round((zero, rate), control, None).await? && self.scenario.ends_with_its_disruptions()
        {
            control.stop();
        }
        Ok((None, None))
    }

    /// Carries out the scenario's disruptions once. Each of several rounds lasts for the scenario's load duration,
    /// unless the load ends with its disruptions. Returns true if the effects settled within that duration.
    pub(super) async fn round(
        self,
        (zero, rate): (Stamp, f64),
        control: &load::Control,
        round: Option<Round>,
    ) -> Result<bool, RunError> {
        let Self { run, scenario, session, .. } = self;
        let losses = &|| self.finished(control).dropped;
        let end = zero + scenario.load.duration();
        let (settle, known_after) = (settle(scenario), known_after(scenario));
        let alpha = round.map_or(ALPHA, |round| round.alpha);
        let load = UnderLoad { zero, end, rate, settle, alpha, known_after, losses };
        let programs = UserPrograms::new(self)?;
        let index = round.map_or(0, |round| round.index);
        let until = round.and_then(|round| round.until);
        let disruptions: Vec<Disruption> =
            scenario.disruptions.iter().map(|disruption| disruption.in_round(index, until)).collect();
        let accepted = session.disrupt(&disruptions, load, &programs).await;
        tracing::debug!(accepted, index, "disruptions carried out");
        if scenario.ends_with_its_disruptions() {
            let left = Duration::try_from_secs_f64(end.seconds_since(run.clock.now())).unwrap_or_default();
            return Ok(timeout(left, self.aftermath(control)).await.is_ok());
        }
        if round.is_some() {
            // The result does not matter, because an interruption ends the run anyway.
            let _ = self.wait_until(end).await;
        }
        Ok(true)
    }

    /// Writes beats to the run's own ConfigMap, starting shortly before pods may be terminated.
    async fn beat(self, zero: Stamp) -> Infallible {
        let Self { run, scenario, session, .. } = self;
        if !run.job.options.beats {
            return pending().await;
        }
        let disruptions = scenario.disruptions.iter().map(|disruption| disruption.at);
        let first = match run.job.extras.command {
            Some(_) => self.steady_part(),
            // A run without disruptions observes what others do, which may begin at any time.
            None => disruptions.min().unwrap_or_default(),
        };
        if self.wait_until(zero + first - BEATS_BEFORE).await.is_err() {
            return pending().await;
        }
        session.beat().await
    }

    /// Returns the length of the load before the user's command is run.
    fn steady_part(self) -> Duration {
        let scenario = self.scenario;
        let first = scenario.disruptions.iter().map(|disruption| disruption.at).min();
        // Disrupts nothing while the rate still rises, or before `load.abort` has a whole period to look back on.
        let looks_back = scenario.load.abort.map_or(Duration::ZERO, |abort| abort.over);
        first.unwrap_or(STEADY_PART.max(scenario.load.steady_from() + looks_back))
    }

    /// Runs the user's command after a steady part of the load, and waits until its effects have settled.
    async fn disrupt_by(
        self,
        command: &UserCommand,
        zero: Stamp,
        control: &load::Control,
    ) -> Result<(), RunError> {
        let Self { run, session, halt, .. } = self;
        if self.wait_until(zero + self.steady_part()).await.is_err() {
            return Ok(());
        }
        let before = workloads(session.caller()).await?;
        run.viewer.say(&format!("running {}", command.words().join(" ")));
        session.record(EventKind::CommandStarted { command: command.words(), disruption: None });
        let kubeconfig = self.command_kubeconfig()?;
        let status = command.run(kubeconfig.as_deref(), halt, &run.interrupts.abort).await;
        let status = status.map_err(RunError::failed("failed to run the command"))?;
        let (code, signal) = crate::act::codes(status);
        session.record(EventKind::CommandEnded { code, signal, disruption: None });
        run.viewer.say(&format!("the command exited ({status}); waiting for its changes to settle"));
        match session.await_rollout(&before, None).await {
            // After an interruption, the load ends anyway.
            Err(CoordinatorError::Interrupted) => return Ok(()),
            settled => settled?,
        }
        self.aftermath(control).await;
        Ok(())
    }

    /// Waits, while the load continues, until the disruption causes no more lost requests.
    async fn aftermath(self, control: &load::Control) {
        let Self { run, scenario, session, halt, .. } = self;
        let Settle { silence, most } = settle(scenario);
        let silence = silence.unwrap_or(AFTERMATH + known_after(scenario));
        let losses = || self.finished(control).dropped;
        run.viewer.awaits_silence(Some(silence));
        let waited = halt.run_until_cancelled(until_silent(losses, silence, most)).await;
        run.viewer.awaits_silence(None);
        if waited == Some(Silence::NeverCame) {
            let limit_s = most.as_secs_f64();
            session.record(EventKind::Unsettled { limit_s });
            run.viewer.warn(&format!(
                "requests were still being lost when the load ended, {limit_s:.0} s after the last termination \
                 (--settle-max)"
            ));
        }
    }

    /// Returns the `KUBECONFIG` value for programs that the run starts; `None` if the user's own value works.
    pub(super) fn command_kubeconfig(self) -> Result<Option<OsString>, RunError> {
        let overlay = self.run.run_dir.path().join("command-kubeconfig");
        let kubeconfig = self.cluster.kubeconfig_for(&self.session.caller().namespace, &overlay);
        kubeconfig.map_err(RunError::failed("failed to write a kubeconfig for the command"))
    }

    fn finished(self, control: &load::Control) -> FinishedRequests {
        (self.run.job.options.count)(&control.progress())
    }

    /// Waits until a point in time.
    async fn wait_until(self, at: Stamp) -> Result<(), RunError> {
        let at = self.run.clock.instant(at).unwrap_or_else(Instant::now);
        let waited = self.halt.run_until_cancelled(sleep_until(at.into())).await;
        waited.ok_or(RunError::Interrupted)
    }

    /// Fetches the load's rows from the cluster while the last pods terminate.
    async fn collect<N: Note>(self, info: &mut RunInfo, sending: &mut Sending<N>) -> Result<(), RunError> {
        let Self { run, session, .. } = self;
        let is_interrupted = run.interrupts.stop.is_cancelled();
        let settling = async {
            match is_interrupted {
                false => session.settle().await,
                true => {
                    let _aborted = run.interrupts.abort.run_until_cancelled(session.hand_over()).await;
                }
            }
        };
        // A cluster that has died does not respond.
        let settling = async {
            tokio::select! {
                () = settling => {}
                _died = self.cluster.died() => {}
            }
        };
        run.viewer.step(match (sending.nodes(), is_interrupted) {
            (None, false) => "waiting for the last pods to terminate",
            (None, true) => "fetching the last rows",
            (Some(_), false) => "fetching the load workers' rows, and waiting for the last pods to terminate",
            (Some(_), true) => "fetching the load workers' rows",
        });
        let tell = |what: &str| run.viewer.say(what);
        let ((), collected) = tokio::join!(settling, sending.collect(&run.interrupts.abort, tell));
        let Collected { rows, lost, counted } = collected?;
        for source in &mut info.sources {
            source.rows = rows.get(&source.name).copied();
        }
        for (of, outcomes) in counted {
            session.record(EventKind::LoadCounted { of, outcomes: outcomes.into() });
        }
        for (worker, why) in lost {
            run.warn(session, &format!("not all rows of load worker {worker} have arrived: {why}"));
        }
        Ok(())
    }
}

/// Returns the wait that follows a termination.
fn settle(scenario: &Scenario) -> Settle {
    Settle { silence: scenario.settle, most: scenario.settle_max }
}

/// Returns the time until the loss of a request is known. Behind a gateway, only a missing response shows that a pod
/// is gone.
fn known_after(scenario: &Scenario) -> Duration {
    let is_url = scenario.targets.iter().any(|target| matches!(target.place, Place::Url(_)));
    if is_url { scenario.load.settings.response_timeout() } else { Duration::ZERO }
}
