//! Files that `rolldrop report` writes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::harness::Rolldrop;

fn recorded(run: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/runs").join(run).join("run")
}

fn names(folder: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn report_out_leaves_run_unchanged() {
    let (dir, run) = (tempfile::tempdir().expect("a directory"), recorded("plain-all"));
    let (out, before) = (dir.path().join("out"), names(&run));
    let args = ["report".as_ref(), run.as_os_str(), "--out".as_ref(), out.as_os_str()];
    let report = Rolldrop::new(args).finish();
    assert!(report.stdout().contains(&format!("Report: {}/report.html", out.display())), "{report}");
    for file in ["result.json", "lost.csv", "report.html", "charts/rollout.png", "charts/windows.png"] {
        assert!(out.join(file).is_file(), "{file}\n{report}");
    }
    assert_eq!(names(&run), before);
}

#[test]
fn same_named_reports_are_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let (one, other) = (recorded("plain-all"), recorded("plain-one"));
    let args =
        ["report".as_ref(), one.as_os_str(), other.as_os_str(), "--out".as_ref(), dir.path().as_os_str()];
    let report = Rolldrop::new(args).finish();
    assert_eq!(report.code(), Some(2), "{report}");
    assert!(report.stderr().contains("two of these runs have the same name"), "{report}");
    assert!(names(dir.path()).is_empty(), "{report}");
}
