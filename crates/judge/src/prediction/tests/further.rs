//! Predictions for one further termination of a run's pods.

use super::*;
use rolldrop_explain::Analysed;
use rolldrop_explain::model::{Analysis, Cause, SettingsOrigin, TerminationStreams, Verdict};
use std::collections::BTreeMap;

/// Returns a run whose three pods had a preStop sleep of 5 s and a grace period of 20 s. Two of the apps cut streams at
/// SIGTERM. Stream lengths are exponential with a mean of 8 s, at 6.7 streams per pod per second.
fn run() -> Analysis {
    let records = rolldrop_simulation::drained_streams();
    Analysed::of(records.log(), records).unwrap().analysis
}

/// Returns the same run with apps that keep serving their streams after SIGTERM, and with the steady part from
/// [`steady`].
fn drained() -> Analysis {
    let mut analysis = run();
    analysis.account.findings.clear();
    analysis.steady = Some(steady(Some(MissingShare::Exactly(0.005)), &["a", "b", "c"]));
    analysis
}

fn settings(cuts: &[FurtherCut]) -> Vec<(SettingsOrigin, Option<u64>, Option<u64>)> {
    cuts.iter().map(|of| (of.settings, of.pre_stop_s, of.grace_s)).collect()
}

#[test]
fn further_termination_cuts_streams_beyond_sleep() {
    let cuts = further_cuts(&run());
    let current = (SettingsOrigin::Current, Some(5), Some(20));
    assert_eq!(settings(&cuts), [current, (SettingsOrigin::Advised, None, None)]);
    let mean = cuts[0].cut.unwrap();
    assert!((6.0..7.5).contains(&mean.rate_per_pod), "{mean:?}");
    // The theory says 6.67 × 8 exp(-5 / 8) = 28.5, and more because of the windows, of which only bounds are known.
    assert!((28.0..40.0).contains(&mean.estimate) && mean.lower < 28.5 && mean.upper > 28.5, "{mean:?}");
    assert!(matches!(cuts[1].cut, Err(CutUnknown::TooFew(Some(_)))), "{:?}", cuts[1]);
}

#[test]
fn termination_of_draining_app_uses_grace_period() {
    let cuts = further_cuts(&drained());
    let [current, advised] = cuts[..] else { panic!("{cuts:?}") };
    // The mean is 5 exp(-20 / 5) = 0.09, and its upper bound is larger than 0.1.
    let mean = current.cut.unwrap();
    assert!((0.05..0.15).contains(&mean.estimate) && mean.upper > MAX_CUT, "{mean:?}");
    assert!(advised.pre_stop_s == Some(5) && (21..=25).contains(&advised.grace_s.unwrap()), "{advised:?}");
    assert!(advised.cut.unwrap().upper <= MAX_CUT, "{advised:?}");
}

#[test]
fn sufficient_settings_are_not_recommended_again() {
    let mut analysis = drained();
    for of in &mut analysis.result.terminations {
        of.grace_period_seconds = 30;
    }
    assert_eq!(settings(&further_cuts(&analysis)), [(SettingsOrigin::Current, Some(5), Some(30))]);
}

#[test]
fn advised_sleep_fits_into_grace_period() {
    let advised = |mut analysis: Analysis| {
        analysis.steady = Some(steady(Some(MissingShare::Exactly(0.005)), &["a", "b", "c"]));
        let rec = &mut analysis.result.recommendation[0];
        (rec.pre_stop_seconds, rec.suggested_seconds) = (None, Some(40));
        settings(&further_cuts(&analysis)).pop()
    };
    assert_eq!(advised(drained()), Some((SettingsOrigin::Advised, Some(40), Some(41))));
    // An app that cuts its streams keeps its 15 s.
    assert_eq!(advised(run()), Some((SettingsOrigin::Advised, Some(40), Some(55))));
}

#[test]
fn advised_sleep_is_no_shorter_than_known_window() {
    let mut analysis = drained();
    analysis.result.recommendation.clear();
    let window = &mut analysis.result.terminations[0].windows[0];
    (window.lower_s, window.upper_s) = (Some(7.5), None);
    assert_eq!(measured_windows(&analysis.result)[0], (7.5, f64::INFINITY));
    analysis.result.requests.by_cause = BTreeMap::from([(Cause::RoutedToDeadPod, 3)]);
    let advised = settings(&further_cuts(&analysis)).pop().unwrap();
    assert_eq!((advised.0, advised.1), (SettingsOrigin::Advised, Some(8)));
}

#[test]
fn unknown_cuts_report_reason() {
    let why = |change: fn(&mut Analysis)| {
        let mut analysis = drained();
        change(&mut analysis);
        further_cuts(&analysis)[0].cut.unwrap_err()
    };
    assert_eq!(why(|run| run.result.verdict = Verdict::Partial { why: Vec::new() }), CutUnknown::RunNotValid);
    let hidden = why(|run| run.result.terminations.iter_mut().for_each(|of| of.pre_stop_seconds = None));
    assert_eq!(hidden, CutUnknown::SleepHidden);
    let unnamed = why(|run| run.steady = Some(steady(Some(MissingShare::Exactly(0.005)), &[])));
    assert_eq!(unnamed, CutUnknown::NoPrediction(NoPrediction::NoPods { unnamed: 7 }));
    let unseen = why(|run| {
        for of in &mut run.result.terminations {
            of.streams = Some(TerminationStreams { alive_at_t0: 1, ..TerminationStreams::default() });
        }
    });
    assert_eq!(unseen, CutUnknown::ReactionNotSeen);
    let few = why(|run| run.result.terminations.iter_mut().for_each(|of| of.grace_period_seconds = 600));
    assert!(matches!(few, CutUnknown::TooFew(Some(_))), "{few:?}");
    let mut untouched = drained();
    untouched.result.terminations.clear();
    assert_eq!(further_cuts(&untouched), []);
}
