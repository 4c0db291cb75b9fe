//! Charts the streams that were open over the course of the run, by how they ended, with the decisive stages of the
//! terminations: t0, SIGTERM and SIGKILL.

use super::axis::Axis;
use super::frame::{self, LANE, LEFT, LegendEntry, LegendSymbol, RIGHT, SMALL, WIDTH, anchored, bold};
use super::{Chart, DrawError, palette, timeline_chart};
use crate::format::{count, counted, list};
use crate::stream_sections::of_all_terminations;
use crate::words;
use rolldrop_canvas::{Anchor, Canvas, Dash, FillPattern, RGBColor, Rect};
use rolldrop_explain::Analysis;
use rolldrop_explain::model::{OpenStreamCounts, RunResult, StreamResult, Termination};
use rolldrop_record::Outcome;

const HEIGHT: u32 = 800;
/// Maximum number of terminations whose lines cross the plot. If there are more, marks appear above it instead.
const FEW: usize = 8;
/// Distance in pixels below which marks of a kind are drawn as one.
const SAME_PX: f64 = 2.0;
/// Maximum number of rows of names.
const NAME_ROWS: usize = 4;
/// Height of a row of marks.
const MARK_ROW: f64 = 22.0;
/// Number of ways in which streams end.
const ENDS: usize = 4;

/// Data that the chart plots.
#[derive(Debug, PartialEq)]
struct OpenSeries {
    /// Start time of each step in seconds, and the streams open then by [`END_NAMES`], from the bottom up.
    steps: Vec<(f64, [u64; ENDS])>,
    /// Length of a step, in seconds.
    step_s: f64,
    end_s: f64,
    marks: Vec<TerminationMark>,
}

impl OpenSeries {
    fn end_of_steps_s(&self) -> f64 {
        self.steps.last().map_or(0.0, |(at_s, _)| at_s + self.step_s)
    }
}

/// Stages of a termination that affect its streams, in seconds of the run.
#[derive(Debug, PartialEq)]
struct TerminationMark {
    pod: String,
    t0_s: f64,
    /// Earliest SIGTERM; `None` if a hook hides it.
    sigterm_s: Option<f64>,
    /// End of the grace period, if it cut streams.
    sigkill_s: Option<f64>,
}

/// A kind of mark.
struct MarkKind {
    /// Name of the row, if marks have rows.
    row: &'static str,
    meaning: &'static str,
    dash: Dash,
    /// Returns the time of a termination's mark.
    at: fn(&TerminationMark) -> Option<f64>,
}

const KINDS: [MarkKind; 3] = [
    MarkKind {
        row: "t0",
        meaning: "a pod's deletion took effect (t0)",
        dash: Dash::Solid,
        at: |mark| Some(mark.t0_s),
    },
    MarkKind {
        row: "SIGTERM",
        meaning: "earliest SIGTERM (t0 + preStop sleep)",
        dash: Dash::Dashed,
        at: |mark| mark.sigterm_s,
    },
    MarkKind {
        row: "SIGKILL",
        meaning: "SIGKILL (end of the grace period), where it cut streams",
        dash: Dash::Dotted,
        at: |mark| mark.sigkill_s,
    },
];

/// Names of the ways in which streams end. Cut streams are at the bottom, where their number can be read.
const END_NAMES: [&str; ENDS] = [
    "cut, unfinished or stalled",
    "ended by the app with a message",
    "still open when the run ended",
    "complete",
];

fn look(end: usize) -> (RGBColor, FillPattern) {
    match end {
        0 => palette::outcome(Outcome::StreamCut),
        1 => palette::outcome(Outcome::StreamAborted),
        2 => palette::OPEN_AT_END,
        _ => palette::outcome(Outcome::Ok),
    }
}

/// Returns the series; `None` if the load sent no streams.
fn series(analysis: &Analysis) -> Option<OpenSeries> {
    let open = &analysis.charts.open_streams;
    let [first, .., last] = &open[..] else { return None };
    let by_end =
        |at: &OpenStreamCounts| (at.at_s, [at.ends.cut, at.ends.told, at.open_at_end, at.ends.completed]);
    Some(OpenSeries {
        steps: open.iter().map(by_end).collect(),
        step_s: (last.at_s - first.at_s) / (open.len() - 1) as f64,
        end_s: last.at_s.max(timeline_chart::end_s(analysis)),
        marks: analysis.result.terminations.iter().map(mark).collect(),
    })
}

fn mark(t: &Termination) -> TerminationMark {
    let was_cut = t.streams.as_ref().is_some_and(|streams| streams.at_grace_end.cut > 0);
    let after = |s: u64| t.t0_s + s as f64;
    let sigterm_s = t.pre_stop_seconds.map(|sleep| sleep.min(t.grace_period_seconds));
    TerminationMark {
        pod: t.pod.clone(),
        t0_s: t.t0_s,
        sigterm_s: sigterm_s.map(after),
        sigkill_s: was_cut.then(|| after(sigterm_s.unwrap_or(0) + t.shutdown_seconds())),
    }
}

fn title(result: &RunResult, streams: &StreamResult) -> String {
    let open = format!("up to {} were open at the same time", count(streams.open_max));
    let Some(of_pods) = of_all_terminations(result).filter(|of| of.alive_at_t0 + of.began_later > 0) else {
        let broken = streams.cut + streams.unfinished + streams.aborted + streams.stalled;
        return format!("{} of {} did not complete; {open}", count(broken), counted(streams.total, "stream"));
    };
    let all = of_pods.ends();
    let told: Vec<String> = [
        (all.completed, "completed"),
        (all.told, "were ended with a message"),
        (all.cut, "were cut"),
        (of_pods.open_at_end, "were still open at the end"),
    ]
    .iter()
    .filter(|(n, _)| *n > 0)
    .map(|(n, what)| format!("{} {what}", count(*n)))
    .collect();
    let all = counted(of_pods.alive_at_t0 + of_pods.began_later, "stream");
    format!("Of {all} on pods that ended, {}", list(&told))
}

/// Draws the chart; returns `None` if the load sent no streams.
pub(super) fn draw(analysis: &Analysis) -> Result<Option<Chart>, DrawError> {
    let result = &analysis.result;
    let (Some(series), Some(streams)) = (series(analysis), &result.streams) else { return Ok(None) };
    let title = title(result, streams);
    let mut canvas = Canvas::new(WIDTH, HEIGHT)?;
    let subtitle =
        format!("Open streams, by how they ended later; {} in all", counted(streams.total, "stream"));
    let top = frame::head(&mut canvas, words::warning(result), &title, &subtitle, &legend(&series));
    let x = Axis::linear(0.0, series.end_s, LEFT, RIGHT);
    let marks = Marks::on(&canvas, &series, &x);
    let top = top + marks.height() + 8.0;
    let plot = Rect { left: LEFT, top, right: RIGHT, bottom: f64::from(HEIGHT) - 110.0 };
    draw_areas(&mut canvas, &series, plot, &x);
    marks.draw(&mut canvas, plot);
    frame::x_axis(&mut canvas, plot, &x.ticks(15), &x, Some(&timeline_chart::origin(analysis)));
    frame::y_title(&mut canvas, plot.top, plot.bottom, "open streams");
    let alt = format!("Streams open over the run, by how they ended. {title}.");
    Chart::of("streams.png", title, alt, canvas, &words::provenance(result), HEIGHT).map(Some)
}

fn legend(series: &OpenSeries) -> Vec<LegendEntry> {
    let has = |end: usize| series.steps.iter().any(|(_, open)| open[end] > 0);
    let ends = (0..ENDS).filter(|end| has(*end)).map(|end| {
        let (color, pattern) = look(end);
        LegendEntry::new(END_NAMES[end], LegendSymbol::Area(color, pattern))
    });
    let kinds = KINDS.iter().filter(|kind| series.marks.iter().any(|mark| (kind.at)(mark).is_some()));
    let kinds = kinds.map(|kind| {
        let symbol = match kind.dash {
            _ if series.marks.len() > FEW => LegendSymbol::Tick(palette::INK),
            Dash::Solid => LegendSymbol::Thick,
            dash => LegendSymbol::Mark(dash),
        };
        LegendEntry::new(kind.meaning, symbol)
    });
    ends.chain(kinds).collect()
}

fn draw_areas(canvas: &mut Canvas, series: &OpenSeries, plot: Rect, x: &Axis) {
    let most = series.steps.iter().map(|(_, open)| open.iter().sum::<u64>()).max().unwrap_or(0);
    let y = Axis::linear(0.0, most.max(2) as f64 * 1.05, plot.bottom, plot.top);
    frame::x_grid(canvas, plot, &x.ticks(15), x);
    frame::y_grid(canvas, plot, &y.whole_ticks(8), &y);
    // Adjacent steps whose heights agree to half a pixel are drawn as one. Edges on half pixels leave no gaps.
    let snapped = |px: f64| (px * 2.0).round() / 2.0;
    let height = |n: u64| snapped(y.px(n as f64));
    let begins = series.steps.iter().map(|(at_s, _)| *at_s);
    let sides: Vec<f64> = begins.chain([series.end_of_steps_s()]).map(|at_s| snapped(x.px(at_s))).collect();
    for end in 0..ENDS {
        let (color, pattern) = look(end);
        let edges = |open: &[u64; ENDS]| {
            let below = open[..end].iter().sum::<u64>();
            (height(below + open[end]), height(below))
        };
        let mut step = 0;
        for same in series.steps.chunk_by(|a, b| edges(&a.1) == edges(&b.1)) {
            let (left, right) = (sides[step], sides[step + same.len()]);
            step += same.len();
            let (top, bottom) = edges(&same[0].1);
            // A single stream among many is never too thin to be visible.
            let top = if same[0].1[end] > 0 { top.min(bottom - 1.0) } else { top };
            if top < bottom {
                canvas.fill(Rect { left, right, top, bottom }, color, pattern);
            }
        }
    }
    for (at_s, open) in &series.steps {
        let told = open.iter().zip(END_NAMES).filter(|(n, _)| **n > 0);
        let told: Vec<String> = told.map(|(n, name)| format!("{} {name}", count(*n))).collect();
        if !told.is_empty() {
            let area = Rect { left: x.px(*at_s), right: x.px(at_s + series.step_s), ..plot };
            canvas.tell(area, format!("{at_s:.1} s: {}", told.join(", ")));
        }
    }
}

/// Marks of the terminations, positioned above a plot.
struct Marks {
    /// Positions by kind, in order, without those that would be drawn over each other.
    positions: [Vec<f64>; KINDS.len()],
    /// Names of the pods, each with its position and row; empty if there are too many, or they are too close together.
    names: Vec<(f64, String, usize)>,
    are_few: bool,
}

impl Marks {
    fn on(canvas: &Canvas, series: &OpenSeries, x: &Axis) -> Self {
        let positions = KINDS.map(|kind| {
            let shown = series.marks.iter().filter_map(kind.at).filter(|at| x.shows(*at));
            let mut all: Vec<f64> = shown.map(|at| x.px(at)).collect();
            all.sort_by(f64::total_cmp);
            all.dedup_by(|later, earlier| *later - *earlier < SAME_PX);
            all
        });
        let are_few = series.marks.len() <= FEW;
        let mut named: Vec<(f64, String)> = series
            .marks
            .iter()
            .filter(|mark| are_few && x.shows(mark.t0_s))
            .map(|mark| (x.px(mark.t0_s), words::short_pod(&mark.pod).to_owned()))
            .collect();
        named.sort_by(|a, b| a.0.total_cmp(&b.0));
        let sizes: Vec<(f64, f64)> =
            named.iter().map(|(px, name)| (*px, canvas.text_width(name, &bold(SMALL)) + 14.0)).collect();
        let rows = frame::lanes(&sizes);
        let has_room = rows.iter().all(|row| *row < NAME_ROWS);
        let names = named.into_iter().zip(rows).filter(|_| has_room);
        let names = names.map(|((px, name), row)| (px, name, row)).collect();
        Self { positions, names, are_few }
    }

    /// Returns the height that the marks need above the plot.
    fn height(&self) -> f64 {
        if self.are_few {
            return self.names.iter().map(|(.., row)| (row + 1) as f64 * LANE).fold(0.0, f64::max);
        }
        self.rows().count() as f64 * MARK_ROW
    }

    /// Returns the kinds that have marks, with their positions.
    fn rows(&self) -> impl Iterator<Item = (&'static str, Dash, &Vec<f64>)> {
        let kinds = KINDS.iter().zip(&self.positions).filter(|(_, positions)| !positions.is_empty());
        kinds.map(|(kind, positions)| (kind.row, kind.dash, positions))
    }

    fn draw(&self, canvas: &mut Canvas, plot: Rect) {
        if !self.are_few {
            let first = plot.top - self.height() - 2.0;
            for (i, (name, _, positions)) in self.rows().enumerate() {
                let top = first + i as f64 * MARK_ROW;
                canvas.text(plot.left - 10.0, top + 14.0, name, &anchored(SMALL, Anchor::End));
                for px in positions {
                    canvas.rule((*px, top), (*px, top + MARK_ROW - 5.0), 2.0, palette::INK, Dash::Solid);
                }
            }
            return;
        }
        for (_, dash, positions) in self.rows() {
            let width = if matches!(dash, Dash::Solid) { 3.0 } else { 2.0 };
            for px in positions {
                canvas.rule((*px, plot.top), (*px, plot.bottom), width, palette::INK, dash);
            }
        }
        for (px, name, row) in &self.names {
            let baseline = plot.top - 8.0 - *row as f64 * LANE;
            canvas.rule((*px, baseline - 13.0), (*px, plot.top), 3.0, palette::INK, Dash::Solid);
            canvas.text(px + 7.0, baseline, name, &bold(SMALL));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    #[test]
    fn areas_contain_every_open_stream() {
        let analysis = samples::streams();
        let series = series(&analysis).unwrap();
        let streams = analysis.result.streams.as_ref().unwrap();
        let most = series.steps.iter().map(|(_, open)| open.iter().sum::<u64>()).max();
        assert_eq!(most, Some(streams.open_max));
        assert_eq!(series.steps.last().unwrap().1.iter().sum::<u64>(), 0, "all streams have ended");
        let marks: Vec<_> = series.marks.iter().map(|m| (m.t0_s, m.sigterm_s, m.sigkill_s)).collect();
        let whole = |s: Option<f64>| s.map(f64::round);
        let marks: Vec<_> =
            marks.iter().map(|(t0, term, kill)| (t0.round(), whole(*term), whole(*kill))).collect();
        // The third pod cut its streams itself.
        assert_eq!(
            marks,
            [(60.0, Some(65.0), Some(80.0)), (90.0, Some(95.0), Some(110.0)), (120.0, Some(125.0), None)]
        );
        let names: Vec<String> = legend(&series).iter().map(|entry| entry.label().to_owned()).collect();
        assert_eq!(names.len(), ENDS + KINDS.len(), "{names:?}");
        draw(&analysis).unwrap().unwrap();
    }

    #[test]
    fn title_counts_streams_of_terminated_pods() {
        let mut result = samples::streams().result;
        let streams = result.streams.clone().unwrap();
        let of_pods = of_all_terminations(&result).unwrap();
        let said = title(&result, &streams);
        let all = of_pods.alive_at_t0 + of_pods.began_later;
        assert!(said.starts_with(&format!("Of {all} streams on pods that ended, ")), "{said}");
        assert!(said.ends_with(&format!(" and {} were cut", streams.cut)), "{said}");
        result.terminations.iter_mut().for_each(|t| t.streams = None);
        let broken = streams.cut + streams.aborted;
        let unnamed = title(&result, &streams);
        assert!(
            unnamed.starts_with(&format!("{broken} of 3,000 streams did not complete; up to ")),
            "{unnamed}"
        );
    }

    #[test]
    fn many_terminations_have_marks_above_plot() {
        let mut analysis = samples::streams();
        let like = analysis.result.terminations[0].clone();
        analysis.result.terminations =
            (0..60).map(|i| Termination { t0_s: f64::from(i) * 2.0, ..like.clone() }).collect();
        let canvas = Canvas::new(WIDTH, HEIGHT).unwrap();
        let x = Axis::linear(0.0, 150.0, LEFT, RIGHT);
        let marks = Marks::on(&canvas, &series(&analysis).unwrap(), &x);
        assert_eq!((marks.are_few, marks.names.len(), marks.positions[0].len()), (false, 0, 60));
        // A rollout that ends many pods in one second has one mark.
        analysis.result.terminations.iter_mut().for_each(|t| t.t0_s = 60.0 + t.t0_s / 1e3);
        let marks = Marks::on(&canvas, &series(&analysis).unwrap(), &x);
        assert_eq!(marks.positions[0].len(), 1);
        draw(&analysis).unwrap().unwrap();
    }

    #[test]
    fn streams_chart_requires_streams() {
        assert!(draw(&samples::naive_exit()).unwrap().is_none());
    }
}
