//! The architecture's rules, read off the source: who may use whom, and who stays pure.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Module, and the modules of ours that it may use (`docs/architecture.md`).
const MAY_USE: &[(&str, &[&str])] = &[
    ("record", &[]),
    ("scenario", &["record"]),
    ("http1", &[]),
    ("http2", &[]),
    ("places", &[]),
    ("inject", &[]),
    ("machine", &["record"]),
    ("load", &["record", "http1", "http2", "machine"]),
    ("observed", &["record"]),
    ("proxy", &["record", "http1", "http2", "observed", "places"]),
    ("cluster", &["record::Clock", "record::Stamp", "record::clock", "places"]),
    ("coordinator", &["record", "scenario", "inject", "cluster", "machine", "observed"]),
    ("timeline", &["record"]),
    ("analysis", &["record", "timeline"]),
    ("report", &["record", "analysis"]),
    ("gate", &["record", "analysis"]),
    ("workload", &[]),
];

/// Modules that take data and give data: no clock, no I/O, no async.
const PURE: &[&str] = &["inject", "timeline", "analysis", "report", "gate"];

/// What a pure module never names.
const IMPURE: &[&str] = &[
    "tokio",
    "std::fs",
    "std::net",
    "std::process",
    "std::io",
    "std::env",
    "Instant",
    "SystemTime",
    "kube::",
    "async fn",
    ".await",
];

const MAX_LINES: usize = 800;

/// Files that are compiled into unit tests, or fuzz targets, only.
const TEST_FILES: &[&str] = &["tests.rs", "samples.rs", "known_answers.rs", "fuzzing.rs"];

struct Source {
    module: String,
    path: PathBuf,
    text: String,
}

fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder").flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs")
                && !TEST_FILES.iter().any(|t| path.ends_with(t))
                && !path.components().any(|part| part.as_os_str() == "fuzzing")
            {
                let below = path.strip_prefix(&root).expect("below src").with_extension("");
                let module = below.components().next().expect("a module").as_os_str();
                let module = module.to_string_lossy().into_owned();
                found.push(Source { module, text: fs::read_to_string(&path).expect("a source"), path });
            }
        }
    }
    found
}

/// The text without comments and without its unit tests.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

/// The modules of the crate that a text names, as `module` or `module::Item`.
fn named(code: &str) -> BTreeSet<String> {
    let word =
        |text: &str| -> String { text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect() };
    code.match_indices("crate::")
        .flat_map(|(at, _)| {
            let rest = &code[at + "crate::".len()..];
            let first = word(rest);
            let Some(after) = rest[first.len()..].strip_prefix("::") else { return vec![first] };
            match after.strip_prefix('{') {
                Some(list) => {
                    let list = list.split('}').next().unwrap_or_default();
                    list.split(',').map(|item| format!("{first}::{}", word(item.trim()))).collect()
                }
                None => vec![format!("{first}::{}", word(after))],
            }
        })
        .collect()
}

#[test]
fn modules_use_only_what_the_architecture_allows() {
    for source in sources() {
        let Some((_, allowed)) = MAY_USE.iter().find(|(module, _)| *module == source.module) else {
            assert!(
                ["lib", "main", "cli"].contains(&source.module.as_str()),
                "{} is in no list",
                source.module
            );
            continue;
        };
        for name in named(&code(&source.text)) {
            let module = name.split("::").next().unwrap_or_default();
            let fits = module == source.module || allowed.iter().any(|a| *a == module || *a == name);
            assert!(fits, "{}: {} may not use {name}", source.path.display(), source.module);
        }
    }
}

#[test]
fn pure_modules_touch_nothing_outside_themselves() {
    for source in sources().iter().filter(|s| PURE.contains(&s.module.as_str())) {
        let code = code(&source.text);
        for word in IMPURE {
            assert!(!code.contains(word), "{} names {word}", source.path.display());
        }
    }
}

#[test]
fn only_the_clock_reads_the_wall_clock() {
    for source in sources() {
        if !source.path.ends_with("record/clock.rs") {
            let code = code(&source.text);
            for word in ["SystemTime::now", "Timestamp::now", "Zoned::now"] {
                assert!(!code.contains(word), "{} names {word}", source.path.display());
            }
        }
    }
}

#[test]
fn files_are_laid_out_as_agreed() {
    for source in sources() {
        let path = source.path.display();
        assert!(!source.path.ends_with("mod.rs"), "{path}: foo.rs beside foo/, never mod.rs");
        assert!(source.text.starts_with("//! "), "{path}: begins without saying what it does");
        let lines = source.text.lines().count();
        assert!(lines <= MAX_LINES, "{path} has {lines} lines: split it by job");
    }
}

#[test]
fn every_test_that_the_docs_name_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut tests = BTreeSet::new();
    let mut folders = vec![root.join("tests"), root.join("src")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder").flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let text = fs::read_to_string(path).expect("a source");
                let lines: Vec<&str> = text.lines().map(str::trim).collect();
                let is_test = |line: &str| line.ends_with("test]") || line.starts_with("#[tokio::test(");
                for pair in lines.windows(2).filter(|pair| is_test(pair[0])) {
                    let name = pair[1].trim_start_matches("async ").strip_prefix("fn ");
                    tests.extend(name.and_then(|name| name.split('(').next()).map(str::to_owned));
                }
            }
        }
    }
    let text = fs::read_to_string(root.join("docs/sources.md")).expect("docs/sources.md");
    let tables = text.split("## Kubernetes' own constants").next().expect("the tables");
    // The last cell of a row names what shows it.
    let cells = tables.lines().filter_map(|line| line.strip_suffix('|')?.rsplit('|').next());
    let named: Vec<&str> = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    assert!(named.len() > 40, "{named:?}");
    for name in named {
        assert!(tests.contains(name), "docs/sources.md names {name}, which is no test");
    }
}
