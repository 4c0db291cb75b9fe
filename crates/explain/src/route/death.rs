//! Bounds and best estimates for when a terminating pod stopped accepting connections and answering requests.

use crate::timeline::{PodEnd, Timeline};
use rolldrop_record::{Outcome, Stamp};

/// Time from a container's exit to the watch event that shows it: a median of 0.22 s on a real v1.36.2 cluster, and
/// 0.15 to 0.40 s in 190 terminations.
const SHOWN_AFTER_NS: i64 = 220_000_000;
/// Time from the removal of the pod's address to the same event (the removal is 0.12 s to 0.3 s after the exit).
const ADDRESS_BEFORE_NS: i64 = 100_000_000;
/// Spread of that time, in seconds.
const ADDRESS_SPREAD_S: f64 = 0.05;
/// Time from SIGTERM to the exit of an app that exits immediately.
const EXIT_NS: i64 = 30_000_000;
/// Largest clock error of the recording proxy beside an app. In records that do not show when it last saw the app's
/// listener open, it is also the longest delay until the proxy, which asks the kernel every 5 ms, finds it closed.
const LISTENER_NS: i64 = 50_000_000;
/// Largest error in the estimated time of a container's exit.
const SHOWN_SPREAD_NS: i64 = 180_000_000;
/// Weight of an explanation contradicted by a connection's outcome. It is not 0, because networks differ.
const UNLIKELY: f64 = 0.01;

/// Bounds for when one pod stopped accepting connections and answering requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Death {
    /// Earliest possible time.
    pub earliest: Stamp,
    /// Time from which the only unknown is how quickly an app stops after its signal.
    told: Stamp,
    /// Best estimate.
    pub likely: Stamp,
    /// Time from which the pod certainly accepts no connections; `None` if its end was not seen.
    pub sure: Option<Stamp>,
    /// Best estimate of when the pod's address was removed.
    address_gone: Stamp,
    /// Time until which the pod answered requests that reached it on open connections.
    pub answered_until: Stamp,
    /// Time from which the pod certainly answered no requests, even on open connections; `None` if its end was not
    /// seen.
    pub silent_from: Option<Stamp>,
}

impl Death {
    /// Computes the bounds from the watches and the pod's recording proxy.
    pub(crate) fn of(timeline: &Timeline, end: &PodEnd) -> Self {
        let stages = &end.stages;
        let listened = stages.last_listening.or(stages.listener_closed).map(|at| at.shifted_ns(-LISTENER_NS));
        let accepted = [end.accepted_until(), listened].into_iter().flatten();
        let earliest = accepted.fold(end.may_stop_from(), Stamp::max);
        let told = earliest.shifted_ns(end.t0.latest.ns_since(end.t0.earliest) + EXIT_NS);
        let shown = stages.containers_terminated.or(stages.pod_deleted);
        let seen = [stages.listener_closed, stages.app_exited].into_iter().flatten().min();
        let likely = seen.or(shown.map(|at| at.shifted_ns(-SHOWN_AFTER_NS))).unwrap_or(told).max(earliest);
        let sure = [seen, shown].into_iter().flatten().min().map(|at| at.max(earliest));
        let address_gone = shown.unwrap_or(likely.shifted_ns(SHOWN_AFTER_NS)).shifted_ns(-ADDRESS_BEFORE_NS);
        // If all rows from a proxy arrived, it would have recorded any unanswered request.
        let recorded_until = stages.proxy_exited.filter(|_| timeline.has_all_rows_of(&end.uid));
        let answered_until = recorded_until.map_or(end.may_stop_from(), |at| at.max(end.may_stop_from()));
        let silent_from = stages.app_exited.or(shown);
        Self { earliest, told, likely, sure, address_gone, answered_until, silent_from }
    }

    /// Widens the bounds on responses for a client with this clock uncertainty.
    pub(crate) fn widened(self, uncertainty_ns: i64) -> Self {
        Self {
            answered_until: self.answered_until.shifted_ns(-uncertainty_ns),
            silent_from: self.silent_from.map(|at| at.shifted_ns(uncertainty_ns)),
            ..self
        }
    }

    /// Creates a synthetic pod that answered until `answered_until`, and certainly not from `silent_from` on.
    #[cfg(test)]
    pub(crate) fn between(answered_until: Stamp, silent_from: Stamp) -> Self {
        Self {
            earliest: answered_until,
            told: answered_until,
            likely: silent_from,
            sure: Some(silent_from),
            address_gone: silent_from,
            answered_until,
            silent_from: Some(silent_from),
        }
    }

    /// Takes into account that connections to the pod were seen to fail by `at`.
    pub(crate) fn seen_dead(&mut self, at: Stamp) {
        let at = at.max(self.earliest);
        self.sure = Some(self.sure.map_or(at, |sure| sure.min(at)));
        self.likely = self.likely.min(at);
    }

    /// Returns true if the pod certainly accepts no connections at `at`.
    pub(crate) fn is_sure(&self, at: Stamp) -> bool {
        self.sure.is_some_and(|sure| sure <= at)
    }

    /// Returns the chance that the pod had stopped by `at`, 0 to 1.
    pub(crate) fn chance_by(&self, at: Stamp) -> f64 {
        if self.is_sure(at) || at >= self.told {
            return 1.0;
        }
        let (since, length) = (at.seconds_since(self.earliest), self.told.seconds_since(self.earliest));
        (since / length.max(1e-9)).clamp(UNLIKELY, 1.0)
    }

    /// Returns the same chance for a pod that should still receive connections at `at` and accepted its last connection
    /// at `accepted`. If it were still listening, it would have accepted another one within `silence_ns`. So it stopped
    /// within that time, or no longer receives connections. A pod that still accepted connections when others would
    /// have stopped on their signal may stop at any time until it exits.
    pub(crate) fn chance_after(&self, accepted: Option<Stamp>, silence_ns: i64, at: Stamp) -> f64 {
        match accepted {
            Some(accepted) if at <= accepted => UNLIKELY,
            Some(accepted) if accepted > self.told => {
                let since = at.ns_since(accepted).min(silence_ns);
                let length = self.likely.ns_since(accepted) - SHOWN_SPREAD_NS;
                (since as f64 / length.max(1) as f64).clamp(UNLIKELY, 1.0)
            }
            _ => self.chance_by(at),
        }
    }

    /// Returns the likelihood, 0 to 1, of a failed connect that began at `at` if the pod has stopped: the pod's address
    /// refuses while it exists, and is silent or unreachable once it is gone.
    pub(crate) fn fits(&self, outcome: Outcome, at: Stamp) -> f64 {
        let gone = 1.0 / (1.0 + (-at.seconds_since(self.address_gone) / ADDRESS_SPREAD_S).exp());
        match outcome {
            Outcome::ConnectRefused => (1.0 - gone).max(UNLIKELY),
            Outcome::ConnectTimeout | Outcome::ConnectUnreachable => gone.max(UNLIKELY),
            _ => 1.0,
        }
    }

    /// Returns the likelihood, 0 to 1, that the pod's own exit explains an established connection being cut off at
    /// `at`.
    pub(crate) fn cuts_off(&self, at: Stamp) -> f64 {
        (-at.seconds_since(self.likely).abs() / 0.3).exp().max(UNLIKELY)
    }
}
