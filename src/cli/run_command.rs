//! `rolldrop run`: measures a scenario, and then makes the report from the run directory exactly as `rolldrop report`
//! does.

mod run_args;

use std::process::ExitCode;

use anyhow::{Context, bail};

use super::exit::{Exit, Inconclusive};
use super::progress::ProgressDisplay;
use super::report_command;
use super::runtime;
use super::say::{print, say};
use super::signals::SignalListener;
use rolldrop_campaign::gate_looks;
use rolldrop_drive::plan::RunPlan;
use rolldrop_drive::run::{Consent, Extras, Job, UserCommand, default_out};
use rolldrop_record::{Clock, Looks, RunDir};
use rolldrop_scenario::{Loaded, Scenario};
pub(super) use run_args::RunArgs;

impl RunArgs {
    pub(super) fn run(mut self) -> anyhow::Result<ExitCode> {
        let command = UserCommand::find(std::mem::take(&mut self.command))?;
        let source = self.source();
        let Loaded { scenario, cluster } = self.scenario(&source)?;
        let consent = Consent::Asked(source.naming(cluster.as_ref()));
        let looks = self.looks(&scenario, command.is_some())?.map(gate_looks::of_gate);
        let extras = Extras { command: command.as_ref(), looks, ..Extras::default() };
        let (options, clock) = (self.measure.options()?, Clock::start());
        let progress = ProgressDisplay::new(self.measure.quiet, clock);
        let job = Job::new(scenario, &options, consent, extras, &*progress.viewer())?;
        let runtime = runtime::with_threads(2)?;
        if self.dry_run {
            let planned = runtime.block_on(async {
                let signals = SignalListener::begin()?;
                let operator = signals.operator(&progress);
                anyhow::Ok(job.dry_run(|logs| source.choice(cluster, logs), &operator).await?)
            });
            drop(progress);
            print_calls(&planned?)?;
            return Ok(ExitCode::SUCCESS);
        }
        let out =
            self.out.clone().unwrap_or_else(|| default_out("rolldrop-runs", &job.scenario.name, clock.now()));
        let run_dir = RunDir::create(&out).context("failed to create the run directory")?;
        let choice = source.choice(cluster, &out);
        let measured = runtime.block_on(async {
            let signals = SignalListener::begin()?;
            let operator = signals.operator(&progress);
            anyhow::Ok(progress.show(job.carry_out(choice, &run_dir, clock, &operator)).await?)
        });
        drop(progress);
        let interrupted = measured.inspect_err(|_| run_dir.discard_if_empty())?;
        let result = report_command::make(&run_dir, self.format)?;
        let exit = Exit::of(&result, interrupted);
        if let (Exit::Inconclusive, Some(looks)) =
            (exit, result.looks.as_ref().filter(|looks| looks.is_last()))
        {
            say(&format!("the gate is still inconclusive after all {} looks", looks.most()));
        }
        Ok(exit.settled(self.inconclusive).into())
    }

    /// Plans the interim looks of a run that continues while its gate is inconclusive; `None` if the length is fixed.
    fn looks(&self, scenario: &Scenario, has_command: bool) -> anyhow::Result<Option<Looks>> {
        match (self.inconclusive, self.max_looks) {
            (Some(Inconclusive::Extend), most) => Ok(Some(gate_looks::planned(most, scenario, has_command)?)),
            (_, Some(_)) => {
                bail!("--max-looks needs a run that can be extended: add --inconclusive extend, or remove it")
            }
            (_, None) => Ok(None),
        }
    }
}

/// Prints the API calls that a run would make.
pub(super) fn print_calls(plan: &RunPlan) -> anyhow::Result<()> {
    (1..).zip(&plan.calls).try_for_each(|(number, call)| print(&format!("{number:>4}  {call}\n")))
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::Value;

    use crate::cli::{Cli, Command};
    use rolldrop_scenario as scenario;

    #[test]
    fn interim_looks_require_inconclusive_extend() {
        let scenario = scenario::load::<Value>(scenario::DEFAULT, &[]).unwrap().scenario;
        let looks = |more: &[&str]| {
            let line = [&["rolldrop", "run", "--inconclusive", "fail"], more].concat();
            let Command::Run(args) = Cli::try_parse_from(line).unwrap().command else { panic!("{more:?}") };
            args.looks(&scenario, false).map_err(|error| error.to_string())
        };
        assert_eq!(looks(&[]), Ok(None));
        assert!(looks(&["--max-looks", "3"]).unwrap_err().contains("add --inconclusive extend"));
    }
}
