//! Progress and control of a load while it runs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::tally::{ErrorStatuses, OutcomeCounts};

/// Progress of a load so far, including the warm-up. Counts lag by a fraction of a second.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Number of requests that have become due so far.
    pub scheduled: u64,
    /// Number of requests in flight.
    pub in_flight: u64,
    /// Outcome counts of the ended requests.
    pub outcomes: OutcomeCounts,
    /// Outcome counts of the ended warm-up requests.
    #[serde(default)]
    pub warmup: OutcomeCounts,
    /// Counts of the statuses of complete responses outside the success set.
    #[serde(flatten)]
    pub error_statuses: ErrorStatuses,
    /// Response times of the requests that got a complete response in the last second, if any.
    pub recent: Option<Recent>,
}

impl Progress {
    /// Returns the outcome counts of the ended requests in the counted part.
    pub fn counted(&self) -> OutcomeCounts {
        let without = |(outcome, count): (_, u64)| (outcome, count.saturating_sub(self.warmup.of(outcome)));
        self.outcomes.iter().map(without).collect::<BTreeMap<_, _>>().into()
    }
}

/// Response times over about one second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recent {
    /// Median.
    pub p50: Duration,
    /// 99th percentile.
    pub p99: Duration,
}

impl Recent {
    /// Computes the quantiles of times in nanoseconds; `None` if there are no times.
    pub(super) fn of(ns: &Histogram<u64>) -> Option<Self> {
        let at = |quantile| Duration::from_nanos(ns.value_at_quantile(quantile));
        (!ns.is_empty()).then(|| Self { p50: at(0.5), p99: at(0.99) })
    }
}

/// State and control of a running load. Clones share the same state.
#[derive(Clone, Debug, Default)]
pub struct Control {
    pub(super) progress: Arc<Mutex<Progress>>,
    pub(super) stop: CancellationToken,
    pub(super) abort: CancellationToken,
}

impl Control {
    /// Returns the progress of the load so far.
    pub fn progress(&self) -> Progress {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Stores the progress reported by another process.
    pub(super) fn report(&self, progress: Progress) {
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner) = progress;
    }

    /// Ends the schedule, so that no more requests become due. Requests in flight end normally, within their timeouts.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// Ends the schedule and aborts the requests in flight, which end as `cancelled`.
    pub fn abort(&self) {
        self.stop.cancel();
        self.abort.cancel();
    }
}
