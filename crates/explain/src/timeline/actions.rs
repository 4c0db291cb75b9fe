//! The run's own calls to the cluster, and their results.

use super::endpoints::{EndpointChange, EndpointOf, Endpoints};
use rolldrop_record::event::{Action, ActionName};
use rolldrop_record::{EventKind, Stamp};

/// A call of the run.
#[derive(Clone, Debug)]
pub struct Call {
    /// Time at which it was made.
    pub at: Stamp,
    /// Time at which it was answered.
    pub answered: Stamp,
    /// True if it was done.
    pub is_done: bool,
    /// The action.
    pub action: ActionName,
    /// The pod, if the action names one.
    pub pod: Option<String>,
}

/// An action that was asked for and not done.
#[derive(Clone, Debug)]
pub struct Refused {
    /// The action.
    pub action: ActionName,
    /// The pod, if the action names one.
    pub pod: Option<String>,
    /// The API server's status code; `None` if it was not asked, or did not answer.
    pub status: Option<u16>,
    /// Reason why it was not done.
    pub why: String,
}

/// A pod that left its Services while it kept running.
#[derive(Clone, Debug)]
pub struct Withdrawal {
    /// Name of the pod.
    pub pod: String,
    /// Time at which the run asked for that.
    pub asked: Stamp,
    /// Time at which the answer arrived.
    pub answered: Stamp,
    /// Time at which a watch showed its endpoint gone.
    pub endpoint_removed: Option<Stamp>,
    /// Time at which a watch showed its endpoint ready again, if it came back.
    pub returned: Option<Stamp>,
}

/// Takes the run's own calls, in order.
#[derive(Debug, Default)]
pub(super) struct Collector<'a>(pub(super) Vec<(Stamp, &'a Action)>);

impl<'a> Collector<'a> {
    pub(super) fn observe(&mut self, at: Stamp, kind: &'a EventKind) {
        if let EventKind::Action(action) = kind {
            self.0.push((at, action));
        }
    }

    /// Returns the calls, in order.
    pub(super) fn calls(&self) -> Vec<Call> {
        let call = |(at, action): &(Stamp, &Action)| Call {
            at: *at,
            answered: action.answered,
            is_done: action.error.is_none(),
            action: action.action,
            pod: action.pod.clone(),
        };
        self.0.iter().map(call).collect()
    }

    /// Returns the actions that were refused for good: an eviction that a budget delayed may have been done later, and
    /// so may any call after a fault of the API server.
    pub(super) fn refused(&self) -> Vec<Refused> {
        let is_done_later = |number: usize, (asked, action): &(Stamp, &Action)| {
            let mut later = self.0[number + 1..].iter().map(|(_, later)| later).filter(|later| {
                later.disruption == action.disruption
                    && later.action == action.action
                    && later.pod == action.pod
            });
            match action.pod {
                Some(_) => later.next().is_some(),
                // A refusal by the run itself took no time, and is not tried again.
                None => action.answered > *asked && later.any(|later| later.error.is_none()),
            }
        };
        let refused = |(number, entry): (usize, &(Stamp, &Action))| {
            let Action { action, pod, status, error, .. } = entry.1;
            let why = error.clone().filter(|_| !is_done_later(number, entry))?;
            Some(Refused { action: *action, pod: pod.clone(), status: *status, why })
        };
        self.0.iter().enumerate().filter_map(refused).collect()
    }

    /// Counts the times that the run had a node's agent restarted.
    pub(super) fn agent_restarts(&self) -> usize {
        let is_restart =
            |action: &Action| action.action == ActionName::RestartNodeAgent && action.error.is_none();
        self.0.iter().filter(|(_, action)| is_restart(action)).count()
    }

    /// Returns the pods that a label took out of their Services.
    pub(super) fn withdrawals(&self, endpoints: &Endpoints) -> Vec<Withdrawal> {
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
