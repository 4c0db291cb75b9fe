//! Ends pods as the scenario says, and stamps its own calls.

use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, Preconditions};
use kube::{Api, ResourceExt};
use tokio::time::{sleep_until, timeout};

use super::limits::Bounds;
use super::{CoordinatorError, Session};
use crate::record::{EventKind, Stamp, event};
use crate::scenario::{Action, Disruption};

/// What became of the disruptions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Disrupted {
    /// Actions that the API server accepted.
    pub accepted: usize,
    /// Actions that were refused, or for which no pod was ready.
    pub failed: usize,
    /// Repetitions that were left out because pods had not recovered before the load ended.
    pub skipped: usize,
}

/// A selector must match something before anything is disrupted, and not all may go at once.
pub(super) async fn check(session: &Session, disruption: &Disruption) -> Result<(), CoordinatorError> {
    let Action::DeletePod { selector, .. } = &disruption.action;
    let pods = list(session, selector).await?;
    if pods.is_empty() {
        let (selector, namespace) = (selector.clone(), session.caller.namespace.clone());
        return Err(CoordinatorError::NoPods { selector, namespace });
    }
    choose(session, disruption, oldest_ready_first(pods)).await?;
    Ok(())
}

/// The pods that an action takes of those that are ready.
async fn choose(
    session: &Session,
    disruption: &Disruption,
    mut ready: Vec<Pod>,
) -> Result<Vec<Pod>, CoordinatorError> {
    let Action::DeletePod { selector, count } = &disruption.action;
    let whole = ready.len();
    ready.truncate(*count);
    if disruption.allow_outage || ready.is_empty() {
        return Ok(ready);
    }
    let bounds = Bounds { budgets: session.list_kind().await?, deployments: session.list_kind().await? };
    match bounds.refuse(&ready, whole) {
        None => Ok(ready),
        Some(why) => {
            let (action, selector) = (disruption.action.name().to_owned(), selector.clone());
            Err(CoordinatorError::TooMany { action, selector, why })
        }
    }
}

pub(super) async fn run(
    session: &Session,
    disruptions: &[Disruption],
    zero: Stamp,
    load_end: Stamp,
) -> Disrupted {
    let all = disruptions.iter().enumerate().map(|(index, disruption)| {
        let index = u32::try_from(index).unwrap_or(u32::MAX);
        repeat(session, index, disruption, zero, load_end)
    });
    join_all(all).await.into_iter().fold(Disrupted::default(), |sum, part| Disrupted {
        accepted: sum.accepted + part.accepted,
        failed: sum.failed + part.failed,
        skipped: sum.skipped + part.skipped,
    })
}

async fn repeat(
    session: &Session,
    index: u32,
    disruption: &Disruption,
    zero: Stamp,
    load_end: Stamp,
) -> Disrupted {
    let Action::DeletePod { selector, count } = &disruption.action;
    let mut done = Disrupted::default();
    // Ready pods before the first: so many there have to be again before the next.
    let mut whole = 0;
    for repetition in 0..disruption.repeat {
        let due = zero + disruption.at + disruption.every * repetition;
        let due = session.clock.instant(due).unwrap_or_else(std::time::Instant::now);
        if session.caller.stoppable(sleep_until(due.into())).await.is_err() {
            break;
        }
        if repetition > 0 && !recovered(session, selector, whole, load_end).await {
            done.skipped += 1;
            let message = format!(
                "{} number {} was left out: the pods of the one before had not recovered when the load ended",
                disruption.action.name(),
                repetition + 1
            );
            session.record(EventKind::Warning { message });
            continue;
        }
        // One at a time, with recovery in between, is what makes a termination isolated.
        let mode = if *count == 1 { "isolated" } else { "other" };
        let chosen = match list(session, selector).await.map(oldest_ready_first) {
            Ok(pods) if pods.is_empty() => Err("no pod that it selects is ready".to_owned()),
            Ok(pods) => {
                whole = whole.max(pods.len());
                choose(session, disruption, pods).await.map_err(|error| error.to_string())
            }
            Err(error) => Err(error.to_string()),
        };
        let pods = match chosen {
            Ok(pods) => pods,
            Err(why) => {
                refused(session, index, disruption, mode, &why);
                done.failed += 1;
                continue;
            }
        };
        let deletions = pods.iter().map(|pod| delete(session, index, disruption, mode, pod));
        for accepted in join_all(deletions).await {
            if accepted {
                done.accepted += 1;
            } else {
                done.failed += 1;
            }
        }
    }
    done
}

/// Waits, while the load lasts, until none of the selected pods is terminating and `whole` are ready.
async fn recovered(session: &Session, selector: &str, whole: usize, load_end: Stamp) -> bool {
    let limit = load_end.ns_since(session.clock.now());
    let limit = Duration::from_nanos(limit.max(0).unsigned_abs());
    let is_whole = async {
        loop {
            // Before the list, so that no change after it is missed.
            let changed = session.views.changed();
            let pods = list(session, selector).await.unwrap_or_default();
            let terminating = pods.iter().any(|pod| pod.metadata.deletion_timestamp.is_some());
            if !terminating && oldest_ready_first(pods).len() >= whole {
                return;
            }
            changed.await;
        }
    };
    matches!(session.caller.stoppable(timeout(limit, is_whole)).await, Ok(Ok(())))
}

async fn list(session: &Session, selector: &str) -> Result<Vec<Pod>, CoordinatorError> {
    let pods = Api::<Pod>::namespaced(session.caller.client.clone(), &session.caller.namespace);
    let listed = pods.list(&ListParams::default().labels(selector)).await;
    Ok(listed.map_err(|e| CoordinatorError::api(&format!("list pods {selector:?}"), &e))?.items)
}

/// Those that are ready and stay, the oldest first.
fn oldest_ready_first(mut pods: Vec<Pod>) -> Vec<Pod> {
    pods.retain(|pod| {
        let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_ref());
        let ready = conditions.into_iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True");
        ready && pod.metadata.deletion_timestamp.is_none()
    });
    pods.sort_by_key(|pod| (pod.metadata.creation_timestamp.clone(), pod.name_any()));
    pods
}

async fn delete(session: &Session, index: u32, disruption: &Disruption, mode: &str, pod: &Pod) -> bool {
    let pods = Api::<Pod>::namespaced(session.caller.client.clone(), &session.caller.namespace);
    let params = DeleteParams {
        preconditions: Some(Preconditions { uid: pod.uid(), resource_version: None }),
        ..DeleteParams::default()
    };
    let name = pod.name_any();
    let sent = session.clock.now();
    let answer = timeout(session.caller.limits.api_call, pods.delete(&name, &params)).await;
    let answered = session.clock.now();
    let (status, error) = match answer {
        Ok(Ok(_)) => (Some(200), None),
        Ok(Err(kube::Error::Api(status))) => (Some(status.code), Some(status.message.clone())),
        Ok(Err(error)) => (None, Some(CoordinatorError::api("delete the pod", &error).to_string())),
        Err(_) => (None, Some(format!("no answer within {:?}", session.caller.limits.api_call))),
    };
    let accepted = error.is_none();
    let action = event::Action {
        disruption: index,
        action: disruption.action.name().into(),
        mode: mode.into(),
        pod: Some(name),
        uid: pod.uid(),
        answered,
        status,
        error,
    };
    session.record_at(sent, EventKind::Action(action));
    accepted
}

/// Records an action for which there was nothing to act on.
fn refused(session: &Session, index: u32, disruption: &Disruption, mode: &str, why: &str) {
    let now = session.clock.now();
    let action = event::Action {
        disruption: index,
        action: disruption.action.name().into(),
        mode: mode.into(),
        pod: None,
        uid: None,
        answered: now,
        status: None,
        error: Some(why.to_owned()),
    };
    session.record_at(now, EventKind::Action(action));
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(name: &str, created: &str, ready: &str, deleted: Option<&str>) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": name, "creationTimestamp": created, "deletionTimestamp": deleted},
            "status": {"conditions": [{"type": "Ready", "status": ready}]},
        }))
        .unwrap()
    }

    #[test]
    fn pods_that_are_ready_and_stay_are_chosen_the_oldest_first() {
        let pods = vec![
            pod("young", "2026-01-01T00:00:09Z", "True", None),
            pod("going", "2026-01-01T00:00:01Z", "True", Some("2026-01-01T00:00:31Z")),
            pod("starting", "2026-01-01T00:00:02Z", "False", None),
            pod("old-b", "2026-01-01T00:00:03Z", "True", None),
            pod("old-a", "2026-01-01T00:00:03Z", "True", None),
        ];
        let names: Vec<_> = oldest_ready_first(pods).iter().map(ResourceExt::name_any).collect();
        assert_eq!(names, ["old-a", "old-b", "young"]);
    }
}
