//! Renders a canvas as SVG. Texts are drawn as outlines of the bundled font, so that they look the same where the font
//! is missing; labels contain the words.

use std::collections::{BTreeMap, BTreeSet};

use ab_glyph::{Font, FontRef, GlyphId, OutlineCurve, Point};
use maud::Render;
use plotters::style::RGBColor;

use super::{Canvas, CanvasShape, FillPattern, PlacedText, Rect, Runs, Weight, em};
use crate::charts::palette;

pub(super) fn svg(canvas: &Canvas, title: &str, alt: &str) -> String {
    let mut drawing = Drawing::default();
    canvas.shapes.iter().for_each(|shape| drawing.draw(shape, canvas));
    drawing.finish_areas();
    let (width, height) = (canvas.width, canvas.height);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\">\n\
         <title>{}</title>\n<desc>{}</desc>\n<defs>\n",
        escaped(title),
        escaped(alt)
    );
    for (weight, glyph) in &drawing.glyphs {
        let path = outline(canvas.fonts.of(*weight), *glyph);
        out.push_str(&format!("<path id=\"{}\" d=\"{path}\"/>\n", glyph_id(*weight, *glyph)));
    }
    drawing.patterns.values().for_each(|pattern| out.push_str(pattern));
    out.push_str(&format!("</defs>\n<path fill=\"#ffffff\" d=\"M0 0H{width}V{height}H0Z\"/>\n"));
    out.push_str(&drawing.body);
    out.push_str("</svg>\n");
    out
}

/// SVG elements drawn so far, and the definitions that they refer to.
#[derive(Default)]
struct Drawing {
    body: String,
    /// Consecutive plain areas of the same colour.
    areas: Option<(RGBColor, String)>,
    glyphs: BTreeSet<(Weight, GlyphId)>,
    /// Pattern definitions, by id.
    patterns: BTreeMap<String, String>,
}

impl Drawing {
    fn draw(&mut self, shape: &CanvasShape, canvas: &Canvas) {
        if let CanvasShape::Area(rect, color, pattern) = shape {
            self.fill(*rect, *color);
            if *pattern == FillPattern::Plain {
                return;
            }
        }
        self.finish_areas();
        let drawn = match shape {
            CanvasShape::Area(rect, color, pattern) => {
                let ink = palette::ink_on(*color);
                let lines = lines(*pattern);
                self.textured(*rect, &format!("{pattern:?}").to_lowercase(), (6.0, &lines), ink)
            }
            CanvasShape::Stripes(rect, color) => {
                self.textured(*rect, "stripes", (8.0, "M0 0H3L0 3ZM8 0V3L3 8H0Z"), *color)
            }
            CanvasShape::Outline(rect, color) => {
                format!("<path fill=\"none\" stroke=\"{}\" d=\"{}\"/>\n", hex(*color), inside(*rect))
            }
            CanvasShape::Path(points, width, color) => {
                let points: Vec<String> =
                    points.iter().map(|(x, y)| format!("{} {}", px(*x), px(*y))).collect();
                format!(
                    "<path fill=\"none\" stroke=\"{}\" stroke-width=\"{width}\" stroke-linejoin=\"round\" d=\"M{}\"/>\n",
                    hex(*color),
                    points.join("L")
                )
            }
            CanvasShape::Text(line) => self.written(line, canvas),
        };
        self.body.push_str(&drawn);
    }

    fn fill(&mut self, rect: Rect, color: RGBColor) {
        if self.areas.as_ref().is_some_and(|(of, _)| *of != color) {
            self.finish_areas();
        }
        if rect.right > rect.left && rect.bottom > rect.top {
            self.areas.get_or_insert_with(|| (color, String::new())).1.push_str(&area(rect));
        }
    }

    fn finish_areas(&mut self) {
        if let Some((color, path)) = self.areas.take() {
            self.body.push_str(&format!("<path fill=\"{}\" d=\"{path}\"/>\n", hex(color)));
        }
    }

    /// Draws an area with a pattern of lines that repeats every `step` pixels.
    fn textured(&mut self, rect: Rect, name: &str, (step, lines): (f64, &str), ink: RGBColor) -> String {
        let id = format!("{name}-{}", &hex(ink)[1..]);
        let path = area(rect);
        let area = format!("<path fill=\"url(#{id})\" d=\"{path}\"/>\n");
        self.patterns.entry(id).or_insert_with_key(|id| {
            format!(
                "<pattern id=\"{id}\" width=\"{step}\" height=\"{step}\" patternUnits=\"userSpaceOnUse\">\
                 <path fill=\"{}\" d=\"{lines}\"/></pattern>\n",
                hex(ink)
            )
        });
        area
    }

    fn written(&mut self, line: &PlacedText, canvas: &Canvas) -> String {
        let weight = line.style.weight;
        let scale = line.style.size / em(canvas.fonts.of(weight));
        let turn = if line.runs == Runs::Upwards { " rotate(-90)" } else { "" };
        let mut out = format!(
            "<g role=\"img\" aria-label=\"{}\" fill=\"{}\" transform=\"translate({} {}){turn} scale({scale:.5} -{scale:.5})\">",
            escaped(&line.text),
            hex(line.style.color),
            px(line.at.0),
            px(line.at.1)
        );
        for (glyph, x) in canvas.fonts.place(line) {
            // A space has no outline.
            if canvas.fonts.of(weight).outline(glyph).is_some() {
                self.glyphs.insert((weight, glyph));
                out.push_str(&format!("<use href=\"#{}\" x=\"{:.0}\"/>", glyph_id(weight, glyph), x / scale));
            }
        }
        out.push_str("</g>\n");
        out
    }
}

fn escaped(text: &str) -> String {
    text.render().into_string()
}

fn hex(RGBColor(red, green, blue): RGBColor) -> String {
    format!("#{red:02x}{green:02x}{blue:02x}")
}

/// Rounds a coordinate to half a pixel, as the PNG does.
fn px(v: f64) -> f64 {
    (v * 2.0).round() / 2.0
}

fn area(rect: Rect) -> String {
    let [left, top, right, bottom] = [rect.left, rect.top, rect.right, rect.bottom].map(px);
    format!("M{left} {top}H{right}V{bottom}H{left}Z")
}

/// Returns the centre line of an outline that is one pixel wide.
fn inside(rect: Rect) -> String {
    let Rect { left, top, right, bottom } = rect;
    area(Rect { left: left + 0.5, top: top + 0.5, right: right - 0.5, bottom: bottom - 0.5 })
}

/// Returns the lines of a pattern that repeats every 6 pixels.
fn lines(pattern: FillPattern) -> String {
    const RISING: &str = "M0 0H2L0 2ZM6 0V2L2 6H0Z";
    const FALLING: &str = "M0 0H2L6 4V6ZM0 4L2 6H0Z";
    match pattern {
        FillPattern::Plain => String::new(),
        FillPattern::Rising => RISING.to_owned(),
        FillPattern::Falling => FALLING.to_owned(),
        FillPattern::Crossed => format!("{RISING}{FALLING}"),
        FillPattern::Level => "M0 0H6V2H0Z".to_owned(),
        FillPattern::Upright => "M0 0H2V6H0Z".to_owned(),
        FillPattern::Dotted => "M0 0H3V3H0Z".to_owned(),
    }
}

fn glyph_id(weight: Weight, glyph: GlyphId) -> String {
    let cut = if weight == Weight::Bold { 'b' } else { 'r' };
    format!("{cut}{}", glyph.0)
}

/// Returns a glyph's outline in font units, with y pointing upwards.
fn outline(font: &FontRef<'_>, glyph: GlyphId) -> String {
    let mut path = String::new();
    let mut pen = None;
    for curve in font.outline(glyph).into_iter().flat_map(|outline| outline.curves) {
        let (from, drawn, to) = match curve {
            OutlineCurve::Line(from, to) => (from, format!("L{}", at(to)), to),
            OutlineCurve::Quad(from, by, to) => (from, format!("Q{} {}", at(by), at(to)), to),
            OutlineCurve::Cubic(from, by, and, to) => {
                (from, format!("C{} {} {}", at(by), at(and), at(to)), to)
            }
        };
        if pen != Some(from) {
            path.push_str(&format!("M{}", at(from)));
        }
        path.push_str(&drawn);
        pen = Some(to);
    }
    path
}

fn at(point: Point) -> String {
    format!("{:.0} {:.0}", point.x, point.y)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::charts::canvas::{Anchor, TextStyle};

    fn drawn() -> String {
        let mut canvas = Canvas::new(300, 80).unwrap();
        let rect = Rect { left: 10.0, top: 10.0, right: 20.25, bottom: 20.0 };
        let (red, blue) = (RGBColor(255, 0, 0), RGBColor(0, 0, 255));
        canvas.fill(rect, red, FillPattern::Plain);
        canvas.fill(Rect { left: 30.0, right: 40.0, ..rect }, red, FillPattern::Plain);
        canvas.fill(Rect { left: 50.0, right: 60.0, ..rect }, blue, FillPattern::Crossed);
        canvas.shade(rect, blue, true);
        canvas.outline(rect, blue);
        canvas.path(&[(0.0, 0.0), (4.0, 2.5)], 3, red);
        let style = TextStyle { size: 16.0, weight: Weight::Bold, color: blue, anchor: Anchor::End };
        canvas.text(200.0, 40.0, "a <b> & a", &style);
        canvas.text_upwards(20.0, 40.0, "up", &style);
        canvas.svg("lost > 1", "\"what\" is seen")
    }

    #[test]
    fn svg_references_match_its_ids() {
        let svg = drawn();
        let after = |mark: &str| -> BTreeSet<String> {
            let named = svg.split(mark).skip(1);
            named.map(|rest| rest.split(['"', ')']).next().unwrap().to_owned()).collect()
        };
        let used: BTreeSet<String> = after("href=\"#").into_iter().chain(after("url(#")).collect();
        assert_eq!(used, after(" id=\""));
        assert_eq!(svg.matches(" id=\"b").count(), 7, "each glyph once, the space not: {svg}");
    }

    #[test]
    fn svg_labels_texts_and_merges_rectangles() {
        let svg = drawn();
        assert!(svg.contains("<title>lost &gt; 1</title>\n<desc>&quot;what&quot; is seen</desc>"), "{svg}");
        assert!(svg.contains("aria-label=\"a &lt;b&gt; &amp; a\""), "{svg}");
        assert!(svg.contains("<path fill=\"#ff0000\" d=\"M10 10H20.5V20H10ZM30 10H40V20H30Z\"/>"), "{svg}");
        assert!(svg.contains("translate(20 40) rotate(-90) scale("), "{svg}");
    }
}
