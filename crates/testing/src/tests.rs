//! Checks that the folder of fuzz targets matches the code.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::inputs::fuzz_folder;
use super::*;

/// Returns the modules that define targets, with the names of their crates.
fn modules() -> Vec<(String, PathBuf)> {
    let root = fuzz_folder().join("..");
    let folders = fs::read_dir(root.join("crates")).unwrap().map(|entry| entry.unwrap());
    let library =
        |entry: fs::DirEntry| (format!("rolldrop_{}", entry.file_name().display()), entry.path().join("src"));
    let modules = folders.map(library).map(|(name, src)| (name, src.join("fuzzing.rs")));
    modules.filter(|(_, module)| module.is_file()).collect()
}

/// Returns the names in a module's `targets!`.
fn names(module: &Path) -> Vec<String> {
    let text = fs::read_to_string(module).unwrap();
    let (_, list) =
        text.split_once("targets! {\n").unwrap_or_else(|| panic!("{} has no targets", module.display()));
    let (list, _) = list.split_once("\n}").unwrap();
    let names = list.lines().filter_map(|line| line.trim().split(['[', ':']).next());
    names.map(|name| name.trim().to_owned()).collect()
}

#[test]
fn fuzz_programs_match_targets() {
    let targets: Vec<_> = modules()
        .iter()
        .flat_map(|(library, module)| names(module).into_iter().map(|name| (library.clone(), name)))
        .collect();
    let listed: BTreeSet<_> = targets.iter().map(|(_, name)| name.clone()).collect();
    let manifest = fs::read_to_string(fuzz_folder().join("Cargo.toml")).unwrap();
    let programs = manifest.split("[[bin]]\nname = \"").skip(1);
    let programs: BTreeSet<_> =
        programs.filter_map(|rest| rest.split('"').next()).map(str::to_owned).collect();
    assert_eq!(programs, listed);
    for (library, name) in &targets {
        let code = fuzz_folder().join("fuzz_targets").join(name).with_extension("rs");
        let code = fs::read_to_string(code).unwrap();
        let (path, call) = (format!("{library}::fuzzing::"), format!("target::{name}(bytes)"));
        assert!(code.contains(&path) && code.contains(&call), "{name}: {path}");
    }
}

#[test]
fn regression_patches_match_current_code() {
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
fn pieces_cover_whole_input() {
    for seed in 0..=u8::MAX {
        let input = [&[seed][..], &[b'x'; 300]].concat();
        let (bytes, pieces) = pieces(&input);
        assert_eq!(pieces.clone().flatten().count(), bytes.len());
        assert_eq!(pieces.count() == 1, seed == 0);
    }
}
