//! Figures judged per termination: losses, and window lengths.

use std::collections::{BTreeMap, BTreeSet};

use super::{CompareOptions, Sample, less_is_better};
use crate::judgements::comparison::{
    ChangeKind, ComparisonRow, FigureChange, Judgement, Method, Metric, MetricUnit,
};
use crate::statistics::exact::{self, Proportion, Weighed};
use crate::statistics::power;
use rolldrop_explain::model::Mode;

/// Statistical power at which the number of terminations counts as sufficient.
const POWER: f64 = 0.8;

/// Returns the modes in which pods ended on either side.
pub(super) fn modes(baseline: &[Sample], candidate: &[Sample]) -> BTreeSet<Mode> {
    baseline.iter().chain(candidate).flat_map(|s| &s.terminations).map(|t| t.mode).collect()
}

/// Compares the drops per unit of joint loss: a single termination, or all terminations that overlap.
pub(super) fn terminations(
    baseline: &[Sample],
    candidate: &[Sample],
    options: &CompareOptions,
) -> Vec<ComparisonRow> {
    let alpha = 1.0 - options.confidence;
    let mut rows = Vec::new();
    let modes: BTreeSet<Mode> =
        baseline.iter().chain(candidate).flat_map(|s| &s.episodes).map(|episode| episode.mode).collect();
    for mode in modes {
        let lost = |samples: &[Sample]| -> Vec<Weighed> {
            let episodes = samples.iter().flat_map(|s| &s.episodes).filter(|episode| episode.mode == mode);
            episodes.map(|episode| Weighed::one(episode.dropped as f64)).collect()
        };
        let (lost_a, lost_b) = (lost(baseline), lost(candidate));
        let hit = |lost: &[Weighed]| Proportion {
            hits: lost.iter().filter(|t| t.value > 0.0).count() as u64,
            n: lost.len() as u64,
        };
        let (a, b) = (hit(&lost_a), hit(&lost_b));
        let mut row = ComparisonRow {
            baseline: (a.n > 0).then(|| a.share()),
            candidate: (b.n > 0).then(|| b.share()),
            ..ComparisonRow::unknown(Metric::WithDrops(mode), MetricUnit::Share, Method::OneSideNone([a, b]))
        };
        if a.n == 0 || b.n == 0 {
            rows.push(row);
            continue;
        }
        let (lower, upper) = exact::newcombe(a, b, options.confidence);
        let estimate = b.share() - a.share();
        row.change = Some(FigureChange { kind: ChangeKind::Difference, estimate, lower, upper });
        let needed = power::needed(a.share(), b.share(), alpha, POWER);
        row.method = Method::Fisher { hits: [a, b], needed };
        if exact::least_fisher(a, b) <= alpha {
            row.p = Some(exact::fisher(a, b));
            row.verdict = Some(less_is_better(a.share(), b.share()));
        }
        rows.push(row);
        let (mean_a, mean_b) = (exact::mean(&lost_a), exact::mean(&lost_b));
        let p = exact::informative(&lost_a, &lost_b, alpha);
        let method = Method::EpisodePermutation { episodes: [a.n, b.n], mode };
        rows.push(ComparisonRow {
            baseline: Some(mean_a),
            candidate: Some(mean_b),
            p,
            verdict: Some(p.map_or(Judgement::CannotTell, |_| less_is_better(mean_a, mean_b))),
            ..ComparisonRow::unknown(Metric::DropsEach(mode), MetricUnit::Count, method)
        });
    }
    rows
}

/// Compares the mean window of each consumer. Windows of one episode may have ended together, so the test assigns them
/// to a side together.
pub(super) fn windows(
    baseline: &[Sample],
    candidate: &[Sample],
    options: &CompareOptions,
) -> Vec<ComparisonRow> {
    let mut rows = Vec::new();
    for mode in modes(baseline, candidate) {
        let sides = [baseline, candidate].map(|side| by_episode(side, mode));
        let consumers: BTreeSet<&str> =
            sides.iter().flatten().flat_map(|episode| episode.keys().copied()).collect();
        let is_only = consumers.len() == 1;
        for consumer in consumers {
            let [a, b] = sides.each_ref().map(|side| ConsumerWindows::of(side, consumer));
            let method = Method::Unbounded { unbounded: a.unbounded + b.unbounded, windows: a.all + b.all };
            let metric = Metric::MeanWindow { mode, consumer: consumer.to_owned(), is_only };
            let mut row = ComparisonRow {
                baseline: a.units.as_deref().map(exact::mean),
                candidate: b.units.as_deref().map(exact::mean),
                ..ComparisonRow::unknown(metric, MetricUnit::Seconds, method)
            };
            if let (Some(a), Some(b)) = (a.units, b.units) {
                row.method = Method::WindowPermutation { episodes: [a.len(), b.len()], mode };
                row.p = exact::informative(&a, &b, 1.0 - options.confidence);
                if row.p.is_some() {
                    row.verdict = Some(less_is_better(exact::mean(&a), exact::mean(&b)));
                }
            }
            rows.push(row);
        }
    }
    rows
}

/// Upper bounds of the windows of one episode, by consumer.
type EpisodeWindows<'a> = BTreeMap<&'a str, Vec<Option<f64>>>;

/// Returns the windows of a side's terminations in this mode, by episode.
fn by_episode(side: &[Sample], mode: Mode) -> Vec<EpisodeWindows<'_>> {
    let mut all: BTreeMap<(usize, usize), EpisodeWindows<'_>> = BTreeMap::new();
    for (run, sample) in side.iter().enumerate() {
        for (e, ended) in sample.terminations.iter().enumerate().filter(|(_, ended)| ended.mode == mode) {
            let episode = all.entry((run, sample.episode_of(e))).or_default();
            for (consumer, upper_s) in &ended.windows_s {
                episode.entry(consumer).or_default().push(*upper_s);
            }
        }
    }
    all.into_values().collect()
}

/// One side's windows towards a consumer.
struct ConsumerWindows {
    all: usize,
    unbounded: usize,
    /// Sum and number of each episode's windows; `None` if there are none, or if one has no upper bound: the others
    /// alone would make the side look shorter than it is.
    units: Option<Vec<Weighed>>,
}

impl ConsumerWindows {
    fn of(side: &[EpisodeWindows<'_>], consumer: &str) -> Self {
        let each = || side.iter().filter_map(|episode| episode.get(consumer));
        let unit = |windows: &Vec<Option<f64>>| {
            let value = windows.iter().copied().sum::<Option<f64>>()?;
            Some(Weighed { value, weight: windows.len() as f64 })
        };
        let units = each().map(unit).collect::<Option<Vec<_>>>().filter(|units| !units.is_empty());
        let all = each().map(Vec::len).sum();
        let unbounded = each().flatten().filter(|upper_s| upper_s.is_none()).count();
        Self { all, unbounded, units }
    }
}
