//! The charts as PNG and SVG.
//!
//! Each chart has two halves: a series, computed from the analysis and tested,
//! and the drawing of it. The size is that of a picture in a document, 1600
//! pixels wide; titles state what was found.

mod acts;
mod axis;
mod canvas;
pub(super) mod comparison;
mod drops;
mod frame;
mod heat;
mod latency;
mod palette;
mod rollout;
mod timeline;
mod traffic;
pub(super) mod tune;
mod what_if;
mod windows;

pub use canvas::Reading;

use std::thread::ScopedJoinHandle;

use super::ReportFile;
use canvas::Canvas;
use rolldrop_analysis::Analysis;

/// A finished chart.
#[derive(Clone, Debug)]
pub struct Chart {
    /// Its file name, such as `drops.png`.
    pub name: &'static str,
    /// What it shows: the finding.
    pub title: String,
    /// What it shows, for those who cannot see it.
    pub alt: String,
    /// The picture.
    pub png: Vec<u8>,
    /// The same picture as SVG.
    pub svg: String,
    /// The values that it shows, where it shows them.
    pub readings: Vec<Reading>,
}

impl Chart {
    fn of(name: &'static str, title: String, alt: String, canvas: &Canvas) -> Result<Self, ChartError> {
        let (png, svg) = (canvas.png()?, canvas.svg(&title, &alt));
        Ok(Self { name, title, alt, png, svg, readings: canvas.readings().to_vec() })
    }

    /// Both forms, with their paths in a report.
    pub(super) fn files(self, folder: &str) -> [ReportFile; 2] {
        let path = format!("{folder}{}", self.name);
        let svg_path = path.replace(".png", ".svg");
        [ReportFile { path, bytes: self.png }, ReportFile { path: svg_path, bytes: self.svg.into_bytes() }]
    }
}

/// Why a chart could not be drawn.
#[derive(Debug, thiserror::Error)]
pub enum ChartError {
    /// The bundled font cannot be read.
    #[error("read the bundled font")]
    Font,
    /// plotters refused to draw.
    #[error("draw: {0}")]
    Draw(String),
    /// The picture could not be encoded.
    #[error("encode PNG: {0}")]
    Encode(#[from] png::EncodingError),
}

/// Draws a chart, if it fits the run.
type Draw = fn(&Analysis) -> Result<Option<Chart>, ChartError>;

/// So many charts are drawn at the same time: each takes some 20 MB of memory while it is drawn.
const SIDE_BY_SIDE: usize = 2;

/// Draws the charts that fit the run.
///
/// # Errors
///
/// None that an analysis can cause; see [`ChartError`].
pub(super) fn draw(analysis: &Analysis) -> Result<Vec<Chart>, ChartError> {
    let all: [Draw; 8] = [
        drops::draw,
        rollout::draw,
        |analysis| timeline::draw(analysis).map(Some),
        traffic::draw,
        windows::draw,
        what_if::draw,
        |analysis| latency::draw(analysis).map(Some),
        |analysis| heat::draw(analysis).map(Some),
    ];
    let mut charts = Vec::new();
    for side_by_side in all.chunks(SIDE_BY_SIDE) {
        let drawn: Result<Vec<_>, _> = std::thread::scope(|scope| {
            let drawing: Vec<_> =
                side_by_side.iter().map(|draw| scope.spawn(move || draw(analysis))).collect();
            let join = |chart: ScopedJoinHandle<'_, _>| match chart.join() {
                Ok(chart) => chart,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            drawing.into_iter().map(join).collect()
        });
        charts.extend(drawn?.into_iter().flatten());
    }
    Ok(charts)
}
