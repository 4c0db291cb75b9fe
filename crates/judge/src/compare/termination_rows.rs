//! Figures judged per termination: losses, and window lengths.

use std::collections::BTreeSet;

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

pub(super) fn windows(
    baseline: &[Sample],
    candidate: &[Sample],
    options: &CompareOptions,
) -> Vec<ComparisonRow> {
    let mut rows = Vec::new();
    for mode in modes(baseline, candidate) {
        let of = |samples: &[Sample]| -> Vec<(String, Option<f64>)> {
            let ended = samples.iter().flat_map(|s| &s.terminations).filter(|t| t.mode == mode);
            ended.flat_map(|t| t.windows_s.clone()).collect()
        };
        let (a, b) = (of(baseline), of(candidate));
        let consumers: BTreeSet<&String> = a.iter().chain(&b).map(|w| &w.0).collect();
        let is_only = consumers.len() == 1;
        for consumer in consumers {
            let all = |side: &[(String, Option<f64>)]| -> Vec<Option<f64>> {
                side.iter().filter(|w| w.0 == *consumer).map(|w| w.1).collect()
            };
            let (all_a, all_b) = (all(&a), all(&b));
            // A side is unknown if any of its windows is: the others alone would make it look shorter than it is.
            let bounded = |all: &[Option<f64>]| -> Option<Vec<Weighed>> {
                let units =
                    all.iter().map(|upper_s| upper_s.map(Weighed::one)).collect::<Option<Vec<_>>>()?;
                (!units.is_empty()).then_some(units)
            };
            let (bounded_a, bounded_b) = (bounded(&all_a), bounded(&all_b));
            let unbounded = all_a.iter().chain(&all_b).filter(|upper_s| upper_s.is_none()).count();
            let method = Method::Unbounded { unbounded, windows: all_a.len() + all_b.len() };
            let metric = Metric::MeanWindow { mode, consumer: consumer.clone(), is_only };
            let mut row = ComparisonRow {
                baseline: bounded_a.as_ref().map(exact::mean),
                candidate: bounded_b.as_ref().map(exact::mean),
                ..ComparisonRow::unknown(metric, MetricUnit::Seconds, method)
            };
            if let (Some(a), Some(b)) = (bounded_a, bounded_b) {
                row.method = Method::WindowPermutation { windows: [a.len(), b.len()] };
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
