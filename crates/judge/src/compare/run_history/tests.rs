//! Tests the limits against simulated runs that differ from each other, and the choice of runs that count as history.

use std::collections::BTreeMap;

use rand::{RngExt, SeedableRng, rngs::SmallRng};
use rolldrop_record::Stamp;
use statrs::distribution::Normal;

use super::*;
use crate::compare::episodes::Episode;
use crate::compare::sample::{self, EndedPod, LatencyQuantiles, TimeBlock};
use crate::compare::tests::once_in_a_million;
use crate::gate::ComparableFigures;
use crate::judgements::comparison::{LatencyKind, Metric};
use rolldrop_explain::model::Mode;

mod recorded;

/// A simulated service whose runs differ from each other.
#[derive(Clone, Copy, Debug)]
struct Service {
    /// Average number of requests lost per run.
    lost: f64,
    /// Standard deviation of the logarithm of a run's latency.
    between_runs: f64,
    /// Share of runs in which 30 requests are lost.
    outages: f64,
}

const STEADY: Service = Service { lost: 0.0, between_runs: 0.05, outages: 0.0 };

fn normal(rng: &mut SmallRng) -> f64 {
    Normal::standard().inverse_cdf(rng.random_range(1e-12..1.0))
}

/// Draws a number of losses. Its mean varies from run to run with a coefficient of variation of one half.
fn losses(mean: f64, rng: &mut SmallRng) -> u64 {
    let rate = (0..4).map(|_| -(1.0 - rng.random::<f64>()).ln()).sum::<f64>() * mean / 4.0;
    let (mut lost, mut product) = (0, rng.random::<f64>());
    while product > (-rate).exp() {
        lost += 1;
        product *= rng.random::<f64>();
    }
    lost
}

/// Returns run number `at` of a history, with six isolated terminations.
fn run(at: i64, service: Service, rng: &mut SmallRng) -> Sample {
    let slow = (service.between_runs * normal(rng)).exp();
    let tail = (service.between_runs * normal(rng)).exp();
    let outage = if rng.random::<f64>() < service.outages { 30 } else { 0 };
    let window_s = |rng: &mut SmallRng| (0.15 + 0.03 * normal(rng)).max(0.0);
    let ended = |rng: &mut SmallRng| EndedPod {
        mode: Mode::Isolated,
        windows_s: BTreeMap::from([("service web".to_owned(), Some(window_s(rng)))]),
        episode: None,
    };
    let mut hit = [0; 6];
    for _ in 0..losses(service.lost, rng) {
        hit[rng.random_range(0..6)] += 1;
    }
    hit[0] += outage;
    let (p50_ms, p99_ms) = (slow, 5.0 * slow * tail);
    Sample {
        name: format!("run {at}"),
        fingerprint: BTreeMap::from([("rate".into(), "200 requests/s".into())]),
        scale: BTreeMap::new(),
        started: Stamp::from_unix_ns(at),
        verdict: Verdict::Valid,
        gate: CheckVerdict::Pass,
        is_closed_loop: false,
        duration_s: 30.0,
        total: 6_000,
        dropped: hit.iter().sum(),
        app_errors: 0,
        latency: LatencyQuantiles { n: 6_000, p1_ms: 0.5, p50_ms, p90_ms: 3.0 * slow, p99_ms, p99_9_ms: 9.0 },
        lag_p99_ms: Some(0.2),
        terminations: (0..6).map(|_| ended(rng)).collect(),
        episodes: hit.map(|dropped| Episode { mode: Mode::Isolated, terminations: 1, dropped }).to_vec(),
        by_key: ComparableFigures::default(),
        block_s: 0.1,
        blocks: Vec::new(),
    }
}

fn history(runs: i64, service: Service, rng: &mut SmallRng) -> (RunHistory, Sample) {
    let earlier = (0..runs).map(|at| run(at, service, rng)).collect();
    let candidate = run(runs, service, rng);
    (RunHistory::of(earlier, &candidate, LAST, &CompareOptions::default()), candidate)
}

fn latency(quantile: Quantile) -> CheckName {
    CheckName::Baseline(Metric::Latency(LatencyKind::Response, quantile))
}

fn prediction(check: &Check) -> &Prediction {
    let CheckEvidence::Predicted(prediction) = &check.evidence else { panic!("{check:?}") };
    prediction
}

fn failed(history: &RunHistory, candidate: &Sample) -> Vec<String> {
    let checks = history.checks(candidate, &CompareOptions { tolerance: 0.0, ..CompareOptions::default() });
    checks
        .into_iter()
        .filter(|check| check.verdict == CheckVerdict::Fail)
        .map(|check| check.name.to_string())
        .collect()
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "an environment variable sets how many executions a study makes"
)]
fn prediction_limits_cover_unchanged_service() {
    let given = std::env::var("ROLLDROP_STUDY_GATES").ok().and_then(|n| n.parse().ok());
    let executions = given.unwrap_or(300_u64);
    let rare = Service { outages: 0.05, ..STEADY };
    let services = [
        STEADY,
        Service { between_runs: 0.3, ..STEADY },
        Service { lost: 1.0, ..STEADY },
        Service { lost: 20.0, between_runs: 0.1, outages: 0.0 },
        rare,
    ];
    for service in services {
        for runs in [5, 20] {
            let mut alarms = 0;
            for seed in 0..executions {
                let mut rng = SmallRng::seed_from_u64(seed);
                let (history, candidate) = history(runs, service, &mut rng);
                alarms += u64::from(!failed(&history, &candidate).is_empty());
            }
            println!("{service:?}, {runs} runs: {alarms} of {executions} fail");
            assert!(alarms < once_in_a_million(executions), "{service:?}, {runs} runs: {alarms}");
        }
    }
}

#[test]
fn history_check_fails_each_worse_figure() {
    let mut rng = SmallRng::seed_from_u64(3);
    let (before, same) = history(8, Service { lost: 2.0, ..STEADY }, &mut rng);
    assert_eq!(failed(&before, &same), Vec::<String>::new());
    let lost = Sample { dropped: 96, ..same.clone() };
    assert_eq!(failed(&before, &lost), ["baseline.dropped"]);
    let errors = Sample { app_errors: 60, ..same.clone() };
    assert_eq!(failed(&before, &errors), ["baseline.app_errors"]);
    let mut slow = same.clone();
    slow.latency.p99_ms *= 2.0;
    assert_eq!(failed(&before, &slow), ["baseline.latency_ms.response.p99"]);
    let longer_by = |more_s: f64| {
        let mut longer = same.clone();
        let windows_s = longer.terminations.iter_mut().flat_map(|t| t.windows_s.values_mut());
        windows_s.for_each(|s| *s = s.map(|s| s + more_s));
        longer
    };
    assert_eq!(
        failed(&before, &longer_by(0.2)),
        Vec::<String>::new(),
        "a preStop sleep is a whole number of seconds"
    );
    let mut longer = longer_by(1.0);
    assert_eq!(failed(&before, &longer), ["baseline.windows_s.isolated.service web"]);
    // If the run's windows have no upper bounds, that figure is unknown.
    longer.terminations.iter_mut().flat_map(|t| t.windows_s.values_mut()).for_each(|s| *s = None);
    let checks = before.checks(&longer, &CompareOptions::default());
    let is_window = |check: &&Check| matches!(check.name, CheckName::Baseline(Metric::MedianWindow { .. }));
    let check = checks.iter().find(is_window).unwrap();
    assert_eq!(check.verdict, CheckVerdict::Inconclusive, "{check:?}");
}

#[test]
fn send_lag_excuses_high_latency() {
    let mut rng = SmallRng::seed_from_u64(3);
    let (before, mut slow) = history(8, STEADY, &mut rng);
    slow.latency.p99_ms += 30.0;
    let p99 = |sample: &Sample| {
        let checks = before.checks(sample, &CompareOptions::default());
        checks.into_iter().find(|check| check.name == latency(Quantile::P99)).unwrap()
    };
    assert_eq!(p99(&slow).verdict, CheckVerdict::Fail);
    slow.lag_p99_ms = Some(31.0);
    let check = p99(&slow);
    assert_eq!(check.verdict, CheckVerdict::Inconclusive);
    assert_eq!(prediction(&check).doubt, Some(LatencyDoubt::Lateness { now_ms: 31.0, usual_ms: 0.2 }));
    // A lag that is too short to explain the latency, and an unknown lag.
    for lag in [Some(15.0), None] {
        slow.lag_p99_ms = lag;
        assert_eq!(p99(&slow).verdict, CheckVerdict::Fail, "{lag:?}");
    }
}

/// Returns this run with new latencies for each tenth of a second: 2 ms, but slow for `slow_of_20` of 20 responses.
fn with_latencies(run: &Sample, slow_of_20: impl Fn(usize) -> u64) -> Sample {
    let [usual, slow] = [2_000_000, 900_000_000].map(sample::bin);
    let block = |i| {
        let slow_ones = slow_of_20(i);
        TimeBlock {
            total: 20,
            latency: BTreeMap::from([(usual, 20 - slow_ones), (slow, slow_ones)]),
            ..TimeBlock::default()
        }
    };
    let blocks: Vec<TimeBlock> = (0..300).map(block).collect();
    Sample { latency: LatencyQuantiles::of(&blocks), blocks, ..run.clone() }
}

#[test]
fn short_bursts_leave_quantile_inconclusive() {
    let mut rng = SmallRng::seed_from_u64(3);
    let (before, same) = history(8, STEADY, &mut rng);
    let p99 = |slow_of_20: &dyn Fn(usize) -> u64| {
        let checks = before.checks(&with_latencies(&same, slow_of_20), &CompareOptions::default());
        checks.into_iter().find(|check| check.name == latency(Quantile::P99)).unwrap()
    };
    // 66 slow responses of 6,000, in two rollouts.
    let in_two_rollouts = p99(&|i| if matches!(i, 100..=102 | 200..=202) { 11 } else { 0 });
    assert_eq!(in_two_rollouts.verdict, CheckVerdict::Inconclusive, "{in_two_rollouts:?}");
    let Some(LatencyDoubt::FewMoments { share, .. }) = prediction(&in_two_rollouts).doubt else {
        panic!("{in_two_rollouts:?}")
    };
    assert!((share - 0.011).abs() < 1e-9, "{share}");
    // 1.25 % slow responses throughout the run.
    let all_the_time = p99(&|i| u64::from(i % 4 == 0));
    assert_eq!(all_the_time.verdict, CheckVerdict::Fail, "{all_the_time:?}");
}

#[test]
fn lossless_history_allows_three_drops() {
    let mut rng = SmallRng::seed_from_u64(4);
    let (before, same) = history(5, STEADY, &mut rng);
    let lost = |dropped| failed(&before, &Sample { dropped, ..same.clone() });
    assert_eq!((lost(3), lost(5)), (Vec::new(), vec!["baseline.dropped".to_owned()]));
}

#[test]
fn history_uses_only_comparable_runs_that_passed() {
    let mut rng = SmallRng::seed_from_u64(5);
    let mut runs: Vec<Sample> = (0..8).map(|at| run(at, STEADY, &mut rng)).collect();
    let candidate = run(7, STEADY, &mut rng);
    runs[0].verdict = Verdict::Invalid { why: vec!["it fell behind".into()] };
    runs[1].verdict = Verdict::Partial { why: vec!["interrupted".into()] };
    runs[2].gate = CheckVerdict::Fail;
    runs[3].fingerprint.insert("rate".into(), "300 requests/s".into());
    runs[4].scale.insert("nodes".into(), 9);
    let history = RunHistory::of(runs.clone(), &candidate, LAST, &CompareOptions::default());
    let names: Vec<&str> = history.used.iter().map(|run| run.name.as_str()).collect();
    // The last run is the candidate itself.
    assert_eq!(names, ["run 4", "run 5", "run 6"]);
    let [check] = history.checks(&candidate, &CompareOptions::default()).try_into().unwrap();
    assert_eq!(check.verdict, CheckVerdict::Inconclusive);
    let unfit = [
        UnfitRun::NotPassed,
        UnfitRun::Invalid,
        UnfitRun::Partial,
        UnfitRun::Differs(vec!["rate".to_owned()]),
    ];
    let left_out = unfit.map(|unfit| (unfit, 1)).into();
    assert_eq!(check.evidence, CheckEvidence::History { used: 3, left_out });
    let last = RunHistory::of(runs, &candidate, 2, &CompareOptions::default());
    assert_eq!(last.used.len(), 2);
}

#[test]
fn history_tolerates_repeated_outage() {
    let mut rng = SmallRng::seed_from_u64(8);
    let (mut before, same) = history(20, STEADY, &mut rng);
    let outage = Sample { dropped: 30, ..same };
    assert_eq!(failed(&before, &outage), ["baseline.dropped"]);
    before.used[3].dropped = 30;
    assert_eq!(failed(&before, &outage), Vec::<String>::new());
    let longer = Sample { dropped: 60, ..outage };
    assert_eq!(failed(&before, &longer), ["baseline.dropped"]);
}

#[test]
fn gradual_regression_is_reported() {
    let mut rng = SmallRng::seed_from_u64(6);
    let mut rotting = |at: i64| {
        let mut run = run(at, STEADY, &mut rng);
        run.latency.p50_ms = 1.03_f64.powf(at as f64);
        run
    };
    let runs = (0..12).map(&mut rotting).collect();
    let candidate = rotting(12);
    let history = RunHistory::of(runs, &candidate, LAST, &CompareOptions::default());
    let checks = history.checks(&candidate, &CompareOptions::default());
    let check = checks.iter().find(|check| check.name == latency(Quantile::P50)).unwrap();
    assert_eq!(check.verdict, CheckVerdict::Pass, "{check:?}");
    assert_eq!(prediction(check).trend.map(|trend| trend.runs), Some(13));
}

#[test]
fn history_skips_invalid_and_small_runs() {
    let mut rng = SmallRng::seed_from_u64(7);
    let (before, same) = history(6, STEADY, &mut rng);
    let invalid = Sample { verdict: Verdict::Invalid { why: Vec::new() }, dropped: 900, ..same.clone() };
    assert_eq!(failed(&before, &invalid), Vec::<String>::new());
    let few = Sample { total: 100, ..same };
    let checks = before.checks(&few, &CompareOptions::default());
    let check = checks.iter().find(|check| check.name == CheckName::Requests).unwrap();
    assert_eq!(check.verdict, CheckVerdict::Inconclusive);
}

#[test]
fn limit_after_lossless_runs_is_found_at_once() {
    assert_eq!([1.0, 5.0, 20.0].map(|runs| after_none(runs, 0.0049)), [203.0, 4.0, 1.0]);
    // A run that is a hundred times as long as the five before it may lose any number, by this test.
    assert!(after_none(0.05, 0.005) > 1e9);
}
