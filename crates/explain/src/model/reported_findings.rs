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
        /// Additional information.
        Info = "info",
    }
}

named! {
    /// Kind of finding that programs may want to recognise. `docs/findings.md` explains each.
    pub enum FindingKind {
        /// Too few requests succeeded outside terminations for the target to count as working.
        NotWorking = "not_working",
        /// A limit of the measurement was exceeded, so its figures do not describe the cluster.
        Invalid = "invalid",
        /// The record contradicts itself, or a part of it is damaged.
        Corrupt = "corrupt",
        /// Something was not recorded, or is missing now.
        Missing = "missing",
        /// Terminations always hit a consumer's own clock at about the same phase.
        InPhase = "in_phase",
        /// An action in the scenario did not happen, or changes started by a program were not complete when the wait
        /// timed out.
        NotDone = "not_done",
        /// A container exited in a pod that was not terminating, and the run had not requested it.
        Restarted = "restarted",
    }
}

/// Finding in words, with its reason and remedy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FindingText {
    /// Severity of the finding.
    pub severity: Severity,
    /// Kind of finding, if programs may want to recognise it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<FindingKind>,
    /// Cause of the dropped requests that the finding describes, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<Cause>,
    /// Observation, with figures.
    pub what: String,
    /// Reason for the observation.
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

/// Check of the gate, in words.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckText {
    /// Key in `expect`, such as `dropped.max`.
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
    /// Observation as numbers; `None` if it is not numeric.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub figure: Option<Figure>,
}

/// Figure judged by a check, with its known bounds.
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
