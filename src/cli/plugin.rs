//! `kubectl rolldrop`: kubectl runs `kubectl-rolldrop` from the PATH, and asks `kubectl_complete-rolldrop` for
//! completions. Both are this program under other names.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use clap::Command;
use clap::builder::StyledStr;
use clap_complete::engine::complete as candidates;

/// Names by which kubectl calls the plugin and its completion program.
const PLUGIN: &str = "kubectl-rolldrop";
const COMPLETER: &str = "kubectl_complete-rolldrop";
/// Command that people type to call the plugin.
const AS_PLUGIN: &str = "kubectl rolldrop";

/// Directive to add no space after a completion (cobra's ShellCompDirectiveNoSpace).
const NO_SPACE: u8 = 2;
/// Directive not to complete file names (ShellCompDirectiveNoFileComp).
const NO_FILES: u8 = 4;

/// Way in which this program was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CalledAs {
    /// By its own name.
    Directly,
    /// As a kubectl plugin.
    AsPlugin,
    /// As kubectl's completion program.
    ForCompletion,
}

impl CalledAs {
    pub(super) fn now() -> Self {
        std::env::args_os().next().map_or(Self::Directly, |name| Self::by(&name))
    }

    fn by(name: &OsStr) -> Self {
        let name = Path::new(name).file_stem().and_then(OsStr::to_str);
        match name {
            Some(PLUGIN) => Self::AsPlugin,
            Some(COMPLETER) => Self::ForCompletion,
            _ => Self::Directly,
        }
    }

    /// Returns the command, with the called name in help texts and usage lines.
    pub(super) fn known_as(self, command: Command) -> Command {
        match self {
            Self::AsPlugin => renamed(command).bin_name(AS_PLUGIN),
            Self::Directly | Self::ForCompletion => command,
        }
    }
}

/// Puts the plugin's name into help texts that show commands to type.
fn renamed(command: Command) -> Command {
    let after = command.get_after_help().map(as_plugin);
    let command = match after {
        Some(after) => command.after_help(after),
        None => command,
    };
    let command = command.mut_args(|arg| {
        let (help, long) = (arg.get_help().map(as_plugin), arg.get_long_help().map(as_plugin));
        let arg = if let Some(help) = help { arg.help(help) } else { arg };
        if let Some(long) = long { arg.long_help(long) } else { arg }
    });
    command.mut_subcommands(renamed)
}

fn as_plugin(text: &StyledStr) -> String {
    let text = text.to_string();
    let lines = text.lines().map(|line| {
        let line =
            line.replace("`rolldrop ", "`kubectl rolldrop ").replace("| rolldrop ", "| kubectl rolldrop ");
        match line.strip_prefix("  rolldrop ") {
            Some(rest) => format!("  {AS_PLUGIN} {}", narrowed(rest, AS_PLUGIN.len() - "rolldrop".len())),
            None => line,
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Removes `by` spaces before an explanation, to keep its column.
fn narrowed(line: &str, by: usize) -> String {
    let Some(at) = line.find("  ") else { return line.to_owned() };
    let (example, rest) = line.split_at(at);
    let blanks = rest.len() - rest.trim_start().len();
    format!("{example}{:1$}{2}", "", blanks.saturating_sub(by).max(1), rest.trim_start())
}

/// Prints the completions, one per line with its explanation, followed by the directive for the shell.
pub(super) fn complete(command: Command) -> ExitCode {
    // kubectl passes the words after `kubectl rolldrop`; the last is the one being typed.
    let words: Vec<OsString> =
        std::iter::once("rolldrop".into()).chain(std::env::args_os().skip(1)).collect();
    let last = words.len() - 1;
    let here = std::env::current_dir().ok();
    let found = candidates(&mut command.clone(), words, last, here.as_deref()).unwrap_or_default();
    let mut directive = if found.is_empty() { 0 } else { NO_FILES };
    let mut lines = String::new();
    for candidate in found.iter().filter(|candidate| !candidate.is_hide_set()) {
        let value = candidate.get_value().to_string_lossy();
        if value.ends_with(['/', '=']) {
            directive |= NO_SPACE;
        }
        lines.push_str(&value);
        let help = candidate.get_help().map(ToString::to_string).unwrap_or_default();
        if let Some(first) = help.lines().next().filter(|line| !line.is_empty()) {
            lines.push('\t');
            lines.push_str(first);
        }
        lines.push('\n');
    }
    // If the shell is gone, the output does not matter.
    let _gone = writeln!(std::io::stdout(), "{lines}:{directive}");
    ExitCode::SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_name_reveals_caller() {
        for (name, called) in [
            ("rolldrop", CalledAs::Directly),
            ("/usr/local/bin/kubectl-rolldrop", CalledAs::AsPlugin),
            ("kubectl-rolldrop.exe", CalledAs::AsPlugin),
            ("./kubectl_complete-rolldrop", CalledAs::ForCompletion),
            ("kubectl", CalledAs::Directly),
        ] {
            assert_eq!(CalledAs::by(OsStr::new(name)), called, "{name}");
        }
    }

    #[test]
    fn examples_keep_their_columns() {
        let text = "Examples:\n  rolldrop run                the default\n  x | rolldrop inject\nsee `rolldrop load`";
        assert_eq!(
            as_plugin(&StyledStr::from(text)),
            "Examples:\n  kubectl rolldrop run        the default\n  x | kubectl rolldrop inject\nsee `kubectl rolldrop load`"
        );
    }
}
