//! Charts a `rolldrop watch` history: the workloads that lose most when their pods end, and when that happened.

use super::axis::Axis;
use super::frame::{self, LegendSymbol, MARGIN, RIGHT, SMALL, WIDTH, anchored, bold, colored};
use super::{Chart, DrawError, palette};
use crate::format::{count, counted, len, range};
use rolldrop_canvas::{Anchor, Canvas, Dash, FillPattern, Rect};
use rolldrop_explain::model::Bounded;

/// Maximum number of workloads.
const ROWS: usize = 15;
/// Height of a workload, and of its bars.
const ROW: f64 = 32.0;
const BAR: f64 = 18.0;
/// Left and right edges of the columns for lost requests and for killed pods. Names are on the left.
const LOST: (f64, f64) = (520.0, 960.0);
const KILLED: (f64, f64) = (1180.0, 1440.0);
/// Height of the bars over time, and of the space above them.
const OVER_TIME: f64 = 90.0;
const ABOVE: f64 = 64.0;

/// Data that the chart plots.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in super::super) struct WatchSeries {
    /// Finding of the chart.
    pub(in super::super) title: String,
    /// Period and scope of the history.
    pub(in super::super) subtitle: String,
    /// Workloads that lost requests or whose pods were killed, worst first.
    pub(in super::super) rows: Vec<WatchRow>,
    /// Hours or days of the history, in order.
    pub(in super::super) bins: Vec<WatchBin>,
    /// Unit of the bins.
    pub(in super::super) bin: &'static str,
    /// Periods in which not all namespaces were watched, in bins since the start of the first one.
    pub(in super::super) unwatched: Vec<(f64, f64)>,
}

/// A workload.
#[derive(Clone, Debug, PartialEq)]
pub(in super::super) struct WatchRow {
    pub(in super::super) name: String,
    pub(in super::super) terminations: u64,
    /// Lost requests, as bounds and in words; `None` if no log names the pods.
    pub(in super::super) lost: Option<(Bounded, String)>,
    pub(in super::super) killed: u64,
}

/// An hour or a day.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in super::super) struct WatchBin {
    pub(in super::super) label: String,
    pub(in super::super) lost: Bounded,
    pub(in super::super) killed: u64,
}

type OfBin = fn(&WatchBin) -> Bounded;

/// Draws the chart.
pub(in super::super) fn draw(series: &WatchSeries) -> Result<Chart, DrawError> {
    let shown = &series.rows[..series.rows.len().min(ROWS)];
    let height = 330.0 + ROW * shown.len().max(2) as f64 + 2.0 * (OVER_TIME + ABOVE);
    let mut canvas = Canvas::new(WIDTH, frame::pixels(height))?;
    let killed = "pods killed at the end of their grace period";
    let legend = frame::applying([
        (true, "requests certainly lost", LegendSymbol::plain(palette::DISRUPTED)),
        (true, "possibly lost", LegendSymbol::plain(palette::BAND)),
        (true, killed, LegendSymbol::plain(palette::REFUSING)),
        (!series.unwatched.is_empty(), "not watched everywhere", LegendSymbol::plain(palette::WINDOW)),
    ]);
    let top = frame::head(&mut canvas, None, &series.title, &series.subtitle, &legend) + 40.0;
    let bottom = match shown {
        [] => {
            let plot = Rect { left: MARGIN, top, right: RIGHT, bottom: top + 2.0 * ROW };
            frame::message(&mut canvas, plot, "nothing to rank");
            plot.bottom
        }
        rows => workloads(&mut canvas, top, rows, series.rows.len()),
    };
    let most = |of: fn(&WatchBin) -> u64| series.bins.iter().map(of).max().unwrap_or(0);
    let lanes: [(_, OfBin, _, _); 2] = [
        ("requests lost", |bin| bin.lost, palette::DISRUPTED, most(|bin| bin.lost.at_most)),
        ("pods killed", |bin| Bounded::exactly(bin.killed), palette::REFUSING, most(|bin| bin.killed)),
    ];
    let mut y = bottom;
    for (what, of, color, most) in lanes {
        y += ABOVE;
        let plot = Rect { left: MARGIN + 70.0, top: y, right: RIGHT, bottom: y + OVER_TIME };
        canvas.text(MARGIN, y - 14.0, &format!("{what}, by {} (UTC)", series.bin), &bold(SMALL));
        let axis = Axis::linear(0.0, most.max(1) as f64, plot.bottom, plot.top);
        let ends = [(0.0, "0".to_owned()), (most.max(1) as f64, count(most.max(1)))];
        frame::y_grid(&mut canvas, plot, &ends, &axis);
        let width = plot.width() / series.bins.len().max(1) as f64;
        for (from, to) in &series.unwatched {
            let at = |bins: f64| (plot.left + bins * width).clamp(plot.left, plot.right);
            let period = Rect { left: at(*from), right: at(*to), ..plot };
            canvas.fill(period, palette::WINDOW, FillPattern::Plain);
        }
        // Labels need about 70 pixels.
        let every = frame::pixels((70.0 / width).ceil()).max(1) as usize;
        for (i, bin) in series.bins.iter().enumerate() {
            let (left, value) = (plot.left + i as f64 * width, of(bin));
            let bar = |n: u64| Rect {
                left: left + 1.0,
                top: axis.px(n as f64),
                right: left + width - 1.0,
                bottom: plot.bottom,
            };
            if value.at_most > 0 {
                canvas.fill(bar(value.at_most), palette::BAND, FillPattern::Plain);
                canvas.fill(bar(value.at_least), color, FillPattern::Plain);
                canvas.tell(bar(value.at_most), format!("{}: {} {what}", bin.label, range(&value)));
            }
            if i % every == 0 {
                canvas.text(left, plot.bottom + 20.0, &bin.label, &SMALL);
            }
        }
        frame::x_axis(&mut canvas, plot, &[], &axis, None);
        y = plot.bottom;
    }
    let alt = format!("{}. {}", series.title, alt(shown));
    let height = frame::pixels(y + 80.0);
    Chart::of(
        "watch.png",
        series.title.clone(),
        alt,
        canvas,
        concat!("rolldrop ", env!("CARGO_PKG_VERSION")),
        height,
    )
}

/// Draws the workloads. Returns the y coordinate below them.
fn workloads(canvas: &mut Canvas, top: f64, rows: &[WatchRow], all: usize) -> f64 {
    let lost =
        rows.iter().filter_map(|row| row.lost.as_ref()).map(|(lost, _)| lost.at_most).max().unwrap_or(0);
    let killed = rows.iter().map(|row| row.killed).max().unwrap_or(0);
    let lost = Axis::linear(0.0, lost.max(1) as f64, LOST.0, LOST.1);
    let killed = Axis::linear(0.0, killed.max(1) as f64, KILLED.0, KILLED.1);
    for (x, text) in [(LOST.0, "requests lost"), (KILLED.0, "pods killed, of those that ended")] {
        canvas.text(x, top - 10.0, text, &bold(SMALL));
    }
    for (i, row) in rows.iter().enumerate() {
        let y = top + i as f64 * ROW;
        let name = canvas.fit(&row.name, &SMALL, LOST.0 - MARGIN - 20.0);
        canvas.text(LOST.0 - 14.0, y + 20.0, &name, &anchored(SMALL, Anchor::End));
        let bar = |axis: &Axis, from: f64, n: u64| {
            let top = y + (ROW - BAR) / 2.0;
            Rect { left: from, top, right: axis.px(n as f64), bottom: top + BAR }
        };
        let muted = colored(SMALL, palette::MUTED);
        match &row.lost {
            None => canvas.text(LOST.0 + 6.0, y + 20.0, "unknown: no log names its pods", &muted),
            Some((of, text)) => {
                canvas.fill(bar(&lost, LOST.0, of.at_most), palette::BAND, FillPattern::Plain);
                canvas.fill(bar(&lost, LOST.0, of.at_least), palette::DISRUPTED, FillPattern::Plain);
                if !of.is_exact() {
                    whisker(canvas, (lost.px(of.at_least as f64), lost.px(of.at_most as f64)), y + ROW / 2.0);
                }
                canvas.text(lost.px(of.at_most as f64) + 8.0, y + 20.0, text, &SMALL);
                canvas.tell(
                    bar(&lost, LOST.0, of.at_most.max(1)),
                    format!("{}: requests lost: {text}", row.name),
                );
            }
        }
        canvas.fill(bar(&killed, KILLED.0, row.killed), palette::REFUSING, FillPattern::Plain);
        let text = format!("{} of {}", count(row.killed), count(row.terminations));
        canvas.text(killed.px(row.killed as f64) + 8.0, y + 20.0, &text, &SMALL);
    }
    let bottom = top + rows.len() as f64 * ROW;
    for left in [LOST.0, KILLED.0] {
        canvas.rule((left, top), (left, bottom), 1.5, palette::AXIS, Dash::Solid);
    }
    match all - rows.len() {
        0 => bottom,
        more => {
            let text = format!("and {} that lost less", counted(len(more), "workload"));
            let style = anchored(colored(SMALL, palette::MUTED), Anchor::End);
            canvas.text(LOST.0 - 14.0, bottom + 20.0, &text, &style);
            bottom + ROW
        }
    }
}

fn whisker(canvas: &mut Canvas, (from, to): (f64, f64), y: f64) {
    canvas.rule((from, y), (to, y), 1.5, palette::INK, Dash::Solid);
    for x in [from, to] {
        canvas.rule((x, y - 5.0), (x, y + 5.0), 1.5, palette::INK, Dash::Solid);
    }
}

fn alt(rows: &[WatchRow]) -> String {
    let of = |row: &WatchRow| {
        let lost = row.lost.as_ref().map_or("unknown", |(_, text)| text);
        format!("{}: requests lost: {lost}; {} of {} pods killed", row.name, row.killed, row.terminations)
    };
    rows.iter().map(of).collect::<Vec<_>>().join("; ")
}
