//! Renders an analysis as text, JSON, Markdown, JUnit, HTML and PNG. Pure: it only returns bytes.
//!
//! All formats share the sentences in `words` and the number formats in `format`; `check_words` and
//! `comparison_report` put judgements into words. This crate reads and writes no files, measures nothing and judges
//! nothing: the caller stores the bytes, [`rolldrop_explain`] computes the numbers, and [`rolldrop_judge::gate`] makes
//! the checks.

mod charts;
mod check_words;
mod comment;
mod comparison_report;
pub mod docs_pages;
mod finding_words;
mod format;
mod github;
mod html;
mod junit;
mod long_sleep_words;
mod lost;
mod markdown;
mod methods;
mod prediction_words;
mod prometheus;
#[cfg(test)]
mod samples;
mod stream_sections;
mod summary;
mod tune_report;
mod watch_gate;
mod watch_history;
mod watch_lines;
mod watch_metrics;
mod watch_traffic_words;
mod words;

pub use charts::{Chart, ChartReading, DrawError};
pub use finding_words::{reason, tell};
pub use format::rfc3339_seconds;
pub use github::Github;
pub use summary::TextOptions;
pub use tune_report::decision_words;
pub use watch_gate::HistoryGate;
pub use watch_history::{JudgedTime, WatchHistory, WatchReport};
pub use watch_lines::{
    EarlierRecord, LogReading, WatchInterruption, WatchOutput, WatchSummary, WatchedSpan, WorkloadNote,
    unusable_beats, watch_ranking, workload_notes,
};
pub use watch_metrics::{MAX_WORKLOADS, SourceHealth, WatchMetrics};

use std::borrow::Cow;
use std::io;
use std::sync::Arc;

use comparison_report::ComparisonText;
use rolldrop_explain::Analysis;
use rolldrop_explain::model::{ChartData, CheckText, Deed, LostRequest, PredictedCut, RunResult};
use rolldrop_judge::compare::Incomparable;
use rolldrop_judge::judgements::comparison::{Comparison, SideChart};
use rolldrop_judge::judgements::gate_check::Check;
use rolldrop_judge::prediction::{FurtherCut, NoPrediction, StreamPrediction};
use rolldrop_judge::tuning::Tuning;
use rolldrop_record::shown;

/// One file of a report.
#[derive(Clone, Debug)]
pub struct ReportFile {
    /// Path of the file in the run directory, such as `charts/drops.png`.
    pub path: String,
    /// Contents of the file.
    pub bytes: Vec<u8>,
}

impl ReportFile {
    fn new(path: impl Into<String>, bytes: impl Into<Vec<u8>>) -> Self {
        Self { path: path.into(), bytes: bytes.into() }
    }
}

/// Returns the analysis with all text from the cluster and from apps made safe to show anywhere.
fn as_shown(analysis: &Analysis) -> Cow<'_, Analysis> {
    let is_plain = |lost: &LostRequest| {
        [&lost.source, &lost.target].iter().all(|text| matches!(shown::one_line(text), Cow::Borrowed(_)))
    };
    match shown::values(&analysis.result) {
        Cow::Borrowed(_) if analysis.lost.iter().all(is_plain) && charts_are_plain(analysis) => {
            Cow::Borrowed(analysis)
        }
        result => {
            let mut analysis = Analysis { result: result.into_owned(), ..analysis.clone() };
            chart_texts(&mut analysis.charts, |text| *text = shown::one_line(text).into_owned());
            for lost in &mut analysis.lost {
                lost.source = Arc::from(shown::one_line(&lost.source));
                lost.target = Arc::from(shown::one_line(&lost.target));
            }
            Cow::Owned(analysis)
        }
    }
}

fn charts_are_plain(analysis: &Analysis) -> bool {
    let ChartData { pods, actions, traffic, .. } = &analysis.charts;
    let (pods, actions, traffic) = (pods.clone(), actions.clone(), traffic.clone());
    let mut charts = ChartData { pods, actions, traffic, ..ChartData::default() };
    let mut is_plain = true;
    chart_texts(&mut charts, |text| is_plain &= matches!(shown::one_line(text), Cow::Borrowed(_)));
    is_plain
}

/// Visits each piece of text in the charts that comes from a cluster or a user.
fn chart_texts(charts: &mut ChartData, mut visit: impl FnMut(&mut String)) {
    charts.pods.iter_mut().for_each(|pod| visit(&mut pod.name));
    charts.traffic.pods.iter_mut().for_each(|pod| visit(&mut pod.name));
    for act in &mut charts.actions {
        match &mut act.what {
            Deed::Action(_, pod) | Deed::Refused(_, pod) => pod.iter_mut().for_each(&mut visit),
            Deed::CommandStarted(words) => words.iter_mut().for_each(&mut visit),
            Deed::CommandEnded(_) => {}
        }
    }
}

/// Renders the summary for a terminal: the conclusion first, then the evidence.
pub fn text(analysis: &Analysis, options: &TextOptions) -> String {
    summary::render(&shown::values(&analysis.result), options)
}

/// Renders `result.json`, as `docs/result.schema.json` describes it.
///
/// # Panics
///
/// Never: the result contains only what JSON can represent.
pub fn json(result: &RunResult) -> Vec<u8> {
    let mut bytes =
        serde_json::to_vec_pretty(&*shown::values(result)).expect("plain data with names as keys");
    bytes.push(b'\n');
    bytes
}

/// Renders `summary.md`, which suits the job summary of a CI system.
pub fn markdown(analysis: &Analysis) -> String {
    markdown::render(&shown::values(&analysis.result))
}

/// Renders `junit.xml`: the run and each of its checks as test cases, for a CI system.
pub fn junit(result: &RunResult) -> String {
    junit::render(&shown::values(result))
}

/// Renders all files of a tuning: `tune.json`, `tune.md` and `tune.png`.
///
/// # Errors
///
/// Same as [`charts()`].
pub fn tuning(tuning: &Tuning) -> Result<Vec<ReportFile>, DrawError> {
    let tuning = shown::values(tuning);
    let proof = tune_report::shown(&tuning).map(|shown| shown.proof);
    let chart = charts::tune_chart::draw(&tuning, tune_report::headline(&tuning), proof.as_ref())?;
    Ok(tune_report::files(&tuning, chart))
}

/// Renders a tuning for a terminal.
pub fn tuning_text(tuning: &Tuning, options: &TextOptions) -> String {
    tune_report::text(&shown::values(tuning), options)
}

/// Returns the result of a tuning in one sentence.
pub fn tuning_headline(tuning: &Tuning) -> String {
    tune_report::headline(&shown::values(tuning))
}

/// Renders the output for a GitHub Actions step.
pub fn github(result: &RunResult) -> Github {
    github::render(&shown::values(result))
}

/// Renders a pull request comment. Its first line is a hidden marker so that the next comment about the same scenario
/// can find and replace it.
pub fn comment(result: &RunResult) -> String {
    comment::render(&shown::values(result))
}

/// Renders the figures and the verdict as metrics for node_exporter's textfile collector.
pub fn prometheus(result: &RunResult) -> String {
    prometheus::render(&shown::values(result))
}

/// Writes `lost.csv`, with one row per dropped request, as `docs/run-directory.md` describes it.
///
/// # Errors
///
/// Fails if the rows cannot be written.
pub fn write_lost(analysis: &Analysis, out: impl io::Write) -> io::Result<()> {
    lost::write(&as_shown(analysis), out)
}

/// Renders `report.html`, a self-contained file with embedded charts.
pub fn html(analysis: &Analysis, charts: &[Chart]) -> String {
    html::render(&shown::values(&analysis.result), charts)
}

/// Draws the charts.
///
/// # Errors
///
/// No analysis should cause an error; see [`DrawError`].
pub fn charts(analysis: &Analysis) -> Result<Vec<Chart>, DrawError> {
    charts::draw(&as_shown(analysis))
}

/// Renders the report files: `result.json`, `summary.md`, `junit.xml`, `report.html` and `charts/*.png`.
/// It leaves out `lost.csv`, which may be larger than memory; use [`write_lost`] for that file.
///
/// # Errors
///
/// Same as [`charts()`].
pub fn all(analysis: &Analysis) -> Result<Vec<ReportFile>, DrawError> {
    let charts = charts(analysis)?;
    let mut files = vec![
        ReportFile::new("result.json", json(&analysis.result)),
        ReportFile::new("summary.md", markdown(analysis)),
        ReportFile::new("junit.xml", junit(&analysis.result)),
        ReportFile::new("report.html", html(analysis, &charts)),
    ];
    files.extend(charts.into_iter().map(|chart| chart.file("charts/")));
    Ok(files)
}

/// Converts the checks of a gate to the form used in `result.json`.
pub fn written(checks: &[Check]) -> Vec<CheckText> {
    checks.iter().map(check_words::written).collect()
}

/// Renders the checks of a gate for a terminal, one line each.
pub fn checks_text(result: &RunResult) -> String {
    check_words::text(&result.checks)
}

/// Explains why two sides are not compared.
pub fn incomparable(why: &Incomparable) -> String {
    comparison_report::incomparable(why)
}

/// Renders the prediction of cut streams for a terminal: the advice, its basis, and tables of settings.
pub fn prediction_text(prediction: &StreamPrediction) -> String {
    prediction_words::text(prediction)
}

/// Returns the reason why nothing can be predicted from a run, and what would help.
pub fn no_prediction(why: &NoPrediction) -> String {
    prediction_words::refusal(why)
}

/// Converts the predicted cuts of a further termination to the form used in `result.json`.
pub fn predicted_cuts(cuts: &[FurtherCut]) -> Vec<PredictedCut> {
    cuts.iter().map(prediction_words::predicted).collect()
}

/// Renders a comparison for a terminal: the conclusion first, then each figure.
pub fn comparison_text(comparison: &Comparison, options: &TextOptions) -> String {
    comparison_report::text(&shown::values(&ComparisonText::of(comparison)), options)
}

/// Renders `comparison.json`, as `docs/comparison.schema.json` describes it.
///
/// # Panics
///
/// Never: the comparison contains only what JSON can represent.
pub fn comparison_json(comparison: &Comparison) -> Vec<u8> {
    comparison_report::json(&shown::values(&ComparisonText::of(comparison)))
}

/// Renders all files of a comparison: `comparison.json`, `.md` and `.html`, and `charts/comparison.png`.
///
/// # Errors
///
/// Same as [`charts()`].
pub fn comparison(
    comparison: &Comparison,
    baseline: &SideChart,
    candidate: &SideChart,
) -> Result<Vec<ReportFile>, DrawError> {
    let written = ComparisonText::of(comparison);
    let comparison = shown::values(&written);
    let (title, sides) =
        (comparison_report::headline(&comparison), [&comparison.baseline, &comparison.candidate]);
    let chart = charts::comparison_chart::draw(sides, title, baseline, candidate)?;
    Ok(comparison_report::files(&comparison, chart))
}

#[cfg(test)]
mod tests;
