//! What a reader should know, and the checks of the gate.

use serde::{Deserialize, Serialize};

use rolldrop_record::{Cause, named};

named! {
    /// How much a finding matters.
    pub enum Severity {
        /// Requests were lost, or the measurement is not valid.
        Error = "error",
        /// Something limits what can be said.
        Warning = "warning",
        /// Good to know.
        Info = "info",
    }
}

named! {
    /// Findings that programs may want to tell from others. `docs/findings.md` says what each means.
    pub enum FindingKind {
        /// Outside terminations, fewer requests succeeded than of a target that works.
        NotWorking = "not_working",
        /// A limit of the measurement was exceeded: its figures do not describe the cluster.
        Invalid = "invalid",
        /// The record contradicts itself, or a part of it is damaged.
        Corrupt = "corrupt",
        /// Something was not recorded, or is missing now.
        Missing = "missing",
        /// Terminations always met a consumer's own clock at about the same phase.
        InPhase = "in_phase",
        /// An action of the scenario did not happen, or what a program began was not complete at the end of the wait.
        NotDone = "not_done",
        /// A container ended in a pod that stays, and the run had not asked for that.
        Restarted = "restarted",
    }
}

/// Something that a reader should know, with its reason and what to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// How much it matters.
    pub severity: Severity,
    /// Its kind, if programs may want to recognise it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<FindingKind>,
    /// The cause of dropped requests that it is about, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<Cause>,
    /// What was found, with figures.
    pub what: String,
    /// Why it happened.
    pub why: String,
    /// What to do; a line of YAML if one helps.
    pub remedy: String,
}

named! {
    /// Whether a check passed.
    pub enum CheckVerdict {
        /// Within the limit.
        Pass = "pass",
        /// Beyond the limit.
        Fail = "fail",
        /// The run cannot tell.
        Inconclusive = "inconclusive",
    }
}

/// One check of the gate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// The key of `expect`, such as `dropped.max`.
    pub name: String,
    /// Whether it passed.
    pub verdict: CheckVerdict,
    /// The limit.
    pub limit: String,
    /// What was observed.
    pub observed: String,
    /// Why the verdict is what it is; empty if limit and observation say it.
    pub why: String,
    /// What would settle an inconclusive check; empty for others.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub settle: String,
    /// What was observed, as numbers; `None` for what is no number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub figure: Option<Figure>,
}

/// A figure that a check judges, between what it is known not to be below and not to be above.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The unit of the three numbers.
    pub unit: Unit,
    /// It is at least this; `None` where nothing is known.
    pub low: Option<f64>,
    /// The best estimate; `None` where there is none.
    pub value: Option<f64>,
    /// It is at most this; `None` where nothing is known.
    pub high: Option<f64>,
}

named! {
    /// The unit of a figure.
    pub enum Unit {
        /// A number of requests or terminations.
        Count = "count",
        /// A share, from 0 to 1.
        Share = "share",
        /// Seconds.
        Seconds = "s",
        /// Milliseconds.
        Millis = "ms",
        /// A multiple.
        Times = "x",
    }
}

impl Check {
    /// A check of something that is no figure between bounds.
    pub fn plain(
        name: impl Into<String>,
        verdict: CheckVerdict,
        limit: impl Into<String>,
        observed: impl Into<String>,
        why: impl Into<String>,
    ) -> Self {
        let (name, limit, observed, why) = (name.into(), limit.into(), observed.into(), why.into());
        Self { name, verdict, limit, observed, why, settle: String::new(), figure: None }
    }

    /// What was observed, the limit, and why, if that adds something.
    pub fn in_words(&self) -> String {
        let why = self.reason();
        let why = if why.is_empty() { why } else { format!(": {why}") };
        format!("{} (limit {}){why}", self.observed, self.limit)
    }

    /// Why the verdict is what it is and what would settle it; empty if neither is said.
    pub fn reason(&self) -> String {
        let parts = [&self.why, &self.settle].map(String::as_str);
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ")
    }
}

/// A finding of no kind that the gate or a tuning asks for.
pub(crate) fn finding(severity: Severity, what: String, why: &str, remedy: &str) -> Finding {
    Finding { severity, kind: None, cause: None, what, why: why.to_owned(), remedy: remedy.to_owned() }
}
