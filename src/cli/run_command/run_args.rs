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
                                                its manifests, with a command that ends pods
  rolldrop run --target svc/web -n shop --image IMAGE -- kubectl rollout restart deploy/web
                                                a rollout of your own, on your kubeconfig's cluster
  rolldrop run --target https://shop.example/ -n shop -d 10m
                                                watch what others do to the pods, for ten minutes

Exit status: 0 completed, and the gate (if any) passed; 1 gate failed; 2 nothing measured;
3 invalid, partial or inconclusive; 130 interrupted, the recorded data is kept.")]
pub(in crate::cli) struct RunArgs {
    /// Scenario file, or name of a built-in scenario (see `rolldrop scenarios`) [default: naive-exit, or none with
    /// --target].
    scenario: Option<String>,
    #[command(flatten)]
    pub(super) measure: MeasureArgs,
    /// Length of the counted part of the load, such as 30s or 2m.
    #[arg(short, long, value_name = "D", value_parser = crate::cli::parse_duration, conflicts_with = "stages")]
    duration: Option<Duration>,
    /// Rate for a period, such as 100:10s, or a linear ramp, such as 100-500:30s, instead of the scenario's.
    ///
    /// Repeat it to run several stages in a row.
    #[arg(long = "stage", value_name = "RATE:D|FROM-TO:D", conflicts_with = "rate", help_heading = LOAD)]
    stages: Vec<load::RateStage>,
    /// File with expectations, in the form of `expect` in a scenario; they replace the scenario's. --set
    /// expect.KEY=VALUE replaces single ones.
    #[arg(long, value_name = "FILE", help_heading = GATE)]
    expect: Option<PathBuf>,
    /// Treat an inconclusive gate as failed or passed, or extend the run [default: exit status 3].
    ///
    /// With `extend`, the run repeats the scenario's disruptions under the same load and looks at the gate again, while
    /// the gate is inconclusive. The error allowed for each look is fixed before the start.
    #[arg(long, value_enum, value_name = "fail|pass|extend", help_heading = GATE)]
    pub(super) inconclusive: Option<Inconclusive>,
    /// Maximum number of rounds of disruptions with --inconclusive extend, each with a look at the gate [default: 4].
    #[arg(long, value_name = "N", requires = "inconclusive", value_parser = clap::value_parser!(u16).range(2..=100), help_heading = GATE)]
    pub(super) max_looks: Option<u16>,
    /// Check the plan (targets, selectors, pods ending at the same time, source ports), print the API calls of the run
    /// in order, and change nothing.
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Learn from the kernel's connection tracking which pod each connection was sent to, even without a response.
    ///
    /// A load from this machine needs NET_ADMIN. Load pods then run in their nodes' network, as root with NET_ADMIN.
    #[arg(long, value_name = "conntrack", help_heading = NAMES)]
    pub(super) evidence: Option<Evidence>,
    /// Run directory to create [default: rolldrop-runs/SCENARIO-TIME].
    #[arg(long, value_name = "DIR")]
    pub(super) out: Option<PathBuf>,
    /// Format of the output on stdout.
    #[arg(long, value_enum, default_value_t = ResultFormat::Text)]
    pub(super) format: ResultFormat,
    /// Command that ends the pods, instead of the scenario's disruptions.
    ///
    /// It runs on this machine, with KUBECONFIG set to the run's cluster. The load continues until the changes have
    /// settled.
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
