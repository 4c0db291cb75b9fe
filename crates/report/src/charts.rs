//! Draws the charts as PNG.
//!
//! Each chart has two parts: a series, which is computed from the analysis and tested, and its drawing. Charts are 1600
//! pixels wide, which suits documents. A chart's title states its finding.

mod acts;
mod axis;
pub(super) mod comparison_chart;
mod drops_chart;
mod frame;
mod heat_chart;
mod latency_chart;
mod palette;
mod rollout_chart;
mod streams_chart;
mod survival_chart;
mod timeline_chart;
mod traffic_chart;
pub(super) mod tune_chart;
pub(super) mod watch_chart;
mod what_if_chart;
mod windows_chart;

pub use rolldrop_canvas::{ChartReading, DrawError};

use std::thread::ScopedJoinHandle;

use super::ReportFile;
use rolldrop_canvas::Canvas;
use rolldrop_explain::Analysis;

/// A finished chart.
#[derive(Clone, Debug)]
pub struct Chart {
    /// File name of the PNG, such as `drops.png`.
    pub name: &'static str,
    /// Title of the chart, which states its finding.
    pub title: String,
    /// Description of the picture, for readers who cannot see it.
    pub alt: String,
    /// The picture as PNG.
    pub png: Vec<u8>,
    /// Values that the picture shows, each with its area.
    pub readings: Vec<ChartReading>,
}

impl Chart {
    /// Finishes a picture of this height, and adds the provenance of its numbers at the bottom.
    fn of(
        name: &'static str,
        title: String,
        alt: String,
        mut canvas: Canvas,
        provenance: &str,
        height: u32,
    ) -> Result<Self, DrawError> {
        frame::foot(&mut canvas, provenance, height);
        let (png, readings) = canvas.finish(height)?;
        Ok(Self { name, title, alt, png, readings })
    }

    /// Returns the picture's file, in this folder of a report.
    pub(super) fn file(self, folder: &str) -> ReportFile {
        ReportFile::new(format!("{folder}{}", self.name), self.png)
    }
}

/// A function that draws a chart, or returns `None` if the chart does not suit the run.
type Draw = fn(&Analysis) -> Result<Option<Chart>, DrawError>;

/// Number of charts that are drawn in parallel. Drawing a chart takes about 20 MB of memory.
const SIDE_BY_SIDE: usize = 2;

/// Draws the charts that suit the run.
///
/// # Errors
///
/// No analysis should cause an error; see [`DrawError`].
pub(super) fn draw(analysis: &Analysis) -> Result<Vec<Chart>, DrawError> {
    let all: [Draw; 10] = [
        drops_chart::draw,
        rollout_chart::draw,
        |analysis| timeline_chart::draw(analysis).map(Some),
        traffic_chart::draw,
        windows_chart::draw,
        what_if_chart::draw,
        streams_chart::draw,
        survival_chart::draw,
        |analysis| latency_chart::draw(analysis).map(Some),
        |analysis| heat_chart::draw(analysis).map(Some),
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
