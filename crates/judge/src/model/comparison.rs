//! The result of a comparison, and the data of its chart.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

pub use crate::math::exact::Of;
use rolldrop_explain::model::LatencyBucket;
use rolldrop_record::{Mode, Outcome, named};

/// With fewer requests, a share of 1 % that fails would not show in one of twenty runs (Wilks 1941).
pub const FEWEST_REQUESTS: u64 = 299;
/// Fewest runs that show how much runs differ.
pub const FEWEST_RUNS: usize = 5;
/// Fewest values beyond a quantile that it needs.
pub const FEWEST_BEYOND: f64 = 10.0;

/// Two sides, row by row.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
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
    pub caveats: Vec<Caveat>,
    /// Rows, one for each figure.
    pub rows: Vec<Row>,
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference {
    /// A setting or a fact that must be the same.
    Setting {
        /// Its name.
        name: String,
        /// Values of the baseline's runs; `None` if a run has none.
        baseline: BTreeSet<Option<String>>,
        /// Values of the candidate's runs.
        candidate: BTreeSet<Option<String>>,
    },
    /// A side is invalid.
    Validity {
        /// Reasons why the baseline is invalid, if it is.
        baseline: Option<Vec<String>>,
        /// Reasons why the candidate is invalid, if it is.
        candidate: Option<Vec<String>>,
    },
}

/// A limitation of a comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Caveat {
    /// A run is partial.
    Partial {
        /// The run.
        run: String,
        /// Reasons why it is partial.
        why: Vec<String>,
    },
    /// A count that scales by itself differs.
    Scale {
        /// Name of the counted things.
        of: String,
        /// Counts of the baseline's runs.
        baseline: BTreeSet<u64>,
        /// Counts of the candidate's runs.
        candidate: BTreeSet<u64>,
    },
    /// One side is one run, which does not show how much runs differ.
    OneRun,
}

/// One figure of both sides.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The figure.
    pub metric: Metric,
    /// The unit of its values.
    pub unit: Unit,
    /// Value of the baseline.
    pub baseline: Option<f64>,
    /// Value of the candidate.
    pub candidate: Option<f64>,
    /// Candidate against baseline, if it has bounds.
    pub change: Option<Change>,
    /// Chance of such a difference between two equal sides, by the test of `method`.
    pub p: Option<f64>,
    /// The row's verdict; `None` if the figure alone has none.
    pub verdict: Option<Judgement>,
    /// Method of the judgement, or the reason why it is inconclusive.
    pub method: Method,
    /// Number of figures tested, if this one differs alone but not among them.
    pub by_chance: Option<usize>,
}

/// A figure that is compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Metric {
    /// Dropped requests.
    Dropped,
    /// Requests that the app answered with an error.
    AppErrors,
    /// Share of the terminations of this mode, or of their episodes, that dropped requests.
    WithDrops(Mode),
    /// Dropped requests per termination of this mode, or per episode.
    DropsEach(Mode),
    /// Mean upper bound of the windows towards one consumer.
    MeanWindow {
        /// Mode of the terminations.
        mode: Mode,
        /// The consumer.
        consumer: String,
        /// True if no other consumer has such windows.
        is_only: bool,
    },
    /// Median upper bound of the windows towards one consumer.
    MedianWindow {
        /// Mode of the terminations.
        mode: Mode,
        /// The consumer.
        consumer: String,
    },
    /// A quantile of the latency.
    Latency(LatencyKind, Quantile),
    /// Requests sent per second.
    Rate,
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dropped => f.write_str("dropped"),
            Self::AppErrors => f.write_str("app_errors"),
            Self::WithDrops(mode) => write!(f, "terminations.{mode}.with_drops"),
            Self::DropsEach(mode) => write!(f, "terminations.{mode}.dropped"),
            Self::MeanWindow { mode, .. } => write!(f, "windows_s.{mode}"),
            Self::MedianWindow { mode, consumer } => write!(f, "windows_s.{mode}.{consumer}"),
            Self::Latency(kind, quantile) => write!(f, "latency_ms.{kind}.{}", quantile.key()),
            Self::Rate => f.write_str("rate"),
        }
    }
}

named! {
    /// Time from which a latency counts.
    pub enum LatencyKind {
        /// The intended send time.
        Response = "response",
        /// The actual send time: in a closed loop there is no other.
        Service = "service",
    }
}

named! {
    /// A quantile of the latency.
    pub enum Quantile {
        /// The median.
        P50 = "p50",
        /// The 90th percentile.
        P90 = "p90",
        /// The 99th percentile.
        P99 = "p99",
        /// The 99.9th percentile.
        P99_9 = "p99.9",
    }
}

impl Quantile {
    /// Returns the share of the answers that took at most this long.
    pub(crate) const fn share(self) -> f64 {
        match self {
            Self::P50 => 0.5,
            Self::P90 => 0.9,
            Self::P99 => 0.99,
            Self::P99_9 => 0.999,
        }
    }

    /// Returns its name in keys.
    pub(crate) fn key(self) -> String {
        self.as_str().replace('.', "_")
    }
}

/// Method of a row's judgement, or the reason why it is inconclusive.
#[derive(Clone, Debug, PartialEq)]
pub enum Method {
    /// The test of totals: requests of each side that were lost, of all.
    Totals([Of; 2]),
    /// The requests are judged by termination.
    ByTermination([Of; 2]),
    /// Neither side lost any.
    NoneLost {
        /// Blocks of time of each side.
        blocks: [usize; 2],
        /// Length of a block, in seconds.
        block_s: f64,
        /// Share of the blocks whose losses may have been missed.
        missed: f64,
    },
    /// Requests were lost together for so long that the runs show too few independent blocks.
    LostTogether {
        /// Length of a block, in seconds.
        block_s: f64,
        /// Length that a side needs, in seconds.
        needed_s: f64,
    },
    /// A permutation test over blocks of time.
    BlockPermutation {
        /// Blocks of time of each side.
        blocks: [usize; 2],
        /// Length of a block, in seconds.
        block_s: f64,
    },
    /// One side has no termination.
    OneSideNone([Of; 2]),
    /// Fisher's exact test.
    Fisher {
        /// Terminations or episodes of each side that dropped requests, of all.
        hits: [Of; 2],
        /// Number a side that shows such a difference in four of five cases.
        needed: Option<u64>,
    },
    /// A permutation test over terminations of this mode, or over their episodes.
    EpisodePermutation {
        /// Their number on each side.
        episodes: [u64; 2],
        /// Mode of the terminations.
        mode: Mode,
    },
    /// A permutation test over windows.
    WindowPermutation {
        /// Their number on each side.
        windows: [usize; 2],
    },
    /// Some windows have no upper bound, or one side has none.
    Unbounded {
        /// Windows without an upper bound.
        unbounded: usize,
        /// All windows.
        windows: usize,
    },
    /// Too few answers of a side lie beyond the quantile: about this many.
    FewBeyond(f64),
    /// The answers of the two sides do not overlap.
    Apart(Apart),
    /// One run a side does not show how much runs differ.
    OneRun,
    /// The rate was chosen.
    Schedule,
    /// Requests are correlated for so long that the runs show too few independent blocks.
    Correlated {
        /// Length of a block, in seconds.
        block_s: f64,
        /// Length that a side needs, in seconds.
        needed_s: f64,
    },
    /// A block bootstrap over time.
    Bootstrap {
        /// Number of blocks, if they are so few that the interval is rough.
        few: Option<f64>,
        /// True if the runs differ, but one run a side does not show how much runs differ.
        is_withheld: bool,
    },
}

/// Sides of which all answers of one took longer than those of the other, except 1 % of each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Apart {
    /// 99 % of the faster side's answers took at most this, in milliseconds.
    pub faster_ms: f64,
    /// 99 % of the slower side's answers took at least this, in milliseconds.
    pub slower_ms: f64,
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
    pub(crate) fn unknown(metric: Metric, unit: Unit, method: Method) -> Self {
        Self {
            metric,
            unit,
            baseline: None,
            candidate: None,
            change: None,
            p: None,
            verdict: Some(Judgement::CannotTell),
            method,
            by_chance: None,
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
