//! Charts the two sides of a comparison: latencies in one plot, and windows and dropped requests over time side by
//! side.

use std::collections::BTreeSet;

use super::axis::Axis;
use super::frame::{self, LEFT, LegendEntry, LegendSymbol, RIGHT, SMALL, WIDTH, bold};
use super::latency_chart::{self, LatencyTail};
use super::timeline_chart::{self, StackedColumn};
use super::{Chart, DrawError, palette};
use crate::format::{count, counted, len, list, plain, seconds_unit};
use rolldrop_canvas::{Canvas, Dash, FillPattern, RGBColor, Rect};
use rolldrop_judge::judgements::comparison::{ComparisonSide, SideChart};
use rolldrop_record::Outcome;

/// Heights of the latency plot with its labels, of one consumer's windows, and of the dropped requests.
const LATENCIES: f64 = 440.0;
const WINDOWS: f64 = 150.0;
const DROPPED: f64 = 230.0;
/// Height of the space below a plot for the scale and its title.
const BELOW: f64 = 60.0;
/// Height of the space above a plot for its name.
const ABOVE: f64 = 34.0;
/// Heights of the header and the footer.
const HEAD: f64 = 260.0;
const FOOT: f64 = 50.0;
/// Distance between the two sides.
const BETWEEN: f64 = 80.0;

fn columns(side: &SideChart) -> Vec<StackedColumn> {
    side.dropped.iter().enumerate().map(|(i, stack)| (i as f64 * side.step_s, stack.clone())).collect()
}

/// Draws a comparison of two sides, the baseline first, with the conclusion as its title.
pub(crate) fn draw(
    [before, now]: [&ComparisonSide; 2],
    title: String,
    baseline: &SideChart,
    candidate: &SideChart,
) -> Result<Chart, DrawError> {
    let subtitle = format!("{} (now) compared with {} (baseline)", list(&now.runs), list(&before.runs));
    let tail = |name, side: &SideChart| {
        let slowest_ms = side.latency.iter().filter(|bucket| bucket.count > 0).map(|bucket| bucket.to_ms);
        LatencyTail::of(name, &side.latency, slowest_ms.fold(0.0, f64::max), &side.marks_ms)
    };
    let tails =
        [("baseline", baseline, palette::STEADY_DARK), ("now", candidate, palette::DISRUPTED)].into_iter();
    let tails: Vec<(LatencyTail, RGBColor)> =
        tails.filter_map(|(name, side, color)| Some((tail(name, side)?, color))).collect();
    let mut legend: Vec<LegendEntry> = tails.iter().map(|(tail, color)| tail.legend(*color)).collect();
    let outcomes: BTreeSet<Outcome> = [baseline, candidate]
        .iter()
        .flat_map(|side| &side.dropped)
        .flat_map(|stack| stack.keys().copied())
        .collect();
    legend.extend(outcomes.into_iter().map(LegendEntry::outcome));
    let consumers: BTreeSet<&String> =
        [baseline, candidate].iter().flat_map(|side| side.windows_s.keys()).collect();
    let sides = [("baseline", baseline), ("now", candidate)];
    let is_open = sides.iter().any(|(_, side)| side.windows_s.values().flatten().any(Option::is_none));
    legend.extend(frame::applying([
        (!consumers.is_empty(), "upper bound of a window", LegendSymbol::plain(palette::IN_RULES)),
        (is_open, "a window without an upper bound", LegendSymbol::Dots(palette::IN_RULES)),
    ]));
    let windows = consumers.len() as f64 * (ABOVE + WINDOWS) + if consumers.is_empty() { 0.0 } else { BELOW };
    let height = HEAD + LATENCIES + windows + ABOVE + DROPPED + BELOW + FOOT;
    let mut canvas = Canvas::new(WIDTH, frame::pixels(height))?;
    let top = frame::head(&mut canvas, None, &title, &subtitle, &legend);
    let full = Rect { left: LEFT, top, right: RIGHT, bottom: top + LATENCIES - BELOW };

    latency_chart::draw_tails(&mut canvas, &tails, "latency", full);

    let mut below = Rect { top: full.bottom + BELOW, bottom: full.bottom + BELOW, ..full };
    for (i, consumer) in consumers.iter().enumerate() {
        below = Rect { top: below.bottom + ABOVE, bottom: below.bottom + ABOVE + WINDOWS, ..below };
        draw_windows(&mut canvas, sides, consumer, below, i + 1 == consumers.len());
    }
    let top = full.bottom + BELOW + windows + ABOVE;
    let bottom = top + DROPPED;
    draw_dropped(&mut canvas, sides, Rect { top, bottom, ..full });
    let height = frame::pixels(bottom + BELOW + FOOT);
    let alt =
        format!("Latencies of both sides, and their windows and dropped requests side by side. {title}");
    Chart::of("comparison.png", title, alt, canvas, concat!("rolldrop ", env!("CARGO_PKG_VERSION")), height)
}

/// Both sides with their names, the baseline first.
type ChartSides<'a> = [(&'static str, &'a SideChart); 2];

/// Returns the left and right halves of an area.
fn halves(area: Rect) -> [Rect; 2] {
    let middle = f64::midpoint(area.left, area.right);
    [Rect { right: middle - BETWEEN / 2.0, ..area }, Rect { left: middle + BETWEEN / 2.0, ..area }]
}

/// Summarizes the windows of a side in words.
fn windows_name(name: &str, consumer: &str, windows: &[Option<f64>]) -> String {
    let longest = windows.iter().copied().collect::<Option<Vec<f64>>>();
    let longest = match longest.map(|all| all.into_iter().fold(0.0, f64::max)) {
        _ if windows.is_empty() => "no window was measured".to_owned(),
        Some(longest) => {
            format!("{}, at most {}", counted(len(windows.len()), "window"), seconds_unit(longest))
        }
        None => {
            let unbounded = windows.iter().filter(|window| window.is_none()).count();
            let all = counted(len(windows.len()), "window");
            format!("{all}, {unbounded} of them without an upper bound")
        }
    };
    format!("{name}: {longest}, {consumer}")
}

/// Draws one consumer's windows on both sides, shortest first.
fn draw_windows(canvas: &mut Canvas, sides: ChartSides<'_>, consumer: &String, area: Rect, is_last: bool) {
    let of = |side: &SideChart| side.windows_s.get(consumer).cloned().unwrap_or_default();
    let bounds = sides.iter().flat_map(|(_, side)| side.windows_s.values()).flatten().flatten();
    let longest = bounds.copied().filter(|s| s.is_finite()).fold(0.0, f64::max);
    for (plot, (name, side)) in halves(area).into_iter().zip(sides) {
        let windows = of(side);
        let x = Axis::linear(0.0, if longest > 0.0 { longest * 1.05 } else { 1.0 }, plot.left, plot.right);
        let ticks = x.ticks(7);
        frame::x_grid(canvas, plot, &ticks, &x);
        let name = canvas.fit(&windows_name(name, consumer, &windows), &bold(SMALL), plot.width());
        canvas.text(plot.left, plot.top - 9.0, &name, &bold(SMALL));
        let each = (plot.bottom - plot.top) / windows.len().max(1) as f64;
        let thick = (each * 0.8).clamp(1.0, 14.0);
        for (i, window) in windows.iter().enumerate() {
            let middle = plot.top + (i as f64 + 0.5) * each;
            match window {
                Some(upper_s) => {
                    let (top, bottom) = (middle - thick / 2.0, middle + thick / 2.0);
                    let right = x.px(*upper_s).max(plot.left + 2.0);
                    canvas.fill(Rect { top, bottom, right, ..plot }, palette::IN_RULES, FillPattern::Plain);
                }
                None => {
                    let (from, to) = ((plot.left, middle), (plot.right, middle));
                    canvas.rule(from, to, thick.min(3.0), palette::IN_RULES, Dash::Dotted);
                }
            }
        }
        let title = "seconds from the deletion to the last new connection, at most";
        frame::x_axis(canvas, plot, &ticks, &x, is_last.then_some(title));
    }
}

/// Draws the dropped requests of both sides over time, with a common scale.
fn draw_dropped(canvas: &mut Canvas, sides: ChartSides<'_>, area: Rect) {
    let stacks = sides.map(|(_, side)| columns(side));
    let most = stacks.iter().map(|columns| timeline_chart::tallest(columns)).max().unwrap_or(0);
    let end_s =
        sides.map(|(_, side)| side.dropped.len() as f64 * side.step_s).into_iter().fold(0.0, f64::max);
    for ((plot, (name, side)), columns) in halves(area).into_iter().zip(sides).zip(&stacks) {
        let x = Axis::linear(0.0, end_s, plot.left, plot.right);
        let ticks = x.ticks(7);
        frame::x_grid(canvas, plot, &ticks, &x);
        let all: u64 = columns.iter().flat_map(|(_, stack)| stack.values()).sum();
        let name = format!("{name}: {} dropped, per {} s", count(all), plain(side.step_s));
        timeline_chart::draw_columns(canvas, columns, side.step_s, most, plot, &x, &name);
        let title = "seconds since the counted part of the load began";
        frame::x_axis(canvas, plot, &ticks, &x, Some(title));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_heading_states_longest_window() {
        let name = |windows: &[Option<f64>]| windows_name("now", "Service web", windows);
        assert_eq!(name(&[]), "now: no window was measured, Service web");
        assert_eq!(name(&[Some(0.25), Some(1.5)]), "now: 2 windows, at most 1.500 s, Service web");
        assert_eq!(
            name(&[Some(0.25), None]),
            "now: 2 windows, 1 of them without an upper bound, Service web"
        );
    }
}
