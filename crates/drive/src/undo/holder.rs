//! Marks workloads as in use. An annotation names the run that changes a workload, to prevent other runs from changing
//! it.
//!
//! The annotation is on the workload itself, not on its pod template, so setting it causes no rollout. A patch sets it
//! only on the resourceVersion that was read. The run renews the annotation while it lasts, and removes it at the end;
//! `rolldrop cleanup` also removes it. The workload of a killed run stays marked as in use until the annotation
//! expires.

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use kube::Api;
use kube::api::{DynamicObject, Patch, PatchParams};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::change_journal::ObjectRef;
use super::{ATTEMPTS, UndoOutcome};
use crate::api::{Caller, resource_of};
use crate::error::{CoordinatorError, Result};
use rolldrop_kubernetes::guard::object_names::in_path;
use rolldrop_record::{Clock, Stamp};
use rolldrop_scenario::Workload;

/// Annotation on a workload in use.
const IN_USE: &str = "rolldrop.dev/in-use";
/// Time for which the annotation is valid after it was set or renewed.
const LASTS: Duration = Duration::from_secs(10 * 60);

/// Run that uses a workload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Holder {
    pub(crate) run: String,
    /// User and machine.
    owner: String,
    /// Time at which the annotation expires (RFC 3339).
    until: String,
}

impl Holder {
    /// Returns the holder of a workload; `None` if no run uses it. An annotation that cannot be parsed never expires.
    pub(crate) fn of(workload: &Value) -> Option<Self> {
        let text = workload["metadata"]["annotations"][IN_USE].as_str()?;
        let unknown = |what: &str| format!("an unknown {what}");
        let unread = || Self { run: text.to_owned(), owner: unknown("user"), until: unknown("time") };
        Some(serde_json::from_str(text).unwrap_or_else(|_| unread()))
    }

    /// Creates a holder for the current user, valid from now.
    pub(crate) fn begin(run: &str, clock: Clock) -> Self {
        let until = time(clock.now() + LASTS).strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        Self { run: run.to_owned(), owner: owner(), until }
    }

    pub(crate) fn has_expired(&self, clock: Clock) -> bool {
        self.until.parse::<Timestamp>().is_ok_and(|until| until <= time(clock.now()))
    }

    /// Returns a patch that writes the holder into this version of a workload only.
    pub(crate) fn patch_of(&self, workload: &Value) -> Value {
        annotated(&json!(json!(self).to_string()), workload)
    }
}

/// Returns a patch that sets or removes the annotation in this version of a workload only.
fn annotated(text: &Value, workload: &Value) -> Value {
    let version = &workload["metadata"]["resourceVersion"];
    json!({"metadata": {"annotations": {IN_USE: text}, "resourceVersion": version}})
}

pub(crate) async fn send(api: &Api<DynamicObject>, name: &str, patch: &Value) -> kube::Result<DynamicObject> {
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
        write!(f, "run {run} ({owner}) until {until}")
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

pub(crate) fn api_of_workload(caller: &Caller, workload: &Workload) -> Api<DynamicObject> {
    caller.dynamic_api(&resource_of(workload.kind))
}

pub(crate) async fn read_workload(caller: &Caller, workload: &Workload) -> Result<Value> {
    let found =
        caller.read(&api_of_workload(caller, workload), &format!("read {workload}"), &workload.name).await?;
    Ok(serde_json::to_value(found).unwrap_or_default())
}

/// Returns the error for a workload that another run uses.
pub(crate) fn in_use(caller: &Caller, workload: &Workload, holder: &Holder) -> CoordinatorError {
    CoordinatorError::InUse {
        workload: workload.to_string(),
        holder: holder.to_string(),
        remedy: format!(
            "kubectl annotate -n {} {}/{} {IN_USE}-",
            caller.namespace,
            format!("{:?}", workload.kind).to_lowercase(),
            workload.name
        ),
    }
}

/// Renews the annotation of a run. Returns false if the run no longer uses the workload.
pub(crate) async fn renew(caller: &Caller, clock: Clock, workload: &Workload, run: &str) -> Result<bool> {
    let api = api_of_workload(caller, workload);
    let what = format!("mark {workload} as in use");
    for _ in 0..ATTEMPTS {
        let current = read_workload(caller, workload).await?;
        if Holder::of(&current).is_none_or(|holder| holder.run != run) {
            return Ok(false);
        }
        let patch = Holder::begin(run, clock).patch_of(&current);
        match caller.ask(&what, || send(&api, &workload.name, &patch)).await? {
            Ok(_) => return Ok(true),
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => return Err(CoordinatorError::api(&what, &error)),
        }
    }
    Err(CoordinatorError::Conflict(workload.to_string()))
}

/// Renews the annotation of a run that has ended. This changes the resourceVersion, so the API server refuses any
/// change by that run that is still on its way.
pub(super) async fn take_over(caller: &Caller, object: &ObjectRef, run: &str) {
    if let Some((caller, workload)) = of_reference(caller, object)
        && let Err(error) = renew(&caller, Clock::start(), &workload, run).await
    {
        tracing::debug!(%workload, %error, "not renewed");
    }
}

/// Removes the annotation of a run.
pub(crate) async fn release(caller: &Caller, object: &ObjectRef, run: &str) -> Result<UndoOutcome> {
    let Some((caller, workload)) = of_reference(caller, object) else {
        return Ok(UndoOutcome::Nothing("not a workload".to_owned()));
    };
    let (api, what) = (api_of_workload(&caller, &workload), format!("release {workload}"));
    loop {
        let Some(found) = caller.find(&api, &what, &workload.name).await? else { return Ok(super::gone()) };
        let current = serde_json::to_value(found).unwrap_or_default();
        match Holder::of(&current) {
            Some(holder) if holder.run == run => {}
            Some(holder) => return Ok(UndoOutcome::Nothing(format!("now in use by {holder}"))),
            None => return Ok(UndoOutcome::Nothing("already released".to_owned())),
        }
        let patch = annotated(&Value::Null, &current);
        match caller.ask(&what, || send(&api, &workload.name, &patch)).await? {
            Ok(_) => return Ok(UndoOutcome::Undone { others: Vec::new() }),
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => return Err(CoordinatorError::api(&what, &error)),
        }
    }
}
