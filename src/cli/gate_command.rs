//! `rolldrop gate`: checks a run, or a watch history, against its limits and sets the exit status.

mod history_gate;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::ValueEnum;

use super::compare_args::CompareArgs;
use super::exit::{Exit, Inconclusive};
use super::formats::ResultFormat;
use super::say::say;
use history_gate::WorkloadArg;
use rolldrop_campaign::analysis::{Given, JudgedRun, analyse};
use rolldrop_campaign::baseline::{self, sample};
use rolldrop_explain::model::{CheckVerdict, Verdict};
use rolldrop_judge::compare::CompareOptions;
use rolldrop_judge::gate;
use rolldrop_record::load::in_units;
use rolldrop_record::termination_store::has_history;
use rolldrop_record::{Expect, RunDir};
use rolldrop_report as report;
use rolldrop_scenario::expectations::{self, ExpectFile};

/// Arguments of `rolldrop gate`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  rolldrop gate rolldrop-runs/web-20260102T150405Z
  rolldrop gate rolldrop-runs/web-20260102T150405Z --max-dropped 0 --max-window 2s
  rolldrop gate rolldrop-runs/web-20260102T150405Z --expect limits.yaml --set expect.outage.max=500ms
  rolldrop gate rolldrop-runs/web-20260102T150405Z --save-baseline baseline.json
  rolldrop gate rolldrop-runs/web-20260103T150405Z --baseline baseline.json
  rolldrop gate rolldrop-runs/web-20260104T150405Z --baseline rolldrop-runs
  rolldrop gate rolldrop-runs/web-20260104T150405Z --baseline rolldrop-runs --set expect.latency.p99.worse=10%
  rolldrop gate history --since 24h --workload shop/web --max-dropped 0

Limits that you do not set here come from the run's scenario. If there are none, the default gate applies: no dropped \
request, at most 0.1% of responses with an app error, and no container that restarted on its own. For a \
`rolldrop watch` history: no lost request, no pod killed at the end of its grace period, and no failed preStop hook.")]
pub(super) struct GateArgs {
    /// Run directory, or a directory that `rolldrop watch --out` writes.
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// File with expectations, in the form of `expect` in a scenario; they replace the run's own.
    #[arg(long, value_name = "FILE")]
    expect: Option<PathBuf>,
    /// Replace one expectation, such as expect.latency.p99.max=250ms; repeatable.
    #[arg(long = "set", value_name = "expect.KEY=VALUE")]
    set: Vec<String>,
    /// Treat an inconclusive gate as failed or passed [default: exit status 3].
    #[arg(long, value_parser = without_extension, value_name = "fail|pass")]
    inconclusive: Option<Inconclusive>,
    /// Maximum number of dropped requests; short for --set expect.dropped.max=N.
    #[arg(long, value_name = "N")]
    max_dropped: Option<u64>,
    /// Longest endpoint-propagation window, such as 2s; short for --set expect.windows.max=D.
    #[arg(long, value_name = "D", value_parser = super::parse_duration)]
    max_window: Option<Duration>,
    /// Period of a watch history to judge, up to now, such as 24h or 7d [default: all that is kept].
    #[arg(long, value_name = "D", value_parser = super::days_or_duration)]
    since: Option<Duration>,
    /// Workload in a watch history to judge: NAMESPACE/NAME or NAMESPACE/KIND/NAME; repeatable [default: all].
    #[arg(long, value_name = "WORKLOAD", value_parser = WorkloadArg::parse)]
    workload: Vec<WorkloadArg>,
    #[command(flatten)]
    compare: CompareArgs,
    /// File to write a baseline to, for comparisons with later runs
    #[arg(long, value_name = "FILE")]
    save_baseline: Option<PathBuf>,
    /// File to write the checks to, as JUnit XML. The run directory has one for the scenario's own limits
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Format of the output on stdout.
    #[arg(long, value_enum, default_value_t = ResultFormat::Text)]
    format: ResultFormat,
}

impl GateArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        if has_history(&self.run) {
            return history_gate::judge(&self);
        }
        let run_dir = RunDir::open(&self.run)?;
        if self.since.is_some() || !self.workload.is_empty() {
            bail!(
                "--since and --workload select terminations in a watch history, but {} is a run",
                self.run.display()
            );
        }
        let mut expect = self.expectations(&run_dir)?;
        let earlier = self.compare.earlier(Some(run_dir.info()?.started))?;
        let has_baseline = !self.compare.baseline.is_empty();
        if expect.is_empty() && !has_baseline && self.save_baseline.is_none() {
            say("this run has no expectations, so the default gate applies (expect.limits: default)");
            expect = Expect::default_gate();
        }
        let mut judged = analyse(&run_dir, &Given { expect: Some(&expect), ..Given::default() })?;
        let candidate = sample(&run_dir, &judged)?;
        let unfit = earlier.why_unfit(&candidate);
        let mut compared_with = Vec::new();
        let result = &judged.analysed.analysis.result;
        if let Verdict::Invalid { why } = &result.verdict
            && has_baseline
            && !self.compare.anyway
        {
            let why = why.join("; ");
            say(&format!("the run is not compared with the baseline, because it is invalid ({why})"));
        } else if has_baseline {
            let mut checks = gate::with_defaults(result, &expect);
            let CompareArgs { tolerance, last, .. } = self.compare;
            let options = CompareOptions { worse: expect.worse(), ..self.compare.options() };
            let (compared, runs) = earlier.judge(&candidate, &options, tolerance, last)?;
            checks.extend(compared);
            compared_with = runs;
            judged = JudgedRun::new(judged.analysed, checks);
        }
        let analysis = &judged.analysed.analysis;
        let result = &analysis.result;
        if let Some(path) = &self.save_baseline {
            let verdict = gate::verdict(result.checks.iter().map(|check| check.verdict));
            let failed = has_baseline && verdict == CheckVerdict::Fail;
            match failed.then(|| "the run failed the gate".to_owned()).or(unfit) {
                Some(why) => say(&format!("{why}, so {} was not written", path.display())),
                None => baseline::save(path, compared_with, candidate, self.compare.last)?,
            }
        }
        if let Some(path) = &self.junit {
            write_junit(path, &report::junit(result))?;
        }
        self.format.show(analysis, || report::checks_text(result))?;
        Ok(Exit::of(result, false).settled(self.inconclusive).into())
    }

    /// Returns the run's expectations, with replacements from the command line.
    fn expectations(&self, run_dir: &RunDir) -> anyhow::Result<Expect> {
        let file = self.expect.as_deref().map(ExpectFile::read).transpose()?;
        let recorded = run_dir.info()?.expect;
        let place = run_dir.path().join("run.json").display().to_string();
        Ok(expectations::with(&recorded, &place, file.as_ref(), &self.assignments())?)
    }

    /// Returns the assignments from the command line.
    fn assignments(&self) -> Vec<String> {
        let mut set = self.set.clone();
        set.extend(self.max_dropped.map(|max| format!("expect.dropped.max={max}")));
        set.extend(self.max_window.map(|max| format!("expect.windows.max={}", in_units(max))));
        set
    }
}

fn write_junit(path: &Path, junit: &str) -> anyhow::Result<()> {
    std::fs::write(path, junit).with_context(|| format!("failed to write {}", path.display()))
}

/// Parses `--inconclusive` for a finished run, which cannot be extended.
fn without_extension(text: &str) -> Result<Inconclusive, String> {
    match Inconclusive::from_str(text, false) {
        Ok(Inconclusive::Extend) => Err(
            "the run has finished and cannot be extended: start a new one with `rolldrop run SCENARIO --inconclusive \
             extend`, or use fail or pass"
                .to_owned(),
        ),
        Ok(inconclusive) => Ok(inconclusive),
        Err(_) => Err("expected fail or pass".to_owned()),
    }
}
