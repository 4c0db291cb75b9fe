//! Tests the verdicts against simulated runs with a known truth: false alarms stay within the allowed rate, and real
//! differences are found.

use std::collections::BTreeMap;

use rand::{RngExt, SeedableRng, rngs::SmallRng};
use statrs::function::factorial::ln_binomial;

use super::blocks::{FEW, FEWEST};
use super::episodes::Episode;
use super::sample::{EndedPod, LatencyQuantiles, TimeBlock, bin};
use super::*;
use crate::gate::ComparableFigures;
use crate::judgements::comparison::{LatencyKind, Method, MetricUnit, Proportion};
use rolldrop_explain::model::{CheckVerdict, Mode};
use rolldrop_record::{Outcome, Stamp};

/// Behaviour of a simulated service.
#[derive(Clone, Copy)]
struct Service {
    /// Share of a block's slowness that carries over to the next block.
    keep: f64,
    /// Factor by which all latencies are multiplied.
    slower: f64,
    /// Probability that a block begins a series of ten blocks in which half of the requests are lost.
    outages: f64,
}

const PLAIN: Service = Service { keep: 0.0, slower: 1.0, outages: 0.0 };

/// Returns a service whose slowness persists from block to block.
fn alike(keep: f64) -> Service {
    Service { keep, ..PLAIN }
}

/// Simulates 30 s at 200 requests/s.
fn run(service: Service, rng: &mut SmallRng) -> Sample {
    run_of(30, service, rng)
}

/// Simulates this many seconds at 200 requests/s, in blocks of 0.1 s.
fn run_of(seconds: u32, service: Service, rng: &mut SmallRng) -> Sample {
    let (mut slow, mut outage) = (0.0, 0);
    let mut blocks = Vec::new();
    for _ in 0..10 * seconds {
        slow = service.keep * slow + 0.2 * rng.random_range(-1.0..1.0);
        if rng.random::<f64>() < service.outages {
            outage = 10;
        }
        let mut block = TimeBlock { total: 20, ..TimeBlock::default() };
        for _ in 0..20 {
            if outage > 0 && rng.random::<f64>() < 0.5 {
                *block.dropped.entry(Outcome::ConnectRefused).or_default() += 1;
                continue;
            }
            let own = 1e6 * (1.0 - 0.5 * (1.0 - rng.random::<f64>()).ln());
            let ns = service.slower * own * f64::exp(slow);
            #[expect(clippy::cast_possible_truncation, reason = "a latency in nanoseconds")]
            let ns = ns as i64;
            *block.latency.entry(bin(ns)).or_default() += 1;
        }
        outage = (outage - 1).max(0);
        blocks.push(block);
    }
    of(blocks, Vec::new())
}

fn of(blocks: Vec<TimeBlock>, episodes: Vec<Episode>) -> Sample {
    Sample {
        name: "run".into(),
        fingerprint: BTreeMap::from([("rate".into(), "200 requests/s".into())]),
        scale: BTreeMap::new(),
        started: Stamp::default(),
        verdict: Verdict::Valid,
        gate: CheckVerdict::Pass,
        is_closed_loop: false,
        duration_s: blocks.len() as f64 / 10.0,
        total: blocks.iter().map(|b| b.total).sum(),
        dropped: blocks.iter().map(TimeBlock::lost).sum(),
        app_errors: 0,
        latency: LatencyQuantiles::of(&blocks),
        lag_p99_ms: None,
        terminations: episodes.iter().flat_map(|e| vec![ended(e.mode, 0.1); e.terminations]).collect(),
        episodes,
        by_key: ComparableFigures::default(),
        block_s: 0.1,
        blocks,
    }
}

fn quick() -> CompareOptions {
    CompareOptions { tolerance: 0.0, replicates: 200, ..CompareOptions::default() }
}

/// Returns `pairs` comparisons of two services, with two runs of `seconds` seconds per side.
fn comparisons(pairs: u64, seconds: u32, a: Service, b: Service) -> impl Iterator<Item = Comparison> {
    (0..pairs).map(move |seed| {
        let mut rng = SmallRng::seed_from_u64(seed);
        let [a, b] = [a, b].map(|service| [(); 2].map(|()| run_of(seconds / 2, service, &mut rng)));
        compare(&a, &b, &quick()).unwrap()
    })
}

/// Returns true if a row has one of these verdicts.
fn has(comparison: &Comparison, wanted: &[Judgement]) -> bool {
    comparison.rows.iter().any(|row| row.verdict.is_some_and(|v| wanted.contains(&v)))
}

/// Counts how many of `pairs` comparisons have this verdict in any row.
fn count_pairs(pairs: u64, a: Service, b: Service, wanted: Judgement) -> usize {
    comparisons(pairs, 30, a, b).filter(|comparison| has(comparison, &[wanted])).count()
}

const ALARM: [Judgement; 2] = [Judgement::Better, Judgement::Worse];

/// Returns the smallest number of hits that occurs at most once in a million times if each of `n` trials has a
/// probability of 0.05.
pub(super) fn once_in_a_million(n: u64) -> u64 {
    let chance = |k: u64| {
        let (hits, others) = (k as f64, (n - k) as f64);
        (ln_binomial(n, k) + hits * 0.05_f64.ln() + others * 0.95_f64.ln()).exp()
    };
    (0..=n).find(|least| (*least..=n).map(chance).sum::<f64>() <= 1e-6).unwrap_or(n)
}

#[test]
#[expect(clippy::disallowed_methods, reason = "an environment variable sets how many pairs a study compares")]
fn equal_services_seldom_raise_alarms() {
    // With more pairs or longer runs, this becomes a study (docs/proofs.md).
    let given =
        |name: &str, usual: u32| std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(usual);
    let pairs = u64::from(given("ROLLDROP_STUDY_PAIRS", 25));
    let seconds = given("ROLLDROP_STUDY_SECONDS", 30);
    for service in [PLAIN, alike(0.8), alike(0.9), Service { outages: 0.01, ..alike(0.5) }] {
        let (mut alarms, mut intervals, mut misses) = (0, 0, 0);
        for comparison in comparisons(pairs, seconds, service, service) {
            alarms += u64::from(has(&comparison, &ALARM));
            for change in comparison.rows.iter().filter_map(|row| row.change) {
                intervals += 1;
                misses += u64::from(change.lower > 1.0 || change.upper < 1.0);
            }
        }
        let Service { keep, outages, .. } = service;
        println!(
            "keep {keep}, outages {outages}: {alarms} alarms in {pairs} pairs of sides of {seconds} s, \
             {misses} of {intervals} intervals miss"
        );
        assert!(alarms < once_in_a_million(pairs), "{alarms} of {pairs} (keep {})", service.keep);
    }
}

#[test]
fn interval_from_few_segments_is_marked_rough() {
    let rough = |service| {
        let rows = comparisons(10, 30, service, service).flat_map(|comparison| comparison.rows);
        let few = rows.filter(|row| row.change.is_some()).map(|row| match row.method {
            Method::Bootstrap { few, .. } => few,
            method => panic!("{method:?}"),
        });
        let (rough, others): (Vec<_>, Vec<_>) = few.partition(Option::is_some);
        for segments in rough.iter().flatten() {
            assert!((FEWEST..FEW).contains(segments), "{segments}");
        }
        (rough.len(), others.len())
    };
    let (independent, much_alike) = (rough(PLAIN), rough(alike(0.9)));
    assert!(independent.0 == 0 && independent.1 > 0, "{independent:?}");
    assert!(much_alike.0 > 0, "{much_alike:?}");
}

#[test]
fn comparison_detects_worse_service() {
    let slower = Service { slower: 1.2, ..PLAIN };
    let worse = count_pairs(5, PLAIN, slower, Judgement::Worse);
    let better = count_pairs(5, slower, PLAIN, Judgement::Better);
    let losing = count_pairs(5, PLAIN, Service { outages: 0.05, ..PLAIN }, Judgement::Worse);
    assert_eq!((worse, better, losing), (5, 5, 5));
}

#[test]
fn latency_verdict_needs_two_runs() {
    let mut rng = SmallRng::seed_from_u64(7);
    const P90: Metric = Metric::Latency(LatencyKind::Response, Quantile::P90);
    let slower = Service { slower: 1.5, ..PLAIN };
    let [before, after] = [PLAIN, slower].map(|service| [(); 2].map(|()| run(service, &mut rng)));
    let p90 = |baseline: &[Sample], candidate: &[Sample]| {
        let comparison = compare(baseline, candidate, &quick()).unwrap();
        let row = comparison.rows.iter().find(|row| row.metric == P90).unwrap().clone();
        let verdict = check(row.clone(), comparison.tolerance).unwrap().verdict;
        assert_eq!(comparison.caveats.contains(&Caveat::OneRun), row.p.is_none());
        (row, verdict)
    };
    for (baseline, candidate) in [(&before[..1], &after[..1]), (&before[..1], &after), (&before, &after[..1])]
    {
        let (row, check) = p90(baseline, candidate);
        assert!(row.change.unwrap().lower > 1.2 && row.p.is_none() && row.looks_worse(), "{row:?}");
        assert_eq!(row.verdict, Some(Judgement::CannotTell), "{row:?}");
        assert!(matches!(row.method, Method::Bootstrap { is_withheld: true, .. }), "{row:?}");
        assert_eq!(check, CheckVerdict::Inconclusive);
    }
    let (row, check) = p90(&after[..1], &before[..1]);
    assert_eq!((row.verdict, check), (Some(Judgement::CannotTell), CheckVerdict::Pass), "{row:?}");
    let (row, check) = p90(&before, &after);
    assert_eq!((row.verdict, check), (Some(Judgement::Worse), CheckVerdict::Fail), "{row:?}");
    assert!(row.p.is_some() && matches!(row.method, Method::Bootstrap { is_withheld: false, .. }), "{row:?}");
}

#[test]
fn single_run_proves_only_equal_rate() {
    let closed = |requests: u64| {
        let of_block = |i: u64| TimeBlock { total: requests + i % 3, ..TimeBlock::default() };
        Sample { is_closed_loop: true, ..of((0..300).map(of_block).collect(), Vec::new()) }
    };
    let rate = |requests| {
        let options = CompareOptions { replicates: 200, ..CompareOptions::default() };
        let rows = compare(&[closed(100)], &[closed(requests)], &options).unwrap().rows;
        rows.into_iter().find(|row| row.metric == Metric::Rate).unwrap()
    };
    let (same, fewer) = (rate(99), rate(50));
    assert_eq!(same.verdict, Some(Judgement::Same), "{same:?}");
    assert_eq!((fewer.verdict, fewer.p), (Some(Judgement::CannotTell), None), "{fewer:?}");
    let is_withheld = matches!(fewer.method, Method::Bootstrap { is_withheld: true, .. });
    assert!(fewer.looks_worse() && is_withheld, "{fewer:?}");
}

#[test]
fn rate_counts_each_run_by_its_own_blocks() {
    let side = |block_s: f64, blocks: usize| {
        let requests = stats::index((200.0 * block_s).round()) as u64;
        let block = TimeBlock { total: requests, ..TimeBlock::default() };
        Sample { is_closed_loop: true, block_s, ..of(vec![block; blocks], Vec::new()) }
    };
    // Runs of 30 s and 90 s, whose blocks differ in length.
    let runs = [side(0.1, 300), side(0.2, 450)];
    let rows = compare(&runs, &runs, &quick()).unwrap().rows;
    let rate = rows.iter().find(|row| row.metric == Metric::Rate).unwrap();
    assert!(rate.baseline.is_some_and(|rate| (rate - 200.0).abs() < 1e-6), "{rate:?}");
    // All resamples have the same rate, too.
    let change = rate.change.unwrap();
    assert!((change.lower - 1.0).abs() < 1e-6 && (change.upper - 1.0).abs() < 1e-6, "{change:?}");
}

#[test]
fn tolerance_accepts_small_differences() {
    let mut rng = SmallRng::seed_from_u64(5);
    let (a, b) = (run(PLAIN, &mut rng), run(Service { slower: 1.02, ..PLAIN }, &mut rng));
    let options = CompareOptions { tolerance: 0.15, replicates: 200, ..CompareOptions::default() };
    let comparison = compare(&[a], &[b], &options).unwrap();
    let median = comparison.rows.iter().find(|row| row.metric == P50).unwrap();
    assert_eq!(median.verdict, Some(Judgement::Same), "{median:?}");
    let change = median.change.unwrap();
    assert!(change.lower <= change.estimate && change.estimate <= change.upper, "{change:?}");
}

fn ended(mode: Mode, window_s: f64) -> EndedPod {
    let windows_s = BTreeMap::from([("service web".to_owned(), Some(window_s))]);
    EndedPod { mode, windows_s, episode: None }
}

fn alone(dropped: u64) -> Episode {
    Episode { mode: Mode::Isolated, terminations: 1, dropped }
}

#[test]
fn three_terminations_prove_no_difference() {
    let verdict = |n: usize| {
        let side =
            |dropped| of(vec![TimeBlock { total: 20, ..TimeBlock::default() }; 300], vec![alone(dropped); n]);
        let comparison = compare(&[side(0)], &[side(7)], &quick()).unwrap();
        let row = &comparison.rows[1];
        assert_eq!(row.metric, Metric::WithDrops(Mode::Isolated));
        assert!(comparison.rows[0].verdict.is_none(), "the termination is the unit, not the request");
        (row.verdict, row.method.clone())
    };
    let (few, method) = verdict(3);
    assert_eq!(few, Some(Judgement::CannotTell), "{method:?}");
    assert!(matches!(method, Method::Fisher { needed: Some(4), .. }), "{method:?}");
    assert_eq!(verdict(10).0, Some(Judgement::Worse));
}

#[test]
fn unbounded_windows_are_inconclusive() {
    let side = |windows_s: &[Option<f64>]| {
        let mut side = of(Vec::new(), vec![alone(0); windows_s.len()]);
        for (ended, window_s) in side.terminations.iter_mut().zip(windows_s) {
            ended.windows_s = BTreeMap::from([("service web".to_owned(), *window_s)]);
        }
        side
    };
    let bounded = side(&[Some(0.5); 10]);
    let mut partly = vec![None; 9];
    partly.push(Some(0.4));
    let (partly, unknown) = (side(&partly), side(&[None; 10]));
    let consumer = "service web".to_owned();
    let window = CheckName::Baseline(Metric::MeanWindow { mode: Mode::Isolated, consumer, is_only: true });
    for (baseline, candidate) in
        [(&bounded, &partly), (&partly, &bounded), (&partly, &partly), (&bounded, &unknown)]
    {
        let (verdict, evidence) = verdict_of(baseline, candidate, &window);
        assert_eq!(verdict, CheckVerdict::Inconclusive, "{evidence:?}");
    }
    // Windows that neither side ever bounds are no figure of these runs.
    let none = checks(slice::from_ref(&unknown), &unknown, &quick()).unwrap();
    assert!(none.iter().all(|check| check.name != window), "{none:?}");
}

#[test]
fn windows_of_one_episode_count_once() {
    let side = |window_s: f64, steps: usize| {
        let episode = |_| Episode { mode: Mode::Rollout, terminations: 6 / steps, dropped: 0 };
        let mut side = of(Vec::new(), (0..steps).map(episode).collect());
        for (i, pod) in side.terminations.iter_mut().enumerate() {
            *pod = EndedPod { episode: Some(i * steps / 6), ..ended(Mode::Rollout, window_s) };
        }
        side
    };
    let without_episodes = |mut side: Sample| {
        side.terminations.iter_mut().for_each(|ended| ended.episode = None);
        side
    };
    let consumer = "service web".to_owned();
    let window = CheckName::Baseline(Metric::MeanWindow { mode: Mode::Rollout, consumer, is_only: true });
    let verdict = |steps: usize, of: &dyn Fn(Sample) -> Sample| {
        let (verdict, evidence) = verdict_of(&of(side(0.1, steps)), &of(side(0.5, steps)), &window);
        let CheckEvidence::Row(row) = evidence else { panic!("{evidence:?}") };
        let is_mean = |mean: Option<f64>, of: f64| mean.is_some_and(|mean| (mean - of).abs() < 1e-9);
        assert!(is_mean(row.baseline, 0.1) && is_mean(row.candidate, 0.5), "{row:?}");
        (verdict, row.method)
    };
    let over = |n| Method::WindowPermutation { episodes: [n; 2], mode: Mode::Rollout };
    // One sync ends all windows of a run, so six windows are one observation.
    assert_eq!(verdict(1, &|side| side), (CheckVerdict::Inconclusive, over(1)));
    assert_eq!(verdict(6, &|side| side), (CheckVerdict::Fail, over(6)));
    // Baselines of earlier versions do not say which window belongs to which episode.
    assert_eq!(verdict(2, &without_episodes), (CheckVerdict::Inconclusive, over(1)));
    assert_eq!(verdict(6, &without_episodes), (CheckVerdict::Fail, over(6)));
}

#[test]
fn rollout_counts_as_one_lossy_episode() {
    let side = |dropped| {
        let episode = Episode { mode: Mode::Rollout, terminations: 6, dropped };
        of(vec![TimeBlock { total: 20, ..TimeBlock::default() }; 300], vec![episode])
    };
    let comparison = compare(&[side(0)], &[side(96)], &quick()).unwrap();
    let row = |metric: Metric| comparison.rows.iter().find(|row| row.metric == metric).unwrap().clone();
    let with_drops = row(Metric::WithDrops(Mode::Rollout));
    let hits = [0, 1].map(|hits| Proportion { hits, n: 1 });
    assert!(matches!(with_drops.method, Method::Fisher { hits: of, .. } if of == hits), "{with_drops:?}");
    assert_eq!((with_drops.verdict, with_drops.looks_worse()), (Some(Judgement::CannotTell), true));
    let check = check(row(Metric::DropsEach(Mode::Rollout)), comparison.tolerance).unwrap();
    assert_eq!(check.verdict, CheckVerdict::Inconclusive, "{check:?}");
}

#[test]
fn comparison_rejects_runs_that_differ() {
    let mut rng = SmallRng::seed_from_u64(1);
    let (a, mut b) = (run(PLAIN, &mut rng), run(PLAIN, &mut rng));
    b.fingerprint.insert("rate".into(), "300 requests/s".into());
    b.verdict = Verdict::Invalid { why: vec!["it fell behind".into()] };
    let (a, b) = ([a], [b]);
    let rate = |rate: &str| BTreeSet::from([Some(rate.to_owned())]);
    let differences = vec![
        Difference::Setting {
            name: "rate".into(),
            baseline: rate("200 requests/s"),
            candidate: rate("300 requests/s"),
        },
        Difference::Validity { baseline: None, candidate: Some(vec!["it fell behind".into()]) },
    ];
    assert_eq!(compare(&a, &b, &quick()).unwrap_err(), Incomparable::Differs(differences));
    let anyway = compare(&a, &b, &CompareOptions { anyway: true, ..quick() }).unwrap();
    assert_eq!(anyway.differences.len(), 2);
    assert_eq!(compare(&[], &b, &quick()).unwrap_err(), Incomparable::Nothing);
}

#[test]
fn comparison_needs_enough_evidence() {
    let mut rng = SmallRng::seed_from_u64(2);
    let (a, b) = (run(PLAIN, &mut rng), run(PLAIN, &mut rng));
    let comparison = compare(&[a], &[b], &quick()).unwrap();
    let method = |metric: Metric| {
        let row = comparison.rows.iter().find(|row| row.metric == metric).unwrap();
        assert_eq!(row.verdict, Some(Judgement::CannotTell));
        row.method.clone()
    };
    let p99_9 = method(Metric::Latency(LatencyKind::Response, Quantile::P99_9));
    assert!(matches!(p99_9, Method::FewBeyond(answers) if answers.round() == 6.0), "{p99_9:?}");
    assert!(matches!(method(Metric::Dropped), Method::NoneLost { .. }));
}

fn totals(total: u64, dropped: u64, terminations: usize) -> Sample {
    let episode = Episode { mode: Mode::Rollout, terminations, dropped };
    let mut sample = Sample { total, dropped, ..of(Vec::new(), vec![episode]) };
    // Windows of several consumers share the false-alarm rate.
    for (i, ended) in sample.terminations.iter_mut().enumerate() {
        let windows_s =
            ["web", "ingress", "headless"].map(|name| (name.to_owned(), Some(0.1 + i as f64 / 100.0)));
        ended.windows_s = windows_s.into();
    }
    sample
}

fn verdict_of(baseline: &Sample, candidate: &Sample, name: &CheckName) -> (CheckVerdict, CheckEvidence) {
    let checks = checks(slice::from_ref(baseline), candidate, &quick()).unwrap();
    let check = checks.into_iter().find(|check| check.name == *name).unwrap();
    (check.verdict, check.evidence)
}

const DROPPED: CheckName = CheckName::Baseline(Metric::Dropped);
const P50: Metric = Metric::Latency(LatencyKind::Response, Quantile::P50);

#[test]
fn lossy_rollout_fails_against_lossless_baseline() {
    let (none, lost) = (totals(5_000, 0, 6), totals(5_000, 96, 6));
    let (verdict, evidence) = verdict_of(&none, &lost, &DROPPED);
    assert_eq!(verdict, CheckVerdict::Fail, "{evidence:?}");
    let CheckEvidence::Row(row) = evidence else { panic!("{evidence:?}") };
    assert_eq!((row.baseline, row.candidate), (Some(0.0), Some(16.0)));
    let hits = [0, 96].map(|hits| Proportion { hits, n: 5_000 });
    assert_eq!(row.method, Method::Totals { hits, terminations: Some([6, 6]) });
    // With one run per side, losing a few requests, or about as many as before, proves nothing.
    assert_eq!(verdict_of(&none, &totals(5_000, 7, 6), &DROPPED).0, CheckVerdict::Inconclusive);
    assert_eq!(verdict_of(&totals(5_000, 60, 6), &lost, &DROPPED).0, CheckVerdict::Inconclusive);
    assert_eq!(verdict_of(&lost, &none, &DROPPED).0, CheckVerdict::Pass);
}

#[test]
fn verdict_follows_losses_per_termination() {
    let side = |dropped, ended| totals(60_000, dropped, ended);
    // About as many requests were lost, but by ten times as many terminations.
    let fewer = compare(&[side(100, 10)], &[side(101, 100)], &quick()).unwrap().rows.remove(0);
    assert_eq!((fewer.verdict, fewer.unit), (Some(Judgement::Better), MetricUnit::PerTermination));
    assert_eq!((fewer.baseline, fewer.candidate), (Some(10.0), Some(1.01)));
    // Fewer requests were lost, but each termination lost ten times as many.
    let (verdict, evidence) = verdict_of(&side(100, 100), &side(99, 10), &DROPPED);
    assert_eq!(verdict, CheckVerdict::Inconclusive, "{evidence:?}");
}

#[test]
fn app_errors_count_per_request() {
    let side = |app_errors, ended| Sample { app_errors, ..totals(60_000, 0, ended) };
    let rows = compare(&[side(4, 10)], &[side(200, 100)], &quick()).unwrap().rows;
    let row = rows.iter().find(|row| row.metric == Metric::AppErrors).unwrap();
    assert_eq!((row.p, row.unit), (exact::totals([4, 200], [1.0, 1.0], 0.05), MetricUnit::Share));
}

#[test]
fn app_errors_are_compared() {
    let (good, mut bad) = (totals(6_000, 0, 3), totals(6_000, 0, 3));
    bad.app_errors = 60;
    let (verdict, evidence) = verdict_of(&good, &bad, &CheckName::Baseline(Metric::AppErrors));
    assert_eq!(verdict, CheckVerdict::Fail, "{evidence:?}");
    let comparison = compare(slice::from_ref(&good), slice::from_ref(&good), &quick()).unwrap();
    assert!(comparison.rows.iter().all(|row| row.metric != Metric::AppErrors));
}

#[test]
fn comparison_of_hundred_requests_is_inconclusive() {
    let few = || of(vec![TimeBlock { total: 10, ..TimeBlock::default() }; 10], Vec::new());
    let judged = verdict_of(&few(), &few(), &CheckName::Requests);
    assert_eq!(judged, (CheckVerdict::Inconclusive, CheckEvidence::FewRequestsASide(100)));
}

#[test]
fn correlated_single_runs_never_fail() {
    for seed in 0..6 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let [a, b] = [0.8, 1.2].map(|slower| run(Service { slower, ..alike(0.9) }, &mut rng));
        let checks = checks(&[a], &b, &quick()).unwrap();
        assert!(checks.iter().all(|check| check.verdict != CheckVerdict::Fail), "{checks:?}");
    }
}

#[test]
fn disjoint_latencies_fail_despite_correlation() {
    // 30 s of responses that take 1 s or 3 s, with slow waves of 5 s, which amount to six independent blocks.
    let side = |ms: f64| {
        let block = |i: u32| {
            let wave = 1.0 + 0.05 * (f64::from(i) / 50.0 * std::f64::consts::TAU).sin();
            #[expect(clippy::cast_possible_truncation, reason = "a latency in nanoseconds")]
            let ns = (ms * wave * 1e6) as i64;
            TimeBlock { total: 20, latency: BTreeMap::from([(bin(ns), 20)]), ..TimeBlock::default() }
        };
        of((0..300).map(block).collect(), Vec::new())
    };
    let (fast, slow) = (side(1000.0), side(3000.0));
    let p50 = CheckName::Baseline(P50);
    let (verdict, evidence) = verdict_of(&fast, &slow, &p50);
    assert_eq!(verdict, CheckVerdict::Fail, "{evidence:?}");
    assert!(matches!(evidence, CheckEvidence::Row(row) if matches!(row.method, Method::Apart(_))));
    let saved = fast.figures();
    let p99 = CheckName::Baseline(Metric::Latency(LatencyKind::Response, Quantile::P99));
    assert_eq!(verdict_of(&saved, &slow, &p99).0, CheckVerdict::Fail);
    assert_eq!(verdict_of(&slow, &fast, &p50).0, CheckVerdict::Pass);
    // Two runs of the same software may differ by up to a factor of two.
    let (verdict, _) = verdict_of(&fast, &side(1500.0), &p50);
    assert_eq!(verdict, CheckVerdict::Inconclusive);
}

#[test]
fn node_count_difference_adds_caveat() {
    let (mut a, mut b) = (totals(5_000, 0, 6), totals(5_000, 0, 6));
    a.scale.insert("nodes".into(), 3);
    b.scale.insert("nodes".into(), 5);
    let comparison = compare(&[a], &[b], &quick()).unwrap();
    let caveat =
        Caveat::Scale { of: "nodes".into(), baseline: BTreeSet::from([3]), candidate: BTreeSet::from([5]) };
    assert!(comparison.caveats.contains(&caveat), "{comparison:?}");
}

#[test]
fn comparison_chart_sorts_windows() {
    let mut before = totals(100, 0, 3);
    let windows = [Some(0.4), None, Some(0.2)];
    for (ended, window_s) in before.terminations.iter_mut().zip(windows) {
        ended.windows_s = BTreeMap::from([("service web".to_owned(), window_s)]);
    }
    let [baseline, candidate] = charts(&[before], &[totals(100, 0, 0)]);
    assert_eq!(baseline.windows_s["service web"], [Some(0.2), Some(0.4), None]);
    assert!(candidate.windows_s.is_empty());
}

#[test]
fn metric_names_match_json_paths() {
    let consumer = "service web".to_owned();
    for (metric, name) in [
        (Metric::Rate, "rate"),
        (Metric::WithDrops(Mode::Isolated), "terminations.isolated.with_drops"),
        (Metric::DropsEach(Mode::Rollout), "terminations.rollout.dropped"),
        (Metric::MeanWindow { mode: Mode::Isolated, consumer, is_only: true }, "windows_s.isolated"),
        (Metric::Latency(LatencyKind::Response, Quantile::P90), "latency_ms.response.p90"),
        (Metric::Latency(LatencyKind::Service, Quantile::P99_9), "latency_ms.service.p99_9"),
    ] {
        assert_eq!(metric.to_string(), name);
    }
}
