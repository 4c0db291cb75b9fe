//! Timing of probes, and the thresholds at which a result counts.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Probe;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::container_action::{ActionOutcome, ContainerAction, NotDone};
use super::pod_context::PodContext;

/// Purpose of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProbeKind {
    Startup,
    Readiness,
    Liveness,
}

/// Result of one probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProbeResult {
    Success,
    Failure,
}

/// Time of the first probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FirstProbe {
    /// After this duration.
    After(Duration),
    /// One period later than this, because the tick after this duration finds no container yet.
    Missed(Duration),
}

/// Counter of consecutive equal results, up to the threshold.
#[derive(Clone, Debug)]
struct Threshold {
    success: u32,
    failure: u32,
    last: Option<ProbeResult>,
    streak: u32,
}

impl Threshold {
    fn of(probe: &Probe) -> Self {
        Self {
            success: positive(probe.success_threshold, 1),
            failure: positive(probe.failure_threshold, 3),
            last: None,
            streak: 0,
        }
    }

    /// Counts a result and returns it if it takes effect.
    fn count(&mut self, finding: ProbeResult) -> Option<ProbeResult> {
        self.streak = if self.last == Some(finding) { self.streak.saturating_add(1) } else { 1 };
        self.last = Some(finding);
        let needed = match finding {
            ProbeResult::Success => self.success,
            ProbeResult::Failure => self.failure,
        };
        (self.streak >= needed).then_some(finding)
    }
}

/// Returns a setting of a probe, or the default if the probe has none.
fn positive(given: Option<i32>, default: u32) -> u32 {
    given.and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0).unwrap_or(default)
}

/// Runner of one probe on one container.
pub(super) struct Prober {
    pub(super) context: Arc<PodContext>,
    pub(super) container: String,
    pub(super) kind: ProbeKind,
    pub(super) probe: Probe,
    /// Action of the probe, or the reason why it never counts.
    pub(super) action: Result<ContainerAction, NotDone>,
    pub(super) process_started: Instant,
    pub(super) first: FirstProbe,
    pub(super) findings: mpsc::UnboundedSender<(ProbeKind, ProbeResult)>,
}

impl Prober {
    /// Probes until dropped and sends every change of the effective result.
    pub(super) async fn run(self) {
        let seconds = |given, default| Duration::from_secs(positive(given, default).into());
        let initial_delay = seconds(self.probe.initial_delay_seconds, 0);
        let longest = seconds(self.probe.timeout_seconds, 1);
        let period = seconds(self.probe.period_seconds, 10);
        let first_after = match self.first {
            FirstProbe::After(wait) => wait,
            FirstProbe::Missed(wait) => wait + period,
        };
        let mut ticks = interval_at(Instant::now() + first_after, period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);

        let mut threshold = Threshold::of(&self.probe);
        let mut known = None;
        loop {
            ticks.tick().await;
            self.context.until_up().await;
            if self.process_started.elapsed() < initial_delay {
                continue;
            }
            let Some(finding) = self.once(longest).await else { continue };
            let Some(counted) = threshold.count(finding).filter(|counted| Some(*counted) != known) else {
                continue;
            };
            known = Some(counted);
            if self.kind == ProbeKind::Readiness {
                self.context.shared.delay(|latencies| latencies.probe_to_ready).await;
            }
            if self.findings.send((self.kind, counted)).is_err() {
                return;
            }
        }
    }

    /// Probes once, and records an event if the probe fails. Returns `None` if the probe could not be performed, which
    /// does not count.
    async fn once(&self, longest: Duration) -> Option<ProbeResult> {
        let result = match &self.action {
            Ok(action) => action.probe(longest).await,
            Err(why) => Err(why.clone()),
        };
        let warn = |reason, message: &str| self.context.warn(&self.container, reason, message);
        let kind = self.kind;
        match result {
            Ok(ActionOutcome::Success) => Some(ProbeResult::Success),
            Ok(ActionOutcome::Warning(why)) => {
                warn("ProbeWarning", &format!("{kind:?} probe warning: {why}"));
                Some(ProbeResult::Success)
            }
            Ok(ActionOutcome::Failure(why)) => {
                warn("Unhealthy", &format!("{kind:?} probe failed: {why}"));
                Some(ProbeResult::Failure)
            }
            Err(why) => {
                let message = format!("{kind:?} probe errored and resulted in unknown state: {why}");
                warn("Unhealthy", &message);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ProbeResult::{Failure, Success};
    use super::*;

    fn counted(success: i32, failure: i32, findings: &[ProbeResult]) -> Vec<Option<ProbeResult>> {
        let probe =
            Probe { success_threshold: Some(success), failure_threshold: Some(failure), ..Probe::default() };
        let mut threshold = Threshold::of(&probe);
        findings.iter().map(|finding| threshold.count(*finding)).collect()
    }

    #[test]
    fn probe_result_requires_consecutive_threshold() {
        assert_eq!(
            counted(1, 3, &[Success, Failure, Failure, Success, Failure, Failure, Failure, Failure]),
            [Some(Success), None, None, Some(Success), None, None, Some(Failure), Some(Failure)]
        );
        assert_eq!(
            counted(2, 1, &[Success, Success, Failure, Success]),
            [None, Some(Success), Some(Failure), None]
        );
    }

    #[test]
    fn thresholds_default_as_in_kubernetes() {
        let threshold = Threshold::of(&Probe::default());
        assert_eq!((threshold.success, threshold.failure), (1, 3));
    }
}
