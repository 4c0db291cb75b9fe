//! Workloads that a run will mark as in use, and those that other runs use.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Service;

use super::Work;
use super::live_changes::Live;
use crate::api::Caller;
use crate::error::{CoordinatorError, Result};
use crate::undo::Holder;
use crate::undo::holder::{in_use, read_workload};
use rolldrop_record::Clock;
use rolldrop_scenario::{DisruptionAction, Object, Workload};
use rolldrop_sidecar::inject::selects;

/// Returns the existing workloads that a run changes. `live` yields the objects that it changes for its whole duration.
pub(crate) fn needed<'a>(work: &Work<'_>, live: impl Iterator<Item = &'a Live>) -> Vec<Workload> {
    let mut needed: Vec<Workload> = live.filter_map(Live::workload).collect();
    let disruptions = if work.has_command { &[][..] } else { &work.scenario.disruptions };
    needed.extend(disruptions.iter().filter_map(|disruption| match &disruption.action {
        DisruptionAction::Patch { object: Object { kind, name, .. }, .. } => {
            format!("{kind}/{name}").parse().ok()
        }
        action => action.workload().cloned(),
    }));
    let mut seen = BTreeSet::new();
    needed.retain(|workload| {
        let is_own = work.scenario.manifests.iter().any(|object| workload.is(object));
        !is_own && seen.insert(workload.to_string())
    });
    needed
}

/// Checks that no other run uses these workloads. Returns a warning for each workload with an expired holder.
///
/// # Errors
/// [`CoordinatorError::InUse`] if another run uses one.
pub async fn check_holds(caller: &Caller, workloads: &[Workload], run: Option<&str>) -> Result<Vec<String>> {
    let clock = Clock::start();
    let mut expired = Vec::new();
    for workload in workloads {
        let current = match read_workload(caller, workload).await {
            // If the workload is missing, the step that needs it reports that.
            Err(CoordinatorError::Api { .. }) => continue,
            read => read?,
        };
        let Some(holder) = Holder::of(&current).filter(|holder| Some(holder.run.as_str()) != run) else {
            continue;
        };
        if !holder.has_expired(clock) {
            return Err(in_use(caller, workload, &holder));
        }
        expired.push(format!(
            "{workload} was in use by {holder}; that time has passed, so this run takes it over. If the other run \
             was killed, it may have left changes behind: stop this run, and run `rolldrop cleanup` on its \
             directory first"
        ));
    }
    Ok(expired)
}

/// Returns a warning for each workload behind a target's Service that is in use by another run, as far as this run
/// may read the workloads.
pub(super) async fn held_by_others(
    caller: &Caller,
    work: &Work<'_>,
    held: &[Workload],
    workloads: &[Live],
) -> Vec<String> {
    let named = work.scenario.live_services();
    if named.is_empty() {
        return Vec::new();
    }
    let clock = Clock::start();
    let api = caller.api::<Service>();
    let mut services = Vec::new();
    for name in named {
        let found = caller.find(&api, &format!("read Service {name}"), name).await.ok().flatten();
        services.extend(found.and_then(|service| serde_json::to_value(service).ok()));
    }
    let warning = |found: &Live| {
        let workload = found.workload().filter(|workload| !held.contains(workload))?;
        services.iter().any(|service| selects(service, found.pod_labels())).then_some(())?;
        let holder = Holder::of(&found.current).filter(|holder| Some(holder.run.as_str()) != work.holder)?;
        (!holder.has_expired(clock)).then(|| {
            format!("{workload} is in use by {holder}: changes by that run will show up in this run too")
        })
    };
    workloads.iter().filter_map(warning).collect()
}
