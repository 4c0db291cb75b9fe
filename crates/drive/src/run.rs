//! One run: deploys a scenario's manifests, sends the load, disrupts the workload, collects the records, and undoes its
//! changes.
//!
//! `under_load` covers the part from the first response to the last row.

mod abort;
mod admin_secret;
mod command;
mod consent;
mod disruption_rounds;
mod dry;
mod error;
mod evidence_check;
mod intent;
mod load_stages;
mod local_programs;
mod manifests;
mod ports;
mod reach;
mod sending;
mod settings;
mod source;
mod under_load;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::api::{Caller, TimeLimits};
use crate::cluster::{ChosenCluster, Cluster};
use crate::error::CoordinatorError;
use crate::observe::ReadyTargets;
use crate::plan::{GitOps, RunPlan, check_rights};
use crate::session::{Closed, Session, SessionStart};
use crate::undo::{Undone, await_effect};
use crate::viewer::Viewer;
use crate::{Interrupts, Operator};
use admin_secret::AdminSecret;
pub use command::UserCommand;
pub use consent::{Consent, Naming, confirm, flag_of};
pub use disruption_rounds::{Coverage, Covering, Gate, Look, PlannedLooks, SoFar};
pub use error::RunError;
pub use evidence_check::why_no_evidence;
pub use load_stages::announce_stages;
pub use ports::check_here;
use rolldrop_kubernetes::guard::object_names::is_dns_label;
use rolldrop_load as load;
use rolldrop_load::load_process::LoadProcess;
use rolldrop_record::run_info::{self, RunInfo};
use rolldrop_record::service_proxy::ServiceProxy;
use rolldrop_record::wire::AdminToken;
use rolldrop_record::{Clock, EventKind, Policy, RunDir, Stamp};
use rolldrop_scenario::Scenario;
use rolldrop_sidecar::inject::ending::{Ending, Sleepers};
pub use sending::Collecting;
use sending::Sending;
pub use settings::{expected_targets, load_settings};
pub use source::RunSource;
use under_load::Measuring;

/// Settings that only some commands add to a run.
#[derive(Default)]
pub struct Extras<'a> {
    /// Command that terminates pods, in place of the scenario's disruptions.
    pub command: Option<&'a UserCommand>,
    /// Planned looks at the gate, if the run continues while the gate is inconclusive.
    pub looks: Option<PlannedLooks<'a>>,
    /// Policy for how certain the recommendation must be.
    pub policy: Policy,
    /// Settings of a run that repeats rounds until its windows cover enough.
    pub covering: Option<Covering<'a>>,
    /// Describes the larger job that the run is part of, given the number of terminations so far.
    pub told: Option<&'a dyn Fn(usize) -> String>,
    /// Name of the tuning that the run is part of; workloads are marked as in use by it.
    pub holder: Option<&'a str>,
    /// Termination settings for the pods of an existing workload during the run.
    pub ending: Option<(&'a Sleepers, Ending)>,
}

/// Settings of a run that are not part of its scenario.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// Namespace of the run; `None` for the cluster's default.
    pub namespace: Option<String>,
    /// Image to use in place of `rolldrop`.
    pub image: Option<String>,
    /// Policy for objects that a GitOps controller manages.
    pub gitops: GitOps,
    /// True if the run does not ask for consent.
    pub yes: bool,
    /// Settings for collecting rows from pods that send the load.
    pub collecting: Collecting,
    /// Highest share of processor time that may be in use on this machine; `None` for the default limit.
    pub max_busy: Option<f64>,
    /// Implementation of Services, as stated by the user.
    pub service_proxy: Option<ServiceProxy>,
    /// True if the run writes beats to its own ConfigMap while pods may be terminated.
    pub beats: bool,
    /// Token for the proxies' admin ports, if the user gives one.
    pub admin_token: Option<AdminToken>,
    /// Counts a load's finished and dropped requests according to the drop policy.
    pub count: fn(&load::Progress) -> FinishedRequests,
}

/// Counts of finished requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FinishedRequests {
    /// All finished requests.
    pub all: u64,
    /// Dropped requests among them.
    pub dropped: u64,
}

/// A run that is ready to be carried out.
pub struct Job<'a> {
    /// The scenario, with what the run adds to its manifests.
    pub scenario: Scenario,
    options: &'a RunOptions,
    consent: Consent,
    admin_token: Option<AdminToken>,
    admin_secret: Option<AdminSecret>,
    extras: Extras<'a>,
}

impl<'a> Job<'a> {
    /// Checks what can be checked before a cluster is started.
    ///
    /// # Errors
    /// Fails if the settings cannot work.
    pub fn new(
        mut scenario: Scenario,
        options: &'a RunOptions,
        consent: Consent,
        extras: Extras<'a>,
        viewer: &dyn Viewer,
    ) -> Result<Self, RunError> {
        let mut admin_token = options.admin_token.clone();
        let admin_secret =
            manifests::inject_sidecar(&mut scenario, &mut admin_token, |note| viewer.note(note))?;
        if let Some(image) = &options.image {
            scenario.manifests.iter_mut().for_each(|manifest| manifests::replace_image(manifest, image));
        }
        local_programs::check(&scenario)?;
        load::Plan::new(load_settings(&scenario, &expected_targets(&scenario))?)?;
        Ok(Self { scenario, options, consent, admin_token, admin_secret, extras })
    }

    /// Plans each API server call that the run would make, and changes nothing.
    ///
    /// # Errors
    /// Fails if the run would not be possible.
    pub async fn dry_run(
        &self,
        choice: impl FnOnce(&Path) -> ChosenCluster,
        operator: &Operator,
    ) -> Result<RunPlan, RunError> {
        dry::plan(self, choice, operator).await
    }

    /// Carries out the run. Returns true if it was interrupted.
    ///
    /// # Errors
    /// Fails if nothing could be measured.
    pub async fn carry_out(
        &self,
        choice: ChosenCluster,
        run_dir: &RunDir,
        clock: Clock,
        operator: &Operator,
    ) -> Result<bool, RunError> {
        let Operator { interrupts, viewer } = operator;
        let run = RunContext { job: self, clock, run_dir, interrupts, viewer, operator };
        viewer.begins();
        let measured = run.carry_out(choice).await;
        viewer.ends();
        measured
    }
}

/// Time limit for closing a run's records after its cluster has died. This usually takes a second.
const AFTER_THE_CLUSTER: Duration = Duration::from_secs(20);

async fn connect(choice: ChosenCluster, operator: &Operator) -> Result<Cluster, RunError> {
    let Operator { interrupts, viewer } = operator;
    if matches!(choice, ChosenCluster::Embedded { .. }) {
        viewer.step("starting the cluster");
    }
    let cluster = match interrupts.stop.run_until_cancelled(Cluster::connect(choice)).await {
        Some(cluster) => cluster.map_err(RunError::failed("failed to get a cluster"))?,
        None => return Err(RunError::Interrupted),
    };
    if let Some(title) = cluster.title() {
        viewer.step(&format!("connecting to {title}"));
    }
    Ok(cluster)
}

/// Returns a caller for a cluster's API server.
///
/// # Errors
/// Fails if the namespace's name is not valid.
pub fn caller(
    cluster: &Cluster,
    namespace: Option<&str>,
    interrupts: &Interrupts,
) -> Result<Caller, RunError> {
    let namespace = namespace.unwrap_or_else(|| cluster.default_namespace()).to_owned();
    if !is_dns_label(&namespace) {
        return Err(RunError::Refused(format!(
            "{namespace:?} is not a valid namespace name: use only lowercase letters, digits and dashes (-n, or \
             the namespace of the kubeconfig's context)"
        )));
    }
    Ok(Caller {
        client: cluster.client(),
        warnings: cluster.warnings(),
        namespace,
        limits: TimeLimits::default(),
        // A child token, because a run can also stop without an interruption.
        stop: interrupts.stop.child_token(),
    })
}

/// Context of a run.
struct RunContext<'a> {
    job: &'a Job<'a>,
    clock: Clock,
    run_dir: &'a RunDir,
    interrupts: &'a Interrupts,
    viewer: &'a Arc<dyn Viewer>,
    operator: &'a Operator,
}

impl RunContext<'_> {
    /// Carries out the run. Returns true if it was interrupted, and an error if nothing could be measured.
    async fn carry_out(&self, choice: ChosenCluster) -> Result<bool, RunError> {
        let cluster = connect(choice, self.operator).await?;
        if let Some(notice) = cluster.notice() {
            self.viewer.note(notice);
        }
        let measured = match caller(&cluster, self.job.options.namespace.as_deref(), self.interrupts) {
            Ok(caller) => self.measure_on(&cluster, caller).await,
            Err(error) => Err(error),
        };
        self.viewer.step("shutting down");
        cluster.shut_down().await;
        measured
    }

    /// Measures until the run is complete or the cluster dies.
    async fn measure_on(&self, cluster: &Cluster, caller: Caller) -> Result<bool, RunError> {
        let (halt, give_up) = (caller.stop.clone(), self.interrupts.abort.child_token());
        let mut measuring = std::pin::pin!(self.measure(cluster, caller, &give_up));
        let died = tokio::select! {
            measured = &mut measuring => return measured,
            died = cluster.died() => died,
        };
        halt.cancel();
        give_up.cancel();
        // Closes the record, as far as that is possible without the cluster.
        let _ = timeout(AFTER_THE_CLUSTER, measuring).await;
        Err(died.into())
    }

    async fn measure(
        &self,
        cluster: &Cluster,
        caller: Caller,
        give_up: &CancellationToken,
    ) -> Result<bool, RunError> {
        let scenario = &self.job.scenario;
        let first = caller.at_first_contact();
        let load_workers = sending::load_workers(scenario, cluster, &first).await?;
        let plan = self.job.plan(&first, load_workers).await?;
        plan.warnings.iter().for_each(|warning| self.viewer.warn(warning));
        check_rights(&first, &plan).await?;
        let open_end = self.job.open_end();
        ports::check(scenario, cluster, &first, load_workers, open_end, self.interrupts).await?;
        evidence_check::check(scenario, cluster, load_workers, self.interrupts).await?;
        consent::ask(&plan, cluster, &caller.namespace, self.job, self.operator).await?;
        let run = run_name(&scenario.name, self.clock.now());
        let halt = caller.stop.clone();
        let mut session = Session::begin(SessionStart {
            caller: caller.clone(),
            run: &run,
            cluster: cluster.origin(),
            run_dir: self.run_dir,
            clock: self.clock,
            admin_token: self.job.admin_token.clone(),
            gitops: self.job.options.gitops,
            viewer: Arc::clone(self.viewer),
        })
        .await?;
        plan.findings.iter().for_each(|finding| self.warn(&session, finding));
        let held = session.hold(&plan.holds, self.job.extras.holder.unwrap_or(&run)).await;
        let loaded = match held {
            Ok(()) => self.load_and_disrupt(cluster, &session, &halt, load_workers).await,
            Err(error) => Err(error.into()),
        };
        // Runs after an error, too, to remove everything that the session created.
        let last = if session.has_changes() { "undoing the changes" } else { "closing the record" };
        self.viewer.step(last);
        let Closed { sources, undone, ending_before, events } = session.finish(give_up.clone()).await;
        let written = match closed(events, loaded.is_err(), |error| self.viewer.warn(error)) {
            Ok(events) => loaded.and_then(|info| self.write(RunInfo { events, ..info }, sources, give_up)),
            Err(error) => Err(error.into()),
        };
        // If the cluster ends with the run, so do its objects.
        if cluster.origin().is_some() {
            self.leave((&undone, &ending_before), caller, give_up).await;
        }
        written
    }

    /// Completes run.json and writes it. Returns true if the run was interrupted.
    fn write(
        &self,
        mut info: RunInfo,
        sources: Vec<run_info::Source>,
        give_up: &CancellationToken,
    ) -> Result<bool, RunError> {
        info.sources.extend(sources);
        info.ended = Some(self.clock.now());
        info.interrupted = self.interrupts.stop.is_cancelled();
        info.complete = !info.interrupted && info.aborted.is_none() && !give_up.is_cancelled();
        self.run_dir.write_info(&info)?;
        Ok(info.interrupted)
    }

    /// Reports changes that could not be undone, and waits until the undo of the others has taken effect. The record is
    /// already complete, so an interruption ends only the wait.
    async fn leave(
        &self,
        (undone, ending_before): (&[Undone], &BTreeSet<String>),
        caller: Caller,
        give_up: &CancellationToken,
    ) {
        undone.iter().filter(|undone| undone.is_left()).for_each(|left| self.viewer.warn(&left.to_string()));
        if undone.iter().any(Undone::is_open) {
            let run = self.run_dir.path().display();
            self.viewer.warn(&format!("run `rolldrop cleanup {run}` to try again"));
        }
        let stop = match self.interrupts.stop.is_cancelled() {
            true => give_up.clone(),
            false => self.interrupts.stop.clone(),
        };
        let tell = |what: &str| {
            self.viewer
                .step(&format!("waiting for the cluster to return to its state before the run: {what}"))
        };
        if let Err(not_yet) = await_effect(&Caller { stop, ..caller }, undone, ending_before, tell).await {
            self.viewer.warn(&not_yet.to_string());
        }
    }

    async fn load_and_disrupt(
        &self,
        cluster: &Cluster,
        session: &Session,
        halt: &CancellationToken,
        load_workers: Option<usize>,
    ) -> Result<RunInfo, RunError> {
        let scenario = &self.job.scenario;
        let ready = self.deploy(session).await?;
        let mut settings = load_settings(scenario, &ready.seen_from_here())?;
        if let Some(end) = self.job.open_end() {
            settings.pace = settings.pace.held_until(end);
        }

        let note = |source: Option<&str>, at, kind| match source {
            Some(source) => session.record_of(source, at, kind),
            None => {
                if let EventKind::Warning { message } = &kind {
                    self.viewer.warn(message);
                }
                session.record_at(at, kind);
            }
        };
        // The load is sent from where the cluster's Services can be reached, which may not be this machine.
        let mut sending = match load_workers {
            None => {
                let mut command = evidence_check::own_command(cluster)?;
                command.args(["load-worker", "--out"]).arg(self.run_dir.path());
                Sending::Here(Box::new(LoadProcess::spawn(command, self.clock, note)?))
            }
            Some(workers) => {
                self.viewer.step("waiting for the load workers to be ready");
                let length = load::Plan::new(settings.clone())?.length().unwrap_or_default();
                let (job, here) = ((workers, self.job.image(), length), (self.run_dir, self.clock));
                let (collecting, tell) = (&self.job.options.collecting, |what: &str| self.viewer.say(what));
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

    /// Deploys the target and waits until it is ready.
    async fn deploy(&self, session: &Session) -> Result<ReadyTargets, RunError> {
        // Secrets come first so that they are removed last, because pods may still need them while they terminate.
        let scenario = &self.job.scenario;
        let secrets = self.job.secrets(&session.caller().namespace);
        let deploys = !scenario.manifests.is_empty();
        if deploys || !secrets.is_empty() {
            self.viewer.step("deploying");
        }
        session.deploy(&secrets).await?;
        session.deploy(&scenario.manifests).await?;
        if let Some(changes) = self.job.live() {
            self.viewer.step("changing the workload, and waiting for the rollout");
            let notes = session.change_workloads(&changes).await?;
            notes.iter().for_each(|note| self.viewer.say(note));
        }
        let last = if deploys { "waiting for the pods to be ready" } else { "checking the target" };
        self.viewer.step(last);
        let disruptions = if self.job.extras.command.is_some() { &[][..] } else { &scenario.disruptions };
        let ready = session.await_ready(scenario, disruptions).await;
        let mut ready = ready?;
        if let Some(stated) = &self.job.options.service_proxy {
            ready.cluster.assume(stated)?;
        }
        Ok(ready)
    }

    /// Shows and records a warning about the result.
    fn warn(&self, session: &Session, message: &str) {
        self.viewer.warn(message);
        session.record(EventKind::Warning { message: message.to_owned() });
    }
}

/// Returns the result of closing a run; `None` if that failed after the run had failed. This is only a warning: the
/// earlier error may have caused it, and is the one to report.
fn closed<T>(
    finished: Result<T, CoordinatorError>,
    has_failed: bool,
    warn: impl FnOnce(&str),
) -> Result<Option<T>, CoordinatorError> {
    finished.map(Some).or_else(|error| {
        if !has_failed {
            return Err(error);
        }
        warn(&format!("also failed to close the run: {error}"));
        Ok(None)
    })
}

/// Returns a unique name that is valid as a label value.
pub fn run_name(scenario: &str, now: Stamp) -> String {
    let time = jiff::Timestamp::from_nanosecond(now.unix_ns().into()).unwrap_or_default();
    let scenario: String = scenario.chars().take(40).collect();
    format!("{scenario}-{}", time.strftime("%Y%m%dT%H%M%S.%3fZ"))
}

/// Returns the path `FOLDER/NAME-TIME` for a new directory, with a number appended if that path already exists.
pub fn default_out(folder: &str, name: &str, now: Stamp) -> PathBuf {
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
        assert!(matches!(after_a_failure, Ok(None)));
        assert!(closed::<Vec<u8>>(Err(unclosed()), false, &mut warn).is_err());
        assert!(matches!(closed(Ok(vec![1]), true, &mut warn), Ok(Some(events)) if events == [1]));
        assert_eq!(warnings, [format!("also failed to close the run: {}", unclosed())]);
    }
}
