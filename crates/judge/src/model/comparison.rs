//! The result of a comparison: the contents of `comparison.json` (`schema_version` 1), and the data of its chart.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use rolldrop_explain::model::{Check, LatencyBucket};
use rolldrop_record::{Outcome, named};

/// Two sides, row by row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Version of the form: 1.
    pub schema_version: u32,
    /// The overall verdict: worse if any row is, else better if any is.
    pub verdict: Judgement,
    /// The confidence of the intervals and, over all rows together, of the verdicts.
    pub confidence: f64,
    /// A latency or a rate within this share of the baseline's counts as the same.
    pub tolerance: f64,
    /// The baseline.
    pub baseline: Side,
    /// The candidate.
    pub candidate: Side,
    /// Differences between the sides beyond the results, if they are compared nevertheless.
    pub differences: Vec<Difference>,
    /// Caveats for the reader.
    pub caveats: Vec<String>,
    /// Rows, one for each figure.
    pub rows: Vec<Row>,
    /// The checks of the limits that were asked for ([`Options::worse`](crate::compare::Options::worse)).
    #[serde(skip)]
    pub limits: Vec<Check>,
}

/// One side: a run, or several taken together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Side {
    /// The runs.
    pub runs: Vec<String>,
    /// Length of their counted parts together, in seconds.
    pub duration_s: f64,
    /// Requests.
    pub total: u64,
    /// Number of dropped requests.
    pub dropped: u64,
    /// Pods that ended.
    pub terminations: usize,
}

/// A difference beyond the results.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// Name of the setting or fact that differs.
    pub what: String,
    /// Value of the baseline.
    pub baseline: String,
    /// Value of the candidate.
    pub candidate: String,
}

/// One figure of both sides.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Key of the figure, such as `latency_ms.p99`.
    pub metric: String,
    /// Name for people.
    pub label: String,
    /// The unit of its values.
    pub unit: Unit,
    /// Value of the baseline.
    pub baseline: Option<f64>,
    /// Value of the candidate.
    pub candidate: Option<f64>,
    /// Candidate against baseline, if it has bounds.
    pub change: Option<Change>,
    /// Chance of such a difference between two equal sides, by the test named in `why`.
    pub p: Option<f64>,
    /// The row's verdict; `None` if the figure alone has none.
    pub verdict: Option<Judgement>,
    /// Method of the judgement, or the reason why it is inconclusive.
    pub why: String,
}

/// The unit of a row's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// A share, from 0 to 1.
    Share,
    /// A number.
    Count,
    /// Seconds.
    Seconds,
    /// Milliseconds.
    Milliseconds,
    /// Requests per second.
    PerSecond,
}

impl Row {
    /// Creates a row without values, which is inconclusive.
    pub(crate) fn unknown(metric: impl Into<String>, label: impl Into<String>, unit: Unit) -> Self {
        Self {
            metric: metric.into(),
            label: label.into(),
            unit,
            baseline: None,
            candidate: None,
            change: None,
            p: None,
            verdict: Some(Judgement::CannotTell),
            why: String::new(),
        }
    }

    /// Returns true if the candidate's value is worse, by chance or not, or if a value is unknown.
    pub fn looks_worse(&self) -> bool {
        match (self.baseline, self.candidate) {
            (Some(baseline), Some(candidate)) if self.unit == Unit::PerSecond => candidate < baseline,
            (Some(baseline), Some(candidate)) => candidate > baseline,
            _ => true,
        }
    }

    /// Returns true if the candidate's value is worse by more than this share of the baseline's, if the unit is one of
    /// time or of a rate. For counts and shares any worse value counts.
    pub fn looks_worse_beyond(&self, tolerance: f64) -> bool {
        match (self.unit, self.baseline, self.candidate) {
            (Unit::Seconds | Unit::Milliseconds, Some(baseline), Some(candidate)) => {
                candidate > baseline * (1.0 + tolerance)
            }
            (Unit::PerSecond, Some(baseline), Some(candidate)) => candidate * (1.0 + tolerance) < baseline,
            _ => self.looks_worse(),
        }
    }
}

impl Unit {
    /// Writes a value with its unit.
    pub fn write(self, value: f64) -> String {
        match self {
            Unit::Share => format!("{:.2} %", value * 100.0),
            Unit::Count => format!("{value:.2}"),
            Unit::Seconds => format!("{value:.3} s"),
            Unit::Milliseconds => format!("{value:.2} ms"),
            Unit::PerSecond => format!("{value:.1}/s"),
        }
    }
}

/// The candidate's value relative to the baseline's, with its interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// Meaning of the three values.
    pub kind: ChangeKind,
    /// Change as observed.
    pub estimate: f64,
    /// Lower bound.
    pub lower: f64,
    /// Upper bound.
    pub upper: f64,
}

/// Form of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// Candidate divided by baseline.
    Ratio,
    /// Candidate minus baseline, in the row's unit.
    Difference,
}

named! {
    /// A verdict.
    pub enum Judgement {
        /// Better than the baseline.
        Better = "better",
        /// Worse than the baseline.
        Worse = "worse",
        /// Surely within the tolerance.
        Same = "same",
        /// Inconclusive.
        CannotTell = "cannot_tell",
    }
}

/// One side of a comparison's chart.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SideChart {
    /// The latencies of answered requests.
    pub latency: Vec<LatencyBucket>,
    /// Percentiles to mark, by name, in milliseconds.
    pub marks_ms: Vec<(&'static str, f64)>,
    /// Dropped requests by time, one run after the other.
    pub dropped: Vec<BTreeMap<Outcome, u64>>,
    /// Length of one element of `dropped`, in seconds.
    pub step_s: f64,
    /// The upper bounds of the windows towards each consumer, in seconds, shortest first; those without one come last.
    pub windows_s: BTreeMap<String, Vec<Option<f64>>>,
}
