//! Figures judged by termination: losses, and lengths of the windows.

use std::collections::BTreeSet;

use super::{Options, Sample, less_is_better};
use crate::math::exact::{self, Of, Weighed};
use crate::math::power;
use crate::model::comparison::{Change, ChangeKind, Judgement, Row, Unit};
use rolldrop_explain::model::Mode;

/// Power at which a number of terminations counts as enough.
const POWER: f64 = 0.8;

/// Returns the modes in which pods ended on either side.
pub(super) fn modes(baseline: &[Sample], candidate: &[Sample]) -> BTreeSet<Mode> {
    baseline.iter().chain(candidate).flat_map(|s| &s.terminations).map(|t| t.mode).collect()
}

/// Returns the name of the unit that is lost together when pods end in this mode.
const fn unit(mode: Mode) -> &'static str {
    match mode {
        Mode::Isolated => "termination",
        _ => "episode of terminations that overlap",
    }
}

/// Returns the plural of [`unit()`].
pub(super) const fn units(mode: Mode) -> &'static str {
    match mode {
        Mode::Isolated => "terminations",
        _ => "episodes of terminations that overlap",
    }
}

/// Compares the drops per unit that is lost together: one termination alone, or all that overlap.
pub(super) fn terminations(baseline: &[Sample], candidate: &[Sample], options: &Options) -> Vec<Row> {
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
        let hit = |lost: &[Weighed]| Of {
            hits: lost.iter().filter(|t| t.value > 0.0).count() as u64,
            n: lost.len() as u64,
        };
        let (a, b) = (hit(&lost_a), hit(&lost_b));
        let name = mode.as_str();
        let (metric, label) =
            (format!("terminations.{name}.with_drops"), format!("{} with a drop ({name})", units(mode)));
        let mut row = Row {
            baseline: (a.n > 0).then(|| a.share()),
            candidate: (b.n > 0).then(|| b.share()),
            why: format!("{} of {}, then {} of {}", a.hits, a.n, b.hits, b.n),
            ..Row::unknown(metric, label, Unit::Share)
        };
        if a.n == 0 || b.n == 0 {
            row.why.push_str("; one side has none to compare");
            rows.push(row);
            continue;
        }
        let (lower, upper) = exact::newcombe(a, b, options.confidence);
        let estimate = b.share() - a.share();
        row.change = Some(Change { kind: ChangeKind::Difference, estimate, lower, upper });
        row.why.push_str("; Fisher's exact test");
        if exact::least_fisher(a, b) <= alpha {
            row.p = Some(exact::fisher(a, b));
            row.verdict = Some(less_is_better(a.share(), b.share()));
        }
        if let Some(n) = power::needed(a.share(), b.share(), alpha, POWER) {
            row.why.push_str(&format!(" (such a difference shows with {n} a side, in four of five cases)"));
        }
        rows.push(row);
        let (mean_a, mean_b) = (exact::mean(&lost_a), exact::mean(&lost_b));
        let (metric, label) =
            (format!("terminations.{name}.dropped"), format!("drops per {} ({name})", unit(mode)));
        let p = exact::informative(&lost_a, &lost_b, alpha);
        rows.push(Row {
            baseline: Some(mean_a),
            candidate: Some(mean_b),
            p,
            verdict: Some(p.map_or(Judgement::CannotTell, |_| less_is_better(mean_a, mean_b))),
            why: format!("permutation test over {} and {} {}", a.n, b.n, units(mode)),
            ..Row::unknown(metric, label, Unit::Count)
        });
    }
    rows
}

pub(super) fn windows(baseline: &[Sample], candidate: &[Sample], options: &Options) -> Vec<Row> {
    let mut rows = Vec::new();
    for mode in modes(baseline, candidate) {
        let of = |samples: &[Sample]| -> Vec<(String, Option<f64>)> {
            let ended = samples.iter().flat_map(|s| &s.terminations).filter(|t| t.mode == mode);
            ended.flat_map(|t| t.windows_s.clone()).collect()
        };
        let (a, b) = (of(baseline), of(candidate));
        let consumers: BTreeSet<&String> = a.iter().chain(&b).map(|w| &w.0).collect();
        let one = consumers.len() == 1;
        for consumer in consumers {
            let all = |side: &[(String, Option<f64>)]| -> Vec<Option<f64>> {
                side.iter().filter(|w| w.0 == *consumer).map(|w| w.1).collect()
            };
            let (all_a, all_b) = (all(&a), all(&b));
            let bounded =
                |all: &[Option<f64>]| all.iter().flatten().map(|s| Weighed::one(*s)).collect::<Vec<_>>();
            let (bounded_a, bounded_b) = (bounded(&all_a), bounded(&all_b));
            let mean = |units: &[Weighed]| (!units.is_empty()).then(|| exact::mean(units));
            let label = match one {
                true => format!("window ({})", mode.as_str()),
                false => format!("window, {consumer} ({})", mode.as_str()),
            };
            let mut row = Row {
                baseline: mean(&bounded_a),
                candidate: mean(&bounded_b),
                ..Row::unknown(format!("windows_s.{}", mode.as_str()), label, Unit::Seconds)
            };
            let censored = all_a.len() + all_b.len() - bounded_a.len() - bounded_b.len();
            row.why = match (row.baseline, row.candidate) {
                (Some(mean_a), Some(mean_b)) if censored == 0 => {
                    row.p = exact::informative(&bounded_a, &bounded_b, 1.0 - options.confidence);
                    if row.p.is_some() {
                        row.verdict = Some(less_is_better(mean_a, mean_b));
                    }
                    format!(
                        "mean upper bounds; permutation test over {} and {}",
                        bounded_a.len(),
                        bounded_b.len()
                    )
                }
                _ => format!("{censored} of {} windows have no upper bound", all_a.len() + all_b.len()),
            };
            rows.push(row);
        }
    }
    rows
}
