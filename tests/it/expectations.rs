//! The gate on real runs: all keys of `expect`, and the checks that need no key.

use rolldrop_explain::model::{CheckVerdict, RunResult, Verdict};

use crate::harness::{Finished, Rolldrop};
use crate::machine::measured;
use crate::runs::{self, Dataplane, turn};

const LIMITS: &str = "\
dropped: {max: 5%, perTermination: {max: 100}, perGroup: {max: 300}}
appErrors: {max: 0}
requests: {ok: {min: 95%}, notSent: {max: 0.1%}}
causes: {overload: {max: 10%}}
outcomes: {response_timeout: {max: 100}}
terminations: {min: 3}
windows: {max: 60s, p50: {max: 60s}}
outage: {max: 10s}
latency: {mean: {max: 2s}, p99: {max: 5s}, steady: {p95: {max: 5s}}, disrupted: {p50: {max: 1000x}}}
accounting: closes
validity: valid
targets: {web: {dropped: {max: 100}, latency: {p90: {max: 5s}}}}
consumers: {web: {windows: {max: 60s}}}
";

fn result(run: &Finished) -> RunResult {
    runs::result(&run.dir().join("run"))
}

#[test]
fn gate_judges_every_expectation_kind() {
    measured(|| {
        let run = &runs::prestop_sleep()[1];
        let gate = |more: &[&str]| {
            let path = run.path.to_str().expect("a path");
            let base = ["gate", path, "--expect", "limits.yaml"];
            Rolldrop::new(base.iter().chain(more)).file("limits.yaml", LIMITS).finish()
        };
        let all = gate(&[]);
        let valid = run.result.verdict == Verdict::Valid;
        run.finished.figure(valid);
        // The median of three windows has no upper bound at 95 % confidence; all other figures have one.
        assert_eq!(all.code(), Some(3), "{all}");
        let stdout = all.stdout();
        let open: Vec<&str> = stdout.lines().filter(|line| !line.starts_with("pass ")).collect();
        assert!(open.len() == 1 && open[0].starts_with("inconclusive windows.p50.max: "), "{all}");
        assert!(open[0].contains("2 more terminations: an upper bound needs 5"), "{all}");
        for name in ["dropped.perGroup.max", "targets.web.latency.p90.max", "consumers.web.windows.max"] {
            assert!(stdout.contains(&format!(" {name}: ")), "{name}: {all}");
        }
        assert_eq!(gate(&["--inconclusive", "pass"]).code(), Some(0));
        assert_eq!(gate(&["--inconclusive", "fail"]).code(), Some(1));
        assert_eq!(gate(&["--set", "expect.terminations={min: 4}"]).code(), Some(1));
        let unknown = gate(&["--set", "expect.droped.max=2"]);
        assert_eq!(unknown.code(), Some(2), "{unknown}");
        assert!(unknown.stderr().contains("--set: spec.expect.droped: unknown field"), "{unknown}");
    });
}

#[test]
fn gate_fails_without_successful_requests() {
    measured(|| {
        // T16: every response has an unsuccessful status, so nothing can be dropped.
        let _turn = turn();
        let run = Rolldrop::run("prestop-sleep")
            .set(&["load.success=[299]"])
            .args(["--quiet"])
            .on(Dataplane::Userspace)
            .measured();
        run.figure(!run.is_invalid());
        let run = run.expect_code(1);
        let result = result(&run);
        assert_eq!((result.requests.dropped, result.requests.ok), (0, 0), "{run}");
        let failed: Vec<&str> = (result.checks.iter())
            .filter(|check| check.verdict == CheckVerdict::Fail)
            .map(|check| check.name.as_str())
            .collect();
        assert_eq!(failed, ["requests.ok.min"], "{run}");
    });
}

#[test]
fn gate_fails_without_expected_terminations() {
    measured(|| {
        let _turn = turn();
        let run = Rolldrop::run("prestop-sleep")
            .set(&["expect={dropped: {max: 0}}"])
            .args(["--quiet"])
            .on(Dataplane::Userspace)
            .args(["--", "true"])
            .measured();
        run.figure(!run.is_invalid());
        let run = run.expect_code(1);
        let checks = result(&run).checks;
        let failed: Vec<&str> =
            checks.iter().filter(|c| c.verdict == CheckVerdict::Fail).map(|c| c.name.as_str()).collect();
        assert_eq!(failed, ["terminations.min"], "{run}");
    });
}

#[test]
fn built_in_gate_passes_graceful_app() {
    measured(|| {
        let _turn = turn();
        // With three terminations instead of 29, the gate expects only what three can show.
        let run = Rolldrop::run("gate")
            .set(&["disruptions.0.repeat=3", "load.duration=24s", "expect.terminations={min: 3, max: 3}"])
            .set(&["expect.windows={max: 3s}", "expect.preStop={suffices: 30%}"])
            .args(["--quiet"])
            .on(Dataplane::Userspace)
            .measured();
        run.figure(run.code() == Some(0));
        let checks = result(&run).checks;
        let dropped = checks.iter().find(|check| check.name == "dropped.max").expect("a check");
        assert!(dropped.why.ends_with("shows in 95 % of the runs with 3 terminations"), "{run}");
    });
}
