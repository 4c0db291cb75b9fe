//! The built-in scenarios show the results that they expect, and run unchanged on any cluster unless they state a
//! requirement.

use std::collections::BTreeSet;
use std::fs;
use std::sync::Mutex;
use std::thread;

use crate::harness::Rolldrop;
use crate::machine::measured;
use crate::runs::{Dataplane, turn};

/// Scenarios whose runs other tests check (`runs::all`, `expectations`).
const ELSEWHERE: [&str; 7] =
    ["drain-in-app", "gate", "idle-close", "killed-in-flight", "naive-exit", "no-sidecar", "prestop-sleep"];
/// Number of scenarios that may wait for a turn at the same time.
const SIDE_BY_SIDE: usize = 3;
/// Prefix of an embedded cluster setting that contains only the number of nodes.
const NODES_ONLY: &str = "  cluster: {embedded: {nodes: ";

/// Returns the names and contents of all scenarios.
fn library() -> Vec<(String, String)> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios");
    let of = |entry: fs::DirEntry| {
        let name = entry.path().file_stem().expect("a name").to_string_lossy().into_owned();
        (name, fs::read_to_string(entry.path()).expect("a scenario"))
    };
    fs::read_dir(folder).expect("the library").map(|entry| of(entry.expect("a file"))).collect()
}

#[test]
fn library_scenarios_meet_their_expectations() {
    let mut names: BTreeSet<String> = library().into_iter().map(|(name, _)| name).collect();
    for name in ELSEWHERE {
        assert!(names.remove(name), "{name} is not in the library");
    }
    let names = Mutex::new(names);
    let next = || names.lock().expect("a name").pop_first();
    let show = |name: &str| {
        let _turn = turn();
        let run = Rolldrop::run(name).args(["--quiet"]).on(Dataplane::Kernel).with_tools().measured();
        // The pods' behaviour depends on their share of CPU time.
        run.figure(run.code() == Some(0));
    };
    thread::scope(|scope| {
        for _ in 0..SIDE_BY_SIDE {
            let thread = thread::Builder::new().name("library".to_owned());
            let run = || {
                while let Some(name) = next() {
                    measured(|| show(&name));
                }
            };
            thread.spawn_scoped(scope, run).expect("a thread");
        }
    });
}

#[test]
fn portable_scenarios_need_no_embedded_cluster() {
    for (name, text) in library() {
        let lines = || text.lines().filter(|line| !line.trim_start().starts_with('#'));
        let values = |key: &str| {
            let values = lines().filter_map(|line| line.trim_start_matches([' ', '-']).strip_prefix(key));
            values.map(str::trim).collect::<Vec<_>>()
        };
        let needs = values("needs: ").join(" ");
        if needs.contains("embedded") {
            continue;
        }
        assert!(values("image: ").iter().all(|image| *image == "rolldrop"), "{name}");
        let cluster: Vec<&str> = lines().filter(|line| line.starts_with("  cluster:")).collect();
        let [cluster] = cluster[..] else { panic!("{name}: {cluster:?}") };
        let nodes = cluster.strip_prefix(NODES_ONLY).and_then(|rest| rest.strip_suffix("}}"));
        assert!(nodes.is_some_and(|n| n.parse::<u32>().is_ok()), "{name}: {cluster}");
        let is_node = lines().any(|line| line.contains("node: node-"));
        assert!(!is_node || needs.contains("name"), "{name} names a node but does not declare it");
        let is_address = |word: &str| {
            let parts: Vec<&str> = word.split('.').collect();
            parts.len() == 4 && parts.iter().all(|part| part.parse::<u8>().is_ok())
        };
        let has_address = |line: &str| line.split(|c: char| !c.is_ascii_digit() && c != '.').any(is_address);
        assert!(!lines().any(has_address), "{name} has an address");
        let expected = lines().skip_while(|line| !line.starts_with("  expect:"));
        let is_time = |limit: &str| {
            let digits = limit.trim_start_matches(|c: char| c.is_ascii_digit());
            digits.len() < limit.len() && (digits.starts_with('s') || digits.starts_with("ms"))
        };
        let has_limit = expected.flat_map(|line| line.split("max: ").skip(1)).any(is_time);
        let header: String = text.lines().take_while(|line| line.starts_with('#')).collect();
        assert!(
            !has_limit || header.contains("depend"),
            "{name} limits a time but does not say what the time depends on"
        );
    }
}
