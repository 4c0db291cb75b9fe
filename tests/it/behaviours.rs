//! The behaviours that are removed to prove the library (`library/behaviours.yaml`): the list covers each claim, and
//! agrees with the source. `scripts/proofs/behaviours` builds each change and runs the scenarios that must fail.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde::Deserialize;

use crate::harness::tracked;

/// Number of the last claim in docs/sources.md; the first is C1.
const LAST_CLAIM: u32 = 19;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Behaviour {
    name: String,
    claims: BTreeSet<String>,
    taken: String,
    changes: Vec<Change>,
    /// Checks that fail, by scenario. A colon separates a check from a command's statement.
    fails: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Change {
    file: PathBuf,
    text: String,
    becomes: String,
}

/// Returns the claims that a scenario names as its source.
fn claims_of(scenario: &str) -> BTreeSet<String> {
    let source = scenario.lines().find(|line| line.starts_with("# Source: ")).expect("a source");
    let words = source.split(|c: char| !c.is_ascii_alphanumeric());
    let is_claim = |word: &&str| word.strip_prefix('C').is_some_and(|number| number.parse::<u32>().is_ok());
    words.filter(is_claim).map(str::to_owned).collect()
}

#[test]
fn each_claim_has_removable_behaviour() {
    let listed: Vec<Behaviour> =
        serde_saphyr::from_str(include_str!("library/behaviours.yaml")).expect("YAML");
    let names: BTreeSet<&str> = listed.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names.len(), listed.len(), "a name occurs twice");
    let claims: BTreeSet<&str> = listed.iter().flat_map(|one| &one.claims).map(String::as_str).collect();
    for number in 1..=LAST_CLAIM {
        let claim = format!("C{number}");
        assert!(claims.contains(claim.as_str()), "{claim} has no behaviour");
    }
    for Behaviour { name, claims, taken, changes, fails } in &listed {
        assert!(taken.ends_with('.') && !changes.is_empty() && !fails.is_empty(), "{name}");
        for Change { file, text, becomes } in changes {
            assert_eq!(tracked(file).matches(text).count(), 1, "{name}: {text:?} in {}", file.display());
            assert_ne!(text, becomes, "{name}");
        }
        let mut shown = BTreeSet::new();
        for (scenario, check) in fails {
            let text = tracked(format!("scenarios/{scenario}.yaml"));
            let of_scenario: BTreeSet<_> = claims_of(&text).intersection(claims).cloned().collect();
            assert!(!of_scenario.is_empty(), "{name}: {scenario} names none of {claims:?} as its source");
            shown.extend(of_scenario);
            // A check's last word is a limit, and its first word a key of `expect`.
            let key = check.split(['.', ':']).next().expect("a key");
            let is_expected =
                text.contains(&format!(" {key}:")) || (key == "command" && text.contains("action: exec"));
            assert!(is_expected, "{name}: {scenario} does not check {check}");
        }
        assert_eq!(&shown, claims, "{name}: its scenarios show different claims");
    }
}
