//! Outcome of a Job. Pure.

use serde_json::Value;

use crate::conditions::of as condition;

/// Decision that a Job has finished. The Job may still have running pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct JobVerdict {
    pub(super) end: JobEnd,
    pub(super) reason: String,
    pub(super) message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JobEnd {
    Complete,
    Failed,
}

impl JobEnd {
    /// Returns the condition to set once the outcome is certain, and the one to set when all pods have terminated.
    pub(super) const fn conditions(self) -> (&'static str, &'static str) {
        match self {
            Self::Complete => ("SuccessCriteriaMet", "Complete"),
            Self::Failed => ("FailureTarget", "Failed"),
        }
    }
}

impl JobVerdict {
    pub(super) fn new(end: JobEnd, reason: &str, message: &str) -> Self {
        Self { end, reason: reason.to_owned(), message: message.to_owned() }
    }

    /// Returns the verdict already recorded in the Job's conditions.
    pub(super) fn before(job: &Value) -> Option<Self> {
        [JobEnd::Complete, JobEnd::Failed].into_iter().find_map(|end| {
            let decided = condition(job, end.conditions().0);
            let text = |field: &str| decided[field].as_str().unwrap_or_default();
            (decided["status"] == "True").then(|| Self::new(end, text("reason"), text("message")))
        })
    }
}
