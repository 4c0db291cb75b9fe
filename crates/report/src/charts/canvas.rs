//! A picture to draw on: shapes, and text in the bundled font. It is rendered as PNG (`bitmap`) or SVG (`svg`).
//!
//! The canvas lays out text itself, because plotters ignores each glyph's side bearing.

mod bitmap;
mod svg;

use ab_glyph::{Font, FontRef, GlyphId, ScaleFont};
use plotters::style::RGBColor;

use super::ChartError;

const REGULAR: &[u8] = include_bytes!("../fonts/Roboto-Regular.ttf");
const BOLD: &[u8] = include_bytes!("../fonts/Roboto-Bold.ttf");
/// Minimum number of characters to which a text is cut.
const LEAST_CHARS: usize = 4;

/// Weight of the font.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Weight {
    Regular,
    Bold,
}

/// Part of a text that is placed at the given point.
#[derive(Clone, Copy)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// Style of a text.
#[derive(Clone, Copy)]
pub(super) struct Text {
    pub(super) size: f64,
    pub(super) weight: Weight,
    pub(super) color: RGBColor,
    pub(super) anchor: Anchor,
}

/// Style of a line's dashes.
#[derive(Clone, Copy)]
pub(super) enum Dash {
    Solid,
    Dashed,
    Dotted,
    Mixed,
    Long,
}

/// Pattern of a filled area, which distinguishes it from others without its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Pattern {
    Plain,
    Rising,
    Falling,
    Crossed,
    Level,
    Upright,
    Dotted,
}

/// A rectangle, in pixels of the picture.
#[derive(Clone, Copy)]
pub(super) struct Rect {
    pub(super) left: f64,
    pub(super) top: f64,
    pub(super) right: f64,
    pub(super) bottom: f64,
}

impl Rect {
    pub(super) fn width(&self) -> f64 {
        self.right - self.left
    }
}

/// A drawn shape.
enum Shape {
    /// A filled area.
    Area(Rect, RGBColor, Pattern),
    /// Diagonal stripes, between which the shapes below are visible.
    Stripes(Rect, RGBColor),
    /// The outline of a rectangle, drawn inside it.
    Outline(Rect, RGBColor),
    /// A path of straight lines, with their width.
    Path(Vec<(f64, f64)>, u32, RGBColor),
    Text(Line),
}

/// A placed text.
struct Line {
    /// Point on the baseline at which the style's anchor is placed.
    at: (f64, f64),
    text: String,
    style: Text,
    runs: Runs,
}

/// Direction of a text.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Runs {
    Right,
    Upwards,
}

/// A value that a picture shows, with its area.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// Area in pixels of the picture: left, top, width and height.
    pub area: [i32; 4],
    /// Text of the value, in one line.
    pub text: String,
}

/// A picture that is being drawn. Coordinates are pixels of the finished picture.
pub(super) struct Canvas {
    width: u32,
    height: u32,
    readings: Vec<Reading>,
    shapes: Vec<Shape>,
    fonts: Fonts,
}

impl Canvas {
    /// Makes a white canvas.
    pub(super) fn new(width: u32, height: u32) -> Result<Self, ChartError> {
        let (shapes, readings) = (Vec::new(), Vec::new());
        Ok(Self { width, height, readings, shapes, fonts: Fonts::bundled()? })
    }

    /// States the value that is drawn in an area; the page shows it under the pointer.
    pub(super) fn tell(&mut self, rect: Rect, text: String) {
        let [left, top, right, bottom] =
            [rect.left.floor(), rect.top.floor(), rect.right.ceil(), rect.bottom.ceil()].map(pixel);
        self.readings.push(Reading { area: [left, top, right - left, bottom - top], text });
    }

    /// Returns the stated values, in the order of drawing.
    pub(super) fn readings(&self) -> &[Reading] {
        &self.readings
    }

    /// Draws a filled rectangle.
    pub(super) fn fill(&mut self, rect: Rect, color: RGBColor, pattern: Pattern) {
        self.shapes.push(Shape::Area(rect, color, pattern));
    }

    /// Shades a rectangle: with diagonal stripes, through which the shapes below are visible, if `striped`, otherwise
    /// plain.
    pub(super) fn shade(&mut self, rect: Rect, color: RGBColor, striped: bool) {
        self.shapes.push(match striped {
            true => Shape::Stripes(rect, color),
            false => Shape::Area(rect, color, Pattern::Plain),
        });
    }

    /// Draws the outline of a rectangle, inside it.
    pub(super) fn outline(&mut self, rect: Rect, color: RGBColor) {
        self.shapes.push(Shape::Outline(rect, color));
    }

    /// Draws a path of straight lines.
    pub(super) fn path(&mut self, points: &[(f64, f64)], width: u32, color: RGBColor) {
        self.shapes.push(Shape::Path(points.to_vec(), width, color));
    }

    /// Draws a straight line, horizontal or vertical, with the given dashes.
    pub(super) fn rule(&mut self, from: (f64, f64), to: (f64, f64), width: f64, color: RGBColor, dash: Dash) {
        let length = (to.0 - from.0).hypot(to.1 - from.1);
        let upright = (to.0 - from.0).abs() < (to.1 - from.1).abs();
        let half = width / 2.0;
        let steps: &[f64] = match dash {
            Dash::Solid => &[f64::INFINITY],
            Dash::Dashed => &[9.0, 5.0],
            Dash::Dotted => &[2.5, 4.0],
            Dash::Mixed => &[10.0, 4.0, 2.5, 4.0],
            Dash::Long => &[18.0, 4.0],
        };
        let (left, top) = (from.0.min(to.0), from.1.min(to.1));
        let (mut at, mut i) = (0.0, 0);
        while at < length {
            let end = (at + steps[i % steps.len()]).min(length);
            if i % 2 == 0 {
                let rect = if upright {
                    Rect { left: left - half, right: left + half, top: top + at, bottom: top + end }
                } else {
                    Rect { left: left + at, right: left + end, top: top - half, bottom: top + half }
                };
                self.fill(rect, color, Pattern::Plain);
            }
            at = end;
            i += 1;
        }
    }

    /// Draws a text whose baseline is at `y`.
    pub(super) fn text(&mut self, x: f64, y: f64, text: &str, style: &Text) {
        self.set_text((x, y), text, style, Runs::Right);
    }

    /// Draws a text that runs upwards, with its baseline at `x`.
    pub(super) fn text_upwards(&mut self, x: f64, y: f64, text: &str, style: &Text) {
        self.set_text((x, y), text, style, Runs::Upwards);
    }

    fn set_text(&mut self, at: (f64, f64), text: &str, style: &Text, runs: Runs) {
        self.shapes.push(Shape::Text(Line { at, text: text.to_owned(), style: *style, runs }));
    }

    /// Returns the width of a text, in pixels.
    pub(super) fn text_width(&self, text: &str, style: &Text) -> f64 {
        self.fonts.lay_out(text, style).1
    }

    /// Cuts `text` until it is at most `width` pixels wide.
    pub(super) fn fit(&self, text: &str, style: &Text, width: f64) -> String {
        let fits = |candidate: &str| self.text_width(candidate, style) <= width;
        if fits(text) {
            return text.to_owned();
        }
        // A name chosen by others may have any length. A binary search finds the longest part that fits in a few
        // steps.
        let (mut longest, mut too_long) = (LEAST_CHARS, text.chars().count());
        while longest + 1 < too_long {
            let middle = longest.midpoint(too_long);
            let fits = fits(&crate::format::shorten(text, middle));
            *if fits { &mut longest } else { &mut too_long } = middle;
        }
        crate::format::shorten(text, longest)
    }

    /// Removes the part of the picture below `height`.
    pub(super) fn cut(mut self, height: u32) -> Self {
        self.height = self.height.min(height);
        self
    }

    /// Renders the picture as PNG.
    pub(super) fn png(&self) -> Result<Vec<u8>, ChartError> {
        bitmap::png(self)
    }

    /// Renders the picture as SVG, with its title and a description.
    pub(super) fn svg(&self, title: &str, alt: &str) -> String {
        svg::svg(self, title, alt)
    }
}

/// Both weights of the font.
struct Fonts {
    regular: FontRef<'static>,
    bold: FontRef<'static>,
}

impl Fonts {
    fn bundled() -> Result<Self, ChartError> {
        let load = |bytes| FontRef::try_from_slice(bytes).map_err(|_| ChartError::Font);
        Ok(Self { regular: load(REGULAR)?, bold: load(BOLD)? })
    }

    fn of(&self, weight: Weight) -> &FontRef<'static> {
        match weight {
            Weight::Regular => &self.regular,
            Weight::Bold => &self.bold,
        }
    }

    /// Returns the glyphs of a text with their distances from its beginning, and its width, in pixels.
    fn lay_out(&self, text: &str, style: &Text) -> (Vec<(GlyphId, f64)>, f64) {
        let font = self.of(style.weight);
        let units = font.as_scaled(font.height_unscaled());
        let per_unit = style.size / em(font);
        let mut pen = 0.0;
        let mut glyphs: Vec<(GlyphId, f64)> = Vec::new();
        for id in text.chars().map(|c| font.glyph_id(c)) {
            if let Some(&(previous, _)) = glyphs.last() {
                pen += f64::from(units.kern(previous, id)) * per_unit;
            }
            glyphs.push((id, pen));
            pen += f64::from(units.h_advance(id)) * per_unit;
        }
        (glyphs, pen)
    }

    /// Returns the glyphs of a text with their distances from the anchor's point.
    fn place(&self, line: &Line) -> Vec<(GlyphId, f64)> {
        let (mut glyphs, width) = self.lay_out(&line.text, &line.style);
        let shift = match line.style.anchor {
            Anchor::Start => 0.0,
            Anchor::Middle => -width / 2.0,
            Anchor::End => -width,
        };
        glyphs.iter_mut().for_each(|(_, x)| *x += shift);
        glyphs
    }
}

/// Returns the font's units per em.
fn em(font: &FontRef<'_>) -> f64 {
    f64::from(font.units_per_em().unwrap_or(2048.0))
}

fn pixel(v: f64) -> i32 {
    #[expect(clippy::cast_possible_truncation, reason = "saturates, and pictures are small")]
    let pixel = v as i32;
    pixel
}
