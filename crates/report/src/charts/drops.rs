//! Dropped requests by class over the time since deletion, one panel a pod.

use std::collections::{BTreeMap, BTreeSet};

use super::axis::{Axis, Break, nice_step};
use super::canvas::{Anchor, Canvas, Dash, Pattern, Rect, Text};
use super::frame::{self, Key, LANE, LEFT, Look, RIGHT, SMALL, WIDTH, anchored, bold, colored};
use super::{Chart, ChartError, palette};
use crate::format::{count, counted, len, seconds, seconds_unit};
use crate::words::{self, Remedy};
use rolldrop_analysis::Analysis;
use rolldrop_analysis::model::{Candidate, Lost, RunResult, Stage, Termination};
use rolldrop_record::Outcome;

/// The most panels; the pods with the fewest drops have none.
const PANELS: usize = 8;
/// Bins over the x axis, roughly.
const BINS: f64 = 110.0;
/// Up to so many requests in a bin, each is a block of its own.
const BLOCKS: u64 = 12;
/// Drops up to here are on the axis, in seconds, however short the window.
const NEAR_S: f64 = 4.0;
/// Up to so many panels, marks are labelled in place; with more, in the legend.
const LABELLED: usize = 4;

/// The stages marked, with their labels and lines.
const MARKS: [(Stage, &str, Dash); 4] = [
    (Stage::KillBegan, "kubelet begins", Dash::Dotted),
    (Stage::AppSigterm, "SIGTERM not before", Dash::Dashed),
    (Stage::ListenerClosed, "listener closed", Dash::Mixed),
    (Stage::AppExited, "exit", Dash::Solid),
];

/// What the chart plots.
#[derive(Debug, PartialEq)]
struct Series {
    panels: Vec<Panel>,
    /// Ends of the x axis, in seconds since t0.
    from_s: f64,
    to_s: f64,
    /// A part of the axis that is omitted because nothing happened there.
    left_out_s: Option<Break>,
    /// Width of a bin, in seconds.
    bin_s: f64,
    /// Most drops in one bin.
    most: u64,
    /// Terminations that have no panel.
    hidden: usize,
    /// Dropped requests that no termination explains.
    elsewhere: u64,
}

/// How a dropped request is drawn: the pod's own ones below, those that other pods explain as well above them.
type Kind = (Whose, Outcome);

/// Whose a dropped request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Whose {
    /// Only this pod's end explains it.
    Own,
    /// Other pods' ends explain it as well; it is drawn in the row of each.
    Shared,
}

/// One pod.
#[derive(Debug, Default, PartialEq)]
struct Panel {
    /// Index into the terminations.
    termination: usize,
    /// Drops by bin, counted from t0 (negative before it), and kind.
    bins: BTreeMap<i64, BTreeMap<Kind, u64>>,
    /// Answered arrivals on new connections, in seconds since t0.
    late: Vec<f64>,
    /// Stages, in order of time: when, and which of [`MARKS`].
    marks: Vec<(f64, usize)>,
    /// Drops beyond the axis.
    drops_beyond: u64,
}

fn series(analysis: &Analysis) -> Series {
    let all = &analysis.result.terminations;
    let mut order: Vec<usize> = (0..all.len()).collect();
    order.sort_by(|&a, &b| words::most_lost_first(&all[a], &all[b]));
    order.truncate(PANELS);
    order.sort_unstable();

    let windows = order.iter().filter_map(|&i| words::longest_window(&all[i]));
    let bounds = windows.flat_map(|w| [w.lower_s, w.upper_s]).flatten().filter(|t| t.is_finite());
    let window_end = bounds.fold(0.0, f64::max);
    let near = (3.0 * window_end).max(NEAR_S);
    let offsets = |panel: usize| {
        let since = all[panel].t0_s;
        let drops = analysis.lost.iter().filter(move |lost| lost.may_be(panel));
        drops.map(move |lost| {
            let whose = if lost.only().is_some() { Whose::Own } else { Whose::Shared };
            (lost.begun_s - since, (whose, lost.outcome))
        })
    };
    let late = |panel: usize| {
        let since = all[panel].t0_s;
        let arrivals = analysis.charts.late_ok.iter().filter(move |a| a.termination == panel);
        arrivals.map(move |a| a.begun_s - since)
    };
    let stages = |panel: usize| {
        let timeline = &all[panel].timeline;
        let seen = MARKS.iter().enumerate().filter_map(|(i, mark)| Some((*timeline.get(&mark.0)?, i)));
        seen.filter(|mark| mark.0.is_finite())
    };

    let mut end = window_end;
    let mut start = 0.0_f64;
    for t in order.iter().flat_map(|&i| offsets(i).map(|d| d.0).chain(late(i))).filter(|t| t.abs() <= near) {
        end = end.max(t);
        start = start.min(t);
    }
    let marks: Vec<f64> = order.iter().flat_map(|&i| stages(i).map(|m| m.0)).collect();
    start = marks.iter().copied().filter(|t| t.abs() <= near).fold(start, f64::min);
    let (to_s, left_out_s) = right_end(end, &marks);
    let shown_to_s = left_out_s.map_or(to_s, |b| b.from);
    let from_s = (start * 1.05).min(-0.04 * shown_to_s);
    let bin_s = nice_step((shown_to_s - from_s) / BINS);

    let mut panels = Vec::with_capacity(order.len());
    for &i in &order {
        let mut panel = Panel { termination: i, ..Panel::default() };
        for (offset, kind) in offsets(i) {
            if (from_s..=shown_to_s).contains(&offset) {
                *panel.bins.entry(bin_of(offset, bin_s)).or_default().entry(kind).or_default() += 1;
            } else {
                panel.drops_beyond += 1;
            }
        }
        panel.late = late(i).filter(|&t| t <= shown_to_s).collect();
        panel.marks = stages(i).collect();
        panel.marks.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        panels.push(panel);
    }
    let most = panels.iter().flat_map(|p| p.bins.values()).map(|bin| bin.values().sum()).max().unwrap_or(0);
    let elsewhere = len(analysis.lost.iter().filter(|lost| lost.candidates.is_empty()).count());
    Series { hidden: all.len() - panels.len(), panels, from_s, to_s, left_out_s, bin_s, most, elsewhere }
}

/// The right end of the axis, and what to omit before it. `end` is the end of what happened to requests, `marks` are the
/// stages.
fn right_end(end: f64, marks: &[f64]) -> (f64, Option<Break>) {
    // The factors leave room on the right for the last mark's label.
    let near_end = |marks: &mut dyn Iterator<Item = f64>| marks.map(|t| t * 1.14).fold(end * 1.06, f64::max);
    let far_from = marks.iter().copied().filter(|&t| t > end.max(0.1) * 2.5).fold(f64::INFINITY, f64::min);
    let near_s = near_end(&mut marks.iter().copied().filter(|&t| t < far_from));
    let far_to = marks.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if end <= 0.0 || far_from < near_s * 2.0 || far_from.is_infinite() {
        let all = near_end(&mut marks.iter().copied());
        return (if all > 0.0 { all } else { 1.0 }, None);
    }
    // The part after the break is drawn no finer than the part before it.
    let width = (near_s * 0.5).max((far_to - far_from) / 0.3);
    let from = far_from - 0.1 * width;
    if from <= near_s {
        return (near_end(&mut marks.iter().copied()), None);
    }
    (from + width, Some(Break { from: near_s, to: from }))
}

fn bin_of(offset_s: f64, bin_s: f64) -> i64 {
    #[expect(clippy::cast_possible_truncation, reason = "saturates, and the axis has about a hundred bins")]
    let bin = (offset_s / bin_s).floor() as i64;
    bin
}

/// The finding.
fn title(analysis: &Analysis) -> String {
    let result = &analysis.result;
    let (dropped, total) = (result.requests.lost(), result.requests.total);
    if dropped == 0 || result.terminations.is_empty() {
        return words::headline(result).trim_end_matches('.').to_owned();
    }
    let lead = format!("{} of {} requests dropped", count(dropped), count(total));
    // Of what several pods may have lost, the earliest deletion counts: so it is true whichever it was.
    let since_first = |lost: &Lost| {
        let t0 = |c: &Candidate| result.terminations.get(c.termination).map(|t| t.t0_s);
        lost.candidates.iter().filter_map(t0).reduce(f64::min).map(|t0_s| lost.begun_s - t0_s)
    };
    let delays: Vec<f64> = analysis.lost.iter().filter_map(since_first).filter(|s| s.is_finite()).collect();
    let bounds = delays.iter().copied().reduce(f64::min).zip(delays.iter().copied().reduce(f64::max));
    let Some((first, last)) = bounds else {
        return format!("{lead}, none of which a pod's deletion explains");
    };
    let is_shared = analysis.lost.iter().any(|lost| lost.candidates.len() > 1);
    let of = match (is_shared, delays.len()) {
        (false, _) => "a pod's deletion",
        (true, 1) => "the deletion of a pod that may have lost it",
        (true, _) => "the deletion of a pod that may have lost them",
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

/// Why requests were dropped and what would have saved them, in one line, and what the chart shows,
/// in another.
fn subtitle(series: &Series, result: &RunResult) -> String {
    let remedy = words::remedy(result).map(|remedy| match remedy {
        Remedy::Yaml(yaml, note) => format!("Remedy: {yaml} ({note})"),
        Remedy::Words(text) => format!("Remedy: {}", text.trim_end_matches('.')),
    });
    let cause = words::causes(result).map(|causes| format!("Cause: {causes}"));
    let answer: Vec<String> = cause.into_iter().chain(remedy).collect();
    let what = match (result.requests.lost(), series.panels.is_empty()) {
        (_, true) => "Lost requests over the time since a pod's deletion",
        (0, false) => {
            "New connections that a pod still got after its deletion took effect show how long its window was"
        }
        (_, false) => {
            "Time at which each lost request was begun, since the deletion of a pod that may have lost it took effect"
        }
    };
    let mut parts = vec![what.to_owned()];
    if series.hidden > 0 {
        parts.push(format!(
            "the {} pods that may have lost most, of {}",
            series.panels.len(),
            count(len(result.terminations.len()))
        ));
    }
    if series.elsewhere > 0 {
        parts.push(format!("{} that no pod's end explains, see the run timeline", count(series.elsewhere)));
    }
    format!("{}\n{}", answer.join(" · "), parts.join(" · ")).trim_start().to_owned()
}

pub(super) fn draw(analysis: &Analysis) -> Result<Chart, ChartError> {
    let series = series(analysis);
    let result = &analysis.result;
    let title = title(analysis);
    let rows = u32::try_from(series.panels.len()).unwrap_or(u32::MAX).max(1);
    let height = (250 + rows * if series.panels.len() > LABELLED { 130 } else { 210 }).max(900);
    let mut canvas = Canvas::new(WIDTH, height)?;
    let top = frame::head(
        &mut canvas,
        words::warning(result),
        &title,
        &subtitle(&series, result),
        &legend(&series),
    )?;
    let bottom = f64::from(height) - 100.0;
    if series.panels.is_empty() {
        let plot = Rect { left: LEFT, top, right: RIGHT, bottom };
        frame::message(&mut canvas, plot, "No pod was terminated during the measurement.");
    }
    let x = match series.left_out_s {
        Some(left_out) => Axis::broken(series.from_s, left_out, series.to_s, LEFT, RIGHT),
        None => Axis::linear(series.from_s, series.to_s, LEFT, RIGHT),
    };
    let row_height = (bottom - top) / f64::from(rows);
    let mut row_top = top;
    for (i, panel) in series.panels.iter().enumerate() {
        let last = i + 1 == series.panels.len();
        let area = Rect { left: LEFT, top: row_top, right: RIGHT, bottom: row_top + row_height };
        draw_panel(&mut canvas, &series, panel, &result.terminations[panel.termination], area, &x, last)?;
        row_top += row_height;
    }
    if !series.panels.is_empty() {
        let unit = if series.bin_s >= 1.0 {
            format!("{} s", seconds(series.bin_s))
        } else {
            format!("{:.0} ms", series.bin_s * 1e3)
        };
        frame::y_title(&mut canvas, top, bottom, &format!("dropped requests per {unit}"));
    }
    frame::foot(&mut canvas, &words::provenance(result), height);
    let alt = format!("Dropped requests by class over the time since each pod's deletion. {title}.");
    Ok(Chart { name: "drops.png", title, alt, png: canvas.into_png()? })
}

fn legend(series: &Series) -> Vec<Key> {
    let kinds: BTreeSet<Kind> =
        series.panels.iter().flat_map(|p| p.bins.values()).flat_map(|bin| bin.keys().copied()).collect();
    let outcomes: BTreeSet<Outcome> = kinds.iter().map(|kind| kind.1).collect();
    let mut keys: Vec<Key> = outcomes.into_iter().map(Key::outcome).collect();
    if kinds.iter().any(|kind| kind.0 == Whose::Shared) {
        keys.push(Key::new(
            "the same, of this pod or another: drawn for each",
            Look::Outlined(palette::MUTED),
        ));
    }
    if series.panels.iter().any(|p| !p.late.is_empty()) {
        keys.push(Key::new("answered, on a new connection", Look::Tick(palette::ANSWERED_MARK)));
    }
    if !series.panels.is_empty() {
        keys.push(Key::new("window: new connections still came", Look::Window));
        keys.push(Key::new("window: upper bound", Look::WindowMaybe));
    }
    if series.panels.len() > LABELLED {
        let drawn: BTreeSet<usize> =
            series.panels.iter().flat_map(|p| p.marks.iter().map(|mark| mark.1)).collect();
        keys.extend(drawn.into_iter().map(|i| Key::new(MARKS[i].1, Look::Mark(MARKS[i].2))));
    }
    keys
}

fn draw_panel(
    canvas: &mut Canvas,
    series: &Series,
    panel: &Panel,
    termination: &Termination,
    area: Rect,
    x: &Axis,
    last: bool,
) -> Result<(), ChartError> {
    const RUG: f64 = 20.0;
    const HEADER: f64 = 24.0;
    let labels = if series.panels.len() > LABELLED { Vec::new() } else { labels(panel, x) };
    let sizes: Vec<(f64, f64)> =
        labels.iter().map(|(px, label)| (*px, canvas.text_width(label, &SMALL) + 14.0)).collect();
    let lanes = frame::lanes(&sizes);
    let lane_top = area.top + HEADER;
    let lane_height = len_px(lanes.iter().max().map_or(0, |l| l + 1)) * LANE;
    let plot = Rect { top: lane_top + lane_height + 6.0, bottom: area.bottom - RUG - 14.0, ..area };
    let rug = Rect { top: plot.bottom, bottom: plot.bottom + RUG, ..area };

    let y = Axis::linear(0.0, series.most.max(2) as f64 * 1.1, plot.bottom, plot.top);
    let ticks = x.ticks(12);
    frame::x_grid(canvas, Rect { bottom: rug.bottom, ..plot }, &ticks, x);
    frame::y_grid(canvas, plot, &y.whole_ticks(4), &y);
    draw_window(canvas, termination, Rect { bottom: rug.bottom, ..plot }, x);
    draw_bars(canvas, series, panel, plot, x, &y)?;
    for &at in &panel.late {
        canvas.rule(
            (x.px(at), rug.top + 3.0),
            (x.px(at), rug.bottom - 2.0),
            2.0,
            palette::ANSWERED_MARK,
            Dash::Solid,
        );
    }
    canvas.rule((plot.left, plot.bottom), (plot.right, plot.bottom), 1.0, palette::AXIS, Dash::Solid);
    canvas.rule((x.px(0.0), plot.top - 4.0), (x.px(0.0), rug.bottom), 2.0, palette::INK, Dash::Solid);
    for &(at, mark) in &panel.marks {
        canvas.rule((x.px(at), plot.top - 4.0), (x.px(at), rug.bottom), 2.0, palette::INK, MARKS[mark].2);
    }
    for ((px, label), lane) in labels.iter().zip(&lanes) {
        let baseline = lane_top + lane_height - len_px(*lane) * LANE - 3.0;
        canvas.rule((*px, baseline - 13.0), (*px, plot.top - 4.0), 1.0, palette::INK, Dash::Solid);
        canvas.text(px + 6.0, baseline, label, &SMALL);
    }
    draw_header(canvas, panel, termination, area.top + 17.0, labels.is_empty());
    let title = last.then_some("seconds since the deletion took effect (t0)");
    frame::x_axis(canvas, rug, &ticks, x, title);
    if let Some((left, right)) = x.gap_px() {
        let gap =
            Rect { left: left + 1.0, right: right - 1.0, top: plot.top - 1.0, bottom: rug.bottom + 2.0 };
        canvas.fill(gap, palette::WHITE, Pattern::Plain);
        for edge in [gap.left, gap.right] {
            canvas.path(
                &[(edge - 4.0, rug.bottom + 7.0), (edge + 4.0, rug.bottom - 7.0)],
                2,
                palette::AXIS,
            )?;
        }
    }
    Ok(())
}

/// The labels of a panel's marks. Marks that fall together share one.
fn labels(panel: &Panel, x: &Axis) -> Vec<(f64, String)> {
    let mut labels: Vec<(f64, String)> = Vec::new();
    for &(at, i) in &panel.marks {
        let text = format!("{} {}", MARKS[i].1, seconds_unit(at));
        match labels.last_mut() {
            Some((px, label)) if x.px(at) - *px < 2.0 => *label = format!("{label}, {text}"),
            _ => labels.push((x.px(at), text)),
        }
    }
    labels
}

fn draw_header(
    canvas: &mut Canvas,
    panel: &Panel,
    termination: &Termination,
    baseline: f64,
    with_marks: bool,
) {
    let name_style = Text { size: 18.0, ..bold(SMALL) };
    let name = canvas.fit(&termination.pod, &name_style, 480.0);
    canvas.text(LEFT, baseline, &name, &name_style);
    let mut parts = vec![format!("{} dropped", words::dropped_of(termination))];
    if let Some(window) = words::longest_window(termination) {
        let which = if termination.windows.len() > 1 { "longest window" } else { "window" };
        parts.push(format!("{which} {}", words::window(window)));
    }
    if let Some(code) = termination.exit_code {
        parts.push(format!("exit code {code}"));
    }
    if with_marks {
        parts.extend(panel.marks.iter().map(|&(at, i)| format!("{} {}", MARKS[i].1, seconds_unit(at))));
    }
    if panel.drops_beyond > 0 {
        parts.push(format!("{} outside this axis", counted(panel.drops_beyond, "drop")));
    }
    let style = Text { size: 17.0, ..colored(SMALL, palette::MUTED) };
    let left = LEFT + canvas.text_width(&name, &name_style) + 18.0;
    let text = canvas.fit(&parts.join(" · "), &style, RIGHT - left);
    canvas.text(left, baseline, &text, &style);
}

fn draw_window(canvas: &mut Canvas, termination: &Termination, area: Rect, x: &Axis) {
    let Some(window) = words::longest_window(termination) else { return };
    let lower = x.px(window.lower_s.unwrap_or(0.0));
    canvas.shade(Rect { left: x.px(0.0), right: lower, ..area }, palette::WINDOW, false);
    let upper = x.px(window.upper_s.unwrap_or(f64::MAX));
    if upper > lower {
        canvas.shade(Rect { left: lower, right: upper, ..area }, palette::WINDOW_MAYBE, true);
        if window.upper_s.is_none() {
            let style = anchored(colored(SMALL, palette::MUTED), Anchor::End);
            canvas.text(area.right - 8.0, area.top + 16.0, "no upper bound", &style);
        }
    }
}

fn draw_bars(
    canvas: &mut Canvas,
    series: &Series,
    panel: &Panel,
    plot: Rect,
    x: &Axis,
    y: &Axis,
) -> Result<(), ChartError> {
    for (&bin, counts) in &panel.bins {
        let from = bin as f64 * series.bin_s;
        let (left, right) = (x.px(from) + 0.5, x.px(from + series.bin_s) - 0.5);
        let mut height = 0;
        for (&(whose, outcome), &n) in counts {
            let (color, pattern) = palette::outcome(outcome);
            let step = if series.most <= BLOCKS { 1 } else { n };
            for _ in 0..n / step {
                let bar = Rect {
                    left,
                    right,
                    top: y.px((height + step) as f64),
                    bottom: y.px(height as f64).min(plot.bottom),
                };
                let gap = if step == 1 { 1.0 } else { 0.0 };
                let bar = Rect { top: bar.top + gap, ..bar };
                match whose {
                    Whose::Own => canvas.fill(bar, color, pattern),
                    Whose::Shared => {
                        canvas.fill(bar, palette::WHITE, Pattern::Plain);
                        canvas.outline(bar, color)?;
                    }
                }
                height += step;
            }
        }
    }
    Ok(())
}

fn len_px(n: usize) -> f64 {
    u32::try_from(n).map_or(0.0, f64::from)
}

#[cfg(test)]
mod tests;
