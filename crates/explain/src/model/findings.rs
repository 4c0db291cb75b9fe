//! Findings for the reader, and the checks of the gate.

use serde::{Deserialize, Serialize};

use super::figures::{count, percent};
use rolldrop_record::{Cause, named};

named! {
    /// Severity of a finding.
    pub enum Severity {
        /// Requests were lost, or the measurement is not valid.
        Error = "error",
        /// Something limits the conclusions.
        Warning = "warning",
        /// Good to know.
        Info = "info",
    }
}

named! {
    /// Kinds of findings that programs may want to tell from others. `docs/findings.md` explains each.
    pub enum FindingKind {
        /// Outside terminations, fewer requests succeeded than a working target answers.
        NotWorking = "not_working",
        /// A limit of the measurement was exceeded: its figures do not describe the cluster.
        Invalid = "invalid",
        /// The record contradicts itself, or a part of it is damaged.
        Corrupt = "corrupt",
        /// Something was not recorded, or is missing now.
        Missing = "missing",
        /// Terminations always met a consumer's own clock at about the same phase.
        InPhase = "in_phase",
        /// An action of the scenario did not happen, or changes that a program began were not complete at the end of
        /// the wait.
        NotDone = "not_done",
        /// A container ended in a pod that stays, and the run had not asked for that.
        Restarted = "restarted",
    }
}

/// A finding in words, with its reason and remedy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FindingText {
    /// Severity of the finding.
    pub severity: Severity,
    /// Its kind, if programs may want to recognise it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<FindingKind>,
    /// The cause of dropped requests that it is about, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<Cause>,
    /// Observation, with figures.
    pub what: String,
    /// Reason for it.
    pub why: String,
    /// Remedy; a line of YAML if one helps.
    pub remedy: String,
}

named! {
    /// Verdict of a check.
    pub enum CheckVerdict {
        /// Within the limit.
        Pass = "pass",
        /// Beyond the limit.
        Fail = "fail",
        /// The run is inconclusive.
        Inconclusive = "inconclusive",
    }
}

/// One check of the gate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// The key of `expect`, such as `dropped.max`.
    pub name: String,
    /// Verdict of the check.
    pub verdict: CheckVerdict,
    /// The limit.
    pub limit: String,
    /// Observation.
    pub observed: String,
    /// Reason for the verdict; empty if limit and observation show it.
    pub why: String,
    /// Way to settle an inconclusive check; empty for others.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub settle: String,
    /// Observation as numbers; `None` if it is not a number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub figure: Option<Figure>,
}

/// A figure that a check judges, with the bounds that it is known to lie between.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// Unit of the three numbers.
    pub unit: Unit,
    /// Lower bound; `None` if nothing is known.
    pub low: Option<f64>,
    /// Best estimate; `None` if there is none.
    pub value: Option<f64>,
    /// Upper bound; `None` if nothing is known.
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

impl Unit {
    /// Writes a number as observed.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count, which is whole")]
    pub fn write(self, value: f64) -> String {
        match self {
            Unit::Count if value.fract() == 0.0 => count(value as u64),
            Unit::Count => format!("{value:.1}"),
            Unit::Share => percent(value),
            Unit::Seconds => format!("{value:.3} s"),
            Unit::Millis => format!("{value:.3} ms"),
            Unit::Times => format!("{value:.2}x"),
        }
    }

    /// Writes a number as a limit.
    pub fn limit(self, value: f64) -> String {
        match self {
            Unit::Count => self.write(value),
            Unit::Share => percent(value),
            Unit::Seconds => format!("{value} s"),
            Unit::Millis => format!("{value} ms"),
            Unit::Times => format!("{value}x"),
        }
    }
}

impl Check {
    /// Creates a check of something that is not a figure between bounds.
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

    /// Describes the observation, the limit, and the reason, if that adds something.
    pub fn in_words(&self) -> String {
        let why = self.reason();
        let why = if why.is_empty() { why } else { format!(": {why}") };
        format!("{} (limit {}){why}", self.observed, self.limit)
    }

    /// Returns the reason for the verdict, with the way to settle it; empty if there is neither.
    pub fn reason(&self) -> String {
        let parts = [&self.why, &self.settle].map(String::as_str);
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ")
    }
}
