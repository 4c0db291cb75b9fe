//! Expectations: from a scenario, from a separate file, and from single assignments.

use std::path::Path;

use serde::Deserialize;

use super::document::Document;
use super::{Result, ScenarioError, ScenarioTarget, files};
use rolldrop_record::Expect;

/// Path to the expectations in a document.
const KEY: &str = "spec.expect";

/// A file of expectations, with the keys that a scenario has below `expect`.
#[derive(Debug)]
pub struct ExpectFile(Document);

impl ExpectFile {
    /// Reads a file of expectations.
    ///
    /// # Errors
    /// Fails if the file cannot be read, or anything in it is unknown, malformed or contradictory.
    pub fn read(path: &Path) -> Result<Self> {
        let text = files::read_scenario(path)
            .map_err(|source| ScenarioError::Io { path: path.to_owned(), source })?;
        Self::parse(&text, &path.display().to_string())
    }

    fn parse(text: &str, file: &str) -> Result<Self> {
        let document = Document::parse(text, file)?;
        let expect: Expect = document.read()?;
        expect.check().map_err(|wrong| document.error(&wrong.key, wrong.why))?;
        Ok(Self(document))
    }
}

/// Returns the recorded expectations after replacements: first those in the file, then each assignment, such as
/// `expect.dropped.max=0`.
///
/// # Errors
/// Fails if an assignment is not about expectations, or anything is unknown, malformed or contradictory.
pub fn with(recorded: &Expect, place: &str, file: Option<&ExpectFile>, set: &[String]) -> Result<Expect> {
    let mut document = Document::holding(KEY, serde_json::json!(recorded), place);
    replace(&mut document, file, set)?;
    if let Some(other) = set.iter().find(|assignment| !is_of_expect(assignment)) {
        let key = other.split('=').next().unwrap_or_default();
        return Err(ScenarioError::Invalid {
            place: "--set".into(),
            key: key.to_owned(),
            why: "the run is over: you can set only its expectations, such as expect.dropped.max=0".into(),
        });
    }
    read(&document)
}

/// Replaces expectations in a scenario's document. Assignments take precedence over the file, even if they came first.
pub(super) fn replace(document: &mut Document, file: Option<&ExpectFile>, set: &[String]) -> Result<()> {
    if let Some(ExpectFile(file)) = file {
        document.merge(KEY, file);
    }
    set.iter().filter(|assignment| is_of_expect(assignment)).try_for_each(|one| document.set(one))
}

fn is_of_expect(assignment: &str) -> bool {
    let path = assignment.split('=').next().unwrap_or_default();
    let path = path.strip_prefix("spec.").unwrap_or(path);
    path.split('.').next() == Some("expect")
}

/// Reads the expectations in a document.
pub(super) fn read(document: &Document) -> Result<Expect> {
    #[derive(Deserialize)]
    struct FileWithExpect {
        spec: SpecWithExpect,
    }
    #[derive(Deserialize)]
    struct SpecWithExpect {
        #[serde(default)]
        expect: Expect,
    }
    let FileWithExpect { spec: SpecWithExpect { expect } } = document.read()?;
    check(&expect, document)?;
    Ok(expect)
}

/// Refuses limits that contradict each other.
pub(super) fn check(expect: &Expect, document: &Document) -> Result<()> {
    expect.check().map_err(|wrong| document.error(&format!("{KEY}.{}", wrong.key), wrong.why))
}

/// Refuses limits for targets other than these.
pub(super) fn check_targets(expect: &Expect, targets: &[ScenarioTarget], document: &Document) -> Result<()> {
    let names: Vec<&str> = targets.iter().map(|target| &*target.name).collect();
    match expect.targets.keys().find(|name| !names.contains(&name.as_str())) {
        Some(name) => {
            let why = format!("is not a target; use one of {}", names.join(", "));
            Err(document.error(&format!("{KEY}.targets.{name}"), why))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(file: &str, set: &[&str]) -> Result<String, String> {
        let recorded: Expect = serde_json::from_value(serde_json::json!({
            "dropped": {"max": 0}, "windows": {"max": "2s"}
        }))
        .unwrap();
        let set: Vec<String> = set.iter().map(ToString::to_string).collect();
        let expect = ExpectFile::parse(file, "limits.yaml")
            .and_then(|file| with(&recorded, "run.json", Some(&file), &set))
            .map_err(|error| error.to_string())?;
        Ok(serde_json::to_string(&expect).unwrap())
    }

    #[test]
    fn assignment_overrides_file_limits() {
        assert_eq!(
            given("dropped: {perGroup: {max: 3}}\noutage: {max: 500ms}\n", &["expect.outage.max=1s"])
                .unwrap(),
            r#"{"dropped":{"max":0,"perGroup":{"max":3}},"windows":{"max":"2s"},"outage":{"max":"1s"}}"#
        );
    }

    #[test]
    fn exit_codes_are_valid_keys() {
        let set = ["expect.exits.0.max=0", "expect.exits.137.min=2"];
        assert_eq!(
            given("exits: {137: {min: 1}, '1': {max: 0}}\n", &set).unwrap(),
            r#"{"dropped":{"max":0},"exits":{"0":{"max":0},"1":{"max":0},"137":{"min":2}},"windows":{"max":"2s"}}"#
        );
    }

    #[test]
    fn expect_errors_name_key_and_remedy() {
        let error = |file: &str, set: &[&str]| given(file, set).unwrap_err();
        insta::assert_snapshot!(
            [
                error("dropped: {max: 0}\noutages: {max: 1s}\n", &[]),
                error("outage: {max: 5}\n", &[]),
                error("dropped:\n  max: 1s\n", &[]),
                error("causes:\n  overlaod: {max: 1}\n", &[]),
                error("latency:\n  p99: {max: 2x}\n", &[]),
                error("appErrors: {max: 0%}\n", &[]),
                error("stages:\n  app_sigterm: {min: 5s}\n", &[]),
                error("stages:\n  ready: {min: 5s}\n", &[]),
                error("starts:\n  stages: {created: {min: 5s}}\n", &[]),
                error("exits:\n  sigkill: {min: 1}\n", &[]),
                error("dropped: {min: 1}\n", &[]),
                error("{}", &["expect.dropped.max=1s"]),
                error("{}", &["expect.starts.firstRequests.max=1s"]),
                error("{}", &["load.rate=5"]),
            ]
            .join("\n"),
            @r#"
            limits.yaml:2: outages: unknown field `outages`, expected one of `limits`, `dropped`, `appErrors`, `requests`, `causes`, `outcomes`, `streams`, `terminations`, `restarts`, `killed`, `failedHooks`, `stages`, `exits`, `windows`, `outage`, `deadSeconds`, `latency`, `starts`, `rollout`, `preStop`, `accounting`, `validity`, `consumers`, `targets`
            limits.yaml:1: outage.max: invalid type: integer `5`, expected a duration with its unit, such as 250ms, 30s or 1m30s
            limits.yaml:2: dropped.max: invalid value: string "1s", expected a whole number, or a share in percent such as 0.1%
            limits.yaml:2: causes.overlaod: is not a cause; use one of routed_to_dead_pod, killed_in_flight, drained_too_short, cut_at_sigterm, gateway_cut, idle_close_race, h2_unprocessed, accept_queue_reset, stale_flow, no_ready_endpoint, not_ready_yet, gateway_error, gateway_to_dead_pod, gateway_no_server, refused_while_ending, rule_swap, overload, unattributed
            limits.yaml:2: latency.p99: a multiple compares disrupted with steady latency: use it only in latency.disrupted, or write a duration such as 250ms
            limits.yaml:1: appErrors.max: no run can prove a share of 0%: write the number 0
            limits.yaml:2: stages.app_sigterm: is computed from the settings, not observed: use app_exited (with the sidecar) or containers_terminated, with an app that exits at once on SIGTERM
            limits.yaml:2: stages.ready: is not a stage of a termination; use one of deletion_seen, endpoint_terminating, kill_began, listener_closed, app_exited, last_connection, containers_terminated, endpoint_removed, pod_deleted
            limits.yaml:2: starts.stages.created: is time zero, so it needs no limit
            limits.yaml:2: exits.sigkill: is not an exit code: write a number from 0 to 255, such as 137 (SIGKILL) or 143 (SIGTERM)
            limits.yaml:1: spec.expect.dropped: min 1 is above max 0
            --set: spec.expect.dropped.max: invalid value: string "1s", expected a whole number, or a share in percent such as 0.1%
            --set: spec.expect.starts.firstRequests: unknown field `firstRequests`, expected one of `firstRequest`, `dropped`, `stages`
            --set: load.rate: the run is over: you can set only its expectations, such as expect.dropped.max=0
            "#
        );
    }
}
