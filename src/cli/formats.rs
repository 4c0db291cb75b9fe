//! Output formats of `rolldrop run`, `report` and `gate`, on stdout and in a CI system's files.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, bail};

use super::say::print;
use rolldrop_explain::Analysis;
use rolldrop_report::{self as report, Github, HistoryGate};

/// Format of the results of `rolldrop load`, `rolldrop predict` and `rolldrop watch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum LoadFormat {
    /// A summary for people.
    Text,
    /// All figures, for programs.
    Json,
}

/// Format of a run's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum ResultFormat {
    /// For people: a summary, or the checks of the gate.
    Text,
    /// result.json.
    Json,
    /// One test case per check, for GitLab, Jenkins and others.
    Junit,
    /// Annotations for GitHub Actions; also writes the step's summary and outputs.
    Github,
    /// A Markdown comment for a pull request, with a marker so that the next one can replace it.
    Comment,
    /// Metrics for node_exporter's textfile collector.
    Prometheus,
}

impl ResultFormat {
    /// Prints a result. `text` produces the output for [`ResultFormat::Text`].
    pub(super) fn show(self, analysis: &Analysis, text: impl FnOnce() -> String) -> anyhow::Result<()> {
        let result = &analysis.result;
        print(&match self {
            Self::Text => text(),
            Self::Json => String::from_utf8(report::json(result))?,
            Self::Junit => report::junit(result),
            Self::Github => in_github(report::github(result))?,
            Self::Comment => report::comment(result),
            Self::Prometheus => report::prometheus(result),
        })
    }

    /// Prints the gate on a watch history.
    pub(super) fn show_history(self, gate: &HistoryGate) -> anyhow::Result<()> {
        print(&match self {
            Self::Text => gate.text(),
            Self::Json => gate.json(),
            Self::Junit => gate.junit(),
            Self::Github => in_github(gate.github())?,
            Self::Comment => gate.comment(),
            Self::Prometheus => bail!("the gate on a watch history has no --format prometheus: use json"),
        })
    }
}

/// Appends to the files of a GitHub Actions step. Returns what it prints.
fn in_github(github: Github) -> anyhow::Result<String> {
    append("GITHUB_STEP_SUMMARY", &github.summary)?;
    append("GITHUB_OUTPUT", &github.outputs)?;
    Ok(github.log)
}

/// Appends to the file that a variable names. Outside GitHub Actions, the variable is unset and nothing is written.
fn append(variable: &str, text: &str) -> anyhow::Result<()> {
    let Some(path) = std::env::var_os(variable).filter(|path| !path.is_empty()).map(PathBuf::from) else {
        return Ok(());
    };
    let appended = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&path)
        .and_then(|mut file| file.write_all(text.as_bytes()));
    appended.with_context(|| format!("failed to append to {} (from the variable {variable})", path.display()))
}
