//! `rolldrop scenarios`: lists the built-in scenarios by theme, with their durations and requirements.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;

use super::say::print;
use rolldrop_scenario::{self as scenario, BUILTIN, DEFAULT};

/// Maximum line width of the list.
const WIDTH: usize = 100;

/// Arguments of `rolldrop scenarios`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  rolldrop scenarios naive-exit > mine.yaml     a scenario to start from")]
pub(super) struct ScenariosArgs {
    /// Scenario to print as YAML [default: list all].
    name: Option<String>,
}

impl ScenariosArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let text = match &self.name {
            Some(name) => match BUILTIN.iter().find(|builtin| builtin.name == *name) {
                Some(builtin) => builtin.yaml.to_owned(),
                None => return Err(scenario::ScenarioError::Unknown(name.clone()).into()),
            },
            None => list(&library()?),
        };
        print(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// A scenario in the list.
#[derive(Debug)]
struct ListedScenario {
    name: &'static str,
    theme: String,
    description: String,
    takes: Duration,
    needs: Option<String>,
}

impl ListedScenario {
    /// Formats the duration: `32 s`, or `3.5 min` above two minutes.
    fn time(&self) -> String {
        match self.takes.as_secs() {
            seconds @ 0..=120 => format!("{seconds} s"),
            _ => format!("{:.1} min", self.takes.as_secs_f64() / 60.0),
        }
    }
}

/// Reads the built-in scenarios and their descriptions from their own files.
fn library() -> anyhow::Result<Vec<ListedScenario>> {
    let entry = |builtin: &scenario::Builtin| {
        let scenario = scenario::load::<serde_json::Value>(builtin.name, &[])?.scenario;
        let mut annotations = scenario.annotations;
        let missing = |key: &str| format!("{} has no annotation {key:?}", builtin.name);
        let takes = annotations.get("takes").and_then(|takes| rolldrop_record::load::duration(takes));
        Ok(ListedScenario {
            name: builtin.name,
            theme: annotations.remove("theme").with_context(|| missing("theme"))?,
            description: scenario.description,
            takes: takes.with_context(|| missing("takes"))?,
            needs: annotations.remove("needs"),
        })
    };
    BUILTIN.iter().map(entry).collect()
}

/// Formats the list, theme by theme.
fn list(library: &[ListedScenario]) -> String {
    let width = library.iter().map(|entry| entry.name.len()).max().unwrap_or(0);
    let options = textwrap::Options::new(WIDTH).word_splitter(textwrap::WordSplitter::NoHyphenation);
    let of_theme = |entries: &[ListedScenario]| {
        let mut text = entries.first().map_or_else(String::new, |first| format!("{}\n", first.theme));
        for entry in entries {
            let begin = format!("  {:<width$}  {:>7}  ", entry.name, entry.time());
            let indent = " ".repeat(begin.len());
            let mut words = entry.description.trim_end_matches('.').to_owned();
            if let Some(needs) = &entry.needs {
                words.push_str(&format!(". Needs: {needs}"));
            }
            if entry.name == DEFAULT {
                words.push_str(" (default)");
            }
            let options = options.clone().initial_indent(&begin).subsequent_indent(&indent);
            text.push_str(&format!("{}\n", textwrap::fill(&words, options)));
        }
        text
    };
    let themes = library.chunk_by(|a, b| a.theme == b.theme);
    themes.map(of_theme).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;

    use super::*;

    #[test]
    fn list_groups_themes_within_width() {
        let library = library().unwrap();
        let themes: Vec<&str> = library.chunk_by(|a, b| a.theme == b.theme).map(|of| &*of[0].theme).collect();
        assert_eq!(themes.len(), themes.iter().collect::<BTreeSet<_>>().len(), "{themes:?}");
        let list = list(&library);
        assert!(list.lines().all(|line| line.len() <= WIDTH), "{list}");
        let words = list.split_whitespace().collect::<Vec<_>>().join(" ");
        for entry in &library {
            let line = format!("{} {} {}", entry.name, entry.time(), entry.description.trim_end_matches('.'));
            assert!(words.contains(&line), "{line}\n{list}");
        }
        assert!(list.starts_with("How requests are lost, and how not\n  naive-exit"), "{list}");
        assert!(words.contains("consumers 42 s Each consumer"), "{list}");
        assert!(words.contains("Needs: kernel dataplane; the names of two nodes"), "{list}");
    }

    /// Formats the list as tables for the docs.
    fn tables(library: &[ListedScenario]) -> String {
        let of_theme = |entries: &[ListedScenario]| {
            let mut table = format!("| {} | what | time | needs |\n|---|---|---|---|\n", entries[0].theme);
            for entry in entries {
                let (name, what) = (entry.name, entry.description.trim_end_matches('.'));
                let needs = entry.needs.as_deref().unwrap_or_default();
                let link = format!("[{name}](../scenarios/{name}.yaml)");
                table.push_str(&format!("| {link} | {what} | {} | {needs} |\n", entry.time()));
            }
            table
        };
        library.chunk_by(|a, b| a.theme == b.theme).map(of_theme).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn docs_tables_match_scenario_files() {
        let docs = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/scenarios.md")).unwrap();
        let tables = tables(&library().unwrap());
        assert!(docs.contains(&tables), "docs/scenarios.md should have:\n{tables}");
    }
}
