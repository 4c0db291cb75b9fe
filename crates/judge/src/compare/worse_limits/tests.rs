//! Tests each kind of figure against baselines of one run and of several runs.

use std::collections::BTreeMap;

use rolldrop_record::{Expect, Stamp};
use serde_json::{Value, json};

use super::*;
use crate::compare::Sample;
use crate::compare::run_history::{LAST, RunHistory};
use crate::compare::sample::{EndedPod, LatencyQuantiles};
use crate::judgements::basis::Basis;
use CheckVerdict::{Fail, Inconclusive, Pass};
use rolldrop_explain::model::{Mode, Verdict};

/// Returns a run with three terminations and these figures.
fn run(figures: &[(&str, f64)]) -> Sample {
    let of = |(key, value): &(&str, f64)| ((*key).to_owned(), KnownFigure::Value(*value));
    let all: BTreeMap<String, KnownFigure> = figures.iter().map(of).collect();
    let target = |name: &str| FiguresOfTarget {
        name: name.to_owned(),
        consumer: "service web".to_owned(),
        figures: all.clone(),
    };
    let ended = EndedPod { mode: Mode::Isolated, windows_s: BTreeMap::new(), episode: None };
    Sample {
        name: "a run".into(),
        fingerprint: BTreeMap::new(),
        scale: BTreeMap::new(),
        started: Stamp::from_unix_ns(0),
        verdict: Verdict::Valid,
        gate: CheckVerdict::Pass,
        is_closed_loop: false,
        duration_s: 30.0,
        total: 5_000,
        dropped: figures
            .iter()
            .filter(|(key, _)| *key == "dropped")
            .map(|(_, n)| stats::index(*n) as u64)
            .sum(),
        app_errors: 0,
        latency: LatencyQuantiles {
            n: 5_000,
            p1_ms: 1.0,
            p50_ms: 2.0,
            p90_ms: 3.0,
            p99_ms: 4.0,
            p99_9_ms: 5.0,
        },
        lag_p99_ms: Some(0.2),
        terminations: vec![ended; 3],
        episodes: Vec::new(),
        by_key: ComparableFigures { targets: vec![target("web"), target("api")], all },
        block_s: 0.1,
        blocks: Vec::new(),
    }
}

fn options(expect: Value) -> CompareOptions {
    let expect: Expect = serde_json::from_value(expect).unwrap();
    assert_eq!(expect.check(), Ok(()));
    CompareOptions { worse: expect.worse(), ..CompareOptions::default() }
}

/// Returns all checks of a run: against a history if there are enough runs, otherwise against only a few.
fn all(baseline: &[Sample], candidate: &Sample, expect: Value) -> Vec<Check> {
    let options = options(expect);
    if baseline.len() < FEWEST_RUNS {
        return crate::compare::checks(baseline, candidate, &options).unwrap();
    }
    let at = |i: usize| Stamp::from_unix_ns(i64::try_from(i).unwrap());
    let runs = baseline.iter().enumerate().map(|(i, run)| Sample { started: at(i), ..run.clone() });
    let candidate = Sample { started: at(baseline.len()), ..candidate.clone() };
    RunHistory::of(runs.collect(), &candidate, LAST, &options).checks(&candidate, &options)
}

/// Returns the check of one figure.
fn check(baseline: &[Sample], candidate: &Sample, expect: Value, name: &str) -> Check {
    let checks = all(baseline, candidate, expect);
    checks
        .iter()
        .find(|check| check.name.to_string() == name)
        .unwrap_or_else(|| panic!("{name}: {checks:?}"))
        .clone()
}

fn worsening(check: &Check) -> Worsening {
    let CheckEvidence::Worse(worsening) = &check.evidence else { panic!("{check:?}") };
    (**worsening).clone()
}

/// Returns the verdict on a figure whose values in the baseline are `then` and whose value now is `now`.
fn verdict(key: &str, then: &[f64], now: f64, worse: &str) -> (CheckVerdict, Worsening) {
    let worse: Value = worse.parse::<u64>().map_or_else(|_| worse.into(), Value::from);
    let expect = key.rsplit('.').fold(json!({"worse": worse}), |inner, name| json!({name: inner}));
    let baseline: Vec<Sample> = then.iter().map(|value| run(&[(key, *value)])).collect();
    let check = check(&baseline, &run(&[(key, now)]), expect, &format!("{key}.worse"));
    (check.verdict, worsening(&check))
}

/// Returns the verdict on each of the values `now` of a figure.
fn verdicts<const N: usize>(key: &str, then: &[f64], worse: &str, now: [f64; N]) -> [CheckVerdict; N] {
    now.map(|now| verdict(key, then, now, worse).0)
}

#[test]
fn history_check_fails_only_on_certain_excess() {
    let steady = [2.0, 2.02, 1.98, 2.0, 2.01, 1.99];
    for key in ["windows", "windows.p90", "outage", "deadSeconds", "starts.firstRequest", "rollout"] {
        assert_eq!(verdicts(key, &steady, "10%", [2.1, 2.22, 2.6]), [Pass, Inconclusive, Fail], "{key}");
        assert_eq!(verdicts(key, &steady, "500ms", [2.4, 3.0]), [Pass, Fail], "{key}");
    }
    let slow = [100.0, 102.0, 98.0, 101.0, 99.0, 100.0];
    for key in ["latency.p99", "latency.steady.mean", "latency.disrupted.p50"] {
        assert_eq!(verdicts(key, &slow, "10%", [109.0, 112.0, 150.0]), [Pass, Inconclusive, Fail], "{key}");
        assert_eq!(verdicts(key, &slow, "20ms", [119.0, 150.0]), [Pass, Fail], "{key}");
    }
    // Runs that vary widely prove little.
    let wild = [60.0, 160.0, 90.0, 130.0, 70.0, 120.0];
    assert_eq!(verdicts("latency.p99", &wild, "10%", [105.0, 200.0]), [Pass, Inconclusive]);
    let good = [0.999, 0.998, 1.0, 0.999, 0.999];
    assert_eq!(verdicts("requests.ok", &good, "1%", [0.99, 0.95]), [Pass, Fail]);
    let (_, Worsening { now, limit, grounds, .. }) = verdict("rollout", &steady, 2.6, "10%");
    let MarginLimit { allowed, usual } = limit.unwrap();
    assert!(now == Some(2.6) && (allowed - 2.2).abs() < 1e-9 && (usual - 2.0).abs() < 1e-9, "{limit:?}");
    assert!(matches!(grounds, BaselineGrounds::Spread { doubt: None, .. }), "{grounds:?}");
}

#[test]
fn send_lag_excuses_worse_latency() {
    let before = vec![run(&[("latency.p99", 100.0)]); 6];
    let verdict = |lag_p99_ms| {
        let busy = Sample { lag_p99_ms, ..run(&[("latency.p99", 150.0)]) };
        check(&before, &busy, json!({"latency": {"p99": {"worse": "10%"}}}), "latency.p99.worse").verdict
    };
    assert_eq!([Some(0.2), Some(60.0), None].map(verdict), [Fail, Inconclusive, Fail]);
}

#[test]
fn count_limits_allow_poisson_spread() {
    let some = [20.0, 22.0, 18.0, 21.0, 19.0, 20.0];
    for key in ["dropped", "causes.overload", "outcomes.connect_refused", "appErrors", "starts.dropped"] {
        assert_eq!(verdicts(key, &some, "10%", [22.0, 30.0, 80.0]), [Pass, Inconclusive, Fail], "{key}");
        assert_eq!(verdicts(key, &some, "5", [25.0, 80.0]), [Pass, Fail], "{key}");
    }
    for key in ["dropped.perTermination", "dropped.perGroup"] {
        assert_eq!(verdicts(key, &some, "10%", [22.0, 80.0]), [Pass, Fail], "{key}");
    }
    // The same number per termination; there are no fractions of a request.
    let mut six = run(&[("dropped", 44.0)]);
    six.terminations.extend(six.terminations.clone());
    let baseline = some.map(|value| run(&[("dropped", value)]));
    let expect = json!({"dropped": {"worse": "10%"}});
    assert_eq!(check(&baseline, &six, expect, "dropped.worse").verdict, Pass);
    assert_eq!(verdict("dropped", &[2.0; 5], 3.0, "10%").0, Pass);
}

#[test]
fn percentage_of_zero_limits_nothing() {
    let (pass, worsening) = verdict("dropped", &[0.0; 6], 2.0, "10%");
    assert_eq!(pass, Pass, "{worsening:?}");
    assert!(matches!(worsening.grounds, BaselineGrounds::AfterNone { runs: 6, .. }), "{worsening:?}");
    assert_eq!(verdict("dropped", &[0.0; 6], 40.0, "10%").0, Fail);
    assert_eq!(verdicts("outage", &[0.0; 6], "10%", [0.0, 0.3]), [Pass, Inconclusive]);
    assert_eq!(verdicts("outage", &[0.0; 6], "200ms", [0.1, 0.3]), [Pass, Fail]);
    // The baseline is one run that lost nothing.
    assert_eq!(verdicts("dropped", &[0.0], "10%", [0.0, 7.0, 96.0]), [Pass, Inconclusive, Fail]);
    assert_eq!(verdicts("outage", &[0.0], "10%", [0.0, 0.3]), [Pass, Inconclusive]);
}

#[test]
fn totals_test_decides_few_runs() {
    let (verdict_of_many, worsening) = verdict("dropped", &[1.0], 200.0, "10%");
    assert_eq!(verdict_of_many, Fail, "{worsening:?}");
    let totals = BaselineGrounds::Totals { before: 1, runs: 1, is_share_of_nothing: false, by_chance: None };
    assert_eq!((worsening.now, worsening.grounds), (Some(200.0), totals));
    assert_eq!(verdicts("dropped", &[60.0], "10%", [66.0, 96.0]), [Pass, Inconclusive]);
    // The allowed margin is subtracted before the test.
    assert_eq!(verdicts("dropped", &[0.0], "100", [96.0, 110.0, 300.0]), [Pass, Inconclusive, Fail]);
    assert_eq!(verdicts("rollout", &[10.0, 11.0], "10%", [11.0, 60.0]), [Pass, Inconclusive]);
}

#[test]
fn single_run_baseline_rejects_only_disjoint_latency() {
    assert_eq!(verdicts("latency.p99", &[4.0], "10%", [4.3, 40.0]), [Pass, Inconclusive]);
    let mut slow = run(&[("latency.p99", 40.0), ("latency.steady.p99", 40.0)]);
    slow.latency =
        LatencyQuantiles { n: 5_000, p1_ms: 10.0, p50_ms: 20.0, p90_ms: 30.0, p99_ms: 40.0, p99_9_ms: 50.0 };
    let before = [run(&[("latency.p99", 4.0), ("latency.steady.p99", 4.0)])];
    let judged = |worse: &str| {
        let check = check(&before, &slow, json!({"latency": {"p99": {"worse": worse}}}), "latency.p99.worse");
        let is_apart = matches!(worsening(&check).grounds, BaselineGrounds::Apart(_));
        assert_eq!(check.verdict == Fail, is_apart, "{check:?}");
        check.verdict
    };
    assert_eq!(["10%", "300%", "5ms", "20ms"].map(judged), [Fail, Inconclusive, Fail, Inconclusive]);
    // No distribution is known for a subset of the requests.
    let steady = json!({"latency": {"steady": {"p99": {"worse": "10%"}}}});
    assert_eq!(check(&before, &slow, steady, "latency.steady.p99.worse").verdict, Inconclusive);
}

#[test]
fn worse_limit_replaces_default_comparison() {
    let asked = json!({"dropped": {"worse": "10%"}, "latency": {"p99": {"worse": "50%"}}});
    let figures = [("dropped", 12.0), ("latency.p99", 4.0)];
    for runs in [1, 6] {
        let baseline = vec![run(&figures); runs];
        let names = |expect: Value| {
            let checks = all(&baseline, &run(&figures), expect);
            checks.into_iter().map(|check| check.name.to_string()).collect::<Vec<_>>()
        };
        let (without, with) = (names(json!({})), names(asked.clone()));
        for name in ["baseline.dropped", "baseline.latency_ms.response.p99"] {
            assert!(without.contains(&name.to_owned()), "{name}: {without:?}");
            assert!(!with.contains(&name.to_owned()), "{name}: {with:?}");
        }
        assert!(with.contains(&"baseline.latency_ms.response.p50".to_owned()), "{with:?}");
        assert!(with.contains(&"dropped.worse".to_owned()), "{with:?}");
    }
    // With four more causes to test, the same number no longer fails.
    let causes = ["overload", "unattributed", "rule_swap", "not_ready_yet", "gateway_error"];
    let limits: serde_json::Map<String, Value> =
        causes.iter().map(|cause| ((*cause).to_owned(), json!({"worse": "10%"}))).collect();
    let one = json!({"causes": {"overload": {"worse": "10%"}}});
    let alone = check(&[run(&[])], &run(&[("causes.overload", 45.0)]), one, "causes.overload.worse");
    assert_eq!(alone.verdict, Fail, "{alone:?}");
    let mut busy = run(&[]);
    busy.by_key.all.extend(causes.iter().map(|cause| (format!("causes.{cause}"), KnownFigure::Value(45.0))));
    let open = check(&[run(&[])], &busy, json!({"causes": limits}), "causes.overload.worse");
    assert_eq!(open.verdict, Inconclusive, "{open:?}");
    let BaselineGrounds::Totals { by_chance, .. } = worsening(&open).grounds else { panic!("{open:?}") };
    assert_eq!(by_chance, Some(5));
}

#[test]
fn latency_limit_maps_to_quantile() {
    for quantile in Quantile::ALL {
        let expect = json!({"latency": {quantile.as_str(): {"worse": "5%"}}});
        assert_eq!(quantile_of(&options(expect).worse[0]), Some(*quantile), "{quantile}");
    }
}

#[test]
fn unknown_figure_makes_limit_inconclusive() {
    let expect = json!({"rollout": {"worse": "10%"}});
    let (with, mut without) = (run(&[("rollout", 9.0)]), run(&[]));
    without.by_key.all.insert("rollout".into(), KnownFigure::Unbounded(Basis::NoRollout));
    for runs in [1, 6] {
        let of = |run: &Sample| vec![run.clone(); runs];
        let judged = |baseline: &Sample, candidate: &Sample| {
            let check = check(&of(baseline), candidate, expect.clone(), "rollout.worse");
            assert_eq!(check.verdict, Inconclusive, "{check:?}");
            worsening(&check)
        };
        let unknown = || NoFigure::Unbounded(Basis::NoRollout);
        let Worsening { now, limit, grounds, .. } = judged(&with, &without);
        assert_eq!((now, limit, grounds), (None, None, BaselineGrounds::Unknown(unknown())));
        let needed = if runs == 1 { 1 } else { FEWEST_RUNS };
        let few = BaselineGrounds::FewFigures {
            known: 0,
            runs,
            needed,
            without: Some(("a run".into(), unknown())),
        };
        assert_eq!(judged(&without, &with).grounds, few);
    }
    // A run that is not compared does not pass either.
    let partial = Sample { verdict: Verdict::Partial { why: Vec::new() }, ..with.clone() };
    assert_eq!(check(&vec![with.clone(); 6], &partial, expect, "rollout.worse").verdict, Inconclusive);
}

#[test]
fn targets_and_consumers_have_own_limits() {
    let expect = json!({"targets": {"web": {"outage": {"worse": "10%"}}},
        "consumers": {"service web": {"dropped": {"worse": 3}}}});
    let figures = [("outage", 1.0), ("dropped", 4.0)];
    let names: Vec<String> = all(&vec![run(&figures); 5], &run(&figures), expect)
        .into_iter()
        .filter(|check| matches!(check.name, CheckName::Worse(_)) && check.verdict == Pass)
        .map(|check| check.name.to_string())
        .collect();
    let of_consumer = ["web", "api"].map(|target| format!("consumers.service web.{target}.dropped.worse"));
    assert_eq!(names, [of_consumer.as_slice(), &["targets.web.outage.worse".to_owned()]].concat());
}
