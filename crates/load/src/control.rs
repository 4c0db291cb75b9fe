//! Progress and control of a load while it runs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::tally::{Counts, ErrorStatuses};

/// Progress of a load so far, warm-up included. Counts lag by a fraction of a second.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Requests that have been due so far.
    pub scheduled: u64,
    /// Requests that are in flight.
    pub in_flight: u64,
    /// Requests that ended, by outcome.
    pub outcomes: Counts,
    /// Requests of the warm-up among these.
    #[serde(default)]
    pub warmup: Counts,
    /// Statuses of complete answers outside the success set.
    #[serde(flatten)]
    pub error_statuses: ErrorStatuses,
    /// Response times of the requests answered in the last second, if there were any.
    pub recent: Option<Recent>,
}

impl Progress {
    /// Returns the requests of the counted part that ended, by outcome.
    pub fn counted(&self) -> Counts {
        let without = |(outcome, count): (_, u64)| (outcome, count.saturating_sub(self.warmup.of(outcome)));
        self.outcomes.iter().map(without).collect::<BTreeMap<_, _>>().into()
    }
}

/// Response times of the requests of about a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recent {
    /// Median.
    pub p50: Duration,
    /// 99th percentile.
    pub p99: Duration,
}

impl Recent {
    /// Computes the quantiles of times in nanoseconds; `None` if there are none.
    pub(super) fn of(ns: &Histogram<u64>) -> Option<Self> {
        let at = |quantile| Duration::from_nanos(ns.value_at_quantile(quantile));
        (!ns.is_empty()).then(|| Self { p50: at(0.5), p99: at(0.99) })
    }
}

/// State and control of a running load. Clones share it.
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

    /// Stores the progress that another process reports.
    pub(super) fn report(&self, progress: Progress) {
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner) = progress;
    }

    /// Ends the schedule: no further request becomes due, and those in flight end
    /// as they would have, within their timeouts.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// Ends the schedule and cuts off the requests in flight, which end as `cancelled`.
    pub fn abort(&self) {
        self.stop.cancel();
        self.abort.cancel();
    }
}
