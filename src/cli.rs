//! The command line: clap types, dispatch and exit status.

#[cfg(any(test, not(all(feature = "embedded", target_os = "linux"))))]
mod absent_commands;
mod admin_token;
mod assume_service_proxy;
mod cleanup_command;
#[cfg(all(feature = "embedded", target_os = "linux"))]
mod cluster_command;
mod compare_args;
mod exit;
mod explain_command;
mod formats;
mod gate_command;
mod headings;
mod inject_command;
mod load_command;
mod load_worker_command;
mod measure;
mod named_values;
mod open_files;
mod plugin;
mod predict_command;
mod progress;
mod proxy_command;
mod proxy_pre_stop_command;
mod report_command;
mod resources;
mod run_command;
mod runtime;
mod say;
mod scenarios_command;
mod signals;
mod tune_command;
mod watch_command;
#[cfg(feature = "embedded")]
mod workload_command;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

#[cfg(not(all(feature = "embedded", target_os = "linux")))]
use absent_commands::cluster_command;
#[cfg(not(feature = "embedded"))]
use absent_commands::workload_command;
use exit::Exit;

/// Measures which requests are lost when Kubernetes pods are terminated, why, and which setting would have saved
/// them.
#[derive(Debug, Parser)]
#[command(name = "rolldrop", version, about, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure a scenario: deploy, load, disrupt, and report what was lost and why.
    Run(Box<run_command::RunArgs>),
    /// Find the shortest preStop sleep that loses no requests, and prove it.
    Tune(Box<tune_command::TuneArgs>),
    /// Send a load to URLs, without a cluster.
    Load(Box<load_command::LoadArgs>),
    /// Send a load on behalf of another process.
    #[command(hide = true)]
    LoadWorker(load_worker_command::LoadWorkerArgs),
    /// Recreate the report and charts of recorded runs.
    Report(report_command::ReportArgs),
    /// Check a recorded run, or a watch history, against limits.
    Gate(gate_command::GateArgs),
    /// Predict how many streams a pod's termination would cut, by preStop sleep and grace period.
    Predict(predict_command::PredictArgs),
    /// Watch real pod terminations, and rank the workloads whose pods are killed.
    Watch(watch_command::WatchArgs),
    /// List the built-in scenarios.
    Scenarios(scenarios_command::ScenariosArgs),
    /// Explain an outcome, cause, check, stage or finding.
    Explain(explain_command::ExplainArgs),
    /// Undo the changes that a killed run left in a cluster.
    Cleanup(cleanup_command::CleanupArgs),
    /// Run only the embedded cluster, until Ctrl-C.
    Cluster(cluster_command::ClusterArgs),
    /// Run the recording proxy, as a sidecar or in front of a Service.
    Proxy(proxy_command::ProxyArgs),
    /// Notify the recording proxy in this container that its pod is terminating; used as the container's preStop hook.
    #[command(hide = true)]
    ProxyPreStop(proxy_pre_stop_command::ProxyPreStopArgs),
    /// Add the recording proxy to manifests as a sidecar, or remove it.
    Inject(inject_command::InjectArgs),
    /// Run the sample server.
    Workload(workload_command::WorkloadArgs),
    /// Print a completion script for a shell.
    Completions {
        /// Shell to complete commands in.
        shell: clap_complete::Shell,
    },
    /// Print the manual page, or write one per command into a directory.
    Man {
        /// Directory for the pages, such as /usr/local/share/man/man1.
        dir: Option<PathBuf>,
    },
}

/// Parses the command line, runs the command, and returns the exit status.
pub fn main() -> ExitCode {
    let called = plugin::CalledAs::now();
    if called == plugin::CalledAs::ForCompletion {
        return plugin::complete(Cli::command());
    }
    let mut command = called.known_as(Cli::command());
    let matches = command.try_get_matches_from_mut(std::env::args_os());
    let matches = matches.unwrap_or_else(|error| load_command::with_hint(error).exit());
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.format(&mut command).exit());
    tracing_subscriber::fmt()
        .with_writer(say::StderrLog)
        .with_ansi(false)
        .with_env_filter(tracing_subscriber::EnvFilter::try_from_env("ROLLDROP_LOG").unwrap_or_else(|_| {
            // Hides the client's own log of refused calls, which the caller reports.
            "warn,kube_client=off,kube_runtime=error".into()
        }))
        .init();
    let result = match cli.command {
        Command::Run(args) => args.run(),
        Command::Tune(args) => args.run(),
        Command::Load(args) => args.run(),
        Command::LoadWorker(args) => args.run(),
        Command::Report(args) => args.run(),
        Command::Gate(args) => args.run(),
        Command::Predict(args) => args.run(),
        Command::Watch(args) => args.run(),
        Command::Scenarios(args) => args.run(),
        Command::Explain(args) => args.run(),
        Command::Cleanup(args) => args.run(),
        Command::Cluster(args) => args.run(),
        Command::Proxy(args) => args.run(),
        Command::ProxyPreStop(args) => args.run(),
        Command::Inject(args) => args.run(),
        Command::Workload(args) => args.run(),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut visible(&Cli::command()), "rolldrop", &mut std::io::stdout());
            Ok(ExitCode::SUCCESS)
        }
        Command::Man { dir } => manual(dir.as_deref()),
    };
    result.unwrap_or_else(|error| {
        say::say(&in_words(&error));
        let interrupted = matches!(error.downcast_ref(), Some(rolldrop_drive::run::RunError::Interrupted));
        if interrupted { Exit::Interrupted } else { Exit::Error }.into()
    })
}

/// Describes an error with its causes, each only once, because some errors' texts already end with their cause.
fn in_words(error: &anyhow::Error) -> String {
    let mut words = String::new();
    for cause in error.chain().map(ToString::to_string).filter(|cause| !cause.is_empty()) {
        let before = words.strip_suffix(&cause);
        if before.is_none_or(|before| !before.is_empty() && !before.ends_with(": ")) {
            let colon = if words.is_empty() { "" } else { ": " };
            words.extend([colon, cause.as_str()]);
        }
    }
    words
}

fn manual(dir: Option<&Path>) -> anyhow::Result<ExitCode> {
    let command = Cli::command().disable_help_subcommand(true);
    match dir {
        None => clap_mangen::Man::new(command).render(&mut std::io::stdout())?,
        Some(dir) => std::fs::create_dir_all(dir)
            .and_then(|()| clap_mangen::generate_to(command, dir))
            .with_context(|| format!("failed to write manual pages into {}", dir.display()))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns a command without its hidden subcommands and arguments, for completions.
fn visible(command: &clap::Command) -> clap::Command {
    let subcommands = command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set());
    clap::Command::new(command.get_name().to_owned())
        .about(command.get_about().cloned().unwrap_or_default())
        .args(command.get_arguments().filter(|argument| !argument.is_hide_set()))
        .subcommands(subcommands.map(visible))
}

/// Parses a duration with its unit, such as `250ms`, `30s` or `1m30s`.
fn parse_duration(text: &str) -> Result<Duration, String> {
    rolldrop_record::load::duration(text).ok_or_else(|| match text.parse::<f64>() {
        Ok(number) if number.is_finite() && number >= 0.0 => {
            format!("add a unit: {text}s for seconds, {text}ms for milliseconds, {text}m for minutes")
        }
        _ => "expected a number with a unit, such as 250ms, 30s or 1m30s".to_owned(),
    })
}

/// Parses a duration that may be a number of days.
fn days_or_duration(text: &str) -> Result<Duration, String> {
    let days = text.strip_suffix('d').and_then(|days| days.parse::<u32>().ok());
    days.map_or_else(|| parse_duration(text), |days| Ok(Duration::from_secs(u64::from(days) * 24 * 3600)))
}

/// Parses a mean number of streams that a termination may cut.
fn cut_limit(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number > 0.0 && number.is_finite() => Ok(number),
        Ok(_) => Err("must be above 0: no measurement can prove that no stream is ever cut".to_owned()),
        Err(_) => Err("expected a number of streams, such as 0.1".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_lists_common_options_before_groups() {
        let command = Cli::command();
        let measuring = ["Cluster", "Load", "Pod names", "Terminations"];
        let tuning = [&["Search and proof", "Settings to change"][..], &measuring[..]].concat();
        let loading = ["Requests", "Pace", "Connections", "Timeouts and retries", "Pod names", "Generator"];
        let each = [
            ("run", [&measuring[..], &["Gate"][..]].concat()),
            ("tune", tuning),
            ("load", [&loading[..], &["Streams", "TLS", "Result"][..]].concat()),
            ("inject", vec!["Workloads", "Sidecar"]),
        ];
        for (name, groups) in each {
            let arguments = command.find_subcommand(name).expect("a command").get_arguments();
            let shown: Vec<_> = arguments.filter(|argument| !argument.is_hide_set()).collect();
            let mut found = Vec::new();
            for heading in shown.iter().filter_map(|argument| argument.get_help_heading()) {
                if !found.contains(&heading) {
                    found.push(heading);
                }
            }
            assert_eq!(found, groups, "{name}");
            let is_usual = |id: &str| {
                let argument = shown.iter().find(|argument| argument.get_id() == id);
                argument.is_none_or(|argument| argument.get_help_heading().is_none())
            };
            assert!(
                ["rate", "duration", "out", "format", "yes", "quiet", "target"].into_iter().all(is_usual),
                "{name}"
            );
            let usual = shown
                .iter()
                .filter(|argument| argument.get_help_heading().is_none() && !argument.is_positional());
            assert!(usual.count() <= 12, "{name}");
            for argument in shown {
                let short = argument.get_help().map(ToString::to_string).unwrap_or_default();
                assert!(short.len() <= 180, "{name} --help: {short}");
            }
        }
    }

    #[test]
    fn clap_accepts_command_definition() {
        Cli::command().debug_assert();
    }

    /// Returns the words of a shell command, up to the first comment, pipe or redirection.
    fn words(command: &str) -> Vec<String> {
        let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
        for c in command.chars().chain([' ']) {
            match quote {
                Some(end) if c == end => quote = None,
                None if c == '\'' || c == '"' => {
                    quote = Some(c);
                    word.get_or_insert_default();
                }
                None if c.is_whitespace() => words.extend(word.take()),
                None if word.is_none() && "#|>&;".contains(c) => break,
                _ => word.get_or_insert_default().push(c),
            }
        }
        words
    }

    /// Returns this program's commands in a page's `sh` blocks.
    fn commands(page: &str) -> Vec<Vec<String>> {
        let blocks = page.split("\n```sh\n").skip(1).filter_map(|rest| rest.split("\n```").next());
        let text: String = blocks.map(|block| format!("{block}\n").replace("\\\n", " ")).collect();
        let own = text.lines().filter_map(|line| {
            let prefixes = ["rolldrop ", "kubectl rolldrop ", "cargo run --release -- "];
            Some(words(&format!(
                "rolldrop {}",
                prefixes.iter().find_map(|prefix| line.strip_prefix(prefix))?
            )))
        });
        own.collect()
    }

    #[test]
    fn commands_in_docs_parse() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let docs = std::fs::read_dir(root.join("docs")).unwrap().flatten().map(|entry| entry.path());
        let pages = docs.chain(["README.md", "charts/README.md"].map(|page| root.join(page)));
        let mut checked = 0;
        for page in pages.filter(|path| path.extension().is_some_and(|extension| extension == "md")) {
            for command in commands(&std::fs::read_to_string(&page).unwrap()) {
                if let Err(error) = Cli::try_parse_from(&command) {
                    panic!("{}: {}\n{error}", page.display(), command.join(" "));
                }
                checked += 1;
            }
        }
        assert!(checked > 60, "{checked} commands");
        let quoted = words("rolldrop run a --set 'b={c: \"d e\"}' --out \"f g\" > h  # i");
        assert_eq!(quoted, ["rolldrop", "run", "a", "--set", "b={c: \"d e\"}", "--out", "f g"]);
    }

    #[test]
    fn error_text_omits_repeated_causes() {
        let error =
            anyhow::anyhow!("no such file").context("cannot read /x: no such file").context("no cluster");
        assert_eq!(in_words(&error), "no cluster: cannot read /x: no such file");
        assert_eq!(in_words(&anyhow::anyhow!("gone").context("lost")), "lost: gone");
        // A cause is still shown if the outer text contains it, but does not end with it.
        let error = anyhow::anyhow!("8080").context("port 8080 is taken");
        assert_eq!(in_words(&error), "port 8080 is taken: 8080");
        let error = anyhow::anyhow!("out").context("the run timed out");
        assert_eq!(in_words(&error), "the run timed out: out");
    }
}
