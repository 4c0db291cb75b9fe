//! The gate in deployment pipelines: output formats for CI systems, the GitHub Action, and the Jobs in `charts/gate`.

mod action;
mod formats;
mod gate_job;
mod stand_in;

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::root;

/// Returns a program from the tests' own Python environment.
fn python(program: &str) -> PathBuf {
    root().join("target/test-venv/bin").join(program)
}

/// Fails unless check-jsonschema accepts the file. `schema` is the option that names the schema.
#[track_caller]
pub(crate) fn meets(schema: &[&str], file: impl AsRef<Path>) {
    let file = file.as_ref();
    let mut command = Command::new(python("check-jsonschema"));
    let checked = command.args(schema).arg(root().join(file)).current_dir(root()).output();
    let checked = checked.expect("check-jsonschema starts: scripts/test installs it");
    let said = String::from_utf8_lossy(&checked.stdout);
    assert!(checked.status.success(), "{}: {said}", file.display());
}

#[test]
fn ci_files_match_their_schemas() {
    for (schema, files) in [
        ("vendor.github-actions", &[".github/actions/rolldrop/action.yml"][..]),
        (
            "vendor.github-workflows",
            &[
                ".github/actions/rolldrop/kind.yml",
                ".github/workflows/ci.yml",
                ".github/workflows/release.yml",
            ],
        ),
        ("vendor.gitlab-ci", &["docs/gitlab-ci.yml"]),
    ] {
        for file in files {
            meets(&["--builtin-schema", schema], file);
        }
    }
}

#[test]
fn custom_resources_match_upstream_schemas() {
    for (schema, file) in [
        ("analysis-template", "argo-rollouts/analysis-template.yaml"),
        ("rollout", "argo-rollouts/rollout.yaml"),
        ("canary", "flagger/canary.yaml"),
    ] {
        meets(
            &["--schemafile", &format!("tests/reference/crds/{schema}.json")],
            format!("charts/gate/{file}"),
        );
    }
}
