//! Charts the run from beginning to end: answered and dropped requests per second, and response times.

use std::collections::{BTreeMap, BTreeSet};

use super::acts::{self, Placed};
use super::axis::Axis;
use super::frame::{self, LEFT, LegendEntry, LegendSymbol, RIGHT, SMALL, WIDTH, bold};
use super::{Chart, DrawError, palette};
use crate::format::{self, counted, either, len, millis, plain, seconds_unit};
use crate::words;
use rolldrop_canvas::{Canvas, Dash, FillPattern, Rect};
use rolldrop_explain::Analysis;
use rolldrop_explain::model::{RunResult, RunSecond};
use rolldrop_record::Outcome;

const HEIGHT: u32 = 900;
/// Maximum number of columns; in longer runs, a column covers several seconds.
const COLUMNS: usize = 300;
/// Number of values below which the 99th percentile adds nothing to the slowest value.
const FEW: u64 = 100;
/// Label of requests that were neither answered nor dropped.
const OTHER: &str = "app error, not sent or cancelled";
/// Height of the marks for deletions.
const TICKS: f64 = 14.0;

/// Data that the chart plots.
#[derive(Debug, PartialEq)]
struct TimelineSeries {
    /// Length of a column, in seconds.
    step_s: f64,
    columns: Vec<RunSecond>,
    end_s: f64,
    /// Times at which pod deletions took effect, in order.
    deletions: Vec<f64>,
    /// Start time of each load stage, and its rate.
    stages: Vec<(f64, String)>,
    /// Name of the latencies, such as "response time".
    latency: &'static str,
}

fn series(analysis: &Analysis) -> TimelineSeries {
    let seconds = &analysis.charts.seconds;
    let per_column = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600]
        .into_iter()
        .find(|n| seconds.len().div_ceil(*n) <= COLUMNS)
        .unwrap_or(7200);
    let mut columns: Vec<RunSecond> = Vec::new();
    for (i, second) in seconds.iter().enumerate() {
        if i % per_column == 0 {
            columns.push(second.clone());
        } else if let Some(column) = columns.last_mut() {
            merge(column, second);
        }
    }
    let mut deletions: Vec<f64> = analysis.result.terminations.iter().map(|t| t.t0_s).collect();
    deletions.sort_by(f64::total_cmp);
    let stage = |(at, from, to): &(f64, f64, f64)| match from == to {
        true => (*at, format!("{}/s", plain(*to))),
        false => (*at, format!("{} to {}/s", plain(*from), plain(*to))),
    };
    let stages = analysis.charts.stages.iter().map(stage).collect();
    TimelineSeries {
        step_s: per_column as f64,
        columns,
        end_s: end_s(analysis),
        deletions,
        stages,
        latency: words::latency(&analysis.result.load).0,
    }
}

/// Adds a second to a column. Percentiles cannot be merged, so the column keeps the largest.
fn merge(column: &mut RunSecond, second: &RunSecond) {
    column.ok += second.ok;
    column.other += second.other;
    for (&outcome, &n) in &second.dropped {
        *column.dropped.entry(outcome).or_default() += n;
    }
    let larger = |a: Option<f64>, b: Option<f64>| a.into_iter().chain(b).reduce(f64::max);
    column.p50_ms = larger(column.p50_ms, second.p50_ms);
    column.p99_ms = larger(column.p99_ms, second.p99_ms);
}

fn title(result: &RunResult, series: &TimelineSeries) -> String {
    let hit = len(series.columns.iter().filter(|s| !s.dropped.is_empty()).count());
    let run = format!("{} of the run", seconds_unit(series.end_s));
    match (result.requests.lost(), result.terminations.len()) {
        (0, 0) => format!("No request dropped and no pod ended in {run}"),
        (0, _) if result.requests.app_errors_while_ending > 0 => {
            words::headline(result).trim_end_matches('.').to_owned()
        }
        (0, n) => format!("No request dropped in {run}, in which {} ended", counted(len(n), "pod")),
        (n, pods) => {
            let steps = if series.step_s > 1.0 {
                format!("{} of {}", counted(hit, "step"), seconds_unit(series.step_s))
            } else {
                counted(hit, "second")
            };
            let (lost, verb) = (counted(n, "request"), either(n, "was", "were"));
            match pods {
                0 => format!("{lost} {verb} dropped in {steps} of the run; no pod ended"),
                pods => format!(
                    "{lost} {verb} dropped in {steps} of the run; {} ended",
                    counted(len(pods), "pod")
                ),
            }
        }
    }
}

pub(super) fn draw(analysis: &Analysis) -> Result<Chart, DrawError> {
    let series = series(analysis);
    let result = &analysis.result;
    let title = title(result, &series);
    // A closed loop has no intended send times.
    let by = if result.load.is_closed_loop() { "send time" } else { "intended send time" };
    let subtitle = match series.step_s {
        s if s > 1.0 => format!(
            "Requests by {by}, in steps of {s} s; each {} is the largest value of any second in its step",
            series.latency
        ),
        _ => format!("Requests by {by}, second by second"),
    };
    let mut canvas = Canvas::new(WIDTH, HEIGHT)?;
    let top = frame::head(&mut canvas, words::warning(result), &title, &subtitle, &legend(&series));
    let bottom = f64::from(HEIGHT) - 100.0;
    let full = Rect { left: LEFT, top, right: RIGHT, bottom };
    if series.columns.is_empty() {
        frame::message(&mut canvas, full, "No request was recorded.");
    } else {
        draw_plots(&mut canvas, analysis, &series, full);
    }
    let alt = format!("Requests answered and dropped over the run, and {}s. {title}.", series.latency);
    Chart::of("timeline.png", title, alt, canvas, &words::provenance(result), HEIGHT)
}

fn legend(series: &TimelineSeries) -> Vec<LegendEntry> {
    let outcomes: BTreeSet<Outcome> = series.columns.iter().flat_map(|s| s.dropped.keys().copied()).collect();
    let has_others = series.columns.iter().any(|s| s.other > 0);
    let mut keys = frame::applying([
        (true, "answered", LegendSymbol::plain(palette::ANSWERED)),
        (has_others, OTHER, LegendSymbol::Area(palette::GRID, FillPattern::Rising)),
    ]);
    keys.extend(outcomes.into_iter().map(LegendEntry::outcome));
    let answered = || series.columns.iter().filter(|s| s.p99_ms.is_some());
    let (has_many, has_few) = (answered().any(|s| !is_few(s)), answered().any(is_few));
    let few = format!("{} p99 of fewer than {FEW} values", series.latency);
    let [p99, p50] = ["p99", "p50"].map(|percentile| format!("{} {percentile}", series.latency));
    keys.extend(frame::applying([
        (has_many, &p99, LegendSymbol::Line(palette::STEADY_DARK, 3)),
        (has_few, &few, LegendSymbol::Line(palette::STEADY_DARK, 1)),
        (has_many || has_few, &p50, LegendSymbol::Line(palette::STEADY, 3)),
        (!series.deletions.is_empty(), "a pod's deletion took effect", LegendSymbol::Tick(palette::INK)),
    ]));
    keys
}

/// Returns true if a column has so few values that a percentile adds nothing to the slowest.
fn is_few(column: &RunSecond) -> bool {
    column.ok < FEW
}

fn draw_plots(canvas: &mut Canvas, analysis: &Analysis, series: &TimelineSeries, full: Rect) {
    const GAP: f64 = 34.0;
    let x = Axis::linear(0.0, series.end_s, LEFT, RIGHT);
    let acts = Placed::on(canvas, &acts::marks(&analysis.charts), &x);
    let labels = acts.height() + TICKS + 22.0;
    let usable = full.bottom - full.top - labels - 2.0 * GAP;
    let answered = Rect { top: full.top + labels, bottom: full.top + labels + usable * 0.26, ..full };
    let dropped = Rect { top: answered.bottom + GAP, bottom: answered.bottom + GAP + usable * 0.44, ..full };
    let latency = Rect { top: dropped.bottom + GAP, ..full };
    let per = if series.step_s > 1.0 {
        format!("per {}", seconds_unit(series.step_s))
    } else {
        "per second".into()
    };

    let ticks = x.ticks(15);
    for plot in [answered, dropped, latency] {
        frame::x_grid(canvas, plot, &ticks, &x);
    }
    let stacks = |stack: fn(&RunSecond) -> BTreeMap<Outcome, u64>| {
        series.columns.iter().map(|s| (s.at_s, stack(s))).collect::<Vec<_>>()
    };
    let rest = stacks(|s| BTreeMap::from([(Outcome::Ok, s.ok), (Outcome::NotSent, s.other)]));
    let rest = as_rates(rest, series.step_s, series.end_s);
    let lost = stacks(|s| s.dropped.clone());
    draw_columns(canvas, &rest, series.step_s, tallest(&rest), answered, &x, &format!("answered {per}"));
    draw_columns(canvas, &lost, series.step_s, tallest(&lost), dropped, &x, &format!("dropped {per}"));
    draw_latency(canvas, series, latency, &x);
    for plot in [answered, dropped, latency] {
        acts.lines(canvas, plot);
    }
    let rug = full.top + acts.height();
    acts.names(canvas, rug);
    for at in &series.deletions {
        canvas.rule((x.px(*at), rug), (x.px(*at), rug + TICKS), 2.0, palette::INK, Dash::Solid);
    }
    for (i, (at, rate)) in series.stages.iter().enumerate() {
        let next = series.stages.get(i + 1).map_or(RIGHT, |(at, _)| x.px(*at));
        canvas.rule(
            (x.px(*at), answered.top),
            (x.px(*at), answered.bottom),
            1.5,
            palette::MUTED,
            Dash::Dotted,
        );
        if canvas.text_width(rate, &SMALL) + 12.0 < next - x.px(*at) {
            canvas.text(x.px(*at) + 6.0, answered.bottom - 8.0, rate, &SMALL);
        }
    }
    for plot in [answered, dropped] {
        frame::x_axis(canvas, plot, &ticks, &x, None);
    }
    frame::x_axis(canvas, latency, &ticks, &x, Some(&origin(analysis)));
}

/// Returns the end of the counted part, in seconds since its beginning.
pub(super) fn end_s(analysis: &Analysis) -> f64 {
    analysis.charts.end_s.max(analysis.result.load.duration_s)
}

/// Describes the origin of the run's time axis.
pub(super) fn origin(analysis: &Analysis) -> String {
    let origin = format::utc(analysis.charts.origin);
    format!("seconds since {origin}, when the counted part of the load began")
}

/// Converts columns of counts to rates, given `step_s` seconds per column. The last column is scaled by its actual
/// length, because the run's end cuts it short.
pub(super) fn as_rates(mut columns: Vec<StackedColumn>, step_s: f64, end_s: f64) -> Vec<StackedColumn> {
    /// Share of a step below which a shortened column yields no meaningful rate.
    const PART: f64 = 0.1;
    if let Some((at_s, stack)) = columns.last_mut() {
        let part = (end_s - *at_s) / step_s;
        if part < PART {
            columns.pop();
        } else if part < 1.0 {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a count of requests"
            )]
            stack.values_mut().for_each(|n| *n = (*n as f64 / part).round() as u64);
        }
    }
    columns
}

/// Start time of a column, in seconds, and the counts stacked in it.
pub(super) type StackedColumn = (f64, BTreeMap<Outcome, u64>);

/// Returns the largest total count of any column.
pub(super) fn tallest(columns: &[StackedColumn]) -> u64 {
    columns.iter().map(|(_, stack)| stack.values().sum()).max().unwrap_or(0)
}

/// Draws columns of `step_s` seconds, on a scale that fits a column of height `most`.
pub(super) fn draw_columns(
    canvas: &mut Canvas,
    columns: &[StackedColumn],
    step_s: f64,
    most: u64,
    plot: Rect,
    x: &Axis,
    name: &str,
) {
    let y = Axis::linear(0.0, most.max(2) as f64 * 1.05, plot.bottom, plot.top);
    // At most one label per 30 pixels.
    let labels = if plot.bottom - plot.top < 150.0 { 4 } else { 6 };
    frame::y_grid(canvas, plot, &y.whole_ticks(labels), &y);
    for (at_s, stack) in columns {
        let left = x.px(*at_s);
        let right = x.px(at_s + step_s);
        let gap = if right - left > 6.0 { 1.0 } else { 0.0 };
        let mut height = 0;
        for (outcome, n) in stack.iter().filter(|(_, n)| **n > 0) {
            let (color, pattern) = match outcome {
                Outcome::NotSent => (palette::GRID, FillPattern::Rising),
                outcome => palette::outcome(*outcome),
            };
            // A segment is never too thin to be visible, because one failure among many must not vanish.
            let bottom = y.px(height as f64);
            let top = y.px((height + n) as f64).min(bottom - 2.0);
            canvas.fill(
                Rect { left: left + gap, right: right.max(left + 1.0) - gap, top, bottom },
                color,
                pattern,
            );
            height += n;
        }
        if height > 0 {
            let area = Rect { left, right, ..plot };
            canvas.tell(area, format!("{}: {}", span(*at_s, step_s), counts(stack)));
        }
    }
    canvas.text(plot.left, plot.top - 9.0, name, &bold(SMALL));
    if tallest(columns) == 0 {
        frame::message(canvas, plot, "none");
    }
}

/// Formats the period that a column covers: `12 to 13 s`.
pub(super) fn span(from_s: f64, step_s: f64) -> String {
    let decimals = if step_s < 1.0 { 3 } else { 0 };
    format!("{from_s:.decimals$} to {:.decimals$} s", from_s + step_s)
}

/// Lists the counts stacked in a column: `300 answered, 2 connect_refused`.
pub(super) fn counts(stack: &BTreeMap<Outcome, u64>) -> String {
    let name = |outcome: Outcome| match outcome {
        Outcome::Ok => "answered",
        Outcome::NotSent => OTHER,
        lost => lost.as_str(),
    };
    let told = stack.iter().filter(|(_, n)| **n > 0);
    told.map(|(outcome, n)| format!("{} {}", format::count(*n), name(*outcome)))
        .collect::<Vec<_>>()
        .join(", ")
}

/// Describes the percentiles of a column.
fn percentiles(column: &RunSecond, step_s: f64) -> Option<String> {
    let p50 = column.p50_ms.map(|ms| format!("p50 {} ms", millis(ms)));
    let p99 = column.p99_ms.map(|ms| format!("p99 {} ms", millis(ms)));
    let told: Vec<String> = p50.into_iter().chain(p99).collect();
    let few = if is_few(column) { format!(", of {} values", column.ok) } else { String::new() };
    (!told.is_empty()).then(|| format!("{}: {}{few}", span(column.at_s, step_s), told.join(", ")))
}

fn draw_latency(canvas: &mut Canvas, series: &TimelineSeries, plot: Rect, x: &Axis) {
    let values = || {
        series
            .columns
            .iter()
            .flat_map(|s| [s.p50_ms, s.p99_ms])
            .flatten()
            .filter(|v| v.is_finite() && *v > 0.0)
    };
    let name = format!("{} in ms (logarithmic)", series.latency);
    canvas.text(plot.left, plot.top - 9.0, &name, &bold(SMALL));
    let (Some(least), Some(most)) = (values().reduce(f64::min), values().reduce(f64::max)) else {
        frame::message(canvas, plot, "no request was answered");
        return;
    };
    let y = Axis::log(least * 0.8, (most * 1.3).max(least * 4.0), plot.bottom, plot.top);
    frame::y_grid(canvas, plot, &y.ticks(6), &y);
    for (line, color) in [palette::STEADY, palette::STEADY_DARK].into_iter().enumerate() {
        let value = |s: &RunSecond| [s.p50_ms, s.p99_ms][line];
        // A second without answered requests interrupts the line.
        for run in series.columns.split(|s| value(s).is_none()) {
            for run in run.chunk_by(|a, b| line == 0 || is_few(a) == is_few(b)) {
                let width = if line > 0 && is_few(&run[0]) { 1 } else { 3 };
                let points: Vec<(f64, f64)> = run
                    .iter()
                    .filter_map(|s| Some((s.at_s, value(s)?)))
                    .flat_map(|(at, v)| [(x.px(at), y.px(v)), (x.px(at + series.step_s), y.px(v))])
                    .collect();
                canvas.path(&points, width, color);
            }
        }
    }
    for column in &series.columns {
        if let Some(told) = percentiles(column, series.step_s) {
            canvas.tell(
                Rect { left: x.px(column.at_s), right: x.px(column.at_s + series.step_s), ..plot },
                told,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;
    use rolldrop_record::load::Pacing;

    #[test]
    fn columns_contain_every_request() {
        let analysis = samples::naive_exit();
        let series = series(&analysis);
        assert!((series.step_s - 1.0).abs() < f64::EPSILON);
        let ok: u64 = series.columns.iter().map(|s| s.ok).sum();
        let dropped: u64 = series.columns.iter().flat_map(|s| s.dropped.values()).sum();
        assert_eq!((ok, dropped), (analysis.result.requests.ok, analysis.result.requests.dropped));
        assert_eq!(series.deletions.len(), 3);
    }

    #[test]
    fn partial_last_second_shows_no_dip() {
        let columns = |last| {
            vec![(0.0, BTreeMap::from([(Outcome::Ok, 300)])), (1.0, BTreeMap::from([(Outcome::Ok, last)]))]
        };
        let ok = |columns: &[StackedColumn]| {
            columns.iter().map(|(_, stack)| stack[&Outcome::Ok]).collect::<Vec<_>>()
        };
        assert_eq!(ok(&as_rates(columns(150), 1.0, 1.5)), [300, 300]);
        assert_eq!(ok(&as_rates(columns(250), 1.0, 2.0)), [300, 250], "a whole second is not scaled");
        assert_eq!(ok(&as_rates(columns(9), 1.0, 1.03)), [300], "too short for a rate");
    }

    #[test]
    fn legend_marks_small_sample_percentiles() {
        let mut analysis = samples::quiet();
        let names = |analysis: &Analysis| {
            legend(&series(analysis)).iter().map(|key| key.label().to_owned()).collect::<Vec<_>>()
        };
        assert!(names(&analysis).contains(&"response time p99".to_owned()));
        analysis.charts.seconds.iter_mut().for_each(|second| second.ok = 3);
        let few = names(&analysis);
        assert!(few.contains(&"response time p99 of fewer than 100 values".to_owned()), "{few:?}");
        assert!(!few.contains(&"response time p99".to_owned()), "{few:?}");
    }

    #[test]
    fn closed_loop_shows_service_time() {
        let mut analysis = samples::quiet();
        assert_eq!(series(&analysis).latency, "response time");
        analysis.result.load.pacing = Pacing::ClosedLoop;
        assert_eq!(series(&analysis).latency, "service time");
    }

    #[test]
    fn long_timeline_merges_seconds_losslessly() {
        let mut analysis = samples::quiet();
        analysis.charts.seconds = (0..1000_u32)
            .map(|i| RunSecond {
                at_s: f64::from(i),
                ok: 10,
                p99_ms: Some(f64::from(i)),
                ..RunSecond::default()
            })
            .collect();
        let series = series(&analysis);
        assert!(series.columns.len() <= COLUMNS);
        assert_eq!(series.columns.iter().map(|s| s.ok).sum::<u64>(), 10_000);
        assert_eq!(series.columns[0].p99_ms, Some(series.step_s - 1.0));
    }
}
