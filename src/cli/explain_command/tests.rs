use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use rolldrop_explain::model::FindingKind;
use rolldrop_record::stage::{Stage, StartStage};
use rolldrop_record::{Cause, Expect, Outcome};

use super::*;

fn names_of(kind: NameKind) -> BTreeSet<&'static str> {
    let entries = docs_pages::entries();
    entries.iter().filter(|entry| entry.kind == kind).flat_map(|entry| entry.names.clone()).collect()
}

#[test]
fn docs_explain_exactly_known_names() {
    let outcomes = Outcome::ALL.iter().map(|outcome| outcome.as_str()).collect();
    assert_eq!(names_of(NameKind::Outcome), outcomes);
    let causes = Cause::ALL.iter().map(|cause| cause.as_str()).collect();
    assert_eq!(names_of(NameKind::Cause), causes);
    let of_starts = StartStage::ALL.iter().map(|stage| stage.as_str());
    let stages = Stage::ALL.iter().map(|stage| stage.as_str()).chain(of_starts).collect();
    assert_eq!(names_of(NameKind::Stage), stages);
    let findings = FindingKind::ALL.iter().map(|finding| finding.as_str()).collect();
    assert_eq!(names_of(NameKind::Finding), findings);
}

/// Returns the keys below a path in `expect`, taken from the error for an unknown key; none below a limit.
fn keys(path: &[String]) -> Vec<String> {
    let unknown = path.iter().rev().fold(json!({"unknown": 0}), |value, key| json!({ key: value }));
    let refused = serde_json::from_value::<Expect>(unknown).expect_err("an unknown key").to_string();
    let known = refused.split_once("expected ").or_else(|| refused.split_once("use one of "));
    let known = known.map_or("", |(_, known)| known.trim_start_matches("one of "));
    let known =
        known.split([',', ' ']).map(|key| key.trim_matches('`')).filter(|key| !matches!(*key, "" | "or"));
    known.filter(|key| !matches!(*key, "min" | "max" | "worse")).map(str::to_owned).collect()
}

/// Collects all keys of `expect`, down to the limits.
fn limits(path: &[String], found: &mut BTreeSet<String>) {
    // Some of these repeat all other keys; the others hold words, not mappings.
    let last = path.last().map_or("", String::as_str);
    let is_leaf = matches!(last, "consumers" | "targets" | "limits" | "accounting" | "validity" | "suffices");
    let below = if is_leaf { Vec::new() } else { keys(path) };
    if below.is_empty() {
        found.insert(path.join("."));
    }
    for key in below {
        limits(&[path, &[key]].concat(), found);
    }
}

#[test]
fn docs_explain_every_expect_key() {
    let mut found = BTreeSet::new();
    limits(&[], &mut found);
    for key in ["dropped.perGroup", "causes.overload", "latency.steady.p99_9", "windows.p50", "validity"] {
        assert!(found.contains(key), "{key}: {found:?}");
    }
    let entries = docs_pages::entries();
    for key in &found {
        let meant = meant(&bare(key), &entries);
        assert!(
            meant.iter().any(|entry| entry.kind == NameKind::Check),
            "docs/expect.md does not explain {key}"
        );
    }
}

/// Returns sample values: each key of `expect` accepts at least one of them.
fn values() -> [Value; 7] {
    let words = ["closes", "valid", "default", "90%"].map(Value::from);
    let [closes, valid, default, share] = words;
    [json!({"min": 1}), json!({"max": "1s"}), json!({"min": "50%"}), closes, valid, default, share]
}

#[test]
fn explained_checks_exist() {
    let judges = |name: &&str| {
        let name = name.replace("causes.NAME", "causes.overload").replace("outcomes.NAME", "outcomes.ok");
        let name =
            name.replace("starts.stages.NAME", "starts.stages.ready").replace("exits.CODE", "exits.137");
        let name = name
            .replace("stages.NAME", "stages.pod_deleted")
            .replace("NAME.…", "web.outage")
            .replace('…', "p99");
        values().into_iter().any(|value| {
            let nested = name.split('.').rev().fold(value, |value, key| json!({ key: value }));
            serde_json::from_value::<Expect>(nested).is_ok()
        })
    };
    let checks = names_of(NameKind::Check);
    let others: Vec<&str> = checks.iter().copied().filter(|name| !judges(name)).collect();
    // These have no key; only the judge's source names them.
    assert_eq!(
        others,
        [
            "baseline.history",
            "baseline.requests",
            "baseline.…",
            "command",
            "requests.sent",
            "terminations.planned"
        ]
    );
    let source = |file: &str| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/judge/src").join(file);
        fs::read_to_string(path).expect("a source")
    };
    let files =
        ["gate.rs", "gate/planned.rs", "gate/default_checks.rs", "compare.rs", "judgements/gate_check.rs"];
    let sources = files.map(source).concat();
    for name in others {
        let name = name.replace("baseline.…", "baseline.{metric}");
        assert!(sources.contains(&format!("\"{name}\"")), "{name}");
    }
}

#[test]
fn explanation_quotes_docs() {
    insta::assert_snapshot!(explained("routed_to_dead_pod", 80).unwrap(), @"
    routed_to_dead_pod (cause of dropped requests)

      why     a new connection was routed to a pod that no longer accepted any
      remedy  preStop sleep at least as long as the window

      A container that ends while its pod stays also loses requests:
      routed_to_dead_pod and killed_in_flight without a termination. A separate
      finding counts these, because no preStop hook runs before such an end and no
      grace period delays it. More replicas and clients that retry help, and a
      readiness probe shortens the outage.

      More: docs/outcomes.md
    ");
    insta::assert_snapshot!(explained("expect.targets.shop.example:80.windows.p90.max", 100).unwrap(), @"
    targets.NAME.… (gate check)

      figure  the same for the requests to one target; where each node's clients are a target of their
              own (NAME@NODE, load from the cluster), for each of these

      More: docs/expect.md

    windows.p50, windows.p90, windows.p95, windows.p99 (gate check)

      figure     a quantile of future windows, per mode and consumer
      unit       time
      judged by  bounds

      More: docs/expect.md
    ");
    insta::assert_snapshot!(explained("dropped.worse", 100).unwrap(), @r#"
    dropped (gate check)

      figure     dropped requests, without the generator's own stale flows
      unit       amount
      judged by  observed; a share: bounds

      A run that loses nothing shows how rare a fault must be to stay unseen. The check of dropped
      states it: "a fault that loses requests in at least 9.82 % of the terminations shows in 95 % of
      the runs with 29 terminations" (1 − 0.05^(1/29); Clopper and Pearson). Pods that left the rules
      in one step count once.

      More: docs/expect.md

    See also: dropped.perTermination, dropped.perGroup
    "#);
}

#[test]
fn ambiguous_name_prints_every_meaning() {
    let both = explained("requests.ok", 100).unwrap();
    assert_eq!(both.matches("requests.ok (gate check)").count(), 2, "{both}");
    let entries = docs_pages::entries();
    let starts: Vec<_> = meant("starts", &entries).iter().flat_map(|entry| entry.names.clone()).collect();
    assert_eq!(starts, ["starts.firstRequest", "starts.dropped", "starts.stages.NAME"]);
}

#[test]
fn unknown_name_lists_similar_names() {
    let error = |name| explained(name, 100).unwrap_err().to_string();
    assert_eq!(
        error("routed_to_deadpod"),
        "there is no outcome, cause, check, stage or finding named \"routed_to_deadpod\"; similar: routed_to_dead_pod, \
         gateway_to_dead_pod; `rolldrop explain` lists all names"
    );
    assert!(
        error("gateway_to_dead").contains("similar: gateway_to_dead_pod, "),
        "{}",
        error("gateway_to_dead")
    );
    assert!(
        error("mystery").ends_with("\"mystery\"; `rolldrop explain` lists all names"),
        "{}",
        error("mystery")
    );
}

#[test]
fn list_shows_one_line_per_name() {
    for width in [60, 100] {
        let list = list(&docs_pages::entries(), width);
        assert!(list.lines().all(|line| line.chars().count() <= width), "{list}");
        for (name, _) in names(&docs_pages::entries()) {
            let lines = list.lines().filter(|line| line.split_whitespace().next() == Some(name));
            assert_eq!(lines.count(), 1, "{name}\n{list}");
        }
    }
}

#[test]
fn explanation_contains_no_markdown() {
    for entry in docs_pages::entries() {
        let text = in_full(&entry, 100);
        assert!(!text.contains(['`', '|']) && !text.contains("](") && !text.contains("**"), "{text}");
        assert!(!entry.cells.is_empty() && text.lines().all(|line| line.chars().count() <= 100), "{text}");
    }
}

/// The image is built from listed files only. The pages must be among them.
#[test]
fn image_includes_docs_pages() {
    let file = |name: &str| {
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name))
            .expect("a file of the repository")
    };
    let [dockerfile, ignored] = ["Dockerfile", ".dockerignore"].map(file);
    let pages: BTreeSet<&str> = docs_pages::entries().iter().map(|entry| entry.page.path).collect();
    assert_eq!(pages.len(), 3, "{pages:?}");
    for path in pages {
        let is_copied = dockerfile
            .lines()
            .any(|line| line.starts_with("COPY ") && line.split(' ').any(|word| word == path));
        assert!(is_copied, "Dockerfile: {path}");
        assert!(ignored.lines().any(|line| line == format!("!{path}")), ".dockerignore: {path}");
    }
}
