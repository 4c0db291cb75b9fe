//! `rolldrop explain`: looks up a name from a report or gate in the docs.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::process::ExitCode;

use anyhow::bail;
use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};

use super::say::{print, text_options};
use rolldrop_report::docs_pages::{self, DocsEntry, NameKind};
use rolldrop_scenario::nearest::alike;

/// Maximum number of names that an error suggests.
const SUGGESTED: usize = 3;
/// Minimum width; columns do not fit in less.
const MIN_WIDTH: usize = 50;

/// Arguments of `rolldrop explain`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  rolldrop explain routed_to_dead_pod           a cause of dropped requests
  rolldrop explain targets.web.windows.p90.max  a gate check, as the report names it")]
pub(super) struct ExplainArgs {
    /// Name of an outcome, cause, check, stage or finding [default: list all names].
    #[arg(value_parser = NameParser, hide_possible_values = true)]
    name: Option<String>,
}

impl ExplainArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let width = text_options(None).width.max(MIN_WIDTH);
        let text = match &self.name {
            Some(name) => explained(name, width)?,
            None => list(&docs_pages::entries(), width),
        };
        print(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Parser that accepts any text; a shell completes the names that can be written literally.
#[derive(Clone, Debug)]
struct NameParser;

impl TypedValueParser for NameParser {
    type Value = String;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<String, clap::Error> {
        StringValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let names = names(&docs_pages::entries());
        Some(Box::new(names.into_iter().map(|(name, kind)| PossibleValue::new(name).help(kind.one()))))
    }
}

/// Returns the names that can be written literally, each once.
fn names(entries: &[DocsEntry]) -> Vec<(&'static str, NameKind)> {
    let all = entries.iter().flat_map(|entry| entry.names.iter().map(|name| (*name, entry.kind)));
    let mut seen = BTreeSet::new();
    all.filter(|(name, _)| !is_pattern(name) && seen.insert(*name)).collect()
}

/// Returns true if a name in the docs is a pattern: `causes.NAME`, `targets.NAME.…`.
fn is_pattern(name: &str) -> bool {
    name.split('.').any(|part| is_placeholder(part) || part == "…")
}

fn is_placeholder(part: &str) -> bool {
    matches!(part, "NAME" | "CODE")
}

/// Returns the explanation of a name from the docs, in all of its meanings.
fn explained(name: &str, width: usize) -> anyhow::Result<String> {
    let entries = docs_pages::entries();
    let bare = &bare(name);
    let mut meant = meant(bare, &entries);
    if let Some(part) = of_part(bare, &entries) {
        meant.extend(part);
    }
    if meant.is_empty() {
        let names = names(&entries);
        let like: Vec<&str> =
            alike(bare, names.iter().map(|(name, _)| *name)).into_iter().take(SUGGESTED).collect();
        let such = if like.is_empty() { String::new() } else { format!("; similar: {}", like.join(", ")) };
        bail!(
            "there is no outcome, cause, check, stage or finding named {name:?}{such}; `rolldrop explain` lists all names"
        );
    }
    let mut text = meant.iter().map(|entry| in_full(entry, width)).collect::<Vec<_>>().join("\n");
    let below = below(bare, &entries, &meant);
    if !below.is_empty() {
        text.push_str(&format!("\n{}\n", wrapped("See also: ", 10, &below.join(", "), width)));
    }
    Ok(text)
}

/// Strips the path and the side from a check's name: `expect.dropped.max` becomes `dropped`.
fn bare(name: &str) -> String {
    let name = name.strip_prefix("spec.").unwrap_or(name);
    let name = name.strip_prefix("expect.").unwrap_or(name);
    let name = [".min", ".max", ".worse"].iter().find_map(|side| name.strip_suffix(side)).unwrap_or(name);
    // The only key whose name contains a dot.
    name.replace("p99.9", "p99_9")
}

/// Returns the entries with exactly this name; if there are none, the patterns that it matches and the names below it.
fn meant<'a>(name: &str, entries: &'a [DocsEntry]) -> Vec<&'a DocsEntry> {
    let of = |fits: fn(&str, &str) -> bool| -> Vec<&DocsEntry> {
        entries.iter().filter(|entry| entry.names.iter().any(|known| fits(known, name))).collect()
    };
    let exactly = of(|known, name| known == name);
    if exactly.is_empty() { of(fits) } else { exactly }
}

/// Returns true if `name` matches the pattern `known`, or `known` is below it.
fn fits(known: &str, name: &str) -> bool {
    let mut parts = name.split('.');
    for known in known.split('.') {
        match (known, parts.next()) {
            (_, None) | ("…", Some(_)) => return true,
            (known, Some(part)) if known == part || is_placeholder(known) => {}
            _ => return false,
        }
    }
    parts.next().is_none()
}

/// Finds the entries for a check of one target or consumer. Names of targets may contain dots.
fn of_part<'a>(name: &str, entries: &'a [DocsEntry]) -> Option<Vec<&'a DocsEntry>> {
    let of = ["targets.", "consumers."].iter().find_map(|part| name.strip_prefix(part))?;
    let of_rest = |(at, _): (usize, &str)| meant(&of[at + 1..], entries);
    of.match_indices('.').map(of_rest).find(|meant| !meant.is_empty())
}

/// Returns the names below an explained name, except those already explained.
fn below(name: &str, entries: &[DocsEntry], explained: &[&DocsEntry]) -> Vec<&'static str> {
    let others = entries.iter().filter(|entry| !explained.iter().any(|one| std::ptr::eq(*one, *entry)));
    let prefix = format!("{name}.");
    others.flat_map(|entry| entry.names.iter().copied()).filter(|known| known.starts_with(&prefix)).collect()
}

/// Returns the full explanation of one entry.
fn in_full(entry: &DocsEntry, width: usize) -> String {
    let mut text = format!(
        "{}\n\n",
        wrapped("", 0, &format!("{} ({})", entry.names.join(", "), entry.kind.one()), width)
    );
    let column = entry.cells.iter().map(|(heading, _)| heading.chars().count()).max().unwrap_or(0) + 4;
    for (heading, cell) in &entry.cells {
        text.push_str(&format!("{}\n", wrapped(&format!("  {heading}"), column, cell, width)));
    }
    for mention in entry.mentions() {
        text.push_str(&format!("\n{}\n", wrapped("", 2, &mention, width)));
    }
    text.push_str(&format!("\n  More: {}\n", entry.page.path));
    text
}

/// Wraps text. Lines are indented by `indent`; the first begins with `lead` instead.
fn wrapped(lead: &str, indent: usize, text: &str, width: usize) -> String {
    let (first, others) = (format!("{lead:indent$}"), " ".repeat(indent));
    let options = textwrap::Options::new(width).word_splitter(textwrap::WordSplitter::NoHyphenation);
    textwrap::fill(text, options.initial_indent(&first).subsequent_indent(&others))
}

/// Lists all names by kind, one per line.
fn list(entries: &[DocsEntry], width: usize) -> String {
    let names = entries.iter().flat_map(|entry| &entry.names);
    let column = names.map(|name| name.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for kind in NameKind::ALL {
        text.push_str(&format!("{}\n", wrapped("", 0, kind.all(), width)));
        let mut seen = BTreeSet::new();
        for entry in entries.iter().filter(|entry| entry.kind == *kind) {
            let what = entry.cells.first().map_or("", |(_, cell)| cell);
            for name in entry.names.iter().filter(|name| seen.insert(**name)) {
                text.push_str(&format!("{}\n", one_line(&format!("  {name:column$}  {what}"), width)));
            }
        }
        text.push('\n');
    }
    text + "To read more about a name: rolldrop explain NAME\n"
}

/// Truncates a line between two words if it is too long.
fn one_line(line: &str, width: usize) -> String {
    if line.chars().count() <= width {
        return line.to_owned();
    }
    let room: String = line.chars().take(width - 1).collect();
    let cut = room.rfind(' ').map_or(&*room, |at| &room[..at]);
    format!("{} …", cut.trim_end_matches([',', ';', ':', ' ']))
}

#[cfg(test)]
mod tests;
