//! `--inconclusive extend`: a run that continues until its gate is decided, on the embedded cluster.

use rolldrop_explain::model::{CheckVerdict, RunResult};
use rolldrop_judge::gate;
use rolldrop_record::run_info::Role;
use rolldrop_record::{Phase, RunDir, RunInfo};

use crate::harness::{Finished, Rolldrop};
use crate::machine::measured;
use crate::runs::{self, Dataplane, turn};

/// Runs the sample app with this gate, and terminates this many pods in each round.
fn run(terminations: u32, expect: &str, most: &str) -> Finished {
    run_from("local", terminations, expect, most)
}

/// Does the same as `run`, with the load sent from here or from the cluster.
fn run_from(from: &str, terminations: u32, expect: &str, most: &str) -> Finished {
    let ends = format!(
        "disruptions=[{{at: 1s, action: deletePod, selector: app=web, count: 1, \
         until: {{terminations: {terminations}}}}}]"
    );
    let load =
        format!("load={{rate: 200, warmup: 1s, duration: 60s, connections: {{mode: fresh}}, from: {from}}}");
    let _turn = turn();
    Rolldrop::run("naive-exit")
        .set(&[&ends, &load, "settle=300ms", &format!("expect={expect}")])
        .on(Dataplane::Kernel)
        .args(["--inconclusive", "extend", "--max-looks", most])
        .measured()
}

/// Reads `run.json` and `result.json` from the run directory.
fn read(run: &Finished) -> (RunInfo, RunResult) {
    let path = run.dir().join("run");
    (RunDir::open(&path).and_then(|run| run.info()).expect("run.json"), runs::result(&path))
}

/// Checks that there was one load with one schedule: each request is counted once, and the load's duration matches its
/// requests.
#[track_caller]
fn expect_exact_accounting(run: &Finished) {
    let (info, result) = read(run);
    let records = RunDir::open(&run.dir().join("run")).and_then(|run| run.read()).expect("the run reads");
    let counted = records.requests.iter().filter(|row| row.phase == Phase::Main).count() as u64;
    assert_eq!(counted, result.requests.total, "{run}");
    assert!(result.requests.closes(), "{run}");
    assert!((counted as f64 / info.load.rate - info.load.duration_s).abs() < 0.01, "{run}");
}

#[test]
fn run_repeats_rounds_until_gate_decides() {
    measured(|| {
        // A bound on the median needs six windows at the first of three looks, and seven at the others.
        let run = run(4, "{windows: {p50: {max: 60s}}, terminations: {min: 4}}", "3");
        run.figure(!run.is_invalid());
        let (info, result) = read(&run);
        let at = info.looks.as_ref().map(|looks| looks.at);
        run.figure(run.code() == Some(0) && at == Some(2));
        assert_eq!(
            gate::verdict(result.checks.iter().map(|check| check.verdict)),
            CheckVerdict::Pass,
            "{run}"
        );
        assert_eq!(result.looks, info.looks);
        assert!((8..=9).contains(&result.terminations.len()), "{run}");
        let said = run.stderr();
        for line in [
            "this run repeats its disruptions while its gate is inconclusive: up to 3 rounds",
            "look 1 of 3, at 97.74 % confidence: the gate is inconclusive (windows.p50.max); starting another round",
            "look 2 of 3, at 98.45 % confidence: the gate passed after 8 terminations",
        ] {
            assert!(said.contains(line), "{line}\n{run}");
        }
        expect_exact_accounting(&run);

        // Later commands use the confidence of the last look.
        let path = run.dir().join("run").display().to_string();
        let again = Rolldrop::new(["gate", &path]).finish().expect_code(0);
        assert!(again.stdout().contains("at 98.45 % confidence"), "{again}");
        let report = Rolldrop::new(["report", &path]).finish().expect_code(0);
        assert!(report.stdout().contains("look 2 of 3"), "{report}");
        let extended = Rolldrop::new(["gate", &path, "--inconclusive", "extend"]).finish().expect_code(2);
        assert!(extended.stderr().contains("the run has finished and cannot be extended"), "{extended}");
    });
}

#[test]
fn interim_looks_include_load_worker_rows() {
    measured(|| {
        let run = run_from("cluster", 4, "{windows: {p50: {max: 60s}}, terminations: {min: 4}}", "3");
        run.figure(!run.is_invalid());
        let (info, result) = read(&run);
        run.figure(run.code() == Some(0) && info.looks.as_ref().map(|looks| looks.at) == Some(2));
        let said = run.stderr();
        for line in [
            "look 1 of 3, at 97.74 % confidence: the gate is inconclusive (windows.p50.max); starting another round",
            "look 2 of 3, at 98.45 % confidence: the gate passed after 8 terminations",
        ] {
            assert!(said.contains(line), "{line}\n{run}");
        }
        // Rows that were fetched for a look are present only once, like all others.
        let workers: Vec<_> = info.sources.iter().filter(|source| source.role == Role::Load).collect();
        assert!(!workers.is_empty(), "{:?}", info.sources);
        for source in workers {
            let rows = source.rows.expect("the rows were handed over");
            assert_eq!(rows.recorded, Some(rows.received), "{source:?}");
        }
        assert!(result.terminations.iter().all(|t| t.windows.iter().all(|w| w.upper_s.is_some())), "{run}");
        expect_exact_accounting(&run);
    });
}

#[test]
fn inconclusive_run_ends_at_last_look() {
    measured(|| {
        let run = run(1, "{windows: {p99: {max: 60s}}}", "2");
        run.figure(!run.is_invalid());
        assert_eq!(run.code(), Some(3), "{run}");
        let (info, result) = read(&run);
        assert_eq!(info.looks.map(|looks| (looks.at, looks.most())), Some((2, 2)), "{run}");
        assert!(result.terminations.len() >= 2, "each round terminates a pod\n{run}");
        assert!(run.stderr().contains("the gate is still inconclusive after all 2 looks"), "{run}");
        expect_exact_accounting(&run);
    });
}

#[test]
fn dry_run_plan_lists_looks() {
    let plan =
        Rolldrop::new(["run", "naive-exit", "--dry-run", "--inconclusive", "extend"]).finish().expect_code(0);
    let looks = "a confidence of 98.21 %, 98.69 %, 98.96 %, 99.14 %";
    assert!(plan.stderr().contains("up to 4 rounds") && plan.stderr().contains(looks), "{plan}");
}
