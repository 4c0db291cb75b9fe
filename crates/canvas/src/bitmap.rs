//! Renders a canvas as a PNG. Everything is drawn at [`SCALE`] times the size of the picture and averaged down, which
//! smooths all edges equally. The picture is then reduced to its 256 most common colours.

use std::io::Write;

use ab_glyph::{Font, FontRef, PxScale, point};
use flate2::Compression;
use flate2::write::ZlibEncoder;
use foldhash::HashMap;
use plotters::backend::{BitMapBackend, DrawingBackend};
use plotters::style::{Color, RGBColor, ShapeStyle};

use super::{Canvas, CanvasShape, DrawError, FillPattern, Fonts, INK, PlacedText, Rect, Runs, WHITE, em};

/// Samples per pixel, in each direction.
const SCALE: u32 = 2;
/// Maximum number of colours in the picture.
const COLORS: usize = 256;

type Pixel = [u8; 3];

pub(super) fn png(canvas: &Canvas) -> Result<Vec<u8>, DrawError> {
    let mut bitmap = Bitmap::new(canvas.width, canvas.height);
    for shape in &canvas.shapes {
        bitmap.draw(shape, &canvas.fonts)?;
    }
    encode(&bitmap.averaged(), canvas.width, canvas.height)
}

struct Bitmap {
    /// Width and height of the picture, in pixels.
    width: u32,
    height: u32,
    samples: Vec<Pixel>,
}

impl Bitmap {
    fn new(width: u32, height: u32) -> Self {
        let samples = as_len(width * SCALE) * as_len(height * SCALE);
        Self { width, height, samples: vec![pixel(WHITE); samples] }
    }

    fn draw(&mut self, shape: &CanvasShape, fonts: &Fonts) -> Result<(), DrawError> {
        match shape {
            CanvasShape::Area(rect, color, FillPattern::Plain) => self.fill(*rect, *color),
            CanvasShape::Area(rect, color, pattern) => {
                let ink = ink_on(*color);
                self.cover(*rect, |x, y| Some(if pattern.hits(x, y) { ink } else { *color }));
            }
            CanvasShape::Stripes(rect, color) => {
                self.cover(*rect, |x, y| ((x + y) % 16 < 6).then_some(*color))
            }
            CanvasShape::Outline(rect, color) => {
                let style = ShapeStyle { color: color.to_rgba(), filled: false, stroke_width: SCALE };
                let from = (sample(rect.left), sample(rect.top));
                let to = (sample(rect.right), sample(rect.bottom));
                self.backend()?.draw_rect(from, to, &style, false).map_err(failed)?;
            }
            CanvasShape::Path(points, width, color) => {
                let style = ShapeStyle { color: color.to_rgba(), filled: false, stroke_width: width * SCALE };
                let points = points.iter().map(|&(x, y)| (sample(x), sample(y)));
                self.backend()?.draw_path(points, &style).map_err(failed)?;
            }
            CanvasShape::Text(line) => self.write(line, fonts),
        }
        Ok(())
    }

    fn fill(&mut self, rect: Rect, color: RGBColor) {
        let (left, right) = clip(rect.left, rect.right, self.width);
        let (top, bottom) = clip(rect.top, rect.bottom, self.height);
        let columns = left..right.max(left);
        for y in top..bottom {
            let row = as_len(y) * as_len(self.width * SCALE);
            self.samples[row + as_len(columns.start)..row + as_len(columns.end)].fill(pixel(color));
        }
    }

    /// Sets each sample of a rectangle to the colour that `color` returns for it, if any.
    fn cover(&mut self, rect: Rect, color: impl Fn(u32, u32) -> Option<RGBColor>) {
        let (left, right) = clip(rect.left, rect.right, self.width);
        let (top, bottom) = clip(rect.top, rect.bottom, self.height);
        for y in top..bottom {
            let row = as_len(y) * as_len(self.width * SCALE);
            for x in left..right {
                if let Some(color) = color(x, y) {
                    self.samples[row + as_len(x)] = pixel(color);
                }
            }
        }
    }

    fn backend(&mut self) -> Result<BitMapBackend<'_>, DrawError> {
        let size = (self.width * SCALE, self.height * SCALE);
        BitMapBackend::with_buffer_and_format(self.samples.as_flattened_mut(), size).map_err(failed)
    }

    fn write(&mut self, line: &PlacedText, fonts: &Fonts) {
        let font = fonts.of(line.style.weight);
        let scale = em_scale(font, line.style.size);
        let per_pixel = f64::from(SCALE);
        for (id, x) in fonts.place(line) {
            #[expect(clippy::cast_possible_truncation, reason = "pictures are small")]
            let pen = (x * per_pixel) as f32;
            let glyph = id.with_scale_and_position(scale, point(pen, 0.0));
            let Some(outline) = font.outline_glyph(glyph) else { continue };
            let bounds = outline.px_bounds();
            outline.draw(|gx, gy, coverage| {
                let dx = f64::from(bounds.min.x) + f64::from(gx) + 0.5;
                let dy = f64::from(bounds.min.y) + f64::from(gy) + 0.5;
                let (px, py) = match line.runs {
                    Runs::Right => (line.at.0 * per_pixel + dx, line.at.1 * per_pixel + dy),
                    Runs::Upwards => (line.at.0 * per_pixel + dy, line.at.1 * per_pixel - dx),
                };
                if px >= 0.0 && py >= 0.0 {
                    self.blend(whole(px), whole(py), line.style.color, f64::from(coverage.min(1.0)));
                }
            });
        }
    }

    /// Blends `color` into a sample.
    fn blend(&mut self, x: u32, y: u32, color: RGBColor, opacity: f64) {
        if x >= self.width * SCALE || y >= self.height * SCALE {
            return;
        }
        let sample = &mut self.samples[as_len(y) * as_len(self.width * SCALE) + as_len(x)];
        for (channel, ink) in sample.iter_mut().zip(pixel(color)) {
            let mixed = f64::from(*channel) * (1.0 - opacity) + f64::from(ink) * opacity;
            *channel = u8::try_from(whole(mixed + 0.5)).unwrap_or(u8::MAX);
        }
    }

    /// Returns the pixels of the picture, averaged from the samples.
    fn averaged(&self) -> Vec<Pixel> {
        const SIDE: usize = SCALE as usize;
        let stride = as_len(self.width) * SIDE;
        let mut pixels = Vec::with_capacity(as_len(self.width) * as_len(self.height));
        for rows in self.samples.chunks_exact(stride * SIDE) {
            let rows: [&[[Pixel; SIDE]]; SIDE] =
                std::array::from_fn(|y| rows[y * stride..][..stride].as_chunks().0);
            pixels.extend((0..as_len(self.width)).map(|x| average(rows.map(|row| row[x]).as_flattened())));
        }
        pixels
    }
}

/// Returns the average of some samples.
fn average(samples: &[Pixel]) -> Pixel {
    // Most pixels are inside an area.
    if samples.iter().all(|sample| *sample == samples[0]) {
        return samples[0];
    }
    std::array::from_fn(|channel| {
        let sum: usize = samples.iter().map(|sample| usize::from(sample[channel])).sum();
        u8::try_from(sum / samples.len()).unwrap_or(u8::MAX)
    })
}

/// Encodes the picture with a palette.
fn encode(pixels: &[Pixel], width: u32, height: u32) -> Result<Vec<u8>, DrawError> {
    let (colors, indices) = indexed(pixels);
    let mut png = Vec::new();
    let mut encoder = png::Encoder::new(&mut png, width, height);
    encoder.set_color(png::ColorType::Indexed);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.set_palette(colors.into_flattened());
    let mut writer = encoder.write_header()?;
    writer.write_chunk(png::chunk::IDAT, &compressed(&indices, width)?)?;
    writer.finish()?;
    Ok(png)
}

/// Compresses the rows of a picture, each after the byte for "not filtered": neighbouring indices of a palette are
/// unrelated, so filters make the picture larger. The png crate would compress row by row, and clear its output buffer
/// for each one.
fn compressed(indices: &[u8], width: u32) -> Result<Vec<u8>, png::EncodingError> {
    let width = as_len(width);
    let mut rows = Vec::with_capacity(indices.len() + indices.len() / width);
    for row in indices.chunks(width) {
        rows.push(0);
        rows.extend_from_slice(row);
    }
    let mut zlib = ZlibEncoder::new(Vec::new(), Compression::default());
    zlib.write_all(&rows)?;
    Ok(zlib.finish()?)
}

/// Returns the most common colours, and for each pixel the index of the nearest one. The remaining colours are shades
/// at the edges of glyphs.
fn indexed(pixels: &[Pixel]) -> (Vec<Pixel>, Vec<u8>) {
    let mut counts: HashMap<Pixel, usize> = HashMap::default();
    for same in pixels.chunk_by(|a, b| a == b) {
        *counts.entry(same[0]).or_default() += same.len();
    }
    let mut colors: Vec<(Pixel, usize)> = counts.into_iter().collect();
    colors.sort_unstable_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
    let kept: Vec<Pixel> = colors.iter().take(COLORS).map(|(color, _)| *color).collect();
    let square = |a: u8, b: u8| u32::from(a.abs_diff(b)).pow(2);
    let distance = |a: &Pixel, b: &Pixel| square(a[0], b[0]) + square(a[1], b[1]) + square(a[2], b[2]);
    let nearest = |color: &Pixel| kept.iter().enumerate().min_by_key(|(_, other)| distance(color, other));
    let index = |color: &Pixel| nearest(color).map_or(0, |(i, _)| u8::try_from(i).unwrap_or(u8::MAX));
    let indices: HashMap<Pixel, u8> = colors.iter().map(|(color, _)| (*color, index(color))).collect();
    let mut out = Vec::with_capacity(pixels.len());
    for same in pixels.chunk_by(|a, b| a == b) {
        out.resize(out.len() + same.len(), indices[&same[0]]);
    }
    (kept, out)
}

const fn pixel(color: RGBColor) -> Pixel {
    [color.0, color.1, color.2]
}

impl FillPattern {
    /// Returns true if a sample lies on one of the pattern's lines.
    fn hits(self, x: u32, y: u32) -> bool {
        const STEP: u32 = 12;
        const LINE: u32 = 4;
        let rising = (x + y) % STEP < LINE;
        let falling = (x + STEP - y % STEP) % STEP < LINE;
        match self {
            FillPattern::Plain => false,
            FillPattern::Rising => rising,
            FillPattern::Falling => falling,
            FillPattern::Crossed => rising || falling,
            FillPattern::Level => y % STEP < LINE,
            FillPattern::Upright => x % STEP < LINE,
            FillPattern::Dotted => x % STEP < LINE + 2 && y % STEP < LINE + 2,
        }
    }
}

/// Returns the colour of a pattern's lines on an area in `color`.
fn ink_on(color: RGBColor) -> RGBColor {
    if luminance(color) > 0.35 { INK } else { WHITE }
}

/// Returns the relative luminance, from 0 to 1, precisely enough to choose between black and white.
fn luminance(RGBColor(r, g, b): RGBColor) -> f64 {
    let linear = |v: u8| (f64::from(v) / 255.0).powf(2.2);
    0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b)
}

/// Returns the scale at which an em is `size` pixels of the picture.
fn em_scale(font: &FontRef<'_>, size: f64) -> PxScale {
    let height = f64::from(font.height_unscaled());
    #[expect(clippy::cast_possible_truncation, reason = "a font size needs no more digits")]
    let scale = (size * f64::from(SCALE) * height / em(font)) as f32;
    PxScale::from(scale)
}

/// Returns the range of samples between two coordinates, clipped to a picture that is `length` pixels long.
fn clip(from: f64, to: f64, length: u32) -> (u32, u32) {
    let sample = |v: f64| whole((v * f64::from(SCALE)).round().clamp(0.0, f64::from(length * SCALE)));
    (sample(from), sample(to))
}

/// Returns the sample at a coordinate.
fn sample(v: f64) -> i32 {
    #[expect(clippy::cast_possible_truncation, reason = "saturates, and pictures are small")]
    let sample = (v * f64::from(SCALE)).round() as i32;
    sample
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

fn failed(error: impl std::fmt::Display) -> DrawError {
    DrawError::Library(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn palette_maps_rare_colors_to_nearest() {
        let shades = (0..=255).map(|v| [v, 0, 0]);
        let pixels: Vec<Pixel> = std::iter::repeat_n([9, 200, 9], 50)
            .chain(shades.clone().chain(shades).chain([[9, 201, 9]]))
            .collect();
        let (colors, indices) = indexed(&pixels);
        assert_eq!((colors.len(), colors[0]), (COLORS, [9, 200, 9]));
        let seen: Vec<Pixel> = indices.iter().map(|i| colors[usize::from(*i)]).collect();
        assert_eq!(seen.len(), pixels.len());
        assert_eq!(seen.last(), Some(&[9, 200, 9]));
        let apart = |(a, b): (&Pixel, &Pixel)| a.iter().zip(b).any(|(a, b)| a.abs_diff(*b) > 1);
        assert!(!seen.iter().zip(&pixels).any(apart));
    }
}
