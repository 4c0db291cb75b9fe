//! Record of a Job's counted pods, which ensures that each pod counts only once.
//!
//! In Kubernetes, a finalizer keeps finished pods until they are counted. Here, the controller runs for as long as
//! the cluster does and sees the last state of every pod, so it remembers finished pods instead.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;
use tokio::time::{Duration, Instant};

use super::super::reconciler::BackOff;
use crate::object_fields::uid;

/// A Job's finished pods.
#[derive(Debug, Default)]
pub(super) struct JobLedger {
    counted: BTreeSet<String>,
    /// Pods that are gone but not counted yet, in their last state.
    gone: BTreeMap<String, Arc<Value>>,
    /// Number of failures since the last success, and the time of the last failure.
    failures: Option<(u32, Instant)>,
}

impl JobLedger {
    /// Stores the last state of a pod that is gone.
    pub(super) fn keep(&mut self, pod: Arc<Value>) {
        let uid = uid(&pod).to_owned();
        if !self.counted.contains(&uid) {
            self.gone.insert(uid, pod);
        }
    }

    /// Returns the pods that are gone but not counted yet.
    pub(super) fn gone(&self) -> impl Iterator<Item = &Arc<Value>> {
        self.gone.values()
    }

    /// Returns true if a pod has not been counted yet.
    pub(super) fn is_open(&self, pod: &Value) -> bool {
        !self.counted.contains(uid(pod))
    }

    /// Excludes a pod from being counted (again).
    pub(super) fn close(&mut self, pod: &Value) {
        let uid = uid(pod).to_owned();
        self.gone.remove(&uid);
        self.counted.insert(uid);
    }

    /// Records how many pods have succeeded and failed since the last call.
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

    /// Returns the delay before the next pod may be created.
    pub(super) fn pause(&self, back_off: BackOff) -> Duration {
        let Some((failures, since)) = self.failures else { return Duration::ZERO };
        back_off.after(failures).saturating_sub(since.elapsed())
    }
}
