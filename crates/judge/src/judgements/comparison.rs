//! Result of a comparison, and the data for its chart.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

pub use crate::statistics::exact::Proportion;
use rolldrop_explain::model::LatencyBucket;
use rolldrop_record::{Mode, Outcome, named};

/// Minimum number of requests. With fewer, a failure rate of 1 % would go unseen in more than one of 20 runs (Wilks
/// 1941).
pub const FEWEST_REQUESTS: u64 = 299;
/// Minimum number of runs that show how much runs differ.
pub const FEWEST_RUNS: usize = 5;
/// Minimum number of values that must lie beyond a quantile.
pub const FEWEST_BEYOND: f64 = 10.0;

/// Comparison of two sides, one row per figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// Overall verdict: worse if any row is worse, otherwise better if any row is better.
    pub verdict: Judgement,
    /// Confidence of each interval, and joint confidence of all verdicts.
    pub confidence: f64,
    /// Maximum relative difference from the baseline at which a latency or a rate counts as the same.
    pub tolerance: f64,
    /// Side that the candidate is compared with.
    pub baseline: ComparisonSide,
    /// Side that is judged.
    pub candidate: ComparisonSide,
    /// Differences other than in the results, if the sides are compared nevertheless.
    pub differences: Vec<Difference>,
    /// Caveats for the reader.
    pub caveats: Vec<Caveat>,
    /// Rows, one for each figure.
    pub rows: Vec<ComparisonRow>,
}

/// One side: a single run, or several runs taken together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ComparisonSide {
    /// Names of the runs.
    pub runs: Vec<String>,
    /// Total duration of the runs' counted parts, in seconds.
    pub duration_s: f64,
    /// Number of requests.
    pub total: u64,
    /// Number of dropped requests.
    pub dropped: u64,
    /// Number of pods that ended.
    pub terminations: usize,
}

/// A difference other than in the results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference {
    /// A setting or fact that should be the same.
    Setting {
        /// Name of the setting or fact.
        name: String,
        /// Values of the baseline's runs; `None` if a run has none.
        baseline: BTreeSet<Option<String>>,
        /// Values of the candidate's runs.
        candidate: BTreeSet<Option<String>>,
    },
    /// A side contains an invalid run.
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
        /// Name of the run.
        run: String,
        /// Reasons why the run is partial.
        why: Vec<String>,
    },
    /// A count that can scale automatically differs.
    Scale {
        /// Name of the things that are counted.
        of: String,
        /// Counts in the baseline's runs.
        baseline: BTreeSet<u64>,
        /// Counts in the candidate's runs.
        candidate: BTreeSet<u64>,
    },
    /// One side is a single run, which cannot show how much runs vary.
    OneRun,
}

/// One figure, on both sides.
#[derive(Clone, Debug, PartialEq)]
pub struct ComparisonRow {
    /// Figure that the row compares.
    pub metric: Metric,
    /// Unit of the values.
    pub unit: MetricUnit,
    /// Value of the baseline.
    pub baseline: Option<f64>,
    /// Value of the candidate.
    pub candidate: Option<f64>,
    /// Change from baseline to candidate, if it can be bounded.
    pub change: Option<FigureChange>,
    /// Probability of such a difference if the two sides are equal, according to the test in `method`.
    pub p: Option<f64>,
    /// Verdict of the row; `None` if the figure alone has none.
    pub verdict: Option<Judgement>,
    /// Method of the judgement, or the reason why it is inconclusive.
    pub method: Method,
    /// Number of figures tested, if this figure differs when tested alone but not when all are tested together.
    pub by_chance: Option<usize>,
}

/// Kind of figure in a comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Metric {
    /// Dropped requests.
    Dropped,
    /// Requests that the app answered with an error.
    AppErrors,
    /// Share of this mode's terminations, or of their episodes, that dropped requests.
    WithDrops(Mode),
    /// Dropped requests per termination in this mode, or per episode.
    DropsEach(Mode),
    /// Mean upper bound of one consumer's windows.
    MeanWindow {
        /// Mode of the terminations.
        mode: Mode,
        /// Name of the consumer.
        consumer: String,
        /// True if no other consumer has such windows.
        is_only: bool,
    },
    /// Median upper bound of one consumer's windows.
    MedianWindow {
        /// Mode of the terminations.
        mode: Mode,
        /// Name of the consumer.
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
    /// Time from which a latency is measured.
    pub enum LatencyKind {
        /// The intended send time.
        Response = "response",
        /// The actual send time; a closed loop has no other.
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
    /// Returns the share of responses at or below the quantile.
    pub(crate) const fn share(self) -> f64 {
        match self {
            Self::P50 => 0.5,
            Self::P90 => 0.9,
            Self::P99 => 0.99,
            Self::P99_9 => 0.999,
        }
    }

    /// Returns the quantile's name as used in keys.
    pub(crate) fn key(self) -> String {
        self.as_str().replace('.', "_")
    }
}

/// Method of a row's judgement, or the reason why it is inconclusive.
#[derive(Clone, Debug, PartialEq)]
pub enum Method {
    /// The test of totals.
    Totals {
        /// Each side's lost requests, out of all.
        hits: [Proportion; 2],
        /// Number of pods that ended on each side, if losses count per termination.
        terminations: Option<[u64; 2]>,
    },
    /// Requests are judged per termination.
    ByTermination([Proportion; 2]),
    /// Neither side lost any requests.
    NoneLost {
        /// Number of blocks of time on each side.
        blocks: [usize; 2],
        /// Length of a block, in seconds.
        block_s: f64,
        /// Largest share of blocks with losses that could have gone unseen.
        missed: f64,
    },
    /// Requests were lost in such long bursts that the runs contain too few independent blocks.
    LostTogether {
        /// Length of a block, in seconds.
        block_s: f64,
        /// Duration that each side requires, in seconds.
        needed_s: f64,
    },
    /// A permutation test over blocks of time.
    BlockPermutation {
        /// Number of blocks of time on each side.
        blocks: [usize; 2],
        /// Length of a block, in seconds.
        block_s: f64,
    },
    /// One side has no termination.
    OneSideNone([Proportion; 2]),
    /// Fisher's exact test.
    Fisher {
        /// Each side's terminations or episodes that dropped requests, out of all.
        hits: [Proportion; 2],
        /// Number of terminations or episodes per side that would reveal such a difference in four of five cases.
        needed: Option<u64>,
    },
    /// A permutation test over this mode's terminations, or over their episodes.
    EpisodePermutation {
        /// Number of terminations or episodes on each side.
        episodes: [u64; 2],
        /// Mode of the terminations.
        mode: Mode,
    },
    /// A permutation test over the windows of this mode's terminations, or over their episodes.
    WindowPermutation {
        /// Number of terminations or episodes on each side.
        episodes: [usize; 2],
        /// Mode of the terminations.
        mode: Mode,
    },
    /// Some windows have no upper bound, or one side has no windows.
    Unbounded {
        /// Number of windows without an upper bound.
        unbounded: usize,
        /// Number of all windows.
        windows: usize,
    },
    /// Too few responses lie beyond the quantile on one side. Holds their approximate number.
    FewBeyond(f64),
    /// The latencies of the two sides do not overlap.
    Apart(DisjointLatencies),
    /// One run per side cannot show how much runs vary.
    OneRun,
    /// The rate was set by the schedule.
    Schedule,
    /// The correlation between requests lasts so long that the runs contain too few independent blocks.
    Correlated {
        /// Length of a block, in seconds.
        block_s: f64,
        /// Duration that each side requires, in seconds.
        needed_s: f64,
    },
    /// A block bootstrap over time.
    Bootstrap {
        /// Number of independent blocks, if there are so few that the interval is rough.
        few: Option<f64>,
        /// True if the runs differ, but the verdict is withheld because one run per side cannot show how much runs
        /// vary.
        is_withheld: bool,
    },
}

/// Latencies of two sides that do not overlap, leaving out the extreme 1 % of each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DisjointLatencies {
    /// 99th percentile of the faster side's latencies, in milliseconds.
    pub faster_ms: f64,
    /// 1st percentile of the slower side's latencies, in milliseconds.
    pub slower_ms: f64,
}

/// Unit of a row's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MetricUnit {
    /// A share, from 0 to 1.
    Share,
    /// A count.
    Count,
    /// A count for each termination.
    PerTermination,
    /// Seconds.
    Seconds,
    /// Milliseconds.
    Milliseconds,
    /// Requests per second.
    PerSecond,
}

impl ComparisonRow {
    /// Creates an inconclusive row without values.
    pub(crate) fn unknown(metric: Metric, unit: MetricUnit, method: Method) -> Self {
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

    /// Returns true if the candidate's value is worse, whether or not by chance, or if either value is unknown.
    pub fn looks_worse(&self) -> bool {
        match (self.baseline, self.candidate) {
            (Some(baseline), Some(candidate)) if self.unit == MetricUnit::PerSecond => candidate < baseline,
            (Some(baseline), Some(candidate)) => candidate > baseline,
            _ => true,
        }
    }

    /// Returns true if the candidate's value is worse. A time or a rate must be worse by more than this share of the
    /// baseline's value; for counts and shares any worse value counts.
    pub fn looks_worse_beyond(&self, tolerance: f64) -> bool {
        match (self.unit, self.baseline, self.candidate) {
            (MetricUnit::Seconds | MetricUnit::Milliseconds, Some(baseline), Some(candidate)) => {
                candidate > baseline * (1.0 + tolerance)
            }
            (MetricUnit::PerSecond, Some(baseline), Some(candidate)) => {
                candidate * (1.0 + tolerance) < baseline
            }
            _ => self.looks_worse(),
        }
    }
}

/// Change from baseline to candidate, with its interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct FigureChange {
    /// Meaning of the three values below.
    pub kind: ChangeKind,
    /// Observed change.
    pub estimate: f64,
    /// Lower bound.
    pub lower: f64,
    /// Upper bound.
    pub upper: f64,
}

/// Form in which a change is expressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// Candidate divided by baseline.
    Ratio,
    /// Candidate minus baseline, in the row's unit.
    Difference,
}

named! {
    /// Verdict of a comparison or of one of its rows.
    pub enum Judgement {
        /// Better than the baseline.
        Better = "better",
        /// Worse than the baseline.
        Worse = "worse",
        /// Certainly within the tolerance.
        Same = "same",
        /// Inconclusive.
        CannotTell = "cannot_tell",
    }
}

/// One side of a comparison's chart.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SideChart {
    /// Latencies of the answered requests.
    pub latency: Vec<LatencyBucket>,
    /// Percentiles that the chart marks: share of the responses, name, and value in milliseconds.
    pub marks_ms: Vec<(f64, &'static str, f64)>,
    /// Dropped requests over time, one run after the other.
    pub dropped: Vec<BTreeMap<Outcome, u64>>,
    /// Length of one element of `dropped`, in seconds.
    pub step_s: f64,
    /// Upper bounds of each consumer's windows, in seconds, shortest first. Windows without an upper bound come last.
    pub windows_s: BTreeMap<String, Vec<Option<f64>>>,
}
