//! The end of a Job. Pure.

use serde_json::Value;

use crate::conditions::of as condition;

/// Decision on the end of a Job, which may still have running pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) end: End,
    pub(super) reason: String,
    pub(super) message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Complete,
    Failed,
}

impl End {
    /// Returns the condition set once the end is certain, and the one set when all pods have ended.
    pub(super) const fn conditions(self) -> (&'static str, &'static str) {
        match self {
            Self::Complete => ("SuccessCriteriaMet", "Complete"),
            Self::Failed => ("FailureTarget", "Failed"),
        }
    }
}

impl Verdict {
    pub(super) fn new(end: End, reason: &str, message: &str) -> Self {
        Self { end, reason: reason.to_owned(), message: message.to_owned() }
    }

    /// Returns the verdict that the Job's conditions already hold.
    pub(super) fn before(job: &Value) -> Option<Self> {
        [End::Complete, End::Failed].into_iter().find_map(|end| {
            let decided = condition(job, end.conditions().0);
            let text = |field: &str| decided[field].as_str().unwrap_or_default();
            (decided["status"] == "True").then(|| Self::new(end, text("reason"), text("message")))
        })
    }
}
