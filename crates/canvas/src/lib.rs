//! Canvas for shapes and text, with a bundled font. `bitmap` renders it as a PNG.
//!
//! The canvas lays out text itself, because plotters ignores the side bearings of glyphs. It is a crate of its own because
//! its loops over pixels need optimisations, and the rest of a report does not.

#![expect(missing_docs, reason = "most names say what is drawn")]

mod bitmap;

use ab_glyph::{Font, FontRef, GlyphId, ScaleFont};
pub use plotters::style::RGBColor;

/// Colour of text, and of a pattern's lines on a light area.
pub const INK: RGBColor = RGBColor(32, 33, 36);
/// Colour of the canvas, and of a pattern's lines on a dark area.
pub const WHITE: RGBColor = RGBColor(255, 255, 255);

const REGULAR: &[u8] = include_bytes!("fonts/Roboto-Regular.ttf");
const BOLD: &[u8] = include_bytes!("fonts/Roboto-Bold.ttf");
/// Minimum number of characters that remain when a string is shortened.
const LEAST_CHARS: usize = 4;

/// Failure to draw a picture.
#[derive(Debug, thiserror::Error)]
pub enum DrawError {
    /// The bundled font cannot be read.
    #[error("read the bundled font")]
    Font,
    /// The drawing library reported an error.
    #[error("draw: {0}")]
    Library(String),
    /// The picture could not be encoded.
    #[error("encode PNG: {0}")]
    Encode(#[from] png::EncodingError),
}

/// Weight of the font.
#[derive(Clone, Copy)]
pub enum Weight {
    Regular,
    Bold,
}

/// Part of a text that is placed at the given coordinates.
#[derive(Clone, Copy)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

/// Style of the text.
#[derive(Clone, Copy)]
pub struct TextStyle {
    pub size: f64,
    pub weight: Weight,
    pub color: RGBColor,
    pub anchor: Anchor,
}

/// Dash style of a line.
#[derive(Clone, Copy)]
pub enum Dash {
    Solid,
    Dashed,
    Dotted,
    Mixed,
    Long,
}

/// Fill pattern that distinguishes an area from others without colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FillPattern {
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
pub struct Rect {
    pub left: f64,
    pub top: f64,
    pub right: f64,
    pub bottom: f64,
}

impl Rect {
    pub fn width(&self) -> f64 {
        self.right - self.left
    }
}

/// A shape on the canvas.
enum CanvasShape {
    /// A filled area.
    Area(Rect, RGBColor, FillPattern),
    /// Diagonal stripes, with the shapes below visible in between.
    Stripes(Rect, RGBColor),
    /// The outline of a rectangle, drawn inside it.
    Outline(Rect, RGBColor),
    /// A path of straight lines, with its width.
    Path(Vec<(f64, f64)>, u32, RGBColor),
    Text(PlacedText),
}

/// Text at its position.
struct PlacedText {
    /// Point on the baseline where the text is anchored.
    at: (f64, f64),
    text: String,
    style: TextStyle,
    runs: Runs,
}

/// Writing direction of the text.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Runs {
    Right,
    Upwards,
}

/// A value that a picture shows, and the area that shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct ChartReading {
    /// Area in the picture, in pixels: left, top, width and height.
    pub area: [i32; 4],
    /// Description of the value, on one line.
    pub text: String,
}

/// A picture under construction. Coordinates are pixels of the finished picture.
pub struct Canvas {
    width: u32,
    height: u32,
    readings: Vec<ChartReading>,
    shapes: Vec<CanvasShape>,
    fonts: Fonts,
}

impl Canvas {
    /// Creates a white canvas.
    pub fn new(width: u32, height: u32) -> Result<Self, DrawError> {
        let (shapes, readings) = (Vec::new(), Vec::new());
        Ok(Self { width, height, readings, shapes, fonts: Fonts::bundled()? })
    }

    /// Records the value that an area shows. The HTML page displays it under the pointer.
    pub fn tell(&mut self, rect: Rect, text: String) {
        let [left, top, right, bottom] =
            [rect.left.floor(), rect.top.floor(), rect.right.ceil(), rect.bottom.ceil()].map(pixel);
        self.readings.push(ChartReading { area: [left, top, right - left, bottom - top], text });
    }

    pub fn fill(&mut self, rect: Rect, color: RGBColor, pattern: FillPattern) {
        self.shapes.push(CanvasShape::Area(rect, color, pattern));
    }

    /// Shades a rectangle. If `striped`, it draws diagonal stripes and leaves the shapes below visible in between;
    /// otherwise it fills the rectangle.
    pub fn shade(&mut self, rect: Rect, color: RGBColor, striped: bool) {
        self.shapes.push(match striped {
            true => CanvasShape::Stripes(rect, color),
            false => CanvasShape::Area(rect, color, FillPattern::Plain),
        });
    }

    /// Draws the outline of a rectangle, inside its edges.
    pub fn outline(&mut self, rect: Rect, color: RGBColor) {
        self.shapes.push(CanvasShape::Outline(rect, color));
    }

    pub fn path(&mut self, points: &[(f64, f64)], width: u32, color: RGBColor) {
        self.shapes.push(CanvasShape::Path(points.to_vec(), width, color));
    }

    /// Draws a horizontal or vertical line with the given dash style.
    pub fn rule(&mut self, from: (f64, f64), to: (f64, f64), width: f64, color: RGBColor, dash: Dash) {
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
                self.fill(rect, color, FillPattern::Plain);
            }
            at = end;
            i += 1;
        }
    }

    /// Draws text with its baseline at `y`.
    pub fn text(&mut self, x: f64, y: f64, text: &str, style: &TextStyle) {
        self.set_text((x, y), text, style, Runs::Right);
    }

    /// Draws text that reads upwards, with its baseline at `x`.
    pub fn text_upwards(&mut self, x: f64, y: f64, text: &str, style: &TextStyle) {
        self.set_text((x, y), text, style, Runs::Upwards);
    }

    fn set_text(&mut self, at: (f64, f64), text: &str, style: &TextStyle, runs: Runs) {
        self.shapes.push(CanvasShape::Text(PlacedText { at, text: text.to_owned(), style: *style, runs }));
    }

    /// Returns the width of the text, in pixels.
    pub fn text_width(&self, text: &str, style: &TextStyle) -> f64 {
        self.fonts.lay_out(text, style).1
    }

    /// Shortens `text` until it is at most `width` pixels wide.
    pub fn fit(&self, text: &str, style: &TextStyle, width: f64) -> String {
        let fits = |candidate: &str| self.text_width(candidate, style) <= width;
        if fits(text) {
            return text.to_owned();
        }
        // Names that users choose can be of any length. A binary search finds the longest fitting part in a few steps.
        let (mut longest, mut too_long) = (LEAST_CHARS, text.chars().count());
        while longest + 1 < too_long {
            let middle = longest.midpoint(too_long);
            let fits = fits(&shorten(text, middle));
            *if fits { &mut longest } else { &mut too_long } = middle;
        }
        shorten(text, longest)
    }

    /// Renders the picture down to `height` as a PNG. Also returns the recorded values, in drawing order.
    pub fn finish(mut self, height: u32) -> Result<(Vec<u8>, Vec<ChartReading>), DrawError> {
        self.height = self.height.min(height);
        Ok((bitmap::png(&self)?, self.readings))
    }
}

/// The font in both weights.
struct Fonts {
    regular: FontRef<'static>,
    bold: FontRef<'static>,
}

impl Fonts {
    fn bundled() -> Result<Self, DrawError> {
        let load = |bytes| FontRef::try_from_slice(bytes).map_err(|_| DrawError::Font);
        Ok(Self { regular: load(REGULAR)?, bold: load(BOLD)? })
    }

    fn of(&self, weight: Weight) -> &FontRef<'static> {
        match weight {
            Weight::Regular => &self.regular,
            Weight::Bold => &self.bold,
        }
    }

    /// Returns the glyphs of the text with their offsets from its beginning, and the text's width, in pixels.
    fn lay_out(&self, text: &str, style: &TextStyle) -> (Vec<(GlyphId, f64)>, f64) {
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

    /// Returns the glyphs of the text with their offsets from the anchor point.
    fn place(&self, line: &PlacedText) -> Vec<(GlyphId, f64)> {
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

/// Shortens `text` to `width` characters by cutting the middle, because both ends of a pod's name matter.
pub fn shorten(text: &str, width: usize) -> String {
    let chars: Vec<char> = text.chars().collect();
    if chars.len() <= width {
        return text.to_owned();
    }
    let tail = width.saturating_sub(1) / 2;
    let head = width.saturating_sub(1) - tail;
    chars[..head].iter().chain(['…'].iter()).chain(&chars[chars.len() - tail..]).collect()
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

#[cfg(test)]
mod tests {
    use super::shorten;

    #[test]
    fn shortened_text_keeps_both_ends() {
        assert_eq!(shorten("web-7d4b9c6f5-2xkqp", 11), "web-7…2xkqp");
        assert_eq!(shorten("web", 11), "web");
    }
}
