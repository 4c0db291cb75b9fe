//! Charts latencies over the course of the run. The more answered requests a cell contains, the darker it is.

use super::acts::{self, Placed};
use super::axis::Axis;
use super::frame::{self, LEFT, LegendEntry, LegendSymbol, RIGHT, WIDTH};
use super::{Chart, DrawError, latency_chart, palette, timeline_chart};
use crate::format::{count, counted, millis, seconds_unit};
use crate::words;
use rolldrop_canvas::{Canvas, Dash, FillPattern, RGBColor, Rect};
use rolldrop_explain::Analysis;
use rolldrop_explain::model::{HeatMap, LatencyBucket, RunResult};

const HEIGHT: u32 = 800;
/// Maximum number of columns.
const COLUMNS: usize = 300;
/// Target for the average number of requests per column, as long as that leaves enough columns.
const EACH: u64 = 20;
const ENOUGH: usize = 60;
/// Height of the marks for deletions.
const TICKS: f64 = 14.0;

/// Data that the chart plots.
#[derive(Debug, PartialEq)]
struct HeatSeries {
    step_s: f64,
    columns: Vec<Vec<LatencyBucket>>,
    /// Minimum number of requests per cell for each shade, palest first.
    shades: Vec<u64>,
    most: u64,
}

fn series(heat: &HeatMap) -> HeatSeries {
    let mut series =
        HeatSeries { step_s: heat.step_s, columns: heat.columns.clone(), shades: Vec::new(), most: 0 };
    let all: u64 = heat.columns.iter().flatten().map(|bucket| bucket.count).sum();
    let is_fine = |columns: usize| columns > COLUMNS || (columns > ENOUGH && all < EACH * columns as u64);
    while is_fine(series.columns.len()) {
        series.step_s *= 2.0;
        series.columns = series.columns.chunks(2).map(|pair| merged(pair.concat())).collect();
    }
    series.most = series.columns.iter().flatten().map(|bucket| bucket.count).max().unwrap_or(0);
    series.shades = shades(series.most);
    series
}

/// Merges buckets that have the same edges.
fn merged(mut buckets: Vec<LatencyBucket>) -> Vec<LatencyBucket> {
    buckets.sort_by(|a, b| a.from_ms.total_cmp(&b.from_ms));
    buckets.dedup_by(|next, kept| {
        let is_same = next.from_ms == kept.from_ms;
        kept.count += if is_same { next.count } else { 0 };
        is_same
    });
    buckets
}

/// Returns round numbers up to `most`, at most one per shade.
fn shades(most: u64) -> Vec<u64> {
    let powers = std::iter::successors(Some(1_u64), |power| power.checked_mul(10));
    let round = powers.flat_map(|power| [1, 2, 5].map(|m| power.saturating_mul(m)));
    let round: Vec<u64> = round.take_while(|n| *n <= most).collect();
    match round.len() {
        n if n <= palette::SHADES.len() => round,
        n => (0..palette::SHADES.len()).map(|i| round[i * (n - 1) / (palette::SHADES.len() - 1)]).collect(),
    }
}

impl HeatSeries {
    fn color(&self, shade: usize) -> RGBColor {
        let last = palette::SHADES.len() - 1;
        palette::SHADES[(shade * last).checked_div(self.shades.len() - 1).unwrap_or(0)]
    }

    fn shade(&self, count: u64) -> usize {
        self.shades.partition_point(|least| *least <= count).saturating_sub(1)
    }

    fn legend(&self) -> Vec<LegendEntry> {
        let key = |(i, least): (usize, &u64)| {
            let most = self.shades.get(i + 1).map_or(self.most, |next| next - 1);
            let label = match (*least, most) {
                (1, 1) => "1 request".to_owned(),
                (least, most) if least == most => count(least),
                (least, most) => format!("{} to {}", count(least), count(most)),
            };
            LegendEntry::new(label, LegendSymbol::Area(self.color(i), FillPattern::Plain))
        };
        self.shades.iter().enumerate().map(key).collect()
    }
}

fn title(result: &RunResult) -> String {
    let what = words::title(words::latency(&result.load).0);
    let p =
        if result.load.is_closed_loop() { &result.latency_ms.service } else { &result.latency_ms.response };
    let slowest = millis(p.max);
    match p.n {
        0 => "No request was answered".to_owned(),
        n if latency_chart::is_few(n) => {
            format!("{what}s of {}: max {slowest} ms", counted(n, "answered request"))
        }
        n => format!(
            "{what}s of {}: p50 {} ms, p99 {} ms, max {slowest} ms",
            counted(n, "answered request"),
            millis(p.p50),
            millis(p.p99)
        ),
    }
}

pub(super) fn draw(analysis: &Analysis) -> Result<Chart, DrawError> {
    let result = &analysis.result;
    let series = series(&analysis.charts.heat);
    let (what, from) = words::latency(&result.load);
    let title = title(result);
    let subtitle = format!(
        "Each cell counts the answered requests that were due within {}, by {what} ({from}); darker cells contain more",
        seconds_unit(series.step_s)
    );
    let mut legend = series.legend();
    if !result.terminations.is_empty() {
        legend.push(LegendEntry::new("a pod's deletion took effect", LegendSymbol::Tick(palette::INK)));
    }
    let mut canvas = Canvas::new(WIDTH, HEIGHT)?;
    let top = frame::head(&mut canvas, words::warning(result), &title, &subtitle, &legend);
    let plot = Rect { left: LEFT, top, right: RIGHT, bottom: f64::from(HEIGHT) - 110.0 };
    draw_plot(&mut canvas, analysis, &series, plot);
    let alt = format!("Answered requests by latency and by time in the run. {title}.");
    Chart::of("latency-heatmap.png", title, alt, canvas, &words::provenance(result), HEIGHT)
}

fn draw_plot(canvas: &mut Canvas, analysis: &Analysis, series: &HeatSeries, full: Rect) {
    let cells = || series.columns.iter().flatten();
    let (Some(least), Some(most)) =
        (cells().map(|c| c.from_ms).reduce(f64::min), cells().map(|c| c.to_ms).reduce(f64::max))
    else {
        frame::message(canvas, full, "No request was answered.");
        return;
    };
    let x = Axis::linear(0.0, timeline_chart::end_s(analysis), LEFT, RIGHT);
    let acts = Placed::on(canvas, &acts::marks(&analysis.charts), &x);
    let rug = full.top + acts.height();
    let plot = Rect { top: rug + TICKS + 4.0, ..full };
    let y = Axis::log(least * 0.9, (most * 1.1).max(least * 10.0), plot.bottom, plot.top);
    let ticks = x.ticks(15);
    frame::x_grid(canvas, plot, &ticks, &x);
    frame::y_grid(canvas, plot, &y.ticks(10), &y);
    for shade in 0..series.shades.len() {
        for (i, column) in series.columns.iter().enumerate() {
            let at_s = i as f64 * series.step_s;
            let (left, right) = (x.px(at_s), x.px(at_s + series.step_s));
            for cell in column.iter().filter(|cell| series.shade(cell.count) == shade) {
                let rect = Rect {
                    left,
                    right: right.max(left + 1.0),
                    top: y.px(cell.to_ms),
                    bottom: y.px(cell.from_ms),
                };
                canvas.fill(rect, series.color(shade), FillPattern::Plain);
            }
        }
    }
    acts.lines(canvas, plot);
    acts.names(canvas, rug);
    for t in &analysis.result.terminations {
        let at = x.px(t.t0_s);
        canvas.rule((at, rug), (at, rug + TICKS), 2.0, palette::INK, Dash::Solid);
    }
    frame::x_axis(canvas, plot, &ticks, &x, Some(&timeline_chart::origin(analysis)));
    let what = words::latency(&analysis.result.load).0;
    frame::y_title(canvas, plot.top, plot.bottom, &format!("{what} in ms (logarithmic)"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    fn bucket(from_ms: f64, count: u64) -> LatencyBucket {
        LatencyBucket { from_ms, to_ms: from_ms * 1.25, count }
    }

    fn counts(columns: &[Vec<LatencyBucket>]) -> u64 {
        columns.iter().flatten().map(|bucket| bucket.count).sum()
    }

    #[test]
    fn cells_contain_every_answered_request() {
        let analysis = samples::naive_exit();
        let series = series(&analysis.charts.heat);
        assert_eq!(counts(&series.columns), analysis.result.requests.ok);
        assert_eq!((series.step_s, series.columns.len()), (0.125, 240));
    }

    #[test]
    fn sparse_heat_map_uses_longer_steps() {
        let columns = (0..480).map(|i| if i % 8 == 0 { vec![bucket(1.0, 1)] } else { Vec::new() });
        let series = series(&HeatMap { step_s: 0.125, columns: columns.collect() });
        assert_eq!((series.step_s, series.columns.len()), (1.0, 60));
        assert_eq!((counts(&series.columns), series.most), (60, 1));
        assert_eq!(series.legend().iter().map(LegendEntry::label).collect::<Vec<_>>(), ["1 request"]);
    }

    #[test]
    fn round_shades_cover_every_count() {
        assert_eq!(shades(0), [0_u64; 0]);
        assert_eq!(shades(4), [1, 2]);
        assert_eq!(shades(700), [1, 2, 10, 20, 100, 500]);
        let column = [1, 9, 10, 700].map(|n| bucket(n as f64, n)).to_vec();
        let series = series(&HeatMap { step_s: 1.0, columns: vec![column] });
        assert_eq!([1, 9, 10, 700].map(|n| series.shade(n)), [0, 1, 2, 5]);
        let labels: Vec<String> = series.legend().iter().map(|key| key.label().to_owned()).collect();
        assert_eq!(labels, ["1 request", "2 to 9", "10 to 19", "20 to 99", "100 to 499", "500 to 700"]);
        let light = |shade| {
            let RGBColor(r, g, b) = series.color(shade);
            u32::from(r) + u32::from(g) + u32::from(b)
        };
        assert!((1..6).all(|shade| light(shade) < light(shade - 1)), "each is darker, in grey too");
    }

    #[test]
    fn heat_title_shows_result_percentiles() {
        let analysis = samples::naive_exit();
        assert_eq!(
            title(&analysis.result),
            "Response times of 9,000 answered requests: p50 1.21 ms, p99 4.43 ms, max 24.6 ms"
        );
    }
}
