//! A run reduced to what a comparison needs, which is small enough to keep as a baseline.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::episodes::{Episode, episodes};
use crate::gate::{self, ComparableFigures};
use crate::judgements::comparison::Quantile;
use crate::judgements::gate_check::Check;
use rolldrop_explain::OutcomeClass;
use rolldrop_explain::math::add_counts;
use rolldrop_explain::math::stats;
use rolldrop_explain::model::{Analysis, CheckVerdict, Mode, RunResult, Verdict};
use rolldrop_explain::timeline::{Request, Requests, Timeline};
use rolldrop_record::parts::PartError;
use rolldrop_record::{Outcome, Phase, Stamp};

/// Version of a sample's file format.
pub const SAMPLE_FORMAT: u32 = 4;

/// Maximum number of blocks per run; blocks of longer runs are longer than 0.1 s.
const MOST_BLOCKS: f64 = 600.0;
/// Block lengths to choose from, in seconds.
const BLOCK_LENGTHS: [f64; 10] = [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 600.0];
/// Number of latency bins per factor of e; each bin is half a percent wide.
const BINS_PER_E: f64 = 200.0;
/// Load settings that do not affect results, or that differ from run to run.
const IMMATERIAL: [&str; 4] = ["seed", "workers", "source_ports", "methods"];

/// One run, reduced to what a comparison needs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Human-readable name.
    pub name: String,
    /// Settings and facts that two runs must have in common to be comparable.
    pub fingerprint: BTreeMap<String, String>,
    /// Counts that can scale automatically. They may differ; a comparison points out the differences.
    pub scale: BTreeMap<String, u64>,
    /// Time the run began, in nanoseconds of Unix time.
    pub started: Stamp,
    /// Verdict on the measurement itself.
    pub verdict: Verdict,
    /// Verdict on the scenario's expectations, for this run alone; a pass if there are none.
    pub gate: CheckVerdict,
    /// True if slow responses delayed the requests after them.
    pub is_closed_loop: bool,
    /// Duration of the counted part, in seconds.
    pub duration_s: f64,
    /// Number of requests in the counted part.
    pub total: u64,
    /// Number of dropped requests, excluding the generator's own stale flows.
    pub dropped: u64,
    /// Number of requests that the app answered with an error.
    pub app_errors: u64,
    /// Latencies of the answered requests.
    pub latency: LatencyQuantiles,
    /// 99th percentile of the send lag, in milliseconds; `None` in a closed loop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lag_p99_ms: Option<f64>,
    /// Pods that ended during the run.
    pub terminations: Vec<EndedPod>,
    /// Groups of terminations whose losses occur together.
    pub episodes: Vec<Episode>,
    /// Figures by their keys in `expect`.
    pub by_key: ComparableFigures,
    /// Length of a block, in seconds.
    pub block_s: f64,
    /// The counted part, divided into blocks by intended send time; empty in a saved baseline.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blocks: Vec<TimeBlock>,
}

/// Quantiles of a run's latencies (in a closed loop, service times), in milliseconds; all zero if `n` is zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencyQuantiles {
    /// Number of values.
    pub n: u64,
    /// The first percentile.
    pub p1_ms: f64,
    /// The median.
    pub p50_ms: f64,
    /// The 90th percentile.
    pub p90_ms: f64,
    /// The 99th percentile.
    pub p99_ms: f64,
    /// The 99.9th percentile.
    pub p99_9_ms: f64,
}

impl LatencyQuantiles {
    /// Computes the quantiles of these blocks' latencies.
    pub(super) fn of(blocks: &[TimeBlock]) -> Self {
        let mut bins: BTreeMap<u32, u64> = BTreeMap::new();
        for (bin, count) in blocks.iter().flat_map(|block| &block.latency) {
            *bins.entry(*bin).or_default() += count;
        }
        let n: u64 = bins.values().sum();
        let quantile = |q: f64| {
            let mut upto = 0;
            let reaches = |(_, count): &(&u32, &u64)| {
                upto += **count;
                upto as f64 >= q * n as f64
            };
            bins.iter().find(reaches).map_or(0.0, |(bin, _)| latency_ms(*bin))
        };
        Self {
            n,
            p1_ms: quantile(0.01),
            p50_ms: quantile(0.5),
            p90_ms: quantile(0.9),
            p99_ms: quantile(0.99),
            p99_9_ms: quantile(0.999),
        }
    }

    /// Returns a quantile; `None` if there are no values.
    pub(super) fn quantile_ms(&self, quantile: Quantile) -> Option<f64> {
        let value_ms = match quantile {
            Quantile::P50 => self.p50_ms,
            Quantile::P90 => self.p90_ms,
            Quantile::P99 => self.p99_ms,
            Quantile::P99_9 => self.p99_9_ms,
        };
        (self.n > 0).then_some(value_ms)
    }
}

/// One pod that ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EndedPod {
    /// Mode in which the pod ended.
    pub mode: Mode,
    /// Upper bound of the pod's window for each consumer, in seconds; `None` if there is no upper bound.
    pub windows_s: BTreeMap<String, Option<f64>>,
    /// Number of the pod's episode in `episodes`; `None` in baselines of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub episode: Option<usize>,
}

/// Requests that were due in a short period.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TimeBlock {
    /// Number of requests that were due and sent.
    pub total: u64,
    /// Dropped requests, by outcome.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub dropped: BTreeMap<Outcome, u64>,
    /// Latencies of the answered requests: counts by the index of a logarithmic bin. The bins begin at 1 ns and are
    /// half a percent wide.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub latency: BTreeMap<u32, u64>,
}

impl TimeBlock {
    fn merge(&mut self, other: Self) {
        self.total += other.total;
        add_counts(&mut self.dropped, other.dropped);
        add_counts(&mut self.latency, other.latency);
    }

    /// Returns the number of dropped requests, whatever their outcome.
    pub fn lost(&self) -> u64 {
        self.dropped.values().sum()
    }
}

impl Sample {
    /// Reduces a run to a sample. `checks` are the checks of the run's own gate.
    ///
    /// # Errors
    /// Fails if the run's rows cannot be read.
    pub fn of(
        name: impl Into<String>,
        timeline: &Timeline,
        requests: &Requests,
        analysis: &Analysis,
        checks: &[Check],
    ) -> Result<Self, PartError> {
        let result = &analysis.result;
        let is_closed_loop = timeline.info.load.is_closed_loop();
        let [.., longest] = BLOCK_LENGTHS;
        let end_s = analysis.charts.end_s;
        let block_s = BLOCK_LENGTHS.into_iter().find(|s| end_s / s <= MOST_BLOCKS).unwrap_or(longest);
        let add = |blocks: &mut Vec<TimeBlock>, request: &Request| {
            let class = OutcomeClass::of(&request.row);
            if request.row.phase != Phase::Main
                || matches!(class, OutcomeClass::NotSent | OutcomeClass::Cancelled)
            {
                return;
            }
            let index = stats::index(timeline.seconds(request.row.scheduled) / block_s);
            if blocks.len() <= index {
                blocks.resize_with(index + 1, TimeBlock::default);
            }
            let block = &mut blocks[index];
            block.total += 1;
            match class {
                OutcomeClass::Ok => {
                    *block.latency.entry(bin(latency_ns(request, is_closed_loop))).or_default() += 1
                }
                OutcomeClass::Dropped => *block.dropped.entry(request.row.outcome).or_default() += 1,
                _ => {}
            }
        };
        let blocks = requests.all(Vec::new, add, |blocks, others| {
            let missing = others.len().saturating_sub(blocks.len());
            blocks.extend(std::iter::repeat_with(TimeBlock::default).take(missing));
            blocks.iter_mut().zip(others).for_each(|(block, other)| block.merge(other));
        })?;
        let (episodes, episode_of) = episodes(&timeline.ends, result);
        Ok(Self {
            name: name.into(),
            fingerprint: fingerprint(timeline, result),
            scale: scale(timeline),
            started: timeline.info.started,
            verdict: result.verdict.clone(),
            gate: super::verdict_alone(checks),
            is_closed_loop,
            duration_s: result.load.duration_s,
            total: result.requests.total,
            dropped: result.requests.lost(),
            app_errors: result.requests.app_errors,
            latency: LatencyQuantiles::of(&blocks),
            lag_p99_ms: (!is_closed_loop).then_some(result.load.send_lag_us.p99 / 1e3),
            terminations: result
                .terminations
                .iter()
                .zip(episode_of)
                .map(|(t, episode)| EndedPod {
                    mode: t.mode,
                    windows_s: (t.windows.iter().filter(|w| w.is_one()))
                        .map(|w| (w.consumer.clone(), w.upper_s))
                        .collect(),
                    episode: Some(episode),
                })
                .collect(),
            episodes,
            by_key: gate::figures(result),
            block_s,
            blocks,
        })
    }

    /// Returns the number of the episode of a termination. Where it is unknown, all terminations of the run count as
    /// one episode, unless each is its own.
    pub(super) fn episode_of(&self, termination: usize) -> usize {
        let known = self.terminations[termination].episode;
        let is_each_alone = self.episodes.len() == self.terminations.len();
        known.unwrap_or(if is_each_alone { termination } else { 0 })
    }

    /// Returns the part that is worth saving in a file: the known figures, without the blocks of time.
    pub fn figures(&self) -> Self {
        Self { blocks: Vec::new(), by_key: self.by_key.known(), ..self.clone() }
    }
}

/// Contents of the file that `rolldrop gate --save-baseline` writes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Baseline {
    /// [`SAMPLE_FORMAT`].
    pub format: u32,
    /// Runs, ordered by start time.
    pub runs: Vec<Sample>,
}

/// Returns the latency measured from the intended send time or, if there is none, from the actual one.
fn latency_ns(request: &Request, is_closed_loop: bool) -> i64 {
    let from = if is_closed_loop { request.begun() } else { request.row.scheduled };
    request.row.end.ns_since(from)
}

/// Returns the bin of a latency.
pub(super) fn bin(ns: i64) -> u32 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "below 9,000, and not negative"
    )]
    let bin = ((ns.max(1) as f64).ln() * BINS_PER_E).floor() as u32;
    bin
}

/// Returns the lower edge of a latency bin, in milliseconds.
pub(super) fn edge_ms(bin: u32) -> f64 {
    (f64::from(bin) / BINS_PER_E).exp() / 1e6
}

/// Returns the middle of a latency bin, in milliseconds.
pub(super) fn latency_ms(bin: u32) -> f64 {
    ((f64::from(bin) + 0.5) / BINS_PER_E).exp() / 1e6
}

fn fingerprint(timeline: &Timeline, result: &RunResult) -> BTreeMap<String, String> {
    let (info, load) = (&timeline.info, &timeline.info.load);
    let mut all = BTreeMap::new();
    let mut put = |what: &str, value: String| {
        all.insert(what.to_owned(), value);
    };
    let targets: Vec<&str> = info.targets.iter().map(|target| target.name.as_str()).collect();
    put("target", targets.join(", "));
    put("pacing", load.pacing.as_str().to_owned());
    if !load.is_closed_loop() {
        put("rate", format!("{} requests/s", load.rate));
    }
    put("connections", load.connections.to_string());
    put("connect timeout", format!("{} s", load.connect_timeout_s));
    put("response timeout", format!("{} s", load.response_timeout_s));
    put("success", load.success.iter().map(|(a, b)| format!("{a}-{b}")).collect::<Vec<_>>().join(","));
    for (name, value) in load.further() {
        // An open loop opens as many connections as it needs.
        let is_idle = name == "max_connections" && !load.is_closed_loop();
        if !IMMATERIAL.contains(&name.as_str()) && !is_idle {
            put(&name.replace('_', " "), value.as_str().map_or_else(|| value.to_string(), str::to_owned));
        }
    }
    if let Some(methods) = &load.methods {
        let methods: BTreeSet<&str> = methods.values().map(String::as_str).collect();
        put("methods", methods.into_iter().collect::<Vec<_>>().join(", "));
    }
    if !info.cluster.version.is_empty() {
        put("cluster version", info.cluster.version.clone());
        put("dataplane", info.cluster.dataplane.to_string());
    }
    let modes: BTreeSet<&str> = result.terminations.iter().map(|t| t.mode.as_str()).collect();
    put(
        "pods ended",
        if modes.is_empty() { "none".into() } else { modes.into_iter().collect::<Vec<_>>().join(", ") },
    );
    all
}

fn scale(timeline: &Timeline) -> BTreeMap<String, u64> {
    let cluster = &timeline.info.cluster;
    match cluster.version.is_empty() {
        true => BTreeMap::new(),
        false => BTreeMap::from([
            ("nodes".to_owned(), cluster.nodes as u64),
            ("endpoints".to_owned(), cluster.endpoints as u64),
        ]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency_bin_spans_half_a_percent() {
        for ns in [1, 1_000, 1_234_567, 5_000_000_000] {
            let ratio = latency_ms(bin(ns)) * 1e6 / ns as f64;
            assert!((0.9974..1.0026).contains(&ratio) || ns == 1, "{ns}: {ratio}");
        }
        assert_eq!(bin(-5), 0);
    }
}
