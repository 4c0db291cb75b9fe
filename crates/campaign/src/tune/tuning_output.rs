//! Results of a tuning for the user: patches, and the lines to change in the user's manifest.

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use serde_json::json;

use super::subject::{ContainerPatch, Subject, ending_of};
use rolldrop_drive::run::RunError;
use rolldrop_judge::tuning::{ChosenSettings, PodSettings, Tuning};
use rolldrop_report::ReportFile;
use rolldrop_sidecar::inject::ending::set_ending_in;

/// Writes a file into the tuning's directory.
pub(super) fn write(out: &Path, file: &ReportFile) -> Result<(), RunError> {
    let path = out.join(&file.path);
    let failed = || format!("failed to write {}", path.display());
    std::fs::write(&path, &file.bytes).map_err(RunError::failed(failed()))
}

/// Writes `tune.json`, `tune.md` and the chart.
pub(super) fn write_report(out: &Path, tuning: &Tuning) -> Result<(), RunError> {
    rolldrop_report::tuning(tuning).map_err(RunError::other)?.iter().try_for_each(|file| write(out, file))
}

/// Returns the chosen settings as patches: a strategic merge patch, and the same patch for kustomize. The first line of
/// each states the basis for the settings.
pub(super) fn patches(subject: &Subject, choice: &ChosenSettings, basis: &str) -> Vec<ReportFile> {
    let patch = format!("# {basis}\n{}", strategic_merge(subject, choice.settings));
    let file = |path: &str, text: String| ReportFile { path: path.to_owned(), bytes: text.into_bytes() };
    let kustomization = format!(
        "# In kustomization.yaml, beside patch.yaml. {basis}\npatches:\n  - path: patch.yaml\n    target: {{kind: {}, name: {}}}\n",
        subject.object["kind"].as_str().unwrap_or_default(),
        subject.name(),
    );
    vec![file("patch.yaml", patch), file("kustomization.yaml", kustomization)]
}

fn strategic_merge(subject: &Subject, settings: PodSettings) -> String {
    let (object, ending) = (&subject.object, ending_of(settings));
    let mut pod = json!({"terminationGracePeriodSeconds": ending.grace_s});
    for ContainerPatch { list, container, mut fields } in subject.container_patches(settings) {
        fields.insert("name".to_owned(), container.into());
        match pod[list].as_array_mut() {
            Some(others) => others.push(fields.into()),
            None => pod[list] = json!([fields]),
        }
    }
    let mut spec = json!({"template": {"spec": pod}});
    if ending.min_ready_s > 0 {
        spec["minReadySeconds"] = ending.min_ready_s.into();
    }
    let patch = json!({
        "apiVersion": object["apiVersion"],
        "kind": object["kind"],
        "metadata": {"name": object["metadata"]["name"]},
        "spec": spec,
    });
    serde_saphyr::to_string(&patch).unwrap_or_else(|_| patch.to_string())
}

/// Explains why a workload managed by a GitOps controller is left unchanged, and how to measure it anyway.
pub(super) fn to_a_repository(subject: &Subject, controller: &str, max_sleep: Duration) -> String {
    let (workload, name) = (subject.workload(), subject.name());
    let patch = strategic_merge(subject, subject.wide(max_sleep.as_secs()));
    format!(
        "{workload} is managed by {controller}, which would revert the change during the run. Nothing was changed. \
         Commit this patch to its repository, so that pods sleep longer than any window:\n\n{patch}\nThen measure a \
         rollout, with the command that starts it:\n\n  rolldrop run --target ... -- kubectl rollout restart \
         {workload}\n\nCommit the sleep that the run recommends, and run it again to check that {name} loses nothing. \
         Or pause {controller} and use --change-gitops."
    )
}

/// Returns the manifest lines that the chosen settings change, with line numbers.
pub(super) fn lines(path: &Path, subject: &Subject, choice: &ChosenSettings) -> Result<String, RunError> {
    let failed = || format!("failed to read {}", path.display());
    let text = std::fs::read_to_string(path).map_err(RunError::failed(failed()))?;
    let changed =
        set_ending_in(&path.display().to_string(), &text, &subject.sleepers, ending_of(choice.settings));
    let failed = || format!("failed to change the settings in {}", path.display());
    let changed = changed.map_err(RunError::failed(failed()))?;
    let mut out = String::new();
    for note in &changed.notes {
        let _ = writeln!(out, "{}: {note}", path.display());
    }
    for (number, line) in new_lines(&text, &changed.text) {
        let _ = writeln!(out, "{}:{number}: {line}", path.display());
    }
    Ok(out)
}

/// Returns the lines that are new in `after`, with their line numbers there.
fn new_lines<'a>(before: &str, after: &'a str) -> Vec<(usize, &'a str)> {
    let mut old = before.lines().peekable();
    let mut new = Vec::new();
    for (number, line) in (1..).zip(after.lines()) {
        let mut ahead = old.clone();
        match ahead.position(|old| old == line) {
            // The edit removed the skipped lines of the earlier version.
            Some(skipped) if skipped <= MOST_GONE => {
                old.nth(skipped);
            }
            _ => new.push((number, line)),
        }
    }
    new
}

/// Maximum number of consecutive lines that an edit replaces.
const MOST_GONE: usize = 8;

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::tune::platform_limits::PlatformLimits;
    use rolldrop_judge::tuning::{RolloutShape, Strategy};
    use rolldrop_sidecar::inject::KubernetesVersion;
    use rolldrop_sidecar::inject::ending::{self, Sleepers};

    /// Returns a Deployment whose app has this hook, with two native sidecars that sleep with it.
    fn subject(hook: &Value) -> Subject {
        let sidecar = |name: &str| json!({"name": name, "restartPolicy": "Always"});
        let mut slow = sidecar("slow");
        slow["lifecycle"] = json!({"preStop": {"sleep": {"seconds": 20}}});
        let object = json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
            "spec": {"template": {"spec": {
                "containers": [{"name": "app", "lifecycle": {"preStop": hook}}, {"name": "metrics"}],
                "initContainers": [sidecar("istio-proxy"), slow],
            }}},
        });
        let sleepers = Sleepers {
            workload: "deployment/web".into(),
            containers: ["app", "istio-proxy", "slow"].map(str::to_owned).to_vec(),
            may_prefix: true,
            kubernetes: KubernetesVersion::minor(33),
        };
        Subject {
            ending: ending::ending(std::slice::from_ref(&object), &sleepers).unwrap(),
            sleepers,
            rollout: RolloutShape { pods: 2, strategy: Strategy::Rolling { at_once: 1 } },
            limits: PlatformLimits::find(&[], &[], None),
            object,
            is_own: true,
            elsewhere: None,
            cautions: Vec::new(),
        }
    }

    #[test]
    fn patch_has_hooks_of_the_proof() {
        let quit = json!({"exec": {"command": ["nginx", "-s", "quit"]}});
        let subject = subject(&quit);
        let pod = |settings| -> Value {
            let patch: Value = serde_saphyr::from_str(&strategic_merge(&subject, settings)).unwrap();
            patch["spec"]["template"]["spec"].clone()
        };
        let set = subject.settings();
        let five = PodSettings { pre_stop_seconds: 5, ..set };
        let quit_later = json!({"exec": {"command": ["/bin/sh", "-c", "sleep 5; exec \"$0\" \"$@\"", "nginx", "-s", "quit"]}});
        let sleep = json!({"preStop": {"sleep": {"seconds": 5}}});
        assert_eq!(
            pod(five),
            json!({
                "terminationGracePeriodSeconds": 30,
                "containers": [{"name": "app", "lifecycle": {"preStop": quit_later}}],
                "initContainers": [
                    {"name": "istio-proxy", "lifecycle": sleep},
                    {"name": "slow", "lifecycle": sleep},
                ],
            })
        );
        let told = |container: &str| subject.container_fields(five)[container].join(" ");
        assert_eq!(
            [told("app"), told("slow")],
            [
                r#"lifecycle: {preStop: {exec: {command: ["/bin/sh", "-c", "sleep 5; exec \"$0\" \"$@\"", "nginx", "-s", "quit"]}}}"#,
                "lifecycle: {preStop: {sleep: {seconds: 5}}}",
            ]
        );
        // A run with the current settings changes nothing, so the patch does not, either.
        let slow = json!({"preStop": {"sleep": {"seconds": 20}}});
        assert_eq!(
            pod(set),
            json!({
                "terminationGracePeriodSeconds": 30,
                "containers": [{"name": "app", "lifecycle": {"preStop": quit}}],
                "initContainers": [{"name": "slow", "lifecycle": slow}],
            })
        );
    }

    #[test]
    fn new_lines_have_line_numbers() {
        let before = "a\nb\nseconds: 3\nc\n";
        let after = "a\nb\nnew: 1\nseconds: 5\nc\n";
        assert_eq!(new_lines(before, after), [(3, "new: 1"), (4, "seconds: 5")]);
        assert!(new_lines(before, before).is_empty());
    }
}
