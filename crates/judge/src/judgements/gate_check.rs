//! Checks of a gate: verdicts, with the facts behind them.

use std::collections::BTreeMap;
use std::fmt;

use super::basis::{Basis, Measured};
use super::comparison::{ComparisonRow, DisjointLatencies, Metric, MetricUnit};
use rolldrop_explain::model::{self, CheckVerdict, CommandResult, FindingText, Verdict};
use rolldrop_record::expect::{Accounting, Margin, Part, Validity};

/// One check of the gate.
#[derive(Clone, Debug, PartialEq)]
pub struct Check {
    /// Name of the check.
    pub name: CheckName,
    /// Verdict of the check.
    pub verdict: CheckVerdict,
    /// Facts behind the verdict.
    pub evidence: CheckEvidence,
    /// Reasons why the measurement is invalid, if the check is inconclusive for that reason.
    pub invalid: Option<Vec<String>>,
}

impl Check {
    pub(crate) fn new(name: CheckName, verdict: CheckVerdict, evidence: CheckEvidence) -> Self {
        Self { name, verdict, evidence, invalid: None }
    }

    pub(crate) fn limit(key: impl Into<String>, verdict: CheckVerdict, evidence: CheckEvidence) -> Self {
        Self::new(CheckName::Limit(key.into()), verdict, evidence)
    }
}

/// Name of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckName {
    /// A limit from `expect` or from the default gate, such as `dropped.max`.
    Limit(String),
    /// A limit relative to the baseline, by the figure's key.
    Worse(String),
    /// A figure that is compared with the baseline by default.
    Baseline(Metric),
    /// Number of earlier runs.
    History,
    /// Validity of the run that is compared with earlier ones.
    Run,
    /// Number of requests that are compared.
    Requests,
}

impl fmt::Display for CheckName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Limit(key) => f.write_str(key),
            Self::Worse(key) => write!(f, "{key}.worse"),
            Self::Baseline(metric) => write!(f, "baseline.{metric}"),
            Self::History => f.write_str("baseline.history"),
            Self::Run => f.write_str("baseline.run"),
            Self::Requests => f.write_str("baseline.requests"),
        }
    }
}

/// Facts behind a check's verdict.
#[derive(Clone, Debug, PartialEq)]
pub enum CheckEvidence {
    /// A figure and a limit.
    Limit {
        /// Figure that is judged.
        measured: Measured,
        /// Limit, in the figure's unit.
        limit: f64,
        /// Kind of limit: lower or upper.
        side: LimitSide,
        /// True if every gate makes this check unless an expectation overrides it.
        by_default: bool,
    },
    /// Request counts.
    Accounting {
        /// Expected state.
        expected: Accounting,
        /// True if the classes add up to all requests.
        adds_up: bool,
        /// Number of requests whose rows did not arrive.
        missing: u64,
    },
    /// Validity of the measurement.
    Validity {
        /// Expected state.
        expected: Validity,
        /// Verdict on the measurement.
        found: Verdict,
    },
    /// Result of the user's command.
    Command(CommandResult),
    /// Actions that the run did not perform.
    NotDone(Vec<FindingText>),
    /// A consumer or target that the run does not have.
    UnknownPart {
        /// Name that the expectation uses.
        part: Part,
        /// Names that exist in the run.
        known: Vec<String>,
    },
    /// A row from the comparison with few runs.
    Row(Box<ComparisonRow>),
    /// One of the two sides has too few requests. Holds their number.
    FewRequestsASide(u64),
    /// The run has too few requests. Holds their number.
    FewRequests(u64),
    /// Number of earlier runs that count, and of those that do not.
    History {
        /// Number of runs that count.
        used: usize,
        /// Number of runs that do not count, by reason.
        left_out: BTreeMap<UnfitRun, usize>,
    },
    /// The run is invalid or partial, so it is not compared.
    NotValid,
    /// This run lacks a figure. Holds the number of earlier runs that have it.
    Missing(usize),
    /// A figure and the limit that earlier runs predict.
    Predicted(Prediction),
    /// A figure and a limit that depends on the baseline.
    Worse(Box<Worsening>),
}

/// Kind of limit: lower or upper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitSide {
    /// The figure must be at least the limit.
    Min,
    /// The figure must be at most the limit.
    Max,
}

/// Reason why a run is not part of the history. Reports list them in this order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum UnfitRun {
    /// The run did not pass its own gate.
    NotPassed,
    /// The run is invalid.
    Invalid,
    /// The run is partial.
    Partial,
    /// The run could not be read.
    Unreadable,
    /// The run differs from the candidate in these settings or facts.
    Differs(Vec<String>),
}

/// A figure of a new run, compared with those of earlier runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// Unit of the figures.
    pub unit: MetricUnit,
    /// Limit that the earlier runs predict for a new run.
    pub limit: f64,
    /// Figure of the new run.
    pub value: f64,
    /// Figures of the earlier runs, scaled to the new run's exposure.
    pub earlier: Vec<f64>,
    /// Trend towards worse figures, if there is one.
    pub trend: Option<Trend>,
    /// Doubt that leaves the check inconclusive.
    pub doubt: Option<LatencyDoubt>,
}

/// A steady trend from run to run (Mann-Kendall test).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trend {
    /// Number of runs.
    pub runs: usize,
    /// Probability of such a trend if the runs do not differ.
    pub p: f64,
}

/// Reason why a latency beyond its limit may not be the app's fault.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LatencyDoubt {
    /// The load generator sent later than usual. Lateness is the 99th percentile of the send lag, in milliseconds.
    Lateness {
        /// Lateness in this run.
        now_ms: f64,
        /// Median lateness of the earlier runs.
        usual_ms: f64,
    },
    /// Only a few moments of the run determine how many responses took longer than the limit.
    FewMoments {
        /// Observed share of the responses that took longer.
        share: f64,
        /// Lower bound of that share.
        least: f64,
        /// Allowed share.
        allowed: f64,
    },
}

/// A figure and a limit that depends on the baseline, such as `worse: 10%`.
#[derive(Clone, Debug, PartialEq)]
pub struct Worsening {
    /// Unit of the figures.
    pub unit: model::Unit,
    /// Figure of the run; `None` if it is unknown.
    pub now: Option<f64>,
    /// Margin by which the figure may be worse.
    pub by: Margin,
    /// Baseline and limit; `None` if nothing was compared.
    pub limit: Option<MarginLimit>,
    /// Grounds for the verdict.
    pub grounds: BaselineGrounds,
}

/// A limit derived from a baseline.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MarginLimit {
    /// Worst value that passes.
    pub allowed: f64,
    /// Mean of the baseline.
    pub usual: f64,
}

/// Grounds for a verdict on a limit that depends on the baseline.
#[derive(Clone, Debug, PartialEq)]
pub enum BaselineGrounds {
    /// There is no baseline.
    NoBaseline,
    /// The run is invalid or partial, so it is not compared.
    NotValid,
    /// The baseline has too few runs that count.
    FewRuns,
    /// The run's figure is unknown.
    Unknown(NoFigure),
    /// Too few baseline runs have the figure.
    FewFigures {
        /// Number of runs that have the figure.
        known: usize,
        /// Number of all runs.
        runs: usize,
        /// Number of runs that must have the figure.
        needed: usize,
        /// Last run without the figure, and the reason.
        without: Option<(String, NoFigure)>,
    },
    /// The figure is within the limit. Holds the figures of the baseline.
    Within(Vec<f64>),
    /// The limit is a percentage of 0, which says nothing. Holds the figures of the baseline.
    ShareOfNothing(Vec<f64>),
    /// The limit is a percentage of 0, so the test of totals decides.
    AfterNone {
        /// Number of runs in which the count was 0.
        runs: usize,
        /// Largest count that the test allows.
        most: f64,
    },
    /// The figure is beyond the limit, and the spread between runs decides.
    Spread {
        /// Worst value to expect from a run that is worse by exactly the allowed margin.
        last: f64,
        /// Figures of the baseline.
        runs: Vec<f64>,
        /// Doubt that leaves the check inconclusive.
        doubt: Option<LatencyDoubt>,
    },
    /// The latencies of the two sides do not overlap.
    Apart(DisjointLatencies),
    /// There are too few runs to show how much runs differ. Holds their number.
    FewToDiffer(usize),
    /// The test of totals decides.
    Totals {
        /// Total of the baseline.
        before: u64,
        /// Number of baseline runs.
        runs: usize,
        /// True if the limit is a percentage of 0.
        is_share_of_nothing: bool,
        /// Number of figures tested, if this figure differs when tested alone but not when all are tested together.
        by_chance: Option<usize>,
    },
}

/// Reason why a run lacks a figure.
#[derive(Clone, Debug, PartialEq)]
pub enum NoFigure {
    /// The run has no figure of this kind.
    Absent,
    /// The figure has no upper bound, or nothing of this kind was measured.
    Unbounded(Basis),
}
