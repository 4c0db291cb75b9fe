//! Sample analyses for report tests: typical real runs, and corner cases.

use std::collections::{BTreeMap, BTreeSet};

use rolldrop_explain::Analysed;
use rolldrop_explain::model::account::Account;
use rolldrop_explain::model::{
    Aim, Analysis, CandidateReason, ChartData, CheckText, CheckVerdict, FindingText, HeatMap, LateArrival,
    Latencies, LatencyBucket, LatencyHistograms, LoadResult, LostRequest, Mode, Percentiles, PodSpan,
    PodTraffic, Recommendation, RequestCounts, RetryHidden, RunResult, RunSecond, SCHEMA_VERSION, SendLag,
    Severity, Stage, Start, StartStage, T0Basis, Termination, TerminationCandidate, TerminationRequests,
    Traffic, Verdict, WhatIf, Window, WindowBasis, WindowSummary,
};
use rolldrop_record::load::Pacing;
use rolldrop_record::run_info::{ClusterInfo, Tool};
use rolldrop_record::{Cause, Outcome, Stamp};

const CONSUMER: &str = "service web (service proxy of this host)";

/// Returns a run at 300 requests/s in which three pods exit immediately on SIGTERM, one after another.
pub(super) fn naive_exit() -> Analysis {
    let mut run = SampleAnalysis::new("naive-exit", 300, 30);
    for (at, pod, dropped, window) in [
        (5.0, "web-7d4b9c6f5-2xkqp", 8, 0.118),
        (11.0, "web-7d4b9c6f5-m8zrt", 9, 0.141),
        (17.0, "web-7d4b9c6f5-vc4hd", 7, 0.098),
    ] {
        run.terminate(at, pod, Mode::Isolated, &SamplePod { window, dropped, ..SamplePod::NAIVE });
    }
    let mut analysis = run.finish();
    analysis.result.findings = vec![
        FindingText {
            kind: None,
            severity: Severity::Error,
            cause: Some(Cause::RoutedToDeadPod),
            what: "24 new connections went to pods that no longer accepted any".into(),
            why: "the app exits on SIGTERM, about 0.08 s before the Service stops routing to it".into(),
            remedy: "keep serving while endpoints propagate: lifecycle: {preStop: {sleep: {seconds: 1}}}"
                .into(),
        },
        FindingText {
            kind: None,
            severity: Severity::Info,
            cause: None,
            what: "3 terminations are few".into(),
            why: "a bound with 95 % confidence rests on the number of terminations, not of requests".into(),
            remedy: "repeat the run with more terminations".into(),
        },
    ];
    let why = "the positive control shows the fault";
    analysis.result.checks = vec![check("dropped.min", CheckVerdict::Pass, "at least 1", "24", why)];
    analysis
}

/// Returns a check in words, without a measured figure.
pub(super) fn check(name: &str, verdict: CheckVerdict, limit: &str, observed: &str, why: &str) -> CheckText {
    let [name, limit, observed, why] = [name, limit, observed, why].map(str::to_owned);
    CheckText { name, verdict, limit, observed, why, settle: String::new(), figure: None }
}

/// Returns the same run with a preStop sleep of 3 s. Nothing is lost, and late arrivals show the window.
pub(super) fn prestop_sleep() -> Analysis {
    let mut run = SampleAnalysis::new("prestop-sleep", 300, 30);
    for (at, pod) in
        [(5.0, "web-59c7d8b44-7hqwn"), (12.0, "web-59c7d8b44-fx2lk"), (19.0, "web-59c7d8b44-zzd9s")]
    {
        let shape = SamplePod { sleep: 3.0, exit: 3.021, window: 0.126, dropped: 0, ..SamplePod::NAIVE };
        run.terminate(at, pod, Mode::Isolated, &shape);
    }
    let mut analysis = run.finish();
    analysis.result.checks = vec![
        check("dropped.max", CheckVerdict::Pass, "at most 0", "0", ""),
        CheckText {
            settle: "a higher rate of new connections".into(),
            ..check(
                "windows.max",
                CheckVerdict::Inconclusive,
                "at most 0.15 s",
                "0.126 to 0.168 s",
                "the limit lies between the bounds",
            )
        },
    ];
    analysis
}

/// Returns a run in which the load generator fell behind.
pub(super) fn invalid() -> Analysis {
    let mut analysis = naive_exit();
    let result = &mut analysis.result;
    result.verdict = Verdict::Invalid {
        why: vec![
            "send lag p99 412 ms is above the limit of 10 ms".into(),
            "CPU steal 23 % is above 5 %".into(),
        ],
    };
    result.load.send_lag_us = SendLag { p50: 812.0, p99: 412_000.0, max: 1_730_000.0 };
    result.recommendation[0].refused_because.insert(0, "the measurement is not valid".into());
    result.checks[0].verdict = CheckVerdict::Inconclusive;
    result.checks[0].why = "the measurement is not valid".into();
    analysis
}

/// Returns a run that was interrupted after its only termination, whose window could not be bounded.
pub(super) fn partial() -> Analysis {
    let mut run = SampleAnalysis::new("shop", 50, 8);
    let shape = SamplePod { exit: 0.3, window: 0.2, dropped: 1, ..SamplePod::NAIVE };
    run.terminate(5.0, "checkout-0", Mode::Other, &shape);
    let mut analysis = run.finish();
    let result = &mut analysis.result;
    result.complete = false;
    result.verdict = Verdict::Partial { why: vec!["interrupted 8 s into the run".into()] };
    let window = &mut result.terminations[0].windows[0];
    window.upper_s = None;
    window.censored = Some("the pod exited while it still got new connections".into());
    result.terminations[0].exit_code = None;
    result.terminations[0].disruption = None;
    let why = "evicted by the kubelet on node node-1: The node was low on resource: memory.";
    result.terminations[0].cause = Some(why.parse().unwrap());
    result.windows_s[0].max = None;
    result.windows_s[0].p50 = None;
    result.windows_s[0].censored = 1;
    result.recommendation[0].covers_all_seen_seconds = None;
    result.recommendation[0].suggested_seconds = None;
    result.recommendation[0].refused_because = vec!["the only window is censored".into()];
    analysis
}

/// Returns a run in which no pod ended and nothing was lost.
pub(super) fn quiet() -> Analysis {
    SampleAnalysis::new("watch", 200, 20).finish()
}

/// Returns a rollout of twelve pods, with two outcomes and two causes.
pub(super) fn rollout() -> Analysis {
    let mut run = SampleAnalysis::new("rollout", 500, 60);
    for i in 0..12_u32 {
        let at = 6.0 + f64::from(i / 3) * 9.0 + f64::from(i % 3) * 0.4;
        let shape = SamplePod {
            exit: 0.03 + f64::from(i % 4) * 0.01,
            window: 0.4 + f64::from(i % 5) * 0.16,
            dropped: 28 + u64::from(i * 7 % 23),
            timeouts_after: 0.23,
            ..SamplePod::NAIVE
        };
        let pod = format!("frontend-6f9bb7d8c9-{:05x}", 0x2b7f1 + i * 0x11c3);
        run.terminate(at, &pod, Mode::Rollout, &shape);
    }
    run.finish()
}

/// Returns a run with `terminations` consecutive terminations and ten million requests.
pub(super) fn many(terminations: u32) -> Analysis {
    let mut run = SampleAnalysis::new("many", 16_667, 600);
    for i in 0..terminations {
        let at = 1.0 + f64::from(i) * 598.0 / f64::from(terminations);
        let shape = SamplePod { dropped: 4 + u64::from(i % 9), ..SamplePod::NAIVE };
        run.terminate(at, &format!("checkout-service-7d4b9c6f58-{i:05}"), Mode::Isolated, &shape);
    }
    let mut analysis = run.finish();
    let pod = |(i, t): (usize, &Termination)| PodSpan {
        termination: Some(i),
        name: t.pod.clone(),
        ..PodSpan::default()
    };
    analysis.charts.pods = analysis.result.terminations.iter().enumerate().map(pod).collect();
    analysis
}

/// Returns a run in which one termination lost ten thousand requests, and some lost requests belong to no pod.
pub(super) fn ten_thousand() -> Analysis {
    let mut run = SampleAnalysis::new("overwhelmed", 5000, 20);
    let shape =
        SamplePod { exit: 0.05, window: 2.1, dropped: 9_990, timeouts_after: 1.2, ..SamplePod::NAIVE };
    run.terminate(6.0, "api-0", Mode::ScaleDown, &shape);
    for i in 0..10_u32 {
        run.lose(15.0 + f64::from(i) * 0.01, Outcome::ResponseTimeout, Cause::Overload, None);
    }
    run.finish()
}

/// Returns a run with streams, some of which terminating pods cut.
pub(super) fn streams() -> Analysis {
    let records = rolldrop_simulation::drained_streams();
    let mut analysis = Analysed::of(records.log(), records).unwrap().analysis;
    let predicted = super::predicted_cuts(&rolldrop_judge::prediction::further_cuts(&analysis));
    analysis.result.streams.as_mut().unwrap().predicted = predicted;
    analysis
}

/// Behaviour of a terminating pod in a sample.
#[derive(Clone, Copy)]
struct SamplePod {
    /// Length of the preStop sleep, in seconds.
    sleep: f64,
    /// Time at which the app exits, in seconds since t0.
    exit: f64,
    /// Time of the last new connection, in seconds since t0.
    window: f64,
    dropped: u64,
    /// Time from which drops are connect timeouts, in seconds since t0.
    timeouts_after: f64,
}

impl SamplePod {
    const NAIVE: SamplePod =
        SamplePod { sleep: 0.0, exit: 0.028, window: 0.118, dropped: 8, timeouts_after: f64::INFINITY };

    fn timeline(&self) -> BTreeMap<Stage, f64> {
        BTreeMap::from([
            (Stage::DeleteSent, -0.011),
            (Stage::DeletionSeen, 0.004),
            (Stage::KillBegan, 0.017),
            (Stage::AppSigterm, self.sleep + 0.018),
            (Stage::EndpointTerminating, 0.046),
            (Stage::ListenerClosed, self.exit - 0.004),
            (Stage::AppExited, self.exit),
            (Stage::LastConnection, self.window),
            (Stage::ContainersTerminated, self.exit + 0.22),
            (Stage::EndpointRemoved, self.exit + 0.234),
            (Stage::PodDeleted, self.exit + 0.81),
        ])
    }
}

struct SampleAnalysis {
    analysis: Analysis,
    seconds: u32,
}

impl SampleAnalysis {
    fn new(scenario: &str, rate: u32, seconds: u32) -> Self {
        let total = u64::from(rate) * u64::from(seconds);
        let result = RunResult {
            schema_version: SCHEMA_VERSION,
            tool: Tool { name: "rolldrop".into(), version: "0.1.0".into() },
            scenario: scenario.into(),
            cluster: ClusterInfo {
                version: "v1.36.2".into(),
                dataplane: "userspace".into(),
                dataplane_from: None,
                dataplane_denied: Vec::new(),
                nodes: 2,
                endpoints: 3,
                namespace: "default".into(),
            },
            complete: true,
            verdict: Verdict::Valid,
            load: LoadResult {
                pacing: Pacing::Constant,
                rate: f64::from(rate),
                duration_s: f64::from(seconds),
                scheduled: total,
                not_sent: 0,
                send_lag_us: SendLag { p50: 61.0, p99: 412.0, max: 2_310.0 },
            },
            requests: RequestCounts { warmup: 600, total, ok: total, ..RequestCounts::default() },
            streams: None,
            latency_ms: Latencies {
                response: percentiles(total, 1.0),
                service: percentiles(total, 0.95),
                steady: percentiles(total * 9 / 10, 1.0),
                disrupted: Percentiles::default(),
            },
            terminations: Vec::new(),
            groups: Vec::new(),
            only_target: None,
            targets: Vec::new(),
            starts: Vec::new(),
            aim: Aim::Disrupt,
            windows_s: Vec::new(),
            recommendation: Vec::new(),
            what_if: Vec::new(),
            longest_outage_s: 0.041,
            is_failing_at_end: false,
            findings: Vec::new(),
            checks: Vec::new(),
            looks: None,
            command: None,
        };
        let charts = ChartData {
            latency: LatencyHistograms { steady: histogram(1.2, total * 9 / 10), disrupted: Vec::new() },
            seconds: (0..seconds)
                .map(|i| RunSecond {
                    at_s: f64::from(i),
                    ok: u64::from(rate),
                    p50_ms: Some(1.2 + f64::from(i % 3) * 0.05),
                    p99_ms: Some(4.0 + f64::from(i * 7 % 5) * 0.6),
                    ..RunSecond::default()
                })
                .collect(),
            end_s: f64::from(seconds),
            ..ChartData::default()
        };
        let (account, lost) = (Account::default(), Vec::new());
        Self {
            analysis: Analysis { run: "9f3c".into(), result, account, lost, charts, steady: None },
            seconds,
        }
    }

    fn terminate(&mut self, t0_s: f64, pod: &str, mode: Mode, shape: &SamplePod) {
        let index = self.analysis.result.terminations.len();
        let before = self.analysis.lost.len();
        for i in 0..shape.dropped {
            let span = shape.window - shape.exit.min(shape.window * 0.2);
            let after = shape.exit.min(shape.window * 0.2) + span * (i + 1) as f64 / shape.dropped as f64;
            let timeout = after > shape.timeouts_after;
            let outcome = if timeout { Outcome::ConnectTimeout } else { Outcome::ConnectRefused };
            self.lose(t0_s + after, outcome, Cause::RoutedToDeadPod, Some(index));
        }
        let mut requests =
            TerminationRequests { seen: Some(shape.dropped + 9), ..TerminationRequests::default() };
        for lost in &self.analysis.lost[before..] {
            requests.dropped.add(1.0);
            requests.by_outcome.entry(lost.outcome).or_default().add(1.0);
            requests.by_cause.entry(lost.cause).or_default().add(1.0);
        }
        let late = if shape.dropped == 0 { 14 } else { 3 };
        let late_end = shape.window.min(shape.exit);
        self.analysis.charts.late_ok.extend((1..=late).map(|i| LateArrival {
            target: Some(0),
            termination: index,
            begun_s: t0_s + late_end * f64::from(i) / f64::from(late),
        }));
        self.analysis.result.terminations.push(Termination {
            pod: pod.into(),
            uid: format!("uid-{index}"),
            node: Some(format!("node-{}", index % 2 + 1)),
            mode,
            disruption: u32::try_from(index).ok(),
            repetition: None,
            cause: None,
            watch_gaps: Vec::new(),
            t0_uncertainty_s: 0.011,
            t0_basis: T0Basis::OwnCall,
            t0_s,
            timeline: shape.timeline(),
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few seconds")]
            pre_stop_seconds: Some(shape.sleep as u64),
            grace_period_seconds: 30,
            exit_code: Some(0),
            killed_at_grace_end: Some(false),
            failed_hooks: Some(BTreeSet::new()),
            stopping_seconds: Some(shape.exit - shape.sleep),
            windows: vec![Window {
                consumer: CONSUMER.into(),
                lower_s: Some(shape.window),
                upper_s: Some(shape.window + 0.042),
                lower_basis: Some(WindowBasis::Named),
                upper_basis: Some(WindowBasis::Named),
                censored: None,
                censored_reason: None,
                rate_before: 99.7,
                late_arrivals: shape.dropped + 9,
            }],
            requests,
            streams: None,
            app_errors_after_t0: Some(0),
            dead_seconds: Some(shape.dropped as f64 / 99.7),
        });
        self.start(pod);
    }

    /// Starts a replacement pod.
    fn start(&mut self, pod: &str) {
        self.analysis.result.starts.push(Start {
            pod: format!("{pod}-next"),
            was_awaited: false,
            uid: format!("uid-{pod}-next"),
            timeline: [
                (StartStage::Created, 0.0),
                (StartStage::IpReported, 0.52),
                (StartStage::Ready, 0.61),
                (StartStage::EndpointReady, 0.63),
            ]
            .into(),
        });
    }

    fn lose(&mut self, begun_s: f64, outcome: Outcome, cause: Cause, termination: Option<usize>) {
        let wait = if outcome == Outcome::ConnectTimeout { 1.0 } else { 0.001 };
        let in_window = termination.is_some();
        let stamp = |s: f64| Stamp::from_unix_ns(0) + std::time::Duration::from_secs_f64(s);
        let seq = self.analysis.lost.len() as u64;
        self.analysis.lost.push(LostRequest {
            source: "load-0".into(),
            seq,
            target: "web".into(),
            scheduled: stamp(begun_s),
            begun: stamp(begun_s),
            ended: stamp(begun_s + wait),
            begun_s,
            outcome,
            status: None,
            cause,
            unclear: None,
            in_window,
            candidates: termination
                .map(|termination| TerminationCandidate {
                    termination,
                    share: 1.0,
                    why: CandidateReason::Named,
                })
                .into_iter()
                .collect(),
        });
        let second = self.analysis.charts.seconds.iter_mut().rev().find(|s| s.at_s <= begun_s).unwrap();
        second.ok = second.ok.saturating_sub(1);
        *second.dropped.entry(outcome).or_default() += 1;
        second.p99_ms = second.p99_ms.map(|v| v.max(9.0));
        let requests = &mut self.analysis.result.requests;
        requests.ok -= 1;
        requests.dropped += 1;
        *requests.by_outcome.entry(outcome).or_default() += 1;
        *requests.by_cause.entry(cause).or_default() += 1;
        *(if in_window { &mut requests.in_window } else { &mut requests.outside_window }) += 1;
    }

    fn finish(mut self) -> Analysis {
        let result = &mut self.analysis.result;
        result.requests.by_outcome.insert(Outcome::Ok, result.requests.ok);
        result.requests.retry_hidden =
            RetryHidden { go_net_http: 0, safe_idempotent: result.requests.dropped };
        if let Some(first) = result.terminations.first() {
            let n = result.terminations.len();
            let mode = first.mode;
            let uppers = || result.terminations.iter().filter_map(|t| t.windows[0].upper_s);
            let lowers = || result.terminations.iter().filter_map(|t| t.windows[0].lower_s);
            let max = uppers().fold(0.0, f64::max);
            let needed = 29_usize.saturating_sub(n);
            result.windows_s = vec![WindowSummary {
                consumer: CONSUMER.into(),
                mode,
                n,
                p50: Some(uppers().sum::<f64>() / n as f64),
                p90: Some(max),
                p99: Some(max),
                max: Some(max),
                lower: Some((lowers().fold(f64::INFINITY, f64::min), lowers().fold(0.0, f64::max))),
                censored: 0,
            }];
            let sleep = if max < 1.0 { 1 } else { 3 };
            let avoided = result.requests.by_cause.get(&Cause::RoutedToDeadPod).copied().unwrap_or(0);
            result.recommendation = vec![Recommendation {
                mode,
                pre_stop_seconds: None,
                termination_grace_period_seconds: None,
                confidence: 0.95,
                coverage: 0.05_f64.powf(1.0 / n as f64),
                coverage_asked: 0.9,
                terminations: n,
                units: n,
                consumers: vec![CONSUMER.into()],
                basis: String::new(),
                refused_because: vec![format!(
                    "the longest window of {n} covers 37 % of future ones at 95 % confidence; {needed} more are needed to claim 90 % coverage"
                )],
                terminations_needed: needed,
                covers_all_seen_seconds: Some(sleep),
                suggested_seconds: (avoided > 0).then_some(sleep),
                suggested_from_seconds: None,
                narrowed_by: None,
                lasted_at_least_s: Some(lowers().fold(0.0, f64::max)),
                rollouts: None,
            }];
            result.what_if = vec![WhatIf {
                pre_stop_seconds: sleep,
                windows_covered: n,
                terminations: n,
                drops_avoided: avoided,
                drops_left: result.requests.dropped - avoided,
            }];
            let near = u64::try_from(n).unwrap() * 240;
            result.latency_ms.disrupted = percentiles(near, 1.6);
            self.analysis.charts.latency.disrupted = histogram(1.9, near);
        }
        assert_eq!(self.analysis.charts.seconds.len(), self.seconds as usize);
        self.analysis.charts.heat = heat(&self.analysis.charts.seconds);
        self.analysis.charts.traffic = traffic(&self.analysis);
        self.analysis
    }
}

/// Returns the number of answered requests in each eighth of a second.
fn eighths(seconds: &[RunSecond]) -> impl Iterator<Item = u64> {
    seconds.iter().flat_map(|second| (0..8).map(|i| second.ok * (i + 1) / 8 - second.ok * i / 8))
}

/// Makes a heat map in which one request per step is slow.
fn heat(seconds: &[RunSecond]) -> HeatMap {
    let column = |n: u64| {
        let fast = LatencyBucket { from_ms: 1.05, to_ms: 1.31, count: n.saturating_sub(1) };
        let slow = LatencyBucket { from_ms: 8.39, to_ms: 10.49, count: n.min(1) };
        [fast, slow].into_iter().filter(|bucket| bucket.count > 0).collect()
    };
    HeatMap { step_s: 0.125, columns: eighths(seconds).map(column).collect() }
}

/// Makes the traffic of a sample: each terminating pod answers until its t0, and a pod that stays answers the rest.
fn traffic(analysis: &Analysis) -> Traffic {
    let ends = &analysis.result.terminations;
    let each = |n: u64| n / (ends.len() as u64 + 1);
    let steps: Vec<(f64, u64)> =
        eighths(&analysis.charts.seconds).enumerate().map(|(i, n)| (i as f64 / 8.0, n)).collect();
    let pod = |t: &Termination| PodTraffic {
        name: t.pod.clone(),
        answered: steps.iter().map(|(at, n)| if *at < t.t0_s { each(*n) } else { 0 }).collect(),
    };
    let mut pods: Vec<PodTraffic> = ends.iter().map(pod).collect();
    let others = |i: usize| pods.iter().map(|pod| pod.answered[i]).sum::<u64>();
    let answered = steps.iter().enumerate().map(|(i, (_, n))| n - others(i)).collect();
    pods.push(PodTraffic { name: "web-7d4b9c6f5-stays".into(), answered });
    Traffic { step_s: 0.125, pods, unknown: vec![0; steps.len()] }
}

fn percentiles(n: u64, factor: f64) -> Percentiles {
    let [mean, p50, p90, p95] = [1.38, 1.21, 2.08, 2.91].map(|v| v * factor);
    let [p99, p99_9, max] = [4.43, 9.7, 24.6].map(|v| v * factor);
    Percentiles { n, mean, p50, p90, p95, p99, p99_9, max }
}

/// Makes a histogram with a tail, approximately log-normal around `median_ms`.
fn histogram(median_ms: f64, n: u64) -> Vec<LatencyBucket> {
    (0..60_i32)
        .map(|i| {
            let from_ms = 0.3 * 10_f64.powf(f64::from(i) / 30.0);
            let to_ms = 0.3 * 10_f64.powf(f64::from(i + 1) / 30.0);
            let z = (from_ms / median_ms).ln() / 0.45;
            let density = (-z * z / 2.0).exp() + if z > 0.0 { 0.02 * (-z / 2.0).exp() } else { 0.0 };
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a sample's count")]
            let count = (density * n as f64 * 0.07) as u64;
            LatencyBucket { from_ms, to_ms, count }
        })
        .collect()
}
