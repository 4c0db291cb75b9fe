use super::*;
use crate::findings::finding;
use crate::model::{Finding, Mode, Severity, Window};
use crate::tests::analysed;
use crate::tests::rollouts::Service;

const BEFORE: Settings = Settings {
    pre_stop_seconds: 0,
    termination_grace_period_seconds: 30,
    min_ready_seconds: 0,
    readiness_delay_seconds: None,
};

/// A run of pods that end one by one and serve on, `seconds` after their deletion still routed to.
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
            t0_basis: None,
            t0_s: 0.0,
            timeline: BTreeMap::from([(Stage::AppSigterm, 20.0), (Stage::AppExited, 21.4)]),
            pre_stop_seconds: Some(20),
            grace_period_seconds: 50,
            exit_code: Some(0),
            windows: vec![window(*s)],
            requests: crate::model::TerminationRequests::default(),
            app_errors_after_t0: None,
            dead_seconds: None,
        })
        .collect();
    result
}

const WISH: Wish = Wish { before: BEFORE, may_shorten: false };

#[test]
fn the_sleep_is_the_longest_window_in_whole_seconds() {
    let choice = choose(&windows(&[0.2, 3.1, 1.0]), 20, WISH).unwrap();
    // The pods took 1.4 s after their sleep.
    let settings = Settings { pre_stop_seconds: 4, ..BEFORE };
    assert_eq!(choice.settings, settings);
    assert_eq!(choice.stopping_seconds.map(|s| (s * 10.0).round()), Some(14.0));
    assert_eq!(choice.consumers[0].windows_seconds, [0.2, 1.0, 3.1]);
    let shortened = choose(&windows(&[3.1]), 20, Wish { may_shorten: true, ..WISH }).unwrap();
    assert_eq!(shortened.settings.termination_grace_period_seconds, 4 + 2 + 1);
    // A long one needs a longer grace period.
    let before = Settings { termination_grace_period_seconds: 5, ..BEFORE };
    let longer = choose(&windows(&[3.1]), 20, Wish { before, ..WISH }).unwrap();
    assert_eq!(longer.settings.termination_grace_period_seconds, 7);
}

#[test]
fn how_alike_windows_are_within_a_rollout_is_told_of_ends_that_are_apart() {
    let mut result = windows(&[0.2, 0.3, 0.25, 1.2, 1.3]);
    for (i, t) in result.terminations.iter_mut().enumerate() {
        (t.mode, t.t0_s, t.disruption, t.repetition) =
            (Mode::Rollout, i as f64 * 10.0, Some(0), Some(if i < 3 { 0 } else { 1 }));
    }
    // One sync took out the second and the third.
    result.terminations[2].t0_s = 10.05;
    let alike = |result: &RunResult| choose(result, 20, WISH).unwrap().consumers[0].within_rollouts;
    let found = alike(&result).unwrap();
    assert_eq!((found.rollouts, found.ends), (2, 4));
    assert!(found.correlation > 0.9, "{found:?}");
    result.terminations.truncate(3);
    assert_eq!(alike(&result), None, "one rollout tells nothing of others");
}

#[test]
fn a_window_that_outlasts_the_sleep_is_not_seen_to_its_end() {
    assert_eq!(choose(&windows(&[0.2, 20.1]), 20, WISH), Err(Unknown::Outlasted));
    let choice = choose(&windows(&[0.2, 19.6]), 20, WISH).unwrap();
    assert_eq!(choice.settings.pre_stop_seconds, 20, "the pod served on until then");
    let mut early = windows(&[0.2]);
    early.terminations[0].timeline.insert(Stage::ContainersTerminated, 0.4);
    let why = choose(&early, 20, WISH).unwrap_err();
    assert!(matches!(why, Unknown::Because(why) if why[0].contains("ended 0.4 s after its deletion")));
    let because = |why: &str| Err(Unknown::Because(vec![why.to_owned()]));
    let mut refused = windows(&[0.2]);
    refused.recommendation[0].refused_because = vec!["too few".into()];
    assert_eq!(choose(&refused, 20, WISH), because("too few"));
    refused.recommendation.clear();
    assert_eq!(choose(&refused, 20, WISH), because("no pod ended, so there is no window"));
}

#[test]
fn a_proof_fails_by_what_a_sleep_saves_and_says_how_long_it_must_be() {
    let judged = |result: &RunResult| proof(result, Names::Known, 4, 2);
    let mut result = windows(&[0.2, 3.1]);
    result.verdict = Verdict::Valid;
    assert_eq!(judged(&result), Proof::Holds);
    result.requests.by_cause = BTreeMap::from([(Cause::KilledInFlight, 3)]);
    assert_eq!(judged(&result), Proof::Holds, "that is for the app to mend");
    result.requests.by_cause = BTreeMap::from([(Cause::RoutedToDeadPod, 2)]);
    assert_eq!(judged(&result), Proof::TooShort { lost: 2, at_least: 5 });
    result.terminations[0].windows[0].lower_s = Some(6.5);
    assert_eq!(judged(&result), Proof::TooShort { lost: 2, at_least: 7 });
    result.verdict = Verdict::Invalid { why: vec!["it fell behind".into()] };
    assert_eq!(judged(&result), Proof::Unknown { why: vec!["it fell behind".into()] });
}

#[test]
fn what_a_sleep_saves_has_no_remedy_of_the_run_before() {
    let mut result = windows(&[0.5]);
    let causes = [(Cause::RoutedToDeadPod, 9), (Cause::KilledInFlight, 2), (Cause::StaleFlow, 1)];
    result.requests.by_cause = causes.into();
    result.findings = causes
        .map(|(cause, _)| {
            let remedy = format!("what helps against {}", cause.as_str());
            Finding { cause: Some(cause), ..finding(Severity::Error, String::new(), "", &remedy) }
        })
        .into();
    let lost = lost_to(&result).into_iter().map(|lost| (lost.cause, lost.requests, lost.remedy));
    let other = (Cause::KilledInFlight, 2, "what helps against killed_in_flight".to_owned());
    assert_eq!(lost.collect::<Vec<_>>(), [(Cause::RoutedToDeadPod, 9, String::new()), other]);
}

#[test]
fn a_proof_needs_as_many_ends_of_pods_as_its_coverage() {
    let mut result = windows(&[0.2, 3.1]);
    result.verdict = Verdict::Valid;
    let why = vec!["2 of 2 ends of pods count, and 29 are needed".to_owned()];
    assert_eq!(proof(&result, Names::Known, 4, 29), Proof::Unknown { why });
    result.terminations[0].mode = Mode::Rollout;
    assert_eq!(proof(&result, Names::Known, 4, 2), Proof::Holds);
    let why = vec!["1 of 2 ends of pods count, and 2 are needed".to_owned()];
    assert_eq!(proof(&result, Names::Unknown, 4, 2), Proof::Unknown { why });
}

#[test]
fn pods_are_known_by_name_if_a_new_one_is_known_to_have_answered() {
    let mut result = windows(&[0.2, 3.1]);
    let start =
        |stage| Start { pod: "d".into(), timeline: BTreeMap::from([(stage, 0.7)]), was_awaited: false };
    result.starts = vec![start(StartStage::Ready)];
    assert_eq!(names(&result), Names::Unknown);
    result.starts.push(start(StartStage::FirstRequest));
    assert_eq!(names(&result), Names::Known);
}

#[test]
fn what_starts_lose_asks_for_a_readiness_delay_or_min_ready_seconds() {
    let mut result = windows(&[0.2]);
    let timeline = BTreeMap::from([
        (StartStage::IpReported, 0.5),
        (StartStage::Ready, 1.0),
        (StartStage::FirstRequest, 3.9),
    ]);
    // Nothing was sent to this one for long.
    let late = BTreeMap::from([(StartStage::IpReported, 0.5), (StartStage::FirstRequest, 12.0)]);
    result.starts = vec![
        Start { pod: "d".into(), timeline, was_awaited: true },
        Start { pod: "e".into(), timeline: late, was_awaited: false },
    ];
    let probed = Settings { readiness_delay_seconds: Some(1), ..BEFORE };
    let rolling = Rollout { pods: 3, strategy: Strategy::Rolling { at_once: 1 } };
    let with_starts = |result: &RunResult, set| with_starts(result, set, rolling);
    assert_eq!(with_starts(&result, probed), probed, "they lose nothing");
    result.requests.by_cause = BTreeMap::from([(Cause::NotReadyYet, 2), (Cause::NoReadyEndpoint, 3)]);
    let wanted = with_starts(&result, probed);
    assert_eq!((wanted.readiness_delay_seconds, wanted.min_ready_seconds), (Some(4), 3));
    assert_eq!(with_starts(&result, BEFORE).readiness_delay_seconds, None, "that takes a probe");
    let recreated = Rollout { strategy: Strategy::Recreate, ..rolling };
    assert_eq!(super::with_starts(&result, probed, recreated).min_ready_seconds, 0, "no old pod is left");
    assert_eq!(lost_at_starts(&result, probed, probed), None, "nothing was chosen for it");
    let still = lost_at_starts(&result, probed, wanted).unwrap();
    assert_eq!(still, "2 requests were still lost by not_ready_yet with the chosen readiness delay");
    result.requests.by_cause.clear();
    assert_eq!(lost_at_starts(&result, probed, wanted), None);
}

#[test]
fn the_price_depends_on_what_replaces_the_pods() {
    let to = Settings { pre_stop_seconds: 10, ..BEFORE };
    let price = |strategy| Rollout { pods: 6, strategy }.price(BEFORE, to);
    let [rolling, in_place] = [Strategy::Rolling { at_once: 2 }, Strategy::InPlace { at_once: 2 }].map(price);
    assert_eq!(
        (rolling.seconds_each_pod, rolling.seconds_each_rollout, rolling.terminating_at_once),
        (10, 10, 6)
    );
    assert_eq!((in_place.seconds_each_rollout, in_place.terminating_at_once), (30, 2));
    let slower = Settings { min_ready_seconds: 3, readiness_delay_seconds: Some(1), ..BEFORE };
    let price = Rollout { pods: 5, strategy: Strategy::Rolling { at_once: 2 } }.price(BEFORE, slower);
    assert_eq!((price.seconds_each_pod, price.seconds_each_rollout), (0, 12), "three steps of 4 s");
    let back = Rollout { pods: 6, strategy: Strategy::InPlace { at_once: 1 } }.price(to, BEFORE);
    assert_eq!(back.seconds_each_rollout, -60);
}
