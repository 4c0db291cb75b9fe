//! `action: exec`: programs that a scenario starts on this machine, in the same way as COMMAND.

use std::collections::HashMap;
use std::ffi::OsString;
use std::process::ExitStatus;

use futures::FutureExt;
use futures::future::LocalBoxFuture;
use tokio_util::sync::CancellationToken;

use super::command::UserCommand;
use super::error::RunError;
use super::under_load::Measuring;
use crate::act::Programs;
use rolldrop_scenario::{Disruption, DisruptionAction, Scenario};

/// A scenario's programs, which are looked up before the run.
pub(super) struct UserPrograms<'a> {
    found: HashMap<&'a [String], UserCommand>,
    kubeconfig: Option<OsString>,
    stop: &'a CancellationToken,
    abort: &'a CancellationToken,
}

impl<'a> UserPrograms<'a> {
    pub(super) fn new(measuring: Measuring<'a>) -> Result<Self, RunError> {
        let mut found = HashMap::new();
        for (_, words) in commands(&measuring.scenario.disruptions) {
            found.extend(find(words)?.map(|command| (words, command)));
        }
        let kubeconfig = if found.is_empty() { None } else { measuring.command_kubeconfig()? };
        Ok(Self { found, kubeconfig, stop: measuring.halt, abort: &measuring.run.interrupts.abort })
    }
}

impl Programs for UserPrograms<'_> {
    fn run<'a>(&'a self, words: &'a [String]) -> LocalBoxFuture<'a, Result<ExitStatus, String>> {
        async move {
            let command = self.found.get(words).ok_or("it was not found")?;
            let status = command.run(self.kubeconfig.as_deref(), self.stop, self.abort).await;
            status.map_err(|error| error.to_string())
        }
        .boxed_local()
    }
}

/// Checks that the scenario's programs exist.
pub(super) fn check(scenario: &Scenario) -> Result<(), RunError> {
    for (number, words) in commands(&scenario.disruptions) {
        if let Err(error) = find(words) {
            let key = format!("spec.disruptions[{number}].command");
            return Err(scenario.invalid(&key, error.in_words()).into());
        }
    }
    Ok(())
}

fn find(words: &[String]) -> Result<Option<UserCommand>, RunError> {
    UserCommand::find(words.iter().map(OsString::from).collect())
}

/// Returns the disruptions' commands, each with the index of its disruption.
fn commands(disruptions: &[Disruption]) -> impl Iterator<Item = (usize, &[String])> {
    disruptions.iter().enumerate().filter_map(|(number, disruption)| match &disruption.action {
        DisruptionAction::Exec { command } => Some((number, &command[..])),
        _ => None,
    })
}
