//! The run's own calls to the API server, and their results.

use super::endpoint_history::{EndpointChange, EndpointHistory, EndpointOf};
use rolldrop_record::event::{Action, ActionName};
use rolldrop_record::{EventKind, Stamp};

/// Call made by the run.
#[derive(Clone, Debug)]
pub struct ActionCall {
    /// Time the call was sent.
    pub at: Stamp,
    /// Time the response arrived.
    pub answered: Stamp,
    /// True if the action was carried out.
    pub is_done: bool,
    /// Kind of action.
    pub action: ActionName,
    /// Name of the pod, if the action names one.
    pub pod: Option<String>,
}

/// Requested action that was not carried out.
#[derive(Clone, Debug)]
pub struct RefusedAction {
    /// Kind of action.
    pub action: ActionName,
    /// Name of the pod, if the action names one.
    pub pod: Option<String>,
    /// The API server's status code; `None` if it was not called, or did not respond.
    pub status: Option<u16>,
    /// Reason why the action was not carried out.
    pub why: String,
}

/// Pod that left its Services while it kept running.
#[derive(Clone, Debug)]
pub struct Withdrawal {
    /// Name of the pod.
    pub pod: String,
    /// Time the run requested the withdrawal.
    pub asked: Stamp,
    /// Time the response arrived.
    pub answered: Stamp,
    /// Time a watch showed the pod's endpoint as removed.
    pub endpoint_removed: Option<Stamp>,
    /// Time a watch showed the pod's endpoint ready again, if it came back.
    pub returned: Option<Stamp>,
}

/// Collects the run's own calls, in order.
#[derive(Debug, Default)]
pub(super) struct ActionCollector<'a>(pub(super) Vec<(Stamp, &'a Action)>);

impl<'a> ActionCollector<'a> {
    pub(super) fn observe(&mut self, at: Stamp, kind: &'a EventKind) {
        if let EventKind::Action(action) = kind {
            self.0.push((at, action));
        }
    }

    /// Returns the calls, in order.
    pub(super) fn calls(&self) -> Vec<ActionCall> {
        let call = |(at, action): &(Stamp, &Action)| ActionCall {
            at: *at,
            answered: action.answered,
            is_done: action.error.is_none(),
            action: action.action,
            pod: action.pod.clone(),
        };
        self.0.iter().map(call).collect()
    }

    /// Returns the actions that were refused for good. An eviction delayed by a disruption budget may have succeeded
    /// later, and so may any call after an API server error.
    pub(super) fn refused(&self) -> Vec<RefusedAction> {
        let is_done_later = |number: usize, (asked, action): &(Stamp, &Action)| {
            let mut later = self.0[number + 1..].iter().map(|(_, later)| later).filter(|later| {
                later.disruption == action.disruption
                    && later.action == action.action
                    && later.pod == action.pod
            });
            match action.pod {
                Some(_) => later.next().is_some(),
                // A refusal by the run itself takes no time and is never retried.
                None => action.answered > *asked && later.any(|later| later.error.is_none()),
            }
        };
        let refused = |(number, entry): (usize, &(Stamp, &Action))| {
            let Action { action, pod, status, error, .. } = entry.1;
            let why = error.clone().filter(|_| !is_done_later(number, entry))?;
            Some(RefusedAction { action: *action, pod: pod.clone(), status: *status, why })
        };
        self.0.iter().enumerate().filter_map(refused).collect()
    }

    /// Counts the node agent restarts requested by the run.
    pub(super) fn agent_restarts(&self) -> usize {
        let is_restart =
            |action: &Action| action.action == ActionName::RestartNodeAgent && action.error.is_none();
        self.0.iter().filter(|(_, action)| is_restart(action)).count()
    }

    /// Returns the pods that a label took out of their Services.
    pub(super) fn withdrawals(&self, endpoints: &EndpointHistory) -> Vec<Withdrawal> {
        let relabelled = |action: &Action| action.action == ActionName::Relabel && action.error.is_none();
        let withdrawal = |(asked, action): &(Stamp, &Action)| {
            let pod = action.pod.clone()?;
            let of = EndpointOf::named(&pod);
            let endpoint_removed = endpoints.first(of, EndpointChange::Removed, *asked);
            let returned = endpoint_removed.and_then(|gone| endpoints.first(of, EndpointChange::Ready, gone));
            Some(Withdrawal { pod, asked: *asked, answered: action.answered, endpoint_removed, returned })
        };
        self.0.iter().filter(|(_, action)| relabelled(action)).filter_map(withdrawal).collect()
    }
}
