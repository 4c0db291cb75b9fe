//! Charts how long each consumer kept routing to pods that ended: each window with its bounds, the configured preStop
//! sleep, and the sleep that the run supports.

use std::collections::{BTreeMap, BTreeSet};

use super::axis::{Axis, right_end};
use super::frame::{
    self, LANE, LEFT, LegendEntry, LegendSymbol, RIGHT, SMALL, WIDTH, anchored, bold, colored,
};
use super::{Chart, DrawError, palette};
use crate::format::{count, counted, len, percent, percent_down, seconds, seconds_unit};
use crate::words;
use rolldrop_canvas::{Anchor, Canvas, Dash, FillPattern, Rect};
use rolldrop_explain::Analysis;
use rolldrop_explain::model::{Mode, Recommendation, RunResult, Window};

/// Maximum height of one window, and of all windows in a panel together, in pixels.
const EACH: f64 = 14.0;
const PANEL: f64 = 260.0;
/// Heights of the space above a panel, for its name, and below it.
const ABOVE: f64 = 50.0;
const BELOW: f64 = 26.0;

/// Data that the chart plots.
#[derive(Debug, PartialEq)]
struct WindowSeries {
    panels: Vec<Panel>,
    /// Number of terminations whose windows the configured sleep certainly outlasts, and number of all terminations.
    set: Option<(usize, usize)>,
}

/// Windows of one mode and one consumer.
#[derive(Debug, PartialEq)]
struct Panel {
    consumer: String,
    mode: Mode,
    /// Lower and upper bounds of the windows, shortest first. Windows without an upper bound come last.
    windows: Vec<(f64, Option<f64>)>,
    /// Configured sleeps, in seconds.
    set: BTreeSet<u64>,
    /// Sleep that the run supports, and true if the run proves that it suffices.
    advised: Option<(u64, bool)>,
    /// Description of the share of future windows that the observed windows cover.
    coverage: String,
}

fn series(result: &RunResult) -> WindowSeries {
    let mut panels: BTreeMap<(usize, Mode), Panel> = BTreeMap::new();
    for t in &result.terminations {
        for (consumer, w) in t.windows.iter().enumerate().filter(|(_, w)| w.is_one()) {
            let panel = panels.entry((consumer, t.mode)).or_insert_with(|| {
                let rec = result.recommendation.iter().find(|rec| rec.mode == t.mode);
                Panel {
                    consumer: w.consumer.clone(),
                    mode: t.mode,
                    windows: Vec::new(),
                    set: BTreeSet::new(),
                    advised: rec.and_then(|r| Some((r.advised_seconds()?, r.pre_stop_seconds.is_some()))),
                    coverage: rec.map(coverage).unwrap_or_default(),
                }
            });
            let finite = |bound: Option<f64>| bound.filter(|s| s.is_finite());
            panel.windows.push((finite(w.lower_s).unwrap_or(0.0).max(0.0), finite(w.upper_s)));
            panel.set.extend(t.pre_stop_seconds);
        }
    }
    let mut panels: Vec<Panel> = panels.into_values().collect();
    for panel in &mut panels {
        let reach = |w: &(f64, Option<f64>)| (w.1.unwrap_or(f64::INFINITY), w.0);
        panel.windows.sort_by(|a, b| {
            let (a, b) = (reach(a), reach(b));
            a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1))
        });
    }
    WindowSeries { panels, set: covered(result) }
}

/// Returns the number of deleted pods whose windows the configured sleep certainly covers, and the number of all that have
/// one; `None` if any termination's setting is unknown.
fn covered(result: &RunResult) -> Option<(usize, usize)> {
    let with_window =
        result.terminations.iter().filter(|t| t.was_deleted() && t.windows.iter().any(Window::is_one));
    let covered: Option<Vec<bool>> = with_window.map(|t| t.is_covered_by(t.pre_stop_seconds?)).collect();
    covered.map(|all| (all.iter().filter(|is_covered| **is_covered).count(), all.len()))
}

fn coverage(rec: &Recommendation) -> String {
    let ends = match rec.units {
        units if units < rec.terminations => {
            format!("{} that ended separately", counted(len(units), "window"))
        }
        _ => counted(len(rec.terminations), "termination"),
    };
    format!(
        "the longest of {ends} covers at least {} of future ones at {} confidence",
        percent_down(rec.coverage),
        percent(rec.confidence)
    )
}

fn title(series: &WindowSeries) -> String {
    let all = || series.panels.iter().flat_map(|panel| &panel.windows);
    let lower = all().map(|w| w.0).fold(0.0, f64::max);
    let upper =
        all().map(|w| w.1).collect::<Option<Vec<f64>>>().map(|all| all.into_iter().fold(0.0, f64::max));
    let which = match all().count() {
        1 => "The window".to_owned(),
        n => format!("The longest of {} windows", count(len(n))),
    };
    let longest = match upper {
        Some(upper) if lower > 0.0 => format!("{which} lasted {} to {}", seconds(lower), seconds_unit(upper)),
        Some(upper) => format!("{which} lasted at most {}", seconds_unit(upper)),
        None => format!("{which} lasted at least {}", seconds_unit(lower)),
    };
    let set = series.panels.iter().flat_map(|panel| &panel.set).max();
    match (series.set, set) {
        (Some(_), Some(0)) => format!("{longest}; no preStop sleep is set"),
        (Some((is_covered, all)), Some(set)) => {
            format!(
                "{longest}; the current sleep of {set} s outlasts the windows of {is_covered} of {all} pods"
            )
        }
        _ => longest,
    }
}

/// Draws the chart; returns `None` if there are no windows.
pub(super) fn draw(analysis: &Analysis) -> Result<Option<Chart>, DrawError> {
    let result = &analysis.result;
    let series = series(result);
    if series.panels.is_empty() {
        return Ok(None);
    }
    let title = title(&series);
    let heights: f64 = series.panels.iter().map(|panel| height(panel) + ABOVE + BELOW).sum();
    let mut canvas = Canvas::new(WIDTH, frame::pixels((330.0 + heights).max(500.0)))?;
    let subtitle = "Each line is the endpoint-propagation window of one termination: how long new connections were \
                    still routed to the pod after its deletion took effect";
    let head = words::warning(result);
    let mut top = frame::head(&mut canvas, head, &title, subtitle, &legend(&series)) + 10.0;
    let sleeps: Vec<f64> = series.panels.iter().flat_map(sleeps).map(|(s, ..)| s as f64).collect();
    let windows = series.panels.iter().flat_map(|panel| &panel.windows);
    let end = windows.map(|(lower, upper)| upper.unwrap_or(*lower)).fold(0.05, f64::max);
    let (to_s, left_out) = right_end(end, &sleeps);
    let x = Axis::broken(0.0, left_out, to_s, LEFT, RIGHT);
    for (i, panel) in series.panels.iter().enumerate() {
        let plot =
            Rect { left: LEFT, top: top + ABOVE, right: RIGHT, bottom: top + ABOVE + self::height(panel) };
        draw_panel(&mut canvas, panel, plot, &x, i + 1 == series.panels.len());
        top = plot.bottom + BELOW;
    }
    let alt = format!("The endpoint-propagation window of each termination, by consumer. {title}.");
    Chart::of("windows.png", title, alt, canvas, &words::provenance(result), frame::pixels(top + 80.0))
        .map(Some)
}

fn height(panel: &Panel) -> f64 {
    (panel.windows.len() as f64 * EACH).clamp(48.0, PANEL)
}

/// Returns the sleeps to mark: seconds, label, and line style.
fn sleeps(panel: &Panel) -> Vec<(u64, String, Dash)> {
    let mut out: Vec<(u64, String, Dash)> =
        panel.set.iter().filter(|s| **s > 0).map(|s| (*s, format!("set: {s} s"), Dash::Solid)).collect();
    if let Some((s, is_proven)) = panel.advised {
        let what = if is_proven { "recommended" } else { "suggested, not proven" };
        match out.iter_mut().find(|sleep| sleep.0 == s) {
            Some(sleep) => sleep.1 = format!("set and {what}: {s} s"),
            None => out.push((s, format!("{what}: {s} s"), Dash::Dashed)),
        }
    }
    out.sort_by_key(|sleep| sleep.0);
    out
}

fn legend(series: &WindowSeries) -> Vec<LegendEntry> {
    let windows = || series.panels.iter().flat_map(|panel| &panel.windows);
    let is_certain = windows().any(|(lower, _)| *lower > 0.0);
    let is_possible = windows().any(|(lower, upper)| upper.is_some_and(|upper| upper > *lower));
    let is_open = windows().any(|(_, upper)| upper.is_none());
    let sleeps: Vec<Dash> = series.panels.iter().flat_map(sleeps).map(|sleep| sleep.2).collect();
    let is_set = sleeps.iter().any(|dash| matches!(dash, Dash::Solid));
    let is_advised = sleeps.iter().any(|dash| matches!(dash, Dash::Dashed));
    frame::applying([
        (is_certain, "certain: new connections still arrived", LegendSymbol::plain(palette::IN_RULES)),
        (is_possible, "possible: up to the upper bound", LegendSymbol::plain(palette::WINDOW)),
        (is_open, "no upper bound", LegendSymbol::Dots(palette::IN_RULES)),
        (is_set, "current preStop sleep", LegendSymbol::Thick),
        (is_advised, "preStop sleep that the run supports", LegendSymbol::Mark(Dash::Dashed)),
    ])
}

fn draw_panel(canvas: &mut Canvas, panel: &Panel, plot: Rect, x: &Axis, is_last: bool) {
    let n = panel.windows.len();
    let name = format!("{}, {}: {}", panel.consumer, words::mode(panel.mode), counted(len(n), "window"));
    canvas.text(LEFT, plot.top - LANE - 12.0, &name, &bold(SMALL));
    let after = LEFT + canvas.text_width(&name, &bold(SMALL)) + 14.0;
    let muted = colored(SMALL, palette::MUTED);
    if after + canvas.text_width(&panel.coverage, &muted) < f64::from(WIDTH) - 10.0 {
        canvas.text(after, plot.top - LANE - 12.0, &panel.coverage, &muted);
    }
    let ticks = x.ticks(12);
    frame::x_grid(canvas, plot, &ticks, x);
    let each = (plot.bottom - plot.top) / n as f64;
    for (i, (lower, upper)) in panel.windows.iter().enumerate() {
        // The shortest window is at the bottom.
        let bottom = plot.bottom - i as f64 * each;
        let gap = (each * 0.2).min(3.0);
        let line = Rect { left: plot.left, top: bottom - each + gap, right: plot.right, bottom };
        if let Some(upper) = upper {
            canvas.fill(
                Rect { left: x.px(0.0), right: x.px(*upper), ..line },
                palette::WINDOW,
                FillPattern::Plain,
            );
        } else {
            let y = f64::midpoint(line.top, line.bottom);
            let width = (line.bottom - line.top).min(3.0);
            canvas.rule((x.px(*lower), y), (plot.right, y), width, palette::IN_RULES, Dash::Dotted);
        }
        let right = x.px(*lower);
        canvas.fill(Rect { left: x.px(0.0), right, ..line }, palette::IN_RULES, FillPattern::Plain);
        let told = words::bounds(*lower, *upper);
        let right = upper.map_or(plot.right, |upper| x.px(upper).max(right));
        canvas.tell(Rect { left: x.px(0.0), right, ..line }, format!("{}: window {told}", panel.consumer));
    }
    canvas.rule((plot.left, plot.top), (plot.left, plot.bottom), 1.5, palette::AXIS, Dash::Solid);
    if n > 1 {
        let style = anchored(muted, Anchor::End);
        canvas.text(LEFT - 10.0, plot.top + 12.0, "longest", &style);
        canvas.text(LEFT - 10.0, plot.bottom - 2.0, "shortest", &style);
    }
    let sleeps = sleeps(panel);
    let widths: Vec<(f64, f64)> = sleeps
        .iter()
        .map(|(s, name, _)| (x.px(*s as f64), canvas.text_width(name, &bold(SMALL)) + 14.0))
        .collect();
    for ((_, name, dash), (px, width)) in sleeps.iter().zip(&widths) {
        let thick = if matches!(dash, Dash::Solid) { 3.0 } else { 2.0 };
        canvas.rule((*px, plot.top - LANE), (*px, plot.bottom), thick, palette::INK, *dash);
        let left = (px + 7.0).min(f64::from(WIDTH) - width);
        canvas.text(left, plot.top - 6.0, name, &bold(SMALL));
    }
    let title = is_last.then_some("seconds since the deletion took effect");
    frame::x_axis(canvas, plot, &ticks, x, title);
    frame::break_marks(canvas, plot, x)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    #[test]
    fn chart_matches_windows_and_sleep() {
        let mut analysis = samples::naive_exit();
        let result = &mut analysis.result;
        result.terminations.iter_mut().for_each(|t| t.pre_stop_seconds = Some(0));
        let series = series(result);
        let [panel] = &series.panels[..] else { panic!("{series:?}") };
        let summary = &result.windows_s[0];
        assert_eq!(
            (&panel.consumer, panel.mode, panel.windows.len()),
            (&summary.consumer, summary.mode, summary.n)
        );
        assert_eq!(panel.windows.last().unwrap().1, summary.max);
        let lower = panel.windows.iter().map(|w| w.0);
        assert_eq!(
            (lower.clone().fold(f64::MAX, f64::min), lower.fold(0.0, f64::max)),
            summary.lower.unwrap()
        );
        assert_eq!(panel.advised, Some((result.recommendation[0].suggested_seconds.unwrap(), false)));
        assert!(
            panel.coverage.contains("covers at least 36.8 % of future ones at 95 % confidence"),
            "{}",
            panel.coverage
        );
        assert_eq!(
            title(&series),
            "The longest of 3 windows lasted 0.141 to 0.183 s; no preStop sleep is set"
        );
        let names: Vec<String> = sleeps(panel).into_iter().map(|sleep| sleep.1).collect();
        assert_eq!(names, ["suggested, not proven: 1 s"]);
        draw(&analysis).unwrap().unwrap();
    }

    #[test]
    fn title_compares_sleep_with_windows() {
        let mut analysis = samples::prestop_sleep();
        analysis.result.terminations.iter_mut().for_each(|t| t.pre_stop_seconds = Some(3));
        let said = title(&series(&analysis.result));
        assert!(said.ends_with("; the current sleep of 3 s outlasts the windows of 3 of 3 pods"), "{said}");
        // A hook of another kind conceals the sleep.
        analysis.result.terminations[0].pre_stop_seconds = None;
        let said = title(&series(&analysis.result));
        assert!(!said.contains("sleep"), "{said}");
    }

    #[test]
    fn unbounded_window_sorts_last_with_label() {
        let analysis = samples::partial();
        let series = series(&analysis.result);
        assert_eq!(series.panels[0].windows, [(0.2, None)]);
        assert!(title(&series).starts_with("The window lasted at least 0.200 s"));
        assert!(legend(&series).iter().any(|key| key.label() == "no upper bound"));
        let mut unseen = analysis.result.clone();
        let window = &mut unseen.terminations[0].windows[0];
        (window.lower_s, window.upper_s) = (None, Some(2.2));
        let series = self::series(&unseen);
        assert!(title(&series).starts_with("The window lasted at most 2.200 s"), "{}", title(&series));
        assert!(legend(&series).iter().all(|key| !key.label().starts_with("certain")));
        draw(&analysis).unwrap().unwrap();
    }

    #[test]
    fn windows_chart_requires_window() {
        assert!(draw(&samples::quiet()).unwrap().is_none());
    }
}
