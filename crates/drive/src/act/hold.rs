//! Workloads in use: an annotation names the run that changes a workload, so that no other run changes it.
//!
//! The annotation is on the workload itself, not on its pod template, so setting it causes no rollout. A patch sets it
//! only on the resourceVersion that was read. The run renews the annotation while it lasts, and removes it at the end;
//! `rolldrop cleanup` also removes it. A killed run holds its workload until the annotation expires.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Service;
use kube::Api;
use kube::api::{DynamicObject, Patch, PatchParams};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::apply::{announced, reference};
use crate::api::caller::Caller;
use crate::api::kinds::resource_of;
use crate::cluster::Origin;
use crate::error::{CoordinatorError, Result};
use crate::plan::Work;
use crate::plan::live_changes::Live;
use crate::session::Session;
use crate::undo::change_journal::{Change, Journal, JournalError, ObjectRef};
use crate::undo::{self, ATTEMPTS, Outcome, Undone};
use rolldrop_kubernetes::guard::names::in_path;
use rolldrop_record::{Clock, EventKind, Stamp};
use rolldrop_scenario::{DisruptionAction, Object, Place, Scenario, Workload};
use rolldrop_sidecar::inject::selects;

/// Annotation on a workload in use.
const IN_USE: &str = "rolldrop.dev/in-use";
/// Time for which the annotation is valid after it was set or renewed.
const LASTS: Duration = Duration::from_secs(10 * 60);
/// Time from one renewal to the next. Each renewal updates the workload, and a Deployment's controller copies the
/// annotation to its ReplicaSets.
const RENEWED: Duration = Duration::from_secs(3 * 60);
/// Time from a failed renewal to the next attempt.
const AGAIN: Duration = Duration::from_secs(10);

/// Run that uses a workload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Holder {
    run: String,
    /// User and machine.
    owner: String,
    /// Time at which the annotation expires (RFC 3339).
    until: String,
}

impl Holder {
    /// Returns the holder of a workload; `None` if nobody uses it. An annotation that cannot be parsed never expires.
    fn of(workload: &Value) -> Option<Self> {
        let text = workload["metadata"]["annotations"][IN_USE].as_str()?;
        let unknown = |what: &str| format!("an unknown {what}");
        let unread = || Self { run: text.to_owned(), owner: unknown("user"), until: unknown("time") };
        Some(serde_json::from_str(text).unwrap_or_else(|_| unread()))
    }

    /// Creates a holder for the current user, valid from now.
    fn begin(run: &str, clock: Clock) -> Self {
        let until = time(clock.now() + LASTS).strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        Self { run: run.to_owned(), owner: owner(), until }
    }

    fn has_expired(&self, clock: Clock) -> bool {
        self.until.parse::<Timestamp>().is_ok_and(|until| until <= time(clock.now()))
    }

    /// Returns a patch that writes the holder into this version of a workload only.
    fn patch_of(&self, workload: &Value) -> Value {
        annotated(&json!(json!(self).to_string()), workload)
    }
}

/// Returns a patch that sets or removes the annotation in this version of a workload only.
fn annotated(text: &Value, workload: &Value) -> Value {
    let version = &workload["metadata"]["resourceVersion"];
    json!({"metadata": {"annotations": {IN_USE: text}, "resourceVersion": version}})
}

async fn send(api: &Api<DynamicObject>, name: &str, patch: &Value) -> kube::Result<DynamicObject> {
    api.patch(&in_path(name), &PatchParams::default(), &Patch::Merge(patch)).await
}

/// Returns a caller for an object's namespace, and the object as a workload; `None` if it is not a workload.
fn of_reference(caller: &Caller, object: &ObjectRef) -> Option<(Caller, Workload)> {
    let namespace = object.namespace.clone().unwrap_or_default();
    let workload = format!("{}/{}", object.kind, object.name).parse().ok()?;
    Some((Caller { namespace, ..caller.clone() }, workload))
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { run, owner, until } = self;
        write!(f, "run {run} of {owner} until {until}")
    }
}

fn time(stamp: Stamp) -> Timestamp {
    Timestamp::from_nanosecond(stamp.unix_ns().into()).unwrap_or_default()
}

/// Returns the names of the user and the machine, as far as they are known.
fn owner() -> String {
    let user = nix::unistd::User::from_uid(nix::unistd::getuid()).ok().flatten();
    let user = user.map_or_else(|| format!("uid {}", nix::unistd::getuid()), |user| user.name);
    let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    host.map_or(user.clone(), |host| format!("{user}@{host}"))
}

/// Returns the existing workloads that a run changes. `live` are the objects that it changes for its whole duration.
pub(crate) fn needed<'a>(work: &Work<'_>, live: impl Iterator<Item = &'a Live>) -> Vec<Workload> {
    let mut needed: Vec<Workload> = live.filter_map(Live::workload).collect();
    let disruptions = if work.has_command { &[][..] } else { &work.scenario.disruptions };
    needed.extend(disruptions.iter().filter_map(|disruption| match &disruption.action {
        DisruptionAction::RollingRestart(workload)
        | DisruptionAction::SetImage { workload, .. }
        | DisruptionAction::Scale { workload, .. } => Some(workload.clone()),
        DisruptionAction::Patch { object: Object { kind, name, .. }, .. } => {
            format!("{kind}/{name}").parse().ok()
        }
        _ => None,
    }));
    let mut seen = BTreeSet::new();
    needed.retain(|workload| {
        let is_own = work.scenario.manifests.iter().any(|object| workload.is(object));
        !is_own && seen.insert(workload.to_string())
    });
    needed
}

/// Returns the Services behind a scenario's targets that its manifests do not create.
pub(crate) fn services_of(scenario: &Scenario) -> Vec<&str> {
    let is_own = |name: &str| {
        let is_it = |object: &Value| object["kind"] == "Service" && object["metadata"]["name"] == *name;
        scenario.manifests.iter().any(is_it)
    };
    let services = scenario.targets.iter().filter_map(|target| match &target.place {
        Place::Service { name, .. } if !is_own(name) => Some(name.as_str()),
        _ => None,
    });
    services.collect()
}

impl Caller {
    fn api_of_workload(&self, workload: &Workload) -> Api<DynamicObject> {
        self.dynamic_api(&resource_of(workload.kind))
    }

    async fn read_workload(&self, workload: &Workload) -> Result<Value> {
        let found =
            self.read(&self.api_of_workload(workload), &format!("read {workload}"), &workload.name).await?;
        Ok(serde_json::to_value(found).unwrap_or_default())
    }

    /// Checks that no other run uses these workloads. Returns a warning for each workload with an expired holder.
    ///
    /// # Errors
    /// [`CoordinatorError::InUse`] if another run uses one.
    pub async fn check_holds(&self, workloads: &[Workload], run: Option<&str>) -> Result<Vec<String>> {
        let clock = Clock::start();
        let mut expired = Vec::new();
        for workload in workloads {
            let current = match self.read_workload(workload).await {
                // If the workload is missing, the step that needs it reports that.
                Err(CoordinatorError::Api { .. }) => continue,
                read => read?,
            };
            let Some(holder) = Holder::of(&current).filter(|holder| Some(holder.run.as_str()) != run) else {
                continue;
            };
            if !holder.has_expired(clock) {
                return Err(self.in_use(workload, &holder));
            }
            expired.push(format!(
                "{workload} was in use by {holder}, which has passed: it is taken over. If that run was killed, end \
                 this one and use `rolldrop cleanup` with its directory first, as it may have left its changes"
            ));
        }
        Ok(expired)
    }

    fn in_use(&self, workload: &Workload, holder: &Holder) -> CoordinatorError {
        CoordinatorError::InUse {
            workload: workload.to_string(),
            holder: holder.to_string(),
            remedy: format!(
                "kubectl annotate -n {} {}/{} {IN_USE}-",
                self.namespace,
                format!("{:?}", workload.kind).to_lowercase(),
                workload.name
            ),
        }
    }

    /// Returns a warning for each workload behind a target's Service that is in use by another run, as far as this run
    /// has the right to read the workloads.
    pub(crate) async fn held_by_others(
        &self,
        work: &Work<'_>,
        held: &[Workload],
        workloads: &[Live],
    ) -> Vec<String> {
        let named = services_of(work.scenario);
        if named.is_empty() {
            return Vec::new();
        }
        let clock = Clock::start();
        let api = self.api::<Service>();
        let mut services = Vec::new();
        for name in named {
            let found = self.find(&api, &format!("read Service {name}"), name).await.ok().flatten();
            services.extend(found.and_then(|service| serde_json::to_value(service).ok()));
        }
        let warning = |found: &Live| {
            let workload = found.workload().filter(|workload| !held.contains(workload))?;
            services.iter().any(|service| selects(service, found.pod_labels())).then_some(())?;
            let holder =
                Holder::of(&found.current).filter(|holder| Some(holder.run.as_str()) != work.holder)?;
            (!holder.has_expired(clock)).then(|| {
                format!(
                    "{workload} is in use by {holder}: what that changes meanwhile shows in this run as well"
                )
            })
        };
        workloads.iter().filter_map(warning).collect()
    }

    /// Marks a workload as in use by a run, unless it already is.
    ///
    /// # Errors
    /// [`CoordinatorError::InUse`] if another run uses it.
    async fn take(
        &self,
        clock: Clock,
        journal: &Mutex<Journal>,
        workload: &Workload,
        run: &str,
    ) -> Result<()> {
        let api = self.api_of_workload(workload);
        for _ in 0..ATTEMPTS {
            let current = self.read_workload(workload).await?;
            match Holder::of(&current) {
                Some(holder) if holder.run == run => return Ok(()),
                Some(holder) if !holder.has_expired(clock) => return Err(self.in_use(workload, &holder)),
                _ => {}
            }
            let patch = Holder::begin(run, clock).patch_of(&current);
            let change = Change::Hold { run: run.to_owned() };
            let taking = || send(&api, &workload.name, &patch);
            match announced(self, journal, reference(&current), change, taking).await {
                Err(CoordinatorError::Conflict(_)) => {}
                taken => return taken.map(drop),
            }
        }
        Err(CoordinatorError::Conflict(workload.to_string()))
    }

    /// Renews the annotation of a run. Returns false if the run no longer uses the workload.
    async fn renew(&self, clock: Clock, workload: &Workload, run: &str) -> Result<bool> {
        let api = self.api_of_workload(workload);
        let what = format!("mark {workload} as in use");
        for _ in 0..ATTEMPTS {
            let current = self.read_workload(workload).await?;
            if Holder::of(&current).is_none_or(|holder| holder.run != run) {
                return Ok(false);
            }
            let patch = Holder::begin(run, clock).patch_of(&current);
            match self.ask(&what, || send(&api, &workload.name, &patch)).await? {
                Ok(_) => return Ok(true),
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(error) => return Err(CoordinatorError::api(&what, &error)),
            }
        }
        Err(CoordinatorError::Conflict(workload.to_string()))
    }

    /// Renews the annotation repeatedly, until the run no longer uses the workload.
    async fn keep_renewing(self, clock: Clock, workload: Workload, run: String) {
        let mut pause = RENEWED;
        loop {
            sleep(pause).await;
            pause = match self.renew(clock, &workload, &run).await {
                Ok(true) => RENEWED,
                Ok(false) => return,
                Err(_) => AGAIN,
            };
        }
    }
}

/// Renews the annotation of a run that has ended. This changes the resourceVersion, so the API server refuses any
/// change by that run that is still on its way.
pub(crate) async fn take_over(caller: &Caller, object: &ObjectRef, run: &str) {
    if let Some((caller, workload)) = of_reference(caller, object)
        && let Err(error) = caller.renew(Clock::start(), &workload, run).await
    {
        tracing::debug!(%workload, %error, "not renewed");
    }
}

/// Removes the annotation of a run.
pub(crate) async fn release(caller: &Caller, object: &ObjectRef, run: &str) -> Result<Outcome> {
    let Some((caller, workload)) = of_reference(caller, object) else {
        return Ok(Outcome::Nothing("no workload".to_owned()));
    };
    let (api, what) = (caller.api_of_workload(&workload), format!("release {workload}"));
    loop {
        let Some(found) = caller.find(&api, &what, &workload.name).await? else { return Ok(undo::gone()) };
        let current = serde_json::to_value(found).unwrap_or_default();
        match Holder::of(&current) {
            Some(holder) if holder.run == run => {}
            Some(holder) => return Ok(Outcome::Nothing(format!("in use by {holder} by now"))),
            None => return Ok(Outcome::Nothing("released already".to_owned())),
        }
        let patch = annotated(&Value::Null, &current);
        match caller.ask(&what, || send(&api, &workload.name, &patch)).await? {
            Ok(_) => return Ok(Outcome::Undone { others: Vec::new() }),
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => return Err(CoordinatorError::api(&what, &error)),
        }
    }
}

impl Session {
    /// Marks workloads as in use until the end of the run.
    ///
    /// # Errors
    /// [`CoordinatorError::InUse`] if another run uses one.
    pub(crate) async fn hold(&mut self, workloads: &[Workload], run: &str) -> Result<()> {
        for workload in workloads {
            self.caller.take(self.clock, &self.journal, workload, run).await?;
            let (caller, clock) = (self.caller.clone(), self.clock);
            let (workload, run, stop) = (workload.clone(), run.to_owned(), self.tasks_stop.clone());
            let recorder = self.recorder.handle();
            self.tasks.spawn(async move {
                let renewing = caller.keep_renewing(clock, workload.clone(), run);
                if stop.run_until_cancelled(renewing).await.is_some() {
                    let message =
                        format!("{workload} is no longer marked as in use by this run: others may change it");
                    recorder.event(clock.now(), EventKind::Warning { message });
                }
            });
        }
        Ok(())
    }
}

/// A workload that is held for several runs, such as those of a tuning.
pub struct Tenure {
    caller: Caller,
    journal: Mutex<Journal>,
    run: String,
    _renewing: JoinSet<()>,
}

impl Tenure {
    /// Marks a workload as in use. Creates a journal in the directory, or continues the existing one.
    ///
    /// # Errors
    /// [`CoordinatorError::InUse`] if another run uses the workload. Also fails if the journal cannot be written.
    pub async fn begin(
        caller: Caller,
        (dir, clock): (&Path, Clock),
        (run, cluster): (&str, Option<Origin>),
        workload: &Workload,
    ) -> Result<Self> {
        let journal = match Journal::is_in(dir) {
            true => Journal::go_on(dir, clock, run, cluster)?,
            false => Journal::begin(dir, clock, run, cluster)?,
        };
        let run = journal.run().to_owned();
        let journal = Mutex::new(journal);
        caller.take(clock, &journal, workload, &run).await?;
        let mut renewing = JoinSet::new();
        renewing.spawn(caller.clone().keep_renewing(clock, workload.clone(), run.clone()));
        Ok(Self { caller, journal, run, _renewing: renewing })
    }

    /// Returns the name under which the workload is in use.
    pub fn run(&self) -> &str {
        &self.run
    }

    /// Releases the workload. Cancelling `stop` cuts the release short.
    ///
    /// # Errors
    /// Fails if the journal cannot be written.
    pub async fn end(self, stop: CancellationToken) -> Result<Vec<Undone>, JournalError> {
        let mut journal = self.journal.into_inner().unwrap_or_else(PoisonError::into_inner);
        undo::all(&Caller { stop, ..self.caller }, &mut journal).await
    }
}
