//! The small form of the fuzz targets: what is kept for each, and inputs like it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use proptest::sample::Index;

use super::*;

/// Inputs that are tried for each target.
const CASES: u32 = 1000;
/// Its sessions take milliseconds: `proxy::fuzzing::session` has a test of its own, always of the same ones.
const SLOW: &str = "proxy_session";

fn fuzz_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz")
}

/// What is kept for a target: beginnings, and what was found.
fn seeds(target: &str) -> Vec<Vec<u8>> {
    let folder = fuzz_folder().join("seeds").join(target);
    let files = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    files.map(|file| fs::read(file.unwrap().path()).unwrap()).collect()
}

/// A change to an input, at a place of it.
#[derive(Clone, Debug)]
enum Change {
    Flip(Index, u8),
    Insert(Index, Vec<u8>),
    Remove(Index, Index),
    Repeat(Index, Index),
}

fn change() -> impl Strategy<Value = Change> {
    let text = prop_oneof![
        prop::collection::vec(any::<u8>(), 1..4),
        prop::sample::select(vec![
            "\r\n",
            "\n",
            "\r",
            " ",
            "\t",
            ":",
            ",",
            ";",
            "0",
            "-1",
            "\0",
            "\"",
            "{",
            "ffffffffffffffff",
            "18446744073709551616"
        ])
        .prop_map(|text| text.as_bytes().to_vec()),
    ];
    prop_oneof![
        (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Change::Flip(at, byte)),
        (any::<Index>(), text).prop_map(|(at, text)| Change::Insert(at, text)),
        (any::<Index>(), any::<Index>()).prop_map(|(from, to)| Change::Remove(from, to)),
        (any::<Index>(), any::<Index>()).prop_map(|(from, to)| Change::Repeat(from, to)),
    ]
}

fn changed(mut bytes: Vec<u8>, changes: Vec<Change>) -> Vec<u8> {
    let range = |len: usize, a: Index, b: Index| {
        let (a, b) = (a.index(len + 1), b.index(len + 1));
        a.min(b)..a.max(b)
    };
    for change in changes {
        match change {
            Change::Flip(at, byte) if !bytes.is_empty() => {
                let at = at.index(bytes.len());
                bytes[at] ^= byte;
            }
            Change::Flip(..) => {}
            Change::Insert(at, text) => {
                let at = at.index(bytes.len() + 1);
                bytes.splice(at..at, text);
            }
            Change::Remove(from, to) => {
                bytes.drain(range(bytes.len(), from, to));
            }
            Change::Repeat(from, to) => {
                let part = bytes[range(bytes.len(), from, to)].to_vec();
                bytes.extend(part);
            }
        }
    }
    bytes
}

#[test]
fn kept_inputs_and_others_like_them_break_no_target() {
    for &(name, entry) in TARGETS {
        let seeds = seeds(name);
        assert!(!seeds.is_empty(), "{name} has no seeds");
        seeds.iter().for_each(|seed| entry(seed));
        if name == SLOW {
            continue;
        }
        let input = (prop::sample::select(seeds), any::<u8>(), prop::collection::vec(change(), 0..5));
        proptest!(ProptestConfig::with_cases(CASES), |((seed, first, changes) in input)| {
            let mut bytes = changed(seed, changes);
            if let Some(byte) = bytes.first_mut() {
                *byte ^= first;
            }
            entry(&bytes);
        });
    }
}

#[test]
fn the_binaries_are_the_targets() {
    let listed: BTreeSet<_> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    let manifest = fs::read_to_string(fuzz_folder().join("Cargo.toml")).unwrap();
    let names = manifest.split("[[bin]]\nname = \"").skip(1);
    let named: BTreeSet<_> = names.filter_map(|rest| rest.split('"').next()).map(str::to_owned).collect();
    assert_eq!(named, listed);
    for name in &listed {
        let code = fs::read_to_string(fuzz_folder().join("fuzz_targets").join(name).with_extension("rs"));
        assert!(code.unwrap().contains(&format!("target::{name}(bytes)")), "{name}");
    }
}

#[test]
fn old_defects_can_still_be_put_back() {
    let folder = fuzz_folder().join("regressions");
    for patch in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        let mut code = None;
        for line in fs::read_to_string(&patch).unwrap().lines() {
            if let Some(file) = line.strip_prefix("--- a/") {
                code = Some(fs::read_to_string(fuzz_folder().join("..").join(file)).unwrap());
            } else if let (Some(code), Some(mended)) = (&code, line.strip_prefix('-')) {
                assert!(code.contains(mended), "{}: {mended}", patch.display());
            }
        }
        assert!(code.is_some(), "{} changes nothing", patch.display());
    }
}

#[test]
fn pieces_are_the_whole() {
    for seed in 0..=u8::MAX {
        let input = [&[seed][..], &[b'x'; 300]].concat();
        let (bytes, pieces) = pieces(&input);
        assert_eq!(pieces.clone().flatten().count(), bytes.len());
        assert_eq!(pieces.count() == 1, seed == 0);
    }
}
