//! Checks the architecture's rules in the source: which parts may use which, and which stay pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::harness::root;

/// Our crates and modules that a crate may use, where its manifest allows more (`docs/architecture.md`).
const MAY_USE: &[(&str, &[&str])] = &[
    ("drive", &["record", "scenario", "kubernetes", "lab", "load", "sidecar::inject", "sidecar::observed"]),
    ("lab", &["record::Clock", "record::Stamp", "record::clock", "wire::places"]),
    ("workload", &["record::LENGTH_HEADER", "record::LengthLaw", "record::named"]),
];

/// Modules that take data and return data: no clock, no I/O, no async. The same is true of all modules in
/// `crates/explain` and `crates/report`, where lints check it.
const PURE: &[(&str, &str)] = &[("sidecar", "inject")];

/// Names that a pure module never uses.
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

/// Crates that return only facts; `report` writes the sentences about them.
const WITHOUT_PROSE: &[&str] = &["explain", "judge"];

/// The only source file in these crates that writes text for `result.json`: the causes of terminations that the run did
/// not trigger.
const CAUSES_OF_ENDS: &str = "timeline/termination_cause.rs";

/// Crates whose top-level modules form no cycle.
const WITHOUT_CIRCLES: &[&str] = &[
    "accesslog",
    "manifest",
    "scenario",
    "drive",
    "kubernetes",
    "load",
    "sidecar",
    "wire",
    "record",
    "explain",
    "judge",
    "report",
    "campaign",
    "watch",
    "lab",
    "workload",
    "rolldrop",
];

const MAX_LINES: usize = 800;

/// Files that are compiled only into unit tests or fuzz targets.
const TEST_FILES: &[&str] = &["tests.rs", "samples.rs", "known_answers.rs", "fuzzing.rs"];

struct Source {
    /// Name of the crate; `rolldrop` is the program's own.
    library: String,
    /// The top-level module of the crate; in the program, the one below `cli`, which contains all modules.
    module: String,
    path: PathBuf,
    text: String,
}

/// Returns the libraries, by name, with their folders.
fn libraries() -> Vec<(String, PathBuf)> {
    let folders = fs::read_dir(root().join("crates")).expect("the crates").flatten();
    folders.map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path())).collect()
}

/// Returns all Rust files below a folder.
fn rust_files(folder: PathBuf) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder").flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                found.push(path);
            }
        }
    }
    found
}

/// Returns the source of all crates, without files that are only for tests or fuzz targets.
fn sources() -> Vec<Source> {
    let own = ("rolldrop".to_owned(), root().to_owned());
    let all = libraries().into_iter().filter(|(name, _)| name != "testing").chain([own]);
    let sources = all.flat_map(|(library, folder)| {
        let src = folder.join("src");
        rust_files(src.clone()).into_iter().map(move |path| {
            let below = path.strip_prefix(&src).expect("a path below src").with_extension("");
            let own = below.strip_prefix("cli").ok().and_then(|below| below.iter().next());
            let module = own.or_else(|| below.iter().next()).expect("a module");
            let module = module.to_string_lossy().into_owned();
            let library = library.clone();
            Source { library, module, text: fs::read_to_string(&path).expect("a source"), path }
        })
    });
    let is_test = |path: &Path| {
        TEST_FILES.iter().any(|t| path.ends_with(t))
            || path.components().any(|part| part.as_os_str() == "fuzzing")
    };
    sources.filter(|source| !is_test(&source.path)).collect()
}

/// Returns the text without comments and unit tests.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns the names in the text that follow a prefix (`crate::`, `rolldrop_`), as `name` or with the next one:
/// `name::Item`.
fn named(code: &str, prefix: &str) -> BTreeSet<String> {
    let word =
        |text: &str| -> String { text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect() };
    code.match_indices(prefix)
        .flat_map(|(at, _)| {
            let rest = &code[at + prefix.len()..];
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
fn crates_respect_architecture_dependencies() {
    let sources = sources();
    for (library, allowed) in MAY_USE {
        let own: Vec<&Source> = sources.iter().filter(|source| source.library == *library).collect();
        assert!(!own.is_empty(), "{library} is gone");
        for source in own {
            for name in named(&code(&source.text), "rolldrop_") {
                let first = name.split("::").next().unwrap_or_default();
                let fits = allowed.iter().any(|a| *a == first || *a == name);
                assert!(fits, "{}: {library} may not use {name}", source.path.display());
            }
        }
    }
}

/// The modules of `drive` through which a run uses its cluster, lowest layer first: each may use only earlier ones.
const ROOMS_OF_A_RUN: &[&str] = &["api", "observe", "collect", "undo", "plan", "act", "session"];

#[test]
fn coordinator_never_names_embedded_cluster() {
    let is_in_room = |s: &&Source| s.library == "drive" && ROOMS_OF_A_RUN.contains(&s.module.as_str());
    for source in sources().iter().filter(is_in_room) {
        assert!(!code(&source.text).contains("embedded::"), "{}", source.path.display());
    }
}

#[test]
fn coordinator_modules_use_lower_layers_only() {
    for source in sources().iter().filter(|source| source.library == "drive") {
        let Some(level) = ROOMS_OF_A_RUN.iter().position(|room| *room == source.module) else { continue };
        let used = behind_the_root(source);
        let above = ROOMS_OF_A_RUN[level + 1..].iter().find(|room| used.contains(**room));
        assert_eq!(above, None, "{}", source.path.display());
    }
}

/// Returns the names that a source may use from the root of its crate: top modules, and re-exports of the root.
fn behind_the_root(source: &Source) -> BTreeSet<String> {
    let (folder, root) =
        if source.library == "rolldrop" { ("cli", "crate::cli::") } else { ("src", "crate::") };
    let depth = source.path.components().rev().take_while(|part| part.as_os_str() != folder).count();
    let (code, above) = (code(&source.text), "super::".repeat(depth));
    let mut found = BTreeSet::new();
    for prefix in [root, &above] {
        for (at, _) in code.match_indices(prefix) {
            let rest = &code[at + prefix.len()..];
            // `{a, b::C}`, or a single name.
            let list = rest.strip_prefix('{').and_then(|list| list.split('}').next()).unwrap_or(rest);
            let items = if list.len() < rest.len() { list.split(',').collect() } else { vec![rest] };
            let word = |item: &str| {
                item.trim().split(|c: char| !c.is_alphanumeric() && c != '_').next().map(str::to_owned)
            };
            found.extend(items.into_iter().filter_map(word));
        }
    }
    found
}

#[test]
fn top_level_modules_form_no_cycle() {
    for library in WITHOUT_CIRCLES {
        let sources = sources();
        let own = |source: &&Source| {
            source.library == *library && !["lib", "main", "cli"].contains(&&*source.module)
        };
        let mut uses: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
        for source in sources.iter().filter(own) {
            uses.entry(&source.module).or_default().extend(behind_the_root(source));
        }
        for (module, used) in &mut uses {
            used.remove(*module);
        }
        assert!(uses.len() > 2, "{library}: {uses:?}");
        // A module that uses none of the remaining ones is in no cycle.
        loop {
            let left: BTreeSet<String> = uses.keys().map(|module| (*module).to_owned()).collect();
            uses.retain(|_, used| !used.is_disjoint(&left));
            if uses.len() == left.len() {
                break;
            }
        }
        assert!(uses.is_empty(), "{library}: there is a cycle among {uses:#?}");
    }
}

/// Returns our libraries that a manifest depends on, except dev-dependencies.
fn dependencies(manifest: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(manifest).expect("a manifest");
    let sections = ["dependencies]\n", "target.'cfg(target_os = \"linux\")'.dependencies]\n"];
    let of_builds = text.split("\n[").filter(|section| sections.iter().any(|head| section.starts_with(head)));
    let lines = of_builds.flat_map(str::lines);
    let ours = lines.filter_map(|line| line.strip_prefix("rolldrop-")?.split(['.', ' ']).next());
    ours.map(str::to_owned).collect()
}

#[test]
fn architecture_map_matches_crate_dependencies() {
    let text = fs::read_to_string(root().join("docs/architecture.md")).expect("docs/architecture.md");
    let map = text.split("\n## Crates\n").nth(1).and_then(|rest| rest.split("\n##").next()).expect("a map");
    let in_code =
        |cell: &str| -> BTreeSet<String> { cell.split('`').skip(1).step_by(2).map(str::to_owned).collect() };
    let rows: BTreeMap<String, BTreeSet<String>> = map
        .lines()
        .filter(|line| line.starts_with("| `"))
        .map(|line| {
            let cells: Vec<_> = line.trim_matches('|').split('|').collect();
            (in_code(cells[0]).into_iter().next().expect("a name"), in_code(cells[cells.len() - 1]))
        })
        .collect();
    let own = ("rolldrop".to_owned(), root().to_owned());
    let crates = libraries().into_iter().chain([own]);
    let found = crates.map(|(name, folder)| (name, dependencies(&folder.join("Cargo.toml")))).collect();
    assert_eq!(rows, found);
}

#[test]
fn pure_modules_mention_nothing_impure() {
    for source in sources().iter().filter(|s| PURE.contains(&(&*s.library, &*s.module))) {
        let code = code(&source.text);
        for word in IMPURE {
            assert!(!code.contains(word), "{} names {word}", source.path.display());
        }
    }
}

#[test]
fn fact_crates_contain_no_prose() {
    let is_test = |path: &Path| path.iter().any(|part| part == "tests" || part == "tests.rs");
    let ours = sources().into_iter().filter(|source| WITHOUT_PROSE.contains(&source.library.as_str()));
    for source in ours.filter(|source| !is_test(&source.path) && !source.path.ends_with(CAUSES_OF_ENDS)) {
        let text = code(&source.text).replace("\\\"", "").replace("'\"'", "");
        let parts: Vec<&str> = text.split('"').collect();
        for (before, literal) in parts.chunks(2).filter_map(|two| Some((two.first()?, two.get(1)?))) {
            let line = before.rsplit('\n').next().unwrap_or_default();
            let is_for_developers =
                ["reason = ", "expect(", "debug_assert", "error("].iter().any(|mark| line.contains(mark));
            let is_prose = literal.split_whitespace().count() > 3 && !is_for_developers;
            assert!(!is_prose, "{}: {literal:?} belongs in crates/report", source.path.display());
        }
    }
}

#[test]
fn only_clock_module_reads_wall_clock() {
    for source in sources() {
        if !source.path.ends_with("record/src/clock.rs") {
            let code = code(&source.text);
            for word in ["SystemTime::now", "Timestamp::now", "Zoned::now"] {
                assert!(!code.contains(word), "{} names {word}", source.path.display());
            }
        }
    }
}

#[test]
fn source_files_follow_layout_rules() {
    for source in sources() {
        let path = source.path.display();
        assert!(!source.path.ends_with("mod.rs"), "{path}: foo.rs beside foo/, never mod.rs");
        assert!(source.text.starts_with("//! "), "{path}: has no module comment that says what it does");
        let lines = source.text.lines().count();
        assert!(lines <= MAX_LINES, "{path} has {lines} lines: split it by job");
    }
}

#[test]
fn tests_named_in_docs_exist() {
    let mut tests = BTreeSet::new();
    for path in ["tests", "src", "crates"].into_iter().flat_map(|folder| rust_files(root().join(folder))) {
        let text = fs::read_to_string(path).expect("a source");
        let is_test = |line: &str| line.ends_with("test]") || line.starts_with("#[tokio::test(");
        let mut lines = text.lines().map(str::trim);
        while lines.any(is_test) {
            // Other attributes may come in between.
            let name = lines.find_map(|line| line.trim_start_matches("async ").strip_prefix("fn "));
            tests.extend(name.and_then(|name| name.split('(').next()).map(str::to_owned));
        }
    }
    let text = fs::read_to_string(root().join("docs/sources.md")).expect("docs/sources.md");
    let tables = text.split("## Kubernetes' own constants").next().expect("the tables");
    // The last cell of a row names the tests that show the claim.
    let cells = tables.lines().filter_map(|line| line.strip_suffix('|')?.rsplit('|').next());
    let named: Vec<&str> = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    assert!(named.len() > 40, "{named:?}");
    for name in named {
        assert!(tests.contains(name), "docs/sources.md names {name}, which is not a test");
    }
}
