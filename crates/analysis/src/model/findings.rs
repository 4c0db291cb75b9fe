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

/// Findings that programs may want to tell from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingKind {
    /// Outside terminations, fewer requests succeeded than of a target that works.
    NotWorking,
    /// A limit of the measurement was exceeded: its figures do not describe the cluster.
    Invalid,
    /// The record contradicts itself, or a part of it is damaged.
    Corrupt,
    /// Something was not recorded, or is missing now.
    Missing,
    /// Terminations always met a consumer's own clock at about the same phase.
    InPhase,
    /// An action of the scenario did not happen.
    NotDone,
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
}

impl Check {
    /// What was observed, the limit, and why, if that adds something.
    pub fn in_words(&self) -> String {
        let Self { limit, observed, why, .. } = self;
        let why = if why.is_empty() { String::new() } else { format!(": {why}") };
        format!("{observed} (limit {limit}){why}")
    }
}
