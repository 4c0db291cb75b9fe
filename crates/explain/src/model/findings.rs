//! Findings for the reader, and the checks of the gate.

use serde::{Deserialize, Serialize};

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

/// One check of the gate, in words.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckText {
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
