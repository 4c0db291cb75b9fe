//! `rolldrop predict`: predicts how many of a run's streams a termination would cut.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use serde::Serialize;

use super::compare_args::percent;
use super::exit::Exit;
use super::formats::LoadFormat;
use super::parse_duration;
use super::say::print;
use rolldrop_campaign::analysis::{Given, analyse};
use rolldrop_explain::model::{figure_text, lasted_at_least_s};
use rolldrop_judge::prediction::{MAX_CUT, PredictionRequest, StreamPrediction, measured_windows};
use rolldrop_record::RunDir;
use rolldrop_record::run_info::Tool;
use rolldrop_report as report;

/// Version of the `--format json` output.
const SCHEMA_VERSION: u32 = 1;

/// Content of `--format json`.
#[derive(Serialize)]
struct PredictionReport {
    schema_version: u32,
    tool: Tool,
    #[serde(flatten)]
    prediction: StreamPrediction,
}

/// Arguments of `rolldrop predict`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  rolldrop predict rolldrop-runs/llm-20260102T150405Z
  rolldrop predict run1 --max-cut 0.1 --sleep 5s
  rolldrop predict run1 --grace 45s --terminations 30

The prediction uses the steady part of the run before the first termination: it counts the streams that a pod's \
termination would have cut at many times in that part. It is valid for the run's own rate of streams per pod.

Exit status: 0 predicted; 2 the run cannot be read, or has no streams; 3 the run does not allow a prediction (the reason is printed).")]
pub(super) struct PredictArgs {
    /// Run directory of a load with --stream.
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// Mean number of streams that a termination may cut
    #[arg(long, value_name = "N", default_value_t = MAX_CUT, value_parser = super::cut_limit)]
    max_cut: f64,
    /// preStop sleep, for apps that keep serving after SIGTERM [default: the longest measured propagation window]
    #[arg(long, value_name = "D", value_parser = parse_duration)]
    sleep: Option<Duration>,
    /// Grace period to show (also as the preStop sleep of an app that cuts its streams at SIGTERM); repeatable
    #[arg(long, value_name = "D", value_parser = parse_duration)]
    grace: Vec<Duration>,
    /// Number of terminations whose cuts to predict [default: one per pod, as in a rollout]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    terminations: Option<u64>,
    /// Confidence of each bound and interval
    #[arg(long, value_name = "PERCENT", value_parser = percent, default_value = "95%")]
    confidence: f64,
    /// Format of the output on stdout
    #[arg(long, value_enum, default_value_t = LoadFormat::Text)]
    format: LoadFormat,
}

impl PredictArgs {
    /// Runs the command.
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        if !(0.5..1.0).contains(&self.confidence) {
            let confidence = figure_text::percent(self.confidence);
            bail!("--confidence is {confidence}, but must be at least 50 % and below 100 %");
        }
        let judged = analyse(&RunDir::open(&self.run)?, &Given::default())?;
        let analysed = &judged.analysed;
        let Some(steady) = &analysed.analysis.steady else {
            bail!("{} contains no streams: record some with --stream (load.stream)", self.run.display());
        };
        let result = &analysed.analysis.result;
        let windows_s = measured_windows(result);
        let graces_s: Vec<f64> = self.grace.iter().map(Duration::as_secs_f64).collect();
        let request = PredictionRequest {
            windows_s: &windows_s,
            lasted_at_least_s: lasted_at_least_s(&result.terminations, &result.groups, |_| true)
                .unwrap_or(0.0),
            sleep_s: self.sleep.map(|sleep| sleep.as_secs_f64()),
            graces_s: &graces_s,
            terminations: self.terminations,
            max_cut: self.max_cut,
            confidence: self.confidence,
        };
        match StreamPrediction::of(steady, &request) {
            Ok(prediction) => {
                print(&match self.format {
                    LoadFormat::Json => {
                        let (schema_version, tool) = (SCHEMA_VERSION, Tool::this());
                        let report = PredictionReport { schema_version, tool, prediction };
                        serde_json::to_string_pretty(&report)? + "\n"
                    }
                    LoadFormat::Text => report::prediction_text(&prediction),
                })?;
                Ok(Exit::Ok.into())
            }
            Err(why) => {
                super::say::say(&report::no_prediction(&why));
                Ok(Exit::Invalid.into())
            }
        }
    }
}
