//! Arguments of `rolldrop run`, and the scenario and cluster that they name.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use crate::cli::exit::Inconclusive;
use crate::cli::formats::ResultFormat;
use crate::cli::headings::{GATE, LOAD, NAMES};
use crate::cli::measure::MeasureArgs;
use rolldrop_drive::embedded::lab;
use rolldrop_drive::run::RunSource;
use rolldrop_load as load;
use rolldrop_record::Evidence;
use rolldrop_scenario::{ExpectFile, Loaded};

/// Arguments of `rolldrop run`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  rolldrop run                                  the built-in naive-exit on the embedded cluster
  rolldrop run prestop-sleep -r 500             another built-in scenario, with another rate
  rolldrop run web.yaml --set load.rate=50      a scenario file, with one value replaced
  rolldrop run naive-exit -- kubectl rollout restart deploy/web
                                                its manifests and load, and pods ended by a command
  rolldrop run --target svc/web -n shop --image IMAGE -- kubectl rollout restart deploy/web
                                                a rollout of your own, on your kubeconfig's cluster
  rolldrop run --target https://shop.example/ -n shop -d 10m
                                                what others do to the pods, for ten minutes

Exit status: 0 completed, gate passed or none asked; 1 gate failed; 2 nothing measured;
3 invalid or inconclusive; 130 interrupted, what was recorded is kept.")]
pub(in crate::cli) struct RunArgs {
    /// A scenario file, or the name of a built-in scenario (see `rolldrop scenarios`) [default:
    /// naive-exit, or none if there is a --target].
    scenario: Option<String>,
    #[command(flatten)]
    pub(super) measure: MeasureArgs,
    /// Length of the counted part of the load, such as 30s or 2m.
    #[arg(short, long, value_name = "D", value_parser = crate::cli::parse_duration, conflicts_with = "stages")]
    duration: Option<Duration>,
    /// A rate over some time, such as 100:10s, or a linear ramp, such as 100-500:30s, instead of the scenario's.
    ///
    /// Repeat it for several stages in a row.
    #[arg(long = "stage", value_name = "RATE:D|FROM-TO:D", conflicts_with = "rate", help_heading = LOAD)]
    stages: Vec<load::RateStage>,
    /// A file of expectations, as a scenario has them below `expect`: these limits replace the scenario's, and
    /// --set expect.KEY=VALUE replaces these.
    #[arg(long, value_name = "FILE", help_heading = GATE)]
    expect: Option<PathBuf>,
    /// The meaning of an inconclusive gate [default: exit status 3].
    ///
    /// `extend` goes on: while the gate is inconclusive, the run does the scenario's disruptions once more, under the
    /// same load, and looks again. The error that each look may spend is fixed before the start.
    #[arg(long, value_enum, value_name = "fail|pass|extend", help_heading = GATE)]
    pub(super) inconclusive: Option<Inconclusive>,
    /// With --inconclusive extend: the most rounds of disruptions, each followed by a look at the gate [default: 4].
    #[arg(long, value_name = "N", requires = "inconclusive", value_parser = clap::value_parser!(u16).range(2..=100), help_heading = GATE)]
    pub(super) max_looks: Option<u16>,
    /// Check the plan (targets, selectors, pods that would end at once, source ports), print, in order, each call of the
    /// API server that the run would make, and change nothing.
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Ask the kernel's connection tracking to which pod each connection was sent, also for unanswered ones.
    ///
    /// Pods that send the load then run in their nodes' network, as root with NET_ADMIN; a load from here needs
    /// NET_ADMIN.
    #[arg(long, value_name = "conntrack", help_heading = NAMES)]
    pub(super) evidence: Option<Evidence>,
    /// The run directory to create [default: rolldrop-runs/SCENARIO-TIME].
    #[arg(long, value_name = "DIR")]
    pub(super) out: Option<PathBuf>,
    /// Format of the output on stdout.
    #[arg(long, value_enum, default_value_t = ResultFormat::Text)]
    pub(super) format: ResultFormat,
    /// The command that ends the pods, instead of the scenario's disruptions.
    ///
    /// It runs here, with KUBECONFIG set to the run's cluster; the load goes on until its changes have settled.
    #[arg(last = true, value_name = "COMMAND")]
    pub(super) command: Vec<OsString>,
}

impl RunArgs {
    /// Returns the scenario and the cluster that the user named.
    pub(super) fn source(&self) -> RunSource {
        self.measure.source(self.scenario.clone())
    }

    /// Loads the scenario, or makes one that has only the target.
    pub(super) fn scenario(&self, source: &RunSource) -> anyhow::Result<Loaded<lab::ClusterConfig>> {
        let mut own: Vec<String> =
            self.duration.map(|d| format!("load.duration={}ms", d.as_millis())).into_iter().collect();
        own.extend(stage_overrides(&self.stages));
        own.extend(self.evidence.map(|evidence| format!("load.evidence={evidence}")));
        let mut loaded = source.load(own)?;
        if let Some(path) = &self.expect {
            loaded.scenario.expect_also(&ExpectFile::read(path)?, &self.measure.set)?;
        }
        Ok(loaded)
    }
}

/// Converts `--stage` to overrides of a scenario's values.
pub(super) fn stage_overrides(stages: &[load::RateStage]) -> Vec<String> {
    if stages.is_empty() {
        return Vec::new();
    }
    let stage = |stage: &load::RateStage| {
        let load::RateStage { from, to, duration } = stage;
        let ramp = if from == to { String::new() } else { format!("from: {from}, ramp: linear, ") };
        format!("{{{ramp}rate: {to}, duration: {}ms}}", duration.as_millis())
    };
    let stages: Vec<String> = stages.iter().map(stage).collect();
    // Stages have their own rates and durations.
    let set = |name: &str| format!("load.{name}=null");
    vec![set("rate"), set("duration"), format!("load.stages=[{}]", stages.join(", "))]
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use rolldrop_drive::run::{expected_targets, load_settings};
    use rolldrop_scenario as scenario;

    #[test]
    fn stage_options_replace_scenario_stages() {
        let stages = ["0-50:2s", "50:20s"].map(|text| text.parse().unwrap());
        let loaded = scenario::load::<Value>(scenario::DEFAULT, &stage_overrides(&stages)).unwrap();
        let found = expected_targets(&loaded.scenario);
        let settings = load_settings(&loaded.scenario, &found).unwrap();
        assert_eq!(settings.pace, load::Pace::Open(stages.to_vec()));
    }
}
