//! A bitmap to draw on: shapes by plotters, text from the bundled font, PNG out.
//!
//! Everything is drawn at [`SCALE`] times the size of the picture and averaged
//! down, which smooths all edges equally. Text is set here and not by plotters,
//! which ignores each glyph's side bearing.

use ab_glyph::{Font, FontRef, GlyphId, PxScale, ScaleFont, point};
use plotters::backend::{BitMapBackend, DrawingBackend};
use plotters::style::{Color, RGBColor, ShapeStyle};

use super::{ChartError, palette};

const REGULAR: &[u8] = include_bytes!("../fonts/Roboto-Regular.ttf");
const BOLD: &[u8] = include_bytes!("../fonts/Roboto-Bold.ttf");

/// Samples per pixel, in each direction.
const SCALE: u32 = 2;

/// Which cut of the font.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Weight {
    Regular,
    Bold,
}

/// Which part of a text lies at the given point.
#[derive(Clone, Copy)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// How a text looks.
#[derive(Clone, Copy)]
pub(super) struct Text {
    pub(super) size: f64,
    pub(super) weight: Weight,
    pub(super) color: RGBColor,
    pub(super) anchor: Anchor,
}

/// How a line is broken.
#[derive(Clone, Copy)]
pub(super) enum Dash {
    Solid,
    Dashed,
    Dotted,
    Mixed,
    Long,
}

/// How a filled area differs from others without its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Pattern {
    Plain,
    Rising,
    Falling,
    Crossed,
    Level,
    Upright,
    Dotted,
}

/// A rectangle in pixels of the picture.
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

/// A value that a picture shows, and where.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// The area, in pixels of the picture: left, top, width and height.
    pub area: [i32; 4],
    /// The value, in a line.
    pub text: String,
}

/// A picture in the making. Coordinates are pixels of the finished picture.
pub(super) struct Canvas {
    width: u32,
    height: u32,
    readings: Vec<Reading>,
    rgb: Vec<u8>,
    regular: FontRef<'static>,
    bold: FontRef<'static>,
}

impl Canvas {
    /// A white canvas.
    pub(super) fn new(width: u32, height: u32) -> Result<Self, ChartError> {
        let load = |bytes| FontRef::try_from_slice(bytes).map_err(|_| ChartError::Font);
        let samples = usize::try_from(u64::from(width * SCALE) * u64::from(height * SCALE) * 3)
            .map_err(|_| ChartError::Draw("the picture is too large".into()))?;
        let (regular, bold) = (load(REGULAR)?, load(BOLD)?);
        Ok(Self { width, height, readings: Vec::new(), rgb: vec![255; samples], regular, bold })
    }

    /// States the value that is drawn in an area, for the page, which tells it under the pointer.
    pub(super) fn tell(&mut self, rect: Rect, text: String) {
        let [left, top, right, bottom] =
            [rect.left.floor(), rect.top.floor(), rect.right.ceil(), rect.bottom.ceil()].map(pixel);
        self.readings.push(Reading { area: [left, top, right - left, bottom - top], text });
    }

    /// The values that were stated, in the order of drawing.
    pub(super) fn readings(&self) -> &[Reading] {
        &self.readings
    }

    /// A filled rectangle.
    pub(super) fn fill(&mut self, rect: Rect, color: RGBColor, pattern: Pattern) {
        let ink = palette::ink_on(color);
        self.cover(rect, |x, y| Some(if pattern.hits(x, y) { ink } else { color }));
    }

    /// A rectangle shaded so that what lies under it shows through; diagonal stripes if `striped`.
    pub(super) fn shade(&mut self, rect: Rect, color: RGBColor, striped: bool) {
        self.cover(rect, |x, y| (!striped || (x + y) % 16 < 6).then_some(color));
    }

    /// Gives each sample of a rectangle its colour, if it has one.
    fn cover(&mut self, rect: Rect, color: impl Fn(u32, u32) -> Option<RGBColor>) {
        let (left, right) = clip(rect.left, rect.right, self.width);
        let (top, bottom) = clip(rect.top, rect.bottom, self.height);
        for y in top..bottom {
            for x in left..right {
                if let Some(color) = color(x, y) {
                    self.set(x, y, color, 1.0);
                }
            }
        }
    }

    /// The outline of a rectangle, inside it.
    pub(super) fn outline(&mut self, rect: Rect, color: RGBColor) -> Result<(), ChartError> {
        let style = ShapeStyle { color: color.to_rgba(), filled: false, stroke_width: SCALE };
        let from = (sample(rect.left), sample(rect.top));
        let to = (sample(rect.right), sample(rect.bottom));
        self.backend()?.draw_rect(from, to, &style, false).map_err(draw)
    }

    /// A path of straight lines.
    pub(super) fn path(
        &mut self,
        points: &[(f64, f64)],
        width: u32,
        color: RGBColor,
    ) -> Result<(), ChartError> {
        let style = ShapeStyle { color: color.to_rgba(), filled: false, stroke_width: width * SCALE };
        let points = points.iter().map(|&(x, y)| (sample(x), sample(y)));
        self.backend()?.draw_path(points, &style).map_err(draw)
    }

    /// A straight line, horizontal or vertical, broken as `dash` says.
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

    /// A text whose baseline is at `y`.
    pub(super) fn text(&mut self, x: f64, y: f64, text: &str, style: &Text) {
        self.set_text(text, style, |dx, dy| (x + dx, y + dy));
    }

    /// A text that runs upwards, with its baseline at `x`.
    pub(super) fn text_upwards(&mut self, x: f64, y: f64, text: &str, style: &Text) {
        self.set_text(text, style, |dx, dy| (x + dy, y - dx));
    }

    /// The width of a text.
    pub(super) fn text_width(&self, text: &str, style: &Text) -> f64 {
        let (_, width) = self.lay_out(text, style);
        f64::from(width) / f64::from(SCALE)
    }

    /// `text` cut until it is at most `width` wide.
    pub(super) fn fit(&self, text: &str, style: &Text, width: f64) -> String {
        let mut len = text.chars().count();
        loop {
            let candidate = crate::format::shorten(text, len);
            if len <= 4 || self.text_width(&candidate, style) <= width {
                return candidate;
            }
            len -= 1;
        }
    }

    /// The picture without what lies below `height`.
    pub(super) fn cut(mut self, height: u32) -> Self {
        self.height = self.height.min(height);
        self.rgb.truncate(as_len(self.width * SCALE) * as_len(self.height * SCALE) * 3);
        self
    }

    /// The finished picture.
    pub(super) fn png(&self) -> Result<Vec<u8>, ChartError> {
        let [columns, rows, scale] = [self.width, self.height, SCALE].map(as_len);
        let stride = columns * scale * 3;
        let mut small = Vec::with_capacity(columns * rows * 3);
        for y in 0..rows {
            for x in 0..columns {
                for channel in 0..3 {
                    let mut sum = 0_usize;
                    for line in self.rgb[y * scale * stride..(y + 1) * scale * stride].chunks_exact(stride) {
                        let first = x * scale * 3 + channel;
                        sum += line[first..first + 3 * (scale - 1) + 1]
                            .iter()
                            .step_by(3)
                            .map(|&v| usize::from(v))
                            .sum::<usize>();
                    }
                    small.push(u8::try_from(sum / (scale * scale)).unwrap_or(u8::MAX));
                }
            }
        }
        let mut png = Vec::new();
        let mut encoder = png::Encoder::new(&mut png, self.width, self.height);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        let mut writer = encoder.write_header()?;
        writer.write_image_data(&small)?;
        writer.finish()?;
        Ok(png)
    }

    fn backend(&mut self) -> Result<BitMapBackend<'_>, ChartError> {
        let size = (self.width * SCALE, self.height * SCALE);
        BitMapBackend::with_buffer_and_format(&mut self.rgb, size)
            .map_err(|e| ChartError::Draw(e.to_string()))
    }

    fn set_text(&mut self, text: &str, style: &Text, place: impl Fn(f64, f64) -> (f64, f64)) {
        let (glyphs, width) = self.lay_out(text, style);
        let shift = match style.anchor {
            Anchor::Start => 0.0,
            Anchor::Middle => -width / 2.0,
            Anchor::End => -width,
        };
        let font = self.font(style.weight).clone();
        let per_pixel = f64::from(SCALE);
        for (id, x) in glyphs {
            let glyph = id.with_scale_and_position(em_scale(&font, style.size), point(x + shift, 0.0));
            let Some(outline) = font.outline_glyph(glyph) else { continue };
            let bounds = outline.px_bounds();
            outline.draw(|gx, gy, coverage| {
                let dx = f64::from(bounds.min.x) + f64::from(gx) + 0.5;
                let dy = f64::from(bounds.min.y) + f64::from(gy) + 0.5;
                let (px, py) = place(dx / per_pixel, dy / per_pixel);
                let (px, py) = ((px * per_pixel).floor(), (py * per_pixel).floor());
                if px >= 0.0 && py >= 0.0 {
                    self.set(whole(px), whole(py), style.color, f64::from(coverage.min(1.0)));
                }
            });
        }
    }

    /// The glyphs of a text with their pen positions, and its width, in samples.
    fn lay_out(&self, text: &str, style: &Text) -> (Vec<(GlyphId, f32)>, f32) {
        let font = self.font(style.weight);
        let scaled = font.as_scaled(em_scale(font, style.size));
        let mut pen = 0.0;
        let mut glyphs: Vec<(GlyphId, f32)> = Vec::new();
        for id in text.chars().map(|c| font.glyph_id(c)) {
            if let Some(&(previous, _)) = glyphs.last() {
                pen += scaled.kern(previous, id);
            }
            glyphs.push((id, pen));
            pen += scaled.h_advance(id);
        }
        (glyphs, pen)
    }

    fn font(&self, weight: Weight) -> &FontRef<'static> {
        match weight {
            Weight::Regular => &self.regular,
            Weight::Bold => &self.bold,
        }
    }

    /// Lays `color` over a sample.
    fn set(&mut self, x: u32, y: u32, color: RGBColor, opacity: f64) {
        if x >= self.width * SCALE || y >= self.height * SCALE {
            return;
        }
        let first = (as_len(y) * as_len(self.width * SCALE) + as_len(x)) * 3;
        for (sample, ink) in self.rgb[first..first + 3].iter_mut().zip([color.0, color.1, color.2]) {
            let mixed = f64::from(*sample) * (1.0 - opacity) + f64::from(ink) * opacity;
            *sample = u8::try_from(whole(mixed.round())).unwrap_or(u8::MAX);
        }
    }
}

impl Pattern {
    /// Whether a sample is part of the pattern's lines.
    fn hits(self, x: u32, y: u32) -> bool {
        const STEP: u32 = 12;
        const LINE: u32 = 4;
        let rising = (x + y) % STEP < LINE;
        let falling = (x + STEP - y % STEP) % STEP < LINE;
        match self {
            Pattern::Plain => false,
            Pattern::Rising => rising,
            Pattern::Falling => falling,
            Pattern::Crossed => rising || falling,
            Pattern::Level => y % STEP < LINE,
            Pattern::Upright => x % STEP < LINE,
            Pattern::Dotted => x % STEP < LINE + 2 && y % STEP < LINE + 2,
        }
    }
}

/// The scale at which one em is `size` pixels of the picture.
fn em_scale(font: &FontRef<'_>, size: f64) -> PxScale {
    let em = font.units_per_em().unwrap_or(2048.0);
    #[expect(clippy::cast_possible_truncation, reason = "a font size needs no more digits")]
    let size = (size * f64::from(SCALE)) as f32;
    PxScale::from(size * font.height_unscaled() / em)
}

/// The samples from one coordinate to another, in a picture that is so many pixels long.
fn clip(from: f64, to: f64, length: u32) -> (u32, u32) {
    let sample = |v: f64| whole((v * f64::from(SCALE)).round().clamp(0.0, f64::from(length * SCALE)));
    (sample(from), sample(to))
}

/// The sample at a coordinate.
fn sample(v: f64) -> i32 {
    pixel((v * f64::from(SCALE)).round())
}

fn pixel(v: f64) -> i32 {
    #[expect(clippy::cast_possible_truncation, reason = "saturates, and pictures are small")]
    let pixel = v as i32;
    pixel
}

fn whole(v: f64) -> u32 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "saturates, and pictures are small"
    )]
    let whole = v as u32;
    whole
}

fn as_len(n: u32) -> usize {
    n as usize
}

fn draw(error: impl std::fmt::Display) -> ChartError {
    ChartError::Draw(error.to_string())
}
