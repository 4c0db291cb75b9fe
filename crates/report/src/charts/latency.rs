//! Response times, steady against disrupted, on a logarithmic axis.

use plotters::style::RGBColor;

use super::axis::Axis;
use super::canvas::{Canvas, Dash, Pattern, Rect};
use super::frame::{self, Key, LANE, LEFT, Look, RIGHT, SMALL, WIDTH, bold, colored};
use super::{Chart, ChartError, palette};
use crate::format::{counted, millis};
use crate::words;
use rolldrop_analysis::Analysis;
use rolldrop_analysis::model::{LatencyBucket, LatencyHistograms, Percentiles, RunResult};

const HEIGHT: u32 = 900;
/// Bars over a factor of ten.
const PER_DECADE: u32 = 20;

/// A histogram: the share of requests, in percent, in bars of equal width on a logarithmic axis.
#[derive(Debug, PartialEq)]
pub(super) struct Series {
    from_ms: f64,
    to_ms: f64,
    steady: Vec<f64>,
    disrupted: Vec<f64>,
}

pub(super) fn series(latency: &LatencyHistograms) -> Option<Series> {
    let filled = || latency.steady.iter().chain(&latency.disrupted).filter(|b| b.count > 0);
    let per_decade = f64::from(PER_DECADE);
    // A hundredth of a millisecond to a day is all that can be.
    let edge = |ms: f64| ms.clamp(0.01, 1e8).log10() * per_decade;
    let first = filled().map(|b| edge(b.from_ms)).reduce(f64::min)?.floor() - 1.0;
    let last = filled().map(|b| edge(b.to_ms)).reduce(f64::max)?.ceil() + 1.0;
    let bars = bar_index(last - first);
    let shares = |buckets: &[LatencyBucket]| {
        let total: u64 = buckets.iter().map(|b| b.count).sum();
        let mut out = vec![0.0; bars];
        for bucket in buckets.iter().filter(|b| b.count > 0) {
            let (from, to) = (edge(bucket.from_ms) - first, edge(bucket.to_ms) - first);
            let width = (to - from).max(1e-9);
            let share = 100.0 * bucket.count as f64 / total as f64;
            // A bucket wider than a bar is spread over those it covers.
            for (bar, total) in out.iter_mut().enumerate().take(bar_index(to) + 1).skip(bar_index(from)) {
                let start = bar as f64;
                let overlap = (to.min(start + 1.0) - from.max(start)).max(0.0);
                *total += share * overlap / width;
            }
        }
        out
    };
    let ms = |position: f64| 10_f64.powf(position / per_decade);
    Some(Series {
        from_ms: ms(first),
        to_ms: ms(last),
        steady: shares(&latency.steady),
        disrupted: shares(&latency.disrupted),
    })
}

fn bar_index(position: f64) -> usize {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few hundred bars at most")]
    let index = position.max(0.0) as usize;
    index
}

fn title(result: &RunResult) -> String {
    let (steady, disrupted) = (&result.latency_ms.steady, &result.latency_ms.disrupted);
    let what = words::sentence(words::latency(&result.load).0);
    let what = what.trim_end_matches('.');
    match (steady.n, disrupted.n) {
        (0, 0) => "No request was answered".to_owned(),
        (_, 0) => format!("{what} p99 {} ms; no pod ended", millis(steady.p99)),
        (0, _) => {
            format!("{what} p99 {} ms while pods ended; no steady state", millis(disrupted.p99))
        }
        _ => format!(
            "Answered requests: p99 {} ms while a pod ended, {} ms otherwise",
            millis(disrupted.p99),
            millis(steady.p99)
        ),
    }
}

pub(super) fn draw(analysis: &Analysis) -> Result<Chart, ChartError> {
    let result = &analysis.result;
    let latencies = &result.latency_ms;
    let title = title(result);
    let (what, from) = words::latency(&result.load);
    let subtitle = words::sentence(&format!("{what} {from}, of requests that were answered"));
    let subtitle = subtitle.trim_end_matches('.');
    let mut canvas = Canvas::new(WIDTH, HEIGHT)?;
    let key = |name: &str, p: &Percentiles| format!("{name} ({})", counted(p.n, "request"));
    let mut legend = Vec::new();
    if latencies.steady.n > 0 {
        legend.push(Key::new(key("steady", &latencies.steady), Look::Area(palette::STEADY, Pattern::Plain)));
    }
    if latencies.disrupted.n > 0 {
        legend.push(Key::new(
            key("while a pod ended", &latencies.disrupted),
            Look::Line(palette::DISRUPTED, 4),
        ));
    }
    let top = frame::head(&mut canvas, words::warning(result), &title, subtitle, &legend)?;
    let bottom = f64::from(HEIGHT) - 110.0;
    let mut marks = Vec::new();
    for (name, p, color, dash) in [
        ("steady", &latencies.steady, palette::STEADY_DARK, Dash::Dashed),
        ("disrupted", &latencies.disrupted, palette::DISRUPTED, Dash::Solid),
    ] {
        for (percentile, value_ms) in [("p50", p.p50), ("p99", p.p99)].into_iter().filter(|_| p.n > 0) {
            let label = format!("{name} {percentile} {} ms", millis(value_ms));
            marks.push(Mark { value_ms, label, color, dash });
        }
    }
    let plot = Rect { left: LEFT, top, right: RIGHT, bottom };
    draw_plot(&mut canvas, series(&analysis.charts.latency).as_ref(), marks, plot)?;
    frame::foot(&mut canvas, &words::provenance(result), HEIGHT);
    let alt = format!("Histogram of {what}s, steady against disrupted. {title}.");
    Ok(Chart { name: "latency.png", title, alt, png: canvas.into_png()? })
}

/// A value to mark in the plot.
pub(super) struct Mark {
    pub(super) value_ms: f64,
    pub(super) label: String,
    pub(super) color: RGBColor,
    pub(super) dash: Dash,
}

/// Draws both histograms of a series, with its marks in rows of their own above.
pub(super) fn draw_plot(
    canvas: &mut Canvas,
    series: Option<&Series>,
    marks: Vec<Mark>,
    area: Rect,
) -> Result<(), ChartError> {
    let Some(series) = series else {
        frame::message(canvas, area, "No request was answered.");
        return Ok(());
    };
    let (top, bottom) = (area.top, area.bottom);
    let x = Axis::log(series.from_ms, series.to_ms, LEFT, RIGHT);
    let mut marks: Vec<Mark> = marks.into_iter().filter(|mark| x.shows(mark.value_ms)).collect();
    marks.sort_by(|a, b| a.value_ms.total_cmp(&b.value_ms));
    let widths: Vec<f64> =
        marks.iter().map(|mark| canvas.text_width(&mark.label, &bold(SMALL)) + 14.0).collect();
    // The plot is narrower if a label would leave the canvas otherwise.
    let fits = |(mark, width): (&Mark, &f64)| {
        LEFT + (f64::from(WIDTH) - width - LEFT) * (RIGHT - LEFT) / (x.px(mark.value_ms) - LEFT).max(1.0)
    };
    let right = marks.iter().zip(&widths).map(fits).fold(RIGHT, f64::min);
    let x = Axis::log(series.from_ms, series.to_ms, LEFT, right);
    let sizes: Vec<(f64, f64)> =
        marks.iter().zip(&widths).map(|(mark, width)| (x.px(mark.value_ms), *width)).collect();
    let lanes = frame::lanes(&sizes);
    let rows = lanes.iter().max().map_or(0, |l| l + 1);
    let plot = Rect { left: LEFT, top: top + rows as f64 * LANE + 6.0, right, bottom };

    let most = series.steady.iter().chain(&series.disrupted).copied().fold(0.0, f64::max);
    let y = Axis::linear(0.0, most * 1.05, plot.bottom, plot.top);
    let ticks = x.ticks(12);
    frame::x_grid(canvas, plot, &ticks, &x);
    frame::y_grid(canvas, plot, &y.ticks(6), &y);
    let bars = series.steady.len();
    let width = plot.width() / bars as f64;
    let edge = |bar: usize| plot.left + bar as f64 * width;
    for (bar, &share) in series.steady.iter().enumerate().filter(|(_, share)| **share > 0.0) {
        let rect = Rect {
            left: edge(bar) + 1.0,
            right: edge(bar + 1) - 1.0,
            top: y.px(share).min(plot.bottom - 1.5),
            bottom,
        };
        canvas.fill(rect, palette::STEADY, Pattern::Plain);
    }
    if series.disrupted.iter().any(|&share| share > 0.0) {
        let mut steps = Vec::with_capacity(2 * bars);
        // From the bar before the first to the one after the last.
        let used = |bar: &usize| {
            series.disrupted[bar.saturating_sub(1)..(bar + 2).min(bars)].iter().any(|&s| s > 0.0)
        };
        for (bar, &share) in series.disrupted.iter().enumerate().filter(|(bar, _)| used(bar)) {
            steps.push((edge(bar), y.px(share)));
            steps.push((edge(bar + 1), y.px(share)));
        }
        canvas.path(&steps, 3, palette::DISRUPTED)?;
    }
    for ((Mark { label, color, dash, .. }, (px, _)), lane) in marks.iter().zip(&sizes).zip(&lanes) {
        let baseline = plot.top - 8.0 - *lane as f64 * LANE;
        canvas.rule((*px, baseline - 13.0), (*px, plot.bottom), 2.0, *color, *dash);
        canvas.text(px + 6.0, baseline, label, &colored(bold(SMALL), *color));
    }
    frame::x_axis(canvas, plot, &ticks, &x, Some("ms (logarithmic)"));
    frame::y_title(canvas, plot.top, plot.bottom, "share of requests in %");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    #[test]
    fn each_histogram_sums_to_a_hundred_percent() {
        let series = series(&samples::naive_exit().charts.latency).unwrap();
        for shares in [&series.steady, &series.disrupted] {
            assert!((shares.iter().sum::<f64>() - 100.0).abs() < 1e-6, "{shares:?}");
        }
        assert_eq!(series.steady.len(), series.disrupted.len());
    }

    #[test]
    fn a_wide_bucket_is_spread_over_the_bars_it_covers() {
        let mut analysis = samples::quiet();
        analysis.charts.latency.steady = vec![LatencyBucket { from_ms: 1.0, to_ms: 10.0, count: 5 }];
        analysis.charts.latency.disrupted.clear();
        let series = series(&analysis.charts.latency).unwrap();
        let filled: Vec<f64> = series.steady.iter().copied().filter(|&s| s > 1e-6).collect();
        assert_eq!(filled.len(), PER_DECADE as usize);
        assert!(filled.iter().all(|s| (s - 100.0 / f64::from(PER_DECADE)).abs() < 1e-6));
    }

    #[test]
    fn nothing_answered_is_no_series() {
        let mut analysis = samples::quiet();
        analysis.charts.latency = Default::default();
        assert_eq!(series(&analysis.charts.latency), None);
    }
}
