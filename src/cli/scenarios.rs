//! `rolldrop scenarios`: the built-in scenarios, a line each.

use std::process::ExitCode;

use super::report::print;
use crate::scenario::{self, BUILTIN, DEFAULT};

/// Arguments of `rolldrop scenarios`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  rolldrop scenarios naive-exit > mine.yaml     a scenario to start from")]
pub(super) struct ScenariosArgs {
    /// Print this scenario's YAML instead of the list.
    name: Option<String>,
}

impl ScenariosArgs {
    /// Runs the command.
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let text = match &self.name {
            Some(name) => match BUILTIN.iter().find(|builtin| builtin.name == *name) {
                Some(builtin) => builtin.yaml.to_owned(),
                None => return Err(scenario::ScenarioError::Unknown(name.clone()).into()),
            },
            None => {
                let mut lines = String::new();
                for builtin in BUILTIN {
                    let scenario = scenario::load::<serde_json::Value>(builtin.name, &[])?.scenario;
                    let default = if builtin.name == DEFAULT { " (default)" } else { "" };
                    lines.push_str(&format!("{:<16} {}{default}\n", builtin.name, scenario.description));
                }
                lines
            }
        };
        print(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}
