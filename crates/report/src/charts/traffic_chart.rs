//! Charts the requests that each pod answered over the course of the run, with the pod's start and end.

use super::acts::{self, Placed};
use super::axis::Axis;
use super::frame::{self, LegendEntry, LegendSymbol, SMALL, WIDTH, anchored, bold};
use super::{Chart, DrawError, palette, timeline_chart};
use crate::format::{count, counted, either, len, plain, seconds_unit};
use crate::words;
use rolldrop_canvas::{Anchor, Canvas, Dash, FillPattern, Rect, TextStyle};
use rolldrop_explain::Analysis;
use rolldrop_explain::model::{PodTraffic, Traffic};

/// Left and right edges of the bars. The pods' names are to the left, and the numbers of answered requests to the
/// right.
const LEFT: f64 = 250.0;
const RIGHT: f64 = 1460.0;
/// Maximum number of rows; if there are more pods, several share a row.
const ROWS: usize = 40;
/// Heights of rows: maximum and minimum of one row, and maximum of all rows together.
const TALL: f64 = 46.0;
const FLAT: f64 = 15.0;
const ALL: f64 = 560.0;
/// Space below a row for the marks of late arrivals.
const GAP: f64 = 9.0;
/// Maximum number of columns.
const COLUMNS: usize = 240;
/// Heights of the header, and of the axis and footer.
const HEAD: f64 = 420.0;
const BELOW: f64 = 110.0;

/// Data that the chart plots.
#[derive(Debug, PartialEq)]
struct TrafficSeries {
    step_s: f64,
    rows: Vec<TrafficRow>,
    /// Number of pods per row, if several share one.
    together: usize,
    /// Number of pods that answered, and how many of them started during the run.
    pods: usize,
    began: usize,
    answered: u64,
    unknown: u64,
    late: usize,
}

impl TrafficSeries {
    /// Returns the largest number of requests of any row in one step.
    fn most(&self) -> f64 {
        self.rows.iter().flat_map(|row| &row.answered).copied().max().unwrap_or(0).max(1) as f64
    }
}

/// A row for one pod, or for several.
#[derive(Debug, Default, PartialEq)]
struct TrafficRow {
    name: String,
    /// Number of answered requests in each step.
    answered: Vec<u64>,
    /// Number of answered requests in the whole run.
    all: u64,
    /// Times at which pods that started during the run became ready, and times at which deletions took effect.
    ready_s: Vec<f64>,
    deleted_s: Vec<f64>,
    /// Times of answered new connections that arrived after the deletion.
    late_s: Vec<f64>,
}

/// Returns the series; `None` if it is unknown which pods answered.
fn series(analysis: &Analysis) -> Option<TrafficSeries> {
    let traffic = coarser(&analysis.charts.traffic);
    if traffic.pods.is_empty() {
        return None;
    }
    let mut pods: Vec<&PodTraffic> = traffic.pods.iter().collect();
    let ends = |pod: &PodTraffic| {
        let is_used = |n: &u64| *n > 0;
        (pod.answered.iter().position(is_used), pod.answered.iter().rposition(is_used))
    };
    pods.sort_by_key(|pod| ends(pod));
    let together = pods.len().div_ceil(ROWS);
    let mut rows: Vec<TrafficRow> = pods.chunks(together).map(|pods| row(analysis, pods)).collect();
    let unknown: u64 = traffic.unknown.iter().sum();
    if unknown > 0 {
        let name = "unknown pod".to_owned();
        rows.push(TrafficRow {
            name,
            all: unknown,
            answered: traffic.unknown.clone(),
            ..TrafficRow::default()
        });
    }
    Some(TrafficSeries {
        step_s: traffic.step_s,
        together,
        pods: pods.len(),
        began: rows.iter().map(|row| row.ready_s.len()).sum(),
        answered: rows.iter().map(|row| row.all).sum(),
        unknown,
        late: rows.iter().map(|row| row.late_s.len()).sum(),
        rows,
    })
}

/// Returns the traffic in steps long enough for all to fit in the plot.
fn coarser(traffic: &Traffic) -> Traffic {
    let steps = traffic.pods.iter().map(|pod| pod.answered.len()).fold(traffic.unknown.len(), usize::max);
    let mut each = 1;
    while steps.div_ceil(each) > COLUMNS {
        each *= 2;
    }
    let sums = |counts: &[u64]| counts.chunks(each).map(|part| part.iter().sum()).collect();
    let of = |pod: &PodTraffic| PodTraffic { name: pod.name.clone(), answered: sums(&pod.answered) };
    Traffic {
        step_s: traffic.step_s * each as f64,
        pods: traffic.pods.iter().map(of).collect(),
        unknown: sums(&traffic.unknown),
    }
}

fn row(analysis: &Analysis, pods: &[&PodTraffic]) -> TrafficRow {
    let mut row = TrafficRow {
        name: words::row_of(&pods.iter().map(|pod| pod.name.as_str()).collect::<Vec<_>>()),
        answered: vec![0; pods.iter().map(|pod| pod.answered.len()).max().unwrap_or(0)],
        ..TrafficRow::default()
    };
    for pod in pods {
        row.answered.iter_mut().zip(&pod.answered).for_each(|(sum, n)| *sum += n);
        let lives = analysis.charts.pods.iter().filter(|life| life.name == pod.name);
        let began = lives.filter(|life| life.created_s.is_some_and(|at| at >= 0.0));
        row.ready_s.extend(began.filter_map(|life| life.ready_s));
        let ends = analysis.result.terminations.iter().enumerate().filter(|(_, t)| t.pod == pod.name);
        for (i, t) in ends {
            row.deleted_s.push(t.t0_s);
            let late = analysis.charts.late_ok.iter().filter(|late| late.termination == i);
            row.late_s.extend(late.map(|late| late.begun_s));
        }
    }
    row.all = row.answered.iter().sum();
    row
}

fn title(series: &TrafficSeries) -> String {
    let mut title = format!(
        "{} answered {}",
        counted(len(series.pods), "pod"),
        counted(series.answered - series.unknown, "request")
    );
    if series.began > 0 {
        title.push_str(&format!("; {} of these pods started during the run", count(len(series.began))));
    }
    if series.late > 0 {
        let were = either(len(series.late), "was", "were");
        title.push_str(&format!(
            "; {} {were} answered by pods after their deletion",
            counted(len(series.late), "new connection")
        ));
    }
    title
}

fn subtitle(series: &TrafficSeries) -> String {
    let rows = match series.together {
        1 => "Each row is a pod".to_owned(),
        n => format!("Each row is up to {}, ordered by first answer", counted(len(n), "pod")),
    };
    let mut out =
        format!("{rows}; requests by intended send time, in steps of {}", seconds_unit(series.step_s));
    if series.unknown > 0 {
        out.push_str(&format!("\nIt is unknown which pod answered {}", counted(series.unknown, "request")));
    }
    out
}

fn legend(series: &TrafficSeries) -> Vec<LegendEntry> {
    let any = |of: fn(&TrafficRow) -> &Vec<f64>| series.rows.iter().any(|row| !of(row).is_empty());
    let full = plain((series.most() / series.step_s).round());
    let answered = format!("answered; a full row is {full}/s");
    let (ready, deleted, late) = (any(|row| &row.ready_s), any(|row| &row.deleted_s), any(|row| &row.late_s));
    frame::applying([
        (true, &answered, LegendSymbol::plain(palette::ANSWERED)),
        (ready, "a new pod became ready", LegendSymbol::Mark(Dash::Dotted)),
        (deleted, "the pod's deletion took effect", LegendSymbol::Thick),
        (late, "a new connection after that, answered", LegendSymbol::Tick(palette::DISRUPTED)),
    ])
}

/// Draws the chart; returns `None` if it is unknown which pods answered.
pub(super) fn draw(analysis: &Analysis) -> Result<Option<Chart>, DrawError> {
    let Some(series) = series(analysis) else { return Ok(None) };
    let result = &analysis.result;
    let title = title(&series);
    let each = (ALL / series.rows.len() as f64).clamp(FLAT, TALL);
    let rows = (each + GAP) * series.rows.len() as f64;
    let mut canvas = Canvas::new(WIDTH, frame::pixels(HEAD + rows + BELOW))?;
    let warning = words::warning(result);
    let top = frame::head(&mut canvas, warning, &title, &subtitle(&series), &legend(&series));
    let x = Axis::linear(0.0, timeline_chart::end_s(analysis), LEFT, RIGHT);
    let acts = Placed::on(&canvas, &acts::marks(&analysis.charts), &x);
    let top = top + acts.height().max(18.0);
    let plot = Rect { left: LEFT, top, right: RIGHT, bottom: top + rows };
    let ticks = x.ticks(14);
    frame::x_grid(&mut canvas, plot, &ticks, &x);
    acts.lines(&mut canvas, plot);
    draw_rows(&mut canvas, &series, plot, &x);
    acts.names(&mut canvas, plot.top);
    frame::x_axis(&mut canvas, plot, &ticks, &x, Some(&timeline_chart::origin(analysis)));
    let bottom = frame::pixels(plot.bottom + BELOW);
    let alt = format!("Requests that each pod answered over the course of the run. {title}.");
    Chart::of("traffic.png", title, alt, canvas, &words::provenance(result), bottom).map(Some)
}

fn draw_rows(canvas: &mut Canvas, series: &TrafficSeries, plot: Rect, x: &Axis) {
    let name_style = TextStyle { size: 15.0, ..anchored(SMALL, Anchor::End) };
    let number_style = TextStyle { size: 15.0, ..SMALL };
    let most = series.most();
    canvas.text(RIGHT + 12.0, plot.top - 6.0, "answered", &bold(number_style));
    let each = (plot.bottom - plot.top) / series.rows.len() as f64;
    for (i, row) in series.rows.iter().enumerate() {
        let top = plot.top + i as f64 * each;
        let bar = Rect { top, bottom: top + each - GAP, ..plot };
        let middle = f64::midpoint(bar.top, bar.bottom) + 5.0;
        canvas.text(LEFT - 12.0, middle, &canvas.fit(&row.name, &name_style, LEFT - 50.0), &name_style);
        canvas.text(RIGHT + 12.0, middle, &count(row.all), &number_style);
        // Adjacent steps whose heights agree to half a pixel are drawn as one bar.
        let height = |n: &u64| (*n as f64 / most * (bar.bottom - bar.top) * 2.0).ceil() / 2.0;
        let mut step = 0;
        for same in row.answered.chunk_by(|a, b| height(a) == height(b)) {
            let [from, to] = [step, step + same.len()].map(|step| x.px(step as f64 * series.step_s));
            let rect = Rect { left: from, right: to, top: bar.bottom - height(&same[0]), ..bar };
            canvas.fill(rect, palette::ANSWERED, FillPattern::Plain);
            step += same.len();
        }
        canvas.rule((bar.left, bar.bottom), (bar.right, bar.bottom), 1.0, palette::GRID, Dash::Solid);
        for at in &row.ready_s {
            canvas.rule((x.px(*at), bar.top), (x.px(*at), bar.bottom), 2.0, palette::INK, Dash::Dotted);
        }
        for at in &row.deleted_s {
            canvas.rule((x.px(*at), bar.top), (x.px(*at), bar.bottom), 3.0, palette::INK, Dash::Solid);
        }
        for at in &row.late_s {
            let (from, to) = ((x.px(*at), bar.bottom + 1.0), (x.px(*at), bar.bottom + GAP - 2.0));
            canvas.rule(from, to, 1.5, palette::DISRUPTED, Dash::Solid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    #[test]
    fn rows_contain_every_answered_request() {
        let analysis = samples::naive_exit();
        let series = series(&analysis).unwrap();
        assert_eq!(series.answered, analysis.result.requests.ok);
        assert_eq!(series.rows.iter().map(|row| row.deleted_s.len()).sum::<usize>(), 3);
        assert_eq!(series.late, analysis.charts.late_ok.len());
        assert_eq!(
            title(&series),
            "4 pods answered 8,976 requests; 9 new connections were answered by pods after their deletion"
        );
    }

    #[test]
    fn many_pods_share_rows_without_losing_requests() {
        let mut analysis = samples::quiet();
        let pod = |i: usize| {
            let mut answered = vec![0; i];
            answered.extend([7, 3]);
            PodTraffic { name: format!("web-6f9bb7d8c9-{i:05}"), answered }
        };
        analysis.charts.traffic =
            Traffic { step_s: 0.125, pods: (0..90).rev().map(pod).collect(), unknown: vec![1, 0, 4] };
        let series = series(&analysis).unwrap();
        assert_eq!((series.together, series.rows.len()), (3, 31));
        assert_eq!((series.answered, series.unknown), (905, 5));
        assert_eq!(series.rows[0].name, "3 pods: 00000 … 00002");
        assert_eq!(series.rows[0].answered, [7, 10, 10, 3]);
        assert!(subtitle(&series).ends_with("It is unknown which pod answered 5 requests"));
        draw(&analysis).unwrap().unwrap();
    }

    #[test]
    fn long_traffic_uses_longer_steps() {
        let answered: Vec<u64> = (0..480).collect();
        let traffic = Traffic {
            step_s: 0.5,
            pods: vec![PodTraffic { name: "web-0".into(), answered: answered.clone() }],
            unknown: Vec::new(),
        };
        let fewer = coarser(&traffic);
        assert_eq!((fewer.step_s, fewer.pods[0].answered.len()), (1.0, 240));
        assert_eq!(fewer.pods[0].answered.iter().sum::<u64>(), answered.iter().sum::<u64>());
    }

    #[test]
    fn traffic_chart_requires_known_pod() {
        let mut analysis = samples::quiet();
        analysis.charts.traffic = Traffic { unknown: vec![4000], ..Traffic::default() };
        assert!(draw(&analysis).unwrap().is_none());
    }
}
