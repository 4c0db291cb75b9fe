//! Charts the share of streams still open by age, and the share still open when the grace period of the terminations
//! runs out.

use super::axis::{Axis, right_end};
use super::frame::{
    self, LANE, LEFT, LegendEntry, LegendSymbol, RIGHT, SMALL, WIDTH, anchored, bold, colored,
};
use super::{Chart, DrawError, palette};
use crate::format::{len, percent, seconds_unit};
use crate::words;
use rolldrop_canvas::{Anchor, Canvas, Dash, FillPattern, Rect};
use rolldrop_explain::Analysis;
use rolldrop_explain::model::{RunResult, SurvivalStep, Termination};

const HEIGHT: u32 = 800;
/// Maximum number of marked grace periods. If there are more, only the shortest and the longest are marked.
const MARKED: usize = 3;
/// Minimum width, in pixels, of an area with a description.
const READABLE: f64 = 26.0;

/// Data that the chart plots.
#[derive(Debug, PartialEq)]
struct SurvivalSeries {
    /// Steps by age. There is at least one.
    steps: Vec<SurvivalStep>,
    /// Grace periods of the terminations, ordered by the time that they leave after SIGTERM.
    graces: Vec<GraceLine>,
    /// Number of different grace periods, if not all are marked.
    of_graces: Option<usize>,
}

/// Grace period of terminations.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct GraceLine {
    /// Time between SIGTERM and SIGKILL, in seconds.
    left_s: u64,
    grace_s: u64,
    /// PreStop sleep; `None` if a hook hides it.
    sleep_s: Option<u64>,
}

/// Streams that are still open at an age.
#[derive(Clone, Copy, Debug, PartialEq)]
enum StillOpen {
    /// The share at this step of the curve.
    Share(SurvivalStep),
    /// No stream lasted that long.
    None,
    /// The run does not show the share at this age.
    Unknown,
}

impl SurvivalSeries {
    fn at(&self, age_s: f64) -> StillOpen {
        let upto = self.steps.partition_point(|step| step.age_s <= age_s);
        match (upto.checked_sub(1).map(|last| self.steps[last]), self.steps.get(upto)) {
            (None, _) => StillOpen::Unknown,
            (Some(step), Some(_)) => StillOpen::Share(step),
            (Some(last), None) if last.share <= 0.0 => StillOpen::None,
            (Some(last), None) if last.age_s >= age_s => StillOpen::Share(last),
            (Some(_), None) => StillOpen::Unknown,
        }
    }

    fn first(&self) -> SurvivalStep {
        self.steps[0]
    }

    fn last(&self) -> SurvivalStep {
        self.steps[self.steps.len() - 1]
    }
}

/// Returns the series; `None` if too few streams were observed until they ended.
fn series(result: &RunResult) -> Option<SurvivalSeries> {
    let steps = result.streams.as_ref()?.survival.clone();
    steps.first()?;
    let grace = |t: &Termination| GraceLine {
        left_s: t.shutdown_seconds(),
        grace_s: t.grace_period_seconds,
        sleep_s: t.pre_stop_seconds,
    };
    let mut graces: Vec<GraceLine> = result.terminations.iter().map(grace).collect();
    graces.sort();
    graces.dedup();
    let of_graces = (graces.len() > MARKED).then_some(graces.len());
    if of_graces.is_some() {
        graces.drain(1..graces.len() - 1);
    }
    Some(SurvivalSeries { steps, graces, of_graces })
}

/// Describes the share of a step.
fn still_open(step: SurvivalStep) -> String {
    let [share, lower, upper] = [step.share, step.lower, step.upper].map(percent);
    match lower == upper {
        true => format!("{share} still open"),
        false => format!("{share} ({} to {upper}) still open", lower.trim_end_matches(" %")),
    }
}

/// Describes the streams that are still open when a grace period runs out.
fn left_after(series: &SurvivalSeries, grace: &GraceLine) -> String {
    let s = grace.left_s;
    match series.at(s as f64) {
        StillOpen::Share(step) => format!("{} after {s} s", still_open(step)),
        StillOpen::None => format!("no stream lasted {s} s"),
        StillOpen::Unknown => format!("the number still open after {s} s is unknown"),
    }
}

/// Formats an age.
fn age(s: f64) -> String {
    if s < 1.0 { seconds_unit(s) } else { format!("{s:.1} s") }
}

fn title(series: &SurvivalSeries) -> String {
    let half = match series.steps.iter().find(|step| step.share <= 0.5) {
        Some(step) => format!("Half of the streams last longer than {}", age(step.age_s)),
        None => {
            format!("More than half of the streams last longer than {}", age(series.last().age_s))
        }
    };
    let rest = match series.graces.first().map(|grace| (grace.left_s, series.at(grace.left_s as f64))) {
        Some((s, StillOpen::Share(step))) => format!("{} are still open after {s} s", percent(step.share)),
        Some((s, StillOpen::None)) => {
            format!("none lasted longer than the {s} s that pods have after SIGTERM")
        }
        Some((s, StillOpen::Unknown)) => format!("it is unknown how many are open after {s} s"),
        None if series.last().share <= 0.0 => {
            format!("the longest took {}", age(series.last().age_s))
        }
        None => {
            format!("{} last longer than {}", percent(series.last().share), age(series.last().age_s))
        }
    };
    format!("{half}; {rest}")
}

/// Draws the chart; returns `None` if too few streams were observed until they ended.
pub(super) fn draw(analysis: &Analysis) -> Result<Option<Chart>, DrawError> {
    let result = &analysis.result;
    let Some(series) = series(result) else { return Ok(None) };
    let title = title(&series);
    let mut subtitle =
        "Share of streams still open, by age, while their pods were not terminating (Kaplan-Meier)"
            .to_owned();
    if let Some(n) = series.of_graces {
        subtitle.push_str(&format!(
            "\nOf {} different grace periods, the shortest and the longest are marked",
            len(n)
        ));
    }
    let mut legend = vec![
        LegendEntry::new("still open", LegendSymbol::Line(palette::STEADY_DARK, 4)),
        LegendEntry::new("95 % confidence", LegendSymbol::Area(palette::WINDOW, FillPattern::Plain)),
    ];
    if series.last().share > 0.0 || series.first().age_s > 0.0 {
        legend.push(LegendEntry::new("unknown", LegendSymbol::WindowMaybe));
    }
    if !series.graces.is_empty() {
        legend.push(LegendEntry::new(
            "grace period of the terminations, without the preStop sleep",
            LegendSymbol::Thick,
        ));
    }
    let mut canvas = Canvas::new(WIDTH, HEIGHT)?;
    let top = frame::head(&mut canvas, words::warning(result), &title, &subtitle, &legend);
    let top = top + series.graces.len() as f64 * LANE + 10.0;
    let plot = Rect { left: LEFT, top, right: RIGHT, bottom: f64::from(HEIGHT) - 110.0 };
    draw_plot(&mut canvas, &series, plot);
    let alt = format!("Share of streams still open, by age, with its confidence band. {title}.");
    Chart::of("survival.png", title, alt, canvas, &words::provenance(result), HEIGHT).map(Some)
}

fn draw_plot(canvas: &mut Canvas, series: &SurvivalSeries, plot: Rect) {
    let ages: Vec<f64> = series.graces.iter().map(|grace| grace.left_s as f64).collect();
    let last = series.last();
    let (to_s, left_out) = right_end(last.age_s, &ages);
    // The part beyond the curve is wide enough for its description.
    let to_s = to_s.max(last.age_s * 1.08);
    let x = Axis::broken(0.0, left_out, to_s, LEFT, RIGHT);
    let y = Axis::linear(0.0, 100.0, plot.bottom, plot.top);
    let ticks = x.ticks(14);
    frame::x_grid(canvas, plot, &ticks, &x);
    let percents: Vec<(f64, String)> =
        y.ticks(10).into_iter().map(|(at, label)| (at, format!("{label} %"))).collect();
    frame::y_grid(canvas, plot, &percents, &y);
    let px = |share: f64| y.px(share * 100.0);
    let mut line = vec![(x.px(series.first().age_s), px(series.first().share))];
    for pair in series.steps.windows(2) {
        let [step, next] = pair else { continue };
        let (left, right) = (x.px(step.age_s), x.px(next.age_s));
        let band = Rect { left, right, top: px(step.upper), bottom: px(step.lower) };
        if band.right > band.left && band.bottom > band.top {
            canvas.fill(band, palette::WINDOW, FillPattern::Plain);
        }
        line.extend([(right, px(step.share)), (right, px(next.share))]);
        let told =
            format!("{} to {}: {}", seconds_unit(step.age_s), seconds_unit(next.age_s), still_open(*step));
        canvas.tell(Rect { left, right, ..plot }, told);
    }
    let before = Rect { right: x.px(series.first().age_s), ..plot };
    let after = Rect { left: x.px(last.age_s), ..plot };
    canvas.shade(before, palette::WINDOW_MAYBE, true);
    if last.share > 0.0 {
        canvas.shade(after, palette::WINDOW_MAYBE, true);
    }
    canvas.path(&line, 4, palette::STEADY_DARK);
    draw_graces(canvas, series, plot, &x);
    describe(canvas, before, "unknown: too few streams were seen at this age");
    describe(
        canvas,
        after,
        match last.share > 0.0 {
            true => "unknown: no stream was seen to end at this age",
            false => "no stream lasted longer",
        },
    );
    frame::x_axis(canvas, plot, &ticks, &x, Some("age of a stream in seconds"));
    frame::break_marks(canvas, plot, &x);
    frame::y_title(canvas, plot.top, plot.bottom, "streams still open");
}

/// Describes what is known about an area outside the curve.
fn describe(canvas: &mut Canvas, area: Rect, text: &str) {
    if area.width() < 1.0 {
        return;
    }
    canvas.tell(area, text.to_owned());
    let style = anchored(colored(SMALL, palette::MUTED), Anchor::Middle);
    let middle = (f64::midpoint(area.left, area.right), f64::midpoint(area.top, area.bottom));
    let width = canvas.text_width(text, &style);
    let paper = |width: f64, height: f64| Rect {
        left: middle.0 - width / 2.0 - 6.0,
        right: middle.0 + width / 2.0 + 6.0,
        top: middle.1 - height / 2.0 - 6.0,
        bottom: middle.1 + height / 2.0 + 6.0,
    };
    if width + 24.0 < area.width() {
        canvas.fill(paper(width, 16.0), palette::WHITE, FillPattern::Plain);
        canvas.text(middle.0, middle.1 + 5.5, text, &style);
    } else if area.width() > READABLE {
        canvas.fill(paper(10.0, width), palette::WHITE, FillPattern::Plain);
        canvas.text_upwards(middle.0 + 5.5, middle.1, text, &style);
    }
}

/// Draws the grace periods, each with its name in a row of its own above the plot.
fn draw_graces(canvas: &mut Canvas, series: &SurvivalSeries, plot: Rect, x: &Axis) {
    let baseline = |i: usize| plot.top - 8.0 - (series.graces.len() - 1 - i) as f64 * LANE;
    for (i, grace) in series.graces.iter().enumerate() {
        let px = x.px(grace.left_s as f64);
        canvas.rule((px, baseline(i) - 13.0), (px, plot.bottom), 3.0, palette::INK, Dash::Solid);
        if let StillOpen::Share(step) = series.at(grace.left_s as f64) {
            let y = plot.bottom - step.share * (plot.bottom - plot.top);
            let dot = Rect { left: px - 6.0, right: px + 6.0, top: y - 6.0, bottom: y + 6.0 };
            canvas.fill(dot, palette::INK, FillPattern::Plain);
        }
    }
    for (i, grace) in series.graces.iter().enumerate() {
        let sleep = match grace.sleep_s {
            Some(0) => String::new(),
            Some(s) if s + grace.left_s > grace.grace_s => {
                format!(" − preStop {s} s, at least {} s", grace.left_s)
            }
            Some(s) => format!(" − preStop {s} s"),
            None => " (preStop hook of unknown length)".to_owned(),
        };
        let label = format!("grace period {} s{sleep}: {}", grace.grace_s, left_after(series, grace));
        let (px, width) = (x.px(grace.left_s as f64), canvas.text_width(&label, &bold(SMALL)));
        let has_room = px + 7.0 + width < f64::from(WIDTH) - 10.0;
        let left = if has_room { px + 7.0 } else { px - 7.0 - width };
        // A label to the left of its line may cross the lines of shorter grace periods.
        let (top, bottom) = (baseline(i) - 14.0, baseline(i) + 4.0);
        let paper = Rect { left: left - 2.0, right: left + width + 2.0, top, bottom };
        canvas.fill(paper, palette::WHITE, FillPattern::Plain);
        canvas.text(left, baseline(i), &label, &bold(SMALL));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    fn step(age_s: f64, share: f64) -> SurvivalStep {
        SurvivalStep { age_s, share, lower: share / 2.0, upper: share.midpoint(1.0) }
    }

    fn curve(steps: &[(f64, f64)], graces: &[u64]) -> SurvivalSeries {
        let graces = graces.iter().map(|s| GraceLine { left_s: *s, grace_s: s + 5, sleep_s: Some(5) });
        let steps = steps.iter().map(|(age_s, share)| step(*age_s, *share)).collect();
        SurvivalSeries { steps, graces: graces.collect(), of_graces: None }
    }

    #[test]
    fn kubelet_leaves_two_seconds_after_sigterm() {
        let mut result = samples::streams().result;
        result.terminations.iter_mut().for_each(|termination| termination.grace_period_seconds = 6);
        assert_eq!(series(&result).unwrap().graces, [GraceLine { left_s: 2, grace_s: 6, sleep_s: Some(5) }]);
    }

    #[test]
    fn curve_matches_result_and_grace_period() {
        let analysis = samples::streams();
        let series = series(&analysis.result).unwrap();
        assert_eq!(series.steps, analysis.result.streams.as_ref().unwrap().survival);
        assert_eq!(series.graces, [GraceLine { left_s: 15, grace_s: 20, sleep_s: Some(5) }]);
        // The lengths are exponential with a mean of 8 s, so a share of e^(-15/8) lasts longer than 15 s.
        let StillOpen::Share(step) = series.at(15.0) else { panic!("{:?}", series.at(15.0)) };
        assert!(step.lower < 0.153 && 0.153 < step.upper, "{step:?}");
        let said = title(&series);
        assert!(said.contains(" are still open after 15 s"), "{said}");
        draw(&analysis).unwrap().unwrap();
    }

    #[test]
    fn ages_beyond_curve_are_unknown() {
        let open = curve(&[(0.0, 1.0), (2.0, 0.6), (4.0, 0.4)], &[10]);
        assert_eq!([-1.0, 4.1].map(|age| open.at(age)), [StillOpen::Unknown; 2]);
        assert_eq!(open.at(3.0), StillOpen::Share(step(2.0, 0.6)));
        assert_eq!(open.at(4.0), StillOpen::Share(step(4.0, 0.4)));
        assert_eq!(
            title(&open),
            "Half of the streams last longer than 4.0 s; it is unknown how many are open after 10 s"
        );
        let ended = curve(&[(0.0, 1.0), (2.0, 0.0)], &[10]);
        assert_eq!(ended.at(10.0), StillOpen::None);
        assert!(title(&ended).ends_with("; none lasted longer than the 10 s that pods have after SIGTERM"));
        let alone = curve(&[(0.0, 1.0), (2.0, 0.7)], &[]);
        assert_eq!(
            title(&alone),
            "More than half of the streams last longer than 2.0 s; 70 % last longer than 2.0 s"
        );
    }

    #[test]
    fn many_grace_periods_mark_only_shortest_and_longest() {
        let mut analysis = samples::streams();
        let like = analysis.result.terminations[0].clone();
        analysis.result.terminations =
            (10..20).map(|s| Termination { grace_period_seconds: s, ..like.clone() }).collect();
        let series = series(&analysis.result).unwrap();
        let left: Vec<u64> = series.graces.iter().map(|grace| grace.left_s).collect();
        assert_eq!((left, series.of_graces), (vec![5, 14], Some(10)));
        draw(&analysis).unwrap().unwrap();
    }

    #[test]
    fn survival_chart_requires_curve() {
        assert!(draw(&samples::naive_exit()).unwrap().is_none());
    }
}
