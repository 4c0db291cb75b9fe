//! Parts that all charts share: title, legend, footer, grid, and non-overlapping labels.

use super::axis::Axis;
use super::palette;
use crate::words;
use rolldrop_canvas::{Anchor, Canvas, Dash, FillPattern, RGBColor, Rect, TextStyle, Weight};
use rolldrop_explain::model::RunResult;
use rolldrop_record::Outcome;

/// Width of all charts, in pixels.
pub(super) const WIDTH: u32 = 1600;
/// Left edge of the plots.
pub(super) const LEFT: f64 = 110.0;
/// Right edge of the plots.
pub(super) const RIGHT: f64 = 1560.0;
/// Left edge of titles and the footer.
pub(super) const MARGIN: f64 = 40.0;
/// Height of a row of labels.
pub(super) const LANE: f64 = 20.0;

pub(super) const SMALL: TextStyle =
    TextStyle { size: 16.0, weight: Weight::Regular, color: palette::INK, anchor: Anchor::Start };

pub(super) const fn colored(base: TextStyle, color: RGBColor) -> TextStyle {
    TextStyle { color, ..base }
}

pub(super) const fn anchored(base: TextStyle, anchor: Anchor) -> TextStyle {
    TextStyle { anchor, ..base }
}

pub(super) const fn bold(base: TextStyle) -> TextStyle {
    TextStyle { weight: Weight::Bold, ..base }
}

/// An entry of a legend.
pub(super) struct LegendEntry {
    label: String,
    pub(super) look: LegendSymbol,
}

/// Symbol beside a label in a legend.
pub(super) enum LegendSymbol {
    /// A filled area.
    Area(RGBColor, FillPattern),
    /// An outlined area.
    Outlined(RGBColor),
    /// A striped area.
    Striped(RGBColor),
    /// A dotted line.
    Dots(RGBColor),
    /// The certain part of a window.
    Window,
    /// The possible part of a window.
    WindowMaybe,
    /// A small vertical mark.
    Tick(RGBColor),
    /// A line.
    Line(RGBColor, u32),
    /// A vertical line across a plot.
    Mark(Dash),
    /// A thick vertical line across a plot.
    Thick,
}

impl LegendSymbol {
    /// Returns a filled area without a pattern.
    pub(super) const fn plain(color: RGBColor) -> Self {
        Self::Area(color, FillPattern::Plain)
    }
}

/// Returns the legend entries that apply to a picture.
pub(super) fn applying<const N: usize>(entries: [(bool, &str, LegendSymbol); N]) -> Vec<LegendEntry> {
    let applying = entries.into_iter().filter(|(applies, ..)| *applies);
    applying.map(|(_, label, look)| LegendEntry::new(label, look)).collect()
}

impl LegendEntry {
    pub(super) fn new(label: impl Into<String>, look: LegendSymbol) -> Self {
        Self { label: label.into(), look }
    }

    #[cfg(test)]
    pub(super) fn label(&self) -> &str {
        &self.label
    }

    /// Creates the legend entry of an outcome.
    pub(super) fn outcome(outcome: Outcome) -> Self {
        let (color, pattern) = palette::outcome(outcome);
        Self::new(outcome.as_str(), LegendSymbol::Area(color, pattern))
    }
}

/// Draws the title, the subtitle, the warning if there is one, and the legend. Returns the y coordinate at which the
/// plots may start.
pub(super) fn head(
    canvas: &mut Canvas,
    warning: Option<String>,
    title: &str,
    subtitle: &str,
    legend: &[LegendEntry],
) -> f64 {
    let large = TextStyle { size: 30.0, weight: Weight::Bold, color: palette::INK, anchor: Anchor::Start };
    let mut size = large.size;
    while size > 20.0 && canvas.text_width(title, &TextStyle { size, ..large }) > RIGHT - MARGIN {
        size -= 1.0;
    }
    canvas.text(MARGIN, 50.0, title, &TextStyle { size, ..large });
    let muted = TextStyle { size: 19.0, ..colored(SMALL, palette::MUTED) };
    let mut y = 52.0;
    let wrap = |line| wrapped(canvas, line, &muted, RIGHT - MARGIN);
    let lines: Vec<String> = subtitle.lines().flat_map(wrap).collect();
    for line in lines {
        y += 28.0;
        canvas.text(MARGIN, y, &line, &muted);
    }
    if let Some(warning) = warning {
        let style = TextStyle { size: 19.0, color: palette::WHITE, ..bold(SMALL) };
        let lines = wrapped(canvas, &warning, &style, RIGHT - MARGIN - 20.0);
        let bottom = y + 32.0 + (lines.len().saturating_sub(1)) as f64 * 26.0 + 9.0;
        let banner = Rect { left: MARGIN, top: y + 11.0, right: RIGHT, bottom };
        canvas.fill(banner, palette::ALARM, FillPattern::Plain);
        y += 6.0;
        for line in lines {
            y += 26.0;
            canvas.text(MARGIN + 10.0, y, &line, &style);
        }
    }
    draw_legend(canvas, y + 36.0, legend)
}

/// Returns the cause and the remedy for a subtitle, on separate lines if they are long.
pub(super) fn answer(result: &RunResult) -> String {
    const LINE: usize = 150;
    let answer = words::answer(result);
    let parts: String = answer.join(" · ");
    if parts.chars().count() > LINE { answer.join("\n") } else { parts }
}

/// Breaks text between words into lines that fit the width.
fn wrapped(canvas: &Canvas, text: &str, style: &TextStyle, width: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if canvas.text_width(&format!("{line} {word}"), style) <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(canvas.fit(word, style, width)),
        }
    }
    lines
}

/// Draws the provenance of the numbers in the footer.
pub(super) fn foot(canvas: &mut Canvas, provenance: &str, height: u32) {
    let style = TextStyle { size: 15.0, ..colored(SMALL, palette::MUTED) };
    let text = canvas.fit(provenance, &style, RIGHT - MARGIN);
    canvas.text(MARGIN, f64::from(height) - 16.0, &text, &style);
}

/// Rounds a length down to whole pixels.
pub(super) fn pixels(length: f64) -> u32 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "some thousand pixels")]
    let pixels = length as u32;
    pixels
}

/// Draws a message in the middle of an otherwise empty plot.
pub(super) fn message(canvas: &mut Canvas, plot: Rect, text: &str) {
    let style = TextStyle { size: 22.0, ..anchored(colored(SMALL, palette::MUTED), Anchor::Middle) };
    canvas.text(f64::midpoint(plot.left, plot.right), f64::midpoint(plot.top, plot.bottom), text, &style);
}

/// Draws the lower edge of a plot. If a title is given, it also draws the ticks, their labels and the title.
pub(super) fn x_axis(
    canvas: &mut Canvas,
    plot: Rect,
    ticks: &[(f64, String)],
    axis: &Axis,
    title: Option<&str>,
) {
    canvas.rule((plot.left, plot.bottom), (plot.right, plot.bottom), 1.5, palette::AXIS, Dash::Solid);
    let Some(title) = title else { return };
    for (value, label) in ticks {
        let x = axis.px(*value);
        canvas.rule((x, plot.bottom), (x, plot.bottom + 6.0), 1.5, palette::AXIS, Dash::Solid);
        canvas.text(x, plot.bottom + 24.0, label, &anchored(SMALL, Anchor::Middle));
    }
    let style = TextStyle { size: 18.0, ..anchored(SMALL, Anchor::Middle) };
    canvas.text(f64::midpoint(plot.left, plot.right), plot.bottom + 50.0, title, &style);
}

/// Draws the gap of a broken scale across a plot.
pub(super) fn break_marks(canvas: &mut Canvas, plot: Rect, x: &Axis) {
    let Some((left, right)) = x.gap_px() else { return };
    let gap = Rect { left: left + 1.0, right: right - 1.0, top: plot.top - 1.0, bottom: plot.bottom + 2.0 };
    canvas.fill(gap, palette::WHITE, FillPattern::Plain);
    for edge in [gap.left, gap.right] {
        let points = [(edge - 4.0, plot.bottom + 7.0), (edge + 4.0, plot.bottom - 7.0)];
        canvas.path(&points, 2, palette::AXIS);
    }
}

/// Draws horizontal grid lines and the labels of the y axis.
pub(super) fn y_grid(canvas: &mut Canvas, plot: Rect, ticks: &[(f64, String)], axis: &Axis) {
    for (value, label) in ticks {
        let y = axis.px(*value);
        canvas.rule((plot.left, y), (plot.right, y), 1.0, palette::GRID, Dash::Solid);
        canvas.text(plot.left - 10.0, y + 5.5, label, &anchored(SMALL, Anchor::End));
    }
}

pub(super) fn x_grid(canvas: &mut Canvas, plot: Rect, ticks: &[(f64, String)], axis: &Axis) {
    for (value, _) in ticks {
        let x = axis.px(*value);
        canvas.rule((x, plot.top), (x, plot.bottom), 1.0, palette::GRID, Dash::Solid);
    }
}

/// Draws the title of a y axis, reading upwards.
pub(super) fn y_title(canvas: &mut Canvas, top: f64, bottom: f64, title: &str) {
    let style = TextStyle { size: 18.0, ..anchored(SMALL, Anchor::Middle) };
    canvas.text_upwards(44.0, f64::midpoint(top, bottom), title, &style);
}

/// Returns the row of each label, counted upwards, such that labels do not overlap and no mark's line crosses a label.
/// Labels are to the right of their marks.
///
/// `marks` contains each mark's x coordinate and the width of its label, ordered by x.
pub(super) fn lanes(marks: &[(f64, f64)]) -> Vec<usize> {
    let mut rows = vec![0; marks.len()];
    for i in (0..marks.len()).rev() {
        let (x, width) = marks[i];
        rows[i] =
            (i + 1..marks.len()).filter(|&k| marks[k].0 <= x + width).map(|k| rows[k] + 1).max().unwrap_or(0);
    }
    rows
}

fn draw_legend(canvas: &mut Canvas, top: f64, legend: &[LegendEntry]) -> f64 {
    const SWATCH: f64 = 26.0;
    let style = TextStyle { size: 17.0, ..SMALL };
    let (mut x, mut y) = (MARGIN, top);
    for LegendEntry { label, look } in legend {
        let width = SWATCH + 8.0 + canvas.text_width(label, &style) + 28.0;
        if x + width > RIGHT && x > MARGIN {
            x = MARGIN;
            y += 26.0;
        }
        let swatch = Rect { left: x, top: y - 15.0, right: x + SWATCH, bottom: y + 2.0 };
        match look {
            LegendSymbol::Area(color, pattern) => canvas.fill(swatch, *color, *pattern),
            LegendSymbol::Outlined(color) => canvas.outline(swatch, *color),
            LegendSymbol::Dots(color) => {
                canvas.rule((x, y - 6.5), (x + SWATCH, y - 6.5), 3.0, *color, Dash::Dotted);
            }
            LegendSymbol::Striped(color) => canvas.shade(swatch, *color, true),
            LegendSymbol::Window => canvas.shade(swatch, palette::WINDOW, false),
            LegendSymbol::WindowMaybe => {
                canvas.shade(swatch, palette::WINDOW_MAYBE, true);
                canvas.outline(swatch, palette::WINDOW);
            }
            LegendSymbol::Tick(color) => {
                for offset in [7.0, 13.0, 19.0] {
                    canvas.rule((x + offset, y - 13.0), (x + offset, y), 2.0, *color, Dash::Solid);
                }
            }
            LegendSymbol::Mark(dash) => {
                canvas.rule((x + 13.0, y - 17.0), (x + 13.0, y + 5.0), 2.0, palette::INK, *dash)
            }
            LegendSymbol::Thick => {
                canvas.rule((x + 13.0, y - 17.0), (x + 13.0, y + 5.0), 3.0, palette::INK, Dash::Solid)
            }
            LegendSymbol::Line(color, width) => {
                canvas.path(&[(x, y - 6.5), (x + SWATCH, y - 6.5)], *width, *color)
            }
        }
        canvas.text(x + SWATCH + 8.0, y, label, &style);
        x += width;
    }
    if legend.is_empty() { top - 20.0 } else { y + 16.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_text_wraps_between_words() {
        let canvas = Canvas::new(400, 100).unwrap();
        let warning =
            "INVALID MEASUREMENT: do not use these numbers. 99 % of the processors' time was in use.";
        let lines = wrapped(&canvas, warning, &SMALL, 300.0);
        assert!(
            lines.len() > 1 && lines.iter().all(|line| canvas.text_width(line, &SMALL) <= 300.0),
            "{lines:?}"
        );
        assert_eq!(lines.join(" "), warning);
    }

    #[test]
    fn labels_avoid_each_other_and_lines() {
        // Three adjacent labels rise from right to left; a distant one stays at the bottom.
        assert_eq!(lanes(&[(10.0, 50.0), (20.0, 50.0), (30.0, 50.0), (200.0, 50.0)]), [2, 1, 0, 0]);
        // A mark whose line would cross the previous label gets a lower row.
        assert_eq!(lanes(&[(0.0, 100.0), (90.0, 100.0)]), [1, 0]);
        assert!(lanes(&[]).is_empty());
    }
}
