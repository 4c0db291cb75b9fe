//! Charts how many lost requests a preStop sleep would have saved, and the cost of the sleep.

use super::axis::Axis;
use super::frame::{self, LEFT, LegendSymbol, RIGHT, SMALL, WIDTH, anchored, bold, colored};
use super::{Chart, DrawError, palette};
use crate::format::{count, counted, either, len};
use crate::words;
use rolldrop_canvas::{Anchor, Canvas, Dash, FillPattern, Rect};
use rolldrop_explain::Analysis;
use rolldrop_explain::model::{Recommendation, RunResult, SleepNeeded, shortest_set_sleep_s};
use rolldrop_judge::tuning::{PodSettings, RolloutShape, Strategy};

const HEIGHT: u32 = 826;
/// Height of a cost scale.
const SCALE: f64 = 22.0;
/// Share of the axis length below which a band is too narrow to be visible.
const VISIBLE: f64 = 0.004;
/// Distance in pixels below which changes are drawn as one.
const APART: f64 = 0.5;
/// Number of sleeps for which the HTML page states the remaining losses.
const STEPS: u32 = 120;
/// Maximum length of the axis, in seconds, unless the configured sleep is longer.
const LONGEST_S: f64 = 120.0;

/// Data that the chart plots.
#[derive(Debug, PartialEq)]
struct WhatIfSeries {
    /// Number of dropped requests that the headline counts.
    dropped: u64,
    /// Configured preStop sleep of the pods that lost requests, in seconds.
    set_s: u64,
    /// Sleeps, in order, beyond which one more request is saved: with certainty, and in the best case.
    certain_s: Vec<f64>,
    possible_s: Vec<f64>,
    /// Right end of the axis, in seconds.
    to_s: f64,
    /// Sleep that the run supports, and true if the run proves that it suffices.
    advised: Option<(u64, bool)>,
}

impl WhatIfSeries {
    /// Returns the minimum and maximum number of losses that remain with a sleep.
    fn left(&self, sleep_s: f64) -> (u64, u64) {
        let saved = |needed: &[f64]| len(needed.partition_point(|s| *s < sleep_s));
        (self.dropped - saved(&self.possible_s), self.dropped - saved(&self.certain_s))
    }

    /// Returns the shortest sleep, in whole seconds, that saves every request which a sleep can certainly save.
    fn enough_s(&self) -> Option<u64> {
        let most = self.certain_s.last()?;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "seconds of a run")]
        let whole = most.floor().max(0.0) as u64;
        Some((whole + 1).max(self.set_s + 1))
    }
}

/// Returns the series; `None` if nothing was lost while pods ended.
fn series(analysis: &Analysis) -> Option<WhatIfSeries> {
    let result = &analysis.result;
    let dropped = len(analysis.counted_losses().count());
    if dropped == 0 || result.terminations.is_empty() {
        return None;
    }
    let saved = analysis.lost.iter().zip(&analysis.charts.sleeps).filter(|(_, sleep)| sleep.is_some());
    let candidates = saved.flat_map(|(lost, _)| &lost.candidates);
    let set_s = shortest_set_sleep_s(&result.terminations, candidates.map(|one| one.termination));
    let needed = |of: fn(&SleepNeeded) -> f64| {
        let mut all: Vec<f64> = analysis.charts.sleeps.iter().flatten().map(of).collect();
        all.sort_by(f64::total_cmp);
        all
    };
    let (certain_s, possible_s) = (needed(|s| s.certain_s), needed(|s| s.possible_s));
    let advised = Recommendation::longest(&result.recommendation, &result.terminations, &result.groups)
        .and_then(|rec| Some((rec.advised_seconds()?, rec.pre_stop_seconds.is_some())));
    let mut series = WhatIfSeries { dropped, set_s, certain_s, possible_s, to_s: 0.0, advised };
    let shown = [series.enough_s(), advised.map(|advised| advised.0), Some(set_s + 2)];
    let most = shown.into_iter().flatten().max().unwrap_or(0) as f64;
    series.to_s = (most * 1.2).min(LONGEST_S).max(set_s as f64 + 2.0);
    Some(series)
}

fn title(series: &WhatIfSeries) -> String {
    let requests =
        format!("{} lost {}", count(series.dropped), either(series.dropped, "request", "requests"));
    let set = match series.set_s {
        0 => "none is set".to_owned(),
        s => format!("{s} s is set"),
    };
    match series.enough_s() {
        None => format!("No preStop sleep would have saved any of the {requests}"),
        Some(enough_s) => {
            let (least, most) = series.left(enough_s as f64);
            let [saved_most, saved] = [least, most].map(|left| series.dropped - left);
            let saved = if saved == saved_most {
                count(saved)
            } else {
                format!("{} to {}", count(saved), count(saved_most))
            };
            format!("A preStop sleep of {enough_s} s would have saved {saved} of {requests}; {set}")
        }
    }
}

/// Returns the number of seconds by which a different sleep lengthens a rollout: for a Deployment and, if there are
/// several pods, for a workload that replaces them one by one.
fn costs(pods: u64, from_s: u64, to_s: u64) -> Vec<(&'static str, i64)> {
    let settings = |pre_stop_seconds| PodSettings {
        pre_stop_seconds,
        termination_grace_period_seconds: 0,
        min_ready_seconds: 0,
        readiness_delay_seconds: None,
    };
    let strategies =
        [("Deployment", Strategy::Rolling { at_once: 1 }), ("StatefulSet", Strategy::InPlace { at_once: 1 })];
    let price = |strategy| RolloutShape { pods, strategy }.price(settings(from_s), settings(to_s));
    let shown = strategies.into_iter().take(if pods > 1 { 2 } else { 1 });
    shown.map(|(name, strategy)| (name, price(strategy).seconds_each_rollout)).collect()
}

/// Returns the cost of a second of sleep, and a description of the chart.
fn subtitle(result: &RunResult) -> String {
    let pods = len(result.cluster.endpoints);
    let each = match costs(pods, 0, 1)[..] {
        [_, (_, more_s)] => format!(
            "; a StatefulSet or DaemonSet that replaces {} one by one takes {more_s} s longer",
            counted(pods, "pod")
        ),
        _ => String::new(),
    };
    format!(
        "What a sleep would have changed for the terminations of this run; not a prediction\nEach second of \
         sleep delays each pod's end by a second: a rollout of a Deployment takes 1 s longer{each}"
    )
}

/// Draws the chart; returns `None` if nothing was lost while pods ended.
pub(super) fn draw(analysis: &Analysis) -> Result<Option<Chart>, DrawError> {
    let Some(series) = series(analysis) else { return Ok(None) };
    let result = &analysis.result;
    let title = title(&series);
    let mut canvas = Canvas::new(WIDTH, HEIGHT)?;
    let apart = series.certain_s.iter().zip(&series.possible_s).map(|(a, b)| a - b).fold(0.0, f64::max);
    let (has_band, is_advised) = (apart > VISIBLE * series.to_s, series.advised.is_some());
    let legend = frame::applying([
        (true, "lost requests remaining, at most", LegendSymbol::Line(palette::DISRUPTED, 4)),
        (has_band, "between the lower and upper bounds", LegendSymbol::plain(palette::BAND)),
        (true, "current preStop sleep", LegendSymbol::Thick),
        (is_advised, "preStop sleep that the run supports", LegendSymbol::Mark(Dash::Dashed)),
    ]);
    let head = words::warning(result);
    let top = frame::head(&mut canvas, head, &title, &subtitle(result), &legend) + 34.0;
    let plot = Rect { left: LEFT, top, right: RIGHT, bottom: f64::from(HEIGHT) - 176.0 };
    draw_plot(&mut canvas, &series, len(result.cluster.endpoints), plot);
    let alt = format!("Lost requests that would remain with a longer preStop sleep. {title}.");
    Chart::of("what-if.png", title, alt, canvas, &words::provenance(result), HEIGHT).map(Some)
}

fn draw_plot(canvas: &mut Canvas, series: &WhatIfSeries, pods: u64, plot: Rect) {
    let set_s = series.set_s as f64;
    let x = Axis::linear((set_s - 0.04 * (series.to_s - set_s)).max(0.0), series.to_s, LEFT, RIGHT);
    let y = Axis::linear(0.0, series.dropped.max(2) as f64 * 1.08, plot.bottom, plot.top);
    let ticks = x.ticks(14);
    frame::x_grid(canvas, plot, &ticks, &x);
    frame::y_grid(canvas, plot, &y.whole_ticks(6), &y);
    // Draws the band between the best case and the certain case.
    let mut at: Vec<f64> = series.certain_s.iter().chain(&series.possible_s).copied().collect();
    at.retain(|s| *s > set_s && *s < series.to_s);
    at.sort_by(f64::total_cmp);
    at.dedup_by(|later, earlier| x.px(*later) - x.px(*earlier) < APART);
    let (mut from, mut most_before) = (set_s, y.px(series.dropped as f64));
    let mut points = vec![(x.px(set_s), most_before)];
    for to in at.into_iter().chain([series.to_s]) {
        let (least, most) = series.left(f64::midpoint(from, to));
        let [least, most] = [least, most].map(|n| y.px(n as f64));
        let band = Rect { left: x.px(from), right: x.px(to), top: most, bottom: least };
        if band.bottom > band.top {
            canvas.fill(band, palette::BAND, FillPattern::Plain);
        }
        points.extend([(x.px(from), most), (x.px(to), most)]);
        (from, most_before) = (to, most);
    }
    points.push((x.px(series.to_s), most_before));
    canvas.path(&points, 4, palette::DISRUPTED);
    for i in 0..STEPS {
        let [from, middle, to] = [0.0, 0.5, 1.0]
            .map(|part| set_s + (series.to_s - set_s) * (f64::from(i) + part) / f64::from(STEPS));
        let told = format!("sleep of {middle:.2} s: {} lost", left(series, middle));
        canvas.tell(Rect { left: x.px(from), right: x.px(to), ..plot }, told);
    }
    for (s, what, dash, width) in marks(series) {
        let px = x.px(s as f64);
        canvas.rule((px, plot.top - 20.0), (px, plot.bottom), width, palette::INK, dash);
        let text = format!("{what}: {s} s, {} lost", left(series, s as f64));
        let width = canvas.text_width(&text, &bold(SMALL));
        canvas.text((px + 8.0).min(f64::from(WIDTH) - width - 10.0), plot.top - 8.0, &text, &bold(SMALL));
    }
    frame::x_axis(canvas, plot, &ticks, &x, Some("seconds of preStop sleep"));
    draw_costs(canvas, series, pods, plot, &x);
    frame::y_title(canvas, plot.top, plot.bottom, "lost requests remaining");
}

/// Draws the additional rollout time, below the scale of the sleep.
fn draw_costs(canvas: &mut Canvas, series: &WhatIfSeries, pods: u64, plot: Rect, x: &Axis) {
    let style = colored(SMALL, palette::MUTED);
    let first = plot.bottom + 50.0 + SCALE;
    for (i, (name, _)) in costs(pods, 0, 1).iter().enumerate() {
        let baseline = first + (i + 1) as f64 * SCALE;
        canvas.text(frame::MARGIN, baseline, name, &style);
    }
    canvas.text(frame::MARGIN, first, "a rollout takes longer by", &style);
    // The configured sleep has no additional cost, and the names take up its place.
    let is_whole = |at_s: f64| at_s.fract().abs() < 1e-9 && at_s > series.set_s as f64;
    for (at_s, _) in x.ticks(14).into_iter().filter(|(at_s, _)| is_whole(*at_s)) {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "seconds of a sleep")]
        let sleep_s = at_s.max(0.0) as u64;
        for (i, (_, more_s)) in costs(pods, series.set_s, sleep_s).into_iter().enumerate() {
            let baseline = first + (i + 1) as f64 * SCALE;
            canvas.text(x.px(at_s), baseline, &format!("{more_s} s"), &anchored(style, Anchor::Middle));
        }
    }
}

/// Describes the losses that remain with a sleep.
fn left(series: &WhatIfSeries, sleep_s: f64) -> String {
    match series.left(sleep_s) {
        (least, most) if least == most => count(most),
        (least, most) => format!("{} to {}", count(least), count(most)),
    }
}

/// Returns the sleeps to mark.
fn marks(series: &WhatIfSeries) -> Vec<(u64, &'static str, Dash, f64)> {
    let set =
        if series.advised.is_some_and(|(s, _)| s == series.set_s) { "set and supported" } else { "set" };
    let mut marks = vec![(series.set_s, set, Dash::Solid, 3.0)];
    if let Some((s, is_proven)) = series.advised.filter(|(s, _)| *s != series.set_s) {
        marks.push((s, if is_proven { "recommended" } else { "suggested, not proven" }, Dash::Dashed, 2.0));
    }
    marks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;
    use rolldrop_explain::model::{Cause, LostRequest};

    /// Returns the sample with the sleep that each lost request would have needed: the time since the pod's deletion.
    fn sample() -> Analysis {
        let mut analysis = samples::naive_exit();
        let needed = |lost: &LostRequest| {
            let t0_s = analysis.result.terminations[lost.only()?].t0_s;
            let possible_s = lost.begun_s - t0_s;
            Some(SleepNeeded { certain_s: possible_s + 0.011, possible_s })
        };
        analysis.charts.sleeps = analysis.lost.iter().map(needed).collect();
        analysis
    }

    #[test]
    fn remaining_drops_match_result() {
        let analysis = sample();
        let series = series(&analysis).unwrap();
        for what_if in &analysis.result.what_if {
            assert_eq!(series.left(what_if.pre_stop_seconds as f64).1, what_if.drops_left);
        }
        assert_eq!(series.left(0.0), (24, 24));
        assert_eq!(
            title(&series),
            "A preStop sleep of 1 s would have saved 24 of 24 lost requests; none is set"
        );
        assert_eq!(series.advised, Some((1, false)));
        draw(&analysis).unwrap().unwrap();
    }

    #[test]
    fn generators_stale_flows_are_left_out() {
        let mut analysis = sample();
        for (lost, sleep) in analysis.lost.iter_mut().zip(&mut analysis.charts.sleeps).take(3) {
            (lost.cause, *sleep) = (Cause::StaleFlow, None);
        }
        let series = series(&analysis).unwrap();
        assert_eq!(
            title(&series),
            "A preStop sleep of 1 s would have saved 21 of 21 lost requests; none is set"
        );
        analysis.lost.iter_mut().for_each(|lost| lost.cause = Cause::StaleFlow);
        assert!(draw(&analysis).unwrap().is_none());
    }

    #[test]
    fn many_losses_keep_picture_small() {
        let png = |losses: u32| {
            let mut analysis = sample();
            analysis.lost = vec![analysis.lost[0].clone(); losses as usize];
            let needed = |n| {
                let possible_s = f64::from(n) / f64::from(losses);
                Some(SleepNeeded { certain_s: possible_s + 0.011, possible_s })
            };
            analysis.charts.sleeps = (0..losses).map(needed).collect();
            draw(&analysis).unwrap().unwrap().png
        };
        let [some, many] = [2_000, 100_000].map(|losses| png(losses).len());
        assert!(many < 2 * some, "{many} bytes, {some} with fewer losses");
    }

    #[test]
    fn title_states_when_no_sleep_helps() {
        let mut analysis = sample();
        analysis.charts.sleeps = vec![None; analysis.lost.len()];
        let series = series(&analysis).unwrap();
        assert_eq!(title(&series), "No preStop sleep would have saved any of the 24 lost requests");
        draw(&analysis).unwrap().unwrap();
    }

    #[test]
    fn cost_states_pod_count() {
        let said = subtitle(&samples::rollout().result);
        assert!(said.ends_with(
                "a rollout of a Deployment takes 1 s longer; a StatefulSet or DaemonSet that replaces 3 pods one by \
                 one takes 3 s longer"), "{said}");
    }

    #[test]
    fn sleep_cost_depends_on_workload_kind() {
        assert_eq!(costs(6, 2, 5), [("Deployment", 3), ("StatefulSet", 18)]);
        assert_eq!(costs(1, 0, 5), [("Deployment", 5)]);
    }

    #[test]
    fn what_if_chart_requires_losses() {
        assert!(draw(&samples::prestop_sleep()).unwrap().is_none());
        assert!(draw(&samples::quiet()).unwrap().is_none());
    }
}
