//! Judges real runs as `scripts/proofs/gate-alarms` does: each against the previous five that passed. The script's
//! `--digest` option wrote `recorded.json`, which contains some of the runs described in docs/proofs.md.

use super::*;

/// Name of the series whose scenario the faults modify.
const GATE: &str = "gate";

/// Runs of unchanged software in order, by series; and runs of software that got worse, by fault.
struct Recorded {
    unchanged: BTreeMap<String, Vec<Sample>>,
    worse: BTreeMap<String, Vec<Sample>>,
}

impl Recorded {
    fn read() -> Self {
        let all: BTreeMap<String, Vec<Sample>> =
            serde_json::from_str(include_str!("recorded.json")).expect("recorded runs");
        // The names of faults are sentences.
        let (worse, unchanged) = all.into_iter().partition(|(series, _)| series.contains(' '));
        Self { unchanged, worse }
    }
}

/// Returns the runs that can be a baseline.
fn passed(runs: &[Sample]) -> Vec<Sample> {
    runs.iter().filter(|run| run.gate == CheckVerdict::Pass).cloned().collect()
}

/// Returns the gate's verdict on a run, by its own limits and by those from five other runs.
fn judged(run: &Sample, five: &[Sample]) -> CheckVerdict {
    let options = CompareOptions { tolerance: TOLERANCE, ..CompareOptions::default() };
    let checks = RunHistory::of(five.to_vec(), run, LAST, &options).checks(run, &options);
    crate::gate::verdict(checks.iter().map(|check| check.verdict).chain([run.gate]))
}

#[test]
fn recorded_runs_of_unchanged_software_seldom_fail() {
    let mut verdicts = Vec::new();
    for runs in Recorded::read().unchanged.values() {
        for (i, run) in runs.iter().enumerate() {
            let before = passed(&runs[..i]);
            verdicts.extend(before.windows(FEWEST_RUNS).last().map(|five| judged(run, five)));
        }
    }
    let so_many = |verdict| verdicts.iter().filter(|v| **v == verdict).count();
    let (failed, unclear) = (so_many(CheckVerdict::Fail), so_many(CheckVerdict::Inconclusive));
    println!("of {} runs {failed} fail, {unclear} are inconclusive", verdicts.len());
    assert!(verdicts.len() >= 20, "{}", verdicts.len());
    // With many runs, about one in twenty may fail.
    assert!(failed * 10 <= verdicts.len(), "{failed} of {} fail", verdicts.len());
    assert!(unclear * 5 <= verdicts.len(), "{unclear} of {} are inconclusive", verdicts.len());
}

#[test]
fn recorded_runs_of_worse_software_fail() {
    let recorded = Recorded::read();
    let unchanged = passed(&recorded.unchanged[GATE]);
    let before: Vec<&[Sample]> = unchanged.windows(FEWEST_RUNS).collect();
    assert_eq!(recorded.worse.len(), 5);
    for (fault, runs) in &recorded.worse {
        let judge = |run| before.iter().map(move |five| judged(run, five));
        let verdicts: Vec<CheckVerdict> = runs.iter().flat_map(judge).collect();
        let failed = verdicts.iter().filter(|verdict| **verdict == CheckVerdict::Fail).count();
        println!("{fault}: {failed} of {} fail", verdicts.len());
        assert!(failed * 20 >= verdicts.len() * 19, "{fault}: {failed} of {} fail", verdicts.len());
    }
}
