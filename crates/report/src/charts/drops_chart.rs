//! Charts dropped requests by outcome over the time since deletion, with a row per pod or per group of pods.

mod drops_series;

use std::collections::BTreeSet;

use super::axis::Axis;
use super::frame::{
    self, LANE, LEFT, LegendEntry, LegendSymbol, RIGHT, SMALL, WIDTH, anchored, bold, colored,
};
use super::timeline_chart;
use super::{Chart, DrawError, palette};
use crate::format::{count, counted, len, seconds, seconds_unit};
use crate::words;
use drops_series::{DropRow, DropSeries, RowPods, series};
use rolldrop_canvas::{Anchor, Canvas, Dash, Rect, TextStyle};
use rolldrop_explain::Analysis;
use rolldrop_explain::model::{RunResult, Stage};
use rolldrop_record::Outcome;

/// Maximum number of requests per bin that are drawn as separate blocks.
const BLOCKS: u64 = 12;
/// Maximum number of rows whose marks have their own labels; with more rows, the legend explains the marks.
const LABELLED: usize = 4;
/// Height of a consumer's name above its first row.
const CONSUMER: f64 = 30.0;

/// Stages that are marked, with their labels and line styles.
const MARKS: [(Stage, &str, Dash); 4] = [
    (Stage::KillBegan, "kubelet begins", Dash::Dotted),
    (Stage::AppSigterm, "earliest SIGTERM", Dash::Dashed),
    (Stage::ListenerClosed, "listener closed", Dash::Mixed),
    (Stage::AppExited, "exit", Dash::Long),
];

/// Returns the chart's finding.
fn title(analysis: &Analysis, series: &DropSeries) -> String {
    let result = &analysis.result;
    let (dropped, total) = (result.requests.lost(), result.requests.total);
    if dropped == 0 {
        return words::headline(result).trim_end_matches('.').to_owned();
    }
    let lead = format!("{} of {} requests dropped", count(dropped), count(total));
    let delays = &series.delays_s;
    let bounds = delays.iter().copied().reduce(f64::min).zip(delays.iter().copied().reduce(f64::max));
    let Some((first, last)) = bounds else {
        return format!("{lead}, none of them explained by a pod's deletion");
    };
    let of = match has_groups(series) {
        false => "a pod's deletion",
        true => "the first deletion that may explain them",
    };
    let within = match first < -0.0005 {
        true => {
            let [before, after] = [-first, last.max(0.0)].map(seconds_unit);
            format!("from {before} before to {after} after {of}")
        }
        false => format!("within {} of {of}", seconds_unit(last.max(0.001))),
    };
    match (len(delays.len()), dropped) {
        (1, 1) => format!("{lead}, {within}"),
        (n, all) if n >= all => format!("{lead}, all {within}"),
        (n, _) => format!("{lead}, {} of them {within}", count(n)),
    }
}

fn has_groups(series: &DropSeries) -> bool {
    series.rows.iter().any(|row| matches!(row.pods, RowPods::Group(_)))
}

/// Returns the causes of the dropped requests, the remedy, and a description of the chart, on separate lines.
fn subtitle(series: &DropSeries, result: &RunResult) -> String {
    let what = match result.requests.lost() {
        0 => "New connections to a pod after its deletion took effect show how long its window lasted",
        _ => "Start of each lost request, relative to the time when its pod's deletion took effect",
    };
    let mut parts = vec![what.to_owned()];
    if has_groups(series) {
        parts.push(
            "pods that may have lost the same requests share a row, counted from the first deletion"
                .to_owned(),
        );
    }
    let is_apart = |row: &DropRow| matches!(row.pods, RowPods::Apart(_));
    if series.rows.iter().any(is_apart) {
        let which = if series.rows.iter().all(is_apart) { "pods" } else { "other pods" };
        parts.push(format!("{which} of the same kind share a row, each counted from its own deletion"));
    }
    if series.elsewhere > 0 {
        parts.push(format!(
            "{} not explained by any termination; see the run timeline",
            count(series.elsewhere)
        ));
    }
    format!("{}\n{}", frame::answer(result), parts.join(" · ")).trim_start().to_owned()
}

/// Draws the chart; returns `None` if no pod ended.
pub(super) fn draw(analysis: &Analysis) -> Result<Option<Chart>, DrawError> {
    let series = series(analysis);
    if series.rows.is_empty() {
        return Ok(None);
    }
    let result = &analysis.result;
    let title = title(analysis, &series);
    let rows = u32::try_from(series.rows.len()).unwrap_or(u32::MAX).max(1);
    let begins = |i: usize| {
        let before = i.checked_sub(1).map(|before| &series.rows[before].consumer);
        series.rows[i].consumer.is_some() && before != Some(&series.rows[i].consumer)
    };
    let consumers = u32::try_from((0..series.rows.len()).filter(|i| begins(*i)).count()).unwrap_or(0);
    let height =
        (280 + consumers * 30 + rows * if series.rows.len() > LABELLED { 130 } else { 210 }).max(900);
    let mut canvas = Canvas::new(WIDTH, height)?;
    let top = frame::head(
        &mut canvas,
        words::warning(result),
        &title,
        &subtitle(&series, result),
        &legend(&series),
    );
    let bottom = f64::from(height) - 100.0;
    let x = Axis::broken(series.from_s, series.left_out_s, series.to_s, LEFT, RIGHT);
    let row_height = (bottom - top - f64::from(consumers) * CONSUMER) / f64::from(rows);
    let mut row_top = top;
    for (i, row) in series.rows.iter().enumerate() {
        if let Some(consumer) = row.consumer.as_ref().filter(|_| begins(i)) {
            let style = TextStyle { size: 18.0, ..bold(SMALL) };
            canvas.text(LEFT, row_top + 22.0, &format!("Through {consumer}"), &style);
            row_top += CONSUMER;
        }
        let last = i + 1 == series.rows.len();
        let area = Rect { left: LEFT, top: row_top, right: RIGHT, bottom: row_top + row_height };
        draw_row(&mut canvas, &series, row, result, area, &x, last);
        row_top += row_height;
    }
    let unit = if series.bin_s >= 1.0 {
        format!("{} s", seconds(series.bin_s))
    } else {
        format!("{:.0} ms", series.bin_s * 1e3)
    };
    frame::y_title(&mut canvas, top, bottom, &format!("dropped requests per {unit}"));
    let alt = format!("Dropped requests by class over the time since each pod's deletion. {title}.");
    Chart::of("drops.png", title, alt, canvas, &words::provenance(result), height).map(Some)
}

fn legend(series: &DropSeries) -> Vec<LegendEntry> {
    let outcomes: BTreeSet<Outcome> =
        series.rows.iter().flat_map(|row| row.bins.values()).flat_map(|bin| bin.keys().copied()).collect();
    let mut keys: Vec<LegendEntry> = outcomes.into_iter().map(LegendEntry::outcome).collect();
    let is_late = series.rows.iter().any(|row| !row.late.is_empty());
    let windows = || series.rows.iter().filter_map(|row| row.window);
    let is_certain = windows().any(|(lower, _)| lower > 0.0);
    let is_possible = windows().any(|(lower, upper)| upper.is_some_and(|upper| upper > lower));
    keys.extend(frame::applying([
        (is_late, "answered, on a new connection", LegendSymbol::Tick(palette::ANSWERED_MARK)),
        (is_certain, "window: new connections still arrived", LegendSymbol::Window),
        (is_possible, "window: upper bound", LegendSymbol::WindowMaybe),
        (true, "a pod's deletion took effect (t0)", LegendSymbol::Thick),
    ]));
    if series.rows.len() > LABELLED {
        let drawn: BTreeSet<usize> =
            series.rows.iter().flat_map(|row| row.marks.iter().map(|mark| mark.1)).collect();
        keys.extend(drawn.into_iter().map(|i| LegendEntry::new(MARKS[i].1, LegendSymbol::Mark(MARKS[i].2))));
    }
    keys
}

fn draw_row(
    canvas: &mut Canvas,
    series: &DropSeries,
    row: &DropRow,
    result: &RunResult,
    area: Rect,
    x: &Axis,
    last: bool,
) {
    const HEADER: f64 = 24.0;
    let labels = if series.rows.len() > LABELLED { Vec::new() } else { labels(row, x) };
    let sizes: Vec<(f64, f64)> =
        labels.iter().map(|(px, label)| (*px, canvas.text_width(label, &SMALL) + 14.0)).collect();
    let lanes = frame::lanes(&sizes);
    let rug_height = if series.rows.iter().any(|row| !row.late.is_empty()) { 20.0 } else { 0.0 };
    let lane_top = area.top + HEADER;
    let lane_height = len_px(lanes.iter().max().map_or(0, |l| l + 1)) * LANE;
    let plot = Rect { top: lane_top + lane_height + 6.0, bottom: area.bottom - rug_height - 14.0, ..area };
    let rug = Rect { top: plot.bottom, bottom: plot.bottom + rug_height, ..area };

    let y = Axis::linear(0.0, series.most.max(2) as f64 * 1.1, plot.bottom, plot.top);
    let ticks = x.ticks(12);
    frame::x_grid(canvas, Rect { bottom: rug.bottom, ..plot }, &ticks, x);
    frame::y_grid(canvas, plot, &y.whole_ticks(4), &y);
    draw_window(canvas, row, Rect { bottom: rug.bottom, ..plot }, x);
    for &at in &row.deletions {
        canvas.rule((x.px(at), plot.top - 4.0), (x.px(at), rug.bottom), 3.0, palette::INK, Dash::Solid);
    }
    draw_bars(canvas, series, row, plot, x, &y);
    for &at in &row.late {
        let (from, to) = ((x.px(at), rug.top + 3.0), (x.px(at), rug.bottom - 2.0));
        canvas.rule(from, to, 2.0, palette::ANSWERED_MARK, Dash::Solid);
        let area = Rect { left: from.0 - 1.0, right: from.0 + 1.0, ..rug };
        canvas.tell(area, format!("answered, on a new connection: {}", seconds_unit(at)));
    }
    canvas.rule((plot.left, plot.bottom), (plot.right, plot.bottom), 1.0, palette::AXIS, Dash::Solid);
    for &(at, mark) in &row.marks {
        canvas.rule((x.px(at), plot.top - 4.0), (x.px(at), rug.bottom), 2.0, palette::INK, MARKS[mark].2);
        let area = Rect { left: x.px(at) - 3.0, right: x.px(at) + 3.0, bottom: rug.bottom, ..plot };
        canvas.tell(area, format!("{} {}", MARKS[mark].1, seconds_unit(at)));
    }
    for ((px, label), lane) in labels.iter().zip(&lanes) {
        let baseline = lane_top + lane_height - len_px(*lane) * LANE - 3.0;
        canvas.rule((*px, baseline - 13.0), (*px, plot.top - 4.0), 1.0, palette::INK, Dash::Solid);
        canvas.text(px + 6.0, baseline, label, &SMALL);
    }
    draw_header(canvas, row, result, area.top + 17.0, labels.is_empty());
    let title = last.then(|| match has_groups(series) {
        true => "seconds since the (first) deletion took effect (t0)",
        false => "seconds since the deletion took effect (t0)",
    });
    frame::x_axis(canvas, rug, &ticks, x, title);
    frame::break_marks(canvas, Rect { bottom: rug.bottom, ..plot }, x)
}

/// Returns the labels of a row's marks. Marks at the same position share a label.
fn labels(row: &DropRow, x: &Axis) -> Vec<(f64, String)> {
    let mut labels: Vec<(f64, String)> = Vec::new();
    for &(at, i) in &row.marks {
        let text = stage(at, i);
        match labels.last_mut() {
            Some((px, label)) if x.px(at) - *px < 2.0 => *label = format!("{label}, {text}"),
            _ => labels.push((x.px(at), text)),
        }
    }
    labels
}

/// Formats a stage with its time, which may precede the moment the deletion took effect.
fn stage(at_s: f64, mark: usize) -> String {
    format!("{} {}", MARKS[mark].1, seconds_unit(at_s).replace('-', "−"))
}

/// Returns a row's heading, which names its pods, and the figures about them.
fn header(row: &DropRow, result: &RunResult, with_marks: bool) -> (String, Vec<String>) {
    let terminations = || row.pods.all().iter().filter_map(|t| result.terminations.get(*t));
    let (first, last) = (terminations().next(), terminations().next_back());
    let ends = [first, last].map(|t| t.map_or("", |t| words::short_pod(&t.pod))).join(" … ");
    let n = counted(len(row.pods.all().len()), "pod");
    let name = match (&row.pods, first) {
        (RowPods::One(_), Some(t)) => t.pod.clone(),
        (RowPods::Apart(_), Some(t)) => format!("{n}, {}: {ends}", words::mode(t.mode)),
        _ => format!("{n}: {ends}"),
    };
    let mut parts = vec![match (&row.pods, first, &row.consumer) {
        (RowPods::One(_), Some(t), None) => format!("{} dropped", words::dropped_of(t)),
        _ => format!("{} dropped", count(row.dropped)),
    }];
    parts.extend(window_in_words(row));
    if let Some(lower_s) = row.group_window_s {
        parts.push(format!("at least one of the windows lasted {}", seconds_unit(lower_s)));
    }
    if let (RowPods::One(_), Some(code)) = (&row.pods, first.and_then(|t| t.exit_code)) {
        parts.push(format!("exit code {code}"));
    }
    if with_marks {
        parts.extend(row.marks.iter().map(|&(at, i)| stage(at, i)));
    }
    if row.beyond > 0 {
        parts.push(format!("{} outside this axis", counted(row.beyond, "drop")));
    }
    (name, parts)
}

/// Describes the window that a row shows: the longest one, if the row has several pods.
fn window_in_words(row: &DropRow) -> Option<String> {
    let which = match row.pods {
        RowPods::One(_) => "window",
        RowPods::Apart(_) => "longest window",
        RowPods::Group(_) => "windows",
    };
    let (lower_s, upper_s) = row.window?;
    Some(format!("{which} {}", words::bounds(lower_s, upper_s)))
}

fn draw_header(canvas: &mut Canvas, row: &DropRow, result: &RunResult, baseline: f64, with_marks: bool) {
    let (name, parts) = header(row, result, with_marks);
    let name_style = TextStyle { size: 18.0, ..bold(SMALL) };
    let name = canvas.fit(&name, &name_style, 480.0);
    canvas.text(LEFT, baseline, &name, &name_style);
    let style = TextStyle { size: 17.0, ..colored(SMALL, palette::MUTED) };
    let left = LEFT + canvas.text_width(&name, &name_style) + 18.0;
    // Parts that do not fit are dropped as a whole, the last first.
    let fits = |n: &usize| canvas.text_width(&parts[..*n].join(" · "), &style) <= RIGHT - left;
    let shown = (1..=parts.len()).rev().find(fits).unwrap_or(1);
    canvas.text(left, baseline, &parts[..shown].join(" · "), &style);
}

fn draw_window(canvas: &mut Canvas, row: &DropRow, area: Rect, x: &Axis) {
    let Some((lower_s, upper_s)) = row.window else { return };
    let lower = x.px(lower_s);
    if let Some(told) = window_in_words(row) {
        let right = upper_s.map_or(area.right, |s| x.px(s));
        canvas.tell(Rect { left: x.px(0.0), right, ..area }, told);
    }
    canvas.shade(Rect { left: x.px(0.0), right: lower, ..area }, palette::WINDOW, false);
    if let Some(upper) = upper_s.map(|s| x.px(s)).filter(|upper| *upper > lower) {
        canvas.shade(Rect { left: lower, right: upper, ..area }, palette::WINDOW_MAYBE, true);
    } else if upper_s.is_none() {
        let style = anchored(colored(SMALL, palette::MUTED), Anchor::End);
        canvas.text(area.right - 8.0, area.top + 16.0, "no upper bound", &style);
    }
}

fn draw_bars(canvas: &mut Canvas, series: &DropSeries, row: &DropRow, plot: Rect, x: &Axis, y: &Axis) {
    for (&bin, counts) in &row.bins {
        let from = bin as f64 * series.bin_s;
        let (left, right) = (x.px(from) + 0.5, x.px(from + series.bin_s) - 0.5);
        let mut height = 0;
        for (&outcome, &n) in counts {
            let (color, pattern) = palette::outcome(outcome);
            let step = if series.most <= BLOCKS { 1 } else { n };
            for _ in 0..n / step {
                let gap = if step == 1 { 1.0 } else { 0.0 };
                let top = y.px((height + step) as f64) + gap;
                let bottom = y.px(height as f64).min(plot.bottom);
                canvas.fill(Rect { left, right, top, bottom }, color, pattern);
                height += step;
            }
        }
        canvas.tell(
            Rect { left, right, ..plot },
            format!("{}: {}", timeline_chart::span(from, series.bin_s), timeline_chart::counts(counts)),
        );
    }
}

fn len_px(n: usize) -> f64 {
    u32::try_from(n).map_or(0.0, f64::from)
}

#[cfg(test)]
mod tests;
