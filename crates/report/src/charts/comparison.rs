//! Two sides: their latencies in one plot, their dropped requests over time in one each.

use std::collections::BTreeSet;

use super::axis::Axis;
use super::canvas::{Canvas, Dash, Pattern, Rect};
use super::frame::{self, Key, LEFT, Look, RIGHT, WIDTH};
use super::latency::{self, Mark};
use super::timeline::{self, Column};
use super::{Chart, ChartError, palette};
use crate::comparison::headline;
use crate::format::{counted, list, millis};
use rolldrop_analysis::compare::model::{Comparison, SideChart};
use rolldrop_analysis::model::LatencyHistograms;
use rolldrop_record::Outcome;

const HEIGHT: u32 = 1150;
/// Room for the scale and the title below a plot.
const BELOW: f64 = 60.0;
/// Room for a plot's name above it.
const ABOVE: f64 = 34.0;

fn columns(side: &SideChart) -> Vec<Column> {
    side.dropped.iter().enumerate().map(|(i, stack)| (i as f64 * side.step_s, stack.clone())).collect()
}

pub(crate) fn draw(
    comparison: &Comparison,
    baseline: &SideChart,
    candidate: &SideChart,
) -> Result<Chart, ChartError> {
    let title = headline(comparison);
    let subtitle = format!(
        "{} (now) against {} (baseline)",
        list(&comparison.candidate.runs),
        list(&comparison.baseline.runs)
    );
    let answered = |side: &SideChart| side.latency.iter().map(|bucket| bucket.count).sum::<u64>();
    let mut legend = vec![
        Key::new(
            format!("baseline ({} answered)", counted(answered(baseline), "request")),
            Look::Area(palette::STEADY, Pattern::Plain),
        ),
        Key::new(
            format!("now ({} answered)", counted(answered(candidate), "request")),
            Look::Line(palette::DISRUPTED, 4),
        ),
    ];
    let outcomes: BTreeSet<Outcome> = [baseline, candidate]
        .iter()
        .flat_map(|side| &side.dropped)
        .flat_map(|stack| stack.keys().copied())
        .collect();
    legend.extend(outcomes.into_iter().map(Key::outcome));
    let mut canvas = Canvas::new(WIDTH, HEIGHT)?;
    let top = frame::head(&mut canvas, None, &title, &subtitle, &legend)?;
    let end = f64::from(HEIGHT) - 50.0;
    let full = Rect { left: LEFT, top, right: RIGHT, bottom: top + (end - top) * 0.48 };

    let mut marks = Vec::new();
    for (name, side, color, dash) in [
        ("baseline", baseline, palette::STEADY_DARK, Dash::Dashed),
        ("now", candidate, palette::DISRUPTED, Dash::Solid),
    ] {
        marks.extend(side.marks_ms.iter().map(|&(percentile, value_ms)| {
            let label = format!("{name} {percentile} {} ms", millis(value_ms));
            Mark { value_ms, label, color, dash }
        }));
    }
    let histograms =
        LatencyHistograms { steady: baseline.latency.clone(), disrupted: candidate.latency.clone() };
    let bottom = full.bottom - BELOW;
    let (series, area) = (latency::series(&histograms), Rect { bottom, ..full });
    latency::draw_plot(&mut canvas, series.as_ref(), ["baseline", "now"], marks, area)?;

    let sides = [("baseline", columns(baseline)), ("now", columns(candidate))];
    let step_s = baseline.step_s.max(candidate.step_s);
    let most = sides.iter().map(|(_, columns)| timeline::tallest(columns)).max().unwrap_or(0);
    let end_s =
        sides.iter().filter_map(|(_, columns)| columns.last()).map(|c| c.0 + step_s).fold(0.0, f64::max);
    let x = Axis::linear(0.0, end_s, LEFT, RIGHT);
    let height = (end - BELOW - full.bottom) / 2.0;
    for (i, (name, columns)) in sides.iter().enumerate() {
        let top = full.bottom + i as f64 * height + ABOVE;
        let plot = Rect { top, bottom: full.bottom + (i + 1) as f64 * height, ..full };
        let ticks = x.ticks(15);
        frame::x_grid(&mut canvas, plot, &ticks, &x);
        let own_step_s = if i == 0 { baseline.step_s } else { candidate.step_s };
        let name = format!("{name}: dropped per {own_step_s} s");
        timeline::draw_columns(&mut canvas, columns, own_step_s, most, plot, &x, &name);
        let title = (i == 1).then_some("seconds since the counted part of the load began");
        frame::x_axis(&mut canvas, plot, &ticks, &x, title);
    }
    frame::foot(&mut canvas, concat!("rolldrop ", env!("CARGO_PKG_VERSION")), HEIGHT);
    let alt = format!("Latencies of both sides, and dropped requests of both over time. {title}");
    Chart::of("comparison.png", title, alt, &canvas)
}
