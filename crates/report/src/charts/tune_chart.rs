//! Charts how long each consumer kept routing to pods that ended, the chosen sleep, and the losses before and after.

use super::axis::Axis;
use super::frame::{self, LEFT, LegendEntry, LegendSymbol, RIGHT, SMALL, WIDTH, anchored, bold};
use super::{Chart, DrawError, palette};
use crate::format::{count, counted, len, percent};
use rolldrop_canvas::{Anchor, Canvas, Dash, FillPattern, Rect};
use rolldrop_judge::tuning::{Purpose, Tuning, TuningStep};

/// Height of the plot of a consumer's windows.
const PLOT: f64 = 190.0;
/// Height of the space above a plot for its name.
const ABOVE: f64 = 44.0;
/// Height of the space below the plots for the scale and the bars.
const BELOW: f64 = 260.0;
const BAR: f64 = 34.0;

/// Draws a tuning with its result as the title. `proof` combines all rounds of the proof, if there is one.
pub(crate) fn draw(tuning: &Tuning, title: String, proof: Option<&TuningStep>) -> Result<Chart, DrawError> {
    let consumers = tuning.chosen.as_ref().map(|choice| &choice.consumers[..]).unwrap_or_default();
    let subtitle = format!("{}, on Kubernetes {}", tuning.workload, tuning.cluster.version);
    let legend = [
        LegendEntry::new(
            "share of windows that lasted at most this long",
            LegendSymbol::Line(palette::STEADY_DARK, 4),
        ),
        LegendEntry::new("chosen preStop sleep", LegendSymbol::Mark(Dash::Dashed)),
    ];
    let plots = consumers.len().max(1) as f64;
    let height = frame::pixels(170.0 + plots * (PLOT + ABOVE) + BELOW);
    let mut canvas = Canvas::new(WIDTH, height)?;
    let mut top = frame::head(&mut canvas, None, &title, &subtitle, &legend);
    let sleep_s = tuning.chosen.as_ref().map(|choice| choice.settings.pre_stop_seconds as f64);
    let longest = consumers.iter().filter_map(|c| c.windows_seconds.last().copied()).fold(0.0, f64::max);
    let x = Axis::linear(0.0, sleep_s.unwrap_or(0.0).max(longest).max(1.0) * 1.1, LEFT, RIGHT);
    for consumer in consumers {
        let plot = Rect { left: LEFT, top: top + ABOVE, right: RIGHT, bottom: top + ABOVE + PLOT };
        let y = Axis::linear(0.0, 1.0, plot.bottom, plot.top);
        let name =
            format!("{}: {}", consumer.consumer, counted(len(consumer.windows_seconds.len()), "window"));
        canvas.text(LEFT, plot.top - 14.0, &name, &bold(SMALL));
        let ticks = x.ticks(12);
        frame::x_grid(&mut canvas, plot, &ticks, &x);
        for share in [0.0, 0.5, 1.0] {
            canvas.text(LEFT - 12.0, y.px(share) + 6.0, &percent(share), &anchored(SMALL, Anchor::End));
        }
        let mut last = (x.px(0.0), y.px(0.0));
        let n = consumer.windows_seconds.len().max(1) as f64;
        for (i, seconds) in consumer.windows_seconds.iter().enumerate() {
            let (at, up) = (x.px(*seconds), y.px((i + 1) as f64 / n));
            canvas.rule(last, (at, last.1), 4.0, palette::STEADY_DARK, Dash::Solid);
            canvas.rule((at, last.1), (at, up), 4.0, palette::STEADY_DARK, Dash::Solid);
            last = (at, up);
        }
        canvas.rule(last, (RIGHT, last.1), 4.0, palette::STEADY_DARK, Dash::Solid);
        if let Some(sleep_s) = sleep_s {
            let at = x.px(sleep_s);
            canvas.rule((at, plot.top), (at, plot.bottom), 3.0, palette::INK, Dash::Dashed);
            canvas.text(at + 8.0, plot.top + 18.0, &format!("{sleep_s:.0} s"), &bold(SMALL));
        }
        frame::x_axis(&mut canvas, plot, &ticks, &x, Some("seconds since the pod's deletion"));
        top = plot.bottom + 30.0;
    }
    bars(&mut canvas, tuning, proof, top + ABOVE + 20.0);
    let alt =
        format!("How long each consumer kept routing to pods that ended, with the chosen sleep. {title}");
    Chart::of("tune.png", title, alt, canvas, concat!("rolldrop ", env!("CARGO_PKG_VERSION")), height)
}

/// Draws the losses per termination, before the tuning and with the chosen settings.
fn bars(canvas: &mut Canvas, tuning: &Tuning, proof: Option<&TuningStep>, top: f64) {
    let before = tuning.steps.iter().find(|step| step.purpose == Purpose::Before);
    let shown: Vec<&TuningStep> = before.into_iter().chain(proof).collect();
    let each = |step: &TuningStep| step.lost as f64 / step.terminations.max(1) as f64;
    let most = shown.iter().map(|step| each(step)).fold(0.0, f64::max);
    canvas.text(LEFT, top, "lost requests per termination", &bold(SMALL));
    let x = Axis::linear(0.0, most, LEFT + 220.0, RIGHT - 320.0);
    for (i, step) in shown.iter().enumerate() {
        let y = top + 22.0 + i as f64 * (BAR + 14.0);
        let label = match step.purpose {
            Purpose::Before => "as it was",
            _ => "with the chosen sleep",
        };
        canvas.text(LEFT + 208.0, y + BAR / 2.0 + 6.0, label, &anchored(SMALL, Anchor::End));
        let right = x.px(each(step)).max(LEFT + 222.0);
        let bar = Rect { left: LEFT + 220.0, top: y, right, bottom: y + BAR };
        let color = if step.lost > 0 { palette::ALARM } else { palette::STEADY_DARK };
        canvas.fill(bar, color, FillPattern::Plain);
        let value = format!("{} in {}", count(step.lost), counted(len(step.terminations), "termination"));
        canvas.text(right + 12.0, y + BAR / 2.0 + 6.0, &value, &SMALL);
    }
}
