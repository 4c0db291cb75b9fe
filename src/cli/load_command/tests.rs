//! Compares the options of `rolldrop load` with the keys of a scenario's load.

use std::collections::BTreeSet;
use std::path::Path;

use clap::{CommandFactory, Parser};
use serde_json::Value;

use crate::cli::{Cli, Command};
use rolldrop_drive::run::{expected_targets, load_settings};
use rolldrop_load as load;
use rolldrop_scenario as scenario;

/// Returns the settings from a scenario with these keys in its load.
fn settings_of(text: &str, dir: &Path) -> Result<load::Load, String> {
    let loaded = scenario::parse::<Value>(text, "x.yaml", dir, &[]).map_err(|e| e.to_string())?;
    let found = expected_targets(&loaded.scenario);
    load_settings(&loaded.scenario, &found).map_err(|e| e.to_string())
}

fn with_load(keys: &str) -> String {
    format!(
        "apiVersion: rolldrop.dev/v1\nkind: Scenario\nmetadata: {{name: x}}\nspec:\n  \
         target: {{url: 'http://web/', name: 'http://web/'}}\n  load: {{{keys}}}\n"
    )
}

/// Returns the texts between backticks.
fn samples(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// Returns the rows of the docs/load.md table with this header.
fn table(head: &str) -> Vec<[&'static str; 2]> {
    let docs = include_str!("../../../docs/load.md");
    let (_, after) = docs.split_once(head).expect(head);
    let rows = after.lines().skip(2).take_while(|line| line.starts_with('|'));
    let cells = |row: &'static str| {
        let (option, key) = row.trim_matches('|').split_once('|').expect(row);
        [option, key]
    };
    rows.map(cells).collect()
}

const KEYS: &str = "| option of `load` | key in a scenario |";
const ELSEWHERE: &str = "| option of `load` | in a run |";

#[test]
fn load_option_equals_scenario_key() {
    let dir = tempfile::tempdir().unwrap();
    let files = ["headers.txt", "item.json", "ca.pem", "me.pem", "me.key"];
    for name in files {
        std::fs::write(dir.path().join(name), "Name: value\n").unwrap();
    }
    let rows = table(KEYS);
    assert!(rows.len() > 30, "{rows:?}");
    for [option, key] in rows {
        let (options, keys) = (samples(option), samples(key));
        assert_eq!(options.len(), keys.len(), "{option} | {key}");
        for (option, key) in options.into_iter().zip(keys) {
            // PATH is set everywhere.
            let mut line = option.replace("TOKEN", "PATH");
            for name in files {
                line = line.replace(name, &dir.path().join(name).display().to_string());
            }
            let seed = if line.contains("--seed") { "" } else { " --seed 0" };
            let line = format!("rolldrop load http://web/ {line}{seed}");
            let parsed = Cli::try_parse_from(line.split_whitespace()).expect(option);
            let Command::Load(args) = parsed.command else { panic!("{line}") };
            let scenario = with_load(&key.replace("TOKEN", "PATH"));
            let (wanted, found) = (args.settings().expect(option), settings_of(&scenario, dir.path()));
            assert_eq!(found.as_ref(), Ok(&wanted), "{option} is not {key}");
            assert_ne!(wanted, load::Load::new("http://web/"), "{option} says nothing");
        }
    }
}

#[test]
fn load_docs_cover_options_and_keys() {
    let (keys, elsewhere) = (table(KEYS), table(ELSEWHERE));
    let cells = |i: usize| keys.iter().chain(&elsewhere).map(|row| row[i]).collect::<Vec<_>>().join(" ");
    let (options, named) = (cells(0), cells(1));
    let options: BTreeSet<&str> =
        samples(&options).into_iter().flat_map(|sample| sample.split(' ')).collect();
    let command = Cli::command();
    let load = command.find_subcommand("load").expect("the command");
    for long in load.get_arguments().filter_map(clap::Arg::get_long).filter(|long| *long != "help") {
        assert!(options.contains(format!("--{long}").as_str()), "--{long} is missing from docs/load.md");
    }
    // The error for an unknown key lists the known ones.
    for place in ["", "connections", "timeout", "tls", "dns", "retry", "grpc"] {
        let keys = if place.is_empty() { "no: 1".to_owned() } else { format!("{place}: {{no: 1}}") };
        let error = settings_of(&with_load(&keys), Path::new(".")).unwrap_err();
        let known = samples(error.split_once("expected").expect(&error).1);
        assert!(known.len() >= 2, "{error}");
        for key in known {
            let told = named.contains(&format!("{key}: ")) || named.contains(&format!("`{key}`"));
            assert!(told, "{place}.{key} is missing from docs/load.md");
        }
    }
}
