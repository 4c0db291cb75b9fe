//! Figures of a run that are compared with earlier runs, each with the scale on which its spread is judged.

use std::collections::BTreeMap;
use std::f64::consts::PI;

use crate::compare::Sample;
use crate::compare::exposure::Exposure;
use crate::judgements::comparison::{FEWEST_BEYOND, LatencyKind, Metric, MetricUnit, Quantile};
use rolldrop_explain::math::stats;
use rolldrop_explain::model::Mode;

/// Minimum number of episodes for judging a share of them; with fewer, the share is as coarse as the count itself.
const FEWEST_EPISODES: usize = 5;
/// Quantiles that are judged. More of them would split the false-alarm rate further and reveal little.
const QUANTILES: [Quantile; 2] = [Quantile::P50, Quantile::P99];

/// Scale on which the variation between runs is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::compare) enum Scale {
    /// Number of events in the exposure, on a square-root scale.
    Count,
    /// Share of the exposure's units, on an arcsine square-root scale.
    Share,
    /// Seconds, on a linear scale.
    Time,
    /// Latency, on a logarithmic scale.
    Log,
    /// Rate, for which more is better, on a negated logarithmic scale.
    Rate,
}

impl Scale {
    pub(in crate::compare) fn is_more_better(self) -> bool {
        self == Self::Rate
    }

    /// Converts a value to the scale, on which higher is worse.
    pub(in crate::compare) fn of(self, value: f64, exposure: f64) -> f64 {
        match self {
            Self::Count => 2.0 * (value + 0.375).sqrt(),
            Self::Share => 2.0 * ((value * exposure + 0.375) / (exposure + 0.75)).sqrt().asin(),
            Self::Time => value,
            Self::Log => value.max(1e-6).ln(),
            Self::Rate => -value.max(1e-6).ln(),
        }
    }

    /// Converts a place on the scale back to a value. Counts are rounded down, because a run cannot have a fraction of
    /// an event.
    pub(in crate::compare) fn back(self, place: f64, exposure: f64) -> f64 {
        match self {
            Self::Count => ((place / 2.0).powi(2) - 0.375).max(0.0).floor(),
            Self::Share => {
                let share = (place.clamp(0.0, PI) / 2.0).sin().powi(2);
                ((share * (exposure + 0.75) - 0.375) / exposure).clamp(0.0, 1.0)
            }
            Self::Time => place,
            Self::Log => place.exp(),
            Self::Rate => (-place).exp(),
        }
    }

    /// Returns the standard deviation on the scale that results from chance alone.
    pub(in crate::compare) fn least_spread(self, exposure: f64) -> f64 {
        match self {
            Self::Count => 1.0,
            Self::Share => 1.0 / (exposure + 0.5).sqrt(),
            Self::Time | Self::Log | Self::Rate => 0.0,
        }
    }
}

/// A figure of a single run.
#[derive(Clone, Debug)]
pub(super) struct HistoryFigure {
    pub(super) metric: Metric,
    pub(super) scale: Scale,
    pub(super) unit: MetricUnit,
    pub(super) value: f64,
    /// Number of terminations, requests or episodes over which the value counts events.
    pub(super) exposure: f64,
    /// The quantile, if the figure is a quantile of all latencies.
    pub(super) quantile: Option<Quantile>,
}

impl HistoryFigure {
    /// Returns the value that the figure's run would have had with the other's exposure.
    pub(super) fn value_at(&self, other: &Self) -> f64 {
        match self.scale {
            Scale::Count => self.value * other.exposure / self.exposure,
            _ => self.value,
        }
    }
}

/// Returns all known figures of a run. Its losses count over the units of `losses`.
pub(super) fn of(sample: &Sample, losses: Exposure) -> Vec<HistoryFigure> {
    let figure = |metric, scale, unit, value: f64, exposure: f64| HistoryFigure {
        metric,
        scale,
        unit,
        value,
        exposure,
        quantile: None,
    };
    let count = |metric, events: u64, exposure: Exposure| {
        figure(metric, Scale::Count, MetricUnit::Count, events as f64, exposure.units(sample))
    };
    let mut all = vec![
        count(Metric::Dropped, sample.dropped, losses),
        count(Metric::AppErrors, sample.app_errors, Exposure::Requests),
    ];
    for (mode, dropped) in episodes(sample) {
        if dropped.len() >= FEWEST_EPISODES {
            let n = dropped.len() as f64;
            let share = dropped.iter().filter(|dropped| **dropped > 0).count() as f64 / n;
            all.push(figure(Metric::WithDrops(mode), Scale::Share, MetricUnit::Share, share, n));
        }
    }
    for ((mode, consumer), uppers) in windows(sample) {
        let median = stats::nearest_rank(&uppers, 0.5).filter(|median| median.is_finite());
        let metric = Metric::MedianWindow { mode, consumer: consumer.to_owned() };
        all.extend(median.map(|s| figure(metric, Scale::Time, MetricUnit::Seconds, s, uppers.len() as f64)));
    }
    let kind = if sample.is_closed_loop { LatencyKind::Service } else { LatencyKind::Response };
    for quantile in QUANTILES {
        let ms = sample.latency.quantile_ms(quantile).filter(|_| {
            // Half a value too few is still enough, so that 1,000 values suffice for p99: ten of them lie beyond it.
            sample.latency.n as f64 * (1.0 - quantile.share()) >= FEWEST_BEYOND - 0.5
        });
        let of = |ms| HistoryFigure {
            quantile: Some(quantile),
            ..figure(Metric::Latency(kind, quantile), Scale::Log, MetricUnit::Milliseconds, ms, 1.0)
        };
        all.extend(ms.map(of));
    }
    if sample.is_closed_loop && sample.duration_s > 0.0 {
        let rate = sample.total as f64 / sample.duration_s;
        all.push(figure(Metric::Rate, Scale::Rate, MetricUnit::PerSecond, rate, 1.0));
    }
    all
}

fn episodes(sample: &Sample) -> BTreeMap<Mode, Vec<u64>> {
    let mut by_mode: BTreeMap<Mode, Vec<u64>> = BTreeMap::new();
    for episode in &sample.episodes {
        by_mode.entry(episode.mode).or_default().push(episode.dropped);
    }
    by_mode
}

/// Returns the upper bounds of the windows, sorted. An unknown bound counts as longer than all others.
fn windows(sample: &Sample) -> BTreeMap<(Mode, &str), Vec<f64>> {
    let mut all: BTreeMap<_, Vec<f64>> = BTreeMap::new();
    for ended in &sample.terminations {
        for (consumer, upper_s) in &ended.windows_s {
            let of = all.entry((ended.mode, consumer.as_str())).or_default();
            of.push(upper_s.unwrap_or(f64::INFINITY));
        }
    }
    all.values_mut().for_each(|uppers| uppers.sort_by(f64::total_cmp));
    all
}
