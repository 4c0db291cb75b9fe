//! Charts the phases of the pods over the course of a run, the requests that each pod may have lost, and the load
//! below.

mod rollout_series;

use std::collections::{BTreeMap, BTreeSet};

use super::acts::{self, Placed};
use super::axis::Axis;
use super::frame::{self, LegendEntry, LegendSymbol, SMALL, WIDTH, anchored, bold, colored};
use super::timeline_chart;
use super::{Chart, DrawError, palette};
use crate::format::{self, count, counted, either, len, plain, seconds_unit};
use crate::words;
use rolldrop_canvas::{Anchor, Canvas, Dash, FillPattern, RGBColor, Rect, TextStyle};
use rolldrop_explain::Analysis;
use rolldrop_explain::model::RunResult;
use rolldrop_record::Outcome;
use rollout_series::{DrawnPhase, LossRelation, PodLine, RolloutRow, RolloutSeries};

/// Left and right edges of the bars. The pods' names are to the left, and their losses to the right.
const LEFT: f64 = 250.0;
const RIGHT: f64 = 1470.0;
/// Heights of a row's losses, of a single pod's bar, of a bar in a row of several pods, and of a consumer's strip.
const LOSSES: f64 = 11.0;
const BAR: f64 = 11.0;
const THIN: f64 = 3.0;
const STRIP: f64 = 4.0;
/// Length of a strip whose true length is unknown, in pixels.
const UNKNOWN: f64 = 30.0;
/// Space below a row.
const GAP: f64 = 5.0;
/// Heights of the plots below the pods.
const ANSWERED: f64 = 90.0;
const LOST: f64 = 170.0;
/// Height of each plot of lost requests, if there is one per consumer.
const LOST_EACH: f64 = 110.0;
/// Distance between plots.
const BETWEEN: f64 = 40.0;
/// Maximum height of the header and the footer.
const HEAD: f64 = 640.0;
/// Maximum number of consumers that get their own strips.
const STRIPS: usize = 3;

/// Draws the chart; returns `None` if no pod started, ended or failed.
pub(super) fn draw(analysis: &Analysis) -> Result<Option<Chart>, DrawError> {
    let Some(series) = rollout_series::series(analysis) else { return Ok(None) };
    let result = &analysis.result;
    let title = title(analysis, &series);
    let x = Axis::linear(series.from_s, series.to_s, LEFT, RIGHT);
    let rows: f64 = series.rows.iter().map(|row| height(row, strips(&series))).sum();
    let lost_height = if series.lost.len() > 1 { LOST_EACH } else { LOST };
    let plots = rows + ANSWERED + BETWEEN + series.lost.len() as f64 * (lost_height + BETWEEN);
    let mut canvas = Canvas::new(WIDTH, frame::pixels(HEAD + plots))?;
    let subtitle = subtitle(&series, result);
    let top = frame::head(&mut canvas, words::warning(result), &title, &subtitle, &legend(&series));
    let placed = Placed::on(&canvas, &acts::marks(&analysis.charts), &x);
    let top = top + placed.height().max(18.0);
    let pods = Rect { left: LEFT, right: RIGHT, top, bottom: top + rows };
    let answered = Rect { top: pods.bottom + BETWEEN, bottom: pods.bottom + BETWEEN + ANSWERED, ..pods };
    let mut areas = vec![pods, answered];
    for _ in &series.lost {
        let top = areas[areas.len() - 1].bottom + BETWEEN;
        areas.push(Rect { top, bottom: top + lost_height, ..pods });
    }

    let ticks = x.ticks(14);
    for plot in &areas {
        frame::x_grid(&mut canvas, *plot, &ticks, &x);
    }
    placed.lines(&mut canvas, pods);
    draw_rows(&mut canvas, &series, pods, &x);
    let name = format!("answered per {}", step(series.answered_step_s));
    let ok = &series.answered;
    timeline_chart::draw_columns(
        &mut canvas,
        ok,
        series.answered_step_s,
        timeline_chart::tallest(ok),
        answered,
        &x,
        &name,
    );
    let most = series.lost.iter().map(|(_, columns)| timeline_chart::tallest(columns)).max().unwrap_or(0);
    for ((consumer, columns), plot) in series.lost.iter().zip(&areas[2..]) {
        let towards = consumer.as_ref().map_or_else(String::new, |name| format!(" through {name}"));
        let name = format!("lost per {}{towards}", step(series.bin_s));
        timeline_chart::draw_columns(&mut canvas, columns, series.bin_s, most, *plot, &x, &name);
    }
    placed.names(&mut canvas, pods.top);
    let axis = timeline_chart::origin(analysis);
    for (i, plot) in areas.iter().enumerate() {
        if i > 0 {
            placed.lines(&mut canvas, *plot);
        }
        frame::x_axis(&mut canvas, *plot, &ticks, &x, (i + 1 == areas.len()).then_some(axis.as_str()));
    }
    let bottom = frame::pixels(areas[areas.len() - 1].bottom + 110.0);
    let alt = format!("Pods over the run by phase, with the lost requests that each may explain. {title}.");
    Chart::of("rollout.png", title, alt, canvas, &words::provenance(result), bottom).map(Some)
}

fn step(step_s: f64) -> String {
    match step_s {
        s if (s - 1.0).abs() < 1e-9 => "second".to_owned(),
        s if s < 1.0 => format!("{:.0} ms", s * 1e3),
        s => format!("{s:.0} s"),
    }
}

/// Summarizes the events and the losses.
fn title(analysis: &Analysis, series: &RolloutSeries) -> String {
    let result = &analysis.result;
    let lead = words::lost(result);
    let mut events = Vec::new();
    let ended = result.terminations.len();
    if ended > 0 {
        events.push(format!("{} ended", counted(len(ended), "pod")));
    }
    if series.began > 0 {
        events.push(format!("{} started", counted(len(series.began), "pod")));
    }
    if series.restarted > 0 {
        events.push(format!("{} restarted", counted(len(series.restarted), "container")));
    }
    if series.withdrawn > 0 {
        let verb = either(len(series.withdrawn), "left its Services", "left their Services");
        events.push(format!("{} {verb}", counted(len(series.withdrawn), "pod")));
    }
    format!("{lead} as {}", format::list(&events))
}

/// Returns the causes of the dropped requests, the remedy, and a description of the chart, on separate lines.
fn subtitle(series: &RolloutSeries, result: &RunResult) -> String {
    let mut lines = vec![frame::answer(result)];
    let bars = match series.together_s {
        None if result.terminations.is_empty() || result.requests.lost() == 0 => {
            "Each row is a pod".to_owned()
        }
        None => "Each row is a pod; above its bar are the lost requests that its termination may explain"
            .to_owned(),
        Some(within_s) if within_s.is_finite() && within_s < f64::MAX => format!(
            "Each line is a pod. Pods that began and ended within {} of each other share a row; above it are the \
             lost requests that their terminations may explain",
            seconds_unit(within_s)
        ),
        Some(_) => "Each line is a pod; all pods of the same kind share a row".to_owned(),
    };
    lines.push(match series.quiet {
        0 => bars,
        n => format!("{bars} · {} without events not shown", counted(len(n), "pod")),
    });
    match &series.consumers[..] {
        [] => {}
        [only] => lines.push(format!("Strip below a bar: how long {only} kept routing to the pod")),
        several => {
            let named: Vec<&String> = several.iter().take(STRIPS).collect();
            let names = format::list(&named);
            lines.push(format!(
                "Strips below a bar, from top to bottom: how long {names} kept routing to the pod"
            ));
        }
    }
    lines.retain(|line| !line.is_empty());
    lines.join("\n")
}

fn strips(series: &RolloutSeries) -> usize {
    series.consumers.len().min(STRIPS)
}

fn height(row: &RolloutRow, strips: usize) -> f64 {
    LOSSES + bars_height(row) + strips as f64 * STRIP + GAP
}

fn bars_height(row: &RolloutRow) -> f64 {
    match row.lines.len() {
        0 => 4.0,
        1 => BAR,
        n => (n as f64 * THIN).max(BAR),
    }
}

fn look(phase: DrawnPhase) -> (RGBColor, FillPattern) {
    match phase {
        DrawnPhase::Starting => (palette::STARTING, FillPattern::Dotted),
        DrawnPhase::Ready => (palette::READY, FillPattern::Plain),
        DrawnPhase::Sleeping => (palette::SLEEPING, FillPattern::Plain),
        DrawnPhase::Stopping => (palette::STOPPING, FillPattern::Plain),
        DrawnPhase::Ending => (palette::STOPPING, FillPattern::Rising),
        DrawnPhase::Refusing => (palette::REFUSING, FillPattern::Plain),
        DrawnPhase::Gone => (palette::AXIS, FillPattern::Plain),
        DrawnPhase::Down => (palette::REFUSING, FillPattern::Rising),
        DrawnPhase::Out => (palette::READY, FillPattern::Upright),
    }
}

const fn name(phase: DrawnPhase) -> &'static str {
    match phase {
        DrawnPhase::Starting => "starting",
        DrawnPhase::Ready => "ready",
        DrawnPhase::Sleeping => "ending: preStop sleep",
        DrawnPhase::Stopping => "ending: listener open",
        DrawnPhase::Ending => "ending: listener not observed",
        DrawnPhase::Refusing => "listener closed",
        DrawnPhase::Gone => "exited",
        DrawnPhase::Down => "container down",
        DrawnPhase::Out => "out of its Services",
    }
}

fn from_to(from_s: f64, to_s: f64) -> String {
    format!("{} to {} s", plain(from_s), plain(to_s))
}

fn in_rules(window: &rollout_series::InRules, consumer: &str) -> String {
    let certain = from_to(window.from_s, window.certain_s);
    let possible = match window.possible_s {
        Some(possible_s) => format!("possibly until {} s", plain(possible_s)),
        None => "then for an unknown time".to_owned(),
    };
    format!("in the rules of {consumer}: {certain}, {possible}")
}

fn legend(series: &RolloutSeries) -> Vec<LegendEntry> {
    let lines = || series.rows.iter().flat_map(|row| &row.lines);
    let phases: BTreeSet<DrawnPhase> = lines().flat_map(|line| &line.phases).map(|span| span.phase).collect();
    let mut keys: Vec<LegendEntry> = phases
        .into_iter()
        .map(|phase| {
            let (color, pattern) = look(phase);
            let look = match phase {
                DrawnPhase::Gone => LegendSymbol::Line(color, 2),
                _ => LegendSymbol::Area(color, pattern),
            };
            LegendEntry::new(name(phase), look)
        })
        .collect();
    let windows = || series.rows.iter().flat_map(|row| &row.windows).flatten();
    let is_certain = windows().any(|w| w.certain_s > w.from_s);
    let is_possible = windows().any(|w| w.possible_s.is_some_and(|s| s > w.certain_s));
    let is_open = windows().any(|w| w.possible_s.is_none());
    keys.extend(frame::applying([
        (is_certain, "in the rules", LegendSymbol::plain(palette::IN_RULES)),
        (is_possible, "possibly in the rules", LegendSymbol::Striped(palette::IN_RULES)),
        (is_open, "in the rules for an unknown time", LegendSymbol::Dots(palette::IN_RULES)),
    ]));
    let columns = series.lost.iter().flat_map(|(_, columns)| columns);
    let outcomes: BTreeSet<Outcome> = columns.flat_map(|(_, stack)| stack.keys().copied()).collect();
    keys.extend(outcomes.into_iter().map(LegendEntry::outcome));
    let kinds = series.rows.iter().flat_map(|row| row.losses.values()).flat_map(BTreeMap::keys);
    let is_shared = kinds.map(|(relation, _)| *relation).any(|relation| relation == LossRelation::Shared);
    let shared = "outlined: lost by pods in this row or another";
    keys.extend(frame::applying([(is_shared, shared, LegendSymbol::Outlined(palette::MUTED))]));
    keys
}

fn draw_rows(canvas: &mut Canvas, series: &RolloutSeries, area: Rect, x: &Axis) {
    let name_style = TextStyle { size: 15.0, ..anchored(SMALL, Anchor::End) };
    let lost_style = TextStyle { size: 15.0, ..SMALL };
    canvas.text(RIGHT + 12.0, area.top - 6.0, "lost", &bold(lost_style));
    let mut top = area.top;
    for row in &series.rows {
        let bars = Rect { top: top + LOSSES, bottom: top + LOSSES + bars_height(row), ..area };
        let middle = f64::midpoint(bars.top, bars.bottom) + 5.0;
        let name = canvas.fit(&row.name, &name_style, LEFT - 50.0);
        canvas.text(LEFT - 12.0, middle, &name, &name_style);
        let each = (bars.bottom - bars.top) / (row.lines.len().max(1)) as f64;
        for (i, line) in row.lines.iter().enumerate() {
            let top = bars.top + i as f64 * each;
            let gap = if row.lines.len() > 1 { 0.5 } else { 0.0 };
            draw_line(canvas, line, Rect { top, bottom: top + each - gap, ..bars }, x);
        }
        for (i, (window, consumer)) in row.windows.iter().zip(&series.consumers).take(STRIPS).enumerate() {
            let Some(window) = window else { continue };
            let top = bars.bottom + i as f64 * STRIP + 0.5;
            let strip = Rect { top, bottom: top + STRIP - 1.0, ..bars };
            draw_window(canvas, window, strip, x);
            let left = x.px(window.from_s);
            let right = x.px(window.possible_s.unwrap_or(window.certain_s)).max(left + STRIP);
            let told = format!("{}, {}", row.name, in_rules(window, consumer));
            canvas.tell(Rect { left, right, ..strip }, told);
        }
        draw_losses(canvas, series, row, Rect { top, bottom: bars.top, ..area }, x);
        let lost = match row.lost.at_most {
            0 => colored(lost_style, palette::MUTED),
            _ => bold(lost_style),
        };
        let text = match (row.lost.at_least, row.lost.at_most) {
            _ if !row.has_losses => String::new(),
            (least, most) if least == most => count(most),
            (least, most) => format!("{} to {}", count(least), count(most)),
        };
        canvas.text(RIGHT + 12.0, middle, &text, &lost);
        top += height(row, strips(series));
    }
}

fn draw_line(canvas: &mut Canvas, line: &PodLine, bar: Rect, x: &Axis) {
    for span in &line.phases {
        let (left, right) = (x.px(span.from_s), x.px(span.to_s));
        let (color, pattern) = look(span.phase);
        // A bar is never too thin to be visible.
        let right = if span.phase.is_end() { right.max(left + 1.5) } else { right };
        let middle = f64::midpoint(bar.top, bar.bottom);
        let bar = match span.phase {
            DrawnPhase::Gone => Rect { top: middle - 0.75, bottom: middle + 0.75, ..bar },
            _ => bar,
        };
        if right > left {
            canvas.fill(Rect { left, right, ..bar }, color, pattern);
            let told = format!("{}: {}, {}", line.pod, name(span.phase), from_to(span.from_s, span.to_s));
            canvas.tell(Rect { left, right, ..bar }, told);
        }
    }
}

fn draw_window(canvas: &mut Canvas, window: &rollout_series::InRules, strip: Rect, x: &Axis) {
    let [from, certain] = [window.from_s, window.certain_s].map(|s| x.px(s));
    canvas.fill(Rect { left: from, right: certain, ..strip }, palette::IN_RULES, FillPattern::Plain);
    match window.possible_s {
        Some(possible_s) => {
            let right = x.px(possible_s);
            canvas.shade(Rect { left: certain, right, ..strip }, palette::IN_RULES, true);
        }
        None => {
            let y = f64::midpoint(strip.top, strip.bottom);
            let right = (certain + UNKNOWN).min(strip.right);
            canvas.rule((certain + 3.0, y), (right, y), 2.5, palette::IN_RULES, Dash::Dotted);
        }
    }
}

fn draw_losses(canvas: &mut Canvas, series: &RolloutSeries, row: &RolloutRow, lane: Rect, x: &Axis) {
    for (bin, kinds) in &row.losses {
        let from_s = *bin as f64 * series.row_bin_s;
        let left = x.px(from_s);
        let right = x.px(from_s + series.row_bin_s).max(left + 3.0) - 0.5;
        let mut bottom = lane.bottom - 1.0;
        let full = lane.bottom - lane.top - 2.0;
        let all: u64 = kinds.values().sum();
        let tall = (full * (all as f64 / series.most.max(1) as f64).sqrt()).max(4.0);
        let mut told = BTreeMap::new();
        for (&(whose, outcome), &n) in kinds {
            *told.entry(outcome).or_default() += n;
            let (color, pattern) = palette::outcome(outcome);
            let top = (bottom - tall * n as f64 / all as f64).max(lane.top);
            let rect = Rect { left, right, top, bottom };
            match whose {
                LossRelation::Own => canvas.fill(rect, color, pattern),
                LossRelation::Shared => {
                    canvas.fill(rect, palette::WHITE, FillPattern::Plain);
                    canvas.outline(rect, color);
                }
            }
            bottom = top;
        }
        let shared = if kinds.keys().any(|kind| kind.0 == LossRelation::Shared) {
            ", lost by pods in this row or another"
        } else {
            ""
        };
        let when = timeline_chart::span(from_s, series.row_bin_s);
        let told = format!("{}, {when}: {}{shared}", row.name, timeline_chart::counts(&told));
        canvas.tell(Rect { left, right, ..lane }, told);
    }
}

#[cfg(test)]
mod tests;
