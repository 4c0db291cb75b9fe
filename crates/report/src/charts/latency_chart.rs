//! Charts steady and disrupted response times: percentiles up to the slowest request.

use super::axis::Axis;
use super::frame::{self, LEFT, LegendEntry, LegendSymbol, RIGHT, SMALL, WIDTH, anchored, bold, colored};
use super::{Chart, DrawError, palette};
use crate::format::{counted, millis};
use crate::words;
use rolldrop_canvas::{Anchor, Canvas, FillPattern, RGBColor, Rect};
use rolldrop_explain::Analysis;
use rolldrop_explain::model::{LatencyBucket, Percentiles, RunResult};

const HEIGHT: u32 = 900;

/// Slow tail of a distribution, on an axis on which each additional nine has the same width.
#[derive(Debug, PartialEq)]
pub(super) struct LatencyTail {
    name: &'static str,
    /// Number of values.
    n: u64,
    /// Points of the distribution: the share of all values below the point, in nines (1 is 90 %, 2 is 99 %), and the
    /// value in milliseconds.
    points: Vec<(f64, f64)>,
    /// Known percentiles: position in nines, name, and value in milliseconds.
    marks: Vec<(f64, &'static str, f64)>,
}

impl LatencyTail {
    /// Returns the tail of a distribution whose largest value is `slowest_ms`; `None` without values. `marks` are its
    /// percentiles: share, name, and value in milliseconds.
    pub(super) fn of(
        name: &'static str,
        buckets: &[LatencyBucket],
        slowest_ms: f64,
        marks: &[(f64, &'static str, f64)],
    ) -> Option<Self> {
        let n: u64 = buckets.iter().map(|b| b.count).sum();
        if n == 0 {
            return None;
        }
        let mut below = 0;
        let mut points = Vec::new();
        for bucket in buckets.iter().filter(|b| b.count > 0) {
            if points.is_empty() && !is_few(n) {
                points.push((0.0, bucket.from_ms));
            }
            // If there are few values, each value is a point; otherwise each bucket's end is.
            let from = if is_few(n) { below + 1 } else { below + bucket.count };
            below += bucket.count;
            points.extend((from..=below).map(|i| (nines(i, n), bucket.to_ms.min(slowest_ms))));
        }
        // The end of the last bucket may be above the slowest value.
        if let Some(last) = points.last_mut() {
            last.1 = slowest_ms;
        }
        // A percentile without values beyond it equals the slowest value.
        let is_known = |share: f64| n as f64 * (1.0 - share) >= 1.0 - 1e-9;
        let marks = marks.iter().filter(|(share, ..)| is_known(*share) && !is_few(n));
        let marks = marks.map(|(share, name, ms)| (-(1.0_f64 - share).log10(), *name, *ms)).collect();
        Some(Self { name, n, points, marks })
    }

    fn of_percentiles(name: &'static str, buckets: &[LatencyBucket], p: &Percentiles) -> Option<Self> {
        let marks =
            [(0.5, "p50", p.p50), (0.9, "p90", p.p90), (0.99, "p99", p.p99), (0.999, "p99.9", p.p99_9)];
        Self::of(name, buckets, p.max, &marks)
    }

    /// Returns the legend entry of a tail in this colour.
    pub(super) fn legend(&self, color: RGBColor) -> LegendEntry {
        let look = if is_few(self.n) { LegendSymbol::Tick(color) } else { LegendSymbol::Line(color, 4) };
        LegendEntry::new(format!("{} ({})", self.name, counted(self.n, "request")), look)
    }
}

/// Number of values below which each value is drawn, and below which there is no 99th percentile.
const FEW: u64 = 100;

pub(super) fn is_few(n: u64) -> bool {
    n < FEW
}

/// Returns the number of nines in the share `below / n`: 0.9 has one. If `below` equals `n`, it assumes that half a
/// value lies above.
fn nines(below: u64, n: u64) -> f64 {
    let above = (n - below) as f64;
    -(above.max(0.5) / n as f64).log10()
}

/// Formats a number of nines as a share.
fn share(nines: f64) -> String {
    let decimals: usize = if nines < 2.0 {
        1
    } else if nines < 3.0 {
        2
    } else {
        4
    };
    let share = format!("{:.decimals$}", 100.0 * (1.0 - 10_f64.powf(-nines)));
    format!("{} %", share.trim_end_matches('0').trim_end_matches('.'))
}

/// Describes a percentile in words, or the slowest value if there are few.
fn slowest(p: &Percentiles) -> String {
    match p.n {
        n if is_few(n) => format!("the slowest of {} took {} ms", counted(n, "request"), millis(p.max)),
        _ => format!("p99 {} ms", millis(p.p99)),
    }
}

fn title(result: &RunResult) -> String {
    let (steady, disrupted) = (&result.latency_ms.steady, &result.latency_ms.disrupted);
    let what = words::title(words::latency(&result.load).0);
    match (steady.n, disrupted.n) {
        (0, 0) => "No request was answered".to_owned(),
        (_, 0) => format!("{what}: {}; no pod ended", slowest(steady)),
        (0, _) => format!("{what}: {} while pods ended; no steady state", slowest(disrupted)),
        _ => format!(
            "Answered requests: {} while a pod ended, {} otherwise",
            slowest(disrupted),
            slowest(steady)
        ),
    }
}

pub(super) fn draw(analysis: &Analysis) -> Result<Chart, DrawError> {
    let result = &analysis.result;
    let (latencies, buckets) = (&result.latency_ms, &analysis.charts.latency);
    let title = title(result);
    let (what, from) = words::latency(&result.load);
    let subtitle = words::title(&format!("{what} {from}, of requests that were answered"));
    let tails: Vec<(LatencyTail, RGBColor)> = [
        (LatencyTail::of_percentiles("steady", &buckets.steady, &latencies.steady), palette::STEADY_DARK),
        (
            LatencyTail::of_percentiles("while a pod ended", &buckets.disrupted, &latencies.disrupted),
            palette::DISRUPTED,
        ),
    ]
    .into_iter()
    .filter_map(|(tail, color)| Some((tail?, color)))
    .collect();
    let mut canvas = Canvas::new(WIDTH, HEIGHT)?;
    let legend: Vec<LegendEntry> = tails.iter().map(|(tail, color)| tail.legend(*color)).collect();
    let top = frame::head(&mut canvas, words::warning(result), &title, &subtitle, &legend);
    let plot = Rect { left: LEFT, top: top + 10.0, right: RIGHT, bottom: f64::from(HEIGHT) - 110.0 };
    draw_tails(&mut canvas, &tails, what, plot);
    let alt = format!("Percentiles of {what}s, steady and disrupted. {title}.");
    Chart::of("latency.png", title, alt, canvas, &words::provenance(result), HEIGHT)
}

/// Draws distributions in one plot, each in its colour.
pub(super) fn draw_tails(canvas: &mut Canvas, tails: &[(LatencyTail, RGBColor)], what: &str, plot: Rect) {
    let points = || tails.iter().flat_map(|(tail, _)| &tail.points);
    let (Some(least), Some(most)) =
        (points().map(|p| p.1).reduce(f64::min), points().map(|p| p.1).reduce(f64::max))
    else {
        frame::message(canvas, plot, "No request was answered.");
        return;
    };
    let end = points().map(|p| p.0).fold(2.0, f64::max);
    let x = Axis::linear(0.0, end * 1.04, LEFT, RIGHT);
    let y = Axis::log(least * 0.8, (most * 1.4).max(least * 4.0), plot.bottom, plot.top);
    let shares = ["50", "90", "99", "99.9", "99.99", "99.999", "99.9999"];
    let ticks: Vec<(f64, String)> = shares
        .iter()
        .enumerate()
        .map(|(i, share)| (if i == 0 { -0.5_f64.log10() } else { i as f64 }, format!("{share} %")))
        .chain([(0.0, "0 %".to_owned())])
        .filter(|(at, _)| *at <= end * 1.04)
        .collect();
    frame::x_grid(canvas, plot, &ticks, &x);
    frame::y_grid(canvas, plot, &y.ticks(8), &y);
    for (i, (tail, color)) in tails.iter().enumerate() {
        if is_few(tail.n) {
            for (at, ms) in &tail.points {
                let (px, py) = (x.px(*at), y.px(*ms));
                let dot = Rect { left: px - 4.0, right: px + 4.0, top: py - 4.0, bottom: py + 4.0 };
                canvas.fill(dot, *color, FillPattern::Plain);
                canvas.tell(dot, format!("{}: {} ms", tail.name, millis(*ms)));
            }
        } else {
            let line: Vec<(f64, f64)> = tail.points.iter().map(|(at, ms)| (x.px(*at), y.px(*ms))).collect();
            canvas.path(&line, 4, *color);
            for (&(px, py), (at, ms)) in line.iter().zip(&tail.points) {
                let area = Rect { left: px - 2.0, right: px + 2.0, top: py - 2.0, bottom: py + 2.0 };
                canvas.tell(area, format!("{}: {} below {} ms", tail.name, share(*at), millis(*ms)));
            }
        }
        for (at, name, ms) in &tail.marks {
            let (px, py) = (x.px(*at), y.px(*ms));
            let dot = Rect { left: px - 6.0, right: px + 6.0, top: py - 6.0, bottom: py + 6.0 };
            canvas.fill(dot, *color, FillPattern::Plain);
            // The label of the slower side is placed above its point.
            let others =
                tails.iter().enumerate().filter(|(other, _)| *other != i).flat_map(|(_, (t, _))| &t.marks);
            let is_upper = others.filter(|other| other.1 == *name).all(|other| *ms > other.2);
            let text = format!("{name} {} ms", millis(*ms));
            let style = colored(bold(SMALL), *color);
            match is_upper {
                true => canvas.text(px - 8.0, py - 14.0, &text, &anchored(style, Anchor::End)),
                false => canvas.text(px + 10.0, py + 26.0, &text, &style),
            }
        }
    }
    frame::x_axis(
        canvas,
        plot,
        &ticks,
        &x,
        Some("share of requests that were faster (each additional nine has the same width)"),
    );
    frame::y_title(canvas, plot.top, plot.bottom, &format!("{what} in ms (logarithmic)"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    #[test]
    fn tail_marks_percentiles_and_ends_at_maximum() {
        let analysis = samples::naive_exit();
        let p = &analysis.result.latency_ms.steady;
        let tail = LatencyTail::of_percentiles("steady", &analysis.charts.latency.steady, p).unwrap();
        assert!(tail.points.windows(2).all(|pair| pair[0].0 <= pair[1].0 && pair[0].1 <= pair[1].1));
        assert_eq!(tail.points.last().unwrap().1, p.max);
        let marks: Vec<(&str, f64)> = tail.marks.iter().map(|(_, name, ms)| (*name, *ms)).collect();
        assert_eq!(marks, [("p50", p.p50), ("p90", p.p90), ("p99", p.p99), ("p99.9", p.p99_9)]);
        assert!(
            tail.marks.iter().map(|m| m.0).zip([0.301, 1.0, 2.0, 3.0]).all(|(a, b)| (a - b).abs() < 1e-3)
        );
    }

    #[test]
    fn few_values_plot_singly_without_percentiles() {
        let mut analysis = samples::quiet();
        let bucket = |from_ms, to_ms, count| LatencyBucket { from_ms, to_ms, count };
        analysis.charts.latency.steady = vec![bucket(1.0, 2.0, 2), bucket(8.0, 9.0, 1)];
        let p = Percentiles { n: 3, p50: 2.0, p99: 8.7, max: 8.7, ..Percentiles::default() };
        (analysis.result.latency_ms.steady, analysis.result.latency_ms.disrupted) =
            (p, Percentiles::default());
        let tail = LatencyTail::of_percentiles("steady", &analysis.charts.latency.steady, &p).unwrap();
        let values: Vec<f64> = tail.points.iter().map(|point| point.1).collect();
        assert_eq!((values, tail.marks.len()), (vec![2.0, 2.0, 8.7], 0));
        assert_eq!(
            title(&analysis.result),
            "Response time: the slowest of 3 requests took 8.70 ms; no pod ended"
        );
        draw(&analysis).unwrap();
    }
}
