//! Record of a Job's counted pods, so that each counts once.
//!
//! Kubernetes keeps finished pods by a finalizer until they are counted. Here the controller lives as long as the
//! cluster and sees every pod's last state, so it remembers them instead.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;
use tokio::time::{Duration, Instant};

use super::super::worker::BackOff;
use crate::object::uid;

/// The finished pods of one Job.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    counted: BTreeSet<String>,
    /// Pods that are gone and not counted yet, in their last state.
    gone: BTreeMap<String, Arc<Value>>,
    /// Failures since the last success, and the time of the last one.
    failures: Option<(u32, Instant)>,
}

impl Ledger {
    /// Keeps the last state of a pod that is gone.
    pub(super) fn keep(&mut self, pod: Arc<Value>) {
        let uid = uid(&pod).to_owned();
        if !self.counted.contains(&uid) {
            self.gone.insert(uid, pod);
        }
    }

    /// Returns the pods that are gone and not counted.
    pub(super) fn gone(&self) -> impl Iterator<Item = &Arc<Value>> {
        self.gone.values()
    }

    /// Returns true if a pod is not counted yet.
    pub(super) fn is_open(&self, pod: &Value) -> bool {
        !self.counted.contains(uid(pod))
    }

    /// Excludes this pod from being counted (again).
    pub(super) fn close(&mut self, pod: &Value) {
        let uid = uid(pod).to_owned();
        self.gone.remove(&uid);
        self.counted.insert(uid);
    }

    /// Records the pods that have succeeded and failed since the last call.
    pub(super) fn note(&mut self, succeeded: usize, failed: usize) {
        if succeeded > 0 {
            self.failures = None;
        }
        if failed > 0 {
            let before = self.failures.map_or(0, |(count, _)| count);
            let count = before.saturating_add(u32::try_from(failed).unwrap_or(u32::MAX));
            self.failures = Some((count, Instant::now()));
        }
    }

    /// Returns the time to wait before the next pod is created.
    pub(super) fn pause(&self, back_off: BackOff) -> Duration {
        let Some((failures, since)) = self.failures else { return Duration::ZERO };
        back_off.after(failures).saturating_sub(since.elapsed())
    }
}
