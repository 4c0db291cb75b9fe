//! Changes existing workloads for the duration of the run: adds the recording proxy to their pods, and sets the pods'
//! termination settings.
//!
//! The run first changes the workloads behind the targets' Services and waits for their rollout. Only then does it
//! change the Services with a numeric target port; otherwise, requests could be routed to a missing sidecar. After
//! changing Services, it gives the Service proxies time to follow. [`crate::undo`] undoes the changes in the opposite
//! order.

use tokio::time::sleep;

use super::apply::Changer;
use crate::api::Caller;
use crate::error::{CoordinatorError, Result};
use crate::observe::rollout_wait::{until_settled, workloads};
use crate::observe::{Observer, View};
use crate::plan::live_changes::plan_live;
use crate::plan::{Live, LiveChanges, WantedChanges};
use crate::undo::{self, ATTEMPTS, FOLLOW};
use rolldrop_sidecar::inject;

/// Changes these workloads, and waits for the rollout. Returns notes about the changes, one line each.
///
/// # Errors
/// Fails if the changes are not possible. Undoing reverts those made before the failure.
pub(crate) async fn change(
    changer: Changer<'_>,
    observer: &Observer,
    changes: &LiveChanges<'_>,
) -> Result<Vec<String>> {
    let caller = changer.caller;
    let mut wanted = plan_live(caller, changes).await?;
    let before = workloads(caller).await?;
    let mut is_changed = false;
    let (services, workloads): (Vec<usize>, Vec<usize>) =
        (0..wanted.live.len()).partition(|index| wanted.live[*index].is_service());
    for index in workloads {
        is_changed |= change_live(changer, &mut wanted, index).await?;
    }
    if is_changed {
        tokio::select! {
            settled = until_settled(caller, observer, &before) => if let (_, Some(missing)) = settled? {
                let limit = caller.limits.rollout;
                return Err(CoordinatorError::Unsettled { missing, limit });
            },
            why = stuck_sidecar(caller, observer) => {
                let why = format!("{why}; use --image to name an image that the cluster can pull");
                return Err(CoordinatorError::Sidecar(why));
            }
        }
    }
    let mut is_rerouted = false;
    for index in services {
        is_rerouted |= change_live(changer, &mut wanted, index).await?;
    }
    if is_rerouted {
        // Otherwise, the load's first requests would bypass the sidecars.
        caller.stoppable(sleep(FOLLOW)).await?;
    }
    Ok(wanted.notes)
}

/// Changes one of the objects if necessary, and returns true if it has changed. If others have changed the object
/// in the meantime, checks again whether anything forbids the change.
async fn change_live(changer: Changer<'_>, wanted: &mut WantedChanges<'_>, index: usize) -> Result<bool> {
    for attempt in 1..ATTEMPTS {
        let object = &wanted.live[index];
        match change_as(changer, wanted, object).await {
            Err(CoordinatorError::Conflict(_)) => {}
            // The conflicting change may have been this one, if its response was lost.
            changed => return Ok(changed?.is_some() || attempt > 1),
        }
        let what = format!("read {}", object.title());
        let found = changer.caller.read(&object.api, &what, object.name()).await?;
        wanted.live[index].is_now(found);
        wanted.compute()?;
    }
    change_as(changer, wanted, &wanted.live[index]).await?;
    Ok(true)
}

async fn change_as(changer: Changer<'_>, wanted: &WantedChanges<'_>, object: &Live) -> Result<Option<u32>> {
    let Live { api, current, wanted: to, .. } = object;
    let is_restarted = wanted.changes.ending.is_some_and(|(whose, _)| whose.workload == object.reference());
    match is_restarted {
        true => changer.change_and_restart(api, current, to).await,
        false => changer.change(api, current, to).await,
    }
}

/// Waits until a pod with the sidecar has reported for some time that it cannot start, and returns the reason.
async fn stuck_sidecar(caller: &Caller, observer: &Observer) -> String {
    let stuck = |view: &View| {
        view.stuck_container(|pod| pod.containers.iter().any(|c| c.name == inject::SIDECAR_NAME))
    };
    loop {
        observer.views().wait_until(|view| stuck(view).is_some()).await;
        sleep(caller.limits.stuck).await;
        if let Some(why) = observer.views().read(stuck) {
            return why.to_string();
        }
    }
}

/// Makes these changes outside of any run and without undoing them. Returns the names of the changed objects.
///
/// # Errors
/// Fails if a change is not possible, or if something forbids it.
pub async fn change_for_good(caller: &Caller, changes: &LiveChanges<'_>) -> Result<Vec<String>> {
    let (mut changed, mut attempts) = (Vec::new(), 0..ATTEMPTS);
    'anew: loop {
        let wanted = plan_live(caller, changes).await?;
        for object in wanted.changed() {
            let what = format!("change {}", object.title());
            let patch = || undo::patch(&object.api, object.name(), &object.current, &object.wanted);
            match caller.ask(&what, patch).await? {
                Ok(_) => changed.push(object.title()),
                // A previous rollout may still be updating the object's status.
                Err(kube::Error::Api(status)) if status.code == 409 && attempts.next().is_some() => {
                    continue 'anew;
                }
                Err(error) => return Err(CoordinatorError::api(&what, &error)),
            }
        }
        return Ok(changed);
    }
}
