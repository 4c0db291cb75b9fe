//! Checks of a gate: verdicts, with the facts that they rest on.

use std::collections::BTreeMap;
use std::fmt;

use super::basis::{Basis, Measured};
use super::comparison::{Apart, Metric, Row, Unit};
use rolldrop_explain::model::{self, CheckVerdict, CommandResult, FindingText, Verdict};
use rolldrop_record::expect::{Accounting, Margin, Part, Validity};

/// One check of the gate.
#[derive(Clone, Debug, PartialEq)]
pub struct Check {
    /// Name of the check.
    pub name: CheckName,
    /// Verdict of the check.
    pub verdict: CheckVerdict,
    /// Facts that the verdict rests on.
    pub evidence: Evidence,
    /// Reasons why the measurement is invalid, if that makes the check inconclusive.
    pub invalid: Option<Vec<String>>,
}

impl Check {
    pub(crate) fn new(name: CheckName, verdict: CheckVerdict, evidence: Evidence) -> Self {
        Self { name, verdict, evidence, invalid: None }
    }
}

/// Name of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckName {
    /// A limit of `expect` or of every gate, such as `dropped.max`.
    Limit(String),
    /// A limit against the baseline, by the key of its figure.
    Worse(String),
    /// A figure that is always compared with the baseline.
    Baseline(Metric),
    /// The number of earlier runs.
    History,
    /// The validity of the run that is compared with earlier ones.
    Run,
    /// The number of requests that are compared.
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

/// Facts that a check's verdict rests on.
#[derive(Clone, Debug, PartialEq)]
pub enum Evidence {
    /// A figure against a limit.
    Limit {
        /// The figure.
        measured: Measured,
        /// Limit, in the figure's unit.
        limit: f64,
        /// Side on which the limit lies.
        side: Side,
        /// True if every gate makes this check unless an expectation replaces it.
        by_default: bool,
    },
    /// The counts of requests.
    Accounting {
        /// Expectation.
        expected: Accounting,
        /// True if the classes add up to all requests.
        adds_up: bool,
        /// Requests whose rows did not arrive.
        missing: u64,
    },
    /// The validity of the measurement.
    Validity {
        /// Expectation.
        expected: Validity,
        /// Verdict on the measurement.
        found: Verdict,
    },
    /// The end of the user's command.
    Command(CommandResult),
    /// Actions that the run did not do.
    NotDone(Vec<FindingText>),
    /// A part of the requests that the run does not have.
    UnknownPart {
        /// The part.
        part: Part,
        /// Names that the run has.
        known: Vec<String>,
    },
    /// A row of a comparison with few runs.
    Row(Box<Row>),
    /// Too few requests on one of two sides: their number.
    FewRequestsASide(u64),
    /// Too few requests in the run: their number.
    FewRequests(u64),
    /// Earlier runs.
    History {
        /// Runs that count.
        used: usize,
        /// Number of runs that do not count, by reason.
        left_out: BTreeMap<Unfit, usize>,
    },
    /// A run that is compared with nothing, because it is invalid or partial.
    NotValid,
    /// A figure that so many earlier runs have, and this run does not.
    Missing(usize),
    /// A figure against the limit that earlier runs predict.
    Predicted(Prediction),
    /// A figure against a limit that depends on the baseline.
    Worse(Box<Worsening>),
}

/// Side of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The figure must be at least the limit.
    Min,
    /// The figure must be at most the limit.
    Max,
}

/// Reason why a run is not part of the history.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unfit {
    /// It did not pass its own gate.
    NotPassed,
    /// It is invalid.
    Invalid,
    /// It is partial.
    Partial,
    /// It could not be read.
    Unreadable,
    /// These settings or facts differ.
    Differs(Vec<String>),
}

/// A figure of one more run, against those of earlier ones.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// Unit of the figures.
    pub unit: Unit,
    /// Limit for one more run.
    pub limit: f64,
    /// Figure of this run.
    pub value: f64,
    /// Figures of the earlier runs, at this run's exposure.
    pub earlier: Vec<f64>,
    /// Trend to worse figures, if there is one.
    pub trend: Option<Trend>,
    /// Doubt that leaves the check inconclusive.
    pub doubt: Option<Doubt>,
}

/// A steady trend (Mann-Kendall test).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trend {
    /// Number of runs.
    pub runs: usize,
    /// Chance of such a trend among equal runs.
    pub p: f64,
}

/// Reason why a latency beyond its limit may prove nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Doubt {
    /// The load generator sent later than usual: lateness of 99 % of the requests, in milliseconds.
    Lateness {
        /// In this run.
        now_ms: f64,
        /// In the earlier runs, as their median.
        usual_ms: f64,
    },
    /// Few moments decide how many answers took longer than the limit.
    FewMoments {
        /// Share of the answers as observed.
        share: f64,
        /// Lower bound of that share.
        least: f64,
        /// Allowed share.
        allowed: f64,
    },
}

/// A figure against a limit that depends on the baseline, such as `worse: 10%`.
#[derive(Clone, Debug, PartialEq)]
pub struct Worsening {
    /// Unit of the figures.
    pub unit: model::Unit,
    /// Figure of the run; `None` if unknown.
    pub now: Option<f64>,
    /// Margin by which it may be worse.
    pub by: Margin,
    /// Baseline and limit; `None` if nothing was compared.
    pub limit: Option<MarginLimit>,
    /// Grounds of the verdict.
    pub grounds: Grounds,
}

/// A limit that follows from a baseline.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MarginLimit {
    /// The limit.
    pub allowed: f64,
    /// Mean of the baseline.
    pub usual: f64,
}

/// Grounds of a verdict on a limit that depends on the baseline.
#[derive(Clone, Debug, PartialEq)]
pub enum Grounds {
    /// There is no baseline.
    NoBaseline,
    /// An invalid or partial run is compared with nothing.
    NotValid,
    /// The baseline has too few runs that count.
    FewRuns,
    /// The run's figure is unknown.
    Unknown(NoFigure),
    /// Too few runs of the baseline have the figure.
    FewFigures {
        /// Number of runs that have it.
        known: usize,
        /// Number of all runs.
        runs: usize,
        /// Number of runs that must have it.
        needed: usize,
        /// Last run without it, and the reason.
        without: Option<(String, NoFigure)>,
    },
    /// The figure is within the limit: figures of the baseline.
    Within(Vec<f64>),
    /// The limit is a share of 0: figures of the baseline.
    ShareOfNothing(Vec<f64>),
    /// The limit is a share of 0, and the test of totals judges.
    AfterNone {
        /// Number of runs without any.
        runs: usize,
        /// Number that the test allows.
        most: f64,
    },
    /// The figure is beyond the limit, among runs that differ.
    Spread {
        /// Last value that a run which is just as much worse as allowed may have.
        last: f64,
        /// Figures of the baseline.
        runs: Vec<f64>,
        /// Doubt that leaves the check inconclusive.
        doubt: Option<Doubt>,
    },
    /// The answers of the two sides do not overlap.
    Apart(Apart),
    /// So few runs do not show how much runs differ: their number.
    FewToDiffer(usize),
    /// The test of totals judges.
    Totals {
        /// Total of the baseline.
        before: u64,
        /// Number of its runs.
        runs: usize,
        /// True if the limit is a share of 0.
        is_share_of_nothing: bool,
        /// Number of figures tested, if this one differs alone but not among them.
        by_chance: Option<usize>,
    },
}

/// Reason why a run does not have a figure.
#[derive(Clone, Debug, PartialEq)]
pub enum NoFigure {
    /// The run has no figure of this kind.
    Absent,
    /// The figure has no upper bound, or nothing of the kind was measured.
    Unbounded(Basis),
}
