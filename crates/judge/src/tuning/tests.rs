use std::collections::BTreeSet;

use super::*;
use crate::tests::analysed;
use rolldrop_explain::model::{FindingText, Mode, Severity, T0Basis, Window};
use rolldrop_simulation::Service;

const BEFORE: PodSettings = PodSettings {
    pre_stop_seconds: 0,
    termination_grace_period_seconds: 30,
    min_ready_seconds: 0,
    readiness_delay_seconds: None,
};

/// Returns a run whose pods end one by one and keep serving; traffic is routed to them until `seconds` after deletion.
fn windows(seconds: &[f64]) -> RunResult {
    let service = Service::new(&["a", "b", "c"]);
    let mut result = analysed(service.records).result;
    let window = |s: f64| Window {
        consumer: "service web".into(),
        lower_s: Some(s - 0.01),
        upper_s: Some(s),
        lower_basis: None,
        upper_basis: None,
        censored: None,
        censored_reason: None,
        rate_before: 100.0,
        late_arrivals: 3,
    };
    let slowest = seconds.iter().copied().fold(0.0, f64::max);
    result.recommendation = vec![Recommendation {
        mode: Mode::Isolated,
        pre_stop_seconds: Some(20),
        termination_grace_period_seconds: Some(50),
        confidence: 0.95,
        coverage: stats::wilks_coverage(seconds.len(), 0.95),
        coverage_asked: 0.9,
        terminations: seconds.len(),
        units: seconds.len(),
        consumers: vec!["service web".into()],
        basis: String::new(),
        refused_because: Vec::new(),
        terminations_needed: 0,
        covers_all_seen_seconds: Some(stats::ceil_seconds(slowest)),
        suggested_seconds: None,
        suggested_from_seconds: None,
        narrowed_by: None,
        lasted_at_least_s: None,
        rollouts: None,
    }];
    result.terminations = seconds
        .iter()
        .map(|s| Termination {
            pod: "a".into(),
            uid: "a".into(),
            node: None,
            mode: Mode::Isolated,
            disruption: None,
            repetition: None,
            cause: None,
            watch_gaps: Vec::new(),
            t0_uncertainty_s: 0.0,
            t0_basis: T0Basis::OwnCall,
            t0_s: 0.0,
            timeline: BTreeMap::from([(Stage::AppSigterm, 20.0), (Stage::AppExited, 21.2)]),
            pre_stop_seconds: Some(20),
            grace_period_seconds: 50,
            exit_code: Some(0),
            killed_at_grace_end: Some(false),
            failed_hooks: Some(BTreeSet::new()),
            stopping_seconds: Some(1.4),
            windows: vec![window(*s)],
            requests: rolldrop_explain::model::TerminationRequests::default(),
            streams: None,
            app_errors_after_t0: None,
            dead_seconds: None,
        })
        .collect();
    result
}

const WISH: Wish = Wish { before: BEFORE, may_shorten: false, least_s: 0 };

#[test]
fn sleep_is_longest_window_rounded_up() {
    let choice = choose(&windows(&[0.2, 3.1, 1.0]), 20, WISH).unwrap();
    // The pods took 1.4 s to end after their sleep; their proxies exited last.
    let settings = PodSettings { pre_stop_seconds: 4, ..BEFORE };
    assert_eq!(choice.settings, settings);
    assert_eq!(choice.stopping_seconds.map(|s| (s * 10.0).round()), Some(14.0));
    assert_eq!(choice.consumers[0].windows_seconds, [0.2, 1.0, 3.1]);
    let shortened = choose(&windows(&[3.1]), 20, Wish { may_shorten: true, ..WISH }).unwrap();
    assert_eq!(shortened.settings.termination_grace_period_seconds, 4 + 2 + 1);
    // A longer sleep requires a longer grace period.
    let before = PodSettings { termination_grace_period_seconds: 5, ..BEFORE };
    let longer = choose(&windows(&[3.1]), 20, Wish { before, ..WISH }).unwrap();
    assert_eq!(longer.settings.termination_grace_period_seconds, 7);
}

#[test]
fn correlation_uses_separate_window_ends() {
    let mut result = windows(&[0.2, 0.3, 0.25, 1.2, 1.3]);
    for (i, t) in result.terminations.iter_mut().enumerate() {
        (t.mode, t.t0_s, t.disruption, t.repetition) =
            (Mode::Rollout, i as f64 * 10.0, Some(0), Some(if i < 3 { 0 } else { 1 }));
    }
    // A single sync removed the second and the third pod.
    result.terminations[2].t0_s = 10.05;
    let alike = |result: &RunResult| choose(result, 20, WISH).unwrap().consumers[0].within_rollouts;
    let found = alike(&result).unwrap();
    assert_eq!((found.rollouts, found.ends), (2, 4));
    assert!(found.correlation > 0.9, "{found:?}");
    result.terminations.truncate(3);
    assert_eq!(alike(&result), None, "one rollout says nothing about others");
}

#[test]
fn choice_rejects_window_beyond_sleep() {
    assert_eq!(choose(&windows(&[0.2, 20.1]), 20, WISH), Err(Unknown::Outlasted));
    let choice = choose(&windows(&[0.2, 19.6]), 20, WISH).unwrap();
    assert_eq!(choice.settings.pre_stop_seconds, 20, "the pod kept serving until then");
    let mut early = windows(&[0.2]);
    early.terminations[0].timeline.insert(Stage::ContainersTerminated, 0.4);
    let why = choose(&early, 20, WISH).unwrap_err();
    let early = EndedEarly { pod: "a".into(), ended_s: 0.4, sleep_s: 20 };
    assert_eq!(why, Unknown::EndedEarly(early));
    let unsupported = |why| Err(Unknown::Unsupported(why));
    let mut refused = windows(&[0.2]);
    refused.recommendation[0].refused_because = vec!["too few".into()];
    assert_eq!(choose(&refused, 20, WISH), unsupported(Unsupported::Refused(vec!["too few".into()])));
    refused.recommendation.clear();
    assert_eq!(choose(&refused, 20, WISH), unsupported(Unsupported::NoEnd));
}

#[test]
fn avoidable_losses_fail_proof() {
    let judged = |result: &RunResult| proof(result, 4, 2, None);
    let mut result = windows(&[0.2, 3.1]);
    result.verdict = Verdict::Valid;
    assert_eq!(judged(&result), Proof::Holds);
    result.requests.by_cause = BTreeMap::from([(Cause::KilledInFlight, 3)]);
    assert_eq!(judged(&result), Proof::Holds, "that is for the app to fix");
    result.requests.by_cause = BTreeMap::from([(Cause::RoutedToDeadPod, 2)]);
    assert_eq!(judged(&result), Proof::TooShort { lost: 2, at_least: None });
    result.terminations[0].windows[0].lower_s = Some(6.5);
    assert_eq!(judged(&result), Proof::TooShort { lost: 2, at_least: Some(7) });
    result.verdict = Verdict::Invalid { why: vec!["it fell behind".into()] };
    assert_eq!(judged(&result), Proof::Unknown(Unproven::Untrusted(vec!["it fell behind".into()])));
}

#[test]
fn avoidable_loss_has_no_remedy_text() {
    let mut result = windows(&[0.5]);
    let causes = [(Cause::RoutedToDeadPod, 9), (Cause::KilledInFlight, 2), (Cause::StaleFlow, 1)];
    result.requests.by_cause = causes.into();
    result.findings = causes
        .map(|(cause, _)| {
            let remedy = format!("what helps against {}", cause.as_str());
            let (severity, what, why) = (Severity::Error, String::new(), String::new());
            FindingText { severity, kind: None, cause: Some(cause), what, why, remedy }
        })
        .into();
    let lost = lost_to(&result).into_iter().map(|lost| (lost.cause, lost.requests, lost.remedy));
    let other = (Cause::KilledInFlight, 2, "what helps against killed_in_flight".to_owned());
    assert_eq!(lost.collect::<Vec<_>>(), [(Cause::RoutedToDeadPod, 9, String::new()), other]);
}

#[test]
fn loss_before_is_unknown_without_valid_run() {
    let mut result = windows(&[0.2]);
    result.requests.by_cause = [(Cause::RoutedToDeadPod, 9)].into();
    let lost = |purpose, verdict: Verdict| {
        let result = RunResult { verdict, ..result.clone() };
        let step = TuningStep::of(purpose, "1-run", BEFORE, (&result, &[]));
        lost_before(&result, &[step]).map(|lost| lost.len())
    };
    assert_eq!(lost(Purpose::Before, Verdict::Valid), Some(1));
    assert_eq!(lost(Purpose::Before, Verdict::Invalid { why: vec!["it fell behind".into()] }), None);
    assert_eq!(lost(Purpose::Proof, Verdict::Valid), None);
    assert_eq!(lost_before(&result, &[]), None, "the run ended before its load");
}

#[test]
fn proof_needs_units_for_coverage() {
    let mut result = windows(&[0.2, 3.1]);
    result.verdict = Verdict::Valid;
    let seen = Units { unit: CoverageUnit::Deletions, number: 2, rollouts: 0 };
    let few = Unproven::FewUnits { seen, needed: 29 };
    assert_eq!(proof(&result, 4, 29, None), Proof::Unknown(few));
    assert_eq!(proof(&result, 4, 2, None), Proof::Holds);
}

/// Returns the run as if its pods had ended in rollouts of `pods` pods each, `ends` of which left the rules separately.
fn in_rollouts(mut result: RunResult, pods: usize, ends: usize) -> RunResult {
    for (i, t) in result.terminations.iter_mut().enumerate() {
        (t.mode, t.disruption, t.repetition) =
            (Mode::Rollout, Some(0), Some(u32::try_from(i / pods).unwrap()));
    }
    (result.recommendation[0].mode, result.recommendation[0].units) = (Mode::Rollout, ends);
    result.verdict = Verdict::Valid;
    result
}

#[test]
fn inseparable_terminations_count_as_rollouts() {
    let of = |ends| Units::of(&in_rollouts(windows(&[0.2; 6]), 3, ends));
    assert_eq!(of(6), Units { unit: CoverageUnit::Ends, number: 6, rollouts: 2 });
    assert_eq!(of(2), Units { unit: CoverageUnit::Ends, number: 2, rollouts: 2 });
    assert_eq!(of(1), Units { unit: CoverageUnit::Rollouts, number: 2, rollouts: 2 });
    let deleted = Units::of(&windows(&[0.2; 6]));
    assert_eq!(deleted, Units { unit: CoverageUnit::Deletions, number: 6, rollouts: 0 });
    // Deletions outside a rollout add nothing to the rollout's count.
    let mut mixed = in_rollouts(windows(&[0.2; 6]), 3, 2);
    mixed.terminations[5].mode = Mode::Isolated;
    mixed.recommendation.push(Recommendation { mode: Mode::Isolated, ..mixed.recommendation[0].clone() });
    mixed.recommendation[1].units = 9;
    assert_eq!(Units::of(&mixed).number, 2);
}

#[test]
fn proof_of_sleep_below_known_window_fails() {
    let mut result = in_rollouts(windows(&[0.2, 1.1]), 2, 2);
    assert_eq!(proof(&result, 2, 2, None), Proof::Holds);
    assert_eq!(proof(&result, 1, 2, None), Proof::TooShort { lost: 0, at_least: Some(2) });
    let window =
        |s| rolldrop_explain::model::GroupWindow { consumer: "service web".into(), lower_s: Some(s) };
    result.groups = vec![rolldrop_explain::model::LossGroup {
        terminations: vec![0, 1],
        dropped: 0,
        by_outcome: BTreeMap::new(),
        by_cause: BTreeMap::new(),
        windows: vec![window(2.4)],
    }];
    assert_eq!(LongestWindows::of(&result).least_s(), 3);
    assert_eq!(proof(&result, 2, 2, None), Proof::TooShort { lost: 0, at_least: Some(3) });
    // A window in a mode other than the rollout's does not count.
    result.terminations.push(Termination { mode: Mode::Isolated, ..result.terminations[0].clone() });
    result.groups[0].terminations = vec![2];
    assert_eq!(LongestWindows::of(&result).least_s(), 2);
    let both = LongestWindows::of(&result)
        .and(LongestWindows { longest_lower_seconds: Some(4.5), ..LongestWindows::default() });
    assert_eq!((both.least_s(), both.windows, both.bounded), (5, 2, 2));
}

#[test]
fn windows_of_unnamed_pods_beyond_sleep_do_not_count() {
    let mut result = in_rollouts(windows(&[20.4, 0.7]), 2, 2);
    for window in result.terminations.iter_mut().flat_map(|t| &mut t.windows) {
        (window.lower_s, window.upper_basis) = (None, Some(rolldrop_explain::model::WindowBasis::Balance));
    }
    // With a sleep of 20 s, only the second window's end was seen before the sleep was over.
    let seen = LongestWindows::of(&result);
    assert_eq!((seen.windows, seen.covers_s()), (1, Some(1)));
    result.requests.by_cause = BTreeMap::from([(Cause::RoutedToDeadPod, 1)]);
    assert_eq!(LongestWindows::of(&result).covers_s(), Some(21), "the sleep was too short");
}

#[test]
fn search_without_pod_names_starts_at_window_bounds() {
    let lossy = |seconds: &[f64]| {
        let mut result = in_rollouts(windows(seconds), 3, 1);
        result.requests.by_cause = BTreeMap::from([(Cause::RoutedToDeadPod, 9)]);
        result
    };
    assert_eq!(without_names(&lossy(&[0.4, 1.3, 0.6]), 0), Some(2));
    assert_eq!(
        without_names(&lossy(&[0.4, 1.3, 0.6]), 4),
        Some(5),
        "longer than the sleep that lost requests"
    );
    // If the bounds are far apart, the search begins midway.
    let mut loose = lossy(&[6.6]);
    loose.terminations[0].windows[0].lower_s = Some(0.2);
    assert_eq!(without_names(&loose, 0), Some(4));
    // There is only a lower bound.
    loose.terminations[0].windows[0].upper_s = None;
    assert_eq!(without_names(&loose, 0), Some(1));
    loose.terminations[0].windows[0].lower_s = None;
    assert_eq!(without_names(&loose, 0), None);
    loose.requests.by_cause.clear();
    assert_eq!(without_names(&loose, 3), Some(3), "nothing was lost with that sleep");
}

#[test]
fn unattributed_loss_after_sleep_stays_unclear() {
    let result = in_rollouts(windows(&[0.2]), 1, 1);
    let settings = PodSettings { pre_stop_seconds: 2, ..BEFORE };
    let mut step = TuningStep::of(Purpose::Proof, "2-proof", settings, (&result, &[]));
    let lost = |cause, after_deletion_seconds| LostOtherwise {
        seq: 1,
        source: "load".into(),
        begun_seconds: 9.0,
        cause,
        outcome: rolldrop_record::Outcome::ConnectRefused,
        pod: Some("a".into()),
        after_deletion_seconds,
    };
    step.lost_otherwise = vec![
        lost(Cause::Unattributed, Some(1.5)),
        lost(Cause::Unattributed, None),
        lost(Cause::RuleSwap, Some(2.5)),
    ];
    assert_eq!(step.unclear(), 0, "the pod was still serving, or none is known");
    step.lost_otherwise.push(lost(Cause::Unattributed, Some(2.5)));
    assert_eq!(step.unclear(), 1);
}

#[test]
fn proof_resumes_from_interrupted_parts() {
    let settings = PodSettings { pre_stop_seconds: 2, ..BEFORE };
    let of = |result: &RunResult| TuningStep::of(Purpose::Proof, "2-proof", settings, (result, &[]));
    let mut cut = in_rollouts(windows(&[0.2; 6]), 2, 6);
    cut.verdict = Verdict::Partial { why: vec!["it was interrupted".to_owned()] };
    let steps = [of(&cut)];
    // The interruption may have cut off the last of its three rollouts.
    let before = Units::of_parts(parts(&steps, settings));
    assert_eq!(before, Some(Units { unit: CoverageUnit::Ends, number: 4, rollouts: 2 }));
    let rest = in_rollouts(windows(&[0.2; 4]), 2, 4);
    assert_eq!(proof(&rest, 2, 8, before), Proof::Holds);
    assert!(matches!(proof(&rest, 2, 9, before), Proof::Unknown(_)));
    let all = of(&rest).with_parts(&[&steps[0]]);
    assert_eq!((all.units, all.rollouts, all.terminations), (8, 4, 10));
    // If the continued run does not show which pods ended separately, rollouts are counted.
    let together = in_rollouts(windows(&[0.2; 4]), 2, 1);
    assert_eq!(of(&together).with_parts(&[&steps[0]]).units, 4);
    // Runs with other settings and runs that lost something are not parts.
    assert_eq!(parts(&steps, BEFORE).count(), 0);
    cut.requests.by_cause.insert(Cause::RoutedToDeadPod, 1);
    assert_eq!(parts(&[of(&cut)], settings).count(), 0);
    assert_eq!(proof(&cut, 2, 8, None), Proof::TooShort { lost: 1, at_least: None });
}

#[test]
fn choice_covers_earlier_windows() {
    let choice = choose(&windows(&[0.2, 1.1]), 20, Wish { least_s: 4, ..WISH }).unwrap();
    assert_eq!(choice.settings.pre_stop_seconds, 4);
    let mut grouped = windows(&[0.2]);
    grouped.groups = vec![rolldrop_explain::model::LossGroup {
        terminations: vec![0],
        dropped: 1,
        by_outcome: BTreeMap::new(),
        by_cause: BTreeMap::new(),
        windows: vec![rolldrop_explain::model::GroupWindow {
            consumer: "service web".into(),
            lower_s: Some(20.5),
        }],
    }];
    assert_eq!(choose(&grouped, 20, WISH), Err(Unknown::Outlasted));
}

#[test]
fn first_request_shows_that_pods_are_named() {
    let mut result = windows(&[0.2, 3.1]);
    let start = |stage| Start {
        pod: "d".into(),
        uid: "uid-d".into(),
        timeline: BTreeMap::from([(stage, 0.7)]),
        was_awaited: false,
    };
    result.starts = vec![start(StartStage::Ready)];
    assert_eq!(names(&result), PodNaming::Unknown);
    result.starts.push(start(StartStage::FirstRequest));
    assert_eq!(names(&result), PodNaming::Known);
}

#[test]
fn start_losses_lengthen_readiness_delay() {
    let mut result = windows(&[0.2]);
    let timeline = BTreeMap::from([
        (StartStage::IpReported, 0.5),
        (StartStage::Ready, 1.0),
        (StartStage::FirstRequest, 3.9),
    ]);
    // No request was sent to this pod for a long time.
    let late = BTreeMap::from([(StartStage::IpReported, 0.5), (StartStage::FirstRequest, 12.0)]);
    result.starts = vec![
        Start { pod: "d".into(), uid: "uid-d".into(), timeline, was_awaited: true },
        Start { pod: "e".into(), uid: "uid-e".into(), timeline: late, was_awaited: false },
    ];
    let probed = PodSettings { readiness_delay_seconds: Some(1), ..BEFORE };
    let rolling = RolloutShape { pods: 3, strategy: Strategy::Rolling { at_once: 1 } };
    let with_starts = |result: &RunResult, set| with_starts(result, set, rolling);
    assert_eq!(with_starts(&result, probed), probed, "nothing is lost");
    result.requests.by_cause = BTreeMap::from([(Cause::NotReadyYet, 2), (Cause::NoReadyEndpoint, 3)]);
    let wanted = with_starts(&result, probed);
    assert_eq!((wanted.readiness_delay_seconds, wanted.min_ready_seconds), (Some(4), 3));
    assert_eq!(with_starts(&result, BEFORE).readiness_delay_seconds, None, "a delay needs a probe");
    let recreated = RolloutShape { strategy: Strategy::Recreate, ..rolling };
    assert_eq!(super::with_starts(&result, probed, recreated).min_ready_seconds, 0, "no old pod is left");
    assert_eq!(lost_at_starts(&result, probed, probed), None, "no setting was changed");
    let setting = StartSetting::ReadinessDelay;
    let still = LostAtStart { cause: Cause::NotReadyYet, requests: 2, setting };
    assert_eq!(lost_at_starts(&result, probed, wanted), Some(still));
    result.requests.by_cause.clear();
    assert_eq!(lost_at_starts(&result, probed, wanted), None);
}

#[test]
fn rollout_price_depends_on_strategy() {
    let to = PodSettings { pre_stop_seconds: 10, ..BEFORE };
    let price = |strategy| RolloutShape { pods: 6, strategy }.price(BEFORE, to);
    let [rolling, in_place] = [Strategy::Rolling { at_once: 2 }, Strategy::InPlace { at_once: 2 }].map(price);
    assert_eq!(
        (rolling.seconds_each_pod, rolling.seconds_each_rollout, rolling.terminating_at_once),
        (10, 10, 6)
    );
    assert_eq!((in_place.seconds_each_rollout, in_place.terminating_at_once), (30, 2));
    let slower = PodSettings { min_ready_seconds: 3, readiness_delay_seconds: Some(1), ..BEFORE };
    let price = RolloutShape { pods: 5, strategy: Strategy::Rolling { at_once: 2 } }.price(BEFORE, slower);
    assert_eq!((price.seconds_each_pod, price.seconds_each_rollout), (0, 12), "three steps of 4 s");
    let back = RolloutShape { pods: 6, strategy: Strategy::InPlace { at_once: 1 } }.price(to, BEFORE);
    assert_eq!(back.seconds_each_rollout, -60);
}
